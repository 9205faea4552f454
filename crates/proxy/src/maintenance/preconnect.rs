//! Opens connections in advance: each server always has `connections.min`.
//!
//! One task per server, started by `maintenance` on the control loop. A connection made here waits
//! with the idle ones until a loop takes it over.
//!
//! # Invariants
//!
//! - A server that refuses is tried less and less often and nothing is logged: requests and probes
//!   report it better.

use std::sync::{Arc, Weak};
use std::time::Duration;

use penstock_config::{self as config, Protocol};
use penstock_runtime::clock;

use crate::connection::{BackendServer, UpstreamConnection};
use crate::server_pool::ServerId;
use crate::upstream::SharedUpstream;

/// Whether to open connections in advance. Not if each connection serves one request: servers of
/// those protocols assign a worker to a connection before it sends anything.
pub(super) fn is_enabled(config: &config::Upstream) -> bool {
    let is_kept = match config.protocol {
        Protocol::Http | Protocol::FastCgi | Protocol::Ajp => config.proxy_protocol.is_none(),
        Protocol::Scgi | Protocol::Uwsgi => false,
    };
    is_kept && config.connections.min > 0
}

/// Keeps the server at `connections.min` until it or the upstream is gone.
pub(super) async fn maintain_min_connections(shared: Weak<SharedUpstream>, key: ServerId) {
    let mut pause = MIN_DELAY;
    loop {
        let Some(wanted) = shared
            .upgrade()
            .and_then(|it| MissingConnections::of_server(&it, key))
        else {
            return;
        };
        pause = next_delay(pause, wanted.open(&shared, key).await);
        clock::sleep(pause).await;
    }
}

/// The delay until the next check, by whether the last one went well.
pub(super) fn next_delay(pause: Duration, is_well: bool) -> Duration {
    if is_well {
        MIN_DELAY
    } else {
        pause.saturating_mul(2).min(MAX_DELAY)
    }
}

/// The connections that a server lacks.
struct MissingConnections {
    server: Arc<BackendServer>,
    count: u32,
    connect_timeout: Duration,
}

impl MissingConnections {
    /// `None` when the server is gone.
    fn of_server(shared: &SharedUpstream, key: ServerId) -> Option<Self> {
        let roster = shared.server_pool();
        let member = roster.server(key)?;
        let min = match member.health.accepts_requests() {
            true => shared.config.connections.min,
            false => 0,
        };
        Some(Self {
            server: Arc::clone(&member.server),
            count: min.saturating_sub(member.open_connections()),
            connect_timeout: shared.config.connect_timeout,
        })
    }

    /// Opens them one after the other; `false` when one failed.
    async fn open(self, shared: &Weak<SharedUpstream>, key: ServerId) -> bool {
        for _ in 0..self.count {
            let deadline = clock::now() + self.connect_timeout;
            let Ok(mut connection) = UpstreamConnection::open(&self.server, deadline).await else {
                return false;
            };
            // Treated like a reused one: the server may close it while it waits.
            connection.requests_served = 1;
            let Some(shared) = shared.upgrade() else {
                return true;
            };
            let now = clock::now();
            shared.update_pool(|roster, aftermath| {
                // This loop serves no requests: its connections belong to the last list.
                let refused = roster.add_idle(now, key, connection, usize::MAX);
                aftermath.closed_connections.extend(refused);
            });
        }
        true
    }
}

const MIN_DELAY: Duration = Duration::from_secs(1);
const MAX_DELAY: Duration = Duration::from_secs(60);
