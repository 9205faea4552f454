//! HTTP/1.0 and HTTP/1.1: request heads, body framing, and response heads in both directions.
//!
//! `parse` turns received bytes into a `RequestHead`, `body` finds the end of a request body, and
//! `encode` writes response heads, all for `edge`'s HTTP/1 connections. `response` parses response
//! heads of back ends and for the load generator. Callers own the buffers.

mod body;
mod encode;
mod error;
mod message_fields;
mod parse;
mod request_line;
mod response;

pub use body::{BodyDecoder, BodyError, DecodeProgress, LAST_CHUNK, encode_chunk_head};
pub use encode::{ConnectionPersistence, ResponseFraming, ResponseHeadParts, encode_head};
pub use error::RequestHeadError;
pub use parse::{HeadLimits, HeadScanner, ParseProgress, parse_head};
pub use response::{
    CheckedField, KnownFieldName, ResponseBodyFraming, ResponseHead, ResponseHeadError,
    ResponseHeadLimits, ResponseHeadScanner,
};
