//! A folder whose code is a program of its own: a Procfile's `web:` line, a `package.json` with a
//! start script, PHP.
//!
//! Used by `resolve` for a folder without a configuration file. The program is started as an
//! application of kind `command` or `fastcgi`, and finds its port in `PORT`.
//!
//! # Invariants
//! - Nothing is run to find out; a program that is missing is said here, not at its start.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::hints;
use super::php;
use crate::cores::usable_cpus;
use crate::disk;
use crate::model::{App, AppKind, Detection, Processes, Protocol, Upstream};

/// A program that would serve a folder.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DetectedProgram {
    /// HTTP or FastCGI.
    kind: AppKind,
    /// What a process runs, with the place where it listens.
    command: Vec<String>,
    /// Variables of its environment.
    env: BTreeMap<String, String>,
    /// What the start shows of it: what it runs, and its name in words.
    title: String,
    framework: &'static str,
    /// How many processes there are, unless `WEB_CONCURRENCY` says otherwise.
    processes: usize,
    /// Requests that each gets at once.
    threads: usize,
    /// The folder whose files are served before it, and where its scripts are.
    root: Option<PathBuf>,
    /// The script of PHP for every other path.
    index: Option<&'static str>,
}

/// Requests at once of a program of which nothing is known: it queues them itself, if it must.
const UNKNOWN_THREADS: usize = 1000;

impl DetectedProgram {
    /// A server of HTTP that is told its port by `PORT`.
    fn with_port(
        (framework, title): (&'static str, String),
        command: impl IntoIterator<Item = String>,
    ) -> Self {
        let words = ["env", "PORT={port}"].map(str::to_owned);
        Self {
            kind: AppKind::Command,
            command: words.into_iter().chain(command).collect(),
            env: BTreeMap::new(),
            title,
            framework,
            processes: 1,
            threads: UNKNOWN_THREADS,
            root: None,
            index: None,
        }
    }

    /// PHP, by a program that speaks FastCGI or HTTP.
    pub(super) fn of_php(
        (kind, command, title): (AppKind, Vec<String>, String),
        (processes, threads): (usize, usize),
        (root, index): (PathBuf, &'static str),
    ) -> Self {
        Self {
            kind,
            command,
            // Workers are replaced by the server, not after a number of requests of PHP's own.
            env: BTreeMap::from([("PHP_FCGI_MAX_REQUESTS".to_owned(), "0".to_owned())]),
            title,
            framework: "PHP",
            processes,
            threads,
            root: Some(root),
            index: Some(index),
        }
    }

    /// The folder of its files, if not `public`.
    pub(crate) fn root(&self) -> Option<&Path> {
        self.root.as_deref()
    }

    /// The application that runs it.
    pub(crate) fn into_app(self, name: &str, dir: &Path) -> App {
        let mut app = App::new(name, dir.to_owned(), self.kind, "");
        app.command = self.command;
        app.env = self.env.into();
        app.processes = Processes::exactly(self.processes);
        app.threads = self.threads;
        app.min_threads = self.threads;
        app.detection = Some(Detection {
            title: Some(self.title),
            framework: Some(self.framework),
            ..Detection::default()
        });
        let protocol = match self.kind {
            AppKind::FastCgi => Protocol::FastCgi,
            _ => Protocol::Http,
        };
        let mut upstream = Upstream::new(name, protocol, Vec::new());
        if protocol == Protocol::FastCgi {
            upstream.root = self.root;
            upstream.index = self.index.map(str::to_owned);
        }
        app.upstream = Some(Box::new(upstream));
        app.apply_to_upstream();
        app
    }
}

/// The program of the Procfile's `web:` line, if that is no server of Python or Ruby: those serve
/// an application that Penstock loads itself.
pub(crate) fn detect_procfile_program(dir: &Path) -> Option<DetectedProgram> {
    let line = web_line(dir)?;
    (!hints::is_application_server(&line)).then(|| procfile_program(&line))
}

/// The program of the Procfile's `web:` line, whatever it is: for a folder in which no application
/// was recognised.
pub(crate) fn detect_any_procfile_program(dir: &Path) -> Option<DetectedProgram> {
    let line = web_line(dir)?;
    (!hints::starts_penstock(&line)).then(|| procfile_program(&line))
}

fn web_line(dir: &Path) -> Option<String> {
    let text = disk::read_source_or_empty(&dir.join("Procfile"));
    let line = hints::web_line(&text)?.trim();
    (!line.is_empty()).then(|| line.to_owned())
}

fn procfile_program(line: &str) -> DetectedProgram {
    DetectedProgram::with_port(("Procfile", line.to_owned()), shell_words(line))
}

/// A line of a Procfile is a shell's. A simple command takes the shell's place, so that signals
/// reach it.
pub(super) fn shell_words(line: &str) -> [String; 3] {
    let first = line.split_whitespace().next().unwrap_or_default();
    let is_simple = !line.contains(['&', ';', '|', '(', '`']) && !first.contains('=');
    let script = match is_simple && first != "exec" {
        true => format!("exec {line}"),
        false => line.to_owned(),
    };
    ["/bin/sh", "-c", &script].map(str::to_owned)
}

/// PHP or Node.js.
///
/// # Errors
/// A sentence: its program is missing.
pub(crate) fn detect_program(
    dir: &Path,
    development: bool,
) -> Result<Option<DetectedProgram>, String> {
    match php::detect_php(dir, development)? {
        Some(php) => Ok(Some(php)),
        None => detect_node(dir, development),
    }
}

/// Package managers, by the file that shows which one a project uses.
const NODE_MANAGERS: [(&str, &str); 4] = [
    ("bun.lockb", "bun"),
    ("bun.lock", "bun"),
    ("pnpm-lock.yaml", "pnpm"),
    ("yarn.lock", "yarn"),
];

/// A `package.json` with a `start` script.
fn detect_node(dir: &Path, development: bool) -> Result<Option<DetectedProgram>, String> {
    let text = disk::read_source_or_empty(&dir.join("package.json"));
    let package: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let Some(script) = package["scripts"]["start"].as_str().map(str::trim) else {
        return Ok(None);
    };
    let command = start_command(dir, script);
    if find_program(&command[0]).is_none() {
        return Err(format!(
            "package.json has a start script, and `{}` is not in PATH: install it",
            command[0]
        ));
    }
    if has_packages(&package) && !INSTALLED.iter().any(|name| dir.join(name).exists()) {
        let problem =
            "package.json has dependencies, and there is no node_modules: run npm install";
        return Err(problem.to_owned());
    }
    if let Some(problem) = refuse_dev_server(dir, script).filter(|_| !development) {
        return Err(problem);
    }
    let mut program = DetectedProgram::with_port(("Node.js", command.join(" ")), command);
    if !development && std::env::var_os(NODE_ENV).is_none() {
        let production = "production".to_owned();
        program.env.insert(NODE_ENV.to_owned(), production);
    }
    Ok(Some(program))
}

/// What runs the `start` script of a `package.json`.
fn start_command(dir: &Path, script: &str) -> Vec<String> {
    plain_node_command(script).unwrap_or_else(|| {
        let is_used = |(file, _): &&(&str, &str)| dir.join(file).is_file();
        let manager = NODE_MANAGERS.iter().find(is_used);
        let manager = manager.map_or("npm", |(_, manager)| manager);
        vec![manager.to_owned(), "start".to_owned()]
    })
}

/// The command line for a folder with a `package.json`, as a text; `None` for any other folder.
pub(crate) fn node_start_command(dir: &Path) -> Option<String> {
    let file = dir.join("package.json");
    if !file.is_file() {
        return None;
    }
    let package: serde_json::Value =
        serde_json::from_str(&disk::read_source_or_empty(&file)).unwrap_or_default();
    let script = package["scripts"]["start"].as_str().unwrap_or_default();
    Some(start_command(dir, script).join(" "))
}

/// What shows that packages are installed.
const INSTALLED: [&str; 3] = ["node_modules", ".pnp.cjs", ".pnp.js"];

/// Development servers of pages that are built, and the folders that they are built into.
const DEV_SERVERS: [(&str, &str); 8] = [
    ("react-scripts", "build"),
    ("vite", "dist"),
    ("webpack", "dist"),
    ("webpack-dev-server", "dist"),
    ("ng", "dist"),
    ("vue-cli-service", "dist"),
    ("parcel", "dist"),
    ("live-server", "."),
];

/// Why a start script is not for the public: it starts a development server.
fn refuse_dev_server(dir: &Path, script: &str) -> Option<String> {
    let mut words = script.split_whitespace();
    let word = words.find(|word| !["npx", "cross-env"].contains(word) && !word.contains('='))?;
    let (tool, folder) = DEV_SERVERS.iter().find(|(tool, _)| *tool == word)?;
    let built = dir.join(folder);
    let built = built.components().collect::<PathBuf>();
    Some(format!(
        "the start script of package.json runs `{tool}`, a development server: build the site (npm \
         run build) and serve that: penstock serve {}; or try `penstock serve --dev`",
        built.display()
    ))
}

/// The variable by which Node's packages know that they serve the public.
const NODE_ENV: &str = "NODE_ENV";

fn has_packages(package: &serde_json::Value) -> bool {
    let packages = package["dependencies"].as_object();
    packages.is_some_and(|packages| !packages.is_empty())
}

/// The words of `node FILE ...`, which needs no shell and no package manager around it.
fn plain_node_command(script: &str) -> Option<Vec<String>> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || " ./_-=".contains(c);
    let words: Vec<String> = script.split_whitespace().map(str::to_owned).collect();
    (words.len() > 1 && words[0] == "node" && script.chars().all(is_plain)).then_some(words)
}

/// A program in `PATH`, or where a system keeps its daemons.
pub(super) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let daemons = ["/usr/local/sbin", "/usr/sbin"].map(PathBuf::from);
    let mut folders = std::env::split_paths(&path).chain(daemons);
    folders.find_map(|folder| Some(folder.join(name)).filter(|path| path.is_file()))
}

/// How many requests of an application whose processes have one at a time are served at once.
pub(super) fn usual_children() -> usize {
    4 * usable_cpus()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestDir;

    #[test]
    fn a_web_line_is_a_program_unless_its_application_is_loaded() {
        let rows: [(&str, Option<&str>); 9] = [
            (
                "web: ./server --port $PORT",
                Some("exec ./server --port $PORT"),
            ),
            ("web: A=1 ./server", Some("A=1 ./server")),
            ("web: ./migrate && ./server", Some("./migrate && ./server")),
            ("web: exec ./server", Some("exec ./server")),
            ("worker: ./jobs", None),
            ("web: gunicorn app:app", None),
            ("web: bundle exec puma -C config/puma.rb", None),
            ("web: FLASK_ENV=x env/bin/python manage.py runserver", None),
            ("web: penstock serve", None),
        ];
        for (text, expected) in rows {
            let folder = TestDir::with_files(&[("Procfile", text)]);
            let found = detect_procfile_program(folder.path());
            let line = found.map(|found| found.command[4].clone());
            assert_eq!(line.as_deref(), expected, "{text}");
        }
        let python = TestDir::with_files(&[("Procfile", "web: python3 main.py\n")]);
        let app = detect_any_procfile_program(python.path()).unwrap();
        let app = app.into_app("site", python.path());
        let words = [
            "env",
            "PORT={port}",
            "/bin/sh",
            "-c",
            "exec python3 main.py",
        ];
        assert_eq!(app.command, words);
        assert_eq!(
            (app.kind, app.processes),
            (AppKind::Command, Processes::exactly(1))
        );
        assert_eq!(app.upstream.unwrap().max_active, Some(1000));
    }

    #[test]
    fn a_plain_start_script_needs_no_package_manager() {
        let rows: [(&str, Option<&[&str]>); 5] = [
            ("node server.js", Some(&["node", "server.js"])),
            (
                "node --max-old-space-size=512 dist/main.js",
                Some(&["node", "--max-old-space-size=512", "dist/main.js"]),
            ),
            ("next start", None),
            ("node a.js && node b.js", None),
            ("node", None),
        ];
        for (script, expected) in rows {
            let words = plain_node_command(script);
            let words: Option<Vec<&str>> = words
                .as_ref()
                .map(|words| words.iter().map(String::as_str).collect());
            assert_eq!(words.as_deref(), expected, "{script}");
        }
        let problem = refuse_dev_server(Path::new("/srv"), "npx react-scripts start").unwrap();
        assert!(problem.contains("penstock serve /srv/build;"), "{problem}");
        assert_eq!(refuse_dev_server(Path::new("/srv"), "next start"), None);
        let folder = TestDir::with_files(&[("package.json", "{\"scripts\": {\"build\": \"x\"}}")]);
        assert_eq!(detect_node(folder.path(), false), Ok(None));
        let command = |dir: &TestDir| node_start_command(dir.path());
        assert_eq!(command(&folder).as_deref(), Some("npm start"));
        let plain = "{\"scripts\": {\"start\": \"node server.js\"}}";
        let folder = TestDir::with_files(&[("package.json", plain)]);
        assert_eq!(command(&folder).as_deref(), Some("node server.js"));
        assert_eq!(command(&TestDir::with_files(&[("a.js", "")])), None);
    }
}
