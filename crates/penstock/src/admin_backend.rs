//! The running server as the admin interface sees it.
//!
//! Gathers numbers from the rooms into one snapshot and passes the admin's wishes on. Holds the
//! server weakly: the admin interface must not keep it alive. A reload or restart runs in a task of
//! its own, so a client that leaves does not stop it half-way.

mod caches;
mod hub;
mod upstreams;

use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use penstock_apps::{AppSnapshot, WorkerSnapshot};
use penstock_config::{Limits, ListenAddr};
use penstock_edge::Edge;
use penstock_exchange::buffering::TempSpaceSnapshot;
use penstock_exchange::metrics::{AppMetrics, EdgeMetrics};
use penstock_proxy::{Joiner, JoinerState};
use penstock_runtime::blocking::{DurationStats as PoolTimes, Pool};
use penstock_runtime::{clock, loops};
use penstock_status::{
    AdminOperations, AppCounters, AppQueueStatus, AppStatus, BoundsStatus, BoxFuture,
    FrontEndStatus, HubStatus, LimitStatus, MachineStatus, PoolStatus, ProcessesStatus,
    PublishError, PurgeError, PurgeRequest, ServerChangeRequest, ServerChangeRequestError,
    ServerState, Snapshot, TimeSum, Traffic, Usage, WorkerStatus,
};
use penstock_sys::cgroup::{GroupPlan, Usage as CgroupUsage};
use tokio::sync::oneshot;

use crate::hardening;
use crate::server::{LiveState, Server};
use crate::tcp::ActiveTcpListener;

/// The server, for `status`.
#[derive(Debug)]
pub(crate) struct AdminBackend {
    server: Weak<Server>,
    purge_pool: Pool,
}

impl AdminBackend {
    pub(crate) fn new(server: Weak<Server>) -> Self {
        Self {
            server,
            purge_pool: caches::purge_pool(),
        }
    }
}

impl Drop for AdminBackend {
    fn drop(&mut self) {
        self.purge_pool.close();
    }
}

const STOPPED_ERROR: &str = "the server has stopped";

impl AdminOperations for AdminBackend {
    fn snapshot(&self) -> Snapshot {
        match self.server.upgrade() {
            Some(server) => snapshot(&server),
            None => stopped_snapshot(),
        }
    }

    fn edge_metrics(&self) -> Arc<EdgeMetrics> {
        self.server
            .upgrade()
            .map(|server| Arc::new(server.edge.total_metrics()))
            .unwrap_or_default()
    }

    fn app_metrics(&self) -> Vec<(String, Arc<AppMetrics>)> {
        let Some(server) = self.server.upgrade() else {
            return Vec::new();
        };
        let live = server.live();
        let metrics = |app: &penstock_apps::App| Arc::clone(app.metrics());
        (live.components.apps.iter())
            .map(|(name, app)| (name.clone(), metrics(app)))
            .collect()
    }

    fn reload(&self) -> BoxFuture<'static, Result<String, String>> {
        let server = self.server.upgrade();
        Box::pin(async move {
            let server = server.ok_or(STOPPED_ERROR)?;
            run_detached(async move { server.reload().await })
                .await
                .ok_or(STOPPED_ERROR)?
        })
    }

    fn restart_app(&self, app: &str) -> BoxFuture<'static, Option<Result<(), String>>> {
        let app = self
            .server
            .upgrade()
            .and_then(|server| server.live().components.apps.get(app).cloned());
        Box::pin(async move {
            let app = app?;
            run_detached(async move { app.restart().await }).await
        })
    }

    fn change_servers(
        &self,
        upstream: &str,
        change: ServerChangeRequest,
    ) -> BoxFuture<'static, Result<String, ServerChangeRequestError>> {
        let found = self.server.upgrade().and_then(|server| {
            let live = server.live();
            // The lock is given back before the change takes its own.
            let found = live.components.upstreams.get(upstream).cloned()?;
            Some((found, live.components.apps.contains_key(upstream)))
        });
        let done = match found {
            Some((upstream, is_app)) => upstreams::manage_upstream(&upstream, change, is_app),
            None => Err(ServerChangeRequestError::UnknownUpstream(
                upstream.to_owned(),
            )),
        };
        Box::pin(std::future::ready(done))
    }

    fn purge(&self, wanted: PurgeRequest) -> BoxFuture<'static, Result<u64, PurgeError>> {
        let caches = self
            .server
            .upgrade()
            .map(|server| server.live().components.caches.clone());
        let pool = self.purge_pool.clone();
        Box::pin(async move {
            let stopped = || PurgeError::Rejected(STOPPED_ERROR.to_owned());
            let work = caches::purge(pool, caches.ok_or_else(stopped)?, wanted);
            run_detached(work).await.ok_or_else(stopped)?
        })
    }

    fn verify_publish_token(&self, token: &str) -> Result<String, PublishError> {
        let server = self.server.upgrade();
        let server = server.ok_or_else(|| PublishError::Rejected(STOPPED_ERROR.to_owned()))?;
        hub::verify_publisher(&server.hub_service, token)
    }

    fn publish(&self, body: &[u8], namespace: Option<&str>) -> Result<(), PublishError> {
        let server = self.server.upgrade();
        let server = server.ok_or_else(|| PublishError::Rejected(STOPPED_ERROR.to_owned()))?;
        hub::publish_body(&server.hub_service, body, namespace)
    }

    fn max_publish_bytes(&self) -> usize {
        let server = self.server.upgrade();
        server.map_or(0, |server| hub::max_publish_bytes(&server.hub_service.hub))
    }

    fn upgrade(&self, binary: Option<String>) -> BoxFuture<'static, Result<String, String>> {
        let server = self.server.upgrade();
        Box::pin(async move {
            let server = server.ok_or(STOPPED_ERROR)?;
            run_detached(async move { server.upgrade(binary.map(Into::into)).await })
                .await
                .ok_or(STOPPED_ERROR)?
        })
    }

    fn reopen_logs(&self) -> BoxFuture<'static, Result<String, String>> {
        let server = self.server.upgrade();
        Box::pin(async move {
            let server = server.ok_or(STOPPED_ERROR)?;
            run_detached(async move { server.reopen_logs().await })
                .await
                .ok_or(STOPPED_ERROR)?
        })
    }

    fn control_socket(&self) -> Option<String> {
        control_socket_name(&self.server.upgrade()?.live())
    }

    fn stop(&self) {
        if let Some(server) = self.server.upgrade() {
            server.stop();
        }
    }

    fn check_ready(&self) -> Result<(), String> {
        let server = self.server.upgrade().ok_or(STOPPED_ERROR)?;
        if server.is_draining() {
            return Err("the server is stopping".to_owned());
        }
        let apps: Vec<_> = server.live().components.apps.values().cloned().collect();
        let unready = apps.iter().map(|app| app.snapshot()).find(|app| {
            // Degraded still answers.
            !matches!(app.state.as_str(), "ready" | "degraded")
        });
        if let Some(app) = unready {
            return Err(format!("application {} is {}", app.name, app.state));
        }
        let joins = join_status(&server.live(), server.joiner());
        match joins.and_then(|joins| Some((joins.address, joins.cause?))) {
            Some((address, cause)) => Err(format!("not a server of {address}: {cause}")),
            None => Ok(()),
        }
    }
}

/// Runs `work` in a task of its own and awaits its result.
async fn run_detached<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    let (give, result) = oneshot::channel();
    loops::spawn_here(async move {
        // Whoever asked may have left.
        let _ = give.send(work.await);
    });
    result.await.ok()
}

/// Where changes are made without a token.
fn control_socket_name(live: &LiveState) -> Option<String> {
    let admin = live.admin.as_ref();
    let admin = admin.filter(|admin| matches!(admin.address(), ListenAddr::Unix(_)));
    let socket = live.control.as_ref().or(admin)?;
    Some(socket.name().to_owned())
}

fn snapshot(server: &Server) -> Snapshot {
    let live = server.live();
    let connections = server.edge.open_connections() as u64;
    let limits = &live.config.limits;
    let mut listeners: Vec<String> = live.listeners.iter().map(|l| l.name().to_owned()).collect();
    listeners.extend(live.tcp_listeners.iter().map(ActiveTcpListener::name));
    let own = live.admin.iter().chain(&live.control).chain(&live.probes);
    listeners.extend(own.map(|one| one.name().to_owned()));
    Snapshot {
        version: env!("CARGO_PKG_VERSION"),
        pid: std::process::id(),
        uptime: clock::now().saturating_duration_since(server.started),
        state: if server.is_draining() {
            ServerState::Draining
        } else {
            ServerState::Running
        },
        listeners,
        control_socket: control_socket_name(&live),
        config: live
            .config
            .path
            .as_ref()
            .map(|path| path.display().to_string()),
        event_loops: server.threads(),
        connections: Usage {
            used: connections,
            max: server.edge.max_connections() as u64,
        },
        connections_limited_by: server.edge.connection_limit_reason(),
        resident_bytes: penstock_sys::file::process_rss_bytes(std::process::id()).ok(),
        traffic: Traffic::new(&server.edge.total_metrics()),
        config_generation: live.reloads + 1,
        config_reloads: live.reloads,
        reload_error: live.reload_error.clone(),
        log_lines_dropped: server.log_lines_dropped(),
        warnings: [
            server.exposures().to_vec(),
            hardening::warnings(&live.config),
            server.bounds().warnings(&live.config),
        ]
        .concat(),
        event_loop_stalls: server.watchdog.stalls(),
        machine: hub::machine_status(connections),
        hub: hub::hub_status(&server.hub_service),
        front_end: join_status(&live, server.joiner()),
        apps: (live.components.apps.values())
            .map(|app| app_status(app.snapshot(), app.metrics()))
            .collect(),
        upstreams: (live.components.upstreams.values())
            .map(|upstream| upstreams::upstream_status(upstream.snapshot()))
            .collect(),
        caches: (live.components.caches.values())
            .map(|cache| caches::cache_status(cache.snapshot()))
            .collect(),
        cached_routes: live
            .cached_routes
            .iter()
            .map(caches::cached_route_status)
            .collect(),
        pools: pool_statuses(&live),
        limits: {
            let mut all =
                limit_statuses(limits, &server.edge, live.components.temp_space.snapshot());
            all.extend(hub::hub_limits(&server.hub_service.hub));
            all
        },
    }
}

/// How it stands with the front end that this one joins.
fn join_status(live: &LiveState, joiner: Option<&Joiner>) -> Option<FrontEndStatus> {
    let joins = live.config.join_target.as_ref()?;
    let cause = match joiner.map(Joiner::state) {
        Some(JoinerState::Joined) => None,
        Some(JoinerState::NotJoined(cause)) => Some(cause),
        Some(JoinerState::Left) => Some("it has left".to_owned()),
        None => Some("the application is not ready".to_owned()),
    };
    Some(FrontEndStatus {
        address: joins.address.clone(),
        upstream: joins.upstream.clone(),
        is_joined: cause.is_none(),
        cause,
    })
}

fn pool_statuses(live: &LiveState) -> Vec<PoolStatus> {
    let pools = live.components.pools.iter().map(|(name, pool)| {
        let usage = pool.snapshot();
        let bounds = live.config.blocking.get(name).copied().unwrap_or_default();
        PoolStatus {
            name: name.clone(),
            queued: usage.queued,
            active_threads: usage.active,
            max_threads: bounds.threads,
            max_queued: bounds.max_queued,
            refused: usage.refused,
            queue_time: time_spent(usage.queue_time),
            max_queue_time: Duration::from_micros(usage.queue_time.max_us),
            run_time: time_spent(usage.run_time),
            oldest_running: usage.oldest_running.unwrap_or_default(),
        }
    });
    pools.collect()
}

fn time_spent(times: PoolTimes) -> TimeSum {
    TimeSum::new(times.count, Duration::from_micros(times.sum_us))
}

fn limit_statuses(limits: &Limits, edge: &Edge, temp: TempSpaceSnapshot) -> Vec<LimitStatus> {
    let (max, used) = (edge.max_connections(), edge.open_connections());
    // 0 is no bound.
    let per_client = edge.max_connections_per_client().unwrap_or_default();
    vec![
        LimitStatus::count("limits.connections", max as u64, Some(used as u64)),
        LimitStatus::count("limits.connections_per_client", per_client as u64, None),
        LimitStatus::bytes("limits.target_bytes", limits.max_uri_size as u64),
        LimitStatus::bytes("limits.header_bytes", limits.max_header_size as u64),
        LimitStatus::count("limits.headers", limits.max_headers as u64, None),
        LimitStatus::bytes("limits.body_bytes", limits.max_body_size),
        LimitStatus::time("limits.header_timeout", limits.header_timeout),
        LimitStatus::time("limits.idle_timeout", limits.idle_timeout),
        LimitStatus::time("limits.body_idle_timeout", limits.body_idle_timeout),
        LimitStatus::rate("limits.min_body_rate", limits.min_body_rate),
        LimitStatus::time("limits.body_rate_grace", limits.body_rate_grace),
        LimitStatus::bytes("limits.body_memory", limits.max_body_memory as u64),
        LimitStatus::bytes("limits.response_memory", limits.max_response_memory as u64),
        LimitStatus::bytes("limits.response_spool", limits.max_response_spool),
        LimitStatus::rate("limits.min_busy_rate", limits.min_busy_rate),
        LimitStatus::bytes("limits.temp_bytes", temp.max)
            .with_used(temp.used)
            .with_reached(temp.waited_total + temp.refused_total),
        LimitStatus::bytes(
            "limits.websocket_message_bytes",
            limits.max_websocket_message_size as u64,
        ),
    ]
}

fn app_status(app: AppSnapshot, metrics: &AppMetrics) -> AppStatus {
    AppStatus {
        name: app.name,
        kind: app.kind.to_owned(),
        state: app.state,
        boot_report: app.boot_report,
        interpreter: app.interpreter,
        generation: app.generation,
        processes: ProcessesStatus {
            min: app.processes.min,
            ready: app.processes.ready,
            target: app.processes.target,
            max: app.processes.max,
        },
        last_scaling: app.last_scaling,
        last_failure: app.last_failure,
        is_restarting: app.is_restarting,
        restart_error: app.restart_error,
        start_method: app.start_method,
        threads: app.threads,
        min_threads: app.min_threads,
        max_threads: app.max_threads,
        bounds: bounds_status(app.usage.unwrap_or_default(), app.bounds.as_ref()),
        queue: AppQueueStatus {
            length: app.queue_usage.waiting,
            max: app.max_queued,
            slots: app.queue_usage.slots,
            active: app.queue_usage.in_progress,
            oldest_wait: app.queue_usage.oldest_wait,
        },
        counters: AppCounters::new(metrics),
        queue_time: metrics.queue_time.values(),
        header_time: metrics.app_time.values(),
        workers: app.workers.into_iter().map(worker_status).collect(),
        templates: app.templates.into_iter().map(worker_status).collect(),
    }
}

fn bounds_status(usage: CgroupUsage, bounds: Option<&GroupPlan>) -> BoundsStatus {
    BoundsStatus {
        tasks: usage.tasks,
        max_tasks: bounds.and_then(|bounds| bounds.max_tasks),
        memory_bytes: usage.memory,
        max_memory_bytes: bounds.and_then(|bounds| bounds.max_memory),
        max_cpu: bounds.and_then(|bounds| bounds.max_cpu),
    }
}

fn worker_status(worker: WorkerSnapshot) -> WorkerStatus {
    WorkerStatus {
        pid: worker.pid,
        generation: worker.generation,
        state: worker.state.to_owned(),
        time_in_state: worker.time_in_state,
        restarts: worker.restarts,
        active: worker.in_progress,
        resident_bytes: worker.resident_bytes,
        proportional_bytes: worker.proportional_bytes,
        age: worker.age,
        requests: worker.requests,
        replace_reason: worker.replace_reason,
    }
}

/// What is left to say when the server is gone and a last event stream still asks.
fn stopped_snapshot() -> Snapshot {
    Snapshot {
        version: env!("CARGO_PKG_VERSION"),
        pid: std::process::id(),
        uptime: Duration::ZERO,
        state: ServerState::Draining,
        listeners: Vec::new(),
        control_socket: None,
        config: None,
        event_loops: 0,
        connections: Usage { used: 0, max: 0 },
        connections_limited_by: String::new(),
        resident_bytes: None,
        traffic: Traffic::new(&EdgeMetrics::default()),
        config_generation: 0,
        config_reloads: 0,
        reload_error: None,
        front_end: None,
        log_lines_dropped: 0,
        warnings: Vec::new(),
        event_loop_stalls: 0,
        machine: MachineStatus::default(),
        hub: HubStatus::empty(),
        apps: Vec::new(),
        upstreams: Vec::new(),
        caches: Vec::new(),
        cached_routes: Vec::new(),
        pools: Vec::new(),
        limits: Vec::new(),
    }
}
