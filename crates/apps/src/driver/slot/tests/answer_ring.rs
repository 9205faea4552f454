//! Answers through shared memory: their order, their time, and rings that are refused.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use penstock_sys::shared_ring::{DATA_AT, FILE_BYTES, RING_BYTES, WRITTEN_AT, sealed_memory};
use penstock_wire::frame::FLAG_HAS_FD;

use super::*;

/// The worker's end of a ring.
struct RingWriter {
    memory: File,
    written: u32,
}

impl RingWriter {
    /// Makes one and hands it over.
    async fn announce(thread: &FakeThread) -> Self {
        let memory = sealed_memory(FILE_BYTES).unwrap();
        announce(thread, &memory).await;
        Self {
            memory: memory.into(),
            written: 0,
        }
    }

    fn answer(&mut self, number: u32, body: &[u8]) {
        let mut frame = Vec::new();
        encode_head(&mut frame, FLAG_END, 1000, &[b"200 OK"], body);
        self.put(number, &frame);
    }

    fn put(&mut self, number: u32, bytes: &[u8]) {
        let len = u32::try_from(bytes.len()).unwrap();
        let mut record = [number.to_le_bytes(), len.to_le_bytes()].concat();
        record.extend_from_slice(bytes);
        record.resize(record.len().next_multiple_of(8), 0);
        let at = DATA_AT + self.written;
        assert!(at + u32::try_from(record.len()).unwrap() < FILE_BYTES);
        self.memory.write_all_at(&record, at.into()).unwrap();
        self.publish(self.written + u32::try_from(record.len()).unwrap());
    }

    fn publish(&mut self, written: u32) {
        self.written = written;
        let at = u64::from(WRITTEN_AT);
        let number = written.to_le_bytes();
        self.memory.write_all_at(&number, at).unwrap();
    }
}

async fn announce(thread: &FakeThread, memory: impl AsFd) {
    let mut frame = Vec::new();
    encode_text(&mut frame, FrameKind::AnswerRing, FLAG_HAS_FD, "");
    within(thread.stream.send_descriptor(&frame, memory))
        .await
        .unwrap();
}

/// So many requests that their worker has all at once.
async fn batch<const N: usize>(harness: &SlotHarness) -> ([Answer; N], DrivenSlot) {
    while harness.app.recent_latency.max_batch() < u32::try_from(N).unwrap() {
        harness.app.recent_latency.record(Duration::ZERO);
    }
    let answers = [(); N].map(|()| harness.request());
    let mut driven = harness.driven_slot(1);
    for _ in &answers {
        assert_eq!(driven.thread.next().await, FrameKind::Request);
    }
    (answers, driven)
}

#[test]
fn an_answer_does_not_wait_for_the_next_request() {
    on_a_loop(async {
        let harness = SlotHarness::new(|_| {});
        let ([first, second, third], driven) = batch(&harness).await;
        let mut ring = RingWriter::announce(&driven.thread).await;
        ring.answer(0, b"first");
        assert_eq!(answered(first).await, Ok(b"first".to_vec()));
        ring.answer(1, b"second");
        assert_eq!(answered(second).await, Ok(b"second".to_vec()));
        driven.thread.answer(b"third").await;
        assert_eq!(answered(third).await, Ok(b"third".to_vec()));
        assert_eq!(harness.app.dispatch.queue_usage(clock::now()).waiting, 0);
    });
}

#[test]
fn answers_of_both_ways_come_in_the_order_of_their_requests() {
    on_a_loop(async {
        let harness = SlotHarness::new(|_| {});
        let (answers, driven) = batch::<8>(&harness).await;
        let mut ring = RingWriter::announce(&driven.thread).await;
        // The numbers say it, whichever of both is read first.
        ring.answer(2, b"2");
        ring.answer(3, b"3");
        ring.answer(5, b"5");
        driven
            .thread
            .write(|out| {
                for body in [b"0", b"1", b"4", b"6", b"7"] {
                    encode_head(out, FLAG_END, 1000, &[b"200 OK"], body);
                }
            })
            .await;
        for (number, answer) in answers.into_iter().enumerate() {
            assert_eq!(answered(answer).await, Ok(number.to_string().into_bytes()));
        }
    });
}

#[test]
fn what_a_dead_worker_has_answered_is_answered_and_the_rest_goes_to_another() {
    on_a_loop(async {
        let harness = SlotHarness::new(|_| {});
        let ([first, second, third], driven) = batch(&harness).await;
        let mut ring = RingWriter::announce(&driven.thread).await;
        ring.answer(0, b"first");
        drop(driven.thread);
        within(driven.end).await.unwrap();
        assert_eq!(answered(first).await, Ok(b"first".to_vec()));
        assert_eq!(answered(second).await, Err(FaultKind::WorkerDied));
        let mut other = harness.driven_slot(1);
        assert_eq!(other.thread.next().await, FrameKind::Request);
        other.thread.answer(b"third").await;
        assert_eq!(answered(third).await, Ok(b"third".to_vec()));
    });
}

/// What ends a driver whose worker does `this` with its ring.
async fn end_after(this: impl AsyncFnOnce(&FakeThread)) -> String {
    let harness = SlotHarness::new(|_| {});
    let (_answers, driven) = batch::<3>(&harness).await;
    this(&driven.thread).await;
    match within(driven.end).await.unwrap() {
        DriverEnd::ProtocolBroken(cause) => cause.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_ring_that_cannot_be_relied_on_breaks_the_protocol() {
    on_a_loop(async {
        let short = end_after(async |thread| {
            announce(thread, sealed_memory(FILE_BYTES / 2).unwrap()).await;
        });
        let file = end_after(async |thread| announce(thread, UnixStream::pair().unwrap().0).await);
        let second = end_after(async |thread| {
            RingWriter::announce(thread).await;
            RingWriter::announce(thread).await;
        });
        let garbage = end_after(async |thread| {
            RingWriter::announce(thread)
                .await
                .put(0, b"no frame at all");
        });
        let part = end_after(async |thread| {
            let mut frame = Vec::new();
            encode_head(&mut frame, FLAG_END, 0, &[b"200 OK"], b"body");
            let mut ring = RingWriter::announce(thread).await;
            ring.put(0, &frame[..frame.len() - 1]);
        });
        let two = end_after(async |thread| {
            let mut frames = Vec::new();
            for body in [b"a", b"b"] {
                encode_head(&mut frames, FLAG_END, 0, &[b"200 OK"], body);
            }
            RingWriter::announce(thread).await.put(0, &frames);
        });
        let stream = end_after(async |thread| {
            let mut frame = Vec::new();
            encode_head(&mut frame, FLAG_STREAM, 0, &[b"200 OK"], b"body");
            RingWriter::announce(thread).await.put(0, &frame);
        });
        let overfull = end_after(async |thread| {
            let mut ring = RingWriter::announce(thread).await;
            ring.publish(RING_BYTES + 8);
        });
        for (case, cause) in [
            ("short", short.await),
            ("no memory", file.await),
            ("a second one", second.await),
            ("garbage", garbage.await),
            ("a part", part.await),
            ("two", two.await),
            ("a stream", stream.await),
            ("overfull", overfull.await),
        ] {
            assert!(cause.contains("ring of answers"), "{case}: {cause}");
        }
    });
}

#[test]
fn a_worker_whose_ring_did_not_arrive_answers_on_the_socket() {
    on_a_loop(async {
        let harness = SlotHarness::new(|_| {});
        let ([first, second], driven) = batch(&harness).await;
        let frame = |out: &mut Vec<u8>| encode_text(out, FrameKind::AnswerRing, FLAG_HAS_FD, "");
        driven.thread.write(frame).await;
        for answer in [first, second] {
            driven.thread.answer(b"here").await;
            assert_eq!(answered(answer).await, Ok(b"here".to_vec()));
        }
    });
}

/// A breach of the protocol in the response of the first request, while the ring has the answer of
/// the second: no client may get what another asked for.
#[test]
fn after_a_breach_nothing_of_the_ring_is_answered() {
    on_a_loop(async {
        let harness = SlotHarness::new(|_| {});
        let ([first, second], driven) = batch(&harness).await;
        let mut ring = RingWriter::announce(&driven.thread).await;
        ring.answer(1, b"of the second");
        driven
            .thread
            .write(|out| {
                encode_head(out, FLAG_STREAM, 0, &[b"200 OK"], b"");
                worker_encoder::encode_file(out, FLAG_END, 0, None);
            })
            .await;
        let end = within(driven.end).await.unwrap();
        assert!(matches!(end, DriverEnd::ProtocolBroken(_)), "{end:?}");
        assert!(answered(first).await.is_err());
        let mut other = harness.driven_slot(1);
        assert_eq!(other.thread.next().await, FrameKind::Request);
        other.thread.answer(b"elsewhere").await;
        assert_eq!(answered(second).await, Ok(b"elsewhere".to_vec()));
    });
}

#[test]
fn the_wait_behind_others_counts_as_waiting() {
    on_a_loop(async {
        let harness = SlotHarness::new(|_| {});
        let ([first, second, third], driven) = batch(&harness).await;
        let mut ring = RingWriter::announce(&driven.thread).await;
        let wait = Duration::from_millis(20);
        pass(wait).await;
        ring.answer(0, b"first");
        ring.answer(1, b"second");
        assert_eq!(answered(first).await, Ok(b"first".to_vec()));
        let second = response(second).await.unwrap();
        assert!(second.timing.queue_time >= wait, "{:?}", second.timing);
        driven.thread.answer(b"third").await;
        assert_eq!(answered(third).await, Ok(b"third".to_vec()));
    });
}
