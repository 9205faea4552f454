//! What a directory without a configuration is: a Rack, Django, WSGI or ASGI application, or
//! files.
//!
//! Used by `resolve` for a bare directory and by `app` for a table that leaves `kind` or `entry`
//! out. Modules are searched as text, never run.
//!
//! # Invariants
//! - The same directory always gives the same answer, and a module that shows what it speaks is
//!   never taken for something else.

mod advice;
mod django;
mod hints;
mod naming;
mod php;
mod procfile;
mod programs;
mod ruby;
mod signs;
mod source;

use std::path::{Path, PathBuf};

pub(crate) use self::advice::setup_advice;
use self::django::detect_django;
pub(crate) use self::naming::{describe_app, refuse_own_server};
pub(crate) use self::procfile::add_procfile_programs;
pub(crate) use self::programs::{
    DetectedProgram, detect_any_procfile_program, detect_procfile_program, detect_program,
    node_start_command,
};
pub use self::ruby::cable_problem;
use self::signs::kind_of_line;
use self::source::{
    chained_names, code_lines, defined_name, is_async_function, needs_arguments, top_level_names,
    unpacked_names,
};
use crate::disk;
use crate::model::AppKind;

/// The code of a recognised application.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DetectedApp {
    /// How it is spoken to.
    pub(crate) kind: AppKind,
    /// Its entry, relative to the directory.
    pub(crate) entry: String,
}

/// What was looked for when nothing was found, in the order of looking.
pub(crate) const DETECTION_CANDIDATES: [&str; 11] = [
    "penstock.toml",
    "config.ru, or the rackup file of a Procfile",
    "FLASK_APP, .flaskenv, [tool.fastapi] in pyproject.toml, the `web:` line of a Procfile",
    "manage.py with a wsgi.py or asgi.py",
    "an application in app, asgi, wsgi, main, application, server, run, api (.py or package), or in \
     app, main, wsgi or asgi of a package, here or in src/, by the name of application, app, \
     asgi_app, wsgi_app, server, api, create_app or make_app",
    "a Ruby file that requires sinatra, or has a class of Sinatra::Base, Roda, Grape::API or Cuba",
    "index.php, public/index.php or web/index.php",
    "package.json with a start script",
    "public/index.html",
    "index.html",
    "one Python file that makes an application, whatever its name",
];

/// The application of a directory that has a usual name, whatever its kind.
pub(crate) fn detect_app(dir: &Path) -> Option<DetectedApp> {
    detect_rackup_file(dir)
        .or_else(|| detect_python_app(dir, None))
        .or_else(|| ruby::detect_common_file(dir))
}

/// The application of a directory, of this kind if one is given.
pub(crate) fn detect_app_of_kind(dir: &Path, wanted_kind: Option<AppKind>) -> Option<DetectedApp> {
    match wanted_kind {
        None => detect_app(dir),
        Some(AppKind::Rack) => detect_rack_app(dir),
        Some(_) => detect_python_app(dir, wanted_kind).map(|found| DetectedApp {
            kind: wanted_kind.unwrap_or(found.kind),
            ..found
        }),
    }
}

/// The Rack application of a directory: its rackup file, else Ruby code of a framework.
pub(crate) fn detect_rack_app(dir: &Path) -> Option<DetectedApp> {
    detect_rackup_file(dir)
        .or_else(|| ruby::detect_common_file(dir))
        .or_else(|| ruby::detect_only_file(dir))
}

/// The only Ruby file of the directory, whatever its name, if its text shows an application. It
/// may be a tool beside files that are to be served.
pub(crate) fn detect_only_ruby_file(dir: &Path) -> Option<DetectedApp> {
    ruby::detect_only_file(dir)
}

/// The rackup file of a directory: the one that its Procfile names, or the usual one.
fn detect_rackup_file(dir: &Path) -> Option<DetectedApp> {
    let procfile = disk::read_source_or_empty(&dir.join("Procfile"));
    let named = hints::rackup_from_procfile(&procfile).filter(|file| dir.join(file).is_file());
    let usual = || {
        dir.join(RACKUP_FILE)
            .is_file()
            .then(|| RACKUP_FILE.to_owned())
    };
    Some(DetectedApp {
        kind: AppKind::Rack,
        entry: named.or_else(usual)?,
    })
}

const RACKUP_FILE: &str = "config.ru";

/// The application that a directory names itself: by a rackup file, by the files of other tools, by
/// `manage.py`. It comes before any program of a Procfile.
pub(crate) fn detect_named_app(dir: &Path) -> Option<DetectedApp> {
    detect_rackup_file(dir)
        .or_else(|| detect_from_tool_files(dir, None))
        .or_else(|| detect_django(dir, None))
}

/// The WSGI or ASGI application of a directory; with a given kind, none that looks like the other.
pub(crate) fn detect_python_app(dir: &Path, wanted_kind: Option<AppKind>) -> Option<DetectedApp> {
    detect_from_tool_files(dir, wanted_kind)
        .or_else(|| detect_django(dir, wanted_kind))
        .or_else(|| detect_common_callable(dir, wanted_kind))
        .or_else(|| detect_app_construction(dir, wanted_kind))
}

/// The application that the files of other tools name, if its module is here.
fn detect_from_tool_files(dir: &Path, wanted_kind: Option<AppKind>) -> Option<DetectedApp> {
    let text = |name: &str| disk::read_source_or_empty(&dir.join(name));
    let hints = [
        std::env::var("FLASK_APP")
            .ok()
            .as_deref()
            .and_then(hints::entry_from_flask_app),
        hints::entry_from_flaskenv(&text(".flaskenv")),
        hints::entry_from_pyproject(&text("pyproject.toml")),
        hints::entry_from_procfile(&text("Procfile")),
    ];
    hints.into_iter().flatten().find_map(|entry| {
        let (module, callable) = entry.split_once(':').unwrap_or((&entry, ""));
        let file = import_roots(dir).find_map(|root| module_file(&root, module))?;
        let name = callable.split(['.', '(']).next().unwrap_or_default();
        let shown = kind_of_callable(&disk::read_source_or_empty(&file), module, name);
        let fits =
            wanted_kind.is_none_or(|wanted_kind| shown.is_none_or(|shown| shown == wanted_kind));
        let kind = wanted_kind.or(shown).unwrap_or(AppKind::Wsgi);
        fits.then_some(DetectedApp { kind, entry })
    })
}

/// The first module that has a callable of a usual name; with a given kind, rather one that shows
/// to be of it.
fn detect_common_callable(dir: &Path, wanted_kind: Option<AppKind>) -> Option<DetectedApp> {
    let candidates = || {
        candidate_modules(dir).filter_map(|(module, file)| {
            let callable = find_callable(&disk::read_source_or_empty(&file), &module)?;
            Some((module, callable))
        })
    };
    let (module, callable) = match wanted_kind {
        None => {
            let is_made = |(module, callable): &(String, Callable)| {
                let name = module.rsplit('.').next().unwrap_or(module);
                SERVER_MODULES.contains(&name) && !callable.is_factory()
            };
            let first = candidates().next()?;
            match first.1.is_factory() {
                true => candidates().find(is_made).unwrap_or(first),
                false => first,
            }
        }
        Some(_) => candidates()
            .find(|(_, callable)| callable.kind == wanted_kind)
            .or_else(|| candidates().find(|(_, callable)| callable.kind.is_none()))?,
    };
    Some(callable.in_module(&module, wanted_kind))
}

/// The first module that makes an application and gives it no usual name: which one is found out
/// when it is loaded.
fn detect_app_construction(dir: &Path, wanted_kind: Option<AppKind>) -> Option<DetectedApp> {
    candidate_modules(dir).find_map(|(module, file)| {
        let shown = kind_of_callable(&disk::read_source_or_empty(&file), &module, "")?;
        wanted_kind
            .is_none_or(|wanted_kind| wanted_kind == shown)
            .then_some(DetectedApp {
                kind: shown,
                entry: module,
            })
    })
}

/// The only module of the directory, whatever its name, if its text shows that it makes an
/// application. Looked for last: it may be a tool beside files that are to be served.
pub(crate) fn detect_only_module(dir: &Path, wanted_kind: Option<AppKind>) -> Option<DetectedApp> {
    if wanted_kind == Some(AppKind::Rack) {
        return None;
    }
    let names = disk::list_files(dir);
    let modules = names.iter().filter_map(|name| {
        let module = name.strip_suffix(".py")?;
        let is_other = NON_APPLICATION_MODULES.contains(&module)
            || module.starts_with("test_")
            || module.ends_with("_test");
        (!is_other && crate::entry::is_python_entry(module)).then_some(module)
    });
    let mut candidates = modules.take(MAX_MODULES).filter_map(|module| {
        let file = dir.join(module).with_extension("py");
        kind_of_callable(&disk::read_source_or_empty(&file), module, "")?;
        let found = detect_in_module(&file, module);
        wanted_kind
            .is_none_or(|wanted_kind| wanted_kind == found.kind)
            .then_some(found)
    });
    let only = candidates.next()?;
    candidates.next().is_none().then_some(only)
}

/// Modules that are no application, whatever they import.
const NON_APPLICATION_MODULES: [&str; 4] = ["setup", "conftest", "tasks", "noxfile"];

/// The largest number of modules that are read.
const MAX_MODULES: usize = 64;

/// Modules that may hold an application, the likeliest first.
fn candidate_modules(dir: &Path) -> impl Iterator<Item = (String, PathBuf)> {
    let usual = import_roots(dir).flat_map(|root| {
        let found = |module: &&str| Some(((*module).to_owned(), module_file(&root, module)?));
        COMMON_MODULES.iter().filter_map(found).collect::<Vec<_>>()
    });
    let in_packages = import_roots(dir).flat_map(|root| {
        let is_package = |name: &String| {
            !NON_APPLICATION_PACKAGES.contains(&name.as_str())
                && root.join(name).join("__init__.py").is_file()
        };
        let names = disk::list_directories(&root).into_iter().filter(is_package);
        let modules = names.take(MAX_PACKAGES).flat_map(|package| {
            let parts = PACKAGE_MODULES
                .iter()
                .map(|part| format!("{package}.{part}"));
            std::iter::once(package.clone())
                .chain(parts)
                .collect::<Vec<_>>()
        });
        let found = |module: String| Some((module.clone(), module_file(&root, &module)?));
        modules.filter_map(found).collect::<Vec<_>>()
    });
    usual.chain(in_packages)
}

/// Where modules are imported from: the directory itself, and its `src`.
fn import_roots(dir: &Path) -> impl Iterator<Item = PathBuf> {
    [dir.to_owned(), dir.join("src")].into_iter()
}

/// The WSGI or ASGI application of one module file; without a usual name, the one that is found
/// when the module is loaded.
pub(crate) fn detect_in_module(file: &Path, module: &str) -> DetectedApp {
    let text = disk::read_source_or_empty(file);
    let named = find_callable(&text, module).map(|callable| callable.in_module(module, None));
    named.unwrap_or_else(|| DetectedApp {
        kind: kind_of_callable(&text, module, "").unwrap_or(AppKind::Wsgi),
        entry: module.to_owned(),
    })
}

/// Tried in this order.
const COMMON_MODULES: [&str; 15] = [
    "app",
    "wsgi",
    "asgi",
    "main",
    "application",
    "server",
    "run",
    "guestbook",
    "app.main",
    "api",
    "api.main",
    "api.app",
    "api.index",
    "passenger_wsgi",
    "wsgihandler",
];

/// Modules that exist to name the application for a server: theirs comes before a factory.
const SERVER_MODULES: [&str; 3] = ["wsgi", "asgi", "passenger_wsgi"];

/// Modules of a package, tried after the package itself.
const PACKAGE_MODULES: [&str; 6] = ["wsgi", "asgi", "app", "main", "application", "server"];

/// Packages that hold no application of their own.
const NON_APPLICATION_PACKAGES: [&str; 6] =
    ["test", "tests", "docs", "migrations", "scripts", "examples"];

/// Packages that are looked into in one directory.
const MAX_PACKAGES: usize = 64;

/// The file of a module in a directory.
pub(crate) fn module_file(dir: &Path, module: &str) -> Option<PathBuf> {
    let path = dir.join(module.replace('.', "/"));
    let places = [path.with_extension("py"), path.join("__init__.py")];
    places.into_iter().find(|place| place.is_file())
}

/// What a module could be asked to run.
#[derive(Debug, PartialEq)]
struct Callable {
    /// As it is written after the colon of an entry.
    entry: &'static str,
    /// What it speaks, where the text shows that.
    kind: Option<AppKind>,
    /// Whether it is a factory that cannot be called without arguments. Its worker refuses it and
    /// says how it is spelled with them.
    needs_arguments: bool,
}

impl Callable {
    /// Whether it is called for the application.
    fn is_factory(&self) -> bool {
        self.entry.ends_with(')') || self.needs_arguments
    }

    /// The given kind where the text shows none, else WSGI.
    fn in_module(&self, module: &str, wanted_kind: Option<AppKind>) -> DetectedApp {
        DetectedApp {
            kind: self.kind.or(wanted_kind).unwrap_or(AppKind::Wsgi),
            entry: match self.needs_arguments {
                true => format!("{module}:{}", self.entry.trim_end_matches("()")),
                false => format!("{module}:{}", self.entry),
            },
        }
    }
}

/// The callable that a module defines or imports at its top level.
fn find_callable(text: &str, module: &str) -> Option<Callable> {
    let names = top_level_names(text);
    let has = |(name, _): &&(&str, &str)| names.contains(name);
    let is_web = || code_lines(text).any(|line| kind_of_line(line).is_some());
    let found = COMMON_CALLABLES.iter().find(has);
    let (name, entry) =
        found.or_else(|| AMBIGUOUS_CALLABLES.iter().find(has).filter(|_| is_web()))?;
    Some(Callable {
        entry,
        kind: kind_of_callable(text, module, name),
        needs_arguments: entry.ends_with(')') && needs_arguments(text, name),
    })
}

/// What the callable `name` of a module speaks, where the text shows that: by what it is assigned,
/// else by what the module makes.
pub(crate) fn kind_of_callable(text: &str, module: &str, name: &str) -> Option<AppKind> {
    let is_own = |line: &&str| {
        defined_name(line) == Some(name)
            || chained_names(line) == Some(name)
            || unpacked_names(line).contains(&name)
    };
    let mut own = code_lines(text).filter(is_own);
    if let Some(kind) = own.next_back().and_then(kind_of_line) {
        return Some(kind);
    }
    if is_async_function(text, name) || module.rsplit('.').next() == Some("asgi") {
        return Some(AppKind::Asgi);
    }
    let mut kinds = code_lines(text).filter_map(kind_of_line);
    let first = kinds.next()?;
    // A module that makes both does not show which one this is.
    kinds.all(|kind| kind == first).then_some(first)
}

/// The name in the module, and how an entry says it.
const COMMON_CALLABLES: [(&str, &str); 6] = [
    ("application", "application"),
    ("app", "app"),
    ("asgi_app", "asgi_app"),
    ("wsgi_app", "wsgi_app"),
    ("create_app", "create_app()"),
    ("make_app", "make_app()"),
];

/// Names that mean an application only in a module that shows to make one.
const AMBIGUOUS_CALLABLES: [(&str, &str); 6] = [
    ("server", "server"),
    ("api", "api"),
    ("asgi", "asgi"),
    ("wsgi", "wsgi"),
    ("create_application", "create_application()"),
    ("get_app", "get_app()"),
];

#[cfg(test)]
mod tests;
