//! While a handler works: its client's side of the connection.
//!
//! A part of `connection`. The reading side is lent to whoever reads the body and comes back; the
//! client that leaves or sends more is noticed; interim responses go out. What must stay true: bytes
//! behind a request are kept for what follows it, a request or another protocol, and of interim
//! responses none is lost, cut or late; a client that closes its sending side gets its answer.
//!
//! A client that closed its sending side and one that left look alike: either sends a FIN and no more.
//! They differ in what they answer to bytes, so those are sent to it that any response begins with, one
//! at a time: a client that left answers by a reset, which frees what its request holds.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use penstock_exchange::{ClientState, Fault, Reply, RequestBody};
use penstock_http::Version;
use penstock_runtime::{buffers, clock};

use super::{Connection, Exchange, Working};
use crate::asks::Work;
use crate::incoming::{About, Incoming, Reader};
use crate::plan::has_body;
use crate::watch::PIPELINE_BYTES;

/// What every response begins with, whatever becomes of the request.
pub(super) const STATUS_START: &[u8] = b"HTTP/1.1 ";

/// How long after its end a client is sent the first byte of that; the next ones, after twice the time
/// before. Most answers come sooner, and in one piece.
const PROBE_AFTER: Duration = Duration::from_millis(250);

/// What a read for more came to.
enum PipelineRead {
    Received,
    /// The client closed its sending side.
    Ended,
    Broken,
}

impl Connection {
    /// A handler that begins to work, and its client, who is to be watched.
    pub(super) fn watch(&mut self, work: Work, exchange: &Exchange) -> Working {
        if self.has_ended {
            self.deadline.set(clock::now() + PROBE_AFTER);
        }
        Working {
            work,
            is_lent: exchange.home.is_some(),
            is_watching: !self.has_ended && self.pending.len() < PIPELINE_BYTES,
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
            head,
            home,
            ahead,
            begun,
            ..
        } = exchange;
        let Working {
            work: Work { work, .. },
            is_lent,
            is_watching,
        } = working;
        if let Poll::Ready(reply) = work.as_mut().poll(cx) {
            return Poll::Ready(reply);
        }
        self.send_interim(cx, head.version(), ahead, begun);
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
                Poll::Ready(PipelineRead::Received) => {
                    *is_watching = self.pending.len() < PIPELINE_BYTES;
                }
                Poll::Ready(PipelineRead::Ended) => {
                    *is_watching = false;
                    self.has_ended = true;
                    self.deadline.set(clock::now() + PROBE_AFTER);
                }
                Poll::Ready(PipelineRead::Broken) => {
                    *is_watching = false;
                    self.client.mark_disconnected();
                    // Asked again at once: it may have waited only for its turn.
                    return work.as_mut().poll(cx);
                }
            }
        }
        if self.has_ended
            && !self.client.is_disconnected()
            && self.poll_left(cx, begun, ahead.is_empty()).is_ready()
        {
            self.client.mark_disconnected();
            return work.as_mut().poll(cx);
        }
        Poll::Pending
    }

    /// Ready when a client that closed its sending side turns out to have left. `begun` counts the
    /// bytes of its answer that are out; none go while others wait for room (`is_idle`): those tell
    /// as much. When all are out the kernel's own probes go on.
    fn poll_left(&mut self, cx: &mut Context<'_>, begun: &mut u8, is_idle: bool) -> Poll<()> {
        if self.stream.poll_broken(cx).is_ready() {
            return Poll::Ready(());
        }
        while let Some(byte) = STATUS_START.get(usize::from(*begun))
            && self.deadline.poll(cx).is_ready()
        {
            if *begun == 0 {
                self.stream.probe_peer();
            }
            if is_idle {
                match self.stream.try_write(&[IoSlice::new(&[*byte])]) {
                    Ok(count) => {
                        self.edge.metrics().bytes_out.add(count as u64);
                        *begun += u8::from(count > 0);
                    }
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return Poll::Ready(()),
                }
            }
            self.deadline
                .set(clock::now() + PROBE_AFTER * (1 << *begun));
        }
        Poll::Pending
    }

    /// Sends the interim responses that the handler left, as far as the socket takes them; what it
    /// does not take waits in `ahead`. Its first bytes may be out ([`STATUS_START`]).
    fn send_interim(
        &self,
        cx: &mut Context<'_>,
        version: Version,
        ahead: &mut Vec<u8>,
        begun: &mut u8,
    ) {
        if ahead.is_empty() {
            *ahead = interim(&self.client, version);
            if !ahead.is_empty() {
                ahead.drain(..usize::from(std::mem::take(begun)));
            }
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

    /// Reads pipelined bytes.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<PipelineRead> {
        buffers::with_receive_buffer(|buffer| {
            self.stream.poll_read(cx, buffer).map(|read| match read {
                Ok(0) => PipelineRead::Ended,
                Err(_) => PipelineRead::Broken,
                Ok(count) => {
                    self.pending.push(&buffer[..count]);
                    self.unscanned = true;
                    PipelineRead::Received
                }
            })
        })
    }

    /// What a finished reader received behind its body belongs to the next request.
    fn take_leftover(&mut self, reader: &mut Reader) {
        self.pending.push(&std::mem::take(&mut reader.pending));
        self.unscanned = !self.pending.is_empty();
    }

    /// Makes the request's body, which borrows the reading side of the connection. `max_body` is
    /// what the route says.
    pub(super) fn lend_reader(
        &mut self,
        exchange: &mut Exchange,
        max_body: Option<u64>,
    ) -> RequestBody {
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
            max_body,
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
