//! A session as the layer of a stream: it ties a [`LayerSession`] to a socket.
//!
//! # Invariants
//! - An idle session owns no buffer: records are opened and sealed in the loop's own. What is kept is
//!   a part of a record, plaintext that its reader had no room for, and output that the socket has not
//!   taken. After a second it owns no expanded key either ([`IdleKeys`]).
//! - An end of the socket without a close_notify is an error: a body that ends so is cut
//!   (RFC 8446 §6.1). No end is announced behind a write that its writer gave up.
//! - A peer that sends many small records gets no more of the loop's time than another.

mod hold;
mod idle_keys;
mod layer_session;
mod output;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use penstock_exchange::TlsInfo;
use penstock_runtime::{LayerSocket, StreamLayer, loops};

pub use hold::hold;
pub(crate) use layer_session::LayerSession;

use crate::certificates::ConnectionIdentity;
use crate::session::MAX_SEALED_BYTES;

use self::idle_keys::IdleKeys;

use self::output::Output;

/// Room for received ciphertext: more than three whole records.
pub(crate) const RECEIVE_BYTES: usize = 64 * 1024;

/// Most bytes of an incomplete message that are kept; a record has at most 16,645 (RFC 8446 §5.2).
pub(crate) const MAX_INCOMPLETE_BYTES: usize = RECEIVE_BYTES / 2;

/// Reads in a row without plaintext before other connections get their turn.
const MAX_READS_PER_TURN: usize = 16;

/// Records that take as long as a read of the socket: an update of the keys takes a microsecond or
/// two, a record of one byte a fifth of that.
const RECORDS_PER_READ: usize = 2;

/// Behind a read with more records than this the next one is short ([`SHORT_READ_BYTES`]). Records
/// of full size are four in a read.
const MANY_RECORDS: usize = 64;

/// Small records in so many bytes take a few hundred microseconds.
const SHORT_READ_BYTES: usize = 4 * 1024;

/// The loop's buffers for ciphertext.
pub(crate) struct RecordBuffers {
    pub(crate) received: Box<[u8]>,
    plaintext: Vec<u8>,
    sealed: Vec<u8>,
}

thread_local! {
    static BUFFERS: RefCell<RecordBuffers> = RefCell::new(RecordBuffers {
        received: vec![0; RECEIVE_BYTES].into_boxed_slice(),
        plaintext: Vec::new(),
        sealed: Vec::new(),
    });
}

pub(crate) fn with_buffers<R>(use_them: impl FnOnce(&mut RecordBuffers) -> R) -> R {
    BUFFERS.with_borrow_mut(use_them)
}

/// One session over one socket.
pub(crate) struct TlsLayer<S> {
    /// Held for one call, never across an await.
    state: Mutex<LayerState<S>>,
    pub(crate) facts: SessionFacts,
}

/// What the handshake of a session has settled.
#[derive(Debug)]
pub(crate) struct SessionFacts {
    pub(crate) info: Arc<TlsInfo>,
    /// What the session proved; `None` for one with a server.
    pub(crate) identity: Option<ConnectionIdentity>,
    /// As [`crate::channel_binding`].
    pub(crate) channel_binding: Option<Box<[u8; 32]>>,
}

struct LayerState<S> {
    session: S,
    /// The start of a record.
    incomplete: Vec<u8>,
    /// Opened, and not yet read.
    plaintext: Vec<u8>,
    output: Output,
    end: SessionEnd,
    /// How the peer broke the protocol, for the read that finds it.
    violation: Option<io::Error>,
    idle_keys: IdleKeys,
    /// The last read had more than [`MANY_RECORDS`].
    has_small_records: bool,
}

/// How far the peer's side of a session is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SessionEnd {
    Open,
    /// The peer has announced its end.
    Closed,
    /// The socket ended or failed, or the peer broke the protocol.
    Failed(io::ErrorKind),
    /// Cut by this side: no end is announced.
    Aborted,
}

impl<S: LayerSession> TlsLayer<S> {
    /// The layer of a session behind its handshake; `received` came behind that.
    pub(crate) fn new(session: S, mut received: Vec<u8>, facts: SessionFacts) -> Self {
        let mut state = LayerState {
            session,
            incomplete: Vec::new(),
            plaintext: Vec::new(),
            output: Output::default(),
            end: SessionEnd::Open,
            violation: None,
            idle_keys: IdleKeys::default(),
            has_small_records: false,
        };
        let mut plaintext = Vec::new();
        state.open(&mut received, &mut |bytes| {
            plaintext.extend_from_slice(bytes);
        });
        state.plaintext = plaintext;
        Self {
            state: Mutex::new(state),
            facts,
        }
    }
}

impl<S> TlsLayer<S> {
    /// Bytes that its buffers have.
    pub(crate) fn buffer_bytes(&self) -> usize {
        let state = self.state.lock();
        let output = &state.output.pending;
        state.incomplete.capacity() + state.plaintext.capacity() + output.capacity()
    }
}

impl<S: LayerSession> LayerState<S> {
    /// Receives once, and passes plaintext to `sink`; ready when that has changed anything.
    fn poll_receive(
        &mut self,
        socket: LayerSocket<'_>,
        cx: Option<&mut Context<'_>>,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Poll<()> {
        with_buffers(|buffers| {
            let kept = self.incomplete.len();
            let room = match self.has_small_records {
                true => SHORT_READ_BYTES,
                false => RECEIVE_BYTES - kept,
            };
            let buffer = &mut buffers.received[..kept + room];
            let read = match cx {
                Some(cx) => ready!(socket.poll_read(cx, &mut buffer[kept..])),
                None => socket.try_read(&mut buffer[kept..]),
            };
            let count = match read {
                Ok(0) => {
                    self.end = SessionEnd::Failed(io::ErrorKind::UnexpectedEof);
                    return Poll::Ready(());
                }
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => return Poll::Ready(()),
                Err(error) => {
                    self.end = SessionEnd::Failed(error.kind());
                    return Poll::Ready(());
                }
            };
            buffer[..kept].copy_from_slice(&self.incomplete);
            let records = count_records(&buffer[..kept + count]);
            self.has_small_records = records > MANY_RECORDS;
            loops::charge_task(u32::try_from(records / RECORDS_PER_READ).unwrap_or(u32::MAX));
            self.open(&mut buffer[..kept + count], sink);
            let _ = self.output.flush(socket);
            Poll::Ready(())
        })
    }

    fn open(&mut self, records: &mut [u8], sink: &mut dyn FnMut(&[u8])) {
        self.idle_keys.record_activity();
        match self.session.open(records, &mut self.output.pending, sink) {
            Ok(used) if records.len() - used > MAX_INCOMPLETE_BYTES => {
                self.incomplete = Vec::new();
                self.end = SessionEnd::Failed(io::ErrorKind::InvalidData);
            }
            Ok(used) => {
                self.incomplete = records[used..].to_vec();
                if self.session.has_peer_closed() {
                    self.end = SessionEnd::Closed;
                }
            }
            Err(error) => {
                log::debug!("tls: connection ended: {error}");
                self.incomplete = Vec::new();
                self.end = SessionEnd::Failed(io::ErrorKind::InvalidData);
                self.violation = Some(error);
            }
        }
    }

    /// Releases the expanded keys of an idle session. `cx` is of a task that waits for the peer.
    fn release_idle_keys(&mut self, cx: &mut Context<'_>) {
        if self.session.has_expanded_keys() && self.idle_keys.poll_idle(cx).is_ready() {
            self.session.release_keys();
        }
    }

    /// Moves plaintext that was opened before into `buffer`.
    fn take_plaintext(&mut self, buffer: &mut [u8]) -> usize {
        let count = self.plaintext.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.plaintext[..count]);
        if count == self.plaintext.len() {
            self.plaintext = Vec::new();
        } else {
            self.plaintext.drain(..count);
        }
        count
    }

    /// The result of a read that finds the session ended.
    fn read_end(&mut self) -> Option<io::Result<usize>> {
        Some(match (self.end, self.violation.take()) {
            (SessionEnd::Open, _) => return None,
            (SessionEnd::Closed, _) => Ok(0),
            (SessionEnd::Failed(_), Some(violation)) => Err(violation),
            (SessionEnd::Failed(kind @ io::ErrorKind::UnexpectedEof), None) => {
                Err(io::Error::new(kind, "closed without a TLS close_notify"))
            }
            (SessionEnd::Failed(kind), None) => Err(kind.into()),
            (SessionEnd::Aborted, _) => Err(io::ErrorKind::ConnectionAborted.into()),
        })
    }

    /// Receives until there is plaintext, kept in `plaintext`, or an end.
    fn poll_fill(&mut self, socket: LayerSocket<'_>, cx: Option<&mut Context<'_>>) -> Poll<()> {
        let mut cx = cx;
        for _ in 0..MAX_READS_PER_TURN {
            if !self.plaintext.is_empty() || self.end != SessionEnd::Open {
                return Poll::Ready(());
            }
            let mut opened = Vec::new();
            let received = self.poll_receive(socket, cx.as_deref_mut(), &mut |bytes| {
                opened.extend_from_slice(bytes);
            });
            self.plaintext = opened;
            if let (Poll::Pending, Some(cx)) = (received, cx.as_deref_mut()) {
                self.release_idle_keys(cx);
            }
            ready!(received);
        }
        if let Some(cx) = cx {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Seals and sends a prefix of `buffers`.
    fn write(&mut self, socket: LayerSocket<'_>, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.end {
            SessionEnd::Open | SessionEnd::Closed => {}
            SessionEnd::Failed(kind) => return Err(kind.into()),
            SessionEnd::Aborted => return Err(io::ErrorKind::ConnectionAborted.into()),
        }
        self.output.flush(socket)?;
        if buffers.iter().all(|buffer| buffer.is_empty()) {
            return Ok(0);
        }
        let repeated = std::mem::take(&mut self.output.unreported);
        with_buffers(|scratch| {
            let plaintext = gather(buffers, repeated, &mut scratch.plaintext);
            if plaintext.is_empty() {
                return Ok(repeated);
            }
            self.idle_keys.record_activity();
            let sealed = self
                .session
                .seal(plaintext, &mut self.incomplete, &mut scratch.sealed);
            let len = sealed.map_err(|error| {
                log::debug!("tls: {error}");
                self.end = SessionEnd::Failed(io::ErrorKind::BrokenPipe);
                io::Error::from(io::ErrorKind::BrokenPipe)
            })?;
            let accepted = repeated + plaintext.len();
            let is_sent = self.output.send(socket, &scratch.sealed[..len])?;
            if is_sent {
                return Ok(accepted);
            }
            self.output.unreported = 1;
            match accepted - 1 {
                0 => Err(io::ErrorKind::WouldBlock.into()),
                reported => Ok(reported),
            }
        })
    }

    /// Seals and sends a close_notify, if none was sent and nothing was cut.
    fn announce_end(&mut self, socket: LayerSocket<'_>) {
        let is_over = matches!(self.end, SessionEnd::Failed(_) | SessionEnd::Aborted);
        let is_cut = self.output.unreported > 0 || self.output.failure.is_some();
        if is_over || is_cut {
            return;
        }
        // Not the loop's buffer: a stream may be dropped on any thread.
        let mut sealed = Vec::new();
        let len = self.session.seal_close(&mut self.incomplete, &mut sealed);
        if len > 0 {
            // A peer that is gone does not miss it.
            let _ = self.output.send(socket, &sealed[..len]);
        }
    }

    /// Announces the end, and closes the socket's sending side behind it.
    fn end_output(&mut self, socket: LayerSocket<'_>) {
        self.announce_end(socket);
        self.output.ends_behind = true;
    }

    /// Sends what is pending, for a reader. A writer repeats what it has left; behind the end there
    /// is none, and the reader waits for room.
    fn flush_before_read(&mut self, socket: LayerSocket<'_>, cx: &mut Context<'_>) {
        if self.output.ends_behind {
            let _ = self.output.poll_flush(socket, cx);
        } else {
            let _ = self.output.flush(socket);
        }
    }
}

/// The records that begin in `bytes`, by the lengths in their headers (RFC 8446 §5.1).
fn count_records(bytes: &[u8]) -> usize {
    let (mut rest, mut count) = (bytes, 0);
    while let [_, _, _, high, low, behind @ ..] = rest {
        count += 1;
        let len = usize::from(u16::from_be_bytes([*high, *low]));
        rest = behind.get(len..).unwrap_or_default();
    }
    count
}

/// The plaintext of `buffers` behind its first `skipped` bytes, at most [`MAX_SEALED_BYTES`]; copied
/// to `scratch` where it is in several pieces.
fn gather<'a>(buffers: &'a [IoSlice<'_>], skipped: usize, scratch: &'a mut Vec<u8>) -> &'a [u8] {
    if let [one] = buffers {
        let rest = one.get(skipped..).unwrap_or_default();
        return &rest[..rest.len().min(MAX_SEALED_BYTES)];
    }
    scratch.clear();
    let mut skipped = skipped;
    for buffer in buffers {
        let rest = buffer.get(skipped..).unwrap_or_default();
        skipped = skipped.saturating_sub(buffer.len());
        let room = MAX_SEALED_BYTES - scratch.len();
        scratch.extend_from_slice(&rest[..rest.len().min(room)]);
    }
    scratch
}

impl<S: LayerSession> StreamLayer for TlsLayer<S> {
    fn poll_read(
        &self,
        socket: LayerSocket<'_>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.state.lock();
        let state = &mut *state;
        state.flush_before_read(socket, cx);
        for _ in 0..MAX_READS_PER_TURN {
            if !state.plaintext.is_empty() {
                return Poll::Ready(Ok(state.take_plaintext(buffer)));
            }
            if let Some(end) = state.read_end() {
                return Poll::Ready(end);
            }
            let (mut filled, mut rest) = (0, Vec::new());
            let received = state.poll_receive(socket, Some(cx), &mut |bytes| {
                let count = bytes.len().min(buffer.len() - filled);
                buffer[filled..filled + count].copy_from_slice(&bytes[..count]);
                filled += count;
                rest.extend_from_slice(&bytes[count..]);
            });
            state.plaintext = rest;
            if received.is_pending() {
                state.release_idle_keys(cx);
                return Poll::Pending;
            }
            if filled > 0 {
                return Poll::Ready(Ok(filled));
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn try_write(&self, socket: LayerSocket<'_>, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        self.state.lock().write(socket, buffers)
    }

    fn poll_peer_activity(&self, socket: LayerSocket<'_>, cx: &mut Context<'_>) -> Poll<bool> {
        let mut state = self.state.lock();
        ready!(state.poll_fill(socket, Some(cx)));
        Poll::Ready(state.plaintext.is_empty())
    }

    fn is_open(&self, socket: LayerSocket<'_>) -> bool {
        let mut state = self.state.lock();
        let _ = state.poll_fill(socket, None);
        state.plaintext.is_empty() && state.end == SessionEnd::Open
    }

    fn has_unread(&self) -> bool {
        let state = self.state.lock();
        !state.plaintext.is_empty() || state.end != SessionEnd::Open
    }

    fn pending_bytes(&self) -> u64 {
        self.state.lock().output.pending.len() as u64
    }

    fn shutdown_write(&self, socket: LayerSocket<'_>) {
        let mut state = self.state.lock();
        state.end_output(socket);
        let _ = state.output.flush(socket);
    }

    fn poll_shutdown_write(&self, socket: LayerSocket<'_>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        state.end_output(socket);
        state.output.poll_flush(socket, cx)
    }

    fn abort(&self) {
        self.state.lock().end = SessionEnd::Aborted;
    }

    fn close(&self, socket: LayerSocket<'_>) {
        let mut state = self.state.lock();
        state.announce_end(socket);
        let _ = state.output.flush(socket);
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

impl<S> std::fmt::Debug for TlsLayer<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsLayer")
            .field("info", &self.facts.info)
            .finish_non_exhaustive()
    }
}
