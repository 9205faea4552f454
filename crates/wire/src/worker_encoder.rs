//! The worker's side of the protocol in Rust: encoders for every frame that a worker sends.
//!
//! Production workers are the scripts in `crates/apps/workers`; this is for tests of `wire` and
//! `apps`, and for fuzzers. It writes invalid frames too, since refusing them is the decoders'
//! task.

use crate::frame::{
    FLAG_HAS_FD, FrameHeader, FrameKind, HEADER_LEN, PROTOCOL_VERSION, encode_header, len_to_u32,
};

/// The first frame on a control socket.
pub fn encode_hello(version: u32) -> [u8; HEADER_LEN + 4] {
    let mut out = [0; HEADER_LEN + 4];
    out[..HEADER_LEN].copy_from_slice(&encode_header(FrameKind::Hello, 0, 4));
    out[HEADER_LEN..].copy_from_slice(&version.to_le_bytes());
    out
}

/// The HELLO of this crate's version.
pub fn encode_current_hello() -> [u8; HEADER_LEN + 4] {
    encode_hello(PROTOCOL_VERSION)
}

/// Appends READY, BOOT_FAILED, ABORT or FAILED.
pub fn encode_text(out: &mut Vec<u8>, kind: FrameKind, flags: u8, text: &str) {
    encode_bytes(out, kind, flags, text.as_bytes());
}

/// Appends a HEAD frame; `strings` are the status line, then names and values in turn.
pub fn encode_head(out: &mut Vec<u8>, flags: u8, app_time_us: u32, strings: &[&[u8]], body: &[u8]) {
    let head = strings.join(&0);
    let start = [app_time_us, len_to_u32(head.len())].map(u32::to_le_bytes);
    let parts = [&start.concat()[..], &head, body];
    encode_frame(out, FrameKind::Head, flags, strings.len(), &parts);
}

/// Appends a BODY frame.
pub fn encode_body(out: &mut Vec<u8>, flags: u8, bytes: &[u8]) {
    encode_bytes(out, FrameKind::Body, flags, bytes);
}

/// Appends FD_REQUEST.
pub fn encode_fd_request(out: &mut Vec<u8>) {
    encode_bytes(out, FrameKind::FdRequest, 0, &[]);
}

/// Appends PULL.
pub fn encode_pull(out: &mut Vec<u8>) {
    encode_bytes(out, FrameKind::Pull, 0, &[]);
}

/// Appends a FILE frame; the caller sends the descriptor along. No `len`: to the end.
pub fn encode_file(out: &mut Vec<u8>, flags: u8, offset: u64, len: Option<u64>) {
    let mut payload = [0; 16];
    payload[..8].copy_from_slice(&offset.to_le_bytes());
    payload[8..].copy_from_slice(&len.unwrap_or(u64::MAX).to_le_bytes());
    encode_bytes(out, FrameKind::File, flags | FLAG_HAS_FD, &payload);
}

/// Appends HIJACK; the caller sends the descriptor along.
pub fn encode_hijack(out: &mut Vec<u8>) {
    encode_bytes(out, FrameKind::Hijack, FLAG_HAS_FD, &[]);
}

fn encode_bytes(out: &mut Vec<u8>, kind: FrameKind, flags: u8, payload: &[u8]) {
    encode_frame(out, kind, flags, 0, &[payload]);
}

/// Appends a frame whose payload is `parts`.
pub(crate) fn encode_frame(
    out: &mut Vec<u8>,
    kind: FrameKind,
    flags: u8,
    count: usize,
    parts: &[&[u8]],
) {
    let header = FrameHeader {
        kind,
        flags,
        string_count: u16::try_from(count).unwrap_or(u16::MAX),
        payload_len: len_to_u32(parts.iter().map(|part| part.len()).sum()),
    };
    out.extend_from_slice(&header.encode());
    parts.iter().for_each(|part| out.extend_from_slice(part));
}
