//! Graceful drain: tells everything that runs to finish and counts what still runs.
//!
//! Listeners, connections, workers and the admin interface hold a [`DrainGuard`]. `begin` tells
//! them all; `wait_until_finished` waits for the last guard to drop. A million idle connections
//! must not wait in a future each, so a connection registers its task's waker once, when it starts,
//! and is polled when the drain begins.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// A set of running things that can be told to finish. Clones are cheap and share the set.
#[derive(Debug, Clone, Default)]
pub struct Drain {
    inner: Arc<DrainInner>,
}

#[derive(Debug, Default)]
struct DrainInner {
    is_draining: AtomicBool,
    /// How long idle holders may continue to wait; set right before the drain begins.
    idle_limits: OnceLock<IdleLimits>,
    running: AtomicUsize,
    state_changed: Notify,
    /// Wakers of tasks to poll once when the drain begins, by guard number, sharded by loop to
    /// avoid contention. Never held across an await.
    wakers: [Mutex<DrainWakers>; SHARDS],
}

/// How long idle holders may wait during a drain.
#[derive(Debug, Clone, Copy)]
struct IdleLimits {
    /// At least until then.
    until: Instant,
    /// And for this long after activity.
    after_busy: Duration,
    /// Never beyond that.
    end: Option<Instant>,
}

/// Maximum time that a connection waits for the next request after a response that outlived the
/// idle time.
const MAX_IDLE_AFTER_BUSY: Duration = Duration::from_secs(1);

const SHARDS: usize = 16;

#[derive(Debug, Default)]
struct DrainWakers {
    next_number: u64,
    by_number: HashMap<u64, Waker>,
}

/// One running thing, until it is dropped.
#[derive(Debug)]
pub struct DrainGuard {
    drain: Drain,
    waker: Option<(usize, u64)>,
}

impl Drain {
    /// Creates an empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts one more running thing.
    #[must_use]
    pub fn guard(&self) -> DrainGuard {
        self.inner.running.fetch_add(1, Ordering::AcqRel);
        DrainGuard {
            drain: self.clone(),
            waker: None,
        }
    }

    /// Whether the drain has begun.
    pub fn is_draining(&self) -> bool {
        self.inner.is_draining.load(Ordering::Acquire)
    }

    /// Number of live guards.
    pub fn running_count(&self) -> usize {
        self.inner.running.load(Ordering::Acquire)
    }

    /// Until when an idle holder may wait, once the drain has begun: the next request of a
    /// keep-alive connection may be on its way.
    pub fn idle_deadline(&self) -> Option<Instant> {
        let idle = self.is_draining().then(|| self.inner.idle_limits.get())??;
        Some(idle.until)
    }

    /// The same for a holder that was busy until `now`: it may wait a moment more.
    #[must_use]
    pub fn idle_deadline_after_busy(&self, now: Instant) -> Option<Instant> {
        let idle = self.is_draining().then(|| self.inner.idle_limits.get())??;
        let until = idle.until.max(now + idle.after_busy);
        Some(idle.end.map_or(until, |end| until.min(end)))
    }

    /// Starts the drain; idle holders finish at once.
    pub fn begin(&self) {
        self.begin_with_idle_timeout(Duration::ZERO, None);
    }

    /// Starts the drain. Idle holders may wait for `idle`, and holders that were busy for a moment
    /// after that, but not beyond `end`. Of several calls the first one's times count.
    pub fn begin_with_idle_timeout(&self, idle: Duration, end: Option<Instant>) {
        let _ = self.inner.idle_limits.set(IdleLimits {
            until: crate::clock::now() + idle,
            after_busy: idle.min(MAX_IDLE_AFTER_BUSY),
            end,
        });
        self.inner.is_draining.store(true, Ordering::Release);
        self.inner.state_changed.notify_waiters();
        for shard in &self.inner.wakers {
            let wakers = std::mem::take(&mut lock(shard).by_number);
            wakers.into_values().for_each(Waker::wake);
        }
    }

    /// Waits until the drain begins.
    pub async fn wait_until_begun(&self) {
        loop {
            let changed = self.inner.state_changed.notified();
            if self.is_draining() {
                return;
            }
            changed.await;
        }
    }

    /// Waits until no guard is left.
    pub async fn wait_until_finished(&self) {
        loop {
            let changed = self.inner.state_changed.notified();
            if self.running_count() == 0 {
                return;
            }
            changed.await;
        }
    }
}

impl DrainGuard {
    /// The set this guard belongs to.
    pub fn drain(&self) -> &Drain {
        &self.drain
    }

    /// Registers the task to be polled when the drain begins; `shard` is the loop's index.
    pub fn wake_at_drain(&mut self, shard: usize, waker: Waker) {
        let shard = shard % SHARDS;
        let mut wakers = lock(&self.drain.inner.wakers[shard]);
        let number = wakers.next_number;
        wakers.next_number += 1;
        wakers.by_number.insert(number, waker);
        self.waker = Some((shard, number));
    }
}

impl Drop for DrainGuard {
    fn drop(&mut self) {
        if let Some((shard, number)) = self.waker {
            lock(&self.drain.inner.wakers[shard])
                .by_number
                .remove(&number);
        }
        if self.drain.inner.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.drain.inner.state_changed.notify_waiters();
        }
    }
}

/// A panic while the lock was held left nothing half done: every critical section is one statement.
fn lock(shard: &Mutex<DrainWakers>) -> MutexGuard<'_, DrainWakers> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_were_busy_may_idle_a_moment_longer() {
        let drain = Drain::new();
        let (now, second) = (crate::clock::now(), Duration::from_secs(1));
        assert_eq!(
            (drain.idle_deadline(), drain.idle_deadline_after_busy(now)),
            (None, None)
        );
        drain.begin_with_idle_timeout(5 * second, Some(now + 30 * second));
        let until = drain.idle_deadline().unwrap();
        assert_eq!(drain.idle_deadline_after_busy(now), Some(until));
        let late = now + 10 * second;
        assert_eq!(drain.idle_deadline_after_busy(late), Some(late + second));
        assert_eq!(
            drain.idle_deadline_after_busy(now + 40 * second),
            Some(now + 30 * second)
        );
        let at_once = Drain::new();
        at_once.begin();
        assert_eq!(at_once.idle_deadline_after_busy(late), Some(late));
    }

    #[test]
    fn a_drain_is_finished_when_the_last_guard_drops() {
        let drain = Drain::new();
        let guard = drain.guard();
        let ended = crate::loops::block_on(async {
            drain.begin();
            drain.wait_until_begun().await;
            let waiting = drain.wait_until_finished();
            let ending = async { drop(guard) };
            tokio::join!(waiting, ending);
            assert_eq!(drain.running_count(), 0);
        });
        ended.unwrap();
    }
}
