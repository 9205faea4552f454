//! One running application, for the rest of the server.
//!
//! `penstock`'s components make it at start and at reload. It handles requests (`handler`), gives
//! snapshots to the status page, is restarted and drained. [`AppShared`] is shared with event
//! loops; processes belong to the `executor` task alone, which takes commands.

mod snapshot;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use penstock_config as config;
use penstock_exchange::buffering::BufferingSettings;
use penstock_exchange::metrics::AppMetrics;
use penstock_exchange::{ClientState, Fault};
use penstock_runtime::clock;
use penstock_wire::Dialect;
use tokio::sync::{mpsc, oneshot, watch};

pub use self::snapshot::{
    APP_METRICS, AppSnapshot, BoundsSnapshot, ProcessesSnapshot, QueueSnapshot, WorkerSnapshot,
};
use crate::executor::reporting::STOP_TIMED_OUT;
use crate::executor::setup::{AppResources, AppSize, BootStatus};
use crate::executor::start_gate::StartGate;
use crate::executor::{self, AppCommand, Executor};
use crate::release::ReleaseCommand;
use crate::server_set::{NoServers, ServerSet};
use crate::shared::{AppShared, DispatchMode};
use crate::stop_timeout;
use crate::supervisor::SupervisorPolicy;
use crate::websocket_message_limits::WebSocketMessageLimits;

/// Commands that may wait for the executor.
const MAX_COMMANDS: usize = 64;

/// How much longer than its boot time-out a process may live that the executor itself ends.
const BOOT_TIMEOUT_MARGIN: Duration = Duration::from_secs(1);

/// A running application.
#[derive(Debug)]
pub struct App {
    pub(crate) shared: Arc<AppShared>,
    config: config::App,
    commands: mpsc::Sender<AppCommand>,
    boot_status: watch::Receiver<BootStatus>,
    release: Option<Arc<ReleaseCommand>>,
}

impl App {
    /// Starts the application on the current loop, which must be on a thread that lives as long as
    /// the server: its workers die with that thread. The processes of a `command` or `fastcgi`
    /// application run unseen by any upstream: for those use [`App::start_with_server_set`].
    pub fn start(config: config::App, setup: &AppResources) -> Arc<Self> {
        Self::start_with_server_set(config, setup, Arc::new(NoServers))
    }

    /// As [`App::start`]; `servers` gets the addresses of the processes of a `command` or `fastcgi`
    /// application. Requests do not come here then: they go to the upstream behind `servers`. The
    /// other kinds do not use it.
    pub fn start_with_server_set(
        config: config::App,
        setup: &AppResources,
        servers: Arc<dyn ServerSet>,
    ) -> Arc<Self> {
        let mut policy = Self::supervisor_policy(&config);
        if let Some(AppSize { processes, threads }) = setup.initial_size {
            (policy.initial_processes, policy.initial_threads) = (processes, threads);
        }
        Self::start_with_policy(policy, config, setup, servers)
    }

    /// The supervisor's bounds and time-outs.
    pub(crate) fn supervisor_policy(config: &config::App) -> SupervisorPolicy {
        let slack = match config.kind {
            config::AppKind::Wsgi | config::AppKind::Asgi | config::AppKind::Rack
                if config.preload == config::Preload::Never =>
            {
                Duration::ZERO
            }
            // The executor ends these, and templates, in time, with a better report.
            _ => BOOT_TIMEOUT_MARGIN,
        };
        SupervisorPolicy {
            min_processes: config.processes.min,
            min_threads: config.min_threads,
            max_threads: config.threads,
            max_processes: config.processes.max,
            max_surge: config.max_surge,
            max_unavailable: config.max_unavailable,
            spawn_rate: config.scaling.max_spawn_rate,
            scale_up_after: config.scaling.up_after,
            scale_down_after: config.scaling.idle_timeout,
            boot_timeout: config.boot_timeout + slack,
            stop_timeout: config.stop_timeout,
            ..SupervisorPolicy::default()
        }
    }

    pub(crate) fn start_with_policy(
        policy: SupervisorPolicy,
        config: config::App,
        setup: &AppResources,
        servers: Arc<dyn ServerSet>,
    ) -> Arc<Self> {
        let mode = match config.kind {
            config::AppKind::Wsgi | config::AppKind::Asgi => DispatchMode::Workers(Dialect::Python),
            config::AppKind::Rack => DispatchMode::Workers(Dialect::Ruby),
            config::AppKind::Command | config::AppKind::FastCgi | config::AppKind::Job => {
                DispatchMode::Servers(servers)
            }
        };
        let mut shared = AppShared::new(&config, mode, setup.buffering_settings.clone());
        shared.cgroup.clone_from(&setup.cgroup);
        let shared = Arc::new(shared);
        let (commands, inbox) = mpsc::channel(MAX_COMMANDS);
        let (boot_sender, boot_status) = watch::channel(BootStatus::Pending);
        let executor = Executor::new(
            Arc::clone(&shared),
            config.clone(),
            boot_sender,
            (policy, setup),
        );
        let release = ReleaseCommand::of(&config, setup).map(Arc::new);
        let gate = StartGate {
            release: release.clone(),
            owner: setup.owner.clone(),
        };
        penstock_runtime::loops::spawn_here(executor::run(executor, gate, inbox));
        Arc::new(Self {
            shared,
            config,
            commands,
            boot_status,
            release,
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// When the code that serves began to load: later changes are not in it.
    pub fn code_load_started_at(&self) -> SystemTime {
        *self.shared.code_load_started_at.lock()
    }

    /// The configuration that it runs with.
    pub fn config(&self) -> &config::App {
        &self.config
    }

    /// Its kind: configured, or found by a process if the configuration only guesses.
    pub fn kind(&self) -> config::AppKind {
        self.shared.model.app_kind()
    }

    /// Whether the kind is final: configured, or found by a process.
    pub fn is_kind_settled(&self) -> bool {
        self.shared.model.get().is_some()
    }

    /// Waits until the kind is settled, as a request waits in the queue.
    ///
    /// # Errors
    /// The reply for a request that waits for it in vain.
    pub async fn wait_for_kind(&self, client: &ClientState) -> Result<(), Fault> {
        self.shared.wait_for_model(client).await.map(|_| ())
    }

    /// Requests that one of its processes may have in progress.
    pub fn process_request_capacity(&self) -> u32 {
        match self.shared.model.has_reactor() {
            true => self.config.max_concurrent,
            false => u32::try_from(self.config.threads).unwrap_or(u32::MAX),
        }
    }

    /// Its counters.
    pub fn metrics(&self) -> &Arc<AppMetrics> {
        &self.shared.metrics
    }

    /// Why no request can be served now: the code does not boot, or the application stops. `None`
    /// otherwise, also during a first boot. For the upstream of a `command` or `fastcgi`
    /// application, whose requests would otherwise wait for servers that do not come.
    pub fn refusal_fault(&self) -> Option<Fault> {
        self.shared.refusal_fault()
    }

    /// Sets the settings for buffered bodies, from a reload on.
    pub fn set_buffering_settings(&self, settings: BufferingSettings) {
        self.shared.buffering_settings.store(Arc::new(settings));
    }

    /// Sets the message limits for WebSockets that are opened from now on.
    pub fn set_websocket_message_limits(&self, limits: WebSocketMessageLimits) {
        self.shared.message_limits.store(Arc::new(limits));
    }

    /// The last lines that one of its processes has written, or all of them, oldest first, without
    /// the first `since` of all lines ever.
    pub fn output(&self, pid: Option<u32>, since: u64) -> Vec<String> {
        self.shared.output_log.lines_of(pid, since)
    }

    /// How many lines its processes have written.
    pub fn output_line_count(&self) -> u64 {
        self.shared.output_log.total_line_count()
    }

    /// The result of the first start, for a job that waits for it.
    #[must_use]
    pub fn boot_status(&self) -> watch::Receiver<BootStatus> {
        self.boot_status.clone()
    }

    /// Waits for the result of the first start.
    pub async fn wait_for_boot(&self) -> BootStatus {
        let mut boot = self.boot_status.clone();
        match boot.wait_for(|boot| *boot != BootStatus::Pending).await {
            Ok(boot) => boot.clone(),
            Err(_) => BootStatus::Failed {
                report: "the application was stopped".into(),
            },
        }
    }

    /// Waits until all processes have been ready; returns how long that took and the interpreter's
    /// description of itself, `None` if the application was stopped before.
    pub async fn wait_until_up(&self) -> Option<(Duration, String)> {
        let mut boot = self.boot_status.clone();
        let ready = boot
            .wait_for(|boot| matches!(boot, BootStatus::Ready { .. }))
            .await
            .ok()?;
        match &*ready {
            BootStatus::Ready { took, interpreter } => Some((*took, interpreter.clone())),
            BootStatus::Pending | BootStatus::Failed { .. } => None,
        }
    }

    /// Its current target size.
    pub fn current_size(&self) -> AppSize {
        let view = self.shared.view.lock();
        AppSize {
            processes: view.snapshot.processes.target,
            threads: view.snapshot.threads,
        }
    }

    /// The mean time from one response to the next that it can give at its current size, by its
    /// responses so far. `None` before the first, and for a reactor, whose requests overlap.
    pub fn response_interval(&self) -> Option<Duration> {
        let times = self.metrics().app_time.values();
        let count = u32::try_from(times.count())
            .ok()
            .filter(|&count| count > 0)?;
        if self.kind() == config::AppKind::Asgi {
            return None;
        }
        let AppSize { processes, threads } = self.current_size();
        let slots = u32::try_from(processes * threads).unwrap_or(u32::MAX);
        Some(times.sum() / count / slots.max(1))
    }

    /// Whether it is up and still grows to its initial size ([`AppResources::initial_size`]). Not
    /// any more once one of its processes did not boot.
    pub fn is_growing_to_initial_size(&self) -> bool {
        self.shared.view.lock().is_growing_to_initial_size
    }

    /// Restarts with new code, after its release command; returns when it serves.
    ///
    /// # Errors
    /// Why the new code failed (its traceback), or the release command; the old code continues to
    /// serve.
    pub async fn restart(&self) -> Result<(), String> {
        if let Some(release) = &self.release
            && let Err(report) = Box::pin(release.run(self.commands.closed())).await
        {
            log::error!("{}: not restarted: {report}", self.name());
            let report_failed = AppCommand::ReportFailedRelease(report.clone());
            // One that is ending shows nothing any more.
            let _ = self.commands.send(report_failed).await;
            return Err(report);
        }
        let (done, answer) = oneshot::channel();
        let stopped = || "the application is stopping".to_owned();
        self.commands
            .send(AppCommand::Restart(done))
            .await
            .map_err(|_| stopped())?;
        answer.await.unwrap_or_else(|_| Err(stopped()))
    }

    /// Whether requests wait for a process: ending now would leave them to their time-outs.
    pub fn has_waiting_requests(&self) -> bool {
        let usage = match &self.shared.dispatch_mode {
            DispatchMode::Workers(_) => self.shared.dispatch.queue_usage(clock::now()),
            DispatchMode::Servers(set) => set.queue_usage(),
        };
        usage.waiting + self.shared.model.requests_awaiting_model() > 0
    }

    /// Finishes requests until `deadline`, then ends all workers; returns when no process is left.
    pub async fn drain(&self, deadline: Instant) {
        self.send_drain(Some(deadline)).await;
    }

    /// Finishes all requests and streams within their own limits, as in a worker that is replaced;
    /// returns when no process is left.
    pub async fn drain_gracefully(&self) {
        self.send_drain(None).await;
    }

    /// The processes that were killed so far as they did not end when asked to.
    pub fn stop_kills(&self) -> u64 {
        self.shared.metrics.killed_workers[STOP_TIMED_OUT].value()
    }

    /// What to tell the operator about the processes that were killed at a stop: those since
    /// [`Self::stop_kills`] was `before`.
    pub fn describe_stop_kills(&self, before: u64) -> Option<String> {
        let killed = self.stop_kills().saturating_sub(before);
        (killed > 0).then(|| {
            let config = self.config();
            let option = stop_timeout::option_name(config);
            let told = stop_timeout::describe_kills(killed, config.stop_timeout, &option);
            format!("{}: {told}", config.name)
        })
    }

    async fn send_drain(&self, deadline: Option<Instant>) {
        let (done, answer) = oneshot::channel();
        if self
            .commands
            .send(AppCommand::Drain { deadline, done })
            .await
            .is_ok()
        {
            // An executor that has ended has nothing left to end.
            let _ = answer.await;
        }
    }
}
