//! The front end's decoder of one slot socket: a worker's bytes in, response events out.
//!
//! The driver calls [`SlotDecoder::record_sent_request`] for every REQUEST that it wrote,
//! [`SlotDecoder::record_gc_sent`] for every COLLECT_GARBAGE, and [`SlotDecoder::decode`]
//! with the bytes received and not yet consumed. Events come in order, for requests in the order in
//! which they were sent. Body bytes are returned as they arrive, so the caller needs a buffer no
//! larger than a response head. The driver keeps received descriptors in order and takes one for
//! every [`SlotEvent::File`], [`SlotEvent::Hijack`] and [`SlotEvent::AnswerRing`].
//!
//! # Invariants
//! - Every error is final: the socket is closed and the worker replaced.

use crate::WireError;
use crate::frame::{
    DecodedFrame, FLAG_END, FLAG_HAS_FD, FLAG_PROTOCOL_ERROR, FrameHeader, FrameKind, HEADER_LEN,
    parse_text, read_u32, read_u64, take_available,
};
use crate::head::{ResponseHeadView, split_head};

/// The largest reason in ABORT and FAILED.
pub const MAX_REASON_BYTES: u32 = 64 << 10;

/// One step of a response. Slices borrow the receive buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotEvent<'b> {
    /// The worker wants the descriptor of this request's body file: a message of one byte.
    FdRequest,
    /// Status and fields, with as much of the body as has arrived.
    Head {
        /// The checked head, or its error: then the client gets a 502, CANCEL may be sent, and
        /// everything up to the last event of this response is dropped. The frames are intact, so a
        /// faulty application costs its client a response and not the worker its life.
        head: Result<ResponseHeadView<'b>, WireError>,
        /// Time that the application took until this frame was sent, in microseconds.
        app_time_us: u32,
        body: &'b [u8],
        /// Length of the whole body if this frame has all of it, `None` if it is streamed.
        body_len: Option<u32>,
        /// Nothing more follows.
        end: bool,
    },
    /// More of the body.
    Body { bytes: &'b [u8], end: bool },
    /// A range of the next received descriptor; `len` is `None` for "to the end of the file".
    File {
        offset: u64,
        len: Option<u64>,
        end: bool,
    },
    /// The application answers by itself, on the next received descriptor: a stream socket. The end
    /// of this response follows when the application's call is over.
    Hijack,
    /// The response cannot be completed: the client is cut. Ends the response.
    Abort { reason: &'b str },
    /// There is no response, and no head was sent. Ends the response.
    Failed { reason: &'b str, is_protocol: bool },
    /// The current request waits for something else than the processor: another may take its slot.
    IoBound,
    /// The current request may take this many seconds from now on.
    ExtendDeadline { seconds: u32 },
    /// The requested garbage collection is done.
    GarbageCollected,
    /// The application waits for the next piece of its request's body.
    Pull,
    /// From now on answers may also come through memory that both sides share: the next received
    /// descriptor.
    AnswerRing,
}

impl SlotEvent<'_> {
    /// Whether this is the last event of its response.
    pub fn is_last(&self) -> bool {
        match self {
            Self::FdRequest
            | Self::IoBound
            | Self::ExtendDeadline { .. }
            | Self::GarbageCollected
            | Self::Pull
            | Self::AnswerRing
            | Self::Hijack => false,
            Self::Head { end, .. } | Self::Body { end, .. } | Self::File { end, .. } => *end,
            Self::Abort { .. } | Self::Failed { .. } => true,
        }
    }
}

/// The state of one slot socket, receiving side.
#[derive(Debug, Default)]
pub struct SlotDecoder {
    stage: Stage,
    /// Requests sent and not answered completely.
    outstanding_requests: u32,
    /// Number of the request whose response is due.
    current_request_seq: u32,
    /// The newest request has a body file that was not asked for yet.
    awaits_fd_request: bool,
    /// A COLLECT_GARBAGE was written and is not answered.
    is_collecting_garbage: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Between responses.
    #[default]
    Head,
    /// After a streamed head, between frames.
    Stream,
    /// After HIJACK: only the end follows.
    Hijacked,
    /// Inside the body bytes of a HEAD or BODY frame.
    Bytes { left: u32, is_last_frame: bool },
}

impl SlotDecoder {
    /// Creates a decoder for a fresh socket.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts a REQUEST that was written. After one with a body file nothing more may be sent until
    /// its response has ended.
    pub fn record_sent_request(&mut self, has_body_file: bool) {
        debug_assert!(!self.awaits_fd_request);
        self.outstanding_requests = self.outstanding_requests.saturating_add(1);
        self.awaits_fd_request = has_body_file;
    }

    /// Records a COLLECT_GARBAGE that was written; it may be sent only while no request is
    /// outstanding.
    pub fn record_gc_sent(&mut self) {
        debug_assert_eq!(self.outstanding_requests, 0);
        self.is_collecting_garbage = true;
    }

    /// Requests that are not answered completely.
    pub fn outstanding_requests(&self) -> u32 {
        self.outstanding_requests
    }

    /// The number, counted from 0, of the request whose response is in progress or due next, for
    /// [`crate::encode_cancel`].
    pub fn current_request_seq(&self) -> u32 {
        self.current_request_seq
    }

    /// Takes the next event off the front of `input`; `None` when more bytes are needed.
    ///
    /// # Errors
    /// Any breach of the protocol. The socket must be closed.
    pub fn decode<'b>(
        &mut self,
        input: &'b [u8],
    ) -> Result<Option<DecodedFrame<SlotEvent<'b>>>, WireError> {
        if let Stage::Bytes {
            left,
            is_last_frame,
        } = self.stage
        {
            return Ok(self.read_bytes(input, left, is_last_frame));
        }
        let Some(header) = FrameHeader::parse(input)? else {
            return Ok(None);
        };
        let rest = &input[HEADER_LEN..];
        let decoded = match (header.kind, self.stage) {
            _ if self.outstanding_requests == 0 => self.decode_collected(header, rest)?,
            (FrameKind::Head, Stage::Head) => self.decode_head(header, rest)?,
            (FrameKind::Body, Stage::Stream) => {
                let is_last_frame = header.has_flag(FLAG_END);
                let read = self.read_bytes(rest, header.payload_len, is_last_frame);
                return Ok(read.map(|read| DecodedFrame {
                    consumed: HEADER_LEN + read.consumed,
                    ..read
                }));
            }
            _ => self.decode_whole(header, rest)?,
        };
        if decoded.is_some_and(|decoded| decoded.event.is_last()) {
            self.finish_response();
        }
        Ok(decoded)
    }

    /// Decodes the only frame that comes without a request.
    fn decode_collected<'b>(
        &mut self,
        header: FrameHeader,
        rest: &'b [u8],
    ) -> Result<Option<DecodedFrame<SlotEvent<'b>>>, WireError> {
        if header.kind != FrameKind::GarbageCollected
            || !std::mem::take(&mut self.is_collecting_garbage)
        {
            return Err(WireError::ResponseWithoutRequest);
        }
        let event = SlotEvent::GarbageCollected;
        let consumed = HEADER_LEN;
        Ok(header
            .split_payload(rest, 0..=0)?
            .map(|_| DecodedFrame { event, consumed }))
    }

    /// Decodes a frame that is an event once all of it is there.
    fn decode_whole<'b>(
        &mut self,
        header: FrameHeader,
        rest: &'b [u8],
    ) -> Result<Option<DecodedFrame<SlotEvent<'b>>>, WireError> {
        let (lens, flags) = match (header.kind, self.stage) {
            (FrameKind::FdRequest, Stage::Head) | (FrameKind::IoBound | FrameKind::Pull, _) => {
                (0..=0, 0)
            }
            (FrameKind::ExtendDeadline, _) => (4..=4, 0),
            (FrameKind::Hijack | FrameKind::AnswerRing, Stage::Head) => (0..=0, FLAG_HAS_FD),
            (FrameKind::Body, Stage::Hijacked) => (0..=0, FLAG_END),
            (FrameKind::File, Stage::Stream) => (16..=16, FLAG_HAS_FD),
            (FrameKind::Failed, Stage::Head) | (FrameKind::Abort, Stage::Stream) => {
                (0..=MAX_REASON_BYTES, 0)
            }
            (kind, _) => return Err(WireError::UnexpectedFrameKind(kind as u8)),
        };
        if header.flags & flags != flags {
            return Err(header.bad_flags_error());
        }
        let Some(payload) = header.split_payload(rest, lens)? else {
            return Ok(None);
        };
        let event = match header.kind {
            FrameKind::FdRequest => {
                // Only the newest request can have a file, so its turn comes when it is the only
                // one.
                if self.outstanding_requests != 1 || !std::mem::take(&mut self.awaits_fd_request) {
                    return Err(WireError::UnexpectedFrameKind(header.kind as u8));
                }
                SlotEvent::FdRequest
            }
            FrameKind::IoBound => SlotEvent::IoBound,
            FrameKind::Pull => SlotEvent::Pull,
            FrameKind::AnswerRing => SlotEvent::AnswerRing,
            FrameKind::ExtendDeadline => SlotEvent::ExtendDeadline {
                seconds: read_u32(payload),
            },
            FrameKind::Hijack => {
                self.stage = Stage::Hijacked;
                SlotEvent::Hijack
            }
            FrameKind::File => SlotEvent::File {
                offset: read_u64(payload, 0),
                len: Some(read_u64(payload, 8)).filter(|len| *len != u64::MAX),
                end: header.has_flag(FLAG_END),
            },
            FrameKind::Failed => SlotEvent::Failed {
                reason: parse_text(payload)?,
                is_protocol: header.has_flag(FLAG_PROTOCOL_ERROR),
            },
            FrameKind::Abort => SlotEvent::Abort {
                reason: parse_text(payload)?,
            },
            // The end of a hijacked request.
            _ => SlotEvent::Body {
                bytes: &[],
                end: true,
            },
        };
        let consumed = HEADER_LEN + payload.len();
        Ok(Some(DecodedFrame { event, consumed }))
    }

    fn decode_head<'b>(
        &mut self,
        header: FrameHeader,
        rest: &'b [u8],
    ) -> Result<Option<DecodedFrame<SlotEvent<'b>>>, WireError> {
        let split = split_head(header, header.payload_len, rest, [u32::MAX; 2])?;
        Ok(split.map(|payload| {
            let is_last_frame = !payload.is_streamed;
            self.stage = match payload.left {
                0 if is_last_frame => Stage::Head,
                0 => Stage::Stream,
                left => Stage::Bytes {
                    left,
                    is_last_frame,
                },
            };
            DecodedFrame {
                event: SlotEvent::Head {
                    head: payload.head,
                    app_time_us: payload.app_time_us,
                    body: payload.body,
                    body_len: is_last_frame.then_some(payload.body_len),
                    end: payload.left == 0 && is_last_frame,
                },
                consumed: HEADER_LEN + payload.consumed,
            }
        }))
    }

    fn read_bytes<'b>(
        &mut self,
        input: &'b [u8],
        left: u32,
        is_last_frame: bool,
    ) -> Option<DecodedFrame<SlotEvent<'b>>> {
        let (bytes, left) = take_available(input, left)?;
        let end = left == 0 && is_last_frame;
        match left {
            0 if is_last_frame => self.finish_response(),
            0 => self.stage = Stage::Stream,
            _ => {
                self.stage = Stage::Bytes {
                    left,
                    is_last_frame,
                };
            }
        }
        let event = SlotEvent::Body { bytes, end };
        let consumed = bytes.len();
        Some(DecodedFrame { event, consumed })
    }

    fn finish_response(&mut self) {
        self.stage = Stage::Head;
        self.outstanding_requests = self.outstanding_requests.saturating_sub(1);
        self.current_request_seq = self.current_request_seq.wrapping_add(1);
        if self.outstanding_requests == 0 {
            self.awaits_fd_request = false;
        }
    }
}

mod method_and_path;
#[cfg(test)]
mod tests;

pub use method_and_path::read_method_and_path;
