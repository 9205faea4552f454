//! Everything that speaks to clients: listeners, connections, routing, errors, the access log.
//!
//! The way of a request: [`accept`] takes a connection, `connection` waits for a head without a
//! buffer of its own, `router` finds the route, its handlers answer, `send` writes the answer,
//! `access_log` records it. What must stay true: nothing doubtful is passed on (strict parsing is
//! `http`'s, edge closes on any refusal), every wait has a deadline of `limits`, and one connection
//! never holds up its loop.

mod accept;
mod access_log;
mod asks;
mod connection;
mod error_pages;
mod faults;
mod filters;
mod heralded;
mod incoming;
mod pace;
mod plan;
mod received;
mod redirect;
mod room;
mod router;
mod send;
mod tunnel;
mod waiting;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arc_swap::{ArcSwap, Cache};
use penstock_config::Limits;
use penstock_exchange::TrustedProxies;
use penstock_exchange::metrics::EdgeMetrics;
use penstock_http::{HeadLimits, LogMask};
use penstock_runtime::{Drain, LogThrottle, LoopHandle, OncePerSecond, PerLoop, clock, loops};

use self::room::ClientCounts;
use self::waiting::WaitingConnections;

pub use accept::{accept, accept_tunnel, serve};
pub use access_log::AccessLog;
pub use error_pages::ErrorPages;
pub use filters::{FilterError, Filters, PathsInResponses};
pub use room::DescriptorBudget;
pub use router::{Handlers, Route, Routing, Site};

/// What all connections of one front end share.
#[derive(Debug)]
pub struct Edge {
    settings: Arc<ArcSwap<Settings>>,
    /// Each loop's own reference to them, not counted by each request.
    lent: PerLoop<Option<Lent>>,
    /// What it counts, a set for each loop.
    metrics: Box<[EdgeMetrics]>,
    /// Tells listeners and connections to finish; not those that are held.
    pub drain: Drain,
    open: AtomicUsize,
    /// Those of them that may be closed to make room.
    waiting: WaitingConnections,
    clients: ClientCounts,
    descriptors: DescriptorBudget,
    /// Connections closed to make room, for the log.
    evictions: OncePerSecond,
    /// Connections refused, for the log.
    refusals: OncePerSecond,
    /// What the log was told of failures of late.
    repeats: LogThrottle,
}

/// What a reload replaces, whole.
#[derive(Debug)]
pub struct Settings {
    /// Bounds on clients.
    pub limits: Limits,
    /// Sites and their handlers.
    pub routing: Routing,
    /// Where requests are logged.
    pub access_log: Option<AccessLog>,
    /// What the log of the server and the pages of development mask of a request.
    pub mask: LogMask,
    /// Whose word about their own clients is taken.
    pub trust: Arc<TrustedProxies>,
    /// Whether error pages show causes and tracebacks; those of sites are not sent then.
    pub development: bool,
}

/// A loop's reference to the settings.
#[derive(Debug)]
struct Lent(Cache<Arc<ArcSwap<Settings>>, Arc<Settings>>);

impl Lent {
    /// The settings now.
    fn now(&mut self) -> &Arc<Settings> {
        self.0.load()
    }
}

impl Edge {
    /// A front end on `loops` loops; [`accept`] feeds it.
    #[must_use]
    pub fn new(settings: Settings, loops: usize) -> Self {
        Self {
            settings: Arc::new(ArcSwap::from_pointee(settings)),
            lent: PerLoop::new(),
            metrics: (0..loops.max(1)).map(|_| EdgeMetrics::default()).collect(),
            drain: Drain::new(),
            open: AtomicUsize::new(0),
            waiting: WaitingConnections::new(loops, clock::now()),
            clients: ClientCounts::default(),
            descriptors: DescriptorBudget::default(),
            evictions: OncePerSecond::default(),
            refusals: OncePerSecond::default(),
            repeats: LogThrottle::default(),
        }
    }

    /// Leaves a part of the process's descriptors to others.
    #[must_use]
    pub fn with_descriptors(self, descriptors: DescriptorBudget) -> Self {
        Self {
            descriptors,
            ..self
        }
    }

    /// Replaces the settings; requests in progress keep theirs. `loops` are those that serve: each is
    /// told to give up its reference to the old ones, which may be all that keeps an application.
    pub fn replace(self: &Arc<Self>, settings: Settings, loops: &[LoopHandle]) {
        self.settings.store(Arc::new(settings));
        for handle in loops {
            let edge = Arc::clone(self);
            handle.spawn(async move { drop(edge.lent.with(Option::take)) });
        }
    }

    /// The settings now.
    #[must_use]
    pub fn settings(&self) -> Arc<Settings> {
        self.settings.load_full()
    }

    /// The loop's own reference to the settings, which costs nothing to take: give it back.
    fn take_settings(&self) -> Lent {
        let known = self.lent.with(Option::take);
        known.unwrap_or_else(|| Lent(Cache::new(Arc::clone(&self.settings))))
    }

    /// Gives back what [`Edge::take_settings`] gave.
    fn give_back(&self, settings: Lent) {
        self.lent.with(|place| *place = Some(settings));
    }

    /// What a request's head is held to.
    fn head_limits(&self) -> HeadLimits {
        let mut settings = self.take_settings();
        let limits = settings.now().head_limits();
        self.give_back(settings);
        limits
    }

    /// What all loops counted.
    #[must_use]
    pub fn totals(&self) -> EdgeMetrics {
        EdgeMetrics::total(&self.metrics)
    }

    /// The set of the loop that this runs on.
    fn metrics(&self) -> &EdgeMetrics {
        let own = self.metrics.get(loops::current_index());
        own.unwrap_or(&self.metrics[0])
    }

    /// Connections open now.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// How many there may be: `limits.connections`, or fewer where descriptors are.
    #[must_use]
    pub fn max_connections(&self) -> usize {
        self.max_by(&self.settings().limits)
    }

    /// Why there may not be more, in words.
    #[must_use]
    pub fn connections_bound(&self) -> String {
        let configured = self.settings().limits.connections;
        match self.descriptors.limit() {
            Some(files) if self.max_connections() < configured => format!(
                "{files} open files, less {} that are kept for servers, workers and files \
                 (limits.connections = {configured})",
                self.descriptors.kept_back()
            ),
            _ => "limits.connections".to_owned(),
        }
    }

    fn max_by(&self, limits: &Limits) -> usize {
        let max = limits.connections;
        self.descriptors.connections().map_or(max, |it| it.min(max))
    }

    /// How many of them one client may have; `None` is no bound.
    #[must_use]
    pub fn max_per_client(&self) -> Option<usize> {
        let settings = self.settings();
        match settings.limits.connections_per_client {
            None => Some(room::default_per_client(self.max_by(&settings.limits))),
            Some(0) => None,
            Some(max) => Some(max),
        }
    }

    /// Of these, those that were handed over to be held ([`penstock_exchange::Hold`]). [`Edge::drain`] does not
    /// wait for them.
    #[must_use]
    pub fn held(&self) -> usize {
        let held = self
            .metrics
            .iter()
            .map(|set| set.held_connections.value())
            .sum::<i64>();
        usize::try_from(held).unwrap_or(0)
    }
}

impl Settings {
    fn head_limits(&self) -> HeadLimits {
        HeadLimits {
            max_target_bytes: self.limits.target_bytes,
            max_head_bytes: self.limits.header_bytes,
            max_fields: self.limits.headers,
        }
    }
}

#[cfg(test)]
mod tests;
