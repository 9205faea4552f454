//! A reactor's channel, the front end's half: frames for many streams at once (PROTOCOL.md,
//! "Reactors").
//!
//! Outputs: the encoders, called by `apps::channel` for each stream. Inputs: [`ChannelDecoder::decode`]
//! with the bytes received and not yet consumed; events name their stream and borrow the receive
//! buffer, body bytes are handed out as they come. Which streams there are, what each may send now and
//! how much, the driver knows and checks: this file knows frames only. Every error is final: close the
//! socket, replace the worker.

mod decode;
mod encode;
pub mod worker;

pub use decode::{ChannelDecoded, ChannelDecoder, ChannelEvent};
pub use encode::{MESSAGE_HEAD_LEN, OPEN_ID_AT, close, gone, input, message_head, open, window};

/// Bytes of DATA or MESSAGE that may be under way on a stream, each way.
pub const WINDOW_BYTES: u32 = 256 << 10;
/// What a message costs of its window besides its bytes.
pub const MESSAGE_COST: usize = 64;
/// The largest body of an ANSWER that is the whole response.
pub const ANSWER_BODY_MAX: u32 = 32 << 20;
/// The largest DATA frame.
pub const DATA_BYTES_MAX: u32 = 64 << 10;

#[cfg(test)]
mod tests;
