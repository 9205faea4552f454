//! An idle connection costs little memory, and releases it.
//!
//! Two thousand connections stay open after a request each; the growth of the server's resident
//! memory is divided among them. A first batch, closed again, warms up one-time allocations.

use crate::support::{PATIENCE, RawClient, Server, Site, eventually, is_server_hidden};

const CONNECTIONS: usize = 2_000;

/// Maximum bytes of the server's memory per idle connection (without the kernel's).
const BYTES_MAX: usize = 1_536;

#[test]
fn an_idle_connection_costs_at_most_a_kilobyte_and_a_half() {
    if is_server_hidden() {
        return;
    }
    let server = Site::new().file("index.html", "hello").serve(&[]);
    drop(idle(&server, 100));
    open(&server, 0);
    let before = resident_bytes(server.pid());
    let clients = idle(&server, CONNECTIONS);
    open(&server, CONNECTIONS);
    let grown = resident_bytes(server.pid()).saturating_sub(before);
    let each = grown / CONNECTIONS;
    assert!(each <= BYTES_MAX, "{each} bytes for each idle connection");
    drop(clients);
    open(&server, 0);
    // A second batch takes no more: nothing is kept for closed connections.
    let before = resident_bytes(server.pid());
    let clients = idle(&server, CONNECTIONS);
    open(&server, CONNECTIONS);
    let grown = resident_bytes(server.pid()).saturating_sub(before);
    assert!(
        grown / CONNECTIONS <= BYTES_MAX / 4,
        "{grown} bytes more in the second round"
    );
    drop(clients);
}

/// Opens connections, each with one completed request.
fn idle(server: &Server, count: usize) -> Vec<RawClient> {
    let connect = |_| {
        let mut client = server.connect();
        client.send("GET / HTTP/1.1\r\nHost: a\r\nUser-Agent: idle\r\nAccept: */*\r\n\r\n");
        client.expect_status(200);
        client
    };
    (0..count).map(connect).collect()
}

fn open(server: &Server, count: usize) {
    eventually(PATIENCE, "the server counts its connections", || {
        server.admin_json()["connections"]["used"] == count
    });
}

fn resident_bytes(pid: i32) -> usize {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = rollup
        .lines()
        .find_map(|line| line.strip_prefix("Rss:"))
        .unwrap();
    line.trim()
        .strip_suffix(" kB")
        .unwrap()
        .parse::<usize>()
        .unwrap()
        * 1024
}
