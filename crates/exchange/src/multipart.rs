//! The body of a response with several parts of one content (`multipart/byteranges`, RFC 9110
//! §14.6).
//!
//! `http` frames the parts (`MultipartRanges`); here they get their bytes. Parts of content in
//! memory are joined at once, those of a file are read through its pool while they are sent.
//!
//! # Invariants
//! - Exactly the announced length is sent, or the connection is cut.
//! - Nothing is sent before the first content is read, so that a full pool can still become an
//!   error status.
//! - A slow client holds one small piece.

use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::future::Future;
use std::hash::BuildHasher;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use penstock_http::{ByteRange, MultipartPiece, MultipartRanges};
use penstock_runtime::disk::{ReadError, SMALL_READ_BYTES};

use crate::{Body, BodyStream, Fault, FaultKind, FileBody};

/// The source of the parts.
#[derive(Debug, Clone)]
pub enum MultipartSource {
    /// Content in memory.
    Memory(Bytes),
    /// Content in a file.
    File(FileBody),
}

/// The framed parts of `whole`; their spans lie within it.
#[must_use]
pub fn multipart_body(whole: MultipartSource, framed: MultipartRanges) -> Body {
    let length = framed.length();
    match whole {
        MultipartSource::Memory(content) => {
            let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
            for piece in framed.into_pieces() {
                match piece {
                    MultipartPiece::Text(text) => bytes.extend_from_slice(&text),
                    MultipartPiece::Content(span) => {
                        bytes.extend_from_slice(slice_span(&content, span));
                    }
                }
            }
            Body::Bytes(bytes.into())
        }
        MultipartSource::File(file) => Body::Stream(Box::new(MultipartFileStream {
            file,
            length,
            pieces: framed.into_pieces().into(),
            first_text: None,
            next_piece: None,
            has_read_content: false,
            pending_read: None,
        })),
    }
}

/// An unguessable number for the text between parts: its halves are hashes under random keys.
#[must_use]
pub fn random_boundary() -> u128 {
    let half = || u128::from(RandomState::new().hash_one(0_u8));
    half() << 64 | half()
}

fn slice_span(content: &[u8], span: ByteRange) -> &[u8] {
    let start = usize::try_from(span.start).unwrap_or(usize::MAX);
    let len = usize::try_from(span.len).unwrap_or(usize::MAX);
    let end = start.saturating_add(len);
    content.get(start..end).unwrap_or_default()
}

type PartReadFuture = Pin<Box<dyn Future<Output = Result<Bytes, ReadError>> + Send>>;

struct MultipartFileStream {
    file: FileBody,
    length: u64,
    pieces: VecDeque<MultipartPiece>,
    /// The first text, until the content behind it is read.
    first_text: Option<Bytes>,
    next_piece: Option<Bytes>,
    has_read_content: bool,
    pending_read: Option<PartReadFuture>,
}

impl BodyStream for MultipartFileStream {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
        if let Some(next) = self.next_piece.take() {
            return Poll::Ready(Some(Ok(next)));
        }
        if self.pending_read.is_none() {
            if let Some(MultipartPiece::Text(text)) = self.pieces.front_mut() {
                let text = Bytes::from(std::mem::take(text));
                self.pieces.pop_front();
                if self.has_read_content {
                    return Poll::Ready(Some(Ok(text)));
                }
                self.first_text = Some(text);
            }
            let Some(MultipartPiece::Content(span)) = self.pieces.front() else {
                return Poll::Ready(self.first_text.take().map(Ok));
            };
            let file = Arc::clone(&self.file.file);
            let at = self.file.start.saturating_add(span.start);
            let len = span.len.min(SMALL_READ_BYTES);
            self.pending_read = Some(Box::pin(async move { file.read(at, len).await }));
        }
        let Some(reading) = &mut self.pending_read else {
            return Poll::Ready(None);
        };
        let read = std::task::ready!(reading.as_mut().poll(cx));
        self.pending_read = None;
        let content = match read {
            Ok(bytes) => self.advance(bytes),
            Err(error) => Err(read_fault(&error)),
        };
        self.has_read_content = true;
        Poll::Ready(Some(match (content, self.first_text.take()) {
            (Ok(content), Some(first)) => {
                self.next_piece = Some(content);
                Ok(first)
            }
            (content, _) => content,
        }))
    }

    fn length(&self) -> Option<u64> {
        Some(self.length)
    }
}

impl MultipartFileStream {
    /// Counts bytes read of the part in front.
    fn advance(&mut self, bytes: Bytes) -> Result<Bytes, Fault> {
        let count = bytes.len() as u64;
        match self.pieces.front_mut() {
            Some(MultipartPiece::Content(span)) if count > 0 && count <= span.len => {
                span.start += count;
                span.len -= count;
                if span.len == 0 {
                    self.pieces.pop_front();
                }
                Ok(bytes)
            }
            _ => {
                let cause = "a file became shorter while parts of it were sent";
                Err(Fault::new(FaultKind::Internal, cause))
            }
        }
    }
}

fn read_fault(error: &ReadError) -> Fault {
    let kind = match error.is_overload() {
        true => FaultKind::Overloaded,
        false => FaultKind::Internal,
    };
    Fault::new(kind, error.to_string())
}

#[cfg(test)]
mod tests;
