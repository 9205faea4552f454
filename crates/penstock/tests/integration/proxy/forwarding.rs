//! Requests and responses are forwarded unchanged in meaning: methods, targets, bodies both ways,
//! and the right fields.
//!
//! The origin refuses malformed requests, so each of these tests also checks that requests are
//! re-encoded properly. Trust is tested from loopback, which is trusted unless a file says
//! otherwise.

use super::{ProxySetup, ask, behind, chunked, noise, post};
use crate::support::{
    Origin, ReceivedRequest, ReservedPort, Response, Script, Server, Site, Step, head_of, page,
};

const SIZES: [usize; 6] = [0, 1, 1_000, 65_536, 65_537, 3 << 20];

fn named() -> (Origin, Server) {
    let origin = Origin::named("origin");
    let server = behind(&origin, "");
    (origin, server)
}

/// Sends a request with these lines after the Host; returns what the origin saw.
fn seen_with(server: &Server, origin: &Origin, lines: &str) -> ReceivedRequest {
    let mut client = server.connect();
    client.send(format!("GET /f HTTP/1.1\r\nHost: a.test:81\r\n{lines}\r\n"));
    client.expect_status(200);
    origin.last()
}

#[test]
fn every_method_arrives() {
    let (origin, server) = named();
    let mut client = server.connect();
    for method in [
        "GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "PROPFIND", "BREW", "get",
    ] {
        client.send(format!("{method} /m HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(client.expect_status(200).text(), "origin", "{method}");
        assert_eq!(origin.last().line(), format!("{method} /m"));
    }
    client.send("HEAD /m HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.expect_head(200).header("content-length"), Some("6"));
    assert_eq!(origin.last().line(), "HEAD /m");
}

#[test]
fn targets_arrive_as_they_were_sent() {
    let (origin, server) = named();
    let mut client = server.connect();
    for (sent, seen) in [
        ("/", "/"),
        ("/a?b=c&d", "/a?b=c&d"),
        ("/?", "/?"),
        ("/a?b?c/../d", "/a?b?c/../d"),
        ("/a%2fb%20c", "/a%2fb%20c"),
        ("/a//b", "/a//b"),
        ("/a;x=y/b", "/a;x=y/b"),
        ("/%e4%ff", "/%e4%ff"),
        ("http://a/absolute?x", "/absolute?x"),
        ("http://a", "/"),
    ] {
        ask(&mut client, sent);
        client.expect_status(200);
        assert_eq!(origin.last().target, seen, "{sent}");
        assert_eq!(origin.last().field("host").as_deref(), Some("a"), "{sent}");
    }
}

/// A server that normalises paths differently must not get a path that the routes read otherwise.
#[test]
fn a_path_with_two_readings_arrives_as_the_routes_read_it() {
    let origin = Origin::named("origin");
    let closed = "[[sites.routes]]\npath = \"/*\"\nfiles = { root = \"empty\" }\n";
    let front = ProxySetup::new([&origin]).tables(closed);
    let toml = front
        .toml()
        .replace("path = \"/*\"\nupstream", "path = \"/open/*\"\nupstream");
    let site = Site::new().file("empty/x", "");
    let server = site.config(&toml).serve(&[]);
    let mut client = server.connect();
    for (sent, seen) in [
        ("/open/a", Some("/open/a")),
        ("//open/a", Some("/open/a")),
        ("/.//open/a?b=/../c", Some("/open/a?b=/../c")),
        ("/x/../open/a", Some("/open/a")),
        ("/x/%2e%2e/open/%61%20b", Some("/open/a%20b")),
        ("/x/..%2fopen/a", Some("/open/a")),
        ("/open/x/..//a", Some("/open/a")),
        ("/open/https://a.test/b", Some("/open/https://a.test/b")),
        ("http://a//open/a", Some("/open/a")),
        ("/open/../a", None),
        ("/open//../a", None),
        ("/open/%2e%2e//a", None),
        ("//open//..//a", None),
    ] {
        let before = origin.requests().len();
        ask(&mut client, sent);
        client.expect_status(if seen.is_some() { 200 } else { 404 });
        let arrived = origin
            .requests()
            .get(before)
            .map(|seen| seen.target.clone());
        assert_eq!(arrived.as_deref(), seen, "{sent}");
    }
    for sent in ["/open/..;/a", "/open/..;x=1/a", "/open/..%5ca", "/open/%00"] {
        let before = origin.requests().len();
        let mut client = server.connect();
        ask(&mut client, sent);
        client.expect_status(400);
        assert_eq!(origin.requests().len(), before, "{sent}");
    }
}

#[test]
fn request_bodies_arrive_whole_and_framed_once() {
    let (origin, server) = named();
    let mut client = server.connect();
    for size in SIZES {
        let body = noise(size);
        client.send(post("/length", &body)).expect_status(200);
        let seen = origin.last();
        assert!(seen.body == body, "{size} bytes with a length");
        let length = seen.field("content-length");
        assert_eq!(length, Some(size.to_string()), "{size} bytes with a length");
        client.send("POST /chunks HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        client.send(chunked(&body, 10_000)).expect_status(200);
        assert!(origin.last().body == body, "{size} bytes in chunks");
    }
    ask(&mut client, "/none");
    client.expect_status(200);
    let seen = origin.last();
    assert_eq!(
        (
            seen.field("content-length"),
            seen.field("transfer-encoding")
        ),
        (None, None)
    );
}

#[test]
fn response_bodies_come_back_whole_however_they_were_framed() {
    let origin = Origin::start(|seen| {
        let (how, size) = seen.target[1..].split_once('/').unwrap();
        let body = noise(size.parse().unwrap());
        match how {
            "length" => page(seen, body),
            "chunks" => {
                let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
                Script::raw([head.as_bytes(), &chunked(&body, 7_000)].concat()).keep()
            }
            "old" => Script::raw([b"HTTP/1.0 200 OK\r\n\r\n", body.as_slice()].concat()),
            _ => Script::raw([b"HTTP/1.1 200 OK\r\n\r\n", body.as_slice()].concat()),
        }
    });
    let server = behind(&origin, "");
    let mut kept = server.connect();
    for how in ["length", "chunks", "close", "old"] {
        for size in SIZES {
            let name = format!("/{how}/{size}");
            ask(&mut kept, &name);
            assert!(kept.expect_status(200).body == noise(size), "{name}");
            let mut old = server.connect();
            old.send(format!("GET {name} HTTP/1.0\r\nHost: a\r\n\r\n"));
            let response = old.expect_status(200);
            assert_eq!(
                response.header("transfer-encoding"),
                None,
                "{name} to HTTP/1.0"
            );
            assert!(response.body == noise(size), "{name} to HTTP/1.0");
            old.expect_closed();
        }
    }
}

#[test]
fn answers_without_a_body_keep_both_connections() {
    let origin = Origin::start(|seen| match seen.target.as_str() {
        "/204" => Script::raw("HTTP/1.1 204 No Content\r\nX: y\r\n\r\n").keep(),
        "/304" => {
            Script::raw("HTTP/1.1 304 Not Modified\r\nETag: \"e\"\r\nContent-Length: 7\r\n\r\n")
                .keep()
        }
        "/chunked" => Script::raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").keep(),
        _ => page(seen, "a page"),
    });
    let server = ProxySetup::new([&origin]).server("threads = 1").serve();
    let mut client = server.connect();
    for (method, target, status) in [
        ("GET", "/204", 204),
        ("GET", "/304", 304),
        ("HEAD", "/page", 200),
        ("HEAD", "/chunked", 200),
        ("HEAD", "/304", 304),
        ("POST", "/204", 204),
    ] {
        client.send(format!(
            "{method} {target} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
        ));
        let head = client.expect_head(status);
        let length = head.header("content-length");
        match (method, target) {
            ("HEAD", "/page") => assert_eq!(length, Some("6")),
            (_, "/204") => assert_eq!((length, head.header("x")), (None, Some("y"))),
            (_, "/304") => assert_eq!(head.header("etag"), Some("\"e\"")),
            _ => {}
        }
        ask(&mut client, "/between");
        assert_eq!(
            client.expect_status(200).text(),
            "a page",
            "{method} {target}"
        );
    }
    assert_eq!(origin.connections(), 1);
}

#[test]
fn connections_are_kept_and_shared_by_clients() {
    let origin = Origin::named("kept");
    let server = ProxySetup::new([&origin]).server("threads = 1").serve();
    for _ in 0..20 {
        assert_eq!(server.get("/").status, 200);
    }
    assert_eq!(origin.connections(), 1);
    assert_eq!(origin.requests()[19].field("connection"), None);
}

#[test]
fn a_unix_socket_is_a_server_like_any_other() {
    let site = Site::new();
    let origin = Origin::start_unix(&site.dir().join("b.sock"), |seen| page(seen, "over a file"));
    let server = ProxySetup::new([&origin]).serve_in(site);
    assert_eq!(server.get("/").text(), "over a file");
    assert_eq!(origin.last().field("host").as_deref(), Some("localhost"));
}

#[test]
fn fields_of_the_clients_connection_stay_there() {
    let (origin, server) = named();
    let seen = seen_with(
        &server,
        &origin,
        "Connection: keep-alive, X-Private, x-other\r\nX-Private: 1\r\nX-Other: 2\r\nKeep-Alive: 5\r\n\
         Proxy-Connection: keep-alive\r\nTE: gzip\r\nTrailer: X\r\nX-Kept: 3\r\nCookie: a=b\r\n",
    );
    for gone in [
        "connection",
        "x-private",
        "x-other",
        "keep-alive",
        "proxy-connection",
        "te",
    ] {
        assert_eq!(seen.field(gone), None, "{gone}");
    }
    assert_eq!(seen.field("x-kept").as_deref(), Some("3"));
    assert_eq!(seen.field("cookie").as_deref(), Some("a=b"));
}

#[test]
fn fields_of_the_origins_connection_stay_there() {
    let fields = "Connection: X-Private\r\nX-Private: 1\r\nKeep-Alive: timeout=5\r\n\
                  Proxy-Connection: close\r\nTrailer: X\r\nUpgrade: h2c\r\nX-Accel-Limit-Rate: off\r\n\
                  X-Accel-Expires: 5\r\nX-Kept: 3\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n\
                  Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
    let origin = Origin::start(|_| Script::raw(head_of("200 Fine", fields, 0)));
    let server = behind(&origin, "");
    let mut client = server.connect();
    ask(&mut client, "/");
    let response = client.expect_status(200);
    for gone in [
        "x-private",
        "keep-alive",
        "proxy-connection",
        "upgrade",
        "x-accel-limit-rate",
        "x-accel-expires",
        "connection",
    ] {
        assert_eq!(response.header(gone), None, "{gone}");
    }
    let all = |response: &Response, name: &str| -> Vec<String> {
        let found = response
            .headers
            .iter()
            .filter(|(n, _)| n.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.clone()).collect()
    };
    assert_eq!(all(&response, "set-cookie"), ["a=1", "b=2"]);
    assert_eq!(all(&response, "date"), ["Sun, 06 Nov 1994 08:49:37 GMT"]);
    assert_eq!(response.header("x-kept"), Some("3"));
    // The origin closed its connection; the client's stays open.
    ask(&mut client, "/again");
    client.expect_status(200);
}

#[test]
fn the_host_is_the_clients_unless_said_otherwise() {
    let origin = Origin::named("origin");
    let address = origin.address().to_string();
    for (line, expected) in [
        ("", "a.test:81"),
        ("host = \"client\"", "a.test:81"),
        ("host = \"server\"", address.as_str()),
        ("host = \"inside.test\"", "inside.test"),
    ] {
        let server = behind(&origin, line);
        let seen = seen_with(&server, &origin, "");
        assert_eq!(seen.field("host").as_deref(), Some(expected), "{line}");
        assert_eq!(
            seen.field("x-forwarded-host").as_deref(),
            Some("a.test:81"),
            "{line}"
        );
    }
}

const SPOOFED: &str = "X-Forwarded-For: 10.1.2.3\r\nX-Forwarded-Proto: https\r\n\
                       X-Forwarded-Host: evil.test\r\nForwarded: for=10.1.2.3;proto=https\r\n\
                       X-Real-IP: 10.1.2.3\r\n";

#[test]
fn strangers_cannot_say_who_they_are() {
    let origin = Origin::named("origin");
    let server = ProxySetup::new([&origin])
        .server("threads = 1\ntrusted_proxies = []")
        .serve();
    for lines in ["", SPOOFED] {
        let seen = seen_with(&server, &origin, lines);
        assert_eq!(seen.field("x-forwarded-for").as_deref(), Some("127.0.0.1"));
        assert_eq!(seen.field("x-forwarded-proto").as_deref(), Some("http"));
        assert_eq!(seen.field("x-forwarded-host").as_deref(), Some("a.test:81"));
        assert_eq!(seen.field("forwarded"), None);
        let head = String::from_utf8_lossy(&seen.head).into_owned();
        assert!(!head.contains("evil.test"), "{head}");
    }
    let twins = "X_Forwarded_For: 10.1.2.3\r\nX_Y: z\r\nContent_Length: 5\r\nauth_token: s\r\n";
    let twins = seen_with(&server, &origin, twins);
    for (name, expected) in [
        ("x_forwarded_for", None),
        ("content_length", None),
        ("x_y", Some("z")),
        ("auth_token", Some("s")),
    ] {
        assert_eq!(twins.field(name).as_deref(), expected, "{name}");
    }
    assert_eq!(twins.field("x-forwarded-for").as_deref(), Some("127.0.0.1"));
}

#[test]
fn trusted_proxies_are_believed_and_named() {
    let origin = Origin::named("origin");
    let server = ProxySetup::new([&origin])
        .server("threads = 1\ntrusted_proxies = [\"127.0.0.1\"]")
        .serve();
    let seen = seen_with(&server, &origin, SPOOFED);
    let chain = seen.field("x-forwarded-for");
    assert_eq!(chain.as_deref(), Some("10.1.2.3, 127.0.0.1"));
    assert_eq!(seen.field("x-forwarded-proto").as_deref(), Some("https"));
    assert_eq!(seen.field("x-forwarded-host").as_deref(), Some("evil.test"));
}

#[test]
fn the_standard_field_is_written_when_asked_for() {
    let origin = Origin::named("origin");
    for (forwarded, standard, common) in [
        ("rfc7239", true, false),
        ("both", true, true),
        ("off", false, false),
    ] {
        let server = ProxySetup::new([&origin])
            .server("threads = 1\ntrusted_proxies = []")
            .upstream(&format!("forwarded = \"{forwarded}\""))
            .serve();
        let seen = seen_with(&server, &origin, SPOOFED);
        let expected = common.then_some("127.0.0.1");
        assert_eq!(
            seen.field("x-forwarded-for").as_deref(),
            expected,
            "{forwarded}"
        );
        let field = seen.field("forwarded").unwrap_or_default().to_lowercase();
        assert_eq!(!field.is_empty(), standard, "{forwarded}: {field}");
        if standard {
            let mut pairs: Vec<&str> = field.split(';').map(str::trim).collect();
            pairs.sort_unstable();
            let host = ["host=\"a.test:81\""];
            assert!(pairs.starts_with(&["for=127.0.0.1"]), "{field}");
            assert!(
                pairs.contains(&host[0]) && pairs.contains(&"proto=http"),
                "{field}"
            );
        }
    }
}

#[test]
fn what_only_an_origin_may_say_is_not_taken_from_clients() {
    let (origin, server) = named();
    let names = [
        "X-Accel-Redirect",
        "X-Accel-Buffering",
        "X-Accel-Limit-Rate",
        "X-Accel-Mapping",
        "X-Sendfile",
        "X-Sendfile-Type",
        "x_accel_redirect",
    ];
    let lines: String = names
        .iter()
        .map(|name| format!("{name}: /secret\r\n"))
        .collect();
    let seen = seen_with(&server, &origin, &lines);
    for name in names {
        assert_eq!(seen.field(name), None, "{name}");
    }
}

#[test]
fn each_hop_is_in_via() {
    let (origin, server) = named();
    let via = seen_with(&server, &origin, "")
        .field("via")
        .unwrap_or_default();
    assert!(via.starts_with("1.1 "), "{via:?}");
    let both = seen_with(&server, &origin, "Via: 1.0 before\r\n")
        .field("via")
        .unwrap_or_default();
    let hops: Vec<&str> = both.split([',', '|']).map(str::trim).collect();
    assert_eq!(hops, ["1.0 before", via.as_str()]);
}

#[test]
fn the_origin_is_told_when_the_request_came() {
    let (origin, server) = named();
    let start = seen_with(&server, &origin, "X-Request-Start: t=1\r\n").field("x-request-start");
    let start = start.expect("X-Request-Start");
    assert!(
        start.starts_with("t=") && start.len() > 5 && !start.contains('|'),
        "{start}"
    );
}

#[test]
fn an_expectation_is_met_by_the_proxy() {
    let (origin, server) = named();
    let mut client = server.connect();
    client.send("POST /e HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
    client.expect_status(100);
    client.send("hello").expect_status(200);
    let seen = origin.last();
    assert_eq!(
        (seen.body.as_slice(), seen.field("expect")),
        (b"hello".as_slice(), None)
    );
}

#[test]
fn statuses_of_the_origin_are_its_own() {
    let origin = Origin::start(|seen| {
        let status = format!("{} Its Reason", &seen.target[1..]);
        Script::raw(format!("{}why", head_of(&status, "", 3))).keep()
    });
    let server = behind(&origin, "");
    for status in [
        200, 201, 206, 301, 400, 401, 404, 418, 429, 500, 502, 503, 504, 599,
    ] {
        let response = server.get(&format!("/{status}"));
        assert_eq!((response.status, response.text().as_str()), (status, "why"));
    }
    assert_eq!(origin.requests().len(), 14, "none is tried again");
}

#[test]
fn routes_change_paths_and_fields() {
    let origin = Origin::start(|_| Script::raw(head_of("200 OK", "X-Power: 1\r\n", 0)).keep());
    let route = "rewrite = { strip_prefix = \"/api\", add_prefix = \"/v2\" }\n\
                 request_headers = { set = { X-Client = \"{client}\", X-Path = \"{path}\" }, remove = [\"Cookie\"] }\n\
                 response_headers = { add = { X-Added = \"yes\" }, remove = [\"X-Power\"] }";
    let server = ProxySetup::new([&origin]).route(route).serve();
    let mut client = server.connect();
    client.send("GET /api/x?q=/api HTTP/1.1\r\nHost: a\r\nCookie: a=b\r\nX-Client: me\r\n\r\n");
    let response = client.expect_status(200);
    assert_eq!(
        (response.header("x-added"), response.header("x-power")),
        (Some("yes"), None)
    );
    let seen = origin.last();
    assert_eq!(seen.target, "/v2/x?q=/api");
    assert_eq!(seen.field("x-client").as_deref(), Some("127.0.0.1"));
    assert_eq!(seen.field("cookie"), None);
    assert!(seen.field("x-path").is_some());
}

#[test]
fn what_a_route_says_of_a_stranger_reaches_the_origin() {
    let origin = Origin::named("origin");
    let route = "request_headers = { set = { X-Real-IP = \"{client}\", X-Forwarded-Proto = \"https\", \
                 X-Forwarded-For = \"192.0.2.9\", X_Key = \"ours\" }, \
                 add = { X-Forwarded-Port = \"443\", X-Tenant = \"t\" } }";
    let server = ProxySetup::new([&origin])
        .server("threads = 1\ntrusted_proxies = [\"192.0.2.1\"]")
        .route(route)
        .serve();
    let theirs = format!(
        "{SPOOFED}X_Key: theirs\r\nX-Forwarded-Port: 1\r\nX-Forwarded-Ssl: on\r\nX_Real_IP: 10.1.2.3\r\nX_Tenant: theirs\r\n\
         Connection: X-Tenant, X-Forwarded-Port\r\n"
    );
    for lines in ["", theirs.as_str()] {
        let seen = seen_with(&server, &origin, lines);
        for (name, expected) in [
            ("x-real-ip", Some("127.0.0.1")),
            ("x-forwarded-for", Some("192.0.2.9")),
            ("x-forwarded-proto", Some("https")),
            ("x-forwarded-host", Some("a.test:81")),
            ("x-forwarded-port", Some("443")),
            ("x_key", Some("ours")),
            ("x-tenant", Some("t")),
            ("x-forwarded-ssl", None),
            ("x_real_ip", None),
            ("x_tenant", None),
            ("forwarded", None),
        ] {
            assert_eq!(
                seen.field(name).as_deref(),
                expected,
                "{name} with {lines:?}"
            );
        }
    }
}

#[test]
fn what_a_route_adds_stands_behind_the_word_of_a_trusted_proxy() {
    let origin = Origin::named("origin");
    let route = "request_headers = { add = { X-Forwarded-Prefix = \"/b\" } }";
    let server = ProxySetup::new([&origin])
        .server("threads = 1\ntrusted_proxies = [\"127.0.0.1\"]")
        .route(route)
        .serve();
    let seen = seen_with(
        &server,
        &origin,
        "X-Forwarded-Prefix: /a\r\nX-Real-IP: 192.0.2.3\r\n",
    );
    assert_eq!(seen.field("x-forwarded-prefix").as_deref(), Some("/a | /b"));
    assert_eq!(seen.field("x-real-ip").as_deref(), Some("192.0.2.3"));
    let list = seen.field("x-forwarded-for");
    assert_eq!(list.as_deref(), Some("192.0.2.3, 127.0.0.1"));
}

#[test]
fn a_client_that_leaves_cuts_what_it_asked_for() {
    let origin = Origin::start(|_| {
        Script::raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            .then(Step::Flood(chunked_piece(), 1 << 30))
    });
    let server = behind(&origin, "");
    let mut client = server.connect();
    ask(&mut client, "/endless");
    assert!(client.read_some().is_some_and(|bytes| !bytes.is_empty()));
    drop(client);
    origin.wait_closed(0);
}

fn chunked_piece() -> Vec<u8> {
    let mut piece = b"1000\r\n".to_vec();
    piece.extend_from_slice(&[b'x'; 0x1000]);
    piece.extend_from_slice(b"\r\n");
    piece
}

#[test]
fn scripts_in_the_folder_of_the_files_are_run_and_never_sent() {
    let scripts = [
        "/index.php",
        "/blog/index.php",
        "/blog/index.php/extra",
        "/config.php",
        "/blog/config.php/",
        "/%63onfig.php",
        "/blog/../config.php",
        "/styles.php/page.css",
    ];
    let pages = ["/page.css", "/blog/page.css", "/notes.php.txt", "/blog/"];
    for (protocol, is_run) in [
        ("fastcgi", true),
        ("scgi", true),
        ("uwsgi", true),
        ("ajp", false),
    ] {
        let secret = "<?php $password = 'secret';";
        let site = Site::new()
            .file("www/index.php", secret)
            .file("www/config.php", secret)
            .file("www/blog/index.php", secret)
            .file("www/blog/config.php", secret)
            .file("www/blog/index.html", "page")
            .file("www/page.css", "page")
            .file("www/blog/page.css", "page")
            .file("www/styles.php/page.css", "page")
            .file("www/notes.php.txt", "page");
        // No server listens: every forwarded request is a 502.
        let lines = format!("protocol = \"{protocol}\"\nroot = \"/srv/www\"");
        let tries = "[\"{path}\", \"{path}/index.html\", \"{path}/index.php\", \"/index.php\"]";
        // No file is hidden by its name.
        let route = format!("files = {{ root = \"www\", try = {tries}, hide = [] }}");
        let nobody = ReservedPort::new();
        let server = ProxySetup::to([nobody.address()])
            .upstream(&lines)
            .route(&route)
            .serve_in(site);
        for path in scripts.into_iter().filter(|_| is_run) {
            let answer = server.get(path);
            assert_eq!(answer.status, 502, "{protocol} {path}");
            assert!(!answer.text().contains("secret"), "{protocol} {path}");
        }
        // The second time from memory.
        for path in pages.into_iter().chain(pages) {
            let answer = server.get(path);
            assert_eq!(
                (answer.status, &*answer.text()),
                (200, "page"),
                "{protocol} {path}"
            );
        }
        assert_eq!(
            server.get("/config.php").status == 200,
            !is_run,
            "{protocol}"
        );
        assert_eq!(server.get("/blog2").status == 502, is_run, "{protocol}");
    }
}
