//! Tests of FORWARD_REQUEST: packets in hex with their meaning, and requests that do not fit.

use super::*;
use crate::gateway::testing::parse_vector;

fn forward(request: &AjpRequest<'_>, fields: &[(&str, &str)]) -> Result<Vec<u8>, EncodeError> {
    let mut out = b"before".to_vec();
    let fields = fields.iter().map(|(name, value)| (*name, value.as_bytes()));
    match encode_forward_request(&mut out, request, fields) {
        Ok(()) => Ok(out.split_off(6)),
        Err(error) => {
            assert_eq!(out, b"before");
            Err(error)
        }
    }
}

fn get() -> AjpRequest<'static> {
    AjpRequest {
        method: "GET",
        protocol: "HTTP/1.1",
        path: "/a",
        remote_addr: "::1",
        server_name: "b.c",
        server_port: 8080,
        ..AjpRequest::default()
    }
}

#[test]
fn writes_a_request_without_anything() {
    let expected = parse_vector(
        "1234 0026 02 02 0008'HTTP/1.1'00 0002'/a'00 0003'::1'00 ffff 0003'b.c'00 1f90 00 0000 ff",
    );
    assert_eq!(forward(&get(), &[]).unwrap(), expected);
}

#[test]
fn writes_fields_and_attributes() {
    let request = AjpRequest {
        method: "PATCH",
        query: Some("x=1"),
        remote_port: Some(4711),
        is_tls: true,
        secret: Some("s3"),
        ..get()
    };
    let fields = [("host", "b.c"), ("X-A", ""), ("Content-Length", "3")];
    let expected = parse_vector(
        "1234 006d 02 ff 0008'HTTP/1.1'00 0002'/a'00 0003'::1'00 ffff 0003'b.c'00 1f90 01
         0003 a00b 0003'b.c'00 0003'X-A'00 000000 a008 0001'3'00
         05 0003'x=1'00 0d 0005'PATCH'00 0c 0002's3'00
         0a 000f'AJP_REMOTE_PORT'00 0004'4711'00 ff",
    );
    assert_eq!(forward(&request, &fields).unwrap(), expected);
}

#[test]
fn fills_a_packet_to_the_last_byte_and_no_further() {
    let empty = forward(&get(), &[("A", "")]).unwrap().len();
    let room = usize::from(MAX_PACKET_BYTES) - empty;
    let packet = forward(&get(), &[("A", &"x".repeat(room))]).unwrap();
    assert_eq!(packet.len(), 8192);
    assert_eq!(packet[2..4], [0x1f, 0xfc]);
    let many: Vec<_> = vec![("a", "b"); 2000];
    for (name, fields) in [
        ("one byte more", &[("A", "x".repeat(room + 1).as_str())][..]),
        ("a long field", &[("A", "x".repeat(70_000).as_str())]),
        ("many fields", &many),
    ] {
        assert_eq!(
            forward(&get(), fields),
            Err(EncodeError::TooLarge),
            "{name}"
        );
    }
}

#[test]
fn refuses_a_zero_byte_anywhere() {
    let nul = "a\0b";
    for (name, request) in [
        ("path", AjpRequest { path: nul, ..get() }),
        (
            "query",
            AjpRequest {
                query: Some(nul),
                ..get()
            },
        ),
        (
            "method",
            AjpRequest {
                method: nul,
                ..get()
            },
        ),
        (
            "server name",
            AjpRequest {
                server_name: nul,
                ..get()
            },
        ),
    ] {
        assert_eq!(
            forward(&request, &[]),
            Err(EncodeError::NulInText),
            "{name}"
        );
    }
    for field in [("A", nul), (nul, "x")] {
        assert_eq!(forward(&get(), &[field]), Err(EncodeError::NulInText));
    }
}
