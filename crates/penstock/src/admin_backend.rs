//! The running server behind the admin API: composes snapshots and makes changes.
//!
//! Holds the server weakly, so that the admin API does not keep it alive. A reload or restart runs
//! in its own task, so it continues when the client disconnects.

mod caches;
mod certificates;
mod hub;
mod traffic;
mod upstreams;

use std::sync::{Arc, Weak};
use std::time::Duration;

use penstock_cluster::RedisBus;
use penstock_config::{Limits, ListenAddr};
use penstock_edge::{Edge, TopSnapshot};
use penstock_exchange::buffering::TempSpaceSnapshot;
use penstock_exchange::metrics::LimitUsage;
use penstock_hub::{ChannelFilter, ChannelPresence};
use penstock_proxy::{Joiner, JoinerState};
use penstock_rules::BackEndName;
use penstock_runtime::blocking::Pool;
use penstock_runtime::{clock, loops};
use penstock_status::{
    AdminOperations, BoxFuture, ChangeError, FrontEndStatus, HISTORY_INTERVAL, HistorySnapshot,
    HubStatus, LimitStatus, MaintenanceChange, PublishError, PurgeRequest, ServerChangeRequest,
    ServerState, Snapshot, TopEntryStatus, TopStatus, Traffic,
};
use tokio::sync::oneshot;

use crate::hardening;
use crate::inherited_listeners::ListenerRole;
use crate::jobs::AppWithJobs;
use crate::listeners::Listener;
use crate::server::{LiveState, Server};
use crate::shared_rates;
use crate::work;

/// The server behind the admin API.
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

    /// The server, unless it has stopped.
    fn running(&self) -> Result<Arc<Server>, ChangeError> {
        let server = self.server.upgrade();
        server.ok_or_else(|| ChangeError::unavailable(STOPPED_ERROR.to_owned()))
    }

    /// Makes a change in a task of its own, unless the server has stopped.
    fn change<F>(
        &self,
        start: impl FnOnce(Arc<Server>) -> F,
    ) -> BoxFuture<'static, Result<String, String>>
    where
        F: Future<Output = Result<String, String>> + Send + 'static,
    {
        let work = self.server.upgrade().map(start);
        Box::pin(async move {
            let done = run_detached(work.ok_or(STOPPED_ERROR)?).await;
            done.ok_or(STOPPED_ERROR)?
        })
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
            Some(server) => snapshot(&server).with_findings(&server.history),
            None => stopped_snapshot(),
        }
    }

    fn history(&self) -> HistorySnapshot {
        let server = self.server.upgrade();
        server.map_or_else(HistorySnapshot::default, |server| server.history.snapshot())
    }

    fn reload(&self) -> BoxFuture<'static, Result<String, String>> {
        self.change(|server| async move { server.reload().await })
    }

    fn restart_app(&self, app: &str) -> BoxFuture<'static, Option<Result<Option<String>, String>>> {
        let found = self.server.upgrade().and_then(|server| {
            let live = server.live_state();
            let apps = &live.components.apps;
            let app = apps.get(app)?;
            let old_config = live.config_error.as_deref().map(describe_old_config);
            Some((AppWithJobs::find(app, apps), old_config))
        });
        Box::pin(async move {
            let (app, old_config) = found?;
            let done = run_detached(async move { app.restart().await }).await?;
            Some(match (done, old_config) {
                (Ok(()), old_config) => Ok(old_config),
                (Err(error), None) => Err(error),
                (Err(error), Some(old_config)) => Err(format!("{error}\n{old_config}")),
            })
        })
    }

    fn change_servers(
        &self,
        upstream: &str,
        change: ServerChangeRequest,
    ) -> BoxFuture<'static, Result<String, ChangeError>> {
        let found = self.server.upgrade().and_then(|server| {
            let live = server.live_state();
            // The lock is released before the change takes its own.
            let found = live.components.upstreams.get(upstream).cloned()?;
            Some((found, live.components.apps.contains_key(upstream)))
        });
        let done = match found {
            Some((upstream, is_app)) => upstreams::manage_upstream(&upstream, change, is_app),
            None => Err(ChangeError::not_found(format!(
                "there is no upstream named {upstream}"
            ))),
        };
        Box::pin(std::future::ready(done))
    }

    fn pause(&self, name: BackEndName, max_wait: Duration) -> Result<String, ChangeError> {
        traffic::pause(&*self.running()?, name, max_wait)
    }

    fn resume(&self, name: BackEndName) -> Result<String, ChangeError> {
        traffic::resume(&*self.running()?, &name)
    }

    fn set_maintenance(&self, change: MaintenanceChange) -> Result<String, ChangeError> {
        traffic::set_maintenance(&*self.running()?, change)
    }

    fn purge(&self, wanted: PurgeRequest) -> BoxFuture<'static, Result<u64, ChangeError>> {
        let caches = self
            .server
            .upgrade()
            .map(|server| server.live_state().components.caches.clone());
        let pool = self.purge_pool.clone();
        Box::pin(async move {
            let stopped = || ChangeError::unavailable(STOPPED_ERROR.to_owned());
            let work = caches::purge(pool, caches.ok_or_else(stopped)?, wanted);
            run_detached(work).await.ok_or_else(stopped)?
        })
    }

    fn verify_publish_token(&self, token: &str) -> Result<String, PublishError> {
        let server = self.server.upgrade();
        let server = server.ok_or_else(|| PublishError::Unavailable(STOPPED_ERROR.to_owned()))?;
        hub::verify_publisher(&server.hub_service, token)
    }

    fn publish(&self, body: &[u8], namespace: Option<&str>) -> Result<(), PublishError> {
        let server = self.server.upgrade();
        let server = server.ok_or_else(|| PublishError::Unavailable(STOPPED_ERROR.to_owned()))?;
        hub::publish_body(&server.hub_service, body, namespace)
    }

    fn list_channels(
        &self,
        filter: ChannelFilter,
        max: usize,
    ) -> BoxFuture<'static, Vec<ChannelPresence>> {
        let hub = self
            .server
            .upgrade()
            .map(|server| server.hub_service.hub.clone());
        Box::pin(async move {
            match hub {
                Some(hub) => hub.list_channels(&filter, max).await,
                None => Vec::new(),
            }
        })
    }

    fn max_publish_bytes(&self) -> usize {
        let server = self.server.upgrade();
        server.map_or(0, |server| hub::max_publish_bytes(&server.hub_service.hub))
    }

    fn upgrade(&self, binary: Option<String>) -> BoxFuture<'static, Result<String, String>> {
        self.change(|server| async move { server.upgrade(binary.map(Into::into)).await })
    }

    fn reopen_logs(&self) -> BoxFuture<'static, Result<String, String>> {
        self.change(|server| async move { server.reopen_logs().await })
    }

    fn control_socket(&self) -> Option<String> {
        control_socket_name(&self.server.upgrade()?.live_state())
    }

    fn stop(&self) {
        if let Some(server) = self.server.upgrade() {
            server.stop();
        }
    }

    fn stop_report(&self) -> BoxFuture<'static, Vec<String>> {
        let report = self.server.upgrade().map(|server| server.stop_report());
        Box::pin(async move {
            match report {
                Some(report) => report.await,
                None => Vec::new(),
            }
        })
    }

    fn check_ready(&self) -> Result<(), String> {
        let server = self.server.upgrade().ok_or(STOPPED_ERROR)?;
        if server.is_draining() {
            return Err("the server is stopping".to_owned());
        }
        let apps: Vec<_> = server
            .live_state()
            .components
            .apps
            .values()
            .cloned()
            .collect();
        let unready = apps.iter().map(|app| app.snapshot()).find(|app| {
            // A degraded application still answers.
            !matches!(app.state.as_str(), "ready" | "degraded")
        });
        if let Some(app) = unready {
            return Err(format!("application {} is {}", app.name, app.state));
        }
        let joins = join_status(&server.live_state(), server.joiner.get());
        match joins.and_then(|joins| Some((joins.address, joins.cause?))) {
            Some((address, cause)) => Err(format!("not a server of {address}: {cause}")),
            None => Ok(()),
        }
    }
}

/// What a restart says while the configuration file has changes that the server has refused.
fn describe_old_config(error: &str) -> String {
    format!(
        "with the old configuration: the last reload did not take over the file\n{}",
        error.trim_end()
    )
}

/// Runs `work` in its own task and awaits its result.
async fn run_detached<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    let (give, result) = oneshot::channel();
    loops::spawn_here(async move {
        // The client may have disconnected.
        let _ = give.send(work.await);
    });
    result.await.ok()
}

/// The socket that needs no token.
fn control_socket_name(live: &LiveState) -> Option<String> {
    let admin = live.listener(ListenerRole::Admin);
    let admin = admin.filter(|admin| matches!(admin.address(), ListenAddr::Unix(_)));
    let socket = live.listener(ListenerRole::Control).or(admin)?;
    Some(socket.name())
}

fn snapshot(server: &Server) -> Snapshot {
    let live = server.live_state();
    let connections = server.edge.open_connections() as u64;
    let limits = &live.config.limits;
    Snapshot {
        version: env!("CARGO_PKG_VERSION"),
        pid: std::process::id(),
        uptime: clock::now().saturating_duration_since(server.started),
        state: if server.is_draining() {
            ServerState::Draining
        } else {
            ServerState::Running
        },
        listeners: live.listeners.iter().map(Listener::name).collect(),
        control_socket: control_socket_name(&live),
        config: live
            .config
            .path
            .as_ref()
            .map(|path| path.display().to_string()),
        folder: server.invocation.cwd.display().to_string(),
        event_loops: server.loops.handles().len(),
        connections: LimitUsage::new(connections, server.edge.max_connections()),
        connections_limited_by: server.edge.connection_limit_reason(),
        resident_bytes: penstock_sys::file::process_rss_bytes(std::process::id()).ok(),
        traffic: Traffic::new(server.edge.total_metrics()),
        config_generation: live.reloads + 1,
        config_reloads: live.reloads,
        reload_error: live.reload_error.clone(),
        log_lines_dropped: server.log_lines_dropped(),
        warnings: [
            server.options.exposures.clone(),
            hardening::warnings(&live.config),
            work::plaintext_warnings(&live.config),
            server.options.app_limits.warnings(&live.config),
        ]
        .concat(),
        event_loop_stalls: server.watchdog.stall_count(),
        machine: hub::machine_status(connections),
        hub: HubStatus {
            hub: server.hub_service.hub.snapshot(),
            cluster: server.hub_service.bus().map(RedisBus::snapshot),
        },
        front_end: join_status(&live, server.joiner.get()),
        certificates: certificates::certificates(&server.tls),
        apps: (live.components.apps.values())
            .map(|app| app.snapshot())
            .collect(),
        jobs: (live.components.jobs.values())
            .map(|job| job.snapshot())
            .collect(),
        upstreams: (live.components.upstreams.values())
            .map(|upstream| upstream.snapshot())
            .collect(),
        caches: (live.components.caches.values())
            .map(|cache| cache.snapshot())
            .collect(),
        cached_routes: live.cached_routes.clone(),
        top: top_status(server.edge.top_snapshot()),
        pauses: live.components.pauses.snapshot(),
        maintenance: live.components.maintenance.snapshot(),
        routes: live.components.route_counts.snapshot(),
        trace_spans: live.components.trace_export.counts(),
        rules: live.components.rule_counts.snapshot(),
        compression: live.components.compressor.snapshot(),
        shared_rates: shared_rates::snapshot(&live.config, live.components.rates.shared()),
        pools: (live.components.pools.values())
            .chain([live.components.compressor.pool()])
            .map(Pool::snapshot)
            .collect(),
        limits: {
            let mut all =
                limit_statuses(limits, &server.edge, live.components.temp_space.snapshot());
            all.extend(hub::hub_limits(&server.hub_service.hub));
            all
        },
        ..Snapshot::default()
    }
}

/// Takes a sample of the server's history in steps of [`HISTORY_INTERVAL`], until it drains.
pub(crate) async fn sample_history(sampled: Weak<Server>) {
    loop {
        let Some(server) = sampled.upgrade().filter(|server| !server.is_draining()) else {
            return;
        };
        let now = snapshot(&server).with_findings(&server.history);
        server.history.record(&now, clock::wall_time());
        // Nothing is kept alive while it waits.
        drop(server);
        clock::sleep(HISTORY_INTERVAL).await;
    }
}

fn top_status(top: TopSnapshot) -> TopStatus {
    let entries = |list: Vec<(String, u64)>| {
        let entry = |(name, requests)| TopEntryStatus { name, requests };
        list.into_iter().map(entry).collect()
    };
    TopStatus {
        requests: top.requests,
        routes: entries(top.routes),
        clients: entries(top.clients),
    }
}

/// The state of joining a front end.
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

fn limit_statuses(limits: &Limits, edge: &Edge, temp: TempSpaceSnapshot) -> Vec<LimitStatus> {
    let (max, used) = (edge.max_connections(), edge.open_connections());
    // 0 is no limit.
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

/// The snapshot for an event stream that outlives the server.
fn stopped_snapshot() -> Snapshot {
    Snapshot {
        version: env!("CARGO_PKG_VERSION"),
        pid: std::process::id(),
        state: ServerState::Draining,
        ..Snapshot::default()
    }
}
