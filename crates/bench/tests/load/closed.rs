//! Closed loops: exact counts and bytes, every framing, several requests and addresses, the window.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use penstock_bench::load::{LoadEvent, RequestOrder, WindowEnd, execute};

use crate::server::{HELLO, Server};
use crate::{load, plan, run, run_requests, shape};

#[test]
fn counts_requests_and_bytes_exactly() {
    for (name, connections, requests, threads) in [
        ("one connection", 1, 50, 1),
        ("many connections", 8, 400, 1),
        ("fewer requests than connections", 20, 7, 1),
        ("two loops", 6, 300, 2),
        ("more loops than connections", 1, 20, 3),
    ] {
        let server = Server::answering(HELLO);
        let mut plan = plan(
            load(server.address.clone(), connections),
            WindowEnd::Requests(requests),
        );
        plan.threads = threads;
        let figures = run(&plan);
        assert_eq!(figures.requests, requests, "{name}");
        assert_eq!(server.requests(), requests, "{name}");
        assert_eq!(figures.bytes, requests * HELLO.len() as u64, "{name}");
        assert_eq!(figures.body_bytes, requests * 5, "{name}");
        assert_eq!(figures.total.count, requests, "{name}");
        assert_eq!(figures.first_byte.count, requests, "{name}");
        assert_eq!(figures.statuses.success, requests, "{name}");
        assert!(figures.is_clean(), "{name}: {figures:?}");
        assert!(
            figures.seconds > 0.0 && figures.connect.count <= connections.into(),
            "{name}"
        );
        assert_eq!(figures.generator.threads, threads, "{name}");
    }
}

#[test]
fn reads_every_framing() {
    for (name, line, answer, body_bytes, connections) in [
        ("length", "GET /", HELLO, 5, 1),
        (
            "chunked",
            "GET /",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n3;x=y\r\nyou\r\n0\r\n\r\n",
            8,
            1,
        ),
        ("204", "GET /", "HTTP/1.1 204 No Content\r\n\r\n", 0, 1),
        (
            "304",
            "GET /",
            "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n",
            0,
            1,
        ),
        (
            "head",
            "HEAD /",
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n",
            0,
            1,
        ),
        (
            "interim",
            "GET /",
            "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            2,
            1,
        ),
        (
            "closing",
            "GET /",
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
            2,
            10,
        ),
    ] {
        let server = Server::answering(answer);
        let mut load = load(server.address.clone(), 1);
        load.requests = vec![shape(server.address.clone(), line)];
        let figures = run_requests(load, 10);
        assert_eq!(figures.requests, 10, "{name}: {figures:?}");
        assert_eq!(figures.errors.total(), 0, "{name}: {figures:?}");
        assert_eq!(figures.body_bytes, 10 * body_bytes, "{name}");
        assert_eq!(figures.bytes, 10 * answer.len() as u64, "{name}");
        assert_eq!(server.connections(), connections, "{name}");
    }
}

#[test]
fn reads_a_body_that_ends_with_the_connection() {
    let server = Server::start(|connection| {
        connection.request();
        connection.send("HTTP/1.0 200 OK\r\n\r\n");
        connection.send("all of it");
    });
    let figures = run_requests(load(server.address.clone(), 2), 10);
    assert!(figures.is_clean(), "{figures:?}");
    assert_eq!((figures.requests, figures.body_bytes), (10, 90));
}

#[test]
fn sends_and_receives_more_than_sockets_hold() {
    const SENT: usize = 3_000_000;
    let server = Server::start(|connection| {
        let body = "x".repeat(1_000_000);
        while connection.request().is_some() {
            connection.body(SENT);
            connection.send(&format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
                4 * body.len()
            ));
            (0..4).for_each(|_| connection.send(&body));
        }
    });
    let mut load = load(server.address.clone(), 2);
    let head = format!("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: {SENT}\r\n\r\n");
    load.requests[0].bytes = [head.as_bytes(), &vec![b'y'; SENT]].concat().into();
    let figures = run_requests(load, 6);
    assert!(figures.is_clean(), "{figures:?}");
    assert_eq!((figures.requests, figures.body_bytes), (6, 24_000_000));
    assert!(server.connections() <= 2);
}

#[test]
fn opens_a_connection_for_each_request_when_none_is_kept() {
    let server = Server::answering(HELLO);
    let mut load = load(server.address.clone(), 3);
    load.keep_alive = false;
    let figures = run_requests(load, 30);
    assert!(figures.is_clean(), "{figures:?}");
    assert_eq!((figures.requests, server.connections()), (30, 30));
    assert_eq!(figures.connect.count, 30);
    assert!(
        figures.total.mean >= figures.connect.mean,
        "it counts from the connect"
    );
}

#[test]
fn reaches_a_unix_socket() {
    let server = Server::start_unix(|connection| {
        while connection.request().is_some() {
            connection.send(HELLO);
        }
    });
    let figures = run_requests(load(server.address.clone(), 4), 100);
    assert!(figures.is_clean(), "{figures:?}");
    assert_eq!((figures.requests, server.requests()), (100, 100));
}

#[test]
fn sends_several_shapes_in_order() {
    let server = Server::answering(HELLO);
    let mut load = load(server.address.clone(), 1);
    let paths = ["GET /a", "GET /b", "GET /c"];
    load.requests = paths.map(|line| shape(server.address.clone(), line)).into();
    load.order = RequestOrder::Sequence;
    run_requests(load, 7);
    let expected = [
        "GET /a", "GET /b", "GET /c", "GET /a", "GET /b", "GET /c", "GET /a",
    ];
    assert_eq!(server.lines(), expected);
}

#[test]
fn draws_several_shapes_by_weight_from_several_servers() {
    let (heavy, light) = (Server::answering(HELLO), Server::answering(HELLO));
    let mut load = load(heavy.address.clone(), 4);
    load.requests.push(shape(light.address.clone(), "GET /"));
    load.requests[0].weight = 3;
    let figures = run_requests(load, 1000);
    assert!(figures.is_clean(), "{figures:?}");
    assert_eq!(heavy.requests() + light.requests(), 1000);
    assert!(
        (650..850).contains(&heavy.requests()),
        "{}",
        heavy.requests()
    );
    assert!(heavy.connections() <= 4 && light.connections() <= 4);
}

#[test]
fn counts_responses_by_class() {
    let server = Server::start(|connection| {
        while let Some(line) = connection.request() {
            let status = line.trim_start_matches("GET /");
            connection.send(&format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n"));
        }
    });
    let mut load = load(server.address.clone(), 1);
    let lines = ["GET /200", "GET /302", "GET /404", "GET /503", "GET /999"];
    load.requests = lines.map(|line| shape(server.address.clone(), line)).into();
    load.order = RequestOrder::Sequence;
    let statuses = run_requests(load, 10).statuses;
    assert_eq!((statuses.success, statuses.redirection), (2, 2));
    assert_eq!(
        (statuses.client_error, statuses.server_error, statuses.other),
        (2, 2, 2)
    );
}

#[test]
fn the_warm_up_is_not_counted_and_its_connections_stay() {
    let server = Server::answering(HELLO);
    let mut plan = plan(load(server.address.clone(), 2), WindowEnd::Requests(50));
    plan.warm_up = Duration::from_millis(300);
    let mut calls = Vec::new();
    let mut watch = |event| {
        calls.push(match event {
            LoadEvent::WindowBegins => "begins",
            LoadEvent::WindowEnds => "ends",
            LoadEvent::AfterWindow => "after",
            LoadEvent::Progress(progress) if progress.is_measured => "measured",
            LoadEvent::Progress(_) => "warm-up",
        });
    };
    let figures = execute(&plan, &mut watch).unwrap().remove(0);
    assert_eq!((figures.requests, figures.total.count), (50, 50));
    assert!(server.requests() > 50);
    assert_eq!((server.connections(), figures.connect.count), (2, 0));
    assert_eq!(calls, ["warm-up", "begins", "ends", "after"]);
}

/// Does something when the window begins.
fn at_begin(mut act: impl FnMut()) -> impl FnMut(LoadEvent) {
    move |event| {
        if let LoadEvent::WindowBegins = event {
            act();
        }
    }
}

/// Responds after 50 ms, and counts the waiting requests.
fn slow() -> (Server, Arc<AtomicU64>) {
    let waiting = Arc::new(AtomicU64::new(0));
    let shared = Arc::clone(&waiting);
    let server = Server::start(move |connection| {
        while connection.request().is_some() {
            shared.fetch_add(1, Ordering::Relaxed);
            crate::server::take(Duration::from_millis(50));
            shared.fetch_sub(1, Ordering::Relaxed);
            connection.send(HELLO);
        }
    });
    (server, waiting)
}

#[test]
fn a_limited_window_begins_when_nothing_is_under_way() {
    let (server, waiting) = slow();
    let mut plan = plan(load(server.address.clone(), 8), WindowEnd::Requests(8));
    plan.warm_up = Duration::from_millis(120);
    let mut seen = None;
    let begins = at_begin(|| seen = Some(waiting.load(Ordering::Relaxed)));
    let figures = execute(&plan, &mut { begins }).unwrap().remove(0);
    assert_eq!((seen, figures.requests), (Some(0), 8));
    assert!(server.requests() >= 24, "{}", server.requests());
}

#[test]
fn what_ends_within_a_window_of_time_counts_whenever_it_began() {
    let window = Arc::new(AtomicU64::new(0));
    let begun = Arc::clone(&window);
    // The first response comes in the window, a second one never.
    let server = Server::start(move |connection| {
        if connection.request().is_some() {
            while begun.load(Ordering::Acquire) == 0 {
                crate::server::take(Duration::from_millis(5));
            }
            crate::server::take(Duration::from_millis(20));
            connection.send(HELLO);
        }
        while connection.request().is_some() {}
    });
    let until = WindowEnd::Elapsed(Duration::from_millis(300));
    let mut plan = plan(load(server.address.clone(), 1), until);
    plan.warm_up = Duration::from_millis(50);
    let begins = at_begin(|| window.store(1, Ordering::Release));
    let figures = execute(&plan, &mut { begins }).unwrap().remove(0);
    assert_eq!((figures.requests, figures.total.count), (1, 1));
    assert!(figures.total.max >= 50_000, "{}", figures.total.max);
}

#[test]
fn a_window_of_time_is_as_long_as_asked() {
    let server = Server::answering(HELLO);
    let plan = plan(
        load(server.address.clone(), 2),
        WindowEnd::Elapsed(Duration::from_millis(600)),
    );
    let mut events = Vec::new();
    let mut watch = |event| events.push(event);
    let figures = execute(&plan, &mut watch).unwrap().remove(0);
    assert!(
        (0.55..2.0).contains(&figures.seconds),
        "{}",
        figures.seconds
    );
    assert!(figures.requests > 0 && figures.requests <= server.requests());
    assert!(server.requests() - figures.requests <= 2);
    let [
        LoadEvent::WindowBegins,
        ..,
        LoadEvent::Progress(last),
        LoadEvent::WindowEnds,
        _,
    ] = events[..]
    else {
        panic!("{events:?}");
    };
    assert!(last.is_measured && last.requests > 0 && last.requests <= figures.requests);
    let rate = figures.requests_per_second * figures.seconds;
    #[allow(clippy::cast_precision_loss, reason = "few requests")]
    let requests = figures.requests as f64;
    assert!((rate - requests).abs() < 0.01);
}

#[test]
fn the_stop_flag_ends_any_window_soon() {
    for (name, until, warm_up) in [
        ("time", WindowEnd::Elapsed(Duration::from_secs(60)), 0),
        ("requests", WindowEnd::Requests(u64::MAX), 0),
        ("warm-up", WindowEnd::Requests(1), 60),
    ] {
        let server = Server::answering(HELLO);
        let mut plan = plan(load(server.address.clone(), 2), until);
        plan.warm_up = Duration::from_secs(warm_up);
        let stop = Arc::clone(&plan.stop);
        let mut stopped = None;
        let mut watch = |event| {
            if let LoadEvent::Progress(_) = event {
                stopped.get_or_insert_with(Instant::now);
                stop.store(true, Ordering::Relaxed);
            }
        };
        let figures = execute(&plan, &mut watch).unwrap().remove(0);
        let took = stopped.unwrap().elapsed();
        assert!(took < Duration::from_millis(500), "{name}: {took:?}");
        assert_eq!(figures.requests > 0, warm_up == 0, "{name}");
    }
}

#[test]
fn two_loads_at_once_have_figures_of_their_own() {
    let (fast, slow) = (
        Server::answering(HELLO),
        Server::answering("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"),
    );
    let mut plan = plan(load(fast.address.clone(), 2), WindowEnd::Requests(200));
    plan.loads[0].name = "a".into();
    plan.loads.push(load(slow.address.clone(), 1));
    plan.loads[1].name = "b".into();
    plan.threads = 2;
    let figures = execute(&plan, &mut |_| {}).unwrap();
    assert_eq!(
        (figures[0].name.as_str(), figures[1].name.as_str()),
        ("a", "b")
    );
    assert_eq!(figures[0].requests + figures[1].requests, 200);
    assert_eq!(figures[0].requests, fast.requests());
    assert_eq!(figures[1].statuses.client_error, slow.requests());
}
