//! The checks of each server at the end of a simulation, when there are no more faults.

use std::collections::HashMap;

use super::{ClusterSimulation, Faults, ObservedChannel, PublishedMessage, Received};
use crate::entry::ChannelName;

impl ClusterSimulation {
    /// Of every server and channel.
    pub(super) fn check_invariants(&self, faults: Faults) {
        for (number, node) in self.nodes.iter().enumerate() {
            for (channel, seen) in &node.channels {
                let place = format!("node {number}, channel {channel}: {:?}", seen.log);
                self.check_order(seen, &place);
                if let Some(since) = seen.since {
                    self.check_whole(channel, since, seen, &place);
                    self.check_history(channel, seen, &place);
                }
                if faults == Faults::None && self.redis.max_length > 100 {
                    let gaps = seen.log.iter().filter(|(_, got)| *got == Received::Gap);
                    assert_eq!(gaps.count(), 0, "{place}");
                    self.check_one_order(channel, seen, &place);
                }
            }
        }
    }

    /// Each at most once, and each server's in their order.
    fn check_order(&self, seen: &ObservedChannel, place: &str) {
        let mut last = HashMap::new();
        for (_, got) in &seen.log {
            let Received::Message(id) = got else {
                continue;
            };
            let (node, number) = id.split_once('.').unwrap();
            let number: u64 = number.parse().unwrap();
            let before = last.insert(node.to_owned(), number);
            assert!(
                before.is_none_or(|before| before < number),
                "{id} in {place}"
            );
        }
    }

    /// None is missing without a gap that came after it.
    fn check_whole(&self, channel: &ChannelName, since: u64, seen: &ObservedChannel, place: &str) {
        let of_it =
            |published: &&PublishedMessage| published.channel == *channel && published.step > since;
        for published in self.published.iter().filter(of_it) {
            let is_there =
                |(_, got): &(u64, Received)| *got == Received::Message(published.id.clone());
            let is_told =
                |(step, got): &(u64, Received)| *got == Received::Gap && *step >= published.step;
            assert!(
                seen.log
                    .iter()
                    .any(|entry| is_there(entry) || is_told(entry)),
                "{} (step {}, node {}) is missing since {since} in {place}",
                published.id,
                published.step,
                published.node,
            );
        }
    }

    /// The history is the end of the stream, in its order, or reaches back further than it.
    fn check_history(&self, channel: &ChannelName, seen: &ObservedChannel, place: &str) {
        let ids = self.redis.ids(channel);
        let of_both = ids.len().min(seen.history.len());
        let ends = (
            &ids[ids.len() - of_both..],
            &seen.history[seen.history.len() - of_both..],
        );
        assert_eq!(ends.0, ends.1, "{place}");
    }

    /// Without faults all have the order of the stream.
    fn check_one_order(&self, channel: &ChannelName, seen: &ObservedChannel, place: &str) {
        let ids = self.redis.ids(channel);
        let places: Vec<usize> = seen
            .log
            .iter()
            .filter_map(|(_, got)| match got {
                Received::Message(id) => ids.iter().position(|other| other == id),
                Received::Gap => None,
            })
            .collect();
        assert!(places.is_sorted(), "{places:?} in {place}");
    }
}
