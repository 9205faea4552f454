//! Streams survive a restart, a reload and an upgrade; a stop ends each cleanly.

use std::time::Instant;

use rustix::process::Signal;

use super::*;
use crate::support::{is_alive, kill};

/// This many streams of one channel.
fn listeners(server: &Server, count: u64) -> Vec<StreamClient> {
    let open = |_| StreamClient::open(server, "/stream/news");
    let listeners = (0..count).map(open).collect();
    wait_held(server, count);
    listeners
}

fn all_hear(listeners: &mut [StreamClient], words: &str) {
    for listener in listeners {
        listener.hear(words);
    }
}

#[test]
fn a_restart_of_the_application_cuts_no_stream() {
    let server = serve();
    let before = server.get("/pid").text();
    let mut listeners = listeners(&server, 20);
    let (code, stdout, stderr) = verb(&server, &["restart", "app"], "");
    assert_eq!((code, stdout.trim()), (0, "app: restarted"), "{stderr}");
    eventually(PATIENCE, "the old worker is gone", || {
        !is_alive(before.parse().unwrap())
    });
    assert_ne!(server.get("/pid").text(), before);
    listeners.push(StreamClient::open(&server, "/stream/news"));
    publish(&server, "news", "after the restart");
    all_hear(&mut listeners, "data: after the restart\n");
    assert_eq!(held(&server), 21);
}

#[test]
fn the_death_of_a_worker_cuts_no_stream() {
    let server = serve();
    let mut listeners = listeners(&server, 5);
    kill(server.get("/pid").text().parse().unwrap(), Signal::KILL);
    publish(&server, "news", "after the death");
    all_hear(&mut listeners, "data: after the death\n");
}

#[test]
fn a_reload_cuts_no_stream() {
    let server = serve();
    let mut listeners = listeners(&server, 20);
    // Another application in place of the old one, other limits, and one more route.
    let toml = server.site().read("penstock.toml");
    let more = "response_timeout = \"50s\"\n[hub]\nheartbeat_interval = \"7s\"\nmax_streams = 30\n\
                [[sites]]\n[[sites.routes]]\npath = \"/events/*\"\n\
                hub = { channel = \"{path.2}\", namespace = \"app\" }\n\
                [[sites.routes]]\npath = \"/*\"\napp = \"app\"\n";
    server
        .site()
        .write("penstock.toml", format!("{toml}{more}"));
    let (code, stdout, stderr) = verb(&server, &["reload"], "");
    assert_eq!(
        (code, stdout.trim()),
        (0, "reloaded"),
        "{stderr}\n{}",
        server.log()
    );
    assert_eq!(held(&server), 20);
    assert_eq!(server.admin_json()["hub"]["connections"]["max"], 30);
    listeners.push(StreamClient::open(&server, "/events/news"));
    listeners.push(StreamClient::open(&server, "/stream/news"));
    publish(&server, "news", "after the reload");
    all_hear(&mut listeners, "data: after the reload\n");
    // A rejected reload changes nothing either.
    server.site().write("penstock.toml", "nonsense");
    assert_eq!(verb(&server, &["reload"], "").0, 1);
    publish(&server, "news", "after the refusal");
    all_hear(&mut listeners, "data: after the refusal\n");
}

#[test]
fn a_stop_ends_each_stream_properly_and_within_its_clock() {
    let server = serve_with("", "[hub]\ndrain_timeout = \"1s\"\n");
    let mut listeners = listeners(&server, 60);
    publish(&server, "news", "the last");
    all_hear(&mut listeners, "data: the last\n");
    let began = Instant::now();
    server.signal(Signal::TERM);
    for listener in &mut listeners {
        assert!(listener.end().ends_with("\n"));
    }
    let status = server.wait_exit(PATIENCE);
    assert_eq!(status.code(), Some(0), "{}", server.log());
    assert!(began.elapsed() < PATIENCE / 2, "took {:?}", began.elapsed());
    assert!(!server.log().contains(" cut"), "{}", server.log());
}

#[test]
fn a_client_that_reads_nothing_does_not_hold_up_a_stop_for_ever() {
    let server = serve_with("", "[hub]\ndrain_timeout = \"100ms\"\n");
    let stuck = StreamClient::open(&server, "/stream/news");
    for _ in 0..20 {
        let body = "x".repeat(400 << 10);
        let item = format!(
            r#"{{"items": [{{"channel": "news", "http-stream": {{"content": "{body}"}}}}]}}"#
        );
        assert_eq!(post(&server, "/publish/", "", &item).status, 200);
    }
    server.signal(Signal::TERM);
    let status = server.wait_exit(PATIENCE);
    assert_eq!(status.code(), Some(0), "{}", server.log());
    drop(stuck);
}

#[test]
fn a_second_signal_does_not_wait_for_streams() {
    let server = serve_with("", "[hub]\ndrain_timeout = \"10m\"\n");
    let mut listeners = listeners(&server, 2);
    server.signal(Signal::TERM);
    server.wait_log("stopping: ");
    server.signal(Signal::TERM);
    let status = server.wait_exit(PATIENCE);
    assert_eq!(status.code(), Some(0), "{}", server.log());
    for listener in &mut listeners {
        listener.client.read_to_end();
    }
}

#[test]
fn an_upgrade_moves_streams_to_the_new_server() {
    let toml = "[hub]\ndrain_timeout = \"1s\"\nhistory = { max_messages = 100 }\n[[sites]]\n\
                [[sites.routes]]\npath = \"/events/*\"\n\
                hub = { channel = \"{path.2}\", namespace = \"app\" }\n\
                [[sites.routes]]\npath = \"/*\"\napp = \"app\"\n";
    let server = serve_with("", toml);
    let mut listeners = listeners(&server, 20);
    listeners.push(StreamClient::open(&server, "/events/news"));
    publish(&server, "news", "before");
    all_hear(&mut listeners, "data: before\n");
    let last = listeners[20].text();
    let last = last.lines().find_map(|line| line.strip_prefix("id: "));
    let last = last.unwrap().to_owned();
    let mut successor = server.pid();
    for round in ["first", "second", "third"] {
        let (code, stdout, stderr) = verb(&server, &["upgrade"], "");
        assert!(
            code == 0 && stdout.starts_with("upgraded: "),
            "{stdout}{stderr}\n{}",
            server.log()
        );
        let next = i32::try_from(server.admin_json()["pid"].as_i64().unwrap()).unwrap();
        assert_ne!(next, successor);
        // Nothing holds the old process any more.
        match successor == server.pid() {
            true => assert_eq!(server.wait_exit(PATIENCE).code(), Some(0)),
            false => eventually(PATIENCE, "the old process ends", || !is_alive(successor)),
        }
        successor = next;
        publish(&server, "news", round);
        all_hear(&mut listeners, &format!("data: {round}\n"));
    }
    let field = format!("Last-Event-ID: {last}\r\n");
    let mut back = StreamClient::asking(&server, "/events/news", &field);
    back.hear("data: third\n");
    let events = back.text();
    let data: Vec<_> = events
        .lines()
        .filter(|line| line.starts_with("data: "))
        .collect();
    assert_eq!(data, ["data: first", "data: second", "data: third"]);
    kill(successor, Signal::TERM);
    for listener in &mut listeners {
        listener.end();
    }
    eventually(PATIENCE, "the new one ends", || !is_alive(successor));
}

/// Publishes the events `begin..end`, each with its number.
fn publish_numbers(server: &Server, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let item = format!(
            r#"{{"items": [{{"channel": "news", "http-stream": {{"content": "data: {number}\n\n"}}}}]}}"#
        );
        assert_eq!(post(server, "/publish/", "", &item).status, 200);
    }
}

#[test]
fn an_upgrade_moves_streams_with_links() {
    let toml = format!("[server]\nthreads = 2\n{ONE}entry = \"app:app\"\n");
    let app = include_str!("../apps/linked_streams.py");
    let server = Site::new().file("app.py", app).config(&toml).serve(&[]);
    server.wait_ready("app");
    let open = |path| (0..10).map(|_| StreamClient::open(&server, path)).collect();
    let (mut following, mut noticed): (Vec<_>, Vec<_>) = (open("/next"), open("/left"));
    let (mut pid, mut count) = (server.pid(), 0);
    for _ in 0..2 {
        publish_numbers(&server, count..count + 10);
        // And while the streams move.
        std::thread::scope(|scope| {
            scope.spawn(|| publish_numbers(&server, count + 10..count + 60));
            let (code, stdout, stderr) = verb(&server, &["upgrade"], "");
            assert_eq!(code, 0, "{stdout}{stderr}\n{}", server.log());
        });
        count += 60;
        match pid == server.pid() {
            true => assert_eq!(server.wait_exit(PATIENCE).code(), Some(0)),
            false => eventually(PATIENCE, "the old process ends", || !is_alive(pid)),
        }
        pid = i32::try_from(server.admin_json()["pid"].as_i64().unwrap()).unwrap();
    }
    publish_numbers(&server, count..count + 1);
    let numbers: Vec<_> = (0..=count)
        .map(|number| format!("data: {number}"))
        .collect();
    for listener in following.iter_mut().chain(&mut noticed) {
        let text = listener.hear(&format!("data: {count}\n")).text();
        let data = text.lines().filter(|line| line.starts_with("data: "));
        assert!(data.skip(1).eq(&numbers), "{text}\n{}", server.log());
    }
    let hint = r#"{"items": [{"channel": "news", "http-stream": {"action": "hint"}}]}"#;
    assert_eq!(post(&server, "/publish/", "", hint).status, 200);
    all_hear(&mut following, "data: more of a\n");
    assert_eq!(server.site().read("gone.txt"), "");
    drop(noticed);
    eventually(PATIENCE, "the notices arrive", || {
        server.site().read("gone.txt").lines().count() == 10
    });
    drop(following);
    wait_held(&server, 0);
    kill(pid, Signal::TERM);
    eventually(PATIENCE, "the new one ends", || !is_alive(pid));
    assert_eq!(server.site().read("gone.txt").lines().count(), 10);
}

#[test]
fn a_publisher_that_keeps_its_connection_loses_nothing_by_an_upgrade() {
    let server = serve_with("keep_alive_drain = \"5s\"\n", "");
    let mut listener = StreamClient::open(&server, "/stream/news");
    let mut kept = server.control();
    let mut publish_kept = |text: &str| {
        let body =
            format!(r#"{{"items": [{{"channel": "news", "event": {{"data": "{text}"}}}}]}}"#);
        let length = body.len();
        kept.send(format!(
            "POST /publish/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}"
        ));
        let response = kept.expect_status(200);
        response.header("connection").map(str::to_owned)
    };
    assert_eq!(publish_kept("before"), None);
    let (code, stdout, stderr) = verb(&server, &["upgrade"], "");
    assert_eq!(code, 0, "{stdout}{stderr}\n{}", server.log());
    // The old server has taken it, and says that it is the last.
    assert_eq!(publish_kept("after").as_deref(), Some("close"));
    kept.expect_closed();
    listener.hear("data: before\n").hear("data: after\n");
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
    let pid = i32::try_from(server.admin_json()["pid"].as_i64().unwrap()).unwrap();
    kill(pid, Signal::TERM);
    eventually(PATIENCE, "the new one ends", || !is_alive(pid));
}

#[test]
fn a_history_file_keeps_messages_over_a_stop() {
    let toml = "[server]\nthreads = 2\n[hub]\nhistory_file = \"history\"\n[[sites]]\n\
                [[sites.routes]]\npath = \"/events/*\"\nhub = \"{path.2}\"\n";
    let site = Site::new().config(toml);
    let last_id = |client: &StreamClient| {
        let events = client.text();
        let mut ids = events.lines().filter_map(|line| line.strip_prefix("id: "));
        ids.next_back().unwrap().to_owned()
    };
    let returning = |server: &Server, id: &str| {
        StreamClient::asking(server, "/events/news", &format!("Last-Event-ID: {id}\r\n"))
    };
    let server = site.serve(&[]);
    let mut client = StreamClient::open(&server, "/events/news");
    publish(&server, "news", "one");
    let seen = last_id(client.hear("data: one\n"));
    drop(client);
    publish(&server, "news", "two");
    server.signal(Signal::TERM);
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
    assert!(
        server.log().contains("hub: kept 1 channels in "),
        "{}",
        server.log()
    );

    let server = site.serve(&[]);
    let mut client = returning(&server, &seen);
    publish(&server, "news", "three");
    client.hear("data: two\n").hear("data: three\n");
    assert!(!client.text().contains("event: gap"), "{}", client.text());
    // It was read once: what a crash loses is announced.
    let seen = last_id(&client);
    publish(&server, "news", "four");
    server.signal(Signal::KILL);
    server.wait_exit(PATIENCE);

    let server = site.serve(&[]);
    returning(&server, &seen).hear("event: gap\n");
}

#[test]
fn who_asks_for_a_stream_while_the_server_stops_is_sent_to_the_next() {
    let toml = "[server]\nthreads = 2\nkeep_alive_drain = \"5s\"\n[[sites]]\n[[sites.routes]]\n\
                path = \"/events/*\"\nhub = \"{path.2}\"\n";
    let server = Site::new().config(toml).serve(&[]);
    let mut kept = server.connect();
    kept.send("GET /elsewhere HTTP/1.1\r\nHost: a\r\n\r\n")
        .expect_status(404);
    let mut last = server.connect();
    server.signal(Signal::TERM);
    // The listeners end first: until then connections are kept as usual.
    eventually(PATIENCE, "the next server's turn", || {
        last.send("GET /elsewhere HTTP/1.1\r\nHost: a\r\n\r\n");
        last.expect_status(404).header("connection") == Some("close")
    });
    // A browser gives up after an error, and reconnects after an end.
    kept.send("GET /events/news HTTP/1.1\r\nHost: a\r\n\r\n");
    let response = kept.expect_status(200);
    assert_eq!(response.header("content-type"), Some("text/event-stream"));
    assert_eq!(response.header("connection"), Some("close"));
    kept.expect_closed();
    assert_eq!(
        server.wait_exit(PATIENCE).code(),
        Some(0),
        "{}",
        server.log()
    );
}
