//! One upstream, as seen by the other crates.
//!
//! Made by `penstock` at start and reload: a handler for HTTP and a tunnel for TCP listeners, shown
//! on the status page and changed by the admin API. The loops share [`SharedUpstream`]: one lock
//! around the server pool, held for one decision at a time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use arc_swap::ArcSwap;
use penstock_config as config;
use penstock_exchange::buffering::{BodyStore, Demand, HeldPlaces, Producer};
use penstock_exchange::{AddressPrefix, Handler, HandlerProgress, Request};
use penstock_queue::{DispatchedJob, SlotId};
use penstock_runtime::clock;

use crate::connection::{ResolvedAddress, UpstreamConnection};
use crate::proxied_request::ProxiedRequest;
use crate::resolve::DnsSource;
use crate::server_pool::{
    AttemptReport, DeferredActions, ServerEntry, ServerId, ServerPool, ServerSpec, SlotGrant,
    SlotWaiter,
};
use crate::snapshot::{QueueSnapshot, UpstreamSnapshot};

/// A running upstream.
#[derive(Debug)]
pub struct Upstream {
    pub(crate) shared: Arc<SharedUpstream>,
}

/// Settings of an upstream that come from the server.
#[derive(Debug)]
pub struct UpstreamSetup {
    /// The number of loops.
    pub loop_count: usize,
    /// Where bodies are buffered.
    pub body_store: BodyStore,
}

/// Which bodies of a route are buffered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferingMode {
    /// Request bodies are read whole before a server gets the request.
    pub request: bool,
    /// Response bodies are read from the server faster than the client reads them.
    pub response: bool,
}

/// The state that the loops share.
#[derive(Debug)]
pub(crate) struct SharedUpstream {
    pub(crate) name: Arc<str>,
    pub(crate) config: Arc<config::Upstream>,
    pub(crate) body_store: ArcSwap<BodyStore>,
    /// Responses that still hold slots because their clients are slow.
    held_places: HeldPlaces,
    /// Guards the servers, their slots and the queue; never held across an await.
    server_pool: Mutex<ServerPool>,
}

impl Upstream {
    /// Starts the upstream on the current loop, which must be the control loop: it runs probes and
    /// look-ups and maintains idle connections.
    #[must_use]
    pub fn start(config: config::Upstream, setup: UpstreamSetup) -> Arc<Self> {
        Self::start_with_dns(config, setup, DnsSource::System)
    }

    /// The same with the DNS source `names`.
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

    /// The upstream's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The current configuration.
    #[must_use]
    pub fn config(&self) -> &config::Upstream {
        &self.shared.config
    }

    /// Changes where bodies are buffered, or the limits, after a reload.
    pub fn set_body_store(&self, store: BodyStore) {
        self.shared.body_store.store(Arc::new(store));
    }

    /// Creates the handler for a route with its own buffering.
    #[must_use]
    pub fn handler(&self, buffering: BufferingMode) -> Arc<dyn Handler> {
        Arc::new(UpstreamHandler {
            shared: Arc::clone(&self.shared),
            buffering,
        })
    }

    /// Returns a snapshot for the status page.
    #[must_use]
    pub fn snapshot(&self) -> UpstreamSnapshot {
        let now = clock::now();
        let roster = self.shared.server_pool();
        let (waiting, oldest_wait) = roster.waiting(now);
        let [queue_time, connect_time, answer_time] = roster.latencies();
        UpstreamSnapshot {
            name: self.shared.name.to_string(),
            protocol: self.shared.config.protocol.as_str(),
            up: roster.is_up(),
            queue: QueueSnapshot {
                length: waiting,
                max: self.shared.config.max_queued,
                oldest_wait,
            },
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
    buffering: BufferingMode,
}

impl Handler for UpstreamHandler {
    fn handle(&self, request: Request) -> HandlerProgress {
        // Constructed in place: it is large.
        let room = Box::<ProxiedRequest>::new_uninit();
        let call = Box::write(
            room,
            ProxiedRequest::new(Arc::clone(&self.shared), request, self.buffering),
        );
        HandlerProgress::Pending(Box::into_pin(call))
    }
}

/// A request's slot at one server, as the response that holds it sees it.
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
            // The server is down or leaving.
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
            // The receiver may be gone.
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

    /// Changes the server pool, then runs the deferred actions.
    pub(crate) fn update_pool<T>(
        &self,
        change: impl FnOnce(&mut ServerPool, &mut DeferredActions) -> T,
    ) -> T {
        let mut aftermath = DeferredActions::default();
        let result = change(&mut self.server_pool(), &mut aftermath);
        self.run_deferred(aftermath);
        result
    }

    /// Releases the slot of a finished request.
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

    /// Passes a granted but unused slot to the next request.
    pub(crate) fn release_unused_slot(&self, slot: SlotId) {
        let now = clock::now();
        self.update_pool(|roster, aftermath| roster.release_unused(now, slot, aftermath));
    }

    /// Adds a server with a resolved address.
    pub(crate) fn add_server(
        &self,
        address: ResolvedAddress,
        name: Arc<str>,
        spec: ServerSpec,
    ) -> ServerId {
        let now = clock::now();
        self.update_pool(|roster, aftermath| roster.add(now, address, name, spec, aftermath))
    }

    /// Runs the actions deferred while the lock was held.
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
        // A waiter that is gone passes its slot to the next, which may be gone too.
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
