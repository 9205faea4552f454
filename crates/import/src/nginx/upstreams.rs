//! `upstream` blocks, and the settings of locations that upstreams have here.
//!
//! nginx sets time-outs and TLS where a request is passed on, Penstock in the upstream. A block that
//! is used with different settings becomes several upstreams.

use super::NginxTranslator;
use super::syntax::NginxDirective;
use crate::draft::{DraftTable, as_name};
use crate::report::Coverage;
use crate::toml_value::{TomlTable, TomlValue};
use crate::units;

/// Where a location passes its requests.
#[derive(Debug, Clone, Default)]
pub(super) struct PassTarget {
    /// The protocol of the upstream.
    pub(super) protocol: &'static str,
    pub(super) has_tls: bool,
    /// The name of an `upstream` block, or an address.
    pub(super) server: String,
    /// The path and query behind the address.
    pub(super) uri: Option<String>,
}

impl PassTarget {
    /// Reads the value of `proxy_pass`, `fastcgi_pass` and the like.
    pub(super) fn parse(directive: &str, value: &str) -> Option<Self> {
        let protocol = match directive {
            "proxy_pass" => "http",
            "fastcgi_pass" => "fastcgi",
            "uwsgi_pass" => "uwsgi",
            "scgi_pass" => "scgi",
            _ => return None,
        };
        let (scheme, rest) = value.split_once("://").unwrap_or(("", value));
        let has_tls = scheme == "https" || scheme == "suwsgi";
        let (server, uri) = match rest.strip_prefix("unix:") {
            Some(path) => {
                let (path, uri) = path
                    .split_once(':')
                    .map_or((path, None), |(a, b)| (a, Some(b)));
                (format!("unix:{path}"), uri.map(str::to_owned))
            }
            None => match rest.find(['/', '?']) {
                Some(at) => (rest[..at].to_owned(), Some(rest[at..].to_owned())),
                None => (rest.to_owned(), None),
            },
        };
        let is_usable = !server.is_empty() && !server.contains('$');
        is_usable.then_some(Self {
            protocol,
            has_tls,
            server,
            uri,
        })
    }

    /// The address with its port.
    pub(super) fn address(&self) -> String {
        let port = match (self.protocol, self.has_tls) {
            ("http", true) => "443",
            ("http", false) => "80",
            _ => return with_port(&self.server, "9000"),
        };
        with_port(&self.server, port)
    }
}

/// An address with a port; `default` where it has none.
pub(crate) fn with_port(server: &str, default: &str) -> String {
    let has_port = match server.rsplit_once(':') {
        _ if server.starts_with("unix:") => true,
        Some((host, port)) => {
            !host.ends_with(':')
                && !port.is_empty()
                && port.bytes().all(|b| b.is_ascii_digit())
                && (!host.contains(':') || host.ends_with(']'))
        }
        None => false,
    };
    match has_port {
        true => server.to_owned(),
        false => format!("{server}:{default}"),
    }
}

impl<'a> NginxTranslator<'a> {
    /// The name of the upstream for a target, with the settings that hold at its location.
    pub(super) fn upstream(&mut self, target: &PassTarget, settings: TomlTable) -> String {
        let base = self.upstream_blocks.get(target.server.as_str()).copied();
        let id = match base {
            Some(_) => target.server.clone(),
            None => target.address(),
        };
        let mut all = TomlTable::default();
        if target.protocol != "http" {
            all.set("protocol", target.protocol);
        }
        for (key, value) in settings.iter() {
            all.set(key, value.clone());
        }
        let known = self.variants.get(&id).into_iter().flatten();
        if let Some((_, name)) = known.into_iter().find(|(known, _)| *known == all) {
            return name.clone();
        }
        let wanted = match base {
            Some(_) => target.server.clone(),
            None => name_of_address(&target.server),
        };
        let name = self.draft.upstreams.free_name(&wanted);
        let mut table = DraftTable::default();
        match base {
            Some(block) => self.upstream_block(block, target, &mut table),
            None => table.keys.set("servers", vec![target.address()]),
        }
        for (key, value) in all.iter() {
            table.keys.set(key, value.clone());
        }
        *self.draft.upstreams.table_mut(&name) = table;
        let variants = self.variants.entry(id).or_default();
        variants.push((all, name.clone()));
        name
    }

    /// Writes the blocks that no location uses.
    pub(super) fn finish_upstreams(&mut self) {
        let blocks: Vec<(String, &'a NginxDirective)> = self
            .upstream_blocks
            .iter()
            .map(|(name, block)| (name.clone(), *block))
            .collect();
        for (name, _) in blocks {
            if self.variants.contains_key(&name) {
                continue;
            }
            let target = PassTarget {
                protocol: "http",
                server: name,
                ..PassTarget::default()
            };
            let name = self.upstream(&target, TomlTable::default());
            self.draft
                .upstreams
                .table_mut(&name)
                .comment("no translated location uses it");
        }
    }

    fn upstream_block(
        &mut self,
        block: &NginxDirective,
        target: &PassTarget,
        table: &mut DraftTable,
    ) {
        self.log.translated(block.id, "[upstreams.NAME]");
        let default_port = if target.has_tls { "443" } else { "80" };
        let mut servers: Vec<TomlValue> = Vec::new();
        for directive in block.children() {
            match directive.name.as_str() {
                "server" => servers.extend(self.upstream_server(directive, default_port, table)),
                "least_conn" => self.balance(directive, "least_active", table),
                "random" => self.balance(directive, "random_two", table),
                "least_time" => self.balance(directive, "idle_first", table),
                "ip_hash" => {
                    self.balance(directive, "hash", table);
                    table.keys.set("key", "client_ip");
                }
                "hash" => self.hash(directive, table),
                "keepalive" => {
                    if let Some(number) =
                        units::number(directive.arg(0)).filter(|it| *it <= 1_000_000)
                    {
                        table.keys.set_in(&["connections", "soft"], number);
                        if number > 1024 {
                            table.keys.set_in(&["connections", "max"], number);
                        }
                        self.log.translated(directive.id, "connections.soft");
                    }
                }
                "keepalive_timeout" => {
                    if let Some(time) =
                        units::duration(directive.arg(0), "s").filter(|it| !it.starts_with('0'))
                    {
                        table.keys.set_in(&["connections", "ttl"], time);
                        self.log.translated(directive.id, "connections.ttl");
                    }
                }
                "sticky" if directive.arg(0) == "cookie" && !directive.arg(1).is_empty() => {
                    table.keys.set("sticky", directive.arg(1));
                    self.log.translated(directive.id, "sticky");
                }
                "queue" => {
                    if let Some(number) = units::number(directive.arg(0)) {
                        table.keys.set_in(&["queue", "max"], number);
                        let timeout = directive.arg(1).strip_prefix("timeout=");
                        if let Some(time) = timeout.and_then(|it| units::duration(it, "s")) {
                            table.keys.set_in(&["queue", "timeout"], time);
                        }
                        self.log.translated(directive.id, "queue");
                    }
                }
                _ => {}
            }
        }
        if servers.is_empty() {
            table.comment("nginx knows no server of it: write the addresses");
            servers.push("127.0.0.1:1".into());
        }
        if servers.len() > 1 && !table.keys.has("balance") {
            table.keys.set("balance", "round_robin");
        }
        let rest = std::mem::take(&mut table.keys);
        table.keys.set("servers", servers);
        for (key, value) in rest.iter() {
            table.keys.set(key, value.clone());
        }
        self.leave_rest(block.children(), table);
    }

    fn balance(&mut self, directive: &NginxDirective, name: &str, table: &mut DraftTable) {
        table.keys.set("balance", name);
        self.log.translated(directive.id, "balance");
    }

    fn hash(&mut self, directive: &NginxDirective, table: &mut DraftTable) {
        let key = match directive.arg(0) {
            "$request_uri" => "uri".to_owned(),
            "$uri" => "path".to_owned(),
            "$remote_addr" | "$binary_remote_addr" => "client_ip".to_owned(),
            text => match (text.strip_prefix("$http_"), text.strip_prefix("$cookie_")) {
                (Some(field), _) => format!("header:{}", super::values::field_name(field)),
                (_, Some(cookie)) => format!("cookie:{cookie}"),
                _ => return,
            },
        };
        self.balance(directive, "hash", table);
        table.keys.set("key", key);
    }

    fn upstream_server(
        &mut self,
        directive: &NginxDirective,
        port: &str,
        table: &mut DraftTable,
    ) -> Option<TomlValue> {
        let address = directive.arg(0);
        if address.is_empty() || address.contains('$') {
            return None;
        }
        let mut address = with_port(address, port);
        let mut own = TomlTable::default();
        let mut left = Vec::new();
        for parameter in directive.args.iter().skip(1) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            match (name, units::number(value)) {
                ("weight", Some(weight @ 1..=65_535)) => {
                    if weight != 1 {
                        own.set("weight", weight);
                    }
                }
                ("backup", _) => own.set("backup", true),
                ("max_conns", Some(number @ 1..=1_000_000)) => own.set("max_active", number),
                ("max_conns", Some(0)) | ("resolve", _) | ("max_fails", Some(1)) => {}
                ("max_fails", Some(number)) => {
                    table
                        .keys
                        .set_in(&["eject", "max_failures"], number.min(1_000_000));
                }
                ("fail_timeout", _) => match units::duration(value, "s") {
                    Some(time) if time.starts_with('0') => {
                        table.keys.set_in(&["eject", "max_failures"], 0);
                    }
                    Some(time) => table.keys.set_in(&["eject", "duration"], time),
                    None => left.push(parameter.clone()),
                },
                ("slow_start", _) => match units::duration(value, "s") {
                    Some(time) => table.keys.set("slow_start", time),
                    None => left.push(parameter.clone()),
                },
                ("service", _) => {
                    let host = address.split(':').next().unwrap_or_default().to_owned();
                    address = match value.contains('.') {
                        true => format!("srv:{value}.{host}"),
                        false => format!("srv:_{value}._tcp.{host}"),
                    };
                }
                ("down" | "drain", _) => {
                    let why = "a server that is off is not in the file. At run time: the admin API";
                    self.leave(directive.id, Coverage::NotOffered, why, table);
                    return None;
                }
                _ => left.push(parameter.clone()),
            }
        }
        match left.is_empty() {
            true => self.log.translated(directive.id, "servers"),
            false => {
                let why = format!("`servers` has the address; not `{}`", left.join(" "));
                self.leave(directive.id, Coverage::ByHand, why, table);
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

/// The name of an upstream for an address.
fn name_of_address(server: &str) -> String {
    let stem = match server.strip_prefix("unix:") {
        Some(path) => path
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .trim_end_matches(".sock"),
        None => server
            .trim_start_matches("127.0.0.1")
            .trim_start_matches("localhost"),
    };
    let stem = stem.trim_matches([':', '[', ']', '.']);
    let name = as_name(stem);
    match name.starts_with(|c: char| c.is_ascii_digit()) {
        true => format!("server-{name}"),
        false => name,
    }
}
