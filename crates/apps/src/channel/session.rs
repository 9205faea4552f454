//! One WebSocket's client, from the 101 to the close: RFC 6455 on its connection, messages through the
//! pipe.
//!
//! Takes the connection over from edge and stays on its loop. What must stay true: frames are never
//! mixed; a client that takes nothing, or of which nothing is heard, is dropped in time; whoever closes
//! first, both sides are told, and the other's close is waited for only so long; a message that does not
//! come to its end, and an application that takes none, are waited for only so long, too; an idle session
//! owns no buffer.

use std::io::IoSlice;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use penstock_exchange::{AddressPrefix, Takeover, TakeoverFuture};
use penstock_http::websocket::{
    DeflateParams, MessageDecoder, Opcode, WebSocketError, WebSocketEvent, code, compress,
    compressed_frame_head, encode_close_frame, encode_control_frame, message_frame_head,
};
use penstock_runtime::{LazyDeadline, Stream, buffers, clock};

use super::bounds::{Begun, MessageLimits};
use super::pipe::{Given, Message, Pipe};
use super::socket::cost;
use crate::app::AppShared;

/// Messages up to this size are gathered into one write.
const GATHER_BYTES: usize = 16 * 1024;

/// Bytes of pongs that may wait; RFC 6455 §5.5.3 lets the others go.
const PONG_BYTES: usize = 4096;

/// Reads in a row before other connections get their turn.
const TURN: usize = 16;

/// How patient a session is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// Of silence before a ping; after another without a sound the client is gone.
    ping: Duration,
    /// For the client to take some of what waits for it.
    send: Duration,
    /// For the client's close after ours.
    close: Duration,
    /// For the application to make room, while the client is not read.
    room: Duration,
    /// The same, once the client has closed its connection.
    gone: Duration,
}

static PATIENCE: Patience = Patience {
    ping: Duration::from_secs(30),
    send: Duration::from_secs(60),
    close: Duration::from_secs(5),
    room: Duration::from_secs(60),
    gone: Duration::from_secs(10),
};

/// How often a client that is not read is looked at whether it is there.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// An accepted WebSocket until edge hands its connection over.
#[derive(Debug)]
pub(super) struct Agreed {
    /// `None` once it was handed over.
    pipe: Option<Arc<Pipe>>,
    deflate: Option<DeflateParams>,
    patience: &'static Patience,
    app: Arc<AppShared>,
    /// What of its client's address counts.
    prefix: Option<AddressPrefix>,
}

impl Agreed {
    pub(super) fn new(
        pipe: Arc<Pipe>,
        deflate: Option<DeflateParams>,
        app: &Arc<AppShared>,
    ) -> Self {
        Self {
            pipe: Some(pipe),
            deflate,
            patience: &PATIENCE,
            app: Arc::clone(app),
            prefix: None,
        }
    }

    /// Counts what it holds for this client, too.
    pub(super) fn of_client(mut self, prefix: Option<AddressPrefix>) -> Self {
        self.prefix = prefix;
        self
    }

    #[cfg(test)]
    pub(super) fn with_patience(mut self, ping: Duration, close: Duration, room: Duration) -> Self {
        // A test's few, for as long as it runs.
        self.patience = Box::leak(Box::new(Patience {
            ping,
            close,
            send: ping,
            room,
            gone: close,
        }));
        self
    }
}

impl Takeover for Agreed {
    fn take_over(mut self: Box<Self>, client: Arc<Stream>, early: Vec<u8>) -> TakeoverFuture {
        let patience = self.patience;
        let session = self.pipe.take().map(|pipe| {
            let mut session = Session::new(client, pipe, &self.app, patience);
            session.prefix = self.prefix;
            if let Some(deflate) = self.deflate {
                session.compress_with(deflate);
            }
            session.receive(&early);
            session
        });
        Box::pin(async move {
            if let Some(mut session) = session {
                std::future::poll_fn(|cx| session.poll(cx)).await;
            }
        })
    }
}

impl Drop for Agreed {
    fn drop(&mut self) {
        // The client left before the head was out.
        if let Some(pipe) = self.pipe.take() {
            pipe.close_by_client(code::ABNORMAL_CLOSURE, "");
        }
    }
}

/// Where a session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Open,
    /// Our close is on its way, and the client's is waited for until then.
    Closing(Instant),
    /// The client broke the protocol: over on this side once all is written (RFC 6455 §7.1.7).
    Failed,
    /// The end was sent to a client that broke the protocol. What it had on its way is read and
    /// dropped for a while: a connection that is closed with bytes unread is reset, and our close lost.
    Lingering,
    /// Both have closed, or there is nothing to wait for: over once all is written.
    Closed,
}

#[derive(Debug)]
struct Session {
    client: Arc<Stream>,
    pipe: Arc<Pipe>,
    decoder: MessageDecoder,
    compression: Option<Box<Compression>>,
    stage: Stage,
    patience: &'static Patience,
    /// Frames, written up to `out_at`; then a long message, written up to `body_at`.
    out: Vec<u8>,
    out_at: usize,
    body: Vec<u8>,
    body_at: usize,
    /// Pongs, and a close behind all that was begun.
    control: Vec<u8>,
    /// Of the messages in `out` and `body`.
    cost: u32,
    /// Of those that were written, not told to the pipe.
    credit: u32,
    app: Arc<AppShared>,
    /// What of its client's address counts.
    prefix: Option<AddressPrefix>,
    limits: Arc<MessageLimits>,
    /// Bytes that it is counted with among all that hold unfinished messages.
    held: usize,
    /// The message of which a part has come.
    begun: Option<Begun>,
    heard_at: Instant,
    is_pinged: bool,
    /// Since when the client is not read, for want of room.
    paused_at: Option<Instant>,
    /// When something was last written, while something waits.
    wrote_at: Instant,
    /// What waits did not fit into the connection: progress is a sign of life then.
    is_blocked: bool,
    deadline: LazyDeadline,
}

/// What a session has besides when compression was agreed.
#[derive(Debug)]
struct Compression {
    deflate: DeflateParams,
    /// Read and not decoded: a few bytes may unfold to a long message, so that no more of them are
    /// decoded than the pipe has room for.
    unread: Vec<u8>,
}

/// What an idle one costs, beside its connection and its timer.
#[cfg(test)]
pub(super) const SESSION_BYTES: usize = size_of::<Session>();

impl Session {
    fn new(
        client: Arc<Stream>,
        pipe: Arc<Pipe>,
        app: &Arc<AppShared>,
        patience: &'static Patience,
    ) -> Self {
        let now = clock::now();
        let limits = app.messages.load_full();
        Self {
            client,
            pipe,
            decoder: MessageDecoder::new(limits.message_bytes),
            compression: None,
            stage: Stage::Open,
            patience,
            out: Vec::new(),
            out_at: 0,
            body: Vec::new(),
            body_at: 0,
            control: Vec::new(),
            cost: 0,
            credit: 0,
            app: Arc::clone(app),
            prefix: None,
            limits,
            held: 0,
            begun: None,
            heard_at: now,
            is_pinged: false,
            paused_at: None,
            wrote_at: now,
            is_blocked: false,
            deadline: LazyDeadline::new(now + patience.ping),
        }
    }

    fn compress_with(&mut self, deflate: DeflateParams) {
        self.decoder = MessageDecoder::new(self.limits.message_bytes).with_deflate();
        let unread = Vec::new();
        self.compression = Some(Box::new(Compression { deflate, unread }));
    }

    /// Ready when the connection is over.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if !self.poll_read(cx) || !self.poll_write(cx) {
                self.pipe.close_by_client(code::ABNORMAL_CLOSURE, "");
                self.stage = Stage::Closed;
                return Poll::Ready(());
            }
            match self.stage {
                Stage::Closed if !self.has_output() => {
                    self.client.shutdown_write();
                    return Poll::Ready(());
                }
                Stage::Failed if !self.has_output() => {
                    self.client.shutdown_write();
                    self.stage = Stage::Lingering;
                    continue;
                }
                _ => {}
            }
            match self.poll_clocks(cx) {
                Poll::Ready(true) => {}
                Poll::Ready(false) => {
                    self.pipe.close_by_client(code::ABNORMAL_CLOSURE, "");
                    self.stage = Stage::Closed;
                    self.client.abort();
                    return Poll::Ready(());
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Reads what there is, while the pipe has room; false when the connection broke or ended.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> bool {
        for _ in 0..TURN {
            if matches!(self.stage, Stage::Closed | Stage::Failed) {
                return true;
            }
            let is_full = self.stage == Stage::Open && self.pipe.is_full(cx);
            if is_full {
                self.paused_at.get_or_insert_with(clock::now);
                return true;
            }
            if self.paused_at.take().is_some() {
                // What was not read was not heard.
                self.heard_at = clock::now();
                self.begun = None;
                self.note_begun();
            }
            if let Some(unread) = self.take_unread() {
                self.receive(&unread);
                continue;
            }
            let client = Arc::clone(&self.client);
            let read = buffers::with_receive_buffer(|buffer| match client.poll_read(cx, buffer) {
                Poll::Pending => None,
                Poll::Ready(Ok(0) | Err(_)) => Some(false),
                Poll::Ready(Ok(count)) => {
                    self.receive(&buffer[..count]);
                    Some(true)
                }
            });
            match read {
                None => return true,
                Some(true) => {}
                Some(false) => return false,
            }
        }
        cx.waker().wake_by_ref();
        true
    }

    /// What was read before the pipe had room for all that it could unfold to.
    fn take_unread(&mut self) -> Option<Vec<u8>> {
        let unread = &mut self.compression.as_mut()?.unread;
        (!unread.is_empty()).then(|| std::mem::take(unread))
    }

    /// Takes what the client sent.
    fn receive(&mut self, mut bytes: &[u8]) {
        self.heard_at = clock::now();
        self.is_pinged = false;
        while matches!(self.stage, Stage::Open | Stage::Closing(_)) {
            if let Some(compression) = &mut self.compression
                && self.stage == Stage::Open
                && self.pipe.is_crowded()
            {
                compression.unread = bytes.to_vec();
                break;
            }
            match self.decoder.decode(&mut bytes) {
                Ok(Some(event)) => self.take(event),
                Ok(None) => break,
                Err(error) => {
                    self.refuse(error);
                    break;
                }
            }
        }
        self.note_begun();
    }

    /// Counts what is held of a message that has not come whole.
    fn note_begun(&mut self) {
        let now = clock::now();
        self.begun = self.decoder.partial_message_bytes().map(|bytes| {
            let mut begun = self.begun.unwrap_or_else(|| Begun::new(now, bytes));
            begun.grow(now, bytes);
            begun
        });
        let (before, held) = (self.held, self.decoder.buffered_bytes());
        self.held = held;
        let change = (before, held);
        if self.app.held.change(self.prefix, change, &self.limits) {
            return;
        }
        match self.stage {
            Stage::Open => self.close(code::TRY_AGAIN_LATER, "too many unfinished messages"),
            _ => self.stage = Stage::Closed,
        }
    }

    fn take(&mut self, event: WebSocketEvent) {
        match event {
            // Behind our close nothing counts but theirs.
            WebSocketEvent::Message { .. } if self.stage != Stage::Open => {}
            WebSocketEvent::Message { is_text, payload } => {
                self.begun = None;
                self.pipe.send_to_worker(Message { is_text, payload });
            }
            WebSocketEvent::Ping(payload) => {
                if self.control.len() < PONG_BYTES && self.stage == Stage::Open {
                    encode_control_frame(&mut self.control, Opcode::Pong, &payload);
                }
            }
            WebSocketEvent::Pong => {}
            WebSocketEvent::Close { code, reason } => {
                self.pipe.close_by_client(code, &reason);
                if self.stage == Stage::Open {
                    // RFC 6455 §5.5.1: its own code comes back.
                    encode_close_frame(&mut self.control, code, "");
                }
                self.stage = Stage::Closed;
            }
        }
    }

    /// Fails the connection: a client whose bytes cannot be followed any more has no close that could
    /// be waited for.
    fn refuse(&mut self, error: WebSocketError) {
        if self.stage == Stage::Open {
            self.close(error.code(), &error.to_string());
        }
        self.stage = Stage::Failed;
        // Nothing is made of what follows.
        self.decoder = MessageDecoder::new(0);
    }

    /// Closes from this side, for something that the client did.
    fn close(&mut self, code: u16, reason: &str) {
        self.pipe.close_by_client(code, reason);
        self.begin_close(code, reason);
    }

    fn begin_close(&mut self, code: u16, reason: &str) {
        encode_close_frame(&mut self.control, code, reason);
        self.stage = Stage::Closing(clock::now() + self.patience.close);
    }

    /// Writes what there is; false when the connection broke.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> bool {
        for _ in 0..TURN {
            if !self.has_begun() {
                self.fill(cx);
            }
            if !self.has_begun() {
                return true;
            }
            let slices = [
                IoSlice::new(&self.out[self.out_at..]),
                IoSlice::new(&self.body[self.body_at..]),
            ];
            let many = if self.body.is_empty() { 1 } else { 2 };
            match self.client.poll_write(cx, &slices[..many]) {
                Poll::Pending => {
                    self.is_blocked = true;
                    return true;
                }
                Poll::Ready(Err(_)) => return false,
                Poll::Ready(Ok(written)) => self.count(written),
            }
        }
        cx.waker().wake_by_ref();
        true
    }

    /// Frames that were begun.
    fn has_begun(&self) -> bool {
        !self.out.is_empty() || !self.body.is_empty()
    }

    fn has_output(&self) -> bool {
        self.has_begun() || !self.control.is_empty()
    }

    /// Makes frames of what waits: pongs first, then messages, then the close.
    fn fill(&mut self, cx: &mut Context<'_>) {
        self.out = std::mem::take(&mut self.control);
        if self.stage == Stage::Open {
            loop {
                let credit = std::mem::take(&mut self.credit);
                match self.pipe.take_for_client(cx, credit) {
                    Given::Message(message) => self.frame(message),
                    Given::Close(code, reason) => {
                        encode_close_frame(&mut self.out, code, &reason);
                        self.stage = Stage::Closing(clock::now() + self.patience.close);
                        break;
                    }
                    Given::Nothing => break,
                }
                if !self.body.is_empty() || self.out.len() >= GATHER_BYTES {
                    break;
                }
            }
        }
        self.wrote_at = clock::now();
    }

    fn frame(&mut self, message: Message) {
        let Message { is_text, payload } = message;
        self.cost += cost(payload.len());
        let compression = self.compression.as_ref();
        let covers = compression.is_some_and(|with| with.deflate.should_compress(payload.len()));
        let (head, payload) = match covers.then(|| compress(&payload)).flatten() {
            Some(short) => (compressed_frame_head(is_text, short.len()), short),
            None => (message_frame_head(is_text, payload.len()), payload),
        };
        self.out.extend_from_slice(head.as_bytes());
        if payload.len() > GATHER_BYTES {
            self.body = payload;
        } else {
            self.out.extend_from_slice(&payload);
        }
    }

    fn count(&mut self, written: usize) {
        let of_out = written.min(self.out.len() - self.out_at);
        self.out_at += of_out;
        self.body_at += written - of_out;
        self.wrote_at = clock::now();
        if std::mem::take(&mut self.is_blocked) {
            self.heard_at = self.wrote_at;
        }
        if self.out_at == self.out.len() && self.body_at == self.body.len() {
            (self.out, self.body) = (Vec::new(), Vec::new());
            (self.out_at, self.body_at) = (0, 0);
            self.credit += std::mem::take(&mut self.cost);
        }
    }

    /// Ready with true when something is to be done, with false when the client is given up.
    fn poll_clocks(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let sends = self.has_begun().then(|| self.wrote_at + self.patience.send);
        let silent = match (self.stage, self.is_pinged) {
            (Stage::Open, _) if self.paused_at.is_some() || self.is_blocked => None,
            (Stage::Open, false) => Some(self.heard_at + self.patience.ping),
            (Stage::Open, true) => Some(self.heard_at + 2 * self.patience.ping),
            (Stage::Closing(until), _) => Some(until),
            (Stage::Closed | Stage::Failed | Stage::Lingering, _) => {
                Some(self.wrote_at + self.patience.close)
            }
        };
        let (room, message) = match (self.stage, self.paused_at) {
            (Stage::Open, Some(since)) => (Some(self.room_until(since)), None),
            (Stage::Open, None) => (None, self.begun.map(|begun| begun.deadline(&self.limits))),
            _ => (None, None),
        };
        let look = room.map(|_| clock::now() + LOOK_EVERY);
        let times = [sends, silent, room, message, look];
        let Some(at) = times.into_iter().flatten().min() else {
            return Poll::Pending;
        };
        self.deadline.set(at);
        std::task::ready!(self.deadline.poll(cx));
        if sends == Some(at) {
            return Poll::Ready(false);
        }
        if room == Some(at) {
            if self.client.is_ended() {
                self.pipe.cut_by_client(code::ABNORMAL_CLOSURE, "");
                return Poll::Ready(false);
            }
            let reason = "the application takes no messages";
            self.pipe.cut_by_client(code::POLICY_VIOLATION, reason);
            self.begin_close(code::POLICY_VIOLATION, reason);
            return Poll::Ready(true);
        }
        if look == Some(at) {
            return Poll::Ready(true);
        }
        if message == Some(at) {
            self.close(code::POLICY_VIOLATION, "a message took too long");
            return Poll::Ready(true);
        }
        if silent == Some(at) && self.stage == Stage::Open && !self.is_pinged {
            self.is_pinged = true;
            encode_control_frame(&mut self.control, Opcode::Ping, b"");
            return Poll::Ready(true);
        }
        Poll::Ready(false)
    }

    /// How long the application may leave the client unread that it has paused at `since`.
    fn room_until(&self, since: Instant) -> Instant {
        since
            + match self.client.is_ended() {
                true => self.patience.gone,
                false => self.patience.room,
            }
    }
}

impl Drop for Session {
    /// The server's drain is over, or its loop ends: the client is told, if there is room for a word.
    fn drop(&mut self) {
        self.app
            .held
            .change(self.prefix, (self.held, 0), &self.limits);
        if self.stage == Stage::Open {
            self.pipe.close_by_client(code::ABNORMAL_CLOSURE, "");
            if !self.has_begun() {
                let mut frame = Vec::new();
                encode_close_frame(&mut frame, code::GOING_AWAY, "the server stops");
                // Nobody waits for it any more.
                let _ = self.client.try_write(&[IoSlice::new(&frame)]);
            }
        }
    }
}
