//! The promise to scripts: the names of the fields, and the units they carry.

use serde_json::Value;

use super::*;
use crate::AdminOperations;
use crate::fake::FakeServer;

/// Paths of all leaves; elements of lists are `[]`.
fn leaves(value: &Value, path: &str, into: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let dot = if path.is_empty() { "" } else { "." };
                leaves(value, &format!("{path}{dot}{name}"), into);
            }
        }
        Value::Array(elements) => {
            for element in elements {
                leaves(element, &format!("{path}[]"), into);
            }
        }
        _ => into.push(path.to_owned()),
    }
}

#[test]
fn the_names_of_the_fields_are_stable() {
    let json = serde_json::to_value(FakeServer::default().snapshot()).unwrap();
    let mut found = Vec::new();
    leaves(&json, "", &mut found);
    found.sort();
    found.dedup();
    let times = |path: &str| {
        [
            "buckets.counts[]",
            "buckets.le_seconds[]",
            "count",
            "p50_seconds",
            "p90_seconds",
        ]
        .into_iter()
        .chain(["p99_seconds", "sum_seconds"])
        .map(|name| format!("{path}.{name}"))
        .collect::<Vec<_>>()
    };
    let mut expected: Vec<_> = KEYS.split_whitespace().map(str::to_owned).collect();
    for path in [
        "apps[].app_time",
        "apps[].queue_time",
        "traffic.total_time",
        "upstreams[].answer_time",
        "upstreams[].connect_time",
        "upstreams[].queue_time",
    ] {
        expected.extend(times(path));
    }
    for path in [
        "caches[].read_time",
        "caches[].write_time",
        "pools[].queue_time",
        "pools[].work_time",
    ] {
        let names = ["count", "mean_seconds", "sum_seconds"];
        expected.extend(names.map(|name| format!("{path}.{name}")));
    }
    expected.sort();
    assert_eq!(found, expected);
}

const KEYS: &str = "
    apps[].bounds.cpu_max apps[].bounds.memory_bytes apps[].bounds.memory_bytes_max
    apps[].bounds.tasks apps[].bounds.tasks_max apps[].counters.out_of_memory_kills
    apps[].counters.tasks_refused apps[].counters.throttled_seconds
    control apps[].counters.boots_failed apps[].counters.collections
    apps[].counters.crashed apps[].counters.failed apps[].counters.io_bound
    apps[].counters.io_bound_alone apps[].counters.killed.boot_timeout
    apps[].counters.killed.memory apps[].counters.killed.protocol
    apps[].counters.killed.response_timeout apps[].counters.killed.stop_timeout apps[].counters.queue_abandoned
    apps[].counters.queue_full apps[].counters.queue_timeout apps[].counters.requests
    apps[].counters.recycled.age apps[].counters.recycled.memory
    apps[].counters.recycled.refork apps[].counters.recycled.requests
    apps[].counters.recycled.stuck apps[].counters.refused_calls
    apps[].counters.scaled_down apps[].counters.scaled_up
    apps[].counters.started apps[].counters.timed_out apps[].counters.worker_died
    apps[].generation apps[].interpreter apps[].kind apps[].last_failure apps[].last_scaling apps[].name
    apps[].processes.max apps[].processes.min apps[].processes.ready apps[].processes.target
    apps[].queue.in_progress apps[].queue.max apps[].queue.oldest_wait_seconds
    apps[].queue.slots apps[].queue.waiting apps[].report
    apps[].restart_error apps[].restarting apps[].spawning apps[].state apps[].threads
    apps[].threads_max apps[].threads_min
    apps[].templates[].age_seconds apps[].templates[].generation apps[].templates[].in_progress
    apps[].templates[].pid apps[].templates[].proportional_bytes apps[].templates[].requests
    apps[].templates[].resident_bytes apps[].templates[].restarts apps[].templates[].since_seconds
    apps[].templates[].state apps[].templates[].worn
    apps[].workers[].age_seconds apps[].workers[].generation apps[].workers[].in_progress apps[].workers[].pid
    apps[].workers[].resident_bytes apps[].workers[].restarts apps[].workers[].since_seconds
    apps[].workers[].proportional_bytes apps[].workers[].requests apps[].workers[].state
    apps[].workers[].worn
    caches[].bytes caches[].bytes_max caches[].counters.errors caches[].counters.evicted
    caches[].counters.hits caches[].counters.misses caches[].counters.purged caches[].counters.stored
    caches[].hit_ratio caches[].memory_bytes caches[].memory_bytes_max
    caches[].memory_objects caches[].name caches[].objects caches[].path caches[].reason
    caches[].state
    cached_routes[].caches[] cached_routes[].counters.body_bytes
    cached_routes[].counters.collapsed cached_routes[].counters.failures
    cached_routes[].counters.hits cached_routes[].counters.misses
    cached_routes[].counters.passed cached_routes[].counters.stale
    cached_routes[].counters.stored cached_routes[].counters.validated
    cached_routes[].hit_ratio cached_routes[].name
    config connections.max connections.used connections_bound generation
    hub.backlog_bytes.max hub.backlog_bytes.used hub.channels.max hub.channels.used
    hub.counters.beats hub.counters.closed hub.counters.closed_slow hub.counters.delivered
    hub.counters.dropped hub.counters.opened hub.counters.published hub.held.max hub.held.used
    hub.history_bytes.max hub.history_bytes.used hub.nodes.address hub.nodes.alone
    hub.nodes.channels hub.nodes.connected hub.nodes.lost hub.nodes.servers
    hub.nodes.sums.streams hub.nodes.waiting hub.polls hub.stream_bytes
    hub.stream_bytes_each hub.streams
    joins.address joins.cause joins.is_in joins.upstream
    limits[].max limits[].name limits[].reached limits[].unit limits[].used listeners[] log_lines_dropped
    loop_stalls
    machine.load_average machine.socket_bytes_estimated machine.tcp_buffer_bytes
    pid pools[].active pools[].max_queue pools[].name pools[].oldest_seconds
    pools[].queue_time_max_seconds pools[].queued pools[].refused pools[].threads
    reload_error reloads resident_bytes state threads
    traffic.accepted traffic.active traffic.client_gone traffic.evicted traffic.malformed
    traffic.received_bytes traffic.refused traffic.requests_total traffic.responses[] traffic.sent_bytes
    traffic.too_slow uptime_seconds version
    upstreams[].counters.queue_abandoned upstreams[].counters.queue_full
    upstreams[].counters.queue_timeout upstreams[].counters.requests
    upstreams[].counters.retries upstreams[].counters.retries_refused
    upstreams[].counters.unavailable upstreams[].name upstreams[].protocol
    upstreams[].queue.max upstreams[].queue.oldest_wait_seconds upstreams[].queue.waiting
    upstreams[].servers[].active upstreams[].servers[].active_max
    upstreams[].servers[].backup upstreams[].servers[].connections_idle
    upstreams[].servers[].connections_open upstreams[].servers[].connects
    upstreams[].servers[].failures upstreams[].servers[].last_error
    upstreams[].servers[].name upstreams[].servers[].requests
    upstreams[].servers[].reuses upstreams[].servers[].state upstreams[].servers[].timeouts
    upstreams[].servers[].weight upstreams[].up warnings[]";

#[test]
fn durations_are_seconds_and_units_are_named() {
    let json = serde_json::to_value(FakeServer::default().snapshot()).unwrap();
    assert_eq!(json["uptime_seconds"], 90.5);
    assert_eq!(json["state"], "running");
    assert_eq!(json["apps"][0]["workers"][0]["since_seconds"], 1.5);
    assert_eq!(json["apps"][0]["workers"][0]["age_seconds"], 2.5);
    assert_eq!(json["upstreams"][0]["queue"]["oldest_wait_seconds"], 0.75);
    assert_eq!(
        json["upstreams"][0]["servers"][2]["active_max"],
        Value::Null
    );
    assert_eq!(json["limits"][1]["unit"], "seconds");
    assert_eq!(json["limits"][1]["max"], 10.0);
    assert_eq!(json["pools"][0]["oldest_seconds"], 1.25);
    assert_eq!(json["pools"][0]["queue_time"]["mean_seconds"], 0.005);
    assert_eq!(json["caches"][0]["hit_ratio"], 0.75);
    assert_eq!(json["caches"][0]["read_time"]["mean_seconds"], 0.02);
    assert_eq!(json["caches"][1]["hit_ratio"], Value::Null);
    assert_eq!(json["caches"][1]["reason"], "write: Input/output error");
    assert_eq!(json["cached_routes"][0]["hit_ratio"], 0.75);
    let rate = serde_json::to_value(LimitStatus::rate("min_body_rate", 500)).unwrap();
    assert_eq!(rate["unit"], "bytes_per_second");
}

#[test]
fn counters_of_a_route_go_on_where_those_before_ended() {
    let one = CachedRouteCounters {
        hits: 1,
        stale: 2,
        validated: 3,
        collapsed: 4,
        misses: 5,
        passed: 6,
        failures: 7,
        stored: 8,
        body_bytes: 9,
    };
    assert_eq!(one.plus(&CachedRouteCounters::default()), one);
    let once = serde_json::to_value(one).unwrap();
    let twice = serde_json::to_value(one.plus(&one)).unwrap();
    for (name, value) in once.as_object().unwrap() {
        let doubled = value.as_u64().unwrap() * 2;
        assert_eq!(twice[name], doubled, "{name}");
    }
    assert_eq!(CachedRouteCounters::default().hit_ratio(), None);
}

#[test]
fn times_summarise_a_histogram() {
    let histogram = Histogram::default();
    for ms in [1, 1, 1, 40] {
        histogram.record(Duration::from_millis(ms));
    }
    let times = HistogramSummary::new(&histogram);
    assert_eq!(
        (times.count, times.p50_seconds, times.p99_seconds),
        (4, 0.001, 0.05)
    );
    assert!((times.sum_seconds - 0.043).abs() < 1e-9);
}
