//! Answers that speak to the hub: who gave one gets it back, with what was asked, and has the last word.

use penstock_config::{HeaderRules, Rewrite};
use penstock_exchange::{Body, GripResponse, InternalRedirect, RequestTiming};

use super::*;
use crate::Filters;

/// Speaks to the hub at once or later, and obeys by saying what it was told then.
#[derive(Debug)]
struct TestGripHandler {
    is_pending: bool,
}

fn grip_response() -> Response {
    let mut response = Response::text(Status::OK, "text/plain", "to the hub");
    response.fields.append(&fields(&[("Grip-Hold", "stream")]));
    response.has_grip = true;
    response
}

impl TestGripHandler {
    fn respond(&self, response: Response) -> HandlerProgress {
        match self.is_pending {
            true => pending(async move { Ok(response.into()) }),
            false => ready(response),
        }
    }
}

impl Handler for TestGripHandler {
    fn handle(&self, request: Request) -> HandlerProgress {
        match request.path() {
            b"/plain" => self.respond(Response::text(Status::OK, "text/plain", "plain")),
            _ => self.respond(grip_response()),
        }
    }

    fn apply_grip(&self, spoken: GripResponse) -> HandlerProgress {
        let Body::Bytes(said) = spoken.response.body else {
            panic!("its own body");
        };
        let (head, arrival) = (&spoken.head, &spoken.origin);
        let mut text = format!("{} {} ", head.method_str(), head.target());
        text += &format!(
            "had a body {}, vouched X-Rule {}, ",
            spoken.had_body,
            spoken.trusted_headers.covers("X-Rule")
        );
        text += &format!("said {said:?}, listener {}", arrival.listener.scheme);
        assert!(
            arrival.trusted_proxies.covers(arrival.peer) && !arrival.client_state.is_disconnected()
        );
        let mut response = Response::text(Status::OK, "text/plain", text);
        // The last word, even if it says the same again.
        response.has_grip = true;
        self.respond(response)
    }
}

fn for_ready_and_pending(check: impl Fn(Arc<dyn Handler>)) {
    for is_later in [false, true] {
        check(Arc::new(TestGripHandler {
            is_pending: is_later,
        }));
    }
}

#[test]
fn a_grip_response_is_applied_with_its_request() {
    for_ready_and_pending(|handler| {
        let house = TestEdge::new(vec![route("/", handler)]);
        let mut client = house.connect();
        for (request, expected) in [
            (
                "GET /a?b HTTP/1.1\r\nHost: h\r\n\r\n",
                "GET /a?b had a body false, ",
            ),
            (
                "POST /c HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi",
                "POST /c had a body true, ",
            ),
        ] {
            let (head, body) = client.send(request).response();
            let rest = "vouched X-Rule false, said b\"to the hub\", listener http";
            assert_eq!(body, format!("{expected}{rest}"), "{head}");
        }
        // What does not speak is not taken back.
        assert_eq!(client.get("/plain").response().1, "plain");
    });
}

#[test]
fn the_handler_that_answered_applies_grip() {
    let passes = handler_fn(|request| HandlerProgress::Ready(Ok(Reply::Pass(Box::new(request)))));
    let waits = handler_fn(|request| pending(async { Ok(Reply::Pass(Box::new(request))) }));
    let never = handler_fn(|_| panic!("it was not asked"));
    for_ready_and_pending(|handler| {
        for first in [&passes, &waits] {
            let mut route = route("/", Arc::clone(&handler));
            route.handlers = [Arc::clone(first), Arc::clone(&handler), Arc::clone(&never)].into();
            let house = TestEdge::new(vec![route]);
            let (_, body) = house.connect().get("/a").response();
            assert!(body.starts_with("GET /a had"), "{body}");
        }
    });
}

#[test]
fn grip_sees_the_request_as_rules_and_redirects_left_it() {
    for_ready_and_pending(|handler| {
        let rule = HeaderRules {
            set: [("X-Rule".to_owned(), "1".to_owned())].into(),
            ..HeaderRules::default()
        };
        let rewrite = Rewrite {
            strip_prefix: Some("/app".to_owned()),
            add_prefix: None,
            ..Rewrite::default()
        };
        let mut changed = route("/app", handler);
        changed.filters = Filters::compile(&rewrite, &rule, &HeaderRules::default(), None).unwrap();
        let redirects = handler_fn(|_| {
            HandlerProgress::Ready(Ok(Reply::Redirect(Box::new(InternalRedirect {
                target: "/app/b".to_owned(),
                handler: None,
                fields: FieldBlock::new(),
                max_rate: None,
                timing: RequestTiming::default(),
            }))))
        });
        let house = TestEdge::new(vec![changed, route("/", redirects)]);
        let mut client = house.connect();
        let rest = "had a body false, vouched X-Rule true, said b\"to the hub\", listener http";
        let direct = client.get("/app/a").response().1;
        assert_eq!(direct, format!("GET /a {rest}"));
        // The body was the first target's.
        let posted = "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi";
        let redirected = client.send(posted).response().1;
        assert_eq!(redirected, format!("GET /b {rest}"));
    });
}
