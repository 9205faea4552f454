//! The HTTP cache, between raw clients and a scripted origin.
//!
//! This file has the shared parts: a site with one route through the cache `store` to the upstream
//! `b`, and its status.
//!
//! # Invariants
//!
//! - A client gets a response that the origin made for that very request or for an equal one.
//! - The origin gets no request that the cache could answer.

mod coalescing;
mod failures;
mod persistence;
mod purging;
mod ranges;
mod reuse;
mod secrets;
mod stale;

use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::proxy::{ProxySetup, asking};
use crate::support::{
    Origin, PATIENCE, ReceivedRequest, Response, Script, Server, Site, eventually, head_of,
};

/// A cache on a disk, in the directory of the site.
const ON_DISK: &str = "path = \"stored\"\nmax_size = \"64MiB\"";

const IN_MEMORY: &str = "max_size = \"16MiB\"";

/// A configuration: an origin behind the cache `store`.
struct CacheSetup {
    proxy: ProxySetup,
    route: String,
}

impl CacheSetup {
    /// With these lines in `[caches.store]`.
    fn new(origin: &Origin, cache: &str) -> Self {
        let proxy = ProxySetup::new([origin])
            .server("threads = 2\nlisten = [\"127.0.0.1:0\"]")
            .upstream("connect_timeout = \"2s\"")
            .tables(&format!("[caches.store]\n{cache}\n"));
        Self {
            proxy,
            route: "stores = [\"store\"]".to_owned(),
        }
    }

    /// With more settings in the route's `cache = { ... }`.
    fn route(mut self, more: &str) -> Self {
        let _ = write!(self.route, ", {more}");
        self
    }

    /// With more lines for `[server]`.
    fn server(mut self, lines: &str) -> Self {
        let _ = write!(self.proxy.server, "\n{lines}");
        self
    }

    fn tables(mut self, text: &str) -> Self {
        self.proxy.tables.push_str(text);
        self
    }

    fn toml(&self) -> String {
        let route = format!("cache = {{ {} }}", self.route);
        self.proxy.clone().route(&route).toml()
    }

    fn serve(&self) -> Server {
        self.serve_in(&Site::new())
    }

    /// Starts and waits until the cache is in use: earlier requests bypass it.
    fn serve_in(&self, site: &Site) -> Server {
        let server = self.serve_at_once(site);
        wait_working(&server);
        server
    }

    fn serve_at_once(&self, site: &Site) -> Server {
        site.clone().config(&self.toml()).serve(&[])
    }
}

/// One origin behind a cache in memory.
fn in_front_of(origin: &Origin) -> Server {
    CacheSetup::new(origin, IN_MEMORY).serve()
}

/// A 200 with these fields (each with its line end) and this body on a connection that is kept.
fn answer(seen: &ReceivedRequest, fields: &str, body: impl AsRef<[u8]>) -> Script {
    let body = body.as_ref();
    let mut bytes = head_of("200 OK", fields, body.len()).into_bytes();
    if seen.method != "HEAD" {
        bytes.extend_from_slice(body);
    }
    Script::raw(bytes).keep()
}

/// An origin whose responses have these fields and the number of responses for the target.
fn counting(fields: &'static str) -> Origin {
    let given = RequestCounts::default();
    Origin::start(move |seen| {
        let count = given.next(&seen.target);
        answer(seen, fields, format!("{} {count}", seen.target))
    })
}

#[derive(Default)]
struct RequestCounts(std::sync::Mutex<std::collections::HashMap<String, usize>>);

impl RequestCounts {
    /// The current number, from 1.
    fn next(&self, name: &str) -> usize {
        let mut counts = self.0.lock().unwrap();
        let count = counts.entry(name.to_owned()).or_default();
        *count += 1;
        *count
    }
}

/// One request with these fields (each with its line end) on its own connection.
fn ask(server: &Server, line: &str, fields: &str) -> Response {
    let mut client = server.connect();
    client.send(format!(
        "{line} HTTP/1.1\r\nHost: a\r\n{fields}Connection: close\r\n\r\n"
    ));
    match line.starts_with("HEAD ") {
        true => client.try_response(true).unwrap(),
        false => client.response(),
    }
}

fn get(server: &Server, target: &str) -> Response {
    ask(server, &format!("GET {target}"), "")
}

/// Requests a target and expects a 200; returns its text.
fn text(server: &Server, target: &str) -> String {
    let response = get(server, target);
    assert_eq!(response.status, 200, "{target}: {}", response.text());
    response.text()
}

fn cache_status(response: &Response) -> &str {
    response.header("cache-status").unwrap_or_default()
}

/// Whether the cache alone answered.
fn is_hit(response: &Response) -> bool {
    let status = cache_status(response);
    assert!(
        status.contains("; hit") != status.contains("; fwd="),
        "either a hit or forwarded (RFC 9211): {status:?}"
    );
    status.contains("; hit")
}

/// The status of the cache `store`.
fn status(server: &Server) -> serde_json::Value {
    of_cache(server, "store")
}

fn of_cache(server: &Server, name: &str) -> serde_json::Value {
    let status = server.admin_json();
    let caches = status["caches"].as_array().expect("caches in the status");
    let found = caches.iter().find(|cache| cache["name"] == name);
    found.expect("the cache in the status").clone()
}

/// Waits until the cache is in use and its directory was scanned.
fn wait_working(server: &Server) {
    eventually(PATIENCE, "the cache is in use", || {
        status(server)["state"] == "working"
    });
}

/// Waits until the cache holds this many complete objects.
fn wait_objects(server: &Server, count: u64) {
    eventually(PATIENCE, &format!("{count} objects are stored"), || {
        let status = status(server);
        status["state"] == "working" && status["objects"] == count
    });
}

/// Requests a target until the cache alone answers; returns that response.
fn wait_hit(server: &Server, target: &str) -> Response {
    eventually(PATIENCE, &format!("a hit for {target}"), || {
        let response = get(server, target);
        assert_eq!(response.status, 200, "{target}: {}", response.text());
        is_hit(&response).then_some(response)
    })
}

/// Runs a verb against the server: exit code, standard output, standard error.
fn verb(server: &Server, arguments: &[&str]) -> (i32, String, String) {
    let admin = format!("127.0.0.1:{}", server.admin_port());
    let output = server
        .site()
        .run(&[arguments, &["--admin", &admin]].concat());
    let (stdout, stderr) = crate::support::texts(&output);
    (output.status.code().unwrap(), stdout, stderr)
}

fn reload(server: &Server) {
    let (code, stdout, stderr) = verb(server, &["reload"]);
    assert_eq!(
        (code, stdout.trim()),
        (0, "reloaded"),
        "{stderr}\n{}",
        server.log()
    );
}

/// Bytes that are unique to this name.
fn content(name: &str, length: usize) -> Vec<u8> {
    let mut state = name.bytes().fold(0x9e37_79b9_7f4a_7c15_u64, |state, byte| {
        (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..length).map(next).collect()
}

/// An origin of large and small bodies, `/NAME?LENGTH`, that stay fresh.
fn of_content() -> Origin {
    Origin::start(|seen| {
        let length = seen.target.rsplit('?').next().unwrap().parse().unwrap();
        let fields = "Cache-Control: max-age=3600\r\nETag: \"v\"\r\n";
        answer(seen, fields, content(&seen.target, length))
    })
}

/// A number that tests share with an origin.
type SharedCounter = std::sync::Arc<AtomicUsize>;

fn load(number: &SharedCounter) -> usize {
    number.load(Ordering::SeqCst)
}

fn store(number: &SharedCounter, value: usize) {
    number.store(value, Ordering::SeqCst);
}

/// The maximum time for a fresh object to become stale, on a busy machine.
const STALE_SOON: Duration = Duration::from_secs(20);
