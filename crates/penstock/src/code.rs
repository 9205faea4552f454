//! What in the applications' folders is their code, and whether it has changed.
//!
//! `dev` asks for each change that it sees, and which folders to watch; a reload (`server/reload.rs`) asks
//! once, of all files. What must stay true: what an application or the server writes while it runs is no code
//! (`code/code_paths.rs`, [`NonCodePaths`]), and what symbolic links below a folder point to is not the application's.

pub(crate) mod code_paths;

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use penstock_config::{Config, LogTarget};

/// Files and folders of one application that are looked at, at most.
const MAX_ENTRIES: usize = 100_000;

/// Folders and files that are served or written while the server runs, and its configuration: no code, wherever
/// they are.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct NonCodePaths(Vec<PathBuf>);

impl NonCodePaths {
    /// Those of a configuration. `outputs` are the files that the server's own output goes to.
    pub(crate) fn from_config(config: &Config, outputs: &[PathBuf]) -> Self {
        let routes = config.sites.iter().flat_map(|site| &site.routes);
        let served =
            routes.filter_map(|route| route.files.as_ref().map(|files| files.root.clone()));
        let access = config.server.access_log.as_ref().map(|log| &log.path);
        let logs = [Some(&config.server.log), access].into_iter().flatten();
        let logs = logs.filter_map(|log| match log {
            LogTarget::File(path) => Some(path.clone()),
            LogTarget::Stdout | LogTarget::Stderr => None,
        });
        let caches = config
            .caches
            .values()
            .filter_map(|cache| cache.path.clone());
        let others = [config.limits.temp_dir.clone()];
        let others = others.into_iter().chain(config.path.clone());
        let written = logs.chain(outputs.iter().cloned()).chain(caches);
        Self(served.chain(written).chain(others).collect())
    }

    #[cfg(test)]
    pub(crate) fn from_paths(paths: Vec<PathBuf>) -> Self {
        Self(paths)
    }

    /// Whether `path` is code of the application in the folder `dir`.
    pub(crate) fn is_code(&self, path: &Path, dir: &Path) -> bool {
        let Ok(below) = path.strip_prefix(dir) else {
            return false;
        };
        // An application that lies in a folder of this kind is code all the same.
        let is_apart =
            |other: &PathBuf| other != dir && other.starts_with(dir) && path.starts_with(other);
        code_paths::is_code_path(below) && !self.0.iter().any(is_apart)
    }
}

/// Where standard output and standard error go, if those are files: a shell may have said so.
pub(crate) fn standard_output_files() -> Vec<PathBuf> {
    let links = ["/proc/self/fd/1", "/proc/self/fd/2"];
    let targets = links
        .iter()
        .filter_map(|link| std::fs::read_link(link).ok());
    targets.filter(|target| target.is_absolute()).collect()
}

/// The folders of code in a folder. *Blocking*.
pub(crate) fn code_dirs_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    // What a symbolic link points to is not the application's, or is found by itself.
    let folders = entries.filter(|entry| {
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        is_folder && code_paths::is_code_dir(&entry.file_name())
    });
    // A virtual environment may have any name.
    let folders = folders.map(|entry| entry.path());
    folders
        .filter(|folder| !folder.join("pyvenv.cfg").exists())
        .collect()
}

/// A file of the application's code in `dir` that was written, made or moved there since then, or a symbolic
/// link on the way to `dir` that was; none if none was. By the date of the last change of the inode (`st_ctime`),
/// which no deployment sets back. A file that has gone, or a folder that was moved as a whole, is not seen: the
/// dates of folders change with each cache that is written into them. *Blocking*: looks at up to
/// [`MAX_ENTRIES`] files.
///
/// # Errors
/// When there are more: as far as was looked, nothing has changed.
pub(crate) fn find_change_since(
    dir: &Path,
    since: SystemTime,
    apart: &NonCodePaths,
) -> Result<Option<PathBuf>, String> {
    // File systems date by the clock's last tick, some milliseconds ago: what is written in the one in which
    // loading begins is read by an interpreter that has yet to start.
    let is_newer = |of: &Metadata| change_time(of).is_some_and(|at| at > since);
    for path in dir.ancestors() {
        let is_other = path
            .symlink_metadata()
            .is_ok_and(|of| of.is_symlink() && is_newer(&of));
        if is_other {
            return Ok(Some(path.to_owned()));
        }
    }
    let (mut left, mut count) = (vec![dir.to_owned()], 0);
    while let Some(folder) = left.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            count += 1;
            if count > MAX_ENTRIES {
                return Err(format!("there are more than {MAX_ENTRIES} files"));
            }
            let path = entry.path();
            let is_code = apart.is_code(&path, dir);
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_code && !is_folder && entry.metadata().is_ok_and(|of| is_newer(&of)) {
                return Ok(Some(path));
            }
        }
        let below = code_dirs_in(&folder);
        left.extend(
            below
                .into_iter()
                .filter(|folder| apart.is_code(folder, dir)),
        );
    }
    Ok(None)
}

fn change_time(of: &Metadata) -> Option<SystemTime> {
    let seconds = Duration::from_secs(u64::try_from(of.ctime()).ok()?);
    let nanos = Duration::from_nanos(u64::try_from(of.ctime_nsec()).ok()?);
    SystemTime::UNIX_EPOCH.checked_add(seconds + nanos)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test has no loop to block")]
mod tests {
    use std::fs;

    use super::*;

    /// A folder of the test's own, removed at its end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let name = format!("penstock-code-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(path.join("app/lib")).unwrap();
            fs::create_dir_all(path.join("app/log")).unwrap();
            fs::write(path.join("app/app.py"), "1").unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// A moment after all that was written so far and before what is written next, by the file system's own clock.
    fn now(folder: &Path) -> SystemTime {
        let probe = folder.join("probe");
        let written = || {
            fs::write(&probe, "").unwrap();
            change_time(&probe.metadata().unwrap()).unwrap()
        };
        let first = written();
        loop {
            let at = written();
            if at > first {
                return first + (at.duration_since(first).unwrap() / 2);
            }
        }
    }

    #[test]
    fn a_file_of_code_that_was_written_since_is_found_and_nothing_else() {
        let folder = Folder::new("written");
        let app = folder.0.join("app");
        let apart = NonCodePaths::from_paths(vec![app.join("public")]);
        let began = now(&folder.0);
        assert_eq!(find_change_since(&app, began, &apart), Ok(None));
        fs::create_dir(app.join("public")).unwrap();
        for written in ["log/app.log", "db.sqlite3", "public/new.py", ".hidden"] {
            fs::write(app.join(written), "2").unwrap();
        }
        assert_eq!(find_change_since(&app, began, &apart), Ok(None));
        let deep = app.join("lib/deep.rb");
        fs::write(&deep, "2").unwrap();
        assert_eq!(find_change_since(&app, began, &apart), Ok(Some(deep)));
        let later = now(&folder.0);
        assert_eq!(find_change_since(&app, later, &apart), Ok(None));
        // As deployments do that keep dates.
        let old = app.join("app.py");
        let file = fs::File::options().write(true).open(&old).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(find_change_since(&app, later, &apart), Ok(Some(old)));
    }

    #[test]
    fn another_release_behind_a_link_is_a_change_also_an_older_one() {
        let folder = Folder::new("link");
        let current = folder.0.join("current");
        std::os::unix::fs::symlink("app", &current).unwrap();
        let began = now(&folder.0);
        let apart = NonCodePaths::default();
        assert_eq!(find_change_since(&current, began, &apart), Ok(None));
        let next = folder.0.join("next");
        std::os::unix::fs::symlink("app", &next).unwrap();
        fs::rename(&next, &current).unwrap();
        assert_eq!(
            find_change_since(&current, began, &apart),
            Ok(Some(current))
        );
    }
}
