//! Active probes: asking a server how it is, beside its requests.
//!
//! A task for each server of an upstream with `health`, started by `maintain` on the control loop; each
//! result goes to the server's `ejection`, which decides. HTTP servers are asked for a path, FastCGI and
//! AJP servers with their protocols' own question, all others are only connected to. A server starts as
//! one that is up, as HAProxy has it: requests do not wait for the first probe, and it goes down after
//! `fall` of them. What must stay true: one probe at a time for a server, each on a connection of its own
//! that is no request's and takes no slot; what this machine lacks is never held against a server, nor is
//! that our idle connections keep its processes or threads from the probe.

mod ask;

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Weak};
use std::time::Duration;

use penstock_config as config;
use penstock_runtime::clock;

use crate::connection::Server;
use crate::roster::{Member, MemberKey};
use crate::upstream::Shared;
use ask::ProbeError;

/// Probes a server until it or the upstream is gone.
pub(crate) async fn watch(shared: Weak<Shared>, key: MemberKey) {
    let Some(interval) = shared
        .upgrade()
        .and_then(|it| Some(it.config.health.as_ref()?.interval))
    else {
        return;
    };
    // Servers that came together are not all asked at the same moment.
    clock::sleep(interval.mul_f64(fraction())).await;
    let mut is_failing = false;
    loop {
        let begun = clock::now();
        let Some(wanted) = shared.upgrade().and_then(|it| Wanted::of(&it, key)) else {
            return;
        };
        if wanted.is_wanted {
            let result = ask::ask(&wanted.server, &wanted.config, || make_room(&shared, key)).await;
            let Some(shared) = shared.upgrade() else {
                return;
            };
            is_failing = tell(&shared, key, &wanted.server, result, is_failing);
        }
        let took = clock::now().saturating_duration_since(begun);
        clock::sleep(interval.saturating_sub(took).max(PAUSE_MIN)).await;
    }
}

/// The server to ask.
struct Wanted {
    server: Arc<Server>,
    config: Arc<config::Upstream>,
    is_wanted: bool,
}

impl Wanted {
    /// None when the server is gone.
    fn of(shared: &Shared, key: MemberKey) -> Option<Self> {
        let roster = shared.roster();
        let member = roster.member(key)?;
        Some(Self {
            server: Arc::clone(&member.server),
            config: Arc::clone(&shared.config),
            // A probe would take what a request could have.
            is_wanted: member.ejection.wants_probes()
                && member.server.address.last_dialled().is_none(),
        })
    }
}

/// Gives up our idle connections to a server; whether there were any. Some servers give a process or
/// thread to each connection until that is closed: with all of them given, a probe waits for ever at a
/// server that has nothing to do.
fn make_room(shared: &Weak<Shared>, key: MemberKey) -> bool {
    let Some(shared) = shared.upgrade() else {
        return false;
    };
    shared.change(|roster, aftermath| roster.drop_idle(key, aftermath))
}

/// Hands in a result; whether it was a failure. The first in a row is logged, with its reason.
fn tell(
    shared: &Shared,
    key: MemberKey,
    server: &Server,
    result: Result<(), ProbeError>,
    is_failing: bool,
) -> bool {
    let now = clock::now();
    let cause: Option<Arc<str>> = result.as_ref().err().map(|error| error.to_string().into());
    let is_ours = matches!(&result, Err(error) if error.is_ours());
    let counts = shared.change(|roster, aftermath| {
        let is_full = |member: &Member| member.active() >= member.spec.capacity;
        // A server with all it may have in progress owes no answer beside it: a single thread that works
        // would be taken for a dead one. Whether it is, its requests tell.
        let is_busy =
            matches!(result, Err(ProbeError::Late(_))) && roster.member(key).is_some_and(is_full);
        if is_busy || is_ours {
            return false;
        }
        if let Some(cause) = &cause {
            roster.note_error(key, Arc::clone(cause));
        }
        let is_good = cause.is_none();
        roster.change(now, key, aftermath, |health| health.probe(now, is_good));
        true
    });
    match cause {
        Some(_) if !counts => is_failing,
        Some(cause) => {
            if !is_failing {
                let (upstream, server) = (&shared.name, &server.name);
                log::warn!("{upstream}: server {server}: probe failed: {cause}");
            }
            true
        }
        None => false,
    }
}

/// A random number from 0 to 1: what is keyed differently each time hashes nothing to it.
fn fraction() -> f64 {
    let random = RandomState::new().hash_one(()) >> 32;
    f64::from(u32::try_from(random).unwrap_or_default()) / f64::from(u32::MAX)
}

/// However long a probe took, the server has some peace before the next.
const PAUSE_MIN: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests;
