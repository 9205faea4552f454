//! Active probes: checks a server beside its requests.
//!
//! One task per server of an upstream with `health`, started by `maintenance` on the control loop.
//! Each result goes to the server's `health`, which decides. HTTP servers are asked for a path,
//! FastCGI and AJP servers by their protocol's own query; all others are only connected to. A
//! server starts as up, as in HAProxy: requests do not wait for the first probe, and it goes down
//! after `fall` failures.
//!
//! # Invariants
//!
//! - One probe at a time per server, each on its own connection, which carries no request and takes
//!   no slot.
//! - A resource that this machine lacks never counts against the server. Nor does a probe that
//!   times out because our idle connections occupy the server's processes or threads.

mod check;

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Weak};
use std::time::Duration;

use penstock_config as config;
use penstock_runtime::clock;

use crate::connection::{BackendServer, ConnectionSetup};
use crate::server_pool::{ServerEntry, ServerId};
use crate::upstream::SharedUpstream;
use crate::upstream_tls::ConnectionPurpose;
use check::ProbeError;

/// Probes a server until it or the upstream is gone.
pub(crate) async fn run_probes(shared: Weak<SharedUpstream>, key: ServerId) {
    let Some(interval) = shared
        .upgrade()
        .and_then(|it| Some(it.config.health.as_ref()?.interval))
    else {
        return;
    };
    // Servers added together are not all probed at the same moment.
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
            let target = (&*wanted.server, &*wanted.config);
            let make_room = || close_idle_connections(&shared, key);
            let result = check::check_server(target, wanted.setup, make_room).await;
            let Some(shared) = shared.upgrade() else {
                return;
            };
            is_failing = record_result(&shared, key, &wanted.server, result, is_failing);
        }
        let took = clock::now().saturating_duration_since(begun);
        clock::sleep(interval.saturating_sub(took).max(MIN_PAUSE)).await;
    }
}

struct ProbeTarget {
    server: Arc<BackendServer>,
    config: Arc<config::Upstream>,
    setup: ConnectionSetup,
    should_probe: bool,
}

impl ProbeTarget {
    /// `None` when the server is gone.
    fn of_server(shared: &SharedUpstream, key: ServerId) -> Option<Self> {
        let pool = shared.server_pool.lock();
        let entry = pool.server(key)?;
        Some(Self {
            server: Arc::clone(&entry.server),
            config: Arc::clone(&shared.config),
            setup: shared.connection_setup(ConnectionPurpose::Exchange),
            // A probe would take a connection that a request could use.
            should_probe: entry.health.wants_probes()
                && entry
                    .server
                    .address
                    .exhausted_joined_connections()
                    .is_none(),
        })
    }
}

/// Closes our idle connections to a server; returns whether there were any. Some servers assign a
/// process or thread to each connection until it closes: with all of them assigned, a probe of a
/// server without work would wait for ever.
fn close_idle_connections(shared: &Weak<SharedUpstream>, key: ServerId) -> bool {
    let Some(shared) = shared.upgrade() else {
        return false;
    };
    shared.update_pool(|pool| pool.close_idle_connections(key))
}

/// Records a result; returns whether it was a failure. The first consecutive failure is logged with
/// its cause.
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
    let counts = shared.update_pool(|pool| {
        let is_full = |entry: &ServerEntry| entry.active >= entry.spec.max_active;
        // A server with as many active requests as it may have need not answer a probe: a busy
        // single thread would be taken for a dead one. Its requests show its health.
        let is_busy =
            matches!(result, Err(ProbeError::Timeout(_))) && pool.server(key).is_some_and(is_full);
        if is_busy || is_ours {
            return false;
        }
        if let Some(cause) = &cause {
            pool.record_probe_error(key, Arc::clone(cause));
        }
        let is_good = cause.is_none();
        pool.change_health(now, key, |health| health.record_probe(now, is_good));
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

/// A random number from 0 to 1: an empty hash with new random keys each time.
fn random_fraction() -> f64 {
    let random = RandomState::new().hash_one(()) >> 32;
    f64::from(u32::try_from(random).unwrap_or_default()) / f64::from(u32::MAX)
}

/// The minimum pause between probes, however long one took.
const MIN_PAUSE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests;
