//! The part of a client's address that limits per client count by: the whole of an IPv4 address,
//! the first 64 bits of an IPv6 one, since a single customer has at least as many addresses.
//!
//! `edge` knows the address; components count by the prefix:
//! [`TempSpace`](crate::buffering::TempSpace) bytes, [`ClientPermits`] anything else.
//!
//! # Invariants
//! - Tables are keyed with a secret of this process: clients cannot choose addresses that collide.
//! - A table has an entry only for a client that holds something now.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use penstock_sys::net::PeerAddress;

/// The counted part of a client's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AddressPrefix(u64);

/// Clients on Unix sockets: a prefix that the internet does not have.
const UNIX: AddressPrefix = AddressPrefix(u64::MAX);

/// The high half of IPv4 addresses: a prefix that the internet does not have either.
const IPV4: u64 = 1 << 32;

impl AddressPrefix {
    /// The prefix of a client's address.
    #[must_use]
    pub fn from_address(client: PeerAddress) -> Self {
        match client {
            PeerAddress::Unix => UNIX,
            PeerAddress::Tcp(address) => match address.ip().to_canonical() {
                IpAddr::V4(address) => Self(IPV4 | u64::from(u32::from(address))),
                IpAddr::V6(address) => Self((u128::from(address) >> 64) as u64),
            },
        }
    }

    /// The prefix as a number, for another process.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The prefix of [`Self::to_bits`].
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

impl fmt::Display for AddressPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            _ if *self == UNIX => f.write_str("unix"),
            bits => match u32::try_from(bits ^ IPV4) {
                Ok(address) => Ipv4Addr::from(address).fmt(f),
                Err(_) => write!(f, "{}/64", Ipv6Addr::from(u128::from(bits) << 64)),
            },
        }
    }
}

/// The number of permits of each client.
#[derive(Debug, Default)]
pub struct ClientPermits {
    /// Held for a look-up only.
    counts: Mutex<HashMap<AddressPrefix, Arc<ClientCount>>>,
    refused_total: AtomicU64,
}

#[derive(Debug)]
struct ClientCount {
    permits: Arc<ClientPermits>,
    client: AddressPrefix,
    /// Changed under the table's lock.
    permit_count: AtomicUsize,
}

/// A permit, released when dropped. As small as can be: each held stream has one.
#[derive(Debug)]
pub struct ClientPermit(Arc<ClientCount>);

impl ClientPermits {
    /// A permit for a client with fewer than `max`.
    #[must_use]
    pub fn claim(self: &Arc<Self>, client: AddressPrefix, max: usize) -> Option<ClientPermit> {
        let mut counts = self.lock();
        let has = counts.get(&client);
        if has.map_or(0, |count| count.permit_count.load(Ordering::Relaxed)) >= max {
            self.refused_total.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let count = counts.entry(client).or_insert_with(|| {
            Arc::new(ClientCount {
                permits: Arc::clone(self),
                client,
                permit_count: AtomicUsize::new(0),
            })
        });
        count.permit_count.fetch_add(1, Ordering::Relaxed);
        Some(ClientPermit(Arc::clone(count)))
    }

    /// The number of permits of the client with the most.
    #[must_use]
    pub fn highest_permit_count(&self) -> usize {
        let counts = self.lock();
        let each = counts.values();
        each.map(|count| count.permit_count.load(Ordering::Relaxed))
            .max()
            .unwrap_or(0)
    }

    /// The number of clients with permits.
    #[must_use]
    pub fn client_count(&self) -> usize {
        self.lock().len()
    }

    /// The number of refusals.
    #[must_use]
    pub fn refused_total(&self) -> u64 {
        self.refused_total.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<AddressPrefix, Arc<ClientCount>>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientPermit {
    /// The client that it counts for.
    #[must_use]
    pub fn client(&self) -> AddressPrefix {
        self.0.client
    }
}

impl Drop for ClientPermit {
    fn drop(&mut self) {
        let mut counts = self.0.permits.lock();
        if self.0.permit_count.fetch_sub(1, Ordering::Relaxed) == 1 {
            counts.remove(&self.0.client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(address: &str) -> AddressPrefix {
        let ip: IpAddr = address.parse().unwrap();
        AddressPrefix::from_address(PeerAddress::tcp((ip, 1).into()))
    }

    #[test]
    fn an_ipv4_address_is_counted_whole_and_of_ipv6_the_first_half() {
        assert_eq!(prefix("192.0.2.1"), prefix("::ffff:192.0.2.1"));
        assert_ne!(prefix("192.0.2.1"), prefix("192.0.2.2"));
        assert_eq!(prefix("2001:db8::1"), prefix("2001:db8::ffff:0:1"));
        assert_ne!(prefix("2001:db8::1"), prefix("2001:db8:0:1::1"));
        let unix = AddressPrefix::from_address(PeerAddress::Unix);
        assert_ne!(unix, prefix("::1"));
        for (prefix, text) in [
            (prefix("192.0.2.1"), "192.0.2.1"),
            (prefix("2001:db8:0:1::2"), "2001:db8:0:1::/64"),
            (prefix("::1"), "::/64"),
            (unix, "unix"),
        ] {
            assert_eq!(prefix.to_string(), text);
            assert_eq!(AddressPrefix::from_bits(prefix.to_bits()), prefix);
        }
    }

    #[test]
    fn permits_are_bounded_per_client_and_released() {
        let permits = Arc::new(ClientPermits::default());
        let (one, other) = (prefix("192.0.2.1"), prefix("192.0.2.2"));
        let held: Vec<_> = (0..3).map_while(|_| permits.claim(one, 2)).collect();
        assert_eq!(held.len(), 2);
        assert!(permits.claim(other, 2).is_some());
        assert_eq!(
            (permits.client_count(), permits.highest_permit_count()),
            (1, 2)
        );
        assert_eq!(permits.refused_total(), 1);
        drop(held);
        assert_eq!(
            (permits.client_count(), permits.highest_permit_count()),
            (0, 0)
        );
        assert!(permits.claim(one, 1).is_some());
        assert!(permits.claim(one, 0).is_none());
    }
}
