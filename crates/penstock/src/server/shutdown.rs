//! The end: requests in progress are finished, then everything is, in the order of their way.
//!
//! A part of `server`. What must stay true: no request that was accepted is lost before its deadline; a
//! client that keeps its connection learns by `OriginConnection: close` that the next request is to go elsewhere;
//! a held stream gets a proper end, on a clock of its own, and not all of them at the same moment. After an
//! upgrade what is long has a longer clock, too: nobody waits for its end.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use penstock_apps::App;
use penstock_runtime::{clock, loops};
use tokio::sync::mpsc;

use super::Server;
use super::signals::Signals;
use crate::listeners::ActiveListener;
use crate::tcp::ActiveTcpListener;

/// How much longer than all its deadlines together an application may take to say that it has ended. One
/// with a process that no signal ends, as it waits for a disk, never does.
const APPS_TIMEOUT_SLACK: Duration = Duration::from_secs(3);

/// How long the admin interface may finish its answers at the very end.
const ADMIN_DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

/// How often to look for what has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How long an upgrade that the end meets may take to be given up.
const UPGRADE_ABORT_TIMEOUT: Duration = Duration::from_secs(2);

/// The least time between two ends of held streams: clients come back at once, and whoever serves then must
/// take them. A few streams hold nobody up.
const MIN_STREAM_END_INTERVAL: Duration = Duration::from_millis(2);

/// How long a stream may take to read what waits for it and its end.
const STREAM_CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long before the end of all patience connections without a request are closed.
const MAX_IDLE_CLOSE_LEAD: Duration = Duration::from_secs(1);

impl Server {
    /// Finishes what is in progress, then ends everything, in the order of the requests' way.
    pub(super) async fn shut_down(self: Arc<Self>, signals: &mut Signals) {
        self.draining.store(true, Ordering::Relaxed);
        let (timeout, upgrade_timeout) = {
            let server = &self.live().config.server;
            (server.shutdown_timeout, server.upgrade_timeout)
        };
        let soon = clock::now() + timeout;
        let open = format!("{} connections open", self.edge.open_connections());
        match self.successor() {
            0 => {
                log::info!("server: stopping: {open}");
                self.options.manager.notify_stopping(&open);
                self.hurry_predecessor();
            }
            // To the service manager this is not the end. New administrators meet the other one.
            heir => {
                log::info!("server: stopping: process {heir} has taken over, {open} here");
                self.close_internal_listeners();
            }
        }
        let mut finished = None;
        if self.successor() != 0 {
            let late = soon.max(clock::now() + upgrade_timeout);
            tokio::select! {
                () = self.drain_requests_and_streams(soon, late) => finished = Some(late),
                _ = signals.wait_for_haste(&self) => log::info!("server: stopping: remaining time reduced to {timeout:?}"),
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
            () = self.drain_apps(deadline) => {}
            // What still runs dies with this process.
            () = signals.wait_for_second_stop(&self) => log::warn!("server: stopping now: second stop request"),
        }
        if let Some(bus) = self.hub_service.bus() {
            // From now on who still publishes is told so (503); all that was taken before goes out.
            bus.stop().await;
        }
        for cache in self.live().components.caches.values() {
            cache.stop();
        }
        // Whoever waits for the end of this one takes it for the end of all.
        clock::timeout_at(deadline, self.wait_for_hurried_predecessor()).await;
        self.close_internal_listeners();
        let own = [
            &self.admin_edge,
            &self.control_edge,
            &self.refused_edge,
            &self.probes_edge,
        ];
        for edge in own {
            edge.drain.begin();
            clock::timeout(ADMIN_DRAIN_TIMEOUT, edge.drain.wait_until_finished()).await;
        }
        if self.is_upgrading.load(Ordering::Relaxed) {
            // It ends the server that it has started.
            clock::timeout(UPGRADE_ABORT_TIMEOUT, self.reload_lock.lock()).await;
        }
        if let Err(error) = self.options.launcher.stop() {
            log::warn!("server: the launcher did not exit: {error}");
        }
        let heir = Some(self.successor()).filter(|&heir| heir != 0);
        penstock_apps::end_orphans(heir.as_slice());
        log::info!("server: stopped");
    }

    /// Accepts no more administrators and probes.
    fn close_internal_listeners(&self) {
        let mut live = self.live();
        let live = &mut *live;
        let own = live.admin.iter_mut().chain(&mut live.control);
        for own in own.chain(&mut live.probes) {
            own.stop(std::iter::empty());
        }
    }

    /// Drains all applications at the same time.
    async fn drain_apps(&self, deadline: Instant) {
        let apps: Vec<Arc<App>> = {
            let live = self.live();
            let leaving = live.draining_apps.iter().filter_map(Weak::upgrade);
            live.components
                .apps
                .values()
                .cloned()
                .chain(leaving)
                .collect()
        };
        let patience = apps.iter().map(|app| app.config().stop_timeout).max();
        let until = deadline.max(clock::now()) + patience.unwrap_or_default() + APPS_TIMEOUT_SLACK;
        let (running, mut ended) = mpsc::channel::<()>(1);
        for app in apps {
            let running = running.clone();
            loops::spawn_here(async move {
                app.drain(deadline).await;
                drop(running);
            });
        }
        drop(running);
        // Ends when every one has dropped its end.
        if clock::timeout_at(until, ended.recv()).await.is_none() {
            log::error!(
                "server: application processes did not exit, the server exits without them"
            );
        }
    }

    /// Nobody new first; then the requests in progress and, beside them, the held streams. In this order: who
    /// asks again for a stream that was ended must be told to go elsewhere. What is not done `soon` has until
    /// `late`, and keeps no more workers from then on than it needs.
    async fn drain_requests_and_streams(&self, soon: Instant, late: Instant) {
        if let Some(joiner) = self.joiner.get() {
            joiner.leave();
        }
        self.stop_listeners(soon).await;
        self.join_front_end.step_down();
        self.edge
            .drain
            .begin_with_idle(self.keep_alive_drain(), Some(soon - self.idle_close_lead()));
        let requests = async {
            let finished = clock::timeout_at(soon, self.requests_finished()).await;
            if finished.is_none() && soon < late {
                let open = self.edge.open_connections();
                log::info!(
                    "server: stopping: waiting for long requests and streams (connections={open})"
                );
                let finished = clock::timeout_at(late, self.requests_finished());
                let apps = async {
                    clock::timeout_at(late, self.wait_for_empty_queues()).await;
                    self.drain_apps(late).await;
                };
                tokio::join!(finished, apps);
            }
        };
        tokio::join!(requests, self.close_streams());
    }

    /// Waits until all connections have ended, and a front end that was joined brings no more.
    async fn requests_finished(&self) {
        if let Some(joiner) = self.joiner.get() {
            joiner.wait_until_drained().await;
        }
        self.edge.drain.wait_until_finished().await;
    }

    /// Waits until no request waits for a process.
    async fn wait_for_empty_queues(&self) {
        let some_waits = || {
            self.live()
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
        let mut stopping: Vec<ActiveListener> = {
            let mut live = self.live();
            let streams = std::mem::take(&mut live.tcp_listeners);
            let streams = streams.into_iter().map(ActiveTcpListener::into_listener);
            let listeners = std::mem::take(&mut live.listeners);
            listeners.into_iter().chain(streams).collect()
        };
        for serving in &mut stopping {
            serving.stop(std::iter::empty());
        }
        for serving in &stopping {
            clock::timeout_at(deadline, serving.stopped()).await;
        }
    }

    /// Ends what the hub holds, beside the requests in progress. Clients come back, so it is spread over
    /// `hub.drain_timeout`, or over less where they are few.
    async fn close_streams(&self) {
        let hub = &self.hub_service.hub;
        let held = u32::try_from(hub.counters().held).unwrap_or(u32::MAX);
        let over = hub
            .settings()
            .drain_timeout
            .min(MIN_STREAM_END_INTERVAL.saturating_mul(held));
        let deadline = clock::now() + over + STREAM_CLOSE_TIMEOUT;
        if clock::timeout_at(deadline, hub.drain(over)).await.is_none() {
            log::warn!("server: {} open streams closed", hub.counters().held);
        }
    }

    /// How long before the deadline of all what waits for nothing but a request is closed: it must not be
    /// taken for a request that was cut.
    fn idle_close_lead(&self) -> Duration {
        let timeout = self.live().config.server.shutdown_timeout;
        MAX_IDLE_CLOSE_LEAD.min(timeout / 2)
    }

    /// How long a connection without a request is kept at the end. A person who develops waits for nobody.
    fn keep_alive_drain(&self) -> Duration {
        let spared = self.idle_close_lead();
        let live = self.live();
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
