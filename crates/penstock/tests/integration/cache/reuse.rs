//! Stored responses are reused for matching requests, with the fields that HTTP requires.

use super::{
    CacheSetup, IN_MEMORY, ON_DISK, answer, ask, cache_status, content, counting, get, in_front_of,
    is_hit, of_content, status, text, wait_hit, wait_objects, wait_working,
};
use crate::support::{Origin, PATIENCE, Script, Site, eventually, head_of};

#[test]
fn a_second_request_is_a_hit_of_which_the_origin_hears_nothing() {
    for cache in [IN_MEMORY, ON_DISK] {
        let origin = counting("Cache-Control: max-age=3600\r\n");
        let server = CacheSetup::new(&origin, cache).serve();
        let first = get(&server, "/a?b=c");
        assert_eq!((first.status, first.text().as_str()), (200, "/a?b=c 1"));
        assert!(cache_status(&first).contains("; fwd="), "{first:?}");
        let second = wait_hit(&server, "/a?b=c");
        assert_eq!(second.text(), "/a?b=c 1");
        assert!(second.header("age").is_some(), "{second:?}");
        assert_eq!(second.header("content-type"), Some("text/plain"));
        let head = ask(&server, "HEAD /a?b=c", "");
        assert_eq!(
            (head.status, head.header("content-length")),
            (200, Some("8"))
        );
        assert!(is_hit(&head), "{head:?}");
        assert_eq!(origin.lines(), ["GET /a?b=c"]);
        wait_objects(&server, 1);
        let status = status(&server);
        assert!(status["counters"]["hits"].as_u64() >= Some(2), "{status}");
        assert!(status["counters"]["misses"].as_u64() >= Some(1), "{status}");
        assert!(status["hit_ratio"].as_f64() > Some(0.0), "{status}");
        let metric = "penstock_cache_objects{cache=\"store\"}";
        assert_eq!(server.metric(metric), Some(1.0));
    }
}

#[test]
fn large_and_empty_bodies_come_back_as_they_were() {
    let origin = of_content();
    let server = CacheSetup::new(&origin, ON_DISK).serve();
    let targets = ["/none?0", "/one?1", "/some?70000", "/large?5000000"];
    for target in targets {
        let length = target.rsplit('?').next().unwrap().parse().unwrap();
        let expected = content(target, length);
        assert!(get(&server, target).body == expected, "{target} first");
        for _ in 0..3 {
            assert!(wait_hit(&server, target).body == expected, "{target}");
        }
    }
    assert_eq!(origin.lines().len(), targets.len());
}

#[test]
fn what_may_not_be_stored_is_asked_for_each_time() {
    let fresh = "Cache-Control: max-age=3600\r\n";
    let rows = [
        ("no-store", "Cache-Control: no-store\r\n", ""),
        ("private", "Cache-Control: private, max-age=3600\r\n", ""),
        ("says nothing", "", ""),
        (
            "varies by everything",
            "Cache-Control: max-age=3600\r\nVary: *\r\n",
            "",
        ),
        ("authorised", fresh, "Authorization: Basic eDp5\r\n"),
    ];
    for (name, answered, fields) in rows {
        let origin = counting(answered);
        let server = in_front_of(&origin);
        for number in 1..=3 {
            let response = ask(&server, "GET /a", fields);
            assert_eq!(response.text(), format!("/a {number}"), "{name}");
        }
        assert_eq!(status(&server)["objects"], 0, "{name}");
    }
}

#[test]
fn errors_are_passed_on_and_not_kept() {
    let origin = Origin::start(|seen| {
        let status = format!("{} Word", &seen.target[1..]);
        Script::raw(format!("{}oops", head_of(&status, "", 4))).keep()
    });
    let server = in_front_of(&origin);
    for code in [400, 403, 500, 503] {
        for _ in 0..2 {
            assert_eq!(get(&server, &format!("/{code}")).status, code);
        }
    }
    assert_eq!(origin.lines().len(), 8, "{:?}", origin.lines());
}

#[test]
fn a_route_keeps_errors_for_as_long_as_it_says_of_their_status() {
    let origin = Origin::start(|seen| {
        let status = format!("{} Word", &seen.target[1..]);
        Script::raw(format!("{}oops", head_of(&status, "", 4))).keep()
    });
    let rule = "ttl_by_status = { 404 = \"1h\", 503 = \"0s\" }";
    let server = CacheSetup::new(&origin, IN_MEMORY).route(rule).serve();
    let missing = get(&server, "/404");
    assert_eq!((missing.status, missing.text().as_str()), (404, "oops"));
    let again = eventually(PATIENCE, "a hit", || {
        Some(get(&server, "/404")).filter(is_hit)
    });
    assert_eq!((again.status, again.text().as_str()), (404, "oops"));
    for _ in 0..2 {
        assert_eq!(get(&server, "/503").status, 503);
        assert_eq!(get(&server, "/500").status, 500);
    }
    assert_eq!(origin.lines().len(), 5, "{:?}", origin.lines());
}

#[test]
fn a_client_that_has_it_gets_304_from_the_cache() {
    let origin = counting("Cache-Control: max-age=3600\r\nETag: \"x\"\r\n");
    let server = in_front_of(&origin);
    get(&server, "/a");
    wait_hit(&server, "/a");
    let same = ask(&server, "GET /a", "If-None-Match: \"y\", W/\"x\"\r\n");
    assert_eq!(same.status, 304, "{same:?}");
    assert_eq!(same.header("etag"), Some("\"x\""));
    let other = ask(&server, "GET /a", "If-None-Match: \"y\"\r\n");
    assert_eq!((other.status, other.text().as_str()), (200, "/a 1"));
    assert_eq!(origin.lines().len(), 1);
}

#[test]
fn variants_are_kept_apart() {
    let origin = Origin::start(|seen| {
        let fields = "Cache-Control: max-age=3600\r\nVary: Accept-Language\r\n";
        let language = seen.field("accept-language").unwrap_or_default();
        answer(seen, fields, format!("in {language}"))
    });
    let server = in_front_of(&origin);
    for _ in 0..3 {
        for language in ["de", "fr"] {
            let field = format!("Accept-Language: {language}\r\n");
            let response = ask(&server, "GET /a", &field);
            assert_eq!(response.text(), format!("in {language}"));
        }
    }
    assert_eq!(text(&server, "/a"), "in ");
    assert_eq!(origin.lines().len(), 3, "{:?}", origin.lines());
}

#[test]
fn words_to_the_cache_are_heeded_and_not_passed_on() {
    let origin =
        counting("X-Accel-Expires: 3600\r\nSurrogate-Key: a b\r\nCache-Tag: c\r\nX-Kept: 1\r\n");
    let server = in_front_of(&origin);
    for response in [get(&server, "/a"), wait_hit(&server, "/a")] {
        assert_eq!(response.text(), "/a 1");
        assert_eq!(response.header("x-kept"), Some("1"));
        for hidden in ["x-accel-expires", "surrogate-key", "cache-tag"] {
            assert_eq!(response.header(hidden), None, "{response:?}");
        }
    }
    assert_eq!(origin.lines().len(), 1);
}

#[test]
fn words_to_the_cache_reach_no_client_where_there_is_none() {
    let origin = counting("X-Accel-Expires: 3600\r\nX-Kept: 1\r\n");
    let app = "count = 0\n\
               def app(environ, start_response):\n\
               \x20   global count\n\
               \x20   count += 1\n\
               \x20   start_response('200 OK', [('X-Accel-Expires', '3600'), ('X-Kept', '1')])\n\
               \x20   return [b'%d' % count]\n";
    let toml = format!(
        "[server]\nlisten = [\"127.0.0.1:0\"]\n[apps.app]\nentry = \"app:app\"\nprocesses = 1\n\
         [upstreams.b]\nservers = [\"{}\"]\n[caches.store]\nmax_size = \"16MiB\"\n[[sites]]\n\
         [[sites.routes]]\npath = \"/up/*\"\nupstream = \"b\"\n\
         [[sites.routes]]\npath = \"/kept/*\"\napp = \"app\"\ncache = [\"store\"]\n\
         [[sites.routes]]\npath = \"/*\"\napp = \"app\"\n",
        origin.address()
    );
    let site = Site::new().file("app.py", app).config(&toml);
    let server = site.serve(&[]);
    server.wait_ready("app");
    wait_working(&server);
    let once = get(&server, "/kept/a").text();
    for (target, expected) in [
        ("/up/a", "/up/a 1"),
        ("/up/a", "/up/a 2"),
        ("/a", "2"),
        ("/a", "3"),
        ("/kept/a", once.as_str()),
    ] {
        let response = match target {
            "/kept/a" => wait_hit(&server, target),
            target => get(&server, target),
        };
        assert_eq!(response.text(), expected, "{target}");
        assert_eq!(response.header("x-kept"), Some("1"), "{target}");
        assert_eq!(response.header("x-accel-expires"), None, "{target}");
    }
}

#[test]
fn a_change_through_an_unsafe_method_is_seen_at_once() {
    let origin = counting("Cache-Control: max-age=3600\r\n");
    let server = in_front_of(&origin);
    assert_eq!(text(&server, "/a"), "/a 1");
    wait_hit(&server, "/a");
    let posted = ask(&server, "POST /a", "Content-Length: 0\r\n");
    assert_eq!(posted.text(), "/a 2");
    assert_eq!(text(&server, "/a"), "/a 3");
}

#[test]
fn a_bypass_rule_goes_round_the_cache() {
    let origin = counting("Cache-Control: max-age=3600\r\n");
    let rules = "bypass = { cookies = [\"session*\"] }, cache_status = false";
    let server = CacheSetup::new(&origin, IN_MEMORY).route(rules).serve();
    let logged_in = "Cookie: theme=dark; session_id=7\r\n";
    assert_eq!(ask(&server, "GET /a", logged_in).text(), "/a 1");
    assert_eq!(text(&server, "/a"), "/a 2");
    assert_eq!(text(&server, "/a"), "/a 2");
    assert_eq!(ask(&server, "GET /a", logged_in).text(), "/a 3");
    let response = ask(&server, "GET /a", "Cookie: theme=dark\r\n");
    assert_eq!(response.text(), "/a 2");
    assert_eq!(
        response.header("cache-status"),
        None,
        "cache_status = false"
    );
}

#[test]
fn a_response_is_stored_when_it_has_been_asked_for_often_enough() {
    let origin = counting("Cache-Control: max-age=3600\r\n");
    let server = CacheSetup::new(&origin, IN_MEMORY)
        .route("min_uses = 3")
        .serve();
    let texts: Vec<_> = (0..5).map(|_| text(&server, "/a")).collect();
    assert_eq!(texts, ["/a 1", "/a 2", "/a 3", "/a 3", "/a 3"]);
}

/// More URLs than there is room for, each requested once.
#[test]
fn a_client_that_asks_for_ever_new_urls_leaves_popular_pages_stored() {
    const POPULAR: usize = 20;
    let origin = Origin::start(|seen| {
        answer(
            seen,
            "Cache-Control: max-age=3600\r\n",
            content(&seen.target, 20_000),
        )
    });
    let server = in_front_of(&origin);
    let mut client = server.connect();
    let mut ask = |target: &str| {
        client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        is_hit(&client.expect_status(200))
    };
    for _ in 0..4 {
        for number in 0..POPULAR {
            ask(&format!("/{number}"));
        }
    }
    // 40 MB into 16 MiB.
    assert!(!(0..2_000).any(|number| ask(&format!("/?x={number}"))));
    let hits = (0..POPULAR).filter(|number| ask(&format!("/{number}")));
    assert_eq!(hits.count(), POPULAR);
    // Of its own URLs the client finds only the last ones.
    assert!(!ask("/?x=0"));
}
