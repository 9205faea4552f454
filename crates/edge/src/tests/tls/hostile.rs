//! Clients that break the protocol of the handshake, or leave it: none keeps a connection, and the
//! next one is served.

use super::*;

/// Types of records (RFC 8446 §5.1).
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;

/// The level of an alert that ends a connection (RFC 8446 §6).
const FATAL: u8 = 2;

/// A record of these bytes.
fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    let [high, low] = u16::try_from(content.len()).unwrap().to_be_bytes();
    [&[kind, 3, 1, high, low], content].concat()
}

/// The messages in records of a handshake, cut into records of `size` bytes.
fn refragment(records: &[u8], size: usize) -> Vec<u8> {
    let (mut rest, mut messages) = (records, Vec::new());
    while let [HANDSHAKE, _, _, high, low, behind @ ..] = rest {
        let len = usize::from(u16::from_be_bytes([*high, *low]));
        messages.extend_from_slice(&behind[..len]);
        rest = &behind[len..];
    }
    assert!(rest.is_empty(), "a hello is all there is");
    let records = messages.chunks(size);
    records.flat_map(|piece| record(HANDSHAKE, piece)).collect()
}

/// A first message without extensions, for an older version (RFC 5246 §7.4.1.2).
fn old_hello(version: [u8; 2]) -> Vec<u8> {
    let body = [&version[..], &[7; 32], &[0, 0, 2, 0xc0, 0x2f, 1, 0]].concat();
    let message = [&[1, 0, 0, u8::try_from(body.len()).unwrap()], &body[..]].concat();
    record(HANDSHAKE, &message)
}

impl TlsEdge {
    /// The next client is served, and the others are gone.
    fn expect_healthy(&self, what: &str) {
        let mut client = self.connect();
        client.write_all(get("/bytes/7").as_bytes()).unwrap();
        assert_eq!(read_response(&mut client).1, expected(7), "{what}");
        drop(client);
        self.house.wait_for_connections(0);
    }

    /// Sends bytes instead of a handshake; returns what came back until the connection ended.
    fn answer_to(&self, bytes: &[u8]) -> Vec<u8> {
        let mut client = self.house.connect();
        // The connection may have ended before all is sent.
        let _ = client.0.write_all(bytes);
        let mut answer = Vec::new();
        // Behind unread bytes it ends with a reset.
        let _ = client.0.read_to_end(&mut answer);
        answer
    }
}

#[test]
fn a_first_message_may_come_in_records_of_any_size() {
    let edge = TlsEdge::new(sizes(), |_| {});
    for size in [1, 2, 3, 7, 100] {
        let mut client = edge.connect();
        let mut hello = Vec::new();
        client.conn.write_tls(&mut hello).unwrap();
        client.sock.write_all(&refragment(&hello, size)).unwrap();
        client.write_all(get("/bytes/9").as_bytes()).unwrap();
        assert_eq!(read_response(&mut client).1, expected(9), "{size}");
    }
}

#[test]
fn a_client_without_a_server_name_gets_the_default_site() {
    let edge = TlsEdge::new(sizes(), |_| {});
    let mut config = (*edge.clients).clone();
    config.enable_sni = false;
    let name = ServerName::try_from("h.test").unwrap();
    let session = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut client = StreamOwned::new(session, edge.house.connect().0);
    client.write_all(get("/scheme").as_bytes()).unwrap();
    let (_, body) = read_response(&mut client);
    assert_eq!(String::from_utf8(body).unwrap(), "https TLSv1.3 None");
}

#[test]
fn old_versions_are_refused_with_an_alert() {
    let edge = TlsEdge::new(sizes(), |_| {});
    for version in [[3, 0], [3, 1], [3, 2]] {
        let answer = edge.answer_to(&old_hello(version));
        assert_eq!(answer.len(), 7, "{version:?}: {answer:?}");
        assert_eq!((answer[0], answer[5]), (ALERT, FATAL));
    }
    edge.expect_healthy("old versions");
}

#[test]
fn a_first_message_without_an_end_is_bounded() {
    let edge = TlsEdge::new(sizes(), |_| {});
    let start = [&[1, 0, 0xff, 0xff, 3, 3][..], &[7; 16_000]].concat();
    let rest = record(HANDSHAKE, &[7; 16_000]);
    let message = [record(HANDSHAKE, &start), rest.repeat(20)].concat();
    let answer = edge.answer_to(&message);
    assert!(answer.len() < 16, "{answer:?}");
    edge.expect_healthy("a hello of 64 kB");
}

#[test]
fn greetings_of_other_protocols_get_a_short_answer() {
    let edge = TlsEdge::new(sizes(), |_| {});
    let plain = [
        &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"EHLO h.test\r\n",
    ];
    for greeting in plain {
        let answer = edge.answer_to(greeting);
        assert!(answer.starts_with(b"HTTP/1.1 400 "), "{answer:?}");
    }
    let others = [
        &b"\x04\x01\x00\x50\x7f\x00\x00\x01\x00"[..],
        b"\x05\x01\x00",
        b"\x03\x00\x00\x13\x0e\xe0",
        b"\r\n\r\n",
        b"\xff\xfb\x1f",
    ];
    for greeting in others {
        assert!(edge.answer_to(greeting).is_empty(), "{greeting:?}");
    }
    // Over TLS, without the agreement on it that it needs.
    let mut client = edge.connect();
    client
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 505 "), "{answer:?}");
    edge.expect_healthy("greetings");
}

#[test]
fn an_alert_or_rubbish_ends_the_handshake_in_every_state() {
    let edge = TlsEdge::new(sizes(), |_| {});
    let last_words = [
        ("close_notify", record(ALERT, &[1, 0])),
        ("a fatal alert", record(ALERT, &[2, 40])),
        ("data", record(23, b"GET / HTTP/1.1\r\n\r\n")),
        ("an unknown record", record(99, b"x")),
        ("a record of 64 kB", vec![HANDSHAKE, 3, 3, 0xff, 0xff]),
        ("an empty record", vec![HANDSHAKE, 3, 3, 0, 0]),
    ];
    for (what, bytes) in &last_words {
        // First of all; behind the first message, and behind the server's.
        edge.answer_to(bytes);
        let mut client = edge.connect();
        let mut hello = Vec::new();
        client.conn.write_tls(&mut hello).unwrap();
        edge.answer_to(&[&hello[..], bytes].concat());
        client.sock.write_all(&hello).unwrap();
        let mut flight = [0];
        client.sock.read_exact(&mut flight).unwrap();
        let _ = client.sock.write_all(bytes);
        let _ = client.sock.read_to_end(&mut Vec::new());
        edge.expect_healthy(what);
    }
}

#[test]
fn a_client_may_leave_at_every_byte_of_its_handshake() {
    let edge = TlsEdge::new(sizes(), |_| {});
    let mut client = edge.connect();
    let mut hello = Vec::new();
    client.conn.write_tls(&mut hello).unwrap();
    for end in (0..hello.len()).step_by(13).chain([hello.len()]) {
        let mut client = edge.house.connect();
        client.send(&hello[..end]);
        drop(client);
    }
    // Its last messages, which depend on the server's.
    client.sock.write_all(&hello).unwrap();
    while client.conn.is_handshaking() && !client.conn.wants_write() {
        client.conn.read_tls(&mut client.sock).unwrap();
        client.conn.process_new_packets().unwrap();
    }
    let mut last = Vec::new();
    while client.conn.wants_write() {
        client.conn.write_tls(&mut last).unwrap();
    }
    client.sock.write_all(&last[..last.len() - 1]).unwrap();
    drop(client);
    edge.expect_healthy("clients that left");
}

#[test]
fn bytes_of_any_kind_are_no_session() {
    let edge = TlsEdge::new(sizes(), |_| {});
    let mut client = edge.connect();
    let mut hello = Vec::new();
    client.conn.write_tls(&mut hello).unwrap();
    drop(client);
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..200 {
        let mut bytes = hello.clone();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..bytes.len());
            bytes[at] = random.u8(..);
        }
        bytes.truncate(random.usize(1..=bytes.len()));
        let mut client = edge.house.connect();
        client.send(&bytes);
        client.0.shutdown(std::net::Shutdown::Write).unwrap();
        let _ = client.0.read_to_end(&mut Vec::new());
    }
    edge.expect_healthy("random changes of a hello");
}
