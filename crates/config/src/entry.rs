//! What an application's `entry` says, and whether its file is there.
//!
//! Used by `app` for entries of a file and by `resolve` for those of the command line.
//!
//! # Invariants
//! - The check looks only at files and directories.
//! - Whether the callable exists is found out by the interpreter, at boot.

use std::path::{Path, PathBuf};

use crate::model::{App, AppKind};
use crate::{detect, disk};

/// The kind that an entry without a `kind` must mean: of a module, what its text shows.
pub(crate) fn detect_kind(app: &App, entry: &str) -> AppKind {
    if split_ruby(entry).is_some() {
        return AppKind::Rack;
    }
    let split = split_python(entry).or_else(|| is_dotted_name(entry).then_some((entry, "")));
    let detected = split.and_then(|(module, callable)| {
        let paths = module_paths(app, module);
        let mut files = paths.into_iter().map(|path| match path.is_dir() {
            true => path.join("__init__.py"),
            false => path,
        });
        let text = disk::read_source_or_empty(&files.find(|file| file.is_file())?);
        let name = callable.split(['.', '(']).next().unwrap_or(callable);
        detect::kind_of_callable(&text, module, name)
    });
    detected.unwrap_or(AppKind::Wsgi)
}

/// Whether the text follows the grammar of its kind.
pub(crate) fn is_valid_entry(kind: AppKind, entry: &str) -> bool {
    match kind {
        AppKind::Wsgi | AppKind::Asgi => is_python_entry(entry),
        AppKind::Rack => split_ruby(entry).is_some(),
        // Their code is whatever their command runs.
        AppKind::Command | AppKind::FastCgi | AppKind::Job => false,
    }
}

/// Whether the file of a valid entry exists.
pub(crate) fn check_file_exists(app: &App, kind: AppKind, entry: &str) -> Result<(), String> {
    let looked_for = match kind {
        AppKind::Rack => {
            let file = split_ruby(entry).map_or(entry, |(file, _)| file);
            vec![app.dir.join(file)]
        }
        AppKind::Wsgi | AppKind::Asgi => {
            module_paths(app, split_python(entry).map_or(entry, |(module, _)| module))
        }
        AppKind::Command | AppKind::FastCgi | AppKind::Job => return Ok(()),
    };
    let is_python = kind != AppKind::Rack;
    let is_there = |path: &PathBuf| path.is_file() || path.is_dir() && is_python;
    if looked_for.iter().any(is_there) || is_python && has_editable_packages(app) {
        return Ok(());
    }
    // The virtual environment's places come last and would only hide the two that matter.
    let looked_for: Vec<_> = (looked_for.iter().take(2))
        .map(|path| path.display().to_string())
        .collect();
    Err(format!(
        "entry `{entry}` was not found: looked for {}",
        looked_for.join(", ")
    ))
}

/// Whether the module of a Python entry lies in the directory.
pub(crate) fn check_module(dir: &Path, entry: &str) -> bool {
    let module = split_python(entry).map_or(entry, |(module, _)| module);
    detect::module_file(dir, module).is_some()
}

/// The file and the constant of `FILE.ru`, `FILE.rb` or `FILE.rb:Constant`; the constant is empty
/// where the file alone is given.
pub(crate) fn split_ruby(entry: &str) -> Option<(&str, &str)> {
    let is_file = |file: &str, ending: &str| {
        let stem = file.strip_suffix(ending);
        stem.is_some_and(|stem| !stem.is_empty() && !stem.ends_with('/')) && !file.contains('\0')
    };
    if is_file(entry, ".ru") || is_file(entry, ".rb") {
        return Some((entry, ""));
    }
    let (stem, constant) = entry.split_once(".rb:")?;
    let file = &entry[..stem.len() + ".rb".len()];
    let is_constant = |name: &str| {
        is_identifier(name) && name.starts_with(|first: char| first.is_ascii_uppercase())
    };
    (is_file(file, ".rb") && constant.split("::").all(is_constant)).then_some((file, constant))
}

/// Whether it is `module:callable`, or a module alone, in which the interpreter finds the
/// callable.
pub(crate) fn is_python_entry(entry: &str) -> bool {
    split_python(entry).is_some() || is_dotted_name(entry) && !entry.ends_with(".py")
}

/// The module and the callable of `package.module:callable` or `package.module:factory(...)`, whose
/// arguments are the interpreter's to read.
pub(crate) fn split_python(entry: &str) -> Option<(&str, &str)> {
    let (module, callable) = entry.split_once(':')?;
    let name = match callable.split_once('(') {
        Some((name, rest)) if rest.ends_with(')') && !rest.contains(['\0', '\n']) => name,
        _ => callable,
    };
    (is_dotted_name(module) && is_dotted_name(name)).then_some((module, callable))
}

fn is_dotted_name(text: &str) -> bool {
    text.split('.').all(is_identifier)
}

fn is_identifier(text: &str) -> bool {
    text.starts_with(|first: char| first.is_alphabetic() || first == '_')
        && text.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// Where Python would find the module: a file or a package in the directory, in `PYTHONPATH` as
/// the application's own `env` sets it, or in a virtual environment.
fn module_paths(app: &App, module: &str) -> Vec<PathBuf> {
    let relative: PathBuf = module.split('.').collect();
    let mut roots = vec![app.dir.clone(), app.dir.join("src")];
    if let Some(path) = app.env.get("PYTHONPATH") {
        roots.extend(
            path.split(':')
                .filter(|p| !p.is_empty())
                .map(|p| app.dir.join(p)),
        );
    }
    roots.extend(package_dirs(app));
    roots
        .iter()
        .flat_map(|root| {
            [
                root.join(&relative).with_extension("py"),
                root.join(&relative),
            ]
        })
        .collect()
}

/// Whether an environment has packages that are linked to from elsewhere (installed as editable):
/// only Python itself can tell what they hold.
fn has_editable_packages(app: &App) -> bool {
    let own = [".pth", ".egg-link"];
    virtual_env_package_dirs(app).iter().any(|dir| {
        let names = disk::list_files(dir);
        names
            .iter()
            .any(|n| own.iter().any(|end| n.ends_with(end)) && n != SETUPTOOLS_PTH)
    })
}

/// Lies in most environments and links to nothing.
const SETUPTOOLS_PTH: &str = "distutils-precedence.pth";

/// Every directory in which the application's Python may have packages.
fn package_dirs(app: &App) -> Vec<PathBuf> {
    let mut folders = virtual_env_package_dirs(app);
    folders.extend(package_dirs_below(Path::new("/usr/local/lib")));
    folders.push(PathBuf::from("/usr/lib/python3/dist-packages"));
    folders
}

/// Those of the virtual environments that it may run in.
fn virtual_env_package_dirs(app: &App) -> Vec<PathBuf> {
    let named = app
        .interpreter
        .as_deref()
        .and_then(Path::parent)
        .and_then(Path::parent);
    let folders = app.dir.ancestors().take(2);
    let nearby = folders.flat_map(|folder| [".venv", "venv", "env"].map(|name| folder.join(name)));
    let active = ["VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "CONDA_PREFIX"];
    let active = active
        .into_iter()
        .filter_map(std::env::var_os)
        .map(|folder| app.dir.join(folder));
    let environments = named.map(Path::to_owned).into_iter();
    let environments = environments.chain(nearby).chain(active);
    environments
        .flat_map(|environment| package_dirs_below(&environment.join("lib")))
        .collect()
}

fn package_dirs_below(lib: &Path) -> Vec<PathBuf> {
    let versions = disk::list_directories(lib)
        .into_iter()
        .map(|version| lib.join(version));
    versions
        .flat_map(|version| ["site-packages", "dist-packages"].map(|name| version.join(name)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_what_ruby_could_load() {
        let rows = [
            ("config.ru", Some(("config.ru", ""))),
            ("web/shop.ru", Some(("web/shop.ru", ""))),
            ("app.rb", Some(("app.rb", ""))),
            ("app.rb:Shop", Some(("app.rb", "Shop"))),
            (
                "web/my-app.rb:Shop::Web2",
                Some(("web/my-app.rb", "Shop::Web2")),
            ),
            ("app.rb:", None),
            ("app.rb:shop", None),
            ("app.rb:Shop.new", None),
            ("app.rb:Shop::", None),
            ("app.ru:Shop", None),
            (".rb", None),
            ("web/.ru", None),
            ("a\0.ru", None),
            ("app:Shop", None),
        ];
        for (entry, expected) in rows {
            assert_eq!(split_ruby(entry), expected, "{entry}");
        }
    }

    #[test]
    fn splits_what_python_could_import() {
        let rows = [
            ("guestbook:application", Some(("guestbook", "application"))),
            (
                "mysite.wsgi:application",
                Some(("mysite.wsgi", "application")),
            ),
            ("app:create_app()", Some(("app", "create_app()"))),
            ("app:server.wsgi", Some(("app", "server.wsgi"))),
            ("app", None),
            ("app:", None),
            (":app", None),
            ("app:2app", None),
            ("my-app:app", None),
            ("../app:app", None),
            ("app..x:app", None),
            ("app:create_app(1)", Some(("app", "create_app(1)"))),
            (
                "app:make('a:b', debug=True)",
                Some(("app", "make('a:b', debug=True)")),
            ),
            ("app:create_app(1", None),
            ("app:(1)", None),
            ("a:b:c", None),
        ];
        for (entry, expected) in rows {
            assert_eq!(split_python(entry), expected, "{entry}");
        }
    }
}
