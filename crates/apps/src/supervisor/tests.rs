//! One rule a test: events go in, a short transcript of the actions comes out. Random orders of
//! events are in `simulation.rs`.

mod replacement;
mod restarts;
mod scaling;

use super::*;

struct SupervisorHarness {
    supervisor: Supervisor,
    now: Instant,
    reports: Vec<SupervisorReport>,
    wake_at: Option<Instant>,
}

impl SupervisorHarness {
    fn new(processes: usize) -> Self {
        let policy = SupervisorPolicy {
            min_processes: processes,
            max_processes: processes,
            ..SupervisorPolicy::default()
        };
        Self {
            supervisor: Supervisor::new(policy),
            now: Instant::now(),
            reports: Vec::new(),
            wake_at: None,
        }
    }

    /// Started, with workers 1 to `processes` ready.
    fn ready(processes: usize) -> Self {
        let mut harness = Self::new(processes);
        harness.send(SupervisorEvent::Started);
        for id in 1..=processes as u64 {
            harness.boot(id);
        }
        assert_eq!(harness.supervisor.app_state(), AppState::Ready);
        harness
    }

    fn send(&mut self, event: SupervisorEvent) -> Vec<String> {
        let actions = self.supervisor.handle_event(self.now, event);
        self.transcript(actions)
    }

    fn resize(&mut self, processes: usize) -> Vec<String> {
        let mut policy = self.supervisor.policy;
        policy.min_processes = processes;
        policy.max_processes = processes;
        self.supervisor.policy = policy;
        let actions = self.supervisor.reconcile(self.now);
        self.transcript(actions)
    }

    /// Reports and alarms are kept aside, the rest is written down.
    fn transcript(&mut self, actions: Vec<SupervisorAction>) -> Vec<String> {
        let mut lines = Vec::new();
        for action in actions {
            lines.push(match action {
                SupervisorAction::Spawn { worker, generation } => {
                    format!("spawn {worker} of {generation}")
                }
                SupervisorAction::Admit { worker } => format!("admit {worker}"),
                SupervisorAction::Retire { worker } => format!("retire {worker}"),
                SupervisorAction::Abandon { worker } => format!("abandon {worker}"),
                SupervisorAction::Signal { worker, signal } => match signal {
                    StopSignal::Terminate => format!("terminate {worker}"),
                    StopSignal::Kill => format!("kill {worker}"),
                },
                SupervisorAction::SetThreads(threads) => format!("{threads} threads"),
                SupervisorAction::Stopped => "stopped".to_owned(),
                SupervisorAction::RestartDone(Ok(())) => "restarted".to_owned(),
                SupervisorAction::RestartDone(Err(why)) => format!("not restarted: {why}"),
                SupervisorAction::Report(report) => {
                    self.reports.push(report);
                    continue;
                }
                SupervisorAction::WakeAt(at) => {
                    assert!(at > self.now, "an alarm is in the future");
                    self.wake_at = Some(at);
                    continue;
                }
            });
        }
        lines
    }

    fn spawned(&mut self, id: u64) -> Vec<String> {
        let pid = 1000 + u32::try_from(id).unwrap();
        self.send(SupervisorEvent::Spawned {
            worker: WorkerId(id),
            pid,
        })
    }

    /// It becomes ready; it may have been spawned before.
    fn boot(&mut self, id: u64) -> Vec<String> {
        assert_eq!(self.spawned(id), NOTHING);
        self.send(SupervisorEvent::Ready {
            worker: WorkerId(id),
            boot: Duration::from_millis(200),
        })
    }

    fn fail(&mut self, id: u64) -> Vec<String> {
        let mut lines = self.spawned(id);
        lines.extend(self.send(SupervisorEvent::BootFailed {
            worker: WorkerId(id),
            report: "Traceback".to_owned(),
        }));
        lines.extend(self.exit(id));
        lines
    }

    fn exit(&mut self, id: u64) -> Vec<String> {
        self.send(SupervisorEvent::Exited {
            worker: WorkerId(id),
            status: ExitSummary::Signal(9),
        })
    }

    fn idle(&mut self, id: u64) -> Vec<String> {
        let worker = WorkerId(id);
        self.send(SupervisorEvent::Idle { worker })
    }

    /// Lets time pass until the alarm and answers how long that was.
    fn sleep(&mut self) -> (Duration, Vec<String>) {
        let at = self.wake_at.take().expect("an alarm is set");
        let slept = at - self.now;
        self.now = at;
        (slept, self.send(SupervisorEvent::Tick))
    }

    fn states(&self) -> Vec<(u64, WorkerState)> {
        let workers = self.supervisor.workers();
        workers.map(|w| (w.id.0, w.state)).collect()
    }
}

fn recycle(worker: WorkerId) -> SupervisorEvent {
    let why = ReplaceReason::Requests(500);
    SupervisorEvent::ReplacementRequested { worker, why }
}

const NOTHING: [&str; 0] = [];

#[test]
fn spawns_all_processes_and_admits_each_as_it_becomes_ready() {
    let mut harness = SupervisorHarness::new(2);
    assert_eq!(harness.supervisor.app_state(), AppState::Stopped);
    assert_eq!(
        harness.send(SupervisorEvent::Started),
        ["spawn 1 of 1", "spawn 2 of 1"]
    );
    assert_eq!(harness.supervisor.app_state(), AppState::Starting);
    assert_eq!(harness.boot(2), ["admit 2"]);
    assert_eq!(harness.supervisor.app_state(), AppState::Starting);
    assert_eq!(harness.boot(1), ["admit 1"]);
    assert_eq!(harness.supervisor.app_state(), AppState::Ready);
    let up = SupervisorReport::Up {
        took: Duration::ZERO,
    };
    assert_eq!(harness.reports.last(), Some(&up));
}

#[test]
fn replaces_the_first_crash_at_once_and_then_backs_off() {
    let mut harness = SupervisorHarness::ready(2);
    assert_eq!(harness.exit(1), ["spawn 3 of 1"]);
    assert_eq!(harness.supervisor.app_state(), AppState::Degraded);
    harness.boot(3);
    for (worker, delay) in [(3, 100), (4, 200), (5, 400), (6, 500)] {
        assert_eq!(harness.exit(worker), NOTHING, "{worker}");
        let respawn = vec![format!("spawn {} of 1", worker + 1)];
        assert_eq!(harness.sleep(), (Duration::from_millis(delay), respawn));
        harness.boot(worker + 1);
    }
    assert_eq!(
        harness.exit(2),
        ["spawn 8 of 1"],
        "another replica is not slowed"
    );
}

#[test]
fn backs_off_no_longer_than_the_maximum() {
    let mut harness = SupervisorHarness::new(1);
    harness.send(SupervisorEvent::Started);
    let mut slept = Vec::new();
    for worker in 1..=12 {
        harness.fail(worker);
        slept.push(harness.sleep().0.as_millis());
    }
    let expected = [
        100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000, 30000,
    ];
    assert_eq!(slept, expected);
}

#[test]
fn forgets_crashes_after_a_worker_was_ready_for_a_while() {
    let mut harness = SupervisorHarness::ready(1);
    harness.exit(1);
    harness.boot(2);
    harness.now += Duration::from_secs(10);
    assert_eq!(harness.exit(2), ["spawn 3 of 1"]);
}

#[test]
fn reports_a_failed_boot_and_retries_with_one_worker() {
    let mut harness = SupervisorHarness::new(3);
    harness.send(SupervisorEvent::Started);
    for worker in 1..=3 {
        assert_eq!(harness.fail(worker), [format!("terminate {worker}")]);
    }
    let failing = AppState::Failing {
        report: "Traceback".to_owned(),
    };
    assert_eq!(harness.supervisor.app_state(), failing);
    let probe = vec!["spawn 4 of 1".to_owned()];
    let delay = Duration::from_millis(100);
    assert_eq!(
        harness.sleep(),
        (delay, probe),
        "three failed together: one failure"
    );
    let lines = harness.boot(4);
    assert_eq!(lines, ["admit 4", "spawn 5 of 1", "spawn 6 of 1"]);
}

#[test]
fn every_way_not_to_boot_is_reported() {
    let worker = WorkerId(1);
    let rows = [
        (
            "not spawned",
            SupervisorEvent::SpawnFailed {
                worker,
                reason: "no such file".to_owned(),
            },
            "no such file",
        ),
        (
            "exited",
            SupervisorEvent::Exited {
                worker,
                status: ExitSummary::Code(0),
            },
            "the worker exited with status 0 before it was ready",
        ),
        (
            "babbled",
            SupervisorEvent::KillRequested {
                worker,
                reason: KillReason::ProtocolBroken,
            },
            "the worker was killed: it broke the worker protocol",
        ),
    ];
    for (name, event, expected) in rows {
        let mut harness = SupervisorHarness::new(1);
        harness.send(SupervisorEvent::Started);
        harness.send(event);
        let report = expected.to_owned();
        assert_eq!(
            harness.supervisor.app_state(),
            AppState::Failing { report },
            "{name}"
        );
        assert!(harness.wake_at.is_some(), "{name}: it is tried again");
    }
}

#[test]
fn kills_a_worker_that_does_not_become_ready_in_time() {
    let mut harness = SupervisorHarness::new(1);
    harness.send(SupervisorEvent::Started);
    harness.spawned(1);
    let (slept, lines) = harness.sleep();
    assert_eq!((slept.as_secs(), lines), (60, vec!["kill 1".to_owned()]));
    let report = "the worker was not ready after 60s and was killed".to_owned();
    assert_eq!(harness.supervisor.app_state(), AppState::Failing { report });
    assert_eq!(harness.exit(1), NOTHING);
    assert_eq!(harness.sleep().1, ["spawn 2 of 1"]);
}

#[test]
fn kills_a_stuck_worker_and_replaces_it_at_once() {
    let worker = WorkerId(1);
    for event in [
        SupervisorEvent::KillRequested {
            worker,
            reason: KillReason::ResponseTimedOut,
        },
        SupervisorEvent::KillRequested {
            worker,
            reason: KillReason::ProtocolBroken,
        },
    ] {
        let mut harness = SupervisorHarness::ready(2);
        let lines = harness.send(event.clone());
        assert_eq!(lines, ["retire 1", "kill 1", "spawn 3 of 1"], "{event:?}");
        harness.boot(3);
        assert_eq!(harness.send(event), NOTHING, "once is enough");
        assert_eq!(harness.exit(1), NOTHING);
    }
}

#[test]
fn backs_off_when_workers_get_stuck_again_and_again() {
    let mut harness = SupervisorHarness::ready(1);
    harness.send(SupervisorEvent::KillRequested {
        worker: WorkerId(1),
        reason: KillReason::ResponseTimedOut,
    });
    harness.boot(2);
    let lines = harness.send(SupervisorEvent::KillRequested {
        worker: WorkerId(2),
        reason: KillReason::ResponseTimedOut,
    });
    assert_eq!(lines, ["retire 2", "kill 2"]);
    assert_eq!(harness.sleep().1, ["spawn 3 of 1"]);
}

#[test]
fn recycles_a_worn_worker_in_due_form() {
    let mut harness = SupervisorHarness::ready(2);
    let worker = WorkerId(2);
    assert_eq!(harness.send(recycle(worker)), ["spawn 3 of 1"]);
    assert_eq!(harness.send(recycle(worker)), NOTHING);
    assert_eq!(harness.boot(3), ["admit 3", "retire 2"]);
    assert_eq!(harness.idle(2), ["terminate 2"]);
}

#[test]
fn drains_by_finishing_then_terminating_then_killing() {
    let mut harness = SupervisorHarness::ready(2);
    assert_eq!(
        harness.send(SupervisorEvent::Drain),
        ["retire 2", "retire 1"]
    );
    assert_eq!(harness.supervisor.app_state(), AppState::Draining);
    assert_eq!(harness.send(SupervisorEvent::Drain), NOTHING);
    assert_eq!(harness.idle(1), ["terminate 1"]);
    assert_eq!(harness.exit(1), NOTHING);
    assert_eq!(harness.idle(2), ["terminate 2"]);
    let killed = vec!["kill 2".to_owned()];
    assert_eq!(harness.sleep(), (Duration::from_secs(10), killed));
    assert_eq!(harness.exit(2), ["stopped"]);
    assert_eq!(harness.supervisor.app_state(), AppState::Stopped);
}

#[test]
fn an_overdue_drain_terminates_those_that_still_work() {
    let mut harness = SupervisorHarness::ready(1);
    assert_eq!(
        harness.send(SupervisorEvent::DrainOverdue),
        NOTHING,
        "no drain yet"
    );
    harness.send(SupervisorEvent::Drain);
    assert_eq!(harness.send(SupervisorEvent::DrainOverdue), ["terminate 1"]);
    assert_eq!(harness.exit(1), ["stopped"]);
}

#[test]
fn a_drain_waits_for_processes_that_are_still_being_spawned() {
    let mut harness = SupervisorHarness::new(2);
    harness.send(SupervisorEvent::Started);
    harness.spawned(1);
    assert_eq!(
        harness.send(SupervisorEvent::Drain),
        ["abandon 2", "terminate 1"]
    );
    assert_eq!(harness.exit(1), NOTHING);
    assert_eq!(harness.spawned(2), ["terminate 2"]);
    assert_eq!(harness.exit(2), ["stopped"]);
}

#[test]
fn a_drain_answers_every_restart() {
    let mut harness = SupervisorHarness::ready(1);
    harness.send(SupervisorEvent::Restart);
    harness.send(SupervisorEvent::Restart);
    let why = "not restarted: the application is stopping";
    assert_eq!(
        harness.send(SupervisorEvent::Drain),
        [why, why, "abandon 2", "retire 1"]
    );
    let why = "not restarted: the application is not running";
    assert_eq!(harness.send(SupervisorEvent::Restart), [why]);
}

#[test]
fn a_drain_before_the_start_completes_at_once() {
    assert_eq!(
        SupervisorHarness::new(2).send(SupervisorEvent::Drain),
        ["stopped"]
    );
}

#[test]
fn starts_again_after_a_drain() {
    let mut harness = SupervisorHarness::ready(1);
    harness.send(SupervisorEvent::Drain);
    harness.idle(1);
    harness.exit(1);
    assert_eq!(harness.send(SupervisorEvent::Started), ["spawn 2 of 1"]);
    harness.boot(2);
    assert_eq!(harness.supervisor.app_state(), AppState::Ready);
}

#[test]
fn follows_a_change_of_the_number_of_processes() {
    let mut harness = SupervisorHarness::ready(2);
    assert_eq!(harness.resize(3), ["spawn 3 of 1"]);
    assert_eq!(harness.spawned(3), NOTHING);
    assert_eq!(harness.resize(1), ["terminate 3", "retire 2"]);
    assert_eq!(harness.supervisor.app_state(), AppState::Ready);
    assert_eq!(harness.resize(2), ["spawn 4 of 1"]);
}

#[test]
fn ignores_unknown_and_unexpected_events() {
    let boot = Duration::ZERO;
    for id in [1, 77] {
        let worker = WorkerId(id);
        let rows = [
            SupervisorEvent::Idle { worker },
            SupervisorEvent::Started,
            SupervisorEvent::Ready { worker, boot },
            SupervisorEvent::BootFailed {
                worker,
                report: String::new(),
            },
        ];
        for event in rows {
            let mut harness = SupervisorHarness::ready(1);
            assert_eq!(harness.send(event.clone()), NOTHING, "{event:?}");
            assert_eq!(harness.states(), [(1, WorkerState::Ready)], "{event:?}");
        }
    }
    let mut harness = SupervisorHarness::ready(1);
    let worker = WorkerId(77);
    assert_eq!(harness.exit(77), NOTHING);
    assert_eq!(
        harness.send(SupervisorEvent::KillRequested {
            worker,
            reason: KillReason::ResponseTimedOut
        }),
        NOTHING
    );
    assert_eq!(harness.send(recycle(worker)), NOTHING);
    let reason = String::new();
    assert_eq!(
        harness.send(SupervisorEvent::SpawnFailed { worker, reason }),
        NOTHING
    );
}

#[test]
fn an_early_tick_sets_the_alarm_again() {
    let mut harness = SupervisorHarness::new(1);
    harness.send(SupervisorEvent::Started);
    let at = harness.wake_at.take();
    harness.now += Duration::from_secs(1);
    assert_eq!(harness.send(SupervisorEvent::Tick), NOTHING);
    assert_eq!(harness.wake_at, at);
}

#[test]
fn time_outs_without_end_are_no_time_outs() {
    let policy = SupervisorPolicy {
        boot_timeout: Duration::MAX,
        stop_timeout: Duration::MAX,
        min_backoff: Duration::MAX,
        max_backoff: Duration::MAX,
        ..SupervisorPolicy::default()
    };
    let mut harness = SupervisorHarness::new(1);
    harness.supervisor = Supervisor::new(policy);
    harness.send(SupervisorEvent::Started);
    assert_eq!(harness.wake_at, None);
    assert_eq!(harness.fail(1), ["terminate 1"]);
    assert!(harness.wake_at.is_some());
}
