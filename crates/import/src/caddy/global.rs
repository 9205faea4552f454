//! Global options.

use super::CaddyTranslator;
use super::placeholders::environment;
use super::syntax::CaddyDirective;
use crate::report::Coverage;
use crate::toml_value::{TomlTable, TomlValue};
use crate::units;

/// Options that sites depend on.
#[derive(Debug)]
pub(super) struct GlobalOptions {
    pub(super) http_port: String,
    pub(super) https_port: String,
    /// Addresses that listeners are bound to.
    pub(super) default_bind: Vec<String>,
    /// Whether sites with names have no certificates.
    pub(super) has_no_https: bool,
    pub(super) has_no_redirects: bool,
    pub(super) has_local_certificates: bool,
}

impl Default for GlobalOptions {
    fn default() -> Self {
        Self {
            http_port: "80".to_owned(),
            https_port: "443".to_owned(),
            default_bind: Vec::new(),
            has_no_https: false,
            has_no_redirects: false,
            has_local_certificates: false,
        }
    }
}

impl CaddyTranslator<'_> {
    /// Translates the block of global options.
    pub(super) fn global_options(&mut self, options: &[CaddyDirective]) {
        for option in options {
            self.global_option(option);
        }
        let mut table = std::mem::take(&mut self.draft.server);
        self.leave_rest(options, &mut table);
        self.draft.server = table;
    }

    fn global_option(&mut self, option: &CaddyDirective) {
        let value = environment(option.arg(0));
        let id = option.id;
        match option.name.as_str() {
            "http_port" => self.options.http_port = value,
            "https_port" => self.options.https_port = value,
            "default_bind" => {
                self.options.default_bind = option.args.iter().map(|it| environment(it)).collect();
            }
            "auto_https" => {
                self.options.has_no_https |= option.args.iter().any(|it| it == "off");
                self.options.has_no_redirects |= option
                    .args
                    .iter()
                    .any(|it| it == "disable_redirects" || it == "off");
            }
            "local_certs" => self.options.has_local_certificates = true,
            "email"
                if value
                    .split_once('@')
                    .is_some_and(|(_, host)| host.contains('.')) =>
            {
                self.draft.acme.keys.set("email", value);
            }
            "acme_ca" => self.draft.acme.keys.set("directory", directory(&value)),
            "acme_ca_root" => self.draft.acme.keys.set("ca", value),
            "storage" if option.arg(0) == "file_system" && option.args.len() > 1 => {
                self.draft.acme.keys.set("storage", option.arg(1));
            }
            "cert_issuer" if ["acme", "zerossl"].contains(&option.arg(0)) => {
                if option.arg(0) == "zerossl" {
                    self.draft.acme.keys.set("directory", "zerossl");
                }
            }
            "grace_period" => match units::duration(&value, "s") {
                Some(time) => self.draft.server.keys.set("shutdown_timeout", time),
                None => return,
            },
            "admin" => return self.admin(option),
            "on_demand_tls" => return self.on_demand(option),
            "servers" => return self.servers_option(option),
            "log" => return self.server_log(option),
            "debug" => {
                return self
                    .log
                    .note(id, Coverage::Translated, "`--verbose` of `penstock serve`");
            }
            _ => return,
        }
        self.log.translated(id, key_of(&option.name));
    }

    fn admin(&mut self, option: &CaddyDirective) {
        let address = environment(option.arg(0));
        let address = match address.strip_prefix("unix/") {
            Some(path) => format!(
                "unix:/{}",
                path.trim_start_matches('/')
                    .split('|')
                    .next()
                    .unwrap_or_default()
            ),
            None => address.replace("localhost:", "127.0.0.1:"),
        };
        // Caddy's API is another one: an address is free for Penstock's own.
        match address.as_str() {
            "off" => self.draft.server.keys.set("admin", "off"),
            "" => {}
            address => self.draft.server.keys.set("admin", address),
        }
        self.log.translated(option.id, "server.admin");
    }

    fn on_demand(&mut self, option: &CaddyDirective) {
        for inner in option.children() {
            match (
                inner.name.as_str(),
                units::duration(inner.arg(0), "s"),
                units::number(inner.arg(0)),
            ) {
                ("ask", ..) => self
                    .draft
                    .acme
                    .keys
                    .set_in(&["on_demand", "ask"], environment(inner.arg(0))),
                ("interval", Some(time), _) => self
                    .draft
                    .acme
                    .keys
                    .set_in(&["on_demand", "interval"], time),
                ("burst", _, Some(number)) => self
                    .draft
                    .acme
                    .keys
                    .set_in(&["on_demand", "max_orders"], number),
                _ => continue,
            }
            self.log.translated(inner.id, "acme.on_demand");
        }
        self.log.translated(option.id, "acme.on_demand");
    }

    fn servers_option(&mut self, option: &CaddyDirective) {
        self.log.translated(option.id, "[server] and [limits]");
        for inner in option.children() {
            match inner.name.as_str() {
                "trusted_proxies" => self.trusted_proxies(inner),
                "client_ip_headers" => {
                    self.draft.server.keys.set("client_address", inner.arg(0));
                    self.log.translated(inner.id, "server.client_address");
                }
                "max_header_size" => {
                    if let Some(bytes) = size(inner.arg(0)) {
                        self.draft.limits.keys.set("header_bytes", bytes);
                        self.log.translated(inner.id, "limits.header_bytes");
                    }
                }
                "timeouts" => {
                    self.log.translated(inner.id, "[limits]");
                    for timeout in inner.children() {
                        let key = match timeout.name.as_str() {
                            "read_header" => "header_timeout",
                            "idle" => "idle_timeout",
                            "read_body" | "write" | "read_body_idle" | "write_idle" => {
                                "body_idle_timeout"
                            }
                            _ => continue,
                        };
                        let time =
                            units::duration(timeout.arg(0), "s").filter(|it| !it.starts_with('0'));
                        if let Some(time) = time {
                            self.draft.limits.keys.set(key, time);
                            self.log.translated(timeout.id, &format!("limits.{key}"));
                        }
                    }
                }
                _ => {}
            }
        }
    }

    fn trusted_proxies(&mut self, option: &CaddyDirective) {
        if option.arg(0) != "static" {
            return;
        }
        let mut networks: Vec<String> = Vec::new();
        for network in &option.args[1..] {
            match network.as_str() {
                "private_ranges" => networks.extend(
                    [
                        "192.168.0.0/16",
                        "172.16.0.0/12",
                        "10.0.0.0/8",
                        "127.0.0.1/8",
                        "fd00::/8",
                        "::1",
                    ]
                    .map(str::to_owned),
                ),
                network => networks.push(environment(network)),
            }
        }
        self.draft.server.keys.set("trusted_proxies", networks);
        self.log.translated(option.id, "server.trusted_proxies");
    }

    fn server_log(&mut self, option: &CaddyDirective) {
        self.log.translated(option.id, "server.log");
        for inner in option.children() {
            let key = match (inner.name.as_str(), inner.arg(0)) {
                ("output", "stdout" | "stderr") => {
                    self.draft.server.keys.set("log", inner.arg(0));
                    "server.log"
                }
                ("output", "file") => {
                    self.draft.server.keys.set("log", environment(inner.arg(1)));
                    "server.log"
                }
                ("format", "json") => {
                    self.draft.server.keys.set("log_format", "json");
                    "server.log_format"
                }
                ("format", "console") => "server.log_format",
                _ => continue,
            };
            self.log.translated(inner.id, key);
        }
    }

    /// Adds a listener on each address, by default on all; returns the addresses.
    pub(super) fn listen(&mut self, port: &str, has_tls: bool, bind: &[String]) -> Vec<String> {
        let hosts = if bind.is_empty() {
            self.options.default_bind.clone()
        } else {
            bind.to_vec()
        };
        let flags: &[&str] = if has_tls { &["tls"] } else { &[] };
        let mut addresses = Vec::new();
        if hosts.is_empty() {
            addresses.push(format!(":{port}"));
        }
        for host in hosts {
            let host = ["tcp/", "tcp4/", "tcp6/"]
                .iter()
                .find_map(|it| host.strip_prefix(it))
                .unwrap_or(&host)
                .to_owned();
            let host = if ["0.0.0.0", "[::]", "::"].contains(&host.as_str()) {
                String::new()
            } else {
                host
            };
            let address = match host.strip_prefix("unix/") {
                Some(path) => format!("unix:/{}", path.trim_start_matches('/')),
                None if host.contains(':') => format!("[{}]:{port}", host.trim_matches(['[', ']'])),
                None => format!("{host}:{port}"),
            };
            addresses.push(address);
        }
        for address in &addresses {
            self.draft.listen(address, flags);
        }
        addresses
    }
}

/// The directory of an authority, by its name where it has one.
pub(super) fn directory(url: &str) -> TomlValue {
    match url {
        "https://acme-v02.api.letsencrypt.org/directory" => "letsencrypt".into(),
        "https://acme-staging-v02.api.letsencrypt.org/directory" => "letsencrypt-staging".into(),
        url => url.into(),
    }
}

/// A size of Caddy, whose `KB` has 1000 bytes.
pub(super) fn size(text: &str) -> Option<String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let number = units::number(&text[..digits])?;
    let unit = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => "B",
        "kb" | "k" => "kB",
        "mb" | "m" => "MB",
        "gb" | "g" => "GB",
        "tb" | "t" => "TB",
        "kib" => "KiB",
        "mib" => "MiB",
        "gib" => "GiB",
        _ => return None,
    };
    Some(format!("{number}{unit}"))
}

fn key_of(name: &str) -> &'static str {
    match name {
        "http_port" | "https_port" | "default_bind" => "server.listen",
        "auto_https" => "tls of each site",
        "local_certs" => "tls = \"local\" of a site",
        "email" => "acme.email",
        "acme_ca" | "cert_issuer" => "acme.directory",
        "acme_ca_root" => "acme.ca",
        "storage" => "acme.storage",
        _ => "server.shutdown_timeout",
    }
}

/// A table of codings for `compress`.
pub(super) fn compression(algorithms: &[&str]) -> TomlTable {
    TomlTable::with("algorithms", algorithms.to_vec())
}
