//! One `[apps.NAME]` table.
//!
//! Called by `parse` for each. Kind and entry may be left out: then the folder tells, by the same
//! rules as when there is no file at all (`detect`). What must stay true: an `App` that comes out has
//! a folder that exists and an entry whose file does.

use std::path::{Path, PathBuf};

use crate::detect::{self, Found};
use crate::entry;
use crate::error::Problem;
use crate::model::{App, AppKind, Processes};
use crate::parse::check_folder;
use crate::place::At;
use crate::section::Section;

/// Reads the table; none when it says too little that is right.
pub(crate) fn read(name: &At<String>, table: &Section<'_>) -> Option<App> {
    let dir = table.path("dir");
    let dir_usable = match &dir {
        Some(dir) => check_folder(table, "dir", dir),
        None => !table.has("dir"),
    };
    let dir = dir.map_or_else(|| table.found.base().to_owned(), |dir| dir.value);
    let mut app = App::new(&name.value, dir, AppKind::Wsgi, "");
    read_rest(table, &mut app);
    let said = Said {
        kind: read_kind(table),
        entry: table.text("entry"),
    };
    let found = find(table, &app, &said, dir_usable)?;
    app.kind = found.kind;
    app.entry = found.entry;
    Some(app)
}

/// What the table says about the application's code.
struct Said<'a> {
    kind: Kind,
    entry: Option<At<&'a str>>,
}

enum Kind {
    /// Left out: the entry or the folder tells.
    Unsaid,
    /// Said, and not to be used: already reported.
    Wrong,
    /// Said.
    Is(AppKind),
}

fn read_kind(table: &Section<'_>) -> Kind {
    let Some(text) = table.text("kind") else {
        return if table.has("kind") {
            Kind::Wrong
        } else {
            Kind::Unsaid
        };
    };
    match text.value {
        "wsgi" => Kind::Is(AppKind::Wsgi),
        "rack" => Kind::Is(AppKind::Rack),
        planned if PLANNED_KINDS.contains(&planned) => {
            table.add(text.at, Problem::Unsupported(format!("kind = {planned:?}")));
            Kind::Wrong
        }
        _ => {
            table.bad("kind", &text);
            Kind::Wrong
        }
    }
}

/// Decided but not built.
const PLANNED_KINDS: [&str; 3] = ["asgi", "command", "fastcgi"];

/// Kind and entry from what is said, or else from the folder.
fn find(table: &Section<'_>, app: &App, said: &Said<'_>, dir_usable: bool) -> Option<Found> {
    let kind = match (&said.kind, &said.entry) {
        (Kind::Wrong, _) => return None,
        (Kind::Is(kind), _) => Some(*kind),
        (Kind::Unsaid, Some(entry)) => Some(entry::kind_of(entry.value)),
        (Kind::Unsaid, None) => None,
    };
    match (kind, &said.entry) {
        (Some(kind), Some(text)) => {
            if !entry::is_valid(kind, text.value) {
                table.bad("entry", text);
                return None;
            }
            if dir_usable && let Err(problem) = entry::check(app, kind, text.value) {
                table.add(text.at, problem);
            }
            Some(Found {
                kind,
                entry: text.value.to_owned(),
            })
        }
        _ if !dir_usable || table.has("entry") => None,
        (kind, _) => recognise(table, app, kind),
    }
}

fn recognise(table: &Section<'_>, app: &App, kind: Option<AppKind>) -> Option<Found> {
    let found = match kind {
        None => detect::app_in(&app.dir),
        Some(AppKind::Wsgi) => detect::python_in(&app.dir),
        Some(AppKind::Rack) => detect::rack_in(&app.dir),
    };
    match found {
        Ok(Some(found)) => Some(found),
        Ok(None) => {
            let (app, dir) = (app.name.clone(), app.dir.clone());
            table.add(table.at, Problem::NotRecognised { app, dir });
            None
        }
        Err(problem) => {
            table.add(table.at, problem);
            None
        }
    }
}

/// Everything but folder, kind and entry.
fn read_rest(table: &Section<'_>, app: &mut App) {
    let interpreter = table.parsed("interpreter", |text| interpreter(table, text));
    app.interpreter = interpreter.map(|interpreter| interpreter.value);
    app.processes = read_processes(table);
    table.count("threads", &mut app.threads);
    if let Some(queue) = table.table("queue") {
        queue.count("max", &mut app.queue_max);
        queue.duration("timeout", &mut app.queue_timeout);
    }
    table.duration("response_timeout", &mut app.response_timeout);
    table.duration("boot_timeout", &mut app.boot_timeout);
    for (name, value) in table.map("env") {
        if name.is_empty() || name.contains(['=', '\0']) || value.value.contains('\0') {
            table.bad_variable(&name, value.at);
        } else {
            app.env.insert(name, value.value);
        }
    }
}

fn read_processes(table: &Section<'_>) -> Processes {
    let mut processes = Processes::default();
    if !table.is_table("processes") {
        let mut count = processes.max;
        table.count("processes", &mut count);
        return Processes::exactly(count);
    }
    let Some(bounds) = table.table("processes") else {
        return processes;
    };
    processes.min = 1;
    bounds.count("min", &mut processes.min);
    if !bounds.has("max") {
        processes.max = processes.max.max(processes.min);
    }
    bounds.count("max", &mut processes.max);
    if processes.min > processes.max {
        let (low_value, high_value) = (processes.min as u64, processes.max as u64);
        let (low, high) = ("min", "max");
        let at = bounds.key_at(&[low, high]);
        bounds.add(
            at,
            Problem::LowAboveHigh {
                low,
                low_value,
                high,
                high_value,
            },
        );
    }
    processes
}

/// A path as seen from the file, or a bare name for `PATH`.
fn interpreter(table: &Section<'_>, text: &str) -> Option<PathBuf> {
    if text.is_empty() || text.contains('\0') {
        return None;
    }
    let is_bare = Path::new(text).components().count() == 1 && !text.contains('/');
    Some(if is_bare {
        PathBuf::from(text)
    } else {
        table.found.resolve(text)
    })
}
