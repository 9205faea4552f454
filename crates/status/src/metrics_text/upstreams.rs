//! What the metrics text says of upstreams and of their servers.
//!
//! Part of `metrics_text`, which calls it with the upstreams of a snapshot. What must stay true: a server
//! that was added again while it still leaves is one series, since two samples of the same labels spoil
//! a whole collection; a bound that is not there has no sample.

use std::borrow::Cow;
use std::fmt::{self, Write};

use super::{EscapedLabel, MetricRefRow, MetricRow, as_sample};
use crate::{HistogramSummary, ServerStatus, UpstreamStatus};

impl super::MetricsText {
    /// Each upstream as a whole.
    pub(super) fn push_upstreams(&mut self, upstreams: &[UpstreamStatus]) -> fmt::Result {
        let gauges = UPSTREAM_GAUGES.map(|row| ("gauge", row));
        let counters = UPSTREAM_COUNTERS.map(|row| ("counter", row));
        for (kind, (name, help, value)) in gauges.into_iter().chain(counters) {
            self.push_header(name, kind, help)?;
            for upstream in upstreams {
                let label = EscapedLabel(&upstream.name);
                let value = value(upstream);
                writeln!(self.text, "penstock_{name}{{upstream=\"{label}\"}} {value}")?;
            }
        }
        for (name, help, times) in UPSTREAM_HISTOGRAMS {
            self.push_header(name, "histogram", help)?;
            for upstream in upstreams {
                let label = ("upstream", upstream.name.as_str());
                self.push_histogram(name, Some(label), times(upstream))?;
            }
        }
        Ok(())
    }

    /// Each server.
    pub(super) fn push_servers(&mut self, upstreams: &[UpstreamStatus]) -> fmt::Result {
        let servers: Vec<_> = upstreams.iter().flat_map(merge_same_name).collect();
        let gauges = SERVER_GAUGES.map(|row| ("gauge", row));
        let counters = SERVER_COUNTERS.map(|row| ("counter", row));
        for (kind, (name, help, value)) in gauges.into_iter().chain(counters) {
            self.push_header(name, kind, help)?;
            for (upstream, server) in &servers {
                let (upstream, label) = (EscapedLabel(upstream), EscapedLabel(&server.name));
                if let Some(value) = value(server) {
                    writeln!(
                        self.text,
                        "penstock_{name}{{upstream=\"{upstream}\",server=\"{label}\"}} {value}"
                    )?;
                }
            }
        }
        let name = "upstream_server_state";
        self.push_header(name, "gauge", "The server's state, as a label; always 1.")?;
        for (upstream, server) in &servers {
            let (upstream, label) = (EscapedLabel(upstream), EscapedLabel(&server.name));
            let state = EscapedLabel(&server.state);
            writeln!(
                self.text,
                "penstock_{name}{{upstream=\"{upstream}\",server=\"{label}\",state=\"{state}\"}} 1"
            )?;
        }
        Ok(())
    }
}

/// The servers of an upstream, those of one name taken together, each with the upstream's name.
fn merge_same_name(upstream: &UpstreamStatus) -> Vec<(&str, Cow<'_, ServerStatus>)> {
    let mut found: Vec<(&str, Cow<'_, ServerStatus>)> = Vec::with_capacity(upstream.servers.len());
    let mut ordered: Vec<_> = upstream.servers.iter().collect();
    // The one that stays comes first and gives the state.
    ordered.sort_by_key(|server| (server.name.as_str(), server.state == "leaving"));
    for server in ordered {
        match found.last_mut() {
            Some((_, last)) if last.name == server.name => add_counters(last.to_mut(), server),
            _ => found.push((&upstream.name, Cow::Borrowed(server))),
        }
    }
    found
}

/// Counts what `other` has with `sum`.
fn add_counters(sum: &mut ServerStatus, other: &ServerStatus) {
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

const UPSTREAM_GAUGES: [MetricRow<UpstreamStatus, f64>; 4] = [
    (
        "upstream_up",
        "1 while any of its servers takes requests.",
        |u| as_sample(u64::from(u.up)),
    ),
    (
        "upstream_queue_waiting",
        "Requests waiting for a server.",
        |u| as_sample(u.queue.waiting as u64),
    ),
    (
        "upstream_queue_max",
        "The bound on waiting requests.",
        |u| as_sample(u.queue.max as u64),
    ),
    (
        "upstream_queue_oldest_seconds",
        "How long the oldest request has waited.",
        |u| u.queue.oldest_wait.as_secs_f64(),
    ),
];

const UPSTREAM_COUNTERS: [MetricRow<UpstreamStatus, f64>; 7] = [
    (
        "upstream_requests_total",
        "Requests that asked for a server.",
        |u| as_sample(u.counters.requests),
    ),
    (
        "upstream_queue_full_total",
        "Refused: the queue was full.",
        |u| as_sample(u.counters.queue_full),
    ),
    (
        "upstream_queue_timeout_total",
        "Refused: waited too long for a server.",
        |u| as_sample(u.counters.queue_timeout),
    ),
    (
        "upstream_queue_abandoned_total",
        "Clients that left while waiting.",
        |u| as_sample(u.counters.queue_abandoned),
    ),
    (
        "upstream_unavailable_total",
        "Refused: no server was up.",
        |u| as_sample(u.counters.unavailable),
    ),
    ("upstream_retries_total", "Tries after the first.", |u| {
        as_sample(u.counters.retries)
    }),
    (
        "upstream_retries_refused_total",
        "Retries not made because the budget was used up.",
        |u| as_sample(u.counters.retries_refused),
    ),
];

const UPSTREAM_HISTOGRAMS: [MetricRefRow<UpstreamStatus, HistogramSummary>; 3] = [
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

const SERVER_GAUGES: [MetricRow<ServerStatus, Option<f64>>; 6] = [
    ("upstream_server_active", "Requests in progress.", |s| {
        Some(as_sample(u64::from(s.active)))
    }),
    (
        "upstream_server_active_max",
        "The bound on requests in progress, where there is one.",
        |s| s.active_max.map(|max| as_sample(u64::from(max))),
    ),
    ("upstream_server_weight", "Its share.", |s| {
        Some(as_sample(u64::from(s.weight)))
    }),
    (
        "upstream_server_backup",
        "1 when it gets requests only when no other server can.",
        |s| Some(as_sample(u64::from(s.backup))),
    ),
    (
        "upstream_server_connections_open",
        "Connections to it.",
        |s| Some(as_sample(u64::from(s.connections_open))),
    ),
    (
        "upstream_server_connections_idle",
        "Those of them that wait for a request.",
        |s| Some(as_sample(s.connections_idle as u64)),
    ),
];

const SERVER_COUNTERS: [MetricRow<ServerStatus, Option<f64>>; 5] = [
    (
        "upstream_server_requests_total",
        "Requests that it was given.",
        |s| Some(as_sample(s.requests)),
    ),
    (
        "upstream_server_failures_total",
        "Requests that it failed.",
        |s| Some(as_sample(s.failures)),
    ),
    (
        "upstream_server_timeouts_total",
        "Those of them that it did not answer in time.",
        |s| Some(as_sample(s.timeouts)),
    ),
    (
        "upstream_server_connects_total",
        "Connections made for requests.",
        |s| Some(as_sample(s.connects)),
    ),
    (
        "upstream_server_reuses_total",
        "Requests on a kept connection.",
        |s| Some(as_sample(s.reuses)),
    ),
];
