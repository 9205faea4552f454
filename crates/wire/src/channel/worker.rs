//! A reactor's side of a channel in Rust, for whoever plays one: the tests of `wire` and `apps`, and
//! fuzzers. It writes what it is told, also nonsense.

use crate::frame::{FrameHeader, Kind};

/// Appends ANSWER; `strings` are the status line, then names and values in turn.
pub fn answer(
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
    frame(
        out,
        Kind::Answer,
        flags,
        strings.len(),
        &[&start, &head, body],
    );
}

/// Appends DATA.
pub fn data(out: &mut Vec<u8>, flags: u8, id: u32, bytes: &[u8]) {
    frame(out, Kind::Data, flags, 0, &[&id.to_le_bytes(), bytes]);
}

/// Appends ACCEPT; `strings` are the subprotocol, then names and values in turn.
pub fn accept(out: &mut Vec<u8>, id: u32, strings: &[&[u8]]) {
    let head = strings.join(&0);
    let parts = [&id.to_le_bytes()[..], &head];
    frame(out, Kind::Accept, 0, strings.len(), &parts);
}

/// Appends RESET.
pub fn reset(out: &mut Vec<u8>, flags: u8, id: u32, reason: &str) {
    let parts = [&id.to_le_bytes()[..], reason.as_bytes()];
    frame(out, Kind::Reset, flags, 0, &parts);
}

/// Appends MESSAGE.
pub fn message(out: &mut Vec<u8>, flags: u8, id: u32, bytes: &[u8]) {
    frame(out, Kind::Message, flags, 0, &[&id.to_le_bytes(), bytes]);
}

/// Appends CLOSE.
pub fn close(out: &mut Vec<u8>, id: u32, code: u16, reason: &str) {
    let parts = [
        &id.to_le_bytes()[..],
        &code.to_le_bytes(),
        reason.as_bytes(),
    ];
    frame(out, Kind::Close, 0, 0, &parts);
}

/// Appends WINDOW.
pub fn window(out: &mut Vec<u8>, id: u32, bytes: u32) {
    let parts = [&id.to_le_bytes()[..], &bytes.to_le_bytes()];
    frame(out, Kind::Window, 0, 0, &parts);
}

/// Appends PULL.
pub fn pull(out: &mut Vec<u8>, id: u32) {
    frame(out, Kind::StreamPull, 0, 0, &[&id.to_le_bytes()]);
}

/// Appends HIJACK.
pub fn hijack(out: &mut Vec<u8>, id: u32) {
    frame(out, Kind::StreamHijack, 0, 0, &[&id.to_le_bytes()]);
}

fn frame(out: &mut Vec<u8>, kind: Kind, flags: u8, count: usize, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    let header = FrameHeader {
        kind,
        flags,
        count: u16::try_from(count).unwrap_or(u16::MAX),
        payload_len: u32::try_from(len).unwrap_or(u32::MAX),
    };
    out.extend_from_slice(&header.encode());
    parts.iter().for_each(|part| out.extend_from_slice(part));
}
