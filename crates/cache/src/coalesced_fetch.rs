//! Requests to the back end that are under way, so that those who want the same wait instead of asking too.
//!
//! `handler` joins a flight or leads one; `fetch` lands it as soon as the head of the response says what
//! becomes of it. A landed flight is in nobody's way: who comes later finds the growing object in the
//! store. Keys that turned out not to be stored are remembered for a while ([`CoalescedFetches::mark`]), and
//! requests for them do not wait for one another.
//!
//! What must stay true: a flight lands in any case, also when its task ends without a word; one that nobody
//! waits for can be told so; a response that is not stored reaches nobody but the one who asked.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use penstock_exchange::{Fault, FaultKind, Reply, RequestTiming};
use penstock_http::Status;
use penstock_runtime::clock;
use tokio::sync::{Notify, watch};

use crate::store::{Hit, ObjectKey, PartialObject};

/// How long a key counts as not stored without another word of its back end. One request too many a minute
/// for each page is nothing; the first response that may be stored ends it at once.
const UNCACHEABLE_TIME: Duration = Duration::from_secs(60);

/// Keys remembered as not stored in each shard; more are not, and collapse for nothing.
const MAX_UNCACHEABLE_KEYS: usize = 2048;

const SHARDS: usize = 16;

/// All flights of one route.
#[derive(Debug, Default)]
pub(crate) struct CoalescedFetches {
    /// Tells texts apart whose public hash is the same: whoever chooses URLs can compute such ones.
    secret: RandomState,
    /// Held for a look-up only.
    shards: [Mutex<FetchShard>; SHARDS],
}

#[derive(Debug, Default)]
struct FetchShard {
    fetches: HashMap<u128, Vec<Arc<CoalescedFetch>>>,
    /// Until when responses for a key are known not to be stored, by the keyed hash of its text.
    uncacheable: HashMap<u64, Instant>,
}

/// What has come of a flight, for all who wait for it.
#[derive(Debug, Clone)]
pub(crate) enum FetchOutcome {
    /// The response is being stored; `whole` is its body, if it is here already.
    Stored {
        partial: Arc<PartialObject>,
        whole: Option<Bytes>,
    },
    /// What is stored is still current.
    Revalidated(Hit),
    /// The response is for the one who led.
    NotStored {
        /// It says that the back end failed (RFC 5861 §4).
        is_error: bool,
    },
    /// It was not needed: what is wanted is in the store.
    LookAgain,
    /// There is no response.
    Failed(FaultKind, String),
}

/// What the one who leads gets beside.
#[derive(Debug, Default)]
pub(crate) struct LeaderResult {
    /// The response that is not stored, or the failure.
    pub(crate) reply: Option<Result<Reply, Fault>>,
    /// Where the time went, for one that is.
    pub(crate) timing: RequestTiming,
    /// What the back end answered with.
    pub(crate) status: Option<Status>,
    /// Why it is not stored.
    pub(crate) detail: Option<&'static str>,
}

/// One request under way.
#[derive(Debug)]
struct CoalescedFetch {
    key: ObjectKey,
    /// What is known of the fields that select the variant: nothing, or their values.
    variant_hint: Vec<u8>,
    waiter_count: AtomicUsize,
    mode: FetchMode,
    started_at: Instant,
    /// What it brings must not be stored: somebody wrote to the resource meanwhile.
    is_outdated: AtomicBool,
    /// Nobody may join any more. Changed and read under the shard's lock.
    is_closed: AtomicBool,
    last_waiter_left: Notify,
    outcome: watch::Sender<Option<FetchOutcome>>,
    leader_result: Mutex<LeaderResult>,
}

/// Who may wait for a flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FetchMode {
    /// Whoever wants the same.
    Shared,
    /// Nobody but the one who began it.
    Exclusive,
    /// Whoever wants the same; but it goes on without anybody.
    Background,
}

/// A place among those who wait; its drop leaves.
#[derive(Debug)]
pub(crate) struct FetchWaiter {
    fetches: Arc<CoalescedFetches>,
    fetch: Arc<CoalescedFetch>,
}

/// The end of a flight that is in the hands of whoever flies it.
#[derive(Debug)]
pub(crate) struct FetchCompletion {
    fetches: Arc<CoalescedFetches>,
    fetch: Arc<CoalescedFetch>,
    is_completed: bool,
}

/// What joining came to.
#[derive(Debug)]
pub(crate) enum JoinOutcome {
    /// There was none: the caller flies it.
    Leader(FetchWaiter, FetchCompletion),
    /// Somebody else flies it.
    Waiter(FetchWaiter),
}

impl CoalescedFetches {
    fn shard(&self, key: &ObjectKey) -> MutexGuard<'_, FetchShard> {
        #[expect(clippy::cast_possible_truncation, reason = "a few bits are wanted")]
        let index = (key.hash >> 64) as usize % SHARDS;
        let shard = self.shards[index].lock();
        shard.unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the flight for this key and guess, or begins it; with `since` only one that began since then.
    pub(crate) fn join(
        self: &Arc<Self>,
        key: &ObjectKey,
        guess: Vec<u8>,
        since: Option<Instant>,
    ) -> JoinOutcome {
        let mut shard = self.shard(key);
        let under_way = shard.fetches.entry(key.hash).or_default();
        let is_same = |flight: &&Arc<CoalescedFetch>| {
            let is_current = !flight.is_outdated.load(Ordering::Relaxed);
            let is_open = is_current && !flight.is_closed.load(Ordering::Relaxed);
            let is_new = since.is_none_or(|since| flight.started_at >= since);
            is_open && is_new && flight.matches(key, &guess)
        };
        if let Some(flight) = under_way.iter().find(is_same) {
            return JoinOutcome::Waiter(self.new_waiter(flight));
        }
        let flight = Arc::new(CoalescedFetch::new(key.clone(), guess, FetchMode::Shared));
        under_way.push(Arc::clone(&flight));
        drop(shard);
        JoinOutcome::Leader(self.new_waiter(&flight), self.new_completion(flight))
    }

    /// Begins a flight that nobody waits for, if there is none for this key and guess.
    pub(crate) fn begin_background(
        self: &Arc<Self>,
        key: &ObjectKey,
        guess: Vec<u8>,
    ) -> Option<FetchCompletion> {
        let mut shard = self.shard(key);
        let under_way = shard.fetches.entry(key.hash).or_default();
        if under_way.iter().any(|flight| flight.matches(key, &guess)) {
            return None;
        }
        let flight = Arc::new(CoalescedFetch::new(
            key.clone(),
            guess,
            FetchMode::Background,
        ));
        under_way.push(Arc::clone(&flight));
        drop(shard);
        Some(self.new_completion(flight))
    }

    /// Begins a flight that nobody can join.
    pub(crate) fn begin_exclusive(
        self: &Arc<Self>,
        key: &ObjectKey,
    ) -> (FetchWaiter, FetchCompletion) {
        let flight = Arc::new(CoalescedFetch::new(
            key.clone(),
            Vec::new(),
            FetchMode::Exclusive,
        ));
        let ticket = self.new_waiter(&flight);
        let mut shard = self.shard(key);
        // In the table it can be outdated.
        let under_way = shard.fetches.entry(key.hash).or_default();
        under_way.push(Arc::clone(&flight));
        drop(shard);
        (ticket, self.new_completion(flight))
    }

    /// What is under way for `key` must not be stored any more.
    pub(crate) fn mark_outdated(&self, key: &ObjectKey) {
        for flight in self.shard(key).fetches.get(&key.hash).into_iter().flatten() {
            if flight.key.text == key.text {
                flight.is_outdated.store(true, Ordering::Relaxed);
            }
        }
    }

    /// The same for all keys of a URL. Looks at every flight.
    pub(crate) fn mark_url_outdated(&self, url: &[u8]) {
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for flight in shard.fetches.values().flatten() {
                if flight.key.text.split(|&byte| byte == 0).next() == Some(url) {
                    flight.is_outdated.store(true, Ordering::Relaxed);
                }
            }
        }
    }

    /// Remembers at `now` that responses for `key` are not stored.
    pub(crate) fn mark_uncacheable(&self, key: &ObjectKey, now: Instant) {
        let mut shard = self.shard(key);
        if shard.uncacheable.len() >= MAX_UNCACHEABLE_KEYS {
            shard.uncacheable.retain(|_, until| *until > now);
        }
        if shard.uncacheable.len() < MAX_UNCACHEABLE_KEYS {
            shard
                .uncacheable
                .insert(self.text_hash(key), now + UNCACHEABLE_TIME);
        }
    }

    /// A failure says nothing of the resource: what was not stored before is not now, as far as is known.
    pub(crate) fn renew_uncacheable(&self, key: &ObjectKey, now: Instant) {
        if let Some(until) = self.shard(key).uncacheable.get_mut(&self.text_hash(key)) {
            *until = now + UNCACHEABLE_TIME;
        }
    }

    /// Forgets that.
    pub(crate) fn clear_uncacheable(&self, key: &ObjectKey) {
        self.shard(key).uncacheable.remove(&self.text_hash(key));
    }

    /// Whether responses for `key` were not stored lately.
    pub(crate) fn is_uncacheable(&self, key: &ObjectKey, now: Instant) -> bool {
        let shard = self.shard(key);
        let until = shard.uncacheable.get(&self.text_hash(key));
        until.is_some_and(|until| *until > now)
    }

    fn text_hash(&self, key: &ObjectKey) -> u64 {
        self.secret.hash_one(&key.text)
    }

    fn new_waiter(self: &Arc<Self>, flight: &Arc<CoalescedFetch>) -> FetchWaiter {
        flight.waiter_count.fetch_add(1, Ordering::Relaxed);
        FetchWaiter {
            fetches: Arc::clone(self),
            fetch: Arc::clone(flight),
        }
    }

    fn new_completion(self: &Arc<Self>, flight: Arc<CoalescedFetch>) -> FetchCompletion {
        FetchCompletion {
            fetches: Arc::clone(self),
            fetch: flight,
            is_completed: false,
        }
    }

    fn remove(&self, flight: &Arc<CoalescedFetch>) {
        let mut shard = self.shard(&flight.key);
        if let Some(under_way) = shard.fetches.get_mut(&flight.key.hash) {
            under_way.retain(|other| !Arc::ptr_eq(other, flight));
            if under_way.is_empty() {
                shard.fetches.remove(&flight.key.hash);
            }
        }
    }
}

impl CoalescedFetch {
    fn new(key: ObjectKey, guess: Vec<u8>, kind: FetchMode) -> Self {
        Self {
            key,
            variant_hint: guess,
            waiter_count: AtomicUsize::new(0),
            mode: kind,
            started_at: clock::now(),
            is_outdated: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            last_waiter_left: Notify::new(),
            outcome: watch::Sender::new(None),
            leader_result: Mutex::default(),
        }
    }

    /// Whether who wants that may wait for it.
    fn matches(&self, key: &ObjectKey, guess: &[u8]) -> bool {
        self.mode != FetchMode::Exclusive && self.variant_hint == guess && self.key.text == key.text
    }

    fn leader_result(&self) -> MutexGuard<'_, LeaderResult> {
        self.leader_result
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl FetchWaiter {
    /// Waits until the flight has landed. Cancel safe.
    pub(crate) async fn wait(&self) -> FetchOutcome {
        let mut outcome = self.fetch.outcome.subscribe();
        let landed = outcome.wait_for(Option::is_some).await;
        // The sender is in the flight, which is held here.
        let landed = landed.ok().and_then(|landed| landed.clone());
        landed.unwrap_or_else(|| FetchOutcome::Failed(FaultKind::Internal, FETCH_LOST.to_owned()))
    }

    /// What is for the one who leads alone.
    pub(crate) fn take_leader_result(&self) -> LeaderResult {
        std::mem::take(&mut self.fetch.leader_result())
    }
}

impl Drop for FetchWaiter {
    fn drop(&mut self) {
        // Under the lock: nobody joins between the last one's leaving and its being noticed.
        let shard = self.fetches.shard(&self.fetch.key);
        if self.fetch.waiter_count.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.fetch.last_waiter_left.notify_one();
        }
        drop(shard);
    }
}

impl FetchCompletion {
    /// Waits until nobody waits, and takes the flight out of everybody's sight then. Cancel safe.
    pub(crate) async fn wait_until_abandoned(&self) {
        if self.fetch.mode == FetchMode::Background {
            return std::future::pending().await;
        }
        loop {
            self.fetch.last_waiter_left.notified().await;
            let mut shard = self.fetches.shard(&self.fetch.key);
            if self.fetch.waiter_count.load(Ordering::Relaxed) == 0 {
                if let Some(under_way) = shard.fetches.get_mut(&self.fetch.key.hash) {
                    under_way.retain(|other| !Arc::ptr_eq(other, &self.fetch));
                }
                return;
            }
        }
    }

    /// Whether nobody asked for it.
    pub(crate) fn is_background(&self) -> bool {
        self.fetch.mode == FetchMode::Background
    }

    /// Lets nobody join from here on. Whoever has joined did so before anything that happens after it.
    pub(crate) fn close_to_joiners(&self) {
        self.set_closed(true);
    }

    /// Begins anew, with a question that is still to be asked: what happened so far does not count.
    pub(crate) fn restart(&self) {
        self.fetch.is_outdated.store(false, Ordering::Relaxed);
        self.set_closed(false);
    }

    fn set_closed(&self, is_closed: bool) {
        let shard = self.fetches.shard(&self.fetch.key);
        self.fetch.is_closed.store(is_closed, Ordering::Relaxed);
        drop(shard);
    }

    /// Whether what it brings must not be stored.
    pub(crate) fn is_outdated(&self) -> bool {
        self.fetch.is_outdated.load(Ordering::Relaxed)
    }

    /// Tells all who wait what has come of it. What is stored must be in its store by now.
    pub(crate) fn complete(mut self, outcome: FetchOutcome, lead: LeaderResult) {
        self.complete_once(outcome, lead);
    }

    fn complete_once(&mut self, outcome: FetchOutcome, lead: LeaderResult) {
        self.is_completed = true;
        *self.fetch.leader_result() = lead;
        self.fetches.remove(&self.fetch);
        self.fetch.outcome.send_replace(Some(outcome));
    }
}

impl Drop for FetchCompletion {
    fn drop(&mut self) {
        if !self.is_completed {
            let lost = FetchOutcome::Failed(FaultKind::Internal, FETCH_LOST.to_owned());
            self.complete_once(lost, LeaderResult::default());
        }
    }
}

/// What is said when the task of a flight ended without a word: the loop stops.
const FETCH_LOST: &str = "the cache's request to the back end was given up";

#[cfg(test)]
mod tests;
