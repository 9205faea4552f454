//! Coalesced fetches (request collapsing): requests for the same object share one request to the
//! back end.
//!
//! `handler` joins a fetch or leads a new one; `fetch` completes it as soon as the response head
//! has been judged. Later requests find the partial object in the store. Keys that turned out to be
//! uncacheable are remembered for a while ([`CoalescedFetches::mark_uncacheable`]), and requests
//! for them do not wait for each other.
//!
//! # Invariants
//!
//! - Every fetch completes, even if its task ends early.
//! - A fetch can tell that its last waiter has left.
//! - A response that is not stored reaches only the request that led the fetch.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use penstock_exchange::{Fault, FaultKind, Reply, RequestTiming};
use penstock_http::Status;
use penstock_runtime::clock;
use tokio::sync::{Notify, watch};

use crate::store::{Hit, ObjectKey, PartialObject};

/// How long a key counts as uncacheable. One needless request a minute for each page is cheap, and
/// the first storable response clears the key.
const UNCACHEABLE_TIME: Duration = Duration::from_secs(60);

/// Uncacheable keys remembered in each shard. Further keys are not remembered, and their requests
/// wait for each other in vain.
const MAX_UNCACHEABLE_KEYS: usize = 2048;

const SHARDS: usize = 16;

/// All fetches of one route.
#[derive(Debug, Default)]
pub(crate) struct CoalescedFetches {
    /// Hashes key texts. Clients choose URLs and could compute collisions of an unkeyed hash.
    secret: RandomState,
    /// Locked for a look-up only.
    shards: [Mutex<FetchShard>; SHARDS],
}

#[derive(Debug, Default)]
struct FetchShard {
    fetches: HashMap<u128, Vec<Arc<CoalescedFetch>>>,
    /// When each uncacheable key expires, by the keyed hash of its text.
    uncacheable: HashMap<u64, Instant>,
}

/// The result of a fetch, for all its waiters.
#[derive(Debug, Clone)]
pub(crate) enum FetchOutcome {
    /// The response is being stored. `whole` is its body if that has arrived already.
    Stored {
        partial: Arc<PartialObject>,
        whole: Option<Bytes>,
    },
    /// The stored response is still current.
    Revalidated(Hit),
    /// The response is for the leader only.
    NotStored {
        /// The status is a back-end failure (RFC 5861 §4).
        is_error: bool,
    },
    /// No request was needed: the store has the object, so look it up again.
    RetryLookup,
    /// There is no response.
    Failed(FaultKind, String),
}

/// The leader's own result of a fetch.
#[derive(Debug, Default)]
pub(crate) struct LeaderResult {
    /// The response that is not stored, or the failure.
    pub(crate) reply: Option<Result<Reply, Fault>>,
    /// Timing of a stored response.
    pub(crate) timing: RequestTiming,
    /// The back end's status.
    pub(crate) status: Option<Status>,
    /// Why the response is not stored.
    pub(crate) detail: Option<&'static str>,
}

#[derive(Debug)]
struct CoalescedFetch {
    key: ObjectKey,
    /// The values of the fields that select the variant, as far as known; else empty.
    variant_hint: Vec<u8>,
    waiter_count: AtomicUsize,
    mode: FetchMode,
    started_at: Instant,
    /// The result must not be stored: the resource was changed or purged meanwhile.
    is_outdated: AtomicBool,
    /// No further request may join. Changed and read under the shard's lock.
    is_closed: AtomicBool,
    last_waiter_left: Notify,
    outcome: watch::Sender<Option<FetchOutcome>>,
    leader_result: Mutex<LeaderResult>,
}

/// Which requests may wait for a fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FetchMode {
    /// All requests for the same object.
    Shared,
    /// Only the request that began it.
    Exclusive,
    /// All requests for the same object, and the fetch continues without waiters.
    Background,
}

/// One waiter of a fetch. Dropping it leaves the fetch.
#[derive(Debug)]
pub(crate) struct FetchWaiter {
    fetches: Arc<CoalescedFetches>,
    fetch: Arc<CoalescedFetch>,
    pub(crate) is_leader: bool,
}

/// The obligation to complete a fetch, held by the task that runs it.
#[derive(Debug)]
pub(crate) struct FetchCompleter {
    fetches: Arc<CoalescedFetches>,
    fetch: Arc<CoalescedFetch>,
    is_completed: bool,
}

impl CoalescedFetches {
    fn shard(&self, key: &ObjectKey) -> MutexGuard<'_, FetchShard> {
        #[expect(clippy::cast_possible_truncation, reason = "a few bits are enough")]
        let index = (key.hash >> 64) as usize % SHARDS;
        self.shards[index].lock()
    }

    /// Joins the fetch for this key and variant hint, or begins one, which the caller runs. With
    /// `since`, only a fetch that began no earlier is joined.
    pub(crate) fn join_or_begin(
        self: &Arc<Self>,
        key: &ObjectKey,
        hint: Vec<u8>,
        since: Option<Instant>,
    ) -> (FetchWaiter, Option<FetchCompleter>) {
        let shard = self.shard(key);
        let is_same = |fetch: &&Arc<CoalescedFetch>| {
            let is_open = !fetch.is_outdated.load(Relaxed) && !fetch.is_closed.load(Relaxed);
            let is_new = since.is_none_or(|since| fetch.started_at >= since);
            is_open && is_new && fetch.matches(key, &hint)
        };
        if let Some(fetch) = shard.running(key).find(is_same) {
            return (self.new_waiter(fetch, false), None);
        }
        let completer = self.begin(shard, key, hint, FetchMode::Shared);
        (self.new_waiter(&completer.fetch, true), Some(completer))
    }

    /// Begins a fetch without waiters, unless there is one for this key and variant hint.
    pub(crate) fn begin_background(
        self: &Arc<Self>,
        key: &ObjectKey,
        hint: Vec<u8>,
    ) -> Option<FetchCompleter> {
        let shard = self.shard(key);
        if shard.running(key).any(|fetch| fetch.matches(key, &hint)) {
            return None;
        }
        Some(self.begin(shard, key, hint, FetchMode::Background))
    }

    /// Begins a fetch that no other request can join.
    pub(crate) fn begin_exclusive(
        self: &Arc<Self>,
        key: &ObjectKey,
    ) -> (FetchWaiter, Option<FetchCompleter>) {
        let completer = self.begin(self.shard(key), key, Vec::new(), FetchMode::Exclusive);
        (self.new_waiter(&completer.fetch, true), Some(completer))
    }

    /// Lists a new fetch. `mark_outdated` finds an exclusive one, too.
    fn begin(
        self: &Arc<Self>,
        mut shard: MutexGuard<'_, FetchShard>,
        key: &ObjectKey,
        variant_hint: Vec<u8>,
        mode: FetchMode,
    ) -> FetchCompleter {
        let fetch = Arc::new(CoalescedFetch {
            key: key.clone(),
            variant_hint,
            waiter_count: AtomicUsize::new(0),
            mode,
            started_at: clock::now(),
            is_outdated: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            last_waiter_left: Notify::new(),
            outcome: watch::Sender::new(None),
            leader_result: Mutex::default(),
        });
        shard
            .fetches
            .entry(key.hash)
            .or_default()
            .push(Arc::clone(&fetch));
        FetchCompleter {
            fetches: Arc::clone(self),
            fetch,
            is_completed: false,
        }
    }

    /// Marks the running fetches for `key` as outdated: their responses are not stored.
    pub(crate) fn mark_outdated(&self, key: &ObjectKey) {
        for fetch in self.shard(key).running(key) {
            if fetch.key.text == key.text {
                fetch.is_outdated.store(true, Relaxed);
            }
        }
    }

    /// Marks the fetches for all keys of a URL as outdated. Scans every fetch.
    pub(crate) fn mark_url_outdated(&self, url: &[u8]) {
        for shard in &self.shards {
            for fetch in shard.lock().fetches.values().flatten() {
                if fetch.key.text.split(|&byte| byte == 0).next() == Some(url) {
                    fetch.is_outdated.store(true, Relaxed);
                }
            }
        }
    }

    /// Records at `now` that responses for `key` are not stored.
    pub(crate) fn mark_uncacheable(&self, key: &ObjectKey, now: Instant) {
        let mut shard = self.shard(key);
        if shard.uncacheable.len() >= MAX_UNCACHEABLE_KEYS {
            shard.uncacheable.retain(|_, until| *until > now);
        }
        if shard.uncacheable.len() < MAX_UNCACHEABLE_KEYS {
            (shard.uncacheable).insert(self.text_hash(key), now + UNCACHEABLE_TIME);
        }
    }

    /// Extends the mark of an uncacheable key after a failed request, which tells nothing new about
    /// the resource.
    pub(crate) fn renew_uncacheable(&self, key: &ObjectKey, now: Instant) {
        if let Some(until) = self.shard(key).uncacheable.get_mut(&self.text_hash(key)) {
            *until = now + UNCACHEABLE_TIME;
        }
    }

    pub(crate) fn clear_uncacheable(&self, key: &ObjectKey) {
        self.shard(key).uncacheable.remove(&self.text_hash(key));
    }

    /// Whether `key` was lately marked as uncacheable.
    pub(crate) fn is_uncacheable(&self, key: &ObjectKey, now: Instant) -> bool {
        let shard = self.shard(key);
        let until = shard.uncacheable.get(&self.text_hash(key));
        until.is_some_and(|until| *until > now)
    }

    fn text_hash(&self, key: &ObjectKey) -> u64 {
        self.secret.hash_one(&key.text)
    }

    fn new_waiter(self: &Arc<Self>, fetch: &Arc<CoalescedFetch>, is_leader: bool) -> FetchWaiter {
        fetch.waiter_count.fetch_add(1, Relaxed);
        FetchWaiter {
            fetches: Arc::clone(self),
            fetch: Arc::clone(fetch),
            is_leader,
        }
    }
}

impl FetchShard {
    fn running(&self, key: &ObjectKey) -> impl Iterator<Item = &Arc<CoalescedFetch>> {
        self.fetches.get(&key.hash).into_iter().flatten()
    }

    fn remove(&mut self, fetch: &Arc<CoalescedFetch>) {
        if let Some(running) = self.fetches.get_mut(&fetch.key.hash) {
            running.retain(|other| !Arc::ptr_eq(other, fetch));
            if running.is_empty() {
                self.fetches.remove(&fetch.key.hash);
            }
        }
    }
}

impl CoalescedFetch {
    /// Whether a request for this key and variant hint may wait for the fetch.
    fn matches(&self, key: &ObjectKey, hint: &[u8]) -> bool {
        self.mode != FetchMode::Exclusive && self.variant_hint == hint && self.key.text == key.text
    }
}

impl FetchWaiter {
    /// Waits until the fetch has completed; for another request's fetch only until `deadline`.
    /// Cancel safe.
    pub(crate) async fn wait(&self, deadline: Instant) -> Option<FetchOutcome> {
        let mut receiver = self.fetch.outcome.subscribe();
        let outcome = receiver.wait_for(Option::is_some);
        let outcome = match self.is_leader {
            true => outcome.await,
            false => clock::timeout_at(deadline, outcome).await?,
        };
        // The sender is in the fetch, which this waiter holds.
        let outcome = outcome.ok().and_then(|outcome| outcome.clone());
        Some(outcome.unwrap_or_else(FetchOutcome::lost))
    }

    pub(crate) fn take_leader_result(&self) -> Option<LeaderResult> {
        (self.is_leader).then(|| std::mem::take(&mut *self.fetch.leader_result.lock()))
    }
}

impl Drop for FetchWaiter {
    fn drop(&mut self) {
        // The lock keeps requests from joining between the last waiter's drop and its detection.
        let _shard = self.fetches.shard(&self.fetch.key);
        if self.fetch.waiter_count.fetch_sub(1, Relaxed) == 1 {
            self.fetch.last_waiter_left.notify_one();
        }
    }
}

impl FetchCompleter {
    /// Waits until no waiter is left, then removes the fetch from the table. Cancel safe.
    pub(crate) async fn wait_until_abandoned(&self) {
        if self.fetch.mode == FetchMode::Background {
            return std::future::pending().await;
        }
        loop {
            self.fetch.last_waiter_left.notified().await;
            let mut shard = self.fetches.shard(&self.fetch.key);
            if self.fetch.waiter_count.load(Relaxed) == 0 {
                return shard.remove(&self.fetch);
            }
        }
    }

    pub(crate) fn is_background(&self) -> bool {
        self.fetch.mode == FetchMode::Background
    }

    /// Lets no further request join. Every request that has joined did so before the events that
    /// follow this call.
    pub(crate) fn close_to_joiners(&self) {
        self.set_closed(true);
    }

    /// Prepares for a second request to the back end: clears the outdated mark and lets requests
    /// join again.
    pub(crate) fn prepare_retry(&self) {
        self.fetch.is_outdated.store(false, Relaxed);
        self.set_closed(false);
    }

    fn set_closed(&self, is_closed: bool) {
        let _shard = self.fetches.shard(&self.fetch.key);
        self.fetch.is_closed.store(is_closed, Relaxed);
    }

    /// Whether the response must not be stored.
    pub(crate) fn is_outdated(&self) -> bool {
        self.fetch.is_outdated.load(Relaxed)
    }

    /// Publishes the result to all waiters. A stored object must be in its store by now.
    pub(crate) fn complete(mut self, outcome: FetchOutcome, lead: LeaderResult) {
        self.complete_once(outcome, lead);
    }

    fn complete_once(&mut self, outcome: FetchOutcome, lead: LeaderResult) {
        self.is_completed = true;
        *self.fetch.leader_result.lock() = lead;
        self.fetches.shard(&self.fetch.key).remove(&self.fetch);
        self.fetch.outcome.send_replace(Some(outcome));
    }
}

impl Drop for FetchCompleter {
    fn drop(&mut self) {
        if !self.is_completed {
            self.complete_once(FetchOutcome::lost(), LeaderResult::default());
        }
    }
}

impl FetchOutcome {
    /// The task ended early, because the event loop stops.
    fn lost() -> Self {
        let cause = "the cache's request to the back end was aborted";
        Self::Failed(FaultKind::Internal, cause.to_owned())
    }
}

#[cfg(test)]
mod tests;
