//! Temporary folders, gone when they are dropped.
//!
//! The workshop has one for its own things, each start one as `{{dir}}`. A keeper removes them too, for
//! the case that this process is killed.

use std::io;
use std::path::{Path, PathBuf};

/// A folder that nobody else has; removed with all that is in it on drop.
#[derive(Debug)]
pub(super) struct TempDir {
    path: PathBuf,
}

impl TempDir {
    /// Makes a new, empty one. Others may read it: a front end gives up its privileges before it
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
