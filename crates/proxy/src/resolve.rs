//! Servers that are named in the DNS: looked up again and again, added and removed as answers change.
//!
//! [`Names`] lists them, in the roster and under its lock; `maintain` starts [`follow`] for each on the
//! control loop, `manage` adds and removes them at run time. `lookup` asks, `targets` computes what an
//! answer changes. What must stay true: no loop of clients ever waits for a name; without an answer
//! everything stays as it was; a server that an answer leaves out finishes what it has.

mod lookup;
mod targets;

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use penstock_config as config;
use penstock_runtime::clock;
use tokio::sync::Notify;

use crate::connection::Address;
use crate::ejection::Admin;
use crate::maintain;
use crate::roster::{Aftermath, MemberKey, MemberSpec, Roster};
use crate::upstream::Shared;
pub(crate) use lookup::Source;
use lookup::{Asker, Found, Likeness, LookupError};
use targets::{Target, changes, is_same, pause, pause_failed};

/// The names of an upstream that stand for servers.
#[derive(Debug, Default)]
pub(crate) struct Names {
    entries: Vec<Named>,
    next_id: u64,
    news: Arc<Notify>,
}

/// Names a [`Named`] for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NameId(u64);

/// A name that stands for servers.
#[derive(Debug, Clone)]
pub(crate) struct Named {
    pub(crate) id: NameId,
    /// As configured; its weight and bounds are those of each server.
    pub(crate) server: config::UpstreamServer,
    pub(crate) generation: u64,
    /// What the operator said of all its servers, the coming ones included.
    pub(crate) admin: Admin,
    is_followed: bool,
}

impl Names {
    pub(crate) fn add(&mut self, server: config::UpstreamServer, generation: u64) {
        self.entries.push(Named {
            id: NameId(self.next_id),
            server,
            generation,
            admin: Admin::Ready,
            is_followed: false,
        });
        self.next_id += 1;
    }

    /// The name written as `address`.
    pub(crate) fn find(&mut self, address: &config::ServerAddr) -> Option<&mut Named> {
        (self.entries.iter_mut()).find(|entry| entry.server.address == *address)
    }

    /// The name that the status page would show as `text`.
    pub(crate) fn find_text(&mut self, text: &str) -> Option<&mut Named> {
        (self.entries.iter_mut()).find(|entry| entry.server.address.to_string() == text)
    }

    pub(crate) fn remove(&mut self, address: &config::ServerAddr) {
        (self.entries).retain(|entry| entry.server.address != *address);
    }

    /// Those that nobody follows yet; they are taken for followed from now on.
    pub(crate) fn take_new(&mut self) -> Vec<NameId> {
        let new = self.entries.iter_mut().filter(|entry| !entry.is_followed);
        new.map(|entry| {
            entry.is_followed = true;
            entry.id
        })
        .collect()
    }

    /// Told when there is something new, once the roster's lock is free; `maintain` waits for it.
    pub(crate) fn news(&self) -> Arc<Notify> {
        Arc::clone(&self.news)
    }

    fn get(&self, id: NameId) -> Option<&Named> {
        self.entries.iter().find(|entry| entry.id == id)
    }
}

/// Looks up a server's name once, as the upstream itself will: how many addresses it has now.
///
/// # Errors
/// A sentence: there is no answer, or it names no address.
pub async fn look_up(address: &config::ServerAddr) -> Result<usize, String> {
    let likeness = Likeness {
        weight: 1,
        backup: false,
    };
    let answer = Asker::new(Source::System).ask(address, likeness, &[]).await;
    answer
        .map(|found| found.targets.len())
        .map_err(|error| error.to_string())
}

/// Keeps the servers of a name as the DNS has them, until the name or the upstream is gone.
pub(crate) async fn follow(shared: Weak<Shared>, id: NameId, source: Source) {
    let mut asker = Asker::new(source);
    let mut servers = Servers::default();
    let mut trouble = Trouble::default();
    loop {
        let Some(asked) = Asked::of(&shared, id) else {
            return;
        };
        let known = servers.targets();
        let address = &asked.address;
        let answer = asker.ask(address, asked.likeness, &known).await;
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let now = clock::now();
        let pause = match answer {
            Ok(Found { targets, ttl }) => {
                if !servers.follow(&shared, now, id, &targets) {
                    return;
                }
                maintain::tell_news(&shared);
                trouble.end(&shared.name, address);
                pause(ttl, asked.interval)
            }
            Err(error) => {
                trouble.add(now, &shared.name, address, &error);
                pause_failed(trouble.failures, asked.interval)
            }
        };
        // The wait does not keep the upstream.
        drop(shared);
        clock::sleep(pause).await;
    }
}

/// One question.
struct Asked {
    address: config::ServerAddr,
    likeness: Likeness,
    interval: Duration,
}

impl Asked {
    fn of(shared: &Weak<Shared>, id: NameId) -> Option<Self> {
        let shared = shared.upgrade()?;
        let roster = shared.roster();
        let config::UpstreamServer {
            address,
            weight,
            backup,
            ..
        } = &roster.names.get(id)?.server;
        Some(Self {
            address: address.clone(),
            likeness: Likeness {
                weight: *weight,
                backup: *backup,
            },
            interval: shared.config.resolve_interval,
        })
    }
}

/// The servers made of a name. One that the operator took out stays in here, and out, as long as the
/// DNS names it.
#[derive(Debug, Default)]
struct Servers {
    known: Vec<(Target, MemberKey)>,
}

impl Servers {
    fn targets(&self) -> Vec<Target> {
        self.known.iter().map(|(it, _)| it.clone()).collect()
    }

    /// Adds, changes and removes servers until they are the `wanted` ones; `false` when the name is gone.
    fn follow(&mut self, shared: &Shared, now: Instant, id: NameId, wanted: &[Target]) -> bool {
        let changes = changes(&self.targets(), wanted);
        shared.change(|roster, aftermath| {
            let Some(named) = roster.names.get(id).cloned() else {
                return false;
            };
            // New ones first: what waits finds them before the old ones are gone.
            for target in changes.added {
                let key = add(roster, now, &shared.config, &named, &target, aftermath);
                self.known.push((target, key));
            }
            for target in changes.changed {
                let old = (self.known.iter_mut()).find(|(old, _)| is_same(old, &target));
                if let Some((old, key)) = old {
                    roster.respec(now, *key, aftermath, |spec| {
                        (spec.weight, spec.backup) = (target.weight, target.backup);
                    });
                    *old = target;
                }
            }
            self.known.retain(|(target, key)| {
                let is_kept = !changes.removed.contains(target);
                if !is_kept {
                    roster.remove(now, *key, aftermath);
                }
                is_kept
            });
            true
        })
    }
}

fn add(
    roster: &mut Roster,
    now: Instant,
    config: &config::Upstream,
    named: &Named,
    target: &Target,
    aftermath: &mut Aftermath,
) -> MemberKey {
    let name = format!("{} ({})", target.host, target.address.ip());
    let spec = MemberSpec {
        address: named.server.address.clone(),
        weight: target.weight,
        capacity: maintain::capacity(config, named.server.max_active),
        backup: target.backup,
        generation: named.generation,
    };
    let address = match target.other {
        Some(other) => Address::TcpPair([target.address, other]),
        None => Address::Tcp(target.address),
    };
    let key = roster.add(now, address, name.into(), spec, aftermath);
    if named.admin != Admin::Ready {
        roster.change(now, key, aftermath, |health| health.admin(now, named.admin));
    }
    key
}

/// Questions without an answer: told when they begin, each minute, and when they end.
#[derive(Debug, Default)]
struct Trouble {
    failures: u32,
    told_at: Option<Instant>,
}

impl Trouble {
    fn add(
        &mut self,
        now: Instant,
        upstream: &str,
        name: &config::ServerAddr,
        error: &LookupError,
    ) {
        self.failures = self.failures.saturating_add(1);
        let is_told = |at| now.saturating_duration_since(at) < TELL_INTERVAL;
        if !self.told_at.is_some_and(is_told) {
            log::warn!("{upstream}: cannot resolve {name}: {error}");
            self.told_at = Some(now);
        }
    }

    fn end(&mut self, upstream: &str, name: &config::ServerAddr) {
        if self.failures > 0 {
            log::info!("{upstream}: {name} resolves again");
        }
        *self = Self::default();
    }
}

const TELL_INTERVAL: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests;
