//! Requests that two readers could read in two ways are refused, and the connection with them.
//!
//! Each row of the tables is sent with another request right behind it. A refused one is answered
//! once, the connection ends, and neither it nor the one behind reaches the application; what is
//! merely odd is served, and so is the one behind.

use crate::support::{RawClient, Server, Site};

/// A request behind the one in question; nobody may answer it when the first is doubtful.
const BEHIND: &str = "GET /behind HTTP/1.1\r\nHost: localhost\r\n\r\n";

fn server() -> Server {
    let server = Site::with_app().serve(&["--processes", "1"]);
    server.wait_ready("site");
    server
}

/// Sends each row and [`BEHIND`]; expects one answer with that status, the end, and an application
/// that saw nothing.
fn refuses(rows: &[(&str, u16, Vec<u8>)]) {
    let server = server();
    for (name, status, bytes) in rows {
        let start = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]);
        let name = format!("{name}: {start:?}");
        let mut client = RawClient::connect(server.port());
        // A refusal may come, and the connection end, before all of it is taken.
        let _ = client.try_send([bytes.as_slice(), BEHIND.as_bytes()].concat());
        let response = client.try_response(false).unwrap_or_else(|e| panic!("{name}: {e:?}"));
        assert_eq!(response.status, *status, "{name}: {}", response.text());
        assert_eq!(response.header("connection"), Some("close"), "{name}");
        let rest = client.read_to_end();
        assert!(rest.is_empty(), "{name}: answered more: {}", String::from_utf8_lossy(&rest));
        assert_eq!(server.site().seen(), [""; 0], "{name}: reached the application");
    }
    assert_eq!(server.get("/alive").status, 200);
}

/// A POST to `/` with these lines behind its Host.
fn post(lines: &str) -> Vec<u8> {
    format!("POST / HTTP/1.1\r\nHost: localhost\r\n{lines}").into_bytes()
}

/// A GET with this line behind its Host.
fn with_line(line: &[u8]) -> Vec<u8> {
    [b"GET / HTTP/1.1\r\nHost: localhost\r\n", line, b"\r\n\r\n"].concat()
}

#[test]
fn refuses_two_ways_to_frame_a_body() {
    let chunks = "5\r\nhello\r\n0\r\n\r\n";
    let rows = [
        ("length, then coding", "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ("coding, then length", "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n"),
        ("length 0 and coding", "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n"),
        ("two equal lengths", "Content-Length: 5\r\nContent-Length: 5\r\n\r\n"),
        ("two lengths", "Content-Length: 5\r\nContent-Length: 6\r\n\r\n"),
        ("connection: content-length", "Connection: content-length\r\nContent-Length: 5\r\n\r\n"),
        (
            "connection: transfer-encoding",
            "Connection: close, Transfer-Encoding\r\nTransfer-Encoding: chunked\r\n\r\n",
        ),
        ("connection: host", "Connection: host\r\nContent-Length: 0\r\n\r\n"),
    ];
    refuses(&rows.map(|(name, lines)| (name, 400, post(&format!("{lines}{chunks}")))));
}

#[test]
fn refuses_every_length_that_is_not_one_plain_number() {
    let values: [&[u8]; 27] = [
        b"", b"5,5", b"5, 6", b"5 5", b"+5", b"-5", b"-0", b"0x5", b"5_0", b"5e0", b"5.0", b"0 5",
        b"005", b"00", b"9223372036854775808", b"18446744073709551621", b"99999999999999999999999999",
        b"\"5\"", b"5;", b"\xb2", b"five", b"5\x0b", b"\x0c5", b"5\x00", b"5\x85", b"5\xa0", b"\xd9\xa5",
    ];
    let mut rows: Vec<_> = values
        .iter()
        .map(|value| {
            let line = [b"Content-Length: ", *value, b"\r\n\r\nhello"].concat();
            ("a length", 400, [post("").as_slice(), &line].concat())
        })
        .collect();
    let names: [(&str, &[u8]); 8] = [
        ("space before the colon", b"Content-Length : 5"),
        ("tab before the colon", b"Content-Length\t: 5"),
        ("nul before the colon", b"Content-Length\x00: 5"),
        ("nel before the colon", b"Content-Length\x85: 5"),
        ("no-break space before the colon", b"Content-Length\xa0: 5"),
        ("soft hyphen in the name", b"Content-\xadLength: 5"),
        ("wrapped value", b"Content-Length:\r\n 5"),
        ("bare lf behind the value", b"Content-Length: 5\nX: y"),
    ];
    for (name, line) in names {
        let end = b"\r\n\r\nhello";
        rows.push((name, 400, [post("").as_slice(), line, end].concat()));
    }
    refuses(&rows);
}

#[test]
fn refuses_every_coding_but_chunked() {
    let rows: [(u16, &[u8]); 24] = [
        (501, b"Transfer-Encoding: xchunked"),
        (501, b"Transfer-Encoding: identity"),
        (501, b"Transfer-Encoding: gzip"),
        (501, b"Transfer-Encoding: chunk"),
        (400, b"Transfer-Encoding: identity, chunked"),
        (400, b"Transfer-Encoding: gzip, chunked"),
        (400, b"Transfer-Encoding: chunked, chunked"),
        (400, b"Transfer-Encoding: chunked, identity"),
        (400, b"Transfer-Encoding: , chunked"),
        (400, b"Transfer-Encoding: chunked,"),
        (400, b"Transfer-Encoding: \x0bchunked"),
        (400, b"Transfer-Encoding: chunked\x0b"),
        (400, b"Transfer-Encoding: \xa0chunked"),
        (400, b"Transfer-Encoding: \"chunked\""),
        (501, b"Transfer-Encoding: 'chunked'"),
        (400, b"Transfer-Encoding: chunked;q=1"),
        (400, b"Transfer-Encoding:"),
        (400, b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"),
        (400, b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity"),
        (400, b"Transfer-Encoding:\r\n chunked"),
        (400, b"Transfer-Encoding : chunked"),
        (400, b"Transfer-Encoding\r: chunked"),
        (400, b"\rTransfer-Encoding: chunked"),
        (400, b" Transfer-Encoding: chunked"),
    ];
    let mut rows: Vec<_> = rows
        .iter()
        .map(|(status, line)| {
            let body = b"\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
            ("a coding", *status, [post("").as_slice(), line, body].concat())
        })
        .collect();
    let old = "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    rows.push(("chunked in HTTP/1.0", 400, old.into()));
    refuses(&rows);
}

#[test]
fn refuses_chunks_that_are_not_exactly_what_they_say() {
    let long = format!("5;{}\r\nhello\r\n0\r\n\r\n", "a".repeat(64 << 10));
    let many = format!("{}0\r\n\r\n", "1;aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\nx\r\n".repeat(600));
    let trailers = format!("0\r\nX-Trailer: {}\r\n\r\n", "a".repeat(20_000));
    let rows: [(&str, &str); 35] = [
        ("0x", "0x5\r\nhello\r\n0\r\n\r\n"),
        ("plus", "+5\r\nhello\r\n0\r\n\r\n"),
        ("minus", "-5\r\nhello\r\n0\r\n\r\n"),
        ("underscore", "5_0\r\nhello\r\n0\r\n\r\n"),
        ("space before", " 5\r\nhello\r\n0\r\n\r\n"),
        ("space behind", "5 \r\nhello\r\n0\r\n\r\n"),
        ("tab behind", "5\t\r\nhello\r\n0\r\n\r\n"),
        ("no size", "\r\nhello\r\n0\r\n\r\n"),
        ("no hexadecimal digit", "g\r\nhello\r\n0\r\n\r\n"),
        ("seventeen digits", "00000000000000005\r\nhello\r\n0\r\n\r\n"),
        ("overflow", "fffffffffffffffff\r\nhello\r\n0\r\n\r\n"),
        ("sign bit", "8000000000000000\r\nhello\r\n0\r\n\r\n"),
        ("long extension", &long),
        ("many extensions", &many),
        ("lf in an extension", "5;a\nb\r\nhello\r\n0\r\n\r\n"),
        ("cr in an extension", "5;a\rb\r\nhello\r\n0\r\n\r\n"),
        ("nul in an extension", "5;a\0b\r\nhello\r\n0\r\n\r\n"),
        ("lf in a quoted extension", "5;a=\"\n\"\r\nhello\r\n0\r\n\r\n"),
        ("extension without a name", "5;\r\nhello\r\n0\r\n\r\n"),
        ("data longer than its size", "5\r\nhelloSPILL\r\n0\r\n\r\n"),
        ("data shorter than its size", "7\r\nhello\r\n0\r\n\r\n"),
        ("no line end behind the data", "5\r\nhello0\r\n\r\n"),
        ("lf behind the size", "5\nhello\r\n0\r\n\r\n"),
        ("lf behind the data", "5\r\nhello\n0\r\n\r\n"),
        ("cr behind the size", "5\rhello\r\n0\r\n\r\n"),
        ("cr cr lf behind the size", "5\r\r\nhello\r\n0\r\n\r\n"),
        ("lf behind the last chunk", "0\n\r\n"),
        ("lf at the end", "0\r\n\n"),
        ("trailer content-length", "0\r\nContent-Length: 5\r\n\r\n"),
        ("trailer transfer-encoding", "0\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ("trailer host", "0\r\nHost: other\r\n\r\n"),
        ("trailer without a colon", "0\r\nnothing\r\n\r\n"),
        ("trailer ended by lf", "0\r\nX: y\nGET /behind HTTP/1.1\r\n\r\n"),
        ("trailer with a cr", "0\r\nX: y\rz\r\n\r\n"),
        ("long trailers", &trailers),
    ];
    let head = "Transfer-Encoding: chunked\r\n\r\n";
    refuses(&rows.map(|(name, body)| (name, 400, post(&format!("{head}{body}")))));
}

#[test]
fn an_unfinished_body_never_reaches_the_application() {
    let server = server();
    for (name, lines) in [
        ("length", "Content-Length: 10\r\n\r\nhello"),
        ("chunk size", "Transfer-Encoding: chunked\r\n\r\n5"),
        ("chunk", "Transfer-Encoding: chunked\r\n\r\n5\r\nhel"),
        ("no last chunk", "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"),
        ("no final line", "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n"),
        ("half of the final line", "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r"),
        ("unfinished trailer", "Transfer-Encoding: chunked\r\n\r\n0\r\nX: y"),
    ] {
        let mut client = server.connect();
        client.send(post(lines)).close_write();
        assert_eq!(client.read_to_end(), b"", "{name}");
    }
    assert_eq!(server.site().seen(), [""; 0]);
}

#[test]
fn refuses_malformed_fields() {
    let long_name = [&[b'a'; 300][..], b": b"].concat();
    let long_value = [b"X: ".as_slice(), &[b'a'; 100_000]].concat();
    let many = "A: b\r\n".repeat(5_000);
    let cookies = "Cookie: a=b\r\n".repeat(1_500);
    let rows: [(&str, u16, &[u8]); 23] = [
        ("empty name", 400, b": value"),
        ("no colon", 400, b"nothing"),
        ("space in the name", 400, b"X Y: z"),
        ("8-bit name", 400, b"X\xe4: z"),
        ("parenthesis in the name", 400, b"X(: z"),
        ("bracket in the name", 400, b"X[]: z"),
        ("quote in the name", 400, b"\"X\": z"),
        ("nul in the name", 400, b"X\x00: z"),
        ("control byte in the name", 400, b"X\x07: z"),
        ("space before the colon", 400, b"X : z"),
        ("folded by a space", 400, b"X: y\r\n z"),
        ("folded by a tab", 400, b"X: y\r\n\tz"),
        ("first field begins with a space", 400, b" X: y"),
        ("nul in a value", 400, b"X: a\x00b"),
        ("bare cr in a value", 400, b"X: a\rb"),
        ("bare lf in a value", 400, b"X: a\nb: c"),
        ("cr cr lf", 400, b"X: a\r\r\nY: z"),
        ("control byte in a value", 400, b"X: a\x01b"),
        ("del in a value", 400, b"X: a\x7fb"),
        ("long name", 431, &long_name),
        ("long value", 431, &long_value),
        ("5,000 fields", 431, many.as_bytes()),
        ("1,500 cookies", 431, cookies.as_bytes()),
    ];
    refuses(&rows.map(|(name, status, line)| (name, status, with_line(line))));
}

#[test]
fn refuses_a_host_that_is_not_exactly_one() {
    let rows: [(&str, &[u8]); 17] = [
        ("missing", b"GET / HTTP/1.1\r\n\r\n"),
        ("twice the same", b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"),
        ("twice", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
        ("list", b"GET / HTTP/1.1\r\nHost: a, b\r\n\r\n"),
        ("user", b"GET / HTTP/1.1\r\nHost: u@a\r\n\r\n"),
        ("path", b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n"),
        ("fragment", b"GET / HTTP/1.1\r\nHost: a#b\r\n\r\n"),
        ("nul", b"GET / HTTP/1.1\r\nHost: a\x00b\r\n\r\n"),
        ("empty", b"GET / HTTP/1.1\r\nHost: \r\n\r\n"),
        ("8-bit", b"GET / HTTP/1.1\r\nHost: \xe4\r\n\r\n"),
        ("port of letters", b"GET / HTTP/1.1\r\nHost: a:x\r\n\r\n"),
        ("port too large", b"GET / HTTP/1.1\r\nHost: a:65536\r\n\r\n"),
        ("empty port", b"GET / HTTP/1.1\r\nHost: a:\r\n\r\n"),
        ("two ports", b"GET / HTTP/1.1\r\nHost: a:1:2\r\n\r\n"),
        ("other than the target's", b"GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("other port than the target's", b"GET http://a:81/ HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("user in the target", b"GET http://u@a/ HTTP/1.1\r\nHost: a\r\n\r\n"),
    ];
    refuses(&rows.map(|(name, bytes)| (name, 400, bytes.to_vec())));
}

#[test]
fn refuses_malformed_request_lines() {
    let long_target = format!("/{}", "a".repeat(100_000));
    let long_method = "A".repeat(100_000);
    let rows: [(&str, u16, &[u8]); 37] = [
        ("asterisk with GET", 400, b"GET * HTTP/1.1"),
        ("relative", 400, b"GET index.html HTTP/1.1"),
        ("authority form", 400, b"GET localhost:80 HTTP/1.1"),
        ("fragment", 400, b"GET /a#b HTTP/1.1"),
        ("space", 400, b"GET /a b HTTP/1.1"),
        ("two spaces", 400, b"GET  / HTTP/1.1"),
        ("space at the end", 400, b"GET / HTTP/1.1 "),
        ("tab for a space", 400, b"GET\t/\tHTTP/1.1"),
        ("tab in the target", 400, b"GET /a\tb HTTP/1.1"),
        ("nul in the target", 400, b"GET /a\x00b HTTP/1.1"),
        ("cr in the target", 400, b"GET /a\rb HTTP/1.1"),
        ("8-bit target", 400, b"GET /\xe4 HTTP/1.1"),
        ("encoded nul", 400, b"GET /%00 HTTP/1.1"),
        ("encoded line break", 400, b"GET /%0d%0aX:%20y HTTP/1.1"),
        ("no digits behind %", 400, b"GET /%zz HTTP/1.1"),
        ("nothing behind %", 400, b"GET /% HTTP/1.1"),
        ("above the root", 400, b"GET /../etc/passwd HTTP/1.1"),
        ("above the root, encoded", 400, b"GET /%2e%2e/etc/passwd HTTP/1.1"),
        ("empty target", 400, b"GET  HTTP/1.1"),
        ("HTTP/9.9", 505, b"GET / HTTP/9.9"),
        ("HTTP/1.2", 505, b"GET / HTTP/1.2"),
        ("HTTP/2.0", 505, b"GET / HTTP/2.0"),
        ("HTTP/1.10", 400, b"GET / HTTP/1.10"),
        ("HTTP/01.1", 400, b"GET / HTTP/01.1"),
        ("http/1.1", 400, b"GET / http/1.1"),
        ("HTTP/ 1.1", 400, b"GET / HTTP/ 1.1"),
        ("HTTP/1,1", 400, b"GET / HTTP/1,1"),
        ("HTTP/0.9", 505, b"GET / HTTP/0.9"),
        ("no version", 400, b"GET /"),
        ("empty method", 400, b" / HTTP/1.1"),
        ("control byte in the method", 400, b"GE\x07T / HTTP/1.1"),
        ("no token", 400, b"\":<>(e),[T];? / HTTP/1.1"),
        ("TLS", 400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
        ("SSH", 400, b"SSH-2.0-OpenSSH_9.2"),
        ("PROXY v1", 400, b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2"),
        ("PROXY v2", 400, b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c"),
        ("blank lines", 400, b"\r\n\r\nGET / HTTP/1.1"),
    ];
    let host = b"\r\nHost: localhost\r\n\r\n".as_slice();
    let mut rows: Vec<_> = rows
        .iter()
        .map(|(name, status, line)| (*name, *status, [*line, host].concat()))
        .collect();
    rows.push(("HTTP/2", 505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()));
    rows.push(("bare lf", 400, b"GET / HTTP/1.1\nHost: localhost\n\n".to_vec()));
    rows.push(("long target", 414, format!("GET {long_target} HTTP/1.1").into_bytes()));
    rows.push(("long method", 501, format!("{long_method} / HTTP/1.1").into_bytes()));
    refuses(&rows);
}

#[test]
fn refuses_expectations_that_nobody_can_meet() {
    let values = ["y 100-continue", "100-continue, 100-continue", "100", "cookie", "100-continue;a"];
    let row = |value| {
        let lines = format!("Content-Length: 5\r\nExpect: {value}\r\n\r\nhello");
        ("an expectation", 417, post(&lines))
    };
    refuses(&values.map(row));
}

#[test]
fn serves_what_is_merely_odd() {
    let server = server();
    let lower = "get / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let rows: [(&str, &str); 24] = [
        ("plain", "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("one blank line before", "\r\nGET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("no space behind the colon", "GET / HTTP/1.1\r\nHost:localhost\r\n\r\n"),
        ("blanks around a value", "GET / HTTP/1.1\r\nHost: \t localhost \t \r\n\r\n"),
        ("upper-case name", "GET / HTTP/1.1\r\nHOST: localhost\r\n\r\n"),
        ("empty value", "GET / HTTP/1.1\r\nHost: localhost\r\nX:\r\n\r\n"),
        ("8-bit value", "GET / HTTP/1.1\r\nHost: localhost\r\nX: \u{e4}\r\n\r\n"),
        ("host with a port", "GET / HTTP/1.1\r\nHost: localhost:8080\r\n\r\n"),
        ("IPv6 host", "GET / HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n"),
        ("absolute form", "GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("absolute form, port 80", "GET http://a:80/ HTTP/1.1\r\nHost: A\r\n\r\n"),
        ("absolute form without a path", "GET http://a HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("unknown method", "BREW / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("lower-case method", lower),
        ("double slash", "GET //host/path HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("dots below the root", "GET /a/../b/./c HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("encoded slash", "GET /a%2fb HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("backslash", "GET /a%5c..%5cb HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("length 0", "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"),
        (
            "upper-case coding and size",
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: CHUNKED\r\n\r\nA;x=\"y\"\r\n\
             0123456789\r\n0\r\nX-Sum: 1\r\n\r\n",
        ),
        (
            "an upgrade that nobody takes",
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: foo\r\n\r\n",
        ),
        (
            "HTTP/2 offered",
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\
             HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n",
        ),
        (
            "a websocket of version 777",
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 777\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
        ),
        (
            "many codings accepted",
            "GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip,deflate,br;q=0.1,*;q=0\r\n\r\n",
        ),
    ];
    for (name, request) in rows {
        let mut client = server.connect();
        client.send(format!("{request}{BEHIND}"));
        let first = client.response();
        assert_eq!(first.status, 200, "{name}: {}", first.text());
        let second = client.response();
        assert!(second.text().starts_with("GET /behind 0 "), "{name}: {}", second.text());
    }
}

#[test]
fn the_outcome_does_not_depend_on_how_the_bytes_were_split() {
    let server = server();
    let good = b"POST /s HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
                 5;x=y\r\nhello\r\n0\r\nX: y\r\n\r\n";
    let bad = b"POST /s HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\n0\r\n\r\n";
    for (request, status) in [(good.as_slice(), 200), (bad.as_slice(), 400)] {
        for at in 1..request.len() {
            let mut client = server.connect();
            client.send(&request[..at]);
            // The second part comes, as far as this side can tell, in a packet of its own.
            client.send(&request[at..]);
            let response = client.response();
            assert_eq!(response.status, status, "split at {at}: {}", response.text());
        }
    }
    let seen = server.site().seen();
    assert_eq!(seen.len(), good.len() - 1);
    assert!(seen.iter().all(|line| line == "POST /s 5"), "{seen:?}");
}
