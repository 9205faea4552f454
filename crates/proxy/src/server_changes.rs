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

use penstock_config as config;
use penstock_runtime::clock;
use thiserror::Error;

use crate::health::AdminState;
use crate::maintenance;
use crate::resolve::DnsName;
use crate::server_pool::{ServerEntry, ServerId, ServerPool, ServerSpec};
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
    SetWeight(String, u32),
    /// Sets its limit of active requests, at least 1; `None` for the upstream's limit.
    SetMaxActive(String, Option<u32>),
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
    ZeroValue(&'static str),
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
            ServerChange::SetWeight(name, weight) => {
                check_at_least_one("weight", Some(weight))?;
                let set_default = |server: &mut config::UpstreamServer| server.weight = weight;
                self.change_specs(&name, set_default, |spec| spec.weight = weight)?;
                Ok(format!("{name} has weight {weight}"))
            }
            ServerChange::SetMaxActive(name, max) => {
                check_at_least_one("max_active", max)?;
                let max_active = maintenance::server_max_active(self.config(), max);
                let set_default = |server: &mut config::UpstreamServer| server.max_active = max;
                self.change_specs(&name, set_default, |spec| spec.max_active = max_active)?;
                Ok(format!("{name} may have {max_active} requests in progress"))
            }
        }
    }

    /// Adds a server and removes one with the same address. Servers of the newest `generation` are
    /// preferred while older ones exist.
    pub fn add_server(&self, server: config::UpstreamServer, generation: u64) {
        self.remove_server(&server.address);
        maintenance::add_configured_server(&self.shared, server, generation);
    }

    /// Removes the server: no new requests, and it is gone after its last active one.
    pub fn remove_server(&self, address: &config::ServerAddr) {
        let now = clock::now();
        self.shared.update_pool(|pool| {
            pool.dns_names.remove(address);
            let found = (pool.servers.iter()).filter(|entry| entry.spec.address == *address);
            for id in found.map(|entry| entry.id).collect::<Vec<_>>() {
                pool.remove(now, id);
            }
        });
    }

    /// Active requests of the server, even if it is leaving.
    #[must_use]
    pub fn active_requests(&self, address: &config::ServerAddr) -> usize {
        let pool = self.shared.server_pool.lock();
        let members = (pool.servers.iter()).filter(|it| it.spec.address == *address);
        members.map(|it| it.active as usize).sum()
    }

    /// Consecutive requests that timed out at the server, up to now.
    #[must_use]
    pub fn consecutive_timeouts(&self, address: &config::ServerAddr) -> usize {
        let pool = self.shared.server_pool.lock();
        let entry = (pool.servers.iter()).find(|it| it.spec.address == *address);
        entry.map_or(0, |it| it.consecutive_timeouts as usize)
    }

    fn add_checked(&self, server: config::UpstreamServer) -> Result<String, ServerChangeError> {
        let name = server.address.to_string();
        check_at_least_one("weight", Some(server.weight))?;
        check_at_least_one("max_active", server.max_active)?;
        let is_there = {
            let mut pool = self.shared.server_pool.lock();
            let is_same = |it: &ServerEntry| !it.is_leaving && it.spec.address == server.address;
            pool.dns_names.find(&server.address).is_some() || pool.servers.iter().any(is_same)
        };
        if is_there {
            return Err(ServerChangeError::AlreadyExists(name));
        }
        maintenance::add_configured_server(&self.shared, server, 0);
        Ok(format!("{name} was added"))
    }

    fn remove_named(&self, name: &str) -> Result<String, ServerChangeError> {
        let now = clock::now();
        self.shared.update_pool(|pool| {
            let found = NamedServers::find(pool, name)?;
            if let Some(address) = &found.dns_entry {
                pool.dns_names.remove(address);
            }
            for &id in &found.servers {
                pool.remove(now, id);
            }
            Ok(format!(
                "{name} was removed, {}",
                describe_active(found.active)
            ))
        })
    }

    fn set_admin(&self, name: &str, admin: AdminState) -> Result<String, ServerChangeError> {
        let now = clock::now();
        self.shared.update_pool(|pool| {
            let found = NamedServers::find(pool, name)?;
            if let Some(named) = found.dns_name(pool) {
                named.admin_state = admin;
            }
            for &id in &found.servers {
                pool.change_health(now, id, |health| health.set_admin_state(now, admin));
            }
            let state = match admin {
                AdminState::Ready => "is enabled",
                AdminState::Draining => "is draining",
                AdminState::Disabled => "is disabled",
            };
            Ok(format!("{name} {state}, {}", describe_active(found.active)))
        })
    }

    /// Changes the servers of `name`, and what future ones of a DNS entry get.
    fn change_specs(
        &self,
        name: &str,
        set_default: impl FnOnce(&mut config::UpstreamServer),
        change: impl Fn(&mut ServerSpec),
    ) -> Result<(), ServerChangeError> {
        let now = clock::now();
        self.shared.update_pool(|pool| {
            let found = NamedServers::find(pool, name)?;
            if let Some(named) = found.dns_name(pool) {
                set_default(&mut named.server);
            }
            for &id in &found.servers {
                pool.change_spec(now, id, &change);
            }
            Ok(())
        })
    }
}

/// What a name on the status page, or in the configuration, refers to.
struct NamedServers {
    /// The DNS entry, if it is one.
    dns_entry: Option<config::ServerAddr>,
    servers: Vec<ServerId>,
    /// Active requests of these servers.
    active: u32,
}

impl NamedServers {
    fn find(pool: &mut ServerPool, name: &str) -> Result<Self, ServerChangeError> {
        let dns_name = pool.dns_names.find_by_status_name(name);
        let dns_entry = dns_name.map(|named| named.server.address.clone());
        let is_meant = |entry: &&ServerEntry| match &dns_entry {
            _ if entry.is_leaving => false,
            Some(address) => entry.spec.address == *address,
            None => *entry.server.name == *name,
        };
        let meant = pool.servers.iter().filter(is_meant);
        let (servers, active): (Vec<_>, Vec<_>) =
            meant.map(|entry| (entry.id, entry.active)).unzip();
        if servers.is_empty() && dns_entry.is_none() {
            return Err(ServerChangeError::NoSuchServer(name.to_owned()));
        }
        Ok(Self {
            active: active.iter().sum(),
            dns_entry,
            servers,
        })
    }

    fn dns_name<'a>(&self, pool: &'a mut ServerPool) -> Option<&'a mut DnsName> {
        pool.dns_names.find(self.dns_entry.as_ref()?)
    }
}

fn check_at_least_one(what: &'static str, number: Option<u32>) -> Result<(), ServerChangeError> {
    match number {
        Some(0) => Err(ServerChangeError::ZeroValue(what)),
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
