//! Rollout: parts of a route's requests for several back ends, copies for another one.

use std::collections::BTreeSet;

use crate::support::{Origin, PATIENCE, Response, Script, Server, Site, eventually, head_of};

/// An origin that names itself, in responses that a cache may store.
fn origin(name: &'static str) -> Origin {
    Origin::start(move |seen| {
        let mut bytes = head_of("200 OK", "Cache-Control: max-age=60\r\n", name.len());
        if seen.method != "HEAD" {
            bytes.push_str(name);
        }
        Script::raw(bytes).keep()
    })
}

fn ask(server: &Server, line: &str, fields: &str) -> Response {
    let mut client = server.connect();
    client.send(format!("{line} HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
    client.response()
}

/// The counts of a rule of the only route that has it, by outcome.
fn rule_counts(server: &Server, rule: &str) -> Vec<(String, u64)> {
    let status = server.admin_json();
    let rules = status["rules"].as_array().unwrap();
    let found = rules.iter().find(|it| it["rule"] == rule).unwrap();
    let count = |it: &serde_json::Value| {
        let name = it["outcome"].as_str().unwrap().to_owned();
        (name, it["requests"].as_u64().unwrap())
    };
    found["counts"]
        .as_array()
        .unwrap()
        .iter()
        .map(count)
        .collect()
}

/// Three upstreams and a cache in memory, with the rest of the route.
fn split_of(origins: [&Origin; 3], route: &str) -> String {
    let [old, new, test] = origins.map(Origin::address);
    format!(
        "[server]\nthreads = 2\n\
         [upstreams.old]\nservers = [\"{old}\"]\n\
         [upstreams.new]\nservers = [\"{new}\"]\n\
         [upstreams.test]\nservers = [\"{test}\"]\n\
         [caches.memory]\nmax_size = \"8MiB\"\n\
         [[sites]]\n[[sites.routes]]\n{route}\n"
    )
}

fn split(weights: [u32; 2], more: &str) -> String {
    let [old, new] = weights;
    format!(
        "split = [{{ upstream = \"old\", weight = {old} }}, {{ upstream = \"new\", weight = {new} }}, \
         {{ upstream = \"test\", weight = 0, match = {{ header = {{ X-Tester = \"1\" }} }} }}]\n{more}"
    )
}

#[test]
fn a_split_gives_each_client_a_part_and_keeps_it_there() {
    let origins = ["old", "new", "test"].map(origin);
    let toml = |route: &str| split_of(origins.each_ref(), route);
    let server = Site::new().config(&toml(&split([50, 50], ""))).serve(&[]);
    let mut parts = BTreeSet::new();
    for _ in 0..60 {
        let first = ask(&server, "GET /a", "");
        let cookie = first.header("Set-Cookie").expect("a new client").to_owned();
        let (pair, attributes) = cookie.split_once("; ").unwrap();
        assert_eq!(attributes, "Path=/; HttpOnly; SameSite=Lax");
        let again = ask(&server, "GET /b", &format!("Cookie: {pair}\r\n"));
        assert_eq!(
            (again.text(), again.header("Set-Cookie")),
            (first.text(), None)
        );
        let forced = ask(
            &server,
            "GET /c",
            &format!("X-Tester: 1\r\nCookie: {pair}\r\n"),
        );
        assert_eq!(
            (forced.text().as_str(), forced.header("Set-Cookie")),
            ("test", None)
        );
        parts.insert((first.text(), pair.to_owned()));
    }
    let names: Vec<&str> = parts.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["new", "old"], "{parts:?}");
    let counts = rule_counts(&server, "split");
    let [old, new, test] = counts.as_slice() else {
        panic!("{counts:?}");
    };
    assert_eq!(test, &("upstream test".to_owned(), 60));
    assert_eq!(
        (old.0.as_str(), new.0.as_str()),
        ("upstream old", "upstream new")
    );
    assert_eq!(old.1 + new.1, 120);
    let metric =
        "penstock_rule_requests_total{route=\"* /*\",rule=\"split\",outcome=\"upstream test\"}";
    assert_eq!(server.metric(metric), Some(60.0));
    // The new part is taken back: none of its clients stays there, and the counts go on.
    server.site().write(
        "penstock.toml",
        toml(&split([1, 0], "")).replace(
            "{ upstream = \"new\", weight = 0 }",
            "{ upstream = \"new\", weight = 0, match = { header = { X-New = \"1\" } } }",
        ),
    );
    assert_eq!(server.admin("POST", "/reload").status, 200);
    let (_, pair) = parts.iter().find(|(name, _)| name == "new").unwrap();
    let moved = ask(&server, "GET /d", &format!("Cookie: {pair}\r\n"));
    assert_eq!(moved.text(), "old");
    assert!(moved.header("Set-Cookie").is_some());
    assert_eq!(rule_counts(&server, "split")[0].1, old.1 + 1);
}

#[test]
fn each_part_of_a_split_has_its_own_cache() {
    let origins = ["old", "new", "test"].map(origin);
    let route = split(
        [1, 0],
        "cache = [\"memory\"]\nsplit_by = { name = \"part\", max_age = \"1d\" }",
    );
    let route = route.replace(
        "{ upstream = \"new\", weight = 0 }",
        "{ upstream = \"new\", weight = 0, match = { cookie = { part = \"new\" } } }",
    );
    let server = Site::new()
        .config(&split_of(origins.each_ref(), &route))
        .serve(&[]);
    for (fields, expected) in [
        ("", "old"),
        ("Cookie: part=12345678\r\n", "old"),
        ("X-Tester: 1\r\n", "test"),
        ("Cookie: part=new\r\n", "new"),
    ] {
        for _ in 0..3 {
            let response = ask(&server, "GET /page", fields);
            assert_eq!(response.text(), expected, "{fields}");
        }
    }
    for origin in &origins {
        assert_eq!(origin.lines(), ["GET /page"]);
        assert_eq!(origin.last().field("Cookie"), None);
    }
    let first = ask(&server, "GET /page", "");
    let cookie = first.header("Set-Cookie").unwrap();
    assert!(
        cookie.contains("; Path=/; Max-Age=86400; HttpOnly"),
        "{cookie}"
    );
    let status = server.admin_json();
    let routes = status["cached_routes"].as_array().unwrap();
    let names: Vec<_> = routes
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "* /* upstream old",
            "* /* upstream new",
            "* /* upstream test"
        ]
    );
}

#[test]
fn an_application_and_an_upstream_are_parts_of_one_route() {
    let origin = origin("legacy");
    let toml = format!(
        "[apps.hello]\nprocesses = 1\n[upstreams.legacy]\nservers = [\"{}\"]\n\
         [[sites]]\n[[sites.routes]]\npath = \"/\"\nfiles = {{ root = \"public\" }}\n\
         split = [{{ app = \"hello\", weight = 1 }}, {{ upstream = \"legacy\", weight = 1 }}]\n\
         split_by = \"header:X-User\"\n",
        origin.address()
    );
    let server = Site::with_app()
        .file("public/index.txt", "")
        .config(&toml)
        .serve(&[]);
    server.wait_ready("hello");
    let mut seen = BTreeSet::new();
    for user in 0..40 {
        let fields = format!("X-User: {user}\r\n");
        let [one, two] = [0, 1].map(|_| ask(&server, "GET /", &fields));
        assert_eq!((one.status, one.text()), (200, two.text()));
        assert_eq!(one.header("Set-Cookie"), None);
        seen.insert(one.text());
    }
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert!(seen.contains("legacy"));
}

#[test]
fn what_rules_decide_is_counted() {
    let toml = r#"
[[sites]]
hosts = ["a"]
[[sites.routes]]
path = "/inside"
deny = ["10.6.6.6"]
rate_limit = { rate = "2/h", burst = 2 }
cors = ["https://app.example"]
respond = { body = "here" }
[[sites.routes]]
path = "/old"
redirect = "/new"
"#;
    let server = Site::new().config(toml).serve(&[]);
    for (line, fields, status) in [
        ("GET /inside", "X-Forwarded-For: 10.6.6.6\r\n", 403),
        ("GET /inside", "", 200),
        (
            "OPTIONS /inside",
            "Origin: https://app.example\r\nAccess-Control-Request-Method: PUT\r\n",
            204,
        ),
        ("GET /inside", "", 429),
        ("GET /old", "", 302),
    ] {
        assert_eq!(ask(&server, line, fields).status, status, "{line} {fields}");
    }
    let expected = |counts: &[(&str, u64)]| -> Vec<(String, u64)> {
        let owned = |(name, count): &(&str, u64)| ((*name).to_owned(), *count);
        counts.iter().map(owned).collect()
    };
    for (rule, counts) in [
        ("access", &[("refused", 1), ("unavailable", 0)][..]),
        ("rate_limit", &[("refused", 1)]),
        ("cors", &[("answered", 1)]),
        ("respond", &[("answered", 1)]),
        ("redirect", &[("answered", 1), ("unavailable", 0)]),
    ] {
        assert_eq!(rule_counts(&server, rule), expected(counts), "{rule}");
    }
    let status = server.admin_json();
    let rate = &status["rules"].as_array().unwrap()[1];
    assert_eq!(
        (&rate["route"], &rate["in_use"]),
        (&"a /inside".into(), &1.into())
    );
}

#[test]
fn a_mirror_gets_copies_and_holds_up_no_request() {
    let main = origin("main");
    let copies = Origin::start(|seen| match seen.target.as_str() {
        "/stuck" => Script::early().gate("never").send(""),
        _ => Script::raw(head_of("500 Internal Server Error", "", 0)).keep(),
    });
    let toml = format!(
        "[server]\nthreads = 1\n[upstreams.main]\nservers = [\"{}\"]\n\
         [upstreams.copies]\nservers = [\"{}\"]\n[[sites]]\n[[sites.routes]]\nupstream = \"main\"\n\
         mirror = {{ upstream = \"copies\", max_body_size = 10, max_active = 1, timeout = \"60s\" }}\n",
        main.address(),
        copies.address()
    );
    let server = Site::new().config(&toml).serve(&[]);
    let post = |path: &str, fields: &str, body: &str| {
        let length = body.len();
        let mut client = server.connect();
        client.send(format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n{fields}\r\n{body}"
        ));
        let response = client.response();
        assert_eq!(
            (response.status, response.text().as_str()),
            (200, "main"),
            "{path}"
        );
    };
    post("/a?b=1", "X-Mirror: 7\r\nCookie: c=1\r\n", "0123456789");
    copies.wait_requests(1);
    let (copy, original) = (copies.last(), main.last());
    assert_eq!(copy.line(), "POST /a?b=1");
    assert_eq!(copy.field("X-Mirror").as_deref(), Some("1"));
    assert_eq!(copy.field("Cookie").as_deref(), Some("c=1"));
    assert_eq!(copy.body, b"0123456789");
    assert_eq!(
        (original.field("X-Mirror"), original.body),
        (None, copy.body)
    );
    post("/long", "", "01234567890");
    let is_counted = |expected: [u64; 5]| {
        eventually(PATIENCE, "the copies are counted", || {
            let counts = rule_counts(&server, "mirror");
            counts.iter().map(|(_, count)| *count).eq(expected)
        });
    };
    is_counted([1, 0, 0, 1, 0]);
    // One hangs, and the next is dropped.
    post("/stuck", "", "");
    copies.wait_at("never", 1);
    post("/b", "", "");
    is_counted([1, 0, 1, 1, 0]);
    assert_eq!(main.lines().len(), 4);
    assert_eq!(copies.lines(), ["POST /a?b=1", "POST /stuck"]);
    copies.open_gate("never");
}
