//! The user memory of a held stream: every byte that the process allocates is counted.
//!
//! Alone in its process, with an allocator that counts: streams are held, and the growth is divided
//! by their number. The goal is 600 bytes; the test asserts that, and the hub's own account of it.

use std::alloc::System;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use penstock_config::RouteHub;
use penstock_exchange::request::{RequestEnvironment, RequestPath};
use penstock_exchange::{
    Body, Handler, HandlerProgress, HeldConnectionCounter, HeldConnectionGuard, HeldFraming,
    ListenerInfo, Mount, Reply, Request, RequestBody,
};
use penstock_http::{HeadLimits, ParseProgress, parse_head};
use penstock_hub::{Hub, HubRouteHandler, Settings};
use penstock_runtime::{EventLoops, LoopHandle};
use penstock_sys::net::{self, PeerAddress};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const STREAMS: usize = 5_000;

const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Nobody;

impl HeldConnectionCounter for Nobody {
    fn release_held_connection(&self) {}
}

/// Bytes that are allocated now.
fn allocated() -> isize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated as isize - stats.bytes_deallocated as isize
}

/// Bytes that streams cost by the hub's account.
fn told(hub: &Hub) -> isize {
    isize::try_from(hub.snapshot().stream_bytes).expect("it is less than all memory")
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// What a route holds for a request, as a browser makes it.
fn body(route: &HubRouteHandler, head: &str) -> Body {
    let Ok(ParseProgress::Complete((head, _))) =
        parse_head(head.as_bytes(), &HeadLimits::default())
    else {
        panic!("the head is not whole: {head:?}");
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
    let path = RequestPath::from_head(&head).expect("it is a path");
    let request = Request::new(Arc::new(head), path, RequestBody::Empty, arrival);
    match route.handle(request) {
        HandlerProgress::Ready(Ok(Reply::Response(response))) => response.body,
        other => panic!("a stream is held: {other:?}"),
    }
}

/// Keeps an event loop busy until the returned value is dropped.
fn keep_busy(on: &LoopHandle) -> SyncSender<()> {
    let (busy, over) = mpsc::sync_channel::<()>(1);
    on.spawn(async move {
        let waited = over.recv_timeout(PATIENCE);
        assert_eq!(waited, Err(RecvTimeoutError::Disconnected));
    });
    busy
}

/// Holds the streams that these requests ask for; the clients' ends. Loops that are kept busy are
/// free again when all are sent.
fn hold(
    hub: &Hub,
    loops: &EventLoops,
    busy: Vec<SyncSender<()>>,
    request_of: impl Fn(usize) -> String,
) -> Vec<OwnedFd> {
    let route = RouteHub {
        namespace: "hub".to_owned(),
        presence: false,
        channels: vec!["{path.1}".to_owned()],
        heartbeat_interval: None,
        origins: Vec::new(),
        heartbeat_event: None,
        publish: false,
    };
    let route = HubRouteHandler::new(hub.clone(), &route).expect("it is a pattern");
    let front: Arc<dyn HeldConnectionCounter> = Arc::new(Nobody);
    let before = hub.snapshot().counters.opened;
    let mut clients = Vec::with_capacity(STREAMS);
    for number in 0..STREAMS {
        let (ours, theirs) = net::worker_socket_pair().expect("there are descriptors");
        clients.push(theirs);
        let Body::Hold(body) = body(&route, &request_of(number)) else {
            panic!("a stream is held");
        };
        let place = HeldConnectionGuard::new(front.clone());
        let on = &loops.handles()[number % loops.handles().len()];
        on.spawn(async move {
            body.hold(ours.into(), 0, HeldFraming::Chunked, place);
        });
    }
    drop(busy);
    until("all are held", || {
        hub.snapshot().counters.opened - before == STREAMS as u64
    });
    clients
}

#[test]
fn a_held_stream_costs_less_than_600_bytes() {
    let descriptors = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: descriptors.maximum,
        ..descriptors
    };
    setrlimit(Resource::Nofile, all).unwrap();
    let loops = EventLoops::start(2).unwrap();
    let hub = Hub::start(Settings::default(), loops.handles()).unwrap();
    // The loops' own tables stay as large as they ever were. They are that after the first streams
    // have come and gone, which all wait at once, as they would on a machine that has no time for
    // the loops.
    let request = |channel: String, fields: String| {
        format!("GET /{channel} HTTP/1.1\r\nHost: a\r\n{fields}\r\n")
    };
    let all_at_once = loops.handles().iter().map(keep_busy).collect();
    drop(hold(&hub, &loops, all_at_once, |number| {
        request(format!("warm-{number}"), String::new())
    }));
    until("they are gone", || hub.snapshot().streams == 0);
    for (name, goal, own, comes_back) in [
        ("one channel for all", 200, false, false),
        ("a channel for each", 600, true, false),
        ("one channel, and each comes back", 200, false, true),
        ("a channel for each, which comes back", 600, true, true),
    ] {
        let before = allocated();
        let told_before = told(&hub);
        // All clients reconnect at once.
        let busy = match comes_back {
            true => loops.handles().iter().map(keep_busy).collect(),
            false => Vec::new(),
        };
        let clients = hold(&hub, &loops, busy, |number| {
            let channel = if own { number } else { 0 };
            // All have different ids, none of which is known any more.
            let fields = match comes_back {
                true => format!("Last-Event-ID: 0123456789abcdef-{number}\r\n"),
                false => String::new(),
            };
            request(format!("user-{channel:06}"), fields)
        });
        until("their tasks are gone", || settled(&hub));
        let list = (clients.capacity() * size_of::<OwnedFd>()) as isize;
        let grown = (allocated() - before - list) / STREAMS as isize;
        let told = (told(&hub) - told_before) / STREAMS as isize;
        assert!(grown <= goal, "{name}: {grown} bytes a stream");
        // The hub's account has earlier reservations as well, but not memory that it cannot know.
        assert!(
            (told - grown).abs() <= 120,
            "{name}: {grown} are {told} by the hub's account"
        );
        drop(clients);
        until("they are gone", || hub.snapshot().streams == 0);
        until("their memory is given back", || {
            allocated() - before < 300_000
        });
    }
    loops.stop();
}

/// Whether nothing is on its way any more: two looks see the same.
fn settled(hub: &Hub) -> bool {
    let look = || (allocated(), hub.snapshot());
    let first = look();
    std::thread::park_timeout(Duration::from_millis(50));
    first == look()
}
