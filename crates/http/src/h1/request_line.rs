//! Parses the request line: method, target in one of four forms, version (RFC 9112 §3).
//!
//! The scanner calls it with a partial line, to refuse invalid input early, and with the complete
//! line. Positions count from the start of the line.

use super::{error::RequestHeadError, parse::HeadLimits};
use crate::{
    authority::Authority,
    grammar::{is_token_byte, starts_with_ignore_case},
    head::{HeadSpan, Method, Version},
    uri::percent_encode_where,
};

#[derive(Clone, Copy, Debug)]
pub(super) struct RequestLine {
    /// Length of the line without its line end.
    pub(super) len: usize,
    pub(super) method: Method,
    pub(super) version: Version,
    pub(super) method_token: HeadSpan,
    pub(super) target: HeadSpan,
    pub(super) form: TargetForm,
    /// Whether the target has bytes outside the URI grammar that clients send all the same.
    pub(super) has_raw_bytes: bool,
}

/// The forms of a request target (RFC 9112 §3.2).
#[derive(Clone, Copy, Debug)]
pub(super) enum TargetForm {
    /// `/path?query`, and `*` for OPTIONS.
    Origin,
    /// `http://authority/path?query`. `rest` follows the authority.
    Absolute { authority: HeadSpan, rest: HeadSpan },
    /// `host:port`, for CONNECT.
    Authority,
}

/// Checks a partial request line.
///
/// `method_len` is 0 until the method is complete. The caller keeps it between calls, so that a
/// line that trickles in is not searched from its start each time.
pub(super) fn check_partial_request_line(
    seen: &[u8],
    method_len: &mut usize,
    limits: &HeadLimits,
) -> Result<(), RequestHeadError> {
    if *method_len == 0 {
        detect_other_protocol(seen)?;
        let window = &seen[..seen.len().min(MAX_METHOD_BYTES + 1)];
        let end = window.iter().position(|&byte| !is_token_byte(byte));
        match end {
            None if seen.len() > MAX_METHOD_BYTES => return Err(RequestHeadError::MethodTooLong),
            None => return Ok(()),
            Some(end) if end > 0 && seen[end] == b' ' => *method_len = end,
            Some(_) => return Err(RequestHeadError::BadMethod),
        }
    }
    let rest_max = limits.max_target_bytes.saturating_add(" HTTP/1.1\r".len());
    if seen.len().saturating_sub(*method_len + 1) > rest_max {
        return Err(RequestHeadError::TargetTooLong);
    }
    Ok(())
}

// Other protocols that clients speak on plain HTTP ports, identified for the log.
fn detect_other_protocol(seen: &[u8]) -> Result<(), RequestHeadError> {
    if seen.first() == Some(&0x16) {
        return Err(RequestHeadError::TlsHello);
    }
    if seen.starts_with(b"SSH-") {
        return Err(RequestHeadError::SshBanner);
    }
    if seen.starts_with(b"PROXY ") {
        return Err(RequestHeadError::ProxyPreamble);
    }
    Ok(())
}

/// Parses a complete request line without its line end, after `check_partial_request_line` accepted
/// it.
pub(super) fn parse(
    line: &[u8],
    method_len: usize,
    limits: &HeadLimits,
) -> Result<RequestLine, RequestHeadError> {
    let (method, rest) = match (line.get(..method_len), line.get(method_len + 1..)) {
        (Some(method), Some(rest)) if method_len > 0 => (method, rest),
        _ => return Err(RequestHeadError::BadMethod),
    };
    let space = memchr::memchr(b' ', rest).ok_or(RequestHeadError::BadRequestLine)?;
    let (target, version) = (&rest[..space], &rest[space + 1..]);
    if target.len() > limits.max_target_bytes {
        return Err(RequestHeadError::TargetTooLong);
    }
    if line == b"PRI * HTTP/2.0" {
        return Err(RequestHeadError::Http2Preface);
    }
    let version = parse_version(version)?;
    let method = Method::from_token(method);
    let target_span = HeadSpan::new(method_len + 1, target.len());
    let (form, has_raw_bytes) = parse_target(target, target_span, method)?;
    let method_token = HeadSpan::new(0, method_len);
    Ok(RequestLine {
        len: line.len(),
        method,
        version,
        method_token,
        target: target_span,
        form,
        has_raw_bytes,
    })
}

fn parse_version(version: &[u8]) -> Result<Version, RequestHeadError> {
    match version {
        b"HTTP/1.1" => Ok(Version::Http11),
        b"HTTP/1.0" => Ok(Version::Http10),
        // RFC 9110 §2.5: a higher minor version is read as the highest supported one.
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'2'..=b'9'] => Ok(Version::Http11),
        [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => {
            Err(RequestHeadError::VersionNotSupported)
        }
        _ => Err(RequestHeadError::BadVersion),
    }
}

/// The form, and whether the target has bytes to encode.
fn parse_target(
    target: &[u8],
    span: HeadSpan,
    method: Method,
) -> Result<(TargetForm, bool), RequestHeadError> {
    let kinds = target
        .iter()
        .fold(0, |kinds, &byte| kinds | TARGET_BYTES[byte as usize]);
    let has_raw_bytes = kinds & NEEDS_ENCODING != 0;
    if target.is_empty() || kinds & INVALID != 0 {
        return Err(RequestHeadError::BadTarget);
    }
    // Text in another encoding is ambiguous; overlong forms are invalid.
    if has_raw_bytes && std::str::from_utf8(target).is_err() {
        return Err(RequestHeadError::BadTarget);
    }
    Ok((parse_form(target, span, method)?, has_raw_bytes))
}

fn parse_form(
    target: &[u8],
    span: HeadSpan,
    method: Method,
) -> Result<TargetForm, RequestHeadError> {
    if method == Method::Connect {
        // RFC 9112 §3.2.3: only CONNECT names host and port.
        let authority = Authority::parse(target).filter(|authority| authority.port.is_some());
        return authority
            .map(|_| TargetForm::Authority)
            .ok_or(RequestHeadError::BadTarget);
    }
    match target {
        [b'/', ..] => Ok(TargetForm::Origin),
        b"*" if method == Method::Options => Ok(TargetForm::Origin),
        _ => parse_absolute(target, span),
    }
}

fn parse_absolute(target: &[u8], span: HeadSpan) -> Result<TargetForm, RequestHeadError> {
    let mut schemes = SCHEMES.iter();
    let scheme = schemes.find(|scheme| starts_with_ignore_case(target, scheme));
    let scheme_len = scheme.ok_or(RequestHeadError::BadTarget)?.len();
    let after = &target[scheme_len..];
    let authority_len = memchr::memchr2(b'/', b'?', after).unwrap_or(after.len());
    let authority = &after[..authority_len];
    Authority::parse(authority).ok_or(RequestHeadError::BadHost)?;
    let start = span.range().start + scheme_len;
    Ok(TargetForm::Absolute {
        authority: HeadSpan::new(start, Authority::without_empty_port(authority).len()),
        rest: HeadSpan::new(start + authority_len, after.len() - authority_len),
    })
}

const SCHEMES: [&[u8]; 2] = [b"http://", b"https://"];

/// The longest method that is read; a longer one gets 501 (RFC 9112 §3). The longest registered
/// method, UPDATEREDIRECTREF, has 17 bytes.
const MAX_METHOD_BYTES: usize = 64;

/// Bytes outside every target.
const INVALID: u8 = 1;
/// Bytes outside the URI grammar that clients send. They are read as their percent-encoding.
const NEEDS_ENCODING: u8 = 2;

// Printable ASCII without the fragment mark. Quotes, angle brackets and bytes beyond ASCII end no
// target, but they do end attributes, log fields and headers that contain targets. Braces, bar,
// caret and backslash are sent by browsers and forwarded unchanged.
const TARGET_BYTES: [u8; 256] = {
    let mut table = [INVALID; 256];
    let mut byte = 0x21;
    while byte < 256 {
        table[byte] = match byte {
            0x23 | 0x7f => INVALID,
            0x22 | 0x3c | 0x3e | 0x80.. => NEEDS_ENCODING,
            _ => 0,
        };
        byte += 1;
    }
    table
};

/// `text` with every byte outside the URI grammar percent-encoded.
pub(super) fn encode_raw_bytes(text: &[u8]) -> String {
    percent_encode_where(text, |byte| {
        TARGET_BYTES[byte as usize] & NEEDS_ENCODING != 0
    })
}
