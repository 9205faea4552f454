//! Both sides in memory against rustls' own exporter, and over real sockets.

use penstock_runtime::{Stream, loops};
use penstock_sys::net;
use rustls::pki_types::ServerName;

use super::*;
use crate::client_offer::ClientOffer;
use crate::fuzzing::both;
use crate::handshake::{accept, channel_binding, connect, session_info};
use crate::records::capture;
use crate::testing;

fn sessions() -> Arc<ServerSessions> {
    bound_sessions(testing::now()).unwrap()
}

fn name() -> ServerName<'static> {
    ServerName::try_from(BOUND_SESSION_NAME).unwrap()
}

/// The client's configuration with one cipher suite.
fn client_with(suite: &str) -> Arc<ClientConfig> {
    let mut offer = ClientOffer::default();
    offer.cipher_suites.push(suite.to_owned());
    let provider = offer.restrict(TlsProfile::Modern.provider()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&TlsProfile::Modern.versions())
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(FingerprintVerifier {
            accepted: None,
            algorithms: TlsProfile::Modern
                .provider()
                .signature_verification_algorithms,
        }))
        .with_no_client_auth();
    config.key_log = Arc::new(ChannelBindingLog);
    Arc::new(config)
}

#[test]
fn the_channel_binding_is_that_of_rfc_9266_with_every_hash() {
    let sessions = sessions();
    let server = &sessions.select(None).config;
    for suite in [
        "TLS_AES_128_GCM_SHA256",
        "TLS_AES_256_GCM_SHA384",
        "TLS_CHACHA20_POLY1305_SHA256",
    ] {
        let client = client_with(suite);
        let (made, captured) =
            capture(|| testing::handshake(&client, server, BOUND_SESSION_NAME).unwrap());
        let label = b"EXPORTER-Channel-Binding";
        let expected = |exported: Result<[u8; 32], rustls::Error>| exported.unwrap();
        let of_client = made
            .client
            .export_keying_material([0; 32], label, Some(b""));
        let of_server = made
            .server
            .export_keying_material([0; 32], label, Some(b""));
        let captured = captured.channel_binding.as_deref().copied();
        assert_eq!(captured, Some(expected(of_client)), "{suite}");
        assert_eq!(captured, Some(expected(of_server)), "{suite}");
    }
    // A client without the key log captures nothing; the server got that far.
    let authority = testing::TestAuthority::new("Other");
    let config = testing::client(&authority, TlsProfile::Modern);
    let (_, captured) = capture(|| {
        let refused = testing::handshake(&Arc::new(config), server, BOUND_SESSION_NAME);
        assert!(refused.is_err(), "no authority has signed it");
    });
    assert!(captured.channel_binding.is_some());
}

/// A session over a socket pair.
async fn pair(sessions: &ServerSessions, client: Arc<ClientConfig>) -> [Stream; 2] {
    let (ours, theirs) = net::worker_socket_pair().unwrap();
    let (server, peer) = (
        Stream::new(ours).unwrap(),
        Stream::from_received(theirs).unwrap(),
    );
    let mut early = Vec::new();
    let (accepted, connected) = both(
        accept(&server, sessions, &mut early),
        connect(&peer, client, name()),
    )
    .await;
    let (accepted, connected) = (accepted.unwrap(), connected.unwrap());
    [accepted.over(server), connected.over(peer)]
}

#[test]
fn both_sides_have_the_binding_of_their_session_and_of_no_other() {
    loops::block_on(async {
        let (sessions, client) = (sessions(), bound_client_config().unwrap());
        let mut seen = Vec::new();
        for _ in 0..3 {
            let [server, peer] = pair(&sessions, Arc::clone(&client)).await;
            let binding = channel_binding(&server).expect("it has one");
            assert_eq!(channel_binding(&peer), Some(binding));
            assert!(!seen.contains(&binding));
            seen.push(binding);
            let info = session_info(&server).unwrap();
            assert_eq!((info.version, info.is_resumed), ("TLSv1.3", false));
        }
        let (plain, _peer) = net::worker_socket_pair().unwrap();
        assert_eq!(channel_binding(&Stream::new(plain).unwrap()), None);
    })
    .unwrap();
}

#[test]
fn sessions_of_tls_1_2_are_refused() {
    let sessions = sessions();
    let provider = TlsProfile::Intermediate.provider();
    let only_old = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let server = &sessions.select(None).config;
    let failed = testing::handshake(&Arc::new(only_old), server, BOUND_SESSION_NAME);
    let failed = failed.map(|_| ()).unwrap_err();
    assert!(
        matches!(failed.server, Some(rustls::Error::PeerIncompatible(_))),
        "{failed:?}"
    );
}
