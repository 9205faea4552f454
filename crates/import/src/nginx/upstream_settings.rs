//! Settings that nginx has at a location, and Penstock in the upstream.

use super::NginxTranslator;
use super::common::is_network;
use super::scope::NginxScope;
use super::syntax::NginxDirective;
use super::upstreams::PassTarget;
use crate::report::Coverage;
use crate::toml_value::TomlTable;
use crate::units;

impl<'a> NginxTranslator<'a> {
    /// Settings of an upstream from the directives at a location.
    pub(super) fn upstream_settings(
        &mut self,
        scope: &NginxScope<'a>,
        target: &PassTarget,
    ) -> TomlTable {
        let mut settings = TomlTable::default();
        let prefix = match target.protocol {
            "http" => "proxy",
            other => other,
        };
        if let Some(directive) = scope.find(&format!("{prefix}_connect_timeout")) {
            self.time(directive, &mut settings, &["connect_timeout"]);
        }
        if let Some(directive) = scope.find(&format!("{prefix}_send_timeout")) {
            self.time(directive, &mut settings, &["body_idle_timeout"]);
        }
        if let Some(directive) = scope.find(&format!("{prefix}_read_timeout")) {
            self.time(
                directive,
                &mut settings,
                &["response_timeout", "body_idle_timeout"],
            );
            let upgrades = scope
                .find_all("proxy_set_header")
                .iter()
                .any(|it| it.arg(0).eq_ignore_ascii_case("upgrade"));
            if upgrades {
                self.time(directive, &mut settings, &["tunnel_timeout"]);
            }
        }
        if let Some(directive) = scope.find(&format!("{prefix}_next_upstream")) {
            if directive.args.iter().any(|reason| reason == "off") {
                settings.set_in(&["retry", "attempts"], 1);
            }
            self.log.translated(directive.id, "retry");
        }
        if let Some(directive) = scope.find(&format!("{prefix}_next_upstream_tries"))
            && let Some(number @ 1..=100) = units::number(directive.arg(0))
        {
            settings.set_in(&["retry", "attempts"], number);
            self.log.translated(directive.id, "retry.attempts");
        }
        if target.has_tls {
            self.tls_settings(scope, &mut settings);
        }
        if target.protocol == "http" {
            self.host_setting(scope, target, &mut settings);
        }
        settings
    }

    fn time(&mut self, directive: &NginxDirective, settings: &mut TomlTable, keys: &[&str]) {
        let Some(time) =
            units::duration(directive.arg(0), "s").filter(|time| !time.starts_with('0'))
        else {
            return;
        };
        for key in keys {
            settings.set(key, time.clone());
            self.log.translated(directive.id, key);
        }
    }

    fn tls_settings(&mut self, scope: &NginxScope<'a>, settings: &mut TomlTable) {
        let verifies = scope.is_on("proxy_ssl_verify");
        settings.set("tls", true);
        if let Some(directive) = scope.find("proxy_ssl_verify") {
            self.log.translated(directive.id, "tls.verify");
        }
        if !verifies {
            settings.set_in(&["tls", "verify"], false);
        }
        let keys = [
            ("proxy_ssl_trusted_certificate", "ca"),
            ("proxy_ssl_name", "server_name"),
            ("proxy_ssl_certificate", "certificate"),
            ("proxy_ssl_certificate_key", "key"),
        ];
        for (name, key) in keys {
            let Some(directive) = scope.find(name).filter(|it| !it.arg(0).contains('$')) else {
                continue;
            };
            if key == "ca" && !verifies {
                self.log.note(
                    directive.id,
                    Coverage::NotNeeded,
                    "`proxy_ssl_verify` is off",
                );
                continue;
            }
            settings.set_in(&["tls", key], directive.arg(0));
            self.log.translated(directive.id, &format!("tls.{key}"));
        }
    }

    /// The `Host` of requests: nginx sends the name in `proxy_pass` unless a field says another.
    fn host_setting(
        &mut self,
        scope: &NginxScope<'a>,
        target: &PassTarget,
        settings: &mut TomlTable,
    ) {
        let fields = scope.find_all("proxy_set_header");
        let host = fields
            .iter()
            .find(|it| it.arg(0).eq_ignore_ascii_case("host"));
        match host {
            Some(directive) => match directive.arg(1) {
                "$host" | "$http_host" | "$host:$server_port" | "$http_host:$server_port" => {}
                "$proxy_host" => settings.set("host", "server"),
                text if !text.contains('$') && !text.is_empty() => settings.set("host", text),
                _ => {}
            },
            None => {
                let is_block = self.upstream_blocks.contains_key(target.server.as_str());
                let host = target.server.split(':').next().unwrap_or_default();
                let is_public = host.contains('.') && !is_network(host);
                if !is_block && is_public {
                    settings.set("host", "server");
                }
            }
        }
    }
}
