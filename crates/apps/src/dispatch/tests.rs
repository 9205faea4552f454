//! The queue and its mailboxes: who gets a job, who gets it back, and what a worker's slots share.

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
    capacity: 1,
};

pub(super) fn job(name: &str) -> Job {
    Job {
        frame: name.as_bytes().to_vec(),
        body_file: None,
        upload: None,
        is_head: false,
        reply: None,
        client: Arc::default(),
        websocket: None,
        upgrades: false,
        sendfile: None,
        affinity: None,
    }
}

/// The frames that a driver finds in its mailbox now.
fn taken(mailbox: &Mailbox) -> Vec<Vec<u8>> {
    let delivery = mailbox.poll_take(&mut Context::from_waker(Waker::noop()));
    let jobs = delivery.map(|delivery| delivery.jobs).unwrap_or_default();
    jobs.into_iter().map(|start| start.job.frame).collect()
}

#[test]
fn a_driver_that_ends_late_does_not_take_away_the_mailbox_of_its_successor() {
    let (now, dispatch) = (Instant::now(), Dispatch::new(LIMITS));
    let (old, old_mailbox) = dispatch.add_slot(now, SPEC, &Arc::default());
    dispatch.retire(old, &old_mailbox);
    let (new, new_mailbox) = dispatch.add_slot(now, SPEC, &Arc::default());
    assert_eq!(old.index(), new.index(), "an idle slot's index is free");
    dispatch.remove(now, old, &old_mailbox, Vec::new());
    let placed = dispatch.submit(now, job("a"), 0);
    assert!(matches!(placed, Placed::Started), "{placed:?}");
    assert_eq!(taken(&new_mailbox), [b"a"]);
}

#[test]
fn what_a_lost_slot_still_had_in_its_mailbox_goes_back_in_front() {
    let (now, dispatch) = (Instant::now(), Dispatch::new(LIMITS));
    let (old, old_mailbox) = dispatch.add_slot(now, SPEC, &Arc::default());
    for name in ["a", "b"] {
        let _ = dispatch.submit(now, job(name), 0);
    }
    dispatch.lose(old, &old_mailbox);
    dispatch.remove(now, old, &old_mailbox, Vec::new());
    assert_eq!(dispatch.usage(now).waiting, 2);
    let (new, new_mailbox) = dispatch.add_slot(now, SPEC, &Arc::default());
    assert_eq!(taken(&new_mailbox), [b"a"]);
    let mut next = VecDeque::new();
    dispatch.turn(now, new, 1, 1, &mut next);
    assert_eq!(next.len(), 1);
    assert_eq!(next[0].job.frame, b"b");
}

/// A worker with `plain` slots and `spare` ones.
fn worker(dispatch: &Dispatch, plain: usize, spare: usize) -> (Vec<SlotId>, Arc<Ledger>) {
    let ledger = Arc::default();
    let now = Instant::now();
    let capacities = std::iter::repeat_n(1, plain).chain(std::iter::repeat_n(0, spare));
    let slots = capacities.map(|capacity| {
        let spec = SlotSpec { capacity, ..SPEC };
        dispatch.add_slot(now, spec, &ledger).0
    });
    (slots.collect(), ledger)
}

/// Ends the request of a slot; says whether another one came.
fn end(dispatch: &Dispatch, slot: SlotId) -> bool {
    let mut next = VecDeque::new();
    dispatch.turn(Instant::now(), slot, 1, 1, &mut next);
    !next.is_empty()
}

#[test]
fn a_spare_slot_takes_requests_while_another_one_waits_for_io() {
    let (now, dispatch) = (Instant::now(), Dispatch::new(LIMITS));
    let (slots, _) = worker(&dispatch, 1, 1);
    let (plain, spare) = (slots[0], slots[1]);
    for name in ["a", "b", "c"] {
        let _ = dispatch.submit(now, job(name), 0);
    }
    assert_eq!(
        (dispatch.usage(now).waiting, dispatch.usage(now).slots),
        (2, 1)
    );
    assert!(dispatch.lend(now, plain), "b goes to the spare slot");
    assert_eq!(
        (dispatch.usage(now).waiting, dispatch.usage(now).slots),
        (1, 2)
    );
    assert!(!dispatch.lend(now, spare), "there is no other");
    // The first is done while the spare one is at work: it is the spare one now.
    dispatch.park(now, plain);
    assert!(!end(&dispatch, plain), "c waits for the other");
    assert_eq!(
        (dispatch.usage(now).waiting, dispatch.usage(now).slots),
        (1, 1)
    );
    assert!(end(&dispatch, spare), "which takes it");
    assert!(dispatch.lend(now, spare), "and may lend the first one");
    dispatch.park(now, spare);
    assert!(!end(&dispatch, spare));
    let placed = dispatch.submit(now, job("d"), 0);
    assert!(matches!(placed, Placed::Started), "{placed:?}");
    let placed = dispatch.submit(now, job("e"), 0);
    assert!(matches!(placed, Placed::Waiting { .. }), "one at a time");
}

#[test]
fn slots_that_are_held_back_take_requests_when_more_are_wanted() {
    let (now, dispatch) = (Instant::now(), Dispatch::new(LIMITS));
    let ledger = Arc::new(Ledger::holding_back(2));
    // One that takes requests, two that are held back, one for I/O.
    let slots: Vec<_> = [1, 0, 0, 0]
        .into_iter()
        .map(|capacity| {
            let spec = SlotSpec { capacity, ..SPEC };
            dispatch.add_slot(now, spec, &ledger)
        })
        .collect();
    let numbers = || {
        let usage = dispatch.usage(now);
        (usage.waiting, usage.in_progress, usage.slots)
    };
    for name in ["a", "b", "c", "d", "e"] {
        let _ = dispatch.submit(now, job(name), 0);
    }
    assert_eq!(numbers(), (4, 1, 1));
    dispatch.hold_back(now, &ledger, 1);
    assert_eq!(numbers(), (3, 2, 2));
    dispatch.hold_back(now, &ledger, 0);
    assert_eq!(numbers(), (2, 3, 3));
    assert!(
        dispatch.lend(now, slots[0].0),
        "that for I/O is another one"
    );
    assert_eq!(numbers(), (1, 4, 4));
    assert!(!dispatch.lend(now, slots[1].0), "and the only one");
    dispatch.park(now, slots[0].0);
    assert!(!end(&dispatch, slots[0].0), "it takes nothing now");
    assert_eq!(numbers(), (1, 3, 3));
    // All are at work: it takes effect as they end.
    dispatch.hold_back(now, &ledger, 2);
    assert_eq!(numbers(), (1, 3, 3));
    assert!(end(&dispatch, slots[1].0), "e");
    for (slot, _) in &slots[2..] {
        assert!(!end(&dispatch, *slot));
    }
    dispatch.hold_back(now, &ledger, 2);
    assert_eq!(numbers(), (0, 1, 1));
    dispatch.hold_back(now, &ledger, 2);
    assert!(!end(&dispatch, slots[1].0));
    assert_eq!(numbers(), (0, 0, 1));
    // One whose worker goes is left as it is.
    for (slot, mailbox) in &slots {
        dispatch.retire(*slot, mailbox);
    }
    dispatch.hold_back(now, &ledger, 0);
    let placed = dispatch.submit(now, job("f"), 0);
    assert!(matches!(placed, Placed::Waiting { .. }), "{placed:?}");
}

#[test]
fn a_collection_waits_until_nothing_is_to_do_and_others_have_room() {
    let (now, dispatch) = (Instant::now(), Dispatch::new(LIMITS));
    let (slots, ledger) = worker(&dispatch, 2, 1);
    let (one, other) = (slots[0], slots[1]);
    let serve = |slot, count| (0..count).for_each(|_| assert!(!end(&dispatch, slot)));
    serve(one, 15);
    assert!(!dispatch.begin_collection(now, one), "too few requests");
    serve(one, 1);
    assert_eq!(ledger.served(), 16);
    for name in ["a", "b"] {
        let _ = dispatch.submit(now, job(name), 0);
    }
    serve(one, 1);
    assert!(
        !dispatch.begin_collection(now, one),
        "the other thread is at work"
    );
    let (peers, _) = worker(&dispatch, 1, 0);
    for name in ["c", "d"] {
        let _ = dispatch.submit(now, job(name), 0);
    }
    for slot in [one, other] {
        serve(slot, 1);
    }
    assert!(!dispatch.begin_collection(now, one), "nobody else has room");
    serve(peers[0], 1);
    assert!(dispatch.begin_collection(now, one));
    assert!(!dispatch.begin_collection(now, other), "once");
    dispatch.hold_back(now, &ledger, 2);
    assert_eq!(ledger.claimed(), 2, "its slots stay as they are");
    let placed = dispatch.submit(now, job("e"), 0);
    assert!(
        matches!(placed, Placed::Started),
        "the other worker takes it"
    );
    let placed = dispatch.submit(now, job("f"), 0);
    assert!(
        matches!(placed, Placed::Waiting { .. }),
        "no slot of this one does"
    );
    let before = dispatch.usage(now);
    assert_eq!((before.waiting, before.in_progress), (1, 3));
    dispatch.end_collection(now, one, &mut VecDeque::new());
    let after = dispatch.usage(now);
    assert_eq!((after.waiting, after.in_progress), (0, 2));
}

#[test]
fn a_worker_that_is_alone_collects_and_its_end_gives_the_slots_back() {
    let (now, dispatch) = (Instant::now(), Dispatch::new(LIMITS));
    let ledger: Arc<Ledger> = Arc::default();
    let (one, mailbox) = dispatch.add_slot(now, SPEC, &ledger);
    let (_, other) = dispatch.add_slot(now, SPEC, &ledger);
    for _ in 0..16 {
        let _ = end(&dispatch, one);
    }
    assert!(dispatch.begin_collection(now, one));
    let _ = dispatch.submit(now, job("a"), 0);
    assert!(taken(&other).is_empty(), "it waits");
    dispatch.remove(now, one, &mailbox, Vec::new());
    assert_eq!(taken(&other), [b"a"], "the driver that collected has ended");
}

#[test]
fn collections_take_a_fiftieth_of_the_time_at_most() {
    let (now, dispatch) = (Instant::now(), Dispatch::new(LIMITS));
    let (slots, _) = worker(&dispatch, 1, 0);
    let slot = slots[0];
    let serve = |count| (0..count).for_each(|_| assert!(!end(&dispatch, slot)));
    serve(16);
    assert!(dispatch.begin_collection(now, slot), "the first");
    let over = now + Duration::from_secs(2);
    dispatch.end_collection(over, slot, &mut VecDeque::new());
    // However many requests there are meanwhile.
    serve(5000);
    let early = over + Duration::from_millis(99_999);
    assert!(!dispatch.begin_collection(early, slot), "it took 2 s");
    assert!(dispatch.begin_collection(over + Duration::from_secs(100), slot));
}

#[test]
fn what_is_given_back_after_the_end_is_answered() {
    let (now, dispatch) = (Instant::now(), Dispatch::new(LIMITS));
    let (slot, mailbox) = dispatch.add_slot(now, SPEC, &Arc::default());
    let asked = |name: &str| {
        let (reply, answer) = oneshot::channel();
        let mut job = job(name);
        job.reply = Some(reply);
        let _ = dispatch.submit(now, job, 0);
        answer
    };
    let (mut begun, mut waiting) = (asked("a"), asked("b"));
    assert_eq!(dispatch.close().len(), 1, "the line is empty now");
    assert!(waiting.try_recv().is_err(), "its job went with the line");
    assert!(begun.try_recv().is_err(), "a driver may have it");
    dispatch.remove(now, slot, &mailbox, Vec::new());
    let fault = begun.try_recv().expect("it is answered").unwrap_err();
    assert_eq!(fault.kind, FaultKind::Unavailable);
    let fault = asked("c").try_recv().expect("at once").unwrap_err();
    assert_eq!(fault.kind, FaultKind::Unavailable);
}

#[test]
fn attention_is_called_for_when_a_worker_has_served_what_it_may() {
    let dispatch = Dispatch::new(LIMITS);
    let (slots, ledger) = worker(&dispatch, 1, 0);
    ledger.watch_for(3);
    let is_called = || {
        let mut called = std::pin::pin!(dispatch.attention.notified());
        let mut cx = Context::from_waker(Waker::noop());
        Future::poll(called.as_mut(), &mut cx).is_ready()
    };
    for expected in [false, false, true, false] {
        let _ = end(&dispatch, slots[0]);
        assert_eq!(is_called(), expected, "{}", ledger.served());
    }
}

#[test]
fn one_slow_request_ends_batches_for_long() {
    let pace = Pace::default();
    let quick = || pace.note(Duration::from_micros(50));
    assert_eq!(pace.batch_max(), 1, "nothing is known");
    (0..1000).for_each(|_| quick());
    assert_eq!(pace.batch_max(), BATCH_MAX);
    pace.note(Duration::from_millis(10));
    (0..200).for_each(|_| quick());
    assert_eq!(pace.batch_max(), 1);
}

/// A job of a client that belongs to this worker.
fn job_for(name: &str, token: Option<Token>) -> Job {
    let wanted = token.map_or(Wanted::Any, Wanted::Worker);
    Job {
        affinity: Some(Box::new(Affinity::for_test(wanted))),
        ..job(name)
    }
}

#[test]
fn a_job_waits_for_the_process_that_it_belongs_to_while_that_is_there() {
    let (now, dispatch) = (Instant::now(), Dispatch::new(LIMITS));
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
    assert_eq!(dispatch.usage(now).waiting, 2, "beside a free process");
    // Who belongs nowhere, or to a worker that is not there, does not wait.
    let _ = dispatch.submit(now, job_for("any", Some(Token::random())), 0);
    assert_eq!(taken(&three_mail), [b"any"]);
    // Either thread takes the next, and the job knows who has it.
    let mut got = VecDeque::new();
    dispatch.turn(now, two, 1, 1, &mut got);
    let start = got.pop_front().expect("the oldest");
    assert_eq!(start.job.frame, b"c");
    let affinity = start.job.affinity.expect("as it came");
    assert_eq!(affinity.served_by, token);
    // One thread goes, and the other still stands for the process.
    dispatch.retire(one, &one_mail);
    let _ = dispatch.submit(now, job_for("e", token), 0);
    dispatch.turn(now, three, 1, 1, &mut got);
    assert!(got.is_empty(), "both wait for their own");
    // The process is replaced: they go anywhere, and whoever comes later does not wait.
    dispatch.retire(two, &two_mail);
    assert_eq!(taken(&three_mail), [b"d"]);
    dispatch.turn(now, three, 1, 1, &mut got);
    let start = got.pop_front().expect("the oldest");
    assert_eq!(start.job.frame, b"e");
    let affinity = start.job.affinity.expect("as it came");
    assert_eq!(affinity.served_by, Some(ledgers[1].token));
    dispatch.turn(now, three, 1, 1, &mut got);
    let _ = dispatch.submit(now, job_for("f", token), 0);
    assert_eq!(taken(&three_mail), [b"f"]);
}
