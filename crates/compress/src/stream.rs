//! A body that is encoded while it is sent.
//!
//! Pieces of the source are collected until it has no more for now, or until they are many. Few
//! bytes are encoded on the event loop, many in the pool. If the source pauses, the encoder is flushed.
//!
//! # Invariants
//! - One piece of at most [`max_piece_bytes`] is on its way through the encoder. The source is read
//!   again only when the client has taken its output.
//! - No byte of the source stays in the encoder for longer than [`FLUSH_DELAY`], or at all if the
//!   body is flushed at each piece.
//! - A source that fails, or differs from its declared length, fails the body: no client takes a part
//!   for the whole.

mod encode_job;
mod loop_budget;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use penstock_exchange::{BodyStream, Fault, FaultKind};
use penstock_http::FieldBlock;
use penstock_runtime::{LazyDeadline, clock};

use self::encode_job::{EncodeJob, Encoded, PendingJob};
use self::loop_budget::LoopBudget;
pub(crate) use self::loop_budget::max_loop_bytes;
use crate::encoder::{EncoderSize, Flush};
use crate::encoders::{Compressor, EncoderLease};

/// Bytes that are encoded at a time: up to 5 ms of a pool's thread, beside which handing them over
/// costs little.
const MAX_PIECE_BYTES: usize = 128 << 10;

/// The same for events.
const MAX_SMALL_PIECE_BYTES: usize = 16 << 10;

/// The bytes of a body that are encoded at a time.
pub(crate) fn max_piece_bytes(size: EncoderSize) -> usize {
    match size {
        EncoderSize::Full => MAX_PIECE_BYTES,
        EncoderSize::Small => MAX_SMALL_PIECE_BYTES,
    }
}

/// Pieces that are collected at a time: a source may give single bytes.
const MAX_PIECES: usize = 1024;

/// How long an encoder may keep bytes back while its source has no more. Pieces that come closer
/// together than this are encoded together, which costs each of them less than a client notices.
const FLUSH_DELAY: Duration = Duration::from_millis(10);

/// Output is sent in pieces of at least this size unless it is flushed.
const MIN_OUTPUT_BYTES: usize = 16 << 10;

/// When a body is flushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlushPolicy {
    /// Whenever the source has no more for now: events and unbuffered bodies.
    EachPiece,
    /// When the source pauses.
    OnPause,
}

/// The bytes of a body before it is encoded.
pub(crate) enum Source {
    Memory(Bytes),
    Stream(Box<dyn BodyStream>),
}

pub(crate) struct CompressedStream {
    compressor: Compressor,
    source: Option<Box<dyn BodyStream>>,
    /// What the source gave and was not collected yet.
    unread: Bytes,
    /// What is left of the declared length.
    left: Option<u64>,
    has_source_ended: bool,
    collected: Vec<Bytes>,
    collected_bytes: usize,
    max_piece_bytes: usize,
    /// `None` while the pool has it, and behind the end.
    lease: Option<EncoderLease>,
    pending_job: Option<PendingJob>,
    budget: LoopBudget,
    policy: FlushPolicy,
    /// Bytes that the encoder may have kept back; a flush encodes them.
    kept_bytes: usize,
    /// When the encoder must be flushed; `None` if it is empty.
    flush_deadline: Option<LazyDeadline>,
    output: Vec<u8>,
    /// The output is to be sent, however small.
    is_output_due: bool,
    is_finished: bool,
}

impl CompressedStream {
    pub(crate) fn new(
        compressor: &Compressor,
        lease: EncoderLease,
        source: Source,
        policy: FlushPolicy,
    ) -> Self {
        let (source, unread) = match source {
            Source::Memory(bytes) => (None, bytes),
            Source::Stream(stream) => (Some(stream), Bytes::new()),
        };
        Self {
            compressor: compressor.clone(),
            left: source.as_ref().and_then(|source| source.length()),
            has_source_ended: false,
            source,
            unread,
            collected: Vec::new(),
            collected_bytes: 0,
            max_piece_bytes: max_piece_bytes(lease.settings.size),
            budget: LoopBudget::new(lease.settings),
            lease: Some(lease),
            pending_job: None,
            policy,
            kept_bytes: 0,
            flush_deadline: None,
            output: Vec::new(),
            is_output_due: false,
            is_finished: false,
        }
    }

    /// Collects pieces until there are enough to encode; ready with how to encode them.
    fn poll_input(&mut self, cx: &mut Context<'_>) -> Poll<Result<Flush, Fault>> {
        while self.collected_bytes < self.max_piece_bytes && self.collected.len() < MAX_PIECES {
            if !self.unread.is_empty() {
                self.collect_unread();
                continue;
            }
            match self.poll_source(cx) {
                Poll::Ready(Ok(true)) => {}
                Poll::Ready(Ok(false)) => return Poll::Ready(Ok(Flush::Finish)),
                Poll::Ready(Err(fault)) => return Poll::Ready(Err(fault)),
                Poll::Pending => return self.poll_pause(cx).map(Ok),
            }
        }
        Poll::Ready(Ok(Flush::None))
    }

    fn collect_unread(&mut self) {
        let room = self.max_piece_bytes - self.collected_bytes;
        let part = self.unread.split_to(room.min(self.unread.len()));
        self.collected_bytes += part.len();
        self.collected.push(part);
    }

    /// Reads the next piece of the source; ready with `false` at its end.
    fn poll_source(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, Fault>> {
        let source = self.source.as_mut().filter(|_| !self.has_source_ended);
        let Some(source) = source else {
            return Poll::Ready(Ok(false));
        };
        match ready!(source.poll_chunk(cx)).transpose()? {
            Some(piece) => {
                if let Some(left) = &mut self.left {
                    *left = left
                        .checked_sub(piece.len() as u64)
                        .ok_or_else(|| length_mismatch("longer"))?;
                }
                self.unread = piece;
                Poll::Ready(Ok(true))
            }
            None => {
                self.has_source_ended = true;
                match self.left {
                    Some(1..) => Poll::Ready(Err(length_mismatch("shorter"))),
                    _ => Poll::Ready(Ok(false)),
                }
            }
        }
    }

    /// The source has no more for now: encodes the collected pieces, or flushes when that is due.
    fn poll_pause(&mut self, cx: &mut Context<'_>) -> Poll<Flush> {
        if !self.collected.is_empty() {
            return Poll::Ready(match self.policy {
                FlushPolicy::EachPiece => Flush::Sync,
                FlushPolicy::OnPause => Flush::None,
            });
        }
        match &mut self.flush_deadline {
            Some(_) if self.policy == FlushPolicy::EachPiece => Poll::Ready(Flush::Sync),
            Some(deadline) => deadline.poll(cx).map(|()| Flush::Sync),
            None => Poll::Pending,
        }
    }

    /// Encodes the collected pieces, on the loop or in the pool. Pending if the pool was full and the
    /// loop did it: other tasks come first then.
    fn start_encoding(&mut self, flush: Flush, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(lease) = self.lease.take() else {
            return Poll::Ready(Err(io::Error::other("the encoder is not there")));
        };
        let input_bytes = std::mem::take(&mut self.collected_bytes);
        let job = EncodeJob {
            lease,
            pieces: std::mem::take(&mut self.collected),
            flush,
            output: std::mem::take(&mut self.output),
        };
        self.compressor
            .counters()
            .input_bytes
            .add(input_bytes as u64);
        let kept_bytes = (self.kept_bytes + input_bytes).min(MAX_PIECE_BYTES);
        let cost = match flush {
            Flush::None => input_bytes,
            Flush::Sync | Flush::Finish => kept_bytes,
        };
        self.kept_bytes = match flush {
            Flush::None => kept_bytes,
            Flush::Sync | Flush::Finish => 0,
        };
        if self.budget.take(cost, clock::now()) {
            let encoded = job.run()?;
            self.accept(encoded);
            return Poll::Ready(Ok(()));
        }
        match PendingJob::start(Box::new(job), self.compressor.pool()) {
            Ok(pending) => {
                self.pending_job = Some(pending);
                Poll::Ready(Ok(()))
            }
            Err(job) => {
                let encoded = job.run()?;
                self.accept(encoded);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }

    fn accept(&mut self, encoded: Encoded) {
        let Encoded {
            lease,
            flush,
            output,
            new_bytes,
        } = encoded;
        self.compressor
            .counters()
            .output_bytes
            .add(new_bytes as u64);
        self.output = output;
        match flush {
            Flush::None => {
                let deadline = clock::now() + FLUSH_DELAY;
                self.flush_deadline
                    .get_or_insert_with(|| LazyDeadline::new(deadline));
                self.lease = Some(lease);
            }
            Flush::Sync => {
                self.flush_deadline = None;
                self.is_output_due = true;
                self.lease = Some(lease);
            }
            Flush::Finish => {
                self.flush_deadline = None;
                self.is_output_due = true;
                self.is_finished = true;
            }
        }
    }

    fn take_output(&mut self) -> Option<Bytes> {
        let is_due = std::mem::take(&mut self.is_output_due);
        let is_ready = self.output.len() >= MIN_OUTPUT_BYTES || is_due;
        (is_ready && !self.output.is_empty()).then(|| std::mem::take(&mut self.output).into())
    }
}

impl BodyStream for CompressedStream {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
        loop {
            if let Some(job) = &mut self.pending_job {
                let encoded = ready!(Pin::new(job).poll(cx));
                self.pending_job = None;
                match encoded {
                    Ok(encoded) => self.accept(encoded),
                    Err(error) => return Poll::Ready(Some(Err(encoder_fault(&error)))),
                }
            }
            if let Some(output) = self.take_output() {
                return Poll::Ready(Some(Ok(output)));
            }
            if self.is_finished {
                return Poll::Ready(None);
            }
            let flush = match ready!(self.poll_input(cx)) {
                Ok(flush) => flush,
                Err(fault) => return Poll::Ready(Some(Err(fault))),
            };
            if let Err(error) = ready!(self.start_encoding(flush, cx)) {
                return Poll::Ready(Some(Err(encoder_fault(&error))));
            }
        }
    }

    fn length(&self) -> Option<u64> {
        None
    }

    fn take_trailers(&mut self) -> Option<FieldBlock> {
        self.source.as_mut()?.take_trailers()
    }
}

fn encoder_fault(error: &io::Error) -> Fault {
    Fault::new(FaultKind::Internal, format!("compression failed: {error}"))
}

fn length_mismatch(how: &str) -> Fault {
    Fault::new(
        FaultKind::AppProtocolError,
        format!("the response body is {how} than its declared Content-Length"),
    )
}

#[cfg(test)]
mod tests;
