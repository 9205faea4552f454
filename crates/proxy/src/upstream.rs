//! One upstream, as seen by the other crates.
//!
//! Made by `penstock` at start and reload: a handler for HTTP and a tunnel for TCP listeners, shown
//! on the status page and changed by the admin API. The loops share [`SharedUpstream`]: one lock
//! around the server pool, held for one decision at a time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;
use penstock_config as config;
use penstock_exchange::buffering::{
    BufferingSettings, CapacityDemand, ResponseProducer, SlowResponses,
};
use penstock_exchange::{AddressPrefix, Handler};
use penstock_queue::SlotId;
use penstock_runtime::clock;

use crate::connection::{ConnectionSetup, ResolvedAddress};
use crate::proxied_request::UpstreamHandler;
use crate::resolve::DnsSource;
use crate::server_pool::{
    AttemptReport, DeferredActions, ServerEntry, ServerId, ServerPool, ServerSpec,
};
use crate::snapshot::{QueueSnapshot, UpstreamSnapshot};
use crate::upstream_tls::{ConnectionPurpose, TlsConnector, TlsCounters, UpstreamTls};

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
    /// Where and how much of bodies is buffered.
    pub buffering_settings: BufferingSettings,
    /// TLS to the servers, if its configuration has it.
    pub tls: Option<UpstreamTls>,
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
    pub(crate) buffering_settings: ArcSwap<BufferingSettings>,
    /// How new connections are secured; `None`: not at all.
    tls: ArcSwapOption<TlsConnector>,
    /// Responses that still hold slots because their clients are slow.
    slow_responses: SlowResponses,
    /// Guards the servers, their slots and the queue; never held across an await.
    pub(crate) server_pool: Mutex<ServerPool>,
}

impl Upstream {
    /// Starts the upstream on the current loop, which must be the control loop: it runs probes and
    /// look-ups and maintains idle connections.
    #[must_use]
    pub fn start(config: config::Upstream, setup: UpstreamSetup) -> Arc<Self> {
        Self::start_with_dns_source(config, setup, DnsSource::System)
    }

    /// The same with the DNS source `source`.
    pub(crate) fn start_with_dns_source(
        config: config::Upstream,
        setup: UpstreamSetup,
        source: DnsSource,
    ) -> Arc<Self> {
        let config = Arc::new(config);
        let server_pool = ServerPool::new(&config, setup.loop_count, clock::now());
        let tls = setup
            .tls
            .map(|tls| TlsConnector::new(tls, config.protocol, Arc::new(TlsCounters::default())));
        let shared = Arc::new(SharedUpstream {
            name: config.name.as_str().into(),
            config,
            buffering_settings: ArcSwap::from_pointee(setup.buffering_settings),
            tls: ArcSwapOption::from_pointee(tls),
            slow_responses: SlowResponses::default(),
            server_pool: Mutex::new(server_pool),
        });
        crate::maintenance::start(&shared, source);
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

    /// Applies new buffering settings after a reload.
    pub fn set_buffering_settings(&self, settings: BufferingSettings) {
        self.shared.buffering_settings.store(Arc::new(settings));
    }

    /// Applies certificates that were read again. If they have changed, idle connections close, and
    /// those in use after their response. An upstream without TLS stays without.
    pub fn set_tls(&self, tls: UpstreamTls) {
        let current = self.shared.tls.load();
        let protocol = self.shared.config.protocol;
        let successor = current.as_ref().and_then(|it| it.successor(tls, protocol));
        let Some(connector) = successor else {
            return;
        };
        let epoch = connector.epoch;
        self.shared.tls.store(Some(Arc::new(connector)));
        self.shared.update_pool(|pool| pool.set_tls_epoch(epoch));
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
        let pool = self.shared.server_pool.lock();
        let (length, oldest_wait) = pool.queue_len_and_oldest_wait(now);
        UpstreamSnapshot {
            name: self.shared.name.to_string(),
            protocol: self.shared.config.protocol.as_str(),
            up: pool.total_max_active() > 0,
            queue: QueueSnapshot {
                length,
                max: self.shared.config.max_queued,
                oldest_wait,
            },
            counters: pool.counters,
            tls: (self.shared.tls.load().as_deref()).map(|tls| tls.counters.values()),
            queue_time: pool.latencies.queue_time.values(),
            connect_time: pool.latencies.connect_time.values(),
            header_time: pool.latencies.header_time.values(),
            servers: pool.servers.iter().map(ServerEntry::snapshot).collect(),
        }
    }
}

/// The server that produces a response, for buffering and the slow-client policy.
#[derive(Debug)]
pub(crate) struct ServerProducer {
    pub(crate) shared: Arc<SharedUpstream>,
    pub(crate) server: ServerId,
}

impl ResponseProducer for ServerProducer {
    fn slow_responses(&self) -> &SlowResponses {
        &self.shared.slow_responses
    }

    fn capacity_demand(&self, now: Instant) -> CapacityDemand {
        let pool = self.shared.server_pool.lock();
        if pool
            .server(self.server)
            .is_none_or(|entry| entry.current_max_active == 0)
        {
            // The server is down or leaving.
            return CapacityDemand::default();
        }
        let (waiting, oldest_wait) = pool.queue_len_and_oldest_wait(now);
        CapacityDemand {
            waiting_requests: waiting,
            oldest_wait,
            max_active_requests: pool.total_max_active(),
            pipelined_wait: None,
        }
    }

    fn waiting_clients(&self) -> Vec<Option<AddressPrefix>> {
        self.shared.server_pool.lock().waiting_clients()
    }

    fn refuse_waiting(&self, clients: &[AddressPrefix], cause: &str) {
        let waiters = self
            .shared
            .server_pool
            .lock()
            .take_waiters_of_clients(clients);
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
    /// Changes the server pool, then runs the deferred actions.
    pub(crate) fn update_pool<T>(&self, change: impl FnOnce(&mut ServerPool) -> T) -> T {
        let mut pool = self.server_pool.lock();
        let result = change(&mut pool);
        let deferred = pool.take_deferred();
        drop(pool);
        self.run_deferred(deferred);
        result
    }

    /// What happens on each new connection, but for the PROXY protocol.
    pub(crate) fn connection_setup(&self, purpose: ConnectionPurpose) -> ConnectionSetup {
        ConnectionSetup {
            proxy_header: None,
            tls: self.tls.load_full().map(|tls| (tls, purpose)),
        }
    }

    /// Passes a granted but unused slot to the next request.
    pub(crate) fn release_unused_slot(&self, slot: SlotId) {
        let now = clock::now();
        self.update_pool(|pool| pool.release(now, slot, None, &AttemptReport::default()));
    }

    pub(crate) fn add_server(
        &self,
        address: ResolvedAddress,
        name: Arc<str>,
        spec: ServerSpec,
    ) -> ServerId {
        self.update_pool(|pool| pool.add(clock::now(), address, name, spec))
    }

    /// Runs the actions deferred while the lock was held.
    fn run_deferred(&self, deferred: DeferredActions) {
        drop(deferred.closed_connections);
        for (server, transition) in deferred.transitions {
            transition.log(&self.name, &server.name);
        }
        let mut grants = VecDeque::from(deferred.grants);
        while let Some(grant) = grants.pop_front() {
            // A waiter that is gone passes its slot to the next, which may be gone too.
            if grant.job.grant_sender.send(Ok(grant.slot_id)).is_err() {
                let mut pool = self.server_pool.lock();
                pool.release(clock::now(), grant.slot_id, None, &AttemptReport::default());
                let deferred = pool.take_deferred();
                drop(pool);
                grants.extend(deferred.grants);
            }
        }
    }
}
