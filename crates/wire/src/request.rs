//! Frames from the front end to a slot socket: REQUEST, INPUT, CANCEL and COLLECT_GARBAGE; and the
//! frame of any request.
//!
//! `apps` encodes each request once and may write several behind one another. On an error the
//! buffer is as it was.

use crate::WireError;
use crate::environ::{Dialect, EnvironEncoder};
use crate::frame::{
    FLAG_BODY_FILE, FLAG_BODY_STREAM, FLAG_END, FLAG_INPUT_ABORTED, FrameKind, HEADER_LEN,
    MAX_PAYLOAD_BYTES, encode_header, len_to_usize,
};

/// Maximum bytes of a request body in one INPUT. With its header the frame fits into one receive
/// call of a worker (64 KiB).
pub const MAX_INPUT_BYTES: usize = 60 << 10;

/// Where the request body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestBodySource<'a> {
    /// In memory; copied after the environment. Empty for requests without a body.
    Inline(&'a [u8]),
    /// In memory; the caller writes exactly this many bytes right after the frame's start.
    AppendedByCaller(u32),
    /// The first bytes are in memory; the worker requests the rest in pieces.
    Streamed(&'a [u8]),
    /// In a temporary file: the worker answers FD_REQUEST and the caller passes the descriptor.
    File,
}

/// Appends one REQUEST frame to `out`; `environ` adds the pairs.
///
/// # Errors
/// [`WireError::PayloadTooLong`] or [`WireError::NulInText`]; `out` is unchanged.
pub fn encode_request(
    out: &mut Vec<u8>,
    dialect: Dialect,
    body: RequestBodySource<'_>,
    environ: impl FnOnce(&mut EnvironEncoder<'_>),
) -> Result<(), WireError> {
    let frame = RequestFrame {
        kind: FrameKind::Request,
        flags: 0,
        stream_flag: FLAG_BODY_STREAM,
        id_len: 0,
    };
    append_request(out, frame, body, |out| {
        let mut encoder = EnvironEncoder::new(out, dialect);
        environ(&mut encoder);
        encoder.finish()
    })
}

/// Appends a CANCEL frame for the request numbered `seq` on its slot, counted from 0.
pub fn encode_cancel(out: &mut Vec<u8>, seq: u32) {
    out.extend_from_slice(&encode_header(FrameKind::Cancel, 0, 4));
    out.extend_from_slice(&seq.to_le_bytes());
}

/// Appends an INPUT frame: the next piece of a streamed body, at most [`MAX_INPUT_BYTES`] bytes.
pub fn encode_input(out: &mut Vec<u8>, bytes: &[u8], is_last: bool) {
    append_input(out, bytes, if is_last { FLAG_END } else { 0 });
}

/// Appends the INPUT frame that reports that the rest of the body never comes.
pub fn encode_input_aborted(out: &mut Vec<u8>) {
    append_input(out, &[], FLAG_INPUT_ABORTED);
}

fn append_input(out: &mut Vec<u8>, bytes: &[u8], flags: u8) {
    debug_assert!(bytes.len() <= MAX_INPUT_BYTES);
    out.extend_from_slice(&encode_header(FrameKind::Input, flags, bytes.len()));
    out.extend_from_slice(bytes);
}

/// Appends a COLLECT_GARBAGE frame: no request is in progress, so the worker may collect its
/// garbage.
pub fn encode_collect_garbage(out: &mut Vec<u8>) {
    out.extend_from_slice(&encode_header(FrameKind::CollectGarbage, 0, 0));
}

/// A frame that brings a request: REQUEST, or OPEN.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestFrame {
    pub(crate) kind: FrameKind,
    pub(crate) flags: u8,
    /// The flag of a body that is streamed.
    pub(crate) stream_flag: u8,
    /// Bytes between header and `environ_len`.
    pub(crate) id_len: usize,
}

/// Appends a request's frame, whose id is left 0; on an error `out` is left as it was.
pub(crate) fn append_request(
    out: &mut Vec<u8>,
    frame: RequestFrame,
    body: RequestBodySource<'_>,
    environ: impl FnOnce(&mut Vec<u8>) -> Result<(), WireError>,
) -> Result<(), WireError> {
    let start = out.len();
    let result = try_append_request(out, frame, body, environ);
    if result.is_err() {
        out.truncate(start);
    }
    result
}

fn try_append_request(
    out: &mut Vec<u8>,
    frame: RequestFrame,
    body: RequestBodySource<'_>,
    environ: impl FnOnce(&mut Vec<u8>) -> Result<(), WireError>,
) -> Result<(), WireError> {
    let start = out.len();
    let len_offset = start + HEADER_LEN + frame.id_len;
    out.resize(len_offset + 4, 0);
    environ(out)?;
    let environ_len = check_payload_len(out.len() - len_offset - 4)?;
    let (flags, bytes, body_len) = match body {
        RequestBodySource::Inline(bytes) => (0, bytes, bytes.len()),
        RequestBodySource::Streamed(bytes) => (frame.stream_flag, bytes, bytes.len()),
        RequestBodySource::AppendedByCaller(len) => (0, &b""[..], len_to_usize(len)),
        RequestBodySource::File => (FLAG_BODY_FILE, &b""[..], 0),
    };
    let payload_len = (out.len() - start - HEADER_LEN).saturating_add(body_len);
    check_payload_len(payload_len)?;
    let header = encode_header(frame.kind, frame.flags | flags, payload_len);
    out[start..start + HEADER_LEN].copy_from_slice(&header);
    out[len_offset..len_offset + 4].copy_from_slice(&environ_len.to_le_bytes());
    out.extend_from_slice(bytes);
    Ok(())
}

pub(crate) fn check_payload_len(len: usize) -> Result<u32, WireError> {
    match u32::try_from(len) {
        Ok(len) if len <= MAX_PAYLOAD_BYTES => Ok(len),
        _ => Err(WireError::PayloadTooLong(
            u64::try_from(len).unwrap_or(u64::MAX),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_environment_and_body() {
        let mut out = b"before".to_vec();
        encode_request(
            &mut out,
            Dialect::Python,
            RequestBodySource::Inline(b"xy"),
            |e| {
                e.push_variable(b"A", b"b");
            },
        )
        .unwrap();
        assert_eq!(
            out,
            b"before\x01\x00\x00\x00\x0e\x00\x00\x00\x08\x00\x00\x00{z\x01Az\x01b0xy"
        );
    }

    #[test]
    fn announces_a_body_that_follows() {
        let mut whole = Vec::new();
        let mut parts = Vec::new();
        encode_request(
            &mut whole,
            Dialect::Ruby,
            RequestBodySource::Inline(b"xyz"),
            |_| (),
        )
        .unwrap();
        encode_request(
            &mut parts,
            Dialect::Ruby,
            RequestBodySource::AppendedByCaller(3),
            |_| (),
        )
        .unwrap();
        parts.extend_from_slice(b"xyz");
        assert_eq!(whole, parts);
    }

    #[test]
    fn flags_a_body_in_a_file() {
        let mut out = Vec::new();
        encode_request(&mut out, Dialect::Ruby, RequestBodySource::File, |_| ()).unwrap();
        assert_eq!(out[1], FLAG_BODY_FILE);
    }

    #[test]
    fn leaves_the_buffer_alone_when_it_refuses() {
        let mut out = b"before".to_vec();
        let refused = encode_request(
            &mut out,
            Dialect::Python,
            RequestBodySource::AppendedByCaller(MAX_PAYLOAD_BYTES),
            |_| (),
        );
        assert_eq!(
            refused,
            Err(WireError::PayloadTooLong(u64::from(MAX_PAYLOAD_BYTES) + 6))
        );
        assert_eq!(out, b"before");
    }

    #[test]
    fn numbers_the_cancelled_request() {
        let mut out = Vec::new();
        encode_cancel(&mut out, 258);
        assert_eq!(out, [2, 0, 0, 0, 4, 0, 0, 0, 2, 1, 0, 0]);
    }
}
