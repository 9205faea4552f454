//! HTTP as pure rules: heads, HTTP/1 parsing and encoding, body framing, conditions, ranges, dates.
//!
//! Nothing in this crate opens a socket, reads a clock or knows a configuration: bytes and numbers
//! go in, decisions and bytes come out. `edge` drives it for clients, `proxy` and `apps` for what
//! they forward, `files` for conditions and ranges, `cache` for what may be stored and reused.
//!
//! What must stay true: no input panics; whatever is doubtful about framing is an error, so that
//! two parties never disagree about where a message ends; work is linear in the bytes received.

mod accept;
mod authority;
pub mod caching;
mod conditional;
mod date;
mod fields;
mod grammar;
pub mod h1;
mod head;
mod mask;
mod range;
mod refresh;
mod rehead;
pub mod sse;
mod status;
mod trailers;
mod uri;
pub mod websocket;

pub use accept::{Negotiated, accepts, accepts_coding, negotiate, prefers};
pub use authority::split_authority;
pub use conditional::{Precondition, evaluate};
pub use date::{imf_fixdate, parse_http_date, rfc3339_millis};
pub use fields::{FieldBlock, FieldError};
pub use grammar::{is_known, is_token, parse_length};
pub use h1::{
    BodyDecoder, BodyError, CheckedField, Decoded, HeadLimits, HeadScanner, KnownName, LAST_CHUNK,
    ParseError, Persist, Progress, ResponseBody, ResponseError, ResponseFraming, ResponseHead,
    ResponseLimits, ResponseLine, ResponseScanner, encode_chunk_head, encode_head, parse_head,
};
pub use head::{BodyFraming, Method, RequestHead, Version};
pub use mask::{LogMask, MASK, MASKED_BY_DEFAULT};
pub use range::multipart::{Multipart, Piece};
pub use range::{
    RangeOutcome, Span, content_range, content_range_unsatisfied, parse_content_range, select_range,
};
pub use refresh::refresh_target;
pub use rehead::HeadWriter;
pub use status::Status;
pub use trailers::is_forbidden_trailer;
pub use uri::{Normalised, UriError, encode_path, encode_target, normalise};
