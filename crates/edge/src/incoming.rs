//! A request body on its way in: read from the connection's socket, decoded, bounded, timed.
//!
//! The connection lends its reading side to the request ([`Incoming`]) and finds it again when the
//! handler is done with it ([`Home`]), read to the end or not. `100 Continue` goes out at the first
//! pull, so a request that is refused unread never invites its body. What must stay true: bytes
//! behind the body stay in `pending` for the next request.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use penstock_config::Limits;
use penstock_exchange::{ClientState, Fault, FaultKind, IncomingBody};
use penstock_http::{BodyDecoder, BodyFraming, FieldBlock, RequestHead, Status};
use penstock_runtime::{LazyDeadline, Stream, buffers, clock};

use crate::pace::Pace;

/// The reading side of a connection while a body is outstanding.
#[derive(Debug)]
pub(crate) struct Reader {
    /// The connection's own: whoever still has a part of the body unread keeps nobody from handing the socket
    /// over, or from closing it.
    stream: Weak<Stream>,
    decoder: BodyDecoder,
    /// Received and not yet decoded, or behind the body.
    pub(crate) pending: Vec<u8>,
    declared: Option<u64>,
    pub(crate) received: u64,
    received_max: u64,
    /// Whether that is the route's own bound.
    is_route_bound: bool,
    /// Whom to ask for `100 Continue`, while the client waits for it.
    continue_from: Option<Arc<ClientState>>,
    failed: bool,
    pace: Pace,
    timer: LazyDeadline,
}

/// What a reader is told besides the head.
#[derive(Debug, Clone, Copy)]
pub(crate) struct About<'a> {
    pub(crate) client: &'a Arc<ClientState>,
    pub(crate) limits: &'a Limits,
    /// The route's bound, in place of that of `limits`.
    pub(crate) max_body: Option<u64>,
}

/// Whether the time until the client sends more is charged to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    Charged,
    Free,
}

/// Where the reader is put back.
#[derive(Debug, Clone, Default)]
pub(crate) struct Home(Arc<Mutex<Place>>);

/// The place of one reader; locked for a move only.
#[derive(Debug, Default)]
struct Place {
    reader: Option<Box<Reader>>,
    /// Who waits for it.
    waiting: Option<Waker>,
}

impl Home {
    /// Takes the reader back, if the handler is done with it.
    pub(crate) fn take(&self) -> Option<Box<Reader>> {
        self.place().reader.take()
    }

    /// Puts the reader back.
    pub(crate) fn put(&self, reader: Box<Reader>) {
        let mut place = self.place();
        place.reader = Some(reader);
        let waiting = place.waiting.take();
        drop(place);
        if let Some(waker) = waiting {
            waker.wake();
        }
    }

    /// Ready when the reader is back.
    pub(crate) fn poll_back(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut place = self.place();
        if place.reader.is_some() {
            return Poll::Ready(());
        }
        match &mut place.waiting {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The body as a handler sees it.
#[derive(Debug)]
pub(crate) struct Incoming {
    reader: Option<Box<Reader>>,
    home: Home,
}

impl Reader {
    /// A reader for the body that `head` announces, starting with what came behind the head.
    pub(crate) fn new(
        stream: Weak<Stream>,
        head: &RequestHead,
        pending: Vec<u8>,
        about: About<'_>,
    ) -> Self {
        let About {
            client,
            limits,
            max_body,
        } = about;
        let declared = match head.framing() {
            BodyFraming::Length(length) => Some(length),
            BodyFraming::None | BodyFraming::Chunked => None,
        };
        Self {
            stream,
            decoder: BodyDecoder::new(head.framing()),
            pending,
            declared,
            received: 0,
            received_max: max_body.unwrap_or(limits.body_bytes),
            is_route_bound: max_body.is_some(),
            continue_from: head.expects_continue().then(|| Arc::clone(client)),
            failed: false,
            pace: Pace::new(limits),
            timer: LazyDeadline::new(clock::now() + limits.body_stall),
        }
    }

    /// Whether the whole body was read, so that the next request may follow.
    pub(crate) fn is_done(&self) -> bool {
        !self.failed && self.decoder.is_done()
    }

    /// Reads over what is left of the body as far as it is here already.
    pub(crate) fn discard_buffered(&mut self) {
        if self
            .declared
            .is_some_and(|length| length > self.received_max)
        {
            return;
        }
        let mut ignored = Vec::new();
        let pending = std::mem::take(&mut self.pending);
        if self.decode(&pending, &mut ignored).is_err() {
            self.failed = true;
        }
    }

    fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut Vec<u8>,
        wait: Wait,
    ) -> Poll<Result<bool, Fault>> {
        if self
            .declared
            .is_some_and(|length| length > self.received_max)
        {
            return Poll::Ready(Err(self.too_large()));
        }
        if !self.pending.is_empty() {
            // A body that has begun to arrive needs no invitation.
            self.continue_from = None;
            let before = into.len();
            let pending = std::mem::take(&mut self.pending);
            self.decode(&pending, into)?;
            self.pace
                .progress(clock::now(), (into.len() - before) as u64);
            if into.len() > before {
                return Poll::Ready(Ok(true));
            }
        }
        if self.decoder.is_done() {
            return Poll::Ready(Ok(false));
        }
        if wait == Wait::Charged
            && let Some(client) = self.continue_from.take()
        {
            // With the other interim responses, so that they never mix. A client that does not get
            // it sends its body after a while anyway (RFC 9110 §10.1.1).
            client.push_interim(Status::CONTINUE, &FieldBlock::new());
        }
        self.poll_receive(cx, into, wait)
    }

    fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut Vec<u8>,
        wait: Wait,
    ) -> Poll<Result<bool, Fault>> {
        let Some(stream) = self.stream.upgrade() else {
            self.failed = true;
            let cause = "the connection ended before its request body was read";
            return Poll::Ready(Err(gone(cause)));
        };
        let before = into.len();
        let polled = buffers::with_receive_buffer(|buffer| match stream.poll_read(cx, buffer) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(count)) => {
                Poll::Ready(Ok(self.decode(&buffer[..count], into).map(|()| count)))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
        });
        match polled {
            Poll::Ready(Ok(done)) => {
                if done? == 0 {
                    self.failed = true;
                    return Poll::Ready(Err(gone("the client closed within its request body")));
                }
                // It sends without having been invited.
                self.continue_from = None;
                self.pace
                    .progress(clock::now(), (into.len() - before) as u64);
                Poll::Ready(Ok(into.len() > before || !self.decoder.is_done()))
            }
            Poll::Ready(Err(_)) => {
                self.failed = true;
                Poll::Ready(Err(gone("the connection broke within the request body")))
            }
            Poll::Pending if wait == Wait::Free => {
                self.pace.pause(clock::now());
                Poll::Pending
            }
            Poll::Pending => {
                let now = clock::now();
                self.pace.wait(now);
                self.timer.set(self.pace.deadline(now));
                self.timer.poll(cx).map(|()| {
                    self.failed = true;
                    let cause = format!("request body too slow after {} bytes", self.received);
                    Err(Fault::new(FaultKind::ClientTooSlow, cause))
                })
            }
        }
    }

    /// Decodes `input` into `into`; what is behind the body goes to `pending`.
    fn decode(&mut self, input: &[u8], into: &mut Vec<u8>) -> Result<(), Fault> {
        let mut rest = input;
        while !rest.is_empty() && !self.decoder.is_done() {
            let decoded = self.decoder.decode(rest).map_err(|error| {
                self.failed = true;
                Fault::new(FaultKind::BadRequest, format!("request body: {error}"))
            })?;
            into.extend_from_slice(&rest[decoded.content.clone()]);
            self.received += decoded.content.len() as u64;
            rest = &rest[decoded.consumed..];
            if self.received > self.received_max {
                return Err(self.too_large());
            }
            if decoded.consumed == 0 {
                break;
            }
        }
        self.pending.extend_from_slice(rest);
        Ok(())
    }

    fn too_large(&mut self) -> Fault {
        self.failed = true;
        let key = match self.is_route_bound {
            true => "max_body of its route",
            false => "limits.body_bytes",
        };
        let cause = format!("request body over {key} ({} bytes)", self.received_max);
        Fault::new(FaultKind::BodyTooLarge, cause)
    }
}

fn gone(cause: &'static str) -> Fault {
    Fault::new(FaultKind::ClientDisconnected, cause)
}

impl Incoming {
    pub(crate) fn new(reader: Reader) -> (Self, Home) {
        let home = Home::default();
        (
            Self {
                reader: Some(Box::new(reader)),
                home: home.clone(),
            },
            home,
        )
    }
}

impl IncomingBody for Incoming {
    fn poll_fill(&mut self, cx: &mut Context<'_>, into: &mut Vec<u8>) -> Poll<Result<bool, Fault>> {
        match &mut self.reader {
            Some(reader) => reader.poll_fill(cx, into, Wait::Charged),
            None => Poll::Ready(Ok(false)),
        }
    }

    fn poll_prefetch(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut Vec<u8>,
    ) -> Poll<Result<bool, Fault>> {
        match &mut self.reader {
            Some(reader) => reader.poll_fill(cx, into, Wait::Free),
            None => Poll::Ready(Ok(false)),
        }
    }

    fn is_at_end(&self) -> bool {
        self.reader.as_ref().is_none_or(|reader| reader.is_done())
    }

    fn length(&self) -> Option<u64> {
        self.reader.as_ref().and_then(|reader| reader.declared)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if let Some(reader) = self.reader.take() {
            self.home.put(reader);
        }
    }
}
