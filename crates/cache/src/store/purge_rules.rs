//! Applies purges to stored, partial and not yet recovered objects.
//!
//! `purge` passes the rule; this module removes the matching objects from both indexes and from the
//! partial objects at once. While a store's index is incomplete, purges are recorded and applied to
//! each recovered object. A purge scans every object's metadata, some tens of nanoseconds each
//! (about 50 ms for a million), one shard's lock at a time. The files are removed in the
//! background.

use std::collections::HashSet;
use std::sync::{Arc, MutexGuard, PoisonError};

use super::disk::DiskHealth;
use super::{ObjectMeta, Store};

/// Recorded purges, at most. Beyond that, every object not yet recovered is purged.
pub(crate) const MAX_PENDING_PURGES: usize = 10_000;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum PurgeRule {
    /// All variants of one key.
    Key(Arc<[u8]>),
    /// All of one URL, or of one path on every host.
    Url(String),
    /// All with this prefix of their URL, or of their path on every host.
    Prefix(String),
    /// All with this tag.
    Tag(String),
    All,
}

/// Purges for objects that are not recovered yet.
#[derive(Debug, Default)]
pub(crate) struct PendingPurges {
    rules: Vec<PurgeRule>,
    /// Purges by earlier processes, each with the first file number that it does not match.
    from_journal: Vec<(u64, PurgeRule)>,
}

impl PurgeRule {
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
    /// Whether a recorded purge matches this object with that file number.
    pub(crate) fn matches(&self, meta: &ObjectMeta, number: u64) -> bool {
        let mut former = self.from_journal.iter();
        self.rules.iter().any(|rule| rule.matches(meta))
            || former.any(|(before, rule)| number < *before && rule.matches(meta))
    }

    /// Sets the purges of earlier processes.
    pub(crate) fn set_from_journal(&mut self, former: Vec<(u64, PurgeRule)>) {
        self.from_journal = former;
    }

    /// Forgets all purges: every object is recovered.
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

/// Several rules at once: many URLs cost each object no more than one.
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

    /// Adds a rule; a URL is added once.
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
    /// Removes the objects that `rule` matches. Returns their number.
    pub(crate) fn purge(&self, rule: &PurgeRule) -> u64 {
        self.recent_purges.record(rule);
        self.apply_purge(&PurgeRuleSet::new(vec![rule.clone()]))
    }

    /// Removes the objects that any of the rules matches, in one scan. Returns their number.
    pub(super) fn apply_purge(&self, rules: &PurgeRuleSet) -> u64 {
        for rule in &rules.all {
            self.add_pending_purge(|| rule.clone());
        }
        // A partial object counts if a client could have read it.
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

    /// Records a rule while the index is incomplete.
    pub(super) fn add_pending_purge(&self, rule: impl FnOnce() -> PurgeRule) {
        let Some(disk) = &self.disk else {
            return;
        };
        // Checked under the lock, so that no object is recovered between check and record.
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

/// The part of a key that purges match.
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
