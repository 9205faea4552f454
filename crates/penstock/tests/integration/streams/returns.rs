//! Clients of event streams that end, or cannot begin, are told when to return.
//!
//! # Invariants
//!
//! - A browser's `EventSource` gets no error that passes: it would never reconnect.
//! - Returns are spread.

use std::time::Instant;

use rustix::process::Signal;

use super::*;

/// `/hold` responds once the file `go` exists.
const APP: &str = r#"
import os
from time import sleep as pause

def app(environ, start):
    while environ["PATH_INFO"] == "/hold" and not os.path.exists("go"):
        pause(0.005)
    start("200 OK", [("Content-Type", "text/plain")])
    return [b"served"]
"#;

const EVENT_SOURCE: &str = "Accept: text/event-stream\r\nOrigin: https://a.example\r\n";

fn ask(server: &Server, path: &str, fields: &str) -> RawClient {
    let mut client = server.connect();
    client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
    client
}

/// A server whose one worker is busy and whose queue is full.
fn serve_full(hub: &str) -> (Server, [RawClient; 2]) {
    let toml = format!(
        "[server]\nthreads = 2\n[apps.app]\nentry = \"app:app\"\nprocesses = 1\nthreads = 1\n\
         queue = {{ max = 1 }}\n[hub]\n{hub}\n"
    );
    let server = Site::new().file("app.py", APP).config(&toml).serve(&[]);
    server.wait_ready("app");
    let queue = |key| server.admin_json()["apps"][0]["queue"][key].as_u64();
    let first = ask(&server, "/hold", "");
    eventually(PATIENCE, "the worker is busy", || {
        queue("active") == Some(1)
    });
    let second = ask(&server, "/hold", "");
    eventually(PATIENCE, "the queue is full", || queue("length") == Some(1));
    (server, [first, second])
}

#[test]
fn an_event_source_never_gets_an_error_for_a_full_queue() {
    let (server, mut waiting) = serve_full("retry_interval = \"4s\"");
    let started = Instant::now();
    for _ in 0..30 {
        let answer = ask(&server, "/", EVENT_SOURCE).expect_status(200);
        assert_eq!(answer.header("content-type"), Some("text/event-stream"));
        let caching = answer.header("cache-control").unwrap();
        assert!(caching.contains("no-store"), "{caching}");
        let allowed = answer.header("access-control-allow-origin");
        assert_eq!(allowed, Some("https://a.example"));
        assert!((2_000..6_000).contains(&retry_of(&answer.text())));
    }
    server.wait_log("hub: stream of events refused: the queue is full: ");
    let log = server.log();
    let lines = log.matches("hub: stream of events refused: ").count() as u64;
    assert!(
        lines >= 1 && lines <= started.elapsed().as_secs() + 1,
        "{log}"
    );
    // Others are no streams, whatever they also accept.
    for fields in ["", "Accept: text/html, text/event-stream\r\n"] {
        let refused = ask(&server, "/", fields).expect_status(503);
        assert!(!refused.text().contains("retry:"));
    }
    server.site().write("go", "");
    for client in &mut waiting {
        assert_eq!(client.expect_status(200).text(), "served");
    }
}

#[test]
fn an_event_source_gets_the_error_where_the_policy_says_so() {
    let (server, _waiting) = serve_full("refusal_policy = \"error\"");
    let refused = ask(&server, "/", EVENT_SOURCE).expect_status(503);
    assert!(refused.header("retry-after").is_some());
    server.site().write("go", "");
}

#[test]
fn an_event_source_outlives_a_back_end_that_is_down_and_one_that_raises_ends_it() {
    let toml = "[upstreams.back]\nservers = [\"127.0.0.1:1\"]\n[apps.app]\nentry = \"app:app\"\n\
         processes = 1\n[[sites]]\n[[sites.routes]]\npath = \"/app/*\"\napp = \"app\"\n\
         [[sites.routes]]\nupstream = \"back\"\n";
    let app = "def app(environ, start):\n    raise RuntimeError(\"no\")\n";
    let server = Site::new().file("app.py", app).config(toml).serve(&[]);
    server.wait_ready("app");
    retry_of(&ask(&server, "/", EVENT_SOURCE).expect_status(200).text());
    server.wait_log("502 GET /: ");
    assert_eq!(server.get("/").status, 502);
    ask(&server, "/app/", EVENT_SOURCE).expect_status(500);
}

#[test]
fn a_refused_stream_is_held_where_the_policy_says_so() {
    let tables = "[hub]\nmax_streams = 4\nrefusal_policy = \"hold\"\nretry_interval = \"1s\"\n";
    let server = serve_with("", tables);
    let _held: Vec<_> = (0..4)
        .map(|_| StreamClient::open(&server, "/stream/news"))
        .collect();
    let mut waiting = StreamClient::asking(&server, "/stream/news", EVENT_SOURCE);
    assert!(
        waiting.head.contains("\r\nx-own: yes\r\n"),
        "{}",
        waiting.head
    );
    wait_held(&server, 5);
    publish(&server, "news", "for the others");
    let text = waiting.end();
    assert!(
        (1_000..2_000).contains(&retry_of(&text)) && !text.contains("data"),
        "{text}"
    );
    wait_held(&server, 4);
}

#[test]
fn while_streams_end_pages_are_served_and_clients_are_told_to_return_later() {
    let server = serve_with("", "[hub]\ndrain_timeout = \"2s\"\n");
    let mut streams: Vec<_> = (0..80)
        .map(|_| StreamClient::open(&server, "/stream/news"))
        .collect();
    let mut bytes = StreamClient::open(&server, "/beat/other");
    server.signal(Signal::TERM);
    server.wait_log("stopping: ");
    // Behind the drain, the restart and its part of the time over which all return.
    let range = 3_000..7_000;
    let answer = ask(&server, "/stream/news", "").expect_status(200);
    assert!(range.contains(&retry_of(&answer.text())));
    assert_eq!(server.get("/plain").text(), "/plain");
    let mut delays: Vec<u64> = streams
        .iter_mut()
        .map(|stream| retry_of(&stream.end()))
        .collect();
    delays.sort_unstable();
    delays.dedup();
    assert!(delays.len() > 70, "{delays:?}");
    assert!(
        delays.iter().all(|delay| range.contains(delay)),
        "{delays:?}"
    );
    assert!(!bytes.end().contains("retry"));
    let status = server.wait_exit(PATIENCE);
    assert_eq!(status.code(), Some(0), "{}", server.log());
}
