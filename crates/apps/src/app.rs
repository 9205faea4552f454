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
use penstock_exchange::metrics::AppMetrics;
use penstock_exchange::{Fault, FaultKind, Timing};
use penstock_queue::QueueLimits;
use penstock_runtime::blocking::Pool;
use penstock_runtime::{LoopHandle, clock};
use penstock_wire::Dialect;
use tokio::sync::{mpsc, oneshot, watch};

use crate::dispatch::{Dispatch, QueueUse};
use crate::executor::{self, Command, Executor};
use crate::spool::SpoolLimits;

/// Commands that may wait for the executor.
const COMMANDS_MAX: usize = 64;

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
    /// Bounds on bodies.
    pub limits: config::Limits,
    /// For temporary files.
    pub pool: Pool,
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
    pub(crate) dialect: Dialect,
    pub(crate) dispatch: Dispatch,
    pub(crate) metrics: Arc<AppMetrics>,
    pub(crate) limits: ArcSwap<config::Limits>,
    pub(crate) pool: ArcSwap<Pool>,
    /// See [`AppShared::note_app_time`]; slow until the first requests prove otherwise.
    recent_us: AtomicU32,
    pub(crate) response_timeout: Duration,
    pub(crate) queue_limits: QueueLimits,
    /// Why no request can be taken now; `None` in good times.
    pub(crate) refusing: ArcSwapOption<Refusal>,
    /// Written by the executor after each event.
    pub(crate) state: Mutex<StateView>,
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
}

/// An application at one moment.
#[derive(Debug, Clone)]
pub struct AppSnapshot {
    /// Its name.
    pub name: String,
    /// `wsgi` or `rack`.
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
    /// Its resident memory.
    pub resident_bytes: Option<u64>,
}

impl App {
    /// Starts the application on the current loop, which must be on a thread that lives as long as
    /// the server: its workers die with that thread.
    #[must_use]
    pub fn start(config: config::App, setup: &Setup) -> Arc<Self> {
        let dialect = match config.kind {
            config::AppKind::Wsgi => Dialect::Python,
            config::AppKind::Rack => Dialect::Ruby,
        };
        let queue_limits = QueueLimits {
            len_max: config.queue_max,
            timeout: config.queue_timeout,
        };
        let shared = Arc::new(AppShared {
            name: config.name.as_str().into(),
            dialect,
            dispatch: Dispatch::new(queue_limits),
            metrics: Arc::default(),
            limits: ArcSwap::from_pointee(setup.limits.clone()),
            pool: ArcSwap::from_pointee(setup.pool.clone()),
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

    /// New bounds on bodies and another pool for them, at a reload.
    pub fn adopt(&self, limits: config::Limits, pool: Pool) {
        self.shared.limits.store(Arc::new(limits));
        self.shared.pool.store(Arc::new(pool));
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
            in_progress: worker
                .mailboxes
                .iter()
                .map(|m| m.in_progress.load(Ordering::Relaxed))
                .sum(),
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
        fault.timing = Timing {
            handler: Some((&self.name).into()),
            ..Timing::default()
        };
        Some(fault)
    }

    pub(crate) fn spool_limits(&self, is_unbuffered: bool) -> SpoolLimits {
        SpoolLimits {
            limits: self.limits.load_full(),
            is_unbuffered,
            pool: Pool::clone(&self.pool.load()),
        }
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
