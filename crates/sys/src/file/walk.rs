//! Opens paths beneath a root without `openat2`: directory by directory, with no link followed by
//! the kernel.
//!
//! Used by `file` where that call is missing (Linux before 5.6) or forbidden (systemd's
//! `RestrictSUIDSGID`, older Docker, gVisor). Results equal those of `openat2`, errors included.
//!
//! # Invariants
//!
//! - Each step opens one name in an open directory with `O_NOFOLLOW`: a concurrent change of the
//!   tree cannot make a step lead elsewhere.
//! - `..` never asks the kernel for a parent: the directories above are opened again from the root,
//!   by the names that led down.
//! - A path has at most [`MAX_STEPS`] steps, links and their targets included.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::SymlinkPolicy;

/// Maximum links in one path, as many as the kernel follows (path_resolution(7)).
const MAX_LINKS: usize = 40;

/// Longest path, with its terminator (path_resolution(7)).
const MAX_PATH_BYTES: usize = 4096;

/// Maximum opens for one path: one of [`MAX_PATH_BYTES`] has at most half as many names.
const MAX_STEPS: usize = 4096;

/// Opens `relative` beneath `root` as `openat2` does with `RESOLVE_BENEATH`, treating links by
/// `symlinks`. Blocks.
pub(super) fn open(
    root: BorrowedFd<'_>,
    relative: &[u8],
    symlinks: SymlinkPolicy,
    flags: OFlags,
) -> Result<File, Errno> {
    if relative.starts_with(b"/") {
        return Err(Errno::XDEV);
    }
    if relative.len() >= MAX_PATH_BYTES {
        return Err(Errno::NAMETOOLONG);
    }
    if relative.contains(&0) {
        return Err(Errno::INVAL);
    }
    let mut walk = PathWalk {
        root,
        base: None,
        dir: None,
        names: Vec::new(),
        remaining_names: Vec::new(),
        symlinks,
        links: 0,
        steps: 0,
    };
    walk.push(relative);
    walk.run(flags)
}

struct PathWalk<'r> {
    root: BorrowedFd<'r>,
    /// The start of names instead of `root`, once a link has led out of the root.
    base: Option<OwnedFd>,
    /// The directory reached so far; the start when none.
    dir: Option<OwnedFd>,
    /// The names that led to it from the start, none of them a link.
    names: Vec<Vec<u8>>,
    /// The names that remain, the next one last.
    remaining_names: Vec<Vec<u8>>,
    symlinks: SymlinkPolicy,
    links: usize,
    steps: usize,
}

impl PathWalk<'_> {
    /// Puts the names of a path before the remaining ones. Each trailing slash is a `.`, which
    /// requires a directory.
    fn push(&mut self, path: &[u8]) {
        let parts = path.split(|byte| *byte == b'/').rev();
        let parts = parts.map(|part| if part.is_empty() { b"." } else { part });
        self.remaining_names.extend(parts.map(<[u8]>::to_vec));
    }

    fn run(&mut self, flags: OFlags) -> Result<File, Errno> {
        while let Some(name) = self.remaining_names.pop() {
            let is_last = self.remaining_names.is_empty();
            match name.as_slice() {
                b"." => {}
                b".." => self.go_up()?,
                name if is_last => match self.open_at(name, flags | OFlags::NOFOLLOW) {
                    // A link, or with O_DIRECTORY not a directory.
                    Err(error @ (Errno::LOOP | Errno::NOTDIR)) => self.follow(name, error)?,
                    opened => return Ok(File::from(opened?)),
                },
                name => self.descend(name)?,
            }
        }
        // The path ends at a directory that is open already.
        let opened = self.open_at(b".", flags | OFlags::DIRECTORY);
        Ok(File::from(opened?))
    }

    fn descend(&mut self, name: &[u8]) -> Result<(), Errno> {
        match self.open_at(name, DIR_FLAGS) {
            Ok(folder) => {
                self.dir = Some(folder);
                self.names.push(name.to_vec());
                Ok(())
            }
            Err(error @ (Errno::LOOP | Errno::NOTDIR)) => self.follow(name, error),
            Err(error) => Err(error),
        }
    }

    /// Continues with the target of a link; returns `otherwise` if it is not one.
    fn follow(&mut self, name: &[u8], otherwise: Errno) -> Result<(), Errno> {
        let path = Path::new(OsStr::from_bytes(name));
        let text = match rustix::fs::readlinkat(self.current_dir(), path, Vec::new()) {
            Err(Errno::INVAL) => return Err(otherwise),
            text => text?,
        };
        self.links += 1;
        if self.symlinks == SymlinkPolicy::Never || self.links > MAX_LINKS {
            return Err(Errno::LOOP);
        }
        let text = text.as_bytes();
        if text.starts_with(b"/") {
            if self.symlinks != SymlinkPolicy::Anywhere {
                return Err(Errno::XDEV);
            }
            self.restart_at(open_dir(rustix::fs::CWD, b"/")?);
        }
        self.push(text);
        Ok(())
    }

    /// Moves to the parent directory.
    fn go_up(&mut self) -> Result<(), Errno> {
        if self.names.pop().is_none() {
            if self.symlinks != SymlinkPolicy::Anywhere {
                return Err(Errno::XDEV);
            }
            // A link may lead above the root; the parent of `/` is `/` itself.
            let above = self.open_at(b"..", DIR_FLAGS)?;
            self.restart_at(above);
            return Ok(());
        }
        self.dir = None;
        for name in self.names.clone() {
            self.dir = Some(self.open_at(&name, DIR_FLAGS)?);
        }
        Ok(())
    }

    fn restart_at(&mut self, base: OwnedFd) {
        self.base = Some(base);
        self.dir = None;
        self.names.clear();
    }

    fn current_dir(&self) -> BorrowedFd<'_> {
        let base = self.base.as_ref().map_or(self.root, AsFd::as_fd);
        self.dir.as_ref().map_or(base, AsFd::as_fd)
    }

    fn open_at(&mut self, name: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return Err(Errno::LOOP);
        }
        let name = Path::new(OsStr::from_bytes(name));
        rustix::fs::openat(self.current_dir(), name, flags, Mode::empty())
    }
}

/// How directories on the way are opened.
const DIR_FLAGS: OFlags = OFlags::PATH
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

fn open_dir(at: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let name = Path::new(OsStr::from_bytes(name));
    rustix::fs::openat(at, name, DIR_FLAGS, Mode::empty())
}

#[cfg(test)]
mod tests;
