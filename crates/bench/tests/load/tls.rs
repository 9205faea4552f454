//! Servers with TLS: sessions, handshakes and their times, and each way in which a session fails.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use penstock_bench::load::{Address, EncodedRequest, Load};
use penstock_bench::report::{LoadFigures, TlsFigures};
use penstock_bench::target::{RequestTemplate, Target};
use penstock_bench::tls::{TlsClient, TlsSettings, TrustedFile};
use rcgen::{Certificate, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tempfile::TempDir;
use time::{Duration as Days, OffsetDateTime};

use crate::server::{Connection, HELLO, Server, take};
use crate::{load, run_requests};

/// An authority, and what its server shows.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    /// Of the file with its certificate.
    dir: TempDir,
}

impl Authority {
    fn new() -> Self {
        Self::named("Tests")
    }

    fn named(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let dir = TempDir::new().unwrap();
        std::fs::write(dir.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, dir }
    }

    /// Settings that trust it.
    fn trusted(&self) -> TlsSettings {
        TlsSettings {
            trusted: Some(TrustedFile::read(&self.dir.path().join("ca.pem")).unwrap()),
            ..TlsSettings::default()
        }
    }

    /// A certificate for a name, and its key.
    fn issue(
        &self,
        name: &str,
        change: impl FnOnce(&mut CertificateParams),
    ) -> (Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        change(&mut params);
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    /// A server's configuration with a certificate for a name.
    fn server(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Arc<ServerConfig> {
        let (certificate, key) = self.issue(name, change);
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key);
        Arc::new(config.unwrap())
    }
}

/// A load of `GET /` over so many connections, to `https://HOST:PORT/`.
fn tls_load(server: &Address, host: &str, settings: TlsSettings, connections: u32) -> Load {
    let Address::Tcp(address) = server else {
        panic!("{server:?}");
    };
    let url = format!("https://{host}:{}/", address.port());
    let target = Target::from_url(&url, None, &TlsClient::new(settings)).unwrap();
    let request = target.encode_request(&RequestTemplate::default(), 1);
    Load {
        requests: vec![request.unwrap()],
        ..load(server.clone(), connections)
    }
}

fn answer_all(connection: &mut Connection) {
    while connection.request().is_some() {
        connection.send(HELLO);
    }
}

fn tls_of(figures: &LoadFigures) -> &TlsFigures {
    figures.tls.as_ref().unwrap()
}

#[test]
fn counts_sessions_and_handshakes() {
    let authority = Authority::new();
    let server = Server::start_tls(authority.server("127.0.0.1", |_| {}), answer_all);
    let figures = run_requests(
        tls_load(&server.address, "127.0.0.1", authority.trusted(), 4),
        200,
    );
    assert!(figures.is_clean(), "{figures:?}");
    assert_eq!((figures.requests, server.requests()), (200, 200));
    assert_eq!(figures.bytes, 200 * HELLO.len() as u64, "without records");
    assert_eq!((server.connections(), figures.connect.count), (4, 4));
    let tls = tls_of(&figures);
    assert_eq!(tls.handshakes(), 4);
    assert_eq!(tls.full.count, 4, "all connections open at once");
    let sessions = [("TLSv1.3 AES_128_GCM_SHA256".to_owned(), 4)];
    assert_eq!(tls.sessions, sessions.into());
    assert!(tls.full.min > 0 && tls.first_failure.is_none());
    let plain = run_requests(load(Server::answering(HELLO).address.clone(), 1), 5);
    assert!(plain.tls.is_none());
}

#[test]
fn resumes_sessions_unless_told_not_to() {
    let authority = Authority::new();
    let server = Server::start_tls(authority.server("127.0.0.1", |_| {}), |connection| {
        answer_all(connection);
    });
    for (is_resuming, full) in [(true, 1), (false, 30)] {
        let settings = TlsSettings {
            is_resuming,
            ..authority.trusted()
        };
        let mut load = tls_load(&server.address, "127.0.0.1", settings, 1);
        load.keep_alive = false;
        let figures = run_requests(load, 30);
        assert!(figures.is_clean(), "{figures:?}");
        let tls = tls_of(&figures);
        assert_eq!((tls.full.count, tls.resumed.count), (full, 30 - full));
        assert_eq!(tls.sessions.values().sum::<u64>(), 30);
        // Each request has its own connection, and its time has the handshake's.
        assert!(figures.total.min > tls.full.min.min(tls.resumed.min.max(1)));
    }
}

#[test]
fn many_connections_at_once_resume() {
    const CONNECTIONS: u32 = 24;
    let authority = Authority::new();
    let server = Server::start_tls(authority.server("127.0.0.1", |_| {}), |connection| {
        // Together, so that all tickets are there before the first is used.
        connection.request();
        take(Duration::from_millis(100));
        connection.send("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    });
    let load = tls_load(
        &server.address,
        "127.0.0.1",
        authority.trusted(),
        CONNECTIONS,
    );
    let figures = run_requests(load, u64::from(CONNECTIONS) * 3);
    assert!(figures.is_clean(), "{figures:?}");
    let tls = tls_of(&figures);
    let full = tls.full.count;
    assert!(full <= u64::from(CONNECTIONS), "{full} full handshakes");
    assert_eq!(tls.handshakes(), u64::from(CONNECTIONS) * 3);
}

#[test]
fn a_handshake_counts_as_connecting_does() {
    const DELAY: Duration = Duration::from_millis(400);
    let authority = Authority::new();
    let server = Server::start_tls(authority.server("127.0.0.1", |_| {}), |connection| {
        take(DELAY);
        answer_all(connection);
    });
    let delay = u64::try_from(DELAY.as_micros()).unwrap();
    for (keep_alive, is_part_of_requests) in [(true, false), (false, true)] {
        let mut load = tls_load(&server.address, "127.0.0.1", authority.trusted(), 1);
        load.keep_alive = keep_alive;
        let figures = run_requests(load, 2);
        assert!(figures.is_clean(), "{figures:?}");
        let tls = tls_of(&figures);
        assert!(tls.full.min >= delay * 9 / 10, "{tls:?}");
        assert!(figures.connect.max < delay, "{:?}", figures.connect);
        assert_eq!(
            figures.total.max >= delay,
            is_part_of_requests,
            "{figures:?}"
        );
    }
}

#[test]
fn a_server_that_is_not_the_right_one_is_named() {
    let authority = Authority::new();
    let expired = |params: &mut CertificateParams| {
        params.not_before = OffsetDateTime::now_utc() - Days::days(9);
        params.not_after = OffsetDateTime::now_utc() - Days::days(2);
    };
    let stranger = Authority::named("Another");
    for (name, config, said) in [
        (
            "another authority",
            stranger.server("127.0.0.1", |_| {}),
            "127.0.0.1: invalid peer certificate: UnknownIssuer: name its issuer with --ca",
        ),
        (
            "another name",
            authority.server("example.test", |_| {}),
            "is only valid for DnsName(\"example.test\")",
        ),
        (
            "an old certificate",
            authority.server("127.0.0.1", expired),
            "certificate expired",
        ),
    ] {
        let server = Server::start_tls(config, answer_all);
        let refused = tls_load(&server.address, "127.0.0.1", authority.trusted(), 2);
        let figures = run_requests(refused, 4);
        assert_eq!(
            (figures.errors.tls, figures.errors.total()),
            (4, 4),
            "{name}"
        );
        assert_eq!((figures.requests, server.requests()), (0, 0), "{name}");
        let tls = tls_of(&figures);
        let why = tls.first_failure.clone().unwrap_or_default();
        assert!(
            why.contains(said) && why.contains("--insecure"),
            "{name}: {why}"
        );
        assert!(tls.sessions.is_empty() && tls.handshakes() == 0, "{name}");
        let accepted = TlsSettings {
            is_insecure: true,
            ..TlsSettings::default()
        };
        let accepted = tls_load(&server.address, "127.0.0.1", accepted, 2);
        assert!(run_requests(accepted, 4).is_clean(), "{name}");
    }
}

#[test]
fn what_is_no_handshake_is_named() {
    let authority = Authority::new();
    type Script = fn(&mut Connection);
    let cases: [(&str, Script, &str); 4] = [
        (
            "a plain server",
            |connection| {
                connection.wait_for_bytes();
                connection.send("HTTP/1.1 400 Bad Request\r\n\r\n");
            },
            "the server does not speak TLS on this port: is its URL http://?",
        ),
        (
            "closed",
            |connection| {
                let _ = std::io::Read::read(connection.socket(), &mut [0; 65536]);
            },
            "closed by the peer during the handshake",
        ),
        ("reset", Connection::wait_for_bytes, "reset"),
        (
            "an alert",
            |connection| {
                connection.wait_for_bytes();
                // handshake_failure (RFC 8446 §6.2).
                let _ = connection.socket().write_all(&[21, 3, 3, 0, 2, 2, 40]);
                take(Duration::from_millis(100));
            },
            "HandshakeFailure: nothing that both sides support",
        ),
    ];
    for (name, script, said) in cases {
        let server = Server::start(script);
        let load = tls_load(&server.address, "127.0.0.1", authority.trusted(), 1);
        let figures = run_requests(load, 3);
        assert_eq!(
            (figures.errors.tls, figures.errors.total()),
            (3, 3),
            "{name}: {figures:?}"
        );
        let why = tls_of(&figures).first_failure.clone().unwrap_or_default();
        assert!(why.contains(said), "{name}: {why}");
    }
}

#[test]
fn a_server_that_never_shakes_hands_times_out() {
    let authority = Authority::new();
    // Connections wait in the queue of a listener that does not accept.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap());
    let mut load = tls_load(&address, "127.0.0.1", authority.trusted(), 1);
    load.timeout = Duration::from_millis(200);
    let figures = run_requests(load, 2);
    assert_eq!(
        (figures.errors.timeout, figures.errors.total()),
        (2, 2),
        "{figures:?}"
    );
}

#[test]
fn a_response_that_is_cut_is_no_response() {
    const UNTIL_CLOSE: &str = "HTTP/1.1 200 OK\r\n\r\nall of it";
    let authority = Authority::new();
    type Case = (&'static str, &'static str, bool, u64);
    let cases: [Case; 3] = [
        ("announced", UNTIL_CLOSE, true, 0),
        ("cut", UNTIL_CLOSE, false, 6),
        ("complete by its length", HELLO, false, 0),
    ];
    for (name, answer, is_announced, closed) in cases {
        let server = Server::start_tls(authority.server("127.0.0.1", |_| {}), move |connection| {
            connection.request();
            connection.send(answer);
            if is_announced {
                connection.close_session();
            }
        });
        let mut load = tls_load(&server.address, "127.0.0.1", authority.trusted(), 2);
        load.keep_alive = false;
        let figures = run_requests(load, 6);
        assert_eq!(figures.errors.closed, closed, "{name}: {figures:?}");
        assert_eq!(
            (figures.errors.total(), figures.requests),
            (closed, 6 - closed),
            "{name}"
        );
    }
}

#[test]
fn an_invalid_record_ends_the_session() {
    let authority = Authority::new();
    let server = Server::start_tls(authority.server("127.0.0.1", |_| {}), |connection| {
        connection.request();
        // Application data that no key has sealed.
        let mut record = vec![23, 3, 3, 0, 40];
        record.extend_from_slice(&[7; 40]);
        let _ = connection.socket().write_all(&record);
        take(Duration::from_millis(100));
    });
    let load = tls_load(&server.address, "127.0.0.1", authority.trusted(), 1);
    let figures = run_requests(load, 3);
    assert_eq!(
        (figures.errors.tls, figures.errors.total()),
        (3, 3),
        "{figures:?}"
    );
    let why = tls_of(&figures).first_failure.clone().unwrap_or_default();
    assert!(why.contains("invalid record"), "{why}");
}

#[test]
fn messages_beside_responses_do_no_harm() {
    let authority = Authority::new();
    let server = Server::start_tls(authority.server("127.0.0.1", |_| {}), |connection| {
        while connection.request().is_some() {
            connection.send(HELLO);
            // While the client is idle: it must answer it, and still get the next response.
            connection.update_keys();
        }
    });
    let mut load = tls_load(&server.address, "127.0.0.1", authority.trusted(), 2);
    load.rate = Some(200.0);
    let figures = run_requests(load, 60);
    // A slow machine may skip arrivals.
    assert_eq!((figures.requests, figures.failed()), (60, 0), "{figures:?}");
    assert_eq!((figures.retried, server.connections()), (0, 2));
}

/// `openssl s_server` on a port of its own; ended on drop.
struct OpenSsl {
    child: Child,
    address: Address,
}

impl OpenSsl {
    fn start(authority: &Authority, words: &[&str]) -> Self {
        let (certificate, key) = authority.issue("127.0.0.1", |_| {});
        let file = authority.dir.path().join("server.pem");
        std::fs::write(&file, certificate.pem() + &key.serialize_pem()).unwrap();
        let mut child = Command::new("openssl")
            .args(["s_server", "-accept", "127.0.0.1:0", "-www", "-cert"])
            .arg(&file)
            .args(words)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("openssl is installed (scripts/setup test)");
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut lines = output.lines().map(Result::unwrap);
        let ready = lines.find_map(|line| Some(line.strip_prefix("ACCEPT ")?.to_owned()));
        let address = Address::Tcp(ready.unwrap().parse().unwrap());
        // Its output must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address }
    }
}

impl Drop for OpenSsl {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn speaks_to_openssl() {
    let authority = Authority::new();
    for (words, session, full) in [
        (&["-tls1_3"][..], "TLSv1.3 AES_256_GCM_SHA384", 1),
        (
            &["-tls1_2"],
            "TLSv1.2 ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
            1,
        ),
        (
            &["-tls1_3", "-no_ticket", "-num_tickets", "0"],
            "TLSv1.3 AES_256_GCM_SHA384",
            10,
        ),
    ] {
        let server = OpenSsl::start(&authority, words);
        let settings = TlsSettings {
            cipher_suites: vec![
                "TLS_AES_256_GCM_SHA384".to_owned(),
                "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384".to_owned(),
            ],
            ..authority.trusted()
        };
        let mut load = tls_load(&server.address, "127.0.0.1", settings, 1);
        load.keep_alive = false;
        let figures = run_requests(load, 10);
        assert!(figures.is_clean(), "{words:?}: {figures:?}");
        let tls = tls_of(&figures);
        assert_eq!(tls.sessions, [(session.to_owned(), 10)].into(), "{words:?}");
        assert_eq!(
            (tls.full.count, tls.resumed.count),
            (full, 10 - full),
            "{words:?}"
        );
    }
}

#[test]
fn one_load_may_have_servers_with_and_without() {
    let authority = Authority::new();
    let secured = Server::start_tls(authority.server("127.0.0.1", |_| {}), answer_all);
    let plain = Server::answering(HELLO);
    let mut load = tls_load(&secured.address, "127.0.0.1", authority.trusted(), 2);
    load.requests.push(EncodedRequest {
        address: plain.address.clone(),
        tls: None,
        ..load.requests[0].clone()
    });
    load.order = penstock_bench::load::RequestOrder::Sequence;
    let figures = run_requests(load, 40);
    assert!(figures.is_clean(), "{figures:?}");
    assert_eq!((secured.requests(), plain.requests()), (20, 20));
}
