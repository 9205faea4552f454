//! Encodes a server's frames: unmasked (RFC 6455 §5.1) and unfragmented.

use super::{Opcode, close_code};

/// The longest frame head of a server.
pub const MAX_FRAME_HEAD_BYTES: usize = 10;

/// The head of a frame; its payload follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHead {
    bytes: [u8; MAX_FRAME_HEAD_BYTES],
    len: u8,
}

impl FrameHead {
    fn new(opcode: Opcode, payload_len: usize) -> Self {
        let mut bytes = [0; MAX_FRAME_HEAD_BYTES];
        bytes[0] = FIN | opcode as u8;
        let len = match (u8::try_from(payload_len), u16::try_from(payload_len)) {
            (Ok(small @ ..=125), _) => {
                bytes[1] = small;
                2
            }
            (_, Ok(medium)) => {
                bytes[1] = 126;
                bytes[2..4].copy_from_slice(&medium.to_be_bytes());
                4
            }
            _ => {
                bytes[1] = 127;
                bytes[2..10].copy_from_slice(&(payload_len as u64).to_be_bytes());
                10
            }
        };
        Self { bytes, len }
    }

    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// The frame head of a message of `len` bytes.
#[must_use]
pub fn message_frame_head(is_text: bool, len: usize) -> FrameHead {
    let opcode = match is_text {
        true => Opcode::Text,
        false => Opcode::Binary,
    };
    FrameHead::new(opcode, len)
}

/// The frame head of a message compressed to `len` bytes (RFC 7692 §6).
#[must_use]
pub fn compressed_frame_head(is_text: bool, len: usize) -> FrameHead {
    let mut head = message_frame_head(is_text, len);
    head.bytes[0] |= RSV1;
    head
}

/// Appends a ping or pong. The payload is truncated to 125 bytes (RFC 6455 §5.5).
pub fn encode_control_frame(out: &mut Vec<u8>, opcode: Opcode, payload: &[u8]) {
    let payload = &payload[..payload.len().min(125)];
    out.extend_from_slice(FrameHead::new(opcode, payload.len()).as_bytes());
    out.extend_from_slice(payload);
}

/// Appends a close frame. Codes that are never sent ([`close_code::NO_STATUS`],
/// [`close_code::ABNORMAL_CLOSURE`]) give a frame without a code; an invalid code becomes
/// [`close_code::INTERNAL_ERROR`].
pub fn encode_close_frame(out: &mut Vec<u8>, with: u16, reason: &str) {
    if matches!(with, close_code::NO_STATUS | close_code::ABNORMAL_CLOSURE) {
        return encode_control_frame(out, Opcode::Close, b"");
    }
    let with = match close_code::is_sendable(with) {
        true => with,
        false => close_code::INTERNAL_ERROR,
    };
    let mut payload = with.to_be_bytes().to_vec();
    payload.extend_from_slice(truncate_close_reason(reason).as_bytes());
    encode_control_frame(out, Opcode::Close, &payload);
}

/// Truncates a reason to the size of a close frame, at a character boundary (RFC 6455 §5.5.1).
#[must_use]
pub fn truncate_close_reason(reason: &str) -> &str {
    let mut end = reason.len().min(MAX_REASON_BYTES);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    &reason[..end]
}

const FIN: u8 = 0x80;
const RSV1: u8 = 0x40;
/// Size of a close reason.
const MAX_REASON_BYTES: usize = 123;
