//! Files and ports that an application's processes may use: `isolation = { ... }`, and what they need
//! beside it.
//!
//! For the executor's `workers` and `servers`. The folders of the system are `sys`' part
//! (`isolation/access.rs`), the port or socket where a program is to listen is `servers`'.
//!
//! # Invariants
//! - Nothing is limited that the configuration does not limit.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use penstock_config as config;
use penstock_sys::isolation::{Access, FileAccess};

/// How many links lead from one name of an interpreter to another; a virtual environment has two or
/// three.
const LINKS_MAX: usize = 16;

/// What processes of an application may use, beside their program ([`open_program`]).
pub(super) fn of(config: &config::App) -> Access {
    let limits = &config.access;
    let files = limits.limits_files().then(|| {
        let mut read = vec![config.dir.clone()];
        read.extend(limits.read_paths.iter().flatten().cloned());
        FileAccess {
            read,
            write: limits.write_paths.clone().unwrap_or_default(),
        }
    });
    Access {
        files,
        connect_ports: limits.connect_ports.clone(),
        bind_ports: limits.bind_ports.clone(),
    }
}

/// Adds the folders of its program ([`folders_of`]), once that is found.
pub(super) fn open_program(access: &mut Access, folders: Vec<PathBuf>) {
    if let Some(files) = &mut access.files {
        files.read.extend(folders);
    }
}

/// Where its temporary files go, if it may not write to the system's folder for them.
pub(super) fn temporary_folder(config: &config::App) -> Option<(OsString, OsString)> {
    let folder = config.access.write_paths.as_ref()?.first()?;
    Some(("TMPDIR".into(), folder.into()))
}

/// Where an interpreter and its library are: of each name that leads to it, the folder above `bin` that has
/// a `lib` too, or the file itself if it is in no such folder: `~/bin` opens no home.
/// Asks the disk.
pub(super) fn folders_of(program: &Path) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    let mut name = program.to_owned();
    for _ in 0..LINKS_MAX {
        let Some(folder) = name.parent() else { break };
        // `/bin` is a folder of the system.
        let above = folder.parent().filter(|above| above.parent().is_some());
        let above = above.filter(|above| {
            // The second is what pyenv, rbenv and asdf have.
            folder.ends_with("bin") && above.join("lib").is_dir() || folder.ends_with("shims")
        });
        folders.push(above.map_or_else(|| name.clone(), Path::to_owned));
        let Ok(next) = name.read_link() else { break };
        name = folder.join(next);
    }
    folders
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn nothing_is_limited_that_is_not_said() {
        let mut app =
            config::App::new("shop", "/srv/shop".into(), config::AppKind::Wsgi, "app:app");
        assert_eq!(of(&app), Access::default());
        assert_eq!(temporary_folder(&app), None);
        app.access.connect_ports = Some(vec![5432]);
        let mut access = of(&app);
        open_program(&mut access, vec!["/usr".into()]);
        assert_eq!((access.files, access.bind_ports), (None, None));
        app.access.write_paths = Some(vec!["/srv/shop/var".into()]);
        let mut access = of(&app);
        open_program(&mut access, vec!["/usr".into()]);
        let files = access.files.unwrap();
        assert_eq!(files.read, ["/srv/shop", "/usr"].map(PathBuf::from));
        assert_eq!(files.write, [PathBuf::from("/srv/shop/var")]);
        let variable = ("TMPDIR".into(), "/srv/shop/var".into());
        assert_eq!(temporary_folder(&app), Some(variable));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "files of a test")]
    fn a_virtual_environment_leads_to_its_interpreter() {
        let folder = std::env::temp_dir().join(format!("penstock-venv-{}", std::process::id()));
        for place in [
            "venv/bin",
            "venv/lib",
            "python/bin",
            "python/lib",
            "odd",
            "home/bin",
        ] {
            std::fs::create_dir_all(folder.join(place)).unwrap();
        }
        std::fs::write(folder.join("odd/python"), "").unwrap();
        symlink("../../python/bin/python3", folder.join("venv/bin/python")).unwrap();
        symlink("../../odd/python", folder.join("python/bin/python3")).unwrap();
        let found = folders_of(&folder.join("venv/bin/python"));
        let expected = [
            folder.join("venv"),
            folder.join("venv/bin/../../python"),
            folder.join("venv/bin/../../python/bin/../../odd/python"),
        ];
        assert_eq!(found, expected);
        let own = folder.join("home/bin/python");
        assert_eq!(folders_of(&own), [own]);
        let shim = folder.join("pyenv/shims/python3");
        assert_eq!(folders_of(&shim), [folder.join("pyenv")]);
        std::fs::remove_dir_all(folder).unwrap();
        assert_eq!(folders_of(Path::new("/bin/sh"))[0], Path::new("/bin/sh"));
    }
}
