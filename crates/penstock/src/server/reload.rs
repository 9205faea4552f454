//! Reload: builds a new configuration beside the old one and swaps it in when all of it works; a
//! part of `server`, triggered by SIGHUP and the admin interface.
//!
//! # Invariants
//!
//! - A refused reload changes nothing.
//! - No connection is lost during a reload.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use penstock_apps::{App, BootStatus};
use penstock_config::Config;
use penstock_runtime::{clock, loops};
use penstock_sys::process::successor::SignalTarget;

use super::{STOPPING_ERROR, Server};
use crate::cli;
use crate::code::{self, NonCodePaths};
use crate::components::{
    self, AppSizes, AppStartContext, Components, StartedComponents, default_pool,
};
use crate::inherited_listeners::{InheritedListeners, ListenerRole};
use crate::jobs::AppWithJobs;
use crate::listeners::{self, Listener, SocketSource};
use crate::upstream_tls;
use crate::wiring::{self, BuiltSettings, TlsParts};
use crate::work;

/// How long requests that began before a reload may take to reach their handlers. Bounded by
/// `upgrade_timeout`; never below `shutdown_timeout`.
const MAX_ROUTED_WAIT: Duration = Duration::from_secs(60);

/// How long all processes of a new application may take beyond the boot timeout of one.
const BOOT_TIMEOUT_SLACK: Duration = Duration::from_secs(5);

/// How often to check whether a request still uses a removed application.
const USE_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How often to check whether a new application still grows.
const GROWTH_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How long the event loops may take to leave listeners that a reload has stopped.
const LISTENER_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The result of a reload without changes.
const NOTHING_CHANGED: &str = "done";

impl Server {
    /// Builds the new configuration beside the old one and swaps it in when all of it works.
    ///
    /// # Errors
    /// All errors of the new configuration; the old one stays active.
    pub(crate) async fn reload(self: &Arc<Self>) -> Result<String, String> {
        let Ok(_only) = self.reload_lock.try_lock() else {
            return Err(self.describe_running_change());
        };
        self.reload_locked().await
    }

    /// As [`Self::reload`], after the change in progress, if any.
    pub(crate) async fn reload_after_current(self: &Arc<Self>) -> Result<String, String> {
        if self.is_upgrading.load(Ordering::Relaxed) {
            log::info!("reload: waiting for the upgrade in progress");
        }
        let _only = self.reload_lock.lock().await;
        if self.successor_pid() != 0 {
            // The successor may have read the configuration before this request.
            self.forward_signal("SIGHUP", SignalTarget::request_reload);
        }
        self.reload_locked().await
    }

    async fn reload_locked(self: &Arc<Self>) -> Result<String, String> {
        if self.is_draining() || self.successor_pid() != 0 {
            return Err(STOPPING_ERROR.to_owned());
        }
        self.options.manager.notify_reloading();
        let result = match self.try_reload().await {
            Ok(done) => {
                self.live_state().config_error = None;
                self.restart_changed_apps(done).await
            }
            Err(error) => {
                log::error!("reload: failed, the configuration is unchanged\n{error}");
                self.live_state().config_error = Some(error.clone());
                Err(error)
            }
        };
        self.options.manager.notify_ready(&self.status_line());
        self.live_state().reload_error = result.as_ref().err().cloned();
        result
    }

    async fn try_reload(self: &Arc<Self>) -> Result<String, String> {
        let (invocation, pool) = (
            self.invocation.clone(),
            default_pool(&self.live_state().components.pools),
        );
        let server = Arc::clone(self);
        let resolved = pool
            .run(move || {
                let mut config = cli::resolve_and_validate(&invocation)?;
                server.options.django_files.apply(&mut config);
                Ok::<_, String>(config)
            })
            .await;
        let config = resolved.map_err(|error| error.to_string())??;
        let checked = config.clone();
        let upstream_tls = pool.run(move || upstream_tls::load(&checked)).await;
        let upstream_tls = upstream_tls.map_err(|error| error.to_string())??;
        let count = self.loops.handles().len();
        let (opened, https_port, pools, old) = {
            let live = self.live_state();
            let removed = live.listeners.iter();
            let mut source = SocketSource {
                config: &config,
                removed: removed.filter(|it| it.is_removed_by(&config)).collect(),
                inherited: InheritedListeners::default(),
                is_start: false,
            };
            let opened = listeners::open_missing(&live.listeners, &mut source, count)?;
            let kept = live.listeners.iter();
            let kept = kept.filter(|listener| !listener.is_removed_by(&config));
            let https_port = listeners::https_port(kept.chain(&opened));
            (
                opened,
                https_port,
                wiring::build_pools(&config, Some((&live.config, &live.components.pools))),
                live.components.clone(),
            )
        };
        let mut started = StartedComponents::default();
        let context = AppStartContext {
            loops: self.loops.handles(),
            options: &self.options,
            low_priority: true,
            publishing: &self.publishing,
            sizes: &AppSizes::new(),
            upstream_tls: &upstream_tls,
        };
        let begun = components::start_components(&config, &old, pools, context, &mut started);
        drop(old);
        let StartedComponents {
            components,
            new_apps: fresh,
        } = started;
        let building = async {
            begun?;
            wait_for_apps(&fresh).await?;
            let (config, components) = (config.clone(), components.clone());
            let (hub_service, development) = (self.hub_service.clone(), self.options.development);
            let routes = self.live_state().cached_routes.clone();
            let tls = Arc::clone(&self.tls);
            let build = move || {
                let prepared = tls.prepare(&config)?;
                wiring::build_settings(
                    &config,
                    &components,
                    &hub_service,
                    TlsParts {
                        prepared,
                        challenges: tls.challenges(&config),
                        https_port,
                    },
                    &routes,
                    count,
                    development,
                )
            };
            let built = pool.run(build).await;
            let built = built.map_err(|error| error.to_string()).flatten()?;
            self.hub_service.key_sets().fetch_new_sets().await;
            match self.is_draining() {
                // Its listeners would outlive the drain.
                true => Err(STOPPING_ERROR.to_owned()),
                false => Ok(built),
            }
        };
        let built = match building.await {
            Ok(built) => built,
            Err(error) => {
                for app in fresh {
                    loops::spawn_here(async move { app.drain(clock::now()).await });
                }
                return Err(error);
            }
        };
        for (name, tls) in upstream_tls {
            if let Some(upstream) = components.upstreams.get(&name) {
                upstream.set_tls(tls);
            }
        }
        let (done, gone) = self.swap_config(config, built, opened, components);
        self.configure_acme().await;
        // After the reload is reported as done, new connections reach the new listeners only.
        let deadline = clock::now() + LISTENER_CLOSE_TIMEOUT;
        for serving in &gone {
            clock::timeout_at(deadline, serving.wait_until_stopped()).await;
        }
        Ok(done)
    }

    /// Restarts applications with changed code. `done` is the result of the configuration, which is
    /// active by now.
    ///
    /// # Errors
    /// The applications with new code that does not serve, and why; their old code stays active.
    async fn restart_changed_apps(&self, done: String) -> Result<String, String> {
        let (mut all, mut failed) = (vec![done], Vec::new());
        for app in self.find_changed_apps().await {
            let name = app.name();
            match app.restart().await {
                Ok(()) => all.push(format!("application {name} restarted")),
                Err(error) => failed.push(error),
            }
        }
        // Restarts alone are the result.
        if all.len() > 1 && all[0] == NOTHING_CHANGED {
            all.remove(0);
        }
        let done = all.join(", ");
        log::info!("reload: {done}");
        if failed.is_empty() {
            return Ok(done);
        }
        let failed = failed.join("\n");
        log::error!("reload: {failed}");
        Err(format!("the configuration is active, but {failed}"))
    }

    /// The applications with files that have changed since their code was loaded.
    /// Jobs go with their applications.
    async fn find_changed_apps(&self) -> Vec<AppWithJobs> {
        let (apps, non_code_paths, pool) = {
            let live = self.live_state();
            let all = &live.components.apps;
            let independent = all.values().filter(|app| app.config().owner.is_none());
            let found = independent.map(|app| (Arc::clone(app), AppWithJobs::find(app, all)));
            let apps: Vec<_> = found.collect();
            let non_code_paths =
                NonCodePaths::from_config(&live.config, &code::standard_output_files());
            (apps, non_code_paths, default_pool(&live.components.pools))
        };
        let look = move || {
            let has_changed = |app: &Arc<App>| {
                let (name, dir) = (app.name(), &app.config().dir);
                match code::find_change_since(dir, app.code_load_started_at(), &non_code_paths) {
                    Ok(Some(file)) => {
                        log::info!("{name}: code changed: {}", file.display());
                        true
                    }
                    Ok(None) => false,
                    Err(error) => {
                        let dir = dir.display();
                        log::warn!("{name}: cannot check for changed code: {error} (dir={dir})");
                        false
                    }
                }
            };
            let changed = apps.into_iter().filter(|(app, _)| has_changed(app));
            changed.map(|(_, with_jobs)| with_jobs).collect()
        };
        pool.run(look).await.unwrap_or_else(|error| {
            log::warn!("reload: cannot check for changed code: {error}");
            Vec::new()
        })
    }

    /// Swaps in everything new; returns the changes and the stopped listeners.
    fn swap_config(
        self: &Arc<Self>,
        config: Config,
        built: BuiltSettings,
        mut opened: Vec<Listener>,
        components: Components,
    ) -> (String, Vec<Listener>) {
        let BuiltSettings {
            settings,
            cached_routes,
            tls,
        } = built;
        self.tls.apply(tls);
        self.edge.replace_settings(settings, self.loops.handles());
        self.edge.set_top_lists(config.server.top_lists);
        self.hub_service
            .apply_config(&config, self.edge.max_connections());
        let mut live = self.live_state();
        live.cached_routes = cached_routes;
        let space = &components.temp_space;
        space.set_max(config.limits.max_temp_size.unwrap_or(u64::MAX));
        let store =
            wiring::buffering_settings(&config.limits, default_pool(&components.pools), space);
        for app in components.apps.values() {
            app.set_buffering_settings(store.clone());
            app.set_websocket_message_limits(wiring::websocket_message_limits(&config.limits));
        }
        for upstream in components.upstreams.values() {
            upstream.set_buffering_settings(store.clone());
        }
        let mut changes = Vec::new();
        let old = std::mem::replace(&mut live.components, components);
        let server = &live.config.server;
        let patience = server.upgrade_timeout.min(MAX_ROUTED_WAIT);
        let patience = patience.max(server.shutdown_timeout);
        live.draining_apps.retain(|app| app.strong_count() > 0);
        let live = &mut *live;
        // A run in progress ends by itself.
        for (name, _) in replaced(old.jobs, &live.components.jobs) {
            changes.push(format!("job {name} replaced"));
        }
        for (name, old) in replaced(old.apps, &live.components.apps) {
            changes.push(format!("application {name} replaced"));
            live.draining_apps.push(Arc::downgrade(&old));
            finish_in_background(old, patience);
        }
        for (name, _) in replaced(old.upstreams, &live.components.upstreams) {
            // Earlier requests hold what they need of the old one.
            if live.config.upstreams.contains_key(&name) {
                changes.push(format!("upstream {name} replaced"));
            }
        }
        for (name, old) in replaced(old.caches, &live.components.caches) {
            if live.components.caches.contains_key(&name) {
                changes.push(format!("cache {name} replaced"));
            }
            // Frees the directory for the new store. Earlier requests no longer find anything in
            // the old one.
            old.stop();
        }
        let upstreams = live.components.upstreams.clone();
        self.join_front_end
            .configure(config.server.join.as_ref(), upstreams.values());
        for listener in &mut opened {
            self.serve_listener(listener, &config, &upstreams);
        }
        let gone = live
            .listeners
            .extract_if(.., |it| it.is_removed_by(&config));
        let mut gone: Vec<_> = gone.collect();
        for listener in &live.listeners {
            let target = self.tcp_target(listener, &config, &upstreams);
            if let (Some(switch), Some((_, target))) = (&listener.switch, target) {
                switch.replace(target);
            }
            if listener.role == ListenerRole::Http {
                listener.apply_socket_permissions(&config);
            }
        }
        changes.extend(gone.iter().map(|old| format!("{} closed", old.name())));
        changes.extend(opened.iter().map(|new| format!("{} opened", new.name())));
        live.listeners.extend(opened);
        live.listeners.sort_by_key(|it| (it.role, it.ordinal));
        if let Some(joiner) = self.joiner.get() {
            joiner.set_max_active(work::max_joined_requests(&live.components.apps));
        }
        for serving in &mut gone {
            serving.stop(&live.listeners);
        }
        if config.server.threads != live.config.server.threads {
            changes.push("server.threads changes at the next start".to_owned());
        }
        if config.join_target != live.config.join_target {
            changes.push("the joined upstream and its key change at the next start".to_owned());
        }
        for key in keys_needing_restart(&live.config.server, &config.server) {
            changes.push(format!("server.{key} changes at the next start"));
        }
        // Threads of removed or changed pools end when their work is done.
        for (name, pool) in old.pools {
            if live.config.blocking.get(&name) != config.blocking.get(&name) {
                close_pool_later(pool, patience);
            }
        }
        live.config = config;
        live.reloads += 1;
        let done = match changes.is_empty() {
            true => NOTHING_CHANGED.to_owned(),
            false => changes.join(", "),
        };
        (done, gone)
    }
}

/// The components that `new` does not have or has replaced.
fn replaced<T>(
    old: BTreeMap<String, Arc<T>>,
    new: &BTreeMap<String, Arc<T>>,
) -> impl Iterator<Item = (String, Arc<T>)> {
    let is_kept = |name: &str, old: &Arc<T>| new.get(name).is_some_and(|it| Arc::ptr_eq(it, old));
    old.into_iter()
        .filter(move |(name, old)| !is_kept(name, old))
}

/// Waits until each application has its initial processes, and those that its predecessor had under
/// load, as far as they boot.
pub(super) async fn wait_for_apps(apps: &[Arc<App>]) -> Result<(), String> {
    let began = clock::now();
    for app in apps {
        let name = app.name();
        // Workers that become ready and die in turn report neither result.
        let owner = app.config().owner.as_ref();
        let owner = apps
            .iter()
            .find(|other| owner.is_some_and(|it| it == other.name()));
        let limit = owner.map_or(Duration::ZERO, |owner| owner.config().max_start_time());
        let deadline = began + limit + app.config().max_start_time() + BOOT_TIMEOUT_SLACK;
        match clock::timeout_at(deadline, app.wait_for_boot()).await {
            Some(BootStatus::Ready { .. }) => {}
            Some(BootStatus::Failed { report }) => {
                return Err(format!("application `{name}` does not start\n{report}"));
            }
            Some(BootStatus::Pending) | None => {
                return Err(format!("application `{name}` did not become ready in time"));
            }
        }
    }
    for app in apps {
        // Processes that are still missing then start while the others serve.
        let deadline = began + app.config().max_start_time();
        while app.is_growing_to_initial_size() && clock::now() < deadline {
            clock::sleep(GROWTH_POLL_INTERVAL).await;
        }
    }
    Ok(())
}

/// The maximum duration of [`wait_for_apps`] with that configuration: applications boot at the same
/// time.
pub(super) fn max_boot_time(config: &Config) -> Duration {
    let of_app = |app: &penstock_config::App| app.max_start_time();
    let of_owner = |app: &penstock_config::App| {
        let owner = app.owner.as_ref().and_then(|name| config.apps.get(name));
        owner.map_or(Duration::ZERO, of_app)
    };
    let all = config.apps.values().map(|app| of_app(app) + of_owner(app));
    all.max().unwrap_or_default() + BOOT_TIMEOUT_SLACK
}

/// The changed keys that need a restart or an upgrade.
fn keys_needing_restart(
    old: &penstock_config::Server,
    new: &penstock_config::Server,
) -> Vec<&'static str> {
    let differ = [
        ("admin", old.admin != new.admin),
        ("control_socket", old.control_socket != new.control_socket),
        ("admin_token", old.admin_token != new.admin_token),
        ("probes", old.probes != new.probes),
        ("log", old.log != new.log),
        ("pid_file", old.pid_file != new.pid_file),
        ("log_format", old.log_format != new.log_format),
        ("log_mask", old.log_mask != new.log_mask),
        ("user", old.user != new.user),
        ("group", old.group != new.group),
        ("umask", old.umask != new.umask),
        ("max_open_files", old.max_open_files != new.max_open_files),
        ("dir", old.dir != new.dir),
        ("redis", old.redis != new.redis),
        ("redis_ca", old.redis_ca != new.redis_ca),
    ];
    let differ = differ.into_iter().filter(|(_, differs)| *differs);
    differ.map(|(key, _)| key).collect()
}

/// Lets a removed application finish. Requests that began before the reload hold the old routes and
/// with them the application: those that arrive within `patience` are served, and those in the
/// queue for as long as their queue timeout. Then idle workers end, and the others after their last
/// request.
fn finish_in_background(app: Arc<App>, patience: Duration) {
    loops::spawn_here(async move {
        let began = clock::now();
        let (deadline, last) = (began + patience, began + app.config().queue_timeout);
        while Arc::strong_count(&app) > 1 && clock::now() < deadline
            || app.has_waiting_requests() && clock::now() < deadline.max(last)
        {
            clock::sleep(USE_POLL_INTERVAL).await;
        }
        app.drain_gracefully().await;
    });
}

/// Requests that began before a reload may use the old pool for a while.
fn close_pool_later(pool: penstock_runtime::blocking::Pool, patience: Duration) {
    loops::spawn_here(async move {
        clock::sleep(patience).await;
        pool.close();
    });
}
