//! The current servers of one upstream, their slots and the queue of waiting requests.
//!
//! Behind one short lock in [`crate::upstream::SharedUpstream`]. `claim` claims and releases slots,
//! `maintenance` reports probes, names and time, the admin API changes servers. The parts are pure:
//! `queue` orders waiting requests, `balance` chooses the server, `health` judges it.
//!
//! # Invariants
//!
//! - Nothing here waits, wakes or closes a socket: follow-up work is collected in
//!   [`DeferredActions`] and done after the lock is released.

mod server_entry;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use penstock_config as config;
use penstock_exchange::AddressPrefix;
use penstock_exchange::metrics::Histogram;
use penstock_queue::{DispatchedJob, Queue, QueueLimits, QueueOutcome, SlotId, SlotSpec, Ticket};
use tokio::sync::oneshot;

use crate::balance::{Balancer, Candidate};
use crate::connection::{BackendServer, ResolvedAddress, UpstreamConnection};
use crate::health::{HealthTransition, ServerHealth, ServerHealthState};
use crate::resolve::DnsNames;
use crate::retry_budget::RetryBudget;
use crate::snapshot::UpstreamCounters;
pub(crate) use server_entry::{ServerEntry, ServerSpec, server_name_hash};

#[derive(Debug)]
pub(crate) struct ServerPool {
    config: Arc<config::Upstream>,
    queue: Queue<SlotWaiter>,
    pub(crate) servers: Vec<ServerEntry>,
    balancer: Balancer,
    budget: RetryBudget,
    /// Scratch space of `choose_server`.
    candidates: Vec<Candidate>,
    use_count: u64,
    next_id: u64,
    pub(crate) counters: UpstreamCounters,
    pub(crate) latencies: LatencyHistograms,
    loop_count: usize,
    /// Of the current [`TlsConnector`](crate::upstream_tls::TlsConnector).
    tls_epoch: u32,
    /// Names that resolve to servers.
    pub(crate) dns_names: DnsNames,
    deferred: DeferredActions,
}

/// Identifies a server for the life of the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ServerId(pub(crate) u64);

/// A waiting request; gets its slot or a refusal, once.
#[derive(Debug)]
pub(crate) struct SlotWaiter {
    pub(crate) grant_sender: oneshot::Sender<Result<SlotId, String>>,
    pub(crate) client: Option<AddressPrefix>,
}

/// What a request requires of a server.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SelectionCriteria<'a> {
    /// The key, if the balance is by hash.
    pub(crate) hash_key: Option<u64>,
    /// The server that the cookie names, see [`server_name_hash`].
    pub(crate) sticky_name_hash: Option<u64>,
    /// Servers that already failed this request.
    pub(crate) tried_servers: &'a [ServerId],
    pub(crate) reuse: ReusePolicy,
    /// The first claim of this request.
    pub(crate) is_first_attempt: bool,
}

/// Which idle connections a request may use. One that it may not use is closed before a new one is
/// opened, because a server of few threads may be waiting on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ReusePolicy {
    /// Any: the request is repeated if the server turns out to have closed the connection.
    Any,
    /// One that the server has left open for a while already.
    #[default]
    Proven,
    /// One of a server that is known to keep connections open: the last connection tried was
    /// closed.
    KeepAliveServer,
}

#[derive(Debug)]
pub(crate) struct ClaimedSlot {
    pub(crate) id: SlotId,
    pub(crate) server_id: ServerId,
    pub(crate) server: Arc<BackendServer>,
    pub(crate) idle_connection: Option<UpstreamConnection>,
    /// The number of the server in a sticky cookie.
    pub(crate) name_hash: u64,
}

#[derive(Debug)]
pub(crate) enum ClaimOutcome {
    Slot(ClaimedSlot),
    Queued {
        ticket: Ticket,
        position: usize,
    },
    QueueFull {
        len: usize,
    },
    /// No server may serve it.
    Unavailable {
        reason: &'static str,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum AttemptOutcome {
    /// A whole response, or as much of it as the client wanted.
    Success,
    /// The server's fault.
    Failure { is_timeout: bool },
    /// The server violated its protocol in the response to such a request.
    Malformed { request_hash: u64 },
    /// Not the server's fault.
    #[default]
    Neutral,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AttemptReport {
    pub(crate) outcome: AttemptOutcome,
    /// Time in the queue; `None` for a further attempt, which is already counted.
    pub(crate) queue_time: Option<Duration>,
    /// Time to connect; `None` on a reused connection.
    pub(crate) connect_time: Option<Duration>,
    /// Time from sending the request to the response head; `None` without a head.
    pub(crate) header_time: Option<Duration>,
}

/// The work to do after the lock is released.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct DeferredActions {
    pub(crate) grants: Vec<DispatchedJob<SlotWaiter>>,
    pub(crate) closed_connections: Vec<UpstreamConnection>,
    pub(crate) transitions: Vec<(Arc<BackendServer>, HealthTransition)>,
}

/// Histograms of an upstream; only changed under the pool's lock.
#[derive(Debug, Default)]
pub(crate) struct LatencyHistograms {
    pub(crate) queue_time: Histogram,
    pub(crate) connect_time: Histogram,
    pub(crate) header_time: Histogram,
}

impl ServerPool {
    pub(crate) fn new(config: &Arc<config::Upstream>, loops: usize, now: Instant) -> Self {
        let limits = QueueLimits {
            max_len: config.max_queued,
            timeout: config.queue_timeout,
        };
        // Different processes and upstreams draw different numbers.
        let seed = server_name_hash(&config.name) ^ u64::from(std::process::id());
        Self {
            config: Arc::clone(config),
            queue: Queue::new(limits),
            servers: Vec::new(),
            balancer: Balancer::new(config.balance, seed),
            budget: RetryBudget::new(config.retry.budget, now),
            candidates: Vec::new(),
            use_count: 0,
            next_id: 0,
            counters: UpstreamCounters::default(),
            latencies: LatencyHistograms::default(),
            loop_count: loops,
            tls_epoch: 0,
            dns_names: DnsNames::default(),
            deferred: DeferredActions::default(),
        }
    }

    /// Takes the work that the changes since the last call have caused.
    pub(crate) fn take_deferred(&mut self) -> DeferredActions {
        std::mem::take(&mut self.deferred)
    }

    /// Claims a slot for a request that arrived, or that failed elsewhere, on loop `loop_index`.
    pub(crate) fn claim(
        &mut self,
        now: Instant,
        loop_index: usize,
        criteria: &SelectionCriteria<'_>,
        waiter: impl FnOnce() -> SlotWaiter,
    ) -> ClaimOutcome {
        if criteria.is_first_attempt {
            self.counters.requests += 1;
            self.budget.deposit(now);
        }
        let sticky =
            (criteria.sticky_name_hash).and_then(|number| self.sticky_server(number, criteria));
        let chosen = match sticky {
            Some(index) => Some(index).filter(|&index| self.servers[index].has_free_slot()),
            None => self.choose_server(now, loop_index, criteria),
        };
        let claimed = chosen.filter(|&index| self.queue.claim_slot(self.servers[index].slot));
        if let Some(index) = claimed.or_else(|| self.claim_backup(criteria)) {
            self.servers[index].active += 1;
            return ClaimOutcome::Slot(self.take_slot(now, index, loop_index, criteria.reuse));
        }
        let others = sticky.or_else(|| self.least_busy(criteria));
        // The application's processes are about to start: its requests wait for them.
        let may_come = self.config.servers.is_empty() && criteria.tried_servers.is_empty();
        if others.is_none() && !may_come {
            self.counters.unavailable += u64::from(criteria.is_first_attempt);
            let reason = match criteria.tried_servers {
                [] => "no server is up",
                _ => "no other server is up",
            };
            return ClaimOutcome::Unavailable { reason };
        }
        // A request that has tried some servers must not get those again, as a free slot might be
        // theirs.
        let is_bound = sticky.is_some() || !criteria.tried_servers.is_empty();
        let bound = others
            .filter(|_| is_bound)
            .map(|index| self.servers[index].slot);
        match self.queue.enqueue(now, waiter(), bound) {
            QueueOutcome::Queued { ticket, position } => ClaimOutcome::Queued { ticket, position },
            QueueOutcome::Full(_) => {
                self.counters.queue_full += 1;
                ClaimOutcome::QueueFull {
                    len: self.queue.len(),
                }
            }
            // A slot that balancing had passed over became free.
            QueueOutcome::Dispatched(start) => match self.index_by_slot(start.slot_id) {
                Some(index) => {
                    self.servers[index].active += 1;
                    ClaimOutcome::Slot(self.take_slot(now, index, loop_index, criteria.reuse))
                }
                None => ClaimOutcome::Unavailable {
                    reason: "no server is up",
                },
            },
        }
    }

    /// The least busy server still open to a request that has tried others.
    fn least_busy(&self, criteria: &SelectionCriteria<'_>) -> Option<usize> {
        let live = (self.servers.iter().enumerate())
            .filter(|(_, entry)| entry.current_max_active > 0 && criteria.is_untried(entry));
        let load = |entry: &ServerEntry| {
            let waiting = u32::try_from(self.queue.bound_job_count(entry.slot)).unwrap_or(u32::MAX);
            entry.active.saturating_add(waiting) / entry.current_max_active.max(1)
        };
        live.min_by_key(|(_, entry)| load(entry))
            .map(|(index, _)| index)
    }

    /// Accepts a granted slot; `None` when the server is gone meanwhile.
    pub(crate) fn accept_grant(
        &mut self,
        now: Instant,
        slot: SlotId,
        loop_index: usize,
        reuse: ReusePolicy,
    ) -> Option<ClaimedSlot> {
        let index = self.index_by_slot(slot)?;
        Some(self.take_slot(now, index, loop_index, reuse))
    }

    /// Removes a waiting request from the queue; `false` when it is no longer there.
    pub(crate) fn cancel(&mut self, ticket: Ticket) -> bool {
        self.queue.cancel(ticket).is_some()
    }

    /// Releases the slot of a finished request; `connection` is given if it may carry another, with
    /// its loop.
    pub(crate) fn release(
        &mut self,
        now: Instant,
        slot: SlotId,
        connection: Option<(UpstreamConnection, usize)>,
        report: &AttemptReport,
    ) {
        let closed = &mut self.deferred.closed_connections;
        let Some(index) = self.servers.iter().position(|entry| entry.slot == slot) else {
            return closed.extend(connection.map(|(it, _)| it));
        };
        self.latencies.record(report);
        // Computed only where it matters: it looks at every server.
        let is_failure = !matches!(
            report.outcome,
            AttemptOutcome::Success | AttemptOutcome::Neutral
        );
        let may_eject = is_failure && self.is_another_up(index);
        let entry = &mut self.servers[index];
        entry.active = entry.active.saturating_sub(1);
        let transition = entry.record_outcome(now, report.outcome, may_eject);
        match connection {
            Some((connection, loop_index))
                if entry.keeps_used_connection(now) && connection.tls_epoch >= self.tls_epoch =>
            {
                entry.idle_connections.push(connection, loop_index, now);
            }
            gone => (self.deferred.closed_connections).extend(gone.map(|(it, _)| it)),
        }
        if entry.is_leaving && entry.active == 0 {
            let _ = self.queue.finish_request(now, slot);
            return self.remove_at(index);
        }
        // Before the slot is granted again: an ejected server gets no requests.
        if let Some(transition) = transition {
            self.apply_transition(now, index, transition);
        }
        let next = self.queue.finish_request(now, slot);
        self.hand_out_slots(next);
    }

    /// Whether a request that failed at `id` too has another server to try.
    pub(crate) fn has_untried_server(&self, tried: &[ServerId], id: ServerId) -> bool {
        (self.servers.iter()).any(|entry| {
            let is_tried = entry.id == id || tried.contains(&entry.id);
            !is_tried && entry.keeps_connections()
        })
    }

    /// Whether the budget allows one more attempt.
    pub(crate) fn spend_retry(&mut self, now: Instant) -> bool {
        let may = self.budget.withdraw(now);
        match may {
            true => self.counters.retries += 1,
            false => self.counters.retries_over_budget += 1,
        }
        may
    }

    pub(crate) fn count_connect(&mut self, slot: SlotId) {
        if let Some(index) = self.index_by_slot(slot) {
            self.servers[index].counters.connects += 1;
        }
    }

    /// Counts a request that timed out in the queue.
    pub(crate) fn count_queue_timeout(&mut self, waited: Duration) {
        self.counters.queue_timeouts += 1;
        self.latencies.queue_time.record_local(waited);
    }

    /// Counts a request whose client disconnected in the queue.
    pub(crate) fn count_queue_abandoned(&mut self, waited: Duration) {
        self.counters.queue_abandoned += 1;
        self.latencies.queue_time.record_local(waited);
    }

    pub(crate) fn add(
        &mut self,
        now: Instant,
        address: ResolvedAddress,
        name: Arc<str>,
        spec: ServerSpec,
    ) -> ServerId {
        let id = ServerId(self.next_id);
        self.next_id += 1;
        // No request starts there until its state sets the limit.
        let slot_spec = SlotSpec {
            generation: spec.generation,
            group: 0,
            loop_index: 0,
            request_capacity: 0,
        };
        let (slot, _) = self.queue.add_slot(now, slot_spec);
        let health = ServerHealth::new(&self.config, now);
        let server = Arc::new(BackendServer::new(name, address));
        self.servers.push(ServerEntry::new(
            id,
            server,
            spec,
            health,
            slot,
            self.loop_count,
        ));
        self.update_max_active(now);
        id
    }

    /// Removes a server: no new requests, and it is gone after its last active one.
    pub(crate) fn remove(&mut self, now: Instant, id: ServerId) {
        let Some(index) = self.index_by_id(id) else {
            return;
        };
        let entry = &mut self.servers[index];
        entry.is_leaving = true;
        (entry.idle_connections).drain_into(&mut self.deferred.closed_connections);
        let (slot, is_unused) = (entry.slot, entry.active == 0);
        self.update_max_active(now);
        let freed = self.queue.unbind_and_dispatch(now, slot);
        self.hand_out_slots(freed);
        if is_unused {
            self.remove_at(index);
        }
    }

    /// Changes one server's health or administrative state through `change`.
    pub(crate) fn change_health(
        &mut self,
        now: Instant,
        id: ServerId,
        change: impl FnOnce(&mut ServerHealth) -> Option<HealthTransition>,
    ) {
        if let Some(index) = self.index_by_id(id)
            && let Some(transition) = change(&mut self.servers[index].health)
        {
            self.apply_transition(now, index, transition);
        }
    }

    pub(crate) fn change_spec(
        &mut self,
        now: Instant,
        id: ServerId,
        change: impl FnOnce(&mut ServerSpec),
    ) {
        if let Some(index) = self.index_by_id(id) {
            change(&mut self.servers[index].spec);
            self.update_max_active(now);
        }
    }

    /// Records why a server's probe failed.
    pub(crate) fn record_probe_error(&mut self, id: ServerId, cause: Arc<str>) {
        if let Some(index) = self.index_by_id(id) {
            self.servers[index].last_probe_error = Some(cause);
        }
    }

    /// The server with that identifier, unless it is gone or leaving.
    pub(crate) fn server(&self, id: ServerId) -> Option<&ServerEntry> {
        (self.servers.iter()).find(|entry| entry.id == id && !entry.is_leaving)
    }

    /// Handles the passing of time: ejections that end, and connections idle for too long or closed
    /// by their server.
    pub(crate) fn tick(&mut self, now: Instant) {
        for index in 0..self.servers.len() {
            let entry = &mut self.servers[index];
            let closed = &mut self.deferred.closed_connections;
            entry.drop_stale_idle_connections(now, &self.config.connections, closed);
            if let Some(transition) = entry.health.tick(now) {
                self.apply_transition(now, index, transition);
            }
        }
    }

    /// The number of waiting requests and the longest wait.
    pub(crate) fn queue_len_and_oldest_wait(&self, now: Instant) -> (usize, Duration) {
        let oldest = self.queue.oldest_wait(now).unwrap_or_default();
        (self.queue.len(), oldest)
    }

    /// The clients of waiting requests, where known.
    pub(crate) fn waiting_clients(&self) -> Vec<Option<AddressPrefix>> {
        self.queue
            .waiting_jobs()
            .map(|waiter| waiter.client)
            .collect()
    }

    /// Removes the waiting requests of these clients.
    pub(crate) fn take_waiters_of_clients(&mut self, clients: &[AddressPrefix]) -> Vec<SlotWaiter> {
        let is_of_them =
            |waiter: &SlotWaiter| (waiter.client).is_some_and(|client| clients.contains(&client));
        let taken = self.queue.take_matching(is_of_them).into_iter();
        taken.map(|(waiter, _)| waiter).collect()
    }

    /// The sum of the servers' limits of active requests.
    pub(crate) fn total_max_active(&self) -> usize {
        let capacities = self
            .servers
            .iter()
            .map(|entry| entry.current_max_active as usize);
        capacities.fold(0, usize::saturating_add)
    }

    /// Adds a connection that was opened in advance to the idle ones.
    pub(crate) fn add_idle_connection(
        &mut self,
        now: Instant,
        id: ServerId,
        connection: UpstreamConnection,
        loop_index: usize,
    ) {
        match self.index_by_id(id) {
            Some(index)
                if self.servers[index].keeps_connections()
                    && connection.tls_epoch >= self.tls_epoch =>
            {
                self.servers[index]
                    .idle_connections
                    .push(connection, loop_index, now);
            }
            _ => self.deferred.closed_connections.push(connection),
        }
    }

    /// Closes connections that were secured by what a reload has replaced: those that are idle now,
    /// the others after their response.
    pub(crate) fn set_tls_epoch(&mut self, epoch: u32) {
        self.tls_epoch = epoch;
        for entry in &mut self.servers {
            (entry.idle_connections).drain_into(&mut self.deferred.closed_connections);
        }
    }

    /// Closes the idle connections to a server; returns whether there were any.
    pub(crate) fn close_idle_connections(&mut self, id: ServerId) -> bool {
        let closed = &mut self.deferred.closed_connections;
        let before = closed.len();
        if let Some(entry) = self.servers.iter_mut().find(|entry| entry.id == id) {
            entry.idle_connections.drain_into(closed);
        }
        closed.len() > before
    }

    /// Grants slots: each counts as the server's from now on, whichever task receives it.
    fn hand_out_slots(&mut self, starts: impl IntoIterator<Item = DispatchedJob<SlotWaiter>>) {
        for start in starts {
            if let Some(index) = self.index_by_slot(start.slot_id) {
                self.servers[index].active += 1;
            }
            self.deferred.grants.push(start);
        }
    }

    fn take_slot(
        &mut self,
        now: Instant,
        index: usize,
        loop_index: usize,
        reuse: ReusePolicy,
    ) -> ClaimedSlot {
        self.use_count += 1;
        let entry = &mut self.servers[index];
        entry.last_used = self.use_count;
        entry.counters.requests += 1;
        // Used or closed: a server that serves one connection at a time would never look at the
        // next.
        let mut kept = entry.idle_connections.take(loop_index);
        let is_fit = kept.as_ref().is_some_and(|kept| match reuse {
            ReusePolicy::Any => true,
            _ if entry.server.keeps_alive.load(Ordering::Relaxed) => true,
            ReusePolicy::Proven => kept.idle_time(now) >= KEEP_ALIVE_PROOF,
            ReusePolicy::KeepAliveServer => false,
        });
        if !is_fit {
            self.deferred.closed_connections.extend(kept.take());
        }
        entry.counters.connection_reuses += u64::from(kept.is_some());
        ClaimedSlot {
            id: entry.slot,
            server_id: entry.id,
            server: Arc::clone(&entry.server),
            idle_connection: kept,
            name_hash: entry.name_hash,
        }
    }

    fn choose_server(
        &mut self,
        now: Instant,
        loop_index: usize,
        criteria: &SelectionCriteria<'_>,
    ) -> Option<usize> {
        if let [only] = self.servers.as_slice() {
            return (only.has_free_slot() && criteria.is_untried(only)).then_some(0);
        }
        self.candidates.clear();
        // A backup only if no other is free; the newest generation first.
        let level = |entry: &ServerEntry| (!entry.spec.backup, entry.spec.generation);
        let free = (self.servers.iter())
            .filter(|entry| entry.has_free_slot() && criteria.is_untried(entry));
        let best = free.map(level).max()?;
        for (index, entry) in self.servers.iter().enumerate() {
            if entry.current_max_active > 0 && level(entry) == best && criteria.is_untried(entry) {
                self.candidates
                    .push(entry.candidate(index, loop_index, now));
            }
        }
        self.balancer.choose(&self.candidates, criteria.hash_key)
    }

    /// Claims a slot at a backup for a request that failed at all other servers that are up.
    fn claim_backup(&mut self, criteria: &SelectionCriteria<'_>) -> Option<usize> {
        let is_open =
            |entry: &ServerEntry| entry.current_max_active > 0 && criteria.is_untried(entry);
        if criteria.tried_servers.is_empty() || self.servers.iter().any(is_open) {
            return None;
        }
        let index = self.servers.iter().position(|entry| {
            entry.spec.backup && entry.keeps_connections() && criteria.is_untried(entry)
        })?;
        // For this request alone: other waiting requests are for the other servers.
        let ServerEntry { slot, ref spec, .. } = self.servers[index];
        let is_claimed = self.queue.claim_beyond_capacity(slot, spec.max_active);
        is_claimed.then_some(index)
    }

    /// The server that a cookie names, if it may have requests at all.
    fn sticky_server(&self, wanted: u64, criteria: &SelectionCriteria<'_>) -> Option<usize> {
        self.servers.iter().position(|entry| {
            entry.current_max_active > 0 && criteria.is_untried(entry) && entry.name_hash == wanted
        })
    }

    fn index_by_id(&self, id: ServerId) -> Option<usize> {
        self.servers.iter().position(|entry| entry.id == id)
    }

    fn index_by_slot(&self, slot: SlotId) -> Option<usize> {
        self.servers.iter().position(|entry| entry.slot == slot)
    }

    /// Whether a server other than `index` is up, and not only on trial: the last one is never
    /// ejected. A backup counts: it takes over when this one goes.
    fn is_another_up(&self, index: usize) -> bool {
        let mut servers = self.servers.iter().enumerate();
        servers.any(|(at, entry)| at != index && entry.is_up())
    }

    fn apply_transition(&mut self, now: Instant, index: usize, transition: HealthTransition) {
        let entry = &mut self.servers[index];
        (self.deferred.transitions).push((Arc::clone(&entry.server), transition));
        let (slot, is_down) = (entry.slot, !entry.health.accepts_requests());
        if is_down {
            // Idle connections are as suspect as their server.
            (entry.idle_connections).drain_into(&mut self.deferred.closed_connections);
        }
        self.update_max_active(now);
        if is_down {
            let freed = self.queue.unbind_and_dispatch(now, slot);
            self.hand_out_slots(freed);
        }
    }

    /// Sets each slot's limit of requests by its server's state and by whether backups are needed.
    fn update_max_active(&mut self, now: Instant) {
        // A server on trial accepts a single request: the backups stay in use beside it.
        let mut servers = self.servers.iter();
        let is_primary_up = servers.any(|entry| !entry.spec.backup && entry.is_up());
        let mut starts = Vec::new();
        for entry in &mut self.servers {
            let is_called = !entry.spec.backup || !is_primary_up;
            let max_active = match entry.health.max_active() {
                _ if entry.is_leaving || !is_called => 0,
                Some(most) => entry.spec.max_active.min(most),
                None => entry.spec.max_active,
            };
            if max_active != entry.current_max_active {
                entry.current_max_active = max_active;
                starts.extend(self.queue.set_request_capacity(now, entry.slot, max_active));
                if max_active == 0 {
                    // No request may wait for a server that accepts none.
                    starts.extend(self.queue.unbind_and_dispatch(now, entry.slot));
                }
            }
            let is_on_trial = entry.health.state() == ServerHealthState::OnTrial;
            (entry.server.is_on_trial).store(is_on_trial, Ordering::Relaxed);
        }
        self.hand_out_slots(starts);
    }

    fn remove_at(&mut self, index: usize) {
        let mut entry = self.servers.remove(index);
        (entry.idle_connections).drain_into(&mut self.deferred.closed_connections);
        self.queue.remove_slot(entry.slot);
    }
}

impl SelectionCriteria<'_> {
    fn is_untried(&self, entry: &ServerEntry) -> bool {
        !self.tried_servers.contains(&entry.id)
    }
}

impl LatencyHistograms {
    fn record(&self, report: &AttemptReport) {
        for (histogram, time) in [
            (&self.queue_time, report.queue_time),
            (&self.connect_time, report.connect_time),
            (&self.header_time, report.header_time),
        ] {
            if let Some(time) = time {
                histogram.record_local(time);
            }
        }
    }
}

/// A server that closes the connection after each response has done so by then.
const KEEP_ALIVE_PROOF: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests;
