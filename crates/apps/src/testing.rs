//! A request as edge would have read it, for the tests of this crate.
//!
//! What must stay true: the head goes through the parser that heads of clients go through.

use std::sync::Arc;

use penstock_exchange::request::{Arrival, RequestPath};
use penstock_exchange::{ListenerInfo, Request, RequestBody};
use penstock_http::{HeadLimits, Progress, parse_head};
use penstock_runtime::clock;
use penstock_sys::net::PeerAddress;

/// A request with this head and no body; `listens` is the address that it came to, none is a Unix socket.
pub(crate) fn request(head: &str, peer: PeerAddress, listens: Option<&str>) -> Request {
    let limits = HeadLimits {
        target_bytes: 8192,
        header_bytes: 32768,
        headers: 100,
    };
    let Ok(Progress::Complete((head, _))) = parse_head(head.as_bytes(), &limits) else {
        panic!("a valid head: {head:?}")
    };
    let listener = ListenerInfo {
        scheme: "http",
        address: listens.map(|address| address.parse().unwrap()),
        name: "unix:/run/a.sock".into(),
        proxy_protocol: false,
    };
    let arrival = Arrival {
        peer,
        listener: Arc::new(listener),
        client: Arc::default(),
        trust: Arc::default(),
        at: clock::now(),
    };
    let path = RequestPath::of(&head).unwrap();
    Request::new(Arc::new(head), path, RequestBody::Empty, arrival)
}

/// `GET path` over a Unix socket.
pub(crate) fn get(path: &str) -> Request {
    let head = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
    request(&head, PeerAddress::Unix, None)
}
