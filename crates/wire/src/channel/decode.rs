//! Frames from a reactor to the front end: STREAM_RESPONSE, DATA, ACCEPT, RESET, MESSAGE, CLOSE,
//! WINDOW, PULL, HIJACK.
//!
//! A pure decoder of the bytes of the socket. Its only state is the frame whose bytes are being
//! returned.

use super::{MAX_DATA_BYTES, MAX_WHOLE_BODY_BYTES, WINDOW_BYTES};
use crate::WireError;
use crate::frame::{
    DecodedFrame, FLAG_END, FLAG_PROTOCOL_ERROR, FLAG_TEXT, FrameHeader, FrameKind, HEADER_LEN,
    MAX_PAYLOAD_BYTES, len_to_usize, parse_text, read_u32, split_u32, take_available,
};
use crate::head::{
    AcceptHeadView, MAX_HEAD_BYTES, ResponseHeadView, parse_accept_head, split_head,
};
use crate::slot::MAX_REASON_BYTES;

/// One step of a stream. Slices borrow the receive buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelEvent<'b> {
    /// Status and fields, with as much of the body as has arrived.
    Response {
        id: u32,
        /// The checked head, or its error: see [`crate::SlotEvent::Head`].
        head: Result<ResponseHeadView<'b>, WireError>,
        /// Time that the application took until this frame was sent, in microseconds.
        app_time_us: u32,
        body: &'b [u8],
        /// Length of the whole body if this frame has all of it, `None` if it is streamed.
        body_len: Option<u32>,
        /// Nothing more follows.
        end: bool,
    },
    /// More of a body, of STREAM_RESPONSE or DATA.
    Data { id: u32, bytes: &'b [u8], end: bool },
    /// The application accepts a WebSocket.
    Accept {
        id: u32,
        /// The checked head, or its error.
        head: Result<AcceptHeadView<'b>, WireError>,
    },
    /// The response is not completed, or there is none: ends the stream.
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
    /// This many more bytes of MESSAGE may be sent.
    Window { id: u32, bytes: u32 },
    /// The application waits for the next piece of its request's body.
    Pull { id: u32 },
    /// The application answers by itself, on a socket that was sent before.
    Hijack { id: u32 },
}

impl ChannelEvent<'_> {
    /// The stream of the event.
    pub fn stream_id(&self) -> u32 {
        match self {
            Self::Response { id, .. }
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

/// The state of one channel socket, receiving side.
#[derive(Debug, Default)]
pub struct ChannelDecoder {
    open_frame: Option<OpenFrame>,
}

/// A frame whose bytes are returned as they arrive.
#[derive(Debug, Clone, Copy)]
struct OpenFrame {
    id: u32,
    remaining: u32,
    content: FrameContent,
}

#[derive(Debug, Clone, Copy)]
enum FrameContent {
    Body { is_last_frame: bool },
    Message { is_text: bool, len: u32 },
}

type DecodeResult<'b> = Result<Option<DecodedFrame<ChannelEvent<'b>>>, WireError>;

impl ChannelDecoder {
    /// Creates a decoder for a fresh socket.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next event off the front of `input`; `None` when more bytes are needed.
    ///
    /// # Errors
    /// Any breach of the protocol. The socket must be closed.
    pub fn decode<'b>(&mut self, input: &'b [u8]) -> DecodeResult<'b> {
        if let Some(open) = self.open_frame {
            return Ok(self.read_bytes(input, open, false));
        }
        let Some(header) = FrameHeader::parse(input)? else {
            return Ok(None);
        };
        let lens = match header.kind {
            FrameKind::StreamResponse => 12..=MAX_PAYLOAD_BYTES,
            FrameKind::Message => 4..=MAX_PAYLOAD_BYTES,
            FrameKind::Data => 4..=4 + MAX_DATA_BYTES,
            FrameKind::Accept => 4..=4 + MAX_HEAD_BYTES,
            FrameKind::Reset => 4..=4 + MAX_REASON_BYTES,
            FrameKind::Close => 6..=6 + MAX_REASON_BYTES,
            FrameKind::Window => 8..=8,
            FrameKind::StreamPull | FrameKind::StreamHijack => 4..=4,
            kind => return Err(WireError::UnexpectedFrameKind(kind as u8)),
        };
        header.check_len(lens)?;
        let Some((id, rest)) = split_u32(&input[HEADER_LEN..]) else {
            return Ok(None);
        };
        let left = header.payload_len - 4;
        let step = match header.kind {
            FrameKind::StreamResponse => self.decode_response(header, id, rest)?,
            FrameKind::Data | FrameKind::Message => {
                let content = match header.kind {
                    FrameKind::Data => FrameContent::Body {
                        is_last_frame: header.has_flag(FLAG_END),
                    },
                    _ => FrameContent::Message {
                        is_text: header.has_flag(FLAG_TEXT),
                        len: left,
                    },
                };
                let frame = OpenFrame {
                    id,
                    remaining: left,
                    content,
                };
                self.read_bytes(rest, frame, true)
            }
            _ => decode_whole(header, id, rest)?,
        };
        Ok(step.map(|decoded| DecodedFrame {
            consumed: decoded.consumed + HEADER_LEN + 4,
            ..decoded
        }))
    }

    fn decode_response<'b>(
        &mut self,
        header: FrameHeader,
        id: u32,
        rest: &'b [u8],
    ) -> DecodeResult<'b> {
        let payload_len = header.payload_len - 4;
        let split = split_head(
            header,
            payload_len,
            rest,
            [WINDOW_BYTES, MAX_WHOLE_BODY_BYTES],
        )?;
        Ok(split.map(|payload| {
            let is_last_frame = !payload.is_streamed;
            if payload.left > 0 {
                self.open_frame = Some(OpenFrame {
                    id,
                    remaining: payload.left,
                    content: FrameContent::Body { is_last_frame },
                });
            }
            DecodedFrame {
                event: ChannelEvent::Response {
                    id,
                    head: payload.head,
                    app_time_us: payload.app_time_us,
                    body: payload.body,
                    body_len: is_last_frame.then_some(payload.body_len),
                    end: payload.left == 0 && is_last_frame,
                },
                consumed: payload.consumed,
            }
        }))
    }

    /// Returns the available bytes. An empty frame has none to wait for; any other is worth an
    /// event only with some.
    fn read_bytes<'b>(
        &mut self,
        input: &'b [u8],
        open: OpenFrame,
        is_first: bool,
    ) -> Option<DecodedFrame<ChannelEvent<'b>>> {
        let (bytes, left) = take_available(input, open.remaining)?;
        self.open_frame = (left > 0).then_some(OpenFrame {
            remaining: left,
            ..open
        });
        let id = open.id;
        let event = match open.content {
            FrameContent::Body { is_last_frame } => ChannelEvent::Data {
                id,
                bytes,
                end: left == 0 && is_last_frame,
            },
            FrameContent::Message { is_text, len } => ChannelEvent::Message {
                id,
                is_text,
                len,
                bytes,
                is_first,
                end: left == 0,
            },
        };
        let consumed = bytes.len();
        Some(DecodedFrame { event, consumed })
    }
}

/// Decodes the rest of a frame that is an event once all of it is there.
fn decode_whole(header: FrameHeader, id: u32, rest: &[u8]) -> DecodeResult<'_> {
    let Some((payload, _)) = rest.split_at_checked(len_to_usize(header.payload_len - 4)) else {
        return Ok(None);
    };
    let event = match header.kind {
        FrameKind::Accept => ChannelEvent::Accept {
            id,
            head: parse_accept_head(payload, header.string_count),
        },
        FrameKind::Reset => ChannelEvent::Reset {
            id,
            reason: parse_text(payload)?,
            is_protocol: header.has_flag(FLAG_PROTOCOL_ERROR),
        },
        FrameKind::Close => {
            let [low, high, reason @ ..] = payload else {
                return Err(WireError::BadPayloadLength);
            };
            let code = u16::from_le_bytes([*low, *high]);
            let reason = parse_text(reason)?;
            ChannelEvent::Close { id, code, reason }
        }
        FrameKind::Window => ChannelEvent::Window {
            id,
            bytes: read_u32(payload),
        },
        FrameKind::StreamPull => ChannelEvent::Pull { id },
        _ => ChannelEvent::Hijack { id },
    };
    let consumed = payload.len();
    Ok(Some(DecodedFrame { event, consumed }))
}
