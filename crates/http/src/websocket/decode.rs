//! Decodes messages from a client's bytes (RFC 6455 §5, §8).
//!
//! Input: received bytes, all of which are consumed; a partial frame is kept here, so that the
//! caller needs no buffer. Output: complete messages, pings, pongs, the close. A compressed message
//! is kept compressed until its end, and then inflated and checked: a decompressor per pending
//! message would cost more than the data.
//!
//! # Invariants
//!
//! - A message never exceeds the limit, and is refused as soon as its frames exceed it.
//! - Text is checked as it arrives, also where a frame boundary splits a character.
//! - An idle decoder owns no memory.

use super::{Opcode, close_code, deflate};

/// A decoded event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WebSocketEvent {
    /// A complete message; text is UTF-8.
    Message { is_text: bool, payload: Vec<u8> },
    /// To be answered by a pong with the same payload.
    Ping(Vec<u8>),
    /// An answer to a ping.
    Pong,
    /// The client closes; [`close_code::NO_STATUS`] if it sent no code. Later bytes are ignored.
    Close { code: u16, reason: String },
}

/// Why a connection must be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WebSocketError {
    #[error("{0}")]
    Protocol(&'static str),
    #[error("text that is not UTF-8")]
    InvalidUtf8,
    #[error("message larger than the limit")]
    MessageTooBig,
    #[error("invalid compressed data")]
    InvalidDeflate,
}

impl WebSocketError {
    /// The close code to send.
    #[must_use]
    pub fn close_code(self) -> u16 {
        match self {
            Self::Protocol(_) => close_code::PROTOCOL_ERROR,
            Self::InvalidUtf8 | Self::InvalidDeflate => close_code::INVALID_PAYLOAD,
            Self::MessageTooBig => close_code::MESSAGE_TOO_BIG,
        }
    }
}

/// The receiving side of one connection.
#[derive(Debug)]
pub struct MessageDecoder {
    max_message_bytes: usize,
    /// The head of the current frame, as far as received.
    head: [u8; MAX_HEAD_BYTES],
    head_len: u8,
    frame: Option<IncomingFrame>,
    /// Text or binary, while a message is pending in `message`.
    kind: Option<Opcode>,
    message: Vec<u8>,
    /// Bytes of it known to be UTF-8.
    validated_len: usize,
    control: Vec<u8>,
    is_closed: bool,
    is_deflate_enabled: bool,
    is_compressed: bool,
}

#[derive(Debug, Clone, Copy)]
struct IncomingFrame {
    opcode: Opcode,
    is_final: bool,
    remaining: usize,
    /// Rotated so that its first byte applies to the next payload byte.
    mask: [u8; 4],
}

/// Two bytes, eight of length, four of mask.
const MAX_HEAD_BYTES: usize = 14;

/// Capacity reserved in advance for a message of declared length.
const MAX_RESERVED_BYTES: usize = 64 * 1024;

impl MessageDecoder {
    /// Creates a decoder for a new connection. A message may have at most `message_max` bytes.
    #[must_use]
    pub fn new(message_max: usize) -> Self {
        Self {
            max_message_bytes: message_max,
            head: [0; MAX_HEAD_BYTES],
            head_len: 0,
            frame: None,
            kind: None,
            message: Vec::new(),
            validated_len: 0,
            control: Vec::new(),
            is_closed: false,
            is_deflate_enabled: false,
            is_compressed: false,
        }
    }

    /// Enables `permessage-deflate`.
    #[must_use]
    pub fn with_deflate(self) -> Self {
        Self {
            is_deflate_enabled: true,
            ..self
        }
    }

    /// Memory of incomplete messages and control frames.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        self.message.capacity() + self.control.capacity()
    }

    /// Received bytes of the pending message; `None` between messages.
    #[must_use]
    pub fn partial_message_bytes(&self) -> Option<usize> {
        self.kind.map(|_| self.message.len())
    }

    /// Consumes bytes of `input` up to the end of the next event. `None` if all are consumed.
    ///
    /// # Errors
    /// Returns why the connection must be closed; final.
    pub fn decode(&mut self, input: &mut &[u8]) -> Result<Option<WebSocketEvent>, WebSocketError> {
        while !self.is_closed {
            let frame = match self.frame {
                Some(frame) => frame,
                None => match self.read_head(input)? {
                    Some(frame) => frame,
                    None => return Ok(None),
                },
            };
            let (bytes, rest) = input.split_at(input.len().min(frame.remaining));
            *input = rest;
            let frame = self.read_payload(frame, bytes)?;
            if frame.remaining > 0 {
                self.frame = Some(frame);
                return Ok(None);
            }
            self.frame = None;
            if let Some(event) = self.end_frame(frame)? {
                return Ok(Some(event));
            }
        }
        *input = &[];
        Ok(None)
    }

    fn read_head(&mut self, input: &mut &[u8]) -> Result<Option<IncomingFrame>, WebSocketError> {
        loop {
            let have = usize::from(self.head_len);
            let needed = required_head_len(&self.head[..have]);
            if have == needed {
                self.head_len = 0;
                return self.begin_frame(needed).map(Some);
            }
            let (bytes, rest) = input.split_at(input.len().min(needed - have));
            if bytes.is_empty() {
                return Ok(None);
            }
            *input = rest;
            self.head[have..have + bytes.len()].copy_from_slice(bytes);
            self.head_len += u8::try_from(bytes.len()).unwrap_or(0);
            // The first two bytes decide, whatever follows.
            if have < 2 && self.head_len >= 2 {
                self.check_frame_start()?;
            }
        }
    }

    /// Checks the first two bytes of a frame.
    fn check_frame_start(&self) -> Result<Opcode, WebSocketError> {
        let [mut first, second, ..] = self.head;
        // Only the first frame of a message marks it as compressed (RFC 7692 §6).
        if self.is_deflate_enabled && matches!(first & OPCODE_BITS, TEXT | BINARY) {
            first &= !RSV1;
        }
        if first & RESERVED_BITS != 0 {
            return Err(WebSocketError::Protocol("a reserved bit"));
        }
        let Some(opcode) = Opcode::from_number(first & OPCODE_BITS) else {
            return Err(WebSocketError::Protocol("a reserved opcode"));
        };
        if second & MASK_BIT == 0 {
            return Err(WebSocketError::Protocol("a frame without a mask"));
        }
        if opcode.is_control() && first & FIN == 0 {
            return Err(WebSocketError::Protocol("a control frame in fragments"));
        }
        if opcode.is_control() && second & LENGTH_BITS > 125 {
            return Err(WebSocketError::Protocol("a control frame over 125 bytes"));
        }
        Ok(opcode)
    }

    fn max_payload_bytes(&self) -> usize {
        match self.is_compressed {
            false => self.max_message_bytes,
            // Incompressible data grows slightly: five bytes for each block.
            true => self.max_message_bytes + (self.max_message_bytes >> 8) + 64,
        }
    }

    /// Begins a frame after its complete head.
    fn begin_frame(&mut self, head_len: usize) -> Result<IncomingFrame, WebSocketError> {
        let opcode = self.check_frame_start()?;
        let left = self.payload_len()?;
        let mask = *self.head[..head_len].last_chunk().unwrap_or(&[0; 4]);
        match opcode {
            Opcode::Text | Opcode::Binary if self.kind.is_some() => {
                return Err(WebSocketError::Protocol("a message within a message"));
            }
            Opcode::Text | Opcode::Binary => self.kind = Some(opcode),
            Opcode::Continuation if self.kind.is_none() => {
                return Err(WebSocketError::Protocol(
                    "continuation frame without a message",
                ));
            }
            _ => {}
        }
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        if !opcode.is_control() {
            if opcode != Opcode::Continuation {
                self.is_compressed = self.head[0] & RSV1 != 0;
            }
            if left > self.max_payload_bytes().saturating_sub(self.message.len()) {
                return Err(WebSocketError::MessageTooBig);
            }
            // A declared length reserves no more than one read could deliver.
            self.message.reserve_exact(left.min(MAX_RESERVED_BYTES));
        }
        let is_final = self.head[0] & FIN != 0;
        Ok(IncomingFrame {
            opcode,
            is_final,
            remaining: left,
            mask,
        })
    }

    fn payload_len(&self) -> Result<u64, WebSocketError> {
        let head = &self.head;
        let (len, least) = match head[1] & LENGTH_BITS {
            126 => (u64::from(u16::from_be_bytes([head[2], head[3]])), 126),
            127 => {
                let [_, _, bytes @ .., _, _, _, _] = *head;
                (u64::from_be_bytes(bytes), 1 << 16)
            }
            short => return Ok(u64::from(short)),
        };
        // RFC 6455 §5.2: the shortest form, and no sign bit.
        if len < least || len > u64::MAX >> 1 {
            return Err(WebSocketError::Protocol("invalid frame length"));
        }
        Ok(len)
    }

    fn read_payload(
        &mut self,
        frame: IncomingFrame,
        bytes: &[u8],
    ) -> Result<IncomingFrame, WebSocketError> {
        let into = match frame.opcode.is_control() {
            true => &mut self.control,
            false => &mut self.message,
        };
        let start = into.len();
        into.extend_from_slice(bytes);
        unmask(&mut into[start..], frame.mask);
        let mut mask = frame.mask;
        mask.rotate_left(bytes.len() % 4);
        let is_text = self.kind == Some(Opcode::Text) && !self.is_compressed;
        if !frame.opcode.is_control() && is_text {
            self.check_text(false)?;
        }
        Ok(IncomingFrame {
            remaining: frame.remaining - bytes.len(),
            mask,
            ..frame
        })
    }

    /// Checks the new part of the text. At the end no character may be incomplete.
    fn check_text(&mut self, is_end: bool) -> Result<(), WebSocketError> {
        match std::str::from_utf8(&self.message[self.validated_len..]) {
            Ok(_) => self.validated_len = self.message.len(),
            Err(error) if error.error_len().is_none() && !is_end => {
                self.validated_len += error.valid_up_to();
            }
            Err(_) => return Err(WebSocketError::InvalidUtf8),
        }
        Ok(())
    }

    fn end_frame(
        &mut self,
        frame: IncomingFrame,
    ) -> Result<Option<WebSocketEvent>, WebSocketError> {
        match frame.opcode {
            Opcode::Ping => Ok(Some(WebSocketEvent::Ping(std::mem::take(
                &mut self.control,
            )))),
            Opcode::Pong => {
                self.control = Vec::new();
                Ok(Some(WebSocketEvent::Pong))
            }
            Opcode::Close => {
                self.is_closed = true;
                parse_close(&std::mem::take(&mut self.control)).map(Some)
            }
            _ if !frame.is_final => Ok(None),
            _ => {
                let is_text = self.kind.take() == Some(Opcode::Text);
                if std::mem::take(&mut self.is_compressed) {
                    let compressed = std::mem::take(&mut self.message);
                    self.message = deflate::inflate(&compressed, self.max_message_bytes)?;
                }
                if is_text {
                    self.check_text(true)?;
                }
                self.validated_len = 0;
                let payload = std::mem::take(&mut self.message);
                Ok(Some(WebSocketEvent::Message { is_text, payload }))
            }
        }
    }
}

/// Length of the frame head, as far as its received bytes tell.
fn required_head_len(head: &[u8]) -> usize {
    let Some(second) = head.get(1) else {
        return 2;
    };
    6 + match second & LENGTH_BITS {
        126 => 2,
        127 => 8,
        _ => 0,
    }
}

fn parse_close(payload: &[u8]) -> Result<WebSocketEvent, WebSocketError> {
    let (code, reason) = match payload {
        [] => (close_code::NO_STATUS, &[][..]),
        [_] => return Err(WebSocketError::Protocol("truncated close code")),
        [high, low, reason @ ..] => (u16::from_be_bytes([*high, *low]), reason),
    };
    if code != close_code::NO_STATUS && !close_code::is_sendable(code)
        || payload.len() >= 2 && code == close_code::NO_STATUS
    {
        return Err(WebSocketError::Protocol("invalid close code"));
    }
    let reason = std::str::from_utf8(reason).map_err(|_| WebSocketError::InvalidUtf8)?;
    let reason = reason.to_owned();
    Ok(WebSocketEvent::Close { code, reason })
}

/// RFC 6455 §5.3. Whole words of the mask first, which the compiler vectorises.
fn unmask(bytes: &mut [u8], mask: [u8; 4]) {
    let (words, rest) = bytes.as_chunks_mut::<4>();
    let word = u32::from_ne_bytes(mask);
    for chunk in words {
        *chunk = (u32::from_ne_bytes(*chunk) ^ word).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(mask) {
        *byte ^= mask;
    }
}

const FIN: u8 = 0x80;
const RESERVED_BITS: u8 = 0x70;
/// RSV1, of the first frame of a message (RFC 7692 §6).
const RSV1: u8 = 0x40;
const TEXT: u8 = Opcode::Text as u8;
const BINARY: u8 = Opcode::Binary as u8;
const OPCODE_BITS: u8 = 0x0f;
const MASK_BIT: u8 = 0x80;
const LENGTH_BITS: u8 = 0x7f;
