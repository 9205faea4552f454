//! The edge over real loopback sockets, with handlers made for one promise each: bytes in, bytes out.
//!
//! [`House`] serves routes on one loop at a port of the system's choice; [`Client`] is a plain socket
//! whose reads have a deadline, so that a test that hangs fails instead.

mod accepting;
mod error_pages;
mod files;
mod held;
mod heralded;
mod interim;
mod obeying;
mod routes;
mod sending;
mod takeover;

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
use penstock_runtime::{Drain, Loops};
use penstock_sys::net;

use crate::{Edge, ErrorPages, Route, Routing, Settings, Site, accept};

/// How long anything may take that should happen at once.
const SOON: Duration = Duration::from_secs(20);

/// A front end on one loop.
struct House {
    edge: Arc<Edge>,
    address: SocketAddr,
    loops: Option<Loops>,
}

impl House {
    fn new(routes: Vec<Route>) -> Self {
        Self::with(routes, |_| {})
    }

    fn with(routes: Vec<Route>, adjust: impl FnOnce(&mut Settings)) -> Self {
        let (house, socket) = Self::unopened(routes, adjust);
        let info = house.info(false);
        let (edge, stop) = (Arc::clone(&house.edge), Drain::new());
        house.spawn(async move { accept(edge, socket, info, stop).await.unwrap() });
        house
    }

    /// One with a socket that nothing accepts on yet.
    fn unopened(routes: Vec<Route>, adjust: impl FnOnce(&mut Settings)) -> (Self, OwnedFd) {
        let mut routing = Routing::default();
        let site = Site::new(routes, ErrorPages::default());
        routing.add(&[], site);
        let mut settings = Settings {
            limits: penstock_config::Limits::default(),
            routing,
            access_log: None,
            mask: LogMask::default(),
            trust: Arc::new(TrustedProxies::default()),
            development: true,
        };
        adjust(&mut settings);
        let socket = net::listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let house = Self {
            edge: Arc::new(Edge::new(settings, 1)),
            address: net::local_address(&socket).unwrap(),
            loops: Some(Loops::start(1).unwrap()),
        };
        (house, socket)
    }

    fn info(&self, proxy_protocol: bool) -> Arc<ListenerInfo> {
        Arc::new(ListenerInfo {
            scheme: "http",
            address: Some(self.address),
            name: "test".into(),
            proxy_protocol,
        })
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.loops.as_ref().unwrap().handles()[0].spawn(task);
    }

    fn client(&self) -> Client {
        let socket = TcpStream::connect(self.address).unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        socket.set_nodelay(true).unwrap();
        Client(socket)
    }

    /// Waits until the loop has seen to everything that has come so far.
    fn await_turn(&self) {
        let (turn, done) = std::sync::mpsc::channel();
        // Behind what the poll that comes next finds ready.
        self.spawn(async move {
            for _ in 0..2 {
                penstock_runtime::loops::yield_now().await;
            }
            turn.send(()).unwrap();
        });
        done.recv_timeout(SOON).unwrap();
    }

    /// Waits until the edge has so many connections open.
    fn await_connections(&self, count: usize) {
        await_until("connections", || self.edge.connections() == count);
    }
}

impl Drop for House {
    fn drop(&mut self) {
        self.loops.take().unwrap().stop();
    }
}

fn await_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
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
struct Scripted<F>(F);

impl<F> std::fmt::Debug for Scripted<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scripted")
    }
}

impl<F: Fn(Request) -> HandlerProgress + Send + Sync> Handler for Scripted<F> {
    fn handle(&self, request: Request) -> HandlerProgress {
        (self.0)(request)
    }
}

fn scripted(
    handle: impl Fn(Request) -> HandlerProgress + Send + Sync + 'static,
) -> Arc<dyn Handler> {
    Arc::new(Scripted(handle))
}

/// Says what it was asked: method, target, fields.
fn mirror() -> Arc<dyn Handler> {
    scripted(|request| {
        let head = &request.head;
        let mut text = format!("{} {}\n", head.method_str(), head.target());
        for (name, value) in head.fields() {
            text.push_str(&format!("{name}: {}\n", String::from_utf8_lossy(value)));
        }
        text.push_str(&format!("peer {:?}\n", request.peer));
        now(Response::text(Status::OK, "text/plain", text))
    })
}

fn now(response: Response) -> HandlerProgress {
    HandlerProgress::Ready(Ok(response.into()))
}

fn later(
    work: impl Future<Output = Result<Reply, penstock_exchange::Fault>> + Send + 'static,
) -> HandlerProgress {
    let work: HandlerFuture = Box::pin(work);
    HandlerProgress::Pending(work)
}

fn route(path: &str, handler: Arc<dyn Handler>) -> Route {
    Route {
        has_folder_redirect: false,
        max_body: None,
        path: PathPattern::Prefix(path.into()),
        internal: false,
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
