//! Clients that leave, requests that take too long, workers that go or die.

use super::*;

#[test]
fn the_worker_hears_of_a_client_that_leaves_before_its_answer() {
    on_a_loop(async {
        let mut harness = ChannelHarness::new();
        let asked = harness.get("/");
        let id = harness.worker.opened().await;
        asked.disconnect().await;
        harness.worker.expect(FrameKind::StreamCancel, id).await;
        // It is in progress until the worker has ended it.
        assert_eq!(
            harness
                .shared
                .dispatch
                .queue_usage(clock::now())
                .in_progress,
            1
        );
        harness.worker.begin(id, &[b"200"], b"late").await;
        harness.worker.reset(id).await;
        harness.retire();
        assert_eq!(harness.ended().await, DriverEnd::Retired);
    });
}

#[test]
fn the_worker_hears_of_a_client_that_leaves_within_a_body() {
    on_a_loop(async {
        let mut harness = ChannelHarness::new();
        for pieces in [1, 4] {
            let asked = harness.get("/");
            let id = harness.worker.opened().await;
            harness
                .worker
                .begin(id, &[b"200", b"X-Accel-Buffering", b"no"], b"")
                .await;
            let response = asked.response().await;
            // Beyond memory, too.
            for _ in 0..pieces {
                harness.worker.data(id, &vec![7; 48 << 10], false).await;
            }
            settle().await;
            drop(response);
            loop {
                let frame = harness.worker.next().await;
                match frame.kind {
                    FrameKind::Window => {}
                    kind => break assert_eq!((kind, frame.id), (FrameKind::StreamCancel, id)),
                }
            }
            harness.worker.reset(id).await;
        }
        harness.retire();
        assert_eq!(harness.ended().await, DriverEnd::Retired);
    });
}

#[test]
fn a_request_that_takes_too_long_is_answered_and_its_worker_goes_on() {
    on_a_loop(async {
        let terms = HarnessOptions {
            response_timeout: Duration::from_millis(30),
            read_timeout: Duration::from_millis(30),
            ..HarnessOptions::default()
        };
        let mut harness = ChannelHarness::with(&terms);
        let events = harness.get("/events");
        let events_id = harness.worker.opened().await;
        let kind: [&[u8]; 3] = [b"200", b"Content-Type", b"text/event-stream"];
        harness.worker.begin(events_id, &kind, b"").await;
        let events = events.response().await;
        for _ in 0..3 {
            let slow = harness.get("/slow");
            let id = harness.worker.opened().await;
            assert_eq!(slow.fault().await, FaultKind::AppTimeout);
            harness.worker.expect(FrameKind::StreamCancel, id).await;
            // Not ended by the worker for the rest of this test, which is its right.
        }
        let stalled = harness.get("/stalls");
        let id = harness.worker.opened().await;
        harness.worker.begin(id, &[b"200"], b"some").await;
        let response = stalled.response().await;
        assert_eq!(body(response).await, Err(FaultKind::AppTimeout));
        harness.worker.expect(FrameKind::StreamCancel, id).await;
        assert_eq!(harness.shared.metrics.timed_out_requests.value(), 4);
        // Nothing was said on the event stream for all that time.
        harness.worker.data(events_id, b"data: 1\n\n", true).await;
        assert_eq!(body(events).await.unwrap(), b"data: 1\n\n");
    });
}

#[test]
fn a_worker_that_reads_nothing_any_more_is_given_up() {
    on_a_loop(async {
        let terms = HarnessOptions {
            response_timeout: Duration::from_millis(30),
            read_timeout: Duration::from_millis(30),
            ..HarnessOptions::default()
        };
        let mut harness = ChannelHarness::with(&terms);
        let asked = harness.get("/");
        harness.worker.opened().await;
        assert_eq!(asked.fault().await, FaultKind::AppTimeout);
        // STREAM_CANCEL is never read.
        assert_eq!(
            within(&mut harness.driver).await.unwrap(),
            DriverEnd::TimedOut
        );
    });
}

#[test]
fn sent_requests_of_a_dead_worker_fail_and_unsent_ones_move() {
    on_a_loop(async {
        let terms = HarnessOptions::default();
        let mut harness = ChannelHarness::with(&terms);
        let had = harness.get("/had");
        harness.worker.opened().await;
        let streams = harness.get("/streams");
        let id = harness.worker.opened().await;
        harness.worker.begin(id, &[b"200"], b"some").await;
        let streams = streams.response().await;
        let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n";
        let large = || CollectedBody::Memory(vec![7; 1_000_000]);
        let half = harness.request(request(head), large());
        let unsent = harness.request(request(head), large());
        settle().await;
        let ChannelHarness {
            shared,
            worker,
            driver,
            ..
        } = harness;
        drop(worker);
        assert_eq!(within(driver).await.unwrap(), DriverEnd::WorkerDied);
        assert_eq!(had.fault().await, FaultKind::WorkerDied);
        assert_eq!(body(streams).await, Err(FaultKind::WorkerDied));
        assert_eq!(shared.dispatch.queue_usage(clock::now()).waiting, 2);
        let mut next = ChannelHarness::with_options(shared, &terms);
        for asked in [half, unsent] {
            let id = next.worker.opened().await;
            next.worker.answer(id, b"ok").await;
            assert_eq!(body(asked.response().await).await.unwrap(), b"ok");
        }
    });
}

#[test]
fn a_request_that_was_left_unread_goes_to_another() {
    on_a_loop(async {
        let terms = HarnessOptions::default();
        let harness = ChannelHarness::with(&terms);
        let asked = harness.get("/");
        settle().await;
        let ChannelHarness {
            shared,
            worker,
            driver,
            ..
        } = harness;
        drop(worker);
        assert_eq!(within(driver).await.unwrap(), DriverEnd::WorkerDied);
        let mut next = ChannelHarness::with_options(shared, &terms);
        let id = next.worker.opened().await;
        next.worker.answer(id, b"ok").await;
        asked.response().await;
    });
}

#[test]
fn a_lost_worker_is_given_up_without_an_end_of_its_socket() {
    on_a_loop(async {
        let mut harness = ChannelHarness::new();
        let asked = harness.get("/");
        harness.worker.opened().await;
        harness
            .shared
            .dispatch
            .mark_slot_lost(harness.slot, &harness.mailbox);
        assert_eq!(asked.fault().await, FaultKind::WorkerDied);
        assert_eq!(harness.ended().await, DriverEnd::WorkerDied);
    });
}

#[test]
fn a_retired_worker_ends_with_its_last_stream_or_is_cut() {
    on_a_loop(async {
        let terms = HarnessOptions {
            read_timeout: Duration::from_millis(20),
            ..HarnessOptions::default()
        };
        let mut harness = ChannelHarness::with(&terms);
        let whole = harness.get("/whole");
        let whole_id = harness.worker.opened().await;
        let streams = harness.get("/streams");
        let id = harness.worker.opened().await;
        harness.worker.begin(id, &[b"200"], b"some").await;
        let streams = streams.response().await;
        harness.retire();
        settle().await;
        assert!(!harness.driver.is_finished());
        harness.mailbox.cut_streams();
        assert_eq!(body(streams).await, Err(FaultKind::WorkerDied));
        harness.worker.expect(FrameKind::StreamCancel, id).await;
        // What has not begun to answer may still do so.
        harness.worker.answer(whole_id, b"done").await;
        assert_eq!(body(whole.response().await).await.unwrap(), b"done");
        // The cut stream is never ended by the worker, and not waited for any longer.
        assert_eq!(harness.ended().await, DriverEnd::Retired);
    });
}

#[test]
fn a_retired_worker_is_not_waited_for_long_when_all_its_clients_have_left() {
    on_a_loop(async {
        let terms = HarnessOptions {
            read_timeout: Duration::from_millis(20),
            ..HarnessOptions::default()
        };
        let mut harness = ChannelHarness::with(&terms);
        let asked = harness.get("/");
        let id = harness.worker.opened().await;
        asked.disconnect().await;
        harness.worker.expect(FrameKind::StreamCancel, id).await;
        // The application does not listen, and never ends it.
        harness.retire();
        assert_eq!(harness.ended().await, DriverEnd::Retired);
    });
}

#[test]
fn an_unsent_request_of_a_disconnected_client_is_dropped() {
    on_a_loop(async {
        let terms = HarnessOptions {
            capacity: 1,
            ..HarnessOptions::default()
        };
        let mut harness = ChannelHarness::with(&terms);
        let first = harness.get("/first");
        let second = harness.get("/second");
        let third = harness.get("/third");
        let id = harness.worker.opened().await;
        second.client.mark_disconnected();
        harness.worker.answer(id, b"1").await;
        first.response().await;
        assert_eq!(second.fault().await, FaultKind::ClientDisconnected);
        let frame = harness.worker.next().await;
        let needle = b"/third";
        assert!(frame.rest.windows(needle.len()).any(|w| w == needle));
        harness.worker.answer(frame.id, b"3").await;
        third.response().await;
    });
}

/// A request whose frame is longer than the socket takes at once.
fn long_request(harness: &ChannelHarness, byte: u8) -> PendingRequest {
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n";
    harness.request(request(head), CollectedBody::Memory(vec![byte; 1_000_000]))
}

#[test]
fn a_request_that_is_left_while_it_is_sent_is_sent_to_its_end() {
    on_a_loop(async {
        let mut harness = ChannelHarness::new();
        let half = long_request(&harness, 1);
        let behind = harness.get("/behind");
        settle().await;
        // Its frame is begun; what the client wrote must not be taken for frames.
        half.disconnect().await;
        let frame = harness.worker.next().await;
        assert_eq!(frame.kind, FrameKind::Open);
        assert!(frame.rest.ends_with(&[1; 1_000_000]));
        let next = harness.worker.opened().await;
        harness
            .worker
            .expect(FrameKind::StreamCancel, frame.id)
            .await;
        harness.worker.reset(frame.id).await;
        harness.worker.answer(next, b"ok").await;
        assert_eq!(body(behind.response().await).await.unwrap(), b"ok");
        harness.retire();
        assert_eq!(harness.ended().await, DriverEnd::Retired);
    });
}

#[test]
fn a_request_that_times_out_while_it_is_sent_is_sent_to_its_end() {
    on_a_loop(async {
        let terms = HarnessOptions {
            response_timeout: Duration::from_millis(30),
            ..HarnessOptions::default()
        };
        let mut harness = ChannelHarness::with(&terms);
        let half = long_request(&harness, 1);
        assert_eq!(half.fault().await, FaultKind::AppTimeout);
        let frame = harness.worker.next().await;
        assert!(frame.rest.ends_with(&[1; 1_000_000]));
        harness
            .worker
            .expect(FrameKind::StreamCancel, frame.id)
            .await;
    });
}

#[test]
fn answering_a_partly_sent_request_ends_the_worker() {
    on_a_loop(async {
        let harness = ChannelHarness::new();
        let half = long_request(&harness, 1);
        settle().await;
        // The first stream of a channel.
        harness.worker.answer(0, b"early").await;
        assert!(matches!(
            within(harness.driver).await.unwrap(),
            DriverEnd::ProtocolBroken(_)
        ));
        // No worker can have begun it.
        assert_eq!(harness.shared.dispatch.queue_usage(clock::now()).waiting, 1);
        drop(half);
    });
}

#[test]
fn abandoned_streams_do_not_keep_a_retired_worker() {
    on_a_loop(async {
        let terms = HarnessOptions {
            read_timeout: Duration::from_millis(20),
            ..HarnessOptions::default()
        };
        let mut harness = ChannelHarness::with(&terms);
        let asked = harness.get("/");
        let id = harness.worker.opened().await;
        asked.disconnect().await;
        harness.worker.expect(FrameKind::StreamCancel, id).await;
        harness.retire();
        // The worker never ends it.
        assert_eq!(harness.ended().await, DriverEnd::Retired);
    });
}

#[test]
fn a_worker_is_to_be_replaced_when_requests_that_were_given_up_fill_it() {
    on_a_loop(async {
        let terms = HarnessOptions {
            response_timeout: Duration::from_millis(30),
            capacity: 4,
            read_timeout: Duration::from_millis(20),
            ..HarnessOptions::default()
        };
        let mut harness = ChannelHarness::with(&terms);
        let shared = Arc::clone(&harness.shared);
        let stats = Arc::clone(&harness.mailbox.stats);
        let called = async {
            while !stats.is_stuck() {
                shared.dispatch.limit_reached.notified().await;
            }
        };
        let mut called = std::pin::pin!(called);
        let first = harness.get("/hangs");
        let id = harness.worker.opened().await;
        assert_eq!(first.fault().await, FaultKind::AppTimeout);
        assert!(stats.take_stacks_request(), "where its requests stand");
        harness.worker.expect(FrameKind::StreamCancel, id).await;
        let second = harness.get("/hangs");
        harness.worker.opened().await;
        assert_eq!(second.fault().await, FaultKind::AppTimeout);
        assert!(
            !harness.mailbox.stats.is_stuck(),
            "it has its time to end them"
        );
        // Frames are read, so it is not suspected.
        while poll_once(called.as_mut()).await.is_none() {
            if let Some(frame) = poll_once(std::pin::pin!(harness.worker.try_next())).await {
                assert_eq!(frame.expect("it goes on").kind, FrameKind::StreamCancel);
            }
        }
        assert!(!stats.take_stacks_request(), "not again so soon");
        // The executor retires it, and it goes without an end of theirs.
        harness.retire();
        assert_eq!(harness.ended().await, DriverEnd::Retired);
    });
}
