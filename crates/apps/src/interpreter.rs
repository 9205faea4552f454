//! The interpreter of an application: its own.
//!
//! Looked up at every start, so that a virtual environment made later is found. Python: the
//! configured one, `.venv` or `venv` in the folder, `VIRTUAL_ENV`, `python3`. Ruby: the configured
//! one, `ruby`. Bundler is the worker script's part. For a `command` or `fastcgi` application it is
//! the program of its command line.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use penstock_config::{App, AppKind};

/// Finds the interpreter, or the program of a command line.
///
/// # Errors
/// A sentence that says what was looked for and where.
pub fn find_interpreter(app: &App) -> Result<PathBuf, String> {
    if let Some(chosen) = &app.interpreter {
        return find_in_path(chosen)
            .ok_or_else(|| format!("interpreter `{}` not found", chosen.display()));
    }
    let name = match app.kind {
        AppKind::Wsgi | AppKind::Asgi => "python3",
        AppKind::Rack => "ruby",
        AppKind::Command | AppKind::FastCgi => return find_program(app),
    };
    let environments = virtual_environments(app);
    let own = environments
        .iter()
        .map(|dir| dir.join("bin/python"))
        .find(|path| path.exists());
    own.or_else(|| find_in_path(Path::new(name)))
        .ok_or_else(|| {
            let looked: Vec<String> = environments
                .iter()
                .map(|dir| dir.display().to_string())
                .collect();
            let places = if looked.is_empty() {
                String::new()
            } else {
                format!(" in {} or", looked.join(", "))
            };
            format!("no `{name}` found{places} in PATH")
        })
}

/// The program of a command line: a path as seen from the application's folder, or a bare name.
fn find_program(app: &App) -> Result<PathBuf, String> {
    let word = app.command.first().map_or("", String::as_str);
    let named = Path::new(word);
    if named.components().count() > 1 {
        let path = app.dir.join(named);
        return match path.is_file() {
            true => Ok(path),
            false => Err(format!("program `{}` not found", path.display())),
        };
    }
    let own = app.env.get("PATH").map(OsString::from);
    find_in_dirs(own.or_else(|| std::env::var_os("PATH")), named)
        .ok_or_else(|| format!("program `{word}` not found in PATH"))
}

fn virtual_environments(app: &App) -> Vec<PathBuf> {
    if !matches!(app.kind, AppKind::Wsgi | AppKind::Asgi) {
        return Vec::new();
    }
    let mut dirs = vec![app.dir.join(".venv"), app.dir.join("venv")];
    dirs.extend(std::env::var_os("VIRTUAL_ENV").map(PathBuf::from));
    dirs
}

/// A path as it is, a bare name looked up in `PATH`.
fn find_in_path(program: &Path) -> Option<PathBuf> {
    if program.components().count() > 1 {
        return program.exists().then(|| program.to_owned());
    }
    find_in_dirs(std::env::var_os("PATH"), program)
}

fn find_in_dirs(path: Option<OsString>, program: &Path) -> Option<PathBuf> {
    let path = path.unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
    std::env::split_paths(&path)
        .map(|dir| dir.join(program))
        .find(|path| path.is_file())
}
