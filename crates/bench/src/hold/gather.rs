//! The agents' words put together: what all streams came to, so far and since the last look.
//!
//! The coordinator gives it each tick, and takes samples and the report's figures from it. Pure. What must
//! stay true: it grows with neither streams nor messages; an agent that ended has lost what it held.

use std::collections::{BTreeMap, VecDeque};

use hdrhistogram::{CreationError, Histogram};

use super::order::{Arrived, Tick};
use crate::load::{histogram, timings};
use crate::report::{Hold, HoldCounts, Timings};

/// All agents' together.
#[derive(Debug)]
pub(super) struct Gathered {
    agents: Vec<Agent>,
    /// The most streams that were open at once.
    open_max: u64,
    said: BTreeMap<String, String>,
    opening: Histogram<u64>,
    latency: Histogram<u64>,
    /// Publish-to-receipt since the last look.
    interval: Histogram<u64>,
    messages: Messages,
}

/// What is known of one agent.
#[derive(Debug)]
struct Agent {
    tick: Tick,
    is_done: bool,
    /// CPU seconds at the last look.
    cpu_before: f64,
}

/// Publish-to-receipt over an interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Receipts {
    pub(super) p50: Option<u64>,
    pub(super) p99: Option<u64>,
}

impl Gathered {
    /// For agents with these shares.
    pub(super) fn new(shares: &[u32]) -> Result<Self, CreationError> {
        let agent = |share: &u32| Agent {
            tick: Tick {
                pending: u64::from(*share),
                ..Tick::default()
            },
            is_done: false,
            cpu_before: 0.0,
        };
        Ok(Self {
            agents: shares.iter().map(agent).collect(),
            open_max: 0,
            said: BTreeMap::new(),
            opening: histogram()?,
            latency: histogram()?,
            interval: histogram()?,
            messages: Messages {
                first: 1,
                window: VecDeque::new(),
                last: histogram()?,
            },
        })
    }

    /// An agent's tick; its last one ends it.
    pub(super) fn take(&mut self, agent: usize, mut tick: Tick, is_done: bool) {
        add(&mut self.opening, &tick.opening);
        add(&mut self.latency, &tick.latency);
        add(&mut self.interval, &tick.latency);
        for arrived in &tick.messages {
            self.messages.take(*arrived);
        }
        for (cause, why) in std::mem::take(&mut tick.said) {
            self.said.entry(cause).or_insert(why);
        }
        // Distributions are taken; what stays is of one size.
        (tick.opening, tick.latency) = (Vec::new(), Vec::new());
        tick.messages = Vec::new();
        let known = &mut self.agents[agent];
        (known.tick, known.is_done) = (tick, is_done);
        self.open_max = self.open_max.max(self.counts().open);
    }

    /// An agent ended without being asked: what it held and was to open is lost. Tells whether that was so.
    pub(super) fn lose(&mut self, agent: usize, why: &str) -> bool {
        let Agent { tick, is_done, .. } = &mut self.agents[agent];
        if std::mem::replace(is_done, true) {
            return false;
        }
        tick.counts.lost.agent += tick.counts.open + tick.pending;
        (tick.counts.open, tick.pending) = (0, 0);
        self.said
            .entry("agent".to_owned())
            .or_insert_with(|| why.to_owned());
        true
    }

    pub(super) fn counts(&self) -> HoldCounts {
        let mut counts = HoldCounts::default();
        for agent in &self.agents {
            counts.add(&agent.tick.counts);
        }
        counts.open_max = self.open_max;
        counts
    }

    /// Streams that are being opened or are still to be.
    pub(super) fn pending(&self) -> u64 {
        self.agents.iter().map(|agent| agent.tick.pending).sum()
    }

    /// Whether all agents that live expect the messages.
    pub(super) fn expects(&self) -> bool {
        let mut agents = self.agents.iter();
        agents.all(|agent| agent.is_done || agent.tick.expects)
    }

    /// Whether all agents have ended.
    pub(super) fn is_done(&self) -> bool {
        self.agents.iter().all(|agent| agent.is_done)
    }

    /// Memory of all agents.
    pub(super) fn memory(&self) -> u64 {
        self.agents.iter().map(|agent| agent.tick.memory).sum()
    }

    /// CPU seconds of all agents.
    pub(super) fn cpu_seconds(&self) -> f64 {
        let agents = self.agents.iter();
        agents.map(|agent| agent.tick.cpu_seconds).sum()
    }

    /// CPU seconds since the last look of the agent that used most.
    pub(super) fn busiest(&mut self) -> f64 {
        let mut most = 0.0_f64;
        for agent in &mut self.agents {
            most = most.max(agent.tick.cpu_seconds - agent.cpu_before);
            agent.cpu_before = agent.tick.cpu_seconds;
        }
        most
    }

    /// Publish-to-receipt since the last look.
    pub(super) fn interval(&mut self) -> Receipts {
        let some = !self.interval.is_empty();
        let at = |quantile| some.then(|| self.interval.value_at_quantile(quantile));
        let found = Receipts {
            p50: at(0.5),
            p99: at(0.99),
        };
        self.interval.reset();
        found
    }

    /// Writes what the streams came to into a report.
    pub(super) fn report(&self, hold: &mut Hold) {
        hold.counts = self.counts();
        hold.said = self.said.clone();
        for agent in &self.agents {
            for (status, count) in &agent.tick.statuses {
                *hold.statuses.entry(status.to_string()).or_default() += count;
            }
        }
        hold.opening = timings(&self.opening);
        if let Some(published) = &mut hold.published {
            published.latency = timings(&self.latency);
            published.last = self.messages.last();
        }
    }
}

/// When the last stream had each message.
#[derive(Debug)]
struct Messages {
    /// The number of the first in the window.
    first: u32,
    window: VecDeque<Option<u64>>,
    /// Of those that left the window.
    last: Histogram<u64>,
}

impl Messages {
    fn take(&mut self, arrived: Arrived) {
        let Some(at) = arrived.number.checked_sub(self.first).map(|at| at as usize) else {
            return;
        };
        // A number of none of our messages.
        if at >= self.window.len() + WINDOW {
            return;
        }
        while self.window.len() <= at {
            self.window.push_back(None);
        }
        let known = &mut self.window[at];
        *known = (*known).max(Some(arrived.last));
        while self.window.len() > WINDOW {
            if let Some(last) = self.window.pop_front().flatten() {
                self.last.saturating_record(last);
            }
            self.first += 1;
        }
    }

    fn last(&self) -> Timings {
        let mut all = self.last.clone();
        for last in self.window.iter().flatten() {
            all.saturating_record(*last);
        }
        timings(&all)
    }
}

fn add(sum: &mut Histogram<u64>, values: &[(u64, u64)]) {
    for (value, count) in values {
        sum.saturating_record_n(*value, *count);
    }
}

/// Messages whose last receipt may still come.
const WINDOW: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Published;

    fn tick(open: u64, latency: &[(u64, u64)], messages: &[(u32, u64)]) -> Tick {
        let arrived = |&(number, last): &(u32, u64)| Arrived {
            number,
            streams: 1,
            last,
        };
        Tick {
            counts: HoldCounts {
                open,
                ..HoldCounts::default()
            },
            latency: latency.to_vec(),
            messages: messages.iter().map(arrived).collect(),
            ..Tick::default()
        }
    }

    #[test]
    fn agents_add_up() {
        let mut all = Gathered::new(&[5, 6]).unwrap();
        assert_eq!(all.pending(), 11);
        all.take(0, tick(5, &[(10, 2)], &[(1, 10), (2, 30)]), false);
        all.take(1, tick(6, &[(40, 1)], &[(1, 40)]), false);
        assert_eq!((all.counts().open, all.counts().open_max), (11, 11));
        let receipts = all.interval();
        assert_eq!((receipts.p50, receipts.p99), (Some(10), Some(40)));
        assert_eq!(all.interval(), Receipts::default());
        let mut hold = Hold {
            published: Some(Published::default()),
            ..Hold::default()
        };
        all.report(&mut hold);
        let published = hold.published.unwrap();
        assert_eq!(published.latency.count, 3);
        assert_eq!((published.last.min, published.last.max), (30, 40));
    }

    #[test]
    fn an_agent_that_ends_has_lost_its_streams() {
        let mut all = Gathered::new(&[5, 6]).unwrap();
        all.take(0, tick(4, &[], &[]), false);
        assert!(all.lose(0, "killed") && !all.lose(0, "again"));
        assert_eq!((all.counts().open, all.counts().lost.agent), (0, 4));
        assert_eq!(all.counts().open_max, 4);
        assert!(all.lose(1, "killed"));
        assert_eq!((all.counts().lost.agent, all.pending()), (10, 0));
        assert!(all.is_done());
        let mut all = Gathered::new(&[1]).unwrap();
        all.take(0, tick(1, &[], &[]), true);
        assert!(!all.lose(0, "it said so before") && all.counts().lost.agent == 0);
    }

    #[test]
    fn messages_without_end_take_no_memory_without_end() {
        let mut all = Gathered::new(&[1]).unwrap();
        for number in 1..=200_000 {
            all.take(0, tick(1, &[], &[(number, 7)]), false);
        }
        assert_eq!(all.messages.window.len(), WINDOW);
        assert_eq!(all.messages.last().count, 200_000);
        all.take(0, tick(1, &[], &[(u32::MAX, 7)]), false);
        assert_eq!(all.messages.window.len(), WINDOW);
    }
}
