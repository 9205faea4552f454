//! Servers that come and go at run time, and those that an application has.
//!
//! Called by the admin API (`POST /upstreams/NAME/servers`) and by the wiring of applications that are
//! an upstream. A server is named as the status page shows it; the name of a configured DNS entry stands
//! for all servers that it resolves to, the coming ones included. What must stay true: nothing that is
//! in progress is cut, and what a change did not name stays as it was.

use std::time::Instant;

use penstock_config as config;
use penstock_runtime::clock;
use thiserror::Error;

use crate::ejection::Admin;
use crate::maintain;
use crate::resolve::Named;
use crate::roster::{Aftermath, Member, MemberKey, MemberSpec, Roster};
use crate::upstream::Upstream;

/// One change of an upstream's servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// One more server, or all that a name resolves to.
    Add(config::UpstreamServer),
    /// No new requests; gone with the last it has. One address of a name stays away as long as the name
    /// has it.
    Remove(String),
    /// No new requests until it is enabled; its kept connections close.
    Drain(String),
    /// The same, and neither its requests nor its probes count meanwhile.
    Disable(String),
    /// Requests again.
    Enable(String),
    /// Its share, at least 1.
    Weight(String, u32),
    /// What it may have in progress, at least 1; none is the upstream's bound.
    MaxActive(String, Option<u32>),
}

/// Why a change was not made.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ManageError {
    /// No server of this upstream is called so.
    #[error("no server is named {0}")]
    NoSuchServer(String),
    /// A server with that address is there.
    #[error("{0} is a server already")]
    AlreadyThere(String),
    /// A weight or a bound of 0.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
}

impl Upstream {
    /// Makes one change and says in a sentence what it did.
    ///
    /// # Errors
    /// Why it was not made; then nothing was changed.
    pub fn manage(&self, change: Change) -> Result<String, ManageError> {
        match change {
            Change::Add(server) => self.add_new(server),
            Change::Remove(name) => self.remove_named(&name),
            Change::Drain(name) => self.set_admin(&name, Admin::Draining),
            Change::Disable(name) => self.set_admin(&name, Admin::Disabled),
            Change::Enable(name) => self.set_admin(&name, Admin::Ready),
            Change::Weight(name, weight) => self.set_weight(&name, weight),
            Change::MaxActive(name, max_active) => self.set_max_active(&name, max_active),
        }
    }

    /// Adds a server; one that has its address already leaves. Those of the newest `generation` are
    /// preferred while older ones are there.
    pub fn add_server(&self, server: config::UpstreamServer, generation: u64) {
        self.remove_server(&server.address);
        maintain::add(&self.shared, server, generation);
    }

    /// Takes the server out: no new requests, and it is gone with the last it has.
    pub fn remove_server(&self, address: &config::ServerAddr) {
        let now = clock::now();
        (self.shared).change(|roster, aftermath| remove(roster, now, address, aftermath));
    }

    /// Requests that the server has in progress, be it leaving or not.
    #[must_use]
    pub fn in_progress(&self, address: &config::ServerAddr) -> usize {
        let roster = self.shared.roster();
        let members = (roster.members().iter()).filter(|it| it.spec.address == *address);
        members.map(|it| it.active() as usize).sum()
    }

    /// Requests in a row that the server has not answered in time, up to now.
    #[must_use]
    pub fn unanswered(&self, address: &config::ServerAddr) -> usize {
        let roster = self.shared.roster();
        let member = (roster.members().iter()).find(|it| it.spec.address == *address);
        member.map_or(0, |it| it.unanswered() as usize)
    }

    fn add_new(&self, server: config::UpstreamServer) -> Result<String, ManageError> {
        let name = server.address.to_string();
        for (what, number) in [
            ("weight", Some(server.weight)),
            ("max_active", server.max_active),
        ] {
            at_least_one(what, number)?;
        }
        let is_there = {
            let mut roster = self.shared.roster();
            let is_same = |it: &Member| !it.is_leaving() && it.spec.address == server.address;
            roster.names.find(&server.address).is_some() || roster.members().iter().any(is_same)
        };
        if is_there {
            return Err(ManageError::AlreadyThere(name));
        }
        maintain::add(&self.shared, server, 0);
        Ok(format!("{name} was added"))
    }

    fn remove_named(&self, name: &str) -> Result<String, ManageError> {
        self.change(name, |change, found| {
            if let Some(address) = &found.entry {
                change.roster.names.remove(address);
            }
            for &key in &found.members {
                change.roster.remove(change.now, key, change.aftermath);
            }
            format!("{name} was removed, {}", in_progress(found.active))
        })
    }

    fn set_admin(&self, name: &str, admin: Admin) -> Result<String, ManageError> {
        self.change(name, |change, found| {
            if let Some(named) = found.named(change.roster) {
                named.admin = admin;
            }
            let Making {
                roster,
                now,
                aftermath,
            } = change;
            for &key in &found.members {
                roster.change(*now, key, aftermath, |health| health.admin(*now, admin));
            }
            let what = match admin {
                Admin::Ready => "is enabled",
                Admin::Draining => "is draining",
                Admin::Disabled => "is disabled",
            };
            format!("{name} {what}, {}", in_progress(found.active))
        })
    }

    fn set_weight(&self, name: &str, weight: u32) -> Result<String, ManageError> {
        at_least_one("weight", Some(weight))?;
        self.change(name, |change, found| {
            if let Some(named) = found.named(change.roster) {
                named.server.weight = weight;
            }
            change.respec(found, |spec| spec.weight = weight);
            format!("{name} has weight {weight}")
        })
    }

    fn set_max_active(&self, name: &str, max_active: Option<u32>) -> Result<String, ManageError> {
        at_least_one("max_active", max_active)?;
        let capacity = maintain::capacity(self.config(), max_active);
        self.change(name, |change, found| {
            if let Some(named) = found.named(change.roster) {
                named.server.max_active = max_active;
            }
            change.respec(found, |spec| spec.capacity = capacity);
            format!("{name} may have {capacity} requests in progress")
        })
    }

    /// Finds what `name` names and makes a change of it, under one lock.
    fn change(
        &self,
        name: &str,
        make: impl FnOnce(&mut Making<'_>, &Found) -> String,
    ) -> Result<String, ManageError> {
        let now = clock::now();
        self.shared.change(|roster, aftermath| {
            let found = Found::find(roster, name)?;
            let mut making = Making {
                roster,
                now,
                aftermath,
            };
            Ok(make(&mut making, &found))
        })
    }
}

/// A change that is being made.
struct Making<'a> {
    roster: &'a mut Roster,
    now: Instant,
    aftermath: &'a mut Aftermath,
}

impl Making<'_> {
    fn respec(&mut self, found: &Found, change: impl Fn(&mut MemberSpec)) {
        for &key in &found.members {
            self.roster.respec(self.now, key, self.aftermath, &change);
        }
    }
}

/// What a name on the status page, or in the configuration, stands for.
struct Found {
    /// The DNS entry, if it is one.
    entry: Option<config::ServerAddr>,
    members: Vec<MemberKey>,
    /// Requests that they have in progress.
    active: u32,
}

impl Found {
    fn find(roster: &mut Roster, name: &str) -> Result<Self, ManageError> {
        let entry = roster.names.find_text(name);
        let entry = entry.map(|named| named.server.address.clone());
        let is_meant = |member: &&Member| match &entry {
            Some(address) => member.spec.address == *address,
            None => *member.server.name == *name,
        };
        let staying = (roster.members().iter()).filter(|member| !member.is_leaving());
        let (members, active): (Vec<_>, Vec<_>) = staying
            .filter(is_meant)
            .map(|member| (member.key, member.active()))
            .unzip();
        if members.is_empty() && entry.is_none() {
            return Err(ManageError::NoSuchServer(name.to_owned()));
        }
        Ok(Self {
            entry,
            members,
            active: active.iter().sum(),
        })
    }

    fn named<'a>(&self, roster: &'a mut Roster) -> Option<&'a mut Named> {
        roster.names.find(self.entry.as_ref()?)
    }
}

fn remove(
    roster: &mut Roster,
    now: Instant,
    address: &config::ServerAddr,
    aftermath: &mut Aftermath,
) {
    roster.names.remove(address);
    let members = roster.members().iter();
    let found: Vec<_> = members
        .filter(|member| member.spec.address == *address)
        .map(|member| member.key)
        .collect();
    for key in found {
        roster.remove(now, key, aftermath);
    }
}

fn at_least_one(what: &'static str, number: Option<u32>) -> Result<(), ManageError> {
    match number {
        Some(0) => Err(ManageError::Zero(what)),
        _ => Ok(()),
    }
}

fn in_progress(count: u32) -> String {
    match count {
        1 => "1 request in progress".to_owned(),
        count => format!("{count} requests in progress"),
    }
}

#[cfg(test)]
mod tests;
