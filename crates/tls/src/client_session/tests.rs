//! Sessions in memory with rustls' own server, whose bytes arrive in pieces of any size.

use std::io::{Read, Write};

use rustls::{CertificateError, Error, ServerConnection};

use super::*;
use crate::profile::TlsProfile;
use crate::testing::server::Server;
use crate::testing::sessions::at_now;
use crate::testing::{client, store};

/// Both ends of a session.
struct Pair {
    client: ClientSession,
    server: ServerConnection,
    /// On its way to the server.
    sent: Vec<u8>,
    /// What the client read.
    plaintext: Vec<u8>,
}

impl Pair {
    fn new(server: &Server, config: &Arc<ClientConfig>, name: &str) -> Self {
        let mut sent = Vec::new();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let client = ClientSession::begin(Arc::clone(config), name, &mut sent).unwrap();
        assert!(!sent.is_empty() && !client.is_established());
        Self {
            client,
            server: ServerConnection::new(at_now(&server.tls().config)).unwrap(),
            sent,
            plaintext: Vec::new(),
        }
    }

    /// Delivers everything, the server's bytes in pieces, until both are silent.
    fn exchange(&mut self, piece: usize) -> Result<(), HandshakeError> {
        loop {
            let mut rest = &self.sent[..];
            while !rest.is_empty() {
                self.server.read_tls(&mut rest).unwrap();
                self.server.process_new_packets().unwrap();
            }
            self.sent.clear();
            let mut received = Vec::new();
            while self.server.wants_write() {
                self.server.write_tls(&mut received).unwrap();
            }
            if received.is_empty() {
                return Ok(());
            }
            for piece in received.chunks_mut(piece) {
                let plaintext = &mut self.plaintext;
                self.client.receive(piece, &mut self.sent, &mut |bytes| {
                    plaintext.extend_from_slice(bytes);
                })?;
            }
        }
    }
}

#[test]
fn carries_plaintext_in_pieces_of_any_size() {
    let server = Server::new();
    let config = Arc::new(client(&server.authority, TlsProfile::Intermediate));
    for (number, piece) in [1, 7, 1000, usize::MAX].into_iter().enumerate() {
        let mut pair = Pair::new(&server, &config, "a.test");
        pair.exchange(piece).unwrap();
        assert!(pair.client.is_established(), "{piece}");
        assert_eq!(pair.client.is_resumed(), number > 0, "{piece}");
        let question = vec![b'q'; 100_000];
        pair.client.seal(&question, &mut pair.sent).unwrap();
        let mut asked = Vec::new();
        let mut rest = &pair.sent[..];
        while !rest.is_empty() {
            pair.server.read_tls(&mut rest).unwrap();
            pair.server.process_new_packets().unwrap();
            let mut buffer = [0; 1 << 17];
            if let Ok(count) = pair.server.reader().read(&mut buffer) {
                asked.extend_from_slice(&buffer[..count]);
            }
        }
        pair.sent.clear();
        assert_eq!(asked, question, "{piece}");
        let answer = vec![b'a'; 50_000];
        pair.server.writer().write_all(&answer).unwrap();
        pair.exchange(piece).unwrap();
        assert!(pair.plaintext == answer && !pair.client.has_peer_closed());
        assert!(pair.client.incomplete.is_empty());
        pair.server.send_close_notify();
        pair.exchange(piece).unwrap();
        assert!(pair.client.has_peer_closed(), "{piece}");
        pair.client.seal_close(&mut pair.sent).unwrap();
        let mut sent = &pair.sent[..];
        pair.server.read_tls(&mut sent).unwrap();
        assert!(pair.server.process_new_packets().unwrap().peer_has_closed());
    }
}

#[test]
fn a_server_that_is_another_is_refused_with_an_alert() {
    let (server, stranger) = (Server::new(), Server::new());
    // One certificate, also for a name that it is not for.
    let certificate = server.authority.issue(&["a.test"]).load();
    let names = store(&[(&["a.test", "wrong.test"], &[&certificate])]);
    server.store.replace(names);
    for (authority, name, expected) in [
        (&server.authority, "wrong.test", "not valid for name"),
        (&stranger.authority, "a.test", "invalid peer certificate"),
    ] {
        let config = Arc::new(client(authority, TlsProfile::Intermediate));
        let mut pair = Pair::new(&server, &config, name);
        let error = pair.exchange(usize::MAX).unwrap_err();
        let HandshakeError::Protocol(Error::InvalidCertificate(cause)) = &error else {
            panic!("{error:?}");
        };
        let is_name = matches!(cause, CertificateError::NotValidForNameContext { .. });
        assert_eq!(is_name, name == "wrong.test", "{cause:?}");
        assert!(error.to_string().contains(expected), "{error}");
        assert!(!pair.sent.is_empty(), "the alert");
        assert!(!pair.client.is_established());
        let mut out = Vec::new();
        assert!(pair.client.seal(b"x", &mut out).is_err() && out.is_empty());
    }
}

#[test]
fn what_is_not_tls_ends_the_session() {
    let server = Server::new();
    let config = Arc::new(client(&server.authority, TlsProfile::Intermediate));
    let mut pair = Pair::new(&server, &config, "a.test");
    let mut answer = b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec();
    let received = pair
        .client
        .receive(&mut answer, &mut pair.sent, &mut |_| panic!("plaintext"));
    assert!(
        matches!(received, Err(HandshakeError::Protocol(_))),
        "{received:?}"
    );

    // A record that was changed on its way.
    let mut pair = Pair::new(&server, &config, "a.test");
    pair.exchange(usize::MAX).unwrap();
    pair.server.writer().write_all(b"hello").unwrap();
    let mut received = Vec::new();
    pair.server.write_tls(&mut received).unwrap();
    *received.last_mut().unwrap() ^= 1;
    let opened = pair
        .client
        .receive(&mut received, &mut pair.sent, &mut |_| panic!("plaintext"));
    assert!(
        matches!(opened, Err(HandshakeError::Protocol(Error::DecryptError))),
        "{opened:?}"
    );
}
