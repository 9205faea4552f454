//! Finds the code in the applications' directories, and its changes.
//!
//! `dev` asks for each change and for the directories to watch; a reload (`server/reload.rs`) asks
//! once, for all files.
//!
//! # Invariants
//!
//! - Files that an application or the server writes at run time are not code (`code/code_paths.rs`,
//!   [`NonCodePaths`]).
//! - Targets of symbolic links below a directory are not the application's code.

pub(crate) mod code_paths;

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use penstock_config::{Config, LogTarget};

/// Maximum number of files and directories examined for one application.
const MAX_ENTRIES: usize = 100_000;

/// Served directories, files that are written at run time, and the configuration: never code.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct NonCodePaths(pub(crate) Vec<PathBuf>);

impl NonCodePaths {
    /// The paths of a configuration; `outputs` are the files of the server's own output.
    pub(crate) fn from_config(config: &Config, outputs: &[PathBuf]) -> Self {
        let routes = config.sites.iter().flat_map(|site| &site.routes);
        let served =
            routes.filter_map(|route| route.files.as_ref().map(|files| files.root.clone()));
        let access = crate::logs::access_logs(config).map(|(_, log)| &log.path);
        let logs = std::iter::once(&config.server.log).chain(access);
        let logs = logs.filter_map(|log| match log {
            LogTarget::File(path) => Some(path.clone()),
            _ => None,
        });
        let caches = config
            .caches
            .values()
            .filter_map(|cache| cache.path.clone());
        let others = [config.limits.temp_dir.clone()];
        let others = others
            .into_iter()
            .chain(config.sources.files.iter().cloned());
        let written = logs.chain(outputs.iter().cloned()).chain(caches);
        Self(served.chain(written).chain(others).collect())
    }

    /// Whether `path` is code of the application in the directory `dir`.
    pub(crate) fn is_code(&self, path: &Path, dir: &Path) -> bool {
        let Ok(below) = path.strip_prefix(dir) else {
            return false;
        };
        // An application that itself lies in such a directory is code.
        let is_apart =
            |other: &PathBuf| other != dir && other.starts_with(dir) && path.starts_with(other);
        code_paths::is_code_path(below) && !self.0.iter().any(is_apart)
    }
}

/// The files that standard output and standard error are redirected to, if any.
pub(crate) fn standard_output_files() -> Vec<PathBuf> {
    let links = ["/proc/self/fd/1", "/proc/self/fd/2"];
    let targets = links
        .iter()
        .filter_map(|link| std::fs::read_link(link).ok());
    targets.filter(|target| target.is_absolute()).collect()
}

/// The directories of code in a directory. *Blocking*.
pub(crate) fn code_dirs_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    // The target of a symbolic link is not the application's, or is found by itself.
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

/// Finds a file of the application's code in `dir` that was written, made or moved there after
/// `since`, or a changed symbolic link on the way to `dir`. Compares the last change of the inode
/// (`st_ctime`), which no deployment sets back. A removed file, or a directory that was moved as a
/// whole, is not found: the dates of directories change with each cache file written into them.
/// *Blocking*: examines up to [`MAX_ENTRIES`] files.
///
/// # Errors
/// There are more; the files examined have not changed.
pub(crate) fn find_change_since(
    dir: &Path,
    since: SystemTime,
    non_code_paths: &NonCodePaths,
) -> Result<Option<PathBuf>, String> {
    // File systems date by the clock's last tick, some milliseconds ago. A file written within the
    // tick in which loading begins is read by an interpreter that has yet to start.
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
            let is_code = non_code_paths.is_code(&path, dir);
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_code && !is_folder && entry.metadata().is_ok_and(|of| is_newer(&of)) {
                return Ok(Some(path));
            }
        }
        let below = code_dirs_in(&folder);
        left.extend(
            below
                .into_iter()
                .filter(|folder| non_code_paths.is_code(folder, dir)),
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

    /// A directory of the test, removed at its end.
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

    /// A time after all writes so far and before the next one, by the file system's own clock.
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
        let non_code_paths = NonCodePaths(vec![app.join("public")]);
        let began = now(&folder.0);
        assert_eq!(find_change_since(&app, began, &non_code_paths), Ok(None));
        fs::create_dir(app.join("public")).unwrap();
        for written in ["log/app.log", "db.sqlite3", "public/new.py", ".hidden"] {
            fs::write(app.join(written), "2").unwrap();
        }
        assert_eq!(find_change_since(&app, began, &non_code_paths), Ok(None));
        let deep = app.join("lib/deep.rb");
        fs::write(&deep, "2").unwrap();
        assert_eq!(
            find_change_since(&app, began, &non_code_paths),
            Ok(Some(deep))
        );
        let later = now(&folder.0);
        assert_eq!(find_change_since(&app, later, &non_code_paths), Ok(None));
        // As deployments do that keep dates.
        let old = app.join("app.py");
        let file = fs::File::options().write(true).open(&old).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(
            find_change_since(&app, later, &non_code_paths),
            Ok(Some(old))
        );
    }

    #[test]
    fn another_release_behind_a_link_is_a_change_also_an_older_one() {
        let folder = Folder::new("link");
        let current = folder.0.join("current");
        std::os::unix::fs::symlink("app", &current).unwrap();
        let began = now(&folder.0);
        let non_code_paths = NonCodePaths::default();
        assert_eq!(
            find_change_since(&current, began, &non_code_paths),
            Ok(None)
        );
        let next = folder.0.join("next");
        std::os::unix::fs::symlink("app", &next).unwrap();
        fs::rename(&next, &current).unwrap();
        assert_eq!(
            find_change_since(&current, began, &non_code_paths),
            Ok(Some(current))
        );
    }
}
