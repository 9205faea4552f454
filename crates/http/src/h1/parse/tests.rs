//! The head parser against well-formed, hostile and split input.
//!
//! The hostile tables follow the classes of published attacks on request framing and heads; a row
//! names the attack, its bytes and the status it must be answered with.

use super::*;
use crate::head::{BodyFraming, Version};

fn parse(bytes: &[u8]) -> Result<Progress<(RequestHead, usize)>, ParseError> {
    parse_head(bytes, &HeadLimits::default())
}

fn accepted(bytes: &[u8]) -> RequestHead {
    match parse(bytes) {
        Ok(Progress::Complete((head, consumed))) => {
            assert_eq!(consumed, bytes.len(), "{}", bytes.escape_ascii());
            head
        }
        other => panic!("{other:?} for {}", bytes.escape_ascii()),
    }
}

/// The status for bytes that must be refused, 0 when they were not.
fn refusal(bytes: &[u8]) -> u16 {
    parse(bytes).err().map_or(0, |error| error.status().code())
}

fn check_refusals(rows: &[(&str, &[u8], u16)]) {
    for (name, bytes, status) in rows {
        assert_eq!(refusal(bytes), *status, "{name}: {}", bytes.escape_ascii());
        // The same answer when it trickles in.
        let mut scanner = HeadScanner::new();
        let trickled = (1..=bytes.len())
            .find_map(|end| scanner.scan(&bytes[..end], &HeadLimits::default()).err());
        assert!(
            trickled.is_some(),
            "{name}, byte by byte: {}",
            bytes.escape_ascii()
        );
    }
}

/// A GET with one more field line.
fn with_line(line: &[u8]) -> Vec<u8> {
    [b"GET / HTTP/1.1\r\nHost: a\r\n", line, b"\r\n\r\n"].concat()
}

fn check_line_refusals(rows: &[(&str, &[u8], u16)]) {
    for (name, line, status) in rows {
        check_refusals(&[(name, &with_line(line), *status)]);
    }
}

const VALID: &[(&str, &[u8])] = &[
    ("smallest", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("http/1.0 without host", b"GET / HTTP/1.0\r\n\r\n"),
    ("leading blank line", b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("absolute form", b"GET http://a.example:80/b?c HTTP/1.1\r\nHost: A.example\r\n\r\n"),
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
            assert_eq!(first, Ok(Progress::Partial), "{name} at {split}");
            let second = scanner.scan(bytes, &HeadLimits::default());
            assert_eq!(
                second,
                Ok(Progress::Complete((whole.clone(), bytes.len()))),
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
            assert_eq!(outcome, Ok(Progress::Partial), "{name} at {end}");
        }
        let outcome = scanner.scan(bytes, &HeadLimits::default());
        assert_eq!(
            outcome,
            Ok(Progress::Complete((accepted(bytes), bytes.len()))),
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
            Ok(Progress::Complete((head, consumed))) => {
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
        head.field_all("X-a").collect::<Vec<_>>(),
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
fn leaves_what_follows_an_upgrade_or_connect_alone() {
    for first in [
        &b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: foo\r\n\r\n"[..],
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n",
    ] {
        let stream = [first, b"GET /admin HTTP/1.1\r\nHost: a\r\n\r\n"].concat();
        match parse(&stream) {
            Ok(Progress::Complete((_, consumed))) => assert_eq!(consumed, first.len()),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn refuses_every_doubtful_content_length() {
    check_line_refusals(&[
        ("empty", b"Content-Length:", 400),
        ("blank", b"Content-Length: \t ", 400),
        ("equal list", b"Content-Length: 5,5", 400),
        ("list", b"Content-Length: 5, 6", 400),
        (
            "two equal fields",
            b"Content-Length: 5\r\nContent-Length: 5",
            400,
        ),
        ("two fields", b"Content-Length: 5\r\ncontent-length: 6", 400),
        ("plus", b"Content-Length: +5", 400),
        ("minus", b"Content-Length: -5", 400),
        ("hexadecimal", b"Content-Length: 0x5", 400),
        ("underscore", b"Content-Length: 5_0", 400),
        ("exponent", b"Content-Length: 5e0", 400),
        ("fraction", b"Content-Length: 5.0", 400),
        ("inner blank", b"Content-Length: 0 5", 400),
        ("leading zeros", b"Content-Length: 005", 400),
        ("zero twice", b"Content-Length: 00", 400),
        ("2^63", b"Content-Length: 9223372036854775808", 400),
        ("2^64 + 5", b"Content-Length: 18446744073709551621", 400),
        (
            "thirty digits",
            b"Content-Length: 100000000000000000000000000005",
            400,
        ),
        ("letters", b"Content-Length: five", 400),
        ("arabic digit", "Content-Length: \u{665}".as_bytes(), 400),
        ("wrapped", b"Content-Length:\r\n 5", 400),
        ("nul in name", b"Content-Length\0: 5", 400),
        ("tab before colon", b"Content-Length\t: 5", 400),
        ("space before colon", b"Content-Length : 5", 400),
        ("nel before colon", b"Content-Length\x85: 5", 400),
        ("nbsp before colon", b"Content-Length\xc2\xa0: 5", 400),
        (
            "soft hyphen before colon",
            b"Content-Length\xc2\xad: 5",
            400,
        ),
        ("vertical tab in value", b"Content-Length: \x0b5", 400),
        ("nbsp in value", b"Content-Length: 5\xa0", 400),
    ]);
}

#[test]
fn refuses_every_doubtful_transfer_encoding() {
    check_line_refusals(&[
        (
            "with length",
            b"Content-Length: 5\r\nTransfer-Encoding: chunked",
            400,
        ),
        (
            "before length",
            b"Transfer-Encoding: chunked\r\nContent-Length: 5",
            400,
        ),
        (
            "with length zero",
            b"Transfer-Encoding: chunked\r\nContent-Length: 0",
            400,
        ),
        (
            "gzip with length",
            b"Transfer-Encoding: gzip\r\nContent-Length: 5",
            400,
        ),
        ("xchunked", b"Transfer-Encoding: xchunked", 501),
        ("identity", b"Transfer-Encoding: identity", 501),
        ("gzip", b"Transfer-Encoding: gzip", 501),
        (
            "identity, chunked",
            b"Transfer-Encoding: identity, chunked",
            400,
        ),
        ("gzip, chunked", b"Transfer-Encoding: gzip, chunked", 400),
        (
            "chunked, chunked",
            b"Transfer-Encoding: chunked, chunked",
            400,
        ),
        (
            "chunked, identity",
            b"Transfer-Encoding: chunked, identity",
            400,
        ),
        ("leading comma", b"Transfer-Encoding: , chunked", 400),
        ("trailing comma", b"Transfer-Encoding: chunked,", 400),
        (
            "leading vertical tab",
            b"Transfer-Encoding: \x0bchunked",
            400,
        ),
        (
            "trailing vertical tab",
            b"Transfer-Encoding: chunked\x0b",
            400,
        ),
        ("leading nbsp", b"Transfer-Encoding: \xa0chunked", 400),
        ("quoted", b"Transfer-Encoding: \"chunked\"", 400),
        ("parameter", b"Transfer-Encoding: chunked;q=1", 400),
        ("empty", b"Transfer-Encoding:", 400),
        (
            "twice",
            b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            400,
        ),
        (
            "twice, one other",
            b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x",
            400,
        ),
        ("folded", b"Transfer-Encoding:\r\n chunked", 400),
        ("space before colon", b"Transfer-Encoding : chunked", 400),
        ("cr before colon", b"Transfer-Encoding\r: chunked", 400),
        (
            "lf before the name",
            b"X: 1\nTransfer-Encoding: chunked",
            400,
        ),
        (
            "cr before the name",
            b"X: 1\rTransfer-Encoding: chunked",
            400,
        ),
    ]);
    check_refusals(&[
        (
            "http/1.0",
            b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
            400,
        ),
        (
            "http/1.0, gzip",
            b"POST / HTTP/1.0\r\nTransfer-Encoding: gzip\r\n\r\n",
            400,
        ),
    ]);
}

#[test]
fn refuses_connection_options_that_would_strip_framing() {
    check_line_refusals(&[
        ("content-length", b"Connection: close, Content-Length", 400),
        ("transfer-encoding", b"Connection: transfer-encoding", 400),
        ("host", b"Connection: HOST", 400),
        (
            "second field",
            b"Connection: keep-alive\r\nConnection: host",
            400,
        ),
        ("not a token", b"Connection: close;", 400),
        ("quoted", b"Connection: \"close\"", 400),
    ]);
    // Stripping a trust field harms nobody here: the proxy sets those itself afterwards.
    assert!(accepted(&with_line(b"Connection: x-forwarded-for")).keep_alive());
}

#[test]
fn refuses_expectations_other_than_100_continue() {
    check_line_refusals(&[
        ("unknown", b"Expect: 200-ok", 417),
        ("prefixed", b"Expect: y 100-continue", 417),
        ("list", b"Expect: 100-continue, 100-continue", 417),
        (
            "twice",
            b"Expect: 100-continue\r\nExpect: 100-continue",
            417,
        ),
        ("parameter", b"Expect: 100-continue;a=b", 417),
        ("empty", b"Expect:", 417),
    ]);
}

#[test]
fn refuses_malformed_field_lines() {
    check_line_refusals(&[
        ("empty name", b": x", 400),
        ("no colon", b"Name", 400),
        ("no colon, value", b"Name value", 400),
        ("space before colon", b"Name : x", 400),
        ("byte above 7f in name", b"N\xe4me: x", 400),
        ("brackets in name", b"N[a]: x", 400),
        ("parenthesis in name", b"N(a: x", 400),
        ("nul in name", b"N\0: x", 400),
        (
            "name above 256 bytes",
            &[b"N".repeat(257).as_slice(), b": x"].concat(),
            431,
        ),
        (
            "name of 64 KB",
            &[b"N".repeat(65_537).as_slice(), b": x"].concat(),
            431,
        ),
        ("folded with space", b"A: b\r\n c: d", 400),
        ("folded with tab", b"A: b\r\n\tc", 400),
        ("nul in value", b"A: b\0c", 400),
        ("bare cr in value", b"A: b\rc", 400),
        ("bare lf in value", b"A: b\nc: d", 400),
        ("bare lf at line end", b"A: b\nB: c", 400),
        ("cr cr lf", b"A: b\r", 400),
        ("cr before name", b"A: b\r\n\rB: c", 400),
        ("control in value", b"A: \x01", 400),
        ("escape in value", b"A: \x1b[31m", 400),
        ("del in value", b"A: \x7f", 400),
        (
            "field of 100 KB",
            &[b"A: ".as_slice(), &b"b".repeat(100_000)].concat(),
            431,
        ),
    ]);
    check_refusals(&[
        (
            "space in the first field line",
            b"GET / HTTP/1.1\r\n Host: a\r\n\r\n",
            400,
        ),
        ("blank line of lf", b"GET / HTTP/1.1\r\nHost: a\r\n\n", 400),
        ("all lines end in lf", b"GET / HTTP/1.1\nHost: a\n\n", 400),
        (
            "request line ends in lf",
            b"GET / HTTP/1.1\nHost: a\r\n\r\n",
            400,
        ),
        ("lines end in cr", b"GET / HTTP/1.1\rHost: a\r\r\n", 400),
    ]);
}

#[test]
fn refuses_malformed_hosts() {
    for (name, host) in [
        ("list", &b"a, b"[..]),
        ("list without space", b"a,b"),
        ("user", b"user@a"),
        ("user and password", b"u:p@a"),
        ("path", b"a/b"),
        ("fragment", b"a#b"),
        ("query", b"a?b"),
        ("nul", b"a\0"),
        ("empty", b""),
        ("port of letters", b"a:http"),
        ("port too large", b"a:65536"),
        ("port empty", b"a:"),
        ("port signed", b"a:+80"),
        ("port only", b":80"),
        ("two ports", b"a:80:80"),
        ("backslash", b"a\\b"),
        ("percent-encoded", b"a%2fb"),
        ("8-bit", b"\xe4.example"),
        ("open bracket", b"[::1"),
        ("scheme", b"http://a"),
    ] {
        let bytes = [b"GET / HTTP/1.1\r\nHost: ", host, b"\r\n\r\n"].concat();
        check_refusals(&[(name, &bytes, 400)]);
        let bytes = [b"GET / HTTP/1.0\r\nHost: ", host, b"\r\n\r\n"].concat();
        check_refusals(&[(name, &bytes, 400)]);
    }
    check_refusals(&[
        ("missing", b"GET / HTTP/1.1\r\nA: b\r\n\r\n", 400),
        ("no fields", b"GET / HTTP/1.1\r\n\r\n", 400),
        (
            "twice the same",
            b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
            400,
        ),
        (
            "twice different",
            b"GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n",
            400,
        ),
        (
            "missing with absolute form",
            b"GET http://a/ HTTP/1.1\r\n\r\n",
            400,
        ),
        (
            "differs from absolute form",
            b"GET http://a/ HTTP/1.1\r\nHost: b\r\n\r\n",
            400,
        ),
        (
            "port differs",
            b"GET http://a/ HTTP/1.1\r\nHost: a:81\r\n\r\n",
            400,
        ),
        (
            "default port of another scheme",
            b"GET https://a/ HTTP/1.1\r\nHost: a:80\r\n\r\n",
            400,
        ),
    ]);
}

#[test]
fn refuses_malformed_targets() {
    for (name, method, target) in [
        ("asterisk with get", "GET", &b"*"[..]),
        ("asterisk and more", "OPTIONS", b"*/a"),
        ("relative", "GET", b"a/b"),
        ("relative dots", "GET", b"../a"),
        ("authority form", "GET", b"a:443"),
        ("query only", "GET", b"?a"),
        ("fragment", "GET", b"/a#b"),
        ("absolute with fragment", "GET", b"http://a/#b"),
        ("quote", "GET", b"/\"a"),
        ("angle bracket", "GET", b"/<script>"),
        ("tab", "GET", b"/a\tb"),
        ("nul", "GET", b"/a\0b"),
        ("cr", "GET", b"/a\rb"),
        ("vertical tab", "GET", b"/a\x0bb"),
        ("del", "GET", b"/a\x7fb"),
        ("8-bit", "GET", b"/\xe4"),
        ("overlong utf-8", "GET", b"/\xc0\xae\xc0\xae/"),
        ("empty", "GET", b""),
        ("unknown scheme", "GET", b"ftp://a/"),
        ("scheme with one slash", "GET", b"http:/a"),
        ("scheme without authority", "GET", b"http:///a"),
        ("scheme with user", "GET", b"http://u@a/"),
        ("scheme with bad port", "GET", b"http://a:x/"),
        ("scheme relative backslash", "GET", b"http://a\\b/"),
        ("connect without port", "CONNECT", b"a"),
        ("connect to a path", "CONNECT", b"/a"),
        ("connect to a url", "CONNECT", b"http://a:80/"),
        ("connect with user", "CONNECT", b"u@a:80"),
    ] {
        let start = [method.as_bytes(), b" ", target].concat();
        let bytes = [&start, &b" HTTP/1.1\r\nHost: a\r\n\r\n"[..]].concat();
        check_refusals(&[(name, &bytes, 400)]);
    }
    let long = [b"GET /".as_slice(), &b"a".repeat(100_000)].concat();
    check_refusals(&[
        ("100 KB, unfinished", &long, 414),
        (
            "100 KB",
            &[&long, &b" HTTP/1.1\r\nHost: a\r\n\r\n"[..]].concat(),
            414,
        ),
    ]);
}

#[test]
fn refuses_malformed_request_lines_and_versions() {
    for (name, line, status) in [
        ("9.9", &b"GET / HTTP/9.9"[..], 505),
        ("2.0", b"GET / HTTP/2.0", 505),
        ("1.2", b"GET / HTTP/1.2", 505),
        ("0.9", b"GET / HTTP/0.9", 505),
        ("http/2 preface", b"PRI * HTTP/2.0", 505),
        ("1.10", b"GET / HTTP/1.10", 400),
        ("01.1", b"GET / HTTP/01.1", 400),
        ("lower case", b"GET / http/1.1", 400),
        ("no version", b"GET /", 400),
        ("no version, space", b"GET / ", 400),
        ("no digits", b"GET / HTTP/", 400),
        ("space in version", b"GET / HTTP/ 1.1", 400),
        ("space after version", b"GET / HTTP/1.1 ", 400),
        ("tab before version", b"GET /\tHTTP/1.1", 400),
        ("other protocol", b"GET / ICAP/1.1", 400),
        ("two spaces before target", b"GET  / HTTP/1.1", 400),
        ("two spaces after target", b"GET /  HTTP/1.1", 400),
        ("tab after method", b"GET\t/ HTTP/1.1", 400),
        ("space in target", b"GET /a b HTTP/1.1", 400),
        ("leading space", b" GET / HTTP/1.1", 400),
        ("empty method", b"/ HTTP/1.1", 400),
        ("only a method", b"GET", 400),
        ("control in method", b"G\x01T / HTTP/1.1", 400),
        ("nul in method", b"G\0T / HTTP/1.1", 400),
        ("separators in method", b"\":<>(e),[T];? / HTTP/1.1", 400),
        ("8-bit in method", b"G\xcb / HTTP/1.1", 400),
    ] {
        let bytes = [line, b"\r\nHost: a\r\n\r\n"].concat();
        check_refusals(&[(name, &bytes, status)]);
    }
    let long = [&b"M".repeat(100_000)[..], b" / HTTP/1.1\r\nHost: a\r\n\r\n"].concat();
    check_refusals(&[
        ("method of 100 KB", &long, 501),
        (
            "two leading blank lines",
            b"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            400,
        ),
        ("leading lf", b"\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (
            "leading crlf lf",
            b"\r\n\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            400,
        ),
        ("leading cr", b"\rGET / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    ]);
}

#[test]
fn refuses_other_protocols_from_their_first_bytes() {
    for (name, bytes, expected) in [
        ("tls hello", &b"\x16\x03\x01"[..], ParseError::TlsHello),
        ("ssh", b"SSH-2.0-x", ParseError::SshBanner),
        ("proxy v1", b"PROXY TCP4 1.2.3.4", ParseError::ProxyPreamble),
        ("proxy v2", b"\r\n\r\n\0\r\nQUIT\n", ParseError::BlankLines),
        (
            "http/2",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            ParseError::Http2Preface,
        ),
        ("binary", b"\x80\x9e\x01\x03", ParseError::BadMethod),
        ("json", b"{\"a\"", ParseError::BadMethod),
    ] {
        assert_eq!(parse(bytes), Err(expected), "{name}");
    }
}

#[test]
fn applies_each_limit_exactly() {
    let limits = HeadLimits {
        target_bytes: 8,
        header_bytes: 60,
        headers: 2,
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
            Err(ParseError::TargetTooLong),
        ),
        (
            "fields at the limit",
            b"GET / HTTP/1.0\r\nA: 1\r\nB: 2\r\n\r\n",
            Ok(()),
        ),
        (
            "fields above it",
            b"GET / HTTP/1.0\r\nA: 1\r\nB: 2\r\nC: 3\r\n\r\n",
            Err(ParseError::TooManyFields),
        ),
        ("head at the limit", &sized_head(60), Ok(())),
        (
            "head above it",
            &sized_head(61),
            Err(ParseError::HeadTooLarge),
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

/// A head of exactly that many bytes.
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
fn refuses_volume_before_the_head_is_whole() {
    let limits = HeadLimits::default();
    for (name, part, times, expected) in [
        ("5,000 fields", "a:b\r\n", 5_000, ParseError::TooManyFields),
        ("1,500 cookies", "Cookie: a=b\r\n", 1_500, ParseError::TooManyFields),
        ("100 KB field", "ab:c", 25_000, ParseError::HeadTooLarge),
    ] {
        let bytes = format!("GET / HTTP/1.1\r\n{}", part.repeat(times)).into_bytes();
        assert_eq!(parse_head(&bytes, &limits), Err(expected), "{name}");
        let mut scanner = HeadScanner::new();
        let refused = bytes.len().min(40_000);
        let early = (1..refused).find_map(|end| scanner.scan(&bytes[..end], &limits).err());
        assert_eq!(early, Some(expected), "{name}, byte by byte");
    }
}

#[test]
fn every_prefix_of_a_valid_head_followed_by_any_byte_never_panics() {
    for (_, bytes) in VALID.iter().take(20) {
        for end in 0..bytes.len() {
            for byte in 0..=255u8 {
                let mut mutated = bytes.to_vec();
                mutated[end] = byte;
                if let Ok(Progress::Complete((head, consumed))) = parse(&mutated) {
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
        Ok(Progress::Partial)
    );
    assert_eq!(scanner.scan(b"P", &limits), Ok(Progress::Partial));
    let complete = scanner.scan(b"POST / HTTP/1.0\r\n\r\n", &limits);
    assert!(matches!(complete, Ok(Progress::Complete((_, 19)))));
}

#[test]
fn errors_are_answered_with_their_status() {
    for (error, status) in [
        (ParseError::BareLineBreak, 400),
        (ParseError::TargetTooLong, 414),
        (ParseError::ExpectationFailed, 417),
        (ParseError::TooManyFields, 431),
        (ParseError::UnknownCoding, 501),
        (ParseError::VersionNotSupported, 505),
    ] {
        assert_eq!(error.status().code(), status, "{error}");
    }
}
