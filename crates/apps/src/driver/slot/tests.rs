//! One slot and a worker that is played here: what a driver does with words beside the usual
//! answer.

mod answer_ring;

use penstock_runtime::loops;
use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use penstock_config as config;
use penstock_exchange::buffering::{BufferingSettings, CapacityDemand, ResponseProducer};
use penstock_exchange::{Body, BodyStream, Reply, Response};
use penstock_queue::SlotSpec;
use penstock_runtime::blocking::Pool;
use penstock_sys::net;
use penstock_wire::frame::{FLAG_END, FLAG_INPUT_ABORTED, FLAG_STREAM};
use penstock_wire::worker_encoder::{self, encode_body, encode_head, encode_text};
use penstock_wire::{
    Dialect, FrameHeader, FrameKind, HEADER_LEN, RequestBodySource, encode_request,
};
use tokio::sync::oneshot;

use super::*;
use crate::dispatch::{SubmitOutcome, WorkerStats};
use crate::shared::DispatchMode;
use crate::shared::SlotProducer;
use crate::testing::{BodyScript, ScriptedBody, ScriptedConnection};
use crate::upload::{Upload, UploadReader};

/// How long anything may take on a machine that has much to do.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

type Answer = oneshot::Receiver<Result<Reply, Fault>>;

/// An application whose workers are played by the test.
struct SlotHarness {
    app: Arc<AppShared>,
    stats: Arc<WorkerStats>,
}

/// The worker's end of one slot.
struct FakeThread {
    stream: Stream,
    received: Vec<u8>,
}

/// A slot with its driver at work.
struct DrivenSlot {
    slot: SlotId,
    mailbox: Arc<Mailbox>,
    thread: FakeThread,
    end: oneshot::Receiver<DriverEnd>,
}

impl SlotHarness {
    fn new(change: impl FnOnce(&mut config::App)) -> Self {
        let kind = config::AppKind::Wsgi;
        let mut about = config::App::new("stage", std::env::temp_dir(), kind, "app:app");
        about.response_timeout = TEST_TIMEOUT;
        change(&mut about);
        let settings = BufferingSettings {
            max_body_memory: 1 << 20,
            max_response_memory: 1 << 20,
            max_response_spool: 1 << 20,
            min_busy_rate: 0,
            rate_grace: Duration::ZERO,
            temp_dir: std::env::temp_dir(),
            temp_space: Arc::default(),
            pool: Pool::new("test", 1, 8),
        };
        Self {
            app: Arc::new(AppShared::new(
                &about,
                DispatchMode::Workers(Dialect::Python),
                settings,
            )),
            stats: Arc::default(),
        }
    }

    fn driven_slot(&self, capacity: u32) -> DrivenSlot {
        let spec = SlotSpec {
            generation: 1,
            group: 0,
            loop_index: 0,
            request_capacity: capacity,
        };
        let (slot, mailbox) = self.app.dispatch.add_slot(clock::now(), spec, &self.stats);
        let (ours, theirs) = net::worker_socket_pair().unwrap();
        let theirs = UnixStream::from(theirs);
        theirs.set_nonblocking(true).unwrap();
        let thread = FakeThread {
            stream: Stream::new(theirs.into()).unwrap(),
            received: Vec::new(),
        };
        let (app, mail) = (Arc::clone(&self.app), Arc::clone(&mailbox));
        let (say, end) = oneshot::channel();
        let driver = SlotDriver::new(app, slot, mail, 1, Stream::new(ours).unwrap());
        loops::spawn_here(async move {
            let _ = say.send(driver.run().await);
        });
        DrivenSlot {
            slot,
            mailbox,
            thread,
            end,
        }
    }

    fn request(&self) -> Answer {
        self.request_for(false)
    }

    /// Asks for another protocol, if it `upgrades`.
    fn request_for(&self, upgrades: bool) -> Answer {
        self.submit(RequestBodySource::Inline(b""), None, upgrades)
    }

    /// Asks with a body that still comes.
    fn request_streaming(&self) -> (Arc<ScriptedConnection>, Answer) {
        let (line, body) = ScriptedBody::new();
        let upload = Upload::spawn(Box::new(body), Arc::default());
        let answer =
            self.request_with(RequestBodySource::Streamed(b"first"), Some(upload.reader()));
        (line, answer)
    }

    fn request_with(&self, body: RequestBodySource<'_>, upload: Option<UploadReader>) -> Answer {
        self.submit(body, upload, false)
    }

    fn submit(
        &self,
        body: RequestBodySource<'_>,
        upload: Option<UploadReader>,
        upgrades: bool,
    ) -> Answer {
        let mut frame = Vec::new();
        encode_request(&mut frame, Dialect::Python, body, |e| {
            e.push_variable(b"REQUEST_METHOD", b"GET");
        })
        .unwrap();
        let (reply, answer) = oneshot::channel();
        let job = Job {
            frame,
            body_file: None,
            upload,
            is_head: false,
            reply_sender: Some(reply),
            client: Arc::default(),
            websocket: None,
            upgrades,
            sendfile: None,
            affinity: None,
            response_timeout: None,
        };
        let placed = self.app.dispatch.submit(clock::now(), job, 0);
        assert!(
            !matches!(placed, SubmitOutcome::QueueFull { .. }),
            "{placed:?}"
        );
        answer
    }
}

impl FakeThread {
    /// The next frame from the front end.
    async fn next(&mut self) -> FrameKind {
        self.next_frame().await.0.kind
    }

    async fn next_frame(&mut self) -> (FrameHeader, Vec<u8>) {
        loop {
            if let Some(header) = FrameHeader::parse(&self.received).unwrap() {
                let whole = HEADER_LEN + header.payload_len as usize;
                if self.received.len() >= whole {
                    let frame: Vec<u8> = self.received.drain(..whole).collect();
                    return (header, frame[HEADER_LEN..].to_vec());
                }
            }
            let mut chunk = [0; 4096];
            let read = std::future::poll_fn(|cx| self.stream.poll_read(cx, &mut chunk));
            let count = within(read).await.unwrap();
            assert_ne!(count, 0, "the driver has closed the socket");
            self.received.extend_from_slice(&chunk[..count]);
        }
    }

    async fn write(&self, encode: impl FnOnce(&mut Vec<u8>)) {
        let mut frame = Vec::new();
        encode(&mut frame);
        within(self.stream.write_all(&frame)).await.unwrap();
    }

    async fn answer(&self, body: &[u8]) {
        self.write(|out| encode_head(out, FLAG_END, 1000, &[b"200 OK"], body))
            .await;
    }

    /// The next frame, which is an INPUT: its flags and bytes.
    async fn input(&mut self) -> (u8, Vec<u8>) {
        let (header, bytes) = self.next_frame().await;
        assert_eq!(header.kind, FrameKind::Input);
        (header.flags, bytes)
    }

    async fn read_frame(&self, kind: FrameKind) {
        self.write(|out| encode_text(out, kind, 0, "")).await;
    }
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    let done = clock::timeout(TEST_TIMEOUT, work).await;
    done.expect("it comes to something in time")
}

/// The answer, which is no redirect.
async fn response(answer: Answer) -> Result<Box<Response>, Fault> {
    match within(answer).await.expect("every request is answered")? {
        Reply::Response(response) => Ok(response),
        other => panic!("{other:?}"),
    }
}

async fn answered(answer: Answer) -> Result<Vec<u8>, FaultKind> {
    let response = response(answer).await;
    match response.map_err(|fault| fault.kind)?.body {
        Body::Bytes(bytes) => Ok(bytes.to_vec()),
        Body::Empty => Ok(Vec::new()),
        Body::Stream(mut body) => {
            let mut whole = Vec::new();
            while let Some(chunk) = within(std::future::poll_fn(|cx| body.poll_chunk(cx))).await {
                whole.extend_from_slice(&chunk.map_err(|fault| fault.kind)?);
            }
            Ok(whole)
        }
        other => panic!("not a whole body: {other:?}"),
    }
}

fn on_a_loop(test: impl Future<Output = ()>) {
    loops::block_on(test).unwrap();
}

/// Lets so much time pass.
async fn pass(time: Duration) {
    let nothing = std::future::pending::<()>();
    assert_eq!(clock::timeout(time, nothing).await, None);
}

#[test]
fn a_request_that_takes_too_long_is_answered_and_one_that_asked_for_time_has_it() {
    on_a_loop(async {
        let harness = SlotHarness::new(|about| about.response_timeout = Duration::from_millis(100));
        let mut driven = harness.driven_slot(1);
        let patient = harness.request();
        assert_eq!(driven.thread.next().await, FrameKind::Request);
        driven
            .thread
            .write(|out| {
                let header = FrameHeader {
                    kind: FrameKind::ExtendDeadline,
                    flags: 0,
                    string_count: 0,
                    payload_len: 4,
                };
                out.extend_from_slice(&header.encode());
                out.extend_from_slice(&3600_u32.to_le_bytes());
            })
            .await;
        pass(Duration::from_millis(300)).await;
        driven.thread.answer(b"late").await;
        assert_eq!(answered(patient).await, Ok(b"late".to_vec()));
        // What one was given another has not.
        let stuck = harness.request();
        assert_eq!(driven.thread.next().await, FrameKind::Request);
        assert_eq!(answered(stuck).await, Err(FaultKind::AppTimeout));
        assert_eq!(within(driven.end).await, Ok(DriverEnd::TimedOut));
        assert_eq!(harness.app.metrics.timed_out_requests.value(), 1);
    });
}

#[test]
fn a_request_that_waits_for_io_gives_its_place_to_a_spare_slot() {
    on_a_loop(async {
        let harness = SlotHarness::new(|_| {});
        let (mut plain, mut spare) = (harness.driven_slot(1), harness.driven_slot(0));
        let waiting = harness.request();
        assert_eq!(plain.thread.next().await, FrameKind::Request);
        let second = harness.request();
        assert_eq!(harness.app.dispatch.queue_usage(clock::now()).waiting, 1);
        plain.thread.read_frame(FrameKind::IoBound).await;
        assert_eq!(spare.thread.next().await, FrameKind::Request);
        // No slot is left to replace this one.
        spare.thread.read_frame(FrameKind::IoBound).await;
        spare.thread.answer(b"second").await;
        assert_eq!(answered(second).await, Ok(b"second".to_vec()));
        plain.thread.answer(b"first").await;
        assert_eq!(answered(waiting).await, Ok(b"first".to_vec()));
        let metrics = &harness.app.metrics;
        assert_eq!(
            (
                metrics.io_bound_requests.value(),
                metrics.io_bound_without_spare_slot.value()
            ),
            (2, 1)
        );
        // One slot is free again, and it is the one that was lent.
        let third = harness.request();
        let fourth = harness.request();
        assert_eq!(spare.thread.next().await, FrameKind::Request);
        assert_eq!(harness.app.dispatch.queue_usage(clock::now()).waiting, 1);
        for answer in [third, fourth] {
            spare.thread.answer(b"").await;
            assert_eq!(answered(answer).await, Ok(Vec::new()));
        }
        assert_eq!(harness.stats.served_requests(), 4);
    });
}

#[test]
fn gc_runs_when_idle_and_new_requests_wait() {
    on_a_loop(async {
        let harness = SlotHarness::new(|about| about.gc_when_idle = true);
        let mut driven = harness.driven_slot(1);
        let mut heard = BTreeMap::new();
        for round in 0..40 {
            let answer = harness.request();
            let mut kind = driven.thread.next().await;
            if kind == FrameKind::CollectGarbage {
                heard.insert(
                    round,
                    harness.app.dispatch.queue_usage(clock::now()).waiting,
                );
                driven.thread.read_frame(FrameKind::GarbageCollected).await;
                kind = driven.thread.next().await;
            }
            assert_eq!(kind, FrameKind::Request);
            driven.thread.answer(b"").await;
            assert_eq!(answered(answer).await, Ok(Vec::new()));
        }
        // When there is another is for the cost of the first to say.
        assert_eq!(heard.pop_first(), Some((16, 1)));
        assert!(
            heard
                .iter()
                .all(|(round, waiting)| *round >= 32 && *waiting == 1)
        );
        let others = heard.len() as u64;
        assert_eq!(harness.app.metrics.gc_runs.value(), 1 + others);
        harness
            .app
            .dispatch
            .retire_slot(driven.slot, &driven.mailbox);
        assert_eq!(within(driven.end).await, Ok(DriverEnd::Retired));
    });
}

#[test]
fn a_word_that_was_not_asked_for_breaks_the_protocol() {
    on_a_loop(async {
        for kind in [FrameKind::GarbageCollected, FrameKind::IoBound] {
            let harness = SlotHarness::new(|_| {});
            let driven = harness.driven_slot(1);
            driven.thread.read_frame(kind).await;
            assert!(
                matches!(within(driven.end).await, Ok(DriverEnd::ProtocolBroken(_))),
                "{kind:?}"
            );
        }
    });
}

#[test]
fn a_stream_of_a_retired_worker_goes_on_until_it_is_cut() {
    on_a_loop(async {
        let harness = SlotHarness::new(|_| {});
        let mut driven = harness.driven_slot(1);
        let answer = harness.request();
        assert_eq!(driven.thread.next().await, FrameKind::Request);
        let begin = |out: &mut Vec<u8>| {
            encode_head(
                out,
                FLAG_STREAM,
                1,
                &[b"200 OK", b"X-Accel-Buffering", b"no"],
                b"one",
            );
        };
        driven.thread.write(begin).await;
        let response = response(answer).await.unwrap();
        let Body::Stream(mut body) = response.body else {
            panic!("a stream");
        };
        harness
            .app
            .dispatch
            .retire_slot(driven.slot, &driven.mailbox);
        driven.thread.write(|out| encode_body(out, 0, b"two")).await;
        let mut seen = Vec::new();
        while seen != b"onetwo" {
            let chunk = within(std::future::poll_fn(|cx| body.poll_chunk(cx))).await;
            seen.extend_from_slice(&chunk.expect("it goes on").unwrap());
        }
        driven.mailbox.cut_streams();
        let end = within(std::future::poll_fn(|cx| body.poll_chunk(cx))).await;
        let fault = end.expect("not a whole one").unwrap_err();
        assert!(fault.cause.contains("stream_timeout"), "{}", fault.cause);
        assert_eq!(driven.thread.next().await, FrameKind::Cancel);
        driven
            .thread
            .write(|out| encode_text(out, FrameKind::Abort, 0, "cancelled"))
            .await;
        assert_eq!(within(driven.end).await, Ok(DriverEnd::Retired));
    });
}

/// Begins a streamed answer with this header field; gives its body.
async fn stream_with(
    harness: &SlotHarness,
    driven: &mut DrivenSlot,
    field: [&[u8]; 2],
) -> Box<dyn BodyStream> {
    let answer = harness.request();
    assert_eq!(driven.thread.next().await, FrameKind::Request);
    let begin = |out: &mut Vec<u8>| {
        encode_head(
            out,
            FLAG_STREAM,
            1,
            &[b"200 OK", field[0], field[1]],
            b"one",
        );
    };
    driven.thread.write(begin).await;
    match response(answer).await.unwrap().body {
        Body::Stream(body) => body,
        other => panic!("not a stream: {other:?}"),
    }
}

#[test]
fn a_stream_of_events_may_be_silent_and_another_body_may_not() {
    on_a_loop(async {
        let limit = Duration::from_millis(100);
        let harness = SlotHarness::new(|about| about.response_timeout = limit);
        let mut driven = harness.driven_slot(1);
        for field in [
            [b"X-Accel-Buffering".as_slice(), b"no"],
            [b"Content-Type", b"text/event-stream"],
        ] {
            let mut body = stream_with(&harness, &mut driven, field).await;
            pass(limit * 3).await;
            driven
                .thread
                .write(|out| encode_body(out, FLAG_END, b"two"))
                .await;
            let mut seen = Vec::new();
            while let Some(chunk) = within(std::future::poll_fn(|cx| body.poll_chunk(cx))).await {
                seen.extend_from_slice(&chunk.unwrap());
            }
            assert_eq!(seen, b"onetwo");
        }
        // One whose client has left has as long to end as any.
        let body = stream_with(&harness, &mut driven, [b"X-Accel-Buffering", b"no"]).await;
        pass(limit * 3).await;
        drop(body);
        assert_eq!(driven.thread.next().await, FrameKind::Cancel);
        let abort = |out: &mut Vec<u8>| encode_text(out, FrameKind::Abort, 0, "cancelled");
        driven.thread.write(abort).await;
        let plain: [&[u8]; 2] = [b"Content-Type", b"text/plain"];
        let mut body = stream_with(&harness, &mut driven, plain).await;
        assert_eq!(within(driven.end).await, Ok(DriverEnd::TimedOut));
        let mut end = None;
        while let Some(chunk) = within(std::future::poll_fn(|cx| body.poll_chunk(cx))).await {
            end = chunk.err().map(|fault| fault.kind);
        }
        assert_eq!(end, Some(FaultKind::AppTimeout));
    });
}

#[test]
fn a_request_that_has_not_answered_is_not_cut() {
    on_a_loop(async {
        let harness = SlotHarness::new(|_| {});
        let mut driven = harness.driven_slot(1);
        let answer = harness.request();
        assert_eq!(driven.thread.next().await, FrameKind::Request);
        harness
            .app
            .dispatch
            .retire_slot(driven.slot, &driven.mailbox);
        driven.mailbox.cut_streams();
        driven.thread.answer(b"whole").await;
        assert_eq!(answered(answer).await, Ok(b"whole".to_vec()));
        assert_eq!(within(driven.end).await, Ok(DriverEnd::Retired));
    });
}

#[test]
fn a_collection_that_takes_longer_than_a_request_may_is_the_workers_end() {
    on_a_loop(async {
        let harness = SlotHarness::new(|about| {
            about.gc_when_idle = true;
            about.response_timeout = Duration::from_secs(1);
        });
        let mut driven = harness.driven_slot(1);
        for _ in 0..16 {
            let answer = harness.request();
            assert_eq!(driven.thread.next().await, FrameKind::Request);
            driven.thread.answer(b"").await;
            assert_eq!(answered(answer).await, Ok(Vec::new()));
        }
        assert_eq!(driven.thread.next().await, FrameKind::CollectGarbage);
        // No harm: the request that waits is for another worker.
        let waiting = harness.request();
        let end = within(driven.end).await;
        let Ok(DriverEnd::ProtocolBroken(why)) = end else {
            panic!("{end:?}");
        };
        assert_eq!(why, "no GARBAGE_COLLECTED within 1s");
        let mut other = harness.driven_slot(1);
        assert_eq!(other.thread.next().await, FrameKind::Request);
        other.thread.answer(b"served").await;
        assert_eq!(answered(waiting).await, Ok(b"served".to_vec()));
    });
}

/// Has a worker send more of a dropped stream, again and again, until its driver ends.
async fn babble(mut driven: DrivenSlot) -> DriverEnd {
    assert_eq!(driven.thread.next().await, FrameKind::Cancel);
    let mut pace = clock::PollInterval::new(Duration::from_millis(20));
    within(async {
        loop {
            tokio::select! {
                end = &mut driven.end => return end.unwrap(),
                () = pace.tick() => {
                    let mut frame = Vec::new();
                    encode_body(&mut frame, 0, b"more");
                    // The driver may have ended just now.
                    let _ = driven.thread.stream.write_all(&frame).await;
                }
            }
        }
    })
    .await
}

#[test]
fn a_discarded_response_has_a_deadline() {
    on_a_loop(async {
        let harness = SlotHarness::new(|about| about.response_timeout = Duration::from_secs(1));
        let mut driven = harness.driven_slot(1);
        let body = stream_with(&harness, &mut driven, [b"A", b"b"]).await;
        drop(body);
        assert_eq!(babble(driven).await, DriverEnd::TimedOut);
    });
}

#[test]
fn a_discarded_response_is_cut_as_any_other() {
    on_a_loop(async {
        let harness = SlotHarness::new(|_| {});
        let mut driven = harness.driven_slot(1);
        let body = stream_with(&harness, &mut driven, [b"A", b"b"]).await;
        drop(body);
        harness
            .app
            .dispatch
            .retire_slot(driven.slot, &driven.mailbox);
        driven.mailbox.cut_streams();
        assert_eq!(babble(driven).await, DriverEnd::Retired);
    });
}

#[test]
fn a_body_that_comes_is_sent_piece_by_piece_and_its_wait_has_no_clock() {
    on_a_loop(async {
        let harness = SlotHarness::new(|about| about.response_timeout = Duration::from_millis(200));
        let mut driven = harness.driven_slot(1);
        let (line, answer) = harness.request_streaming();
        assert_eq!(driven.thread.next().await, FrameKind::Request);
        driven.thread.read_frame(FrameKind::Pull).await;
        pass(Duration::from_millis(500)).await;
        line.push(BodyScript::Bytes(3));
        assert_eq!(driven.thread.input().await, (0, b"xxx".to_vec()));
        driven.thread.read_frame(FrameKind::Pull).await;
        line.push(BodyScript::End);
        assert_eq!(driven.thread.input().await, (FLAG_END, Vec::new()));
        driven.thread.answer(b"whole").await;
        assert_eq!(answered(answer).await, Ok(b"whole".to_vec()));
        // The slot is in order, and the time of a worker that does not wait is its own.
        let (_line, stuck) = harness.request_streaming();
        assert_eq!(driven.thread.next().await, FrameKind::Request);
        assert_eq!(answered(stuck).await, Err(FaultKind::AppTimeout));
        assert_eq!(within(driven.end).await, Ok(DriverEnd::TimedOut));
    });
}

#[test]
fn a_failed_body_is_cut_for_the_worker_and_reported() {
    on_a_loop(async {
        for is_asked in [true, false] {
            let harness = SlotHarness::new(|_| {});
            let mut driven = harness.driven_slot(1);
            let (line, answer) = harness.request_streaming();
            assert_eq!(driven.thread.next().await, FrameKind::Request);
            if is_asked {
                driven.thread.read_frame(FrameKind::Pull).await;
            }
            line.push(BodyScript::Bytes(3));
            if is_asked {
                assert_eq!(driven.thread.input().await, (0, b"xxx".to_vec()));
            }
            line.push(BodyScript::Fault(FaultKind::BodyTooLarge));
            assert_eq!(answered(answer).await, Err(FaultKind::BodyTooLarge));
            driven.thread.read_frame(FrameKind::Pull).await;
            assert_eq!(
                driven.thread.input().await,
                (FLAG_INPUT_ABORTED, Vec::new())
            );
            driven
                .thread
                .write(|out| encode_text(out, FrameKind::Failed, 0, "OSError"))
                .await;
            let next = harness.request();
            assert_eq!(driven.thread.next().await, FrameKind::Request);
            driven.thread.answer(b"next").await;
            assert_eq!(answered(next).await, Ok(b"next".to_vec()));
        }
    });
}

#[test]
fn a_pull_is_answered_also_when_its_response_ends_first() {
    on_a_loop(async {
        let harness = SlotHarness::new(|_| {});
        let mut driven = harness.driven_slot(1);
        let (line, answer) = harness.request_streaming();
        assert_eq!(driven.thread.next().await, FrameKind::Request);
        driven.thread.read_frame(FrameKind::Pull).await;
        driven.thread.answer(b"early").await;
        assert_eq!(answered(answer).await, Ok(b"early".to_vec()));
        let next = harness.request();
        assert_eq!(
            driven.thread.input().await,
            (FLAG_INPUT_ABORTED, Vec::new())
        );
        assert_eq!(driven.thread.next().await, FrameKind::Request);
        driven.thread.answer(b"next").await;
        assert_eq!(answered(next).await, Ok(b"next".to_vec()));
        assert!(
            line.is_body_dropped(),
            "the connection has its reading side"
        );
    });
}

#[test]
fn a_pull_for_nothing_breaks_the_protocol() {
    on_a_loop(async {
        for pulls in [1, 2] {
            let harness = SlotHarness::new(|_| {});
            let mut driven = harness.driven_slot(1);
            let (_line, answer) = match pulls {
                1 => (Arc::default(), harness.request()),
                _ => harness.request_streaming(),
            };
            assert_eq!(driven.thread.next().await, FrameKind::Request);
            for _ in 0..pulls {
                driven.thread.read_frame(FrameKind::Pull).await;
            }
            assert_eq!(answered(answer).await, Err(FaultKind::AppProtocolError));
            assert!(matches!(
                within(driven.end).await,
                Ok(DriverEnd::ProtocolBroken(_))
            ));
        }
    });
}

#[test]
fn an_unstarted_request_moves_to_another_worker_with_its_body() {
    on_a_loop(async {
        let harness = SlotHarness::new(|_| {});
        let driven = harness.driven_slot(1);
        let (line, answer) = harness.request_streaming();
        line.push(BodyScript::Bytes(3));
        // The frame is in the socket, unread, when the worker dies.
        pass(Duration::from_millis(50)).await;
        drop(driven.thread);
        assert_eq!(within(driven.end).await, Ok(DriverEnd::WorkerDied));
        let mut other = harness.driven_slot(1);
        assert_eq!(other.thread.next().await, FrameKind::Request);
        other.thread.read_frame(FrameKind::Pull).await;
        assert_eq!(other.thread.input().await, (0, b"xxx".to_vec()));
        other.thread.answer(b"whole").await;
        assert_eq!(answered(answer).await, Ok(b"whole".to_vec()));
    });
}

/// Has the application take the connection over; gives its end.
async fn hijack(thread: &FakeThread) -> Stream {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut frame = Vec::new();
    worker_encoder::encode_hijack(&mut frame);
    within(thread.stream.send_descriptor(&frame, theirs))
        .await
        .unwrap();
    ours.set_nonblocking(true).unwrap();
    Stream::new(ours.into()).unwrap()
}

/// A slot with a request whose connection the application has taken over.
struct HijackHarness {
    harness: SlotHarness,
    driven: DrivenSlot,
    answer: Answer,
    /// The application's end.
    app: Stream,
}

/// The response timeout is `timeout`, if that matters.
async fn taken(upgrades: bool, timeout: Option<Duration>) -> HijackHarness {
    let harness =
        SlotHarness::new(|about| about.response_timeout = timeout.unwrap_or(TEST_TIMEOUT));
    let mut driven = harness.driven_slot(1);
    let answer = harness.request_for(upgrades);
    assert_eq!(driven.thread.next().await, FrameKind::Request);
    let app = hijack(&driven.thread).await;
    HijackHarness {
        harness,
        driven,
        answer,
        app,
    }
}

impl HijackHarness {
    /// The application's call is over.
    async fn end_call(&mut self) {
        let end = |out: &mut Vec<u8>| encode_body(out, FLAG_END, b"");
        self.driven.thread.write(end).await;
    }

    fn retire(&self) {
        let (slot, mailbox) = (self.driven.slot, &self.driven.mailbox);
        self.harness.app.dispatch.retire_slot(slot, mailbox);
    }

    /// The application agrees to a switch of protocols; gives the response, and the client's end of
    /// the tunnel, through which `early` has come.
    async fn switch(&mut self, early: &[u8]) -> (Box<Response>, Stream) {
        within(self.app.write_all(SWITCH)).await.unwrap();
        let answer = std::mem::replace(&mut self.answer, oneshot::channel().1);
        let mut response = response(answer).await.unwrap();
        assert_eq!(response.status.code(), 101);
        let Body::Takeover(tunnel) = std::mem::replace(&mut response.body, Body::Empty) else {
            panic!("a tunnel");
        };
        let (ours, client) = net::worker_socket_pair().unwrap();
        let client = UnixStream::from(client);
        client.set_nonblocking(true).unwrap();
        let client = Stream::new(client.into()).unwrap();
        let ours = Arc::new(Stream::new(ours).unwrap());
        loops::spawn_here(tunnel.take_over(ours, early.to_vec()));
        assert_eq!(read_some(&client).await, b"hello");
        (response, client)
    }
}

/// What comes next on a stream; empty at its end.
async fn read_some(stream: &Stream) -> Vec<u8> {
    let mut buffer = vec![0; 4096];
    let read = within(std::future::poll_fn(|cx| stream.poll_read(cx, &mut buffer))).await;
    buffer.truncate(read.unwrap_or(0));
    buffer
}

const SWITCH: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: chat\r\n\
                        X-A: b\r\n\r\nhello";

#[test]
fn a_hijacked_connection_is_a_tunnel_and_leaves_the_slot_to_others() {
    on_a_loop(async {
        let mut taken = taken(true, None).await;
        let (response, client) = taken.switch(b"early").await;
        for (name, value) in [("upgrade", "chat"), ("x-a", "b"), ("connection", "Upgrade")] {
            assert_eq!(response.fields.get(name), Some(value.as_bytes()), "{name}");
        }
        assert_eq!(read_some(&taken.app).await, b"early");
        // The call is over, and the thread has the next request.
        taken.end_call().await;
        let other = taken.harness.request();
        assert_eq!(taken.driven.thread.next().await, FrameKind::Request);
        taken.driven.thread.answer(b"other").await;
        assert_eq!(answered(other).await, Ok(b"other".to_vec()));
        // The worker stays as long as the connection, and both ends go together.
        taken.retire();
        within(client.write_all(b"still there")).await.unwrap();
        assert_eq!(read_some(&taken.app).await, b"still there");
        drop(taken.app);
        assert_eq!(read_some(&client).await, b"");
        drop(client);
        assert_eq!(within(taken.driven.end).await, Ok(DriverEnd::Retired));
    });
}

#[test]
fn a_hijacked_connection_of_a_retired_worker_is_cut_when_its_time_is_over() {
    on_a_loop(async {
        for is_call_over in [false, true] {
            let mut taken = taken(true, Some(Duration::from_millis(50))).await;
            let (_, client) = taken.switch(b"").await;
            if is_call_over {
                taken.end_call().await;
            }
            taken.retire();
            // However long it is silent, response_timeout is not for it.
            let waited = clock::timeout(Duration::from_millis(200), &mut taken.driven.end).await;
            assert!(waited.is_none(), "{waited:?}");
            taken.driven.mailbox.cut_streams();
            assert_eq!(read_some(&client).await, b"");
            assert_eq!(read_some(&taken.app).await, b"");
            assert_eq!(within(taken.driven.end).await, Ok(DriverEnd::Retired));
        }
    });
}

#[test]
fn a_call_has_its_time_until_the_head_and_once_its_connection_has_ended() {
    on_a_loop(async {
        // Nothing is written, and the call hangs: its client gets a fault, then the worker is given
        // up.
        let silent = taken(true, Some(Duration::from_millis(50))).await;
        assert_eq!(answered(silent.answer).await, Err(FaultKind::AppTimeout));
        assert_eq!(within(silent.driven.end).await, Ok(DriverEnd::TimedOut));
        // The client has left, and the call does not come to its end.
        let mut left = taken(true, Some(Duration::from_millis(50))).await;
        let (_, client) = left.switch(b"").await;
        let waited = clock::timeout(Duration::from_millis(200), &mut left.driven.end).await;
        assert!(waited.is_none(), "a stream may be silent: {waited:?}");
        client.abort();
        drop(client);
        drop(left.app);
        assert_eq!(within(left.driven.end).await, Ok(DriverEnd::TimedOut));
        // It does, in its time.
        let mut ended = taken(true, None).await;
        let (_, client) = ended.switch(b"").await;
        drop(client);
        assert_eq!(read_some(&ended.app).await, b"");
        ended.end_call().await;
        let other = ended.harness.request();
        assert_eq!(ended.driven.thread.next().await, FrameKind::Request);
        ended.driven.thread.answer(b"other").await;
        assert_eq!(answered(other).await, Ok(b"other".to_vec()));
    });
}

#[test]
fn what_a_dead_worker_had_not_completed_never_looks_complete() {
    let head = "HTTP/1.1 200 OK\r\n";
    for (name, fields, is_kept, expected) in [
        ("to the end", "", false, Err(FaultKind::WorkerDied)),
        ("held by a child", "", true, Err(FaultKind::WorkerDied)),
        (
            "within its length",
            "Content-Length: 5\r\n",
            true,
            Err(FaultKind::WorkerDied),
        ),
        (
            "complete",
            "Content-Length: 4\r\n",
            true,
            Ok(b"body".to_vec()),
        ),
    ] {
        on_a_loop(async {
            let mut taken = taken(false, None).await;
            let written = format!("{head}{fields}\r\nbody");
            within(taken.app.write_all(written.as_bytes()))
                .await
                .unwrap();
            taken.end_call().await;
            // A process that the application forked has the socket still.
            let kept = is_kept.then_some(taken.app);
            drop(taken.driven.thread);
            assert_eq!(answered(taken.answer).await, expected, "{name}");
            assert_eq!(
                within(taken.driven.end).await,
                Ok(DriverEnd::WorkerDied),
                "{name}"
            );
            drop(kept);
        });
    }
}

#[test]
fn what_is_written_to_a_hijacked_connection_is_read_as_a_response() {
    let whole = |text: &str| Ok(text.as_bytes().to_vec());
    for (name, upgrades, written, expected) in [
        (
            "to the end",
            false,
            "HTTP/1.1 200 OK\r\n\r\nbody",
            whole("body"),
        ),
        (
            "by length",
            false,
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nbody",
            whole("bo"),
        ),
        (
            "in chunks, behind an interim one",
            false,
            "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
             3\r\nbod\r\n1\r\ny\r\n0\r\n\r\n",
            whole("body"),
        ),
        (
            "a refusal",
            true,
            "HTTP/1.1 400 Bad Request\r\n\r\nno",
            whole("no"),
        ),
        ("nothing", true, "", Err(FaultKind::AppProtocolError)),
        (
            "no http",
            true,
            "hello\r\n\r\n",
            Err(FaultKind::AppProtocolError),
        ),
        (
            "a switch that nobody asked for",
            false,
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: chat\r\n\r\n",
            Err(FaultKind::AppProtocolError),
        ),
        (
            "a switch to nothing",
            true,
            "HTTP/1.1 101 Switching Protocols\r\n\r\n",
            Err(FaultKind::AppProtocolError),
        ),
    ] {
        on_a_loop(async {
            let mut taken = taken(upgrades, None).await;
            let written = taken.app.write_all(written.as_bytes());
            within(written).await.unwrap();
            taken.end_call().await;
            taken.retire();
            drop(taken.app);
            assert_eq!(answered(taken.answer).await, expected, "{name}");
            assert_eq!(
                within(taken.driven.end).await,
                Ok(DriverEnd::Retired),
                "{name}"
            );
        });
    }
}

#[test]
fn an_application_that_takes_a_connection_over_and_is_silent_has_its_time() {
    on_a_loop(async {
        let mut taken = taken(true, Some(Duration::from_millis(50))).await;
        taken.end_call().await;
        assert_eq!(answered(taken.answer).await, Err(FaultKind::AppTimeout));
        assert_eq!(read_some(&taken.app).await, b"");
        // The worker is none the worse for it.
        let other = taken.harness.request();
        assert_eq!(taken.driven.thread.next().await, FrameKind::Request);
        taken.driven.thread.answer(b"").await;
        assert_eq!(answered(other).await, Ok(Vec::new()));
    });
}

#[test]
fn nothing_is_sent_behind_a_request_whose_connection_may_be_taken_over() {
    on_a_loop(async {
        let harness = SlotHarness::new(|_| {});
        let mut driven = harness.driven_slot(1);
        let first = harness.request_for(true);
        assert_eq!(driven.thread.next().await, FrameKind::Request);
        // Others wait in the queue, and go where there is room.
        let second = harness.request();
        let app = hijack(&driven.thread).await;
        within(app.write_all(SWITCH)).await.unwrap();
        assert_eq!(response(first).await.unwrap().status.code(), 101);
        assert_eq!(harness.app.dispatch.queue_usage(clock::now()).waiting, 1);
        let mut other = harness.driven_slot(1);
        assert_eq!(other.thread.next().await, FrameKind::Request);
        other.thread.answer(b"elsewhere").await;
        assert_eq!(answered(second).await, Ok(b"elsewhere".to_vec()));
    });
}

/// A body that is more than the memory and has no file, with two requests behind it that its worker
/// has: the body, their answers, the slot.
async fn unread_with_others_behind(
    harness: &SlotHarness,
) -> (Box<dyn BodyStream>, [Answer; 2], DrivenSlot) {
    let settings = BufferingSettings {
        max_response_memory: 10,
        max_response_spool: 0,
        ..BufferingSettings::clone(&harness.app.buffering_settings.load())
    };
    harness.app.buffering_settings.store(Arc::new(settings));
    while harness.app.recent_latency.max_batch() == 1 {
        harness.app.recent_latency.record(Duration::ZERO);
    }
    let answers = [harness.request(), harness.request(), harness.request()];
    let mut driven = harness.driven_slot(1);
    for _ in &answers {
        assert_eq!(driven.thread.next().await, FrameKind::Request);
    }
    let [first, second, third] = answers;
    driven
        .thread
        .write(|out| {
            encode_head(out, FLAG_STREAM, 0, &[b"200 OK"], b"one");
            encode_body(out, 0, &[0; 100]);
        })
        .await;
    let Ok(Reply::Response(response)) = within(first).await.unwrap() else {
        panic!("no response");
    };
    match response.body {
        Body::Stream(body) => (body, [second, third], driven),
        other => panic!("not a stream: {other:?}"),
    }
}

#[test]
fn a_response_that_its_client_does_not_take_is_cut_for_requests_behind_it() {
    on_a_loop(async {
        let harness = SlotHarness::new(|_| {});
        let settings = BufferingSettings {
            min_busy_rate: 1000,
            temp_dir: "/nowhere".into(),
            ..BufferingSettings::clone(&harness.app.buffering_settings.load())
        };
        settings.temp_space.set_max(0);
        harness.app.buffering_settings.store(Arc::new(settings));
        let (mut body, behind, mut driven) = unread_with_others_behind(&harness).await;
        assert_eq!(driven.thread.next().await, FrameKind::Cancel);
        assert_eq!(
            harness.app.slow_responses().len(),
            1,
            "its worker has not stopped"
        );
        let abort = |out: &mut Vec<u8>| encode_text(out, FrameKind::Abort, 0, "cancelled");
        driven.thread.write(abort).await;
        for answer in behind {
            driven.thread.answer(b"behind").await;
            assert_eq!(answered(answer).await, Ok(b"behind".to_vec()));
        }
        assert_eq!(harness.app.slow_responses().len(), 0);
        let mut end = None;
        while let Some(chunk) = within(std::future::poll_fn(|cx| body.poll_chunk(cx))).await {
            end = chunk.err().map(|fault| fault.kind);
        }
        assert_eq!(end, Some(FaultKind::ClientTooSlow));
    });
}

#[test]
fn requests_behind_a_response_that_lasts_are_answered_in_time() {
    on_a_loop(async {
        let harness = SlotHarness::new(|about| about.queue_timeout = Duration::from_millis(300));
        let (mut body, behind, driven) = unread_with_others_behind(&harness).await;
        for answer in behind {
            assert_eq!(answered(answer).await, Err(FaultKind::AppTimeout));
        }
        assert_eq!(harness.app.metrics.queue_timeout.value(), 2);
        // The response goes on, and their worker answers none of them.
        driven
            .thread
            .write(|out| encode_body(out, FLAG_END, b"two"))
            .await;
        let mut bytes = 0;
        while let Some(chunk) = within(std::future::poll_fn(|cx| body.poll_chunk(cx))).await {
            bytes += chunk.unwrap().len();
        }
        assert_eq!(bytes, 106);
        driven.thread.answer(b"for nobody").await;
        driven.thread.answer(b"for nobody").await;
        let next = harness.request();
        let mut driven = driven;
        assert_eq!(driven.thread.next().await, FrameKind::Request);
        driven.thread.answer(b"next").await;
        assert_eq!(answered(next).await, Ok(b"next".to_vec()));
    });
}

#[test]
fn a_slot_that_takes_no_more_requests_has_nobody_waiting_for_it() {
    on_a_loop(async {
        let harness = SlotHarness::new(|_| {});
        let mut driven = harness.driven_slot(1);
        let _first = harness.request();
        assert_eq!(driven.thread.next().await, FrameKind::Request);
        let _waiting = harness.request();
        let producer = SlotProducer::new(&harness.app, driven.slot);
        assert_eq!(producer.capacity_demand(clock::now()).waiting_requests, 1);
        assert_eq!(producer.waiting_clients().len(), 1);
        harness
            .app
            .dispatch
            .retire_slot(driven.slot, &driven.mailbox);
        assert_eq!(
            producer.capacity_demand(clock::now()),
            CapacityDemand::default()
        );
    });
}

#[test]
fn waiting_requests_of_a_client_can_be_refused() {
    on_a_loop(async {
        let harness = SlotHarness::new(|_| {});
        let mut driven = harness.driven_slot(1);
        let first = harness.request();
        assert_eq!(driven.thread.next().await, FrameKind::Request);
        let waiting = harness.request();
        let producer = SlotProducer::new(&harness.app, driven.slot);
        let clients: Vec<_> = producer.waiting_clients().into_iter().flatten().collect();
        producer.refuse_waiting(&clients, "too slow");
        assert_eq!(answered(waiting).await, Err(FaultKind::Overloaded));
        driven.thread.answer(b"first").await;
        assert_eq!(answered(first).await, Ok(b"first".to_vec()));
        assert_eq!(harness.app.dispatch.queue_usage(clock::now()).waiting, 0);
    });
}
