//! Where a request body ends: by length or by the chunked coding (RFC 9112 §6.2, §7.1).
//!
//! `edge` keeps one `BodyDecoder` per request and feeds it what it received, in any pieces; the
//! decoder says which part is content and how much was framing. It copies nothing but trailers.
//!
//! What must stay true: the result does not depend on how the bytes were split; the decoder never
//! takes a byte beyond the end of the body; every deviation from the grammar is an error, since a
//! chunk line read in two ways is a smuggled request.

use std::ops::Range;

use thiserror::Error;

use crate::{
    grammar::{DIGITS, is_token, is_token_byte, is_value_byte},
    head::BodyFraming,
    trailers::is_forbidden_trailer,
};

/// Why a body cannot be read on; the connection must close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BodyError {
    /// No hexadecimal digits, more than 256, or another byte among them.
    #[error("malformed chunk size")]
    BadChunkSize,
    /// A chunk of more bytes than an offset can count.
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
    /// Chunk data that does not end where its size said.
    #[error("chunk data longer than its size")]
    ChunkOverrun,
    /// A trailer line that is no field line.
    #[error("malformed trailer field")]
    BadTrailer,
    /// Trailers above 8 KiB.
    #[error("trailers too large")]
    TrailersTooLarge,
}

/// What one call of `decode` found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// How many bytes of the input are dealt with.
    pub consumed: usize,
    /// Which of them are content; empty when none are.
    pub data: Range<usize>,
    /// Whether the body is complete.
    pub done: bool,
}

/// Finds content and end of one body in bytes that arrive in any pieces.
///
/// Inputs: `decode` with the bytes that follow what was consumed before. Call it again with the
/// rest as long as it consumes something and is not done.
#[derive(Clone, Debug)]
pub struct BodyDecoder {
    state: State,
    /// Bytes of content still to come in this chunk, or in the body of known length.
    remaining: u64,
    size_digits: u16,
    /// Read as servers of long ago write it; see [`BodyDecoder::lenient`].
    is_lenient: bool,
    /// Something was read that a strict reader refuses.
    is_mended: bool,
    line_extension_bytes: u16,
    extension_bytes: u16,
    /// Validated lines, then the line being read.
    trailers: Vec<u8>,
    trailer_line_start: usize,
    /// Bytes of trailer lines seen, those that are left out included.
    trailer_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Content of a body of known length.
    Length,
    /// Hexadecimal digits of a chunk size.
    Size,
    /// Blanks behind the digits: an extension follows.
    SizeBlank,
    /// After `;`.
    ExtensionNameStart,
    ExtensionName,
    /// Blanks behind a name: `=` or another extension follows.
    ExtensionNameBlank,
    /// After `=`.
    ExtensionValueStart,
    ExtensionToken,
    ExtensionQuoted,
    /// After a backslash in a quoted string.
    ExtensionEscape,
    ExtensionQuotedEnd,
    /// Blanks behind a value: another extension follows.
    ExtensionValueBlank,
    /// Behind a size, for a lenient reader: whatever it is.
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
    /// A decoder for a body framed like this; without a body it is done at once.
    pub fn new(framing: BodyFraming) -> Self {
        let (state, remaining) = match framing {
            BodyFraming::None | BodyFraming::Length(0) => (State::Done, 0),
            BodyFraming::Length(length) => (State::Length, length),
            BodyFraming::Chunked => (State::Size, 0),
        };
        Self {
            state,
            remaining,
            size_digits: 0,
            is_lenient: false,
            is_mended: false,
            line_extension_bytes: 0,
            extension_bytes: 0,
            trailers: Vec::new(),
            trailer_line_start: 0,
            trailer_bytes: 0,
        }
    }

    /// A decoder for a chunked response as servers of long ago write it: sizes padded with blanks,
    /// extensions of any form, lines that end in a bare LF, trailers that are no fields and are left out.
    /// For responses alone, which are framed anew before anybody else reads them.
    #[must_use]
    pub fn lenient() -> Self {
        Self {
            is_lenient: true,
            ..Self::new(BodyFraming::Chunked)
        }
    }

    /// Whether a lenient reader was needed. Another reader may see the end of such a body
    /// elsewhere, so nothing that follows it on the connection may be read as the next response.
    pub fn is_mended(&self) -> bool {
        self.is_mended
    }

    /// Whether the whole body was consumed.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Bytes of content still to come when the length was given; `None` for a chunked body.
    pub fn remaining(&self) -> Option<u64> {
        match self.state {
            State::Length => Some(self.remaining),
            State::Done => Some(0),
            _ => None,
        }
    }

    /// The trailer lines, each `name: value` as sent with its CR LF; complete when done. Fields that
    /// may not follow the content (RFC 9110 §6.5.1) are left out.
    pub fn trailers(&self) -> &[u8] {
        self.trailers
            .get(..self.trailer_line_start)
            .unwrap_or_default()
    }

    /// Consumes a prefix of `input` and tells which sub-range of it is content (at most one).
    ///
    /// # Errors
    /// When the bytes are not the chunked coding, strictly read. The decoder is then of no use.
    pub fn decode(&mut self, input: &[u8]) -> Result<Decoded, BodyError> {
        let mut at = 0;
        let mut data = 0..0;
        while at < input.len() {
            match self.state {
                State::Done => break,
                State::Length | State::Data => {
                    if !data.is_empty() {
                        break;
                    }
                    data = self.take_content(at, input.len());
                    at = data.end;
                }
                _ => {
                    self.take_framing(input[at])?;
                    at += 1;
                }
            }
        }
        Ok(Decoded {
            consumed: at,
            data,
            done: self.is_done(),
        })
    }

    fn take_content(&mut self, at: usize, input_len: usize) -> Range<usize> {
        let available = input_len - at;
        let taken = usize::try_from(self.remaining).map_or(available, |left| left.min(available));
        self.remaining -= taken as u64;
        if self.remaining == 0 {
            self.state = if self.state == State::Length {
                State::Done
            } else {
                State::DataCr
            };
        }
        at..at + taken
    }

    fn take_framing(&mut self, byte: u8) -> Result<(), BodyError> {
        if self.is_lenient && self.take_leniently(byte)? {
            self.is_mended = true;
            return Ok(());
        }
        match self.state {
            State::Size => self.take_size(byte),
            State::SizeLf => self.end_size_line(byte),
            State::DataCr if byte == b'\r' => self.go(State::DataLf),
            State::DataCr => Err(BodyError::ChunkOverrun),
            State::DataLf if byte == b'\n' => self.go(State::Size),
            State::TrailerStart if byte == b'\r' => self.go(State::FinalLf),
            State::TrailerStart | State::TrailerLine => self.take_trailer(byte),
            State::TrailerLf if byte == b'\n' => self.end_trailer_line(),
            State::FinalLf if byte == b'\n' => self.go(State::Done),
            State::DataLf | State::TrailerLf | State::FinalLf => Err(BodyError::BadLineEnd),
            // Content and end are dealt with by `decode`.
            State::Length | State::Data | State::Done => Ok(()),
            // What is no extension by the grammar is one all the same, of which nothing is kept.
            _ if self.is_lenient => match self.take_extension(byte) {
                Ok(()) => Ok(()),
                Err(_) => {
                    self.is_mended = true;
                    self.skip_extension(byte)
                }
            },
            _ => self.take_extension(byte),
        }
    }

    /// Takes a byte that only a lenient reader takes; `false` leaves it to the strict one.
    fn take_leniently(&mut self, byte: u8) -> Result<bool, BodyError> {
        match (self.state, byte) {
            (State::Size, b'\n') if self.size_digits > 0 => self.end_size_line(byte)?,
            (State::SkippedExtension, _) => self.skip_extension(byte)?,
            (State::DataCr, b'\n') => self.state = State::Size,
            (State::TrailerStart, b'\n') => self.state = State::Done,
            (State::TrailerLine, b'\n') => {
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
            b'\r' => return self.go(State::SizeLf),
            _ => {}
        }
        self.line_extension_bytes = self.line_extension_bytes.saturating_add(1);
        if self.line_extension_bytes > SKIPPED_EXTENSION_BYTES_MAX {
            return Err(BodyError::ChunkExtensionsTooLarge);
        }
        self.go(State::SkippedExtension)
    }

    fn go(&mut self, state: State) -> Result<(), BodyError> {
        self.state = state;
        Ok(())
    }

    // Leading zeros are of the grammar (RFC 9112 §7.1); the shift never loses a digit.
    fn take_size(&mut self, byte: u8) -> Result<(), BodyError> {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            b'\r' if self.size_digits > 0 => return self.go(State::SizeLf),
            b';' if self.size_digits > 0 => return self.go(State::ExtensionNameStart),
            b' ' | b'\t' if self.size_digits > 0 => return self.go(State::SizeBlank),
            _ => return Err(BodyError::BadChunkSize),
        };
        if self.size_digits == SIZE_DIGITS_MAX {
            return Err(BodyError::BadChunkSize);
        }
        if self.remaining >> (u64::BITS - 4) != 0 {
            return Err(BodyError::ChunkTooLarge);
        }
        self.size_digits += 1;
        // More than fit an offset: readers that count digits instead of zeros refuse it.
        self.is_mended |= self.is_lenient && self.size_digits > OFFSET_DIGITS;
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
        self.go(if self.remaining == 0 {
            State::TrailerStart
        } else {
            State::Data
        })
    }

    // RFC 9112 §7.1.1: *( BWS ";" BWS name [ BWS "=" BWS value ] ). Blanks stand around these two
    // marks only, so none may end the line.
    fn take_extension(&mut self, byte: u8) -> Result<(), BodyError> {
        self.line_extension_bytes = self.line_extension_bytes.saturating_add(1);
        self.extension_bytes = self.extension_bytes.saturating_add(1);
        if self.line_extension_bytes > LINE_EXTENSION_BYTES_MAX
            || self.extension_bytes > EXTENSION_BYTES_MAX
        {
            return Err(BodyError::ChunkExtensionsTooLarge);
        }
        let is_token = is_token_byte(byte);
        self.state = match (self.state, byte) {
            (
                State::SizeBlank
                | State::ExtensionNameStart
                | State::ExtensionNameBlank
                | State::ExtensionValueStart
                | State::ExtensionValueBlank,
                b' ' | b'\t',
            ) => self.state,
            (State::ExtensionName, b' ' | b'\t') => State::ExtensionNameBlank,
            (State::ExtensionToken | State::ExtensionQuotedEnd, b' ' | b'\t') => {
                State::ExtensionValueBlank
            }
            (State::ExtensionNameStart | State::ExtensionName, _) if is_token => {
                State::ExtensionName
            }
            (State::ExtensionName | State::ExtensionNameBlank, b'=') => State::ExtensionValueStart,
            (State::ExtensionValueStart, b'"') => State::ExtensionQuoted,
            (State::ExtensionValueStart | State::ExtensionToken, _) if is_token => {
                State::ExtensionToken
            }
            (State::ExtensionQuoted, b'"') => State::ExtensionQuotedEnd,
            (State::ExtensionQuoted, b'\\') => State::ExtensionEscape,
            (State::ExtensionQuoted | State::ExtensionEscape, _) if is_value_byte(byte) => {
                State::ExtensionQuoted
            }
            (
                State::SizeBlank
                | State::ExtensionName
                | State::ExtensionNameBlank
                | State::ExtensionToken
                | State::ExtensionQuotedEnd
                | State::ExtensionValueBlank,
                b';',
            ) => State::ExtensionNameStart,
            (State::ExtensionName | State::ExtensionToken | State::ExtensionQuotedEnd, b'\r') => {
                State::SizeLf
            }
            (State::SizeBlank, _) => return Err(BodyError::BadChunkSize),
            _ => return Err(BodyError::BadChunkExtension),
        };
        Ok(())
    }

    fn take_trailer(&mut self, byte: u8) -> Result<(), BodyError> {
        if byte == b'\n' {
            return Err(BodyError::BadLineEnd);
        }
        self.trailer_bytes += 1;
        if self.trailer_bytes > TRAILER_BYTES_MAX {
            return Err(BodyError::TrailersTooLarge);
        }
        self.trailers.push(byte);
        self.go(if byte == b'\r' {
            State::TrailerLf
        } else {
            State::TrailerLine
        })
    }

    fn end_trailer_line(&mut self) -> Result<(), BodyError> {
        let line = self
            .trailers
            .get(self.trailer_line_start..)
            .unwrap_or_default();
        let is_kept = match is_kept_trailer(line.strip_suffix(b"\r").unwrap_or(line)) {
            Err(_) if self.is_lenient => {
                self.is_mended = true;
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
        self.go(State::TrailerStart)
    }
}

/// Whether a trailer line is believed: one that frames, routes or authenticates comes too late to be
/// obeyed, and merging it is forbidden (RFC 9110 §6.5.1).
fn is_kept_trailer(line: &[u8]) -> Result<bool, BodyError> {
    let colon = memchr::memchr(b':', line).ok_or(BodyError::BadTrailer)?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    if !is_token(name) || !value.iter().all(|&byte| is_value_byte(byte)) {
        return Err(BodyError::BadTrailer);
    }
    Ok(!is_forbidden_trailer(name))
}

/// Appends the line that opens a chunk of `len` bytes, which must not be 0: that is `LAST_CHUNK`.
pub fn encode_chunk_head(len: usize, out: &mut Vec<u8>) {
    debug_assert!(len > 0, "a chunk of nothing ends the body");
    // Four bits a digit, leading zeros left out.
    let digits = (usize::BITS - len.leading_zeros()).div_ceil(4);
    for place in (0..digits).rev() {
        out.push(DIGITS[len >> (place * 4) & 0xf]);
    }
    out.extend_from_slice(b"\r\n");
}

/// What ends a chunked body without trailers.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Far above what any sender pads to, and an end to a size that dribbles in.
const SIZE_DIGITS_MAX: u16 = 256;
/// Hexadecimal digits of the largest offset.
const OFFSET_DIGITS: u16 = 16;
const LINE_EXTENSION_BYTES_MAX: u16 = 256;
const EXTENSION_BYTES_MAX: u16 = 16 << 10;
/// Nothing is kept of an extension: the bound only keeps a server from sending nothing else.
const SKIPPED_EXTENSION_BYTES_MAX: u16 = 16 << 10;
const TRAILER_BYTES_MAX: usize = 8 << 10;

#[cfg(test)]
mod tests;
