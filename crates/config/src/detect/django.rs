//! A Django project: its application, WSGI or ASGI, and the module of its settings.
//!
//! Used by `detect`. The settings are read as text here, for the names that decide which
//! application is meant; their values are Python's to tell (`django_files` of the binary).

use std::path::{Path, PathBuf};

use super::source::code_lines;
use super::{DetectedApp, module_file};
use crate::disk;
use crate::model::AppKind;

/// The module that Django's own commands set, and that the environment may replace.
const SETTINGS_VARIABLE: &str = "DJANGO_SETTINGS_MODULE";

/// Applications that need ASGI, among `INSTALLED_APPS`.
const ASGI_APPS: [&str; 2] = ["channels", "daphne"];

/// Settings files that are read, at most.
const MAX_SETTINGS_FILES: usize = 16;

/// The text of the folder's `manage.py`, if that is Django's.
fn read_manage(dir: &Path) -> Option<String> {
    let text = disk::read_source_or_empty(&dir.join("manage.py"));
    text.to_ascii_lowercase().contains("django").then_some(text)
}

/// The settings module of the project in `dir`: of the environment, else of its `manage.py`.
pub(super) fn project_settings(dir: &Path) -> Option<String> {
    let manage = read_manage(dir)?;
    let named = std::env::var(SETTINGS_VARIABLE)
        .ok()
        .filter(|name| !name.is_empty());
    let settings = named.or_else(|| settings_module(&manage).map(str::to_owned))?;
    crate::entry::is_python_entry(&settings).then_some(settings)
}

/// Django's `application`: of its `wsgi.py`, or of its `asgi.py` if the project says so, or if that
/// kind is given or the only one.
pub(super) fn detect_django(dir: &Path, wanted_kind: Option<AppKind>) -> Option<DetectedApp> {
    let manage = read_manage(dir)?;
    let settings = settings_text(dir);
    let named = asgi_application(&settings)
        .filter(|entry| crate::entry::check_module(dir, entry))
        .filter(|_| wanted_kind.is_none_or(|kind| kind == AppKind::Asgi));
    if let Some(entry) = named {
        let kind = AppKind::Asgi;
        return Some(DetectedApp { kind, entry });
    }
    let is_asgi = has_asgi_app(&settings) || has_protocol_router(dir, &manage);
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

/// Whether the project's `asgi.py` routes WebSockets.
fn has_protocol_router(dir: &Path, manage: &str) -> bool {
    let file = django_module(dir, manage, "asgi").and_then(|module| module_file(dir, &module));
    let text = file.map(|file| disk::read_source_or_empty(&file));
    text.is_some_and(|text| text.contains("ProtocolTypeRouter("))
}

/// The text of the settings: of the module, or of all modules of the package that it is in.
fn settings_text(dir: &Path) -> String {
    let Some(settings) = project_settings(dir) else {
        return String::new();
    };
    let path: PathBuf = settings.split('.').collect();
    let path = dir.join(path);
    // `mysite.settings.production` imports from `mysite.settings.base`.
    let folder = match path.is_dir() {
        true => Some(path.clone()),
        false => path
            .parent()
            .filter(|parent| parent.ends_with("settings"))
            .map(Path::to_owned),
    };
    let Some(folder) = folder else {
        return disk::read_source_or_empty(&path.with_extension("py"));
    };
    let mut names = disk::list_files(&folder);
    names.retain(|name| name.ends_with(".py"));
    names.sort();
    let texts = names.iter().take(MAX_SETTINGS_FILES);
    texts
        .map(|name| disk::read_source_or_empty(&folder.join(name)))
        .collect::<Vec<_>>()
        .join("\n")
}

/// The entry that `ASGI_APPLICATION = "mysite.asgi.application"` names.
fn asgi_application(settings: &str) -> Option<String> {
    let mut values = code_lines(settings).filter_map(|line| {
        let value = line.strip_prefix("ASGI_APPLICATION")?.trim_start();
        let value = value.strip_prefix('=')?.trim_start();
        let quote = value.chars().next().filter(|c| ['"', '\''].contains(c))?;
        value[1..].split(quote).next()
    });
    let (module, callable) = values.next_back()?.rsplit_once('.')?;
    let entry = format!("{module}:{callable}");
    crate::entry::split_python(&entry)?;
    Some(entry)
}

/// Whether Channels is among the settings' texts, as in `INSTALLED_APPS`.
fn has_asgi_app(settings: &str) -> bool {
    let quoted = |name: &str| [format!("\"{name}\""), format!("'{name}'")];
    let names: Vec<String> = ASGI_APPS.into_iter().flat_map(quoted).collect();
    code_lines(settings).any(|line| {
        let line = line.trim_start();
        names.iter().any(|name| line.starts_with(name.as_str()))
            || line.starts_with("INSTALLED_APPS")
                && names.iter().any(|name| line.contains(name.as_str()))
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
    let (_, rest) = manage.split_once(SETTINGS_VARIABLE)?;
    let rest = rest.trim_start_matches(['"', '\'', ']', ')', ',', '=', ' ', '\n', '\t']);
    let end = rest.find(['"', '\''])?;
    Some(&rest[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestDir;

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

    #[test]
    fn serves_asgi_where_the_settings_say_so() {
        const MANAGE: &str = "os.environ.setdefault('DJANGO_SETTINGS_MODULE', 'mysite.settings')\n";
        let rows = [
            ("", AppKind::Wsgi, "mysite.wsgi:application"),
            (
                "ASGI_APPLICATION = 'mysite.routing.site'\n",
                AppKind::Asgi,
                "mysite.routing:site",
            ),
            (
                "# ASGI_APPLICATION = 'mysite.routing.site'\n",
                AppKind::Wsgi,
                "mysite.wsgi:application",
            ),
            (
                "ASGI_APPLICATION = 'mysite.missing.site'\n",
                AppKind::Wsgi,
                "mysite.wsgi:application",
            ),
            (
                "INSTALLED_APPS = [\n    \"daphne\",\n]\n",
                AppKind::Asgi,
                "mysite.asgi:application",
            ),
            (
                "INSTALLED_APPS = ['a', 'channels']\n",
                AppKind::Asgi,
                "mysite.asgi:application",
            ),
        ];
        for (settings, kind, entry) in rows {
            let folder = TestDir::with_files(&[
                ("manage.py", MANAGE),
                ("mysite/settings.py", settings),
                ("mysite/wsgi.py", ""),
                ("mysite/asgi.py", ""),
                ("mysite/routing.py", ""),
            ]);
            let found = detect_django(folder.path(), None).unwrap();
            assert_eq!(
                (found.kind, found.entry.as_str()),
                (kind, entry),
                "{settings}"
            );
            let wanted = detect_django(folder.path(), Some(AppKind::Wsgi)).unwrap();
            assert_eq!(wanted.entry, "mysite.wsgi:application", "{settings}");
        }
    }
}
