//! One upstream as the rest of the server sees it.
//!
//! Made by `penstock`'s wiring at start and at reload; a handler for HTTP, a tunnel for TCP listeners;
//! shown on the status page and changed by the admin API. What loops share is [`Shared`]: one lock
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

use crate::call::Call;
use crate::connection::{Address, Connection};
use crate::resolve::Source;
use crate::roster::{
    Aftermath, Counts, Ended, Grant, Member, MemberKey, MemberSpec, Roster, ServerSnapshot, Waiter,
};

/// A running upstream.
#[derive(Debug)]
pub struct Upstream {
    pub(crate) shared: Arc<Shared>,
}

/// What an upstream needs of the house.
#[derive(Debug)]
pub struct Setup {
    /// How many loops there are.
    pub loops: usize,
    /// Where bodies wait.
    pub store: BodyStore,
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
pub(crate) struct Shared {
    pub(crate) name: Arc<str>,
    pub(crate) config: Arc<config::Upstream>,
    pub(crate) store: ArcSwap<BodyStore>,
    /// The responses that keep its places because their clients are slow.
    held_places: HeldPlaces,
    /// Guards the servers, their slots and the line; never held across an await.
    roster: Mutex<Roster>,
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
    pub queue_max: usize,
    /// How long the oldest has waited.
    pub oldest_wait: Duration,
    /// Its counters.
    pub counts: Counts,
    /// Waiting in line.
    pub queue_time: HistogramValues,
    /// Making connections.
    pub connect_time: HistogramValues,
    /// From hand-over to the head of the response.
    pub answer_time: HistogramValues,
    /// Its servers.
    pub servers: Vec<ServerSnapshot>,
}

impl Upstream {
    /// Starts the upstream on the current loop, which is the control loop: probes, names and idle
    /// connections are looked after there.
    #[must_use]
    pub fn start(config: config::Upstream, setup: Setup) -> Arc<Self> {
        Self::start_with(config, setup, Source::System)
    }

    /// The same with names from `names`.
    pub(crate) fn start_with(config: config::Upstream, setup: Setup, names: Source) -> Arc<Self> {
        let config = Arc::new(config);
        let roster = Roster::new(&config, setup.loops, clock::now());
        let shared = Arc::new(Shared {
            name: config.name.as_str().into(),
            config,
            store: ArcSwap::from_pointee(setup.store),
            held_places: HeldPlaces::default(),
            roster: Mutex::new(roster),
        });
        crate::maintain::start(&shared, names);
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
    pub fn adopt(&self, store: BodyStore) {
        self.shared.store.store(Arc::new(store));
    }

    /// The handler for a route that has buffering of its own.
    #[must_use]
    pub fn handler(&self, buffering: Buffering) -> Arc<dyn Handler> {
        Arc::new(RouteHandler {
            shared: Arc::clone(&self.shared),
            buffering,
        })
    }

    /// How it is now.
    #[must_use]
    pub fn snapshot(&self) -> UpstreamSnapshot {
        let now = clock::now();
        let roster = self.shared.roster();
        let (waiting, oldest_wait) = roster.waiting(now);
        let [queue_time, connect_time, answer_time] = roster.times();
        UpstreamSnapshot {
            name: self.shared.name.to_string(),
            protocol: self.shared.config.protocol.as_str(),
            is_up: roster.is_up(),
            waiting,
            queue_max: self.shared.config.queue_max,
            oldest_wait,
            counts: roster.counts(),
            queue_time,
            connect_time,
            answer_time,
            servers: (roster.members().iter()).map(Member::snapshot).collect(),
        }
    }
}

/// An upstream behind one route.
#[derive(Debug)]
struct RouteHandler {
    shared: Arc<Shared>,
    buffering: Buffering,
}

impl Handler for RouteHandler {
    fn handle(&self, request: Request) -> HandlerProgress {
        // Made where it stays: it is large.
        let room = Box::<Call>::new_uninit();
        let call = Box::write(
            room,
            Call::new(Arc::clone(&self.shared), request, self.buffering),
        );
        HandlerProgress::Pending(Box::into_pin(call))
    }
}

/// The place of a request at one server, as the response that holds it sees it.
#[derive(Debug)]
pub(crate) struct ServerPlace {
    shared: Arc<Shared>,
    server: MemberKey,
}

impl ServerPlace {
    pub(crate) fn new(shared: &Arc<Shared>, server: MemberKey) -> Arc<Self> {
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
        let roster = self.shared.roster();
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
        self.shared.roster().waiting_clients()
    }

    fn refuse_waiting(&self, clients: &[AddressPrefix], cause: &str) {
        let waiters = self.shared.roster().take_waiting_of(clients);
        for waiter in waiters {
            // It may have left.
            let _ = waiter.grant.send(Err(cause.to_owned()));
        }
    }

    fn label(&self) -> String {
        format!("upstream {}", self.shared.name)
    }
}

impl Shared {
    pub(crate) fn roster(&self) -> MutexGuard<'_, Roster> {
        self.roster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the roster, then does what follows from it.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Roster, &mut Aftermath) -> T) -> T {
        let mut aftermath = Aftermath::default();
        let result = change(&mut self.roster(), &mut aftermath);
        self.settle(aftermath);
        result
    }

    /// A request at a server has ended.
    pub(crate) fn release(
        &self,
        now: Instant,
        slot: SlotId,
        connection: Option<(Connection, usize)>,
        ended: &Ended,
    ) {
        self.change(|roster, aftermath| roster.release(now, slot, connection, ended, aftermath));
    }

    /// A place that was given and not used goes to the next.
    pub(crate) fn give_back(&self, slot: SlotId) {
        let now = clock::now();
        self.change(|roster, aftermath| roster.give_back(now, slot, aftermath));
    }

    /// Adds a server that needs no name to be resolved.
    pub(crate) fn add(&self, address: Address, name: Arc<str>, spec: MemberSpec) -> MemberKey {
        let now = clock::now();
        self.change(|roster, aftermath| roster.add(now, address, name, spec, aftermath))
    }

    /// Does what the lock was too short for.
    fn settle(&self, aftermath: Aftermath) {
        if aftermath.is_nothing() {
            return;
        }
        let Aftermath {
            starts,
            dropped,
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
            job: Waiter { grant, .. },
            ..
        }) = starts.pop_front()
        {
            if let Err(Ok(Grant { slot })) = grant.send(Ok(Grant { slot })) {
                let mut aftermath = Aftermath::default();
                self.roster().give_back(clock::now(), slot, &mut aftermath);
                starts.extend(aftermath.starts);
            }
        }
    }
}
