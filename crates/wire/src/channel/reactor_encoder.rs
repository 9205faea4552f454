//! A reactor's side of a channel in Rust, for the tests of `wire` and `apps` and for fuzzers. It
//! encodes nonsense as well.

use crate::frame::FrameKind;
use crate::worker_encoder::encode_frame;

/// Appends STREAM_RESPONSE; `strings` are the status line, then names and values in turn.
pub fn encode_response(
    out: &mut Vec<u8>,
    flags: u8,
    id: u32,
    app_time_us: u32,
    strings: &[&[u8]],
    body: &[u8],
) {
    let head = strings.join(&0);
    let head_len = u32::try_from(head.len()).unwrap_or(u32::MAX);
    let start = [id, app_time_us, head_len].map(u32::to_le_bytes).concat();
    encode_frame(
        out,
        FrameKind::StreamResponse,
        flags,
        strings.len(),
        &[&start, &head, body],
    );
}

/// Appends DATA.
pub fn encode_data(out: &mut Vec<u8>, flags: u8, id: u32, bytes: &[u8]) {
    encode_on_stream(out, FrameKind::Data, flags, id, bytes);
}

/// Appends ACCEPT; `strings` are the subprotocol, then names and values in turn.
pub fn encode_accept(out: &mut Vec<u8>, id: u32, strings: &[&[u8]]) {
    let head = strings.join(&0);
    let parts = [&id.to_le_bytes()[..], &head];
    encode_frame(out, FrameKind::Accept, 0, strings.len(), &parts);
}

/// Appends RESET.
pub fn encode_reset(out: &mut Vec<u8>, flags: u8, id: u32, reason: &str) {
    encode_on_stream(out, FrameKind::Reset, flags, id, reason.as_bytes());
}

/// Appends MESSAGE.
pub fn encode_message(out: &mut Vec<u8>, flags: u8, id: u32, bytes: &[u8]) {
    encode_on_stream(out, FrameKind::Message, flags, id, bytes);
}

/// Appends CLOSE.
pub fn encode_close(out: &mut Vec<u8>, id: u32, code: u16, reason: &str) {
    let payload = [&code.to_le_bytes(), reason.as_bytes()].concat();
    encode_on_stream(out, FrameKind::Close, 0, id, &payload);
}

/// Appends WINDOW.
pub fn encode_window(out: &mut Vec<u8>, id: u32, bytes: u32) {
    encode_on_stream(out, FrameKind::Window, 0, id, &bytes.to_le_bytes());
}

/// Appends PULL.
pub fn encode_pull(out: &mut Vec<u8>, id: u32) {
    encode_on_stream(out, FrameKind::StreamPull, 0, id, &[]);
}

/// Appends HIJACK.
pub fn encode_hijack(out: &mut Vec<u8>, id: u32) {
    encode_on_stream(out, FrameKind::StreamHijack, 0, id, &[]);
}

fn encode_on_stream(out: &mut Vec<u8>, kind: FrameKind, flags: u8, id: u32, payload: &[u8]) {
    encode_frame(out, kind, flags, 0, &[&id.to_le_bytes(), payload]);
}
