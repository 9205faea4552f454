//! One `[upstreams.NAME]` table, and the `upstream` table of an application.
//!
//! Called by `parse` for each of the first, and by `app`. The second has the same keys but for
//! those that the application itself says.
//!
//! # Invariants
//! - An `Upstream` of a file has a server that is not a backup, or some may join.
//! - Bounds that are in order, and nothing that its protocol or its balance ignores.

mod servers;
mod tls;

use std::collections::BTreeMap;

use crate::address::is_host;
use crate::findings::LocatedValue;
use crate::grants;
use crate::headers::is_token;
use crate::join;
use crate::model::{
    App, Balance, ConnectionLimits, HashKey, HealthCheck, HostHeader, Protocol, Upstream,
    UpstreamServer,
};
use crate::redacted::Secret;
use crate::section::{Keys as _, Section};

pub(crate) use tls::{is_fingerprint, is_server_name};

/// Reads the table.
pub(crate) fn read(
    name: &LocatedValue<String>,
    table: &Section<'_>,
    apps: &BTreeMap<String, App>,
) -> Upstream {
    let namesake = apps.get(&name.value);
    if namesake.is_some_and(|app| app.upstream.is_some()) {
        let problem = format!(
            "upstream `{}` has the name of an application of kind \"command\" or \"fastcgi\": \
             rename one",
            name.value
        );
        table.report(name.offset, problem);
    }
    let protocol = read_protocol(table);
    let mut joined = false;
    table.read("joinable", &mut joined);
    let servers = servers::read(table, joined);
    let mut upstream = Upstream::new(&name.value, protocol.unwrap_or(Protocol::Http), servers);
    upstream.joinable = joined && protocol == Some(Protocol::Http);
    upstream.join_key = join::read_key(table, "join_key");
    if upstream.join_key.is_some() && !joined {
        table.report_key(
            "join_key",
            "`join_key` is for an upstream that is `joinable`",
        );
    }
    if let Some(queue) = table.table("queue") {
        queue.read("max", &mut upstream.max_queued);
        queue.read("timeout", &mut upstream.queue_timeout);
    }
    if protocol.is_some_and(|protocol| protocol != Protocol::Ajp) {
        table.report_not_applicable("secret");
    }
    upstream.secret = read_ajp_secret(table);
    if protocol.is_some_and(|protocol| protocol != Protocol::Http) {
        table.report_not_applicable("joinable");
    }
    read_shared_keys(table, &mut upstream);
    upstream.tls = tls::read(table, &upstream);
    upstream.grip = grants::read_grip(table, &name.value, apps);
    upstream.sendfile = grants::read_sendfile_and_root(table);
    if upstream.joinable && upstream.proxy_protocol.is_some() {
        let problem = "`proxy_protocol` cannot stand with `joinable`: who joins knows its client";
        table.report_key("proxy_protocol", problem);
    }
    if let Some(protocol) = protocol {
        refuse_keys_of_other_protocols(table, protocol);
    }
    upstream
}

/// Reads the upstream of an application that has a protocol of its own.
pub(crate) fn read_app_upstream(
    app: &App,
    protocol: Protocol,
    table: Option<&Section<'_>>,
) -> Upstream {
    let mut upstream = Upstream::new(&app.name, protocol, Vec::new());
    upstream.max_active = u32::try_from(app.threads).ok();
    if let Some(table) = table {
        read_shared_keys(table, &mut upstream);
        upstream.sendfile = grants::read_sendfile_root(table).unwrap_or_default();
        refuse_keys_of_other_protocols(table, protocol);
    }
    upstream
}

/// Reads the keys that both have, into an upstream that has its servers and its `max_active`.
fn read_shared_keys(table: &Section<'_>, upstream: &mut Upstream) {
    upstream.read_keys(table);
    read_balance(table, upstream);
    upstream.health = table.table("health").map(|health| read_health(&health));
    upstream.connections = read_connections(table, upstream);
    upstream.params = table.env_variables("params");
}

/// None when it was set, and not to be used: already reported.
fn read_protocol(table: &Section<'_>) -> Option<Protocol> {
    match table.get("protocol") {
        None if !table.has("protocol") => Some(Protocol::Http),
        protocol => protocol,
    }
}

fn read_balance(table: &Section<'_>, upstream: &mut Upstream) {
    let key = table.parse_text("key", parse_hash_key);
    let method = table.get("balance");
    let is_hash = method == Some(Balance::Hash);
    upstream.balance = method.unwrap_or(upstream.balance);
    upstream.hash_key = key.map(|key| key.value);
    if is_hash && !table.has("key") {
        table.report_missing("key");
    }
    // An unknown balance was reported, and may have been meant to be `hash`.
    let is_unknown = method.is_none() && table.has("balance");
    if !is_hash && !is_unknown {
        table.report_not_applicable("key");
    }
}

fn parse_hash_key(text: &str) -> Option<HashKey> {
    let name = |name: &str| is_token(name).then(|| name.to_owned());
    match text.split_once(':') {
        Some(("header", header)) => name(header).map(HashKey::Header),
        Some(("cookie", cookie)) => name(cookie).map(HashKey::Cookie),
        Some(_) => None,
        None => match text {
            "path" => Some(HashKey::Path),
            "uri" => Some(HashKey::Uri),
            "client_ip" => Some(HashKey::ClientIp),
            _ => None,
        },
    }
}

fn read_health(table: &Section<'_>) -> HealthCheck {
    let mut health = HealthCheck::default();
    health.read_keys(table);
    if !table.has("path") {
        table.report_not_applicable("status");
    }
    health
}

/// Whether a text can stand in a request line as it is (RFC 9112 §3.2.1).
pub(crate) fn is_origin_form_target(text: &str) -> bool {
    text.starts_with('/') && text.bytes().all(|b| b.is_ascii_graphic() && b != b'#')
}

/// `200` or `200-399`.
pub(crate) fn parse_status_range(text: &str) -> Option<(u16, u16)> {
    let status = |digits: &str| {
        let three = digits.len() == 3 && digits.bytes().all(|b| b.is_ascii_digit());
        let status: u16 = three.then(|| digits.parse().ok())??;
        (100..=599).contains(&status).then_some(status)
    };
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    let (low, high) = (status(low)?, status(high)?);
    (low <= high).then_some((low, high))
}

/// Defaults give way to values that are set: only limits in the file can be out of order.
fn read_connections(table: &Section<'_>, upstream: &Upstream) -> ConnectionLimits {
    let mut limits = ConnectionLimits::default();
    let of_servers = upstream
        .servers
        .iter()
        .filter_map(|server| server.max_active);
    let active = of_servers.chain(upstream.max_active).max().unwrap_or(0);
    let connections = table.table("connections");
    let count = |key: &'static str| connections.as_ref().and_then(|table| table.get::<u32>(key));
    let (min, soft, max) = (count("min").unwrap_or(0), count("soft"), count("max"));
    let highest = limits.max.max(min).max(soft.unwrap_or(0)).max(active);
    limits.min = min;
    limits.max = max.unwrap_or(highest);
    if !keeps_idle_by_default(upstream) {
        limits.max_idle = 0;
    }
    limits.max_idle = soft.unwrap_or_else(|| limits.max_idle.max(min).min(limits.max));
    let Some(connections) = connections else {
        return limits;
    };
    limits.read_keys(&connections);
    let low = ("min", u64::from(min));
    match soft {
        Some(soft) => {
            connections.check_order(low, ("soft", u64::from(soft)));
            connections.check_order(("soft", u64::from(soft)), ("max", u64::from(limits.max)));
        }
        None => connections.check_order(low, ("max", u64::from(limits.max))),
    }
    if let Some(max) = max {
        connections.check_order(("max_active", u64::from(active)), ("max", u64::from(max)));
    }
    limits
}

/// Whether idle connections are kept by default. A FastCGI process serves one connection at a time
/// and waits on a kept one: no more may be kept than there are processes, which only `max_active`
/// says.
fn keeps_idle_by_default(upstream: &Upstream) -> bool {
    let is_bounded = |server: &UpstreamServer| server.max_active.is_some();
    let servers = &upstream.servers;
    upstream.protocol != Protocol::FastCgi
        || upstream.max_active.is_some()
        || (!servers.is_empty() && servers.iter().all(is_bounded))
}

pub(crate) fn parse_host_header(text: &str) -> Option<HostHeader> {
    match text {
        "client" => Some(HostHeader::Client),
        "server" => Some(HostHeader::Server),
        text => is_host(text).then(|| HostHeader::Custom(text.to_owned())),
    }
}

fn refuse_keys_of_other_protocols(table: &Section<'_>, protocol: Protocol) {
    if !matches!(protocol, Protocol::Http | Protocol::Uwsgi) {
        table.report_not_applicable("strict");
    }
    if protocol == Protocol::Http {
        for key in ["root", "index", "params"] {
            table.report_not_applicable(key);
        }
    } else if table.has("index") && !table.has("root") {
        table.report_missing("root");
    }
}

fn read_ajp_secret(table: &Section<'_>) -> Option<Secret> {
    let secret = table.secret("secret")?;
    if !is_ajp_secret(&secret.value) {
        table.report_invalid_secret("secret", secret.offset, "a text");
        return None;
    }
    Some(secret.value.into_owned().into())
}

/// Whether a text can be the secret of an AJP server.
fn is_ajp_secret(text: &str) -> bool {
    !text.is_empty() && !text.contains('\0')
}

/// Whether a text is a path inside a directory, without `.` and `..`.
pub(crate) fn is_script_path(text: &str) -> bool {
    let inside = text.split('/').all(|part| !["", ".", ".."].contains(&part));
    inside && !text.contains(char::is_control)
}

#[cfg(test)]
mod tests;
