//! One server of a [`ServerPool`](super::ServerPool): its limits, health, counters and idle
//! connections.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use penstock_config as config;
use penstock_queue::SlotId;
use penstock_runtime::Stream;

use super::{AttemptOutcome, KEEP_ALIVE_PROOF, ServerId};
use crate::balance::{Candidate, hash_key};
use crate::connection::{BackendServer, UpstreamConnection};
use crate::health::{HealthTransition, ServerHealth, ServerHealthState};
use crate::saturation::SaturationDetector;
use crate::snapshot::{ServerCounters, ServerSnapshot};

#[derive(Debug)]
pub(crate) struct ServerEntry {
    pub(crate) id: ServerId,
    pub(crate) server: Arc<BackendServer>,
    pub(crate) spec: ServerSpec,
    pub(crate) health: ServerHealth,
    pub(super) slot: SlotId,
    /// The slot's current limit of active requests; 0 while it accepts none.
    pub(crate) current_max_active: u32,
    pub(crate) active: u32,
    pub(super) idle_connections: IdleUpstreamConnections,
    pub(super) last_used: u64,
    /// Identifies the server for balancing and sticky cookies.
    pub(super) name_hash: u64,
    /// Removed from the configuration: gone after its last active request.
    pub(crate) is_leaving: bool,
    pub(super) counters: ServerCounters,
    /// Timeouts since its last response.
    pub(crate) consecutive_timeouts: u32,
    pub(super) last_probe_error: Option<Arc<str>>,
    saturation: SaturationDetector,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerSpec {
    pub(crate) address: config::ServerAddr,
    pub(crate) weight: u32,
    /// Maximum active requests.
    pub(crate) max_active: u32,
    pub(crate) backup: bool,
    /// Newer ones are preferred while both exist.
    pub(crate) generation: u64,
}

#[derive(Debug)]
pub(super) struct IdleUpstreamConnections {
    /// By the loop that watches them, most recently used last.
    by_loop: Vec<Vec<UpstreamConnection>>,
    count: usize,
}

impl ServerEntry {
    pub(super) fn new(
        id: ServerId,
        server: Arc<BackendServer>,
        spec: ServerSpec,
        health: ServerHealth,
        slot: SlotId,
        loop_count: usize,
    ) -> Self {
        Self {
            id,
            name_hash: server_name_hash(&server.name),
            server,
            spec,
            health,
            slot,
            current_max_active: 0,
            active: 0,
            idle_connections: IdleUpstreamConnections {
                by_loop: (0..=loop_count).map(|_| Vec::new()).collect(),
                count: 0,
            },
            last_used: 0,
            is_leaving: false,
            counters: ServerCounters::default(),
            consecutive_timeouts: 0,
            last_probe_error: None,
            saturation: SaturationDetector::default(),
        }
    }

    /// Counts how a request ended and tells the health.
    pub(super) fn record_outcome(
        &mut self,
        now: Instant,
        outcome: AttemptOutcome,
        may_eject: bool,
    ) -> Option<HealthTransition> {
        match outcome {
            AttemptOutcome::Success => {
                self.consecutive_timeouts = 0;
                self.health.record_success(now)
            }
            AttemptOutcome::Failure { is_timeout } => {
                self.counters.failures += 1;
                self.counters.timeouts += u64::from(is_timeout);
                self.consecutive_timeouts += u32::from(is_timeout);
                self.health.record_failure(now, may_eject)
            }
            AttemptOutcome::Malformed { request_hash } => {
                self.counters.failures += 1;
                self.health.record_malformed(now, may_eject, request_hash)
            }
            AttemptOutcome::Neutral => None,
        }
    }

    /// Whether to keep connections for the next request: a draining server gets none.
    pub(super) fn keeps_connections(&self) -> bool {
        !self.is_leaving && self.health.accepts_requests()
    }

    /// The same for one that was just used: another connection may wait until the server has
    /// finished with it.
    pub(super) fn keeps_used_connection(&self, now: Instant) -> bool {
        self.keeps_connections()
            && !self
                .saturation
                .should_close_used_connection(now, &self.server.load)
    }

    pub(super) fn is_up(&self) -> bool {
        !self.is_leaving && self.health.state() == ServerHealthState::Up
    }

    pub(super) fn has_free_slot(&self) -> bool {
        self.active < self.current_max_active
    }

    pub(super) fn candidate(&self, index: usize, loop_index: usize, now: Instant) -> Candidate {
        let idle_here = self.idle_connections.by_loop.get(loop_index);
        Candidate {
            index,
            name_hash: self.name_hash,
            weight: self.spec.weight,
            active: self.active,
            max_active: self.current_max_active,
            has_idle_connection_on_this_loop: idle_here.is_some_and(|list| !list.is_empty()),
            has_idle_connection: self.idle_connections.count > 0,
            last_used: self.last_used,
            slow_start_permille: self.health.slow_start_permille(now),
        }
    }

    /// Drops idle connections that block another one or that their server closed, and above
    /// `max_idle` those idle for `idle_timeout`.
    pub(super) fn drop_stale_idle_connections(
        &mut self,
        now: Instant,
        limits: &config::ConnectionLimits,
        dropped: &mut Vec<UpstreamConnection>,
    ) {
        let stuck = self.saturation.tick(now, &self.server.load);
        for _ in 0..stuck {
            dropped.extend(self.idle_connections.take_longest());
        }
        let mut above = (self.open_connections() as usize).saturating_sub(limits.max_idle as usize);
        for list in &mut self.idle_connections.by_loop {
            // One system call per loop: the lock is held.
            let mut stirred = Stream::have_events(list.iter().map(|idle| &idle.stream)).into_iter();
            // Longest idle first.
            dropped.extend(list.extract_if(.., |connection| {
                let idle = connection.idle_time(now);
                let is_old = above > 0 && idle >= limits.idle_timeout;
                let is_quiet = !stirred.next().unwrap_or_default();
                if is_quiet && connection.is_reused() && idle >= KEEP_ALIVE_PROOF {
                    self.server.keeps_alive.store(true, Ordering::Relaxed);
                }
                let is_dropped = is_old || !is_quiet;
                above = above.saturating_sub(usize::from(is_dropped));
                is_dropped
            }));
        }
        self.idle_connections.count = self.idle_connections.by_loop.iter().map(Vec::len).sum();
    }

    pub(crate) fn open_connections(&self) -> u32 {
        self.server.open_connections.load(Ordering::Relaxed)
    }

    /// The server as the status page shows it.
    pub(crate) fn snapshot(&self) -> ServerSnapshot {
        ServerSnapshot {
            name: self.server.name.to_string(),
            state: match self.is_leaving {
                true => "leaving",
                false => self.health.state().as_str(),
            },
            weight: self.spec.weight,
            backup: self.spec.backup,
            active: self.active,
            max_active: (self.spec.max_active != u32::MAX).then_some(self.spec.max_active),
            connections_open: self.open_connections(),
            connections_idle: self.idle_connections.count,
            counters: self.counters,
            last_error: self.last_probe_error.as_deref().map(str::to_owned),
        }
    }
}

impl IdleUpstreamConnections {
    pub(super) fn push(
        &mut self,
        mut connection: UpstreamConnection,
        loop_index: usize,
        now: Instant,
    ) {
        connection.idle_since = now;
        let last = self.by_loop.len() - 1;
        self.by_loop[loop_index.min(last)].push(connection);
        self.count += 1;
    }

    /// Takes the last used connection, of loop `loop_index` if it has one.
    pub(super) fn take(&mut self, loop_index: usize) -> Option<UpstreamConnection> {
        if self.count == 0 {
            return None;
        }
        let loop_index = loop_index.min(self.by_loop.len() - 1);
        let taken = match self.by_loop[loop_index].pop() {
            None => self.by_loop.iter_mut().find_map(Vec::pop),
            own => own,
        };
        self.count -= usize::from(taken.is_some());
        taken
    }

    /// Takes the connection that was unused for longest.
    fn take_longest(&mut self) -> Option<UpstreamConnection> {
        let filled = self.by_loop.iter_mut().filter(|list| !list.is_empty());
        let list = filled.min_by_key(|list| list[0].idle_since)?;
        self.count -= 1;
        Some(list.remove(0))
    }

    pub(super) fn drain_into(&mut self, closed: &mut Vec<UpstreamConnection>) {
        self.count = 0;
        self.by_loop.iter_mut().for_each(|list| closed.append(list));
    }
}

/// The number of a server in a sticky cookie: the same on every machine.
pub(crate) fn server_name_hash(name: &str) -> u64 {
    hash_key(name.as_bytes())
}
