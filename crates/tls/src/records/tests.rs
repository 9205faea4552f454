//! Sessions against `rustls` as the client, and against records that it would not send.

mod answers;
mod limits;
mod random;
mod splits;
mod vectors;
mod violations;

use std::io::{IoSlice, Read, Write};
use std::sync::{Arc, LazyLock};

use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{
    CipherSuite, ClientConfig, ClientConnection, ExtractedSecrets, KeyLog as _, RootCertStore,
    ServerConfig, ServerConnection, SupportedCipherSuite,
};

use super::fuzzing::SUITE_COUNT;
use super::{ExtractError, OpenedBytes, RecordSession, TrafficKeyLog, TrafficSecrets, capture};

const SUITES: [CipherSuite; SUITE_COUNT] = [
    CipherSuite::TLS13_AES_128_GCM_SHA256,
    CipherSuite::TLS13_AES_256_GCM_SHA384,
    CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
];

/// Suites of `SUITES` with TLS 1.3.
const TLS13_COUNT: usize = 3;

/// The configurations of both sides for each suite.
static CONFIGS: LazyLock<Vec<(Arc<ClientConfig>, Arc<ServerConfig>)>> =
    LazyLock::new(|| SUITES.iter().map(|suite| make_configs(*suite)).collect());

fn make_configs(suite: CipherSuite) -> (Arc<ClientConfig>, Arc<ServerConfig>) {
    let names = vec!["localhost".to_owned()];
    let certified = rcgen::generate_simple_self_signed(names).unwrap();
    let certificate: CertificateDer<'static> = certified.cert.der().clone();
    let key = PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der());
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    provider.cipher_suites.retain(|it| it.suite() == suite);
    let provider = Arc::new(provider);
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], PrivateKeyDer::from(key))
        .unwrap();
    server.key_log = Arc::new(TrafficKeyLog);
    server.enable_secret_extraction = true;
    let mut client = client;
    client.enable_secret_extraction = true;
    (Arc::new(client), Arc::new(server))
}

/// A session whose handshake is done.
struct Handshake {
    client: ClientConnection,
    server: ServerConnection,
    traffic: Option<TrafficSecrets>,
    /// What the client has read.
    read: Vec<u8>,
}

impl Handshake {
    fn new(suite: usize) -> Self {
        let (client, server) = &CONFIGS[suite];
        let name = ServerName::try_from("localhost").unwrap();
        let mut done = Self {
            client: ClientConnection::new(Arc::clone(client), name).unwrap(),
            server: ServerConnection::new(Arc::clone(server)).unwrap(),
            traffic: None,
            read: Vec::new(),
        };
        done.exchange();
        assert!(!done.client.is_handshaking() && !done.server.is_handshaking());
        done
    }

    /// Delivers what both sides have to send, as a server does that captures.
    fn exchange(&mut self) {
        while self.client.wants_write() || self.server.wants_write() {
            let mut bytes = drain(&mut self.client);
            while !bytes.is_empty() {
                let count = self.server.read_tls(&mut &bytes[..]).unwrap();
                bytes.drain(..count);
                let (done, mut captured) = capture(|| self.server.process_new_packets());
                done.unwrap();
                let traffic = captured.traffic();
                self.traffic = traffic.or_else(|| self.traffic.take());
            }
            let read = feed(&mut self.client, &drain(&mut self.server));
            self.read.extend(read.unwrap());
        }
    }

    fn suite(&self) -> SupportedCipherSuite {
        self.server.negotiated_cipher_suite().unwrap()
    }

    /// Sends the head of a response and holds the session.
    fn hold(mut self) -> (ClientConnection, RecordSession) {
        self.server.writer().write_all(b"head").unwrap();
        self.exchange();
        assert!(self.read.ends_with(b"head"));
        let suite = self.suite();
        let extracted = self.server.dangerous_extract_secrets().unwrap();
        let held = RecordSession::new(suite, &extracted, self.traffic.as_ref());
        (self.client, held.unwrap())
    }

    fn extract(self) -> (SupportedCipherSuite, ExtractedSecrets, ExtractedSecrets) {
        let suite = self.suite();
        (
            suite,
            self.server.dangerous_extract_secrets().unwrap(),
            self.client.dangerous_extract_secrets().unwrap(),
        )
    }
}

/// What a client has to send.
fn drain(client: &mut impl TlsEnd) -> Vec<u8> {
    let mut bytes = Vec::new();
    while client.write_records(&mut bytes) > 0 {}
    bytes
}

trait TlsEnd {
    fn write_records(&mut self, bytes: &mut Vec<u8>) -> usize;
}

impl TlsEnd for ClientConnection {
    fn write_records(&mut self, bytes: &mut Vec<u8>) -> usize {
        if self.wants_write() {
            self.write_tls(bytes).unwrap()
        } else {
            0
        }
    }
}

impl TlsEnd for ServerConnection {
    fn write_records(&mut self, bytes: &mut Vec<u8>) -> usize {
        if self.wants_write() {
            self.write_tls(bytes).unwrap()
        } else {
            0
        }
    }
}

/// Lets a client read records; returns their content.
fn feed(client: &mut ClientConnection, mut bytes: &[u8]) -> Result<Vec<u8>, rustls::Error> {
    let mut content = Vec::new();
    while !bytes.is_empty() {
        assert!(client.read_tls(&mut bytes).unwrap() > 0);
        client.process_new_packets()?;
        match client.reader().read_to_end(&mut content) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
    }
    Ok(content)
}

/// The records of a client with this content.
fn client_records(client: &mut ClientConnection, content: &[u8]) -> Vec<u8> {
    client.set_buffer_limit(None);
    client.writer().write_all(content).unwrap();
    drain(client)
}

fn seal(held: &mut RecordSession, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    held.seal(&[IoSlice::new(content)], &mut out).unwrap();
    out
}

fn data(data_bytes: usize) -> OpenedBytes {
    OpenedBytes {
        data_bytes,
        is_ended: false,
    }
}

#[test]
fn every_suite_continues_in_both_directions() {
    for suite in 0..SUITE_COUNT {
        let (mut client, mut held) = Handshake::new(suite).hold();
        for length in [1, 120, 16 << 10, (16 << 10) + 1, 50_000] {
            let content: Vec<u8> = (0..=250).cycle().take(length).collect();
            assert!(
                feed(&mut client, &seal(&mut held, &content)).unwrap() == content,
                "{suite} {length}"
            );
            let mut answer = Vec::new();
            let mut records = client_records(&mut client, &content);
            let opened = held.open(&mut records, &mut answer);
            assert_eq!(opened, Ok(data(length)), "{suite}");
            assert!(answer.is_empty());
        }
    }
}

#[test]
fn slices_are_sealed_as_one() {
    let (mut client, mut held) = Handshake::new(0).hold();
    let content = vec![7; 20_000];
    let (first, second) = content.split_at(16_000);
    let slices = [first, b"", second].map(IoSlice::new);
    let mut out = Vec::new();
    held.seal(&slices, &mut out).unwrap();
    held.seal(&[], &mut out).unwrap();
    assert_eq!(out.len(), 20_000 + 2 * (5 + 1 + 16));
    assert_eq!(feed(&mut client, &out).unwrap(), content);
}

#[test]
fn key_updates_before_the_extraction_are_refused() {
    for suite in 0..TLS13_COUNT {
        for is_of_client in [true, false] {
            let mut handshake = Handshake::new(suite);
            match is_of_client {
                true => handshake.client.refresh_traffic_keys().unwrap(),
                false => handshake.server.refresh_traffic_keys().unwrap(),
            }
            handshake.server.writer().write_all(b"data").unwrap();
            handshake.exchange();
            let traffic = handshake.traffic.clone();
            let (suite, extracted, _) = handshake.extract();
            let session = RecordSession::new(suite, &extracted, traffic.as_ref());
            assert_eq!(session.unwrap_err(), ExtractError::WrongTrafficSecrets);
        }
    }
}

#[test]
fn secrets_that_do_not_belong_to_the_session_are_refused() {
    let other = Handshake::new(0).traffic;
    let (suite, extracted, _) = Handshake::new(0).extract();
    let held = RecordSession::new(suite, &extracted, None);
    assert_eq!(held.unwrap_err(), ExtractError::NoTrafficSecrets);
    let held = RecordSession::new(suite, &extracted, other.as_ref());
    assert_eq!(held.unwrap_err(), ExtractError::WrongTrafficSecrets);
}

#[test]
fn secrets_are_captured_on_their_thread_and_in_their_scope_only() {
    let log_both = || {
        for label in ["CLIENT_TRAFFIC_SECRET_0", "SERVER_TRAFFIC_SECRET_0"] {
            TrafficKeyLog.log(label, &[], &[1; 32]);
        }
    };
    log_both();
    let (inner, mut outer) = capture(|| {
        let inner = capture(log_both).1.traffic();
        TrafficKeyLog.log("CLIENT_TRAFFIC_SECRET_0", &[], &[2; 32]);
        inner
    });
    // The outer one continues behind the inner one, and has one secret only.
    assert!(inner.is_some() && outer.traffic().is_none());
    let ((), mut outer) = capture(|| {
        assert!(capture(|| ()).1.traffic().is_none());
        log_both();
    });
    assert!(outer.traffic().is_some());
    let panicked = std::panic::catch_unwind(|| capture(|| panic!("in a capture")));
    assert!(panicked.is_err());
    log_both();
    let ((), mut other) = capture(|| {
        std::thread::scope(|scope| {
            let other = scope.spawn(|| (log_both(), capture(log_both).1.traffic().is_some()));
            assert!(other.join().unwrap().1);
        });
    });
    assert!(other.traffic().is_none());
    assert!(Handshake::new(TLS13_COUNT).traffic.is_none());
    for label in [
        "CLIENT_RANDOM",
        "CLIENT_EARLY_TRAFFIC_SECRET",
        "EXPORTER_SECRET",
    ] {
        assert!(!TrafficKeyLog.will_log(label));
    }
}

#[test]
fn no_key_is_in_debug_output() {
    let mut handshake = Handshake::new(0);
    handshake.exchange();
    assert_eq!(
        format!("{:?}", handshake.traffic),
        "Some(TrafficSecrets { .. })"
    );
    let (_, held) = handshake.hold();
    assert_eq!(
        format!("{held:?}"),
        "RecordSession { suite: Tls13Aes128Gcm, sent_records: 2, received_records: 0, \
         can_send: true, can_receive: true, .. }"
    );
}
