//! What is watched of each process besides its end: memory, requests, age, requests that are stuck,
//! streams that outlive their worker; how much there is to do; and the file that asks for a restart.
//!
//! Called by the executor once a second, ten times a second for the load where the number of processes
//! follows it, and when a worker has served as many requests as it may. Decides nothing itself but
//! what a limit says: the supervisor hears `Recycle` or `Exceeded` and puts a successor first. What
//! must stay true: nothing here waits for a disk or walks a process's memory on a loop; a limit is
//! told once a worker, except the hard one; two workers that were started together do not reach their
//! limits together.

pub(super) mod bounds;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use penstock_exchange::buffering::BodyStore;
use penstock_runtime::{clock, loops};
use penstock_sys::cgroup::{Reading, Usage};
use penstock_sys::file;

use self::bounds::BoundsWatch;
use self::watch::{Verdict, Watch};
use super::{Executor, Input, Key, Role};
use crate::app::Way;
use crate::supervisor::{Event, KillReason, Load, WorkerId, WorkerState, Worn};

/// How often the supervisor hears how much there is to do, where it decides by it.
const LOAD_EVERY: Duration = Duration::from_millis(100);

/// How often memory is measured when it has a limit, and when it is only shown: the kernel walks the
/// process's whole address space for it.
const MEASURE_EVERY: Duration = Duration::from_secs(2);
const MEASURE_SELDOM: Duration = Duration::from_secs(10);

/// How long a stuck worker has to write its threads' stacks before it is killed.
const LAST_STACKS: Duration = Duration::from_millis(500);

/// The file whose new date asks for a restart, in the application's folder.
const RESTART_FILE: &str = "tmp/restart.txt";

/// What was measured.
#[derive(Debug, Default)]
pub(super) struct Measured {
    /// Each process's memory in bytes; `None` when it could not be measured.
    memory: Vec<(Key, Option<u64>)>,
    /// What the application takes with all that it starts.
    reading: Option<Reading>,
}

/// What is being watched.
#[derive(Debug)]
pub(super) struct Limits {
    watches: HashMap<WorkerId, Watch>,
    measure_at: Instant,
    is_measuring: bool,
    /// When the load is said next; `None` where nobody decides by it.
    load_at: Option<Instant>,
    restart_file: RestartFile,
    bounds: BoundsWatch,
}

/// The file that asks for a restart.
#[derive(Debug)]
struct RestartFile {
    path: PathBuf,
    /// Its date when it was last looked at, if it was there; `None` before the first look.
    seen: Option<Option<SystemTime>>,
    is_looking: bool,
}

impl Limits {
    pub(super) fn new(config: &penstock_config::App, now: Instant) -> Self {
        Self {
            watches: HashMap::new(),
            measure_at: now + MEASURE_EVERY,
            is_measuring: false,
            load_at: config.is_scaled().then_some(now + LOAD_EVERY),
            restart_file: RestartFile {
                path: config.dir.join(RESTART_FILE),
                seen: None,
                is_looking: false,
            },
            bounds: BoundsWatch::default(),
        }
    }

    /// What was last seen of the application's group.
    pub(super) fn usage(&self) -> Option<Usage> {
        self.bounds.usage()
    }

    /// When `Executor::say_load` wants to be called, if ever.
    pub(super) fn load_at(&self) -> Option<Instant> {
        self.load_at
    }

    /// Proportional memory of a worker when it was last measured, in bytes.
    pub(super) fn memory(&self, worker: WorkerId) -> Option<u64> {
        self.watches.get(&worker)?.memory
    }
}

/// Once a second, or sooner.
impl Executor {
    /// Looks at everything that has a limit.
    pub(super) fn look_at_limits(&mut self) {
        let now = clock::now();
        self.look_for_restart_file();
        self.keep_watches();
        let ids: Vec<_> = self.limits.watches.keys().copied().collect();
        for worker in ids {
            if let Some(why) = self.worn_by_use(worker, now) {
                self.recycle(worker, why);
            }
            self.cut_streams(worker, now);
            self.show_stacks(worker);
        }
        if self.limits.measure_at <= now && !self.limits.is_measuring {
            self.measure(now);
        }
    }

    /// Says how much there is to do, when it is time.
    pub(super) fn say_load(&mut self) {
        let now = clock::now();
        if self.limits.load_at.is_none_or(|at| now < at) {
            return;
        }
        self.limits.load_at = Some(now + LOAD_EVERY);
        let load = self.load(now);
        if load.waiting > 0 && self.config.has_spare_threads() {
            self.ask_busyness_soon();
        }
        self.event(Event::Load(load));
    }

    fn load(&self, now: Instant) -> Load {
        let usage = match &self.shared.way {
            Way::Workers(_) => self.shared.dispatch.usage(now),
            Way::Servers(set) => set.usage(),
        };
        // Slots that are kept for a collection have nothing to do.
        let claimed = |child: &super::Child| match &child.role {
            Role::Worker(slots) => slots.ledger().claimed(),
            Role::Server(_) => 0,
        };
        let claimed: usize = self.children.values().map(claimed).sum();
        Load {
            waiting: usage.waiting,
            oldest_wait: usage.oldest_wait,
            in_progress: usage.in_progress.saturating_sub(claimed),
            places: usage.slots,
            busy_percent: self.busy_percent(),
            watched_from: self.watched_from(),
        }
    }

    /// Begins to watch new workers and forgets those that are gone.
    fn keep_watches(&mut self) {
        let children = &self.children;
        self.limits
            .watches
            .retain(|id, _| children.contains_key(id));
        for (id, child) in children {
            self.limits.watches.entry(*id).or_insert_with(|| {
                let watch = Watch::new(chance());
                let limit = self.config.requests_max.map(|max| watch.less(max));
                if let (Role::Worker(slots), Some(limit)) = (&child.role, limit) {
                    slots.ledger().watch_for(limit);
                }
                watch
            });
        }
    }

    /// Whether a worker has served, or lived, for long enough.
    fn worn_by_use(&self, worker: WorkerId, now: Instant) -> Option<Worn> {
        let (child, watch) = (
            self.children.get(&worker)?,
            self.limits.watches.get(&worker)?,
        );
        let is_stuck = match &child.role {
            Role::Worker(slots) => slots.ledger().is_stuck(),
            Role::Server(listed) => self.is_server_stuck(listed),
        };
        if is_stuck {
            return Some(Worn::Stuck);
        }
        let served = match &child.role {
            Role::Worker(slots) => slots.ledger().served(),
            Role::Server(_) => 0,
        };
        if self
            .config
            .requests_max
            .is_some_and(|max| served >= watch.less(max))
        {
            return Some(Worn::Requests(served));
        }
        let age = now.saturating_duration_since(child.began);
        let is_old = self
            .config
            .age_max
            .is_some_and(|max| age >= watch.less_time(max));
        is_old.then_some(Worn::Age(age))
    }

    /// Asks a worker in which a request has had its time to write where all of them stand.
    fn show_stacks(&self, worker: WorkerId) {
        if let Some(child) = self.children.get(&worker)
            && let Role::Worker(slots) = &child.role
            && slots.ledger().take_wants_stacks()
        {
            // One that is gone has nothing to say.
            let _ = child.process.request_stack_dump();
        }
    }

    /// Asks for a worker's replacement, once.
    fn recycle(&mut self, worker: WorkerId, why: Worn) {
        let is_ready = self.state_of(worker) == Some(WorkerState::Ready);
        if let Some(watch) = self.limits.watches.get_mut(&worker)
            && is_ready
            && !std::mem::replace(&mut watch.is_told, true)
        {
            self.event(Event::Recycle { worker, why });
        }
    }

    fn state_of(&self, worker: WorkerId) -> Option<WorkerState> {
        let mut workers = self.supervisor.workers();
        workers.find(|w| w.id == worker).map(|w| w.state)
    }
}

/// Streams of workers that are being replaced.
impl Executor {
    /// A worker is retired: from now on its streams have `stream_timeout`.
    pub(super) fn limit_streams(&mut self, worker: WorkerId) {
        self.keep_watches();
        if let Some(watch) = self.limits.watches.get_mut(&worker) {
            let until = clock::now() + self.config.stream_timeout;
            watch.streams_until = watch.streams_until.or(Some(until));
        }
    }

    fn cut_streams(&mut self, worker: WorkerId, now: Instant) {
        let (Some(child), Some(watch)) = (
            self.children.get(&worker),
            self.limits.watches.get_mut(&worker),
        ) else {
            return;
        };
        if watch.streams_until.is_none_or(|until| now < until) {
            return;
        }
        // It stays told: whoever begins a stream after this is cut by what it was told before.
        watch.streams_until = None;
        if let Role::Worker(slots) = &child.role {
            slots.mailboxes().iter().for_each(|mailbox| mailbox.cut());
        }
    }
}

/// Memory.
impl Executor {
    fn measure(&mut self, now: Instant) {
        let every = match (self.config.memory_max, &self.shared.group) {
            (None, None) => MEASURE_SELDOM,
            _ => MEASURE_EVERY,
        };
        // Applications that were started together are not measured together.
        self.limits.measure_at = now + Watch::new(chance()).less_time(every);
        self.limits.is_measuring = true;
        let workers = self.supervisor.workers();
        let workers = workers.filter_map(|w| Some((Key::Worker(w.id), w.pid?)));
        let pids: Vec<_> = workers.chain(self.templates.pids()).collect();
        let group = self.shared.group.clone();
        let work = move || {
            let measure = |pid| file::process_pss_bytes(pid).ok();
            let memory = pids.into_iter().map(|(id, pid)| (id, measure(pid)));
            Measured {
                memory: memory.collect(),
                reading: group.map(|group| group.read()),
            }
        };
        let (store, inputs) = (self.shared.store.load_full(), self.inputs.clone());
        loops::spawn_here(async move {
            // A pool that has no room measures nothing: the next try is due soon.
            let measured = store.pool.run(work).await.unwrap_or_default();
            // The executor may have ended first.
            let _ = inputs.send(Input::Measured(measured)).await;
        });
    }

    pub(super) fn handle_measured(&mut self, measured: Measured) {
        self.limits.is_measuring = false;
        self.keep_watches();
        if let Some(reading) = measured.reading {
            self.note_reading(&reading);
        }
        for (key, bytes) in measured.memory {
            // A worker may have become a template meanwhile.
            let worker = match key {
                Key::Worker(worker) if !self.templates.has(key) => worker,
                _ => {
                    self.templates.measured(key, bytes);
                    continue;
                }
            };
            let state = self.state_of(worker);
            let (Some(bytes), Some(watch)) = (bytes, self.limits.watches.get_mut(&worker)) else {
                continue;
            };
            watch.memory = Some(bytes);
            if state.is_none_or(|state| state == WorkerState::Stopping) {
                continue;
            }
            let Some(limit) = self.config.memory_max else {
                continue;
            };
            match watch.judge(bytes, limit) {
                Verdict::Fine => {}
                Verdict::Worn => {
                    let max = limit.soft;
                    self.recycle(worker, Worn::Memory { bytes, max });
                }
                Verdict::Exceeded => {
                    let max = limit.hard;
                    let reason = KillReason::MemoryExceeded { bytes, max };
                    self.event(Event::Exceeded { worker, reason });
                }
            }
        }
        self.publish();
    }
}

/// A request that does not end.
impl Executor {
    /// A slot's request has had `response_timeout`: the worker is asked for its threads' stacks, then
    /// killed if that was its only slot, else replaced and killed once its other requests have ended.
    pub(super) fn handle_stuck(&mut self, worker: WorkerId, is_last: bool) {
        let Some(child) = self.children.get(&worker) else {
            return;
        };
        // A process that is gone already has nothing to say.
        let _ = child.process.request_stack_dump();
        if is_last {
            return self.kill_stuck(worker);
        }
        // Its other threads go on until a new worker has taken their place, and then finish what they
        // have: but not for ever, as the stuck one may be burning a core.
        let until = clock::now() + self.config.boot_timeout + self.config.response_timeout;
        self.later(until, Input::StuckOverdue { worker });
        let why = Worn::Stuck;
        self.event(Event::Recycle { worker, why });
    }

    /// A worker with a stuck thread has had its time, unless a request in another one has asked for more.
    pub(super) fn handle_stuck_overdue(&mut self, worker: WorkerId) {
        let Some(child) = self.children.get(&worker) else {
            return;
        };
        let extended = match &child.role {
            Role::Worker(slots) => slots
                .mailboxes()
                .iter()
                .filter_map(|m| m.extended_until())
                .max(),
            Role::Server(_) => None,
        };
        match extended.filter(|until| clock::now() < *until) {
            Some(until) => self.later(until, Input::StuckOverdue { worker }),
            None => self.event(Event::ResponseTimedOut { worker }),
        }
    }

    /// Nothing of a stuck worker is left to be waited for but its last words.
    pub(super) fn kill_stuck(&self, worker: WorkerId) {
        self.later(clock::now() + LAST_STACKS, Input::StuckOverdue { worker });
    }
}

/// The file that asks for a restart.
impl Executor {
    fn look_for_restart_file(&mut self) {
        let file = &mut self.limits.restart_file;
        if std::mem::replace(&mut file.is_looking, true) {
            return;
        }
        let (path, inputs) = (file.path.clone(), self.inputs.clone());
        let store: Arc<BodyStore> = self.shared.store.load_full();
        loops::spawn_here(async move {
            let look = move || {
                let about = std::fs::metadata(&path);
                about.and_then(|about| about.modified()).ok()
            };
            let looked = store.pool.run_priority(look).await;
            // The executor may have ended first.
            let _ = inputs.send(Input::RestartFile(looked.ok())).await;
        });
    }

    /// The file's date, if it is there; `None` when nobody could look.
    pub(super) fn handle_restart_file(&mut self, looked: Option<Option<SystemTime>>) {
        let file = &mut self.limits.restart_file;
        file.is_looking = false;
        let Some(date) = looked else {
            return;
        };
        let before = file.seen.replace(date);
        let is_touched = before.is_some_and(|before| date.is_some() && date != before);
        if is_touched {
            let (name, path) = (&self.shared.name, file.path.display());
            log::info!("{name}: {path} was touched: restarting");
            self.event(Event::Restart);
        }
    }
}

/// A number that differs from one call to the next.
fn chance() -> u64 {
    RandomState::new().build_hasher().finish()
}
