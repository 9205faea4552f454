//! Requests to the back end that are under way, so that those who want the same wait instead of asking too.
//!
//! `handler` joins a flight or leads one; `fetch` lands it as soon as the head of the response says what
//! becomes of it. A landed flight is in nobody's way: who comes later finds the growing object in the
//! store. Keys that turned out not to be stored are remembered for a while ([`Flights::mark`]), and
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
use penstock_exchange::{Fault, FaultKind, Reply, Timing};
use penstock_http::Status;
use penstock_runtime::clock;
use tokio::sync::{Notify, watch};

use crate::store::{Growing, Hit, Key};

/// How long a key counts as not stored without another word of its back end. One request too many a minute
/// for each page is nothing; the first response that may be stored ends it at once.
const MARK_TIME: Duration = Duration::from_secs(60);

/// Keys remembered as not stored in each shard; more are not, and collapse for nothing.
const MARKS_MAX: usize = 2048;

const SHARDS: usize = 16;

/// All flights of one route.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    /// Tells texts apart whose public hash is the same: whoever chooses URLs can compute such ones.
    secret: RandomState,
    /// Held for a look-up only.
    shards: [Mutex<Shard>; SHARDS],
}

#[derive(Debug, Default)]
struct Shard {
    flights: HashMap<u128, Vec<Arc<Flight>>>,
    /// Until when responses for a key are known not to be stored, by the keyed hash of its text.
    marks: HashMap<u64, Instant>,
}

/// What has come of a flight, for all who wait for it.
#[derive(Debug, Clone)]
pub(crate) enum Outcome {
    /// The response is being stored; `whole` is its body, if it is here already.
    Stored {
        growing: Arc<Growing>,
        whole: Option<Bytes>,
    },
    /// What is stored is still current.
    Validated(Hit),
    /// The response is for the one who led.
    Refused {
        /// It says that the back end failed (RFC 5861 §4).
        is_error: bool,
    },
    /// It was not needed: what is wanted is in the store.
    Again,
    /// There is no response.
    Failed(FaultKind, String),
}

/// What the one who leads gets beside.
#[derive(Debug, Default)]
pub(crate) struct Lead {
    /// The response that is not stored, or the failure.
    pub(crate) reply: Option<Result<Reply, Fault>>,
    /// Where the time went, for one that is.
    pub(crate) timing: Timing,
    /// What the back end answered with.
    pub(crate) status: Option<Status>,
    /// Why it is not stored.
    pub(crate) detail: Option<&'static str>,
}

/// One request under way.
#[derive(Debug)]
struct Flight {
    key: Key,
    /// What is known of the fields that select the variant: nothing, or their values.
    guess: Vec<u8>,
    waiting: AtomicUsize,
    kind: Kind,
    began: Instant,
    /// What it brings must not be stored: somebody wrote to the resource meanwhile.
    is_outdated: AtomicBool,
    /// Nobody may join any more. Changed and read under the shard's lock.
    is_closed: AtomicBool,
    left: Notify,
    outcome: watch::Sender<Option<Outcome>>,
    lead: Mutex<Lead>,
}

/// Who may wait for a flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Whoever wants the same.
    Shared,
    /// Nobody but the one who began it.
    Alone,
    /// Whoever wants the same; but it goes on without anybody.
    Background,
}

/// A place among those who wait; its drop leaves.
#[derive(Debug)]
pub(crate) struct Ticket {
    flights: Arc<Flights>,
    flight: Arc<Flight>,
}

/// The end of a flight that is in the hands of whoever flies it.
#[derive(Debug)]
pub(crate) struct Landing {
    flights: Arc<Flights>,
    flight: Arc<Flight>,
    is_landed: bool,
}

/// What joining came to.
#[derive(Debug)]
pub(crate) enum Joined {
    /// There was none: the caller flies it.
    Leads(Ticket, Landing),
    /// Somebody else flies it.
    Waits(Ticket),
}

impl Flights {
    fn shard(&self, key: &Key) -> MutexGuard<'_, Shard> {
        #[expect(clippy::cast_possible_truncation, reason = "a few bits are wanted")]
        let index = (key.hash >> 64) as usize % SHARDS;
        let shard = self.shards[index].lock();
        shard.unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the flight for this key and guess, or begins it; with `since` only one that began since then.
    pub(crate) fn join(
        self: &Arc<Self>,
        key: &Key,
        guess: Vec<u8>,
        since: Option<Instant>,
    ) -> Joined {
        let mut shard = self.shard(key);
        let under_way = shard.flights.entry(key.hash).or_default();
        let is_same = |flight: &&Arc<Flight>| {
            let is_current = !flight.is_outdated.load(Ordering::Relaxed);
            let is_open = is_current && !flight.is_closed.load(Ordering::Relaxed);
            let is_new = since.is_none_or(|since| flight.began >= since);
            is_open && is_new && flight.is_for(key, &guess)
        };
        if let Some(flight) = under_way.iter().find(is_same) {
            return Joined::Waits(self.ticket(flight));
        }
        let flight = Arc::new(Flight::new(key.clone(), guess, Kind::Shared));
        under_way.push(Arc::clone(&flight));
        drop(shard);
        Joined::Leads(self.ticket(&flight), self.landing(flight))
    }

    /// Begins a flight that nobody waits for, if there is none for this key and guess.
    pub(crate) fn begin_background(self: &Arc<Self>, key: &Key, guess: Vec<u8>) -> Option<Landing> {
        let mut shard = self.shard(key);
        let under_way = shard.flights.entry(key.hash).or_default();
        if under_way.iter().any(|flight| flight.is_for(key, &guess)) {
            return None;
        }
        let flight = Arc::new(Flight::new(key.clone(), guess, Kind::Background));
        under_way.push(Arc::clone(&flight));
        drop(shard);
        Some(self.landing(flight))
    }

    /// Begins a flight that nobody can join.
    pub(crate) fn begin_alone(self: &Arc<Self>, key: &Key) -> (Ticket, Landing) {
        let flight = Arc::new(Flight::new(key.clone(), Vec::new(), Kind::Alone));
        let ticket = self.ticket(&flight);
        let mut shard = self.shard(key);
        // In the table it can be outdated.
        let under_way = shard.flights.entry(key.hash).or_default();
        under_way.push(Arc::clone(&flight));
        drop(shard);
        (ticket, self.landing(flight))
    }

    /// What is under way for `key` must not be stored any more.
    pub(crate) fn outdate(&self, key: &Key) {
        for flight in self.shard(key).flights.get(&key.hash).into_iter().flatten() {
            if flight.key.text == key.text {
                flight.is_outdated.store(true, Ordering::Relaxed);
            }
        }
    }

    /// The same for all keys of a URL. Looks at every flight.
    pub(crate) fn outdate_url(&self, url: &[u8]) {
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for flight in shard.flights.values().flatten() {
                if flight.key.text.split(|&byte| byte == 0).next() == Some(url) {
                    flight.is_outdated.store(true, Ordering::Relaxed);
                }
            }
        }
    }

    /// Remembers at `now` that responses for `key` are not stored.
    pub(crate) fn mark(&self, key: &Key, now: Instant) {
        let mut shard = self.shard(key);
        if shard.marks.len() >= MARKS_MAX {
            shard.marks.retain(|_, until| *until > now);
        }
        if shard.marks.len() < MARKS_MAX {
            shard.marks.insert(self.text_hash(key), now + MARK_TIME);
        }
    }

    /// A failure says nothing of the resource: what was not stored before is not now, as far as is known.
    pub(crate) fn renew_mark(&self, key: &Key, now: Instant) {
        if let Some(until) = self.shard(key).marks.get_mut(&self.text_hash(key)) {
            *until = now + MARK_TIME;
        }
    }

    /// Forgets that.
    pub(crate) fn unmark(&self, key: &Key) {
        self.shard(key).marks.remove(&self.text_hash(key));
    }

    /// Whether responses for `key` were not stored lately.
    pub(crate) fn is_marked(&self, key: &Key, now: Instant) -> bool {
        let shard = self.shard(key);
        let until = shard.marks.get(&self.text_hash(key));
        until.is_some_and(|until| *until > now)
    }

    fn text_hash(&self, key: &Key) -> u64 {
        self.secret.hash_one(&key.text)
    }

    fn ticket(self: &Arc<Self>, flight: &Arc<Flight>) -> Ticket {
        flight.waiting.fetch_add(1, Ordering::Relaxed);
        Ticket {
            flights: Arc::clone(self),
            flight: Arc::clone(flight),
        }
    }

    fn landing(self: &Arc<Self>, flight: Arc<Flight>) -> Landing {
        Landing {
            flights: Arc::clone(self),
            flight,
            is_landed: false,
        }
    }

    fn remove(&self, flight: &Arc<Flight>) {
        let mut shard = self.shard(&flight.key);
        if let Some(under_way) = shard.flights.get_mut(&flight.key.hash) {
            under_way.retain(|other| !Arc::ptr_eq(other, flight));
            if under_way.is_empty() {
                shard.flights.remove(&flight.key.hash);
            }
        }
    }
}

impl Flight {
    fn new(key: Key, guess: Vec<u8>, kind: Kind) -> Self {
        Self {
            key,
            guess,
            waiting: AtomicUsize::new(0),
            kind,
            began: clock::now(),
            is_outdated: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            left: Notify::new(),
            outcome: watch::Sender::new(None),
            lead: Mutex::default(),
        }
    }

    /// Whether who wants that may wait for it.
    fn is_for(&self, key: &Key, guess: &[u8]) -> bool {
        self.kind != Kind::Alone && self.guess == guess && self.key.text == key.text
    }

    fn lead(&self) -> MutexGuard<'_, Lead> {
        self.lead.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ticket {
    /// Waits until the flight has landed. Cancel safe.
    pub(crate) async fn outcome(&self) -> Outcome {
        let mut outcome = self.flight.outcome.subscribe();
        let landed = outcome.wait_for(Option::is_some).await;
        // The sender is in the flight, which is held here.
        let landed = landed.ok().and_then(|landed| landed.clone());
        landed.unwrap_or_else(|| Outcome::Failed(FaultKind::House, LOST.to_owned()))
    }

    /// What is for the one who leads alone.
    pub(crate) fn take_lead(&self) -> Lead {
        std::mem::take(&mut self.flight.lead())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // Under the lock: nobody joins between the last one's leaving and its being noticed.
        let shard = self.flights.shard(&self.flight.key);
        if self.flight.waiting.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.flight.left.notify_one();
        }
        drop(shard);
    }
}

impl Landing {
    /// Waits until nobody waits, and takes the flight out of everybody's sight then. Cancel safe.
    pub(crate) async fn abandoned(&self) {
        if self.flight.kind == Kind::Background {
            return std::future::pending().await;
        }
        loop {
            self.flight.left.notified().await;
            let mut shard = self.flights.shard(&self.flight.key);
            if self.flight.waiting.load(Ordering::Relaxed) == 0 {
                if let Some(under_way) = shard.flights.get_mut(&self.flight.key.hash) {
                    under_way.retain(|other| !Arc::ptr_eq(other, &self.flight));
                }
                return;
            }
        }
    }

    /// Whether nobody asked for it.
    pub(crate) fn is_background(&self) -> bool {
        self.flight.kind == Kind::Background
    }

    /// Lets nobody join from here on. Whoever has joined did so before anything that happens after it.
    pub(crate) fn close(&self) {
        self.set_closed(true);
    }

    /// Begins anew, with a question that is still to be asked: what happened so far does not count.
    pub(crate) fn renew(&self) {
        self.flight.is_outdated.store(false, Ordering::Relaxed);
        self.set_closed(false);
    }

    fn set_closed(&self, is_closed: bool) {
        let shard = self.flights.shard(&self.flight.key);
        self.flight.is_closed.store(is_closed, Ordering::Relaxed);
        drop(shard);
    }

    /// Whether what it brings must not be stored.
    pub(crate) fn is_outdated(&self) -> bool {
        self.flight.is_outdated.load(Ordering::Relaxed)
    }

    /// Tells all who wait what has come of it. What is stored must be in its store by now.
    pub(crate) fn land(mut self, outcome: Outcome, lead: Lead) {
        self.land_once(outcome, lead);
    }

    fn land_once(&mut self, outcome: Outcome, lead: Lead) {
        self.is_landed = true;
        *self.flight.lead() = lead;
        self.flights.remove(&self.flight);
        self.flight.outcome.send_replace(Some(outcome));
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        if !self.is_landed {
            let lost = Outcome::Failed(FaultKind::House, LOST.to_owned());
            self.land_once(lost, Lead::default());
        }
    }
}

/// What is said when the task of a flight ended without a word: the loop stops.
const LOST: &str = "the cache's request to the back end was given up";

#[cfg(test)]
mod tests;
