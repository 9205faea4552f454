//! A body in the memory tier.
//!
//! A small body is copied behind the head of each response. A larger one is sent by reference, like
//! a file: a cache with a disk leaves it to its file, which is in the page cache as well; a cache
//! in memory stores it in an arena.

use bytes::Bytes;
use penstock_exchange::FileBody;
use penstock_runtime::DiskFile;
use penstock_runtime::disk::Arena;

#[derive(Debug, Clone)]
pub(crate) enum MemoryBody {
    Bytes(Bytes),
    Arena(FileBody),
}

/// Larger bodies are sent by reference, which is cheaper than the copy from this size on (`edge`
/// copies smaller ones in any case).
pub(super) const MAX_BUFFERED_BODY_BYTES: u64 = 16 * 1024;

impl MemoryBody {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Arena(body) => body.len,
        }
    }

    /// The memory that the body occupies.
    pub(super) fn memory_bytes(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Arena(body) => Arena::allocated_bytes(body.len) + size_of::<DiskFile>() as u64,
        }
    }

    /// Up to `most` bytes from `at` on; empty at the end.
    pub(super) fn part(&self, at: u64, most: usize) -> Bytes {
        let len = usize::try_from(self.len().saturating_sub(at)).map_or(most, |len| len.min(most));
        match self {
            Self::Bytes(bytes) => {
                let at = usize::try_from(at).unwrap_or(bytes.len()).min(bytes.len());
                bytes.slice(at..at + len)
            }
            Self::Arena(body) => {
                let mut part = Vec::new();
                let is_read = body.file.append_resident(body.start + at, len, &mut part);
                debug_assert!(is_read, "an arena is memory");
                part.into()
            }
        }
    }
}
