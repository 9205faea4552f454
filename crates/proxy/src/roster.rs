//! The servers of one upstream as they are now, their slots and the one line of waiting requests.
//!
//! Behind one short lock in [`crate::upstream::Shared`]: `claim` asks for a place and gives it back,
//! `maintain` tells of probes, names and time, the admin API changes servers. The order among waiters
//! is `queue`'s, the choice among servers `balance`'s, a server's health `ejection`'s: all pure. What
//! must stay true: nothing here waits, wakes or closes a socket; what is to be dropped or told is handed
//! out in [`Aftermath`] and done when the lock is free.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use penstock_config as config;
use penstock_exchange::AddressPrefix;
use penstock_exchange::metrics::{Histogram, HistogramValues};
use penstock_queue::{DispatchedJob, Queue, QueueLimits, QueueOutcome, SlotId, SlotSpec, Ticket};
use penstock_runtime::Stream;
use tokio::sync::oneshot;

use crate::balance::{Balancer, Candidate, Policy};
use crate::budget::Budget;
use crate::connection::{Address, Connection, Server};
use crate::ejection::{Ejection, State, Transition};
use crate::resolve::Names;
use crate::saturation::Saturation;

/// All servers of an upstream.
#[derive(Debug)]
pub(crate) struct Roster {
    config: Arc<config::Upstream>,
    queue: Queue<Waiter>,
    members: Vec<Member>,
    /// The member of each slot, by the slot's index.
    by_slot: Vec<Option<usize>>,
    balancer: Balancer,
    budget: Budget,
    /// Scratch of `choose`.
    candidates: Vec<Candidate>,
    uses: u64,
    next_key: u64,
    counts: Counts,
    times: Times,
    loops: usize,
    /// Names whose addresses are servers.
    pub(crate) names: Names,
}

/// One server.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) key: MemberKey,
    pub(crate) server: Arc<Server>,
    pub(crate) spec: MemberSpec,
    pub(crate) ejection: Ejection,
    slot: SlotId,
    /// What the slot may take now.
    capacity: u32,
    active: u32,
    /// Idle connections by the loop that watches them, last used last.
    idle: Vec<Vec<Connection>>,
    idle_count: usize,
    last_used: u64,
    /// What balancing and sticky cookies know it by.
    number: u64,
    /// Taken out of the configuration: gone with its last request.
    is_leaving: bool,
    counts: MemberCounts,
    /// What its last failed probe said.
    last_error: Option<Arc<str>>,
    saturation: Saturation,
}

/// Names a member for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct MemberKey(pub(crate) u64);

/// What a member may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemberSpec {
    pub(crate) address: config::ServerAddr,
    pub(crate) weight: u32,
    /// In progress at most.
    pub(crate) capacity: u32,
    pub(crate) backup: bool,
    /// Newer ones are preferred while both are there.
    pub(crate) generation: u64,
}

/// Counters of an upstream since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that asked for a server.
    pub requests: u64,
    /// Refused: the queue was full.
    pub queue_full: u64,
    /// Refused: waited longer than `queue.timeout`.
    pub queue_timeout: u64,
    /// Clients that left while they waited.
    pub queue_abandoned: u64,
    /// Refused: no server was up.
    pub unavailable: u64,
    /// Tries after the first.
    pub retries: u64,
    /// Retries not made because the budget was used up.
    pub retries_refused: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct MemberCounts {
    requests: u64,
    failures: u64,
    timeouts: u64,
    connects: u64,
    reuses: u64,
    /// Time-outs since it answered last.
    unanswered: u32,
}

/// Who waits: told where its place is, or why it gets none, once.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) grant: oneshot::Sender<Result<Grant, String>>,
    pub(crate) client: Option<AddressPrefix>,
}

/// A place at a server, given to one who waited.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) slot: SlotId,
}

/// What a request asks for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Want<'a> {
    /// Decides by hash, where that is the balance.
    pub(crate) key: Option<u64>,
    /// The member that its cookie names, see [`number`].
    pub(crate) sticky: Option<u64>,
    /// Members that failed it already.
    pub(crate) tried: &'a [MemberKey],
    pub(crate) reuse: Reuse,
    /// It was never claimed for before.
    pub(crate) is_new: bool,
}

/// Which kept connections a request may go out on; an idle one that it may not use is closed before a
/// new one is opened, because a server of few threads may be waiting on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Reuse {
    /// Any: the request is repeated if the server turns out to have closed it.
    Any,
    /// One that its server has left open for a while already.
    #[default]
    Proven,
    /// One of a server that is known to keep them: the last that was tried was closed.
    OfKeeper,
}

/// A place at a server.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) slot: SlotId,
    pub(crate) key: MemberKey,
    pub(crate) server: Arc<Server>,
    /// A kept connection.
    pub(crate) kept: Option<Connection>,
    /// The number that a sticky cookie has for it.
    pub(crate) number: u64,
}

/// What became of a claim.
#[derive(Debug)]
pub(crate) enum Claimed {
    Place(Place),
    Waiting {
        ticket: Ticket,
        position: usize,
    },
    Full {
        len: usize,
    },
    /// No server may have it.
    Nobody {
        why: &'static str,
    },
}

/// How a request at a server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// A whole response, or as much of it as the client wanted.
    Success,
    /// The server is to blame.
    Failure { timeout: bool },
    /// The server broke the rules of its protocol in the answer to such a request.
    Malformed { request: u64 },
    /// Nobody is, or not the server.
    Neutral,
}

/// What is told of a request's end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    pub(crate) outcome: Outcome,
    /// Waited in line; none on a further try, which is counted already.
    pub(crate) queue: Option<Duration>,
    /// Until its connection was made; none on a kept one.
    pub(crate) connect: Option<Duration>,
    /// From the server having it to the head of its response; none without one.
    pub(crate) answer: Option<Duration>,
}

/// What is to be done once the lock is free.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Aftermath {
    pub(crate) starts: Vec<DispatchedJob<Waiter>>,
    pub(crate) dropped: Vec<Connection>,
    pub(crate) transitions: Vec<(Arc<Server>, Transition)>,
}

impl Aftermath {
    /// As after nearly every change.
    pub(crate) fn is_nothing(&self) -> bool {
        self.starts.is_empty() && self.dropped.is_empty() && self.transitions.is_empty()
    }
}

impl Roster {
    pub(crate) fn new(config: &Arc<config::Upstream>, loops: usize, now: Instant) -> Self {
        let limits = QueueLimits {
            max_len: config.queue_max,
            timeout: config.queue_timeout,
        };
        Self {
            config: Arc::clone(config),
            queue: Queue::new(limits),
            members: Vec::new(),
            by_slot: Vec::new(),
            balancer: Balancer::new(policy(&config.balance), seed(config)),
            budget: Budget::new(config.retry.budget, now),
            candidates: Vec::new(),
            uses: 0,
            next_key: 0,
            counts: Counts::default(),
            times: Times::default(),
            loops,
            names: Names::default(),
        }
    }

    /// Asks for a place for a request that arrived, or that failed elsewhere, from loop `home`.
    pub(crate) fn claim(
        &mut self,
        now: Instant,
        home: usize,
        want: &Want<'_>,
        waiter: impl FnOnce() -> Waiter,
        aftermath: &mut Aftermath,
    ) -> Claimed {
        if want.is_new {
            self.counts.requests += 1;
            self.budget.deposit(now);
        }
        let sticky = want.sticky.and_then(|number| self.sticky(number, want));
        let chosen = match sticky {
            Some(index) => Some(index).filter(|&index| self.members[index].has_room()),
            None => self.choose(now, home, want),
        };
        if let Some(index) = chosen
            && self.queue.claim_slot(self.members[index].slot)
        {
            self.members[index].active += 1;
            return Claimed::Place(self.place(now, index, home, want.reuse, aftermath));
        }
        if let Some(index) = self.call_backup(want) {
            self.members[index].active += 1;
            return Claimed::Place(self.place(now, index, home, want.reuse, aftermath));
        }
        let others = sticky.or_else(|| self.least_busy(want));
        // The processes of an application come: its requests wait for them.
        let may_come = self.config.servers.is_empty() && want.tried.is_empty();
        if others.is_none() && !may_come {
            self.counts.unavailable += u64::from(want.is_new);
            return Claimed::Nobody {
                why: if want.tried.is_empty() {
                    "no server is up"
                } else {
                    "no other server is up"
                },
            };
        }
        // One that has tried some must not be given those again, as a free one might be.
        let is_bound = sticky.is_some() || !want.tried.is_empty();
        let bound = others.filter(|_| is_bound);
        let bound = bound.map(|index| self.members[index].slot);
        match self.queue.enqueue(now, waiter(), bound) {
            QueueOutcome::Queued { ticket, position } => Claimed::Waiting { ticket, position },
            QueueOutcome::Full(_) => {
                self.counts.queue_full += 1;
                Claimed::Full {
                    len: self.queue.len(),
                }
            }
            // A slot came free that balancing had passed over.
            QueueOutcome::Dispatched(start) => match self.index_of(start.slot_id) {
                Some(index) => {
                    self.members[index].active += 1;
                    Claimed::Place(self.place(now, index, home, want.reuse, aftermath))
                }
                None => Claimed::Nobody {
                    why: "no server is up",
                },
            },
        }
    }

    /// The least busy server that may still have a request; for one that has tried others.
    fn least_busy(&self, want: &Want<'_>) -> Option<usize> {
        let live = (self.members.iter().enumerate())
            .filter(|(_, member)| member.capacity > 0 && !want.tried.contains(&member.key));
        let load = |member: &Member| {
            let waiting = u32::try_from(self.queue.len_bound(member.slot)).unwrap_or(u32::MAX);
            member.active.saturating_add(waiting) / member.capacity.max(1)
        };
        live.min_by_key(|(_, member)| load(member))
            .map(|(index, _)| index)
    }

    /// The place of one who waited; `None` when the server is gone meanwhile.
    pub(crate) fn accept(
        &mut self,
        now: Instant,
        slot: SlotId,
        home: usize,
        reuse: Reuse,
        aftermath: &mut Aftermath,
    ) -> Option<Place> {
        let index = self.index_of(slot)?;
        Some(self.place(now, index, home, reuse, aftermath))
    }

    /// Takes a waiter out of the line; `false` when it is not there any more.
    pub(crate) fn cancel(&mut self, ticket: Ticket) -> bool {
        self.queue.cancel(ticket).is_some()
    }

    /// A request has ended; `connection` is there if it may carry another.
    pub(crate) fn release(
        &mut self,
        now: Instant,
        slot: SlotId,
        connection: Option<(Connection, usize)>,
        ended: &Ended,
        aftermath: &mut Aftermath,
    ) {
        let outcome = ended.outcome;
        let Some(index) = self.index_of(slot) else {
            aftermath.dropped.extend(connection.map(|(it, _)| it));
            return;
        };
        self.times.record(ended);
        // Asked only where it matters: it looks at every server.
        let is_failure = matches!(outcome, Outcome::Failure { .. } | Outcome::Malformed { .. });
        let may_eject = is_failure && self.others_up(index);
        let member = &mut self.members[index];
        member.active = member.active.saturating_sub(1);
        let transition = match outcome {
            Outcome::Success => {
                member.counts.unanswered = 0;
                member.ejection.success(now)
            }
            Outcome::Failure { timeout } => {
                member.counts.failures += 1;
                member.counts.timeouts += u64::from(timeout);
                member.counts.unanswered += u32::from(timeout);
                member.ejection.failure(now, may_eject)
            }
            Outcome::Malformed { request } => {
                member.counts.failures += 1;
                member.ejection.malformed(now, may_eject, request)
            }
            Outcome::Neutral => None,
        };
        match connection {
            Some((connection, home)) if member.keeps_connection_at(now) => {
                member.put_idle(connection, home, now);
            }
            gone => aftermath.dropped.extend(gone.map(|(it, _)| it)),
        }
        if member.is_leaving && member.active == 0 {
            let _ = self.queue.finish_request(now, slot);
            self.take_out(index, aftermath);
            return;
        }
        // Before its place is given on: a server that is put aside gets nobody.
        if let Some(transition) = transition {
            self.changed(now, index, transition, aftermath);
        }
        let next = self.queue.finish_request(now, slot);
        self.grant(next, aftermath);
    }

    /// Takes back a place whose request never came.
    pub(crate) fn give_back(&mut self, now: Instant, slot: SlotId, aftermath: &mut Aftermath) {
        let ended = Ended {
            outcome: Outcome::Neutral,
            queue: None,
            connect: None,
            answer: None,
        };
        self.release(now, slot, None, &ended, aftermath);
    }

    /// Whether a request that failed at `key` too has another server to go to.
    pub(crate) fn has_other(&self, tried: &[MemberKey], key: MemberKey) -> bool {
        (self.members.iter()).any(|member| {
            let is_tried = member.key == key || tried.contains(&member.key);
            !is_tried && !member.is_leaving && member.ejection.takes_requests()
        })
    }

    /// Whether one more try is within the budget.
    pub(crate) fn may_retry(&mut self, now: Instant) -> bool {
        let may = self.budget.withdraw(now);
        if may {
            self.counts.retries += 1;
        } else {
            self.counts.retries_refused += 1;
        }
        may
    }

    /// Counts a retry that costs the servers nothing, as no byte of the request was sent.
    pub(crate) fn count_retry(&mut self) {
        self.counts.retries += 1;
    }

    pub(crate) fn count_connect(&mut self, slot: SlotId) {
        if let Some(index) = self.index_of(slot) {
            self.members[index].counts.connects += 1;
        }
    }

    /// Counts one that waited for so long, in vain.
    pub(crate) fn count_timeout(&mut self, waited: Duration) {
        self.counts.queue_timeout += 1;
        self.times.queue.record_local(waited);
    }

    /// Counts one that left after so long.
    pub(crate) fn count_abandoned(&mut self, waited: Duration) {
        self.counts.queue_abandoned += 1;
        self.times.queue.record_local(waited);
    }

    /// Adds a server.
    pub(crate) fn add(
        &mut self,
        now: Instant,
        address: Address,
        name: Arc<str>,
        spec: MemberSpec,
        aftermath: &mut Aftermath,
    ) -> MemberKey {
        let key = MemberKey(self.next_key);
        self.next_key += 1;
        // Nothing starts there until its state says how much.
        let slot_spec = SlotSpec {
            generation: spec.generation,
            group: 0,
            loop_index: 0,
            capacity: 0,
        };
        let (slot, _) = self.queue.add_slot(now, slot_spec);
        let index = self.members.len();
        if self.by_slot.len() <= slot.index() {
            self.by_slot.resize(slot.index() + 1, None);
        }
        self.by_slot[slot.index()] = Some(index);
        let number = number(&name);
        let server = Arc::new(Server::new(name, address));
        self.members.push(Member {
            key,
            server,
            spec,
            ejection: Ejection::new(&self.config, now),
            slot,
            capacity: 0,
            active: 0,
            idle: (0..=self.loops).map(|_| Vec::new()).collect(),
            idle_count: 0,
            last_used: 0,
            number,
            is_leaving: false,
            counts: MemberCounts::default(),
            last_error: None,
            saturation: Saturation::default(),
        });
        self.set_capacities(now, aftermath);
        key
    }

    /// Takes a server out: no new requests, and it is gone with the last it has.
    pub(crate) fn remove(&mut self, now: Instant, key: MemberKey, aftermath: &mut Aftermath) {
        let Some(index) = self.find(key) else { return };
        let member = &mut self.members[index];
        member.is_leaving = true;
        for connections in &mut member.idle {
            aftermath.dropped.append(connections);
        }
        member.idle_count = 0;
        let (slot, is_unused) = (member.slot, member.active == 0);
        self.set_capacities(now, aftermath);
        let freed = self.queue.unbind(now, slot);
        self.grant(freed, aftermath);
        if is_unused {
            self.take_out(index, aftermath);
        }
    }

    /// A change of one server's health or administration, by `change`.
    pub(crate) fn change(
        &mut self,
        now: Instant,
        key: MemberKey,
        aftermath: &mut Aftermath,
        change: impl FnOnce(&mut Ejection) -> Option<Transition>,
    ) {
        let Some(index) = self.find(key) else { return };
        if let Some(transition) = change(&mut self.members[index].ejection) {
            self.changed(now, index, transition, aftermath);
        }
    }

    /// Changes what a server may do.
    pub(crate) fn respec(
        &mut self,
        now: Instant,
        key: MemberKey,
        aftermath: &mut Aftermath,
        change: impl FnOnce(&mut MemberSpec),
    ) {
        let Some(index) = self.find(key) else { return };
        change(&mut self.members[index].spec);
        self.set_capacities(now, aftermath);
    }

    /// Remembers why a server's probe failed.
    pub(crate) fn note_error(&mut self, key: MemberKey, cause: Arc<str>) {
        if let Some(index) = self.find(key) {
            self.members[index].last_error = Some(cause);
        }
    }

    /// The server of that key, unless it is gone or leaving.
    pub(crate) fn member(&self, key: MemberKey) -> Option<&Member> {
        let index = self.find(key)?;
        Some(&self.members[index]).filter(|member| !member.is_leaving)
    }

    /// What time alone changes: ejections that end, connections idle for too long or closed by their
    /// server.
    pub(crate) fn tick(&mut self, now: Instant, aftermath: &mut Aftermath) {
        for index in 0..self.members.len() {
            let member = &mut self.members[index];
            member.sweep(now, &self.config.connections, &mut aftermath.dropped);
            if let Some(transition) = member.ejection.tick(now) {
                self.changed(now, index, transition, aftermath);
            }
        }
    }

    pub(crate) fn members(&self) -> &[Member] {
        &self.members
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// Waiting in line, connecting, and from hand-over to the head of the response.
    pub(crate) fn times(&self) -> [HistogramValues; 3] {
        let Times {
            queue,
            connect,
            answer,
        } = &self.times;
        [queue.values(), connect.values(), answer.values()]
    }

    /// Requests waiting, and for how long the oldest.
    pub(crate) fn waiting(&self, now: Instant) -> (usize, Duration) {
        (
            self.queue.len(),
            self.queue.oldest_wait(now).unwrap_or_default(),
        )
    }

    /// Whether this server's places are given to requests.
    pub(crate) fn gives_places(&self, key: MemberKey) -> bool {
        self.member(key).is_some_and(|member| member.capacity > 0)
    }

    /// The clients of the requests that wait, where they are known.
    pub(crate) fn waiting_clients(&self) -> Vec<Option<AddressPrefix>> {
        self.queue.waiting().map(|waiter| waiter.client).collect()
    }

    /// Takes the waiting requests of these clients out.
    pub(crate) fn take_waiting_of(&mut self, clients: &[AddressPrefix]) -> Vec<Waiter> {
        let is_of_them = |waiter: &Waiter| {
            let client = waiter.client;
            client.is_some_and(|client| clients.contains(&client))
        };
        let taken = self.queue.take_matching(is_of_them).into_iter();
        taken.map(|(waiter, _)| waiter).collect()
    }

    /// How many requests all servers together may have at once.
    pub(crate) fn places(&self) -> usize {
        let capacities = self.members.iter().map(|member| member.capacity as usize);
        capacities.fold(0, usize::saturating_add)
    }

    /// Whether any server takes requests.
    pub(crate) fn is_up(&self) -> bool {
        self.members.iter().any(|member| member.capacity > 0)
    }

    /// Puts a connection that was opened ahead with the idle ones.
    pub(crate) fn keep(
        &mut self,
        now: Instant,
        key: MemberKey,
        connection: Connection,
        home: usize,
    ) -> Option<Connection> {
        match self.find(key) {
            Some(index) if self.members[index].keeps_connections() => {
                self.members[index].put_idle(connection, home, now);
                None
            }
            _ => Some(connection),
        }
    }

    /// Hands out places: each is the server's from now on, whoever picks it up.
    fn grant(
        &mut self,
        starts: impl IntoIterator<Item = DispatchedJob<Waiter>>,
        aftermath: &mut Aftermath,
    ) {
        for start in starts {
            if let Some(index) = self.index_of(start.slot_id) {
                self.members[index].active += 1;
            }
            aftermath.starts.push(start);
        }
    }

    fn place(
        &mut self,
        now: Instant,
        index: usize,
        home: usize,
        reuse: Reuse,
        aftermath: &mut Aftermath,
    ) -> Place {
        self.uses += 1;
        let member = &mut self.members[index];
        member.last_used = self.uses;
        member.counts.requests += 1;
        // Used or closed: a server that serves one connection at a time would never look at the next.
        let mut kept = member.take_idle(home);
        let is_fit = kept.as_ref().is_some_and(|kept| match reuse {
            Reuse::Any => true,
            _ if member.server.keeps.load(Ordering::Relaxed) => true,
            Reuse::Proven => now.saturating_duration_since(kept.idle_since) >= SEEN_TO_KEEP,
            Reuse::OfKeeper => false,
        });
        if !is_fit {
            aftermath.dropped.extend(kept.take());
        }
        member.counts.reuses += u64::from(kept.is_some());
        Place {
            slot: member.slot,
            key: member.key,
            server: Arc::clone(&member.server),
            kept,
            number: member.number,
        }
    }

    fn choose(&mut self, now: Instant, home: usize, want: &Want<'_>) -> Option<usize> {
        if let [only] = self.members.as_slice() {
            let is_wanted = only.has_room() && !want.tried.contains(&only.key);
            return is_wanted.then_some(0);
        }
        self.candidates.clear();
        let may = |member: &Member| !want.tried.contains(&member.key);
        // A backup only where no other is free, and the newest code first.
        let free = (self.members.iter()).filter(|member| member.has_room() && may(member));
        let best = free
            .map(|member| (!member.spec.backup, member.spec.generation))
            .max()?;
        for (index, member) in self.members.iter().enumerate() {
            let is_level = (!member.spec.backup, member.spec.generation) == best;
            if member.capacity > 0 && is_level && may(member) {
                self.candidates.push(member.candidate(index, home, now));
            }
        }
        self.balancer.choose(&self.candidates, want.key)
    }

    /// A place at a backup for a request that failed at all the others that are up.
    fn call_backup(&mut self, want: &Want<'_>) -> Option<usize> {
        let is_untried = |member: &Member| !want.tried.contains(&member.key);
        if want.tried.is_empty()
            || (self.members.iter()).any(|member| member.capacity > 0 && is_untried(member))
        {
            return None;
        }
        let index = self.members.iter().position(|member| {
            let may = member.spec.backup && !member.is_leaving && member.ejection.takes_requests();
            may && is_untried(member)
        })?;
        // For this one request: what else waits is for the others.
        let Member { slot, ref spec, .. } = self.members[index];
        let is_claimed = self.queue.claim_beyond_capacity(slot, spec.capacity);
        is_claimed.then_some(index)
    }

    /// The member that a cookie names, if it may have requests at all.
    fn sticky(&self, wanted: u64, want: &Want<'_>) -> Option<usize> {
        self.members.iter().position(|member| {
            let is_usable = member.capacity > 0 && !want.tried.contains(&member.key);
            is_usable && member.number == wanted
        })
    }

    fn find(&self, key: MemberKey) -> Option<usize> {
        self.members.iter().position(|member| member.key == key)
    }

    fn index_of(&self, slot: SlotId) -> Option<usize> {
        let index = (*self.by_slot.get(slot.index())?)?;
        (self.members.get(index)?.slot == slot).then_some(index)
    }

    /// Whether another than `index` is up, and not only on trial: the last one is never put aside for
    /// failures.
    fn others_up(&self, index: usize) -> bool {
        let mut others = self
            .members
            .iter()
            .enumerate()
            .filter(|&(at, _)| at != index);
        // A backup counts: it is called when this one goes.
        others.any(|(_, member)| !member.is_leaving && member.ejection.state() == State::Up)
    }

    fn changed(
        &mut self,
        now: Instant,
        index: usize,
        transition: Transition,
        aftermath: &mut Aftermath,
    ) {
        let member = &mut self.members[index];
        (aftermath.transitions).push((Arc::clone(&member.server), transition));
        if !member.ejection.takes_requests() {
            // Kept connections are as suspect as their server.
            for connections in &mut member.idle {
                aftermath.dropped.append(connections);
            }
            member.idle_count = 0;
        }
        let (slot, is_down) = (member.slot, !member.ejection.takes_requests());
        self.set_capacities(now, aftermath);
        if is_down {
            let freed = self.queue.unbind(now, slot);
            self.grant(freed, aftermath);
        }
    }

    /// What each slot may take, from its server's state and whether backups are called for.
    fn set_capacities(&mut self, now: Instant, aftermath: &mut Aftermath) {
        // One that is on trial takes a single request: the backups stay beside it.
        let is_primary_up = (self.members.iter()).any(|member| {
            !member.spec.backup && !member.is_leaving && member.ejection.state() == State::Up
        });
        let mut starts = Vec::new();
        for member in &mut self.members {
            let is_called = !member.spec.backup || !is_primary_up;
            let capacity = match member.ejection.requests_max() {
                _ if member.is_leaving || !is_called => 0,
                Some(most) => member.spec.capacity.min(most),
                None => member.spec.capacity,
            };
            if capacity != member.capacity {
                member.capacity = capacity;
                starts.extend(self.queue.set_capacity(now, member.slot, capacity));
                if capacity == 0 {
                    // Nobody is to wait for one that takes nobody.
                    starts.extend(self.queue.unbind(now, member.slot));
                }
            }
            let is_on_trial = member.ejection.state() == State::Probing;
            (member.server.is_on_trial).store(is_on_trial, Ordering::Relaxed);
        }
        self.grant(starts, aftermath);
    }

    fn take_out(&mut self, index: usize, aftermath: &mut Aftermath) {
        let mut member = self.members.remove(index);
        for connections in &mut member.idle {
            aftermath.dropped.append(connections);
        }
        self.queue.remove_slot(member.slot);
        self.by_slot.iter_mut().for_each(|place| *place = None);
        for (index, member) in self.members.iter().enumerate() {
            self.by_slot[member.slot.index()] = Some(index);
        }
    }

    /// Gives up the idle connections to a server; whether there were any.
    pub(crate) fn drop_idle(&mut self, key: MemberKey, aftermath: &mut Aftermath) -> bool {
        let Some(index) = self.find(key) else {
            return false;
        };
        let member = &mut self.members[index];
        for connections in &mut member.idle {
            aftermath.dropped.append(connections);
        }
        std::mem::take(&mut member.idle_count) > 0
    }
}

impl Member {
    /// Whether connections wait for the next request: there will be none at a server that drains.
    fn keeps_connections(&self) -> bool {
        !self.is_leaving && self.ejection.takes_requests()
    }

    /// The same for one that was just used: another connection may wait for the server to be done with it.
    fn keeps_connection_at(&self, now: Instant) -> bool {
        self.keeps_connections() && !self.saturation.is_full(now, &self.server.load)
    }

    fn has_room(&self) -> bool {
        self.active < self.capacity
    }

    fn candidate(&self, index: usize, home: usize, now: Instant) -> Candidate {
        Candidate {
            index,
            id: self.number,
            weight: self.spec.weight,
            active: self.active,
            capacity: self.capacity,
            has_idle_here: self.idle.get(home).is_some_and(|list| !list.is_empty()),
            has_idle: self.idle_count > 0,
            last_used: self.last_used,
            ramp: self.ejection.ramp(now),
        }
    }

    fn put_idle(&mut self, mut connection: Connection, home: usize, now: Instant) {
        connection.idle_since = now;
        let last = self.idle.len() - 1;
        self.idle[home.min(last)].push(connection);
        self.idle_count += 1;
    }

    /// The last used connection, of loop `home` where there is one.
    fn take_idle(&mut self, home: usize) -> Option<Connection> {
        if self.idle_count == 0 {
            return None;
        }
        let last = self.idle.len() - 1;
        let home = home.min(last);
        let from = match self.idle[home].is_empty() {
            false => home,
            true => self.idle.iter().position(|list| !list.is_empty())?,
        };
        self.idle_count -= 1;
        self.idle[from].pop()
    }

    /// An idle connection that was not used for long.
    fn take_longest_idle(&mut self) -> Option<Connection> {
        let filled = self.idle.iter_mut().filter(|list| !list.is_empty());
        let list = filled.min_by_key(|list| list[0].idle_since)?;
        self.idle_count -= 1;
        Some(list.remove(0))
    }

    /// Drops idle connections that another one waits for or that their server closed, and above `soft` those idle for `ttl`.
    fn sweep(&mut self, now: Instant, levels: &config::Connections, dropped: &mut Vec<Connection>) {
        let stuck = self.saturation.tick(now, &self.server.load);
        for _ in 0..stuck {
            dropped.extend(self.take_longest_idle());
        }
        let mut above = (self.open() as usize).saturating_sub(levels.soft as usize);
        for list in &mut self.idle {
            // Once for all of a loop's: the lock is held.
            let mut stirred = Stream::have_events(list.iter().map(|idle| &idle.stream)).into_iter();
            // Longest idle first.
            let mut at = 0;
            while at < list.len() {
                let idle = now.saturating_duration_since(list[at].idle_since);
                let is_old = above > 0 && idle >= levels.ttl;
                let is_quiet = !stirred.next().unwrap_or_default();
                if is_quiet && list[at].served > 0 && idle >= SEEN_TO_KEEP {
                    self.server.keeps.store(true, Ordering::Relaxed);
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

    pub(crate) fn open(&self) -> u32 {
        self.server.open.load(Ordering::Relaxed)
    }

    pub(crate) fn active(&self) -> u32 {
        self.active
    }

    /// Requests in a row that it has not answered in time.
    pub(crate) fn unanswered(&self) -> u32 {
        self.counts.unanswered
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    /// As the status page shows it.
    pub(crate) fn snapshot(&self) -> ServerSnapshot {
        ServerSnapshot {
            name: self.server.name.to_string(),
            state: if self.is_leaving {
                "leaving"
            } else {
                self.ejection.state().as_str()
            },
            weight: self.spec.weight,
            backup: self.spec.backup,
            active: self.active,
            active_max: (self.spec.capacity != u32::MAX).then_some(self.spec.capacity),
            connections_open: self.open(),
            connections_idle: self.idle_count,
            requests: self.counts.requests,
            failures: self.counts.failures,
            timeouts: self.counts.timeouts,
            connects: self.counts.connects,
            reuses: self.counts.reuses,
            last_error: self.last_error.as_deref().map(str::to_owned),
        }
    }
}

/// A server at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerSnapshot {
    /// Its address.
    pub name: String,
    /// up, ejected, probing, down, draining, disabled, leaving.
    pub state: &'static str,
    /// Its share.
    pub weight: u32,
    /// Whether it is a backup.
    pub backup: bool,
    /// Requests in progress.
    pub active: u32,
    /// The most it may have; `None` when unlimited.
    pub active_max: Option<u32>,
    /// Connections there are.
    pub connections_open: u32,
    /// Those that wait for a request.
    pub connections_idle: usize,
    /// Requests that it was given.
    pub requests: u64,
    /// Those that it failed.
    pub failures: u64,
    /// Those among them that it did not answer in time.
    pub timeouts: u64,
    /// Connections made for requests.
    pub connects: u64,
    /// Requests on a kept connection.
    pub reuses: u64,
    /// What its last failed probe said.
    pub last_error: Option<String>,
}

/// A server that closes behind each response has done so by then.
const SEEN_TO_KEEP: Duration = Duration::from_millis(200);

/// The number by which a sticky cookie names a server: the same on every machine.
pub(crate) fn number(name: &str) -> u64 {
    crate::balance::hash_key(name.as_bytes())
}

fn policy(balance: &config::Balance) -> Policy {
    match balance {
        config::Balance::IdleFirst => Policy::IdleFirst,
        config::Balance::RoundRobin => Policy::RoundRobin,
        config::Balance::LeastActive => Policy::LeastActive,
        config::Balance::RandomTwo => Policy::RandomTwo,
        config::Balance::Hash(_) => Policy::Hash,
    }
}

/// Different processes and upstreams draw different numbers.
fn seed(config: &config::Upstream) -> u64 {
    crate::balance::hash_key(config.name.as_bytes()) ^ u64::from(std::process::id())
}

/// Histograms of an upstream; only changed under the roster's lock.
#[derive(Debug, Default)]
struct Times {
    queue: Histogram,
    connect: Histogram,
    answer: Histogram,
}

impl Times {
    fn record(&self, ended: &Ended) {
        if let Some(queue) = ended.queue {
            self.queue.record_local(queue);
        }
        if let Some(connect) = ended.connect {
            self.connect.record_local(connect);
        }
        if let Some(answer) = ended.answer {
            self.answer.record_local(answer);
        }
    }
}

#[cfg(test)]
mod tests;
