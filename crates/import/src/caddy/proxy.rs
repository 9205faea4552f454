//! `reverse_proxy` and `php_fastcgi`: upstreams.

use super::CaddyTranslator;
use super::addresses::{ServerAddress, upstream_name};
use super::headers::{FieldOutcome, add_operation};
use super::placeholders::environment;
use super::routes::MatchedDirective;
use super::syntax::CaddyDirective;
use crate::draft::DraftTable;
use crate::report::Coverage;
use crate::toml_value::TomlTable;
use crate::units;

/// Fields about the client that servers get in any case.
const SENT: [&str; 5] = [
    "host",
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-forwarded-host",
    "upgrade",
];

impl CaddyTranslator<'_> {
    /// Writes the upstream of a `reverse_proxy`.
    pub(super) fn reverse_proxy(
        &mut self,
        matched: &MatchedDirective<'_>,
        route: &mut DraftTable,
    ) -> bool {
        let directive = matched.directive;
        let to = directive.children().iter().filter(|it| it.name == "to");
        let mut targets: Vec<String> = matched.args.to_vec();
        for inner in to {
            targets.extend(inner.args.iter().cloned());
            self.log.translated(inner.id, "servers");
        }
        let transport = directive.child("transport");
        let is_fastcgi = transport.is_some_and(|it| it.arg(0) == "fastcgi");
        let port = if is_fastcgi { "9000" } else { "80" };
        let parsed = targets.iter().map(|it| ServerAddress::parse(it, port));
        let servers: Option<Vec<ServerAddress>> = parsed.collect();
        let Some(servers) = servers.filter(|it| !it.is_empty()) else {
            let why = "`servers` has addresses; a request has one upstream, which its route names";
            self.leave(directive.id, Coverage::ByHand, why, route);
            self.leave_rest(directive.children(), route);
            route.keys.set("respond", TomlTable::with("status", 502));
            return false;
        };
        let mut keys = TomlTable::default();
        if is_fastcgi {
            keys.set("protocol", "fastcgi");
        }
        let addresses: Vec<&str> = servers.iter().map(|it| it.address.as_str()).collect();
        keys.set("servers", addresses);
        if servers.iter().any(|it| it.has_tls) {
            keys.set("tls", true);
        }
        for option in directive.children() {
            self.proxy_option(option, &mut keys, route);
        }
        if servers.len() > 1 && !keys.has("balance") && !keys.has("sticky") {
            keys.set("balance", "random_two");
        }
        if keys.text("balance") == Some("round_robin") && servers.len() == 1 {
            keys.remove("balance");
        }
        let name = self.upstream_named(&upstream_name(&servers[0].address), keys);
        route.keys.set("upstream", name);
        self.log.translated(directive.id, "upstream");
        self.leave_rest(directive.children(), route);
        true
    }

    fn proxy_option(
        &mut self,
        option: &CaddyDirective,
        keys: &mut TomlTable,
        route: &mut DraftTable,
    ) {
        let time = units::duration(&environment(option.arg(0)), "s");
        let number = units::number(option.arg(0));
        let key: &str = match option.name.as_str() {
            "lb_policy" => return self.balance(option, keys),
            "header_up" => return self.header_up(option, keys, route),
            "header_down" => return self.header_down(option, route),
            "transport" => return self.transport(option, keys),
            "health_uri" => {
                keys.set_in(&["health", "path"], environment(option.arg(0)));
                "health.path"
            }
            "health_status" => {
                let status = option
                    .arg(0)
                    .replace("xx", "00-")
                    .trim_end_matches('-')
                    .to_owned();
                let status = match option.arg(0) {
                    "2xx" => "200-299",
                    "3xx" => "300-399",
                    _ => status.as_str(),
                };
                keys.set_in(&["health", "status"], status);
                "health.status"
            }
            "health_interval" | "health_timeout" if time.is_some() => {
                let key = &option.name["health_".len()..];
                keys.set_in(&["health", key], time.unwrap_or_default());
                "health"
            }
            "health_passes" | "health_fails" if number.is_some() => {
                let key = if option.name == "health_passes" {
                    "rise"
                } else {
                    "fall"
                };
                keys.set_in(&["health", key], number.unwrap_or(1).clamp(1, 1_000));
                "health"
            }
            "fail_duration" if time.is_some() => {
                match time.as_deref() {
                    Some(zero) if zero.starts_with('0') => {
                        keys.set_in(&["eject", "max_failures"], 0);
                    }
                    time => keys.set_in(&["eject", "duration"], time.unwrap_or("10s")),
                }
                "eject.duration"
            }
            "max_fails" if number.is_some() => {
                keys.set_in(
                    &["eject", "max_failures"],
                    number.unwrap_or(1).min(1_000_000),
                );
                "eject.max_failures"
            }
            "unhealthy_request_count" if number.is_some_and(|it| it > 0) => {
                keys.set("max_active", number.unwrap_or(1).min(1_000_000));
                "max_active"
            }
            "lb_retries" if number.is_some() => {
                keys.set_in(&["retry", "attempts"], number.unwrap_or(0).min(99) + 1);
                "retry.attempts"
            }
            "lb_try_duration" if time.is_some() => {
                if let Some(time) = time.filter(|it| !it.starts_with('0')) {
                    keys.set_in(&["queue", "timeout"], time);
                }
                "queue.timeout"
            }
            "stream_timeout" if time.as_deref().is_some_and(|it| !it.starts_with('0')) => {
                keys.set("tunnel_timeout", time.unwrap_or_default());
                "tunnel_timeout"
            }
            _ => return,
        };
        self.log.translated(option.id, key);
    }

    fn balance(&mut self, option: &CaddyDirective, keys: &mut TomlTable) {
        let (balance, key) = match option.arg(0) {
            "random" | "random_choose" => ("random_two", String::new()),
            "round_robin" => ("round_robin", String::new()),
            "least_conn" => ("least_active", String::new()),
            "ip_hash" | "client_ip_hash" => ("hash", "client_ip".to_owned()),
            "uri_hash" => ("hash", "uri".to_owned()),
            "header" => ("hash", format!("header:{}", option.arg(1))),
            "cookie" => {
                let name = if option.arg(1).is_empty() {
                    "lb"
                } else {
                    option.arg(1)
                };
                keys.set("sticky", name);
                self.log.translated(option.id, "sticky");
                return;
            }
            _ => return,
        };
        keys.set("balance", balance);
        if !key.is_empty() {
            keys.set("key", key);
        }
        self.log.translated(option.id, "balance");
        for inner in option.children() {
            self.log.note(
                inner.id,
                Coverage::NotNeeded,
                "a free server of those that are up is chosen",
            );
        }
    }

    fn header_up(&mut self, option: &CaddyDirective, keys: &mut TomlTable, route: &mut DraftTable) {
        let name = option
            .arg(0)
            .trim_end_matches(':')
            .trim_start_matches(['+', '?', '>'])
            .to_ascii_lowercase();
        if name == "host" {
            let host = option.arg(1);
            match host {
                "{host}" | "{http.request.host}" | "{hostport}" => {}
                "{upstream_hostport}"
                | "{http.reverse_proxy.upstream.hostport}"
                | "{rp.upstream.hostport}" => {
                    keys.set("host", "server");
                }
                host if !host.contains('{') && !host.is_empty() => keys.set("host", host),
                _ => {
                    let why = "`host` is the client's, the server's or a text";
                    return self.leave(option.id, Coverage::ByHand, why, route);
                }
            }
            return self.log.translated(option.id, "host of the upstream");
        }
        let is_plain = !option.arg(0).starts_with('-') && option.args.len() < 3;
        if is_plain && SENT.contains(&name.as_str()) {
            let why = "`X-Forwarded-*` and what an upgrade needs are sent";
            return self.log.note(option.id, Coverage::BuiltIn, why);
        }
        let table = route.keys.table_mut("request_headers");
        let outcome = add_operation(table, &option.args);
        if table.is_empty() {
            route.keys.remove("request_headers");
        }
        self.note_field(option, "request_headers", outcome, route);
    }

    fn header_down(&mut self, option: &CaddyDirective, route: &mut DraftTable) {
        let table = route.keys.table_mut("response_headers");
        let outcome = add_operation(table, &option.args);
        if table.is_empty() {
            route.keys.remove("response_headers");
        }
        self.note_field(option, "response_headers", outcome, route);
    }

    /// Notes what came of an operation on a field.
    pub(super) fn note_field(
        &mut self,
        directive: &CaddyDirective,
        key: &str,
        outcome: FieldOutcome,
        route: &mut DraftTable,
    ) {
        match outcome {
            FieldOutcome::Set(verb) => self.log.translated(directive.id, &format!("{key}.{verb}")),
            FieldOutcome::Refused(why) => self.leave(directive.id, Coverage::ByHand, why, route),
        }
    }

    fn transport(&mut self, transport: &CaddyDirective, keys: &mut TomlTable) {
        self.log.translated(transport.id, "protocol");
        let is_fastcgi = transport.arg(0) == "fastcgi";
        for option in transport.children() {
            let time =
                units::duration(&environment(option.arg(0)), "s").filter(|it| !it.starts_with('0'));
            let number = units::number(option.arg(0)).filter(|it| (1..=1_000_000).contains(it));
            let key: &str = match (option.name.as_str(), time, number) {
                ("root", ..) if is_fastcgi => {
                    keys.set("root", environment(option.arg(0)));
                    "root"
                }
                ("env", ..) if is_fastcgi && !option.arg(1).contains('{') => {
                    keys.set_in(&["params", option.arg(0)], option.arg(1));
                    "params"
                }
                ("dial_timeout", Some(time), _) => {
                    keys.set("connect_timeout", time);
                    "connect_timeout"
                }
                ("response_header_timeout", Some(time), _) => {
                    keys.set("response_timeout", time);
                    "response_timeout"
                }
                ("read_timeout", Some(time), _) => {
                    if is_fastcgi {
                        keys.set("response_timeout", time.as_str());
                    }
                    keys.set("body_idle_timeout", time);
                    "body_idle_timeout"
                }
                ("write_timeout", Some(time), _) => {
                    keys.set("body_idle_timeout", time);
                    "body_idle_timeout"
                }
                ("tls", ..) => {
                    if !keys.has("tls") {
                        keys.set("tls", true);
                    }
                    "tls"
                }
                ("tls_insecure_skip_verify", ..) => {
                    keys.set_in(&["tls", "verify"], false);
                    "tls.verify"
                }
                ("tls_server_name", ..) if !option.arg(0).contains('{') => {
                    keys.set_in(&["tls", "server_name"], option.arg(0));
                    "tls.server_name"
                }
                ("tls_trusted_ca_certs", ..) => {
                    keys.set_in(&["tls", "ca"], environment(option.arg(0)));
                    "tls.ca"
                }
                ("tls_client_auth", ..) if option.args.len() == 2 => {
                    keys.set_in(&["tls", "certificate"], environment(option.arg(0)));
                    keys.set_in(&["tls", "key"], environment(option.arg(1)));
                    "tls.certificate and tls.key"
                }
                ("keepalive", Some(time), _) => {
                    keys.set_in(&["connections", "ttl"], time);
                    "connections.ttl"
                }
                ("keepalive_idle_conns" | "keepalive_idle_conns_per_host", _, Some(number)) => {
                    keys.set_in(&["connections", "soft"], number);
                    if number > 1024 {
                        keys.set_in(&["connections", "max"], number);
                    }
                    "connections.soft"
                }
                ("max_conns_per_host", _, Some(number)) => {
                    keys.set_in(&["connections", "max"], number);
                    if number < 64 {
                        keys.set_in(&["connections", "soft"], number);
                    }
                    "connections.max"
                }
                ("proxy_protocol", ..) if ["v1", "v2"].contains(&option.arg(0)) => {
                    keys.set("proxy_protocol", option.arg(0));
                    "proxy_protocol"
                }
                _ => continue,
            };
            self.log.translated(option.id, key);
        }
    }

    /// Writes the upstream of a `php_fastcgi`.
    pub(super) fn php(
        &mut self,
        matched: &MatchedDirective<'_>,
        root: Option<String>,
        route: &mut DraftTable,
    ) -> bool {
        let directive = matched.directive;
        let server = matched
            .args
            .first()
            .and_then(|it| ServerAddress::parse(it, "9000"));
        let Some(server) = server else {
            let why = "`servers` of the upstream has the address of php-fpm";
            self.leave(directive.id, Coverage::ByHand, why, route);
            self.leave_rest(directive.children(), route);
            route.keys.set("respond", TomlTable::with("status", 502));
            return false;
        };
        let mut keys = TomlTable::with("protocol", "fastcgi");
        keys.set(
            "servers",
            matched
                .args
                .iter()
                .filter_map(|it| ServerAddress::parse(it, "9000"))
                .map(|it| it.address)
                .collect::<Vec<_>>(),
        );
        let own_root = directive.child("root").map(|it| environment(it.arg(0)));
        if let Some(root) = own_root.or(root) {
            keys.set("root", root);
        }
        let index = directive.child("index").map_or("index.php", |it| it.arg(0));
        if index != "off" {
            keys.set("index", index);
        }
        for option in directive.children() {
            let time = units::duration(option.arg(0), "s").filter(|it| !it.starts_with('0'));
            let key = match (option.name.as_str(), time) {
                ("root" | "index", _) => "root and index of the upstream",
                ("env", _) if !option.arg(1).contains('{') => {
                    keys.set_in(&["params", option.arg(0)], option.arg(1));
                    "params"
                }
                ("dial_timeout", Some(time)) => {
                    keys.set("connect_timeout", time);
                    "connect_timeout"
                }
                ("read_timeout", Some(time)) => {
                    keys.set("response_timeout", time.as_str());
                    keys.set("body_idle_timeout", time);
                    "response_timeout"
                }
                ("write_timeout", Some(time)) => {
                    keys.set("body_idle_timeout", time);
                    "body_idle_timeout"
                }
                _ => continue,
            };
            self.log.translated(option.id, key);
        }
        let name = match server.address.starts_with("unix:") {
            true => "php".to_owned(),
            false => upstream_name(&server.address),
        };
        let name = self.upstream_named(&name, keys);
        route.keys.set("upstream", name);
        self.log.translated(directive.id, "upstream and files");
        self.leave_rest(directive.children(), route);
        true
    }
}
