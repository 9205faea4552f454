//! Table of offers, and round trips of messages.

use super::super::{MessageDecoder, WebSocketEvent};
use super::*;
use crate::{HeadLimits, ParseProgress, parse_head};

fn agreed(extensions: &str) -> Option<String> {
    let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{extensions}\r\n");
    let Ok(ParseProgress::Complete((head, _))) =
        parse_head(head.as_bytes(), &HeadLimits::default())
    else {
        panic!("a valid head");
    };
    negotiate_deflate(&head).map(DeflateParams::extension_header)
}

#[test]
fn the_first_offer_that_can_be_kept_is_taken() {
    let plain = "permessage-deflate; server_no_context_takeover; client_no_context_takeover";
    let limited = |bits: u8| format!("{plain}; server_max_window_bits={bits}");
    for (offer, expected) in [
        ("permessage-deflate", Some(plain.to_owned())),
        // As sent by browsers.
        (
            "permessage-deflate; client_max_window_bits",
            Some(plain.to_owned()),
        ),
        (
            "Permessage-Deflate ; Server_No_Context_Takeover",
            Some(plain.to_owned()),
        ),
        (
            "permessage-deflate; client_max_window_bits=10",
            Some(plain.to_owned()),
        ),
        (
            "permessage-deflate; server_max_window_bits=10",
            Some(limited(10)),
        ),
        (
            "permessage-deflate; server_max_window_bits=\"15\"",
            Some(limited(15)),
        ),
        (
            "x-webkit-deflate-frame, permessage-deflate",
            Some(plain.to_owned()),
        ),
        (
            "permessage-deflate; server_max_window_bits=7, permessage-deflate",
            Some(plain.to_owned()),
        ),
        ("permessage-deflate; server_max_window_bits", None),
        ("permessage-deflate; server_max_window_bits=16", None),
        ("permessage-deflate; server_max_window_bits=08", None),
        ("permessage-deflate; client_max_window_bits=x", None),
        ("permessage-deflate; server_no_context_takeover=1", None),
        (
            "permessage-deflate; client_no_context_takeover; client_no_context_takeover",
            None,
        ),
        ("permessage-deflate; mystery", None),
        ("permessage-bzip2", None),
        ("", None),
    ] {
        let line = format!("Sec-WebSocket-Extensions: {offer}\r\n");
        assert_eq!(agreed(&line), expected, "{offer}");
    }
    assert_eq!(agreed(""), None);
    let lines = "Sec-WebSocket-Extensions: foo\r\nSec-WebSocket-Extensions: permessage-deflate\r\n";
    assert_eq!(agreed(lines), Some(plain.to_owned()));
}

#[test]
fn a_message_is_compressed_when_it_pays_and_the_window_allows() {
    let of = |window_bits: u8| DeflateParams {
        window_bits,
        echoes_window: true,
    };
    for (bits, len, expected) in [
        (15, 100, false),
        (15, 1000, true),
        (15, 200_000, true),
        (15, 1 << 20, false),
        (9, 512, true),
        (9, 513, false),
        (8, 512, false),
        (14, 1 << 14, true),
        (14, (1 << 14) + 1, false),
    ] {
        assert_eq!(of(bits).should_compress(len), expected, "{bits} {len}");
    }
}

/// A client's frames: masked with zeros, compressed, in `fragments` fragments.
fn frames(compressed: &[u8], fragments: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let size = compressed.len().div_ceil(fragments).max(1);
    let chunks: Vec<_> = compressed.chunks(size).collect();
    let last = chunks.len().saturating_sub(1);
    for (index, chunk) in chunks.iter().enumerate() {
        let opcode = if index == 0 { 0x41 } else { 0 };
        let fin = if index == last { 0x80 } else { 0 };
        out.extend([fin | opcode, 0x80 | 127]);
        out.extend((chunk.len() as u64).to_be_bytes());
        // The shortest form of a length is required.
        let at = out.len() - 9;
        match chunk.len() {
            short @ ..=125 => {
                out.truncate(at);
                out.push(0x80 | u8::try_from(short).unwrap());
            }
            medium @ ..=0xffff => {
                out.truncate(at);
                out.push(0x80 | 126);
                out.extend(u16::try_from(medium).unwrap().to_be_bytes());
            }
            _ => {}
        }
        out.extend([0; 4]);
        out.extend_from_slice(chunk);
    }
    out
}

fn read(bytes: &[u8], max: usize) -> Result<Vec<u8>, WebSocketError> {
    let mut decoder = MessageDecoder::new(max).with_deflate();
    let mut input = bytes;
    match decoder.decode(&mut input)? {
        Some(WebSocketEvent::Message { payload, .. }) => Ok(payload),
        other => panic!("a message: {other:?}"),
    }
}

#[test]
fn messages_come_back_as_they_went_whatever_their_fragments() {
    let text = "To be, or not to be: that is the question. ".repeat(400);
    for len in [512, 1000, 5000, text.len()] {
        let message = &text.as_bytes()[..len];
        let compressed = compress_message(message).expect("it is shorter");
        assert!(compressed.len() < len / 2);
        for fragments in [1, 2, 7] {
            let got = read(&frames(&compressed, fragments), len);
            assert_eq!(got.as_deref(), Ok(message), "{len} in {fragments}");
        }
    }
    // RFC 7692 §7.2.3.1, .2 (two blocks in one message), .4 (without compression) and .5 (a final
    // block).
    for (name, compressed) in [
        ("one block", &b"\xf2\x48\xcd\xc9\xc9\x07\x00"[..]),
        (
            "two blocks",
            b"\xf2\x48\x05\x00\x00\x00\xff\xff\xca\xc9\xc9\x07\x00",
        ),
        ("stored", b"\x00\x05\x00\xfa\xff\x48\x65\x6c\x6c\x6f\x00"),
        ("last block", b"\xf3\x48\xcd\xc9\xc9\x07\x00\x00"),
    ] {
        let got = read(&frames(compressed, 1), 5);
        assert_eq!(got.as_deref(), Ok(&b"Hello"[..]), "{name}");
    }
    let mut noise = 1_u64;
    let noise = std::iter::repeat_with(|| {
        noise ^= noise << 13;
        noise ^= noise >> 7;
        noise ^= noise << 17;
        noise.to_be_bytes()[3]
    });
    let noise: Vec<u8> = noise.take(4096).collect();
    assert_eq!(
        compress_message(&noise),
        None,
        "what does not get shorter stays"
    );
}

#[test]
fn nothing_unfolds_beyond_the_limit_and_what_is_broken_has_its_code() {
    let zeros = compress_message(&vec![b'0'; 200_000]).unwrap();
    assert!(zeros.len() < 2000);
    for (max, expected) in [(200_000, None), (199_999, Some(1009)), (1000, Some(1009))] {
        let got = read(&frames(&zeros, 1), max);
        assert_eq!(got.err().map(WebSocketError::close_code), expected, "{max}");
    }
    let not_text = compress_message(&[0xff; 1000]).unwrap();
    for (name, bytes, code) in [
        ("no deflate at all", vec![0xff; 40], 1007),
        ("text that is none", not_text, 1007),
        ("a block type that is not there", vec![0x06; 3], 1007),
    ] {
        let got = read(&frames(&bytes, 1), 100_000);
        assert_eq!(
            got.err().map(WebSocketError::close_code),
            Some(code),
            "{name}"
        );
    }
}

#[test]
fn the_bit_is_for_the_first_frame_of_a_message_and_only_where_agreed() {
    let frame = |first: u8| [first, 0x80, 0, 0, 0, 0];
    for (name, bytes) in [
        ("continuation", [frame(0x41), frame(0xc0)].concat()),
        ("ping", frame(0xc9).to_vec()),
        ("another bit", frame(0xa1).to_vec()),
    ] {
        let mut decoder = MessageDecoder::new(100).with_deflate();
        let error = decoder.decode(&mut &bytes[..]);
        assert_eq!(
            error.err().map(WebSocketError::close_code),
            Some(1002),
            "{name}"
        );
    }
    let mut decoder = MessageDecoder::new(100);
    let error = decoder.decode(&mut &frame(0xc1)[..]);
    assert_eq!(error.err().map(WebSocketError::close_code), Some(1002));
    // A message without the bit is uncompressed, even if the extension was negotiated.
    let mut decoder = MessageDecoder::new(100).with_deflate();
    let bytes = [&[0x81, 0x82, 0, 0, 0, 0][..], b"ok"].concat();
    let event = decoder.decode(&mut &bytes[..]).unwrap();
    let payload = b"ok".to_vec();
    let is_text = true;
    assert_eq!(event, Some(WebSocketEvent::Message { is_text, payload }));
}
