//! Builds the handlers of every route: the one place where components meet.
//!
//! Builds, from a checked configuration and running applications, the settings that `edge` swaps
//! in. Nothing is changed here: a failure leaves the server as it was.

use std::sync::Arc;

use penstock_apps::{App, WebSocketMessageLimits};
use penstock_cache::CachedRoute;
use penstock_config::{
    AccessLog as AccessLogConfig, AppKind, Config, Hsts, Limits, PathPattern, Protocol, Sendfile,
    SiteTls, TryPattern,
};
use penstock_edge::{AccessLog, ErrorPages, Filters, Route, RouteTable, Settings, Site, load_page};
use penstock_exchange::buffering::{BufferingSettings, TempSpace};
use penstock_exchange::{
    AddressSet, Handler, HandlerProgress, InlineResponse, Reply, Request, RequestView,
    TrustedProxies, parse_network,
};
use penstock_files::{FilesHandler, FilesSetup};
use penstock_grip::WebSocketSupport;
use penstock_proxy::{BufferingMode, Upstream, is_script_path};
use penstock_rules::{
    ConditionSet, CorsHandler, RateLimitHandler, RedirectHandler, RequestConditions, RespondHandler,
};
use penstock_runtime::blocking::Pool;
use penstock_runtime::logger::{LogMask, LogWriter};

use crate::admission::admission_handlers;
use crate::app_kind_handler::AppKindHandler;
use crate::caches;
use crate::components::{Components, ServerAppHandler, ThreadPools, default_pool};
use crate::dev;
use crate::hub_service::HubService;
use crate::logs;
use crate::sendfile_grant;
use crate::served_dirs::ServedDirs;
use crate::tls_service::{AcmeChallenges, PreparedTls};
use crate::work;

#[derive(Debug)]
pub(crate) struct BuiltSettings {
    /// For the front end.
    pub(crate) settings: Settings,
    /// For the status.
    pub(crate) cached_routes: Vec<CachedRoute>,
    /// For [`crate::tls_service::TlsService::apply`].
    pub(crate) tls: Option<PreparedTls>,
}

/// What TLS contributes to the settings.
#[derive(Debug)]
pub(crate) struct TlsParts {
    /// `None` if TLS ends at no listener.
    pub(crate) prepared: Option<PreparedTls>,
    pub(crate) challenges: AcmeChallenges,
    /// The port that requests without TLS are redirected to; `None` if there is none.
    pub(crate) https_port: Option<u16>,
}

/// Builds the settings of the front end. May block (opens directories and logs).
/// Routes with caches keep the counters that they have in `old_routes`.
pub(crate) fn build_settings(
    config: &Config,
    components: &Components,
    hub_service: &HubService,
    tls: TlsParts,
    old_routes: &[CachedRoute],
    loops: usize,
    development: bool,
) -> Result<BuiltSettings, String> {
    let trusted_proxies = Arc::new(trusted_proxies(config)?);
    let of_hub = hub_service.route_builder(config, Arc::clone(&trusted_proxies))?;
    let own_cookies = sticky_cookies(config);
    let mut folders = ServedDirs::default();
    let mut routing = RouteTable::default();
    let mut cached_routes = Vec::new();
    let named = ConditionSet::compile(&config.conditions)?;
    for site in &config.sites {
        let mut routes = Vec::new();
        let hsts = site.hsts.as_ref().map(hsts_value);
        for route in &site.routes {
            let mut handlers: Vec<Arc<dyn Handler>> = Vec::new();
            handlers.extend(rule_handlers((site, route), components)?);
            handlers.extend(files_handler(route, components, loops, &mut folders)?);
            handlers.extend(of_hub.route_handler((site, route))?);
            if let Some(handler) = backend_handler(route, components)? {
                let app = route
                    .app
                    .as_ref()
                    .and_then(|name| components.apps.get(name));
                let sendfile = route_sendfile(config, route);
                let handler = match &sendfile {
                    Some(sendfile) => {
                        sendfile_grant::with_sendfile_grant(handler, sendfile, |folder| {
                            let hide = &config.server.hide;
                            folders.get_or_open(sendfile_grant::sendfile_setup(
                                folder,
                                hide,
                                &components.pools,
                                loops,
                            ))
                        })?
                    }
                    None => handler,
                };
                // Nearest to the back end: a cache must store the response, not the instruction.
                let handler = match (&config.join_target, config.effective_grip(route)) {
                    // Its instructions are for the front end that has the client's connection.
                    (Some(_), _) => work::with_instruction_pass_through(handler),
                    (None, None) => handler,
                    (None, Some(grip)) => {
                        let with_grip = |sockets| {
                            of_hub.with_grip(Arc::clone(&handler), (route, &grip), sockets)
                        };
                        match app.filter(|app| app.config().kind_is_guess) {
                            Some(app) => Arc::new(AppKindHandler {
                                app: Arc::clone(app),
                                native_handler: with_grip(WebSocketSupport::Native)?,
                                websocket_over_http_handler: with_grip(
                                    WebSocketSupport::MayHijack,
                                )?,
                            }),
                            None => with_grip(websocket_support(app))?,
                        }
                    }
                };
                let handler = match app {
                    Some(app) if development => {
                        dev::with_explanations(handler, app, default_pool(&components.pools))
                    }
                    _ => handler,
                };
                let (handler, cached) =
                    caches::with_caches(handler, (site, route), &components.caches, old_routes)?;
                handlers.push(handler);
                cached_routes.extend(cached);
            }
            let rewrites_paths = route.rewrite.response_paths && is_upstream(route, components);
            let own_cookies = rewrites_paths.then(|| Arc::clone(&own_cookies));
            routes.push(Route {
                path: route.path.clone(),
                conditions: match route.conditions.is_empty() {
                    true => None,
                    false => {
                        let compiled = RequestConditions::compile(&route.conditions, &named);
                        Some(Box::new(compiled?))
                    }
                },
                is_internal: route.internal,
                redirects_directories: strips_own_prefix(route),
                max_body_bytes: route.max_body_size,
                hsts: hsts.clone(),
                filters: Filters::compile(route, own_cookies),
                handlers: handlers.into(),
            });
        }
        let error_pages = ErrorPages::load(&site.error_pages);
        let error_pages = error_pages.map_err(|error| format!("error_pages: {error}"))?;
        let mut built = Site::new(routes, error_pages);
        if redirects_to_https(site, config)
            && let Some(port) = tls.https_port
        {
            built = built.with_https_redirect(port);
        }
        if let Some(host) = &site.canonical_host {
            built = built.with_canonical_host(host);
        }
        routing.add_site(&site.hosts, built);
    }
    let access_log = config
        .server
        .access_log
        .as_ref()
        .map(|log| open_access_log(log, log_mask(&config.server)))
        .transpose()?;
    let settings = Settings {
        limits: config.limits.clone(),
        routes: routing,
        access_log,
        log_mask: log_mask(&config.server),
        trusted_proxies,
        is_development: development,
        stream_refusal: Some(Arc::new(hub_service.hub.clone())),
        tls: tls.prepared.as_ref().map(|it| Arc::clone(&it.sessions)),
        http_challenges: Some(tls.challenges.pending),
        shared_challenges: tls.challenges.shared,
    };
    Ok(BuiltSettings {
        settings,
        cached_routes,
        tls: tls.prepared,
    })
}

/// Whether requests without TLS for a site are redirected.
fn redirects_to_https(site: &penstock_config::Site, config: &Config) -> bool {
    let has_https = site.tls != SiteTls::Off && config.server.has_tls_listener();
    has_https && site.redirect_to_https.unwrap_or(true)
}

/// The value of `Strict-Transport-Security` (RFC 6797 §6.1).
fn hsts_value(hsts: &Hsts) -> Arc<str> {
    let mut value = format!("max-age={}", hsts.max_age.as_secs());
    if hsts.include_subdomains {
        value.push_str("; includeSubDomains");
    }
    if hsts.preload {
        value.push_str("; preload");
    }
    value.into()
}

/// An application's own WebSocket support; upstreams have none.
fn websocket_support(app: Option<&Arc<App>>) -> WebSocketSupport {
    match app.map(|app| app.config().kind) {
        Some(AppKind::Wsgi | AppKind::Rack) => WebSocketSupport::MayHijack,
        _ => WebSocketSupport::Native,
    }
}

/// Whether responses of a route may name another body. Under `penstock work` the front end does
/// that, except for files of this machine.
fn route_sendfile(config: &Config, route: &penstock_config::Route) -> Option<Sendfile> {
    match (config.effective_sendfile(route), &config.join_target) {
        (None, Some(_)) => Some(Sendfile {
            is_enabled: true,
            dirs: Vec::new(),
        }),
        (configured, _) => configured.cloned(),
    }
}

/// The proxies whose headers about clients are trusted.
pub(crate) fn trusted_proxies(config: &Config) -> Result<TrustedProxies, String> {
    if config.join_target.is_some() {
        // The only client is the joined front end.
        let all = ["0.0.0.0/0", "::/0"].into_iter().filter_map(parse_network);
        let trust = TrustedProxies::new(all.collect(), true);
        // Only the front end knows the proxies before it: it sends the client's address.
        return Ok(trust.with_client_address_field(Some("X-Real-IP")));
    }
    let client_field = config.server.client_ip_header.as_deref();
    let Some(proxies) = &config.server.trusted_proxies else {
        return Ok(TrustedProxies::default().with_client_address_field(client_field));
    };
    let addresses = AddressSet::parse(proxies);
    let addresses = addresses.map_err(|problem| format!("server.trusted_proxies: {problem}"))?;
    Ok(TrustedProxies::from(addresses).with_client_address_field(client_field))
}

/// The handlers of a route's rules, which come before all others. *Blocking*: reads a file.
fn rule_handlers(
    (site, route): (&penstock_config::Site, &penstock_config::Route),
    components: &Components,
) -> Result<Vec<Arc<dyn Handler>>, String> {
    let mut handlers: Vec<Arc<dyn Handler>> = Vec::new();
    let admission = admission_handlers(route, components)?;
    handlers.extend(admission.first);
    if let Some(rule) = &route.rate_limit {
        // A rule that a reload leaves as it is keeps its counts.
        let name = format!("{} {rule:?}", caches::route_name(site, route));
        let table = components.rates.table(&name);
        handlers.push(Arc::new(RateLimitHandler::new(rule, table)));
    }
    if route.cors.is_some() {
        // Browsers send no password with a preflight.
        handlers.push(Arc::new(CorsHandler));
    }
    handlers.extend(admission.second);
    if let Some(redirect) = &route.redirect {
        handlers.push(Arc::new(RedirectHandler::new(redirect, &route.path)));
    }
    if let Some(respond) = &route.respond {
        let file = respond
            .file
            .as_ref()
            .map(|path| load_page(path).map_err(|error| format!("{}: {error}", path.display())));
        let handler = RespondHandler::new(respond, &route.path, file.transpose()?);
        handlers.push(Arc::new(handler));
    }
    Ok(handlers)
}

/// The handler of a route's files.
fn files_handler(
    route: &penstock_config::Route,
    components: &Components,
    loops: usize,
    folders: &mut ServedDirs,
) -> Result<Option<Arc<dyn Handler>>, String> {
    let Some(files) = &route.files else {
        return Ok(None);
    };
    let pools = &components.pools;
    let pool = pools.get(&files.blocking).or_else(|| pools.get("default"));
    let pool = pool.ok_or_else(|| format!("no pool `{}`", files.blocking))?;
    let is_before_scripts = runs_scripts(route, components);
    let is_script = |pattern: &TryPattern| is_script_path(pattern.to_string().as_bytes());
    let mut served = files.clone();
    let is_ours = |pattern: &TryPattern| !is_before_scripts || !is_script(pattern);
    served.try_.retain(is_ours);
    let setup = FilesSetup {
        files: served,
        pool: pool.clone(),
        loops,
        falls_through: route.app.is_some() || route.upstream.is_some(),
        script_index: script_index_name(route, components).filter(|_| is_before_scripts),
    };
    let opened = folders.get_or_open(setup)?;
    Ok(Some(match is_before_scripts {
        true => Arc::new(NonScriptFiles(opened)),
        false => opened,
    }))
}

fn backend_handler(
    route: &penstock_config::Route,
    components: &Components,
) -> Result<Option<Arc<dyn Handler>>, String> {
    if let Some(name) = &route.app {
        let app = components.apps.get(name);
        let app = app.ok_or_else(|| format!("no application `{name}`"))?;
        let handler = match components.upstreams.get(name) {
            Some(upstream) if app.config().upstream.is_some() => Arc::new(ServerAppHandler::new(
                app,
                upstream_handler(upstream, route),
            )),
            _ => Arc::clone(app) as Arc<dyn Handler>,
        };
        return Ok(Some(handler));
    }
    if let Some(name) = &route.upstream {
        let upstream = components.upstreams.get(name);
        let upstream = upstream.ok_or_else(|| format!("no upstream `{name}`"))?;
        return Ok(Some(upstream_handler(upstream, route)));
    }
    Ok(None)
}

/// The name of the script that a directory may have as its index: that of the upstream's front
/// controller.
fn script_index_name(route: &penstock_config::Route, components: &Components) -> Option<String> {
    let name = route.upstream.as_ref().or(route.app.as_ref())?;
    let index = components.upstreams.get(name)?.config().index.as_deref()?;
    let name = index.rsplit('/').next().unwrap_or(index);
    name.ends_with(".php").then(|| name.to_owned())
}

/// The names of the cookies that keep a client at one server of an upstream.
fn sticky_cookies(config: &Config) -> Arc<[String]> {
    let of_apps = config
        .apps
        .values()
        .filter_map(|app| app.upstream.as_deref());
    let upstreams = config.upstreams.values().chain(of_apps);
    upstreams.filter_map(|it| it.sticky.clone()).collect()
}

/// Whether a route's requests go to servers that may not know its path.
fn is_upstream(route: &penstock_config::Route, components: &Components) -> bool {
    let app = route
        .app
        .as_ref()
        .and_then(|name| components.apps.get(name));
    route.upstream.is_some() || app.is_some_and(|app| app.config().upstream.is_some())
}

/// Whether a route strips the directory that it serves: `/shop` of `/shop/*`.
fn strips_own_prefix(route: &penstock_config::Route) -> bool {
    let PathPattern::Prefix(prefix) = &route.path else {
        return false;
    };
    let strip = route.rewrite.strip_prefix.as_deref();
    strip.is_some() && prefix.strip_suffix('/') == strip
}

/// Whether the route's application or upstream runs scripts of a directory, chosen by the path.
fn runs_scripts(route: &penstock_config::Route, components: &Components) -> bool {
    let name = route.upstream.as_ref().or(route.app.as_ref());
    let behind = name.and_then(|name| components.upstreams.get(name));
    behind.is_some_and(|upstream| {
        let config = upstream.config();
        // A servlet container checks the path itself.
        config.root.is_some() && config.protocol != Protocol::Ajp
    })
}

/// Files in front of an upstream that runs scripts: scripts are never sent as text, whether or not
/// they are in the files' directory.
#[derive(Debug)]
struct NonScriptFiles(Arc<FilesHandler>);

impl Handler for NonScriptFiles {
    fn handle(&self, request: Request) -> HandlerProgress {
        match is_script_path(request.path()) {
            true => HandlerProgress::Ready(Ok(Reply::Pass(Box::new(request)))),
            false => self.0.handle(request),
        }
    }

    fn try_inline(&self, request: &RequestView<'_>, take: &mut dyn FnMut(InlineResponse<'_>)) {
        if !is_script_path(request.path) {
            self.0.try_inline(request, take);
        }
    }
}

/// An upstream's handler with the route's buffering.
pub(crate) fn upstream_handler(
    upstream: &Upstream,
    route: &penstock_config::Route,
) -> Arc<dyn Handler> {
    let config = upstream.config();
    upstream.handler(BufferingMode {
        request: route.request_buffering.unwrap_or(config.request_buffering),
        response: route
            .response_buffering
            .unwrap_or(config.response_buffering),
    })
}

fn open_access_log(log: &AccessLogConfig, mask: LogMask) -> Result<AccessLog, String> {
    let target = logs::open_log_target(&log.path).map_err(|error| format!("access log {error}"))?;
    let writer = LogWriter::start("access-log", target).map_err(|error| error.to_string())?;
    Ok(AccessLog {
        writer,
        format: log.format,
        colours: dev::has_colours(&log.path),
        mask,
    })
}

pub(crate) fn log_mask(server: &penstock_config::Server) -> LogMask {
    LogMask::new(server.log_mask.iter().map(String::as_str))
}

/// The limits and the storage of buffered bodies.
pub(crate) fn buffering_settings(
    limits: &Limits,
    pool: Pool,
    space: &Arc<TempSpace>,
) -> BufferingSettings {
    BufferingSettings {
        max_body_memory: limits.max_body_memory,
        max_response_memory: limits.max_response_memory,
        max_response_spool: limits.max_response_spool,
        min_busy_rate: limits.min_busy_rate,
        rate_grace: limits.body_rate_grace,
        temp_dir: limits.temp_dir.clone(),
        temp_space: Arc::clone(space),
        pool,
    }
}

pub(crate) fn websocket_message_limits(limits: &Limits) -> WebSocketMessageLimits {
    WebSocketMessageLimits {
        max_message_bytes: limits.max_websocket_message_size,
        idle_timeout: limits.body_idle_timeout,
        min_rate: limits.min_body_rate,
    }
}

/// Builds the configured pools; keeps old ones with the same limits.
pub(crate) fn build_pools(config: &Config, old: Option<(&Config, &ThreadPools)>) -> ThreadPools {
    let mut pools = ThreadPools::new();
    for (name, limits) in &config.blocking {
        let kept = old.and_then(|(old, pools)| {
            let same = old.blocking.get(name) == Some(limits);
            pools.get(name).filter(|_| same).cloned()
        });
        let fresh = || Pool::new(name, limits.threads, limits.max_queued);
        pools.insert(name.clone(), kept.unwrap_or_else(fresh));
    }
    pools
}
