//! GRIP: applications and upstreams hold their clients' connections by the fields of their
//! responses.
//!
//! [`GripHandler`] wraps the handler of an application or upstream. A response with `Grip-Hold`
//! becomes a held stream or a long poll of the [`Hub`](penstock_hub::Hub), and its worker is free
//! at once. [`parse_publications`] reads what applications publish, and [`PublishKeys`] are their
//! keys.
//!
//! # Invariants
//! - A response without instructions passes unchanged.
//! - No `Grip-*` field of a response reaches a client, and none of a client reaches an application.
//! - An instruction that is not understood holds nothing, and the error names its place.
//! - What a back end sends is bounded before it is kept.

mod field_lists;
pub mod fuzzing;
mod handler;
mod instructions;
mod json;
mod publish_format;
mod publish_keys;
mod websockets;

pub use handler::{GripHandler, GripOptions, GripStreams, WebSocketSupport};
pub use publish_format::{PublishError, parse_publications};
pub use publish_keys::{PublishKeys, REQUEST_ISSUER};
