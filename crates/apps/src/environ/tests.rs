//! The table of environment names and values, decoded back from the Ruby and Python encodings.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_exchange::ListenerInfo;
use penstock_exchange::field_policy::TrustedHeaders;
use penstock_wire::COMMON_VARIABLES;

use super::*;
use crate::testing::request;

/// Decodes Ruby's form, which is the simpler of the two.
fn environ(request: &Request, body_len: Option<u64>) -> BTreeMap<String, String> {
    environ_of(request, body_len, true)
}

fn environ_of(
    request: &Request,
    body_len: Option<u64>,
    may_hijack: bool,
) -> BTreeMap<String, String> {
    let mut bytes = Vec::new();
    let mut encoder = EnvironEncoder::new(&mut bytes, Dialect::Ruby);
    encode_environ(
        &mut encoder,
        request,
        body_len.map_or(AnnouncedLength::NoBody, AnnouncedLength::Length),
        Duration::from_millis(1_700_000_000_042),
        may_hijack,
    );
    encoder.finish().unwrap();
    let strings = bytes.split(|&byte| byte == 0);
    let strings = strings.map(|text| text.iter().map(|&b| char::from(b)).collect::<String>());
    let strings: Vec<String> = strings.collect();
    let (usual, others) = strings.split_at(COMMON_VARIABLES.len());
    let mut pairs = BTreeMap::new();
    for (key, value) in COMMON_VARIABLES
        .iter()
        .zip(usual)
        .filter(|(_, value)| !value.is_empty())
    {
        pairs.insert((*key).to_owned(), value.clone());
    }
    for pair in others.chunks(2) {
        let before = pairs.insert(pair[0].clone(), pair[1].clone());
        assert_eq!(before, None, "{} occurs twice", pair[0]);
    }
    // What a worker has when it is not sent.
    let mut environ: BTreeMap<String, String> = [
        ("rack.url_scheme", "http"),
        ("SERVER_PROTOCOL", "HTTP/1.1"),
        ("SCRIPT_NAME", ""),
        ("QUERY_STRING", ""),
        ("REMOTE_ADDR", ""),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    environ.extend(pairs);
    environ
}

fn local() -> PeerAddress {
    PeerAddress::Tcp("127.0.0.1:50000".parse().unwrap())
}

fn stranger() -> PeerAddress {
    PeerAddress::Tcp("192.0.2.7:50000".parse().unwrap())
}

fn check(name: &str, head: &str, peer: PeerAddress, expected: &[(&str, Option<&str>)]) {
    let environ = environ(&request(head, peer, Some("127.0.0.1:8080")), None);
    for (key, value) in expected {
        assert_eq!(
            environ.get(*key).map(String::as_str),
            *value,
            "{name}: {key}"
        );
    }
}

#[test]
fn a_request_gives_the_names_of_rfc_3875() {
    check(
        "plain",
        "GET /a%20b/c?x=%20y HTTP/1.1\r\nHost: example.com:81\r\n\r\n",
        stranger(),
        &[
            ("REQUEST_METHOD", Some("GET")),
            ("SCRIPT_NAME", Some("")),
            ("PATH_INFO", Some("/a b/c")),
            ("QUERY_STRING", Some("x=%20y")),
            ("REQUEST_URI", Some("/a%20b/c?x=%20y")),
            ("SERVER_NAME", Some("example.com")),
            ("SERVER_PORT", Some("81")),
            ("SERVER_PROTOCOL", Some("HTTP/1.1")),
            ("REMOTE_ADDR", Some("192.0.2.7")),
            ("REMOTE_PORT", Some("50000")),
            ("HTTP_HOST", Some("example.com:81")),
            ("HTTP_X_REQUEST_START", Some("t=1700000000.042")),
            ("rack.url_scheme", Some("http")),
            ("CONTENT_LENGTH", None),
            ("CONTENT_TYPE", None),
        ],
    );
}

#[test]
fn the_port_is_the_one_named_else_the_listeners() {
    for (host, name, port) in [
        ("example.com", "example.com", "8080"),
        ("example.com:90", "example.com", "90"),
        ("[::1]", "[::1]", "8080"),
        ("[::1]:90", "[::1]", "90"),
    ] {
        let head = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let expected = [("SERVER_NAME", Some(name)), ("SERVER_PORT", Some(port))];
        check(host, &head, local(), &expected);
    }
    let old = request("GET / HTTP/1.0\r\n\r\n", PeerAddress::Unix, None);
    let environ = environ(&old, Some(5));
    let value = |key: &str| environ.get(key).map(String::as_str);
    assert_eq!(value("SERVER_NAME"), Some("localhost"));
    assert_eq!(value("SERVER_PORT"), Some("80"));
    assert_eq!(value("SERVER_PROTOCOL"), Some("HTTP/1.0"));
    assert_eq!(value("REMOTE_ADDR"), Some(""));
    assert_eq!(value("HTTP_HOST"), None);
    assert_eq!(value("CONTENT_LENGTH"), Some("5"));
}

#[test]
fn one_header_gives_one_variable() {
    let rows: &[(&str, &str, &str, Option<&str>)] = &[
        ("any case", "x-ThInG: v\r\n", "HTTP_X_THING", Some("v")),
        (
            "repeated",
            "Accept: a\r\nX: 1\r\naccept: b\r\n",
            "HTTP_ACCEPT",
            Some("a, b"),
        ),
        (
            "cookies",
            "Cookie: a=1\r\nCookie: b=2\r\n",
            "HTTP_COOKIE",
            Some("a=1; b=2"),
        ),
        ("empty", "X-Empty:\r\n", "HTTP_X_EMPTY", Some("")),
        (
            "latin-1",
            "X-Name: caf\u{e9}\r\n",
            "HTTP_X_NAME",
            Some("caf\u{c3}\u{a9}"),
        ),
        (
            "content type",
            "Content-Type: text/plain\r\n",
            "CONTENT_TYPE",
            Some("text/plain"),
        ),
        (
            "content type has no HTTP_ twin",
            "Content-Type: a/b\r\n",
            "HTTP_CONTENT_TYPE",
            None,
        ),
        ("underscore", "X_Thing: v\r\n", "HTTP_X_THING", None),
        (
            "underscore twin",
            "X-Forwarded_For: v\r\n",
            "HTTP_X_FORWARDED_FOR",
            None,
        ),
        ("httpoxy", "Proxy: evil\r\n", "HTTP_PROXY", None),
        (
            "hop by hop",
            "Connection: keep-alive\r\n",
            "HTTP_CONNECTION",
            None,
        ),
        ("upgrade", "Upgrade: foo\r\n", "HTTP_UPGRADE", None),
        ("te", "TE: trailers\r\n", "HTTP_TE", None),
        (
            "sendfile",
            "X-Sendfile-Type: X-Accel-Redirect\r\n",
            "HTTP_X_SENDFILE_TYPE",
            None,
        ),
        (
            "mapping",
            "X-Accel-Mapping: /=/\r\n",
            "HTTP_X_ACCEL_MAPPING",
            None,
        ),
        (
            "forged words of the hub",
            "Grip-Sig: forged\r\n",
            "HTTP_GRIP_SIG",
            None,
        ),
        (
            "the same in disguise",
            "GRIP_FEATURE: forged\r\n",
            "HTTP_GRIP_FEATURE",
            None,
        ),
        (
            "start",
            "X-Request-Start: t=1\r\n",
            "HTTP_X_REQUEST_START",
            Some("t=1700000000.042"),
        ),
    ];
    for (name, fields, key, value) in rows {
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        check(name, &head, stranger(), &[(key, *value)]);
    }
}

#[test]
fn a_proxy_is_believed_on_this_machine_only() {
    for (name, sent, passed) in [
        (
            "forwarded",
            "for=203.0.113.9",
            "for=203.0.113.9;proto=http;host=\"a\"",
        ),
        (
            "x-forwarded-for",
            "198.51.100.1, 203.0.113.9",
            "198.51.100.1, 203.0.113.9",
        ),
        ("x-forwarded-host", "shop.test", "shop.test"),
        ("x-forwarded-port", "8443", "8443"),
        ("x-forwarded-prefix", "/shop/", "/shop"),
        ("x-forwarded-proto", "HTTPS", "https"),
        ("x-forwarded-scheme", "https", "https"),
        ("x-forwarded-ssl", "on", "on"),
        ("x-real-ip", "::ffff:203.0.113.9", "203.0.113.9"),
        ("x-forwarded-user", "jo", "jo"),
    ] {
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{name}: {sent}\r\n\r\n");
        let key = format!("HTTP_{}", name.to_ascii_uppercase().replace('-', "_"));
        check(name, &head, stranger(), &[(&key, None)]);
        check(name, &head, local(), &[(&key, Some(passed))]);
        check(name, &head, PeerAddress::Unix, &[(&key, Some(passed))]);
    }
    // A proxy that is not trusted may pass on its client's inventions: an address or a scheme that
    // is not what counts reaches no application.
    for (name, sent) in [
        ("client-ip", "203.0.113.9"),
        ("x-forwarded-protocol", "ssl"),
        ("front-end-https", "on"),
    ] {
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{name}: {sent}\r\n\r\n");
        let key = format!("HTTP_{}", name.to_ascii_uppercase().replace('-', "_"));
        for peer in [stranger(), local(), PeerAddress::Unix] {
            check(name, &head, peer, &[(&key, None)]);
        }
    }
}

/// Frameworks read these fields by themselves.
#[test]
fn forwarded_fields_hold_only_trusted_values() {
    for (lines, expected) in [
        (
            "X-Forwarded-For: 203.0.113.9\r\nX-Forwarded-Proto: http\r\n\
             Forwarded: for=198.51.100.1;proto=https;host=evil.test\r\nX-Real-IP: 198.51.100.1\r\n\
             X-Forwarded-Ssl: on\r\nX-Forwarded-Protocol: ssl\r\nFront-End-Https: on\r\n",
            &[
                ("HTTP_FORWARDED", None),
                ("HTTP_X_FORWARDED_FOR", Some("203.0.113.9")),
                ("HTTP_X_FORWARDED_PROTO", Some("http")),
                ("HTTP_X_REAL_IP", Some("203.0.113.9")),
                ("HTTP_X_FORWARDED_SSL", Some("off")),
                ("HTTP_X_FORWARDED_PROTOCOL", None),
                ("HTTP_FRONT_END_HTTPS", None),
            ][..],
        ),
        (
            "X-Forwarded-For: 198.51.100.1, garbage\r\nX-Forwarded-Host: a/b\r\n\
             X-Forwarded-Port: x\r\nX-Forwarded-Proto: gopher\r\nX-Forwarded-Prefix: //evil.test\r\n",
            &[
                ("HTTP_X_FORWARDED_FOR", None),
                ("HTTP_X_FORWARDED_HOST", None),
                ("HTTP_X_FORWARDED_PORT", None),
                ("HTTP_X_FORWARDED_PROTO", None),
                ("HTTP_X_FORWARDED_PREFIX", None),
            ],
        ),
        (
            "X-Forwarded-For: 198.51.100.1, 203.0.113.9, 127.0.0.1\r\n\
             X-Forwarded-Proto: http, https, http\r\nX-Forwarded-Host: x, shop.test, y\r\n",
            &[
                ("HTTP_X_FORWARDED_PROTO", Some("https")),
                ("HTTP_X_FORWARDED_HOST", Some("shop.test")),
            ],
        ),
        (
            "Forwarded: for=\", for=198.51.100.1;host=evil.test, for=203.0.113.9;proto=https\r\n",
            &[
                (
                    "HTTP_FORWARDED",
                    Some("for=203.0.113.9;proto=https;host=\"a\""),
                ),
                ("REMOTE_ADDR", Some("203.0.113.9")),
            ],
        ),
    ] {
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        check(lines, &head, local(), expected);
    }
}

#[test]
fn the_field_that_names_the_client_is_no_strangers() {
    let head = "GET / HTTP/1.1\r\nHost: a\r\nCF-Connecting-IP: 203.0.113.9\r\n\
                X-Forwarded-For: 198.51.100.1\r\n\r\n";
    for (peer, field, list) in [
        (stranger(), None, None),
        (local(), Some("203.0.113.9"), Some("203.0.113.9")),
    ] {
        let mut request = request(head, peer, None);
        let trust = (*request.trusted_proxies).clone();
        let trust = trust.with_client_address_field(Some("cf-connecting-ip"));
        if request.is_from_trusted_proxy() {
            let (info, _) = penstock_exchange::ForwardedInfo::read(&request.head, &trust);
            request.forwarded = Some(info.into());
        }
        request.trusted_proxies = trust.into();
        let environ = environ(&request, None);
        for (key, expected) in [
            ("HTTP_CF_CONNECTING_IP", field),
            ("HTTP_X_FORWARDED_FOR", list),
        ] {
            let found = environ.get(key).map(String::as_str);
            assert_eq!(found, expected, "{key} {peer:?}");
        }
    }
}

#[test]
fn trusted_forwarded_fields_set_the_environ() {
    let head = "GET /cart?x HTTP/1.1\r\nHost: inner.test:81\r\nX-Forwarded-For: 198.51.100.1, 203.0.113.9\r\n\
                X-Forwarded-Proto: https\r\nX-Forwarded-Host: shop.test\r\n\
                X-Forwarded-Prefix: /a%20b\r\n\r\n";
    let rows = [
        ("rack.url_scheme", "https", Some("http")),
        ("HTTPS", "on", None),
        ("HTTP_HOST", "shop.test", Some("inner.test:81")),
        ("SERVER_NAME", "shop.test", Some("inner.test")),
        ("SERVER_PORT", "443", Some("81")),
        ("REMOTE_ADDR", "203.0.113.9", Some("192.0.2.7")),
        ("SCRIPT_NAME", "/a b", Some("")),
        ("PATH_INFO", "/cart", Some("/cart")),
        ("REQUEST_URI", "/a%20b/cart?x", Some("/cart?x")),
    ];
    for (key, by_proxy, by_stranger) in rows {
        check("proxy", head, local(), &[(key, Some(by_proxy))]);
        check("stranger", head, stranger(), &[(key, by_stranger)]);
    }
    check("no port is known", head, local(), &[("REMOTE_PORT", None)]);
}

#[test]
fn fields_of_route_rules_are_trusted() {
    let head = "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-Proto: https\r\nX-Real-IP: 9\r\n\
                X-Request-Start: t=1\r\nX-Accel-Mapping: /=/\r\nX-Forwarded-For: 1\r\n\
                Grip-Sig: own\r\nGrip-Last: 1\r\n\r\n";
    let mut request = request(head, stranger(), None);
    let names = [
        "X-Forwarded-Proto",
        "x-real-ip",
        "X-Request-Start",
        "X-Accel-Mapping",
        "Grip-Sig",
    ];
    request.trusted_headers = TrustedHeaders::new(names.map(str::to_owned));
    let environ = environ(&request, None);
    for (name, value) in [
        ("HTTP_X_FORWARDED_PROTO", Some("https")),
        ("HTTP_X_REAL_IP", Some("9")),
        ("HTTP_X_REQUEST_START", Some("t=1")),
        ("HTTP_X_ACCEL_MAPPING", Some("/=/")),
        ("HTTP_X_FORWARDED_FOR", None),
        ("HTTP_GRIP_SIG", Some("own")),
        ("HTTP_GRIP_LAST", None),
    ] {
        assert_eq!(environ.get(name).map(String::as_str), value, "{name}");
    }
}

#[test]
fn upgrade_fields_reach_applications_that_may_hijack() {
    let asks = "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n";
    for (name, fields, may_hijack, expected) in [
        ("an upgrade", asks, true, true),
        ("nobody could take it over", asks, false, false),
        ("not for this hop", "Upgrade: websocket\r\n", true, false),
    ] {
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}TE: trailers\r\n\r\n");
        let environ = environ_of(&request(&head, stranger(), None), None, may_hijack);
        let has = |key: &str| environ.contains_key(key);
        let found = [has("HTTP_UPGRADE"), has("HTTP_CONNECTION")];
        assert_eq!(found, [expected; 2], "{name}");
        assert!(!has("HTTP_TE"), "{name}");
    }
}

/// The variables of a session whose client has shown a certificate, as Apache names them.
#[test]
fn a_session_of_tls_gives_the_variables_of_apache() {
    let head = "GET / HTTP/1.1\r\nHost: a\r\nX-Client-Cert: forged\r\nX_Client_Cert: f\r\n\r\n";
    let plain = environ(&request(head, stranger(), None), None);
    assert!(
        !plain.keys().any(|key| key.starts_with("SSL_")),
        "{plain:?}"
    );
    assert_eq!(plain.get("HTTP_X_CLIENT_CERT"), None);
    let mut with_tls = request(head, stranger(), None);
    with_tls.listener = Arc::new(ListenerInfo {
        scheme: "https",
        ..(*with_tls.listener).clone()
    });
    with_tls.client_state = crate::testing::client_with_certificate();
    let environ = environ(&with_tls, None);
    for (key, value) in [
        ("rack.url_scheme", Some("https")),
        ("HTTPS", Some("on")),
        ("SERVER_PORT", Some("443")),
        ("SSL_PROTOCOL", Some("TLSv1.3")),
        ("SSL_CIPHER", Some("AES_128_GCM_SHA256")),
        ("SSL_TLS_SNI", Some("a.test")),
        ("SSL_CLIENT_VERIFY", Some("SUCCESS")),
        ("SSL_CLIENT_S_DN", Some("CN=anna")),
        ("SSL_CLIENT_I_DN", Some("CN=Clients")),
        ("SSL_CLIENT_SERIAL", Some("0A")),
        ("SSL_CLIENT_FINGERPRINT", Some("ab12")),
        (
            "SSL_CLIENT_CERT",
            Some("-----BEGIN%20CERTIFICATE-----%0AZGVy%0A-----END%20CERTIFICATE-----%0A"),
        ),
        ("HTTP_X_CLIENT_CERT", None),
    ] {
        assert_eq!(environ.get(key).map(String::as_str), value, "{key}");
    }
}
