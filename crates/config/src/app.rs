//! One `[apps.NAME]` table.
//!
//! Called by `parse` for each. Kind and entry may be left out: then the directory tells, by the
//! same rules as when there is no file at all (`detect`).
//!
//! # Invariants
//! - An `App` that comes out has a directory that exists, and an entry whose file does or a
//!   command.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::detect::{self, DetectedApp};
use crate::entry;
use crate::findings::LocatedValue;
use crate::model::{App, AppKind, Protocol};
use crate::parse::report_unusable_dir;
use crate::section::{Section, TextOrList};
use crate::variables::{Variables, parse_env_file};
use crate::{command_line, dev_defaults, disk, hooks, processes, upstream};

/// Reads the table; none when it says too little that is right.
pub(crate) fn read(name: &LocatedValue<String>, table: &Section<'_>) -> Option<App> {
    let dir = table.path("dir");
    let dir_usable = match &dir {
        Some(dir) => report_unusable_dir(table, "dir", dir),
        None => !table.has("dir"),
    };
    let dir = dir.map_or_else(|| table.findings.base_dir().to_owned(), |dir| dir.value);
    let mut app = App::new(&name.value, dir, AppKind::Wsgi, "");
    if table.findings.is_development() {
        dev_defaults::apply_to_app(&mut app);
    }
    read_common_keys(table, &mut app);
    let settings = CodeSettings {
        kind: read_kind(table),
        entry: table.text("entry"),
    };
    read_program_keys(table, &settings.kind, &mut app);
    let found = match settings.kind {
        KindSetting::Given(kind @ (AppKind::Command | AppKind::FastCgi)) => {
            let entry = String::new();
            DetectedApp { kind, entry }
        }
        // It lacks its kind, not an application in its directory.
        KindSetting::Absent if table.has("command") => return None,
        _ => determine_code(table, &app, &settings, dir_usable)?,
    };
    app.kind = found.kind;
    app.entry = found.entry;
    // Which values of `async` are right is the kind's matter.
    app.kind_is_guess = matches!(settings.kind, KindSetting::Absent)
        && matches!(app.kind, AppKind::Wsgi | AppKind::Asgi)
        && !table.has("async");
    if app.upstream.is_none() {
        app.hooks = hooks::read(table);
        processes::read_kind_dependent(table, &mut app);
    }
    Some(app)
}

/// What the table says about the application's code.
struct CodeSettings<'a> {
    kind: KindSetting,
    entry: Option<LocatedValue<&'a str>>,
}

enum KindSetting {
    /// Left out: the entry or the directory tells.
    Absent,
    /// Said, and not to be used: already reported.
    Invalid,
    /// Said.
    Given(AppKind),
}

fn read_kind(table: &Section<'_>) -> KindSetting {
    let Some(text) = table.text("kind") else {
        return if table.has("kind") {
            KindSetting::Invalid
        } else {
            KindSetting::Absent
        };
    };
    match AppKind::from_word(text.value).filter(|kind| *kind != AppKind::Job) {
        Some(kind) => KindSetting::Given(kind),
        None => {
            table.report_invalid("kind", &text);
            KindSetting::Invalid
        }
    }
}

/// What a program of the user's own has: a command line, and an upstream that its processes are. Of
/// the other kinds it is refused, and theirs of this one.
fn read_program_keys(table: &Section<'_>, kind: &KindSetting, app: &mut App) {
    let words = read_command(table, "command");
    let upstream = table.table("upstream");
    let protocol = match kind {
        KindSetting::Invalid => return,
        KindSetting::Given(AppKind::Command) => Protocol::Http,
        KindSetting::Given(AppKind::FastCgi) => Protocol::FastCgi,
        KindSetting::Absent => {
            if table.has("command") {
                let problem = "`command` is only for the kinds \"command\" and \"fastcgi\": add \
                               kind = \"command\"";
                table.report_key("command", problem);
            }
            table.report_not_applicable("upstream");
            return;
        }
        KindSetting::Given(AppKind::Wsgi | AppKind::Asgi | AppKind::Rack | AppKind::Job) => {
            table.report_not_applicable("command");
            table.report_not_applicable("upstream");
            return;
        }
    };
    table.report_not_applicable("entry");
    table.report_not_applicable("interpreter");
    processes::refuse_script_keys(table);
    match words {
        Some(words) => {
            check_placeholders(table, &words);
            if app.user.is_some() && words.value.iter().any(|word| word.contains("{socket}")) {
                let problem = "`command` has {socket}, which is in a folder of the server's: with a \
                               `user` of its own the application needs `{port}` or `{fd}`";
                table.report(words.offset, problem);
            }
            app.command = words.value;
        }
        None if !table.has("command") => table.report_missing("command"),
        None => {}
    }
    let upstream = upstream::read_app_upstream(app, protocol, upstream.as_ref());
    if !app.sendfile.is_enabled {
        app.sendfile = upstream.sendfile.clone();
    }
    app.upstream = Some(Box::new(upstream));
    app.apply_to_upstream();
}

/// A command line at `key`: a text that is split into words, or the words.
pub(crate) fn read_command(table: &Section<'_>, key: &str) -> Option<LocatedValue<Vec<String>>> {
    let (words, at) = match table.text_or_texts(key)? {
        TextOrList::One(text) => {
            let words =
                command_line::split_command(text.value).filter(|words| is_valid_command(words));
            if words.is_none() {
                table.report_invalid(key, &text);
            }
            (words?, text.offset)
        }
        TextOrList::List(list) => {
            let words: Vec<_> = list.value.iter().map(ToString::to_string).collect();
            if !is_valid_command(&words) {
                table.report_invalid(key, &LocatedValue::new(&words.join(" "), list.offset));
                return None;
            }
            (words, list.offset)
        }
    };
    Some(LocatedValue::new(words, at))
}

/// Whether it names a program and could be given to the system.
fn is_valid_command(words: &[String]) -> bool {
    let has_zero = words.iter().any(|word| word.contains('\0'));
    words.first().is_some_and(|program| !program.is_empty()) && !has_zero
}

/// Without a placeholder an HTTP program finds its port in `PORT`, and a FastCGI program a listening
/// socket as descriptor 0 (FastCGI 1.0, §2.2).
fn check_placeholders(table: &Section<'_>, words: &LocatedValue<Vec<String>>) {
    let places = command_line::placeholders(&words.value);
    if places.len() > 1 {
        let places = places.join(" and ");
        let problem = format!("`command` has {places}: one of them says where to listen");
        table.report(words.offset, problem);
    }
}

/// Kind and entry from the keys, or else from the directory.
fn determine_code(
    table: &Section<'_>,
    app: &App,
    settings: &CodeSettings<'_>,
    dir_usable: bool,
) -> Option<DetectedApp> {
    let kind = match (&settings.kind, &settings.entry) {
        (KindSetting::Invalid, _) => return None,
        (KindSetting::Given(kind), _) => Some(*kind),
        (KindSetting::Absent, Some(entry)) => Some(entry::detect_kind(app, entry.value)),
        (KindSetting::Absent, None) => None,
    };
    match (kind, &settings.entry) {
        (Some(kind), Some(text)) => {
            if !entry::is_valid_entry(kind, text.value) {
                table.report_invalid("entry", text);
                return None;
            }
            if dir_usable && let Err(problem) = entry::check_file_exists(app, kind, text.value) {
                table.report(text.offset, problem);
            }
            Some(DetectedApp {
                kind,
                entry: text.value.to_owned(),
            })
        }
        _ if !dir_usable || table.has("entry") => None,
        (kind, _) => detect_code(table, app, kind),
    }
}

fn detect_code(table: &Section<'_>, app: &App, kind: Option<AppKind>) -> Option<DetectedApp> {
    let found = match kind {
        None => detect::detect_app(&app.dir)
            .or_else(|| detect::detect_only_ruby_file(&app.dir))
            .or_else(|| detect::detect_only_module(&app.dir, None)),
        Some(AppKind::Wsgi | AppKind::Asgi) => detect::detect_python_app(&app.dir, kind)
            .or_else(|| detect::detect_only_module(&app.dir, kind)),
        Some(AppKind::Rack) => detect::detect_rack_app(&app.dir),
        Some(AppKind::Command | AppKind::FastCgi | AppKind::Job) => None,
    };
    if found.is_none() {
        table.report(table.offset, explain_unknown_code(app, kind));
    }
    found
}

/// What to write for a directory in which no application was recognised.
fn explain_unknown_code(app: &App, kind: Option<AppKind>) -> String {
    let (name, dir) = (&app.name, app.dir.display());
    let start = detect::node_start_command(&app.dir).filter(|_| kind.is_none());
    if let Some(start) = start {
        return format!(
            "app `{name}`: {dir} has a package.json: add kind = \"command\" and command = \
             \"{start}\" (the program finds its port in PORT)"
        );
    }
    let problem = format!(
        "app `{name}`: no application was recognised in {dir}: set `entry`, such as entry = \
         \"module:callable\""
    );
    match kind {
        None => format!("{problem}, or kind = \"command\" and `command` for another server"),
        Some(_) => problem,
    }
}

/// Everything but directory, kind and entry.
fn read_common_keys(table: &Section<'_>, app: &mut App) {
    let interpreter = table.parse_text("interpreter", |text| parse_interpreter(table, text));
    app.interpreter = interpreter.map(|interpreter| interpreter.value);
    processes::read(table, app);
    if let Some(queue) = table.table("queue") {
        queue.read("max", &mut app.max_queued);
        queue.read("timeout", &mut app.queue_timeout);
    }
    app.env = read_environment(table, app).into();
    if let Some(command) = read_command(table, "release_command") {
        app.release_command = command.value;
    }
}

/// The variables of `env` and of the file beside them.
pub(crate) fn read_environment(table: &Section<'_>, app: &mut App) -> BTreeMap<String, String> {
    let mut env = table.env_variables("env");
    if let Some(file) = table.path("env_file") {
        for (name, value) in read_env_file(table, &file) {
            if std::env::var_os(&name).is_none() {
                env.entry(name).or_insert(value);
            }
        }
        app.env_file = Some(file.value);
    }
    env
}

/// The variables of a file; what is wrong is reported at the key, with the line of the file.
fn read_env_file(table: &Section<'_>, file: &LocatedValue<PathBuf>) -> BTreeMap<String, String> {
    let path = file.value.display();
    let report = |problem: &str| table.report(file.offset, format!("`env_file`: {path}{problem}"));
    table.findings.add_value_file(file.value.clone());
    let text = match disk::read_text(&file.value, MAX_ENV_FILE_BYTES) {
        Ok(text) => text,
        Err(error) => {
            report(&format!(" {}", error.problem));
            return BTreeMap::new();
        }
    };
    let variables = parse_env_file(&text, &Variables::of_process());
    variables.unwrap_or_else(|errors| {
        for error in errors {
            let line = text[..error.offset].matches('\n').count() + 1;
            report(&format!(", line {line}: {}", error.problem));
        }
        BTreeMap::new()
    })
}

/// Bytes of a file of variables, as of any file that a configuration names.
const MAX_ENV_FILE_BYTES: u64 = 4 << 20;

/// A path as seen from the file, or a bare name for `PATH`.
fn parse_interpreter(table: &Section<'_>, text: &str) -> Option<PathBuf> {
    if text.is_empty() || text.contains('\0') {
        return None;
    }
    let is_bare = Path::new(text).components().count() == 1 && !text.contains('/');
    Some(if is_bare {
        PathBuf::from(text)
    } else {
        table.findings.resolve_path(text)
    })
}

#[cfg(test)]
mod tests;
