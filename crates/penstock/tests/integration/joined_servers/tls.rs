//! Joins over TLS on a TCP port: nothing readable on the way, machines in between, sides that do
//! not agree on TLS, and the way from one to the other.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rcgen::{CertificateParams, KeyPair};
use rustix::process::Signal;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConnection, ServerConfig, ServerConnection, StreamOwned};

use super::{application, front_toml, get, texts, up, wait_up, waiting};
use crate::support::{PATIENCE, RawClient, Server, Site, eventually, find};

/// A front end's configuration with a port for joins, with more keys of `join`.
fn tcp_toml(more: &str) -> String {
    front_toml("").replace(
        "listen = \"unix:join.sock\"",
        &format!("listen = \"127.0.0.1:0\"{more}"),
    )
}

fn tcp_front(more: &str) -> (Server, u16) {
    let front = Site::new().config(&tcp_toml(more)).serve(&[]);
    let port = join_port(&front);
    (front, port)
}

/// The port for joins as it was announced.
fn join_port(front: &Server) -> u16 {
    let lines = front.announced();
    let port = lines.iter().find_map(|line| {
        let rest = line.strip_prefix("listening ")?;
        let rest = rest
            .strip_prefix("tls://")
            .or_else(|| rest.strip_prefix("tcp://"))?;
        rest.rsplit_once(':')?.1.parse().ok()
    });
    port.unwrap_or_else(|| panic!("it is not announced: {lines:?}"))
}

fn join_port_of(site: &Site, port: u16, more: &[&str]) -> Server {
    let address = format!("127.0.0.1:{port}");
    let arguments = ["--join", &address, "--key-file", "key", "--processes", "1"];
    site.work(&[&arguments, more].concat())
}

/// Serves each connection to a port of its own in a thread, until it is dropped.
struct InBetween {
    port: u16,
    is_over: Arc<AtomicBool>,
}

impl InBetween {
    fn start(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let is_over = Arc::new(AtomicBool::new(false));
        let (serve, over) = (Arc::new(serve), Arc::clone(&is_over));
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let (client, serve) = (client.unwrap(), Arc::clone(&serve));
                std::thread::spawn(move || serve(client));
            }
        });
        Self { port, is_over }
    }
}

impl Drop for InBetween {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // Wakes the listener.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

/// Copies until an end, and records.
fn copy(mut from: TcpStream, mut to: TcpStream, seen: &Mutex<Vec<u8>>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        seen.lock().unwrap().extend_from_slice(&buffer[..count]);
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Write);
}

fn post(front: &Server, body: &str) -> String {
    let mut client = front.connect();
    let length = body.len();
    client.send(format!(
        "POST /secret-path HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{body}"
    ));
    client.expect_status(200).text()
}

#[test]
fn nothing_is_readable_on_the_way() {
    const PIECE: &str = "0123456789abcdef";
    let (front, port) = tcp_front("");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&seen);
    // A proxy that passes TCP through is no machine in between.
    let proxy = InBetween::start(move |joiner| {
        let front = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (from, to) = (joiner.try_clone().unwrap(), front.try_clone().unwrap());
        let up = Arc::clone(&recorded);
        std::thread::spawn(move || copy(from, to, &up));
        copy(front, joiner, &recorded);
    });
    let site = application();
    let worker = join_port_of(&site, proxy.port, &["--threads", "2"]);
    wait_up(&front, 1);
    let body = PIECE.repeat(320 << 10);
    let expected = format!("POST /secret-path {} ", body.len());
    assert!(post(&front, &body).starts_with(&expected));
    assert_eq!(front.get("/big").body, PIECE.repeat(512 << 10).as_bytes());
    // Another in its place.
    worker.signal(Signal::TERM);
    assert_eq!(
        worker.wait_exit(PATIENCE).code(),
        Some(0),
        "{}",
        worker.log()
    );
    let _next = join_port_of(&site, proxy.port, &[]);
    wait_up(&front, 1);
    assert!(post(&front, &body).starts_with(&expected));
    let seen = seen.lock().unwrap();
    assert!(seen.len() > 2 * body.len() + (8 << 20), "{}", seen.len());
    for text in ["penstock-join", "secret-path", "HTTP/1.1", &PIECE.repeat(2)] {
        assert_eq!(find(&seen, text.as_bytes()), None, "{text}");
    }
}

/// A machine with a TLS session with each side, which passes on what it reads.
fn intercept(mut joiner: StreamOwned<ServerConnection, TcpStream>, port: u16) {
    let config = penstock_tls::bound_client_config().unwrap();
    let name = ServerName::try_from("front.test").unwrap();
    let client = ClientConnection::new(config, name).unwrap();
    let socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let mut front = StreamOwned::new(client, socket);
    let mut buffer = [0; 4096];
    // Both sides write a line in turn.
    loop {
        let Ok(count @ 1..) = joiner.read(&mut buffer) else {
            return;
        };
        let passed = front.write_all(&buffer[..count]);
        let Ok(count @ 1..) = passed.and_then(|()| front.read(&mut buffer)) else {
            return;
        };
        if joiner.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
}

#[test]
fn a_machine_in_between_is_refused_and_named_on_both_sides() {
    let (front, port) = tcp_front("");
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["front.test".to_owned()]).unwrap();
    let certificate = certificate.self_signed(&key).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = ServerConfig::builder().with_no_client_auth();
    let config = config.with_single_cert(vec![certificate.der().clone()], key);
    let config = Arc::new(config.unwrap());
    let attacker = InBetween::start(move |joiner| {
        joiner.set_read_timeout(Some(PATIENCE)).unwrap();
        let session = ServerConnection::new(Arc::clone(&config)).unwrap();
        intercept(StreamOwned::new(session, joiner), port);
    });
    let worker = join_port_of(&application(), attacker.port, &["--admin", "127.0.0.1:0"]);
    worker.wait_log("the TLS session ends at a machine in between");
    front.wait_log("the TLS session ends at a machine in between");
    assert!(front.log().contains("join: refused 127.0.0.1:"));
    let unready = worker.admin("GET", "/readyz");
    assert_eq!(unready.status, 503);
    assert!(unready.text().contains("man in the middle"));
    assert_eq!(up(&front), Vec::<String>::new());
    // The same joiner without the machine in between.
    drop(worker);
    let _worker = join_port_of(&application(), port, &[]);
    wait_up(&front, 1);
    assert_eq!(front.get("/a").status, 200);
}

#[test]
fn sides_that_do_not_agree_on_tls_say_so() {
    let (front, port) = tcp_front("");
    let plain = join_port_of(&application(), port, &["--plain"]);
    plain.wait_log("the front end takes servers over TLS only: leave out `--plain` here");
    front.wait_log("it joins without TLS, which `join` in [server] demands");
    // As version 2 was.
    let mut old = TcpStream::connect(("127.0.0.1", port)).unwrap();
    old.set_read_timeout(Some(PATIENCE)).unwrap();
    old.write_all(b"penstock-join 2 0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f\n")
        .unwrap();
    let mut answer = String::new();
    old.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "penstock-join 3 tls\n");
    drop(old);
    front.wait_log("it speaks version 2 of penstock-join, and this side version 3");
    // No joiner, and not told what listens there.
    for request in ["GET / HTTP/1.1\r\nHost: a\r\n\r\n", "\0\0\0\0\n"] {
        let mut stranger = RawClient::connect(port);
        stranger.send(request);
        stranger.expect_closed();
        assert_eq!(stranger.received, b"");
    }
    let (front, port) = tcp_front(", tls = false");
    let with_tls = join_port_of(&application(), port, &[]);
    with_tls.wait_log("TLS: the front end answers without TLS: remove `tls = false`");
    front.wait_log("it joins over TLS, and `join` in [server] says `tls = false`");
    assert_eq!(up(&front), Vec::<String>::new());
}

#[test]
fn plain_tcp_works_and_warns_where_others_can_read_it() {
    let (front, port) = tcp_front(", tls = false");
    let _worker = join_port_of(&application(), port, &["--plain"]);
    wait_up(&front, 1);
    let body = "0123456789abcdef".repeat(200_000);
    let answer = post(&front, &body);
    assert!(answer.starts_with("POST /secret-path 3200000 "), "{answer}");
    assert_eq!(front.get("/big").body.len(), 8 << 20);
    assert!(!front.log().contains("unencrypted"), "{}", front.log());
    // An address of another machine, for documentation (RFC 5737).
    let address = ["--join", "192.0.2.1:7000", "--key-file", "key", "--plain"];
    let abroad = application().work(&address);
    abroad.wait_log("requests of clients come unencrypted from 192.0.2.1:7000");
    abroad.wait_ready("site");
    let open = tcp_toml(", tls = false").replace("127.0.0.1:0\", tls", ":7000\", tls");
    let site = Site::new().config(&open);
    let (_, stderr) = texts(&site.run(&["check", "--config-only"]));
    let expected = "warning: server.join: *:7000 takes requests of clients across the \
                    network unencrypted";
    assert!(stderr.contains(expected), "{stderr}");
}

#[test]
fn a_reload_changes_to_tls_and_costs_no_request() {
    let (front, port) = tcp_front(", tls = false");
    let site = application();
    let plain = join_port_of(&site, port, &["--plain"]);
    wait_up(&front, 1);
    let mut inside = front.connect();
    inside.send(get("/gate/open"));
    eventually(PATIENCE, "it is inside", || site.seen().len() == 1);
    front.site().write("penstock.toml", tcp_toml(""));
    let admin = format!("127.0.0.1:{}", front.admin_port());
    let reloaded = front.site().run(&["reload", "--admin", &admin]);
    assert_eq!(reloaded.status.code(), Some(0), "{:?}", texts(&reloaded));
    plain.wait_log("the front end takes servers over TLS only");
    eventually(PATIENCE, "it gets no more", || up(&front).is_empty());
    let mut waits = front.connect();
    waits.send(get("/waits"));
    eventually(PATIENCE, "it waits", || waiting(&front) == 1);
    let _worker = join_port_of(&application(), port, &[]);
    assert!(waits.expect_status(200).text().starts_with("GET /waits"));
    site.write("open", "");
    assert_eq!(inside.expect_status(200).text(), "open");
}
