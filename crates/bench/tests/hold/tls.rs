//! Streams with TLS: held, published to, opened again and lost, and what each costs an agent.

use std::io::Read;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use penstock_bench::hold::{HoldPlan, StreamTarget};
use penstock_bench::report::LostStreams;
use penstock_bench::target::Target;
use penstock_bench::tls::{TlsClient, TlsSettings, TrustedFile};
use rcgen::{CertificateParams, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tempfile::TempDir;

use crate::server::Server;
use crate::{plan, publish, run};

/// A server's configuration with a certificate of its own for localhost, and settings that trust it.
fn localhost() -> (Arc<ServerConfig>, TlsSettings) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(["localhost".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("ca.pem");
    std::fs::write(&file, certificate.pem()).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key);
    let settings = TlsSettings {
        trusted: Some(TrustedFile::read(&file).unwrap()),
        ..TlsSettings::default()
    };
    (Arc::new(config.unwrap()), settings)
}

/// As [`plan`], with TLS at all targets.
fn tls_plan(server: &Server, settings: &TlsSettings, paths: &[&str], shares: &[u32]) -> HoldPlan {
    let mut plan = plan(server, paths, shares);
    for target in &mut plan.stream_targets {
        target.server_name = Some("localhost".to_owned());
    }
    plan.tls = settings.clone();
    plan
}

pub(crate) fn holds_streams_with_tls() {
    let (config, settings) = localhost();
    let server = Server::with_tls(Duration::from_millis(50), config);
    let paths = ["/chunked", "/until-close", "/pieces"];
    let mut plan = tls_plan(&server, &settings, &paths, &[30, 31]);
    let mut publish = publish(&server);
    let url = format!("https://localhost:{}/publish/", server.address.port());
    publish.open_loop.tls = Target::from_url(&url, None, &TlsClient::new(settings))
        .unwrap()
        .tls;
    plan.publish = Some(publish);
    plan.churn = 20.0;
    plan.hold = Duration::from_millis(1500);
    let hold = run(&plan);
    assert_eq!(hold.counts.lost.total(), 0, "{:?}", hold.first_reasons);
    let published = hold.published.unwrap();
    assert!(
        published.accepted >= 5 && published.refused == 0,
        "{published:?}"
    );
    let counts = hold.counts;
    assert!(counts.renewed >= 10 && counts.received > 0, "{counts:?}");
    assert_eq!((counts.missed, counts.repeated), (0, 0), "{counts:?}");
    // Every connection shakes hands; the first of each agent cannot resume.
    let (full, resumed) = (hold.full_handshakes, hold.resumed_handshakes);
    // At the end one may have shaken hands whose response has not come.
    let handshakes = full.count + resumed.count;
    let expected = counts.opened..=counts.begun;
    assert!(expected.contains(&handshakes), "{handshakes} {counts:?}");
    assert!(full.count >= 2 && resumed.count > 0, "{full:?} {resumed:?}");
    assert!(full.min > 0 && resumed.min > 0 && full.max <= hold.opening.max);
}

pub(crate) fn every_loss_with_tls_has_its_name() {
    let (config, mut settings) = localhost();
    settings.is_resuming = false;
    let server = Server::with_tls(Duration::from_millis(50), config);
    let paths = [
        "/503",
        "/ended",
        "/until-close-announced",
        "/closed",
        "/until-close-cut",
        "/reset",
        "/malformed",
        "/never",
        "/chunked",
    ];
    let mut plan = tls_plan(&server, &settings, &paths, &[55, 55]);
    plan.timeout = Duration::from_millis(1500);
    plan.hold = Duration::from_secs(3);
    // The name is another than its certificate's.
    plan.stream_targets.push(StreamTarget {
        server_name: Some("example.test".to_owned()),
        ..plan.stream_targets[0].clone()
    });
    // It closes in the handshake.
    let closing = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = closing.local_addr().unwrap();
    std::thread::spawn(move || {
        while let Ok((mut socket, _)) = closing.accept() {
            let _ = socket.read(&mut [0; 16_384]);
        }
    });
    plan.stream_targets.push(StreamTarget {
        address,
        server_name: Some("localhost".to_owned()),
        ..plan.stream_targets[0].clone()
    });
    let hold = run(&plan);
    let expected = LostStreams {
        status: 10,
        ended: 20,
        closed: 20,
        reset: 10,
        malformed: 10,
        timeout: 10,
        tls: 20,
        ..LostStreams::default()
    };
    assert_eq!(hold.counts.lost, expected, "{:?}", hold.first_reasons);
    assert_eq!((hold.counts.open, hold.counts.begun), (10, 110));
    assert_eq!(hold.resumed_handshakes.count, 0);
    assert_eq!(hold.full_handshakes.count, 90);
    let reason = |cause: &str| hold.first_reasons[cause].as_str();
    assert_eq!(
        reason("closed"),
        "the connection was closed without a close_notify"
    );
    let tls = reason("tls");
    assert!(
        tls.contains("is only valid for DnsName") || tls.contains("during the handshake"),
        "{tls}"
    );
}

pub(crate) fn a_stream_with_tls_costs_bounded_memory() {
    let (config, settings) = localhost();
    let server = Server::with_tls(Duration::from_millis(500), config);
    let streams = 1500;
    // The agent's own memory, including the table, does not count for the streams.
    let alone = run(&tls_plan(&server, &settings, &["/chunked"], &[1]));
    let mut plan = tls_plan(&server, &settings, &["/chunked", "/pieces"], &[streams]);
    plan.rate = 5000.0;
    plan.timeout = Duration::from_secs(60);
    let hold = run(&plan);
    assert!(
        hold.is_clean(),
        "{:?} {:?}",
        hold.counts,
        hold.first_reasons
    );
    let before = alone.cost.tool_bytes;
    assert!(before > 0 && hold.cost.tool_bytes > before);
    let each = (hold.cost.tool_bytes - before) / u64::from(streams - 1);
    println!("  {each} bytes a stream");
    // 2.8 kB are the session's, the rest is of its ciphers and of the allocator.
    assert!(each <= 12 << 10, "{each} bytes a stream");
}
