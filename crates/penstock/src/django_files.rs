//! The static and media files of a Django project that has no configuration file: asked from its
//! settings, and served as routes.
//!
//! `cli` asks at `serve` and `check`, before the server runs. A reload applies the same answer to the
//! folders that are there by then, as only a new server may start a program by itself. The settings are Python code, so the
//! project's own interpreter reads them in a process that ends at once.
//!
//! # Invariants
//! - A folder with the project's code is never served.
//! - Settings that cannot be read cost their files' routes, not the start.

use std::path::{Path, PathBuf};
use std::time::Duration;

use penstock_config::{App, Config, Files, PathPattern, Rewrite, Route};
use penstock_import::UnservedFiles;
use penstock_runtime::loops;
use serde::Deserialize;

/// How long the settings may take to be imported.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// What the answer's line begins with: the settings may print lines of their own.
const MARKER: &str = "penstock-settings: ";

/// Imports the settings module of its argument and prints what is needed of it.
const SCRIPT: &str = r#"
import json, os, sys
sys.path.insert(0, os.getcwd())
os.environ["DJANGO_SETTINGS_MODULE"] = sys.argv[1]
from django.conf import settings
def text(name):
    value = getattr(settings, name, None)
    return None if value is None else os.fspath(value) if name.endswith("_ROOT") else str(value)
answer = {name.lower(): text(name) for name in ("STATIC_URL", "STATIC_ROOT", "MEDIA_URL", "MEDIA_ROOT")}
apps = list(getattr(settings, "INSTALLED_APPS", ()))
answer["finds_static_files"] = bool(settings.DEBUG) and "django.contrib.staticfiles" in apps
sys.stdout.write("\npenstock-settings: " + json.dumps(answer) + "\n")
sys.stdout.flush()
os._exit(0)
"#;

/// The variable that names the settings module.
const SETTINGS_VARIABLE: &str = "DJANGO_SETTINGS_MODULE";

/// The variable by which a worker puts Django's own handler of static files around the application
/// (`django_static.py`).
const FINDERS_VARIABLE: &str = "PENSTOCK_DJANGO_STATIC";

/// What the settings say.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
struct Settings {
    static_url: Option<String>,
    static_root: Option<String>,
    media_url: Option<String>,
    media_root: Option<String>,
    /// Whether `DEBUG` is on and `django.contrib.staticfiles` installed.
    finds_static_files: bool,
}

/// What the settings of a Django project said at the start.
#[derive(Debug, Clone, Default)]
pub(crate) struct DjangoFiles {
    /// `None` where there is no project, or its settings could not be read.
    settings: Option<Settings>,
    dir: PathBuf,
    development: bool,
    /// Why the settings could not be read.
    problem: Option<String>,
}

impl DjangoFiles {
    /// Asks the settings of the configuration's project; nothing where there is a configuration
    /// file or no Django. Blocks, at most [`ANSWER_TIMEOUT`].
    pub(crate) fn ask(config: &Config, development: bool) -> Self {
        let Some((app, module)) = find_project(config) else {
            return Self::default();
        };
        let arguments = [module];
        let script = (SCRIPT, MARKER);
        let question = penstock_apps::ask_interpreter(app, script, &arguments, ANSWER_TIMEOUT);
        let answer = loops::block_on(question).map_err(|error| error.to_string());
        let settings = answer.flatten().and_then(|text| {
            serde_json::from_str::<Settings>(&text).map_err(|error| error.to_string())
        });
        let problem = settings.as_ref().err().map(|error| {
            let cause = error.lines().last().unwrap_or_default();
            format!("static files: left to the application, as {module} cannot be read: {cause}")
        });
        Self {
            settings: settings.ok(),
            dir: app.dir.clone(),
            development,
            problem,
        }
    }

    /// The files that have no route as they are not there yet. Looks at folders: blocks.
    pub(crate) fn unserved(&self) -> Vec<UnservedFiles> {
        let settings = self.settings.as_ref();
        let routes = settings
            .map(|settings| FileRoutes::from_settings(settings, &self.dir, self.development));
        routes.unwrap_or_default().unserved
    }

    /// Adds the routes to the only site of a configuration, before that of the application. Looks
    /// at folders: blocks.
    pub(crate) fn apply(&self, config: &mut Config) {
        config.start_notes.extend(self.problem.clone());
        if let Some(settings) = &self.settings {
            FileRoutes::from_settings(settings, &self.dir, self.development).apply(config);
        }
    }
}

/// Routes of the folders that are there, and what is said of the others.
#[derive(Debug, Default)]
struct FileRoutes {
    routes: Vec<(String, PathBuf)>,
    /// Whether Django looks for static files itself, as `runserver` does.
    uses_finders: bool,
    notes: Vec<String>,
    /// Those that have no route yet.
    unserved: Vec<UnservedFiles>,
}

impl FileRoutes {
    fn from_settings(settings: &Settings, dir: &Path, development: bool) -> Self {
        let mut files = Self {
            uses_finders: development && settings.finds_static_files,
            ..Self::default()
        };
        let static_url = settings.static_url.as_deref();
        if files.uses_finders {
            let at = static_url.unwrap_or_default();
            files.notes.push(format!(
                "static files: {at} found by django.contrib.staticfiles (DEBUG)"
            ));
        } else {
            let root = settings.static_root.as_deref();
            let mend = "penstock run manage.py collectstatic";
            files.add("static files", ("STATIC", mend), (static_url, root), dir);
        }
        let media = (
            settings.media_url.as_deref(),
            settings.media_root.as_deref(),
        );
        let mend = "it is made by the first upload; then reload";
        files.add("media files", ("MEDIA", mend), media, dir);
        files
    }

    /// Adds the route of one pair of settings, or a note of why there is none.
    fn add(
        &mut self,
        what: &str,
        (name, mend): (&str, &str),
        (url, root): (Option<&str>, Option<&str>),
        dir: &Path,
    ) {
        // Django's default of MEDIA_URL is the root of the site.
        let Some(prefix) = url.and_then(route_prefix) else {
            return;
        };
        let Some(root) = root.filter(|root| !root.is_empty()) else {
            if name == "STATIC" {
                let why = format!(
                    "{what}: {prefix} left to the application: set STATIC_ROOT in the settings, \
                     then {mend}"
                );
                self.notes.push(why.clone());
                let root = None;
                self.unserved.push(UnservedFiles { why, prefix, root });
            }
            return;
        };
        let root = dir.join(root);
        let note = if !root.is_dir() {
            let why = format!(
                "{what}: {prefix} not served: {} is missing: {mend}",
                root.display()
            );
            self.unserved.push(UnservedFiles {
                why: why.clone(),
                prefix,
                root: Some(root),
            });
            why
        } else if holds_code(&root, dir) {
            format!(
                "{what}: {prefix} not served: {} holds the project's code: give {name}_ROOT a \
                 folder of its own",
                root.display()
            )
        } else {
            let note = format!("{what}: {prefix} from {}", root.display());
            self.routes.push((prefix, root));
            note
        };
        self.notes.push(note);
    }

    fn apply(self, config: &mut Config) {
        config.start_notes.extend(self.notes);
        if self.uses_finders {
            for app in config.apps.values_mut() {
                let mut env = (*app.env).clone();
                env.insert(FINDERS_VARIABLE.to_owned(), "1".to_owned());
                app.env = env.into();
            }
        }
        let routes = self.routes.into_iter().map(|(prefix, root)| Route {
            files: Some(Files::new(root)),
            rewrite: Rewrite {
                strip_prefix: Some(prefix.trim_end_matches('/').to_owned()),
                ..Rewrite::default()
            },
            ..Route::new(PathPattern::Prefix(prefix))
        });
        if let [site] = &mut config.sites[..] {
            site.routes.splice(0..0, routes);
        }
    }
}

/// The Django project of a configuration without a file.
fn find_project(config: &Config) -> Option<(&App, &str)> {
    if config.path.is_some() {
        return None;
    }
    let (app, module) = config.apps.values().find_map(|app| {
        let module = app.detection.as_ref()?.django_settings.as_deref()?;
        Some((app, module))
    })?;
    // `.env` may name other settings than `manage.py`, as they are the workers'.
    let named = app.env.get(SETTINGS_VARIABLE).map(String::as_str);
    Some((app, named.unwrap_or(module)))
}

/// The path of a URL on this server, with a slash at both ends; `None` for another server's, and
/// for the whole site.
fn route_prefix(url: &str) -> Option<String> {
    let is_path = url.starts_with('/') && !url.starts_with("//");
    let path = url.trim_matches('/');
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/-_.~".contains(c);
    (is_path && !path.is_empty() && path.chars().all(is_plain)).then(|| format!("/{path}/"))
}

/// Whether a folder is the project's own, or one above it, or has Python packages in it.
fn holds_code(root: &Path, dir: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    real(dir).starts_with(real(root))
        || ["manage.py", "settings.py", "__init__.py"]
            .iter()
            .any(|name| root.join(name).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that is removed with its test.
    struct TestFolder(PathBuf);

    impl TestFolder {
        fn new(name: &str) -> Self {
            let name = format!("penstock-{name}-{}", std::process::id());
            Self(std::env::temp_dir().join(name))
        }
    }

    impl Drop for TestFolder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn settings(static_root: &str, media_root: &str) -> Settings {
        Settings {
            static_url: Some("/static/".to_owned()),
            static_root: Some(static_root.to_owned()),
            media_url: Some("/media/".to_owned()),
            media_root: Some(media_root.to_owned()),
            finds_static_files: true,
        }
    }

    #[test]
    fn takes_paths_of_this_server_only() {
        let rows = [
            ("/static/", Some("/static/")),
            ("/a/b", Some("/a/b/")),
            ("/", None),
            ("", None),
            ("static/", None),
            ("//cdn.example/static/", None),
            ("https://cdn.example/static/", None),
            ("/st%61tic/", None),
        ];
        for (url, expected) in rows {
            assert_eq!(route_prefix(url).as_deref(), expected, "{url}");
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test has no loop to block")]
    fn serves_folders_that_are_there_and_no_code() {
        let folder = TestFolder::new("django-files");
        let dir = folder.0.join("project");
        for name in ["static", "media", "package"] {
            std::fs::create_dir_all(dir.join(name)).unwrap();
        }
        std::fs::write(dir.join("package/__init__.py"), "").unwrap();
        let served = |static_root: &str, media_root: &str, development: bool| {
            let settings = settings(static_root, media_root);
            let files = FileRoutes::from_settings(&settings, &dir, development);
            let prefixes = files.routes.iter().map(|(prefix, _)| prefix.clone());
            (prefixes.collect::<Vec<_>>(), files.notes.join("\n"))
        };
        assert_eq!(served("static", "media", false).0, ["/static/", "/media/"]);
        let (routes, notes) = served("static", "", true);
        assert_eq!(routes, Vec::<String>::new());
        assert!(notes.contains("(DEBUG)"), "{notes}");
        for (root, words) in [
            ("", "set STATIC_ROOT"),
            (
                "missing",
                "is missing: penstock run manage.py collectstatic",
            ),
            (".", "holds the project's code"),
            ("..", "holds the project's code"),
            ("package", "holds the project's code"),
        ] {
            let (routes, notes) = served(root, "", false);
            assert_eq!(routes, Vec::<String>::new(), "{root}");
            assert!(notes.contains(words), "{root}: {notes}");
        }
    }
}
