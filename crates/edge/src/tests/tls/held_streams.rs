//! Held responses over TLS: the session goes on without its state of the handshake.

use std::io::IoSlice;
use std::sync::mpsc;

use penstock_exchange::{
    ConnectionAdopter, HeldConnection, HeldConnectionGuard, HeldFraming, Hold,
};
use rustls::SupportedProtocolVersion;

use super::*;
use crate::EdgeAdopter;

/// A connection that was handed over.
#[derive(Debug)]
struct HeldClient {
    connection: HeldConnection,
    early_bytes: usize,
    _guard: HeldConnectionGuard,
}

/// Passes each connection to the test.
#[derive(Debug)]
struct TestHolder(mpsc::SyncSender<HeldClient>);

impl Hold for TestHolder {
    fn hold(
        self: Box<Self>,
        connection: HeldConnection,
        early_bytes: usize,
        _: HeldFraming,
        guard: HeldConnectionGuard,
    ) {
        let held = HeldClient {
            connection,
            early_bytes,
            _guard: guard,
        };
        self.0.try_send(held).unwrap();
    }
}

/// A front end that holds every response.
struct HoldingEdge {
    house: TlsEdge,
    held: mpsc::Receiver<HeldClient>,
}

impl HoldingEdge {
    fn new() -> Self {
        let (sender, held) = mpsc::sync_channel(4);
        let handler = handler_fn(move |_| {
            let holder = Box::new(TestHolder(sender.clone()));
            ready(Response::new(Status::OK, Body::Hold(holder)))
        });
        Self {
            house: TlsEdge::new(vec![route("/", handler)], |_| {}),
            held,
        }
    }

    fn connect_with(&self, version: &'static SupportedProtocolVersion) -> TlsClient {
        let clients = ClientConfig::builder_with_protocol_versions(&[version])
            .with_root_certificates(self.house.roots.clone())
            .with_no_client_auth();
        let name = ServerName::try_from("h.test").unwrap();
        let session = ClientConnection::new(Arc::new(clients), name).unwrap();
        StreamOwned::new(session, self.house.house.connect().0)
    }

    /// A held response of a client, which has read its head.
    fn hold(&self, client: &mut TlsClient, request: &str) -> HeldClient {
        client.write_all(request.as_bytes()).unwrap();
        let (head, _) = read_response(client);
        assert!(head.contains("chunked"), "{head}");
        self.next_held()
    }

    fn next_held(&self) -> HeldClient {
        self.held
            .recv_timeout(TEST_TIMEOUT)
            .expect("nothing was handed over")
    }
}

impl HeldClient {
    fn send(&mut self, text: &str) {
        let mut connection = self.connection.borrow_mut();
        let slices = [IoSlice::new(text.as_bytes())];
        assert_eq!(connection.try_write(&slices).unwrap(), text.len());
        assert_eq!(connection.unsent_bytes(), 0);
    }

    /// Bytes of content that come from the client.
    fn receive(&mut self) -> usize {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            match self.connection.borrow_mut().discard_input(&mut [0; 4096]) {
                Ok(count) => return count,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
            }
            assert!(Instant::now() < deadline, "nothing comes");
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }
}

fn expect(client: &mut TlsClient, text: &str) {
    let mut read = vec![0; text.len()];
    client.read_exact(&mut read).unwrap();
    assert_eq!(String::from_utf8(read).unwrap(), text);
}

#[test]
fn a_held_response_goes_on_over_the_session() {
    let edge = HoldingEdge::new();
    for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
        let mut client = edge.connect_with(version);
        let mut held = edge.hold(&mut client, &get("/"));
        assert_eq!(held.early_bytes, 0);
        for text in ["5\r\nevent\r\n", "5\r\nother\r\n"] {
            held.send(text);
            expect(&mut client, text);
        }
        client.write_all(b"dropped").unwrap();
        assert_eq!(held.receive(), 7);
        held.send("0\r\n\r\n");
        held.connection.borrow_mut().shutdown_write();
        let mut rest = Vec::new();
        // The end is announced: a cut would be an error.
        client.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"0\r\n\r\n");
    }
}

#[test]
fn keys_are_updated_before_and_behind_the_head() {
    let edge = HoldingEdge::new();
    let mut client = edge.connect_with(&rustls::version::TLS13);
    client.conn.complete_io(&mut client.sock).unwrap();
    client.conn.refresh_traffic_keys().unwrap();
    let mut held = edge.hold(&mut client, &get("/"));
    for _ in 0..3 {
        held.send("event");
        expect(&mut client, "event");
        client.conn.refresh_traffic_keys().unwrap();
        client.write_all(b"more").unwrap();
        assert_eq!(held.receive(), 4);
    }
    held.send("event");
    expect(&mut client, "event");
}

#[test]
fn bytes_behind_the_request_are_counted_and_a_cut_record_is_continued() {
    let edge = HoldingEdge::new();
    for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
        let mut client = edge.connect_with(version);
        client.conn.complete_io(&mut client.sock).unwrap();
        let request = get("/") + "early";
        client.conn.writer().write_all(request.as_bytes()).unwrap();
        client.conn.writer().write_all(b"in two pieces").unwrap();
        let mut records = Vec::new();
        while client.conn.wants_write() {
            client.conn.write_tls(&mut records).unwrap();
        }
        let (first, rest) = records.split_at(records.len() - 9);
        client.sock.write_all(first).unwrap();
        let (head, _) = read_response(&mut client);
        assert!(head.contains("chunked"), "{head}");
        let mut held = edge.next_held();
        assert_eq!(held.early_bytes, 5);
        client.sock.write_all(rest).unwrap();
        assert_eq!(held.receive(), 13);
        held.send("event");
        expect(&mut client, "event");
    }
}

#[test]
fn another_process_continues_the_session() {
    let edge = HoldingEdge::new();
    let mut client = edge.connect_with(&rustls::version::TLS13);
    let mut held = edge.hold(&mut client, &get("/"));
    held.send("old");
    let records = held.connection.records.take().unwrap();
    let adopter = EdgeAdopter(Arc::clone(&edge.house.house.edge));
    let layer = adopter.restore_record_layer(&records.session_bytes());
    let layer = layer.unwrap();
    let unsent = records.unsent().to_vec();
    let socket = held.connection.into_socket();
    held.connection = HeldConnection::sealed(socket, layer, unsent);
    held.send("new");
    expect(&mut client, "oldnew");
    let refused = adopter.restore_record_layer(b"another format").unwrap_err();
    assert!(refused.to_string().contains("format"), "{refused}");
}

#[test]
fn a_client_that_ends_its_session_is_gone() {
    let edge = HoldingEdge::new();
    let mut client = edge.connect_with(&rustls::version::TLS13);
    let mut held = edge.hold(&mut client, &get("/"));
    client.conn.send_close_notify();
    client.conn.complete_io(&mut client.sock).unwrap();
    let deadline = Instant::now() + TEST_TIMEOUT;
    let error = loop {
        let read = held.connection.borrow_mut().discard_input(&mut [0; 4096]);
        let error = read.unwrap_err();
        if error.kind() != ErrorKind::WouldBlock {
            break error;
        }
        assert!(Instant::now() < deadline, "the end does not come");
        std::thread::park_timeout(Duration::from_millis(1));
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
    // The answer is an end, too.
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
}
