//! Routes, refusals and changes, tested with a made-up server.

use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use serde_json::Value;

use super::*;
use crate::authorization::AdminToken;
use crate::event_stream::MAX_EVENT_STREAMS;
use crate::fake::{FakeServer, PiecewiseBody, TestTransport, request};

/// An API without authorization.
fn admin_without_authorization() -> (Arc<FakeServer>, AdminHandler) {
    admin_with(ChangeAuthorization::AnyConnected)
}

fn admin_with(authorization: ChangeAuthorization) -> (Arc<FakeServer>, AdminHandler) {
    let source = Arc::new(FakeServer::default());
    let admin = AdminHandler::new(
        Arc::clone(&source) as Arc<dyn AdminOperations>,
        authorization,
    );
    (source, admin)
}

/// Sends a request with the server's own address.
fn send_get(admin: &AdminHandler, line: &str) -> Response {
    send_via(
        admin,
        &format!("{line} HTTP/1.1\nHost: 127.0.0.1:8090"),
        TestTransport::Tcp,
    )
}

fn send_via(admin: &AdminHandler, head: &str, via: TestTransport) -> Response {
    handle(admin, request(head, via))
}

/// Requests a change of the servers of `upstream`.
fn post_server_change(admin: &AdminHandler, upstream: &str, body: PiecewiseBody) -> Response {
    post_change(admin, &format!("/upstreams/{upstream}/servers"), body)
}

/// Posts `body` to a path.
fn post_change(admin: &AdminHandler, path: &str, body: PiecewiseBody) -> Response {
    let line = format!("POST {path} HTTP/1.1\nHost: 127.0.0.1:8090");
    let mut request = request(&line, TestTransport::Tcp);
    request.body = RequestBody::Incoming(Box::new(body));
    handle(admin, request)
}

fn whole_piece(text: &str) -> PiecewiseBody {
    PiecewiseBody {
        remaining: text.into(),
        piece_size: 7,
        length: Some(text.len() as u64),
        bytes_taken: Arc::default(),
    }
}

fn handle(admin: &AdminHandler, request: Request) -> Response {
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

fn body_text(response: &Response) -> &str {
    let Body::Bytes(bytes) = &response.body else {
        panic!("{:?}", response.body)
    };
    std::str::from_utf8(bytes).unwrap()
}

fn field_text<'a>(response: &'a Response, name: &str) -> &'a str {
    std::str::from_utf8(response.fields.get(name).unwrap_or_default()).unwrap()
}

#[test]
fn each_route_answers_with_its_type() {
    let (_, admin) = admin_without_authorization();
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
            "# HELP penstock_build_info",
        ),
        ("/healthz", "text/plain; charset=utf-8", "ok\n"),
        ("/readyz", "text/plain; charset=utf-8", "ready\n"),
    ] {
        for method in ["GET", "HEAD"] {
            let response = send_get(&admin, &format!("{method} {path}"));
            assert_eq!(response.status, Status::OK, "{method} {path}");
            assert_eq!(
                field_text(&response, "content-type"),
                content_type,
                "{path}"
            );
            assert!(
                body_text(&response).starts_with(begins),
                "{path}: {}",
                body_text(&response)
            );
            assert_eq!(response.timing.handler.as_deref(), Some("status"), "{path}");
        }
    }
}

#[test]
fn refuses_by_host_path_method_and_origin_in_that_order() {
    let (source, admin) = admin_without_authorization();
    let local = "Host: localhost:8090";
    let foreign = "Host: evil.example";
    let origin = "Host: localhost:8090\nOrigin: http://evil.example";
    for (line, fields, via, status) in [
        ("GET /", local, TestTransport::Tcp, 200),
        ("GET /", foreign, TestTransport::Tcp, 403),
        ("GET /status.json", foreign, TestTransport::Tcp, 403),
        ("GET /events", foreign, TestTransport::Tcp, 403),
        ("GET /healthz", foreign, TestTransport::Tcp, 200),
        ("HEAD /readyz", foreign, TestTransport::Tcp, 200),
        ("GET /metrics", foreign, TestTransport::Tcp, 200),
        ("POST /metrics", foreign, TestTransport::Tcp, 405),
        ("GET /nothing", foreign, TestTransport::Tcp, 403),
        ("GET /", foreign, TestTransport::Unix, 200),
        ("GET /nothing", local, TestTransport::Tcp, 404),
        ("GET /apps/", local, TestTransport::Tcp, 404),
        ("POST /apps//restart", local, TestTransport::Tcp, 404),
        ("POST /apps/a/b/restart", local, TestTransport::Tcp, 404),
        ("POST /apps/guestbook/stop", local, TestTransport::Tcp, 404),
        ("POST /apps/%ff/restart", local, TestTransport::Tcp, 404),
        ("POST /upstreams//servers", local, TestTransport::Tcp, 404),
        (
            "POST /upstreams/a/b/servers",
            local,
            TestTransport::Tcp,
            404,
        ),
        ("POST /upstreams/servers", local, TestTransport::Tcp, 404),
        ("POST /upstreams/backends", local, TestTransport::Tcp, 404),
        (
            "POST /upstreams/backends/servers",
            foreign,
            TestTransport::Tcp,
            403,
        ),
        (
            "POST /upstreams/backends/servers",
            origin,
            TestTransport::Tcp,
            403,
        ),
        (
            "POST /upstreams/backends/servers",
            origin,
            TestTransport::Unix,
            403,
        ),
        ("POST /cache", local, TestTransport::Tcp, 404),
        ("POST /cache/disk1/purge", local, TestTransport::Tcp, 404),
        ("POST /cache/purge", foreign, TestTransport::Tcp, 403),
        ("POST /cache/purge", origin, TestTransport::Tcp, 403),
        ("POST /cache/purge", origin, TestTransport::Unix, 403),
        ("POST /publish/a", local, TestTransport::Tcp, 404),
        ("POST /publish/", foreign, TestTransport::Tcp, 403),
        ("POST /publish/", origin, TestTransport::Tcp, 403),
        ("POST /publish", origin, TestTransport::Unix, 403),
        ("GET /publish/", local, TestTransport::Tcp, 405),
        ("PUT /publish", local, TestTransport::Tcp, 405),
        ("GET /cache/purge", local, TestTransport::Tcp, 405),
        ("PURGE /cache/purge", local, TestTransport::Tcp, 405),
        (
            "GET /upstreams/backends/servers",
            local,
            TestTransport::Tcp,
            405,
        ),
        (
            "DELETE /upstreams/backends/servers",
            local,
            TestTransport::Tcp,
            405,
        ),
        ("POST /nothing", origin, TestTransport::Tcp, 404),
        ("POST /", local, TestTransport::Tcp, 405),
        ("PUT /status.json", local, TestTransport::Tcp, 405),
        ("OPTIONS /metrics", local, TestTransport::Tcp, 405),
        ("GET /reload", local, TestTransport::Tcp, 405),
        ("HEAD /stop", local, TestTransport::Tcp, 405),
        (
            "GET /apps/guestbook/restart",
            local,
            TestTransport::Tcp,
            405,
        ),
        ("POST /reload", origin, TestTransport::Tcp, 403),
        ("POST /stop", origin, TestTransport::Tcp, 403),
        ("POST /stop", origin, TestTransport::Unix, 403),
        (
            "POST /apps/guestbook/restart",
            origin,
            TestTransport::Tcp,
            403,
        ),
        ("GET /status.json", origin, TestTransport::Tcp, 200),
    ] {
        let response = send_via(&admin, &format!("{line} HTTP/1.1\n{fields}"), via);
        assert_eq!(response.status.code(), status, "{line} {fields}");
    }
    assert!(
        source.recorded_calls().is_empty(),
        "{:?}",
        source.recorded_calls()
    );
}

/// All changes.
const CHANGES: [&str; 12] = [
    "/apps/guestbook/pause",
    "/apps/guestbook/resume",
    "/upstreams/backends/pause",
    "/upstreams/backends/resume",
    "/maintenance",
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
    let (source, admin) = admin_with(ChangeAuthorization::ReadOnly);
    for path in ["/", "/status.json", "/metrics", "/healthz", "/readyz"] {
        assert_eq!(
            send_get(&admin, &format!("GET {path}")).status,
            Status::OK,
            "{path}"
        );
    }
    for path in CHANGES {
        let response = send_get(&admin, &format!("POST {path}"));
        assert_eq!(response.status, Status::FORBIDDEN, "{path}");
        let said = body_text(&response);
        for part in [
            "unix:/run/penstock/127.0.0.1_8080.sock",
            "server.admin_token",
            "penstock reload",
        ] {
            assert!(said.contains(part), "{path}: {said}");
        }
    }
    assert!(
        source.recorded_calls().is_empty(),
        "{:?}",
        source.recorded_calls()
    );
}

#[test]
fn with_a_token_only_its_bearer_changes_anything() {
    for path in CHANGES {
        let (source, admin) = admin_with(ChangeAuthorization::Token(AdminToken::new(TOKEN)));
        let ask = |field: &str| {
            let head = format!("POST {path} HTTP/1.1\nHost: 127.0.0.1:8090{field}");
            send_via(&admin, &head, TestTransport::Tcp)
        };
        for (field, status) in [("", 401), ("\nAuthorization: Bearer guess", 401)] {
            let response = ask(field);
            assert_eq!(response.status.code(), status, "{path}{field}");
            let challenge = field_text(&response, "www-authenticate");
            assert_eq!(challenge, "Bearer realm=\"penstock\"");
            assert!(
                body_text(&response).contains("server.admin_token"),
                "{path}"
            );
        }
        let wrong = (0..20).map(|_| ask("\nAuthorization: Bearer guess"));
        let wrong: Vec<_> = wrong.collect();
        let last = &wrong[wrong.len() - 1];
        assert_eq!(last.status, Status::TOO_MANY_REQUESTS, "{path}");
        assert_eq!(field_text(last, "retry-after"), "1");
        let right = format!("\nAuthorization: Bearer {TOKEN}");
        let foreign = ask(&format!("{right}\nOrigin: http://evil.example"));
        assert_eq!(foreign.status, Status::FORBIDDEN, "{path}");
        assert!(
            source.recorded_calls().is_empty(),
            "{:?}",
            source.recorded_calls()
        );
        let response = ask(&right);
        assert!(!matches!(response.status.code(), 401 | 403 | 429), "{path}");
    }
}

#[test]
fn callers_who_may_not_use_the_socket_get_nothing_but_a_reason() {
    for line in ["GET /", "GET /status.json", "POST /stop", "POST /publish/"] {
        let request = request(
            &format!("{line} HTTP/1.1\nHost: localhost"),
            TestTransport::Unix,
        );
        let HandlerProgress::Ready(reply) = ForbiddenHandler.handle(request) else {
            panic!("it waits")
        };
        let Reply::Response(response) = reply.unwrap() else {
            panic!("no response")
        };
        assert_eq!(response.status, Status::FORBIDDEN, "{line}");
        assert!(
            body_text(&response).contains("the server's log says"),
            "{line}"
        );
    }
}

#[test]
fn a_wrong_method_is_told_the_right_one() {
    let (_, admin) = admin_without_authorization();
    assert_eq!(
        field_text(&send_get(&admin, "DELETE /"), "allow"),
        "GET, HEAD"
    );
    assert_eq!(
        field_text(&send_get(&admin, "GET /reload"), "allow"),
        "POST"
    );
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
        let (source, admin) = admin_without_authorization();
        source.is_broken.store(is_broken, Ordering::Relaxed);
        let response = send_get(&admin, &format!("POST {line}"));
        assert_eq!(response.status.code(), status, "{line}");
        assert_eq!(body_text(&response), expected, "{line}");
        assert_eq!(
            field_text(&response, "content-type"),
            "application/json",
            "{line}"
        );
        assert_eq!(source.recorded_calls(), [asked], "{line}");
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
        let (source, admin) = admin_without_authorization();
        source.is_broken.store(is_broken, Ordering::Relaxed);
        let response = post_server_change(&admin, upstream, whole_piece(body_sent));
        assert_eq!(response.status.code(), status, "{name}");
        let said = body_text(&response);
        assert!(said.contains(expected), "{name}: {said}");
        let said: Value = serde_json::from_str(said).unwrap();
        assert_eq!(said["ok"], status == 200, "{name}");
        assert_eq!(source.recorded_calls(), Vec::from_iter(asked), "{name}");
    }
}

#[test]
fn purges_are_asked_of_the_server_and_answered_as_json() {
    let news = r#"{"url": "/news"}"#;
    let asked = r#"purge PurgeRequest { target: Url("/news"), cache: None }"#;
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
            Some(r#"purge PurgeRequest { target: All, cache: Some("disk1") }"#),
        ),
        (
            "unknown cache",
            r#"{"tag": "a", "cache": "disk9"}"#,
            false,
            404,
            r#"{"ok":false,"error":"there is no cache named disk9"}"#,
            Some(r#"purge PurgeRequest { target: Tag("a"), cache: Some("disk9") }"#),
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
        let (source, admin) = admin_without_authorization();
        source.is_broken.store(is_broken, Ordering::Relaxed);
        let response = post_change(&admin, "/cache/purge", whole_piece(body_sent));
        assert_eq!(response.status.code(), status, "{name}");
        let said = body_text(&response);
        assert!(said.contains(expected), "{name}: {said}");
        assert_eq!(source.recorded_calls(), Vec::from_iter(asked), "{name}");
    }
    let (source, admin) = admin_without_authorization();
    let long = format!("{{\"url\": \"/{}\"}}", "a".repeat(MAX_BODY_BYTES));
    let response = post_change(&admin, "/cache/purge", whole_piece(&long));
    assert_eq!(response.status, Status::CONTENT_TOO_LARGE);
    assert!(
        source.recorded_calls().is_empty(),
        "{:?}",
        source.recorded_calls()
    );
}

#[test]
fn messages_are_published_with_and_without_the_slash() {
    for path in ["/publish/", "/publish"] {
        let (source, admin) = admin_without_authorization();
        let response = post_change(&admin, path, whole_piece("items"));
        assert_eq!(
            (response.status.code(), body_text(&response)),
            (200, "Published\n")
        );
        assert_eq!(source.recorded_calls(), ["publish items"], "{path}");
        assert_eq!(
            field_text(&send_get(&admin, &format!("GET {path}")), "allow"),
            "POST"
        );
    }
}

/// Posts to `/publish/` over TCP with a token; returns the response and the number of bytes read.
fn publish_with(admin: &AdminHandler, token: &str) -> (Response, usize) {
    let head =
        format!("POST /publish/ HTTP/1.1\nHost: 127.0.0.1:8090\nAuthorization: Bearer {token}");
    let mut request = request(&head, TestTransport::Tcp);
    let body = whole_piece("items");
    let taken = Arc::clone(&body.bytes_taken);
    request.body = RequestBody::Incoming(Box::new(body));
    (handle(admin, request), taken.load(Ordering::Relaxed))
}

#[test]
fn a_publisher_is_known_before_the_body_is_read() {
    let authorities = || {
        [
            ChangeAuthorization::ReadOnly,
            ChangeAuthorization::AnyConnected,
            ChangeAuthorization::Token(AdminToken::new(TOKEN)),
        ]
    };
    for authorization in authorities() {
        let (source, admin) = admin_with(authorization);
        let (response, taken) = publish_with(&admin, "a.b.c");
        assert_eq!((response.status, taken), (Status::UNAUTHORIZED, 0));
        assert_eq!(body_text(&response), "no such key\n");
        assert_eq!(
            field_text(&response, "www-authenticate"),
            "Bearer realm=\"penstock\""
        );
        assert!(
            source.recorded_calls().is_empty(),
            "{:?}",
            source.recorded_calls()
        );
    }
    for authorization in authorities() {
        let (source, admin) = admin_with(authorization);
        let (response, _) = publish_with(&admin, "a.right.token");
        assert_eq!(response.status, Status::OK);
        assert_eq!(source.recorded_calls(), ["publish items in chat"]);
    }
}

#[test]
fn a_publisher_with_a_token_may_use_any_name_of_the_server() {
    let (source, admin) = admin_with(ChangeAuthorization::ReadOnly);
    let publish = |fields: &str| {
        let head = format!("POST /publish/ HTTP/1.1\nHost: penstock:8090{fields}");
        let mut request = request(&head, TestTransport::Tcp);
        request.body = RequestBody::Incoming(Box::new(whole_piece("items")));
        handle(&admin, request).status
    };
    assert_eq!(publish(""), Status::FORBIDDEN);
    assert_eq!(
        publish("\nAuthorization: Bearer a.b.c"),
        Status::UNAUTHORIZED
    );
    let valid = "\nAuthorization: Bearer a.right.token";
    assert_eq!(
        publish(&format!("{valid}\nOrigin: http://evil.example")),
        Status::FORBIDDEN
    );
    assert!(source.recorded_calls().is_empty());
    assert_eq!(publish(valid), Status::OK);
    assert_eq!(source.recorded_calls(), ["publish items in chat"]);
}

#[test]
fn a_publisher_may_have_its_token_in_the_address() {
    for (query, expected) in [
        ("?token=a.right.token", 200),
        ("?x=1&token=a.right.token", 200),
        ("?token=a.b.c", 401),
        ("?token=", 401),
        ("?Token=a.right.token", 401),
    ] {
        let (source, admin) = admin_with(ChangeAuthorization::ReadOnly);
        let head = format!("POST /publish/{query} HTTP/1.1\nHost: 127.0.0.1:8090");
        let mut request = request(&head, TestTransport::Tcp);
        request.body = RequestBody::Incoming(Box::new(whole_piece("items")));
        let response = handle(&admin, request);
        assert_eq!(response.status.code(), expected, "{query}");
        let calls = source.recorded_calls();
        assert_eq!(calls.len(), usize::from(expected == 200), "{calls:?}");
    }
}

#[test]
fn channels_are_listed_for_operators_and_for_publishers_in_their_namespace() {
    let ask = |authorization: ChangeAuthorization, query: &str| {
        let (source, admin) = admin_with(authorization);
        let head = format!("GET /channels{query} HTTP/1.1\nHost: 127.0.0.1:8090");
        let response = handle(&admin, request(&head, TestTransport::Tcp));
        let text = body_text(&response).to_owned();
        (response.status.code(), text, source.recorded_calls())
    };
    let (status, text, calls) = ask(ChangeAuthorization::AnyConnected, "");
    let row =
        r#"{"channels":[{"namespace":"hub","channel":"news","subscribers":3}],"complete":true}"#;
    assert_eq!((status, text.as_str()), (200, row));
    let all = "channels ChannelFilter { namespace: None, channel: None } 1000";
    assert_eq!(calls, [all]);
    for (query, expected) in [
        ("", 401),
        ("?token=a.b.c", 401),
        ("?token=a.right.token&namespace=other", 403),
    ] {
        let (status, _, calls) = ask(ChangeAuthorization::ReadOnly, query);
        assert_eq!((status, calls.len()), (expected, 0), "{query}");
    }
    let query = "?token=a.right.token&channel=room-%2a";
    let (status, _, calls) = ask(ChangeAuthorization::ReadOnly, query);
    let own = r#"channels ChannelFilter { namespace: Some("chat"), channel: Some("room-*") } 1000"#;
    assert_eq!((status, calls), (200, vec![own.to_owned()]));
}

/// An application with a late clock or queue must not lock out an administrator.
#[test]
fn an_expired_token_of_an_application_is_no_wrong_token_of_an_administrator() {
    let (source, admin) = admin_with(ChangeAuthorization::Token(AdminToken::new(TOKEN)));
    for _ in 0..30 {
        let (response, taken) = publish_with(&admin, "an.old.token");
        assert_eq!((response.status, taken), (Status::UNAUTHORIZED, 0));
        assert_eq!(body_text(&response), "the token has expired\n");
    }
    let (response, _) = publish_with(&admin, "a.wrong.guess");
    assert_eq!(response.status, Status::UNAUTHORIZED);
    assert!(source.recorded_calls().is_empty());
}

#[test]
fn an_administrator_publishes_with_a_token_that_looks_like_a_key() {
    let dotted = "an.administrator.token";
    let (source, admin) = admin_with(ChangeAuthorization::Token(AdminToken::new(dotted)));
    let guesses = (0..20).map(|_| publish_with(&admin, "a.wrong.guess"));
    let (last, taken) = guesses.last().unwrap();
    assert_eq!((last.status, taken), (Status::TOO_MANY_REQUESTS, 0));
    let (response, _) = publish_with(&admin, dotted);
    assert_eq!(response.status, Status::OK);
    assert_eq!(source.recorded_calls(), ["publish items"]);
}

#[test]
fn a_change_without_a_body_is_malformed() {
    let (source, admin) = admin_without_authorization();
    let response = send_get(&admin, "POST /upstreams/backends/servers");
    assert_eq!(response.status, Status::BAD_REQUEST);
    assert!(source.recorded_calls().is_empty());
}

#[test]
fn a_body_is_bounded_whether_it_says_its_length_or_not() {
    let drain = r#"{"action": "drain", "server": "127.0.0.1:3000"}"#;
    for (name, len, says_length, status, taken_max) in [
        ("at the bound", MAX_BODY_BYTES, true, 200, MAX_BODY_BYTES),
        (
            "at the bound, chunked",
            MAX_BODY_BYTES,
            false,
            200,
            MAX_BODY_BYTES,
        ),
        ("one more", MAX_BODY_BYTES + 1, true, 413, 0),
        (
            "one more, chunked",
            MAX_BODY_BYTES + 1,
            false,
            413,
            MAX_BODY_BYTES + 1,
        ),
        (
            "endless, chunked",
            64 * MAX_BODY_BYTES,
            false,
            413,
            MAX_BODY_BYTES + 1000,
        ),
    ] {
        let (source, admin) = admin_without_authorization();
        let taken = Arc::new(AtomicUsize::new(0));
        let body_sent = PiecewiseBody {
            remaining: format!("{drain}{}", " ".repeat(len - drain.len())).into(),
            piece_size: 1000,
            length: says_length.then_some(len as u64),
            bytes_taken: Arc::clone(&taken),
        };
        let response = post_server_change(&admin, "backends", body_sent);
        assert_eq!(response.status.code(), status, "{name}");
        assert!(taken.load(Ordering::Relaxed) <= taken_max, "{name}");
        assert_eq!(
            source.recorded_calls().len(),
            usize::from(status == 200),
            "{name}"
        );
    }
}

#[test]
fn is_not_ready_with_the_reason() {
    let (source, admin) = admin_without_authorization();
    source.is_broken.store(true, Ordering::Relaxed);
    let response = send_get(&admin, "GET /readyz");
    assert_eq!(response.status, Status::SERVICE_UNAVAILABLE);
    assert_eq!(body_text(&response), "no application is up\n");
    assert_eq!(
        send_get(&admin, "GET /healthz").status,
        Status::OK,
        "alive all the same"
    );
}

#[test]
fn no_answer_is_stored_framed_or_guessed_about() {
    let (_, admin) = admin_without_authorization();
    for line in [
        "GET /",
        "GET /events",
        "GET /metrics",
        "GET /nothing",
        "POST /stop",
        "PUT /",
    ] {
        let response = send_get(&admin, line);
        assert_eq!(field_text(&response, "cache-control"), "no-store", "{line}");
        assert_eq!(field_text(&response, "x-frame-options"), "DENY", "{line}");
        assert_eq!(
            field_text(&response, "x-content-type-options"),
            "nosniff",
            "{line}"
        );
    }
    let policy = send_get(&admin, "GET /");
    let policy = field_text(&policy, "content-security-policy");
    assert!(
        policy.starts_with("default-src 'none'; ") && !policy.contains("unsafe"),
        "{policy}"
    );
}

#[test]
fn live_streams_are_bounded_and_a_head_request_counts_as_none() {
    let (_, admin) = admin_without_authorization();
    let mut open: Vec<_> = (0..MAX_EVENT_STREAMS)
        .map(|_| send_get(&admin, "GET /events"))
        .collect();
    for response in &open {
        assert_eq!(response.status, Status::OK);
        assert_eq!(field_text(response, "content-type"), "text/event-stream");
    }
    let refused = send_get(&admin, "GET /events");
    assert_eq!(refused.status, Status::SERVICE_UNAVAILABLE);
    assert_eq!(field_text(&refused, "retry-after"), "5");
    let head = send_get(&admin, "HEAD /events");
    assert_eq!(head.status, Status::OK);
    assert!(matches!(head.body, Body::Omitted(None)));
    open.pop();
    assert_eq!(send_get(&admin, "GET /events").status, Status::OK);
}

#[test]
fn a_stream_begins_with_the_status() {
    let (_, admin) = admin_without_authorization();
    let Body::Stream(mut events) = send_get(&admin, "GET /events").body else {
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
    let (_, admin) = admin_without_authorization();
    let response = send_get(&admin, "GET /status.json");
    let json: Value = serde_json::from_str(body_text(&response)).unwrap();
    assert_eq!(json["apps"][1]["name"], crate::fake::NAME_TO_ESCAPE);
    assert_eq!(json["apps"][1]["boot_report"], "Traceback\n  </script>");
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

#[test]
fn pauses_and_maintenance_are_changes() {
    let (source, admin) = admin_without_authorization();
    for (path, body, status) in [
        ("/apps/guestbook/pause", "{\"for_seconds\": 2}", Status::OK),
        ("/apps/guestbook/pause", "{\"for\": 2}", Status::BAD_REQUEST),
        ("/upstreams/backends/pause", "", Status::NOT_FOUND),
        ("/upstreams/backends/resume", "", Status::CONFLICT),
        (
            "/maintenance",
            "{\"on\": true, \"site\": \"a\"}",
            Status::OK,
        ),
        ("/maintenance", "{\"on\": false}", Status::OK),
        ("/maintenance", "", Status::BAD_REQUEST),
    ] {
        let response = post_change(&admin, path, whole_piece(body));
        assert_eq!(response.status, status, "{path} {body}");
    }
    let calls = source.recorded_calls().join("\n");
    for expected in [
        "pause App(\"guestbook\") 2s",
        "pause Upstream(\"backends\") 30s",
        "resume Upstream(\"backends\")",
        "On(MaintenanceRule { site: Some(\"a\"), allow: [], retry_after_seconds: 600 })",
        "Off(None)",
    ] {
        assert!(calls.contains(expected), "{expected}: {calls}");
    }
}

#[test]
fn a_stop_that_is_waited_for_answers_with_what_was_killed() {
    for (body, status, expected) in [
        (
            r#"{"wait": true}"#,
            200,
            r#"{"ok":true,"message":"mail: 1 process was killed"}"#,
        ),
        (r#"{"wait": false}"#, 202, r#"{"ok":true}"#),
        // No body is a reason not to stop.
        ("now", 202, r#"{"ok":true}"#),
    ] {
        let (source, admin) = admin_without_authorization();
        let response = post_change(&admin, "/stop", whole_piece(body));
        assert_eq!(response.status.code(), status, "{body}");
        assert_eq!(body_text(&response), expected, "{body}");
        assert_eq!(source.recorded_calls(), ["stop"], "{body}");
    }
}
