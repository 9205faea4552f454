//! The front end's decoder of one slot socket: a worker's bytes in, response events out.
//!
//! The driver calls [`SlotDecoder::record_request`] for every REQUEST that it wrote,
//! [`SlotDecoder::record_collect`] for every COLLECT_GARBAGE, and [`SlotDecoder::decode`] with the
//! bytes received and not yet consumed. Events come in order, for requests in the order in which
//! they were sent. Body bytes are returned as they arrive, so the caller needs a buffer no larger
//! than a response head. Descriptors are the driver's: it keeps received ones in order and takes
//! one for every [`SlotEvent::File`] and [`SlotEvent::Hijack`].
//!
//! # Invariants
//! - Every error is final: the socket is closed and the worker replaced.

use crate::WireError;
use crate::frame::{
    FLAG_END, FLAG_HAS_FD, FLAG_PROTOCOL_ERROR, FrameHeader, FrameKind, HEADER_LEN, split_text,
    split_u32, take_available,
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
    /// The current request waits for something else than the processor: another may have its place.
    IoBound,
    /// The current request may take this many seconds from now on.
    ExtendDeadline { seconds: u32 },
    /// The requested garbage collection is done.
    GarbageCollected,
    /// The application waits for the next piece of its request's body.
    Pull,
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
            | Self::Hijack => false,
            Self::Head { end, .. } | Self::Body { end, .. } | Self::File { end, .. } => *end,
            Self::Abort { .. } | Self::Failed { .. } => true,
        }
    }
}

/// An event and the bytes it took from the front of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodedSlotEvent<'b> {
    pub event: SlotEvent<'b>,
    pub consumed: usize,
}

/// The state of one slot socket, receiving side.
#[derive(Debug, Default)]
pub struct SlotDecoder {
    stage: Stage,
    /// Requests sent and not answered completely.
    outstanding: u32,
    /// Number of the request whose response is due.
    seq: u32,
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
    /// A machine for a fresh socket.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts a REQUEST that was written. After one with a body file nothing more may be sent until
    /// its response has ended.
    pub fn record_request(&mut self, has_body_file: bool) {
        debug_assert!(!self.awaits_fd_request);
        self.outstanding = self.outstanding.saturating_add(1);
        self.awaits_fd_request = has_body_file;
    }

    /// Notes a COLLECT_GARBAGE that was written; it may be sent only while nothing is outstanding.
    pub fn record_collect(&mut self) {
        debug_assert_eq!(self.outstanding, 0);
        self.is_collecting_garbage = true;
    }

    /// Requests that are not answered completely.
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// The number, counted from 0, of the request whose response is in progress or due next, for
    /// [`crate::encode_cancel`].
    pub fn seq(&self) -> u32 {
        self.seq
    }

    /// Takes the next event off the front of `input`; `None` when more bytes are needed.
    ///
    /// # Errors
    /// Any breach of the protocol. The socket must be closed.
    pub fn decode<'b>(
        &mut self,
        input: &'b [u8],
    ) -> Result<Option<DecodedSlotEvent<'b>>, WireError> {
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
        if self.outstanding == 0 {
            return self.decode_collected(header).map(Some);
        }
        let rest = &input[HEADER_LEN..];
        let decoded = match (header.kind, self.stage) {
            (FrameKind::FdRequest, Stage::Head) => self.decode_fd_request(header)?,
            (FrameKind::Head, Stage::Head) => self.decode_head(header, rest)?,
            (FrameKind::Failed, Stage::Head) => decode_failed(header, rest)?,
            (FrameKind::Hijack, Stage::Head) => Some(self.decode_hijack(header)?),
            (FrameKind::Body, Stage::Hijacked) => Some(decode_end_of_hijack(header)?),
            (FrameKind::Body, Stage::Stream) => return Ok(self.decode_body(header, rest)),
            (FrameKind::File, Stage::Stream) => decode_file(header, rest)?,
            (FrameKind::Abort, Stage::Stream) => decode_abort(header, rest)?,
            (FrameKind::IoBound, _) => Some(decode_empty(header, SlotEvent::IoBound)?),
            (FrameKind::ExtendDeadline, _) => decode_extend(header, rest)?,
            (FrameKind::Pull, _) => Some(decode_empty(header, SlotEvent::Pull)?),
            (kind, _) => return Err(WireError::UnexpectedFrameKind(kind as u8)),
        };
        if decoded.is_some_and(|decoded| decoded.event.is_last()) {
            self.finish_response();
        }
        Ok(decoded)
    }

    /// Decodes the only frame that comes without a request.
    fn decode_collected(
        &mut self,
        header: FrameHeader,
    ) -> Result<DecodedSlotEvent<'static>, WireError> {
        if header.kind != FrameKind::GarbageCollected
            || !std::mem::take(&mut self.is_collecting_garbage)
        {
            return Err(WireError::ResponseWithoutRequest);
        }
        decode_empty(header, SlotEvent::GarbageCollected)
    }

    fn decode_fd_request(
        &mut self,
        header: FrameHeader,
    ) -> Result<Option<DecodedSlotEvent<'static>>, WireError> {
        let decoded = decode_empty(header, SlotEvent::FdRequest)?;
        // Only the newest request can have a file, so its turn comes when it is the only one.
        if !self.awaits_fd_request || self.outstanding != 1 {
            return Err(WireError::UnexpectedFrameKind(FrameKind::FdRequest as u8));
        }
        self.awaits_fd_request = false;
        Ok(Some(decoded))
    }

    fn decode_hijack(
        &mut self,
        header: FrameHeader,
    ) -> Result<DecodedSlotEvent<'static>, WireError> {
        if !header.has_flag(FLAG_HAS_FD) {
            return Err(header.bad_flags());
        }
        let decoded = decode_empty(header, SlotEvent::Hijack)?;
        self.stage = Stage::Hijacked;
        Ok(decoded)
    }

    fn decode_head<'b>(
        &mut self,
        header: FrameHeader,
        rest: &'b [u8],
    ) -> Result<Option<DecodedSlotEvent<'b>>, WireError> {
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
            DecodedSlotEvent {
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

    fn decode_body<'b>(
        &mut self,
        header: FrameHeader,
        rest: &'b [u8],
    ) -> Option<DecodedSlotEvent<'b>> {
        let is_last_frame = header.has_flag(FLAG_END);
        let mut decoded = self.read_bytes(rest, header.payload_len, is_last_frame)?;
        decoded.consumed += HEADER_LEN;
        Some(decoded)
    }

    fn read_bytes<'b>(
        &mut self,
        input: &'b [u8],
        left: u32,
        is_last_frame: bool,
    ) -> Option<DecodedSlotEvent<'b>> {
        let (bytes, left) = take_available(input, left)?;
        if left == 0 {
            self.finish_frame(is_last_frame);
        } else {
            self.stage = Stage::Bytes {
                left,
                is_last_frame,
            };
        }
        let event = SlotEvent::Body {
            bytes,
            end: left == 0 && is_last_frame,
        };
        Some(DecodedSlotEvent {
            event,
            consumed: bytes.len(),
        })
    }

    fn finish_frame(&mut self, is_last_frame: bool) {
        self.stage = Stage::Stream;
        if is_last_frame {
            self.finish_response();
        }
    }

    fn finish_response(&mut self) {
        self.stage = Stage::Head;
        self.outstanding = self.outstanding.saturating_sub(1);
        self.seq = self.seq.wrapping_add(1);
        if self.outstanding == 0 {
            self.awaits_fd_request = false;
        }
    }
}

/// Decodes a frame without a payload.
fn decode_empty(
    header: FrameHeader,
    event: SlotEvent<'static>,
) -> Result<DecodedSlotEvent<'static>, WireError> {
    if header.payload_len != 0 {
        return Err(WireError::BadPayloadLength);
    }
    Ok(DecodedSlotEvent {
        event,
        consumed: HEADER_LEN,
    })
}

fn decode_end_of_hijack(header: FrameHeader) -> Result<DecodedSlotEvent<'static>, WireError> {
    if !header.has_flag(FLAG_END) {
        return Err(header.bad_flags());
    }
    let end = true;
    decode_empty(header, SlotEvent::Body { bytes: &[], end })
}

fn decode_extend(
    header: FrameHeader,
    rest: &[u8],
) -> Result<Option<DecodedSlotEvent<'static>>, WireError> {
    if header.payload_len != 4 {
        return Err(WireError::BadPayloadLength);
    }
    Ok(split_u32(rest).map(|(seconds, _)| DecodedSlotEvent {
        event: SlotEvent::ExtendDeadline { seconds },
        consumed: HEADER_LEN + 4,
    }))
}

fn decode_file(
    header: FrameHeader,
    rest: &[u8],
) -> Result<Option<DecodedSlotEvent<'_>>, WireError> {
    if !header.has_flag(FLAG_HAS_FD) {
        return Err(header.bad_flags());
    }
    if header.payload_len != 16 {
        return Err(WireError::BadPayloadLength);
    }
    let (Some(offset), Some(len)) = (read_u64(rest, 0), read_u64(rest, 8)) else {
        return Ok(None);
    };
    let len = (len != u64::MAX).then_some(len);
    let event = SlotEvent::File {
        offset,
        len,
        end: header.has_flag(FLAG_END),
    };
    Ok(Some(DecodedSlotEvent {
        event,
        consumed: HEADER_LEN + 16,
    }))
}

fn decode_abort(
    header: FrameHeader,
    rest: &[u8],
) -> Result<Option<DecodedSlotEvent<'_>>, WireError> {
    let reason = split_text(header.payload_len, rest, MAX_REASON_BYTES)?;
    Ok(reason.map(|reason| DecodedSlotEvent {
        event: SlotEvent::Abort { reason },
        consumed: HEADER_LEN + reason.len(),
    }))
}

fn decode_failed(
    header: FrameHeader,
    rest: &[u8],
) -> Result<Option<DecodedSlotEvent<'_>>, WireError> {
    let is_protocol = header.has_flag(FLAG_PROTOCOL_ERROR);
    let reason = split_text(header.payload_len, rest, MAX_REASON_BYTES)?;
    Ok(reason.map(|reason| DecodedSlotEvent {
        event: SlotEvent::Failed {
            reason,
            is_protocol,
        },
        consumed: HEADER_LEN + reason.len(),
    }))
}

fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    bytes
        .get(at..)?
        .first_chunk::<8>()
        .map(|chunk| u64::from_le_bytes(*chunk))
}

mod request_name;
#[cfg(test)]
mod tests;

pub use request_name::request_name;
