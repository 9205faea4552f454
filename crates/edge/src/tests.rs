//! The edge over real loopback sockets, with handlers made for one promise each: bytes in, bytes
//! out.
//!
//! [`TestEdge`] serves routes on one loop at a port of the system's choice; [`Client`] is a plain
//! socket with a deadline on reads, so that a test that hangs fails instead.

mod accept_fairness;
mod error_pages;
mod files;
mod held_connections;
mod interim;
mod late_layer;
mod proxy_protocol;
mod response_bodies;
mod routes;
mod takeover;
mod tls;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_config::PathPattern;
use penstock_exchange::{
    Handler, HandlerFuture, HandlerProgress, ListenerInfo, Reply, Request, Response, TrustedProxies,
};
use penstock_http::{FieldBlock, LogMask, Status};
use penstock_runtime::{Drain, EventLoops};
use penstock_sys::net;

use crate::{
    Edge, Route, RouteBodyLimits, RouteTable, Settings, Site, TunnelSwitch, TunnelTarget,
    accept_connections,
};

/// How long anything may take that should happen at once.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// A listener of requests that come by none.
pub(crate) static LISTENER: ListenerInfo = ListenerInfo {
    scheme: "http",
    address: None,
    name: String::new(),
    proxy_protocol: false,
    has_tls: false,
};

/// A front end on one loop.
struct TestEdge {
    edge: Arc<Edge>,
    address: SocketAddr,
    loops: Option<EventLoops>,
}

impl TestEdge {
    fn new(routes: Vec<Route>) -> Self {
        Self::with_settings(routes, |_| {})
    }

    fn with_settings(routes: Vec<Route>, adjust: impl FnOnce(&mut Settings)) -> Self {
        let (house, socket) = Self::without_acceptor(routes, adjust);
        let info = house.info(false);
        let (edge, stop) = (Arc::clone(&house.edge), Drain::new());
        house.spawn(accept_connections(edge, socket, info, stop, None));
        house
    }

    /// One with a socket that nothing accepts on yet.
    fn without_acceptor(routes: Vec<Route>, adjust: impl FnOnce(&mut Settings)) -> (Self, OwnedFd) {
        let mut routing = RouteTable::default();
        let site = Site::new(routes, Arc::default());
        routing.add_site(&[], site);
        let mut settings = Settings {
            limits: penstock_config::Limits::default(),
            routes: routing,
            access_logs: Vec::new(),
            tracing: None,
            request_id: penstock_config::RequestIdMode::Off,
            log_mask: LogMask::default(),
            trusted_proxies: Arc::new(TrustedProxies::default()),
            is_development: true,
            stream_refusal: None,
            tls: None,
            http_challenges: None,
            shared_challenges: None,
        };
        adjust(&mut settings);
        let socket = net::listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let house = Self {
            edge: Arc::new(Edge::new(settings, 1)),
            address: net::local_address(&socket).unwrap(),
            loops: Some(EventLoops::start(1).unwrap()),
        };
        (house, socket)
    }

    fn info(&self, proxy_protocol: bool) -> Arc<ListenerInfo> {
        Arc::new(ListenerInfo {
            scheme: "http",
            address: Some(self.address),
            name: "test".into(),
            proxy_protocol,
            has_tls: false,
        })
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.loops.as_ref().unwrap().handles()[0].spawn(task);
    }

    fn connect(&self) -> Client {
        let socket = TcpStream::connect(self.address).unwrap();
        socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        socket.set_nodelay(true).unwrap();
        Client(socket)
    }

    /// Waits until the loop has seen to everything that has come so far.
    fn wait_for_turn(&self) {
        let (turn, done) = std::sync::mpsc::channel();
        // Behind what the poll that comes next finds ready.
        self.spawn(async move {
            for _ in 0..2 {
                penstock_runtime::loops::yield_now().await;
            }
            turn.send(()).unwrap();
        });
        done.recv_timeout(TEST_TIMEOUT).unwrap();
    }

    /// Waits until the edge has so many connections open.
    fn wait_for_connections(&self, count: usize) {
        wait_until("connections", || self.edge.open_connections() == count);
    }
}

impl Drop for TestEdge {
    fn drop(&mut self) {
        self.loops.take().unwrap().stop();
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::yield_now();
    }
}

/// A client at the level of bytes.
struct Client(TcpStream);

impl Client {
    fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.0.write_all(bytes.as_ref()).unwrap();
        self
    }

    /// A GET that keeps the connection.
    fn get(&mut self, target: &str) -> &mut Self {
        self.send(format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n"))
    }

    /// Reads exactly these bytes.
    fn expect(&mut self, expected: &str) -> &mut Self {
        let mut got = vec![0; expected.len()];
        let mut len = 0;
        while len < got.len() {
            match self.0.read(&mut got[len..]) {
                Ok(0) => break,
                Ok(count) => len += count,
                Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&got[..len])),
            }
        }
        assert_eq!(String::from_utf8_lossy(&got[..len]), expected);
        self
    }

    /// Reads a head, without its `Date`.
    fn head(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            let count = self.0.read(&mut byte).unwrap();
            assert!(
                count > 0,
                "closed after {:?}",
                String::from_utf8_lossy(&head)
            );
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        let lines = head.split_inclusive("\r\n");
        lines.filter(|line| !line.starts_with("Date: ")).collect()
    }

    /// Reads a response with a `Content-Length`: head and body.
    fn response(&mut self) -> (String, String) {
        let head = self.head();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("Content-Length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        self.0.read_exact(&mut body).unwrap();
        (head, String::from_utf8(body).unwrap())
    }

    /// Reads to the end of the stream.
    fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest).unwrap();
        rest
    }

    fn expect_end(&mut self) {
        assert_eq!(String::from_utf8_lossy(&self.rest()), "");
    }
}

/// A handler that is one function.
struct HandlerFn<F>(F);

impl<F> std::fmt::Debug for HandlerFn<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scripted")
    }
}

impl<F: Fn(Request) -> HandlerProgress + Send + Sync> Handler for HandlerFn<F> {
    fn handle(&self, request: Request) -> HandlerProgress {
        (self.0)(request)
    }
}

fn handler_fn(
    handle: impl Fn(Request) -> HandlerProgress + Send + Sync + 'static,
) -> Arc<dyn Handler> {
    Arc::new(HandlerFn(handle))
}

/// Says what it was asked: method, target, fields.
fn echo_handler() -> Arc<dyn Handler> {
    handler_fn(|request| {
        let head = &request.head;
        let mut text = format!("{} {}\n", head.method_str(), head.target());
        for (name, value) in head.fields() {
            text.push_str(&format!("{name}: {}\n", String::from_utf8_lossy(value)));
        }
        text.push_str(&format!("peer {:?}\n", request.peer));
        ready(Response::with_text(Status::OK, "text/plain", text))
    })
}

fn ready(response: Response) -> HandlerProgress {
    HandlerProgress::Ready(Ok(response.into()))
}

fn pending(
    work: impl Future<Output = Result<Reply, penstock_exchange::Fault>> + Send + 'static,
) -> HandlerProgress {
    let work: HandlerFuture = Box::pin(work);
    HandlerProgress::Pending(work)
}

fn route(path: &str, handler: Arc<dyn Handler>) -> Route {
    Route {
        redirects_directories: false,
        body_limits: RouteBodyLimits::default(),
        policy: None,
        observation: None,
        path: PathPattern::Prefix(path.into()),
        conditions: None,
        is_internal: false,
        filters: None,
        handlers: [handler].into(),
    }
}

fn fields(lines: &[(&str, &str)]) -> FieldBlock {
    let mut block = FieldBlock::new();
    for (name, value) in lines {
        block.push(name, value.as_bytes()).unwrap();
    }
    block
}
