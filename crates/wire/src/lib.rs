//! The language between the front end and the worker scripts: frames, the CGI environment in the
//! interpreter's own serialisation, and the checks that make a worker's answer fit to be sent on.
//!
//! Everything here is pure: bytes in, values out, no sockets and no clock. `apps` drives the
//! sockets and calls [`encode_request`] and [`Decoder`]; the Python and Ruby scripts in
//! `crates/apps/workers` hold the mirror image. `PROTOCOL.md` is the contract and `vectors/` its
//! examples, replayed by the tests of all three languages.
//!
//! What must stay true: no byte of a worker can panic this crate, and no status or field leaves it
//! that could split a response (RFC 9110 §5.5).

pub mod control;
pub mod environ;
pub mod error;
pub mod frame;
pub mod head;
pub mod request;
pub mod server;
pub mod worker;

pub use control::{ControlDecoder, ControlEvent};
pub use environ::{Dialect, EnvironEncoder, USUAL};
pub use error::WireError;
pub use frame::{FrameHeader, HEADER_LEN, Kind, PAYLOAD_MAX, VERSION};
pub use head::{Fields, HeadParts, parse_head};
pub use request::{RequestBody, encode_cancel, encode_request};
pub use server::{Decoded, Decoder, Event};
