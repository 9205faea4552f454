//! Backends: upstreams with their servers, time-outs and checks.

use super::servers::{ServerFacts, server_address};
use super::values::time;
use super::{HaproxyTranslator, ProxyLines};
use crate::draft::{DraftTable, as_name};
use crate::report::Coverage;
use crate::toml_value::{TomlTable, TomlValue};
use crate::units;

impl<'a> HaproxyTranslator<'a> {
    /// Writes the upstream of a backend or of a `listen` section.
    pub(super) fn backend(&mut self, proxy: &ProxyLines<'a>) {
        let servers = proxy.find_all(&["server"]);
        let templates = proxy.find_all(&["server-template"]);
        let name = proxy.section.name.as_str();
        if servers.is_empty() && templates.is_empty() && proxy.section.kind == "listen" {
            return;
        }
        let mut table = DraftTable::default();
        let mut facts = ServerFacts::default();
        let defaults: Vec<String> = proxy
            .find_all(&["default-server"])
            .into_iter()
            .flat_map(|line| {
                self.log.translated(line.id, "[upstreams.NAME]");
                line.rest(1).to_vec()
            })
            .collect();
        let mut all: Vec<TomlValue> = Vec::new();
        for line in servers {
            all.extend(self.server(line, &defaults, &mut facts, &mut table));
        }
        for line in templates {
            if let Some(address) = server_address(line.word(3)) {
                all.push(address.into());
                self.log.translated(line.id, "servers");
            }
        }
        if all.is_empty() {
            if !proxy.find_all(&["http-request"]).is_empty()
                || !proxy.find_all(&["redirect"]).is_empty()
            {
                // A backend that answers by its rules alone.
                self.log
                    .translated(proxy.section.id, "routes that answer by themselves");
            }
            table.comment("no server of it is known: write the addresses");
            all.push("127.0.0.1:1".into());
        }
        let settings = std::mem::take(&mut table.keys);
        if proxy.is_tcp() || !settings.has("protocol") {
            table.keys.set("servers", all.clone());
        }
        for (key, value) in settings.iter() {
            table.keys.set(key, value.clone());
        }
        self.balance(proxy, all.len(), &mut table);
        self.backend_timeouts(proxy, &mut table);
        self.health(proxy, &facts, &mut table);
        self.log.translated(proxy.section.id, "[upstreams.NAME]");
        if let Some(line) = proxy.find(&["mode"]) {
            self.log.translated(line.id, "[[sites]] or [[tcp]]");
        }
        let own = as_name(name);
        *self.draft.upstreams.table_mut(&own) = table;
        self.backends.insert(name.to_owned(), proxy.clone());
    }

    fn balance(&mut self, proxy: &ProxyLines<'a>, servers: usize, table: &mut DraftTable) {
        let line = proxy.find(&["balance"]);
        let word = line.map_or("roundrobin", |line| line.word(1));
        let header = word.strip_prefix("hdr(").map(|it| {
            it.trim_end_matches(')')
                .split(',')
                .next()
                .unwrap_or_default()
        });
        let (balance, key) = match (word, header) {
            ("roundrobin" | "static-rr", _) => ("round_robin", String::new()),
            ("leastconn", _) => ("least_active", String::new()),
            ("first", _) => ("idle_first", String::new()),
            ("source", _) => ("hash", "client_ip".to_owned()),
            ("uri", _) => (
                "hash",
                if line.is_some_and(|it| it.words.iter().any(|it| it == "whole")) {
                    "uri"
                } else {
                    "path"
                }
                .to_owned(),
            ),
            (_, Some(field)) => (
                "hash",
                format!("header:{}", super::conditions::canonical(field)),
            ),
            (word, None) if word.starts_with("random") => ("random_two", String::new()),
            _ => ("", String::new()),
        };
        if !balance.is_empty() {
            if servers > 1 {
                table.keys.set("balance", balance);
                if !key.is_empty() {
                    table.keys.set("key", key);
                }
            }
            if let Some(line) = line {
                self.log.translated(line.id, "balance");
            }
        }
        if let Some(line) = proxy.find(&["cookie"]) {
            table.keys.set("sticky", line.word(1));
            self.log.translated(line.id, "sticky");
        }
        if let Some(line) = proxy.find(&["retries"])
            && let Some(number) = units::number(line.word(1))
        {
            table
                .keys
                .set_in(&["retry", "attempts"], number.min(99) + 1);
            self.log.translated(line.id, "retry.attempts");
        }
        if let Some(line) = proxy.find(&["option", "accept-invalid-http-response"]) {
            self.log.note(
                line.id,
                Coverage::BuiltIn,
                "responses of old servers are mended where that is safe",
            );
        }
        self.forwarded_fields(proxy);
    }

    fn backend_timeouts(&mut self, proxy: &ProxyLines<'a>, table: &mut DraftTable) {
        let keys: [(&str, &[&[&str]]); 4] = [
            ("connect", &[&["connect_timeout"]]),
            ("server", &[&["response_timeout"], &["body_idle_timeout"]]),
            ("queue", &[&["queue", "timeout"]]),
            ("tunnel", &[&["tunnel_timeout"]]),
        ];
        for (name, paths) in keys {
            let Some((line, time)) = proxy.timeout(name) else {
                continue;
            };
            for path in paths {
                table.keys.set_in(path, time.as_str());
                self.log.translated(line.id, &path.join("."));
            }
        }
        if proxy.is_tcp()
            && !table.keys.has("tunnel_timeout")
            && let Some((_, time)) = proxy.timeout("server")
        {
            table.keys.set("tunnel_timeout", time);
        }
    }

    fn health(&mut self, proxy: &ProxyLines<'a>, facts: &ServerFacts, table: &mut DraftTable) {
        let mut health = TomlTable::default();
        if let Some(line) = proxy
            .find(&["option", "httpchk"])
            .filter(|it| !it.is_negated)
        {
            let path = match line.words.len() {
                2 => "/",
                3 => line.word(2),
                _ => line.word(3),
            };
            if path.starts_with('/') && facts.is_checked {
                health.set("path", path);
            }
            self.log.translated(line.id, "health.path");
        }
        for line in proxy.find_all(&["http-check", "send"]) {
            let uri = line
                .words
                .iter()
                .position(|it| it == "uri")
                .and_then(|at| line.words.get(at + 1));
            if let Some(uri) = uri.filter(|it| it.starts_with('/') && facts.is_checked) {
                health.set("path", uri.as_str());
            }
            self.log.translated(line.id, "health.path");
        }
        for line in proxy.find_all(&["http-check", "expect"]) {
            let status = line
                .words
                .iter()
                .position(|it| it == "status" || it == "rstatus");
            let status = status.and_then(|at| line.words.get(at + 1));
            let range = status.and_then(|it| status_range(it));
            if let Some(range) = range.filter(|_| health.has("path")) {
                health.set("status", range);
                self.log.translated(line.id, "health.status");
            }
        }
        if let Some(line) = proxy.find(&["timeout", "check"])
            && let Some(time) = time(line.word(2))
        {
            if facts.is_checked {
                health.set("timeout", time);
            }
            self.log.translated(line.id, "health.timeout");
        }
        for (key, value) in facts.health.iter().filter(|_| facts.is_checked) {
            health.set(key, value.clone());
        }
        if facts.is_checked {
            table.keys.set("health", health);
        }
    }
}

/// A status or a range such as `200-399`.
fn status_range(text: &str) -> Option<String> {
    let is_status = |text: &str| {
        text.parse::<u16>()
            .is_ok_and(|it| (100..=599).contains(&it))
    };
    if is_status(text) {
        return Some(text.to_owned());
    }
    let (first, last) = text.split_once('-')?;
    (is_status(first) && is_status(last)).then(|| text.to_owned())
}
