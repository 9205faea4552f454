//! Checks which programs may follow this server: those that only root, or also the server's own
//! user, can change.
//!
//! Used by the launcher, for a program that an upgrade request names, and for one that it starts as
//! root.
//!
//! # Invariants
//! - The whole path is checked, from the root on, every directory and every symbolic link, each
//!   before its content: what was accepted cannot be replaced by another user, now or when the same
//!   path is started again later.
//! - The file that was checked is started: each step continues from the one before by its
//!   descriptor, and the last descriptor is executed.
//! - Where the server has switched to another user (`server.user`), that user's files do not count:
//!   an application, which runs as that user, could have created them.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{File, FileType};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};

use crate::account;

/// Symbolic links that are followed, as many as the kernel does.
const MAX_LINKS: usize = 40;

/// Trusted owners of programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrustedOwners {
    /// Root.
    Root,
    /// Root, and the user of the server.
    RootAndOwn,
}

/// A program that may follow.
#[derive(Debug)]
pub struct TrustedProgram {
    /// Its real path.
    pub path: PathBuf,
    /// The file itself.
    pub file: OwnedFd,
}

/// Checks and opens the program at a path. May block.
///
/// # Errors
/// Which part of the path others can change, or why it is unsuitable.
pub fn check_program(program: &Path, owners: TrustedOwners) -> Result<TrustedProgram, String> {
    if !program.is_absolute() {
        return refuse(program, "not an absolute path");
    }
    let root = open_entry(CWD, "/".as_ref()).map_err(|error| with_path(Path::new("/"), &error))?;
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    let mut kind = check_entry(&at, &root, owners)?;
    // The directories from the root on: `..` goes back.
    let mut way = vec![root];
    let mut rest = path_parts(program);
    while let Some(part) = rest.pop_front() {
        if !kind.is_dir() {
            return refuse(&at, "not a directory");
        }
        // Its links lead to resources of other processes.
        if at == Path::new("/proc") {
            return refuse(program, "lies in /proc");
        }
        if part == ".." {
            if way.len() > 1 {
                way.pop();
                at.pop();
            }
            continue;
        }
        let next = at.join(&part);
        let folder = way.last().ok_or_else(|| with_path(&at, &"no directory"))?;
        let entry = open_entry(folder, &part).map_err(|error| with_path(&next, &error))?;
        let found = check_entry(&next, &entry, owners)?;
        if found.is_symlink() {
            links += 1;
            if links > MAX_LINKS {
                return refuse(program, "too many symbolic links");
            }
            let target = rustix::fs::readlinkat(&entry, "", Vec::new());
            let target = target.map_err(|error| with_path(&next, &error))?;
            let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
            if target.is_absolute() {
                at = PathBuf::from("/");
                way.truncate(1);
            }
            for part in path_parts(&target).into_iter().rev() {
                rest.push_front(part);
            }
            continue;
        }
        (kind, at) = (found, next);
        way.push(entry);
    }
    match way.pop() {
        Some(entry) if !kind.is_dir() => Ok(TrustedProgram {
            path: at,
            file: entry.into(),
        }),
        _ => refuse(&at, "a directory"),
    }
}

/// Opens a file, a directory or a symbolic link itself, which may then be inspected, entered and
/// executed, but not read.
fn open_entry(folder: impl AsFd, name: &OsStr) -> io::Result<File> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(folder, name, flags, Mode::empty())?.into())
}

/// The names of a path, and `..`.
fn path_parts(path: &Path) -> VecDeque<OsString> {
    let parts = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    parts.collect()
}

/// Checks that only those owners can change the entry.
fn check_entry(place: &Path, entry: &File, owners: TrustedOwners) -> Result<FileType, String> {
    let about = entry.metadata();
    let about = about.map_err(|error| with_path(place, &error))?;
    let kind = about.file_type();
    let (is_theirs, who) = match owners {
        TrustedOwners::Root => (about.uid() == 0, "root"),
        TrustedOwners::RootAndOwn => (
            about.uid() == 0 || about.uid() == account::effective_ids().0,
            "root and this user",
        ),
    };
    // In a directory such as /tmp (the sticky bit) users cannot replace files of others; a link has
    // no permissions.
    let is_sticky = kind.is_dir() && about.mode() & 0o1000 != 0;
    let is_open = about.mode() & 0o022 != 0 && !is_sticky && !kind.is_symlink();
    if !is_theirs || is_open {
        return refuse(place, &format!("writable by users other than {who}"));
    }
    if !(kind.is_dir() || kind.is_symlink() || kind.is_file()) {
        return refuse(place, "not a regular file");
    }
    Ok(kind)
}

fn refuse<T>(place: &Path, why: &str) -> Result<T, String> {
    Err(format!("{}: {why}", place.display()))
}

fn with_path(place: &Path, error: &dyn std::fmt::Display) -> String {
    format!("{}: {error}", place.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{PermissionsExt, symlink};

    /// The real path of a program of root or this user.
    fn found_at(path: &Path) -> Result<PathBuf, String> {
        check_program(path, TrustedOwners::RootAndOwn).map(|program| program.path)
    }

    fn set(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Runs `test` with the paths of `top`, `top/folder` and `top/folder/program`.
    fn with_program(name: &str, test: impl Fn(&Path, &Path, &Path)) {
        let name = format!("penstock-program-{name}-{}", std::process::id());
        let temp = std::env::temp_dir().canonicalize().unwrap();
        let top = temp.join(name);
        let folder = top.join("folder");
        std::fs::create_dir_all(&folder).unwrap();
        let program = folder.join("program");
        File::create(&program).unwrap();
        for path in [&top, &folder, &program] {
            set(path, 0o755);
        }
        test(&top, &folder, &program);
        std::fs::remove_dir_all(top).unwrap();
    }

    #[test]
    fn programs_writable_by_others_are_refused() {
        with_program("modes", |top, folder, program| {
            assert_eq!(found_at(program).as_deref(), Ok(program));
            for (place, mode) in [
                (program, 0o775),
                (program, 0o757),
                (program, 0o1757),
                (folder, 0o777),
                (top, 0o777),
                (top, 0o775),
            ] {
                set(place, mode);
                let error = found_at(program).unwrap_err();
                assert!(error.starts_with(&format!("{}: writable by", place.display())));
                set(place, 0o755);
            }
            set(top, 0o1777);
            assert_eq!(found_at(program).as_deref(), Ok(program));
            assert!(found_at(Path::new("program")).is_err());
            assert!(found_at(&folder.join("none")).is_err());
            assert!(found_at(folder).is_err());
            assert!(found_at(&program.join("x")).is_err());
            let own = std::env::current_exe().unwrap();
            assert!(own.exists() && found_at(Path::new("/proc/self/exe")).is_err());
        });
    }

    #[test]
    fn symlinks_and_their_dirs_are_checked() {
        with_program("links", |top, folder, program| {
            let link = folder.join("link");
            symlink("../folder/program", &link).unwrap();
            assert_eq!(found_at(&link).as_deref(), Ok(program));
            let folder_link = top.join("current");
            symlink(folder, &folder_link).unwrap();
            assert_eq!(found_at(&folder_link.join("link")).as_deref(), Ok(program));
            // Any user could change its target a moment later.
            let open = top.join("open");
            std::fs::create_dir(&open).unwrap();
            set(&open, 0o777);
            symlink(program, open.join("link")).unwrap();
            assert!(found_at(&open.join("link")).is_err());
            let around = folder.join("around");
            symlink(&around, &around).unwrap();
            assert!(found_at(&around).unwrap_err().contains("too many"));
            if account::effective_ids().0 == 0 {
                set(&open, 0o1777);
                assert_eq!(found_at(&open.join("link")).as_deref(), Ok(program));
                std::os::unix::fs::lchown(open.join("link"), Some(12345), None).unwrap();
                assert!(
                    found_at(&open.join("link")).is_err(),
                    "a link of another user"
                );
            }
        });
    }

    #[test]
    fn the_checked_file_is_the_one_started() {
        with_program("swapped", |_, folder, program| {
            let found = check_program(program, TrustedOwners::RootAndOwn).unwrap();
            let other = folder.join("other");
            File::create(&other).unwrap();
            std::fs::rename(&other, program).unwrap();
            let held = format!("/proc/self/fd/{}", found.file.as_raw_fd());
            let ino = |path: &Path| path.metadata().unwrap().ino();
            assert_ne!(ino(Path::new(&held)), ino(program));
        });
    }

    #[test]
    fn a_server_of_another_user_trusts_only_root() {
        if account::effective_ids().0 != 0 {
            return;
        }
        with_program("root", |top, folder, program| {
            assert!(check_program(program, TrustedOwners::Root).is_ok());
            let link = top.join("link");
            symlink(program, &link).unwrap();
            assert!(check_program(&link, TrustedOwners::Root).is_ok());
            for place in [program, folder, top] {
                std::os::unix::fs::chown(place, Some(12345), None).unwrap();
                let error = check_program(program, TrustedOwners::Root).unwrap_err();
                let expected = format!("{}: writable by users other than root", place.display());
                assert!(error.starts_with(&expected), "{error}");
                std::os::unix::fs::chown(place, Some(0), None).unwrap();
            }
            std::os::unix::fs::lchown(&link, Some(12345), None).unwrap();
            assert!(check_program(&link, TrustedOwners::Root).is_err());
        });
    }
}
