//! How busy processes are: how much of a processor their threads have wanted of late.
//!
//! A part of the executor, for `supervisor::scaling`: a reactor takes nearly every request at once, so that no line
//! tells whether it still keeps up; and more threads help only where a process leaves room. Asked once a second in the pool, and only where the number of processes follows
//! the load.

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
    seen: HashMap<WorkerId, Seen>,
}

#[derive(Debug)]
struct Seen {
    at: Instant,
    wanted: Duration,
    /// Of one processor, between the last two answers.
    percent: usize,
}

impl Executor {
    /// Asks, where anybody decides by the answer.
    pub(super) fn ask_busyness(&mut self) {
        if self.limits.load_at().is_none() || !self.tells_busyness() || self.busyness.is_asking {
            return;
        }
        self.busyness.is_asking = true;
        let pids: Vec<_> = self.serving().collect();
        let work = move || -> Wanted {
            let wanted = pids.into_iter();
            let wanted = wanted.filter_map(|(id, pid)| Some((id, process::wanted(pid).ok()?)));
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
            let percent = before.get(&worker).map_or(0, |seen| {
                let time = at.saturating_duration_since(seen.at).as_micros().max(1);
                // Threads that have ended are not counted any more.
                let share = wanted.saturating_sub(seen.wanted).as_micros() * 100 / time;
                usize::try_from(share).unwrap_or(usize::MAX)
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
        let of = |(id, _)| {
            self.busyness
                .seen
                .get(&id)
                .map_or(0, |seen| seen.percent.min(100))
        };
        Some(self.serving().map(of).sum())
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
