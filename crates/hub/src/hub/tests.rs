//! The hub over real sockets: streams are socketpairs, loops are real, time passes fifty times as
//! fast.
//!
//! [`Rig`] stands for the server: it makes a hub, answers requests with held streams the way edge
//! does, and counts the places. What a client gets is read from its end of the pair, with a
//! deadline.

mod bus;
mod concurrent_clients;
mod gaps;
mod histories;
mod limits;
mod long_polls;
mod ordering;
mod presence;
mod replaced_histories;
mod sealed_streams;
mod slow_subscribers;
mod stream_ends;
mod streams;
mod transfers;

use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use penstock_exchange::{
    Body, HeldConnection, HeldConnectionCounter, HeldConnectionGuard, HeldFraming,
};
use penstock_http::{BodyDecoder, BodyFraming};
use penstock_runtime::{EventLoops, LoopHandle, clock, loops};
use penstock_sys::net;

use super::*;
use crate::{
    Content, History, NextServer, PublishedEvent, StreamAction, StreamForm, StreamKeepAlive,
    Subscription,
};

/// Within so long everything happens that is to happen.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// A tick of a shard, which stands for a quarter of a second.
const TICK: Duration = Duration::from_millis(5);

/// A hub on loops of its own.
struct HubHarness {
    hub: Hub,
    front: Arc<CountingConnectionCounter>,
    loops: Option<EventLoops>,
}

/// Counts the places that are taken.
#[derive(Debug, Default)]
struct CountingConnectionCounter(AtomicI64);

impl HeldConnectionCounter for CountingConnectionCounter {
    fn release_held_connection(&self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A client's end of a held stream.
struct Client {
    socket: UnixStream,
    read: Vec<u8>,
    /// The session of a sealed stream.
    opener: Option<sealed_streams::RecordOpener>,
}

impl HubHarness {
    fn new(settings: Settings) -> Self {
        Self::with_loops(settings, 2)
    }

    fn with_loops(settings: Settings, count: usize) -> Self {
        let loops = EventLoops::start(count).unwrap();
        let hub = Hub::start_with_ticks(settings, loops.handles(), TickClock::new(TICK)).unwrap();
        Self {
            hub,
            front: Arc::default(),
            loops: Some(loops),
        }
    }

    fn handles(&self) -> &[LoopHandle] {
        self.loops.as_ref().unwrap().handles()
    }

    /// Holds a stream in chunks on the first loop; it is there when this returns.
    fn hold(&self, stream: HeldStream) -> Client {
        let before = self.hub.snapshot().counters.opened;
        let client = self.hand_over(stream, HeldFraming::Chunked, b"", 0);
        self.until("the stream is held", |hub| {
            hub.snapshot().counters.opened > before
        });
        client
    }

    /// Hands a stream over on a loop, as edge does.
    fn hand_over(
        &self,
        stream: HeldStream,
        framing: HeldFraming,
        early: &'static [u8],
        on: usize,
    ) -> Client {
        let body = self.hub.stream_body(stream).unwrap();
        self.hand_over_body(body, framing, early, on)
    }

    fn hand_over_body(
        &self,
        body: Body,
        framing: HeldFraming,
        early: &'static [u8],
        on: usize,
    ) -> Client {
        let (ours, theirs) = net::worker_socket_pair().unwrap();
        self.hand_over_with(body, ours, framing, early, on);
        Client::new(theirs)
    }

    /// Hands this socket over on the first loop.
    fn hand_over_socket(&self, body: Body, ours: OwnedFd) {
        self.hand_over_with(body, ours, HeldFraming::Chunked, b"", 0);
    }

    fn hand_over_with(
        &self,
        body: Body,
        ours: impl Into<HeldConnection>,
        framing: HeldFraming,
        early: &'static [u8],
        on: usize,
    ) {
        let client = ours.into();
        let Body::Hold(hold) = body else {
            panic!("a stream is held");
        };
        self.front.0.fetch_add(1, Ordering::SeqCst);
        let place = HeldConnectionGuard::new(self.front.clone());
        self.handles()[on].spawn(async move {
            hold.hold(client, early.len(), framing, place);
        });
    }

    /// Waits until something is so.
    fn until(&self, what: &str, is_so: impl Fn(&Hub) -> bool) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        while !is_so(&self.hub) {
            let counts = self.hub.snapshot();
            assert!(Instant::now() < deadline, "not in time: {what}: {counts:?}");
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }

    /// Runs a future on the second loop and waits for its outcome.
    fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        let (say, said) = tokio::sync::oneshot::channel();
        self.handles()[self.handles().len() - 1].spawn(async move {
            let _ = say.send(work.await);
        });
        let outcome = loops::block_on(clock::timeout(TEST_TIMEOUT, said));
        outcome
            .unwrap()
            .expect("it is done in time")
            .expect("it is done")
    }
}

impl Drop for HubHarness {
    fn drop(&mut self) {
        if let Some(loops) = self.loops.take() {
            loops.stop();
        }
    }
}

impl Client {
    fn new(socket: OwnedFd) -> Self {
        let socket = UnixStream::from(socket);
        socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        Self {
            socket,
            read: Vec::new(),
            opener: None,
        }
    }

    /// Reads some more; false at the end.
    fn read_some(&mut self) -> bool {
        let mut buffer = [0; 16 << 10];
        match self.socket.read(&mut buffer) {
            Ok(count) => {
                match &mut self.opener {
                    None => self.read.extend_from_slice(&buffer[..count]),
                    Some(opener) => opener.open(&buffer[..count], &mut self.read),
                }
                count > 0
            }
            Err(e) if e.kind() == ErrorKind::ConnectionReset => false,
            Err(e) => panic!("{e}; so far: {:?}", String::from_utf8_lossy(&self.read)),
        }
    }

    /// Reads until so much has come, and takes it.
    fn take(&mut self, bytes: usize) -> String {
        while self.read.len() < bytes {
            let so_far = self.read.len();
            assert!(self.read_some(), "the end came after {so_far} of {bytes}");
        }
        let rest = self.read.split_off(bytes);
        String::from_utf8(std::mem::replace(&mut self.read, rest)).unwrap()
    }

    fn expect(&mut self, text: &str) {
        assert_eq!(self.take(text.len()), text);
    }

    /// The chunk that comes next.
    fn chunk(&mut self) -> String {
        let end = loop {
            if let Some(end) = self.read.iter().position(|&byte| byte == b'\n') {
                break end;
            }
            let so_far = String::from_utf8_lossy(&self.read).into_owned();
            assert!(self.read_some(), "the end came after {so_far:?}");
        };
        let head = self.take(end + 1);
        let len = usize::from_str_radix(head.trim_end(), 16).unwrap();
        let content = self.take(len);
        self.expect("\r\n");
        content
    }

    /// The content of all chunks up to the last, behind which nothing comes.
    fn rest(&mut self) -> String {
        while self.read_some() {}
        let mut decoder = BodyDecoder::new(BodyFraming::Chunked);
        let (mut content, mut at) = (Vec::new(), 0);
        while !decoder.is_done() {
            let decoded = decoder.decode(&self.read[at..]).unwrap();
            let data = &self.read[at..][decoded.content.clone()];
            content.extend_from_slice(data);
            at += decoded.consumed;
            assert!(
                decoded.consumed > 0,
                "cut: {:?}",
                String::from_utf8_lossy(&self.read[at..])
            );
        }
        assert_eq!(at, self.read.len(), "nothing comes behind the end");
        String::from_utf8(content).unwrap()
    }

    /// Waits for the end, whatever comes before it.
    fn expect_end(&mut self) {
        while self.read_some() {}
    }

    fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }
}

/// What nearly every test has: little is bounded, nothing is kept.
fn settings() -> Settings {
    Settings {
        history: History {
            max_messages: 0,
            ..History::default()
        },
        ..Settings::default()
    }
}

fn with_history(count: usize) -> Settings {
    Settings {
        history: History {
            max_messages: count,
            ..History::default()
        },
        ..Settings::default()
    }
}

/// A stream of bytes from these channels.
fn stream(channels: &[&str]) -> HeldStream {
    let channels = channels.iter();
    HeldStream {
        subscriptions: channels.map(|&channel| subscription(channel)).collect(),
        message_format: StreamForm::Bytes,
        ..HeldStream::default()
    }
}

fn subscription(channel: &str) -> Subscription {
    Subscription {
        channel: channel.into(),
        ..Subscription::default()
    }
}

/// Bytes for the streams of a channel.
fn message(channel: &str, text: &str) -> Publication {
    Publication {
        channel: channel.into(),
        stream: Some(StreamAction::Send(Content {
            bytes: Bytes::copy_from_slice(text.as_bytes()),
            filters: Vec::new(),
        })),
        ..Publication::default()
    }
}

/// The same with an id.
fn message_with_id(channel: &str, id: &str, text: &str) -> Publication {
    Publication {
        id: Some(id.into()),
        ..message(channel, text)
    }
}

fn event(channel: &str, id: &str, data: &str) -> Publication {
    Publication {
        channel: channel.into(),
        id: Some(id.into()),
        event: Some(PublishedEvent {
            data: data.into(),
            ..PublishedEvent::default()
        }),
        ..Publication::default()
    }
}
