//! The front end's machine for one slot socket: bytes of a worker in, response events out.
//!
//! Inputs: [`Decoder::request_sent`] for every REQUEST written, [`Decoder::collect_sent`] for every COLLECT, [`Decoder::decode`] with the bytes
//! received and not yet consumed. Outputs: events in order, one response after the other, for
//! requests in the order in which they were sent. Descriptors are not seen here: the driver keeps
//! those that `recvmsg` delivered in a queue and takes one for every [`Event::File`] and [`Event::Hijack`].
//!
//! Body bytes are handed out as they come, so the caller needs a buffer no larger than a response
//! head. Every error is final: close the socket, replace the worker.

use crate::WireError;
use crate::frame::{
    FLAG_END, FLAG_HAS_FD, FLAG_PROTOCOL, FLAG_STREAM, FrameHeader, HEADER_LEN, Kind,
};
use crate::head::{HeadParts, parse_head};

/// The largest response head, all strings together.
pub const HEAD_BYTES_MAX: u32 = 256 << 10;
/// The largest reason in ABORT and FAILED.
pub const REASON_BYTES_MAX: u32 = 64 << 10;

/// One step of a response. Slices borrow the receive buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<'b> {
    /// The worker wants the descriptor of this request's body file: one message of one byte.
    FdPlease,
    /// Status and fields, with as much of the body as has arrived.
    Head {
        /// The checked head; or what is wrong with it: then the client gets a 502, CANCEL may be sent,
        /// and everything up to the last event of this response is dropped. The frames are intact,
        /// so a faulty application costs its client an answer and not the worker its life.
        head: Result<HeadParts<'b>, WireError>,
        /// Time that the application took until this frame was sent, in microseconds.
        app_time_us: u32,
        body: &'b [u8],
        /// Length of the whole body when this frame holds all of it, `None` when it is streamed.
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
    /// The application answers by itself, on the next received descriptor: a stream socket. What is left
    /// of this response is its end, which comes when the application's call is over.
    Hijack,
    /// The response cannot be completed: cut the client. Ends the response.
    Abort { reason: &'b str },
    /// There is no response, and nothing was sent. Ends the response.
    Failed { reason: &'b str, is_protocol: bool },
    /// The request at hand waits for something else than the processor: another may have its place.
    IoBound,
    /// The request at hand may take so many seconds from now on.
    Extend { seconds: u32 },
    /// The collection that was asked for is done.
    Collected,
    /// The application waits for the next piece of its request's body.
    Pull,
}

impl Event<'_> {
    /// Whether this is the last event of its response.
    pub fn is_last(&self) -> bool {
        match self {
            Self::FdPlease
            | Self::IoBound
            | Self::Extend { .. }
            | Self::Collected
            | Self::Pull
            | Self::Hijack => false,
            Self::Head { end, .. } | Self::Body { end, .. } | Self::File { end, .. } => *end,
            Self::Abort { .. } | Self::Failed { .. } => true,
        }
    }
}

/// An event and the bytes it took from the front of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decoded<'b> {
    pub event: Event<'b>,
    pub consumed: usize,
}

/// The state of one slot socket, receiving side.
#[derive(Debug, Default)]
pub struct Decoder {
    stage: Stage,
    /// Requests sent and not yet answered to the end.
    outstanding: u32,
    /// Number of the request whose response is due.
    seq: u32,
    /// The newest request has its body in a file that was not asked for yet.
    is_file_due: bool,
    /// A COLLECT was written and is not answered.
    is_collecting: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Between responses.
    #[default]
    Head,
    /// After a streamed head, between frames.
    Stream,
    /// After HIJACK: nothing but the end follows.
    Hijacked,
    /// Inside the body bytes of a HEAD or BODY frame.
    Bytes { left: u32, is_last_frame: bool },
}

impl Decoder {
    /// A machine for a fresh socket.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts a REQUEST that was written. After one with a body file nothing more may be sent
    /// until it is answered.
    pub fn request_sent(&mut self, has_body_file: bool) {
        debug_assert!(!self.is_file_due);
        self.outstanding = self.outstanding.saturating_add(1);
        self.is_file_due = has_body_file;
    }

    /// Notes a COLLECT that was written; it may be sent only while nothing is outstanding.
    pub fn collect_sent(&mut self) {
        debug_assert_eq!(self.outstanding, 0);
        self.is_collecting = true;
    }

    /// Requests that are not answered to the end.
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// The number, counted from 0, of the request whose response is in progress or due next: what
    /// [`crate::encode_cancel`] wants.
    pub fn seq(&self) -> u32 {
        self.seq
    }

    /// Takes the next event off the front of `input`; `None` when more bytes are needed.
    ///
    /// # Errors
    /// Any breach of the protocol. The socket must be closed.
    pub fn decode<'b>(&mut self, input: &'b [u8]) -> Result<Option<Decoded<'b>>, WireError> {
        if let Stage::Bytes {
            left,
            is_last_frame,
        } = self.stage
        {
            return Ok(self.take_bytes(input, left, is_last_frame));
        }
        let Some(header) = FrameHeader::parse(input)? else {
            return Ok(None);
        };
        if self.outstanding == 0 {
            return self.collected(header).map(Some);
        }
        let rest = &input[HEADER_LEN..];
        let decoded = match (header.kind, self.stage) {
            (Kind::FdPlease, Stage::Head) => self.fd_please(header)?,
            (Kind::Head, Stage::Head) => self.head(header, rest)?,
            (Kind::Failed, Stage::Head) => failed(header, rest)?,
            (Kind::Hijack, Stage::Head) => Some(self.hijack(header)?),
            (Kind::Body, Stage::Hijacked) => Some(end_of_hijack(header)?),
            (Kind::Body, Stage::Stream) => return Ok(self.body(header, rest)),
            (Kind::File, Stage::Stream) => file(header, rest)?,
            (Kind::Abort, Stage::Stream) => abort(header, rest)?,
            (Kind::IoBound, _) => Some(empty(header, Event::IoBound)?),
            (Kind::Extend, _) => extend(header, rest)?,
            (Kind::Pull, _) => Some(empty(header, Event::Pull)?),
            (kind, _) => return Err(WireError::UnexpectedKind(kind as u8)),
        };
        if decoded.is_some_and(|decoded| decoded.event.is_last()) {
            self.finish_response();
        }
        Ok(decoded)
    }

    /// The only frame that comes without a request.
    fn collected(&mut self, header: FrameHeader) -> Result<Decoded<'static>, WireError> {
        if header.kind != Kind::Collected || !std::mem::take(&mut self.is_collecting) {
            return Err(WireError::NoRequest);
        }
        empty(header, Event::Collected)
    }

    fn fd_please(&mut self, header: FrameHeader) -> Result<Option<Decoded<'static>>, WireError> {
        let decoded = empty(header, Event::FdPlease)?;
        // Only the newest request can have a file, so its turn comes when it is the only one.
        if !self.is_file_due || self.outstanding != 1 {
            return Err(WireError::UnexpectedKind(Kind::FdPlease as u8));
        }
        self.is_file_due = false;
        Ok(Some(decoded))
    }

    fn hijack(&mut self, header: FrameHeader) -> Result<Decoded<'static>, WireError> {
        if !header.has(FLAG_HAS_FD) {
            return Err(WireError::BadFlags {
                kind: Kind::Hijack as u8,
                flags: header.flags,
            });
        }
        let decoded = empty(header, Event::Hijack)?;
        self.stage = Stage::Hijacked;
        Ok(decoded)
    }

    fn head<'b>(
        &mut self,
        header: FrameHeader,
        rest: &'b [u8],
    ) -> Result<Option<Decoded<'b>>, WireError> {
        let is_streamed = header.has(FLAG_STREAM);
        if is_streamed == header.has(FLAG_END) {
            return Err(WireError::BadFlags {
                kind: Kind::Head as u8,
                flags: header.flags,
            });
        }
        let Some(times) = rest.first_chunk::<8>() else {
            return short_payload(header, 8);
        };
        let [t0, t1, t2, t3, h0, h1, h2, h3] = *times;
        let head_len = u32::from_le_bytes([h0, h1, h2, h3]);
        let Some(body_len) = header
            .payload_len
            .checked_sub(8)
            .and_then(|n| n.checked_sub(head_len))
        else {
            return Err(WireError::BadPayloadLength);
        };
        if head_len > HEAD_BYTES_MAX {
            return Err(WireError::HeadTooLong);
        }
        let Some((head, rest)) = rest[8..].split_at_checked(widen(head_len)) else {
            return Ok(None);
        };
        let head = parse_head(head, header.count);
        let body = &rest[..rest.len().min(widen(body_len))];
        let left = body_len.saturating_sub(narrow(body.len()));
        self.stage = match (left, is_streamed) {
            (0, true) => Stage::Stream,
            (0, false) => Stage::Head,
            _ => Stage::Bytes {
                left,
                is_last_frame: !is_streamed,
            },
        };
        let event = Event::Head {
            head,
            app_time_us: u32::from_le_bytes([t0, t1, t2, t3]),
            body,
            body_len: (!is_streamed).then_some(body_len),
            end: left == 0 && !is_streamed,
        };
        let consumed = HEADER_LEN + 8 + widen(head_len) + body.len();
        Ok(Some(Decoded { event, consumed }))
    }

    fn body<'b>(&mut self, header: FrameHeader, rest: &'b [u8]) -> Option<Decoded<'b>> {
        let is_last_frame = header.has(FLAG_END);
        // An empty frame has no bytes to wait for, one that has is worth an event only with them.
        if header.payload_len > 0 && rest.is_empty() {
            return None;
        }
        let mut decoded = if header.payload_len == 0 {
            self.end_of_frame(is_last_frame);
            Decoded {
                event: Event::Body {
                    bytes: &[],
                    end: is_last_frame,
                },
                consumed: 0,
            }
        } else {
            self.take_bytes(rest, header.payload_len, is_last_frame)?
        };
        decoded.consumed += HEADER_LEN;
        Some(decoded)
    }

    fn take_bytes<'b>(
        &mut self,
        input: &'b [u8],
        left: u32,
        is_last_frame: bool,
    ) -> Option<Decoded<'b>> {
        if input.is_empty() {
            return None;
        }
        let bytes = &input[..input.len().min(widen(left))];
        let left = left.saturating_sub(narrow(bytes.len()));
        if left == 0 {
            self.end_of_frame(is_last_frame);
        } else {
            self.stage = Stage::Bytes {
                left,
                is_last_frame,
            };
        }
        let event = Event::Body {
            bytes,
            end: left == 0 && is_last_frame,
        };
        Some(Decoded {
            event,
            consumed: bytes.len(),
        })
    }

    fn end_of_frame(&mut self, is_last_frame: bool) {
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
            self.is_file_due = false;
        }
    }
}

/// A frame that is all header.
fn empty(header: FrameHeader, event: Event<'static>) -> Result<Decoded<'static>, WireError> {
    if header.payload_len != 0 {
        return Err(WireError::BadPayloadLength);
    }
    Ok(Decoded {
        event,
        consumed: HEADER_LEN,
    })
}

fn end_of_hijack(header: FrameHeader) -> Result<Decoded<'static>, WireError> {
    if !header.has(FLAG_END) {
        return Err(WireError::BadFlags {
            kind: Kind::Body as u8,
            flags: header.flags,
        });
    }
    let end = true;
    empty(header, Event::Body { bytes: &[], end })
}

fn extend(header: FrameHeader, rest: &[u8]) -> Result<Option<Decoded<'static>>, WireError> {
    if header.payload_len != 4 {
        return Err(WireError::BadPayloadLength);
    }
    Ok(rest.first_chunk::<4>().map(|seconds| Decoded {
        event: Event::Extend {
            seconds: u32::from_le_bytes(*seconds),
        },
        consumed: HEADER_LEN + 4,
    }))
}

fn file(header: FrameHeader, rest: &[u8]) -> Result<Option<Decoded<'_>>, WireError> {
    if !header.has(FLAG_HAS_FD) {
        return Err(WireError::BadFlags {
            kind: Kind::File as u8,
            flags: header.flags,
        });
    }
    if header.payload_len != 16 {
        return Err(WireError::BadPayloadLength);
    }
    let (Some(offset), Some(len)) = (read_u64(rest, 0), read_u64(rest, 8)) else {
        return Ok(None);
    };
    let len = (len != u64::MAX).then_some(len);
    let event = Event::File {
        offset,
        len,
        end: header.has(FLAG_END),
    };
    Ok(Some(Decoded {
        event,
        consumed: HEADER_LEN + 16,
    }))
}

fn abort(header: FrameHeader, rest: &[u8]) -> Result<Option<Decoded<'_>>, WireError> {
    let reason = text(header, rest, REASON_BYTES_MAX)?;
    Ok(reason.map(|reason| Decoded {
        event: Event::Abort { reason },
        consumed: HEADER_LEN + reason.len(),
    }))
}

fn failed(header: FrameHeader, rest: &[u8]) -> Result<Option<Decoded<'_>>, WireError> {
    let is_protocol = header.has(FLAG_PROTOCOL);
    let reason = text(header, rest, REASON_BYTES_MAX)?;
    Ok(reason.map(|reason| Decoded {
        event: Event::Failed {
            reason,
            is_protocol,
        },
        consumed: HEADER_LEN + reason.len(),
    }))
}

/// The whole payload as text, `None` until it is there.
pub(crate) fn text(
    header: FrameHeader,
    rest: &[u8],
    bytes_max: u32,
) -> Result<Option<&str>, WireError> {
    if header.payload_len > bytes_max {
        return Err(WireError::PayloadTooLong(u64::from(header.payload_len)));
    }
    let Some(payload) = rest.get(..widen(header.payload_len)) else {
        return Ok(None);
    };
    std::str::from_utf8(payload)
        .map(Some)
        .map_err(|_| WireError::NotUtf8)
}

/// Waits for more of the payload, or refuses one that can never hold `needed` bytes.
fn short_payload(header: FrameHeader, needed: u32) -> Result<Option<Decoded<'static>>, WireError> {
    if header.payload_len < needed {
        Err(WireError::BadPayloadLength)
    } else {
        Ok(None)
    }
}

fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    bytes
        .get(at..)?
        .first_chunk::<8>()
        .map(|chunk| u64::from_le_bytes(*chunk))
}

/// Lengths on the wire have 32 bits and so does the smallest address space we run in.
fn widen(len: u32) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

/// Used on slices that were cut to a `u32` length before.
fn narrow(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

mod named;
#[cfg(test)]
mod tests;

pub use named::named;
