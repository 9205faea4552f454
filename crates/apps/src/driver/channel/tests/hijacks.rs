//! Connections that an application on a reactor takes over.

use std::os::fd::{AsFd, BorrowedFd};

use super::*;

/// Has the application take the connection of stream `id` over; gives its end.
async fn hijack(harness: &ChannelHarness, id: u32) -> Stream {
    send_socket(harness, id, |theirs| {
        net::send_descriptor(harness.worker.files.as_fd(), &id.to_le_bytes(), theirs).unwrap();
    })
    .await
}

/// Says HIJACK after `send` has had a socket to send.
async fn send_socket(
    harness: &ChannelHarness,
    id: u32,
    send: impl FnOnce(BorrowedFd<'_>),
) -> Stream {
    let (ours, theirs) = UnixStream::pair().unwrap();
    send(theirs.as_fd());
    harness
        .worker
        .write(|out| reactor_encoder::encode_hijack(out, id))
        .await;
    ours.set_nonblocking(true).unwrap();
    Stream::new(ours.into()).unwrap()
}

/// A request whose connection the application has taken over.
async fn taken(harness: &mut ChannelHarness) -> (PendingRequest, u32, Stream) {
    let asked = harness.get("/");
    let id = harness.worker.opened().await;
    let app = hijack(harness, id).await;
    (asked, id, app)
}

/// Whether the other end of `app` is closed.
async fn expect_closed(app: &Stream) {
    let mut buffer = [0; 16];
    let read = within(poll_fn(|cx| app.poll_read(cx, &mut buffer))).await;
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
}

const RESPONSE: &[u8] = b"HTTP/1.1 202 OK\r\nX-A: b\r\n\r\nbody";

#[test]
fn a_hijacked_connection_has_the_response_and_outlives_its_call() {
    on_a_loop(async {
        let mut harness = ChannelHarness::new();
        let (asked, id, app) = taken(&mut harness).await;
        within(app.write_all(RESPONSE)).await.unwrap();
        let response = asked.response().await;
        assert_eq!(response.status.code(), 202);
        assert_eq!(response.fields.get("x-a"), Some(&b"b"[..]));
        harness.worker.data(id, b"", true).await;
        // The reactor stays as long as the connection does.
        harness.retire();
        settle().await;
        within(app.write_all(b" and more")).await.unwrap();
        drop(app);
        assert_eq!(body(response).await, Ok(b"body and more".to_vec()));
        assert_eq!(harness.ended().await, DriverEnd::Retired);
    });
}

#[test]
fn a_hijacked_connection_of_a_retired_reactor_is_cut_when_its_time_is_over() {
    on_a_loop(async {
        for is_call_over in [false, true] {
            let mut harness = ChannelHarness::with(&HarnessOptions {
                read_timeout: Duration::from_millis(50),
                ..HarnessOptions::default()
            });
            let (asked, id, app) = taken(&mut harness).await;
            within(app.write_all(RESPONSE)).await.unwrap();
            let response = asked.response().await;
            if is_call_over {
                harness.worker.data(id, b"", true).await;
            }
            harness.retire();
            let silence = poll_fn(|cx| app.poll_peer_activity(cx));
            let early = clock::timeout(Duration::from_millis(200), silence).await;
            assert!(early.is_none(), "a stream may be silent");
            harness.mailbox.cut_streams();
            assert_eq!(body(response).await, Err(FaultKind::WorkerDied));
            expect_closed(&app).await;
            assert_eq!(harness.ended().await, DriverEnd::Retired);
        }
    });
}

#[test]
fn a_call_has_its_time_once_its_connection_has_ended() {
    on_a_loop(async {
        let mut harness = ChannelHarness::with(&HarnessOptions {
            response_timeout: Duration::from_millis(50),
            ..HarnessOptions::default()
        });
        let (asked, id, app) = taken(&mut harness).await;
        within(app.write_all(RESPONSE)).await.unwrap();
        let response = asked.response().await;
        let next = clock::timeout(Duration::from_millis(200), harness.worker.next()).await;
        assert!(next.is_none(), "a stream may be silent: {next:?}");
        drop(app);
        assert_eq!(body(response).await, Ok(b"body".to_vec()));
        harness.worker.expect(FrameKind::StreamCancel, id).await;
        harness.worker.data(id, b"", true).await;
        // Nothing is written, and the call does not come to its end.
        let (asked, id, app) = taken(&mut harness).await;
        assert_eq!(asked.fault().await, FaultKind::AppTimeout);
        expect_closed(&app).await;
        harness.worker.expect(FrameKind::StreamCancel, id).await;
        harness
            .worker
            .write(|out| reactor_encoder::encode_reset(out, 0, id, "x"))
            .await;
        // The reactor goes on with the others.
        let asked = harness.get("/");
        let id = harness.worker.opened().await;
        harness.worker.answer(id, b"other").await;
        assert_eq!(body(asked.response().await).await, Ok(b"other".to_vec()));
    });
}

#[test]
fn a_late_hijack_of_a_disconnected_client_is_closed() {
    on_a_loop(async {
        let mut harness = ChannelHarness::new();
        let asked = harness.get("/");
        let id = harness.worker.opened().await;
        asked.disconnect().await;
        harness.worker.expect(FrameKind::StreamCancel, id).await;
        let app = hijack(&harness, id).await;
        expect_closed(&app).await;
        harness.worker.data(id, b"", true).await;
        harness.retire();
        assert_eq!(harness.ended().await, DriverEnd::Retired);
    });
}

#[test]
fn what_a_dead_reactor_had_not_completed_never_looks_complete() {
    on_a_loop(async {
        let mut harness = ChannelHarness::new();
        let (asked, _, app) = taken(&mut harness).await;
        within(app.write_all(RESPONSE)).await.unwrap();
        let response = asked.response().await;
        let ChannelHarness { worker, driver, .. } = harness;
        drop((app, worker));
        assert_eq!(body(response).await, Err(FaultKind::WorkerDied));
        assert_eq!(within(driver).await.unwrap(), DriverEnd::WorkerDied);
    });
}

#[test]
fn a_hijack_that_contradicts_itself_ends_the_reactor() {
    on_a_loop(async {
        for (name, named) in [("no socket", None), ("another's", Some(1))] {
            let mut harness = ChannelHarness::new();
            let asked = harness.get("/");
            let id = harness.worker.opened().await;
            let _app = send_socket(&harness, id, |theirs| {
                if let Some(other) = named {
                    let id = (id + other).to_le_bytes();
                    net::send_descriptor(harness.worker.files.as_fd(), &id, theirs).unwrap();
                }
            })
            .await;
            assert_eq!(asked.fault().await, FaultKind::AppProtocolError, "{name}");
            let end = harness.ended().await;
            assert!(
                matches!(end, DriverEnd::ProtocolBroken(_)),
                "{name}: {end:?}"
            );
        }
        // Neither a hijack behind an answer, nor a body behind a hijack.
        let mut harness = ChannelHarness::new();
        let asked = harness.get("/");
        let id = harness.worker.opened().await;
        harness.worker.begin(id, &[b"200 OK"], b"begun").await;
        let _response = asked.response().await;
        let _app = hijack(&harness, id).await;
        assert!(matches!(
            harness.ended().await,
            DriverEnd::ProtocolBroken(_)
        ));
        let mut harness = ChannelHarness::new();
        let (_asked, id, _app) = taken(&mut harness).await;
        harness.worker.data(id, b"x", false).await;
        assert!(matches!(
            harness.ended().await,
            DriverEnd::ProtocolBroken(_)
        ));
    });
}
