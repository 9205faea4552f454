//! Connections of TLS beside others: behind the PROXY protocol, pipelined, broken, slow.

use std::io::Write;
use std::net::TcpStream;

use super::{HttpsServer, file_site, tls_of};
use crate::support::{PATIENCE, RawClient, Site, TestAuthority, eventually};

#[test]
fn the_client_of_a_load_balancer_comes_before_the_handshake() {
    const APP: &str = r#"
def app(environ, start):
    start("200 OK", [])
    return [f"{environ['REMOTE_ADDR']} {environ['wsgi.url_scheme']}".encode()]
"#;
    let authority = TestAuthority::new("Sites");
    let site = Site::new().file("app.py", APP);
    super::write_certificate(&site, "a", &authority.issue(&["a.test"]));
    let tls = tls_of("a");
    let server = site
        .config(&format!(
            "[server]\nthreads = 1\ntrusted_proxies = [\"127.0.0.1\"]\n\
             listen = [{{ address = \"127.0.0.1:0\", tls = true, proxy_protocol = true }}]\n\
             [apps.app]\nentry = \"app:app\"\nprocesses = 1\n\
             [[sites]]\nhosts = [\"a.test\"]\n{tls}[[sites.routes]]\napp = \"app\"\n"
        ))
        .serve(&[]);
    server.wait_ready("app");
    let before = b"PROXY TCP4 203.0.113.9 127.0.0.1 4000 443\r\n";
    let client = authority.client();
    let session = client.try_connect_behind(server.port(), "a.test", before);
    let mut client = RawClient::over(Box::new(session.unwrap()));
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert_eq!(client.expect_status(200).text(), "203.0.113.9 https");
}

#[test]
fn requests_in_one_record_are_all_answered() {
    let (site, toml) = file_site();
    let https = HttpsServer::start(site, &toml);
    let mut client = https.client.connect(https.port(), "a.test");
    client.send("GET /a.txt HTTP/1.1\r\nHost: a.test\r\n\r\n".repeat(3));
    for _ in 0..3 {
        assert_eq!(client.expect_status(200).text(), "a file");
    }
}

#[test]
fn a_handshake_that_does_not_end_is_ended() {
    let (site, toml) = file_site();
    let limits = "[limits]\ntls_handshake_timeout = \"300ms\"\n";
    let https = HttpsServer::start(site, &format!("{limits}{toml}"));
    let mut silent = RawClient::connect(https.port());
    silent.expect_closed();
    https.server.wait_log("limits.tls_handshake_timeout");
    let failures = "penstock_tls_handshake_failures_total";
    eventually(PATIENCE, "it is counted", || {
        https.server.metric(failures) == Some(1.0)
    });
    // A client that breaks off in the midst of it harms no other.
    let mut broken = TcpStream::connect(("127.0.0.1", https.port())).unwrap();
    broken.write_all(b"\x16\x03\x01\x02\0\x01").unwrap();
    drop(broken);
    let answer = https.client.get(https.port(), "a.test", "/a.txt");
    assert_eq!(answer.status, 200);
}

/// Health checks of load balancers.
#[test]
fn a_connection_without_a_request_is_no_failure() {
    let (site, toml) = file_site();
    let log = "access_log = { path = \"access.log\", format = \"json\" }\n";
    let https = HttpsServer::start(site, &format!("{log}{toml}"));
    let port = https.port();
    // Without a byte: closed, and reset.
    drop(TcpStream::connect(("127.0.0.1", port)).unwrap());
    RawClient::connect(port).reset();
    // With a session and no request in it: closed in order, cut off, and reset.
    let made = "penstock_tls_handshakes_total";
    let connect = |count: f64| {
        let session = https.client.try_connect(port, "a.test").unwrap();
        eventually(PATIENCE, "the server has the session", || {
            https.server.metric(made) == Some(count)
        });
        session
    };
    let mut session = connect(1.0);
    session.conn.send_close_notify();
    session.flush().unwrap();
    drop(session);
    drop(connect(2.0));
    RawClient::over(Box::new(connect(3.0))).reset();
    let open = "penstock_connections_open";
    eventually(PATIENCE, "all are closed", || {
        https.server.metric(open) == Some(0.0)
    });
    let answer = https.client.get(port, "a.test", "/a.txt");
    assert_eq!(answer.status, 200);
    let lines = eventually(PATIENCE, "the request is logged", || {
        let lines = https.server.site().read("access.log");
        (!lines.is_empty()).then_some(lines)
    });
    assert_eq!(lines.lines().count(), 1, "{lines}");
    let log = https.server.log();
    assert!(!log.contains("no TLS session"), "{log}");
    let failures = "penstock_tls_handshake_failures_total";
    assert_eq!(https.server.metric(failures), Some(0.0));
}
