//! The `[[sites]]` tables and the checks between sites.
//!
//! Called by `parse` after applications, upstreams, caches and pools, because routes name them.
//!
//! # Invariants
//! - A host belongs to one site, and at most one site answers for any host.

use std::collections::BTreeMap;

use crate::findings::LocatedValue;
use crate::hide::HidePattern;
use crate::model::{
    App, BlockingPool, Cache, Compression, Files, Hub, Route, SecurityHeaders, Site, Upstream,
};
use crate::section::{Keys as _, Section};
use crate::values::{HostPattern, PathPattern};
use crate::{admission, compression, error_pages, route, security_headers, tls};

/// What routes may refer to.
pub(crate) struct RouteContext<'a> {
    /// Names of applications, also of those that could not be read.
    pub(crate) app_names: &'a [String],
    /// Applications by name.
    pub(crate) apps: &'a BTreeMap<String, App>,
    /// Names of upstreams.
    pub(crate) upstream_names: &'a [String],
    /// Upstreams by name.
    pub(crate) upstreams: &'a BTreeMap<String, Upstream>,
    /// Caches by name.
    pub(crate) caches: &'a BTreeMap<String, Cache>,
    /// Bounds on held streams.
    pub(crate) hub: &'a Hub,
    /// Names of conditions.
    pub(crate) conditions: &'a [String],
    /// Names of access logs.
    pub(crate) access_logs: &'a [String],
    /// Names of files that are hidden where a route does not say which.
    pub(crate) hide: &'a [HidePattern],
    /// The rule of sites that have none of their own.
    pub(crate) compress: Option<&'a Compression>,
    /// Pools by name.
    pub(crate) blocking: &'a BTreeMap<String, BlockingPool>,
}

/// No application, upstream, site or TCP listener.
pub(crate) const NOTHING_TO_SERVE: &str =
    "nothing to serve: there is no [apps.NAME], [upstreams.NAME], [[sites]] or [[tcp]] table";

/// Reads every site.
pub(crate) fn read(top: &Section<'_>, known: &RouteContext<'_>) -> Vec<Site> {
    let mut hosts_seen: Vec<LocatedValue<HostPattern>> = Vec::new();
    let mut any_seen = None;
    let tables = top.tables("sites");
    if tables.is_empty() && top.is_empty_list("sites") {
        top.report_key("sites", NOTHING_TO_SERVE);
    }
    tables
        .iter()
        .map(|table| {
            let hosts = table.list("hosts", HostPattern::parse);
            let is_any = !table.has("hosts") || table.is_empty_list("hosts");
            let hosts = hosts.unwrap_or_default();
            if is_any && let Some(first) = any_seen.replace(table.offset) {
                let place = table.findings.place_suffix(first, table.offset);
                let problem = format!(
                    "only one site can answer for any host: the one{place} does; give this one \
                     `hosts`"
                );
                table.report(table.offset, problem);
            }
            check_hosts(table, &hosts, &mut hosts_seen);
            let hosts: Vec<_> = hosts.into_iter().map(|host| host.value).collect();
            let compress = compression::read(table, known.compress);
            let mut site = Site::new(route::read(table, known, compress.as_ref()));
            site.compress = compress;
            site.read_keys(table);
            check_canonical_host(table, &site, &hosts);
            tls::read_site(table, &mut site);
            admission::check_client_certificates(table, &site);
            site.access_logs = read_access_logs(table, known.access_logs);
            let site = Site {
                hosts,
                error_pages: error_pages::read(table),
                intercept_errors: error_pages::read_intercepted(table).unwrap_or_default(),
                security_headers: security_headers::read(table)
                    .unwrap_or_else(SecurityHeaders::off),
                ..site
            };
            error_pages::check_intercepted(table, &site);
            site
        })
        .collect()
}

/// The names of the site's own access logs; `None` if it has the server's.
fn read_access_logs(table: &Section<'_>, known: &[String]) -> Option<Vec<String>> {
    let names = table.list("access_logs", |text| Some(text.to_owned()))?;
    for name in &names {
        let text = LocatedValue::new(name.value.as_str(), name.offset);
        route::check_name_exists(table, "access log", &text, known.iter().map(String::as_str));
    }
    Some(names.into_iter().map(|name| name.value).collect())
}

/// A host without wildcard.
pub(crate) fn parse_canonical_host(text: &str) -> Option<String> {
    match HostPattern::parse(text) {
        Some(HostPattern::Exact(host)) => Some(host),
        _ => None,
    }
}

/// Reports a canonical host that the site does not answer for: its requests would be redirected to
/// another site, or for ever.
fn check_canonical_host(table: &Section<'_>, site: &Site, hosts: &[HostPattern]) {
    let Some(host) = &site.canonical_host else {
        return;
    };
    if hosts.is_empty() {
        table.report_not_applicable("canonical_host");
    } else if !hosts.iter().any(|pattern| pattern.matches(host)) {
        let problem = format!("`canonical_host` {host} is not in the `hosts` of the site");
        table.report_key("canonical_host", problem);
    }
}

/// The site of an application that no site mentions: the files of its `public/`, then itself.
pub(crate) fn default_site_for_app(app: &App) -> Site {
    let public = app.dir.join("public");
    let files = public.is_dir().then(|| Files::new(public));
    catch_all_site(Route {
        files,
        app: Some(app.name.clone()),
        ..Route::new(PathPattern::any())
    })
}

/// The site of an upstream that no site mentions.
pub(crate) fn default_site_for_upstream(name: &str) -> Site {
    catch_all_site(Route {
        upstream: Some(name.to_owned()),
        ..Route::new(PathPattern::any())
    })
}

/// A site with one route, for every host.
pub(crate) fn catch_all_site(route: Route) -> Site {
    Site::new(vec![route])
}

fn check_hosts(
    table: &Section<'_>,
    hosts: &[LocatedValue<HostPattern>],
    seen: &mut Vec<LocatedValue<HostPattern>>,
) {
    for host in hosts {
        if let Some(first) = seen.iter().find(|first| first.value == host.value) {
            let place = table.findings.place_suffix(first.offset, host.offset);
            let problem = format!("host {} is already taken by the site{place}", host.value);
            table.report(host.offset, problem);
        } else {
            seen.push(host.clone());
        }
    }
}
