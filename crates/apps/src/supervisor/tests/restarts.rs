//! Restarts: new code comes in worker by worker, or is given up and leaves no trace.

use super::*;

#[test]
fn restarts_one_worker_at_a_time_and_only_after_its_successor_is_ready() {
    let mut bed = SupervisorHarness::ready(2);
    assert_eq!(bed.send(SupervisorEvent::Restart), ["spawn 3 of 2"]);
    assert_eq!(bed.boot(3), ["admit 3", "retire 1", "spawn 4 of 2"]);
    assert_eq!(bed.idle(1), ["terminate 1"]);
    assert_eq!(bed.boot(4), ["admit 4", "retire 2", "restarted"]);
    assert_eq!(bed.exit(1), NOTHING);
    assert_eq!(bed.idle(2), ["terminate 2"]);
    assert_eq!(bed.exit(2), NOTHING);
    assert_eq!(bed.supervisor.app_state(), AppState::Ready);
}

#[test]
fn keeps_the_old_version_when_the_new_one_does_not_boot() {
    let mut bed = SupervisorHarness::ready(2);
    bed.send(SupervisorEvent::Restart);
    let lines = bed.fail(3);
    assert_eq!(lines, ["not restarted: Traceback", "terminate 3"]);
    assert_eq!(bed.supervisor.restart_error.as_deref(), Some("Traceback"));
    assert_eq!(bed.supervisor.app_state(), AppState::Ready);
    let (r1, r2) = ((1, WorkerState::Ready), (2, WorkerState::Ready));
    assert_eq!(bed.states(), [r1, r2]);
    assert_eq!(
        bed.exit(1),
        ["spawn 4 of 1"],
        "a crash brings back old code"
    );
}

#[test]
fn rolls_back_replaced_workers_when_the_new_version_fails() {
    let mut bed = SupervisorHarness::ready(2);
    bed.send(SupervisorEvent::Restart);
    assert_eq!(bed.boot(3), ["admit 3", "retire 1", "spawn 4 of 2"]);
    let lines = bed.fail(4);
    let done = "not restarted: Traceback";
    assert_eq!(lines, [done, "terminate 4", "spawn 5 of 1"]);
    assert_eq!(bed.boot(5), ["admit 5", "retire 3"]);
    assert_eq!(bed.supervisor.app_state(), AppState::Ready);
}

#[test]
fn gives_up_a_new_version_that_crashes_during_the_restart() {
    let mut bed = SupervisorHarness::ready(2);
    bed.send(SupervisorEvent::Restart);
    bed.boot(3);
    let why = "not restarted: the worker was killed by signal 9 soon after it was ready";
    assert_eq!(
        bed.exit(3),
        ["abandon 4", why, "spawn 5 of 1"],
        "the unspawned one waits"
    );
    assert_eq!(bed.spawned(4), ["terminate 4"]);
    assert_eq!(bed.exit(4), NOTHING);
    assert_eq!(bed.boot(5), ["admit 5"]);
}

#[test]
fn gives_up_a_new_version_that_gets_stuck_again_and_again() {
    let mut bed = SupervisorHarness::ready(2);
    let stuck = |id| SupervisorEvent::KillRequested {
        worker: WorkerId(id),
        reason: KillReason::ResponseTimedOut,
    };
    bed.send(SupervisorEvent::Restart);
    bed.boot(3);
    assert_eq!(bed.send(stuck(3)), ["retire 3", "kill 3", "spawn 5 of 2"]);
    bed.boot(5);
    let why = "not restarted: the worker was killed: a response took too long";
    let lines = bed.send(stuck(5));
    let expected = ["retire 5", "abandon 4", why, "kill 5", "spawn 6 of 1"];
    assert_eq!(lines, expected);
}

#[test]
fn a_crash_before_the_new_version_is_proven_brings_back_old_code() {
    let mut bed = SupervisorHarness::ready(2);
    bed.send(SupervisorEvent::Restart);
    assert_eq!(bed.exit(1), ["spawn 4 of 1"]);
    assert_eq!(bed.spawned(4), NOTHING);
    let lines = bed.boot(3);
    assert_eq!(lines, ["admit 3", "terminate 4", "spawn 5 of 2"]);
    assert_eq!(bed.exit(2), NOTHING, "its successor boots already");
    assert_eq!(bed.boot(5), ["admit 5", "restarted"]);
}

#[test]
fn a_restart_without_serving_workers_replaces_all_at_once() {
    let mut bed = SupervisorHarness::new(2);
    bed.send(SupervisorEvent::Started);
    bed.fail(1);
    bed.fail(2);
    assert_eq!(bed.sleep().1, ["spawn 3 of 1"]);
    bed.spawned(3);
    let lines = bed.send(SupervisorEvent::Restart);
    assert_eq!(lines, ["terminate 3", "spawn 4 of 2", "spawn 5 of 2"]);
    assert_eq!(bed.boot(4), ["admit 4"]);
    assert_eq!(bed.boot(5), ["admit 5", "restarted"]);
}

#[test]
fn a_restart_without_serving_workers_reports_the_new_traceback() {
    let mut bed = SupervisorHarness::new(1);
    bed.send(SupervisorEvent::Started);
    bed.fail(1);
    assert_eq!(bed.send(SupervisorEvent::Restart), ["spawn 2 of 2"]);
    let lines = bed.fail(2);
    assert_eq!(lines, ["not restarted: Traceback", "terminate 2"]);
    assert_eq!(
        bed.sleep().1,
        ["spawn 3 of 2"],
        "the newest code is retried"
    );
}

#[test]
fn restarts_asked_for_during_a_restart_become_one_more() {
    let mut bed = SupervisorHarness::ready(1);
    assert_eq!(bed.send(SupervisorEvent::Restart), ["spawn 2 of 2"]);
    for _ in 0..3 {
        assert_eq!(bed.send(SupervisorEvent::Restart), NOTHING);
    }
    let lines = bed.boot(2);
    assert_eq!(lines, ["admit 2", "retire 1", "restarted", "spawn 3 of 3"]);
    assert_eq!(bed.boot(3), ["admit 3", "retire 2", "restarted"]);
    assert!(!bed.supervisor.is_restarting());
}

#[test]
fn a_restart_without_processes_is_done_at_once() {
    let mut bed = SupervisorHarness::new(0);
    bed.send(SupervisorEvent::Started);
    assert_eq!(bed.send(SupervisorEvent::Restart), ["restarted"]);
}
