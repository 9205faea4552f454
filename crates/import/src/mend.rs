//! Last changes of a draft, so that the parser of configurations takes it.
//!
//! Each says in a comment what a person has to complete.

use std::collections::BTreeSet;

use crate::draft::{Draft, DraftTable};
use crate::toml_value::{TomlTable, TomlValue};

/// Completes what the input leaves open.
pub(crate) fn mend(draft: &mut Draft) {
    mend_listeners(draft);
    leave_routes_of_other_listeners(draft);
    draft.upstreams.for_each(keep_one_server);
    draft.upstreams.for_each(|table| {
        if table.keys.text("protocol") == Some("fastcgi") && !table.keys.has("root") {
            table.comment("write `root`: the folder of the scripts, as php-fpm sees it");
            table.keys.set("root", "/var/www/html");
        }
    });
    for site in &mut draft.sites {
        if site.routes.iter().all(|route| route.keys.is_empty()) {
            let mut route = DraftTable::default();
            route.comment("no translated directive of the site answers");
            route.keys.set("respond", TomlTable::with("status", 404));
            site.routes.push(route);
        }
    }
}

/// One listener for a port, with the flags of all.
fn mend_listeners(draft: &mut Draft) {
    let Some(TomlValue::List(listeners)) = draft.server.keys.get("listen").cloned() else {
        return;
    };
    let has_certificate = draft.sites.iter().any(|site| site.table.keys.has("tls"));
    let is_secure = |it: &TomlValue| matches!(it, TomlValue::Table(table) if table.has("tls"));
    let everywhere: BTreeSet<String> = listeners
        .iter()
        .map(address)
        .filter(|it| it.starts_with(':'))
        .collect();
    let mut kept: Vec<TomlValue> = Vec::new();
    let mut seen: BTreeSet<String> = BTreeSet::new();
    // Of two listeners with one address the one with TLS comes first.
    let (secure, plain): (Vec<_>, Vec<_>) = listeners.iter().partition(|it| is_secure(it));
    let mut dropped: BTreeSet<String> = BTreeSet::new();
    for listener in secure.into_iter().chain(plain) {
        let own = address(listener);
        let port = own.rfind(':').map_or(own.as_str(), |at| &own[at..]);
        let is_covered = !own.starts_with(':') && everywhere.contains(port);
        if is_secure(listener) && !has_certificate {
            draft.server.comment(format!(
                "no site has a certificate: write `tls` of one, and {{ address = \"{own}\", tls = true }} in `listen`"
            ));
            dropped.insert(own);
        } else if is_covered || !seen.insert(own.clone()) {
            draft.server.comment(format!(
                "`{own}` is a listener already, or one on every address has its port"
            ));
        } else {
            kept.push(listener.clone());
        }
    }
    // In the order of the input.
    kept.sort_by_key(|it| listeners.iter().position(|known| known == it));
    match kept.is_empty() {
        true => draft.server.keys.remove("listen"),
        false => draft.server.keys.set("listen", TomlValue::List(kept)),
    }
}

/// Leaves routes by hand whose listeners the configuration does not have: no other one may lead to
/// them.
fn leave_routes_of_other_listeners(draft: &mut Draft) {
    let listeners = match draft.server.keys.get("listen") {
        Some(TomlValue::List(listeners)) => listeners.as_slice(),
        _ => &[],
    };
    let known: BTreeSet<String> = listeners.iter().map(address).collect();
    for route in draft.sites.iter_mut().flat_map(|site| &mut site.routes) {
        let Some(matches) = route.keys.table("match") else {
            continue;
        };
        let Some(TomlValue::List(named)) = matches.get("listener") else {
            continue;
        };
        let (kept, gone): (Vec<_>, Vec<_>) = named
            .iter()
            .cloned()
            .partition(|it| known.contains(&address(it)));
        if gone.is_empty() {
            continue;
        }
        let gone: Vec<String> = gone.iter().map(ToString::to_string).collect();
        if kept.is_empty() {
            route.comment(format!(
                "by hand: a route of the listener {}, which is not in `listen`: give it a port of its \
                 own there and in `match.listener`, or write a second penstock.toml for a process of \
                 its own: {}",
                gone.join(", "),
                TomlValue::from(route.keys.clone())
            ));
            route.keys = TomlTable::default();
            continue;
        }
        let mut matches = matches.clone();
        matches.set("listener", TomlValue::List(kept));
        route.keys.set("match", matches);
    }
}

/// The address of a listener, which may be a table.
fn address(listener: &TomlValue) -> String {
    match listener {
        TomlValue::Text(text) => text.clone(),
        TomlValue::Table(table) => table.text("address").unwrap_or_default().to_owned(),
        _ => String::new(),
    }
}

/// Takes `backup` from the servers of an upstream that has no other ones.
fn keep_one_server(table: &mut DraftTable) {
    let Some(TomlValue::List(servers)) = table.keys.get("servers") else {
        return;
    };
    let is_backup = |it: &TomlValue| matches!(it, TomlValue::Table(server) if server.has("backup"));
    if servers.is_empty() || !servers.iter().all(is_backup) {
        return;
    }
    let mut servers = servers.clone();
    for server in &mut servers {
        if let TomlValue::Table(server) = server {
            server.remove("backup");
        }
    }
    table.comment("all servers were spare ones: they are the usual ones here");
    table.keys.set("servers", TomlValue::List(servers));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::DraftSite;

    #[test]
    fn completes_listeners_and_sites() {
        let mut draft = Draft::default();
        draft.listen(":80", &[]);
        draft.listen("10.0.0.1:80", &[]);
        draft.listen(":443", &["tls"]);
        draft
            .upstreams
            .table_mut("php")
            .keys
            .set("protocol", "fastcgi");
        draft.sites.push(DraftSite::default());
        mend(&mut draft);
        let listen = draft.server.keys.get("listen").map(ToString::to_string);
        assert_eq!(listen.as_deref(), Some("[\":80\"]"));
        assert_eq!(draft.server.comments.len(), 2);
        assert_eq!(draft.sites[0].routes.len(), 1);
        assert!(draft.upstreams.table_mut("php").keys.has("root"));
    }
}
