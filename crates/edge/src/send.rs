//! Sending one response: the whole of it in one call where it fits, else piece by piece with a pace.
//!
//! [`send_now`] is the common way: head and body leave in one system call and nothing is allocated.
//! What the socket did not take, files and streams go through [`send_rest`], a future that is boxed
//! so that idle connections do not carry its size. What must stay true: a body that cannot be
//! completed ends in a cut connection, never in a clean end; declared lengths are exact; a client is
//! judged by what it took, not by what the kernel's buffer swallowed or by when that has room again.

use std::borrow::Cow;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use penstock_config::Limits;
use penstock_exchange::{Body, BodyStream, Fault, FaultKind, FileBody, Takeover};
use penstock_http::{
    FieldBlock, ResponseFraming, ResponseLine, encode_head, h1, is_forbidden_trailer,
};
use penstock_runtime::disk::ReadError;
use penstock_runtime::{LazyDeadline, Stream, buffers, clock};

use crate::pace::{Pace, Throttle};
use crate::watch::Watch;

/// Bodies up to this size are copied behind their head: one `send` of one buffer is cheaper than a
/// vectored one.
const COPY_MAX: usize = 8 * 1024;

/// How far [`send_now`] got.
#[derive(Debug)]
pub(crate) enum Started {
    /// Everything is with the kernel.
    Done(Sent),
    /// The rest, for [`send_rest`].
    Rest(Rest),
}

/// Bytes that are with the kernel.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sent {
    /// The head's length, whether it is out or not.
    pub(crate) head: u64,
    /// Head and body together.
    pub(crate) total: u64,
}

impl Sent {
    /// Of the body, framing included.
    pub(crate) fn body(self) -> u64 {
        self.total.saturating_sub(self.head)
    }
}

/// One response, ready to be sent.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    /// Interim responses that are not out yet.
    pub(crate) ahead: &'a [u8],
    /// The head.
    pub(crate) line: ResponseLine<'a>,
    pub(crate) body: Body,
    /// Bytes of the body per second, if bounded.
    pub(crate) rate_max: Option<u64>,
}

/// What is still to be sent.
#[derive(Debug)]
pub(crate) struct Rest {
    head: Vec<u8>,
    body: Body,
    framing: ResponseFraming,
    sent: Sent,
    rate_max: Option<u64>,
}

impl Rest {
    /// Takes out who gets the connection once the head is sent, if it is to be handed over.
    pub(crate) fn take_over(&mut self) -> Option<Box<dyn Takeover>> {
        match std::mem::replace(&mut self.body, Body::Empty) {
            Body::Takeover(takeover) => Some(takeover),
            body => {
                self.body = body;
                None
            }
        }
    }
}

/// Why a response was not sent to its end.
#[derive(Debug)]
pub(crate) enum Cut {
    /// The client closed or the connection broke.
    Gone,
    /// The client took it too slowly.
    TooSlow,
    /// The body could not be completed.
    Body(Fault),
}

/// Encodes the head and sends as much as the socket takes at once.
pub(crate) fn send_now(stream: &Stream, outgoing: Outgoing<'_>) -> Result<Started, Cut> {
    let Outgoing {
        ahead,
        line,
        body,
        rate_max,
    } = outgoing;
    buffers::with_output(|out| {
        out.extend_from_slice(ahead);
        encode_head(out, &line);
        let framing = line.framing;
        let head = out.len() as u64;
        let sent = match &body {
            Body::Empty | Body::Omitted(_) => stream.try_write(&[IoSlice::new(out)]),
            Body::Bytes(bytes) if bytes.len() <= COPY_MAX && rate_max.is_none() => {
                let head_len = out.len();
                out.extend_from_slice(bytes);
                let sent = stream.try_write(&[IoSlice::new(out)]);
                out.truncate(head_len);
                sent
            }
            Body::Bytes(bytes) if rate_max.is_none() => {
                stream.try_write(&[IoSlice::new(out), IoSlice::new(bytes)])
            }
            Body::Bytes(_) | Body::File(_) | Body::Stream(_) | Body::Takeover(_) => {
                return Ok(Started::Rest(Rest {
                    head: out.clone(),
                    body,
                    framing,
                    sent: Sent { head, total: 0 },
                    rate_max,
                }));
            }
        };
        let sent = taken(sent)?;
        let body_len = usize::try_from(body.length().unwrap_or(0)).unwrap_or(usize::MAX);
        if sent == out.len() + body_len {
            return Ok(Started::Done(Sent {
                head,
                total: sent as u64,
            }));
        }
        let head_rest = out.get(sent..).unwrap_or_default().to_vec();
        let body = match body {
            Body::Bytes(bytes) => Body::Bytes(bytes.slice(sent.saturating_sub(out.len())..)),
            other => other,
        };
        Ok(Started::Rest(Rest {
            head: head_rest,
            body,
            framing,
            sent: Sent {
                head,
                total: sent as u64,
            },
            rate_max,
        }))
    })
}

/// Sends what `fill` puts into the empty buffer, a whole response: it gives the head's length and
/// the framing, or `None` when there is nothing to send.
pub(crate) fn send_copied(
    stream: &Stream,
    fill: impl FnOnce(&mut Vec<u8>) -> Option<(usize, ResponseFraming)>,
) -> Option<Result<Started, Cut>> {
    buffers::with_output(|out| {
        let (head, framing) = fill(out)?;
        let sent = match taken(stream.try_write(&[IoSlice::new(out)])) {
            Ok(count) => Sent {
                head: head as u64,
                total: count as u64,
            },
            Err(cut) => return Some(Err(cut)),
        };
        let rest = &out[usize::try_from(sent.total)
            .unwrap_or(usize::MAX)
            .min(out.len())..];
        Some(Ok(match rest {
            [] => Started::Done(sent),
            rest => Started::Rest(Rest {
                head: rest.to_vec(),
                body: Body::Empty,
                framing,
                sent,
                rate_max: None,
            }),
        }))
    })
}

/// How many bytes a first write took.
fn taken(written: io::Result<usize>) -> Result<usize, Cut> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        written => written.map_err(|_| Cut::Gone),
    }
}

/// Sends the rest; gives the number of bytes sent in all. Ends when the client leaves while its body is
/// not there yet. Cancel safety: none.
pub(crate) async fn send_rest(
    stream: Arc<Stream>,
    rest: Rest,
    limits: &Limits,
    watch: Watch<'_>,
) -> (Sent, Result<(), Cut>) {
    let mut sender = Sender {
        stream,
        watch,
        pace: Pace::new(limits),
        timer: LazyDeadline::new(clock::now() + limits.body_stall),
        throttle: rest
            .rate_max
            .and_then(|rate| Throttle::new(rate, clock::now())),
        sent: rest.sent,
        taken: 0,
    };
    let done = match rest.body {
        Body::Empty | Body::Omitted(_) | Body::Takeover(_) => {
            sender.write(&mut [IoSlice::new(&rest.head)]).await
        }
        Body::Bytes(bytes) => {
            sender
                .write(&mut [IoSlice::new(&rest.head), IoSlice::new(&bytes)])
                .await
        }
        Body::File(file) => sender.send_file(rest.head, file).await,
        Body::Stream(stream) => sender.send_stream(rest.head, stream, rest.framing).await,
    };
    (sender.sent, done)
}

#[derive(Debug)]
struct Sender<'c> {
    stream: Arc<Stream>,
    watch: Watch<'c>,
    pace: Pace,
    timer: LazyDeadline,
    throttle: Option<Throttle>,
    sent: Sent,
    /// Bytes that the client had taken when last looked.
    taken: u64,
}

impl Sender<'_> {
    /// Writes all of the slices at the client's pace.
    async fn write(&mut self, mut slices: &mut [IoSlice<'_>]) -> Result<(), Cut> {
        IoSlice::advance_slices(&mut slices, 0);
        while !slices.is_empty() {
            let written = match self.throttle.is_some() {
                true => self.write_held_back(slices).await?,
                false => self.write_some(slices).await?,
            };
            self.sent.total += written as u64;
            if self.pace.is_waiting() {
                self.look_what_is_taken(clock::now());
            }
            IoSlice::advance_slices(&mut slices, written);
        }
        Ok(())
    }

    /// Writes what the socket takes.
    async fn write_some(&mut self, slices: &[IoSlice<'_>]) -> Result<usize, Cut> {
        std::future::poll_fn(|cx| match self.stream.poll_write(cx, slices) {
            Poll::Ready(done) => Poll::Ready(done.map_err(|_| Cut::Gone)),
            Poll::Pending => self.poll_too_slow(cx).map(Err),
        })
        .await
    }

    /// Writes of the first slice what the socket takes and the rate allows. The head is not held back.
    async fn write_held_back(&mut self, slices: &[IoSlice<'_>]) -> Result<usize, Cut> {
        let first = slices.iter().find(|slice| !slice.is_empty());
        let Some(first) = first else { return Ok(0) };
        let head = usize::try_from(self.sent.head.saturating_sub(self.sent.total)).unwrap_or(0);
        if head > 0 {
            let head = &first[..first.len().min(head)];
            return self.write_some(&[IoSlice::new(head)]).await;
        }
        loop {
            let now = clock::now();
            let Some(throttle) = &mut self.throttle else {
                return self.write_some(slices).await;
            };
            let allowed = throttle.allows(now, first.len()).min(first.len());
            if allowed > 0 {
                let written = self.write_some(&[IoSlice::new(&first[..allowed])]).await?;
                if let Some(throttle) = &mut self.throttle {
                    throttle.spend(written);
                }
                return Ok(written);
            }
            // This wait is ours: the client is not judged by it.
            self.timer.set(throttle.ready_at(first.len()));
            self.look_what_is_taken(now);
            self.pace.pause(now);
            std::future::poll_fn(|cx| self.timer.poll(cx)).await;
        }
    }

    /// Ready when the client has taken too little for too long. The kernel reports room only after
    /// much of its buffer has drained, which takes a slow client longer than the stall limit: so
    /// before a verdict the buffer itself is asked.
    fn poll_too_slow(&mut self, cx: &mut Context<'_>) -> Poll<Cut> {
        loop {
            let now = clock::now();
            self.look_what_is_taken(now);
            self.pace.wait(now);
            let deadline = self.pace.deadline(now);
            if deadline <= now {
                return Poll::Ready(Cut::TooSlow);
            }
            self.timer.set(deadline);
            if self.timer.poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    fn look_what_is_taken(&mut self, now: Instant) {
        let taken = self.sent.total.saturating_sub(self.stream.unsent_bytes());
        if taken > self.taken {
            self.pace.progress(now, taken - self.taken);
            self.taken = taken;
        }
    }

    async fn send_file(&mut self, head: Vec<u8>, body: FileBody) -> Result<(), Cut> {
        let mut head = head;
        let (mut at, end) = (body.start, body.start + body.len);
        while at < end {
            let piece = body.file.read(at, end - at).await.map_err(|error| {
                let kind = match &error {
                    ReadError::Pool(_) => FaultKind::Overloaded,
                    ReadError::Disk(_) => FaultKind::House,
                };
                Cut::Body(Fault::new(kind, error.to_string()))
            })?;
            if piece.is_empty() {
                let cause = format!("the file became shorter than {end} bytes while it was sent");
                return Err(Cut::Body(Fault::new(FaultKind::House, cause)));
            }
            self.write(&mut [IoSlice::new(&head), IoSlice::new(&piece)])
                .await?;
            head.clear();
            at += piece.len() as u64;
        }
        if head.is_empty() {
            Ok(())
        } else {
            self.write(&mut [IoSlice::new(&head)]).await
        }
    }

    async fn send_stream(
        &mut self,
        head: Vec<u8>,
        mut body: Box<dyn BodyStream>,
        framing: ResponseFraming,
    ) -> Result<(), Cut> {
        let mut head = head;
        let mut left = match framing {
            ResponseFraming::Length(length) => Some(length),
            _ => None,
        };
        let chunked = matches!(framing, ResponseFraming::Chunked);
        let mut size_line = Vec::with_capacity(16);
        loop {
            // A body that is not ready yet must not hold back its head.
            let ready = poll_now(&mut *body).await;
            let piece = match ready {
                Some(piece) => piece,
                None => {
                    self.write(&mut [IoSlice::new(&head)]).await?;
                    head.clear();
                    next_piece(&mut *body, &mut self.watch, &self.stream).await?
                }
            };
            let Some(piece) = piece.transpose().map_err(Cut::Body)? else {
                break;
            };
            if let Some(left) = &mut left {
                *left = left
                    .checked_sub(piece.len() as u64)
                    .ok_or_else(|| Cut::Body(length_broken("longer")))?;
            }
            size_line.clear();
            let mut tail: &[u8] = b"";
            if chunked {
                h1::encode_chunk_head(piece.len(), &mut size_line);
                tail = b"\r\n";
            }
            let slices = &mut [
                IoSlice::new(&head),
                IoSlice::new(&size_line),
                IoSlice::new(&piece),
                IoSlice::new(tail),
            ];
            self.write(slices).await?;
            head.clear();
        }
        if left.is_some_and(|left| left > 0) {
            return Err(Cut::Body(length_broken("shorter")));
        }
        let last = match chunked {
            true => last_chunk(body.take_trailers().as_ref()),
            false => Cow::Borrowed(&b""[..]),
        };
        self.write(&mut [IoSlice::new(&head), IoSlice::new(&last)])
            .await
    }
}

/// What ends a chunked body, with the trailer fields that may be sent (RFC 9112 §7.1.2).
fn last_chunk(trailers: Option<&FieldBlock>) -> Cow<'static, [u8]> {
    let Some(trailers) = trailers.filter(|fields| !fields.is_empty()) else {
        return Cow::Borrowed(h1::LAST_CHUNK);
    };
    let mut last = b"0\r\n".to_vec();
    for (name, value) in trailers.iter() {
        if !is_forbidden_trailer(name.as_bytes()) && !is_for_us(name) {
            for part in [name.as_bytes(), b": ", value, b"\r\n"] {
                last.extend_from_slice(part);
            }
        }
    }
    last.extend_from_slice(b"\r\n");
    Cow::Owned(last)
}

/// Whether a server says it to the front end, which no client is to see.
fn is_for_us(name: &str) -> bool {
    let starts_with = |prefix: &str| {
        let start = name.get(..prefix.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    };
    starts_with("x-accel-") || name.eq_ignore_ascii_case("x-sendfile")
}

fn length_broken(how: &str) -> Fault {
    Fault::new(
        FaultKind::AppBroken,
        format!("the response body is {how} than its declared Content-Length"),
    )
}

type Piece = Option<Result<Bytes, Fault>>;

/// The next piece if it is ready now.
async fn poll_now(body: &mut dyn BodyStream) -> Option<Piece> {
    std::future::poll_fn(|cx| match body.poll_chunk(cx) {
        Poll::Ready(piece) => Poll::Ready(Some(piece)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// Waits for the next piece, and meanwhile notices a client that leaves. One that only closed its
/// sending side looks the same; while there is something to send it gets that.
async fn next_piece(
    body: &mut dyn BodyStream,
    watch: &mut Watch<'_>,
    stream: &Stream,
) -> Result<Piece, Cut> {
    std::future::poll_fn(|cx| {
        if let Poll::Ready(piece) = body.poll_chunk(cx) {
            return Poll::Ready(Ok(piece));
        }
        watch.poll_left(cx, stream).map(|()| Err(Cut::Gone))
    })
    .await
}
