//! Redirects one after the other, and what of their answers reaches the client.

use std::time::Duration;

use penstock_exchange::{Body, BodyRate, HandlerName, Response};
use penstock_http::{HeadLimits, ParseProgress, Status, parse_head};

use super::*;

fn head(text: &str) -> RequestHead {
    match parse_head(text.as_bytes(), &HeadLimits::default()).unwrap() {
        ParseProgress::Complete((head, _)) => head,
        ParseProgress::Partial => panic!("the head is whole: {text:?}"),
    }
}

fn fields(lines: &[(&str, &str)]) -> FieldBlock {
    let mut block = FieldBlock::new();
    for (name, value) in lines {
        block.push(name, value.as_bytes()).unwrap();
    }
    block
}

fn redirect(lines: &[(&str, &str)]) -> InternalRedirect {
    InternalRedirect {
        target: "/next".into(),
        handler: None,
        fields: fields(lines),
        max_rate: None,
        timing: RequestTiming::default(),
    }
}

#[test]
fn a_loop_of_redirects_ends() {
    let mut redirected = RedirectChain::default();
    for _ in 0..10 {
        assert_eq!(redirected.push_redirect(redirect(&[])).unwrap().0, "/next");
    }
    let fault = redirected.push_redirect(redirect(&[])).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Internal);
    assert!(fault.cause.contains("/next"), "{}", fault.cause);
}

#[test]
fn the_first_response_overrides_later_fields() {
    let mut redirected = RedirectChain::default();
    let first = [("Content-Type", "a/a"), ("Set-Cookie", "a=1")];
    let second = [
        ("content-type", "b/b"),
        ("Expires", "0"),
        ("Set-Cookie", "b=1"),
    ];
    drop(redirected.push_redirect(redirect(&first)).unwrap());
    drop(redirected.push_redirect(redirect(&second)).unwrap());
    let mut response = Response::new(Status::OK, Body::Empty);
    response.fields = fields(&[("Content-Type", "c/c"), ("ETag", "\"1\""), ("Expires", "1")]);
    let response = redirected.apply_to_result(Ok(Box::new(response))).unwrap();
    assert_eq!(
        String::from_utf8_lossy(response.fields.as_bytes()),
        "ETag: \"1\"\r\nExpires: 0\r\nSet-Cookie: b=1\r\nContent-Type: a/a\r\n\
         Set-Cookie: a=1\r\n"
    );
}

#[test]
fn the_page_of_an_error_keeps_its_own_type() {
    let mut redirected = RedirectChain::default();
    drop(
        redirected
            .push_redirect(redirect(&[("Content-Type", "a/a")]))
            .unwrap(),
    );
    let response = Response::with_text(Status::NOT_FOUND, "text/plain", "gone");
    let response = redirected.apply_to_result(Ok(Box::new(response))).unwrap();
    assert_eq!(
        response.fields.get("content-type"),
        Some(&b"text/plain"[..])
    );
}

#[test]
fn times_add_up_and_the_first_handler_is_named() {
    let mut redirected = RedirectChain::default();
    let mut first = redirect(&[]);
    first.max_rate = Some(Box::new(BodyRate::of_response(7)));
    first.timing = RequestTiming {
        app_time: Duration::from_secs(1),
        worker_pid: 12,
        handler: Some(HandlerName::Component("app")),
        server: Some("a:1".into()),
        ..RequestTiming::default()
    };
    drop(redirected.push_redirect(first).unwrap());
    let mut response = Response::new(Status::OK, Body::Empty);
    response.timing = RequestTiming {
        app_time: Duration::from_secs(2),
        handler: Some(HandlerName::Component("files")),
        ..RequestTiming::default()
    };
    let response = redirected.apply_to_result(Ok(Box::new(response))).unwrap();
    let timing = &response.timing;
    assert_eq!(response.max_rate.unwrap().of_response, Some(7));
    assert_eq!(
        (timing.app_time, timing.worker_pid),
        (Duration::from_secs(3), 12)
    );
    assert_eq!(timing.handler.as_deref(), Some("app"));
    assert_eq!(timing.server.as_deref(), Some("a:1"));
}

#[test]
fn the_target_is_asked_by_a_plain_read() {
    let range = "Range: bytes=0-1\r\nIf-None-Match: \"1\"\r\n";
    let body = "Content-Length: 3\r\nContent-Type: a/b\r\nExpect: 100-continue\r\n";
    for (what, method, sent, expected) in [
        (
            "a read keeps its conditions",
            "GET",
            range,
            "Host If-None-Match Range",
        ),
        ("HEAD stays HEAD", "HEAD", range, "Host If-None-Match Range"),
        ("a body is left behind", "POST", body, "Host"),
        ("and conditions of another method", "PUT", range, "Host"),
        (
            "and the connection",
            "GET",
            "Connection: close, A\r\nTE: trailers\r\n",
            "Host",
        ),
    ] {
        let old = head(&format!("{method} /x HTTP/1.1\r\nHost: h\r\n{sent}\r\n"));
        let new = redirect_head(&old, "/kept/a?b").unwrap();
        let mut names: Vec<_> = new.fields().map(|(name, _)| name).collect();
        names.sort_unstable();
        assert_eq!(names.join(" "), expected, "{what}");
        assert_eq!(new.target(), "/kept/a?b", "{what}");
        let is_head = new.method() == Method::Head;
        assert!(is_head == (method == "HEAD") && (is_head || new.method() == Method::Get));
    }
    let old = head("GET http://h/x HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(redirect_head(&old, "/a").unwrap().host(), "h");
}

#[test]
fn an_invalid_target_is_refused() {
    let old = head("GET /x HTTP/1.1\r\nHost: h\r\n\r\n");
    for target in [
        "",
        "a",
        "http://h/a",
        "/a b",
        "/a\r\nX: y",
        "/a HTTP/1.1\r\nHost: h\r\n\r\n",
    ] {
        let fault = redirect_head(&old, target).unwrap_err();
        assert_eq!(fault.kind, FaultKind::AppProtocolError, "{target:?}");
    }
    assert!(redirect_path(&redirect_head(&old, "/../a").unwrap()).is_err());
}
