//! What is to be done by one run of `bench hold`, and how far it is.
//!
//! `verb` makes a [`Plan`] of the arguments, `coordinator` executes it and gives agents their orders from
//! it; `text` shows [`Progress`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::agent_protocol::{AgentOrder, PROTOCOL_VERSION, SourceRange, StreamTarget};
use super::probe::ProbeSpec;
use super::publisher::PublishSpec;
use crate::deploy::resource_usage::ProcessTree;
use crate::report::{HoldSample, StreamCounts};
use crate::text::units::to_f64;

/// What is opened, held and measured.
#[derive(Debug)]
pub struct HoldPlan {
    /// As given, for the report.
    pub targets: Vec<String>,
    /// Servers, and the request that opens a stream at each.
    pub stream_targets: Vec<(SocketAddr, String)>,
    /// Streams of each agent.
    pub shares: Vec<u32>,
    /// Source addresses and ports of each agent: address, first and last port. None is any.
    pub sources: Vec<Vec<(std::net::IpAddr, u16, u16)>>,
    /// Streams opened a second.
    pub rate: f64,
    /// How long they are held once all are open.
    pub hold: Duration,
    /// Within which each must hear something.
    pub heartbeat: Option<Duration>,
    /// What it is given beyond that.
    pub grace: Duration,
    /// For a connection and the head of its response.
    pub timeout: Duration,
    /// Streams closed and opened again a second, once all are open.
    pub churn: f64,
    /// One in so many streams never reads.
    pub unread_one_in: Option<u32>,
    /// What is published meanwhile.
    pub publish: Option<PublishSpec>,
    /// What is asked for meanwhile.
    pub probe: Option<ProbeSpec>,
    /// The server, as far as it is known.
    pub servers: Vec<ProcessTree>,
    /// Before the first stream, for a baseline.
    pub baseline_time: Duration,
    /// Between two samples.
    pub sample_interval: Duration,
    /// Set from outside to end early.
    pub stop: Arc<AtomicBool>,
}

/// How it is, for who watches.
#[derive(Debug, Clone, Copy, Default)]
pub struct HoldProgress {
    /// What is being done.
    pub phase: HoldPhase,
    /// Streams asked for.
    pub streams: u64,
    /// What they came to so far.
    pub counts: StreamCounts,
    /// Until the end of the holding.
    pub time_left: Duration,
    /// The last sample.
    pub sample: HoldSample,
}

/// What is being done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HoldPhase {
    /// Agents start, and the baseline is taken.
    #[default]
    Starting,
    /// Streams are opened.
    Opening,
    /// All are open, or given up.
    Holding,
    /// What was published last arrives.
    AwaitingReceipts,
    /// Agents say their last words.
    Ending,
}

/// Why nothing could be measured.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// An agent could not be started, or refused its order.
    #[error("{0}")]
    Agent(String),
    /// No memory for the figures.
    #[error("figures: {0}")]
    Figures(#[from] hdrhistogram::CreationError),
}

impl HoldPlan {
    /// What one agent is told.
    pub(super) fn agent_order(&self, agent: usize, share: u32, run: u32) -> AgentOrder {
        let all = self.total_streams();
        let part = f64::from(share) / to_f64(all.max(1));
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let agents = u32::try_from(self.shares.len()).unwrap_or(u32::MAX);
        let goal = |(address, request): &(SocketAddr, String)| StreamTarget {
            address: *address,
            request: request.clone(),
        };
        let source = |&(address, first_port, last_port)| SourceRange {
            address,
            first_port,
            last_port,
        };
        let sources = self.sources.get(agent).map_or(&[][..], |sources| sources);
        AgentOrder {
            protocol: PROTOCOL_VERSION,
            goals: self.stream_targets.iter().map(goal).collect(),
            streams: share,
            rate: self.rate * part,
            connecting_max: (MAX_CONNECTING / agents.max(1)).max(MIN_CONNECTING),
            sources: sources.iter().map(source).collect(),
            timeout_ms: ms(self.timeout),
            silence_ms: self.heartbeat.map(|beat| ms(beat + self.grace)),
            churn: self.churn * part,
            deaf: self.unread_one_in,
            run,
            tick_ms: ms(tick_interval(self.shares.len())),
        }
    }

    /// Streams of all agents.
    pub(super) fn total_streams(&self) -> u64 {
        self.shares.iter().map(|share| u64::from(*share)).sum()
    }
}

/// Between two ticks of an agent: a hundred lines a second are no load.
pub(super) fn tick_interval(agents: usize) -> Duration {
    match agents {
        0..=8 => Duration::from_millis(250),
        _ => Duration::from_secs(1),
    }
}

/// Connections under way at once, of all agents: below the backlog of most servers. Each may have some.
const MAX_CONNECTING: u32 = 1024;
const MIN_CONNECTING: u32 = 16;
