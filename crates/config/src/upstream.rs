//! One `[upstreams.NAME]` table, and the `upstream` table of an application.
//!
//! Called by `parse` for each of the first, and by `app`. The second has the same keys but for those
//! that the application itself says. What must stay true: an `Upstream` of a file has a server that is
//! not a backup, or some may join; bounds that are in order, and nothing that its protocol or its balance ignores.

mod servers;

use std::collections::BTreeMap;

use crate::address::is_host;
use crate::error::Problem;
use crate::grants;
use crate::headers::is_token;
use crate::join;
use crate::model::{
    App, Balance, Connections, Forwarded, HashKey, Health, HostHeader, Protocol, ProxyProtocol,
    Upstream, UpstreamServer,
};
use crate::place::At;
use crate::section::Section;

/// Reads the table.
pub(crate) fn read(
    name: &At<String>,
    table: &Section<'_>,
    apps: &BTreeMap<String, App>,
) -> Upstream {
    let namesake = apps.get(&name.value);
    if namesake.is_some_and(|app| app.upstream.is_some()) {
        table.add(name.at, Problem::NamedLikeApp(name.value.clone()));
    }
    let protocol = read_protocol(table);
    let mut joined = false;
    table.flag("joined", &mut joined);
    let servers = servers::read(table, joined);
    let mut upstream = Upstream::new(&name.value, protocol.unwrap_or(Protocol::Http), servers);
    upstream.joined = joined && protocol == Some(Protocol::Http);
    upstream.join_key = join::read_key(table, "join_key");
    if upstream.join_key.is_some() && !joined {
        table.add(table.key_at(&["join_key"]), Problem::KeyOfNoJoin);
    }
    upstream.max_active = table.count_said("max_active");
    if let Some(queue) = table.table("queue") {
        queue.count("max", &mut upstream.queue_max);
        queue.duration("timeout", &mut upstream.queue_timeout);
    }
    table.duration("response_timeout", &mut upstream.response_timeout);
    table.duration("resolve_interval", &mut upstream.resolve_interval);
    let secret = table.parsed("secret", |text| {
        (!text.is_empty() && !text.contains('\0')).then(|| text.to_owned())
    });
    upstream.secret = secret.map(|secret| secret.value);
    if protocol.is_some_and(|protocol| protocol != Protocol::Ajp) {
        table.refuse("secret");
    }
    if protocol.is_some_and(|protocol| protocol != Protocol::Http) {
        table.refuse("joined");
    }
    read_shared(table, &mut upstream);
    upstream.grip = grants::read_grip(table, &name.value, apps);
    upstream.sendfile = grants::read_sendfile_and_root(table);
    if upstream.joined && upstream.proxy_protocol.is_some() {
        table.add(table.key_at(&["proxy_protocol"]), Problem::ProxyToJoined);
    }
    if let Some(protocol) = protocol {
        refuse_unfit(table, protocol);
    }
    upstream
}

/// Reads the upstream of an application that has a protocol of its own.
pub(crate) fn read_of_app(app: &App, protocol: Protocol, table: Option<&Section<'_>>) -> Upstream {
    let mut upstream = Upstream::new(&app.name, protocol, Vec::new());
    upstream.max_active = u32::try_from(app.threads).ok();
    if let Some(table) = table {
        read_shared(table, &mut upstream);
        upstream.sendfile = grants::read_sendfile_root(table).unwrap_or_default();
        refuse_unfit(table, protocol);
    }
    upstream
}

/// Reads the keys that both have, into an upstream that has its servers and its `max_active`.
fn read_shared(table: &Section<'_>, upstream: &mut Upstream) {
    read_balance(table, upstream);
    read_timeouts(table, upstream);
    read_failures(table, upstream);
    upstream.connections = read_connections(table, upstream);
    let host = table.parsed("host", host);
    if let Some(host) = host {
        upstream.host = host.value;
    }
    upstream.forwarded = match table.word("forwarded").map(|word| word.value) {
        Some("rfc7239") => Forwarded::Standard,
        Some("both") => Forwarded::Both,
        Some("off") => Forwarded::Off,
        _ => Forwarded::XForwarded,
    };
    table.flag("strict", &mut upstream.strict);
    table.flag("request_buffering", &mut upstream.request_buffering);
    table.flag("response_buffering", &mut upstream.response_buffering);
    upstream.proxy_protocol = table.word("proxy_protocol").map(|word| match word.value {
        "v1" => ProxyProtocol::V1,
        _ => ProxyProtocol::V2,
    });
    read_gateway(table, upstream);
}

/// None when it was said, and not to be used: already reported.
fn read_protocol(table: &Section<'_>) -> Option<Protocol> {
    let word = table.word("protocol");
    if word.is_none() && table.has("protocol") {
        return None;
    }
    Some(match word.map(|word| word.value) {
        Some("fastcgi") => Protocol::FastCgi,
        Some("scgi") => Protocol::Scgi,
        Some("uwsgi") => Protocol::Uwsgi,
        Some("ajp") => Protocol::Ajp,
        _ => Protocol::Http,
    })
}

fn read_balance(table: &Section<'_>, upstream: &mut Upstream) {
    let key = table.parsed("key", hash_key);
    let word = table.word("balance").map(|word| word.value);
    upstream.balance = match word {
        Some("round_robin") => Balance::RoundRobin,
        Some("least_active") => Balance::LeastActive,
        Some("random_two") => Balance::RandomTwo,
        _ => Balance::IdleFirst,
    };
    match (word, key) {
        (Some("hash"), Some(key)) => upstream.balance = Balance::Hash(key.value),
        (Some("hash"), None) if !table.has("key") => table.missing("key"),
        (Some("hash"), None) => {}
        // A balance that is no word was reported, and may have been meant to be `hash`.
        (None, _) if table.has("balance") => {}
        _ => table.refuse("key"),
    }
    let sticky = table.parsed("sticky", |text| is_token(text).then(|| text.to_owned()));
    upstream.sticky = sticky.map(|cookie| cookie.value);
}

fn hash_key(text: &str) -> Option<HashKey> {
    let name = |name: &str| is_token(name).then(|| name.to_owned());
    match text.split_once(':') {
        Some(("header", header)) => name(header).map(HashKey::Header),
        Some(("cookie", cookie)) => name(cookie).map(HashKey::Cookie),
        Some(_) => None,
        None => match text {
            "path" => Some(HashKey::Path),
            "target" => Some(HashKey::Target),
            "client" => Some(HashKey::Client),
            _ => None,
        },
    }
}

fn read_timeouts(table: &Section<'_>, upstream: &mut Upstream) {
    table.duration("connect_timeout", &mut upstream.connect_timeout);
    table.duration("stall_timeout", &mut upstream.stall_timeout);
    upstream.total_timeout = table.duration_said("total_timeout");
    table.duration("tunnel_timeout", &mut upstream.tunnel_timeout);
    table.duration("slow_start", &mut upstream.slow_start);
}

fn read_failures(table: &Section<'_>, upstream: &mut Upstream) {
    if let Some(retry) = table.table("retry") {
        retry.count("attempts", &mut upstream.retry.attempts);
        retry.fraction("budget", &mut upstream.retry.budget);
    }
    if let Some(eject) = table.table("eject") {
        eject.count("failures", &mut upstream.eject.failures);
        eject.duration("time", &mut upstream.eject.time);
    }
    upstream.health = table.table("health").map(|health| read_health(&health));
}

fn read_health(table: &Section<'_>) -> Health {
    let mut health = Health::default();
    let path = table.parsed("path", |text| is_target(text).then(|| text.to_owned()));
    health.path = path.map(|path| path.value);
    if let Some(status) = table.parsed("status", statuses) {
        health.status = status.value;
    }
    if !table.has("path") {
        table.refuse("status");
    }
    table.duration("interval", &mut health.interval);
    table.duration("timeout", &mut health.timeout);
    table.count("rise", &mut health.rise);
    table.count("fall", &mut health.fall);
    health
}

/// Whether a text can stand in a request line as it is (RFC 9112 §3.2.1).
fn is_target(text: &str) -> bool {
    text.starts_with('/') && text.bytes().all(|b| b.is_ascii_graphic() && b != b'#')
}

/// `200` or `200-399`.
fn statuses(text: &str) -> Option<(u16, u16)> {
    let status = |digits: &str| {
        let three = digits.len() == 3 && digits.bytes().all(|b| b.is_ascii_digit());
        let status: u16 = three.then(|| digits.parse().ok())??;
        (100..=599).contains(&status).then_some(status)
    };
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    let (low, high) = (status(low)?, status(high)?);
    (low <= high).then_some((low, high))
}

/// What is not said gives way to what is: only bounds that were written can be out of order.
fn read_connections(table: &Section<'_>, upstream: &Upstream) -> Connections {
    let mut bounds = Connections::default();
    let of_servers = upstream
        .servers
        .iter()
        .filter_map(|server| server.max_active);
    let active = of_servers.chain(upstream.max_active).max().unwrap_or(0);
    let said = table.table("connections");
    let count = |key| said.as_ref().and_then(|table| table.count_said::<u32>(key));
    let (min, soft, max) = (count("min").unwrap_or(0), count("soft"), count("max"));
    let highest = bounds.max.max(min).max(soft.unwrap_or(0)).max(active);
    bounds.min = min;
    bounds.max = max.unwrap_or(highest);
    if !keeps_by_default(upstream) {
        bounds.soft = 0;
    }
    bounds.soft = soft.unwrap_or_else(|| bounds.soft.max(min).min(bounds.max));
    let Some(said) = said else { return bounds };
    said.duration("ttl", &mut bounds.ttl);
    let low = ("min", u64::from(min));
    match soft {
        Some(soft) => {
            said.check_order(low, ("soft", u64::from(soft)));
            said.check_order(("soft", u64::from(soft)), ("max", u64::from(bounds.max)));
        }
        None => said.check_order(low, ("max", u64::from(bounds.max))),
    }
    if let Some(max) = max {
        said.check_order(("max_active", u64::from(active)), ("max", u64::from(max)));
    }
    bounds
}

/// Whether connections are kept when nothing is said. A FastCGI process serves one connection at a time and
/// waits on a kept one: no more may be kept than there are processes, which only `max_active` says.
fn keeps_by_default(upstream: &Upstream) -> bool {
    let is_bounded = |server: &UpstreamServer| server.max_active.is_some();
    let servers = &upstream.servers;
    upstream.protocol != Protocol::FastCgi
        || upstream.max_active.is_some()
        || (!servers.is_empty() && servers.iter().all(is_bounded))
}

fn host(text: &str) -> Option<HostHeader> {
    match text {
        "client" => Some(HostHeader::Client),
        "server" => Some(HostHeader::Server),
        text => is_host(text).then(|| HostHeader::Text(text.to_owned())),
    }
}

/// What only a protocol with an environment carries.
fn read_gateway(table: &Section<'_>, upstream: &mut Upstream) {
    upstream.root = table.path("root").map(|root| root.value);
    let index = table.parsed("index", |text| is_script(text).then(|| text.to_owned()));
    upstream.index = index.map(|index| index.value);
    upstream.params = table.variables("params");
}

fn refuse_unfit(table: &Section<'_>, protocol: Protocol) {
    if !matches!(protocol, Protocol::Http | Protocol::Uwsgi) {
        table.refuse("strict");
    }
    if protocol == Protocol::Http {
        for key in ["root", "index", "params"] {
            table.refuse(key);
        }
    } else if table.has("index") && !table.has("root") {
        table.missing("root");
    }
}

fn is_script(text: &str) -> bool {
    let inside = text.split('/').all(|part| !["", ".", ".."].contains(&part));
    inside && !text.contains(char::is_control)
}

#[cfg(test)]
mod tests;
