//! What ids, logs and traces cost a request in allocations: nothing where they are off.
//!
//! Alone in its process, with an allocator that counts.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by a panic, and shows its figures"
)]

use std::alloc::System;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use penstock_config::{
    Limits, LogFormat, LogTemplate, PathPattern, RequestIdMode, SampleShare, TraceParents,
};
use penstock_edge::{
    AccessLog, Edge, LogFilter, Route, RouteBodyLimits, RouteObservation, RouteTable, Settings,
    Site, TracePolicy, accept_connections,
};
use penstock_exchange::metrics::RouteCountTable;
use penstock_exchange::spans::SpanQueue;
use penstock_exchange::{
    Handler, HandlerProgress, ListenerInfo, Request, Response, TrustedProxies,
};
use penstock_http::{LogMask, Status};
use penstock_runtime::logger::{LogOutput, LogWriter};
use penstock_runtime::{Drain, EventLoops};
use penstock_sys::net;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const REQUESTS: usize = 500;
const REQUEST: &[u8] = b"GET /a?b=c HTTP/1.1\r\nHost: a.test\r\nUser-Agent: u\r\n\r\n";

#[derive(Debug)]
struct Hello;

impl Handler for Hello {
    fn handle(&self, _: Request) -> HandlerProgress {
        let response = Response::with_text(Status::OK, "text/plain", "hello");
        HandlerProgress::Ready(Ok(response.into()))
    }
}

fn settings(observation: Option<RouteObservation>) -> Settings {
    let route = Route {
        path: PathPattern::any(),
        conditions: None,
        is_internal: false,
        redirects_directories: false,
        body_limits: RouteBodyLimits::default(),
        filters: None,
        policy: None,
        observation: observation.map(Arc::new),
        handlers: [Arc::new(Hello) as Arc<dyn Handler>].into(),
    };
    let mut routes = RouteTable::default();
    routes.add_site(&[], Site::new(vec![route], Arc::default()));
    Settings {
        limits: Limits::default(),
        routes,
        access_logs: Vec::new(),
        request_id: RequestIdMode::Off,
        tracing: None,
        log_mask: LogMask::default(),
        trusted_proxies: Arc::new(TrustedProxies::default()),
        is_development: false,
        stream_refusal: None,
        tls: None,
        http_challenges: None,
        shared_challenges: None,
    }
}

/// A log into nothing, so that no disk has a part in it.
fn log(format: LogFormat) -> AccessLog {
    let null = std::fs::File::options()
        .write(true)
        .open("/dev/null")
        .unwrap();
    AccessLog {
        writer: LogWriter::start("test", LogOutput::File(null)).unwrap(),
        format,
        colours: false,
        mask: LogMask::default(),
        filter: LogFilter::default(),
        is_default: true,
    }
}

/// Allocations a request, once everything is warm.
fn allocations(settings: Settings) -> f64 {
    let socket = net::listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = net::local_address(&socket).unwrap();
    let loops = EventLoops::start(1).unwrap();
    let edge = Arc::new(Edge::new(settings, 1));
    let info = Arc::new(ListenerInfo {
        scheme: "http",
        address: Some(address),
        name: "test".into(),
        proxy_protocol: false,
        has_tls: false,
    });
    loops.handles()[0].spawn(accept_connections(edge, socket, info, Drain::new(), None));
    let counted = exchange(address);
    loops.stop();
    counted
}

#[expect(clippy::cast_precision_loss, reason = "a few thousand")]
fn exchange(address: SocketAddr) -> f64 {
    let mut client = TcpStream::connect(address).unwrap();
    client
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    client.set_nodelay(true).unwrap();
    let mut room = [0; 4096];
    let mut ask = |times: usize| {
        for _ in 0..times {
            client.write_all(REQUEST).unwrap();
            let mut length = 0;
            while !room[..length].ends_with(b"hello") {
                let more = client.read(&mut room[length..]).unwrap();
                assert!(more > 0, "closed");
                length += more;
            }
        }
    };
    ask(50);
    let before = ALLOCATOR.stats();
    ask(REQUESTS);
    let after = ALLOCATOR.stats();
    (after.allocations - before.allocations) as f64 / REQUESTS as f64
}

#[test]
fn what_is_off_costs_nothing_and_the_rest_is_bounded() {
    let none = allocations(settings(None));
    let with = |change: &dyn Fn(&mut Settings)| {
        let mut changed = settings(Some(RouteObservation::new("*", "/*")));
        change(&mut changed);
        allocations(changed) - none
    };
    let traced = |sample: SampleShare| {
        move |settings: &mut Settings| {
            settings.tracing = Some(TracePolicy {
                parents: TraceParents::Trusted,
                sample,
                queue: Some(Arc::new(SpanQueue::default())),
            });
        }
    };
    let template = "{client} {method} {uri} {status} {total_time} {request_id} {route}";
    let template = LogFormat::Template(LogTemplate::parse(template).unwrap());
    let counts = RouteCountTable::default();
    let mut counted = RouteObservation::new("*", "/*");
    counted.counts = Some(counts.counts("*", "/*", 1));
    let costs = [
        (
            "an id",
            with(&|it| it.request_id = RequestIdMode::Pass),
            0.0,
        ),
        (
            "an id in the response",
            with(&|it| it.request_id = RequestIdMode::Respond),
            1.0,
        ),
        (
            "counts of routes",
            allocations(settings(Some(counted))) - none,
            0.0,
        ),
        (
            "a combined line",
            with(&|it| it.access_logs.push(log(LogFormat::Combined))),
            6.0,
        ),
        (
            "a line of a template",
            with(&|it| it.access_logs.push(log(template.clone()))),
            12.0,
        ),
        (
            "a trace",
            with(&traced(SampleShare::from_fraction(0.0))),
            1.0,
        ),
        ("a span", with(&traced(SampleShare::ALL)), 14.0),
    ];
    for (what, cost, bound) in costs {
        // Buffers of other threads may grow meanwhile.
        assert!(
            cost <= bound + 0.1,
            "{what}: {cost} allocations beside {none}"
        );
    }
}
