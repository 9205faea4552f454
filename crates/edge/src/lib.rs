//! Everything that speaks to clients: listeners, connections, routing, errors, the access log.
//!
//! [`accept_connections`] accepts a connection. `http1` waits for a head without a buffer of its
//! own, and sends the response. Between the two `exchange` does the work that every protocol
//! shares: it finds the route by `router`, applies `filters`, runs the handlers and writes the
//! record to `access_log`.
//!
//! # Invariants
//! - No request that could be read in two ways is passed on: `http` parses strictly, and edge
//!   closes the connection on any refusal.
//! - Every wait has a deadline of `limits`.
//! - No connection holds up its event loop.

mod accept;
mod access_log;
mod connection_limits;
mod error_pages;
mod exchange;
mod faults;
mod filters;
mod handover;
mod http1;
mod idle_connections;
mod proxy_protocol;
mod response_policy;
mod router;
mod tls_handshake;
mod top_lists;
mod transfer_rate;
mod tunnel_switch;
mod untrusted_forwarding;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arc_swap::{ArcSwap, Cache};
use penstock_config::{Limits, RequestIdMode};
use penstock_exchange::metrics::EdgeMetrics;
use penstock_exchange::{HttpChallenges, StreamRefusal, TrustedProxies};
use penstock_http::{HeadLimits, LogMask};
use penstock_runtime::{
    Drain, LogThrottle, LoopHandle, OncePerSecondThrottle, PerLoop, clock, loops,
};
use penstock_tls::ServerSessions;

use self::connection_limits::ClientConnectionCounts;
use self::idle_connections::IdleConnections;
use self::tls_handshake::Handshakes;
use self::top_lists::TopLists;
use self::untrusted_forwarding::UntrustedForwardingLog;

pub use accept::{accept_connections, serve_connection};
pub use access_log::{AccessLog, LogFilter};
pub use connection_limits::DescriptorBudget;
pub use error_pages::{ErrorPages, load_page};
pub use exchange::{TracePolicy, shared_challenge_route};
pub use filters::Filters;
pub use handover::EdgeAdopter;
pub use response_policy::ResponsePolicy;
pub use router::{HandlerChain, Route, RouteBodyLimits, RouteObservation, RouteTable, Site};
pub use top_lists::TopSnapshot;
pub use tunnel_switch::{TunnelSwitch, TunnelTarget};

/// The state that all connections of one front end share.
#[derive(Debug)]
pub struct Edge {
    settings: Arc<ArcSwap<Settings>>,
    /// Each loop's own reference to the settings, so that requests need not count references.
    settings_caches: PerLoop<Option<SettingsCache>>,
    metrics_by_loop: Box<[EdgeMetrics]>,
    /// Tells listeners and connections to finish; not those that are held.
    pub drain: Drain,
    open_connections: AtomicUsize,
    /// Open connections that may be closed to make room.
    idle_connections: IdleConnections,
    handshakes: Handshakes,
    client_counts: ClientConnectionCounts,
    descriptor_budget: DescriptorBudget,
    eviction_log: OncePerSecondThrottle,
    refusal_log: OncePerSecondThrottle,
    handshake_log: OncePerSecondThrottle,
    /// Throttles repeated log lines about failures.
    log_throttle: LogThrottle,
    untrusted_forwarding_log: UntrustedForwardingLog,
    top_lists: TopLists,
}

/// The settings, which a reload replaces as a whole.
#[derive(Debug)]
pub struct Settings {
    /// Bounds on clients.
    pub limits: Limits,
    /// Sites and their handlers.
    pub routes: RouteTable,
    /// Where requests are logged.
    pub access_logs: Vec<AccessLog>,
    /// Whether requests have an id, and who gets it.
    pub request_id: RequestIdMode,
    /// How requests are traced; `None` where they are not.
    pub tracing: Option<TracePolicy>,
    /// Masks of the server's log and of development pages.
    pub log_mask: LogMask,
    /// Proxies whose `Forwarded` and `X-Forwarded-*` headers are trusted.
    pub trusted_proxies: Arc<TrustedProxies>,
    /// Whether error pages show causes and tracebacks, in place of the sites' pages.
    pub is_development: bool,
    /// What an `EventSource` gets in place of an error that passes; `None` is the error.
    pub stream_refusal: Option<Arc<dyn StreamRefusal>>,
    /// The certificates of sites; `None` where no listener has TLS.
    pub tls: Option<Arc<ServerSessions>>,
    /// The pending challenges of ACME over HTTP.
    pub http_challenges: Option<Arc<dyn HttpChallenges>>,
    /// Answers challenges that another server of the same storage has begun; `None` where there is
    /// none.
    pub shared_challenges: Option<Route>,
}

/// A loop's reference to the settings.
type SettingsCache = Cache<Arc<ArcSwap<Settings>>, Arc<Settings>>;

impl Edge {
    /// A front end on `loops` loops; [`accept_connections`] feeds it.
    #[must_use]
    pub fn new(settings: Settings, loops: usize) -> Self {
        Self {
            settings: Arc::new(ArcSwap::from_pointee(settings)),
            settings_caches: PerLoop::new(),
            metrics_by_loop: (0..loops.max(1)).map(|_| EdgeMetrics::default()).collect(),
            drain: Drain::new(),
            open_connections: AtomicUsize::new(0),
            idle_connections: IdleConnections::new(loops, clock::now()),
            handshakes: Handshakes::new(IdleConnections::new(loops, clock::now())),
            client_counts: ClientConnectionCounts::default(),
            descriptor_budget: DescriptorBudget::default(),
            eviction_log: OncePerSecondThrottle::default(),
            refusal_log: OncePerSecondThrottle::default(),
            handshake_log: OncePerSecondThrottle::default(),
            log_throttle: LogThrottle::default(),
            untrusted_forwarding_log: UntrustedForwardingLog::new(clock::now()),
            top_lists: TopLists::new(loops),
        }
    }

    /// Reserves a part of the process's descriptors for others.
    #[must_use]
    pub fn with_descriptor_budget(self, descriptors: DescriptorBudget) -> Self {
        Self {
            descriptor_budget: descriptors,
            ..self
        }
    }

    /// Replaces the settings; requests in progress keep theirs. Each of `loops` drops its reference
    /// to the old ones, which may be the last that keeps an application.
    pub fn replace_settings(self: &Arc<Self>, settings: Settings, loops: &[LoopHandle]) {
        self.settings.store(Arc::new(settings));
        for handle in loops {
            let edge = Arc::clone(self);
            handle.spawn(async move { drop(edge.settings_caches.with(Option::take)) });
        }
    }

    /// Switches the counts of routes and clients on or off. After a change of the settings it begins
    /// anew with the routes.
    pub fn set_top_lists(&self, is_on: bool) {
        self.top_lists.set(is_on);
    }

    /// The routes and clients with most requests lately.
    #[must_use]
    pub fn top_snapshot(&self) -> TopSnapshot {
        let settings = self.settings();
        self.top_lists.snapshot(&settings.routes, clock::now())
    }

    /// The settings now.
    #[must_use]
    pub fn settings(&self) -> Arc<Settings> {
        self.settings.load_full()
    }

    /// Takes the loop's own reference to the settings, without counting; return it by
    /// [`Edge::release_settings`].
    fn acquire_settings(&self) -> SettingsCache {
        let known = self.settings_caches.with(Option::take);
        known.unwrap_or_else(|| Cache::new(Arc::clone(&self.settings)))
    }

    /// Returns the reference of [`Edge::acquire_settings`].
    fn release_settings(&self, settings: SettingsCache) {
        self.settings_caches.with(|place| *place = Some(settings));
    }

    fn head_limits(&self) -> HeadLimits {
        let mut settings = self.acquire_settings();
        let limits = &settings.load().limits;
        let head_limits = HeadLimits {
            max_target_bytes: limits.max_uri_size,
            max_head_bytes: limits.max_header_size,
            max_fields: limits.max_headers,
        };
        self.release_settings(settings);
        head_limits
    }

    /// The sum of all loops' metrics.
    #[must_use]
    pub fn total_metrics(&self) -> EdgeMetrics {
        EdgeMetrics::total(&self.metrics_by_loop)
    }

    fn metrics(&self) -> &EdgeMetrics {
        let own = self.metrics_by_loop.get(loops::current_loop_index());
        own.unwrap_or(&self.metrics_by_loop[0])
    }

    /// Connections open now.
    #[must_use]
    pub fn open_connections(&self) -> usize {
        self.open_connections.load(Ordering::Relaxed)
    }

    /// Open connections that were told to close.
    fn closing_connections(&self) -> usize {
        self.idle_connections.closing() + self.handshakes.running.closing()
    }

    /// The maximum of open connections: `limits.connections`, or fewer where descriptors are.
    #[must_use]
    pub fn max_connections(&self) -> usize {
        self.max_connections_for(&self.settings().limits)
    }

    /// The cause of that maximum, for messages.
    #[must_use]
    pub fn connection_limit_reason(&self) -> String {
        let configured = self.settings().limits.max_connections;
        match self.descriptor_budget.limit() {
            Some(files) if self.max_connections() < configured => format!(
                "{files} open files, less {} that are kept for servers, workers and files \
                 (limits.connections = {configured})",
                self.descriptor_budget.reserved()
            ),
            _ => "limits.connections".to_owned(),
        }
    }

    fn max_connections_for(&self, limits: &Limits) -> usize {
        let max = limits.max_connections;
        self.descriptor_budget
            .max_connections()
            .map_or(max, |it| it.min(max))
    }

    /// The maximum of one client; `None` is no bound.
    #[must_use]
    pub fn max_connections_per_client(&self) -> Option<usize> {
        let settings = self.settings();
        match settings.limits.max_connections_per_client {
            None => Some(connection_limits::default_max_per_client(
                self.max_connections_for(&settings.limits),
            )),
            Some(0) => None,
            Some(max) => Some(max),
        }
    }

    /// Open connections that are held ([`penstock_exchange::Hold`]). [`Edge::drain`] does not wait
    /// for them.
    #[must_use]
    pub fn held_connections(&self) -> usize {
        let held = self
            .metrics_by_loop
            .iter()
            .map(|set| set.held_connections.value())
            .sum::<i64>();
        usize::try_from(held).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
