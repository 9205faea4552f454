//! The scope of requests, read back by `python3` itself, and the table of what fields reach it.

#![allow(clippy::disallowed_methods, reason = "tests may wait for a process")]

use std::io::Write;
use std::process::{Command, Stdio};

use penstock_exchange::field_policy::TrustedHeaders;

use super::*;
use crate::testing::request;

const ARRIVED: Duration = Duration::from_millis(1_700_000_000_042);

fn scope(request: &Request, is_websocket: bool, body_len: Option<u64>) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = ScopeEncoder::new(&mut out);
    let body = body_len.map_or(AnnouncedLength::NoBody, AnnouncedLength::Length);
    encode_scope(&mut encoder, request, is_websocket, body, ARRIVED);
    encoder.finish();
    out
}

/// What Python makes of each, as it writes it, keys in order.
fn read_by_python(scopes: &[Vec<u8>]) -> Vec<String> {
    let program = "
import marshal, sys
for line in sys.stdin:
    scope = marshal.loads(bytes.fromhex(line))
    print({key: scope[key] for key in sorted(scope)})
";
    let mut python = Command::new("python3")
        .args(["-c", program])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = python.stdin.take().unwrap();
    for scope in scopes {
        let hex: String = scope.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(input, "{hex}").unwrap();
    }
    drop(input);
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

fn local() -> PeerAddress {
    PeerAddress::Tcp("127.0.0.1:50000".parse().unwrap())
}

fn stranger() -> PeerAddress {
    PeerAddress::Tcp("192.0.2.7:50000".parse().unwrap())
}

#[test]
fn python_reads_the_scope_of_the_specification() {
    let plain = request(
        "GET /caf%C3%A9/%2e/x?a=%20b HTTP/1.1\r\nHost: a.test:81\r\nX-Name: caf\u{e9}\r\n\
         Accept: a\r\nACCEPT: b\r\n\r\n",
        stranger(),
        Some("127.0.0.1:8080"),
    );
    let odd = request(
        "patch /%ff HTTP/1.0\r\nContent-Length: 3\r\n\r\n",
        PeerAddress::Unix,
        None,
    );
    let socket = request(
        "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Protocol: b, a\r\n\r\n",
        PeerAddress::Tcp("[2001:db8::1]:9".parse().unwrap()),
        Some("[::]:80"),
    );
    let scopes = [
        scope(&plain, false, None),
        scope(&odd, false, Some(3)),
        scope(&socket, true, None),
    ];
    let start = "(b'x-request-start', b't=1700000000.042')";
    let expected = [
        format!(
            "{{'client': ('192.0.2.7', 50000), 'headers': [(b'host', b'a.test:81'), {start}, \
             (b'x-name', b'caf\\xc3\\xa9'), (b'accept', b'a'), (b'accept', b'b')], \
             'http_version': '1.1', 'method': 'GET', 'path': '/caf\u{e9}/x', \
             'query_string': b'a=%20b', 'raw_path': b'/caf%C3%A9/%2e/x', 'root_path': '', \
             'scheme': 'http', 'server': ('127.0.0.1', 8080), 'type': 'http'}}"
        ),
        format!(
            "{{'client': None, 'headers': [{start}, (b'content-length', b'3')], \
             'http_version': '1.0', 'method': 'PATCH', 'path': '/\u{fffd}', 'query_string': b'', \
             'raw_path': b'/%ff', 'root_path': '', 'scheme': 'http', \
             'server': ('/run/a.sock', None), 'type': 'http'}}"
        ),
        format!(
            "{{'client': ('2001:db8::1', 9), 'headers': [(b'host', b'a'), {start}, \
             (b'connection', b'upgrade'), (b'upgrade', b'websocket'), \
             (b'sec-websocket-protocol', b'b, a')], 'http_version': '1.1', 'path': '/chat', \
             'query_string': b'', 'raw_path': b'/chat', 'root_path': '', 'scheme': 'ws', \
             'server': ('::', 80), 'subprotocols': ['b', 'a'], 'type': 'websocket'}}"
        ),
    ];
    assert_eq!(read_by_python(&scopes), expected);
}

/// Whether a scope has this header.
fn has(scope: &[u8], name: &str, value: &str) -> bool {
    let mut pair = vec![b's'];
    pair.extend_from_slice(&u32::try_from(name.len()).unwrap().to_le_bytes());
    pair.extend_from_slice(name.as_bytes());
    pair.push(b's');
    pair.extend_from_slice(&u32::try_from(value.len()).unwrap().to_le_bytes());
    pair.extend_from_slice(value.as_bytes());
    scope.windows(pair.len()).any(|window| window == pair)
}

#[test]
fn fields_reach_the_application_by_the_rules_of_all() {
    for (name, strangers, locals) in [
        ("accept", true, true),
        ("via", true, true),
        ("sec-websocket-key", true, true),
        ("x_thing", true, true),
        ("auth_token", true, true),
        ("content_length", false, false),
        ("x-forwarded_for", false, false),
        ("proxy", false, false),
        ("connection", false, false),
        ("upgrade", false, false),
        ("te", false, false),
        ("keep-alive", false, false),
        ("x-sendfile-type", false, false),
        ("x-accel-mapping", false, false),
        ("x-request-start", false, false),
        ("grip-sig", false, false),
        ("grip", true, true),
        // Not as it came: no scheme, address or element.
        ("forwarded", false, false),
        ("x-forwarded-for", false, false),
        ("x-forwarded-proto", false, false),
        ("x-real-ip", false, false),
        ("x-forwarded-user", false, true),
    ] {
        let upper = name.to_ascii_uppercase();
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{upper}: v\r\n\r\n");
        for (peer, passes) in [(stranger(), strangers), (local(), locals)] {
            let scope = scope(&request(&head, peer, None), false, None);
            assert_eq!(has(&scope, name, "v"), passes, "{name} from {peer:?}");
            assert!(has(&scope, "host", "a"));
        }
    }
}

#[test]
fn a_websocket_has_the_fields_of_its_handshake_and_a_request_has_not() {
    let handshake = [
        ("connection", "keep-alive, Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("sec-websocket-version", "13"),
        ("sec-websocket-extensions", "permessage-deflate"),
    ];
    let fields = handshake.map(|(name, value)| format!("{name}: {value}\r\n"));
    let head = format!(
        "GET / HTTP/1.1\r\nHost: a\r\n{}TE: trailers\r\nKeep-Alive: 5\r\n\r\n",
        fields.concat()
    );
    let request = request(&head, stranger(), None);
    let socket = scope(&request, true, None);
    let plain = scope(&request, false, None);
    for (name, value) in handshake {
        assert!(has(&socket, name, value), "{name}");
        let is_of_websocket = name.starts_with("sec-");
        assert_eq!(has(&plain, name, value), is_of_websocket, "{name}");
    }
    for (name, value) in [("te", "trailers"), ("keep-alive", "5")] {
        assert!(!has(&socket, name, value), "{name}");
    }
}

#[test]
fn forwarded_fields_hold_the_trusted_values() {
    let head = "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 203.0.113.9\r\nX-Forwarded-Proto: WSS\r\n\
                Forwarded: for=198.51.100.1;host=evil.test\r\nX-Real-IP: 198.51.100.1\r\n\r\n";
    let from_proxy = scope(&request(head, local(), None), false, None);
    for (name, value, passes) in [
        ("x-forwarded-for", "203.0.113.9", true),
        ("x-forwarded-proto", "https", true),
        ("x-real-ip", "203.0.113.9", true),
        ("x-real-ip", "198.51.100.1", false),
        ("forwarded", "for=198.51.100.1;host=evil.test", false),
    ] {
        assert_eq!(has(&from_proxy, name, value), passes, "{name}: {value}");
        let from_stranger = scope(&request(head, stranger(), None), false, None);
        assert!(!has(&from_stranger, name, value), "{name}: {value}");
    }
}

#[test]
fn trusted_forwarded_fields_set_the_scope() {
    let head = "GET /c%20d?x HTTP/1.1\r\nHost: inner.test\r\nX-Forwarded-For: 203.0.113.9\r\n\
                X-Forwarded-Proto: https\r\nX-Forwarded-Host: shop.test\r\n\
                X-Forwarded-Prefix: /a%20b\r\n\r\n";
    let request = request(head, local(), Some("127.0.0.1:8080"));
    let scopes = [false, true].map(|is_websocket| scope(&request, is_websocket, None));
    assert!(has(&scopes[0], "host", "shop.test"));
    for (read, scheme) in read_by_python(&scopes).iter().zip(["https", "wss"]) {
        for entry in [
            format!("'scheme': '{scheme}'"),
            "'root_path': '/a b'".to_owned(),
            "'path': '/a b/c d'".to_owned(),
            "'raw_path': b'/a%20b/c%20d'".to_owned(),
            "'client': ('203.0.113.9', 0)".to_owned(),
            "'server': ('shop.test', 443)".to_owned(),
        ] {
            assert!(read.contains(&entry), "{entry}: {read}");
        }
    }
}

#[test]
fn fields_of_route_rules_are_trusted() {
    let head = "GET / HTTP/1.1\r\nHost: a\r\nX-Request-Start: t=1\r\nX-Real-IP: 9\r\n\
                X-Forwarded-For: 1\r\n\r\n";
    let mut request = request(head, stranger(), None);
    let names = ["X-Request-Start", "X-Real-IP"];
    request.trusted_headers = TrustedHeaders::new(names.map(str::to_owned));
    let scope = scope(&request, false, None);
    assert!(has(&scope, "x-request-start", "t=1"));
    assert!(!has(&scope, "x-request-start", "t=1700000000.042"));
    assert!(has(&scope, "x-real-ip", "9"));
    assert!(!has(&scope, "x-forwarded-for", "1"));
}

/// As the specification "ASGI TLS" has it.
#[test]
fn a_session_of_tls_is_an_extension() {
    let head = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut with_certificate = request(head, stranger(), None);
    with_certificate.client_state = crate::testing::client_with_certificate();
    let plain = request(head, stranger(), None);
    let scopes = [
        scope(&with_certificate, false, None),
        scope(&with_certificate, true, None),
        scope(&plain, false, None),
    ];
    let read = read_by_python(&scopes);
    let expected = "'extensions': {'tls': {'server_cert': None, 'client_cert_chain': \
        ['-----BEGIN CERTIFICATE-----\\nZGVy\\n-----END CERTIFICATE-----\\n'], \
        'client_cert_name': 'CN=anna', 'client_cert_error': None, 'tls_version': 772, \
        'cipher_suite': 4865}}";
    assert!(read[0].contains(expected), "{}", read[0]);
    assert!(read[1].contains(expected), "{}", read[1]);
    assert!(!read[2].contains("extensions"), "{}", read[2]);
}
