//! A held stream costs little memory, and releases it.
//!
//! As in `idle_memory`: thousands are held at once, and the growth of the server's memory is
//! divided among them. A first batch, closed again, warms up one-time allocations.

use super::*;
use crate::support::is_server_hidden;

const STREAMS: u64 = 2_000;

/// Streams opened at a time.
const GROUP: u64 = 100;

/// Maximum rounds of as many streams.
const ROUNDS: usize = 5;

/// Maximum bytes of the server's memory per held stream (without the kernel's).
const BYTES_MAX: u64 = 600;

#[test]
fn a_held_stream_costs_at_most_six_hundred_bytes() {
    if is_server_hidden() {
        return;
    }
    let toml = "[server]\nthreads = 2\n[[sites]]\n[[sites.routes]]\npath = \"/events/*\"\n\
                hub = \"{path.2}\"\n";
    let server = Site::new().config(toml).serve(&[]);
    drop(listeners(&server, 200));
    wait_held(&server, 0);
    let before = resident_bytes(server.pid());
    let clients = listeners(&server, STREAMS);
    let full = resident_bytes(server.pid());
    let each = full.saturating_sub(before) / STREAMS;
    assert!(each <= BYTES_MAX, "{each} bytes for each held stream");
    let said = server.admin_json()["hub"]["bytes_per_stream"].as_u64();
    assert!(
        said.is_some_and(|said| (50..=BYTES_MAX).contains(&said)),
        "{said:?} on the status page"
    );
    publish(&server, "all", "to all of them");
    for client in clients {
        StreamClient::over(client).hear("data: to all of them\n");
    }
    wait_held(&server, 0);
    // Nothing is kept for closed streams: sooner or later a further round takes no more. The
    // temporary memory of arriving streams differs from round to round.
    let mut highest = full;
    let is_enough = (0..ROUNDS).any(|_| {
        let clients = listeners(&server, STREAMS);
        let now = resident_bytes(server.pid());
        drop(clients);
        wait_held(&server, 0);
        let grown = now.saturating_sub(highest);
        highest += grown;
        grown / STREAMS <= BYTES_MAX / 8
    });
    assert!(
        is_enough,
        "it grows with each round, from {full} to {highest} bytes"
    );
}

/// This many clients of one channel, with unread heads. They arrive in small groups: the memory of
/// a connection before it is held is not measured here.
fn listeners(server: &Server, count: u64) -> Vec<RawClient> {
    let mut clients = Vec::new();
    for number in 1..=count {
        let mut client = server.connect();
        client
            .send("GET /events/all HTTP/1.1\r\nHost: a\r\nUser-Agent: held\r\nAccept: */*\r\n\r\n");
        clients.push(client);
        if number % GROUP == 0 {
            wait_held(server, number);
        }
    }
    wait_held(server, count);
    clients
}

/// Resident memory that is private to the process.
fn resident_bytes(pid: i32) -> u64 {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = rollup
        .lines()
        .find_map(|line| line.strip_prefix("Rss:"))
        .unwrap();
    let kilobytes = line.trim().strip_suffix(" kB").unwrap();
    kilobytes.trim().parse::<u64>().unwrap() * 1024
}
