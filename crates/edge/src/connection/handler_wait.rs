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

use super::{Connection, Exchange, HandlerWait};
use crate::client_watch::MAX_PIPELINED_BYTES;
use crate::dispatch::RunningHandler;
use crate::request_body::{BodyReader, BodyReaderOptions, ConnectionBody};
use crate::response_plan::has_request_body;

/// What every response begins with, whatever becomes of the request.
pub(super) const STATUS_LINE_START: &[u8] = b"HTTP/1.1 ";

/// How long after its end a client is sent the first byte of that; the next ones, after twice the time
/// before. Most answers come sooner, and in one piece.
const FIRST_PROBE_DELAY: Duration = Duration::from_millis(250);

/// What a read for more came to.
enum PipelineRead {
    Received,
    /// The client closed its sending side.
    HalfClosed,
    Failed,
}

impl Connection {
    /// A handler that begins to work, and its client, who is to be watched.
    pub(super) fn start_wait(&mut self, work: RunningHandler, exchange: &Exchange) -> HandlerWait {
        if self.is_half_closed {
            self.deadline.set(clock::now() + FIRST_PROBE_DELAY);
        }
        HandlerWait {
            handler: work,
            is_reader_lent: exchange.reader_slot.is_some(),
            is_watching_client: !self.is_half_closed && self.received.len() < MAX_PIPELINED_BYTES,
        }
    }

    /// Polls a handler, and notices when the client leaves or sends more requests.
    pub(super) fn poll_handler_and_client(
        &mut self,
        cx: &mut Context<'_>,
        working: &mut HandlerWait,
        exchange: &mut Exchange,
    ) -> Poll<Result<Reply, Fault>> {
        let Exchange {
            head,
            reader_slot: home,
            unsent_interim: ahead,
            status_bytes_sent: begun,
            ..
        } = exchange;
        let HandlerWait {
            handler: RunningHandler { future: work, .. },
            is_reader_lent: is_lent,
            is_watching_client: is_watching,
        } = working;
        if let Poll::Ready(reply) = work.as_mut().poll(cx) {
            return Poll::Ready(reply);
        }
        self.send_interim(cx, head.version(), ahead, begun);
        if let Some(place) = home.as_ref().filter(|_| *is_lent) {
            // Another task may have it, which reads while this handler works.
            ready!(place.poll_returned(cx));
            let Some(mut reader) = place.take() else {
                return Poll::Pending;
            };
            // A body that is here whole, and that nobody wants, hides a client that leaves.
            reader.discard_buffered();
            *is_watching = reader.is_done();
            if *is_watching {
                self.take_pipelined(&mut reader);
                *is_watching = self.received.len() < MAX_PIPELINED_BYTES;
            }
            place.put(reader);
            *is_lent = false;
        }
        while *is_watching {
            match self.poll_pipelined(cx) {
                Poll::Pending => break,
                Poll::Ready(PipelineRead::Received) => {
                    *is_watching = self.received.len() < MAX_PIPELINED_BYTES;
                }
                Poll::Ready(PipelineRead::HalfClosed) => {
                    *is_watching = false;
                    self.is_half_closed = true;
                    self.deadline.set(clock::now() + FIRST_PROBE_DELAY);
                }
                Poll::Ready(PipelineRead::Failed) => {
                    *is_watching = false;
                    self.client_state.mark_disconnected();
                    // Asked again at once: it may have waited only for its turn.
                    return work.as_mut().poll(cx);
                }
            }
        }
        if self.is_half_closed
            && !self.client_state.is_disconnected()
            && self
                .poll_disconnected(cx, begun, ahead.is_empty())
                .is_ready()
        {
            self.client_state.mark_disconnected();
            return work.as_mut().poll(cx);
        }
        Poll::Pending
    }

    /// Ready when a client that closed its sending side turns out to have left. `begun` counts the
    /// bytes of its answer that are out; none go while others wait for room (`is_idle`): those tell
    /// as much. When all are out the kernel's own probes go on.
    fn poll_disconnected(
        &mut self,
        cx: &mut Context<'_>,
        begun: &mut u8,
        is_idle: bool,
    ) -> Poll<()> {
        if self.stream.poll_broken(cx).is_ready() {
            return Poll::Ready(());
        }
        while let Some(byte) = STATUS_LINE_START.get(usize::from(*begun))
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
                .set(clock::now() + FIRST_PROBE_DELAY * (1 << *begun));
        }
        Poll::Pending
    }

    /// Sends the interim responses that the handler left, as far as the socket takes them; what it
    /// does not take waits in `ahead`. Its first bytes may be out ([`STATUS_LINE_START`]).
    fn send_interim(
        &self,
        cx: &mut Context<'_>,
        version: Version,
        ahead: &mut Vec<u8>,
        begun: &mut u8,
    ) {
        if ahead.is_empty() {
            *ahead = take_interim(&self.client_state, version);
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
    fn poll_pipelined(&mut self, cx: &mut Context<'_>) -> Poll<PipelineRead> {
        buffers::with_receive_buffer(|buffer| {
            self.stream.poll_read(cx, buffer).map(|read| match read {
                Ok(0) => PipelineRead::HalfClosed,
                Err(_) => PipelineRead::Failed,
                Ok(count) => {
                    self.received.push(&buffer[..count]);
                    self.has_unscanned = true;
                    PipelineRead::Received
                }
            })
        })
    }

    /// What a finished reader received behind its body belongs to the next request.
    fn take_pipelined(&mut self, reader: &mut BodyReader) {
        self.received.push(&std::mem::take(&mut reader.pending));
        self.has_unscanned = !self.received.is_empty();
    }

    /// Makes the request's body, which borrows the reading side of the connection. `max_body` is
    /// what the route says.
    pub(super) fn lend_body_reader(
        &mut self,
        exchange: &mut Exchange,
        max_body: Option<u64>,
    ) -> RequestBody {
        let head = &exchange.head;
        if !has_request_body(head) {
            return RequestBody::Empty;
        }
        let pending = self.received.take_unread();
        self.has_unscanned = false;
        let stream = Arc::downgrade(&self.stream);
        let about = BodyReaderOptions {
            client_state: &self.client_state,
            limits: &exchange.settings.limits,
            max_body,
        };
        let reader = BodyReader::new(stream, head, pending, about);
        let (incoming, home) = ConnectionBody::new(reader);
        exchange.reader_slot = Some(home);
        RequestBody::Incoming(Box::new(incoming))
    }

    /// Takes the reading side back, unless it is still out; `false` when the body was not read to its end,
    /// and then for ever.
    pub(super) fn reclaim_body_reader(&mut self, exchange: &mut Exchange) -> bool {
        if let Some(home) = &exchange.reader_slot {
            let reader = home.take();
            exchange.is_body_unread |= reader.is_none();
            if let Some(mut reader) = reader {
                reader.discard_buffered();
                self.edge.metrics().bytes_in.add(reader.received_bytes);
                exchange.reader_slot = None;
                exchange.is_body_unread |= !reader.is_done();
                if !exchange.is_body_unread {
                    self.take_pipelined(&mut reader);
                }
            }
        }
        !exchange.is_body_unread
    }
}

/// The interim responses that wait to be sent. HTTP/1.0 has none (RFC 9110 §15.2).
pub(super) fn take_interim(client: &ClientState, version: Version) -> Vec<u8> {
    let waiting = client.take_interim();
    match version {
        Version::Http11 => waiting,
        Version::Http10 => Vec::new(),
    }
}
