//! The background work of an upstream: timers, connections opened in advance, probes and name
//! look-ups.
//!
//! Started by `upstream` on the control loop. One task ticks. It starts another task for each
//! server that is probed or kept connected (`probe`, `preconnect`) and for each name (`resolve`).
//! All hold the upstream weakly and end with it.
//!
//! # Invariants
//!
//! - No request waits for anything here.
//! - An upstream with nothing to do costs one timer.

mod preconnect;

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use penstock_config as config;
use penstock_runtime::{clock, loops};

use crate::connection::ResolvedAddress;
use crate::probe;
use crate::resolve::{self, DnsSource};
use crate::server_pool::{ServerId, ServerSpec};
use crate::upstream::SharedUpstream;

/// Adds the configured servers and starts the maintenance task on this loop. Names become servers
/// once `source` has resolved them; the start does not wait for that.
pub(crate) fn start(shared: &Arc<SharedUpstream>, source: DnsSource) {
    for server in &shared.config.servers {
        add_configured(shared, server.clone(), 0);
    }
    loops::spawn_here(run_maintenance(Arc::downgrade(shared), source));
}

/// Adds a server, at once or when its name is resolved.
pub(crate) fn add_configured(
    shared: &SharedUpstream,
    server: config::UpstreamServer,
    generation: u64,
) {
    match &server.address {
        config::ServerAddr::Tcp(address) => {
            let address = ResolvedAddress::Tcp(*address);
            add_at_address(shared, address, server, generation);
        }
        config::ServerAddr::Unix(path) => {
            let address = ResolvedAddress::Unix(path.clone());
            add_at_address(shared, address, server, generation);
        }
        config::ServerAddr::Name { .. } | config::ServerAddr::Srv(_) => {
            shared.server_pool().dns_names.add(server, generation);
        }
        // The join listener adds it.
        config::ServerAddr::Joined(_) => {}
    }
    notify_changes(shared);
}

/// Starts tasks for new servers and names at once instead of with the next tick.
pub(crate) fn notify_changes(shared: &SharedUpstream) {
    let news = shared.server_pool().dns_names.changed();
    news.notify_one();
}

fn add_at_address(
    shared: &SharedUpstream,
    address: ResolvedAddress,
    server: config::UpstreamServer,
    generation: u64,
) {
    let name = server.address.to_string();
    let spec = ServerSpec {
        capacity: server_capacity(&shared.config, server.max_active),
        address: server.address,
        weight: server.weight,
        backup: server.backup,
        generation,
    };
    shared.add_server(address, name.into(), spec);
}

/// The limit of active requests of a server with its own `max_active`. Each request has a
/// connection, so the limit of connections applies too.
pub(crate) fn server_capacity(config: &config::Upstream, max_active: Option<u32>) -> u32 {
    let connections_max = config.connections.max;
    let said = max_active.or(config.max_active);
    said.map_or(connections_max, |said| said.min(connections_max))
}

/// The same for a joined server, which announces its limit itself: at most that of the upstream's
/// servers.
pub(crate) fn member_capacity(config: &config::Upstream, said: u32) -> u32 {
    let most = config.max_active.unwrap_or(u32::MAX);
    said.min(most).min(config.connections.max)
}

/// Ticks until the upstream is gone.
async fn run_maintenance(shared: Weak<SharedUpstream>, source: DnsSource) {
    let Some(news) = shared
        .upgrade()
        .map(|it| it.server_pool().dns_names.changed())
    else {
        return;
    };
    let mut attended = StartedTasks::default();
    let mut next_tick = clock::now();
    loop {
        {
            let Some(shared) = shared.upgrade() else {
                return;
            };
            let now = clock::now();
            if now >= next_tick {
                tick(&shared, now);
                next_tick = now + TICK_INTERVAL;
            }
            attended.start_missing(&shared, &source);
        }
        clock::timeout_at(next_tick, news.notified()).await;
    }
}

fn tick(shared: &SharedUpstream, now: Instant) {
    shared.update_pool(|roster, aftermath| roster.tick(now, aftermath));
}

/// What has a task already.
#[derive(Debug, Default)]
struct StartedTasks {
    /// The newest server; identifiers only grow.
    newest_server: Option<ServerId>,
}

impl StartedTasks {
    /// Starts tasks for new servers and names.
    fn start_missing(&mut self, shared: &Arc<SharedUpstream>, source: &DnsSource) {
        let (names, servers) = {
            let mut roster = shared.server_pool();
            let keys = roster.servers().iter().map(|member| member.id);
            let is_new = |key: &ServerId| self.newest_server.is_none_or(|newest| key.0 > newest.0);
            let servers: Vec<_> = keys.filter(is_new).collect();
            (roster.dns_names.take_new(), servers)
        };
        for id in names {
            let shared = Arc::downgrade(shared);
            loops::spawn_here(resolve::follow_dns_name(shared, id, source.clone()));
        }
        for key in servers {
            self.newest_server = Some(key);
            if shared.config.health.is_some() {
                loops::spawn_here(probe::run_probes(Arc::downgrade(shared), key));
            }
            if preconnect::is_enabled(&shared.config) {
                loops::spawn_here(preconnect::maintain_min_connections(
                    Arc::downgrade(shared),
                    key,
                ));
            }
        }
    }
}

const TICK_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
pub(crate) mod tests;
