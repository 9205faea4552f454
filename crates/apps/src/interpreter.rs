//! The interpreter of an application: its own.
//!
//! Looked up at every start, so that an environment made later is found. Python: the configured
//! one, the project's environment (`python`), the version that `.python-version` names, `python3`.
//! Ruby: the configured one, the version that `.ruby-version` or `.tool-versions` names, `ruby`.
//! Bundler is the worker script's part. For a `command` or `fastcgi` application it is the program
//! of its command line.
//!
//! # Invariants
//! - Nothing is run to find it.
//! - An interpreter that is named and gone is an error, never replaced by another.
//! - One that is known to be too old for the worker scripts is refused here.

mod environment;
mod python;
mod versions;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use penstock_config::{App, AppKind};

pub use self::environment::program_environment;
pub use self::versions::describe_version;

/// Bytes of a file that names an interpreter, at most.
const MAX_NAME_FILE_BYTES: u64 = 1 << 20;

/// The oldest versions that the worker scripts run on.
const OLDEST_PYTHON: [u32; 2] = [3, 8];
const OLDEST_RUBY: [u32; 2] = [2, 7];

/// The start of the line in which Python names a module that it does not find.
pub(crate) const MISSING_MODULE: &str = "ModuleNotFoundError: No module named '";

/// Finds the interpreter, or the program of a command line.
///
/// # Errors
/// A sentence that says what was looked for and where, or what is wrong with what was found.
pub fn find_interpreter(app: &App) -> Result<PathBuf, String> {
    find_interpreter_in(app, &Surroundings::of_process())
}

fn find_interpreter_in(app: &App, around: &Surroundings) -> Result<PathBuf, String> {
    let found = match (&app.interpreter, app.kind) {
        (Some(chosen), _) => find_in_path(chosen, around)
            .ok_or_else(|| format!("interpreter `{}` not found", chosen.display())),
        (None, AppKind::Wsgi | AppKind::Asgi) => find_python(&app.dir, around),
        (None, AppKind::Rack) => find_ruby(&app.dir, around),
        (None, AppKind::Command | AppKind::FastCgi | AppKind::Job) => return find_program(app),
    }?;
    check_version(app.kind, &found)?;
    Ok(found)
}

/// What to do about a Python project whose tool keeps its packages in an environment, and which has
/// none: it runs with the system's packages, as in a container. `None` for any other application.
#[must_use]
pub fn missing_environment(app: &App) -> Option<String> {
    missing_environment_in(app, &Surroundings::of_process())
}

fn missing_environment_in(app: &App, around: &Surroundings) -> Option<String> {
    if app.interpreter.is_some() || !matches!(app.kind, AppKind::Wsgi | AppKind::Asgi) {
        return None;
    }
    let (file, command) = python::tool_of(&app.dir)?;
    let (found, _) = python::find_env(&app.dir, around);
    found
        .is_none()
        .then(|| format!("no environment of {file} was found: to make it, run {command}"))
}

/// What to do about a Python application that does not start as a package is missing, where no
/// environment was found: a line for the log. `report` is its traceback. Blocks.
#[must_use]
pub(crate) fn missing_packages_hint(app: &App, report: &str) -> Option<String> {
    missing_packages_hint_in(app, report, &Surroundings::of_process())
}

fn missing_packages_hint_in(app: &App, report: &str, around: &Surroundings) -> Option<String> {
    if app.interpreter.is_some() || !matches!(app.kind, AppKind::Wsgi | AppKind::Asgi) {
        return None;
    }
    let module = missing_module(report)?;
    // A module of the application's own is no package.
    let own = app.entry.split([':', '.']).next();
    let file = app.dir.join(format!("{module}.py"));
    if own == Some(module) || file.exists() || app.dir.join(module).exists() {
        return None;
    }
    let (found, _) = python::find_env(&app.dir, around);
    found.is_none().then(|| {
        let dir = app.dir.display();
        let command = python::create_command(&app.dir);
        format!("no environment was found beside the code in {dir}: to make it, run {command}")
    })
}

/// The top-level package that a traceback misses.
fn missing_module(report: &str) -> Option<&str> {
    let rest = |line| str::strip_prefix(line, MISSING_MODULE);
    let name = report
        .lines()
        .filter_map(rest)
        .next_back()?
        .split('\'')
        .next()?;
    name.split('.').next().filter(|name| !name.is_empty())
}

fn find_python(dir: &Path, around: &Surroundings) -> Result<PathBuf, String> {
    let (env, looked) = python::find_env(dir, around);
    if let Some(env) = env {
        return check_env(&env);
    }
    if let Some(found) = versions::python_by_version(dir, around)? {
        return Ok(found);
    }
    find_in_path(Path::new("python3"), around).ok_or_else(|| {
        // The folders of tools that are not used here would hide the ones that matter.
        let beside: Vec<String> = looked
            .iter()
            .filter(|folder| folder.starts_with(dir) || around.names(folder))
            .map(|folder| folder.display().to_string())
            .collect();
        format!("no `python3` found in {} or in PATH", beside.join(", "))
    })
}

/// The interpreter of an environment, unless it is gone.
fn check_env(env: &python::PythonEnv) -> Result<PathBuf, String> {
    let places = ["bin/python", "bin/python3"].map(|name| env.dir.join(name));
    if let Some(found) = places.iter().find(|path| path.exists()) {
        return Ok(found.clone());
    }
    let problem = match places.iter().find_map(|path| dangling_target(path)) {
        Some((link, target)) if is_forbidden(&target) => {
            return Err(format!(
                "{} leads to {}, which the user of the application may not read: move the interpreter \
                 out of the home of another user, or run as that user",
                link.display(),
                target.display()
            ));
        }
        Some((link, target)) => format!(
            "{} leads to {}, which does not exist",
            link.display(),
            target.display()
        ),
        None => format!("{} has no bin/python", env.dir.display()),
    };
    Err(format!(
        "{problem}: make the environment again: {}",
        env.mend
    ))
}

fn is_forbidden(path: &Path) -> bool {
    let about = path.metadata();
    about.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

/// A link that leads nowhere, and where it leads: the last link on the way.
fn dangling_target(path: &Path) -> Option<(PathBuf, PathBuf)> {
    let mut target = path.to_owned();
    for _ in 0..MAX_LINKS {
        let Ok(next) = target.read_link() else { break };
        target = target.parent().unwrap_or_else(|| Path::new("/")).join(next);
    }
    (target != path).then(|| (path.to_owned(), target))
}

/// Links on the way of a path, as many as the kernel follows.
const MAX_LINKS: usize = 40;

fn find_ruby(dir: &Path, around: &Surroundings) -> Result<PathBuf, String> {
    if let Some(found) = versions::ruby_by_version(dir, around)? {
        return Ok(found);
    }
    find_in_path(Path::new("ruby"), around)
        .ok_or_else(|| "no `ruby` found in PATH: install it, or set `interpreter`".to_owned())
}

/// Refuses an interpreter whose version is known and too old.
fn check_version(kind: AppKind, program: &Path) -> Result<(), String> {
    let (name, oldest) = match kind {
        AppKind::Wsgi | AppKind::Asgi => ("Python", OLDEST_PYTHON),
        AppKind::Rack => ("Ruby", OLDEST_RUBY),
        AppKind::Command | AppKind::FastCgi | AppKind::Job => return Ok(()),
    };
    let Some(version) = describe_version(program) else {
        return Ok(());
    };
    let numbers = versions::version_numbers(&version).unwrap_or_default();
    if numbers.len() < 2 || numbers[..2] >= oldest[..] {
        return Ok(());
    }
    let [major, minor] = oldest;
    Err(format!(
        "{} is {name} {version}, and {name} {major}.{minor} or newer is needed",
        program.display()
    ))
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

/// A path as it is, a bare name looked up in `PATH`.
fn find_in_path(program: &Path, around: &Surroundings) -> Option<PathBuf> {
    if program.components().count() > 1 {
        return program.exists().then(|| program.to_owned());
    }
    let found = find_in_dirs(around.variable("PATH"), program)?;
    Some(versions::behind_shim(&found, around).unwrap_or(found))
}

fn find_in_dirs(path: Option<OsString>, program: &Path) -> Option<PathBuf> {
    let path = path.unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
    std::env::split_paths(&path)
        .map(|dir| dir.join(program))
        .find(|path| path.is_file())
}

/// The variables and the home folder by which tools find their files.
#[derive(Debug, Clone, Default)]
struct Surroundings {
    /// In place of the process's, for tests.
    variables: Option<BTreeMap<String, OsString>>,
    home: Option<PathBuf>,
}

impl Surroundings {
    fn of_process() -> Self {
        Self {
            variables: None,
            home: std::env::var_os("HOME").map(PathBuf::from),
        }
    }

    fn variable(&self, name: &str) -> Option<OsString> {
        let value = match &self.variables {
            Some(variables) => variables.get(name).cloned(),
            None => std::env::var_os(name),
        };
        value.filter(|value| !value.is_empty())
    }

    fn text(&self, name: &str) -> Option<String> {
        self.variable(name)?.into_string().ok()
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        self.variable(name).map(PathBuf::from)
    }

    /// Whether a variable names a folder: the user expects it to be used.
    fn names(&self, folder: &Path) -> bool {
        ["VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT"]
            .iter()
            .any(|name| self.path(name).is_some_and(|named| named == folder))
    }

    fn cache_dir(&self) -> Option<PathBuf> {
        self.path("XDG_CACHE_HOME")
            .or_else(|| Some(self.home.as_ref()?.join(".cache")))
    }

    fn data_dir(&self) -> Option<PathBuf> {
        self.path("XDG_DATA_HOME")
            .or_else(|| Some(self.home.as_ref()?.join(".local/share")))
    }
}

/// The text of a regular file of a telling name; `None` if there is none, or it is too large.
fn read_small_file(path: &Path) -> Option<String> {
    let found = path.metadata().ok()?;
    if !found.is_file() || found.len() > MAX_NAME_FILE_BYTES {
        return None;
    }
    #[expect(
        clippy::disallowed_methods,
        reason = "start, check and reload look interpreters up off the loops"
    )]
    let text = std::fs::read_to_string(path);
    text.ok()
}

/// The names inside a folder; empty when it cannot be read.
fn list_names(dir: &Path) -> Vec<String> {
    let entries = dir.read_dir().into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

#[cfg(test)]
mod tests;
