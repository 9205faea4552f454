//! How busy processes are: how much of a processor their threads have wanted of late.
//!
//! A part of the executor, for `supervisor::scaling`: a reactor takes nearly every request at once, so that no line
//! tells whether it still keeps up; and more threads help only where a process leaves room. Asked in the pool, once a
//! second and more often while requests wait, and only where numbers follow the load.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use penstock_runtime::{clock, loops};
use penstock_sys::process;

use super::{Executor, Input};
use crate::supervisor::{WorkerId, WorkerState};

/// For how long each process's threads had wanted a processor by then.
pub(super) type Wanted = (Instant, Vec<(WorkerId, Duration)>);

/// What is known of it.
#[derive(Debug, Default)]
pub(super) struct Busyness {
    is_asking: bool,
    /// When it was asked last.
    asked_at: Option<Instant>,
    seen: HashMap<WorkerId, Seen>,
}

#[derive(Debug)]
struct Seen {
    at: Instant,
    wanted: Duration,
    /// Of one processor, between the last two answers, and when the first of these came.
    percent: Option<(usize, Instant)>,
}

/// How far apart two answers are at least, for the time between them to say something.
const WINDOW: Duration = Duration::from_millis(300);

impl Executor {
    /// Asks, where anybody decides by the answer.
    pub(super) fn ask_busyness(&mut self) {
        if self.limits.load_at().is_none() || !self.tells_busyness() || self.busyness.is_asking {
            return;
        }
        self.busyness.is_asking = true;
        self.busyness.asked_at = Some(clock::now());
        let pids: Vec<_> = self.serving().collect();
        let work = move || -> Wanted {
            let wanted = pids.into_iter();
            let wanted =
                wanted.filter_map(|(id, pid)| Some((id, process::cpu_demand_time(pid).ok()?)));
            (clock::now(), wanted.collect())
        };
        let (store, inputs) = (self.shared.store.load_full(), self.inputs.clone());
        loops::spawn_here(async move {
            let wanted = store.pool.run(work).await;
            // The executor may have ended first.
            let _ = inputs.send(Input::Wanted(wanted.ok())).await;
        });
    }

    /// `None` when nobody could look: what was known stays.
    pub(super) fn handle_wanted(&mut self, wanted: Option<Wanted>) {
        self.busyness.is_asking = false;
        let Some((at, all)) = wanted else {
            return;
        };
        let before = std::mem::take(&mut self.busyness.seen);
        for (worker, wanted) in all {
            let percent = before.get(&worker).map(|seen| {
                let time = at.saturating_duration_since(seen.at).as_micros().max(1);
                // Threads that have ended are not counted any more.
                let share = wanted.saturating_sub(seen.wanted).as_micros() * 100 / time;
                (usize::try_from(share).unwrap_or(usize::MAX), seen.at)
            });
            let seen = Seen {
                at,
                wanted,
                percent,
            };
            self.busyness.seen.insert(worker, seen);
        }
    }

    /// Per cent of a processor that the processes want together, 100 at most for each; `None` where that says
    /// nothing.
    pub(super) fn busy_percent(&self) -> Option<usize> {
        if !self.tells_busyness() {
            return None;
        }
        let (sum, known, all) = self.watched();
        Some(match self.reactor() {
            Some(_) => sum,
            // Those that have just come do as the others.
            None => sum * all / known.max(1),
        })
    }

    /// Since when at least half of them have been watched for that; `None` while they have not been.
    pub(super) fn watched_from(&self) -> Option<Instant> {
        let (_, known, all) = self.watched();
        let from = |(id, _)| self.between(id).map(|(_, from)| from);
        let from = self.serving().filter_map(from).min();
        from.filter(|_| 2 * known >= all)
    }

    /// What those that have been watched want together, how many these are, and how many serve.
    fn watched(&self) -> (usize, usize, usize) {
        let percents = self.serving().filter_map(|(id, _)| self.between(id));
        let (sum, known) = percents.fold((0, 0), |(sum, known), (percent, _)| {
            (sum + percent.min(100), known + 1)
        });
        (sum, known, self.serving().count())
    }

    /// Asks sooner than the next round while requests wait: what helps them depends on the answer.
    pub(super) fn ask_busyness_soon(&mut self) {
        let asked = self.busyness.asked_at;
        if asked.is_none_or(|at| clock::now() >= at + WINDOW) {
            self.ask_busyness();
        }
    }

    fn between(&self, worker: WorkerId) -> Option<(usize, Instant)> {
        self.busyness.seen.get(&worker)?.percent
    }

    /// Whether anything is decided by how busy its processes are.
    fn tells_busyness(&self) -> bool {
        self.reactor().is_some() || self.config.has_spare_threads()
    }

    fn serving(&self) -> impl Iterator<Item = (WorkerId, u32)> {
        let workers = self.supervisor.workers();
        let ready = workers.filter(|worker| worker.state == WorkerState::Ready);
        ready.filter_map(|worker| Some((worker.id, worker.pid?)))
    }
}
