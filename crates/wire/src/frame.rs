//! The eight-byte frame header and the numbers of the protocol.
//!
//! Both directions and both kinds of sockets share this header. Decoders parse it first and trust
//! nothing else; encoders write it last, when the payload length is known.
//! `workers/python/penstock_worker/wire.py` and `workers/ruby/wire.rb` repeat the numbers, and the
//! vectors fail if they differ.

use std::ops::RangeInclusive;

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
/// FILE, HIJACK, ANSWER_RING: one descriptor travels with this frame.
pub const FLAG_HAS_FD: u8 = 2;
/// FAILED, RESET: the application broke the rules of its interface, as opposed to raising.
pub const FLAG_PROTOCOL_ERROR: u8 = 1;

/// OPEN: a WebSocket instead of a request.
pub const FLAG_WEBSOCKET: u8 = 2;
/// OPEN: the body follows the frame, a piece for each PULL.
pub const FLAG_OPEN_STREAM: u8 = 4;
/// MESSAGE: text instead of bytes.
pub const FLAG_TEXT: u8 = 1;

/// Declares the kinds of frames: each with its number and the flags that it may carry.
macro_rules! frame_kinds {
    ($($kind:ident = $number:literal $(, $flags:expr)?;)+) => {
        /// The kind of a frame.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum FrameKind {
            $($kind = $number),+
        }

        impl FrameKind {
            /// The kind with this number.
            ///
            /// # Errors
            /// [`WireError::UnknownFrameKind`] for every other number: the socket must be closed.
            pub fn from_number(number: u8) -> Result<Self, WireError> {
                match number {
                    $($number => Ok(Self::$kind),)+
                    _ => Err(WireError::UnknownFrameKind(number)),
                }
            }

            fn allowed_flags(self) -> u8 {
                match self {
                    $(Self::$kind => 0 $(| $flags)?,)+
                }
            }
        }
    };
}

frame_kinds! {
    Request = 1, FLAG_BODY_FILE | FLAG_BODY_STREAM;
    Cancel = 2;
    CollectGarbage = 3;
    Input = 4, FLAG_END | FLAG_INPUT_ABORTED;
    FdRequest = 16;
    Head = 17, FLAG_END | FLAG_STREAM;
    Body = 18, FLAG_END;
    File = 19, FLAG_END | FLAG_HAS_FD;
    Abort = 20;
    Failed = 21, FLAG_PROTOCOL_ERROR;
    IoBound = 22;
    ExtendDeadline = 23;
    GarbageCollected = 24;
    Pull = 25;
    Hijack = 26, FLAG_HAS_FD;
    AnswerRing = 27, FLAG_HAS_FD;
    Hello = 32;
    Ready = 33;
    BootFailed = 34;
    ForkFailed = 35;
    Fork = 48;
    Slots = 49, FLAG_END;
    Promote = 50;
    Dismiss = 51;
    Open = 64, FLAG_BODY_FILE | FLAG_WEBSOCKET | FLAG_OPEN_STREAM;
    StreamCancel = 65;
    Window = 66;
    Message = 67, FLAG_TEXT;
    Close = 68;
    StreamInput = 69, FLAG_END;
    StreamResponse = 80, FLAG_END | FLAG_STREAM;
    Data = 81, FLAG_END;
    Accept = 82;
    Reset = 83, FLAG_PROTOCOL_ERROR;
    StreamPull = 84;
    StreamHijack = 85;
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
            return Err(header.bad_flags_error());
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

    /// Returns the error for these flags.
    pub(crate) fn bad_flags_error(self) -> WireError {
        WireError::BadFlags {
            kind: self.kind as u8,
            flags: self.flags,
        }
    }

    /// Whether `flag` is set.
    pub fn has_flag(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Checks the length of the payload against that of its kind.
    pub(crate) fn check_len(self, lens: RangeInclusive<u32>) -> Result<(), WireError> {
        match self.payload_len {
            len if lens.contains(&len) => Ok(()),
            len if len < *lens.start() || lens.start() == lens.end() => {
                Err(WireError::BadPayloadLength)
            }
            len => Err(WireError::PayloadTooLong(u64::from(len - lens.start()))),
        }
    }

    /// Checks its length, and takes the whole payload off the front of `rest`; `None` until it is
    /// there.
    pub(crate) fn split_payload(
        self,
        rest: &[u8],
        lens: RangeInclusive<u32>,
    ) -> Result<Option<&[u8]>, WireError> {
        self.check_len(lens)?;
        Ok(rest.get(..len_to_usize(self.payload_len)))
    }
}

/// An event, and the bytes it took from the front of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodedFrame<E> {
    pub event: E,
    pub consumed: usize,
}

/// The header of a frame without strings.
pub(crate) fn encode_header(kind: FrameKind, flags: u8, payload_len: usize) -> [u8; HEADER_LEN] {
    let header = FrameHeader {
        kind,
        flags,
        string_count: 0,
        payload_len: len_to_u32(payload_len),
    };
    header.encode()
}

pub(crate) fn parse_text(bytes: &[u8]) -> Result<&str, WireError> {
    std::str::from_utf8(bytes).map_err(|_| WireError::NotUtf8)
}

/// The number at the start of a payload whose length was checked.
pub(crate) fn read_u32(payload: &[u8]) -> u32 {
    split_u32(payload).map_or(0, |(number, _)| number)
}

/// As [`read_u32`], of eight bytes at `offset`.
pub(crate) fn read_u64(payload: &[u8], offset: usize) -> u64 {
    let bytes = payload.get(offset..).and_then(<[u8]>::first_chunk::<8>);
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
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
    let bytes = &input[..input.len().min(len_to_usize(left))];
    Some((bytes, left.saturating_sub(len_to_u32(bytes.len()))))
}

/// Converts a length on the wire: 32 bits, as the smallest supported address space has.
pub(crate) fn len_to_usize(len: u32) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

/// Converts the length of a slice that was cut to a `u32` length before.
pub(crate) fn len_to_u32(len: usize) -> u32 {
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
