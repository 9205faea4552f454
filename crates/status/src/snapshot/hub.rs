//! What is held open: the hub's streams and polls, what was published, and what both cost in memory.
//!
//! Parts of a [`crate::Snapshot`], filled in by the wiring from what the hub counts and from what the
//! kernel says. What must stay true: what is measured and what is estimated have names of their own,
//! so that nobody takes one for the other.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Usage;

/// The hub.
#[derive(Debug, Clone, Serialize)]
pub struct HubStatus {
    /// Streams, long polls and WebSockets of the hub, and what is on its way, against their common bound.
    pub connections: Usage,
    /// Streams among them.
    pub streams: u64,
    /// Long polls among them.
    pub long_polls: u64,
    /// Channels with subscribers or a history, against their bound.
    pub channels: Usage,
    /// What it counted since the start.
    pub counters: HubCounters,
    /// Bytes of the server's own that the held streams cost, but for what waits for slow ones.
    pub stream_bytes: u64,
    /// The same for one stream; `None` where there are too few to tell.
    pub bytes_per_stream: Option<u64>,
    /// Bytes that wait for slow subscribers, against their bound.
    pub backlog_bytes: Usage,
    /// Bytes of all channels' histories, against their bound.
    pub history_bytes: Usage,
    /// The other servers that it is joined to; `None` for one alone.
    pub cluster: Option<ClusterStatus>,
}

/// Several servers as one hub, joined by a Redis.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClusterStatus {
    /// Where Redis is, without a password.
    pub address: String,
    /// Whether there is a connection to it.
    pub connected: bool,
    /// Whether what is published here is delivered without waiting for Redis, which does not answer.
    pub standalone: bool,
    /// Messages that Redis does not have yet.
    pub queued: u64,
    /// Messages that were dropped before Redis had them, since the start.
    pub lost: u64,
    /// Channels that this server follows.
    pub channels: u64,
    /// Servers, this one included; 0 while Redis does not answer.
    pub servers: u64,
    /// The sums of what they count, by name.
    pub totals: BTreeMap<String, u64>,
}

/// The hub's counters since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct HubCounters {
    /// Streams that were held.
    pub opened: u64,
    /// Streams that ended, for whatever reason.
    pub closed: u64,
    /// Of these, those that were ended for being slow.
    pub closed_slow: u64,
    /// Messages published.
    pub published: u64,
    /// Messages written to subscribers, one for each.
    pub delivered: u64,
    /// Messages that slow subscribers lost.
    pub dropped: u64,
    /// Heart-beats written.
    pub heartbeats: u64,
}

/// What the machine says of itself. What the kernel did not tell is `None`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct MachineStatus {
    /// Processes that run or wait to run, on average over the last minute.
    pub load_average: Option<f64>,
    /// What the kernel keeps for the server's open connections, without data that waits in them: an
    /// estimate from a measured figure for one.
    pub estimated_socket_bytes: u64,
    /// Data that waits in TCP sockets, of all processes of the machine (or container).
    pub tcp_buffer_bytes: Option<u64>,
}

impl HubStatus {
    /// A hub that holds nothing, for when there is none any more.
    #[must_use]
    pub fn empty() -> Self {
        let none = Usage { used: 0, max: 0 };
        Self {
            connections: none,
            streams: 0,
            long_polls: 0,
            channels: none,
            counters: HubCounters::default(),
            stream_bytes: 0,
            bytes_per_stream: None,
            backlog_bytes: none,
            history_bytes: none,
            cluster: None,
        }
    }
}
