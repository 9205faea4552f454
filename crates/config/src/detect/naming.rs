//! What a start prints about an application that was found: its framework, and whether the entry is
//! a factory.
//!
//! Used by `resolve` once the entry is known. Looks at texts and names only.

use std::path::Path;

use super::{DetectedApp, django, import_roots, module_file, ruby, signs, source};
use crate::disk;
use crate::entry;
use crate::model::{AppKind, Detection};

/// Describes the application of `entry` in `dir`.
pub(crate) fn describe_app(dir: &Path, kind: AppKind, entry: &str) -> Detection {
    match kind {
        AppKind::Rack => Detection {
            framework: ruby::framework_of(dir, entry),
            ..Detection::default()
        },
        AppKind::Wsgi | AppKind::Asgi => describe_python(dir, entry),
        AppKind::Command | AppKind::FastCgi | AppKind::Job => Detection::default(),
    }
}

fn describe_python(dir: &Path, entry: &str) -> Detection {
    let (module, callable) = entry::split_python(entry).unwrap_or((entry, ""));
    let file = import_roots(dir).find_map(|root| module_file(&root, module));
    let text = file.map(|file| disk::read_source_or_empty(&file));
    let text = text.unwrap_or_default();
    let framework = signs::framework_of(&text);
    let is_django = matches!(framework, Some("Django" | "Django Channels"));
    let name = callable.split(['.', '(']).next().unwrap_or_default();
    Detection {
        title: None,
        framework,
        is_factory: callable.ends_with(')')
            || source::optional_parameters(&text, name) == Some(true),
        django_settings: is_django.then(|| django::project_settings(dir)).flatten(),
    }
}

/// Why an application cannot be served as WSGI or ASGI, and what would serve it: its framework runs
/// a server of its own. `None` for any other.
pub(crate) fn refuse_own_server(dir: &Path, found: &DetectedApp) -> Option<String> {
    let (module, _) = entry::split_python(&found.entry).unwrap_or((&found.entry, ""));
    if !matches!(found.kind, AppKind::Wsgi | AppKind::Asgi) {
        return None;
    }
    let file = import_roots(dir).find_map(|root| module_file(&root, module))?;
    let text = disk::read_source_or_empty(&file);
    let framework = signs::own_server_of(&text).filter(|_| signs::framework_of(&text).is_none())?;
    let shown = file.strip_prefix(dir).unwrap_or(&file).display();
    Some(format!(
        "{shown} makes an application of {framework}, which is neither WSGI nor ASGI but runs a \
         server of its own: write [apps.site] with kind = \"command\" and command = \"python3 \
         {shown} {{port}}\" to penstock.toml, with {{port}} where the program takes its port (it \
         is in PORT, too)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestDir;

    #[test]
    fn says_what_an_entry_is() {
        const FLASK: &str = "def create_app(test=None):\n    return Flask(__name__)\n";
        let rows = [
            (
                "app.py",
                "app = Flask(__name__)\n",
                "app:app",
                Some("Flask"),
                false,
            ),
            ("app.py", FLASK, "app:create_app()", Some("Flask"), true),
            ("src/app.py", FLASK, "app:create_app", Some("Flask"), true),
            (
                "app.py",
                "def app(environ, start_response):\n    pass\n",
                "app:app",
                None,
                false,
            ),
            (
                "config.ru",
                "run Sinatra::Application\n",
                "config.ru",
                Some("Sinatra"),
                false,
            ),
        ];
        for (file, text, entry, framework, is_factory) in rows {
            let folder = TestDir::with_files(&[(file, text)]);
            let kind = match entry {
                "config.ru" => AppKind::Rack,
                _ => AppKind::Wsgi,
            };
            let found = describe_app(folder.path(), kind, entry);
            assert_eq!(found.framework, framework, "{entry}");
            assert_eq!(found.is_factory, is_factory, "{entry}");
        }
    }
}
