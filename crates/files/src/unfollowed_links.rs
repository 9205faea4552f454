//! Finds symbolic links below a root that are not followed, and logs each once.
//!
//! Deployments link directories into the served one (Laravel's `storage:link`, Capistrano's
//! `linked_dirs`). By default links that are absolute or leave the root are not followed.
//! `file_tree` logs such a link when a request meets it; `penstock check` lists them
//! ([`find_unfollowed_links`]).
//!
//! # Invariants
//!
//! - A link is logged once per opening of its root, and at most [`MAX_LOGGED_NAMES`] links are.
//! - Nothing here decides what is served.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::{ffi::OsString, io};

use penstock_config::Symlinks;
use penstock_sys::file;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, openat, readlinkat, statat};

use crate::logged_names::{LoggedNames, MAX_LOGGED_NAMES};

/// Names searched in one root, in directories of at most this depth: deployments link at the top of
/// `public/` or one level below.
const MAX_SEARCHED_NAMES: usize = 10_000;
const MAX_SEARCH_DEPTH: usize = 3;

/// Whether a link in the path of `name` need not be logged any more.
pub(crate) fn is_link_logged(log: &LoggedNames, name: &[u8]) -> bool {
    log.is_logged_or_full(|link| is_at_or_below(name, link))
}

/// Finds the link in the path of `name`, and logs it unless it was logged before. Blocks.
pub(crate) fn log_unfollowed_link(
    log: &LoggedNames,
    root: &OwnedFd,
    root_name: &Path,
    name: &[u8],
) {
    let ends = name.iter().enumerate();
    let ends = ends.filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    let mut prefixes = ends.chain([name.len()]).map(|end| &name[..end]);
    let link = prefixes.find(|prefix| is_unfollowed(root, prefix));
    if let Some(link) = link.filter(|link| log.insert(link)) {
        let link = PathBuf::from(OsString::from_vec(link.to_vec()));
        let text = explain_unfollowed_link(root_name, &link);
        log::warn!("files: 404 for {text}");
    }
}

/// Explains why a link is not followed, and which key follows it.
#[must_use]
pub fn explain_unfollowed_link(root: &Path, link: &Path) -> String {
    let link = root.join(link);
    format!(
        "{link:?}: it is a symbolic link that is absolute or leads out of {root:?}, and symlinks = \
         \"inside\" follows no such link; to serve it set files = {{ ..., symlinks = \"any\" }}"
    )
}

/// Finds links that are not followed, down to the search depth, relative to the root. Empty if the
/// configuration follows all links or none. Blocks: for `penstock check`.
///
/// # Errors
/// Fails if the directory cannot be read.
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
            Some(left) if found.len() < MAX_LOGGED_NAMES => left,
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
                // An inaccessible directory does not stop the search.
                if let Ok(below) = openat(folder, own, below, Mode::empty()) {
                    let _ = search_dir(root, &below, &path, depth - 1, left, found);
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether the name is a link that is not followed, not reached through another one.
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
    use crate::test_support::TestDir;

    #[test]
    fn links_that_lead_out_are_found_and_others_are_not() {
        let folder = TestDir::new();
        let root = folder.root();
        let outside = TestDir::new();
        outside.write_file("a.jpg", "x");
        folder.write_file("deep/er/b.txt", "b");
        folder.write_file("real/a.txt", "a");
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
        folder.write_file("real/a.txt", "a");
        for number in 0..MAX_LOGGED_NAMES + 5 {
            symlink("/etc", folder.root().join(format!("link{number}"))).unwrap();
        }
        let logged = LoggedNames::default();
        assert!(!is_link_logged(&logged, b"link0/hosts"));
        for _ in 0..3 {
            log_unfollowed_link(&logged, &root, &folder.root(), b"link0/hosts");
            log_unfollowed_link(&logged, &root, &folder.root(), b"real/a.txt");
            log_unfollowed_link(&logged, &root, &folder.root(), b"nothing/at/all");
        }
        let count = || logged.0.lock().unwrap().len();
        assert_eq!(count(), 1);
        for (name, expected) in [
            (&b"link0/hosts"[..], true),
            (b"link0", true),
            (b"link00", false),
            (b"link1/x", false),
        ] {
            assert_eq!(
                is_link_logged(&logged, name),
                expected,
                "{}",
                name.escape_ascii()
            );
        }
        for number in 0..MAX_LOGGED_NAMES + 5 {
            log_unfollowed_link(
                &logged,
                &root,
                &folder.root(),
                format!("link{number}/x").as_bytes(),
            );
        }
        assert_eq!(count(), MAX_LOGGED_NAMES);
        assert!(is_link_logged(&logged, b"whatever"), "enough is enough");
    }
}
