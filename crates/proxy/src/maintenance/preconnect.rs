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

use crate::connection::{BackendServer, ConnectionSetup, UpstreamConnectionInner};
use crate::server_pool::ServerId;
use crate::upstream::SharedUpstream;
use crate::upstream_tls::ConnectionPurpose;

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
pub(super) async fn maintain_min_connections(shared: Weak<SharedUpstream>, id: ServerId) {
    let mut pause = MIN_DELAY;
    loop {
        let Some(MissingConnections {
            config,
            server,
            setup,
            count,
        }) = shared
            .upgrade()
            .and_then(|it| MissingConnections::of_server(&it, id))
        else {
            return;
        };
        let mut is_well = true;
        for _ in 0..count {
            let deadline = clock::now() + config.connect_timeout;
            let opened = UpstreamConnectionInner::open(&server, &setup, deadline).await;
            let Ok(mut connection) = opened else {
                is_well = false;
                break;
            };
            // Treated like a reused one: the server may close it while it waits.
            connection.requests_served = 1;
            let Some(shared) = shared.upgrade() else {
                return;
            };
            // This loop serves no requests: its connections belong to the last list.
            shared.update_pool(|pool| {
                pool.add_idle_connection(clock::now(), id, connection, usize::MAX);
            });
        }
        pause = next_delay(pause, is_well);
        clock::sleep(pause).await;
    }
}

/// The delay until the next check, by whether the last one went well.
pub(super) fn next_delay(pause: Duration, is_well: bool) -> Duration {
    match is_well {
        true => MIN_DELAY,
        false => pause.saturating_mul(2).min(MAX_DELAY),
    }
}

/// The connections that a server lacks.
struct MissingConnections {
    config: Arc<config::Upstream>,
    server: Arc<BackendServer>,
    setup: ConnectionSetup,
    count: u32,
}

impl MissingConnections {
    /// `None` when the server is gone.
    fn of_server(shared: &SharedUpstream, id: ServerId) -> Option<Self> {
        let pool = shared.server_pool.lock();
        let entry = pool.server(id)?;
        let min = match entry.health.accepts_requests() {
            true => shared.config.connections.min,
            false => 0,
        };
        Some(Self {
            config: Arc::clone(&shared.config),
            server: Arc::clone(&entry.server),
            setup: shared.connection_setup(ConnectionPurpose::Exchange),
            count: min.saturating_sub(entry.open_connections()),
        })
    }
}

const MIN_DELAY: Duration = Duration::from_secs(1);
const MAX_DELAY: Duration = Duration::from_secs(60);
