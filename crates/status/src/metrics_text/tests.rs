//! The metrics text, parsed by a small strict parser.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use penstock_exchange::metrics::METRIC_BOUNDS_US;

use super::*;
use crate::fake::{FakeServer, NAME_TO_ESCAPE};
use crate::{AdminOperations, CertificateSnapshot};

/// A line with a value.
#[derive(Debug, Clone, PartialEq)]
struct Sample {
    metric: String,
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

/// Parses the whole text; panics on a violation of the format.
fn parse(text: &str) -> Vec<Sample> {
    assert!(text.ends_with('\n'), "the last line must end");
    let mut samples: Vec<Sample> = Vec::new();
    let (mut helped, mut typed) = (HashSet::new(), HashSet::new());
    let mut current = (String::new(), String::new());
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, _) = help.split_once(' ').unwrap();
            assert!(helped.insert(name.to_owned()), "second HELP: {line}");
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert!(helped.contains(name), "TYPE without HELP: {line}");
            assert!(typed.insert(name.to_owned()), "second TYPE: {line}");
            assert!(matches!(kind, "counter" | "gauge" | "histogram"), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            current = (name.to_owned(), kind.to_owned());
        } else {
            samples.push(parse_sample(line, &current));
        }
    }
    let identity = |s: &Sample| (s.name.clone(), s.labels.clone());
    let distinct: HashSet<_> = samples
        .iter()
        .map(|s| format!("{:?}", identity(s)))
        .collect();
    assert_eq!(distinct.len(), samples.len(), "a sample is there twice");
    samples
}

fn parse_sample(line: &str, (metric, kind): &(String, String)) -> Sample {
    let (left, value) = line.rsplit_once(' ').unwrap();
    let (name, labels) = match left.split_once('{') {
        Some((name, rest)) => (name, parse_labels(rest.strip_suffix('}').unwrap())),
        None => (left, BTreeMap::new()),
    };
    let suffix = name
        .strip_prefix(metric.as_str())
        .unwrap_or_else(|| panic!("astray: {line}"));
    let suffixes: &[&str] = if kind == "histogram" {
        &["_bucket", "_sum", "_count"]
    } else {
        &[""]
    };
    assert!(suffixes.contains(&suffix), "{line}");
    assert!(name.starts_with("penstock_"), "{line}");
    assert!(
        name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'),
        "{line}"
    );
    let value = value.parse().unwrap();
    Sample {
        metric: metric.clone(),
        name: name.to_owned(),
        labels,
        value,
    }
}

fn parse_labels(text: &str) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    let mut rest = text;
    while let Some((name, after)) = rest.split_once("=\"") {
        let (mut value, mut chars) = (String::new(), after.char_indices());
        let end = loop {
            match chars.next().unwrap() {
                (at, '"') => break at,
                (_, '\\') => value.push(match chars.next().unwrap().1 {
                    'n' => '\n',
                    c @ ('\\' | '"') => c,
                    c => panic!("unknown escape {c}"),
                }),
                (_, c) => value.push(c),
            }
        };
        assert!(
            labels.insert(name.to_owned(), value).is_none(),
            "label twice: {text}"
        );
        rest = after[end + 1..].trim_start_matches(',');
    }
    assert!(rest.is_empty(), "{text}");
    labels
}

fn value(samples: &[Sample], name: &str, labels: &[(&str, &str)]) -> f64 {
    let labels = labels
        .iter()
        .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
        .collect();
    let found = samples
        .iter()
        .find(|s| s.name == name && s.labels == labels);
    found
        .unwrap_or_else(|| panic!("no {name} {labels:?}"))
        .value
}

fn busy_source() -> FakeServer {
    let source = FakeServer::default();
    source.edge.count_response(200);
    source.edge.count_response(503);
    source.edge.open_connections.add(7);
    source.app_status.requests.add(11);
    source.app_status.recycled_workers[0].add(2);
    source.app_status.killed_workers[3].add(1);
    for us in [50, 150, 150, 900_000, 90_000_000] {
        source.edge.total_time.record(Duration::from_micros(us));
        source
            .app_status
            .queue_time
            .record(Duration::from_micros(us));
    }
    source
}

#[test]
fn every_sample_has_its_type_and_every_metric_stands_together() {
    let samples = parse(&prometheus_text(&busy_source().snapshot()));
    let mut seen: Vec<&str> = samples.iter().map(|s| s.metric.as_str()).collect();
    seen.dedup();
    let distinct: HashSet<_> = seen.iter().collect();
    assert_eq!(distinct.len(), seen.len(), "a metric's samples are apart");
    assert!(seen.len() > 40);
}

#[test]
fn buckets_are_cumulative_and_end_with_the_count() {
    let samples = parse(&prometheus_text(&busy_source().snapshot()));
    let mut series: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for sample in samples.iter().filter(|s| s.name.ends_with("_bucket")) {
        let mut labels = sample.labels.clone();
        let le = labels
            .remove("le")
            .unwrap()
            .replace("+Inf", "inf")
            .parse()
            .unwrap();
        let key = format!("{}{labels:?}", sample.metric);
        series.entry(key).or_default().push((le, sample.value));
    }
    // One of edge, two of each application, three of each upstream, one of each route.
    assert_eq!(series.len(), 1 + 2 * 2 + 2 * 3 + 2);
    for (key, buckets) in &series {
        assert_eq!(buckets.len(), METRIC_BOUNDS_US.len() + 1, "{key}");
        assert!(
            buckets
                .windows(2)
                .all(|w| w[0].0 < w[1].0 && w[0].1 <= w[1].1),
            "{key}"
        );
        assert_eq!(buckets.last().unwrap().0, f64::INFINITY, "{key}");
    }
    let total = "penstock_request_duration_seconds";
    assert_eq!(
        value(&samples, &format!("{total}_bucket"), &[("le", "0.0002")]),
        3.0
    );
    assert_eq!(
        value(&samples, &format!("{total}_bucket"), &[("le", "60")]),
        4.0
    );
    assert_eq!(
        value(&samples, &format!("{total}_bucket"), &[("le", "+Inf")]),
        5.0
    );
    assert_eq!(value(&samples, &format!("{total}_count"), &[]), 5.0);
    assert!((value(&samples, &format!("{total}_sum"), &[]) - 90.90035).abs() < 1e-9);
}

#[test]
fn values_are_those_of_the_sets_and_of_the_snapshot() {
    let samples = parse(&prometheus_text(&busy_source().snapshot()));
    for (name, labels, expected) in [
        ("penstock_build_info", &[("version", "0.1.0")][..], 1.0),
        ("penstock_uptime_seconds", &[], 90.5),
        ("penstock_connections_open", &[], 7.0),
        ("penstock_connections_limit", &[], 100.0),
        ("penstock_responses_total", &[("class", "5xx")], 1.0),
        ("penstock_app_requests_total", &[("app", "guestbook")], 11.0),
        (
            "penstock_app_requests_total",
            &[("app", NAME_TO_ESCAPE)],
            11.0,
        ),
        ("penstock_app_queue_length", &[("app", "guestbook")], 3.0),
        (
            "penstock_app_queue_oldest_seconds",
            &[("app", "guestbook")],
            0.25,
        ),
        (
            "penstock_app_state",
            &[("app", NAME_TO_ESCAPE), ("state", "failing")],
            1.0,
        ),
        (
            "penstock_app_workers",
            &[("app", "guestbook"), ("state", "ready")],
            1.0,
        ),
        (
            "penstock_app_workers",
            &[("app", "guestbook"), ("state", "booting")],
            0.0,
        ),
        (
            "penstock_app_resident_memory_bytes",
            &[("app", "guestbook")],
            1_048_576.0,
        ),
        (
            "penstock_app_proportional_memory_bytes",
            &[("app", "guestbook")],
            524_288.0,
        ),
        (
            "penstock_app_processes_target",
            &[("app", NAME_TO_ESCAPE)],
            3.0,
        ),
        ("penstock_app_threads_max", &[("app", NAME_TO_ESCAPE)], 2.0),
        ("penstock_app_tasks", &[("app", "guestbook")], 17.0),
        (
            "penstock_app_tasks_limit",
            &[("app", NAME_TO_ESCAPE)],
            512.0,
        ),
        ("penstock_app_cpu_limit", &[("app", "guestbook")], 1.5),
        (
            "penstock_app_throttled_seconds_total",
            &[("app", "guestbook")],
            0.0,
        ),
        (
            "penstock_app_workers_recycled_total",
            &[("app", "guestbook"), ("reason", "memory")],
            2.0,
        ),
        (
            "penstock_app_workers_killed_total",
            &[("app", "guestbook"), ("reason", "stop_timeout")],
            1.0,
        ),
        (
            "penstock_app_queue_seconds_count",
            &[("app", NAME_TO_ESCAPE)],
            5.0,
        ),
        ("penstock_pool_threads_active", &[("pool", "default")], 1.0),
        ("penstock_hub_streams", &[], 50.0),
        ("penstock_hub_long_polls", &[], 11.0),
        ("penstock_hub_connections", &[], 61.0),
        ("penstock_hub_connections_limit", &[], 1000.0),
        ("penstock_hub_channels", &[], 7.0),
        ("penstock_hub_channels_limit", &[], 2000.0),
        ("penstock_hub_stream_memory_bytes", &[], 10_000.0),
        ("penstock_hub_backlog_bytes", &[], 4096.0),
        ("penstock_hub_history_bytes", &[], 5000.0),
        ("penstock_hub_streams_opened_total", &[], 300.0),
        ("penstock_hub_streams_closed_total", &[], 250.0),
        ("penstock_hub_streams_closed_slow_total", &[], 12.0),
        ("penstock_hub_messages_published_total", &[], 40.0),
        ("penstock_hub_messages_delivered_total", &[], 900.0),
        ("penstock_hub_messages_dropped_total", &[], 13.0),
        ("penstock_hub_heartbeats_total", &[], 77.0),
        ("penstock_hub_redis_up", &[], 1.0),
        ("penstock_hub_redis_queued_messages", &[], 14.0),
        ("penstock_hub_redis_messages_lost_total", &[], 15.0),
        ("penstock_hub_redis_channels", &[], 6.0),
        ("penstock_hub_cluster_servers", &[], 3.0),
        ("penstock_shared_rates_redis_up", &[], 1.0),
        ("penstock_shared_rates_decided_alone_total", &[], 17.0),
        ("penstock_certificates", &[("state", "valid")], 1.0),
        ("penstock_certificates", &[("state", "invalid")], 1.0),
        (
            "penstock_certificate_expiry_seconds",
            &[("host", "a.test"), ("source", "acme")],
            1_803_000_000.0,
        ),
        (
            "penstock_certificate_expiry_seconds",
            &[("host", "www.b.test"), ("source", "file")],
            1_795_100_000.0,
        ),
        ("penstock_load_average", &[], 1.25),
        ("penstock_socket_estimated_bytes", &[], 20_500.0),
        ("penstock_tcp_buffer_bytes", &[], 8192.0),
    ] {
        assert_eq!(value(&samples, name, labels), expected, "{name}");
    }
}

#[test]
fn upstreams_and_servers_have_their_own_values() {
    let samples = parse(&prometheus_text(&busy_source().snapshot()));
    for (name, expected) in [
        ("up", 1.0),
        ("queue_length", 12.0),
        ("queue_limit", 500.0),
        ("queue_oldest_seconds", 0.75),
        ("requests_total", 1.0),
        ("queue_full_total", 2.0),
        ("queue_timeouts_total", 3.0),
        ("queue_abandoned_total", 4.0),
        ("unavailable_total", 5.0),
        ("retries_total", 6.0),
        ("retries_over_budget_total", 7.0),
        ("queue_seconds_count", 5.0),
        ("connect_seconds_count", 0.0),
        ("header_seconds_count", 0.0),
    ] {
        let name = format!("penstock_upstream_{name}");
        let found = value(&samples, &name, &[("upstream", "backends")]);
        assert_eq!(found, expected, "{name}");
    }
    assert_eq!(
        value(
            &samples,
            "penstock_upstream_up",
            &[("upstream", NAME_TO_ESCAPE)]
        ),
        0.0
    );
    for (name, expected) in [
        ("requests_active", 3.0),
        ("weight", 2.0),
        ("backup", 0.0),
        ("connections_open", 5.0),
        ("connections_idle", 4.0),
        ("requests_total", 100.0),
        ("failures_total", 7.0),
        ("timeouts_total", 6.0),
        ("connects_total", 9.0),
        ("connection_reuses_total", 91.0),
    ] {
        let name = format!("penstock_upstream_server_{name}");
        let labels = [("upstream", "backends"), ("server", "unix:/run/b.sock")];
        assert_eq!(value(&samples, &name, &labels), expected, "{name}");
    }
}

#[test]
fn caches_and_pools_have_their_own_values() {
    let samples = parse(&prometheus_text(&busy_source().snapshot()));
    for (name, expected) in [
        ("up", 1.0),
        ("objects", 20.0),
        ("bytes", 2_097_152.0),
        ("limit_bytes", 107_374_182_400.0),
        ("memory_objects", 11.0),
        ("memory_bytes", 1_048_576.0),
        ("memory_limit_bytes", 67_108_864.0),
        ("hits_total", 90.0),
        ("misses_total", 30.0),
        ("stores_total", 25.0),
        ("evictions_total", 5.0),
        ("purged_objects_total", 3.0),
        ("errors_total", 2.0),
        ("reads_total", 6.0),
        ("read_seconds_total", 0.12),
        ("writes_total", 25.0),
        ("write_seconds_total", 1.0),
    ] {
        let name = format!("penstock_cache_{name}");
        assert_eq!(
            value(&samples, &name, &[("cache", "disk1")]),
            expected,
            "{name}"
        );
    }
    let odd = [("cache", NAME_TO_ESCAPE)];
    assert_eq!(value(&samples, "penstock_cache_up", &odd), 0.0);
    assert_eq!(value(&samples, "penstock_cache_hits_total", &odd), 90.0);
    for (cache, state) in [("disk1", "working"), (NAME_TO_ESCAPE, "out_of_service")] {
        let labels = [("cache", cache), ("state", state)];
        assert_eq!(value(&samples, "penstock_cache_state", &labels), 1.0);
    }
    for (result, expected) in [
        ("hit", 40.0),
        ("stale", 3.0),
        ("revalidated", 2.0),
        ("collapsed", 15.0),
        ("miss", 20.0),
        ("bypassed", 7.0),
    ] {
        let labels = [("route", "example.com /*"), ("result", result)];
        let name = "penstock_route_cache_requests_total";
        assert_eq!(value(&samples, name, &labels), expected, "{result}");
    }
    for (name, expected) in [
        ("fetch_failures", 4.0),
        ("stores", 19.0),
        ("served_bytes", 2_097_152.0),
    ] {
        let name = format!("penstock_route_cache_{name}_total");
        assert_eq!(
            value(&samples, &name, &[("route", NAME_TO_ESCAPE)]),
            expected,
            "{name}"
        );
    }
    for (name, expected) in [
        ("queue_length", 0.0),
        ("queue_limit", 65_536.0),
        ("threads_active", 1.0),
        ("threads_limit", 32.0),
        ("queue_max_seconds", 0.03),
        ("oldest_running_seconds", 1.25),
        ("jobs_refused_total", 4.0),
        ("jobs_started_total", 10.0),
        ("queue_seconds_total", 0.05),
        ("jobs_finished_total", 8.0),
        ("run_seconds_total", 0.2),
    ] {
        let name = format!("penstock_pool_{name}");
        let found = value(&samples, &name, &[("pool", "default")]);
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn a_server_that_was_added_again_while_it_leaves_is_one_series() {
    let samples = parse(&prometheus_text(&busy_source().snapshot()));
    let labels = [("upstream", "backends"), ("server", "127.0.0.1:3000")];
    let of = |name: &str| {
        value(
            &samples,
            &format!("penstock_upstream_server_{name}"),
            &labels,
        )
    };
    assert_eq!(
        (
            of("requests_active"),
            of("connections_open"),
            of("connections_idle")
        ),
        (6.0, 10.0, 8.0)
    );
    assert_eq!(
        (
            of("requests_total"),
            of("failures_total"),
            of("timeouts_total")
        ),
        (200.0, 14.0, 12.0)
    );
    assert_eq!(
        (
            of("connects_total"),
            of("connection_reuses_total"),
            of("weight")
        ),
        (18.0, 182.0, 2.0)
    );
    let states: Vec<_> = (samples.iter())
        .filter(|s| s.name == "penstock_upstream_server_state")
        .map(|s| (s.labels["server"].as_str(), s.labels["state"].as_str()))
        .collect();
    assert_eq!(
        states,
        [("127.0.0.1:3000", "up"), ("unix:/run/b.sock", "ejected")]
    );
}

#[test]
fn a_bound_that_is_not_there_has_no_sample() {
    let samples = parse(&prometheus_text(&busy_source().snapshot()));
    let bounded: Vec<_> = (samples.iter())
        .filter(|s| s.name == "penstock_upstream_server_requests_active_limit")
        .map(|s| (s.labels["server"].as_str(), s.value))
        .collect();
    assert_eq!(bounded, [("127.0.0.1:3000", 8.0)]);
}

#[test]
fn bounds_are_there_with_what_is_in_use() {
    let samples = parse(&prometheus_text(&FakeServer::default().snapshot()));
    for (name, limit, expected) in [
        ("used", "limits.connections", 5.0),
        ("value", "limits.connections", 100.0),
        ("used", "limits.temp_bytes", 64.0),
        ("value", "limits.temp_bytes", 4096.0),
        ("reached_total", "limits.temp_bytes", 2.0),
    ] {
        let name = format!("penstock_limit_{name}");
        assert_eq!(value(&samples, &name, &[("limit", limit)]), expected);
    }
    let of_time = samples.iter().find(|sample| {
        sample.labels.get("limit").map(String::as_str) == Some("limits.header_timeout")
    });
    assert_eq!(of_time, None);
}

#[test]
fn hosts_of_certificates_are_bounded_and_the_first_end_counts() {
    let one = |hosts: Vec<String>, not_after| CertificateSnapshot {
        hosts,
        source: "file",
        not_before: 1_700_000_000,
        not_after,
        ..CertificateSnapshot::default()
    };
    let many = (0..1000).map(|number| format!("{number}.test")).collect();
    let all = vec![
        one(many, 1_950_000_000),
        one(vec!["a.test".to_owned()], 1_900_000_000),
        one(vec!["a.test".to_owned()], 1_940_000_000),
        one(Vec::new(), 1_930_000_000),
    ];
    let now = Snapshot {
        certificates: CertificatesSnapshot::new(all, 1_800_000_000),
        ..Snapshot::default()
    };
    let samples = parse(&prometheus_text(&now));
    let name = "penstock_certificate_expiry_seconds";
    for (host, expected) in [("a.test", 1_900_000_000.0), ("*", 1_930_000_000.0)] {
        let labels = [("host", host), ("source", "file")];
        assert_eq!(value(&samples, name, &labels), expected, "{host}");
    }
    let found = samples.iter().filter(|sample| sample.name == name);
    assert_eq!(found.count(), MAX_CERTIFICATE_HOSTS);
}

fn prometheus_text(now: &Snapshot) -> String {
    render_metrics(now, MetricsFormat::Prometheus)
}

#[test]
fn open_metrics_have_traces_and_families_without_suffixes() {
    let now = busy_source().snapshot();
    let text = render_metrics(&now, MetricsFormat::OpenMetrics);
    assert!(text.ends_with("\n# EOF\n"), "{text}");
    for line in [
        "# TYPE penstock_route_responses counter",
        "penstock_route_responses_total{site=\"example.com\",route=\"/*\",class=\"5xx\"} 2",
        "# TYPE penstock_route_request_duration_seconds histogram",
        "penstock_route_request_duration_seconds_bucket{site=\"example.com\",route=\"/*\",le=\"0.1\"} 10 \
         # {trace_id=\"abababababababababababababababab\"} 0.070000 1700000000.250",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    // Families are different, and each sample belongs to the one above it.
    let mut families = HashSet::new();
    let mut family = String::new();
    for line in text.lines().filter(|line| *line != "# EOF") {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            family = rest.split(' ').next().unwrap().to_owned();
            assert!(families.insert(family.clone()), "twice: {line}");
        } else if !line.starts_with('#') {
            assert!(line.starts_with(&family), "astray: {line}");
        }
    }
    // The older format has no place for traces.
    assert!(!prometheus_text(&now).contains("trace_id"));
}

#[test]
fn clients_that_name_open_metrics_get_it() {
    for (accept, expected) in [
        ("", MetricsFormat::Prometheus),
        ("text/plain;version=0.0.4", MetricsFormat::Prometheus),
        (
            "Application/OpenMetrics-Text;version=1.0.0,text/plain;q=0.5",
            MetricsFormat::OpenMetrics,
        ),
    ] {
        let raw = format!("GET /metrics HTTP/1.1\r\nHost: h\r\nAccept: {accept}\r\n\r\n");
        let parsed =
            penstock_http::parse_head(raw.as_bytes(), &penstock_http::HeadLimits::default());
        let Ok(penstock_http::ParseProgress::Complete((head, _))) = parsed else {
            panic!("the head is whole");
        };
        assert_eq!(MetricsFormat::accepted_by(&head), expected, "{accept}");
    }
}
