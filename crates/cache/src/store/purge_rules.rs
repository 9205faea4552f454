//! What is purged, of what is held and of what is on its way in or not yet read back.
//!
//! `purge` says what is meant; here it is taken out: at once from both indexes and from what is on its way in.
//! While a store does not know all that its folder holds, purges are remembered and applied to each
//! object that is found. Cost: every object's meta is looked at, some tens of nanoseconds each (about 50 ms for
//! a million), a shard's lock at a time; the files are removed in the background.

use std::collections::HashSet;
use std::sync::{Arc, MutexGuard, PoisonError};

use super::disk::DiskHealth;
use super::{ObjectMeta, Store};

/// Purges remembered, at most: with more, all that was not read back yet is purged.
pub(crate) const MAX_PENDING_PURGES: usize = 10_000;

/// Which objects are meant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum PurgeRule {
    /// All variants of one key.
    Key(Arc<[u8]>),
    /// Those of one URL, or of one path on every host.
    Url(String),
    /// Those whose URL, or path on every host, begins so.
    Prefix(String),
    /// Those with this tag.
    Tag(String),
    /// All.
    All,
}

/// Purges of objects that are not known yet.
#[derive(Debug, Default)]
pub(crate) struct PendingPurges {
    rules: Vec<PurgeRule>,
    /// Those of former processes, with the first number that each does not mean.
    from_journal: Vec<(u64, PurgeRule)>,
}

impl PurgeRule {
    /// Whether an object is meant.
    pub(crate) fn matches(&self, meta: &ObjectMeta) -> bool {
        match self {
            Self::Key(text) => meta.key == *text,
            Self::Url(url) if url.starts_with('/') => path_of(&meta.key) == url.as_bytes(),
            Self::Url(url) => url_of(&meta.key) == url.as_bytes(),
            Self::Prefix(prefix) if prefix.starts_with('/') => {
                path_of(&meta.key).starts_with(prefix.as_bytes())
            }
            Self::Prefix(prefix) => url_of(&meta.key).starts_with(prefix.as_bytes()),
            Self::Tag(tag) => meta.tags.iter().any(|other| other == tag),
            Self::All => true,
        }
    }
}

impl PendingPurges {
    /// Whether one of them means this object, whose file has that number.
    pub(crate) fn matches(&self, meta: &ObjectMeta, number: u64) -> bool {
        let mut former = self.from_journal.iter();
        self.rules.iter().any(|rule| rule.matches(meta))
            || former.any(|(before, rule)| number < *before && rule.matches(meta))
    }

    /// What former processes purged.
    pub(crate) fn set_from_journal(&mut self, former: Vec<(u64, PurgeRule)>) {
        self.from_journal = former;
    }

    /// All objects are known.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    fn add(&mut self, rule: PurgeRule) {
        if rule == PurgeRule::All || self.rules.len() >= MAX_PENDING_PURGES {
            self.rules = vec![PurgeRule::All];
        } else if !self.matches_everything() && !self.rules.contains(&rule) {
            self.rules.push(rule);
        }
    }

    fn matches_everything(&self) -> bool {
        self.rules == [PurgeRule::All]
    }
}

/// Several at once: many URLs cost each object no more than one.
#[derive(Debug, Default)]
pub(super) struct PurgeRuleSet {
    all: Vec<PurgeRule>,
    urls: HashSet<Vec<u8>>,
}

impl PurgeRuleSet {
    pub(super) fn new(all: Vec<PurgeRule>) -> Self {
        let mut rules = Self::default();
        for rule in all {
            rules.add(rule);
        }
        rules
    }

    /// Adds one; each URL is there once.
    pub(super) fn add(&mut self, rule: PurgeRule) {
        let is_new = match &rule {
            PurgeRule::Url(url) => self.urls.insert(url.clone().into_bytes()),
            _ => true,
        };
        if is_new {
            self.all.push(rule);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether an object is meant.
    pub(super) fn matches(&self, meta: &ObjectMeta) -> bool {
        let has = |text: &[u8]| self.urls.contains(text);
        let mut others = self
            .all
            .iter()
            .filter(|rule| !matches!(rule, PurgeRule::Url(_)));
        (!self.urls.is_empty() && (has(url_of(&meta.key)) || has(path_of(&meta.key))))
            || (self.all.len() > self.urls.len() && others.any(|rule| rule.matches(meta)))
    }
}

impl Store {
    /// Takes out what `rule` means; gives how many objects there were.
    pub(crate) fn purge(&self, rule: &PurgeRule) -> u64 {
        self.recent_purges.record(rule);
        self.apply_purge(&PurgeRuleSet::new(vec![rule.clone()]))
    }

    /// Takes out what is meant, in one look at everything; gives how many objects there were.
    pub(super) fn apply_purge(&self, rules: &PurgeRuleSet) -> u64 {
        for rule in &rules.all {
            self.add_pending_purge(|| rule.clone());
        }
        // Those on their way in count as soon as a client could have had them.
        let mut growing_count = 0;
        for shard in &self.partial {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for all in shard.values_mut() {
                for growing in all.extract_if(.., |one| rules.matches(one.meta())) {
                    growing_count += u64::from(growing.is_findable());
                    growing.discard();
                }
            }
        }
        let on_disk = self.disk.iter();
        let on_disk = on_disk.flat_map(|disk| disk.tier.remove_where(|meta| rules.matches(meta)));
        let on_disk = on_disk.collect();
        let in_memory = self.memory.remove_where(|meta| rules.matches(meta));
        let count = growing_count + self.discard_files(on_disk, &in_memory);
        if let Some(disk) = &self.disk {
            for rule in &rules.all {
                disk.queue_purge_note(rule);
            }
        }
        self.counters
            .purged
            .fetch_add(count, std::sync::atomic::Ordering::Relaxed);
        count
    }

    /// Remembers a rule while not all is known.
    pub(super) fn add_pending_purge(&self, rule: impl FnOnce() -> PurgeRule) {
        let Some(disk) = &self.disk else {
            return;
        };
        // Asked under the lock, so that no object is found between the answer and the note.
        let mut remembered = self.pending_purges();
        if disk.health() != DiskHealth::Working {
            remembered.add(rule());
        }
    }

    pub(super) fn pending_purges(&self) -> MutexGuard<'_, PendingPurges> {
        self.pending_purges
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The part of a key that purging knows.
fn url_of(key: &[u8]) -> &[u8] {
    key.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// The path and query of a key's URL.
fn path_of(key: &[u8]) -> &[u8] {
    let url = url_of(key);
    let Some(scheme) = url.windows(3).position(|at| at == b"://") else {
        return url;
    };
    let rest = &url[scheme + 3..];
    let slash = rest.iter().position(|&byte| byte == b'/');
    slash.map_or(b"/", |slash| &rest[slash..])
}
