//! Slow and silent clients are disconnected as configured, and do not affect others.
//!
//! Each test's configuration has short timeouts. The lower bound is strict, since the client's
//! clock starts first; the upper one only distinguishes an end from none. A slow client paces
//! itself by reads with a timeout, which also see the end at once.

use std::time::{Duration, Instant};

use crate::support::{PATIENCE, RawClient, Server, Site, eventually};

const LIMITS: &str = r#"
[limits]
header_timeout = "400ms"
idle_timeout = "700ms"
body_idle_timeout = "300ms"
min_body_rate = "1000B/s"
body_rate_grace = "500ms"
[apps.site]
processes = 1
"#;

/// The maximum delay of an end on a busy machine.
const SLACK: Duration = Duration::from_secs(4);

/// How often a slow client sends a byte.
const PACE: Duration = Duration::from_millis(20);

fn server() -> Server {
    let server = Site::with_app().config(LIMITS).serve(&[]);
    server.wait_ready("site");
    server
}

/// Expects the end of the connection, after a response with this status if any.
#[track_caller]
fn ends(client: &mut RawClient, began: Instant, after_ms: u64, status: Option<u16>) {
    if let Some(status) = status {
        let response = client.expect_status(status);
        assert_eq!(response.header("connection"), Some("close"));
    }
    client.expect_closed();
    let (took, after) = (began.elapsed(), Duration::from_millis(after_ms));
    assert!(took >= after, "ended after {took:?}, not {after:?}");
    assert!(took < after + SLACK, "ended after {took:?}, not {after:?}");
}

/// Sends `byte` again and again until the server responds or closes.
fn dribble(client: &mut RawClient, byte: &[u8]) {
    let deadline = Instant::now() + PATIENCE;
    client.patience(PACE);
    while client.read_some().is_none() {
        assert!(Instant::now() < deadline, "nobody stops a dribbling client");
        let _ = client.try_send(byte);
    }
    client.patience(PATIENCE);
}

#[test]
fn ends_a_connection_that_never_says_anything() {
    let server = server();
    let began = Instant::now();
    let mut client = server.connect();
    ends(&mut client, began, 400, None);
}

/// The timeout of the first head runs from the accept: initial silence is no extra time.
#[test]
fn ends_a_first_head_that_begins_late() {
    let limits = "[limits]\nheader_timeout = \"1500ms\"\n[apps.site]\nprocesses = 1\n";
    let server = Site::with_app().config(limits).serve(&[]);
    let began = Instant::now();
    let mut client = server.connect();
    client.patience(Duration::from_millis(1300));
    assert_eq!(client.read_some(), None);
    client.patience(PATIENCE).send("GET / HTTP/1.1\r\n");
    ends(&mut client, began, 1500, Some(408));
    let took = began.elapsed();
    assert!(
        took < Duration::from_millis(2800),
        "{took:?}: it began anew"
    );
}

#[test]
fn ends_a_kept_connection_that_stays_idle() {
    let server = server();
    let mut client = server.connect();
    let began = Instant::now();
    client
        .send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        .expect_status(200);
    ends(&mut client, began, 700, None);
}

#[test]
fn ends_a_head_that_stalls() {
    let server = server();
    // The time of the first head counts from the accept.
    let began = Instant::now();
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHo");
    ends(&mut client, began, 400, Some(408));
}

#[test]
fn ends_a_head_that_dribbles() {
    let server = server();
    // The time of the first head counts from the accept.
    let began = Instant::now();
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nX: ");
    dribble(&mut client, b"a");
    ends(&mut client, began, 400, Some(408));
    assert_eq!(server.site().seen(), [""; 0]);
}

#[test]
fn ends_a_second_head_that_stalls_by_its_own_clock() {
    let server = server();
    let mut client = server.connect();
    client
        .send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        .expect_status(200);
    let began = Instant::now();
    client.send("GET /second HTTP/1.1\r\n");
    ends(&mut client, began, 400, Some(408));
}

#[test]
fn ends_a_body_that_stalls() {
    let server = server();
    let mut client = server.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n");
    let began = Instant::now();
    client.send([b'a'; 100_000]);
    ends(&mut client, began, 300, Some(408));
    assert_eq!(server.site().seen(), [""; 0]);
}

#[test]
fn ends_a_chunked_body_that_stalls() {
    let server = server();
    let mut client = server.connect();
    let began = Instant::now();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe");
    ends(&mut client, began, 300, Some(408));
}

#[test]
fn ends_a_body_that_dribbles() {
    let server = server();
    let mut client = server.connect();
    let began = Instant::now();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n");
    dribble(&mut client, b"a");
    ends(&mut client, began, 500, Some(408));
    assert_eq!(server.site().seen(), [""; 0]);
}

#[test]
fn ends_a_body_of_empty_framing() {
    let server = server();
    let mut client = server.connect();
    let began = Instant::now();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;");
    // A chunk extension is no content: it counts neither as progress nor as rate.
    dribble(&mut client, b"a");
    ends(&mut client, began, 500, Some(408));
}

#[test]
fn cuts_a_response_that_nobody_takes() {
    let server = server();
    let mut client = server.connect();
    let began = Instant::now();
    client.send("GET /huge HTTP/1.1\r\nHost: a\r\n\r\n");
    eventually(PATIENCE, "the response is cut", || {
        server.admin_json()["traffic"]["slow_clients"] == 1
    });
    assert!(began.elapsed() >= Duration::from_millis(300));
    assert!(client.read_to_end().len() < 64 << 20);
    assert_eq!(server.get("/next").status, 200);
}

#[test]
fn cuts_a_response_that_is_taken_too_slowly() {
    let limits = "[limits]\nmin_body_rate = \"1GiB/s\"\nbody_rate_grace = \"300ms\"\n\
                  [apps.site]\nprocesses = 1\n";
    let server = Site::with_app().config(limits).serve(&[]);
    server.wait_ready("site");
    let mut client = server.connect();
    let began = Instant::now();
    client.send("GET /huge HTTP/1.1\r\nHost: a\r\n\r\n");
    eventually(PATIENCE, "the response is cut", || {
        // A piece now and then: it never stalls.
        client.read_some();
        server.admin_json()["traffic"]["slow_clients"] == 1
    });
    assert!(began.elapsed() >= Duration::from_millis(300));
    assert!(client.read_to_end().len() < 64 << 20, "it was not cut");
}

#[test]
fn a_hundred_slow_clients_do_not_slow_down_another() {
    let server = Site::with_app().serve(&["--processes", "2"]);
    server.wait_ready("site");
    let requests = [
        "GET / HTTP/1.1\r\nHost: a\r\nX: unfinished",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nten bytes.",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe",
        "GET /big HTTP/1.1\r\nHost: a\r\n\r\n",
    ];
    let slow: Vec<RawClient> = (0..100)
        .map(|number| {
            let mut client = server.connect();
            client.send(requests[number % requests.len()]);
            client
        })
        .collect();
    let big = slow.len() / requests.len();
    eventually(
        PATIENCE,
        "all large answers are off the workers' hands",
        || {
            let status = server.admin_json();
            server.site().seen().len() == big && status["apps"][0]["queue"]["active"] == 0
        },
    );
    let mut client = server.connect();
    for _ in 0..50 {
        let began = Instant::now();
        client
            .send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            .expect_status(200);
        assert!(
            began.elapsed() < Duration::from_secs(1),
            "took {:?}",
            began.elapsed()
        );
    }
    assert_eq!(server.admin_json()["connections"]["used"], 101);
}
