//! Applies purges to stored, partial and not yet recovered objects.
//!
//! `purge` passes the rule; this module removes the matching objects from both indexes and from the
//! partial objects at once. While a store's index is incomplete, purges are recorded and applied to
//! each recovered object. A purge scans every object's metadata, some tens of nanoseconds each
//! (about 50 ms for a million), one shard's lock at a time. The files are removed in the
//! background.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::disk::DiskHealth;
use super::{ObjectMeta, Store};

/// Recorded purges, and their approximate size, at most. Beyond that they become one purge of
/// everything.
pub(crate) const MAX_PENDING_PURGES: usize = 10_000;
pub(crate) const MAX_PURGE_BYTES: usize = 4 << 20;

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

/// A bounded set of purges, each with the first file number that it does not match.
#[derive(Debug, Default)]
pub(crate) struct NumberedPurges {
    purges: HashMap<PurgeRule, u64>,
    bytes: usize,
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

    /// Approximate memory use.
    fn bytes(&self) -> usize {
        32 + match self {
            Self::Key(text) => text.len(),
            Self::Url(text) | Self::Prefix(text) | Self::Tag(text) => text.len(),
            Self::All => 0,
        }
    }
}

impl NumberedPurges {
    /// Adds a purge. A purge of everything replaces earlier ones, and too many others.
    pub(crate) fn add(&mut self, number: u64, rule: PurgeRule) {
        let all = self.purges.get(&PurgeRule::All);
        if all.is_some_and(|&all| number <= all) {
            return;
        }
        if rule == PurgeRule::All {
            self.purges.retain(|_, other| *other > number);
            self.bytes = self.purges.keys().map(PurgeRule::bytes).sum();
        }
        let size = rule.bytes();
        match self.purges.entry(rule) {
            Entry::Occupied(mut there) => *there.get_mut() = number.max(*there.get()),
            Entry::Vacant(place) => {
                place.insert(number);
                self.bytes += size;
            }
        }
        if self.purges.len() > MAX_PENDING_PURGES || self.bytes > MAX_PURGE_BYTES {
            let highest = self.purges.values().max().copied().unwrap_or(number);
            self.purges = HashMap::from([(PurgeRule::All, highest)]);
            self.bytes = PurgeRule::All.bytes();
        }
    }

    /// Whether a purge matches this object with that file number.
    pub(crate) fn matches(&self, meta: &ObjectMeta, number: u64) -> bool {
        (self.purges.iter()).any(|(rule, before)| number < *before && rule.matches(meta))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.purges.is_empty()
    }

    /// The purges by number.
    pub(crate) fn to_sorted_vec(&self) -> Vec<(u64, PurgeRule)> {
        let purges = self.purges.iter();
        let mut list: Vec<_> = purges
            .map(|(rule, &number)| (number, rule.clone()))
            .collect();
        list.sort_unstable_by_key(|(number, _)| *number);
        list
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
        let mut others = (self.all.iter()).filter(|rule| !matches!(rule, PurgeRule::Url(_)));
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
            let mut shard = shard.lock();
            for all in shard.values_mut() {
                for partial in all.extract_if(.., |one| rules.matches(&one.meta)) {
                    growing_count += u64::from(partial.is_findable());
                    partial.discard();
                }
            }
        }
        let on_disk = self.disk.as_ref();
        let on_disk = on_disk.map(|disk| disk.tier.remove_where(|meta| rules.matches(meta)));
        let on_disk = on_disk.unwrap_or_default();
        let in_memory = self.memory.remove_where(|meta| rules.matches(meta));
        let count = growing_count + self.discard_files(on_disk, &in_memory);
        if let Some(disk) = &self.disk {
            for rule in &rules.all {
                disk.queue_journal_entry(rule);
            }
        }
        self.counters.purged.fetch_add(count, Relaxed);
        count
    }

    /// Records a rule while the index is incomplete.
    pub(super) fn add_pending_purge(&self, rule: impl FnOnce() -> PurgeRule) {
        let Some(disk) = &self.disk else {
            return;
        };
        // Checked under the lock, so that no object is recovered between check and record.
        let mut pending = self.pending_purges.lock();
        if disk.health() != DiskHealth::Working {
            // Whatever the clock, and so the numbers, of an earlier process.
            pending.add(u64::MAX, rule());
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_is_bounded_and_has_each_purge_once() {
        let url = |number: usize| PurgeRule::Url(format!("http://h/{number}"));
        let mut journal = NumberedPurges::default();
        for number in 0..100 {
            journal.add(number, url(7));
        }
        assert_eq!(journal.to_sorted_vec(), [(99, url(7))]);
        journal.add(50, PurgeRule::All);
        assert_eq!(journal.to_sorted_vec().len(), 2);
        journal.add(49, url(8));
        journal.add(100, PurgeRule::All);
        assert_eq!(journal.to_sorted_vec(), [(100, PurgeRule::All)]);
        for number in 0..=MAX_PENDING_PURGES {
            journal.add(200 + number as u64, url(number));
        }
        let last = 200 + MAX_PENDING_PURGES as u64;
        assert_eq!(
            journal.to_sorted_vec(),
            [(last - 1, PurgeRule::All), (last, url(MAX_PENDING_PURGES))]
        );
        journal.add(last + 1, PurgeRule::Tag("x".repeat(MAX_PURGE_BYTES)));
        assert_eq!(journal.to_sorted_vec(), [(last + 1, PurgeRule::All)]);
    }
}
