//! The space of all temporary files together, and its shares.
//!
//! A [`TempSpace`] per server, in each [`BufferingSettings`](super::BufferingSettings). The writer
//! of a temporary file grows its [`TempSpaceGrant`] first; a file releases its grant once it is
//! closed.
//!
//! # Invariants
//! - All grants together never exceed the bound, from whichever loop or pool they come.
//! - Responses of one client never have more than a [`RESPONSE_SHARE`]th of the free space, so that
//!   others always find room; bodies of one client never more than it leaves to others.
//! - A trusted proxy that names no client is many clients: each file of it has such a share.
//! - Space is granted only right before it is written: a declared length reserves nothing.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use penstock_runtime::{OncePerSecondThrottle, clock};

use crate::AddressPrefix;

/// The share of free space for the responses of one client. Their bytes cost the client a request
/// each, so it gets less than for bodies, which it has to send.
const RESPONSE_SHARE: u64 = 16;

/// The minimum for a client's responses while there is room.
pub(super) const MIN_CLIENT_RESPONSE_BYTES: u64 = 128 << 10;

/// The purpose of a temporary file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TempFilePurpose {
    /// A response that its client has not taken yet.
    Response,
    /// A request body.
    Body,
}

/// The bound on all temporary files together.
#[derive(Debug)]
pub struct TempSpace {
    max: AtomicU64,
    /// The sum of the table, read without its lock.
    used: AtomicU64,
    waited_total: AtomicU64,
    refused_total: AtomicU64,
    /// Held for a sum only.
    usage_table: Mutex<UsageTable>,
    /// Responses that wait, for the log.
    wait_log: OncePerSecondThrottle,
}

#[derive(Debug, Default)]
struct UsageTable {
    used: u64,
    clients: HashMap<AddressPrefix, ClientUsage>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct ClientUsage {
    responses: u64,
    bodies: u64,
}

/// The space of one file, released when dropped.
#[derive(Debug)]
pub struct TempSpaceGrant {
    space: Arc<TempSpace>,
    client: Option<AddressPrefix>,
    purpose: TempFilePurpose,
    bytes: AtomicU64,
}

/// A [`TempSpace`] as the status shows it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TempSpaceSnapshot {
    /// The bound in bytes.
    pub max: u64,
    /// Bytes granted now.
    pub used: u64,
    /// How often a response found no room and waited for its client.
    pub waited_total: u64,
    /// Request bodies that found no room.
    pub refused_total: u64,
}

impl Default for TempSpace {
    /// Without a bound.
    fn default() -> Self {
        Self {
            max: AtomicU64::new(u64::MAX),
            used: AtomicU64::new(0),
            waited_total: AtomicU64::new(0),
            refused_total: AtomicU64::new(0),
            usage_table: Mutex::default(),
            wait_log: OncePerSecondThrottle::default(),
        }
    }
}

impl TempSpace {
    /// Sets the bound. Earlier grants above it stay.
    pub fn set_max(&self, bytes: u64) {
        self.max.store(bytes, Ordering::Relaxed);
    }

    /// Creates an empty grant, counted by [`ClientState::counted_address_prefix`].
    ///
    /// [`ClientState::counted_address_prefix`]: crate::ClientState::counted_address_prefix
    #[must_use]
    pub fn create_grant(
        self: &Arc<Self>,
        client: Option<AddressPrefix>,
        purpose: TempFilePurpose,
    ) -> Arc<TempSpaceGrant> {
        Arc::new(TempSpaceGrant {
            space: Arc::clone(self),
            client,
            purpose,
            bytes: AtomicU64::new(0),
        })
    }

    /// The granted bytes.
    #[must_use]
    pub fn snapshot(&self) -> TempSpaceSnapshot {
        TempSpaceSnapshot {
            max: self.max.load(Ordering::Relaxed),
            used: self.used.load(Ordering::Relaxed),
            waited_total: self.waited_total.load(Ordering::Relaxed),
            refused_total: self.refused_total.load(Ordering::Relaxed),
        }
    }

    /// Counts a response that waits for its client for want of space, and logs it once a second.
    pub(super) fn record_wait(&self, cause: impl FnOnce() -> String) {
        self.waited_total.fetch_add(1, Ordering::Relaxed);
        if let Some(count) = self.wait_log.count_event(clock::now()) {
            let cause = cause();
            log::warn!("temporary files: {count} responses wait for their clients: {cause}");
        }
    }

    pub(super) fn record_refusal(&self) {
        self.refused_total.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn refusal_cause(&self) -> String {
        let TempSpaceSnapshot { max, used, .. } = self.snapshot();
        format!("limits.temp_bytes has no room ({used} of {max} bytes are in use)")
    }
}

impl ClientUsage {
    fn bytes_for(&mut self, purpose: TempFilePurpose) -> &mut u64 {
        match purpose {
            TempFilePurpose::Response => &mut self.responses,
            TempFilePurpose::Body => &mut self.bodies,
        }
    }
}

impl UsageTable {
    /// Grants `bytes` more, if the bounds allow.
    fn grow(&mut self, max: u64, grant: &TempSpaceGrant, bytes: u64) -> bool {
        let left = max.saturating_sub(self.used);
        if bytes > left {
            return false;
        }
        let share = match grant.purpose {
            TempFilePurpose::Response => (left / RESPONSE_SHARE).max(MIN_CLIENT_RESPONSE_BYTES),
            // Half of everything for a single client, at once or bit by bit.
            TempFilePurpose::Body => left - bytes,
        };
        let is_granted = match grant.client {
            Some(client) => self.grow_client(client, grant.purpose, bytes, share),
            None => grant.bytes.load(Ordering::Relaxed).saturating_add(bytes) <= share,
        };
        if is_granted {
            self.used += bytes;
        }
        is_granted
    }

    /// Counts `bytes` more for a client, unless it would have more than `share`.
    fn grow_client(
        &mut self,
        client: AddressPrefix,
        purpose: TempFilePurpose,
        bytes: u64,
        share: u64,
    ) -> bool {
        let held = self.clients.entry(client).or_default();
        let held_bytes = held.bytes_for(purpose);
        let is_granted = held_bytes.saturating_add(bytes) <= share;
        if is_granted {
            *held_bytes += bytes;
        } else if *held == ClientUsage::default() {
            self.clients.remove(&client);
        }
        is_granted
    }

    fn release(&mut self, grant: &TempSpaceGrant, bytes: u64) {
        self.used -= bytes;
        let Some(client) = grant.client else {
            return;
        };
        if let Entry::Occupied(mut entry) = self.clients.entry(client) {
            let held = entry.get_mut();
            *held.bytes_for(grant.purpose) -= bytes;
            if *held == ClientUsage::default() {
                entry.remove();
            }
        }
    }
}

impl TempSpaceGrant {
    /// Adds `bytes`, all or none; returns whether it did.
    #[must_use]
    pub fn try_grow(&self, bytes: u64) -> bool {
        let space = &self.space;
        let mut usage_table = space
            .usage_table
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let is_granted = usage_table.grow(space.max.load(Ordering::Relaxed), self, bytes);
        if is_granted {
            space.used.store(usage_table.used, Ordering::Relaxed);
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        is_granted
    }
}

impl Drop for TempSpaceGrant {
    fn drop(&mut self) {
        let bytes = *self.bytes.get_mut();
        if bytes > 0 {
            let space = &self.space;
            let mut usage_table = space
                .usage_table
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            usage_table.release(self, bytes);
            space.used.store(usage_table.used, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    fn space(max: u64) -> Arc<TempSpace> {
        let space = Arc::new(TempSpace::default());
        space.set_max(max);
        space
    }

    /// Grows by 128 KiB until refused; returns the bytes granted.
    fn fill(grant: &TempSpaceGrant) -> u64 {
        (0..).take_while(|_| grant.try_grow(128 * KIB)).count() as u64 * 128 * KIB
    }

    fn client(number: u64) -> Option<AddressPrefix> {
        Some(AddressPrefix::from_bits(number))
    }

    #[test]
    fn all_grants_together_stay_within_the_bound() {
        let max = 64 << 20;
        let space = space(max);
        let grants: Vec<_> = (0..2000)
            .map(|number| space.create_grant(client(number), TempFilePurpose::Response))
            .collect();
        let all: u64 = grants.iter().map(|grant| fill(grant)).sum();
        assert_eq!(space.snapshot().used, all);
        assert!(all <= max && all > max / 10 * 9, "{all}");
        drop(grants);
        assert_eq!(space.snapshot().used, 0);
        assert!(space.usage_table.lock().unwrap().clients.is_empty());
    }

    #[test]
    fn one_client_leaves_room_for_others() {
        let max = 340 << 20;
        let space = space(max);
        let grants: Vec<_> = (0..100)
            .map(|_| space.create_grant(client(1), TempFilePurpose::Response))
            .collect();
        let all: u64 = grants.iter().map(|grant| fill(grant)).sum();
        // A sixteenth of the free space then.
        assert!(all <= max / 17 && all > max / 20, "{all}");
        let body = space.create_grant(client(1), TempFilePurpose::Body);
        let taken = fill(&body);
        assert!(taken <= max / 2 && taken > max / 5 * 2, "{taken}");
        // The next clients still find some.
        let other = space.create_grant(client(2), TempFilePurpose::Body);
        assert!(fill(&other) > max / 8);
        assert!(fill(&space.create_grant(client(3), TempFilePurpose::Response)) > 2 << 20);
    }

    #[test]
    fn a_small_space_is_used_as_well() {
        let space = space(300 * KIB);
        let (one, two, three) = (client(1), client(2), client(3));
        let grants = [one, one, two, three]
            .map(|client| space.create_grant(client, TempFilePurpose::Response));
        let filled = grants.each_ref().map(|grant| fill(grant));
        assert_eq!(filled, [128 * KIB, 0, 128 * KIB, 0]);
    }

    #[test]
    fn a_proxy_that_names_no_client_has_a_share_for_each_file() {
        let max = 340 << 20;
        let space = space(max);
        let slow = space.create_grant(None, TempFilePurpose::Response);
        let taken = fill(&slow);
        assert!(taken <= max / 17 && taken > max / 20, "{taken}");
        // Other clients behind it still find room, for both uses.
        let next = space.create_grant(None, TempFilePurpose::Response);
        assert!(fill(&next) > max / 20);
        let bodies = [(); 2].map(|()| space.create_grant(None, TempFilePurpose::Body));
        let [first, second] = bodies.each_ref().map(|body| fill(body));
        assert!(first <= max / 2 && first > max / 3, "{first}");
        assert!(second > max / 8, "{second}");
        let named = space.create_grant(client(1), TempFilePurpose::Response);
        assert!(fill(&named) > 2 << 20);
        // The bound on everything holds for them together.
        let many: Vec<_> = (0..2000)
            .map(|_| space.create_grant(None, TempFilePurpose::Response))
            .collect();
        let more: u64 = many.iter().map(|grant| fill(grant)).sum();
        assert!(more > 0);
        assert!(space.snapshot().used <= max);
        drop((slow, next, bodies, named, many));
        assert_eq!(space.snapshot().used, 0);
        assert!(space.usage_table.lock().unwrap().clients.is_empty());
    }

    #[test]
    fn nothing_is_granted_in_part() {
        let space = space(1000);
        let body = space.create_grant(client(1), TempFilePurpose::Body);
        assert!(!body.try_grow(1001));
        // Not all free space at once either.
        assert!(!body.try_grow(501));
        assert!(body.try_grow(500));
        // It may have all the free space besides.
        assert!(!body.try_grow(1));
        assert_eq!(space.snapshot().used, 500);
        drop(body);
        assert_eq!(space.snapshot().used, 0);
    }

    #[test]
    fn many_threads_never_exceed_the_bound() {
        let space = space(40 << 20);
        std::thread::scope(|scope| {
            for number in 0..4 {
                let space = &space;
                scope.spawn(move || {
                    for round in 0..200 {
                        let client = client(number * 1000 + round);
                        let grant = space.create_grant(client, TempFilePurpose::Body);
                        fill(&grant);
                        let usage = space.snapshot();
                        assert!(usage.used <= usage.max);
                    }
                });
            }
        });
        assert_eq!(space.snapshot().used, 0);
    }
}
