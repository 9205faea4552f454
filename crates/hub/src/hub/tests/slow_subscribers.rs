//! Subscribers that take too little.

use super::*;
use crate::SlowPolicy;

fn slow(policy: SlowPolicy) -> Settings {
    Settings {
        max_backlog: 64 << 10,
        slow_policy: policy,
        send_timeout: Duration::from_secs(10_000),
        ..settings()
    }
}

/// Numbered messages of 1,000 bytes, far more than a socket and a backlog take.
fn flood(rig: &HubHarness, from: u32) {
    for number in from..from + 2_000 {
        rig.hub
            .publish(message("a", &format!("{number:>999}\n")))
            .unwrap();
    }
}

#[test]
fn a_stalled_stream_delays_no_other() {
    let rig = HubHarness::with_loops(slow(SlowPolicy::DropOldest), 1);
    let stuck = rig.hold(stream(&["a"]));
    let mut others: Vec<Client> = (0..5).map(|_| rig.hold(stream(&["a"]))).collect();
    for round in 0..20 {
        for number in 0..100 {
            let text = format!("{:>999}\n", round * 100 + number);
            rig.hub.publish(message("a", &text)).unwrap();
        }
        // All that keep up have all of it, while the first still has not taken anything.
        for other in &mut others {
            let mut got = 0;
            while got < 100 * 1000 {
                got += other.chunk().len();
            }
            assert_eq!(got, 100 * 1000);
        }
    }
    let counts = rig.hub.snapshot();
    assert!(counts.counters.dropped > 0, "{counts:?}");
    assert!(
        0 < counts.backlog_bytes.used && counts.backlog_bytes.used < 200_000,
        "{counts:?}"
    );
    drop(stuck);
    rig.until("nothing waits for it", |hub| {
        hub.snapshot().backlog_bytes.used == 0
    });
}

#[test]
fn the_oldest_are_dropped_whole_and_replaced_by_a_gap() {
    let rig = HubHarness::new(slow(SlowPolicy::DropOldest));
    let mut client = rig.hold(HeldStream {
        gap_notice: Some(Bytes::from_static(b"(gap)\n")),
        ..stream(&["a"])
    });
    flood(&rig, 0);
    rig.until("all are through", |hub| {
        let counts = hub.snapshot();
        counts.counters.dropped > 0
            && rig.hub.shared.metrics.pending_bytes.load(Ordering::Relaxed) == 0
    });
    let end = Publication {
        stream: Some(StreamAction::Close),
        ..message("a", "")
    };
    rig.hub.publish(end).unwrap();
    let text = client.rest();
    let mut expected = 0;
    let mut is_told = true;
    let mut lost = 0;
    for line in text.lines() {
        if line == "(gap)" {
            is_told = true;
            continue;
        }
        assert_eq!(line.len(), 999, "a part of a message");
        let number: u64 = line.trim().parse().unwrap();
        assert!(
            number == expected || number > expected && is_told,
            "{number}"
        );
        lost += number - expected;
        expected = number + 1;
        is_told = false;
    }
    assert_eq!(expected, 2_000, "the newest are there");
    assert!(lost > 0);
    let counts = rig.hub.snapshot();
    assert_eq!(
        (counts.counters.dropped, counts.counters.delivered),
        (lost, 2_000 - lost)
    );
}

#[test]
fn or_the_connection_is_closed() {
    let rig = HubHarness::new(slow(SlowPolicy::Disconnect));
    let mut client = rig.hold(stream(&["a"]));
    let mut other = rig.hold(stream(&["b"]));
    flood(&rig, 0);
    rig.until("it is closed", |hub| {
        hub.snapshot().counters.closed_as_slow == 1
    });
    client.expect_end();
    let counts = rig.hub.snapshot();
    assert_eq!(
        (
            counts.streams,
            counts.backlog_bytes.used,
            counts.counters.dropped
        ),
        (1, 0, 0)
    );
    rig.hub.publish(message("b", "fine")).unwrap();
    assert_eq!(other.chunk(), "fine");
}

#[test]
fn a_stalled_stream_is_closed_after_the_timeout() {
    let rig = HubHarness::new(Settings {
        send_timeout: Duration::from_secs(2),
        ..slow(SlowPolicy::DropOldest)
    });
    let mut client = rig.hold(stream(&["a"]));
    let mut idle = rig.hold(stream(&["b"]));
    flood(&rig, 0);
    rig.until("it is closed", |hub| {
        hub.snapshot().counters.closed_as_slow == 1
    });
    client.expect_end();
    // Also while its end waits to be written.
    let mut ended = rig.hold(stream(&["a"]));
    flood(&rig, 0);
    let end = Publication {
        stream: Some(StreamAction::Close),
        ..message("a", "")
    };
    rig.hub.publish(end).unwrap();
    rig.until("it is closed", |hub| {
        hub.snapshot().counters.closed_as_slow == 2
    });
    ended.expect_end();
    rig.hub.publish(message("b", "fine")).unwrap();
    assert_eq!(
        idle.chunk(),
        "fine",
        "one that has nothing to take is not slow"
    );
}

#[test]
fn what_waits_for_all_is_bounded_too() {
    let rig = HubHarness::new(Settings {
        max_backlog_total: 300_000,
        ..slow(SlowPolicy::DropOldest)
    });
    let stuck: Vec<Client> = (0..20).map(|_| rig.hold(stream(&["a"]))).collect();
    let mut most = 0;
    for number in 0..1_000 {
        let text = format!("{number:>999}\n");
        while rig.hub.publish(message("a", &text)).is_err() {
            std::thread::yield_now();
        }
        most = most.max(rig.hub.snapshot().backlog_bytes.used);
    }
    rig.until("all are through", |hub| {
        hub.shared.metrics.pending_bytes.load(Ordering::Relaxed) == 0
    });
    // Each has the rest of one write that was taken in part, which must go out.
    assert!(most <= 300_000 + 20 * (33 << 10), "{most}");
    drop(stuck);
    rig.until("nothing waits", |hub| {
        hub.snapshot().backlog_bytes.used == 0
    });
}

#[test]
fn publishers_faster_than_delivery_are_refused() {
    let rig = HubHarness::new(Settings {
        max_backlog_total: 100_000,
        ..settings()
    });
    let names: Vec<String> = (0..10).map(|number| format!("c{number}")).collect();
    let clients = names.iter().map(|name| rig.hold(stream(&[name])));
    let _clients: Vec<Client> = clients.collect();
    let busy = Arc::new(std::sync::Barrier::new(2));
    let free = busy.clone();
    // The loop is held up, so that nothing is delivered meanwhile.
    rig.handles()[0].spawn(async move {
        free.wait();
        free.wait();
    });
    busy.wait();
    let text = "x".repeat(1000);
    let flood = |name: &str| (0..100).find_map(|_| rig.hub.publish(message(name, &text)).err());
    let refused: Vec<_> = names.iter().map(|name| flood(name)).collect();
    busy.wait();
    // One channel's flood leaves room for the others, until it is too much for all.
    assert_eq!(
        refused[..3],
        vec![Some(HubError::DeliveryBacklogFull(25_000)); 3]
    );
    assert_eq!(
        refused[5..],
        vec![Some(HubError::DeliveryBacklogFull(100_000)); 5]
    );
    let nothing_waits = |hub: &Hub| hub.shared.metrics.pending_bytes.load(Ordering::Relaxed) == 0;
    rig.until("all are delivered", nothing_waits);
    for name in &names {
        let channel = rig.hub.shared.registry.find(name).unwrap();
        assert_eq!(channel.pending_bytes.load(Ordering::Relaxed), 0, "{name}");
        rig.hub.publish(message(name, "again")).unwrap();
    }
}
