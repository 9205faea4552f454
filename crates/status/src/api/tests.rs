//! Routes, refusals and changes, asked of a made-up server.

use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use serde_json::Value;

use super::*;
use crate::authority::AdminToken;
use crate::events::STREAMS_MAX;
use crate::fake::{FakeSource, Pieces, Via, request};
use crate::manage::BODY_BYTES;

/// One that everybody may change who gets so far.
fn admin() -> (Arc<FakeSource>, Admin) {
    admin_of(Authority::Connected)
}

fn admin_of(authority: Authority) -> (Arc<FakeSource>, Admin) {
    let source = Arc::new(FakeSource::default());
    let admin = Admin::new(Arc::clone(&source) as Arc<dyn Source>, authority);
    (source, admin)
}

/// Asks from the server's own address.
fn ask(admin: &Admin, line: &str) -> Response {
    ask_via(
        admin,
        &format!("{line} HTTP/1.1\nHost: 127.0.0.1:8090"),
        Via::Tcp,
    )
}

fn ask_via(admin: &Admin, head: &str, via: Via) -> Response {
    answer(admin, request(head, via))
}

/// Asks for a change of `upstream`'s servers.
fn ask_servers(admin: &Admin, upstream: &str, body: Pieces) -> Response {
    ask_change(admin, &format!("/upstreams/{upstream}/servers"), body)
}

/// Posts `body` to a path.
fn ask_change(admin: &Admin, path: &str, body: Pieces) -> Response {
    let line = format!("POST {path} HTTP/1.1\nHost: 127.0.0.1:8090");
    let mut request = request(&line, Via::Tcp);
    request.body = RequestBody::Incoming(Box::new(body));
    answer(admin, request)
}

fn pieces(text: &str) -> Pieces {
    Pieces {
        left: text.into(),
        size: 7,
        length: Some(text.len() as u64),
        taken: Arc::default(),
    }
}

fn answer(admin: &Admin, request: Request) -> Response {
    let reply = match admin.handle(request) {
        HandlerProgress::Ready(reply) => reply,
        HandlerProgress::Pending(mut work) => {
            let mut cx = Context::from_waker(Waker::noop());
            match work.as_mut().poll(&mut cx) {
                Poll::Ready(reply) => reply,
                Poll::Pending => panic!("the made-up server never waits"),
            }
        }
    };
    match reply.unwrap() {
        Reply::Response(response) => *response,
        other => panic!("passed on: {other:?}"),
    }
}

fn body(response: &Response) -> &str {
    let Body::Bytes(bytes) = &response.body else {
        panic!("{:?}", response.body)
    };
    std::str::from_utf8(bytes).unwrap()
}

fn field<'a>(response: &'a Response, name: &str) -> &'a str {
    std::str::from_utf8(response.fields.get(name).unwrap_or_default()).unwrap()
}

#[test]
fn each_route_answers_with_its_type() {
    let (_, admin) = admin();
    for (path, content_type, begins) in [
        ("/", "text/html; charset=utf-8", "<!doctype html>"),
        ("/?x=1", "text/html; charset=utf-8", "<!doctype html>"),
        ("/app.js", "text/javascript; charset=utf-8", "//"),
        ("/style.css", "text/css; charset=utf-8", "/*"),
        ("/icon.svg", "image/svg+xml", "<svg"),
        ("/status.json", "application/json", "{\"version\":\"0.1.0\""),
        (
            "/metrics",
            "text/plain; version=0.0.4; charset=utf-8",
            "# HELP penstock_info",
        ),
        ("/healthz", "text/plain; charset=utf-8", "ok\n"),
        ("/readyz", "text/plain; charset=utf-8", "ready\n"),
    ] {
        for method in ["GET", "HEAD"] {
            let response = ask(&admin, &format!("{method} {path}"));
            assert_eq!(response.status, Status::OK, "{method} {path}");
            assert_eq!(field(&response, "content-type"), content_type, "{path}");
            assert!(
                body(&response).starts_with(begins),
                "{path}: {}",
                body(&response)
            );
            assert_eq!(response.timing.handler.as_deref(), Some("status"), "{path}");
        }
    }
}

#[test]
fn refuses_by_host_path_method_and_origin_in_that_order() {
    let (source, admin) = admin();
    let local = "Host: localhost:8090";
    let foreign = "Host: evil.example";
    let origin = "Host: localhost:8090\nOrigin: http://evil.example";
    for (line, fields, via, status) in [
        ("GET /", local, Via::Tcp, 200),
        ("GET /", foreign, Via::Tcp, 403),
        ("GET /status.json", foreign, Via::Tcp, 403),
        ("GET /events", foreign, Via::Tcp, 403),
        ("GET /healthz", foreign, Via::Tcp, 200),
        ("HEAD /readyz", foreign, Via::Tcp, 200),
        ("GET /metrics", foreign, Via::Tcp, 200),
        ("POST /metrics", foreign, Via::Tcp, 405),
        ("GET /nothing", foreign, Via::Tcp, 403),
        ("GET /", foreign, Via::Unix, 200),
        ("GET /nothing", local, Via::Tcp, 404),
        ("GET /apps/", local, Via::Tcp, 404),
        ("POST /apps//restart", local, Via::Tcp, 404),
        ("POST /apps/a/b/restart", local, Via::Tcp, 404),
        ("POST /apps/guestbook/stop", local, Via::Tcp, 404),
        ("POST /apps/%ff/restart", local, Via::Tcp, 404),
        ("POST /upstreams//servers", local, Via::Tcp, 404),
        ("POST /upstreams/a/b/servers", local, Via::Tcp, 404),
        ("POST /upstreams/servers", local, Via::Tcp, 404),
        ("POST /upstreams/backends", local, Via::Tcp, 404),
        ("POST /upstreams/backends/servers", foreign, Via::Tcp, 403),
        ("POST /upstreams/backends/servers", origin, Via::Tcp, 403),
        ("POST /upstreams/backends/servers", origin, Via::Unix, 403),
        ("POST /cache", local, Via::Tcp, 404),
        ("POST /cache/disk1/purge", local, Via::Tcp, 404),
        ("POST /cache/purge", foreign, Via::Tcp, 403),
        ("POST /cache/purge", origin, Via::Tcp, 403),
        ("POST /cache/purge", origin, Via::Unix, 403),
        ("POST /publish/a", local, Via::Tcp, 404),
        ("POST /publish/", foreign, Via::Tcp, 403),
        ("POST /publish/", origin, Via::Tcp, 403),
        ("POST /publish", origin, Via::Unix, 403),
        ("GET /publish/", local, Via::Tcp, 405),
        ("PUT /publish", local, Via::Tcp, 405),
        ("GET /cache/purge", local, Via::Tcp, 405),
        ("PURGE /cache/purge", local, Via::Tcp, 405),
        ("GET /upstreams/backends/servers", local, Via::Tcp, 405),
        ("DELETE /upstreams/backends/servers", local, Via::Tcp, 405),
        ("POST /nothing", origin, Via::Tcp, 404),
        ("POST /", local, Via::Tcp, 405),
        ("PUT /status.json", local, Via::Tcp, 405),
        ("OPTIONS /metrics", local, Via::Tcp, 405),
        ("GET /reload", local, Via::Tcp, 405),
        ("HEAD /stop", local, Via::Tcp, 405),
        ("GET /apps/guestbook/restart", local, Via::Tcp, 405),
        ("POST /reload", origin, Via::Tcp, 403),
        ("POST /stop", origin, Via::Tcp, 403),
        ("POST /stop", origin, Via::Unix, 403),
        ("POST /apps/guestbook/restart", origin, Via::Tcp, 403),
        ("GET /status.json", origin, Via::Tcp, 200),
    ] {
        let response = ask_via(&admin, &format!("{line} HTTP/1.1\n{fields}"), via);
        assert_eq!(response.status.code(), status, "{line} {fields}");
    }
    assert!(source.asked().is_empty(), "{:?}", source.asked());
}

/// Every change that there is.
const CHANGES: [&str; 7] = [
    "/reload",
    "/stop",
    "/upgrade",
    "/logs/reopen",
    "/cache/purge",
    "/apps/guestbook/restart",
    "/upstreams/backends/servers",
];

const TOKEN: &str = "dGhpcyBpcyBub3QgYSByZWFsIHRva2VuLCBidXQgbG9uZw==";

#[test]
fn without_authority_everything_is_shown_and_nothing_is_changed() {
    let (source, admin) = admin_of(Authority::Nobody);
    for path in ["/", "/status.json", "/metrics", "/healthz", "/readyz"] {
        assert_eq!(
            ask(&admin, &format!("GET {path}")).status,
            Status::OK,
            "{path}"
        );
    }
    for path in CHANGES {
        let response = ask(&admin, &format!("POST {path}"));
        assert_eq!(response.status, Status::FORBIDDEN, "{path}");
        let said = body(&response);
        for part in [
            "unix:/run/penstock/127.0.0.1_8080.sock",
            "server.admin_token",
            "penstock reload",
        ] {
            assert!(said.contains(part), "{path}: {said}");
        }
    }
    assert!(source.asked().is_empty(), "{:?}", source.asked());
}

#[test]
fn with_a_token_only_its_bearer_changes_anything() {
    for path in CHANGES {
        let (source, admin) = admin_of(Authority::Token(AdminToken::new(TOKEN)));
        let ask = |field: &str| {
            let head = format!("POST {path} HTTP/1.1\nHost: 127.0.0.1:8090{field}");
            ask_via(&admin, &head, Via::Tcp)
        };
        for (field, status) in [("", 401), ("\nAuthorization: Bearer guess", 401)] {
            let response = ask(field);
            assert_eq!(response.status.code(), status, "{path}{field}");
            let challenge = self::field(&response, "www-authenticate");
            assert_eq!(challenge, "Bearer realm=\"penstock\"");
            assert!(body(&response).contains("server.admin_token"), "{path}");
        }
        let wrong = (0..20).map(|_| ask("\nAuthorization: Bearer guess"));
        let wrong: Vec<_> = wrong.collect();
        let last = &wrong[wrong.len() - 1];
        assert_eq!(last.status, Status::TOO_MANY_REQUESTS, "{path}");
        assert_eq!(field(last, "retry-after"), "1");
        let right = format!("\nAuthorization: Bearer {TOKEN}");
        let foreign = ask(&format!("{right}\nOrigin: http://evil.example"));
        assert_eq!(foreign.status, Status::FORBIDDEN, "{path}");
        assert!(source.asked().is_empty(), "{:?}", source.asked());
        let response = ask(&right);
        assert!(!matches!(response.status.code(), 401 | 403 | 429), "{path}");
    }
}

#[test]
fn callers_who_may_not_use_the_socket_get_nothing_but_a_reason() {
    for line in ["GET /", "GET /status.json", "POST /stop", "POST /publish/"] {
        let request = request(&format!("{line} HTTP/1.1\nHost: localhost"), Via::Unix);
        let HandlerProgress::Ready(reply) = Refusing.handle(request) else {
            panic!("it waits")
        };
        let Reply::Response(response) = reply.unwrap() else {
            panic!("no response")
        };
        assert_eq!(response.status, Status::FORBIDDEN, "{line}");
        assert!(body(&response).contains("the server's log says"), "{line}");
    }
}

#[test]
fn a_wrong_method_is_told_the_right_one() {
    let (_, admin) = admin();
    assert_eq!(field(&ask(&admin, "DELETE /"), "allow"), "GET, HEAD");
    assert_eq!(field(&ask(&admin, "GET /reload"), "allow"), "POST");
}

#[test]
fn changes_are_asked_of_the_server_and_answered_as_json() {
    for (line, is_broken, status, expected, asked) in [
        (
            "/reload",
            false,
            200,
            r#"{"ok":true,"message":"nothing changed"}"#,
            "reload",
        ),
        (
            "/reload",
            true,
            409,
            r#"{"ok":false,"error":"line 3: unknown key"}"#,
            "reload",
        ),
        (
            "/apps/guestbook/restart",
            false,
            200,
            r#"{"ok":true}"#,
            "restart guestbook",
        ),
        (
            "/apps/guestbook/restart",
            true,
            409,
            r#"{"ok":false,"error":"ImportError: \"x\""}"#,
            "restart guestbook",
        ),
        (
            "/apps/my%20app/restart",
            false,
            404,
            r#"{"ok":false,"error":"there is no application named my app"}"#,
            "restart my app",
        ),
        (
            "/upgrade",
            false,
            200,
            r#"{"ok":true,"message":"done by 12"}"#,
            "upgrade ",
        ),
        (
            "/upgrade",
            true,
            409,
            r#"{"ok":false,"error":"the new server ended"}"#,
            "upgrade ",
        ),
        (
            "/logs/reopen",
            false,
            200,
            r#"{"ok":true,"message":"opened"}"#,
            "reopen",
        ),
        ("/stop", false, 202, r#"{"ok":true}"#, "stop"),
    ] {
        let (source, admin) = admin();
        source.is_broken.store(is_broken, Ordering::Relaxed);
        let response = ask(&admin, &format!("POST {line}"));
        assert_eq!(response.status.code(), status, "{line}");
        assert_eq!(body(&response), expected, "{line}");
        assert_eq!(
            field(&response, "content-type"),
            "application/json",
            "{line}"
        );
        assert_eq!(source.asked(), [asked], "{line}");
    }
}

#[test]
fn changes_of_servers_are_asked_of_the_server_and_answered_as_json() {
    let drain = r#"{"action": "drain", "server": "127.0.0.1:3000"}"#;
    let asked = r#"backends: Drain { server: "127.0.0.1:3000" }"#;
    for (name, upstream, body_sent, is_broken, status, expected, asked) in [
        (
            "done",
            "backends",
            drain,
            false,
            200,
            r#"{"ok":true,"message":"done"}"#,
            Some(asked),
        ),
        (
            "cannot be",
            "backends",
            drain,
            true,
            409,
            r#"{"ok":false,"error":"the upstream is closed"}"#,
            Some(asked),
        ),
        (
            "unknown upstream",
            "other",
            drain,
            false,
            404,
            r#"{"ok":false,"error":"there is no upstream named other"}"#,
            Some(r#"other: Drain { server: "127.0.0.1:3000" }"#),
        ),
        (
            "unknown server",
            "backends",
            r#"{"action": "drain", "server": "a:1"}"#,
            false,
            404,
            r#"{"ok":false,"error":"upstream backends has no server a:1"}"#,
            Some(r#"backends: Drain { server: "a:1" }"#),
        ),
        (
            "no address",
            "backends",
            r#"{"action": "add", "server": ""}"#,
            false,
            400,
            r#"{"ok":false,"error":"\"\" is no server: expected an address"}"#,
            Some(
                r#"backends: Add(NewServer { server: "", weight: 1, max_active: None, backup: false })"#,
            ),
        ),
        (
            "malformed",
            "backends",
            "drain it",
            false,
            400,
            "expected an object such as",
            None,
        ),
        (
            "empty",
            "backends",
            "",
            false,
            400,
            "expected an object such as",
            None,
        ),
    ] {
        let (source, admin) = admin();
        source.is_broken.store(is_broken, Ordering::Relaxed);
        let response = ask_servers(&admin, upstream, pieces(body_sent));
        assert_eq!(response.status.code(), status, "{name}");
        let said = body(&response);
        assert!(said.contains(expected), "{name}: {said}");
        let said: Value = serde_json::from_str(said).unwrap();
        assert_eq!(said["ok"], status == 200, "{name}");
        assert_eq!(source.asked(), Vec::from_iter(asked), "{name}");
    }
}

#[test]
fn purges_are_asked_of_the_server_and_answered_as_json() {
    let news = r#"{"url": "/news"}"#;
    let asked = r#"purge PurgeRequest { what: Url("/news"), cache: None }"#;
    for (name, body_sent, is_broken, status, expected, asked) in [
        (
            "one",
            news,
            false,
            200,
            r#"{"ok":true,"objects":1}"#,
            Some(asked),
        ),
        (
            "all of one cache",
            r#"{"all": true, "cache": "disk1"}"#,
            false,
            200,
            r#"{"ok":true,"objects":20}"#,
            Some(r#"purge PurgeRequest { what: All, cache: Some("disk1") }"#),
        ),
        (
            "unknown cache",
            r#"{"tag": "a", "cache": "disk9"}"#,
            false,
            404,
            r#"{"ok":false,"error":"there is no cache named disk9"}"#,
            Some(r#"purge PurgeRequest { what: Tag("a"), cache: Some("disk9") }"#),
        ),
        (
            "not now",
            news,
            true,
            503,
            r#"{"ok":false,"error":"purges wait"}"#,
            Some(asked),
        ),
        (
            "two at once",
            r#"{"url": "/news", "all": true}"#,
            false,
            400,
            "2 of url, prefix, tag and all",
            None,
        ),
        (
            "empty",
            "",
            false,
            400,
            "expected an object with one of url",
            None,
        ),
    ] {
        let (source, admin) = admin();
        source.is_broken.store(is_broken, Ordering::Relaxed);
        let response = ask_change(&admin, "/cache/purge", pieces(body_sent));
        assert_eq!(response.status.code(), status, "{name}");
        let said = body(&response);
        assert!(said.contains(expected), "{name}: {said}");
        assert_eq!(source.asked(), Vec::from_iter(asked), "{name}");
    }
    let (source, admin) = admin();
    let long = format!("{{\"url\": \"/{}\"}}", "a".repeat(BODY_BYTES));
    let response = ask_change(&admin, "/cache/purge", pieces(&long));
    assert_eq!(response.status, Status::CONTENT_TOO_LARGE);
    assert!(source.asked().is_empty(), "{:?}", source.asked());
}

#[test]
fn messages_are_published_with_and_without_the_slash() {
    for path in ["/publish/", "/publish"] {
        let (source, admin) = admin();
        let response = ask_change(&admin, path, pieces("items"));
        assert_eq!(
            (response.status.code(), body(&response)),
            (200, "Published\n")
        );
        assert_eq!(source.asked(), ["publish items"], "{path}");
        assert_eq!(field(&ask(&admin, &format!("GET {path}")), "allow"), "POST");
    }
}

/// Posts to `/publish/` over TCP with a token; gives the answer and how many bytes were read.
fn publish_with(admin: &Admin, token: &str) -> (Response, usize) {
    let head =
        format!("POST /publish/ HTTP/1.1\nHost: 127.0.0.1:8090\nAuthorization: Bearer {token}");
    let mut request = request(&head, Via::Tcp);
    let body = pieces("items");
    let taken = Arc::clone(&body.taken);
    request.body = RequestBody::Incoming(Box::new(body));
    (answer(admin, request), taken.load(Ordering::Relaxed))
}

#[test]
fn a_publisher_is_known_before_the_body_is_read() {
    let authorities = || {
        [
            Authority::Nobody,
            Authority::Connected,
            Authority::Token(AdminToken::new(TOKEN)),
        ]
    };
    for authority in authorities() {
        let (source, admin) = admin_of(authority);
        let (response, taken) = publish_with(&admin, "a.b.c");
        assert_eq!((response.status, taken), (Status::UNAUTHORIZED, 0));
        assert_eq!(body(&response), "no such key\n");
        assert_eq!(
            field(&response, "www-authenticate"),
            "Bearer realm=\"penstock\""
        );
        assert!(source.asked().is_empty(), "{:?}", source.asked());
    }
    for authority in authorities() {
        let (source, admin) = admin_of(authority);
        let (response, _) = publish_with(&admin, "a.right.token");
        assert_eq!(response.status, Status::OK);
        assert_eq!(source.asked(), ["publish items in chat"]);
    }
}

/// Its clock, or its queue, is late: that must not keep an administrator out.
#[test]
fn an_expired_token_of_an_application_is_no_wrong_token_of_an_administrator() {
    let (source, admin) = admin_of(Authority::Token(AdminToken::new(TOKEN)));
    for _ in 0..30 {
        let (response, taken) = publish_with(&admin, "an.old.token");
        assert_eq!((response.status, taken), (Status::UNAUTHORIZED, 0));
        assert_eq!(body(&response), "the token has expired\n");
    }
    let (response, _) = publish_with(&admin, "a.wrong.guess");
    assert_eq!(response.status, Status::UNAUTHORIZED);
    assert!(source.asked().is_empty());
}

#[test]
fn an_administrator_publishes_with_a_token_that_looks_like_a_key() {
    let dotted = "an.administrator.token";
    let (source, admin) = admin_of(Authority::Token(AdminToken::new(dotted)));
    let guesses = (0..20).map(|_| publish_with(&admin, "a.wrong.guess"));
    let (last, taken) = guesses.last().unwrap();
    assert_eq!((last.status, taken), (Status::TOO_MANY_REQUESTS, 0));
    let (response, _) = publish_with(&admin, dotted);
    assert_eq!(response.status, Status::OK);
    assert_eq!(source.asked(), ["publish items"]);
}

#[test]
fn a_change_without_a_body_is_malformed() {
    let (source, admin) = admin();
    let response = ask(&admin, "POST /upstreams/backends/servers");
    assert_eq!(response.status, Status::BAD_REQUEST);
    assert!(source.asked().is_empty());
}

#[test]
fn a_body_is_bounded_whether_it_says_its_length_or_not() {
    let drain = r#"{"action": "drain", "server": "127.0.0.1:3000"}"#;
    for (name, len, says_length, status, taken_max) in [
        ("at the bound", BODY_BYTES, true, 200, BODY_BYTES),
        ("at the bound, chunked", BODY_BYTES, false, 200, BODY_BYTES),
        ("one more", BODY_BYTES + 1, true, 413, 0),
        (
            "one more, chunked",
            BODY_BYTES + 1,
            false,
            413,
            BODY_BYTES + 1,
        ),
        (
            "endless, chunked",
            64 * BODY_BYTES,
            false,
            413,
            BODY_BYTES + 1000,
        ),
    ] {
        let (source, admin) = admin();
        let taken = Arc::new(AtomicUsize::new(0));
        let body_sent = Pieces {
            left: format!("{drain}{}", " ".repeat(len - drain.len())).into(),
            size: 1000,
            length: says_length.then_some(len as u64),
            taken: Arc::clone(&taken),
        };
        let response = ask_servers(&admin, "backends", body_sent);
        assert_eq!(response.status.code(), status, "{name}");
        assert!(taken.load(Ordering::Relaxed) <= taken_max, "{name}");
        assert_eq!(source.asked().len(), usize::from(status == 200), "{name}");
    }
}

#[test]
fn is_not_ready_with_the_reason() {
    let (source, admin) = admin();
    source.is_broken.store(true, Ordering::Relaxed);
    let response = ask(&admin, "GET /readyz");
    assert_eq!(response.status, Status::SERVICE_UNAVAILABLE);
    assert_eq!(body(&response), "no application is up\n");
    assert_eq!(
        ask(&admin, "GET /healthz").status,
        Status::OK,
        "alive all the same"
    );
}

#[test]
fn no_answer_is_stored_framed_or_guessed_about() {
    let (_, admin) = admin();
    for line in [
        "GET /",
        "GET /events",
        "GET /metrics",
        "GET /nothing",
        "POST /stop",
        "PUT /",
    ] {
        let response = ask(&admin, line);
        assert_eq!(field(&response, "cache-control"), "no-store", "{line}");
        assert_eq!(field(&response, "x-frame-options"), "DENY", "{line}");
        assert_eq!(
            field(&response, "x-content-type-options"),
            "nosniff",
            "{line}"
        );
    }
    let policy = ask(&admin, "GET /");
    let policy = field(&policy, "content-security-policy");
    assert!(
        policy.starts_with("default-src 'none'; ") && !policy.contains("unsafe"),
        "{policy}"
    );
}

#[test]
fn live_streams_are_bounded_and_a_head_request_takes_no_place() {
    let (_, admin) = admin();
    let mut open: Vec<_> = (0..STREAMS_MAX)
        .map(|_| ask(&admin, "GET /events"))
        .collect();
    for response in &open {
        assert_eq!(response.status, Status::OK);
        assert_eq!(field(response, "content-type"), "text/event-stream");
    }
    let refused = ask(&admin, "GET /events");
    assert_eq!(refused.status, Status::SERVICE_UNAVAILABLE);
    assert_eq!(field(&refused, "retry-after"), "5");
    let head = ask(&admin, "HEAD /events");
    assert_eq!(head.status, Status::OK);
    assert!(matches!(head.body, Body::Omitted(None)));
    open.pop();
    assert_eq!(ask(&admin, "GET /events").status, Status::OK);
}

#[test]
fn a_stream_begins_with_the_status() {
    let (_, admin) = admin();
    let Body::Stream(mut events) = ask(&admin, "GET /events").body else {
        panic!("no stream")
    };
    let mut cx = Context::from_waker(Waker::noop());
    let first = std::pin::pin!(poll_fn(|cx| events.poll_chunk(cx))).poll(&mut cx);
    let Poll::Ready(Some(Ok(event))) = first else {
        panic!("no event at once")
    };
    assert!(event.starts_with(b"event: status\ndata: {"));
}

#[test]
fn texts_of_applications_reach_scripts_unharmed() {
    let (_, admin) = admin();
    let response = ask(&admin, "GET /status.json");
    let json: Value = serde_json::from_str(body(&response)).unwrap();
    assert_eq!(json["apps"][1]["name"], crate::fake::ODD_NAME);
    assert_eq!(json["apps"][1]["report"], "Traceback\n  </script>");
}

#[test]
fn the_page_loads_nothing_that_is_not_here() {
    for asset in &ASSETS {
        for place in [
            "https://",
            "//cdn",
            "@import",
            "innerHTML",
            "style=\"",
            "onclick",
        ] {
            assert!(!asset.text.contains(place), "{place} in {}", asset.path);
        }
        for import in asset.text.split("from \"./").skip(1) {
            let (name, _) = import.split_once('"').unwrap();
            assert!(
                ASSETS.iter().any(|a| a.path[1..] == *name),
                "{name} in {}",
                asset.path
            );
        }
    }
}
