//! The list against a plain vector, and connections of several loops by their marks.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::Wake;
use std::time::Duration;

use super::*;

/// A seeded sequence (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(number).unwrap() % bound
    }
}

/// What the list is compared with: connections by number, oldest first.
#[derive(Default)]
struct ModelList {
    idle: Vec<(u32, u32)>,
    closing: Vec<u32>,
}

#[test]
fn the_list_stays_in_order_under_any_operation() {
    for seed in 1..=300 {
        let mut random = Random(seed * 0x9e37_79b9);
        let (mut list, mut model) = (IdleList::default(), ModelList::default());
        let mut slots: Vec<(u32, IdleKey)> = Vec::new();
        for now in 1..=400_u32 {
            match random.below(5) {
                0 | 1 => {
                    slots.push((now, list.insert(now, now)));
                    model.idle.push((now, now));
                }
                2 if !slots.is_empty() => {
                    let at = random.below(slots.len());
                    let (number, slot) = slots[at];
                    let was_leaving = model.closing.contains(&number);
                    assert_eq!(list.remove(slot).is_none(), was_leaving, "seed {seed}");
                    slots[at].1 = list.insert(now, number);
                    model.closing.retain(|other| *other != number);
                    model.idle.retain(|(other, _)| *other != number);
                    model.idle.push((number, now));
                }
                3 if !slots.is_empty() => {
                    let (number, slot) = slots.swap_remove(random.below(slots.len()));
                    let was_leaving = model.closing.contains(&number);
                    let owner = (!was_leaving).then_some(number);
                    assert_eq!(list.remove(slot), owner, "seed {seed}");
                    model.closing.retain(|other| *other != number);
                    model.idle.retain(|(other, _)| *other != number);
                }
                _ => {
                    let oldest = model.idle.first().filter(|(_, since)| *since < now);
                    let expected = oldest.map(|(number, _)| *number);
                    assert_eq!(list.close_oldest(now), expected, "seed {seed}");
                    if let Some(number) = expected {
                        model.idle.remove(0);
                        model.closing.push(number);
                    }
                }
            }
            let oldest = model.idle.first().map(|(_, since)| *since);
            assert_eq!(list.oldest(), oldest, "seed {seed}");
            assert_eq!(list.by_age.len(), model.idle.len());
            for (number, slot) in &slots {
                let is_closing = !list.by_age.contains_key(slot);
                assert_eq!(is_closing, model.closing.contains(number));
            }
        }
    }
}

/// Whether a task was woken.
#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A connection and the mark that it was woken.
struct FakeConnection {
    entry: IdleEntry,
    flag: Arc<Flag>,
}

impl FakeConnection {
    fn new(waiting: &IdleConnections, shard: u16, now: Instant) -> Self {
        let mut fake = Self {
            entry: IdleEntry::new(waiting, now),
            flag: Arc::default(),
        };
        // As if its loop had this number.
        fake.entry.shard = shard;
        let waker = Waker::from(Arc::clone(&fake.flag));
        let shard = &waiting.shards[usize::from(shard)];
        let mut list = shard.lock();
        fake.entry.key = Some(list.insert(fake.entry.idle_since, waker));
        shard.publish(&list);
        drop(list);
        fake
    }

    fn is_woken(&self) -> bool {
        self.flag.0.load(Ordering::Relaxed)
    }

    /// Polls it as its task does when nothing has come; `true` if it is to close.
    fn poll(&mut self, waiting: &IdleConnections) -> bool {
        let waker = Waker::from(Arc::clone(&self.flag));
        waiting.mark_idle(&mut self.entry, &waker)
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn only_the_oldest_connection_of_all_loops_is_closed() {
    let now = Instant::now();
    let waiting = IdleConnections::new(3, now);
    let ages = [(0, 3), (2, 1), (1, 2), (2, 4)];
    let mut all: Vec<FakeConnection> = ages
        .map(|(shard, at)| FakeConnection::new(&waiting, shard, now + at * SECOND))
        .into();
    for (count, expected) in [1, 2, 0].into_iter().enumerate() {
        assert!(waiting.close_oldest(now + 4 * SECOND));
        assert!(all[expected].is_woken());
        assert!(all[expected].poll(&waiting), "it is to close");
        assert_eq!(waiting.closing(), count + 1);
    }
    // The last one came in this very tick.
    assert!(!waiting.close_oldest(now + 4 * SECOND));
    assert!(!all[3].is_woken() && !all[3].poll(&waiting));
    for fake in &mut all {
        waiting.remove(&mut fake.entry);
    }
    assert_eq!(waiting.closing(), 0);
    assert!(!waiting.close_oldest(now + 9 * SECOND));
}

#[test]
fn one_that_got_a_request_before_it_could_close_stays() {
    let now = Instant::now();
    let waiting = IdleConnections::new(1, now);
    let mut kept = FakeConnection::new(&waiting, 0, now);
    let mut busy = FakeConnection::new(&waiting, 0, now);
    assert!(waiting.close_oldest(now + SECOND) && waiting.close_oldest(now + SECOND));
    // Answered at once, or in the hands of a handler.
    kept.entry.record_activity(&waiting, now + SECOND);
    assert!(!kept.poll(&waiting));
    waiting.remove(&mut busy.entry);
    assert_eq!(waiting.closing(), 0);
    assert!(!kept.poll(&waiting), "nobody has asked it since");
    assert!(waiting.close_oldest(now + 2 * SECOND) && kept.poll(&waiting));
    assert!(
        !waiting.close_oldest(now + 2 * SECOND),
        "the busy one is not there"
    );
    busy.entry.record_activity(&waiting, now + 2 * SECOND);
    assert!(!busy.poll(&waiting));
    assert!(waiting.close_oldest(now + 3 * SECOND) && busy.poll(&waiting));
}

#[test]
fn activity_moves_a_connection_to_the_end_and_a_poll_does_not() {
    let now = Instant::now();
    let waiting = IdleConnections::new(1, now);
    let mut first = FakeConnection::new(&waiting, 0, now);
    let mut second = FakeConnection::new(&waiting, 0, now + SECOND);
    assert!(!first.poll(&waiting) && !second.poll(&waiting));
    first.entry.record_activity(&waiting, now + 2 * SECOND);
    assert!(!first.poll(&waiting));
    assert!(waiting.close_oldest(now + 3 * SECOND));
    assert!(second.poll(&waiting) && !first.poll(&waiting));
}
