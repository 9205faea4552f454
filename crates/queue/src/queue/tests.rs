//! One test per rule that a caller of the queue sees, so that a failure names the rule. Random
//! orders of operations are in `simulation.rs`.

use super::*;

struct TestQueue {
    queue: Queue<&'static str>,
    zero: Instant,
}

impl TestQueue {
    fn new(len_max: usize) -> Self {
        let timeout = Duration::from_secs(30);
        Self {
            queue: Queue::new(QueueLimits {
                max_len: len_max,
                timeout,
            }),
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

    fn start_from(&mut self, job: &'static str, preferred_loop: usize) -> SlotId {
        match self.queue.submit(self.zero, job, preferred_loop) {
            QueueOutcome::Dispatched(start) => start.slot_id,
            other => panic!("{job} should start, but: {other:?}"),
        }
    }

    fn wait(&mut self, seconds: u64, job: &'static str) -> (Ticket, usize) {
        match self.queue.submit(self.at(seconds), job, 0) {
            QueueOutcome::Queued { ticket, position } => (ticket, position),
            other => panic!("{job} should wait, but: {other:?}"),
        }
    }

    fn finish(&mut self, slot: SlotId) -> Option<&'static str> {
        self.queue
            .finish_request(self.at(9), slot)
            .map(|start| start.job)
    }

    /// Enqueues the job for one slot or for any.
    fn wait_for(&mut self, seconds: u64, job: &'static str, slot: Option<SlotId>) -> Ticket {
        match self.queue.enqueue(self.at(seconds), job, slot) {
            QueueOutcome::Queued { ticket, .. } => ticket,
            other => panic!("{job} should wait, but: {other:?}"),
        }
    }

    fn fill(&mut self, slots: &[SlotId]) {
        for slot in slots {
            assert!(self.queue.claim_slot(*slot));
        }
    }

    fn waiting(&mut self) -> Vec<&'static str> {
        self.queue.clear()
    }
}

fn spec(generation: u64, loop_index: usize, capacity: u32) -> SlotSpec {
    SlotSpec {
        generation,
        group: 0,
        loop_index,
        request_capacity: capacity,
    }
}

#[test]
fn starts_at_once_on_a_free_slot() {
    let (mut bed, slots) = TestQueue::with_slots(5, &[spec(1, 0, 1)]);
    let started = bed.queue.submit(bed.zero, "a", 0);
    let expected = DispatchedJob {
        slot_id: slots[0],
        job: "a",
        waited: Duration::ZERO,
        queue_position: 0,
        enqueued_at: bed.zero,
    };
    assert_eq!(started, QueueOutcome::Dispatched(expected));
    assert_eq!(
        (
            bed.queue.requests_in_progress(),
            bed.queue.free_request_capacity()
        ),
        (1, 0)
    );
}

#[test]
fn takes_out_the_waiters_that_match_and_leaves_the_others_in_order() {
    let (mut bed, slots) = TestQueue::with_slots(9, &[spec(1, 0, 1), spec(1, 0, 1)]);
    bed.fill(&slots);
    bed.wait(1, "a1");
    bed.wait_for(2, "b1", Some(slots[1]));
    bed.wait(3, "b2");
    bed.wait(4, "a2");
    let mut all: Vec<_> = bed.queue.waiting_jobs().copied().collect();
    all.sort_unstable();
    assert_eq!(all, ["a1", "a2", "b1", "b2"]);
    let mut taken = bed.queue.take_matching(|job| job.starts_with('b'));
    taken.sort_unstable();
    assert_eq!(taken, [("b1", bed.at(2)), ("b2", bed.at(3))]);
    assert_eq!(
        (bed.queue.len(), bed.queue.bound_job_count(slots[1])),
        (2, 0)
    );
    assert_eq!(bed.waiting(), ["a1", "a2"]);
}

#[test]
fn serves_waiters_in_order_of_arrival_and_says_how_long_they_waited() {
    let (mut bed, slots) = TestQueue::with_slots(5, &[spec(1, 0, 1)]);
    bed.start("a");
    assert_eq!(bed.wait(1, "b").1, 1);
    assert_eq!(bed.wait(2, "c").1, 2);
    for (at, job, waited, position) in [(5, "b", 4, 1), (9, "c", 7, 2)] {
        let start = bed.queue.finish_request(bed.at(at), slots[0]).unwrap();
        let waited = Duration::from_secs(waited);
        assert_eq!((start.job, start.waited), (job, waited), "{job}");
        assert_eq!(
            (start.slot_id, start.queue_position),
            (slots[0], position),
            "{job}"
        );
    }
    assert_eq!(bed.finish(slots[0]), None);
    assert_eq!(bed.queue.free_request_capacity(), 1);
}

#[test]
fn waits_without_slots_and_starts_with_the_first() {
    let mut bed = TestQueue::new(5);
    for (seconds, job) in [(0, "a"), (1, "b"), (2, "c")] {
        bed.wait(seconds, job);
    }
    let (slot, starts) = bed.queue.add_slot(bed.at(3), spec(1, 0, 2));
    let started: Vec<_> = starts.iter().map(|s| (s.slot_id, s.job)).collect();
    assert_eq!(started, [(slot, "a"), (slot, "b")]);
    assert_eq!(bed.waiting(), ["c"]);
}

#[test]
fn refuses_beyond_the_bound() {
    for (name, len_max) in [("no waiting at all", 0), ("one may wait", 1), ("two", 2)] {
        let (mut bed, _) = TestQueue::with_slots(len_max, &[spec(1, 0, 1)]);
        bed.start("running");
        for _ in 0..len_max {
            bed.wait(0, "waiting");
        }
        let refused = bed.queue.submit(bed.zero, "late", 0);
        assert_eq!(refused, QueueOutcome::Full("late"), "{name}");
        assert_eq!(bed.queue.len(), len_max, "{name}");
    }
}

#[test]
fn chooses_among_free_slots() {
    struct Row {
        name: &'static str,
        specs: &'static [(u64, usize, u32)],
        /// Number of requests that the first slot has in progress.
        busy: usize,
        preferred_loop: usize,
        chosen: usize,
    }
    let rows = [
        Row {
            name: "the newest generation before the own loop",
            specs: &[(1, 0, 1), (2, 1, 1)],
            busy: 0,
            preferred_loop: 0,
            chosen: 1,
        },
        Row {
            name: "the newest generation before the idler",
            specs: &[(2, 0, 2), (1, 0, 2)],
            busy: 1,
            preferred_loop: 0,
            chosen: 0,
        },
        Row {
            name: "the idler before the own loop",
            specs: &[(1, 0, 2), (1, 1, 2)],
            busy: 1,
            preferred_loop: 0,
            chosen: 1,
        },
        Row {
            name: "the own loop before the others",
            specs: &[(1, 0, 1), (1, 1, 1), (1, 2, 1)],
            busy: 0,
            preferred_loop: 1,
            chosen: 1,
        },
        Row {
            name: "a busy own slot does not hide a free foreign one",
            specs: &[(1, 0, 1), (1, 1, 1)],
            busy: 1,
            preferred_loop: 0,
            chosen: 1,
        },
    ];
    for row in rows {
        let specs: Vec<_> = row.specs.iter().map(|s| spec(s.0, s.1, s.2)).collect();
        let (mut bed, slots) = TestQueue::with_slots(0, &specs);
        for _ in 0..row.busy {
            assert_eq!(bed.start_from("first", 0), slots[0], "{}", row.name);
        }
        let chosen = bed.start_from("probe", row.preferred_loop);
        assert_eq!(chosen, slots[row.chosen], "{}", row.name);
    }
}

#[test]
fn prefers_the_warmest_slot_and_a_new_one_last() {
    let (mut bed, slots) = TestQueue::with_slots(0, &[spec(1, 0, 1), spec(1, 1, 1), spec(1, 2, 1)]);
    for preferred_loop in 0..3 {
        bed.start_from("warm up", preferred_loop);
    }
    for warm in [2, 0, 1] {
        assert_eq!(bed.finish(slots[warm]), None);
    }
    let cold = bed.add(spec(1, 3, 1));
    let order: Vec<_> = (0..4).map(|_| bed.start_from("probe", 9)).collect();
    assert_eq!(order, [slots[1], slots[0], slots[2], cold]);
}

/// Slots of one request on one loop, by the process that they belong to.
fn of_processes(processes: &[u64]) -> (TestQueue, Vec<SlotId>) {
    let of = |group: &u64| SlotSpec {
        group: *group,
        ..spec(1, 0, 1)
    };
    let specs: Vec<_> = processes.iter().map(of).collect();
    TestQueue::with_slots(9, &specs)
}

#[test]
fn no_process_gets_a_second_request_while_another_is_idle() {
    let (mut bed, slots) = of_processes(&[1, 1, 1, 2, 2, 3]);
    let started: Vec<_> = (0..6).map(|_| bed.start("a")).collect();
    let process = |slot: &SlotId| [1, 1, 1, 2, 2, 3][slot.index()];
    let order: Vec<_> = started.iter().map(process).collect();
    assert_eq!(order[..3], [1, 2, 3], "one each first");
    assert_eq!(order[3..5], [2, 1], "the last used of equals");
    assert_eq!(order[5], 1);
    // The first process has 3 in progress and the second none.
    for slot in [slots[0], slots[3], slots[4]] {
        assert_eq!(bed.finish(slot), None);
    }
    assert_eq!(bed.start("b"), slots[4]);
    assert_eq!(bed.start("c"), slots[3], "one beside two");
}

#[test]
fn what_retired_and_overbooked_slots_have_in_progress_counts_for_their_process() {
    let (mut bed, slots) = of_processes(&[1, 1, 2, 2]);
    assert!(bed.queue.claim_slot(slots[0]));
    assert!(!bed.queue.retire_slot(slots[0]), "it has one in progress");
    assert_eq!(bed.start("a"), slots[2]);
    assert!(bed.queue.claim_beyond_capacity(slots[2], 2));
    assert_eq!(bed.start("b"), slots[1], "one in progress, retired");
    assert_eq!(bed.finish(slots[2]), None);
    assert_eq!(bed.finish(slots[2]), None);
    bed.queue.remove_slot(slots[1]);
    let heir = bed.add(SlotSpec {
        group: 1,
        ..spec(1, 0, 1)
    });
    assert_eq!(bed.start("c"), slots[2], "the retired one still counts");
    assert_eq!(bed.finish(slots[0]), None, "now it is gone");
    assert_eq!(bed.start("d"), heir);
}

#[test]
fn slots_that_stand_alone_share_nothing() {
    let (mut bed, slots) = of_processes(&[0, 0, 7]);
    assert!(bed.queue.claim_slot(slots[0]));
    let order = [bed.start("a"), bed.start("b")];
    assert_eq!(order, [slots[1], slots[2]], "as they were added");
}

#[test]
fn a_process_of_many_slots_fills_its_idlest_slot_first() {
    let in_one = |loop_index| SlotSpec {
        group: 1,
        ..spec(1, loop_index, 3)
    };
    let (mut bed, slots) = TestQueue::with_slots(0, &[in_one(0), in_one(0), in_one(1)]);
    let started: Vec<_> = (0..4).map(|_| bed.start("a")).collect();
    for slot in &slots[..2] {
        let taken = started.iter().filter(|s| *s == slot).count();
        assert_eq!(taken, 2, "two each on the own loop");
    }
    assert_eq!(bed.start_from("b", 9), slots[2]);
}

#[test]
fn a_cancelled_job_never_starts() {
    let (mut bed, slots) = TestQueue::with_slots(3, &[spec(1, 0, 1)]);
    bed.start("a");
    let tickets = ["b", "c", "d"].map(|job| bed.wait(0, job).0);
    assert_eq!(bed.queue.cancel(tickets[1]), Some("c"));
    assert_eq!(bed.queue.cancel(tickets[1]), None, "only once");
    assert_eq!(bed.queue.len(), 2);
    assert_eq!(bed.wait(1, "e").1, 3, "its position is free again");
    assert_eq!(bed.finish(slots[0]), Some("b"));
    assert_eq!(bed.queue.cancel(tickets[0]), None, "it has started");
    assert_eq!(bed.waiting(), ["d", "e"]);
}

#[test]
fn a_stale_ticket_cancels_nothing() {
    let mut bed = TestQueue::new(1);
    let (old, _) = bed.wait(0, "a");
    assert_eq!(bed.queue.cancel(old), Some("a"));
    bed.wait(0, "b");
    assert_eq!(bed.queue.cancel(old), None);
    assert_eq!(bed.waiting(), ["b"]);
}

#[test]
fn a_stale_slot_id_changes_nothing() {
    let (mut bed, slots) = TestQueue::with_slots(1, &[spec(1, 0, 1)]);
    bed.start("a");
    bed.queue.remove_slot(slots[0]);
    let heir = bed.add(spec(2, 0, 1));
    assert_eq!(heir.index(), slots[0].index());
    bed.start("b");
    bed.wait(0, "c");
    assert_eq!(bed.finish(slots[0]), None);
    assert_eq!(
        bed.queue.dispatch_beyond_capacity(bed.zero, slots[0], 9),
        None
    );
    bed.queue.remove_slot(slots[0]);
    assert!(bed.queue.retire_slot(slots[0]), "it is gone");
    assert_eq!(bed.queue.slot_view(slots[0]), None);
    assert_eq!(bed.queue.slot_view(heir).unwrap().in_progress, 1);
}

#[test]
fn finishing_more_often_than_starting_frees_nothing() {
    let (mut bed, slots) = TestQueue::with_slots(1, &[spec(1, 0, 1)]);
    bed.start("a");
    for _ in 0..3 {
        assert_eq!(bed.finish(slots[0]), None);
    }
    assert_eq!(
        (
            bed.queue.requests_in_progress(),
            bed.queue.free_request_capacity()
        ),
        (0, 1)
    );
}

#[test]
fn expires_the_oldest_first() {
    let mut bed = TestQueue::new(5);
    let (first, _) = bed.wait(0, "a");
    bed.wait(10, "b");
    assert_eq!(bed.queue.pop_expired(bed.at(29)), None);
    let waited = Duration::from_secs(31);
    assert_eq!(bed.queue.pop_expired(bed.at(31)), Some(("a", waited)));
    assert_eq!(bed.queue.pop_expired(bed.at(39)), None);
    assert_eq!(bed.queue.cancel(first), None);
    assert_eq!(bed.waiting(), ["b"]);
}

#[test]
fn a_timeout_without_end_never_expires() {
    let mut bed = TestQueue::new(5);
    bed.queue.limits.timeout = Duration::MAX;
    bed.wait(0, "a");
    assert_eq!(bed.queue.pop_expired(bed.at(1_000_000)), None);
}

#[test]
fn a_clock_that_steps_back_gives_a_wait_of_zero() {
    let mut bed = TestQueue::new(5);
    bed.wait(10, "a");
    assert_eq!(bed.queue.oldest_wait(bed.at(3)), Some(Duration::ZERO));
    let (_, starts) = bed.queue.add_slot(bed.at(3), spec(1, 0, 1));
    assert_eq!(starts[0].waited, Duration::ZERO);
}

#[test]
fn a_clock_that_steps_back_loses_no_job() {
    let mut bed = TestQueue::new(5);
    let (late, _) = bed.wait(10, "b");
    let (early, _) = bed.wait(3, "a");
    bed.wait(10, "c");
    assert_eq!(bed.queue.cancel(late), Some("b"));
    assert_eq!(bed.queue.cancel(early), Some("a"));
    assert_eq!(bed.waiting(), ["c"]);
}

#[test]
fn dispatches_beyond_capacity_up_to_the_given_depth() {
    let (mut bed, slots) = TestQueue::with_slots(5, &[spec(1, 0, 1)]);
    bed.start("a");
    for job in ["b", "c", "d"] {
        bed.wait(1, job);
    }
    let mut extend = |max| {
        bed.queue
            .dispatch_beyond_capacity(bed.zero, slots[0], max)
            .map(|s| s.job)
    };
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
fn does_not_dispatch_beyond_capacity_without_waiters_or_to_a_retired_slot() {
    let (mut bed, slots) = TestQueue::with_slots(5, &[spec(1, 0, 1)]);
    assert_eq!(
        bed.queue.dispatch_beyond_capacity(bed.zero, slots[0], 4),
        None,
        "idle"
    );
    bed.start("a");
    assert_eq!(
        bed.queue.dispatch_beyond_capacity(bed.zero, slots[0], 4),
        None,
        "no job waits"
    );
    bed.wait(0, "b");
    assert!(!bed.queue.retire_slot(slots[0]));
    assert_eq!(
        bed.queue.dispatch_beyond_capacity(bed.zero, slots[0], 4),
        None,
        "retired"
    );
}

#[test]
fn a_retired_slot_takes_no_job_and_ends_with_its_last_request() {
    let (mut bed, slots) = TestQueue::with_slots(5, &[spec(1, 0, 2), spec(1, 0, 1)]);
    assert!(bed.queue.retire_slot(slots[1]), "idle: gone at once");
    bed.start("a");
    bed.start("b");
    bed.wait(0, "c");
    assert!(!bed.queue.retire_slot(slots[0]));
    assert_eq!(
        (
            bed.queue.request_capacity(),
            bed.queue.requests_in_progress()
        ),
        (0, 2)
    );
    assert_eq!(bed.finish(slots[0]), None);
    assert!(bed.queue.slot_view(slots[0]).unwrap().is_retired);
    assert_eq!(bed.finish(slots[0]), None);
    assert_eq!(bed.queue.slot_view(slots[0]), None);
    assert_eq!(bed.waiting(), ["c"]);
}

#[test]
fn a_dead_slot_takes_its_requests_out_of_the_count() {
    let (mut bed, slots) = TestQueue::with_slots(5, &[spec(1, 0, 2), spec(1, 0, 2)]);
    bed.start("a");
    bed.start("b");
    bed.queue.remove_slot(slots[0]);
    assert_eq!(
        (
            bed.queue.request_capacity(),
            bed.queue.requests_in_progress()
        ),
        (2, 1)
    );
    assert_eq!(bed.queue.free_request_capacity(), 1);
    assert_eq!(bed.finish(slots[0]), None, "a late finish is ignored");
    assert_eq!(bed.queue.requests_in_progress(), 1);
}

#[test]
fn requeued_jobs_go_first_by_age_and_do_not_count_against_the_bound() {
    let mut bed = TestQueue::new(1);
    bed.wait(8, "waiting");
    let mut give_back = |job, seconds| {
        let at = bed.zero + Duration::from_secs(seconds);
        match bed.queue.requeue(bed.zero, job, at) {
            QueueOutcome::Queued { position, .. } => position,
            other => panic!("{job} should wait, but: {other:?}"),
        }
    };
    let positions = [give_back("c", 3), give_back("a", 1), give_back("b", 2)];
    assert_eq!(positions, [1, 1, 2]);
    let full = bed.queue.submit(bed.zero, "late", 0);
    assert_eq!(full, QueueOutcome::Full("late"));
    assert_eq!(bed.waiting(), ["a", "b", "c", "waiting"]);
}

#[test]
fn a_requeued_job_starts_at_once_on_a_free_slot() {
    let (mut bed, slots) = TestQueue::with_slots(1, &[spec(1, 0, 1)]);
    match bed.queue.requeue(bed.at(7), "a", bed.at(2)) {
        QueueOutcome::Dispatched(start) => {
            assert_eq!(start.slot_id, slots[0]);
            assert_eq!(start.waited, Duration::from_secs(5));
            assert_eq!(start.enqueued_at, bed.at(2));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn memory_follows_the_longest_queue() {
    let (mut bed, slots) = TestQueue::with_slots(4, &[spec(1, 0, 1)]);
    bed.start("a");
    for _ in 0..1000 {
        bed.wait(0, "b");
        let (ticket, _) = bed.wait(0, "c");
        bed.queue.cancel(ticket);
        assert!(bed.queue.wait_list.entry_count() <= 2);
        bed.finish(slots[0]);
    }
    assert_eq!(bed.queue.wait_list.entry_count(), 0);
}

#[test]
fn jobs_that_left_in_the_middle_take_no_more_memory_than_those_that_wait() {
    let mut bed = TestQueue::new(1000);
    let tickets: Vec<_> = (0..100).map(|_| bed.wait(0, "a").0).collect();
    for ticket in &tickets[1..99] {
        assert_eq!(bed.queue.cancel(*ticket), Some("a"));
        assert!(bed.queue.wait_list.entry_count() <= 2 * bed.queue.len());
    }
    assert_eq!(bed.waiting().len(), 2);
}

fn jobs(starts: &[DispatchedJob<&'static str>]) -> Vec<&'static str> {
    starts.iter().map(|start| start.job).collect()
}

#[test]
fn claims_the_given_slot_up_to_its_capacity() {
    let (mut bed, slots) = TestQueue::with_slots(5, &[spec(1, 0, 2), spec(1, 0, 0), spec(1, 0, 1)]);
    let mut claims = |slot: usize| bed.queue.claim_slot(slots[slot]);
    assert_eq!([claims(0), claims(0), claims(0)], [true, true, false]);
    assert!(!claims(1), "a paused slot has no capacity");
    assert_eq!(
        (
            bed.queue.requests_in_progress(),
            bed.queue.free_request_capacity()
        ),
        (2, 1)
    );
    assert!(!bed.queue.retire_slot(slots[0]));
    assert_eq!(bed.finish(slots[0]), None);
    assert!(!bed.queue.claim_slot(slots[0]), "retired");
    bed.queue.remove_slot(slots[2]);
    assert!(!bed.queue.claim_slot(slots[2]), "gone");
}

#[test]
fn a_bound_job_starts_at_its_slot_and_nowhere_else() {
    let (mut bed, slots) = TestQueue::with_slots(5, &[spec(1, 0, 1), spec(1, 0, 1)]);
    bed.fill(&slots);
    bed.wait_for(1, "bound", Some(slots[0]));
    bed.wait_for(2, "free", None);
    assert_eq!(
        bed.finish(slots[1]),
        Some("free"),
        "past the older bound one"
    );
    assert_eq!(bed.finish(slots[1]), None, "which does not go there");
    assert_eq!(bed.queue.bound_job_count(slots[0]), 1);
    assert_eq!(bed.finish(slots[0]), Some("bound"));
}

#[test]
fn a_job_bound_to_one_of_a_process_slots_starts_at_any_of_them() {
    let of = |group: u64| SlotSpec {
        group,
        ..spec(1, 0, 1)
    };
    let (mut bed, slots) = TestQueue::with_slots(5, &[of(7), of(7), of(8)]);
    bed.fill(&slots[..1]);
    match bed.queue.enqueue(bed.zero, "at once", Some(slots[0])) {
        QueueOutcome::Dispatched(start) => assert_eq!(start.slot_id, slots[1]),
        other => panic!("the other thread is free, but: {other:?}"),
    }
    bed.fill(&slots[2..]);
    for (seconds, job) in (1..).zip(["1", "2", "3"]) {
        bed.wait_for(seconds, job, Some(slots[0]));
    }
    assert_eq!(bed.finish(slots[2]), None, "another process");
    assert_eq!(bed.finish(slots[1]), Some("1"));
    // The process continues with one thread; without any it binds no job.
    assert!(!bed.queue.retire_slot(slots[0]));
    assert_eq!(bed.queue.bound_job_count(slots[1]), 2);
    assert_eq!(bed.finish(slots[1]), Some("2"));
    bed.queue.remove_slot(slots[1]);
    assert_eq!(jobs(&bed.queue.dispatch_unbound(bed.zero)), ["3"]);
}

#[test]
fn of_bound_and_free_waiters_the_older_one_starts() {
    let orders = [
        ("bound first", [Some(0), None, Some(0)], ["1", "2", "3"]),
        ("free first", [None, Some(0), None], ["1", "2", "3"]),
        ("another's", [Some(1), None, Some(0)], ["2", "3", "-"]),
    ];
    for (name, bound_to, expected) in orders {
        let (mut bed, slots) = TestQueue::with_slots(5, &[spec(1, 0, 1), spec(1, 0, 1)]);
        bed.fill(&slots);
        for (seconds, (job, slot)) in (1..).zip(["1", "2", "3"].into_iter().zip(bound_to)) {
            bed.wait_for(seconds, job, slot.map(|slot: usize| slots[slot]));
        }
        let started = [0; 3].map(|_| bed.finish(slots[0]).unwrap_or("-"));
        assert_eq!(started, expected, "{name}");
    }
}

#[test]
fn does_not_wait_while_a_slot_is_free() {
    let (mut bed, slots) = TestQueue::with_slots(5, &[spec(1, 0, 1), spec(1, 0, 1)]);
    for (name, bound_to) in [("bound", Some(slots[1])), ("free", None)] {
        match bed.queue.enqueue(bed.zero, name, bound_to) {
            QueueOutcome::Dispatched(start) => assert_eq!(start.job, name),
            other => panic!("{name} should start, but: {other:?}"),
        }
    }
    assert_eq!(bed.queue.slot_view(slots[1]).unwrap().in_progress, 1);
    assert_eq!(bed.queue.requests_in_progress(), 2);
}

#[test]
fn a_slot_that_is_retired_or_gone_binds_no_job() {
    let (mut bed, slots) = TestQueue::with_slots(5, &[spec(1, 0, 1), spec(1, 0, 1), spec(1, 0, 1)]);
    bed.fill(&slots);
    assert!(!bed.queue.retire_slot(slots[0]));
    bed.queue.remove_slot(slots[1]);
    bed.wait_for(1, "to the retired", Some(slots[0]));
    bed.wait_for(2, "to the gone", Some(slots[1]));
    assert_eq!(bed.finish(slots[2]), Some("to the retired"));
    assert_eq!(bed.finish(slots[2]), Some("to the gone"));
}

#[test]
fn the_bound_and_the_positions_count_all_waiters() {
    let (mut bed, slots) = TestQueue::with_slots(3, &[spec(1, 0, 1), spec(1, 0, 1)]);
    bed.fill(&slots);
    let ways = [Some(slots[0]), None, Some(slots[1])];
    for (expected, bound_to) in (1..).zip(ways) {
        match bed.queue.enqueue(bed.zero, "waits", bound_to) {
            QueueOutcome::Queued { position, .. } => assert_eq!(position, expected),
            other => panic!("{other:?}"),
        }
    }
    for bound_to in ways {
        let refused = bed.queue.enqueue(bed.zero, "late", bound_to);
        assert_eq!(refused, QueueOutcome::Full("late"));
    }
}

#[test]
fn bound_waiters_expire_cancel_and_clear_in_their_turn() {
    let (mut bed, slots) = TestQueue::with_slots(9, &[spec(1, 0, 1), spec(1, 0, 1)]);
    bed.fill(&slots);
    bed.wait_for(1, "a", Some(slots[0]));
    bed.wait_for(2, "b", None);
    let canceled = bed.wait_for(3, "c", Some(slots[1]));
    bed.wait_for(4, "d", Some(slots[1]));
    bed.wait_for(5, "e", None);
    assert_eq!(
        bed.queue.oldest_wait(bed.at(11)),
        Some(Duration::from_secs(10))
    );
    let mut expire = || bed.queue.pop_expired(bed.zero + Duration::from_secs(32));
    let expired = [expire(), expire(), expire()].map(|left| left.map(|(job, _)| job));
    assert_eq!(expired, [Some("a"), Some("b"), None]);
    assert_eq!(bed.queue.cancel(canceled), Some("c"));
    assert_eq!(bed.waiting(), ["d", "e"]);
    assert_eq!(bed.finish(slots[1]), None);
}

#[test]
fn unbound_waiters_are_ordered_by_age() {
    let (mut bed, slots) = TestQueue::with_slots(9, &[spec(1, 0, 1), spec(1, 0, 1)]);
    bed.fill(&slots);
    for (seconds, job, slot) in [
        (1, "a", Some(slots[0])),
        (2, "b", None),
        (3, "c", Some(slots[0])),
        (4, "d", Some(slots[1])),
        (5, "e", Some(slots[0])),
        (6, "f", None),
    ] {
        bed.wait_for(seconds, job, slot);
    }
    assert_eq!(bed.queue.unbind_and_dispatch(bed.at(7), slots[0]), []);
    assert_eq!(bed.queue.bound_job_count(slots[0]), 0);
    let order = [1, 1, 1, 1, 0, 0].map(|slot| bed.finish(slots[slot]).unwrap());
    assert_eq!(order, ["a", "b", "c", "d", "e", "f"]);
}

#[test]
fn unbinding_starts_waiters_where_there_is_room() {
    for (name, unbinds_first) in [("before the slot goes", true), ("after", false)] {
        let (mut bed, slots) = TestQueue::with_slots(9, &[spec(1, 0, 1), spec(1, 0, 2)]);
        bed.fill(&slots[..1]);
        for (seconds, job) in [(1, "a"), (2, "b"), (3, "c")] {
            bed.wait_for(seconds, job, Some(slots[0]));
        }
        if !unbinds_first {
            bed.queue.remove_slot(slots[0]);
            // Between the two calls a new job cannot overtake in any way.
            assert!(!bed.queue.claim_slot(slots[1]), "{name}");
            let late = bed.queue.submit(bed.at(4), "late", 0);
            assert!(
                matches!(late, QueueOutcome::Queued { position: 4, .. }),
                "{name}"
            );
        }
        let starts = bed.queue.unbind_and_dispatch(bed.at(5), slots[0]);
        assert_eq!(jobs(&starts), ["a", "b"], "{name}");
        assert!(
            starts.iter().all(|start| start.slot_id == slots[1]),
            "{name}"
        );
        assert_eq!(starts[0].waited, Duration::from_secs(4), "{name}");
        assert_eq!(bed.finish(slots[1]), Some("c"), "{name}");
    }
}

#[test]
fn a_paused_slot_finishes_what_it_has_and_resumes_with_the_oldest() {
    let (mut bed, slots) = TestQueue::with_slots(9, &[spec(1, 0, 2)]);
    bed.fill(&[slots[0], slots[0]]);
    assert_eq!(bed.queue.set_request_capacity(bed.zero, slots[0], 0), []);
    for (seconds, job) in [(1, "a"), (2, "b"), (3, "c")] {
        bed.wait(seconds, job);
    }
    assert_eq!([bed.finish(slots[0]), bed.finish(slots[0])], [None, None]);
    assert_eq!(
        (
            bed.queue.requests_in_progress(),
            bed.queue.free_request_capacity()
        ),
        (0, 0)
    );
    let starts = bed.queue.set_request_capacity(bed.at(9), slots[0], 2);
    assert_eq!(jobs(&starts), ["a", "b"]);
    assert_eq!(
        bed.queue.slot_view(slots[0]).unwrap().spec.request_capacity,
        2
    );
    assert_eq!(bed.queue.set_request_capacity(bed.at(9), slots[0], 1), []);
    assert_eq!(bed.finish(slots[0]), None, "one more than it may have now");
    assert_eq!(bed.finish(slots[0]), Some("c"));
}

#[test]
fn slots_without_a_limit_do_not_overflow_the_total_capacity() {
    let without_limit = [spec(1, 0, u32::MAX); 5];
    let (mut bed, slots) = TestQueue::with_slots(9, &without_limit);
    bed.fill(&slots);
    let each = usize::try_from(u32::MAX).unwrap();
    assert_eq!(bed.queue.free_request_capacity(), 5 * (each - 1));
    assert_eq!(bed.queue.set_request_capacity(bed.zero, slots[0], 1), []);
    assert!(bed.queue.retire_slot(slots[1]) || bed.finish(slots[1]).is_none());
    assert_eq!(bed.queue.free_request_capacity(), 3 * (each - 1));
    bed.queue.slot_table.check_invariants();
}

#[test]
fn a_requeued_job_waits_behind_an_older_bound_one() {
    let (mut bed, slots) = TestQueue::with_slots(9, &[spec(1, 0, 1), spec(1, 0, 1)]);
    bed.fill(&slots);
    bed.wait_for(1, "older", Some(slots[0]));
    bed.wait_for(6, "younger", Some(slots[0]));
    match bed.queue.requeue(bed.at(7), "returned", bed.at(5)) {
        QueueOutcome::Queued { position, .. } => assert_eq!(position, 2),
        other => panic!("{other:?}"),
    }
    let order = [0; 3].map(|_| bed.finish(slots[0]).unwrap());
    assert_eq!(order, ["older", "returned", "younger"]);
}
