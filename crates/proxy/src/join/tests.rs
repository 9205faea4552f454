//! Both sides over real connections, on one loop, over TLS where a test does not say otherwise.

mod sessions;

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use penstock_config as config;
use penstock_exchange::{HandlerProgress, ListenerInfo, Reply, TunnelHandler};
use penstock_runtime::blocking::Pool;
use penstock_runtime::{Listener, LoopHandle, Stream, clock, loops};
use penstock_sys::net;
use penstock_tls::{HandshakeError, ServerSessions, bound_sessions};
use penstock_wire::join::{self as words, JoinPurpose, JoinSecret, JoinSide};
use rustls::pki_types::UnixTime;

use super::line_stream::LineStream;
use super::session::FrontEndTls;
use super::*;
use crate::connection::{ConnectionSetup, ResolvedAddress, UpstreamConnectionInner};
use crate::maintenance::tests::{claim, release, run_on_loop, server_states, start, wait_until};
use crate::testing::request;
use crate::{BufferingMode, ServerChange, Upstream};

const KEY: &str = "J8nC2vQm0dT5yWkX1bLrZ7fHsE4uPaG9oIeRjNqMtVw=";

/// An upstream of that name that may be joined, without servers.
fn joined(name: &str) -> Arc<Upstream> {
    start(config::Upstream {
        joinable: true,
        // No timeout should end these tests.
        connect_timeout: Duration::from_secs(60),
        ..config::Upstream::new(name, config::Protocol::Http, Vec::new())
    })
}

fn configure(front: &JoinListener, key: &str, upstreams: &[&Arc<Upstream>]) {
    configure_with_tls(front, (key, true), upstreams);
}

fn configure_with_tls(
    front: &JoinListener,
    (key, tls): (&str, bool),
    upstreams: &[&Arc<Upstream>],
) {
    let join = config::JoinEndpoint {
        listen: config::ListenAddr::loopback(0),
        key: key.into(),
        tls,
    };
    front.configure(Some(&join), upstreams.iter().copied());
}

fn sessions() -> Arc<ServerSessions> {
    bound_sessions(UnixTime::now()).unwrap()
}

/// Starts a front end's listener.
fn listen(front: &JoinListener) -> SocketAddr {
    listen_for(&Arc::new(ArcSwap::from_pointee(front.clone())))
}

/// The same for a front end that another may replace.
fn listen_for(front: &Arc<ArcSwap<JoinListener>>) -> SocketAddr {
    listen_with(front, Some(sessions()))
}

/// The same without TLS where there are no `sessions`. With them, it does what `edge` does.
fn listen_with(
    front: &Arc<ArcSwap<JoinListener>>,
    sessions: Option<Arc<ServerSessions>>,
) -> SocketAddr {
    let socket = net::listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = net::local_address(&socket).unwrap();
    let (listener, front) = (Listener::new(socket).unwrap(), Arc::clone(front));
    let info = Arc::new(ListenerInfo {
        scheme: "http",
        address: Some(address),
        name: "join".to_owned(),
        proxy_protocol: false,
        has_tls: sessions.is_some(),
    });
    loops::spawn_here(async move {
        loop {
            let (socket, peer) = poll_fn(|cx| listener.poll_accept(cx)).await.unwrap();
            let stream = Stream::new(socket).unwrap();
            let (front, info) = (front.load_full(), Arc::clone(&info));
            let sessions = sessions.clone();
            loops::spawn_here(async move {
                let mut early = Vec::new();
                let Some(sessions) = sessions else {
                    return front.serve(Arc::new(stream), peer, info, early).await;
                };
                match penstock_tls::accept(&stream, &sessions, &mut early).await {
                    Ok(session) => {
                        let stream = Arc::new(session.over(stream));
                        front.serve(stream, peer, info, early).await;
                    }
                    Err(HandshakeError::PlainHttp) => {
                        assert!(front.refuses_plaintext());
                        front.serve(Arc::new(stream), peer, info, early).await;
                    }
                    Err(_) => {}
                }
            });
        }
    });
    address
}

/// A joiner, with the number of its request connections; they echo what they read.
fn joiner(address: SocketAddr, upstream: &str, key: &str) -> (Joiner, Arc<AtomicUsize>) {
    joiner_with_tls(address, upstream, (key, true))
}

fn joiner_with_tls(
    address: SocketAddr,
    upstream: &str,
    (key, tls): (&str, bool),
) -> (Joiner, Arc<AtomicUsize>) {
    let brought = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&brought);
    let serve: ServeConnectionFn = Arc::new(move |stream, _, early| {
        counted.fetch_add(1, Ordering::Relaxed);
        loops::spawn_here(async move {
            let mut lines = LineStream::new(stream, early);
            while let Ok(line) = lines.next_line().await {
                if lines.send(&format!("{line}!\n")).await.is_err() {
                    return;
                }
            }
        });
    });
    let setup = JoinerSetup {
        config: config::JoinTarget {
            address: address.to_string(),
            upstream: upstream.to_owned(),
            key: key.into(),
            key_file: None,
            tls,
        },
        label: "web 2".to_owned(),
        max_active: 3,
        loops: vec![LoopHandle::current().unwrap()],
        lookup_pool: Pool::new("names", 1, 1),
        serve,
    };
    (Joiner::start(setup).unwrap(), brought)
}

/// Sends a request that must not be repeated; returns its status.
fn post(upstream: &Upstream) -> impl Future<Output = u16> + Send + use<> {
    let buffering = BufferingMode {
        request: true,
        response: true,
    };
    let request = request("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    let handling = upstream.handler(buffering).handle(request);
    async {
        let HandlerProgress::Pending(work) = handling else {
            panic!("it has to be waited for");
        };
        match work.await {
            Ok(Reply::Response(response)) => response.status.code(),
            other => panic!("it is answered: {other:?}"),
        }
    }
}

const POST_LINE: &str = "POST /a HTTP/1.1\r";

/// The next line that is not a heartbeat.
async fn next_line_but_heartbeats(lines: &mut LineStream) -> String {
    loop {
        let line = clock::timeout(Duration::from_secs(10), lines.next_line()).await;
        let line = line.expect("in time").unwrap();
        if line != "beat" {
            return line;
        }
    }
}

/// Sends a line on a connection and returns the reply.
async fn send_line(stream: Stream, line: &str) -> String {
    let mut lines = LineStream::new(stream, Vec::new());
    lines.send(&format!("{line}\n")).await.unwrap();
    clock::timeout(Duration::from_secs(10), lines.next_line())
        .await
        .expect("in time")
        .unwrap()
}

#[test]
fn a_joined_server_gets_requests_until_it_leaves() {
    run_on_loop(async {
        let (front, upstream) = (JoinListener::default(), joined("shop"));
        configure(&front, KEY, &[&upstream]);
        let (joiner, brought) = joiner(listen(&front), "shop", KEY);
        wait_until("it is in", || server_states(&upstream).len() == 1).await;
        assert_eq!(
            server_states(&upstream),
            [("web-2 (joined)".to_owned(), "up")],
            "as it is called"
        );
        let first = &upstream.snapshot().servers[0];
        assert_eq!(first.max_active, Some(3));
        wait_until("the first are there", || {
            brought.load(Ordering::Relaxed) == 3
        })
        .await;
        // More than were opened at first: each waiting task requests one.
        let mut open = Vec::new();
        for number in 0..5 {
            let slot = claim(&upstream);
            let deadline = clock::now() + Duration::from_secs(10);
            let connection =
                UpstreamConnectionInner::open(&slot.server, &ConnectionSetup::default(), deadline)
                    .await
                    .unwrap();
            release(&upstream, &slot);
            open.push((number, connection));
        }
        wait_until("each of them was asked for", || {
            brought.load(Ordering::Relaxed) == 5
        })
        .await;
        for (number, connection) in open {
            let served = connection
                .count_guard
                .server
                .open_connections
                .load(Ordering::Relaxed);
            assert!(served > 0);
            // Only its socket: the connection itself is counted.
            let stream = connection.move_to_this_loop().unwrap();
            let text = format!("request {number}");
            stream
                .stream
                .write_all(format!("{text}\n").as_bytes())
                .await
                .unwrap();
            let mut buffer = [0; 64];
            let read = poll_fn(|cx| stream.stream.poll_read(cx, &mut buffer));
            let count = clock::timeout(Duration::from_secs(10), read)
                .await
                .unwrap()
                .unwrap();
            assert_eq!(&buffer[..count], format!("{text}!\n").as_bytes());
        }
        joiner.set_max_active(7);
        wait_until("it may have more", || {
            upstream.snapshot().servers[0].max_active == Some(7)
        })
        .await;
        assert_eq!(joiner.state(), JoinerState::Joined);
        let slot = claim(&upstream);
        joiner.leave();
        wait_until("it leaves", || server_states(&upstream)[0].1 == "leaving").await;
        // A slot granted before is served.
        let stream = slot.server.address.connect().await.unwrap();
        assert_eq!(send_line(stream, "last").await, "last!");
        let soon = clock::now() + Duration::from_millis(50);
        assert!(
            clock::timeout_at(soon, joiner.wait_until_drained())
                .await
                .is_none(),
            "it has one"
        );
        release(&upstream, &slot);
        assert_eq!(server_states(&upstream), []);
        let left = clock::timeout(Duration::from_secs(10), joiner.wait_until_drained());
        left.await.expect("nothing comes any more");
    });
}

#[test]
fn a_lost_member_gets_no_requests_and_its_waiters_fail() {
    run_on_loop(async {
        let (front, upstream) = (JoinListener::default(), joined("shop"));
        configure(&front, KEY, &[&upstream]);
        let address = listen(&front);
        let (lines, _) = handshake_manually(address, KEY, control_purpose("shop"))
            .await
            .unwrap();
        wait_until("it is in", || server_states(&upstream).len() == 1).await;
        let slot = claim(&upstream);
        let waits = slot.server.address.connect();
        // The connection is requested and does not arrive.
        let goes = async { drop(lines) };
        let (failed, ()) = tokio::join!(waits, goes);
        assert_eq!(failed.unwrap_err().to_string(), "the server has left");
        release(&upstream, &slot);
        wait_until("it is gone", || server_states(&upstream).is_empty()).await;
    });
}

#[test]
fn joining_needs_the_key_the_upstream_and_the_member_id() {
    run_on_loop(async {
        let (front, upstream) = (JoinListener::default(), joined("shop"));
        configure(&front, KEY, &[&upstream]);
        let address = listen(&front);
        let other = "another key, of which nobody here knows";
        let (stranger, _) = joiner(address, "shop", other);
        wait_until("it is told", || {
            stranger.state() == JoinerState::NotJoined("its key is another".to_owned())
        })
        .await;
        let failed = handshake_manually(address, KEY, control_purpose("none")).await;
        assert_eq!(
            failed.unwrap_err(),
            "no upstream `none` is `joinable` here by this key",
            "the name"
        );
        let failed =
            handshake_manually(address, KEY, JoinPurpose::CarryRequests { member: 7 }).await;
        assert_eq!(failed.unwrap_err(), "not a member any more");
        // A peer that ignores the front end's proof, and has none of its own.
        let failed =
            handshake_manually_with_proof(address, KEY, other, control_purpose("shop")).await;
        assert_eq!(failed.unwrap_err(), "the connection was closed");
        for text in ["GET / HTTP/1.1\r\nHost: a\r\n\r\n", "penstock-join 3 x\n"] {
            let stream = connect(address).await.unwrap();
            stream.write_all(text.as_bytes()).await.unwrap();
            let mut buffer = [0; 64];
            let read = poll_fn(|cx| stream.poll_read(cx, &mut buffer));
            let read = clock::timeout(Duration::from_secs(10), read).await;
            assert!(
                matches!(read.expect("in time"), Ok(0) | Err(_)),
                "it is told nothing: {text:?}"
            );
        }
        // The length of a line is bounded.
        let stream = connect(address).await.unwrap();
        stream.write_all(&[b'x'; 600]).await.unwrap();
        let gone = poll_fn(|cx| stream.poll_peer_activity(cx));
        assert!(
            clock::timeout(Duration::from_secs(10), gone)
                .await
                .expect("in time")
        );
        assert_eq!(server_states(&upstream), []);
    });
}

#[test]
fn the_key_of_one_upstream_opens_no_other() {
    const OWN: &str = "pW3sX9vB1nK7mQ5tR2yU8iO4aL6cE0dZ";
    run_on_loop(async {
        let (front, shop) = (JoinListener::default(), joined("shop"));
        let bank = start(config::Upstream {
            joinable: true,
            join_key: Some(OWN.into()),
            connect_timeout: Duration::from_secs(60),
            ..config::Upstream::new("bank", config::Protocol::Http, Vec::new())
        });
        configure(&front, KEY, &[&shop, &bank]);
        let address = listen(&front);
        for (key, upstream) in [(KEY, "bank"), (OWN, "shop")] {
            let failed = handshake_manually(address, key, control_purpose(upstream)).await;
            let why = format!("no upstream `{upstream}` is `joinable` here by this key");
            assert_eq!(failed.unwrap_err(), why);
        }
        let (_lines, of_shop) = handshake_manually(address, KEY, control_purpose("shop"))
            .await
            .unwrap();
        let (_lines, of_bank) = handshake_manually(address, OWN, control_purpose("bank"))
            .await
            .unwrap();
        assert_eq!(
            (server_states(&shop).len(), server_states(&bank).len()),
            (1, 1)
        );
        // Nor may it open connections for members of another key, whose numbers cross the network.
        for (key, member) in [(KEY, of_bank), (OWN, of_shop)] {
            let failed =
                handshake_manually(address, key, JoinPurpose::CarryRequests { member }).await;
            assert_eq!(failed.unwrap_err(), "not a member any more");
        }
        let carried =
            handshake_manually(address, OWN, JoinPurpose::CarryRequests { member: of_bank }).await;
        assert_eq!(carried.map(|(_, member)| member), Ok(of_bank));
    });
}

#[test]
fn an_unproven_joiner_gets_a_nonce_and_no_proof() {
    run_on_loop(async {
        let (front, upstream) = (JoinListener::default(), joined("shop"));
        configure(&front, KEY, &[&upstream]);
        let stream = connect(listen(&front)).await.unwrap();
        let mut lines = LineStream::new(stream, Vec::new());
        let nonce = words::Nonce(random_bytes().unwrap());
        lines.send(&words::encode_greeting(&nonce)).await.unwrap();
        let answer = clock::timeout(Duration::from_secs(10), lines.next_line()).await;
        let answer = answer.expect("in time").unwrap();
        assert_eq!(answer.len(), 32, "16 bytes of a random number: {answer}");
        lines.send(&format!("{}\n", "0".repeat(64))).await.unwrap();
        let answer = clock::timeout(Duration::from_secs(10), lines.next_line()).await;
        assert!(answer.expect("in time").is_err(), "it is closed");
    });
}

#[test]
fn a_front_end_without_the_key_learns_nothing_of_the_joiner() {
    run_on_loop(async {
        let socket = net::listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = net::local_address(&socket).unwrap();
        let listener = Listener::new(socket).unwrap();
        let (joiner, brought) = joiner(address, "shop", KEY);
        let (socket, _) = poll_fn(|cx| listener.poll_accept(cx)).await.unwrap();
        let stream = Stream::new(socket).unwrap();
        let session = penstock_tls::accept(&stream, &sessions(), &mut Vec::new()).await;
        let stream = session.unwrap().over(stream);
        let binding = channel_binding_of(&stream);
        let mut lines = LineStream::new(stream, Vec::new());
        let greeting = lines.next_line().await.unwrap();
        let joiner_nonce = words::parse_greeting(&greeting).unwrap();
        let meeting = words::JoinHandshake {
            joiner: joiner_nonce,
            front_end: words::Nonce(random_bytes().unwrap()),
            binding,
        };
        lines
            .send(&words::encode_challenge(&meeting.front_end))
            .await
            .unwrap();
        let proof = lines.next_line().await.unwrap();
        // Its own proof does not prove the other side, nor does that of another key.
        lines.send(&format!("{proof}\n")).await.unwrap();
        let more = clock::timeout(Duration::from_secs(10), lines.next_line()).await;
        assert!(more.expect("in time").is_err(), "it says nothing more");
        wait_until("it is told", || {
            joiner.state() == JoinerState::NotJoined("its key is another".to_owned())
        })
        .await;
        assert_eq!(brought.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn unrequested_connections_are_refused() {
    run_on_loop(async {
        let (front, upstream) = (JoinListener::default(), joined("shop"));
        configure(&front, KEY, &[&upstream]);
        let address = listen(&front);
        let (_control, member) = handshake_manually(address, KEY, control_purpose("shop"))
            .await
            .unwrap();
        let mut open = Vec::new();
        for _ in 0..3 {
            open.push(
                handshake_manually(address, KEY, JoinPurpose::CarryRequests { member })
                    .await
                    .unwrap(),
            );
        }
        let (mut more, _) = handshake_manually(address, KEY, JoinPurpose::CarryRequests { member })
            .await
            .unwrap();
        let ended = clock::timeout(Duration::from_secs(10), more.next_line()).await;
        assert!(ended.expect("in time").is_err());
        // Connections closed while idle are skipped.
        open.truncate(1);
        let slot = claim(&upstream);
        let ResolvedAddress::Joined(dialled) = &slot.server.address else {
            panic!("it has joined");
        };
        assert!(dialled.acquire().await.is_ok());
        release(&upstream, &slot);
    });
}

#[test]
fn members_rejoin_after_a_step_down_or_reload() {
    run_on_loop(async {
        let (front, upstream) = (JoinListener::default(), joined("shop"));
        configure(&front, KEY, &[&upstream]);
        let listening = Arc::new(ArcSwap::from_pointee(front.clone()));
        let (_joiner, _) = joiner(listen_for(&listening), "shop", KEY);
        wait_until("it is in", || server_states(&upstream).len() == 1).await;
        let before = claim(&upstream);
        // A reload replaces the upstream: connections granted by the old one are served.
        let other = joined("shop");
        configure(&front, KEY, &[&other]);
        wait_until("it is in the other", || server_states(&other).len() == 1).await;
        let stream = before.server.address.connect().await.unwrap();
        assert_eq!(send_line(stream, "as before").await, "as before!");
        release(&upstream, &before);
        drop((before, upstream));
        // A reload without a change.
        configure(&front, KEY, &[&other]);
        let (successor, same) = (JoinListener::default(), joined("shop"));
        configure(&successor, KEY, &[&same]);
        listening.store(Arc::new(successor));
        front.step_down();
        wait_until("it is in where the other listens", || {
            server_states(&same).len() == 1
        })
        .await;
        let still = server_states(&other);
        assert_eq!(
            still,
            [("web-2 (joined)".to_owned(), "up")],
            "as long as it has requests"
        );
    });
}

#[test]
fn after_the_supply_ends_requests_wait_for_existing_connections() {
    run_on_loop(async {
        let (front, upstream) = (JoinListener::default(), joined("shop"));
        configure(&front, KEY, &[&upstream]);
        let address = listen(&front);
        let (mut control, member) = handshake_manually(address, KEY, control_purpose("shop"))
            .await
            .unwrap();
        let _carry = handshake_manually(address, KEY, JoinPurpose::CarryRequests { member })
            .await
            .unwrap();
        let most = |upstream: &Upstream| upstream.snapshot().servers[0].max_active;
        assert_eq!(most(&upstream), Some(3));
        front.step_down();
        let moved = async { while control.next_line().await.unwrap() != "moved" {} };
        clock::timeout(Duration::from_secs(10), moved)
            .await
            .expect("it is told");
        wait_until("one connection, one request", || most(&upstream) == Some(1)).await;
        let slot = claim(&upstream);
        assert!(slot.server.address.connect().await.is_ok());
        let none = slot.server.address.connect().await.unwrap_err();
        assert_eq!(none.to_string(), "the server sends no more connections");
        let refused = handshake_manually(address, KEY, JoinPurpose::CarryRequests { member }).await;
        assert!(refused.is_err(), "no join succeeds any more");
        release(&upstream, &slot);
    });
}

#[test]
fn a_stepped_down_front_end_finishes_its_requests() {
    run_on_loop(async {
        let (front, upstream) = (JoinListener::default(), joined("shop"));
        configure(&front, KEY, &[&upstream]);
        let address = listen(&front);
        let (_control, member) = handshake_manually(address, KEY, control_purpose("shop"))
            .await
            .unwrap();
        let carry = handshake_manually(address, KEY, JoinPurpose::CarryRequests { member }).await;
        let (mut carried, _) = carry.unwrap();
        let answers: Vec<_> = (0..5)
            .map(|_| loops::spawn_with_handle(post(&upstream)))
            .collect();
        let head = clock::timeout(Duration::from_secs(10), carried.next_line()).await;
        assert_eq!(head.expect("in time").unwrap(), POST_LINE);
        // One connection exists, two requests wait for a connection, two for a slot.
        wait_until("the others wait", || upstream.snapshot().queue.length == 2).await;
        front.step_down();
        wait_until("they all wait for the connection", || {
            upstream.snapshot().queue.length == 4
        })
        .await;
        for number in 1..=5 {
            while !clock::timeout(Duration::from_secs(10), carried.next_line())
                .await
                .expect("the head's end")
                .unwrap()
                .trim_end()
                .is_empty()
            {}
            carried
                .send("HTTP/1.1 204 No Content\r\n\r\n")
                .await
                .unwrap();
            if number < 5 {
                let head = clock::timeout(Duration::from_secs(10), carried.next_line()).await;
                assert_eq!(head.expect("the next comes").unwrap(), POST_LINE);
            }
        }
        for answer in answers {
            let answer = clock::timeout(Duration::from_secs(10), answer).await;
            assert_eq!(answer.expect("in time").unwrap(), 204);
        }
    });
}

#[test]
fn a_member_has_a_unique_name_and_a_limit_of_active_requests() {
    run_on_loop(async {
        let front = JoinListener::default();
        let upstream = start(config::Upstream {
            joinable: true,
            max_active: Some(2),
            ..config::Upstream::new("shop", config::Protocol::Http, Vec::new())
        });
        configure(&front, KEY, &[&upstream]);
        let address = listen(&front);
        let _first = handshake_manually(address, KEY, control_purpose("shop"))
            .await
            .unwrap();
        let _second = handshake_manually(address, KEY, control_purpose("shop"))
            .await
            .unwrap();
        wait_until("both are in", || server_states(&upstream).len() == 2).await;
        let servers = upstream.snapshot().servers;
        let names: Vec<_> = servers.iter().map(|server| server.name.as_str()).collect();
        assert_eq!(names, ["by-hand (joined)", "by-hand (joined) 2"]);
        assert!(servers.iter().all(|server| server.max_active == Some(2)));
    });
}

#[test]
fn a_member_removed_by_the_operator_rejoins() {
    run_on_loop(async {
        let (front, upstream) = (JoinListener::default(), joined("shop"));
        configure(&front, KEY, &[&upstream]);
        let (_joiner, _) = joiner(listen(&front), "shop", KEY);
        wait_until("it is in", || server_states(&upstream).len() == 1).await;
        let remove = ServerChange::Remove("web-2 (joined)".to_owned());
        upstream.apply_change(remove).unwrap();
        assert_eq!(server_states(&upstream), []);
        wait_until("it is in again", || server_states(&upstream).len() == 1).await;
    });
}

#[test]
fn a_member_with_an_old_key_gets_no_requests() {
    run_on_loop(async {
        let (front, upstream) = (JoinListener::default(), joined("shop"));
        configure(&front, KEY, &[&upstream]);
        let (joiner, _) = joiner(listen(&front), "shop", KEY);
        wait_until("it is in", || server_states(&upstream).len() == 1).await;
        configure(
            &front,
            "another key, that the member does not know",
            &[&upstream],
        );
        wait_until("it is out", || server_states(&upstream).is_empty()).await;
        wait_until("and is told", || {
            joiner.state() == JoinerState::NotJoined("its key is another".to_owned())
        })
        .await;
        configure(&front, KEY, &[&upstream]);
        wait_until("it is in again", || server_states(&upstream).len() == 1).await;
        assert_eq!(joiner.state(), JoinerState::Joined);
    });
}

#[test]
fn a_request_waiting_for_a_leaving_member_goes_to_the_next_server() {
    run_on_loop(async {
        let (front, upstream) = (JoinListener::default(), joined("shop"));
        configure(&front, KEY, &[&upstream]);
        let address = listen(&front);
        let (mut lines, _) = handshake_manually(address, KEY, control_purpose("shop"))
            .await
            .unwrap();
        let answered = loops::spawn_with_handle(post(&upstream));
        // It gets requests for the first connections and for one more; it opens none and leaves.
        for expected in ["dial 3", "dial 1"] {
            assert_eq!(next_line_but_heartbeats(&mut lines).await, expected);
        }
        drop(lines);
        wait_until("it waits in line", || upstream.snapshot().queue.length == 1).await;
        let (_control, member) = handshake_manually(address, KEY, control_purpose("shop"))
            .await
            .unwrap();
        let carried = handshake_manually(address, KEY, JoinPurpose::CarryRequests { member }).await;
        let (mut carried, _) = carried.unwrap();
        let head = clock::timeout(Duration::from_secs(10), carried.next_line()).await;
        assert_eq!(head.expect("in time").unwrap(), POST_LINE);
        carried
            .send("HTTP/1.1 204 No Content\r\n\r\n")
            .await
            .unwrap();
        let answer = clock::timeout(Duration::from_secs(10), answered).await;
        assert_eq!(answer.expect("in time").unwrap(), 204);
    });
}

fn control_purpose(upstream: &str) -> JoinPurpose {
    JoinPurpose::Control {
        capacity: 3,
        upstream: upstream.to_owned(),
        label: "by-hand".to_owned(),
    }
}

/// Connects with TLS, as a joiner does.
async fn connect(address: SocketAddr) -> Result<Stream, JoinFailure> {
    let stream = Stream::connect_tcp(address).await?;
    let tls = FrontEndTls::new(&address.to_string()).unwrap();
    tls.secure(stream).await
}

async fn handshake_manually(
    address: SocketAddr,
    key: &str,
    purpose: JoinPurpose,
) -> Result<(LineStream, u64), String> {
    handshake_manually_with_proof(address, key, key, purpose).await
}

/// Performs the handshake with a front end that has one key and proves another.
async fn handshake_manually_with_proof(
    address: SocketAddr,
    key: &str,
    proved: &str,
    purpose: JoinPurpose,
) -> Result<(LineStream, u64), String> {
    let meet = async {
        let stream = connect(address).await?;
        let binding = channel_binding_of(&stream);
        let mut lines = LineStream::new(stream, Vec::new());
        let nonce = words::Nonce(random_bytes()?);
        lines.send(&words::encode_greeting(&nonce)).await?;
        let meeting = words::JoinHandshake {
            joiner: nonce,
            front_end: words::parse_challenge(&lines.next_line().await?)?,
            binding,
        };
        lines
            .send(&JoinSecret::new(proved).encode_proof(JoinSide::Joiner, &meeting))
            .await?;
        JoinSecret::new(key).verify(JoinSide::FrontEnd, &meeting, &lines.next_line().await?)?;
        let request = words::encode_join_request(&JoinSecret::new(proved), &meeting, &purpose);
        lines.send(&request).await?;
        let line = lines.next_line().await?;
        match words::JoinReply::parse(&line)? {
            words::JoinReply::Accepted(member) => Ok((lines, member)),
            words::JoinReply::Refused(why) => Err(JoinFailure::Refused(why)),
        }
    };
    let met = clock::timeout(Duration::from_secs(10), meet).await;
    met.expect("in time").map_err(|failure| failure.to_string())
}
