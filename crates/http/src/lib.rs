//! HTTP as pure rules: heads, HTTP/1 parsing and encoding, body framing, conditions, ranges, dates.
//!
//! Nothing in this crate opens a socket, reads a clock or reads a configuration: bytes and numbers
//! go in, decisions and bytes come out. `edge` uses it for clients, `proxy` and `apps` for
//! forwarded messages, `files` for conditions and ranges, `cache` for storage and reuse.
//!
//! # Invariants
//!
//! - No input panics.
//! - Ambiguous framing is an error, so that two parties never disagree about where a message ends.
//! - Work is linear in the bytes received.

mod accept;
mod authority;
pub mod caching;
mod conditional;
mod date;
mod fields;
mod grammar;
pub mod h1;
mod head;
mod head_writer;
mod log_mask;
mod range;
mod refresh;
pub mod sse;
mod status;
mod trailers;
mod uri;
pub mod websocket;

pub use accept::{
    CodingChoice, accepts_media_type, is_media_type, negotiate_coding, prefers_media_type,
};
pub use authority::{split_authority, strip_port};
pub use conditional::{PreconditionResult, evaluate_preconditions};
pub use date::{imf_fixdate, parse_http_date, rfc3339_millis};
pub use fields::{FieldBlock, FieldError};
pub use grammar::is_field_value;
pub use grammar::{
    is_token, list_elements, parse_content_length, starts_with_ignore_case, token_eq_ignore_case,
    trim_blanks,
};
pub use h1::{
    BodyDecoder, BodyError, CheckedField, ConnectionPersistence, DecodeProgress, HeadLimits,
    HeadScanner, KnownFieldName, LAST_CHUNK, ParseProgress, RequestHeadError, ResponseBodyFraming,
    ResponseFraming, ResponseHead, ResponseHeadError, ResponseHeadLimits, ResponseHeadParts,
    ResponseHeadScanner, encode_chunk_head, encode_head, parse_head,
};
pub use head::{BodyFraming, Method, RequestHead, Version};
pub use head_writer::HeadWriter;
pub use log_mask::{DEFAULT_MASKED_NAMES, LogMask, MASKED_TEXT};
pub use range::multipart::{MultipartPiece, MultipartRanges};
pub use range::{
    ByteRange, RangeOutcome, encode_content_range, encode_unsatisfied_range, parse_content_range,
    select_range,
};
pub use refresh::refresh_target;
pub use status::Status;
pub use trailers::is_forbidden_trailer;
pub use uri::{
    NormalisedPath, UriError, encode_path, encode_path_segment, encode_target, normalise_path,
};
