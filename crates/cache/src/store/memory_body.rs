//! A body that the memory tier holds.
//!
//! What is small is copied behind the head of each answer. What is larger is sent by reference, as files are:
//! of a cache with a disk it is left to its file, which the page cache holds as well; a cache of memory
//! alone has an arena for it.

use bytes::Bytes;
use penstock_exchange::FileBody;
use penstock_runtime::DiskFile;
use penstock_runtime::disk::Arena;

/// A body in memory.
#[derive(Debug, Clone)]
pub(crate) enum MemoryBody {
    /// In a buffer.
    Bytes(Bytes),
    /// In an arena.
    Arena(FileBody),
}

/// Larger bodies are sent by reference: from here on that costs less than the copy (`edge` sends what is not
/// larger by a copy in any case).
pub(super) const MAX_BUFFERED_BODY: u64 = 16 * 1024;

impl MemoryBody {
    /// Bytes of the body.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Arena(body) => body.len,
        }
    }

    /// The memory that it takes.
    pub(super) fn weight(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Arena(body) => Arena::allocated_bytes(body.len) + size_of::<DiskFile>() as u64,
        }
    }

    /// Up to `most` bytes of it from `at` on; none at its end.
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
