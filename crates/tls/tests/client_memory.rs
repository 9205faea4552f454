//! What a client's session holds while it is idle: it bounds how many streams `bench hold` can have
//! in a process.
//!
//! Alone in its process, with an allocator that counts.

use std::alloc::System;
use std::sync::Arc;

use penstock_tls::{ClientSession, ClientTlsOptions, ServerTrust, client_config, server_name};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const SESSIONS: usize = 200;

fn server_config() -> Arc<ServerConfig> {
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(["localhost".to_owned()]).expect("a host name");
    let certificate = params.self_signed(&key).expect("a certificate");
    let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key);
    Arc::new(config.expect("they belong together"))
}

/// A session with a server that is gone afterwards.
fn establish(client: &Arc<rustls::ClientConfig>, server: &Arc<ServerConfig>) -> ClientSession {
    let mut sent = Vec::new();
    let name = server_name("localhost").expect("a host name");
    let mut session = ClientSession::begin(Arc::clone(client), name, &mut sent).expect("a hello");
    let mut server = ServerConnection::new(Arc::clone(server)).expect("a server");
    loop {
        let mut rest = &sent[..];
        while !rest.is_empty() {
            server.read_tls(&mut rest).expect("memory has no errors");
            server.process_new_packets().expect("a valid message");
        }
        sent.clear();
        let mut received = Vec::new();
        while server.wants_write() {
            server
                .write_tls(&mut received)
                .expect("memory has no errors");
        }
        if received.is_empty() {
            assert!(session.is_established());
            return session;
        }
        let opened = session.receive(&mut received, &mut sent, &mut |_| {});
        opened.expect("a valid message");
    }
}

#[test]
fn an_idle_session_is_small() {
    let options = ClientTlsOptions {
        trust: ServerTrust::Anything,
        certificate: None,
        alpn: Vec::new(),
        key_log: None,
    };
    let client = client_config(options).expect("a configuration");
    let server = server_config();
    // The first ones fill the caches of the configurations.
    let warm: Vec<_> = (0..20).map(|_| establish(&client, &server)).collect();
    drop(warm);
    let before = ALLOCATOR.stats();
    let sessions: Vec<_> = (0..SESSIONS).map(|_| establish(&client, &server)).collect();
    let after = ALLOCATOR.stats();
    let grown = (after.bytes_allocated - before.bytes_allocated)
        - (after.bytes_deallocated - before.bytes_deallocated);
    let each = grown / SESSIONS;
    assert!(each <= 4 << 10, "{each} bytes");
    drop(sessions);
}
