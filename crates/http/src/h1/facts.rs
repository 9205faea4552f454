//! What the fields of a request say about the message itself: host, framing, persistence,
//! expectation, upgrade.
//!
//! The parser hands every field here once, in order, and asks for the conclusions at the end. These
//! are the rules that request smuggling lives on, so each has one place and any doubt is an error
//! (RFC 9112 §6.1–§6.3, §9.3; RFC 9110 §7.2, §7.6.1, §10.1.1).

use super::error::ParseError;
use crate::{
    authority::Authority,
    grammar::{is_known, is_token, list_elements, parse_length},
    head::{BodyFraming, Span, Version},
};

/// Facts gathered from the fields seen so far.
#[derive(Debug, Default)]
pub(super) struct Facts<'a> {
    host: Option<Span>,
    length: Option<u64>,
    coding: Option<&'a [u8]>,
    expectation: Option<&'a [u8]>,
    close: bool,
    keep_alive: bool,
    upgrade_option: bool,
    upgrade_field: bool,
    /// Whether `Connection` has an option besides the three that are told apart.
    pub(super) names_fields: bool,
    /// Whether the body is said to be events of a WebSocket, or such events are accepted.
    pub(super) names_socket_events: bool,
}

impl<'a> Facts<'a> {
    /// Takes note of one field; `span` says where the value lies.
    pub(super) fn note(
        &mut self,
        name: &[u8],
        value: &'a [u8],
        span: Span,
    ) -> Result<(), ParseError> {
        // The length decides nearly always, before any byte is compared.
        match name.len() {
            4 if is_known(name, b"host") => self.note_host(value, span),
            6 if is_known(name, b"expect") => self.note_expect(value),
            6 if is_known(name, b"accept") => {
                self.names_socket_events |= names_socket_events(value);
                Ok(())
            }
            7 if is_known(name, b"upgrade") => {
                self.upgrade_field = true;
                Ok(())
            }
            10 if is_known(name, b"connection") => self.note_connection(value),
            12 if is_known(name, b"content-type") => {
                self.names_socket_events |= names_socket_events(value);
                Ok(())
            }
            14 if is_known(name, b"content-length") => self.note_length(value),
            17 if is_known(name, b"transfer-encoding") => self.note_coding(value),
            _ => Ok(()),
        }
    }

    /// Where the checked `Host` lies, without the colon of an empty port; an HTTP/1.1 request without
    /// one is refused (RFC 9112 §3.2).
    pub(super) fn host(&self, version: Version) -> Result<Option<Span>, ParseError> {
        match self.host {
            None if version == Version::Http11 => Err(ParseError::HostMissing),
            host => Ok(host),
        }
    }

    /// How the body ends (RFC 9112 §6.3), refusing every combination that readers disagree about.
    pub(super) fn framing(&self, version: Version) -> Result<BodyFraming, ParseError> {
        match (self.coding, self.length) {
            (Some(_), Some(_)) => Err(ParseError::LengthAndCoding),
            (None, Some(length)) => Ok(BodyFraming::Length(length)),
            (None, None) => Ok(BodyFraming::None),
            (Some(_), None) if version == Version::Http10 => Err(ParseError::CodingInHttp10),
            (Some(coding), None) if coding.eq_ignore_ascii_case(b"chunked") => {
                Ok(BodyFraming::Chunked)
            }
            (Some(coding), None) if is_token(coding) => Err(ParseError::UnknownCoding),
            (Some(_), None) => Err(ParseError::BadTransferEncoding),
        }
    }

    /// Whether the connection may carry another request (RFC 9112 §9.3).
    pub(super) fn keep_alive(&self, version: Version) -> bool {
        !self.close && (version == Version::Http11 || self.keep_alive)
    }

    /// Whether the client waits for `100 Continue` before a body of this framing.
    pub(super) fn expects_continue(
        &self,
        version: Version,
        framing: BodyFraming,
    ) -> Result<bool, ParseError> {
        match self.expectation {
            None => Ok(false),
            // RFC 9110 §10.1.1: the only expectation there is; in HTTP/1.0 it must be ignored.
            Some(value) if value.eq_ignore_ascii_case(b"100-continue") => Ok(version
                == Version::Http11
                && !matches!(framing, BodyFraming::None | BodyFraming::Length(0))),
            Some(_) => Err(ParseError::ExpectationFailed),
        }
    }

    /// Whether another protocol is offered; in HTTP/1.0 the offer is ignored (RFC 9110 §7.8).
    pub(super) fn is_upgrade(&self, version: Version) -> bool {
        version == Version::Http11 && self.upgrade_option && self.upgrade_field
    }

    fn note_host(&mut self, value: &[u8], span: Span) -> Result<(), ParseError> {
        if self.host.is_some() {
            return Err(ParseError::HostRepeated);
        }
        Authority::parse(value).ok_or(ParseError::BadHost)?;
        let start = span.range().start;
        self.host = Some(Span::new(start, Authority::written(value).len()));
        Ok(())
    }

    fn note_expect(&mut self, value: &'a [u8]) -> Result<(), ParseError> {
        match self.expectation.replace(value) {
            None => Ok(()),
            Some(_) => Err(ParseError::ExpectationFailed),
        }
    }

    fn note_length(&mut self, value: &[u8]) -> Result<(), ParseError> {
        match self
            .length
            .replace(parse_length(value).ok_or(ParseError::BadContentLength)?)
        {
            None => Ok(()),
            Some(_) => Err(ParseError::ContentLengthRepeated),
        }
    }

    fn note_coding(&mut self, value: &'a [u8]) -> Result<(), ParseError> {
        match self.coding.replace(value) {
            None => Ok(()),
            Some(_) => Err(ParseError::BadTransferEncoding),
        }
    }

    fn note_connection(&mut self, value: &[u8]) -> Result<(), ParseError> {
        for option in list_elements(value) {
            if !is_token(option) {
                return Err(ParseError::BadConnection);
            }
            // RFC 9110 §7.6.1: no sender may name them, and to obey would strip what frames or routes
            // the message. The option has no effect here, and no next hop hears of it.
            if ESSENTIAL
                .iter()
                .any(|name| option.eq_ignore_ascii_case(name))
            {
                continue;
            }
            let known = match option.len() {
                5 if is_known(option, b"close") => &mut self.close,
                7 if is_known(option, b"upgrade") => &mut self.upgrade_option,
                10 if is_known(option, b"keep-alive") => &mut self.keep_alive,
                _ => &mut self.names_fields,
            };
            *known = true;
        }
        Ok(())
    }
}

/// Whether a value of `Content-Type` or `Accept` names the media type of WebSocket-over-HTTP, in any
/// spelling: readers differ in what they cut off around it.
fn names_socket_events(value: &[u8]) -> bool {
    const EVENTS: &[u8] = b"websocket-events";
    memchr::memchr2_iter(b'w', b'W', value).any(|at| {
        let found = value.get(at..at + EVENTS.len());
        found.is_some_and(|found| found.eq_ignore_ascii_case(EVENTS))
    })
}

const ESSENTIAL: [&[u8]; 3] = [b"host", b"content-length", b"transfer-encoding"];
