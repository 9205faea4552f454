//! The languages that the front end speaks with application code: with its own worker scripts, and
//! with application servers that others run.
//!
//! Everything here is pure: bytes in, values out, no sockets and no clock. For workers, `apps`
//! calls [`encode_request`] and [`SlotDecoder`], for reactors what `channel` has; the scripts in `crates/apps/workers` hold the mirror
//! image, `PROTOCOL.md` is the contract, and the tests of all three languages replay its examples,
//! `vectors/`. Upstreams call `fastcgi`, `scgi` (answered in `cgi`), `uwsgi` and `ajp`, whose
//! decoders share the face of `gateway`, and `proxy_protocol`; who dials in to serve says so by `join`.
//!
//! What must stay true: no byte of a worker or back end can panic this crate, and no status or
//! field leaves it that could split a response (RFC 9110 §5.5).

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
pub mod worker;

pub use channel::{ChannelDecoder, ChannelEvent, DecodedChannelEvent};
pub use control::{ControlDecoder, ControlEvent};
pub use environ::asgi::ScopeEncoder;
pub use environ::{COMMON_VARIABLES, Dialect, EnvironEncoder};
pub use error::WireError;
pub use frame::{FrameHeader, FrameKind, HEADER_LEN, MAX_PAYLOAD_BYTES, PROTOCOL_VERSION};
pub use head::{
    AcceptHeadView, HeadFields, ResponseHeadView, parse_accept_head, parse_response_head,
};
pub use request::{
    MAX_INPUT_BYTES, RequestBodySource, encode_cancel, encode_collect_garbage, encode_input,
    encode_input_aborted, encode_request,
};
pub use slot::{DecodedSlotEvent, SlotDecoder, SlotEvent, request_name};
