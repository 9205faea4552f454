//! Frames from the front end to a reactor: OPEN, STREAM_CANCEL, WINDOW, MESSAGE, CLOSE, INPUT.
//!
//! Small ones are arrays, which the driver queues without an allocation each. The handler makes an
//! OPEN before its stream is known: the driver writes the id into it.

use penstock_http::websocket::truncate_close_reason;

use crate::WireError;
use crate::frame::{
    FLAG_END, FLAG_OPEN_STREAM, FLAG_TEXT, FLAG_WEBSOCKET, FrameKind, HEADER_LEN,
    MAX_PAYLOAD_BYTES, encode_header,
};
use crate::request::{
    MAX_INPUT_BYTES, RequestBodySource, RequestFrame, append_request, check_payload_len,
};

/// Offset of the stream's id in an OPEN frame: four bytes.
pub const OPEN_STREAM_ID_OFFSET: usize = HEADER_LEN;
/// Bytes of a MESSAGE in front of the message.
pub const MESSAGE_HEAD_LEN: usize = HEADER_LEN + 4;

/// Appends one OPEN frame to `out`, of stream 0 until its id is written at
/// [`OPEN_STREAM_ID_OFFSET`]; `environ` appends the environment.
///
/// # Errors
/// [`WireError::PayloadTooLong`], or what `environ` says; `out` is left as it was.
pub fn encode_open(
    out: &mut Vec<u8>,
    is_websocket: bool,
    body: RequestBodySource<'_>,
    environ: impl FnOnce(&mut Vec<u8>) -> Result<(), WireError>,
) -> Result<(), WireError> {
    let frame = RequestFrame {
        kind: FrameKind::Open,
        flags: if is_websocket { FLAG_WEBSOCKET } else { 0 },
        stream_flag: FLAG_OPEN_STREAM,
        id_len: 4,
    };
    append_request(out, frame, body, environ)
}

/// STREAM_CANCEL: the client of the stream has left, or wants no more.
pub fn encode_stream_cancel(id: u32) -> [u8; HEADER_LEN + 4] {
    encode_stream_header(FrameKind::StreamCancel, 0, id, 0)
}

/// WINDOW: this many more bytes may be sent on the stream.
pub fn encode_window(id: u32, bytes: u32) -> [u8; HEADER_LEN + 8] {
    let mut out = [0; HEADER_LEN + 8];
    let (start, end) = out.split_at_mut(HEADER_LEN + 4);
    start.copy_from_slice(&encode_stream_header(FrameKind::Window, 0, id, 4));
    end.copy_from_slice(&bytes.to_le_bytes());
    out
}

/// Appends INPUT: the next piece of a streamed request body, at most [`MAX_INPUT_BYTES`] bytes.
pub fn encode_input(out: &mut Vec<u8>, id: u32, bytes: &[u8], is_last: bool) {
    debug_assert!(bytes.len() <= MAX_INPUT_BYTES);
    let flags = if is_last { FLAG_END } else { 0 };
    let header = encode_stream_header(FrameKind::StreamInput, flags, id, bytes.len());
    out.extend_from_slice(&header);
    out.extend_from_slice(bytes);
}

/// The start of a MESSAGE; the caller writes exactly `len` bytes right behind it.
///
/// # Errors
/// [`WireError::PayloadTooLong`].
pub fn encode_message_head(
    id: u32,
    is_text: bool,
    len: usize,
) -> Result<[u8; MESSAGE_HEAD_LEN], WireError> {
    check_payload_len(len.saturating_add(4).min(MAX_PAYLOAD_BYTES as usize + 1))?;
    let flags = if is_text { FLAG_TEXT } else { 0 };
    Ok(encode_stream_header(FrameKind::Message, flags, id, len))
}

/// Appends CLOSE; a reason that is too long is truncated.
pub fn encode_close(out: &mut Vec<u8>, id: u32, code: u16, reason: &str) {
    let reason = truncate_close_reason(reason);
    let header = encode_stream_header(FrameKind::Close, 0, id, 2 + reason.len());
    out.extend_from_slice(&header);
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(reason.as_bytes());
}

/// The header of a frame with `len` bytes behind its stream's id, and the id.
fn encode_stream_header(kind: FrameKind, flags: u8, id: u32, len: usize) -> [u8; HEADER_LEN + 4] {
    let mut out = [0; HEADER_LEN + 4];
    out[..HEADER_LEN].copy_from_slice(&encode_header(kind, flags, 4 + len));
    out[HEADER_LEN..].copy_from_slice(&id.to_le_bytes());
    out
}
