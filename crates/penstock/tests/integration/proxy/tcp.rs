//! TCP mode: a listener that relays bytes to an upstream's servers, with the same slots.
//!
//! The bytes are not interpreted. A client above the servers' limits waits in the queue like a
//! request, with its first bytes unsent. `tunnels` tests the tunnel itself.

use std::time::Instant;

use super::{ProxySetup, SLACK, expect_bytes, wait_in_progress, wait_waiting};
use crate::support::{
    Address, Origin, PATIENCE, RawClient, ReservedPort, Server, Step, eventually,
};

const STREAM: &str = "[[tcp]]\nlisten = \"127.0.0.1:0\"\nupstream = \"b\"\n";

pub(super) fn front(addresses: impl IntoIterator<Item = Address>, upstream: &str) -> ProxySetup {
    ProxySetup::to(addresses)
        .server("threads = 2\nlisten = [\"127.0.0.1:0\"]\nadmin = \"127.0.0.1:0\"")
        .upstream(upstream)
        .tables(STREAM)
}

fn serve(origin: &Origin, upstream: &str) -> Server {
    front([origin.address()], upstream).serve()
}

/// The port of the TCP listener: the announced one that is not HTTP.
pub(super) fn port(server: &Server) -> u16 {
    eventually(PATIENCE, "the TCP listener is announced", || {
        let lines = server.announced();
        let line = lines
            .iter()
            .find(|l| l.starts_with("listening ") && !l.contains("http://"))?;
        line.trim_end_matches('/').rsplit(':').next()?.parse().ok()
    })
}

pub(super) fn connect(server: &Server) -> RawClient {
    RawClient::connect(port(server))
}

#[test]
fn a_server_that_refuses_is_passed_over() {
    let (refusing, origin) = (ReservedPort::new(), Origin::raw(vec![Step::Echo]));
    let server = front([refusing.address(), origin.address()], "").serve();
    for _ in 0..10 {
        let mut client = connect(&server);
        client.send("hello");
        expect_bytes(&mut client, b"hello");
    }
    let nobody = front([refusing.address()], "").serve();
    assert_eq!(connect(&nobody).read_to_end(), b"");
}

#[test]
fn who_cannot_begin_waits_in_the_queue() {
    let origin = Origin::raw(vec![Step::Echo]);
    let server = serve(
        &origin,
        "max_active = 1\nqueue = { max = 1, timeout = \"30s\" }",
    );
    let mut first = connect(&server);
    first.send("first");
    expect_bytes(&mut first, b"first");
    wait_in_progress(&server, 1);
    let mut second = connect(&server);
    second.send("second");
    wait_waiting(&server, 1);
    let began = Instant::now();
    connect(&server).expect_closed();
    assert!(
        began.elapsed() < SLACK,
        "what the queue cannot hold ends at once"
    );
    assert_eq!(origin.connections(), 1);
    drop(first);
    expect_bytes(&mut second, b"second");
}

#[test]
fn the_server_is_told_of_the_client_when_asked_to() {
    let origin = Origin::raw(vec![Step::Echo]);
    let server = serve(&origin, "proxy_protocol = \"v1\"");
    let mut client = connect(&server);
    client.send("hello");
    eventually(PATIENCE, "the header and the bytes", || {
        origin.received(0).ends_with(b"hello")
    });
    let text = String::from_utf8(origin.received(0)).unwrap();
    let (line, rest) = text.split_once("\r\n").unwrap();
    let words: Vec<&str> = line.split(' ').collect();
    assert_eq!(
        (&words[..4], rest),
        (&["PROXY", "TCP4", "127.0.0.1", "127.0.0.1"][..], "hello")
    );
    assert_eq!(words[5], port(&server).to_string(), "{line}");
    let origin = Origin::raw(vec![Step::Hang]);
    let server = serve(&origin, "proxy_protocol = \"v2\"");
    connect(&server).send("hello");
    eventually(PATIENCE, "the header and the bytes", || {
        origin.received(0).ends_with(b"hello")
    });
    let bytes = origin.received(0);
    assert!(bytes.starts_with(b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\x7f\0\0\x01\x7f\0\0\x01"));
    assert_eq!(bytes.len(), 28 + 5);
}

#[test]
fn a_header_before_the_connection_is_read_when_asked_to() {
    let origin = Origin::raw(vec![Step::Echo]);
    let server = front([origin.address()], "proxy_protocol = \"v1\"")
        .tables(&format!("{STREAM}proxy_protocol = true\n"))
        .serve();
    let mut client = connect(&server);
    client.send("PROXY TCP4 192.0.2.7 192.0.2.8 1234 80\r\nhello");
    eventually(PATIENCE, "the header and the bytes", || {
        origin.received(0).ends_with(b"hello")
    });
    let text = String::from_utf8(origin.received(0)).unwrap();
    let words: Vec<&str> = text.split(' ').collect();
    assert_eq!((words[2], words[4]), ("192.0.2.7", "1234"), "{text}");
    let mut liar = connect(&server);
    liar.send("hello without a header\r\n").expect_closed();
    assert_eq!(origin.connections(), 1);
}
