//! Pauses of back ends and maintenance of sites, as the admin API asks for them.

use std::time::Duration;

use penstock_rules::{BackEndName, Maintenance, MaintenanceRule};
use penstock_status::{ChangeError, MaintenanceChange};

use crate::server::Server;

/// Pauses a back end, or sets the time of its pause anew.
pub(super) fn pause(
    server: &Server,
    name: BackEndName,
    max_wait: Duration,
) -> Result<String, ChangeError> {
    check_back_end(server, &name)?;
    let (kind, text) = (name.kind(), name.name().to_owned());
    server.live_state().components.pauses.pause(name, max_wait);
    let seconds = max_wait.as_secs_f64();
    log::info!("pause: {kind} {text} gets no new requests, which wait for {seconds} s");
    Ok(format!(
        "{kind} {text} is paused: new requests wait for at most {seconds} s, then they get 503"
    ))
}

/// Ends the pause of a back end.
pub(super) fn resume(server: &Server, name: &BackEndName) -> Result<String, ChangeError> {
    let (kind, text) = (name.kind(), name.name());
    let resumed = server.live_state().components.pauses.resume(name);
    match resumed {
        Some(waiting) => {
            log::info!("pause: {kind} {text} resumed (waiting={waiting})");
            Ok(format!(
                "{kind} {text} is resumed, {waiting} requests waited"
            ))
        }
        None => {
            check_back_end(server, name)?;
            Err(ChangeError::conflict(format!(
                "{kind} {text} is not paused"
            )))
        }
    }
}

fn check_back_end(server: &Server, name: &BackEndName) -> Result<(), ChangeError> {
    let live = server.live_state();
    let (is_known, kind) = match name {
        BackEndName::App(name) => (live.components.apps.contains_key(name), "application"),
        BackEndName::Upstream(name) => (live.config.upstreams.contains_key(name), "upstream"),
    };
    let unknown = || ChangeError::not_found(format!("there is no {kind} named {}", name.name()));
    is_known.then_some(()).ok_or_else(unknown)
}

/// Switches maintenance on or off.
pub(super) fn set_maintenance(
    server: &Server,
    change: MaintenanceChange,
) -> Result<String, ChangeError> {
    let switch = std::sync::Arc::clone(&server.live_state().components.maintenance);
    match change {
        MaintenanceChange::On(rule) => {
            check_site(server, rule.site.as_deref())?;
            switch_on(&switch, rule)
        }
        MaintenanceChange::Off(site) => {
            let place = place(site.as_deref());
            if !switch.switch_off(site.as_deref()) {
                let problem = match site.as_deref() {
                    Some(site) => format!("site {site} is not in maintenance by a rule of its own"),
                    None => "no rule for all sites is on: name one with --site".to_owned(),
                };
                return Err(ChangeError::conflict(problem));
            }
            log::info!(
                "maintenance: off (site={})",
                site.as_deref().unwrap_or("all")
            );
            Ok(format!("maintenance is off: {place} served again"))
        }
    }
}

fn switch_on(switch: &Maintenance, rule: MaintenanceRule) -> Result<String, ChangeError> {
    let place = place(rule.site.as_deref());
    let (seconds, allow) = (rule.retry_after_seconds, rule.allow.join(", "));
    let site = rule.site.clone();
    switch.switch_on(rule).map_err(|problem| {
        ChangeError::bad_request(format!("`allow` cannot be used: {problem}"))
    })?;
    log::info!(
        "maintenance: on (site={}, allow={allow}, retry_after={seconds} s)",
        site.as_deref().unwrap_or("all")
    );
    let others = match allow.is_empty() {
        true => "clients".to_owned(),
        false => format!("clients other than {allow}"),
    };
    Ok(format!(
        "maintenance is on: {place} not served, {others} get 503"
    ))
}

fn place(site: Option<&str>) -> String {
    match site {
        Some(site) => format!("the site {site} is"),
        None => "all sites are".to_owned(),
    }
}

/// Checks that a site of the configuration has that host.
fn check_site(server: &Server, site: Option<&str>) -> Result<(), ChangeError> {
    let Some(wanted) = site else {
        return Ok(());
    };
    let live = server.live_state();
    let mut hosts: Vec<String> = Vec::new();
    for site in &live.config.sites {
        match site.hosts.is_empty() {
            true => hosts.push("*".to_owned()),
            false => hosts.extend(site.hosts.iter().map(ToString::to_string)),
        }
    }
    if hosts.iter().any(|host| host == wanted) {
        return Ok(());
    }
    const SHOWN: usize = 20;
    let more = if hosts.len() > SHOWN { ", ..." } else { "" };
    hosts.truncate(SHOWN);
    let known = hosts.join(", ");
    Err(ChangeError::not_found(format!(
        "there is no site with the host `{wanted}`: the hosts are {known}{more}"
    )))
}
