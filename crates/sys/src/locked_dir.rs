//! Directories for the sockets of processes, removed by their owner, or at the next start if that
//! was killed.
//!
//! Used by `apps` for processes that are told where to listen. The owner keeps a lock on its
//! directory, which the kernel releases however the process ends. This does not rely on a process
//! id, which may be reused or belong to another container that shares the parent directory.
//!
//! # Invariants
//!
//! - A directory is removed only if this user owns it, no other user may enter it, and it is not
//!   locked.
//! - Only sockets with names of ours, and plain files with such a name and a suffix, are removed
//!   from it: a directory with anything else stays.
//! - No link is followed.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// A locked directory, removed with its content on drop.
#[derive(Debug)]
pub struct LockedDir {
    path: PathBuf,
    _lock: OwnedFd,
}

impl LockedDir {
    /// Creates `path`, for this user alone.
    ///
    /// # Errors
    /// `AlreadyExists` when the name is taken, otherwise those of `mkdir`.
    pub fn create(path: PathBuf) -> io::Result<Self> {
        DirBuilder::new().mode(0o700).create(&path)?;
        let lock = rustix::fs::open(&path, DIR_FLAGS, Mode::empty())?;
        // On a file system without locks no other process can lock it either, so it is left alone.
        let locked = rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive);
        if locked == Err(Errno::WOULDBLOCK) {
            // A process that removes abandoned directories was quicker.
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let (ours, there) = (rustix::fs::fstat(&lock)?, rustix::fs::lstat(&path));
        let is_there = there.is_ok_and(|it| (it.st_dev, it.st_ino) == (ours.st_dev, ours.st_ino));
        if !is_there {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        Ok(Self { path, _lock: lock })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for LockedDir {
    fn drop(&mut self) {
        // At worst some empty files stay in a temporary directory.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Flags to open a directory that any process may have placed there.
const DIR_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Suffix of a socket's name in such a directory.
const SOCKET_SUFFIX: &[u8] = b".sock";

/// Removes the directories in `parent` whose names begin with `prefix` and whose owners have
/// exited; returns their number. Blocks.
pub fn remove_abandoned(parent: &Path, prefix: &str) -> io::Result<usize> {
    let parent = rustix::fs::open(parent, DIR_FLAGS - OFlags::NOFOLLOW, Mode::empty())?;
    let mut names = Vec::new();
    for entry in Dir::read_from(&parent)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_bytes().starts_with(prefix.as_bytes()) {
            names.push(name.to_owned());
        }
    }
    let removed = names.iter().filter(|name| {
        let folder = rustix::fs::openat(&parent, name.as_c_str(), DIR_FLAGS, Mode::empty());
        folder.is_ok_and(|folder| {
            is_abandoned(&folder)
                && remove_own_files(&folder).is_ok()
                && rustix::fs::unlinkat(&parent, name.as_c_str(), AtFlags::REMOVEDIR).is_ok()
        })
    });
    Ok(removed.count())
}

/// Whether a directory is ours and abandoned; if so it is locked while it is open.
fn is_abandoned(folder: &OwnedFd) -> bool {
    let is_ours = rustix::fs::fstat(folder).is_ok_and(|stat| {
        stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o777 == 0o700
    });
    is_ours && rustix::fs::flock(folder, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// Removes the files in it that we may have created.
fn remove_own_files(folder: &OwnedFd) -> io::Result<()> {
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if is_own_file(folder.as_fd(), name.to_bytes()) {
            rustix::fs::unlinkat(folder, name, AtFlags::empty())?;
        }
    }
    Ok(())
}

/// Whether it is a socket named by a number and `.sock`, or a plain file with a name that continues
/// such a name: programs put locks beside their sockets.
fn is_own_file(folder: std::os::fd::BorrowedFd<'_>, name: &[u8]) -> bool {
    let digits = name.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let Some(rest) = name[digits..].strip_prefix(SOCKET_SUFFIX) else {
        return false;
    };
    let name = std::ffi::OsStr::new(std::str::from_utf8(name).unwrap_or_default());
    let stat = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
    let kind = stat.map(|stat| FileType::from_raw_mode(stat.st_mode));
    digits > 0
        && match kind {
            Ok(FileType::Socket) => rest.is_empty(),
            Ok(FileType::RegularFile) => !rest.is_empty(),
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    /// A parent directory, removed with its test.
    struct Parent(PathBuf);

    impl Parent {
        fn new(name: &str) -> Self {
            let name = format!("penstock-locked-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }

        /// A directory as a killed owner leaves it.
        fn abandoned(&self, name: &str) -> PathBuf {
            let path = self.0.join(name);
            DirBuilder::new().mode(0o700).create(&path).unwrap();
            path
        }
    }

    impl Drop for Parent {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn abandoned_dirs_are_removed_and_locked_ones_stay() {
        let parent = Parent::new("used");
        let left = parent.abandoned("x.1");
        drop(UnixListener::bind(left.join("1.sock")).unwrap());
        std::fs::write(left.join("1.sock.lock"), "").unwrap();
        let used = LockedDir::create(parent.0.join("x.2")).unwrap();
        drop(UnixListener::bind(used.path().join("1.sock")).unwrap());
        let other = parent.abandoned("y.3");
        assert_eq!(remove_abandoned(&parent.0, "x.").unwrap(), 1);
        assert!(!left.exists() && other.exists());
        assert!(used.path().join("1.sock").exists());
        let path = used.path().to_owned();
        drop(used);
        assert!(!path.exists());
    }

    #[test]
    fn foreign_files_are_never_removed() {
        let parent = Parent::new("strange");
        let outside = parent.0.join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("1.sock.x"), "").unwrap();
        symlink(&outside, parent.0.join("x.link")).unwrap();
        std::fs::write(parent.0.join("x.file"), "").unwrap();
        let wide = parent.abandoned("x.wide");
        std::fs::set_permissions(&wide, std::fs::Permissions::from_mode(0o755)).unwrap();
        let precious = parent.abandoned("x.precious");
        std::fs::write(precious.join("letter"), "").unwrap();
        let linked = parent.abandoned("x.linked");
        symlink(outside.join("1.sock.x"), linked.join("1.sock")).unwrap();
        let plain = parent.abandoned("x.plain");
        std::fs::write(plain.join("1.sock"), "").unwrap();
        assert_eq!(remove_abandoned(&parent.0, "x.").unwrap(), 0);
        for path in [
            outside.join("1.sock.x"),
            parent.0.join("x.link"),
            parent.0.join("x.file"),
            wide,
            precious.join("letter"),
            linked.join("1.sock"),
            plain.join("1.sock"),
        ] {
            assert!(path.symlink_metadata().is_ok(), "{}", path.display());
        }
    }

    #[test]
    fn a_name_is_locked_once() {
        let parent = Parent::new("once");
        let first = LockedDir::create(parent.0.join("x.1")).unwrap();
        let again = LockedDir::create(parent.0.join("x.1")).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        assert!(first.path().exists());
    }
}
