//! `/metrics`: renders a snapshot in the text format of Prometheus (version 0.0.4), or in that of
//! OpenMetrics 1.0, which has the traces of single durations.
//!
//! The tables say which number of a snapshot is which metric; `api` answers with the text.
//!
//! # Invariants
//! - The samples of a metric stand together below its HELP and TYPE.
//! - No two samples have the same name and labels.

mod tables;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::{self, Write};

use penstock_apps::{APP_METRICS, JOB_METRICS};
use penstock_cache::{CACHED_ROUTE_METRICS, STORE_METRICS};
use penstock_cluster::{CLUSTER_METRICS, SHARED_RATES_METRICS};
use penstock_compress::COMPRESSION_METRICS;
use penstock_exchange::metrics::{
    EDGE_METRICS, Exemplar, HistogramValues, Metric, MetricValue, ROUTE_METRICS, RULE_METRICS,
};
use penstock_exchange::spans::SPAN_METRICS;
use penstock_http::RequestHead;
use penstock_hub::HUB_METRICS;
use penstock_proxy::{SERVER_METRICS, ServerSnapshot, UPSTREAM_METRICS, UpstreamSnapshot};

use crate::{CertificatesSnapshot, Snapshot};

use self::tables::CertificateExpiry;

/// The format of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MetricsFormat {
    Prometheus,
    OpenMetrics,
}

impl MetricsFormat {
    /// The format for a client: OpenMetrics for one that names it.
    pub(crate) fn accepted_by(head: &RequestHead) -> Self {
        let accept = head.field("accept").unwrap_or_default();
        let accept = String::from_utf8_lossy(accept).to_ascii_lowercase();
        match accept.contains("application/openmetrics-text") {
            true => Self::OpenMetrics,
            false => Self::Prometheus,
        }
    }

    /// The media type of the text.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Most hosts with a metric of their certificate: a series each, which a monitor keeps for months.
const MAX_CERTIFICATE_HOSTS: usize = 500;

/// Label names with their values.
type Labels<'a> = Vec<(&'static str, &'a str)>;

/// Returns all metrics of a snapshot.
pub(crate) fn render_metrics(now: &Snapshot, format: MetricsFormat) -> String {
    let mut page = MetricsText {
        text: String::with_capacity(16 << 10),
        format,
    };
    page.push_table(tables::SERVER, &[(Vec::new(), now)]);
    page.push_table(tables::MACHINE, &[(Vec::new(), &now.machine)]);
    page.push_table(
        tables::LIMITS,
        &labelled(&now.limits, "limit", |it| it.name),
    );
    page.push_table(EDGE_METRICS, &[(Vec::new(), &now.traffic.edge)]);
    page.push_table(tables::CERTIFICATES, &[(Vec::new(), &now.certificates)]);
    let expiries = certificate_expiries(&now.certificates);
    let expiries = expiries.iter().map(|((host, source), expiry)| {
        let labels = vec![("host", *host), ("source", *source)];
        (labels, expiry)
    });
    page.push_table(tables::CERTIFICATE_EXPIRIES, &expiries.collect::<Vec<_>>());
    page.push_table(HUB_METRICS, &[(Vec::new(), &now.hub.hub)]);
    let clusters: Vec<_> = now.hub.cluster.iter().map(|it| (Vec::new(), it)).collect();
    page.push_table(CLUSTER_METRICS, &clusters);
    page.push_table(APP_METRICS, &labelled(&now.apps, "app", |it| &it.name));
    page.push_table(JOB_METRICS, &labelled(&now.jobs, "job", |it| &it.name));
    let upstreams = labelled(&now.upstreams, "upstream", |it| &it.name);
    page.push_table(UPSTREAM_METRICS, &upstreams);
    let servers: Vec<_> = now.upstreams.iter().flat_map(merge_same_name).collect();
    let servers = servers.iter().map(|(upstream, server)| {
        let labels = vec![("upstream", *upstream), ("server", server.name.as_str())];
        (labels, &**server)
    });
    page.push_table(SERVER_METRICS, &servers.collect::<Vec<_>>());
    page.push_table(
        STORE_METRICS,
        &labelled(&now.caches, "cache", |it| &it.name),
    );
    let routes = labelled(&now.cached_routes, "route", |it| &it.name);
    page.push_table(CACHED_ROUTE_METRICS, &routes);
    let rates: Vec<_> = now.shared_rates.iter().map(|it| (Vec::new(), it)).collect();
    page.push_table(SHARED_RATES_METRICS, &rates);
    // Routes come from the configuration, not from clients.
    let rules = now.rules.iter().map(|rule| {
        let labels = vec![("route", rule.route.as_str()), ("rule", rule.rule.as_str())];
        (labels, rule)
    });
    page.push_table(RULE_METRICS, &rules.collect::<Vec<_>>());
    page.push_table(COMPRESSION_METRICS, &[(Vec::new(), &now.compression)]);
    let routes = now.routes.iter().map(|it| {
        let labels = vec![("site", it.site.as_str()), ("route", it.route.as_str())];
        (labels, it)
    });
    page.push_table(ROUTE_METRICS, &routes.collect::<Vec<_>>());
    let spans: Vec<_> = now.trace_spans.iter().map(|it| (Vec::new(), it)).collect();
    page.push_table(SPAN_METRICS, &spans);
    page.push_table(tables::POOLS, &labelled(&now.pools, "pool", |it| &it.name));
    if format == MetricsFormat::OpenMetrics {
        page.text.push_str("# EOF\n");
    }
    page.text
}

/// The end of each host's certificate, by host and source; of several the first. At most
/// [`MAX_CERTIFICATE_HOSTS`], those that need attention and that end first.
fn certificate_expiries(
    certificates: &CertificatesSnapshot,
) -> BTreeMap<(&str, &str), CertificateExpiry> {
    let mut found: BTreeMap<_, CertificateExpiry> = BTreeMap::new();
    for certificate in &certificates.list {
        let hosts = certificate.hosts.iter().map(String::as_str);
        // A site of any host.
        let any = certificate.hosts.is_empty().then_some("*");
        for host in hosts.chain(any) {
            let end = certificate.not_after;
            if let Some(known) = found.get_mut(&(host, certificate.source)) {
                known.0 = known.0.min(end);
            } else if found.len() < MAX_CERTIFICATE_HOSTS {
                found.insert((host, certificate.source), CertificateExpiry(end));
            }
        }
    }
    found
}

/// The items of a list, each with its name as a label.
fn labelled<'a, T>(
    items: &'a [T],
    label: &'static str,
    name: impl Fn(&'a T) -> &'a str,
) -> Vec<(Labels<'a>, &'a T)> {
    let items = items.iter();
    items
        .map(|item| (vec![(label, name(item))], item))
        .collect()
}

struct MetricsText {
    text: String,
    format: MetricsFormat,
}

impl MetricsText {
    /// Writes each metric of a table for all items.
    fn push_table<T>(&mut self, table: &[Metric<T>], items: &[(Labels<'_>, &T)]) {
        for metric in table {
            let mut is_first = true;
            for (labels, item) in items {
                let value = (metric.read)(item);
                if matches!(value, MetricValue::Number(None)) {
                    continue;
                }
                if std::mem::take(&mut is_first) {
                    let Metric {
                        name, kind, help, ..
                    } = metric;
                    // OpenMetrics names the family of a counter without its suffix.
                    let name = match self.format {
                        MetricsFormat::OpenMetrics => name.trim_end_matches("_total"),
                        MetricsFormat::Prometheus => name,
                    };
                    self.push(format_args!("# HELP penstock_{name} {help}\n"));
                    self.push(format_args!("# TYPE penstock_{name} {kind}\n"));
                }
                self.push_value(metric.name, labels, &value);
            }
        }
    }

    fn push_value(&mut self, name: &str, labels: &[(&'static str, &str)], value: &MetricValue<'_>) {
        match value {
            MetricValue::Number(None) => {}
            MetricValue::Number(Some(number)) => self.push_sample(name, labels, None, number),
            MetricValue::Label(label, text) => {
                self.push_sample(name, labels, Some((label, text)), 1);
            }
            MetricValue::ByLabel(label, counts) => {
                for (key, count) in counts {
                    self.push_sample(name, labels, Some((label, key)), count);
                }
            }
            MetricValue::Histogram(values) => self.push_histogram(name, labels, values),
        }
    }

    fn push_histogram(
        &mut self,
        name: &str,
        labels: &[(&'static str, &str)],
        values: &HistogramValues,
    ) {
        let (bucket, mut seen) = (format!("{name}_bucket"), 0);
        for (at, (bound, count)) in values.metric_buckets().enumerate() {
            let le = bound.map_or_else(|| "+Inf".to_owned(), |bound| bound.to_string());
            let le = le.as_str();
            seen += count;
            let exemplar = values.exemplars.iter().find(|it| it.bucket == at);
            let exemplar = exemplar.filter(|_| self.format == MetricsFormat::OpenMetrics);
            match exemplar {
                Some(exemplar) => {
                    let value = format!("{seen} {}", ExemplarText(exemplar));
                    self.push_sample(&bucket, labels, Some(("le", le)), value);
                }
                None => self.push_sample(&bucket, labels, Some(("le", le)), seen),
            }
        }
        self.push_sample(&format!("{name}_sum"), labels, None, values.sum_seconds());
        self.push_sample(&format!("{name}_count"), labels, None, values.count());
    }

    fn push_sample(
        &mut self,
        name: &str,
        labels: &[(&'static str, &str)],
        last_label: Option<(&str, &str)>,
        value: impl fmt::Display,
    ) {
        self.push(format_args!("penstock_{name}"));
        let mut before = '{';
        for (label, text) in labels.iter().copied().chain(last_label) {
            self.push(format_args!("{before}{label}=\"{}\"", EscapedLabel(text)));
            before = ',';
        }
        let close = if before == '{' { "" } else { "}" };
        self.push(format_args!("{close} {value}\n"));
    }

    fn push(&mut self, text: fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = self.text.write_fmt(text);
    }
}

/// The servers of an upstream with its name. A server that is added again while it leaves is listed
/// twice and becomes one.
fn merge_same_name(upstream: &UpstreamSnapshot) -> Vec<(&str, Cow<'_, ServerSnapshot>)> {
    let mut found: Vec<(&str, Cow<'_, ServerSnapshot>)> =
        Vec::with_capacity(upstream.servers.len());
    let mut ordered: Vec<_> = upstream.servers.iter().collect();
    // The one that stays comes first and gives the state.
    ordered.sort_by_key(|server| (server.name.as_str(), server.state == "leaving"));
    for server in ordered {
        match found.last_mut() {
            Some((_, last)) if last.name == server.name => last.to_mut().add(server),
            _ => found.push((&upstream.name, Cow::Borrowed(server))),
        }
    }
    found
}

/// An exemplar of OpenMetrics: the trace, the duration in seconds and its time.
struct ExemplarText<'a>(&'a Exemplar);

impl fmt::Display for ExemplarText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Exemplar {
            trace_id,
            duration_us,
            observed_at,
            ..
        } = self.0;
        let trace_id = u128::from_be_bytes(*trace_id);
        let (seconds, micros) = (duration_us / 1_000_000, duration_us % 1_000_000);
        let at = observed_at.as_secs();
        write!(
            f,
            "# {{trace_id=\"{trace_id:032x}\"}} {seconds}.{micros:06} {at}.{:03}",
            observed_at.subsec_millis()
        )
    }
}

/// Escapes the value of a label.
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

#[cfg(test)]
mod tests;
