//! Limits: a client that reads nothing costs no other client anything, and full limits are
//! reported.

use super::*;

/// Publishes messages of a size, each with its number.
fn flood(server: &Server, count: usize, bytes: usize) {
    let filling = "x".repeat(bytes);
    for number in 0..count {
        let content = format!("{number}:{filling}");
        let item = format!(
            r#"{{"items": [{{"channel": "news", "http-stream": {{"content": "{content};"}}}}]}}"#
        );
        assert_eq!(post(server, "/publish/", "", &item).status, 200);
    }
}

/// The numbers of the messages that arrived whole.
fn numbers(text: &str) -> Vec<usize> {
    let messages = text.split(';').filter_map(|message| {
        let (number, _) = message.rsplit_once(':')?;
        let digits = number.rsplit(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse().ok()
    });
    messages.collect()
}

#[test]
fn a_client_that_reads_nothing_delays_nobody() {
    let server = serve_with("", "[hub]\nmax_backlog = \"100KiB\"\n");
    let mut stuck = StreamClient::open(&server, "/stream/news");
    let mut others = [(); 5].map(|()| StreamClient::open(&server, "/stream/news"));
    wait_held(&server, 6);
    for round in 0..10 {
        flood(&server, 20, 50_000);
        for other in &mut others {
            let expected = (round + 1) * 20;
            other.until("they hear all of it", |text| {
                text.matches(';').count() == expected
            });
        }
    }
    for other in &mut others {
        let expected: Vec<usize> = (0..10).flat_map(|_| 0..20).collect();
        assert_eq!(numbers(&other.text()), expected);
    }
    let hub = server.admin_json()["hub"].clone();
    assert!(hub["counters"]["dropped"].as_u64().unwrap() > 0, "{hub}");
    assert!(
        hub["backlog_bytes"]["used"].as_u64().unwrap() <= 200 << 10,
        "{hub}"
    );
    // Its late reading has gaps, but is framed, with whole messages only.
    publish(&server, "news", "the end");
    stuck.hear("data: the end\n");
    let text = stuck.text();
    let whole = |message: &str| message.matches('x').count() == 50_000;
    let messages: Vec<_> = text.split(';').filter(|m| m.contains(":x")).collect();
    assert!(
        messages.iter().all(|message| whole(message)),
        "a part of a message"
    );
    assert!(messages.len() < 200);
}

#[test]
fn a_client_that_is_too_slow_is_closed_where_that_is_wished() {
    let server = serve_with(
        "",
        "[hub]\nmax_backlog = \"100KiB\"\nslow_policy = \"disconnect\"\n",
    );
    let _stuck = StreamClient::open(&server, "/stream/news");
    let mut other = StreamClient::open(&server, "/stream/news");
    wait_held(&server, 2);
    for round in 1..=10 {
        flood(&server, 20, 50_000);
        other.until("it hears all of it", |text| {
            text.matches(';').count() == round * 20
        });
    }
    eventually(PATIENCE, "the slow one is closed", || {
        server.admin_json()["hub"]["counters"]["closed_slow"] == 1
    });
    wait_held(&server, 1);
    publish(&server, "news", "still there");
    other.hear("data: still there\n");
}

#[test]
fn more_streams_than_the_bound_are_refused_and_the_worker_is_free() {
    let server = serve_with("", "[hub]\nmax_streams = 2\n");
    let first = StreamClient::open(&server, "/stream/news");
    let mut second = StreamClient::open(&server, "/stream/news");
    for _ in 0..3 {
        let refused = server.get("/stream/news");
        assert_eq!(refused.status, 503);
        assert!(refused.header("retry-after").is_some());
        assert!(
            refused
                .headers
                .iter()
                .all(|(name, _)| !name.to_lowercase().starts_with("grip"))
        );
    }
    assert_eq!(server.get("/plain").text(), "/plain");
    drop(first);
    wait_held(&server, 1);
    let mut third = StreamClient::open(&server, "/stream/news");
    publish(&server, "news", "both");
    second.hear("data: both\n");
    third.hear("data: both\n");
}

/// Browsers never reconnect after an error status.
#[test]
fn an_event_source_without_room_is_told_when_to_come_back() {
    let server = serve_with("", "[hub]\nmax_streams = 1\n");
    let _first = StreamClient::open(&server, "/stream/news");
    for _ in 0..3 {
        let mut client = server.connect();
        client.send("GET /stream/news HTTP/1.1\r\nHost: a\r\nAccept: text/event-stream\r\n\r\n");
        let answer = client.expect_status(200);
        assert_eq!(answer.header("content-type"), Some("text/event-stream"));
        assert!((7_500..22_500).contains(&retry_of(&answer.text())));
    }
    server.wait_log("hub: stream of events refused: hub.max_streams (1) connections are held");
    assert_eq!(server.get("/stream/news").status, 503);
}

#[test]
fn streams_leave_connections_to_pages() {
    let server = serve_with("", "[limits]\nconnections = 40\n");
    let mut streams: Vec<_> = (0..36)
        .map(|_| {
            let mut client = server.connect();
            client.send("GET /stream/news HTTP/1.1\r\nHost: a\r\n\r\n");
            client
        })
        .collect();
    // They keep their connections, also the refused ones.
    wait_held(&server, 30);
    for _ in 0..5 {
        assert_eq!(server.get("/plain").text(), "/plain");
    }
    let held = "penstock_limit_used{limit=\"hub.max_streams\"}";
    assert_eq!(server.metric(held), Some(30.0));
    let reached = "penstock_limit_reached_total{limit=\"hub.max_streams\"}";
    assert_eq!(server.metric(reached), Some(6.0));
    streams.clear();
}

#[test]
fn where_descriptors_are_fewer_streams_leave_room_as_well() {
    let server = serve_with("max_open_files = 3000", "");
    let max = |limit| server.metric(&format!("penstock_limit_value{{limit=\"{limit}\"}}"));
    let connections = max("limits.connections").unwrap();
    assert!(connections < 3000.0);
    let streams = max("hub.max_streams").unwrap();
    assert!(
        streams > 0.0 && streams <= connections * 0.75,
        "{streams} of {connections}"
    );
}

#[test]
fn an_event_source_without_room_is_told_to_come_back() {
    let route = "[[sites]]\n[[sites.routes]]\npath = \"/e/*\"\nhub = \"{path.2}\"\n\
                 [[sites.routes]]\npath = \"/.well-known/mercure\"\nmercure = { anonymous = true, \
                 publisher_key = \"!ChangeThisMercureHubJWTSecretKey!\" }\n";
    let site = Site::new().config(&format!("[hub]\nmax_streams = 1\n{route}"));
    let server = site.serve(&[]);
    let mut first = server.connect();
    first.send("GET /e/news HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_held(&server, 1);
    for path in ["/e/news", "/.well-known/mercure?topic=a"] {
        let mut browser = server.connect();
        browser.send(format!(
            "GET {path} HTTP/1.1\r\nHost: a\r\nAccept: text/event-stream\r\n\r\n"
        ));
        let answer = browser.expect_status(200);
        assert_eq!(answer.header("content-type"), Some("text/event-stream"));
        assert!((7_500..22_500).contains(&retry_of(&answer.text())));
        assert_eq!(server.get(path).status, 503, "{path}");
    }
    server.wait_log("hub: stream of events refused: hub.max_streams (1) connections are held");
}

#[test]
fn one_client_behind_a_proxy_holds_no_more_than_its_bound() {
    let server = serve_with("", "[hub]\nmax_streams_per_client = 2\n");
    let ask = |address: &str| {
        let mut client = server.connect();
        client.send(format!(
            "GET /stream/news HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {address}\r\n\r\n"
        ));
        client
    };
    let held = ["2001:db8::1", "2001:db8::2", "192.0.2.1"].map(ask);
    wait_held(&server, 3);
    let refused = ask("2001:db8::3").expect_status(503);
    assert!(refused.header("retry-after").is_some());
    server.wait_log("2001:db8::/64 holds hub.max_streams_per_client (2) connections");
    let _other = ask("192.0.2.1");
    // All are held for a proxy that names no client.
    let _unnamed: Vec<_> = (0..3)
        .map(|_| StreamClient::open(&server, "/stream/news"))
        .collect();
    wait_held(&server, 7);
    drop(held);
}

/// As `nc -N` does: with the request.
#[test]
fn a_client_that_sends_nothing_more_stays() {
    let server = serve_with(
        "",
        "[[sites]]\n[[sites.routes]]\npath = \"/hub\"\nhub = { channel = \"news\", namespace = \"app\" }\n[[sites.routes]]\napp = \"app\"\n",
    );
    let mut listeners: Vec<_> = ["/stream/news", "/instruct/news", "/hub"]
        .iter()
        .map(|path| {
            let mut client = server.connect();
            client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
            client.close_write();
            StreamClient::over(client)
        })
        .collect();
    wait_held(&server, 3);
    for message in ["first", "second"] {
        publish(&server, "news", message);
        for listener in &mut listeners {
            listener.hear(&format!("data: {message}\n\n"));
        }
    }
    assert_eq!(held(&server), 3);
    let mut old = server.connect();
    old.send("GET /stream/news HTTP/1.0\r\n\r\n").close_write();
    wait_held(&server, 4);
    publish(&server, "news", "third");
    eventually(PATIENCE, "an old client hears it", || {
        let read = old.read_some();
        assert!(read.is_none_or(|bytes| !bytes.is_empty()), "it stays open");
        find(&old.received, b"data: third\n\n").is_some()
    });
    drop((listeners, old));
    eventually(PATIENCE, "they are noticed as gone", || {
        publish(&server, "news", "to nobody");
        held(&server) == 0
    });
}

#[test]
fn bytes_behind_the_request_and_a_half_close_harm_nobody() {
    let server = serve();
    let mut talking = StreamClient::open(&server, "/stream/news");
    let mut pipelined = server.connect();
    pipelined
        .send("GET /stream/news HTTP/1.1\r\nHost: a\r\n\r\nGET /plain HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut pipelined = StreamClient::over(pipelined);
    let mut closing = StreamClient::open(&server, "/stream/news");
    wait_held(&server, 3);
    talking
        .client
        .send("GET /plain HTTP/1.1\r\nHost: a\r\n\r\n");
    publish(&server, "news", "all the same");
    talking.hear("data: all the same\n");
    pipelined.hear("data: all the same\n");
    for listener in [&talking, &pipelined] {
        assert!(!listener.text().contains("/plain"), "{}", listener.text());
    }
    // One that only closed its sending side still receives; one that disconnected is noticed.
    closing.client.close_write();
    publish(&server, "news", "to those who listen");
    closing.hear("data: to those who listen\n");
    assert_eq!(held(&server), 3);
    drop(closing);
    eventually(PATIENCE, "what is sent to nobody tells", || {
        publish(&server, "news", "to nobody");
        held(&server) == 2
    });
    // A client that keeps sending is no subscriber.
    let noise = vec![b'x'; 64 << 10];
    eventually(PATIENCE, "the one that talks is cut", || {
        talking.client.try_send(&noise).is_err() || held(&server) == 1
    });
    wait_held(&server, 1);
}
