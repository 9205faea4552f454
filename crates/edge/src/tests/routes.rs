//! What routes do to requests and responses: filters and internal redirects.

use penstock_config::{HeaderRules, PathPattern, Rewrite};
use penstock_exchange::{
    Body, Fault, FaultKind, InlineBody, InlineResponse, InternalRedirect, RequestTiming,
    RequestView,
};
use penstock_rules::ConditionSet;

use super::*;
use crate::Filters;

fn set(name: &str, value: &str) -> HeaderRules {
    HeaderRules {
        set: [(name.to_owned(), value.parse().unwrap())].into(),
        ..HeaderRules::default()
    }
}

fn strip(prefix: &str) -> Rewrite {
    Rewrite {
        strip_prefix: Some(prefix.to_owned()),
        add_prefix: None,
        ..Rewrite::default()
    }
}

fn filtered(
    mut route: Route,
    rewrite: Rewrite,
    request: &HeaderRules,
    response: &HeaderRules,
) -> Route {
    let rules = penstock_config::Route {
        rewrite,
        request_headers: vec![request.clone()],
        response_headers: vec![response.clone()],
        ..penstock_config::Route::new(PathPattern::any())
    };
    route.filters = Filters::compile(&rules, None, &ConditionSet::default()).unwrap();
    route
}

fn redirect(target: &str, lines: &[(&str, &str)]) -> HandlerProgress {
    HandlerProgress::Ready(Ok(Reply::Redirect(Box::new(InternalRedirect {
        target: target.to_owned(),
        handler: None,
        fields: fields(lines),
        max_rate: None,
        timing: RequestTiming::default(),
    }))))
}

/// Has its response in memory, and gives the same by `handle`.
#[derive(Debug)]
struct InlineHandler;

impl Handler for InlineHandler {
    fn handle(&self, request: Request) -> HandlerProgress {
        let path = String::from_utf8_lossy(request.path()).into_owned();
        ready(Response::with_text(Status::OK, "text/plain", path))
    }

    fn try_inline(&self, asked: &RequestView<'_>, take: &mut dyn FnMut(InlineResponse<'_>)) {
        take(InlineResponse {
            status: Status::OK,
            fields: &fields(&[("Content-Type", "text/plain"), ("X-At-Hand", "1")]),
            body: InlineBody::Bytes(asked.path),
            handler: "ready",
        });
    }
}

#[test]
fn filters_apply_to_inline_responses() {
    let plain = route("/plain/", Arc::new(InlineHandler));
    let changed = filtered(
        route("/", Arc::new(InlineHandler)),
        strip("/a"),
        &HeaderRules::default(),
        &set("X-Client", "{client} {scheme} {host} {path}"),
    );
    let house = TestEdge::new(vec![plain, changed]);
    let mut client = house.connect();
    let (head, body) = client.get("/plain/x").response();
    assert!(head.contains("X-At-Hand: 1\r\n"), "{head}");
    assert_eq!(body, "/plain/x");
    let (head, body) = client.get("/a/b?c").response();
    assert!(
        head.contains("X-Client: 127.0.0.1 http h /a/b\r\n"),
        "{head}"
    );
    assert_eq!(body, "/b");
}

#[test]
fn handlers_see_the_changed_request_and_errors_get_the_changed_response() {
    let fails = handler_fn(|_| HandlerProgress::Ready(Err(Fault::new(FaultKind::Forbidden, "no"))));
    let (none, x_set) = (HeaderRules::default(), set("X-Set", "1"));
    let house = TestEdge::new(vec![
        filtered(route("/fails", fails), Rewrite::default(), &none, &x_set),
        filtered(
            route("/", echo_handler()),
            strip("/a"),
            &set("X-Real-IP", "{client}"),
            &none,
        ),
    ]);
    let mut client = house.connect();
    let (head, _) = client.get("/fails").response();
    assert!(
        head.starts_with("HTTP/1.1 403 ") && head.contains("X-Set: 1\r\n"),
        "{head}"
    );
    client.send(
        "POST /a/b?c HTTP/1.1\r\nHost: h\r\nX-Real-IP: forged\r\nContent-Length: 2\r\n\r\nab",
    );
    let (_, body) = client.response();
    let peer = client.0.local_addr().unwrap();
    assert_eq!(
        body,
        format!("POST /b?c\nHost: h\nContent-Length: 2\nX-Real-IP: 127.0.0.1\npeer Tcp({peer})\n")
    );
}

#[test]
fn a_redirect_reaches_an_internal_route_and_a_client_does_not() {
    let mut kept = filtered(
        route("/kept/", echo_handler()),
        strip("/kept"),
        &HeaderRules::default(),
        &set("X-Kept", "1"),
    );
    kept.is_internal = true;
    let app = handler_fn(|request| match request.path() {
        b"/file" => redirect("/kept/a?b", &[("Content-Type", "application/pdf")]),
        b"/nowhere" => redirect("/../x", &[]),
        b"/loop" => redirect("/loop", &[]),
        _ => HandlerProgress::Ready(Err(Fault::new(FaultKind::NotFound, "no"))),
    });
    let app = filtered(
        route("/", app),
        Rewrite::default(),
        &HeaderRules::default(),
        &set("X-App", "1"),
    );
    let house = TestEdge::new(vec![kept, app]);
    let mut client = house.connect();
    client.send("POST /file HTTP/1.1\r\nHost: h\r\nA: b\r\nContent-Length: 2\r\n\r\nab");
    let (head, body) = client.response();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    for field in ["Content-Type: application/pdf", "X-Kept: 1", "X-App: 1"] {
        assert!(head.contains(&format!("{field}\r\n")), "{head}");
    }
    assert!(body.starts_with("GET /a?b\nHost: h\nA: b\npeer "), "{body}");
    for (target, status) in [("/kept/a", 404), ("/nowhere", 502), ("/loop", 500)] {
        let (head, _) = client.get(target).response();
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status} ")),
            "{target}: {head}"
        );
    }
}

#[test]
fn a_redirect_of_a_pending_handler_is_followed() {
    let slow = handler_fn(|_| {
        pending(async {
            penstock_runtime::loops::yield_now().await;
            Ok(Reply::Redirect(Box::new(InternalRedirect {
                target: "/b".to_owned(),
                handler: Some(echo_handler()),
                fields: FieldBlock::new(),
                max_rate: None,
                timing: RequestTiming::default(),
            })))
        })
    });
    let house = TestEdge::new(vec![route("/", slow)]);
    let mut client = house.connect();
    assert!(client.get("/a").response().1.starts_with("GET /b\n"));
    client.send("HEAD /a HTTP/1.1\r\nHost: h\r\n\r\n");
    assert!(client.head().starts_with("HTTP/1.1 200 "));
    let empty = handler_fn(|_| ready(Response::new(Status::NO_CONTENT, Body::Empty)));
    let house = TestEdge::new(vec![route("/", empty)]);
    assert!(house.connect().get("/").head().starts_with("HTTP/1.1 204 "));
}
