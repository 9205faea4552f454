//! Responses that keep a worker, or a place at an upstream, because their clients take them slowly.
//!
//! A [`ResponseProducer`] is a worker of an application or a server of an upstream. A spool that is
//! full, and so makes its producer wait, registers with the producer's [`SlowResponses`]. While
//! requests wait for a place there, the spool may use more of `limits.temp_bytes`. Where that has
//! no room, and the client takes less than `limits.min_busy_rate`, the response is cut and its
//! place goes to the next request. The client is remembered: its next responses are judged after a
//! second, and while it holds places and other clients wait, its own waiting requests are refused.
//!
//! # Invariants
//! - Without requests that wait, a response is never cut here.
//! - Only time spent waiting for the client counts, so a slow producer harms no client.
//! - No more responses are cut than requests wait; those of the client that holds the most go
//!   first. A response that was cut counts until its place is free.
//! - The memory of slow clients is bounded, and forgotten after a minute.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use penstock_runtime::OncePerSecondThrottle;

use crate::AddressPrefix;

/// Interval at which a spool that waits for its client checks the demand.
pub(super) const DEMAND_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Wait of a request that justifies cutting a slow response. A queue with shorter waits moves by
/// itself.
const PATIENCE: Duration = Duration::from_secs(1);

/// Minimum time between two choices, and before a client is judged.
const CHOICE_INTERVAL: Duration = Duration::from_millis(250);

/// A response that was not judged for this long does not wait for its client now.
const LAST_SEEN: Duration = Duration::from_secs(3);

/// Factor on `limits.min_busy_rate` for a client that holds more than half of the places: 1 MiB/s
/// by default, so that holding them has a price.
const EXCESS_FACTOR: u64 = 16;

/// The required rate rises with each second that the oldest request has waited, up to this many
/// times `limits.min_busy_rate`.
const WAIT_FACTOR: u64 = 8;

/// Waiting requests of one client that count towards cutting responses.
const MAX_WAITERS_PER_CLIENT: usize = 4;

/// How long a client that lost a response is remembered.
const SLOW_MEMORY: Duration = Duration::from_secs(60);

/// How many such clients are remembered for one producer.
const MAX_SLOW_CLIENTS: usize = 1024;

/// The producer of a response (an application or upstream), with capacity that the response holds.
pub trait ResponseProducer: fmt::Debug + Send + Sync {
    /// The slow responses of the same application or upstream.
    fn slow_responses(&self) -> &SlowResponses;

    /// The demand for the capacity that the response holds; none if no waiting request would get
    /// it.
    fn capacity_demand(&self, now: Instant) -> CapacityDemand;

    /// The clients of the requests that wait, where they are known.
    fn waiting_clients(&self) -> Vec<Option<AddressPrefix>>;

    /// Answers the waiting requests of these clients with 503 for this cause.
    fn refuse_waiting(&self, clients: &[AddressPrefix], cause: &str);

    /// Its name in the log: `application shop`.
    fn label(&self) -> String;
}

/// The demand for a producer's capacity at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CapacityDemand {
    /// Requests that wait.
    pub waiting_requests: usize,
    /// How long the oldest has waited.
    pub oldest_wait: Duration,
    /// How many requests may be in progress at once.
    pub max_active_requests: usize,
    /// How long requests have waited that were sent to the same worker behind the response. Only
    /// its end lets them go on.
    pub pipelined_wait: Option<Duration>,
}

impl CapacityDemand {
    fn is_none(&self) -> bool {
        (self.waiting_requests == 0 || self.max_active_requests == 0)
            && self.pipelined_wait.is_none()
    }
}

/// The required rate of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BusyClientRate {
    /// Bytes a second (`limits.min_busy_rate`); 0 never ends a response.
    pub(super) min_bytes_per_second: u64,
    /// Time of waiting for a client after which its rate is known (`limits.body_rate_grace`).
    pub(super) window: Duration,
}

/// The responses of one producer that wait for their clients.
#[derive(Debug, Default)]
pub struct SlowResponses {
    /// Held for a look at all of them, at most.
    table: Mutex<ResponseTable>,
    logged: OncePerSecondThrottle,
}

#[derive(Debug, Default)]
struct ResponseTable {
    responses: BTreeMap<u64, SlowResponse>,
    next_id: u64,
    chosen_at: Option<Instant>,
    /// Clients that lost a response recently, and until when they are remembered.
    slow_clients: HashMap<AddressPrefix, Instant>,
}

/// One response that waits, or has waited, for its client.
#[derive(Debug)]
struct SlowResponse {
    client: Option<AddressPrefix>,
    /// The last time that it was found waiting.
    seen_at: Instant,
    /// In this window: the wait for the client, the bytes that it has taken, and those before it.
    waited: Duration,
    taken: u64,
    taken_before: u64,
    /// Bytes a second in the last complete window.
    last_rate: Option<u64>,
    /// Its client lost a response before: a second is enough to judge it.
    is_of_slow_client: bool,
    /// A waiting request would get its place.
    is_wanted: bool,
    state: SlowResponseState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SlowResponseState {
    Kept,
    /// It is to be cut when it is judged next.
    Chosen,
    /// It was cut; its producer has not stopped yet.
    Cut,
}

/// One response among them, until it is dropped.
#[derive(Debug)]
pub struct SlowResponseGuard {
    producer: Arc<dyn ResponseProducer>,
    id: u64,
}

/// What to do with a response that waits for its client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SlowResponseAction {
    /// No request needs its place.
    Wait,
    /// Its spool may grow beyond `limits.response_spool`, so that the place is free sooner.
    Grow,
    /// Its place goes to the next request.
    Cut(String),
}

impl SlowResponseGuard {
    /// Registers a response that begins to wait; its client has taken `taken` bytes.
    pub(super) fn register(
        producer: &Arc<dyn ResponseProducer>,
        now: Instant,
        client: Option<AddressPrefix>,
        taken: u64,
    ) -> Self {
        let id = producer
            .slow_responses()
            .lock()
            .register(now, client, taken);
        Self {
            producer: Arc::clone(producer),
            id,
        }
    }

    /// Adds `waited` to the wait for the client, which has taken `taken` bytes in all, and decides.
    pub(super) fn evaluate_wait(
        &self,
        now: Instant,
        (waited, taken): (Duration, u64),
        bound: BusyClientRate,
    ) -> SlowResponseAction {
        let demand = self.producer.capacity_demand(now);
        let slow_responses = self.producer.slow_responses();
        let is_due = {
            let mut table = slow_responses.lock();
            table.note(self.id, now, (waited, taken), bound.window);
            table.set_wanted(self.id, !demand.is_none());
            table.choose_alone(self.id, now, demand, bound.min_bytes_per_second);
            table.is_due(now, demand, bound.min_bytes_per_second)
        };
        if is_due {
            // Called outside of the table's lock: it takes the lock of the queue.
            let waiting = self.producer.waiting_clients();
            let refused =
                slow_responses
                    .lock()
                    .choose(now, demand, &waiting, bound.min_bytes_per_second);
            if !refused.is_empty() {
                let cause = "limits.min_busy_rate: the client was too slow for a response within \
                             the last minute, holds places still, and requests of others wait";
                self.producer.refuse_waiting(&refused, cause);
            }
        }
        let mut table = slow_responses.lock();
        let (client, rate) = match table.responses.get_mut(&self.id) {
            Some(response) if response.state == SlowResponseState::Chosen => {
                response.state = SlowResponseState::Cut;
                (response.client, response.rate().unwrap_or_default())
            }
            _ if demand.is_none() => return SlowResponseAction::Wait,
            _ => return SlowResponseAction::Grow,
        };
        drop(table);
        let cause = format!(
            "limits.min_busy_rate: {} took {rate} bytes/s of a response that held one of {} places \
             while {}",
            client.map_or_else(|| "a client".to_owned(), |client| client.to_string()),
            demand.max_active_requests,
            match demand.pipelined_wait {
                Some(_) => "others waited behind it".to_owned(),
                None => format!("{} requests waited", demand.waiting_requests),
            },
        );
        if let Some(count) = slow_responses.logged.count_event(now) {
            let label = self.producer.label();
            log::warn!("{label}: {count} responses were cut: {cause}");
        }
        SlowResponseAction::Cut(cause)
    }
}

impl Drop for SlowResponseGuard {
    fn drop(&mut self) {
        self.producer
            .slow_responses()
            .lock()
            .responses
            .remove(&self.id);
    }
}

impl SlowResponses {
    /// Returns the number of responses that wait, or have waited, for their clients.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().responses.len()
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, ResponseTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SlowResponse {
    /// Returns bytes a second once known: the rate of the last window or, if higher, of the current
    /// one.
    fn rate(&self) -> Option<u64> {
        let running = (self.waited >= DEMAND_CHECK_INTERVAL)
            .then(|| per_second(self.taken - self.taken_before, self.waited));
        match self.last_rate {
            Some(last) => Some(running.map_or(last, |running| running.max(last))),
            None if self.is_of_slow_client => running,
            None => None,
        }
    }

    fn is_seen(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.seen_at) < LAST_SEEN
    }
}

fn per_second(bytes: u64, time: Duration) -> u64 {
    let rate = u128::from(bytes) * 1000 / time.as_millis().max(1);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// Returns the rate that a client needs after a request has waited this long.
fn required_rate(min_rate: u64, waited: Duration) -> u64 {
    min_rate.saturating_mul(waited.as_secs().clamp(1, WAIT_FACTOR))
}

impl ResponseTable {
    fn register(&mut self, now: Instant, client: Option<AddressPrefix>, taken: u64) -> u64 {
        self.next_id += 1;
        let response = SlowResponse {
            client,
            seen_at: now,
            waited: Duration::ZERO,
            taken,
            taken_before: taken,
            last_rate: None,
            is_of_slow_client: client.is_some_and(|client| self.is_slow(client, now)),
            is_wanted: true,
            state: SlowResponseState::Kept,
        };
        self.responses.insert(self.next_id, response);
        self.next_id
    }

    fn is_slow(&self, client: AddressPrefix, now: Instant) -> bool {
        let until = self.slow_clients.get(&client);
        until.is_some_and(|until| *until > now)
    }

    fn remember(&mut self, client: AddressPrefix, now: Instant) {
        if self.slow_clients.len() >= MAX_SLOW_CLIENTS {
            self.slow_clients.retain(|_, until| *until > now);
        }
        let has_room = self.slow_clients.len() < MAX_SLOW_CLIENTS;
        if has_room || self.slow_clients.contains_key(&client) {
            self.slow_clients.insert(client, now + SLOW_MEMORY);
        }
    }

    fn note(&mut self, id: u64, now: Instant, (waited, taken): (Duration, u64), window: Duration) {
        let Some(response) = self.responses.get_mut(&id) else {
            return;
        };
        response.seen_at = now;
        response.waited += waited;
        response.taken = taken.max(response.taken);
        if response.waited >= window.max(CHOICE_INTERVAL) {
            let bytes = response.taken - response.taken_before;
            response.last_rate = Some(per_second(bytes, response.waited));
            (response.waited, response.taken_before) = (Duration::ZERO, response.taken);
        }
    }

    /// Sets whether a waiting request would get this place. If not, an earlier choice is void.
    fn set_wanted(&mut self, id: u64, is_wanted: bool) {
        if let Some(response) = self.responses.get_mut(&id) {
            response.is_wanted = is_wanted;
            if !is_wanted && response.state == SlowResponseState::Chosen {
                response.state = SlowResponseState::Kept;
            }
        }
    }

    /// Chooses this response for the requests behind it, if there are any and its client is slow.
    fn choose_alone(&mut self, id: u64, now: Instant, demand: CapacityDemand, min_rate: u64) {
        let Some(behind) = demand.pipelined_wait.filter(|behind| *behind >= PATIENCE) else {
            return;
        };
        let response = self.responses.get_mut(&id);
        if let Some(response) =
            response.filter(|response| response.state == SlowResponseState::Kept)
            && response
                .rate()
                .is_some_and(|rate| rate < required_rate(min_rate, behind))
        {
            response.state = SlowResponseState::Chosen;
            if let Some(client) = response.client {
                self.remember(client, now);
            }
        }
    }

    fn is_due(&self, now: Instant, demand: CapacityDemand, min_rate: u64) -> bool {
        let is_due = |at| now.saturating_duration_since(at) >= CHOICE_INTERVAL;
        min_rate > 0
            && demand.waiting_requests > 0
            && demand.max_active_requests > 0
            && demand.oldest_wait >= PATIENCE
            && self.chosen_at.is_none_or(is_due)
    }

    /// Chooses the responses that give up their places: at most one for each request that waits
    /// (`waiting` are their clients). Returns the clients to refuse waiting requests of.
    fn choose(
        &mut self,
        now: Instant,
        demand: CapacityDemand,
        waiting: &[Option<AddressPrefix>],
        min_rate: u64,
    ) -> Vec<AddressPrefix> {
        self.chosen_at = Some(now);
        let share = (demand.max_active_requests / 2).max(1);
        let required = required_rate(min_rate, demand.oldest_wait);
        let excess_required = min_rate.saturating_mul(EXCESS_FACTOR);
        let mut chosen = 0;
        let mut counts: HashMap<AddressPrefix, usize> = HashMap::new();
        for response in self.responses.values_mut() {
            if response.state == SlowResponseState::Chosen && !response.is_seen(now) {
                response.state = SlowResponseState::Kept;
            }
            match (response.state, response.client) {
                (SlowResponseState::Kept, Some(client)) => *counts.entry(client).or_default() += 1,
                (SlowResponseState::Kept, None) => {}
                (SlowResponseState::Chosen | SlowResponseState::Cut, _) => chosen += 1,
            }
        }
        let mut candidates: Vec<_> = (self.responses.iter_mut())
            .filter(|(_, response)| {
                response.state == SlowResponseState::Kept
                    && response.is_wanted
                    && response.is_seen(now)
            })
            .filter_map(|(_, response)| Some((response.rate()?, response)))
            .collect();
        candidates.sort_by_key(|(rate, _)| *rate);
        let mut victims = Vec::new();
        for (rate, response) in candidates {
            // The places of its client beyond its share, including this one.
            let count = response.client.and_then(|client| counts.get_mut(&client));
            let excess = count
                .as_ref()
                .map_or(0, |count| count.saturating_sub(share));
            let bound = match excess {
                0 => required,
                _ => excess_required,
            };
            if rate < bound {
                if let Some(count) = count {
                    *count -= 1;
                }
                victims.push((excess, response));
            }
        }
        // Stable: among equals the slowest stays first.
        victims.sort_by_key(|(excess, _)| std::cmp::Reverse(*excess));
        let most = count_waiters(waiting).saturating_sub(chosen);
        let mut cut = Vec::new();
        for (_, response) in victims.into_iter().take(most) {
            response.state = SlowResponseState::Chosen;
            cut.extend(response.client);
        }
        for client in cut {
            self.remember(client, now);
        }
        self.refused_clients(now, waiting, share)
    }

    /// The slow clients to refuse waiting requests of: they hold places, all such clients together
    /// at least `share`, and requests of others wait too.
    fn refused_clients(
        &self,
        now: Instant,
        waiting: &[Option<AddressPrefix>],
        share: usize,
    ) -> Vec<AddressPrefix> {
        let slow_client =
            |client: Option<AddressPrefix>| client.filter(|it| self.is_slow(*it, now));
        let clients = self.responses.values().map(|response| response.client);
        let holders: Vec<_> = clients.filter_map(slow_client).collect();
        let waits_other = waiting.iter().any(|it| slow_client(*it).is_none());
        if holders.len() < share || !waits_other {
            return Vec::new();
        }
        let mut refused: Vec<_> = (waiting.iter().flatten().copied())
            .filter(|client| holders.contains(client))
            .collect();
        refused.sort_unstable_by_key(|client| client.to_bits());
        refused.dedup();
        refused
    }
}

/// The number of waiting requests that count: a few of each client, and all of unknown clients.
fn count_waiters(waiting: &[Option<AddressPrefix>]) -> usize {
    let mut counts: HashMap<AddressPrefix, usize> = HashMap::new();
    let counted = waiting.iter().filter(|client| {
        client.is_none_or(|client| {
            let count = counts.entry(client).or_default();
            *count += 1;
            *count <= MAX_WAITERS_PER_CLIENT
        })
    });
    counted.count()
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

    fn demand(waiting: usize, places: usize) -> CapacityDemand {
        CapacityDemand {
            waiting_requests: waiting,
            oldest_wait: PATIENCE,
            max_active_requests: places,
            pipelined_wait: None,
        }
    }

    /// Waiting requests of unknown clients.
    fn unknown(count: usize) -> Vec<Option<AddressPrefix>> {
        vec![None; count]
    }

    /// Returns a table of responses to clients with these rates over a whole window, and its time.
    fn table(responses: &[(Option<AddressPrefix>, u64)]) -> (ResponseTable, Instant) {
        let (mut table, start) = (ResponseTable::default(), Instant::now());
        let now = start + WINDOW;
        for (client, rate) in responses {
            let id = table.register(start, *client, 1000);
            table.note(id, now, (WINDOW, 1000 + rate * WINDOW.as_secs()), WINDOW);
            assert_eq!(table.responses[&id].rate(), Some(*rate));
        }
        (table, now)
    }

    fn chosen(table: &ResponseTable) -> Vec<u64> {
        let chosen = table.responses.iter();
        let chosen = chosen.filter(|(_, response)| response.state == SlowResponseState::Chosen);
        chosen.map(|(id, _)| *id).collect()
    }

    #[track_caller]
    fn check(responses: &[(Option<AddressPrefix>, u64)], demand: CapacityDemand, expected: &[u64]) {
        let (mut table, now) = table(responses);
        if table.is_due(now, demand, MIN) {
            table.choose(now, demand, &unknown(demand.waiting_requests), MIN);
        }
        assert_eq!(chosen(&table), expected);
    }

    #[test]
    fn nobody_is_chosen_while_nobody_waits_for_long() {
        let slow = [(client(1), 0), (client(2), 0)];
        check(&slow, demand(0, 2), &[]);
        let just_come = CapacityDemand {
            oldest_wait: PATIENCE / 2,
            ..demand(5, 2)
        };
        check(&slow, just_come, &[]);
        let (table, now) = table(&slow);
        assert!(!table.is_due(now, demand(2, 2), 0));
        // Nor where no waiting request would get the places.
        check(&slow, demand(2, 0), &[]);
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
        // Within its share the usual bound applies.
        check(&[of(MIN), of(MIN)], demand(9, 4), &[]);
        check(&[of(MIN)], demand(9, 1), &[]);
        check(&[of(MIN - 1)], demand(9, 1), &[1]);
        // It gives up places before other clients do, however slow they are.
        let all = [(client(2), 0), of(MIN), of(MIN), of(MIN)];
        check(&all, demand(1, 4), &[2]);
        check(&all, demand(2, 4), &[1, 2]);
        // Responses to unknown clients may belong to many.
        check(&[(None, MIN); 4], demand(9, 4), &[]);
    }

    #[test]
    fn responses_that_were_chosen_count_until_their_places_are_free() {
        let (mut table, now) = table(&[(client(1), 0), (client(2), 1), (client(3), 2)]);
        table.choose(now, demand(1, 3), &unknown(1), MIN);
        table.responses.get_mut(&1).unwrap().state = SlowResponseState::Cut;
        // Its worker has not stopped yet, and the same request waits.
        let later = now + DEMAND_CHECK_INTERVAL;
        table.choose(later, demand(1, 3), &unknown(1), MIN);
        assert_eq!(chosen(&table), [] as [u64; 0]);
        table.responses.remove(&1);
        table.choose(
            later + DEMAND_CHECK_INTERVAL,
            demand(1, 3),
            &unknown(1),
            MIN,
        );
        assert_eq!(chosen(&table), [2]);
        // A chosen response that is not judged is kept, and another is chosen.
        table.responses.get_mut(&3).unwrap().seen_at = now + 2 * LAST_SEEN;
        table.choose(now + 2 * LAST_SEEN, demand(1, 3), &unknown(1), MIN);
        assert_eq!(chosen(&table), [3]);
    }

    #[test]
    fn a_choice_is_taken_back_when_nobody_wants_the_place_any_more() {
        let (mut table, now) = table(&[(client(1), 0), (client(2), 0)]);
        table.choose(now, demand(1, 2), &unknown(1), MIN);
        assert_eq!(chosen(&table), [1]);
        table.set_wanted(1, false);
        assert_eq!(chosen(&table), [] as [u64; 0]);
        // Its worker takes no more requests: the next is chosen.
        table.choose(now + DEMAND_CHECK_INTERVAL, demand(1, 2), &unknown(1), MIN);
        assert_eq!(chosen(&table), [2]);
    }

    #[test]
    fn a_client_that_lost_a_response_is_judged_after_a_second() {
        let (mut table, now) = table(&[(client(1), 0)]);
        table.choose(now, demand(1, 1), &unknown(1), MIN);
        table.responses.clear();
        let second = Duration::from_secs(1);
        for (who, rate, when, expected) in [
            (client(1), 0, now, true),
            (client(1), MIN * WAIT_FACTOR, now, false),
            (client(2), 0, now, false),
            (client(1), 0, now + 2 * SLOW_MEMORY, false),
        ] {
            let id = table.register(when, who, 7);
            assert_eq!(table.responses[&id].rate(), None);
            table.note(id, when + second, (second, 7 + rate), WINDOW);
            table.choose(when + second, demand(1, 1), &unknown(1), MIN);
            assert_eq!(chosen(&table) == [id], expected, "{who:?} {rate}");
            table.responses.clear();
        }
    }

    #[test]
    fn what_is_remembered_of_clients_is_bounded() {
        let (mut table, now) = (ResponseTable::default(), Instant::now());
        for number in 0..2 * MAX_SLOW_CLIENTS as u64 {
            table.remember(AddressPrefix::from_bits(number), now);
        }
        assert_eq!(table.slow_clients.len(), MAX_SLOW_CLIENTS);
        let later = now + SLOW_MEMORY;
        table.remember(AddressPrefix::from_bits(u64::MAX), later);
        assert_eq!(table.slow_clients.len(), 1);
    }

    #[test]
    fn waiting_requests_of_a_slow_client_are_refused_while_it_holds_half_of_the_places() {
        let (mut table, now) = table(&[
            (client(1), 0),
            (client(1), 0),
            (client(2), MIN),
            (client(2), MIN),
        ]);
        let others = [client(1), client(1), client(3), client(1)];
        let refused = table.choose(now, demand(4, 4), &others, MIN);
        assert_eq!(refused, [client(1).unwrap()]);
        assert_eq!(chosen(&table), [1, 2]);
        // No other client waits, or it holds less.
        let own = [client(1), client(1)];
        assert_eq!(table.choose(now, demand(2, 4), &own, MIN), []);
        table.responses.remove(&1);
        assert_eq!(table.choose(now, demand(4, 4), &others, MIN), []);
    }

    #[test]
    fn a_flood_of_one_client_costs_a_few_responses() {
        let mut waiting = vec![client(1); 100];
        assert_eq!(count_waiters(&waiting), MAX_WAITERS_PER_CLIENT);
        waiting.extend([client(2), None, None]);
        assert_eq!(count_waiters(&waiting), MAX_WAITERS_PER_CLIENT + 3);
    }

    #[test]
    fn the_required_rate_rises_while_a_request_waits() {
        let responses = [(client(1), MIN), (client(2), MIN * WAIT_FACTOR)];
        check(&responses, demand(2, 2), &[]);
        for (seconds, expected) in [(1, &[][..]), (2, &[1]), (100, &[1])] {
            let waiting = CapacityDemand {
                oldest_wait: Duration::from_secs(seconds),
                ..demand(2, 2)
            };
            check(&responses, waiting, expected);
        }
    }

    #[test]
    fn a_response_with_requests_behind_it_is_chosen_for_them() {
        let (mut table, now) = table(&[(client(1), 0), (client(2), MIN)]);
        let behind = |wait| CapacityDemand {
            pipelined_wait: Some(wait),
            ..CapacityDemand::default()
        };
        table.choose_alone(1, now, behind(PATIENCE / 2), MIN);
        table.choose_alone(2, now, behind(PATIENCE), MIN);
        table.choose_alone(1, now, behind(PATIENCE), 0);
        assert_eq!(chosen(&table), [] as [u64; 0]);
        table.choose_alone(1, now, behind(PATIENCE), MIN);
        assert_eq!(chosen(&table), [1]);
    }

    #[test]
    fn a_client_that_is_fast_now_is_not_cut_for_an_earlier_window() {
        let (mut table, now) = table(&[(client(1), 0)]);
        let second = Duration::from_secs(1);
        let fast = 1000 + WAIT_FACTOR * MIN;
        table.note(1, now + second, (second, fast), WINDOW);
        assert_eq!(table.responses[&1].rate(), Some(WAIT_FACTOR * MIN));
        table.choose(now + second, demand(1, 1), &unknown(1), MIN);
        assert_eq!(chosen(&table), [] as [u64; 0]);
    }

    #[test]
    fn only_waiting_for_the_client_counts() {
        let (mut table, start) = (ResponseTable::default(), Instant::now());
        let id = table.register(start, client(1), 0);
        let mut now = start;
        for round in 1..100 {
            // Its producer is slow: it waited for the client for a tenth of the time.
            now += Duration::from_secs(1);
            table.note(
                id,
                now,
                (Duration::from_millis(100), round * 20 * KIB),
                WINDOW,
            );
        }
        table.choose(now, demand(1, 1), &unknown(1), MIN);
        assert_eq!(chosen(&table), [] as [u64; 0]);
        table.note(
            id,
            now,
            (Duration::from_millis(100), 100 * 20 * KIB),
            WINDOW,
        );
        assert_eq!(table.responses[&id].rate(), Some(200 * KIB));
        // An old rate does not count: the response is not waiting now.
        table.responses.get_mut(&id).unwrap().last_rate = Some(0);
        table.choose(now + LAST_SEEN, demand(1, 1), &unknown(1), MIN);
        assert_eq!(chosen(&table), [] as [u64; 0]);
    }
}
