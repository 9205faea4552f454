//! Changes of an upstream's servers at run time, including the servers of an application.
//!
//! Called by the admin API (`POST /upstreams/NAME/servers`) and by `penstock` for applications that
//! are an upstream. A server is named as on the status page; the name of a configured DNS entry
//! stands for all servers that it resolves to, including future ones.
//!
//! # Invariants
//!
//! - Active requests continue.
//! - A change affects only what it names.

use std::time::Instant;

use penstock_config as config;
use penstock_runtime::clock;
use thiserror::Error;

use crate::health::AdminState;
use crate::maintenance;
use crate::resolve::DnsName;
use crate::server_pool::{DeferredActions, ServerEntry, ServerId, ServerPool, ServerSpec};
use crate::upstream::Upstream;

/// One change of an upstream's servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerChange {
    /// Adds a server, or all that a name resolves to.
    Add(config::UpstreamServer),
    /// No new requests; removed after its last active one. One address of a name stays removed as
    /// long as the name resolves to it.
    Remove(String),
    /// No new requests until it is enabled; its idle connections close.
    Drain(String),
    /// As `Drain`, and neither its requests nor its probes count meanwhile.
    Disable(String),
    /// Accepts requests again.
    Enable(String),
    /// Sets its weight, at least 1.
    Weight(String, u32),
    /// Sets its limit of active requests, at least 1; `None` for the upstream's limit.
    MaxActive(String, Option<u32>),
}

/// Why a change was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ServerChangeError {
    /// No server of this upstream has this name.
    #[error("no server is named {0}")]
    NoSuchServer(String),
    /// A server with that address exists.
    #[error("{0} is a server already")]
    AlreadyExists(String),
    /// A weight or a limit of 0.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
}

impl Upstream {
    /// Makes one change and returns a sentence that describes it.
    ///
    /// # Errors
    /// Why the change was refused; nothing was changed.
    pub fn apply_change(&self, change: ServerChange) -> Result<String, ServerChangeError> {
        match change {
            ServerChange::Add(server) => self.add_checked(server),
            ServerChange::Remove(name) => self.remove_named(&name),
            ServerChange::Drain(name) => self.set_admin(&name, AdminState::Draining),
            ServerChange::Disable(name) => self.set_admin(&name, AdminState::Disabled),
            ServerChange::Enable(name) => self.set_admin(&name, AdminState::Ready),
            ServerChange::Weight(name, weight) => self.set_weight(&name, weight),
            ServerChange::MaxActive(name, max_active) => self.set_max_active(&name, max_active),
        }
    }

    /// Adds a server and removes one with the same address. Servers of the newest `generation` are
    /// preferred while older ones exist.
    pub fn add_server(&self, server: config::UpstreamServer, generation: u64) {
        self.remove_server(&server.address);
        maintenance::add_configured(&self.shared, server, generation);
    }

    /// Removes the server: no new requests, and it is gone after its last active one.
    pub fn remove_server(&self, address: &config::ServerAddr) {
        let now = clock::now();
        (self.shared)
            .update_pool(|roster, aftermath| remove_by_address(roster, now, address, aftermath));
    }

    /// Active requests of the server, even if it is leaving.
    #[must_use]
    pub fn active_requests(&self, address: &config::ServerAddr) -> usize {
        let roster = self.shared.server_pool();
        let members = (roster.servers().iter()).filter(|it| it.spec.address == *address);
        members.map(|it| it.active() as usize).sum()
    }

    /// Consecutive requests that timed out at the server, up to now.
    #[must_use]
    pub fn consecutive_timeouts(&self, address: &config::ServerAddr) -> usize {
        let roster = self.shared.server_pool();
        let member = (roster.servers().iter()).find(|it| it.spec.address == *address);
        member.map_or(0, |it| it.consecutive_timeouts() as usize)
    }

    fn add_checked(&self, server: config::UpstreamServer) -> Result<String, ServerChangeError> {
        let name = server.address.to_string();
        for (what, number) in [
            ("weight", Some(server.weight)),
            ("max_active", server.max_active),
        ] {
            check_at_least_one(what, number)?;
        }
        let is_there = {
            let mut roster = self.shared.server_pool();
            let is_same = |it: &ServerEntry| !it.is_leaving() && it.spec.address == server.address;
            roster.dns_names.find(&server.address).is_some() || roster.servers().iter().any(is_same)
        };
        if is_there {
            return Err(ServerChangeError::AlreadyExists(name));
        }
        maintenance::add_configured(&self.shared, server, 0);
        Ok(format!("{name} was added"))
    }

    fn remove_named(&self, name: &str) -> Result<String, ServerChangeError> {
        self.with_named_servers(name, |change, found| {
            if let Some(address) = &found.dns_entry {
                change.server_pool.dns_names.remove(address);
            }
            for &key in &found.members {
                change.server_pool.remove(change.now, key, change.deferred);
            }
            format!("{name} was removed, {}", describe_active(found.active))
        })
    }

    fn set_admin(&self, name: &str, admin: AdminState) -> Result<String, ServerChangeError> {
        self.with_named_servers(name, |change, found| {
            if let Some(named) = found.dns_name(change.server_pool) {
                named.admin_state = admin;
            }
            let PendingChange {
                server_pool: roster,
                now,
                deferred: aftermath,
            } = change;
            for &key in &found.members {
                roster.change_health(*now, key, aftermath, |health| {
                    health.set_admin_state(*now, admin)
                });
            }
            let what = match admin {
                AdminState::Ready => "is enabled",
                AdminState::Draining => "is draining",
                AdminState::Disabled => "is disabled",
            };
            format!("{name} {what}, {}", describe_active(found.active))
        })
    }

    fn set_weight(&self, name: &str, weight: u32) -> Result<String, ServerChangeError> {
        check_at_least_one("weight", Some(weight))?;
        self.with_named_servers(name, |change, found| {
            if let Some(named) = found.dns_name(change.server_pool) {
                named.server.weight = weight;
            }
            change.change_specs(found, |spec| spec.weight = weight);
            format!("{name} has weight {weight}")
        })
    }

    fn set_max_active(
        &self,
        name: &str,
        max_active: Option<u32>,
    ) -> Result<String, ServerChangeError> {
        check_at_least_one("max_active", max_active)?;
        let capacity = maintenance::server_capacity(self.config(), max_active);
        self.with_named_servers(name, |change, found| {
            if let Some(named) = found.dns_name(change.server_pool) {
                named.server.max_active = max_active;
            }
            change.change_specs(found, |spec| spec.capacity = capacity);
            format!("{name} may have {capacity} requests in progress")
        })
    }

    /// Finds the servers of `name` and changes them under one lock.
    fn with_named_servers(
        &self,
        name: &str,
        make: impl FnOnce(&mut PendingChange<'_>, &NamedServers) -> String,
    ) -> Result<String, ServerChangeError> {
        let now = clock::now();
        self.shared.update_pool(|roster, aftermath| {
            let found = NamedServers::find(roster, name)?;
            let mut making = PendingChange {
                server_pool: roster,
                now,
                deferred: aftermath,
            };
            Ok(make(&mut making, &found))
        })
    }
}

struct PendingChange<'a> {
    server_pool: &'a mut ServerPool,
    now: Instant,
    deferred: &'a mut DeferredActions,
}

impl PendingChange<'_> {
    fn change_specs(&mut self, found: &NamedServers, change: impl Fn(&mut ServerSpec)) {
        for &key in &found.members {
            self.server_pool
                .change_spec(self.now, key, self.deferred, &change);
        }
    }
}

/// What a name on the status page, or in the configuration, refers to.
struct NamedServers {
    /// The DNS entry, if it is one.
    dns_entry: Option<config::ServerAddr>,
    members: Vec<ServerId>,
    /// Active requests of these servers.
    active: u32,
}

impl NamedServers {
    fn find(roster: &mut ServerPool, name: &str) -> Result<Self, ServerChangeError> {
        let entry = roster.dns_names.find_by_text(name);
        let entry = entry.map(|named| named.server.address.clone());
        let is_meant = |member: &&ServerEntry| match &entry {
            Some(address) => member.spec.address == *address,
            None => *member.server.name == *name,
        };
        let staying = (roster.servers().iter()).filter(|member| !member.is_leaving());
        let (members, active): (Vec<_>, Vec<_>) = staying
            .filter(is_meant)
            .map(|member| (member.id, member.active()))
            .unzip();
        if members.is_empty() && entry.is_none() {
            return Err(ServerChangeError::NoSuchServer(name.to_owned()));
        }
        Ok(Self {
            dns_entry: entry,
            members,
            active: active.iter().sum(),
        })
    }

    fn dns_name<'a>(&self, roster: &'a mut ServerPool) -> Option<&'a mut DnsName> {
        roster.dns_names.find(self.dns_entry.as_ref()?)
    }
}

fn remove_by_address(
    roster: &mut ServerPool,
    now: Instant,
    address: &config::ServerAddr,
    aftermath: &mut DeferredActions,
) {
    roster.dns_names.remove(address);
    let members = roster.servers().iter();
    let found: Vec<_> = members
        .filter(|member| member.spec.address == *address)
        .map(|member| member.id)
        .collect();
    for key in found {
        roster.remove(now, key, aftermath);
    }
}

fn check_at_least_one(what: &'static str, number: Option<u32>) -> Result<(), ServerChangeError> {
    match number {
        Some(0) => Err(ServerChangeError::Zero(what)),
        _ => Ok(()),
    }
}

fn describe_active(count: u32) -> String {
    match count {
        1 => "1 request in progress".to_owned(),
        count => format!("{count} requests in progress"),
    }
}

#[cfg(test)]
mod tests;
