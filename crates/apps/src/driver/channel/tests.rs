//! The driver against a worker that is played here, over a real socket pair.
//!
//! [`ChannelHarness`] has both ends: requests go in as `handler` makes them, [`FakeWorker`] reads
//! frames and writes what a test wants. Everything is awaited with a deadline.

#![allow(clippy::disallowed_methods, reason = "tests may wait for a disk")]

mod hijacks;
mod response_bodies;
mod sessions;
mod simulation;
mod uploads;
mod websockets;
mod worker_ends;

use penstock_runtime::{clock, loops};
use std::future::{Future, poll_fn};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::pin::Pin;

use penstock_config as config;
use penstock_exchange::buffering::{
    BufferingSettings, CollectedBody, SpoolFile, TempFilePurpose, TempSpace,
};
use penstock_exchange::{Body, ClientState, Reply, Request, Response};
use penstock_queue::SlotSpec;
use penstock_runtime::blocking::Pool;
use penstock_runtime::loops::TaskHandle;
use penstock_sys::net::{self, PeerAddress};
use penstock_wire::channel::reactor_encoder;
use penstock_wire::frame::{FLAG_END, FLAG_STREAM};
use penstock_wire::{Dialect, FrameHeader, FrameKind, HEADER_LEN};

use super::*;
use crate::dispatch::WorkerStats;
use crate::handler::{self, RequestContent};
use crate::shared::DispatchMode;
use crate::shared::WorkerModel;
use crate::testing;

/// How long anything may take on a machine that has much to do.
const DEADLINE: Duration = Duration::from_secs(20);

fn on_a_loop(test: impl Future<Output = ()>) {
    loops::block_on(within(test)).unwrap();
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    clock::timeout(DEADLINE, work).await.expect("in good time")
}

fn nameless(pool: Pool) -> SpoolFile {
    let space = Arc::<TempSpace>::default();
    let grant = space.create_grant(None, TempFilePurpose::Body);
    SpoolFile::create(&std::env::temp_dir(), pool, grant).unwrap()
}

/// Lets all that is ready run.
async fn settle() {
    for _ in 0..50 {
        loops::yield_now().await;
    }
}

/// What a future comes to if it is ready; it is polled once.
async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    loops::yield_now().await;
    poll_fn(|cx| {
        Poll::Ready(match future.as_mut().poll(cx) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        })
    })
    .await
}

fn socket_pair() -> (Stream, Stream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let stream = |socket: UnixStream| {
        socket.set_nonblocking(true).unwrap();
        Stream::new(socket.into()).unwrap()
    };
    (stream(ours), stream(theirs))
}

/// What a test wants of an application.
struct HarnessOptions {
    response_timeout: Duration,
    read_timeout: Duration,
    capacity: u32,
    memory: usize,
    spool: u64,
    compresses: bool,
}

impl Default for HarnessOptions {
    fn default() -> Self {
        Self {
            response_timeout: DEADLINE * 2,
            read_timeout: DEADLINE * 2,
            capacity: 1000,
            memory: 64 << 10,
            spool: 1 << 30,
            compresses: true,
        }
    }
}

struct ChannelHarness {
    shared: Arc<AppShared>,
    worker: FakeWorker,
    mailbox: Arc<Mailbox>,
    slot: SlotId,
    driver: TaskHandle<DriverEnd>,
}

/// The worker's ends.
struct FakeWorker {
    channel: Stream,
    files: UnixStream,
    read: Vec<u8>,
}

/// One frame that the worker got.
#[derive(Debug)]
struct Frame {
    kind: FrameKind,
    flags: u8,
    id: u32,
    /// Behind the id.
    rest: Vec<u8>,
}

fn shared(terms: &HarnessOptions) -> Arc<AppShared> {
    let mut config = config::App::new("app", "/".into(), config::AppKind::Asgi, "main:app");
    config.response_timeout = terms.response_timeout;
    config.websocket_compression = terms.compresses;
    let settings = BufferingSettings {
        max_body_memory: 1 << 20,
        max_response_memory: terms.memory,
        max_response_spool: terms.spool,
        min_busy_rate: 0,
        rate_grace: Duration::ZERO,
        temp_dir: std::env::temp_dir(),
        temp_space: Arc::default(),
        pool: Pool::new("test", 1, 64),
    };
    let mode = DispatchMode::Workers(Dialect::Python);
    Arc::new(AppShared::new(&config, mode, settings))
}

impl ChannelHarness {
    fn new() -> Self {
        Self::with(&HarnessOptions::default())
    }

    fn with(terms: &HarnessOptions) -> Self {
        Self::with_options(shared(terms), terms)
    }

    /// A worker more of the same application.
    fn with_options(shared: Arc<AppShared>, terms: &HarnessOptions) -> Self {
        let (ours, theirs) = socket_pair();
        let (files, their_files) = UnixStream::pair().unwrap();
        files.set_nonblocking(true).unwrap();
        let spec = SlotSpec {
            generation: 1,
            group: 0,
            loop_index: 0,
            request_capacity: terms.capacity,
        };
        let stats = Arc::new(WorkerStats::default());
        let (slot, mailbox) = shared.dispatch.add_slot(clock::now(), spec, &stats);
        let mut driver = ChannelDriver::new(
            Arc::clone(&shared),
            slot,
            Arc::clone(&mailbox),
            7,
            ours,
            files.into(),
        );
        driver.read_timeout = terms.read_timeout;
        Self {
            shared,
            worker: FakeWorker {
                channel: theirs,
                files: their_files,
                read: Vec::new(),
            },
            mailbox,
            slot,
            driver: loops::spawn_with_handle(driver.run()),
        }
    }

    /// Sends `GET` for a path; the answer comes from the task.
    fn get(&self, path: &str) -> PendingRequest {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"))
    }

    fn send(&self, head: &str) -> PendingRequest {
        self.request(request(head), CollectedBody::Empty)
    }

    fn request(&self, request: Request, body: impl Into<RequestContent>) -> PendingRequest {
        let client = Arc::clone(&request.client_state);
        let websocket =
            handler::requested_handshake(&self.shared, &request.head).expect("a good request");
        let call = handler::submit(&self.shared, &request, body.into(), websocket).expect("room");
        PendingRequest {
            call: Box::pin(call),
            client,
        }
    }

    fn retire(&self) {
        self.shared.dispatch.retire_slot(self.slot, &self.mailbox);
    }

    async fn ended(self) -> DriverEnd {
        within(self.driver).await.unwrap()
    }
}

/// A request whose answer is to come.
struct PendingRequest {
    call: Pin<Box<dyn Future<Output = Result<Reply, Fault>> + Send>>,
    client: Arc<ClientState>,
}

impl PendingRequest {
    async fn answer(self) -> Result<Response, Fault> {
        match within(self.call).await? {
            Reply::Response(response) => Ok(*response),
            other => panic!("{other:?}"),
        }
    }

    async fn response(self) -> Response {
        self.answer().await.expect("an answer")
    }

    async fn fault(self) -> FaultKind {
        self.answer().await.expect_err("a fault").kind
    }

    /// The client leaves, and edge asks once more.
    async fn disconnect(self) {
        self.client.mark_disconnected();
        assert_eq!(self.fault().await, FaultKind::ClientDisconnected);
    }
}

fn request(head: &str) -> Request {
    testing::request(head, PeerAddress::Unix, None)
}

/// All of a body; `Err` when it was cut.
async fn body(response: Response) -> Result<Vec<u8>, FaultKind> {
    match response.body {
        Body::Empty | Body::Omitted(_) => Ok(Vec::new()),
        Body::Bytes(bytes) => Ok(bytes.to_vec()),
        Body::Stream(mut stream) => {
            let mut all = Vec::new();
            while let Some(chunk) = within(poll_fn(|cx| stream.poll_chunk(cx))).await {
                all.extend_from_slice(&chunk.map_err(|fault| fault.kind)?);
            }
            Ok(all)
        }
        other => panic!("{other:?}"),
    }
}

impl FakeWorker {
    /// The next frame.
    async fn next(&mut self) -> Frame {
        within(self.try_next()).await.expect("the channel goes on")
    }

    /// The next frame; `None` at the end of the channel.
    async fn try_next(&mut self) -> Option<Frame> {
        loop {
            if let Some(header) = FrameHeader::parse(&self.read).unwrap() {
                let end = HEADER_LEN + header.payload_len as usize;
                if self.read.len() >= end {
                    let bytes: Vec<u8> = self.read.drain(..end).collect();
                    let (id, rest) = bytes[HEADER_LEN..].split_first_chunk::<4>().unwrap();
                    return Some(Frame {
                        kind: header.kind,
                        flags: header.flags,
                        id: u32::from_le_bytes(*id),
                        rest: rest.to_vec(),
                    });
                }
            }
            let mut buffer = vec![0; 65536];
            match poll_fn(|cx| self.channel.poll_read(cx, &mut buffer)).await {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.read.extend_from_slice(&buffer[..count]),
            }
        }
    }

    /// The next frame, which is a request; gives its stream.
    async fn opened(&mut self) -> u32 {
        let frame = self.next().await;
        assert_eq!(frame.kind, FrameKind::Open, "{frame:?}");
        frame.id
    }

    /// The next frame, which is of that kind and stream.
    async fn expect(&mut self, kind: FrameKind, id: u32) -> Vec<u8> {
        let frame = self.next().await;
        assert_eq!((frame.kind, frame.id), (kind, id), "{frame:?}");
        frame.rest
    }

    async fn write(&self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut out = Vec::new();
        write(&mut out);
        within(self.channel.write_all(&out)).await.unwrap();
    }

    async fn answer(&self, id: u32, body: &[u8]) {
        self.write(|out| {
            reactor_encoder::encode_response(out, FLAG_END, id, 5, &[b"200 OK"], body);
        })
        .await;
    }

    async fn begin(&self, id: u32, strings: &[&[u8]], body: &[u8]) {
        self.write(|out| reactor_encoder::encode_response(out, FLAG_STREAM, id, 5, strings, body))
            .await;
    }

    async fn data(&self, id: u32, bytes: &[u8], is_last: bool) {
        let flags = if is_last { FLAG_END } else { 0 };
        self.write(|out| reactor_encoder::encode_data(out, flags, id, bytes))
            .await;
    }

    /// As a worker that hears of the end of a WebSocket.
    async fn close(&self, id: u32) {
        self.write(|out| reactor_encoder::encode_close(out, id, 1005, ""))
            .await;
    }

    async fn reset(&self, id: u32) {
        self.write(|out| reactor_encoder::encode_reset(out, 0, id, "over"))
            .await;
    }
}

#[test]
fn requests_are_sent_and_answered_in_any_order() {
    on_a_loop(async {
        let mut harness = ChannelHarness::new();
        let asked: Vec<_> = ["/a", "/b", "/c"].map(|path| harness.get(path)).into();
        let mut ids = Vec::new();
        for path in ["/a", "/b", "/c"] {
            let frame = harness.worker.next().await;
            assert_eq!(frame.kind, FrameKind::Open);
            let needle = format!("z\x08raw_paths\x02\0\0\0{path}");
            let is_told = frame
                .rest
                .windows(needle.len())
                .any(|w| w == needle.as_bytes());
            assert!(is_told, "{:?}", String::from_utf8_lossy(&frame.rest));
            ids.push(frame.id);
        }
        for (id, text) in [(ids[2], "c"), (ids[0], "a"), (ids[1], "b")] {
            harness.worker.answer(id, text.as_bytes()).await;
        }
        for (asked, text) in asked.into_iter().zip(["a", "b", "c"]) {
            let response = asked.response().await;
            assert_eq!(response.timing.worker_pid, 7);
            assert_eq!(response.timing.app_time, Duration::from_micros(5));
            assert_eq!(body(response).await.unwrap(), text.as_bytes());
        }
        harness.retire();
        assert_eq!(harness.ended().await, DriverEnd::Retired);
    });
}

#[test]
fn a_full_worker_has_the_next_request_when_one_has_ended() {
    on_a_loop(async {
        let terms = HarnessOptions {
            capacity: 2,
            ..HarnessOptions::default()
        };
        let mut harness = ChannelHarness::with(&terms);
        let asked: Vec<_> = ["/a", "/b", "/c"].map(|path| harness.get(path)).into();
        let first = harness.worker.opened().await;
        let second = harness.worker.opened().await;
        settle().await;
        assert_eq!(harness.shared.dispatch.queue_usage(clock::now()).waiting, 1);
        harness.worker.answer(second, b"b").await;
        let third = harness.worker.opened().await;
        harness.worker.answer(first, b"a").await;
        harness.worker.answer(third, b"c").await;
        for (asked, text) in asked.into_iter().zip([b"a", b"b", b"c"]) {
            assert_eq!(body(asked.response().await).await.unwrap(), text);
        }
        assert_eq!(
            harness
                .shared
                .dispatch
                .queue_usage(clock::now())
                .in_progress,
            0
        );
    });
}

#[test]
fn answers_are_read_wherever_the_bytes_are_cut() {
    on_a_loop(async {
        let mut harness = ChannelHarness::new();
        let asked: Vec<_> = ["/a", "/b", "/c"].map(|path| harness.get(path)).into();
        let mut ids = Vec::new();
        for _ in 0..3 {
            ids.push(harness.worker.opened().await);
        }
        let mut out = Vec::new();
        reactor_encoder::encode_response(
            &mut out,
            FLAG_STREAM,
            ids[1],
            0,
            &[b"201", b"A", b"b"],
            b"o",
        );
        reactor_encoder::encode_response(&mut out, FLAG_END, ids[0], 0, &[b"200"], b"first");
        reactor_encoder::encode_data(&mut out, 0, ids[1], b"n");
        reactor_encoder::encode_reset(&mut out, 0, ids[2], "no \u{e9}");
        reactor_encoder::encode_data(&mut out, FLAG_END, ids[1], b"e");
        for byte in out {
            harness.worker.channel.write_all(&[byte]).await.unwrap();
            loops::yield_now().await;
        }
        let mut asked = asked.into_iter();
        let mut next = || asked.next().unwrap();
        assert_eq!(body(next().response().await).await.unwrap(), b"first");
        let second = next().response().await;
        assert_eq!(second.status.code(), 201);
        assert_eq!(second.fields.get("a"), Some(&b"b"[..]));
        assert_eq!(body(second).await.unwrap(), b"one");
        assert_eq!(next().fault().await, FaultKind::AppRaised);
    });
}

#[test]
fn a_websocket_is_not_agreed_for_other_kinds_and_refused_by_the_rules() {
    let app = shared(&HarnessOptions::default());
    let asks = "Host: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n";
    let head = |fields: &str| request(&format!("GET / HTTP/1.1\r\n{asks}{fields}\r\n")).head;
    let key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let version = "Sec-WebSocket-Version: 13\r\n";
    let good = head(&format!("{key}{version}"));
    assert!(handler::requested_handshake(&app, &good).unwrap().is_some());
    let other = head(&format!("{key}Sec-WebSocket-Version: 8\r\n"));
    match handler::requested_handshake(&app, &other).map_err(|refused| *refused) {
        Err(Ok(Reply::Response(response))) => {
            assert_eq!(response.status.code(), 426);
            let told = response.fields.get("sec-websocket-version");
            assert_eq!(told, Some(&b"13"[..]));
        }
        other => panic!("{other:?}"),
    }
    match handler::requested_handshake(&app, &head(version)).map_err(|refused| *refused) {
        Err(Err(fault)) => assert_eq!(fault.kind, FaultKind::BadRequest),
        other => panic!("{other:?}"),
    }
    let mut config = config::App::new("app", "/".into(), config::AppKind::Wsgi, "main:app");
    config.concurrency = config::Concurrency::Gevent;
    let settings = BufferingSettings::clone(&app.buffering_settings.load());
    let gevent = AppShared::new(&config, DispatchMode::Workers(Dialect::Python), settings);
    assert_eq!(
        gevent.model.get(),
        Some(WorkerModel::Reactor(
            crate::shared::RequestEncoding::Environ
        ))
    );
    assert!(
        handler::requested_handshake(&gevent, &good)
            .unwrap()
            .is_none()
    );
    let plain = request("GET / HTTP/1.1\r\nHost: a\r\n\r\n").head;
    assert!(
        handler::requested_handshake(&app, &plain)
            .unwrap()
            .is_none()
    );
}

/// What an idle stream costs here, beside its spool or session.
#[test]
fn a_stream_is_small() {
    let entry = size_of::<StreamEntry>();
    let socket =
        size_of::<websocket::ChannelWebSocket>() + size_of::<websocket_pipe::WebSocketPipe>();
    let session = websocket_session::IDLE_SESSION_BYTES;
    assert!(
        entry <= 128 && socket <= 320 && session <= 480,
        "{entry} {socket} {session}"
    );
}
