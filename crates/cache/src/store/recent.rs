//! The last purges, for what was asked of a back end before them and is stored after.
//!
//! `fetch` notes how many there were when it asks ([`Store::purges`]) and asks when its object is listed
//! whether one since then means it ([`Store::is_purged_since`]). What must stay true: none since then is
//! missed; where more happened than are remembered the answer is yes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Meta, Rule, Store};

/// Purges remembered. Tags of a busy shop are purged some times a second, and a page takes some seconds at most.
const RECENT_MAX: usize = 256;

/// The last purges of one store.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    /// Held for a note or a look.
    noted: Mutex<Noted>,
}

#[derive(Debug, Default)]
struct Noted {
    /// Purges so far.
    count: u64,
    /// The last of them, oldest first.
    rules: VecDeque<Rule>,
}

impl Recent {
    /// Notes a purge, before anything is taken out by it.
    pub(super) fn note(&self, rule: &Rule) {
        let mut noted = self.lock();
        noted.count += 1;
        if noted.rules.len() >= RECENT_MAX {
            noted.rules.pop_front();
        }
        noted.rules.push_back(rule.clone());
    }

    fn names_since(&self, count: u64, meta: &Meta) -> bool {
        let noted = self.lock();
        let since = usize::try_from(noted.count.saturating_sub(count)).unwrap_or(usize::MAX);
        let mut last = noted.rules.iter().rev().take(since);
        since > noted.rules.len() || last.any(|rule| rule.names(meta))
    }

    fn lock(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Takes out what `rule` means, in the pool of its disk where it has one: the look at every object is too long
    /// for a loop. Without a pool that takes it, it is done at once.
    pub(crate) fn purge_soon(self: &Arc<Self>, rule: Rule) {
        let Some(disk) = &self.disk else {
            self.purge(&rule);
            return;
        };
        let (store, later) = (Arc::clone(self), rule.clone());
        let started = disk.pool.start(move || {
            store.purge(&later);
        });
        if started.is_err() {
            self.purge(&rule);
        }
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
            request_time: std::time::Duration::ZERO,
            response_time: std::time::Duration::ZERO,
            vary_names: Vec::new(),
            variant: Vec::new(),
            tags: vec!["red".to_owned()],
            length: 0,
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
        for _ in 0..RECENT_MAX {
            assert!(recent.names_since(2, &meta));
            recent.note(&Rule::Url("http://b/".to_owned()));
        }
        assert!(!recent.names_since(3, &meta));
        // The third is forgotten, and might have meant it.
        recent.note(&Rule::Url("http://b/".to_owned()));
        assert!(recent.names_since(3, &meta));
    }
}
