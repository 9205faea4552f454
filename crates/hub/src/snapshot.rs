//! The hub at one moment, as `/status.json` and `/metrics` show it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use penstock_exchange::metric_table;
use penstock_exchange::metrics::LimitUsage;
use serde::Serialize;

use crate::{Hub, HubCounters};

/// With fewer streams the memory that the hub needs anyway would distort the figure for one stream.
const MIN_STREAMS_FOR_AVERAGE: u64 = 500;

/// The hub at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct HubSnapshot {
    /// Streams, long polls, WebSockets and connections being accepted, and their common limit.
    pub connections: LimitUsage,
    /// The most streams that one client has.
    #[serde(skip)]
    pub max_streams_of_one_client: u64,
    /// Streams refused because of `max_streams`.
    #[serde(skip)]
    pub refused_streams: u64,
    /// Streams refused because of `max_streams_per_client`.
    #[serde(skip)]
    pub refused_client_streams: u64,
    /// Open streams.
    pub streams: u64,
    /// Long polls waiting.
    pub long_polls: u64,
    /// Channels with subscribers or history.
    pub channels: LimitUsage,
    /// Counters since the start.
    pub counters: HubCounters,
    /// Memory of the server for held streams, without backlogs and without the kernel's.
    pub stream_bytes: u64,
    /// The same per stream; `None` if there are too few streams.
    pub bytes_per_stream: Option<u64>,
    /// Bytes queued for slow subscribers.
    pub backlog_bytes: LimitUsage,
    /// Bytes of all histories.
    pub history_bytes: LimitUsage,
}

impl Hub {
    /// The hub now; the numbers are read one by one.
    #[must_use]
    pub fn snapshot(&self) -> HubSnapshot {
        let (settings, metrics) = (self.settings(), &self.shared.metrics);
        let registry = &self.shared.registry;
        let count = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let size = |number: &AtomicUsize| number.load(Ordering::Relaxed) as u64;
        // In this order, so that a stream that ends meanwhile does not make it negative.
        let closed = count(&metrics.closed_streams);
        let opened = count(&metrics.opened_streams);
        let streams = opened.saturating_sub(closed);
        let stream_bytes = size(&metrics.shard_bytes) + registry.memory_bytes() as u64;
        HubSnapshot {
            connections: LimitUsage::new(
                metrics.held_connection_count() as u64,
                settings.max_streams.unwrap_or_default(),
            ),
            max_streams_of_one_client: metrics.client_permits.highest_permit_count() as u64,
            refused_streams: count(&metrics.refused_streams),
            refused_client_streams: metrics.client_permits.refused_total(),
            streams,
            long_polls: size(&metrics.long_polls),
            channels: LimitUsage::new(registry.len() as u64, settings.max_channels),
            counters: HubCounters {
                opened,
                closed,
                closed_as_slow: count(&metrics.closed_slow_streams),
                published: count(&metrics.published_messages),
                delivered: count(&metrics.delivered_messages),
                dropped: count(&metrics.dropped_messages),
                heartbeats: count(&metrics.sent_heartbeats),
            },
            stream_bytes,
            bytes_per_stream: (streams >= MIN_STREAMS_FOR_AVERAGE).then(|| stream_bytes / streams),
            backlog_bytes: LimitUsage::new(
                size(&metrics.backlog_bytes),
                settings.max_backlog_total,
            ),
            history_bytes: LimitUsage::new(
                size(&metrics.history_bytes),
                settings.history.max_size_total,
            ),
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
