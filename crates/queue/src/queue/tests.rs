//! One sentence a test about what a caller of the queue sees. Random orders of operations are in
//! `simulation.rs`; here each rule stands alone, so that a failure names it.

use super::*;

struct Bed {
    queue: Queue<&'static str>,
    zero: Instant,
}

impl Bed {
    fn new(len_max: usize) -> Self {
        let timeout = Duration::from_secs(30);
        Self {
            queue: Queue::new(QueueLimits { len_max, timeout }),
            zero: Instant::now(),
        }
    }

    fn with_slots(len_max: usize, specs: &[SlotSpec]) -> (Self, Vec<SlotId>) {
        let mut bed = Self::new(len_max);
        let slots = specs.iter().map(|spec| bed.add(*spec)).collect();
        (bed, slots)
    }

    fn at(&self, seconds: u64) -> Instant {
        self.zero + Duration::from_secs(seconds)
    }

    fn add(&mut self, spec: SlotSpec) -> SlotId {
        let (slot, starts) = self.queue.add_slot(self.zero, spec);
        assert_eq!(starts, []);
        slot
    }

    fn start(&mut self, job: &'static str) -> SlotId {
        self.start_from(job, 0)
    }

    fn start_from(&mut self, job: &'static str, home: usize) -> SlotId {
        match self.queue.submit(self.zero, job, home) {
            Submitted::Start(start) => start.slot,
            other => panic!("{job} should start, but: {other:?}"),
        }
    }

    fn wait(&mut self, seconds: u64, job: &'static str) -> (Ticket, usize) {
        match self.queue.submit(self.at(seconds), job, 0) {
            Submitted::Waiting { ticket, position } => (ticket, position),
            other => panic!("{job} should wait, but: {other:?}"),
        }
    }

    fn finish(&mut self, slot: SlotId) -> Option<&'static str> {
        self.queue.finish(self.at(9), slot).map(|start| start.job)
    }

    fn waiting(&mut self) -> Vec<&'static str> {
        self.queue.clear()
    }
}

fn spec(generation: u64, home: usize, capacity: u32) -> SlotSpec {
    SlotSpec {
        generation,
        home,
        capacity,
    }
}

#[test]
fn starts_at_once_on_a_free_slot() {
    let (mut bed, slots) = Bed::with_slots(5, &[spec(1, 0, 1)]);
    let started = bed.queue.submit(bed.zero, "a", 0);
    let expected = Start {
        slot: slots[0],
        job: "a",
        waited: Duration::ZERO,
        position: 0,
        enqueued_at: bed.zero,
    };
    assert_eq!(started, Submitted::Start(expected));
    assert_eq!((bed.queue.in_progress(), bed.queue.free()), (1, 0));
}

#[test]
fn serves_waiters_in_order_of_arrival_and_says_how_long_they_waited() {
    let (mut bed, slots) = Bed::with_slots(5, &[spec(1, 0, 1)]);
    bed.start("a");
    assert_eq!(bed.wait(1, "b").1, 1);
    assert_eq!(bed.wait(2, "c").1, 2);
    for (at, job, waited, position) in [(5, "b", 4, 1), (9, "c", 7, 2)] {
        let start = bed.queue.finish(bed.at(at), slots[0]).unwrap();
        let waited = Duration::from_secs(waited);
        assert_eq!((start.job, start.waited), (job, waited), "{job}");
        assert_eq!((start.slot, start.position), (slots[0], position), "{job}");
    }
    assert_eq!(bed.finish(slots[0]), None);
    assert_eq!(bed.queue.free(), 1);
}

#[test]
fn waits_when_there_is_no_slot_yet_and_starts_with_the_first_one() {
    let mut bed = Bed::new(5);
    for (seconds, job) in [(0, "a"), (1, "b"), (2, "c")] {
        bed.wait(seconds, job);
    }
    let (slot, starts) = bed.queue.add_slot(bed.at(3), spec(1, 0, 2));
    let started: Vec<_> = starts.iter().map(|s| (s.slot, s.job)).collect();
    assert_eq!(started, [(slot, "a"), (slot, "b")]);
    assert_eq!(bed.waiting(), ["c"]);
}

#[test]
fn refuses_beyond_the_bound() {
    for (name, len_max) in [("no line at all", 0), ("one may wait", 1), ("two", 2)] {
        let (mut bed, _) = Bed::with_slots(len_max, &[spec(1, 0, 1)]);
        bed.start("running");
        for _ in 0..len_max {
            bed.wait(0, "waiting");
        }
        let refused = bed.queue.submit(bed.zero, "late", 0);
        assert_eq!(refused, Submitted::Full("late"), "{name}");
        assert_eq!(bed.queue.len(), len_max, "{name}");
    }
}

#[test]
fn chooses_among_free_slots() {
    struct Row {
        name: &'static str,
        specs: &'static [(u64, usize, u32)],
        /// How many requests the first slot has in hand.
        busy: usize,
        home: usize,
        chosen: usize,
    }
    let rows = [
        Row {
            name: "the newest generation before the own loop",
            specs: &[(1, 0, 1), (2, 1, 1)],
            busy: 0,
            home: 0,
            chosen: 1,
        },
        Row {
            name: "the newest generation before the idler",
            specs: &[(2, 0, 2), (1, 0, 2)],
            busy: 1,
            home: 0,
            chosen: 0,
        },
        Row {
            name: "the idler before the own loop",
            specs: &[(1, 0, 2), (1, 1, 2)],
            busy: 1,
            home: 0,
            chosen: 1,
        },
        Row {
            name: "the own loop before the others",
            specs: &[(1, 0, 1), (1, 1, 1), (1, 2, 1)],
            busy: 0,
            home: 1,
            chosen: 1,
        },
        Row {
            name: "a busy own slot does not hide a free foreign one",
            specs: &[(1, 0, 1), (1, 1, 1)],
            busy: 1,
            home: 0,
            chosen: 1,
        },
    ];
    for row in rows {
        let specs: Vec<_> = row.specs.iter().map(|s| spec(s.0, s.1, s.2)).collect();
        let (mut bed, slots) = Bed::with_slots(0, &specs);
        for _ in 0..row.busy {
            assert_eq!(bed.start_from("first", 0), slots[0], "{}", row.name);
        }
        let chosen = bed.start_from("probe", row.home);
        assert_eq!(chosen, slots[row.chosen], "{}", row.name);
    }
}

#[test]
fn prefers_the_warmest_slot_and_a_new_one_last() {
    let (mut bed, slots) = Bed::with_slots(0, &[spec(1, 0, 1), spec(1, 1, 1), spec(1, 2, 1)]);
    for home in 0..3 {
        bed.start_from("warm up", home);
    }
    for warm in [2, 0, 1] {
        assert_eq!(bed.finish(slots[warm]), None);
    }
    let cold = bed.add(spec(1, 3, 1));
    let order: Vec<_> = (0..4).map(|_| bed.start_from("probe", 9)).collect();
    assert_eq!(order, [slots[1], slots[0], slots[2], cold]);
}

#[test]
fn a_canceled_job_leaves_the_line_and_never_starts() {
    let (mut bed, slots) = Bed::with_slots(3, &[spec(1, 0, 1)]);
    bed.start("a");
    let tickets = ["b", "c", "d"].map(|job| bed.wait(0, job).0);
    assert_eq!(bed.queue.cancel(tickets[1]), Some("c"));
    assert_eq!(bed.queue.cancel(tickets[1]), None, "only once");
    assert_eq!(bed.queue.len(), 2);
    assert_eq!(bed.wait(1, "e").1, 3, "the place is free again");
    assert_eq!(bed.finish(slots[0]), Some("b"));
    assert_eq!(bed.queue.cancel(tickets[0]), None, "it has started");
    assert_eq!(bed.waiting(), ["d", "e"]);
}

#[test]
fn an_old_ticket_does_not_cancel_whoever_took_the_place() {
    let mut bed = Bed::new(1);
    let (old, _) = bed.wait(0, "a");
    assert_eq!(bed.queue.cancel(old), Some("a"));
    bed.wait(0, "b");
    assert_eq!(bed.queue.cancel(old), None);
    assert_eq!(bed.waiting(), ["b"]);
}

#[test]
fn an_old_slot_id_does_not_touch_whoever_took_the_place() {
    let (mut bed, slots) = Bed::with_slots(1, &[spec(1, 0, 1)]);
    bed.start("a");
    bed.queue.remove_slot(slots[0]);
    let heir = bed.add(spec(2, 0, 1));
    assert_eq!(heir.index(), slots[0].index());
    bed.start("b");
    bed.wait(0, "c");
    assert_eq!(bed.finish(slots[0]), None);
    assert_eq!(bed.queue.extend(bed.zero, slots[0], 9), None);
    bed.queue.remove_slot(slots[0]);
    assert!(bed.queue.retire_slot(slots[0]), "it is gone");
    assert_eq!(bed.queue.slot(slots[0]), None);
    assert_eq!(bed.queue.slot(heir).unwrap().in_progress, 1);
}

#[test]
fn finishing_more_often_than_starting_frees_nothing() {
    let (mut bed, slots) = Bed::with_slots(1, &[spec(1, 0, 1)]);
    bed.start("a");
    for _ in 0..3 {
        assert_eq!(bed.finish(slots[0]), None);
    }
    assert_eq!((bed.queue.in_progress(), bed.queue.free()), (0, 1));
}

#[test]
fn expires_the_oldest_first_and_says_when() {
    let mut bed = Bed::new(5);
    let (first, _) = bed.wait(0, "a");
    bed.wait(10, "b");
    assert_eq!(bed.queue.next_expiry(), Some(bed.at(30)));
    assert_eq!(bed.queue.expire(bed.at(29)), None);
    let waited = Duration::from_secs(31);
    assert_eq!(bed.queue.expire(bed.at(31)), Some((first, "a", waited)));
    assert_eq!(bed.queue.expire(bed.at(31)), None);
    assert_eq!(bed.queue.next_expiry(), Some(bed.at(40)));
    assert_eq!(bed.queue.cancel(first), None);
    assert_eq!(bed.waiting(), ["b"]);
    assert_eq!(bed.queue.next_expiry(), None);
}

#[test]
fn a_timeout_without_end_never_expires() {
    let mut bed = Bed::new(5);
    bed.queue.set_limits(QueueLimits {
        len_max: 5,
        timeout: Duration::MAX,
    });
    bed.wait(0, "a");
    assert_eq!(bed.queue.next_expiry(), None);
    assert_eq!(bed.queue.expire(bed.at(1_000_000)), None);
}

#[test]
fn a_clock_that_steps_back_gives_a_wait_of_zero() {
    let mut bed = Bed::new(5);
    bed.wait(10, "a");
    assert_eq!(bed.queue.oldest_wait(bed.at(3)), Some(Duration::ZERO));
    let (_, starts) = bed.queue.add_slot(bed.at(3), spec(1, 0, 1));
    assert_eq!(starts[0].waited, Duration::ZERO);
}

#[test]
fn shorter_limits_apply_to_newcomers_and_to_the_next_expiry() {
    let mut bed = Bed::new(2);
    bed.wait(0, "a");
    bed.wait(0, "b");
    let timeout = Duration::from_secs(5);
    let limits = QueueLimits {
        len_max: 1,
        timeout,
    };
    bed.queue.set_limits(limits);
    let late = bed.queue.submit(bed.zero, "c", 0);
    assert_eq!(late, Submitted::Full("c"));
    assert_eq!(bed.queue.len(), 2, "those who wait go on waiting");
    assert_eq!(bed.queue.next_expiry(), Some(bed.at(5)));
}

#[test]
fn extends_a_busy_slot_with_the_oldest_waiter_up_to_the_given_depth() {
    let (mut bed, slots) = Bed::with_slots(5, &[spec(1, 0, 1)]);
    bed.start("a");
    for job in ["b", "c", "d"] {
        bed.wait(1, job);
    }
    let mut extend = |max| bed.queue.extend(bed.zero, slots[0], max).map(|s| s.job);
    assert_eq!(extend(1), None, "no deeper than its capacity");
    assert_eq!(
        [extend(3), extend(3), extend(3)],
        [Some("b"), Some("c"), None]
    );
    assert_eq!(
        bed.finish(slots[0]),
        None,
        "three were in hand, two still are"
    );
    assert_eq!(bed.finish(slots[0]), None);
    assert_eq!(bed.finish(slots[0]), Some("d"));
}

#[test]
fn does_not_extend_a_slot_when_nobody_waits_or_it_is_retired() {
    let (mut bed, slots) = Bed::with_slots(5, &[spec(1, 0, 1)]);
    assert_eq!(bed.queue.extend(bed.zero, slots[0], 4), None, "idle");
    bed.start("a");
    assert_eq!(
        bed.queue.extend(bed.zero, slots[0], 4),
        None,
        "nobody waits"
    );
    bed.wait(0, "b");
    assert!(!bed.queue.retire_slot(slots[0]));
    assert_eq!(bed.queue.extend(bed.zero, slots[0], 4), None, "retired");
}

#[test]
fn a_retired_slot_takes_nobody_and_goes_with_its_last_request() {
    let (mut bed, slots) = Bed::with_slots(5, &[spec(1, 0, 2), spec(1, 0, 1)]);
    assert!(bed.queue.retire_slot(slots[1]), "idle: gone at once");
    bed.start("a");
    bed.start("b");
    bed.wait(0, "c");
    assert!(!bed.queue.retire_slot(slots[0]));
    assert_eq!((bed.queue.slots(), bed.queue.in_progress()), (0, 2));
    assert_eq!(bed.finish(slots[0]), None);
    assert!(bed.queue.slot(slots[0]).unwrap().is_retired);
    assert_eq!(bed.finish(slots[0]), None);
    assert_eq!(bed.queue.slot(slots[0]), None);
    assert_eq!(bed.waiting(), ["c"]);
}

#[test]
fn a_dead_slot_takes_its_requests_out_of_the_count() {
    let (mut bed, slots) = Bed::with_slots(5, &[spec(1, 0, 2), spec(1, 0, 2)]);
    bed.start("a");
    bed.start("b");
    bed.queue.remove_slot(slots[0]);
    assert_eq!((bed.queue.slots(), bed.queue.in_progress()), (1, 1));
    assert_eq!(bed.queue.free(), 1);
    assert_eq!(bed.finish(slots[0]), None, "a late finish is ignored");
    assert_eq!(bed.queue.in_progress(), 1);
}

#[test]
fn jobs_given_back_stand_in_front_by_age_and_do_not_count_against_the_bound() {
    let mut bed = Bed::new(1);
    bed.wait(8, "waiting");
    let mut give_back = |job, seconds| {
        let at = bed.zero + Duration::from_secs(seconds);
        match bed.queue.give_back(bed.zero, job, at) {
            Submitted::Waiting { position, .. } => position,
            other => panic!("{job} should wait, but: {other:?}"),
        }
    };
    let positions = [give_back("c", 3), give_back("a", 1), give_back("b", 2)];
    assert_eq!(positions, [1, 1, 2]);
    let full = bed.queue.submit(bed.zero, "late", 0);
    assert_eq!(full, Submitted::Full("late"));
    assert_eq!(bed.queue.next_expiry(), Some(bed.at(31)));
    assert_eq!(bed.waiting(), ["a", "b", "c", "waiting"]);
}

#[test]
fn a_job_given_back_starts_at_once_on_a_free_slot_with_its_whole_wait() {
    let (mut bed, slots) = Bed::with_slots(1, &[spec(1, 0, 1)]);
    match bed.queue.give_back(bed.at(7), "a", bed.at(2)) {
        Submitted::Start(start) => {
            assert_eq!(start.slot, slots[0]);
            assert_eq!(start.waited, Duration::from_secs(5));
            assert_eq!(start.enqueued_at, bed.at(2));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn memory_follows_the_longest_line_and_not_the_traffic() {
    let (mut bed, slots) = Bed::with_slots(4, &[spec(1, 0, 1)]);
    bed.start("a");
    for _ in 0..1000 {
        bed.wait(0, "b");
        let (ticket, _) = bed.wait(0, "c");
        bed.queue.cancel(ticket);
        bed.finish(slots[0]);
    }
    assert_eq!(bed.queue.line.entries(), 2);
}
