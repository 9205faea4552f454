//! `multipart/byteranges`: several parts in one body (RFC 9110 §14.6).
//!
//! A [`MultipartRanges`] frames the parts and yields the pieces in order: fixed text, and parts of
//! the representation to fill in. The length is known in advance.

use super::{ByteRange, encode_content_range};
use crate::grammar::HEX_DIGITS;

/// Several parts of a representation with their framing.
#[derive(Clone, Debug)]
pub struct MultipartRanges {
    boundary: [u8; BOUNDARY_LEN],
    pieces: Vec<MultipartPiece>,
}

const BOUNDARY_LEN: usize = 32;

/// A piece of the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MultipartPiece {
    Text(Vec<u8>),
    /// This part of the representation.
    Content(ByteRange),
}

impl MultipartRanges {
    /// Frames `parts` of a representation of `total` bytes and this type. The boundary is derived
    /// from `random`, which the author of the representation cannot know, so that it does not occur
    /// in it.
    pub fn new(random: u128, content_type: Option<&[u8]>, parts: &[ByteRange], total: u64) -> Self {
        let mut boundary = [0; BOUNDARY_LEN];
        for (place, digit) in boundary.iter_mut().enumerate() {
            *digit = HEX_DIGITS[(random >> (4 * place) & 15) as usize];
        }
        let mut pieces = Vec::with_capacity(2 * parts.len() + 1);
        for (number, &span) in parts.iter().enumerate() {
            let line_end: &[u8] = if number == 0 { b"" } else { b"\r\n" };
            let mut text = [line_end, b"--", &boundary, b"\r\n"].concat();
            if let Some(content_type) = content_type {
                text.extend_from_slice(&[b"Content-Type: ", content_type, b"\r\n"].concat());
            }
            text.extend_from_slice(b"Content-Range: ");
            encode_content_range(span.start, span.len, total, &mut text);
            text.extend_from_slice(b"\r\n\r\n");
            pieces.extend([MultipartPiece::Text(text), MultipartPiece::Content(span)]);
        }
        pieces.push(MultipartPiece::Text(
            [b"\r\n--", &boundary[..], b"--\r\n"].concat(),
        ));
        Self { boundary, pieces }
    }

    /// The value of `Content-Type`.
    pub fn content_type(&self) -> Vec<u8> {
        [b"multipart/byteranges; boundary=", &self.boundary[..]].concat()
    }

    /// The body's length in bytes.
    pub fn length(&self) -> u64 {
        let length = |piece: &MultipartPiece| match piece {
            MultipartPiece::Text(text) => text.len() as u64,
            MultipartPiece::Content(span) => span.len,
        };
        self.pieces.iter().map(length).sum()
    }

    /// The pieces of the body in order.
    pub fn into_pieces(self) -> Vec<MultipartPiece> {
        self.pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPANS: [ByteRange; 2] = [
        ByteRange { start: 0, len: 2 },
        ByteRange { start: 5, len: 1 },
    ];

    fn body(multipart: MultipartRanges, content: &[u8]) -> String {
        let mut body = Vec::new();
        for piece in multipart.into_pieces() {
            match piece {
                MultipartPiece::Text(text) => body.extend_from_slice(&text),
                MultipartPiece::Content(ByteRange { start, len }) => {
                    let place = |at: u64| usize::try_from(at).unwrap();
                    body.extend_from_slice(&content[place(start)..place(start + len)]);
                }
            }
        }
        String::from_utf8(body).unwrap()
    }

    #[test]
    fn frames_each_part_and_knows_the_length() {
        let multipart = MultipartRanges::new(0x1f, Some(b"text/plain"), &SPANS, 10);
        let boundary = format!("f1{}", "0".repeat(30));
        assert_eq!(
            multipart.content_type(),
            format!("multipart/byteranges; boundary={boundary}").into_bytes()
        );
        let length = multipart.length();
        let expected = format!(
            "--{boundary}\r\nContent-Type: text/plain\r\nContent-Range: bytes 0-1/10\r\n\r\n01\r\n\
             --{boundary}\r\nContent-Type: text/plain\r\nContent-Range: bytes 5-5/10\r\n\r\n5\r\n\
             --{boundary}--\r\n"
        );
        assert_eq!(body(multipart, b"0123456789"), expected);
        assert_eq!(length, expected.len() as u64);
    }

    #[test]
    fn what_has_no_type_says_none() {
        let multipart = MultipartRanges::new(u128::MAX, None, &SPANS, 10);
        let body = body(multipart, b"0123456789");
        assert!(body.starts_with(&format!("--{}\r\nContent-Range: ", "f".repeat(32))));
    }
}
