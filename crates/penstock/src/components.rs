//! Starts the upstreams, applications and caches of a configuration, or keeps them from the
//! previous one.
//!
//! Used by `server` at start and at reload. A component with unchanged configuration keeps its
//! workers, its connections and its queue. A changed one is started beside the old one, which ends
//! after its last request.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_apps::{App, AppResources as AppSetup, AppSize, QueueUsage, ScheduledJob, ServerSet};
use penstock_compress::Compressor;
use penstock_config as config;
use penstock_config::Config;
use penstock_exchange::buffering::TempSpace;
use penstock_exchange::metrics::{RouteCountTable, RuleCountTable};
use penstock_exchange::{Handler, HandlerProgress, InlineResponse, Request, RequestView};
use penstock_proxy::{Upstream, UpstreamSetup, UpstreamTls};
use penstock_rules::{
    KeyCounts, Maintenance, NamedTables, PauseGates, RateTables, VerifiedPasswords,
};
use penstock_runtime::LoopHandle;
use penstock_runtime::blocking::Pool;

use crate::caches::{self, Caches, PoolLimits};
use crate::publishing::PublishSetup;
use crate::server::Options;
use crate::trace_export::TraceExport;
use crate::upstream_tls::UpstreamTlsSet;
use crate::wiring;

pub(crate) type Apps = BTreeMap<String, Arc<App>>;

pub(crate) type AppSizes = BTreeMap<String, AppSize>;

/// Running upstreams by name; an application's upstream has the application's name.
pub(crate) type Upstreams = BTreeMap<String, Arc<Upstream>>;

pub(crate) type ThreadPools = BTreeMap<String, Pool>;

/// All components behind the routes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Components {
    pub(crate) apps: Apps,
    pub(crate) upstreams: Upstreams,
    /// Programs that run at times; those that run all the time are among `apps`.
    pub(crate) jobs: BTreeMap<String, Arc<ScheduledJob>>,
    pub(crate) caches: Caches,
    pub(crate) pools: ThreadPools,
    /// The limits that the pools were started with.
    pub(crate) pool_limits: PoolLimits,
    /// The space of temporary files; one for the life of the server.
    pub(crate) temp_space: Arc<TempSpace>,
    /// What `rate_limit` and `basic_auth` have counted; for the life of the server.
    pub(crate) rates: Arc<RateTables>,
    /// The requests and responses in progress that `max_concurrent` and `response_rate` count; for
    /// the life of the server.
    pub(crate) in_progress: Arc<NamedTables<KeyCounts>>,
    /// The gates in front of back ends, for the life of the server.
    pub(crate) pauses: Arc<PauseGates>,
    /// Which sites are in maintenance; for the life of the server.
    pub(crate) maintenance: Arc<Maintenance>,
    /// What the rules of routes have counted; for the life of the server.
    pub(crate) rule_counts: Arc<RuleCountTable>,
    /// What becomes of the requests of each route, where that is counted.
    pub(crate) route_counts: Arc<RouteCountTable>,
    /// Sends the spans of requests to a collector; for the life of the server.
    pub(crate) trace_export: Arc<TraceExport>,
    /// For the life of the server, too.
    pub(crate) passwords: PasswordVerification,
    /// The encoders of `compress`; for the life of the server.
    pub(crate) compressor: Compressor,
}

/// What verifies passwords.
#[derive(Debug, Clone)]
pub(crate) struct PasswordVerification {
    /// Its threads are few and its queue is short: a flood of wrong passwords takes neither the
    /// memory of many hashes nor the threads that read files.
    pub(crate) pool: Pool,
    pub(crate) verified: Arc<VerifiedPasswords>,
}

/// Passwords that may wait for a thread; at 50 ms each the last one waits 6 s.
const MAX_WAITING_PASSWORDS: usize = 256;

impl Default for PasswordVerification {
    fn default() -> Self {
        Self {
            pool: Pool::new("passwords", 2, MAX_WAITING_PASSWORDS),
            verified: Arc::default(),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct StartedComponents {
    pub(crate) components: Components,
    /// Applications that did not run before.
    pub(crate) new_apps: Vec<Arc<App>>,
}

/// The context in which applications are started.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AppStartContext<'a> {
    pub(crate) loops: &'a [LoopHandle],
    pub(crate) options: &'a Options,
    /// Whether they boot at low priority, while other applications serve.
    pub(crate) low_priority: bool,
    pub(crate) publishing: &'a PublishSetup,
    /// The sizes of the predecessor's applications under load.
    pub(crate) sizes: &'a AppSizes,
    /// TLS of upstreams, as its files say now.
    pub(crate) upstream_tls: &'a UpstreamTlsSet,
}

/// Starts components that are new or configured differently from `old`, on the current loop, and
/// keeps the rest.
///
/// # Errors
/// A directory that cannot be opened; components in `started` must then be ended.
pub(crate) fn start_components(
    config: &Config,
    old: &Components,
    pools: ThreadPools,
    context: AppStartContext<'_>,
    started: &mut StartedComponents,
) -> Result<(), String> {
    let pool = default_pool(&pools);
    let space = &old.temp_space;
    started.components.temp_space = Arc::clone(space);
    started.components.rates = Arc::clone(&old.rates);
    started.components.in_progress = Arc::clone(&old.in_progress);
    started.components.pauses = Arc::clone(&old.pauses);
    started.components.maintenance = Arc::clone(&old.maintenance);
    started.components.rule_counts = Arc::clone(&old.rule_counts);
    started.components.route_counts = Arc::clone(&old.route_counts);
    started.components.trace_export = Arc::clone(&old.trace_export);
    started.components.passwords = old.passwords.clone();
    started.components.compressor = old.compressor.clone();
    let store = wiring::buffering_settings(&config.limits, pool, space);
    let running = (&old.caches, &old.pool_limits);
    started.components.caches =
        caches::start_caches(config, running, |name| pool_named(&pools, name));
    started.components.pools = pools;
    started.components.pool_limits = config.blocking.clone();
    for (name, wanted) in &config.upstreams {
        let kept = old.upstreams.get(name);
        let upstream = match kept.filter(|running| running.config() == wanted) {
            Some(running) => Arc::clone(running),
            None => {
                let tls = context.upstream_tls.get(name).cloned();
                start_upstream(wanted, tls, &store, context.loops)
            }
        };
        started.components.upstreams.insert(name.clone(), upstream);
    }
    let setup = AppSetup {
        loops: context.loops.to_vec(),
        launcher: Some(Arc::clone(&context.options.launcher)),
        account: None,
        cgroup: None,
        buffering_settings: store.clone(),
        yields_cpu_at_boot: context.low_priority,
        is_development: context.options.development,
        initial_size: None,
        owner: None,
    };
    // Applications first: their jobs wait for them.
    let (jobs, apps): (Vec<_>, Vec<_>) =
        (config.apps.iter()).partition(|(_, app)| app.kind == config::AppKind::Job);
    for (name, wanted) in apps.into_iter().chain(jobs) {
        let wanted = &*context.publishing.with_publish_urls(config, wanted);
        let kept = old.apps.get(name);
        let app = match kept.filter(|running| running.config() == wanted) {
            Some(running) => {
                if let Some(upstream) = old.upstreams.get(name) {
                    let upstream = Arc::clone(upstream);
                    started.components.upstreams.insert(name.clone(), upstream);
                }
                Arc::clone(running)
            }
            None => {
                // A replacement for the same load begins with the same size.
                let before = old.apps.get(name).map(|app| app.current_size());
                let account = context.options.accounts.account_of(wanted)?;
                let owner = wanted.owner.as_ref();
                let owner = owner.and_then(|owner| started.components.apps.get(owner));
                let setup = AppSetup {
                    owner: owner.map(|owner| owner.boot_status()),
                    initial_size: before.or_else(|| context.sizes.get(name).copied()),
                    cgroup: context.options.app_limits.cgroup_of(wanted, account)?,
                    account: account.cloned(),
                    ..setup.clone()
                };
                let app = start_app(wanted, &setup, context.loops, started);
                app.set_websocket_message_limits(wiring::websocket_message_limits(&config.limits));
                app
            }
        };
        started.components.apps.insert(name.clone(), app);
    }
    for (name, wanted) in &config.jobs {
        let kept = old.jobs.get(name);
        let job = match kept.filter(|running| running.config() == wanted) {
            Some(running) => Arc::clone(running),
            None => {
                let account = context.options.accounts.account_of(&wanted.program)?;
                let setup = AppSetup {
                    cgroup: (context.options.app_limits).cgroup_of(&wanted.program, account)?,
                    account: account.cloned(),
                    ..setup.clone()
                };
                let replaced = old.jobs.get(name).map(|job| &**job);
                ScheduledJob::start(wanted.clone(), &setup, replaced)
            }
        };
        started.components.jobs.insert(name.clone(), job);
    }
    Ok(())
}

fn start_app(
    wanted: &config::App,
    setup: &AppSetup,
    loops: &[LoopHandle],
    started: &mut StartedComponents,
) -> Arc<App> {
    let app = match &wanted.upstream {
        None => App::start(wanted.clone(), setup),
        Some(behind) => {
            let upstream = start_upstream(behind, None, &setup.buffering_settings, loops);
            let servers = Arc::new(AppServers(Arc::clone(&upstream)));
            (started.components.upstreams).insert(wanted.name.clone(), upstream);
            App::start_with_server_set(wanted.clone(), setup, servers)
        }
    };
    started.new_apps.push(Arc::clone(&app));
    app
}

fn start_upstream(
    wanted: &config::Upstream,
    tls: Option<UpstreamTls>,
    store: &penstock_exchange::buffering::BufferingSettings,
    loops: &[LoopHandle],
) -> Arc<Upstream> {
    let setup = UpstreamSetup {
        loop_count: loops.len(),
        buffering_settings: store.clone(),
        tls,
    };
    Upstream::start(wanted.clone(), setup)
}

/// The pool `default`.
pub(crate) fn default_pool(pools: &ThreadPools) -> Pool {
    let found = pools.get("default").cloned();
    // The configuration always has it.
    found.unwrap_or_else(|| Pool::new("default", 1, 1024))
}

/// The pool of this name, which a checked configuration always has.
pub(crate) fn pool_named(pools: &ThreadPools, name: &str) -> Pool {
    let found = pools.get(name).cloned();
    found.unwrap_or_else(|| default_pool(pools))
}

/// An application's processes as the servers of its upstream.
#[derive(Debug)]
struct AppServers(Arc<Upstream>);

impl ServerSet for AppServers {
    fn add(&self, server: config::UpstreamServer, generation: u64) {
        self.0.add_server(server, generation);
    }

    fn remove(&self, address: &config::ServerAddr) {
        self.0.remove_server(address);
    }

    fn in_progress(&self, address: &config::ServerAddr) -> usize {
        self.0.active_requests(address)
    }

    fn consecutive_timeouts(&self, address: &config::ServerAddr) -> usize {
        self.0.consecutive_timeouts(address)
    }

    fn queue_usage(&self) -> QueueUsage {
        let now = self.0.snapshot();
        let number = |count: u32| usize::try_from(count).unwrap_or(usize::MAX);
        let up = now.servers.iter().filter(|server| server.state == "up");
        QueueUsage {
            waiting: now.queue.length,
            slots: up.filter_map(|s| s.max_active).map(number).sum(),
            in_progress: now.servers.iter().map(|s| number(s.active)).sum(),
            oldest_wait: now.queue.oldest_wait,
        }
    }
}

/// The handler of an application that runs servers: requests go to its upstream, and the processes
/// live while a route holds this.
#[derive(Debug)]
pub(crate) struct ServerAppHandler {
    /// Kept alive by this, and asked whether its code runs at all.
    app: Arc<App>,
    upstream: Arc<dyn Handler>,
}

impl ServerAppHandler {
    pub(crate) fn new(app: &Arc<App>, upstream: Arc<dyn Handler>) -> Self {
        Self {
            app: Arc::clone(app),
            upstream,
        }
    }
}

impl Handler for ServerAppHandler {
    fn handle(&self, request: Request) -> HandlerProgress {
        match self.app.refusal_fault() {
            Some(fault) => HandlerProgress::Ready(Err(fault)),
            None => self.upstream.handle(request),
        }
    }

    fn try_inline(&self, request: &RequestView<'_>, take: &mut dyn FnMut(InlineResponse<'_>)) {
        self.upstream.try_inline(request, take);
    }
}
