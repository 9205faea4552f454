//! The `[[tcp]]` tables: TCP listeners in front of upstreams.
//!
//! Called by `parse` after upstreams, because listeners name them.
//!
//! `server` checks their addresses, once it is known whether the server has a listener of its own.

use std::collections::BTreeMap;

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
    let mut streams = Vec::new();
    for table in top.tables("tcp") {
        let Some(stream) = read_one(&table, names) else {
            continue;
        };
        let name = &stream.value.upstream;
        if upstreams.get(name).is_some_and(|it| it.joinable) {
            let problem = format!("upstream `{name}` is `joinable`: no stream can lead there");
            table.report_key("upstream", problem);
        }
        streams.push(stream);
    }
    streams
}

fn read_one(table: &Section<'_>, upstreams: &[String]) -> Option<LocatedValue<TcpFrontend>> {
    let listen = server::read_listen_addr(table, "listen");
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
