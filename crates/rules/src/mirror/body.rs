//! The body of a request while it is copied, and the body of the copy.

use std::fmt;
use std::task::{Context, Poll};

use penstock_exchange::{Fault, IncomingBody};

use super::{CopyOutcome, PendingCopy};

/// A body that is copied as its handler reads it. At its end the copy starts.
pub(super) struct CopyingBody {
    inner: Box<dyn IncomingBody>,
    max_bytes: u64,
    bytes: Vec<u8>,
    /// `None` once the copy has started or was given up.
    copy: Option<PendingCopy>,
}

impl CopyingBody {
    pub(super) fn new(inner: Box<dyn IncomingBody>, copy: PendingCopy, max_bytes: u64) -> Self {
        Self {
            inner,
            max_bytes,
            bytes: Vec::new(),
            copy: Some(copy),
        }
    }

    fn keep(&mut self, read: &[u8], is_end: bool) {
        let Some(copy) = self.copy.take() else {
            return;
        };
        if (self.bytes.len() + read.len()) as u64 > self.max_bytes {
            self.bytes = Vec::new();
            return copy.abandon(CopyOutcome::TooLarge);
        }
        self.bytes.extend_from_slice(read);
        match is_end {
            true => copy.start(std::mem::take(&mut self.bytes)),
            false => self.copy = Some(copy),
        }
    }

    fn note(
        &mut self,
        into: &[u8],
        filled: Poll<Result<bool, Fault>>,
    ) -> Poll<Result<bool, Fault>> {
        match &filled {
            Poll::Ready(Ok(is_more)) => self.keep(into, !is_more),
            Poll::Ready(Err(_)) => {
                if let Some(copy) = self.copy.take() {
                    copy.abandon(CopyOutcome::Incomplete);
                }
            }
            Poll::Pending => {}
        }
        filled
    }
}

impl IncomingBody for CopyingBody {
    fn poll_fill(&mut self, cx: &mut Context<'_>, into: &mut Vec<u8>) -> Poll<Result<bool, Fault>> {
        let before = into.len();
        let filled = self.inner.poll_fill(cx, into);
        self.note(&into[before.min(into.len())..], filled)
    }

    fn poll_prefetch(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut Vec<u8>,
    ) -> Poll<Result<bool, Fault>> {
        let before = into.len();
        let filled = self.inner.poll_prefetch(cx, into);
        self.note(&into[before.min(into.len())..], filled)
    }

    fn is_at_end(&self) -> bool {
        self.inner.is_at_end()
    }

    fn length(&self) -> Option<u64> {
        self.inner.length()
    }
}

impl Drop for CopyingBody {
    fn drop(&mut self) {
        // A reader that knows the end need not ask for it.
        match self.copy.take() {
            Some(copy) if self.inner.is_at_end() => copy.start(std::mem::take(&mut self.bytes)),
            Some(copy) => copy.abandon(CopyOutcome::Incomplete),
            None => {}
        }
    }
}

impl fmt::Debug for CopyingBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let copied = self.bytes.len();
        f.debug_struct("CopyingBody")
            .field("copied", &copied)
            .finish()
    }
}

/// The body of a copy.
#[derive(Debug)]
pub(super) struct CopiedBody {
    bytes: Vec<u8>,
    length: u64,
}

impl CopiedBody {
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        let length = bytes.len() as u64;
        Self { bytes, length }
    }
}

impl IncomingBody for CopiedBody {
    fn poll_fill(&mut self, _: &mut Context<'_>, into: &mut Vec<u8>) -> Poll<Result<bool, Fault>> {
        let is_more = !self.bytes.is_empty();
        into.append(&mut self.bytes);
        Poll::Ready(Ok(is_more))
    }

    fn is_at_end(&self) -> bool {
        self.bytes.is_empty()
    }

    fn length(&self) -> Option<u64> {
        Some(self.length)
    }
}
