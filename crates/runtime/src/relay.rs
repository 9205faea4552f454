//! Copies bytes both ways between two streams: upgrades, TCP listeners, and connections that an
//! application has taken over.
//!
//! Bytes go through the loop's shared buffer; only what the other side does not accept is kept.
//!
//! # Invariants
//! - An idle relay owns no buffer.
//! - Each direction ends by itself (half-close), and the relay with both.
//! - A client that leaves after its end of stream is noticed, also when nothing is sent to it.
//! - A side that accepts nothing stops the other from being read.

use std::io::IoSlice;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::{ByteStream, LazyDeadline, buffers, clock};

/// Copies until both sides have ended, one breaks, or nothing moved for `idle`. Bytes that were
/// read before are sent first: `to_server` and `to_client`.
pub async fn relay(
    client: &dyn ByteStream,
    server: &dyn ByteStream,
    to_server: Vec<u8>,
    to_client: Vec<u8>,
    idle: Duration,
) {
    let mut up = RelayDirection::new(to_server);
    let mut down = RelayDirection::new(to_client);
    let mut deadline = LazyDeadline::new(clock::now() + idle);
    let (mut was_ending, mut is_probed) = (false, false);
    std::future::poll_fn(|cx| {
        let (Some(sent_up), Some(sent_down)) = (
            up.poll_copy(cx, client, server),
            down.poll_copy(cx, server, client),
        ) else {
            // The other side must not take a truncated stream for complete.
            client.abort();
            server.abort();
            return Poll::Ready(());
        };
        if up.is_finished && down.is_finished {
            return Poll::Ready(());
        }
        if up.is_finished && !down.is_finished {
            if !std::mem::replace(&mut is_probed, true) {
                client.probe_peer();
            }
            // The client is not read any more.
            if client.poll_broken(cx).is_ready() {
                client.abort();
                server.abort();
                return Poll::Ready(());
            }
        }
        // Bytes for a side that refuses them are read and discarded only so that its last response
        // is not lost to a reset.
        let is_ending = up.is_refused && down.is_finished || down.is_refused && up.is_finished;
        if is_ending && !std::mem::replace(&mut was_ending, true) {
            deadline.set(clock::now() + LINGER_TIMEOUT);
        } else if !is_ending && (sent_up || sent_down) {
            deadline.set(clock::now() + idle);
        }
        deadline.poll(cx)
    })
    .await;
}

/// How long bytes are discarded at the end.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);

/// Pieces copied in a row before other connections get their turn.
const MAX_PIECES_PER_TURN: usize = 16;

#[derive(Debug)]
struct RelayDirection {
    /// Read and not yet accepted by the other side.
    pending: Vec<u8>,
    is_ended: bool,
    is_finished: bool,
    /// The other side accepts no more; its own bytes may still be on their way back.
    is_refused: bool,
}

impl RelayDirection {
    fn new(pending: Vec<u8>) -> Self {
        Self {
            pending,
            is_ended: false,
            is_finished: false,
            is_refused: false,
        }
    }

    /// Copies available bytes; `None` when a side broke, else whether anything moved.
    fn poll_copy(
        &mut self,
        cx: &mut Context<'_>,
        from: &dyn ByteStream,
        to: &dyn ByteStream,
    ) -> Option<bool> {
        let mut moved = false;
        for _ in 0..MAX_PIECES_PER_TURN {
            match self.poll_piece(cx, from, to) {
                Poll::Ready(Some(true)) => moved = true,
                Poll::Ready(Some(false)) | Poll::Pending => return Some(moved),
                Poll::Ready(None) => return None,
            }
        }
        cx.waker().wake_by_ref();
        Some(moved)
    }

    /// Copies one piece; ready with `Some(false)` when this direction is finished, with `None` when
    /// it broke.
    fn poll_piece(
        &mut self,
        cx: &mut Context<'_>,
        from: &dyn ByteStream,
        to: &dyn ByteStream,
    ) -> Poll<Option<bool>> {
        if self.is_finished {
            return Poll::Ready(Some(false));
        }
        if !self.pending.is_empty() {
            let Ok(written) = ready!(to.poll_write(cx, &[IoSlice::new(&self.pending)])) else {
                return self.record_refused();
            };
            self.pending.drain(..written);
            if self.pending.is_empty() {
                // An idle tunnel owns no buffer.
                self.pending = Vec::new();
            }
            return Poll::Ready(Some(true));
        }
        if self.is_ended {
            ready!(to.poll_shutdown_write(cx));
            self.is_finished = true;
            return Poll::Ready(Some(true));
        }
        buffers::with_receive_buffer(|buffer| {
            let Ok(count) = ready!(from.poll_read(cx, buffer)) else {
                return Poll::Ready(None);
            };
            if count == 0 {
                self.is_ended = true;
                return Poll::Ready(Some(true));
            }
            if self.is_refused {
                return Poll::Ready(Some(true));
            }
            let written = match to.poll_write(cx, &[IoSlice::new(&buffer[..count])]) {
                Poll::Ready(Ok(written)) => written,
                Poll::Ready(Err(_)) => return self.record_refused(),
                Poll::Pending => 0,
            };
            self.pending.extend_from_slice(&buffer[written..count]);
            Poll::Ready(Some(true))
        })
    }

    fn record_refused(&mut self) -> Poll<Option<bool>> {
        self.pending = Vec::new();
        self.is_refused = true;
        Poll::Ready(Some(true))
    }
}
