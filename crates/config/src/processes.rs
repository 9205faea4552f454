//! How the processes of an application live: their number, what each does at once, when they are
//! replaced.
//!
//! Called by `app`: [`read`] before the kind is known, [`settle`] with it, [`refuse_of_programs`] for
//! kinds whose code is not Penstock's to load. What must stay true: a key that would do nothing beside
//! what else the table says is an error, not ignored; each bound fits the others.

use std::collections::BTreeMap;

use crate::error::Problem;
use crate::grants;
use crate::model::{Access, App, AppKind, Concurrency, MemoryMax, Preload, Processes, Sticky};
use crate::place::At;
use crate::section::{FlagOrWord, Section};
use crate::server::read_account;

/// Everything of it that means the same for each kind; the defaults are in `app`.
pub(crate) fn read(table: &Section<'_>, app: &mut App) {
    app.processes = read_number(table, app.processes);
    read_scaling(table, app);
    (app.threads_min, app.threads) = read_threads(table, app.threads);
    table.count("io_threads", &mut app.io_threads);
    table.count("in_progress_max", &mut app.in_progress_max);
    read_preload(table, app);
    app.refork_after = table.counts("refork_after").unwrap_or_default();
    app.memory_max = read_memory(table);
    app.max_tasks = table.count_said("max_tasks");
    app.max_total_memory = table.size_said("max_total_memory");
    app.max_cpu = table.decimal_said("max_cpu");
    app.requests_max = table.count_said("requests_max");
    app.age_max = table.duration_said("age_max");
    table.flag("collect_when_idle", &mut app.collect_when_idle);
    app.sticky = table.word("sticky").map(|word| match word.value {
        "cookie" => Sticky::Cookie,
        _ => Sticky::ClientAddress,
    });
    match table.is_table("isolation") {
        true => app.access = read_access(table).unwrap_or_default(),
        false => table.flag("isolation", &mut app.isolation),
    }
    let compression = "websocket_compression";
    table.flag(compression, &mut app.websocket_compression);
    table.duration("stop_timeout", &mut app.stop_timeout);
    table.duration("stream_timeout", &mut app.stream_timeout);
    read_replacement(table, app);
    (app.user, app.group) = read_account(table);
    if app.user.is_none() && app.group.is_some() {
        let what = "an application with a `user`";
        table.add(
            table.key_at(&["group"]),
            Problem::OnlyFor { key: "group", what },
        );
    }
    app.grip = grants::read_grip(table, &app.name, &BTreeMap::new());
    app.sendfile = grants::read_sendfile_and_root(table);
}

/// A table for `isolation`, which is `true` then.
fn read_access(table: &Section<'_>) -> Option<Access> {
    let table = table.table("isolation")?;
    let path = |text: &str| (!text.is_empty()).then(|| table.found.resolve(text));
    let paths = |key| table.list(key, path).map(values);
    let ports = |key| table.list(key, |text| text.parse().ok()).map(values);
    Some(Access {
        read_paths: paths("read_paths"),
        write_paths: paths("write_paths"),
        connect_ports: ports("connect_ports"),
        bind_ports: ports("bind_ports"),
    })
}

fn values<T>(list: Vec<At<T>>) -> Vec<T> {
    list.into_iter().map(|item| item.value).collect()
}

/// What depends on the kind of an application whose code Penstock loads.
pub(crate) fn settle(table: &Section<'_>, app: &mut App) {
    let is_sure = read_concurrency(table, app);
    if !is_sure {
        // Which of the keys below have a meaning depends on it.
        return;
    }
    if app.has_reactor() {
        table.refuse("io_threads");
        table.refuse("collect_when_idle");
        if app.threads > 1 {
            table.add(table.key_at(&["threads"]), Problem::ThreadsOfReactor);
        }
    } else {
        table.refuse("in_progress_max");
    }
    if app.kind != AppKind::Asgi {
        table.refuse("websocket_compression");
    }
    if app.has_reactor() || app.preload == Preload::Never {
        table.refuse("refork_after");
    }
}

/// The keys that have no meaning for programs of the user's own.
pub(crate) fn refuse_of_programs(table: &Section<'_>) {
    for key in OF_SCRIPTS {
        table.refuse(key);
    }
    if table.is_table("threads") {
        table.add(table.key_at(&["threads"]), Problem::ThreadsOfProgram);
    }
}

/// What only a worker of Penstock's own can be told.
const OF_SCRIPTS: [&str; 14] = [
    "scale",
    "idle_ttl",
    "io_threads",
    "async",
    "in_progress_max",
    "request_buffering",
    "preload",
    "refork_after",
    "requests_max",
    "collect_when_idle",
    "stream_timeout",
    "sendfile_root",
    "sticky",
    "websocket_compression",
];

fn read_number(table: &Section<'_>, default: Processes) -> Processes {
    if !table.is_table("processes") {
        let mut count = default.max;
        table.count("processes", &mut count);
        return Processes::exactly(count);
    }
    let mut processes = Processes::default();
    let Some(bounds) = table.table("processes") else {
        return processes;
    };
    processes.min = 1;
    bounds.count("min", &mut processes.min);
    if !bounds.has("max") {
        processes.max = processes.max.max(processes.min);
    }
    bounds.count("max", &mut processes.max);
    bounds.check_order(("min", processes.min as u64), ("max", processes.max as u64));
    processes
}

/// The fewest and the most of each process.
fn read_threads(table: &Section<'_>, default: usize) -> (usize, usize) {
    let mut count = default;
    if !table.is_table("threads") {
        table.count("threads", &mut count);
        return (count, count);
    }
    let Some(bounds) = table.table("threads") else {
        return (count, count);
    };
    let mut min = 1;
    bounds.count("min", &mut min);
    let mut max = THREADS_MAX.max(min);
    bounds.count("max", &mut max);
    bounds.check_order(("min", min as u64), ("max", max as u64));
    (min, max)
}

/// What `threads = { min = 1 }` leaves out: as many as Rails has connections to its database.
const THREADS_MAX: usize = 5;

fn read_scaling(table: &Section<'_>, app: &mut App) {
    let scaling = &mut app.scaling;
    table.duration("idle_ttl", &mut scaling.idle_ttl);
    let Some(scale) = table.table("scale") else {
        return;
    };
    scale.duration("up_after", &mut scaling.up_after);
    scale.duration("idle_ttl", &mut scaling.idle_ttl);
    scale.count("spawn_rate", &mut scaling.spawn_rate);
    if scale.has("idle_ttl") && table.has("idle_ttl") {
        let (key, other) = ("idle_ttl", "scale.idle_ttl");
        table.add(table.key_at(&[key]), Problem::SaidTwice { key, other });
    }
}

fn read_memory(table: &Section<'_>) -> Option<MemoryMax> {
    let mut samples = SAMPLES;
    let (mut soft, mut hard) = (0, 0);
    if !table.is_table("memory_max") {
        table.size("memory_max", &mut hard);
    } else if let Some(bounds) = table.table("memory_max") {
        bounds.size("soft", &mut soft);
        bounds.size("hard", &mut hard);
        bounds.count("samples", &mut samples);
        if !bounds.has("soft") && !bounds.has("hard") {
            bounds.missing("hard");
        }
        if hard > 0 {
            bounds.check_order(("soft", soft), ("hard", hard));
        }
    }
    // Zero is neither said nor possible; a fifth lies between the two.
    let (soft, hard) = match (soft, hard) {
        (0, 0) => return None,
        (0, hard) => (hard - hard / 5, hard),
        (soft, 0) => (soft, soft.saturating_add(soft / 4)),
        both => both,
    };
    Some(MemoryMax {
        soft,
        hard,
        samples,
    })
}

/// A single look may fall on a moment that passes.
const SAMPLES: u32 = 3;

fn read_preload(table: &Section<'_>, app: &mut App) {
    if let Some(said) = table.flag_or_word("preload") {
        app.preload = match said.value {
            FlagOrWord::Flag(true) => Preload::Always,
            FlagOrWord::Flag(false) => Preload::Never,
            FlagOrWord::Word(_) => Preload::Auto,
        };
    }
}

fn read_replacement(table: &Section<'_>, app: &mut App) {
    table.count("max_surge", &mut app.max_surge);
    table.count("max_unavailable", &mut app.max_unavailable);
    // The number of cores is another one on the next machine.
    if table.has("processes") && table.has("max_unavailable") {
        table.check_order(
            ("max_unavailable", app.max_unavailable as u64),
            ("processes", app.processes.max as u64),
        );
    }
}

/// Reads `async`; false when what it says is wrong.
fn read_concurrency(table: &Section<'_>, app: &mut App) -> bool {
    let said = table.flag_or_word("async");
    app.concurrency = Concurrency::of(app.kind);
    let Some(At { value, at }) = said else {
        return !table.has("async");
    };
    let is_asgi = app.kind == AppKind::Asgi;
    let (concurrency, fits, key, what) = match value {
        FlagOrWord::Flag(true) => (
            Concurrency::Tasks,
            is_asgi || app.kind == AppKind::Rack,
            "async = true",
            "the kinds \"rack\" and \"asgi\"",
        ),
        FlagOrWord::Flag(false) => (
            Concurrency::Threads,
            !is_asgi,
            "async = false",
            "the kinds \"wsgi\" and \"rack\"",
        ),
        FlagOrWord::Word(_) => (
            Concurrency::Gevent,
            app.kind == AppKind::Wsgi,
            "async = \"gevent\"",
            "the kind \"wsgi\"",
        ),
    };
    if fits {
        app.concurrency = concurrency;
    } else {
        table.add(at, Problem::OnlyFor { key, what });
    }
    fits
}

#[cfg(test)]
mod tests;
