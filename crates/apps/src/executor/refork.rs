//! Workers that become templates: the memory that they loaded and warmed up while serving is then
//! shared by all that are forked from them.
//!
//! A worker of the current code that has served `refork_after` requests is replaced as usual.
//! Retired and idle it gets PROMOTE, and takes the place of the template. The others of its
//! generation are replaced one by one.
//!
//! # Invariants
//! - There is never less than a full set of workers meanwhile.
//! - A worker that cannot be forked from ends as any retired one, and its generation keeps its
//!   template.

use std::time::Duration;

use penstock_runtime::clock;

use super::control::ControlHandle;
use super::{ControlMessage, Executor, ProcessKey};
use crate::supervisor::{ExitSummary, ReplaceReason, SupervisorEvent, WorkerId, WorkerState};

/// How long a worker may take to become a template: it collects its garbage once.
const PROMOTION_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Promotion {
    /// No, or not any more.
    None,
    /// Once it is retired and idle.
    Planned,
    Requested,
    /// It was promoted, and is not wanted as one any more.
    Cancelled,
}

impl Executor {
    /// Looks for a worker that has served enough to become the template.
    pub(super) fn plan_refork(&mut self) {
        if self.config.refork_after.is_empty() || self.config.has_reactor() || self.is_draining {
            return;
        }
        let (current, fallback) = self.supervisor.current_and_fallback_generations();
        let Some((_, renewals)) = self.templates.find_ready(current) else {
            return;
        };
        let is_busy = fallback.is_some()
            || self.templates.not_reforked.contains(&current)
            || self
                .children
                .values()
                .any(|c| matches!(c.promotion, Promotion::Planned | Promotion::Requested));
        let numbers = &self.config.refork_after;
        let Some(enough) = numbers.get(renewals).or_else(|| numbers.last()).copied() else {
            return;
        };
        if is_busy {
            return;
        }
        let ripe = self.supervisor.workers().filter_map(|worker| {
            let child = self.children.get(&worker.id)?;
            let served = child.slots()?.stats().served_requests();
            let is_ripe = worker.generation == current
                && worker.state == WorkerState::Ready
                && worker.replace_reason.is_none()
                && served >= enough.max(1)
                && child.template_key.is_some();
            is_ripe.then_some((served, worker.id))
        });
        let Some((_, worker)) = ripe.max() else {
            return;
        };
        if let Some(child) = self.children.get_mut(&worker) {
            child.promotion = Promotion::Planned;
            let why = ReplaceReason::Refork;
            self.handle_event(SupervisorEvent::ReplacementRequested { worker, why });
        }
    }

    /// A worker has nothing in progress any more; `true` when it was told to become a template, and
    /// is not to end now.
    pub(super) fn request_promotion(&mut self, worker: WorkerId) -> bool {
        let (current, _) = self.supervisor.current_and_fallback_generations();
        let is_draining = self.is_draining;
        let Some(child) = self.children.get_mut(&worker) else {
            return false;
        };
        if child.promotion != Promotion::Planned || !child.is_retiring {
            return child.promotion == Promotion::Requested && child.is_retiring;
        }
        let is_of_use = !is_draining && child.process.generation == current;
        let control = child.process.control.as_ref().filter(|_| is_of_use);
        let is_told = control.is_some_and(ControlHandle::order_promotion);
        child.promotion = if is_told {
            Promotion::Requested
        } else {
            Promotion::None
        };
        if is_told {
            let at = clock::now() + PROMOTION_TIMEOUT;
            self.schedule(at, move |it| it.handle_promotion_overdue(worker));
        }
        is_told
    }

    /// Handles a message of a worker that was told to become a template; `false` when it was not.
    pub(super) fn handle_promotion_ready(
        &mut self,
        worker: WorkerId,
        message: &ControlMessage,
    ) -> bool {
        let ControlMessage::Ready { prevents_fork, .. } = message else {
            return false;
        };
        let child = self.children.get(&worker);
        if child.is_none_or(|child| child.promotion != Promotion::Requested) {
            return false;
        }
        let is_it =
            |w: &crate::supervisor::Worker| w.id == worker && w.state == WorkerState::Retiring;
        let is_retiring = self.supervisor.workers().any(is_it);
        let (current, _) = self.supervisor.current_and_fallback_generations();
        let is_current = child.is_some_and(|child| child.process.generation == current);
        match prevents_fork {
            _ if !is_retiring || !is_current || self.is_draining => {
                self.cancel_promotion(worker, None);
            }
            Some(why) => self.cancel_promotion(worker, Some(why)),
            None => self.promote_worker(worker),
        }
        true
    }

    pub(super) fn handle_promotion_overdue(&mut self, worker: WorkerId) {
        let child = self.children.get(&worker);
        if child.is_some_and(|child| child.promotion == Promotion::Requested) {
            let why = format!("it did not become one within {PROMOTION_TIMEOUT:?}");
            self.cancel_promotion(worker, Some(&why));
        }
    }

    /// The worker ends as any other that is retired and idle.
    fn cancel_promotion(&mut self, worker: WorkerId, why: Option<&str>) {
        let Some(child) = self.children.get_mut(&worker) else {
            return;
        };
        child.promotion = Promotion::Cancelled;
        if let Some(why) = why {
            let generation = child.process.generation;
            let (name, pid) = (&self.shared.name, child.pid());
            log::warn!(
                "{name}[{pid}]: generation {generation} keeps the template that it has, \
                 the worker cannot be one: {why}"
            );
            self.templates.not_reforked.push(generation);
        }
        self.handle_event(SupervisorEvent::Idle { worker });
    }

    fn promote_worker(&mut self, worker: WorkerId) {
        let Some(child) = self.children.remove(&worker) else {
            return;
        };
        let generation = child.process.generation;
        let (name, pid) = (&self.shared.name, child.pid());
        log::info!("{name}[{pid}]: the worker is the template of generation {generation} now");
        self.install_template(worker, child);
        // As far as the supervisor goes it has ended.
        let status = ExitSummary::Code(0);
        self.handle_event(SupervisorEvent::Exited { worker, status });
        let ours = ProcessKey::Worker(worker);
        let is_older = |child: &super::ChildProcess| {
            let is_current = child.process.generation == generation && !child.is_retiring;
            is_current && child.template_key != Some(ours)
        };
        let older = self.children.iter().filter(|(_, child)| is_older(child));
        let older: Vec<WorkerId> = older.map(|(worker, _)| *worker).collect();
        for worker in older {
            let why = ReplaceReason::Refork;
            self.handle_event(SupervisorEvent::ReplacementRequested { worker, why });
        }
    }
}
