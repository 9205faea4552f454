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

use super::purging::{REMEMBERED_MAX, Rules};
use super::{Meta, Rule, Store};

/// Purges of many objects remembered. Tags of a busy shop are purged some times a second, and a page takes some
/// seconds at most.
const WIDE_MAX: usize = 256;

/// Purges of one URL or key remembered: each write that a client makes may be one.
const EXACT_MAX: usize = 4096;

/// A full pool is asked again after this time.
const AGAIN: Duration = Duration::from_millis(50);

/// The last purges of one store.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    /// Held for a note or a look.
    noted: Mutex<Noted>,
    /// What is to be taken out by the next look at all objects.
    waiting: Mutex<Waiting>,
    /// Something waits for it: what is meant is not found any more.
    is_hiding: AtomicBool,
}

#[derive(Debug, Default)]
struct Noted {
    /// Purges so far.
    count: u64,
    /// So that the many of one kind do not push out the few of the other.
    wide: Last,
    exact: Last,
}

/// The last purges of a kind, each with its count, oldest first.
#[derive(Debug, Default)]
struct Last {
    rules: VecDeque<(u64, Rule)>,
    /// The count of the last that is forgotten.
    forgotten: u64,
}

#[derive(Debug, Default)]
struct Waiting {
    next: Rules,
    /// What is being taken out.
    now: Option<Arc<Rules>>,
    is_at_work: bool,
}

impl Last {
    fn note(&mut self, count: u64, rule: &Rule, max: usize) {
        if self.rules.len() >= max
            && let Some((count, _)) = self.rules.pop_front()
        {
            self.forgotten = count;
        }
        self.rules.push_back((count, rule.clone()));
    }

    fn names_since(&self, count: u64, meta: &Meta) -> bool {
        let since = self.rules.iter().rev().take_while(|(at, _)| *at > count);
        self.forgotten > count || since.into_iter().any(|(_, rule)| rule.names(meta))
    }
}

impl Recent {
    /// Notes a purge, before anything is taken out by it.
    pub(super) fn note(&self, rule: &Rule) {
        let mut noted = self.lock();
        noted.count += 1;
        let count = noted.count;
        match rule {
            Rule::Key(_) | Rule::Url(_) => noted.exact.note(count, rule, EXACT_MAX),
            Rule::Prefix(_) | Rule::Tag(_) | Rule::All => noted.wide.note(count, rule, WIDE_MAX),
        }
    }

    fn names_since(&self, count: u64, meta: &Meta) -> bool {
        let noted = self.lock();
        noted.wide.names_since(count, meta) || noted.exact.names_since(count, meta)
    }

    fn lock(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether something is to be taken out by a look that is not over. One atomic read.
    pub(super) fn is_hiding(&self) -> bool {
        self.is_hiding.load(Relaxed)
    }

    /// Whether an object is to be taken out so.
    pub(super) fn hides(&self, meta: &Meta) -> bool {
        let waiting = self.waiting();
        let now = waiting.now.as_ref();
        waiting.next.names(meta) || now.is_some_and(|rules| rules.names(meta))
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store {
    /// How many purges there were.
    pub(crate) fn purges(&self) -> u64 {
        self.recent.lock().count
    }

    /// Whether one of the purges since there were `count` means an object. To be asked once it is listed
    /// ([`Store::begin`]): later ones find it there.
    pub(crate) fn is_purged_since(&self, count: u64, meta: &Meta) -> bool {
        self.recent.names_since(count, meta)
    }

    /// Takes out what `rule` means, soon and in the pool: the look at every object is too long for a loop. All
    /// that wait for one share it. From here on it is not found, and what is on its way from a back end is
    /// meant, too. To be called on a loop.
    pub(crate) fn purge_soon(self: &Arc<Self>, rule: Rule) {
        self.recent.note(&rule);
        let is_at_work = {
            let mut waiting = self.recent.waiting();
            if waiting.next.len() >= REMEMBERED_MAX {
                waiting.next = Rules::new(vec![Rule::All]);
            } else {
                waiting.next.add(rule);
            }
            self.recent.is_hiding.store(true, Relaxed);
            std::mem::replace(&mut waiting.is_at_work, true)
        };
        if !is_at_work {
            loops::spawn_here(purge_in_pool(Arc::downgrade(self), self.pool.clone()));
        }
    }

    /// Takes out what waits for it, until nothing does. For a pool.
    fn purge_waiting(&self) {
        loop {
            let rules = {
                let mut waiting = self.recent.waiting();
                waiting.now = None;
                if waiting.next.len() == 0 {
                    waiting.is_at_work = false;
                    self.recent.is_hiding.store(false, Relaxed);
                    return;
                }
                let rules = Arc::new(std::mem::take(&mut waiting.next));
                waiting.now = Some(Arc::clone(&rules));
                rules
            };
            self.take_out(&rules);
        }
    }
}

/// Has the pool do it, as soon as that has room.
async fn purge_in_pool(store: Weak<Store>, pool: Pool) {
    while let Some(store) = store.upgrade() {
        if pool.run(move || store.purge_waiting()).await.is_ok() {
            return;
        }
        clock::sleep(AGAIN).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(key: &[u8]) -> Meta {
        Meta {
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
            sliced: None,
        }
    }

    #[test]
    fn only_purges_since_then_count_and_none_is_missed() {
        let recent = Recent::default();
        let meta = meta(b"http://a/x");
        recent.note(&Rule::Tag("red".to_owned()));
        assert!(recent.names_since(0, &meta));
        assert!(!recent.names_since(1, &meta));
        recent.note(&Rule::Tag("blue".to_owned()));
        assert!(!recent.names_since(1, &meta));
        recent.note(&Rule::Prefix("http://a/".to_owned()));
        assert!(recent.names_since(1, &meta));
        // Those of single URLs do not push it out.
        for _ in 0..EXACT_MAX {
            recent.note(&Rule::Url("http://b/".to_owned()));
        }
        assert!(recent.names_since(2, &meta) && !recent.names_since(3, &meta));
        recent.note(&Rule::Url("http://a/x".to_owned()));
        // The fourth is forgotten, and might have meant it.
        let count = recent.lock().count;
        assert!(recent.names_since(3, &meta) && recent.names_since(count - 1, &meta));
        assert!(!recent.names_since(count, &meta));
        for _ in 0..WIDE_MAX {
            assert!(!recent.names_since(count, &meta));
            recent.note(&Rule::Prefix("http://b/".to_owned()));
        }
        recent.note(&Rule::Prefix("http://b/".to_owned()));
        assert!(recent.names_since(count, &meta));
    }
}
