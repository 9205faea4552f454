//! `global` and `userlist`, and time-outs of clients.

use super::syntax::{HaproxyLine, HaproxySection};
use super::values::time;
use super::{HaproxyTranslator, ProxyLines};
use crate::report::Coverage;
use crate::units;

impl HaproxyTranslator<'_> {
    pub(super) fn global(&mut self, section: &HaproxySection) {
        let why = "the file has `[server]` and `[limits]`";
        self.log.note(section.id, Coverage::NotNeeded, why);
        for line in &section.lines {
            let (value, number) = (line.word(1), units::number(line.word(1)));
            let key = match (line.word(0), number) {
                ("user" | "uid", _) => {
                    self.draft.server.keys.set("user", value);
                    "server.user"
                }
                ("group" | "gid", _) => {
                    self.draft.server.keys.set("group", value);
                    "server.group"
                }
                ("nbthread", Some(threads @ 1..=1024)) => {
                    self.draft.server.keys.set("threads", threads);
                    "server.threads"
                }
                ("maxconn", Some(number @ 1..=10_000_000)) => {
                    self.draft.limits.keys.set("connections", number);
                    "limits.connections"
                }
                ("ulimit-n", Some(number @ 64..=100_000_000)) => {
                    self.draft.server.keys.set("max_open_files", number);
                    "server.max_open_files"
                }
                ("hard-stop-after", _) if time(value).is_some() => {
                    self.draft
                        .server
                        .keys
                        .set("shutdown_timeout", time(value).unwrap_or_default());
                    "server.shutdown_timeout"
                }
                ("log", _) => match log_target(value) {
                    Some(target) => {
                        self.log_to(line, target);
                        continue;
                    }
                    None => continue,
                },
                _ => continue,
            };
            self.log.translated(line.id, key);
        }
        let mut table = std::mem::take(&mut self.draft.server);
        self.leave_lines(&section.lines, &mut table);
        self.draft.server = table;
    }

    /// Writes the access log to a target, unless there is another.
    fn log_to(&mut self, line: &HaproxyLine, target: String) {
        match self.draft.server.keys.text("access_log") {
            Some(known) if known != target => {
                let why = "`server.access_log` has one target: `[access_logs.NAME]` and \
                           `access_logs` of the site are for several";
                let comment = self.log.leave(line.id, Coverage::ByHand, why);
                self.draft.server.comment(comment);
            }
            _ => {
                self.draft.server.keys.set("access_log", target);
                self.log.translated(line.id, "server.access_log");
            }
        }
    }

    /// `option forwardfor`.
    pub(super) fn forwarded_fields(&mut self, proxy: &ProxyLines<'_>) {
        for line in proxy.find_all(&["option", "forwardfor"]) {
            let why = "`X-Forwarded-For`, `-Proto` and `-Host` are sent";
            self.log.note(line.id, Coverage::BuiltIn, why);
        }
    }

    pub(super) fn user_list(&mut self, section: &HaproxySection) {
        let why = "`basic_auth.users` is a file: a line NAME:HASH for each user, as htpasswd -B writes it";
        self.log.note(section.id, Coverage::ByHand, why);
        for line in &section.lines {
            self.log.note(line.id, Coverage::ByHand, why);
        }
    }

    /// Settings of a proxy that Penstock has once for all sites.
    pub(super) fn common_settings(&mut self, proxy: &ProxyLines<'_>) {
        let timeouts = [
            ("http-request", "header_timeout"),
            ("http-keep-alive", "idle_timeout"),
            ("client", "body_idle_timeout"),
        ];
        for (name, key) in timeouts {
            let Some((line, time)) = proxy.timeout(name) else {
                continue;
            };
            if self
                .draft
                .limits
                .keys
                .text(key)
                .is_some_and(|known| known != time)
            {
                let why = format!("`limits.{key}` is one for all sites, and has another value");
                let comment = self.log.leave(line.id, Coverage::ByHand, why);
                self.draft.limits.comment(comment);
                continue;
            }
            self.draft.limits.keys.set(key, time);
            self.log.translated(line.id, &format!("limits.{key}"));
        }
        let has_log = self.draft.server.keys.has("access_log");
        for line in proxy.find_all(&["log"]) {
            match line.word(1) {
                "global" if has_log => self.log.translated(line.id, "server.access_log"),
                "global" => self.log.note(line.id, Coverage::NotNeeded, "no log is set"),
                target => {
                    if let Some(target) = log_target(target) {
                        self.log_to(line, target);
                    }
                }
            }
        }
        self.forwarded_fields(proxy);
        for name in ["httplog", "httpslog"] {
            for line in proxy.find_all(&["option", name]) {
                self.log.translated(line.id, "access_log.format");
            }
        }
        if let Some(line) = proxy.find(&["mode"]) {
            self.log.translated(line.id, "[[sites]] or [[tcp]]");
        }
    }
}

/// The target of an access log.
fn log_target(address: &str) -> Option<String> {
    let address = address.split('@').next_back().unwrap_or(address);
    if address == "stdout" || address == "stderr" {
        return Some(address.to_owned());
    }
    if address.starts_with('/') {
        return Some(if address == "/dev/log" {
            "syslog".to_owned()
        } else {
            format!("syslog:unix:{address}")
        });
    }
    let (host, port) = address.rsplit_once(':').unwrap_or((address, "514"));
    let is_good = host.parse::<std::net::IpAddr>().is_ok() && port.parse::<u16>().is_ok();
    is_good.then(|| format!("syslog:{host}:{port}"))
}
