//! Ambiguous requests are refused, and the connection closes.
//!
//! Each row is sent with another request right behind it. A refused one gets one response, the
//! connection ends, and neither request reaches the application; a merely unusual one is served,
//! and so is the next. This file has request lines and fields; `hostile_framing` has body framing.

use crate::support::{RawClient, Server, Site};

/// The rows of a table: name, expected status, bytes.
pub(crate) type Rows = Vec<(&'static str, u16, Vec<u8>)>;

/// The request after the tested one; it must get no response if the first is ambiguous.
pub(crate) const BEHIND: &str = "GET /behind HTTP/1.1\r\nHost: localhost\r\n\r\n";

pub(crate) fn server() -> Server {
    let server = Site::with_app().serve(&["--processes", "1"]);
    server.wait_ready("site");
    server
}

/// Sends each row and [`BEHIND`]; expects one response with that status, the end, and that nothing
/// reached the application.
pub(crate) fn refuses(rows: &[(&str, u16, Vec<u8>)]) {
    let server = server();
    for (name, status, bytes) in rows {
        let start = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]);
        let name = format!("{name}: {start:?}");
        let mut client = RawClient::connect(server.port());
        // A refusal may come, and the connection end, before everything is sent.
        let _ = client.try_send([bytes.as_slice(), BEHIND.as_bytes()].concat());
        let response = client
            .try_response(false)
            .unwrap_or_else(|e| panic!("{name}: {e:?}"));
        assert_eq!(response.status, *status, "{name}: {}", response.text());
        assert_eq!(response.header("connection"), Some("close"), "{name}");
        let rest = client.read_to_end();
        assert!(
            rest.is_empty(),
            "{name}: answered more: {}",
            String::from_utf8_lossy(&rest)
        );
        assert_eq!(
            server.site().seen(),
            [""; 0],
            "{name}: reached the application"
        );
    }
    assert_eq!(server.get("/alive").status, 200);
}

/// A GET with this line after its Host.
fn with_line(line: &[u8]) -> Vec<u8> {
    [b"GET / HTTP/1.1\r\nHost: localhost\r\n", line, b"\r\n\r\n"].concat()
}

pub(crate) fn malformed_fields() -> Rows {
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
    rows.map(|(name, status, line)| (name, status, with_line(line)))
        .into()
}

#[test]
fn refuses_malformed_fields() {
    refuses(&malformed_fields());
}

pub(crate) fn doubtful_hosts() -> Rows {
    let rows: [(&str, &[u8]); 16] = [
        ("missing", b"GET / HTTP/1.1\r\n\r\n"),
        (
            "twice the same",
            b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        ),
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
        ("two ports", b"GET / HTTP/1.1\r\nHost: a:1:2\r\n\r\n"),
        (
            "missing beside the target's",
            b"GET http://a/ HTTP/1.1\r\n\r\n",
        ),
        (
            "malformed beside the target's",
            b"GET http://a/ HTTP/1.1\r\nHost: a/b\r\n\r\n",
        ),
        (
            "user in the target",
            b"GET http://u@a/ HTTP/1.1\r\nHost: a\r\n\r\n",
        ),
    ];
    rows.map(|(name, bytes)| (name, 400, bytes.to_vec())).into()
}

#[test]
fn refuses_a_host_that_is_not_exactly_one() {
    refuses(&doubtful_hosts());
}

pub(crate) fn malformed_request_lines() -> Rows {
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
        (
            "above the root, encoded",
            400,
            b"GET /%2e%2e/etc/passwd HTTP/1.1",
        ),
        ("dots between backslashes", 400, b"GET /a%5c..%5cb HTTP/1.1"),
        ("empty target", 400, b"GET  HTTP/1.1"),
        ("HTTP/9.9", 505, b"GET / HTTP/9.9"),
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
    rows.push((
        "bare lf",
        400,
        b"GET / HTTP/1.1\nHost: localhost\n\n".to_vec(),
    ));
    rows.push((
        "long target",
        414,
        format!("GET {long_target} HTTP/1.1").into_bytes(),
    ));
    rows.push((
        "long method",
        501,
        format!("{long_method} / HTTP/1.1").into_bytes(),
    ));
    rows
}

#[test]
fn refuses_malformed_request_lines() {
    refuses(&malformed_request_lines());
}

#[test]
fn serves_what_is_merely_odd() {
    let server = server();
    let many = ["gzip;q=0.1"; 1_000].join(",");
    let many = format!("GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: {many}\r\n\r\n");
    let most = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "A: b\r\n".repeat(99));
    let rows: [(&str, &str); 36] = [
        ("plain", "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        (
            "one blank line before",
            "\r\nGET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ),
        (
            "no space behind the colon",
            "GET / HTTP/1.1\r\nHost:localhost\r\n\r\n",
        ),
        (
            "blanks around a value",
            "GET / HTTP/1.1\r\nHost: \t localhost \t \r\n\r\n",
        ),
        (
            "upper-case name",
            "GET / HTTP/1.1\r\nHOST: localhost\r\n\r\n",
        ),
        (
            "empty value",
            "GET / HTTP/1.1\r\nHost: localhost\r\nX:\r\n\r\n",
        ),
        (
            "8-bit value",
            "GET / HTTP/1.1\r\nHost: localhost\r\nX: \u{e4}\r\n\r\n",
        ),
        (
            "host with a port",
            "GET / HTTP/1.1\r\nHost: localhost:8080\r\n\r\n",
        ),
        ("IPv6 host", "GET / HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n"),
        (
            "absolute form",
            "GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ),
        (
            "absolute form, port 80",
            "GET http://a:80/ HTTP/1.1\r\nHost: A\r\n\r\n",
        ),
        (
            "absolute form without a path",
            "GET http://a HTTP/1.1\r\nHost: a\r\n\r\n",
        ),
        (
            "absolute form of another host",
            "GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n",
        ),
        (
            "absolute form of another port",
            "GET http://a:81/ HTTP/1.1\r\nHost: a\r\n\r\n",
        ),
        ("empty port", "GET / HTTP/1.1\r\nHost: a:\r\n\r\n"),
        (
            "empty port in the target",
            "GET http://a:/ HTTP/1.1\r\nHost: a\r\n\r\n",
        ),
        (
            "a higher minor version",
            "GET / HTTP/1.2\r\nHost: a\r\n\r\n",
        ),
        (
            "raw text in the target",
            "GET /gr\u{fc}n/\"<a>\"?b={\u{65e5}}|^`\\[] HTTP/1.1\r\nHost: a\r\n\r\n",
        ),
        (
            "a length with leading zeros",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 005\r\n\r\nhello",
        ),
        (
            "connection options that name framing",
            "POST / HTTP/1.1\r\nHost: a\r\nConnection: content-length, Host\r\n\
             Content-Length: 5\r\n\r\nhello",
        ),
        (
            "the coding named by connection",
            "POST / HTTP/1.1\r\nHost: a\r\nConnection: transfer-encoding\r\n\
             Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        ),
        (
            "zeros before a chunk size and blanks around its extensions",
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
             00000000000000000000005 ; a = \"b\"\t;c\r\nhello\r\n000\r\n\r\n",
        ),
        (
            "trailers that nobody may send",
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\
             Content-Length: 50\r\nHost: other\r\nTransfer-Encoding: chunked\r\n\r\n",
        ),
        (
            "unknown method",
            "BREW / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ),
        (
            "lower-case method",
            "get / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ),
        (
            "double slash",
            "GET //host/path HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ),
        (
            "dots below the root",
            "GET /a/../b/./c HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ),
        (
            "encoded slash",
            "GET /a%2fb HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ),
        (
            "backslash",
            "GET /a%5cb HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ),
        (
            "length 0",
            "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n",
        ),
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
        ("1,000 codings accepted", &many),
        ("as many fields as may be", &most),
    ];
    for (name, request) in rows {
        let mut client = server.connect();
        client.send(format!("{request}{BEHIND}"));
        let first = client.response();
        assert_eq!(first.status, 200, "{name}: {}", first.text());
        let second = client.response();
        assert!(
            second.text().starts_with("GET /behind 0 "),
            "{name}: {}",
            second.text()
        );
    }
}

#[test]
fn the_outcome_does_not_depend_on_how_the_bytes_were_split() {
    let server = server();
    let good = b"POST /s HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
                 5;x=y\r\nhello\r\n0\r\nX: y\r\n\r\n";
    let bad =
        b"POST /s HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\n0\r\n\r\n";
    for (request, status) in [(good.as_slice(), 200), (bad.as_slice(), 400)] {
        for at in 1..request.len() {
            let mut client = server.connect();
            client.send(&request[..at]);
            // The second part arrives, as far as this side can ensure, in its own packet.
            client.send(&request[at..]);
            let response = client.response();
            assert_eq!(
                response.status,
                status,
                "split at {at}: {}",
                response.text()
            );
        }
    }
    let seen = server.site().seen();
    assert_eq!(seen.len(), good.len() - 1);
    assert!(seen.iter().all(|line| line == "POST /s 5"), "{seen:?}");
}

#[test]
fn the_admin_interface_is_as_strict() {
    let server = server();
    for (name, request) in [
        (
            "two framings",
            "POST /stop HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
        ("no host", "POST /stop HTTP/1.1\r\n\r\n"),
        (
            "folded field",
            "POST /stop HTTP/1.1\r\nHost: localhost\r\nX: y\r\n z\r\n\r\n",
        ),
    ] {
        let mut client = RawClient::connect(server.admin_port());
        client.send(request);
        assert_eq!(client.response().status, 400, "{name}");
        client.expect_closed();
    }
    assert_eq!(server.admin_json()["state"], "running");
}
