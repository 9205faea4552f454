//! What is purged, of what is held and of what is on its way in or not yet read back.
//!
//! `purge` says what is meant; here it is taken out: at once from both indexes and from what is on its way in.
//! While a store does not know all that its folder holds, purges are remembered and applied to each
//! object that is found. Cost: every object's meta is looked at, some tens of nanoseconds each (about 50 ms for
//! a million), a shard's lock at a time; the files are removed in the background.

use std::collections::HashSet;
use std::sync::{Arc, MutexGuard, PoisonError};

use super::disk::Health;
use super::{Meta, Store};

/// Purges remembered, at most: with more, all that was not read back yet is purged.
pub(crate) const REMEMBERED_MAX: usize = 10_000;

/// Which objects are meant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Rule {
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
pub(crate) struct Remembered {
    rules: Vec<Rule>,
    /// Those of former processes, with the first number that each does not mean.
    former: Vec<(u64, Rule)>,
}

impl Rule {
    /// Whether an object is meant.
    pub(crate) fn names(&self, meta: &Meta) -> bool {
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

impl Remembered {
    /// Whether one of them means this object, whose file has that number.
    pub(crate) fn names(&self, meta: &Meta, number: u64) -> bool {
        let mut former = self.former.iter();
        self.rules.iter().any(|rule| rule.names(meta))
            || former.any(|(before, rule)| number < *before && rule.names(meta))
    }

    /// What former processes purged.
    pub(crate) fn set_former(&mut self, former: Vec<(u64, Rule)>) {
        self.former = former;
    }

    /// All objects are known.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    fn add(&mut self, rule: Rule) {
        if rule == Rule::All || self.rules.len() >= REMEMBERED_MAX {
            self.rules = vec![Rule::All];
        } else if !self.names_all() && !self.rules.contains(&rule) {
            self.rules.push(rule);
        }
    }

    fn names_all(&self) -> bool {
        self.rules == [Rule::All]
    }
}

/// Several at once: many URLs cost each object no more than one.
#[derive(Debug, Default)]
pub(super) struct Rules {
    all: Vec<Rule>,
    urls: HashSet<Vec<u8>>,
}

impl Rules {
    pub(super) fn new(all: Vec<Rule>) -> Self {
        let mut rules = Self::default();
        for rule in all {
            rules.add(rule);
        }
        rules
    }

    /// Adds one; each URL is there once.
    pub(super) fn add(&mut self, rule: Rule) {
        let is_new = match &rule {
            Rule::Url(url) => self.urls.insert(url.clone().into_bytes()),
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
    pub(super) fn names(&self, meta: &Meta) -> bool {
        let has = |text: &[u8]| self.urls.contains(text);
        let mut others = self.all.iter().filter(|rule| !matches!(rule, Rule::Url(_)));
        (!self.urls.is_empty() && (has(url_of(&meta.key)) || has(path_of(&meta.key))))
            || (self.all.len() > self.urls.len() && others.any(|rule| rule.names(meta)))
    }
}

impl Store {
    /// Takes out what `rule` means; gives how many objects there were.
    pub(crate) fn purge(&self, rule: &Rule) -> u64 {
        self.recent.note(rule);
        self.take_out(&Rules::new(vec![rule.clone()]))
    }

    /// Takes out what is meant, in one look at everything; gives how many objects there were.
    pub(super) fn take_out(&self, rules: &Rules) -> u64 {
        for rule in &rules.all {
            self.remember(|| rule.clone());
        }
        // Those on their way in count as soon as a client could have had them.
        let mut growing_count = 0;
        for shard in &self.growing {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for all in shard.values_mut() {
                for growing in all.extract_if(.., |one| rules.names(one.meta())) {
                    growing_count += u64::from(growing.is_offered());
                    growing.doom();
                }
            }
        }
        let on_disk = self.disk.iter();
        let on_disk = on_disk.flat_map(|disk| disk.tier.remove_all(|meta| rules.names(meta)));
        let on_disk = on_disk.collect();
        let in_memory = self.memory.remove_all(|meta| rules.names(meta));
        let count = growing_count + self.bury(on_disk, &in_memory);
        if let Some(disk) = &self.disk {
            for rule in &rules.all {
                disk.note_purge(rule);
            }
        }
        self.counts
            .purged
            .fetch_add(count, std::sync::atomic::Ordering::Relaxed);
        count
    }

    /// Remembers a rule while not all is known.
    pub(super) fn remember(&self, rule: impl FnOnce() -> Rule) {
        let Some(disk) = &self.disk else {
            return;
        };
        // Asked under the lock, so that no object is found between the answer and the note.
        let mut remembered = self.remembered();
        if disk.health() != Health::Working {
            remembered.add(rule());
        }
    }

    pub(super) fn remembered(&self) -> MutexGuard<'_, Remembered> {
        self.remembered
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
