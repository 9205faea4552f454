//! The response of a CGI program (RFC 3875 §6): header lines, an empty line, a body.
//!
//! SCGI sends it as it is until the connection closes, and [`CgiDecoder`] decodes it; `fastcgi`
//! puts the same bytes into records and feeds this decoder with their contents. Lines end in LF or
//! CR LF, since programs use both. The status comes from a `Status` field or from a status line as
//! in HTTP (a "non-parsed header" program); without one it is 302 with `Location` and 200
//! otherwise.
//!
//! # Invariants
//!
//! - The result does not depend on how the bytes were split.
//! - Only an incomplete line is copied, and a head is bounded.

use penstock_http::{Status, trim_blanks};

use crate::gateway::{
    DecodedGatewayEvent, GatewayError, GatewayEvent, GatewayHead, GatewayHeadLimits, HeadBuilder,
    RemainingBody,
};
use crate::head::parse_status;

/// Decodes one response. Inputs and outputs as for [`crate::gateway::ResponseDecoder`].
#[derive(Debug)]
pub struct CgiDecoder {
    stage: Stage,
    answers_head: bool,
}

#[derive(Debug)]
enum Stage {
    Head(HeadReader),
    Body(RemainingBody),
    Ended,
}

impl CgiDecoder {
    /// Creates a decoder at the start of a response. `answers_head`: the request was a `HEAD`, so
    /// that the response has no body.
    pub fn new(limits: GatewayHeadLimits, answers_head: bool) -> Self {
        Self {
            stage: Stage::Head(HeadReader::new(limits)),
            answers_head,
        }
    }

    /// Takes the next event off the front of `input`; without one, all of `input` was consumed.
    ///
    /// # Errors
    /// A head that is malformed or above its limits, or a body above its length.
    pub fn decode<'a>(&mut self, input: &'a [u8]) -> Result<DecodedGatewayEvent<'a>, GatewayError> {
        if input.is_empty() {
            return Ok(DecodedGatewayEvent::without_event(0));
        }
        match &mut self.stage {
            Stage::Head(reader) => {
                let (consumed, head) = reader.read(input)?;
                if let Some(head) = &head {
                    self.stage = Stage::Body(RemainingBody::new(head, self.answers_head));
                }
                let event = head.map(GatewayEvent::Head);
                Ok(DecodedGatewayEvent { consumed, event })
            }
            Stage::Body(count) => Ok(DecodedGatewayEvent {
                consumed: input.len(),
                event: count.consume(input)?,
            }),
            Stage::Ended => Err(GatewayError::DataAfterEnd),
        }
    }

    /// Handles the end of the connection, and with it of the response.
    ///
    /// # Errors
    /// The head is incomplete, or the body shorter than its length.
    pub fn decode_eof(&mut self) -> Result<Option<GatewayEvent<'static>>, GatewayError> {
        if matches!(self.stage, Stage::Ended) {
            return Ok(None);
        }
        self.finish_response()?;
        Ok(Some(GatewayEvent::End { reusable: false }))
    }

    /// Ends the body, however the caller knows its end.
    pub(crate) fn finish_response(&mut self) -> Result<(), GatewayError> {
        match std::mem::replace(&mut self.stage, Stage::Ended) {
            Stage::Head(_) => Err(GatewayError::IncompleteHead),
            Stage::Body(count) => count.finish(),
            Stage::Ended => Ok(()),
        }
    }
}

/// Gathers the lines of a head.
#[derive(Debug)]
struct HeadReader {
    limits: GatewayHeadLimits,
    /// An incomplete line.
    line: Vec<u8>,
    /// Bytes of the head so far.
    head_bytes: usize,
    line_count: usize,
    status: Option<Status>,
    head: HeadBuilder,
}

impl HeadReader {
    fn new(limits: GatewayHeadLimits) -> Self {
        Self {
            limits,
            line: Vec::new(),
            head_bytes: 0,
            line_count: 0,
            status: None,
            head: HeadBuilder::new(),
        }
    }

    /// Returns how many bytes of `input` belong to the head, and the head when it is complete.
    fn read(&mut self, input: &[u8]) -> Result<(usize, Option<GatewayHead>), GatewayError> {
        let mut at = 0;
        while let Some(len) = memchr::memchr(b'\n', &input[at..]) {
            self.count_bytes(len + 1)?;
            let end = &input[at..at + len];
            at += len + 1;
            let is_last = if self.line.is_empty() {
                self.read_line(end)?
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(end);
                let is_last = self.read_line(&line)?;
                line.clear();
                self.line = line;
                is_last
            };
            if is_last {
                return Ok((at, Some(self.finish()?)));
            }
        }
        let rest = &input[at..];
        self.count_bytes(rest.len())?;
        self.line.extend_from_slice(rest);
        Ok((input.len(), None))
    }

    fn count_bytes(&mut self, bytes: usize) -> Result<(), GatewayError> {
        self.head_bytes += bytes;
        if self.head_bytes > self.limits.max_head_bytes {
            return Err(GatewayError::HeadTooLarge);
        }
        Ok(())
    }

    /// Reads a line without its LF; returns whether it is the empty line that ends the head.
    fn read_line(&mut self, line: &[u8]) -> Result<bool, GatewayError> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        self.line_count += 1;
        match line {
            [] => return Ok(true),
            [b' ' | b'\t', ..] => return Err(GatewayError::FoldedField),
            _ if self.line_count == 1 && line.starts_with(b"HTTP/1.") => {
                self.read_status_line(line)?;
            }
            _ => self.read_field(line)?,
        }
        Ok(false)
    }

    fn read_field(&mut self, line: &[u8]) -> Result<(), GatewayError> {
        let colon = memchr::memchr(b':', line).ok_or(GatewayError::BadFieldName)?;
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        if name.eq_ignore_ascii_case(b"status") {
            self.head.count_field(&self.limits)?;
            self.read_status(trim_blanks(value))
        } else {
            self.head.push(name, value, &self.limits)
        }
    }

    /// `HTTP/1.x NNN reason`.
    fn read_status_line(&mut self, line: &[u8]) -> Result<(), GatewayError> {
        let Some([b'0' | b'1', b' ', status @ ..]) = line.get(b"HTTP/1.".len()..) else {
            return Err(GatewayError::BadStatus);
        };
        self.head.count_field(&self.limits)?;
        self.read_status(status)
    }

    /// `NNN` or `NNN reason`. Two statuses must be equal, since it is unclear which one counts.
    fn read_status(&mut self, text: &[u8]) -> Result<(), GatewayError> {
        let status = parse_status(text).ok_or(GatewayError::BadStatus)?;
        if self.status.replace(status).is_some_and(|it| it != status) {
            return Err(GatewayError::ConflictingStatuses);
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<GatewayHead, GatewayError> {
        // RFC 3875 §6.2: at least one field. A leading empty line rather means a body without a
        // head.
        if !self.head.has_fields() {
            return Err(GatewayError::EmptyHead);
        }
        // RFC 3875 §6.2.3 for a `Location` without a status.
        let status = self.status.unwrap_or_else(|| {
            if self.head.contains("location") {
                Status::FOUND
            } else {
                Status::OK
            }
        });
        Ok(self.head.finish(status))
    }
}

#[cfg(test)]
mod tests;
