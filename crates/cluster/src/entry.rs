//! The entries that travel between servers: one entry of a channel's stream in Redis, and its
//! position.
//!
//! Redis gives each entry its position, and so the order in which all servers deliver. The
//! publishing server gives it its origin, by which a server recognises entries that it has
//! already. Made by `redis_link` from replies, by `outbox` from publications of this server.
//!
//! # Invariants
//! - Of the entries of one server in one channel, a later one has the greater number.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_hub::Publication;

pub(super) type ChannelName = Arc<str>;

/// Which Redis a connection is to, and in which state.
#[derive(Debug, Clone)]
pub(super) struct RedisDataset {
    /// Of the data: another where it was lost.
    pub(super) id: Arc<str>,
    /// Of the process: another may have begun with older data. None where it may not be asked.
    pub(super) run_id: Option<Arc<str>>,
    pub(super) clock: RedisClock,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct RedisClock {
    pub(super) read_at: Instant,
    /// Milliseconds there, at that moment.
    pub(super) ms: u64,
}

impl RedisClock {
    /// The age of the entry at this position.
    pub(super) fn entry_age(self, now: Instant, position: StreamPosition) -> Duration {
        let since = now.saturating_duration_since(self.read_at);
        let before = Duration::from_millis(self.ms.saturating_sub(position.ms));
        let behind = Duration::from_millis(position.ms.saturating_sub(self.ms));
        (since + before).saturating_sub(behind)
    }
}

/// Where an entry stands in its channel's stream: milliseconds of Redis' clock and a count within
/// them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct StreamPosition {
    pub(super) ms: u64,
    sequence: u64,
}

/// One run of one server: drawn at its start, so that nothing of an earlier run is taken for its
/// own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct NodeId(pub(super) u64);

/// The publishing server, and its number for the entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EntryOrigin {
    pub(super) node: NodeId,
    pub(super) number: u64,
}

/// What a server says to the others.
#[derive(Debug, Clone)]
pub(super) enum EntryContent {
    /// A message for a channel's subscribers.
    Message(Box<Publication>),
    /// Messages of this channel are lost.
    Gap,
    /// Some of the messages before were delivered in another order somewhere.
    HistoryInvalidated,
    /// Messages are lost, of any channel.
    GapInAllChannels,
    /// Redis itself may have lost messages, of any channel: no client goes on from before without a
    /// gap.
    AllHistoriesInvalidated,
}

#[derive(Debug, Clone)]
pub(super) struct RedisStreamEntry {
    pub(super) channel: ChannelName,
    pub(super) position: StreamPosition,
    /// The position of the entry before it; [`StreamPosition::START`] where Redis knew of none.
    pub(super) previous: StreamPosition,
    pub(super) origin: EntryOrigin,
    /// Whether subscribers somewhere had it before it got this position in the stream, so that
    /// their order may be another: no client can go on from it, or from what came before it,
    /// without a gap.
    pub(super) was_delivered_early: bool,
    pub(super) content: EntryContent,
}

impl StreamPosition {
    /// Before the first entry.
    pub(super) const START: Self = Self { ms: 0, sequence: 0 };

    pub(super) fn parse(text: &str) -> Option<Self> {
        let (ms, sequence) = text.split_once('-')?;
        Some(Self {
            ms: ms.parse().ok()?,
            sequence: sequence.parse().ok()?,
        })
    }

    #[cfg(test)]
    pub(super) const fn new(ms: u64, sequence: u64) -> Self {
        Self { ms, sequence }
    }
}

impl fmt::Display for StreamPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.sequence)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Display for EntryOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.node, self.number)
    }
}

impl EntryOrigin {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (node, number) = text.split_once(':')?;
        Some(Self {
            node: NodeId(u64::from_str_radix(node, 16).ok()?),
            number: number.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_and_origins_are_read_as_they_are_written() {
        for text in ["0-0", "1763810000000-12", "18446744073709551615-1"] {
            let read = StreamPosition::parse(text).map(|read| read.to_string());
            assert_eq!(read.as_deref(), Some(text));
        }
        for text in [
            "",
            "-",
            "1",
            "1-",
            "-1",
            "1-x",
            "1-2-3",
            "18446744073709551616-0",
        ] {
            assert_eq!(StreamPosition::parse(text), None, "{text:?}");
        }
        let origin = EntryOrigin {
            node: NodeId(0xab),
            number: 7,
        };
        assert_eq!(origin.to_string(), "00000000000000ab:7");
        assert_eq!(EntryOrigin::parse(&origin.to_string()), Some(origin));
        for text in ["", ":", "ab", "ab:", ":7", "xy:7", "ab:x"] {
            assert_eq!(EntryOrigin::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn ages_follow_the_clock_of_redis() {
        let (at, second) = (Instant::now(), Duration::from_secs(1));
        let clock = RedisClock {
            read_at: at,
            ms: 5_000,
        };
        for (ms, later, expected) in [(4_000, 0, 1), (4_000, 2, 3), (6_000, 2, 1), (9_000, 2, 0)] {
            let age = clock.entry_age(at + second * later, StreamPosition::new(ms, 7));
            assert_eq!(age, second * expected, "{ms} {later}");
        }
    }

    #[test]
    fn positions_are_in_the_order_of_their_numbers() {
        assert!(StreamPosition::START < StreamPosition::new(0, 1));
        assert!(StreamPosition::new(9, 99) < StreamPosition::new(10, 0));
    }
}
