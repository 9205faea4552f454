//! Workers that become templates: what they have loaded and warmed up while they served is then shared by
//! all that are forked from them.
//!
//! Once a worker of the current code has served as many requests as `refork_after` says it is replaced in due
//! form; retired and idle it is told PROMOTE, and takes the place of the template that there was. The
//! others of its generation follow one by one, as worn ones. What must stay true: there is never less
//! than a whole set of workers for it; a worker that cannot be forked from ends as any retired one does, and
//! its generation stays with the template that it has.

use std::time::Duration;

use penstock_runtime::clock;

use super::{ControlMessage, Executor, Input, Key, Role};
use crate::supervisor::{Event, ExitSummary, WorkerId, WorkerState, Worn};

/// How long a worker may take to become a template: it collects its garbage once.
const PROMOTION: Duration = Duration::from_secs(10);

/// Whether a worker is to become a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Promotion {
    /// No, or not any more.
    None,
    /// Once it is retired and idle.
    Wanted,
    /// It was told.
    Told,
    /// It was told, and is not wanted as one any more.
    GivenUp,
}

impl Executor {
    /// Looks for a worker that has served enough to become the template.
    pub(super) fn look_for_template(&mut self) {
        if self.config.refork_after.is_empty() || self.config.has_reactor() || self.is_draining {
            return;
        }
        let (current, fallback) = self.supervisor.generations();
        let Some((_, renewals)) = self.templates.ready(current) else {
            return;
        };
        let is_busy = fallback.is_some()
            || self.templates.settled.contains(&current)
            || self
                .children
                .values()
                .any(|c| matches!(c.promotion, Promotion::Wanted | Promotion::Told));
        let numbers = &self.config.refork_after;
        let Some(enough) = numbers.get(renewals).or_else(|| numbers.last()).copied() else {
            return;
        };
        if is_busy {
            return;
        }
        let served = |worker: &WorkerId| match self.children.get(worker).map(|child| &child.role) {
            Some(Role::Worker(slots)) => slots.ledger().served(),
            _ => 0,
        };
        let is_ripe = |worker: &&crate::supervisor::Worker| {
            worker.generation == current
                && worker.state == WorkerState::Ready
                && worker.worn().is_none()
                && served(&worker.id) >= enough.max(1)
                && self
                    .children
                    .get(&worker.id)
                    .is_some_and(|c| c.template.is_some())
        };
        let ripe = self.supervisor.workers().filter(is_ripe);
        let Some(worker) = ripe.max_by_key(|w| served(&w.id)).map(|w| w.id) else {
            return;
        };
        if let Some(child) = self.children.get_mut(&worker) {
            child.promotion = Promotion::Wanted;
            let why = Worn::Refork;
            self.event(Event::Recycle { worker, why });
        }
    }

    /// A worker has nothing in progress any more; `true` when it was told to become a template, and is not
    /// to end now.
    pub(super) fn promote(&mut self, worker: WorkerId) -> bool {
        let (current, _) = self.supervisor.generations();
        let is_draining = self.is_draining;
        let Some(child) = self.children.get_mut(&worker) else {
            return false;
        };
        if child.promotion != Promotion::Wanted || !child.is_retiring {
            return child.promotion == Promotion::Told && child.is_retiring;
        }
        let is_of_use = !is_draining && child.generation == current;
        let is_told = is_of_use && child.control.as_ref().is_some_and(|c| c.promote());
        child.promotion = if is_told {
            Promotion::Told
        } else {
            Promotion::None
        };
        if is_told {
            let at = clock::now() + PROMOTION;
            self.later(at, Input::PromotionOverdue { worker });
        }
        is_told
    }

    /// What a worker says that was told to become a template; `false` when it was not.
    pub(super) fn handle_promoted(&mut self, worker: WorkerId, message: &ControlMessage) -> bool {
        let ControlMessage::Ready { prevents_fork, .. } = message else {
            return false;
        };
        let child = self.children.get(&worker);
        if child.is_none_or(|child| child.promotion != Promotion::Told) {
            return false;
        }
        let is_it =
            |w: &crate::supervisor::Worker| w.id == worker && w.state == WorkerState::Retiring;
        let is_retiring = self.supervisor.workers().any(is_it);
        let (current, _) = self.supervisor.generations();
        let is_current = child.is_some_and(|child| child.generation == current);
        match prevents_fork {
            _ if !is_retiring || !is_current || self.is_draining => {
                self.give_up_promotion(worker, None);
            }
            Some(why) => self.give_up_promotion(worker, Some(why)),
            None => self.enthrone_worker(worker),
        }
        true
    }

    pub(super) fn handle_promotion_overdue(&mut self, worker: WorkerId) {
        let child = self.children.get(&worker);
        if child.is_some_and(|child| child.promotion == Promotion::Told) {
            let why = format!("it did not become one within {PROMOTION:?}");
            self.give_up_promotion(worker, Some(&why));
        }
    }

    /// The worker ends as any other that is retired and idle.
    fn give_up_promotion(&mut self, worker: WorkerId, why: Option<&str>) {
        let Some(child) = self.children.get_mut(&worker) else {
            return;
        };
        child.promotion = Promotion::GivenUp;
        if let Some(why) = why {
            let (name, pid, generation) = (&self.shared.name, child.pid, child.generation);
            log::warn!(
                "{name}[{pid}]: generation {generation} keeps the template that it has, \
                 the worker cannot be one: {why}"
            );
            self.templates.settled.push(generation);
        }
        self.event(Event::Idle { worker });
    }

    fn enthrone_worker(&mut self, worker: WorkerId) {
        let Some(child) = self.children.remove(&worker) else {
            return;
        };
        let (name, pid, generation) = (&self.shared.name, child.pid, child.generation);
        log::info!("{name}[{pid}]: the worker is the template of generation {generation} now");
        self.enthrone(worker, child);
        // As far as the supervisor goes it has ended.
        let status = ExitSummary::Code(0);
        self.event(Event::Exited { worker, status });
        let ours = Key::Worker(worker);
        let is_older = |child: &super::Child| {
            child.generation == generation && !child.is_retiring && child.template != Some(ours)
        };
        let older = self.children.iter().filter(|(_, child)| is_older(child));
        let older: Vec<WorkerId> = older.map(|(worker, _)| *worker).collect();
        for worker in older {
            let why = Worn::Refork;
            self.event(Event::Recycle { worker, why });
        }
    }
}
