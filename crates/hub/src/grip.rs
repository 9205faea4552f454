//! GRIP: any application holds its clients' connections by what it answers with.
//!
//! [`GripHandler`] stands right in front of an application or upstream: an answer with `GripHandler-Hold` becomes a held
//! stream or a long poll of the [`crate::Hub`], and its worker is free at once. [`publications`] reads what
//! applications publish. `instruct` and `publish` are pure: fields and JSON in, words of the hub out.
//!
//! What must stay true: an answer that says nothing to the hub passes untouched; no `GripHandler-*` field of an
//! answer reaches a client and none of a client reaches an application; an instruction that is not understood
//! holds nobody and is told with its place; what a back end sends is bounded before it is kept.

mod field_lists;
pub(crate) mod fuzzing;
mod handler;
mod instructions;
mod json;
mod publish_format;
mod websockets;

pub use handler::{GripHandler, GripOptions, WebSocketSupport};
pub use publish_format::{PublishError, parse_publications};
