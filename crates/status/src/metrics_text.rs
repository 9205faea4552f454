//! The metrics text that Prometheus and its kin collect (text exposition format 0.0.4).
//!
//! Rendered by `api` for `/metrics`: counters and histograms straight from edge's and the
//! applications' sets, gauges and all of the hub, the upstreams, caches and pools from a snapshot. What must stay true: the samples of
//! one metric stand together under its one TYPE line; counters end in `_total`; durations are seconds; names, once
//! released, are a promise to dashboards.

mod apps;
mod hub;
mod storage;
mod upstreams;

use std::fmt::{self, Write};

use penstock_exchange::metrics::EdgeMetrics;

use crate::{AdminOperations, HistogramSummary, LimitStatus, ServerState, Snapshot};

/// The type of the text.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All metrics as they are now.
pub(crate) fn render_metrics(source: &dyn AdminOperations) -> String {
    let snapshot = source.snapshot();
    let mut page = MetricsText {
        text: String::with_capacity(16 << 10),
    };
    // Writing to a String cannot fail.
    let _ = page.push_server(&snapshot);
    let _ = page.push_machine(&snapshot.machine);
    let _ = page.push_limits(&snapshot.limits);
    let _ = page.push_edge(&source.edge_metrics());
    let _ = page.push_hub(&snapshot.hub);
    let _ = page.push_app_counters(&source.app_metrics());
    let _ = page.push_app_gauges(&snapshot.apps);
    let _ = page.push_upstreams(&snapshot.upstreams);
    let _ = page.push_servers(&snapshot.upstreams);
    let _ = page.push_caches(&snapshot.caches);
    let _ = page.push_cached_routes(&snapshot.cached_routes);
    let _ = page.push_pools(&snapshot.pools);
    page.text
}

struct MetricsText {
    text: String,
}

impl MetricsText {
    fn push_server(&mut self, now: &Snapshot) -> fmt::Result {
        self.push_header("info", "gauge", "The program's version; always 1.")?;
        writeln!(
            self.text,
            "penstock_info{{version=\"{}\"}} 1",
            EscapedLabel(now.version)
        )?;
        let draining = u64::from(now.state == ServerState::Draining);
        for (name, kind, help, value) in [
            (
                "uptime_seconds",
                "gauge",
                "Time since the start.",
                now.uptime.as_secs_f64(),
            ),
            (
                "draining",
                "gauge",
                "1 during the graceful shutdown.",
                as_sample(draining),
            ),
            (
                "threads",
                "gauge",
                "Event loops.",
                as_sample(now.threads as u64),
            ),
            (
                "generation",
                "gauge",
                "The configuration that is served.",
                as_sample(now.generation),
            ),
            (
                "reloads_total",
                "counter",
                "Reloads that succeeded.",
                as_sample(now.reloads),
            ),
            (
                "log_lines_dropped_total",
                "counter",
                "Log lines dropped because the log was not written fast enough.",
                as_sample(now.log_lines_dropped),
            ),
            (
                "loop_stalls_total",
                "counter",
                "How often a loop did not turn for 5 s.",
                as_sample(now.loop_stalls),
            ),
            (
                "connections_max",
                "gauge",
                "The bound on open connections.",
                as_sample(now.connections.max),
            ),
        ] {
            self.push_header(name, kind, help)?;
            writeln!(self.text, "penstock_{name} {value}")?;
        }
        if let Some(bytes) = now.resident_bytes {
            self.push_header(
                "resident_bytes",
                "gauge",
                "Resident memory, without the workers'.",
            )?;
            writeln!(self.text, "penstock_resident_bytes {bytes}")?;
        }
        Ok(())
    }

    /// The bounds of which it is known how much is in use.
    fn push_limits(&mut self, limits: &[LimitStatus]) -> fmt::Result {
        self.push_header("limit_used", "gauge", "How much of a bound is in use.")?;
        for limit in limits {
            self.push_limit("limit_used", limit, limit.used.map(as_sample))?;
        }
        self.push_header("limit_max", "gauge", "The bound.")?;
        for limit in limits {
            self.push_limit("limit_max", limit, limit.used.map(|_| limit.max))?;
        }
        let help = "How often something was refused or waited because of a bound.";
        self.push_header("limit_reached_total", "counter", help)?;
        for limit in limits {
            self.push_limit("limit_reached_total", limit, limit.reached.map(as_sample))?;
        }
        Ok(())
    }

    fn push_limit(&mut self, name: &str, limit: &LimitStatus, value: Option<f64>) -> fmt::Result {
        let Some(value) = value else {
            return Ok(());
        };
        let limit = EscapedLabel(limit.name);
        writeln!(self.text, "penstock_{name}{{limit=\"{limit}\"}} {value}")
    }

    fn push_edge(&mut self, edge: &EdgeMetrics) -> fmt::Result {
        for (name, help, gauge) in [
            (
                "connections_open",
                "Connections open now.",
                &edge.open_connections,
            ),
            (
                "requests_active",
                "Requests in progress now.",
                &edge.active_requests,
            ),
        ] {
            self.push_header(name, "gauge", help)?;
            writeln!(self.text, "penstock_{name} {}", gauge.value())?;
        }
        for (name, help, counter) in [
            (
                "connections_accepted_total",
                "Connections accepted.",
                &edge.accepted_connections,
            ),
            (
                "requests_malformed_total",
                "Requests refused while parsed.",
                &edge.malformed_requests,
            ),
            (
                "clients_gone_total",
                "Clients that left before their answer.",
                &edge.client_disconnects,
            ),
            (
                "clients_too_slow_total",
                "Connections cut for slowness.",
                &edge.slow_clients,
            ),
            (
                "connections_evicted_total",
                "Idle connections closed to make room for others.",
                &edge.evicted_connections,
            ),
            (
                "connections_refused_total",
                "Connections closed at once, since their client had too many.",
                &edge.refused_connections,
            ),
            (
                "received_bytes_total",
                "Body bytes received.",
                &edge.bytes_in,
            ),
            (
                "sent_bytes_total",
                "Bytes sent, heads included.",
                &edge.bytes_out,
            ),
        ] {
            self.push_header(name, "counter", help)?;
            writeln!(self.text, "penstock_{name} {}", counter.value())?;
        }
        self.push_header("responses_total", "counter", "Responses by status class.")?;
        for (class, counter) in (1..).zip(&edge.responses) {
            let count = counter.value();
            writeln!(
                self.text,
                "penstock_responses_total{{class=\"{class}xx\"}} {count}"
            )?;
        }
        let name = "request_duration_seconds";
        self.push_header(
            name,
            "histogram",
            "From complete head to last byte handed to the kernel.",
        )?;
        self.push_histogram(name, None, &HistogramSummary::new(&edge.total_time))
    }

    fn push_header(&mut self, name: &str, kind: &str, help: &str) -> fmt::Result {
        writeln!(self.text, "# HELP penstock_{name} {help}")?;
        writeln!(self.text, "# TYPE penstock_{name} {kind}")
    }

    /// The lines of one histogram: cumulative buckets, sum, count.
    fn push_histogram(
        &mut self,
        name: &str,
        label: Option<(&str, &str)>,
        at: &HistogramSummary,
    ) -> fmt::Result {
        let label = label
            .map(|(label, value)| format!("{label}=\"{}\"", EscapedLabel(value)))
            .unwrap_or_default();
        let comma = if label.is_empty() { "" } else { "," };
        let mut seen = 0;
        for (le, count) in at.buckets.le_seconds.iter().zip(&at.buckets.counts) {
            seen += count;
            writeln!(
                self.text,
                "penstock_{name}_bucket{{{label}{comma}le=\"{le}\"}} {seen}"
            )?;
        }
        let (sum, count) = (at.sum_seconds, at.count);
        writeln!(
            self.text,
            "penstock_{name}_bucket{{{label}{comma}le=\"+Inf\"}} {count}"
        )?;
        let braces = if label.is_empty() {
            label
        } else {
            format!("{{{label}}}")
        };
        writeln!(self.text, "penstock_{name}_sum{braces} {sum}")?;
        writeln!(self.text, "penstock_{name}_count{braces} {count}")
    }
}

/// A label's value with what the format gives a meaning escaped.
struct EscapedLabel<'a>(&'a str);

impl fmt::Display for EscapedLabel<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '\\' => f.write_str("\\\\")?,
                '"' => f.write_str("\\\"")?,
                '\n' => f.write_str("\\n")?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

/// A sample's value: the format knows floating point only.
#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
fn as_sample(value: u64) -> f64 {
    value as f64
}

/// Name, help, and where the value comes from.
type MetricRow<T, V> = (&'static str, &'static str, fn(&T) -> V);

/// The same for a part of the set.
type MetricRefRow<T, V> = (&'static str, &'static str, fn(&T) -> &V);

#[cfg(test)]
mod tests;
