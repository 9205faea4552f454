//! Bounds on connections: by the configuration, by the descriptors of the process, and for each
//! client.
//!
//! `accept` checks them before it serves a connection. Pure, but for the table of clients, which
//! has its own locks.
//!
//! # Invariants
//! - A part of the descriptors is never used for connections from clients: the admin interface,
//!   servers, workers and files need them.
//! - A client is an IPv4 address or an IPv6 network of 64 bits (RFC 6177: the least that a site
//!   gets). Trusted proxies and Unix sockets stand for many clients and are not counted.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use penstock_exchange::{AddressPrefix, HeldConnectionCounter};

use crate::Edge;

/// Descriptors that are open without a client: event loops, listeners, logs, pipes.
const BASE_DESCRIPTORS: u64 = 64;

/// The share that is reserved besides, for connections to servers, workers and files.
const RESERVED_SHARE: u64 = 8;

/// The maximum reserve, however many descriptors there are.
const MAX_RESERVED: u64 = 4096;

/// The least default bound of a client: browsers open six connections, and a few hundred people may
/// share an address.
const MIN_PER_CLIENT: usize = 64;

/// The descriptors of the process, and the part of them for connections from clients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DescriptorBudget {
    limit: Option<u64>,
}

impl DescriptorBudget {
    /// The budget of a process that may have `limit` descriptors; without one all may be
    /// connections.
    #[must_use]
    pub fn new(limit: Option<u64>) -> Self {
        Self { limit }
    }

    /// The limit of the process; `None` is no limit.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// The reserved descriptors.
    #[must_use]
    pub fn reserved(&self) -> u64 {
        let limit = self.limit.unwrap_or(0);
        let wanted = BASE_DESCRIPTORS + (limit / RESERVED_SHARE).min(MAX_RESERVED);
        wanted.min(limit - limit / 4)
    }

    /// The bound on connections from clients; `None` is no bound.
    #[must_use]
    pub fn max_connections(&self) -> Option<usize> {
        let left = self.limit?.saturating_sub(self.reserved()).max(1);
        Some(usize::try_from(left).unwrap_or(usize::MAX))
    }

    /// Whether connections must give way with `open` descriptors. Others may use half of the
    /// reserve before that.
    pub(crate) fn is_scarce(&self, open: u64) -> bool {
        let is_beyond = |limit: u64| open >= limit - self.reserved() / 2;
        self.limit.is_some_and(is_beyond)
    }
}

/// The default bound for each client: half of all. One client never takes every slot, while a crowd
/// behind one address has many.
pub(crate) fn default_max_per_client(connections: usize) -> usize {
    (connections / 2).max(MIN_PER_CLIENT)
}

#[derive(Debug, Default)]
pub(crate) struct ClientConnectionCounts {
    /// Keyed hashes, as clients choose their addresses.
    hasher: RandomState,
    /// Each held for one look-up.
    shards: [Mutex<HashMap<AddressPrefix, Arc<ClientConnections>>>; 16],
}

/// The connections of a client; shared by them, so that a held stream costs no more.
#[derive(Debug)]
pub(crate) struct ClientConnections {
    edge: Arc<Edge>,
    address: AddressPrefix,
    /// Changed under the lock of its shard.
    count: AtomicUsize,
}

impl ClientConnectionCounts {
    /// Counts one more connection of a client of `edge`, unless it has `max` already.
    pub(crate) fn admit(
        &self,
        edge: &Arc<Edge>,
        address: AddressPrefix,
        max: usize,
    ) -> Option<Arc<ClientConnections>> {
        let mut clients = self.shard(address);
        let has = clients.get(&address);
        if has.map_or(0, |client| client.count.load(Ordering::Relaxed)) >= max {
            return None;
        }
        let client = clients.entry(address).or_insert_with(|| {
            Arc::new(ClientConnections {
                edge: Arc::clone(edge),
                address,
                count: AtomicUsize::new(0),
            })
        });
        client.count.fetch_add(1, Ordering::Relaxed);
        Some(Arc::clone(client))
    }

    fn shard(
        &self,
        address: AddressPrefix,
    ) -> MutexGuard<'_, HashMap<AddressPrefix, Arc<ClientConnections>>> {
        let [byte, ..] = self.hasher.hash_one(address).to_ne_bytes();
        self.shards[usize::from(byte) % self.shards.len()]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientConnections {
    /// Counts the same connection for another owner, whatever the bound.
    pub(crate) fn add_connection(&self) {
        let _clients = self.edge.client_counts.shard(self.address);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn remove_connection(&self) {
        let mut clients = self.edge.client_counts.shard(self.address);
        if self.count.fetch_sub(1, Ordering::Relaxed) == 1 {
            clients.remove(&self.address);
        }
    }
}

impl HeldConnectionCounter for ClientConnections {
    fn release_held_connection(&self) {
        self.edge.release_held_connection();
        self.remove_connection();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_sys::net::PeerAddress;

    #[test]
    fn a_part_of_the_descriptors_is_reserved() {
        for (limit, connections) in [
            (8, 2),
            (64, 16),
            (128, 48),
            (256, 160),
            (1024, 832),
            (20_000, 17_436),
            (1_048_576, 1_044_416),
        ] {
            let budget = DescriptorBudget::new(Some(limit));
            assert_eq!(budget.max_connections(), Some(connections), "{limit}");
            let full = connections as u64;
            assert!(!budget.is_scarce(full), "{limit}");
            assert!(budget.is_scarce(limit - 1), "{limit}");
            assert!(budget.is_scarce(limit), "{limit}");
        }
        let budget = DescriptorBudget::new(None);
        assert_eq!(budget.max_connections(), None);
        assert!(!budget.is_scarce(1 << 40));
    }

    #[test]
    fn connections_are_bounded_per_client() {
        let settings = crate::Settings {
            limits: penstock_config::Limits::default(),
            routes: crate::RouteTable::default(),
            access_logs: Vec::new(),
            tracing: None,
            request_id: penstock_config::RequestIdMode::Off,
            log_mask: penstock_http::LogMask::default(),
            trusted_proxies: Arc::default(),
            is_development: false,
            stream_refusal: None,
            tls: None,
            http_challenges: None,
            shared_challenges: None,
        };
        let edge = Arc::new(Edge::new(settings, 1));
        let address =
            |text: &str| AddressPrefix::from_address(PeerAddress::tcp(text.parse().unwrap()));
        let (one, other) = (address("192.0.2.1:1"), address("192.0.2.2:1"));
        let admit = |address, max| edge.client_counts.admit(&edge, address, max);
        let client = admit(one, 2).unwrap();
        assert!(Arc::ptr_eq(&client, &admit(one, 2).unwrap()));
        assert!(admit(one, 2).is_none());
        let second = admit(other, 2).unwrap();
        client.add_connection();
        client.remove_connection();
        assert!(admit(one, 2).is_none());
        client.remove_connection();
        assert!(admit(one, 2).is_some());
        assert!(admit(address("192.0.2.3:1"), 0).is_none());
        for client in [&client, &client, &second] {
            client.remove_connection();
        }
        let is_empty = |shard: &Mutex<HashMap<_, _>>| shard.lock().unwrap().is_empty();
        assert!(
            edge.client_counts.shards.iter().all(is_empty),
            "nothing is kept"
        );
    }

    #[test]
    fn the_default_bound_per_client_is_half_of_all() {
        for (connections, expected) in [(2, 64), (1000, 500), (100_000, 50_000)] {
            assert_eq!(default_max_per_client(connections), expected);
        }
    }
}
