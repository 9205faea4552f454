//! FastCGI (FastCGI Specification 1.0, 1996), the web server's side: decodes records.
//!
//! `request` writes the records of a request; [`FastCgiDecoder`] decodes those of its response: a
//! CGI response in STDOUT records, log lines in STDERR records at any time, END_REQUEST. A
//! connection carries one request at a time, always number 1, as all applications in use expect.
//! The relay of an upstream is the caller; its health checks use [`encode_probe`] and
//! [`parse_probe_response`].
//!
//! # Invariants
//!
//! - Every length is checked against the record that carries it.
//! - An end before the head, or bytes after the end, are errors.
//! - Only eight bytes and an incomplete line of the head are buffered.

mod request;

pub use request::{
    FastCgiParamsWriter, MAX_RECORD_CONTENT, encode_abort, encode_begin, encode_stdin,
    encode_stdin_end, stdin_header,
};

use crate::cgi;
use crate::gateway::{DecodedGatewayEvent, GatewayError, GatewayEvent, GatewayHeadLimits};

/// Decodes one response. Inputs and outputs as for [`crate::gateway::ResponseDecoder`].
#[derive(Debug)]
pub struct FastCgiDecoder {
    response: cgi::CgiDecoder,
    stage: Stage,
    record: RecordHeader,
    /// Remaining content of the record.
    remaining: u16,
    /// The bytes received of a record header or of END_REQUEST's body.
    gathered: [u8; 8],
    gathered_len: u8,
    is_stdout_closed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Header,
    Content,
    /// Remaining bytes of padding.
    Padding(u8),
    Ended,
}

impl FastCgiDecoder {
    /// Creates a decoder for the response to a request that was just sent. `answers_head`: the
    /// request was a `HEAD`, so that the response has no body.
    pub fn new(limits: GatewayHeadLimits, answers_head: bool) -> Self {
        Self {
            response: cgi::CgiDecoder::new(limits, answers_head),
            stage: Stage::Header,
            record: RecordHeader::default(),
            remaining: 0,
            gathered: [0; 8],
            gathered_len: 0,
            is_stdout_closed: false,
        }
    }

    /// Takes the next event off the front of `input`; without one, all of `input` was consumed.
    ///
    /// # Errors
    /// An unexpected record or a wrong length, another protocol status than complete, and any error
    /// of the CGI response.
    pub fn decode<'a>(&mut self, input: &'a [u8]) -> Result<DecodedGatewayEvent<'a>, GatewayError> {
        let mut consumed = 0;
        while consumed < input.len() {
            let step = self.decode_step(&input[consumed..])?;
            consumed += step.consumed;
            let event = match self.advance_stage()? {
                true => Some(GatewayEvent::End {
                    reusable: consumed == input.len(),
                }),
                false => step.event,
            };
            if event.is_some() {
                return Ok(DecodedGatewayEvent { consumed, event });
            }
        }
        Ok(DecodedGatewayEvent::without_event(consumed))
    }

    /// Handles the end of the connection.
    ///
    /// # Errors
    /// The response was not complete.
    pub fn decode_eof(&mut self) -> Result<Option<GatewayEvent<'static>>, GatewayError> {
        if self.stage == Stage::Ended {
            Ok(None)
        } else {
            Err(GatewayError::Truncated)
        }
    }

    /// Takes some of `input`, which is not empty.
    fn decode_step<'a>(
        &mut self,
        input: &'a [u8],
    ) -> Result<DecodedGatewayEvent<'a>, GatewayError> {
        match self.stage {
            Stage::Header => {
                let consumed = self.gather(input, 8);
                if self.gathered_len == 8 {
                    self.begin_record()?;
                }
                Ok(DecodedGatewayEvent::without_event(consumed))
            }
            Stage::Content => self.read_content(input),
            Stage::Padding(left) => {
                let (left, consumed) = split_remaining(u16::from(left), input);
                self.stage = Stage::Padding(u8::try_from(left).unwrap_or_default());
                Ok(DecodedGatewayEvent::without_event(consumed))
            }
            Stage::Ended => Err(GatewayError::DataAfterEnd),
        }
    }

    /// Moves past completed parts; returns whether that is the end of the response, with its
    /// padding.
    fn advance_stage(&mut self) -> Result<bool, GatewayError> {
        if self.stage == Stage::Content && self.remaining == 0 {
            self.end_content()?;
            self.stage = Stage::Padding(self.record.padding);
        }
        if self.stage != Stage::Padding(0) {
            return Ok(false);
        }
        let is_end = self.record.kind == END_REQUEST;
        self.stage = if is_end { Stage::Ended } else { Stage::Header };
        Ok(is_end)
    }

    fn begin_record(&mut self) -> Result<(), GatewayError> {
        let header = RecordHeader::parse(self.gathered)?;
        self.gathered_len = 0;
        match (header.kind, header.request) {
            (STDOUT | STDERR | END_REQUEST, REQUEST_ID) => (),
            // Management records are valid, but carry nothing for a response.
            (GET_VALUES_RESULT | UNKNOWN_TYPE, 0) => (),
            (STDOUT | STDERR | END_REQUEST, other) => {
                return Err(GatewayError::FastCgiRequestId(other));
            }
            (kind, _) => return Err(GatewayError::FastCgiRecord(kind)),
        }
        if header.kind == END_REQUEST && header.len != 8 {
            return Err(header.bad_length());
        }
        if header.kind == STDOUT && self.is_stdout_closed {
            return Err(GatewayError::FastCgiRecord(STDOUT));
        }
        self.is_stdout_closed |= header.kind == STDOUT && header.len == 0;
        (self.record, self.remaining) = (header, header.len);
        self.stage = Stage::Content;
        Ok(())
    }

    fn read_content<'a>(
        &mut self,
        input: &'a [u8],
    ) -> Result<DecodedGatewayEvent<'a>, GatewayError> {
        let (left, len) = split_remaining(self.remaining, input);
        let content = &input[..len];
        let step = match self.record.kind {
            STDOUT => self.response.decode(content)?,
            STDERR => DecodedGatewayEvent {
                consumed: len,
                event: Some(GatewayEvent::Log(content)),
            },
            END_REQUEST => DecodedGatewayEvent::without_event(self.gather(content, 8)),
            _ => DecodedGatewayEvent::without_event(len),
        };
        // The decoder may stop after the head, in the middle of the content.
        let unread = u16::try_from(len - step.consumed).unwrap_or(u16::MAX);
        self.remaining = left.saturating_add(unread);
        Ok(step)
    }

    fn end_content(&mut self) -> Result<(), GatewayError> {
        if self.record.kind != END_REQUEST {
            return Ok(());
        }
        // The first four bytes are the program's exit status, meant for its log; PHP's is 0.
        match self.gathered[4] {
            0 => self.response.finish_response(),
            1 => Err(GatewayError::CannotMultiplex),
            2 => Err(GatewayError::Overloaded),
            3 => Err(GatewayError::UnknownRole),
            other => Err(GatewayError::FastCgiStatus(other)),
        }
    }

    /// Adds bytes to `gathered` until it holds `need`; returns the number of bytes taken.
    fn gather(&mut self, input: &[u8], need: u8) -> usize {
        let at = self.gathered_len.min(need);
        let (left, consumed) = split_remaining(u16::from(need - at), input);
        let start = usize::from(at);
        self.gathered[start..start + consumed].copy_from_slice(&input[..consumed]);
        self.gathered_len = need - u8::try_from(left).unwrap_or_default();
        consumed
    }
}

/// Appends a FCGI_GET_VALUES record, which every application must answer.
pub fn encode_probe(out: &mut Vec<u8>) {
    const NAME: &[u8] = b"FCGI_MPXS_CONNS";
    const CONTENT: u8 = 2 + 15;
    out.extend_from_slice(&[VERSION, GET_VALUES, 0, 0, 0, CONTENT, 7, 0, 15, 0]);
    out.extend_from_slice(NAME);
    out.extend_from_slice(&[0; 7]);
}

/// Looks for the response to [`encode_probe`] in all bytes received since. Returns its length;
/// `None` when more bytes are needed.
///
/// # Errors
/// Any other record, incomplete pairs, or a response above a few hundred bytes.
pub fn parse_probe_response(input: &[u8]) -> Result<Option<usize>, GatewayError> {
    let Some(&header) = input.first_chunk::<8>() else {
        // An early error stays one.
        return match input {
            [] | [VERSION] | [VERSION, GET_VALUES_RESULT | UNKNOWN_TYPE, ..] => Ok(None),
            [VERSION, other, ..] => Err(GatewayError::FastCgiRecord(*other)),
            [other, ..] => Err(GatewayError::FastCgiVersion(*other)),
        };
    };
    let header = RecordHeader::parse(header)?;
    match (header.kind, header.request) {
        (GET_VALUES_RESULT, 0) if header.len <= MAX_PROBE_BYTES => (),
        // The application does not know the query, and answers as it must.
        (UNKNOWN_TYPE, 0) if header.len == 8 => (),
        (GET_VALUES_RESULT | UNKNOWN_TYPE, 0) => return Err(header.bad_length()),
        (GET_VALUES_RESULT | UNKNOWN_TYPE, other) => {
            return Err(GatewayError::FastCgiRequestId(other));
        }
        (kind, _) => return Err(GatewayError::FastCgiRecord(kind)),
    }
    let end = 8 + usize::from(header.len);
    let whole = end + usize::from(header.padding);
    let Some(content) = input.get(8..end).filter(|_| input.len() >= whole) else {
        return Ok(None);
    };
    if header.kind == GET_VALUES_RESULT && !has_whole_pairs(content) {
        return Err(header.bad_length());
    }
    Ok(Some(whole))
}

/// Whether the lengths of the pairs add up to the content. No name or value of a response is 128
/// bytes long, so the long form of a length is an error.
fn has_whole_pairs(mut content: &[u8]) -> bool {
    while let [name @ 0..=127, value @ 0..=127, rest @ ..] = content {
        match rest.get(usize::from(*name) + usize::from(*value)..) {
            Some(rest) => content = rest,
            None => return false,
        }
    }
    content.is_empty()
}

/// The eight bytes before every record.
#[derive(Debug, Clone, Copy, Default)]
struct RecordHeader {
    kind: u8,
    request: u16,
    len: u16,
    padding: u8,
}

impl RecordHeader {
    fn parse(bytes: [u8; 8]) -> Result<Self, GatewayError> {
        let [version, kind, r0, r1, l0, l1, padding, _reserved] = bytes;
        if version != VERSION {
            return Err(GatewayError::FastCgiVersion(version));
        }
        Ok(Self {
            kind,
            request: u16::from_be_bytes([r0, r1]),
            len: u16::from_be_bytes([l0, l1]),
            padding,
        })
    }

    fn bad_length(self) -> GatewayError {
        GatewayError::FastCgiLength {
            kind: self.kind,
            len: self.len,
        }
    }
}

/// Splits `left` at the end of `input`: returns the rest, and the number of bytes of `input` that
/// belong to it.
fn split_remaining(left: u16, input: &[u8]) -> (u16, usize) {
    let len = u16::try_from(input.len()).unwrap_or(u16::MAX).min(left);
    (left - len, usize::from(len))
}

const VERSION: u8 = 1;
/// The number of every request: one at a time on a connection.
const REQUEST_ID: u16 = 1;
const END_REQUEST: u8 = 3;
const STDOUT: u8 = 6;
const STDERR: u8 = 7;
const GET_VALUES: u8 = 9;
const GET_VALUES_RESULT: u8 = 10;
const UNKNOWN_TYPE: u8 = 11;
/// More than the three variables of the specification need.
const MAX_PROBE_BYTES: u16 = 512;

#[cfg(test)]
mod tests;
