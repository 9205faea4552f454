//! Clients that leave, requests that take too long, workers that go or die.

use super::*;

#[test]
fn the_worker_hears_of_a_client_that_leaves_before_its_answer() {
    on_a_loop(async {
        let mut rig = ChannelHarness::new();
        let asked = rig.get("/");
        let id = rig.worker.opened().await;
        asked.disconnect().await;
        rig.worker.expect(FrameKind::StreamCancel, id).await;
        // It is in progress until the worker has ended it.
        assert_eq!(rig.shared.dispatch.queue_usage(clock::now()).in_progress, 1);
        rig.worker.begin(id, &[b"200"], b"late").await;
        rig.worker.reset(id).await;
        rig.retire();
        assert_eq!(rig.ended().await, DriverEnd::Retired);
    });
}

#[test]
fn the_worker_hears_of_a_client_that_leaves_within_a_body() {
    on_a_loop(async {
        let mut rig = ChannelHarness::new();
        for pieces in [1, 4] {
            let asked = rig.get("/");
            let id = rig.worker.opened().await;
            rig.worker
                .begin(id, &[b"200", b"X-Accel-Buffering", b"no"], b"")
                .await;
            let response = asked.response().await;
            // Beyond memory, too.
            for _ in 0..pieces {
                rig.worker.data(id, &vec![7; 48 << 10], false).await;
            }
            settle().await;
            drop(response);
            loop {
                let frame = rig.worker.next().await;
                match frame.kind {
                    FrameKind::Window => {}
                    kind => break assert_eq!((kind, frame.id), (FrameKind::StreamCancel, id)),
                }
            }
            rig.worker.reset(id).await;
        }
        rig.retire();
        assert_eq!(rig.ended().await, DriverEnd::Retired);
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
        let mut rig = ChannelHarness::with(&terms);
        let events = rig.get("/events");
        let events_id = rig.worker.opened().await;
        let kind: [&[u8]; 3] = [b"200", b"Content-Type", b"text/event-stream"];
        rig.worker.begin(events_id, &kind, b"").await;
        let events = events.response().await;
        for _ in 0..3 {
            let slow = rig.get("/slow");
            let id = rig.worker.opened().await;
            assert_eq!(slow.fault().await, FaultKind::AppTimeout);
            rig.worker.expect(FrameKind::StreamCancel, id).await;
            // Not ended by the worker for the rest of this test, which is its right.
        }
        let stalled = rig.get("/stalls");
        let id = rig.worker.opened().await;
        rig.worker.begin(id, &[b"200"], b"some").await;
        let response = stalled.response().await;
        assert_eq!(body(response).await, Err(FaultKind::AppTimeout));
        rig.worker.expect(FrameKind::StreamCancel, id).await;
        assert_eq!(rig.shared.metrics.timed_out_requests.value(), 4);
        // Nothing was said on the event stream for all that time.
        rig.worker.data(events_id, b"data: 1\n\n", true).await;
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
        let mut rig = ChannelHarness::with(&terms);
        let asked = rig.get("/");
        rig.worker.opened().await;
        assert_eq!(asked.fault().await, FaultKind::AppTimeout);
        // STREAM_CANCEL is never read.
        assert_eq!(within(&mut rig.driver).await.unwrap(), DriverEnd::TimedOut);
    });
}

#[test]
fn sent_requests_of_a_dead_worker_fail_and_unsent_ones_move() {
    on_a_loop(async {
        let terms = HarnessOptions::default();
        let mut rig = ChannelHarness::with(&terms);
        let had = rig.get("/had");
        rig.worker.opened().await;
        let streams = rig.get("/streams");
        let id = rig.worker.opened().await;
        rig.worker.begin(id, &[b"200"], b"some").await;
        let streams = streams.response().await;
        let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n";
        let large = || CollectedBody::Memory(vec![7; 1_000_000]);
        let half = rig.request(request(head), large());
        let unsent = rig.request(request(head), large());
        settle().await;
        let ChannelHarness {
            shared,
            worker,
            driver,
            ..
        } = rig;
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
        let rig = ChannelHarness::with(&terms);
        let asked = rig.get("/");
        settle().await;
        let ChannelHarness {
            shared,
            worker,
            driver,
            ..
        } = rig;
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
        let mut rig = ChannelHarness::new();
        let asked = rig.get("/");
        rig.worker.opened().await;
        rig.shared.dispatch.mark_slot_lost(rig.slot, &rig.mailbox);
        assert_eq!(asked.fault().await, FaultKind::WorkerDied);
        assert_eq!(rig.ended().await, DriverEnd::WorkerDied);
    });
}

#[test]
fn a_retired_worker_ends_with_its_last_stream_or_is_cut() {
    on_a_loop(async {
        let terms = HarnessOptions {
            read_timeout: Duration::from_millis(20),
            ..HarnessOptions::default()
        };
        let mut rig = ChannelHarness::with(&terms);
        let whole = rig.get("/whole");
        let whole_id = rig.worker.opened().await;
        let streams = rig.get("/streams");
        let id = rig.worker.opened().await;
        rig.worker.begin(id, &[b"200"], b"some").await;
        let streams = streams.response().await;
        rig.retire();
        settle().await;
        assert!(!rig.driver.is_finished());
        rig.mailbox.cut_streams();
        assert_eq!(body(streams).await, Err(FaultKind::WorkerDied));
        rig.worker.expect(FrameKind::StreamCancel, id).await;
        // What has not begun to answer may still do so.
        rig.worker.answer(whole_id, b"done").await;
        assert_eq!(body(whole.response().await).await.unwrap(), b"done");
        // The cut stream is never ended by the worker, and not waited for any longer.
        assert_eq!(rig.ended().await, DriverEnd::Retired);
    });
}

#[test]
fn a_retired_worker_is_not_waited_for_long_when_all_its_clients_have_left() {
    on_a_loop(async {
        let terms = HarnessOptions {
            read_timeout: Duration::from_millis(20),
            ..HarnessOptions::default()
        };
        let mut rig = ChannelHarness::with(&terms);
        let asked = rig.get("/");
        let id = rig.worker.opened().await;
        asked.disconnect().await;
        rig.worker.expect(FrameKind::StreamCancel, id).await;
        // The application does not listen, and never ends it.
        rig.retire();
        assert_eq!(rig.ended().await, DriverEnd::Retired);
    });
}

#[test]
fn an_unsent_request_of_a_disconnected_client_is_dropped() {
    on_a_loop(async {
        let terms = HarnessOptions {
            capacity: 1,
            ..HarnessOptions::default()
        };
        let mut rig = ChannelHarness::with(&terms);
        let first = rig.get("/first");
        let second = rig.get("/second");
        let third = rig.get("/third");
        let id = rig.worker.opened().await;
        second.client.mark_disconnected();
        rig.worker.answer(id, b"1").await;
        first.response().await;
        assert_eq!(second.fault().await, FaultKind::ClientDisconnected);
        let frame = rig.worker.next().await;
        let needle = b"/third";
        assert!(frame.rest.windows(needle.len()).any(|w| w == needle));
        rig.worker.answer(frame.id, b"3").await;
        third.response().await;
    });
}

/// A request whose frame is longer than the socket takes at once.
fn long_request(rig: &ChannelHarness, byte: u8) -> PendingRequest {
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n";
    rig.request(request(head), CollectedBody::Memory(vec![byte; 1_000_000]))
}

#[test]
fn a_request_that_is_left_while_it_is_sent_is_sent_to_its_end() {
    on_a_loop(async {
        let mut rig = ChannelHarness::new();
        let half = long_request(&rig, 1);
        let behind = rig.get("/behind");
        settle().await;
        // Its frame is begun; what the client wrote must not be taken for frames.
        half.disconnect().await;
        let frame = rig.worker.next().await;
        assert_eq!(frame.kind, FrameKind::Open);
        assert!(frame.rest.ends_with(&[1; 1_000_000]));
        let next = rig.worker.opened().await;
        rig.worker.expect(FrameKind::StreamCancel, frame.id).await;
        rig.worker.reset(frame.id).await;
        rig.worker.answer(next, b"ok").await;
        assert_eq!(body(behind.response().await).await.unwrap(), b"ok");
        rig.retire();
        assert_eq!(rig.ended().await, DriverEnd::Retired);
    });
}

#[test]
fn a_request_that_times_out_while_it_is_sent_is_sent_to_its_end() {
    on_a_loop(async {
        let terms = HarnessOptions {
            response_timeout: Duration::from_millis(30),
            ..HarnessOptions::default()
        };
        let mut rig = ChannelHarness::with(&terms);
        let half = long_request(&rig, 1);
        assert_eq!(half.fault().await, FaultKind::AppTimeout);
        let frame = rig.worker.next().await;
        assert!(frame.rest.ends_with(&[1; 1_000_000]));
        rig.worker.expect(FrameKind::StreamCancel, frame.id).await;
    });
}

#[test]
fn answering_a_partly_sent_request_ends_the_worker() {
    on_a_loop(async {
        let rig = ChannelHarness::new();
        let half = long_request(&rig, 1);
        settle().await;
        // The first stream of a channel.
        rig.worker.answer(0, b"early").await;
        assert!(matches!(
            within(rig.driver).await.unwrap(),
            DriverEnd::ProtocolBroken(_)
        ));
        // No worker can have begun it.
        assert_eq!(rig.shared.dispatch.queue_usage(clock::now()).waiting, 1);
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
        let mut rig = ChannelHarness::with(&terms);
        let asked = rig.get("/");
        let id = rig.worker.opened().await;
        asked.disconnect().await;
        rig.worker.expect(FrameKind::StreamCancel, id).await;
        rig.retire();
        // The worker never ends it.
        assert_eq!(rig.ended().await, DriverEnd::Retired);
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
        let mut rig = ChannelHarness::with(&terms);
        let shared = Arc::clone(&rig.shared);
        let ledger = Arc::clone(&rig.mailbox.stats);
        let called = async {
            while !ledger.is_stuck() {
                shared.dispatch.limit_reached.notified().await;
            }
        };
        let mut called = std::pin::pin!(called);
        let first = rig.get("/hangs");
        let id = rig.worker.opened().await;
        assert_eq!(first.fault().await, FaultKind::AppTimeout);
        assert!(ledger.take_stacks_request(), "where its requests stand");
        rig.worker.expect(FrameKind::StreamCancel, id).await;
        let second = rig.get("/hangs");
        rig.worker.opened().await;
        assert_eq!(second.fault().await, FaultKind::AppTimeout);
        assert!(!rig.mailbox.stats.is_stuck(), "it has its time to end them");
        // Frames are read, so it is not suspected.
        while poll_once(called.as_mut()).await.is_none() {
            if let Some(frame) = poll_once(std::pin::pin!(rig.worker.try_next())).await {
                assert_eq!(frame.expect("it goes on").kind, FrameKind::StreamCancel);
            }
        }
        assert!(!ledger.take_stacks_request(), "not again so soon");
        // The executor retires it, and it goes without an end of theirs.
        rig.retire();
        assert_eq!(rig.ended().await, DriverEnd::Retired);
    });
}
