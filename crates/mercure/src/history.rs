//! The history of a Mercure route: its last updates, all topics in one order.
//!
//! `broker` appends updates and reads what a resuming subscriber has missed. Pure: the time is an
//! argument.
//!
//! # Invariants
//! - The tightest bound of `hub.history` applies (messages, age, bytes).
//! - Positions grow by one from update to update, so that a successor is found without a search.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_hub::History as Bounds;

use crate::update::Update;

#[derive(Debug, Default)]
pub(super) struct UpdateHistory {
    updates: VecDeque<HistoryEntry>,
    /// The position of the first of `kept`, or of the next update when there is none.
    first_position: u64,
    /// The position of each id; the last one where several share it.
    by_id: HashMap<Arc<str>, u64>,
    bytes: usize,
    /// The id of the last update that was published.
    last_id: Option<Arc<str>>,
}

#[derive(Debug)]
struct HistoryEntry {
    update: Arc<Update>,
    published_at: Instant,
}

impl UpdateHistory {
    pub(super) fn next_position(&self) -> u64 {
        self.first_position + self.updates.len() as u64
    }

    /// The id of the last update, kept or not.
    pub(super) fn last_id(&self) -> Option<&Arc<str>> {
        self.last_id.as_ref()
    }

    /// Appends `update`; gives its position.
    pub(super) fn push(&mut self, update: &Arc<Update>, now: Instant, bounds: &Bounds) -> u64 {
        let position = self.next_position();
        self.bytes += update.memory_bytes();
        self.by_id.insert(Arc::clone(&update.id), position);
        self.last_id = Some(Arc::clone(&update.id));
        self.updates.push_back(HistoryEntry {
            update: Arc::clone(update),
            published_at: now,
        });
        self.drop_expired(now, bounds);
        position
    }

    pub(super) fn drop_expired(&mut self, now: Instant, bounds: &Bounds) {
        while let Some(oldest) = self.updates.front() {
            let age = now.saturating_duration_since(oldest.published_at);
            if self.updates.len() <= bounds.max_messages
                && self.bytes <= bounds.max_size
                && age <= bounds.max_age
            {
                return;
            }
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        let Some(HistoryEntry { update, .. }) = self.updates.pop_front() else {
            return;
        };
        if self.by_id.get(&update.id) == Some(&self.first_position) {
            self.by_id.remove(&update.id);
        }
        self.first_position += 1;
        self.bytes -= update.memory_bytes();
    }

    /// Its position of the first update, and all updates with their ages at `now`.
    pub(super) fn export(
        &self,
        now: Instant,
    ) -> (u64, impl Iterator<Item = (&Arc<Update>, Duration)>) {
        let age = move |kept: &HistoryEntry| now.saturating_duration_since(kept.published_at);
        let updates = self
            .updates
            .iter()
            .map(move |kept| (&kept.update, age(kept)));
        (self.first_position, updates)
    }

    /// Goes on at a position, behind the last update with this id.
    pub(super) fn continue_at(&mut self, position: u64, last_id: Option<Arc<str>>) {
        *self = Self {
            first_position: position,
            last_id,
            ..Self::default()
        };
    }

    pub(super) fn find(&self, id: &str) -> Option<(u64, &Arc<Update>)> {
        let position = *self.by_id.get(id)?;
        let at = usize::try_from(position.checked_sub(self.first_position)?).ok()?;
        self.updates.get(at).map(|kept| (position, &kept.update))
    }

    /// The updates at the positions from `from` to before `until`, as far as they are kept.
    pub(super) fn range(&self, from: u64, until: u64) -> impl Iterator<Item = &Arc<Update>> {
        let place = |position: u64| {
            let at = position.saturating_sub(self.first_position);
            usize::try_from(at)
                .unwrap_or(usize::MAX)
                .min(self.updates.len())
        };
        let (from, until) = (place(from), place(until));
        let kept = self.updates.range(from.min(until)..until);
        kept.map(|kept| &kept.update)
    }
}

#[cfg(test)]
mod tests;
