//! The clients of a route: networks, passwords, services that decide, rates.

use std::collections::BTreeMap;

use super::NginxTranslator;
use super::common::is_network;
use super::content::pass_directive;
use super::routes::{Answer, ServerBlock};
use super::scope::NginxScope;
use super::syntax::NginxDirective;
use super::upstreams::PassTarget;
use super::values;
use crate::draft::DraftTable;
use crate::report::Coverage;
use crate::toml_value::TomlTable;
use crate::units;

impl<'a> NginxTranslator<'a> {
    /// `allow`, `deny` and `satisfy`.
    pub(super) fn access(
        &mut self,
        scope: &NginxScope<'a>,
        route: &mut DraftTable,
        answer: Answer,
    ) {
        let (allows, denies) = (scope.find_all("allow"), scope.find_all("deny"));
        if allows.is_empty() && denies.is_empty() {
            return;
        }
        // Both stand in one block, or those of the inner one count.
        let own_rules = !scope.own_named("allow").is_empty() || !scope.own_named("deny").is_empty();
        let mut all: Vec<&NginxDirective> = match own_rules {
            true => scope
                .own_named("allow")
                .iter()
                .chain(scope.own_named("deny"))
                .copied()
                .collect(),
            false => allows.iter().chain(denies).copied().collect(),
        };
        all.sort_by_key(|directive| directive.id);
        if answer == Answer::Own {
            for directive in all {
                let why = "an answer of the server is for all clients";
                self.log.note(directive.id, Coverage::ByHand, why);
            }
            return;
        }
        let (mut allow, mut deny): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
        let mut refuses_rest = false;
        let mut has_allow = false;
        for directive in all {
            let network = match directive.arg(0) {
                "all" => "all",
                "unix:" => "unix",
                network if is_network(network) => network,
                _ => {
                    let why = "`allow` and `deny` have addresses and networks";
                    self.leave(directive.id, Coverage::ByHand, why, route);
                    continue;
                }
            };
            self.log.translated(directive.id, &directive.name);
            match (directive.name.as_str(), network) {
                ("deny", "all") => {
                    refuses_rest = true;
                    break;
                }
                ("allow", "all") => break,
                ("deny", network) => {
                    if has_allow {
                        let why = "`deny` refuses in any order, also those that `allow` has";
                        self.leave(directive.id, Coverage::ByHand, why, route);
                    }
                    deny.push(network);
                }
                (_, network) => {
                    has_allow = true;
                    allow.push(network);
                }
            }
        }
        if !deny.is_empty() {
            route.keys.set("deny", deny);
        }
        if refuses_rest && allow.is_empty() {
            for key in ["files", "upstream", "rewrite", "deny", "redirect"] {
                route.keys.remove(key);
            }
            route.keys.set("respond", TomlTable::with("status", 403));
        } else if refuses_rest {
            route.keys.set("allow", allow);
        }
        if let Some(directive) = scope.find("satisfy") {
            self.log.translated(directive.id, "satisfy");
        }
    }

    /// `auth_basic` and `auth_request`.
    pub(super) fn authentication(
        &mut self,
        server: &ServerBlock<'a>,
        scope: &NginxScope<'a>,
        route: &mut DraftTable,
    ) {
        if route.keys.has("respond") {
            return;
        }
        if let Some(basic) = scope.find("auth_basic") {
            self.log.translated(basic.id, "basic_auth.realm");
            let file = scope.find("auth_basic_user_file");
            if let Some(file) = file.filter(|_| basic.arg(0) != "off") {
                self.basic_auth(basic, file, route);
            } else if let Some(file) = file {
                self.log.translated(file.id, "basic_auth.users");
            }
        }
        if let Some(request) = scope.find("auth_request").filter(|it| it.arg(0) != "off") {
            self.forward_auth(server, scope, request, route);
        }
        let ways = ["allow", "basic_auth", "forward_auth"];
        let count = ways.iter().filter(|key| route.keys.has(key)).count();
        if count > 1 && scope.find("satisfy").is_some_and(|it| it.arg(0) == "any") {
            route.keys.set("satisfy", "any");
        }
    }

    fn basic_auth(
        &mut self,
        basic: &NginxDirective,
        file: &NginxDirective,
        route: &mut DraftTable,
    ) {
        if file.arg(0).contains('$') {
            let why = "`basic_auth.users` is one file";
            return self.leave(file.id, Coverage::ByHand, why, route);
        }
        let realm = basic.arg(0).replace(['"', '\\'], "");
        if !realm.contains('$') && !realm.chars().any(char::is_control) {
            route.keys.set_in(&["basic_auth", "realm"], realm);
        }
        route
            .keys
            .set_in(&["basic_auth", "users", "file"], file.arg(0));
        self.log.translated(file.id, "basic_auth.users");
    }

    fn forward_auth(
        &mut self,
        server: &ServerBlock<'a>,
        scope: &NginxScope<'a>,
        request: &NginxDirective,
        route: &mut DraftTable,
    ) {
        let location = server.locations.for_path(request.arg(0));
        let pass = location.and_then(|it| pass_directive(&it.scope));
        let target = pass.and_then(|pass| PassTarget::parse(&pass.name, pass.arg(0)));
        let address = target
            .as_ref()
            .and_then(|target| self.first_address(target));
        let (Some(target), Some(address)) = (target, address) else {
            let why = "`forward_auth.url` is the address of the service";
            return self.leave(request.id, Coverage::ByHand, why, route);
        };
        let scheme = if target.has_tls { "https" } else { "http" };
        let uri = target
            .uri
            .as_deref()
            .filter(|uri| !uri.contains('$'))
            .unwrap_or_else(|| request.arg(0));
        route.keys.set_in(
            &["forward_auth", "url"],
            format!("{scheme}://{address}{uri}"),
        );
        self.log.translated(request.id, "forward_auth.url");
        self.copied_headers(scope, route);
    }

    /// Fields of the service's answer that a request gets: `auth_request_set` and `proxy_set_header`.
    fn copied_headers(&mut self, scope: &NginxScope<'a>, route: &mut DraftTable) {
        let mut fields: Vec<String> = Vec::new();
        let uses = scope.find_all("proxy_set_header").iter();
        let uses: BTreeMap<&str, &NginxDirective> = uses.map(|it| (it.arg(1), *it)).collect();
        for set in scope.find_all("auth_request_set").to_vec() {
            let Some(field) = set.arg(1).strip_prefix("$upstream_http_") else {
                continue;
            };
            let field = values::field_name(field);
            let uses = uses.get(set.arg(0));
            let is_same = uses.is_some_and(|it| it.arg(0).eq_ignore_ascii_case(&field));
            if is_same {
                fields.push(field);
                self.log.translated(set.id, "forward_auth.copy_headers");
                if let Some(directive) = uses {
                    self.log
                        .translated(directive.id, "forward_auth.copy_headers");
                }
            } else {
                let why = "`forward_auth.copy_headers` keeps the name of the field";
                self.leave(set.id, Coverage::ByHand, why, route);
            }
        }
        if !fields.is_empty() {
            route.keys.set_in(&["forward_auth", "copy_headers"], fields);
        }
    }

    /// The first address of a target.
    fn first_address(&self, target: &PassTarget) -> Option<String> {
        if target.server.starts_with("unix:") {
            return None;
        }
        let Some(block) = self.upstream_blocks.get(target.server.as_str()) else {
            return Some(target.address());
        };
        let server = block.children().iter().find(|it| it.name == "server")?;
        let address = server.arg(0);
        (!address.starts_with("unix:")).then(|| super::upstreams::with_port(address, "80"))
    }

    /// `limit_req` and `limit_conn`.
    pub(super) fn rates(&mut self, scope: &NginxScope<'a>, route: &mut DraftTable) {
        if route.keys.has("respond") {
            return;
        }
        for directive in scope.find_all("limit_req").to_vec() {
            let parameter =
                |name: &str| directive.args.iter().find_map(|arg| arg.strip_prefix(name));
            let Some(zone) = parameter("zone=").and_then(|name| self.zones.get(name)) else {
                continue;
            };
            let rate = zone.rate.replace("r/s", "/s").replace("r/m", "/m");
            let burst = parameter("burst=")
                .and_then(units::number)
                .unwrap_or(0)
                .min(999_999);
            let is_delayed = burst > 0 && !directive.args.iter().any(|arg| arg == "nodelay");
            let (id, key) = (zone.id, zone.key.clone());
            if route.keys.has("rate_limit") {
                let why = "a route has one `rate_limit`; `key` may have several parts";
                self.leave(directive.id, Coverage::ByHand, why, route);
                continue;
            }
            let Some(number) = rate
                .split('/')
                .next()
                .and_then(units::number)
                .filter(|it| *it > 0)
            else {
                continue;
            };
            let Some(key) = rate_key(&key) else {
                let why = "`rate_limit.key` has clients, users, hosts, paths, fields and cookies";
                self.leave(directive.id, Coverage::ByHand, why, route);
                continue;
            };
            let mut limit = TomlTable::with("rate", rate.as_str());
            limit.set("burst", burst + 1);
            if key != "client" {
                limit.set("key", key);
            }
            if is_delayed {
                let unit = if rate.ends_with("/s") { 1_000 } else { 60_000 };
                let millis = (burst * unit / number).clamp(1, 3_600_000);
                limit.set("max_delay", units::from_millis(millis));
            }
            route.keys.set("rate_limit", limit);
            self.log.translated(directive.id, "rate_limit");
            self.log.translated(id, "rate_limit.rate");
        }
        self.concurrency(scope, route);
    }

    fn concurrency(&mut self, scope: &NginxScope<'a>, route: &mut DraftTable) {
        for directive in scope.find_all("limit_conn").to_vec() {
            let zone = self
                .zones
                .get(directive.arg(0))
                .map(|zone| (zone.id, zone.key.clone()));
            let number = units::number(directive.arg(1)).filter(|it| (1..=1_000_000).contains(it));
            let (Some((id, key)), Some(number)) = (zone, number) else {
                continue;
            };
            let key = rate_key(&key);
            if route.keys.has("max_concurrent") || key.is_none() {
                let why = "a route has one `max_concurrent`, by `key`";
                self.leave(directive.id, Coverage::ByHand, why, route);
                continue;
            }
            match key.unwrap_or_default() {
                key if key == "client" => route.keys.set("max_concurrent", number),
                key => {
                    route.keys.set_in(&["max_concurrent", "max"], number);
                    route.keys.set_in(&["max_concurrent", "key"], key);
                }
            }
            self.log.translated(directive.id, "max_concurrent");
            self.log.translated(id, "max_concurrent.key");
        }
        if let Some(rate) = scope.find("limit_rate")
            && let Some(bytes) = units::bytes(rate.arg(0)).filter(|it| *it > 0)
        {
            let rate_text = format!("{}/s", penstock_config::format_size(bytes));
            route.keys.set_in(&["response_rate", "rate"], rate_text);
            self.log.translated(rate.id, "response_rate.rate");
            if let Some(after) = scope.find("limit_rate_after")
                && let Some(size) = units::size(after.arg(0))
            {
                route.keys.set_in(&["response_rate", "after"], size);
                self.log.translated(after.id, "response_rate.after");
            }
        }
    }
}

/// The key of a rate from that of a zone.
fn rate_key(key: &str) -> Option<String> {
    Some(match key {
        "$binary_remote_addr" | "$remote_addr" => "client".to_owned(),
        "$host" | "$http_host" => "host".to_owned(),
        "$server_name" => "route".to_owned(),
        "$uri" | "$request_uri" => "path".to_owned(),
        key => match (key.strip_prefix("$http_"), key.strip_prefix("$cookie_")) {
            (Some(field), _) => format!("header:{}", values::field_name(field)),
            (_, Some(cookie)) => format!("cookie:{cookie}"),
            _ => return None,
        },
    })
}
