//! The protocols between the front end and application code: its own worker scripts, and other
//! application servers.
//!
//! Everything here is pure: bytes in, values out, no sockets and no clock. For workers, `apps`
//! calls [`encode_request`] and [`SlotDecoder`], and `channel` for reactors. The scripts in
//! `crates/apps/workers` implement the other side; `PROTOCOL.md` is the contract, and the tests of
//! all three languages replay its examples, `vectors/`. Upstreams use `fastcgi`, `scgi` (with
//! responses in `cgi`), `uwsgi` and `ajp`, with decoders behind the interface of `gateway`, and
//! `proxy_protocol`. Servers that join a front end use `join`.
//!
//! # Invariants
//!
//! - No bytes from a worker or back end make this crate panic.
//! - No status or field that could split a response leaves it (RFC 9110 §5.5).

pub mod ajp;
pub mod cgi;
pub mod channel;
pub mod control;
pub mod environ;
pub mod error;
pub mod fastcgi;
pub mod frame;
pub mod gateway;
pub mod head;
pub mod join;
pub mod proxy_protocol;
pub mod request;
pub mod scgi;
pub mod slot;
pub mod uwsgi;
pub mod worker_encoder;

pub use channel::{ChannelDecoder, ChannelEvent};
pub use control::{ControlDecoder, ControlEvent};
pub use environ::asgi::ScopeEncoder;
pub use environ::{COMMON_VARIABLES, Dialect, EnvironEncoder};
pub use error::WireError;
pub use frame::{
    DecodedFrame, FrameHeader, FrameKind, HEADER_LEN, MAX_PAYLOAD_BYTES, PROTOCOL_VERSION,
};
pub use head::{
    AcceptHeadView, HeadFields, ResponseHeadView, parse_accept_head, parse_response_head,
};
pub use request::{
    MAX_INPUT_BYTES, RequestBodySource, encode_cancel, encode_collect_garbage, encode_input,
    encode_input_aborted, encode_request,
};
pub use slot::{SlotDecoder, SlotEvent, read_method_and_path};
