//! What a folder without a configuration is: a Rack, Django or WSGI application, or files.
//!
//! Used by `resolve` for a bare folder and by `app` for a table that leaves `kind` or `entry` out.
//! Modules are searched as text, never run. What must stay true: the same folder always gives the
//! same answer, and an ASGI application is never taken for a WSGI one.

use std::path::{Path, PathBuf};

use crate::disk;
use crate::error::Problem;
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
    "manage.py with a wsgi.py",
    "app, wsgi, main, application or guestbook (.py or package) with `application`, `app` or `create_app`",
    "public/",
    "index.html",
];

/// The application of a folder, whatever its kind.
pub(crate) fn app_in(dir: &Path) -> Result<Option<Found>, Problem> {
    match rack_in(dir)? {
        Some(found) => Ok(Some(found)),
        None => python_in(dir),
    }
}

/// The rackup file of a folder.
pub(crate) fn rack_in(dir: &Path) -> Result<Option<Found>, Problem> {
    let found = Found {
        kind: AppKind::Rack,
        entry: "config.ru".to_owned(),
    };
    Ok(dir.join("config.ru").is_file().then_some(found))
}

/// The WSGI application of a folder.
///
/// # Errors
/// When all there is speaks ASGI.
pub(crate) fn python_in(dir: &Path) -> Result<Option<Found>, Problem> {
    if let Some(module) = django_module(dir) {
        return Ok(Some(wsgi(&module, "application")));
    }
    let mut asgi = None;
    for module in MODULES {
        let Some(file) = module_file(dir, module) else {
            continue;
        };
        match callable_in(&disk::source_text(&file), module == "asgi") {
            Callable::Wsgi(name) => return Ok(Some(wsgi(module, name))),
            Callable::Asgi => asgi = asgi.or(Some(file)),
            Callable::None => {}
        }
    }
    asgi.map_or(Ok(None), |file| Err(Problem::AsgiFound(file)))
}

/// The WSGI application of one module file.
pub(crate) fn module_in(file: &Path, module: &str) -> Result<Option<Found>, Problem> {
    match callable_in(&disk::source_text(file), module == "asgi") {
        Callable::Wsgi(name) => Ok(Some(wsgi(module, name))),
        Callable::Asgi => Err(Problem::AsgiFound(file.to_owned())),
        Callable::None => Ok(None),
    }
}

/// Tried in this order.
const MODULES: [&str; 6] = ["app", "wsgi", "asgi", "main", "application", "guestbook"];

fn wsgi(module: &str, callable: &str) -> Found {
    Found {
        kind: AppKind::Wsgi,
        entry: format!("{module}:{callable}"),
    }
}

fn module_file(dir: &Path, module: &str) -> Option<PathBuf> {
    let places = [
        dir.join(format!("{module}.py")),
        dir.join(module).join("__init__.py"),
    ];
    places.into_iter().find(|place| place.is_file())
}

/// The module with Django's `application`: beside the settings that manage.py names, else the first
/// folder that has a `wsgi.py`.
fn django_module(dir: &Path) -> Option<String> {
    let manage = disk::source_text(&dir.join("manage.py"));
    if !manage.to_ascii_lowercase().contains("django") {
        return None;
    }
    let has_wsgi = |module: &String| {
        let folder: PathBuf = module.split('.').collect();
        dir.join(folder).join("wsgi.py").is_file()
    };
    // `mysite.settings` and `mysite.settings.local` both stand beside `mysite/wsgi.py`.
    let settings = settings_module(&manage).unwrap_or_default();
    let parents = settings
        .match_indices('.')
        .map(|(dot, _)| settings[..dot].to_owned());
    let named = parents.rev().find(has_wsgi);
    let package = named.or_else(|| disk::folders_in(dir).into_iter().find(has_wsgi))?;
    let module = format!("{package}.wsgi");
    crate::entry::split_wsgi(&format!("{module}:application")).map(|_| module.clone())
}

/// The quoted word after `DJANGO_SETTINGS_MODULE`.
fn settings_module(manage: &str) -> Option<&str> {
    let (_, rest) = manage.split_once("DJANGO_SETTINGS_MODULE")?;
    let rest = rest.trim_start_matches(['"', '\'', ']', ')', ',', '=', ' ', '\n', '\t']);
    let end = rest.find(['"', '\''])?;
    Some(&rest[..end])
}

#[derive(Debug, PartialEq)]
enum Callable {
    /// As it is written after the colon of an entry.
    Wsgi(&'static str),
    Asgi,
    None,
}

/// The callable that a module defines or imports at its top level.
fn callable_in(text: &str, named_asgi: bool) -> Callable {
    let names = top_level_names(text);
    let is_asgi = named_asgi || ASGI_SIGNS.iter().any(|sign| text.contains(sign));
    let found = CALLABLES.iter().find(|(name, _)| names.contains(name));
    match found {
        None => Callable::None,
        Some((name, _)) if is_asgi || is_coroutine(text, name) => Callable::Asgi,
        Some((_, entry)) => Callable::Wsgi(entry),
    }
}

/// The name in the module, and how an entry says it.
const CALLABLES: [(&str, &str); 3] = [
    ("application", "application"),
    ("app", "app"),
    ("create_app", "create_app()"),
];

/// Only ASGI applications are made by these.
const ASGI_SIGNS: [&str; 6] = [
    "FastAPI(",
    "Starlette(",
    "Quart(",
    "Litestar(",
    "get_asgi_application(",
    "Sanic(",
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
mod tests {
    use super::*;

    #[test]
    fn finds_the_callable_of_a_module() {
        let rows = [
            (
                "assignment",
                "application = Flask(__name__)\n",
                Callable::Wsgi("application"),
            ),
            ("app", "app = Flask(__name__)\n", Callable::Wsgi("app")),
            (
                "without spaces",
                "app=Flask(__name__)\n",
                Callable::Wsgi("app"),
            ),
            ("annotated", "app: Flask = make()\n", Callable::Wsgi("app")),
            ("chained", "flask = app = Flask()\n", Callable::Wsgi("app")),
            (
                "function",
                "def application(environ, start):\n",
                Callable::Wsgi("application"),
            ),
            (
                "factory",
                "def create_app(test=None):\n",
                Callable::Wsgi("create_app()"),
            ),
            ("import", "from site import app\n", Callable::Wsgi("app")),
            (
                "alias",
                "from site import web as application\n",
                Callable::Wsgi("application"),
            ),
            (
                "bracket",
                "from site import (\n    one,\n    app,\n)\n",
                Callable::Wsgi("app"),
            ),
            (
                "application first",
                "app = 1\napplication = app\n",
                Callable::Wsgi("application"),
            ),
            ("indented", "if x:\n    app = 1\n", Callable::None),
            ("comparison", "app == 1\n", Callable::None),
            ("other name", "apple = 1\n", Callable::None),
            ("comment", "# app = 1\n", Callable::None),
            (
                "alias away",
                "from site import app as other\n",
                Callable::None,
            ),
            ("fastapi", "app = FastAPI()\n", Callable::Asgi),
            (
                "coroutine",
                "async def app(scope, receive, send):\n",
                Callable::Asgi,
            ),
            ("empty", "", Callable::None),
        ];
        for (name, text, expected) in rows {
            assert_eq!(callable_in(text, false), expected, "{name}");
        }
        assert_eq!(callable_in("application = x\n", true), Callable::Asgi);
    }

    #[test]
    fn reads_the_settings_module_of_manage_py() {
        let rows = [
            (
                "os.environ.setdefault('DJANGO_SETTINGS_MODULE', 'mysite.settings')",
                "mysite.settings",
            ),
            (
                "os.environ[\"DJANGO_SETTINGS_MODULE\"] = \"a.b.settings\"",
                "a.b.settings",
            ),
        ];
        for (text, expected) in rows {
            assert_eq!(settings_module(text), Some(expected), "{text}");
        }
        assert_eq!(settings_module("no settings"), None);
    }
}
