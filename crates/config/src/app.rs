//! One `[apps.NAME]` table.
//!
//! Called by `parse` for each. Kind and entry may be left out: then the folder tells, by the same
//! rules as when there is no file at all (`detect`). What must stay true: an `App` that comes out has
//! a folder that exists, and an entry whose file does or a command that is told where to listen.

use std::path::{Path, PathBuf};

use crate::detect::{self, Found};
use crate::entry;
use crate::error::Problem;
use crate::model::{App, AppKind, Protocol};
use crate::parse::check_folder;
use crate::place::At;
use crate::section::{Section, Texts};
use crate::{development, processes, upstream, words};

/// Reads the table; none when it says too little that is right.
pub(crate) fn read(name: &At<String>, table: &Section<'_>) -> Option<App> {
    let dir = table.path("dir");
    let dir_usable = match &dir {
        Some(dir) => check_folder(table, "dir", dir),
        None => !table.has("dir"),
    };
    let dir = dir.map_or_else(|| table.found.base().to_owned(), |dir| dir.value);
    let mut app = App::new(&name.value, dir, AppKind::Wsgi, "");
    if table.found.is_development() {
        development::app(&mut app);
    }
    read_rest(table, &mut app);
    let said = Said {
        kind: read_kind(table),
        entry: table.text("entry"),
    };
    read_program(table, &said.kind, &mut app);
    let found = match said.kind {
        Kind::Is(kind @ (AppKind::Command | AppKind::FastCgi)) => {
            let entry = String::new();
            Found { kind, entry }
        }
        // It lacks its kind, not an application in its folder.
        Kind::Unsaid if table.has("command") => return None,
        _ => find(table, &app, &said, dir_usable)?,
    };
    app.kind = found.kind;
    app.entry = found.entry;
    // Which values of `async` are right is the kind's matter.
    app.kind_is_guess = matches!(said.kind, Kind::Unsaid)
        && matches!(app.kind, AppKind::Wsgi | AppKind::Asgi)
        && !table.has("async");
    if app.upstream.is_none() {
        processes::settle(table, &mut app);
    }
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
        "asgi" => Kind::Is(AppKind::Asgi),
        "rack" => Kind::Is(AppKind::Rack),
        "command" => Kind::Is(AppKind::Command),
        "fastcgi" => Kind::Is(AppKind::FastCgi),
        _ => {
            table.bad("kind", &text);
            Kind::Wrong
        }
    }
}

/// What a program of the user's own has: a command line, and an upstream that its processes are. Of
/// the other kinds it is refused, and theirs of this one.
fn read_program(table: &Section<'_>, kind: &Kind, app: &mut App) {
    let words = read_command(table);
    let upstream = table.table("upstream");
    let protocol = match kind {
        Kind::Wrong => return,
        Kind::Is(AppKind::Command) => Protocol::Http,
        Kind::Is(AppKind::FastCgi) => Protocol::FastCgi,
        Kind::Unsaid | Kind::Is(AppKind::Wsgi | AppKind::Asgi | AppKind::Rack) => {
            table.refuse("command");
            table.refuse("upstream");
            return;
        }
    };
    table.refuse("entry");
    table.refuse("interpreter");
    processes::refuse_of_programs(table);
    match words {
        Some(words) => {
            check_placeholders(table, &words, protocol);
            if app.user.is_some() && words.value.iter().any(|word| word.contains("{socket}")) {
                table.add(words.at, Problem::SocketOfOtherUser);
            }
            app.command = words.value;
        }
        None if !table.has("command") => table.missing("command"),
        None => {}
    }
    let upstream = upstream::read_of_app(app, protocol, upstream.as_ref());
    if !app.sendfile.is_followed {
        app.sendfile = upstream.sendfile.clone();
    }
    app.upstream = Some(Box::new(upstream));
    app.fit_upstream();
}

fn read_command(table: &Section<'_>) -> Option<At<Vec<String>>> {
    let (words, at) = match table.text_or_texts("command")? {
        Texts::One(text) => {
            let words = words::split(text.value).filter(|words| is_command(words));
            if words.is_none() {
                table.bad("command", &text);
            }
            (words?, text.at)
        }
        Texts::List(list) => {
            let words: Vec<_> = list.value.iter().map(ToString::to_string).collect();
            if !is_command(&words) {
                table.bad("command", &At::new(&words.join(" "), list.at));
                return None;
            }
            (words, list.at)
        }
    };
    Some(At::new(words, at))
}

/// Whether it names a program and could be given to the system.
fn is_command(words: &[String]) -> bool {
    let has_zero = words.iter().any(|word| word.contains('\0'));
    words.first().is_some_and(|program| !program.is_empty()) && !has_zero
}

/// A FastCGI program without a placeholder finds a listening socket as descriptor 0 (FastCGI 1.0,
/// §2.2).
fn check_placeholders(table: &Section<'_>, words: &At<Vec<String>>, protocol: Protocol) {
    let places = words::placeholders(&words.value);
    if places.len() > 1 {
        table.add(words.at, Problem::Placeholders(places));
    } else if places.is_empty() && protocol == Protocol::Http {
        table.add(words.at, Problem::NoPlaceholder);
    }
}

/// Kind and entry from what is said, or else from the folder.
fn find(table: &Section<'_>, app: &App, said: &Said<'_>, dir_usable: bool) -> Option<Found> {
    let kind = match (&said.kind, &said.entry) {
        (Kind::Wrong, _) => return None,
        (Kind::Is(kind), _) => Some(*kind),
        (Kind::Unsaid, Some(entry)) => Some(entry::kind_of(app, entry.value)),
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
        None => detect::app_in(&app.dir)
            .or_else(|| detect::only_ruby_file_in(&app.dir))
            .or_else(|| detect::only_module_in(&app.dir, None)),
        Some(AppKind::Wsgi | AppKind::Asgi) => {
            detect::python_in(&app.dir, kind).or_else(|| detect::only_module_in(&app.dir, kind))
        }
        Some(AppKind::Rack) => detect::rack_in(&app.dir),
        Some(AppKind::Command | AppKind::FastCgi) => None,
    };
    if found.is_none() {
        let (app, dir) = (app.name.clone(), app.dir.clone());
        table.add(table.at, Problem::NotRecognised { app, dir });
    }
    found
}

/// Everything but folder, kind and entry.
fn read_rest(table: &Section<'_>, app: &mut App) {
    let interpreter = table.parsed("interpreter", |text| interpreter(table, text));
    app.interpreter = interpreter.map(|interpreter| interpreter.value);
    processes::read(table, app);
    app.request_buffering = table.flag_said("request_buffering");
    if let Some(queue) = table.table("queue") {
        queue.count("max", &mut app.queue_max);
        queue.duration("timeout", &mut app.queue_timeout);
    }
    table.duration("response_timeout", &mut app.response_timeout);
    table.duration("boot_timeout", &mut app.boot_timeout);
    app.env = table.variables("env").into();
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

#[cfg(test)]
mod tests;
