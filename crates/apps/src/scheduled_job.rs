//! A job that runs at times: when it runs next, and what has become of its runs.
//!
//! `penstock`'s components start it beside the applications; one task on the control loop waits for
//! its times.
//!
//! # Invariants
//! - Two runs of a job never overlap: a time that comes while it runs is left out and counted.
//! - A server that starts, or a reload that leaves the job as it is, starts no run.
//! - A stop ends a run as it ends an application: by SIGTERM, and SIGKILL after `stop_timeout`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use penstock_config::{Schedule, ScheduledJob as JobConfig};
use penstock_exchange::metrics::serialize_seconds;
use penstock_runtime::{clock, loops};
use penstock_sys::local_time::next_time_of_day;
use serde::Serialize;
use tokio::sync::watch;

use crate::executor::setup::AppResources;
use crate::program::{EndCause, ProgramRun, ProgramRunner};
use crate::stop_timeout;

/// A job and its task.
#[derive(Debug)]
pub struct ScheduledJob {
    config: JobConfig,
    state: Arc<Mutex<JobState>>,
    /// What is left to do; the receivers are gone when the task has ended.
    order: watch::Sender<JobOrder>,
    /// Whether a run is in progress, of this job or of one that it has replaced.
    is_running: Arc<AtomicBool>,
}

/// What a job is still to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JobOrder {
    /// Run at its times.
    Run,
    /// Begin no run; the present one goes on.
    Retire,
    /// End the present run as well.
    Stop,
}

/// A run in progress: its drop ends the claim.
struct RunClaim(Arc<AtomicBool>);

impl RunClaim {
    /// Claims the only run; `None` while another is in progress.
    fn take(is_running: &Arc<AtomicBool>) -> Option<Self> {
        let was_running = is_running.swap(true, Ordering::AcqRel);
        (!was_running).then(|| Self(Arc::clone(is_running)))
    }
}

impl Drop for RunClaim {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[derive(Debug, Clone, Default)]
struct JobState {
    next_at: Option<SystemTime>,
    /// When the present run began, and its process.
    running: Option<(SystemTime, u32)>,
    last: Option<LastRun>,
    counts: JobCounts,
    /// Runs that were killed as they did not end when asked to.
    killed: u64,
}

/// How often a job has run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct JobCounts {
    /// Runs that ended with status 0.
    pub succeeded: u64,
    /// Runs that ended otherwise, or could not begin.
    pub failed: u64,
    /// Times that came while it ran.
    pub skipped: u64,
}

/// The last run of a job.
#[derive(Debug, Clone, Serialize)]
pub struct LastRun {
    /// When it began, in seconds since 1970.
    pub started_at: u64,
    /// How long it took, in seconds.
    #[serde(rename = "seconds", serialize_with = "serialize_seconds")]
    pub took: Duration,
    /// How it ended: `exit status 0`.
    pub outcome: String,
    /// Whether it ended with status 0.
    pub succeeded: bool,
    /// Its last lines, where it has failed.
    pub last_lines: String,
}

/// A job as the status page shows it.
#[derive(Debug, Clone, Serialize)]
pub struct JobSnapshot {
    /// Its name.
    pub name: String,
    /// Its command line.
    pub command: String,
    /// When it runs: `at 03:30`.
    pub schedule: String,
    /// When it runs next, in seconds since 1970.
    pub next_at: Option<u64>,
    /// Since when it runs, in seconds since 1970.
    pub running_since: Option<u64>,
    /// The process of the present run.
    pub pid: Option<u32>,
    /// Its last run.
    pub last: Option<LastRun>,
    /// How often it has run.
    pub runs: JobCounts,
}

penstock_exchange::metric_table! {
    /// Metrics of jobs that run at times.
    pub static JOB_METRICS: |job: JobSnapshot| {
        counter job_runs_succeeded_total = job.runs.succeeded, "Runs that ended with status 0.";
        counter job_runs_failed_total = job.runs.failed,
            "Runs that ended otherwise, or could not begin.";
        counter job_runs_skipped_total = job.runs.skipped,
            "Times left out because the run before had not ended.";
        gauge job_running = u64::from(job.pid.is_some()), "Whether it runs.";
        gauge job_last_start_timestamp_seconds = job.last.as_ref().map_or(0, |last| last.started_at),
            "When its last run began, in seconds since 1970; 0 before the first.";
    }
}

impl ScheduledJob {
    /// Starts to wait for its times, on the current loop. It begins no run while one of the job
    /// that it replaces is in progress.
    #[must_use]
    pub fn start(
        config: JobConfig,
        resources: &AppResources,
        replaced: Option<&Self>,
    ) -> Arc<Self> {
        let (order, orders) = watch::channel(JobOrder::Run);
        let is_running = replaced.map(|old| Arc::clone(&old.is_running));
        let is_running = is_running.unwrap_or_default();
        let state = Arc::<Mutex<JobState>>::default();
        let task = JobTask {
            runner: ProgramRunner::new(
                config.program.clone(),
                stop_timeout::option_name(&config.program),
                resources.clone(),
            ),
            config: config.clone(),
            state: Arc::clone(&state),
            orders,
            is_running: Arc::clone(&is_running),
        };
        loops::spawn_here(task.run());
        Arc::new(Self {
            config,
            state,
            order,
            is_running,
        })
    }

    /// Lets it begin no more runs: another server has its times now. The present one goes on.
    pub fn retire(&self) {
        // Without its task there is nothing to retire.
        let _ = self.order.send(JobOrder::Retire);
    }

    /// What it was started with.
    #[must_use]
    pub fn config(&self) -> &JobConfig {
        &self.config
    }

    /// Ends it: a present run is asked to end. Returns when that has ended.
    pub async fn stop(&self) {
        // Without its task there is nothing to end.
        let _ = self.order.send(JobOrder::Stop);
        self.order.closed().await;
    }

    /// What to tell the operator about a run that [`Self::stop`] killed, if there is one.
    #[must_use]
    pub fn describe_stop_kills(&self) -> Option<String> {
        let killed = self.state.lock().killed;
        let program = &self.config.program;
        (killed > 0).then(|| {
            let option = stop_timeout::option_name(program);
            let told = stop_timeout::describe_kills(killed, program.stop_timeout, &option);
            format!("{}: {told}", program.name)
        })
    }

    /// What it does now.
    #[must_use]
    pub fn snapshot(&self) -> JobSnapshot {
        let state = self.state.lock().clone();
        let (running_since, pid) = state.running.unzip();
        JobSnapshot {
            name: self.config.program.name.clone(),
            command: self.config.program.command.join(" "),
            schedule: self.config.schedule.to_string(),
            next_at: state.next_at.map(unix_seconds),
            running_since: running_since.map(unix_seconds),
            pid,
            last: state.last,
            runs: state.counts,
        }
    }
}

/// What waits for the times.
struct JobTask {
    runner: ProgramRunner,
    config: JobConfig,
    state: Arc<Mutex<JobState>>,
    orders: watch::Receiver<JobOrder>,
    is_running: Arc<AtomicBool>,
}

impl JobTask {
    async fn run(mut self) {
        let mut previous = SystemTime::now();
        loop {
            let now = SystemTime::now();
            let (next, skipped) = next_run(&self.config.schedule, previous, now);
            {
                let mut state = self.state.lock();
                state.next_at = Some(next);
                state.counts.skipped += skipped;
            }
            if self.wait_until(next).await {
                return;
            }
            previous = next;
            match RunClaim::take(&self.is_running) {
                Some(_claim) => self.run_once().await,
                None => self.state.lock().counts.skipped += 1,
            }
            if self.is_over() {
                return;
            }
        }
    }

    fn is_over(&self) -> bool {
        *self.orders.borrow() != JobOrder::Run
    }

    /// Waits for a time of the wall clock, which may be set meanwhile; `true` if the job is to
    /// begin no run any more.
    async fn wait_until(&mut self, at: SystemTime) -> bool {
        loop {
            let left = at.duration_since(SystemTime::now()).unwrap_or_default();
            if left.is_zero() {
                return self.is_over();
            }
            let over = self.orders.wait_for(|order| *order != JobOrder::Run);
            let step = left.min(CLOCK_CHECK_INTERVAL);
            if clock::timeout(step, over).await.is_some() {
                return true;
            }
        }
    }

    async fn run_once(&mut self) {
        let name = &self.runner.config().name;
        let (began, since) = (SystemTime::now(), clock::now());
        let stop = {
            let mut orders = self.orders.clone();
            async move {
                let stopped = orders.wait_for(|order| *order == JobOrder::Stop);
                if stopped.await.is_err() {
                    // A reload has replaced the job: this run goes on to its end.
                    std::future::pending::<()>().await;
                }
            }
        };
        let started = |pid| self.state.lock().running = Some((began, pid));
        log::info!("job {name}: run");
        let run = self.runner.run(self.config.timeout, stop, started).await;
        let took = clock::now().saturating_duration_since(since);
        let (outcome, succeeded) = outcome_of(run.as_ref(), self.config.timeout);
        let is_stop_kill = |run: &ProgramRun| run.cause == EndCause::Stop && run.kill.is_some();
        let was_killed = run.as_ref().is_ok_and(is_stop_kill);
        let last_lines = match run {
            Ok(run) if !succeeded => end_of(&run.last_lines).to_owned(),
            _ => String::new(),
        };
        match succeeded {
            true => log::info!("job {name}: {outcome} after {took:.1?}"),
            false => log::error!("job {name}: {outcome} after {took:.1?}"),
        }
        let mut state = self.state.lock();
        state.running = None;
        state.killed += u64::from(was_killed);
        match succeeded {
            true => state.counts.succeeded += 1,
            false => state.counts.failed += 1,
        }
        state.last = Some(LastRun {
            started_at: unix_seconds(began),
            took,
            outcome,
            succeeded,
            last_lines,
        });
    }
}

/// Between two looks at the wall clock, which may be set, and stops while the machine sleeps.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// When a job runs next, and how many times have passed unused since the last run was due.
fn next_run(schedule: &Schedule, previous: SystemTime, now: SystemTime) -> (SystemTime, u64) {
    match schedule {
        Schedule::Every(interval) => {
            let late = now.duration_since(previous).unwrap_or_default();
            let passed = late.as_nanos() / interval.as_nanos().max(1);
            let passed = u32::try_from(passed).unwrap_or(u32::MAX - 1);
            let next = previous + interval.saturating_mul(passed + 1);
            (next, u64::from(passed))
        }
        Schedule::At(times) => {
            let following = |after: SystemTime| {
                let after = unix_seconds(after);
                let next = times.iter().filter_map(|time| {
                    next_time_of_day(after, u32::from(time.hour), u32::from(time.minute))
                });
                // A day later than no time at all is never reached.
                let next = next.min().unwrap_or(after + 86_400);
                SystemTime::UNIX_EPOCH + Duration::from_secs(next)
            };
            let (mut next, mut skipped) = (following(previous), 0);
            while next < now && skipped < MAX_COUNTED_SKIPS {
                (next, skipped) = (following(next), skipped + 1);
            }
            (next.max(following(now)), skipped)
        }
    }
}

/// More are not counted: the clock was set.
const MAX_COUNTED_SKIPS: u64 = 100;

/// How a run has ended, in words, and whether it did what it was to do.
fn outcome_of(run: Result<&ProgramRun, &String>, limit: Option<Duration>) -> (String, bool) {
    match run {
        Ok(run) => run.outcome(("timeout", limit)),
        Err(why) => (format!("cannot start: {why}"), false),
    }
}

/// Bytes of the output of a run that are kept.
const MAX_KEPT_OUTPUT: usize = 2048;

/// The last lines of an output.
fn end_of(output: &str) -> &str {
    let from = output.len().saturating_sub(MAX_KEPT_OUTPUT);
    let from = (from..=output.len()).find(|&at| output.is_char_boundary(at));
    &output[from.unwrap_or(output.len())..]
}

fn unix_seconds(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use penstock_sys::process::ProcessExit;

    use super::*;
    use crate::program::EndCause;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn a_run_that_takes_longer_than_its_interval_leaves_times_out() {
        let every = Schedule::Every(Duration::from_secs(10));
        for (previous, now, expected) in [
            (100, 100, (110, 0)),
            (100, 109, (110, 0)),
            (100, 110, (120, 1)),
            (100, 135, (140, 3)),
            // A clock that was set back.
            (100, 50, (110, 0)),
        ] {
            let (next, skipped) = next_run(&every, at(previous), at(now));
            assert_eq!((unix_seconds(next), skipped), expected, "{previous} {now}");
        }
    }

    #[test]
    fn a_time_of_the_day_comes_once_a_day() {
        let times = ["03:30", "15:00"].map(|text| penstock_config::TimeOfDay::parse(text).unwrap());
        let schedule = Schedule::At(times.into());
        let (mut time, begin) = (at(1_780_000_000), 1_780_000_000);
        let mut gaps = Vec::new();
        for _ in 0..8 {
            let (next, skipped) = next_run(&schedule, time, time);
            assert_eq!(skipped, 0);
            gaps.push(next.duration_since(time).unwrap().as_secs());
            time = next;
        }
        // Whatever the time zone: two in each day, but for a change of the clock by an hour.
        let days = (unix_seconds(time) - begin).div_ceil(86_400);
        assert!((4..=5).contains(&days), "{gaps:?}");
        assert!(
            gaps.iter().all(|gap| *gap > 0 && *gap <= 86_400),
            "{gaps:?}"
        );
        // One that ended a day too late.
        let (next, skipped) = next_run(&schedule, time, time + Duration::from_secs(86_400 + 60));
        assert!(skipped >= 1 && next > time + Duration::from_secs(86_400));
    }

    #[test]
    fn only_a_status_of_0_is_a_success() {
        let run = |exit, cause| {
            Ok(ProgramRun {
                exit: Some(exit),
                cause,
                kill: None,
                last_lines: String::new(),
            })
        };
        let limit = Some(Duration::from_secs(5));
        for (result, succeeded) in [
            (run(ProcessExit::Code(0), EndCause::Itself), true),
            (run(ProcessExit::Code(1), EndCause::Itself), false),
            (run(ProcessExit::Signal(9), EndCause::Itself), false),
            (run(ProcessExit::Code(0), EndCause::TimeLimit), false),
            (run(ProcessExit::Code(0), EndCause::Stop), false),
            (Err("no program".to_owned()), false),
        ] {
            let result: Result<ProgramRun, String> = result;
            let (outcome, found) = outcome_of(result.as_ref(), limit);
            assert_eq!(found, succeeded, "{outcome}");
        }
    }
}
