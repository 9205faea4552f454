//! What the environment says where there is no configuration file: the folder's `.env`, and the
//! variables by which hosts and other servers are told their port and their size.
//!
//! Called by `resolve`, before the command line replaces values. A configuration file says all of
//! this itself.
//!
//! # Invariants
//! - A variable of the process goes before the same one in `.env`.
//! - A value that cannot be used is an error that names its variable, never a default.
//! - What was read is printed at the start, but for the values of an application's own variables.

use std::collections::BTreeMap;
use std::path::Path;

use crate::disk;
use crate::error::{ConfigError, ConfigErrors};
use crate::model::{App, AppKind, Config, Processes};
use crate::resolve::{Invocation, parse_ip};
use crate::values::ListenAddr;
use crate::variables::{Variables, parse_env_file};

/// The file of an application's variables.
const ENV_FILE: &str = ".env";

/// Bytes of that file, at most.
const MAX_ENV_FILE_BYTES: u64 = 4 << 20;

/// Processes and threads, at most: the range of the keys in a file.
const MAX_COUNT: usize = 1024;

/// The port of a server whose address alone is said.
pub(crate) const DEFAULT_PORT: u16 = 8080;

/// Variables that set something of the server's, in the order in which they are printed.
const NAMES: [&str; 4] = ["PORT", "HOST", "WEB_CONCURRENCY", "RAILS_MAX_THREADS"];

/// The variables that are read here: of the process, and of the file.
struct Surroundings<'a> {
    process: &'a dyn Fn(&str) -> Option<String>,
    file: BTreeMap<String, String>,
    /// Names that were used, and whether of the file.
    used: Vec<(&'static str, String, bool)>,
}

/// Applies `.env` and the variables to a configuration without a file.
///
/// # Errors
/// A line of `.env` that is none, or a value that cannot be used.
pub(crate) fn apply(config: &mut Config, invocation: &Invocation) -> Result<(), ConfigErrors> {
    let process = |name: &str| std::env::var(name).ok();
    apply_from(config, invocation, &process)
}

fn apply_from(
    config: &mut Config,
    invocation: &Invocation,
    process: &dyn Fn(&str) -> Option<String>,
) -> Result<(), ConfigErrors> {
    let file = match invocation.ignores_env_file || config.apps.is_empty() {
        true => BTreeMap::new(),
        false => read_env_file(&config.base_dir)?,
    };
    let mut around = Surroundings {
        process,
        file,
        used: Vec::new(),
    };
    let mut errors = Vec::new();
    if invocation.work.is_none() {
        apply_address(config, invocation, &mut around, &mut errors);
    }
    apply_counts(config, invocation, &mut around, &mut errors);
    if !errors.is_empty() {
        let errors = errors
            .into_iter()
            .map(|what| ConfigError::without_position("the environment", what));
        return Err(ConfigErrors::new(errors.collect()));
    }
    let own = around.own_variables();
    for app in config.apps.values_mut() {
        let mut env = (*app.env).clone();
        for (name, value) in &own {
            env.entry(name.clone()).or_insert_with(|| value.clone());
        }
        app.env = env.into();
    }
    config.start_notes.extend(around.notes());
    Ok(())
}

/// The variables of the folder's `.env`, if there is one.
fn read_env_file(dir: &Path) -> Result<BTreeMap<String, String>, ConfigErrors> {
    let path = dir.join(ENV_FILE);
    if !path.is_file() {
        return Ok(BTreeMap::new());
    }
    let hint = "; --no-env-file leaves the file out";
    let text = disk::read_text(&path, MAX_ENV_FILE_BYTES)
        .map_err(|error| ConfigErrors::single(&path, format!("{}{hint}", error.problem)))?;
    parse_env_file(&text, &Variables::of_process()).map_err(|errors| {
        let describe = |offset: usize, problem: &str| {
            let line = text[..offset].matches('\n').count() + 1;
            let what = format!("line {line}: {problem}{hint}");
            ConfigError::without_position(&path, what)
        };
        let errors = errors.iter();
        ConfigErrors::new(
            errors
                .map(|error| describe(error.offset, &error.problem))
                .collect(),
        )
    })
}

impl Surroundings<'_> {
    /// A variable that is not empty; remembered for the notes.
    fn take(&mut self, name: &'static str) -> Option<String> {
        let is_set = |value: &String| !value.trim().is_empty();
        let of_process = (self.process)(name).filter(is_set);
        let is_of_file = of_process.is_none();
        let value = of_process.or_else(|| self.file.get(name).cloned().filter(is_set))?;
        let value = value.trim().to_owned();
        self.used.push((name, value.clone(), is_of_file));
        Some(value)
    }

    fn is_of_file(&self, name: &str) -> bool {
        self.used
            .iter()
            .any(|(used, _, is_of_file)| *used == name && *is_of_file)
    }

    /// What the file says and the process does not.
    fn own_variables(&self) -> BTreeMap<String, String> {
        let missing = |name: &str| (self.process)(name).is_none();
        let own = self.file.iter().filter(|(name, _)| missing(name));
        own.map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    }

    /// A line for each source: what it set here, and how many variables it has for applications.
    fn notes(&self) -> Vec<String> {
        let of = |of_file: bool| {
            let used = self
                .used
                .iter()
                .filter(|(_, _, is_of_file)| *is_of_file == of_file);
            used.map(|(name, value, _)| format!("{name}={value}"))
                .collect::<Vec<_>>()
        };
        let mut notes = Vec::new();
        let of_process = of(false);
        if !of_process.is_empty() {
            notes.push(format!("from the environment: {}", of_process.join(", ")));
        }
        let names = self.own_variables();
        let own = names.keys().filter(|name| !NAMES.contains(&name.as_str()));
        let mut of_file = of(true);
        match own.count() {
            0 => {}
            1 => of_file.push("1 variable for the application".to_owned()),
            count => of_file.push(format!("{count} variables for the application")),
        }
        if !of_file.is_empty() {
            notes.push(format!("from {ENV_FILE}: {}", of_file.join(", ")));
        }
        notes
    }
}

/// `PORT` and `HOST`, unless the command line says where to listen. A host gives its programs a
/// port for every address; in development, and from `.env`, the machine's own clients are meant.
fn apply_address(
    config: &mut Config,
    invocation: &Invocation,
    around: &mut Surroundings<'_>,
    errors: &mut Vec<String>,
) {
    let says_itself = !invocation.listen.is_empty()
        || !invocation.listen_https.is_empty()
        || !invocation.domains.is_empty();
    if says_itself {
        return;
    }
    let port = around.take("PORT").map(|text| match text.parse::<u16>() {
        Ok(port) => Some(port),
        Err(_) => {
            errors.push(format!(
                "`PORT` cannot be {text:?}: expected a number from 0 to 65535"
            ));
            None
        }
    });
    // Shells set it to the machine's name.
    let host = (around.process)("HOST").or_else(|| around.file.get("HOST").cloned());
    let ip = host.as_deref().and_then(parse_ip);
    if ip.is_some() {
        around.take("HOST");
    }
    let Some(port) = (match port {
        Some(port) => port,
        None => ip.map(|_| DEFAULT_PORT),
    }) else {
        return;
    };
    let is_local = invocation.development || around.is_of_file("PORT");
    let address = match ip {
        Some(ip) => ListenAddr::Tcp((ip, port).into()),
        None if is_local => ListenAddr::loopback(port),
        None => ListenAddr::Port(port),
    };
    config.server.listen = vec![address.into()];
}

/// `WEB_CONCURRENCY` and `RAILS_MAX_THREADS`, unless the command line has numbers of its own. In
/// development there is one process.
fn apply_counts(
    config: &mut Config,
    invocation: &Invocation,
    around: &mut Surroundings<'_>,
    errors: &mut Vec<String>,
) {
    if config.apps.is_empty() {
        return;
    }
    if invocation.processes.is_none()
        && !invocation.development
        && let Some(count) = take_count(around, "WEB_CONCURRENCY", errors)
    {
        for app in serving_apps(config) {
            app.processes = Processes::exactly(count);
        }
    }
    let is_rack = config.apps.values().any(|app| app.kind == AppKind::Rack);
    if invocation.threads.is_none()
        && is_rack
        && let Some(count) = take_count(around, "RAILS_MAX_THREADS", errors)
    {
        for app in serving_apps(config) {
            app.threads = count;
            app.min_threads = count;
        }
    }
}

fn serving_apps(config: &mut Config) -> impl Iterator<Item = &mut App> {
    let apps = config.apps.values_mut();
    apps.filter(|app| app.kind != AppKind::Job)
}

/// A number of processes or threads; Puma's 0 is one process without others.
fn take_count(
    around: &mut Surroundings<'_>,
    name: &'static str,
    errors: &mut Vec<String>,
) -> Option<usize> {
    let text = around.take(name)?;
    match text.parse::<usize>() {
        Ok(count) if count <= MAX_COUNT => Some(count.max(1)),
        _ => {
            errors.push(format!(
                "`{name}` cannot be {text:?}: expected a number from 1 to {MAX_COUNT}"
            ));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestDir;

    /// The configuration of a folder with one application, and these variables of the process.
    fn resolved(
        folder: &TestDir,
        process: &[(&str, &str)],
        change: impl Fn(&mut Invocation),
    ) -> Result<Config, Vec<String>> {
        let mut invocation = Invocation {
            cwd: folder.path().to_owned(),
            ignores_env_file: true,
            ..Invocation::default()
        };
        // As if the process had none of the variables.
        let mut config = crate::resolve_config(&invocation).unwrap();
        config.server.listen = vec![ListenAddr::loopback(DEFAULT_PORT).into()];
        invocation.ignores_env_file = false;
        config.start_notes.clear();
        change(&mut invocation);
        let lookup = |name: &str| {
            let mut found = process.iter().filter(|(set, _)| *set == name);
            found.next().map(|(_, value)| (*value).to_owned())
        };
        apply_from(&mut config, &invocation, &lookup)
            .map(|()| config)
            .map_err(|errors| folder.error_lines(&errors))
    }

    fn listens(config: &Config) -> String {
        let address = config.server.listen[0].address.to_string();
        address.trim_start_matches("http://").to_owned()
    }

    #[test]
    fn a_port_is_for_every_client_unless_it_is_this_machines_own() {
        let folder = TestDir::with_files(&[("config.ru", "")]);
        type Row<'a> = (
            &'a str,
            &'a [(&'a str, &'a str)],
            bool,
            &'a str,
            &'a [&'a str],
        );
        let rows: [Row<'_>; 7] = [
            ("", &[], false, "127.0.0.1:8080", &[]),
            (
                "",
                &[("PORT", "5000")],
                false,
                "*:5000",
                &["from the environment: PORT=5000"],
            ),
            (
                "",
                &[("PORT", "5000")],
                true,
                "127.0.0.1:5000",
                &["from the environment: PORT=5000"],
            ),
            (
                "PORT=5000\n",
                &[],
                false,
                "127.0.0.1:5000",
                &["from .env: PORT=5000"],
            ),
            (
                "PORT=5000\n",
                &[("PORT", "6000"), ("HOST", "my-machine")],
                false,
                "*:6000",
                &["from the environment: PORT=6000"],
            ),
            (
                "",
                &[("PORT", "5000"), ("HOST", "0.0.0.0")],
                true,
                "0.0.0.0:5000",
                &["from the environment: PORT=5000, HOST=0.0.0.0"],
            ),
            (
                "HOST=::1\n",
                &[],
                false,
                "[::1]:8080",
                &["from .env: HOST=::1"],
            ),
        ];
        for (file, process, development, expected, notes) in rows {
            folder.add(".env", file);
            let config = resolved(&folder, process, |it| it.development = development).unwrap();
            assert_eq!(listens(&config), expected, "{file:?} {process:?}");
            assert_eq!(config.start_notes, notes, "{file:?} {process:?}");
        }
        let process = [("PORT", "5000")];
        let said = resolved(&folder, &process, |it| {
            it.listen = vec![ListenAddr::loopback(1)];
        });
        assert_eq!(listens(&said.unwrap()), "127.0.0.1:8080");
    }

    #[test]
    fn the_variables_of_a_file_are_the_applications() {
        let file = "SECRET=\"a b\"\nMODE=file\nWEB_CONCURRENCY=3\nRAILS_MAX_THREADS=7\n";
        let folder = TestDir::with_files(&[("config.ru", ""), (".env", file)]);
        let config = resolved(&folder, &[("MODE", "process")], |_| ()).unwrap();
        let app = config.apps.values().next().unwrap();
        assert_eq!(app.env.get("SECRET").map(String::as_str), Some("a b"));
        assert_eq!(app.env.get("MODE"), None);
        assert_eq!((app.processes, app.threads), (Processes::exactly(3), 7));
        let note =
            "from .env: WEB_CONCURRENCY=3, RAILS_MAX_THREADS=7, 1 variable for the application";
        assert_eq!(config.start_notes, [note]);
        let without = resolved(&folder, &[], |it| it.ignores_env_file = true).unwrap();
        assert!(without.apps.values().next().unwrap().env.is_empty());
        let said = resolved(&folder, &[], |it| {
            (it.processes, it.threads) = (Some(1), Some(2));
        });
        assert_eq!(
            said.unwrap().start_notes,
            ["from .env: 2 variables for the application"]
        );
    }

    #[test]
    fn what_cannot_be_used_is_an_error_with_its_name() {
        let folder = TestDir::with_files(&[("config.ru", "")]);
        let process = [("PORT", "http"), ("WEB_CONCURRENCY", "many")];
        let errors = resolved(&folder, &process, |_| ()).unwrap_err();
        assert_eq!(
            errors,
            [
                "the environment: `PORT` cannot be \"http\": expected a number from 0 to 65535",
                "the environment: `WEB_CONCURRENCY` cannot be \"many\": expected a number from 1 to \
                 1024",
            ]
        );
        folder.add(".env", "A=1\nno line\n");
        let errors = resolved(&folder, &[], |_| ()).unwrap_err();
        assert!(errors[0].starts_with(".env: line 2: "), "{errors:?}");
        assert!(
            errors[0].ends_with("; --no-env-file leaves the file out"),
            "{errors:?}"
        );
    }
}
