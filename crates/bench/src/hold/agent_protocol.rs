//! The messages between the coordinator and an agent: JSON lines over the agent's standard streams.
//!
//! The first line to an agent is its [`AgentOrder`]; [`AgentRequest`]s follow. It answers with
//! [`AgentMessage`]s. The messages do not depend on the transport, and all times except a message's
//! are relative, so an agent may run on another machine. Both ends check [`PROTOCOL_VERSION`], as
//! an agent elsewhere may be another build.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::report::StreamCounts;
use crate::tls::TlsSettings;

/// The version of the messages.
pub(super) const PROTOCOL_VERSION: u32 = 3;

/// One agent's share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct AgentOrder {
    /// [`PROTOCOL_VERSION`].
    pub(super) protocol: u32,
    /// Streams are spread evenly over them.
    pub(super) targets: Vec<StreamTarget>,
    /// Streams to open and hold.
    pub(super) streams: u32,
    /// Streams per second.
    pub(super) rate: f64,
    /// Maximum connections in progress.
    pub(super) max_connecting: u32,
    /// How sessions are made with targets that have a server name.
    pub(super) tls: TlsSettings,
    /// Source addresses, used in turn; empty if the system chooses.
    pub(super) sources: Vec<SourceRange>,
    /// For connecting, the TLS handshake and the response head.
    pub(super) timeout_ms: u64,
    /// A stream that receives nothing for this long is lost.
    pub(super) silence_ms: Option<u64>,
    /// Streams closed and reopened per second, once all are open.
    pub(super) churn: f64,
    /// One stream in this many never reads behind its head.
    pub(super) unread_one_in: Option<u32>,
    /// Identifies this run's messages.
    pub(super) run: u32,
    /// Between two ticks.
    pub(super) tick_ms: u64,
}

/// A server, and the request of each connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamTarget {
    /// The server.
    pub address: SocketAddr,
    /// With TLS: the name that the server must prove.
    pub server_name: Option<String>,
    /// Head and body.
    pub request: String,
}

/// A source address, and its ports reserved for one agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceRange {
    /// The address.
    pub address: IpAddr,
    /// The first of its ports.
    pub first_port: u16,
    /// The last of its ports.
    pub last_port: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum AgentRequest {
    /// Open the streams.
    Begin,
    /// Give up the streams that are not open yet.
    EndOpening,
    /// Messages are published from now on, from number 1: open streams must get all of them.
    Publishing,
    /// Count the streams that missed the last messages, send [`AgentMessage::Done`] and end.
    Finish {
        /// The number of the last message; 0 without any.
        last: u32,
    },
}

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
    /// The current state, at intervals.
    Tick(Box<AgentTick>),
    /// The final state; the agent ends.
    Done(Box<AgentTick>),
}

/// The state of an agent's streams.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct AgentTick {
    /// So far.
    pub(super) counts: StreamCounts,
    /// Streams that are being opened, or are still to be.
    pub(super) pending: u64,
    /// Whether open streams are expected to get every message ([`AgentRequest::Publishing`]).
    pub(super) expects_messages: bool,
    /// So far, as in the report.
    pub(super) statuses: BTreeMap<u16, u64>,
    /// For each new cause of a loss, the first reason.
    pub(super) first_reasons: BTreeMap<String, String>,
    /// Since the last tick: microseconds and counts.
    pub(super) opening: Vec<(u64, u64)>,
    /// Since the last tick: the TLS handshakes among them, full and resumed.
    pub(super) full_handshakes: Vec<(u64, u64)>,
    pub(super) resumed_handshakes: Vec<(u64, u64)>,
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
    pub(super) slowest: u64,
}
