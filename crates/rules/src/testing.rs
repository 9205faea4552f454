//! Requests as edge would have read them, for the tests of this crate.

use std::sync::Arc;

use penstock_exchange::request::{RequestEnvironment, RequestPath};
use penstock_exchange::{Fault, Reply};
use penstock_exchange::{Handler, ListenerInfo, Mount, Request, RequestBody};
use penstock_http::{HeadLimits, ParseProgress, parse_head};
use penstock_runtime::clock;
use penstock_sys::net::PeerAddress;

/// A GET of this target with these lines of fields, from 203.0.113.7.
pub(crate) fn request(target: &str, fields: &str) -> Request {
    let head = format!("GET {target} HTTP/1.1\r\nHost: a.example\r\n{fields}\r\n");
    let head = match parse_head(head.as_bytes(), &HeadLimits::default()) {
        Ok(ParseProgress::Complete((head, _))) => head,
        other => panic!("a valid head: {other:?}"),
    };
    let environment = RequestEnvironment {
        peer: PeerAddress::Tcp("203.0.113.7:4711".parse().unwrap()),
        listener: Arc::new(ListenerInfo {
            scheme: "http",
            address: None,
            name: "test".to_owned(),
            proxy_protocol: false,
            has_tls: false,
        }),
        client_state: Arc::default(),
        arrived_at: clock::now(),
        trusted_proxies: Arc::default(),
        forwarded: None,
        mount: Mount::default(),
    };
    let path = RequestPath::from_head(&head).unwrap();
    Request::new(Arc::new(head), path, RequestBody::Empty, environment)
}

/// What a handler makes of a request; tests have no loop, so its future must need none.
pub(crate) fn run(handler: &dyn Handler, request: Request) -> Result<Reply, Fault> {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime
        .unwrap()
        .block_on(handler.handle(request).wait_for_reply())
}
