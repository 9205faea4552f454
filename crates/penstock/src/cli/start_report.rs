//! The line that names an application that was found without a configuration file:
//! `serving app:create_app() (Flask factory) with .venv/bin/python 3.11`.
//!
//! `check` makes it once the configuration is resolved; the start prints it.

use std::path::Path;

use penstock_config::{App, AppKind, Config};

/// Puts a line for each application that was found before the other notes of a configuration.
/// `cwd` is the folder that paths are shown from. Looks interpreters up on the disk.
pub(super) fn add_serving_notes(config: &mut Config, cwd: &Path, development: bool) {
    let found = config
        .apps
        .values()
        // A job of a Procfile has its note.
        .filter(|app| app.kind != AppKind::Job)
        .filter_map(|app| describe_app(app, cwd, development));
    let notes: Vec<String> = found.collect();
    let cable: Vec<String> = config
        .apps
        .values()
        .filter(|app| app.kind == AppKind::Rack && app.processes.max > 1)
        .filter_map(|app| {
            let environment = penstock_apps::rack_env(app, development);
            penstock_config::cable_problem(&app.dir, &environment.to_string_lossy())
        })
        .collect();
    let detected = config.apps.values().filter(|app| app.detection.is_some());
    let missing: Vec<String> = detected
        .filter_map(penstock_apps::missing_environment)
        .collect();
    config
        .start_notes
        .splice(0..0, notes.into_iter().chain(missing));
    config.start_notes.extend(cable);
}

fn describe_app(app: &App, cwd: &Path, development: bool) -> Option<String> {
    let detection = app.detection.as_ref()?;
    let what = detection.title.as_ref().unwrap_or(&app.entry);
    let kind = || app.kind.as_str().to_uppercase();
    let kind = match app.kind {
        AppKind::Rack => "Rack".to_owned(),
        AppKind::Command => "command".to_owned(),
        AppKind::Job => "job".to_owned(),
        AppKind::FastCgi => "FastCGI".to_owned(),
        AppKind::Wsgi | AppKind::Asgi => kind(),
    };
    let mut name = detection.framework.map_or(kind, str::to_owned);
    if detection.is_factory {
        name.push_str(" factory");
    }
    let with = describe_interpreter(app, cwd).unwrap_or_default();
    let environment = match app.kind {
        AppKind::Rack => {
            let name = penstock_apps::rack_env(app, development);
            format!(" in {}", name.display())
        }
        _ => String::new(),
    };
    Some(format!("serving {what} ({name}){with}{environment}"))
}

/// ` with PATH VERSION`, the version as far as files show it.
fn describe_interpreter(app: &App, cwd: &Path) -> Option<String> {
    if matches!(app.kind, AppKind::Command | AppKind::FastCgi | AppKind::Job) {
        return None;
    }
    let program = penstock_apps::find_interpreter(app).ok()?;
    let shown = program.strip_prefix(cwd).unwrap_or(&program).display();
    let version = penstock_apps::describe_version(&program);
    let version = version.map(|version| format!(" {version}"));
    Some(format!(" with {shown}{}", version.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use penstock_config::Detection;

    use super::*;

    #[test]
    fn names_the_entry_the_framework_and_the_command() {
        let rows = [
            (
                AppKind::Wsgi,
                "app:app",
                Some("Flask"),
                false,
                "serving app:app (Flask) with ",
            ),
            (
                AppKind::Wsgi,
                "app:create_app()",
                Some("Flask"),
                true,
                "serving app:create_app() (Flask factory) with ",
            ),
            (
                AppKind::Asgi,
                "main:app",
                None,
                false,
                "serving main:app (ASGI) with ",
            ),
            (
                AppKind::Rack,
                "config.ru",
                None,
                false,
                "serving config.ru (Rack) with ",
            ),
            (
                AppKind::Command,
                "",
                Some("Node.js"),
                false,
                "serving npm start (Node.js)",
            ),
        ];
        for (kind, entry, framework, is_factory, expected) in rows {
            let mut app = App::new("app", std::env::temp_dir(), kind, entry);
            // Any program: it is only named.
            app.interpreter = Some("/bin/sh".into());
            let env = [("RACK_ENV".to_owned(), "test".to_owned())];
            app.env = BTreeMap::from(env).into();
            app.detection = Some(Detection {
                title: (kind == AppKind::Command).then(|| "npm start".to_owned()),
                framework,
                is_factory,
                ..Detection::default()
            });
            let line = describe_app(&app, Path::new("/"), true).unwrap();
            let rest = match kind {
                AppKind::Command => "",
                AppKind::Rack => "bin/sh in test",
                _ => "bin/sh",
            };
            assert_eq!(line, format!("{expected}{rest}"));
        }
        let named = App::new("app", std::env::temp_dir(), AppKind::Wsgi, "app:app");
        assert_eq!(describe_app(&named, Path::new("/"), true), None);
    }
}
