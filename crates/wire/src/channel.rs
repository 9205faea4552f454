//! A reactor's channel, the front end's half: frames for many streams at once (PROTOCOL.md,
//! "Reactors").
//!
//! Outputs: the encoders, called by `apps::driver` for each stream. Inputs: [`ChannelDecoder::decode`]
//! with the bytes received and not yet consumed; events name their stream and borrow the receive
//! buffer, body bytes are handed out as they come. Which streams there are, what each may send now and
//! how much, the driver knows and checks: this file knows frames only. Every error is final: close the
//! socket, replace the worker.

mod decode;
mod encode;
pub mod worker;

pub use decode::{ChannelDecoder, ChannelEvent, DecodedChannelEvent};
pub use encode::{
    MESSAGE_HEAD_LEN, OPEN_ID_OFFSET, encode_close, encode_input, encode_message_head, encode_open,
    encode_stream_cancel, encode_window,
};

/// Bytes of DATA or MESSAGE that may be under way on a stream, each way.
pub const WINDOW_BYTES: u32 = 256 << 10;
/// What a message costs of its window besides its bytes.
pub const MESSAGE_OVERHEAD: usize = 64;
/// The largest body of an ANSWER that is the whole response.
pub const MAX_RESPONSE_BODY: u32 = 32 << 20;
/// The largest DATA frame.
pub const MAX_DATA_BYTES: u32 = 64 << 10;

#[cfg(test)]
mod tests;
