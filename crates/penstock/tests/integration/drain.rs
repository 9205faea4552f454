//! A stop loses no accepted request, and ends within its time limit.
//!
//! SIGTERM (or SIGINT): listeners close, idle connections end after `keep_alive_drain`, active and
//! queued requests get responses with `Connection: close`, and the exit code is 0. The deadline and
//! a second signal abort the rest; no worker is left either way.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{PATIENCE, RawClient, ResponseError, Server, Site, eventually, is_alive};

/// Serves with more lines in `[server]`. Idle connections are kept long enough at the end that a
/// close cannot cross a request, and not so long that a test waits for it.
fn serve(more: &str) -> Server {
    let toml =
        format!("[server]\nkeep_alive_drain = \"100ms\"\n{more}\n[apps.site]\nprocesses = 1\n");
    let server = Site::with_app()
        .file("public/a.txt", "file")
        .config(&toml)
        .serve(&[]);
    server.wait_ready("site");
    server
}

/// A client whose request is in the application until the file `open` exists.
fn inside(server: &Server) -> RawClient {
    let mut client = server.connect();
    client.send("GET /gate/open HTTP/1.1\r\nHost: a\r\n\r\n");
    eventually(PATIENCE, "the request is inside", || {
        !server.site().seen().is_empty()
    });
    client
}

/// Signals, and waits until connections are told that they will close.
fn begin_stop(server: &Server, signal: Signal) {
    let mut idle = server.connect();
    server.signal(signal);
    server.wait_log("stopping: ");
    idle.expect_closed();
}

fn ends_well(server: &Server, within: Duration) {
    let status = server.wait_exit(within);
    assert_eq!(status.code(), Some(0), "{}", server.log());
}

#[test]
fn a_request_in_progress_is_finished() {
    for signal in [Signal::TERM, Signal::INT] {
        let server = serve("");
        let workers = server.workers("site");
        let mut client = inside(&server);
        begin_stop(&server, signal);
        server.site().write("open", "");
        let response = client.expect_status(200);
        assert_eq!(response.text(), "open");
        assert_eq!(response.header("connection"), Some("close"));
        client.expect_closed();
        ends_well(&server, PATIENCE);
        assert!(
            workers.len() == 1 && !workers.into_iter().any(is_alive),
            "a worker is left"
        );
    }
}

#[test]
fn requests_in_line_are_answered_too() {
    let server = serve("");
    let mut first = inside(&server);
    let mut others: Vec<RawClient> = (0..5).map(|_| server.connect()).collect();
    for client in &mut others {
        client.send("GET /queued HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    eventually(PATIENCE, "all of them wait", || {
        server.admin_json()["apps"][0]["queue"]["length"] == 5
    });
    begin_stop(&server, Signal::TERM);
    server.site().write("open", "");
    first.expect_status(200);
    for client in &mut others {
        assert_eq!(
            client.expect_status(200).header("connection"),
            Some("close")
        );
        client.expect_closed();
    }
    ends_well(&server, PATIENCE);
}

#[test]
fn idle_connections_end_and_new_ones_are_refused() {
    let server = serve("");
    let mut fresh = server.connect();
    let mut kept = server.connect();
    kept.send("GET /a.txt HTTP/1.1\r\nHost: a\r\n\r\n")
        .expect_status(200);
    let mut busy = inside(&server);
    begin_stop(&server, Signal::TERM);
    fresh.expect_closed();
    kept.expect_closed();
    eventually(PATIENCE, "new connections are refused", || {
        TcpStream::connect(("127.0.0.1", server.port())).is_err()
    });
    assert!(
        server.exited().is_none(),
        "it did not wait for the request in progress"
    );
    server.site().write("open", "");
    busy.expect_status(200);
    ends_well(&server, PATIENCE);
}

#[test]
fn a_request_half_arrived_is_served() {
    let server = serve("");
    let mut head = server.connect();
    head.send("GET /head HTTP/1.1\r\nHo");
    let mut body = server.connect();
    body.send("POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhel");
    eventually(PATIENCE, "both have begun", || {
        let status = server.admin_json();
        status["connections"]["used"] == 2 && status["traffic"]["active"] == 1
    });
    begin_stop(&server, Signal::TERM);
    head.send("st: a\r\n\r\n");
    assert_eq!(head.expect_status(200).header("connection"), Some("close"));
    body.send("lo");
    let response = body.expect_status(200);
    assert!(response.text().starts_with("POST /body 5 "));
    assert_eq!(response.header("connection"), Some("close"));
    ends_well(&server, PATIENCE);
}

#[test]
fn a_response_half_sent_is_sent_to_its_end() {
    let server = serve("");
    let mut client = server.connect();
    client.send("GET /stream/open HTTP/1.1\r\nHost: a\r\n\r\n");
    let first = client.read_some().unwrap();
    assert!(!first.is_empty());
    begin_stop(&server, Signal::TERM);
    server.site().write("open", "");
    assert_eq!(client.expect_status(200).text(), "firstlast");
    client.expect_closed();
    ends_well(&server, PATIENCE);
}

#[test]
fn a_stop_with_nothing_to_do_is_quick() {
    let server = serve("");
    let mut idle = server.connect();
    let began = Instant::now();
    server.signal(Signal::TERM);
    idle.expect_closed();
    ends_well(&server, PATIENCE);
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "took {:?}",
        began.elapsed()
    );
}

#[test]
fn the_deadline_cuts_what_is_left() {
    let server = serve("shutdown_timeout = \"600ms\"");
    let workers = server.workers("site");
    let mut client = inside(&server);
    let began = Instant::now();
    server.signal(Signal::TERM);
    ends_well(&server, PATIENCE);
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(600), "took {took:?}");
    assert!(took < Duration::from_secs(6), "took {took:?}");
    // The worker is killed at the deadline; a response to the client is still possible.
    match client.try_response(false) {
        Ok(response) => assert_eq!(
            (response.status, response.header("connection")),
            (502, Some("close"))
        ),
        Err(broken) => assert_eq!(broken, ResponseError::Closed),
    }
    eventually(PATIENCE, "the worker is gone", || {
        !workers.iter().copied().any(is_alive)
    });
}

#[test]
fn a_second_signal_ends_it_at_once() {
    for second in [Signal::TERM, Signal::INT] {
        let server = serve("shutdown_timeout = \"60s\"");
        let workers = server.workers("site");
        let _client = inside(&server);
        begin_stop(&server, Signal::TERM);
        assert!(server.exited().is_none());
        server.signal(second);
        ends_well(&server, Duration::from_secs(6));
        eventually(PATIENCE, "the worker is gone", || {
            !workers.iter().copied().any(is_alive)
        });
    }
}

#[test]
fn an_application_that_will_not_end_is_ended() {
    let app = "import atexit, threading, time\n\
               threading.Thread(target=time.sleep, args=(3600,)).start()\n\
               atexit.register(time.sleep, 3600)\n\
               def app(environ, start_response):\n\
               \x20   start_response('200 OK', [])\n\
               \x20   return [b'ok']\n";
    let toml = "[server]\nshutdown_timeout = \"60s\"\nkeep_alive_drain = \"100ms\"\n[apps.site]\nprocesses = 1\n";
    let server = Site::new().file("app.py", app).config(toml).serve(&[]);
    server.wait_ready("site");
    let workers = server.workers("site");
    assert_eq!(server.get("/").text(), "ok");
    begin_stop(&server, Signal::TERM);
    ends_well(&server, Duration::from_secs(12));
    assert!(!workers.into_iter().any(is_alive), "a worker is left");
}

#[test]
fn the_admin_interface_answers_to_the_end() {
    let server = serve("");
    let mut client = inside(&server);
    begin_stop(&server, Signal::TERM);
    assert_eq!(server.admin_json()["state"], "draining");
    assert_eq!(server.admin("GET", "/readyz").status, 503);
    server.site().write("open", "");
    client.expect_status(200);
    ends_well(&server, PATIENCE);
}
