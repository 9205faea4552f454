//! Both sides over real connections, on one loop.

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
use penstock_wire::join::{self as words, JoinPurpose, JoinSecret};

use super::lines::Lines;
use super::*;
use crate::connection::{Address, Connection};
use crate::maintain::tests::{claim, eventually, on_a_loop, release, start, states};
use crate::testing::request;
use crate::{Buffering, Change, Upstream};

const KEY: &str = "J8nC2vQm0dT5yWkX1bLrZ7fHsE4uPaG9oIeRjNqMtVw=";

/// An upstream of that name that may be joined, and nothing else.
fn joined(name: &str) -> Arc<Upstream> {
    start(config::Upstream {
        joined: true,
        // Nothing here is to end because a time is over.
        connect_timeout: Duration::from_secs(60),
        ..config::Upstream::new(name, config::Protocol::Http, Vec::new())
    })
}

fn configure(front: &Front, key: &str, upstreams: &[&Arc<Upstream>]) {
    let join = config::Join {
        listen: config::ListenAddr::loopback(0),
        key: key.into(),
    };
    front.configure(Some(&join), upstreams.iter().copied());
}

/// Lets a front end listen.
fn listen(front: &Front) -> SocketAddr {
    listen_for(&Arc::new(ArcSwap::from_pointee(front.clone())))
}

/// The same for one in whose place another may listen.
fn listen_for(front: &Arc<ArcSwap<Front>>) -> SocketAddr {
    let socket = net::listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = net::local_address(&socket).unwrap();
    let (listener, front) = (Listener::new(socket).unwrap(), Arc::clone(front));
    let info = Arc::new(ListenerInfo {
        scheme: "http",
        address: Some(address),
        name: "join".to_owned(),
        proxy_protocol: false,
    });
    loops::spawn_here(async move {
        loop {
            let (socket, peer) = poll_fn(|cx| listener.poll_accept(cx)).await.unwrap();
            let stream = Arc::new(Stream::new(socket).unwrap());
            let serving = front
                .load()
                .serve(stream, peer, Arc::clone(&info), Vec::new());
            loops::spawn_here(serving);
        }
    });
    address
}

/// One that joins, with the number of its connections that carry; they give back what they get.
fn joiner(address: SocketAddr, upstream: &str, key: &str) -> (Joiner, Arc<AtomicUsize>) {
    let brought = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&brought);
    let serve: ServeDialled = Arc::new(move |stream, _, early| {
        counted.fetch_add(1, Ordering::Relaxed);
        loops::spawn_here(async move {
            let mut lines = Lines::new(stream, early);
            while let Ok(line) = lines.next().await {
                if lines.say(&format!("{line}!\n")).await.is_err() {
                    return;
                }
            }
        });
    });
    let setup = JoinerSetup {
        joins: config::Joins {
            address: address.to_string(),
            upstream: upstream.to_owned(),
            key: key.into(),
            key_file: None,
        },
        label: "web 2".to_owned(),
        capacity: 3,
        loops: vec![LoopHandle::current().unwrap()],
        pool: Pool::new("names", 1, 1),
        serve,
    };
    (Joiner::start(setup), brought)
}

/// A request that must not be repeated: its status.
fn post(upstream: &Upstream) -> impl Future<Output = u16> + Send + use<> {
    let buffering = Buffering {
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

/// The next line that is not a beat.
async fn next_but_beats(lines: &mut Lines) -> String {
    loop {
        let line = clock::timeout(Duration::from_secs(10), lines.next()).await;
        let line = line.expect("in time").unwrap();
        if line != "beat" {
            return line;
        }
    }
}

/// Says something on a connection and hears what comes back.
async fn talk(stream: Stream, said: &str) -> String {
    let mut lines = Lines::new(stream, Vec::new());
    lines.say(&format!("{said}\n")).await.unwrap();
    clock::timeout(Duration::from_secs(10), lines.next())
        .await
        .expect("in time")
        .unwrap()
}

#[test]
fn who_dials_in_is_a_server_until_it_leaves() {
    on_a_loop(async {
        let (front, upstream) = (Front::default(), joined("shop"));
        configure(&front, KEY, &[&upstream]);
        let (joiner, brought) = joiner(listen(&front), "shop", KEY);
        eventually("it is in", || states(&upstream).len() == 1).await;
        assert_eq!(
            states(&upstream),
            [("web-2 (joined)".to_owned(), "up")],
            "as it is called"
        );
        let first = &upstream.snapshot().servers[0];
        assert_eq!(first.active_max, Some(3));
        eventually("the first are there", || {
            brought.load(Ordering::Relaxed) == 3
        })
        .await;
        // More than were brought at first: each that finds none asks for one.
        let mut open = Vec::new();
        for number in 0..5 {
            let place = claim(&upstream);
            let deadline = clock::now() + Duration::from_secs(10);
            let connection = Connection::open(&place.server, deadline).await.unwrap();
            release(&upstream, &place);
            open.push((number, connection));
        }
        eventually("each of them was asked for", || {
            brought.load(Ordering::Relaxed) == 5
        })
        .await;
        for (number, connection) in open {
            let served = connection.server().open.load(Ordering::Relaxed);
            assert!(served > 0);
            // Its socket alone: the connection itself is counted.
            let stream = connection.move_here().unwrap();
            let said = format!("request {number}");
            stream
                .stream
                .write_all(format!("{said}\n").as_bytes())
                .await
                .unwrap();
            let mut buffer = [0; 64];
            let read = poll_fn(|cx| stream.stream.poll_read(cx, &mut buffer));
            let count = clock::timeout(Duration::from_secs(10), read)
                .await
                .unwrap()
                .unwrap();
            assert_eq!(&buffer[..count], format!("{said}!\n").as_bytes());
        }
        joiner.set_capacity(7);
        eventually("it may have more", || {
            upstream.snapshot().servers[0].active_max == Some(7)
        })
        .await;
        assert_eq!(joiner.state(), JoinerState::In);
        let place = claim(&upstream);
        joiner.leave();
        eventually("it leaves", || states(&upstream)[0].1 == "leaving").await;
        // What was given before is served.
        let stream = place.server.address.connect().await.unwrap();
        assert_eq!(talk(stream, "last").await, "last!");
        let soon = clock::now() + Duration::from_millis(50);
        assert!(
            clock::timeout_at(soon, joiner.left()).await.is_none(),
            "it has one"
        );
        release(&upstream, &place);
        assert_eq!(states(&upstream), []);
        let left = clock::timeout(Duration::from_secs(10), joiner.left());
        left.await.expect("nothing comes any more");
    });
}

#[test]
fn one_that_is_gone_gets_nothing_and_who_waits_for_it_is_told() {
    on_a_loop(async {
        let (front, upstream) = (Front::default(), joined("shop"));
        configure(&front, KEY, &[&upstream]);
        let address = listen(&front);
        let (lines, _) = by_hand(address, KEY, control("shop")).await.unwrap();
        eventually("it is in", || states(&upstream).len() == 1).await;
        let place = claim(&upstream);
        let waits = place.server.address.connect();
        // It is asked, and does not come.
        let goes = async { drop(lines) };
        let (failed, ()) = tokio::join!(waits, goes);
        assert_eq!(failed.unwrap_err().to_string(), "the server has left");
        release(&upstream, &place);
        eventually("it is gone", || states(&upstream).is_empty()).await;
    });
}

#[test]
fn nobody_comes_in_without_the_key_the_upstream_and_its_number() {
    on_a_loop(async {
        let (front, upstream) = (Front::default(), joined("shop"));
        configure(&front, KEY, &[&upstream]);
        let address = listen(&front);
        let other = "another key, of which nobody here knows";
        let (stranger, _) = joiner(address, "shop", other);
        eventually("it is told", || {
            stranger.state() == JoinerState::Out("its key is another".to_owned())
        })
        .await;
        let failed = by_hand(address, KEY, control("none")).await;
        assert_eq!(
            failed.unwrap_err(),
            "no upstream `none` is `joined` here by this key",
            "the name"
        );
        let failed = by_hand(address, KEY, JoinPurpose::CarryRequests { member: 7 }).await;
        assert_eq!(failed.unwrap_err(), "it is no member any more");
        // One that does not look at the front end's proof, and has none of its own.
        let failed = by_hand_as(address, KEY, other, control("shop")).await;
        assert_eq!(failed.unwrap_err(), "the connection was closed");
        for text in [
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "penstock-join 2 x\n",
            "penstock-join 1 0f\n",
        ] {
            let stream = Stream::connect_tcp(address).await.unwrap();
            stream.write_all(text.as_bytes()).await.unwrap();
            let mut buffer = [0; 64];
            let read = poll_fn(|cx| stream.poll_read(cx, &mut buffer));
            let read = clock::timeout(Duration::from_secs(10), read).await;
            assert!(
                matches!(read.expect("in time"), Ok(0) | Err(_)),
                "it is told nothing: {text:?}"
            );
        }
        // A line without an end has one.
        let stream = Stream::connect_tcp(address).await.unwrap();
        stream.write_all(&[b'x'; 600]).await.unwrap();
        let gone = poll_fn(|cx| stream.poll_disconnected(cx));
        assert!(
            clock::timeout(Duration::from_secs(10), gone)
                .await
                .expect("in time")
        );
        assert_eq!(states(&upstream), []);
    });
}

#[test]
fn the_key_of_one_upstream_opens_no_other() {
    const OWN: &str = "pW3sX9vB1nK7mQ5tR2yU8iO4aL6cE0dZ";
    on_a_loop(async {
        let (front, shop) = (Front::default(), joined("shop"));
        let bank = start(config::Upstream {
            joined: true,
            join_key: Some(OWN.into()),
            connect_timeout: Duration::from_secs(60),
            ..config::Upstream::new("bank", config::Protocol::Http, Vec::new())
        });
        configure(&front, KEY, &[&shop, &bank]);
        let address = listen(&front);
        for (key, upstream) in [(KEY, "bank"), (OWN, "shop")] {
            let failed = by_hand(address, key, control(upstream)).await;
            let why = format!("no upstream `{upstream}` is `joined` here by this key");
            assert_eq!(failed.unwrap_err(), why);
        }
        let (_lines, of_shop) = by_hand(address, KEY, control("shop")).await.unwrap();
        let (_lines, of_bank) = by_hand(address, OWN, control("bank")).await.unwrap();
        assert_eq!((states(&shop).len(), states(&bank).len()), (1, 1));
        // Nor does it bring connections of another's members, whose numbers go over the network.
        for (key, member) in [(KEY, of_bank), (OWN, of_shop)] {
            let failed = by_hand(address, key, JoinPurpose::CarryRequests { member }).await;
            assert_eq!(failed.unwrap_err(), "it is no member any more");
        }
        let carried = by_hand(address, OWN, JoinPurpose::CarryRequests { member: of_bank }).await;
        assert_eq!(carried.map(|(_, member)| member), Ok(of_bank));
    });
}

#[test]
fn a_stranger_gets_a_number_and_nothing_to_try_keys_on() {
    on_a_loop(async {
        let (front, upstream) = (Front::default(), joined("shop"));
        configure(&front, KEY, &[&upstream]);
        let stream = Stream::connect_tcp(listen(&front)).await.unwrap();
        let mut lines = Lines::new(stream, Vec::new());
        let nonce = draw().unwrap();
        lines.say(&words::encode_greeting(&nonce)).await.unwrap();
        let told = clock::timeout(Duration::from_secs(10), lines.next()).await;
        let told = told.expect("in time").unwrap();
        assert_eq!(told.len(), 32, "16 bytes of a random number: {told}");
        lines.say(&format!("{}\n", "0".repeat(64))).await.unwrap();
        let told = clock::timeout(Duration::from_secs(10), lines.next()).await;
        assert!(told.expect("in time").is_err(), "it is closed");
    });
}

#[test]
fn whoever_cannot_prove_to_be_the_front_end_does_not_learn_who_joins() {
    on_a_loop(async {
        let socket = net::listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = net::local_address(&socket).unwrap();
        let listener = Listener::new(socket).unwrap();
        let (joiner, brought) = joiner(address, "shop", KEY);
        let (socket, _) = poll_fn(|cx| listener.poll_accept(cx)).await.unwrap();
        let mut lines = Lines::new(Stream::new(socket).unwrap(), Vec::new());
        let heard = lines.next().await.unwrap();
        let joiner_nonce = words::parse_greeting(&heard).unwrap();
        let meeting = words::HandshakeNonces {
            joiner: joiner_nonce,
            front_end: draw().unwrap(),
        };
        lines
            .say(&words::encode_challenge(&meeting.front_end))
            .await
            .unwrap();
        let proof = lines.next().await.unwrap();
        // What it has said itself is no proof of the other side, nor is another key's.
        lines.say(&format!("{proof}\n")).await.unwrap();
        let more = clock::timeout(Duration::from_secs(10), lines.next()).await;
        assert!(more.expect("in time").is_err(), "it says nothing more");
        eventually("it is told", || {
            joiner.state() == JoinerState::Out("its key is another".to_owned())
        })
        .await;
        assert_eq!(brought.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn connections_that_nobody_asked_for_are_refused() {
    on_a_loop(async {
        let (front, upstream) = (Front::default(), joined("shop"));
        configure(&front, KEY, &[&upstream]);
        let address = listen(&front);
        let (_control, member) = by_hand(address, KEY, control("shop")).await.unwrap();
        let mut open = Vec::new();
        for _ in 0..3 {
            open.push(
                by_hand(address, KEY, JoinPurpose::CarryRequests { member })
                    .await
                    .unwrap(),
            );
        }
        let (mut more, _) = by_hand(address, KEY, JoinPurpose::CarryRequests { member })
            .await
            .unwrap();
        let ended = clock::timeout(Duration::from_secs(10), more.next()).await;
        assert!(ended.expect("in time").is_err());
        // Those that are closed while they wait are passed over.
        open.truncate(1);
        let place = claim(&upstream);
        let Address::Joined(dialled) = &place.server.address else {
            panic!("it has joined");
        };
        assert!(dialled.take().await.is_ok());
        release(&upstream, &place);
    });
}

#[test]
fn a_front_end_that_gives_way_or_changes_is_joined_anew() {
    on_a_loop(async {
        let (front, upstream) = (Front::default(), joined("shop"));
        configure(&front, KEY, &[&upstream]);
        let listening = Arc::new(ArcSwap::from_pointee(front.clone()));
        let (_joiner, _) = joiner(listen_for(&listening), "shop", KEY);
        eventually("it is in", || states(&upstream).len() == 1).await;
        let before = claim(&upstream);
        // A reload that makes another upstream of it: what the old one has given is served there.
        let other = joined("shop");
        configure(&front, KEY, &[&other]);
        eventually("it is in the other", || states(&other).len() == 1).await;
        let stream = before.server.address.connect().await.unwrap();
        assert_eq!(talk(stream, "as before").await, "as before!");
        release(&upstream, &before);
        drop((before, upstream));
        // A reload that changes nothing of it.
        configure(&front, KEY, &[&other]);
        let (heir, same) = (Front::default(), joined("shop"));
        configure(&heir, KEY, &[&same]);
        listening.store(Arc::new(heir));
        front.give_way();
        eventually("it is in where the other listens", || {
            states(&same).len() == 1
        })
        .await;
        let still = states(&other);
        assert_eq!(
            still,
            [("web-2 (joined)".to_owned(), "up")],
            "as long as it has requests"
        );
    });
}

#[test]
fn where_no_connection_can_come_any_more_requests_wait_for_those_there_are() {
    on_a_loop(async {
        let (front, upstream) = (Front::default(), joined("shop"));
        configure(&front, KEY, &[&upstream]);
        let address = listen(&front);
        let (mut control, member) = by_hand(address, KEY, control("shop")).await.unwrap();
        let _carry = by_hand(address, KEY, JoinPurpose::CarryRequests { member })
            .await
            .unwrap();
        let most = |upstream: &Upstream| upstream.snapshot().servers[0].active_max;
        assert_eq!(most(&upstream), Some(3));
        front.give_way();
        let moved = async { while control.next().await.unwrap() != "moved" {} };
        clock::timeout(Duration::from_secs(10), moved)
            .await
            .expect("it is told");
        eventually("one connection, one request", || most(&upstream) == Some(1)).await;
        let place = claim(&upstream);
        assert!(place.server.address.connect().await.is_ok());
        let none = place.server.address.connect().await.unwrap_err();
        assert_eq!(
            none.to_string(),
            "the server brings no more connections here"
        );
        let refused = by_hand(address, KEY, JoinPurpose::CarryRequests { member }).await;
        assert!(refused.is_err(), "nobody is met any more");
        release(&upstream, &place);
    });
}

#[test]
fn a_front_end_that_gives_way_finishes_all_requests_on_the_connections_it_has() {
    on_a_loop(async {
        let (front, upstream) = (Front::default(), joined("shop"));
        configure(&front, KEY, &[&upstream]);
        let address = listen(&front);
        let (_control, member) = by_hand(address, KEY, control("shop")).await.unwrap();
        let carry = by_hand(address, KEY, JoinPurpose::CarryRequests { member }).await;
        let (mut carried, _) = carry.unwrap();
        let answers: Vec<_> = (0..5)
            .map(|_| loops::spawn_with_handle(post(&upstream)))
            .collect();
        let head = clock::timeout(Duration::from_secs(10), carried.next()).await;
        assert_eq!(head.expect("in time").unwrap(), POST_LINE);
        // One is there, two wait for a connection, two for a place.
        eventually("the others wait", || upstream.snapshot().waiting == 2).await;
        front.give_way();
        eventually("they all wait for the connection", || {
            upstream.snapshot().waiting == 4
        })
        .await;
        for number in 1..=5 {
            while !clock::timeout(Duration::from_secs(10), carried.next())
                .await
                .expect("the head's end")
                .unwrap()
                .trim_end()
                .is_empty()
            {}
            carried
                .say("HTTP/1.1 204 No Content\r\n\r\n")
                .await
                .unwrap();
            if number < 5 {
                let head = clock::timeout(Duration::from_secs(10), carried.next()).await;
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
fn a_member_has_a_name_of_its_own_and_no_more_than_the_upstreams_bound() {
    on_a_loop(async {
        let front = Front::default();
        let upstream = start(config::Upstream {
            joined: true,
            max_active: Some(2),
            ..config::Upstream::new("shop", config::Protocol::Http, Vec::new())
        });
        configure(&front, KEY, &[&upstream]);
        let address = listen(&front);
        let _first = by_hand(address, KEY, control("shop")).await.unwrap();
        let _second = by_hand(address, KEY, control("shop")).await.unwrap();
        eventually("both are in", || states(&upstream).len() == 2).await;
        let servers = upstream.snapshot().servers;
        let names: Vec<_> = servers.iter().map(|server| server.name.as_str()).collect();
        assert_eq!(names, ["by-hand (joined)", "by-hand (joined) 2"]);
        assert!(servers.iter().all(|server| server.active_max == Some(2)));
    });
}

#[test]
fn one_that_is_taken_out_by_hand_joins_again() {
    on_a_loop(async {
        let (front, upstream) = (Front::default(), joined("shop"));
        configure(&front, KEY, &[&upstream]);
        let (_joiner, _) = joiner(listen(&front), "shop", KEY);
        eventually("it is in", || states(&upstream).len() == 1).await;
        let remove = Change::Remove("web-2 (joined)".to_owned());
        upstream.manage(remove).unwrap();
        assert_eq!(states(&upstream), []);
        eventually("it is in again", || states(&upstream).len() == 1).await;
    });
}

#[test]
fn one_that_came_by_another_key_could_bring_nothing_and_gets_nothing() {
    on_a_loop(async {
        let (front, upstream) = (Front::default(), joined("shop"));
        configure(&front, KEY, &[&upstream]);
        let (joiner, _) = joiner(listen(&front), "shop", KEY);
        eventually("it is in", || states(&upstream).len() == 1).await;
        configure(
            &front,
            "another key, that the member does not know",
            &[&upstream],
        );
        eventually("it is out", || states(&upstream).is_empty()).await;
        eventually("and is told", || {
            joiner.state() == JoinerState::Out("its key is another".to_owned())
        })
        .await;
        configure(&front, KEY, &[&upstream]);
        eventually("it is in again", || states(&upstream).len() == 1).await;
        assert_eq!(joiner.state(), JoinerState::In);
    });
}

#[test]
fn a_request_that_waits_for_a_connection_of_one_that_goes_is_the_next_ones() {
    on_a_loop(async {
        let (front, upstream) = (Front::default(), joined("shop"));
        configure(&front, KEY, &[&upstream]);
        let address = listen(&front);
        let (mut lines, _) = by_hand(address, KEY, control("shop")).await.unwrap();
        let answered = loops::spawn_with_handle(post(&upstream));
        // It is asked for connections at first, and for one more for the request; it brings none and goes.
        for expected in ["dial 3", "dial 1"] {
            assert_eq!(next_but_beats(&mut lines).await, expected);
        }
        drop(lines);
        eventually("it waits in line", || upstream.snapshot().waiting == 1).await;
        let (_control, member) = by_hand(address, KEY, control("shop")).await.unwrap();
        let carried = by_hand(address, KEY, JoinPurpose::CarryRequests { member }).await;
        let (mut carried, _) = carried.unwrap();
        let head = clock::timeout(Duration::from_secs(10), carried.next()).await;
        assert_eq!(head.expect("in time").unwrap(), POST_LINE);
        carried
            .say("HTTP/1.1 204 No Content\r\n\r\n")
            .await
            .unwrap();
        let answer = clock::timeout(Duration::from_secs(10), answered).await;
        assert_eq!(answer.expect("in time").unwrap(), 204);
    });
}

fn control(upstream: &str) -> JoinPurpose {
    JoinPurpose::Control {
        capacity: 3,
        upstream: upstream.to_owned(),
        label: "by-hand".to_owned(),
    }
}

async fn by_hand(
    address: SocketAddr,
    key: &str,
    purpose: JoinPurpose,
) -> Result<(Lines, u64), String> {
    by_hand_as(address, key, key, purpose).await
}

/// Meets a front end that has one key and proves another.
async fn by_hand_as(
    address: SocketAddr,
    key: &str,
    proved: &str,
    purpose: JoinPurpose,
) -> Result<(Lines, u64), String> {
    let meet = async {
        let mut lines = Lines::new(Stream::connect_tcp(address).await?, Vec::new());
        let nonce = draw()?;
        lines.say(&words::encode_greeting(&nonce)).await?;
        let meeting = words::HandshakeNonces {
            joiner: nonce,
            front_end: words::parse_challenge(&lines.next().await?)?,
        };
        lines
            .say(&words::prove_joiner(&JoinSecret::new(proved), &meeting))
            .await?;
        words::verify_front_end(&JoinSecret::new(key), &meeting, &lines.next().await?)?;
        let request = words::encode_join_request(&JoinSecret::new(proved), &meeting, &purpose);
        lines.say(&request).await?;
        let line = lines.next().await?;
        match words::JoinReply::parse(&line)? {
            words::JoinReply::Accepted(member) => Ok((lines, member)),
            words::JoinReply::Refused(why) => Err(JoinFailure::Refused(why)),
        }
    };
    let met = clock::timeout(Duration::from_secs(10), meet).await;
    met.expect("in time").map_err(|failure| failure.to_string())
}
