//! A file as a stream of pieces, for a file that is encoded while it is sent.
//!
//! # Invariants
//! - The event loop never waits for a disk: bytes that are not resident are read by the file's pool.
//! - A file that became shorter is an error, never a clean end.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use penstock_exchange::{BodyStream, Fault, FaultKind, FileBody};
use penstock_runtime::disk::{ReadError, SMALL_READ_BYTES};

type ReadFuture = Pin<Box<dyn Future<Output = Result<Bytes, ReadError>> + Send>>;

pub(crate) struct FileStream {
    /// What is left of it.
    file: FileBody,
    length: u64,
    pending_read: Option<ReadFuture>,
}

impl FileStream {
    pub(crate) fn new(file: FileBody) -> Self {
        Self {
            length: file.len,
            file,
            pending_read: None,
        }
    }

    /// The next piece, if it is resident.
    fn read_resident(&self, len: u64) -> Option<Bytes> {
        let len = usize::try_from(len).ok()?;
        let mut piece = Vec::with_capacity(len);
        let is_resident = self
            .file
            .file
            .append_resident(self.file.start, len, &mut piece);
        is_resident.then(|| piece.into())
    }

    /// Counts a piece that was read.
    fn advance(&mut self, piece: Bytes) -> Result<Bytes, Fault> {
        let count = piece.len() as u64;
        if count == 0 || count > self.file.len {
            let cause = "a file became shorter while it was sent";
            return Err(Fault::new(FaultKind::Internal, cause));
        }
        self.file.start += count;
        self.file.len -= count;
        Ok(piece)
    }
}

impl BodyStream for FileStream {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
        if self.pending_read.is_none() {
            let len = self.file.len.min(SMALL_READ_BYTES);
            if len == 0 {
                return Poll::Ready(None);
            }
            if let Some(piece) = self.read_resident(len) {
                return Poll::Ready(Some(self.advance(piece)));
            }
            let (file, at) = (Arc::clone(&self.file.file), self.file.start);
            self.pending_read = Some(Box::pin(async move { file.read(at, len).await }));
        }
        let Some(reading) = &mut self.pending_read else {
            return Poll::Ready(None);
        };
        let read = std::task::ready!(reading.as_mut().poll(cx));
        self.pending_read = None;
        Poll::Ready(Some(match read {
            Ok(piece) => self.advance(piece),
            Err(error) => Err(read_fault(&error)),
        }))
    }

    fn length(&self) -> Option<u64> {
        Some(self.length)
    }
}

fn read_fault(error: &ReadError) -> Fault {
    let kind = match error.is_overload() {
        true => FaultKind::Overloaded,
        false => FaultKind::Internal,
    };
    Fault::new(kind, error.to_string())
}
