//! A server's health after requests, probes and operator settings: one rule per test, and random
//! input orders checked against invariants.

use super::*;

const RULES: HealthRules = HealthRules {
    max_failures: 3,
    eject_time: Duration::from_secs(10),
    rise: 2,
    fall: 3,
    slow_start: Duration::ZERO,
};

const SLOW: HealthRules = HealthRules {
    slow_start: Duration::from_secs(10),
    ..RULES
};

struct HealthTest {
    ejection: ServerHealth,
    zero: Instant,
}

impl HealthTest {
    fn new(rules: HealthRules) -> Self {
        let zero = Instant::now();
        Self {
            ejection: ServerHealth::with_rules(rules, zero),
            zero,
        }
    }

    fn at(&self, seconds: u64) -> Instant {
        self.zero + Duration::from_secs(seconds)
    }

    /// Applies one input `seconds` after zero.
    fn apply(&mut self, seconds: u64, input: Input) -> Option<HealthTransition> {
        let now = self.at(seconds);
        match input {
            Good => self.ejection.record_success(now),
            Bad => self.ejection.record_failure(now, true),
            BadLast => self.ejection.record_failure(now, false),
            ProbeGood => self.ejection.record_probe(now, true),
            ProbeBad => self.ejection.record_probe(now, false),
            Tick => self.ejection.tick(now),
            AdminSet(admin) => self.ejection.set_admin_state(now, admin),
        }
    }

    /// Fails requests until the server is ejected; returns the ejection's length.
    fn eject(&mut self, seconds: u64) -> Duration {
        for _ in 0..9 {
            if let Some(HealthTransition::Ejected { time, .. }) = self.apply(seconds, Bad) {
                return time;
            }
        }
        panic!("nine failures do not eject: {:?}", self.ejection);
    }

    /// Takes the server down by probes.
    fn down(&mut self, seconds: u64) {
        let last = [0; 3].map(|_| self.apply(seconds, ProbeBad))[2];
        assert_eq!(last, Some(HealthTransition::Down { probes: 3 }));
    }
}

#[derive(Debug, Clone, Copy)]
enum Input {
    Good,
    Bad,
    BadLast,
    ProbeGood,
    ProbeBad,
    Tick,
    AdminSet(AdminState),
}

/// Each with its time in seconds.
type Inputs = [(u64, Input)];

use AdminState::{Disabled, Draining, Ready};
use Input::{AdminSet, Bad, BadLast, Good, ProbeBad, ProbeGood, Tick};

#[test]
fn one_request_that_provokes_malformed_answers_does_not_eject() {
    let mut fixture = HealthTest::new(RULES);
    let malformed = |fixture: &mut HealthTest, request| {
        let now = fixture.at(0);
        fixture.ejection.record_malformed(now, true, request)
    };
    for _ in 0..100 {
        assert_eq!(malformed(&mut fixture, 1), None);
    }
    assert_eq!(malformed(&mut fixture, 2), None);
    assert_eq!(malformed(&mut fixture, 1), None);
    let ejected = malformed(&mut fixture, 3);
    assert!(
        matches!(ejected, Some(HealthTransition::Ejected { .. })),
        "{ejected:?}"
    );
    let mut fixture = HealthTest::new(RULES);
    for request in 0..100 {
        assert_eq!(malformed(&mut fixture, request), None, "others are well");
        let now = fixture.at(0);
        fixture.ejection.record_success(now);
    }
}

#[test]
fn state_transitions() {
    let rows: [(&str, &Inputs, &str); 22] = [
        ("a new one", &[], "up"),
        ("two failures", &[(0, Bad), (0, Bad)], "up"),
        ("three", &[(0, Bad), (0, Bad), (0, Bad)], "ejected"),
        (
            "not in a row",
            &[(0, Bad), (0, Bad), (0, Good), (0, Bad)],
            "up",
        ),
        (
            "the last one",
            &[(0, BadLast), (0, BadLast), (0, BadLast)],
            "up",
        ),
        (
            "it is spared later",
            &[(0, BadLast), (0, BadLast), (0, BadLast), (0, Bad)],
            "ejected",
        ),
        (
            "too early",
            &[(0, Bad), (0, Bad), (0, Bad), (9, Tick)],
            "ejected",
        ),
        (
            "its time is over",
            &[(0, Bad), (0, Bad), (0, Bad), (10, Tick)],
            "trial",
        ),
        (
            "a good trial",
            &[(0, Bad), (0, Bad), (0, Bad), (10, Tick), (11, Good)],
            "up",
        ),
        (
            "a bad trial",
            &[(0, Bad), (0, Bad), (0, Bad), (10, Tick), (11, Bad)],
            "ejected",
        ),
        (
            "of the last",
            &[(0, Bad), (0, Bad), (0, Bad), (10, Tick), (11, BadLast)],
            "up",
        ),
        (
            "late success",
            &[(0, Bad), (0, Bad), (0, Bad), (1, Good)],
            "ejected",
        ),
        (
            "probes do not end it",
            &[(0, Bad), (0, Bad), (0, Bad), (1, ProbeGood), (2, ProbeGood)],
            "ejected",
        ),
        ("two bad probes", &[(0, ProbeBad), (2, ProbeBad)], "up"),
        (
            "three bad probes",
            &[(0, ProbeBad), (2, ProbeBad), (4, ProbeBad)],
            "down",
        ),
        (
            "a good one between",
            &[(0, ProbeBad), (2, ProbeBad), (4, ProbeGood), (6, ProbeBad)],
            "up",
        ),
        (
            "one good probe",
            &[(0, ProbeBad), (2, ProbeBad), (4, ProbeBad), (6, ProbeGood)],
            "down",
        ),
        (
            "good requests are none",
            &[(0, ProbeBad), (2, ProbeBad), (4, ProbeBad), (6, Good)],
            "down",
        ),
        ("told to drain", &[(0, AdminSet(Draining))], "draining"),
        ("told to stop", &[(0, AdminSet(Disabled))], "disabled"),
        (
            "and ready again",
            &[(0, AdminSet(Disabled)), (1, AdminSet(Ready))],
            "up",
        ),
        (
            "drains while ejected",
            &[(0, Bad), (0, Bad), (0, Bad), (1, AdminSet(Draining))],
            "draining",
        ),
    ];
    for (name, inputs, expected) in rows {
        let mut fixture = HealthTest::new(RULES);
        for (seconds, input) in inputs {
            fixture.apply(*seconds, *input);
        }
        assert_eq!(fixture.ejection.state().as_str(), expected, "{name}");
    }
}

#[test]
fn two_good_probes_bring_it_up_again_and_all_counts_begin_anew() {
    let mut fixture = HealthTest::new(RULES);
    assert_eq!([fixture.apply(0, Bad), fixture.apply(0, Bad)], [None, None]);
    fixture.down(0);
    let up = [0; 2].map(|_| fixture.apply(5, ProbeGood));
    assert_eq!(up, [None, Some(HealthTransition::Up { probes: 2 })]);
    let inputs = [Bad, Bad, ProbeBad, ProbeBad];
    assert_eq!(inputs.map(|input| fixture.apply(6, input)), [None; 4]);
}

#[test]
fn a_good_trial_begins_the_count_of_failures_anew() {
    let mut fixture = HealthTest::new(RULES);
    fixture.eject(0);
    fixture.apply(10, Tick);
    let inputs = [Good, Bad, Bad].map(|input| fixture.apply(10, input));
    assert_eq!(inputs, [Some(HealthTransition::Restored), None, None]);
}

#[test]
fn reports_each_transition_and_the_next_tick() {
    let mut fixture = HealthTest::new(RULES);
    let ejected = HealthTransition::Ejected {
        failures: 3,
        time: Duration::from_secs(10),
    };
    assert_eq!(
        [0; 3].map(|_| fixture.apply(1, Bad)),
        [None, None, Some(ejected)]
    );
    assert_eq!(fixture.ejection.next_tick(), Some(fixture.at(11)));
    assert_eq!(
        fixture.ejection.state(),
        ServerHealthState::Ejected {
            until: fixture.at(11)
        }
    );
    assert_eq!(fixture.apply(11, Tick), Some(HealthTransition::Trial));
    assert_eq!(fixture.ejection.next_tick(), None);
    assert_eq!(fixture.apply(12, Good), Some(HealthTransition::Restored));
    let change = HealthTransition::AdminChanged(Draining);
    assert_eq!(
        [0; 2].map(|_| fixture.apply(13, AdminSet(Draining))),
        [Some(change), None]
    );
}

#[test]
fn admits_as_many_requests_as_its_state_allows() {
    let rows: [(&str, &Inputs, Option<u32>); 6] = [
        ("up", &[], None),
        ("ejected", &[(0, Bad), (0, Bad), (0, Bad)], Some(0)),
        (
            "on trial",
            &[(0, Bad), (0, Bad), (0, Bad), (10, Tick)],
            Some(1),
        ),
        (
            "down",
            &[(0, ProbeBad), (0, ProbeBad), (0, ProbeBad)],
            Some(0),
        ),
        ("draining", &[(0, AdminSet(Draining))], Some(0)),
        ("disabled", &[(0, AdminSet(Disabled))], Some(0)),
    ];
    for (name, inputs, expected) in rows {
        let mut fixture = HealthTest::new(RULES);
        for (seconds, input) in inputs {
            fixture.apply(*seconds, *input);
        }
        assert_eq!(fixture.ejection.max_active(), expected, "{name}");
        assert_eq!(
            fixture.ejection.accepts_requests(),
            expected != Some(0),
            "{name}"
        );
    }
}

#[test]
fn each_ejection_in_a_row_is_twice_as_long_up_to_thirty_times() {
    let mut fixture = HealthTest::new(RULES);
    let mut now = 0;
    for factor in [1, 2, 4, 8, 16, 30, 30, 30] {
        let time = fixture.eject(now);
        assert_eq!(time, RULES.eject_time * factor);
        now += time.as_secs();
        assert_eq!(fixture.apply(now, Tick), Some(HealthTransition::Trial));
    }
    assert_eq!(fixture.apply(now, Good), Some(HealthTransition::Restored));
    assert_eq!(
        fixture.eject(now),
        RULES.eject_time,
        "a success ends the row"
    );
    fixture.apply(now + 10, Tick);
    assert_eq!(
        fixture.apply(now + 10, BadLast),
        Some(HealthTransition::Restored)
    );
    fixture.apply(now + 11, Good);
    assert_eq!(
        fixture.eject(now + 12),
        RULES.eject_time,
        "after the last one's trial too"
    );
}

#[test]
fn many_ejections_and_endless_times_do_not_overflow() {
    let mut fixture = HealthTest::new(HealthRules {
        eject_time: Duration::MAX,
        ..RULES
    });
    for day in 0..100 {
        assert_eq!(fixture.eject(day * 86_400), MAX_EJECT_TIME);
        assert_eq!(
            fixture.apply((day + 1) * 86_400, Tick),
            Some(HealthTransition::Trial)
        );
    }
}

#[test]
fn with_a_bound_of_zero_no_failure_ejects() {
    let mut fixture = HealthTest::new(HealthRules {
        max_failures: 0,
        ..RULES
    });
    assert!((0..1000).all(|_| fixture.apply(0, Bad).is_none()));
    assert_eq!(fixture.ejection.state(), ServerHealthState::Up);
}

#[test]
fn the_share_grows_during_the_slow_start() {
    type Back = fn(&mut HealthTest);
    let ways: [(&str, Back); 5] = [
        ("joined at zero", |_| {}),
        ("after a trial", |fixture| {
            fixture.ejection.slow_start_from = fixture.at(9);
            fixture.eject(0);
            fixture.apply(10, Tick);
            assert_eq!(
                fixture.ejection.slow_start_permille(fixture.at(10)),
                1000,
                "the trial comes soon"
            );
            fixture.zero = fixture.at(40);
            fixture.apply(0, Good);
        }),
        ("after probes", |fixture| {
            fixture.down(0);
            fixture.zero = fixture.at(40);
            fixture.apply(0, ProbeGood);
            fixture.apply(0, ProbeGood);
        }),
        ("told after draining", |fixture| {
            fixture.apply(0, AdminSet(Draining));
            fixture.zero = fixture.at(40);
            fixture.apply(0, AdminSet(Ready));
        }),
        ("told after being disabled", |fixture| {
            fixture.apply(0, AdminSet(Disabled));
            fixture.zero = fixture.at(40);
            fixture.apply(0, AdminSet(Ready));
        }),
    ];
    for (name, come_back) in ways {
        let mut fixture = HealthTest::new(SLOW);
        come_back(&mut fixture);
        let ramp = |tenths: u64| {
            fixture
                .ejection
                .slow_start_permille(fixture.zero + Duration::from_millis(tenths * 100))
        };
        let shares = [0, 1, 50, 99, 100, 5000].map(ramp);
        assert_eq!(shares, [0, 10, 500, 990, 1000, 1000], "{name}");
    }
}

#[test]
fn without_a_slow_start_it_has_its_whole_share_at_once() {
    let fixture = HealthTest::new(RULES);
    assert_eq!(fixture.ejection.slow_start_permille(fixture.zero), 1000);
    assert_eq!(
        fixture
            .ejection
            .slow_start_permille(fixture.zero - Duration::from_secs(1)),
        1000
    );
}

#[test]
fn a_disabled_server_counts_nothing() {
    let mut fixture = HealthTest::new(RULES);
    assert_eq!([fixture.apply(0, Bad), fixture.apply(0, Bad)], [None, None]);
    fixture.apply(0, AdminSet(Disabled));
    assert!(!fixture.ejection.wants_probes());
    for input in [
        Bad, ProbeBad, ProbeGood, Good, Tick, Bad, Bad, ProbeBad, ProbeBad,
    ] {
        assert_eq!(fixture.apply(1, input), None, "{input:?}");
    }
    fixture.apply(2, AdminSet(Ready));
    assert_eq!(fixture.ejection.state(), ServerHealthState::Up);
    assert_eq!(fixture.apply(3, Bad), None, "the count begins anew");
}

#[test]
fn a_draining_server_keeps_its_health() {
    let mut fixture = HealthTest::new(RULES);
    fixture.apply(0, AdminSet(Draining));
    assert!(fixture.ejection.wants_probes());
    fixture.down(1);
    assert_eq!(fixture.ejection.state(), ServerHealthState::Draining);
    fixture.apply(2, AdminSet(Ready));
    assert_eq!(fixture.ejection.state(), ServerHealthState::Down);
}

#[test]
fn takes_its_rules_from_the_configuration() {
    let mut upstream = config::Upstream::new("legacy", config::Protocol::Http, Vec::new());
    upstream.eject = config::EjectPolicy {
        max_failures: 2,
        duration: Duration::from_secs(7),
    };
    upstream.health = Some(config::HealthCheck {
        rise: 5,
        fall: 4,
        ..config::HealthCheck::default()
    });
    upstream.slow_start = Duration::from_secs(20);
    let rules = HealthRules {
        max_failures: 2,
        eject_time: Duration::from_secs(7),
        rise: 5,
        fall: 4,
        slow_start: Duration::from_secs(20),
    };
    assert_eq!(ServerHealth::new(&upstream, Instant::now()).rules, rules);
}

#[test]
fn log_lines_name_the_cause() {
    let ejected = HealthTransition::Ejected {
        failures: 3,
        time: Duration::from_millis(2500),
    };
    let rows = [
        (
            ejected,
            "ejected for 2.5 s after failed requests in a row: 3",
        ),
        (
            HealthTransition::Down { probes: 3 },
            "down after failed probes: 3",
        ),
        (
            HealthTransition::AdminChanged(Draining),
            "set to draining by an operator",
        ),
    ];
    for (transition, expected) in rows {
        assert_eq!(transition.to_string(), expected);
    }
}

#[test]
fn invariants_hold_for_random_inputs() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seeds = match number("PENSTOCK_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("PENSTOCK_SEEDS").unwrap_or(300),
    };
    for seed in seeds {
        let run = std::panic::catch_unwind(|| random_inputs(seed));
        assert!(run.is_ok(), "replay with PENSTOCK_SEED={seed}");
    }
}

fn random_inputs(seed: u64) {
    let mut state = seed;
    let mut below = |bound: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % bound
    };
    let mut fixture = HealthTest::new(if below(2) == 0 { SLOW } else { RULES });
    let mut seconds = 0;
    for _ in 0..500 {
        seconds += below(3) * below(8);
        let input = match below(40) {
            0..10 => Good,
            10..22 => Bad,
            22..25 => BadLast,
            25..29 => ProbeGood,
            29..34 => ProbeBad,
            34..38 => Tick,
            38 => AdminSet(Ready),
            _ => AdminSet([Draining, Disabled][usize::try_from(below(2)).unwrap()]),
        };
        let before = fixture.ejection.clone();
        let transition = fixture.apply(seconds, input);
        check_step(&before, &fixture, seconds, input, transition);
    }
    // Set to ready, with successful requests and probes, it always ends up.
    fixture.apply(seconds, AdminSet(Ready));
    for _ in 0..2 {
        fixture.apply(seconds, ProbeGood);
    }
    fixture.apply(seconds + 300, Tick);
    fixture.apply(seconds + 300, Good);
    assert_eq!(fixture.ejection.state(), ServerHealthState::Up);
    assert_eq!(
        fixture
            .ejection
            .slow_start_permille(fixture.at(seconds + 310)),
        1000
    );
}

fn check_step(
    before: &ServerHealth,
    fixture: &HealthTest,
    seconds: u64,
    input: Input,
    transition: Option<HealthTransition>,
) {
    let (ejection, now) = (&fixture.ejection, fixture.at(seconds));
    if before.state() != ejection.state() {
        assert!(transition.is_some(), "{input:?} changed it without a word");
    }
    if matches!(input, BadLast) {
        assert!(
            ejection.accepts_requests() || !before.accepts_requests(),
            "the last was taken away"
        );
    }
    if matches!(input, Good) {
        assert!(
            ejection.accepts_requests() || !before.accepts_requests(),
            "good ones take nothing away"
        );
    }
    if let Some(HealthTransition::Ejected { time, .. }) = transition {
        let most = RULES.eject_time * MAX_EJECT_FACTOR;
        assert!((RULES.eject_time..=most).contains(&time));
        assert!(matches!(input, Bad));
        assert_eq!(ejection.next_tick(), Some(now + time));
    }
    let is_ejected = matches!(ejection.condition, ServerHealthState::Ejected { .. });
    let is_disabled = ejection.admin_state == Disabled;
    assert_eq!(ejection.next_tick().is_some(), is_ejected && !is_disabled);
    if matches!(input, Tick) {
        assert!(
            ejection.next_tick().is_none_or(|then| then > now),
            "a trial is overdue"
        );
    }
    assert!(ejection.slow_start_permille(now) <= 1000);
    assert!(
        ejection.consecutive_failures < RULES.max_failures
            || !matches!(input, Bad)
            || !ejection.accepts_requests()
    );
}
