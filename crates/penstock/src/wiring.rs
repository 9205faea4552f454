//! Builds the handlers of every route: the one place where components meet.
//!
//! Builds, from a checked configuration and running applications, the settings that `edge` swaps
//! in. Nothing is changed here: a failure leaves the server as it was.

mod back_ends;
mod response_policies;

use std::sync::Arc;

use penstock_apps::WebSocketMessageLimits;
use penstock_cache::CachedRoute;
use penstock_compress::BodySecrecy;
use penstock_config::{
    Config, Limits, PathPattern, Protocol, RateKey, RateLimitRule, SiteTls, TryPattern,
};
use penstock_edge::{
    Filters, Route, RouteBodyLimits, RouteTable, Settings, Site, TracePolicy, load_page,
};
use penstock_exchange::buffering::{BufferingSettings, TempSpace};
use penstock_exchange::metrics::RuleUsage;
use penstock_exchange::{
    AddressSet, Handler, HandlerProgress, InlineResponse, Reply, Request, RequestView,
    TrustedProxies, parse_network,
};
use penstock_files::{FilesHandler, FilesSetup};
use penstock_proxy::{Upstream, is_script_path};
use penstock_rules::{
    ConcurrencyHandler, ConditionSet, CorsHandler, CountedHandler, RateLimitHandler,
    RedirectHandler, RequestConditions, RespondHandler, ResponseRateHandler, RuleOutcome,
    SharedLimit,
};
use penstock_runtime::blocking::Pool;
use penstock_runtime::logger::LogMask;

use crate::admission::admission_handlers;
use crate::caches;
use crate::components::{Components, ThreadPools};
use crate::compression::with_compression;
use crate::hub_service::HubService;
use crate::key_sets::KeySets;
use crate::logs;
use crate::served_dirs::ServedDirs;
use crate::tls_service::{AcmeChallenges, PreparedTls};

use self::back_ends::BackEnds;
pub(crate) use self::back_ends::upstream_handler;
use self::response_policies::SitePolicies;

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
    let mut routing = RouteTable::with_maintenance(Arc::clone(&components.maintenance));
    let mut cached_routes = Vec::new();
    let named = ConditionSet::compile(&config.conditions)?;
    let back_ends = BackEnds {
        config,
        components,
        of_hub: &of_hub,
        conditions: &named,
        old_routes,
        loops,
        development,
    };
    for site in &config.sites {
        let mut routes = Vec::new();
        let policies = SitePolicies::load(site)?;
        for route in &site.routes {
            let mut handlers: Vec<Arc<dyn Handler>> = Vec::new();
            handlers.extend(rule_handlers(
                (site, route),
                components,
                hub_service.key_sets(),
                config.server.redis.is_some(),
            )?);
            let rule_count = handlers.len();
            if route.respond.is_some()
                && let Some(respond) = handlers.last_mut()
            {
                let rule = (config, route);
                *respond =
                    with_compression(Arc::clone(respond), rule, BodySecrecy::Public, components);
            }
            let files = files_handler(route, components, loops, &mut folders)?;
            handlers.extend(files.map(|files| {
                with_compression(files, (config, route), BodySecrecy::Public, components)
            }));
            handlers.extend(of_hub.route_handler((site, route))?);
            if let Some(built) = back_ends.build((site, route), &mut folders)? {
                handlers.push(built.handler);
                cached_routes.extend(built.cached_routes);
            }
            if let Some(rule) = &route.response_rate {
                let name = format!("{} {rule:?}", caches::route_name(site, route));
                let clients = components.in_progress.table(&name);
                ResponseRateHandler::wrap_all(rule, clients, &mut handlers[rule_count..]);
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
                body_limits: RouteBodyLimits {
                    max_bytes: route.max_body_size,
                    idle_timeout: route.body_idle_timeout,
                    min_rate: route.min_body_rate,
                },
                policy: Some(policies.for_route(route)?),
                observation: logs::observe_route(
                    config,
                    (site, route),
                    (&components.route_counts, loops),
                )
                .map(Arc::new),
                filters: Filters::compile(route, own_cookies, &named)?,
                handlers: handlers.into(),
            });
        }
        let mut built = Site::new(routes, Arc::clone(&policies.plain));
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
    let access_logs = logs::open_access_logs(config, &log_mask(&config.server), &named)?;
    let settings = Settings {
        limits: config.limits.clone(),
        routes: routing,
        access_logs,
        request_id: config.server.request_id,
        tracing: config.tracing.as_ref().map(|tracing| TracePolicy {
            parents: tracing.parents,
            sample: tracing.sample,
            queue: components.trace_export.queue_of(tracing),
        }),
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

/// The handlers of a route's rules, which come before all others. `has_redis` is whether rates are
/// shared. *Blocking*: reads a file.
fn rule_handlers(
    (site, route): (&penstock_config::Site, &penstock_config::Route),
    components: &Components,
    key_sets: &KeySets,
    has_redis: bool,
) -> Result<Vec<Arc<dyn Handler>>, String> {
    use RuleOutcome::{Answered, Delayed, Refused, Unavailable};
    let mut handlers: Vec<Arc<dyn Handler>> = Vec::new();
    let route_name = caches::route_name(site, route);
    let counted = |rule: &'static str, handler: Arc<dyn Handler>, outcomes| {
        let name = (route_name.as_str(), rule);
        Arc::new(CountedHandler::new(
            handler,
            &components.rule_counts,
            name,
            outcomes,
        ))
    };
    let admission = admission_handlers(&route_name, route, components, key_sets)?;
    handlers.extend(admission.first);
    let limit = route.rate_limit.as_ref().map(|rule| {
        // A rule that a reload leaves as it is keeps its counts.
        let name = format!("{route_name} {rule:?}");
        let table = components.rates.table(&name);
        let keys: Arc<dyn RuleUsage> = Arc::clone(&table) as _;
        let is_shared = has_redis && rule.shared != Some(false);
        let shared = is_shared.then(|| SharedLimit {
            rates: Arc::clone(components.rates.shared()),
            rule: name,
        });
        let handler = Arc::new(RateLimitHandler::new(rule, table, shared));
        // Without `max_delay` a request only waits for Redis.
        let outcomes: &[RuleOutcome] = match rule.max_delay.is_zero() {
            true => &[Refused],
            false => &[Refused, Delayed],
        };
        let handler = counted("rate_limit", handler, outcomes);
        handler.counts().set_usage(&keys);
        handler
    });
    let (limit, limit_of_users) = match &route.rate_limit {
        Some(rule) if counts_what_rules_set(rule, route) => (None, limit),
        _ => (limit, None),
    };
    handlers.extend(limit.map(|handler| handler as Arc<dyn Handler>));
    if route.cors.is_some() {
        // Browsers send no password with a preflight.
        handlers.push(counted("cors", Arc::new(CorsHandler), &[Answered]));
    }
    handlers.extend(admission.second);
    handlers.extend(limit_of_users.map(|handler| handler as Arc<dyn Handler>));
    if let Some(rule) = &route.max_concurrent {
        // Behind the rules that refuse, so that a refused request holds no place.
        let counts = components
            .in_progress
            .table(&format!("{route_name} {rule:?}"));
        let handler = ConcurrencyHandler::new(rule, counts);
        let usage = handler.usage();
        let outcomes = &[Refused, Unavailable];
        let handler = counted("max_concurrent", Arc::new(handler), outcomes);
        handler.counts().set_usage(&usage);
        handlers.push(handler);
    }
    if let Some(redirect) = &route.redirect {
        let handler = Arc::new(RedirectHandler::new(redirect, &route.path));
        handlers.push(counted("redirect", handler, &[Answered, Unavailable]));
    }
    if let Some(respond) = &route.respond {
        let file = respond
            .file
            .as_ref()
            .map(|path| load_page(path).map_err(|error| format!("{}: {error}", path.display())));
        let handler = RespondHandler::new(respond, &route.path, file.transpose()?);
        handlers.push(counted("respond", Arc::new(handler), &[Answered]));
    }
    Ok(handlers)
}

/// Limits that clients evade, since they choose the fields and cookies that are counted.
pub(crate) fn rate_limit_warnings(config: &Config) -> Vec<String> {
    let routes = config.sites.iter().flat_map(|site| &site.routes);
    let evaded = routes.filter(|route| {
        let Some(limit) = &route.rate_limit else {
            return false;
        };
        let is_of_client = |key: &RateKey| {
            use RateKey::{Cookie, Header, Host, Path};
            matches!(key, Header(_) | Cookie(_) | Host | Path)
        };
        limit.keys.iter().any(is_of_client) && !counts_what_rules_set(limit, route)
    });
    let warning = |route: &penstock_config::Route| {
        format!(
            "route {}: its `rate_limit` counts by a field or cookie that each client chooses, and \
             requests without it are not counted: it protects from mistakes, not from an attack",
            route.path
        )
    };
    evaded.map(warning).collect()
}

/// Whether a limit counts users, or fields that rules about clients set: it comes behind these.
fn counts_what_rules_set(limit: &RateLimitRule, route: &penstock_config::Route) -> bool {
    let claims = route.jwt.iter().flat_map(|jwt| jwt.claims.keys());
    let copied = route.forward_auth.iter().flat_map(|it| &it.copy_headers);
    let own: Vec<&String> = claims.chain(copied).collect();
    limit.keys.iter().any(|key| match key {
        RateKey::User => true,
        RateKey::Header(name) => own.iter().any(|own| own.eq_ignore_ascii_case(name)),
        _ => false,
    })
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
        falls_through: route.has_back_end(),
        script_index: script_index_name(route, components).filter(|_| is_before_scripts),
    };
    let opened = folders.get_or_open(setup)?;
    Ok(Some(match is_before_scripts {
        true => Arc::new(NonScriptFiles(opened)),
        false => opened,
    }))
}

/// The name of the script that a directory may have as its index: that of the upstream's front
/// controller.
fn script_index_name(route: &penstock_config::Route, components: &Components) -> Option<String> {
    upstreams_behind(route, components).find_map(|upstream| {
        let index = upstream.config().index.as_deref()?;
        let name = index.rsplit('/').next().unwrap_or(index);
        name.ends_with(".php").then(|| name.to_owned())
    })
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
    upstreams_behind(route, components).next().is_some()
}

/// The upstreams of a route's back ends, those of applications included.
fn upstreams_behind(
    route: &penstock_config::Route,
    components: &Components,
) -> impl Iterator<Item = Arc<Upstream>> {
    let parts = route.parts().into_iter();
    let found = parts.filter_map(|part| {
        let name = part.upstream.as_ref().or(part.app.as_ref())?;
        components.upstreams.get(name).cloned()
    });
    found.collect::<Vec<_>>().into_iter()
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
    upstreams_behind(route, components).any(|upstream| {
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
