//! More connections than allowed: idle ones are closed, active ones stay, and no client is shut
//! out.
//!
//! Each test's own configuration sets small limits.

use std::time::{Duration, Instant};

use crate::support::{PATIENCE, RawClient, Server, Site, eventually, is_server_hidden};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// The time for an ordinary request while others hold all connections. A debug build on a busy
/// machine is slow; being shut out takes seconds.
const AT_ONCE: Duration = Duration::from_secs(2);

/// Longer than a tick of the server's order of idle connections (34 ms).
const APART: Duration = Duration::from_millis(80);

fn site(toml: &str) -> Site {
    let toml = format!("{toml}\n[[sites]]\n[[sites.routes]]\nfiles = {{ root = \"public\" }}\n");
    Site::new().file("public/index.html", "page").config(&toml)
}

fn kept(server: &Server) -> RawClient {
    let mut client = server.connect();
    client.send(GET).expect_status(200);
    client
}

/// Whether the server has not closed the connection within `time`.
fn stays_open(client: &mut RawClient, time: Duration) -> bool {
    let read = client.patience(time).read_some();
    client.patience(PATIENCE);
    assert!(read.as_ref().is_none_or(Vec::is_empty), "{read:?}");
    read.is_none()
}

/// A request on its own connection; returns the time it took.
fn ask(server: &Server) -> Duration {
    let began = Instant::now();
    kept(server);
    began.elapsed()
}

fn assert_open_to_others(server: &Server) {
    for _ in 0..50 {
        let took = ask(server);
        assert!(took < AT_ONCE, "{took:?}");
    }
    let began = Instant::now();
    assert_eq!(server.admin("GET", "/healthz").status, 200);
    assert!(began.elapsed() < AT_ONCE, "the admin interface is slow");
}

#[test]
fn the_connection_that_is_idle_for_longest_gives_way() {
    let server = site("[server]\nthreads = 2\n[limits]\nconnections = 4\n").serve(&[]);
    let mut clients: Vec<RawClient> = Vec::new();
    for _ in 0..4 {
        let mut client = kept(&server);
        assert!(stays_open(&mut client, APART));
        clients.push(client);
    }
    // The first one is not the longest idle one any more.
    clients[0].send(GET).expect_status(200);
    assert!(stays_open(&mut clients[0], APART));
    let mut newcomer = kept(&server);
    clients[1].expect_closed();
    let mut others = [0, 2, 3].into_iter();
    assert!(others.all(|index| stays_open(&mut clients[index], Duration::from_millis(1))));
    newcomer.send(GET).expect_status(200);
    clients[2].send(GET).expect_status(200);
    assert_eq!(
        server.metric("penstock_connections_evicted_total"),
        Some(1.0)
    );
    server
        .wait_log("idle connections closed to make room: limits.connections is reached (closed=1)");
}

#[test]
fn neither_silent_nor_kept_nor_half_spoken_connections_shut_others_out() {
    let toml = "[server]\nthreads = 2\n[limits]\nconnections = 30\nheader_timeout = \"60s\"\n";
    for what in ["silent", "kept", "half"] {
        let server = site(toml).serve(&[]);
        let mut holders = Vec::new();
        for _ in 0..60 {
            let mut client = server.connect();
            match what {
                "kept" => drop(client.send(GET).expect_status(200)),
                "half" => drop(client.send("GET / HTTP/1.1\r\nHo")),
                _ => {}
            }
            holders.push(client);
        }
        assert_open_to_others(&server);
        let status = server.admin_json();
        let used = status["connections"]["used"].as_u64().unwrap();
        assert!(used <= 30, "{what}: {used}");
        assert_eq!(status["connections"]["max"], 30);
        assert!(
            status["traffic"]["evicted"].as_u64().unwrap() >= 30,
            "{what}"
        );
        // Clients that reconnect as soon as they are closed.
        for client in &mut holders {
            *client = server.connect();
        }
        assert_open_to_others(&server);
    }
}

#[test]
fn a_connection_with_a_request_is_never_closed_for_another() {
    let site = Site::with_app().config("[limits]\nconnections = 3\n[apps.site]\nprocesses = 1\n");
    let server = site.serve(&[]);
    server.wait_ready("site");
    let mut busy: Vec<RawClient> = (0..3).map(|_| server.connect()).collect();
    for client in &mut busy {
        client.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nab");
    }
    eventually(PATIENCE, "three requests are in progress", || {
        server.metric("penstock_requests_active") == Some(3.0)
    });
    let mut next = server.connect();
    next.send(GET);
    server.wait_log(
        "not accepting for now: limits.connections is reached, and no connection is idle",
    );
    assert!(stays_open(&mut next, APART));
    for client in &mut busy {
        assert!(stays_open(client, Duration::from_millis(1)));
    }
    // The one that has finished its request is idle now, and is closed.
    busy[1].send("cd").expect_status(200);
    next.expect_status(200);
    busy[1].expect_closed();
    for index in [0, 2] {
        busy[index].send("cd").expect_status(200);
    }
    assert_eq!(
        server.metric("penstock_connections_evicted_total"),
        Some(1.0)
    );
}

#[test]
fn connections_leave_descriptors_to_others() {
    if is_server_hidden() {
        return;
    }
    let site = site("[server]\nthreads = 2\n[limits]\nheader_timeout = \"60s\"\n");
    let server = site.serve_after("ulimit -Sn 100; ulimit -Hn 160", &[]);
    // 160, less 64 and an eighth.
    server.wait_log(
        "at most 76 client connections: 160 open files, less 84 that are kept for servers, \
         workers and files (limits.connections = 100000)",
    );
    let silent: Vec<RawClient> = (0..300).map(|_| server.connect()).collect();
    assert_open_to_others(&server);
    let status = server.admin_json();
    assert_eq!(status["connections"]["max"], 76);
    let used = status["connections"]["used"].as_u64().unwrap();
    assert!((60..=76).contains(&used), "{used}");
    let bound = status["connections_limited_by"].as_str().unwrap();
    assert!(bound.starts_with("160 open files, less 84"), "{bound}");
    let folder = format!("/proc/{}/fd", server.pid());
    let open = std::fs::read_dir(folder).unwrap().count();
    assert!(open <= 76 + 64, "{open} descriptors are open");
    server.wait_log("all connections that the limit of open files allows are open");
    assert!(!server.log().contains("cannot accept"));
    drop(silent);
}

#[test]
fn connections_give_way_when_others_use_up_the_descriptors() {
    // Another part of the process takes nearly all: descriptors that it was started with.
    let site = site("[server]\nthreads = 2\n[limits]\nheader_timeout = \"60s\"\n");
    let opened: String = (20..70)
        .map(|number| format!("exec {number}</dev/null\n"))
        .collect();
    site.write(
        "start",
        format!("ulimit -n 160\n{opened}exec \"$0\" \"$@\"\n"),
    );
    let server = site.serve_after("exec bash -c \"$(cat start)\" \"$0\" \"$@\"", &[]);
    let _silent: Vec<RawClient> = (0..100).map(|_| server.connect()).collect();
    assert_open_to_others(&server);
    server.wait_log("idle connections closed to make room: the limit of open files is near");
    assert!(!server.log().contains("cannot accept"));
}

#[test]
fn one_client_has_a_bound_that_others_do_not_feel() {
    let toml = "[server]\nthreads = 2\ntrusted_proxies = [\"127.0.0.1\"]\n\
                listen = [{ address = \"127.0.0.1:0\", proxy_protocol = true }]\n\
                [limits]\nconnections_per_client = 3\n";
    let server = site(toml).serve(&[]);
    let connect = |client: &str| {
        let family = if client.contains(':') { "TCP6" } else { "TCP4" };
        let server_ip = if client.contains(':') {
            "2001:db8::99"
        } else {
            "192.0.2.99"
        };
        let mut connection = server.connect();
        connection.send(format!(
            "PROXY {family} {client} {server_ip} 4000 80\r\n{GET}"
        ));
        connection
    };
    for (client, same, other) in [
        ("192.0.2.1", "192.0.2.1", "192.0.2.2"),
        ("2001:db8:1:1::1", "2001:db8:1:1:ffff::2", "2001:db8:1:2::1"),
    ] {
        let mut held: Vec<RawClient> = (0..3).map(|_| connect(client)).collect();
        for connection in &mut held {
            connection.expect_status(200);
        }
        connect(same).expect_closed();
        connect(other).expect_status(200);
        held.pop().unwrap().reset();
        // The slot of a closed connection is free.
        eventually(PATIENCE, "there is room for another", || {
            connect(same).try_response(false).is_ok()
        });
    }
    let refused = server.metric("penstock_connections_refused_total");
    assert!(refused.is_some_and(|count| count >= 2.0), "{refused:?}");
    server.wait_log("connection of 192.0.2.1 closed: the client has 3 connections already");
    let lines = server.log();
    let lines = lines
        .lines()
        .filter(|line| line.contains("connections already"));
    assert!(lines.count() <= 20, "one a second");
}

#[test]
fn a_trusted_proxy_has_any_number_of_connections() {
    for (trusted, is_bound) in [("", false), ("trusted_proxies = []\n", true)] {
        let toml = format!("[server]\n{trusted}[limits]\nconnections_per_client = 3\n");
        let server = site(&toml).serve(&[]);
        let _held: Vec<RawClient> = (0..3).map(|_| kept(&server)).collect();
        let mut next = server.connect();
        match is_bound {
            true => next.expect_closed(),
            false => drop(next.send(GET).expect_status(200)),
        }
        let status = server.admin_json();
        let mut limits = status["limits"].as_array().unwrap().iter();
        let limit = limits.find(|limit| limit["name"] == "limits.connections_per_client");
        assert_eq!(limit.unwrap()["max"], 3.0);
    }
}
