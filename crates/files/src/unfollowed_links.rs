//! Symbolic links below a root that are not followed: found, and told once each.
//!
//! Deployments link folders into the one that is served (Laravel's `storage:link`, Capistrano's
//! `linked_dirs`), and by default no link is followed that is absolute or leads out of the root. `tree` tells
//! the log of one that a request met; `penstock check` lists them ([`find_unfollowed_links`]).
//!
//! # Invariants
//! - A link is told once for each time its folder is opened, and never more than [`TOLD_MAX`] of them.
//! - Nothing here decides what is served.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::{ffi::OsString, io};

use penstock_config::Symlinks;
use penstock_sys::file;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, openat, readlinkat, statat};

/// Links that the log is told of for one root.
const MAX_LOGGED_LINKS: usize = 32;

/// Names that are looked at for one root, in folders of at most this depth: what deployments link is at the
/// top of `public/` or in a folder of it.
const MAX_SEARCHED_NAMES: usize = 10_000;
const MAX_SEARCH_DEPTH: usize = 3;

/// The links of one root that the log was told of.
#[derive(Debug, Default)]
pub(crate) struct UnfollowedLinkLog {
    /// Relative to the root. Never held while anything is opened.
    links: Mutex<Vec<Vec<u8>>>,
}

impl UnfollowedLinkLog {
    /// Whether the log need not be told why `name` is not served.
    pub(crate) fn is_logged(&self, name: &[u8]) -> bool {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.len() >= MAX_LOGGED_LINKS || links.iter().any(|link| is_at_or_below(name, link))
    }

    /// Finds the link that `name` leads over, and tells the log unless it was told. Blocks.
    pub(crate) fn log_once(&self, root: &OwnedFd, root_name: &Path, name: &[u8]) {
        let ends = name.iter().enumerate();
        let ends = ends.filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        let mut prefixes = ends.chain([name.len()]).map(|end| &name[..end]);
        let Some(link) = prefixes.find(|prefix| is_unfollowed(root, prefix)) else {
            return;
        };
        {
            let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
            if links.len() >= MAX_LOGGED_LINKS || links.iter().any(|told| told == link) {
                return;
            }
            links.push(link.to_vec());
        }
        let link = PathBuf::from(OsString::from_vec(link.to_vec()));
        let text = explain_unfollowed_link(root_name, &link);
        log::warn!("files: 404 for {text}");
    }
}

/// What a link that is not followed means, and which key follows it.
#[must_use]
pub fn explain_unfollowed_link(root: &Path, link: &Path) -> String {
    let link = root.join(link);
    format!(
        "{link:?}: it is a symbolic link that is absolute or leads out of {root:?}, and symlinks = \
         \"inside\" follows no such link; to serve it set files = {{ ..., symlinks = \"any\" }}"
    )
}

/// The links at the top of a folder, or in a folder of it, that are not followed, relative to it; none where
/// the configuration follows all, or none at all. Blocks: for `penstock check`.
///
/// # Errors
/// When the folder cannot be read.
pub fn find_unfollowed_links(files: &penstock_config::Files) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    if files.symlinks != Symlinks::InsideRoot {
        return Ok(found);
    }
    let root = file::open_root(&files.root)?;
    let mut left = MAX_SEARCHED_NAMES;
    search_dir(
        &root,
        &root,
        Path::new(""),
        MAX_SEARCH_DEPTH,
        &mut left,
        &mut found,
    )?;
    found.sort();
    Ok(found)
}

fn search_dir(
    root: &OwnedFd,
    folder: &OwnedFd,
    name: &Path,
    depth: usize,
    left: &mut usize,
    found: &mut Vec<PathBuf>,
) -> io::Result<()> {
    let readable = openat(
        folder,
        ".",
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    for entry in Dir::new(readable)? {
        let entry = entry?;
        let own = entry.file_name();
        if own.to_bytes().starts_with(b".") {
            continue;
        }
        *left = match left.checked_sub(1) {
            Some(left) if found.len() < MAX_LOGGED_LINKS => left,
            _ => return Ok(()),
        };
        let path = name.join(std::ffi::OsStr::from_bytes(own.to_bytes()));
        let kind = match entry.file_type() {
            FileType::Unknown => statat(folder, own, AtFlags::SYMLINK_NOFOLLOW)
                .map(|stat| FileType::from_raw_mode(stat.st_mode)),
            kind => Ok(kind),
        };
        match kind {
            Ok(FileType::Symlink) if is_unfollowed(root, path.as_os_str().as_bytes()) => {
                found.push(path);
            }
            Ok(FileType::Directory) if depth > 1 => {
                let below = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                // One that is gone or closed to us since is no reason to stop.
                if let Ok(below) = openat(folder, own, below, Mode::empty()) {
                    let _ = search_dir(root, &below, &path, depth - 1, left, found);
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether a name is that of a link which is not followed, reached over none such.
fn is_unfollowed(root: &OwnedFd, name: &[u8]) -> bool {
    if name.is_empty() || readlinkat(root, name, Vec::new()).is_err() {
        return false;
    }
    let opened = file::open_beneath(root, name);
    opened.is_err_and(|error| error.kind() == io::ErrorKind::CrossesDevices)
}

fn is_at_or_below(name: &[u8], link: &[u8]) -> bool {
    name.strip_prefix(link)
        .is_some_and(|rest| matches!(rest.first(), None | Some(b'/')))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::testing::TestDir;

    #[test]
    fn links_that_lead_out_are_found_and_others_are_not() {
        let folder = TestDir::new();
        let root = folder.root();
        let outside = TestDir::new();
        outside.write("a.jpg", "x");
        folder.write("deep/er/b.txt", "b");
        folder.write("real/a.txt", "a");
        for (target, link) in [
            (outside.root(), "storage"),
            (outside.root(), "deep/er/linked"),
            (root.join("real"), "absolute"),
            (PathBuf::from("../outside"), "uploads"),
            (PathBuf::from("real"), "inside"),
            (PathBuf::from("nowhere"), "dangling"),
            (outside.root(), ".hidden"),
        ] {
            symlink(target, root.join(link)).unwrap();
        }
        let mut files = penstock_config::Files::new(root.clone());
        let found = find_unfollowed_links(&files).unwrap();
        let names: Vec<_> = found.iter().map(|path| path.to_str().unwrap()).collect();
        assert_eq!(names, ["absolute", "deep/er/linked", "storage", "uploads"]);
        for other in [Symlinks::Any, Symlinks::Deny] {
            files.symlinks = other;
            assert!(find_unfollowed_links(&files).unwrap().is_empty());
        }
    }

    #[test]
    fn a_link_is_logged_once() {
        let folder = TestDir::new();
        let root = file::open_root(&folder.root()).unwrap();
        folder.write("real/a.txt", "a");
        for number in 0..MAX_LOGGED_LINKS + 5 {
            symlink("/etc", folder.root().join(format!("link{number}"))).unwrap();
        }
        let told = UnfollowedLinkLog::default();
        assert!(!told.is_logged(b"link0/hosts"));
        for _ in 0..3 {
            told.log_once(&root, &folder.root(), b"link0/hosts");
            told.log_once(&root, &folder.root(), b"real/a.txt");
            told.log_once(&root, &folder.root(), b"nothing/at/all");
        }
        let count = || told.links.lock().unwrap().len();
        assert_eq!(count(), 1);
        for (name, expected) in [
            (&b"link0/hosts"[..], true),
            (b"link0", true),
            (b"link00", false),
            (b"link1/x", false),
        ] {
            assert_eq!(told.is_logged(name), expected, "{}", name.escape_ascii());
        }
        for number in 0..MAX_LOGGED_LINKS + 5 {
            told.log_once(&root, &folder.root(), format!("link{number}/x").as_bytes());
        }
        assert_eq!(count(), MAX_LOGGED_LINKS);
        assert!(told.is_logged(b"whatever"), "enough is enough");
    }
}
