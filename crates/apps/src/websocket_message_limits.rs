//! Limits of the memory and time that the clients of WebSockets may use for incomplete messages: of
//! one message, of one client, and of all clients of an application.
//!
//! `penstock`'s wiring sets the limits, WebSocket sessions keep them.
//!
//! # Invariants
//! - All bytes that a session holds are counted, and released when the session ends.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use penstock_exchange::AddressPrefix;

/// Bytes of unfinished messages, of all an application's clients together.
const MAX_HELD_BYTES: usize = 64 << 20;

/// The part of them that is kept for clients that hold no more than `LEAST` part of all: 1 MiB.
const RESERVED: usize = 4;
const LEAST: usize = 64;

/// Complete messages that may always arrive at once, however long one may be.
const MIN_CONCURRENT_MESSAGES: usize = 4;

/// The limits of a client's messages, from `[limits]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WebSocketMessageLimits {
    /// Bytes of one message (`limits.websocket_message_bytes`): 1009 above.
    pub max_message_bytes: usize,
    /// How long a begun message may stall (`limits.body_idle_timeout`): 1008 after.
    pub idle_timeout: Duration,
    /// Average bytes a second of a message, at least (`limits.min_body_rate`); 0 is any.
    pub min_rate: u64,
}

impl Default for WebSocketMessageLimits {
    fn default() -> Self {
        Self {
            max_message_bytes: 1 << 20,
            idle_timeout: Duration::from_secs(30),
            min_rate: 500,
        }
    }
}

/// Bytes of unfinished messages that an application's sessions hold.
#[derive(Debug, Default)]
pub(crate) struct HeldMessageBytes {
    all: AtomicUsize,
    /// By client. Held for a sum only.
    clients: Mutex<HashMap<AddressPrefix, usize>>,
}

impl HeldMessageBytes {
    /// Records that a session of `client` held `before` bytes and holds `now`. False when all of
    /// them hold too much, or this client more than it leaves to others, without the reserve.
    pub(super) fn record_change(
        &self,
        client: Option<AddressPrefix>,
        (before, now): (usize, usize),
        limits: &WebSocketMessageLimits,
    ) -> bool {
        if now == before {
            return true;
        }
        let own = client.map_or(0, |client| self.change_client(client, before, now));
        if now < before {
            self.all.fetch_sub(before - now, Ordering::Relaxed);
            return true;
        }
        let max = MAX_HELD_BYTES.max(
            limits
                .max_message_bytes
                .saturating_mul(MIN_CONCURRENT_MESSAGES),
        );
        let more = now - before;
        let all = self.all.fetch_add(more, Ordering::Relaxed) + more;
        let left = (max - max / RESERVED).saturating_sub(all);
        all <= max && own <= left.max(max / LEAST)
    }

    fn change_client(&self, client: AddressPrefix, before: usize, now: usize) -> usize {
        let mut clients = self.clients.lock();
        let held = clients.entry(client).or_default();
        *held = (*held + now).saturating_sub(before);
        let own = *held;
        if own == 0 {
            clients.remove(&client);
        }
        own
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.all.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct PartialMessage {
    started_at: Instant,
    grew_at: Instant,
    bytes: usize,
}

impl PartialMessage {
    pub(super) fn new(now: Instant, bytes: usize) -> Self {
        Self {
            started_at: now,
            grew_at: now,
            bytes,
        }
    }

    pub(super) fn record_bytes(&mut self, now: Instant, bytes: usize) {
        if bytes > self.bytes {
            (self.bytes, self.grew_at) = (bytes, now);
        }
    }

    /// When it has taken too long, if nothing more comes.
    pub(super) fn deadline(&self, limits: &WebSocketMessageLimits) -> Instant {
        let stalled = self.grew_at + limits.idle_timeout;
        match (self.bytes as u64).checked_div(limits.min_rate) {
            Some(earned) => {
                let slow = self.started_at + limits.idle_timeout + Duration::from_secs(earned);
                stalled.min(slow)
            }
            None => stalled,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use penstock_sys::net::PeerAddress;

    use super::*;

    #[test]
    fn one_client_leaves_room_for_the_messages_of_others() {
        let (held, limits) = (
            HeldMessageBytes::default(),
            WebSocketMessageLimits::default(),
        );
        let client = |last| {
            let address = SocketAddr::from(([192, 0, 2, last], 0));
            Some(AddressPrefix::from_address(PeerAddress::tcp(address)))
        };
        let message = limits.max_message_bytes;
        let taken = (0..100).take_while(|_| held.record_change(client(1), (0, message), &limits));
        assert_eq!(taken.count(), 24);
        // Another finds half of the rest, and refused bytes count until their session is over.
        assert!(!held.record_change(client(1), (0, message), &limits));
        held.record_change(client(1), (2 * message, 0), &limits);
        let taken = (0..100).take_while(|_| held.record_change(client(2), (0, message), &limits));
        assert_eq!(taken.count(), 12);
        // A proxy that does not name its clients may have many.
        assert!(held.record_change(None, (0, message), &limits));
        held.record_change(client(1), (24 * message, 0), &limits);
        held.record_change(client(2), (13 * message, 0), &limits);
        held.record_change(None, (message, 0), &limits);
        assert_eq!(held.bytes(), 0);
        assert!(held.clients.lock().is_empty());
    }

    #[test]
    fn many_greedy_clients_leave_a_message_to_each_other_one() {
        let (held, limits) = (
            HeldMessageBytes::default(),
            WebSocketMessageLimits::default(),
        );
        let client = |last| {
            let address = SocketAddr::from(([192, 0, 2, last], 0));
            Some(AddressPrefix::from_address(PeerAddress::tcp(address)))
        };
        let piece = limits.max_message_bytes / 32;
        for greedy in 0..10 {
            while held.record_change(client(greedy), (0, piece), &limits) {}
            held.record_change(client(greedy), (piece, 0), &limits);
        }
        for other in 10..18 {
            let message = limits.max_message_bytes;
            assert!(
                held.record_change(client(other), (0, message), &limits),
                "{other}"
            );
        }
    }
}
