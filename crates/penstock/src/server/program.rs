//! Which programs may follow this server: those that nobody but root and the server's user can change.
//!
//! Asked by `upgrade` for a program that a request names. What must stay true: the whole way to it is looked
//! at, from the root on, every folder and every symbolic link, each before what lies in it: so what was
//! found good cannot be replaced by anybody else, now or when the same path is started again later.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use penstock_sys::identity;

/// Symbolic links that are followed, as many as the kernel does.
const LINKS_MAX: usize = 40;

/// The real place of a program that may follow. May block.
///
/// # Errors
/// Which part of the way to it others can change, or what is wrong with it.
pub(super) fn checked(program: &Path) -> Result<PathBuf, String> {
    if !program.is_absolute() {
        return say(program, "not an absolute path");
    }
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    let mut rest = parts(program);
    let mut is_folder = check(&at)?.is_dir();
    while let Some(part) = rest.pop_front() {
        if !is_folder {
            return say(&at, "not a folder");
        }
        // Its links lead to what belongs to other processes.
        if at == Path::new("/proc") {
            return say(program, "lies in /proc");
        }
        if part == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&part);
        let about = check(&next)?;
        if about.is_symlink() {
            links += 1;
            if links > LINKS_MAX {
                return say(program, "too many symbolic links");
            }
            let target = std::fs::read_link(&next).map_err(|error| named(&next, &error))?;
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            for part in parts(&target).into_iter().rev() {
                rest.push_front(part);
            }
            continue;
        }
        is_folder = about.is_dir();
        at = next;
    }
    match is_folder {
        true => say(&at, "a folder"),
        false => Ok(at),
    }
}

/// The names of a path, and `..`.
fn parts(path: &Path) -> VecDeque<OsString> {
    let parts = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    parts.collect()
}

/// Whether only root and the server's user can change what stands there; a link is not followed.
fn check(place: &Path) -> Result<std::fs::FileType, String> {
    let about = place.symlink_metadata();
    let about = about.map_err(|error| named(place, &error))?;
    let kind = about.file_type();
    let is_ours = about.uid() == 0 || about.uid() == identity::current().0;
    // In a folder such as /tmp (the sticky bit) others cannot replace what is not theirs; a link has no
    // permissions of its own.
    let is_sticky = kind.is_dir() && about.mode() & 0o1000 != 0;
    let is_open = about.mode() & 0o022 != 0 && !is_sticky && !kind.is_symlink();
    if !is_ours || is_open {
        return say(place, "others than root and this user can change it");
    }
    if !(kind.is_dir() || kind.is_symlink() || kind.is_file()) {
        return say(place, "no file");
    }
    Ok(kind)
}

fn say<T>(place: &Path, why: &str) -> Result<T, String> {
    Err(format!("{}: {why}", place.display()))
}

fn named(place: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", place.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn set(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    /// `top/folder/program`, and a check of what is wrong with it.
    fn with_program(name: &str, test: impl Fn(&Path, &Path, &Path)) {
        let name = format!("penstock-program-{name}-{}", std::process::id());
        let temp = std::env::temp_dir().canonicalize().unwrap();
        let top = temp.join(name);
        let folder = top.join("folder");
        std::fs::create_dir_all(&folder).unwrap();
        let program = folder.join("program");
        std::fs::File::create(&program).unwrap();
        for path in [&top, &folder, &program] {
            set(path, 0o755);
        }
        test(&top, &folder, &program);
        std::fs::remove_dir_all(top).unwrap();
    }

    #[test]
    fn only_programs_that_nobody_else_can_change_are_started() {
        with_program("modes", |top, folder, program| {
            assert_eq!(checked(program).as_deref(), Ok(program));
            for (place, mode) in [
                (program, 0o775),
                (program, 0o757),
                (program, 0o1757),
                (folder, 0o777),
                (top, 0o777),
                (top, 0o775),
            ] {
                set(place, mode);
                let error = checked(program).unwrap_err();
                assert!(error.starts_with(&format!("{}: others", place.display())));
                set(place, 0o755);
            }
            set(top, 0o1777);
            assert_eq!(checked(program).as_deref(), Ok(program));
            assert!(checked(Path::new("program")).is_err());
            assert!(checked(&folder.join("none")).is_err());
            assert!(checked(folder).is_err());
            assert!(checked(&program.join("x")).is_err());
            let own = std::env::current_exe().unwrap();
            assert!(own.exists() && checked(Path::new("/proc/self/exe")).is_err());
        });
    }

    #[test]
    fn links_are_followed_and_where_they_lie_counts_too() {
        with_program("links", |top, folder, program| {
            let link = folder.join("link");
            symlink("../folder/program", &link).unwrap();
            assert_eq!(checked(&link).as_deref(), Ok(program));
            let folder_link = top.join("current");
            symlink(folder, &folder_link).unwrap();
            assert_eq!(checked(&folder_link.join("link")).as_deref(), Ok(program));
            // Anybody could let it lead elsewhere a moment later.
            let open = top.join("open");
            std::fs::create_dir(&open).unwrap();
            set(&open, 0o777);
            symlink(program, open.join("link")).unwrap();
            assert!(checked(&open.join("link")).is_err());
            let around = folder.join("around");
            symlink(&around, &around).unwrap();
            assert!(checked(&around).unwrap_err().contains("too many"));
            if identity::current().0 == 0 {
                set(&open, 0o1777);
                assert_eq!(checked(&open.join("link")).as_deref(), Ok(program));
                std::os::unix::fs::lchown(open.join("link"), Some(12345), None).unwrap();
                assert!(checked(&open.join("link")).is_err(), "a stranger's link");
            }
        });
    }
}
