//! Samples of a made-up server.

use std::sync::Arc;

use penstock_exchange::metrics::EdgeMetrics;

use super::*;
use crate::AdminOperations;
use crate::fake::FakeServer;

/// A snapshot after `seconds`, with so many responses in all, of which a tenth are errors.
fn snapshot(server: &FakeServer, seconds: u64, requests: u64) -> Snapshot {
    let mut now = server.snapshot();
    now.uptime = Duration::from_secs(seconds);
    now.traffic.requests_total = requests;
    now.traffic.edge = EdgeMetrics::default();
    now.traffic.edge.responses[4].add(requests / 10);
    for _ in 0..requests {
        let time = Duration::from_millis(8);
        now.traffic.edge.total_time.record_local(time);
    }
    now
}

fn json(history: &History) -> serde_json::Value {
    serde_json::to_value(history.snapshot()).unwrap()
}

#[test]
fn samples_are_rates_and_percentiles_since_the_one_before() {
    let (server, history) = (FakeServer::default(), History::default());
    for (seconds, requests) in [(5, 100), (15, 300), (25, 300)] {
        let now = snapshot(&server, seconds, requests);
        history.record(&now, Duration::from_secs(1_000 + seconds));
    }
    let json = json(&history);
    assert_eq!(json["at"], serde_json::json!([1005, 1015, 1025]));
    assert_eq!(json["interval_seconds"], 10.0);
    let requests = serde_json::json!([null, 20.0, 0.0]);
    assert_eq!(json["requests_per_second"], requests);
    assert_eq!(
        json["errors_per_second"],
        serde_json::json!([null, 2.0, 0.0])
    );
    let p95 = &json["p95_seconds"];
    assert!(p95[0].is_null() && p95[2].is_null(), "{p95}");
    let found = p95[1].as_f64().unwrap();
    assert!((0.0064..=0.008).contains(&found), "{found}");
    for number in ["server_bytes", "worker_bytes", "queued", "connections"] {
        assert!(json[number][0].is_number(), "{number}: {}", json[number]);
    }
}

#[test]
fn the_ring_is_bounded_and_loses_the_oldest() {
    let (server, history) = (FakeServer::default(), History::default());
    let samples = MAX_SAMPLES as u64 + 5;
    for at in 0..samples {
        let now = snapshot(&server, at * 10, 0);
        history.record(&now, Duration::from_secs(at));
    }
    let found = history.snapshot();
    assert_eq!(found.at.len(), MAX_SAMPLES);
    assert_eq!((found.at[0], found.at[MAX_SAMPLES - 1]), (5, samples - 1));
    assert_eq!(found.worker_bytes.0.len(), MAX_SAMPLES);
    let text = serde_json::to_string(&found).unwrap();
    assert!(text.len() < 64 << 10, "{} bytes", text.len());
    assert_eq!(history.lock().refusals.len(), REFUSAL_SAMPLES);
}

#[test]
fn refusals_are_those_of_the_last_minute() {
    let (server, history) = (FakeServer::default(), History::default());
    let name = (QueueKind::App, server.snapshot().apps[0].name.clone());
    let counters = Arc::clone(&server.app_status);
    counters.queue_full.add(7);
    for at in 0..3 {
        history.record(&snapshot(&server, at * 10, 0), Duration::from_secs(at));
    }
    let recent = |seconds| {
        let now = snapshot(&server, seconds, 0);
        history.recent_refusals(&now).get(&name).copied()
    };
    assert_eq!(recent(30), None);
    counters.queue_full.add(2);
    counters.queue_timeout.add(1);
    assert_eq!(recent(31), Some(3));
    for at in 3..12 {
        history.record(&snapshot(&server, at * 10, 0), Duration::from_secs(at));
    }
    assert_eq!(recent(120), None, "they are forgotten");
}
