//! What a folder without a configuration is: a Rack, Django, WSGI or ASGI application, or files.
//!
//! Used by `resolve` for a bare folder and by `app` for a table that leaves `kind` or `entry` out.
//! Modules are searched as text, never run. What must stay true: the same folder always gives the
//! same answer, and a module that shows what it speaks is never taken for something else.

use std::path::{Path, PathBuf};

use crate::disk;
use crate::model::AppKind;

/// The code of a recognised application.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Found {
    /// How it is spoken to.
    pub(crate) kind: AppKind,
    /// Its entry, relative to the folder.
    pub(crate) entry: String,
}

/// What was looked for when nothing was found, in the order of looking.
pub(crate) const LOOKED_FOR: [&str; 6] = [
    "penstock.toml",
    "config.ru",
    "manage.py with a wsgi.py or asgi.py",
    "app, wsgi, asgi, main, application, guestbook (.py or package) or app/main.py with `application`, `app` or `create_app`",
    "public/",
    "index.html",
];

/// The application of a folder, whatever its kind.
pub(crate) fn app_in(dir: &Path) -> Option<Found> {
    rack_in(dir).or_else(|| python_in(dir, None))
}

/// The rackup file of a folder.
pub(crate) fn rack_in(dir: &Path) -> Option<Found> {
    let found = Found {
        kind: AppKind::Rack,
        entry: "config.ru".to_owned(),
    };
    dir.join("config.ru").is_file().then_some(found)
}

/// The WSGI or ASGI application of a folder; with a kind that is said, none that shows to be of the
/// other.
pub(crate) fn python_in(dir: &Path, said: Option<AppKind>) -> Option<Found> {
    if let Some(found) = django_in(dir, said) {
        return Some(found);
    }
    let candidates = || {
        let files = MODULES
            .iter()
            .map(|module| (*module, module_file(dir, module)));
        files.filter_map(|(module, file)| {
            let text = disk::source_text(&file?);
            callable_in(&text, module).map(|callable| (module, callable))
        })
    };
    let (module, callable) = match said {
        None => candidates().next()?,
        Some(_) => candidates()
            .find(|(_, callable)| callable.kind == said)
            .or_else(|| candidates().find(|(_, callable)| callable.kind.is_none()))?,
    };
    Some(callable.of_module(module, said))
}

/// The WSGI or ASGI application of one module file.
pub(crate) fn module_in(file: &Path, module: &str) -> Option<Found> {
    let callable = callable_in(&disk::source_text(file), module)?;
    Some(callable.of_module(module, None))
}

/// Tried in this order.
const MODULES: [&str; 7] = [
    "app",
    "wsgi",
    "asgi",
    "main",
    "application",
    "guestbook",
    "app.main",
];

fn module_file(dir: &Path, module: &str) -> Option<PathBuf> {
    let path = dir.join(module.replace('.', "/"));
    let places = [path.with_extension("py"), path.join("__init__.py")];
    places.into_iter().find(|place| place.is_file())
}

/// Django's `application`: of its `wsgi.py`, or of its `asgi.py` if that kind is said or the only one.
fn django_in(dir: &Path, said: Option<AppKind>) -> Option<Found> {
    let manage = disk::source_text(&dir.join("manage.py"));
    if !manage.to_ascii_lowercase().contains("django") {
        return None;
    }
    let kinds = [AppKind::Wsgi, AppKind::Asgi];
    let mut kinds = kinds
        .into_iter()
        .filter(|kind| said.is_none_or(|said| said == *kind));
    kinds.find_map(|kind| {
        let module = django_module(dir, &manage, kind.as_str())?;
        let entry = format!("{module}:application");
        crate::entry::split_python(&entry)?;
        Some(Found { kind, entry })
    })
}

/// The module of this name with Django's `application`: beside the settings that manage.py names, else in
/// the first folder that has one.
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
    let package = named.or_else(|| disk::folders_in(dir).into_iter().find(has_it))?;
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
    /// Of a kind that nothing shows, the one that is said, else WSGI.
    fn of_module(&self, module: &str, said: Option<AppKind>) -> Found {
        Found {
            kind: self.kind.or(said).unwrap_or(AppKind::Wsgi),
            entry: format!("{module}:{}", self.entry),
        }
    }
}

/// The callable that a module defines or imports at its top level.
fn callable_in(text: &str, module: &str) -> Option<Callable> {
    let names = top_level_names(text);
    let (name, entry) = CALLABLES.iter().find(|(name, _)| names.contains(name))?;
    let kind = kind_of(text, module, name);
    Some(Callable { entry, kind })
}

/// What the callable `name` of a module speaks, where the text shows that: by what it is assigned, else by
/// what the module makes.
pub(crate) fn kind_of(text: &str, module: &str, name: &str) -> Option<AppKind> {
    let shows = |line: &str| {
        let has = |signs: &[&str]| signs.iter().any(|sign| line.contains(sign));
        // What wraps an ASGI application may be written around one.
        match (has(&WSGI_SIGNS), has(&ASGI_SIGNS)) {
            (true, _) => Some(AppKind::Wsgi),
            (false, true) => Some(AppKind::Asgi),
            (false, false) => None,
        }
    };
    let code = || {
        text.lines()
            .filter(|line| !line.trim_start().starts_with('#'))
    };
    let mut own =
        code().filter(|line| defined_name(line) == Some(name) || chained_names(line) == Some(name));
    if let Some(kind) = own.next_back().and_then(shows) {
        return Some(kind);
    }
    if is_coroutine(text, name) || module.rsplit('.').next() == Some("asgi") {
        return Some(AppKind::Asgi);
    }
    let mut kinds = code().filter_map(shows);
    let first = kinds.next()?;
    // Of a module that makes both, nobody knows which one this is.
    kinds.all(|kind| kind == first).then_some(first)
}

/// The name in the module, and how an entry says it.
const CALLABLES: [(&str, &str); 3] = [
    ("application", "application"),
    ("app", "app"),
    ("create_app", "create_app()"),
];

/// Only WSGI applications are made by these.
const WSGI_SIGNS: [&str; 8] = [
    "Flask(",
    "get_wsgi_application(",
    "falcon.App(",
    "Bottle(",
    "make_wsgi_app(",
    "ASGIMiddleware(",
    "AsgiToWsgi(",
    "DispatcherMiddleware(",
];

/// Only ASGI applications are made by these.
const ASGI_SIGNS: [&str; 9] = [
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

fn is_coroutine(text: &str, name: &str) -> bool {
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

#[cfg(test)]
mod tests;
