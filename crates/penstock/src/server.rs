//! The server's life: start, reload, upgrade, shutdown.
//!
//! Everything that belongs to no loop runs on the control loop, on the main thread: supervisors
//! (whose workers die with this thread), the admin interface, signals. A start goes: sockets, the user that
//! serves, threads, applications, then the doors open; what comes later is in `announce`, `reload`,
//! `upgrade`, `shutdown`. What must stay true: a start fails before anything is served, a reload changes
//! nothing unless all of it works, a shutdown loses no request that was accepted until its deadline.

mod announce;
mod doors;
mod reload;
mod reopen;
mod shutdown;
mod signals;
mod surroundings;
mod upgrade;

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use penstock_apps::App;
use penstock_config::{Config, Invocation, Limits, LogTarget, PathPattern};
use penstock_edge::{DescriptorBudget, Edge, ErrorPages, Route, RouteTable, Settings, Site};
use penstock_exchange::Handler;
use penstock_proxy::{JoinListener, Joiner};
use penstock_runtime::logger::{LineWriter, LogMask};
use penstock_runtime::{Loops, TokioThread, clock, loops};
use penstock_status::{Admin, AdminToken, Authority, Probes, RefuseAll};
use penstock_sys::process::Launcher;
use penstock_sys::process::successor::SignalTarget;
use penstock_sys::{account, daemon, process};
use tokio::sync::Notify;

pub(crate) use self::announce::ReadyFd;
use self::doors::Doors;
use self::signals::Signals;
pub(crate) use self::upgrade::successor_command;
use crate::admin_token;
use crate::boundary;
use crate::bounds::AppBounds;
use crate::caches::CachedRoute;
use crate::control;
use crate::dev;
use crate::held::Held;
use crate::identity::{Accounts, Identity};
use crate::inherited::Inherited;
use crate::listeners::Serving;
use crate::logs;
use crate::manager::Manager;
use crate::publishing::Publishing;
use crate::refused_calls;
use crate::succession::Predecessor;
use crate::tcp::{Targets, TcpServing};
use crate::upstreams::{self, Beside, Rooms, Sizes, Started, Upstreams, default_pool};
use crate::watchdog::Watchdog;
use crate::wiring::{self, Built};
use crate::work;

/// Why a reload is refused at the end.
const STOPPING: &str = "the server is stopping";

/// Programs that dial in at once, until they are met.
const MEETINGS_MAX: usize = 1024;

/// How long an upgrade waits for the new server to be one of its front end.
const JOINING: Duration = Duration::from_secs(3);

/// What the command line adds to the configuration.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Error pages with causes.
    pub(crate) development: bool,
    /// Where to say that everything is ready.
    pub(crate) ready: Option<ReadyFd>,
    /// The server's log.
    pub(crate) log: LineWriter,
    /// Starts all programs.
    pub(crate) launcher: Arc<Launcher>,
    /// Whom applications run as.
    pub(crate) accounts: Arc<Accounts>,
    /// What applications may take.
    pub(crate) bounds: Arc<AppBounds>,
    /// Takes lines for the person at the terminal; nobody may be reading there.
    pub(crate) announce: LineWriter,
    /// Who started us, if it wants to be told.
    pub(crate) manager: Manager,
    /// The program that runs here, by the path that it was started by.
    pub(crate) program: std::path::PathBuf,
    /// Whether it has left its terminal, or will: its standard streams go to the log.
    pub(crate) daemonize: bool,
    /// What of its control is open to others, a line each; found at the start, before it became another
    /// user.
    pub(crate) exposures: Vec<String>,
}

/// What only this start has.
#[derive(Debug)]
pub(crate) struct Beginning {
    /// Sockets that it was given.
    pub(crate) sockets: Inherited,
    /// The server that it follows.
    pub(crate) predecessor: Option<Predecessor>,
    /// Whom it is to become.
    pub(crate) identity: Option<Identity>,
    /// The process that waits for it to be ready.
    pub(crate) word: Option<daemon::ReadinessSender>,
}

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    invocation: Invocation,
    options: Options,
    loops: Loops,
    pub(crate) edge: Arc<Edge>,
    admin_edge: Arc<Edge>,
    /// Answers callers of the control socket.
    control_edge: Arc<Edge>,
    /// Answers those who may not use it.
    refused_edge: Arc<Edge>,
    probes_edge: Arc<Edge>,
    /// All that is held open; one for the whole life of the process.
    pub(crate) held: Held,
    /// How applications publish; as long as the process lives.
    publishing: Publishing,
    pub(crate) started: Instant,
    pub(crate) watchdog: Watchdog,
    /// Wakes the main task to shut down.
    stop: Notify,
    draining: AtomicBool,
    /// The process of the server that this one follows.
    predecessor: Option<u32>,
    /// The token for changes over TCP, for a server that follows and may not read its file.
    token_digest: Option<[u8; 32]>,
    /// It was asked to make haste.
    is_hurried: AtomicBool,
    /// This one has begun to serve.
    serves: AtomicBool,
    /// The process that serves in place of this one; 0 is none.
    heir: AtomicU32,
    /// The way to it.
    reach: OnceLock<SignalTarget>,
    /// What a reload replaces; never held across an await.
    live: Mutex<Live>,
    /// Where others dial in to be servers of upstreams here.
    front: JoinListener,
    /// Where their connections count until they are met.
    join_edge: Arc<Edge>,
    /// What keeps this one a server of another front end, under `penstock work`.
    joiner: OnceLock<Joiner>,
    /// One reload or upgrade at a time.
    reloading: tokio::sync::Mutex<()>,
    /// Whether the one that is under way is an upgrade.
    upgrading: AtomicBool,
}

/// What a reload replaces.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) config: Config,
    pub(crate) rooms: Rooms,
    /// Applications that reloads have replaced, as long as they finish what they have.
    pub(crate) leaving: Vec<Weak<App>>,
    pub(crate) cached_routes: Vec<CachedRoute>,
    pub(crate) listeners: Vec<Serving>,
    pub(crate) streams: Vec<TcpServing>,
    pub(crate) admin: Option<Serving>,
    pub(crate) control: Option<Serving>,
    pub(crate) probes: Option<Serving>,
    pub(crate) reloads: u64,
    /// Why the last reload was refused; `None` after one that worked.
    pub(crate) reload_error: Option<String>,
}

/// Starts, serves and stops. Blocks until the server has stopped.
///
/// # Errors
/// Why it could not start, in words.
pub(crate) fn run(
    invocation: Invocation,
    config: Config,
    mut options: Options,
    beginning: Beginning,
) -> Result<(), String> {
    let say = |error: std::io::Error| error.to_string();
    let Beginning {
        sockets,
        predecessor,
        identity,
        word,
    } = beginning;
    let handed_over = predecessor.as_ref().and_then(Predecessor::token);
    let token = admin_token::read(config.server.admin_token.as_deref(), handed_over)?;
    // Before it is another user, who may be the one to be warned of.
    options.exposures = control::warnings(&config);
    let doors = prepare_process(
        &config,
        &invocation,
        (sockets, predecessor.is_some()),
        account,
    )?;
    if config.server.log != LogTarget::Stderr {
        let log = logs::open(&config.server.log).map_err(|error| format!("server.log: {error}"))?;
        options.log.set_output(log).map_err(say)?;
    }
    surroundings::check_essentials()?;
    surroundings::log_missing(&config.limits.temp_dir);
    let not_held = options.bounds.warnings(&config);
    let of_boundary = boundary::warnings(&config).into_iter().chain(not_held);
    for warning in options.exposures.iter().cloned().chain(of_boundary) {
        log::warn!("{warning}");
    }
    remove_abandoned_folders(&config);
    let tokio = TokioThread::start().map_err(say)?;
    let _entered = tokio.enter();
    let started = Loops::start(config.server.threads).map_err(say)?;
    let served = loops::block_on(async {
        let old = predecessor.as_ref();
        let mut signals = Signals::new(old.map(Predecessor::pid)).map_err(say)?;
        let secret = old.and_then(Predecessor::secret);
        let publishing = Publishing::new(secret, doors.admin().as_ref())?;
        let given = (token, publishing);
        let server = Server::start(invocation, config, options, started, (old, given))?;
        signals.hear(&server);
        if let Some(reports) = server.options.launcher.take_refusals() {
            refused_calls::follow(reports, &server);
        }
        let began = tokio::select! {
            began = server.begin(doors, predecessor, word) => began,
            () = signals.wait(&server) => Err("stopped before it was ready".to_owned()),
        };
        if began.is_ok() {
            signals.wait(&server).await;
        }
        server.shut_down(&mut signals).await;
        began
    });
    served.map_err(say)?
}

/// What comes before the first thread that serves: bounds, sockets, the user.
fn prepare_process(
    config: &Config,
    invocation: &Invocation,
    (sockets, follows): (Inherited, bool),
    identity: Option<Identity>,
) -> Result<Doors, String> {
    raise_open_files(config.server.max_open_files)?;
    process::allow_priority_restore();
    if let Some(mask) = config.server.umask {
        account::set_umask(mask);
    }
    let doors = Doors::open(config, sockets, follows)?;
    if let Some(identity) = account {
        account.assume(config, &invocation.cwd, doors.made())?;
        boundary::deny_inspection()?;
    }
    if let Some(folder) = &config.server.dir {
        std::env::set_current_dir(folder)
            .map_err(|error| format!("server.directory: {}: {error}", folder.display()))?;
    }
    Ok(doors)
}

/// What servers have left that were killed.
fn remove_abandoned_folders(config: &Config) {
    let folder = &config.limits.temp_dir;
    match penstock_apps::remove_abandoned_folders(folder) {
        Ok(0) => {}
        Ok(count) => log::info!(
            "{}: removed {count} folders for sockets whose servers were killed",
            folder.display()
        ),
        Err(error) => log::debug!("{}: {error}", folder.display()),
    }
}

/// A connection is a descriptor, and so is a file that is sent: the usual soft limit of 1,024 is for programs
/// that use `select`.
fn raise_open_files(wanted: Option<u64>) -> Result<(), String> {
    if let Some(wanted) = wanted {
        return account::set_max_open_files(wanted)
            .map_err(|error| format!("server.open_files = {wanted}: {error}"));
    }
    match process::raise_open_files() {
        Ok((before, after)) if before < after => {
            log::info!("may open {after} files and connections (the limit was {before})");
        }
        Ok(_) => {}
        Err(error) => log::warn!("cannot raise the limit of open files: {error}"),
    }
    Ok(())
}

/// Connections to the admin interface, and to the listener of probes: of the descriptors that
/// clients' connections leave, these take a few. Idle ones give way to new ones.
const OWN_CONNECTIONS_MAX: usize = 64;

/// The bounds of the admin interface and of probes.
fn own_limits(limits: &Limits) -> Limits {
    Limits {
        max_connections: OWN_CONNECTIONS_MAX,
        // Whoever asks comes from a few addresses.
        max_connections_per_client: Some(0),
        ..limits.clone()
    }
}

/// The settings of an edge that is not for clients, without a route.
fn of_house(limits: Limits) -> Settings {
    Settings {
        limits,
        routes: RouteTable::default(),
        access_log: None,
        log_mask: LogMask::default(),
        trusted_proxies: Arc::default(),
        is_development: true,
    }
}

impl Server {
    fn start(
        invocation: Invocation,
        config: Config,
        options: Options,
        loops: Loops,
        (predecessor, (token, publishing)): (
            Option<&Predecessor>,
            (Option<AdminToken>, Publishing),
        ),
    ) -> Result<Arc<Self>, String> {
        let count = loops.handles().len();
        let pools = wiring::pools(&config, None);
        let mut started = Started::default();
        let (none, alone) = (Rooms::default(), Sizes::new());
        let beside = Beside {
            loops: loops.handles(),
            launcher: &options.launcher,
            accounts: &options.accounts,
            bounds: &options.bounds,
            gives_way: predecessor.is_some(),
            development: options.development,
            publishing: &publishing,
            sizes: predecessor.map_or(&alone, Predecessor::sizes),
        };
        upstreams::start(&config, &none, pools, beside, &mut started)?;
        let rooms = started.rooms;
        let temp_max = config.limits.max_temp_size.unwrap_or(u64::MAX);
        rooms.temp_space.set_max(temp_max);
        let held = Held::start(&config, Arc::clone(&publishing.keys), loops.handles());
        let held = held.map_err(|error| format!("the hub: {error}"))?;
        let Built {
            settings,
            cached_routes,
        } = wiring::settings(&config, &rooms, &held, count, options.development)?;
        let admin_settings = of_house(own_limits(&config.limits));
        let control_settings = of_house(own_limits(&config.limits));
        let refused_settings = of_house(own_limits(&config.limits));
        let probes_settings = of_house(own_limits(&config.limits));
        let join_settings = of_house(Limits {
            max_connections: MEETINGS_MAX,
            ..config.limits.clone()
        });
        let descriptors = DescriptorBudget::new(penstock_sys::descriptors::soft_limit());
        let watchdog = Watchdog::start(loops.handles(), options.manager.clone());
        let token_digest = token.as_ref().map(AdminToken::digest);
        let server = Arc::new(Self {
            invocation,
            edge: Arc::new(Edge::new(settings, count).with_descriptor_budget(descriptors)),
            admin_edge: Arc::new(Edge::new(admin_settings, 1)),
            control_edge: Arc::new(Edge::new(control_settings, 1)),
            refused_edge: Arc::new(Edge::new(refused_settings, 1)),
            probes_edge: Arc::new(Edge::new(probes_settings, 1)),
            held,
            publishing,
            watchdog: watchdog.map_err(|error| error.to_string())?,
            options,
            loops,
            started: clock::now(),
            stop: Notify::new(),
            draining: AtomicBool::new(false),
            predecessor: predecessor.map(Predecessor::pid),
            token_digest,
            is_hurried: AtomicBool::new(false),
            serves: AtomicBool::new(false),
            heir: AtomicU32::new(0),
            reach: OnceLock::new(),
            live: Mutex::new(Live {
                config,
                rooms,
                leaving: Vec::new(),
                cached_routes,
                listeners: Vec::new(),
                streams: Vec::new(),
                admin: None,
                control: None,
                probes: None,
                reloads: 0,
                reload_error: None,
            }),
            front: JoinListener::default(),
            join_edge: Arc::new(Edge::new(join_settings, count)),
            joiner: OnceLock::new(),
            reloading: tokio::sync::Mutex::new(()),
            upgrading: AtomicBool::new(false),
        });
        let connections = server.edge.max_connections();
        server.held.configure(&server.live().config, connections);
        log::info!(
            "at most {connections} connections from clients: {}",
            server.edge.connection_limit_reason()
        );
        server.wire_admin(token);
        server.wire_probes();
        let counted = Arc::downgrade(&server);
        let numbers = move || counted.upgrade().map(|server| server.numbers());
        let numbers = Box::new(move || numbers().unwrap_or_default());
        server.held.join(&server.live().config, numbers)?;
        Ok(server)
    }

    /// Opens the doors: at once, or when the server before this one leaves them. Whoever waits for a daemon
    /// is told once that is ready.
    ///
    /// # Errors
    /// Why it does not become ready, where somebody else has to know.
    async fn begin(
        self: &Arc<Self>,
        doors: Doors,
        predecessor: Option<Predecessor>,
        word: Option<daemon::ReadinessSender>,
    ) -> Result<(), String> {
        if let Some(old) = predecessor {
            self.all_booted().await?;
            self.join_before_the_other_leaves().await;
            let serving = old.ready(doors.taken()).await?;
            self.open_doors(doors);
            let admin = self.live().admin.as_ref().map(Serving::address);
            if let Err(error) = serving.say(admin).await {
                log::warn!("the server before this one is not told: {error}");
            }
        } else {
            self.open_doors(doors);
        }
        dev::start(self, self.options.development);
        let Some(word) = word else {
            let announcing = Arc::clone(self);
            loops::spawn_here(async move { announcing.announce_ready().await });
            return Ok(());
        };
        self.all_booted().await?;
        self.announce_ready().await;
        let pool = default_pool(&self.live().rooms.pools);
        let leaving = Arc::clone(self);
        let left = pool.run(move || leaving.leave_terminal()).await;
        left.map_err(|error| error.to_string()).flatten()?;
        word.ready();
        Ok(())
    }

    /// Waits until every application has its processes.
    async fn all_booted(&self) -> Result<(), String> {
        let apps: Vec<_> = self.live().rooms.apps.values().cloned().collect();
        reload::all_booted(&apps).await
    }

    fn open_doors(self: &Arc<Self>, doors: Doors) {
        self.serves.store(true, Ordering::Relaxed);
        let mut live = self.live();
        let upstreams = live.rooms.upstreams.clone();
        let join = live.config.server.join.as_ref();
        self.front.configure(join, upstreams.values());
        let targets = self.targets(&upstreams);
        let served = doors.serve(self, targets, self.loops.handles());
        live.listeners = served.listeners;
        live.streams = served.streams;
        live.admin = served.admin;
        live.control = served.control;
        live.probes = served.probes;
        if live.config.join_target.is_some() && self.joiner.get().is_none() {
            loops::spawn_here(Arc::clone(self).join());
        }
    }

    /// Who gets the connections of TCP listeners.
    fn targets<'a>(&'a self, upstreams: &'a Upstreams) -> Targets<'a> {
        Targets {
            upstreams,
            edge: &self.edge,
            front: &self.front,
            join_edge: &self.join_edge,
        }
    }

    /// Becomes a server of another front end, once the application serves, if it is to be one.
    async fn join(self: Arc<Self>) {
        let apps: Vec<_> = self.live().rooms.apps.values().cloned().collect();
        for app in apps {
            app.wait_until_up().await;
        }
        let setup = {
            let live = self.live();
            let pool = default_pool(&live.rooms.pools);
            work::joiner(
                &live.config,
                &live.rooms.apps,
                &self.edge,
                self.loops.handles(),
                pool,
            )
        };
        if let Some(setup) = setup.filter(|_| !self.is_draining()) {
            // There is one start.
            let _ = self.joiner.set(Joiner::start(setup));
        }
    }

    /// The same for one that follows another, which leaves the front end then: it is to be there already, unless that takes
    /// too long.
    async fn join_before_the_other_leaves(self: &Arc<Self>) {
        Arc::clone(self).join().await;
        let Some(joiner) = self.joiner.get() else {
            return;
        };
        if clock::timeout(JOINING, joiner.wait_until_joined())
            .await
            .is_none()
        {
            log::warn!(
                "upgrade: the front end is not joined yet; the server before this one leaves it"
            );
        }
    }

    /// Lets the standard streams go to the log's file, or nowhere. Blocks until what was announced is out.
    fn leave_terminal(&self) -> Result<(), String> {
        let log = self.live().config.server.log.clone();
        let file = match &log {
            LogTarget::File(path) => Some(logs::open_file(path)?),
            LogTarget::Stdout | LogTarget::Stderr => None,
        };
        if file.is_none() {
            log::warn!("the log ends here: set server.log, or --log FILE, to keep it");
        }
        self.options.announce.flush();
        self.options.log.flush();
        daemon::detach_from_terminal(file.as_ref().map(AsFd::as_fd))
            .map_err(|error| format!("the standard streams: {error}"))
    }

    /// The admin interface answers on edges of its own, so that it is there when the front end is full.
    fn wire_admin(self: &Arc<Self>, token: Option<AdminToken>) {
        let authority = token.map_or(Authority::ReadOnly, Authority::Token);
        let over_tcp = Admin::new(self.status_source(), authority);
        self.wire(&self.admin_edge, Arc::new(over_tcp), true);
        let called = Admin::new(self.status_source(), Authority::AnyConnected);
        self.wire(&self.control_edge, Arc::new(called), true);
        self.wire(&self.refused_edge, Arc::new(RefuseAll), false);
    }

    /// So do probes, which may come from other machines.
    fn wire_probes(self: &Arc<Self>) {
        self.wire(
            &self.probes_edge,
            Arc::new(Probes::new(self.status_source())),
            false,
        );
    }

    /// What the server says of itself.
    fn status_source(self: &Arc<Self>) -> Arc<crate::source::House> {
        Arc::new(crate::source::House::new(Arc::downgrade(self)))
    }

    /// Lets `handler` answer everything on `edge`; `shows_causes` says that whoever asks may see
    /// what is wrong.
    fn wire(&self, edge: &Arc<Edge>, handler: Arc<dyn Handler>, shows_causes: bool) {
        let mut routing = RouteTable::default();
        let route = Route {
            redirects_directories: false,
            max_body: None,
            path: PathPattern::any(),
            is_internal: false,
            filters: None,
            handlers: [handler].into(),
        };
        routing.add_site(&[], Site::new(vec![route], ErrorPages::default()));
        let (limits, mask) = {
            let live = self.live();
            let config = &live.config;
            (own_limits(&config.limits), wiring::log_mask(&config.server))
        };
        let settings = Settings {
            routes: routing,
            log_mask: mask,
            is_development: shows_causes,
            ..of_house(limits)
        };
        edge.replace_settings(settings, &[]);
    }

    pub(crate) fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What keeps this one a server of another front end, once it has begun to.
    pub(crate) fn joiner(&self) -> Option<&Joiner> {
        self.joiner.get()
    }

    /// The process of the server that this one follows.
    pub(crate) fn predecessor(&self) -> Option<u32> {
        self.predecessor
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// What of its control is open to others.
    pub(crate) fn exposures(&self) -> &[String] {
        &self.options.exposures
    }

    pub(crate) fn threads(&self) -> usize {
        self.loops.handles().len()
    }

    /// What applications may take.
    pub(crate) fn bounds(&self) -> &AppBounds {
        &self.options.bounds
    }

    pub(crate) fn log_lines_dropped(&self) -> u64 {
        let access = self
            .edge
            .settings()
            .access_log
            .as_ref()
            .map_or(0, |log| log.writer.dropped_lines());
        self.options.log.dropped_lines() + access
    }

    /// What servers that are one hub tell one another of themselves, besides the hub's own numbers.
    fn numbers(&self) -> Vec<(String, u64)> {
        let totals = self.edge.total_metrics();
        let resident = penstock_sys::file::process_rss_bytes(std::process::id());
        let numbers = [
            ("connections", self.edge.open_connections() as u64),
            ("accepted", totals.accepted_connections.value()),
            ("requests", totals.responses_total()),
            ("resident_bytes", resident.unwrap_or_default()),
        ];
        numbers.map(|(name, value)| (name.to_owned(), value)).into()
    }

    /// Begins the shutdown.
    pub(crate) fn stop(&self) {
        self.stop.notify_one();
    }
}
