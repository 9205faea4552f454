//! The number of workers: it follows the load. How the load is judged is tested at
//! `scaling`.

use super::*;

/// One to `most` workers of a slot each; the least is ready.
fn between(least: usize, most: usize) -> SupervisorHarness {
    let mut harness = SupervisorHarness::ready(least);
    let policy = SupervisorPolicy {
        max_processes: most,
        scale_down_after: Duration::from_secs(1),
        ..harness.supervisor.policy
    };
    harness.supervisor.policy = policy;
    let actions = harness.supervisor.reconcile(harness.now);
    assert_eq!(harness.transcript(actions), NOTHING);
    harness
}

impl SupervisorHarness {
    /// One request waits, or nothing is to be done, for so long.
    fn load(&mut self, is_late: bool, time: Duration) -> Vec<String> {
        let slots = self.supervisor.ready_worker_count();
        let busy = AppLoad {
            queued: 1,
            oldest_wait: Duration::from_secs(1),
            in_progress: slots,
            slots,
            cpu_percent: None,
            cpu_known_since: None,
        };
        let idle = AppLoad {
            slots,
            ..AppLoad::default()
        };
        let end = self.now + time;
        let mut lines = self.send(SupervisorEvent::Load(if is_late { busy } else { idle }));
        while self.now < end && lines.is_empty() {
            self.now += Duration::from_millis(100);
            lines = self.send(SupervisorEvent::Load(if is_late { busy } else { idle }));
        }
        lines
    }

    fn grow(&mut self) -> Vec<String> {
        self.load(true, Duration::from_secs(5))
    }

    fn shrink(&mut self) -> Vec<String> {
        self.load(false, Duration::from_secs(5))
    }
}

#[test]
fn begins_as_large_as_the_one_before_within_its_bounds() {
    for (before, processes) in [(0, 1), (2, 2), (9, 3)] {
        let policy = SupervisorPolicy {
            max_processes: 3,
            initial_processes: before,
            max_threads: 3,
            initial_threads: before,
            ..SupervisorPolicy::default()
        };
        let mut harness = SupervisorHarness::new(1);
        harness.supervisor = Supervisor::new(policy);
        let begun = harness.send(SupervisorEvent::Started);
        match processes {
            1 => assert_eq!(begun, ["spawn 1 of 1"]),
            _ => assert_eq!(
                begun,
                [format!("{processes} threads").as_str(), "spawn 1 of 1"]
            ),
        }
        // The least of them first: it is up with those.
        let more = harness.boot(1);
        let is_up = |report: &SupervisorReport| matches!(report, SupervisorReport::Up { .. });
        assert!(harness.reports.iter().any(is_up));
        let spawned = (2..=processes).map(|id| format!("spawn {id} of 1"));
        let expected: Vec<_> = std::iter::once("admit 1".to_owned())
            .chain(spawned)
            .collect();
        assert_eq!(more, expected);
        assert_eq!(harness.supervisor.target_workers, processes);
        for id in 2..=processes as u64 {
            assert!(harness.supervisor.is_growing_to_initial_size);
            harness.boot(id);
        }
        assert!(!harness.supervisor.is_growing_to_initial_size);
    }
}

#[test]
fn one_that_does_not_boot_ends_the_wait_for_the_size_of_the_one_before() {
    for fails in [1, 2] {
        let policy = SupervisorPolicy {
            max_processes: 3,
            initial_processes: 3,
            ..SupervisorPolicy::default()
        };
        let mut harness = SupervisorHarness::new(1);
        harness.supervisor = Supervisor::new(policy);
        harness.send(SupervisorEvent::Started);
        if fails > 1 {
            harness.boot(1);
        }
        assert!(harness.supervisor.is_growing_to_initial_size);
        harness.fail(fails);
        assert!(!harness.supervisor.is_growing_to_initial_size);
    }
}

#[test]
fn starts_with_the_least_and_follows_the_load() {
    let mut harness = between(1, 2);
    assert_eq!(harness.grow(), ["spawn 2 of 1"]);
    assert_eq!(harness.supervisor.target_workers, 2);
    let why = "1 request waited 1000 ms with the only slot busy".to_owned();
    let (from, to) = (1, 2);
    let scaled = SupervisorReport::Scaled { from, to, why };
    assert_eq!(harness.reports.last(), Some(&scaled));
    assert_eq!(
        harness.supervisor.app_state(),
        AppState::Ready,
        "nobody is missing"
    );
    harness.boot(2);
    assert_eq!(harness.grow(), NOTHING, "the most");
    assert_eq!(harness.shrink(), ["retire 2"]);
    assert_eq!(harness.idle(2), ["terminate 2"]);
    assert_eq!(harness.shrink(), NOTHING, "the least");
    assert_eq!(harness.supervisor.app_state(), AppState::Ready);
}

#[test]
fn a_scaled_up_worker_counts_as_needed_once_it_has_served() {
    let mut harness = between(1, 2);
    harness.grow();
    harness.boot(2);
    assert_eq!(harness.exit(2), ["spawn 3 of 1"]);
    assert_eq!(harness.supervisor.app_state(), AppState::Degraded);
}

#[test]
fn with_fixed_bounds_the_load_is_ignored() {
    let mut harness = SupervisorHarness::ready(2);
    assert_eq!(harness.grow(), NOTHING);
    assert_eq!(harness.shrink(), NOTHING);
    assert_eq!(harness.supervisor.last_scaling(), None);
}

#[test]
fn the_worn_go_first_then_the_newest() {
    let mut harness = between(1, 4);
    for id in 2..=4 {
        harness.grow();
        harness.boot(id);
    }
    // Its successor boots, and is not needed any more.
    assert_eq!(harness.send(recycle(WorkerId(2))), ["spawn 5 of 1"]);
    assert_eq!(harness.spawned(5), NOTHING);
    assert_eq!(harness.shrink(), ["terminate 5", "retire 2"]);
    let recycled = |report: &SupervisorReport| matches!(report, SupervisorReport::Replaced { .. });
    assert!(harness.reports.iter().any(recycled), "it says so");
    assert_eq!(harness.shrink(), ["retire 4"]);
    assert_eq!(harness.shrink(), ["retire 3"]);
}

#[test]
fn of_two_worn_ones_the_one_whose_successor_boots_stays() {
    let mut harness = between(1, 3);
    for id in 2..=3 {
        harness.grow();
        harness.boot(id);
    }
    assert_eq!(harness.send(recycle(WorkerId(3))), ["spawn 4 of 1"]);
    assert_eq!(harness.send(recycle(WorkerId(1))), NOTHING);
    assert_eq!(harness.shrink(), ["retire 1"]);
    assert_eq!(harness.boot(4), ["admit 4", "retire 3"]);
}

#[test]
fn those_that_do_not_serve_go_before_all() {
    let mut harness = between(1, 3);
    for id in 2..=3 {
        harness.grow();
        harness.boot(id);
    }
    assert_eq!(harness.exit(1), ["spawn 4 of 1"]);
    assert_eq!(harness.spawned(4), NOTHING);
    assert_eq!(harness.shrink(), ["terminate 4"]);
}

#[test]
fn those_of_a_version_that_was_given_up_go_first() {
    let mut harness = between(1, 3);
    for id in 2..=3 {
        harness.grow();
        harness.boot(id);
    }
    harness.send(SupervisorEvent::Restart);
    assert_eq!(harness.boot(4), ["admit 4", "retire 1", "spawn 5 of 2"]);
    let lines = harness.fail(5);
    assert_eq!(lines.last().unwrap(), "spawn 6 of 1");
    assert_eq!(harness.shrink(), ["abandon 6", "retire 4"]);
}

#[test]
fn nobody_goes_for_lack_of_load_while_a_restart_is_under_way() {
    let mut harness = between(1, 2);
    harness.grow();
    harness.boot(2);
    assert_eq!(harness.send(SupervisorEvent::Restart), ["spawn 3 of 2"]);
    assert_eq!(harness.shrink(), NOTHING);
    assert_eq!(harness.boot(3), ["admit 3", "retire 1", "spawn 4 of 2"]);
    assert_eq!(harness.shrink(), NOTHING);
    assert_eq!(harness.boot(4), ["admit 4", "retire 2", "restarted"]);
    assert_eq!(harness.shrink(), ["retire 4"]);
}

#[test]
fn during_a_restart_the_load_gets_workers_of_the_version_that_serves() {
    let mut harness = between(1, 2);
    assert_eq!(harness.send(SupervisorEvent::Restart), ["spawn 2 of 2"]);
    assert_eq!(harness.grow(), ["spawn 3 of 1"]);
    let lines = harness.boot(2);
    assert_eq!(lines, ["admit 2", "retire 1", "spawn 4 of 2"]);
    assert_eq!(harness.boot(3), ["admit 3"], "its successor is on its way");
    assert_eq!(harness.boot(4), ["admit 4", "retire 3", "restarted"]);
}

#[test]
fn nobody_comes_for_the_load_while_the_code_does_not_boot() {
    let mut harness = between(3, 8);
    assert_eq!(harness.exit(1), ["spawn 4 of 1"]);
    harness.fail(4);
    assert!(harness.supervisor.is_boot_failing());
    for _ in 0..3 {
        let three = AppLoad {
            queued: 90,
            oldest_wait: Duration::from_secs(1),
            in_progress: 2,
            slots: 2,
            cpu_percent: None,
            cpu_known_since: None,
        };
        assert_eq!(harness.send(SupervisorEvent::Load(three)), NOTHING);
    }
    assert_eq!(harness.supervisor.target_workers, 3);
}

#[test]
fn starts_with_the_least_again_after_a_drain() {
    let mut harness = between(1, 2);
    harness.grow();
    harness.boot(2);
    harness.send(SupervisorEvent::Drain);
    for id in 1..=2 {
        harness.idle(id);
        harness.exit(id);
    }
    assert_eq!(harness.grow(), NOTHING, "nothing runs");
    assert_eq!(harness.send(SupervisorEvent::Started), ["spawn 3 of 1"]);
    assert_eq!(harness.supervisor.last_scaling(), None);
}
