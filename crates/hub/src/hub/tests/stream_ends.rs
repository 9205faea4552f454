//! How streams end, by either side.

use super::*;
use std::net::Shutdown;
use std::sync::atomic::AtomicUsize;

#[test]
fn a_client_that_leaves_is_gone_and_one_that_half_closes_is_not() {
    let rig = HubHarness::new(settings());
    let ends = Arc::new(AtomicUsize::new(0));
    let told = |ends: &Arc<AtomicUsize>| {
        let ends = ends.clone();
        HeldStream {
            on_end: Some(crate::EndCallback::new(move || {
                ends.fetch_add(1, Ordering::SeqCst);
            })),
            ..stream(&["a"])
        }
    };
    let client = rig.hold(told(&ends));
    drop(client);
    rig.until("its end is told", |_| ends.load(Ordering::SeqCst) == 1);
    let mut half = rig.hold(told(&ends));
    half.socket.shutdown(Shutdown::Write).unwrap();
    for text in ["to one that only reads", "and again"] {
        rig.hub.publish(message("a", text)).unwrap();
        assert_eq!(half.chunk(), text);
    }
    assert_eq!(ends.load(Ordering::SeqCst), 1);
    drop(half);
    rig.until("what is sent to nobody tells", |hub| {
        hub.publish(message("a", "nobody")).unwrap();
        ends.load(Ordering::SeqCst) == 2
    });
    // A callback may panic without harm to others.
    let client = rig.hold(HeldStream {
        on_end: Some(crate::EndCallback::new(|| panic!("a test's own"))),
        ..stream(&["a"])
    });
    drop(client);
    rig.until("it is gone", |hub| hub.snapshot().streams == 0);
    let mut after = rig.hold(stream(&["a"]));
    rig.hub.publish(message("a", "still here")).unwrap();
    assert_eq!(after.chunk(), "still here");
}

#[test]
fn bytes_behind_the_request_are_dropped_up_to_a_bound() {
    let rig = HubHarness::new(settings());
    let mut client = rig.hand_over(stream(&["a"]), HeldFraming::Chunked, b"GET / HT", 0);
    rig.until("it is held", |hub| hub.snapshot().streams == 1);
    client.send(&[b'x'; 30_000]);
    rig.hub.publish(message("a", "heard")).unwrap();
    assert_eq!(client.chunk(), "heard");
    client.send(&[b'x'; 30_000]);
    rig.hub.publish(message("a", "again")).unwrap();
    assert_eq!(client.chunk(), "again");
    client.send(&[b'x'; 10_000]);
    client.expect_end();
    rig.until("it is gone", |hub| hub.snapshot().streams == 0);
    static EARLY: [u8; 70_000] = [0; 70_000];
    let mut early = rig.hand_over(stream(&["a"]), HeldFraming::Chunked, &EARLY, 0);
    early.expect_end();
}

#[test]
fn a_stream_ends_after_its_lifetime() {
    let rig = HubHarness::new(settings());
    let mut client = rig.hold(HeldStream {
        max_lifetime: Some(Duration::from_secs(2)),
        ..stream(&["a"])
    });
    let mut other = rig.hold(stream(&["a"]));
    rig.hub.publish(message("a", "before")).unwrap();
    assert_eq!(client.rest(), "before");
    rig.hub.publish(message("a", "after")).unwrap();
    assert_eq!(
        (other.chunk(), other.chunk()),
        ("before".into(), "after".into())
    );
    // Many that leave before their time do not stay behind.
    for _ in 0..300 {
        let client = rig.hold(HeldStream {
            max_lifetime: Some(Duration::from_secs(100_000)),
            ..stream(&["a"])
        });
        drop(client);
    }
    rig.until("they are gone", |hub| hub.snapshot().streams == 1);
}

#[test]
fn a_drain_ends_all_streams_one_after_the_other_and_takes_no_new_ones() {
    let rig = HubHarness::new(settings());
    let mut clients: Vec<Client> = (0..200).map(|_| rig.hold(stream(&["a"]))).collect();
    let late = rig.hub.stream_body(stream(&["a"])).unwrap();
    let started = Instant::now();
    let hub = rig.hub.clone();
    let (say, said) = tokio::sync::oneshot::channel();
    rig.handles()[1].spawn(async move {
        // 40 ticks.
        hub.drain(DrainPlan::with_duration(Duration::from_secs(10)))
            .await;
        let _ = say.send(());
    });
    rig.until("some have ended", |hub| hub.snapshot().streams < 200);
    assert_eq!(
        rig.hub.stream_body(stream(&["a"])).unwrap_err(),
        HubError::Draining
    );
    assert!(matches!(
        rig.hub.long_poll(LongPoll::default()),
        Err(HubError::Draining)
    ));
    let mut late = rig.hand_over_body(late, HeldFraming::Chunked, b"", 0);
    assert_eq!(late.rest(), "", "who was on the way is ended properly");
    for client in &mut clients {
        assert_eq!(client.rest(), "");
    }
    assert!(
        started.elapsed() >= 39 * TICK,
        "spread: {:?}",
        started.elapsed()
    );
    rig.run(said).unwrap();
    assert_eq!(rig.hub.snapshot().streams, 0);
    rig.until("places are given back", |_| {
        rig.front.0.load(Ordering::SeqCst) == 0
    });
    rig.hub.publish(message("a", "to nobody")).unwrap();
}

#[test]
fn a_drain_tells_clients_of_event_streams_when_to_return() {
    let rig = HubHarness::new(settings());
    let events = || HeldStream {
        message_format: StreamForm::Events,
        ..stream(&["a"])
    };
    let mut clients: Vec<Client> = (0..50).map(|_| rig.hold(events())).collect();
    let mut unframed = rig.hand_over(events(), HeldFraming::UntilClose, b"", 1);
    let mut bytes = rig.hold(stream(&["a"]));
    rig.until("all are held", |hub| hub.snapshot().streams == 52);
    let hub = rig.hub.clone();
    let plan = DrainPlan {
        next_server: NextServer::AfterDrain,
        return_window: Duration::from_secs(10),
        ..DrainPlan::with_duration(Duration::ZERO)
    };
    rig.run(async move { hub.drain(plan).await });
    let delay = |text: &str| {
        let number = text
            .strip_prefix("retry: ")
            .and_then(|text| text.strip_suffix("\n\n"));
        number
            .and_then(|number| number.parse::<u64>().ok())
            .expect(text)
    };
    let mut delays: Vec<u64> = clients.iter_mut().map(|it| delay(&it.rest())).collect();
    delays.sort_unstable();
    // From the time of a restart on, one every 200 ms.
    assert!(delays[0] >= 3_000 && delays[49] < 13_000, "{delays:?}");
    for window in delays.windows(6) {
        assert!(window[5] - window[0] >= 200, "a burst: {delays:?}");
    }
    unframed.expect_end();
    delay(&String::from_utf8_lossy(&unframed.read));
    assert_eq!(bytes.rest(), "", "no events, no time");
}

#[test]
fn a_client_that_vanishes_is_to_be_noticed_in_time() {
    use rustix::net::sockopt;
    let rig = HubHarness::new(Settings {
        send_timeout: Duration::from_secs(7),
        ..settings()
    });
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let beating = HeldStream {
        keep_alive: Some(StreamKeepAlive {
            bytes: Bytes::from_static(b"beat"),
            interval: Duration::from_secs(1_000),
            is_unconditional: false,
        }),
        ..stream(&["a"])
    };
    for (stream, is_probed) in [(beating, false), (stream(&["a"]), true)] {
        let mut theirs = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        theirs.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let (ours, _) = listener.accept().unwrap();
        ours.set_nonblocking(true).unwrap();
        let same = OwnedFd::from(ours.try_clone().unwrap());
        rig.hand_over_socket(rig.hub.stream_body(stream).unwrap(), ours.into());
        rig.until("it is held", |hub| hub.subscriber_count("a") == 1);
        rig.hub.publish(message("a", "x")).unwrap();
        let mut got = [0; 6];
        theirs.read_exact(&mut got).unwrap();
        assert_eq!(sockopt::tcp_user_timeout(&same).unwrap(), 7_000);
        assert_eq!(sockopt::socket_keepalive(&same).unwrap(), is_probed);
        drop((theirs, same));
        rig.until("it is gone", |hub| hub.subscriber_count("a") == 0);
    }
}
