//! How the processes of an application live: their number, what each does at once, when they are
//! replaced.
//!
//! Called by `app`: [`read`] before the kind is known, [`read_kind_dependent`] with it,
//! [`refuse_script_keys`] for kinds that Penstock does not load.
//!
//! # Invariants
//! - A key without effect beside the others is an error, not ignored.
//! - Each bound fits the others.

use std::collections::BTreeMap;

use crate::findings::LocatedValue;
use crate::grants;
use crate::model::{Access, App, AppKind, Concurrency, MemoryLimit, Preload, Processes};
use crate::section::{FlagOrWord, Keys as _, Section};
use crate::server::read_account;

/// Everything of it that means the same for each kind; the defaults are in `app`.
pub(crate) fn read(table: &Section<'_>, app: &mut App) {
    app.read_keys(table);
    app.processes = read_process_count(table, app.processes);
    (app.min_threads, app.threads) = read_threads(table, app.threads);
    read_preload(table, app);
    app.refork_after = table.numbers("refork_after").unwrap_or_default();
    app.max_memory = read_memory(table);
    match table.is_table("isolation") {
        true => app.access = read_access(table).unwrap_or_default(),
        false => table.read("isolation", &mut app.isolation),
    }
    check_restart_limits(table, app);
    (app.user, app.group) = read_account(table);
    if app.user.is_none() && app.group.is_some() {
        table.report_key("group", "`group` is only for an application with a `user`");
    }
    app.grip = grants::read_grip(table, &app.name, &BTreeMap::new());
    app.sendfile = grants::read_sendfile_and_root(table);
}

/// A table for `isolation`, which is `true` then.
fn read_access(table: &Section<'_>) -> Option<Access> {
    let table = table.table("isolation")?;
    let path = |text: &str| (!text.is_empty()).then(|| table.findings.resolve_path(text));
    let paths = |key| table.list(key, path).map(values);
    let ports = |key| table.list(key, |text| text.parse().ok()).map(values);
    Some(Access {
        read_paths: paths("read_paths"),
        write_paths: paths("write_paths"),
        connect_ports: ports("connect_ports"),
        bind_ports: ports("bind_ports"),
    })
}

fn values<T>(list: Vec<LocatedValue<T>>) -> Vec<T> {
    list.into_iter().map(|item| item.value).collect()
}

/// What depends on the kind of an application that Penstock loads.
pub(crate) fn read_kind_dependent(table: &Section<'_>, app: &mut App) {
    let is_sure = read_concurrency(table, app);
    if !is_sure {
        // Which of the keys below have a meaning depends on it.
        return;
    }
    if app.has_reactor() {
        table.report_not_applicable("io_threads");
        table.report_not_applicable("gc_when_idle");
        if app.threads > 1 {
            let problem = "a process with a reactor has one thread: `max_concurrent` bounds what it does at once";
            table.report_key("threads", problem);
        }
    } else {
        table.report_not_applicable("max_concurrent");
    }
    if app.kind != AppKind::Asgi {
        table.report_not_applicable("websocket_compression");
    }
    if app.has_reactor() || app.preload == Preload::Never {
        table.report_not_applicable("refork_after");
    }
}

/// The keys that have no meaning for programs of the user's own.
pub(crate) fn refuse_script_keys(table: &Section<'_>) {
    for key in SCRIPT_ONLY_KEYS {
        table.report_not_applicable(key);
    }
    if table.is_table("threads") {
        let problem = "how many threads a program of its own has is not Penstock's to decide: say \
                       how many requests a process gets at once";
        table.report_key("threads", problem);
    }
}

/// What only a worker of Penstock's own can be told.
const SCRIPT_ONLY_KEYS: [&str; 14] = [
    "scale",
    "io_threads",
    "async",
    "max_concurrent",
    "request_buffering",
    "preload",
    "hooks",
    "refork_after",
    "max_requests",
    "gc_when_idle",
    "stream_timeout",
    "sendfile_root",
    "sticky",
    "websocket_compression",
];

fn read_process_count(table: &Section<'_>, default: Processes) -> Processes {
    if !table.is_table("processes") {
        let mut count = default.max;
        table.read("processes", &mut count);
        return Processes::exactly(count);
    }
    let mut processes = Processes::default();
    let Some(bounds) = table.table("processes") else {
        return processes;
    };
    processes.min = 1;
    bounds.read("min", &mut processes.min);
    if !bounds.has("max") {
        processes.max = processes.max.max(processes.min);
    }
    bounds.read("max", &mut processes.max);
    bounds.check_order(("min", processes.min as u64), ("max", processes.max as u64));
    processes
}

/// The fewest and the most of each process.
fn read_threads(table: &Section<'_>, default: usize) -> (usize, usize) {
    let mut count = default;
    if !table.is_table("threads") {
        table.read("threads", &mut count);
        return (count, count);
    }
    let Some(bounds) = table.table("threads") else {
        return (count, count);
    };
    let mut min = 1;
    bounds.read("min", &mut min);
    let mut max = DEFAULT_MAX_THREADS.max(min);
    bounds.read("max", &mut max);
    bounds.check_order(("min", min as u64), ("max", max as u64));
    (min, max)
}

/// What `threads = { min = 1 }` leaves out: as many as Rails has connections to its database.
const DEFAULT_MAX_THREADS: usize = 5;

fn read_memory(table: &Section<'_>) -> Option<MemoryLimit> {
    let mut samples = DEFAULT_MEMORY_SAMPLES;
    let (mut soft, mut hard) = (0, 0);
    if !table.is_table("max_memory") {
        table.read("max_memory", &mut hard);
    } else if let Some(limits) = table.table("max_memory") {
        limits.read("soft", &mut soft);
        limits.read("hard", &mut hard);
        limits.read("samples", &mut samples);
        if !limits.has("soft") && !limits.has("hard") {
            limits.report_missing("hard");
        }
        if hard > 0 {
            limits.check_order(("soft", soft), ("hard", hard));
        }
    }
    // Zero can neither be set nor happen; a fifth lies between the two.
    let (soft, hard) = match (soft, hard) {
        (0, 0) => return None,
        (0, hard) => (hard - hard / 5, hard),
        (soft, 0) => (soft, soft.saturating_add(soft / 4)),
        both => both,
    };
    Some(MemoryLimit {
        soft,
        hard,
        samples,
    })
}

/// A single look may fall on a moment that passes.
const DEFAULT_MEMORY_SAMPLES: u32 = 3;

fn read_preload(table: &Section<'_>, app: &mut App) {
    if let Some(setting) = table.flag_or_word("preload") {
        app.preload = match setting.value {
            FlagOrWord::Flag(true) => Preload::Always,
            FlagOrWord::Flag(false) => Preload::Never,
            FlagOrWord::Word => Preload::Auto,
        };
    }
}

fn check_restart_limits(table: &Section<'_>, app: &App) {
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
    let setting = table.flag_or_word("async");
    app.concurrency = Concurrency::default_for(app.kind);
    let Some(LocatedValue { value, offset: at }) = setting else {
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
        FlagOrWord::Word => (
            Concurrency::Gevent,
            app.kind == AppKind::Wsgi,
            "async = \"gevent\"",
            "the kind \"wsgi\"",
        ),
    };
    if fits {
        app.concurrency = concurrency;
    } else {
        table.report(at, format!("`{key}` is only for {what}"));
    }
    fits
}

#[cfg(test)]
mod tests;
