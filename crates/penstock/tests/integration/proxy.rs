//! The reverse proxy, between raw clients and a scripted origin.
//!
//! This file has the shared parts: a site with one route to the upstream `b`, and its status. Every
//! test checks both sides: what the client got and what the origin saw.

mod accel;
mod admin;
mod bad_backends;
mod balancing;
mod failover;
mod forwarding;
mod legacy_servers;
mod queueing;
mod single_threaded_servers;
mod slow_clients;
mod smuggling;
mod streaming;
mod tcp;
mod tls;
mod tunnels;
mod upgrades;

use std::fmt::Display;
use std::time::{Duration, Instant};

use crate::support::{Address, Origin, PATIENCE, RawClient, Server, Site, eventually};

/// The maximum delay on a busy machine.
const SLACK: Duration = Duration::from_secs(4);

/// A configuration: these servers in the upstream `b`, these lines in its table and in its route,
/// and further tables (`[server]` lines first, if any).
#[derive(Clone)]
pub(super) struct ProxySetup {
    pub(super) server: String,
    pub(super) servers: Vec<String>,
    upstream: String,
    route: String,
    pub(super) tables: String,
}

impl ProxySetup {
    pub(super) fn new<'a>(servers: impl IntoIterator<Item = &'a Origin>) -> Self {
        Self::to(servers.into_iter().map(|origin| origin.address()))
    }

    fn to(addresses: impl IntoIterator<Item = Address>) -> Self {
        let quoted = addresses.into_iter().map(|a| format!("\"{a}\""));
        Self {
            server: "threads = 2".to_owned(),
            servers: quoted.collect(),
            upstream: String::new(),
            route: String::new(),
            tables: String::new(),
        }
    }

    /// With a server written out, as a table.
    fn server_table(mut self, table: String) -> Self {
        self.servers.push(table);
        self
    }

    /// With lines for `[server]`.
    pub(super) fn server(mut self, lines: &str) -> Self {
        self.server = lines.to_owned();
        self
    }

    /// With lines for `[upstreams.b]`.
    pub(super) fn upstream(mut self, lines: &str) -> Self {
        self.upstream = lines.to_owned();
        self
    }

    /// With lines for the route.
    pub(super) fn route(mut self, lines: &str) -> Self {
        self.route = lines.to_owned();
        self
    }

    /// With further tables; routes among them come after the one to `b`.
    pub(super) fn tables(mut self, text: &str) -> Self {
        self.tables = text.to_owned();
        self
    }

    pub(super) fn toml(&self) -> String {
        format!(
            "[server]\naccess_log = {{ path = \"access.log\", format = \"json\" }}\n{}\n\n\
             [upstreams.b]\nservers = [{}]\n{}\n\n\
             [[sites]]\n[[sites.routes]]\npath = \"/*\"\nupstream = \"b\"\n{}\n\n{}\n",
            self.server,
            self.servers.join(", "),
            self.upstream,
            self.route,
            self.tables,
        )
    }

    fn serve(&self) -> Server {
        self.serve_in(Site::new())
    }

    fn serve_in(&self, site: Site) -> Server {
        site.config(&self.toml()).serve(&[])
    }
}

/// One origin behind the proxy, with these lines in `[upstreams.b]`.
fn behind(origin: &Origin, upstream: &str) -> Server {
    ProxySetup::new([origin]).upstream(upstream).serve()
}

/// A new connection that has requested this target.
pub(super) fn asking(server: &Server, target: impl Display) -> RawClient {
    let mut client = server.connect();
    ask(&mut client, target);
    client
}

fn ask(client: &mut RawClient, target: impl Display) {
    client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
}

fn post(target: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// Reads until exactly these bytes have arrived.
fn expect_bytes(client: &mut RawClient, bytes: &[u8]) {
    eventually(PATIENCE, "bytes through the tunnel", || {
        client.received.len() >= bytes.len() || {
            client.read_some();
            false
        }
    });
    assert!(client.received == bytes, "not the same bytes");
    client.received.clear();
}

/// The status of the upstream `b`.
fn status(server: &Server) -> serde_json::Value {
    let status = server.admin_json();
    let upstreams = status["upstreams"]
        .as_array()
        .expect("upstreams in the status");
    let found = upstreams.iter().find(|u| u["name"] == "b");
    found.expect("the upstream in the status").clone()
}

/// Waits until this many requests are in the queue of `b`.
fn wait_waiting(server: &Server, count: u64) {
    eventually(PATIENCE, &format!("{count} wait in the queue"), || {
        status(server)["queue"]["length"] == count
    });
}

/// Waits until this many requests of `b` are active.
fn wait_in_progress(server: &Server, count: u64) {
    eventually(PATIENCE, &format!("{count} in progress"), || {
        let status = status(server);
        let servers = status["servers"].as_array().unwrap();
        let active = servers.iter().map(|s| s["active"].as_u64().unwrap());
        active.sum::<u64>() == count
    });
}

/// Waits until a server of `b` is in this state.
fn wait_state(server: &Server, address: &Address, state: &str) {
    let name = address.to_string();
    eventually(PATIENCE, &format!("{name} is {state}"), || {
        let status = status(server);
        let servers = status["servers"].as_array().unwrap();
        servers
            .iter()
            .any(|s| s["name"] == *name && s["state"] == state)
    });
}

/// The access log once it has so many lines.
fn access_log(server: &Server, lines: usize) -> Vec<serde_json::Value> {
    eventually(
        PATIENCE,
        &format!("{lines} lines in the access log"),
        || {
            let text = server.site().read("access.log");
            let all: Vec<_> = text.lines().map(serde_json::from_str).collect();
            let whole: Result<Vec<serde_json::Value>, _> = all.into_iter().collect();
            whole.ok().filter(|all| all.len() >= lines)
        },
    )
}

/// Lets time pass that is itself the subject of the test.
fn pass_time(long: Duration) {
    let began = Instant::now();
    eventually(PATIENCE, "time passes", || began.elapsed() >= long);
}

/// Bytes that no shift or repetition leaves alike.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_le_bytes()[1]
    };
    (0..length).map(next).collect()
}

/// A body in chunks of this size, without trailers.
fn chunked(body: &[u8], size: usize) -> Vec<u8> {
    let mut coded = Vec::new();
    for chunk in body.chunks(size) {
        coded.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        coded.extend_from_slice(chunk);
        coded.extend_from_slice(b"\r\n");
    }
    coded.extend_from_slice(b"0\r\n\r\n");
    coded
}
