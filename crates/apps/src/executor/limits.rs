//! The limits of processes (memory, requests, age, stuck requests, streams that outlive their
//! worker), the load, and the file that requests a restart.
//!
//! The executor calls it once a second, ten times a second for the load where the number of
//! processes follows it, and when a worker has served as many requests as it may. The supervisor
//! gets `ReplacementRequested` or `KillRequested` and starts a successor first.
//!
//! # Invariants
//! - Nothing here waits for a disk or walks a process's memory on a loop.
//! - A limit is reported once a worker, except the hard one.
//! - Two workers that were started together do not reach their limits together.

pub(super) mod cgroup_limits;
mod process_watch;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use penstock_runtime::{clock, loops};
use penstock_sys::cgroup::{CgroupReading, CgroupUsage};
use penstock_sys::file;

use self::cgroup_limits::CgroupWatch;
use self::process_watch::{MemoryVerdict, ProcessWatch};
use super::workers::WorkerSlots;
use super::{ChildProcess, Executor, ExecutorInput, ProcessKey, ProcessRole};
use crate::shared::DispatchMode;
use crate::supervisor::{
    AppLoad, KillReason, ReplaceReason, SupervisorEvent, WorkerId, WorkerState,
};

/// How often the load is reported to the supervisor, where it decides by it.
const LOAD_INTERVAL: Duration = Duration::from_millis(100);

/// How often memory is measured when it has a limit, and when it is only shown: the kernel walks
/// the process's whole address space for it.
const MEASURE_INTERVAL: Duration = Duration::from_secs(2);
const MEASURE_INTERVAL_UNLIMITED: Duration = Duration::from_secs(10);

/// How long a stuck worker has to write its threads' stacks before it is killed.
const STACKS_TIMEOUT: Duration = Duration::from_millis(500);

/// The file whose new date asks for a restart, in the application's folder.
const RESTART_FILE: &str = "tmp/restart.txt";

#[derive(Debug, Default)]
pub(super) struct MemorySamples {
    /// Each process's memory in bytes; `None` when it could not be measured.
    memory: Vec<(ProcessKey, Option<u64>)>,
    /// What the application takes with all that it starts.
    reading: Option<CgroupReading>,
}

#[derive(Debug)]
pub(super) struct ProcessLimits {
    processes: HashMap<WorkerId, ProcessWatch>,
    next_measure_at: Instant,
    is_measuring: bool,
    /// When the load is reported next; `None` where it decides nothing.
    pub(super) next_load_at: Option<Instant>,
    restart_file: RestartFile,
    cgroup_watch: CgroupWatch,
}

#[derive(Debug)]
struct RestartFile {
    path: PathBuf,
    /// Its date when it was last looked at, if it was there; `None` before the first look.
    last_modified: Option<Option<SystemTime>>,
    is_checking: bool,
}

impl ProcessLimits {
    pub(super) fn new(config: &penstock_config::App, now: Instant) -> Self {
        Self {
            processes: HashMap::new(),
            next_measure_at: now + MEASURE_INTERVAL,
            is_measuring: false,
            next_load_at: config.is_autoscaled().then_some(now + LOAD_INTERVAL),
            restart_file: RestartFile {
                path: config.dir.join(RESTART_FILE),
                last_modified: None,
                is_checking: false,
            },
            cgroup_watch: CgroupWatch::default(),
        }
    }

    /// The last reading of the application's cgroup.
    pub(super) fn cgroup_usage(&self) -> Option<CgroupUsage> {
        self.cgroup_watch.cgroup_usage()
    }

    /// Proportional memory of a worker when it was last measured, in bytes.
    pub(super) fn worker_memory_bytes(&self, worker: WorkerId) -> Option<u64> {
        self.processes.get(&worker)?.memory_bytes
    }
}

impl Executor {
    pub(super) fn check_limits(&mut self) {
        let now = clock::now();
        self.check_restart_file();
        self.sync_watches();
        let ids: Vec<_> = self.limits.processes.keys().copied().collect();
        for worker in ids {
            if let Some(why) = self.usage_replace_reason(worker, now) {
                self.request_replacement(worker, why);
            }
            self.cut_overdue_streams(worker, now);
            self.dump_requested_stacks(worker);
        }
        if self.limits.next_measure_at <= now && !self.limits.is_measuring {
            self.measure_memory(now);
        }
    }

    /// Reports the load to the supervisor, when it is due.
    pub(super) fn report_load(&mut self) {
        let now = clock::now();
        if self.limits.next_load_at.is_none_or(|at| now < at) {
            return;
        }
        self.limits.next_load_at = Some(now + LOAD_INTERVAL);
        let load = self.current_load(now);
        if load.queued > 0 && self.config.has_spare_threads() {
            self.measure_cpu_soon();
        }
        self.handle_event(SupervisorEvent::Load(load));
    }

    fn current_load(&self, now: Instant) -> AppLoad {
        let usage = match &self.shared.dispatch_mode {
            DispatchMode::Workers(_) => self.shared.dispatch.queue_usage(now),
            DispatchMode::Servers(set) => set.queue_usage(),
        };
        // Slots that are kept for a collection have nothing to do.
        let slots = self.children.values().filter_map(ChildProcess::slots);
        let claimed: usize = slots.map(|slots| slots.stats().gc_claimed_slots()).sum();
        AppLoad {
            queued: usage.waiting,
            oldest_wait: usage.oldest_wait,
            in_progress: usage.in_progress.saturating_sub(claimed),
            slots: usage.slots,
            cpu_percent: self.busy_percent(),
            cpu_known_since: self.cpu_known_since(),
        }
    }

    /// Begins to watch new workers and forgets those that are gone.
    fn sync_watches(&mut self) {
        let children = &self.children;
        self.limits
            .processes
            .retain(|id, _| children.contains_key(id));
        for (id, child) in children {
            self.limits.processes.entry(*id).or_insert_with(|| {
                let watch = ProcessWatch::new(random_number());
                let limit = self
                    .config
                    .max_requests
                    .map(|max| watch.jittered_count(max));
                if let (Some(slots), Some(limit)) = (child.slots(), limit) {
                    slots.stats().notify_when_served(limit);
                }
                watch
            });
        }
    }

    /// Whether a worker has served, or lived, for long enough.
    fn usage_replace_reason(&self, worker: WorkerId, now: Instant) -> Option<ReplaceReason> {
        let (child, watch) = (
            self.children.get(&worker)?,
            self.limits.processes.get(&worker)?,
        );
        let (is_stuck, served) = match &child.role {
            ProcessRole::Worker(slots) => {
                (slots.stats().is_stuck(), slots.stats().served_requests())
            }
            ProcessRole::Server(listed) => (self.is_server_stuck(listed), 0),
        };
        if is_stuck {
            return Some(ReplaceReason::Stuck);
        }
        if self
            .config
            .max_requests
            .is_some_and(|max| served >= watch.jittered_count(max))
        {
            return Some(ReplaceReason::Requests(served));
        }
        let age = now.saturating_duration_since(child.process.started_at);
        let is_old = self
            .config
            .max_age
            .is_some_and(|max| age >= watch.jittered_time(max));
        is_old.then_some(ReplaceReason::Age(age))
    }

    /// Asks a worker in which a request has had its time to write where all of them stand.
    fn dump_requested_stacks(&self, worker: WorkerId) {
        if let Some(child) = self.children.get(&worker)
            && let Some(slots) = child.slots()
            && slots.stats().take_stacks_request()
        {
            // One that is gone writes no stacks.
            let _ = child.process.handle.request_stack_dump();
        }
    }

    fn request_replacement(&mut self, worker: WorkerId, why: ReplaceReason) {
        let is_ready = self.state_of(worker) == Some(WorkerState::Ready);
        if let Some(watch) = self.limits.processes.get_mut(&worker)
            && is_ready
            && !std::mem::replace(&mut watch.is_replacement_requested, true)
        {
            self.handle_event(SupervisorEvent::ReplacementRequested { worker, why });
        }
    }

    fn state_of(&self, worker: WorkerId) -> Option<WorkerState> {
        let mut workers = self.supervisor.workers();
        workers.find(|w| w.id == worker).map(|w| w.state)
    }

    /// A worker is retired: from now on its streams have `stream_timeout`.
    pub(super) fn set_stream_deadline(&mut self, worker: WorkerId) {
        self.sync_watches();
        if let Some(watch) = self.limits.processes.get_mut(&worker) {
            let until = clock::now() + self.config.stream_timeout;
            watch.streams_deadline = watch.streams_deadline.or(Some(until));
        }
    }

    fn cut_overdue_streams(&mut self, worker: WorkerId, now: Instant) {
        let (Some(child), Some(watch)) = (
            self.children.get(&worker),
            self.limits.processes.get_mut(&worker),
        ) else {
            return;
        };
        if watch.streams_deadline.is_none_or(|until| now < until) {
            return;
        }
        // It stays set: a stream that begins after this is cut at once.
        watch.streams_deadline = None;
        if let Some(slots) = child.slots() {
            slots.mailboxes().for_each(|mailbox| mailbox.cut_streams());
        }
    }

    fn measure_memory(&mut self, now: Instant) {
        let every = match (self.config.max_memory, &self.shared.cgroup) {
            (None, None) => MEASURE_INTERVAL_UNLIMITED,
            _ => MEASURE_INTERVAL,
        };
        // Applications that were started together are not measured together.
        self.limits.next_measure_at = now + ProcessWatch::new(random_number()).jittered_time(every);
        self.limits.is_measuring = true;
        let workers = self.supervisor.workers();
        let workers = workers.filter_map(|w| Some((ProcessKey::Worker(w.id), w.pid?)));
        let pids: Vec<_> = workers.chain(self.templates.pids()).collect();
        let cgroup = self.shared.cgroup.clone();
        let work = move || {
            let measure = |pid| file::process_pss_bytes(pid).ok();
            let memory = pids.into_iter().map(|(id, pid)| (id, measure(pid)));
            MemorySamples {
                memory: memory.collect(),
                reading: cgroup.map(|cgroup| cgroup.take_reading()),
            }
        };
        // A pool that has no room measures nothing: the next try is due soon.
        self.run_in_pool(false, work, |executor, measured| {
            executor.handle_memory_measured(measured.unwrap_or_default());
        });
    }

    /// Does `work` in the pool, with priority or without; `handle` gets its result, `None` if the
    /// pool has no room.
    pub(super) fn run_in_pool<T: Send + 'static>(
        &self,
        has_priority: bool,
        work: impl FnOnce() -> T + Send + 'static,
        handle: impl FnOnce(&mut Self, Option<T>) + Send + 'static,
    ) {
        let (settings, inputs) = (
            self.shared.buffering_settings.load_full(),
            self.inputs.clone(),
        );
        loops::spawn_here(async move {
            let done = match has_priority {
                true => settings.pool.run_priority(work).await,
                false => settings.pool.run(work).await,
            };
            // The executor may have ended first.
            let call = ExecutorInput::call(move |executor| handle(executor, done.ok()));
            let _ = inputs.send(call).await;
        });
    }

    pub(super) fn handle_memory_measured(&mut self, measured: MemorySamples) {
        self.limits.is_measuring = false;
        self.sync_watches();
        if let Some(reading) = measured.reading {
            self.record_cgroup_reading(&reading);
        }
        for (key, bytes) in measured.memory {
            // A worker may have become a template meanwhile.
            let worker = match key {
                ProcessKey::Worker(worker) if !self.templates.contains(key) => worker,
                _ => {
                    self.templates.set_memory(key, bytes);
                    continue;
                }
            };
            let state = self.state_of(worker);
            let (Some(bytes), Some(watch)) = (bytes, self.limits.processes.get_mut(&worker)) else {
                continue;
            };
            watch.memory_bytes = Some(bytes);
            if state.is_none_or(|state| state == WorkerState::Stopping) {
                continue;
            }
            let Some(limit) = self.config.max_memory else {
                continue;
            };
            match watch.record_memory(bytes, limit) {
                MemoryVerdict::WithinLimits => {}
                MemoryVerdict::SoftExceeded => {
                    let max = limit.soft;
                    self.request_replacement(worker, ReplaceReason::Memory { bytes, max });
                }
                MemoryVerdict::HardExceeded => {
                    let max = limit.hard;
                    let reason = KillReason::MemoryExceeded { bytes, max };
                    self.handle_event(SupervisorEvent::KillRequested { worker, reason });
                }
            }
        }
        self.publish_view();
    }

    /// A slot's request has had `response_timeout`: the worker is asked for its threads' stacks,
    /// then killed if that was its only slot, else replaced and killed once its other requests have
    /// ended.
    pub(super) fn handle_stuck(&mut self, worker: WorkerId, is_last: bool) {
        let Some(child) = self.children.get(&worker) else {
            return;
        };
        // A process that is gone already writes no stacks.
        let _ = child.process.handle.request_stack_dump();
        if is_last {
            return self.schedule_stuck_kill(worker);
        }
        // Its other threads go on until a new worker has replaced them, and then finish what
        // they have: but not for ever, as the stuck one may be burning a core.
        let until = clock::now() + self.config.boot_timeout + self.config.response_timeout;
        self.schedule(until, move |it| it.handle_stuck_overdue(worker));
        let why = ReplaceReason::Stuck;
        self.handle_event(SupervisorEvent::ReplacementRequested { worker, why });
    }

    /// A worker with a stuck thread has had its time, unless a request in another one has asked for
    /// more.
    pub(super) fn handle_stuck_overdue(&mut self, worker: WorkerId) {
        let Some(child) = self.children.get(&worker) else {
            return;
        };
        let mailboxes = child.slots().into_iter().flat_map(WorkerSlots::mailboxes);
        let extended = mailboxes.filter_map(|m| *m.deadline_extension.lock()).max();
        match extended.filter(|until| clock::now() < *until) {
            Some(until) => self.schedule(until, move |it| it.handle_stuck_overdue(worker)),
            None => self.handle_event(SupervisorEvent::KillRequested {
                worker,
                reason: KillReason::ResponseTimedOut,
            }),
        }
    }

    /// Nothing of a stuck worker is left to be waited for but its last words.
    pub(super) fn schedule_stuck_kill(&self, worker: WorkerId) {
        let at = clock::now() + STACKS_TIMEOUT;
        self.schedule(at, move |it| it.handle_stuck_overdue(worker));
    }

    fn check_restart_file(&mut self) {
        let file = &mut self.limits.restart_file;
        if std::mem::replace(&mut file.is_checking, true) {
            return;
        }
        let path = file.path.clone();
        let look = move || {
            let about = std::fs::metadata(&path);
            about.and_then(|about| about.modified()).ok()
        };
        self.run_in_pool(true, look, Self::handle_restart_file);
    }

    /// The file's date, if it is there; `None` if it could not be checked.
    pub(super) fn handle_restart_file(&mut self, looked: Option<Option<SystemTime>>) {
        let file = &mut self.limits.restart_file;
        file.is_checking = false;
        let Some(date) = looked else {
            return;
        };
        let before = file.last_modified.replace(date);
        let is_touched = before.is_some_and(|before| date.is_some() && date != before);
        if is_touched {
            let (name, path) = (&self.shared.name, file.path.display());
            log::info!("{name}: {path} was touched: restarting");
            self.handle_event(SupervisorEvent::Restart);
        }
    }
}

/// A number that differs from one call to the next.
fn random_number() -> u64 {
    RandomState::new().build_hasher().finish()
}
