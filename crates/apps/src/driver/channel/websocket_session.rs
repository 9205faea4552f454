//! The client of one WebSocket, from the 101 to the close: RFC 6455 on its connection, messages
//! through the pipe.
//!
//! It owns the connection after the upgrade and stays on its loop.
//!
//! # Invariants
//! - Frames are never mixed.
//! - A client that reads nothing, or is silent, is dropped in time.
//! - Both sides learn of a close, and each wait for the other's close has a deadline. So have
//!   incomplete messages, and an application that reads none.
//! - An idle session owns no buffer.

use std::io::IoSlice;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use penstock_exchange::{AddressPrefix, Takeover, TakeoverFuture};
use penstock_http::websocket::{
    DeflateParams, MessageDecoder, Opcode, WebSocketError, WebSocketEvent, close_code,
    compress_message, compressed_frame_head, encode_close_frame, encode_control_frame,
    message_frame_head,
};
use penstock_runtime::{ByteStream, LazyDeadline, buffers, clock};

use super::websocket::window_cost;
use super::websocket_pipe::{WebSocketMessage, WebSocketPipe, WebSocketPipeItem};
use crate::shared::AppShared;
use crate::websocket_message_limits::{PartialMessage, WebSocketMessageLimits};

/// Messages up to this size are gathered into one write.
const MAX_GATHERED_BYTES: usize = 16 * 1024;

/// Bytes of pongs that may wait; RFC 6455 §5.5.3 allows others to be dropped.
const MAX_PONG_BYTES: usize = 4096;

const READS_PER_TURN: usize = 16;

#[derive(Debug, Clone, Copy)]
pub(super) struct SessionTimeouts {
    /// Silence before a ping; after as long again the client is dropped.
    ping: Duration,
    /// For the client to read some of the waiting bytes.
    send: Duration,
    /// For the client's close after the server's.
    close: Duration,
    /// For the application to make room, while the client is not read.
    backpressure: Duration,
    /// The same, after the client has closed its connection.
    closed_backpressure: Duration,
}

static TIMEOUTS: SessionTimeouts = SessionTimeouts {
    ping: Duration::from_secs(30),
    send: Duration::from_secs(60),
    close: Duration::from_secs(5),
    backpressure: Duration::from_secs(60),
    closed_backpressure: Duration::from_secs(10),
};

/// How often the presence of an unread client is checked.
const PRESENCE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// An accepted WebSocket, until edge hands its connection over.
#[derive(Debug)]
pub(super) struct AcceptedWebSocket {
    /// `None` after that.
    pipe: Option<Arc<WebSocketPipe>>,
    deflate: Option<DeflateParams>,
    timeouts: &'static SessionTimeouts,
    app: Arc<AppShared>,
    /// The client_prefix of the client's address, for its limits.
    client_prefix: Option<AddressPrefix>,
}

impl AcceptedWebSocket {
    pub(super) fn new(
        pipe: Arc<WebSocketPipe>,
        deflate: Option<DeflateParams>,
        app: &Arc<AppShared>,
    ) -> Self {
        Self {
            pipe: Some(pipe),
            deflate,
            timeouts: &TIMEOUTS,
            app: Arc::clone(app),
            client_prefix: None,
        }
    }

    /// Counts its bytes for this client, too.
    pub(super) fn with_client_prefix(mut self, client_prefix: Option<AddressPrefix>) -> Self {
        self.client_prefix = client_prefix;
        self
    }

    #[cfg(test)]
    pub(super) fn with_timeouts(mut self, ping: Duration, close: Duration, room: Duration) -> Self {
        // A few of a test, for as long as it runs.
        self.timeouts = Box::leak(Box::new(SessionTimeouts {
            ping,
            close,
            send: ping,
            backpressure: room,
            closed_backpressure: close,
        }));
        self
    }
}

impl Takeover for AcceptedWebSocket {
    fn take_over(
        mut self: Box<Self>,
        client: Arc<dyn ByteStream>,
        early: Vec<u8>,
    ) -> TakeoverFuture {
        let timeouts = self.timeouts;
        let session = self.pipe.take().map(|pipe| {
            let mut session = WebSocketSession::new(client, pipe, &self.app, timeouts);
            session.client_prefix = self.client_prefix;
            if let Some(deflate) = self.deflate {
                session.compress_with(deflate);
            }
            session.receive_bytes(&early);
            session
        });
        Box::pin(async move {
            if let Some(mut session) = session {
                std::future::poll_fn(|cx| session.poll_done(cx)).await;
            }
        })
    }
}

impl Drop for AcceptedWebSocket {
    fn drop(&mut self) {
        // The client left before the head was sent.
        if let Some(pipe) = self.pipe.take() {
            pipe.close_by_client(close_code::ABNORMAL_CLOSURE, "");
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SessionStage {
    Open,
    /// The server's close is sent; the client has until then for its own.
    Closing(Instant),
    /// The client broke the protocol: the server's side ends once all is written (RFC 6455 §7.1.7).
    Failed,
    /// The close was sent to a client that broke the protocol. Its bytes are read and dropped for a
    /// while: closing a connection with unread bytes would reset it, and lose the close.
    Lingering,
    /// Both have closed, or nothing is left to wait for: ends once all is written.
    Closed,
}

#[derive(Debug)]
struct WebSocketSession {
    client: Arc<dyn ByteStream>,
    pipe: Arc<WebSocketPipe>,
    decoder: MessageDecoder,
    compression: Option<Box<Compression>>,
    stage: SessionStage,
    timeouts: &'static SessionTimeouts,
    /// Frames, written up to `write_offset`; then a long message, written up to
    /// `long_payload_offset`.
    write_buffer: Vec<u8>,
    write_offset: usize,
    long_payload: Vec<u8>,
    long_payload_offset: usize,
    /// Pongs, and a close, behind all that was begun.
    control_frames: Vec<u8>,
    /// Cost of the messages that are being written.
    written_cost: u32,
    /// Cost of the messages that were written, not reported to the pipe yet.
    freed_window: u32,
    app: Arc<AppShared>,
    /// The client_prefix of the client's address, for its limits.
    client_prefix: Option<AddressPrefix>,
    message_limits: Arc<WebSocketMessageLimits>,
    /// Bytes that are counted for it among all unfinished messages.
    held_bytes: usize,
    /// The message of which a part has come.
    partial_message: Option<PartialMessage>,
    last_heard_at: Instant,
    is_pinged: bool,
    /// Since when the client is not read, for lack of room.
    read_paused_at: Option<Instant>,
    /// When bytes were last written, while some wait.
    last_write_at: Instant,
    /// The connection is full: progress then counts as a sign of life.
    is_blocked: bool,
    deadline: LazyDeadline,
}

/// The state of compression, if that was agreed.
#[derive(Debug)]
struct Compression {
    deflate: DeflateParams,
    /// Read and not decoded: a few bytes may unfold to a long message, so no more of them are
    /// decoded than the pipe has room for.
    unread: Vec<u8>,
}

/// Size of an idle session, without its connection and timer.
#[cfg(test)]
pub(super) const IDLE_SESSION_BYTES: usize = size_of::<WebSocketSession>();

impl WebSocketSession {
    fn new(
        client: Arc<dyn ByteStream>,
        pipe: Arc<WebSocketPipe>,
        app: &Arc<AppShared>,
        timeouts: &'static SessionTimeouts,
    ) -> Self {
        let now = clock::now();
        let limits = app.message_limits.load_full();
        Self {
            client,
            pipe,
            decoder: MessageDecoder::new(limits.max_message_bytes),
            compression: None,
            stage: SessionStage::Open,
            timeouts,
            write_buffer: Vec::new(),
            write_offset: 0,
            long_payload: Vec::new(),
            long_payload_offset: 0,
            control_frames: Vec::new(),
            written_cost: 0,
            freed_window: 0,
            app: Arc::clone(app),
            client_prefix: None,
            message_limits: limits,
            held_bytes: 0,
            partial_message: None,
            last_heard_at: now,
            is_pinged: false,
            read_paused_at: None,
            last_write_at: now,
            is_blocked: false,
            deadline: LazyDeadline::new(now + timeouts.ping),
        }
    }

    fn compress_with(&mut self, deflate: DeflateParams) {
        self.decoder = MessageDecoder::new(self.message_limits.max_message_bytes).with_deflate();
        let unread = Vec::new();
        self.compression = Some(Box::new(Compression { deflate, unread }));
    }

    fn poll_done(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if !self.poll_read(cx) || !self.poll_write(cx) {
                self.pipe.close_by_client(close_code::ABNORMAL_CLOSURE, "");
                self.stage = SessionStage::Closed;
                return Poll::Ready(());
            }
            match self.stage {
                SessionStage::Closed if !self.has_output() => {
                    self.client.shutdown_write();
                    return Poll::Ready(());
                }
                SessionStage::Failed if !self.has_output() => {
                    self.client.shutdown_write();
                    self.stage = SessionStage::Lingering;
                    continue;
                }
                _ => {}
            }
            match self.poll_deadlines(cx) {
                Poll::Ready(true) => {}
                Poll::Ready(false) => {
                    self.pipe.close_by_client(close_code::ABNORMAL_CLOSURE, "");
                    self.stage = SessionStage::Closed;
                    self.client.abort();
                    return Poll::Ready(());
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Reads while the pipe has room; false when the connection broke or ended.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> bool {
        for _ in 0..READS_PER_TURN {
            if matches!(self.stage, SessionStage::Closed | SessionStage::Failed) {
                return true;
            }
            let is_full = self.stage == SessionStage::Open && self.pipe.poll_is_full(cx);
            if is_full {
                self.read_paused_at.get_or_insert_with(clock::now);
                return true;
            }
            if self.read_paused_at.take().is_some() {
                // The client may have sent bytes that were not read.
                self.last_heard_at = clock::now();
                self.partial_message = None;
                self.track_partial_message();
            }
            if let Some(unread) = self.take_unread() {
                self.receive_bytes(&unread);
                continue;
            }
            let client = Arc::clone(&self.client);
            let read = buffers::with_receive_buffer(|buffer| match client.poll_read(cx, buffer) {
                Poll::Pending => None,
                Poll::Ready(Ok(0) | Err(_)) => Some(false),
                Poll::Ready(Ok(count)) => {
                    self.receive_bytes(&buffer[..count]);
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

    /// Bytes that were read before the pipe had room for all that they unfold to.
    fn take_unread(&mut self) -> Option<Vec<u8>> {
        let unread = &mut self.compression.as_mut()?.unread;
        (!unread.is_empty()).then(|| std::mem::take(unread))
    }

    fn receive_bytes(&mut self, mut bytes: &[u8]) {
        self.last_heard_at = clock::now();
        self.is_pinged = false;
        while matches!(self.stage, SessionStage::Open | SessionStage::Closing(_)) {
            if let Some(compression) = &mut self.compression
                && self.stage == SessionStage::Open
                && self.pipe.is_full_now()
            {
                compression.unread = bytes.to_vec();
                break;
            }
            match self.decoder.decode(&mut bytes) {
                Ok(Some(event)) => self.handle_client_event(event),
                Ok(None) => break,
                Err(error) => {
                    self.fail_connection(error);
                    break;
                }
            }
        }
        self.track_partial_message();
    }

    fn track_partial_message(&mut self) {
        let now = clock::now();
        self.partial_message = self.decoder.partial_message_bytes().map(|bytes| {
            let mut begun = self
                .partial_message
                .unwrap_or_else(|| PartialMessage::new(now, bytes));
            begun.record_bytes(now, bytes);
            begun
        });
        let (before, held) = (self.held_bytes, self.decoder.buffered_bytes());
        self.held_bytes = held;
        let change = (before, held);
        if self.app.held_message_bytes.record_change(
            self.client_prefix,
            change,
            &self.message_limits,
        ) {
            return;
        }
        match self.stage {
            SessionStage::Open => {
                self.close_client(close_code::TRY_AGAIN_LATER, "too many unfinished messages");
            }
            _ => self.stage = SessionStage::Closed,
        }
    }

    fn handle_client_event(&mut self, event: WebSocketEvent) {
        match event {
            // After the server's close only the client's close counts.
            WebSocketEvent::Message { .. } if self.stage != SessionStage::Open => {}
            WebSocketEvent::Message { is_text, payload } => {
                self.partial_message = None;
                self.pipe
                    .send_to_worker(WebSocketMessage { is_text, payload });
            }
            WebSocketEvent::Ping(payload) => {
                if self.control_frames.len() < MAX_PONG_BYTES && self.stage == SessionStage::Open {
                    encode_control_frame(&mut self.control_frames, Opcode::Pong, &payload);
                }
            }
            WebSocketEvent::Pong => {}
            WebSocketEvent::Close { code, reason } => {
                self.pipe.close_by_client(code, &reason);
                if self.stage == SessionStage::Open {
                    // RFC 6455 §5.5.1: the client's own code is returned.
                    encode_close_frame(&mut self.control_frames, code, "");
                }
                self.stage = SessionStage::Closed;
            }
        }
    }

    /// Fails the connection. A client whose bytes cannot be followed has no close to wait for.
    fn fail_connection(&mut self, error: WebSocketError) {
        if self.stage == SessionStage::Open {
            self.close_client(error.close_code(), &error.to_string());
        }
        self.stage = SessionStage::Failed;
        // Later bytes are dropped.
        self.decoder = MessageDecoder::new(0);
    }

    /// Closes from the server's side, because of the client.
    fn close_client(&mut self, code: u16, reason: &str) {
        self.pipe.close_by_client(code, reason);
        self.begin_close(code, reason);
    }

    fn begin_close(&mut self, code: u16, reason: &str) {
        encode_close_frame(&mut self.control_frames, code, reason);
        self.stage = SessionStage::Closing(clock::now() + self.timeouts.close);
    }

    /// Writes the waiting bytes; false when the connection broke.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> bool {
        for _ in 0..READS_PER_TURN {
            if !self.has_begun_frames() {
                self.fill_write_buffer(cx);
            }
            if !self.has_begun_frames() {
                return true;
            }
            let slices = [
                IoSlice::new(&self.write_buffer[self.write_offset..]),
                IoSlice::new(&self.long_payload[self.long_payload_offset..]),
            ];
            let many = if self.long_payload.is_empty() { 1 } else { 2 };
            match self.client.poll_write(cx, &slices[..many]) {
                Poll::Pending => {
                    self.is_blocked = true;
                    return true;
                }
                Poll::Ready(Err(_)) => return false,
                Poll::Ready(Ok(written)) => self.mark_written(written),
            }
        }
        cx.waker().wake_by_ref();
        true
    }

    fn has_begun_frames(&self) -> bool {
        !self.write_buffer.is_empty() || !self.long_payload.is_empty()
    }

    fn has_output(&self) -> bool {
        self.has_begun_frames() || !self.control_frames.is_empty()
    }

    /// Encodes waiting frames: pongs first, then messages, then the close.
    fn fill_write_buffer(&mut self, cx: &mut Context<'_>) {
        self.write_buffer = std::mem::take(&mut self.control_frames);
        if self.stage == SessionStage::Open {
            loop {
                let credit = std::mem::take(&mut self.freed_window);
                match self.pipe.take_for_client(cx, credit) {
                    WebSocketPipeItem::Message(message) => self.encode_message(message),
                    WebSocketPipeItem::Close(code, reason) => {
                        encode_close_frame(&mut self.write_buffer, code, &reason);
                        self.stage = SessionStage::Closing(clock::now() + self.timeouts.close);
                        break;
                    }
                    WebSocketPipeItem::Nothing => break,
                }
                if !self.long_payload.is_empty() || self.write_buffer.len() >= MAX_GATHERED_BYTES {
                    break;
                }
            }
        }
        self.last_write_at = clock::now();
    }

    fn encode_message(&mut self, message: WebSocketMessage) {
        let WebSocketMessage { is_text, payload } = message;
        self.written_cost += window_cost(payload.len());
        let compression = self.compression.as_ref();
        let covers = compression.is_some_and(|with| with.deflate.should_compress(payload.len()));
        let (head, payload) = match covers.then(|| compress_message(&payload)).flatten() {
            Some(short) => (compressed_frame_head(is_text, short.len()), short),
            None => (message_frame_head(is_text, payload.len()), payload),
        };
        self.write_buffer.extend_from_slice(head.as_bytes());
        if payload.len() > MAX_GATHERED_BYTES {
            self.long_payload = payload;
        } else {
            self.write_buffer.extend_from_slice(&payload);
        }
    }

    fn mark_written(&mut self, written: usize) {
        let of_out = written.min(self.write_buffer.len() - self.write_offset);
        self.write_offset += of_out;
        self.long_payload_offset += written - of_out;
        self.last_write_at = clock::now();
        if std::mem::take(&mut self.is_blocked) {
            self.last_heard_at = self.last_write_at;
        }
        if self.write_offset == self.write_buffer.len()
            && self.long_payload_offset == self.long_payload.len()
        {
            (self.write_buffer, self.long_payload) = (Vec::new(), Vec::new());
            (self.write_offset, self.long_payload_offset) = (0, 0);
            self.freed_window += std::mem::take(&mut self.written_cost);
        }
    }

    /// Ready with true when something is to be done, with false when the client is dropped.
    fn poll_deadlines(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let sends = self
            .has_begun_frames()
            .then(|| self.last_write_at + self.timeouts.send);
        let silent = match (self.stage, self.is_pinged) {
            (SessionStage::Open, _) if self.read_paused_at.is_some() || self.is_blocked => None,
            (SessionStage::Open, false) => Some(self.last_heard_at + self.timeouts.ping),
            (SessionStage::Open, true) => Some(self.last_heard_at + 2 * self.timeouts.ping),
            (SessionStage::Closing(until), _) => Some(until),
            (SessionStage::Closed | SessionStage::Failed | SessionStage::Lingering, _) => {
                Some(self.last_write_at + self.timeouts.close)
            }
        };
        let (room, message) = match (self.stage, self.read_paused_at) {
            (SessionStage::Open, Some(since)) => (Some(self.backpressure_deadline(since)), None),
            (SessionStage::Open, None) => (
                None,
                self.partial_message
                    .map(|begun| begun.deadline(&self.message_limits)),
            ),
            _ => (None, None),
        };
        let look = room.map(|_| clock::now() + PRESENCE_CHECK_INTERVAL);
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
                self.pipe.abort_by_client(close_code::ABNORMAL_CLOSURE, "");
                return Poll::Ready(false);
            }
            let reason = "the application takes no messages";
            self.pipe
                .abort_by_client(close_code::POLICY_VIOLATION, reason);
            self.begin_close(close_code::POLICY_VIOLATION, reason);
            return Poll::Ready(true);
        }
        if look == Some(at) {
            return Poll::Ready(true);
        }
        if message == Some(at) {
            self.close_client(close_code::POLICY_VIOLATION, "a message took too long");
            return Poll::Ready(true);
        }
        if silent == Some(at) && self.stage == SessionStage::Open && !self.is_pinged {
            self.is_pinged = true;
            encode_control_frame(&mut self.control_frames, Opcode::Ping, b"");
            return Poll::Ready(true);
        }
        Poll::Ready(false)
    }

    /// How long the application may leave a client unread that was paused at `since`.
    fn backpressure_deadline(&self, since: Instant) -> Instant {
        since
            + match self.client.is_ended() {
                true => self.timeouts.closed_backpressure,
                false => self.timeouts.backpressure,
            }
    }
}

impl Drop for WebSocketSession {
    /// The drain is over, or the loop ends: the client gets a close if its connection has room.
    fn drop(&mut self) {
        self.app.held_message_bytes.record_change(
            self.client_prefix,
            (self.held_bytes, 0),
            &self.message_limits,
        );
        if self.stage == SessionStage::Open {
            self.pipe.close_by_client(close_code::ABNORMAL_CLOSURE, "");
            if !self.has_begun_frames() {
                let mut frame = Vec::new();
                encode_close_frame(&mut frame, close_code::GOING_AWAY, "the server stops");
                // No reply is awaited.
                let _ = self.client.try_write(&[IoSlice::new(&frame)]);
            }
        }
    }
}
