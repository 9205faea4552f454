//! Bodies both ways: streams, windows, slow clients, files, heads that are wrong.

use std::os::unix::fs::FileExt;

use super::*;
use penstock_runtime::loops;

const WINDOW: usize = channel::WINDOW_BYTES as usize;

#[test]
fn a_head_request_gets_no_body_and_cancels_the_stream() {
    on_a_loop(async {
        let mut harness = ChannelHarness::new();
        let whole = harness.send("HEAD /a HTTP/1.1\r\nHost: a\r\n\r\n");
        let id = harness.worker.opened().await;
        harness.worker.answer(id, b"12345").await;
        let response = whole.response().await;
        assert!(
            matches!(response.body, Body::Omitted(Some(5))),
            "{response:?}"
        );
        let streamed = harness.send("HEAD /b HTTP/1.1\r\nHost: a\r\n\r\n");
        let id = harness.worker.opened().await;
        harness
            .worker
            .begin(id, &[b"200", b"Content-Length", b"9"], b"x")
            .await;
        let response = streamed.response().await;
        assert!(
            matches!(response.body, Body::Omitted(Some(9))),
            "{response:?}"
        );
        harness.worker.expect(FrameKind::StreamCancel, id).await;
        assert_eq!(
            harness
                .shared
                .dispatch
                .queue_usage(clock::now())
                .in_progress,
            1
        );
        harness.worker.data(id, b"more", false).await;
        harness.worker.reset(id).await;
        let last = harness.get("/c");
        let id = harness.worker.opened().await;
        harness.worker.answer(id, b"").await;
        last.response().await;
        assert_eq!(
            harness
                .shared
                .dispatch
                .queue_usage(clock::now())
                .in_progress,
            0
        );
    });
}

#[test]
fn a_wrong_head_costs_its_client_a_502_and_the_worker_nothing() {
    on_a_loop(async {
        let mut harness = ChannelHarness::new();
        for head in [
            &[&b"100"[..]][..],
            &[b"200", b"A", b"x\r\nB: y"],
            &[b"200", b"Content-Length", b"x"],
            &[b"200", b"Content-Length", b"5"],
        ] {
            let asked = harness.get("/");
            let id = harness.worker.opened().await;
            harness
                .worker
                .write(|out| reactor_encoder::encode_response(out, FLAG_END, id, 0, head, b"abc"))
                .await;
            assert_eq!(asked.fault().await, FaultKind::AppProtocolError);
        }
        let streamed = harness.get("/");
        let id = harness.worker.opened().await;
        harness.worker.begin(id, &[b"99"], b"").await;
        assert_eq!(streamed.fault().await, FaultKind::AppProtocolError);
        harness.worker.expect(FrameKind::StreamCancel, id).await;
        harness.worker.reset(id).await;
        assert_eq!(harness.shared.metrics.failed_requests.value(), 5);
    });
}

#[test]
fn a_body_is_cut_when_the_application_raises_within_it() {
    on_a_loop(async {
        let mut harness = ChannelHarness::new();
        let asked = harness.get("/");
        let id = harness.worker.opened().await;
        harness.worker.begin(id, &[b"200"], b"one").await;
        harness.worker.reset(id).await;
        assert_eq!(
            body(asked.response().await).await,
            Err(FaultKind::AppRaised)
        );
    });
}

#[test]
fn a_whole_answer_may_come_in_many_pieces_and_be_larger_than_memory() {
    on_a_loop(async {
        let mut harness = ChannelHarness::new();
        let asked = harness.get("/");
        let id = harness.worker.opened().await;
        let large: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[1]).collect();
        harness.worker.answer(id, &large).await;
        // The worker is free before the client has taken anything.
        let other = harness.get("/b");
        let id = harness.worker.opened().await;
        harness.worker.answer(id, b"b").await;
        other.response().await;
        assert_eq!(
            harness
                .shared
                .dispatch
                .queue_usage(clock::now())
                .in_progress,
            0
        );
        assert!(body(asked.response().await).await.unwrap() == large);
    });
}

#[test]
fn a_slow_client_stops_its_own_stream_and_no_other() {
    on_a_loop(async {
        let terms = HarnessOptions {
            spool: 0,
            ..HarnessOptions::default()
        };
        let mut harness = ChannelHarness::with(&terms);
        let slow = harness.get("/slow");
        let slow_id = harness.worker.opened().await;
        harness.worker.begin(slow_id, &[b"200"], b"").await;
        let piece = vec![7; 32 << 10];
        for _ in 0..WINDOW / piece.len() {
            harness.worker.data(slow_id, &piece, false).await;
        }
        let response = slow.response().await;
        // What went into memory is given back; what waits for the client is not.
        let returned = harness.worker.expect(FrameKind::Window, slow_id).await;
        assert_eq!(returned, (64_u32 << 10).to_le_bytes());
        let mut others = 0;
        for _ in 0..20 {
            let other = harness.get("/other");
            let id = harness.worker.opened().await;
            harness.worker.begin(id, &[b"200"], b"x").await;
            harness.worker.data(id, b"y", true).await;
            assert_eq!(body(other.response().await).await.unwrap(), b"xy");
            others += 1;
        }
        assert_eq!(others, 20);
        let reading = loops::spawn_with_handle(body(response));
        let mut room = 64 << 10;
        while room < WINDOW {
            let frame = harness.worker.expect(FrameKind::Window, slow_id).await;
            let (bytes, _) = frame.split_first_chunk::<4>().unwrap();
            room += u32::from_le_bytes(*bytes) as usize;
        }
        harness.worker.data(slow_id, b"end", true).await;
        let all = within(reading).await.unwrap().unwrap();
        assert_eq!(all.len(), WINDOW + 3);
    });
}

#[test]
fn an_unread_long_body_spools_to_a_file() {
    on_a_loop(async {
        let mut harness = ChannelHarness::new();
        let asked = harness.get("/");
        let id = harness.worker.opened().await;
        harness.worker.begin(id, &[b"200"], b"").await;
        let mut room = WINDOW;
        let (mut sent, mut expected) = (0_usize, Vec::new());
        while sent < 4 << 20 {
            let piece = vec![(sent >> 14).to_le_bytes()[0]; 16 << 10];
            while room < piece.len() {
                let frame = harness.worker.expect(FrameKind::Window, id).await;
                let (bytes, _) = frame.split_first_chunk::<4>().unwrap();
                room += u32::from_le_bytes(*bytes) as usize;
            }
            room -= piece.len();
            sent += piece.len();
            harness.worker.data(id, &piece, false).await;
            expected.extend_from_slice(&piece);
        }
        harness.worker.data(id, b"", true).await;
        let response = asked.response().await;
        // Also without the driver.
        harness.retire();
        assert_eq!(harness.ended().await, DriverEnd::Retired);
        assert!(body(response).await.unwrap() == expected);
    });
}

#[test]
fn more_than_the_window_ends_the_worker() {
    on_a_loop(async {
        let terms = HarnessOptions {
            spool: 0,
            memory: 1 << 10,
            ..HarnessOptions::default()
        };
        let mut harness = ChannelHarness::with(&terms);
        let asked = harness.get("/");
        let id = harness.worker.opened().await;
        harness.worker.begin(id, &[b"200"], b"").await;
        let response = asked.response().await;
        // One piece goes into memory, whatever its size, and is given back.
        for _ in 0..7 {
            harness.worker.data(id, &vec![7; 64 << 10], false).await;
        }
        // All of it is read before a piece is taken, which would be worth more of the window.
        settle().await;
        assert_eq!(body(response).await, Err(FaultKind::AppProtocolError));
        let end = harness.ended().await;
        assert!(
            matches!(&end, DriverEnd::ProtocolBroken(why) if why.contains("window")),
            "{end:?}"
        );
    });
}

#[test]
fn frames_that_have_no_place_end_the_worker() {
    type Write = fn(&mut Vec<u8>, u32);
    let cases: [(&str, Write); 7] = [
        ("not open", |out, id| {
            reactor_encoder::encode_reset(out, 0, id + 5, "");
        }),
        ("before its head", |out, id| {
            reactor_encoder::encode_data(out, 0, id, b"x");
        }),
        ("second answer", |out, id| {
            reactor_encoder::encode_response(out, FLAG_STREAM, id, 0, &[b"200"], b"");
            reactor_encoder::encode_response(out, FLAG_STREAM, id, 0, &[b"200"], b"");
        }),
        ("nobody asked", |out, id| {
            reactor_encoder::encode_accept(out, id, &[b""]);
        }),
        ("without a WebSocket", |out, id| {
            reactor_encoder::encode_message(out, 0, id, b"x");
        }),
        ("not open", |out, id| {
            reactor_encoder::encode_response(out, FLAG_END, id, 0, &[b"200"], b"");
            reactor_encoder::encode_data(out, 0, id, b"late");
        }),
        ("unknown frame type", |out, _| {
            out.extend_from_slice(&[99; 8]);
        }),
    ];
    for (why, write) in cases {
        on_a_loop(async {
            let mut harness = ChannelHarness::new();
            let asked = harness.get("/");
            let other = harness.get("/b");
            let id = harness.worker.opened().await;
            harness.worker.opened().await;
            harness.worker.write(|out| write(out, id)).await;
            let answer = asked.answer().await;
            assert!(answer.is_ok() || answer.is_err_and(|f| f.kind == FaultKind::AppProtocolError));
            assert_eq!(other.fault().await, FaultKind::AppProtocolError, "{why}");
            let end = harness.ended().await;
            assert!(
                matches!(&end, DriverEnd::ProtocolBroken(text) if text.contains(why)),
                "{why}: {end:?}"
            );
        });
    }
}

#[test]
fn bodies_go_along_or_as_files_in_the_order_of_their_requests() {
    on_a_loop(async {
        let mut harness = ChannelHarness::new();
        let pool = harness.shared.buffering_settings.load().pool.clone();
        let mut asked = Vec::new();
        for text in ["first", "second"] {
            let file = nameless(pool.clone());
            file.write_all_at(text.as_bytes(), 0).unwrap();
            let body = CollectedBody::File {
                file: Arc::new(file),
                len: text.len() as u64,
            };
            let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n";
            asked.push(harness.request(request(head), body));
            let inline = CollectedBody::Memory(b"inline".to_vec());
            asked.push(harness.request(request(head), inline));
        }
        for text in ["first", "", "second", ""] {
            let frame = harness.worker.next().await;
            assert_eq!(frame.flags, u8::from(!text.is_empty()));
            if text.is_empty() {
                assert!(frame.rest.ends_with(b"inline"));
            } else {
                let mut descriptors = Vec::new();
                let mut byte = [0; 8];
                let count = net::receive_with_descriptors(
                    std::os::fd::AsFd::as_fd(&harness.worker.files),
                    &mut byte,
                    &mut descriptors,
                );
                assert_eq!((count.unwrap(), descriptors.len()), (4, 1));
                assert_eq!(byte[..4], frame.id.to_le_bytes(), "whose body it is");
                let mut read = String::new();
                let mut file = std::fs::File::from(descriptors.remove(0));
                file.read_to_string(&mut read).unwrap();
                assert_eq!(read, text);
            }
            harness.worker.answer(frame.id, b"ok").await;
        }
        for asked in asked {
            asked.response().await;
        }
    });
}
