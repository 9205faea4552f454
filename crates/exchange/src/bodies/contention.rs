//! Responses that keep a worker, or a place at an upstream, because their clients take them slowly.
//!
//! A [`Producer`] is an application or an upstream. A spool that is full, and so makes its producer
//! wait, enters the producer's [`HeldPlaces`]. While requests wait for a place there, the spool may
//! use more of `limits.temp_bytes`. Where that has no room, and the client takes less than
//! `limits.min_busy_rate`, the response is cut and its place goes to the next request.
//!
//! # Invariants
//! - Without requests that wait, a response is never cut here.
//! - Only time spent waiting for the client counts, so a slow producer harms no client.
//! - No more responses are cut than requests wait; those of the client that holds the most go
//!   first.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use penstock_runtime::OncePerSecond;

use crate::AddressPrefix;

/// How often a spool that waits for its client asks what others need.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A request that has waited this long for a place is worth the end of a slow response. Less is a
/// queue that moves by itself.
const PATIENCE: Duration = Duration::from_secs(1);

/// Choices have this long between them, and a client is watched for this long at least.
const CHOICE_INTERVAL: Duration = Duration::from_millis(250);

/// How much faster than `limits.min_busy_rate` a client has to be that holds more than half of the
/// places: 1 MiB/s by default, so that holding them costs what they are worth.
const EXCESS_FACTOR: u64 = 16;

/// An application or an upstream: what has places that responses hold.
pub trait Producer: fmt::Debug + Send + Sync {
    /// The responses that hold its places.
    fn held_places(&self) -> &HeldPlaces;

    /// How many requests wait for its places.
    fn demand(&self, now: Instant) -> Demand;

    /// What the log calls it: `application shop`.
    fn label(&self) -> String;
}

/// What waits for a producer at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Demand {
    /// Requests that wait.
    pub waiting: usize,
    /// How long the oldest has waited.
    pub oldest_wait: Duration,
    /// How many requests may be in progress at once.
    pub places: usize,
}

/// The bound that responses are held against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BusyRate {
    /// Bytes a second (`limits.min_busy_rate`); 0 never ends a response.
    pub(super) min: u64,
    /// How much waiting for a client tells its rate (`limits.body_rate_grace`).
    pub(super) window: Duration,
}

/// The responses of one producer that wait for their clients.
#[derive(Debug, Default)]
pub struct HeldPlaces {
    /// Held for a look at all of them, at most.
    ledger: Mutex<Ledger>,
    logged: OncePerSecond,
}

#[derive(Debug, Default)]
struct Ledger {
    places: BTreeMap<u64, Held>,
    next_id: u64,
    chosen_at: Option<Instant>,
}

/// One response that waits, or has waited, for its client.
#[derive(Debug)]
struct Held {
    client: Option<AddressPrefix>,
    /// When it was last found waiting.
    seen_at: Instant,
    /// Waiting for the client in this window, and what the client had taken when it began.
    waited: Duration,
    taken_before: u64,
    /// Bytes a second in the last window that was whole.
    rate: Option<u64>,
    is_chosen: bool,
}

/// The entry of one response; its drop takes it out.
#[derive(Debug)]
pub(super) struct HeldPlace {
    producer: Arc<dyn Producer>,
    id: u64,
}

/// What a response that waits for its client has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nobody needs its place.
    Wait,
    /// Its spool may grow beyond `limits.response_spool`, so that the place is free sooner.
    Grow,
    /// Its place goes to the next request.
    Cut(String),
}

impl HeldPlace {
    /// Enters a response that begins to wait and of which its client has taken `taken` bytes.
    pub(super) fn enter(
        producer: &Arc<dyn Producer>,
        now: Instant,
        client: Option<AddressPrefix>,
        taken: u64,
    ) -> Self {
        let id = producer.held_places().lock().enter(now, client, taken);
        Self {
            producer: Arc::clone(producer),
            id,
        }
    }

    /// Notes `waited` more for the client, which has taken `taken` bytes in all, and decides.
    pub(super) fn judge(
        &self,
        now: Instant,
        (waited, taken): (Duration, u64),
        bound: BusyRate,
    ) -> Verdict {
        let demand = self.producer.demand(now);
        let places = self.producer.held_places();
        let mut ledger = places.lock();
        ledger.note(self.id, now, (waited, taken), bound.window);
        ledger.choose(now, demand, bound.min);
        let held = ledger.places.get(&self.id);
        let (client, rate) = match held {
            Some(held) if held.is_chosen => (held.client, held.rate.unwrap_or_default()),
            _ if demand.waiting > 0 => return Verdict::Grow,
            _ => return Verdict::Wait,
        };
        drop(ledger);
        let cause = format!(
            "limits.min_busy_rate: {} took {rate} bytes/s of a response that held one of {} places \
             while {} requests waited",
            client.map_or_else(|| "a client".to_owned(), |client| client.to_string()),
            demand.places,
            demand.waiting,
        );
        if let Some(count) = places.logged.count(now) {
            let label = self.producer.label();
            log::warn!("{label}: {count} responses were cut: {cause}");
        }
        Verdict::Cut(cause)
    }
}

impl Drop for HeldPlace {
    fn drop(&mut self) {
        self.producer.held_places().lock().places.remove(&self.id);
    }
}

impl HeldPlaces {
    /// How many responses there are that wait, or have waited, for their clients.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().places.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ledger {
    fn enter(&mut self, now: Instant, client: Option<AddressPrefix>, taken: u64) -> u64 {
        self.next_id += 1;
        let held = Held {
            client,
            seen_at: now,
            waited: Duration::ZERO,
            taken_before: taken,
            rate: None,
            is_chosen: false,
        };
        self.places.insert(self.next_id, held);
        self.next_id
    }

    fn note(&mut self, id: u64, now: Instant, (waited, taken): (Duration, u64), window: Duration) {
        let Some(held) = self.places.get_mut(&id) else {
            return;
        };
        held.seen_at = now;
        held.waited += waited;
        if held.waited >= window.max(CHOICE_INTERVAL) {
            let bytes = u128::from(taken.saturating_sub(held.taken_before));
            let rate = bytes * 1000 / held.waited.as_millis().max(1);
            held.rate = Some(u64::try_from(rate).unwrap_or(u64::MAX));
            (held.waited, held.taken_before) = (Duration::ZERO, taken);
        }
    }

    /// Chooses which responses give up their places: at most one for each request that waits.
    fn choose(&mut self, now: Instant, demand: Demand, min_rate: u64) {
        let is_due = |at| now.saturating_duration_since(at) >= CHOICE_INTERVAL;
        if min_rate == 0 || demand.oldest_wait < PATIENCE || !self.chosen_at.is_none_or(is_due) {
            return;
        }
        self.chosen_at = Some(now);
        let is_waiting = |held: &Held| {
            now.saturating_duration_since(held.seen_at) < 3 * CHECK_INTERVAL && !held.is_chosen
        };
        let chosen = self.places.values().filter(|held| held.is_chosen).count();
        let mut counts: HashMap<AddressPrefix, usize> = HashMap::new();
        for client in self
            .places
            .values()
            .filter(|held| !held.is_chosen)
            .filter_map(|it| it.client)
        {
            *counts.entry(client).or_default() += 1;
        }
        let mut candidates: Vec<_> = (self.places.iter_mut())
            .filter(|(_, held)| is_waiting(held))
            .filter_map(|(_, held)| Some((held.rate?, held)))
            .collect();
        candidates.sort_by_key(|(rate, _)| *rate);
        let share = (demand.places / 2).max(1);
        let mut victims = Vec::new();
        for (rate, held) in candidates {
            // What its client holds beyond its share, this one included.
            let count = held.client.and_then(|client| counts.get_mut(&client));
            let excess = count
                .as_ref()
                .map_or(0, |count| count.saturating_sub(share));
            let bound = match excess {
                0 => min_rate,
                _ => min_rate.saturating_mul(EXCESS_FACTOR),
            };
            if rate < bound {
                if let Some(count) = count {
                    *count -= 1;
                }
                victims.push((excess, held));
            }
        }
        // Stable: among equals the slowest stays first.
        victims.sort_by_key(|(excess, _)| std::cmp::Reverse(*excess));
        let most = demand.waiting.saturating_sub(chosen);
        for (_, held) in victims.into_iter().take(most) {
            held.is_chosen = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIN: u64 = 64 * KIB;
    const WINDOW: Duration = Duration::from_secs(10);

    fn client(number: u64) -> Option<AddressPrefix> {
        Some(AddressPrefix::from_bits(number))
    }

    fn demand(waiting: usize, places: usize) -> Demand {
        Demand {
            waiting,
            oldest_wait: PATIENCE,
            places,
        }
    }

    /// A ledger of responses whose clients took so many bytes a second over a whole window, and
    /// when that was.
    fn ledger(responses: &[(Option<AddressPrefix>, u64)]) -> (Ledger, Instant) {
        let (mut ledger, start) = (Ledger::default(), Instant::now());
        let now = start + WINDOW;
        for (client, rate) in responses {
            let id = ledger.enter(start, *client, 1000);
            ledger.note(id, now, (WINDOW, 1000 + rate * WINDOW.as_secs()), WINDOW);
            assert_eq!(ledger.places[&id].rate, Some(*rate));
        }
        (ledger, now)
    }

    fn chosen(ledger: &Ledger) -> Vec<u64> {
        let chosen = ledger.places.iter().filter(|(_, held)| held.is_chosen);
        chosen.map(|(id, _)| *id).collect()
    }

    #[track_caller]
    fn check(responses: &[(Option<AddressPrefix>, u64)], demand: Demand, expected: &[u64]) {
        let (mut ledger, now) = ledger(responses);
        ledger.choose(now, demand, MIN);
        assert_eq!(chosen(&ledger), expected);
    }

    #[test]
    fn nobody_is_chosen_while_nobody_waits_for_long() {
        let slow = [(client(1), 0), (client(2), 0)];
        check(&slow, demand(0, 2), &[]);
        let just_come = Demand {
            oldest_wait: PATIENCE / 2,
            ..demand(5, 2)
        };
        check(&slow, just_come, &[]);
        let (mut ledger, now) = ledger(&slow);
        ledger.choose(now, demand(2, 2), 0);
        assert_eq!(chosen(&ledger), [] as [u64; 0]);
    }

    #[test]
    fn the_slowest_go_one_for_each_request_that_waits() {
        let responses = [
            (client(1), MIN - 1),
            (client(2), 3 * KIB),
            (client(3), 600),
            (client(4), MIN),
        ];
        check(&responses, demand(1, 4), &[3]);
        check(&responses, demand(2, 4), &[2, 3]);
        check(&responses, demand(9, 4), &[1, 2, 3]);
    }

    #[test]
    fn a_client_with_more_than_half_of_the_places_has_to_be_faster() {
        let fast = MIN * EXCESS_FACTOR;
        let of = |rate| (client(1), rate);
        check(&[of(fast), of(fast), of(fast), of(fast)], demand(9, 4), &[]);
        check(
            &[of(fast - 1), of(MIN), of(MIN), of(fast)],
            demand(9, 4),
            &[2, 3],
        );
        // What is within its share goes by the usual bound.
        check(&[of(MIN), of(MIN)], demand(9, 4), &[]);
        check(&[of(MIN)], demand(9, 1), &[]);
        check(&[of(MIN - 1)], demand(9, 1), &[1]);
        // It gives up places before others do, slow as they may be.
        let all = [(client(2), 0), of(MIN), of(MIN), of(MIN)];
        check(&all, demand(1, 4), &[2]);
        check(&all, demand(2, 4), &[1, 2]);
        // Clients that nobody names are many.
        check(&[(None, MIN); 4], demand(9, 4), &[]);
    }

    #[test]
    fn those_that_were_chosen_count_until_they_are_gone() {
        let (mut ledger, now) = ledger(&[(client(1), 0), (client(2), 1), (client(3), 2)]);
        ledger.choose(now, demand(1, 3), MIN);
        let later = now + CHECK_INTERVAL;
        ledger.choose(later, demand(1, 3), MIN);
        assert_eq!(chosen(&ledger), [1]);
        ledger.places.remove(&1);
        ledger.choose(later + CHECK_INTERVAL, demand(1, 3), MIN);
        assert_eq!(chosen(&ledger), [2]);
    }

    #[test]
    fn only_waiting_for_the_client_counts() {
        let (mut ledger, start) = (Ledger::default(), Instant::now());
        let id = ledger.enter(start, client(1), 0);
        let mut now = start;
        for round in 1..100 {
            // Its producer is slow: it waited for the client for a tenth of the time.
            now += Duration::from_secs(1);
            ledger.note(
                id,
                now,
                (Duration::from_millis(100), round * 20 * KIB),
                WINDOW,
            );
        }
        ledger.choose(now, demand(1, 1), MIN);
        assert_eq!(chosen(&ledger), [] as [u64; 0]);
        ledger.note(
            id,
            now,
            (Duration::from_millis(100), 100 * 20 * KIB),
            WINDOW,
        );
        assert_eq!(ledger.places[&id].rate, Some(200 * KIB));
        // A rate of long ago tells nothing: it is not waiting now.
        ledger.places.get_mut(&id).unwrap().rate = Some(0);
        ledger.choose(now + 3 * CHECK_INTERVAL, demand(1, 1), MIN);
        assert_eq!(chosen(&ledger), [] as [u64; 0]);
    }
}
