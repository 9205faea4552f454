//! The files and ports that an application's processes may use: `isolation = { ... }`, and what
//! they need beside it.
//!
//! For the executor's `workers` and `servers`. The folders of the system are `sys`' part
//! (`isolation/access.rs`); the port or socket where a program listens is `servers`'.
//!
//! # Invariants
//! - Nothing is limited that the configuration does not limit.
//! - What an application may write to decides nothing about its limits: no link that it can make or
//!   replace is followed, now or when its paths are opened (`sys`), and no interpreter is taken
//!   from there.

use std::ffi::{OsStr, OsString};
use std::path::{Component, Path, PathBuf};

use penstock_config as config;
use penstock_sys::isolation::{AccessRules, FileAccess};

use crate::interpreter;

/// How many links are followed on the way of a path, as many as the kernel does.
const LINKS_MAX: usize = 40;

/// The folders of version managers whose `shims` lead to their interpreters.
const SHIM_FOLDERS: &[&str] = &[".pyenv", ".rbenv", ".asdf"];

/// The program of an application and the files that its configuration leaves open, as they are on
/// the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProgramFiles {
    pub(super) program: PathBuf,
    files: Option<FileAccess>,
}

/// The rules of what processes of an application may use, beside their program and files
/// ([`find_program_files`]).
pub(super) fn access_rules(config: &config::App) -> AccessRules {
    let limits = &config.access;
    let access = AccessRules {
        files: limits.limits_files().then(FileAccess::default),
        connect_ports: limits.connect_ports.clone(),
        bind_ports: limits.bind_ports.clone(),
    };
    // Missing paths were warned of at the start.
    access.available()
}

/// Finds the program of an application, and what its processes may read and write. Asks the disk.
///
/// # Errors
/// A sentence: there is no program, or the application could replace it.
pub(super) fn find_program_files(config: &config::App) -> Result<ProgramFiles, String> {
    let program = interpreter::find_interpreter(config)?;
    let limits = &config.access;
    if !limits.limits_files() {
        let files = None;
        return Ok(ProgramFiles { program, files });
    }
    let ways = |paths: &[PathBuf]| paths.iter().map(|path| Way::of(path)).collect::<Vec<_>>();
    let write = ways(limits.write_paths.as_deref().unwrap_or_default());
    let real: Vec<PathBuf> = write.iter().map(|way| way.real.clone()).collect();
    // What lies in a folder that it may write to is open with that, and may be a link of its own.
    let is_fixed = |way: &Way| !way.leads_through(&real);
    let open = |ways: Vec<Way>| ways.into_iter().filter(is_fixed).map(|way| way.real);
    let mut read = vec![Way::of(&config.dir)];
    read.extend(ways(limits.read_paths.as_deref().unwrap_or_default()));
    let mut files = FileAccess {
        read: open(read).collect(),
        write: open(write).collect(),
    };
    let folders = program_folders(&Way::of(&program), &real, &homes())?;
    files.read.extend(folders);
    let files = Some(files);
    Ok(ProgramFiles { program, files })
}

impl ProgramFiles {
    /// Whether they are kept for the processes to come, so that no application changes its limits.
    pub(super) fn has_file_limits(&self) -> bool {
        self.files.is_some()
    }

    /// Adds them to what the processes may use.
    pub(crate) fn add_to_rules(&self, access: &mut AccessRules) {
        if let (Some(open), Some(files)) = (&mut access.files, &self.files) {
            open.read.extend(files.read.iter().cloned());
            open.write.extend(files.write.iter().cloned());
        }
    }
}

/// A path without links on its way to its last name. Asks the disk.
pub(super) fn resolve_parent(path: &Path) -> PathBuf {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Way::of(parent).real.join(name),
        _ => path.to_owned(),
    }
}

/// Where its temporary files go, if it may not write to the system's folder for them.
pub(super) fn temp_dir_variable(config: &config::App) -> Option<(OsString, OsString)> {
    let folder = config.access.write_paths.as_ref()?.first()?;
    Some(("TMPDIR".into(), folder.into()))
}

/// The way of a path from the root on.
#[derive(Debug)]
struct Way {
    /// Every name on it, links too, in its real folder; and whether it is one of the file itself.
    names: Vec<(PathBuf, bool)>,
    /// Where it ends. A missing path, or one closed to the server, is taken as written.
    real: PathBuf,
}

impl Way {
    fn of(path: &Path) -> Self {
        let parts = |path: &Path| {
            let parts = path.components().rev();
            let parts = parts.map(|part| part.as_os_str().to_owned());
            parts.collect::<Vec<OsString>>()
        };
        let mut rest = parts(path);
        let (mut names, mut real, mut links) = (Vec::new(), PathBuf::from("/"), 0);
        while let Some(part) = rest.pop() {
            match Path::new(&part).components().next() {
                Some(Component::RootDir) => real = PathBuf::from("/"),
                Some(Component::ParentDir) => _ = real.pop(),
                Some(Component::Normal(name)) => {
                    let name = real.join(name);
                    names.push((name.clone(), rest.is_empty()));
                    match name.read_link() {
                        Ok(target) if links < LINKS_MAX => {
                            links += 1;
                            rest.extend(parts(&target));
                        }
                        _ => real = name,
                    }
                }
                _ => {}
            }
        }
        Self { names, real }
    }

    /// Whether a name on it is one that lies in one of these folders.
    fn leads_through(&self, folders: &[PathBuf]) -> bool {
        let is_in = |name: &Path| (folders.iter()).any(|it| name != it && name.starts_with(it));
        self.names.iter().any(|(name, _)| is_in(name))
    }
}

/// Where an interpreter and its library are: of each name of it, the folder above `bin` that has a
/// `lib` too, or that of a version manager; or the file alone if that folder is the root or a home,
/// or has one or a place in it that the application may write to.
fn program_folders(
    program: &Way,
    write: &[PathBuf],
    homes: &[PathBuf],
) -> Result<Vec<PathBuf>, String> {
    if program.leads_through(write) || write.contains(&program.real) {
        return Err(format!(
            "its program {} is within `write_paths`, so the application could replace it: name \
             folders in `write_paths` that the program is not in, or move it (penstock config \
             explain write_paths)",
            program.real.display()
        ));
    }
    let is_closed = |above: &Path| {
        let mut private = write.iter().chain(homes);
        above.parent().is_none() || private.any(|it| it.starts_with(above))
    };
    let names = program.names.iter().filter(|(_, is_last)| *is_last);
    let folders = names.map(|(name, _)| {
        let folder = name.parent().unwrap_or(name);
        let above = folder.parent().filter(|above| {
            let is_one =
                |name: Option<&OsStr>| SHIM_FOLDERS.iter().any(|it| Some(OsStr::new(it)) == name);
            folder.ends_with("bin") && above.join("lib").is_dir()
                || folder.ends_with("shims") && is_one(above.file_name())
        });
        let above = above.filter(|above| !is_closed(above));
        above.map_or_else(|| name.clone(), Path::to_owned)
    });
    Ok(folders.collect())
}

/// The homes of the machine's users and of this process.
fn homes() -> Vec<PathBuf> {
    #[expect(clippy::disallowed_methods, reason = "asked where the disk may be")]
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let users = users.lines().filter_map(|line| line.split(':').nth(5));
    let own = std::env::var_os("HOME").map(PathBuf::from);
    let all = users.map(PathBuf::from).chain(own);
    all.filter(|home| home.is_absolute())
        .map(|home| Way::of(&home).real)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn app(dir: &Path) -> config::App {
        let mut app = config::App::new("shop", dir.into(), config::AppKind::Command, "");
        app.command = vec!["./run".to_owned()];
        app
    }

    /// A folder of a test, with these folders in it.
    fn made(name: &str, folders: &[&str]) -> PathBuf {
        let folder = std::env::temp_dir().canonicalize().unwrap();
        let folder = folder.join(format!("penstock-{name}-{}", std::process::id()));
        for place in folders {
            std::fs::create_dir_all(folder.join(place)).unwrap();
        }
        folder
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "files of a test")]
    fn nothing_is_limited_that_is_not_said() {
        let folder = made("limits", &["app/var"]);
        let dir = folder.join("app");
        std::fs::write(dir.join("run"), "").unwrap();
        let mut app = app(&dir);
        assert_eq!(access_rules(&app), AccessRules::default());
        assert_eq!(temp_dir_variable(&app), None);
        app.access.connect_ports = Some(vec![5432]);
        let found = find_program_files(&app).unwrap();
        assert!(!found.has_file_limits());
        let mut access = access_rules(&app);
        found.add_to_rules(&mut access);
        assert_eq!((access.files, access.bind_ports), (None, None));
        app.access.write_paths = Some(vec![dir.join("var")]);
        let mut access = access_rules(&app);
        find_program_files(&app).unwrap().add_to_rules(&mut access);
        let files = access.files.unwrap();
        assert_eq!(files.read, [dir.clone(), dir.join("run")]);
        assert_eq!(files.write, [dir.join("var")]);
        let variable = ("TMPDIR".into(), dir.join("var").into());
        assert_eq!(temp_dir_variable(&app), Some(variable));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "files of a test")]
    fn an_application_does_not_change_its_limits_by_links() {
        let folder = made(
            "links",
            &["app/var/own", "other/bin", "other/lib", "shared"],
        );
        let dir = folder.join("app");
        std::fs::write(folder.join("other/bin/python"), "").unwrap();
        std::fs::write(dir.join("run"), "").unwrap();
        symlink(folder.join("other"), dir.join("var/link")).unwrap();
        symlink(folder.join("shared"), dir.join("shared")).unwrap();
        let mut app = app(&dir);
        // Links of others are followed, before the application runs; its own are not.
        app.access.read_paths = Some(
            ["var/link", "shared", "later"]
                .map(|it| dir.join(it))
                .into(),
        );
        app.access.write_paths = Some(["var", "var/link", "var/own"].map(|it| dir.join(it)).into());
        let files = find_program_files(&app).unwrap().files.unwrap();
        let expected = [
            &dir,
            &folder.join("shared"),
            &dir.join("later"),
            &dir.join("run"),
        ];
        assert_eq!(files.read.iter().collect::<Vec<_>>(), expected);
        assert_eq!(files.write, [dir.join("var")]);
        // A program where it may write, by any name on the way to it.
        symlink("var/link", dir.join("indirect")).unwrap();
        for program in ["./var/link/bin/python", "./indirect/bin/python"] {
            app.command = vec![program.to_owned()];
            let why = find_program_files(&app).unwrap_err();
            assert!(why.contains("`write_paths`"), "{why}");
        }
        app.access.write_paths = None;
        let files = find_program_files(&app).unwrap().files.unwrap();
        assert!(files.read.contains(&folder.join("other")), "{files:?}");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "files of a test")]
    fn a_virtual_environment_leads_to_its_interpreter() {
        let places = [
            "venv/bin",
            "venv/lib",
            "python/bin",
            "python/lib",
            "odd",
            "home/bin",
        ];
        let folder = made("venv", &places);
        std::fs::write(folder.join("odd/python"), "").unwrap();
        symlink("../../python/bin/python3", folder.join("venv/bin/python")).unwrap();
        symlink("../../odd/python", folder.join("python/bin/python3")).unwrap();
        let homes = [folder.join("home")];
        let found =
            |program: &str| program_folders(&Way::of(&folder.join(program)), &[], &homes).unwrap();
        let expected = ["venv", "python", "odd/python"].map(|it| folder.join(it));
        assert_eq!(found("venv/bin/python"), expected);
        // `~/bin` opens no home, with a `lib` beside it or not.
        assert_eq!(found("home/bin/python"), [folder.join("home/bin/python")]);
        std::fs::create_dir_all(folder.join("home/lib")).unwrap();
        assert_eq!(found("home/bin/python"), [folder.join("home/bin/python")]);
        assert_eq!(found("home/shims/ruby"), [folder.join("home/shims/ruby")]);
        assert_eq!(
            found("home/.rbenv/shims/ruby"),
            [folder.join("home/.rbenv")]
        );
        // Nor does a folder that has something in it that the application writes to.
        let way = Way::of(&folder.join("python/bin/python3"));
        let write = [folder.join("python/var")];
        let narrow = program_folders(&way, &write, &homes).unwrap();
        assert_eq!(narrow[0], folder.join("python/bin/python3"));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn no_link_opens_the_whole_disk() {
        let folder = made("disk", &["bin"]);
        for (name, target) in [("a", "/usr/../bin/sh"), ("b", "../../../../../../bin/sh")] {
            let link = folder.join("bin").join(name);
            symlink(target, &link).unwrap();
            let found = program_folders(&Way::of(&link), &[], &[]).unwrap();
            assert_eq!(found[0], link);
            let is_root = |path: &PathBuf| path.canonicalize().unwrap() == Path::new("/");
            assert!(!found.iter().any(is_root), "{found:?}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_ring_of_links_ends() {
        let folder = made("ring", &["x"]);
        symlink("b", folder.join("a")).unwrap();
        symlink("a", folder.join("b")).unwrap();
        assert!(Way::of(&folder.join("a")).real.starts_with(&folder));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
