//! The plan of one run of `bench hold`, and its progress.
//!
//! `arguments` makes a [`HoldPlan`]; `coordinator` executes it and derives the agents' orders;
//! `text` shows [`HoldProgress`].

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::agent_protocol::{AgentOrder, PROTOCOL_VERSION, SourceRange, StreamTarget};
use super::probe::ProbeSpec;
use super::publisher::PublishSpec;
use crate::deploy::resource_usage::ProcessTree;
use crate::report::{HoldSample, StreamCounts};
use crate::text::units::to_f64;
use crate::tls::TlsSettings;

/// The plan.
#[derive(Debug)]
pub struct HoldPlan {
    /// As given, for the report.
    pub targets: Vec<String>,
    /// Servers, and the request that opens a stream at each.
    pub stream_targets: Vec<StreamTarget>,
    /// Streams of each agent.
    pub shares: Vec<u32>,
    /// Source addresses and ports of each agent; empty if the system chooses.
    pub sources: Vec<Vec<SourceRange>>,
    /// Streams opened per second.
    pub rate: f64,
    /// The holding time once all are open.
    pub hold: Duration,
    /// The time within which each stream must receive something.
    pub heartbeat: Option<Duration>,
    /// The grace beyond that.
    pub grace: Duration,
    /// For connecting and the response head.
    pub timeout: Duration,
    /// Streams closed and reopened per second, once all are open.
    pub churn: f64,
    /// One stream in this many is never read.
    pub unread_one_in: Option<u32>,
    /// How sessions with `https://` are made.
    pub tls: TlsSettings,
    /// The messages to publish meanwhile.
    pub publish: Option<PublishSpec>,
    /// The probe's requests meanwhile.
    pub probe: Option<ProbeSpec>,
    /// The server's processes, as far as known.
    pub servers: Vec<ProcessTree>,
    /// For a baseline before the first stream.
    pub baseline_time: Duration,
    /// Between two samples.
    pub sample_interval: Duration,
    /// Set from outside to end early.
    pub stop: Arc<AtomicBool>,
}

/// The progress of a run.
#[derive(Debug, Clone, Copy, Default)]
pub struct HoldProgress {
    /// The current phase.
    pub phase: HoldPhase,
    /// Requested streams.
    pub streams: u64,
    /// The counters so far.
    pub counts: StreamCounts,
    /// Until the end of the holding time.
    pub time_left: Duration,
    /// The last sample.
    pub sample: HoldSample,
}

/// The phase of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HoldPhase {
    /// Agents start, and the baseline is measured.
    #[default]
    Starting,
    /// Streams are opened.
    Opening,
    /// All are open, or given up.
    Holding,
    /// The last published messages arrive.
    AwaitingReceipts,
    /// Agents send their last messages.
    Ending,
}

impl HoldPlan {
    pub(super) fn order_for_agent(&self, agent: usize, share: u32, run: u32) -> AgentOrder {
        let all = self.total_streams();
        let part = f64::from(share) / to_f64(all.max(1));
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let agents = u32::try_from(self.shares.len()).unwrap_or(u32::MAX);
        AgentOrder {
            protocol: PROTOCOL_VERSION,
            targets: self.stream_targets.clone(),
            streams: share,
            rate: self.rate * part,
            max_connecting: (MAX_CONNECTING / agents.max(1)).max(MIN_CONNECTING),
            tls: self.tls.clone(),
            sources: self.sources.get(agent).cloned().unwrap_or_default(),
            timeout_ms: ms(self.timeout),
            silence_ms: self.heartbeat.map(|beat| ms(beat + self.grace)),
            churn: self.churn * part,
            unread_one_in: self.unread_one_in,
            run,
            tick_ms: ms(tick_interval(self.shares.len())),
        }
    }

    pub(super) fn total_streams(&self) -> u64 {
        self.shares.iter().map(|share| u64::from(*share)).sum()
    }
}

/// The interval of an agent's ticks: a hundred lines a second are a negligible load.
pub(super) fn tick_interval(agents: usize) -> Duration {
    match agents {
        0..=8 => Duration::from_millis(250),
        _ => Duration::from_secs(1),
    }
}

/// Connections in progress of all agents, below the backlog of most servers; and the minimum for
/// each agent.
const MAX_CONNECTING: u32 = 1024;
const MIN_CONNECTING: u32 = 16;
