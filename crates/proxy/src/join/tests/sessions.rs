//! TLS between both sides: a machine in between, a side without TLS, other versions.

use super::*;

/// The state of a joiner that is refused.
async fn refusal(joiner: &Joiner) -> String {
    let mut cause = String::new();
    wait_until("it is refused", || match joiner.state() {
        JoinerState::NotJoined(why) if why != "not connected yet" => {
            cause = why;
            true
        }
        _ => false,
    })
    .await;
    cause
}

/// A machine in between with a TLS session of its own with each side; it passes on what it reads.
fn listen_in_between(front: SocketAddr) -> SocketAddr {
    let socket = net::listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = net::local_address(&socket).unwrap();
    let (listener, sessions) = (Listener::new(socket).unwrap(), sessions());
    loops::spawn_here(async move {
        loop {
            let (socket, _) = poll_fn(|cx| listener.poll_accept(cx)).await.unwrap();
            let stream = Stream::new(socket).unwrap();
            let session = penstock_tls::accept(&stream, &sessions, &mut Vec::new()).await;
            let joiner = Arc::new(session.unwrap().over(stream));
            let front = Arc::new(connect(front).await.unwrap());
            loops::spawn_here(pass_on(Arc::clone(&joiner), Arc::clone(&front)));
            loops::spawn_here(pass_on(front, joiner));
        }
    });
    address
}

async fn pass_on(from: Arc<Stream>, to: Arc<Stream>) {
    let mut buffer = vec![0; 4096];
    while let Ok(count @ 1..) = poll_fn(|cx| from.poll_read(cx, &mut buffer)).await {
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
    to.shutdown_write();
}

#[test]
fn a_machine_in_between_is_named_and_gets_nothing() {
    run_on_loop(async {
        let (front, upstream) = (JoinListener::default(), joined("shop"));
        configure(&front, KEY, &[&upstream]);
        let in_between = listen_in_between(listen(&front));
        let (victim, brought) = joiner(in_between, "shop", KEY);
        let cause = refusal(&victim).await;
        assert_eq!(cause, JoinError::Intercepted.to_string());
        // Without the key on one side it stays a wrong key.
        let (stranger, _) = joiner(
            in_between,
            "shop",
            "another key, of which nobody here knows",
        );
        assert_eq!(refusal(&stranger).await, "its key is another");
        assert_eq!(server_states(&upstream), []);
        assert_eq!(brought.load(Ordering::Relaxed), 0);
        // The same joiner without the machine in between.
        let direct = listen(&front);
        let (_joiner, _) = joiner(direct, "shop", KEY);
        wait_until("it is in", || server_states(&upstream).len() == 1).await;
    });
}

#[test]
fn plain_tcp_needs_a_word_on_both_sides() {
    run_on_loop(async {
        let (with_tls, upstream) = (JoinListener::default(), joined("shop"));
        configure(&with_tls, KEY, &[&upstream]);
        let plain = JoinListener::default();
        configure_with_tls(&plain, (KEY, false), &[&upstream]);
        let listening = |front: &JoinListener, sessions| {
            listen_with(&Arc::new(ArcSwap::from_pointee(front.clone())), sessions)
        };
        let (tls_address, plain_address) = (listen(&with_tls), listening(&plain, None));
        let (joiner, _) = joiner_with_tls(tls_address, "shop", (KEY, false));
        let cause = refusal(&joiner).await;
        assert_eq!(cause, JoinError::TlsRequired.to_string());
        let (joiner, _) = joiner_with_tls(plain_address, "shop", (KEY, true));
        let cause = refusal(&joiner).await;
        assert!(
            cause.starts_with("TLS: the front end answers without TLS"),
            "{cause}"
        );
        // Not even by a listener that was opened before a reload demanded TLS.
        let (joiner, _) = joiner_with_tls(listening(&with_tls, None), "shop", (KEY, false));
        let cause = refusal(&joiner).await;
        assert_eq!(cause, JoinError::TlsRequired.to_string());
        assert_eq!(server_states(&upstream), []);
        let (_joiner, _) = joiner_with_tls(plain_address, "shop", (KEY, false));
        wait_until("it is in", || server_states(&upstream).len() == 1).await;
    });
}

#[test]
fn a_front_end_that_closes_in_the_handshake_may_be_older() {
    run_on_loop(async {
        let socket = net::listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = net::local_address(&socket).unwrap();
        let listener = Listener::new(socket).unwrap();
        loops::spawn_here(async move {
            loop {
                let (socket, _) = poll_fn(|cx| listener.poll_accept(cx)).await.unwrap();
                let stream = Stream::new(socket).unwrap();
                let mut buffer = [0; 4096];
                let _ = poll_fn(|cx| stream.poll_read(cx, &mut buffer)).await;
            }
        });
        let (joiner, _) = joiner(address, "shop", KEY);
        let cause = refusal(&joiner).await;
        assert!(cause.contains("an older version of Penstock"), "{cause}");
    });
}

#[test]
fn another_version_is_told_what_is_spoken_here() {
    run_on_loop(async {
        let (front, upstream) = (JoinListener::default(), joined("shop"));
        configure(&front, KEY, &[&upstream]);
        let address = listen(&front);
        let old = "penstock-join 2 0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f\n";
        // As it was without TLS, and as a version to come may be with it.
        for (stream, greeting) in [
            (Stream::connect_tcp(address).await.unwrap(), old),
            (connect(address).await.unwrap(), "penstock-join 4 x\n"),
        ] {
            stream.write_all(greeting.as_bytes()).await.unwrap();
            let mut lines = LineStream::new(stream, Vec::new());
            let answer = clock::timeout(Duration::from_secs(10), lines.next_line()).await;
            assert_eq!(answer.expect("in time").unwrap(), "penstock-join 3 tls");
            let end = clock::timeout(Duration::from_secs(10), lines.next_line()).await;
            assert!(end.expect("in time").is_err(), "it is closed");
        }
    });
}
