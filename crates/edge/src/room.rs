//! How many connections there may be: by the configuration, by the descriptors of the process, and
//! for each client.
//!
//! `accept` asks before it serves a connection. Pure, but for the table of clients, which has its
//! own locks.
//!
//! # Invariants
//!
//! - A part of the descriptors is never used for connections from clients: the admin interface,
//!   servers, workers and files need them.
//! - A client is an IPv4 address or an IPv6 network of 64 bits (RFC 6177: the least that a site
//!   gets). Proxies that are trusted, and Unix sockets, speak for many clients and are not counted.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use penstock_sys::net::PeerAddress;

/// Descriptors that a server has open without a client: loops, listeners, logs, pipes.
const OWN_DESCRIPTORS: u64 = 64;

/// One in so many is kept back besides, for connections to servers, workers and files.
const KEPT_BACK_SHARE: u64 = 8;

/// More are not kept back, however many the process may have.
const KEPT_BACK_MAX: u64 = 4096;

/// No client's bound is smaller unless it is configured so: browsers open six connections, and a
/// few hundred people may share an address.
const PER_CLIENT_MIN: usize = 64;

/// How many descriptors the process may have, and how many of them connections from clients get.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DescriptorBudget {
    limit: Option<u64>,
}

impl DescriptorBudget {
    /// The budget of a process that may have `limit` descriptors; without one all may be connections.
    #[must_use]
    pub fn new(limit: Option<u64>) -> Self {
        Self { limit }
    }

    /// How many there may be; `None` is no limit.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// How many are kept back.
    #[must_use]
    pub fn kept_back(&self) -> u64 {
        let limit = self.limit.unwrap_or(0);
        let wanted = OWN_DESCRIPTORS + (limit / KEPT_BACK_SHARE).min(KEPT_BACK_MAX);
        wanted.min(limit - limit / 4)
    }

    /// How many connections from clients there may be; `None` is no bound.
    #[must_use]
    pub fn connections(&self) -> Option<usize> {
        let left = self.limit?.saturating_sub(self.kept_back()).max(1);
        Some(usize::try_from(left).unwrap_or(usize::MAX))
    }

    /// Whether so many are open that connections have to give way. Half of what is kept back may be
    /// used by others before that.
    pub(crate) fn is_scarce(&self, open: u64) -> bool {
        let is_beyond = |limit: u64| open >= limit - self.kept_back() / 2;
        self.limit.is_some_and(is_beyond)
    }
}

/// Why there is no room for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// The bound on connections is reached.
    Connections,
    /// Few descriptors are left.
    Descriptors,
}

/// What connections are counted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ClientKey(NonZeroU64);

impl ClientKey {
    /// `None` for a peer without an address of its own.
    pub(crate) fn of(address: PeerAddress) -> Option<Self> {
        let PeerAddress::Tcp(address) = address else {
            return None;
        };
        let number = match address.ip().to_canonical() {
            // No network of IPv6 clients begins so (RFC 4291 §2.5.5.2).
            IpAddr::V4(ip) => 0xffff_0000_0000 | u64::from(ip.to_bits()),
            IpAddr::V6(ip) => (ip.to_bits() >> 64) as u64,
        };
        NonZeroU64::new(number).map(Self)
    }
}

/// The bound for each client where none is configured: half of all. One client never takes every
/// place, while a crowd behind one address has many.
pub(crate) fn default_per_client(connections: usize) -> usize {
    (connections / 2).max(PER_CLIENT_MIN)
}

/// The connections of each client.
#[derive(Debug, Default)]
pub(crate) struct ClientCounts {
    /// Keyed hashes: clients choose their addresses.
    hasher: RandomState,
    /// Each held for one look-up.
    shards: [Mutex<HashMap<ClientKey, usize>>; 16],
}

impl ClientCounts {
    /// Counts one more connection of a client, unless it has `max` already.
    pub(crate) fn admit(&self, key: ClientKey, max: usize) -> bool {
        let mut counts = self.shard(key);
        let count = counts.entry(key).or_default();
        let is_admitted = *count < max;
        if is_admitted {
            *count += 1;
        } else if *count == 0 {
            counts.remove(&key);
        }
        is_admitted
    }

    /// Counts the same connection for another owner, whatever the bound.
    pub(crate) fn add(&self, key: ClientKey) {
        *self.shard(key).entry(key).or_default() += 1;
    }

    /// One of them has ended.
    pub(crate) fn remove(&self, key: ClientKey) {
        let mut counts = self.shard(key);
        if let Some(count) = counts.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&key);
            }
        }
    }

    fn shard(&self, key: ClientKey) -> MutexGuard<'_, HashMap<ClientKey, usize>> {
        let [byte, ..] = self.hasher.hash_one(key).to_ne_bytes();
        self.shards[usize::from(byte) % self.shards.len()]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets a line into the log once a second at most, with how often it happened.
#[derive(Debug, Default)]
pub(crate) struct OncePerSecond {
    state: Mutex<(Option<Instant>, u64)>,
}

impl OncePerSecond {
    /// Counts one more; gives how many there were since the last line if one is due.
    pub(crate) fn count(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, count) = &mut *state;
        *count += 1;
        let is_recent = |at: Instant| now.saturating_duration_since(at) < Duration::from_secs(1);
        if last.is_some_and(is_recent) {
            return None;
        }
        *last = Some(now);
        Some(std::mem::take(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_kept_back_however_many_there_are() {
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
            assert_eq!(budget.connections(), Some(connections), "{limit}");
            let full = connections as u64;
            assert!(!budget.is_scarce(full), "{limit}");
            assert!(budget.is_scarce(limit - 1), "{limit}");
            assert!(budget.is_scarce(limit), "{limit}");
        }
        let budget = DescriptorBudget::new(None);
        assert_eq!(budget.connections(), None);
        assert!(!budget.is_scarce(1 << 40));
    }

    fn key(text: &str) -> Option<ClientKey> {
        ClientKey::of(PeerAddress::tcp(text.parse().unwrap()))
    }

    #[test]
    fn a_client_is_an_address_or_a_network_of_64_bits() {
        for (one, other, is_same) in [
            ("192.0.2.1:1", "192.0.2.1:2", true),
            ("192.0.2.1:1", "192.0.2.2:1", false),
            ("192.0.2.1:1", "[::ffff:192.0.2.1]:1", true),
            ("[2001:db8::1]:1", "[2001:db8::ffff:2]:1", true),
            ("[2001:db8::1]:1", "[2001:db8:0:1::1]:1", false),
            ("[0:0:ffff:c000::1]:1", "192.0.2.1:1", false),
        ] {
            let (one_key, other_key) = (key(one), key(other));
            assert!(one_key.is_some(), "{one}");
            assert_eq!(one_key == other_key, is_same, "{one} {other}");
        }
        assert_eq!(ClientKey::of(PeerAddress::Unix), None);
    }

    #[test]
    fn a_client_has_so_many_connections_and_others_have_theirs() {
        let counts = ClientCounts::default();
        let (one, other) = (key("192.0.2.1:1").unwrap(), key("192.0.2.2:1").unwrap());
        assert!(counts.admit(one, 2) && counts.admit(one, 2));
        assert!(!counts.admit(one, 2));
        assert!(counts.admit(other, 2));
        counts.add(one);
        counts.remove(one);
        assert!(!counts.admit(one, 2));
        counts.remove(one);
        assert!(counts.admit(one, 2));
        assert!(!counts.admit(key("192.0.2.3:1").unwrap(), 0));
        for key in [one, one, other] {
            counts.remove(key);
        }
        let is_empty = |shard: &Mutex<HashMap<_, _>>| shard.lock().unwrap().is_empty();
        assert!(counts.shards.iter().all(is_empty), "nothing is kept");
    }

    #[test]
    fn half_of_the_connections_is_for_one_client() {
        for (connections, expected) in [(2, 64), (1000, 500), (100_000, 50_000)] {
            assert_eq!(default_per_client(connections), expected);
        }
    }

    #[test]
    fn a_line_a_second_says_how_often_it_was() {
        let (log, now) = (OncePerSecond::default(), Instant::now());
        let at = |millis| log.count(now + Duration::from_millis(millis));
        assert_eq!(at(0), Some(1));
        assert_eq!((at(10), at(999)), (None, None));
        assert_eq!(at(1000), Some(3));
        assert_eq!(at(1999), None);
    }
}
