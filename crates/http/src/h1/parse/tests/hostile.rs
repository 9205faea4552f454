//! The head parser with published attacks on request framing and heads.
//!
//! A row has the name of the attack, its bytes and the status of the response. Every row is also
//! parsed byte by byte, and must be refused in either case.

use super::*;

/// The status for bytes that must be refused, 0 if they are accepted.
fn refusal(bytes: &[u8]) -> u16 {
    parse(bytes).err().map_or(0, |error| error.status().code())
}

fn check_refusals(rows: &[(&str, &[u8], u16)]) {
    for (name, bytes, status) in rows {
        assert_eq!(refusal(bytes), *status, "{name}: {}", bytes.escape_ascii());
        // The same result byte by byte.
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

fn check_line_refusals(rows: &[(&str, &[u8], u16)]) {
    for (name, line, status) in rows {
        check_refusals(&[(name, &with_line(line), *status)]);
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
        (
            "zeros in two fields",
            b"Content-Length: 5\r\nContent-Length: 005",
            400,
        ),
        (
            "2^63 behind zeros",
            b"Content-Length: 0009223372036854775808",
            400,
        ),
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
fn refuses_malformed_connection_options() {
    check_line_refusals(&[
        ("not a token", b"Connection: close;", 400),
        ("quoted", b"Connection: \"close\"", 400),
    ]);
}

#[test]
fn connection_options_that_name_framing_have_no_effect() {
    for line in [
        &b"Connection: close, Content-Length\r\nContent-Length: 5"[..],
        b"Connection: HOST\r\nContent-Length: 5",
        b"Connection: keep-alive\r\nConnection: transfer-encoding,content-length\r\n\
          Content-Length: 5",
    ] {
        let head = accepted(&with_line(line));
        assert_eq!(head.framing(), BodyFraming::Length(5));
        assert_eq!(head.host(), "a");
        // No upstream server is to remove a field.
        assert!(
            !head.has_other_connection_options(),
            "{}",
            line.escape_ascii()
        );
    }
    let chunked = b"Connection: transfer-encoding\r\nTransfer-Encoding: chunked";
    let head = accepted(&with_line(chunked));
    assert_eq!(head.framing(), BodyFraming::Chunked);
    let both = b"Connection: content-length\r\nContent-Length: 5\r\nTransfer-Encoding: chunked";
    check_line_refusals(&[("and both framings", both, 400)]);
    // Removing a forwarding field is harmless: the proxy sets it itself afterwards.
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
        ("empty port twice", b"a::"),
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
            "malformed behind absolute form",
            b"GET http://a/ HTTP/1.1\r\nHost: u@b\r\n\r\n",
            400,
        ),
        (
            "twice behind absolute form",
            b"GET http://a/ HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
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
        ("raw text for a host", "GET", "http://\u{e4}/".as_bytes()),
        ("quote for a host", "GET", b"http://a\"/"),
        ("raw text without a slash", "GET", "\u{e4}/".as_bytes()),
        ("tab", "GET", b"/a\tb"),
        ("nul", "GET", b"/a\0b"),
        ("cr", "GET", b"/a\rb"),
        ("vertical tab", "GET", b"/a\x0bb"),
        ("del", "GET", b"/a\x7fb"),
        ("8-bit", "GET", b"/\xe4"),
        ("8-bit among text", "GET", b"/\xc3\xa4?\xa0"),
        ("half of a surrogate", "GET", b"/\xed\xa0\x80"),
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
        ("0.9", b"GET / HTTP/0.9", 505),
        ("http/2 preface", b"PRI * HTTP/2.0", 505),
        ("1.10", b"GET / HTTP/1.10", 400),
        ("01.1", b"GET / HTTP/01.1", 400),
        ("lower case", b"GET / http/1.1", 400),
        ("no version", b"GET /", 400),
        ("no version, space", b"GET / ", 400),
        ("1.", b"GET / HTTP/1.", 400),
        ("1.a", b"GET / HTTP/1.a", 400),
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
        (
            "tls hello",
            &b"\x16\x03\x01"[..],
            RequestHeadError::TlsHello,
        ),
        ("ssh", b"SSH-2.0-x", RequestHeadError::SshBanner),
        (
            "proxy v1",
            b"PROXY TCP4 1.2.3.4",
            RequestHeadError::ProxyPreamble,
        ),
        (
            "proxy v2",
            b"\r\n\r\n\0\r\nQUIT\n",
            RequestHeadError::BlankLines,
        ),
        (
            "http/2",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            RequestHeadError::Http2Preface,
        ),
        ("binary", b"\x80\x9e\x01\x03", RequestHeadError::BadMethod),
        ("json", b"{\"a\"", RequestHeadError::BadMethod),
    ] {
        assert_eq!(parse(bytes), Err(expected), "{name}");
    }
}

#[test]
fn refuses_volume_before_the_head_is_whole() {
    let limits = HeadLimits::default();
    for (name, part, times, expected) in [
        (
            "5,000 fields",
            "a:b\r\n",
            5_000,
            RequestHeadError::TooManyFields,
        ),
        (
            "1,500 cookies",
            "Cookie: a=b\r\n",
            1_500,
            RequestHeadError::TooManyFields,
        ),
        (
            "100 KB field",
            "ab:c",
            25_000,
            RequestHeadError::HeadTooLarge,
        ),
    ] {
        let bytes = format!("GET / HTTP/1.1\r\n{}", part.repeat(times)).into_bytes();
        assert_eq!(parse_head(&bytes, &limits), Err(expected), "{name}");
        let mut scanner = HeadScanner::new();
        let refused = bytes.len().min(40_000);
        let early = (1..refused).find_map(|end| scanner.scan(&bytes[..end], &limits).err());
        assert_eq!(early, Some(expected), "{name}, byte by byte");
    }
}
