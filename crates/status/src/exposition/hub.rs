//! What the metrics text says of the hub, and of the machine as far as held streams concern it.
//!
//! Part of `exposition`, which calls it with these parts of a snapshot. What must stay true: what was
//! opened, published or lost are counters, so that a rate can be made of them; what the kernel did not
//! tell has no sample.

use std::fmt::{self, Write};

use super::{Row, number};
use crate::{HubStatus, MachineStatus, NodesStatus};

impl super::Page {
    /// The hub.
    pub(super) fn hub(&mut self, hub: &HubStatus) -> fmt::Result {
        let gauges = GAUGES.map(|row| ("gauge", row));
        let counters = COUNTERS.map(|row| ("counter", row));
        for (kind, (name, help, value)) in gauges.into_iter().chain(counters) {
            self.head(name, kind, help)?;
            writeln!(self.text, "penstock_{name} {}", value(hub))?;
        }
        let Some(nodes) = &hub.nodes else {
            return Ok(());
        };
        let gauges = NODES_GAUGES.map(|row| ("gauge", row));
        for (kind, (name, help, value)) in gauges.into_iter().chain([("counter", NODES_LOST)]) {
            self.head(name, kind, help)?;
            writeln!(self.text, "penstock_{name} {}", value(nodes))?;
        }
        Ok(())
    }

    /// The machine.
    pub(super) fn machine(&mut self, machine: &MachineStatus) -> fmt::Result {
        let samples = [
            (
                "load_average",
                "Processes that run or wait to run, over the last minute.",
                machine.load_average,
            ),
            (
                "socket_bytes_estimated",
                "What the kernel keeps for open connections, data aside: an estimate.",
                Some(number(machine.socket_bytes_estimated)),
            ),
            (
                "tcp_buffer_bytes",
                "Data that waits in TCP sockets, of all processes.",
                machine.tcp_buffer_bytes.map(number),
            ),
        ];
        for (name, help, value) in samples {
            let Some(value) = value else { continue };
            self.head(name, "gauge", help)?;
            writeln!(self.text, "penstock_{name} {value}")?;
        }
        Ok(())
    }
}

const GAUGES: [Row<HubStatus, f64>; 11] = [
    ("hub_streams", "Streams held now.", |h| number(h.streams)),
    ("hub_polls", "Long polls that wait now.", |h| {
        number(h.polls)
    }),
    (
        "hub_held",
        "Both, WebSockets of the hub, and what is on its way.",
        |h| number(h.held.used),
    ),
    ("hub_held_max", "The bound on all of these together.", |h| {
        number(h.held.max)
    }),
    (
        "hub_channels",
        "Channels with subscribers or a history.",
        |h| number(h.channels.used),
    ),
    ("hub_channels_max", "The bound on channels.", |h| {
        number(h.channels.max)
    }),
    (
        "hub_stream_bytes",
        "Memory of the server's own for held streams.",
        |h| number(h.stream_bytes),
    ),
    (
        "hub_backlog_bytes",
        "Bytes that wait for slow subscribers.",
        |h| number(h.backlog_bytes.used),
    ),
    ("hub_backlog_bytes_max", "The bound on them.", |h| {
        number(h.backlog_bytes.max)
    }),
    ("hub_history_bytes", "Bytes of all histories.", |h| {
        number(h.history_bytes.used)
    }),
    ("hub_history_bytes_max", "The bound on them.", |h| {
        number(h.history_bytes.max)
    }),
];

const COUNTERS: [Row<HubStatus, f64>; 7] = [
    ("hub_streams_opened_total", "Streams that were held.", |h| {
        number(h.counters.opened)
    }),
    ("hub_streams_closed_total", "Streams that ended.", |h| {
        number(h.counters.closed)
    }),
    (
        "hub_streams_closed_slow_total",
        "Streams that were ended for being slow.",
        |h| number(h.counters.closed_slow),
    ),
    ("hub_published_total", "Messages published.", |h| {
        number(h.counters.published)
    }),
    (
        "hub_delivered_total",
        "Messages written to subscribers, one for each.",
        |h| number(h.counters.delivered),
    ),
    (
        "hub_dropped_total",
        "Messages that slow subscribers lost.",
        |h| number(h.counters.dropped),
    ),
    ("hub_beats_total", "Heart-beats written.", |h| {
        number(h.counters.beats)
    }),
];

const NODES_GAUGES: [Row<NodesStatus, f64>; 4] = [
    (
        "hub_redis_up",
        "1 while there is a connection to Redis.",
        |n| number(u64::from(n.connected)),
    ),
    (
        "hub_redis_waiting",
        "Messages that Redis does not have yet.",
        |n| number(n.waiting),
    ),
    (
        "hub_redis_channels",
        "Channels that this server follows.",
        |n| number(n.channels),
    ),
    (
        "hub_servers",
        "Servers that are one hub; 0 while Redis does not answer.",
        |n| number(n.servers),
    ),
];

const NODES_LOST: Row<NodesStatus, f64> = (
    "hub_redis_lost_total",
    "Messages that were dropped before Redis had them.",
    |n| number(n.lost),
);
