//! What an upstream does beside its requests: time, connections opened ahead, probes and names.
//!
//! Started by `upstream` on the control loop; everything here holds the upstream weakly and ends with it.
//! One task ticks; it starts one more for each server that is probed or kept connected (`probe`,
//! `ahead`), and one for each name (`resolve`). What must stay true: no request waits for anything in
//! here, and an upstream with nothing to do costs one timer.

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

/// Adds the configured servers and begins to look after them, on this loop. Names become servers when
/// `source` has resolved them, which a start does not wait for.
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
        // It is added by whoever met it.
        config::ServerAddr::Joined(_) => {}
    }
    notify_changes(shared);
}

/// Has servers and names that are new looked after at once, not with the next tick.
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

/// How many requests a server may have in progress that says `max_active` for itself: each has a
/// connection, so that their bound is one too.
pub(crate) fn server_capacity(config: &config::Upstream, max_active: Option<u32>) -> u32 {
    let connections_max = config.connections.max;
    let said = max_active.or(config.max_active);
    said.map_or(connections_max, |said| said.min(connections_max))
}

/// The same for one that has said itself what it may: it may have no more than the upstream's servers have.
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

/// What has a task of its own already.
#[derive(Debug, Default)]
struct StartedTasks {
    /// The newest server; keys only grow.
    newest_server: Option<ServerId>,
}

impl StartedTasks {
    /// Starts what new servers and names need.
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
