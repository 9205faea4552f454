//! The task with all names: starts what is due, within the bounds; `outcomes` records how it ended.
//!
//! # Invariants
//! - At most one job of a name runs. The result of a job whose name was removed is discarded.
//! - Orders and reads have bounds of their own: orders that wait for an authority delay no start.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::task::{Id, JoinError, JoinSet};

mod entry;
mod outcomes;

use self::entry::NameEntry;
use super::inbox::{Inbox, RequestQueue};
use super::jobs::{CheckOutcome, CurrentCertificate, JobContext, OrderOutcome};
use super::on_demand::IssuanceRate;
use super::status::StatusTable;
use super::{OnDemandError, now};
use crate::callbacks::CallbackError;
use crate::certificate::Certificate;
use crate::error::AcmeError;
use crate::name::CertificateName;
use crate::schedule::{Action, NameSchedule};
use crate::storage::StorageError;

/// The task's state.
pub(super) struct Worker {
    inbox: Arc<Inbox>,
    status: Arc<StatusTable>,
    context: Arc<JobContext>,
    entries: BTreeMap<CertificateName, NameEntry>,
    /// When the next action of each name is due, by kind.
    due: PerKind<BTreeSet<(SystemTime, CertificateName)>>,
    jobs: JoinSet<JobReport>,
    running: HashMap<Id, RunningJob>,
    running_count: PerKind<usize>,
    rate: IssuanceRate,
    next_generation: u64,
}

#[derive(Debug, Clone)]
struct RunningJob {
    name: CertificateName,
    generation: u64,
    kind: JobKind,
}

enum JobReport {
    Permission(Result<bool, CallbackError>),
    Load(Result<Option<Certificate>, StorageError>),
    Check(CheckOutcome),
    Order(Result<OrderOutcome, AcmeError>),
}

/// Kinds of jobs with bounds of their own: none waits for another kind's slow peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JobKind {
    /// Storage, and the authority's renewal window.
    Read,
    /// The decision about a name on demand: names that strangers choose.
    Permission,
    Order,
}

/// A value for each [`JobKind`].
type PerKind<T> = [T; 3];

impl JobKind {
    const ALL: PerKind<Self> = [Self::Read, Self::Permission, Self::Order];

    fn of(action: Action) -> Self {
        match action {
            Action::AskPermission => Self::Permission,
            Action::Load | Action::Check { .. } => Self::Read,
            Action::Order { .. } => Self::Order,
        }
    }
}

/// Jobs of a kind at the same time; orders have a bound in the settings.
const MAX_READS: usize = 32;
const MAX_PERMISSION_CALLS: usize = 8;

/// The longest sleep: a change of the clock is noticed after this time.
const MAX_SLEEP: Duration = Duration::from_secs(60);

/// How long a name on demand is refused while there are too many.
const FULL_HOLD: Duration = Duration::from_secs(5);

impl Worker {
    pub(super) fn new(
        inbox: Arc<Inbox>,
        status: Arc<StatusTable>,
        context: Arc<JobContext>,
    ) -> Self {
        let limits = &context.settings.limits;
        let rate = IssuanceRate::new(limits.max_on_demand_orders, limits.on_demand_interval);
        Self {
            inbox,
            status,
            context,
            entries: BTreeMap::new(),
            due: PerKind::default(),
            jobs: JoinSet::new(),
            running: HashMap::new(),
            running_count: PerKind::default(),
            rate,
            next_generation: 0,
        }
    }

    /// Runs until a stop is requested.
    pub(super) async fn run(mut self) {
        let context = Arc::clone(&self.context);
        tokio::spawn(async move { context.remove_old_tokens().await });
        loop {
            let mut queue = self.inbox.take();
            let stop = queue.stop.take();
            if let Some(stop) = stop {
                return self.finish_jobs(stop.grace).await;
            }
            self.apply(queue);
            self.start_due(now());
            let sleep = self.time_to_next(now());
            tokio::select! {
                () = self.inbox.changed() => {}
                Some(joined) = self.jobs.join_next_with_id() => self.finish(joined),
                () = tokio::time::sleep(sleep) => {}
            }
        }
    }

    async fn finish_jobs(&mut self, grace: Duration) {
        let all = async { while self.jobs.join_next().await.is_some() {} };
        if tokio::time::timeout(grace, all).await.is_err() {
            log::warn!(
                "acme: orders in progress are given up (orders={})",
                self.running_count[JobKind::Order as usize]
            );
        }
        self.jobs.shutdown().await;
    }

    fn apply(&mut self, queue: RequestQueue) {
        if let Some(names) = queue.names {
            self.set_names(&names);
        }
        if !queue.on_demand.is_empty() {
            self.add_on_demand(queue.on_demand);
        }
        for name in queue.checks {
            self.change_schedule(&name, NameSchedule::request_check);
        }
        for name in queue.renewals {
            self.change_schedule(&name, NameSchedule::force_renewal);
        }
    }

    fn change_schedule(&mut self, name: &CertificateName, change: fn(&mut NameSchedule)) {
        if let Some(entry) = self.entries.get_mut(name) {
            change(&mut entry.schedule);
            self.update(name);
        }
    }

    fn set_names(&mut self, names: &BTreeSet<CertificateName>) {
        let is_gone = |(name, entry): &(&CertificateName, &NameEntry)| {
            !entry.is_on_demand && !names.contains(name)
        };
        let gone = self.entries.iter().filter(is_gone);
        let gone: Vec<CertificateName> = gone.map(|(name, _)| name.clone()).collect();
        for name in gone {
            self.remove(&name);
            self.status.remove(&name);
        }
        for name in names {
            match self.entries.get_mut(name) {
                Some(entry) => {
                    entry.is_on_demand = false;
                    entry.schedule.waive_permission();
                    self.update(name);
                }
                None => self.add(name, false),
            }
        }
    }

    fn add_on_demand(&mut self, names: BTreeSet<CertificateName>) {
        let on_demand = self.entries.values().filter(|entry| entry.is_on_demand);
        let (mut all, mut waiting) = (0, 0);
        for entry in on_demand {
            all += 1;
            waiting += usize::from(entry.schedule.certificate().is_none());
        }
        let limits = &self.context.settings.limits;
        let (max_all, max_waiting) = (limits.max_on_demand_names, limits.max_on_demand_waiting);
        for name in names {
            if self.entries.contains_key(&name) {
                continue;
            }
            if all >= max_all || waiting >= max_waiting {
                self.status.drop_name(&name, OnDemandError::Full, FULL_HOLD);
                continue;
            }
            self.add(&name, true);
            (all, waiting) = (all + 1, waiting + 1);
        }
    }

    fn add(&mut self, name: &CertificateName, is_on_demand: bool) {
        let (bounds, directories) = {
            let settings = &self.context.settings;
            (settings.renewal, settings.directories.len())
        };
        self.next_generation += 1;
        let schedule = NameSchedule::new(bounds, directories, is_on_demand, fastrand::u64(..));
        let entry = NameEntry::new(schedule, self.next_generation, is_on_demand);
        self.entries.insert(name.clone(), entry);
        self.update(name);
    }

    /// Removes a name and its certificate.
    fn remove(&mut self, name: &CertificateName) {
        let Some(entry) = self.entries.remove(name) else {
            return;
        };
        self.unqueue(name, entry.due);
        if entry.schedule.certificate().is_some() {
            self.context.callbacks.sink.remove(name);
        }
    }

    /// Queues a name's next action and shows its state.
    fn update(&mut self, name: &CertificateName) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        let next = entry.schedule.next();
        let next = next.map(|(at, action)| (at, JobKind::of(action)));
        let old = std::mem::replace(&mut entry.due, next);
        self.status.set(name, entry.describe(name, now()));
        self.unqueue(name, old);
        if let Some((at, kind)) = next {
            self.due[kind as usize].insert((at, name.clone()));
        }
    }

    fn unqueue(&mut self, name: &CertificateName, due: Option<(SystemTime, JobKind)>) {
        if let Some((at, kind)) = due {
            self.due[kind as usize].remove(&(at, name.clone()));
        }
    }

    fn has_room(&self, kind: JobKind) -> bool {
        let max = match kind {
            JobKind::Read => MAX_READS,
            JobKind::Permission => MAX_PERMISSION_CALLS,
            JobKind::Order => self.context.settings.limits.max_orders.max(1),
        };
        self.running_count[kind as usize] < max
    }

    fn start_due(&mut self, now: SystemTime) {
        for kind in JobKind::ALL {
            while self.has_room(kind) {
                let first = self.due[kind as usize].first();
                let Some((_, name)) = first.filter(|(at, _)| *at <= now) else {
                    break;
                };
                self.start(&name.clone(), now);
            }
        }
    }

    fn time_to_next(&self, now: SystemTime) -> Duration {
        let usable = JobKind::ALL.into_iter().filter(|kind| self.has_room(*kind));
        let next = usable.filter_map(|kind| self.due[kind as usize].first());
        let next = next.map(|(at, _)| *at).min();
        let wait = next.map_or(MAX_SLEEP, |at| at.duration_since(now).unwrap_or_default());
        wait.min(MAX_SLEEP)
    }

    fn start(&mut self, name: &CertificateName, now: SystemTime) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        let Some((_, action)) = entry.schedule.next() else {
            return;
        };
        let kind = JobKind::of(action);
        let is_new =
            kind == JobKind::Order && entry.is_on_demand && entry.schedule.certificate().is_none();
        if is_new && !entry.has_rate_token {
            if let Err(at) = self.rate.take(now) {
                entry.schedule.postpone(at);
                return self.update(name);
            }
            entry.has_rate_token = true;
        }
        entry.schedule.begin();
        entry.action = Some(action);
        let generation = entry.generation;
        let job = run_job(Arc::clone(&self.context), name.clone(), action, entry);
        let id = self.jobs.spawn(job).id();
        let name = name.clone();
        self.update(&name);
        self.running_count[kind as usize] += 1;
        let running = RunningJob {
            name,
            generation,
            kind,
        };
        self.running.insert(id, running);
    }

    fn finish(&mut self, joined: Result<(Id, JobReport), JoinError>) {
        let (id, report) = match joined {
            Ok((id, report)) => (id, Some(report)),
            Err(error) => (error.id(), None),
        };
        let Some(job) = self.running.remove(&id) else {
            return;
        };
        self.running_count[job.kind as usize] -= 1;
        let Some(entry) = self.entries.get_mut(&job.name) else {
            return;
        };
        if entry.generation != job.generation {
            return;
        }
        let action = entry.action.take();
        entry.is_elsewhere = false;
        let name = &job.name;
        match report {
            Some(JobReport::Permission(answer)) => self.finish_permission(name, answer),
            Some(JobReport::Load(Ok(found))) => self.finish_load(name, found),
            Some(JobReport::Load(Err(error))) => self.fail(name, action, &error.into()),
            Some(JobReport::Check(outcome)) => self.finish_check(name, outcome),
            Some(JobReport::Order(Ok(outcome))) => self.finish_order(name, outcome),
            Some(JobReport::Order(Err(error))) => self.fail(name, action, &error),
            None => self.fail(name, action, &AcmeError::Internal),
        }
        self.update(&job.name);
    }
}

/// The future of an action. It owns what it needs.
fn run_job(
    context: Arc<JobContext>,
    name: CertificateName,
    action: Action,
    entry: &NameEntry,
) -> impl Future<Output = JobReport> + Send + 'static {
    let attempt = entry.schedule.failures();
    let certificate = entry.schedule.certificate().cloned();
    let current = certificate.zip(entry.directory.clone());
    let current = current.map(|(facts, directory)| CurrentCertificate { facts, directory });
    async move {
        match (action, &current) {
            (Action::AskPermission, _) => {
                JobReport::Permission(context.ask_permission(&name).await)
            }
            (Action::Load, _) => JobReport::Load(context.load(&name).await),
            (Action::Check { asks_authority }, Some(current)) => {
                JobReport::Check(context.check(&name, current, asks_authority).await)
            }
            (Action::Check { .. }, None) => JobReport::Check(CheckOutcome::default()),
            (Action::Order { directory }, current) => {
                let order = context.order(&name, directory, attempt, current.as_ref());
                JobReport::Order(Box::pin(order).await)
            }
        }
    }
}
