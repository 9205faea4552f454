//! Compresses responses while they are sent: of applications, of upstreams, and of files that have
//! no compressed variant.
//!
//! `penstock`'s wiring puts a [`CompressHandler`] around a handler whose route has `compress`, below
//! a cache, so that the cache stores what the encoders made. `policy` decides, `response_fields`
//! changes the header, `stream` encodes a body piece by piece with an encoder of `encoders`.
//!
//! # Invariants
//! - A response that has a coding, or asks not to be changed, is passed on as it came.
//! - An event loop encodes a bounded number of bytes at a time; the rest is encoded in a pool.
//! - Encoders together have a bound of memory. A response beyond it is sent without a coding.
//! - Request bodies are never decoded.

mod counters;
mod encoder;
mod encoders;
mod file_stream;
mod handler;
mod policy;
mod response_fields;
mod stream;
#[cfg(test)]
mod testing;

pub use counters::{COMPRESSION_METRICS, CompressionSnapshot};
pub use encoders::Compressor;
pub use handler::{BodySecrecy, CompressHandler};
