//! The server's life: start, reload, shutdown.
//!
//! Everything that belongs to no loop runs on the control runtime, on the main thread: supervisors
//! (whose workers die with this thread), the admin interface, signals. What must stay true: a start
//! fails before anything is served, a reload changes nothing unless all of it works, a shutdown
//! loses no request that was accepted until its deadline.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use penstock_apps::{App, Boot};
use penstock_config::{Config, Invocation, PathPattern, Upstream};
use penstock_edge::{Edge, Route, Routing, Settings, Site};
use penstock_exchange::Handler;
use penstock_runtime::logger::LineWriter;
use penstock_runtime::{Loops, clock, loops};
use penstock_status::Admin;
use penstock_sys::process;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, mpsc};

use crate::caches::CachedRoute;
use crate::cli;
use crate::listeners::{self, Opened, Serving};
use crate::tcp::{self, TcpServing};
use crate::upstreams::{self, Rooms, Started, default_pool};
use crate::wiring::{self, Built};

/// How long an application that was taken out of the configuration may finish.
const REMOVED_DRAIN: Duration = Duration::from_secs(60);

/// How long all processes of a new application may take beyond the boot time-out of one.
const BOOT_SLACK: Duration = Duration::from_secs(10);

/// How often to look whether a request still uses a removed application.
const STILL_USED: Duration = Duration::from_millis(20);

/// How long the loops may take to leave listeners that a reload has stopped.
const CLOSING: Duration = Duration::from_secs(1);

/// How long the admin interface may finish its answers at the very end.
const ADMIN_DRAIN: Duration = Duration::from_millis(500);

/// Why a reload is refused at the end.
const STOPPING: &str = "the server is stopping";

/// What the command line adds to the configuration.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Error pages with causes.
    pub(crate) development: bool,
    /// Where to say that everything is ready.
    pub(crate) ready_fd: Option<RawFd>,
    /// The server's log.
    pub(crate) log: LineWriter,
    /// Takes lines for the person at the terminal; nobody may be reading there.
    pub(crate) announce: LineWriter,
}

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    invocation: Invocation,
    options: Options,
    loops: Loops,
    pub(crate) edge: Arc<Edge>,
    admin_edge: Arc<Edge>,
    pub(crate) started: Instant,
    /// Wakes the main task to shut down.
    stop: Notify,
    draining: AtomicBool,
    /// What a reload replaces; never held across an await.
    live: Mutex<Live>,
    /// One reload at a time.
    reloading: tokio::sync::Mutex<()>,
}

/// What a reload replaces.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) config: Config,
    pub(crate) rooms: Rooms,
    pub(crate) cached_routes: Vec<CachedRoute>,
    pub(crate) listeners: Vec<Serving>,
    pub(crate) streams: Vec<TcpServing>,
    pub(crate) admin: Option<Serving>,
    pub(crate) reloads: u64,
    /// Why the last reload was refused; `None` after one that worked.
    pub(crate) reload_error: Option<String>,
}

/// Starts, serves and stops. Blocks until the server has stopped.
///
/// # Errors
/// Why it could not start, in words.
pub(crate) fn run(invocation: Invocation, config: Config, options: Options) -> Result<(), String> {
    let say = |error: std::io::Error| error.to_string();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(say)?;
    raise_open_files();
    let loops = Loops::start(config.server.threads).map_err(say)?;
    runtime.block_on(async {
        let mut signals = Signals::new().map_err(say)?;
        let hangup = signal(SignalKind::hangup()).map_err(say)?;
        let server = Server::start(invocation, config, options, loops)?;
        let announcing = Arc::clone(&server);
        loops::spawn_here(async move { announcing.announce_ready().await });
        loops::spawn_here(reload_on(hangup, Arc::clone(&server)));
        signals.wait(&server).await;
        server.shut_down(&mut signals).await;
        Ok(())
    })
}

/// A connection is a descriptor, and so is a file that is sent: the usual soft limit of 1,024 is for programs
/// that use `select`.
fn raise_open_files() {
    match process::raise_open_files() {
        Ok((before, after)) if before < after => {
            log::info!("may open {after} files and connections (the limit was {before})");
        }
        Ok(_) => {}
        Err(error) => log::warn!("cannot raise the limit of open files: {error}"),
    }
}

/// Reloads on SIGHUP. One that comes during a reload is one more afterwards, however many they are: in
/// the end the newest configuration has been read.
async fn reload_on(mut hangup: Signal, server: Arc<Server>) {
    while hangup.recv().await.is_some() {
        // The result is in the log.
        let _ = server.reload_in_turn().await;
    }
}

/// The signals that end a server.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits until the server is to stop.
    async fn wait(&mut self, server: &Server) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            () = server.stop.notified() => {}
        }
    }

    /// A second Ctrl-C or SIGTERM: no more patience.
    async fn again(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

impl Server {
    fn start(
        invocation: Invocation,
        config: Config,
        options: Options,
        loops: Loops,
    ) -> Result<Arc<Self>, String> {
        let count = loops.handles().len();
        let opened = listeners::open_all(&config, &[], &mut Vec::new(), count)?;
        let streams = tcp::open_all(&config, &[], &mut Vec::new(), count)?;
        let admin = config
            .server
            .admin
            .as_ref()
            .map(|a| listeners::open(a, false, 1))
            .transpose();
        let admin =
            admin.map_err(|e| format!("{e} (the admin interface: --admin or server.admin)"))?;
        let pools = wiring::pools(&config, None);
        let mut started = Started::default();
        let none = Rooms::default();
        upstreams::start(&config, &none, pools, loops.handles(), &mut started)?;
        let rooms = started.rooms;
        let Built {
            settings,
            cached_routes,
        } = wiring::settings(&config, &rooms, count, options.development)?;
        let admin_settings = Settings {
            limits: config.limits.clone(),
            routing: Routing::default(),
            access_log: None,
            trust: Arc::default(),
            development: true,
        };
        let edge = Arc::new(Edge::new(settings, count));
        let admin_edge = Arc::new(Edge::new(admin_settings, 1));
        let listeners = opened
            .into_iter()
            .map(|o| o.serve(&edge, loops.handles()))
            .collect();
        let streams = tcp::serve_all(streams, &rooms.upstreams, &edge, loops.handles());
        let admin = admin.map(|opened| opened.serve_here(&admin_edge));
        let server = Arc::new(Self {
            invocation,
            options,
            loops,
            edge,
            admin_edge,
            started: clock::now(),
            stop: Notify::new(),
            draining: AtomicBool::new(false),
            live: Mutex::new(Live {
                config,
                rooms,
                cached_routes,
                listeners,
                streams,
                admin,
                reloads: 0,
                reload_error: None,
            }),
            reloading: tokio::sync::Mutex::new(()),
        });
        server.wire_admin();
        Ok(server)
    }

    /// The admin interface answers on its own edge, so that it is there when the front end is full.
    fn wire_admin(self: &Arc<Self>) {
        let admin: Arc<dyn Handler> = Arc::new(Admin::new(Arc::new(crate::source::House::new(
            Arc::downgrade(self),
        ))));
        let mut routing = Routing::default();
        let route = Route {
            path: PathPattern::any(),
            internal: false,
            filters: None,
            handlers: [admin].into(),
        };
        routing.add(
            &[],
            Site {
                routes: vec![route],
                ..Site::default()
            },
        );
        let limits = self.live().config.limits.clone();
        let settings = Settings {
            limits,
            routing,
            access_log: None,
            trust: Arc::default(),
            development: true,
        };
        self.admin_edge.replace(settings, &[]);
    }

    /// Prints where it listens, then each application as it becomes ready.
    async fn announce_ready(&self) {
        let announce = &self.options.announce;
        let (names, admin, upstreams, apps): (Vec<_>, _, Vec<String>, Vec<Arc<App>>) = {
            let live = self.live();
            let mut names: Vec<_> = live.listeners.iter().map(|l| l.name().to_owned()).collect();
            names.extend(live.streams.iter().map(TcpServing::name));
            let admin = live.admin.as_ref().map(|a| a.name().to_owned());
            let upstreams = live.config.upstreams.values().map(described).collect();
            let apps = live.rooms.apps.values().cloned().collect();
            (names, admin, upstreams, apps)
        };
        for name in names {
            announce.write(format!("listening {name}\n").into_bytes());
        }
        if let Some(admin) = admin {
            announce.write(format!("status {admin}/\n").into_bytes());
        }
        for upstream in upstreams {
            announce.write(upstream.into_bytes());
        }
        let (announced, mut left) = mpsc::channel::<()>(1);
        for app in apps {
            let (announced, announce) = (announced.clone(), announce.clone());
            loops::spawn_here(async move {
                announce_app(&app, &announce).await;
                drop(announced);
            });
        }
        drop(announced);
        // Ends when every application has been announced as ready.
        let _ = left.recv().await;
        if let Some(fd) = self.options.ready_fd {
            let path = format!("/proc/self/fd/{fd}");
            let pool = default_pool(&self.live().rooms.pools);
            let announce = announce.clone();
            let written = pool
                .run(move || {
                    // What was announced is to be read before.
                    announce.flush();
                    std::fs::OpenOptions::new()
                        .write(true)
                        .open(path)
                        .and_then(|mut f| {
                            use std::io::Write;
                            f.write_all(b"ready\n")
                        })
                })
                .await;
            if !matches!(written, Ok(Ok(()))) {
                log::error!("--ready-fd {fd}: cannot write");
            }
        }
    }

    pub(crate) fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    pub(crate) fn threads(&self) -> usize {
        self.loops.handles().len()
    }

    pub(crate) fn log_lines_dropped(&self) -> u64 {
        let access = self
            .edge
            .settings()
            .access_log
            .as_ref()
            .map_or(0, |log| log.writer.dropped());
        self.options.log.dropped() + access
    }

    /// Begins the shutdown.
    pub(crate) fn stop(&self) {
        self.stop.notify_one();
    }

    /// Builds the new configuration beside the old one and swaps when all of it works.
    ///
    /// # Errors
    /// Everything that is wrong with the new one; the old one serves on.
    pub(crate) async fn reload(self: &Arc<Self>) -> Result<String, String> {
        let Ok(_only) = self.reloading.try_lock() else {
            return Err("a reload is under way".to_owned());
        };
        self.reload_alone().await
    }

    /// The same after the reload that is under way, if any.
    async fn reload_in_turn(self: &Arc<Self>) -> Result<String, String> {
        let _only = self.reloading.lock().await;
        self.reload_alone().await
    }

    async fn reload_alone(self: &Arc<Self>) -> Result<String, String> {
        if self.is_draining() {
            return Err(STOPPING.to_owned());
        }
        let result = self.try_reload().await;
        match &result {
            Ok(text) => log::info!("reload: {text}"),
            Err(error) => log::error!("reload: refused, nothing was changed\n{error}"),
        }
        self.live().reload_error = result.as_ref().err().cloned();
        result
    }

    async fn try_reload(self: &Arc<Self>) -> Result<String, String> {
        let (invocation, pool) = (
            self.invocation.clone(),
            default_pool(&self.live().rooms.pools),
        );
        let resolved = pool.run(move || cli::resolve(&invocation)).await;
        let config = resolved.map_err(|error| error.to_string())??;
        let count = self.loops.handles().len();
        let (opened, streams, pools, old) = {
            let live = self.live();
            let mut going = listeners::going(&config, &live.listeners);
            going.extend(tcp::going(&config, &live.streams));
            (
                listeners::open_all(&config, &live.listeners, &mut going, count)?,
                tcp::open_all(&config, &live.streams, &mut going, count)?,
                wiring::pools(&config, Some((&live.config, &live.rooms.pools))),
                live.rooms.clone(),
            )
        };
        let mut started = Started::default();
        let begun = upstreams::start(&config, &old, pools, self.loops.handles(), &mut started);
        drop(old);
        let Started { rooms, fresh } = started;
        let booted = match begun {
            Ok(()) => all_booted(&fresh).await,
            Err(error) => Err(error),
        };
        let built = match booted {
            Ok(()) => {
                let (config, rooms) = (config.clone(), rooms.clone());
                let development = self.options.development;
                let build = move || wiring::settings(&config, &rooms, count, development);
                pool.run(build)
                    .await
                    .map_err(|error| error.to_string())
                    .flatten()
            }
            Err(error) => Err(error),
        };
        // Its listeners would outlive the drain.
        let built = built.and_then(|built| match self.is_draining() {
            true => Err(STOPPING.to_owned()),
            false => Ok(built),
        });
        match built {
            Ok(built) => {
                let (done, gone) = self.swap(config, built, (opened, streams), rooms);
                // Whoever connects once the reload is told as done meets the new listeners only.
                let deadline = clock::now() + CLOSING;
                for serving in &gone {
                    clock::until(deadline, serving.stopped()).await;
                }
                Ok(done)
            }
            Err(error) => {
                fresh
                    .into_iter()
                    .for_each(|app| drain_later(app, Duration::ZERO));
                Err(error)
            }
        }
    }

    /// Puts all that is new in its place; what changed, and the listeners that were stopped.
    fn swap(
        &self,
        config: Config,
        built: Built,
        (opened, streams): (Vec<Opened>, Vec<(Opened, String)>),
        rooms: Rooms,
    ) -> (String, Vec<Serving>) {
        let Built {
            settings,
            mut cached_routes,
        } = built;
        self.edge.replace(settings, self.loops.handles());
        let mut live = self.live();
        for route in &mut cached_routes {
            route.goes_on(&live.cached_routes);
        }
        live.cached_routes = cached_routes;
        let store = wiring::body_store(&config.limits, default_pool(&rooms.pools));
        for app in rooms.apps.values() {
            app.adopt(store.clone());
        }
        for upstream in rooms.upstreams.values() {
            upstream.adopt(store.clone());
        }
        let mut changes = Vec::new();
        let old = std::mem::replace(&mut live.rooms, rooms);
        for (name, old) in old.apps {
            let new = live.rooms.apps.get(&name);
            if new.is_none_or(|new| !Arc::ptr_eq(new, &old)) {
                changes.push(format!("application {name} replaced"));
                drain_later(old, REMOVED_DRAIN);
            }
        }
        for (name, old) in old.upstreams {
            let new = live.rooms.upstreams.get(&name);
            let is_replaced = new.is_none_or(|new| !Arc::ptr_eq(new, &old));
            // Requests that began before hold what they need of the old one.
            if is_replaced && live.config.upstreams.contains_key(&name) {
                changes.push(format!("upstream {name} replaced"));
            }
        }
        for (name, old) in old.caches {
            let new = live.rooms.caches.get(&name);
            let is_replaced = new.is_none_or(|new| !Arc::ptr_eq(new, &old));
            if !is_replaced {
                continue;
            }
            if new.is_some() {
                changes.push(format!("cache {name} replaced"));
            }
            // Its folder is free for the new one. Requests that began before find nothing in it any more.
            old.stop();
        }
        let upstreams = live.rooms.upstreams.clone();
        let loops = self.loops.handles();
        let fresh = opened.into_iter().map(|o| o.serve(&self.edge, loops));
        let fresh = fresh.collect();
        let mut gone = listeners::swap(&config, &mut live.listeners, fresh, &mut changes);
        let fresh = tcp::serve_all(streams, &upstreams, &self.edge, loops);
        let streams = &mut live.streams;
        gone.extend(tcp::swap(&config, streams, &upstreams, fresh, &mut changes));
        for serving in &mut gone {
            let streams = live.streams.iter().map(TcpServing::serving);
            serving.stop(live.listeners.iter().chain(streams));
        }
        if config.server.threads != live.config.server.threads {
            changes.push("server.threads changes at the next start".to_owned());
        }
        if config.server.admin != live.config.server.admin {
            changes.push("server.admin changes at the next start".to_owned());
        }
        // Threads of the pools that are gone or changed end once their work is done.
        for (name, pool) in old.pools {
            if live.config.blocking.get(&name) != config.blocking.get(&name) {
                close_later(pool);
            }
        }
        live.config = config;
        live.reloads += 1;
        let done = match changes.is_empty() {
            true => "done".to_owned(),
            false => changes.join(", "),
        };
        (done, gone)
    }

    /// Finishes what is in progress, then ends everything, in the order of the requests' way.
    async fn shut_down(self: Arc<Self>, signals: &mut Signals) {
        self.draining.store(true, Ordering::Relaxed);
        let timeout = self.live().config.server.shutdown_timeout;
        let deadline = clock::now() + timeout;
        log::info!("stopping: {} connections open", self.edge.connections());
        let deadline = tokio::select! {
            () = self.finish_requests(deadline) => deadline,
            () = signals.again() => {
                log::warn!("stopping at once, as asked again");
                clock::now()
            }
        };
        let left = self.edge.drain.running();
        if left > 0 {
            log::warn!("{left} connections cut");
        }
        tokio::select! {
            () = self.drain_apps(deadline) => {}
            // What still runs dies with this process.
            () = signals.again() => log::warn!("stopping at once, as asked again"),
        }
        for cache in self.live().rooms.caches.values() {
            cache.stop();
        }
        if let Some(admin) = &mut self.live().admin {
            admin.stop(std::iter::empty());
        }
        self.admin_edge.drain.begin();
        clock::until(clock::now() + ADMIN_DRAIN, self.admin_edge.drain.finished()).await;
        log::info!("stopped");
    }

    /// Drains all applications at the same time.
    async fn drain_apps(&self, deadline: Instant) {
        let apps: Vec<Arc<App>> = self.live().rooms.apps.values().cloned().collect();
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
        let _ = ended.recv().await;
    }

    async fn finish_requests(&self, deadline: Instant) {
        let mut stopping: Vec<Serving> = {
            let mut live = self.live();
            let streams = std::mem::take(&mut live.streams);
            let streams = streams.into_iter().map(TcpServing::into_serving);
            let listeners = std::mem::take(&mut live.listeners);
            listeners.into_iter().chain(streams).collect()
        };
        for serving in &mut stopping {
            serving.stop(std::iter::empty());
        }
        for serving in &stopping {
            clock::until(deadline, serving.stopped()).await;
        }
        self.edge.drain.begin();
        clock::until(deadline, self.edge.drain.finished()).await;
    }
}

/// An upstream as a person reads it at a terminal.
fn described(upstream: &Upstream) -> String {
    let (name, protocol) = (&upstream.name, upstream.protocol.as_str());
    let servers = cli::count(upstream.servers.len() as u64, "server");
    format!("upstream {name}: {protocol}, {servers}\n")
}

/// Prints how an application starts: once that it does not, if so, and when it is ready.
async fn announce_app(app: &App, announce: &LineWriter) {
    let (name, kind) = (app.name(), app.config().kind);
    if let Boot::Failed { .. } = app.booted().await {
        let line = format!("app {name}: {kind}, does not start yet; see the log\n");
        announce.write(line.into_bytes());
    }
    let Some((took, interpreter)) = app.up().await else {
        return;
    };
    let (processes, threads) = (app.config().processes.max, app.config().threads);
    let plural = if processes == 1 {
        "process"
    } else {
        "processes"
    };
    let threads = if threads == 1 {
        String::new()
    } else {
        format!(" x {threads} threads")
    };
    let took = took.as_secs_f64();
    let line = format!(
        "app {name}: {kind}, {processes} {plural}{threads}, ready in {took:.1} s ({interpreter})\n"
    );
    announce.write(line.into_bytes());
}

async fn all_booted(apps: &[Arc<App>]) -> Result<(), String> {
    for app in apps {
        let name = app.name();
        // Workers that become ready and die in turn are neither one nor the other.
        let deadline = clock::now() + app.config().boot_timeout + BOOT_SLACK;
        match clock::until(deadline, app.booted()).await {
            Some(Boot::Ready { .. }) => {}
            Some(Boot::Failed { report }) => {
                return Err(format!("application `{name}` does not start\n{report}"));
            }
            Some(Boot::Pending) | None => {
                return Err(format!("application `{name}` did not become ready in time"));
            }
        }
    }
    Ok(())
}

/// Ends an application that the configuration no longer has. Requests that began before the reload
/// still hold the old routing, and with it the application: they come first.
fn drain_later(app: Arc<App>, patience: Duration) {
    loops::spawn_here(async move {
        let deadline = clock::now() + patience;
        while Arc::strong_count(&app) > 1 && clock::now() < deadline {
            clock::sleep(STILL_USED).await;
        }
        app.drain(deadline.max(clock::now() + STILL_USED)).await;
    });
}

/// Requests that began before a reload may still use the old pool for a while.
fn close_later(pool: penstock_runtime::blocking::Pool) {
    loops::spawn_here(async move {
        clock::sleep(REMOVED_DRAIN).await;
        pool.close();
    });
}
