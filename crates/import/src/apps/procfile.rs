//! Procfile: a program for each type of process.

use std::path::Path;

use crate::directives::DirectiveLog;
use crate::draft::{Draft, DraftTable, as_name};
use crate::report::Coverage;
use crate::{ImportError, Translation, limits, units};

/// Translates a file. `dir` is the folder of its programs, where the configuration is to lie in
/// another one.
pub(super) fn import(
    file: &Path,
    text: &str,
    dir: Option<&Path>,
    mut log: DirectiveLog,
) -> Result<Translation, ImportError> {
    let name = file.display().to_string();
    let mut draft = Draft::default();
    let (mut first_app, mut jobs, mut release) = (None, Vec::new(), None);
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let number = index + 1;
        let syntax = |problem: &str| ImportError::Syntax {
            file: name.clone(),
            line: number,
            column: 1,
            problem: problem.to_owned(),
        };
        let Some((kind, command)) = line.split_once(':') else {
            return Err(syntax("expected `TYPE: COMMAND`"));
        };
        if log.len() >= limits::MAX_DIRECTIVES {
            return Err(syntax("too many types of processes"));
        }
        let id = log.add(&name, number, kind.trim(), line);
        let (kind, command) = (kind.trim(), command.trim());
        if kind == "web" || command.contains("$PORT") || command.contains("${PORT") {
            let app = as_name(kind);
            web(&app, command, &mut draft);
            if let Some(dir) = dir.and_then(Path::to_str) {
                let keys = &mut draft.apps.table_mut(&app).keys;
                keys.set("dir", dir.replace("${", "$${"));
            }
            first_app.get_or_insert_with(|| app.clone());
            log.translated(id, &format!("apps.{app}"));
            if draft.apps.table_mut(&app).keys.text("kind") != Some("command")
                && let Some(wrapper) = wrapper(command)
            {
                let why =
                    format!("`{wrapper}` is not run: its server's own workers take its place");
                let comment = log.leave(id, Coverage::ByHand, why);
                draft.apps.table_mut(&app).comment(comment);
            }
        } else if kind != "release" {
            let job = as_name(kind);
            let table = draft.jobs.table_mut(&job);
            set_command(table, "command", command);
            log.translated(id, &format!("jobs.{job}"));
            jobs.push(job);
        } else {
            release = Some((id, command));
        }
    }
    if let Some(app) = first_app {
        for job in jobs {
            draft.jobs.table_mut(&job).keys.set("app", app.as_str());
        }
        if let Some((id, command)) = release {
            set_command(draft.apps.table_mut(&app), "release_command", command);
            log.translated(id, &format!("apps.{app}.release_command"));
        }
    } else if let Some((id, _)) = release {
        let why = "it runs before code of an application serves, and there is no `web` line";
        let comment = log.leave(id, Coverage::ByHand, why);
        draft.tail.push(comment);
    }
    Ok(Translation::finish(file, draft, log))
}

/// Words in front of a server that start it in an environment and do nothing else.
const STARTERS: [&str; 14] = [
    "bundle",
    "exec",
    "poetry",
    "pipenv",
    "uv",
    "run",
    "hatch",
    "rye",
    "pdm",
    "python",
    "python3",
    "-m",
    "env",
    "newrelic-admin",
];

/// The first program of a command that is neither its server nor starts it alone.
fn wrapper(command: &str) -> Option<&str> {
    let is_server = |word: &&str| {
        let name = word.rsplit('/').next().unwrap_or_default();
        PYTHON_SERVERS.contains(&name) || RUBY_SERVERS.contains(&name)
    };
    let words = command
        .split_whitespace()
        .take_while(|word| !is_server(word));
    let mut others = words.filter(|word| !STARTERS.contains(word));
    others.next()
}

const PYTHON_SERVERS: [&str; 5] = ["gunicorn", "uvicorn", "hypercorn", "daphne", "granian"];
const RUBY_SERVERS: [&str; 6] = ["puma", "unicorn", "rackup", "thin", "rails", "falcon"];

/// A shell reads the variables of the line.
fn set_command(table: &mut DraftTable, key: &str, command: &str) {
    match command.contains('$') {
        true => {
            let words = vec![
                "sh".to_owned(),
                "-c".to_owned(),
                escaped(&format!("exec {command}")),
            ];
            table.keys.set(key, words);
        }
        false => table.keys.set(key, command),
    }
}

/// Keeps `${NAME}` for the shell: the configuration has variables of that form, too.
fn escaped(command: &str) -> String {
    command.replace("${", "$${")
}

/// Writes the application that serves: by its own workers where its server is known.
fn web(name: &str, command: &str, draft: &mut Draft) {
    let table = draft.apps.table_mut(name);
    table.comment(format!("{name}: {command}"));
    let words: Vec<&str> = command.split_whitespace().collect();
    let python = words
        .iter()
        .position(|word| PYTHON_SERVERS.contains(&word.rsplit('/').next().unwrap_or_default()));
    let ruby = words.iter().any(|word| RUBY_SERVERS.contains(word));
    if let Some(at) = python {
        let arguments = words.get(at + 1..).unwrap_or_default();
        let entry = arguments.iter().find(|word| {
            !word.starts_with('-') && word.contains(':') && !word.contains(['/', '$'])
        });
        if let Some(entry) = entry {
            table.keys.set("entry", entry.trim_matches(['"', '\'']));
        }
        if words[at] != "gunicorn" || command.contains("UvicornWorker") {
            table.keys.set("kind", "asgi");
        }
        for (flags, key) in [
            (["-w", "--workers"], "processes"),
            (["--threads", "--threads"], "threads"),
        ] {
            let value = flags
                .iter()
                .find_map(|flag| flag_value(arguments, flag))
                .and_then(units::number);
            let is_for_threads = key == "threads" && table.keys.has("kind");
            if let Some(number) = value.filter(|it| (1..=1024).contains(it) && !is_for_threads) {
                table.keys.set(key, number);
            }
        }
        return;
    }
    if ruby {
        table.keys.set("kind", "rack");
        return;
    }
    table.keys.set("kind", "command");
    let command = command
        .replace("${PORT:-3000}", "{port}")
        .replace("${PORT}", "{port}")
        .replace("$PORT", "{port}");
    let command = escaped(&command);
    if !command.contains("{port}") {
        table.comment(
            "Penstock tells the port by the variable PORT; `{port}` in the command is another way",
        );
        table.keys.set(
            "command",
            vec!["sh", "-c", &format!("PORT={{port}} exec {command}")],
        );
        return;
    }
    table.keys.set("command", command);
}

/// The value of `--flag=value`, `--flag value` or `-w4`.
fn flag_value<'w>(words: &[&'w str], flag: &str) -> Option<&'w str> {
    for (at, word) in words.iter().enumerate() {
        if *word == flag {
            return words.get(at + 1).copied();
        }
        if let Some(value) = word.strip_prefix(flag) {
            return Some(value.trim_start_matches('='));
        }
    }
    None
}
