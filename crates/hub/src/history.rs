//! The last messages of a channel, for clients that resume; bounded by count, age and bytes.
//!
//! Pure: `now` is an argument, and the caller counts the bytes of all histories together. Lives
//! under the lock of its channel.
//!
//! # Invariants
//! - Messages are in order, without gaps between the oldest and the newest.
//! - `gone` names the newest message that was dropped, so that a gap can be announced.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::channel::Message;

#[derive(Debug, Default)]
pub(crate) struct ChannelHistory {
    messages: VecDeque<Arc<Message>>,
    memory_bytes: usize,
    dropped_up_to: u64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct HistoryBounds {
    pub(crate) max_count: usize,
    pub(crate) max_age: Duration,
    pub(crate) max_bytes: usize,
}

impl ChannelHistory {
    /// Adds the newest message, then lets go of what the bounds do not allow.
    pub(crate) fn push(&mut self, message: Arc<Message>, bounds: HistoryBounds, now: Instant) {
        if bounds.max_count == 0 {
            self.trim(bounds, now);
            self.dropped_up_to = message.sequence;
            return;
        }
        self.memory_bytes += message.memory_bytes;
        self.messages.push_back(message);
        self.trim(bounds, now);
    }

    /// Lets go of what the bounds do not allow.
    pub(crate) fn trim(&mut self, bounds: HistoryBounds, now: Instant) {
        while let Some(oldest) = self.messages.front() {
            let is_old = now.saturating_duration_since(oldest.published_at) > bounds.max_age;
            if !is_old
                && self.messages.len() <= bounds.max_count
                && self.memory_bytes <= bounds.max_bytes
            {
                break;
            }
            self.drop_oldest();
        }
    }

    pub(crate) fn drop_oldest(&mut self) {
        let Some(oldest) = self.messages.pop_front() else {
            return;
        };
        self.dropped_up_to = oldest.sequence;
        self.memory_bytes -= oldest.memory_bytes;
        if self.messages.is_empty() {
            self.messages.shrink_to_fit();
        }
    }

    /// An empty history of a channel; its messages up to this number are unknown.
    /// Messages up to this number are missing.
    pub(crate) fn mark_dropped(&mut self, up_to: u64) {
        self.dropped_up_to = self.dropped_up_to.max(up_to);
    }

    pub(crate) fn starting_after(gone: u64) -> Self {
        Self {
            dropped_up_to: gone,
            ..Self::default()
        }
    }

    /// The messages that came after the one of this order.
    pub(crate) fn messages_after(&self, order: u64) -> impl Iterator<Item = &Arc<Message>> {
        let start = self.messages.partition_point(|kept| kept.sequence <= order);
        self.messages.range(start..)
    }

    /// The last message up to this order.
    pub(crate) fn last_up_to(&self, order: u64) -> Option<&Arc<Message>> {
        let end = self.messages.partition_point(|kept| kept.sequence <= order);
        self.messages.range(..end).next_back()
    }

    /// How many messages have this id, and the order of the newest of them.
    pub(crate) fn count_with_id(&self, id: &str) -> (usize, Option<u64>) {
        let named = self.messages.iter().filter(|kept| *kept.id == *id);
        named.fold((0, None), |(count, _), kept| {
            (count + 1, Some(kept.sequence))
        })
    }

    /// Whether messages that came after the one of this order are kept no more.
    pub(crate) fn has_gap_after(&self, order: u64) -> bool {
        self.dropped_up_to > order
    }

    pub(crate) fn find_sequence(&self, id: &str) -> Option<u64> {
        let mut newest_first = self.messages.iter().rev();
        newest_first
            .find(|kept| *kept.id == *id)
            .map(|kept| kept.sequence)
    }

    /// The newest message after which a client of an event stream returns with this id, by the
    /// message's own id or by the content that its publisher wrote.
    pub(crate) fn find_event_sequence(&self, id: &str) -> Option<u64> {
        self.find_sequence(id).or_else(|| {
            let mut newest_first = self.messages.iter().rev();
            let found = newest_first.find(|kept| kept.has_event_id(id));
            found.map(|kept| kept.sequence)
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The order of the newest that is kept no more, or up to which nothing is known.
    pub(crate) fn dropped_up_to(&self) -> u64 {
        self.dropped_up_to
    }

    /// What all that is kept counts for.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::tests::message;

    const ALL: HistoryBounds = HistoryBounds {
        max_count: 1000,
        max_age: Duration::from_secs(1000),
        max_bytes: usize::MAX,
    };

    fn kept(history: &ChannelHistory, after: u64) -> Vec<u64> {
        history
            .messages_after(after)
            .map(|kept| kept.sequence)
            .collect()
    }

    fn filled(now: Instant, bounds: HistoryBounds) -> ChannelHistory {
        let mut history = ChannelHistory::default();
        for order in 1..=10 {
            history.push(message(order * 10, now), bounds, now);
        }
        history
    }

    #[test]
    fn each_bound_lets_go_of_the_oldest() {
        let now = Instant::now();
        let one = message(1, now).memory_bytes + 1;
        for (name, bounds, expected) in [
            ("none is met", ALL, 10),
            (
                "count",
                HistoryBounds {
                    max_count: 3,
                    ..ALL
                },
                3,
            ),
            (
                "no count",
                HistoryBounds {
                    max_count: 0,
                    ..ALL
                },
                0,
            ),
            (
                "bytes",
                HistoryBounds {
                    max_bytes: 4 * one,
                    ..ALL
                },
                4,
            ),
            (
                "less than one",
                HistoryBounds {
                    max_bytes: 5,
                    ..ALL
                },
                0,
            ),
        ] {
            let history = filled(now, bounds);
            assert_eq!(history.messages.len(), expected, "{name}");
            assert_eq!(history.has_gap_after(0), expected < 10, "{name}");
            let newest = (11 - expected as u64..=10).map(|n| n * 10);
            assert!(kept(&history, 0).into_iter().eq(newest), "{name}");
        }
    }

    #[test]
    fn old_messages_are_trimmed_with_their_bytes() {
        let now = Instant::now();
        let mut history = ChannelHistory::default();
        let second = Duration::from_secs(1);
        let age = HistoryBounds {
            max_age: 5 * second,
            ..ALL
        };
        for order in 1..=10 {
            let at = now + second * u32::try_from(order).unwrap();
            history.push(message(order, at), age, at);
        }
        assert_eq!(kept(&history, 0), [5, 6, 7, 8, 9, 10]);
        history.trim(age, now + 14 * second);
        assert_eq!(kept(&history, 0), [9, 10]);
        // A clock that jumped back keeps what there is.
        history.trim(age, now);
        assert_eq!(
            (kept(&history, 0), history.memory_bytes()),
            (vec![9, 10], 200)
        );
        history.trim(age, now + 1000 * second);
        assert!(
            history.is_empty()
                && history.memory_bytes() == 0
                && history.has_gap_after(9)
                && !history.has_gap_after(10)
        );
    }

    #[test]
    fn what_came_after_a_message_is_found_by_its_id() {
        let history = filled(
            Instant::now(),
            HistoryBounds {
                max_count: 5,
                ..ALL
            },
        );
        let id = history.find_sequence("m80").unwrap();
        assert_eq!(kept(&history, id), [90, 100]);
        assert!(
            !history.has_gap_after(id) && history.has_gap_after(49) && !history.has_gap_after(50)
        );
        assert_eq!(history.find_sequence("m50"), None);
        assert_eq!(kept(&history, 100), [0_u64; 0]);
    }
}
