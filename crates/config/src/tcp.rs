//! The `[[tcp]]` tables: TCP listeners in front of upstreams.
//!
//! Called by `parse` after upstreams, because listeners name them.
//!
//! # Invariants
//! - No stream listens where another one, the server or its admin interface does.
//! - `parse` has the last word about the server, because a file with nothing but streams has no
//!   listener of its own.

use std::collections::BTreeMap;

use crate::error::Problem;
use crate::findings::LocatedValue;
use crate::model::{TcpFrontend, Upstream};
use crate::route::check_name_exists;
use crate::section::Section;
use crate::server;

/// Reads every stream, placed where its address stands.
pub(crate) fn read(
    top: &Section<'_>,
    names: &[String],
    upstreams: &BTreeMap<String, Upstream>,
) -> Vec<LocatedValue<TcpFrontend>> {
    let mut streams: Vec<LocatedValue<TcpFrontend>> = Vec::new();
    for table in top.tables("tcp") {
        let Some(stream) = read_one(&table, names) else {
            continue;
        };
        let name = &stream.value.upstream;
        if upstreams
            .get(name)
            .is_some_and(|upstream| upstream.joinable)
        {
            table.report(
                table.key_offset(&["upstream"]),
                Problem::TcpToJoinableUpstream(name.clone()),
            );
        }
        let listen = &stream.value.listen;
        let other = streams.iter().find(|o| o.value.listen.overlaps(listen));
        if let Some(other) = other {
            let line = table.findings.line(other.offset);
            table.report(
                stream.offset,
                server::address_taken(listen, &other.value.listen, line),
            );
        }
        streams.push(stream);
    }
    streams
}

/// Reports the streams that listen where the server does.
pub(crate) fn check(
    top: &Section<'_>,
    streams: &[LocatedValue<TcpFrontend>],
    server: &server::ServerSection,
) {
    for stream in streams {
        let (listen, at) = (&stream.value.listen, stream.offset);
        if let Some((other, line)) = server.conflicting_listener(top, listen) {
            top.report(at, server::address_taken(listen, &other, line));
        }
        let admin = server.config.admin.as_ref();
        if let Some(admin) = admin.filter(|admin| admin.overlaps(listen)) {
            let (admin, listener) = (admin.clone(), listen.clone());
            top.report(at, Problem::AdminAddressTaken { admin, listener });
        }
    }
}

fn read_one(table: &Section<'_>, upstreams: &[String]) -> Option<LocatedValue<TcpFrontend>> {
    let listen = table.parse_text("listen", |text| {
        server::parse_listen_addr(table.findings, text)
    });
    let upstream = table.text("upstream");
    if let Some(upstream) = &upstream {
        check_name_exists(
            table,
            "upstream",
            upstream,
            upstreams.iter().map(String::as_str),
        );
    }
    let mut proxy_protocol = false;
    table.read("proxy_protocol", &mut proxy_protocol);
    let (listen, upstream) = (listen?, upstream?);
    let mut frontend = TcpFrontend::new(listen.value, upstream.value.to_owned());
    frontend.proxy_protocol = proxy_protocol;
    Some(LocatedValue::new(frontend, listen.offset))
}

#[cfg(test)]
mod tests;
