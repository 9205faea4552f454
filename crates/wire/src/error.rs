//! The errors of bytes on a worker socket, one fact per variant.
//!
//! Every error is final for its socket: the caller closes it and replaces the worker, and never
//! searches for the next frame. Used by all decoders and by [`crate::encode_request`].

/// Why bytes to or from a worker were refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("unknown frame type {0}")]
    UnknownFrameKind(u8),
    #[error("a frame of type {0} is not allowed here")]
    UnexpectedFrameKind(u8),
    #[error("unknown or contradictory flags {flags:#04x} in a frame of type {kind}")]
    BadFlags { kind: u8, flags: u8 },
    #[error("a payload of {0} bytes is over the bound")]
    PayloadTooLong(u64),
    #[error("the payload is shorter or longer than its type demands")]
    BadPayloadLength,
    #[error("the response head is over the bound")]
    HeadTooLong,
    #[error("the response head does not hold the announced number of strings")]
    BadStringCount,
    #[error("the response status is not a final status code")]
    BadStatus,
    #[error("a subprotocol is not a token")]
    BadSubprotocol,
    #[error("a response field name is not a token")]
    BadFieldName,
    #[error("a response field value holds a control character")]
    BadFieldValue,
    #[error("a response without a request")]
    ResponseWithoutRequest,
    #[error("worker speaks protocol version {0}")]
    UnsupportedVersion(u32),
    #[error("text is not UTF-8")]
    NotUtf8,
    #[error("the environment has a text with a zero byte")]
    NulInText,
}
