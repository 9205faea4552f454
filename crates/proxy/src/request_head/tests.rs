//! The head for an HTTP server, as the bytes that are sent.
//!
//! The request comes from 192.0.2.7, which is not trusted, unless a row says otherwise. `sent_head`
//! checks and removes `X-Request-Start`, since it differs each time.

use penstock_exchange::field_policy::TrustedHeaders;
use penstock_exchange::{Mount, TrustedProxies};

use super::*;
use crate::testing::{
    CLIENT_ADDRESS, PROXY_ADDRESS, build_request_from, build_request_trusting,
    build_request_with_trusted_headers, client_with_certificate, upstream_config,
};

const SERVER: &str = "10.0.0.5:3000";
/// The default forwarding fields for `CLIENT_ADDRESS`.
const DEFAULT_FORWARDING_FIELDS: &str = "X-Forwarded-For: 192.0.2.7\r\n\
                    X-Forwarded-Proto: http\r\n\
                    X-Forwarded-Host: a.test\r\n";

fn http_upstream() -> config::Upstream {
    upstream_config(config::Protocol::Http)
}

/// The head that is sent, and whether it asks for another protocol.
fn sent_head(
    config: &config::Upstream,
    head: &str,
    peer: &str,
    framing: RequestBodyFraming,
) -> (String, bool) {
    let before = clock::wall_time();
    let (text, upgrades) = encoded_head(config, &build_request_from(head, peer), framing);
    let start = "X-Request-Start: t=";
    let at = text.find(start).unwrap();
    let end = at + text[at..].find("\r\n").unwrap();
    let time: f64 = text[at + start.len()..end].parse().unwrap();
    let apart = (time - before.as_secs_f64()).abs();
    assert!(apart < 60.0, "{}", &text[at..end]);
    (format!("{}{}", &text[..at], &text[end + 2..]), upgrades)
}

/// The exact head.
fn encoded_head(
    config: &config::Upstream,
    request: &Request,
    framing: RequestBodyFraming,
) -> (String, bool) {
    let mut out = b"before".to_vec();
    let upgrades = encode_request_head(&mut out, config, request, framing, SERVER);
    let text = String::from_utf8(out).unwrap();
    (text.strip_prefix("before").unwrap().to_owned(), upgrades)
}

/// The fields between `Host` and the forwarding fields.
fn passed_fields(fields: &str, framing: RequestBodyFraming) -> (String, bool) {
    let head = format!("GET /p?q HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n");
    let (text, upgrades) = sent_head(&http_upstream(), &head, CLIENT_ADDRESS, framing);
    let text = text.strip_prefix("GET /p?q HTTP/1.1\r\nHost: a.test\r\n");
    let (passed, rest) = text.unwrap().split_once(DEFAULT_FORWARDING_FIELDS).unwrap();
    assert!(rest.starts_with("Via: 1.1 penstock\r\n"), "{rest}");
    assert_eq!(rest.matches("\r\n\r\n").count(), 1);
    (passed.to_owned(), upgrades)
}

#[test]
fn a_head_is_encoded_from_its_parts() {
    for (row, head, expected) in [
        (
            "plain",
            "GET /a%20b/../c?d=%20e HTTP/1.1\r\nhost:a.test\r\nAccept:  x \r\n\r\n",
            "GET /a%20b/../c?d=%20e HTTP/1.1\r\nHost: a.test\r\nAccept: x\r\n",
        ),
        (
            "absolute target",
            "GET http://a.test/x?y HTTP/1.1\r\nHost: a.test\r\n\r\n",
            "GET /x?y HTTP/1.1\r\nHost: a.test\r\n",
        ),
        (
            "other method",
            "PURGE / HTTP/1.1\r\nHost: a.test\r\n\r\n",
            "PURGE / HTTP/1.1\r\nHost: a.test\r\n",
        ),
    ] {
        let (text, _) = sent_head(
            &http_upstream(),
            head,
            CLIENT_ADDRESS,
            RequestBodyFraming::None,
        );
        let expected = format!("{expected}{DEFAULT_FORWARDING_FIELDS}Via: 1.1 penstock\r\n\r\n");
        assert_eq!(text, expected, "{row}");
    }
    let (old, _) = sent_head(
        &http_upstream(),
        "GET / HTTP/1.0\r\n\r\n",
        CLIENT_ADDRESS,
        RequestBodyFraming::None,
    );
    assert!(old.starts_with("GET / HTTP/1.1\r\nHost: \r\n"), "{old}");
    assert!(old.ends_with("Via: 1.0 penstock\r\n\r\n"), "{old}");
}

#[test]
fn fields_are_forwarded_or_dropped() {
    for (row, fields, expected) in [
        ("ordinary", "A: 1\r\nB: 2\r\n", "A: 1\r\nB: 2\r\n"),
        (
            "repeated",
            "Cookie: a\r\nCookie: b\r\n",
            "Cookie: a\r\nCookie: b\r\n",
        ),
        (
            "other bytes than ascii",
            "A: caf\u{e9}\r\n",
            "A: caf\u{e9}\r\n",
        ),
        (
            "keep-alive",
            "Connection: keep-alive\r\nKeep-Alive: max=5\r\n",
            "",
        ),
        (
            "hop by hop",
            "TE: trailers\r\nTrailer: A\r\nProxy-Connection: close\r\n",
            "",
        ),
        ("expectation", "Expect: 100-continue\r\n", ""),
        (
            "named",
            "Connection: close, X-Hop\r\nx-hop: 1\r\nB: 2\r\n",
            "B: 2\r\n",
        ),
        (
            "named in two",
            "Connection: a\r\nConnection: b\r\nA: 1\r\nB: 2\r\nC: 3\r\n",
            "C: 3\r\n",
        ),
        (
            "named and not there",
            "Connection: X-Hop\r\nB: 2\r\n",
            "B: 2\r\n",
        ),
        (
            "named: what the front end says",
            "Connection: via, x-request-start\r\n",
            "",
        ),
        (
            "underscores",
            "X_Forwarded_For: 9\r\nauth_token: 1\r\nX_API_KEY: x\r\nContent_Length: 5\r\n\
             X-Real_IP: 9.9.9.9\r\nVia_: 1\r\n",
            "auth_token: 1\r\nX_API_KEY: x\r\nVia_: 1\r\n",
        ),
        (
            "named: an underscore",
            "Connection: a_b\r\nA_B: 1\r\nA_C: 2\r\n",
            "A_C: 2\r\n",
        ),
        (
            "spoofed address",
            "X-Forwarded-For: 9.9.9.9\r\nX-Real-IP: 9.9.9.9\r\n",
            "",
        ),
        (
            "spoofed scheme",
            "X-Forwarded-Proto: https\r\nX-Forwarded-Ssl: on\r\n",
            "",
        ),
        (
            "spoofed host",
            "x-forwarded-host: evil\r\nX-Forwarded-Port: 1\r\n",
            "",
        ),
        (
            "spoofed element",
            "Forwarded: for=9.9.9.9\r\nVia: 1.1 evil\r\n",
            "",
        ),
        ("httpoxy", "Proxy: http://evil\r\n", ""),
        ("start", "X-Request-Start: t=1\r\n", ""),
        (
            "sendfile",
            "X-Sendfile-Type: X-Accel-Redirect\r\nX-Accel-Mapping: /=/\r\n",
            "",
        ),
        (
            "forged words of the hub",
            "Grip-Sig: forged\r\ngrip-feature: all\r\nGRIP-Hold: stream\r\n",
            "",
        ),
        (
            "target in a field",
            "X-Original-URL: /admin\r\nX-Rewrite-URL: /admin\r\n",
            "",
        ),
    ] {
        assert_eq!(
            passed_fields(fields, RequestBodyFraming::None),
            (expected.to_owned(), false),
            "{row}"
        );
    }
}

#[test]
fn an_upgrade_is_forwarded_where_it_is_safe() {
    let asks = |protocol: &str| format!("Connection: Upgrade\r\nUpgrade: {protocol}\r\n");
    for (row, fields, framing, expected) in [
        (
            "websocket",
            asks("websocket"),
            RequestBodyFraming::None,
            Some("websocket"),
        ),
        (
            "any other",
            asks("foo/1"),
            RequestBodyFraming::None,
            Some("foo/1"),
        ),
        ("http/2", asks("h2c"), RequestBodyFraming::None, None),
        (
            "http/2 in capitals",
            asks("H2C"),
            RequestBodyFraming::None,
            None,
        ),
        (
            "http/2 by its name",
            asks("HTTP/2.0"),
            RequestBodyFraming::None,
            None,
        ),
        (
            "http/2 among others",
            asks("websocket, h2c"),
            RequestBodyFraming::None,
            None,
        ),
        (
            "tls",
            asks("TLS/1.0, HTTP/1.1"),
            RequestBodyFraming::None,
            None,
        ),
        (
            "no option",
            "Upgrade: websocket\r\n".to_owned(),
            RequestBodyFraming::None,
            None,
        ),
        (
            "no field",
            "Connection: Upgrade\r\n".to_owned(),
            RequestBodyFraming::None,
            None,
        ),
        (
            "before a body",
            asks("websocket"),
            RequestBodyFraming::Length(5),
            None,
        ),
        (
            "before chunks",
            asks("websocket"),
            RequestBodyFraming::Chunked,
            None,
        ),
        (
            "behind a body",
            asks("tcp"),
            RequestBodyFraming::Length(5),
            Some("tcp"),
        ),
        (
            "behind chunks",
            asks("tcp"),
            RequestBodyFraming::Chunked,
            Some("tcp"),
        ),
    ] {
        let (text, upgrades) = passed_fields(&fields, framing);
        let expected = expected.map(asks);
        assert_eq!(upgrades, expected.is_some(), "{row}");
        assert_eq!(text, expected.unwrap_or_default(), "{row}");
    }
    let settings = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAM\r\n";
    assert_eq!(
        passed_fields(settings, RequestBodyFraming::None),
        (String::new(), false)
    );
    let keys = "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n";
    let expected = "Sec-WebSocket-Key: k\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n";
    assert_eq!(
        passed_fields(keys, RequestBodyFraming::None),
        (expected.to_owned(), true)
    );
}

#[test]
fn the_client_address_is_forwarded_in_every_form() {
    use config::ForwardedHeaders::{Both, Off, Rfc7239, XForwarded};
    for (form, peer, expected) in [
        (
            XForwarded,
            CLIENT_ADDRESS,
            "X-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: a.test:81\r\n",
        ),
        (
            XForwarded,
            "[2001:db8::7]:50000",
            "X-Forwarded-For: 2001:db8::7\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: a.test:81\r\n",
        ),
        (
            XForwarded,
            "unix",
            "X-Forwarded-Proto: http\r\nX-Forwarded-Host: a.test:81\r\n",
        ),
        (
            Rfc7239,
            "203.0.113.100:5",
            "Forwarded: for=203.0.113.100;proto=http;host=\"a.test:81\"\r\n",
        ),
        (
            Rfc7239,
            "[2001:db8::7]:50000",
            "Forwarded: for=\"[2001:db8::7]\";proto=http;host=\"a.test:81\"\r\n",
        ),
        (
            Rfc7239,
            "[::ffff:192.0.2.10]:5",
            "Forwarded: for=192.0.2.10;proto=http;host=\"a.test:81\"\r\n",
        ),
        (
            Rfc7239,
            "unix",
            "Forwarded: for=unknown;proto=http;host=\"a.test:81\"\r\n",
        ),
        (
            Both,
            "1.20.255.0:5",
            "X-Forwarded-For: 1.20.255.0\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: a.test:81\r\n\
             Forwarded: for=1.20.255.0;proto=http;host=\"a.test:81\"\r\n",
        ),
        (Off, CLIENT_ADDRESS, ""),
    ] {
        let mut config = http_upstream();
        config.forwarded = form;
        let head = "GET / HTTP/1.1\r\nHost: a.test:81\r\n\r\n";
        let (text, _) = sent_head(&config, head, peer, RequestBodyFraming::None);
        let expected =
            format!("GET / HTTP/1.1\r\nHost: a.test:81\r\n{expected}Via: 1.1 penstock\r\n\r\n");
        assert_eq!(text, expected, "{form:?} {peer}");
    }
}

#[test]
fn addresses_of_a_trusted_proxy_are_kept_and_extended() {
    let forwarding = "X-Forwarded-For: 192.0.2.1, 192.0.2.2\r\n\
                X-Forwarded-For: 192.0.2.3\r\n\
                X-Forwarded-Proto: https\r\n\
                X-Forwarded-Host: front.test\r\n\
                X-Forwarded-Port: 443\r\n\
                X-Forwarded-Prefix: /a\r\n\
                X-Real-IP: 192.0.2.1\r\n\
                Forwarded: for=192.0.2.1\r\n\
                Via: 1.1 front\r\n";
    let x_forwarded = "X-Forwarded-For: 192.0.2.1, 192.0.2.2, 192.0.2.3, 127.0.0.1\r\n\
                       X-Forwarded-Proto: https\r\n\
                       X-Forwarded-Host: front.test\r\n\
                       X-Forwarded-Port: 443\r\n\
                       X-Real-IP: 192.0.2.3\r\n\
                       X-Forwarded-Prefix: /a\r\n";
    let standard = "Forwarded: for=192.0.2.3;proto=https;host=\"front.test\", \
                    for=127.0.0.1;proto=https;host=\"front.test\"\r\n";
    for (form, expected) in [
        (config::ForwardedHeaders::XForwarded, x_forwarded.to_owned()),
        (config::ForwardedHeaders::Rfc7239, standard.to_owned()),
        (
            config::ForwardedHeaders::Both,
            format!("{x_forwarded}{standard}"),
        ),
        (config::ForwardedHeaders::Off, String::new()),
    ] {
        let mut config = http_upstream();
        config.forwarded = form;
        let head = format!("GET / HTTP/1.1\r\nHost: a.test\r\n{forwarding}\r\n");
        let (text, _) = sent_head(&config, &head, PROXY_ADDRESS, RequestBodyFraming::None);
        let expected = format!(
            "GET / HTTP/1.1\r\nHost: a.test\r\n{expected}Via: 1.1 front, 1.1 penstock\r\n\r\n"
        );
        assert_eq!(text, expected, "{form:?}");
    }
    let over_a_file =
        "GET / HTTP/1.1\r\nHost: a.test\r\nX-Forwarded-For: 192.0.2.1, 192.0.2.2\r\n\r\n";
    let (text, _) = sent_head(
        &http_upstream(),
        over_a_file,
        "unix",
        RequestBodyFraming::None,
    );
    let expected = "\r\nX-Forwarded-For: 192.0.2.1, 192.0.2.2\r\n";
    assert!(text.contains(expected), "{text}");
    let empty = "GET / HTTP/1.1\r\nHost: a.test\r\nX-Forwarded-For:\r\nX-Forwarded-Proto:\r\n\r\n";
    let (text, _) = sent_head(
        &http_upstream(),
        empty,
        PROXY_ADDRESS,
        RequestBodyFraming::None,
    );
    let expected = "X-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: http\r\n";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn proxy_values_are_converted_to_the_configured_form() {
    use config::ForwardedHeaders::{Rfc7239, XForwarded};
    for (row, form, fields, expected) in [
        (
            "a list that cannot be read",
            XForwarded,
            "X-Forwarded-For: 203.0.113.9, garbage\r\n",
            "X-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: a.test\r\n",
        ),
        (
            "a client that another field names",
            XForwarded,
            "Forwarded: for=203.0.113.9;proto=https;host=shop.test\r\n",
            "X-Forwarded-For: 203.0.113.9, 127.0.0.1\r\nX-Forwarded-Proto: https\r\n\
             X-Forwarded-Host: shop.test\r\n",
        ),
        (
            "a scheme that no one can read",
            XForwarded,
            "X-Forwarded-Proto: gopher\r\n",
            "X-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: a.test\r\n",
        ),
        (
            "in the standard field",
            Rfc7239,
            "X-Forwarded-For: 203.0.113.9\r\nX-Forwarded-Proto: https\r\n",
            "Forwarded: for=203.0.113.9;proto=https;host=\"a.test\", \
             for=127.0.0.1;proto=https;host=\"a.test\"\r\n",
        ),
        (
            "the standard field of a client that left its quotes open",
            Rfc7239,
            "Forwarded: for=\", for=203.0.113.9;proto=https\r\n",
            "Forwarded: for=203.0.113.9;proto=https;host=\"a.test\", \
             for=127.0.0.1;proto=https;host=\"a.test\"\r\n",
        ),
        (
            "fields that do not count",
            XForwarded,
            "X-Forwarded-For: 203.0.113.9\r\nX-Real-IP: 198.51.100.1\r\nX-Forwarded-Proto: http\r\n\
             X-Forwarded-Ssl: on\r\nX-Forwarded-Port: x\r\nFront-End-Https: on\r\n\
             Forwarded: for=198.51.100.1;host=evil.test\r\n",
            "X-Forwarded-For: 203.0.113.9, 127.0.0.1\r\nX-Forwarded-Proto: http\r\n\
             X-Forwarded-Host: a.test\r\nX-Forwarded-Ssl: off\r\nX-Real-IP: 203.0.113.9\r\n",
        ),
    ] {
        let mut config = http_upstream();
        config.forwarded = form;
        let head = format!("GET / HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n");
        let (text, _) = sent_head(&config, &head, PROXY_ADDRESS, RequestBodyFraming::None);
        let expected =
            format!("GET / HTTP/1.1\r\nHost: a.test\r\n{expected}Via: 1.1 penstock\r\n\r\n");
        assert_eq!(text, expected, "{row}");
    }
}

#[test]
fn forwarding_fields_of_untrusted_peers_are_dropped() {
    let fields = "X-Forwarded-User: root\r\nX-Forwarded-Protocol: ssl\r\nFront-End-Https: on\r\n\
                  X-Scheme: https\r\nX-Original-URI: /admin\r\nClient-IP: 198.51.100.1\r\n\
                  X-Thing: 1\r\n";
    assert_eq!(
        passed_fields(fields, RequestBodyFraming::None).0,
        "X-Thing: 1\r\n"
    );
}

/// An unlisted proxy may forward what its client made up.
#[test]
fn forwarding_fields_pass_if_trusted_or_true() {
    let (peer, local) = (
        PROXY_ADDRESS.parse().unwrap(),
        "127.0.0.1:8080".parse().unwrap(),
    );
    let address = "X-Forwarded-For: 203.0.113.9\r\n";
    let https = "X-Forwarded-Proto: https\r\n";
    for (extra, field, passes, passes_of_listed) in [
        (address, "Client-IP: 10.0.0.1", false, false),
        (address, "X-Client-IP: 10.0.0.1", false, false),
        (address, "X-Cluster-Client-IP: 10.0.0.1", false, false),
        (address, "Client-IP: 10.0.0.1, 203.0.113.9", false, false),
        (
            address,
            "Client-IP: 203.0.113.9\r\nClient-IP: 10.0.0.1",
            false,
            false,
        ),
        (address, "Client-IP: unknown", false, false),
        (address, "Client-IP: 203.0.113.9", true, true),
        (address, "X-Client-IP: 203.0.113.9:5000", true, true),
        (
            address,
            "X-Cluster-Client-IP: ::ffff:203.0.113.9",
            true,
            true,
        ),
        ("", "X-Cluster-Client-IP: 127.0.0.1", true, true),
        ("", "X-Forwarded-Protocol: ssl", false, false),
        ("", "X-Scheme: https", false, false),
        ("", "X-Scheme: http", true, true),
        (https, "X-Forwarded-Protocol: ssl", true, true),
        (https, "X-Scheme: https\r\nX-Scheme: http", false, false),
        (https, "Front-End-Https: off", false, false),
        ("", "X-Original-URI: /admin", false, true),
        ("", "X-Original-Method: DELETE", false, true),
        ("", "X-Forwarded-User: root", false, true),
        ("", "X-Thing: 1", true, true),
        ("", "CF-Connecting-IP: 10.0.0.1", true, true),
    ] {
        let head = format!("GET / HTTP/1.1\r\nHost: a.test\r\n{extra}{field}\r\n\r\n");
        let listed = TrustedProxies::new(vec!["127.0.0.1/32".parse().unwrap()], false);
        for (trust, passes) in [
            (TrustedProxies::default(), passes),
            (listed, passes_of_listed),
        ] {
            let peer = PeerAddress::Tcp(peer);
            let request = build_request_trusting(&head, peer, "http", Some(local), trust);
            let (text, _) = encoded_head(&http_upstream(), &request, RequestBodyFraming::None);
            assert_eq!(text.contains(field), passes, "{extra}{field}: {text}");
        }
    }
}

#[test]
fn a_client_address_field_passes_only_if_it_matches() {
    let (peer, local) = (
        PROXY_ADDRESS.parse().unwrap(),
        "127.0.0.1:8080".parse().unwrap(),
    );
    for (field, passes) in [
        ("CF-Connecting-IP: 203.0.113.9", true),
        ("CF-Connecting-IP: 10.0.0.1, 203.0.113.9", false),
        ("CF-Connecting-IP: x", false),
    ] {
        let head = format!("GET / HTTP/1.1\r\nHost: a.test\r\n{field}\r\n\r\n");
        let trust = TrustedProxies::default().with_client_address_field(Some("CF-Connecting-IP"));
        let peer = PeerAddress::Tcp(peer);
        let request = build_request_trusting(&head, peer, "http", Some(local), trust);
        let (text, _) = encoded_head(&http_upstream(), &request, RequestBodyFraming::None);
        assert_eq!(text.contains(field), passes, "{text}");
    }
}

#[test]
fn a_stripped_prefix_is_forwarded() {
    let head = "GET /cart HTTP/1.1\r\nHost: a.test\r\nX-Forwarded-Prefix: /spoofed\r\n\r\n";
    let mut request = build_request_from(head, CLIENT_ADDRESS);
    let encode =
        |request: &Request| encoded_head(&http_upstream(), request, RequestBodyFraming::None).0;
    assert!(!encode(&request).contains("Prefix"), "{}", encode(&request));
    request.mount = Mount::new("/a b/shop");
    let text = encode(&request);
    assert!(
        text.contains("\r\nX-Forwarded-Prefix: /a%20b/shop\r\n"),
        "{text}"
    );
}

/// A joined server cannot know which proxies are trusted here.
#[test]
fn a_joined_server_gets_the_client_address() {
    let mut config = http_upstream();
    config.joinable = true;
    let fields = "X-Forwarded-For: 198.51.100.1, 203.0.113.9\r\nX-Real-IP: 198.51.100.1\r\n";
    let head = format!("GET / HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n");
    for (peer, client) in [
        (PROXY_ADDRESS, "203.0.113.9"),
        (CLIENT_ADDRESS, "192.0.2.7"),
    ] {
        let (text, _) = sent_head(&config, &head, peer, RequestBodyFraming::None);
        assert!(
            text.contains(&format!("\r\nX-Real-IP: {client}\r\n")),
            "{text}"
        );
        assert_eq!(text.matches("X-Real-IP").count(), 1, "{text}");
    }
}

#[test]
fn a_field_set_by_a_rule_replaces_ours() {
    use config::ForwardedHeaders::{Both, Off, Rfc7239, XForwarded};
    let proto = "X-Forwarded-Proto: http\r\n";
    let host = "X-Forwarded-Host: a.test\r\n";
    let via = "Via: 1.1 penstock\r\n";
    for (row, form, peer, fields, names, expected) in [
        (
            "address",
            XForwarded,
            CLIENT_ADDRESS,
            "X-Forwarded-For: 203.0.113.1\r\n",
            &["x-forwarded-for"][..],
            format!("X-Forwarded-For: 203.0.113.1\r\n{proto}{host}{via}"),
        ),
        (
            "address, to somebody who is believed",
            XForwarded,
            PROXY_ADDRESS,
            "X-Forwarded-For: 203.0.113.1\r\n",
            &["X-Forwarded-For"],
            format!("X-Forwarded-For: 203.0.113.1\r\n{proto}{host}{via}"),
        ),
        (
            "scheme, host and what nobody here knows",
            XForwarded,
            CLIENT_ADDRESS,
            "X-Forwarded-Proto: https\r\nX-Forwarded-Host: b\r\nX-Real-IP: 203.0.113.1\r\n",
            &["X-Forwarded-Proto", "X-Forwarded-Host", "X-Real-IP"],
            format!(
                "X-Forwarded-Proto: https\r\nX-Forwarded-Host: b\r\nX-Real-IP: 203.0.113.1\r\n\
                 X-Forwarded-For: 203.0.113.1, 192.0.2.7\r\n{via}"
            ),
        ),
        (
            "the standard field",
            Rfc7239,
            CLIENT_ADDRESS,
            "Forwarded: for=_x\r\n",
            &["Forwarded"],
            format!("Forwarded: for=_x\r\n{via}"),
        ),
        (
            "one of both",
            Both,
            PROXY_ADDRESS,
            "Forwarded: for=_x\r\n",
            &["Forwarded"],
            format!("Forwarded: for=_x\r\nX-Forwarded-For: 127.0.0.1\r\n{proto}{host}{via}"),
        ),
        (
            "what only a front end says",
            Off,
            CLIENT_ADDRESS,
            "X_Secret: 1\r\nProxy: p\r\nX-Sendfile-Type: X-Accel-Redirect\r\n",
            &["X_Secret", "Proxy", "X-Sendfile-Type"],
            format!("X_Secret: 1\r\nProxy: p\r\nX-Sendfile-Type: X-Accel-Redirect\r\n{via}"),
        ),
        (
            "what a client names as of its hop",
            Off,
            CLIENT_ADDRESS,
            "Connection: X-User, X-Other\r\nX-User: a\r\nX-Other: b\r\n",
            &["X-User"],
            format!("X-User: a\r\n{via}"),
        ),
        (
            "hops",
            Off,
            CLIENT_ADDRESS,
            "Via: 1.1 cdn\r\n",
            &["Via"],
            "Via: 1.1 cdn, 1.1 penstock\r\n".to_owned(),
        ),
        (
            "fields of the hop never",
            Off,
            CLIENT_ADDRESS,
            "TE: trailers\r\nKeep-Alive: 1\r\n",
            &["TE", "Keep-Alive"],
            via.to_owned(),
        ),
    ] {
        let mut config = http_upstream();
        config.forwarded = form;
        let head = format!("GET / HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n");
        let names = names.iter().map(|&name| name.to_owned());
        let vouched = TrustedHeaders::new(names.chain(["X-Request-Start".to_owned()]));
        let request = build_request_with_trusted_headers(&head, peer, vouched);
        let (text, _) = encoded_head(&config, &request, RequestBodyFraming::None);
        let expected = format!("GET / HTTP/1.1\r\nHost: a.test\r\n{expected}\r\n");
        assert_eq!(text, expected, "{row}");
    }
}

/// A rule may set the peer itself, or only the scheme: then there is no forwarded client.
#[test]
fn a_rule_names_no_client_twice() {
    use config::ForwardedHeaders::Both;
    let node =
        |address: &str, scheme: &str| format!("for={address};proto={scheme};host=\"a.test\"");
    let (stranger, proxy) = (node("192.0.2.7", "http"), node("127.0.0.1", "http"));
    for (peer, field, addresses, nodes) in [
        (
            CLIENT_ADDRESS,
            "X-Real-IP: 192.0.2.7",
            "192.0.2.7",
            stranger.clone(),
        ),
        (
            CLIENT_ADDRESS,
            "X-Forwarded-Scheme: https",
            "192.0.2.7",
            node("192.0.2.7", "https"),
        ),
        (
            CLIENT_ADDRESS,
            "X-Real-IP: 203.0.113.9",
            "203.0.113.9, 192.0.2.7",
            format!("{}, {stranger}", node("203.0.113.9", "http")),
        ),
        (
            PROXY_ADDRESS,
            "X-Real-IP: 203.0.113.9",
            "203.0.113.9, 127.0.0.1",
            format!("{}, {proxy}", node("203.0.113.9", "http")),
        ),
    ] {
        let mut config = http_upstream();
        config.forwarded = Both;
        let (name, _) = field.split_once(':').unwrap();
        let head = format!("GET / HTTP/1.1\r\nHost: a.test\r\n{field}\r\n\r\n");
        let request =
            build_request_with_trusted_headers(&head, peer, TrustedHeaders::new([name.to_owned()]));
        let (text, _) = encoded_head(&config, &request, RequestBodyFraming::None);
        for line in [
            format!("X-Forwarded-For: {addresses}"),
            format!("Forwarded: {nodes}"),
        ] {
            assert!(text.contains(&format!("\r\n{line}\r\n")), "{line}: {text}");
        }
    }
}

#[test]
fn the_host_is_the_one_that_is_configured() {
    let text = config::HostHeader::Custom("inner.test".to_owned());
    for (host, expected) in [
        (config::HostHeader::Client, "a.test"),
        (config::HostHeader::Server, SERVER),
        (text, "inner.test"),
    ] {
        let mut config = http_upstream();
        config.host = host;
        let head = "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n";
        let (text, _) = sent_head(&config, head, CLIENT_ADDRESS, RequestBodyFraming::None);
        let expected = format!("GET / HTTP/1.1\r\nHost: {expected}\r\n{DEFAULT_FORWARDING_FIELDS}");
        assert!(text.starts_with(&expected), "{text}");
        assert_eq!(text.matches("\r\nHost:").count(), 1);
    }
}

#[test]
fn framing_follows_the_body_not_the_client_fields() {
    for (method, fields, framing, expected) in [
        ("GET", "", RequestBodyFraming::None, ""),
        ("GET", "Content-Length: 7\r\n", RequestBodyFraming::None, ""),
        (
            "POST",
            "",
            RequestBodyFraming::None,
            "Content-Length: 0\r\n",
        ),
        (
            "PUT",
            "Content-Length: 0\r\n",
            RequestBodyFraming::None,
            "Content-Length: 0\r\n",
        ),
        (
            "PATCH",
            "",
            RequestBodyFraming::None,
            "Content-Length: 0\r\n",
        ),
        ("DELETE", "", RequestBodyFraming::None, ""),
        (
            "POST",
            "Transfer-Encoding: chunked\r\n",
            RequestBodyFraming::Length(9),
            "Content-Length: 9\r\n",
        ),
        (
            "POST",
            "Content-Length: 7\r\nConnection: x\r\n",
            RequestBodyFraming::Length(7),
            "Content-Length: 7\r\n",
        ),
        (
            "POST",
            "Content-Length: 7\r\n",
            RequestBodyFraming::Chunked,
            "Transfer-Encoding: chunked\r\n",
        ),
    ] {
        let row = format!("{method} {fields:?} {framing:?}");
        let head = format!("{method} / HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n");
        let (text, _) = sent_head(&http_upstream(), &head, CLIENT_ADDRESS, framing);
        let expected = format!("Via: 1.1 penstock\r\n{expected}\r\n");
        assert!(text.ends_with(&expected), "{row}: {text}");
        let length = text.matches("ontent-").count() + text.matches("ransfer-").count();
        assert!(length <= 1, "{row}: {text}");
    }
}

#[test]
fn connection_close_is_sent_without_keep_alive() {
    let head = "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: keep-alive\r\n\r\n";
    let upgrade = "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n";
    let mut none_kept = http_upstream();
    none_kept.connections.max_idle = 0;
    let mut announced = http_upstream();
    announced.proxy_protocol = Some(config::ProxyProtocol::V1);
    for (row, config, head, expected) in [
        ("kept", &http_upstream(), head, None),
        ("none kept", &none_kept, head, Some("Connection: close\r\n")),
        (
            "one client each",
            &announced,
            head,
            Some("Connection: close\r\n"),
        ),
        (
            "another protocol",
            &none_kept,
            upgrade,
            Some("Connection: Upgrade\r\n"),
        ),
    ] {
        let (text, _) = sent_head(config, head, CLIENT_ADDRESS, RequestBodyFraming::None);
        assert_eq!(
            text.matches("Connection:").count(),
            usize::from(expected.is_some()),
            "{row}"
        );
        assert!(text.contains(expected.unwrap_or_default()), "{row}: {text}");
    }
}

#[test]
fn a_client_certificate_comes_from_the_handshake_alone() {
    let head = "GET / HTTP/1.1\r\nHost: a.test\r\nX-Client-Cert: forged\r\n\
                x-client-cert-VERIFY: SUCCESS\r\nX_Client_Cert_Verify: SUCCESS\r\n\
                Client-Cert: :Zm9yZ2Vk:\r\nX-SSL-Client-Verify: SUCCESS\r\n\r\n";
    let (plain, _) = sent_head(
        &http_upstream(),
        head,
        CLIENT_ADDRESS,
        RequestBodyFraming::None,
    );
    let lower = plain.to_ascii_lowercase();
    assert!(!lower.contains("cert") && !lower.contains("ssl"), "{plain}");
    let mut request = build_request_from(head, CLIENT_ADDRESS);
    request.client_state = client_with_certificate();
    let (text, _) = encoded_head(&http_upstream(), &request, RequestBodyFraming::None);
    let expected = "X-Client-Cert-Verify: SUCCESS\r\nX-Client-Cert-Subject: CN=anna\r\n\
        X-Client-Cert-Issuer: CN=Clients\r\nX-Client-Cert-Serial: 0A\r\n\
        X-Client-Cert-Fingerprint: ab12\r\nX-Client-Cert: -----BEGIN%20CERTIFICATE-----%0A\
        ZGVy%0A-----END%20CERTIFICATE-----%0A\r\nVia:";
    assert!(text.contains(expected), "{text}");
    assert_eq!(
        text.to_ascii_lowercase().matches("cert").count(),
        8,
        "{text}"
    );
}
