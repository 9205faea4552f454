//! What the metrics text says of upstreams and of their servers.
//!
//! Part of `exposition`, which calls it with the upstreams of a snapshot. What must stay true: a server
//! that was added again while it still leaves is one series, since two samples of the same labels spoil
//! a whole collection; a bound that is not there has no sample.

use std::borrow::Cow;
use std::fmt::{self, Write};

use super::{Escaped, PartRow, Row, number};
use crate::{ServerStatus, Times, UpstreamStatus};

impl super::Page {
    /// Each upstream as a whole.
    pub(super) fn upstreams(&mut self, upstreams: &[UpstreamStatus]) -> fmt::Result {
        let gauges = GAUGES.map(|row| ("gauge", row));
        let counters = COUNTERS.map(|row| ("counter", row));
        for (kind, (name, help, value)) in gauges.into_iter().chain(counters) {
            self.head(name, kind, help)?;
            for upstream in upstreams {
                let label = Escaped(&upstream.name);
                let value = value(upstream);
                writeln!(self.text, "penstock_{name}{{upstream=\"{label}\"}} {value}")?;
            }
        }
        for (name, help, times) in HISTOGRAMS {
            self.head(name, "histogram", help)?;
            for upstream in upstreams {
                let label = ("upstream", upstream.name.as_str());
                self.histogram(name, Some(label), times(upstream))?;
            }
        }
        Ok(())
    }

    /// Each server.
    pub(super) fn servers(&mut self, upstreams: &[UpstreamStatus]) -> fmt::Result {
        let servers: Vec<_> = upstreams.iter().flat_map(distinct).collect();
        let gauges = SERVER_GAUGES.map(|row| ("gauge", row));
        let counters = SERVER_COUNTERS.map(|row| ("counter", row));
        for (kind, (name, help, value)) in gauges.into_iter().chain(counters) {
            self.head(name, kind, help)?;
            for (upstream, server) in &servers {
                let (upstream, label) = (Escaped(upstream), Escaped(&server.name));
                if let Some(value) = value(server) {
                    writeln!(
                        self.text,
                        "penstock_{name}{{upstream=\"{upstream}\",server=\"{label}\"}} {value}"
                    )?;
                }
            }
        }
        let name = "upstream_server_state";
        self.head(name, "gauge", "The server's state, as a label; always 1.")?;
        for (upstream, server) in &servers {
            let (upstream, label) = (Escaped(upstream), Escaped(&server.name));
            let state = Escaped(&server.state);
            writeln!(
                self.text,
                "penstock_{name}{{upstream=\"{upstream}\",server=\"{label}\",state=\"{state}\"}} 1"
            )?;
        }
        Ok(())
    }
}

/// The servers of an upstream, those of one name taken together, each with the upstream's name.
fn distinct(upstream: &UpstreamStatus) -> Vec<(&str, Cow<'_, ServerStatus>)> {
    let mut found: Vec<(&str, Cow<'_, ServerStatus>)> = Vec::with_capacity(upstream.servers.len());
    let mut ordered: Vec<_> = upstream.servers.iter().collect();
    // The one that stays comes first and gives the state.
    ordered.sort_by_key(|server| (server.name.as_str(), server.state == "leaving"));
    for server in ordered {
        match found.last_mut() {
            Some((_, last)) if last.name == server.name => add(last.to_mut(), server),
            _ => found.push((&upstream.name, Cow::Borrowed(server))),
        }
    }
    found
}

/// Counts what `other` has with `sum`.
fn add(sum: &mut ServerStatus, other: &ServerStatus) {
    sum.active += other.active;
    sum.connections_open += other.connections_open;
    sum.connections_idle += other.connections_idle;
    for (sum, other) in [
        (&mut sum.requests, other.requests),
        (&mut sum.failures, other.failures),
        (&mut sum.timeouts, other.timeouts),
        (&mut sum.connects, other.connects),
        (&mut sum.reuses, other.reuses),
    ] {
        *sum += other;
    }
}

const GAUGES: [Row<UpstreamStatus, f64>; 4] = [
    (
        "upstream_up",
        "1 while any of its servers takes requests.",
        |u| number(u64::from(u.up)),
    ),
    (
        "upstream_queue_waiting",
        "Requests waiting for a server.",
        |u| number(u.queue.waiting as u64),
    ),
    (
        "upstream_queue_max",
        "The bound on waiting requests.",
        |u| number(u.queue.max as u64),
    ),
    (
        "upstream_queue_oldest_seconds",
        "How long the oldest request has waited.",
        |u| u.queue.oldest_wait.as_secs_f64(),
    ),
];

const COUNTERS: [Row<UpstreamStatus, f64>; 7] = [
    (
        "upstream_requests_total",
        "Requests that asked for a server.",
        |u| number(u.counters.requests),
    ),
    (
        "upstream_queue_full_total",
        "Refused: the queue was full.",
        |u| number(u.counters.queue_full),
    ),
    (
        "upstream_queue_timeout_total",
        "Refused: waited too long for a server.",
        |u| number(u.counters.queue_timeout),
    ),
    (
        "upstream_queue_abandoned_total",
        "Clients that left while waiting.",
        |u| number(u.counters.queue_abandoned),
    ),
    (
        "upstream_unavailable_total",
        "Refused: no server was up.",
        |u| number(u.counters.unavailable),
    ),
    ("upstream_retries_total", "Tries after the first.", |u| {
        number(u.counters.retries)
    }),
    (
        "upstream_retries_refused_total",
        "Retries not made because the budget was used up.",
        |u| number(u.counters.retries_refused),
    ),
];

const HISTOGRAMS: [PartRow<UpstreamStatus, Times>; 3] = [
    (
        "upstream_queue_time_seconds",
        "Waiting for a server.",
        |u| &u.queue_time,
    ),
    (
        "upstream_connect_time_seconds",
        "Making connections.",
        |u| &u.connect_time,
    ),
    (
        "upstream_answer_time_seconds",
        "From a server having the request to its response's head.",
        |u| &u.answer_time,
    ),
];

const SERVER_GAUGES: [Row<ServerStatus, Option<f64>>; 6] = [
    ("upstream_server_active", "Requests in progress.", |s| {
        Some(number(u64::from(s.active)))
    }),
    (
        "upstream_server_active_max",
        "The bound on requests in progress, where there is one.",
        |s| s.active_max.map(|max| number(u64::from(max))),
    ),
    ("upstream_server_weight", "Its share.", |s| {
        Some(number(u64::from(s.weight)))
    }),
    (
        "upstream_server_backup",
        "1 when it gets requests only when no other server can.",
        |s| Some(number(u64::from(s.backup))),
    ),
    (
        "upstream_server_connections_open",
        "Connections to it.",
        |s| Some(number(u64::from(s.connections_open))),
    ),
    (
        "upstream_server_connections_idle",
        "Those of them that wait for a request.",
        |s| Some(number(s.connections_idle as u64)),
    ),
];

const SERVER_COUNTERS: [Row<ServerStatus, Option<f64>>; 5] = [
    (
        "upstream_server_requests_total",
        "Requests that it was given.",
        |s| Some(number(s.requests)),
    ),
    (
        "upstream_server_failures_total",
        "Requests that it failed.",
        |s| Some(number(s.failures)),
    ),
    (
        "upstream_server_timeouts_total",
        "Those of them that it did not answer in time.",
        |s| Some(number(s.timeouts)),
    ),
    (
        "upstream_server_connects_total",
        "Connections made for requests.",
        |s| Some(number(s.connects)),
    ),
    (
        "upstream_server_reuses_total",
        "Requests on a kept connection.",
        |s| Some(number(s.reuses)),
    ),
];
