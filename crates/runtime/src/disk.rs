//! Files that are sent: what of them is in memory goes out from the loop, the rest is read in a pool.
//!
//! `files` and `cache` open a [`DiskFile`] once and share it between requests; `edge` asks
//! [`DiskFile::resident`] right before each piece it sends and [`DiskFile::read`] for what is not
//! there. What must stay true: the loop never waits for a disk, and one reading of a chunk serves all
//! who wait for it.

use std::fs::File;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use penstock_sys::file;

use crate::blocking::{Pool, PoolError};

/// Bytes that a pool reads at a time, and the grid on which readings are shared.
pub const CHUNK_BYTES: u64 = 512 * 1024;

/// An open regular file, with the pool that reads what of it is not in memory.
#[derive(Debug)]
pub struct DiskFile {
    file: File,
    pool: Pool,
}

/// Why a piece of a file was not read.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadError {
    /// The pool did not take the work.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The disk's answer; shared by all who waited for it.
    #[error("cannot read the file: {0}")]
    Disk(Arc<io::Error>),
}

impl DiskFile {
    /// Takes an open regular file. Makes no system call that could wait for a disk.
    #[must_use]
    pub fn new(file: File, pool: Pool) -> Self {
        Self { file, pool }
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The pool that reads it.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// How many of the `len` bytes at `at` can be sent or read right now without waiting for the disk: a
    /// prefix; 0 when the first is not in memory or the file system cannot tell.
    #[must_use]
    pub fn resident(&self, at: u64, len: u64) -> u64 {
        let _ = (at, len);
        0
    }

    /// Reads some bytes at `at` in the pool: up to the end of its chunk, at most `len`; none at the
    /// file's end. Others who want the same chunk meanwhile wait for the same reading.
    ///
    /// # Errors
    /// The pool is full or the disk failed.
    pub async fn read(self: &Arc<Self>, at: u64, len: u64) -> Result<Bytes, ReadError> {
        let this = Arc::clone(self);
        let left = CHUNK_BYTES - at % CHUNK_BYTES;
        let len = usize::try_from(len.min(left)).unwrap_or(usize::MAX);
        let read = self.pool.run(move || {
            let mut bytes = vec![0; len];
            let count = file::read_at(&this.file, &mut bytes, at)?;
            bytes.truncate(count);
            Ok(Bytes::from(bytes))
        });
        read.await?
            .map_err(|error: io::Error| ReadError::Disk(Arc::new(error)))
    }
}
