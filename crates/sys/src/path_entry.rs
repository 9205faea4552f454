//! One entry of a path, held by a descriptor: the entry that was checked is the one that is used,
//! even if its name is replaced meanwhile.
//!
//! Used by `penstock` to walk to the program of the next server.
//!
//! # Invariants
//! - A symbolic link is never followed: it is an entry like any other.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;

use rustix::fs::{CWD, Mode, OFlags};

/// A file, directory or symbolic link that can be inspected, traversed and executed, but not read.
#[derive(Debug)]
pub struct PathEntry(File);

const FLAGS: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl PathEntry {
    /// Opens the root directory.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn root() -> io::Result<Self> {
        let root = rustix::fs::openat(CWD, "/", FLAGS, Mode::empty())?;
        Ok(Self(root.into()))
    }

    /// Opens the entry of that name in this directory.
    ///
    /// # Errors
    /// Those of `openat`.
    pub fn open(&self, name: &OsStr) -> io::Result<Self> {
        let entry = rustix::fs::openat(&self.0, name, FLAGS, Mode::empty())?;
        Ok(Self(entry.into()))
    }

    /// Owner, permissions and kind.
    ///
    /// # Errors
    /// Those of `fstat`.
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.0.metadata()
    }

    /// The target of this symbolic link.
    ///
    /// # Errors
    /// Those of `readlinkat`, for example that it is not a link.
    pub fn link_target(&self) -> io::Result<OsString> {
        let target = rustix::fs::readlinkat(self.0.as_fd(), "", Vec::new())?;
        Ok(OsString::from_vec(target.into_bytes()))
    }

    /// Its descriptor.
    #[must_use]
    pub fn into_fd(self) -> OwnedFd {
        self.0.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn an_entry_stays_valid_when_its_path_is_replaced() {
        let name = format!("penstock-entry-{}", std::process::id());
        let folder = std::env::temp_dir().join(&name);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("file"), "one").unwrap();
        symlink("file", folder.join("link")).unwrap();
        let mut at = PathEntry::root().unwrap();
        let canonical = folder.canonicalize().unwrap();
        for part in canonical.components().skip(1) {
            at = at.open(part.as_os_str()).unwrap();
            assert!(at.metadata().unwrap().is_dir());
        }
        let file = at.open(OsStr::new("file")).unwrap();
        let link = at.open(OsStr::new("link")).unwrap();
        assert!(link.metadata().unwrap().is_symlink());
        assert_eq!(link.link_target().unwrap(), "file");
        assert!(file.link_target().is_err() && at.open(OsStr::new("none")).is_err());
        std::fs::remove_file(folder.join("file")).unwrap();
        std::fs::write(folder.join("file"), "another one").unwrap();
        assert_eq!(file.metadata().unwrap().len(), 3);
        let fd = file.into_fd();
        let number = std::os::fd::AsRawFd::as_raw_fd(&fd);
        let shown = std::fs::read_link(format!("/proc/self/fd/{number}"));
        assert!(shown.unwrap().to_string_lossy().ends_with("file (deleted)"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
