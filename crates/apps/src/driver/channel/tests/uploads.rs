//! Request bodies that come while the worker has the request.

use super::*;
use crate::testing::{BodyScript, ScriptedBody, ScriptedConnection};
use crate::upload::Upload;

const HEAD: &str = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";

impl ChannelHarness {
    /// Asks with a body of which the first bytes have come.
    fn upload(&self) -> (Arc<ScriptedConnection>, PendingRequest) {
        let (line, body) = ScriptedBody::new();
        let request = request(HEAD);
        let rest = Upload::spawn(Box::new(body), Arc::clone(&request.client_state));
        let content = RequestContent::Streaming {
            first: b"first".to_vec(),
            length: None,
            rest,
        };
        (line, self.request(request, content))
    }
}

impl FakeWorker {
    async fn pull(&self, id: u32) {
        self.write(|out| reactor_encoder::encode_pull(out, id))
            .await;
    }

    /// The next frame, which is an INPUT of this stream: its flags and bytes.
    async fn input(&mut self, id: u32) -> (u8, Vec<u8>) {
        let frame = self.next().await;
        assert_eq!(
            (frame.kind, frame.id),
            (FrameKind::StreamInput, id),
            "{frame:?}"
        );
        (frame.flags, frame.rest)
    }
}

#[test]
fn a_body_is_sent_as_it_is_pulled_and_the_answer_may_begin_before_its_end() {
    on_a_loop(async {
        let mut harness = ChannelHarness::new();
        let (line, asked) = harness.upload();
        let frame = harness.worker.next().await;
        assert!(frame.rest.ends_with(b"first"), "{frame:?}");
        let id = frame.id;
        line.push(BodyScript::Bytes(3));
        harness.worker.pull(id).await;
        assert_eq!(harness.worker.input(id).await, (0, b"xxx".to_vec()));
        harness.worker.begin(id, &[b"200 OK"], b"so far ").await;
        let response = asked.response().await;
        harness.worker.pull(id).await;
        line.push(BodyScript::Bytes(1));
        line.push(BodyScript::End);
        assert_eq!(harness.worker.input(id).await, (FLAG_END, b"x".to_vec()));
        assert!(line.is_body_dropped());
        harness.worker.data(id, b"and the rest", true).await;
        assert_eq!(body(response).await, Ok(b"so far and the rest".to_vec()));
        harness.retire();
        assert_eq!(harness.ended().await, DriverEnd::Retired);
    });
}

#[test]
fn a_client_that_leaves_within_its_body_is_gone_for_the_worker() {
    on_a_loop(async {
        for is_pulled in [false, true] {
            let mut harness = ChannelHarness::new();
            let (line, asked) = harness.upload();
            let id = harness.worker.opened().await;
            if is_pulled {
                harness.worker.pull(id).await;
                settle().await;
            }
            line.push(BodyScript::Fault(FaultKind::ClientDisconnected));
            harness.worker.expect(FrameKind::StreamCancel, id).await;
            assert_eq!(asked.fault().await, FaultKind::ClientDisconnected);
            // A PULL that crosses is no breach.
            if !is_pulled {
                harness.worker.pull(id).await;
            }
            harness.worker.reset(id).await;
            harness.retire();
            assert_eq!(harness.ended().await, DriverEnd::Retired);
        }
    });
}

#[test]
fn a_wait_for_the_client_has_no_clock_and_one_for_the_worker_has() {
    on_a_loop(async {
        let mut harness = ChannelHarness::with(&HarnessOptions {
            response_timeout: Duration::from_millis(150),
            ..HarnessOptions::default()
        });
        let (line, asked) = harness.upload();
        let id = harness.worker.opened().await;
        harness.worker.pull(id).await;
        let nothing = std::future::pending::<()>();
        assert_eq!(
            clock::timeout(Duration::from_millis(500), nothing).await,
            None
        );
        line.push(BodyScript::Bytes(2));
        assert_eq!(harness.worker.input(id).await.1, b"xx");
        // It neither answers nor reads on.
        harness.worker.expect(FrameKind::StreamCancel, id).await;
        assert_eq!(asked.fault().await, FaultKind::AppTimeout);
        settle().await;
        assert!(line.is_body_dropped());
        harness.worker.reset(id).await;
        harness.retire();
        assert_eq!(harness.ended().await, DriverEnd::Retired);
    });
}

#[test]
fn an_answer_that_is_whole_gives_the_connection_back_at_once() {
    on_a_loop(async {
        let mut harness = ChannelHarness::new();
        let (line, asked) = harness.upload();
        let id = harness.worker.opened().await;
        harness.worker.pull(id).await;
        harness.worker.answer(id, b"early").await;
        let response = asked.response().await;
        assert!(line.is_body_dropped(), "before it is answered");
        assert_eq!(body(response).await, Ok(b"early".to_vec()));
        harness.retire();
        assert_eq!(harness.ended().await, DriverEnd::Retired);
    });
}

#[test]
fn a_pull_for_nothing_ends_the_worker() {
    on_a_loop(async {
        for pulls in [1, 2] {
            let mut harness = ChannelHarness::new();
            let (_line, asked) = match pulls {
                1 => (Arc::default(), harness.get("/")),
                _ => harness.upload(),
            };
            let id = harness.worker.opened().await;
            for _ in 0..pulls {
                harness.worker.pull(id).await;
            }
            assert_eq!(asked.fault().await, FaultKind::AppProtocolError);
            assert!(matches!(
                harness.ended().await,
                DriverEnd::ProtocolBroken(_)
            ));
        }
    });
}

#[test]
fn what_was_not_sent_goes_to_another_worker_with_its_body() {
    on_a_loop(async {
        let first = ChannelHarness::new();
        let (line, mut asked) = first.upload();
        line.push(BodyScript::Bytes(3));
        let ChannelHarness { worker, driver, .. } = first;
        // It never reads, and its socket says so.
        settle().await;
        drop(worker);
        assert_eq!(within(driver).await.unwrap(), DriverEnd::WorkerDied);
        let again = Pin::new(&mut asked.call);
        assert!(
            poll_once(again).await.is_none(),
            "it waits in the queue again"
        );
        assert!(!line.is_body_dropped());
    });
}

#[test]
fn a_body_that_comes_is_cut_when_the_time_of_a_replaced_worker_is_over() {
    on_a_loop(async {
        let mut harness = ChannelHarness::new();
        let (_line, asked) = harness.upload();
        let id = harness.worker.opened().await;
        harness.worker.pull(id).await;
        harness.retire();
        settle().await;
        harness.mailbox.cut_streams();
        harness.worker.expect(FrameKind::StreamCancel, id).await;
        assert_eq!(asked.fault().await, FaultKind::WorkerDied);
        harness.worker.reset(id).await;
        assert_eq!(harness.ended().await, DriverEnd::Retired);
    });
}
