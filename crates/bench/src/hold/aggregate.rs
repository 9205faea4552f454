//! Combines the agents' ticks: totals of all streams, and changes since the last reading.
//!
//! The coordinator adds each tick, and takes samples and the report's figures. Pure.
//!
//! # Invariants
//!
//! - It grows with neither streams nor messages.
//! - An agent that ended has lost its streams.

use std::collections::{BTreeMap, VecDeque};

use hdrhistogram::{CreationError, Histogram};

use super::agent_protocol::{AgentTick, MessageReceipt};
use crate::load::{new_histogram, summarize_histogram};
use crate::report::{DurationSummary, HoldResult, StreamCounts};

/// The totals of all agents.
#[derive(Debug)]
pub(super) struct AgentTotals {
    agents: Vec<AgentState>,
    /// The maximum of streams open at once.
    max_open: u64,
    first_reasons: BTreeMap<String, String>,
    opening: Histogram<u64>,
    full_handshakes: Histogram<u64>,
    resumed_handshakes: Histogram<u64>,
    latency: Histogram<u64>,
    /// Publish-to-receipt latency since the last reading.
    interval_latency: Histogram<u64>,
    messages: MessageReceipts,
}

#[derive(Debug)]
struct AgentState {
    tick: AgentTick,
    is_done: bool,
    /// CPU seconds at the last reading.
    cpu_before: f64,
}

impl AgentTotals {
    /// For agents with these shares.
    pub(super) fn new(shares: &[u32]) -> Result<Self, CreationError> {
        let agent = |share: &u32| AgentState {
            tick: AgentTick {
                pending: u64::from(*share),
                ..AgentTick::default()
            },
            is_done: false,
            cpu_before: 0.0,
        };
        Ok(Self {
            agents: shares.iter().map(agent).collect(),
            max_open: 0,
            first_reasons: BTreeMap::new(),
            opening: new_histogram()?,
            full_handshakes: new_histogram()?,
            resumed_handshakes: new_histogram()?,
            latency: new_histogram()?,
            interval_latency: new_histogram()?,
            messages: MessageReceipts {
                first: 1,
                window: VecDeque::new(),
                last: new_histogram()?,
            },
        })
    }

    /// Adds an agent's tick; its last one ends it.
    pub(super) fn add_tick(&mut self, agent: usize, mut tick: AgentTick, is_done: bool) {
        add_histogram(&mut self.opening, &tick.opening);
        add_histogram(&mut self.full_handshakes, &tick.full_handshakes);
        add_histogram(&mut self.resumed_handshakes, &tick.resumed_handshakes);
        add_histogram(&mut self.latency, &tick.latency);
        add_histogram(&mut self.interval_latency, &tick.latency);
        for arrived in &tick.messages {
            self.messages.record(*arrived);
        }
        for (cause, why) in std::mem::take(&mut tick.first_reasons) {
            self.first_reasons.entry(cause).or_insert(why);
        }
        // The distributions are added; the rest has a fixed size.
        (tick.opening, tick.latency) = (Vec::new(), Vec::new());
        (tick.full_handshakes, tick.resumed_handshakes) = (Vec::new(), Vec::new());
        tick.messages = Vec::new();
        let known = &mut self.agents[agent];
        (known.tick, known.is_done) = (tick, is_done);
        self.max_open = self.max_open.max(self.counts().open);
    }

    /// Records that an agent ended unexpectedly: its streams, open and pending, are lost. Returns
    /// whether it was still running.
    pub(super) fn record_lost_agent(&mut self, agent: usize, why: &str) -> bool {
        let AgentState { tick, is_done, .. } = &mut self.agents[agent];
        if std::mem::replace(is_done, true) {
            return false;
        }
        tick.counts.lost.agent += tick.counts.open + tick.pending;
        (tick.counts.open, tick.pending) = (0, 0);
        self.first_reasons
            .entry("agent".to_owned())
            .or_insert_with(|| why.to_owned());
        true
    }

    pub(super) fn counts(&self) -> StreamCounts {
        let mut counts = StreamCounts::default();
        for agent in &self.agents {
            counts.add(&agent.tick.counts);
        }
        counts.max_open = self.max_open;
        counts
    }

    /// Streams that are being opened or are still to be.
    pub(super) fn pending_streams(&self) -> u64 {
        self.agents.iter().map(|agent| agent.tick.pending).sum()
    }

    /// Whether all live agents expect the messages.
    pub(super) fn all_expect_messages(&self) -> bool {
        let mut agents = self.agents.iter();
        agents.all(|agent| agent.is_done || agent.tick.expects_messages)
    }

    /// Whether all agents have ended.
    pub(super) fn is_done(&self) -> bool {
        self.agents.iter().all(|agent| agent.is_done)
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.agents.iter().map(|agent| agent.tick.memory).sum()
    }

    pub(super) fn cpu_seconds(&self) -> f64 {
        let agents = self.agents.iter();
        agents.map(|agent| agent.tick.cpu_seconds).sum()
    }

    /// CPU seconds of the busiest agent since the last reading.
    pub(super) fn take_busiest_cpu_seconds(&mut self) -> f64 {
        let mut most = 0.0_f64;
        for agent in &mut self.agents {
            most = most.max(agent.tick.cpu_seconds - agent.cpu_before);
            agent.cpu_before = agent.tick.cpu_seconds;
        }
        most
    }

    /// The 50th and 99th percentile of the publish-to-receipt latency since the last reading.
    pub(super) fn take_latency_percentiles(&mut self) -> [Option<u64>; 2] {
        let some = !self.interval_latency.is_empty();
        let at = |quantile| some.then(|| self.interval_latency.value_at_quantile(quantile));
        let found = [0.5, 0.99].map(at);
        self.interval_latency.reset();
        found
    }

    /// Writes the totals into a report.
    pub(super) fn fill_report(&self, hold: &mut HoldResult) {
        hold.counts = self.counts();
        hold.first_reasons = self.first_reasons.clone();
        for agent in &self.agents {
            for (status, count) in &agent.tick.statuses {
                *hold.statuses.entry(status.to_string()).or_default() += count;
            }
        }
        hold.opening = summarize_histogram(&self.opening);
        hold.full_handshakes = summarize_histogram(&self.full_handshakes);
        hold.resumed_handshakes = summarize_histogram(&self.resumed_handshakes);
        if let Some(published) = &mut hold.published {
            published.latency = summarize_histogram(&self.latency);
            published.last_receipt = self.messages.last();
        }
    }
}

/// The time of each message's last receipt.
#[derive(Debug)]
struct MessageReceipts {
    /// The number of the first in the window.
    first: u32,
    window: VecDeque<Option<u64>>,
    /// Of messages that left the window.
    last: Histogram<u64>,
}

impl MessageReceipts {
    fn record(&mut self, arrived: MessageReceipt) {
        let Some(at) = arrived.number.checked_sub(self.first).map(|at| at as usize) else {
            return;
        };
        // Not a number of our messages.
        if at >= self.window.len() + MESSAGE_WINDOW {
            return;
        }
        while self.window.len() <= at {
            self.window.push_back(None);
        }
        let known = &mut self.window[at];
        *known = (*known).max(Some(arrived.slowest));
        while self.window.len() > MESSAGE_WINDOW {
            if let Some(last) = self.window.pop_front().flatten() {
                self.last.saturating_record(last);
            }
            self.first += 1;
        }
    }

    fn last(&self) -> DurationSummary {
        let mut all = self.last.clone();
        for last in self.window.iter().flatten() {
            all.saturating_record(*last);
        }
        summarize_histogram(&all)
    }
}

fn add_histogram(sum: &mut Histogram<u64>, values: &[(u64, u64)]) {
    for (value, count) in values {
        sum.saturating_record_n(*value, *count);
    }
}

/// Messages that may still be received.
const MESSAGE_WINDOW: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::PublishResult;

    fn tick(open: u64, latency: &[(u64, u64)], messages: &[(u32, u64)]) -> AgentTick {
        let arrived = |&(number, last): &(u32, u64)| MessageReceipt {
            number,
            streams: 1,
            slowest: last,
        };
        AgentTick {
            counts: StreamCounts {
                open,
                ..StreamCounts::default()
            },
            latency: latency.to_vec(),
            messages: messages.iter().map(arrived).collect(),
            ..AgentTick::default()
        }
    }

    #[test]
    fn agents_add_up() {
        let mut all = AgentTotals::new(&[5, 6]).unwrap();
        assert_eq!(all.pending_streams(), 11);
        all.add_tick(0, tick(5, &[(10, 2)], &[(1, 10), (2, 30)]), false);
        all.add_tick(1, tick(6, &[(40, 1)], &[(1, 40)]), false);
        assert_eq!((all.counts().open, all.counts().max_open), (11, 11));
        assert_eq!(all.take_latency_percentiles(), [Some(10), Some(40)]);
        assert_eq!(all.take_latency_percentiles(), [None, None]);
        let mut hold = HoldResult {
            published: Some(PublishResult::default()),
            ..HoldResult::default()
        };
        all.fill_report(&mut hold);
        let published = hold.published.unwrap();
        assert_eq!(published.latency.count, 3);
        assert_eq!(
            (published.last_receipt.min, published.last_receipt.max),
            (30, 40)
        );
    }

    #[test]
    fn an_agent_that_ends_has_lost_its_streams() {
        let mut all = AgentTotals::new(&[5, 6]).unwrap();
        all.add_tick(0, tick(4, &[], &[]), false);
        assert!(all.record_lost_agent(0, "killed") && !all.record_lost_agent(0, "again"));
        assert_eq!((all.counts().open, all.counts().lost.agent), (0, 4));
        assert_eq!(all.counts().max_open, 4);
        assert!(all.record_lost_agent(1, "killed"));
        assert_eq!((all.counts().lost.agent, all.pending_streams()), (10, 0));
        assert!(all.is_done());
        let mut all = AgentTotals::new(&[1]).unwrap();
        all.add_tick(0, tick(1, &[], &[]), true);
        assert!(!all.record_lost_agent(0, "it said so before") && all.counts().lost.agent == 0);
    }

    #[test]
    fn messages_without_end_take_no_memory_without_end() {
        let mut all = AgentTotals::new(&[1]).unwrap();
        for number in 1..=200_000 {
            all.add_tick(0, tick(1, &[], &[(number, 7)]), false);
        }
        assert_eq!(all.messages.window.len(), MESSAGE_WINDOW);
        assert_eq!(all.messages.last().count, 200_000);
        all.add_tick(0, tick(1, &[], &[(u32::MAX, 7)]), false);
        assert_eq!(all.messages.window.len(), MESSAGE_WINDOW);
    }
}
