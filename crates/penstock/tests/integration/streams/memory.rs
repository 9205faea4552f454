//! A held stream costs little memory, and gives it back.
//!
//! As in `idle_memory`: thousands are held at once, and the growth of the server's memory is divided
//! among them. A first batch, closed again, warms up what is made once.

use super::*;
use crate::support::is_server_hidden;

const STREAMS: u64 = 2_000;

/// How many come at a time.
const GROUP: u64 = 100;

/// How often as many come and go at most.
const ROUNDS: usize = 5;

/// Bytes of the server's memory that a held stream may cost (not counting the kernel's).
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
    let said = server.admin_json()["hub"]["stream_bytes_each"].as_u64();
    assert!(
        said.is_some_and(|said| (50..=BYTES_MAX).contains(&said)),
        "{said:?} on the status page"
    );
    publish(&server, "all", "to all of them");
    for client in clients {
        StreamClient::over(client).hear("data: to all of them\n");
    }
    wait_held(&server, 0);
    // Nothing is kept for streams that are gone: sooner or later the same again takes no more. What those
    // who arrive take for a moment differs from round to round.
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

/// So many clients of one channel, whose heads they have not read. They come in small groups: what a
/// connection takes before it is held is not what is measured here.
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

/// Resident memory that is the process's own.
fn resident_bytes(pid: i32) -> u64 {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = rollup
        .lines()
        .find_map(|line| line.strip_prefix("Rss:"))
        .unwrap();
    let kilobytes = line.trim().strip_suffix(" kB").unwrap();
    kilobytes.trim().parse::<u64>().unwrap() * 1024
}
