//! Clients that read large responses slowly keep no worker and no upstream slot from others: the
//! rest goes to temporary files while there is space, and then the slowest are disconnected.
//!
//! Each server here has as many slots as there are slow readers.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::{
    Origin, PATIENCE, RawClient, Script, Server, Site, Step, eventually, head_of, page,
};

const APP: &str = r#"
PIECE = bytes(range(256)) * 256

def app(environ, start):
    count = int(environ["PATH_INFO"].strip("/") or 0)
    if count:
        start("200 OK", [("Content-Length", str(len(PIECE) * count))])
        return (PIECE for _ in range(count))
    start("200 OK", [("Content-Length", "5")])
    return [b"hello"]

async def asgi(scope, receive, send):
    if scope["type"] != "http":
        return
    count = int(scope["path"].strip("/") or 0)
    length = str(len(PIECE) * count if count else 5).encode()
    head = {"type": "http.response.start", "status": 200}
    await send({**head, "headers": [(b"content-length", length)]})
    for _ in range(count):
        await send({"type": "http.response.body", "body": PIECE, "more_body": True})
    await send({"type": "http.response.body", "body": b"" if count else b"hello"})
"#;

/// The bytes of a piece of the application above.
const PIECE: usize = 256 * 256;

/// Pieces for 1 GiB.
const GIB: usize = (1 << 30) / PIECE;

const PLACES: usize = 4;

/// Bytes of temporary files, where they have no space for all.
const BOUND: f64 = (4 << 20) as f64;

const OTHER: [u8; 4] = [127, 0, 0, 2];

/// No rate limit but the tested one.
const LIMITS: &str = "min_body_rate = \"0B/s\"\nbody_rate_grace = \"500ms\"\n\
    response_memory = \"16KiB\"\n";

fn application(limits: &str, app: &str) -> Server {
    application_with(&format!("{LIMITS}{limits}"), app)
}

fn application_with(limits: &str, app: &str) -> Server {
    let toml = format!(
        "[server]\ntrusted_proxies = []\n[limits]\n{limits}\n[apps.site]\nprocesses = 1\n{app}\n\
         [[sites]]\n[[sites.routes]]\napp = \"site\"\n"
    );
    let server = Site::new().file("slow.py", APP).config(&toml).serve(&[]);
    server.wait_ready("site");
    server
}

fn ask(client: &mut RawClient, path: &str) {
    client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
}

/// This many clients of one address that request `path` and read nothing.
fn slow_readers(server: &Server, path: &str) -> Vec<RawClient> {
    let readers = (0..PLACES).map(|_| {
        let mut client = server.connect();
        ask(&mut client, path);
        client
    });
    readers.collect()
}

fn used(server: &Server) -> f64 {
    let metric = "penstock_limit_used{limit=\"limits.temp_bytes\"}";
    server.metric(metric).unwrap_or(f64::NAN)
}

fn wait_without_room(server: &Server) {
    server.wait_log("responses wait for their clients: limits.temp_bytes has no room");
}

/// One address sends requests again and again, more than the application has slots for, and reads
/// nothing. The rate is measured over the default time.
#[test]
fn slow_readers_that_ask_again_do_not_keep_an_application_from_others() {
    let limits = "response_memory = \"16KiB\"\ntemp_bytes = \"4MiB\"";
    let server = application_with(limits, "entry = \"slow:app\"\nkind = \"wsgi\"\nthreads = 4");
    let is_over = AtomicBool::new(false);
    let path = format!("/{GIB}");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut readers = Vec::new();
            while !is_over.load(Ordering::Relaxed) && readers.len() < 100 * PLACES {
                readers.extend(slow_readers(&server, &path));
                std::thread::park_timeout(Duration::from_millis(250));
            }
            // Only the server knows which were refused or aborted: they read nothing.
            while !is_over.load(Ordering::Relaxed) {
                std::thread::park_timeout(Duration::from_millis(50));
            }
        });
        let served = std::panic::catch_unwind(AssertUnwindSafe(|| {
            wait_without_room(&server);
            assert_others_are_served(&server, BOUND);
        }));
        is_over.store(true, Ordering::Relaxed);
        if let Err(panic) = served {
            std::panic::resume_unwind(panic);
        }
    });
    server.wait_log("was too slow for a response within the last minute");
}

/// Another address is served in time, however many requests it sends, and files stay within their
/// limit.
#[track_caller]
fn assert_others_are_served(server: &Server, temp_bytes: f64) {
    for _ in 0..5 {
        let mut other = RawClient::connect_from(OTHER, server.port());
        ask(&mut other, "/");
        assert_eq!(other.expect_status(200).text(), "hello");
        assert!(used(server) <= temp_bytes);
    }
}

#[test]
fn slow_readers_of_one_address_do_not_keep_an_application_from_others() {
    for app in [
        "entry = \"slow:app\"\nkind = \"wsgi\"\nthreads = 4",
        "entry = \"slow:asgi\"\nkind = \"asgi\"\nmax_concurrent = 4",
    ] {
        let server = application("temp_bytes = \"4MiB\"", app);
        let slow = slow_readers(&server, &format!("/{GIB}"));
        wait_without_room(&server);
        assert_others_are_served(&server, BOUND);
        server.wait_log("application site: 1 responses were cut: limits.min_busy_rate: 127.0.0.1");
        drop(slow);
        eventually(PATIENCE, "all is given back", || used(&server) == 0.0);
    }
}

#[test]
fn slow_readers_of_one_address_do_not_keep_an_upstream_from_others() {
    let origin = Origin::start(|seen| match seen.target.as_str() {
        "/large" => {
            let head = head_of("200 OK", "", GIB * PIECE);
            let script = Script::early().then(Step::ReadBody).send(head);
            script.then(Step::Flood(vec![0; PIECE], GIB * PIECE))
        }
        _ => page(seen, "hello"),
    });
    let toml = format!(
        "[server]\ntrusted_proxies = []\n[limits]\n{LIMITS}temp_bytes = \"4MiB\"\n\
         [upstreams.b]\nservers = [\"{}\"]\nmax_active = {PLACES}\n[[sites]]\n[[sites.routes]]\nupstream = \"b\"\n",
        origin.address()
    );
    let server = Site::new().config(&toml).serve(&[]);
    let slow = slow_readers(&server, "/large");
    wait_without_room(&server);
    assert_others_are_served(&server, BOUND);
    server.wait_log("upstream b: 1 responses were cut: limits.min_busy_rate: 127.0.0.1 took");
    drop(slow);
}

#[test]
fn a_response_that_others_wait_for_is_spooled_further_and_is_whole() {
    let app = "entry = \"slow:app\"\nkind = \"wsgi\"\nthreads = 4";
    let server = application("temp_bytes = \"2GiB\"\nresponse_spool = \"128KiB\"", app);
    let count = 20 << 20 >> 16;
    let mut slow = slow_readers(&server, &format!("/{count}"));
    assert_others_are_served(&server, 2.2e9);
    assert!(!server.log().contains("min_busy_rate"), "{}", server.log());
    let body = slow[0].expect_status(200).body;
    assert_eq!(body.len(), count * PIECE);
    let wrong = (0..).zip(&body).find(|&(at, &got)| got != (at % 256) as u8);
    assert_eq!(wrong, None);
}

/// A client above the minimum rate is not disconnected, even if others wait all the time.
#[test]
fn a_client_that_is_fast_enough_keeps_its_place() {
    let app = "entry = \"slow:app\"\nkind = \"wsgi\"\nthreads = 1\nqueue = { timeout = \"1m\" }";
    let server = application("temp_bytes = \"1MiB\"\nmin_busy_rate = \"256KiB/s\"", app);
    let count = 40 << 20 >> 16;
    let mut reader = server.connect();
    ask(&mut reader, &format!("/{count}"));
    wait_without_room(&server);
    let is_served = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut other = RawClient::connect_from(OTHER, server.port());
            other.patience(4 * PATIENCE);
            ask(&mut other, "/");
            assert_eq!(other.expect_status(200).text(), "hello");
            is_served.store(true, Ordering::Relaxed);
        });
        let waiting = || server.admin_json()["apps"][0]["queue"]["length"] == 1;
        eventually(PATIENCE, "another waits", waiting);
        let (began, mut taken) = (Instant::now(), 0);
        let total = count * PIECE;
        while taken < total {
            // 4 MiB/s: well above the rate, for several times the period of measurement.
            let earned = began.elapsed().as_secs_f64() * f64::from(4 << 20);
            match reader.patience(Duration::from_millis(20)) {
                reader if taken as f64 <= earned => {
                    taken += reader.read_some().map_or(0, |piece| piece.len());
                }
                _ => std::thread::yield_now(),
            }
        }
        assert!(!server.log().contains("min_busy_rate"), "{}", server.log());
    });
    assert!(is_served.load(Ordering::Relaxed));
}
