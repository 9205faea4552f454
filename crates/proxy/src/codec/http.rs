//! Decodes responses of HTTP/1.1 servers and of uwsgi servers, which respond in HTTP too.
//!
//! `http`'s scanner checks heads and its decoder checks bodies. Unless the upstream is `strict`,
//! malformed syntax of old servers is accepted: heads and bodies are framed anew for the client,
//! and the connection closes after the response.
//!
//! # Invariants
//!
//! - Interim responses are bounded.
//! - 101 is accepted only if the request asked for an upgrade.
//! - Bytes behind a response are never decoded as another response.

use penstock_http::{
    BodyDecoder, BodyFraming, CheckedField, FieldBlock, Method, ParseProgress, ResponseBodyFraming,
    ResponseHead, ResponseHeadLimits, ResponseHeadScanner, Status,
};

use super::{DecodedEvent, ResponseEnd, ResponseEvent};
use crate::failure::{AttemptFailure, AttemptStage};
use crate::response_head::ResponseHeadBuilder;

/// Maximum interim responses before the final one.
const MAX_INTERIM_RESPONSES: u8 = 64;

/// Capacity for the fields of a typical head.
const FIELDS_CAPACITY: usize = 512;

/// Decodes one response.
#[derive(Debug)]
pub(crate) struct HttpDecoder {
    state: DecoderState,
    scanner: ResponseHeadScanner,
    is_strict: bool,
    /// The fields of an incomplete head.
    partial_head: Option<Box<ResponseHeadBuilder>>,
    is_head_request: bool,
    /// The request asked for another protocol.
    pub(super) may_upgrade: bool,
    interim_count: u8,
    keep_alive: bool,
    /// The server closes the connection after its response, whatever its head says.
    pub(super) must_close: bool,
}

#[derive(Debug)]
enum DecoderState {
    Head,
    Length(u64),
    Chunked(Box<BodyDecoder>),
    UntilClose,
    /// Complete; `End` was not returned yet.
    Done(Option<FieldBlock>),
    /// `End` was returned, or the connection is a tunnel.
    Finished,
}

impl HttpDecoder {
    /// Creates a decoder for the response to a request of `method`. Unless it `is_strict`, it
    /// accepts the syntax of old servers.
    pub(crate) fn new(method: Method, is_strict: bool) -> Self {
        Self {
            state: DecoderState::Head,
            scanner: match is_strict {
                true => ResponseHeadScanner::new(),
                false => ResponseHeadScanner::lenient(),
            },
            is_strict,
            partial_head: None,
            is_head_request: method == Method::Head,
            may_upgrade: false,
            interim_count: 0,
            keep_alive: false,
            must_close: false,
        }
    }

    pub(crate) fn decode<'a>(
        &mut self,
        input: &'a [u8],
    ) -> Result<DecodedEvent<'a>, AttemptFailure> {
        match &mut self.state {
            DecoderState::Head => self.decode_head(input),
            DecoderState::Length(left) => {
                let count =
                    usize::try_from(*left).map_or(input.len(), |left| left.min(input.len()));
                *left -= count as u64;
                if *left == 0 {
                    self.state = DecoderState::Done(None);
                }
                Ok(data_event(&input[..count], count))
            }
            DecoderState::Chunked(decoder) => {
                let decoded = decoder.decode(input).map_err(|error| {
                    AttemptFailure::protocol_error(AttemptStage::ResponseStarted, error.to_string())
                })?;
                if decoded.is_done {
                    self.keep_alive &= !decoder.needed_leniency();
                    let trailers = parse_trailers(decoder.trailer_lines());
                    self.state = DecoderState::Done(trailers);
                    if decoded.content.is_empty() {
                        return Ok(self.end_event(decoded.consumed));
                    }
                }
                Ok(data_event(&input[decoded.content], decoded.consumed))
            }
            DecoderState::UntilClose => Ok(data_event(input, input.len())),
            DecoderState::Done(_) => Ok(self.end_event(0)),
            DecoderState::Finished => Ok(DecodedEvent::default()),
        }
    }

    pub(crate) fn finish_at_eof(&mut self) -> Result<ResponseEvent<'static>, AttemptFailure> {
        match self.state {
            DecoderState::UntilClose | DecoderState::Done(_) | DecoderState::Finished => {
                self.state = DecoderState::Finished;
                Ok(ResponseEvent::End(ResponseEnd::default()))
            }
            DecoderState::Head => Err(AttemptFailure::server_disconnected(
                AttemptStage::Sent,
                "the server closed before a whole response head",
            )),
            DecoderState::Length(_) | DecoderState::Chunked(_) => {
                Err(AttemptFailure::server_disconnected(
                    AttemptStage::ResponseStarted,
                    "the server closed within the response body",
                ))
            }
        }
    }

    fn decode_head<'a>(&mut self, input: &'a [u8]) -> Result<DecodedEvent<'a>, AttemptFailure> {
        let limits = ResponseHeadLimits::default();
        // Survives partial heads: the scanner returns each field once.
        let mut building = match self.partial_head.take() {
            Some(building) => *building,
            None => ResponseHeadBuilder::new(FIELDS_CAPACITY),
        };
        let broken = |cause: String| AttemptFailure::protocol_error(AttemptStage::Sent, cause);
        let mut take = |field: CheckedField<'_>| building.push_checked(field);
        let scanned = (self.scanner).scan_with(input, self.is_head_request, &limits, &mut take);
        let scanned = scanned.map_err(|error| broken(error.to_string()))?;
        let ParseProgress::Complete(head) = scanned else {
            self.partial_head = Some(Box::new(building));
            return Ok(DecodedEvent::default());
        };
        let status = Status::new(head.status);
        let status = status.ok_or_else(|| broken(format!("status {}", head.status)))?;
        let reply = building.finish(status);
        let mut reply = reply.ok_or_else(|| broken("malformed content-length".to_owned()))?;
        if head.framing == ResponseBodyFraming::Chunked {
            // Transfer-Encoding overrides Content-Length (RFC 9112 §6.3 case 3).
            reply.length = None;
        }
        let event = match head.status {
            101 if self.may_upgrade => {
                self.state = DecoderState::Finished;
                ResponseEvent::SwitchedProtocols(reply)
            }
            101 => return Err(broken("unsolicited 101 Switching Protocols".to_owned())),
            100..=199 => {
                if !head.keep_alive && self.is_strict {
                    return Err(broken("an interim response with a close".to_owned()));
                }
                self.must_close |= !head.keep_alive;
                self.interim_count += 1;
                if self.interim_count > MAX_INTERIM_RESPONSES {
                    let cause = format!("more than {MAX_INTERIM_RESPONSES} interim responses");
                    return Err(broken(cause));
                }
                ResponseEvent::Interim(status, reply.fields)
            }
            _ => {
                self.begin_body(&head);
                ResponseEvent::Head(reply)
            }
        };
        Ok(DecodedEvent {
            consumed: head.len,
            event: Some(event),
        })
    }

    fn begin_body(&mut self, head: &ResponseHead) {
        self.keep_alive = head.keep_alive && !self.must_close;
        self.state = match head.framing {
            ResponseBodyFraming::None | ResponseBodyFraming::Length(0) => DecoderState::Done(None),
            ResponseBodyFraming::Length(length) => DecoderState::Length(length),
            ResponseBodyFraming::Chunked => DecoderState::Chunked(Box::new(match self.is_strict {
                true => BodyDecoder::new(BodyFraming::Chunked),
                false => BodyDecoder::lenient(),
            })),
            ResponseBodyFraming::UntilClose => DecoderState::UntilClose,
        };
    }

    fn end_event<'a>(&mut self, consumed: usize) -> DecodedEvent<'a> {
        let trailers = match std::mem::replace(&mut self.state, DecoderState::Finished) {
            DecoderState::Done(trailers) => trailers,
            _ => None,
        };
        DecodedEvent {
            consumed,
            event: Some(ResponseEvent::End(ResponseEnd {
                is_reusable: self.keep_alive,
                trailers,
            })),
        }
    }
}

/// A piece of the body; no event if it is empty.
fn data_event(piece: &[u8], consumed: usize) -> DecodedEvent<'_> {
    DecodedEvent {
        consumed,
        event: (!piece.is_empty()).then_some(ResponseEvent::Data(piece)),
    }
}

/// The trailers of a chunked body, checked by the decoder.
fn parse_trailers(lines: &[u8]) -> Option<FieldBlock> {
    let mut fields = FieldBlock::new();
    for line in lines.split(|&byte| byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if let Some(colon) = memchr::memchr(b':', line)
            && let Ok(name) = std::str::from_utf8(&line[..colon])
        {
            // Checked already; a line that still is not a field is skipped.
            let _ = fields.push(name, &line[colon + 1..]);
        }
    }
    (!fields.is_empty()).then_some(fields)
}

#[cfg(test)]
mod tests;
