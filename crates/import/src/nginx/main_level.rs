//! Directives outside of `server`: the process, `events`, and what `http` has for all sites.

use super::NginxTranslator;
use super::syntax::NginxDirective;
use super::{LimitZone, NginxScope};
use crate::report::Coverage;
use crate::toml_value::{TomlTable, TomlValue};
use crate::units;

impl<'a> NginxTranslator<'a> {
    /// Directives of the process.
    pub(super) fn main_level(&mut self, directives: &'a [NginxDirective], has_http: bool) {
        for directive in directives {
            self.process_setting(directive);
            match directive.name.as_str() {
                "http" => self.log.note(
                    directive.id,
                    Coverage::NotNeeded,
                    "the file has one level. `[limits]` holds for all sites",
                ),
                "events" => {
                    for inner in directive.children() {
                        self.process_setting(inner);
                    }
                }
                _ => {}
            }
        }
        let mut table = std::mem::take(&mut self.draft.server);
        for directive in directives.iter().filter(|it| it.name == "events") {
            self.leave_rest(directive.children(), &mut table);
        }
        if has_http {
            self.leave_rest(directives, &mut table);
        }
        self.draft.server = table;
    }

    fn process_setting(&mut self, directive: &NginxDirective) {
        let (id, value) = (directive.id, directive.arg(0));
        match directive.name.as_str() {
            "user" => {
                self.draft.server.keys.set("user", value);
                if directive.args.len() > 1 {
                    self.draft.server.keys.set("group", directive.arg(1));
                }
                self.log.translated(id, "server.user");
            }
            "worker_processes" => match units::number(value) {
                Some(number) if (1..=1024).contains(&number) => {
                    self.draft.server.keys.set("threads", number);
                    self.log.translated(id, "server.threads");
                }
                _ => {
                    let why = "there is an event loop for each core";
                    self.log.note(id, Coverage::BuiltIn, why);
                }
            },
            "worker_connections" => self.number_setting(directive, "limits", "connections"),
            "worker_rlimit_nofile" => self.number_setting(directive, "server", "max_open_files"),
            "worker_shutdown_timeout" => {
                if let Some(time) = units::duration(value, "s") {
                    self.draft.server.keys.set("shutdown_timeout", time);
                    self.log.translated(id, "server.shutdown_timeout");
                }
            }
            "error_log" => {
                let target = match value {
                    "stderr" | "/dev/stderr" | "/dev/null" | "" => "stderr",
                    "/dev/stdout" => "stdout",
                    path if path.starts_with("syslog:") => return,
                    path => path,
                };
                self.draft.server.keys.set("log", target);
                self.log.translated(id, "server.log");
            }
            _ => {}
        }
    }

    fn number_setting(&mut self, directive: &NginxDirective, table: &str, key: &str) {
        let Some(number) = units::number(directive.arg(0)).filter(|number| *number >= 64) else {
            return;
        };
        let tables = match table {
            "limits" => &mut self.draft.limits,
            _ => &mut self.draft.server,
        };
        tables.keys.set(key, number.min(10_000_000));
        self.log.translated(directive.id, &format!("{table}.{key}"));
    }

    /// All that `http` has.
    pub(super) fn http_level(&mut self, directives: &'a [NginxDirective]) {
        let scope = NginxScope::new(directives);
        for directive in directives {
            self.http_setting(directive);
        }
        self.compression(&scope, Level::Server, None);
        self.common_settings(directives);
        self.access_log(&scope);
        if let Some(size) = scope.own_named("client_max_body_size").last() {
            let bytes = units::bytes(size.arg(0));
            if let Some(bytes) = bytes {
                self.draft.limits.keys.set("body_bytes", body_size(bytes));
                self.log.translated(size.id, "limits.body_bytes");
            }
        }
        self.servers(&scope);
        self.settle_unused(&scope);
        let mut table = std::mem::take(&mut self.draft.server);
        self.leave_rest(directives, &mut table);
        self.draft.server = table;
    }

    fn http_setting(&mut self, directive: &'a NginxDirective) {
        let id = directive.id;
        match directive.name.as_str() {
            "upstream" => {
                self.upstream_blocks
                    .insert(directive.arg(0).to_owned(), directive);
            }
            "map" | "geo" => self.add_map(directive),
            "limit_req_zone" | "limit_conn_zone" => {
                let parameter = |name: &str| {
                    let found = directive.args.iter().find_map(|arg| arg.strip_prefix(name));
                    found.unwrap_or_default().to_owned()
                };
                let zone = parameter("zone=");
                let name = zone.split(':').next().unwrap_or_default().to_owned();
                let zone = LimitZone {
                    id,
                    key: directive.arg(0).to_owned(),
                    rate: parameter("rate="),
                };
                self.zones.insert(name, zone);
            }
            "proxy_cache_path" | "fastcgi_cache_path" | "uwsgi_cache_path" | "scgi_cache_path" => {
                self.cache_path(directive);
            }
            "log_format" => self.log.note(
                id,
                Coverage::NotNeeded,
                "where a log uses it, `access_log.format` stands there",
            ),
            "types" => {
                for entry in directive.children() {
                    self.log.note(
                        entry.id,
                        Coverage::BuiltIn,
                        "media types are known by the ending",
                    );
                }
                self.log.note(
                    id,
                    Coverage::BuiltIn,
                    "media types are known; `files.types` adds some",
                );
            }
            _ => {}
        }
    }

    fn add_map(&mut self, directive: &'a NginxDirective) {
        let (source, variable) = match directive.args.as_slice() {
            [source, variable] => (source.as_str(), variable),
            [variable] => ("$remote_addr", variable),
            _ => return,
        };
        let name = variable.trim_start_matches('$').to_owned();
        if source == "$http_upgrade" {
            let why = "a connection that is upgraded is passed on";
            self.note_block(directive, Coverage::BuiltIn, why);
        }
        self.maps.insert(name, directive);
    }

    /// Notes an outcome of a block and of all of its entries.
    pub(super) fn note_block(&mut self, directive: &NginxDirective, coverage: Coverage, why: &str) {
        self.log.note(directive.id, coverage, why);
        for entry in directive.children() {
            self.log.note(entry.id, coverage, why);
        }
    }

    /// Outcomes of maps and zones that no directive with a translation has used.
    fn settle_unused(&mut self, scope: &NginxScope<'a>) {
        let mut table = std::mem::take(&mut self.draft.server);
        for name in ["limit_req_zone", "limit_conn_zone"] {
            for zone in scope.own_named(name) {
                if !self.log.is_noted(zone.id) {
                    let why = "no translated directive uses the zone";
                    self.log.note(zone.id, Coverage::NotNeeded, why);
                }
            }
        }
        for name in ["map", "geo", "split_clients"] {
            for map in scope.own_named(name) {
                if self.log.is_noted(map.id) {
                    continue;
                }
                if let Some(comment) = self.log.note_from_table(map.id) {
                    table.comment(comment);
                }
                for entry in map.children() {
                    let why = format!("as its `{name}`: write a route for each case");
                    self.log.note(entry.id, Coverage::ByHand, why);
                }
            }
        }
        self.draft.server = table;
    }

    /// `gzip` and its settings, at the level where one of them stands.
    pub(super) fn compression(
        &mut self,
        scope: &NginxScope<'_>,
        level: Level,
        table: Option<&mut TomlTable>,
    ) {
        const NAMES: [&str; 4] = ["gzip", "gzip_types", "gzip_min_length", "gzip_comp_level"];
        let is_here = NAMES.iter().any(|name| !scope.own_named(name).is_empty());
        if !is_here {
            return;
        }
        let key = match level {
            Level::Server => "server.compress",
            Level::Site => "compress of the site",
            Level::Route => "compress of the route",
        };
        for name in NAMES {
            for directive in scope.own_named(name) {
                self.log.translated(directive.id, key);
            }
        }
        let value: TomlValue = match scope.is_on("gzip") {
            false => false.into(),
            true => compression_table(scope).into(),
        };
        // Off is the default of the server.
        match table {
            None if value == TomlValue::Bool(false) => {}
            None => self.draft.server.keys.set("compress", value),
            Some(table) => table.set("compress", value),
        }
    }
}

/// Where a setting stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    Server,
    Site,
    Route,
}

fn compression_table(scope: &NginxScope<'_>) -> TomlTable {
    let mut table = TomlTable::with("algorithms", vec!["gzip"]);
    if let Some(types) = scope.find("gzip_types") {
        let all = types.args.iter().any(|kind| kind == "*");
        let mut kinds = vec!["text/html"];
        if all {
            kinds = vec!["*"];
        } else {
            kinds.extend(
                types
                    .args
                    .iter()
                    .map(String::as_str)
                    .filter(|kind| kind.contains('/') && !kind.ends_with('/')),
            );
            kinds.dedup();
        }
        let kinds: Vec<&str> = dedup(kinds);
        table.set("types", kinds);
    }
    if let Some(size) = scope
        .find("gzip_min_length")
        .and_then(|it| units::number(it.arg(0)))
    {
        table.set("min_size", size);
    }
    let level = scope
        .find("gzip_comp_level")
        .and_then(|it| units::number(it.arg(0)));
    if let Some(level) = level.filter(|level| (1..=9).contains(level)) {
        table.set("gzip_level", level);
    }
    table
}

fn dedup(mut kinds: Vec<&str>) -> Vec<&str> {
    let mut seen = std::collections::BTreeSet::new();
    kinds.retain(|kind| seen.insert(*kind));
    kinds
}

/// The size of a body; 0 of nginx is no bound.
pub(super) fn body_size(bytes: u64) -> String {
    match bytes {
        0 => "1TiB".to_owned(),
        bytes => penstock_config::format_size(bytes),
    }
}
