//! Blocks of sites: hosts, listeners, certificates, errors.

use std::collections::BTreeMap;

use super::CaddyTranslator;
use super::addresses::SiteAddress;
use super::global::directory;
use super::placeholders::environment;
use super::routes::BlockContext;
use super::syntax::CaddyDirective;
use crate::draft::{DraftSite, DraftTable};
use crate::matcher::RequestMatcher;
use crate::report::Coverage;
use crate::toml_value::{TomlTable, TomlValue};

/// A block with the port, listeners and scheme that its requests have.
struct SiteBlock<'d> {
    directive: &'d CaddyDirective,
    hosts: Vec<String>,
    port: String,
    /// Addresses as `server.listen` has them.
    listeners: Vec<String>,
    has_tls: bool,
}

impl CaddyTranslator<'_> {
    /// Translates all sites. Blocks for the same hosts become one site.
    pub(super) fn sites<'d>(&mut self, directives: &'d [CaddyDirective]) {
        let mut groups: Vec<(Vec<String>, Vec<SiteBlock<'d>>)> = Vec::new();
        let mut places: BTreeMap<Vec<String>, usize> = BTreeMap::new();
        for directive in directives {
            for block in self.site_blocks(directive) {
                let hosts = block.hosts.clone();
                let at = *places.entry(hosts.clone()).or_insert_with(|| {
                    groups.push((hosts, Vec::new()));
                    groups.len() - 1
                });
                groups[at].1.push(block);
            }
        }
        // The site without hosts is the last.
        groups.sort_by_key(|(hosts, _)| hosts.is_empty());
        for (hosts, blocks) in groups {
            let site = self.site(hosts, &blocks);
            self.draft.sites.push(site);
        }
    }

    /// The blocks of a directive: one for each port.
    fn site_blocks<'d>(&mut self, directive: &'d CaddyDirective) -> Vec<SiteBlock<'d>> {
        let addresses = std::iter::once(&directive.name).chain(&directive.args);
        let addresses: Vec<String> = addresses
            .flat_map(|it| it.split(',').map(str::to_owned).collect::<Vec<_>>())
            .filter(|it| !it.is_empty())
            .collect();
        let mut blocks: Vec<SiteBlock<'d>> = Vec::new();
        let bind: Vec<String> = directive
            .children()
            .iter()
            .filter(|it| it.name == "bind")
            .flat_map(|it| it.args.iter().map(|it| environment(it)).collect::<Vec<_>>())
            .collect();
        for inner in directive.children().iter().filter(|it| it.name == "bind") {
            self.log.translated(inner.id, "server.listen");
        }
        for text in &addresses {
            let Some(address) = SiteAddress::parse(text)
                .filter(|it| it.path.is_empty() || it.path == "/" || it.path == "/*")
            else {
                let why = format!("`hosts` have no name like `{text}`");
                let comment = self.log.leave(directive.id, Coverage::ByHand, why);
                self.draft.server.comment(comment);
                continue;
            };
            let own_tls = directive.child("tls").is_some();
            let is_plain = address.scheme.as_deref() == Some("http")
                || (address.port.as_deref() == Some(self.options.http_port.as_str())
                    && address.scheme.is_none())
                || (address.host.is_none() && address.scheme.is_none() && !own_tls)
                || (self.options.has_no_https && !own_tls);
            let has_tls = !is_plain;
            let port = address.port.clone().unwrap_or_else(|| match has_tls {
                true => self.options.https_port.clone(),
                false => self.options.http_port.clone(),
            });
            let listeners = self.listen(&port, has_tls, &bind);
            if has_tls && !self.options.has_no_redirects {
                let http = self.options.http_port.clone();
                self.listen(&http, false, &bind);
            }
            let host = address.host.clone();
            let known = blocks
                .iter_mut()
                .find(|it| it.port == port && it.hosts.is_empty() == host.is_none());
            match known {
                Some(block) => block.hosts.extend(host),
                None => blocks.push(SiteBlock {
                    directive,
                    hosts: host.into_iter().collect(),
                    port,
                    listeners,
                    has_tls,
                }),
            }
        }
        self.log.translated(directive.id, "hosts of [[sites]]");
        blocks
    }

    fn site<'d>(&mut self, hosts: Vec<String>, blocks: &[SiteBlock<'d>]) -> DraftSite {
        let mut site = DraftSite::default();
        let name = hosts
            .first()
            .cloned()
            .unwrap_or_else(|| "default".to_owned());
        if !hosts.is_empty() {
            site.table.keys.set("hosts", hosts.clone());
        }
        if hosts.iter().any(|host| host.starts_with("${")) {
            let text = "the variable has one host, without scheme and port";
            site.table.comment(text);
        }
        let secure = blocks.iter().find(|it| it.has_tls);
        if let Some(block) = secure {
            self.certificate(block.directive, &hosts, &mut site.table);
        }
        let is_mixed = blocks.len() > 1;
        if is_mixed && site.table.keys.has("tls") {
            site.table.keys.set("redirect_to_https", false);
        }
        for block in blocks {
            let context = BlockContext {
                outer: self.matcher_of_listeners(block, blocks),
                ..BlockContext::default()
            };
            let directives = block.directive.children();
            self.site_encodes.clear();
            for directive in directives {
                match directive.name.as_str() {
                    "log" => self.site_log(directive, &name, &mut site.table),
                    "encode"
                        if directive
                            .args
                            .first()
                            .is_none_or(|it| !it.starts_with(['@', '/'])) =>
                    {
                        let args: Vec<String> = directive
                            .args
                            .iter()
                            .filter(|it| *it != "*")
                            .cloned()
                            .collect();
                        let value = self.encode(directive, &args);
                        self.site_encodes.insert(directive.id);
                        site.table.keys.set("compress", value);
                        self.leave_rest(directive.children(), &mut site.table);
                    }
                    "handle_errors" => self.error_pages(directive, directives, &mut site.table),
                    _ => {}
                }
            }
            let routes = self.block_routes(directives, &context, true);
            site.routes.extend(routes);
            self.leave_rest(directives, &mut site.table);
        }
        site
    }

    /// The conditions of a block: its scheme beside others for the same hosts, and its listeners where
    /// the file has others than those of the web.
    fn matcher_of_listeners(
        &self,
        block: &SiteBlock<'_>,
        blocks: &[SiteBlock<'_>],
    ) -> RequestMatcher {
        let mut matcher = RequestMatcher::default();
        let is_mixed = blocks.len() > 1;
        let same_scheme = blocks.iter().filter(|it| it.has_tls == block.has_tls);
        let has_own_scheme = same_scheme.count() == 1;
        let web = [&self.options.http_port, &self.options.https_port].map(|it| format!(":{it}"));
        let is_on_web = block.listeners.iter().all(|it| web.contains(it));
        let mut all = self.draft.listener_addresses();
        let is_everywhere = all.all(|it| block.listeners.iter().any(|own| own == it));
        if (!is_on_web && !is_everywhere) || (is_mixed && !has_own_scheme) {
            let listeners = block.listeners.clone();
            matcher.matches.set("listener", listeners);
        } else if is_mixed {
            let scheme = if block.has_tls { "https" } else { "http" };
            matcher.matches.set("scheme", scheme);
        }
        matcher
    }

    /// `tls` of a site.
    fn certificate(&mut self, directive: &CaddyDirective, hosts: &[String], site: &mut DraftTable) {
        let is_local = hosts
            .iter()
            .all(|host| SiteAddress::parse(host).is_some_and(|it| it.is_local()))
            && !hosts.is_empty();
        let automatic = if is_local || self.options.has_local_certificates {
            "local"
        } else {
            "auto"
        };
        if hosts.iter().any(|host| host.starts_with("*.")) && automatic == "auto" {
            let challenges = vec!["tls-alpn-01", "http-01", "dns-persist-01"];
            self.draft.acme.keys.set("challenges", challenges);
            self.draft.acme.comment(
                "wildcards need a record of DNS: the log shows it after the first attempt",
            );
        }
        let Some(tls) = directive.child("tls") else {
            if hosts.is_empty() {
                site.comment("a site without hosts needs a certificate: write `tls`");
            } else {
                site.keys.set("tls", automatic);
            }
            return;
        };
        self.log.translated(tls.id, "tls of the site");
        match tls.args.as_slice() {
            [one] if one == "internal" => site.keys.set("tls", "local"),
            [one]
                if one
                    .split_once('@')
                    .is_some_and(|(_, host)| host.contains('.'))
                    || one.starts_with("{$") =>
            {
                self.draft.acme.keys.set("email", environment(one));
                site.keys.set("tls", automatic);
            }
            [certificate, key] => {
                site.keys
                    .set_in(&["tls", "certificate"], environment(certificate));
                site.keys.set_in(&["tls", "key"], environment(key));
            }
            _ => site.keys.set("tls", automatic),
        }
        for option in tls.children() {
            self.tls_option(option, site);
        }
        if hosts.is_empty() && site.keys.text("tls").is_some() {
            site.keys.remove("tls");
            site.comment("a site without hosts has `tls` by `acme.on_demand`, or a file");
        }
        self.leave_rest(tls.children(), site);
    }

    fn tls_option(&mut self, option: &CaddyDirective, site: &mut DraftTable) {
        let value = environment(option.arg(0));
        let key = match option.name.as_str() {
            "ca" => {
                self.draft.acme.keys.set("directory", directory(&value));
                "acme.directory"
            }
            "ca_root" => {
                self.draft.acme.keys.set("ca", value);
                "acme.ca"
            }
            "protocols" => {
                if option.arg(0) == "tls1.3" {
                    self.draft.tls.keys.set("profile", "modern");
                }
                "tls.profile"
            }
            "issuer" if option.arg(0) == "internal" => {
                site.keys.set("tls", "local");
                "tls = \"local\""
            }
            "client_auth" => {
                self.client_certificates(option, site);
                "client_certificates"
            }
            _ => return,
        };
        self.log.translated(option.id, key);
    }

    fn client_certificates(&mut self, option: &CaddyDirective, site: &mut DraftTable) {
        let file = option
            .child("trusted_ca_cert_file")
            .map(|it| (it.id, it.arg(0)));
        let pool = option
            .child("trust_pool")
            .filter(|it| it.arg(0) == "file")
            .map(|it| (it.id, it.arg(1)));
        let Some((id, path)) = file.or(pool).filter(|(_, path)| !path.is_empty()) else {
            site.comment("`client_certificates.ca` is the file of the authorities");
            return;
        };
        self.log.translated(id, "client_certificates.ca");
        if let Some(mode) = option.child("mode") {
            if mode.arg(0).starts_with("request") || mode.arg(0) == "verify_if_given" {
                site.keys
                    .set_in(&["client_certificates", "mode"], "request");
            }
            self.log.translated(mode.id, "client_certificates.mode");
        }
        site.keys
            .set_in(&["client_certificates", "ca"], environment(path));
    }

    /// `handle_errors` with a rewrite to a file: `error_pages`.
    fn error_pages(
        &mut self,
        directive: &CaddyDirective,
        all: &[CaddyDirective],
        site: &mut DraftTable,
    ) {
        let rewrite = directive.child("rewrite");
        let root = directive
            .child("root")
            .or_else(|| all.iter().find(|it| it.name == "root"));
        let root = root.and_then(|it| it.args.last()).map(|it| environment(it));
        let target = rewrite.and_then(|it| it.args.last());
        let (Some(rewrite), Some(target), Some(root)) = (rewrite, target, root) else {
            self.leave(
                directive.id,
                Coverage::ByHand,
                "`error_pages` have a file for each status",
                site,
            );
            return self.leave_rest(directive.children(), site);
        };
        let file = format!("{}{target}", root.trim_end_matches('/'));
        let mut pages = TomlTable::default();
        let code = ["{err.status_code}", "{http.error.status_code}"]
            .into_iter()
            .find(|it| file.contains(it));
        match code {
            Some(code) => {
                for status in self.existing_pages(&file, code) {
                    pages.set(&status, file.replace(code, &status));
                }
            }
            None if directive.args.is_empty() => {
                pages.set("4xx", file.as_str());
                pages.set("5xx", file.as_str());
            }
            None => {
                for status in directive
                    .args
                    .iter()
                    .filter(|it| it.len() == 3 && it.starts_with(['4', '5']))
                {
                    pages.set(status, file.as_str());
                }
            }
        }
        if pages.is_empty() || file.contains('{') && code.is_none() && !file.contains("${") {
            self.leave(
                directive.id,
                Coverage::ByHand,
                "`error_pages` have a file for each status",
                site,
            );
            return self.leave_rest(directive.children(), site);
        }
        site.keys.set("error_pages", TomlValue::Table(pages));
        self.log.translated(directive.id, "error_pages");
        self.log.translated(rewrite.id, "error_pages");
        for inner in directive
            .children()
            .iter()
            .filter(|it| it.name == "file_server" || it.name == "root")
        {
            self.log.translated(inner.id, "error_pages");
        }
        self.leave_rest(directive.children(), site);
    }

    /// Statuses with a page: those whose files are there, else 404.
    fn existing_pages(&self, file: &str, code: &str) -> Vec<String> {
        let (folder, name) = file.rsplit_once('/').unwrap_or((".", file));
        let (before, behind) = name.split_once(code).unwrap_or((name, ""));
        let names = self
            .reader
            .names(std::path::Path::new(folder))
            .unwrap_or_default();
        let status = |name: &String| {
            let status = name.strip_prefix(before)?.strip_suffix(behind)?.to_owned();
            let is_error = status
                .parse::<u16>()
                .is_ok_and(|it| (400..=599).contains(&it));
            is_error.then_some(status)
        };
        let mut found: Vec<String> = names.iter().filter_map(status).collect();
        found.sort();
        if found.is_empty() {
            found.push("404".to_owned());
        }
        found
    }
}
