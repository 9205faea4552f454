//! The records of a FastCGI request: BEGIN_REQUEST, PARAMS, STDIN, ABORT_REQUEST.
//!
//! Called by the relay of an upstream, in this order: [`encode_begin`], a [`FastCgiParamsWriter`]
//! to its `finish`, STDIN with the body, and [`encode_stdin_end`] even without one. Everything is
//! appended to a buffer that the caller writes; a large body needs no copy: [`stdin_header`] goes
//! before each piece.

use super::{REQUEST_ID, VERSION};
use crate::gateway::{EncodeError, VariableWriter};

/// Maximum content of a record written here: the largest multiple of 8 below 2^16, so that a full
/// record needs no padding.
pub const MAX_RECORD_CONTENT: u16 = 65_528;

/// Appends BEGIN_REQUEST for a responder. Without `keep_conn` the application closes the connection
/// after its response.
pub fn encode_begin(out: &mut Vec<u8>, keep_conn: bool) {
    out.extend_from_slice(&encode_header(BEGIN_REQUEST, 8, 0));
    out.extend_from_slice(&[0, RESPONDER, u8::from(keep_conn), 0, 0, 0, 0, 0]);
}

/// Appends STDIN records with `bytes`; nothing for empty `bytes`, since an empty record is the end.
pub fn encode_stdin(out: &mut Vec<u8>, bytes: &[u8]) {
    for piece in bytes.chunks(usize::from(MAX_RECORD_CONTENT)) {
        let len = u16::try_from(piece.len()).unwrap_or(MAX_RECORD_CONTENT);
        let padding = padding_len(len);
        out.extend_from_slice(&encode_header(STDIN, len, padding));
        out.extend_from_slice(piece);
        push_padding(out, padding);
    }
}

/// The header of one STDIN record, without padding: exactly `len` bytes of the body must follow it.
/// `len` is not 0.
pub fn stdin_header(len: u16) -> [u8; 8] {
    debug_assert_ne!(len, 0, "an empty record ends the body");
    encode_header(STDIN, len, 0)
}

/// Appends the end of the body.
pub fn encode_stdin_end(out: &mut Vec<u8>) {
    out.extend_from_slice(&encode_header(STDIN, 0, 0));
}

/// Appends ABORT_REQUEST. The application answers with END_REQUEST, sooner or later.
pub fn encode_abort(out: &mut Vec<u8>) {
    out.extend_from_slice(&encode_header(ABORT_REQUEST, 0, 0));
}

/// Writes the variables of a request in as many PARAMS records as they need.
#[derive(Debug)]
pub struct FastCgiParamsWriter<'o> {
    out: &'o mut Vec<u8>,
    start: usize,
    /// The position of the open record's header.
    record_start: usize,
    is_too_large: bool,
}

impl<'o> FastCgiParamsWriter<'o> {
    /// Opens the stream of variables at the end of `out`.
    pub fn new(out: &'o mut Vec<u8>) -> Self {
        let start = out.len();
        out.extend_from_slice(&[0; 8]);
        Self {
            out,
            start,
            record_start: start,
            is_too_large: false,
        }
    }

    /// Ends the stream.
    ///
    /// # Errors
    /// [`EncodeError::TooLarge`] when a name or value has 2^31 bytes; `out` is unchanged.
    pub fn finish(self) -> Result<(), EncodeError> {
        if self.is_too_large {
            self.out.truncate(self.start);
            return Err(EncodeError::TooLarge);
        }
        if self.out.len() == self.record_start + 8 {
            self.out.truncate(self.record_start);
        } else {
            finish_record(self.out, self.record_start);
        }
        self.out.extend_from_slice(&encode_header(PARAMS, 0, 0));
        Ok(())
    }

    fn push_len(&mut self, len: usize) {
        match u32::try_from(len) {
            Ok(short @ 0..=0x7f) => self.push(&short.to_be_bytes()[3..]),
            Ok(long @ 0x80..=0x7fff_ffff) => self.push(&(long | 1 << 31).to_be_bytes()),
            _ => self.is_too_large = true,
        }
    }

    fn push(&mut self, mut bytes: &[u8]) {
        loop {
            let room = usize::from(MAX_RECORD_CONTENT) - (self.out.len() - self.record_start - 8);
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.out.extend_from_slice(now);
            if later.is_empty() {
                return;
            }
            finish_record(self.out, self.record_start);
            self.record_start = self.out.len();
            self.out.extend_from_slice(&[0; 8]);
            bytes = later;
        }
    }
}

impl VariableWriter for FastCgiParamsWriter<'_> {
    fn push_variable(&mut self, name: &[u8], value: &[u8]) {
        self.push_len(name.len());
        self.push_len(value.len());
        if !self.is_too_large {
            self.push(name);
            self.push(value);
        }
    }
}

/// Writes the header of the PARAMS record at `record`, which extends to the end, and pads it.
fn finish_record(out: &mut Vec<u8>, record: usize) {
    let len = u16::try_from(out.len() - record - 8).unwrap_or(MAX_RECORD_CONTENT);
    let padding = padding_len(len);
    out[record..record + 8].copy_from_slice(&encode_header(PARAMS, len, padding));
    push_padding(out, padding);
}

fn encode_header(kind: u8, len: u16, padding: u8) -> [u8; 8] {
    let ([r0, r1], [l0, l1]) = (REQUEST_ID.to_be_bytes(), len.to_be_bytes());
    [VERSION, kind, r0, r1, l0, l1, padding, 0]
}

/// Padding to a multiple of eight bytes, as the specification (§3.3) recommends.
fn padding_len(len: u16) -> u8 {
    u8::try_from(len.wrapping_neg() % 8).unwrap_or_default()
}

fn push_padding(out: &mut Vec<u8>, padding: u8) {
    out.extend_from_slice(&[0; 8][..usize::from(padding)]);
}

const BEGIN_REQUEST: u8 = 1;
const ABORT_REQUEST: u8 = 2;
const PARAMS: u8 = 4;
const STDIN: u8 = 5;
const RESPONDER: u8 = 1;
