//! Results of `bench hold`: streams opened, held and lost, what they received and how fast, and the
//! cost.
//!
//! Part of `report`. A [`HoldSample`] is one moment of the run; the charts are drawn from them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DurationSummary, saturating_sum};
use crate::text::units::to_f64;

/// Many streams, opened at a rate and held.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct HoldResult {
    /// The URLs, as given.
    pub targets: Vec<String>,
    /// Requested streams.
    pub streams: u64,
    /// Streams to open per second.
    pub rate: f64,
    /// Seconds within which each stream must receive something; `None` for no such limit.
    pub heartbeat_seconds: Option<f64>,
    /// Grace seconds beyond that.
    pub grace_seconds: f64,
    /// Agent processes.
    pub agents: usize,
    /// Source addresses; 0 if the system chooses.
    pub sources: usize,
    /// From the first stream to the last that was opened.
    pub opening_seconds: f64,
    /// From then to the end.
    pub held_seconds: f64,
    /// Counters of the streams.
    pub counts: StreamCounts,
    /// Status codes other than 200, and their counts.
    pub statuses: BTreeMap<String, u64>,
    /// For each cause of a loss, the first reason reported.
    pub first_reasons: BTreeMap<String, String>,
    /// From the start of a connection to the whole head of its response.
    pub opening: DurationSummary,
    /// Full TLS handshakes: from the open connection to the session.
    #[serde(default)]
    pub full_handshakes: DurationSummary,
    /// TLS handshakes that resumed an earlier session.
    #[serde(default)]
    pub resumed_handshakes: DurationSummary,
    /// Messages published at the same time.
    pub published: Option<PublishResult>,
    /// The requests sent at the same time.
    pub probe: Option<ProbeResult>,
    /// The cost of the streams.
    pub cost: HoldCost,
    /// In order of time.
    pub samples: Vec<HoldSample>,
    /// Warnings about the figures.
    pub notes: Vec<String>,
}

/// Counters of streams.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StreamCounts {
    /// Connections begun.
    pub begun: u64,
    /// Answered with 200.
    pub opened: u64,
    /// Open now, or at the end.
    pub open: u64,
    /// The maximum of streams open at once.
    pub max_open: u64,
    /// Streams not held, or not any more, by cause.
    pub lost: LostStreams,
    /// Closed by the tool itself to be opened again (`--churn`).
    pub renewed: u64,
    /// Streams that were never read behind their heads (`--unread`).
    pub unread: u64,
    /// Such streams that the server closed; not counted as lost.
    pub unread_closed: u64,
    /// Receipts: how often something arrived at a stream.
    pub receipts: u64,
    /// Events: blank lines after data.
    pub events: u64,
    /// Comment lines, such as heartbeats.
    pub comments: u64,
    /// Bytes received, heads included.
    pub bytes: u64,
    /// Numbered messages of this run that arrived.
    pub received: u64,
    /// Numbers that a stream never got.
    pub missed: u64,
    /// Numbers that a stream got twice or out of order.
    pub repeated: u64,
}

/// Streams lost, by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LostStreams {
    /// The connection was refused.
    pub refused: u64,
    /// The connection failed for another network reason.
    pub unreachable: u64,
    /// The TLS handshake failed, or the server sent an alert or an invalid record.
    #[serde(default)]
    pub tls: u64,
    /// No connection and response in time.
    pub timeout: u64,
    /// Answered with another status than 200.
    pub status: u64,
    /// The response is not HTTP/1.
    pub malformed: u64,
    /// The response was complete: the server ended the stream in good order.
    pub ended: u64,
    /// The server closed the connection.
    pub closed: u64,
    /// The connection was reset.
    pub reset: u64,
    /// Nothing was received for longer than the heartbeat and its grace.
    pub silent: u64,
    /// Out of source ports on this host.
    pub no_port: u64,
    /// Out of descriptors or memory on this host.
    pub no_descriptor: u64,
    /// The agent that held them ended.
    pub agent: u64,
}

/// Messages published while the streams were held.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct PublishResult {
    /// The URL, as given.
    pub target: String,
    /// The channel.
    pub channel: String,
    /// Messages per second.
    pub rate: f64,
    /// Messages that the server accepted.
    pub accepted: u64,
    /// Definitely refused: their number was used again.
    pub refused: u64,
    /// Interrupted: it is uncertain whether they were published.
    pub uncertain: u64,
    /// The first failure's reason.
    pub first_failure: Option<String>,
    /// Sent more than a millisecond late: the publisher was busy with earlier messages.
    pub late: u64,
    /// Not sent, since the publisher was more than a second late.
    pub skipped: u64,
    /// The time the server took to accept a message.
    pub accepting: DurationSummary,
    /// From a message's intended moment to its receipt, for every stream and message.
    pub latency: DurationSummary,
    /// From a message's intended moment to its receipt by the last stream that got it.
    pub last_receipt: DurationSummary,
    /// Server CPU microseconds per delivered message, if its processes are known.
    pub cpu_us_per_delivery: Option<f64>,
}

/// Requests sent while streams are held: an open loop.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct ProbeResult {
    /// The URL, as given.
    pub target: String,
    /// Due requests per second.
    pub rate: f64,
    /// Complete responses.
    pub requests: u64,
    /// Without a complete response, or answered with 4xx or 5xx.
    pub errors: u64,
    /// Not sent, since they were late by more than the timeout; in `total` with that lateness.
    pub skipped: u64,
    /// The first error's reason.
    pub first_error: Option<String>,
    /// From the intended start to the last byte, over the whole run.
    pub total: DurationSummary,
    /// The same while all streams were held.
    pub while_held: DurationSummary,
}

/// The cost of the streams, from the samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HoldCost {
    /// Memory of the server's processes before the first stream, in bytes.
    pub server_bytes_before: Option<u64>,
    /// The maximum while all were held.
    pub server_bytes: Option<u64>,
    /// Their difference per stream.
    pub server_bytes_per_stream: Option<f64>,
    /// Growth of the kernel's own memory (slabs and TCP buffers) of the whole machine. With server
    /// and agents on one machine it includes both ends of each connection.
    pub kernel_bytes: Option<u64>,
    /// The same per stream.
    pub kernel_bytes_per_stream: Option<f64>,
    /// The median per stream while all were held. It excludes data in flight after a short stall of
    /// the machine.
    #[serde(default)]
    pub kernel_bytes_per_stream_median: Option<f64>,
    /// Memory of all agents, in bytes.
    pub tool_bytes: u64,
    /// The same per stream.
    pub tool_bytes_per_stream: Option<f64>,
    /// CPU seconds of the server's processes over the run.
    pub server_cpu_seconds: Option<f64>,
    /// CPU seconds of the agents over the run.
    pub tool_cpu_seconds: f64,
    /// The highest load average over one minute.
    pub max_load_average: f64,
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
    /// Receipts per second since the previous sample.
    pub receipts_per_second: f64,
    /// Memory of the server's processes.
    pub server_bytes: Option<u64>,
    /// Growth of the kernel's memory.
    pub kernel_bytes: Option<u64>,
    /// Memory of the agents.
    pub tool_bytes: u64,
    /// The load average over one minute.
    pub load_average: f64,
    /// The probe's mean response time since the previous sample, in microseconds.
    pub probe_mean: Option<f64>,
    /// The 99th percentile of the probe's response time, in microseconds.
    pub probe_p99: Option<u64>,
    /// Failed requests of the probe since the previous sample.
    pub probe_errors: u64,
    /// Publish-to-receipt latency since the previous sample, 50th percentile in microseconds.
    pub latency_p50: Option<u64>,
    /// The 99th percentile.
    pub latency_p99: Option<u64>,
}

impl LostStreams {
    /// Each cause with its name.
    pub fn causes(mut self) -> [(&'static str, u64); 13] {
        self.causes_mut().map(|(name, count)| (name, *count))
    }

    fn causes_mut(&mut self) -> [(&'static str, &mut u64); 13] {
        [
            ("refused", &mut self.refused),
            ("unreachable", &mut self.unreachable),
            ("tls", &mut self.tls),
            ("timeout", &mut self.timeout),
            ("status", &mut self.status),
            ("malformed", &mut self.malformed),
            ("ended", &mut self.ended),
            ("closed", &mut self.closed),
            ("reset", &mut self.reset),
            ("silent", &mut self.silent),
            ("no_port", &mut self.no_port),
            ("no_descriptor", &mut self.no_descriptor),
            ("agent", &mut self.agent),
        ]
    }

    /// Counts a stream that was lost for one of the [`LostStreams::causes`].
    pub(crate) fn record(&mut self, cause: &str) {
        let mut causes = self.causes_mut().into_iter();
        if let Some((_, count)) = causes.find(|(name, _)| *name == cause) {
            *count += 1;
        }
    }

    /// The sum of all causes.
    pub fn total(self) -> u64 {
        saturating_sum(self.causes().map(|(_, count)| count))
    }

    /// Adds another count.
    pub fn add(&mut self, other: &Self) {
        for ((_, ours), (_, theirs)) in self.causes_mut().into_iter().zip(other.causes()) {
            *ours = ours.saturating_add(theirs);
        }
    }
}

impl StreamCounts {
    /// Adds another agent's counters; the maximum at once is not a sum.
    pub fn add(&mut self, other: &Self) {
        let sum = |ours: &mut u64, theirs: u64| *ours = ours.saturating_add(theirs);
        sum(&mut self.begun, other.begun);
        sum(&mut self.opened, other.opened);
        sum(&mut self.open, other.open);
        sum(&mut self.renewed, other.renewed);
        sum(&mut self.unread, other.unread);
        sum(&mut self.unread_closed, other.unread_closed);
        sum(&mut self.receipts, other.receipts);
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
    pub fn is_clean(&self) -> bool {
        self.accepted > 0 && self.refused == 0 && self.uncertain == 0 && self.skipped == 0
    }
}

impl ProbeResult {
    /// Whether every request got a good response.
    pub fn is_clean(&self) -> bool {
        self.requests > 0 && self.errors == 0 && self.skipped == 0
    }
}

impl HoldResult {
    /// Whether all streams were opened and held, and everything arrived once and in order.
    pub fn is_clean(&self) -> bool {
        self.reasons().is_empty()
    }

    /// Why it is not clean, one text per reason.
    pub fn reasons(&self) -> Vec<String> {
        let counts = &self.counts;
        let lost = counts.lost.causes();
        let lost = lost.map(|(cause, count)| (count, format!("streams lost ({cause})")));
        // With churn some streams are always being opened.
        let expected = match counts.renewed {
            0 => self.streams,
            _ => counts.open.saturating_add(counts.unread_closed),
        };
        let held = counts.open.saturating_add(counts.unread_closed);
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

    /// Streams opened for the first time, without those that churn closed and opened again, of
    /// which a few may be in progress at the end.
    pub fn opened_first(&self) -> u64 {
        let counts = &self.counts;
        let first = counts.opened.saturating_sub(counts.renewed);
        first.max(counts.max_open)
    }

    /// The same per second, while they were being opened.
    pub fn opened_per_second(&self) -> f64 {
        match self.opening_seconds > 0.0 {
            true => to_f64(self.opened_first()) / self.opening_seconds,
            false => 0.0,
        }
    }
}
