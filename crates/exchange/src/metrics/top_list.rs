//! The most frequent keys of a stream of requests, in bounded memory: the space-saving algorithm of
//! Metwally, Agrawal and El Abbadi ("Efficient computation of frequent and top-k elements in data
//! streams", 2005).
//!
//! Each event loop has its own lists, which `status` merges. A key that is not in a full list takes
//! the place of the least frequent one, with its count plus one. So a count is too high by at most
//! the count that it has taken over, and a key with more than a `CAPACITY`-th of all requests is
//! always there.
//!
//! # Invariants
//! - A list has at most [`CAPACITY`] keys, whatever clients send.
//! - Counts lose half of their value every [`HALF_LIFE`], so that a list shows the present.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// The keys of a list: a few kilobytes a loop.
pub const CAPACITY: usize = 64;

/// The time after which counts are halved.
pub const HALF_LIFE: Duration = Duration::from_secs(60);

/// The most frequent keys of one event loop.
#[derive(Debug)]
pub struct TopList<K> {
    /// Keys with the index of their entry.
    index: HashMap<K, usize>,
    entries: Vec<TopEntry<K>>,
    /// The entry that was counted last: often the next one too, which then costs no hash.
    last: usize,
    /// All that was counted lately.
    total: u64,
    halved_at: Option<Instant>,
}

/// A key with its count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopEntry<K> {
    /// The key.
    pub key: K,
    /// How often it came lately, at most.
    pub count: u64,
    /// By how much the count may be too high.
    pub error: u64,
}

impl<K> Default for TopList<K> {
    fn default() -> Self {
        Self {
            index: HashMap::new(),
            entries: Vec::new(),
            last: 0,
            total: 0,
            halved_at: None,
        }
    }
}

impl<K: Hash + Eq + Clone> TopList<K> {
    /// Counts a key.
    pub fn count(&mut self, key: &K, now: Instant) {
        self.halve(now);
        self.total += 1;
        if let Some(entry) = self.entries.get_mut(self.last)
            && entry.key == *key
        {
            entry.count += 1;
            return;
        }
        if let Some(at) = self.index.get(key) {
            self.last = *at;
            self.entries[*at].count += 1;
            return;
        }
        if self.entries.len() < CAPACITY {
            self.index.insert(key.clone(), self.entries.len());
            self.entries.push(TopEntry {
                key: key.clone(),
                count: 1,
                error: 0,
            });
            return;
        }
        let counts = self.entries.iter().enumerate();
        let Some((least, _)) = counts.min_by_key(|(_, entry)| entry.count) else {
            return;
        };
        let entry = &mut self.entries[least];
        self.index.remove(&entry.key);
        entry.key = key.clone();
        entry.error = entry.count;
        entry.count += 1;
        self.index.insert(key.clone(), least);
    }

    /// All that was counted lately, with the same decay.
    pub fn total(&mut self, now: Instant) -> u64 {
        self.halve(now);
        self.total
    }

    /// Its entries, in no order.
    pub fn entries(&mut self, now: Instant) -> &[TopEntry<K>] {
        self.halve(now);
        &self.entries
    }

    /// Halves all counts for each half-life that has passed.
    fn halve(&mut self, now: Instant) {
        let since = *self.halved_at.get_or_insert(now);
        let passed = now.saturating_duration_since(since);
        if passed < HALF_LIFE {
            return;
        }
        let times = passed.as_secs() / HALF_LIFE.as_secs();
        self.halved_at = Some(now);
        let shift = u32::try_from(times).unwrap_or(u32::MAX);
        let halved = |count: u64| count.checked_shr(shift).unwrap_or(0);
        self.total = halved(self.total);
        for entry in &mut self.entries {
            entry.count = halved(entry.count);
            entry.error = halved(entry.error);
        }
        self.entries.retain(|entry| entry.count > 0);
        let keys = self.entries.iter().enumerate();
        self.index = keys.map(|(at, entry)| (entry.key.clone(), at)).collect();
    }
}

/// Adds the lists of several loops up: the most frequent keys first, at most `max` of them.
#[must_use]
pub fn merge_top_lists<K: Hash + Eq + Clone + Ord>(
    lists: impl IntoIterator<Item = Vec<TopEntry<K>>>,
    max: usize,
) -> Vec<TopEntry<K>> {
    let mut sums: HashMap<K, TopEntry<K>> = HashMap::new();
    for entry in lists.into_iter().flatten() {
        match sums.get_mut(&entry.key) {
            Some(sum) => {
                sum.count += entry.count;
                sum.error += entry.error;
            }
            None => drop(sums.insert(entry.key.clone(), entry)),
        }
    }
    let mut merged: Vec<_> = sums.into_values().collect();
    merged.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.key.cmp(&b.key)));
    merged.truncate(max);
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frequent_key_survives_a_flood_of_rare_ones() {
        let now = Instant::now();
        let mut list = TopList::default();
        let mut real = 0;
        for number in 0..100_000_u64 {
            // Each rare key comes once.
            list.count(&(number + 1_000_000), now);
            if number % 20 == 0 {
                list.count(&7, now);
                real += 1;
            }
        }
        let entries = list.entries(now).to_vec();
        assert_eq!(entries.len(), CAPACITY);
        let top = merge_top_lists([entries], 3);
        assert_eq!((top.len(), top[0].key), (3, 7));
        let (count, error) = (top[0].count, top[0].error);
        assert!(
            (real..=real + error).contains(&count),
            "{count} {error} {real}"
        );
    }

    #[test]
    fn lists_of_loops_add_up_and_forget() {
        let now = Instant::now();
        let mut lists = [TopList::default(), TopList::default()];
        for (list, counts) in lists
            .iter_mut()
            .zip([[("a", 3), ("b", 4)], [("a", 3), ("c", 1)]])
        {
            for (key, count) in counts {
                (0..count).for_each(|_| list.count(&key, now));
            }
        }
        let mut top = |now| {
            let entries = lists.iter_mut().map(|list| list.entries(now).to_vec());
            let merged = merge_top_lists(entries.collect::<Vec<_>>(), 9);
            let pairs = merged.into_iter().map(|it| (it.key, it.count));
            pairs.collect::<Vec<_>>()
        };
        assert_eq!(top(now), [("a", 6), ("b", 4), ("c", 1)]);
        assert_eq!(top(now + HALF_LIFE), [("a", 2), ("b", 2)]);
        assert_eq!(top(now + HALF_LIFE * 100), []);
        assert_eq!(lists[0].total(now + HALF_LIFE * 100), 0);
    }
}
