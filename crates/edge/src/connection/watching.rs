//! While a handler works: its client's side of the connection.
//!
//! A part of `connection`. The reading side is lent to whoever reads the body and comes back; the
//! client that leaves or sends more is noticed; interim responses go out. What must stay true: bytes
//! behind a request are kept for what follows it, a request or another protocol, and of interim
//! responses none is lost, cut or late.

use std::io::IoSlice;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use penstock_exchange::{ClientState, Fault, Reply, RequestBody};
use penstock_http::Version;
use penstock_runtime::buffers;

use super::{Connection, Exchange, Working};
use crate::asks::Work;
use crate::incoming::{About, Incoming, Reader};
use crate::plan::has_body;
use crate::watch::PIPELINE_BYTES;

impl Connection {
    /// A handler that begins to work, and its client, who is to be watched.
    pub(super) fn watch(&self, work: Work, exchange: &Exchange) -> Working {
        Working {
            work,
            is_lent: exchange.home.is_some(),
            is_watching: self.pending.len() < PIPELINE_BYTES,
        }
    }

    /// Polls a handler, and notices when the client leaves or sends more requests.
    pub(super) fn poll_watched(
        &mut self,
        cx: &mut Context<'_>,
        working: &mut Working,
        exchange: &mut Exchange,
    ) -> Poll<Result<Reply, Fault>> {
        let Exchange {
            head, home, ahead, ..
        } = exchange;
        let Working {
            work: Work { work, .. },
            is_lent,
            is_watching,
        } = working;
        if let Poll::Ready(reply) = work.as_mut().poll(cx) {
            return Poll::Ready(reply);
        }
        self.send_interim(cx, head.version(), ahead);
        if let Some(place) = home.as_ref().filter(|_| *is_lent) {
            // Another task may have it, which reads while this handler works.
            ready!(place.poll_back(cx));
            let Some(mut reader) = place.take() else {
                return Poll::Pending;
            };
            // A body that is here whole, and that nobody wants, hides a client that leaves.
            reader.discard_buffered();
            *is_watching = reader.is_done();
            if *is_watching {
                self.take_leftover(&mut reader);
                *is_watching = self.pending.len() < PIPELINE_BYTES;
            }
            place.put(reader);
            *is_lent = false;
        }
        while *is_watching {
            match self.poll_more(cx) {
                Poll::Pending => break,
                Poll::Ready(true) => *is_watching = self.pending.len() < PIPELINE_BYTES,
                Poll::Ready(false) => {
                    *is_watching = false;
                    self.client.mark_gone();
                    // Asked again at once: it may have waited only for its turn.
                    return work.as_mut().poll(cx);
                }
            }
        }
        Poll::Pending
    }

    /// Sends the interim responses that the handler left, as far as the socket takes them; what it
    /// does not take waits in `ahead`.
    fn send_interim(&self, cx: &mut Context<'_>, version: Version, ahead: &mut Vec<u8>) {
        if ahead.is_empty() {
            *ahead = interim(&self.client, version);
        }
        while !ahead.is_empty() {
            match self.stream.poll_write(cx, &[IoSlice::new(ahead)]) {
                Poll::Pending => return,
                Poll::Ready(Ok(count)) => {
                    self.edge.metrics().bytes_out.add(count as u64);
                    ahead.drain(..count);
                }
                // Whoever reads the socket sees it too.
                Poll::Ready(Err(_)) => ahead.clear(),
            }
        }
    }

    /// Reads pipelined bytes; `false` when the client closed its side.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        buffers::with_receive(|buffer| {
            self.stream.poll_read(cx, buffer).map(|read| match read {
                Ok(0) | Err(_) => false,
                Ok(count) => {
                    self.pending.push(&buffer[..count]);
                    self.unscanned = true;
                    true
                }
            })
        })
    }

    /// What a finished reader received behind its body belongs to the next request.
    fn take_leftover(&mut self, reader: &mut Reader) {
        self.pending.push(&std::mem::take(&mut reader.pending));
        self.unscanned = !self.pending.is_empty();
    }

    /// Makes the request's body, which borrows the reading side of the connection.
    pub(super) fn lend_reader(&mut self, exchange: &mut Exchange) -> RequestBody {
        let head = &exchange.head;
        if !has_body(head) {
            return RequestBody::Empty;
        }
        let pending = self.pending.take();
        self.unscanned = false;
        let stream = Arc::downgrade(&self.stream);
        let about = About {
            client: &self.client,
            limits: &exchange.settings.limits,
        };
        let reader = Reader::new(stream, head, pending, about);
        let (incoming, home) = Incoming::new(reader);
        exchange.home = Some(home);
        RequestBody::Incoming(Box::new(incoming))
    }

    /// Takes the reading side back, unless it is still out; `false` when the body was not read to its end,
    /// and then for ever.
    pub(super) fn reclaim_reader(&mut self, exchange: &mut Exchange) -> bool {
        if let Some(home) = &exchange.home {
            let reader = home.take();
            exchange.is_cut_short |= reader.is_none();
            if let Some(mut reader) = reader {
                reader.discard_buffered();
                self.edge.metrics().bytes_in.add(reader.received);
                exchange.home = None;
                exchange.is_cut_short |= !reader.is_done();
                if !exchange.is_cut_short {
                    self.take_leftover(&mut reader);
                }
            }
        }
        !exchange.is_cut_short
    }
}

/// The interim responses that wait to be sent. HTTP/1.0 has none (RFC 9110 §15.2).
pub(super) fn interim(client: &ClientState, version: Version) -> Vec<u8> {
    let waiting = client.take_interim();
    match version {
        Version::Http11 => waiting,
        Version::Http10 => Vec::new(),
    }
}
