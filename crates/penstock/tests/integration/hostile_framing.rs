//! Bodies that two readers could delimit differently: classic request smuggling.
//!
//! Rows as in `hostile_heads`: one refusal, the end of the connection, and neither the request nor
//! the next one reaches the application.

use crate::hostile_heads::{Rows, refuses, server};

/// A POST to `/` with these lines after its Host.
fn post(lines: &str) -> Vec<u8> {
    format!("POST / HTTP/1.1\r\nHost: localhost\r\n{lines}").into_bytes()
}

pub(crate) fn two_ways_to_frame_a_body() -> Rows {
    let chunks = "5\r\nhello\r\n0\r\n\r\n";
    let rows = [
        (
            "length, then coding",
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        ),
        (
            "coding, then length",
            "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
        ),
        (
            "length 0 and coding",
            "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n",
        ),
        (
            "two equal lengths",
            "Content-Length: 5\r\nContent-Length: 5\r\n\r\n",
        ),
        (
            "two lengths",
            "Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        ),
        (
            "length and coding, both named by connection",
            "Connection: content-length, transfer-encoding\r\nContent-Length: 5\r\n\
             Transfer-Encoding: chunked\r\n\r\n",
        ),
        (
            "two lengths that differ in zeros",
            "Content-Length: 5\r\nContent-Length: 05\r\n\r\n",
        ),
    ];
    rows.map(|(name, lines)| (name, 400, post(&format!("{lines}{chunks}"))))
        .into()
}

#[test]
fn refuses_two_ways_to_frame_a_body() {
    refuses(&two_ways_to_frame_a_body());
}

pub(crate) fn doubtful_lengths() -> Rows {
    let values: [&[u8]; 26] = [
        b"",
        b"5,5",
        b"5, 6",
        b"5 5",
        b"+5",
        b"-5",
        b"-0",
        b"0x5",
        b"5_0",
        b"5e0",
        b"5.0",
        b"0 5",
        b"9223372036854775808",
        b"0009223372036854775808",
        b"18446744073709551621",
        b"99999999999999999999999999",
        b"\"5\"",
        b"5;",
        b"\xb2",
        b"five",
        b"5\x0b",
        b"\x0c5",
        b"5\x00",
        b"5\x85",
        b"5\xa0",
        b"\xd9\xa5",
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
    rows
}

#[test]
fn refuses_every_length_that_is_not_one_plain_number() {
    refuses(&doubtful_lengths());
}

pub(crate) fn other_codings() -> Rows {
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
        (
            400,
            b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        ),
        (
            400,
            b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        ),
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
            (
                "a coding",
                *status,
                [post("").as_slice(), line, body].concat(),
            )
        })
        .collect();
    let old = "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    rows.push(("chunked in HTTP/1.0", 400, old.into()));
    rows
}

#[test]
fn refuses_every_coding_but_chunked() {
    refuses(&other_codings());
}

pub(crate) fn doubtful_chunks() -> Rows {
    let long = format!("5;{}\r\nhello\r\n0\r\n\r\n", "a".repeat(64 << 10));
    let many = format!(
        "{}0\r\n\r\n",
        "1;aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\nx\r\n".repeat(600)
    );
    let zeros = format!("{}5\r\nhello\r\n0\r\n\r\n", "0".repeat(1000));
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
        (
            "overflow behind zeros",
            "00010000000000000005\r\nhello\r\n0\r\n\r\n",
        ),
        ("many zeros", &zeros),
        (
            "blank between extension and line end",
            "5;a \r\nhello\r\n0\r\n\r\n",
        ),
        ("blank within the size", "0 5\r\nhello\r\n0\r\n\r\n"),
        ("overflow", "fffffffffffffffff\r\nhello\r\n0\r\n\r\n"),
        ("sign bit", "8000000000000000\r\nhello\r\n0\r\n\r\n"),
        ("long extension", &long),
        ("many extensions", &many),
        ("lf in an extension", "5;a\nb\r\nhello\r\n0\r\n\r\n"),
        ("cr in an extension", "5;a\rb\r\nhello\r\n0\r\n\r\n"),
        ("nul in an extension", "5;a\0b\r\nhello\r\n0\r\n\r\n"),
        (
            "lf in a quoted extension",
            "5;a=\"\n\"\r\nhello\r\n0\r\n\r\n",
        ),
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
        ("trailer without a colon", "0\r\nnothing\r\n\r\n"),
        (
            "trailer ended by lf",
            "0\r\nX: y\nGET /behind HTTP/1.1\r\n\r\n",
        ),
        ("trailer with a cr", "0\r\nX: y\rz\r\n\r\n"),
        ("long trailers", &trailers),
    ];
    let head = "Transfer-Encoding: chunked\r\n\r\n";
    rows.map(|(name, body)| (name, 400, post(&format!("{head}{body}"))))
        .into()
}

#[test]
fn refuses_chunks_that_are_not_exactly_what_they_say() {
    refuses(&doubtful_chunks());
}

#[test]
fn an_unfinished_body_never_reaches_the_application() {
    let server = server();
    for (name, lines) in [
        ("length", "Content-Length: 10\r\n\r\nhello"),
        ("chunk size", "Transfer-Encoding: chunked\r\n\r\n5"),
        ("chunk", "Transfer-Encoding: chunked\r\n\r\n5\r\nhel"),
        (
            "no last chunk",
            "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        ),
        (
            "no final line",
            "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
        ),
        (
            "half of the final line",
            "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r",
        ),
        (
            "unfinished trailer",
            "Transfer-Encoding: chunked\r\n\r\n0\r\nX: y",
        ),
    ] {
        let mut client = server.connect();
        client.send(post(lines)).close_write();
        assert_eq!(client.read_to_end(), b"", "{name}");
    }
    assert_eq!(server.site().seen(), [""; 0]);
}

pub(crate) fn expectations() -> Rows {
    let values = [
        "y 100-continue",
        "100-continue, 100-continue",
        "100",
        "cookie",
        "100-continue;a",
    ];
    let row = |value| {
        let lines = format!("Content-Length: 5\r\nExpect: {value}\r\n\r\nhello");
        ("an expectation", 417, post(&lines))
    };
    values.map(row).into()
}

#[test]
fn refuses_expectations_that_nobody_can_meet() {
    refuses(&expectations());
}
