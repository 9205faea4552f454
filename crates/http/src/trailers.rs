//! Which fields may follow a body (RFC 9110 §6.5.1).
//!
//! `h1::body` drops the others from received trailers, `edge` from sent ones.
//!
//! # Invariants
//!
//! - A field about the framing, routing or decoding of a message is never accepted after the
//!   content.

use crate::grammar::starts_with_ignore_case;

/// Whether a field of that name must not be sent after the content.
pub fn is_forbidden_trailer(name: &[u8]) -> bool {
    FORBIDDEN
        .iter()
        .any(|forbidden| name.eq_ignore_ascii_case(forbidden))
        || FORBIDDEN_STARTS
            .iter()
            .any(|start| starts_with_ignore_case(name, start))
}

/// Fields that proxies and front ends set on requests. An upstream program that merges trailers
/// into the head would trust them.
const FORBIDDEN_STARTS: [&[u8]; 2] = [b"x-forwarded-", b"x-accel-"];

/// Fields that frame, route, authenticate or modify a request, or describe its content (RFC 9110
/// §6.5.1). After the content they are too late to be applied, and suspicious.
const FORBIDDEN: &[&[u8]] = &[
    b"content-length",
    b"transfer-encoding",
    b"trailer",
    b"te",
    b"connection",
    b"keep-alive",
    b"proxy-connection",
    b"upgrade",
    b"host",
    b"forwarded",
    b"x-real-ip",
    b"via",
    b"authorization",
    b"proxy-authorization",
    b"proxy-authenticate",
    b"www-authenticate",
    b"cookie",
    b"set-cookie",
    b"content-encoding",
    b"content-type",
    b"content-range",
    b"cache-control",
    b"expect",
    b"max-forwards",
    b"pragma",
    b"range",
    b"if-match",
    b"if-none-match",
    b"if-modified-since",
    b"if-unmodified-since",
    b"if-range",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn framing_is_forbidden_behind_the_content_and_checksums_are_not() {
        for (name, expected) in [
            ("Content-Length", true),
            ("TRANSFER-ENCODING", true),
            ("Set-Cookie", true),
            ("X-Forwarded-For", true),
            ("x-forwarded-prefix", true),
            ("X-Accel-Redirect", true),
            ("X-Forwarded", false),
            ("Content-MD5", false),
            ("Server-Timing", false),
            ("grpc-status", false),
        ] {
            assert_eq!(is_forbidden_trailer(name.as_bytes()), expected, "{name}");
        }
    }
}
