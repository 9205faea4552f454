//! `server` lines and their parameters.

use super::HaproxyTranslator;
use super::syntax::HaproxyLine;
use super::values::time;
use crate::draft::DraftTable;
use crate::report::Coverage;
use crate::toml_value::{TomlTable, TomlValue};
use crate::units;

/// Parameters without a value.
const FLAGS: [&str; 19] = [
    "check",
    "no-check",
    "backup",
    "no-backup",
    "ssl",
    "no-ssl",
    "disabled",
    "enabled",
    "send-proxy",
    "send-proxy-v2",
    "no-send-proxy",
    "check-ssl",
    "no-check-ssl",
    "check-send-proxy",
    "stick",
    "non-stick",
    "tfo",
    "no-tls-tickets",
    "agent-check",
];

/// What the servers of a backend say of the backend.
#[derive(Debug, Default)]
pub(super) struct ServerFacts {
    pub(super) is_checked: bool,
    pub(super) health: TomlTable,
}

impl HaproxyTranslator<'_> {
    /// A server as `servers` has it.
    pub(super) fn server(
        &mut self,
        line: &HaproxyLine,
        defaults: &[String],
        facts: &mut ServerFacts,
        upstream: &mut DraftTable,
    ) -> Option<TomlValue> {
        let address = server_address(line.word(2));
        let Some(address) = address else {
            let why = "`servers` has addresses with a port";
            self.leave(line.id, Coverage::ByHand, why, upstream);
            return None;
        };
        let mut own = TomlTable::default();
        let mut left: Vec<String> = Vec::new();
        let mut is_off = false;
        let parameters: Vec<&String> = defaults.iter().chain(line.words.iter().skip(3)).collect();
        let mut at = 0;
        while at < parameters.len() {
            let name = parameters[at].as_str();
            let is_flag = FLAGS.contains(&name);
            let value = if is_flag {
                ""
            } else {
                parameters.get(at + 1).map_or("", |it| it.as_str())
            };
            at += if is_flag { 1 } else { 2 };
            if name == "disabled" {
                is_off = true;
                continue;
            }
            if !server_parameter(name, value, &mut own, facts, &mut upstream.keys) {
                left.push(format!("{name} {value}").trim_end().to_owned());
            }
        }
        if is_off {
            let why = "a server that is off is not in the file. At run time: the admin API";
            self.leave(line.id, Coverage::NotOffered, why, upstream);
            return None;
        }
        match left.is_empty() {
            true => self.log.translated(line.id, "servers"),
            false => {
                let is_http2 = |it: &String| it == "proto h2" || it == "alpn h2";
                let (coverage, because) = match left.iter().any(is_http2) {
                    true => (Coverage::NotOffered, ": servers get HTTP/1.1"),
                    false if left.iter().any(|it| it.starts_with("minconn ")) => (
                        Coverage::ByHand,
                        ": `max_active` does not grow with the load",
                    ),
                    false => (Coverage::ByHand, ""),
                };
                let why = format!(
                    "`servers` has the address; not `{}`{because}",
                    left.join(" ")
                );
                self.leave(line.id, coverage, why, upstream);
            }
        }
        if own.is_empty() {
            return Some(address.into());
        }
        let mut server = TomlTable::with("address", address);
        for (key, value) in own.iter() {
            server.set(key, value.clone());
        }
        Some(server.into())
    }
}

/// Writes one parameter; whether it has a counterpart or needs none.
fn server_parameter(
    name: &str,
    value: &str,
    own: &mut TomlTable,
    facts: &mut ServerFacts,
    upstream: &mut TomlTable,
) -> bool {
    let number = units::number(value);
    match (name, number, time(value)) {
        ("check", ..) => facts.is_checked = true,
        ("no-check", ..) => facts.is_checked = false,
        ("inter", _, Some(time)) => facts.health.set("interval", time),
        ("rise", Some(number @ 1..=1000), _) => facts.health.set("rise", number),
        ("fall", Some(number @ 1..=1000), _) => facts.health.set("fall", number),
        ("weight", Some(1), _) => {}
        ("weight", Some(number @ 2..=65_535), _) => own.set("weight", number),
        ("maxconn", Some(number @ 1..=1_000_000), _) => own.set("max_active", number),
        ("maxconn", Some(0), _) => {}
        ("maxqueue", Some(number @ 1..=10_000_000), _) => {
            upstream.set_in(&["queue", "max"], number);
        }
        ("backup", ..) => own.set("backup", true),
        ("slowstart", _, Some(time)) => upstream.set("slow_start", time),
        ("ssl", ..) => {
            if !upstream.has("tls") {
                upstream.set("tls", true);
            }
        }
        ("verify", ..) if value == "none" => upstream.set_in(&["tls", "verify"], false),
        ("verify", ..) => {}
        ("ca-file", ..) if value.starts_with('@') => {}
        ("ca-file", ..) if upstream.table("tls").is_some_and(|it| it.has("verify")) => {}
        ("ca-file", ..) => upstream.set_in(&["tls", "ca"], value),
        ("verifyhost", ..) => upstream.set_in(&["tls", "server_name"], value),
        ("sni", ..) if value.starts_with("str(") => {
            upstream.set_in(&["tls", "server_name"], value[4..].trim_end_matches(')'));
        }
        ("crt", ..) => upstream.set_in(&["tls", "certificate"], value),
        ("send-proxy", ..) => upstream.set("proxy_protocol", "v1"),
        ("send-proxy-v2", ..) => upstream.set("proxy_protocol", "v2"),
        ("pool-max-conn", Some(number @ 0..=1024), _) => {
            upstream.set_in(&["connections", "soft"], number);
        }
        ("pool-purge-delay", _, Some(time)) => upstream.set_in(&["connections", "ttl"], time),
        ("proto" | "alpn", ..)
            if !value
                .split(',')
                .any(|it| it.starts_with("http/1") || it == "h1") =>
        {
            return false;
        }
        ("proto" | "alpn", ..) => {}
        // Needed for nothing, or built in.
        (
            "cookie" | "id" | "fastinter" | "downinter" | "resolvers" | "init-addr"
            | "resolve-prefer" | "resolve-opts" | "enabled" | "no-ssl" | "no-send-proxy"
            | "check-ssl" | "check-send-proxy" | "check-sni" | "port" | "addr" | "on-marked-down"
            | "on-marked-up" | "observe" | "error-limit" | "on-error" | "check-alpn" | "stick"
            | "non-stick" | "tfo" | "no-backup" | "no-check-ssl" | "no-tls-tickets" | "ssl-min-ver"
            | "ssl-max-ver" | "ciphers" | "ciphersuites",
            ..,
        ) => {}
        _ => return false,
    }
    true
}

/// The address of a server.
pub(super) fn server_address(text: &str) -> Option<String> {
    let text = ["ipv4@", "ipv6@", "tcp@", "tcp4@"]
        .iter()
        .find_map(|it| text.strip_prefix(it))
        .unwrap_or(text);
    if let Some(path) = text
        .strip_prefix("unix@")
        .or_else(|| text.starts_with('/').then_some(text))
    {
        return Some(format!("unix:{path}"));
    }
    let text = &with_braces(text);
    if text.is_empty() || text.contains(['@', '*', ' ', '%', '"']) {
        return None;
    }
    match text.rsplit_once(':') {
        None if text.starts_with("${") => Some(text.clone()),
        Some((host, "")) => Some(format!("{host}:80")),
        Some((_, port)) if port.parse::<u16>().is_ok() => Some(text.clone()),
        Some(_) if text.contains("${") => Some(text.clone()),
        Some(_) => None,
        None => Some(format!("{text}:80")),
    }
}

/// An address with its variables in braces: `$HOST` is `${HOST}` in Penstock.
pub(super) fn with_braces(text: &str) -> String {
    let mut made = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        made.push_str(&rest[..at]);
        let name = rest[at + 1..].trim_start_matches('{');
        let length = name
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(name.len());
        let behind = &name[length..];
        let has_brace = rest[at + 1..].starts_with('{');
        if length == 0 || (has_brace && !behind.starts_with('}')) {
            made.push('$');
            rest = &rest[at + 1..];
            continue;
        }
        made.push_str(&format!("${{{}}}", &name[..length]));
        rest = behind
            .strip_prefix('}')
            .filter(|_| has_brace)
            .unwrap_or(behind);
    }
    made + rest
}
