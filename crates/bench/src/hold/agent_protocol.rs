//! What the coordinator and an agent tell each other: JSON lines over the agent's standard streams.
//!
//! The first line to an agent is its [`Order`]; [`AgentRequest`]s follow. It answers with [`Word`]s. Nothing here
//! says how the lines travel, and every time in it but a message's is relative, so that an agent may run
//! elsewhere. Both ends check [`PROTOCOL_VERSION`]: an agent elsewhere may be of another build.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::report::StreamCounts;

/// The version of these lines.
pub(super) const PROTOCOL_VERSION: u32 = 1;

/// A line is at most this long: an order for a million streams names some hundred addresses, a tick some
/// thousand distinct latencies.
pub(super) const MAX_LINE_BYTES: usize = 4 << 20;

/// One agent's share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct AgentOrder {
    /// [`PROTOCOL_VERSION`].
    pub(super) protocol: u32,
    /// Streams are spread evenly over them.
    pub(super) goals: Vec<StreamTarget>,
    /// Streams to open and hold.
    pub(super) streams: u32,
    /// Streams a second.
    pub(super) rate: f64,
    /// Connections that may be under way at once.
    pub(super) connecting_max: u32,
    /// Where to connect from, in turn; with none the system chooses.
    pub(super) sources: Vec<SourceRange>,
    /// For a connection and the head of its response.
    pub(super) timeout_ms: u64,
    /// A stream that hears nothing for so long is lost.
    pub(super) silence_ms: Option<u64>,
    /// Streams that are closed and opened again, a second, once all are open.
    pub(super) churn: f64,
    /// One in so many streams never reads behind its head.
    pub(super) deaf: Option<u32>,
    /// Which messages are ours.
    pub(super) run: u32,
    /// Between two ticks.
    pub(super) tick_ms: u64,
}

/// A server, and what is sent to it on each connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StreamTarget {
    pub(super) address: SocketAddr,
    /// Head and all.
    pub(super) request: String,
}

/// A source address, and the ports of it that are this agent's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SourceRange {
    pub(super) address: IpAddr,
    pub(super) first_port: u16,
    pub(super) last_port: u16,
}

/// What an agent is asked later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum AgentRequest {
    /// Open the streams.
    Begin,
    /// Give up those that are not open yet.
    EndOpening,
    /// From now on messages are published, from number 1 on: who is open must get them all.
    Publishing,
    /// Count who missed the last messages, say [`Word::Done`] and end.
    Finish {
        /// The number of the last message; 0 without any.
        last: u32,
    },
}

/// What an agent has to say.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum AgentMessage {
    /// The order can be executed.
    Ready {
        /// [`PROTOCOL_VERSION`].
        protocol: u32,
    },
    /// It cannot; the agent ends.
    Failed(String),
    /// How it is, every now and then.
    Tick(Box<AgentTick>),
    /// How it was; the agent ends.
    Done(Box<AgentTick>),
}

/// How an agent's streams are.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct AgentTick {
    /// So far.
    pub(super) counts: StreamCounts,
    /// Streams that are being opened, or are still to be.
    pub(super) pending: u64,
    /// Whether open streams are expected to get every message ([`AgentRequest::Publishing`]).
    pub(super) expects: bool,
    /// So far, as in the report.
    pub(super) statuses: BTreeMap<u16, u64>,
    /// For each cause of a loss that is new, what the first one said.
    pub(super) said: BTreeMap<String, String>,
    /// Since the last tick: microseconds and how many there were.
    pub(super) opening: Vec<(u64, u64)>,
    /// Since the last tick.
    pub(super) latency: Vec<(u64, u64)>,
    /// Messages that arrived since the last tick.
    pub(super) messages: Vec<MessageReceipt>,
    /// Memory of its own, in bytes.
    pub(super) memory: u64,
    /// CPU seconds so far.
    pub(super) cpu_seconds: f64,
}

/// One message at an agent's streams since the last tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MessageReceipt {
    pub(super) number: u32,
    /// Streams that got it.
    pub(super) streams: u64,
    /// Microseconds of the slowest.
    pub(super) last: u64,
}
