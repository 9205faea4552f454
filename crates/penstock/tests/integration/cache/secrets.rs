//! A private response reaches no other client, and no client decides what others get.

use super::{CacheSetup, IN_MEMORY, RequestCounts, answer, ask, get, in_front_of, text, wait_hit};
use crate::support::{Origin, RawClient, Script, Server, Step, head_of};

/// An origin that sets a cookie for each client.
fn greeting(cache_control: &'static str) -> Origin {
    let given = RequestCounts::default();
    Origin::start(move |seen| {
        let number = given.next("all");
        let fields = format!("Cache-Control: {cache_control}\r\nSet-Cookie: id={number}\r\n");
        answer(seen, &fields, "hello")
    })
}

#[test]
fn no_cookie_is_given_to_two_clients() {
    for cache_control in ["max-age=3600", "public, max-age=3600", "s-maxage=3600"] {
        let origin = greeting(cache_control);
        let server = in_front_of(&origin);
        let mut cookies = Vec::new();
        for _ in 0..10 {
            let response = get(&server, "/a");
            assert_eq!(response.text(), "hello");
            cookies.extend(response.header("set-cookie").map(str::to_owned));
        }
        let count = cookies.len();
        cookies.sort_unstable();
        cookies.dedup();
        assert_eq!(cookies.len(), count, "{cache_control}: {cookies:?}");
        assert!(count >= 1, "the first client got its own");
    }
}

#[test]
fn a_page_of_one_session_is_given_to_no_other() {
    // A careless origin: each session's page, without any caching fields.
    let origin = Origin::start(|seen| {
        let session = seen.field("cookie").unwrap_or_else(|| "none".to_owned());
        answer(
            seen,
            "Last-Modified: Mon, 01 Jun 2026 00:00:00 GMT\r\n",
            session,
        )
    });
    for word in [
        "default_ttl = \"1m\"",
        "ttl_by_status = { 200 = \"1m\" }",
        "heuristic_freshness = true",
        "default_ttl = \"1m\", bypass = { cookies = [\"session\"] }",
        "default_ttl = \"1m\", key = { cookies = [\"session\"] }",
    ] {
        let server = CacheSetup::new(&origin, IN_MEMORY).route(word).serve();
        let page = |cookie: &str| ask(&server, "GET /account", &format!("Cookie: {cookie}\r\n"));
        for _ in 0..3 {
            for cookie in ["session=alice", "session=mallory"] {
                assert_eq!(page(cookie).text(), cookie, "{word}");
            }
        }
        wait_hit(&server, "/page");
    }
    // The route ignores all cookies.
    let word = "default_ttl = \"1m\", bypass = { cookies = [] }";
    let server = CacheSetup::new(&origin, IN_MEMORY).route(word).serve();
    assert_eq!(ask(&server, "GET /", "Cookie: seen=1\r\n").text(), "seen=1");
    assert_eq!(wait_hit(&server, "/").text(), "seen=1");
}

#[test]
fn each_host_has_its_own() {
    let origin = Origin::start(|seen| {
        let host = seen.field("host").unwrap();
        answer(seen, "Cache-Control: max-age=3600\r\n", host)
    });
    let server = in_front_of(&origin);
    for _ in 0..3 {
        for host in ["a.example", "b.example", "a.example:81"] {
            let mut client = server.connect();
            client.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
            assert_eq!(client.expect_status(200).text(), host);
        }
    }
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: A.Example\r\n\r\n");
    // Spelled differently, it is the same host.
    let lower = client.expect_status(200).text();
    assert_eq!(lower, "a.example");
    assert_eq!(origin.lines().len(), 3);
}

/// An origin that echoes client fields in its response.
fn gullible(fields: &'static [&'static str]) -> Origin {
    Origin::start(move |seen| {
        let said = fields.iter().filter_map(|name| seen.field(name));
        let said: Vec<_> = said.collect();
        let text = format!("{} {}", seen.target, said.join(","));
        answer(seen, "Cache-Control: max-age=3600\r\n", text)
    })
}

#[test]
fn fields_that_are_not_in_the_key_poison_nobody() {
    let names: &[&str] = &[
        "X-Forwarded-Host",
        "X-Forwarded-Proto",
        "X-Forwarded-For",
        "Forwarded",
        "X-Original-URL",
        "X-Rewrite-URL",
        "X-HTTP-Method-Override",
        "X-Host",
        "X-Forwarded-Server",
    ];
    for name in names {
        let origin = gullible(names);
        let front = CacheSetup::new(&origin, IN_MEMORY).server("trusted_proxies = []");
        let server = front.serve();
        let field = format!("{name}: evil.example\r\n");
        for _ in 0..3 {
            assert_eq!(ask(&server, "GET /a", &field).status, 200);
        }
        let said = text(&server, "/a");
        assert!(!said.contains("evil"), "{name}: {said}");
        assert_eq!(wait_hit(&server, "/a").text(), said, "{name}");
    }
}

#[test]
fn a_get_with_a_body_leaves_nothing_behind() {
    let origin = Origin::start(|seen| {
        let size = seen.field("content-length").unwrap_or_default();
        answer(seen, "Cache-Control: max-age=3600\r\n", format!("[{size}]"))
    });
    let server = in_front_of(&origin);
    let mut client = server.connect();
    client.send("GET /a HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nevil");
    client.expect_status(200);
    let said = text(&server, "/a");
    assert!(said == "[]" || said == "[0]", "{said}");
    assert_eq!(wait_hit(&server, "/a").text(), said);
}

#[test]
fn an_answer_to_head_is_no_answer_to_get() {
    let origin = super::counting("Cache-Control: max-age=3600\r\n");
    let server = in_front_of(&origin);
    let head = ask(&server, "HEAD /a", "");
    assert_eq!((head.status, head.body.len()), (200, 0));
    for _ in 0..2 {
        let response = get(&server, "/a");
        assert!(response.text().starts_with("/a "), "{response:?}");
    }
}

/// Checks that truncated responses are not stored.
fn cut(server: &Server, origin: &Origin) {
    for round in 1..=3 {
        let mut client = RawClient::connect(server.port());
        client.send("GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
        match client.try_response(false) {
            Err(_) => {}
            Ok(response) => assert_eq!(response.status, 502, "{}", response.text()),
        }
        assert!(origin.lines().len() >= round, "{:?}", origin.lines());
    }
    assert_eq!(super::status(server)["objects"], 0);
}

#[test]
fn what_was_cut_is_not_kept() {
    let fresh = "Cache-Control: max-age=3600\r\n";
    let length = Origin::start(move |_| {
        let head = head_of("200 OK", fresh, 100_000);
        Script::raw(format!("{head}{}", "x".repeat(50_000)))
    });
    cut(&in_front_of(&length), &length);
    let chunked = Origin::start(move |_| {
        let head = format!("HTTP/1.1 200 OK\r\n{fresh}Transfer-Encoding: chunked\r\n\r\n");
        Script::raw(format!("{head}3\r\none\r\n3\r\ntw"))
    });
    cut(&in_front_of(&chunked), &chunked);
    let reset = Origin::start(move |_| {
        let head = head_of("200 OK", fresh, 10);
        Script::raw(format!("{head}half ")).then(Step::Reset)
    });
    cut(&in_front_of(&reset), &reset);
}
