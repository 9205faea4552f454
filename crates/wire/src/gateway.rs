//! Common parts of the protocols of application servers behind an upstream: the events of a
//! response, its errors, and the check of a body against its length.
//!
//! The relay of an upstream creates one [`ResponseDecoder`] per request, feeds it all received
//! bytes and acts on its events; `cgi`, `fastcgi` and `ajp` implement them. The encoders of
//! `fastcgi`, `scgi`, `uwsgi` and `ajp` write requests, with variables through [`VariableWriter`].
//!
//! # Invariants
//!
//! - A decoder keeps what it needs of incomplete input itself, so that an idle connection holds no
//!   buffer.
//! - Body bytes are borrowed, never copied.
//! - No field that could split a response leaves a decoder (RFC 9110 §5.5), and no body that is
//!   longer or shorter than its head says.
//! - Every error is final: the caller closes the connection.

use penstock_http::{FieldBlock, FieldError, Status, parse_content_length, trim_blanks};

use crate::{ajp, cgi, fastcgi};

/// Limits of a response head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatewayHeadLimits {
    /// Maximum head in bytes, in the form of its protocol.
    pub max_head_bytes: usize,
    /// Maximum number of fields.
    pub max_fields: usize,
}

impl Default for GatewayHeadLimits {
    fn default() -> Self {
        Self {
            max_head_bytes: 64 << 10,
            max_fields: 256,
        }
    }
}

/// The checked head of a response: its fields can be sent as they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayHead {
    /// A final status: 200 to 599.
    pub status: Status,
    /// All fields in order, except the `Status` of CGI.
    pub fields: FieldBlock,
    /// The value of `Content-Length`; the decoder ensures that the body is neither longer nor
    /// shorter.
    pub content_length: Option<u64>,
}

/// One step of a response. Slices borrow the input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GatewayEvent<'a> {
    /// Status and fields; once, before any body.
    Head(GatewayHead),
    /// More of the body; never empty, and never for a response without one (HEAD, 204, 304).
    Body(&'a [u8]),
    /// More of the application's log output, at any time (FastCGI's STDERR).
    Log(&'a [u8]),
    /// The back end requests at most this many more bytes of the request body (AJP's
    /// GET_BODY_CHUNK).
    BodyRequested(usize),
    /// The response is complete. Another request may follow on the connection if it is `reusable`,
    /// the caller requested that, and the whole of this request was sent.
    End {
        /// Whether the back end keeps the connection, and sent nothing after the end.
        reusable: bool,
    },
}

/// The bytes taken off the front of the input, and their event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodedGatewayEvent<'a> {
    /// Bytes that must not be passed again. All of them when there is no event.
    pub consumed: usize,
    /// The event; `None` when more bytes are needed.
    pub event: Option<GatewayEvent<'a>>,
}

impl DecodedGatewayEvent<'_> {
    /// Bytes that are no event.
    pub(crate) fn without_event(consumed: usize) -> Self {
        Self {
            consumed,
            event: None,
        }
    }
}

/// Why a back end's bytes are not a valid response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GatewayError {
    #[error("the response status is not a final status code")]
    BadStatus,
    #[error("two response statuses that differ")]
    ConflictingStatuses,
    #[error("malformed response field name")]
    BadFieldName,
    #[error("control byte in a response field value")]
    BadFieldValue,
    #[error("folded response field")]
    FoldedField,
    #[error("response head too large")]
    HeadTooLarge,
    #[error("too many response fields")]
    TooManyFields,
    #[error("response head without any field")]
    EmptyHead,
    #[error("malformed or contradictory content-length")]
    BadContentLength,
    #[error("transfer-encoding in a format that has none")]
    TransferEncoding,
    #[error("the response ended within its head")]
    IncompleteHead,
    #[error("the response body is longer than its content-length")]
    BodyTooLong,
    #[error("the response body is shorter than its content-length")]
    BodyTooShort,
    #[error("the connection was closed before the end of the response")]
    Truncated,
    #[error("bytes after the end of the response")]
    DataAfterEnd,
    #[error("fastcgi version {0}")]
    FastCgiVersion(u8),
    #[error("fastcgi record of type {0} where none may be")]
    FastCgiRecord(u8),
    #[error("fastcgi record for request {0}, which was not sent")]
    FastCgiRequestId(u16),
    #[error("fastcgi record of type {kind} with {len} bytes")]
    FastCgiLength { kind: u8, len: u16 },
    #[error("fastcgi: the application cannot multiplex connections")]
    CannotMultiplex,
    #[error("fastcgi: the application is overloaded")]
    Overloaded,
    #[error("fastcgi: the application does not know the role")]
    UnknownRole,
    #[error("fastcgi protocol status {0}")]
    FastCgiStatus(u8),
    #[error("an ajp packet does not begin with its mark")]
    AjpBadMagic,
    #[error("ajp message of type {0} where none may be")]
    AjpMessage(u8),
    #[error("ajp message of type {kind} with a payload of {len} bytes")]
    AjpLength { kind: u8, len: u16 },
    #[error("malformed ajp message of type {0}")]
    AjpContent(u8),
    #[error("ajp field code {0:#06x}")]
    AjpFieldCode(u16),
    #[error("ajp: body bytes asked for while others are under way")]
    AjpOverlappingBodyRequest,
}

impl GatewayError {
    /// Whether the back end reports that it did not begin the request: another one may get it.
    pub fn is_refusal(self) -> bool {
        matches!(
            self,
            Self::CannotMultiplex | Self::Overloaded | Self::UnknownRole
        )
    }
}

impl From<FieldError> for GatewayError {
    fn from(error: FieldError) -> Self {
        match error {
            FieldError::InvalidName => Self::BadFieldName,
            FieldError::InvalidValue => Self::BadFieldValue,
        }
    }
}

/// Why a request cannot be written in the format of its back end. The output is unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The client's head is larger than the format can carry: 431.
    #[error("the request head does not fit into the back end's format")]
    TooLarge,
    #[error("a text of the request holds a zero byte")]
    NulInText,
}

/// A writer of request variables: one table of variables serves every format.
pub trait VariableWriter {
    /// Adds one variable.
    fn push_variable(&mut self, name: &[u8], value: &[u8]);
}

/// The decoder of an upstream's protocol, for one response.
///
/// Order of calls: [`decode`](Self::decode) with all received bytes, again with those it did not
/// consume, until there is no event; [`decode_eof`](Self::decode_eof) when the connection ends.
#[derive(Debug)]
pub enum ResponseDecoder {
    /// SCGI: a CGI response until the connection closes.
    Cgi(cgi::CgiDecoder),
    /// FastCGI records.
    FastCgi(fastcgi::FastCgiDecoder),
    /// AJP13 packets.
    Ajp(ajp::AjpDecoder),
}

impl ResponseDecoder {
    /// Takes the next event off the front of `input`; without one, all of `input` was consumed.
    ///
    /// # Errors
    /// Any violation of the format; also bytes after [`GatewayEvent::End`]. The connection must be
    /// closed.
    pub fn decode<'a>(&mut self, input: &'a [u8]) -> Result<DecodedGatewayEvent<'a>, GatewayError> {
        match self {
            Self::Cgi(decoder) => decoder.decode(input),
            Self::FastCgi(decoder) => decoder.decode(input),
            Self::Ajp(decoder) => decoder.decode(input),
        }
    }

    /// Handles the end of the connection: the end of the response where the protocol ends it by
    /// closing, nothing when it was complete before.
    ///
    /// # Errors
    /// The response is cut: the part already sent must not look complete.
    pub fn decode_eof(&mut self) -> Result<Option<GatewayEvent<'static>>, GatewayError> {
        match self {
            Self::Cgi(decoder) => decoder.decode_eof(),
            Self::FastCgi(decoder) => decoder.decode_eof(),
            Self::Ajp(decoder) => decoder.decode_eof(),
        }
    }
}

/// Collects the fields of a head in any format.
#[derive(Debug)]
pub(crate) struct HeadBuilder {
    fields: FieldBlock,
    field_count: usize,
    length: Option<u64>,
}

impl HeadBuilder {
    pub(crate) fn new() -> Self {
        Self {
            fields: FieldBlock::new(),
            field_count: 0,
            length: None,
        }
    }

    /// Checks and adds a field.
    pub(crate) fn push(
        &mut self,
        name: &[u8],
        value: &[u8],
        limits: &GatewayHeadLimits,
    ) -> Result<(), GatewayError> {
        self.count_field(limits)?;
        let name = std::str::from_utf8(name).map_err(|_| GatewayError::BadFieldName)?;
        if name.eq_ignore_ascii_case("content-length") {
            self.record_length(value)?;
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            // A script that sends its own chunks would have them taken for its body.
            return Err(GatewayError::TransferEncoding);
        }
        if self.fields.is_empty() {
            self.fields = FieldBlock::with_capacity(TYPICAL_FIELD_BYTES);
        }
        self.fields.push(name, value)?;
        Ok(())
    }

    /// Counts a field against the limit without adding it.
    pub(crate) fn count_field(&mut self, limits: &GatewayHeadLimits) -> Result<(), GatewayError> {
        self.field_count += 1;
        if self.field_count > limits.max_fields {
            return Err(GatewayError::TooManyFields);
        }
        Ok(())
    }

    pub(crate) fn has_fields(&self) -> bool {
        self.field_count > 0
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.fields.contains(name)
    }

    pub(crate) fn finish(&mut self, status: Status) -> GatewayHead {
        GatewayHead {
            status,
            fields: std::mem::take(&mut self.fields),
            content_length: self.length,
        }
    }

    // As in HTTP/1 (RFC 9112 §6.3 case 5): several are allowed if they are the same number.
    fn record_length(&mut self, value: &[u8]) -> Result<(), GatewayError> {
        for element in value.split(|&byte| byte == b',') {
            let length =
                parse_content_length(trim_blanks(element)).ok_or(GatewayError::BadContentLength)?;
            if self.length.replace(length).is_some_and(|it| it != length) {
                return Err(GatewayError::BadContentLength);
            }
        }
        Ok(())
    }
}

/// How many bytes of a body remain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RemainingBody {
    /// The format marks the end of the body.
    UntilEnd,
    /// Exactly this many.
    Exactly(u64),
    /// There is no body; bytes sent nevertheless are dropped (RFC 3875 §4.3.2 for HEAD).
    Discarded,
}

impl RemainingBody {
    pub(crate) fn new(head: &GatewayHead, answers_head: bool) -> Self {
        match head.content_length {
            _ if answers_head || head.status.forbids_body() => Self::Discarded,
            Some(length) => Self::Exactly(length),
            None => Self::UntilEnd,
        }
    }

    /// Takes `bytes`, which are not empty; returns the event for the part to pass on.
    pub(crate) fn consume<'a>(
        &mut self,
        bytes: &'a [u8],
    ) -> Result<Option<GatewayEvent<'a>>, GatewayError> {
        match self {
            Self::Discarded => return Ok(None),
            Self::UntilEnd => (),
            Self::Exactly(left) => {
                let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                *left = left.checked_sub(len).ok_or(GatewayError::BodyTooLong)?;
            }
        }
        Ok(Some(GatewayEvent::Body(bytes)))
    }

    /// Handles the end of the body by the format.
    pub(crate) fn finish(self) -> Result<(), GatewayError> {
        match self {
            Self::Exactly(1..) => Err(GatewayError::BodyTooShort),
            _ => Ok(()),
        }
    }
}

/// Enough for the fields of most responses.
const TYPICAL_FIELD_BYTES: usize = 512;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
