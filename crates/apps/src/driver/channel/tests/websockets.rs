//! WebSockets from the request to the close, through the driver and the session.

use penstock_exchange::TakeoverFuture;
use penstock_runtime::loops;
use penstock_wire::frame::{FLAG_TEXT, FLAG_WEBSOCKET};

use super::*;

const ASKS: &str = "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
                    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
                    Sec-WebSocket-Protocol: chat.v1, other\r\n\r\n";

/// A WebSocket's client, which knows no more of the protocol than a test says.
pub(super) struct Client {
    pub(super) stream: Stream,
    read: Vec<u8>,
}

/// A client's frame.
pub(super) fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![first];
    match payload.len() {
        len @ ..=125 => out.push(0x80 | u8::try_from(len).unwrap()),
        len @ ..=0xffff => {
            out.push(0x80 | 126);
            out.extend_from_slice(&u16::try_from(len).unwrap().to_be_bytes());
        }
        len => {
            out.push(0x80 | 127);
            out.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(payload);
    out
}

impl Client {
    pub(super) fn new(stream: Stream) -> Self {
        let read = Vec::new();
        Self { stream, read }
    }

    pub(super) async fn send(&self, first: u8, payload: &[u8]) {
        within(self.stream.write_all(&frame(first, payload)))
            .await
            .unwrap();
    }

    /// The next frame's first byte and payload; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<(u8, Vec<u8>)> {
        loop {
            if let Some((head, len)) = self.head()
                && self.read.len() >= head + len
            {
                let first = self.read[0];
                let bytes: Vec<u8> = self.read.drain(..head + len).skip(head).collect();
                return Some((first, bytes));
            }
            let mut buffer = vec![0; 65536];
            let read = within(poll_fn(|cx| self.stream.poll_read(cx, &mut buffer))).await;
            match read {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.read.extend_from_slice(&buffer[..count]),
            }
        }
    }

    fn head(&self) -> Option<(usize, usize)> {
        let len = *self.read.get(1)?;
        Some(match len {
            126 => {
                let bytes = self.read.get(2..4)?;
                (
                    4,
                    usize::from(u16::from_be_bytes(bytes.try_into().unwrap())),
                )
            }
            127 => {
                let bytes = self.read.get(2..10)?;
                let len = u64::from_be_bytes(bytes.try_into().unwrap());
                (10, usize::try_from(len).unwrap())
            }
            short => (2, usize::from(short)),
        })
    }

    pub(super) async fn expect(&mut self, first: u8, payload: &[u8]) {
        let (got, bytes) = self.next().await.expect("a frame");
        assert_eq!((got, bytes.len()), (first, payload.len()));
        assert!(bytes == payload);
    }
}

/// Asks for a WebSocket, and has the worker take it.
async fn opened(harness: &mut ChannelHarness) -> (u32, Response) {
    let asked = harness.send(ASKS);
    let request = harness.worker.next().await;
    assert_eq!(
        (request.kind, request.flags),
        (FrameKind::Open, FLAG_WEBSOCKET)
    );
    let id = request.id;
    let fields = [["X-A", "b"], ["Upgrade", "evil"], ["Grip-Hold", "stream"]];
    let mut strings = vec![&b"chat.v1"[..]];
    strings.extend(fields.iter().flatten().map(|part| part.as_bytes()));
    harness
        .worker
        .write(|out| reactor_encoder::encode_accept(out, id, &strings))
        .await;
    (id, asked.response().await)
}

fn take(response: Response, early: &[u8]) -> (Client, TakeoverFuture) {
    let Body::Takeover(agreed) = response.body else {
        panic!("{response:?}");
    };
    let (ours, theirs) = socket_pair();
    (
        Client::new(theirs),
        agreed.take_over(Arc::new(ours), early.to_vec()),
    )
}

/// The same with its session running.
async fn connected(harness: &mut ChannelHarness) -> (u32, Client, TaskHandle<()>) {
    let (id, response) = opened(harness).await;
    let (client, session) = take(response, b"");
    (id, client, loops::spawn_with_handle(session))
}

fn close(code: u16, reason: &str) -> Vec<u8> {
    [&code.to_le_bytes()[..], reason.as_bytes()].concat()
}

fn close_of_client(code: u16, reason: &str) -> Vec<u8> {
    [&code.to_be_bytes()[..], reason.as_bytes()].concat()
}

#[test]
fn the_handshake_is_answered_and_messages_go_both_ways() {
    on_a_loop(async {
        let mut harness = ChannelHarness::new();
        let (id, response) = opened(&mut harness).await;
        assert_eq!(response.status.code(), 101);
        let field = |name: &str| response.fields.get(name).map(<[u8]>::to_vec);
        let accept = field("sec-websocket-accept");
        assert_eq!(
            accept.as_deref(),
            Some(&b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="[..])
        );
        assert_eq!(
            field("sec-websocket-protocol").as_deref(),
            Some(&b"chat.v1"[..])
        );
        assert_eq!(field("upgrade").as_deref(), Some(&b"websocket"[..]));
        assert_eq!(field("x-a").as_deref(), Some(&b"b"[..]));
        // What came behind the request is the first message.
        let (mut client, session) = take(response, &frame(0x81, "früh".as_bytes()));
        let session = loops::spawn_with_handle(session);
        let early = harness.worker.next().await;
        assert_eq!(
            (early.kind, early.flags, early.id),
            (FrameKind::Message, FLAG_TEXT, id)
        );
        assert_eq!(early.rest, "früh".as_bytes());
        harness
            .worker
            .write(|out| {
                reactor_encoder::encode_message(out, FLAG_TEXT, id, b"one");
                reactor_encoder::encode_message(out, 0, id, &[0, 255]);
                reactor_encoder::encode_message(out, 0, id, &vec![3; 100_000]);
            })
            .await;
        client.expect(0x81, b"one").await;
        client.expect(0x82, &[0, 255]).await;
        client.expect(0x82, &vec![3; 100_000]).await;
        client.send(0x02, b"in ").await;
        client.send(0x89, b"are you there").await;
        client.send(0x80, b"parts").await;
        client.expect(0x8a, b"are you there").await;
        loop {
            let frame = harness.worker.next().await;
            match frame.kind {
                // What the client has taken.
                FrameKind::Window => {}
                kind => {
                    assert_eq!((kind, frame.flags), (FrameKind::Message, 0));
                    break assert_eq!(frame.rest, b"in parts");
                }
            }
        }
        client.send(0x88, &close_of_client(1000, "bye")).await;
        client.expect(0x88, &1000_u16.to_be_bytes()).await;
        assert_eq!(client.next().await, None);
        loop {
            let frame = harness.worker.next().await;
            match frame.kind {
                FrameKind::Window => {}
                kind => {
                    assert_eq!((kind, frame.rest), (FrameKind::Close, close(1000, "bye")));
                    break;
                }
            }
        }
        within(session).await.unwrap();
        // The worker may have said more before it knew.
        harness
            .worker
            .write(|out| {
                reactor_encoder::encode_message(out, 0, id, b"late");
                reactor_encoder::encode_window(out, id, 5);
                reactor_encoder::encode_close(out, id, 1000, "");
            })
            .await;
        harness.retire();
        assert_eq!(harness.ended().await, DriverEnd::Retired);
    });
}

#[test]
fn compression_is_agreed_where_client_and_application_want_it() {
    on_a_loop(async {
        let offer = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n\r\n";
        let agreed = "permessage-deflate; server_no_context_takeover; client_no_context_takeover";
        for (wanted, asks, expected) in [
            (
                true,
                ASKS.replace("\r\n\r\n", &format!("\r\n{offer}")),
                Some(agreed),
            ),
            (
                false,
                ASKS.replace("\r\n\r\n", &format!("\r\n{offer}")),
                None,
            ),
            (true, ASKS.to_owned(), None),
        ] {
            let mut harness = ChannelHarness::with(&HarnessOptions {
                compresses: wanted,
                ..HarnessOptions::default()
            });
            let asked = harness.send(&asks);
            let id = harness.worker.opened().await;
            let own = ["", "Sec-WebSocket-Extensions", "mystery"].map(str::as_bytes);
            harness
                .worker
                .write(|out| reactor_encoder::encode_accept(out, id, &own))
                .await;
            let response = asked.response().await;
            let field = response.fields.get("sec-websocket-extensions");
            assert_eq!(field, expected.map(str::as_bytes), "{wanted} {asks}");
        }
    });
}

#[test]
fn the_application_refuses_closes_or_fails() {
    on_a_loop(async {
        let mut harness = ChannelHarness::new();
        let asked = harness.send(ASKS);
        let id = harness.worker.opened().await;
        harness
            .worker
            .write(|out| reactor_encoder::encode_response(out, FLAG_END, id, 0, &[b"403"], b"no"))
            .await;
        assert_eq!(asked.response().await.status.code(), 403);

        let asked = harness.send(ASKS);
        let id = harness.worker.opened().await;
        harness.worker.reset(id).await;
        assert_eq!(asked.fault().await, FaultKind::AppRaised);

        let asked = harness.send(ASKS);
        let id = harness.worker.opened().await;
        harness
            .worker
            .write(|out| reactor_encoder::encode_accept(out, id, &[b"two words"]))
            .await;
        assert_eq!(asked.fault().await, FaultKind::AppProtocolError);
        harness.worker.expect(FrameKind::Close, id).await;
        harness.worker.close(id).await;

        let (id, mut client, session) = connected(&mut harness).await;
        harness
            .worker
            .write(|out| {
                reactor_encoder::encode_message(out, FLAG_TEXT, id, b"last");
                reactor_encoder::encode_close(out, id, 4001, "done");
            })
            .await;
        client.expect(0x81, b"last").await;
        client.expect(0x88, &close_of_client(4001, "done")).await;
        client.send(0x88, &close_of_client(4001, "")).await;
        assert_eq!(client.next().await, None);
        within(session).await.unwrap();

        let (id, mut client, _) = connected(&mut harness).await;
        harness.worker.reset(id).await;
        client.expect(0x88, &1011_u16.to_be_bytes()).await;

        let (id, mut client, _) = connected(&mut harness).await;
        harness
            .worker
            .write(|out| reactor_encoder::encode_message(out, FLAG_TEXT, id, b"\xff"))
            .await;
        client.expect(0x88, &1011_u16.to_be_bytes()).await;
        let frame = harness.worker.expect(FrameKind::Close, id).await;
        assert_eq!(frame[..2], 1007_u16.to_le_bytes());
        assert_eq!(
            harness
                .shared
                .dispatch
                .queue_usage(clock::now())
                .in_progress,
            1
        );
        harness.worker.close(id).await;
        settle().await;
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
fn what_breaks_the_rules_closes_at_once_with_its_code_on_both_sides() {
    let cases: [(u16, Vec<u8>); 7] = [
        (1002, frame(0xc1, b"x")),
        (1007, frame(0x81, b"\xff")),
        // Closes that are none: half a code, codes that must not be sent, a reason that is no text.
        (1002, frame(0x88, b"\x03")),
        (1002, frame(0x88, &close_of_client(1005, ""))),
        (1002, frame(0x88, &close_of_client(0, "x"))),
        (1007, frame(0x88, b"\x03\xe8\xff")),
        (
            1009,
            [&[0x82, 0xff, 0, 0, 0, 0, 1, 0, 0, 1][..], &[0; 4]].concat(),
        ),
    ];
    for (code, bytes) in cases {
        on_a_loop(async {
            let mut harness = ChannelHarness::new();
            let (_, mut client, session) = connected(&mut harness).await;
            // More is on its way: it neither delays the end nor resets the connection.
            let bytes = [bytes, frame(0x82, &[0; 5000])].concat();
            within(client.stream.write_all(&bytes)).await.unwrap();
            let ended = clock::timeout(PATIENCE_OF_CLIENT, async {
                let (first, payload) = client.next().await.unwrap();
                assert_eq!((first, &payload[..2]), (0x88, &code.to_be_bytes()[..]));
                client.next().await
            });
            // It need not answer with a close of its own.
            assert_eq!(ended.await, Some(None), "{code}");
            loop {
                let frame = harness.worker.next().await;
                if frame.kind != FrameKind::Message {
                    assert_eq!(frame.kind, FrameKind::Close);
                    break assert_eq!(frame.rest[..2], code.to_le_bytes());
                }
            }
            drop(client);
            within(session).await.unwrap();
        });
    }
}

/// Well below the time that a client's close is waited for.
const PATIENCE_OF_CLIENT: Duration = Duration::from_secs(2);

#[test]
fn windows_stop_each_side_and_long_messages_wait_for_a_whole_one() {
    on_a_loop(async {
        let mut harness = ChannelHarness::new();
        let (id, client, _) = connected(&mut harness).await;
        let window = channel::WINDOW_BYTES as usize;
        // To the worker: two halves of a window, then nothing until it gives some back.
        let half = vec![1; window / 2 - 64];
        let long = vec![2; window + 5];
        let sending = loops::spawn_with_handle(async move {
            for payload in [&half, &half, &long] {
                client.send(0x82, payload).await;
            }
            client
        });
        for _ in 0..2 {
            let payload = harness.worker.expect(FrameKind::Message, id).await;
            assert_eq!(payload.len(), window / 2 - 64);
        }
        harness
            .worker
            .write(|out| reactor_encoder::encode_window(out, id, channel::WINDOW_BYTES - 1))
            .await;
        settle().await;
        let none = poll_once(std::pin::pin!(harness.worker.try_next())).await;
        assert!(none.is_none(), "{none:?}");
        harness
            .worker
            .write(|out| reactor_encoder::encode_window(out, id, 1))
            .await;
        let payload = harness.worker.expect(FrameKind::Message, id).await;
        assert_eq!(payload.len(), window + 5);
        let mut client = within(sending).await.unwrap();
        // To the client: what it has taken comes back, also when it is little.
        harness
            .worker
            .write(|out| reactor_encoder::encode_message(out, 0, id, b"little"))
            .await;
        client.expect(0x82, b"little").await;
        let back = harness.worker.expect(FrameKind::Window, id).await;
        assert_eq!(back, 70_u32.to_le_bytes());
        let long = vec![4; window + 1];
        harness
            .worker
            .write(|out| reactor_encoder::encode_message(out, 0, id, &long))
            .await;
        client.expect(0x82, &long).await;
        let back = harness.worker.expect(FrameKind::Window, id).await;
        assert_eq!(back, channel::WINDOW_BYTES.to_le_bytes());
        // More than there is room for ends the worker.
        harness
            .worker
            .write(|out| {
                reactor_encoder::encode_message(out, 0, id, &long);
                reactor_encoder::encode_message(out, 0, id, b"x");
            })
            .await;
        client.expect(0x82, &long).await;
        let end = harness.ended().await;
        assert!(
            matches!(&end, DriverEnd::ProtocolBroken(why) if why.contains("window")),
            "{end:?}"
        );
        client
            .expect(
                0x88,
                &close_of_client(1011, "the application's worker ended"),
            )
            .await;
    });
}

#[test]
fn vanished_clients_and_workers_close_the_other_side() {
    on_a_loop(async {
        let mut harness = ChannelHarness::new();
        // Before the head was out.
        let (id, response) = opened(&mut harness).await;
        drop(response);
        assert_eq!(
            harness.worker.expect(FrameKind::Close, id).await,
            close(1006, "")
        );
        // Before the application took it, when it does so all the same.
        let asked = harness.send(ASKS);
        let id = harness.worker.opened().await;
        asked.disconnect().await;
        harness.worker.expect(FrameKind::StreamCancel, id).await;
        harness
            .worker
            .write(|out| reactor_encoder::encode_accept(out, id, &[b""]))
            .await;
        assert_eq!(
            harness.worker.expect(FrameKind::Close, id).await,
            close(1006, "")
        );
        // In the middle, behind what it said.
        let (id, client, session) = connected(&mut harness).await;
        client.send(0x81, b"last").await;
        drop(client);
        assert_eq!(harness.worker.expect(FrameKind::Message, id).await, b"last");
        assert_eq!(
            harness.worker.expect(FrameKind::Close, id).await,
            close(1006, "")
        );
        within(session).await.unwrap();
        // The worker.
        let (_, mut client, _) = connected(&mut harness).await;
        drop(harness.worker);
        client
            .expect(
                0x88,
                &close_of_client(1011, "the application's worker ended"),
            )
            .await;
        assert_eq!(within(harness.driver).await.unwrap(), DriverEnd::WorkerDied);
    });
}

#[test]
fn a_websocket_of_a_worker_that_goes_is_cut_when_its_time_is_over() {
    on_a_loop(async {
        let mut harness = ChannelHarness::new();
        let (id, mut client, _) = connected(&mut harness).await;
        harness.retire();
        client.send(0x81, b"goes on").await;
        assert_eq!(
            harness.worker.expect(FrameKind::Message, id).await,
            b"goes on"
        );
        harness.mailbox.cut_streams();
        let frame = harness.worker.expect(FrameKind::Close, id).await;
        assert_eq!(frame[..2], 1012_u16.to_le_bytes());
        let (first, payload) = client.next().await.unwrap();
        assert_eq!((first, &payload[..2]), (0x88, &1012_u16.to_be_bytes()[..]));
        harness.worker.close(id).await;
        assert_eq!(harness.ended().await, DriverEnd::Retired);
    });
}

#[test]
fn messages_without_a_byte_cost_something_both_ways() {
    on_a_loop(async {
        let mut harness = ChannelHarness::new();
        let (id, client, _) = connected(&mut harness).await;
        let fit = channel::WINDOW_BYTES as usize / channel::MESSAGE_OVERHEAD;
        // What the worker may be sent is full of them.
        let empties = frame(0x82, b"").repeat(fit + 10);
        within(client.stream.write_all(&empties)).await.unwrap();
        for _ in 0..fit {
            assert_eq!(harness.worker.expect(FrameKind::Message, id).await, b"");
        }
        settle().await;
        let none = poll_once(std::pin::pin!(harness.worker.try_next())).await;
        assert!(none.is_none(), "{none:?}");
        let size = u32::try_from(channel::MESSAGE_OVERHEAD).unwrap();
        harness
            .worker
            .write(|out| reactor_encoder::encode_window(out, id, 2 * size))
            .await;
        for _ in 0..2 {
            assert_eq!(harness.worker.expect(FrameKind::Message, id).await, b"");
        }
        // The worker that does not count them is ended. (Some may have reached the client
        // meanwhile.)
        let mut out = Vec::new();
        for _ in 0..50 * fit {
            reactor_encoder::encode_message(&mut out, 0, id, b"");
        }
        // It may be ended before it has said all.
        let _ = within(harness.worker.channel.write_all(&out)).await;
        let end = harness.ended().await;
        assert!(
            matches!(&end, DriverEnd::ProtocolBroken(why) if why.contains("window")),
            "{end:?}"
        );
    });
}

#[test]
fn a_subprotocol_that_was_not_offered_is_refused() {
    on_a_loop(async {
        let mut harness = ChannelHarness::new();
        let asked = harness.send(ASKS);
        let id = harness.worker.opened().await;
        harness
            .worker
            .write(|out| reactor_encoder::encode_accept(out, id, &[b"chat.v2"]))
            .await;
        let fault = asked.answer().await.expect_err("refused");
        assert_eq!(fault.kind, FaultKind::AppProtocolError);
        assert!(fault.cause.contains("chat.v2"), "{}", fault.cause);
        harness.worker.expect(FrameKind::Close, id).await;
        harness.worker.close(id).await;
    });
}

#[test]
fn an_application_that_reads_nothing_still_gets_the_close() {
    on_a_loop(async {
        let terms = HarnessOptions {
            response_timeout: Duration::from_millis(30),
            ..HarnessOptions::default()
        };
        let mut harness = ChannelHarness::with(&terms);
        let (id, mut client, session) = connected(&mut harness).await;
        let long = vec![1; channel::WINDOW_BYTES as usize];
        client.send(0x82, &long).await;
        client.send(0x82, b"more").await;
        client.send(0x88, &close_of_client(1000, "")).await;
        client.expect(0x88, &1000_u16.to_be_bytes()).await;
        assert_eq!(client.next().await, None);
        within(session).await.unwrap();
        harness.worker.expect(FrameKind::Message, id).await;
        // No window comes back: the rest is dropped in time.
        assert_eq!(
            harness.worker.expect(FrameKind::Close, id).await,
            close(1000, "")
        );
        harness.worker.close(id).await;
        settle().await;
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
