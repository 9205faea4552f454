//! The eight-byte frame header and the numbers of the protocol.
//!
//! Both directions and both kinds of sockets share this header. Decoders parse it first and trust
//! nothing else; encoders write it last, when the payload length is known.
//! `workers/python/penstock_worker/wire.py` and `workers/ruby/wire.rb` repeat the numbers, and the
//! vectors fail if they differ.

use crate::WireError;

/// Bytes before every payload.
pub const HEADER_LEN: usize = 8;
/// The largest payload that either side accepts.
pub const MAX_PAYLOAD_BYTES: u32 = 64 << 20;
/// The protocol version that HELLO must carry.
pub const PROTOCOL_VERSION: u32 = 2;

/// REQUEST: the body is a descriptor that the worker requests.
pub const FLAG_BODY_FILE: u8 = 1;
/// REQUEST: the body follows the frame, a piece for each PULL.
pub const FLAG_BODY_STREAM: u8 = 2;
/// HEAD, BODY, FILE: nothing more follows for this response. INPUT: nor for this request.
pub const FLAG_END: u8 = 1;
/// INPUT on a slot: the rest of the body never comes.
pub const FLAG_INPUT_ABORTED: u8 = 2;
/// HEAD: BODY, FILE or ABORT frames follow.
pub const FLAG_STREAM: u8 = 2;
/// FILE, HIJACK: one descriptor travels with this frame.
pub const FLAG_HAS_FD: u8 = 2;
/// FAILED, RESET: the application broke the rules of its interface, as opposed to raising.
pub const FLAG_PROTOCOL_ERROR: u8 = 1;

/// OPEN: a WebSocket instead of a request.
pub const FLAG_WEBSOCKET: u8 = 2;
/// OPEN: the body follows the frame, a piece for each PULL.
pub const FLAG_OPEN_STREAM: u8 = 4;
/// MESSAGE: text instead of bytes.
pub const FLAG_TEXT: u8 = 1;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FrameKind {
    Request = 1,
    Cancel = 2,
    CollectGarbage = 3,
    Input = 4,
    FdRequest = 16,
    Head = 17,
    Body = 18,
    File = 19,
    Abort = 20,
    Failed = 21,
    IoBound = 22,
    ExtendDeadline = 23,
    GarbageCollected = 24,
    Pull = 25,
    Hijack = 26,
    Hello = 32,
    Ready = 33,
    BootFailed = 34,
    ForkFailed = 35,
    Fork = 48,
    Slots = 49,
    Promote = 50,
    Dismiss = 51,
    Open = 64,
    StreamCancel = 65,
    Window = 66,
    Message = 67,
    Close = 68,
    StreamInput = 69,
    StreamResponse = 80,
    Data = 81,
    Accept = 82,
    Reset = 83,
    StreamPull = 84,
    StreamHijack = 85,
}

impl FrameKind {
    /// The kind with this number.
    ///
    /// # Errors
    /// [`WireError::UnknownFrameKind`] for every other number: the socket must be closed.
    pub fn from_number(number: u8) -> Result<Self, WireError> {
        Ok(match number {
            1 => Self::Request,
            2 => Self::Cancel,
            3 => Self::CollectGarbage,
            4 => Self::Input,
            16 => Self::FdRequest,
            17 => Self::Head,
            18 => Self::Body,
            19 => Self::File,
            20 => Self::Abort,
            21 => Self::Failed,
            22 => Self::IoBound,
            23 => Self::ExtendDeadline,
            24 => Self::GarbageCollected,
            25 => Self::Pull,
            26 => Self::Hijack,
            32 => Self::Hello,
            33 => Self::Ready,
            34 => Self::BootFailed,
            35 => Self::ForkFailed,
            48 => Self::Fork,
            49 => Self::Slots,
            50 => Self::Promote,
            51 => Self::Dismiss,
            64 => Self::Open,
            65 => Self::StreamCancel,
            66 => Self::Window,
            67 => Self::Message,
            68 => Self::Close,
            69 => Self::StreamInput,
            80 => Self::StreamResponse,
            81 => Self::Data,
            82 => Self::Accept,
            83 => Self::Reset,
            84 => Self::StreamPull,
            85 => Self::StreamHijack,
            _ => return Err(WireError::UnknownFrameKind(number)),
        })
    }

    /// The flags that a frame of this kind may carry.
    fn allowed_flags(self) -> u8 {
        match self {
            Self::Request => FLAG_BODY_FILE | FLAG_BODY_STREAM,
            Self::Input => FLAG_END | FLAG_INPUT_ABORTED,
            Self::Head => FLAG_END | FLAG_STREAM,
            Self::Body => FLAG_END,
            Self::File => FLAG_END | FLAG_HAS_FD,
            Self::Hijack => FLAG_HAS_FD,
            Self::Failed => FLAG_PROTOCOL_ERROR,
            Self::Slots => FLAG_END,
            Self::Open => FLAG_BODY_FILE | FLAG_WEBSOCKET | FLAG_OPEN_STREAM,
            Self::StreamInput => FLAG_END,
            Self::Message => FLAG_TEXT,
            Self::StreamResponse => FLAG_END | FLAG_STREAM,
            Self::Data => FLAG_END,
            Self::Reset => FLAG_PROTOCOL_ERROR,
            _ => 0,
        }
    }
}

/// The parsed form of the eight bytes: `type u8, flags u8, count u16 LE, length u32 LE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    pub kind: FrameKind,
    pub flags: u8,
    /// Number of strings in a HEAD, STREAM_RESPONSE or ACCEPT, 0 in every other frame.
    pub string_count: u16,
    /// Payload bytes that follow.
    pub payload_len: u32,
}

impl FrameHeader {
    /// Parses the start of `input`; `None` for fewer than eight bytes.
    ///
    /// # Errors
    /// An unknown type, unknown flags, or a payload over [`MAX_PAYLOAD_BYTES`].
    pub fn parse(input: &[u8]) -> Result<Option<Self>, WireError> {
        let Some([kind, flags, c0, c1, l0, l1, l2, l3]) = input.first_chunk::<HEADER_LEN>() else {
            return Ok(None);
        };
        let header = Self {
            kind: FrameKind::from_number(*kind)?,
            flags: *flags,
            string_count: u16::from_le_bytes([*c0, *c1]),
            payload_len: u32::from_le_bytes([*l0, *l1, *l2, *l3]),
        };
        if header.flags & !header.kind.allowed_flags() != 0 {
            return Err(header.bad_flags());
        }
        if header.payload_len > MAX_PAYLOAD_BYTES {
            return Err(WireError::PayloadTooLong(u64::from(header.payload_len)));
        }
        if header.string_count != 0
            && !matches!(
                header.kind,
                FrameKind::Head | FrameKind::StreamResponse | FrameKind::Accept
            )
        {
            return Err(WireError::BadStringCount);
        }
        Ok(Some(header))
    }

    /// Encodes the eight bytes.
    pub fn encode(self) -> [u8; HEADER_LEN] {
        let [c0, c1] = self.string_count.to_le_bytes();
        let [l0, l1, l2, l3] = self.payload_len.to_le_bytes();
        [self.kind as u8, self.flags, c0, c1, l0, l1, l2, l3]
    }

    /// The refusal of these flags.
    pub(crate) fn bad_flags(self) -> WireError {
        WireError::BadFlags {
            kind: self.kind as u8,
            flags: self.flags,
        }
    }

    /// Whether `flag` is set.
    pub fn has_flag(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// The header of a frame without strings.
pub(crate) fn encode_header(kind: FrameKind, flags: u8, payload_len: usize) -> [u8; HEADER_LEN] {
    let header = FrameHeader {
        kind,
        flags,
        string_count: 0,
        payload_len: narrow(payload_len),
    };
    header.encode()
}

/// Splits `len` bytes of text off `rest`; `None` until they are there.
pub(crate) fn split_text(len: u32, rest: &[u8], max_len: u32) -> Result<Option<&str>, WireError> {
    if len > max_len {
        return Err(WireError::PayloadTooLong(u64::from(len)));
    }
    let text = rest.get(..widen(len)).map(std::str::from_utf8);
    text.transpose().map_err(|_| WireError::NotUtf8)
}

/// Splits a number off `bytes`; `None` until it is there.
pub(crate) fn split_u32(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (number, rest) = bytes.split_first_chunk::<4>()?;
    Some((u32::from_le_bytes(*number), rest))
}

/// Takes what there is of `left` bytes off `input`, and returns how many are left then. `None`
/// while there is nothing: only a frame without bytes is worth an event by itself.
pub(crate) fn take_available(input: &[u8], left: u32) -> Option<(&[u8], u32)> {
    if left > 0 && input.is_empty() {
        return None;
    }
    let bytes = &input[..input.len().min(widen(left))];
    Some((bytes, left.saturating_sub(narrow(bytes.len()))))
}

/// A length on the wire has 32 bits, and so has the smallest address space that is supported.
pub(crate) fn widen(len: u32) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

/// For slices that were cut to a `u32` length before.
pub(crate) fn narrow(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_a_round_trip() {
        let header = FrameHeader {
            kind: FrameKind::Head,
            flags: FLAG_END,
            string_count: 515,
            payload_len: 0x01_02_03,
        };
        assert_eq!(FrameHeader::parse(&header.encode()), Ok(Some(header)));
    }

    #[test]
    fn waits_for_eight_bytes() {
        assert_eq!(FrameHeader::parse(&[17, 1, 0, 0, 0, 0, 0]), Ok(None));
    }

    #[test]
    fn refuses_what_it_does_not_know() {
        let rows: [(&str, [u8; 8], WireError); 6] = [
            ("type 0", [0; 8], WireError::UnknownFrameKind(0)),
            (
                "type 255",
                [255, 0, 0, 0, 0, 0, 0, 0],
                WireError::UnknownFrameKind(255),
            ),
            (
                "unknown flag",
                [18, 4, 0, 0, 0, 0, 0, 0],
                WireError::BadFlags { kind: 18, flags: 4 },
            ),
            (
                "flag of another kind",
                [16, 1, 0, 0, 0, 0, 0, 0],
                WireError::BadFlags { kind: 16, flags: 1 },
            ),
            (
                "too long",
                [18, 0, 0, 0, 1, 0, 0, 4],
                WireError::PayloadTooLong(u64::from(MAX_PAYLOAD_BYTES) + 1),
            ),
            (
                "count outside of a head",
                [18, 0, 1, 0, 0, 0, 0, 0],
                WireError::BadStringCount,
            ),
        ];
        for (name, bytes, error) in rows {
            assert_eq!(FrameHeader::parse(&bytes), Err(error), "{name}");
        }
    }
}
