//! Which channel a request names, and what a route answers without holding anything.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use penstock_exchange::request::{RequestEnvironment, RequestPath};
use penstock_exchange::{IncomingBody, ListenerInfo, Mount, RequestBody};
use penstock_http::{HeadLimits, ParseProgress, parse_head};
use penstock_sys::net::PeerAddress;

use super::*;
use crate::{DrainPlan, Settings};

/// A body that comes in pieces and may hide its length.
#[derive(Debug)]
struct ChunkedBody {
    left: Vec<u8>,
    length: Option<u64>,
}

impl IncomingBody for ChunkedBody {
    fn poll_fill(&mut self, _: &mut Context<'_>, into: &mut Vec<u8>) -> Poll<Result<bool, Fault>> {
        let size = self.left.len().min(10);
        into.extend(self.left.drain(..size));
        Poll::Ready(Ok(size > 0))
    }

    fn length(&self) -> Option<u64> {
        self.length
    }
}

fn request(line: &str, fields: &str, body: RequestBody) -> Request {
    let raw = format!("{line} HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
    let ParseProgress::Complete((head, _)) =
        parse_head(raw.as_bytes(), &HeadLimits::default()).unwrap()
    else {
        panic!("the head is not whole: {raw:?}");
    };
    let arrival = RequestEnvironment {
        peer: PeerAddress::Unix,
        listener: Arc::new(ListenerInfo {
            scheme: "http",
            address: None,
            name: "unix:/a".into(),
            proxy_protocol: false,
            has_tls: false,
        }),
        client_state: Arc::default(),
        trusted_proxies: Arc::default(),
        forwarded: None,
        mount: Mount::default(),
        arrived_at: Instant::now(),
    };
    let path = RequestPath::from_head(&head).unwrap();
    Request::new(Arc::new(head), path, body, arrival)
}

/// The channel that a target comes to.
fn named(pattern: &str, target: &str) -> Result<String, ChannelNameError> {
    let request = request(&format!("GET {target}"), "", RequestBody::Empty);
    let pattern = pattern.parse().unwrap();
    expand_pattern(&pattern, request.path(), request.query())
}

#[test]
fn a_request_names_its_channel() {
    for (pattern, target, expected) in [
        ("news", "/anything?x=1", "news"),
        ("{path}", "/a/b", "/a/b"),
        ("{path.1}", "/a/b", "a"),
        ("{path.2}", "/a/b", "b"),
        ("{path.2}", "/a/b%2fc", "b"),
        ("{path.2}", "/a//b", "b"),
        ("{path.1}", "/caf%c3%a9", "café"),
        ("{path.1}", "/a+b", "a+b"),
        (
            "room-{path.2}.{query.lang}",
            "/r/7?x=1&lang=en&lang=de",
            "room-7.en",
        ),
        ("{query.a}", "/?a=x+y%2fz", "x y/z"),
        ("{query.a}", "/?b&a=1", "1"),
    ] {
        let found = named(pattern, target);
        assert_eq!(found.as_deref(), Ok(expected), "{pattern} {target}");
    }
}

#[test]
fn a_request_that_names_none_is_refused() {
    let long = format!("/{}", "x".repeat(MAX_CHANNEL_BYTES + 1));
    let longest = format!("/{}", "x".repeat(MAX_CHANNEL_BYTES));
    for (pattern, target, expected) in [
        ("{path.1}", "/", ChannelNameError::MissingPart),
        ("{path.3}", "/a/b", ChannelNameError::MissingPart),
        ("{path.2}", "/a/", ChannelNameError::MissingPart),
        ("{query.a}", "/", ChannelNameError::MissingPart),
        ("{query.a}", "/?A=1", ChannelNameError::MissingPart),
        ("x{query.a}", "/?a=", ChannelNameError::MissingPart),
        ("{query.a}", "/?a", ChannelNameError::MissingPart),
        ("{path.1}", &long, ChannelNameError::TooLong),
        ("x{path.1}", &longest, ChannelNameError::TooLong),
        ("{path.1}", "/%ff", ChannelNameError::NotText),
        ("{query.a}", "/?a=x%0ay", ChannelNameError::NotText),
        ("{query.a}", "/?a=%00", ChannelNameError::NotText),
        ("{query.a}", "/?a=%c2%85", ChannelNameError::NotText),
    ] {
        assert_eq!(named(pattern, target), Err(expected), "{pattern} {target}");
    }
    assert_eq!(named("{path.1}", &longest).as_deref(), Ok(&longest[1..]));
}

/// A route whose hub has no loops: it can hold nothing.
fn route(publish: bool, message_bytes: usize) -> HubRouteHandler {
    let settings = Settings {
        max_message_size: message_bytes,
        ..Settings::default()
    };
    let hub = Hub::start(settings, &[]).unwrap();
    let channels = ["{path.1}", "all", "{path.1}"].map(str::to_owned).into();
    let of_route = RouteHub {
        namespace: "hub".to_owned(),
        presence: false,
        channels,
        heartbeat_interval: None,
        origins: ["https://friend.example".to_owned()].into(),
        heartbeat_event: None,
        publish,
    };
    HubRouteHandler::new(hub, &of_route).unwrap()
}

fn answer(route: &HubRouteHandler, request: Request) -> Result<Response, Fault> {
    let reply = match route.handle(request) {
        HandlerProgress::Ready(reply) => reply,
        HandlerProgress::Pending(work) => {
            let mut work = pin!(work);
            match work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(reply) => reply,
                Poll::Pending => panic!("the body is there"),
            }
        }
    };
    reply.map(|reply| match reply {
        Reply::Response(response) => *response,
        other => panic!("passed on: {other:?}"),
    })
}

#[test]
fn a_head_request_gets_the_head_of_a_stream() {
    let head = request("HEAD /news", "", RequestBody::Empty);
    let response = answer(&route(false, 100), head).unwrap();
    assert_eq!(response.status, Status::OK);
    assert!(matches!(response.body, Body::Omitted(None)));
    for (name, value) in [
        ("content-type", "text/event-stream"),
        ("cache-control", "no-store, no-cache, no-transform"),
        ("x-accel-buffering", "no"),
    ] {
        let found = response.fields.get(name);
        assert_eq!(found, Some(value.as_bytes()), "{name}");
    }
    assert_eq!(response.timing.handler.as_deref(), Some("hub"));
}

#[test]
fn other_methods_get_405_with_allow() {
    for (publish, method, allowed) in [
        (false, "POST", "GET, HEAD, OPTIONS"),
        (false, "DELETE", "GET, HEAD, OPTIONS"),
        (true, "PUT", "GET, HEAD, POST, OPTIONS"),
    ] {
        let request = request(&format!("{method} /news"), "", RequestBody::Empty);
        let response = answer(&route(publish, 100), request).unwrap();
        assert_eq!(response.status, Status::METHOD_NOT_ALLOWED, "{method}");
        let found = response.fields.get("allow");
        assert_eq!(found, Some(allowed.as_bytes()), "{method}");
    }
}

#[test]
fn a_name_that_is_none_has_its_status() {
    for (line, kind) in [
        ("GET /", FaultKind::NotFound),
        ("HEAD /", FaultKind::NotFound),
        ("POST /", FaultKind::NotFound),
        ("GET /%ff", FaultKind::BadRequest),
    ] {
        let fault = answer(&route(true, 100), request(line, "", RequestBody::Empty)).unwrap_err();
        assert_eq!(fault.kind, kind, "{line}");
    }
}

#[test]
fn a_message_is_text_of_a_bounded_length() {
    for (sent, says_length, kind) in [
        (vec![b'x'; 41], true, FaultKind::BodyTooLarge),
        (vec![b'x'; 41], false, FaultKind::BodyTooLarge),
        (vec![b'x'; 4000], false, FaultKind::BodyTooLarge),
        (vec![b'x', 0xff], true, FaultKind::BadRequest),
    ] {
        let body = RequestBody::Incoming(Box::new(ChunkedBody {
            length: says_length.then_some(sent.len() as u64),
            left: sent,
        }));
        let fault = answer(&route(true, 40), request("POST /news", "", body)).unwrap_err();
        assert_eq!(fault.kind, kind, "{}", fault.cause);
    }
}

#[test]
fn while_the_server_stops_a_stream_ends_at_once_so_that_its_client_comes_back() {
    let route = route(true, 100);
    let drained = pin!(route.hub.drain(DrainPlan::with_duration(Duration::ZERO)));
    let drained = drained.poll(&mut Context::from_waker(Waker::noop()));
    assert!(drained.is_ready(), "there is nothing to end");
    let response = answer(&route, request("GET /news", "", RequestBody::Empty)).unwrap();
    assert_eq!(response.status, Status::OK);
    let found = response.fields.get("content-type");
    assert_eq!(found, Some(b"text/event-stream".as_slice()));
    // Its client returns when the next server is expected.
    let Body::Bytes(body) = response.body else {
        panic!("{:?}", response.body);
    };
    assert_eq!(&body[..], b"retry: 1000\n\n");
}

/// The fields of a response by their names.
fn cors_headers(route: &HubRouteHandler, line: &str, origin: &str) -> (Status, Vec<String>) {
    let fields = format!("Origin: {origin}\r\nAccess-Control-Request-Method: GET\r\n");
    let response = answer(route, request(line, &fields, RequestBody::Empty)).unwrap();
    let fields = response.fields.iter();
    let fields = fields.filter(|(name, _)| {
        name.starts_with("Access-Control-") || matches!(*name, "Allow" | "Vary")
    });
    let fields = fields.map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value)));
    (response.status, fields.collect())
}

#[test]
fn pages_of_listed_origins_may_use_a_route() {
    let friend = "https://friend.example";
    let (status, fields) = cors_headers(&route(false, 100), "OPTIONS /news", friend);
    assert_eq!(status, Status::NO_CONTENT);
    assert_eq!(
        fields,
        [
            "Allow: GET, HEAD, OPTIONS",
            "Vary: Origin",
            "Access-Control-Allow-Origin: https://friend.example",
            "Access-Control-Allow-Credentials: true",
            "Access-Control-Expose-Headers: Last-Event-ID",
            "Access-Control-Allow-Methods: GET, HEAD",
            "Access-Control-Allow-Headers: Authorization, Cache-Control, Content-Type, Last-Event-ID",
            "Access-Control-Max-Age: 86400",
        ]
    );
    let (_, fields) = cors_headers(&route(true, 100), "OPTIONS /news", friend);
    assert!(fields.contains(&"Access-Control-Allow-Methods: GET, HEAD, POST".to_owned()));
    let (status, fields) = cors_headers(&route(true, 100), "HEAD /news", friend);
    assert_eq!(
        (status, &fields[..]),
        (
            Status::OK,
            &[
                "Vary: Origin",
                "Access-Control-Allow-Origin: https://friend.example",
                "Access-Control-Allow-Credentials: true",
                "Access-Control-Expose-Headers: Last-Event-ID",
            ]
            .map(str::to_owned)[..]
        )
    );
    let (status, fields) = cors_headers(&route(true, 100), "OPTIONS /news", "https://a.example");
    assert_eq!(
        (status, &fields[..]),
        (
            Status::NO_CONTENT,
            &["Allow: GET, HEAD, POST, OPTIONS", "Vary: Origin"].map(str::to_owned)[..]
        )
    );
    let (status, _) = cors_headers(&route(true, 100), "DELETE /news", friend);
    assert_eq!(status, Status::METHOD_NOT_ALLOWED);
}
