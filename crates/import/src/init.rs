//! What a start finds in a folder, as a configuration file: `penstock init`.
//!
//! # Invariants
//! - The file means what the folder means without it (`tests`).
//! - Values of the folder's `.env` are not copied: the file names `.env`.

use std::path::{Path, PathBuf};

use penstock_config::{App, AppKind, Config, Processes, Route};

use crate::draft::{Draft, DraftSite, DraftTable};
use crate::toml_value::{TomlTable, TomlValue};

/// What is in a folder beside what a start serves: the file has it as comments.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FolderHints {
    /// Files that will have a route.
    pub unserved: Vec<UnservedFiles>,
    /// The module of a Celery application, as `celery -A` takes it.
    pub celery: Option<String>,
}

/// Files of the application that are not there yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnservedFiles {
    /// Why they are not served, and what to do.
    pub why: String,
    /// Their path, with a slash at both ends.
    pub prefix: String,
    /// Their folder, where that is known.
    pub root: Option<PathBuf>,
}

/// Writes the configuration of a folder that has no file.
///
/// `config` is what a start makes of it, `without_env` the same without the folder's `.env`. Both
/// have the paths of one folder.
#[must_use]
pub fn write_folder_config(config: &Config, without_env: &Config, hints: &FolderHints) -> String {
    let folder = Folder(&config.base_dir);
    let mut draft = Draft::default();
    let head = [
        "What `penstock serve` found here. Every key: penstock config example",
        "Check the file: penstock check. Serve it: penstock serve",
    ];
    draft.head.extend(head.map(str::to_owned));
    for listener in &config.server.listen {
        let text = listener.address.to_string();
        let text = text.strip_prefix("http://").unwrap_or(&text);
        draft.listen(text.strip_prefix('*').unwrap_or(text), &[]);
    }
    for app in without_env.apps.values() {
        let table = match app.kind {
            AppKind::Job => draft.jobs.table_mut(&app.name),
            _ => draft.apps.table_mut(&app.name),
        };
        folder.write_app(table, app);
        if let Some(with_env) = config.apps.get(&app.name) {
            write_counts(&mut table.keys, with_env);
        }
    }
    for site in &config.sites {
        let mut table = DraftTable::default();
        let hint = "For HTTPS, with listeners on :80 and :443: hosts = [\"www.example.com\"] and \
                    tls = \"auto\"; on this machine: hosts = [\"localhost\"] and tls = \"local\"";
        table.comment(hint);
        let routes = site.routes.iter().map(|route| folder.route(route));
        let mut routes: Vec<DraftTable> = routes.collect();
        // In front of the other routes, where theirs will be.
        if let Some(first) = routes.first_mut() {
            for files in &hints.unserved {
                folder.comment_unserved(first, files);
            }
        }
        draft.sites.push(DraftSite { table, routes });
    }
    if let Some(module) = &hints.celery {
        let owner = without_env
            .apps
            .values()
            .find(|app| app.kind != AppKind::Job);
        draft.tail = celery_comments(module, owner.map(|app| app.name.as_str()));
    }
    draft.to_toml()
}

/// The job of a Celery application, which a start of the folder alone does not run.
fn celery_comments(module: &str, owner: Option<&str>) -> Vec<String> {
    let mut lines = vec![
        format!("A Celery application is in {module}. Its worker beside the server:"),
        "[jobs.celery]".to_owned(),
        format!("command = \"celery -A {module} worker\""),
    ];
    lines.extend(owner.map(|name| format!("app = \"{name}\"")));
    lines.push(
        "stop_timeout = \"60s\" # the longest task; one that takes longer is killed".to_owned(),
    );
    lines
}

/// Processes and threads, where they are not the usual ones.
fn write_counts(keys: &mut TomlTable, app: &App) {
    let usual = match app.kind {
        AppKind::Job => Processes::exactly(1),
        _ => Processes::default(),
    };
    if app.processes != usual {
        keys.set("processes", app.processes.max as u64);
    }
    if app.threads != 1 {
        keys.set("threads", app.threads as u64);
    }
}

/// The folder that the file is for.
struct Folder<'f>(&'f Path);

impl Folder<'_> {
    /// A path as seen from the file.
    fn path(&self, path: &Path) -> String {
        let below = path.strip_prefix(self.0).unwrap_or(path);
        match below.as_os_str().is_empty() {
            true => ".".to_owned(),
            false => escaped(&below.to_string_lossy()),
        }
    }

    /// Comments the route of files that are not there yet.
    fn comment_unserved(&self, table: &mut DraftTable, files: &UnservedFiles) {
        let prefix = files.prefix.trim_end_matches('/');
        let root = files.root.as_deref().map_or_else(
            || prefix.trim_start_matches('/').to_owned(),
            |root| self.path(root),
        );
        table.comment(format!("{}. Then:", files.why));
        table.comment("[[sites.routes]]");
        table.comment(format!("path = \"{prefix}/*\""));
        table.comment(format!("files = {{ root = \"{root}\" }}"));
        table.comment(format!("rewrite = {{ strip_prefix = \"{prefix}\" }}"));
    }

    fn write_app(&self, table: &mut DraftTable, app: &App) {
        let keys = &mut table.keys;
        let is_job = app.kind == AppKind::Job;
        // An entry shows its kind; a program does not.
        let names_kind = match app.kind {
            AppKind::Wsgi | AppKind::Asgi => !app.kind_is_guess,
            AppKind::Rack | AppKind::Job => false,
            AppKind::Command | AppKind::FastCgi => true,
        };
        if names_kind {
            keys.set("kind", app.kind.as_str());
        }
        if !app.entry.is_empty() {
            keys.set("entry", escaped(&app.entry));
        }
        if !app.command.is_empty() {
            keys.set("command", words(&app.command));
        }
        if app.dir != self.0 {
            keys.set("dir", self.path(&app.dir));
        }
        if let Some(owner) = app.owner.as_deref() {
            keys.set("app", owner);
        }
        if !app.release_command.is_empty() {
            keys.set("release_command", words(&app.release_command));
        }
        if !is_job && !app.env.is_empty() {
            let mut env = TomlTable::default();
            for (name, value) in app.env.iter() {
                env.set(name, escaped(value));
            }
            keys.set("env", env);
        }
        if self.0.join(".env").is_file() {
            keys.set("env_file", ".env");
        }
        if let Some(upstream) = app.upstream.as_deref() {
            let mut behind = TomlTable::default();
            if let Some(root) = &upstream.root {
                behind.set("root", self.path(root));
            }
            if let Some(index) = upstream.index.as_deref() {
                behind.set("index", index);
            }
            if !behind.is_empty() {
                keys.set("upstream", behind);
            }
        }
    }

    fn route(&self, route: &Route) -> DraftTable {
        let mut table = DraftTable::default();
        let keys = &mut table.keys;
        let path = route.path.to_string();
        if path != "/*" {
            keys.set("path", path);
        }
        if let Some(files) = &route.files {
            keys.set("files", TomlTable::with("root", self.path(&files.root)));
        }
        if let Some(prefix) = route.rewrite.strip_prefix.as_deref() {
            keys.set("rewrite", TomlTable::with("strip_prefix", prefix));
        }
        if let Some(app) = route.app.as_deref() {
            keys.set("app", app);
        }
        table
    }
}

fn words(words: &[String]) -> TomlValue {
    let words = words.iter().map(|word| escaped(word).into());
    TomlValue::List(words.collect())
}

/// A text of the file has variables of this form, which this one is none of.
fn escaped(text: &str) -> String {
    text.replace("${", "$${")
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use penstock_config::{Invocation, resolve_config};

    use super::*;

    /// A folder that is removed with its test.
    struct Project(PathBuf);

    impl Project {
        #[expect(clippy::disallowed_methods, reason = "a test has no loop to block")]
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let name = format!("penstock-init-{name}-{}", std::process::id());
            let project = Self(std::env::temp_dir().join(name).join("shop"));
            for (file, text) in files {
                let path = project.0.join(file);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            project
        }

        fn resolve(&self, ignores_env_file: bool) -> Config {
            let invocation = Invocation {
                cwd: self.0.clone(),
                ignores_env_file,
                ..Invocation::default()
            };
            resolve_config(&invocation).unwrap()
        }
    }

    impl Drop for Project {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(self.0.parent().unwrap());
        }
    }

    /// A name, the files of a folder, and a part of what is written.
    type Row = (
        &'static str,
        &'static [(&'static str, &'static str)],
        &'static str,
    );

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test has no loop to block")]
    fn the_file_means_what_the_folder_means() {
        const FLASK: &str =
            "from flask import Flask\ndef create_app():\n    return Flask(__name__)\n";
        const ASGI: &str = "async def app(scope, receive, send): pass\n";
        const PROCFILE: &str =
            "web: ./server --port $PORT ${X:-a}\nrelease: ./migrate\nclock: ./clock\n";
        let rows: [Row; 7] = [
            (
                "flask",
                &[("app.py", FLASK)],
                "entry = \"app:create_app()\"",
            ),
            (
                "asgi",
                &[("main.py", ASGI), ("public/a.css", "")],
                "root = \"public\"",
            ),
            ("rack", &[("config.ru", "run 1\n")], "entry = \"config.ru\""),
            (
                "static",
                &[("index.html", "<p>\n")],
                "files = { root = \".\" }",
            ),
            ("procfile", &[("Procfile", PROCFILE)], "[jobs.clock]"),
            (
                "factory",
                &[("app.py", FLASK), ("Procfile", "worker: celery -A ${X}\n")],
                "celery -A $${X}",
            ),
            (
                "env",
                &[("app.py", FLASK), (".env", "SECRET=tell-nobody\n")],
                "env_file = \".env\"",
            ),
        ];
        for (name, files, part) in rows {
            let project = Project::new(name, files);
            let bare = project.resolve(false);
            let text = write_folder_config(&bare, &project.resolve(true), &FolderHints::default());
            assert!(text.contains(part), "{name}: no {part}\n{text}");
            assert!(!text.contains("tell-nobody"), "{text}");
            assert!(text.lines().count() < 30, "{text}");
            std::fs::write(project.0.join("penstock.toml"), &text).unwrap();
            let made = project.resolve(false);
            assert_eq!(made.sites, bare.sites, "{name}\n{text}");
            assert_eq!(made.server.listen, bare.server.listen, "{name}\n{text}");
            let plain = |config: Config| {
                let apps = config.apps.into_values().map(|app| App {
                    detection: None,
                    env_file: None,
                    ..app
                });
                apps.collect::<Vec<_>>()
            };
            assert_eq!(plain(made), plain(bare), "{name}\n{text}");
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test has no loop to block")]
    fn the_comments_are_what_will_be_needed() {
        const APP: &str = "from flask import Flask\napp = Flask(__name__)\n";
        let project = Project::new("hints", &[("app.py", APP), ("static/a.css", "")]);
        let bare = project.resolve(false);
        let hints = FolderHints {
            unserved: vec![UnservedFiles {
                why: "static files: /static/ not served: static is missing: collect them".into(),
                prefix: "/static/".into(),
                root: Some(project.0.join("static")),
            }],
            celery: Some("shop".into()),
        };
        let text = write_folder_config(&bare, &bare, &hints);
        for part in [
            "tls = \"local\"",
            "# static files: /static/ not served: static is missing: collect them. Then:\n",
            "# path = \"/static/*\"\n# files = { root = \"static\" }\n",
            "# [jobs.celery]\n# command = \"celery -A shop worker\"\n# app = \"shop\"\n",
        ] {
            assert!(text.contains(part), "no {part}\n{text}");
        }
        // Without the marks they are configuration.
        let is_text = |line: &str| line.starts_with("# ") && line.ends_with([':', '\'']);
        let words = [
            "# What",
            "# Check",
            "# For HTTPS",
            "# A Celery",
            "# static files",
        ];
        let active: Vec<&str> = text
            .lines()
            .filter(|line| !is_text(line) && !words.iter().any(|word| line.starts_with(word)))
            .map(|line| line.strip_prefix("# ").unwrap_or(line))
            .collect();
        std::fs::write(project.0.join("penstock.toml"), active.join("\n")).unwrap();
        let made = project.resolve(false);
        assert_eq!(
            made.apps["celery"].command.join(" "),
            "celery -A shop worker"
        );
        let route = &made.sites[0].routes[0];
        assert!(
            route.files.is_some() && route.path.to_string() == "/static/*",
            "{text}"
        );
    }
}
