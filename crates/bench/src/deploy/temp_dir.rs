//! Temporary directories, removed on drop. A keeper removes them too in case this process is
//! killed.
//!
//! The testbed has one for itself; each start has one as `{{dir}}`.

use std::io;
use std::path::{Path, PathBuf};

/// A unique directory; removed with its content on drop.
#[derive(Debug)]
pub(super) struct TempDir {
    path: PathBuf,
}

impl TempDir {
    /// Creates a new, empty one. Others may read it: a front end drops its privileges before it
    /// opens the files that a scenario puts there.
    pub(super) fn new() -> io::Result<Self> {
        let parent = std::env::temp_dir();
        for attempt in 0_u32.. {
            let name = format!("penstock-bench-{}-{attempt}", std::process::id());
            let path = parent.join(name);
            match std::fs::create_dir(&path) {
                Ok(()) => return Ok(Self { path }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // A keeper may have removed it already.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
