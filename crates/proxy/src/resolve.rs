//! Servers named in the DNS: looked up periodically, added and removed as answers change.
//!
//! `server_pool` holds [`DnsNames`] under its lock. `maintenance` starts [`follow_dns_name`] for
//! each name on the control loop; `server_changes` adds and removes names at run time. `lookup`
//! queries, `targets` computes the changes.
//!
//! # Invariants
//!
//! - No loop of clients waits for a look-up.
//! - Without an answer the servers stay as they are.
//! - A server that an answer omits finishes its active requests.

mod lookup;
mod targets;

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use penstock_config as config;
use penstock_runtime::clock;
use tokio::sync::Notify;

use crate::connection::ResolvedAddress;
use crate::health::AdminState;
use crate::maintenance;
use crate::server_pool::{ServerId, ServerPool, ServerSpec};
use crate::upstream::SharedUpstream;
pub(crate) use lookup::DnsSource;
use lookup::{DnsResolver, LookupAnswer, LookupError};
use targets::{DnsTarget, diff_targets, is_same_server, next_query_delay, retry_delay};

/// The DNS names of an upstream's servers.
#[derive(Debug, Default)]
pub(crate) struct DnsNames {
    entries: Vec<DnsName>,
    next_id: u64,
    /// Notified of new names and servers, after the pool's lock is released; `maintenance` waits
    /// for it.
    pub(crate) changed: Arc<Notify>,
}

/// Identifies a [`DnsName`] for the life of the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DnsNameId(u64);

/// A name that resolves to servers.
#[derive(Debug, Clone)]
pub(crate) struct DnsName {
    pub(crate) id: DnsNameId,
    /// As configured; its weight and limits apply to each server.
    pub(crate) server: config::UpstreamServer,
    pub(crate) generation: u64,
    /// The operator's setting for all its servers, including future ones.
    pub(crate) admin_state: AdminState,
    has_task: bool,
}

impl DnsNames {
    pub(crate) fn add(&mut self, server: config::UpstreamServer, generation: u64) {
        self.entries.push(DnsName {
            id: DnsNameId(self.next_id),
            server,
            generation,
            admin_state: AdminState::Ready,
            has_task: false,
        });
        self.next_id += 1;
    }

    /// The name configured as `address`.
    pub(crate) fn find(&mut self, address: &config::ServerAddr) -> Option<&mut DnsName> {
        (self.entries.iter_mut()).find(|entry| entry.server.address == *address)
    }

    /// Finds the name that the status page shows as `text`.
    pub(crate) fn find_by_status_name(&mut self, text: &str) -> Option<&mut DnsName> {
        (self.entries.iter_mut()).find(|entry| entry.server.address.to_string() == text)
    }

    pub(crate) fn remove(&mut self, address: &config::ServerAddr) {
        (self.entries).retain(|entry| entry.server.address != *address);
    }

    /// Returns names without a task, and marks them as having one.
    pub(crate) fn take_names_without_task(&mut self) -> Vec<DnsNameId> {
        let new = self.entries.iter_mut().filter(|entry| !entry.has_task);
        new.map(|entry| {
            entry.has_task = true;
            entry.id
        })
        .collect()
    }

    fn get(&self, id: DnsNameId) -> Option<&DnsName> {
        self.entries.iter().find(|entry| entry.id == id)
    }
}

/// Looks up a server's name once, as the upstream will, and returns the number of addresses.
///
/// # Errors
/// A sentence: there is no answer, or no address.
pub async fn count_addresses(address: &config::ServerAddr) -> Result<usize, String> {
    let server = config::UpstreamServer::new(address.clone());
    let mut resolver = DnsResolver::new(DnsSource::System);
    let answer = resolver.lookup(&server, &[]).await;
    answer
        .map(|found| found.targets.len())
        .map_err(|error| error.to_string())
}

/// Follows a name and updates its servers until the name or the upstream is gone.
pub(crate) async fn follow_dns_name(
    shared: Weak<SharedUpstream>,
    id: DnsNameId,
    source: DnsSource,
) {
    let mut resolver = DnsResolver::new(source);
    let mut servers = ResolvedServers::default();
    let mut failures = LookupFailures::default();
    let find_name = |it: Arc<SharedUpstream>| {
        it.server_pool
            .lock()
            .dns_names
            .get(id)
            .map(|n| n.server.clone())
    };
    while let Some(server) = shared.upgrade().and_then(find_name) {
        let answer = resolver.lookup(&server, &servers.targets()).await;
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let now = clock::now();
        let interval = shared.config.resolve_interval;
        let pause = match answer {
            Ok(LookupAnswer { targets, ttl }) => {
                if !servers.apply_targets(&shared, now, id, &targets) {
                    return;
                }
                maintenance::wake_maintenance(&shared);
                failures.clear(&shared.name, &server.address);
                next_query_delay(ttl, interval)
            }
            Err(error) => {
                failures.record(now, &shared.name, &server.address, &error);
                retry_delay(failures.count, interval)
            }
        };
        // The wait does not keep the upstream alive.
        drop(shared);
        clock::sleep(pause).await;
    }
}

/// The servers of a name. One that the operator removed is kept here, and removed, as long as the
/// DNS names it.
#[derive(Debug, Default)]
struct ResolvedServers {
    known: Vec<(DnsTarget, ServerId)>,
}

impl ResolvedServers {
    fn targets(&self) -> Vec<DnsTarget> {
        self.known.iter().map(|(it, _)| it.clone()).collect()
    }

    /// Adds, changes and removes servers until they match `wanted`; `false` when the name is gone.
    fn apply_targets(
        &mut self,
        shared: &SharedUpstream,
        now: Instant,
        id: DnsNameId,
        wanted: &[DnsTarget],
    ) -> bool {
        let changes = diff_targets(&self.targets(), wanted);
        shared.update_pool(|pool| {
            let Some(named) = pool.dns_names.get(id).cloned() else {
                return false;
            };
            // New servers first: waiting requests find them before the old ones are gone.
            for target in changes.added {
                let id = add_resolved(pool, now, &shared.config, &named, &target);
                self.known.push((target, id));
            }
            for target in changes.changed {
                let old = (self.known.iter_mut()).find(|(old, _)| is_same_server(old, &target));
                if let Some((old, id)) = old {
                    pool.change_spec(now, *id, |spec| {
                        (spec.weight, spec.backup) = (target.weight, target.backup);
                    });
                    *old = target;
                }
            }
            let is_removed =
                |(target, _): &mut (DnsTarget, ServerId)| changes.removed.contains(target);
            for (_, id) in self.known.extract_if(.., is_removed) {
                pool.remove(now, id);
            }
            true
        })
    }
}

fn add_resolved(
    pool: &mut ServerPool,
    now: Instant,
    config: &config::Upstream,
    named: &DnsName,
    target: &DnsTarget,
) -> ServerId {
    let name = format!("{} ({})", target.host, target.address.ip());
    let spec = ServerSpec {
        address: named.server.address.clone(),
        weight: target.weight,
        max_active: maintenance::server_max_active(config, named.server.max_active),
        backup: target.backup,
        generation: named.generation,
    };
    let address = match target.alternate {
        Some(other) => ResolvedAddress::TcpPair([target.address, other]),
        None => ResolvedAddress::Tcp(target.address),
    };
    let id = pool.add(now, address, name.into(), spec);
    pool.change_health(now, id, |health| {
        health.set_admin_state(now, named.admin_state)
    });
    id
}

/// Consecutive failed look-ups: logged when they begin, once a minute, and when they end.
#[derive(Debug, Default)]
struct LookupFailures {
    count: u32,
    logged_at: Option<Instant>,
}

impl LookupFailures {
    fn record(
        &mut self,
        now: Instant,
        upstream: &str,
        name: &config::ServerAddr,
        error: &LookupError,
    ) {
        self.count = self.count.saturating_add(1);
        let is_due = |at| now.saturating_duration_since(at) >= LOG_INTERVAL;
        if self.logged_at.is_none_or(is_due) {
            log::warn!("{upstream}: cannot resolve {name}: {error}");
            self.logged_at = Some(now);
        }
    }

    fn clear(&mut self, upstream: &str, name: &config::ServerAddr) {
        if self.count > 0 {
            log::info!("{upstream}: {name} resolves again");
        }
        *self = Self::default();
    }
}

const LOG_INTERVAL: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests;
