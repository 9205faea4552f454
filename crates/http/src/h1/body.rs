//! Finds the end of a body by its length or the chunked coding (RFC 9112 §6.2, §7.1).
//!
//! `edge` has one `BodyDecoder` per request and passes it the received bytes in any pieces. The
//! decoder returns which part is content and how much was framing. It copies only trailers.
//!
//! # Invariants
//!
//! - The result does not depend on how the bytes were split.
//! - The decoder never consumes a byte beyond the end of the body.
//! - Every deviation from the grammar is an error: a chunk line with two readings is a smuggled
//!   request.

use std::{ops::Range, str};

use thiserror::Error;

use crate::{
    grammar::{HEX_DIGITS, is_field_value_byte, is_token, is_token_byte},
    h1::ResponseBodyFraming,
    head::BodyFraming,
    trailers::is_forbidden_trailer,
};

/// Why a body cannot be decoded. The connection must close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BodyError {
    /// No hexadecimal digits, more than 256, or another byte among them.
    #[error("malformed chunk size")]
    BadChunkSize,
    /// A chunk size larger than an offset.
    #[error("chunk size too large")]
    ChunkTooLarge,
    /// A chunk extension outside the grammar.
    #[error("malformed chunk extension")]
    BadChunkExtension,
    /// Extensions above 256 bytes in a line or 16 KiB in a body.
    #[error("chunk extensions too large")]
    ChunkExtensionsTooLarge,
    /// A CR without LF or a LF without CR.
    #[error("malformed line end in a chunked body")]
    BadLineEnd,
    /// Chunk data longer than the chunk size.
    #[error("chunk data longer than its size")]
    ChunkOverrun,
    /// A trailer line that is no field line.
    #[error("malformed trailer field")]
    BadTrailer,
    /// Trailers above 8 KiB.
    #[error("trailers too large")]
    TrailersTooLarge,
}

/// The result of one call of `decode`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeProgress {
    /// Consumed bytes of the input.
    pub consumed: usize,
    /// The content among them; may be empty.
    pub content: Range<usize>,
    pub is_done: bool,
}

/// Finds the content and the end of one body in bytes that arrive in any pieces.
///
/// Input: `decode` with the bytes after those consumed before. Call it again with the rest while it
/// consumes bytes and is not done.
#[derive(Clone, Debug)]
pub struct BodyDecoder {
    state: BodyState,
    /// Content bytes left in this chunk, or in a body of known length.
    remaining_bytes: u64,
    /// Accepts the deviations of old servers; see [`BodyDecoder::lenient`].
    is_lenient: bool,
    /// A strict decoder would have refused the input.
    needed_leniency: bool,
    /// Kept trailer lines, then the current line if it came in pieces.
    buffer: Vec<u8>,
    kept_bytes: u32,
    /// Bytes of all trailer lines, including dropped ones.
    trailer_bytes: u32,
    /// Bytes of all extensions.
    extension_bytes: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyState {
    Length,
    SizeLine,
    Data,
    /// The line end behind the data of a chunk.
    DataEnd,
    TrailerLine,
    Done,
}

impl BodyDecoder {
    /// Creates a decoder for a body with this framing. Without a body it is done at once.
    pub fn new(framing: BodyFraming) -> Self {
        let (state, remaining) = match framing {
            BodyFraming::None | BodyFraming::Length(0) => (BodyState::Done, 0),
            BodyFraming::Length(length) => (BodyState::Length, length),
            BodyFraming::Chunked => (BodyState::SizeLine, 0),
        };
        Self {
            state,
            remaining_bytes: remaining,
            is_lenient: false,
            needed_leniency: false,
            buffer: Vec::new(),
            kept_bytes: 0,
            trailer_bytes: 0,
            extension_bytes: 0,
        }
    }

    /// Creates a decoder for the body of a response. `None` if the body ends with the connection.
    #[must_use]
    pub fn for_response(framing: ResponseBodyFraming) -> Option<Self> {
        Some(Self::new(match framing {
            ResponseBodyFraming::None => BodyFraming::None,
            ResponseBodyFraming::Length(length) => BodyFraming::Length(length),
            ResponseBodyFraming::Chunked => BodyFraming::Chunked,
            ResponseBodyFraming::UntilClose => return None,
        }))
    }

    /// Creates a decoder for chunked responses of old servers. Accepts sizes padded with blanks,
    /// extensions of any form, lines that end in a bare LF, and drops invalid trailers. For
    /// responses only, which are framed anew before they are forwarded.
    #[must_use]
    pub fn lenient() -> Self {
        Self {
            is_lenient: true,
            ..Self::new(BodyFraming::Chunked)
        }
    }

    /// Whether strict decoding would have failed. Another reader may see a different end of such a
    /// body, so that no further response may be read from the connection.
    pub fn needed_leniency(&self) -> bool {
        self.needed_leniency
    }

    pub fn is_done(&self) -> bool {
        self.state == BodyState::Done
    }

    /// Content bytes left in a body of known length. `None` for a chunked body.
    pub fn remaining(&self) -> Option<u64> {
        match self.state {
            BodyState::Length => Some(self.remaining_bytes),
            BodyState::Done => Some(0),
            _ => None,
        }
    }

    /// The trailer lines, each `name: value` as sent with its CR LF; complete when done. Fields
    /// that may not follow the content (RFC 9110 §6.5.1) are dropped.
    pub fn trailer_lines(&self) -> &[u8] {
        &self.buffer[..self.kept_bytes as usize]
    }

    /// Consumes a prefix of `input` and returns its content, at most one range.
    ///
    /// # Errors
    /// Fails if the bytes are not strictly the chunked coding. The decoder must not be used
    /// further.
    pub fn decode(&mut self, input: &[u8]) -> Result<DecodeProgress, BodyError> {
        let mut at = 0;
        let mut data = 0..0;
        while at < input.len() {
            match self.state {
                BodyState::Done => break,
                BodyState::Length | BodyState::Data => {
                    if !data.is_empty() {
                        break;
                    }
                    data = self.consume_content(at, input.len());
                    at = data.end;
                }
                BodyState::SizeLine | BodyState::DataEnd | BodyState::TrailerLine => {
                    at += self.consume_line(&input[at..])?;
                }
            }
        }
        Ok(DecodeProgress {
            consumed: at,
            content: data,
            is_done: self.is_done(),
        })
    }

    fn consume_content(&mut self, at: usize, input_len: usize) -> Range<usize> {
        let available = input_len - at;
        let taken =
            usize::try_from(self.remaining_bytes).map_or(available, |left| left.min(available));
        self.remaining_bytes -= taken as u64;
        if self.remaining_bytes == 0 {
            self.state = if self.state == BodyState::Length {
                BodyState::Done
            } else {
                BodyState::DataEnd
            };
        }
        at..at + taken
    }

    /// Consumes a part of a line, or all of it.
    fn consume_line(&mut self, input: &[u8]) -> Result<usize, BodyError> {
        let (max, too_long) = match self.state {
            BodyState::DataEnd => (1, BodyError::ChunkOverrun),
            BodyState::TrailerLine => {
                let left = MAX_TRAILER_BYTES.saturating_sub(self.trailer_bytes as usize);
                (left, BodyError::TrailersTooLarge)
            }
            _ => {
                let extensions = match self.is_lenient {
                    true => MAX_SKIPPED_EXTENSION_BYTES,
                    false => MAX_LINE_EXTENSION_BYTES,
                };
                (
                    MAX_SIZE_DIGITS + extensions + 2,
                    BodyError::ChunkExtensionsTooLarge,
                )
            }
        };
        let end = memchr::memchr(b'\n', input).map_or(input.len(), |end| end + 1);
        let start = self.kept_bytes as usize;
        let line_len = self.buffer.len() - start;
        let used = end.min(max + 1 - line_len);
        let part = &input[..used];
        if line_len == 0 && part.ends_with(b"\n") {
            self.end_line(part)?;
            return Ok(used);
        }
        self.buffer.extend_from_slice(part);
        // A CR ends a line and occurs nowhere else.
        let tail = &self.buffer[start + line_len.saturating_sub(1)..];
        let cr = memchr::memchr(b'\r', tail);
        if cr.is_some_and(|at| !matches!(tail[at + 1..], [] | [b'\n'])) {
            return Err(BodyError::BadLineEnd);
        }
        if part.ends_with(b"\n") {
            let line = self.buffer.split_off(start);
            self.end_line(&line)?;
        } else if line_len + used > max {
            return Err(too_long);
        }
        Ok(used)
    }

    fn end_line(&mut self, line: &[u8]) -> Result<(), BodyError> {
        let text = match line {
            [text @ .., b'\r', _] => text,
            [text @ .., _] if self.is_lenient => {
                self.needed_leniency = true;
                text
            }
            _ => return Err(BodyError::BadLineEnd),
        };
        if memchr::memchr(b'\r', text).is_some() {
            return Err(BodyError::BadLineEnd);
        }
        match (self.state, text) {
            (BodyState::DataEnd, []) => self.state = BodyState::SizeLine,
            (BodyState::DataEnd, _) => return Err(BodyError::ChunkOverrun),
            (BodyState::TrailerLine, []) => self.state = BodyState::Done,
            (BodyState::TrailerLine, _) => {
                self.trailer_bytes += line_bytes(line);
                self.end_trailer_line(text)?;
            }
            _ => self.end_size_line(text)?,
        }
        Ok(())
    }

    // Leading zeros are valid (RFC 9112 §7.1).
    fn end_size_line(&mut self, line: &[u8]) -> Result<(), BodyError> {
        let end = line.iter().position(|byte| !byte.is_ascii_hexdigit());
        let (digits, rest) = line.split_at(end.unwrap_or(line.len()));
        if digits.is_empty() || digits.len() > MAX_SIZE_DIGITS {
            return Err(BodyError::BadChunkSize);
        }
        let digits_text = str::from_utf8(digits).unwrap_or_default();
        let size = i64::from_str_radix(digits_text, 16).map_err(|_| BodyError::ChunkTooLarge)?;
        self.extension_bytes = self.extension_bytes.saturating_add(line_bytes(rest));
        let checked = match rest.len() > MAX_LINE_EXTENSION_BYTES
            || self.extension_bytes > MAX_EXTENSION_BYTES
        {
            true => Err(BodyError::ChunkExtensionsTooLarge),
            false => check_extensions(rest),
        };
        match checked {
            // An extension outside the grammar is skipped.
            Err(_) if self.is_lenient && matches!(rest, [b';' | b' ' | b'\t', ..]) => {
                self.needed_leniency = true;
            }
            checked => checked?,
        }
        // More digits than fit an offset: readers that count digits, zeros included, refuse them.
        self.needed_leniency |= self.is_lenient && digits.len() > OFFSET_DIGITS;
        self.remaining_bytes = size.unsigned_abs();
        self.state = match size {
            0 => BodyState::TrailerLine,
            _ => BodyState::Data,
        };
        Ok(())
    }

    fn end_trailer_line(&mut self, line: &[u8]) -> Result<(), BodyError> {
        match is_allowed_trailer_line(line) {
            Ok(true) => {
                self.buffer.extend_from_slice(&[line, b"\r\n"].concat());
                self.kept_bytes = line_bytes(&self.buffer);
            }
            Ok(false) => {}
            Err(_) if self.is_lenient => self.needed_leniency = true,
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// The length of bounded bytes.
fn line_bytes(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

/// Checks what follows a chunk size (RFC 9112 §7.1.1):
/// `*( BWS ";" BWS name [ BWS "=" BWS value ] )`. Blanks are allowed only around these two marks.
fn check_extensions(mut rest: &[u8]) -> Result<(), BodyError> {
    let mut error = BodyError::BadChunkSize;
    while !rest.is_empty() {
        let marked = trim_start_blanks(rest).strip_prefix(b";").ok_or(error)?;
        error = BodyError::BadChunkExtension;
        rest = skip_token(trim_start_blanks(marked)).ok_or(error)?;
        if let Some(value) = trim_start_blanks(rest).strip_prefix(b"=") {
            rest = match trim_start_blanks(value) {
                [b'"', quoted @ ..] => skip_quoted(quoted),
                token => skip_token(token),
            }
            .ok_or(error)?;
        }
    }
    Ok(())
}

fn trim_start_blanks(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = bytes {
        bytes = rest;
    }
    bytes
}

fn skip_token(bytes: &[u8]) -> Option<&[u8]> {
    let len = bytes
        .iter()
        .take_while(|&&byte| is_token_byte(byte))
        .count();
    (len > 0).then(|| &bytes[len..])
}

/// The bytes behind a quoted string, from behind its first quote.
fn skip_quoted(mut bytes: &[u8]) -> Option<&[u8]> {
    loop {
        bytes = match bytes {
            [b'"', rest @ ..] => return Some(rest),
            [b'\\', byte, rest @ ..] | [byte, rest @ ..] if is_field_value_byte(*byte) => rest,
            _ => return None,
        };
    }
}

/// Whether a trailer line is kept. A field that frames, routes or authenticates is too late to be
/// applied, and merging it is forbidden (RFC 9110 §6.5.1).
fn is_allowed_trailer_line(line: &[u8]) -> Result<bool, BodyError> {
    let colon = memchr::memchr(b':', line).ok_or(BodyError::BadTrailer)?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    if !is_token(name) || !value.iter().all(|&byte| is_field_value_byte(byte)) {
        return Err(BodyError::BadTrailer);
    }
    Ok(!is_forbidden_trailer(name))
}

/// Appends the line that opens a chunk of `len` bytes. `len` must not be 0: that is `LAST_CHUNK`.
pub fn encode_chunk_head(len: usize, out: &mut Vec<u8>) {
    debug_assert!(len > 0, "a chunk of nothing ends the body");
    // Four bits per digit, without leading zeros.
    let digits = (usize::BITS - len.leading_zeros()).div_ceil(4);
    for place in (0..digits).rev() {
        out.push(HEX_DIGITS[len >> (place * 4) & 0xf]);
    }
    out.extend_from_slice(b"\r\n");
}

/// Ends a chunked body without trailers.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Far above any sender's padding; bounds an endless size.
const MAX_SIZE_DIGITS: usize = 256;
/// Hexadecimal digits of the largest offset.
const OFFSET_DIGITS: usize = 16;
const MAX_LINE_EXTENSION_BYTES: usize = 256;
const MAX_EXTENSION_BYTES: u32 = 16 << 10;
/// Keeps a server from sending nothing but extensions that are skipped.
const MAX_SKIPPED_EXTENSION_BYTES: usize = 16 << 10;
const MAX_TRAILER_BYTES: usize = 8 << 10;

#[cfg(test)]
mod tests;
