//! Restarts: new code comes in worker by worker, or is given up and leaves no trace.

use super::*;

#[test]
fn restarts_one_worker_at_a_time_and_only_after_its_successor_is_ready() {
    let mut harness = SupervisorHarness::ready(2);
    assert_eq!(harness.send(SupervisorEvent::Restart), ["spawn 3 of 2"]);
    assert_eq!(harness.boot(3), ["admit 3", "retire 1", "spawn 4 of 2"]);
    assert_eq!(harness.idle(1), ["terminate 1"]);
    assert_eq!(harness.boot(4), ["admit 4", "retire 2", "restarted"]);
    assert_eq!(harness.exit(1), NOTHING);
    assert_eq!(harness.idle(2), ["terminate 2"]);
    assert_eq!(harness.exit(2), NOTHING);
    assert_eq!(harness.supervisor.app_state(), AppState::Ready);
}

#[test]
fn keeps_the_old_version_when_the_new_one_does_not_boot() {
    let mut harness = SupervisorHarness::ready(2);
    harness.send(SupervisorEvent::Restart);
    let lines = harness.fail(3);
    assert_eq!(lines, ["not restarted: Traceback", "terminate 3"]);
    assert_eq!(
        harness.supervisor.restart_error.as_deref(),
        Some("Traceback")
    );
    assert_eq!(harness.supervisor.app_state(), AppState::Ready);
    let (r1, r2) = ((1, WorkerState::Ready), (2, WorkerState::Ready));
    assert_eq!(harness.states(), [r1, r2]);
    assert_eq!(
        harness.exit(1),
        ["spawn 4 of 1"],
        "a crash brings back old code"
    );
}

#[test]
fn rolls_back_replaced_workers_when_the_new_version_fails() {
    let mut harness = SupervisorHarness::ready(2);
    harness.send(SupervisorEvent::Restart);
    assert_eq!(harness.boot(3), ["admit 3", "retire 1", "spawn 4 of 2"]);
    let lines = harness.fail(4);
    let done = "not restarted: Traceback";
    assert_eq!(lines, [done, "terminate 4", "spawn 5 of 1"]);
    assert_eq!(harness.boot(5), ["admit 5", "retire 3"]);
    assert_eq!(harness.supervisor.app_state(), AppState::Ready);
}

#[test]
fn gives_up_a_new_version_that_crashes_during_the_restart() {
    let mut harness = SupervisorHarness::ready(2);
    harness.send(SupervisorEvent::Restart);
    harness.boot(3);
    let why = "not restarted: the worker was killed by signal 9 soon after it was ready";
    assert_eq!(
        harness.exit(3),
        ["abandon 4", why, "spawn 5 of 1"],
        "the unspawned one waits"
    );
    assert_eq!(harness.spawned(4), ["terminate 4"]);
    assert_eq!(harness.exit(4), NOTHING);
    assert_eq!(harness.boot(5), ["admit 5"]);
}

#[test]
fn gives_up_a_new_version_that_gets_stuck_again_and_again() {
    let mut harness = SupervisorHarness::ready(2);
    let stuck = |id| SupervisorEvent::KillRequested {
        worker: WorkerId(id),
        reason: KillReason::ResponseTimedOut,
    };
    harness.send(SupervisorEvent::Restart);
    harness.boot(3);
    assert_eq!(
        harness.send(stuck(3)),
        ["retire 3", "kill 3", "spawn 5 of 2"]
    );
    harness.boot(5);
    let why = "not restarted: the worker was killed: a response took too long";
    let lines = harness.send(stuck(5));
    let expected = ["retire 5", "abandon 4", why, "kill 5", "spawn 6 of 1"];
    assert_eq!(lines, expected);
}

#[test]
fn a_crash_before_the_new_version_is_proven_brings_back_old_code() {
    let mut harness = SupervisorHarness::ready(2);
    harness.send(SupervisorEvent::Restart);
    assert_eq!(harness.exit(1), ["spawn 4 of 1"]);
    assert_eq!(harness.spawned(4), NOTHING);
    let lines = harness.boot(3);
    assert_eq!(lines, ["admit 3", "terminate 4", "spawn 5 of 2"]);
    assert_eq!(harness.exit(2), NOTHING, "its successor boots already");
    assert_eq!(harness.boot(5), ["admit 5", "restarted"]);
}

#[test]
fn a_restart_without_serving_workers_replaces_all_at_once() {
    let mut harness = SupervisorHarness::new(2);
    harness.send(SupervisorEvent::Started);
    harness.fail(1);
    harness.fail(2);
    assert_eq!(harness.sleep().1, ["spawn 3 of 1"]);
    harness.spawned(3);
    let lines = harness.send(SupervisorEvent::Restart);
    assert_eq!(lines, ["terminate 3", "spawn 4 of 2", "spawn 5 of 2"]);
    assert_eq!(harness.boot(4), ["admit 4"]);
    assert_eq!(harness.boot(5), ["admit 5", "restarted"]);
}

#[test]
fn a_restart_without_serving_workers_reports_the_new_traceback() {
    let mut harness = SupervisorHarness::new(1);
    harness.send(SupervisorEvent::Started);
    harness.fail(1);
    assert_eq!(harness.send(SupervisorEvent::Restart), ["spawn 2 of 2"]);
    let lines = harness.fail(2);
    assert_eq!(lines, ["not restarted: Traceback", "terminate 2"]);
    assert_eq!(
        harness.sleep().1,
        ["spawn 3 of 2"],
        "the newest code is retried"
    );
}

#[test]
fn restarts_asked_for_during_a_restart_become_one_more() {
    let mut harness = SupervisorHarness::ready(1);
    assert_eq!(harness.send(SupervisorEvent::Restart), ["spawn 2 of 2"]);
    for _ in 0..3 {
        assert_eq!(harness.send(SupervisorEvent::Restart), NOTHING);
    }
    let lines = harness.boot(2);
    assert_eq!(lines, ["admit 2", "retire 1", "restarted", "spawn 3 of 3"]);
    assert_eq!(harness.boot(3), ["admit 3", "retire 2", "restarted"]);
    assert!(!harness.supervisor.is_restarting());
}

#[test]
fn a_restart_without_processes_is_done_at_once() {
    let mut harness = SupervisorHarness::new(0);
    harness.send(SupervisorEvent::Started);
    assert_eq!(harness.send(SupervisorEvent::Restart), ["restarted"]);
}
