//! The session of one client: pings, timeouts, and a server that stops.

use penstock_http::websocket::{compress_message, negotiate_deflate};
use penstock_runtime::loops;
use std::task::Waker;

use penstock_exchange::Takeover;

use super::websockets::{Client, frame};
use super::*;
use crate::driver::channel::websocket_pipe::{WebSocketMessage, WebSocketPipe, WebSocketPipeItem};
use crate::driver::channel::websocket_session::AcceptedWebSocket;
use crate::websocket_message_limits::{PartialMessage, WebSocketMessageLimits};

const LONG: Duration = Duration::from_secs(600);

fn begin(ping: Duration, close: Duration) -> (Arc<WebSocketPipe>, Client, TaskHandle<()>) {
    begin_of(&shared(&HarnessOptions::default()), ping, close, LONG)
}

fn begin_of(
    app: &Arc<AppShared>,
    ping: Duration,
    close: Duration,
    room: Duration,
) -> (Arc<WebSocketPipe>, Client, TaskHandle<()>) {
    let pipe = WebSocketPipe::new(Waker::noop().clone());
    let agreed =
        AcceptedWebSocket::new(Arc::clone(&pipe), None, app).with_timeouts(ping, close, room);
    let (ours, theirs) = socket_pair();
    let session = Box::new(agreed).take_over(Arc::new(ours), Vec::new());
    (pipe, Client::new(theirs), loops::spawn_with_handle(session))
}

/// What a close says; other frames before it are let go.
async fn code_of(client: &mut Client) -> u16 {
    loop {
        let (first, payload) = client.next().await.expect("a close");
        if first == 0x88 {
            return u16::from_be_bytes([payload[0], payload[1]]);
        }
    }
}

/// Sends until nothing is taken any more.
async fn fill(client: &Client) {
    let message = frame(0x82, &[7; 30_000]);
    loop {
        let mut sending = std::pin::pin!(client.stream.write_all(&message));
        for _ in 0..20 {
            if poll_once(sending.as_mut()).await.is_some() {
                break;
            }
        }
        if poll_fn(|cx| Poll::Ready(client.stream.poll_writable(cx).is_pending())).await {
            return;
        }
    }
}

fn closed(pipe: &WebSocketPipe) -> Option<u16> {
    match pipe.take_for_worker(u32::MAX) {
        WebSocketPipeItem::Close(code, _) => Some(code),
        _ => None,
    }
}

#[test]
fn a_silent_client_is_asked_and_then_dropped() {
    on_a_loop(async {
        let (pipe, mut client, session) = begin(Duration::from_millis(30), LONG);
        for _ in 0..3 {
            client.expect(0x89, b"").await;
            client.send(0x8a, b"").await;
        }
        client.expect(0x89, b"").await;
        // The next is never answered.
        while client.next().await.is_some() {}
        within(session).await.unwrap();
        assert_eq!(closed(&pipe), Some(1006));
    });
}

#[test]
fn a_close_that_is_not_answered_is_waited_for_only_so_long() {
    on_a_loop(async {
        let (pipe, mut client, session) = begin(LONG, Duration::from_millis(30));
        pipe.close_by_worker(1000, "");
        client.expect(0x88, &1000_u16.to_be_bytes()).await;
        client.send(0x81, b"talks on").await;
        while client.next().await.is_some() {}
        within(session).await.unwrap();
        assert_eq!(closed(&pipe), Some(1006));
    });
}

#[test]
fn a_client_that_takes_nothing_is_dropped() {
    on_a_loop(async {
        let (pipe, client, session) = begin(Duration::from_millis(50), LONG);
        let payload = vec![7; 4_000_000];
        let is_text = false;
        pipe.send_to_client(WebSocketMessage { is_text, payload });
        within(session).await.unwrap();
        assert_eq!(closed(&pipe), Some(1006));
        drop(client);
    });
}

#[test]
fn a_client_is_read_again_when_the_worker_has_taken_enough() {
    on_a_loop(async {
        let (pipe, client, _session) = begin(LONG, LONG);
        let total = 40;
        let sending = loops::spawn_with_handle(async move {
            for n in 0..total {
                client.send(0x82, &vec![n; 60_000]).await;
            }
            client
        });
        settle().await;
        // Bytes that are read and not taken are bounded.
        assert!(!sending.is_finished());
        for n in 0..total {
            let message = loop {
                match pipe.take_for_worker(u32::MAX) {
                    WebSocketPipeItem::Message(message) => break message,
                    WebSocketPipeItem::Nothing => loops::yield_now().await,
                    WebSocketPipeItem::Close(code, _) => panic!("closed with {code}"),
                }
            };
            assert!(message.payload == vec![n; 60_000]);
        }
        within(sending).await.unwrap();
    });
}

#[test]
fn a_stopping_server_closes_with_going_away() {
    on_a_loop(async {
        let (pipe, mut client, mut session) = begin(LONG, LONG);
        settle().await;
        session.abort();
        let (first, payload) = client.next().await.unwrap();
        assert_eq!((first, &payload[..2]), (0x88, &1001_u16.to_be_bytes()[..]));
        assert_eq!(client.next().await, None);
        assert_eq!(closed(&pipe), Some(1006));
    });
}

#[test]
fn an_application_that_takes_nothing_is_waited_for_only_so_long() {
    on_a_loop(async {
        let app = shared(&HarnessOptions::default());
        let (pipe, mut client, session) = begin_of(&app, LONG, LONG, Duration::from_millis(50));
        fill(&client).await;
        assert_eq!(code_of(&mut client).await, 1008);
        // It hears of it at once, not behind what it does not take.
        assert_eq!(closed(&pipe), Some(1008));
        drop(client);
        within(session).await.unwrap();
    });
}

#[test]
fn a_client_that_leaves_while_it_is_not_read_is_noticed() {
    on_a_loop(async {
        let app = shared(&HarnessOptions::default());
        let (pipe, client, session) = begin_of(&app, LONG, Duration::from_millis(50), LONG);
        fill(&client).await;
        drop(client);
        within(session).await.unwrap();
        assert_eq!(closed(&pipe), Some(1006));
    });
}

#[test]
fn a_message_that_does_not_come_to_its_end_is_waited_for_only_so_long() {
    on_a_loop(async {
        let app = shared(&HarnessOptions::default());
        app.message_limits.store(Arc::new(WebSocketMessageLimits {
            idle_timeout: Duration::from_millis(50),
            min_rate: 0,
            ..WebSocketMessageLimits::default()
        }));
        let (pipe, mut client, session) = begin_of(&app, LONG, LONG, LONG);
        client.send(0x01, b"begun").await;
        assert_eq!(code_of(&mut client).await, 1008);
        assert_eq!(closed(&pipe), Some(1008));
        drop(client);
        within(session).await.unwrap();
        assert_eq!(app.held_message_bytes.bytes(), 0);
    });
}

#[test]
fn a_message_that_trickles_is_not_waited_for_for_ever() {
    let limits = WebSocketMessageLimits {
        idle_timeout: Duration::from_secs(30),
        min_rate: 500,
        ..WebSocketMessageLimits::default()
    };
    let begin = clock::now();
    let mut begun = PartialMessage::new(begin, 1);
    for second in 1..60_u8 {
        let at = begin + Duration::from_secs(second.into());
        begun.record_bytes(at, 1 + usize::from(second));
    }
    assert_eq!(begun.deadline(&limits), begin + Duration::from_secs(30));
    // One that keeps the rate has its stalls only.
    begun.record_bytes(begin + Duration::from_secs(60), 500 * 60);
    assert_eq!(begun.deadline(&limits), begin + Duration::from_secs(90));
}

#[test]
fn unfinished_messages_have_a_common_bound() {
    on_a_loop(async {
        let app = shared(&HarnessOptions::default());
        let message_bytes = 20 << 20;
        app.message_limits.store(Arc::new(WebSocketMessageLimits {
            max_message_bytes: message_bytes,
            ..WebSocketMessageLimits::default()
        }));
        let mut sessions: Vec<_> = (0..6).map(|_| begin_of(&app, LONG, LONG, LONG)).collect();
        let mut refused = 0;
        for (_, client, _) in &mut sessions {
            let message = frame(0x02, &vec![0; message_bytes]);
            // Held of all of them: up to four such messages. (A buffer may be twice its content.)
            let before = app.held_message_bytes.bytes();
            let sent = within(client.stream.write_all(&message)).await;
            while sent.is_ok() && app.held_message_bytes.bytes() < before + message_bytes {
                loops::yield_now().await;
            }
            if sent.is_err() {
                assert_eq!(code_of(client).await, 1013);
                refused += 1;
            }
            assert!(app.held_message_bytes.bytes() <= 5 * message_bytes);
        }
        assert!((2..6).contains(&refused), "{refused}");
        for (_, client, session) in sessions {
            drop(client);
            within(session).await.unwrap();
        }
        assert_eq!(app.held_message_bytes.bytes(), 0);
    });
}

#[test]
fn what_a_client_compresses_unfolds_only_as_far_as_there_is_room() {
    const MESSAGES: usize = 50;
    on_a_loop(async {
        let app = shared(&HarnessOptions::default());
        let head =
            "GET / HTTP/1.1\r\nHost: a\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n";
        let deflate = negotiate_deflate(&request(head).head);
        assert!(deflate.is_some());
        let pipe = WebSocketPipe::new(Waker::noop().clone());
        let agreed = AcceptedWebSocket::new(Arc::clone(&pipe), deflate, &app)
            .with_timeouts(LONG, LONG, LONG);
        let (ours, theirs) = socket_pair();
        // Some fifty kilobytes, read at once, that are five megabytes.
        let message = vec![b'0'; 100_000];
        let folded = frame(0xc1, &compress_message(&message).unwrap());
        let early = [folded.repeat(MESSAGES), frame(0x81, b"last")].concat();
        assert!(early.len() < 64 * 1024, "{}", early.len());
        let session = Box::new(agreed).take_over(Arc::new(ours), early);
        let mut client = Client::new(theirs);
        let session = loops::spawn_with_handle(session);
        let (mut count, mut most) = (0, 0);
        'all: loop {
            let mut at_once = 0;
            loop {
                match pipe.take_for_worker(u32::MAX) {
                    WebSocketPipeItem::Message(message) if message.payload == b"last" => break 'all,
                    WebSocketPipeItem::Message(taken) => {
                        assert!(taken.is_text && taken.payload == message);
                        (count, at_once) = (count + 1, at_once + 1);
                    }
                    WebSocketPipeItem::Nothing => break,
                    WebSocketPipeItem::Close(code, why) => panic!("{code} {why}"),
                }
            }
            most = most.max(at_once);
            settle().await;
        }
        assert_eq!(
            (count, most),
            (MESSAGES, 1),
            "one is more than the pipe has room for"
        );
        // The other way, long messages are compressed and the rest is not.
        for payload in [message.clone(), b"short".to_vec()] {
            let is_text = true;
            pipe.send_to_client(WebSocketMessage { is_text, payload });
        }
        client
            .expect(0xc1, &compress_message(&message).unwrap())
            .await;
        client.expect(0x81, b"short").await;
        client.send(0x88, b"").await;
        client.expect(0x88, b"").await;
        within(session).await.unwrap();
    });
}
