//! What the metrics text says of the hub, and of the machine as far as held streams concern it.
//!
//! Part of `metrics_text`, which calls it with these parts of a snapshot. What must stay true: what was
//! opened, published or lost are counters, so that a rate can be made of them; what the kernel did not
//! tell has no sample.

use std::fmt::{self, Write};

use super::{MetricRow, as_sample};
use crate::{ClusterStatus, HubStatus, MachineStatus};

impl super::MetricsText {
    /// The hub.
    pub(super) fn push_hub(&mut self, hub: &HubStatus) -> fmt::Result {
        let gauges = HUB_GAUGES.map(|row| ("gauge", row));
        let counters = HUB_COUNTERS.map(|row| ("counter", row));
        for (kind, (name, help, value)) in gauges.into_iter().chain(counters) {
            self.push_header(name, kind, help)?;
            writeln!(self.text, "penstock_{name} {}", value(hub))?;
        }
        let Some(nodes) = &hub.nodes else {
            return Ok(());
        };
        let gauges = CLUSTER_GAUGES.map(|row| ("gauge", row));
        for (kind, (name, help, value)) in gauges
            .into_iter()
            .chain([("counter", CLUSTER_LOST_COUNTER)])
        {
            self.push_header(name, kind, help)?;
            writeln!(self.text, "penstock_{name} {}", value(nodes))?;
        }
        Ok(())
    }

    /// The machine.
    pub(super) fn push_machine(&mut self, machine: &MachineStatus) -> fmt::Result {
        let samples = [
            (
                "load_average",
                "Processes that run or wait to run, over the last minute.",
                machine.load_average,
            ),
            (
                "socket_bytes_estimated",
                "What the kernel keeps for open connections, data aside: an estimate.",
                Some(as_sample(machine.socket_bytes_estimated)),
            ),
            (
                "tcp_buffer_bytes",
                "Data that waits in TCP sockets, of all processes.",
                machine.tcp_buffer_bytes.map(as_sample),
            ),
        ];
        for (name, help, value) in samples {
            let Some(value) = value else { continue };
            self.push_header(name, "gauge", help)?;
            writeln!(self.text, "penstock_{name} {value}")?;
        }
        Ok(())
    }
}

const HUB_GAUGES: [MetricRow<HubStatus, f64>; 11] = [
    ("hub_streams", "Streams held now.", |h| as_sample(h.streams)),
    ("hub_polls", "Long polls that wait now.", |h| {
        as_sample(h.polls)
    }),
    (
        "hub_held",
        "Both, WebSockets of the hub, and what is on its way.",
        |h| as_sample(h.held.used),
    ),
    ("hub_held_max", "The bound on all of these together.", |h| {
        as_sample(h.held.max)
    }),
    (
        "hub_channels",
        "Channels with subscribers or a history.",
        |h| as_sample(h.channels.used),
    ),
    ("hub_channels_max", "The bound on channels.", |h| {
        as_sample(h.channels.max)
    }),
    (
        "hub_stream_bytes",
        "Memory of the server's own for held streams.",
        |h| as_sample(h.stream_bytes),
    ),
    (
        "hub_backlog_bytes",
        "Bytes that wait for slow subscribers.",
        |h| as_sample(h.backlog_bytes.used),
    ),
    ("hub_backlog_bytes_max", "The bound on them.", |h| {
        as_sample(h.backlog_bytes.max)
    }),
    ("hub_history_bytes", "Bytes of all histories.", |h| {
        as_sample(h.history_bytes.used)
    }),
    ("hub_history_bytes_max", "The bound on them.", |h| {
        as_sample(h.history_bytes.max)
    }),
];

const HUB_COUNTERS: [MetricRow<HubStatus, f64>; 7] = [
    ("hub_streams_opened_total", "Streams that were held.", |h| {
        as_sample(h.counters.opened)
    }),
    ("hub_streams_closed_total", "Streams that ended.", |h| {
        as_sample(h.counters.closed)
    }),
    (
        "hub_streams_closed_slow_total",
        "Streams that were ended for being slow.",
        |h| as_sample(h.counters.closed_slow),
    ),
    ("hub_published_total", "Messages published.", |h| {
        as_sample(h.counters.published)
    }),
    (
        "hub_delivered_total",
        "Messages written to subscribers, one for each.",
        |h| as_sample(h.counters.delivered),
    ),
    (
        "hub_dropped_total",
        "Messages that slow subscribers lost.",
        |h| as_sample(h.counters.dropped),
    ),
    ("hub_beats_total", "Heart-beats written.", |h| {
        as_sample(h.counters.beats)
    }),
];

const CLUSTER_GAUGES: [MetricRow<ClusterStatus, f64>; 4] = [
    (
        "hub_redis_up",
        "1 while there is a connection to Redis.",
        |n| as_sample(u64::from(n.connected)),
    ),
    (
        "hub_redis_waiting",
        "Messages that Redis does not have yet.",
        |n| as_sample(n.waiting),
    ),
    (
        "hub_redis_channels",
        "Channels that this server follows.",
        |n| as_sample(n.channels),
    ),
    (
        "hub_servers",
        "Servers that are one hub; 0 while Redis does not answer.",
        |n| as_sample(n.servers),
    ),
];

const CLUSTER_LOST_COUNTER: MetricRow<ClusterStatus, f64> = (
    "hub_redis_lost_total",
    "Messages that were dropped before Redis had them.",
    |n| as_sample(n.lost),
);
