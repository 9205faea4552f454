//! The `[server]` table: listeners, loops, admin, access log.
//!
//! Called by `parse`; the clash checks also by `resolve`, because the command line replaces
//! addresses. What must stay true: no two addresses of one server overlap, admin's included.

use std::path::Path;

use crate::error::Problem;
use crate::model::{AccessLog, LogFormat, LogTarget, Server};
use crate::place::{At, Findings, absolute};
use crate::section::Section;
use crate::values::{ListenAddr, UNIX_PATH_BYTES};

/// Reads the table, or gives the defaults when there is none.
pub(crate) fn read(top: &Section<'_>) -> Server {
    let mut server = Server::default();
    let Some(table) = top.table("server") else {
        return server;
    };
    let listen = table.list("listen", |text| address(table.found, text));
    if let Some(listen) = &listen {
        check_listen(&table, listen);
        server.listen = listen.iter().map(|addr| addr.value.clone()).collect();
    }
    table.count("threads", &mut server.threads);
    let admin = table.parsed("admin", |text| admin(table.found, text));
    if let Some(admin) = &admin {
        server.admin = admin.value.clone();
    }
    check_admin(
        &table,
        &server,
        listen.as_deref(),
        admin.as_ref().map(|admin| admin.at),
    );
    server.access_log = read_access_log(&table);
    table.duration("shutdown_timeout", &mut server.shutdown_timeout);
    server
}

/// The first clash among the addresses of a server.
pub(crate) fn clash(server: &Server) -> Option<Problem> {
    let listen = &server.listen;
    for (index, addr) in listen.iter().enumerate() {
        if let Some(other) = listen[..index].iter().find(|other| other.overlaps(addr)) {
            return Some(taken(addr, other, 0));
        }
    }
    let admin = server.admin.as_ref()?;
    let listener = listen.iter().find(|listener| listener.overlaps(admin))?;
    Some(Problem::AdminTaken {
        admin: admin.clone(),
        listener: listener.clone(),
    })
}

/// A Unix socket's path seen from `base`; none when that is too long for the system.
pub(crate) fn based(addr: ListenAddr, base: &Path) -> Option<ListenAddr> {
    let ListenAddr::Unix(path) = addr else {
        return Some(addr);
    };
    let path = absolute(base, &path);
    (path.as_os_str().len() <= UNIX_PATH_BYTES).then_some(ListenAddr::Unix(path))
}

fn address(found: &Findings<'_>, text: &str) -> Option<ListenAddr> {
    based(text.parse().ok()?, found.base())
}

fn admin(found: &Findings<'_>, text: &str) -> Option<Option<ListenAddr>> {
    if text == "off" {
        Some(None)
    } else {
        address(found, text).map(Some)
    }
}

fn check_listen(table: &Section<'_>, listen: &[At<ListenAddr>]) {
    table.check_filled("listen");
    for (index, addr) in listen.iter().enumerate() {
        if let Some(other) = listen[..index]
            .iter()
            .find(|o| o.value.overlaps(&addr.value))
        {
            let line = table.found.line(other.at);
            table.add(addr.at, taken(&addr.value, &other.value, line));
        }
    }
}

/// The clash stands where the reader wrote something: at the admin key, else at the listener.
fn check_admin(
    table: &Section<'_>,
    server: &Server,
    listen: Option<&[At<ListenAddr>]>,
    admin_at: Option<usize>,
) {
    let Some(admin) = &server.admin else { return };
    let Some(index) = server.listen.iter().position(|addr| addr.overlaps(admin)) else {
        return;
    };
    let listen_at = listen
        .and_then(|listen| listen.get(index))
        .map(|addr| addr.at);
    let at = admin_at.or(listen_at).unwrap_or(table.at);
    let (admin, listener) = (admin.clone(), server.listen[index].clone());
    table.add(at, Problem::AdminTaken { admin, listener });
}

fn taken(addr: &ListenAddr, other: &ListenAddr, line: usize) -> Problem {
    Problem::AddressTaken {
        addr: addr.clone(),
        other: other.clone(),
        line,
    }
}

fn read_access_log(table: &Section<'_>) -> Option<AccessLog> {
    if !table.has("access_log") {
        return None;
    }
    if !table.is_table("access_log") {
        let target = table.parsed("access_log", |text| match text {
            "off" => Some(None),
            _ => log_target(table.found, text).map(Some),
        })?;
        return target.value.map(|path| AccessLog {
            path,
            format: LogFormat::default(),
        });
    }
    let log = table.table("access_log")?;
    let format = log.word("format").map_or("combined", |word| word.value);
    let path = log.parsed("path", |text| log_target(log.found, text));
    let format = match format {
        "off" => return None,
        "json" => LogFormat::Json,
        _ => LogFormat::Combined,
    };
    if !log.has("path") {
        log.missing("path");
    }
    path.map(|path| AccessLog {
        path: path.value,
        format,
    })
}

fn log_target(found: &Findings<'_>, text: &str) -> Option<LogTarget> {
    match text {
        "stdout" => Some(LogTarget::Stdout),
        "stderr" => Some(LogTarget::Stderr),
        _ if text.is_empty() || text.contains('\0') => None,
        path => Some(LogTarget::File(found.resolve(path))),
    }
}
