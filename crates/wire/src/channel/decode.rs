//! Frames from a reactor to the front end: ANSWER, DATA, ACCEPT, RESET, MESSAGE, CLOSE, WINDOW,
//! PULL, HIJACK.
//!
//! A pure machine over the bytes of the socket; see `channel`. Its only state is the frame whose
//! bytes are being handed out.

use super::{ANSWER_BODY_MAX, DATA_BYTES_MAX};
use crate::WireError;
use crate::frame::{
    FLAG_END, FLAG_PROTOCOL, FLAG_STREAM, FLAG_TEXT, FrameHeader, HEADER_LEN, Kind,
};
use crate::head::{AcceptParts, HeadParts, parse_accept, parse_head};
use crate::server::{HEAD_BYTES_MAX, REASON_BYTES_MAX};

/// One step of a stream. Slices borrow the receive buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelEvent<'b> {
    /// Status and fields, with as much of the body as has arrived.
    Answer {
        id: u32,
        /// The checked head, or what is wrong with it: see [`crate::Event::Head`].
        head: Result<HeadParts<'b>, WireError>,
        /// Time that the application took until this frame was sent, in microseconds.
        app_time_us: u32,
        body: &'b [u8],
        /// Length of the whole body when this frame holds all of it, `None` when it is streamed.
        body_len: Option<u32>,
        /// Nothing more follows.
        end: bool,
    },
    /// More of a body, of ANSWER or DATA.
    Data { id: u32, bytes: &'b [u8], end: bool },
    /// The application takes a WebSocket.
    Accept {
        id: u32,
        /// The checked head, or what is wrong with it.
        head: Result<AcceptParts<'b>, WireError>,
    },
    /// Nothing, or nothing more, comes: ends the stream.
    Reset {
        id: u32,
        reason: &'b str,
        is_protocol: bool,
    },
    /// A piece of one WebSocket message; the first has `is_first`, the last `end`.
    Message {
        id: u32,
        is_text: bool,
        /// Bytes of the whole message.
        len: u32,
        bytes: &'b [u8],
        is_first: bool,
        end: bool,
    },
    /// The application ends a WebSocket.
    Close { id: u32, code: u16, reason: &'b str },
    /// So many more bytes of MESSAGE may be sent.
    Window { id: u32, bytes: u32 },
    /// The application waits for the next piece of its request's body.
    Pull { id: u32 },
    /// The application answers by itself, on a socket that was sent before.
    Hijack { id: u32 },
}

impl ChannelEvent<'_> {
    /// The stream that it is about.
    pub fn id(&self) -> u32 {
        match self {
            Self::Answer { id, .. }
            | Self::Data { id, .. }
            | Self::Accept { id, .. }
            | Self::Reset { id, .. }
            | Self::Message { id, .. }
            | Self::Close { id, .. }
            | Self::Window { id, .. }
            | Self::Pull { id }
            | Self::Hijack { id } => *id,
        }
    }
}

/// An event and the bytes it took from the front of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChannelDecoded<'b> {
    pub event: ChannelEvent<'b>,
    pub consumed: usize,
}

/// The state of one channel socket, receiving side.
#[derive(Debug, Default)]
pub struct ChannelDecoder {
    open: Option<Open>,
}

/// A frame whose bytes are handed out as they come.
#[derive(Debug, Clone, Copy)]
struct Open {
    id: u32,
    left: u32,
    what: What,
}

#[derive(Debug, Clone, Copy)]
enum What {
    Body { is_last_frame: bool },
    Message { is_text: bool, len: u32 },
}

type Step<'b> = Result<Option<ChannelDecoded<'b>>, WireError>;

impl ChannelDecoder {
    /// A machine for a fresh socket.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next event off the front of `input`; `None` when more bytes are needed.
    ///
    /// # Errors
    /// Any breach of the protocol. The socket must be closed.
    pub fn decode<'b>(&mut self, input: &'b [u8]) -> Step<'b> {
        if let Some(open) = self.open {
            return Ok(self.take_bytes(input, open, false));
        }
        let Some(header) = FrameHeader::parse(input)? else {
            return Ok(None);
        };
        if header.payload_len < least_payload(header.kind)? {
            return Err(WireError::BadPayloadLength);
        }
        let rest = &input[HEADER_LEN..];
        let Some((id, rest)) = split_u32(rest) else {
            return Ok(None);
        };
        let step = match header.kind {
            Kind::Answer => self.answer(header, id, rest)?,
            Kind::Data => self.data(header, id, rest)?,
            Kind::Accept => accept(header, id, rest)?,
            Kind::Reset => reset(header, id, rest)?,
            Kind::Message => self.message(header, id, rest),
            Kind::Close => close(header, id, rest)?,
            Kind::Window => window(header, id, rest)?,
            Kind::StreamPull => Some(bare(header, ChannelEvent::Pull { id })?),
            Kind::StreamHijack => Some(bare(header, ChannelEvent::Hijack { id })?),
            kind => return Err(WireError::UnexpectedKind(kind as u8)),
        };
        Ok(step.map(|mut decoded| {
            decoded.consumed += HEADER_LEN + 4;
            decoded
        }))
    }

    fn answer<'b>(&mut self, header: FrameHeader, id: u32, rest: &'b [u8]) -> Step<'b> {
        let is_streamed = header.has(FLAG_STREAM);
        if is_streamed == header.has(FLAG_END) {
            return Err(WireError::BadFlags {
                kind: Kind::Answer as u8,
                flags: header.flags,
            });
        }
        let Some((app_time_us, rest)) = split_u32(rest) else {
            return Ok(None);
        };
        let Some((head_len, rest)) = split_u32(rest) else {
            return Ok(None);
        };
        let Some(body_len) = header
            .payload_len
            .checked_sub(12 + head_len.min(HEAD_LEN_MOST))
        else {
            return Err(WireError::BadPayloadLength);
        };
        if head_len > HEAD_BYTES_MAX {
            return Err(WireError::HeadTooLong);
        }
        let body_max = if is_streamed {
            super::WINDOW_BYTES
        } else {
            ANSWER_BODY_MAX
        };
        if body_len > body_max {
            return Err(WireError::PayloadTooLong(u64::from(body_len)));
        }
        let Some((head, rest)) = rest.split_at_checked(widen(head_len)) else {
            return Ok(None);
        };
        let body = &rest[..rest.len().min(widen(body_len))];
        let left = body_len.saturating_sub(narrow(body.len()));
        if left > 0 {
            let is_last_frame = !is_streamed;
            let what = What::Body { is_last_frame };
            self.open = Some(Open { id, left, what });
        }
        let event = ChannelEvent::Answer {
            id,
            head: parse_head(head, header.count),
            app_time_us,
            body,
            body_len: (!is_streamed).then_some(body_len),
            end: left == 0 && !is_streamed,
        };
        let consumed = 8 + widen(head_len) + body.len();
        Ok(Some(ChannelDecoded { event, consumed }))
    }

    fn data<'b>(&mut self, header: FrameHeader, id: u32, rest: &'b [u8]) -> Step<'b> {
        let is_last_frame = header.has(FLAG_END);
        let left = header.payload_len - 4;
        if left > DATA_BYTES_MAX {
            return Err(WireError::PayloadTooLong(u64::from(left)));
        }
        let what = What::Body { is_last_frame };
        Ok(self.take_bytes(rest, Open { id, left, what }, true))
    }

    fn message<'b>(
        &mut self,
        header: FrameHeader,
        id: u32,
        rest: &'b [u8],
    ) -> Option<ChannelDecoded<'b>> {
        let len = header.payload_len - 4;
        let is_text = header.has(FLAG_TEXT);
        let what = What::Message { is_text, len };
        let left = len;
        self.take_bytes(rest, Open { id, left, what }, true)
    }

    /// Hands out what is there. An empty frame has no bytes to wait for; one that has is worth an event
    /// only with them.
    fn take_bytes<'b>(
        &mut self,
        input: &'b [u8],
        open: Open,
        is_first: bool,
    ) -> Option<ChannelDecoded<'b>> {
        if open.left > 0 && input.is_empty() {
            return None;
        }
        let Open { id, left, what } = open;
        let bytes = &input[..input.len().min(widen(left))];
        let left = left.saturating_sub(narrow(bytes.len()));
        self.open = (left > 0).then_some(Open { id, left, what });
        let event = match what {
            What::Body { is_last_frame } => ChannelEvent::Data {
                id,
                bytes,
                end: left == 0 && is_last_frame,
            },
            What::Message { is_text, len } => ChannelEvent::Message {
                id,
                is_text,
                len,
                bytes,
                is_first,
                end: left == 0,
            },
        };
        Some(ChannelDecoded {
            event,
            consumed: bytes.len(),
        })
    }
}

/// Bytes that every frame of this kind has.
///
/// # Errors
/// [`WireError::UnexpectedKind`] for what a reactor does not send here.
fn least_payload(kind: Kind) -> Result<u32, WireError> {
    Ok(match kind {
        Kind::Answer => 12,
        Kind::Data
        | Kind::Accept
        | Kind::Reset
        | Kind::Message
        | Kind::StreamPull
        | Kind::StreamHijack => 4,
        Kind::Close => 6,
        Kind::Window => 8,
        kind => return Err(WireError::UnexpectedKind(kind as u8)),
    })
}

fn accept(header: FrameHeader, id: u32, rest: &[u8]) -> Step<'_> {
    let len = header.payload_len - 4;
    if len > HEAD_BYTES_MAX {
        return Err(WireError::HeadTooLong);
    }
    Ok(rest.get(..widen(len)).map(|head| ChannelDecoded {
        event: ChannelEvent::Accept {
            id,
            head: parse_accept(head, header.count),
        },
        consumed: head.len(),
    }))
}

fn reset(header: FrameHeader, id: u32, rest: &[u8]) -> Step<'_> {
    let Some(reason) = text(header.payload_len - 4, rest)? else {
        return Ok(None);
    };
    let event = ChannelEvent::Reset {
        id,
        reason,
        is_protocol: header.has(FLAG_PROTOCOL),
    };
    let consumed = reason.len();
    Ok(Some(ChannelDecoded { event, consumed }))
}

fn close(header: FrameHeader, id: u32, rest: &[u8]) -> Step<'_> {
    let Some(([low, high], rest)) = rest.split_first_chunk::<2>() else {
        return Ok(None);
    };
    let Some(reason) = text(header.payload_len - 6, rest)? else {
        return Ok(None);
    };
    let code = u16::from_le_bytes([*low, *high]);
    let consumed = 2 + reason.len();
    let event = ChannelEvent::Close { id, code, reason };
    Ok(Some(ChannelDecoded { event, consumed }))
}

fn window(header: FrameHeader, id: u32, rest: &[u8]) -> Step<'static> {
    if header.payload_len != 8 {
        return Err(WireError::BadPayloadLength);
    }
    Ok(split_u32(rest).map(|(bytes, _)| ChannelDecoded {
        event: ChannelEvent::Window { id, bytes },
        consumed: 4,
    }))
}

/// A frame that is an id and no more.
fn bare(
    header: FrameHeader,
    event: ChannelEvent<'static>,
) -> Result<ChannelDecoded<'static>, WireError> {
    if header.payload_len != 4 {
        return Err(WireError::BadPayloadLength);
    }
    Ok(ChannelDecoded { event, consumed: 0 })
}

/// So many bytes as text, `None` until they are there.
fn text(len: u32, rest: &[u8]) -> Result<Option<&str>, WireError> {
    if len > REASON_BYTES_MAX {
        return Err(WireError::PayloadTooLong(u64::from(len)));
    }
    let Some(bytes) = rest.get(..widen(len)) else {
        return Ok(None);
    };
    let text = std::str::from_utf8(bytes).map_err(|_| WireError::NotUtf8)?;
    Ok(Some(text))
}

fn split_u32(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (number, rest) = bytes.split_first_chunk::<4>()?;
    Some((u32::from_le_bytes(*number), rest))
}

/// Keeps a sum with it from overflowing; what is cut to it is refused anyway.
const HEAD_LEN_MOST: u32 = u32::MAX - 12;

/// Lengths on the wire have 32 bits and so does the smallest address space we run in.
fn widen(len: u32) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

/// Used on slices that were cut to a `u32` length before.
fn narrow(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
