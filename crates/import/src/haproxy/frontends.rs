//! Frontends of HTTP: listeners, and one site with the routes of all of them.

use std::collections::BTreeMap;

use super::conditions::{self, AclLines, HaproxyCase};
use super::rules::{Place, RuleState};
use super::servers::with_braces;
use super::{HaproxyTranslator, ProxyLines};
use crate::draft::{DraftSite, DraftTable, as_name};
use crate::matcher::RequestMatcher;
use crate::report::Coverage;
use crate::toml_value::{TomlTable, TomlValue};

/// A frontend with its listeners.
struct BoundFrontend<'p, 'a> {
    proxy: &'p ProxyLines<'a>,
    /// Addresses as `server.listen` has them.
    listeners: Vec<String>,
    has_tls: bool,
    is_mixed: bool,
}

impl<'a> HaproxyTranslator<'a> {
    /// One site for all frontends.
    pub(super) fn sites(&mut self, proxies: &[&ProxyLines<'a>]) {
        if proxies.is_empty() {
            return;
        }
        let mut site = DraftSite::default();
        let mut bound: Vec<BoundFrontend<'_, 'a>> = Vec::new();
        for proxy in proxies {
            bound.push(self.bind(proxy, &mut site.table));
        }
        if site.table.keys.has("tls") {
            site.table.keys.set("redirect_to_https", false);
        }
        for frontend in &bound {
            self.log
                .translated(frontend.proxy.section.id, "routes of [[sites]]");
            let outer = matcher_of(frontend, &bound);
            self.common_settings(frontend.proxy);
            self.compression(frontend.proxy, &mut site.table);
            let routes = self.frontend_routes(frontend.proxy, outer);
            site.routes.extend(routes);
            self.leave_lines(&frontend.proxy.section.lines, &mut site.table);
        }
        // Lines of backends that their routes have not used.
        let backends: Vec<ProxyLines<'a>> = self.backends.values().cloned().collect();
        for backend in backends {
            let name = as_name(&backend.section.name);
            let mut table = std::mem::take(self.draft.upstreams.table_mut(&name));
            self.leave_lines(&backend.section.lines, &mut table);
            *self.draft.upstreams.table_mut(&name) = table;
        }
        self.draft.sites.push(site);
    }

    fn bind<'p>(
        &mut self,
        proxy: &'p ProxyLines<'a>,
        site: &mut DraftTable,
    ) -> BoundFrontend<'p, 'a> {
        let mut bound = BoundFrontend {
            proxy,
            listeners: Vec::new(),
            has_tls: false,
            is_mixed: false,
        };
        let mut plain = false;
        for line in proxy.find_all(&["bind"]) {
            let has = |word: &str| line.words.iter().any(|it| it == word);
            let value = |word: &str| {
                line.words
                    .iter()
                    .position(|it| it == word)
                    .and_then(|at| line.words.get(at + 1))
            };
            for text in line.word(1).split(',') {
                let Some((address, _)) = bind_address(text) else {
                    let why = "`server.listen` has addresses with one port each";
                    self.leave(line.id, Coverage::ByHand, why, site);
                    continue;
                };
                let mut flags = Vec::new();
                if has("ssl") {
                    flags.push("tls");
                }
                if has("accept-proxy") {
                    flags.push("proxy_protocol");
                }
                self.draft.listen(&address, &flags);
                bound.listeners.push(address);
            }
            if has("ssl") {
                bound.has_tls = true;
                self.bind_tls(line, value("crt"), site);
                if let (Some(ca), verify) = (value("ca-file"), value("verify")) {
                    site.keys
                        .set_in(&["client_certificates", "ca"], ca.as_str());
                    if verify.is_none_or(|it| it != "required") {
                        site.keys
                            .set_in(&["client_certificates", "mode"], "request");
                    }
                }
                if has("strict-sni") {
                    self.draft.tls.keys.set("unknown_names", "refuse");
                }
                if value("ssl-min-ver").is_some_and(|it| it == "TLSv1.3") {
                    self.draft.tls.keys.set("profile", "modern");
                }
            } else {
                plain = true;
            }
            self.log.translated(line.id, "server.listen");
        }
        bound.is_mixed = bound.has_tls && plain;
        bound
    }

    fn bind_tls(
        &mut self,
        line: &super::syntax::HaproxyLine,
        file: Option<&String>,
        site: &mut DraftTable,
    ) {
        match file {
            Some(file) if !file.ends_with('/') && file.contains('.') => {
                if !site.keys.has("tls") {
                    site.keys.set_in(&["tls", "certificate"], file.as_str());
                }
            }
            Some(_) => {
                let why = "`tls.certificate` is a file; each certificate of a folder has a site with its `hosts`";
                self.leave(line.id, Coverage::ByHand, why, site);
            }
            None => {
                let why = "`tls.certificate` of the site is the file with certificate and key";
                self.leave(line.id, Coverage::ByHand, why, site);
            }
        }
    }

    fn compression(&mut self, proxy: &ProxyLines<'a>, site: &mut DraftTable) {
        for line in proxy.find_all(&["compression"]) {
            match line.word(1) {
                "algo" | "algo-res" => {
                    if line.words.iter().any(|it| it == "gzip") {
                        site.keys.set_in(&["compress", "algorithms"], vec!["gzip"]);
                    }
                }
                "type" | "type-res" => {
                    let kinds: Vec<&str> = line
                        .rest(2)
                        .iter()
                        .map(String::as_str)
                        .filter(|it| it.contains('/') && !it.ends_with('/'))
                        .collect();
                    if !kinds.is_empty() {
                        site.keys.set_in(&["compress", "types"], kinds);
                    }
                }
                _ => continue,
            }
            self.log.translated(line.id, "compress");
        }
    }

    fn frontend_routes(
        &mut self,
        proxy: &ProxyLines<'a>,
        outer: RequestMatcher,
    ) -> Vec<DraftTable> {
        let acls = proxy.acls();
        let mut state = RuleState::new(outer);
        self.rules(proxy, &acls, Place::Frontend, &mut state);
        for line in proxy.find_all(&["monitor-uri"]) {
            let mut route = DraftTable::default();
            state.outer.write(&mut route);
            route.keys.set("path", line.word(1));
            route.keys.set("respond", TomlTable::with("body", "ok\n"));
            state.routes.insert(0, route);
            self.log.translated(line.id, "respond");
        }
        let mut targets: Vec<(String, Vec<HaproxyCase>)> = Vec::new();
        for line in proxy.find_all(&["use_backend"]) {
            match conditions::cases(line.rest(2), &acls) {
                Ok(cases)
                    if cases.iter().all(HaproxyCase::is_plain) && !line.word(1).contains('%') =>
                {
                    targets.push((line.word(1).to_owned(), cases));
                    self.log.translated(line.id, "upstream");
                }
                Ok(_) => self.leave_rule(
                    line,
                    "an upstream is chosen by conditions on the request",
                    &mut state,
                ),
                Err(why) => self.leave_rule(line, &why, &mut state),
            }
        }
        let default = proxy.find(&["default_backend"]);
        if let Some(line) = default {
            targets.push((line.word(1).to_owned(), vec![HaproxyCase::default()]));
            self.log.translated(line.id, "upstream of the last route");
        } else if self.backends.contains_key(&proxy.section.name) {
            targets.push((proxy.section.name.clone(), vec![HaproxyCase::default()]));
        }
        self.settle_acls(proxy, &acls, &mut state);
        for (name, cases) in targets {
            self.backend_routes(proxy, &name, &cases, &mut state);
        }
        state.routes
    }

    /// Routes to a backend, with its own rules.
    fn backend_routes(
        &mut self,
        frontend: &ProxyLines<'a>,
        name: &str,
        cases: &[HaproxyCase],
        state: &mut RuleState,
    ) {
        let Some(backend) = self.backends.get(name).cloned() else {
            let mut note = DraftTable::default();
            note.comment(format!("there is no backend `{name}`"));
            state.routes.push(note);
            return;
        };
        let is_own = backend.section.id == frontend.section.id;
        for case in cases {
            if self.is_full(state.routes.len() + state.conditional.len()) {
                return;
            }
            let Some(requests) = state.outer.and(&case.requests) else {
                let mut note = DraftTable::default();
                note.comment(format!(
                    "the conditions of `{name}` are more than one `match` has"
                ));
                state.routes.push(note);
                continue;
            };
            let mut inner = state.for_backend(requests);
            if !is_own {
                let acls: AclLines<'a> = backend.acls();
                self.rules(&backend, &acls, Place::Backend, &mut inner);
                self.settle_acls(&backend, &acls, &mut inner);
            }
            inner.write_backend(&as_name(name));
            state.routes.append(&mut inner.routes);
        }
    }
}

impl<'a> HaproxyTranslator<'a> {
    /// Notes each ACL as the rules that name it; the lines of rules left by hand are comments.
    fn settle_acls(&mut self, proxy: &ProxyLines<'a>, acls: &AclLines<'a>, state: &mut RuleState) {
        let mut is_written: BTreeMap<&str, bool> = BTreeMap::new();
        for line in proxy.defaults.iter().chain(&proxy.section.lines) {
            let at = line
                .words
                .iter()
                .position(|it| it == "if" || it == "unless");
            let is_left = self
                .log
                .coverage(line.id)
                .is_none_or(|it| it >= Coverage::ByHand)
                && line.word(1) != "auth";
            for word in line.rest(at.map_or(usize::MAX, |at| at + 1)) {
                *is_written.entry(word.trim_start_matches('!')).or_default() |= !is_left;
            }
        }
        let mut note = DraftTable::default();
        for (name, lines) in acls {
            for line in lines {
                match is_written.get(name) {
                    Some(true) => {
                        let why = "`match` of the rules that name it";
                        self.log.note(line.id, Coverage::Translated, why);
                    }
                    Some(false) => {
                        let why = "the rules that name it are left by hand";
                        self.leave(line.id, Coverage::ByHand, why, &mut note);
                    }
                    None => {
                        let why = "no rule of its section names it";
                        self.log.note(line.id, Coverage::NotNeeded, why);
                    }
                }
            }
        }
        if !note.comments.is_empty() {
            state.routes.insert(0, note);
        }
    }
}

/// The conditions of a frontend beside others.
fn matcher_of(frontend: &BoundFrontend<'_, '_>, all: &[BoundFrontend<'_, '_>]) -> RequestMatcher {
    let mut matcher = RequestMatcher::default();
    if all.len() < 2 {
        return matcher;
    }
    let is_only_one = all
        .iter()
        .filter(|it| it.is_mixed || it.has_tls == frontend.has_tls)
        .count()
        == 1;
    if is_only_one && !frontend.is_mixed {
        let scheme = if frontend.has_tls { "https" } else { "http" };
        matcher.matches.set("scheme", scheme);
    } else {
        matcher.matches.set("listener", frontend.listeners.clone());
    }
    matcher
}

/// The address of a listener and its port.
pub(super) fn bind_address(text: &str) -> Option<(String, String)> {
    let text = ["ipv4@", "ipv6@", "quic4@", "quic6@"]
        .iter()
        .find_map(|it| text.strip_prefix(it))
        .unwrap_or(text);
    if let Some(path) = text
        .strip_prefix("unix@")
        .or_else(|| text.starts_with('/').then_some(text))
    {
        return Some((format!("unix:{path}"), path.to_owned()));
    }
    let text = with_braces(text);
    let (host, port) = text.rsplit_once(':')?;
    let is_variable = port.starts_with("${") && port.ends_with('}');
    if !is_variable {
        port.parse::<u16>().ok()?;
    }
    let host = match host.trim_matches(['[', ']']) {
        "*" | "0.0.0.0" | "::" | "" | ":" => String::new(),
        inner => match inner.parse::<std::net::IpAddr>().ok()? {
            std::net::IpAddr::V6(address) => format!("[{address}]"),
            std::net::IpAddr::V4(address) => address.to_string(),
        },
    };
    Some((format!("{host}:{port}"), port.to_owned()))
}

/// A value as a list of one table or several.
pub(super) fn tables(mut all: Vec<TomlTable>) -> TomlValue {
    match all.len() {
        1 => all.swap_remove(0).into(),
        _ => all.into(),
    }
}
