//! Who leaves, or closes its sending side, while a response is sent whose next piece is not there yet.
//!
//! Made by `connection` for each response that is not out at once, asked by `send` whenever it waits for
//! the body. The client that closes or breaks its side is noticed behind whatever it still sent: pipelined
//! requests are kept, what nobody can make sense of is thrown away. What must stay true: a socket wakes one
//! reader only, so nothing is read here while somebody else reads the request's body; that one hears of a
//! client that leaves.

use std::task::{Context, Poll};

use penstock_runtime::{Stream, buffers};

use crate::incoming::Home;
use crate::received::Received;

/// Bytes of pipelined requests kept while one is in progress; beyond it the socket holds them.
pub(crate) const PIPELINE_BYTES: usize = 64 * 1024;

/// The client's side of a connection.
#[derive(Debug)]
pub(crate) struct Watch<'c> {
    /// The client closed its sending side: the connection's own note of it.
    has_ended: &'c mut bool,
    /// Where the reading side comes back to, while somebody else has it.
    reader: Option<Home>,
    behind: Behind<'c>,
}

/// What becomes of the bytes behind the request.
#[derive(Debug)]
pub(crate) enum Behind<'c> {
    /// They are requests, up to [`PIPELINE_BYTES`].
    Kept(&'c mut Received),
    /// They belong to a body that was not read to its end: nobody knows what follows it.
    Discarded,
}

impl<'c> Watch<'c> {
    /// Watches once `reader`, if somebody has it, is back.
    pub(crate) fn new(reader: Option<Home>, behind: Behind<'c>, has_ended: &'c mut bool) -> Self {
        Self {
            has_ended,
            reader,
            behind,
        }
    }

    /// Ready when the client closed its sending side or the connection broke.
    pub(crate) fn poll_ended(&mut self, cx: &mut Context<'_>, stream: &Stream) -> Poll<()> {
        if *self.has_ended {
            return Poll::Ready(());
        }
        if let Some(home) = &self.reader {
            if home.poll_back(cx).is_pending() {
                return Poll::Pending;
            }
            self.reader = None;
        }
        while self.behind.has_room() {
            let read = buffers::with_receive_buffer(|buffer| {
                let read = stream.poll_read(cx, buffer);
                if let Poll::Ready(Ok(count)) = &read {
                    self.behind.take(&buffer[..*count]);
                }
                read
            });
            match read {
                Poll::Ready(Ok(0) | Err(_)) => {
                    *self.has_ended = true;
                    return Poll::Ready(());
                }
                Poll::Ready(Ok(_)) => {}
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Pending
    }
}

impl Behind<'_> {
    fn has_room(&self) -> bool {
        match self {
            Self::Kept(pending) => pending.len() < PIPELINE_BYTES,
            Self::Discarded => true,
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        if let Self::Kept(pending) = self {
            pending.push(bytes);
        }
    }
}
