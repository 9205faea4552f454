//! A kept connection gets `Connection: close` during shutdown, before it is closed.

use std::time::Duration;

use rustix::process::Signal;

use super::APP;
use crate::support::{PATIENCE, RawClient, Site, eventually};

/// Reads until the bytes end so, and discards them.
fn expect(client: &mut RawClient, end: &str) {
    while !client.received.ends_with(end.as_bytes()) {
        let more = client.read_some().expect("more, in time");
        assert!(!more.is_empty(), "closed before {end:?}");
    }
    client.received.clear();
}

#[test]
fn a_client_that_thinks_is_answered_by_a_server_that_stops() {
    let toml = format!("[server]\nkeep_alive_drain = \"10s\"\n{APP}");
    let server = Site::with_app().config(&toml).serve(&[]);
    server.wait_ready("site");
    let mut kept: Vec<RawClient> = (0..2).map(|_| server.connect()).collect();
    for client in &mut kept {
        client.send("GET /first HTTP/1.1\r\nHost: a\r\n\r\n");
        client.expect_status(200);
    }
    let mut fresh = server.connect();
    server.signal(Signal::TERM);
    server.wait_log("stopping: ");
    eventually(PATIENCE, "new ones are refused", || {
        std::net::TcpStream::connect(("127.0.0.1", server.port())).is_err()
    });
    for client in kept.iter_mut().chain([&mut fresh]) {
        // The drain begins a moment after the last listener has closed.
        eventually(PATIENCE, "the last answer says so", || {
            client.send("GET /next HTTP/1.1\r\nHost: a\r\n\r\n");
            client.expect_status(200).header("connection") == Some("close")
        });
        client.expect_closed();
    }
    assert_eq!(server.wait_exit(Duration::from_secs(9)).code(), Some(0));
}

#[test]
fn a_response_that_outlives_the_idle_time_leaves_its_client_a_moment_more() {
    // Its head announced that the connection is kept, before the drain.
    let app = "import os, time\n\
               def app(environ, start_response):\n\
               \x20   start_response('200 OK', [])\n\
               \x20   if environ['PATH_INFO'] == '/slow':\n\
               \x20       yield b'first'\n\
               \x20       while not os.path.exists('go'): time.sleep(0.01)\n\
               \x20   yield b'last'\n";
    let toml = format!("[server]\nkeep_alive_drain = \"300ms\"\n{APP}");
    let server = Site::new().file("app.py", app).config(&toml).serve(&[]);
    server.wait_ready("site");
    let mut slow = server.connect();
    let mut idle = server.connect();
    slow.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(slow.expect_head(200).header("connection"), None);
    expect(&mut slow, "first\r\n");
    server.signal(Signal::TERM);
    // All others are closed by then.
    idle.expect_closed();
    server.site().write("go", "");
    expect(&mut slow, "0\r\n\r\n");
    slow.send("GET /next HTTP/1.1\r\nHost: a\r\n\r\n");
    let last = slow.expect_status(200);
    assert_eq!(last.header("connection"), Some("close"));
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
}
