//! Upstreams with TLS, and rustls' buffered server as the peer.

mod server;

use std::future::poll_fn;
use std::io::{Read, Write};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use config::{HealthCheck, Protocol, ProxyProtocol};
use penstock_config as config;
use penstock_exchange::{Body, Fault, FaultKind, HandlerProgress, Reply};
use rustls::HandshakeKind;

use self::server::{Authority, TestServer, TlsConnection, answer_all, read_request, respond};
use super::*;
use crate::connection::UpstreamConnectionInner;
use crate::maintenance::tests::{
    first_server_snapshot, run_on_loop, server_states, start_with_tls, upstream_config, wait_until,
};
use crate::testing::request;
use crate::{BufferingMode, Upstream, UpstreamTls};

const GET: &str = "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";
const POST: &str = "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 0\r\n\r\n";

fn start(servers: &[&str], tls: UpstreamTls) -> Arc<Upstream> {
    start_with_tls(upstream_config(Protocol::Http, servers), tls)
}

/// The body of the response to a request.
async fn exchange(upstream: &Upstream, head: &str) -> Result<String, Fault> {
    let mode = BufferingMode {
        request: true,
        response: true,
    };
    let reply = match upstream.handler(mode).handle(request(head)) {
        HandlerProgress::Ready(reply) => reply?,
        HandlerProgress::Pending(work) => work.await?,
    };
    let Reply::Response(response) = reply else {
        panic!("another reply: {reply:?}")
    };
    let mut all = Vec::new();
    match response.body {
        Body::Empty => {}
        Body::Bytes(bytes) => all.extend_from_slice(&bytes),
        Body::Stream(mut stream) => {
            while let Some(piece) = poll_fn(|cx| stream.poll_chunk(cx)).await {
                all.extend_from_slice(&piece?);
            }
        }
        other => panic!("another body: {other:?}"),
    }
    Ok(String::from_utf8(all).unwrap())
}

fn counters(upstream: &Upstream) -> UpstreamTlsCounters {
    upstream.snapshot().tls.unwrap()
}

#[test]
fn requests_share_a_connection() {
    run_on_loop(async {
        let authority = Authority::new("one");
        let server = TestServer::tls(authority.issue("127.0.0.1").server(), answer_all);
        let upstream = start(&[&server.address()], authority.trust(None));
        for request in 0..20 {
            let body = exchange(&upstream, GET).await.unwrap();
            assert_eq!(body, format!("0 {request}"));
        }
        assert_eq!(counters(&upstream).handshakes, 1);
    });
}

#[test]
fn the_server_is_asked_for_its_name_and_protocol() {
    run_on_loop(async {
        let authority = Authority::new("one");
        let rows = [
            (Some("api.example"), "api.example", Some("api.example")),
            // RFC 6066 §3: an address is no name.
            (Some("127.0.0.1"), "127.0.0.1", None),
            (None, "127.0.0.1", None),
        ];
        for (configured, certified, expected) in rows {
            let mut own = authority.issue(certified).server();
            own.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
            let server = TestServer::tls(own, |mut connection, _| {
                read_request(&mut connection);
                let (name, alpn) = (
                    connection.conn.server_name(),
                    connection.conn.alpn_protocol(),
                );
                let alpn = alpn.map(String::from_utf8_lossy);
                let seen = format!("{name:?} {alpn:?}");
                respond(&mut connection, &seen);
            });
            let upstream = start(&[&server.address()], authority.trust(configured));
            let seen = exchange(&upstream, GET).await.unwrap();
            assert_eq!(seen, format!("{expected:?} {:?}", Some("http/1.1")));
        }
    });
}

#[test]
fn tunnels_offer_no_protocol() {
    run_on_loop(async {
        let authority = Authority::new("one");
        let mut own = authority.issue("127.0.0.1").server();
        // A server that insists refuses every other.
        own.alpn_protocols = vec![b"imap".to_vec()];
        let (sender, greeted) = mpsc::channel();
        let server = TestServer::tls(own, move |connection, _| {
            sender
                .send(connection.conn.alpn_protocol().is_none())
                .unwrap();
        });
        let upstream = start(&[&server.address()], authority.trust(None));
        let backend = Arc::clone(&upstream.shared.server_pool.lock().servers[0].server);
        let setup = upstream.shared.connection_setup(ConnectionPurpose::Tunnel);
        let deadline = penstock_runtime::clock::now() + Duration::from_secs(20);
        UpstreamConnectionInner::open(&backend, &setup, deadline)
            .await
            .unwrap();
        assert!(greeted.recv_timeout(Duration::from_secs(20)).unwrap());
        let refused = exchange(&upstream, GET).await.unwrap_err().cause;
        assert!(refused.contains("NoApplicationProtocol"), "{refused}");
    });
}

/// The failure of a request to a server that plays `serve`.
async fn failure(server: &TestServer, tls: UpstreamTls) -> String {
    let mut config = upstream_config(Protocol::Http, &[&server.address()]);
    config.connect_timeout = Duration::from_millis(300);
    let upstream = start_with_tls(config, tls);
    let fault = exchange(&upstream, POST).await.unwrap_err();
    assert_eq!(fault.kind, FaultKind::ConnectFailed, "{}", fault.cause);
    assert!(counters(&upstream).failures > 0);
    let expected = format!("{}: ", server.address());
    let cause = fault.cause.strip_prefix(&expected);
    cause.expect("the server is named").to_owned()
}

fn year(year: i32) -> impl FnOnce(&mut rcgen::CertificateParams) {
    move |params| {
        params.not_before = rcgen::date_time_ymd(year, 1, 1);
        params.not_after = rcgen::date_time_ymd(year, 1, 31);
    }
}

#[test]
fn a_server_that_proves_nothing_is_a_failed_connection() {
    run_on_loop(async {
        let (authority, other) = (Authority::new("one"), Authority::new("two"));
        let rows = [
            (
                authority.issue("b.example"),
                "cannot connect: TLS: the certificate is for b.example, not for 127.0.0.1: set \
                 `tls.server_name`",
            ),
            (
                other.issue("127.0.0.1"),
                "cannot connect: TLS: the issuer of the certificate is unknown: set `tls.ca` to \
                 the certificate of its authority",
            ),
            (
                authority.issue_with("127.0.0.1", year(2020)),
                "cannot connect: TLS: the certificate expired",
            ),
            (
                authority.issue_with("127.0.0.1", year(2090)),
                "cannot connect: TLS: the certificate is not valid yet: compare the clocks of \
                 both machines",
            ),
        ];
        let is_authority = |params: &mut rcgen::CertificateParams| {
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        };
        let authoritative = (
            authority.issue_with("127.0.0.1", is_authority),
            "cannot connect: TLS: the server shows the certificate of an authority (CA:TRUE) as \
             its own",
        );
        for (issued, expected) in rows.into_iter().chain([authoritative]) {
            let server = TestServer::tls(issued.server(), answer_all);
            let cause = failure(&server, authority.trust(None)).await;
            assert!(cause.starts_with(expected), "{cause}");
        }
    });
}

#[test]
fn a_server_without_tls_is_a_failed_connection() {
    run_on_loop(async {
        let tls = Authority::new("one").trust(None);
        let plain = |answer: &'static [u8]| {
            TestServer::plain(move |mut stream, _| {
                let _ = stream.write_all(answer);
                // Until the client leaves.
                let _ = stream.read_to_end(&mut Vec::new());
            })
        };
        let answer = plain(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad");
        let expected = "cannot connect: TLS: the server does not speak TLS at this port";
        assert_eq!(failure(&answer, tls.clone()).await, expected);
        let closing = TestServer::plain(|mut stream, _| {
            // Behind the client's first message: a close before it would be a reset.
            let _ = stream.read(&mut [0; 4096]);
        });
        let expected = "cannot connect: TLS: the server closed the connection in the handshake";
        assert_eq!(failure(&closing, tls.clone()).await, expected);
        let expected = "connect_timeout: no TLS handshake in time";
        assert_eq!(failure(&plain(b""), tls).await, expected);
    });
}

#[test]
fn a_handshake_that_fails_is_retried_elsewhere() {
    run_on_loop(async {
        let (authority, other) = (Authority::new("one"), Authority::new("two"));
        let bad = TestServer::tls(other.issue("127.0.0.1").server(), answer_all);
        let good = TestServer::tls(authority.issue("127.0.0.1").server(), answer_all);
        let servers = [bad.address(), good.address()];
        let mut config = upstream_config(Protocol::Http, &[&servers[0], &servers[1]]);
        config.balance = config::Balance::RoundRobin;
        let upstream = start_with_tls(config, authority.trust(None));
        for _ in 0..4 {
            exchange(&upstream, POST).await.unwrap();
        }
        let snapshot = upstream.snapshot();
        assert!(snapshot.counters.retries > 0);
        assert!(snapshot.servers[0].counters.failures > 0);
        assert_eq!(snapshot.servers[1].counters.failures, 0);
    });
}

#[test]
fn a_client_certificate_is_shown_to_a_server_that_wants_one() {
    run_on_loop(async {
        let authority = Authority::new("one");
        let own = authority.server_for_clients(authority.issue("127.0.0.1"));
        let server = TestServer::tls(own, |mut connection, _| {
            let shown = connection.conn.peer_certificates().map_or(0, <[_]>::len);
            read_request(&mut connection);
            respond(&mut connection, &shown.to_string());
        });
        let address = server.address();
        let with = start(
            &[&address],
            authority.trust_and_show(authority.issue("client.example")),
        );
        assert_eq!(exchange(&with, GET).await.unwrap(), "1");
        let without = start(&[&address], authority.trust(None));
        let cause = exchange(&without, POST).await.unwrap_err().cause;
        assert!(
            cause.contains("set `tls.certificate` and `tls.key`"),
            "{cause}"
        );
    });
}

#[test]
fn a_session_is_resumed() {
    run_on_loop(async {
        let authority = Authority::new("one");
        let server = TestServer::tls(
            authority.issue("127.0.0.1").server(),
            |mut connection, _| {
                read_request(&mut connection);
                let is_resumed = connection.conn.handshake_kind() == Some(HandshakeKind::Resumed);
                let body = is_resumed.to_string();
                let text = format!(
                    "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                );
                connection.write_all(text.as_bytes()).unwrap();
            },
        );
        let upstream = start(&[&server.address()], authority.trust(None));
        let mut seen = Vec::new();
        for _ in 0..3 {
            seen.push(exchange(&upstream, GET).await.unwrap());
        }
        assert_eq!(seen, ["false", "true", "true"]);
        let expected = UpstreamTlsCounters {
            handshakes: 3,
            resumptions: 2,
            failures: 0,
        };
        assert_eq!(counters(&upstream), expected);
    });
}

/// What a server does behind its first response, before it goes on.
type BetweenRequests = fn(&mut TlsConnection);

#[test]
fn what_a_server_sends_while_idle_decides_about_its_connection() {
    let close: BetweenRequests = |connection| {
        connection.conn.send_close_notify();
        connection.flush().unwrap();
    };
    let rows: [(&str, BetweenRequests, &str); 4] = [
        (
            "new keys",
            |connection| {
                connection.conn.refresh_traffic_keys().unwrap();
                connection.flush().unwrap();
            },
            "0",
        ),
        (
            "bytes that were not asked for",
            |connection| respond(connection, "another's"),
            "1",
        ),
        ("its end", close, "1"),
        (
            "no record",
            |connection| {
                connection
                    .sock
                    .write_all(b"HTTP/1.1 200 OK\r\n\r\n")
                    .unwrap();
            },
            "1",
        ),
    ];
    for (name, act, expected) in rows {
        for head in [GET, POST] {
            run_on_loop(async {
                let authority = Authority::new("one");
                let (sender, acted) = mpsc::channel();
                let own = authority.issue("127.0.0.1").server();
                let server = TestServer::tls(own, move |mut connection, number| {
                    for _ in 0..2 {
                        read_request(&mut connection);
                        respond(&mut connection, &number.to_string());
                    }
                    if number == 0 {
                        act(&mut connection);
                        sender.send(()).unwrap();
                    }
                    if !read_request(&mut connection).is_empty() {
                        respond(&mut connection, &number.to_string());
                    }
                    // Keeps the socket until the client closes it.
                    let _ = connection.read(&mut [0; 100]);
                });
                let upstream = start(&[&server.address()], authority.trust(None));
                // The second one proves that the server keeps connections.
                for _ in 0..2 {
                    assert_eq!(exchange(&upstream, GET).await.unwrap(), "0");
                }
                acted.recv_timeout(Duration::from_secs(20)).unwrap();
                let has_idle = || {
                    let now = penstock_runtime::clock::now();
                    upstream.shared.update_pool(|pool| pool.tick(now));
                    first_server_snapshot(&upstream).connections_idle > 0
                };
                if expected == "0" {
                    assert!(has_idle(), "{name}");
                } else {
                    wait_until(name, || !has_idle()).await;
                }
                assert_eq!(exchange(&upstream, head).await.unwrap(), expected, "{name}");
                assert_eq!(upstream.snapshot().counters.retries, 0, "{name}");
            });
        }
    }
}

#[test]
fn a_body_without_length_ends_with_a_notice_or_is_cut() {
    run_on_loop(async {
        let authority = Authority::new("one");
        let own = authority.issue("127.0.0.1").server();
        let server = TestServer::tls(own, |mut connection, number| {
            read_request(&mut connection);
            connection
                .write_all(b"HTTP/1.1 200 OK\r\n\r\nall of it")
                .unwrap();
            if number == 0 {
                connection.conn.send_close_notify();
                connection.flush().unwrap();
            }
        });
        let upstream = start(&[&server.address()], authority.trust(None));
        assert_eq!(exchange(&upstream, GET).await.unwrap(), "all of it");
        let cut = exchange(&upstream, GET).await.unwrap_err().cause;
        assert!(cut.contains("close_notify"), "{cut}");
    });
}

#[test]
fn bytes_before_the_handshake_are_no_response() {
    run_on_loop(async {
        let authority = Authority::new("one");
        let own = Arc::new(authority.issue("127.0.0.1").server());
        let server = TestServer::plain(move |mut stream, number| {
            if number == 0 {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad");
            }
            let session = rustls::ServerConnection::new(Arc::clone(&own)).unwrap();
            let connection = rustls::StreamOwned::new(session, stream);
            answer_all(connection, number);
        });
        let upstream = start(&[&server.address()], authority.trust(None));
        let cause = exchange(&upstream, GET).await.unwrap_err().cause;
        assert!(cause.contains("does not speak TLS"), "{cause}");
        assert_eq!(exchange(&upstream, GET).await.unwrap(), "1 0");
    });
}

#[test]
fn the_proxy_header_comes_before_tls() {
    run_on_loop(async {
        let authority = Authority::new("one");
        let own = Arc::new(authority.issue("127.0.0.1").server());
        let server = TestServer::plain(move |mut stream, number| {
            let mut header = Vec::new();
            while !header.ends_with(b"\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                header.push(byte[0]);
            }
            assert!(header.starts_with(b"PROXY TCP4 192.0.2.7 "), "{header:?}");
            let session = rustls::ServerConnection::new(Arc::clone(&own)).unwrap();
            answer_all(rustls::StreamOwned::new(session, stream), number);
        });
        let mut config = upstream_config(Protocol::Http, &[&server.address()]);
        config.proxy_protocol = Some(ProxyProtocol::V1);
        let upstream = start_with_tls(config, authority.trust(None));
        assert_eq!(exchange(&upstream, GET).await.unwrap(), "0 0");
    });
}

#[test]
fn probes_use_tls() {
    run_on_loop(async {
        let authority = Authority::new("one");
        let paths = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&paths);
        let own = authority.issue("127.0.0.1").server();
        let server = TestServer::tls(own, move |mut connection, _| {
            let head = read_request(&mut connection);
            let line = head.lines().next().unwrap_or_default().to_owned();
            seen.lock().unwrap().push(line);
            respond(&mut connection, "well");
        });
        let mut config = upstream_config(Protocol::Http, &[&server.address()]);
        config.health = Some(HealthCheck {
            path: Some("/up".to_owned()),
            interval: Duration::from_millis(10),
            fall: 1,
            ..HealthCheck::default()
        });
        let upstream = start_with_tls(config.clone(), authority.trust(None));
        wait_until("a probe arrives", || !paths.lock().unwrap().is_empty()).await;
        assert_eq!(paths.lock().unwrap()[0], "GET /up HTTP/1.1");
        assert_eq!(server_states(&upstream)[0].1, "up");
        let upstream = start_with_tls(config, authority.trust(Some("b.example")));
        wait_until("the wrong name is found", || {
            server_states(&upstream)[0].1 == "down"
        })
        .await;
        let error = first_server_snapshot(&upstream).last_error.unwrap();
        let expected = "cannot connect: TLS: the certificate is for 127.0.0.1, not for b.example";
        assert!(error.starts_with(expected), "{error}");
    });
}

#[test]
fn certificates_that_were_read_again_are_for_new_connections() {
    run_on_loop(async {
        let (authority, other) = (Authority::new("one"), Authority::new("two"));
        let server = TestServer::tls(authority.issue("127.0.0.1").server(), answer_all);
        let upstream = start(&[&server.address()], other.trust(None));
        exchange(&upstream, GET).await.unwrap_err();
        upstream.set_tls(authority.trust(None));
        assert_eq!(exchange(&upstream, GET).await.unwrap(), "1 0");
        assert!(counters(&upstream).failures > 0);
    });
}

#[test]
fn connections_end_with_the_trust_that_they_were_made_by() {
    run_on_loop(async {
        let (authority, other) = (Authority::new("one"), Authority::new("two"));
        let server = TestServer::tls(authority.issue("127.0.0.1").server(), answer_all);
        let upstream = start(&[&server.address()], authority.trust(None));
        // The first number is the connection's.
        assert_eq!(exchange(&upstream, GET).await.unwrap(), "0 0");
        // The same files: nothing changes.
        upstream.set_tls(authority.trust(None));
        assert_eq!(exchange(&upstream, GET).await.unwrap(), "0 1");
        upstream.set_tls(other.trust(None));
        exchange(&upstream, GET).await.unwrap_err();
        upstream.set_tls(authority.trust(None));
        let answer = exchange(&upstream, GET).await.unwrap();
        assert!(
            !answer.starts_with("0 ") && answer.ends_with(" 0"),
            "{answer}"
        );
    });
}

#[test]
fn a_name_is_the_host_of_the_address() {
    let server = |name: &str, address: &str| {
        let address = ResolvedAddress::Tcp(address.parse().unwrap());
        BackendServer::new(name.into(), address)
    };
    let rows = [
        (server("127.0.0.1:443", "127.0.0.1:443"), "127.0.0.1"),
        (server("[::1]:443", "[::1]:443"), "::1"),
        (
            server("a.example:443 (192.0.2.1)", "192.0.2.1:443"),
            "a.example",
        ),
    ];
    for (server, expected) in rows {
        assert_eq!(server_host(&server), Some(expected));
    }
    let unix = BackendServer::new("unix:/a".into(), ResolvedAddress::Unix("/a".into()));
    assert_eq!(server_host(&unix), None);
}
