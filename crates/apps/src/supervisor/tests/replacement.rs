//! Restarts of several at once, worn workers, kills from outside, and processes that are heard of
//! late.

use super::*;

/// `processes` workers that are ready, and a say in how they are replaced.
fn ready(processes: usize, max_surge: usize, max_unavailable: usize) -> SupervisorHarness {
    let mut harness = SupervisorHarness::ready(processes);
    let policy = SupervisorPolicy {
        max_surge,
        max_unavailable,
        ..harness.supervisor.policy
    };
    harness.supervisor.policy = policy;
    let actions = harness.supervisor.reconcile(harness.now);
    assert_eq!(harness.transcript(actions), NOTHING);
    harness
}

#[test]
fn the_first_of_a_new_version_is_alone_then_as_many_at_once_as_may_be() {
    let mut harness = ready(5, 2, 0);
    assert_eq!(harness.send(SupervisorEvent::Restart), ["spawn 6 of 2"]);
    let lines = harness.boot(6);
    assert_eq!(
        lines,
        ["admit 6", "retire 1", "spawn 7 of 2", "spawn 8 of 2"]
    );
    assert_eq!(harness.boot(8), ["admit 8", "retire 3", "spawn 9 of 2"]);
    assert_eq!(harness.boot(7), ["admit 7", "retire 2", "spawn 10 of 2"]);
    assert_eq!(harness.boot(9), ["admit 9", "retire 4"]);
    assert_eq!(harness.boot(10), ["admit 10", "retire 5", "restarted"]);
}

#[test]
fn the_failure_of_one_of_several_ends_the_restart_for_all() {
    let mut harness = ready(3, 2, 0);
    harness.send(SupervisorEvent::Restart);
    assert_eq!(harness.boot(4).len(), 4, "two more are spawned");
    assert_eq!(harness.spawned(6), NOTHING);
    let lines = harness.fail(5);
    let done = "not restarted: Traceback";
    let expected = ["terminate 6", done, "terminate 5", "spawn 7 of 1"];
    assert_eq!(lines, expected, "and the one that was swapped goes back");
    assert_eq!(harness.boot(7), ["admit 7", "retire 4"]);
    assert_eq!(
        harness.supervisor.current_and_fallback_generations(),
        (1, None)
    );
}

#[test]
fn with_leave_workers_are_taken_out_before_their_successors_are_ready() {
    let mut harness = ready(4, 1, 2);
    assert_eq!(
        harness.send(SupervisorEvent::Restart),
        ["spawn 5 of 2"],
        "not for the first"
    );
    let lines = harness.boot(5);
    let expected = [
        "admit 5",
        "retire 1",
        "retire 2",
        "spawn 6 of 2",
        "retire 3",
        "spawn 7 of 2",
    ];
    assert_eq!(lines, expected, "nobody boots beside");
    assert_eq!(harness.supervisor.app_state(), AppState::Degraded);
    assert_eq!(harness.boot(7), ["admit 7", "retire 4", "spawn 8 of 2"]);
    assert_eq!(harness.boot(6), ["admit 6"]);
    assert_eq!(harness.boot(8), ["admit 8", "restarted"]);
}

#[test]
fn the_last_one_is_never_taken_out_before_its_successor_is_ready() {
    let mut harness = ready(1, 1, 5);
    assert_eq!(harness.send(SupervisorEvent::Restart), ["spawn 2 of 2"]);
    assert_eq!(harness.boot(2), ["admit 2", "retire 1", "restarted"]);
    let mut harness = ready(2, 1, 5);
    harness.send(SupervisorEvent::Restart);
    let lines = harness.boot(3);
    assert_eq!(lines, ["admit 3", "retire 1", "retire 2", "spawn 4 of 2"]);
}

#[test]
fn leave_to_take_workers_out_is_not_for_worn_ones() {
    let mut harness = ready(3, 1, 2);
    assert_eq!(harness.send(recycle(WorkerId(2))), ["spawn 4 of 1"]);
    assert_eq!(harness.send(recycle(WorkerId(1))), NOTHING, "one at a time");
    assert_eq!(harness.boot(4), ["admit 4", "retire 2", "spawn 5 of 1"]);
    assert_eq!(harness.boot(5), ["admit 5", "retire 1"]);
}

#[test]
fn worn_workers_are_replaced_as_many_at_once_as_may_be() {
    let mut harness = ready(3, 2, 0);
    assert_eq!(harness.send(recycle(WorkerId(1))), ["spawn 4 of 1"]);
    assert_eq!(harness.send(recycle(WorkerId(2))), ["spawn 5 of 1"]);
    assert_eq!(harness.send(recycle(WorkerId(3))), NOTHING);
    assert_eq!(harness.boot(4), ["admit 4", "retire 1", "spawn 6 of 1"]);
}

#[test]
fn reports_the_replace_reason() {
    let mut harness = SupervisorHarness::ready(1);
    let worker = WorkerId(1);
    let why = ReplaceReason::Age(Duration::from_secs(3600));
    harness.send(SupervisorEvent::ReplacementRequested { worker, why });
    harness.send(recycle(worker));
    let shown = harness.supervisor.workers().next().unwrap().replace_reason;
    assert_eq!(shown, Some(why), "the first reason stays");
    harness.boot(2);
    let pid = Some(1001);
    let expected = SupervisorReport::Replaced { pid, why };
    assert_eq!(harness.reports.last(), Some(&expected));
    let rows = [
        (
            ReplaceReason::Memory {
                bytes: 300 << 20,
                max: 1 << 28,
            },
            "300.0 MiB of memory, more than 256.0 MiB",
        ),
        (ReplaceReason::Requests(500), "500 requests served"),
        (why, "3600 s old"),
        (ReplaceReason::Stuck, "a request does not end"),
        (ReplaceReason::Refork, "the template was renewed"),
    ];
    for (why, words) in rows {
        assert_eq!(why.to_string(), words);
    }
}

#[test]
fn one_that_becomes_worn_while_it_boots_is_replaced_after_it() {
    let mut harness = SupervisorHarness::ready(1);
    harness.exit(1);
    harness.spawned(2);
    assert_eq!(harness.send(recycle(WorkerId(2))), NOTHING);
    assert_eq!(harness.boot(2), ["admit 2", "spawn 3 of 1"]);
    assert_eq!(harness.boot(3), ["admit 3", "retire 2"]);
}

#[test]
fn a_worn_worker_that_breaks_a_limit_is_killed_and_its_successor_takes_over() {
    let mut harness = SupervisorHarness::ready(2);
    let worker = WorkerId(1);
    assert_eq!(harness.send(recycle(worker)), ["spawn 3 of 1"]);
    let reason = KillReason::MemoryExceeded {
        bytes: 600 << 20,
        max: 1 << 29,
    };
    let exceeded = SupervisorEvent::KillRequested { worker, reason };
    let lines = harness.send(exceeded.clone());
    assert_eq!(lines, ["retire 1", "kill 1"], "another boots already");
    assert_eq!(harness.send(exceeded), NOTHING, "once is enough");
    assert_eq!(harness.boot(3), ["admit 3"]);
    assert_eq!(harness.exit(1), NOTHING);
    let killed = |report: &&SupervisorReport| matches!(report, SupervisorReport::Killed { .. });
    let pid = Some(1001);
    let expected = SupervisorReport::Killed { pid, reason };
    assert_eq!(harness.reports.iter().find(killed), Some(&expected));
    let words = "it used 600.0 MiB of memory and may use 512.0 MiB";
    assert_eq!(reason.to_string(), words);
}

#[test]
fn one_that_breaks_a_limit_unworn_is_replaced_at_once() {
    let mut harness = SupervisorHarness::ready(1);
    let (bytes, max) = (2, 1);
    let lines = harness.send(SupervisorEvent::KillRequested {
        worker: WorkerId(1),
        reason: KillReason::MemoryExceeded { bytes, max },
    });
    assert_eq!(lines, ["retire 1", "kill 1", "spawn 2 of 1"]);
}

#[test]
fn one_that_is_heard_of_late_and_not_wanted_any_more_is_asked_about_once() {
    let mut harness = SupervisorHarness::new(2);
    harness.send(SupervisorEvent::Started);
    assert_eq!(harness.resize(0), ["abandon 2", "abandon 1"]);
    assert_eq!(harness.send(SupervisorEvent::Tick), NOTHING);
    assert_eq!(harness.spawned(1), ["terminate 1"]);
    let worker = WorkerId(2);
    let reason = "abandoned".to_owned();
    assert_eq!(
        harness.send(SupervisorEvent::SpawnFailed { worker, reason }),
        NOTHING
    );
    assert_eq!(harness.states(), [(1, WorkerState::Stopping)]);
    assert_eq!(harness.exit(1), NOTHING);
    assert_eq!(harness.supervisor.app_state(), AppState::Ready);
}

#[test]
fn one_that_is_never_heard_of_is_given_up_after_the_boot_time_out() {
    let mut harness = SupervisorHarness::new(1);
    harness.send(SupervisorEvent::Started);
    let (slept, lines) = harness.sleep();
    assert_eq!((slept.as_secs(), lines), (60, vec!["abandon 1".to_owned()]));
    assert_eq!(harness.sleep().1, ["spawn 2 of 1"]);
    assert_eq!(harness.spawned(1), ["kill 1"], "it comes after all");
    assert_eq!(harness.exit(1), NOTHING);
}

#[test]
fn a_boot_that_fails_before_the_process_is_heard_of_is_a_failure_like_any() {
    let mut harness = SupervisorHarness::new(2);
    harness.send(SupervisorEvent::Started);
    for id in 1..=2 {
        let worker = WorkerId(id);
        let report = "Traceback".to_owned();
        let lines = harness.send(SupervisorEvent::BootFailed { worker, report });
        assert_eq!(lines, [format!("abandon {id}")]);
        let reason = "the template did not boot".to_owned();
        assert_eq!(
            harness.send(SupervisorEvent::SpawnFailed { worker, reason }),
            NOTHING
        );
    }
    assert_eq!(harness.supervisor.workers().count(), 0);
    let (slept, lines) = harness.sleep();
    let probe = vec!["spawn 3 of 1".to_owned()];
    assert_eq!((slept, lines), (Duration::from_millis(100), probe));
}

#[test]
fn tells_which_code_must_be_at_hand() {
    let mut harness = SupervisorHarness::ready(1);
    assert_eq!(
        harness.supervisor.current_and_fallback_generations(),
        (1, None)
    );
    harness.send(SupervisorEvent::Restart);
    assert_eq!(
        harness.supervisor.current_and_fallback_generations(),
        (2, Some(1))
    );
    harness.boot(2);
    assert_eq!(
        harness.supervisor.current_and_fallback_generations(),
        (2, None)
    );
}

#[test]
fn no_storm_of_spawns_lasts() {
    let mut harness = SupervisorHarness::new(100);
    let policy = SupervisorPolicy {
        spawn_rate: 2,
        ..harness.supervisor.policy
    };
    harness.supervisor = Supervisor::new(policy);
    assert_eq!(harness.send(SupervisorEvent::Started).len(), 40);
    assert_eq!(harness.send(SupervisorEvent::Tick), NOTHING);
    for more in [40, 20] {
        let (slept, lines) = harness.sleep();
        assert_eq!((slept.as_secs(), lines.len()), (1, more));
    }
}
