//! The client's side of the connection while a handler works.
//!
//! The reading side is lent to the reader of the body and comes back; a client that leaves or sends
//! more is noticed; interim responses go out.
//!
//! A client that closed its sending side and one that left look alike: either sends a FIN and no
//! more. They differ in how they reply to bytes, so the connection sends the bytes that any
//! response begins with, one at a time. A client that left replies with a reset, which ends its
//! request.
//!
//! # Invariants
//! - Bytes behind a request are kept for the next request, or for another protocol.
//! - No interim response is lost, cut or late.
//! - A client that closes its sending side gets its response.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use penstock_exchange::{ClientState, RequestBody};
use penstock_http::{
    ConnectionPersistence, ResponseFraming, ResponseHeadParts, Version, encode_head,
};
use penstock_runtime::{buffers, clock};

use super::body_reader::{BodyReader, Http1RequestBody};
use super::client_watch::{FIRST_PROBE_DELAY, MAX_PIPELINED_BYTES};
use super::{Connection, HandlerWait, WireState};
use crate::exchange::{Exchange, RunningHandler, has_request_body};

/// The beginning of every response.
pub(super) const STATUS_LINE_START: &[u8] = b"HTTP/1.1 ";

enum PipelineRead {
    Received,
    HalfClosed,
    Failed,
}

impl Connection {
    /// Starts to wait for a handler, and to watch its client.
    pub(super) fn start_wait(&mut self, handler: RunningHandler, wire: &WireState) -> HandlerWait {
        if self.is_half_closed {
            self.deadline.set(clock::now() + FIRST_PROBE_DELAY);
        }
        HandlerWait {
            handler,
            is_reader_lent: wire.reader_slot.is_some(),
            is_watching_client: !self.is_half_closed && self.received.len() < MAX_PIPELINED_BYTES,
        }
    }

    /// Sends interim responses and keeps pipelined requests, while a handler works; ready when the
    /// client leaves.
    pub(super) fn poll_client_disconnected(
        &mut self,
        cx: &mut Context<'_>,
        wait: &mut HandlerWait,
        wire: &mut WireState,
        version: Version,
    ) -> Poll<()> {
        self.send_interim(cx, wire, version);
        if let Some(slot) = wire.reader_slot.as_ref().filter(|_| wait.is_reader_lent) {
            // Another task may have it, which reads while this handler works.
            ready!(slot.poll_returned(cx));
            let Some(mut reader) = slot.take() else {
                return Poll::Pending;
            };
            // The rest of a body that no handler wants would hide a client that leaves.
            reader.discard_buffered();
            wait.is_watching_client = reader.is_done();
            if wait.is_watching_client {
                self.take_pipelined(&mut reader);
                wait.is_watching_client = self.received.len() < MAX_PIPELINED_BYTES;
            }
            slot.put(reader);
            wait.is_reader_lent = false;
        }
        while wait.is_watching_client {
            match self.poll_pipelined(cx) {
                Poll::Pending => break,
                Poll::Ready(PipelineRead::Received) => {
                    wait.is_watching_client = self.received.len() < MAX_PIPELINED_BYTES;
                }
                Poll::Ready(PipelineRead::HalfClosed) => {
                    wait.is_watching_client = false;
                    self.is_half_closed = true;
                    self.deadline.set(clock::now() + FIRST_PROBE_DELAY);
                }
                Poll::Ready(PipelineRead::Failed) => {
                    wait.is_watching_client = false;
                    self.client_state.mark_disconnected();
                    return Poll::Ready(());
                }
            }
        }
        if self.is_half_closed
            && !self.client_state.is_disconnected()
            && self.poll_disconnected(cx, wire).is_ready()
        {
            self.client_state.mark_disconnected();
            return Poll::Ready(());
        }
        Poll::Pending
    }

    /// Ready when a client that closed its sending side turns out to have left. Sends bytes of its
    /// response, unless others wait for room, which show as much. Once all are out the kernel's own
    /// probes go on.
    fn poll_disconnected(&mut self, cx: &mut Context<'_>, wire: &mut WireState) -> Poll<()> {
        if self.stream.poll_broken(cx).is_ready() {
            return Poll::Ready(());
        }
        let begun = &mut wire.status_bytes_sent;
        while let Some(byte) = STATUS_LINE_START.get(usize::from(*begun))
            && self.deadline.poll(cx).is_ready()
        {
            if *begun == 0 {
                self.stream.probe_peer();
            }
            if wire.unsent_interim.is_empty() {
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

    /// Sends the interim responses that the handler left, as far as the socket takes them; the rest
    /// waits. The first bytes may be out ([`STATUS_LINE_START`]).
    fn send_interim(&self, cx: &mut Context<'_>, wire: &mut WireState, version: Version) {
        let unsent = &mut wire.unsent_interim;
        if unsent.is_empty() {
            *unsent = take_interim_responses(&self.client_state, version);
            if !unsent.is_empty() {
                unsent.drain(..usize::from(std::mem::take(&mut wire.status_bytes_sent)));
            }
        }
        while !unsent.is_empty() {
            match self.stream.poll_write(cx, &[IoSlice::new(unsent)]) {
                Poll::Pending => return,
                Poll::Ready(Ok(count)) => {
                    self.edge.metrics().bytes_out.add(count as u64);
                    unsent.drain(..count);
                }
                // The reader of the socket sees the error too.
                Poll::Ready(Err(_)) => unsent.clear(),
            }
        }
    }

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

    /// Takes the bytes that a finished reader received behind its body.
    fn take_pipelined(&mut self, reader: &mut BodyReader) {
        self.received.push(&std::mem::take(&mut reader.pending));
        self.has_unscanned = !self.received.is_empty();
    }

    /// Makes the request's body, which borrows the reading side of the connection.
    pub(super) fn lend_body_reader(
        &mut self,
        exchange: &Exchange,
        wire: &mut WireState,
    ) -> RequestBody {
        let head = &exchange.head;
        if !has_request_body(head) {
            return RequestBody::Empty;
        }
        let pending = self.received.take_unread();
        self.has_unscanned = false;
        let stream = Arc::downgrade(&self.stream);
        let limits = (&exchange.settings.limits, exchange.body_limits);
        let reader = BodyReader::new(stream, head, pending, &self.client_state, limits);
        let (body, slot) = Http1RequestBody::new(reader);
        wire.reader_slot = Some(slot);
        RequestBody::Incoming(Box::new(body))
    }

    /// Takes the reading side back, unless it is still out. `false` when the body was not read to
    /// its end, and from then on.
    pub(super) fn reclaim_body_reader(&mut self, wire: &mut WireState) -> bool {
        if let Some(slot) = &wire.reader_slot {
            let reader = slot.take();
            wire.is_body_unread |= reader.is_none();
            if let Some(mut reader) = reader {
                reader.discard_buffered();
                self.edge.metrics().bytes_in.add(reader.received_bytes);
                wire.reader_slot = None;
                wire.is_body_unread |= !reader.is_done();
                if !wire.is_body_unread {
                    self.take_pipelined(&mut reader);
                }
            }
        }
        !wire.is_body_unread
    }
}

/// Takes the interim responses that wait to be sent, encoded. HTTP/1.0 has none (RFC 9110 §15.2).
pub(super) fn take_interim_responses(client: &ClientState, version: Version) -> Vec<u8> {
    let mut encoded = Vec::new();
    for (status, fields) in client.take_interim() {
        let head = ResponseHeadParts {
            status,
            fields: &fields,
            framing: ResponseFraming::None,
            persistence: ConnectionPersistence::KeepAlive,
            date: None,
        };
        if version == Version::Http11 {
            encode_head(&mut encoded, &head);
        }
    }
    encoded
}
