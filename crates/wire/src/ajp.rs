//! AJP13 (Apache JServ Protocol 1.3), the web server's side: decodes packets of the container.
//!
//! `request` writes FORWARD_REQUEST, `body_credit` decides when and how much of a body may follow,
//! [`AjpDecoder`] decodes the response, and `codes` holds the tables of numbers. The relay of an
//! upstream is the caller; its health checks use [`encode_probe`] and [`parse_probe_response`].
//!
//! # Invariants
//!
//! - A length inside a packet agrees with the packet's own to the byte.
//! - Only seven bytes and an incomplete head are buffered.
//! - The container gets no body bytes that it did not request: it would read them as the next
//!   request.

mod body_credit;
mod codes;
mod request;

pub use body_credit::BodyCredit;
pub use request::{AjpRequest, MAX_PACKET_BYTES, encode_forward_request};

use penstock_http::is_field_value;

use crate::gateway::{
    DecodedGatewayEvent, GatewayError, GatewayEvent, GatewayHead, GatewayHeadLimits, HeadBuilder,
    RemainingBody,
};
use crate::head::final_status;

/// Decodes one response. Inputs and outputs as for [`crate::gateway::ResponseDecoder`].
#[derive(Debug)]
pub struct AjpDecoder {
    limits: GatewayHeadLimits,
    answers_head: bool,
    stage: Stage,
    /// The bytes received of a packet's start: mark, length, type, and the number after it.
    packet_start: [u8; 7],
    packet_start_len: u8,
    /// The payload of an incomplete SEND_HEADERS, without its type.
    head: Vec<u8>,
    /// `None` before the head.
    body: Option<RemainingBody>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Start,
    /// Remaining bytes of SEND_HEADERS.
    Head(u16),
    /// Remaining bytes of a body chunk, before its NUL.
    Chunk(u16),
    Ended,
}

impl AjpDecoder {
    /// Creates a decoder for the response to a request that was just sent. `answers_head`: the
    /// request was a `HEAD`, so that the response has no body.
    pub fn new(limits: GatewayHeadLimits, answers_head: bool) -> Self {
        Self {
            limits,
            answers_head,
            stage: Stage::Start,
            packet_start: [0; 7],
            packet_start_len: 0,
            head: Vec::new(),
            body: None,
        }
    }

    /// Takes the next event off the front of `input`; without one, all of `input` was consumed.
    ///
    /// # Errors
    /// An unexpected packet or a wrong length, a head that is malformed or above its limits, a body
    /// with another length than announced.
    pub fn decode<'a>(&mut self, input: &'a [u8]) -> Result<DecodedGatewayEvent<'a>, GatewayError> {
        let mut consumed = 0;
        while consumed < input.len() {
            let rest = &input[consumed..];
            let mut step = match self.stage {
                Stage::Start => self.read_packet_start(rest)?,
                Stage::Head(left) => self.read_head(rest, left)?,
                Stage::Chunk(left) => self.read_chunk(rest, left)?,
                Stage::Ended => return Err(GatewayError::DataAfterEnd),
            };
            consumed += step.consumed;
            if let Some(GatewayEvent::End { reusable }) = &mut step.event {
                *reusable &= consumed == input.len();
            }
            if step.event.is_some() {
                step.consumed = consumed;
                return Ok(step);
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

    /// Gathers the start of a packet: five bytes first, then the number that its type needs.
    fn read_packet_start<'a>(
        &mut self,
        input: &[u8],
    ) -> Result<DecodedGatewayEvent<'a>, GatewayError> {
        let mut consumed = 0;
        loop {
            let at = usize::from(self.packet_start_len);
            let need = required_start_len(&self.packet_start[..at]);
            let len = (need - at).min(input.len() - consumed);
            self.packet_start[at..at + len].copy_from_slice(&input[consumed..consumed + len]);
            self.packet_start_len = u8::try_from(at + len).unwrap_or_default();
            consumed += len;
            if at + len < need {
                return Ok(DecodedGatewayEvent::without_event(consumed));
            }
            if need == MIN_START_LEN {
                self.check_packet_start()?;
            }
            // The type is known now, and may need more bytes.
            if required_start_len(&self.packet_start[..need]) == need {
                self.packet_start_len = 0;
                let event = self.begin_packet()?;
                return Ok(DecodedGatewayEvent { consumed, event });
            }
        }
    }

    /// Checks the first five bytes.
    fn check_packet_start(&self) -> Result<(), GatewayError> {
        let [mark0, mark1, l0, l1, kind, ..] = self.packet_start;
        if [mark0, mark1] != FROM_CONTAINER {
            return Err(GatewayError::AjpBadMagic);
        }
        let len = u16::from_be_bytes([l0, l1]);
        let is_good = match kind {
            SEND_HEADERS => len >= 7,
            SEND_BODY_CHUNK => len >= 4,
            GET_BODY_CHUNK => len == 3,
            END_RESPONSE => len == 2,
            _ => return Err(GatewayError::AjpMessage(kind)),
        };
        if !is_good {
            return Err(GatewayError::AjpLength { kind, len });
        }
        if kind == SEND_HEADERS && usize::from(len) > self.limits.max_head_bytes {
            return Err(GatewayError::HeadTooLarge);
        }
        match (kind, self.body) {
            (SEND_HEADERS, Some(_)) | (SEND_BODY_CHUNK, None) => {
                Err(GatewayError::AjpMessage(kind))
            }
            (END_RESPONSE, None) => Err(GatewayError::IncompleteHead),
            _ => Ok(()),
        }
    }

    fn begin_packet(&mut self) -> Result<Option<GatewayEvent<'static>>, GatewayError> {
        let [_, _, l0, l1, kind, n0, n1] = self.packet_start;
        let len = u16::from_be_bytes([l0, l1]);
        let number = u16::from_be_bytes([n0, n1]);
        match kind {
            SEND_HEADERS => self.stage = Stage::Head(len - 1),
            // An empty chunk is a flush; nothing is held back here.
            SEND_BODY_CHUNK if number == len - 4 => self.stage = Stage::Chunk(number),
            SEND_BODY_CHUNK => return Err(GatewayError::AjpLength { kind, len }),
            GET_BODY_CHUNK if number > 0 => {
                return Ok(Some(GatewayEvent::BodyRequested(usize::from(number))));
            }
            END_RESPONSE if n0 <= 1 => {
                self.body.map_or(Ok(()), RemainingBody::finish)?;
                self.stage = Stage::Ended;
                return Ok(Some(GatewayEvent::End { reusable: n0 == 1 }));
            }
            _ => return Err(GatewayError::AjpContent(kind)),
        }
        Ok(None)
    }

    fn read_head<'a>(
        &mut self,
        input: &[u8],
        left: u16,
    ) -> Result<DecodedGatewayEvent<'a>, GatewayError> {
        let whole = usize::from(left);
        let (consumed, head) = if self.head.is_empty() && input.len() >= whole {
            (whole, Some(parse_head(&input[..whole], &self.limits)?))
        } else {
            let consumed = whole.min(input.len());
            self.head.extend_from_slice(&input[..consumed]);
            if consumed == whole {
                let payload = std::mem::take(&mut self.head);
                (consumed, Some(parse_head(&payload, &self.limits)?))
            } else {
                let left = u16::try_from(whole - consumed).unwrap_or_default();
                self.stage = Stage::Head(left);
                (consumed, None)
            }
        };
        if let Some(head) = &head {
            self.body = Some(RemainingBody::new(head, self.answers_head));
            self.stage = Stage::Start;
        }
        let event = head.map(GatewayEvent::Head);
        Ok(DecodedGatewayEvent { consumed, event })
    }

    fn read_chunk<'a>(
        &mut self,
        input: &'a [u8],
        left: u16,
    ) -> Result<DecodedGatewayEvent<'a>, GatewayError> {
        if left == 0 {
            if input[0] != 0 {
                return Err(GatewayError::AjpContent(SEND_BODY_CHUNK));
            }
            self.stage = Stage::Start;
            return Ok(DecodedGatewayEvent::without_event(1));
        }
        let len = u16::try_from(input.len()).unwrap_or(u16::MAX).min(left);
        self.stage = Stage::Chunk(left - len);
        let bytes = &input[..usize::from(len)];
        let event = match &mut self.body {
            Some(count) => count.consume(bytes)?,
            None => None,
        };
        Ok(DecodedGatewayEvent {
            consumed: bytes.len(),
            event,
        })
    }
}

/// How many bytes identify a packet, given its first bytes.
fn required_start_len(start: &[u8]) -> usize {
    match start.get(4) {
        Some(&(SEND_BODY_CHUNK | GET_BODY_CHUNK)) => MIN_START_LEN + 2,
        Some(&END_RESPONSE) => MIN_START_LEN + 1,
        _ => MIN_START_LEN,
    }
}

/// Parses the payload of SEND_HEADERS without its type: status, reason, fields.
fn parse_head(payload: &[u8], limits: &GatewayHeadLimits) -> Result<GatewayHead, GatewayError> {
    let mut reader = PayloadReader(payload);
    let status = final_status(reader.number()?).ok_or(GatewayError::BadStatus)?;
    let reason = reader.string()?;
    if !is_field_value(reason) {
        return Err(GatewayError::BadFieldValue);
    }
    let mut head = HeadBuilder::new();
    for _ in 0..reader.number()? {
        let name = reader.field_name()?;
        head.push(name, reader.string()?, limits)?;
    }
    if !reader.0.is_empty() {
        return Err(GatewayError::AjpContent(SEND_HEADERS));
    }
    Ok(head.finish(status))
}

/// The unread rest of a payload.
struct PayloadReader<'a>(&'a [u8]);

impl<'a> PayloadReader<'a> {
    fn number(&mut self) -> Result<u16, GatewayError> {
        let (number, rest) = self
            .0
            .split_first_chunk::<2>()
            .ok_or(GatewayError::AjpContent(SEND_HEADERS))?;
        self.0 = rest;
        Ok(u16::from_be_bytes(*number))
    }

    fn string(&mut self) -> Result<&'a [u8], GatewayError> {
        let len = self.number()?;
        self.text(len)
    }

    /// Reads a name, spelt out or as a code.
    fn field_name(&mut self) -> Result<&'a [u8], GatewayError> {
        match self.number()? {
            // No string of a packet is as long as these numbers.
            code @ 0xa000..=0xa0ff => codes::response_field_name(code)
                .map(str::as_bytes)
                .ok_or(GatewayError::AjpFieldCode(code)),
            len => self.text(len),
        }
    }

    fn text(&mut self, len: u16) -> Result<&'a [u8], GatewayError> {
        if len == NULL_STRING {
            return Ok(&[]);
        }
        match self.0.split_at_checked(usize::from(len)) {
            Some((text, [0, rest @ ..])) => {
                self.0 = rest;
                Ok(text)
            }
            _ => Err(GatewayError::AjpContent(SEND_HEADERS)),
        }
    }
}

/// Appends a CPING packet.
pub fn encode_probe(out: &mut Vec<u8>) {
    out.extend_from_slice(&[TO_CONTAINER[0], TO_CONTAINER[1], 0, 1, CPING]);
}

/// Looks for CPONG in all bytes received since [`encode_probe`]. Returns the length of the
/// response; `None` when more bytes are needed.
///
/// # Errors
/// Any other bytes.
pub fn parse_probe_response(input: &[u8]) -> Result<Option<usize>, GatewayError> {
    let len = input.len().min(CPONG.len());
    match CPONG
        .iter()
        .zip(input)
        .position(|(want, have)| want != have)
    {
        None if len == CPONG.len() => Ok(Some(len)),
        None => Ok(None),
        Some(0 | 1) => Err(GatewayError::AjpBadMagic),
        Some(_) => Err(GatewayError::AjpMessage(input.get(4).copied().unwrap_or(0))),
    }
}

const TO_CONTAINER: [u8; 2] = [0x12, 0x34];
const FROM_CONTAINER: [u8; 2] = *b"AB";
const SEND_BODY_CHUNK: u8 = 3;
const SEND_HEADERS: u8 = 4;
const END_RESPONSE: u8 = 5;
const GET_BODY_CHUNK: u8 = 6;
const CPING: u8 = 10;
const CPONG: [u8; 5] = [FROM_CONTAINER[0], FROM_CONTAINER[1], 0, 1, 9];
/// Mark, length and type.
const MIN_START_LEN: usize = 5;
/// In place of a length: no string.
const NULL_STRING: u16 = 0xffff;

#[cfg(test)]
mod tests;
