//! Pieces on their way through an encoder, on the event loop or on a thread of the pool.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use penstock_runtime::blocking::Pool;
use tokio::sync::oneshot;

use crate::encoder::Flush;
use crate::encoders::EncoderLease;

/// Pieces, with the encoder that they go through.
pub(super) struct EncodeJob {
    pub(super) lease: EncoderLease,
    pub(super) pieces: Vec<Bytes>,
    pub(super) flush: Flush,
    /// Earlier output, which the new one is appended to.
    pub(super) output: Vec<u8>,
}

/// The result of a job.
pub(super) struct Encoded {
    pub(super) lease: EncoderLease,
    pub(super) flush: Flush,
    pub(super) output: Vec<u8>,
    /// How many bytes of the output are new.
    pub(super) new_bytes: usize,
}

impl EncodeJob {
    /// Encodes the pieces.
    ///
    /// # Errors
    /// Those of the encoder.
    pub(super) fn run(self) -> io::Result<Encoded> {
        let Self {
            mut lease,
            pieces,
            flush,
            mut output,
        } = self;
        let before = output.len();
        for piece in &pieces {
            lease.encoder.encode(piece, Flush::None, &mut output)?;
        }
        if flush != Flush::None {
            lease.encoder.encode(&[], flush, &mut output)?;
        }
        Ok(Encoded {
            lease,
            flush,
            new_bytes: output.len() - before,
            output,
        })
    }
}

/// A job in the pool.
pub(super) struct PendingJob(oneshot::Receiver<io::Result<Encoded>>);

impl PendingJob {
    /// Gives the job to a thread of the pool.
    ///
    /// # Errors
    /// The job, if the pool is full.
    pub(super) fn start(job: Box<EncodeJob>, pool: &Pool) -> Result<Self, Box<EncodeJob>> {
        let (give, result) = oneshot::channel();
        let slot = Arc::new(Mutex::new(Some(job)));
        let taken = Arc::clone(&slot);
        let started = pool.spawn(move || {
            if let Some(job) = take(&taken) {
                // The body may have been dropped meanwhile.
                drop(give.send(job.run()));
            }
        });
        match started {
            Ok(()) => Ok(Self(result)),
            Err(_) => match take(&slot) {
                Some(job) => Err(job),
                // Its thread has it after all.
                None => Ok(Self(result)),
            },
        }
    }
}

fn take(slot: &Mutex<Option<Box<EncodeJob>>>) -> Option<Box<EncodeJob>> {
    slot.lock().unwrap_or_else(PoisonError::into_inner).take()
}

impl Future for PendingJob {
    type Output = io::Result<Encoded>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match ready!(Pin::new(&mut self.0).poll(cx)) {
            Ok(encoded) => Poll::Ready(encoded),
            Err(_) => Poll::Ready(Err(io::Error::other("the encoder was lost"))),
        }
    }
}
