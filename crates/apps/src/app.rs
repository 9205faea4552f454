//! One running application, as the rest of the server sees it.
//!
//! Made by `penstock`'s wiring at start and at reload; handles requests (`handler`), answers for the
//! status page, is restarted and drained. What loops share is in [`AppShared`]; processes belong to
//! the `executor` task alone, which is spoken to by commands.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use penstock_config as config;
use penstock_exchange::bodies::BodyStore;
use penstock_exchange::metrics::AppMetrics;
use penstock_exchange::{Fault, FaultKind, Timing};
use penstock_queue::QueueLimits;
use penstock_runtime::{LoopHandle, clock};
use penstock_wire::Dialect;
use tokio::sync::{mpsc, oneshot, watch};

use crate::dispatch::{Dispatch, QueueUse};
use crate::executor::{self, Command, Executor};
use crate::server_set::{Nobody, ServerSet};
use crate::supervisor::Policy;

/// Commands that may wait for the executor.
const COMMANDS_MAX: usize = 64;

/// How much longer than its boot time-out a process may live that the executor itself gives up.
const BOOT_SLACK: Duration = Duration::from_secs(1);

/// A running application.
#[derive(Debug)]
pub struct App {
    pub(crate) shared: Arc<AppShared>,
    config: config::App,
    commands: mpsc::Sender<Command>,
    boot: watch::Receiver<Boot>,
}

/// What an application needs of the house.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Where its slots live.
    pub loops: Vec<LoopHandle>,
    /// Where bodies wait.
    pub store: BodyStore,
}

/// How the first start went, so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Boot {
    /// Nothing can be said yet.
    Pending,
    /// All processes have been ready.
    Ready {
        /// From the start until then.
        took: Duration,
        /// What the interpreter says of itself.
        interpreter: String,
    },
    /// The code does not boot; it is tried again with growing delays.
    Failed {
        /// The real traceback.
        report: String,
    },
}

/// What loops, drivers and the executor share.
#[derive(Debug)]
pub(crate) struct AppShared {
    pub(crate) name: Arc<str>,
    pub(crate) way: Way,
    pub(crate) dispatch: Dispatch,
    pub(crate) metrics: Arc<AppMetrics>,
    pub(crate) store: ArcSwap<BodyStore>,
    /// See [`AppShared::note_app_time`]; slow until the first requests prove otherwise.
    recent_us: AtomicU32,
    pub(crate) response_timeout: Duration,
    pub(crate) queue_limits: QueueLimits,
    /// Why no request can be taken now; `None` in good times.
    pub(crate) refusing: ArcSwapOption<Refusal>,
    /// Written by the executor after each event.
    pub(crate) state: Mutex<StateView>,
}

/// How the application's processes get their requests.
#[derive(Debug, Clone)]
pub(crate) enum Way {
    /// From the queue here, over the worker protocol in this language's form.
    Workers(Dialect),
    /// From an upstream elsewhere, which is told of them.
    Servers(Arc<dyn ServerSet>),
}

/// Why requests are refused.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) cause: String,
    pub(crate) detail: Option<Arc<str>>,
}

/// The executor's word on processes, for the status page.
#[derive(Debug, Clone, Default)]
pub(crate) struct StateView {
    pub(crate) state: String,
    pub(crate) report: Option<String>,
    pub(crate) interpreter: String,
    pub(crate) generation: u64,
    pub(crate) workers: Vec<WorkerView>,
}

/// One worker in [`StateView`].
#[derive(Debug, Clone)]
pub(crate) struct WorkerView {
    pub(crate) pid: Option<u32>,
    pub(crate) generation: u64,
    pub(crate) state: &'static str,
    pub(crate) since: Instant,
    pub(crate) restarts: u64,
    pub(crate) mailboxes: Vec<Arc<crate::dispatch::Mailbox>>,
    /// Where a server of its own listens.
    pub(crate) address: Option<config::ServerAddr>,
}

/// An application at one moment.
#[derive(Debug, Clone)]
pub struct AppSnapshot {
    /// Its name.
    pub name: String,
    /// `wsgi`, `rack`, `command` or `fastcgi`.
    pub kind: &'static str,
    /// starting, ready, degraded, failing, draining, stopped.
    pub state: String,
    /// The traceback of the last failed boot.
    pub report: Option<String>,
    /// What the interpreter says of itself.
    pub interpreter: String,
    /// The generation that is being served.
    pub generation: u64,
    /// Threads in each process.
    pub threads: usize,
    /// Its queue.
    pub queue: QueueUse,
    /// The queue's bound.
    pub queue_max: usize,
    /// Its workers.
    pub workers: Vec<WorkerSnapshot>,
}

/// A worker at one moment.
#[derive(Debug, Clone)]
pub struct WorkerSnapshot {
    /// Its process id.
    pub pid: Option<u32>,
    /// The code it runs.
    pub generation: u64,
    /// booting, ready, retiring, stopping.
    pub state: &'static str,
    /// Since when.
    pub since: Duration,
    /// How many had its seat before.
    pub restarts: u64,
    /// Requests it has in progress.
    pub in_progress: u32,
    /// Where it listens, if it is a server of its own (`command`, `fastcgi`).
    pub address: Option<String>,
    /// Its resident memory.
    pub resident_bytes: Option<u64>,
}

impl App {
    /// Starts the application on the current loop, which must be on a thread that lives as long as
    /// the server: its workers die with that thread. Of a `command` or `fastcgi` application the
    /// processes run and nobody is told: those are for [`App::start_servers`].
    #[must_use]
    pub fn start(config: config::App, setup: &Setup) -> Arc<Self> {
        Self::start_servers(config, setup, Arc::new(Nobody))
    }

    /// As [`App::start`]; `servers` is told where the processes of a `command` or `fastcgi`
    /// application listen. Requests do not come here then: they go to the upstream that `servers`
    /// stands for. The other kinds have no use for it.
    #[must_use]
    pub fn start_servers(
        config: config::App,
        setup: &Setup,
        servers: Arc<dyn ServerSet>,
    ) -> Arc<Self> {
        Self::start_by(Self::policy(&config), config, setup, servers)
    }

    /// How many processes there are, and how patient to be with them.
    pub(crate) fn policy(config: &config::App) -> Policy {
        let slack = match config.kind {
            config::AppKind::Wsgi | config::AppKind::Asgi | config::AppKind::Rack => Duration::ZERO,
            // The executor gives these up in time, with a better report.
            config::AppKind::Command | config::AppKind::FastCgi => BOOT_SLACK,
        };
        Policy {
            processes: config.processes.max,
            boot_timeout: config.boot_timeout + slack,
            ..Policy::default()
        }
    }

    /// Starts the application with a policy other than its own.
    pub(crate) fn start_by(
        policy: Policy,
        config: config::App,
        setup: &Setup,
        servers: Arc<dyn ServerSet>,
    ) -> Arc<Self> {
        let way = match config.kind {
            config::AppKind::Wsgi | config::AppKind::Asgi => Way::Workers(Dialect::Python),
            config::AppKind::Rack => Way::Workers(Dialect::Ruby),
            config::AppKind::Command | config::AppKind::FastCgi => Way::Servers(servers),
        };
        let queue_limits = QueueLimits {
            len_max: config.queue_max,
            timeout: config.queue_timeout,
        };
        let shared = Arc::new(AppShared {
            name: config.name.as_str().into(),
            way,
            dispatch: Dispatch::new(queue_limits),
            metrics: Arc::default(),
            store: ArcSwap::from_pointee(setup.store.clone()),
            recent_us: AtomicU32::new(u32::MAX / 64),
            response_timeout: config.response_timeout,
            queue_limits,
            refusing: ArcSwapOption::empty(),
            state: Mutex::default(),
        });
        let (commands, inbox) = mpsc::channel(COMMANDS_MAX);
        let (said, boot) = watch::channel(Boot::Pending);
        let executor = Executor::new(
            Arc::clone(&shared),
            config.clone(),
            setup.loops.clone(),
            said,
            policy,
        );
        penstock_runtime::loops::spawn_here(executor::run(executor, inbox));
        Arc::new(Self {
            shared,
            config,
            commands,
            boot,
        })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The configuration that it runs with.
    #[must_use]
    pub fn config(&self) -> &config::App {
        &self.config
    }

    /// What it counts.
    #[must_use]
    pub fn metrics(&self) -> &Arc<AppMetrics> {
        &self.shared.metrics
    }

    /// Why no request can be served now: the code does not boot, or the application stops. `None` in
    /// good times, also while a first boot is under way. For the upstream of a `command` or `fastcgi`
    /// application, whose requests would otherwise wait for servers that do not come.
    #[must_use]
    pub fn refusal(&self) -> Option<Fault> {
        self.shared.refusal()
    }

    /// Bodies wait elsewhere or in other bounds, from a reload on.
    pub fn adopt(&self, store: BodyStore) {
        self.shared.store.store(Arc::new(store));
    }

    /// Waits until the first start has come to something.
    pub async fn booted(&self) -> Boot {
        let mut boot = self.boot.clone();
        match boot.wait_for(|boot| *boot != Boot::Pending).await {
            Ok(boot) => boot.clone(),
            Err(_) => Boot::Failed {
                report: "the application was stopped".into(),
            },
        }
    }

    /// Waits until all processes have been ready; gives how long that took and what the interpreter
    /// says of itself, `None` when the application was stopped before.
    pub async fn up(&self) -> Option<(Duration, String)> {
        let mut boot = self.boot.clone();
        let ready = boot
            .wait_for(|boot| matches!(boot, Boot::Ready { .. }))
            .await
            .ok()?;
        match &*ready {
            Boot::Ready { took, interpreter } => Some((*took, interpreter.clone())),
            Boot::Pending | Boot::Failed { .. } => None,
        }
    }

    /// Rolls to new code; returns when it serves.
    ///
    /// # Errors
    /// Why the new code was given up (its traceback); the old code serves on.
    pub async fn restart(&self) -> Result<(), String> {
        let (done, answer) = oneshot::channel();
        let stopped = || "the application is stopping".to_owned();
        self.commands
            .send(Command::Restart(done))
            .await
            .map_err(|_| stopped())?;
        answer.await.unwrap_or_else(|_| Err(stopped()))
    }

    /// Finishes what is in progress until `deadline`, then ends all workers; returns when no process
    /// is left.
    pub async fn drain(&self, deadline: Instant) {
        let (done, answer) = oneshot::channel();
        if self
            .commands
            .send(Command::Drain { deadline, done })
            .await
            .is_ok()
        {
            // An executor that is gone has nothing left to end.
            let _ = answer.await;
        }
    }

    /// How it is now. Reads each worker's memory from `/proc`.
    #[must_use]
    pub fn snapshot(&self) -> AppSnapshot {
        let now = clock::now();
        let view = self.shared.state();
        let workers = view.workers.iter().map(|worker| WorkerSnapshot {
            pid: worker.pid,
            generation: worker.generation,
            state: worker.state,
            since: now.saturating_duration_since(worker.since),
            restarts: worker.restarts,
            in_progress: self.shared.in_progress(worker),
            address: worker.address.as_ref().map(ToString::to_string),
            resident_bytes: worker
                .pid
                .and_then(|p| penstock_sys::file::resident_bytes(p).ok()),
        });
        AppSnapshot {
            name: self.config.name.clone(),
            kind: self.config.kind.as_str(),
            workers: workers.collect(),
            state: view.state,
            report: view.report,
            interpreter: view.interpreter,
            generation: view.generation,
            threads: self.config.threads,
            queue: self.shared.dispatch.usage(now),
            queue_max: self.config.queue_max,
        }
    }
}

impl AppShared {
    pub(crate) fn queue_timeout(&self) -> Duration {
        self.queue_limits.timeout
    }

    /// The fault for a request that cannot even wait.
    pub(crate) fn refusal(&self) -> Option<Fault> {
        let refusing = self.refusing.load();
        let refusal = refusing.as_ref()?;
        let mut fault = Fault::new(FaultKind::Unavailable, refusal.cause.clone());
        fault.detail.clone_from(&refusal.detail);
        *fault.timing = Timing {
            handler: Some((&self.name).into()),
            ..Timing::default()
        };
        Some(fault)
    }

    /// How long recent requests took: the slowest of them, fading by a sixty-fourth with each. All
    /// slots share it, as the next slow request may come to any of them.
    pub(crate) fn note_app_time(&self, took: Duration) {
        let took = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        let recent = self.recent_us.load(Ordering::Relaxed);
        // Two loops may overwrite one another: it is an estimate.
        let faded = recent - recent.div_ceil(64);
        self.recent_us.store(faded.max(took), Ordering::Relaxed);
    }

    /// See [`AppShared::note_app_time`].
    pub(crate) fn recent_app_time(&self) -> Duration {
        Duration::from_micros(u64::from(self.recent_us.load(Ordering::Relaxed)))
    }

    fn in_progress(&self, worker: &WorkerView) -> u32 {
        match (&self.way, &worker.address) {
            (Way::Servers(set), Some(address)) => {
                u32::try_from(set.in_progress(address)).unwrap_or(u32::MAX)
            }
            _ => {
                let mailboxes = worker.mailboxes.iter();
                let loads = mailboxes.map(|m| m.in_progress.load(Ordering::Relaxed));
                loads.sum()
            }
        }
    }

    pub(crate) fn state(&self) -> StateView {
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn set_state(&self, view: StateView) {
        *self
            .state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = view;
    }
}
