//! The last purges, for what was asked of a back end before them and is stored after.
//!
//! `fetch` notes how many there were when it asks ([`Store::purges`]) and asks when its object is listed
//! whether one since then means it ([`Store::is_purged_since`]). What must stay true: none since then is
//! missed; where more happened than are remembered the answer is yes;
//! objects are looked at in the pool only, by one look for all that is to be taken out.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use penstock_runtime::blocking::Pool;
use penstock_runtime::{clock, loops};

use super::purge_rules::{MAX_PENDING_PURGES, PurgeRuleSet};
use super::{ObjectMeta, PurgeRule, Store};

/// Purges of many objects remembered. Tags of a busy shop are purged some times a second, and a page takes some
/// seconds at most.
const MAX_WIDE_PURGES: usize = 256;

/// Purges of one URL or key remembered: each write that a client makes may be one.
const MAX_EXACT_PURGES: usize = 4096;

/// A full pool is asked again after this time.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// The last purges of one store.
#[derive(Debug, Default)]
pub(crate) struct RecentPurges {
    /// Held for a note or a look.
    log: Mutex<PurgeLog>,
    /// What is to be taken out by the next look at all objects.
    queued: Mutex<QueuedPurges>,
    /// Something waits for it: what is meant is not found any more.
    is_filtering: AtomicBool,
}

#[derive(Debug, Default)]
struct PurgeLog {
    /// Purges so far.
    count: u64,
    /// So that the many of one kind do not push out the few of the other.
    wide: PurgeHistory,
    exact: PurgeHistory,
}

/// The last purges of a kind, each with its count, oldest first.
#[derive(Debug, Default)]
struct PurgeHistory {
    rules: VecDeque<(u64, PurgeRule)>,
    /// The count of the last that is forgotten.
    last_forgotten: u64,
}

#[derive(Debug, Default)]
struct QueuedPurges {
    next: PurgeRuleSet,
    /// What is being taken out.
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
    /// Notes a purge, before anything is taken out by it.
    pub(super) fn record(&self, rule: &PurgeRule) {
        let mut noted = self.lock();
        noted.count += 1;
        let count = noted.count;
        match rule {
            PurgeRule::Key(_) | PurgeRule::Url(_) => {
                noted.exact.record(count, rule, MAX_EXACT_PURGES);
            }
            PurgeRule::Prefix(_) | PurgeRule::Tag(_) | PurgeRule::All => {
                noted.wide.record(count, rule, MAX_WIDE_PURGES);
            }
        }
    }

    fn matches_since(&self, count: u64, meta: &ObjectMeta) -> bool {
        let noted = self.lock();
        noted.wide.matches_since(count, meta) || noted.exact.matches_since(count, meta)
    }

    fn lock(&self) -> MutexGuard<'_, PurgeLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether something is to be taken out by a look that is not over. One atomic read.
    pub(super) fn is_filtering(&self) -> bool {
        self.is_filtering.load(Relaxed)
    }

    /// Whether an object is to be taken out so.
    pub(super) fn filters(&self, meta: &ObjectMeta) -> bool {
        let waiting = self.queued();
        let now = waiting.in_progress.as_ref();
        waiting.next.matches(meta) || now.is_some_and(|rules| rules.matches(meta))
    }

    fn queued(&self) -> MutexGuard<'_, QueuedPurges> {
        self.queued.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store {
    /// How many purges there were.
    pub(crate) fn purge_count(&self) -> u64 {
        self.recent_purges.lock().count
    }

    /// Whether one of the purges since there were `count` means an object. To be asked once it is listed
    /// ([`Store::begin`]): later ones find it there.
    pub(crate) fn is_purged_since(&self, count: u64, meta: &ObjectMeta) -> bool {
        self.recent_purges.matches_since(count, meta)
    }

    /// Takes out what `rule` means, soon and in the pool: the look at every object is too long for a loop. All
    /// that wait for one share it. From here on it is not found, and what is on its way from a back end is
    /// meant, too. To be called on a loop.
    pub(crate) fn purge_in_background(self: &Arc<Self>, rule: PurgeRule) {
        self.recent_purges.record(&rule);
        let is_at_work = {
            let mut waiting = self.recent_purges.queued();
            if waiting.next.len() >= MAX_PENDING_PURGES {
                waiting.next = PurgeRuleSet::new(vec![PurgeRule::All]);
            } else {
                waiting.next.add(rule);
            }
            self.recent_purges.is_filtering.store(true, Relaxed);
            std::mem::replace(&mut waiting.is_running, true)
        };
        if !is_at_work {
            loops::spawn_here(purge_in_pool(Arc::downgrade(self), self.pool.clone()));
        }
    }

    /// Takes out what waits for it, until nothing does. For a pool.
    fn run_queued_purges(&self) {
        loop {
            let rules = {
                let mut waiting = self.recent_purges.queued();
                waiting.in_progress = None;
                if waiting.next.len() == 0 {
                    waiting.is_running = false;
                    self.recent_purges.is_filtering.store(false, Relaxed);
                    return;
                }
                let rules = Arc::new(std::mem::take(&mut waiting.next));
                waiting.in_progress = Some(Arc::clone(&rules));
                rules
            };
            self.apply_purge(&rules);
        }
    }
}

/// Has the pool do it, as soon as that has room.
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
    use super::*;

    fn meta(key: &[u8]) -> ObjectMeta {
        ObjectMeta {
            key: key.into(),
            status: penstock_http::Status::OK,
            fields: penstock_http::FieldBlock::new(),
            lifetime: [0; super::super::LIFETIME_WORDS],
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
        // Those of single URLs do not push it out.
        for _ in 0..MAX_EXACT_PURGES {
            recent.record(&PurgeRule::Url("http://b/".to_owned()));
        }
        assert!(recent.matches_since(2, &meta) && !recent.matches_since(3, &meta));
        recent.record(&PurgeRule::Url("http://a/x".to_owned()));
        // The fourth is forgotten, and might have meant it.
        let count = recent.lock().count;
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
