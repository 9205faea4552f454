//! Caches: their storage, and what a location stores.

use super::NginxTranslator;
use super::scope::NginxScope;
use super::syntax::NginxDirective;
use super::values;
use crate::draft::DraftTable;
use crate::report::Coverage;
use crate::toml_value::TomlTable;
use crate::units;

impl<'a> NginxTranslator<'a> {
    /// `proxy_cache_path` and the like: `[caches.NAME]`.
    pub(super) fn cache_path(&mut self, directive: &NginxDirective) {
        let parameter = |name: &str| directive.args.iter().find_map(|arg| arg.strip_prefix(name));
        let Some(zone) = parameter("keys_zone=") else {
            return;
        };
        let name = zone.split(':').next().unwrap_or_default();
        let cache = self.draft.caches.table_mut(name);
        // Objects of nginx have another form.
        cache.keys.set(
            "path",
            format!("{}/penstock", directive.arg(0).trim_end_matches('/')),
        );
        if let Some(bytes) = parameter("max_size=")
            .and_then(units::bytes)
            .filter(|it| *it >= 4096)
        {
            cache
                .keys
                .set("max_size", penstock_config::format_size(bytes));
        }
        self.log.translated(directive.id, "[caches.NAME]");
    }

    /// `cache` of a route.
    pub(super) fn cache(&mut self, scope: &NginxScope<'a>, route: &mut DraftTable) {
        for prefix in ["proxy", "fastcgi", "uwsgi", "scgi"] {
            let Some(directive) = scope.find(&format!("{prefix}_cache")) else {
                continue;
            };
            self.log.translated(directive.id, "cache.stores");
            let name = directive.arg(0);
            if name == "off" {
                continue;
            }
            if !self.draft.caches.has(name) {
                let why = "`[caches.NAME]` of this name is not in the file";
                self.leave(directive.id, Coverage::ByHand, why, route);
                continue;
            }
            let mut cache = TomlTable::with("stores", vec![name]);
            self.cache_times(prefix, scope, &mut cache);
            self.cache_bypass(prefix, scope, &mut cache, route);
            self.cache_rules(prefix, scope, &mut cache, route);
            route.keys.set("cache", cache);
        }
    }

    fn cache_times(&mut self, prefix: &str, scope: &NginxScope<'a>, cache: &mut TomlTable) {
        let all = scope.find_all(&format!("{prefix}_cache_valid")).to_vec();
        let is_any = |directive: &&NginxDirective| directive.args.iter().any(|it| it == "any");
        let has_any = all.iter().any(is_any);
        for directive in all {
            let Some((time, statuses)) = directive.args.split_last() else {
                continue;
            };
            let Some(time) = units::duration(time, "s") else {
                continue;
            };
            let no_status = ["200", "301", "302"].map(str::to_owned);
            let statuses = match statuses {
                [] => &no_status,
                statuses => statuses,
            };
            // What is not `any` has its own time beside it.
            let usual = match has_any {
                true => is_any(&directive),
                false => statuses.iter().any(|it| it == "200"),
            };
            if usual {
                cache.set("default_ttl", time.as_str());
            }
            let is_storable = |status: &str| {
                status
                    .parse()
                    .is_ok_and(|it: u16| penstock_config::STORABLE_STATUSES.contains(&it))
            };
            for status in statuses.iter().filter(|it| is_storable(it)) {
                if has_any || !(usual && ["200", "301", "302"].contains(&status.as_str())) {
                    cache.set_in(&["ttl_by_status", status], time.as_str());
                }
            }
            self.log
                .translated(directive.id, "cache.default_ttl and cache.ttl_by_status");
        }
    }

    fn cache_bypass(
        &mut self,
        prefix: &str,
        scope: &NginxScope<'a>,
        cache: &mut TomlTable,
        route: &mut DraftTable,
    ) {
        for name in [
            format!("{prefix}_cache_bypass"),
            format!("{prefix}_no_cache"),
        ] {
            for directive in scope.find_all(&name).to_vec() {
                for variable in &directive.args {
                    let variable = variable.trim_start_matches('$');
                    let bypass = cache.table_mut("bypass");
                    if let Some(cookie) = variable.strip_prefix("cookie_") {
                        bypass.push("cookies", cookie);
                    } else if let Some(field) = variable.strip_prefix("http_") {
                        bypass.push("headers", values::field_name(field));
                    } else {
                        let why = "`cache.bypass` has fields and cookies";
                        self.leave(directive.id, Coverage::ByHand, why, route);
                        continue;
                    }
                    self.log.translated(directive.id, "cache.bypass");
                }
                if let Some(crate::toml_value::TomlValue::Table(bypass)) = cache.get("bypass")
                    && bypass.is_empty()
                {
                    cache.remove("bypass");
                }
            }
        }
    }

    fn cache_rules(
        &mut self,
        prefix: &str,
        scope: &NginxScope<'a>,
        cache: &mut TomlTable,
        route: &mut DraftTable,
    ) {
        let find = |name: &str| scope.find(&format!("{prefix}_cache_{name}"));
        if let Some(directive) = find("key") {
            let key = directive.args.join("");
            if !key.contains("host") {
                cache.set_in(&["key", "host"], false);
            }
            let has_query = ["request_uri", "args", "query_string"]
                .iter()
                .any(|it| key.contains(it));
            if !has_query {
                cache.set_in(&["key", "query"], false);
            }
            self.log.translated(directive.id, "cache.key");
            for variable in key.split('$').skip(1) {
                if let Some(cookie) = variable.strip_prefix("cookie_") {
                    cache.table_mut("key").push("cookies", cookie);
                } else if let Some(field) = variable
                    .strip_prefix("http_")
                    .filter(|it| !it.starts_with("host"))
                {
                    cache
                        .table_mut("key")
                        .push("headers", values::field_name(field));
                }
            }
        }
        if let Some(directive) = find("min_uses")
            && let Some(number) =
                units::number(directive.arg(0)).filter(|it| (1..=1_000_000).contains(it))
        {
            cache.set("min_uses", number);
            self.log.translated(directive.id, "cache.min_uses");
        }
        if let Some(directive) = find("lock_timeout")
            && let Some(time) = units::duration(directive.arg(0), "s")
        {
            cache.set("lock_timeout", time);
            self.log.translated(directive.id, "cache.lock_timeout");
        }
        if let Some(directive) = find("lock") {
            self.log.note(
                directive.id,
                Coverage::BuiltIn,
                "requests for one object share one fetch",
            );
        }
        let mut stale_while = false;
        if let Some(directive) = find("use_stale") {
            let has = |word: &str| directive.args.iter().any(|it| it == word);
            if has("updating") {
                stale_while = true;
            }
            if has("error")
                || has("timeout")
                || directive.args.iter().any(|it| it.starts_with("http_5"))
            {
                cache.set("stale_if_error", "1h");
            }
            self.log.translated(
                directive.id,
                "cache.stale_if_error and cache.stale_while_revalidate",
            );
            if !has("off") {
                let place = self.log.place(directive.id);
                route.comment(format!(
                    "{place}: nginx has no time for stale objects; an hour is a choice"
                ));
            }
        }
        if let Some(directive) = find("background_update") {
            stale_while |= directive.arg(0) == "on";
            self.log
                .translated(directive.id, "cache.stale_while_revalidate");
        }
        if stale_while {
            cache.set("stale_while_revalidate", "1h");
        }
    }
}
