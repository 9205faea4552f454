//! `server` blocks become sites: hosts, addresses, certificates.
//!
//! nginx chooses a server by address and name. Penstock has one site for a host, at all listeners.
//! So each host gets the routes of all servers with its name, and where there are several, each with
//! the scheme or the listeners of its server as a condition.
//!
//! # Invariants
//! - Where a file has other listeners than `:80` and `:443`, a server is reached by its own alone.

use std::collections::{BTreeMap, BTreeSet};

use super::NginxTranslator;
use super::main_level::Level;
use super::routes::ServerBlock;
use super::scope::NginxScope;
use super::syntax::NginxDirective;
use crate::draft::{DraftSite, DraftTable};
use crate::limits;
use crate::report::Coverage;
use crate::toml_value::TomlTable;

/// A server with its addresses and names.
struct NamedServer<'a> {
    scope: NginxScope<'a>,
    directive: Option<&'a NginxDirective>,
    names: Vec<String>,
    /// Addresses as `server.listen` has them, and whether they have TLS.
    listeners: Vec<(String, bool)>,
    default_for: Vec<String>,
}

impl<'a> NginxTranslator<'a> {
    /// All servers of `http`.
    pub(super) fn servers(&mut self, http: &NginxScope<'a>) {
        let blocks = http.own_named("server").to_vec();
        let mut servers: Vec<NamedServer<'a>> = Vec::new();
        for directive in blocks {
            let scope = http.within(directive.children());
            servers.push(self.named_server(scope, Some(directive)));
        }
        if servers.is_empty() && !http.own_named("location").is_empty() {
            // A file that a `server` includes.
            servers.push(self.named_server(http.clone(), None));
        }
        if servers.is_empty() {
            return;
        }
        for (hosts, members) in sites_of(&servers) {
            if self.draft.route_count() > limits::MAX_ROUTES {
                self.has_too_many_routes = true;
                return;
            }
            self.site(&servers, hosts, &members);
        }
    }

    fn named_server(
        &mut self,
        scope: NginxScope<'a>,
        directive: Option<&'a NginxDirective>,
    ) -> NamedServer<'a> {
        let mut server = NamedServer {
            directive,
            names: Vec::new(),
            listeners: Vec::new(),
            default_for: Vec::new(),
            scope,
        };
        if let Some(directive) = directive {
            self.log.translated(directive.id, "[[sites]]");
        }
        for names in server.scope.own_named("server_name").to_vec() {
            self.log.translated(names.id, "hosts");
            for name in &names.args {
                match host(name) {
                    HostName::Host(host) => server.names.push(host),
                    HostName::Any => {}
                    HostName::Unwritable(why) => {
                        let mut table = std::mem::take(&mut self.draft.server);
                        self.leave(names.id, Coverage::ByHand, why, &mut table);
                        self.draft.server = table;
                    }
                }
            }
        }
        let listens = server.scope.own_named("listen").to_vec();
        let has_ssl = server
            .scope
            .own_named("ssl")
            .last()
            .is_some_and(|it| it.arg(0) == "on");
        for ssl in server.scope.own_named("ssl") {
            self.log.translated(ssl.id, "tls of the listener");
        }
        for directive in &listens {
            self.listen(directive, has_ssl, &mut server);
        }
        if server.listeners.is_empty() {
            if listens.is_empty() {
                self.draft.listen(":80", &[]);
            }
            server.listeners.push((":80".to_owned(), false));
        }
        server
    }

    fn listen(&mut self, directive: &NginxDirective, has_ssl: bool, server: &mut NamedServer<'a>) {
        let has = |word: &str| directive.args.iter().skip(1).any(|it| it == word);
        if has("udp") {
            return;
        }
        let text = directive.arg(0);
        let Some((address, port)) = address(text) else {
            let why = "`server.listen` has addresses, and no names of hosts";
            let mut table = std::mem::take(&mut self.draft.server);
            self.leave(directive.id, Coverage::ByHand, why, &mut table);
            self.draft.server = table;
            return;
        };
        let has_tls = has("ssl") || has_ssl || (has("quic") && port == "443");
        if has("default_server") || has("default") {
            server.default_for.push(address.clone());
        }
        let mut keys = Vec::new();
        if has_tls {
            keys.push("tls");
        }
        if has("proxy_protocol") {
            keys.push("proxy_protocol");
        }
        // `:443` of a server with TLS and without it is one listener.
        if !has("quic") {
            self.draft.listen(&address, &keys);
        }
        server.listeners.push((address, has_tls));
        let unsupported = ["http2", "quic", "spdy"].iter().find(|word| has(word));
        match unsupported {
            Some(word) => {
                let detail = format!("`server.listen`; not `{word}`: clients have HTTP/1.1");
                self.log.note(directive.id, Coverage::Translated, detail);
            }
            None => self.log.translated(directive.id, "server.listen"),
        }
    }

    fn site(&mut self, servers: &[NamedServer<'a>], hosts: Vec<String>, members: &[Member]) {
        let mut site = DraftSite::default();
        let is_default = hosts.is_empty();
        if !is_default {
            site.table.keys.set("hosts", hosts);
        } else {
            let names: BTreeSet<&String> = members
                .iter()
                .flat_map(|it| &servers[it.server].names)
                .collect();
            if !names.is_empty() {
                let names: Vec<&str> = names.into_iter().take(20).map(String::as_str).collect();
                site.table.comment(format!(
                    "The default server: it answers for every other host, too ({})",
                    names.join(", ")
                ));
            }
        }
        let secure = members
            .iter()
            .find(|it| servers[it.server].listeners.iter().any(|(_, tls)| *tls));
        let mut has_tls = false;
        if let Some(member) = secure {
            has_tls = self.certificate(&servers[member.server].scope, &mut site.table);
        }
        if has_tls {
            site.table.keys.set("redirect_to_https", false);
        }
        for member in members {
            let server = &servers[member.server];
            let name = server.names.first().cloned().unwrap_or_default();
            let block = ServerBlock::new(server.scope.clone(), name, member.matches.clone());
            let is_first = site.routes.is_empty();
            if is_first || !site.table.keys.has("error_pages") {
                self.error_pages(&block, &server.scope, &mut site.table, Level::Site);
            }
            let first_unlogged = self.unlogged.len();
            let routes = self.server_routes(&block);
            site.routes.extend(routes);
            if server.directive.is_some() {
                self.compression(&server.scope, Level::Site, Some(&mut site.table.keys));
                self.site_access_logs(&server.scope, first_unlogged, &mut site.table.keys);
                self.common_settings(server.scope.own());
            }
            for name in ["root", "index"] {
                for directive in server.scope.own_named(name) {
                    if !self.log.is_noted(directive.id) {
                        self.log
                            .note(directive.id, Coverage::NotNeeded, "no route serves files");
                    }
                }
            }
            self.leave_rest(server.scope.own(), &mut site.table);
        }
        self.draft.sites.push(site);
    }

    /// `tls` and `client_certificates` of a site.
    fn certificate(&mut self, scope: &NginxScope<'a>, site: &mut DraftTable) -> bool {
        let Some(certificate) = scope.find("ssl_certificate") else {
            site.comment("nginx has no certificate here: write `tls`");
            return false;
        };
        let key = scope.find("ssl_certificate_key");
        let is_file = |text: &str| {
            !text.contains('$') && !text.starts_with("data:") && !text.starts_with("engine:")
        };
        if !is_file(certificate.arg(0)) || key.is_some_and(|key| !is_file(key.arg(0))) {
            let why = "a certificate is a file. `acme.on_demand` orders certificates for new names";
            self.leave(certificate.id, Coverage::ByHand, why, site);
            return false;
        }
        site.keys
            .set_in(&["tls", "certificate"], certificate.arg(0));
        self.log.translated(certificate.id, "tls.certificate");
        if let Some(key) = key {
            if key.arg(0) != certificate.arg(0) {
                site.keys.set_in(&["tls", "key"], key.arg(0));
            }
            self.log.translated(key.id, "tls.key");
        }
        let ca = scope.find("ssl_client_certificate");
        if let Some(verify) = scope.find("ssl_verify_client") {
            self.log.translated(verify.id, "client_certificates.mode");
            if let (Some(ca), true) = (ca, verify.arg(0) != "off") {
                if verify.arg(0) != "on" {
                    site.keys
                        .set_in(&["client_certificates", "mode"], "request");
                }
                site.keys.set_in(&["client_certificates", "ca"], ca.arg(0));
                if let Some(list) = scope.find("ssl_crl") {
                    site.keys
                        .set_in(&["client_certificates", "crl"], list.arg(0));
                    self.log.translated(list.id, "client_certificates.crl");
                }
            }
        }
        if let Some(ca) = ca {
            self.log.translated(ca.id, "client_certificates.ca");
        }
        true
    }
}

/// A server of a site, and the conditions of its routes.
struct Member {
    server: usize,
    matches: TomlTable,
}

/// Hosts that have the same servers, with those. The site without hosts is the last.
fn sites_of(servers: &[NamedServer<'_>]) -> Vec<(Vec<String>, Vec<Member>)> {
    // The server of each listener for hosts that no server names.
    let mut defaults: ServersByListener<'_> = BTreeMap::new();
    for (index, server) in servers.iter().enumerate() {
        for (listener, _) in &server.listeners {
            defaults.entry(listener).or_insert(index);
        }
    }
    for (index, server) in servers.iter().enumerate().rev() {
        for listener in &server.default_for {
            defaults.insert(listener, index);
        }
    }
    let mut by_host: BTreeMap<&str, ServersByListener<'_>> = BTreeMap::new();
    let mut order: Vec<&str> = Vec::new();
    for (index, server) in servers.iter().enumerate() {
        for name in &server.names {
            let own = by_host.entry(name).or_insert_with(|| {
                order.push(name);
                BTreeMap::new()
            });
            for (listener, _) in &server.listeners {
                own.entry(listener).or_insert(index);
            }
        }
    }
    let mut groups: Vec<(Vec<String>, ServersByListener<'_>)> = Vec::new();
    let mut places: BTreeMap<ServersByListener<'_>, usize> = BTreeMap::new();
    for host in order {
        let Some(mut own) = by_host.remove(host) else {
            continue;
        };
        // At other listeners their default servers answer for this host. Those of the web are one.
        let is_on_web = own.keys().any(|it| is_web(it));
        for (listener, index) in &defaults {
            if !is_on_web || !is_web(listener) {
                own.entry(listener).or_insert(*index);
            }
        }
        if own == defaults {
            continue;
        }
        let at = *places.entry(own.clone()).or_insert_with(|| {
            groups.push((Vec::new(), own));
            groups.len() - 1
        });
        groups[at].0.push(host.to_owned());
    }
    groups.push((Vec::new(), defaults));
    groups
        .into_iter()
        .map(|(hosts, own)| (hosts, members(servers, &own)))
        .collect()
}

/// The server of each listener.
type ServersByListener<'a> = BTreeMap<&'a str, usize>;

fn is_web(listener: &str) -> bool {
    matches!(listener, ":80" | ":443")
}

fn members(servers: &[NamedServer<'_>], own: &ServersByListener<'_>) -> Vec<Member> {
    let order: BTreeSet<usize> = own.values().copied().collect();
    let is_alone = order.len() == 1;
    let schemes_of = |index: &usize| -> BTreeSet<bool> {
        let listeners = servers[*index].listeners.iter();
        let listeners = listeners.filter(|(it, _)| own.get(it.as_str()) == Some(index));
        listeners.map(|(_, tls)| *tls).collect()
    };
    let schemes: Vec<BTreeSet<bool>> = order.iter().map(schemes_of).collect();
    let by_scheme =
        schemes.len() == 2 && schemes.iter().all(|it| it.len() == 1) && schemes[0] != schemes[1];
    let member = |(at, index): (usize, &usize)| {
        let mut matches = TomlTable::default();
        if !is_alone && by_scheme {
            let secure = schemes[at].contains(&true);
            matches.set("scheme", if secure { "https" } else { "http" });
        } else if !is_alone {
            let listeners = own.iter().filter(|(_, server)| *server == index);
            let listeners: Vec<&str> = listeners.map(|(listener, _)| *listener).collect();
            matches.set("listener", listeners);
        }
        Member {
            server: *index,
            matches,
        }
    };
    order.iter().enumerate().map(member).collect()
}

enum HostName {
    Host(String),
    /// All hosts.
    Any,
    Unwritable(&'static str),
}

fn host(name: &str) -> HostName {
    let name = name.to_ascii_lowercase();
    if matches!(name.as_str(), "_" | "" | "localhost" | "*" | "$hostname") && name != "localhost" {
        return HostName::Any;
    }
    if name.starts_with('~') {
        return HostName::Unwritable(
            "hosts have no expressions: write a route with `match.header` and `Host`",
        );
    }
    let name = match name.strip_prefix('.') {
        Some(rest) => format!("*.{rest}"),
        None => name,
    };
    match penstock_config::HostPattern::parse(&name) {
        Some(_) => HostName::Host(name),
        None => HostName::Unwritable("`hosts` have names and `*.example.com`"),
    }
}

/// The address of a listener, and its port or path.
fn address(text: &str) -> Option<(String, String)> {
    if text.starts_with("unix:") {
        return Some((text.to_owned(), text.to_owned()));
    }
    let is_port = |text: &str| text.parse::<u16>().is_ok();
    if is_port(text) {
        return Some((format!(":{text}"), text.to_owned()));
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if is_port(port) && !host.ends_with(':') => (host, port),
        _ => (text, "80"),
    };
    let host = match host {
        "*" | "0.0.0.0" | "[::]" => "",
        "localhost" => "127.0.0.1",
        host => host,
    };
    let inner = host.trim_start_matches('[').trim_end_matches(']');
    let is_address = host.is_empty() || inner.parse::<std::net::IpAddr>().is_ok();
    is_address.then(|| (format!("{host}:{port}"), port.to_owned()))
}
