//! The head parser with well-formed and split input, and the parsed head.
//!
//! Every valid head is parsed whole, split in two anywhere, byte by byte and pipelined, with the
//! same result. Hostile input is in `hostile`.

mod hostile;

use super::*;
use crate::head::{BodyFraming, Version};

fn parse(bytes: &[u8]) -> Result<ParseProgress<(RequestHead, usize)>, RequestHeadError> {
    parse_head(bytes, &HeadLimits::default())
}

fn accepted(bytes: &[u8]) -> RequestHead {
    match parse(bytes) {
        Ok(ParseProgress::Complete((head, consumed))) => {
            assert_eq!(consumed, bytes.len(), "{}", bytes.escape_ascii());
            head
        }
        other => panic!("{other:?} for {}", bytes.escape_ascii()),
    }
}

/// A GET with one more field line.
fn with_line(line: &[u8]) -> Vec<u8> {
    [b"GET / HTTP/1.1\r\nHost: a\r\n", line, b"\r\n\r\n"].concat()
}

const VALID: &[(&str, &[u8])] = &[
    ("smallest", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("http/1.0 without host", b"GET / HTTP/1.0\r\n\r\n"),
    ("leading blank line", b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("absolute form", b"GET http://a.example:80/b?c HTTP/1.1\r\nHost: A.example\r\n\r\n"),
    ("absolute form of another host", b"GET http://a/ HTTP/1.1\r\nHost: b:81\r\n\r\n"),
    ("empty ports", b"GET http://a: HTTP/1.1\r\nHost: b:\r\n\r\n"),
    ("raw text in the target", "GET /gr\u{fc}n?\"<\u{65e5}>\" HTTP/1.1\r\nHost: a\r\n\r\n".as_bytes()),
    ("raw text in an absolute form", "GET http://a?\u{fc} HTTP/1.1\r\nHost: a\r\n\r\n".as_bytes()),
    ("http/1.2", b"GET / HTTP/1.2\r\nHost: a\r\n\r\n"),
    ("absolute form without path", b"GET HTTPS://a HTTP/1.1\r\nHost: a:443\r\n\r\n"),
    ("absolute form with query only", b"GET http://a?b=/c HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("asterisk", b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("asterisk by proxy", b"OPTIONS http://a HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("connect", b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n"),
    ("unknown method", b"BREW /pot HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("lower case method", b"get / HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("double slash", b"GET //host/x HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("encoded target", b"GET /%00%2f;/..%5c?a=[1]|{2} HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("blanks around values", b"GET / HTTP/1.1\r\nHost:\t a \t\r\nX:  b c \r\n\r\n"),
    ("empty value", b"GET / HTTP/1.1\r\nHost: a\r\nX:\r\nY: \r\n\r\n"),
    ("obs-text in a value", b"GET / HTTP/1.1\r\nHost: a\r\nX: caf\xe9\r\n\r\n"),
    ("token punctuation in a name", b"GET / HTTP/1.1\r\nHost: a\r\n!#$%&'*+-.^_`|~9: x\r\n\r\n"),
    ("underscore names", b"GET / HTTP/1.1\r\nHost: a\r\nContent_Length: 5\r\nTransfer_Encoding: x\r\n\r\n"),
    ("length", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 12\r\n\r\n"),
    ("length with leading zeros", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 00000000000000000000012\r\n\r\n"),
    ("largest length", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9223372036854775807\r\n\r\n"),
    ("chunked", b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: CHUNKED\r\n\r\n"),
    ("body on get", b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n"),
    ("expect", b"PUT / HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\nContent-Length: 1\r\n\r\n"),
    ("upgrade", b"GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n"),
    ("ipv6 host", b"GET / HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n"),
    ("forty fields", b"GET / HTTP/1.1\r\nHost: a\r\na:1\r\nb:1\r\nc:1\r\nd:1\r\ne:1\r\nf:1\r\ng:1\r\nh:1\r\ni:1\r\nj:1\r\nk:1\r\nl:1\r\nm:1\r\nn:1\r\no:1\r\np:1\r\nq:1\r\nr:1\r\ns:1\r\nt:1\r\nu:1\r\nv:1\r\nw:1\r\nx:1\r\ny:1\r\nz:1\r\na:2\r\nb:2\r\nc:2\r\nd:2\r\ne:2\r\nf:2\r\ng:2\r\nh:2\r\ni:2\r\nj:2\r\nk:2\r\nl:2\r\nm:2\r\n\r\n"),
];

#[test]
fn accepts_well_formed_heads_split_at_every_byte() {
    for (name, bytes) in VALID {
        let whole = accepted(bytes);
        for split in 0..bytes.len() {
            let mut scanner = HeadScanner::new();
            let first = scanner.scan(&bytes[..split], &HeadLimits::default());
            assert_eq!(first, Ok(ParseProgress::Partial), "{name} at {split}");
            let second = scanner.scan(bytes, &HeadLimits::default());
            assert_eq!(
                second,
                Ok(ParseProgress::Complete((whole.clone(), bytes.len()))),
                "{name}"
            );
        }
    }
}

#[test]
fn accepts_well_formed_heads_byte_by_byte() {
    for (name, bytes) in VALID {
        let mut scanner = HeadScanner::new();
        for end in 0..bytes.len() {
            let outcome = scanner.scan(&bytes[..end], &HeadLimits::default());
            assert_eq!(outcome, Ok(ParseProgress::Partial), "{name} at {end}");
        }
        let outcome = scanner.scan(bytes, &HeadLimits::default());
        assert_eq!(
            outcome,
            Ok(ParseProgress::Complete((accepted(bytes), bytes.len()))),
            "{name}"
        );
    }
}

#[test]
fn reads_pipelined_requests_one_after_the_other() {
    let stream: Vec<u8> = VALID
        .iter()
        .flat_map(|(_, bytes)| bytes.iter().copied())
        .collect();
    let mut scanner = HeadScanner::new();
    let mut rest = stream.as_slice();
    for (name, bytes) in VALID {
        match scanner.scan(rest, &HeadLimits::default()) {
            Ok(ParseProgress::Complete((head, consumed))) => {
                assert_eq!((head, consumed), (accepted(bytes), bytes.len()), "{name}");
                rest = &rest[consumed..];
            }
            other => panic!("{name}: {other:?}"),
        }
    }
    assert!(rest.is_empty());
}

#[test]
fn tells_what_was_asked() {
    for (bytes, target, path_query, host) in [
        (
            &b"GET /a?b HTTP/1.1\r\nHost: h:1\r\n\r\n"[..],
            "/a?b",
            "/a?b",
            "h:1",
        ),
        (b"GET / HTTP/1.0\r\n\r\n", "/", "/", ""),
        (b"GET / HTTP/1.0\r\nHost: h\r\n\r\n", "/", "/", "h"),
        (
            b"GET http://h/a?b HTTP/1.1\r\nHost: H:80\r\n\r\n",
            "http://h/a?b",
            "/a?b",
            "h",
        ),
        (b"GET http://h HTTP/1.0\r\n\r\n", "http://h", "/", "h"),
        (
            b"GET http://h:9?q HTTP/1.0\r\n\r\n",
            "http://h:9?q",
            "/?q",
            "h:9",
        ),
        (
            b"\r\nGET http://h?q HTTP/1.0\r\n\r\n",
            "http://h?q",
            "/?q",
            "h",
        ),
        (b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", "*", "*", "h"),
        (
            b"OPTIONS http://h HTTP/1.1\r\nHost: h\r\n\r\n",
            "http://h",
            "*",
            "h",
        ),
        (
            b"CONNECT h:443 HTTP/1.1\r\nHost: h\r\n\r\n",
            "h:443",
            "",
            "h:443",
        ),
    ] {
        let head = accepted(bytes);
        let found = (head.target(), head.target_path_query(), head.host());
        assert_eq!(
            found,
            (target, path_query, host),
            "{}",
            bytes.escape_ascii()
        );
        assert_eq!(head.sent_path_query_bytes(), path_query.as_bytes());
    }
}

#[test]
fn the_target_of_an_absolute_form_wins_over_host() {
    for (target, field, host) in [
        ("http://shop.example/x", "other.example", "shop.example"),
        (
            "http://shop.example:81/x",
            "shop.example",
            "shop.example:81",
        ),
        ("http://shop.example/x", "shop.example:81", "shop.example"),
        ("https://shop.example:/x", "other.example:", "shop.example"),
        ("HTTP://SHOP.example/x", "shop.example", "SHOP.example"),
        ("http://[::1]:/x", "a", "[::1]"),
        ("/x", "shop.example:", "shop.example"),
        ("/x", "[::1]:", "[::1]"),
        ("/x", "shop.example:8080", "shop.example:8080"),
    ] {
        let text = format!("GET {target} HTTP/1.1\r\nA: b\r\nHOST: {field}\r\nC: d\r\n\r\n");
        let head = accepted(text.as_bytes());
        assert_eq!(head.host(), host, "{target} {field}");
        // The field has the same value.
        let hosts: Vec<_> = head.field_values("host").collect();
        assert_eq!(hosts, [host.as_bytes()], "{target} {field}");
        assert_eq!(head.target_path_query(), "/x");
    }
}

#[test]
fn what_no_uri_holds_is_encoded_and_kept_as_sent() {
    for (sent, target, path_query, sent_path_query) in [
        (
            "/gr\u{fc}n/stra\u{df}e?a=\u{65e5}",
            "/gr%C3%BCn/stra%C3%9Fe?a=%E6%97%A5",
            "/gr%C3%BCn/stra%C3%9Fe?a=%E6%97%A5",
            "/gr\u{fc}n/stra\u{df}e?a=\u{65e5}",
        ),
        (
            "/a\"<b>?\"",
            "/a%22%3Cb%3E?%22",
            "/a%22%3Cb%3E?%22",
            "/a\"<b>?\"",
        ),
        (
            "http://h/\u{e9}?%C3%a9",
            "http://h/%C3%A9?%C3%a9",
            "/%C3%A9?%C3%a9",
            "/\u{e9}?%C3%a9",
        ),
        ("http://h?<", "http://h/?%3C", "/?%3C", "/?%3C"),
        (
            "/q?a[]=|{}^`\\",
            "/q?a[]=|{}^`\\",
            "/q?a[]=|{}^`\\",
            "/q?a[]=|{}^`\\",
        ),
    ] {
        let head = accepted(format!("GET {sent} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
        assert_eq!(head.target(), target, "{sent}");
        assert_eq!(head.target_path_query(), path_query, "{sent}");
        let passed_on = head.sent_path_query_bytes();
        assert_eq!(passed_on, sent_path_query.as_bytes(), "{sent}");
        assert_eq!(head.host(), "h", "{sent}");
    }
}

#[test]
fn a_higher_minor_version_is_read_as_the_highest_that_is_spoken() {
    for version in ["1.2", "1.9"] {
        let head = accepted(format!("GET / HTTP/{version}\r\nHost: a\r\n\r\n").as_bytes());
        assert_eq!(head.version(), Version::Http11);
        assert!(head.keep_alive());
    }
}

#[test]
fn gives_fields_in_order_and_by_name() {
    let head = accepted(b"BREW / HTTP/1.1\r\nHost: a\r\nX-A:  1 \r\nEmpty:\r\nx-a: \xff\r\n\r\n");
    assert_eq!((head.method(), head.method_str()), (Method::Other, "BREW"));
    assert_eq!(head.version(), Version::Http11);
    let fields: Vec<_> = head.fields().collect();
    assert_eq!(
        fields,
        [
            ("Host", &b"a"[..]),
            ("X-A", b"1"),
            ("Empty", b""),
            ("x-a", b"\xff")
        ]
    );
    assert_eq!(head.field("x-A"), Some(&b"1"[..]));
    assert_eq!(head.field("empty"), Some(&b""[..]));
    assert_eq!(head.field("absent"), None);
    assert_eq!(
        head.field_values("X-a").collect::<Vec<_>>(),
        [&b"1"[..], b"\xff"]
    );
    assert_eq!(head.field_count(), 4);
}

#[test]
fn debug_output_keeps_credentials_out() {
    let head = accepted(b"GET / HTTP/1.1\r\nHost: a\r\nCookie: secret\r\n\r\n");
    assert!(!format!("{head:?}").contains("secret"));
}

#[test]
fn decides_framing() {
    for (line, expected) in [
        (&b"X: 1"[..], BodyFraming::None),
        (b"Content-Length: 0", BodyFraming::Length(0)),
        (b"content-length: 17 ", BodyFraming::Length(17)),
        (b"Content-Length: 0017", BodyFraming::Length(17)),
        (b"Content-Length: 00", BodyFraming::Length(0)),
        (b"Transfer-Encoding: chunked", BodyFraming::Chunked),
        (b"TRANSFER-ENCODING:\tChunked\t", BodyFraming::Chunked),
    ] {
        assert_eq!(
            accepted(&with_line(line)).framing(),
            expected,
            "{}",
            line.escape_ascii()
        );
    }
}

#[test]
fn decides_persistence() {
    for (version, connection, expected) in [
        ("1.1", "", true),
        ("1.1", "Connection: close\r\n", false),
        ("1.1", "Connection: keep-alive , CLOSE\r\n", false),
        ("1.1", "Connection: x\r\nConnection: close\r\n", false),
        ("1.1", "Connection: closed\r\n", true),
        ("1.1", "Connection: content-length, close\r\n", false),
        ("1.1", "Connection: host\r\n", true),
        ("1.1", "Connection: ,,\r\n", true),
        ("1.0", "", false),
        ("1.0", "Connection: Keep-Alive\r\n", true),
        ("1.0", "Connection: keep-alive, close\r\n", false),
    ] {
        let text = format!("GET / HTTP/{version}\r\nHost: a\r\n{connection}\r\n");
        assert_eq!(
            accepted(text.as_bytes()).keep_alive(),
            expected,
            "{version} {connection:?}"
        );
    }
}

#[test]
fn expects_continue_only_before_a_body_in_http11() {
    for (version, lines, expected) in [
        ("1.1", "Expect: 100-continue\r\nContent-Length: 5\r\n", true),
        (
            "1.1",
            "expect: 100-CONTINUE\r\nTransfer-Encoding: chunked\r\n",
            true,
        ),
        (
            "1.1",
            "Expect: 100-continue\r\nContent-Length: 0\r\n",
            false,
        ),
        ("1.1", "Expect: 100-continue\r\n", false),
        (
            "1.0",
            "Expect: 100-continue\r\nContent-Length: 5\r\n",
            false,
        ),
    ] {
        let text = format!("POST / HTTP/{version}\r\nHost: a\r\n{lines}\r\n");
        assert_eq!(
            accepted(text.as_bytes()).expects_continue(),
            expected,
            "{version} {lines:?}"
        );
    }
}

#[test]
fn an_upgrade_needs_both_fields_and_http11() {
    for (version, lines, expected) in [
        ("1.1", "Connection: upgrade\r\nUpgrade: websocket\r\n", true),
        (
            "1.1",
            "Connection: close, UPGRADE\r\nUpgrade: foo\r\n",
            true,
        ),
        ("1.1", "Upgrade: websocket\r\n", false),
        ("1.1", "Connection: upgrade\r\n", false),
        (
            "1.0",
            "Connection: upgrade\r\nUpgrade: websocket\r\n",
            false,
        ),
    ] {
        let text = format!("GET / HTTP/{version}\r\nHost: a\r\n{lines}\r\n");
        assert_eq!(
            accepted(text.as_bytes()).is_upgrade(),
            expected,
            "{version} {lines:?}"
        );
    }
}

#[test]
fn the_media_type_of_websocket_over_http_is_known_in_any_spelling() {
    for (line, expected) in [
        ("Content-Type: application/websocket-events", true),
        (
            "content-type:\tAPPLICATION/WebSocket-Events; charset=utf-8",
            true,
        ),
        (
            "Content-Type: text/plain, application/websocket-events",
            true,
        ),
        ("Content-Type: \"application/websocket-events\"", true),
        ("Content-Type: wwebsocket-events", true),
        ("ACCEPT: */*, application/websocket-events;q=0.1", true),
        ("Content-Type: application/websocket-event", false),
        ("Content-Type: application/websocket", false),
        ("Accept: image/webp,*/*", false),
        ("Content-Typo: application/websocket-events", false),
        ("X-Accept: application/websocket-events", false),
    ] {
        let text = format!("POST / HTTP/1.1\r\nHost: a\r\n{line}\r\nContent-Length: 0\r\n\r\n");
        let head = accepted(text.as_bytes());
        assert_eq!(head.has_websocket_events(), expected, "{line}");
    }
    let twice = "Content-Type: a/b\r\nContent-Type: application/websocket-events";
    let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{twice}\r\n\r\n");
    assert!(accepted(text.as_bytes()).has_websocket_events());
}

#[test]
fn leaves_what_follows_an_upgrade_or_connect_alone() {
    for first in [
        &b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: foo\r\n\r\n"[..],
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n",
    ] {
        let stream = [first, b"GET /admin HTTP/1.1\r\nHost: a\r\n\r\n"].concat();
        match parse(&stream) {
            Ok(ParseProgress::Complete((_, consumed))) => assert_eq!(consumed, first.len()),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn applies_each_limit_exactly() {
    let limits = HeadLimits {
        max_target_bytes: 8,
        max_head_bytes: 60,
        max_fields: 2,
    };
    for (name, bytes, expected) in [
        (
            "target at the limit",
            &b"GET /2345678 HTTP/1.0\r\n\r\n"[..],
            Ok(()),
        ),
        (
            "target above it",
            b"GET /23456789 HTTP/1.0\r\n\r\n",
            Err(RequestHeadError::TargetTooLong),
        ),
        (
            "fields at the limit",
            b"GET / HTTP/1.0\r\nA: 1\r\nB: 2\r\n\r\n",
            Ok(()),
        ),
        (
            "fields above it",
            b"GET / HTTP/1.0\r\nA: 1\r\nB: 2\r\nC: 3\r\n\r\n",
            Err(RequestHeadError::TooManyFields),
        ),
        ("head at the limit", &sized_head(60), Ok(())),
        (
            "head above it",
            &sized_head(61),
            Err(RequestHeadError::HeadTooLarge),
        ),
        (
            "blank line does not count",
            &[b"\r\n".as_slice(), &sized_head(60)].concat(),
            Ok(()),
        ),
    ] {
        assert_eq!(parse_head(bytes, &limits).map(|_| ()), expected, "{name}");
        let mut scanner = HeadScanner::new();
        let trickled =
            (1..=bytes.len()).try_for_each(|end| scanner.scan(&bytes[..end], &limits).map(|_| ()));
        assert_eq!(trickled, expected, "{name}, byte by byte");
    }
}

/// A head of exactly `bytes` bytes.
fn sized_head(bytes: usize) -> Vec<u8> {
    let start = b"GET / HTTP/1.0\r\nA: ";
    [
        start.as_slice(),
        &b"x".repeat(bytes - start.len() - 4),
        b"\r\n\r\n",
    ]
    .concat()
}

#[test]
fn every_prefix_of_a_valid_head_followed_by_any_byte_never_panics() {
    for (_, bytes) in VALID.iter().take(20) {
        for end in 0..bytes.len() {
            for byte in 0..=255u8 {
                let mut mutated = bytes.to_vec();
                mutated[end] = byte;
                if let Ok(ParseProgress::Complete((head, consumed))) = parse(&mutated) {
                    assert!(consumed <= mutated.len() && head.fields().count() <= 100);
                }
            }
        }
    }
}

#[test]
fn a_scanner_starts_over_after_an_error_or_a_shorter_buffer() {
    let mut scanner = HeadScanner::new();
    let limits = HeadLimits::default();
    assert!(
        scanner
            .scan(b"GET / HTTP/1.1\r\nHost: a\r\nbad line\r\n\r\n", &limits)
            .is_err()
    );
    let (_, smallest) = VALID[0];
    assert_eq!(
        scanner.scan(&smallest[..20], &limits),
        Ok(ParseProgress::Partial)
    );
    assert_eq!(scanner.scan(b"P", &limits), Ok(ParseProgress::Partial));
    let complete = scanner.scan(b"POST / HTTP/1.0\r\n\r\n", &limits);
    assert!(matches!(complete, Ok(ParseProgress::Complete((_, 19)))));
}

#[test]
fn errors_are_answered_with_their_status() {
    for (error, status) in [
        (RequestHeadError::BareLineBreak, 400),
        (RequestHeadError::TargetTooLong, 414),
        (RequestHeadError::ExpectationFailed, 417),
        (RequestHeadError::TooManyFields, 431),
        (RequestHeadError::UnknownCoding, 501),
        (RequestHeadError::VersionNotSupported, 505),
    ] {
        assert_eq!(error.status().code(), status, "{error}");
    }
}

#[test]
fn no_byte_is_searched_twice_however_slowly_a_head_comes() {
    let limits = HeadLimits::default();
    let heads = [
        format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(8_000)),
        format!(
            "GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
            "y".repeat(30_000)
        ),
        format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(99)),
    ];
    for text in heads {
        let (mut scanner, mut searched) = (HeadScanner::new(), 0);
        for end in 1..text.len() {
            // A call may search only bytes not searched before.
            searched += end - scanner.scanned;
            let scanned = scanner.scan(&text.as_bytes()[..end], &limits);
            assert_eq!(scanned, Ok(ParseProgress::Partial), "{end}");
        }
        assert!(searched <= 2 * text.len(), "{searched} of {}", text.len());
        assert!(matches!(
            scanner.scan(text.as_bytes(), &limits),
            Ok(ParseProgress::Complete(_))
        ));
    }
}
