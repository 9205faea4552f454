//! The fields of a request about the message itself: host, framing, persistence, expectation,
//! upgrade.
//!
//! The parser passes every field once, in order, and reads the conclusions at the end. Request
//! smuggling exploits these rules, so each has one place, and any ambiguity is an error (RFC 9112
//! §6.1–§6.3, §9.3; RFC 9110 §7.2, §7.6.1, §10.1.1).

use super::error::RequestHeadError;
use crate::{
    authority::Authority,
    grammar::{
        is_token, list_elements, parse_content_length, starts_with_ignore_case,
        token_eq_ignore_case,
    },
    head::{BodyFraming, HeadSpan, Version},
};

/// Facts from the fields seen so far.
#[derive(Debug, Default)]
pub(super) struct MessageFields<'a> {
    host: Option<HeadSpan>,
    length: Option<u64>,
    coding: Option<&'a [u8]>,
    expectation: Option<&'a [u8]>,
    has_close_option: bool,
    has_keep_alive_option: bool,
    has_upgrade_option: bool,
    has_upgrade_field: bool,
    /// Whether `Connection` has an option other than `close`, `upgrade` and `keep-alive`.
    pub(super) has_other_options: bool,
    /// Whether the body's type is WebSocket events, or such events are accepted.
    pub(super) has_websocket_events: bool,
}

impl<'a> MessageFields<'a> {
    /// Records one field. `span` is the position of the value.
    pub(super) fn record(
        &mut self,
        name: &[u8],
        value: &'a [u8],
        span: HeadSpan,
    ) -> Result<(), RequestHeadError> {
        // The length nearly always decides, before any byte is compared.
        match name.len() {
            4 if token_eq_ignore_case(name, b"host") => self.record_host(value, span),
            6 if token_eq_ignore_case(name, b"expect") => self.record_expectation(value),
            6 if token_eq_ignore_case(name, b"accept") => {
                self.has_websocket_events |= contains_websocket_events(value);
                Ok(())
            }
            7 if token_eq_ignore_case(name, b"upgrade") => {
                self.has_upgrade_field = true;
                Ok(())
            }
            10 if token_eq_ignore_case(name, b"connection") => self.record_connection(value),
            12 if token_eq_ignore_case(name, b"content-type") => {
                self.has_websocket_events |= contains_websocket_events(value);
                Ok(())
            }
            14 if token_eq_ignore_case(name, b"content-length") => self.record_length(value),
            17 if token_eq_ignore_case(name, b"transfer-encoding") => self.record_coding(value),
            _ => Ok(()),
        }
    }

    /// The span of the checked `Host`, without the colon of an empty port. An HTTP/1.1 request
    /// without one is refused (RFC 9112 §3.2).
    pub(super) fn host(&self, version: Version) -> Result<Option<HeadSpan>, RequestHeadError> {
        match self.host {
            None if version == Version::Http11 => Err(RequestHeadError::HostMissing),
            host => Ok(host),
        }
    }

    /// The body framing (RFC 9112 §6.3). Refuses every combination that readers interpret
    /// differently.
    pub(super) fn framing(&self, version: Version) -> Result<BodyFraming, RequestHeadError> {
        match (self.coding, self.length) {
            (Some(_), Some(_)) => Err(RequestHeadError::LengthAndCoding),
            (None, Some(length)) => Ok(BodyFraming::Length(length)),
            (None, None) => Ok(BodyFraming::None),
            (Some(_), None) if version == Version::Http10 => Err(RequestHeadError::CodingInHttp10),
            (Some(coding), None) if coding.eq_ignore_ascii_case(b"chunked") => {
                Ok(BodyFraming::Chunked)
            }
            (Some(coding), None) if is_token(coding) => Err(RequestHeadError::UnknownCoding),
            (Some(_), None) => Err(RequestHeadError::BadTransferEncoding),
        }
    }

    /// Whether the connection may carry another request (RFC 9112 §9.3).
    pub(super) fn keep_alive(&self, version: Version) -> bool {
        !self.has_close_option && (version == Version::Http11 || self.has_keep_alive_option)
    }

    /// Whether the client waits for `100 Continue` before a body of this framing.
    pub(super) fn expects_continue(
        &self,
        version: Version,
        framing: BodyFraming,
    ) -> Result<bool, RequestHeadError> {
        match self.expectation {
            None => Ok(false),
            // RFC 9110 §10.1.1: the only defined expectation; HTTP/1.0 must ignore it.
            Some(value) if value.eq_ignore_ascii_case(b"100-continue") => Ok(version
                == Version::Http11
                && !matches!(framing, BodyFraming::None | BodyFraming::Length(0))),
            Some(_) => Err(RequestHeadError::ExpectationFailed),
        }
    }

    /// Whether another protocol is offered. HTTP/1.0 ignores the offer (RFC 9110 §7.8).
    pub(super) fn is_upgrade(&self, version: Version) -> bool {
        version == Version::Http11 && self.has_upgrade_option && self.has_upgrade_field
    }

    fn record_host(&mut self, value: &[u8], span: HeadSpan) -> Result<(), RequestHeadError> {
        if self.host.is_some() {
            return Err(RequestHeadError::HostRepeated);
        }
        Authority::parse(value).ok_or(RequestHeadError::BadHost)?;
        let start = span.range().start;
        self.host = Some(HeadSpan::new(
            start,
            Authority::without_empty_port(value).len(),
        ));
        Ok(())
    }

    fn record_expectation(&mut self, value: &'a [u8]) -> Result<(), RequestHeadError> {
        match self.expectation.replace(value) {
            None => Ok(()),
            Some(_) => Err(RequestHeadError::ExpectationFailed),
        }
    }

    fn record_length(&mut self, value: &[u8]) -> Result<(), RequestHeadError> {
        match self
            .length
            .replace(parse_content_length(value).ok_or(RequestHeadError::BadContentLength)?)
        {
            None => Ok(()),
            Some(_) => Err(RequestHeadError::ContentLengthRepeated),
        }
    }

    fn record_coding(&mut self, value: &'a [u8]) -> Result<(), RequestHeadError> {
        match self.coding.replace(value) {
            None => Ok(()),
            Some(_) => Err(RequestHeadError::BadTransferEncoding),
        }
    }

    fn record_connection(&mut self, value: &[u8]) -> Result<(), RequestHeadError> {
        for option in list_elements(value) {
            if !is_token(option) {
                return Err(RequestHeadError::BadConnection);
            }
            // RFC 9110 §7.6.1: no sender may name them, and applying them would remove framing or
            // routing. The option has no effect and is not forwarded.
            if PROTECTED_FIELDS
                .iter()
                .any(|name| option.eq_ignore_ascii_case(name))
            {
                continue;
            }
            let known = match option.len() {
                5 if token_eq_ignore_case(option, b"close") => &mut self.has_close_option,
                7 if token_eq_ignore_case(option, b"upgrade") => &mut self.has_upgrade_option,
                10 if token_eq_ignore_case(option, b"keep-alive") => {
                    &mut self.has_keep_alive_option
                }
                _ => &mut self.has_other_options,
            };
            *known = true;
        }
        Ok(())
    }
}

/// Whether a `Content-Type` or `Accept` names the media type of WebSocket-over-HTTP, in any
/// spelling: readers differ in what they strip around it.
fn contains_websocket_events(value: &[u8]) -> bool {
    const EVENTS: &[u8] = b"websocket-events";
    memchr::memchr2_iter(b'w', b'W', value).any(|at| starts_with_ignore_case(&value[at..], EVENTS))
}

const PROTECTED_FIELDS: [&[u8]; 3] = [b"host", b"content-length", b"transfer-encoding"];
