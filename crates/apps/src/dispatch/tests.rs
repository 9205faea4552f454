//! The queue and its mailboxes: jobs, jobs given back, and the shared state of a worker's slots.

mod exact_slots;

use std::task::Context;

use super::*;

const LIMITS: QueueLimits = QueueLimits {
    max_len: 10,
    timeout: Duration::from_secs(10),
};
const SPEC: SlotSpec = SlotSpec {
    generation: 1,
    group: 0,
    loop_index: 0,
    request_capacity: 1,
};

fn job(name: &str) -> Job {
    Job {
        frame: name.as_bytes().to_vec(),
        body_file: None,
        upload: None,
        is_head: false,
        reply_sender: None,
        client: Arc::default(),
        websocket: None,
        upgrades: false,
        sendfile: None,
        affinity: None,
        response_timeout: None,
    }
}

/// The frames that a driver finds in its mailbox now.
fn taken(mailbox: &Mailbox) -> Vec<Vec<u8>> {
    let delivery = mailbox.poll_delivery(&mut Context::from_waker(Waker::noop()));
    let jobs = delivery.map(|delivery| delivery.jobs).unwrap_or_default();
    jobs.into_iter().map(|start| start.job.frame).collect()
}

#[test]
fn a_driver_that_ends_late_does_not_take_away_the_mailbox_of_its_successor() {
    let (now, dispatch) = (Instant::now(), AppDispatcher::new(LIMITS));
    let (old, old_mailbox) = dispatch.add_slot(now, SPEC, &Arc::default());
    dispatch.retire_slot(old, &old_mailbox);
    let (new, new_mailbox) = dispatch.add_slot(now, SPEC, &Arc::default());
    assert_eq!(old.index(), new.index(), "an idle slot's index is free");
    dispatch.remove_slot(now, old, &old_mailbox, Vec::new());
    let placed = dispatch.submit(now, job("a"), 0);
    assert!(matches!(placed, SubmitOutcome::Started), "{placed:?}");
    assert_eq!(taken(&new_mailbox), [b"a"]);
}

#[test]
fn what_a_lost_slot_still_had_in_its_mailbox_goes_back_in_front() {
    let (now, dispatch) = (Instant::now(), AppDispatcher::new(LIMITS));
    let (old, old_mailbox) = dispatch.add_slot(now, SPEC, &Arc::default());
    for name in ["a", "b"] {
        let _ = dispatch.submit(now, job(name), 0);
    }
    dispatch.mark_slot_lost(old, &old_mailbox);
    dispatch.remove_slot(now, old, &old_mailbox, Vec::new());
    assert_eq!(dispatch.queue_usage(now).waiting, 2);
    let (new, new_mailbox) = dispatch.add_slot(now, SPEC, &Arc::default());
    assert_eq!(taken(&new_mailbox), [b"a"]);
    let mut next = VecDeque::new();
    dispatch.finish_and_take(now, new, 1, 1, &mut next);
    assert_eq!(next.len(), 1);
    assert_eq!(next[0].job.frame, b"b");
}

/// A worker with `plain` slots and `spare` ones.
fn worker(dispatch: &AppDispatcher, plain: usize, spare: usize) -> (Vec<SlotId>, Arc<WorkerStats>) {
    let stats = Arc::default();
    let now = Instant::now();
    let capacities = std::iter::repeat_n(1, plain).chain(std::iter::repeat_n(0, spare));
    let slots = capacities.map(|capacity| {
        let spec = SlotSpec {
            request_capacity: capacity,
            ..SPEC
        };
        dispatch.add_slot(now, spec, &stats).0
    });
    (slots.collect(), stats)
}

/// Ends the request of a slot; says whether another one came.
fn end(dispatch: &AppDispatcher, slot: SlotId) -> bool {
    let mut next = VecDeque::new();
    dispatch.finish_and_take(Instant::now(), slot, 1, 1, &mut next);
    !next.is_empty()
}

#[test]
fn a_spare_slot_takes_requests_while_another_one_waits_for_io() {
    let (now, dispatch) = (Instant::now(), AppDispatcher::new(LIMITS));
    let (slots, _) = worker(&dispatch, 1, 1);
    let (plain, spare) = (slots[0], slots[1]);
    for name in ["a", "b", "c"] {
        let _ = dispatch.submit(now, job(name), 0);
    }
    assert_eq!(
        (
            dispatch.queue_usage(now).waiting,
            dispatch.queue_usage(now).slots
        ),
        (2, 1)
    );
    assert!(
        dispatch.lend_spare_slot(now, plain),
        "b goes to the spare slot"
    );
    assert_eq!(
        (
            dispatch.queue_usage(now).waiting,
            dispatch.queue_usage(now).slots
        ),
        (1, 2)
    );
    assert!(!dispatch.lend_spare_slot(now, spare), "there is no other");
    // The first is done while the spare one is at work: it is the spare one now.
    dispatch.park_slot(now, plain);
    assert!(!end(&dispatch, plain), "c waits for the other");
    assert_eq!(
        (
            dispatch.queue_usage(now).waiting,
            dispatch.queue_usage(now).slots
        ),
        (1, 1)
    );
    assert!(end(&dispatch, spare), "which takes it");
    assert!(
        dispatch.lend_spare_slot(now, spare),
        "and may lend the first one"
    );
    dispatch.park_slot(now, spare);
    assert!(!end(&dispatch, spare));
    let placed = dispatch.submit(now, job("d"), 0);
    assert!(matches!(placed, SubmitOutcome::Started), "{placed:?}");
    let placed = dispatch.submit(now, job("e"), 0);
    assert!(
        matches!(placed, SubmitOutcome::Waiting { .. }),
        "one at a time"
    );
}

#[test]
fn slots_that_are_held_back_take_requests_when_more_are_wanted() {
    let (now, dispatch) = (Instant::now(), AppDispatcher::new(LIMITS));
    let stats = Arc::new(WorkerStats::with_standby_slots(2));
    // One that takes requests, two that are held back, one for I/O.
    let slots: Vec<_> = [1, 0, 0, 0]
        .into_iter()
        .map(|capacity| {
            let spec = SlotSpec {
                request_capacity: capacity,
                ..SPEC
            };
            dispatch.add_slot(now, spec, &stats)
        })
        .collect();
    let numbers = || {
        let usage = dispatch.queue_usage(now);
        (usage.waiting, usage.in_progress, usage.slots)
    };
    for name in ["a", "b", "c", "d", "e"] {
        let _ = dispatch.submit(now, job(name), 0);
    }
    assert_eq!(numbers(), (4, 1, 1));
    dispatch.reserve_slots(now, &stats, 1);
    assert_eq!(numbers(), (3, 2, 2));
    dispatch.reserve_slots(now, &stats, 0);
    assert_eq!(numbers(), (2, 3, 3));
    assert!(
        dispatch.lend_spare_slot(now, slots[0].0),
        "that for I/O is another one"
    );
    assert_eq!(numbers(), (1, 4, 4));
    assert!(
        !dispatch.lend_spare_slot(now, slots[1].0),
        "and the only one"
    );
    dispatch.park_slot(now, slots[0].0);
    assert!(!end(&dispatch, slots[0].0), "it takes nothing now");
    assert_eq!(numbers(), (1, 3, 3));
    // All are at work: it takes effect as they end.
    dispatch.reserve_slots(now, &stats, 2);
    assert_eq!(numbers(), (1, 3, 3));
    assert!(end(&dispatch, slots[1].0), "e");
    for (slot, _) in &slots[2..] {
        assert!(!end(&dispatch, *slot));
    }
    dispatch.reserve_slots(now, &stats, 2);
    assert_eq!(numbers(), (0, 1, 1));
    dispatch.reserve_slots(now, &stats, 2);
    assert!(!end(&dispatch, slots[1].0));
    assert_eq!(numbers(), (0, 0, 1));
    // One whose worker goes is left as it is.
    for (slot, mailbox) in &slots {
        dispatch.retire_slot(*slot, mailbox);
    }
    dispatch.reserve_slots(now, &stats, 0);
    let placed = dispatch.submit(now, job("f"), 0);
    assert!(
        matches!(placed, SubmitOutcome::Waiting { .. }),
        "{placed:?}"
    );
}

#[test]
fn a_collection_waits_until_nothing_is_to_do_and_others_have_room() {
    let (now, dispatch) = (Instant::now(), AppDispatcher::new(LIMITS));
    let (slots, stats) = worker(&dispatch, 2, 1);
    let (one, other) = (slots[0], slots[1]);
    let serve = |slot, count| (0..count).for_each(|_| assert!(!end(&dispatch, slot)));
    serve(one, 15);
    assert!(!dispatch.begin_gc(now, one), "too few requests");
    serve(one, 1);
    assert_eq!(stats.served_requests(), 16);
    for name in ["a", "b"] {
        let _ = dispatch.submit(now, job(name), 0);
    }
    serve(one, 1);
    assert!(!dispatch.begin_gc(now, one), "the other thread is at work");
    let (peers, _) = worker(&dispatch, 1, 0);
    for name in ["c", "d"] {
        let _ = dispatch.submit(now, job(name), 0);
    }
    for slot in [one, other] {
        serve(slot, 1);
    }
    assert!(!dispatch.begin_gc(now, one), "nobody else has room");
    serve(peers[0], 1);
    assert!(dispatch.begin_gc(now, one));
    assert!(!dispatch.begin_gc(now, other), "once");
    dispatch.reserve_slots(now, &stats, 2);
    assert_eq!(stats.gc_claimed_slots(), 2, "its slots stay as they are");
    let placed = dispatch.submit(now, job("e"), 0);
    assert!(
        matches!(placed, SubmitOutcome::Started),
        "the other worker takes it"
    );
    let placed = dispatch.submit(now, job("f"), 0);
    assert!(
        matches!(placed, SubmitOutcome::Waiting { .. }),
        "no slot of this one does"
    );
    let before = dispatch.queue_usage(now);
    assert_eq!((before.waiting, before.in_progress), (1, 3));
    dispatch.end_gc(now, one, &mut VecDeque::new());
    let after = dispatch.queue_usage(now);
    assert_eq!((after.waiting, after.in_progress), (0, 2));
}

#[test]
fn a_worker_that_is_alone_collects_and_its_end_gives_the_slots_back() {
    let (now, dispatch) = (Instant::now(), AppDispatcher::new(LIMITS));
    let stats: Arc<WorkerStats> = Arc::default();
    let (one, mailbox) = dispatch.add_slot(now, SPEC, &stats);
    let (_, other) = dispatch.add_slot(now, SPEC, &stats);
    for _ in 0..16 {
        let _ = end(&dispatch, one);
    }
    assert!(dispatch.begin_gc(now, one));
    let _ = dispatch.submit(now, job("a"), 0);
    assert!(taken(&other).is_empty(), "it waits");
    dispatch.remove_slot(now, one, &mailbox, Vec::new());
    assert_eq!(taken(&other), [b"a"], "the driver that collected has ended");
}

#[test]
fn collections_take_a_fiftieth_of_the_time_at_most() {
    let (now, dispatch) = (Instant::now(), AppDispatcher::new(LIMITS));
    let (slots, _) = worker(&dispatch, 1, 0);
    let slot = slots[0];
    let serve = |count| (0..count).for_each(|_| assert!(!end(&dispatch, slot)));
    serve(16);
    assert!(dispatch.begin_gc(now, slot), "the first");
    let over = now + Duration::from_secs(2);
    dispatch.end_gc(over, slot, &mut VecDeque::new());
    // However many requests there are meanwhile.
    serve(5000);
    let early = over + Duration::from_millis(99_999);
    assert!(!dispatch.begin_gc(early, slot), "it took 2 s");
    assert!(dispatch.begin_gc(over + Duration::from_secs(100), slot));
}

#[test]
fn what_is_given_back_after_the_end_is_answered() {
    let (now, dispatch) = (Instant::now(), AppDispatcher::new(LIMITS));
    let (slot, mailbox) = dispatch.add_slot(now, SPEC, &Arc::default());
    let asked = |name: &str| {
        let (reply, answer) = oneshot::channel();
        let mut job = job(name);
        job.reply_sender = Some(reply);
        let _ = dispatch.submit(now, job, 0);
        answer
    };
    let (mut begun, mut waiting) = (asked("a"), asked("b"));
    assert_eq!(dispatch.close_queue().len(), 1, "the line is empty now");
    assert!(waiting.try_recv().is_err(), "its job went with the line");
    assert!(begun.try_recv().is_err(), "a driver may have it");
    dispatch.remove_slot(now, slot, &mailbox, Vec::new());
    let fault = begun.try_recv().expect("it is answered").unwrap_err();
    assert_eq!(fault.kind, FaultKind::Unavailable);
    let fault = asked("c").try_recv().expect("at once").unwrap_err();
    assert_eq!(fault.kind, FaultKind::Unavailable);
}

#[test]
fn the_executor_is_notified_when_a_worker_reaches_its_request_limit() {
    let dispatch = AppDispatcher::new(LIMITS);
    let (slots, stats) = worker(&dispatch, 1, 0);
    stats.notify_when_served(3);
    let is_called = || {
        let mut called = std::pin::pin!(dispatch.limit_reached.notified());
        let mut cx = Context::from_waker(Waker::noop());
        Future::poll(called.as_mut(), &mut cx).is_ready()
    };
    for expected in [false, false, true, false] {
        let _ = end(&dispatch, slots[0]);
        assert_eq!(is_called(), expected, "{}", stats.served_requests());
    }
}

#[test]
fn one_slow_request_ends_batches_for_long() {
    let pace = RecentLatency::default();
    let record = |count: u32, micros| {
        (0..count).for_each(|_| pace.record(Duration::from_micros(micros)));
    };
    record(1, 50);
    assert_eq!(pace.max_batch(), 1, "nothing is known");
    record(1000, 150);
    assert_eq!(pace.max_batch(), 4);
    record(1000, 25);
    assert_eq!(pace.max_batch(), 8, "as many as take 200 us together");
    record(1000, 1);
    assert_eq!(pace.max_batch(), MAX_BATCH_REQUESTS);
    record(1, 10_000);
    record(200, 1);
    assert_eq!(pace.max_batch(), 1);
}

/// A job of a client that belongs to this worker.
fn job_for(name: &str, token: Option<WorkerToken>) -> Job {
    let wanted = token.map_or(AffinityTarget::Any, AffinityTarget::Worker);
    Job {
        affinity: Some(Box::new(Affinity::for_test(wanted))),
        ..job(name)
    }
}

#[test]
fn a_job_waits_for_the_process_that_it_belongs_to_while_that_is_there() {
    let (now, dispatch) = (Instant::now(), AppDispatcher::new(LIMITS));
    let of = |group: u64| SlotSpec { group, ..SPEC };
    let ledgers = [Arc::default(), Arc::default()];
    // Two threads of one worker, one of another.
    let (one, one_mail) = dispatch.add_slot(now, of(1), &ledgers[0]);
    let (two, two_mail) = dispatch.add_slot(now, of(1), &ledgers[0]);
    let (three, three_mail) = dispatch.add_slot(now, of(2), &ledgers[1]);
    let token = Some(ledgers[0].token);
    for name in ["a", "b", "c", "d"] {
        let _ = dispatch.submit(now, job_for(name, token), 0);
    }
    let mut begun = [taken(&one_mail), taken(&two_mail)].concat();
    begun.sort();
    assert_eq!(begun, [b"a", b"b"]);
    assert_eq!(
        dispatch.queue_usage(now).waiting,
        2,
        "beside a free process"
    );
    // A request of no worker, or of one that has ended, does not wait.
    let _ = dispatch.submit(now, job_for("any", Some(WorkerToken::generate())), 0);
    assert_eq!(taken(&three_mail), [b"any"]);
    // Either thread takes the next, and the job names it.
    let mut got = VecDeque::new();
    dispatch.finish_and_take(now, two, 1, 1, &mut got);
    let start = got.pop_front().expect("the oldest");
    assert_eq!(start.job.frame, b"c");
    let affinity = start.job.affinity.expect("as it came");
    assert_eq!(affinity.served_by, token);
    // One thread goes, and the other still stands for the process.
    dispatch.retire_slot(one, &one_mail);
    let _ = dispatch.submit(now, job_for("e", token), 0);
    dispatch.finish_and_take(now, three, 1, 1, &mut got);
    assert!(got.is_empty(), "both wait for their own");
    // The process is replaced: they go anywhere, and later ones do not wait.
    dispatch.retire_slot(two, &two_mail);
    assert_eq!(taken(&three_mail), [b"d"]);
    dispatch.finish_and_take(now, three, 1, 1, &mut got);
    let start = got.pop_front().expect("the oldest");
    assert_eq!(start.job.frame, b"e");
    let affinity = start.job.affinity.expect("as it came");
    assert_eq!(affinity.served_by, Some(ledgers[1].token));
    dispatch.finish_and_take(now, three, 1, 1, &mut got);
    let _ = dispatch.submit(now, job_for("f", token), 0);
    assert_eq!(taken(&three_mail), [b"f"]);
}
