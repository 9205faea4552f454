//! Decisions at given times, and a simulation of months with seeds.

use super::*;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

fn at(offset: Duration) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_800_000_000) + offset
}

fn facts(issued: SystemTime, lifetime: Duration, spread: u32) -> CertificateFacts {
    CertificateFacts {
        not_before: issued,
        not_after: issued + lifetime,
        ari_id: None,
        spread,
    }
}

fn schedule(directories: usize) -> NameSchedule {
    NameSchedule::new(RenewalBounds::default(), directories, false, 1)
}

fn run(schedule: &mut NameSchedule, expected: Action) -> SystemTime {
    let (due, action) = schedule.next().unwrap();
    assert_eq!(action, expected);
    schedule.begin();
    assert_eq!(schedule.next(), None);
    due
}

fn failure(kind: FailureKind) -> Failure {
    Failure {
        kind,
        retry_at: None,
    }
}

const ORDER: Action = Action::Order { directory: 0 };
const CHECK: Action = Action::Check {
    asks_authority: true,
};

/// A schedule with a certificate of 90 days, obtained at `at(0)`.
fn with_certificate() -> NameSchedule {
    let mut schedule = schedule(1);
    run(&mut schedule, Action::Load);
    schedule.finish_load(at(Duration::ZERO), None);
    run(&mut schedule, ORDER);
    schedule.finish_order(at(Duration::ZERO), facts(at(Duration::ZERO), 90 * DAY, 0));
    schedule
}

#[test]
fn a_stored_certificate_is_used_and_a_missing_one_ordered_at_once() {
    let now = at(Duration::ZERO);
    let mut found = schedule(1);
    run(&mut found, Action::Load);
    found.finish_load(now, Some(facts(now - DAY, 90 * DAY, 0)));
    let due = run(&mut found, CHECK);
    assert!(due >= now && due <= now + HOUR / 6, "{due:?}");

    let mut missing = schedule(1);
    run(&mut missing, Action::Load);
    missing.finish_load(now, None);
    assert!(run(&mut missing, ORDER) <= now);
}

#[test]
fn without_a_window_two_thirds_of_the_lifetime_pass() {
    let schedule = with_certificate();
    assert_eq!(schedule.renew_at(), Some(at(60 * DAY)));
    let early = facts(at(Duration::ZERO), 90 * DAY, u32::MAX);
    assert_eq!(regular_renewal(&early), at(60 * DAY - 90 * DAY / 50));
}

#[test]
fn the_window_of_the_authority_replaces_that() {
    let mut schedule = with_certificate();
    let window = |start, end| RenewalWindow { start, end };
    let mut answer = |window| {
        schedule.request_check();
        run(&mut schedule, CHECK);
        schedule.finish_check(at(DAY), None, Some((window, 6 * HOUR)));
        schedule.renew_at().unwrap()
    };
    let (ten, twelve) = (at(10 * DAY), at(12 * DAY));
    assert_eq!(answer(window(ten, twelve)), ten);
    // Ends before it begins: ignored.
    assert_eq!(answer(window(twelve, ten - DAY)), ten);
    // Too late for another attempt.
    assert_eq!(answer(window(at(89 * DAY), at(90 * DAY))), at(75 * DAY));
    // In the past, as for a certificate that is to be revoked.
    assert!(answer(window(at(Duration::ZERO), at(HOUR))) <= at(DAY));
    assert_eq!(schedule.next().unwrap().1, ORDER);
}

#[test]
fn the_authority_is_asked_after_its_retry_after_and_the_storage_every_hour() {
    let mut schedule = with_certificate();
    let window = RenewalWindow {
        start: at(50 * DAY),
        end: at(52 * DAY),
    };
    let mut due = run(&mut schedule, CHECK);
    schedule.finish_check(due, None, Some((window, 6 * HOUR)));
    let mut checks = 0;
    loop {
        let (next, action) = schedule.next().unwrap();
        assert!((HOUR..=HOUR + HOUR / 7).contains(&next.duration_since(due).unwrap()));
        (checks, due) = (checks + 1, next);
        schedule.begin();
        schedule.finish_check(next, None, None);
        if action == CHECK {
            break;
        }
    }
    assert_eq!(checks, 6);
}

#[test]
fn failures_back_off_and_honour_the_authority() {
    let mut schedule = with_certificate();
    let now = at(61 * DAY);
    let mut least = MINUTE;
    for _ in 0..20 {
        schedule.begin();
        schedule.finish_failure(now, failure(FailureKind::Attempt));
        let delay = schedule.not_before.duration_since(now).unwrap();
        assert!(delay >= least && delay <= least + least / 7, "{delay:?}");
        least = (least * 2).min(DAY);
    }
    let limited = |after| Failure {
        kind: FailureKind::Refused,
        retry_at: Some(now + after),
    };
    let mut schedule = with_certificate();
    schedule.begin();
    schedule.finish_failure(now, limited(3 * HOUR));
    assert_eq!(schedule.not_before, now + 3 * HOUR);
    schedule.begin();
    schedule.finish_failure(now, limited(3000 * DAY));
    assert_eq!(schedule.not_before, now + DAY);
}

#[test]
fn attempts_are_left_before_a_certificate_expires() {
    let mut schedule = with_certificate();
    let mut attempts = 0;
    let mut now = at(60 * DAY);
    while now < at(90 * DAY) {
        schedule.begin();
        schedule.finish_failure(now, failure(FailureKind::Attempt));
        now = schedule.not_before;
        attempts += u32::from(now > at(89 * DAY));
    }
    assert!(attempts >= 8, "{attempts}");
}

#[test]
fn the_next_authority_is_tried_and_the_first_one_again_after_a_success() {
    let mut schedule = schedule(2);
    let now = at(Duration::ZERO);
    schedule.finish_load(now, None);
    let mut used = Vec::new();
    for kind in [
        FailureKind::Attempt,
        FailureKind::Local,
        FailureKind::Attempt,
        FailureKind::Refused,
        FailureKind::Refused,
    ] {
        let Some((_, Action::Order { directory })) = schedule.next() else {
            panic!("no order");
        };
        used.push(directory);
        schedule.begin();
        schedule.finish_failure(now, failure(kind));
    }
    assert_eq!(used, [0, 0, 0, 1, 0]);
    schedule.begin();
    schedule.finish_order(now, facts(now, 90 * DAY, 0));
    assert_eq!(schedule.directory, 0);
}

#[test]
fn a_peer_that_orders_is_awaited_without_counting_failures() {
    let mut schedule = schedule(1);
    let now = at(Duration::ZERO);
    schedule.finish_load(now, None);
    run(&mut schedule, ORDER);
    schedule.finish_elsewhere(now);
    let due = run(&mut schedule, ORDER);
    assert!(due > now && due <= now + Duration::from_secs(4));
    assert_eq!(schedule.failures(), 0);
}

#[test]
fn an_authority_that_always_wants_a_renewal_is_slowed_down() {
    let mut schedule = with_certificate();
    let mut now = at(DAY);
    let mut renewals = 0;
    while now < at(4 * DAY) {
        schedule.request_check();
        run(&mut schedule, CHECK);
        let window = RenewalWindow {
            start: now - HOUR,
            end: now - MINUTE,
        };
        schedule.finish_check(now, None, Some((window, HOUR)));
        now = now.max(schedule.renew_at().unwrap());
        schedule.begin();
        schedule.finish_order(now, facts(now, 90 * DAY, 0));
        renewals += 1;
    }
    assert!((3..10).contains(&renewals), "{renewals}");
}

#[test]
fn names_on_demand_need_permission_first_and_for_each_order() {
    let mut schedule = NameSchedule::new(RenewalBounds::default(), 1, true, 1);
    let now = at(Duration::ZERO);
    run(&mut schedule, Action::AskPermission);
    schedule.finish_permission();
    run(&mut schedule, Action::Load);
    schedule.finish_load(now, None);
    run(&mut schedule, ORDER);
    schedule.finish_order(now, facts(now, 90 * DAY, 0));
    schedule.check_at = now + 100 * DAY;
    assert_eq!(schedule.next(), Some((at(60 * DAY), Action::AskPermission)));
}

/// Months with an authority that is down, refuses and changes its windows.
#[test]
fn simulated_months_keep_the_invariants() {
    let seeds: u64 = std::env::var("PENSTOCK_SEEDS").map_or(200, |seeds| seeds.parse().unwrap());
    let first: u64 = std::env::var("PENSTOCK_SEED").map_or(0, |seed| seed.parse().unwrap());
    for seed in first..first + seeds {
        simulate(seed);
    }
}

fn simulate(seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let lifetime = if rng.bool() { 90 * DAY } else { 6 * DAY };
    // Less than the last sixth of any lifetime.
    let outage = HOUR * rng.u32(0..20);
    let mut schedule = NameSchedule::new(RenewalBounds::default(), 2, false, seed);
    let (mut now, end) = (at(Duration::ZERO), at(200 * DAY));
    let (mut orders, mut failures) = (0, 0);
    while let Some((due, action)) = schedule.next() {
        now = now.max(due);
        if now > end {
            break;
        }
        schedule.begin();
        let is_down = now.duration_since(at(Duration::ZERO)).unwrap().as_secs() % (7 * 86_400)
            < outage.as_secs();
        now += Duration::from_secs(rng.u64(0..30));
        match action {
            Action::AskPermission => panic!("seed {seed}: not on demand"),
            Action::Load => schedule.finish_load(now, None),
            Action::Check { .. } if is_down => schedule.finish_check(now, None, None),
            Action::Check { .. } => {
                let start = now + lifetime / 2 * rng.u32(0..2);
                let window = RenewalWindow {
                    start,
                    end: start + DAY,
                };
                let answer = rng.bool().then_some((window, HOUR * 6));
                schedule.finish_check(now, None, answer);
            }
            Action::Order { .. } if is_down || rng.u8(0..4) == 0 => {
                failures += 1;
                schedule.finish_failure(now, failure(FailureKind::Attempt));
            }
            Action::Order { .. } => {
                orders += 1;
                schedule.finish_order(now, facts(now, lifetime, rng.u32(..)));
            }
        }
        let certificate = schedule.certificate();
        if let Some(certificate) = certificate {
            assert!(now < certificate.not_after, "seed {seed}: it expired");
        }
    }
    // A certificate a day at most, even from an authority that always wants a renewal.
    assert!((2..=230).contains(&orders), "seed {seed}: {orders} orders");
    assert!(failures < 1500, "seed {seed}: {failures} failures");
}
