//! CPU usage of processes: how much of a processor their threads wanted recently.
//!
//! A part of the executor, for `supervisor::scaling`: a reactor takes nearly every request at once,
//! so its queue does not tell whether it keeps up; and more threads help only where a process
//! leaves room. Measured in the pool, once a second and more often while requests wait, and only
//! where numbers follow the load.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use penstock_runtime::clock;
use penstock_sys::process;

use super::Executor;
use crate::supervisor::{WorkerId, WorkerState};

/// For how long each process's threads had wanted a processor by then.
pub(super) type CpuSample = (Instant, Vec<(WorkerId, Duration)>);

#[derive(Debug, Default)]
pub(super) struct CpuUsage {
    is_measuring: bool,
    measured_at: Option<Instant>,
    last_samples: HashMap<WorkerId, WorkerCpu>,
}

#[derive(Debug)]
struct WorkerCpu {
    sampled_at: Instant,
    cpu_time: Duration,
    /// Of one processor, between the last two answers, and when the first of these came.
    usage: Option<(usize, Instant)>,
}

/// How far apart two answers are at least, for the time between them to say something.
const MIN_SAMPLE_INTERVAL: Duration = Duration::from_millis(300);

impl Executor {
    /// Asks, where anybody decides by the answer.
    pub(super) fn measure_cpu(&mut self) {
        if self.limits.next_load_at.is_none()
            || !self.needs_cpu_usage()
            || self.cpu_usage.is_measuring
        {
            return;
        }
        self.cpu_usage.is_measuring = true;
        self.cpu_usage.measured_at = Some(clock::now());
        let pids: Vec<_> = self.ready_workers().collect();
        let work = move || -> CpuSample {
            let wanted = pids.into_iter();
            let wanted =
                wanted.filter_map(|(id, pid)| Some((id, process::cpu_demand_time(pid).ok()?)));
            (clock::now(), wanted.collect())
        };
        self.run_in_pool(false, work, Self::handle_cpu_measured);
    }

    /// `None` if there was no reading: the last one stays.
    pub(super) fn handle_cpu_measured(&mut self, wanted: Option<CpuSample>) {
        self.cpu_usage.is_measuring = false;
        let Some((at, all)) = wanted else {
            return;
        };
        let before = std::mem::take(&mut self.cpu_usage.last_samples);
        for (worker, wanted) in all {
            let percent = before.get(&worker).map(|seen| {
                let time = at
                    .saturating_duration_since(seen.sampled_at)
                    .as_micros()
                    .max(1);
                // Threads that have ended are not counted any more.
                let share = wanted.saturating_sub(seen.cpu_time).as_micros() * 100 / time;
                (
                    usize::try_from(share).unwrap_or(usize::MAX),
                    seen.sampled_at,
                )
            });
            let seen = WorkerCpu {
                sampled_at: at,
                cpu_time: wanted,
                usage: percent,
            };
            self.cpu_usage.last_samples.insert(worker, seen);
        }
    }

    /// Per cent of a processor that the processes want together, 100 at most for each; `None` where
    /// that says nothing.
    pub(super) fn busy_percent(&self) -> Option<usize> {
        if !self.needs_cpu_usage() {
            return None;
        }
        let (sum, known, all) = self.cpu_totals();
        Some(match self.config.has_reactor() {
            true => sum,
            // Those that have just come do as the others.
            false => sum * all / known.max(1),
        })
    }

    /// Since when at least half of them have been watched for that; `None` while they have not
    /// been.
    pub(super) fn cpu_known_since(&self) -> Option<Instant> {
        let (_, known, all) = self.cpu_totals();
        let from = |(id, _)| self.worker_cpu(id).map(|(_, from)| from);
        let from = self.ready_workers().filter_map(from).min();
        from.filter(|_| 2 * known >= all)
    }

    /// What those that have been watched want together, how many these are, and how many serve.
    fn cpu_totals(&self) -> (usize, usize, usize) {
        let percents = self
            .ready_workers()
            .filter_map(|(id, _)| self.worker_cpu(id));
        let (sum, known) = percents.fold((0, 0), |(sum, known), (percent, _)| {
            (sum + percent.min(100), known + 1)
        });
        (sum, known, self.ready_workers().count())
    }

    /// Asks sooner than the next round while requests wait: what helps them depends on the answer.
    pub(super) fn measure_cpu_soon(&mut self) {
        let asked = self.cpu_usage.measured_at;
        if asked.is_none_or(|at| clock::now() >= at + MIN_SAMPLE_INTERVAL) {
            self.measure_cpu();
        }
    }

    fn worker_cpu(&self, worker: WorkerId) -> Option<(usize, Instant)> {
        self.cpu_usage.last_samples.get(&worker)?.usage
    }

    /// Whether anything is decided by how busy its processes are.
    fn needs_cpu_usage(&self) -> bool {
        self.config.has_reactor() || self.config.has_spare_threads()
    }

    fn ready_workers(&self) -> impl Iterator<Item = (WorkerId, u32)> {
        let workers = self.supervisor.workers();
        let ready = workers.filter(|worker| worker.state == WorkerState::Ready);
        ready.filter_map(|worker| Some((worker.id, worker.pid?)))
    }
}
