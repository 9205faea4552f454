//! The state of one application that event loops, drivers and the executor share.
//!
//! Made once by `App::start`.
//!
//! # Invariants
//! - The executor alone writes the state that is shown.
//! - No lock here is held across an await.

mod slot_producer;
mod worker_model;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;
use penstock_config as config;
use penstock_exchange::buffering::{BufferingSettings, SlowResponses};
use penstock_exchange::metrics::AppMetrics;
use penstock_exchange::{Fault, FaultKind, RequestTiming};
use penstock_queue::QueueLimits;
use penstock_sys::cgroup::AppCgroup;
use penstock_wire::Dialect;

use crate::app::{AppSnapshot, WorkerSnapshot};
use crate::boot_failures::BootFailures;
use crate::dispatch::{AppDispatcher, Job, Mailbox, RecentLatency, WorkerStats};
use crate::output::OutputLog;
use crate::server_set::ServerSet;
use crate::sticky::Stickiness;
use crate::websocket_message_limits::{HeldMessageBytes, WebSocketMessageLimits};

pub(crate) use self::slot_producer::SlotProducer;
use self::worker_model::WorkerModelCell;
pub(crate) use self::worker_model::{RequestEncoding, WorkerModel};

/// The state that loops, drivers and the executor share.
#[derive(Debug)]
pub(crate) struct AppShared {
    pub(crate) name: Arc<str>,
    pub(crate) dispatch_mode: DispatchMode,
    /// How its workers get their requests.
    pub(crate) model: WorkerModelCell,
    pub(crate) dispatch: AppDispatcher,
    pub(crate) metrics: Arc<AppMetrics>,
    /// The cgroup that limits its processes, with all that they start.
    pub(crate) cgroup: Option<Arc<AppCgroup>>,
    pub(crate) buffering_settings: ArcSwap<BufferingSettings>,
    /// Responses that hold its workers because their clients are slow.
    slow_responses: SlowResponses,
    /// The limits of its WebSockets' messages, and the bytes that their clients hold.
    pub(crate) message_limits: ArcSwap<WebSocketMessageLimits>,
    pub(crate) held_message_bytes: HeldMessageBytes,
    /// How long recent requests took.
    pub(crate) recent_latency: RecentLatency,
    /// Whether messages of WebSockets are compressed if the client offers it.
    pub(crate) websocket_compression: bool,
    /// How a client is kept at one process, if it is.
    pub(crate) stickiness: Option<Stickiness>,
    /// Unless the route of a request says otherwise.
    pub(crate) response_timeout: Duration,
    /// How long streams may continue in a worker that is being replaced.
    pub(crate) stream_timeout: Duration,
    pub(crate) gc_when_idle: bool,
    pub(crate) queue_limits: QueueLimits,
    /// Why requests are refused now; `None` if they are not.
    pub(crate) refusal: ArcSwapOption<Refusal>,
    /// Written by the executor after each event.
    pub(crate) view: Mutex<AppView>,
    /// The last lines that its processes have written.
    pub(crate) output_log: OutputLog,
    /// What the log has of boots that failed; held for one text at a time.
    pub(crate) boot_failures: Mutex<BootFailures>,
    /// When the code that serves began to load.
    pub(crate) code_load_started_at: Mutex<SystemTime>,
}

/// How the application's processes get their requests.
#[derive(Debug, Clone)]
pub(crate) enum DispatchMode {
    /// From the queue here, over the worker protocol in this language's form.
    Workers(Dialect),
    /// From an upstream elsewhere.
    Servers(Arc<dyn ServerSet>),
}

#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) cause: String,
    pub(crate) detail: Option<Arc<str>>,
}

/// The executor's view of the application and its processes, for the status page.
#[derive(Debug, Clone, Default)]
pub(crate) struct AppView {
    /// What changes with the executor's events alone.
    pub(crate) snapshot: AppSnapshot,
    /// Whether it still grows to its initial size.
    pub(crate) is_growing_to_initial_size: bool,
    pub(crate) workers: Vec<WorkerView>,
    pub(crate) templates: Vec<WorkerView>,
}

#[derive(Debug, Clone)]
pub(crate) struct WorkerView {
    /// What changes with the executor's events alone.
    pub(crate) snapshot: WorkerSnapshot,
    pub(crate) state_since: Instant,
    pub(crate) started_at: Option<Instant>,
    pub(crate) stats: Option<Arc<WorkerStats>>,
    pub(crate) mailboxes: Vec<Arc<Mailbox>>,
    /// The address of a process that is a server of its own.
    pub(crate) address: Option<config::ServerAddr>,
}

impl AppShared {
    /// How long a request may take to have a response.
    pub(crate) fn response_timeout_of(&self, job: &Job) -> Duration {
        job.response_timeout.unwrap_or(self.response_timeout)
    }

    /// The state of an application with this configuration at its start.
    pub(crate) fn new(
        config: &config::App,
        mode: DispatchMode,
        settings: BufferingSettings,
    ) -> Self {
        let queue_limits = QueueLimits {
            max_len: config.max_queued,
            timeout: config.queue_timeout,
        };
        Self {
            name: config.name.as_str().into(),
            dispatch_mode: mode,
            model: WorkerModelCell::new(config),
            dispatch: AppDispatcher::new(queue_limits),
            metrics: Arc::default(),
            cgroup: None,
            buffering_settings: ArcSwap::from_pointee(settings),
            slow_responses: SlowResponses::default(),
            message_limits: ArcSwap::default(),
            held_message_bytes: HeldMessageBytes::default(),
            recent_latency: RecentLatency::default(),
            websocket_compression: config.websocket_compression,
            stickiness: Stickiness::from_config(config),
            response_timeout: config.response_timeout,
            stream_timeout: config.stream_timeout,
            gc_when_idle: config.gc_when_idle,
            queue_limits,
            refusal: ArcSwapOption::empty(),
            view: Mutex::default(),
            output_log: OutputLog::default(),
            boot_failures: Mutex::default(),
            code_load_started_at: Mutex::new(SystemTime::now()),
        }
    }

    /// Responses that wait, or have waited, for their clients.
    #[cfg(test)]
    pub(crate) fn slow_responses(&self) -> &SlowResponses {
        &self.slow_responses
    }

    pub(crate) fn queue_timeout(&self) -> Duration {
        self.queue_limits.timeout
    }

    /// The fault for a request that cannot even wait.
    pub(crate) fn refusal_fault(&self) -> Option<Fault> {
        let refusing = self.refusal.load();
        let refusal = refusing.as_ref()?;
        let mut fault = Fault::new(FaultKind::Unavailable, refusal.cause.clone());
        fault.detail.clone_from(&refusal.detail);
        *fault.timing = self.wait_timing(Duration::ZERO);
        Some(fault)
    }

    pub(crate) fn requests_in_progress(&self, worker: &WorkerView) -> u32 {
        match (&self.dispatch_mode, &worker.address) {
            (DispatchMode::Servers(set), Some(address)) => {
                u32::try_from(set.in_progress(address)).unwrap_or(u32::MAX)
            }
            _ => {
                let mailboxes = worker.mailboxes.iter();
                let loads = mailboxes.map(|m| m.in_progress.load(Ordering::Relaxed));
                loads.sum()
            }
        }
    }

    /// The timing of a request that has waited and that no worker has had.
    pub(crate) fn wait_timing(&self, queue_time: Duration) -> RequestTiming {
        RequestTiming {
            queue_time,
            handler: Some((&self.name).into()),
            ..RequestTiming::default()
        }
    }
}
