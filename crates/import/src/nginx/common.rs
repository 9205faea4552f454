//! Directives that nginx has for each block, and Penstock once for all sites; logs.

use super::NginxTranslator;
use super::scope::NginxScope;
use super::syntax::NginxDirective;
use super::values;
use crate::report::Coverage;
use crate::toml_value::{TomlTable, TomlValue};
use crate::units;

impl NginxTranslator<'_> {
    /// Settings of `[limits]`, `[tls]` and `[server]`, from a block of any level.
    pub(super) fn common_settings(&mut self, directives: &[NginxDirective]) {
        for directive in directives {
            let value = directive.arg(0);
            match directive.name.as_str() {
                "keepalive_timeout" => match units::duration(value, "s").as_deref() {
                    Some("0s" | "0ms") => {
                        let why = "connections are kept; `limits.idle_timeout` may be short";
                        self.log.note(directive.id, Coverage::NotOffered, why);
                    }
                    time => self.limit(directive, "idle_timeout", time.map(Into::into)),
                },
                "client_header_timeout" => self.time_limit(directive, "header_timeout"),
                "client_body_timeout" | "send_timeout" => {
                    self.time_limit(directive, "body_idle_timeout");
                }
                "ssl_handshake_timeout" => self.time_limit(directive, "tls_handshake_timeout"),
                "client_body_buffer_size" => {
                    let size = units::size(value).map(Into::into);
                    self.limit(directive, "body_memory", size);
                }
                "client_body_temp_path" => {
                    self.limit(directive, "temp_dir", Some(value.into()));
                }
                "client_header_buffer_size" => {
                    let why = "buffers grow with the head, up to `limits.header_bytes`";
                    self.log.note(directive.id, Coverage::BuiltIn, why);
                }
                "large_client_header_buffers" => self.header_buffers(directive),
                "charset" | "default_type" => {
                    let why = "text has utf-8, other endings \"application/octet-stream\"";
                    self.log.note(directive.id, Coverage::BuiltIn, why);
                }
                "set_real_ip_from" => self.trusted_proxy(directive),
                "real_ip_header" => self.client_address(directive),
                "ssl_protocols" => {
                    let is_modern = directive.args.iter().all(|version| version == "TLSv1.3");
                    if is_modern {
                        self.draft.tls.keys.set("profile", "modern");
                    }
                    let key = if is_modern {
                        "tls.profile"
                    } else {
                        "tls.profile = \"intermediate\""
                    };
                    self.log.translated(directive.id, key);
                }
                "http2" | "http3" | "http3_hq" => {
                    let why = "clients have HTTP/1.1. Put a proxy in front that speaks HTTP/2";
                    self.log.note(directive.id, Coverage::NotOffered, why);
                }
                "ssl_reject_handshake" if value == "on" => {
                    self.draft.tls.keys.set("unknown_names", "refuse");
                    self.log.translated(directive.id, "tls.unknown_names");
                }
                _ => {}
            }
        }
    }

    fn time_limit(&mut self, directive: &NginxDirective, key: &str) {
        let time = units::duration(directive.arg(0), "s");
        let time = time.filter(|time| !time.starts_with('0'));
        self.limit(directive, key, time.map(Into::into));
    }

    /// Sets a key of `[limits]`. Of several values the first counts, and the others are comments.
    fn limit(&mut self, directive: &NginxDirective, key: &str, value: Option<TomlValue>) {
        let Some(value) = value else { return };
        match self.draft.limits.keys.get(key) {
            Some(known) if *known != value => {
                let why = format!("`limits.{key}` is one for all sites, and has another value");
                let comment = self.log.leave(directive.id, Coverage::ByHand, why);
                self.draft.limits.comment(comment);
            }
            _ => {
                self.draft.limits.keys.set(key, value);
                self.log.translated(directive.id, &format!("limits.{key}"));
            }
        }
    }

    fn header_buffers(&mut self, directive: &NginxDirective) {
        let (count, size) = (
            units::number(directive.arg(0)),
            units::bytes(directive.arg(1)),
        );
        let (Some(count), Some(size)) = (count, size) else {
            return;
        };
        let total = count.saturating_mul(size).clamp(256, 1 << 30);
        self.limit(
            directive,
            "header_bytes",
            Some(penstock_config::format_size(total).into()),
        );
        let target = size.clamp(64, total);
        self.limit(
            directive,
            "target_bytes",
            Some(penstock_config::format_size(target).into()),
        );
    }

    fn trusted_proxy(&mut self, directive: &NginxDirective) {
        let network = match directive.arg(0) {
            "unix:" => "unix",
            network if is_network(network) => network,
            _ => return,
        };
        self.draft.server.keys.push("trusted_proxies", network);
        self.log.translated(directive.id, "server.trusted_proxies");
    }

    fn client_address(&mut self, directive: &NginxDirective) {
        match directive.arg(0) {
            "proxy_protocol" => self
                .log
                .translated(directive.id, "proxy_protocol of the listener"),
            "X-Forwarded-For" | "X-Real-IP" => {
                self.log
                    .note(directive.id, Coverage::BuiltIn, "both fields are read");
            }
            field => {
                self.draft.server.keys.set("client_address", field);
                self.log.translated(directive.id, "server.client_address");
            }
        }
    }

    /// `access_log` of `http`.
    pub(super) fn access_log(&mut self, scope: &NginxScope<'_>) {
        let logs = scope.own_named("access_log").to_vec();
        for (index, directive) in logs.into_iter().enumerate() {
            let Some(value) = self.log_value(directive) else {
                continue;
            };
            if index == 0 {
                self.draft.server.keys.set("access_log", value);
                self.log.translated(directive.id, "server.access_log");
            } else if let TomlValue::Table(table) = value {
                let name = self.draft.access_logs.free_name("extra");
                self.draft.access_logs.table_mut(&name).keys = table;
                self.log
                    .translated(directive.id, &format!("access_logs.{name}"));
            }
        }
    }

    /// `access_log` of a server: a log of its own.
    pub(super) fn site_access_logs(
        &mut self,
        scope: &NginxScope<'_>,
        first_unlogged: usize,
        site: &mut TomlTable,
    ) {
        let logs = scope.own_named("access_log").to_vec();
        if logs.is_empty() {
            return;
        }
        // Its locations without a log are those of its own logs.
        let unlogged = self
            .unlogged
            .split_off(first_unlogged.min(self.unlogged.len()));
        let mut names: Vec<String> = Vec::new();
        for directive in logs {
            self.log.translated(directive.id, "access_logs of the site");
            let Some(TomlValue::Table(mut table)) = self.log_value(directive) else {
                continue;
            };
            if !unlogged.is_empty() {
                table.set_in(&["match", "not", "path"], without_repetitions(&unlogged));
            }
            let known = self.draft.access_logs.iter();
            let same = known
                .filter(|(_, it)| it.keys == table)
                .map(|(name, _)| name.to_owned())
                .next();
            names.push(same.unwrap_or_else(|| {
                let stem = table
                    .get("path")
                    .map(ToString::to_string)
                    .unwrap_or_default();
                let stem = stem
                    .trim_matches('"')
                    .rsplit('/')
                    .next()
                    .unwrap_or_default()
                    .to_owned();
                let name = self.draft.access_logs.free_name(&stem.replace('.', "-"));
                self.draft.access_logs.table_mut(&name).keys = table;
                name
            }));
        }
        site.set("access_logs", names);
    }

    /// The table of a log, or `"off"`.
    fn log_value(&mut self, directive: &NginxDirective) -> Option<TomlValue> {
        let path = match directive.arg(0) {
            "off" => return Some("off".into()),
            "/dev/stdout" => "stdout".to_owned(),
            "/dev/stderr" => "stderr".to_owned(),
            "/dev/null" => return Some("off".into()),
            path if path.starts_with("syslog:") => syslog_target(path),
            path if path.contains('$') => {
                let why = "the path of a log has no variables";
                let comment = self.log.leave(directive.id, Coverage::ByHand, why);
                self.draft.server.comment(comment);
                return None;
            }
            path => path.to_owned(),
        };
        let mut table = TomlTable::with("path", path);
        match directive.arg(1) {
            "" | "main" | "combined" => {}
            format if format.to_ascii_lowercase().contains("json") => table.set("format", "json"),
            format if !format.contains('=') => self.draft.server.comment(format!(
                "{}: the format `{format}` is written by hand: `format` of the log",
                self.log.place(directive.id)
            )),
            _ => {}
        }
        Some(table.into())
    }

    /// Notes that requests of a path are not logged.
    pub(super) fn leave_unlogged(&mut self, directive: &NginxDirective, path: Option<String>) {
        match path {
            Some(path) => {
                self.unlogged.push(path);
                self.log
                    .translated(directive.id, "match of server.access_log");
            }
            None => self.log.note(
                directive.id,
                Coverage::ByHand,
                "`access_log.match` chooses the requests that are logged",
            ),
        }
    }

    /// Leaves the unlogged paths out of the log.
    pub(super) fn finish_access_log(&mut self) {
        let paths = std::mem::take(&mut self.unlogged);
        let Some(TomlValue::Table(mut table)) = self.draft.server.keys.get("access_log").cloned()
        else {
            return;
        };
        if !paths.is_empty() {
            table.set_in(&["match", "not", "path"], without_repetitions(&paths));
        }
        self.draft.server.keys.set("access_log", table);
    }
}

fn without_repetitions(paths: &[String]) -> Vec<String> {
    let mut seen = std::collections::BTreeSet::new();
    let paths = paths.iter().filter(|path| seen.insert(*path));
    paths.cloned().collect()
}

/// Whether a text is an address or a network.
pub(super) fn is_network(text: &str) -> bool {
    let (address, bits) = text
        .split_once('/')
        .map_or((text, None), |(a, b)| (a, Some(b)));
    let Ok(address) = address.parse::<std::net::IpAddr>() else {
        return false;
    };
    let most = if address.is_ipv4() { 32 } else { 128 };
    bits.is_none_or(|bits| bits.parse::<u8>().is_ok_and(|bits| bits <= most))
}

fn syslog_target(text: &str) -> String {
    let server = text.split([':', ',']).skip(1).collect::<Vec<_>>().join(":");
    let server = server.split("server=").nth(1).unwrap_or("unix:/dev/log");
    let mut parts = server.split(':');
    match (parts.next(), parts.next()) {
        (Some("unix"), Some(path)) => format!("syslog:unix:{path}"),
        (Some(host), Some(port))
            if host.parse::<std::net::IpAddr>().is_ok() && port.parse::<u16>().is_ok() =>
        {
            format!("syslog:{host}:{port}")
        }
        (Some(host), _) if host.parse::<std::net::IpAddr>().is_ok() => format!("syslog:{host}:514"),
        _ => "syslog".to_owned(),
    }
}

/// Most constants of `set` that are known at a place.
const MAX_CONSTANTS: usize = 200;

/// Constants of `set` that hold at a place.
pub(super) fn constants(scope: &NginxScope<'_>) -> values::Constants {
    let sets = scope.everywhere("set");
    let nearest = sets.len().saturating_sub(MAX_CONSTANTS);
    let plain = sets[nearest..]
        .iter()
        .filter(|it| it.args.len() == 2 && !it.arg(1).contains('$'));
    let pairs = plain.map(|it| {
        (
            it.arg(0).trim_start_matches('$').to_owned(),
            it.arg(1).to_owned(),
        )
    });
    pairs.collect()
}
