//! A configuration of another server given where `penstock.toml` is meant: refused with the command
//! that translates it.
//!
//! `check` asks before it resolves a configuration.

use std::path::Path;

use penstock_config::Invocation;
use penstock_import::ServerKind;

use super::import;

/// Refuses the file of `-c`, and a TARGET that can be nothing else, if another server reads it.
///
/// # Errors
/// What the file is, and the command that translates it.
pub(super) fn refuse(invocation: &Invocation) -> Result<(), String> {
    let of_option = invocation.config.as_deref();
    let of_target = invocation.target.as_deref().map(Path::new);
    let file = of_option.or_else(|| of_target.filter(|target| !may_be_served(target)));
    let Some(file) = file.filter(|file| !has_ending(file, &["toml"])) else {
        return Ok(());
    };
    let path = invocation.cwd.join(file);
    if !path.is_file() {
        return Ok(());
    }
    // An unreadable file is reported where it is read.
    let text = import::read_text(&path).unwrap_or_default();
    let Some(kind) = ServerKind::detect(file, &text).filter(|_| !is_own_text(&text)) else {
        return Ok(());
    };
    let name = file.display();
    Err(format!(
        "{name}: is a file of {kind}: translate it by: penstock import {name} -o penstock.toml",
        kind = describe(kind)
    ))
}

/// Whether a file of any name has tables of Penstock's.
fn is_own_text(text: &str) -> bool {
    const TABLES: [&str; 6] = [
        "[server]",
        "[limits]",
        "[apps.",
        "[upstreams.",
        "[[sites]]",
        "[[tcp]]",
    ];
    let is_own = |line: &str| TABLES.iter().any(|table| line.starts_with(table));
    text.lines().any(|line| is_own(line.trim_start()))
}

/// Whether a target with this name is code.
fn may_be_served(target: &Path) -> bool {
    has_ending(target, &["py", "rb", "ru"])
}

fn has_ending(file: &Path, endings: &[&str]) -> bool {
    let ending = file.extension().and_then(|ending| ending.to_str());
    ending.is_some_and(|ending| endings.contains(&ending))
}

/// The server's name as readers know it.
fn describe(kind: ServerKind) -> &'static str {
    match kind {
        ServerKind::Nginx => "nginx",
        ServerKind::Caddy => "Caddy",
        ServerKind::Haproxy => "HAProxy",
        ServerKind::Gunicorn => "Gunicorn",
        ServerKind::Uvicorn => "Uvicorn",
        ServerKind::Puma => "Puma",
        ServerKind::Unicorn => "Unicorn",
        ServerKind::Uwsgi => "uWSGI",
        ServerKind::Procfile => "Foreman or Heroku",
        ServerKind::Passenger => "Passenger",
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::path::PathBuf;

    use super::*;

    /// A folder that goes with the value.
    struct Folder(PathBuf);

    impl Folder {
        fn with_files(files: &[(&str, &str)]) -> Self {
            let name = format!("penstock-foreign-file-{}", std::process::id());
            let folder = Self(std::env::temp_dir().join(name));
            std::fs::create_dir_all(&folder.0).unwrap();
            for (name, text) in files {
                let mut file = std::fs::OpenOptions::new();
                let opened = file.write(true).create(true).open(folder.0.join(name));
                opened.unwrap().write_all(text.as_bytes()).unwrap();
            }
            folder
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            drop(std::fs::remove_dir_all(&self.0));
        }
    }

    #[test]
    fn files_of_other_servers_are_refused_with_the_command_that_translates_them() {
        let rows = [
            ("gunicorn.conf.py", "workers = 2\n", Some("Gunicorn")),
            ("puma.rb", "workers 2\n", Some("Puma")),
            ("uwsgi.ini", "[uwsgi]\n", Some("uWSGI")),
            ("site.conf", "server {\n  listen 80;\n}\n", Some("nginx")),
            ("some.toml", "[server]\n", None),
            ("site.config", "[server]\nlisten = \":80\"\n", None),
        ];
        let folder = Folder::with_files(&rows.map(|(name, text, _)| (name, text)));
        for (name, _, server) in rows {
            let invocation = Invocation {
                config: Some(name.into()),
                cwd: folder.0.clone(),
                ..Invocation::default()
            };
            let expected = server.map(|server| {
                format!(
                    "{name}: is a file of {server}: translate it by: penstock import {name} -o \
                     penstock.toml"
                )
            });
            assert_eq!(refuse(&invocation).err(), expected, "{name}");
        }
        let target = |target: &str| Invocation {
            target: Some(target.to_owned()),
            cwd: folder.0.clone(),
            ..Invocation::default()
        };
        assert!(refuse(&target("uwsgi.ini")).is_err());
        assert_eq!(refuse(&target("puma.rb")), Ok(()));
        assert_eq!(refuse(&target("absent.ini")), Ok(()));
    }
}
