//! HTTP/1.0 and HTTP/1.1 on the wire: request heads in, body framing both ways, response heads out,
//! and response heads in, for a client.
//!
//! `parse` turns received bytes into a `RequestHead`, `body` finds the end of a request body,
//! `encode` writes response heads: `edge`'s HTTP/1 connection is the caller of these three.
//! `response` reads response heads for back ends and the load generator. Callers own the buffers; everything here
//! only looks at slices.

mod body;
mod encode;
mod error;
mod message_fields;
mod parse;
mod request_line;
mod response;

pub use body::{BodyDecoder, BodyError, DecodeProgress, LAST_CHUNK, encode_chunk_head};
pub use encode::{Persistence, ResponseFraming, ResponseHeadParts, encode_head};
pub use error::RequestHeadError;
pub use parse::{HeadLimits, HeadScanner, ParseProgress, parse_head};
pub use response::{
    CheckedField, KnownName, ResponseBodyFraming, ResponseHead, ResponseHeadError, ResponseLimits,
    ResponseScanner,
};
