//! A scripted back end and client requests, for this crate's tests.
//!
//! A [`TestBackend`] records every request head and answers by its script. A [`Gate`] holds
//! responses back until the test opens it. Tests await conditions with a deadline instead of
//! sleeping.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use penstock_config::RouteCache;
use penstock_exchange::request::{RequestEnvironment, RequestPath};
use penstock_exchange::{
    Body, BodyStream, Fault, FaultKind, ForwardedInfo, Handler, HandlerProgress, ListenerInfo,
    Reply, Request, RequestBody, Response, TrustedProxies,
};
use penstock_http::{FieldBlock, HeadLimits, ParseProgress, RequestHead, Status, parse_head};
use penstock_runtime::blocking::Pool;
use penstock_runtime::clock;
use penstock_runtime::loops::{self, TaskHandle};
use penstock_sys::net::PeerAddress;
use tokio::sync::Semaphore;

use crate::store::Store;
use crate::{CacheHandler, StoreState};

/// A client that is not trusted.
pub(crate) const CLIENT_ADDRESS: &str = "192.0.2.7:50000";
/// A trusted proxy.
pub(crate) const PROXY_ADDRESS: &str = "127.0.0.1:50000";

/// The head of a GET for `target` at `a.test`, with further field lines.
pub(crate) fn head(target: &str, lines: &[&str]) -> RequestHead {
    head_of("GET", target, lines)
}

pub(crate) fn head_of(method: &str, target: &str, lines: &[&str]) -> RequestHead {
    let mut text = format!("{method} {target} HTTP/1.1\r\n");
    if !lines.iter().any(|line| line.starts_with("Host:")) {
        text.push_str("Host: a.test\r\n");
    }
    for line in lines {
        text.push_str(line);
        text.push_str("\r\n");
    }
    text.push_str("\r\n");
    let Ok(ParseProgress::Complete((head, _))) =
        parse_head(text.as_bytes(), &HeadLimits::default())
    else {
        panic!("a valid head: {text:?}")
    };
    head
}

/// A request with that head from that peer.
pub(crate) fn request_of(head: RequestHead, peer: &str) -> Request {
    let listener = ListenerInfo {
        scheme: "http",
        address: None,
        name: String::new(),
        proxy_protocol: false,
        has_tls: false,
    };
    let peer = PeerAddress::Tcp(peer.parse().unwrap());
    // Localhost, as an operator lists it.
    let networks = ["127.0.0.0/8", "::1/128"].map(|text| text.parse().unwrap());
    let trust = Arc::new(TrustedProxies::new(networks.into(), true));
    let told = ForwardedInfo::has_forwarding_fields(&head, &trust) && trust.covers(peer);
    let forwarded = told.then(|| Arc::new(ForwardedInfo::read(&head, &trust).0));
    let mount = forwarded.as_ref().map(|told| told.mount.clone());
    let arrival = RequestEnvironment {
        peer,
        listener: Arc::new(listener),
        client_state: Arc::default(),
        trusted_proxies: trust,
        forwarded,
        mount: mount.unwrap_or_default(),
        arrived_at: clock::now(),
    };
    let path = RequestPath::from_head(&head).unwrap();
    Request::new(Arc::new(head), path, RequestBody::Empty, arrival)
}

pub(crate) fn get_request(target: &str, lines: &[&str]) -> Request {
    request_of(head(target, lines), CLIENT_ADDRESS)
}

/// The back end's reaction to one request.
pub(crate) enum BackendAction {
    Now(Result<Reply, Fault>),
    /// Responds when the gate opens.
    Gated(Arc<Gate>, Result<Reply, Fault>),
}

/// A response with these field lines.
pub(crate) fn response(status: u16, lines: &[&str], body: Body) -> Response {
    let mut response = Response::new(Status::new(status).unwrap(), body);
    for line in lines {
        let (name, value) = line.split_once(": ").unwrap();
        response.fields.push(name, value.as_bytes()).unwrap();
    }
    response
}

pub(crate) fn respond_with_page(lines: &[&str], body: &str) -> BackendAction {
    respond_with(
        200,
        lines,
        Body::Bytes(Bytes::copy_from_slice(body.as_bytes())),
    )
}

pub(crate) fn respond_with(status: u16, lines: &[&str], body: Body) -> BackendAction {
    BackendAction::Now(Ok(response(status, lines, body).into()))
}

pub(crate) fn fail_with(kind: FaultKind) -> BackendAction {
    BackendAction::Now(Err(Fault::new(kind, "as told")))
}

impl BackendAction {
    pub(crate) fn behind_gate(self, gate: &Arc<Gate>) -> Self {
        match self {
            Self::Now(answered) | Self::Gated(_, answered) => {
                Self::Gated(Arc::clone(gate), answered)
            }
        }
    }
}

/// Holds tasks back and counts those that wait.
#[derive(Debug)]
pub(crate) struct Gate {
    open: Semaphore,
    waiting_tasks: AtomicUsize,
}

impl Gate {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            open: Semaphore::new(0),
            waiting_tasks: AtomicUsize::new(0),
        })
    }

    /// Tasks waiting now.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting_tasks.load(Ordering::SeqCst)
    }

    pub(crate) fn open(&self) {
        self.open.close();
    }

    async fn pass(self: Arc<Self>) {
        struct Waits<'a>(&'a AtomicUsize);
        impl Drop for Waits<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        self.waiting_tasks.fetch_add(1, Ordering::SeqCst);
        let _waits = Waits(&self.waiting_tasks);
        // A closed semaphore counts as an open gate.
        let _ = self.open.acquire().await;
    }
}

type Script = dyn Fn(usize, &Request) -> BackendAction + Send + Sync;

/// The handler behind the cache.
pub(crate) struct TestBackend {
    script: Box<Script>,
    received_head: Mutex<Vec<RequestHead>>,
}

impl fmt::Debug for TestBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Backend")
    }
}

impl TestBackend {
    /// Creates a back end that acts by `script`, which gets the number of the request, from 0.
    pub(crate) fn new(
        script: impl Fn(usize, &Request) -> BackendAction + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            script: Box::new(script),
            received_head: Mutex::default(),
        })
    }

    /// Requests received.
    pub(crate) fn request_count(&self) -> usize {
        self.received_head.lock().unwrap().len()
    }

    /// The head of a received request.
    pub(crate) fn received(&self, number: usize) -> RequestHead {
        self.received_head.lock().unwrap()[number].clone()
    }
}

impl Handler for TestBackend {
    fn handle(&self, request: Request) -> HandlerProgress {
        let number = {
            let mut asked = self.received_head.lock().unwrap();
            asked.push(RequestHead::clone(&request.head));
            asked.len() - 1
        };
        match (self.script)(number, &request) {
            BackendAction::Now(answered) => HandlerProgress::Ready(answered),
            BackendAction::Gated(gate, answered) => {
                HandlerProgress::Pending(Box::pin(async move {
                    gate.pass().await;
                    answered
                }))
            }
        }
    }
}

/// A body in chunks, possibly held back before one of them, possibly cut.
pub(crate) struct ChunkedBody {
    pub(crate) chunks: VecDeque<Result<Bytes, Fault>>,
    pub(crate) length: Option<u64>,
    pub(crate) gate: Option<Arc<Gate>>,
    pub(crate) trailers: Option<FieldBlock>,
    waits: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl ChunkedBody {
    /// A body of these chunks, with the gate after the first.
    pub(crate) fn new_body(pieces: &[&str], length: Option<u64>, gate: Option<&Arc<Gate>>) -> Body {
        Body::Stream(Box::new(Self::new(pieces, length, gate)))
    }

    pub(crate) fn new(pieces: &[&str], length: Option<u64>, gate: Option<&Arc<Gate>>) -> Self {
        let pieces = pieces.iter().map(|text| match *text {
            "cut" => Err(Fault::new(FaultKind::BackendDisconnected, "cut as told")),
            text => Ok(Bytes::copy_from_slice(text.as_bytes())),
        });
        Self {
            chunks: pieces.collect(),
            length,
            gate: gate.cloned(),
            trailers: None,
            waits: None,
        }
    }
}

impl BodyStream for ChunkedBody {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
        if let Some(waits) = &mut self.waits {
            std::task::ready!(waits.as_mut().poll(cx));
            self.waits = None;
        }
        let piece = self.chunks.pop_front();
        if let Some(gate) = self.gate.take() {
            self.waits = Some(Box::pin(gate.pass()));
        }
        Poll::Ready(piece)
    }

    fn length(&self) -> Option<u64> {
        self.length
    }

    fn take_trailers(&mut self) -> Option<FieldBlock> {
        self.trailers.take()
    }
}

pub(crate) fn memory_store(name: &str) -> Arc<Store> {
    Store::start(
        &penstock_config::Cache::new(name, None),
        Pool::new("test", 2, 100),
    )
}

/// Creates a cache with these rules in front of `backend`.
pub(crate) fn cache_with_rules(
    backend: &Arc<TestBackend>,
    store: &Arc<Store>,
    change: impl FnOnce(&mut RouteCache),
) -> Arc<CacheHandler> {
    let mut rules = RouteCache::new(vec!["m".to_owned()]);
    change(&mut rules);
    let inner = Arc::clone(backend) as Arc<dyn Handler>;
    Arc::new(CacheHandler::new(inner, &rules, vec![Arc::clone(store)]))
}

/// Creates a cache in memory with default rules.
pub(crate) fn memory_cache(backend: &Arc<TestBackend>) -> Arc<CacheHandler> {
    cache_with_rules(backend, &memory_store("m"), |_| ())
}

/// The cache's reply.
pub(crate) async fn handle_request(cache: &CacheHandler, request: Request) -> Result<Reply, Fault> {
    match cache.handle(request) {
        HandlerProgress::Ready(answered) => answered,
        HandlerProgress::Pending(work) => work.await,
    }
}

/// A response read to its end.
#[derive(Debug)]
pub(crate) struct CollectedResponse {
    pub(crate) status: u16,
    pub(crate) fields: FieldBlock,
    pub(crate) body: Result<String, FaultKind>,
    pub(crate) length: Option<u64>,
}

impl CollectedResponse {
    pub(crate) fn field(&self, name: &str) -> String {
        let value = self.fields.get(name).unwrap_or_default();
        String::from_utf8_lossy(value).into_owned()
    }

    pub(crate) fn cache_status(&self) -> String {
        self.field("cache-status")
    }

    pub(crate) fn body_text(&self) -> &str {
        self.body.as_deref().unwrap()
    }

    pub(crate) fn is_hit(&self) -> bool {
        self.cache_status().starts_with("Penstock; hit")
    }
}

/// Sends a request and reads its response.
pub(crate) async fn fetch(cache: &CacheHandler, request: Request) -> CollectedResponse {
    match handle_request(cache, request).await {
        Ok(Reply::Response(response)) => collect_response(*response).await,
        other => panic!("a response, not {other:?}"),
    }
}

/// Repeats a request until it is a hit: a new object may still be written.
pub(crate) async fn fetch_until_hit(cache: &CacheHandler, target: &str) -> CollectedResponse {
    let mut last = None;
    for _ in 0..10_000 {
        let got = fetch(cache, get_request(target, &[])).await;
        if got.is_hit() {
            return got;
        }
        last = Some(got);
        loops::yield_now().await;
    }
    panic!("never a hit: {last:?}")
}

pub(crate) async fn collect_response(response: Response) -> CollectedResponse {
    let length = response.body.length();
    let mut bytes = Vec::new();
    let mut cut = None;
    match response.body {
        Body::Empty | Body::Omitted(_) => {}
        Body::Bytes(content) => bytes.extend_from_slice(&content),
        Body::File(part) => {
            while (bytes.len() as u64) < part.len {
                let at = part.start + bytes.len() as u64;
                let left = part.len - bytes.len() as u64;
                bytes.extend_from_slice(&part.file.read(at, left).await.unwrap());
            }
        }
        Body::Stream(mut stream) => loop {
            match std::future::poll_fn(|cx| stream.poll_chunk(cx)).await {
                Some(Ok(chunk)) => bytes.extend_from_slice(&chunk),
                Some(Err(fault)) => {
                    cut = Some(fault.kind);
                    break;
                }
                None => break,
            }
        },
        Body::Takeover(_) | Body::Hold(_) => panic!("no takeover was asked for"),
    }
    CollectedResponse {
        status: response.status.code(),
        fields: response.fields,
        body: cut.map_or_else(|| Ok(String::from_utf8(bytes).unwrap()), Err),
        length,
    }
}

/// Waits until `holds` returns true, at most ten seconds.
pub(crate) async fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let waits = async {
        while !holds() {
            loops::yield_now().await;
        }
    };
    let waited = clock::timeout(Duration::from_secs(10), waits).await;
    assert!(waited.is_some(), "waited for: {what}");
}

/// Tasks that are started one after another and awaited together.
pub(crate) struct TaskSet<T>(Vec<TaskHandle<T>>);

impl<T: Send + 'static> TaskSet<T> {
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn spawn(&mut self, task: impl Future<Output = T> + Send + 'static) {
        self.0.push(loops::spawn_with_handle(task));
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Awaits the next task in starting order. `Some(None)` if it was aborted.
    pub(crate) async fn join_next(&mut self) -> Option<Option<T>> {
        match self.0.is_empty() {
            true => None,
            false => Some(self.0.remove(0).await.ok()),
        }
    }

    pub(crate) async fn join_all(mut self) -> Vec<T> {
        let mut outcomes = Vec::new();
        while let Some(outcome) = self.join_next().await {
            outcomes.push(outcome.expect("nobody aborted it"));
        }
        outcomes
    }

    pub(crate) fn abort_all(&mut self) {
        self.0.iter_mut().for_each(TaskHandle::abort);
    }
}

/// Runs a test on its own event loop.
pub(crate) fn run<F: Future<Output = ()>>(test: F) {
    loops::block_on(test).unwrap();
}

/// Waits until a store has read its directory.
pub(crate) async fn wait_until_working(store: &Arc<Store>) {
    wait_until("the store works", || {
        store.snapshot().state == StoreState::Working
    })
    .await;
}
