//! What the clients of WebSockets may make this process hold: one message, all unfinished messages of an
//! application together, and for how long one may be on its way.
//!
//! `penstock`'s wiring says the limits, `session` keeps them. What must stay true: whatever a session
//! holds is counted, and is given back when the session ends, however it does.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Bytes of unfinished messages, of all an application's clients together.
const HELD_BYTES_MAX: usize = 64 << 20;

/// Whole messages that may always be on their way at once, however long one may be.
const LONGEST_AT_ONCE: usize = 4;

/// The limits of a client's messages, from `[limits]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageLimits {
    /// Bytes of one message (`limits.websocket_message_bytes`): 1009 above.
    pub message_bytes: usize,
    /// How long nothing may come of a message that was begun (`limits.body_stall`): 1008 after.
    pub stall: Duration,
    /// Bytes a second that a message must bring on the average (`limits.body_rate_min`); 0 is any.
    pub rate_min: u64,
}

impl Default for MessageLimits {
    fn default() -> Self {
        Self {
            message_bytes: 1 << 20,
            stall: Duration::from_secs(30),
            rate_min: 500,
        }
    }
}

/// Bytes of unfinished messages that an application's sessions hold.
#[derive(Debug, Default)]
pub(crate) struct Held(AtomicUsize);

impl Held {
    /// A session that held `before` bytes holds `now`; false when all of them hold too much.
    pub(super) fn change(&self, before: usize, now: usize, limits: &MessageLimits) -> bool {
        let max = HELD_BYTES_MAX.max(limits.message_bytes.saturating_mul(LONGEST_AT_ONCE));
        if now == before {
            return true;
        }
        if now < before {
            self.0.fetch_sub(before - now, Ordering::Relaxed);
            return true;
        }
        let more = now - before;
        self.0.fetch_add(more, Ordering::Relaxed) + more <= max
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// A message of which a part has come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Begun {
    since: Instant,
    got_at: Instant,
    bytes: usize,
}

impl Begun {
    pub(super) fn new(now: Instant, bytes: usize) -> Self {
        Self {
            since: now,
            got_at: now,
            bytes,
        }
    }

    /// So much of it is here now.
    pub(super) fn grow(&mut self, now: Instant, bytes: usize) {
        if bytes > self.bytes {
            (self.bytes, self.got_at) = (bytes, now);
        }
    }

    /// When it has taken too long, if nothing more comes.
    pub(super) fn deadline(&self, limits: &MessageLimits) -> Instant {
        let stalled = self.got_at + limits.stall;
        match (self.bytes as u64).checked_div(limits.rate_min) {
            Some(earned) => {
                let slow = self.since + limits.stall + Duration::from_secs(earned);
                stalled.min(slow)
            }
            None => stalled,
        }
    }
}
