//! The hub at one moment, as `/status.json` and `/metrics` show it.

use penstock_exchange::metric_table;
use penstock_exchange::metrics::Usage;
use serde::Serialize;

use crate::{Hub, HubCounters};

/// With fewer streams the memory that the hub needs anyway would distort the figure for one stream.
const MIN_STREAMS_FOR_AVERAGE: u64 = 500;

/// The hub at one moment.
#[derive(Debug, Clone, Default, Serialize)]
pub struct HubSnapshot {
    /// Streams, long polls, WebSockets and connections being accepted, and their common limit.
    pub connections: Usage,
    /// Open streams.
    pub streams: u64,
    /// Long polls waiting.
    pub long_polls: u64,
    /// Channels with subscribers or history.
    pub channels: Usage,
    /// Counters since the start.
    pub counters: HubCounters,
    /// Memory of the server for held streams, without backlogs and without the kernel's.
    pub stream_bytes: u64,
    /// The same per stream; `None` if there are too few streams.
    pub bytes_per_stream: Option<u64>,
    /// Bytes queued for slow subscribers.
    pub backlog_bytes: Usage,
    /// Bytes of all histories.
    pub history_bytes: Usage,
}

impl Hub {
    /// The hub now.
    #[must_use]
    pub fn snapshot(&self) -> HubSnapshot {
        let (counters, settings) = (self.counters(), self.settings());
        HubSnapshot {
            connections: Usage::new(counters.held, settings.max_streams.unwrap_or_default()),
            streams: counters.streams,
            long_polls: counters.long_polls,
            channels: Usage::new(counters.channels, settings.max_channels),
            stream_bytes: counters.stream_bytes,
            bytes_per_stream: (counters.streams >= MIN_STREAMS_FOR_AVERAGE)
                .then(|| counters.stream_bytes / counters.streams),
            backlog_bytes: Usage::new(counters.backlog_bytes, settings.max_backlog_total),
            history_bytes: Usage::new(counters.history_bytes, settings.history.max_size_total),
            counters,
        }
    }
}

metric_table! {
    /// Metrics of the hub.
    pub static HUB_METRICS: |hub: HubSnapshot| {
        gauge hub_streams = hub.streams, "Open streams.";
        gauge hub_long_polls = hub.long_polls, "Long polls waiting.";
        gauge hub_connections = hub.connections.used,
            "Connections held by the hub: streams, long polls, WebSockets and those being accepted.";
        gauge hub_connections_limit = hub.connections.max,
            "Limit on connections held by the hub.";
        gauge hub_channels = hub.channels.used, "Channels with subscribers or history.";
        gauge hub_channels_limit = hub.channels.max, "Limit on channels.";
        gauge hub_stream_memory_bytes = hub.stream_bytes,
            "Memory of held streams, without the kernel's.";
        gauge hub_backlog_bytes = hub.backlog_bytes.used, "Bytes queued for slow subscribers.";
        gauge hub_backlog_limit_bytes = hub.backlog_bytes.max,
            "Limit on bytes queued for slow subscribers.";
        gauge hub_history_bytes = hub.history_bytes.used, "Bytes of all histories.";
        gauge hub_history_limit_bytes = hub.history_bytes.max, "Limit on bytes of all histories.";
        counter hub_streams_opened_total = hub.counters.opened, "Streams opened.";
        counter hub_streams_closed_total = hub.counters.closed, "Streams closed.";
        counter hub_streams_closed_slow_total = hub.counters.closed_as_slow,
            "Streams closed because their client was too slow.";
        counter hub_messages_published_total = hub.counters.published, "Messages published.";
        counter hub_messages_delivered_total = hub.counters.delivered,
            "Messages written, counted once for each subscriber.";
        counter hub_messages_dropped_total = hub.counters.dropped,
            "Messages dropped because a subscriber was too slow.";
        counter hub_heartbeats_total = hub.counters.heartbeats, "Heartbeats written.";
    }
}
