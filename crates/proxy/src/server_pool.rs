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

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use penstock_config as config;
use penstock_exchange::AddressPrefix;
use penstock_exchange::metrics::{Histogram, HistogramValues};
use penstock_queue::{DispatchedJob, Queue, QueueLimits, QueueOutcome, SlotId, SlotSpec, Ticket};
use penstock_runtime::Stream;
use tokio::sync::oneshot;

use crate::balance::{BalancePolicy, Balancer, Candidate};
use crate::connection::{BackendServer, ResolvedAddress, UpstreamConnection};
use crate::health::{HealthTransition, ServerHealth, ServerState};
use crate::resolve::DnsNames;
use crate::retry_budget::RetryBudget;
use crate::saturation::Saturation;
use crate::snapshot::{ServerSnapshot, UpstreamCounters};

#[derive(Debug)]
pub(crate) struct ServerPool {
    config: Arc<config::Upstream>,
    queue: Queue<SlotWaiter>,
    servers: Vec<ServerEntry>,
    /// The server of each slot, by the slot's index.
    server_by_slot: Vec<Option<usize>>,
    balancer: Balancer,
    budget: RetryBudget,
    /// Scratch space of `choose`.
    candidates: Vec<Candidate>,
    use_count: u64,
    next_id: u64,
    counters: UpstreamCounters,
    latencies: LatencyHistograms,
    loop_count: usize,
    /// Names that resolve to servers.
    pub(crate) dns_names: DnsNames,
}

#[derive(Debug)]
pub(crate) struct ServerEntry {
    pub(crate) id: ServerId,
    pub(crate) server: Arc<BackendServer>,
    pub(crate) spec: ServerSpec,
    pub(crate) health: ServerHealth,
    slot: SlotId,
    /// The slot's current capacity.
    capacity: u32,
    active: u32,
    /// Idle connections by the loop that watches them, most recently used last.
    idle_connections: Vec<Vec<UpstreamConnection>>,
    idle_count: usize,
    last_used: u64,
    /// Identifies the server for balancing and sticky cookies.
    name_hash: u64,
    /// Removed from the configuration: gone after its last active request.
    is_leaving: bool,
    counters: ServerCounters,
    /// The cause of its last failed probe.
    last_probe_error: Option<Arc<str>>,
    saturation: Saturation,
}

/// Identifies a server for the life of the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ServerId(pub(crate) u64);

/// The limits and preferences of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerSpec {
    pub(crate) address: config::ServerAddr,
    pub(crate) weight: u32,
    /// Maximum active requests.
    pub(crate) capacity: u32,
    pub(crate) backup: bool,
    /// Newer ones are preferred while both exist.
    pub(crate) generation: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct ServerCounters {
    requests: u64,
    failures: u64,
    timeouts: u64,
    connects: u64,
    reuses: u64,
    /// Timeouts since its last response.
    consecutive_timeouts: u32,
}

/// A waiting request; gets its slot or a refusal, once.
#[derive(Debug)]
pub(crate) struct SlotWaiter {
    pub(crate) grant_sender: oneshot::Sender<Result<SlotGrant, String>>,
    pub(crate) client: Option<AddressPrefix>,
}

/// A slot granted to a waiting request.
#[derive(Debug)]
pub(crate) struct SlotGrant {
    pub(crate) slot: SlotId,
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
    pub(crate) slot: SlotId,
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

/// How a request at a server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttemptOutcome {
    /// A whole response, or as much of it as the client wanted.
    Success,
    /// The server's fault.
    Failure { is_timeout: bool },
    /// The server violated its protocol in the response to such a request.
    Malformed { request_hash: u64 },
    /// Not the server's fault.
    Neutral,
}

#[derive(Debug, Clone, Copy)]
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

impl DeferredActions {
    /// True after nearly every change.
    pub(crate) fn is_empty(&self) -> bool {
        self.grants.is_empty() && self.closed_connections.is_empty() && self.transitions.is_empty()
    }
}

impl ServerPool {
    pub(crate) fn new(config: &Arc<config::Upstream>, loops: usize, now: Instant) -> Self {
        let limits = QueueLimits {
            max_len: config.max_queued,
            timeout: config.queue_timeout,
        };
        Self {
            config: Arc::clone(config),
            queue: Queue::new(limits),
            servers: Vec::new(),
            server_by_slot: Vec::new(),
            balancer: Balancer::new(balance_policy(&config.balance), balance_seed(config)),
            budget: RetryBudget::new(config.retry.budget, now),
            candidates: Vec::new(),
            use_count: 0,
            next_id: 0,
            counters: UpstreamCounters::default(),
            latencies: LatencyHistograms::default(),
            loop_count: loops,
            dns_names: DnsNames::default(),
        }
    }

    /// Claims a slot for a request that arrived, or that failed elsewhere, on loop `home`.
    pub(crate) fn claim(
        &mut self,
        now: Instant,
        home: usize,
        want: &SelectionCriteria<'_>,
        waiter: impl FnOnce() -> SlotWaiter,
        aftermath: &mut DeferredActions,
    ) -> ClaimOutcome {
        if want.is_first_attempt {
            self.counters.requests += 1;
            self.budget.deposit(now);
        }
        let sticky = want
            .sticky_name_hash
            .and_then(|number| self.sticky_server(number, want));
        let chosen = match sticky {
            Some(index) => Some(index).filter(|&index| self.servers[index].has_free_slot()),
            None => self.choose_server(now, home, want),
        };
        if let Some(index) = chosen
            && self.queue.claim_slot(self.servers[index].slot)
        {
            self.servers[index].active += 1;
            return ClaimOutcome::Slot(self.take_slot(now, index, home, want.reuse, aftermath));
        }
        if let Some(index) = self.claim_backup(want) {
            self.servers[index].active += 1;
            return ClaimOutcome::Slot(self.take_slot(now, index, home, want.reuse, aftermath));
        }
        let others = sticky.or_else(|| self.least_busy(want));
        // The application's processes are about to start: its requests wait for them.
        let may_come = self.config.servers.is_empty() && want.tried_servers.is_empty();
        if others.is_none() && !may_come {
            self.counters.unavailable += u64::from(want.is_first_attempt);
            return ClaimOutcome::Unavailable {
                reason: if want.tried_servers.is_empty() {
                    "no server is up"
                } else {
                    "no other server is up"
                },
            };
        }
        // A request that has tried some servers must not get those again, as a free slot might be
        // theirs.
        let is_bound = sticky.is_some() || !want.tried_servers.is_empty();
        let bound = others.filter(|_| is_bound);
        let bound = bound.map(|index| self.servers[index].slot);
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
                    ClaimOutcome::Slot(self.take_slot(now, index, home, want.reuse, aftermath))
                }
                None => ClaimOutcome::Unavailable {
                    reason: "no server is up",
                },
            },
        }
    }

    /// The least busy server still open to a request that has tried others.
    fn least_busy(&self, want: &SelectionCriteria<'_>) -> Option<usize> {
        let live = (self.servers.iter().enumerate())
            .filter(|(_, member)| member.capacity > 0 && !want.tried_servers.contains(&member.id));
        let load = |member: &ServerEntry| {
            let waiting = u32::try_from(self.queue.len_bound(member.slot)).unwrap_or(u32::MAX);
            member.active.saturating_add(waiting) / member.capacity.max(1)
        };
        live.min_by_key(|(_, member)| load(member))
            .map(|(index, _)| index)
    }

    /// Accepts a granted slot; `None` when the server is gone meanwhile.
    pub(crate) fn accept_grant(
        &mut self,
        now: Instant,
        slot: SlotId,
        home: usize,
        reuse: ReusePolicy,
        aftermath: &mut DeferredActions,
    ) -> Option<ClaimedSlot> {
        let index = self.index_by_slot(slot)?;
        Some(self.take_slot(now, index, home, reuse, aftermath))
    }

    /// Removes a waiting request from the queue; `false` when it is no longer there.
    pub(crate) fn cancel(&mut self, ticket: Ticket) -> bool {
        self.queue.cancel(ticket).is_some()
    }

    /// Releases the slot of a finished request; `connection` is given if it may carry another.
    pub(crate) fn release(
        &mut self,
        now: Instant,
        slot: SlotId,
        connection: Option<(UpstreamConnection, usize)>,
        ended: &AttemptReport,
        aftermath: &mut DeferredActions,
    ) {
        let outcome = ended.outcome;
        let Some(index) = self.index_by_slot(slot) else {
            aftermath
                .closed_connections
                .extend(connection.map(|(it, _)| it));
            return;
        };
        self.latencies.record(ended);
        // Computed only where it matters: it looks at every server.
        let is_failure = matches!(
            outcome,
            AttemptOutcome::Failure { .. } | AttemptOutcome::Malformed { .. }
        );
        let may_eject = is_failure && self.is_another_up(index);
        let member = &mut self.servers[index];
        member.active = member.active.saturating_sub(1);
        let transition = match outcome {
            AttemptOutcome::Success => {
                member.counters.consecutive_timeouts = 0;
                member.health.record_success(now)
            }
            AttemptOutcome::Failure {
                is_timeout: timeout,
            } => {
                member.counters.failures += 1;
                member.counters.timeouts += u64::from(timeout);
                member.counters.consecutive_timeouts += u32::from(timeout);
                member.health.record_failure(now, may_eject)
            }
            AttemptOutcome::Malformed {
                request_hash: request,
            } => {
                member.counters.failures += 1;
                member.health.record_malformed(now, may_eject, request)
            }
            AttemptOutcome::Neutral => None,
        };
        match connection {
            Some((connection, home)) if member.keeps_connection_at(now) => {
                member.push_idle(connection, home, now);
            }
            gone => aftermath.closed_connections.extend(gone.map(|(it, _)| it)),
        }
        if member.is_leaving && member.active == 0 {
            let _ = self.queue.finish_request(now, slot);
            self.remove_at(index, aftermath);
            return;
        }
        // Before the slot is granted again: an ejected server gets no requests.
        if let Some(transition) = transition {
            self.apply_transition(now, index, transition, aftermath);
        }
        let next = self.queue.finish_request(now, slot);
        self.hand_out_slots(next, aftermath);
    }

    /// Releases a slot that was granted and not used.
    pub(crate) fn release_unused(
        &mut self,
        now: Instant,
        slot: SlotId,
        aftermath: &mut DeferredActions,
    ) {
        let ended = AttemptReport {
            outcome: AttemptOutcome::Neutral,
            queue_time: None,
            connect_time: None,
            header_time: None,
        };
        self.release(now, slot, None, &ended, aftermath);
    }

    /// Whether a request that failed at `key` too has another server to try.
    pub(crate) fn has_other(&self, tried: &[ServerId], key: ServerId) -> bool {
        (self.servers.iter()).any(|member| {
            let is_tried = member.id == key || tried.contains(&member.id);
            !is_tried && !member.is_leaving && member.health.accepts_requests()
        })
    }

    /// Whether the budget allows one more attempt.
    pub(crate) fn spend_retry(&mut self, now: Instant) -> bool {
        let may = self.budget.withdraw(now);
        if may {
            self.counters.retries += 1;
        } else {
            self.counters.retries_over_budget += 1;
        }
        may
    }

    /// Counts a retry that costs the servers nothing, as no byte of the request was sent.
    pub(crate) fn count_retry(&mut self) {
        self.counters.retries += 1;
    }

    pub(crate) fn count_connect(&mut self, slot: SlotId) {
        if let Some(index) = self.index_by_slot(slot) {
            self.servers[index].counters.connects += 1;
        }
    }

    /// Counts a request that waited in vain.
    pub(crate) fn count_timeout(&mut self, waited: Duration) {
        self.counters.queue_timeouts += 1;
        self.latencies.queue_time.record_local(waited);
    }

    /// Counts a request that was abandoned in the queue.
    pub(crate) fn count_abandoned(&mut self, waited: Duration) {
        self.counters.queue_abandoned += 1;
        self.latencies.queue_time.record_local(waited);
    }

    pub(crate) fn add(
        &mut self,
        now: Instant,
        address: ResolvedAddress,
        name: Arc<str>,
        spec: ServerSpec,
        aftermath: &mut DeferredActions,
    ) -> ServerId {
        let key = ServerId(self.next_id);
        self.next_id += 1;
        // No request starts there until its state sets the capacity.
        let slot_spec = SlotSpec {
            generation: spec.generation,
            group: 0,
            loop_index: 0,
            capacity: 0,
        };
        let (slot, _) = self.queue.add_slot(now, slot_spec);
        let index = self.servers.len();
        if self.server_by_slot.len() <= slot.index() {
            self.server_by_slot.resize(slot.index() + 1, None);
        }
        self.server_by_slot[slot.index()] = Some(index);
        let number = server_name_hash(&name);
        let server = Arc::new(BackendServer::new(name, address));
        self.servers.push(ServerEntry {
            id: key,
            server,
            spec,
            health: ServerHealth::new(&self.config, now),
            slot,
            capacity: 0,
            active: 0,
            idle_connections: (0..=self.loop_count).map(|_| Vec::new()).collect(),
            idle_count: 0,
            last_used: 0,
            name_hash: number,
            is_leaving: false,
            counters: ServerCounters::default(),
            last_probe_error: None,
            saturation: Saturation::default(),
        });
        self.set_capacities(now, aftermath);
        key
    }

    /// Removes a server: no new requests, and it is gone after its last active one.
    pub(crate) fn remove(&mut self, now: Instant, key: ServerId, aftermath: &mut DeferredActions) {
        let Some(index) = self.index_by_id(key) else {
            return;
        };
        let member = &mut self.servers[index];
        member.is_leaving = true;
        for connections in &mut member.idle_connections {
            aftermath.closed_connections.append(connections);
        }
        member.idle_count = 0;
        let (slot, is_unused) = (member.slot, member.active == 0);
        self.set_capacities(now, aftermath);
        let freed = self.queue.unbind(now, slot);
        self.hand_out_slots(freed, aftermath);
        if is_unused {
            self.remove_at(index, aftermath);
        }
    }

    /// Changes one server's health or administrative state through `change`.
    pub(crate) fn change_health(
        &mut self,
        now: Instant,
        key: ServerId,
        aftermath: &mut DeferredActions,
        change: impl FnOnce(&mut ServerHealth) -> Option<HealthTransition>,
    ) {
        let Some(index) = self.index_by_id(key) else {
            return;
        };
        if let Some(transition) = change(&mut self.servers[index].health) {
            self.apply_transition(now, index, transition, aftermath);
        }
    }

    /// Changes a server's limits and preferences.
    pub(crate) fn change_spec(
        &mut self,
        now: Instant,
        key: ServerId,
        aftermath: &mut DeferredActions,
        change: impl FnOnce(&mut ServerSpec),
    ) {
        let Some(index) = self.index_by_id(key) else {
            return;
        };
        change(&mut self.servers[index].spec);
        self.set_capacities(now, aftermath);
    }

    /// Records why a server's probe failed.
    pub(crate) fn record_probe_error(&mut self, key: ServerId, cause: Arc<str>) {
        if let Some(index) = self.index_by_id(key) {
            self.servers[index].last_probe_error = Some(cause);
        }
    }

    /// The server of that key, unless it is gone or leaving.
    pub(crate) fn server(&self, key: ServerId) -> Option<&ServerEntry> {
        let index = self.index_by_id(key)?;
        Some(&self.servers[index]).filter(|member| !member.is_leaving)
    }

    /// Handles the passing of time: ejections that end, and connections idle for too long or closed
    /// by their server.
    pub(crate) fn tick(&mut self, now: Instant, aftermath: &mut DeferredActions) {
        for index in 0..self.servers.len() {
            let member = &mut self.servers[index];
            member.sweep(
                now,
                &self.config.connections,
                &mut aftermath.closed_connections,
            );
            if let Some(transition) = member.health.tick(now) {
                self.apply_transition(now, index, transition, aftermath);
            }
        }
    }

    pub(crate) fn servers(&self) -> &[ServerEntry] {
        &self.servers
    }

    pub(crate) fn counters(&self) -> UpstreamCounters {
        self.counters
    }

    /// Queue time, connect time, and time to the response head.
    pub(crate) fn latencies(&self) -> [HistogramValues; 3] {
        let LatencyHistograms {
            queue_time: queue,
            connect_time: connect,
            header_time: answer,
        } = &self.latencies;
        [queue.values(), connect.values(), answer.values()]
    }

    /// The number of waiting requests and the longest wait.
    pub(crate) fn waiting(&self, now: Instant) -> (usize, Duration) {
        (
            self.queue.len(),
            self.queue.oldest_wait(now).unwrap_or_default(),
        )
    }

    /// Whether the slots of this server are granted to requests.
    pub(crate) fn gives_places(&self, key: ServerId) -> bool {
        self.server(key).is_some_and(|member| member.capacity > 0)
    }

    /// The clients of waiting requests, where known.
    pub(crate) fn waiting_clients(&self) -> Vec<Option<AddressPrefix>> {
        self.queue.waiting().map(|waiter| waiter.client).collect()
    }

    /// Removes the waiting requests of these clients.
    pub(crate) fn take_waiting_of(&mut self, clients: &[AddressPrefix]) -> Vec<SlotWaiter> {
        let is_of_them = |waiter: &SlotWaiter| {
            let client = waiter.client;
            client.is_some_and(|client| clients.contains(&client))
        };
        let taken = self.queue.take_matching(is_of_them).into_iter();
        taken.map(|(waiter, _)| waiter).collect()
    }

    /// The total capacity of all servers.
    pub(crate) fn places(&self) -> usize {
        let capacities = self.servers.iter().map(|member| member.capacity as usize);
        capacities.fold(0, usize::saturating_add)
    }

    /// Whether any server accepts requests.
    pub(crate) fn is_up(&self) -> bool {
        self.servers.iter().any(|member| member.capacity > 0)
    }

    /// Adds a connection that was opened in advance to the idle ones.
    pub(crate) fn add_idle(
        &mut self,
        now: Instant,
        key: ServerId,
        connection: UpstreamConnection,
        home: usize,
    ) -> Option<UpstreamConnection> {
        match self.index_by_id(key) {
            Some(index) if self.servers[index].keeps_connections() => {
                self.servers[index].push_idle(connection, home, now);
                None
            }
            _ => Some(connection),
        }
    }

    /// Grants slots: each counts as the server's from now on, whichever task receives it.
    fn hand_out_slots(
        &mut self,
        starts: impl IntoIterator<Item = DispatchedJob<SlotWaiter>>,
        aftermath: &mut DeferredActions,
    ) {
        for start in starts {
            if let Some(index) = self.index_by_slot(start.slot_id) {
                self.servers[index].active += 1;
            }
            aftermath.grants.push(start);
        }
    }

    fn take_slot(
        &mut self,
        now: Instant,
        index: usize,
        home: usize,
        reuse: ReusePolicy,
        aftermath: &mut DeferredActions,
    ) -> ClaimedSlot {
        self.use_count += 1;
        let member = &mut self.servers[index];
        member.last_used = self.use_count;
        member.counters.requests += 1;
        // Used or closed: a server that serves one connection at a time would never look at the
        // next.
        let mut kept = member.take_idle(home);
        let is_fit = kept.as_ref().is_some_and(|kept| match reuse {
            ReusePolicy::Any => true,
            _ if member.server.keeps_alive.load(Ordering::Relaxed) => true,
            ReusePolicy::Proven => {
                now.saturating_duration_since(kept.idle_since) >= KEEP_ALIVE_PROOF
            }
            ReusePolicy::KeepAliveServer => false,
        });
        if !is_fit {
            aftermath.closed_connections.extend(kept.take());
        }
        member.counters.reuses += u64::from(kept.is_some());
        ClaimedSlot {
            slot: member.slot,
            server_id: member.id,
            server: Arc::clone(&member.server),
            idle_connection: kept,
            name_hash: member.name_hash,
        }
    }

    fn choose_server(
        &mut self,
        now: Instant,
        home: usize,
        want: &SelectionCriteria<'_>,
    ) -> Option<usize> {
        if let [only] = self.servers.as_slice() {
            let is_wanted = only.has_free_slot() && !want.tried_servers.contains(&only.id);
            return is_wanted.then_some(0);
        }
        self.candidates.clear();
        let may = |member: &ServerEntry| !want.tried_servers.contains(&member.id);
        // A backup only if no other is free; the newest generation first.
        let free = (self.servers.iter()).filter(|member| member.has_free_slot() && may(member));
        let best = free
            .map(|member| (!member.spec.backup, member.spec.generation))
            .max()?;
        for (index, member) in self.servers.iter().enumerate() {
            let is_level = (!member.spec.backup, member.spec.generation) == best;
            if member.capacity > 0 && is_level && may(member) {
                self.candidates.push(member.candidate(index, home, now));
            }
        }
        self.balancer.choose(&self.candidates, want.hash_key)
    }

    /// Claims a slot at a backup for a request that failed at all other servers that are up.
    fn claim_backup(&mut self, want: &SelectionCriteria<'_>) -> Option<usize> {
        let is_untried = |member: &ServerEntry| !want.tried_servers.contains(&member.id);
        if want.tried_servers.is_empty()
            || (self.servers.iter()).any(|member| member.capacity > 0 && is_untried(member))
        {
            return None;
        }
        let index = self.servers.iter().position(|member| {
            let may = member.spec.backup && !member.is_leaving && member.health.accepts_requests();
            may && is_untried(member)
        })?;
        // For this request alone: other waiting requests are for the other servers.
        let ServerEntry { slot, ref spec, .. } = self.servers[index];
        let is_claimed = self.queue.claim_beyond_capacity(slot, spec.capacity);
        is_claimed.then_some(index)
    }

    /// The server that a cookie names, if it may have requests at all.
    fn sticky_server(&self, wanted: u64, want: &SelectionCriteria<'_>) -> Option<usize> {
        self.servers.iter().position(|member| {
            let is_usable = member.capacity > 0 && !want.tried_servers.contains(&member.id);
            is_usable && member.name_hash == wanted
        })
    }

    fn index_by_id(&self, key: ServerId) -> Option<usize> {
        self.servers.iter().position(|member| member.id == key)
    }

    fn index_by_slot(&self, slot: SlotId) -> Option<usize> {
        let index = (*self.server_by_slot.get(slot.index())?)?;
        (self.servers.get(index)?.slot == slot).then_some(index)
    }

    /// Whether a server other than `index` is up, and not only on trial: the last one is never
    /// ejected.
    fn is_another_up(&self, index: usize) -> bool {
        let mut others = self
            .servers
            .iter()
            .enumerate()
            .filter(|&(at, _)| at != index);
        // A backup counts: it takes over when this one goes.
        others.any(|(_, member)| !member.is_leaving && member.health.state() == ServerState::Up)
    }

    fn apply_transition(
        &mut self,
        now: Instant,
        index: usize,
        transition: HealthTransition,
        aftermath: &mut DeferredActions,
    ) {
        let member = &mut self.servers[index];
        (aftermath.transitions).push((Arc::clone(&member.server), transition));
        if !member.health.accepts_requests() {
            // Idle connections are as suspect as their server.
            for connections in &mut member.idle_connections {
                aftermath.closed_connections.append(connections);
            }
            member.idle_count = 0;
        }
        let (slot, is_down) = (member.slot, !member.health.accepts_requests());
        self.set_capacities(now, aftermath);
        if is_down {
            let freed = self.queue.unbind(now, slot);
            self.hand_out_slots(freed, aftermath);
        }
    }

    /// Sets each slot's capacity by its server's state and by whether backups are needed.
    fn set_capacities(&mut self, now: Instant, aftermath: &mut DeferredActions) {
        // A server on trial accepts a single request: the backups stay in use beside it.
        let is_primary_up = (self.servers.iter()).any(|member| {
            !member.spec.backup && !member.is_leaving && member.health.state() == ServerState::Up
        });
        let mut starts = Vec::new();
        for member in &mut self.servers {
            let is_called = !member.spec.backup || !is_primary_up;
            let capacity = match member.health.max_active() {
                _ if member.is_leaving || !is_called => 0,
                Some(most) => member.spec.capacity.min(most),
                None => member.spec.capacity,
            };
            if capacity != member.capacity {
                member.capacity = capacity;
                starts.extend(self.queue.set_capacity(now, member.slot, capacity));
                if capacity == 0 {
                    // No request may wait for a server that accepts none.
                    starts.extend(self.queue.unbind(now, member.slot));
                }
            }
            let is_on_trial = member.health.state() == ServerState::OnTrial;
            (member.server.is_on_trial).store(is_on_trial, Ordering::Relaxed);
        }
        self.hand_out_slots(starts, aftermath);
    }

    fn remove_at(&mut self, index: usize, aftermath: &mut DeferredActions) {
        let mut member = self.servers.remove(index);
        for connections in &mut member.idle_connections {
            aftermath.closed_connections.append(connections);
        }
        self.queue.remove_slot(member.slot);
        self.server_by_slot
            .iter_mut()
            .for_each(|place| *place = None);
        for (index, member) in self.servers.iter().enumerate() {
            self.server_by_slot[member.slot.index()] = Some(index);
        }
    }

    /// Closes the idle connections to a server; returns whether there were any.
    pub(crate) fn close_idle(&mut self, key: ServerId, aftermath: &mut DeferredActions) -> bool {
        let Some(index) = self.index_by_id(key) else {
            return false;
        };
        let member = &mut self.servers[index];
        for connections in &mut member.idle_connections {
            aftermath.closed_connections.append(connections);
        }
        std::mem::take(&mut member.idle_count) > 0
    }
}

impl ServerEntry {
    /// Whether to keep connections for the next request: a draining server gets none.
    fn keeps_connections(&self) -> bool {
        !self.is_leaving && self.health.accepts_requests()
    }

    /// The same for one that was just used: another connection may wait until the server has
    /// finished with it.
    fn keeps_connection_at(&self, now: Instant) -> bool {
        self.keeps_connections() && !self.saturation.is_full(now, &self.server.load)
    }

    fn has_free_slot(&self) -> bool {
        self.active < self.capacity
    }

    fn candidate(&self, index: usize, home: usize, now: Instant) -> Candidate {
        Candidate {
            index,
            name_hash: self.name_hash,
            weight: self.spec.weight,
            active: self.active,
            capacity: self.capacity,
            has_idle_on_this_loop: self
                .idle_connections
                .get(home)
                .is_some_and(|list| !list.is_empty()),
            has_idle: self.idle_count > 0,
            last_used: self.last_used,
            slow_start_permille: self.health.slow_start_permille(now),
        }
    }

    fn push_idle(&mut self, mut connection: UpstreamConnection, home: usize, now: Instant) {
        connection.idle_since = now;
        let last = self.idle_connections.len() - 1;
        self.idle_connections[home.min(last)].push(connection);
        self.idle_count += 1;
    }

    /// Takes the last used connection, of loop `home` if it has one.
    fn take_idle(&mut self, home: usize) -> Option<UpstreamConnection> {
        if self.idle_count == 0 {
            return None;
        }
        let last = self.idle_connections.len() - 1;
        let home = home.min(last);
        let from = match self.idle_connections[home].is_empty() {
            false => home,
            true => self
                .idle_connections
                .iter()
                .position(|list| !list.is_empty())?,
        };
        self.idle_count -= 1;
        self.idle_connections[from].pop()
    }

    /// Takes the idle connection that was unused for longest.
    fn take_longest_idle(&mut self) -> Option<UpstreamConnection> {
        let filled = self
            .idle_connections
            .iter_mut()
            .filter(|list| !list.is_empty());
        let list = filled.min_by_key(|list| list[0].idle_since)?;
        self.idle_count -= 1;
        Some(list.remove(0))
    }

    /// Drops idle connections that another one waits for or that their server closed, and above
    /// `max_idle` those idle for `idle_timeout`.
    fn sweep(
        &mut self,
        now: Instant,
        levels: &config::ConnectionLimits,
        dropped: &mut Vec<UpstreamConnection>,
    ) {
        let stuck = self.saturation.tick(now, &self.server.load);
        for _ in 0..stuck {
            dropped.extend(self.take_longest_idle());
        }
        let mut above = (self.open_connections() as usize).saturating_sub(levels.max_idle as usize);
        for list in &mut self.idle_connections {
            // One system call per loop: the lock is held.
            let mut stirred = Stream::have_events(list.iter().map(|idle| &idle.stream)).into_iter();
            // Longest idle first.
            let mut at = 0;
            while at < list.len() {
                let idle = now.saturating_duration_since(list[at].idle_since);
                let is_old = above > 0 && idle >= levels.idle_timeout;
                let is_quiet = !stirred.next().unwrap_or_default();
                if is_quiet && list[at].requests_served > 0 && idle >= KEEP_ALIVE_PROOF {
                    self.server.keeps_alive.store(true, Ordering::Relaxed);
                }
                if is_old || !is_quiet {
                    above = above.saturating_sub(1);
                    self.idle_count -= 1;
                    dropped.push(list.remove(at));
                } else {
                    at += 1;
                }
            }
        }
    }

    pub(crate) fn open_connections(&self) -> u32 {
        self.server.open_connections.load(Ordering::Relaxed)
    }

    pub(crate) fn active(&self) -> u32 {
        self.active
    }

    /// Consecutive requests that timed out.
    pub(crate) fn consecutive_timeouts(&self) -> u32 {
        self.counters.consecutive_timeouts
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    /// The server as the status page shows it.
    pub(crate) fn snapshot(&self) -> ServerSnapshot {
        ServerSnapshot {
            name: self.server.name.to_string(),
            state: if self.is_leaving {
                "leaving"
            } else {
                self.health.state().as_str()
            },
            weight: self.spec.weight,
            backup: self.spec.backup,
            active: self.active,
            max_active: (self.spec.capacity != u32::MAX).then_some(self.spec.capacity),
            connections_open: self.open_connections(),
            connections_idle: self.idle_count,
            requests: self.counters.requests,
            failures: self.counters.failures,
            timeouts: self.counters.timeouts,
            connects: self.counters.connects,
            connection_reuses: self.counters.reuses,
            last_error: self.last_probe_error.as_deref().map(str::to_owned),
        }
    }
}

/// A server that closes the connection after each response has done so by then.
const KEEP_ALIVE_PROOF: Duration = Duration::from_millis(200);

/// The number of a server in a sticky cookie: the same on every machine.
pub(crate) fn server_name_hash(name: &str) -> u64 {
    crate::balance::hash_key(name.as_bytes())
}

fn balance_policy(balance: &config::Balance) -> BalancePolicy {
    match balance {
        config::Balance::IdleFirst => BalancePolicy::IdleFirst,
        config::Balance::RoundRobin => BalancePolicy::RoundRobin,
        config::Balance::LeastConn => BalancePolicy::LeastActive,
        config::Balance::RandomTwo => BalancePolicy::RandomTwo,
        config::Balance::Hash(_) => BalancePolicy::Hash,
    }
}

/// Different processes and upstreams draw different numbers.
fn balance_seed(config: &config::Upstream) -> u64 {
    crate::balance::hash_key(config.name.as_bytes()) ^ u64::from(std::process::id())
}

/// Histograms of an upstream; only changed under the pool's lock.
#[derive(Debug, Default)]
struct LatencyHistograms {
    queue_time: Histogram,
    connect_time: Histogram,
    header_time: Histogram,
}

impl LatencyHistograms {
    fn record(&self, ended: &AttemptReport) {
        if let Some(queue) = ended.queue_time {
            self.queue_time.record_local(queue);
        }
        if let Some(connect) = ended.connect_time {
            self.connect_time.record_local(connect);
        }
        if let Some(answer) = ended.header_time {
            self.header_time.record_local(answer);
        }
    }
}

#[cfg(test)]
mod tests;
