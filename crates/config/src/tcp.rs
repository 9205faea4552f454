//! The `[[tcp]]` tables: TCP listeners in front of upstreams.
//!
//! Called by `parse` after upstreams, because listeners name them.
//!
//! `server` checks their addresses, once it is known whether the server has a listener of its own.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::findings::LocatedValue;
use crate::model::{TcpFrontend, TcpTls, Upstream};
use crate::route::check_name_exists;
use crate::section::{Keys as _, Section};
use crate::values::{HostPattern, ListenAddr};
use crate::{server, tls};

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
        check_upstreams(&table, &stream.value, upstreams);
        streams.push(stream);
    }
    streams
}

/// Reports upstreams that no stream can lead to.
fn check_upstreams(
    table: &Section<'_>,
    stream: &TcpFrontend,
    upstreams: &BTreeMap<String, Upstream>,
) {
    let by_name = stream.sni.iter().map(|(_, name)| ("sni", name));
    let default = stream.upstream.iter().map(|name| ("upstream", name));
    for (key, name) in by_name.chain(default) {
        let Some(upstream) = upstreams.get(name) else {
            continue;
        };
        if upstream.joinable {
            let problem = format!("upstream `{name}` is `joinable`: no stream can lead there");
            table.report_key(key, problem);
        }
        if upstream.tls.is_some() && !stream.sni.is_empty() && stream.tls == TcpTls::Off {
            let problem = format!(
                "upstream `{name}` has `tls`, and with `sni` the clients' own TLS is passed on: \
                 remove one of them"
            );
            table.report_key(key, problem);
        }
    }
}

/// Reads `sni`: a pattern once, and upstreams that exist.
fn read_sni(table: &Section<'_>, upstreams: &[String]) -> Vec<(HostPattern, String)> {
    let mut routes: Vec<(HostPattern, String)> = Vec::new();
    for (host, upstream) in table.string_map("sni") {
        let pattern = HostPattern::parse(&host).filter(|_| host.parse::<IpAddr>().is_err());
        let Some(pattern) = pattern.filter(|pattern| !pattern.to_string().starts_with('[')) else {
            table.report_invalid_item("sni", &host, upstream.offset, SNI_EXPECTED);
            continue;
        };
        if routes.iter().any(|(known, _)| *known == pattern) {
            table.report(upstream.offset, format!("`sni` names {pattern} twice"));
        }
        let named = LocatedValue::new(upstream.value.as_str(), upstream.offset);
        let known = upstreams.iter().map(String::as_str);
        check_name_exists(table, "upstream", &named, known);
        routes.push((pattern, upstream.value));
    }
    routes
}

/// What `sni` wants as its keys; clients ask for no addresses (RFC 6066 §3).
const SNI_EXPECTED: &str = "a host name such as \"a.example\" or \"*.b.example\"";

/// Whether a text can be a protocol of ALPN (RFC 7301 §3.1). That of challenges is no service.
pub(crate) fn is_alpn_protocol(text: &str) -> bool {
    (1..=255).contains(&text.len()) && text != "acme-tls/1"
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
    if !table.has("upstream") && !table.has("sni") {
        table.report_missing("upstream");
    }
    // The address is replaced below; a wrong one was reported.
    let mut frontend = TcpFrontend::new(ListenAddr::loopback(0));
    frontend.read_keys(table);
    frontend.upstream = upstream.map(|upstream| upstream.value.to_owned());
    frontend.sni = read_sni(table, upstreams);
    tls::read_tcp(table, &mut frontend);
    let listen = listen?;
    frontend.listen = listen.value;
    Some(LocatedValue::new(frontend, listen.offset))
}

#[cfg(test)]
mod tests;
