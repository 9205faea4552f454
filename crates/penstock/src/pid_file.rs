//! The file with the server's process id: `server.pid_file` and `--pid`.
//!
//! `server` opens it before the process becomes another user, `announce` writes it, and `shutdown`
//! removes it.
//!
//! # Invariants
//!
//! - It holds the id only while the server is ready: scripts that wait for it may send signals.
//! - It belongs to the user that starts the server, also after an upgrade: the next server gets the
//!   open file. No application that runs as `server.user` can name another process in it.
//! - A file with anything but an id is never written, and the file of another server never removed.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// More than the digits of any id.
const MAX_CONTENT_BYTES: usize = 32;

/// An open file for the process id.
#[derive(Debug)]
pub(crate) struct PidFile {
    path: PathBuf,
    file: File,
}

impl PidFile {
    /// Opens the file, and makes it where it is missing; it keeps what it has until
    /// [`Self::write`]. Blocks.
    ///
    /// # Errors
    /// It cannot be written, is no plain file, or has something else than a process id.
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        let failed = |error: io::Error| format!("server.pid_file: {}: {error}", path.display());
        // A link of another user could lead anywhere.
        let flags = OFlags::NOFOLLOW.bits().cast_signed();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .custom_flags(flags)
            .open(path)
            .map_err(failed)?;
        let opened = Self {
            path: path.to_owned(),
            file,
        };
        let is_plain = opened.file.metadata().map_err(failed)?.is_file();
        match opened.content().map_err(failed)? {
            Some(text) if is_plain && text.bytes().all(|byte| byte.is_ascii_digit()) => Ok(opened),
            _ => Err(format!(
                "server.pid_file: {}: this file has something else than a process id: name another \
                 one, or remove it",
                path.display()
            )),
        }
    }

    /// The file that the previous server has open at this path.
    pub(crate) fn inherit(path: &Path, file: OwnedFd) -> Self {
        Self {
            path: path.to_owned(),
            file: file.into(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a process id. Blocks.
    pub(crate) fn write(&self, pid: u32) -> Result<(), String> {
        let written = self
            .file
            .set_len(0)
            .and_then(|()| self.file.write_all_at(format!("{pid}\n").as_bytes(), 0));
        written.map_err(|error| format!("server.pid_file: {}: {error}", self.path.display()))
    }

    /// Removes the file if it names this process, or none yet; empties it where its folder does not
    /// let this user remove it. Blocks.
    pub(crate) fn remove(&self, pid: u32) -> io::Result<()> {
        let is_own = |text: String| text.is_empty() || text == pid.to_string();
        let is_own = self.content()?.is_some_and(is_own);
        if !is_own {
            return Ok(());
        }
        match self.is_at_path() && std::fs::remove_file(&self.path).is_ok() {
            true => Ok(()),
            false => self.file.set_len(0),
        }
    }

    /// Whether the open file is still the one at its path.
    fn is_at_path(&self) -> bool {
        let (open, there) = (self.file.metadata(), self.path.symlink_metadata());
        let place = |of: &std::fs::Metadata| (of.dev(), of.ino());
        open.is_ok_and(|open| there.is_ok_and(|there| place(&open) == place(&there)))
    }

    /// Its text without the line's end; `None` if it is longer than an id or no text.
    fn content(&self) -> io::Result<Option<String>> {
        let mut bytes = [0; MAX_CONTENT_BYTES];
        let count = self.file.read_at(&mut bytes, 0)?;
        let text = std::str::from_utf8(&bytes[..count]).ok();
        Ok(text
            .filter(|text| text.len() < MAX_CONTENT_BYTES)
            .map(|text| text.trim_end().to_owned()))
    }
}

impl Drop for PidFile {
    /// A start that fails leaves no file.
    fn drop(&mut self) {
        let _ = self.remove(std::process::id());
    }
}

impl AsFd for PidFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test has no loop to block")]
mod tests {
    use super::*;

    /// A folder that is removed with its test.
    struct TestFolder(PathBuf);

    impl TestFolder {
        fn new(name: &str) -> Self {
            let name = format!("penstock-pid-{name}-{}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }
    }

    impl Drop for TestFolder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn it_has_an_id_from_ready_to_stop() {
        let folder = TestFolder::new("life");
        let path = folder.0.join("penstock.pid");
        std::fs::write(&path, "4194303\n").unwrap();
        let file = PidFile::open(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "4194303\n");
        file.write(77).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "77\n");
        // The next server has taken it over.
        let next = PidFile::inherit(&path, file.as_fd().try_clone_to_owned().unwrap());
        next.write(78).unwrap();
        file.remove(77).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "78\n");
        next.remove(78).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_file_that_another_has_put_there_stays() {
        let folder = TestFolder::new("other");
        let path = folder.0.join("penstock.pid");
        let file = PidFile::open(&path).unwrap();
        file.write(77).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "99\n").unwrap();
        file.remove(77).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "99\n");
    }

    #[test]
    fn nothing_but_an_id_is_written_over() {
        let folder = TestFolder::new("refused");
        let path = folder.0.join("file");
        for content in ["root:x:0:0:root:/root:/bin/sh\n", "12a", &"1".repeat(40)] {
            std::fs::write(&path, content).unwrap();
            let error = PidFile::open(&path).unwrap_err();
            assert!(
                error.contains("something else than a process id"),
                "{error}"
            );
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
        }
        let link = folder.0.join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(PidFile::open(&link).is_err());
        let error = PidFile::open(&folder.0.join("none/x.pid")).unwrap_err();
        assert!(error.starts_with("server.pid_file: "), "{error}");
    }
}
