//! Misbehaving servers: each fault is counted under its own name, and the run continues.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use penstock_bench::load::{Address, LoadEvent, WindowEnd, execute};
use penstock_bench::report::ErrorCounts;

use crate::server::{HELLO, Server, nowhere, refusing};
use crate::{load, plan, run, run_requests};

/// Every second connection misbehaves in its second request; all others respond.
fn half_bad(bad: impl Fn(&mut crate::server::Connection) + Send + Sync + 'static) -> Server {
    Server::start(move |connection| {
        if connection.number % 2 == 1 {
            connection.request();
            bad(connection);
            return;
        }
        // Two good responses, then the connection closes with an announcement.
        connection.request();
        connection.send("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    })
}

#[test]
fn each_mistake_has_its_own_name_and_the_run_goes_on() {
    type Case = (&'static str, &'static str, fn(&ErrorCounts) -> u64);
    let cases: [Case; 9] = [
        ("closes early", "", |it| it.closed),
        ("cuts the head", "HTTP/1.1 200 OK\r\nConte", |it| it.closed),
        (
            "fewer bytes",
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
            |it| it.closed,
        ),
        (
            "cuts a chunk",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nabc",
            |it| it.closed,
        ),
        ("garbage", "SSH-2.0-OpenSSH\r\n", |it| it.malformed),
        (
            "bad chunk",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
            |it| it.malformed,
        ),
        (
            "two lengths",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\na",
            |it| it.malformed,
        ),
        (
            "more bytes",
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nmore",
            |it| it.length,
        ),
        (
            "more chunks",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n0\r\n\r\n",
            |it| it.length,
        ),
    ];
    for (name, answer, count) in cases {
        let server = half_bad(move |connection| connection.send(answer));
        let figures = run_requests(load(server.address.clone(), 1), 20);
        assert_eq!(count(&figures.errors), 10, "{name}: {:?}", figures.errors);
        assert_eq!(figures.errors.total(), 10, "{name}: {:?}", figures.errors);
        assert_eq!(figures.requests, 10, "{name}");
        assert_eq!(figures.total.count, 10, "{name}: failures have no time");
        assert!(!figures.is_clean(), "{name}");
    }
}

#[test]
fn a_reset_is_told_from_a_close() {
    let server = Server::start(|connection| {
        // Closed with an unread request, to which the kernel responds with a reset.
        connection.wait_for_bytes();
    });
    let figures = run_requests(load(server.address.clone(), 1), 10);
    assert_eq!((figures.errors.reset, figures.errors.total()), (10, 10));
}

#[test]
fn bytes_that_follow_a_response_later_are_its_overhang() {
    let server = Server::start(|connection| {
        while connection.request().is_some() {
            connection.send(HELLO);
            // Arrives with the next request's response, or before it.
            if connection.request().is_some() {
                connection.send("overhang");
                connection.send(HELLO);
            }
        }
    });
    let figures = run_requests(load(server.address.clone(), 1), 10);
    assert_eq!(
        (figures.errors.length, figures.errors.total()),
        (5, 5),
        "{figures:?}"
    );
}

#[test]
fn refused_connections_are_counted_without_a_storm() {
    for (name, address) in [("tcp", refusing()), ("unix", nowhere())] {
        let start = Instant::now();
        let figures = run_requests(load(address.clone(), 4), 20);
        assert_eq!(figures.errors.connect, 20, "{name}");
        assert_eq!((figures.requests, figures.bytes), (0, 0), "{name}");
        // Delays of 1, 2, 4, 8 ms come between five attempts of each connection.
        assert!(start.elapsed() >= Duration::from_millis(15), "{name}");

        let window = WindowEnd::Elapsed(Duration::from_millis(500));
        let figures = run(&plan(load(address, 4), window));
        assert!(
            (4..80).contains(&figures.errors.connect),
            "{name}: {:?}",
            figures.errors
        );
    }
}

#[test]
fn a_server_that_comes_back_is_found_again() {
    let Address::Tcp(address) = refusing() else {
        panic!("a tcp address");
    };
    let (come, comes) = std::sync::mpsc::channel();
    let later = std::thread::spawn(move || {
        comes.recv_timeout(Duration::from_secs(10)).unwrap();
        let listener = TcpListener::bind(address).unwrap();
        let (mut socket, _) = listener.accept().unwrap();
        let mut buffer = [0; 1024];
        while std::io::Read::read(&mut socket, &mut buffer).is_ok_and(|count| count > 0) {
            std::io::Write::write_all(&mut socket, HELLO.as_bytes()).unwrap();
        }
    });
    let plan = plan(load(Address::Tcp(address), 1), WindowEnd::Requests(50));
    let mut watch = |event| {
        if matches!(event, LoadEvent::Progress(progress) if progress.errors > 0) {
            // Once is enough.
            let _ = come.send(());
        }
    };
    let figures = execute(&plan, &mut watch).unwrap().remove(0);
    assert!(
        figures.errors.connect > 0 && figures.requests > 0,
        "{figures:?}"
    );
    assert_eq!(figures.errors.connect + figures.requests, 50);
    later.join().unwrap();
}

#[test]
fn a_server_that_never_answers_is_timed_out() {
    let server = Server::start(|connection| while connection.request().is_some() {});
    let mut silent = load(server.address.clone(), 3);
    silent.timeout = Duration::from_millis(100);
    let figures = run_requests(silent, 6);
    assert_eq!((figures.errors.timeout, figures.requests), (6, 0));
    assert_eq!(
        server.connections(),
        6,
        "a connection that timed out is not used again"
    );
}

#[test]
fn a_response_that_never_ends_is_timed_out() {
    let server = Server::start(|connection| {
        connection.request();
        connection.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsome");
        connection.request();
    });
    let mut slow = load(server.address.clone(), 2);
    slow.timeout = Duration::from_millis(500);
    let figures = run_requests(slow, 4);
    assert_eq!((figures.errors.timeout, figures.errors.total()), (4, 4));
    assert_eq!(figures.body_bytes, 16, "what was received is counted");
}

#[test]
fn a_connection_closed_while_idle_is_opened_again_and_is_no_error() {
    let server = Server::start(|connection| {
        // The second request is read and not answered: a close as seen from a reused connection.
        for _ in 0..3 {
            connection.request();
            connection.send(HELLO);
        }
        connection.request();
    });
    let figures = run_requests(load(server.address.clone(), 1), 12);
    assert_eq!((figures.requests, server.connections()), (12, 4));
    assert_eq!((figures.errors.total(), figures.retried), (0, 3));
}

/// Responds to that many requests, then reads everything and sends nothing.
fn falls_silent(after: u64) -> Server {
    let count = AtomicU64::new(0);
    Server::start(move |connection| {
        while connection.request().is_some() {
            if count.fetch_add(1, Ordering::Relaxed) < after {
                connection.send(HELLO);
            }
        }
    })
}

#[test]
fn requests_that_a_server_never_answered_show_at_the_end() {
    for (name, pace) in [("closed", None), ("open", Some(50.0))] {
        let server = falls_silent(3);
        let mut load = load(server.address.clone(), 3);
        load.rate = pace;
        let until = WindowEnd::Elapsed(Duration::from_millis(1_500));
        let figures = run(&plan(load, until));
        assert_eq!((figures.requests, figures.errors.total()), (3, 0), "{name}");
        assert_eq!(figures.unfinished, 3, "{name}");
        assert!(
            figures.oldest_unfinished_us > 1_000_000,
            "{name}: {figures:?}"
        );
        assert!(!figures.is_clean(), "{name}");
        // An open loop's requests have waited that long.
        let shows = figures.total.max > 1_000_000;
        assert_eq!(shows, pace.is_some(), "{name}");
    }
}

#[test]
fn a_limited_window_ends_when_nothing_is_answered_any_more() {
    let server = falls_silent(5);
    let mut load = load(server.address.clone(), 1);
    load.timeout = Duration::from_millis(100);
    let begun = Instant::now();
    // Each after the fifth would wait for its timeout: 100 s.
    let figures = run_requests(load, 1_000);
    assert!(begun.elapsed() < Duration::from_secs(20));
    assert!(figures.requests == 5, "{figures:?}");
    assert!(figures.errors.timeout > 0 && !figures.is_clean());
}
