//! What `bench hold` found: streams opened, held and lost, what they heard and how fast, and what that
//! cost.
//!
//! Part of `report`, under its rules. A [`HoldSample`] is one moment of the run: the charts over time and
//! against connections are drawn from them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Timings, saturating_sum};
use crate::text::units::to_f64;

/// Many streams, opened at a rate and held.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct HoldResult {
    /// Where to, as given.
    pub targets: Vec<String>,
    /// Streams asked for.
    pub streams: u64,
    /// Streams that were to be opened a second.
    pub rate: f64,
    /// Seconds within which each stream was to hear something; `None` asks for nothing.
    pub beat_seconds: Option<f64>,
    /// Seconds that it was given beyond that.
    pub grace_seconds: f64,
    /// Processes that held them.
    pub agents: usize,
    /// Source addresses; 0 leaves the choice to the system.
    pub sources: usize,
    /// From the first stream to the last that was opened.
    pub opening_seconds: f64,
    /// From then to the end.
    pub held_seconds: f64,
    /// What the streams came to.
    pub counts: StreamCounts,
    /// Status codes of answers that were not 200, and how many there were of each.
    pub statuses: BTreeMap<String, u64>,
    /// For each cause of a loss, what the first one said.
    pub said: BTreeMap<String, String>,
    /// From the start of a connection to the whole head of its response.
    pub opening: Timings,
    /// What was published meanwhile.
    pub published: Option<PublishResult>,
    /// The requests beside the streams.
    pub probe: Option<ProbeResult>,
    /// What it cost.
    pub cost: HoldCost,
    /// In the order of time.
    pub samples: Vec<HoldSample>,
    /// What must be known before the figures are believed.
    pub notes: Vec<String>,
}

/// What streams came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StreamCounts {
    /// Connections begun.
    pub begun: u64,
    /// Answered with 200.
    pub opened: u64,
    /// Open now, or at the end.
    pub open: u64,
    /// The most that were open at once.
    pub open_max: u64,
    /// Streams that are not held any more, or never were, by cause.
    pub lost: LostStreams,
    /// Closed by ourselves to be opened again (`--churn`).
    pub renewed: u64,
    /// Streams that were never read behind their heads (`--deaf`).
    pub deaf: u64,
    /// Such streams that the server cut; none of the lost.
    pub deaf_cut: u64,
    /// Times that something arrived at a stream.
    pub heard: u64,
    /// Events: blank lines behind data.
    pub events: u64,
    /// Comment lines, which heart-beats are.
    pub comments: u64,
    /// Bytes received, heads included.
    pub bytes: u64,
    /// Numbered messages of our publisher that arrived.
    pub received: u64,
    /// Numbers that a stream never got.
    pub missed: u64,
    /// Numbers that a stream got twice or in the wrong order.
    pub repeated: u64,
}

/// Streams lost, by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LostStreams {
    /// The connection was refused.
    pub refused: u64,
    /// The connection could not be made for another reason of the network.
    pub unreachable: u64,
    /// No connection and answer in time.
    pub timeout: u64,
    /// Answered with another status than 200.
    pub status: u64,
    /// What came is no HTTP/1 response.
    pub malformed: u64,
    /// The response was complete: the server ended the stream in good order.
    pub ended: u64,
    /// The server closed the connection.
    pub closed: u64,
    /// The connection was reset.
    pub reset: u64,
    /// Nothing was heard for longer than the beat and its grace.
    pub silent: u64,
    /// No source address and port was left here.
    pub no_port: u64,
    /// No descriptor or no memory was left here.
    pub no_descriptor: u64,
    /// An agent that held them ended.
    pub agent: u64,
}

/// What was published while the streams were held.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct PublishResult {
    /// Where to, as given.
    pub target: String,
    /// The channel.
    pub channel: String,
    /// Messages a second.
    pub rate: f64,
    /// Messages that the server accepted.
    pub accepted: u64,
    /// Refused for sure: their number was used again.
    pub refused: u64,
    /// Broken off, so that nobody knows whether they were published.
    pub doubtful: u64,
    /// What the first failure said.
    pub said: Option<String>,
    /// Sent more than a millisecond after their moment: the publisher was busy with those before.
    pub late: u64,
    /// Not sent, since the publisher was more than a second late.
    pub skipped: u64,
    /// How long the server took to accept one.
    pub accepting: Timings,
    /// From a message's intended moment to its receipt, for every stream and message.
    pub latency: Timings,
    /// From a message's intended moment to its receipt by the last stream that got it.
    pub last: Timings,
    /// Server CPU microseconds for each message delivered to a stream, when its processes are known.
    pub cpu_us_per_delivery: Option<f64>,
}

/// Requests beside the streams: an open loop.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct ProbeResult {
    /// Where to, as given.
    pub target: String,
    /// Requests a second that were due.
    pub rate: f64,
    /// Answered.
    pub requests: u64,
    /// Without a complete response, or answered with 4xx or 5xx.
    pub errors: u64,
    /// Not sent, since they came too late by more than the time-out; in `total` with that lateness.
    pub skipped: u64,
    /// What the first error said.
    pub said: Option<String>,
    /// From the intended start to the last byte, over the whole run.
    pub total: Timings,
    /// The same while all streams were held.
    pub held: Timings,
}

/// What the streams cost, from the samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HoldCost {
    /// Memory of the server's processes before the first stream, in bytes.
    pub server_before: Option<u64>,
    /// The most while all were held.
    pub server_bytes: Option<u64>,
    /// Their difference for each stream.
    pub server_bytes_per_stream: Option<f64>,
    /// What the kernel's own memory (slabs and TCP buffers) grew by, of the whole machine: with server
    /// and agents on one machine both ends of each connection are in it.
    pub kernel_bytes: Option<u64>,
    /// The same for each stream.
    pub kernel_bytes_per_stream: Option<f64>,
    /// The median for each stream while all were held: what is on its way, when the machine has stood still
    /// for a moment, is not in it.
    #[serde(default)]
    pub kernel_bytes_per_stream_median: Option<f64>,
    /// Memory of the agents together, in bytes.
    pub tool_bytes: u64,
    /// The same for each stream.
    pub tool_bytes_per_stream: Option<f64>,
    /// CPU seconds of the server's processes over the run.
    pub server_cpu_seconds: Option<f64>,
    /// CPU seconds of the agents over the run.
    pub tool_cpu_seconds: f64,
    /// The highest load average over one minute.
    pub load_max: f64,
}

/// One moment of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HoldSample {
    /// Seconds since the start.
    pub at: f64,
    /// Whether streams were still being opened.
    pub is_opening: bool,
    /// Streams open.
    pub open: u64,
    /// Streams lost so far.
    pub lost: u64,
    /// Times a second that something arrived, since the sample before.
    pub heard_per_second: f64,
    /// Memory of the server's processes.
    pub server_bytes: Option<u64>,
    /// What the kernel's memory grew by.
    pub kernel_bytes: Option<u64>,
    /// Memory of the agents.
    pub tool_bytes: u64,
    /// The load average over one minute.
    pub load: f64,
    /// The probe's mean response time since the sample before, in microseconds.
    pub probe_mean: Option<f64>,
    /// 99 % of the probe's requests took no longer.
    pub probe_p99: Option<u64>,
    /// The probe's requests that failed since the sample before.
    pub probe_errors: u64,
    /// Publish-to-receipt, microseconds: 50 % of the messages since the sample before.
    pub latency_p50: Option<u64>,
    /// 99 %.
    pub latency_p99: Option<u64>,
}

impl LostStreams {
    /// Each cause by its name.
    #[must_use]
    pub fn causes(&self) -> [(&'static str, u64); 12] {
        [
            ("refused", self.refused),
            ("unreachable", self.unreachable),
            ("timeout", self.timeout),
            ("status", self.status),
            ("malformed", self.malformed),
            ("ended", self.ended),
            ("closed", self.closed),
            ("reset", self.reset),
            ("silent", self.silent),
            ("no_port", self.no_port),
            ("no_descriptor", self.no_descriptor),
            ("agent", self.agent),
        ]
    }

    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        saturating_sum(self.causes().map(|(_, count)| count))
    }

    /// Adds another count.
    pub fn add(&mut self, other: &Self) {
        let sum = |ours: &mut u64, theirs: u64| *ours = ours.saturating_add(theirs);
        sum(&mut self.refused, other.refused);
        sum(&mut self.unreachable, other.unreachable);
        sum(&mut self.timeout, other.timeout);
        sum(&mut self.status, other.status);
        sum(&mut self.malformed, other.malformed);
        sum(&mut self.ended, other.ended);
        sum(&mut self.closed, other.closed);
        sum(&mut self.reset, other.reset);
        sum(&mut self.silent, other.silent);
        sum(&mut self.no_port, other.no_port);
        sum(&mut self.no_descriptor, other.no_descriptor);
        sum(&mut self.agent, other.agent);
    }
}

impl StreamCounts {
    /// Adds what another agent's streams came to; the most at once is not a sum.
    pub fn add(&mut self, other: &Self) {
        let sum = |ours: &mut u64, theirs: u64| *ours = ours.saturating_add(theirs);
        sum(&mut self.begun, other.begun);
        sum(&mut self.opened, other.opened);
        sum(&mut self.open, other.open);
        sum(&mut self.renewed, other.renewed);
        sum(&mut self.deaf, other.deaf);
        sum(&mut self.deaf_cut, other.deaf_cut);
        sum(&mut self.heard, other.heard);
        sum(&mut self.events, other.events);
        sum(&mut self.comments, other.comments);
        sum(&mut self.bytes, other.bytes);
        sum(&mut self.received, other.received);
        sum(&mut self.missed, other.missed);
        sum(&mut self.repeated, other.repeated);
        self.lost.add(&other.lost);
    }
}

impl PublishResult {
    /// Whether every message was accepted.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.accepted > 0 && self.refused == 0 && self.doubtful == 0 && self.skipped == 0
    }
}

impl ProbeResult {
    /// Whether every request was answered well.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.requests > 0 && self.errors == 0 && self.skipped == 0
    }
}

impl HoldResult {
    /// Whether all streams were opened and held, and everything arrived once and in order.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.reasons().is_empty()
    }

    /// Why it is not clean, a reason each.
    #[must_use]
    pub fn reasons(&self) -> Vec<String> {
        let counts = &self.counts;
        let lost = counts.lost.causes();
        let lost = lost.map(|(cause, count)| (count, format!("streams lost ({cause})")));
        // With churn some are always under way.
        let expected = match counts.renewed {
            0 => self.streams,
            _ => counts.open.saturating_add(counts.deaf_cut),
        };
        let held = counts.open.saturating_add(counts.deaf_cut);
        let others = [
            (expected.abs_diff(held), "streams not open at the end"),
            (counts.missed, "messages missed"),
            (counts.repeated, "messages received twice"),
        ];
        let others = others.map(|(count, what)| (count, what.to_owned()));
        let counted = lost
            .into_iter()
            .chain(others)
            .filter(|(count, _)| *count > 0);
        let mut reasons: Vec<String> = counted
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        if self.published.as_ref().is_some_and(|it| !it.is_clean()) {
            reasons.push("messages could not be published".to_owned());
        }
        if self.probe.as_ref().is_some_and(|it| !it.is_clean()) {
            reasons.push("the probe's requests failed or were skipped".to_owned());
        }
        reasons
    }

    /// Streams opened for the first time: not those that churn closed and opened again, of which a few may
    /// be under way at the end.
    #[must_use]
    pub fn opened_first(&self) -> u64 {
        let counts = &self.counts;
        let first = counts.opened.saturating_sub(counts.renewed);
        first.max(counts.open_max)
    }

    /// The same a second, while they were being opened.
    #[must_use]
    pub fn opened_per_second(&self) -> f64 {
        match self.opening_seconds > 0.0 {
            true => to_f64(self.opened_first()) / self.opening_seconds,
            false => 0.0,
        }
    }
}
