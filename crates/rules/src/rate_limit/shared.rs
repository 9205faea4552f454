//! Rates that several servers share: what this server may let through without asking, and what it
//! asks for.
//!
//! Redis has the time at which each key is idle again, and grants cells, one for each request. A
//! server asks for all keys in one batch at a time, for the requests that wait and, where the rate is
//! high, for some more: requests that come next are let through at once. Until the time at which a
//! key has cells again its requests are refused at once, too. `penstock` carries the batches.
//!
//! # Invariants
//! - A request passes by a cell that was granted, and each cell passes one request. A cell that is
//!   not used within `LEASE_TIME` passes none.
//! - While Redis is away no request waits for it: the server limits alone.
//! - The keys, and the requests that wait for a key, are bounded. Beyond that the server limits
//!   alone, or refuses.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aws_lc_rs::digest;
use tokio::sync::{Notify, oneshot};

use super::RateLimit;

/// How long a cell that was granted ahead may wait for its request.
const LEASE_TIME: Duration = Duration::from_secs(1);

/// A server asks for the cells of this time ahead.
const LEASE_AHEAD: Duration = Duration::from_millis(50);

/// Cells ahead are at most this part of a burst, so that servers do not take it from one another.
const LEASE_PART: u64 = 10;

/// Keys of all rules. A key without cells, requests and refusals is forgotten.
const MAX_KEYS: usize = 65_536;

/// Requests of one key that wait for an answer of Redis.
const MAX_WAITING: usize = 1024;

/// Keys of one batch: some 40 KiB.
const MAX_BATCH: usize = 512;

/// A key of a rule, the same on all servers.
pub type SharedKey = [u8; 16];

/// The shared rates of a server.
#[derive(Debug)]
pub struct SharedRates {
    /// Held for a look or a change of one key or one batch, never across a wait.
    keys: Mutex<Keys>,
    asked: Notify,
    is_away: AtomicBool,
    decided_alone: AtomicU64,
}

#[derive(Debug, Default)]
struct Keys {
    leases: HashMap<SharedKey, Lease>,
    /// Keys that are to be in the next batch.
    queue: Vec<SharedKey>,
    pruned_at: Option<Instant>,
}

/// What this server knows of a key.
#[derive(Debug)]
struct Lease {
    limit: RateLimit,
    cells: u32,
    cells_until: Instant,
    refused_until: Instant,
    waiting: Vec<oneshot::Sender<SharedAnswer>>,
    is_asked: bool,
}

/// What becomes of a request of a key.
#[derive(Debug)]
pub enum SharedDecision {
    /// It is known.
    Known(SharedAnswer),
    /// It comes with the next batch. A receiver that is dropped gives its cell back.
    Pending(oneshot::Receiver<SharedAnswer>),
}

/// The answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SharedAnswer {
    /// It goes on.
    Allow,
    /// It is refused; one after this time may go on.
    Refuse(Duration),
    /// This server decides alone.
    Alone,
}

/// Cells that this server asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CellRequest {
    /// The key.
    pub key: SharedKey,
    /// Nanoseconds that one request takes at the rate.
    pub interval_nanos: u64,
    /// Nanoseconds that a key may be ahead.
    pub burst_nanos: u64,
    /// How many, at most.
    pub cells: u32,
}

/// Cells that Redis grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CellGrant {
    /// How many.
    pub cells: u32,
    /// After which time there is another one.
    pub wait: Duration,
}

/// The key of a rule and what it counts, the same on all servers with that rule.
#[must_use]
pub fn shared_key(rule: &str, key: &[u8]) -> SharedKey {
    let mut context = digest::Context::new(&digest::SHA256);
    for part in [rule.as_bytes(), b"\0", key] {
        context.update(part);
    }
    let mut short = [0; 16];
    short.copy_from_slice(&context.finish().as_ref()[..16]);
    short
}

impl Default for SharedRates {
    fn default() -> Self {
        Self {
            keys: Mutex::default(),
            asked: Notify::new(),
            // Until the first connection.
            is_away: AtomicBool::new(true),
            decided_alone: AtomicU64::new(0),
        }
    }
}

impl SharedRates {
    /// Decides about a request of a key, or asks for it.
    #[must_use]
    pub fn take(&self, key: SharedKey, limit: &RateLimit, now: Instant) -> SharedDecision {
        let decision = match self.is_away.load(Ordering::Relaxed) {
            true => SharedDecision::Known(SharedAnswer::Alone),
            false => self.lock().take(key, limit, now, &self.asked),
        };
        if matches!(decision, SharedDecision::Known(SharedAnswer::Alone)) {
            self.note_decided_alone();
        }
        decision
    }

    /// Counts a request that this server has decided about alone.
    pub fn note_decided_alone(&self) {
        self.decided_alone.fetch_add(1, Ordering::Relaxed);
    }

    /// How many requests this server has decided about alone.
    #[must_use]
    pub fn decided_alone(&self) -> u64 {
        self.decided_alone.load(Ordering::Relaxed)
    }

    /// Whether Redis answers.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        !self.is_away.load(Ordering::Relaxed)
    }

    /// Notes that Redis answers.
    pub fn connect(&self) {
        self.is_away.store(false, Ordering::Relaxed);
    }

    /// Notes that Redis does not answer: requests that wait are decided about alone.
    pub fn disconnect(&self) {
        self.is_away.store(true, Ordering::Relaxed);
        let mut keys = self.lock();
        keys.queue.clear();
        for (_, lease) in keys.leases.drain() {
            for waiting in lease.waiting {
                self.note_decided_alone();
                // One that waits no longer needs no answer.
                let _ = waiting.send(SharedAnswer::Alone);
            }
        }
    }

    /// The next batch, once there is one.
    ///
    /// # Cancel safety
    /// Nothing is lost if the future is dropped.
    pub async fn next_batch(&self) -> Vec<CellRequest> {
        loop {
            let batch = self.lock().batch();
            if !batch.is_empty() {
                return batch;
            }
            self.asked.notified().await;
        }
    }

    /// Notes the answer to a batch, in its order.
    pub fn complete(&self, batch: &[CellRequest], grants: &[CellGrant], now: Instant) {
        let mut keys = self.lock();
        for (request, grant) in batch.iter().zip(grants) {
            keys.complete(request, grant, now);
        }
        if !keys.queue.is_empty() {
            self.asked.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Keys {
    fn take(
        &mut self,
        key: SharedKey,
        limit: &RateLimit,
        now: Instant,
        asked: &Notify,
    ) -> SharedDecision {
        use SharedAnswer::{Allow, Alone, Refuse};
        if !self.leases.contains_key(&key) && !self.has_room(now) {
            return SharedDecision::Known(Alone);
        }
        let lease = self
            .leases
            .entry(key)
            .or_insert_with(|| Lease::new(limit, now));
        let (decision, asks) = if lease.cells > 0 && now < lease.cells_until {
            lease.cells -= 1;
            // The next ones should find some, too.
            let ahead = lease.cells_ahead();
            let asks = ahead > 0 && lease.cells <= ahead / 2 && now >= lease.refused_until;
            (SharedDecision::Known(Allow), asks)
        } else if now < lease.refused_until {
            let wait = lease.refused_until - now;
            (SharedDecision::Known(Refuse(wait)), false)
        } else if lease.waiting.len() >= MAX_WAITING {
            let wait = Duration::from_nanos(limit.interval);
            (SharedDecision::Known(Refuse(wait)), false)
        } else {
            let (answer, receiver) = oneshot::channel();
            lease.waiting.push(answer);
            (SharedDecision::Pending(receiver), true)
        };
        if asks && !lease.is_asked {
            lease.is_asked = true;
            self.queue.push(key);
            asked.notify_one();
        }
        decision
    }

    /// Whether another key has room; looks for keys to forget at most once a second.
    fn has_room(&mut self, now: Instant) -> bool {
        if self.leases.len() < MAX_KEYS {
            return true;
        }
        let is_due = self.pruned_at.is_none_or(|at| now >= at + LEASE_TIME);
        if is_due {
            self.pruned_at = Some(now);
            self.leases.retain(|_, lease| !lease.is_idle(now));
        }
        self.leases.len() < MAX_KEYS
    }

    fn batch(&mut self) -> Vec<CellRequest> {
        let count = self.queue.len().min(MAX_BATCH);
        let queue = self.queue.drain(..count);
        let request = |key: SharedKey| {
            let lease = self.leases.get(&key)?;
            let waiting = u32::try_from(lease.waiting.len()).unwrap_or(u32::MAX);
            Some(CellRequest {
                key,
                interval_nanos: lease.limit.interval,
                burst_nanos: lease.limit.burst,
                cells: waiting.saturating_add(lease.cells_ahead()).max(1),
            })
        };
        queue.filter_map(request).collect()
    }

    fn complete(&mut self, request: &CellRequest, grant: &CellGrant, now: Instant) {
        let Some(lease) = self.leases.get_mut(&request.key) else {
            return;
        };
        let left = if now < lease.cells_until {
            lease.cells
        } else {
            0
        };
        lease.cells = left.saturating_add(grant.cells.min(request.cells));
        // What is left of the cells before keeps its end.
        lease.cells_until = match left {
            0 => now + LEASE_TIME,
            _ => lease.cells_until,
        };
        lease.refused_until = now + grant.wait;
        lease.is_asked = false;
        let mut waiting = std::mem::take(&mut lease.waiting).into_iter();
        while lease.cells > 0 {
            let Some(first) = waiting.next() else {
                break;
            };
            if first.send(SharedAnswer::Allow).is_ok() {
                lease.cells -= 1;
            }
        }
        if grant.wait.is_zero() {
            // Those that came meanwhile are asked for next.
            lease.waiting = waiting.collect();
            if !lease.waiting.is_empty() {
                lease.is_asked = true;
                self.queue.push(request.key);
            }
            return;
        }
        for refused in waiting {
            // One that waits no longer needs no answer.
            let _ = refused.send(SharedAnswer::Refuse(grant.wait));
        }
    }
}

impl Lease {
    fn new(limit: &RateLimit, now: Instant) -> Self {
        Self {
            limit: *limit,
            cells: 0,
            cells_until: now,
            refused_until: now,
            waiting: Vec::new(),
            is_asked: false,
        }
    }

    /// How many cells are asked for beyond those of the requests that wait.
    fn cells_ahead(&self) -> u32 {
        let of_time =
            u64::try_from(LEASE_AHEAD.as_nanos()).unwrap_or(u64::MAX) / self.limit.interval;
        let of_burst = (self.limit.burst / self.limit.interval + 1) / LEASE_PART;
        u32::try_from(of_time.min(of_burst)).unwrap_or(u32::MAX)
    }

    fn is_idle(&self, now: Instant) -> bool {
        let has_cells = self.cells > 0 && now < self.cells_until;
        !has_cells && now >= self.refused_until && self.waiting.is_empty() && !self.is_asked
    }
}

#[cfg(test)]
mod tests;
