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
mod hints;
mod ruby;

use std::path::{Path, PathBuf};

pub(crate) use self::advice::setup_advice;
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
pub(crate) const DETECTION_CANDIDATES: [&str; 7] = [
    "penstock.toml",
    "config.ru",
    "manage.py with a wsgi.py or asgi.py",
    "an application in app, asgi, wsgi, main, application, server, run, guestbook (.py or package), \
     in app, main, wsgi or asgi of a package, here or in src/, under the names application, app, \
     asgi_app, wsgi_app, server, api, create_app or make_app, or one module that makes an application",
    "a Ruby file that requires sinatra, or has a class of Sinatra::Base, Roda or Grape::API",
    "public/index.html",
    "index.html",
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

/// The rackup file of a directory.
fn detect_rackup_file(dir: &Path) -> Option<DetectedApp> {
    let found = DetectedApp {
        kind: AppKind::Rack,
        entry: "config.ru".to_owned(),
    };
    dir.join("config.ru").is_file().then_some(found)
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
        None => candidates().next()?,
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
const COMMON_MODULES: [&str; 9] = [
    "app",
    "wsgi",
    "asgi",
    "main",
    "application",
    "server",
    "run",
    "guestbook",
    "app.main",
];

/// Modules of a package, tried after the package itself.
const PACKAGE_MODULES: [&str; 6] = ["wsgi", "asgi", "app", "main", "application", "server"];

/// Packages that hold no application of their own.
const NON_APPLICATION_PACKAGES: [&str; 6] =
    ["test", "tests", "docs", "migrations", "scripts", "examples"];

/// Packages that are looked into in one directory.
const MAX_PACKAGES: usize = 64;

fn module_file(dir: &Path, module: &str) -> Option<PathBuf> {
    let path = dir.join(module.replace('.', "/"));
    let places = [path.with_extension("py"), path.join("__init__.py")];
    places.into_iter().find(|place| place.is_file())
}

/// Django's `application`: of its `wsgi.py`, or of its `asgi.py` if that kind is given or the only
/// one.
fn detect_django(dir: &Path, wanted_kind: Option<AppKind>) -> Option<DetectedApp> {
    let manage = disk::read_source_or_empty(&dir.join("manage.py"));
    if !manage.to_ascii_lowercase().contains("django") {
        return None;
    }
    // WebSockets need ASGI.
    let is_asgi = django_module(dir, &manage, "asgi").is_some_and(|module| {
        let file = module_file(dir, &module);
        let text = file.map(|file| disk::read_source_or_empty(&file));
        text.is_some_and(|text| text.contains("ProtocolTypeRouter("))
    });
    let kinds = match is_asgi {
        true => [AppKind::Asgi, AppKind::Wsgi],
        false => [AppKind::Wsgi, AppKind::Asgi],
    };
    let mut kinds = kinds
        .into_iter()
        .filter(|kind| wanted_kind.is_none_or(|wanted_kind| wanted_kind == *kind));
    kinds.find_map(|kind| {
        let module = django_module(dir, &manage, kind.as_str())?;
        let entry = format!("{module}:application");
        crate::entry::split_python(&entry)?;
        Some(DetectedApp { kind, entry })
    })
}

/// The module of this name with Django's `application`: beside the settings that manage.py names,
/// else in the first directory that has one.
fn django_module(dir: &Path, manage: &str, name: &str) -> Option<String> {
    let file = format!("{name}.py");
    let has_it = |module: &String| {
        let folder: PathBuf = module.split('.').collect();
        dir.join(folder).join(&file).is_file()
    };
    // `mysite.settings` and `mysite.settings.local` both stand beside `mysite/wsgi.py`.
    let settings = settings_module(manage).unwrap_or_default();
    let parents = settings
        .match_indices('.')
        .map(|(dot, _)| settings[..dot].to_owned());
    let named = parents.rev().find(has_it);
    let package = named.or_else(|| disk::list_directories(dir).into_iter().find(has_it))?;
    Some(format!("{package}.{name}"))
}

/// The quoted word after `DJANGO_SETTINGS_MODULE`.
fn settings_module(manage: &str) -> Option<&str> {
    let (_, rest) = manage.split_once("DJANGO_SETTINGS_MODULE")?;
    let rest = rest.trim_start_matches(['"', '\'', ']', ')', ',', '=', ' ', '\n', '\t']);
    let end = rest.find(['"', '\''])?;
    Some(&rest[..end])
}

/// What a module could be asked to run.
#[derive(Debug, PartialEq)]
struct Callable {
    /// As it is written after the colon of an entry.
    entry: &'static str,
    /// What it speaks, where the text shows that.
    kind: Option<AppKind>,
}

impl Callable {
    /// The given kind where the text shows none, else WSGI.
    fn in_module(&self, module: &str, wanted_kind: Option<AppKind>) -> DetectedApp {
        DetectedApp {
            kind: self.kind.or(wanted_kind).unwrap_or(AppKind::Wsgi),
            entry: format!("{module}:{}", self.entry),
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
    let kind = kind_of_callable(text, module, name);
    Some(Callable { entry, kind })
}

fn code_lines(text: &str) -> impl DoubleEndedIterator<Item = &str> {
    let lines = text.lines();
    lines.filter(|line| !line.trim_start().starts_with('#'))
}

/// What a line of code makes, where it shows that.
fn kind_of_line(line: &str) -> Option<AppKind> {
    let has = |signs: &[&str]| signs.iter().any(|sign| line.contains(sign));
    // What wraps an ASGI application may be written around one.
    match (has(&WSGI_SIGNS), has(&ASGI_SIGNS)) {
        (true, _) => Some(AppKind::Wsgi),
        (false, true) => Some(AppKind::Asgi),
        (false, false) => None,
    }
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

/// Only WSGI applications are made by these.
const WSGI_SIGNS: [&str; 12] = [
    "Dash(",
    "cherrypy.tree.",
    "default_app(",
    "make_wsgi_app(",
    "Flask(",
    "get_wsgi_application(",
    "falcon.App(",
    "Bottle(",
    ".wsgifunc(",
    "ASGIMiddleware(",
    "AsgiToWsgi(",
    "DispatcherMiddleware(",
];

/// Only ASGI applications are made by these.
const ASGI_SIGNS: [&str; 18] = [
    "FastHTML(",
    "fast_app(",
    "from blacksheep",
    "Datasette(",
    "create_asgi_app(",
    "marimo.App(",
    "from shiny import",
    "run_with(",
    "mount_chainlit(",
    "FastAPI(",
    "Starlette(",
    "Quart(",
    "Litestar(",
    "get_asgi_application(",
    "Sanic(",
    "falcon.asgi.App(",
    "ProtocolTypeRouter(",
    "WsgiToAsgi(",
];

fn is_async_function(text: &str, name: &str) -> bool {
    text.lines().any(|line| {
        let rest = line
            .strip_prefix("async def ")
            .and_then(|rest| rest.strip_prefix(name));
        rest.is_some_and(|rest| rest.trim_start().starts_with('('))
    })
}

/// Names that lines without indentation assign, define or import.
fn top_level_names(text: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("from ") {
            let Some((_, imported)) = line.split_once(" import ") else {
                continue;
            };
            names.extend(imported_names(imported));
            if imported.contains('(') && !imported.contains(')') {
                let inner = lines.by_ref().take_while(|line| !line.starts_with(')'));
                names.extend(inner.flat_map(imported_names));
            }
        } else {
            names.extend(defined_name(line));
            names.extend(chained_names(line));
            names.extend(unpacked_names(line));
        }
    }
    names
}

/// `a, b as c` without brackets and comments.
fn imported_names(list: &str) -> impl Iterator<Item = &str> {
    let list = list.split('#').next().unwrap_or_default();
    list.split(',').map(|item| {
        let item = item.trim_matches(|c: char| c.is_whitespace() || "()\\".contains(c));
        item.rsplit_once(" as ")
            .map_or(item, |(_, alias)| alias.trim())
    })
}

/// `name = ...`, `name: Type = ...`, `def name(` and `async def name(`.
fn defined_name(line: &str) -> Option<&str> {
    let plain = line.strip_prefix("async ").unwrap_or(line);
    let (is_def, rest) = plain
        .strip_prefix("def ")
        .map_or((false, line), |rest| (true, rest));
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    let after = rest[end..].trim_start();
    let assigns = after.starts_with('=') && !after.starts_with("==");
    let annotates = after.starts_with(':') && after.contains('=');
    let matches = if is_def {
        after.starts_with('(')
    } else {
        assigns || annotates
    };
    matches.then_some(&rest[..end])
}

/// `second` of `first = second = ...`.
fn chained_names(line: &str) -> Option<&str> {
    let (_, rest) = line
        .split_once(" = ")
        .filter(|_| !line.starts_with([' ', '\t', '#']))?;
    defined_name(rest)
}

/// The names of `first, second = ...`.
fn unpacked_names(line: &str) -> Vec<&str> {
    let Some((targets, value)) = line.split_once('=') else {
        return Vec::new();
    };
    let names = targets.trim_end().trim_matches(['(', ')', '[', ']']);
    let names: Vec<&str> = names.split(',').map(str::trim).collect();
    let is_name =
        |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
    let is_unpacking = !value.starts_with('=') && !line.starts_with([' ', '\t']) && names.len() > 1;
    match is_unpacking && names.iter().all(is_name) {
        true => names,
        false => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
