//! The place of a subscriber in a channel that several servers share: each server has numbers of
//! its own for the messages, and all have the same ids.
//!
//! Pure. The old process writes it into the record of a stream, the new one looks it up under the
//! lock of its channel.
//!
//! # Invariants
//! - A place that is found has every message behind it in the history, or a gap is known.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::SharedChannelState;
use crate::channel::ChannelState;

/// Such a place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SharedPlace {
    /// Behind the message with this id.
    After(Arc<str>),
    /// In front of the first message that was ever published.
    Start,
    /// Not known.
    Unknown,
}

impl SharedPlace {
    /// The place of a subscriber here of which the message `next_sequence` is the first that it
    /// does not have. `None` while it lags behind the history.
    pub(crate) fn before(state: &ChannelState, next_sequence: u64) -> Option<Self> {
        let last = next_sequence.saturating_sub(1);
        if state.last_sequence <= last {
            return Some(state.last_id.clone().map_or(Self::Start, Self::After));
        }
        let message = state.history.last_up_to(last)?;
        Some(Self::After(message.id.clone()))
    }

    /// The place as the servers that share the channel confirm it; `None` while they are out of
    /// step. To be asked after it was found: what is in front of it is everywhere then.
    pub(crate) fn confirmed_by(self, shared_state: SharedChannelState) -> Option<Self> {
        match (shared_state, self) {
            (SharedChannelState::OutOfStep, _) => None,
            // Its messages were forgotten here.
            (SharedChannelState::InStep, Self::Start) => Some(Self::Unknown),
            (SharedChannelState::InStep | SharedChannelState::Empty, place) => Some(place),
        }
    }

    /// The number here of the last message in front of it; `None` where that is not known.
    pub(crate) fn last_sequence_in(&self, state: &ChannelState) -> Option<u64> {
        match self {
            Self::After(id) => state.only_sequence_of(id),
            Self::Start => state.whole_since,
            Self::Unknown => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::channel::Channel;
    use crate::channel::tests::message;
    use crate::history::HistoryBounds;
    use crate::namespace_usages::NamespaceUsages;

    fn channel(numbers: &[u64], max_count: usize) -> Channel {
        let usage = NamespaceUsages::default().usage_of_channel("a");
        let channel = Channel::new("a".into(), 0, usage);
        let (now, bounds) = (
            Instant::now(),
            HistoryBounds {
                max_count,
                max_age: Duration::MAX,
                max_bytes: usize::MAX,
            },
        );
        let mut state = channel.lock();
        for number in numbers {
            let message = message(*number, now);
            (state.last_sequence, state.last_id) = (*number, Some(message.id.clone()));
            state.history.push(message, bounds, now);
        }
        drop(state);
        channel
    }

    fn after(id: &str) -> Option<SharedPlace> {
        Some(SharedPlace::After(id.into()))
    }

    #[test]
    fn a_place_is_behind_the_last_message_that_a_subscriber_has() {
        let channel = channel(&[10, 20, 30, 40], 3);
        let state = channel.lock();
        for (next, expected) in [
            (41, after("m40")),
            (31, after("m30")),
            (40, after("m30")),
            (25, after("m20")),
            (11, None),
        ] {
            assert_eq!(SharedPlace::before(&state, next), expected, "{next}");
        }
    }

    #[test]
    fn a_start_is_one_only_where_nothing_was_published() {
        use SharedChannelState::{Empty, InStep, OutOfStep};
        let (place, start) = (SharedPlace::After("1".into()), SharedPlace::Start);
        for (shared_state, of_place, of_start) in [
            (Empty, Some(place.clone()), Some(start.clone())),
            (InStep, Some(place.clone()), Some(SharedPlace::Unknown)),
            (OutOfStep, None, None),
        ] {
            assert_eq!(place.clone().confirmed_by(shared_state), of_place);
            assert_eq!(start.clone().confirmed_by(shared_state), of_start);
        }
    }

    #[test]
    fn a_place_is_found_only_where_it_is_certain() {
        let place = |id: &str| SharedPlace::After(id.into());
        let known = channel(&[10, 20, 30], 2);
        let mut state = known.lock();
        for (place, expected) in [
            (place("m30"), Some(30)),
            (place("m20"), Some(20)),
            (place("m10"), None),
            (SharedPlace::Unknown, None),
            (SharedPlace::Start, None),
        ] {
            assert_eq!(place.last_sequence_in(&state), expected, "{place:?}");
        }
        state.whole_since = Some(5);
        assert_eq!(SharedPlace::Start.last_sequence_in(&state), Some(5));
        drop(state);
        // Without a history the last one is known, and two of one id are not told apart.
        assert_eq!(
            place("m10").last_sequence_in(&channel(&[10], 0).lock()),
            Some(10)
        );
        let twice = channel(&[10, 10], 2);
        assert_eq!(place("m10").last_sequence_in(&twice.lock()), None);
        let fresh = channel(&[], 2);
        assert_eq!(
            SharedPlace::before(&fresh.lock(), 1),
            Some(SharedPlace::Start)
        );
    }
}
