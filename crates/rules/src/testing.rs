//! Requests as edge would have read them, and a back end that keeps them, for the tests of this
//! crate.
//!
//! # Invariants
//! - A head goes through the parser that heads of clients go through.

use std::sync::{Arc, Mutex};

use penstock_exchange::request::{RequestEnvironment, RequestPath};
use penstock_exchange::{
    Body, Fault, Handler, HandlerProgress, ListenerInfo, Mount, Reply, Request, RequestBody,
    Response,
};
use penstock_http::{HeadLimits, ParseProgress, RequestHead, Status, parse_head};
use penstock_runtime::clock;
use penstock_sys::net::PeerAddress;

/// A GET of this target with these lines of fields, from 203.0.113.7.
pub(crate) fn request(target: &str, fields: &str) -> Request {
    request_of(&format!("GET {target}"), fields, "203.0.113.7:4711", "http")
}

/// A request of a client by its address, with these lines of fields.
pub(crate) fn request_of(line: &str, fields: &str, client: &str, scheme: &'static str) -> Request {
    let head = format!("{line} HTTP/1.1\r\nHost: a.example\r\n{fields}\r\n");
    let head = match parse_head(head.as_bytes(), &HeadLimits::default()) {
        Ok(ParseProgress::Complete((head, _))) => head,
        other => panic!("a valid head: {other:?}"),
    };
    let environment = RequestEnvironment {
        peer: PeerAddress::Tcp(client.parse().unwrap()),
        listener: Arc::new(ListenerInfo {
            scheme,
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

/// Answers with its name, and keeps the heads of its requests.
#[derive(Debug)]
pub(crate) struct NamedBackEnd {
    name: &'static str,
    pub(crate) heads: Mutex<Vec<Arc<RequestHead>>>,
}

impl NamedBackEnd {
    pub(crate) fn new(name: &'static str) -> Arc<Self> {
        Arc::new(Self {
            name,
            heads: Mutex::default(),
        })
    }

    pub(crate) fn request_count(&self) -> usize {
        self.heads.lock().unwrap().len()
    }
}

impl Handler for NamedBackEnd {
    fn handle(&self, request: Request) -> HandlerProgress {
        self.heads.lock().unwrap().push(Arc::clone(&request.head));
        let response = Response::new(Status::OK, Body::Bytes(self.name.into()));
        HandlerProgress::Ready(Ok(Reply::from(response)))
    }
}
