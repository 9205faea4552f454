//! The names and units of the JSON fields, which are part of the public interface.

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
        .chain(["p95_seconds", "p99_seconds", "p999_seconds", "sum_seconds"])
        .map(|name| format!("{path}.{name}"))
        .collect::<Vec<_>>()
    };
    let mut expected: Vec<_> = KEYS.split_whitespace().map(str::to_owned).collect();
    for path in [
        "apps[].header_time",
        "apps[].queue_time",
        "traffic.total_time",
        "upstreams[].header_time",
        "upstreams[].connect_time",
        "upstreams[].queue_time",
    ] {
        expected.extend(times(path));
    }
    for path in [
        "caches[].read_time",
        "caches[].write_time",
        "pools[].queue_time",
        "pools[].run_time",
    ] {
        let names = ["count", "mean_seconds", "sum_seconds"];
        expected.extend(names.map(|name| format!("{path}.{name}")));
    }
    expected.sort();
    assert_eq!(found, expected);
}

const KEYS: &str = "\
    apps[].boot_report apps[].bounds.max_cpu apps[].bounds.max_memory_bytes
    apps[].bounds.max_tasks apps[].bounds.memory_bytes apps[].bounds.tasks
    apps[].counters.crashed_workers apps[].counters.failed_boots apps[].counters.failed_requests
    apps[].counters.gc_runs apps[].counters.io_bound_requests
    apps[].counters.io_bound_without_spare_slot apps[].counters.killed_workers.boot_timeout
    apps[].counters.killed_workers.memory apps[].counters.killed_workers.protocol
    apps[].counters.killed_workers.response_timeout apps[].counters.killed_workers.stop_timeout
    apps[].counters.out_of_memory_kills apps[].counters.queue_abandoned apps[].counters.queue_full
    apps[].counters.queue_timeouts apps[].counters.recycled_workers.age
    apps[].counters.recycled_workers.memory apps[].counters.recycled_workers.refork
    apps[].counters.recycled_workers.requests apps[].counters.recycled_workers.stuck
    apps[].counters.refused_calls apps[].counters.requests apps[].counters.scale_downs
    apps[].counters.scale_ups apps[].counters.started_workers apps[].counters.tasks_refused
    apps[].counters.throttled_seconds apps[].counters.timed_out_requests
    apps[].counters.worker_deaths apps[].generation apps[].interpreter apps[].is_restarting
    apps[].kind apps[].last_failure apps[].last_scaling apps[].max_threads apps[].min_threads
    apps[].name apps[].processes.max apps[].processes.min apps[].processes.ready
    apps[].processes.target apps[].queue.active apps[].queue.length apps[].queue.max
    apps[].queue.oldest_wait_seconds apps[].queue.slots apps[].restart_error apps[].start_method
    apps[].state apps[].templates[].active apps[].templates[].age_seconds
    apps[].templates[].generation apps[].templates[].pid apps[].templates[].proportional_bytes
    apps[].templates[].replace_reason apps[].templates[].requests
    apps[].templates[].resident_bytes apps[].templates[].restarts apps[].templates[].state
    apps[].templates[].time_in_state_seconds apps[].threads apps[].workers[].active
    apps[].workers[].age_seconds apps[].workers[].generation apps[].workers[].pid
    apps[].workers[].proportional_bytes apps[].workers[].replace_reason apps[].workers[].requests
    apps[].workers[].resident_bytes apps[].workers[].restarts apps[].workers[].state
    apps[].workers[].time_in_state_seconds cached_routes[].caches[]
    cached_routes[].counters.bypassed cached_routes[].counters.collapsed
    cached_routes[].counters.fetch_failures cached_routes[].counters.hits
    cached_routes[].counters.misses cached_routes[].counters.revalidated
    cached_routes[].counters.served_bytes cached_routes[].counters.stale
    cached_routes[].counters.stores cached_routes[].hit_ratio cached_routes[].name caches[].bytes
    caches[].counters.errors caches[].counters.evictions caches[].counters.hits
    caches[].counters.misses caches[].counters.purged_objects caches[].counters.stores
    caches[].hit_ratio caches[].max_bytes caches[].max_memory_bytes caches[].memory_bytes
    caches[].memory_objects caches[].name caches[].objects caches[].path caches[].reason
    caches[].state certificates.invalid certificates.list[].hosts[]
    certificates.list[].issuer certificates.list[].last_error certificates.list[].names[]
    certificates.list[].not_after certificates.list[].not_before
    certificates.list[].path certificates.list[].problem certificates.list[].source
    certificates.list[].state certificates.total certificates.warning config config_generation config_reloads connections.max
    compression.br compression.gzip compression.input_bytes compression.max_memory_bytes
    compression.memory_bytes compression.output_bytes compression.skipped compression.zstd connections.used
    connections_limited_by control_socket event_loop_stalls event_loops front_end.address
    front_end.cause front_end.is_joined front_end.upstream hub.backlog_bytes.max
    hub.backlog_bytes.used hub.bytes_per_stream hub.channels.max hub.channels.used
    hub.cluster.address hub.cluster.channels hub.cluster.connected hub.cluster.lost
    hub.cluster.queued hub.cluster.servers hub.cluster.standalone hub.cluster.totals.streams
    hub.connections.max hub.connections.used hub.counters.closed hub.counters.closed_slow
    hub.counters.delivered hub.counters.dropped hub.counters.heartbeats hub.counters.opened
    hub.counters.published hub.history_bytes.max hub.history_bytes.used hub.long_polls
    hub.stream_bytes hub.streams jobs[].command jobs[].last.last_lines jobs[].last.outcome
    jobs[].last.seconds jobs[].last.started_at jobs[].last.succeeded jobs[].name jobs[].next_at
    jobs[].pid jobs[].running_since jobs[].runs.failed jobs[].runs.skipped
    jobs[].runs.succeeded jobs[].schedule limits[].max limits[].name limits[].reached limits[].unit
    limits[].used listeners[] log_lines_dropped machine.estimated_socket_bytes
    machine.load_average machine.tcp_buffer_bytes pid pools[].active_threads
    pools[].max_queue_time_seconds pools[].max_queued pools[].max_threads pools[].name
    pools[].oldest_running_seconds pools[].queued pools[].refused problems[].part
    folder problems[].severity problems[].text reload_error resident_bytes worker_bytes
    maintenance.refused maintenance.rules[].allow[] maintenance.rules[].retry_after_seconds
    maintenance.rules[].site pauses[].kind pauses[].max_waiting pauses[].name
    pauses[].paused_seconds pauses[].refused pauses[].remaining_seconds pauses[].waiting
    routes[].duration.buckets.counts[] routes[].duration.buckets.le_seconds[]
    routes[].duration.count routes[].duration.p50_seconds routes[].duration.p90_seconds
    routes[].duration.p95_seconds routes[].duration.p999_seconds
    routes[].duration.p99_seconds routes[].duration.sum_seconds routes[].responses[]
    routes[].route routes[].site trace_spans.dropped trace_spans.exported trace_spans.queued
    rules[].counts[].outcome rules[].counts[].requests rules[].in_use rules[].route rules[].rule
    shared_rates.connected shared_rates.decided_alone state traffic.accepted traffic.active traffic.client_disconnects traffic.evicted
    traffic.malformed_requests traffic.received_bytes traffic.refused traffic.requests_total
    traffic.responses[] traffic.sent_bytes traffic.slow_clients traffic.tls_handshake_failures
    traffic.tls_handshakes traffic.tls_resumptions
    upstreams[].counters.queue_abandoned upstreams[].counters.queue_full
    upstreams[].counters.queue_timeouts upstreams[].counters.requests upstreams[].counters.retries
    upstreams[].counters.retries_over_budget upstreams[].counters.unavailable upstreams[].name
    upstreams[].protocol upstreams[].queue.length upstreams[].queue.max
    upstreams[].queue.oldest_wait_seconds upstreams[].servers[].active
    upstreams[].servers[].backup upstreams[].servers[].connection_reuses
    upstreams[].servers[].connections_idle upstreams[].servers[].connections_open
    upstreams[].servers[].connects upstreams[].servers[].failures upstreams[].servers[].last_error
    upstreams[].servers[].max_active upstreams[].servers[].name upstreams[].servers[].requests
    upstreams[].servers[].state upstreams[].servers[].timeouts upstreams[].servers[].weight
    upstreams[].tls.failures upstreams[].tls.handshakes upstreams[].tls.resumptions
    top.clients[].name top.clients[].requests top.requests top.routes[].name top.routes[].requests
    upstreams[].up uptime_seconds version warnings[]";

#[test]
fn durations_are_seconds_and_units_are_named() {
    let json = serde_json::to_value(FakeServer::default().snapshot()).unwrap();
    assert_eq!(json["uptime_seconds"], 90.5);
    assert_eq!(json["state"], "running");
    assert_eq!(json["apps"][0]["workers"][0]["time_in_state_seconds"], 1.5);
    assert_eq!(json["apps"][0]["workers"][0]["age_seconds"], 2.5);
    assert_eq!(json["upstreams"][0]["queue"]["oldest_wait_seconds"], 0.75);
    assert_eq!(
        json["upstreams"][0]["servers"][2]["max_active"],
        Value::Null
    );
    assert_eq!(json["limits"][1]["unit"], "seconds");
    assert_eq!(json["limits"][1]["max"], 10.0);
    assert_eq!(json["pools"][0]["oldest_running_seconds"], 1.25);
    assert_eq!(json["pools"][0]["queue_time"]["mean_seconds"], 0.005);
    assert_eq!(json["caches"][0]["hit_ratio"], 0.75);
    assert_eq!(json["caches"][0]["read_time"]["mean_seconds"], 0.02);
    assert_eq!(json["caches"][1]["hit_ratio"], Value::Null);
    assert_eq!(json["caches"][1]["reason"], "write: Input/output error");
    assert_eq!(json["cached_routes"][0]["hit_ratio"], 0.75);
    assert_eq!(json["certificates"]["list"][0]["state"], "invalid");
    assert_eq!(
        json["certificates"]["list"][1]["not_after"],
        "2027-02-19T01:20:00Z"
    );
    let rate = serde_json::to_value(LimitStatus::rate("limits.min_body_rate", 500)).unwrap();
    assert_eq!(rate["unit"], "bytes_per_second");
}
