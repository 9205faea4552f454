//! The last number of each publishing server that a channel's subscribers have had. Pure.
//!
//! Used by `followed_channel`. The numbers of one server in one channel only rise (`outbox`,
//! `redis_scripts`), so a number that is not above the last one is a repetition.
//!
//! # Invariants
//! - At most [`MAX_NODES`] servers are remembered.

use crate::entry::{EntryOrigin, NodeId};

/// Servers that are remembered for one channel; the one that was silent longest is forgotten.
const MAX_NODES: usize = 64;

/// The last number of each server, the most recent at the end.
#[derive(Debug, Default)]
pub(super) struct LastSeenNumbers(Vec<EntryOrigin>);

impl LastSeenNumbers {
    /// Records a number; false when it was recorded before.
    pub(super) fn record_if_new(&mut self, origin: EntryOrigin) -> bool {
        let last = self.last_number_of(origin.node);
        if last.is_some_and(|last| origin.number <= last) {
            return false;
        }
        self.0.retain(|seen| seen.node != origin.node);
        if self.0.len() == MAX_NODES {
            self.0.remove(0);
        }
        self.0.push(origin);
        true
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn last_number_of(&self, node: NodeId) -> Option<u64> {
        let seen = self.0.iter().find(|seen| seen.node == node);
        seen.map(|seen| seen.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(node: u64, number: u64) -> EntryOrigin {
        let node = NodeId(node);
        EntryOrigin { node, number }
    }

    #[test]
    fn what_was_there_is_known_for_each_node() {
        let mut seen = LastSeenNumbers::default();
        assert!(seen.record_if_new(origin(1, 5)));
        assert!(seen.record_if_new(origin(2, 3)));
        for (node, number) in [(1, 5), (1, 4), (2, 3)] {
            assert!(!seen.record_if_new(origin(node, number)));
        }
        assert!(seen.record_if_new(origin(1, 7)));
        assert_eq!(seen.last_number_of(NodeId(1)), Some(7));
        assert_eq!(seen.last_number_of(NodeId(9)), None);
    }

    #[test]
    fn the_node_that_was_silent_longest_is_forgotten() {
        let mut seen = LastSeenNumbers::default();
        for node in 0..64 {
            assert!(seen.record_if_new(origin(node, 1)));
        }
        assert!(seen.record_if_new(origin(0, 2)));
        assert!(seen.record_if_new(origin(64, 1)));
        assert_eq!(seen.0.len(), MAX_NODES);
        assert_eq!(seen.last_number_of(NodeId(0)), Some(2));
        assert_eq!(seen.last_number_of(NodeId(1)), None);
    }
}
