//! Active probes: asking a server how it is, beside its requests.
//!
//! A task for each server of an upstream with `health`, started by `maintenance` on the control loop; each
//! result goes to the server's `ejection`, which decides. HTTP servers are asked for a path, FastCGI and
//! AJP servers with their protocols' own question, all others are only connected to. A server starts as
//! one that is up, as HAProxy has it: requests do not wait for the first probe, and it goes down after
//! `fall` of them. What must stay true: one probe at a time for a server, each on a connection of its own
//! that is no request's and takes no slot; what this machine lacks is never held against a server, nor is
//! that our idle connections keep its processes or threads from the probe.

mod check;

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Weak};
use std::time::Duration;

use penstock_config as config;
use penstock_runtime::clock;

use crate::connection::BackendServer;
use crate::server_pool::{ServerEntry, ServerId};
use crate::upstream::SharedUpstream;
use check::ProbeError;

/// Probes a server until it or the upstream is gone.
pub(crate) async fn run_probes(shared: Weak<SharedUpstream>, key: ServerId) {
    let Some(interval) = shared
        .upgrade()
        .and_then(|it| Some(it.config.health.as_ref()?.interval))
    else {
        return;
    };
    // Servers that came together are not all asked at the same moment.
    clock::sleep(interval.mul_f64(random_fraction())).await;
    let mut is_failing = false;
    loop {
        let begun = clock::now();
        let Some(wanted) = shared
            .upgrade()
            .and_then(|it| ProbeTarget::of_server(&it, key))
        else {
            return;
        };
        if wanted.should_probe {
            let result = check::check_server(&wanted.server, &wanted.config, || {
                close_idle_connections(&shared, key)
            })
            .await;
            let Some(shared) = shared.upgrade() else {
                return;
            };
            is_failing = record_result(&shared, key, &wanted.server, result, is_failing);
        }
        let took = clock::now().saturating_duration_since(begun);
        clock::sleep(interval.saturating_sub(took).max(MIN_PAUSE)).await;
    }
}

/// The server to ask.
struct ProbeTarget {
    server: Arc<BackendServer>,
    config: Arc<config::Upstream>,
    should_probe: bool,
}

impl ProbeTarget {
    /// None when the server is gone.
    fn of_server(shared: &SharedUpstream, key: ServerId) -> Option<Self> {
        let roster = shared.server_pool();
        let member = roster.server(key)?;
        Some(Self {
            server: Arc::clone(&member.server),
            config: Arc::clone(&shared.config),
            // A probe would take what a request could have.
            should_probe: member.health.wants_probes()
                && member.server.address.exhausted_joined().is_none(),
        })
    }
}

/// Gives up our idle connections to a server; whether there were any. Some servers give a process or
/// thread to each connection until that is closed: with all of them given, a probe waits for ever at a
/// server that has nothing to do.
fn close_idle_connections(shared: &Weak<SharedUpstream>, key: ServerId) -> bool {
    let Some(shared) = shared.upgrade() else {
        return false;
    };
    shared.update_pool(|roster, aftermath| roster.close_idle(key, aftermath))
}

/// Hands in a result; whether it was a failure. The first in a row is logged, with its reason.
fn record_result(
    shared: &SharedUpstream,
    key: ServerId,
    server: &BackendServer,
    result: Result<(), ProbeError>,
    is_failing: bool,
) -> bool {
    let now = clock::now();
    let cause: Option<Arc<str>> = result.as_ref().err().map(|error| error.to_string().into());
    let is_ours = matches!(&result, Err(error) if error.is_local());
    let counts = shared.update_pool(|roster, aftermath| {
        let is_full = |member: &ServerEntry| member.active() >= member.spec.capacity;
        // A server with all it may have in progress owes no answer beside it: a single thread that works
        // would be taken for a dead one. Whether it is, its requests tell.
        let is_busy = matches!(result, Err(ProbeError::Timeout(_)))
            && roster.server(key).is_some_and(is_full);
        if is_busy || is_ours {
            return false;
        }
        if let Some(cause) = &cause {
            roster.record_probe_error(key, Arc::clone(cause));
        }
        let is_good = cause.is_none();
        roster.change_health(now, key, aftermath, |health| {
            health.record_probe(now, is_good)
        });
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
fn random_fraction() -> f64 {
    let random = RandomState::new().hash_one(()) >> 32;
    f64::from(u32::try_from(random).unwrap_or_default()) / f64::from(u32::MAX)
}

/// However long a probe took, the server has some peace before the next.
const MIN_PAUSE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests;
