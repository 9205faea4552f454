//! An unnamed temporary file, closed off the event loops.
//!
//! Used for request bodies (`collect`) and responses (`spool`) that are too big for memory. Closing
//! the last descriptor of a large unnamed file frees its blocks, which takes tens of milliseconds a
//! gigabyte, so the drop is a job of the pool.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use penstock_runtime::blocking::Pool;
use penstock_sys::file;

use super::TempSpaceGrant;

/// An open file that is gone with its last use.
#[derive(Debug)]
pub struct SpoolFile {
    /// `None` only while it is dropped.
    file: Option<File>,
    pool: Pool,
    /// The granted space, released once the file is closed.
    grant: Arc<TempSpaceGrant>,
}

impl SpoolFile {
    /// Creates one in `dir`, for as many bytes as `grant` has. Blocks: for a pool.
    ///
    /// # Errors
    /// When the directory takes no file.
    pub fn create(dir: &Path, pool: Pool, grant: Arc<TempSpaceGrant>) -> io::Result<Self> {
        let file = Some(file::unnamed_temp_file(dir)?);
        Ok(Self { file, pool, grant })
    }

    /// Reads bytes at `at` that are in memory already.
    ///
    /// # Errors
    /// When none are, or the kernel cannot tell.
    pub fn read_at_if_cached(&self, bytes: &mut [u8], at: u64) -> io::Result<usize> {
        file::read_at_if_cached(self, bytes, at)
    }
}

impl AsFd for SpoolFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        (**self).as_fd()
    }
}

impl Deref for SpoolFile {
    type Target = File;

    fn deref(&self) -> &File {
        self.file.as_ref().expect("taken by Drop only")
    }
}

impl Drop for SpoolFile {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            let grant = Arc::clone(&self.grant);
            self.pool.run_detached(move || {
                drop(file);
                drop(grant);
            });
        }
    }
}
