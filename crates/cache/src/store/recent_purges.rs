//! The last purges, for responses that were requested before a purge and are stored after it.
//!
//! `fetch` reads the purge count when it sends a request ([`Store::purge_count`]). When its object
//! is listed, it checks whether a later purge matches ([`Store::is_purged_since`]).
//!
//! # Invariants
//!
//! - No later purge is missed: if more happened than are recorded, the answer is yes.
//! - Background purges scan objects in the pool only, one scan for all queued rules.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use penstock_runtime::blocking::Pool;
use penstock_runtime::{clock, loops};

use super::purge_rules::{MAX_PENDING_PURGES, PurgeRuleSet};
use super::{ObjectMeta, PurgeRule, Store};

/// Recorded purges of many objects. A busy shop purges tags some times a second, and a page takes
/// some seconds at most.
const MAX_WIDE_PURGES: usize = 256;

/// Recorded purges of one URL or key. Each write by a client may cause one.
const MAX_EXACT_PURGES: usize = 4096;

/// Delay before a full pool is retried.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// The last purges of one store.
#[derive(Debug, Default)]
pub(crate) struct RecentPurges {
    /// Locked for a record or a look-up only.
    log: Mutex<PurgeLog>,
    /// Rules for the next scan.
    queued: Mutex<QueuedPurges>,
    /// Rules are queued or being applied: look-ups skip matching objects.
    has_unapplied: AtomicBool,
}

#[derive(Debug, Default)]
struct PurgeLog {
    count: u64,
    /// Separate, so that frequent purges of one kind do not displace those of the other.
    wide: PurgeHistory,
    exact: PurgeHistory,
}

/// The last purges of one kind, each with its count, oldest first.
#[derive(Debug, Default)]
struct PurgeHistory {
    rules: VecDeque<(u64, PurgeRule)>,
    /// The count of the last purge that was dropped.
    last_forgotten: u64,
}

#[derive(Debug, Default)]
struct QueuedPurges {
    next: PurgeRuleSet,
    /// Rules being applied.
    in_progress: Option<Arc<PurgeRuleSet>>,
    is_running: bool,
}

impl PurgeHistory {
    fn record(&mut self, count: u64, rule: &PurgeRule, max: usize) {
        if self.rules.len() >= max
            && let Some((count, _)) = self.rules.pop_front()
        {
            self.last_forgotten = count;
        }
        self.rules.push_back((count, rule.clone()));
    }

    fn matches_since(&self, count: u64, meta: &ObjectMeta) -> bool {
        let since = self.rules.iter().rev().take_while(|(at, _)| *at > count);
        self.last_forgotten > count || since.into_iter().any(|(_, rule)| rule.matches(meta))
    }
}

impl RecentPurges {
    /// Records a purge, before it removes anything.
    pub(super) fn record(&self, rule: &PurgeRule) {
        let mut log = self.log.lock();
        log.count += 1;
        let count = log.count;
        match rule {
            PurgeRule::Key(_) | PurgeRule::Url(_) => {
                log.exact.record(count, rule, MAX_EXACT_PURGES);
            }
            PurgeRule::Prefix(_) | PurgeRule::Tag(_) | PurgeRule::All => {
                log.wide.record(count, rule, MAX_WIDE_PURGES);
            }
        }
    }

    fn matches_since(&self, count: u64, meta: &ObjectMeta) -> bool {
        let log = self.log.lock();
        log.wide.matches_since(count, meta) || log.exact.matches_since(count, meta)
    }

    /// Whether rules are queued or being applied. One atomic read.
    pub(super) fn is_filtering(&self) -> bool {
        self.has_unapplied.load(Relaxed)
    }

    pub(super) fn matches_unapplied(&self, meta: &ObjectMeta) -> bool {
        let queued = self.queued.lock();
        let in_progress = queued.in_progress.as_ref();
        queued.next.matches(meta) || in_progress.is_some_and(|rules| rules.matches(meta))
    }
}

impl Store {
    pub(crate) fn purge_count(&self) -> u64 {
        self.recent_purges.log.lock().count
    }

    /// Whether a purge after the first `count` matches the object. Call it once the object is
    /// listed ([`Store::begin_object`]): later purges find it there.
    pub(crate) fn is_purged_since(&self, count: u64, meta: &ObjectMeta) -> bool {
        self.recent_purges.matches_since(count, meta)
    }

    /// Removes the objects that `rule` matches, soon and in the pool, since the scan takes too long
    /// for an event loop. All queued rules share a scan. From now on look-ups skip matching
    /// objects, and matching responses in flight are not stored. Must be called on an event loop.
    pub(crate) fn purge_in_background(self: &Arc<Self>, rule: PurgeRule) {
        self.recent_purges.record(&rule);
        let is_at_work = {
            let mut queued = self.recent_purges.queued.lock();
            if queued.next.len() >= MAX_PENDING_PURGES {
                queued.next = PurgeRuleSet::new(vec![PurgeRule::All]);
            } else {
                queued.next.add(rule);
            }
            self.recent_purges.has_unapplied.store(true, Relaxed);
            std::mem::replace(&mut queued.is_running, true)
        };
        if !is_at_work {
            loops::spawn_here(purge_in_pool(Arc::downgrade(self), self.pool.clone()));
        }
    }

    /// Applies queued rules until none is left. Runs in a pool.
    fn run_queued_purges(&self) {
        loop {
            let rules = {
                let mut queued = self.recent_purges.queued.lock();
                queued.in_progress = None;
                if queued.next.len() == 0 {
                    queued.is_running = false;
                    self.recent_purges.has_unapplied.store(false, Relaxed);
                    return;
                }
                let rules = Arc::new(std::mem::take(&mut queued.next));
                queued.in_progress = Some(Arc::clone(&rules));
                rules
            };
            self.apply_purge(&rules);
        }
    }
}

/// Runs the queued purges in the pool, as soon as it has capacity.
async fn purge_in_pool(store: Weak<Store>, pool: Pool) {
    while let Some(store) = store.upgrade() {
        if pool.run(move || store.run_queued_purges()).await.is_ok() {
            return;
        }
        clock::sleep(RETRY_DELAY).await;
    }
}

#[cfg(test)]
mod tests {
    use penstock_http::caching::Lifetime;

    use super::*;

    fn meta(key: &[u8]) -> ObjectMeta {
        ObjectMeta {
            key: key.into(),
            status: penstock_http::Status::OK,
            fields: penstock_http::FieldBlock::new(),
            lifetime: Lifetime::from_words([0; 5]).unwrap(),
            request_time: Duration::ZERO,
            response_time: Duration::ZERO,
            vary_names: Vec::new(),
            variant: Vec::new(),
            tags: vec!["red".to_owned()],
            length: 0,
            slice_set: None,
        }
    }

    #[test]
    fn only_later_purges_count_and_none_is_missed() {
        let recent = RecentPurges::default();
        let meta = meta(b"http://a/x");
        recent.record(&PurgeRule::Tag("red".to_owned()));
        assert!(recent.matches_since(0, &meta));
        assert!(!recent.matches_since(1, &meta));
        recent.record(&PurgeRule::Tag("blue".to_owned()));
        assert!(!recent.matches_since(1, &meta));
        recent.record(&PurgeRule::Prefix("http://a/".to_owned()));
        assert!(recent.matches_since(1, &meta));
        // Purges of single URLs do not displace it.
        for _ in 0..MAX_EXACT_PURGES {
            recent.record(&PurgeRule::Url("http://b/".to_owned()));
        }
        assert!(recent.matches_since(2, &meta) && !recent.matches_since(3, &meta));
        recent.record(&PurgeRule::Url("http://a/x".to_owned()));
        // The fourth was dropped, and might have matched.
        let count = recent.log.lock().count;
        assert!(recent.matches_since(3, &meta) && recent.matches_since(count - 1, &meta));
        assert!(!recent.matches_since(count, &meta));
        for _ in 0..MAX_WIDE_PURGES {
            assert!(!recent.matches_since(count, &meta));
            recent.record(&PurgeRule::Prefix("http://b/".to_owned()));
        }
        recent.record(&PurgeRule::Prefix("http://b/".to_owned()));
        assert!(recent.matches_since(count, &meta));
    }
}
