//! The front end's half of a reactor's channel: frames of many streams at once (PROTOCOL.md,
//! "Reactors").
//!
//! `apps::driver` calls the encoders for each stream, and [`ChannelDecoder::decode`] with the bytes
//! received and not yet consumed. Events name their stream and borrow the receive buffer; body
//! bytes are returned as they arrive. The driver knows which streams are open and what each may
//! send.
//!
//! # Invariants
//! - Every error is final: the socket is closed and the worker replaced.

mod decode;
mod encode;
pub mod reactor_encoder;

pub use decode::{ChannelDecoder, ChannelEvent};
pub use encode::{
    MESSAGE_HEAD_LEN, OPEN_STREAM_ID_OFFSET, encode_close, encode_input, encode_message_head,
    encode_open, encode_stream_cancel, encode_window,
};

/// Maximum bytes of DATA or MESSAGE in flight on a stream, in each direction.
pub const WINDOW_BYTES: u32 = 256 << 10;
/// The cost of a message in its window besides its bytes.
pub const MESSAGE_OVERHEAD: usize = 64;
/// The largest body of a STREAM_RESPONSE that is the whole response.
pub const MAX_WHOLE_BODY_BYTES: u32 = 32 << 20;
/// Maximum size of a DATA frame.
pub const MAX_DATA_BYTES: u32 = 64 << 10;

#[cfg(test)]
mod tests;
