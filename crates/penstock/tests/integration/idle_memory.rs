//! An idle connection costs little memory, and releases it.
//!
//! One or two thousand connections stay open after a request each; the growth of the server's
//! resident memory is divided among them. A first batch, closed again, warms up one-time allocations.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::support::{PATIENCE, RawClient, Server, Site, eventually, is_server_hidden};

const CONNECTIONS: usize = 2_000;

/// Handshakes take a debug build some milliseconds each.
const TLS_CONNECTIONS: usize = 1_000;

/// Maximum bytes of the server's memory per idle connection (without the kernel's).
const BYTES_MAX: usize = 1_536;

/// With TLS: 1,535 were measured with 15,000 connections, 700 more than without. Connections of the
/// last second still have their expanded keys, 1,300 bytes each.
const TLS_BYTES_MAX: usize = 2_304;

#[test]
fn an_idle_connection_costs_at_most_a_kilobyte_and_a_half() {
    if is_server_hidden() {
        return;
    }
    let server = Site::new().file("index.html", "hello").serve(&[]);
    measure(&server, CONNECTIONS, BYTES_MAX, plain_client);
}

#[test]
fn an_idle_connection_with_tls_costs_at_most_two_kilobytes_and_a_quarter() {
    if is_server_hidden() {
        return;
    }
    let site = Site::new().file("files/index.html", "hello").config(
        "[server]\nlisten = [{ address = \"127.0.0.1:0\", tls = true }]\n\
         [[sites]]\nhosts = [\"localhost\"]\ntls = \"local\"\n\
         [[sites.routes]]\nfiles = { root = \"files\" }\n",
    );
    let state = site.dir().join("state");
    let server = site.serve_with(&[], &[("STATE_DIRECTORY", state.to_str().unwrap())]);
    let authority = state.join("local-authority/root.pem");
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_file(authority).unwrap();
    roots.add(root).unwrap();
    let config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let config = Arc::new(config);
    let connect = |server: &Server| tls_client(server, &config);
    measure(&server, TLS_CONNECTIONS, TLS_BYTES_MAX, connect);
}

/// Opens idle connections, closes them, and does it again.
fn measure<C>(server: &Server, count: usize, bytes_max: usize, connect: impl Fn(&Server) -> C) {
    let idle = |count| -> Vec<C> { (0..count).map(|_| connect(server)).collect() };
    drop(idle(100));
    open(server, 0);
    let before = resident_bytes(server.pid());
    let clients = idle(count);
    open(server, count);
    let grown = resident_bytes(server.pid()).saturating_sub(before);
    let each = grown / count;
    assert!(each <= bytes_max, "{each} bytes for each idle connection");
    drop(clients);
    open(server, 0);
    // A second batch takes no more: nothing is kept for closed connections.
    let before = resident_bytes(server.pid());
    let clients = idle(count);
    open(server, count);
    let grown = resident_bytes(server.pid()).saturating_sub(before);
    assert!(
        grown / count <= bytes_max / 4,
        "{grown} bytes more in the second round"
    );
    drop(clients);
}

/// A client with one completed request.
fn plain_client(server: &Server) -> RawClient {
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nUser-Agent: idle\r\nAccept: */*\r\n\r\n");
    client.expect_status(200);
    client
}

fn tls_client(
    server: &Server,
    config: &Arc<ClientConfig>,
) -> StreamOwned<ClientConnection, TcpStream> {
    let name = ServerName::try_from("localhost").unwrap();
    let session = ClientConnection::new(Arc::clone(config), name).unwrap();
    let socket = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut client = StreamOwned::new(session, socket);
    client
        .write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: idle\r\n\r\n")
        .unwrap();
    let mut response = Vec::new();
    while !response.ends_with(b"\r\n\r\nhello") {
        let mut bytes = [0; 1024];
        let count = client.read(&mut bytes).unwrap();
        assert!(count > 0, "{}", String::from_utf8_lossy(&response));
        response.extend_from_slice(&bytes[..count]);
    }
    client
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
