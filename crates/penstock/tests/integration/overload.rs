//! More requests than an application can serve: first come first served, bounded, and refused in
//! time.
//!
//! The application holds its one worker until the test continues, so every state is reached on
//! purpose and observed on the status page.
//!
//! # Invariants
//!
//! - A refusal comes at once and has a `Retry-After`.
//! - An accepted request gets a response.
//! - Waiting and processing have separate timeouts.
//! - A request of a disconnected client never reaches the application.
//! - The waiting time is the same in every output.

use std::time::{Duration, Instant};

use crate::support::{PATIENCE, RawClient, Server, Site, eventually};
use crate::wsgi::serve_ready;

/// `/hold/NAME` makes the file `held`, and responds once the file `go` exists; every request is
/// recorded in order.
const APP: &str = r#"
import os
from time import sleep as pause, time

seen = []

def app(environ, start):
    path = environ["PATH_INFO"]
    if path == "/seen":
        body = " ".join(seen)
    else:
        seen.append(path[1:])
        if path.startswith("/hold"):
            open("held", "w").close()
            while not os.path.exists("go"):
                pause(0.005)
        if environ["QUERY_STRING"]:
            pause(float(environ["QUERY_STRING"]))
        started = float(environ["HTTP_X_REQUEST_START"][2:])
        body = str(time() - started)
    start("200 OK", [("Content-Type", "text/plain")])
    return [body.encode()]
"#;

fn site(app: &str) -> Site {
    let toml = format!(
        "[server]\nthreads = 2\naccess_log = {{ path = \"access.log\", format = \"json\" }}\n\n\
         [apps.app]\nentry = \"app:app\"\nprocesses = 1\n{app}\n"
    );
    Site::new().file("app.py", APP).config(&toml)
}

/// Sends a GET without waiting for its response.
fn ask(server: &Server, path: &str) -> RawClient {
    let mut client = server.connect();
    client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
    client
}

fn queue(server: &Server, key: &str) -> u64 {
    server.admin_json()["apps"][0]["queue"][key]
        .as_u64()
        .unwrap()
}

fn counter(server: &Server, key: &str) -> u64 {
    server.admin_json()["apps"][0]["counters"][key]
        .as_u64()
        .unwrap()
}

fn wait_in_progress(server: &Server, count: u64) {
    eventually(PATIENCE, "the requests are in progress", || {
        queue(server, "active") == count
    });
}

fn wait_waiting(server: &Server, count: u64) {
    eventually(PATIENCE, "the requests wait", || {
        queue(server, "length") == count
    });
}

/// The worker held, and `count` clients queued behind it, in order.
fn hold_and_queue(server: &Server, count: u64) -> Vec<RawClient> {
    let mut clients = vec![ask(server, "/hold")];
    wait_in_progress(server, 1);
    for number in 1..=count {
        clients.push(ask(server, &format!("/{number}")));
        wait_waiting(server, number);
    }
    clients
}

/// The lines of the access log, once there are `count`.
fn access_log(server: &Server, count: usize) -> Vec<serde_json::Value> {
    eventually(
        PATIENCE,
        &format!("{count} lines in the access log"),
        || {
            let text = server.site().read("access.log");
            let whole = text.lines().count() >= count && text.ends_with('\n');
            whole.then(|| {
                text.lines()
                    .map(|line| serde_json::from_str(line).unwrap())
                    .collect()
            })
        },
    )
}

#[test]
fn what_the_queue_cannot_hold_is_refused_at_once() {
    let server = serve_ready(&site("queue = { max = 3 }"));
    let accepted = hold_and_queue(&server, 3);
    let began = Instant::now();
    for _ in 0..5 {
        let answer = server.get("/refused");
        assert_eq!(answer.status, 503);
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert_eq!(answer.header("cache-control"), Some("no-store"));
    }
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "not after waiting"
    );
    // A refused client may send another request on the same connection.
    let mut again = ask(&server, "/refused");
    again.expect_status(503);
    server.site().write("go", "");
    for mut client in accepted {
        client.expect_status(200);
    }
    again
        .send("GET /again HTTP/1.1\r\nHost: a\r\n\r\n")
        .expect_status(200);
    assert_eq!(server.get("/seen").text(), "hold 1 2 3 again");
    assert_eq!(counter(&server, "queue_full"), 6);
    assert_eq!(
        server.metric("penstock_app_queue_full_total{app=\"app\"}"),
        Some(6.0)
    );
    assert_eq!(queue(&server, "max"), 3);
}

#[test]
fn a_queue_of_none_takes_only_what_a_worker_takes_at_once() {
    let server = serve_ready(&site("queue = { max = 0 }"));
    let mut held = ask(&server, "/hold");
    wait_in_progress(&server, 1);
    assert_eq!(server.get("/refused").status, 503);
    server.site().write("go", "");
    held.expect_status(200);
    // The client may have the response before the queue knows that its worker is free.
    wait_in_progress(&server, 0);
    assert_eq!(server.get("/free").status, 200);
}

#[test]
fn waiting_longer_than_the_queue_timeout_is_refused() {
    let server = serve_ready(&site("queue = { timeout = \"300ms\" }"));
    let mut held = ask(&server, "/hold");
    wait_in_progress(&server, 1);
    let began = Instant::now();
    let answer = server.get("/late");
    assert_eq!(answer.status, 503);
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert!(
        began.elapsed() >= Duration::from_millis(300),
        "not before its time"
    );
    server.site().write("go", "");
    // The waiting time does not include the request that a worker had.
    held.expect_status(200);
    assert_eq!(server.get("/seen").text(), "hold", "it was never begun");
    assert_eq!(counter(&server, "queue_timeouts"), 1);
    assert_eq!(
        server.metric("penstock_app_queue_timeouts_total{app=\"app\"}"),
        Some(1.0)
    );
    // Loops write their lines side by side.
    let lines = access_log(&server, 2);
    let line = lines.iter().find(|line| line["target"] == "/late").unwrap();
    assert_eq!(line["status"], 503);
    assert!(line["queue_time"].as_f64().unwrap() >= 0.3, "{line}");
    assert_eq!(line["queue_position"], 1);
}

#[test]
fn time_in_the_queue_is_not_taken_from_the_time_to_answer() {
    // Each takes 1.2 s of 2 s; the second has waited for 1.2 s of its 2 s by then.
    let server = serve_ready(&site(
        "queue = { timeout = \"2s\" }\nresponse_timeout = \"2s\"",
    ));
    let mut first = ask(&server, "/first?1.2");
    wait_in_progress(&server, 1);
    let began = Instant::now();
    let mut second = ask(&server, "/second?1.2");
    first.expect_status(200);
    second.expect_status(200);
    assert!(
        began.elapsed() > Duration::from_secs(2),
        "both clocks together are longer than each"
    );
    assert_eq!(counter(&server, "timed_out_requests"), 0);
}

#[test]
fn who_leaves_while_waiting_is_never_worked_for() {
    let server = serve_ready(&site(""));
    let mut clients = hold_and_queue(&server, 4);
    drop(clients.remove(3));
    wait_waiting(&server, 3);
    drop(clients.remove(1));
    wait_waiting(&server, 2);
    server.site().write("go", "");
    for mut client in clients {
        client.expect_status(200);
    }
    assert_eq!(server.get("/seen").text(), "hold 2 4");
    assert_eq!(counter(&server, "queue_abandoned"), 2);
    let lines = access_log(&server, 5);
    let gone: Vec<&str> = lines
        .iter()
        .filter(|l| l["status"] == 499)
        .map(|l| l["target"].as_str().unwrap())
        .collect();
    assert_eq!(
        gone,
        ["/3", "/1"],
        "in the log as nginx has it, and nowhere as an error"
    );
    assert!(!server.log().contains("error"), "{}", server.log());
}

#[test]
fn first_come_is_first_served_whichever_loop_it_came_on() {
    let server = serve_ready(&site(""));
    let clients = hold_and_queue(&server, 12);
    server.site().write("go", "");
    for mut client in clients {
        client.expect_status(200);
    }
    assert_eq!(
        server.get("/seen").text(),
        "hold 1 2 3 4 5 6 7 8 9 10 11 12"
    );
}

#[test]
fn how_long_a_request_waited_is_said_everywhere_alike() {
    let server = serve_ready(&site(""));
    let mut held = ask(&server, "/hold");
    // The worker counts its time from here on.
    let marker = server.site().dir().join("held");
    eventually(PATIENCE, "the application has it", || marker.exists());
    let mut second = ask(&server, "/second");
    wait_waiting(&server, 1);
    let oldest = || {
        let status = server.admin_json();
        status["apps"][0]["queue"]["oldest_wait_seconds"]
            .as_f64()
            .unwrap()
    };
    eventually(PATIENCE, "it has waited for half a second", || {
        oldest() >= 0.5
    });
    server.site().write("go", "");
    let held_age: f64 = held.expect_status(200).text().parse().unwrap();
    let second_age: f64 = second.expect_status(200).text().parse().unwrap();
    let lines = access_log(&server, 2);
    let of = |target: &str| lines.iter().find(|l| l["target"] == target).unwrap();
    let number = |line: &serde_json::Value, key: &str| line[key].as_f64().unwrap();
    let (first, line) = (of("/hold"), of("/second"));
    assert!(
        number(first, "queue_time") < 0.4 && first["queue_position"] == 0,
        "{first}"
    );
    assert!(number(first, "app_time") >= 0.5, "{first}");
    let waited = number(line, "queue_time");
    assert!(waited >= 0.5 && line["queue_position"] == 1, "{line}");
    assert!(
        number(line, "app_time") < 0.4,
        "the wait is not the application's: {line}"
    );
    assert!(number(line, "total_time") >= waited, "{line}");
    // What the application saw by X-Request-Start: the wait (in whole milliseconds) and some.
    assert!(
        (waited - 0.002..waited + 2.0).contains(&second_age),
        "{second_age} for {waited}"
    );
    assert!(held_age >= 0.5, "{held_age}");
    assert_eq!(line["handler"], "app");
    assert_eq!(
        line["worker"].as_i64(),
        server.workers("app").first().map(|&pid| i64::from(pid))
    );
    let times = &server.admin_json()["apps"][0]["queue_time"];
    assert_eq!(times["count"], 2);
    assert!(
        times["sum_seconds"].as_f64().unwrap() >= waited - 0.001,
        "{times}"
    );
}

#[test]
fn a_worker_serves_the_next_while_a_slow_client_takes_its_answer() {
    const LARGE: &str = r#"
def app(environ, start):
    start("200 OK", [("Content-Type", "text/plain")])
    return [b"x" * 30000000] if environ["PATH_INFO"] == "/large" else [b"small"]
"#;
    let server = serve_ready(&site("").file("app.py", LARGE));
    let slow: Vec<RawClient> = (0..3).map(|_| ask(&server, "/large")).collect();
    // Their clients do not read; the only worker must not wait for them.
    eventually(PATIENCE, "the worker has handed all of them over", || {
        queue(&server, "active") == 0 && counter(&server, "requests") == 3
    });
    assert_eq!(server.get("/").text(), "small");
    for mut client in slow {
        assert_eq!(client.expect_status(200).body.len(), 30_000_000);
    }
}
