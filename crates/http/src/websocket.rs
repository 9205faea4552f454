//! WebSocket (RFC 6455) as pure rules: the server's side of the handshake and the frames.
//!
//! `apps` uses it for applications that accept WebSockets. [`check_handshake`] classifies a
//! request, [`MessageDecoder`] turns a client's bytes into messages, and the encoders turn messages
//! into frames. The only extension is `permessage-deflate` ([`negotiate_deflate`]); without it a
//! reserved bit is always an error.
//!
//! # Invariants
//!
//! - Invalid input ends the connection with the RFC's close code, before more than the limit is
//!   buffered.
//! - Text in decoded messages is UTF-8.

mod decode;
mod deflate;
mod encode;
mod handshake;

pub use decode::{MessageDecoder, WebSocketError, WebSocketEvent};
pub use deflate::{DeflateParams, compress_message, negotiate_deflate};
pub use encode::{
    FrameHead, MAX_FRAME_HEAD_BYTES, compressed_frame_head, encode_close_frame,
    encode_control_frame, message_frame_head, truncate_close_reason,
};
pub use handshake::{HandshakeCheck, check_handshake, offered_subprotocols};

/// The kind of a frame (RFC 6455 §5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    Continuation = 0,
    Text = 1,
    Binary = 2,
    Close = 8,
    Ping = 9,
    Pong = 10,
}

impl Opcode {
    fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Continuation,
            1 => Self::Text,
            2 => Self::Binary,
            8 => Self::Close,
            9 => Self::Ping,
            10 => Self::Pong,
            _ => return None,
        })
    }

    fn is_control(self) -> bool {
        self as u8 >= 8
    }
}

/// Close codes (RFC 6455 §7.4.1 and its registry).
pub mod close_code {
    /// The connection is done.
    pub const NORMAL_CLOSURE: u16 = 1000;
    /// The server stops, or the page was left.
    pub const GOING_AWAY: u16 = 1001;
    /// A protocol error.
    pub const PROTOCOL_ERROR: u16 = 1002;
    /// Never sent: the close had no code.
    pub const NO_STATUS: u16 = 1005;
    /// Never sent: the connection broke.
    pub const ABNORMAL_CLOSURE: u16 = 1006;
    /// Text that is not UTF-8.
    pub const INVALID_PAYLOAD: u16 = 1007;
    /// Content that is not accepted here.
    pub const POLICY_VIOLATION: u16 = 1008;
    /// A message over the limit.
    pub const MESSAGE_TOO_BIG: u16 = 1009;
    /// An unexpected error in the server.
    pub const INTERNAL_ERROR: u16 = 1011;
    /// The service restarts: reconnect.
    pub const SERVICE_RESTART: u16 = 1012;
    /// The server is overloaded: reconnect later.
    pub const TRY_AGAIN_LATER: u16 = 1013;

    /// Whether a peer may send the code: registered for the wire, or free for libraries and
    /// applications (RFC 6455 §7.4.2).
    #[must_use]
    pub fn is_sendable(code: u16) -> bool {
        matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999)
    }
}

#[cfg(test)]
mod tests;
