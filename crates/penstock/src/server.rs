//! The life cycle of a server: start, reload, upgrade, shutdown.
//!
//! The control loop, on the main thread, runs everything that belongs to no event loop: supervisors
//! (their workers die with this thread), the admin interface, signals. A start opens the sockets,
//! switches the user, starts threads and applications, then accepts; the rest is in `announce`,
//! `reload`, `upgrade` and `shutdown`.
//!
//! # Invariants
//!
//! - A start fails before anything is served.
//! - A reload changes nothing unless all of it works.
//! - A shutdown loses no accepted request before its deadline.

mod announce;
mod bound_listeners;
mod platform_check;
mod reload;
mod reopen;
mod shutdown;
mod signals;
mod site_links;
mod upgrade;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use penstock_apps::App;
use penstock_cache::CachedRoute;
use penstock_config::{Config, Invocation, Limits, LogTarget, PathPattern};
use penstock_edge::{
    DescriptorBudget, Edge, EdgeAdopter, Route, RouteBodyLimits, RouteTable, Settings, Site,
};
use penstock_exchange::Handler;
use penstock_hub::HubTransfer;
use penstock_proxy::{JoinListener, Joiner};
use penstock_runtime::logger::{LogMask, LogWriter};
use penstock_runtime::{EventLoops, clock, loops, start_tokio};
use penstock_status::{
    AdminHandler, AdminToken, ChangeAuthorization, ForbiddenHandler, History, ProbeHandler,
};
use penstock_sys::process::Launcher;
use penstock_sys::process::successor::SignalTarget;
use penstock_sys::{account, daemon, process};
use penstock_tls::ServerSessions;
use rustls::pki_types::UnixTime;
use tokio::sync::{Notify, watch};

pub(crate) use self::announce::ReadyFd;
use self::bound_listeners::BoundListeners;
use self::signals::Signals;
pub(crate) use self::upgrade::successor_command;
use crate::accounts::{AppAccounts, ServerAccount};
use crate::admin_backend::{self, AdminBackend};
use crate::admin_token;
use crate::app_resource_limits::AppResourceLimits;
use crate::components::{
    self, AppSizes, AppStartContext, Components, StartedComponents, default_pool,
};
use crate::control;
use crate::dev;
use crate::django_files::DjangoFiles;
use crate::hardening;
use crate::hub_service::HubService;
use crate::inherited_listeners::{InheritedListeners, ListenerRole};
use crate::listeners::{self, Listener};
use crate::logs;
use crate::pid_file::PidFile;
use crate::publishing::PublishSetup;
use crate::refused_syscalls;
use crate::service_manager::ServiceNotifier;
use crate::shared_rates;
use crate::tls_service::{AcmeEnvironment, TlsService};
use crate::upgrade_protocol::Predecessor;
use crate::upstream_tls::{self, UpstreamTlsSet};
use crate::watchdog::Watchdog;
use crate::wiring::{self, BuiltSettings, TlsParts};
use crate::work;

/// The error of a reload or upgrade during shutdown.
const STOPPING_ERROR: &str = "the server is stopping";

const MAX_JOIN_HANDSHAKES: usize = 1024;

/// How long an upgrade waits for the new server to join the front end.
const JOIN_TIMEOUT: Duration = Duration::from_secs(3);

/// How long a new server waits for the Redis that it shares with others.
const CLUSTER_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Options {
    /// Whether error pages show causes.
    pub(crate) development: bool,
    /// The descriptor that reports readiness.
    pub(crate) ready_fd: Mutex<Option<ReadyFd>>,
    pub(crate) log: LogWriter,
    /// Starts all processes.
    pub(crate) launcher: Arc<Launcher>,
    /// The users that applications run as.
    pub(crate) accounts: Arc<AppAccounts>,
    pub(crate) app_limits: Arc<AppResourceLimits>,
    /// Prints lines for the terminal, which may be closed.
    pub(crate) announce: LogWriter,
    pub(crate) manager: ServiceNotifier,
    /// The files of a Django project, as its settings were at the start.
    pub(crate) django_files: DjangoFiles,
    /// The path by which this program was started.
    pub(crate) program_path: std::path::PathBuf,
    /// The folder that the process was started in.
    pub(crate) start_dir: std::path::PathBuf,
    /// Whether the process goes to the background: its standard streams go to the log.
    pub(crate) daemonize: bool,
    /// The file with the process id; opened before the switch to another user.
    pub(crate) pid_file: Option<Arc<PidFile>>,
    /// Exposed control interfaces, a line each; found at the start, before the switch to another
    /// user.
    pub(crate) exposures: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct StartInput {
    /// Sockets that were passed to this process.
    pub(crate) inherited: InheritedListeners,
    /// The server that this one replaces.
    pub(crate) predecessor: Option<Predecessor>,
    pub(crate) server_account: Option<ServerAccount>,
    /// The parent process that waits until the server is ready.
    pub(crate) daemon_parent: Option<daemon::ReadinessSender>,
}

/// What a start reads and opens before it serves.
#[derive(Debug)]
struct StartResources {
    /// For changes over TCP.
    token: Option<AdminToken>,
    publishing: PublishSetup,
    upstream_tls: UpstreamTlsSet,
    /// The port that requests without TLS are redirected to; `None` if there is none.
    https_port: Option<u16>,
}

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) invocation: Invocation,
    pub(crate) options: Options,
    pub(crate) loops: EventLoops,
    pub(crate) edge: Arc<Edge>,
    admin_edge: Arc<Edge>,
    /// Answers callers of the control socket.
    control_edge: Arc<Edge>,
    /// Answers callers that may not use it.
    refused_edge: Arc<Edge>,
    probes_edge: Arc<Edge>,
    /// The hub; one for the whole life of the process.
    pub(crate) hub_service: HubService,
    /// TLS for clients; one for the whole life of the process.
    pub(crate) tls: Arc<TlsService>,
    /// How applications publish; for the whole life of the process.
    publishing: PublishSetup,
    pub(crate) started: Instant,
    /// The samples of the last hour.
    pub(crate) history: History,
    pub(crate) watchdog: Watchdog,
    /// Wakes the main task to shut down.
    stop_requested: Notify,
    /// What the shutdown had to kill, once all processes have ended.
    stop_report: watch::Sender<Option<Vec<String>>>,
    draining: AtomicBool,
    /// The process of the server that this one replaced.
    pub(crate) predecessor: Option<u32>,
    /// The digest of the token for changes over TCP, for a successor that may not read the file.
    token_digest: Option<[u8; 32]>,
    /// Whether the predecessor was asked to shorten its wait.
    predecessor_hurried: AtomicBool,
    is_serving: AtomicBool,
    /// The process that serves in place of this one; 0 for none.
    successor_pid: AtomicU32,
    successor_channel: OnceLock<SignalTarget>,
    /// The hub on its way to the successor.
    hub_transfer: Mutex<Option<Arc<HubTransfer>>>,
    /// The state that a reload replaces; never held across an await.
    live_state: Mutex<LiveState>,
    /// Accepts other servers that join upstreams here.
    join_front_end: JoinListener,
    /// Makes TLS sessions with them.
    join_sessions: Arc<ServerSessions>,
    /// Counts their connections until the handshake is done.
    join_edge: Arc<Edge>,
    /// Keeps this server joined to a front end, under `penstock work`.
    pub(crate) joiner: OnceLock<Joiner>,
    /// Allows one reload or upgrade at a time.
    reload_lock: tokio::sync::Mutex<()>,
    /// Whether the one in progress is an upgrade.
    is_upgrading: AtomicBool,
}

/// The state that a reload replaces.
#[derive(Debug)]
pub(crate) struct LiveState {
    pub(crate) config: Config,
    pub(crate) components: Components,
    /// Applications that reloads have replaced, while they finish their requests.
    pub(crate) draining_apps: Vec<Weak<App>>,
    pub(crate) cached_routes: Vec<CachedRoute>,
    /// Ordered by role, and of one address by their order in the configuration.
    pub(crate) listeners: Vec<Listener>,
    pub(crate) reloads: u64,
    /// The error of the last reload; `None` after one that worked.
    pub(crate) reload_error: Option<String>,
    /// Why the last reload has not taken over the configuration; `None` once one has.
    pub(crate) config_error: Option<String>,
}

impl LiveState {
    pub(crate) fn listener(&self, role: ListenerRole) -> Option<&Listener> {
        self.listeners.iter().find(|listener| listener.role == role)
    }
}

/// Starts, serves and stops. Blocks until the server has stopped.
pub(crate) fn run(
    invocation: Invocation,
    config: Config,
    mut options: Options,
    beginning: StartInput,
) -> Result<(), String> {
    let say = |error: std::io::Error| error.to_string();
    let StartInput {
        inherited: sockets,
        predecessor,
        server_account,
        daemon_parent: word,
    } = beginning;
    let inherited_digest = predecessor.as_ref().and_then(|old| old.token_digest);
    let token =
        admin_token::load_admin_token(config.server.admin_token.as_deref(), inherited_digest)?;
    let upstream_tls = upstream_tls::load(&config)?;
    // Before the switch to another user, which may be the one to warn about.
    options.exposures = control::exposure_warnings(&config);
    let predecessor = predecessor.map(|mut old| {
        let pid_file = old.pid_file.take();
        (old, pid_file)
    });
    let (predecessor, inherited_pid_file) = predecessor.unzip();
    let (bound_listeners, pid_file) = prepare_process(
        &config,
        &invocation,
        (sockets, predecessor.is_some(), inherited_pid_file.flatten()),
        server_account,
    )?;
    options.pid_file = pid_file.map(Arc::new);
    if config.server.log != LogTarget::Stderr {
        let log = logs::open_log_target(&config.server.log)
            .map_err(|error| format!("server.log: {error}"))?;
        options.log.set_output(log).map_err(say)?;
    }
    platform_check::check_required_syscalls()?;
    platform_check::log_missing_features(&config.limits.temp_dir);
    let not_held = options.app_limits.warnings(&config);
    let of_boundary = hardening::warnings(&config).into_iter().chain(not_held);
    let of_join = work::plaintext_warnings(&config);
    let exposures = options.exposures.iter().cloned().chain(of_join);
    for warning in exposures.chain(of_boundary) {
        log::warn!("{warning}");
    }
    remove_abandoned_folders(&config);
    let tokio = start_tokio().map_err(say)?;
    let _entered = tokio.enter();
    let started = EventLoops::start(config.server.threads).map_err(say)?;
    let served = loops::block_on(async {
        let old = predecessor.as_ref();
        let mut signals = Signals::new(old.map(|old| old.pid)).map_err(say)?;
        let secret = old.and_then(|old| old.publish_secret);
        let publishing = PublishSetup::new(secret, bound_listeners.admin_address().as_ref())?;
        let https_port = listeners::https_port(bound_listeners.listeners.iter());
        let prepared = StartResources {
            token,
            publishing,
            upstream_tls,
            https_port,
        };
        let server = Server::start(invocation, config, options, started, (old, prepared))?;
        signals.handle_control_signals(&server);
        if let Some(reports) = server.options.launcher.take_report_socket() {
            refused_syscalls::log_refused_syscalls(reports, &server);
        }
        let began = tokio::select! {
            began = server.begin_serving(bound_listeners, predecessor, word) => began,
            () = signals.wait_for_stop(&server) => Err("stopped before it was ready".to_owned()),
        };
        if began.is_ok() {
            signals.wait_for_stop(&server).await;
        }
        server.shut_down(&mut signals).await;
        began
    });
    served.map_err(say)?
}

/// Prepares the process before the first serving thread: descriptor limit, sockets, user.
fn prepare_process(
    config: &Config,
    invocation: &Invocation,
    (sockets, follows, pid_file): (InheritedListeners, bool, Option<PidFile>),
    server_account: Option<ServerAccount>,
) -> Result<(BoundListeners, Option<PidFile>), String> {
    raise_open_files(config.server.max_open_files)?;
    process::allow_priority_restore();
    if let Some(mask) = config.server.umask {
        account::set_umask(mask);
    }
    let bound_listeners = BoundListeners::open(config, sockets, follows)?;
    let pid_file = match (&config.server.pid_file, pid_file) {
        (Some(path), Some(inherited)) if inherited.path() == path => Some(inherited),
        (Some(path), _) => Some(PidFile::open(path)?),
        (None, _) => None,
    };
    if let Some(server_account) = server_account {
        server_account.give_certificate_folder(config)?;
        server_account.switch_user_and_check(
            config,
            &invocation.cwd,
            bound_listeners.created_socket_paths(),
        )?;
        hardening::deny_inspection()?;
    }
    if let Some(folder) = &config.server.dir {
        std::env::set_current_dir(folder)
            .map_err(|error| format!("server.dir: {}: {error}", folder.display()))?;
    }
    Ok((bound_listeners, pid_file))
}

fn remove_abandoned_folders(config: &Config) {
    let folder = &config.limits.temp_dir;
    match penstock_apps::remove_abandoned_socket_dirs(folder) {
        Ok(0) => {}
        Ok(count) => log::info!(
            "server: removed {count} directories of killed servers in {}",
            folder.display()
        ),
        Err(error) => log::debug!("{}: {error}", folder.display()),
    }
}

/// Raises the limit of open files: each connection and each sent file needs a descriptor, and the
/// usual soft limit of 1,024 is meant for programs that use `select`.
fn raise_open_files(wanted: Option<u64>) -> Result<(), String> {
    if let Some(wanted) = wanted {
        return account::set_max_open_files(wanted)
            .map_err(|error| format!("server.max_open_files = {wanted}: {error}"));
    }
    match process::raise_open_files_limit() {
        Ok((before, after)) if before < after => {
            log::info!("server: open file limit raised from {before} to {after}");
        }
        Ok(_) => {}
        Err(error) => log::warn!("server: cannot raise the open file limit: {error}"),
    }
    Ok(())
}

/// Maximum connections to the admin interface and to the probes' listener. They use some of the
/// descriptors that clients' connections leave; idle ones are closed for new ones.
const MAX_INTERNAL_CONNECTIONS: usize = 64;

/// The limits of the admin interface and of probes.
fn internal_limits(limits: &Limits) -> Limits {
    Limits {
        max_connections: MAX_INTERNAL_CONNECTIONS,
        // Administrators and probes come from few addresses.
        max_connections_per_client: Some(0),
        ..limits.clone()
    }
}

/// Makes an edge that is not for clients; `handler` answers all requests. `shows_causes`: callers
/// may see the causes of errors.
fn internal_edge(config: &Config, handler: Arc<dyn Handler>, shows_causes: bool) -> Arc<Edge> {
    let route = Route {
        redirects_directories: false,
        body_limits: RouteBodyLimits::default(),
        policy: None,
        observation: None,
        path: PathPattern::any(),
        conditions: None,
        is_internal: false,
        filters: None,
        handlers: [handler].into(),
    };
    let mut routes = RouteTable::default();
    routes.add_site(&[], Site::new(vec![route], Arc::default()));
    let settings = Settings {
        limits: internal_limits(&config.limits),
        routes,
        access_logs: Vec::new(),
        tracing: None,
        request_id: penstock_config::RequestIdMode::Off,
        log_mask: wiring::log_mask(&config.server),
        trusted_proxies: Arc::default(),
        is_development: shows_causes,
        stream_refusal: None,
        tls: None,
        http_challenges: None,
        shared_challenges: None,
    };
    Arc::new(Edge::new(settings, 1))
}

/// Continues the pauses and the maintenance of the previous server.
fn restore_traffic(components: &Components, old: &Predecessor) {
    for (name, remaining) in &old.pauses {
        components.pauses.pause(name.clone(), *remaining);
    }
    for rule in &old.maintenance {
        if let Err(error) = components.maintenance.switch_on(rule.clone()) {
            log::error!("upgrade: maintenance is not continued: {error}");
        }
    }
}

impl Server {
    fn start(
        invocation: Invocation,
        config: Config,
        options: Options,
        loops: EventLoops,
        (predecessor, resources): (Option<&Predecessor>, StartResources),
    ) -> Result<Arc<Self>, String> {
        let StartResources {
            token,
            publishing,
            upstream_tls,
            https_port,
        } = resources;
        let count = loops.handles().len();
        let pools = wiring::build_pools(&config, None);
        let mut started = StartedComponents::default();
        let (none, alone) = (Components::default(), AppSizes::new());
        let context = AppStartContext {
            loops: loops.handles(),
            options: &options,
            low_priority: predecessor.is_some(),
            publishing: &publishing,
            sizes: predecessor.map_or(&alone, |old| &old.app_sizes),
            upstream_tls: &upstream_tls,
        };
        components::start_components(&config, &none, pools, context, &mut started)?;
        let components = started.components;
        if let Some(old) = predecessor {
            restore_traffic(&components, old);
        }
        let temp_max = config.limits.max_temp_size.unwrap_or(u64::MAX);
        components.temp_space.set_max(temp_max);
        let hub_service = HubService::start(&config, Arc::clone(&publishing.keys), loops.handles());
        let hub_service = hub_service.map_err(|error| format!("the hub: {error}"))?;
        let tls = TlsService::new();
        if let Some(keys) = predecessor.and_then(|old| old.ticket_keys.as_ref())
            && let Err(error) = tls.tickets().import(&keys.0)
        {
            log::warn!("upgrade: TLS sessions are not resumed: {error}");
        }
        let prepared = tls.prepare(&config)?;
        let BuiltSettings {
            settings,
            cached_routes,
            tls: prepared,
        } = wiring::build_settings(
            &config,
            &components,
            &hub_service,
            TlsParts {
                prepared,
                challenges: tls.challenges(&config),
                https_port,
            },
            &[],
            count,
            options.development,
        )?;
        tls.apply(prepared);
        let join_sessions = penstock_tls::bound_sessions(UnixTime::now())
            .map_err(|error| format!("server.join: {error}"))?;
        let join_settings = Settings {
            limits: Limits {
                max_connections: MAX_JOIN_HANDSHAKES,
                ..config.limits.clone()
            },
            routes: RouteTable::default(),
            access_logs: Vec::new(),
            tracing: None,
            request_id: penstock_config::RequestIdMode::Off,
            log_mask: LogMask::default(),
            trusted_proxies: Arc::default(),
            is_development: true,
            stream_refusal: None,
            tls: None,
            http_challenges: None,
            shared_challenges: None,
        };
        let descriptors = DescriptorBudget::new(penstock_sys::descriptors::soft_limit());
        let watchdog = Watchdog::start(loops.handles(), options.manager.clone());
        let watchdog = watchdog.map_err(|error| error.to_string())?;
        let token_digest = token.as_ref().map(AdminToken::digest);
        let authority = token.map_or(ChangeAuthorization::ReadOnly, ChangeAuthorization::Token);
        let server = Arc::new_cyclic(|server| {
            let backend = Arc::new(AdminBackend::new(Weak::clone(server)));
            let admin =
                |authority| Arc::new(AdminHandler::new(Arc::clone(&backend) as _, authority));
            let probes = Arc::new(ProbeHandler::new(Arc::clone(&backend) as _));
            Self {
                invocation,
                edge: Arc::new(Edge::new(settings, count).with_descriptor_budget(descriptors)),
                // Edges of their own answer when the front end is full.
                admin_edge: internal_edge(&config, admin(authority), true),
                control_edge: internal_edge(
                    &config,
                    admin(ChangeAuthorization::AnyConnected),
                    true,
                ),
                refused_edge: internal_edge(&config, Arc::new(ForbiddenHandler), false),
                // Probes may come from other machines.
                probes_edge: internal_edge(&config, probes, false),
                hub_service,
                tls,
                publishing,
                history: History::default(),
                watchdog,
                options,
                loops,
                started: clock::now(),
                stop_requested: Notify::new(),
                stop_report: watch::Sender::default(),
                draining: AtomicBool::new(false),
                predecessor: predecessor.map(|old| old.pid),
                token_digest,
                predecessor_hurried: AtomicBool::new(false),
                is_serving: AtomicBool::new(false),
                successor_pid: AtomicU32::new(0),
                successor_channel: OnceLock::new(),
                hub_transfer: Mutex::default(),
                live_state: Mutex::new(LiveState {
                    config,
                    components,
                    draining_apps: Vec::new(),
                    cached_routes,
                    listeners: Vec::new(),
                    reloads: 0,
                    reload_error: None,
                    config_error: None,
                }),
                join_front_end: JoinListener::default(),
                join_sessions,
                join_edge: Arc::new(Edge::new(join_settings, count)),
                joiner: OnceLock::new(),
                reload_lock: tokio::sync::Mutex::new(()),
                is_upgrading: AtomicBool::new(false),
            }
        });
        let connections = server.edge.max_connections();
        server
            .hub_service
            .apply_config(&server.live_state().config, connections);
        let has_top_lists = server.live_state().config.server.top_lists;
        server.edge.set_top_lists(has_top_lists);
        log::info!(
            "server: at most {connections} client connections: {}",
            server.edge.connection_limit_reason()
        );
        if predecessor.is_none() {
            server.load_history();
        }
        let counted = Arc::downgrade(&server);
        let numbers = move || counted.upgrade().map(|server| server.cluster_counters());
        let numbers = Box::new(move || numbers().unwrap_or_default());
        server
            .hub_service
            .join_cluster(&server.live_state().config, numbers)?;
        {
            let state = server.live_state();
            shared_rates::start(&state.config, state.components.rates.shared())?;
        }
        Ok(server)
    }

    /// Begins to accept: at once, or when the previous server stops to. Reports readiness to the
    /// parent process of a daemon.
    ///
    /// # Errors
    /// Why it does not become ready, if another process waits for that.
    async fn begin_serving(
        self: &Arc<Self>,
        bound_listeners: BoundListeners,
        predecessor: Option<Predecessor>,
        word: Option<daemon::ReadinessSender>,
    ) -> Result<(), String> {
        self.configure_acme().await;
        if let Some(mut old) = predecessor {
            self.hub_service.key_sets().fetch_new_sets().await;
            self.wait_for_apps().await?;
            self.wait_for_cluster().await;
            self.receive_hub(old.hub.take());
            self.join_before_predecessor_leaves().await;
            let serving = old.report_ready(&bound_listeners.taken_addresses).await?;
            self.serve_listeners(bound_listeners);
            let admin = self
                .live_state()
                .listener(ListenerRole::Admin)
                .map(Listener::address);
            if let Err(error) = serving.report_serving(admin).await {
                log::warn!("upgrade: cannot notify the previous server: {error}");
            }
        } else {
            self.serve_listeners(bound_listeners);
            // This server may be in front of the issuer of tokens, so nothing waits for the keys.
            let hub_service = self.hub_service.clone();
            loops::spawn_here(async move { hub_service.key_sets().fetch_new_sets().await });
        }
        let files = default_pool(&self.live_state().components.pools);
        loops::spawn_here(Arc::clone(&self.tls).watch_files(files));
        dev::start(self, self.options.development);
        loops::spawn_here(admin_backend::sample_history(Arc::downgrade(self)));
        let Some(word) = word else {
            let announcing = Arc::clone(self);
            loops::spawn_here(async move { announcing.announce_ready().await });
            return Ok(());
        };
        self.wait_for_apps().await?;
        self.announce_ready().await;
        let pool = default_pool(&self.live_state().components.pools);
        let leaving = Arc::clone(self);
        let left = pool.run(move || leaving.leave_terminal()).await;
        left.map_err(|error| error.to_string()).flatten()?;
        word.report_ready();
        Ok(())
    }

    /// Gets certificates for the sites of the active configuration, from the storage or an authority.
    async fn configure_acme(&self) {
        let (config, pool) = {
            let live = self.live_state();
            (live.config.clone(), default_pool(&live.components.pools))
        };
        let Some(event_loop) = self.loops.handles().first() else {
            return;
        };
        let environment = AcmeEnvironment {
            launcher: Arc::clone(&self.options.launcher),
            pool,
            event_loop: event_loop.clone(),
        };
        if let Err(error) = self.tls.configure_acme(&config, &environment).await {
            log::error!("tls: no certificates by ACME: {error}");
        }
    }

    /// Goes on with the histories of the last run, where they are kept. Blocks.
    fn load_history(&self) {
        let file = {
            let config = &self.live_state().config;
            let file = config.hub.history_file.clone();
            file.filter(|_| config.server.redis.is_none())
        };
        let Some(file) = file else {
            return;
        };
        let name = file.display();
        match self.hub_service.hub.load_history(&file) {
            Ok(Some(channels)) => log::info!("hub: goes on with {channels} channels of {name}"),
            Ok(None) => {}
            Err(error) => log::error!("hub: histories are not read from {name}: {error}"),
        }
    }

    /// Takes over the previous server's hub while that lives.
    fn receive_hub(&self, socket: Option<OwnedFd>) {
        // Older versions have none.
        let Some(socket) = socket else {
            return;
        };
        let adopter = Arc::new(EdgeAdopter(Arc::clone(&self.edge)));
        match self.hub_service.hub.receive_transfer(socket, adopter) {
            Ok(receiver) => loops::spawn_here(async move {
                if let Err(error) = receiver.run().await {
                    log::warn!(
                        "upgrade: the hub of the previous server is not taken over: {error}"
                    );
                }
            }),
            Err(error) => log::warn!("upgrade: the hub's socket: {error}"),
        }
    }

    /// Waits for the connection to the cluster, if there is one: from the first message on this
    /// server then has the order of all.
    async fn wait_for_cluster(&self) {
        if let Some(bus) = self.hub_service.bus()
            && !bus.wait_until_joined(CLUSTER_TIMEOUT).await
        {
            log::warn!("upgrade: Redis at {} does not answer yet", bus.address());
        }
    }

    async fn wait_for_apps(&self) -> Result<(), String> {
        let apps: Vec<_> = self
            .live_state()
            .components
            .apps
            .values()
            .cloned()
            .collect();
        reload::wait_for_apps(&apps).await
    }

    fn serve_listeners(self: &Arc<Self>, bound_listeners: BoundListeners) {
        self.is_serving.store(true, Ordering::Relaxed);
        let mut live = self.live_state();
        let upstreams = live.components.upstreams.clone();
        let join = live.config.server.join.as_ref();
        self.join_front_end.configure(join, upstreams.values());
        live.listeners = bound_listeners.listeners;
        let LiveState {
            config, listeners, ..
        } = &mut *live;
        for listener in listeners {
            self.serve_listener(listener, config, &upstreams);
        }
        if live.config.join_target.is_some() && self.joiner.get().is_none() {
            loops::spawn_here(Arc::clone(self).start_joiner());
        }
    }

    /// Joins the configured front end, if any, once the application serves.
    async fn start_joiner(self: Arc<Self>) {
        let apps: Vec<_> = self
            .live_state()
            .components
            .apps
            .values()
            .cloned()
            .collect();
        for app in apps {
            app.wait_until_up().await;
        }
        let setup = {
            let live = self.live_state();
            let pool = default_pool(&live.components.pools);
            work::joiner_setup(
                &live.config,
                &live.components.apps,
                &self.edge,
                self.loops.handles(),
                pool,
            )
        };
        if let Some(setup) = setup.filter(|_| !self.is_draining()) {
            match Joiner::start(setup) {
                // Called once.
                Ok(joiner) => drop(self.joiner.set(joiner)),
                Err(error) => log::error!("join: the front end is not joined: {error}"),
            }
        }
    }

    /// Joins the front end before the predecessor leaves it, or gives up after [`JOIN_TIMEOUT`].
    async fn join_before_predecessor_leaves(self: &Arc<Self>) {
        Arc::clone(self).start_joiner().await;
        let Some(joiner) = self.joiner.get() else {
            return;
        };
        if clock::timeout(JOIN_TIMEOUT, joiner.wait_until_joined())
            .await
            .is_none()
        {
            log::warn!(
                "upgrade: not joined to the front end yet, the previous server leaves it now"
            );
        }
    }

    /// Redirects the standard streams to the log file or to nothing. Blocks until all announcements
    /// are written.
    fn leave_terminal(&self) -> Result<(), String> {
        let log = self.live_state().config.server.log.clone();
        let file = match &log {
            LogTarget::File(path) => Some(logs::open_log_file(path)?),
            _ => None,
        };
        if file.is_none() {
            log::warn!("server: log output ends here. Set server.log or --log FILE to keep a log");
        }
        self.options.announce.flush();
        self.options.log.flush();
        daemon::detach_from_terminal(file.as_ref().map(AsFd::as_fd))
            .map_err(|error| format!("the standard streams: {error}"))
    }

    pub(crate) fn live_state(&self) -> MutexGuard<'_, LiveState> {
        self.live_state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    pub(crate) fn log_lines_dropped(&self) -> u64 {
        let settings = self.edge.settings();
        let access = settings.access_logs.iter();
        let access: u64 = access.map(|log| log.writer.dropped_lines()).sum();
        self.options.log.dropped_lines() + access
    }

    /// The counters that servers of one hub exchange, besides the hub's own.
    fn cluster_counters(&self) -> Vec<(String, u64)> {
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
        self.stop_requested.notify_one();
    }
}
