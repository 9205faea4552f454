//! The application's one queue, shared by all loops, and the mailboxes of its slots.
//!
//! `handler` submits jobs, drivers take them. The decisions are `queue`'s, pure; this file adds the
//! lock and the wake-ups. The slots of one worker act together in `worker_stats` (spare slots,
//! garbage collections).
//!
//! # Invariants
//! - A job moves from the queue to a mailbox under the one lock that chose its slot (a mailbox's
//!   own lock is inside it), so it is always in exactly one place: queue, mailbox or driver.
//! - No waker runs and nothing is awaited under the lock.

mod mailbox;
mod recent_latency;
#[cfg(test)]
mod tests;
mod worker_stats;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use penstock_exchange::buffering::SpoolFile;
use penstock_exchange::metrics::serialize_seconds;
use penstock_exchange::{
    AddressPrefix, ClientState, Fault, FaultKind, Reply, Response, SendfileGrant,
};
use penstock_queue::{DispatchedJob, Queue, QueueLimits, QueueOutcome, SlotId, SlotSpec, Ticket};
use penstock_runtime::clock;
use serde::Serialize;
use tokio::sync::{Notify, oneshot};

use crate::sticky::{Affinity, AffinityTarget, WorkerToken};
use crate::upload::UploadReader;
use crate::websocket_handshake::Handshake;

pub(crate) use self::mailbox::{Mailbox, MailboxDelivery};
pub(crate) use self::recent_latency::{MAX_BATCH_REQUESTS, RecentLatency};
pub(crate) use self::worker_stats::WorkerStats;

/// One request on its way to a worker.
#[derive(Debug)]
pub(crate) struct Job {
    /// The whole REQUEST frame, or the OPEN frame without its stream's id.
    pub(crate) frame: Vec<u8>,
    /// The body, when it is in a file.
    pub(crate) body_file: Option<Arc<SpoolFile>>,
    /// The rest of the body, if it arrives while the request is in progress.
    pub(crate) upload: Option<UploadReader>,
    /// Whether the response's body is not sent (a HEAD request).
    pub(crate) is_head: bool,
    /// Takes the reply, once. Closed when the client does not wait any more.
    pub(crate) reply_sender: Option<oneshot::Sender<Result<Reply, Fault>>>,
    pub(crate) client: Arc<ClientState>,
    pub(crate) websocket: Option<Box<Handshake>>,
    /// It asks for another protocol, and its worker may hijack the connection.
    pub(crate) upgrades: bool,
    /// Permission for its response to name another body.
    pub(crate) sendfile: Option<Arc<SendfileGrant>>,
    /// The process that it belongs to, if the application is sticky.
    pub(crate) affinity: Option<Box<Affinity>>,
    /// Its route's own `response_timeout`.
    pub(crate) response_timeout: Option<Duration>,
}

impl Job {
    /// Whether nothing may be sent to its thread behind it: its body follows its frame, or it may
    /// last.
    pub(crate) fn must_be_sent_alone(&self) -> bool {
        self.body_file.is_some() || self.upload.is_some() || self.upgrades
    }

    pub(crate) fn answer(&mut self, answer: Result<Response, Fault>) {
        self.send_reply(answer.map(Reply::from));
    }

    pub(crate) fn send_reply(&mut self, mut answer: Result<Reply, Fault>) {
        if let (Some(affinity), Ok(Reply::Response(response))) = (&self.affinity, &mut answer) {
            affinity.set_cookie(response);
        }
        if let Some(reply) = self.reply_sender.take() {
            // The client may have left.
            let _ = reply.send(answer);
        }
    }

    /// Splits off the part that replies; this job then has no reply.
    pub(crate) fn split_reply(&mut self) -> Self {
        Self {
            frame: Vec::new(),
            body_file: None,
            upload: None,
            is_head: self.is_head,
            reply_sender: self.reply_sender.take(),
            client: Arc::clone(&self.client),
            websocket: None,
            upgrades: self.upgrades,
            sendfile: self.sendfile.take(),
            affinity: self.affinity.take(),
            response_timeout: self.response_timeout,
        }
    }

    /// Whether the client does not wait for the reply any more.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.client.is_disconnected()
            || self
                .reply_sender
                .as_ref()
                .is_some_and(oneshot::Sender::is_closed)
    }
}

#[derive(Debug)]
pub(crate) struct AppDispatcher {
    state: Mutex<DispatchState>,
    /// Notified when a worker has served as many requests as its stats watch for.
    pub(crate) limit_reached: Notify,
}

#[derive(Debug)]
struct DispatchState {
    /// No slot will be added: jobs without a slot get a fault.
    is_closed: bool,
    queue: Queue<Job>,
    /// By the slot's index, which the next slot may have while a driver is still ending.
    mailboxes: Vec<Option<(SlotId, Arc<Mailbox>)>>,
    /// A slot of each worker that takes requests, by its token in cookies.
    worker_slots: BTreeMap<WorkerToken, SlotId>,
}

#[derive(Debug)]
pub(crate) enum SubmitOutcome {
    Started,
    Waiting { ticket: Ticket, position: usize },
    QueueFull { len: usize },
}

/// The queue's numbers at one moment.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct QueueUsage {
    /// Requests waiting.
    #[serde(rename = "length")]
    pub waiting: usize,
    /// Requests that could be in progress at once: the capacity of all slots.
    pub slots: usize,
    /// Requests in progress.
    #[serde(rename = "active")]
    pub in_progress: usize,
    /// Time that the oldest request has waited.
    #[serde(rename = "oldest_wait_seconds", serialize_with = "serialize_seconds")]
    pub oldest_wait: Duration,
}

impl AppDispatcher {
    pub(crate) fn new(limits: QueueLimits) -> Self {
        let inner = DispatchState {
            is_closed: false,
            queue: Queue::new(limits),
            mailboxes: Vec::new(),
            worker_slots: BTreeMap::new(),
        };
        Self {
            state: Mutex::new(inner),
            limit_reached: Notify::new(),
        }
    }

    pub(crate) fn submit(&self, now: Instant, job: Job, preferred_loop: usize) -> SubmitOutcome {
        let mut inner = self.state.lock();
        if inner.is_closed {
            drop(inner);
            // The application was available a moment ago.
            answer_unavailable(job, "the application stopped");
            return SubmitOutcome::Started;
        }
        let wanted = job.affinity.as_ref().map(|affinity| affinity.target);
        let submitted = match wanted.and_then(|wanted| inner.find_slot(wanted)) {
            Some(slot) => inner.queue.enqueue(now, job, Some(slot)),
            None => inner.queue.submit(now, job, preferred_loop),
        };
        match submitted {
            QueueOutcome::Dispatched(start) => {
                let waker = inner.post_job(start);
                drop(inner);
                waker.into_iter().for_each(Waker::wake);
                SubmitOutcome::Started
            }
            QueueOutcome::Queued { ticket, position } => {
                SubmitOutcome::Waiting { ticket, position }
            }
            QueueOutcome::Full(_) => SubmitOutcome::QueueFull {
                len: inner.queue.len(),
            },
        }
    }

    /// Takes a waiting job out of the queue; `false` when it is not there any more.
    pub(crate) fn cancel(&self, ticket: Ticket) -> bool {
        self.state.lock().queue.cancel(ticket).is_some()
    }

    /// Adds a slot of the worker with these stats; jobs that waited are in its mailbox already. A
    /// slot with a capacity of 0 is a spare one.
    pub(crate) fn add_slot(
        &self,
        now: Instant,
        spec: SlotSpec,
        stats: &Arc<WorkerStats>,
    ) -> (SlotId, Arc<Mailbox>) {
        let mailbox = Arc::new(Mailbox::new(Arc::clone(stats)));
        let mut inner = self.state.lock();
        let (slot, starts) = inner.queue.add_slot(now, spec);
        stats.add_slot(slot, spec.request_capacity);
        let index = slot.index();
        if inner.mailboxes.len() <= index {
            inner.mailboxes.resize(index + 1, None);
        }
        inner.mailboxes[index] = Some((slot, Arc::clone(&mailbox)));
        inner.worker_slots.entry(stats.token).or_insert(slot);
        for start in starts {
            // A new mailbox has no waker.
            inner.post_job(start);
        }
        drop(inner);
        (slot, mailbox)
    }

    /// Takes a slot out: no new jobs; its driver ends when nothing is in progress.
    pub(crate) fn retire_slot(&self, slot: SlotId, mailbox: &Mailbox) {
        self.close_slot(slot, mailbox);
        mailbox.mark_retired();
    }

    /// Takes out a slot whose worker's process has ended. Its driver may not see the end of its
    /// socket: a process that the worker left behind can hold the other side open.
    pub(crate) fn mark_slot_lost(&self, slot: SlotId, mailbox: &Mailbox) {
        self.close_slot(slot, mailbox);
        mailbox.mark_worker_lost();
    }

    /// Gives a slot no new jobs. Jobs that waited for its worker go anywhere if it has no other
    /// slot.
    fn close_slot(&self, slot: SlotId, mailbox: &Mailbox) {
        let mut inner = self.state.lock();
        inner.queue.retire_slot(slot);
        let wakers = inner.reassign_worker_slot(clock::now(), slot, &mailbox.stats);
        drop(inner);
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    /// Forgets a slot whose driver ends. `unbegun` are jobs that its worker never saw, oldest
    /// first: with those in the mailbox they go back to the front of the queue, or to another slot.
    pub(crate) fn remove_slot(
        &self,
        now: Instant,
        slot: SlotId,
        mailbox: &Mailbox,
        mut unbegun: Vec<DispatchedJob<Job>>,
    ) {
        let mut inner = self.state.lock();
        inner.queue.remove_slot(slot);
        if let Some(place) = inner.mailboxes.get_mut(slot.index())
            && place.as_ref().is_some_and(|(owner, _)| *owner == slot)
        {
            *place = None;
        }
        // Nothing is posted to a slot that the queue does not know, so these are all.
        unbegun.extend(mailbox.take_jobs());
        if inner.is_closed {
            drop(inner);
            let jobs = unbegun.into_iter().map(|start| start.job);
            return jobs.for_each(|job| answer_unavailable(job, "the application stopped"));
        }
        let mut wakers = inner.reassign_worker_slot(now, slot, &mailbox.stats);
        inner.release_gc_claims(now, slot, &mailbox.stats, &mut wakers);
        for start in unbegun {
            let back = inner.queue.requeue(now, start.job, start.enqueued_at);
            // `requeue` never refuses: a dispatched job is not counted against the bound.
            if let QueueOutcome::Dispatched(start) = back {
                wakers.push(inner.post_job(start));
            }
        }
        drop(inner);
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    /// Ends `ended` requests of a driver, and adds the next jobs to `into`. With `batch_max` above
    /// 1 the slot gets up to that many in all.
    pub(crate) fn finish_and_take(
        &self,
        now: Instant,
        slot: SlotId,
        ended: usize,
        batch_max: u32,
        into: &mut VecDeque<DispatchedJob<Job>>,
    ) {
        let mut inner = self.state.lock();
        let is_due = inner
            .mailbox(slot)
            .is_some_and(|m| m.stats.record_served(ended));
        for _ in 0..ended {
            if let Some(mut start) = inner.queue.finish_request(now, slot) {
                inner.record_worker(&mut start);
                into.push_back(start);
            }
        }
        // A spare slot counts as full: it must not get the jobs of a full one.
        let is_open = |inner: &DispatchState| {
            let view = inner.queue.slot_view(slot);
            view.is_some_and(|view| view.spec.request_capacity > 0)
        };
        if batch_max > 1 && !inner.queue.is_empty() && is_open(&inner) {
            // A fair share: jobs must not pile up behind this slot while others run dry.
            let slots = inner.queue.request_capacity().max(1);
            let share = u32::try_from(inner.queue.len().div_ceil(slots)).unwrap_or(u32::MAX);
            let most = batch_max.min(share.saturating_add(1));
            while let Some(mut start) = inner.queue.dispatch_beyond_capacity(now, slot, most) {
                inner.record_worker(&mut start);
                into.push_back(start);
            }
        }
        drop(inner);
        if is_due {
            self.limit_reached.notify_one();
        }
    }

    /// Takes back jobs that were handed to a slot and not sent to its worker, because one before
    /// them lasts.
    pub(crate) fn requeue(&self, now: Instant, slot: SlotId, jobs: Vec<DispatchedJob<Job>>) {
        let mut inner = self.state.lock();
        let mut wakers = Vec::new();
        for start in jobs {
            // The slot has more than its capacity, so it gets no other job for it.
            if let Some(next) = inner.queue.finish_request(now, slot) {
                wakers.push(inner.post_job(next));
            }
            let back = inner.queue.requeue(now, start.job, start.enqueued_at);
            if let QueueOutcome::Dispatched(start) = back {
                wakers.push(inner.post_job(start));
            }
        }
        drop(inner);
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    /// Takes the jobs whose time in the queue is over. A submitted job has a timer of its own; this
    /// is for those that were given back after their worker died.
    pub(crate) fn expire(&self, now: Instant) -> Vec<(Job, Duration)> {
        let mut inner = self.state.lock();
        std::iter::from_fn(|| inner.queue.pop_expired(now)).collect()
    }

    /// Empties the queue: the server stops or the application cannot run.
    pub(crate) fn drain_queue(&self) -> Vec<Job> {
        self.state.lock().queue.clear()
    }

    /// How many requests a slot may have in progress; 0 when the queue does not know it.
    pub(crate) fn slot_request_capacity(&self, slot: SlotId) -> usize {
        let inner = self.state.lock();
        let view = inner.queue.slot_view(slot);
        view.map_or(0, |view| view.spec.request_capacity as usize)
    }

    /// Empties the queue for good, and fails the jobs that ending drivers give back.
    pub(crate) fn close_queue(&self) -> Vec<Job> {
        let mut inner = self.state.lock();
        inner.is_closed = true;
        inner.queue.clear()
    }

    pub(crate) fn queue_usage(&self, now: Instant) -> QueueUsage {
        self.state.lock().usage(now)
    }

    /// The queue's numbers for a response that holds this slot; `None` when no job would get the
    /// slot.
    pub(crate) fn queue_usage_for_slot(&self, now: Instant, slot: SlotId) -> Option<QueueUsage> {
        let inner = self.state.lock();
        let view = inner.queue.slot_view(slot)?;
        let takes_requests = !view.is_retired && view.spec.request_capacity > 0;
        takes_requests.then(|| inner.usage(now))
    }

    /// The clients of waiting requests, where they are known.
    pub(crate) fn waiting_clients(&self) -> Vec<Option<AddressPrefix>> {
        let inner = self.state.lock();
        let waiting = inner.queue.waiting_jobs();
        waiting
            .map(|job| job.client.counted_address_prefix())
            .collect()
    }

    /// Takes the waiting jobs of these clients out, each with how long it has waited.
    pub(crate) fn take_waiting_jobs_of(
        &self,
        now: Instant,
        clients: &[AddressPrefix],
    ) -> Vec<(Job, Duration)> {
        let is_of_them = |job: &Job| {
            let client = job.client.counted_address_prefix();
            client.is_some_and(|client| clients.contains(&client))
        };
        let taken = self
            .state
            .lock()
            .queue
            .take_matching(is_of_them)
            .into_iter();
        taken
            .map(|(job, since)| (job, now.saturating_duration_since(since)))
            .collect()
    }
}

fn answer_unavailable(mut job: Job, cause: &str) {
    job.answer(Err(Fault::new(FaultKind::Unavailable, cause.to_owned())));
}

impl DispatchState {
    fn usage(&self, now: Instant) -> QueueUsage {
        QueueUsage {
            waiting: self.queue.len(),
            slots: self.queue.request_capacity(),
            in_progress: self.queue.requests_in_progress(),
            oldest_wait: self.queue.oldest_wait(now).unwrap_or_default(),
        }
    }

    /// The mailbox of a slot whose driver has not ended.
    fn mailbox(&self, slot: SlotId) -> Option<&Arc<Mailbox>> {
        let (owner, mailbox) = self.mailboxes.get(slot.index())?.as_ref()?;
        (*owner == slot).then_some(mailbox)
    }

    /// A slot of the worker that a request belongs to; `None` when any will do.
    fn find_slot(&self, wanted: AffinityTarget) -> Option<SlotId> {
        match wanted {
            AffinityTarget::Any => None,
            AffinityTarget::Worker(token) => self.worker_slots.get(&token).copied(),
            AffinityTarget::Client(client) => {
                let best = self.worker_slots.iter();
                let best = best.max_by_key(|(token, _)| token.rendezvous_weight(client));
                best.map(|(_, slot)| *slot)
            }
        }
    }

    /// Replaces a slot that takes no more by another of its worker, if there is one; otherwise
    /// starts the jobs that waited for that worker alone. Returns the drivers' wakers.
    fn reassign_worker_slot(
        &mut self,
        now: Instant,
        slot: SlotId,
        stats: &Arc<WorkerStats>,
    ) -> Vec<Option<Waker>> {
        if self.worker_slots.get(&stats.token) == Some(&slot) {
            let queue = &self.queue;
            let takes = |slot: &SlotId| queue.slot_view(*slot).is_some_and(|view| !view.is_retired);
            let others = self.mailboxes.iter().flatten();
            let mut others = others.filter(|(_, mailbox)| Arc::ptr_eq(&mailbox.stats, stats));
            match others.find(|(other, _)| *other != slot && takes(other)) {
                Some((other, _)) => self.worker_slots.insert(stats.token, *other),
                None => self.worker_slots.remove(&stats.token),
            };
        }
        let starts = self.queue.dispatch_unbound(now);
        starts
            .into_iter()
            .map(|start| self.post_job(start))
            .collect()
    }

    /// Records in a started job which worker has it, for its client's cookie.
    fn record_worker(&self, start: &mut DispatchedJob<Job>) {
        if let Some(affinity) = &mut start.job.affinity {
            affinity.served_by = self
                .mailbox(start.slot_id)
                .map(|mailbox| mailbox.stats.token);
        }
    }

    /// Posts a started job to its slot; returns the driver's waker, to be used outside of the lock.
    fn post_job(&self, mut start: DispatchedJob<Job>) -> Option<Waker> {
        self.record_worker(&mut start);
        let mailbox = self.mailbox(start.slot_id);
        debug_assert!(
            mailbox.is_some(),
            "a slot that the queue knows has its mailbox"
        );
        mailbox?.post(start)
    }
}
