//! Notices a client that leaves, or closes its sending side, while the next piece of a response is
//! awaited.
//!
//! Made for each response that is not out at once, and polled whenever `send` waits for the body.
//! Bytes that the client still sends are read first: pipelined requests are kept, others discarded.
//!
//! # Invariants
//! - A socket wakes one reader only: nothing is read here while the request's body has the reader,
//!   which notices a client that leaves itself.

use std::task::{Context, Poll};
use std::time::Duration;

use penstock_runtime::{Stream, buffers};

use super::body_reader::ReaderSlot;
use super::receive_buffer::ReceiveBuffer;

/// Bytes of pipelined requests kept during a request; beyond it they stay in the socket.
pub(crate) const MAX_PIPELINED_BYTES: usize = 64 * 1024;

/// Time from a client's end to the first byte that probes it; each next one waits twice as long.
/// Most responses come sooner, and in one piece.
pub(crate) const FIRST_PROBE_DELAY: Duration = Duration::from_millis(250);

/// The client's side of a connection.
#[derive(Debug)]
pub(crate) struct ClientWatch<'c> {
    /// The client closed its sending side: a field of the connection.
    is_half_closed: &'c mut bool,
    /// The place where the reading side comes back, while it is lent.
    reader_slot: Option<ReaderSlot>,
    /// Keeps bytes behind the request, up to [`MAX_PIPELINED_BYTES`]. `None` behind a body that was
    /// not read to its end: their meaning is unknown.
    pipelined: Option<&'c mut ReceiveBuffer>,
}

impl<'c> ClientWatch<'c> {
    /// Watches once the reader, if it is lent, is back.
    pub(crate) fn new(
        reader_slot: Option<ReaderSlot>,
        pipelined: Option<&'c mut ReceiveBuffer>,
        is_half_closed: &'c mut bool,
    ) -> Self {
        Self {
            is_half_closed,
            reader_slot,
            pipelined,
        }
    }

    /// Ready when the client closed its sending side or the connection broke.
    pub(crate) fn poll_half_closed(&mut self, cx: &mut Context<'_>, stream: &Stream) -> Poll<()> {
        if *self.is_half_closed {
            return Poll::Ready(());
        }
        if let Some(home) = &self.reader_slot {
            if home.poll_returned(cx).is_pending() {
                return Poll::Pending;
            }
            self.reader_slot = None;
        }
        let has_room = |kept: &&mut ReceiveBuffer| kept.len() < MAX_PIPELINED_BYTES;
        while self.pipelined.as_ref().is_none_or(has_room) {
            let read = buffers::with_receive_buffer(|buffer| {
                let read = stream.poll_read(cx, buffer);
                if let (Poll::Ready(Ok(count)), Some(kept)) = (&read, &mut self.pipelined) {
                    kept.push(&buffer[..*count]);
                }
                read
            });
            match read {
                Poll::Ready(Ok(0) | Err(_)) => {
                    *self.is_half_closed = true;
                    return Poll::Ready(());
                }
                Poll::Ready(Ok(_)) => {}
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Pending
    }
}
