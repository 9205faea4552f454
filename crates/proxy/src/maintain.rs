//! What an upstream does beside its requests: time, connections opened ahead, probes and names.
//!
//! Started by `upstream` on the control loop; everything here holds the upstream weakly and ends with it.
//! One task ticks; it starts one more for each server that is probed or kept connected (`probe`,
//! `ahead`), and one for each name (`resolve`). What must stay true: no request waits for anything in
//! here, and an upstream with nothing to do costs one timer.

mod ahead;

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use penstock_config as config;
use penstock_runtime::{clock, loops};

use crate::connection::Address;
use crate::probe;
use crate::resolve::{self, Source};
use crate::roster::{MemberKey, MemberSpec};
use crate::upstream::Shared;

/// Adds the configured servers and begins to look after them, on this loop. Names become servers when
/// `source` has resolved them, which a start does not wait for.
pub(crate) fn start(shared: &Arc<Shared>, source: Source) {
    for server in &shared.config.servers {
        add(shared, server.clone(), 0);
    }
    loops::spawn_here(run(Arc::downgrade(shared), source));
}

/// Adds a server, at once or when its name is resolved.
pub(crate) fn add(shared: &Shared, server: config::UpstreamServer, generation: u64) {
    match &server.address {
        config::ServerAddr::Tcp(address) => {
            let address = Address::Tcp(*address);
            add_at(shared, address, server, generation);
        }
        config::ServerAddr::Unix(path) => {
            let address = Address::Unix(path.clone());
            add_at(shared, address, server, generation);
        }
        config::ServerAddr::Name { .. } | config::ServerAddr::Srv(_) => {
            shared.roster().names.add(server, generation);
        }
        // It is added by whoever met it.
        config::ServerAddr::Joined(_) => {}
    }
    tell_news(shared);
}

/// Has servers and names that are new looked after at once, not with the next tick.
pub(crate) fn tell_news(shared: &Shared) {
    let news = shared.roster().names.news();
    news.notify_one();
}

fn add_at(shared: &Shared, address: Address, server: config::UpstreamServer, generation: u64) {
    let name = server.address.to_string();
    let spec = MemberSpec {
        capacity: capacity(&shared.config, server.max_active),
        address: server.address,
        weight: server.weight,
        backup: server.backup,
        generation,
    };
    shared.add(address, name.into(), spec);
}

/// How many requests a server may have in progress that says `max_active` for itself: each has a
/// connection, so that their bound is one too.
pub(crate) fn capacity(config: &config::Upstream, max_active: Option<u32>) -> u32 {
    let connections_max = config.connections.max;
    let said = max_active.or(config.max_active);
    said.map_or(connections_max, |said| said.min(connections_max))
}

/// The same for one that has said itself what it may: it may have no more than the upstream's servers have.
pub(crate) fn capacity_of_member(config: &config::Upstream, said: u32) -> u32 {
    let most = config.max_active.unwrap_or(u32::MAX);
    said.min(most).min(config.connections.max)
}

/// Ticks until the upstream is gone.
async fn run(shared: Weak<Shared>, source: Source) {
    let Some(news) = shared.upgrade().map(|it| it.roster().names.news()) else {
        return;
    };
    let mut attended = Attended::default();
    let mut next_tick = clock::now();
    loop {
        {
            let Some(shared) = shared.upgrade() else {
                return;
            };
            let now = clock::now();
            if now >= next_tick {
                tick(&shared, now);
                next_tick = now + TICK;
            }
            attended.look(&shared, &source);
        }
        clock::timeout_at(next_tick, news.notified()).await;
    }
}

fn tick(shared: &Shared, now: Instant) {
    shared.change(|roster, aftermath| roster.tick(now, aftermath));
}

/// What has a task of its own already.
#[derive(Debug, Default)]
struct Attended {
    /// The newest server; keys only grow.
    newest: Option<MemberKey>,
}

impl Attended {
    /// Starts what new servers and names need.
    fn look(&mut self, shared: &Arc<Shared>, source: &Source) {
        let (names, servers) = {
            let mut roster = shared.roster();
            let keys = roster.members().iter().map(|member| member.key);
            let is_new = |key: &MemberKey| self.newest.is_none_or(|newest| key.0 > newest.0);
            let servers: Vec<_> = keys.filter(is_new).collect();
            (roster.names.take_new(), servers)
        };
        for id in names {
            let shared = Arc::downgrade(shared);
            loops::spawn_here(resolve::follow(shared, id, source.clone()));
        }
        for key in servers {
            self.newest = Some(key);
            if shared.config.health.is_some() {
                loops::spawn_here(probe::watch(Arc::downgrade(shared), key));
            }
            if ahead::is_wanted(&shared.config) {
                loops::spawn_here(ahead::keep(Arc::downgrade(shared), key));
            }
        }
    }
}

const TICK: Duration = Duration::from_secs(1);

#[cfg(test)]
pub(crate) mod tests;
