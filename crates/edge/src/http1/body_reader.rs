//! A request body: read from the connection's socket, decoded, bounded, timed.
//!
//! The connection lends its reading side to the request ([`Http1RequestBody`]) and gets it back
//! ([`ReaderSlot`]) when the handler drops the body, read to the end or not. `100 Continue` is sent
//! at the first read, so a request that is refused unread does not invite its body.
//!
//! # Invariants
//! - Bytes behind the body stay in `pending` for the next request.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use penstock_config::Limits;
use penstock_exchange::{ClientState, Fault, FaultKind, IncomingBody};
use penstock_http::{BodyDecoder, BodyFraming, FieldBlock, RequestHead, Status};
use penstock_runtime::{LazyDeadline, Stream, buffers, clock};

use crate::router::RouteBodyLimits;
use crate::transfer_rate::{TransferLimits, TransferTimeout};

/// The reading side of a connection while a body is outstanding.
#[derive(Debug)]
pub(crate) struct BodyReader {
    /// Weak, so that an unread body does not keep the socket from being handed over or closed.
    stream: Weak<Stream>,
    decoder: BodyDecoder,
    /// Received and not yet decoded, or behind the body.
    pub(crate) pending: Vec<u8>,
    declared_length: Option<u64>,
    pub(crate) received_bytes: u64,
    max_received: u64,
    /// Whether that is the route's own bound.
    is_route_limit: bool,
    /// Sends `100 Continue`, while the client waits for it.
    continue_client: Option<Arc<ClientState>>,
    has_failed: bool,
    timeout: TransferTimeout,
    timer: LazyDeadline,
}

/// Whether the wait for the client counts against its timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WaitMode {
    Timed,
    Untimed,
}

/// The place where the reader is put back.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReaderSlot(Arc<Mutex<ReaderSlotState>>);

/// Locked for a move only.
#[derive(Debug, Default)]
struct ReaderSlotState {
    reader: Option<Box<BodyReader>>,
    waker: Option<Waker>,
}

impl ReaderSlot {
    /// Takes the reader, if the handler is done with it.
    pub(crate) fn take(&self) -> Option<Box<BodyReader>> {
        self.lock().reader.take()
    }

    pub(crate) fn put(&self, reader: Box<BodyReader>) {
        let mut place = self.lock();
        place.reader = Some(reader);
        let waiting = place.waker.take();
        drop(place);
        if let Some(waker) = waiting {
            waker.wake();
        }
    }

    pub(crate) fn poll_returned(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut place = self.lock();
        if place.reader.is_some() {
            return Poll::Ready(());
        }
        match &mut place.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    fn lock(&self) -> MutexGuard<'_, ReaderSlotState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(crate) struct Http1RequestBody {
    reader: Option<Box<BodyReader>>,
    reader_slot: ReaderSlot,
}

impl BodyReader {
    /// A reader for the body that `head` announces; `pending` was received behind the head. The
    /// limits of the route go before those of the server.
    pub(crate) fn new(
        stream: Weak<Stream>,
        head: &RequestHead,
        pending: Vec<u8>,
        client: &Arc<ClientState>,
        (limits, route): (&Limits, RouteBodyLimits),
    ) -> Self {
        let declared = match head.framing() {
            BodyFraming::Length(length) => Some(length),
            BodyFraming::None | BodyFraming::Chunked => None,
        };
        let transfer = TransferLimits::new(limits, route);
        Self {
            stream,
            decoder: BodyDecoder::new(head.framing()),
            pending,
            declared_length: declared,
            received_bytes: 0,
            max_received: route.max_bytes.unwrap_or(limits.max_body_size),
            is_route_limit: route.max_bytes.is_some(),
            continue_client: head.expects_continue().then(|| Arc::clone(client)),
            has_failed: false,
            timeout: TransferTimeout::new(transfer),
            timer: LazyDeadline::new(clock::now() + transfer.idle_timeout),
        }
    }

    /// Whether the whole body was read, so that the next request may follow.
    pub(crate) fn is_done(&self) -> bool {
        !self.has_failed && self.decoder.is_done()
    }

    /// Discards the rest of the body that is received already.
    pub(crate) fn discard_buffered(&mut self) {
        if self.is_declared_too_large() {
            return;
        }
        let mut ignored = Vec::new();
        let pending = std::mem::take(&mut self.pending);
        if self.decode(&pending, &mut ignored).is_err() {
            self.has_failed = true;
        }
    }

    fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut Vec<u8>,
        wait: WaitMode,
    ) -> Poll<Result<bool, Fault>> {
        if self.is_declared_too_large() {
            return Poll::Ready(Err(self.body_too_large()));
        }
        if !self.pending.is_empty() {
            // A body that has begun to arrive needs no `100 Continue`.
            self.continue_client = None;
            let before = into.len();
            let pending = std::mem::take(&mut self.pending);
            self.decode(&pending, into)?;
            self.timeout
                .record_progress(clock::now(), (into.len() - before) as u64);
            if into.len() > before {
                return Poll::Ready(Ok(true));
            }
        }
        if self.decoder.is_done() {
            return Poll::Ready(Ok(false));
        }
        if wait == WaitMode::Timed
            && let Some(client) = self.continue_client.take()
        {
            // Queued with the other interim responses, so that they never mix. A client that does
            // not get it sends its body after a while anyway (RFC 9110 §10.1.1).
            client.push_interim(Status::CONTINUE, FieldBlock::new());
        }
        self.poll_receive(cx, into, wait)
    }

    fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut Vec<u8>,
        wait: WaitMode,
    ) -> Poll<Result<bool, Fault>> {
        let Some(stream) = self.stream.upgrade() else {
            let cause = "the connection ended before its request body was read";
            return Poll::Ready(Err(self.fail(FaultKind::ClientDisconnected, cause)));
        };
        let before = into.len();
        let polled = buffers::with_receive_buffer(|buffer| {
            let read = stream.poll_read(cx, buffer);
            read.map_ok(|count| self.decode(&buffer[..count], into).map(|()| count))
        });
        match polled {
            Poll::Ready(Ok(done)) => {
                if done? == 0 {
                    let cause = "the client closed within its request body";
                    return Poll::Ready(Err(self.fail(FaultKind::ClientDisconnected, cause)));
                }
                // The client did not wait for `100 Continue`.
                self.continue_client = None;
                self.timeout
                    .record_progress(clock::now(), (into.len() - before) as u64);
                Poll::Ready(Ok(into.len() > before || !self.decoder.is_done()))
            }
            Poll::Ready(Err(_)) => {
                let cause = "the connection broke within the request body";
                Poll::Ready(Err(self.fail(FaultKind::ClientDisconnected, cause)))
            }
            Poll::Pending if wait == WaitMode::Untimed => {
                self.timeout.stop_wait(clock::now());
                Poll::Pending
            }
            Poll::Pending => {
                let now = clock::now();
                self.timeout.start_wait(now);
                self.timer.set(self.timeout.deadline(now));
                self.timer.poll(cx).map(|()| {
                    let cause =
                        format!("request body too slow after {} bytes", self.received_bytes);
                    Err(self.fail(FaultKind::ClientTooSlow, cause))
                })
            }
        }
    }

    /// Decodes `input` into `into`; bytes behind the body go to `pending`.
    fn decode(&mut self, input: &[u8], into: &mut Vec<u8>) -> Result<(), Fault> {
        let mut rest = input;
        while !rest.is_empty() && !self.decoder.is_done() {
            let decoded = self.decoder.decode(rest).map_err(|error| {
                self.fail(FaultKind::BadRequest, format!("request body: {error}"))
            })?;
            into.extend_from_slice(&rest[decoded.content.clone()]);
            self.received_bytes += decoded.content.len() as u64;
            rest = &rest[decoded.consumed..];
            if self.received_bytes > self.max_received {
                return Err(self.body_too_large());
            }
            if decoded.consumed == 0 {
                break;
            }
        }
        self.pending.extend_from_slice(rest);
        Ok(())
    }

    fn is_declared_too_large(&self) -> bool {
        self.declared_length
            .is_some_and(|length| length > self.max_received)
    }

    fn body_too_large(&mut self) -> Fault {
        let key = match self.is_route_limit {
            true => "max_body_size of its route",
            false => "limits.body_bytes",
        };
        let cause = format!("request body over {key} ({} bytes)", self.max_received);
        self.fail(FaultKind::BodyTooLarge, cause)
    }

    fn fail(&mut self, kind: FaultKind, cause: impl Into<Cow<'static, str>>) -> Fault {
        self.has_failed = true;
        Fault::new(kind, cause)
    }
}

impl Http1RequestBody {
    pub(crate) fn new(reader: BodyReader) -> (Self, ReaderSlot) {
        let reader_slot = ReaderSlot::default();
        let body = Self {
            reader: Some(Box::new(reader)),
            reader_slot: reader_slot.clone(),
        };
        (body, reader_slot)
    }
}

impl IncomingBody for Http1RequestBody {
    fn poll_fill(&mut self, cx: &mut Context<'_>, into: &mut Vec<u8>) -> Poll<Result<bool, Fault>> {
        match &mut self.reader {
            Some(reader) => reader.poll_fill(cx, into, WaitMode::Timed),
            None => Poll::Ready(Ok(false)),
        }
    }

    fn poll_prefetch(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut Vec<u8>,
    ) -> Poll<Result<bool, Fault>> {
        match &mut self.reader {
            Some(reader) => reader.poll_fill(cx, into, WaitMode::Untimed),
            None => Poll::Ready(Ok(false)),
        }
    }

    fn is_at_end(&self) -> bool {
        self.reader.as_ref().is_none_or(|reader| reader.is_done())
    }

    fn length(&self) -> Option<u64> {
        self.reader
            .as_ref()
            .and_then(|reader| reader.declared_length)
    }
}

impl Drop for Http1RequestBody {
    fn drop(&mut self) {
        if let Some(reader) = self.reader.take() {
            self.reader_slot.put(reader);
        }
    }
}
