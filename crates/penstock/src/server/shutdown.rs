//! Shutdown: drains listeners, requests, held streams and applications, in the order of a request's
//! way; a part of `server`.
//!
//! # Invariants
//!
//! - No accepted request is lost before its deadline.
//! - A client with a keep-alive connection learns by `Connection: close` that its next request must
//!   go elsewhere.
//! - Held streams get a proper end, spread over their own time, and their clients are told when to
//!   return.
//! - After an upgrade, long requests and streams have the longer `upgrade_timeout`: the new server
//!   serves already.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use penstock_apps::App;
use penstock_edge::Edge;
use penstock_hub::{DrainPlan, NextServer};
use penstock_runtime::{clock, loops};
use tokio::sync::mpsc;

use super::Server;
use super::signals::Signals;
use crate::cli;
use crate::components::default_pool;

/// How long an application may take beyond all its deadlines to report its end. One with a process
/// that no signal ends, as it waits for a disk, never reports it.
const APPS_TIMEOUT_SLACK: Duration = Duration::from_secs(3);

/// How long the internal listeners may take to finish their responses at the very end.
const ADMIN_DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

/// How often to check for empty queues.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How long an upgrade in progress may take to abort.
const UPGRADE_ABORT_TIMEOUT: Duration = Duration::from_secs(2);

/// Minimum time between two ends of held streams while `hub.drain_timeout` allows it: an application
/// with one process and requests of 25 ms accepts its clients again and still serves pages. A few
/// streams end quickly.
const MIN_STREAM_END_INTERVAL: Duration = Duration::from_millis(50);

/// Minimum time between two clients that return, however many there are: the server alone, without
/// an application, accepts thousands a second.
const MIN_RETURN_INTERVAL: Duration = Duration::from_millis(2);

/// Minimum time over which clients return to a server that serves already.
const MIN_RETURN_WINDOW: Duration = Duration::from_secs(2);

/// Maximum time over which clients return, even to an application that accepts them more slowly.
const MAX_RETURN_WINDOW: Duration = Duration::from_secs(120);

/// How long a stream may take to read its queued messages and its end.
const STREAM_CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum time before the shutdown deadline at which idle connections are closed.
const MAX_IDLE_CLOSE_LEAD: Duration = Duration::from_secs(1);

impl Server {
    /// Finishes the requests in progress, then ends everything, in the order of a request's way.
    pub(super) async fn shut_down(self: Arc<Self>, signals: &mut Signals) {
        self.draining.store(true, Ordering::Relaxed);
        // A successor has their times now.
        for job in self.live_state().components.jobs.values() {
            job.retire();
        }
        let (timeout, upgrade_timeout) = {
            let server = &self.live_state().config.server;
            (server.shutdown_timeout, server.upgrade_timeout)
        };
        let soon = clock::now() + timeout;
        let open = self.edge.open_connections() as u64;
        let open = format!("{} open", cli::pluralize(open, "connection"));
        match self.successor_pid() {
            0 => {
                log::info!("server: stopping: {open}");
                self.options.manager.notify_stopping(&open);
                self.hurry_predecessor();
            }
            // For the service manager the service continues. New administrators reach the
            // successor.
            successor_pid => {
                log::info!("server: stopping: process {successor_pid} has taken over, {open} here");
                self.close_internal_listeners();
                self.begin_internal_drain();
            }
        }
        let mut finished = None;
        if self.successor_pid() != 0 {
            let late = soon.max(clock::now() + upgrade_timeout);
            tokio::select! {
                () = self.drain_requests_and_streams(soon, late) => finished = Some(late),
                _ = signals.wait_for_hurry_signal(&self) => log::info!("server: stopping: remaining time reduced to {timeout:?}"),
            }
        }
        if finished.is_none() {
            let soon = clock::now() + timeout;
            tokio::select! {
                () = self.drain_requests_and_streams(soon, soon) => finished = Some(soon),
                () = signals.wait_for_second_stop(&self) => {}
            }
        }
        let deadline = finished.unwrap_or_else(|| {
            log::warn!("server: stopping now: second stop request");
            clock::now()
        });
        let left = self.edge.drain.running_count();
        if left > 0 {
            log::warn!("server: {left} connections closed before their requests were complete");
        }
        tokio::select! {
            report = self.drain_apps(deadline) => drop(self.stop_report.send_replace(Some(report))),
            // Processes that still run die with this process.
            () = signals.wait_for_second_stop(&self) => log::warn!("server: stopping now: second stop request"),
        }
        self.remove_pid_file().await;
        self.tls.stop_acme().await;
        let trace_export = Arc::clone(&self.live_state().components.trace_export);
        trace_export.flush().await;
        self.save_history().await;
        if self.successor_pid() != 0 {
            // Their publishers are to learn of the other server before they are refused here.
            self.finish_internal_connections().await;
        }
        if let Some(bus) = self.hub_service.bus() {
            // From here on publishers get 503; all messages accepted before are sent.
            bus.stop().await;
        }
        for cache in self.live_state().components.caches.values() {
            cache.stop();
        }
        // Callers take the end of this process for the end of both servers.
        clock::timeout_at(deadline, self.wait_for_hurried_predecessor()).await;
        self.close_internal_listeners();
        self.finish_internal_connections().await;
        if self.is_upgrading.load(Ordering::Relaxed) {
            // The upgrade ends the server that it has started.
            clock::timeout(UPGRADE_ABORT_TIMEOUT, self.reload_lock.lock()).await;
        }
        if let Err(error) = self.options.launcher.stop() {
            log::warn!("server: the launcher did not exit: {error}");
        }
        let successor_pid = Some(self.successor_pid()).filter(|&successor_pid| successor_pid != 0);
        penstock_apps::end_orphans(successor_pid.as_slice());
        log::info!("server: stopped");
    }

    /// Removes the file with the process id, unless a successor has written its own.
    async fn remove_pid_file(&self) {
        let Some(file) = self.options.pid_file.clone() else {
            return;
        };
        let pool = default_pool(&self.live_state().components.pools);
        let name = file.path().display().to_string();
        let removed = pool.run(move || file.remove(std::process::id())).await;
        match removed {
            Ok(Ok(())) => {}
            Ok(Err(error)) => log::warn!("server: {name} is not removed: {error}"),
            Err(error) => log::warn!("server: {name} is not removed: {error}"),
        }
    }

    /// Keeps the hub's histories for the next start, where they are kept. A successor has them.
    async fn save_history(&self) {
        if self.successor_pid() != 0 || self.hub_service.bus().is_some() {
            return;
        }
        let (file, pool) = {
            let live = self.live_state();
            let pool = default_pool(&live.components.pools);
            (live.config.hub.history_file.clone(), pool)
        };
        let Some(file) = file else {
            return;
        };
        let (hub, name) = (self.hub_service.hub.clone(), file.display().to_string());
        let saved = pool.run(move || hub.save_history(&file)).await;
        match saved.map_err(|error| error.to_string()) {
            Ok(Ok(channels)) => log::info!("hub: kept {channels} channels in {name}"),
            Ok(Err(error)) => log::error!("hub: histories are not kept in {name}: {error}"),
            Err(error) => log::error!("hub: histories are not kept in {name}: {error}"),
        }
    }

    fn close_internal_listeners(&self) {
        let mut live = self.live_state();
        let all = live.listeners.iter_mut();
        for own in all.filter(|listener| !listener.role.is_for_clients()) {
            own.stop(&[]);
        }
    }

    /// The connections of administrators, of publishers and of probes.
    fn internal_edges(&self) -> [&Arc<Edge>; 4] {
        [
            &self.admin_edge,
            &self.control_edge,
            &self.refused_edge,
            &self.probes_edge,
        ]
    }

    /// Ends internal connections after an upgrade by `Connection: close` on a response: a publisher
    /// that keeps one learns by it that another server has taken over, and a close could cross its
    /// next message.
    fn begin_internal_drain(&self) {
        let idle_timeout = self.keep_alive_drain();
        for edge in self.internal_edges() {
            edge.drain.begin_with_idle_timeout(idle_timeout, None);
        }
    }

    async fn finish_internal_connections(&self) {
        let idle_timeout = match self.successor_pid() {
            0 => Duration::ZERO,
            _ => self.keep_alive_drain(),
        };
        let deadline = clock::now() + idle_timeout + ADMIN_DRAIN_TIMEOUT;
        for edge in self.internal_edges() {
            edge.drain.begin();
            clock::timeout_at(deadline, edge.drain.wait_until_finished()).await;
        }
    }

    /// Ends all applications and jobs; returns a sentence about each whose processes had to be
    /// killed.
    async fn drain_apps(&self, deadline: Instant) -> Vec<String> {
        let apps: Vec<Arc<App>> = {
            let live = self.live_state();
            let leaving = live.draining_apps.iter().filter_map(Weak::upgrade);
            live.components
                .apps
                .values()
                .cloned()
                .chain(leaving)
                .collect()
        };
        let jobs: Vec<_> = self
            .live_state()
            .components
            .jobs
            .values()
            .cloned()
            .collect();
        let of_jobs = jobs.iter().map(|job| job.config().program.stop_timeout);
        let patience = apps.iter().map(|app| app.config().stop_timeout);
        let patience = patience.chain(of_jobs).max();
        let until = deadline.max(clock::now()) + patience.unwrap_or_default() + APPS_TIMEOUT_SLACK;
        let (running, mut ended) = mpsc::channel::<()>(1);
        let kills_before: Vec<_> = apps.iter().map(|app| app.stop_kills()).collect();
        for job in &jobs {
            let (job, running) = (Arc::clone(job), running.clone());
            loops::spawn_here(async move {
                job.stop().await;
                drop(running);
            });
        }
        for app in &apps {
            let (app, running) = (Arc::clone(app), running.clone());
            loops::spawn_here(async move {
                app.drain(deadline).await;
                drop(running);
            });
        }
        drop(running);
        // Ends when every task has dropped its sender.
        if clock::timeout_at(until, ended.recv()).await.is_none() {
            log::error!(
                "server: application processes did not exit, the server exits without them"
            );
        }
        let of_apps = apps.iter().zip(kills_before);
        let of_apps = of_apps.filter_map(|(app, before)| app.describe_stop_kills(before));
        let of_jobs = jobs.iter().filter_map(|job| job.describe_stop_kills());
        // A replaced application that drains counts with the one that has its name.
        let all: BTreeSet<String> = of_apps.chain(of_jobs).collect();
        all.into_iter().collect()
    }

    /// The sentences about what a stop had to kill, once it has ended all processes; none if that
    /// is not reached.
    pub(crate) fn stop_report(&self) -> impl Future<Output = Vec<String>> + use<> {
        let mut report = self.stop_report.subscribe();
        async move {
            let told = report.wait_for(Option::is_some).await;
            told.map_or_else(|_| Vec::new(), |told| told.clone().unwrap_or_default())
        }
    }

    /// Stops accepting, then finishes the requests in progress and, at the same time, the held
    /// streams. In this order if another server serves already, since a client that asks again for
    /// an ended stream must reach that one. Otherwise clients are accepted while streams end, for
    /// half of the time of requests at most: one that asks again for its stream is told when to
    /// return, and pages are served. Requests and streams that do not end by `soon` have until
    /// `late`; from then on applications keep only the workers that these need.
    async fn drain_requests_and_streams(&self, soon: Instant, late: Instant) {
        if let Some(joiner) = self.joiner.get() {
            joiner.leave();
        }
        let plan = self.plan_stream_ends();
        let accepts_until = match plan.next_server {
            NextServer::Serving => None,
            NextServer::AfterDrain => {
                let now = clock::now();
                let remaining = soon.saturating_duration_since(now);
                Some(now + plan.duration.min(remaining / 2))
            }
        };
        if accepts_until.is_none() {
            self.stop_listeners(soon).await;
        }
        let requests = async {
            if let Some(until) = accepts_until {
                clock::timeout_at(until, self.wait_for_stream_ends()).await;
                self.stop_listeners(soon).await;
            }
            self.join_front_end.step_down();
            self.edge.drain.begin_with_idle_timeout(
                self.keep_alive_drain(),
                Some(soon - self.idle_close_lead()),
            );
            let finished = clock::timeout_at(soon, self.requests_finished()).await;
            if finished.is_none() && soon < late {
                let open = self.edge.open_connections();
                log::info!(
                    "server: stopping: waiting for long requests and streams (connections={open})"
                );
                let finished = clock::timeout_at(late, self.requests_finished());
                let apps = async {
                    clock::timeout_at(late, self.wait_for_empty_queues()).await;
                    // Their processes are old ones, whose successors serve.
                    let _ = self.drain_apps(late).await;
                };
                tokio::join!(finished, apps);
            }
        };
        tokio::join!(requests, self.close_streams(late));
    }

    /// Waits until all connections have ended and a joined front end sends no more.
    async fn requests_finished(&self) {
        if let Some(joiner) = self.joiner.get() {
            joiner.wait_until_drained().await;
        }
        self.edge.drain.wait_until_finished().await;
    }

    async fn wait_for_empty_queues(&self) {
        let some_waits = || {
            self.live_state()
                .components
                .apps
                .values()
                .any(|app| app.has_waiting_requests())
        };
        while some_waits() {
            clock::sleep(POLL_INTERVAL).await;
        }
    }

    async fn stop_listeners(&self, deadline: Instant) {
        let mut stopping: Vec<_> = {
            let mut live = self.live_state();
            let all = live.listeners.extract_if(.., |it| it.role.is_for_clients());
            all.collect()
        };
        for serving in &mut stopping {
            serving.stop(&[]);
        }
        for serving in &stopping {
            clock::timeout_at(deadline, serving.wait_until_stopped()).await;
        }
    }

    /// Spreads the ends of held streams over `hub.drain_timeout`, or less for few streams, and the
    /// returns of their clients over as long as applications need to accept them.
    fn plan_stream_ends(&self) -> DrainPlan {
        let hub = &self.hub_service.hub;
        let count = u32::try_from(hub.snapshot().connections.used).unwrap_or(u32::MAX);
        let interval = self.stream_start_interval();
        let (end_interval, return_interval) = (
            interval.max(MIN_STREAM_END_INTERVAL),
            interval.max(MIN_RETURN_INTERVAL),
        );
        let drain_timeout = hub.settings().drain_timeout;
        let duration = drain_timeout.min(end_interval.saturating_mul(count));
        let all_returns = return_interval.saturating_mul(count);
        // A server that shares the port is started before this one stops.
        let shares_port = self.live_state().config.server.reuse_port;
        let (next_server, return_window) = match self.successor_pid() {
            0 if !shares_port => (NextServer::AfterDrain, all_returns.max(duration)),
            _ => {
                let rest = all_returns.saturating_sub(duration);
                (NextServer::Serving, rest.max(MIN_RETURN_WINDOW))
            }
        };
        DrainPlan {
            duration,
            next_server,
            return_window: return_window.min(MAX_RETURN_WINDOW),
        }
    }

    /// The time from one stream to the next that the slowest application with `grip` can begin,
    /// with half of its time left for pages.
    fn stream_start_interval(&self) -> Duration {
        let live = self.live_state();
        let routes = live.config.route_parts();
        let with_grip = routes.filter(|route| live.config.effective_grip(route).is_some());
        let intervals = with_grip.filter_map(|route| {
            let app = live.components.apps.get(route.app.as_ref()?)?;
            app.response_interval()
        });
        intervals.max().unwrap_or_default() * 2
    }

    async fn wait_for_stream_ends(&self) {
        while self.hub_service.hub.snapshot().connections.used > 0 {
            clock::sleep(POLL_INTERVAL).await;
        }
    }

    /// Ends the held streams that do not move to a new server, while requests finish.
    async fn close_streams(&self, late: Instant) {
        let transfer = self.hub_transfer().clone();
        if let Some(transfer) = transfer {
            let moved = clock::timeout_at(late, transfer.wait_until_streams_moved()).await;
            let count = transfer.moved_streams();
            match moved {
                Some(()) => log::info!("upgrade: {count} held streams moved to the new server"),
                None => log::warn!("upgrade: only {count} held streams moved to the new server"),
            }
            if moved.is_none() {
                transfer.stop_streams();
            }
        }
        let (hub, plan) = (&self.hub_service.hub, self.plan_stream_ends());
        let deadline = clock::now() + plan.duration + STREAM_CLOSE_TIMEOUT;
        if clock::timeout_at(deadline, hub.drain(plan)).await.is_none() {
            log::warn!(
                "server: {} open streams closed",
                hub.snapshot().connections.used
            );
        }
    }

    /// How long before the common deadline idle connections are closed, so that their end is not
    /// taken for a cut request.
    fn idle_close_lead(&self) -> Duration {
        let timeout = self.live_state().config.server.shutdown_timeout;
        MAX_IDLE_CLOSE_LEAD.min(timeout / 2)
    }

    /// How long an idle connection is kept during shutdown; not at all in development.
    fn keep_alive_drain(&self) -> Duration {
        let spared = self.idle_close_lead();
        let live = self.live_state();
        let (server, limits) = (&live.config.server, &live.config.limits);
        match self.options.development {
            true => Duration::ZERO,
            false => {
                let longest = server.shutdown_timeout.saturating_sub(spared);
                server
                    .keep_alive_drain
                    .min(limits.idle_timeout)
                    .min(longest)
            }
        }
    }
}
