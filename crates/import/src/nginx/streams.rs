//! The stream module: TCP listeners.

use std::collections::BTreeMap;

use super::NginxTranslator;
use super::scope::NginxScope;
use super::syntax::NginxDirective;
use super::upstreams::PassTarget;
use crate::draft::DraftTable;
use crate::report::Coverage;
use crate::toml_value::TomlTable;
use crate::units;

impl<'a> NginxTranslator<'a> {
    /// All that `stream` has.
    pub(super) fn stream_level(&mut self, directives: &'a [NginxDirective]) {
        let scope = NginxScope::new(directives);
        let mut maps: BTreeMap<&str, &'a NginxDirective> = BTreeMap::new();
        for directive in directives {
            match directive.name.as_str() {
                "upstream" => {
                    self.upstream_blocks
                        .insert(directive.arg(0).to_owned(), directive);
                }
                "map" => {
                    maps.insert(directive.arg(1), directive);
                }
                _ => {}
            }
        }
        for server in scope.own_named("server").to_vec() {
            let mut table = DraftTable::default();
            self.tcp_server(&scope.within(server.children()), server, &maps, &mut table);
            self.leave_rest(server.children(), &mut table);
            self.draft.tcp.push(table);
        }
        let mut table = DraftTable::default();
        self.leave_rest(directives, &mut table);
        if !table.comments.is_empty() {
            self.draft.tcp.push(table);
        }
    }

    fn tcp_server(
        &mut self,
        scope: &NginxScope<'a>,
        server: &NginxDirective,
        maps: &BTreeMap<&str, &'a NginxDirective>,
        table: &mut DraftTable,
    ) {
        let listen = scope.own_named("listen").first().copied();
        let pass = scope.find("proxy_pass");
        let (Some(listen), Some(pass)) = (listen, pass) else {
            let why = "a listener of `[[tcp]]` has `listen` and an `upstream`";
            return self.leave(server.id, Coverage::ByHand, why, table);
        };
        let has = |word: &str| listen.args.iter().any(|it| it == word);
        if has("udp") {
            self.leave(server.id, Coverage::NotOffered, "UDP is not relayed", table);
            self.leave(listen.id, Coverage::NotOffered, "UDP is not relayed", table);
            return;
        }
        let address = listen.arg(0);
        let address = match address.parse::<u16>() {
            Ok(port) => format!(":{port}"),
            Err(_) => address.trim_start_matches('*').to_owned(),
        };
        let upstream = match maps.get(pass.arg(0)).copied() {
            Some(map) => self.tcp_by_name(scope, map, table),
            None => self.tcp_upstream(scope, pass.arg(0)),
        };
        if upstream.is_none() && !table.keys.has("sni") {
            let why = "`[[tcp]]` has one upstream, or upstreams by `sni`";
            return self.leave(pass.id, Coverage::ByHand, why, table);
        }
        table.keys.set("listen", address);
        if let Some(name) = upstream {
            table.keys.set("upstream", name);
        }
        if has("proxy_protocol") {
            table.keys.set("proxy_protocol", true);
        }
        self.tcp_tls(scope, has("ssl"), table);
        self.log.translated(listen.id, "tcp.listen");
        self.log.translated(pass.id, "tcp.upstream");
        self.log.translated(server.id, "[[tcp]]");
        if let Some(preread) = scope.find("ssl_preread") {
            self.log.translated(preread.id, "tcp.sni");
        }
    }

    fn tcp_tls(&mut self, scope: &NginxScope<'a>, has_tls: bool, table: &mut DraftTable) {
        let (certificate, key) = (
            scope.find("ssl_certificate"),
            scope.find("ssl_certificate_key"),
        );
        if let (true, Some(certificate)) = (has_tls, certificate) {
            table
                .keys
                .set_in(&["tls", "certificate"], certificate.arg(0));
            self.log.translated(certificate.id, "tls.certificate");
            if let Some(key) = key {
                table.keys.set_in(&["tls", "key"], key.arg(0));
                self.log.translated(key.id, "tls.key");
            }
        }
    }

    fn tcp_upstream(&mut self, scope: &NginxScope<'a>, target: &str) -> Option<String> {
        let target = PassTarget::parse("proxy_pass", target)?;
        let mut settings = TomlTable::default();
        let is_known = self.upstream_blocks.contains_key(target.server.as_str());
        if !is_known && !target.server.contains(':') {
            return None;
        }
        if let Some(directive) = scope.find("proxy_connect_timeout")
            && let Some(time) =
                units::duration(directive.arg(0), "s").filter(|it| !it.starts_with('0'))
        {
            settings.set("connect_timeout", time);
            self.log.translated(directive.id, "connect_timeout");
        }
        if let Some(directive) = scope.find("proxy_timeout")
            && let Some(time) =
                units::duration(directive.arg(0), "s").filter(|it| !it.starts_with('0'))
        {
            settings.set("tunnel_timeout", time);
            self.log.translated(directive.id, "tunnel_timeout");
        }
        if let Some(directive) = scope.find("proxy_protocol") {
            if directive.arg(0) == "on" {
                settings.set("proxy_protocol", "v1");
            }
            self.log
                .translated(directive.id, "proxy_protocol of the upstream");
        }
        Some(self.upstream(&target, settings))
    }

    /// Upstreams by the name that a client asks for.
    fn tcp_by_name(
        &mut self,
        scope: &NginxScope<'a>,
        map: &NginxDirective,
        table: &mut DraftTable,
    ) -> Option<String> {
        if map.arg(0) != "$ssl_preread_server_name" {
            return None;
        }
        self.log.translated(map.id, "tcp.sni");
        let mut default = None;
        let mut names = TomlTable::default();
        for entry in map.children() {
            let upstream = self.tcp_upstream(scope, entry.arg(0));
            let (Some(upstream), true) = (upstream, !entry.name.starts_with('~')) else {
                let why = "`sni` has names of hosts, each with an upstream";
                self.leave(entry.id, Coverage::ByHand, why, table);
                continue;
            };
            self.log.translated(entry.id, "tcp.sni");
            match entry.name.as_str() {
                "default" => default = Some(upstream),
                name => names.set(name, upstream),
            }
        }
        if !names.is_empty() {
            table.keys.set("sni", names);
        }
        default
    }
}
