//! The file with an application's hooks: `hooks` in `[apps.NAME]`, else a file of a conventional
//! name in the application's folder.
//!
//! `app` reads the key; `resolve` looks for the conventional file once every kind is known.

use std::path::{Path, PathBuf};

use crate::model::{App, AppKind, Config};
use crate::section::Section;

/// Files of hooks by convention, below the application's folder; the first that exists counts.
const PYTHON_FILES: &[&str] = &["penstock_hooks.py"];
const RUBY_FILES: &[&str] = &["penstock_hooks.rb", "config/penstock.rb"];

/// Reads the key.
pub(crate) fn read(table: &Section<'_>) -> Option<PathBuf> {
    let file = table.path("hooks")?;
    if !file.value.is_file() {
        let problem = format!("`hooks`: there is no file {}", file.value.display());
        table.report(file.offset, problem);
    }
    Some(file.value)
}

/// Finds the files of applications without the key, and notes the file of each application.
pub(crate) fn find(config: &mut Config) {
    for app in config.apps.values_mut() {
        app.hooks = app.hooks.take().or_else(|| conventional_file(app));
        if let Some(file) = &app.hooks {
            let shown = file.strip_prefix(&app.dir).unwrap_or(file).display();
            let note = format!("hooks of {}: {shown}", app.name);
            config.start_notes.push(note);
        }
    }
}

fn conventional_file(app: &App) -> Option<PathBuf> {
    let names = match app.kind {
        AppKind::Wsgi | AppKind::Asgi => PYTHON_FILES,
        AppKind::Rack => RUBY_FILES,
        AppKind::Command | AppKind::FastCgi | AppKind::Job => &[],
    };
    let paths = names.iter().map(|name| app.dir.join(name));
    let mut files = paths.filter(|path: &PathBuf| Path::is_file(path));
    files.next()
}

#[cfg(test)]
mod tests {
    use crate::resolve::{Invocation, resolve_config};
    use crate::testing::TestDir;

    /// The file of the only application's hooks and the notes of a folder.
    fn hooks_of(files: &[(&str, &str)]) -> Result<(Option<String>, Vec<String>), String> {
        let folder = TestDir::with_files(files);
        let invocation = Invocation {
            cwd: folder.path().to_owned(),
            ..Invocation::default()
        };
        let config = resolve_config(&invocation).map_err(|errors| errors.to_string())?;
        let app = config.apps.values().next().unwrap();
        let file = app.hooks.as_ref().map(|file| {
            let shown = file.strip_prefix(folder.path()).unwrap_or(file);
            shown.display().to_string()
        });
        let mut notes = config.start_notes;
        notes.retain(|note| note.starts_with("hooks of "));
        Ok((file, notes))
    }

    #[test]
    fn the_key_goes_before_a_conventional_file() {
        let toml = "[apps.shop]\nhooks = \"gunicorn.conf.py\"\n";
        type Row<'a> = (&'a [(&'a str, &'a str)], Option<&'a str>);
        let rows: [Row<'_>; 5] = [
            (
                &[("penstock.toml", "[apps.shop]\n"), ("app.py", "app = 1")],
                None,
            ),
            (
                &[
                    ("penstock.toml", "[apps.shop]\n"),
                    ("app.py", "app = 1"),
                    ("penstock_hooks.py", ""),
                ],
                Some("penstock_hooks.py"),
            ),
            (
                &[
                    ("penstock.toml", toml),
                    ("app.py", "app = 1"),
                    ("penstock_hooks.py", ""),
                    ("gunicorn.conf.py", ""),
                ],
                Some("gunicorn.conf.py"),
            ),
            (
                &[
                    ("penstock.toml", "[apps.shop]\n"),
                    ("config.ru", ""),
                    ("config/penstock.rb", ""),
                ],
                Some("config/penstock.rb"),
            ),
            (
                &[
                    ("penstock.toml", "[apps.shop]\n"),
                    ("config.ru", ""),
                    ("penstock_hooks.py", ""),
                ],
                None,
            ),
        ];
        for (files, expected) in rows {
            let (file, notes) = hooks_of(files).unwrap();
            assert_eq!(file.as_deref(), expected, "{files:?}");
            let note = expected.map(|file| format!("hooks of shop: {file}"));
            assert_eq!(notes, note.into_iter().collect::<Vec<_>>(), "{files:?}");
        }
        let (bare, notes) = hooks_of(&[("config.ru", ""), ("penstock_hooks.rb", "")]).unwrap();
        assert_eq!(bare.as_deref(), Some("penstock_hooks.rb"));
        assert_eq!(notes.len(), 1, "{notes:?}");
    }

    #[test]
    fn a_file_that_is_absent_and_a_kind_without_hooks_are_errors() {
        let absent = [
            ("penstock.toml", "[apps.shop]\nhooks = \"x.py\"\n"),
            ("app.py", "app = 1"),
        ];
        let error = hooks_of(&absent).unwrap_err();
        assert!(
            error.contains("penstock.toml:2:9: `hooks`: there is no file "),
            "{error}"
        );
        let command = "[apps.shop]\nkind = \"command\"\ncommand = \"x {port}\"\nhooks = \"x.py\"\n";
        let error = hooks_of(&[("penstock.toml", command), ("x.py", "")]).unwrap_err();
        assert!(error.contains("`hooks` is only for "), "{error}");
    }
}
