//! One upstream as the rest of the server sees it.
//!
//! Made by `penstock`'s wiring at start and at reload; a handler for HTTP, a tunnel for TCP listeners;
//! shown on the status page and changed by the admin API. What loops share is [`SharedUpstream`]: one lock
//! around the roster, held for the length of one decision.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use penstock_config as config;
use penstock_exchange::buffering::{BodyStore, Demand, HeldPlaces, Producer};
use penstock_exchange::metrics::HistogramValues;
use penstock_exchange::{AddressPrefix, Handler, HandlerProgress, Request};
use penstock_queue::{DispatchedJob, SlotId};
use penstock_runtime::clock;

use crate::connection::{ResolvedAddress, UpstreamConnection};
use crate::proxied_request::ProxiedRequest;
use crate::resolve::DnsSource;
use crate::server_pool::{
    AttemptReport, DeferredActions, ServerEntry, ServerId, ServerPool, ServerSnapshot, ServerSpec,
    SlotGrant, SlotWaiter, UpstreamCounters,
};

/// A running upstream.
#[derive(Debug)]
pub struct Upstream {
    pub(crate) shared: Arc<SharedUpstream>,
}

/// What an upstream needs of the house.
#[derive(Debug)]
pub struct UpstreamSetup {
    /// How many loops there are.
    pub loop_count: usize,
    /// Where bodies wait.
    pub body_store: BodyStore,
}

/// Which bodies a route has read whole before they go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffering {
    /// Requests, before a server hears of them.
    pub request: bool,
    /// Responses, off the server, faster than the client takes them.
    pub response: bool,
}

/// What loops share.
#[derive(Debug)]
pub(crate) struct SharedUpstream {
    pub(crate) name: Arc<str>,
    pub(crate) config: Arc<config::Upstream>,
    pub(crate) body_store: ArcSwap<BodyStore>,
    /// The responses that keep its places because their clients are slow.
    held_places: HeldPlaces,
    /// Guards the servers, their slots and the line; never held across an await.
    server_pool: Mutex<ServerPool>,
}

/// An upstream at one moment.
#[derive(Debug, Clone)]
pub struct UpstreamSnapshot {
    /// Its name.
    pub name: String,
    /// http, fastcgi, scgi, uwsgi, ajp.
    pub protocol: &'static str,
    /// Whether any server takes requests.
    pub is_up: bool,
    /// Requests waiting.
    pub waiting: usize,
    /// The queue's bound.
    pub max_queued: usize,
    /// How long the oldest has waited.
    pub oldest_wait: Duration,
    /// Its counters.
    pub counters: UpstreamCounters,
    /// Waiting in line.
    pub queue_time: HistogramValues,
    /// Making connections.
    pub connect_time: HistogramValues,
    /// From hand-over to the head of the response.
    pub header_time: HistogramValues,
    /// Its servers.
    pub servers: Vec<ServerSnapshot>,
}

impl Upstream {
    /// Starts the upstream on the current loop, which is the control loop: probes, names and idle
    /// connections are looked after there.
    #[must_use]
    pub fn start(config: config::Upstream, setup: UpstreamSetup) -> Arc<Self> {
        Self::start_with_dns(config, setup, DnsSource::System)
    }

    /// The same with names from `names`.
    pub(crate) fn start_with_dns(
        config: config::Upstream,
        setup: UpstreamSetup,
        names: DnsSource,
    ) -> Arc<Self> {
        let config = Arc::new(config);
        let roster = ServerPool::new(&config, setup.loop_count, clock::now());
        let shared = Arc::new(SharedUpstream {
            name: config.name.as_str().into(),
            config,
            body_store: ArcSwap::from_pointee(setup.body_store),
            held_places: HeldPlaces::default(),
            server_pool: Mutex::new(roster),
        });
        crate::maintenance::start(&shared, names);
        Arc::new(Self { shared })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The configuration that it runs with.
    #[must_use]
    pub fn config(&self) -> &config::Upstream {
        &self.shared.config
    }

    /// Bodies wait elsewhere or in other bounds, from a reload on.
    pub fn set_body_store(&self, store: BodyStore) {
        self.shared.body_store.store(Arc::new(store));
    }

    /// The handler for a route that has buffering of its own.
    #[must_use]
    pub fn handler(&self, buffering: Buffering) -> Arc<dyn Handler> {
        Arc::new(UpstreamHandler {
            shared: Arc::clone(&self.shared),
            buffering,
        })
    }

    /// How it is now.
    #[must_use]
    pub fn snapshot(&self) -> UpstreamSnapshot {
        let now = clock::now();
        let roster = self.shared.server_pool();
        let (waiting, oldest_wait) = roster.waiting(now);
        let [queue_time, connect_time, answer_time] = roster.latencies();
        UpstreamSnapshot {
            name: self.shared.name.to_string(),
            protocol: self.shared.config.protocol.as_str(),
            is_up: roster.is_up(),
            waiting,
            max_queued: self.shared.config.max_queued,
            oldest_wait,
            counters: roster.counters(),
            queue_time,
            connect_time,
            header_time: answer_time,
            servers: (roster.servers().iter())
                .map(ServerEntry::snapshot)
                .collect(),
        }
    }
}

/// An upstream behind one route.
#[derive(Debug)]
struct UpstreamHandler {
    shared: Arc<SharedUpstream>,
    buffering: Buffering,
}

impl Handler for UpstreamHandler {
    fn handle(&self, request: Request) -> HandlerProgress {
        // Made where it stays: it is large.
        let room = Box::<ProxiedRequest>::new_uninit();
        let call = Box::write(
            room,
            ProxiedRequest::new(Arc::clone(&self.shared), request, self.buffering),
        );
        HandlerProgress::Pending(Box::into_pin(call))
    }
}

/// The place of a request at one server, as the response that holds it sees it.
#[derive(Debug)]
pub(crate) struct ServerPlace {
    shared: Arc<SharedUpstream>,
    server: ServerId,
}

impl ServerPlace {
    pub(crate) fn new(shared: &Arc<SharedUpstream>, server: ServerId) -> Arc<Self> {
        Arc::new(Self {
            shared: Arc::clone(shared),
            server,
        })
    }
}

impl Producer for ServerPlace {
    fn held_places(&self) -> &HeldPlaces {
        &self.shared.held_places
    }

    fn demand(&self, now: Instant) -> Demand {
        let roster = self.shared.server_pool();
        if !roster.gives_places(self.server) {
            // It is down or goes.
            return Demand::default();
        }
        let (waiting, oldest_wait) = roster.waiting(now);
        Demand {
            waiting,
            oldest_wait,
            places: roster.places(),
            behind: None,
        }
    }

    fn waiting_clients(&self) -> Vec<Option<AddressPrefix>> {
        self.shared.server_pool().waiting_clients()
    }

    fn refuse_waiting(&self, clients: &[AddressPrefix], cause: &str) {
        let waiters = self.shared.server_pool().take_waiting_of(clients);
        for waiter in waiters {
            // It may have left.
            let _ = waiter.grant_sender.send(Err(cause.to_owned()));
        }
    }

    fn label(&self) -> String {
        format!("upstream {}", self.shared.name)
    }
}

impl SharedUpstream {
    pub(crate) fn server_pool(&self) -> MutexGuard<'_, ServerPool> {
        self.server_pool
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the roster, then does what follows from it.
    pub(crate) fn update_pool<T>(
        &self,
        change: impl FnOnce(&mut ServerPool, &mut DeferredActions) -> T,
    ) -> T {
        let mut aftermath = DeferredActions::default();
        let result = change(&mut self.server_pool(), &mut aftermath);
        self.run_deferred(aftermath);
        result
    }

    /// A request at a server has ended.
    pub(crate) fn release_slot(
        &self,
        now: Instant,
        slot: SlotId,
        connection: Option<(UpstreamConnection, usize)>,
        ended: &AttemptReport,
    ) {
        self.update_pool(|roster, aftermath| {
            roster.release(now, slot, connection, ended, aftermath);
        });
    }

    /// A place that was given and not used goes to the next.
    pub(crate) fn release_unused_slot(&self, slot: SlotId) {
        let now = clock::now();
        self.update_pool(|roster, aftermath| roster.release_unused(now, slot, aftermath));
    }

    /// Adds a server that needs no name to be resolved.
    pub(crate) fn add_server(
        &self,
        address: ResolvedAddress,
        name: Arc<str>,
        spec: ServerSpec,
    ) -> ServerId {
        let now = clock::now();
        self.update_pool(|roster, aftermath| roster.add(now, address, name, spec, aftermath))
    }

    /// Does what the lock was too short for.
    fn run_deferred(&self, aftermath: DeferredActions) {
        if aftermath.is_empty() {
            return;
        }
        let DeferredActions {
            grants: starts,
            closed_connections: dropped,
            transitions,
        } = aftermath;
        drop(dropped);
        for (server, transition) in transitions {
            transition.log(&self.name, &server.name);
        }
        // One that is gone gives its place to the next, who may be gone too.
        let mut starts = VecDeque::from(starts);
        while let Some(DispatchedJob {
            slot_id: slot,
            job: SlotWaiter {
                grant_sender: grant,
                ..
            },
            ..
        }) = starts.pop_front()
        {
            if let Err(Ok(SlotGrant { slot })) = grant.send(Ok(SlotGrant { slot })) {
                let mut aftermath = DeferredActions::default();
                self.server_pool()
                    .release_unused(clock::now(), slot, &mut aftermath);
                starts.extend(aftermath.grants);
            }
        }
    }
}
