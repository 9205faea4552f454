//! The `[[streams]]` tables: TCP listeners in front of upstreams.
//!
//! Called by `parse` after upstreams, whose names they refer to. What must stay true: no stream
//! listens where another one, the server or its admin interface does; `parse` has the last word about
//! the server, because a file with nothing but streams has no listener of its own.

use std::collections::BTreeMap;

use crate::error::Problem;
use crate::model::{TcpStream, Upstream};
use crate::place::At;
use crate::route::check_name;
use crate::section::Section;
use crate::server;

/// Reads every stream, placed where its address stands.
pub(crate) fn read(
    top: &Section<'_>,
    names: &[String],
    upstreams: &BTreeMap<String, Upstream>,
) -> Vec<At<TcpStream>> {
    let mut streams: Vec<At<TcpStream>> = Vec::new();
    for table in top.tables("streams") {
        let Some(stream) = read_one(&table, names) else {
            continue;
        };
        let name = &stream.value.upstream;
        if upstreams.get(name).is_some_and(|upstream| upstream.joined) {
            table.add(
                table.key_at(&["upstream"]),
                Problem::StreamToJoined(name.clone()),
            );
        }
        let listen = &stream.value.listen;
        let other = streams.iter().find(|o| o.value.listen.overlaps(listen));
        if let Some(other) = other {
            let line = table.found.line(other.at);
            table.add(stream.at, server::taken(listen, &other.value.listen, line));
        }
        streams.push(stream);
    }
    streams
}

/// Reports the streams that listen where the server does.
pub(crate) fn check(top: &Section<'_>, streams: &[At<TcpStream>], server: &server::Read) {
    for stream in streams {
        let (listen, at) = (&stream.value.listen, stream.at);
        if let Some((other, line)) = server.listener_at(top, listen) {
            top.add(at, server::taken(listen, &other, line));
        }
        let admin = server.value.admin.as_ref();
        if let Some(admin) = admin.filter(|admin| admin.overlaps(listen)) {
            let (admin, listener) = (admin.clone(), listen.clone());
            top.add(at, Problem::AdminTaken { admin, listener });
        }
    }
}

fn read_one(table: &Section<'_>, upstreams: &[String]) -> Option<At<TcpStream>> {
    let listen = table.parsed("listen", |text| server::address(table.found, text));
    let upstream = table.text("upstream");
    for key in ["listen", "upstream"] {
        if !table.has(key) {
            table.missing(key);
        }
    }
    if let Some(upstream) = &upstream {
        check_name(
            table,
            "upstream",
            upstream,
            upstreams.iter().map(String::as_str),
        );
    }
    let mut proxy_protocol = false;
    table.flag("proxy_protocol", &mut proxy_protocol);
    let (listen, upstream) = (listen?, upstream?);
    let stream = TcpStream {
        listen: listen.value,
        upstream: upstream.value.to_owned(),
        proxy_protocol,
    };
    Some(At::new(stream, listen.at))
}

#[cfg(test)]
mod tests;
