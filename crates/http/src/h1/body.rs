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

use std::ops::Range;

use thiserror::Error;

use crate::{
    grammar::{DIGITS, is_token, is_token_byte, is_value_byte},
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
    /// A CR without LF or a LF without CR where a line ends.
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
    remaining: u64,
    size_digits: u16,
    /// Accepts the deviations of old servers; see [`BodyDecoder::lenient`].
    is_lenient: bool,
    /// A strict decoder would have refused the input.
    needed_leniency: bool,
    line_extension_bytes: u16,
    extension_bytes: u16,
    /// Validated lines, then the current line.
    trailers: Vec<u8>,
    trailer_line_start: usize,
    /// Bytes of all trailer lines, including dropped ones.
    trailer_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyState {
    /// Content of a body of known length.
    Length,
    /// Hexadecimal digits of a chunk size.
    Size,
    /// Blanks after the digits: an extension follows.
    SizeBlank,
    /// After `;`.
    ExtensionNameStart,
    ExtensionName,
    /// Blanks after a name: `=` or another extension follows.
    ExtensionNameBlank,
    /// After `=`.
    ExtensionValueStart,
    ExtensionToken,
    ExtensionQuoted,
    /// After a backslash in a quoted string.
    ExtensionEscape,
    ExtensionQuotedEnd,
    /// Blanks after a value: another extension follows.
    ExtensionValueBlank,
    /// Lenient only: any bytes after a size.
    SkippedExtension,
    /// After the CR of a chunk line.
    SizeLf,
    Data,
    DataCr,
    DataLf,
    /// At the start of a trailer line or of the final blank line.
    TrailerStart,
    TrailerLine,
    TrailerLf,
    FinalLf,
    Done,
}

impl BodyDecoder {
    /// Creates a decoder for a body with this framing. Without a body it is done at once.
    pub fn new(framing: BodyFraming) -> Self {
        let (state, remaining) = match framing {
            BodyFraming::None | BodyFraming::Length(0) => (BodyState::Done, 0),
            BodyFraming::Length(length) => (BodyState::Length, length),
            BodyFraming::Chunked => (BodyState::Size, 0),
        };
        Self {
            state,
            remaining,
            size_digits: 0,
            is_lenient: false,
            needed_leniency: false,
            line_extension_bytes: 0,
            extension_bytes: 0,
            trailers: Vec::new(),
            trailer_line_start: 0,
            trailer_bytes: 0,
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
            BodyState::Length => Some(self.remaining),
            BodyState::Done => Some(0),
            _ => None,
        }
    }

    /// The trailer lines, each `name: value` as sent with its CR LF; complete when done. Fields
    /// that may not follow the content (RFC 9110 §6.5.1) are dropped.
    pub fn trailers(&self) -> &[u8] {
        self.trailers
            .get(..self.trailer_line_start)
            .unwrap_or_default()
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
                _ => {
                    self.consume_framing(input[at])?;
                    at += 1;
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
        let taken = usize::try_from(self.remaining).map_or(available, |left| left.min(available));
        self.remaining -= taken as u64;
        if self.remaining == 0 {
            self.state = if self.state == BodyState::Length {
                BodyState::Done
            } else {
                BodyState::DataCr
            };
        }
        at..at + taken
    }

    fn consume_framing(&mut self, byte: u8) -> Result<(), BodyError> {
        if self.is_lenient && self.consume_leniently(byte)? {
            self.needed_leniency = true;
            return Ok(());
        }
        match self.state {
            BodyState::Size => self.consume_size(byte),
            BodyState::SizeLf => self.end_size_line(byte),
            BodyState::DataCr if byte == b'\r' => self.enter(BodyState::DataLf),
            BodyState::DataCr => Err(BodyError::ChunkOverrun),
            BodyState::DataLf if byte == b'\n' => self.enter(BodyState::Size),
            BodyState::TrailerStart if byte == b'\r' => self.enter(BodyState::FinalLf),
            BodyState::TrailerStart | BodyState::TrailerLine => self.consume_trailer(byte),
            BodyState::TrailerLf if byte == b'\n' => self.end_trailer_line(),
            BodyState::FinalLf if byte == b'\n' => self.enter(BodyState::Done),
            BodyState::DataLf | BodyState::TrailerLf | BodyState::FinalLf => {
                Err(BodyError::BadLineEnd)
            }
            // Handled by `decode`.
            BodyState::Length | BodyState::Data | BodyState::Done => Ok(()),
            // An extension outside the grammar is skipped.
            _ if self.is_lenient => match self.consume_extension(byte) {
                Ok(()) => Ok(()),
                Err(_) => {
                    self.needed_leniency = true;
                    self.skip_extension(byte)
                }
            },
            _ => self.consume_extension(byte),
        }
    }

    /// Consumes a byte that only lenient decoding accepts. `false` leaves it to the strict rules.
    fn consume_leniently(&mut self, byte: u8) -> Result<bool, BodyError> {
        match (self.state, byte) {
            (BodyState::Size, b'\n') if self.size_digits > 0 => self.end_size_line(byte)?,
            (BodyState::SkippedExtension, _) => self.skip_extension(byte)?,
            (BodyState::DataCr, b'\n') => self.state = BodyState::Size,
            (BodyState::TrailerStart, b'\n') => self.state = BodyState::Done,
            (BodyState::TrailerLine, b'\n') => {
                self.trailers.push(b'\r');
                self.end_trailer_line()?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn skip_extension(&mut self, byte: u8) -> Result<(), BodyError> {
        match byte {
            b'\n' => return self.end_size_line(byte),
            b'\r' => return self.enter(BodyState::SizeLf),
            _ => {}
        }
        self.line_extension_bytes = self.line_extension_bytes.saturating_add(1);
        if self.line_extension_bytes > MAX_SKIPPED_EXTENSION_BYTES {
            return Err(BodyError::ChunkExtensionsTooLarge);
        }
        self.enter(BodyState::SkippedExtension)
    }

    fn enter(&mut self, state: BodyState) -> Result<(), BodyError> {
        self.state = state;
        Ok(())
    }

    // Leading zeros are valid (RFC 9112 §7.1). The shift never loses a digit.
    fn consume_size(&mut self, byte: u8) -> Result<(), BodyError> {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            b'\r' if self.size_digits > 0 => return self.enter(BodyState::SizeLf),
            b';' if self.size_digits > 0 => return self.enter(BodyState::ExtensionNameStart),
            b' ' | b'\t' if self.size_digits > 0 => return self.enter(BodyState::SizeBlank),
            _ => return Err(BodyError::BadChunkSize),
        };
        if self.size_digits == MAX_SIZE_DIGITS {
            return Err(BodyError::BadChunkSize);
        }
        if self.remaining >> (u64::BITS - 4) != 0 {
            return Err(BodyError::ChunkTooLarge);
        }
        self.size_digits += 1;
        // More digits than fit an offset: readers that count digits, zeros included, refuse them.
        self.needed_leniency |= self.is_lenient && self.size_digits > OFFSET_DIGITS;
        self.remaining = self.remaining << 4 | u64::from(digit);
        Ok(())
    }

    fn end_size_line(&mut self, byte: u8) -> Result<(), BodyError> {
        if byte != b'\n' {
            return Err(BodyError::BadLineEnd);
        }
        if i64::try_from(self.remaining).is_err() {
            return Err(BodyError::ChunkTooLarge);
        }
        self.size_digits = 0;
        self.line_extension_bytes = 0;
        self.enter(if self.remaining == 0 {
            BodyState::TrailerStart
        } else {
            BodyState::Data
        })
    }

    // RFC 9112 §7.1.1: *( BWS ";" BWS name [ BWS "=" BWS value ] ). Blanks are allowed only around
    // these two marks, not at the end of the line.
    fn consume_extension(&mut self, byte: u8) -> Result<(), BodyError> {
        self.line_extension_bytes = self.line_extension_bytes.saturating_add(1);
        self.extension_bytes = self.extension_bytes.saturating_add(1);
        if self.line_extension_bytes > MAX_LINE_EXTENSION_BYTES
            || self.extension_bytes > MAX_EXTENSION_BYTES
        {
            return Err(BodyError::ChunkExtensionsTooLarge);
        }
        let is_token = is_token_byte(byte);
        self.state = match (self.state, byte) {
            (
                BodyState::SizeBlank
                | BodyState::ExtensionNameStart
                | BodyState::ExtensionNameBlank
                | BodyState::ExtensionValueStart
                | BodyState::ExtensionValueBlank,
                b' ' | b'\t',
            ) => self.state,
            (BodyState::ExtensionName, b' ' | b'\t') => BodyState::ExtensionNameBlank,
            (BodyState::ExtensionToken | BodyState::ExtensionQuotedEnd, b' ' | b'\t') => {
                BodyState::ExtensionValueBlank
            }
            (BodyState::ExtensionNameStart | BodyState::ExtensionName, _) if is_token => {
                BodyState::ExtensionName
            }
            (BodyState::ExtensionName | BodyState::ExtensionNameBlank, b'=') => {
                BodyState::ExtensionValueStart
            }
            (BodyState::ExtensionValueStart, b'"') => BodyState::ExtensionQuoted,
            (BodyState::ExtensionValueStart | BodyState::ExtensionToken, _) if is_token => {
                BodyState::ExtensionToken
            }
            (BodyState::ExtensionQuoted, b'"') => BodyState::ExtensionQuotedEnd,
            (BodyState::ExtensionQuoted, b'\\') => BodyState::ExtensionEscape,
            (BodyState::ExtensionQuoted | BodyState::ExtensionEscape, _) if is_value_byte(byte) => {
                BodyState::ExtensionQuoted
            }
            (
                BodyState::SizeBlank
                | BodyState::ExtensionName
                | BodyState::ExtensionNameBlank
                | BodyState::ExtensionToken
                | BodyState::ExtensionQuotedEnd
                | BodyState::ExtensionValueBlank,
                b';',
            ) => BodyState::ExtensionNameStart,
            (
                BodyState::ExtensionName
                | BodyState::ExtensionToken
                | BodyState::ExtensionQuotedEnd,
                b'\r',
            ) => BodyState::SizeLf,
            (BodyState::SizeBlank, _) => return Err(BodyError::BadChunkSize),
            _ => return Err(BodyError::BadChunkExtension),
        };
        Ok(())
    }

    fn consume_trailer(&mut self, byte: u8) -> Result<(), BodyError> {
        if byte == b'\n' {
            return Err(BodyError::BadLineEnd);
        }
        self.trailer_bytes += 1;
        if self.trailer_bytes > MAX_TRAILER_BYTES {
            return Err(BodyError::TrailersTooLarge);
        }
        self.trailers.push(byte);
        self.enter(if byte == b'\r' {
            BodyState::TrailerLf
        } else {
            BodyState::TrailerLine
        })
    }

    fn end_trailer_line(&mut self) -> Result<(), BodyError> {
        let line = self
            .trailers
            .get(self.trailer_line_start..)
            .unwrap_or_default();
        let is_kept = match is_allowed_trailer_line(line.strip_suffix(b"\r").unwrap_or(line)) {
            Err(_) if self.is_lenient => {
                self.needed_leniency = true;
                false
            }
            checked => checked?,
        };
        if is_kept {
            self.trailers.push(b'\n');
            self.trailer_line_start = self.trailers.len();
        } else {
            self.trailers.truncate(self.trailer_line_start);
        }
        self.trailer_bytes += 1;
        self.enter(BodyState::TrailerStart)
    }
}

/// Whether a trailer line is kept. A field that frames, routes or authenticates is too late to be
/// applied, and merging it is forbidden (RFC 9110 §6.5.1).
fn is_allowed_trailer_line(line: &[u8]) -> Result<bool, BodyError> {
    let colon = memchr::memchr(b':', line).ok_or(BodyError::BadTrailer)?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    if !is_token(name) || !value.iter().all(|&byte| is_value_byte(byte)) {
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
        out.push(DIGITS[len >> (place * 4) & 0xf]);
    }
    out.extend_from_slice(b"\r\n");
}

/// Ends a chunked body without trailers.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Far above any sender's padding; bounds an endless size.
const MAX_SIZE_DIGITS: u16 = 256;
/// Hexadecimal digits of the largest offset.
const OFFSET_DIGITS: u16 = 16;
const MAX_LINE_EXTENSION_BYTES: u16 = 256;
const MAX_EXTENSION_BYTES: u16 = 16 << 10;
/// Skipped extensions are not stored; the limit keeps a server from sending nothing else.
const MAX_SKIPPED_EXTENSION_BYTES: u16 = 16 << 10;
const MAX_TRAILER_BYTES: usize = 8 << 10;

#[cfg(test)]
mod tests;
