//! Who leaves, or closes its sending side, while a response is sent whose next piece is not there yet.
//!
//! Made by `connection` for each response that is not out at once, asked by `send` whenever it waits for
//! the body. The client that closes or breaks its side is noticed behind whatever it still sent: pipelined
//! requests are kept, what nobody can make sense of is thrown away. What must stay true: a socket wakes one
//! reader only, so nothing is read here while somebody else reads the request's body; that one hears of a
//! client that leaves.

use std::task::{Context, Poll};

use penstock_runtime::{Stream, buffers};

use super::body_reader::ReaderSlot;
use super::receive_buffer::ReceiveBuffer;

/// Bytes of pipelined requests kept while one is in progress; beyond it the socket holds them.
pub(crate) const MAX_PIPELINED_BYTES: usize = 64 * 1024;

/// The client's side of a connection.
#[derive(Debug)]
pub(crate) struct ClientWatch<'c> {
    /// The client closed its sending side: the connection's own note of it.
    is_half_closed: &'c mut bool,
    /// Where the reading side comes back to, while somebody else has it.
    reader_slot: Option<ReaderSlot>,
    pipelined: PipelinedBytes<'c>,
}

/// What becomes of the bytes behind the request.
#[derive(Debug)]
pub(crate) enum PipelinedBytes<'c> {
    /// They are requests, up to [`MAX_PIPELINED_BYTES`].
    Keep(&'c mut ReceiveBuffer),
    /// They belong to a body that was not read to its end: nobody knows what follows it.
    Discard,
}

impl<'c> ClientWatch<'c> {
    /// Watches once `reader`, if somebody has it, is back.
    pub(crate) fn new(
        reader: Option<ReaderSlot>,
        behind: PipelinedBytes<'c>,
        has_ended: &'c mut bool,
    ) -> Self {
        Self {
            is_half_closed: has_ended,
            reader_slot: reader,
            pipelined: behind,
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
        while self.pipelined.has_room() {
            let read = buffers::with_receive_buffer(|buffer| {
                let read = stream.poll_read(cx, buffer);
                if let Poll::Ready(Ok(count)) = &read {
                    self.pipelined.accept(&buffer[..*count]);
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

impl PipelinedBytes<'_> {
    fn has_room(&self) -> bool {
        match self {
            Self::Keep(pending) => pending.len() < MAX_PIPELINED_BYTES,
            Self::Discard => true,
        }
    }

    fn accept(&mut self, bytes: &[u8]) {
        if let Self::Keep(pending) = self {
            pending.push(bytes);
        }
    }
}
