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
use std::time::Duration;

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
        add_configured_server(shared, server.clone(), 0);
    }
    loops::spawn_here(run_maintenance(Arc::downgrade(shared), source));
}

/// Adds a server, at once or when its name is resolved.
pub(crate) fn add_configured_server(
    shared: &SharedUpstream,
    server: config::UpstreamServer,
    generation: u64,
) {
    let address = match &server.address {
        config::ServerAddr::Tcp(address) => Some(ResolvedAddress::Tcp(*address)),
        config::ServerAddr::Unix(path) => Some(ResolvedAddress::Unix(path.clone())),
        // The join listener adds it.
        config::ServerAddr::Joined(_) => return,
        config::ServerAddr::Name { .. } | config::ServerAddr::Srv(_) => None,
    };
    match address {
        Some(address) => {
            let name = server.address.to_string();
            let spec = ServerSpec {
                max_active: server_max_active(&shared.config, server.max_active),
                address: server.address,
                weight: server.weight,
                backup: server.backup,
                generation,
            };
            shared.add_server(address, name.into(), spec);
        }
        None => shared.server_pool.lock().dns_names.add(server, generation),
    }
    wake_maintenance(shared);
}

/// Starts tasks for new servers and names at once instead of with the next tick.
pub(crate) fn wake_maintenance(shared: &SharedUpstream) {
    let changed = Arc::clone(&shared.server_pool.lock().dns_names.changed);
    changed.notify_one();
}

/// The limit of active requests of a server with its own `max_active`. Each request has a
/// connection, so the limit of connections applies too.
pub(crate) fn server_max_active(config: &config::Upstream, max_active: Option<u32>) -> u32 {
    let max_active = max_active.or(config.max_active);
    max_active.map_or(config.connections.max, |max| {
        max.min(config.connections.max)
    })
}

/// The same for a joined server, which announces its limit itself: at most that of the upstream's
/// servers.
pub(crate) fn member_max_active(config: &config::Upstream, announced: u32) -> u32 {
    announced.min(server_max_active(config, None))
}

/// Ticks until the upstream is gone.
async fn run_maintenance(shared: Weak<SharedUpstream>, source: DnsSource) {
    let changed = |it: Arc<SharedUpstream>| Arc::clone(&it.server_pool.lock().dns_names.changed);
    let Some(changed) = shared.upgrade().map(changed) else {
        return;
    };
    // Identifiers only grow.
    let mut first_new_server = ServerId(0);
    let mut next_tick = clock::now();
    loop {
        {
            let Some(shared) = shared.upgrade() else {
                return;
            };
            let now = clock::now();
            if now >= next_tick {
                shared.update_pool(|pool| pool.tick(now));
                next_tick = now + TICK_INTERVAL;
            }
            start_missing_tasks(&shared, &source, &mut first_new_server);
        }
        clock::timeout_at(next_tick, changed.notified()).await;
    }
}

/// Starts tasks for new names, and for servers from `first_new` on.
fn start_missing_tasks(shared: &Arc<SharedUpstream>, source: &DnsSource, first_new: &mut ServerId) {
    let (names, servers) = {
        let mut pool = shared.server_pool.lock();
        let ids = pool.servers.iter().map(|entry| entry.id);
        let servers: Vec<_> = ids.filter(|id| id.0 >= first_new.0).collect();
        (pool.dns_names.take_names_without_task(), servers)
    };
    for id in names {
        let shared = Arc::downgrade(shared);
        loops::spawn_here(resolve::follow_dns_name(shared, id, source.clone()));
    }
    for id in servers {
        *first_new = ServerId(id.0 + 1);
        if shared.config.health.is_some() {
            loops::spawn_here(probe::run_probes(Arc::downgrade(shared), id));
        }
        if preconnect::is_enabled(&shared.config) {
            let shared = Arc::downgrade(shared);
            loops::spawn_here(preconnect::maintain_min_connections(shared, id));
        }
    }
}

const TICK_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
pub(crate) mod tests;
