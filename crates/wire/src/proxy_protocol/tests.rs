//! Tests of the PROXY protocol, both versions in both directions: every header is also cut at every
//! byte.

use super::ProxyProtocolError::*;
use super::*;
use crate::gateway::testing::parse_vector;

/// Parses `input`; the result must be the same byte by byte, and with a request after it.
fn read(input: &[u8]) -> Result<Option<(ProxyHeader, usize)>, ProxyProtocolError> {
    let whole = parse_header(input);
    for cut in 0..input.len() {
        match (parse_header(&input[..cut]), whole) {
            (Ok(None), _) => (),
            // The rest of an invalid header is not needed.
            (Err(early), Err(error)) => assert_eq!(early, error, "cut at {cut}"),
            (early, _) => panic!("{early:?} cut at {cut}, {whole:?} as a whole"),
        }
    }
    let mut more = input.to_vec();
    more.extend_from_slice(b"GET / HTTP/1.1\r\n\r\n");
    if let Ok(Some((_, len))) = whole {
        assert!(len <= input.len());
        assert_eq!(parse_header(&more), whole);
    }
    whole
}

fn tcp(source: &str, destination: &str) -> ProxyHeader {
    ProxyHeader::Tcp {
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
    }
}

#[test]
fn reads_lines_of_version_1() {
    let longest = format!(
        "PROXY TCP6 {0} {0} 65535 65535\r\n",
        "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
    );
    let unknown = format!("PROXY UNKNOWN {0} {0} 65535 65535\r\n", ["f"; 32].concat());
    for (line, expected) in [
        (
            "PROXY TCP4 192.0.2.1 198.51.100.7 56324 443\r\n",
            tcp("192.0.2.1:56324", "198.51.100.7:443"),
        ),
        (
            "PROXY TCP6 2001:db8::1 ::1 0 80\r\n",
            tcp("[2001:db8::1]:0", "[::1]:80"),
        ),
        (
            &longest,
            tcp(
                "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535",
                "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535",
            ),
        ),
        ("PROXY UNKNOWN\r\n", ProxyHeader::Unknown),
        (&unknown, ProxyHeader::Unknown),
    ] {
        let found = read(line.as_bytes());
        assert_eq!(found, Ok(Some((expected, line.len()))), "{line:?}");
    }
}

#[test]
fn refuses_what_is_no_line_of_version_1() {
    let long = format!("PROXY UNKNOWN {}\r\n", "x".repeat(107 - 14 - 1));
    assert_eq!(long.len(), 108);
    let endless = "PROXY UNKNOWN ".to_owned() + &"x".repeat(200);
    for (name, line, expected) in [
        ("http", "POST / HTTP/1.1\r\n", NotProxy),
        ("lower case", "proxy TCP4 1.2.3.4 1.2.3.4 1 2\r\n", NotProxy),
        ("no blank", "PROXYTCP4 1.2.3.4 1.2.3.4 1 2\r\n", NotProxy),
        ("lf alone", "PROXY TCP4 1.2.3.4 1.2.3.4 1 2\n", BadLine),
        ("cr within", "PROXY UNKNOWN \rx\r\n", BadLine),
        ("nul within", "PROXY UNKNOWN \0\r\n", BadLine),
        ("family", "PROXY TCP5 1.2.3.4 1.2.3.4 1 2\r\n", BadLine),
        ("udp", "PROXY UDP4 1.2.3.4 1.2.3.4 1 2\r\n", BadLine),
        ("unknown run on", "PROXY UNKNOWNX\r\n", BadLine),
        ("nothing", "PROXY \r\n", BadLine),
        ("two blanks", "PROXY TCP4  1.2.3.4 1.2.3.4 1 2\r\n", BadLine),
        (
            "a blank at the end",
            "PROXY TCP4 1.2.3.4 1.2.3.4 1 2 \r\n",
            BadLine,
        ),
        ("one port", "PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n", BadLine),
        (
            "a third port",
            "PROXY TCP4 1.2.3.4 1.2.3.4 1 2 3\r\n",
            BadLine,
        ),
        ("v6 in TCP4", "PROXY TCP4 ::1 ::1 1 2\r\n", BadLine),
        ("v4 in TCP6", "PROXY TCP6 1.2.3.4 1.2.3.4 1 2\r\n", BadLine),
        ("a name", "PROXY TCP4 localhost 1.2.3.4 1 2\r\n", BadLine),
        ("octet 256", "PROXY TCP4 1.2.3.256 1.2.3.4 1 2\r\n", BadLine),
        (
            "leading zero",
            "PROXY TCP4 01.2.3.4 1.2.3.4 1 2\r\n",
            BadLine,
        ),
        (
            "port 65536",
            "PROXY TCP4 1.2.3.4 1.2.3.4 65536 2\r\n",
            BadLine,
        ),
        ("port 01", "PROXY TCP4 1.2.3.4 1.2.3.4 01 2\r\n", BadLine),
        ("port +1", "PROXY TCP4 1.2.3.4 1.2.3.4 +1 2\r\n", BadLine),
        ("no port", "PROXY TCP4 1.2.3.4 1.2.3.4  2\r\n", BadLine),
        ("108 bytes", &long, TooLong),
        ("no end", &endless, TooLong),
    ] {
        assert_eq!(read(line.as_bytes()), Err(expected), "{name}");
    }
}

const SIGNATURE: &str = "0d0a0d0a000d0a515549540a ";
const V4: &str = "c0000201 c6336407 dc04 01bb ";

#[test]
fn reads_headers_of_version_2() {
    let v4 = tcp("192.0.2.1:56324", "198.51.100.7:443");
    let v6 = tcp("[2001:db8::1]:1", "[::1]:2");
    let unix = format!("21 31 00d8 {}", "61".repeat(216));
    for (name, vector, expected) in [
        ("tcp4", format!("21 11 000c {V4}"), v4),
        (
            "tcp4 with records",
            format!("21 11 0016 {V4} 03 0004 01020304 04 0000"),
            v4,
        ),
        (
            "tcp6",
            "21 21 0024 20010db8000000000000000000000001 00000000000000000000000000000001 0001 0002"
                .to_owned(),
            v6,
        ),
        ("unix", unix, ProxyHeader::Unix),
        ("unknown", "21 00 0000".to_owned(), ProxyHeader::Unknown),
        ("unknown with whatever", "21 00 0003 ffffff".to_owned(), ProxyHeader::Unknown),
        ("local", "20 00 0000".to_owned(), ProxyHeader::Local),
        ("local with whatever", "20 11 0003 ffffff".to_owned(), ProxyHeader::Local),
        ("local of a strange family", "20 ff 0001 00".to_owned(), ProxyHeader::Local),
    ] {
        let input = parse_vector(&(SIGNATURE.to_owned() + &vector));
        assert_eq!(read(&input), Ok(Some((expected, input.len()))), "{name}");
    }
}

#[test]
fn refuses_what_is_no_header_of_version_2() {
    for (name, vector, expected) in [
        (
            "another signature",
            "0d0a0d0a000d0a515549540b".to_owned(),
            NotProxy,
        ),
        (
            "empty lines first",
            "'\\r\\n\\r\\nGET '".to_owned(),
            NotProxy,
        ),
        ("a hello of TLS", "16 0301 0200 01".to_owned(), NotProxy),
        ("version 1", format!("{SIGNATURE} 11"), BadCommand(0x11)),
        ("version 3", format!("{SIGNATURE} 31"), BadCommand(0x31)),
        ("command 2", format!("{SIGNATURE} 22"), BadCommand(0x22)),
        (
            "udp4",
            format!("{SIGNATURE} 21 12 000c {V4}"),
            BadFamily(0x12),
        ),
        (
            "unix datagrams",
            format!("{SIGNATURE} 21 32"),
            BadFamily(0x32),
        ),
        (
            "a family without a transport",
            format!("{SIGNATURE} 21 10"),
            BadFamily(0x10),
        ),
        ("family 4", format!("{SIGNATURE} 21 41"), BadFamily(0x41)),
        (
            "tcp4 too short",
            format!("{SIGNATURE} 21 11 000b {V4}"),
            BadLength,
        ),
        (
            "tcp6 too short",
            format!("{SIGNATURE} 21 21 0023"),
            BadLength,
        ),
        (
            "unix too short",
            format!("{SIGNATURE} 21 31 00d7"),
            BadLength,
        ),
        (
            "a record beyond the end",
            format!("{SIGNATURE} 21 11 0010 {V4} 03 0002 01"),
            BadLength,
        ),
        (
            "half a record",
            format!("{SIGNATURE} 21 11 000e {V4} 03 00"),
            BadLength,
        ),
        ("too long", format!("{SIGNATURE} 21 11 ffff"), TooLong),
        (
            "too long for itself",
            format!("{SIGNATURE} 20 00 3ff1"),
            TooLong,
        ),
    ] {
        assert_eq!(read(&parse_vector(&vector)), Err(expected), "{name}");
    }
}

#[test]
fn waits_for_the_rest() {
    for input in [
        &b""[..],
        b"P",
        b"PROXY",
        b"PROXY TCP4 1.2.3.4",
        b"\r",
        b"\r\n\r\n\0\r\nQUIT\n",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c",
    ] {
        assert_eq!(read(input), Ok(None), "{input:?}");
    }
}

type Encode = fn(&mut Vec<u8>, Option<(SocketAddr, SocketAddr)>);

fn encoded(encode: Encode, source: &str, destination: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let addresses = (source.parse().unwrap(), destination.parse().unwrap());
    encode(&mut out, Some(addresses));
    out
}

#[test]
fn writes_the_bytes_of_the_specification() {
    let (source, destination) = ("192.0.2.1:56324", "198.51.100.7:443");
    assert_eq!(
        encoded(encode_v1, source, destination),
        b"PROXY TCP4 192.0.2.1 198.51.100.7 56324 443\r\n"
    );
    assert_eq!(
        encoded(encode_v2, source, destination),
        parse_vector(&format!("{SIGNATURE} 21 11 000c {V4}"))
    );
    let mut out = Vec::new();
    encode_v1(&mut out, None);
    assert_eq!(out, b"PROXY UNKNOWN\r\n");
    out.clear();
    encode_v2(&mut out, None);
    assert_eq!(out, parse_vector(&format!("{SIGNATURE} 20 00 0000")));
}

#[test]
fn reads_what_it_writes() {
    for (source, destination, expected) in [
        (
            "1.2.3.4:5",
            "6.7.8.9:65535",
            tcp("1.2.3.4:5", "6.7.8.9:65535"),
        ),
        ("[::1]:5", "[fe80::2]:0", tcp("[::1]:5", "[fe80::2]:0")),
        // From a socket of both families.
        (
            "[::ffff:1.2.3.4]:5",
            "[::ffff:6.7.8.9]:1",
            tcp("1.2.3.4:5", "6.7.8.9:1"),
        ),
        // Of two families, as when the balancer in front translates.
        (
            "1.2.3.4:5",
            "[2001:db8::2]:1",
            tcp("[::ffff:1.2.3.4]:5", "[2001:db8::2]:1"),
        ),
    ] {
        for (version, encode) in [(1, encode_v1 as Encode), (2, encode_v2)] {
            let header = encoded(encode, source, destination);
            let found = read(&header);
            let len = header.len();
            assert_eq!(
                found,
                Ok(Some((expected, len))),
                "{source} version {version}"
            );
        }
    }
    // Version 1 has no dots in IPv6 (§2.1).
    assert_eq!(
        encoded(encode_v1, "1.2.3.4:5", "[2001:db8::2]:1"),
        b"PROXY TCP6 ::ffff:102:304 2001:db8::2 5 1\r\n"
    );
}
