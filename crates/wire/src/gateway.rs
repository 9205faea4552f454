//! What the formats of application servers behind an upstream have in common: the events of a
//! response, what can be wrong with one, and the count that keeps a body as long as it says it is.
//!
//! The relay of an upstream makes one [`ResponseDecoder`] a request, feeds it whatever arrives and
//! acts on its events; `cgi`, `fastcgi` and `ajp` implement them. Requests are written by the
//! encoders of `fastcgi`, `scgi`, `uwsgi` and `ajp`, whose variables come through [`VariableWriter`].
//!
//! What must stay true: a decoder keeps what it needs of incomplete input itself, so that no buffer
//! is held for a connection; body bytes are borrowed, never copied; no field leaves that could
//! split a response (RFC 9110 §5.5), no body that is longer or shorter than its head says. Every
//! error is final: the caller closes the connection.

use penstock_http::{FieldBlock, FieldError, Status, parse_length};

use crate::{ajp, cgi, fastcgi, head};

/// Bounds on a response head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatewayHeadLimits {
    /// The largest head in bytes, as its format spells it.
    pub max_head_bytes: usize,
    /// The most fields.
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

/// The head of a response, checked: its fields can be sent as they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayHead {
    /// A final status: 200 to 599.
    pub status: Status,
    /// All fields in order, but for the `Status` of CGI.
    pub fields: FieldBlock,
    /// What `Content-Length` says; the decoder sees to it that the body is neither longer nor
    /// shorter.
    pub content_length: Option<u64>,
}

/// One step of a response. Slices borrow the input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GatewayEvent<'a> {
    /// Status and fields; comes once, before any body.
    Head(GatewayHead),
    /// More of the body; never empty, and never for a response that has none (HEAD, 204, 304).
    Body(&'a [u8]),
    /// More of what the application has to say to its log, at any time (FastCGI's STDERR).
    Log(&'a [u8]),
    /// The back end wants at most this many more bytes of the request body (AJP's GET_BODY_CHUNK).
    BodyRequested(usize),
    /// The response is complete. Another request may follow on the connection when it is
    /// `reusable`, the caller asked for that, and has sent the whole of this one.
    End {
        /// Whether the back end keeps the connection, and sent nothing behind the end.
        reusable: bool,
    },
}

/// The bytes taken off the front of the input, and what they said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodedGatewayEvent<'a> {
    /// Bytes that must not be given again. All of them when there is no event.
    pub consumed: usize,
    /// What happened; `None` when more bytes are needed.
    pub event: Option<GatewayEvent<'a>>,
}

/// Why the bytes of a back end are no response that can be passed on.
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
    /// Whether the back end says that it did not begin with the request: another may have it.
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

/// Why a request cannot be written in the format of its back end. The output is as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The client's head is larger than the format can carry: 431.
    #[error("the request head does not fit into the back end's format")]
    TooLarge,
    #[error("a text of the request holds a zero byte")]
    NulInText,
}

/// A writer of request variables: one table of them serves every format.
pub trait VariableWriter {
    /// Adds one variable.
    fn push_variable(&mut self, name: &[u8], value: &[u8]);
}

/// The decoder of whichever format an upstream speaks, for one response.
///
/// Order of calls: [`decode`](Self::decode) with all that was received, again with what it did not
/// consume, until there is no event; [`eof`](Self::eof) when the connection ends.
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
    /// Any breach of the format; also bytes behind [`GatewayEvent::End`]. The connection must be closed.
    pub fn decode<'a>(&mut self, input: &'a [u8]) -> Result<DecodedGatewayEvent<'a>, GatewayError> {
        match self {
            Self::Cgi(decoder) => decoder.decode(input),
            Self::FastCgi(decoder) => decoder.decode(input),
            Self::Ajp(decoder) => decoder.decode(input),
        }
    }

    /// The connection ended: the end of the response where closing is how a format says so, nothing
    /// when it was complete before.
    ///
    /// # Errors
    /// The response is cut: what was passed on of it must not look complete.
    pub fn eof(&mut self) -> Result<Option<GatewayEvent<'static>>, GatewayError> {
        match self {
            Self::Cgi(decoder) => decoder.eof(),
            Self::FastCgi(decoder) => decoder.eof(),
            Self::Ajp(decoder) => decoder.eof(),
        }
    }
}

/// Collects the fields of a head, in whatever format they came.
#[derive(Debug)]
pub(crate) struct HeadBuilder {
    fields: FieldBlock,
    count: usize,
    length: Option<u64>,
}

impl HeadBuilder {
    pub(crate) fn new() -> Self {
        Self {
            fields: FieldBlock::new(),
            count: 0,
            length: None,
        }
    }

    /// Adds a field after checking it.
    pub(crate) fn push(
        &mut self,
        name: &[u8],
        value: &[u8],
        limits: &GatewayHeadLimits,
    ) -> Result<(), GatewayError> {
        self.count(limits)?;
        let name = std::str::from_utf8(name).map_err(|_| GatewayError::BadFieldName)?;
        if name.eq_ignore_ascii_case("content-length") {
            self.record_length(value)?;
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            // A script that sends chunks of its own would have them taken for its body.
            return Err(GatewayError::TransferEncoding);
        }
        if self.fields.is_empty() {
            self.fields = FieldBlock::with_capacity(TYPICAL_FIELD_BYTES);
        }
        self.fields.push(name, value)?;
        Ok(())
    }

    /// Counts a field that does not become one of the response.
    pub(crate) fn count(&mut self, limits: &GatewayHeadLimits) -> Result<(), GatewayError> {
        self.count += 1;
        if self.count > limits.max_fields {
            return Err(GatewayError::TooManyFields);
        }
        Ok(())
    }

    pub(crate) fn has_any(&self) -> bool {
        self.count > 0
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

    // As in HTTP/1 (RFC 9112 §6.3 case 5): several are allowed when they are the same number.
    fn record_length(&mut self, value: &[u8]) -> Result<(), GatewayError> {
        for element in value.split(|&byte| byte == b',') {
            let length =
                parse_length(head::trim_blanks(element)).ok_or(GatewayError::BadContentLength)?;
            if self.length.replace(length).is_some_and(|it| it != length) {
                return Err(GatewayError::BadContentLength);
            }
        }
        Ok(())
    }
}

/// The final status with this number.
pub(crate) fn final_status(code: u16) -> Result<Status, GatewayError> {
    Status::new(code)
        .filter(|status| !status.is_informational())
        .ok_or(GatewayError::BadStatus)
}

/// How many bytes of a body are still to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RemainingBody {
    /// The format says where the body ends.
    UntilEnd,
    /// Exactly this many.
    Exactly(u64),
    /// There is no body; bytes sent all the same are dropped (RFC 3875 §4.3.2 for HEAD).
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

    /// Takes `bytes`, which are not empty; what is to be passed on of them.
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

    /// The format says that the body is over.
    pub(crate) fn finish(self) -> Result<(), GatewayError> {
        match self {
            Self::Exactly(1..) => Err(GatewayError::BodyTooShort),
            _ => Ok(()),
        }
    }
}

/// `number` in decimal, in `room`: requests hold a few, none worth an allocation.
pub(crate) fn format_decimal(mut number: u64, room: &mut [u8; 20]) -> &[u8] {
    let mut first = room.len();
    while first > 0 {
        first -= 1;
        room[first] = DIGITS[usize::try_from(number % 10).unwrap_or_default()];
        number /= 10;
        if number == 0 {
            break;
        }
    }
    &room[first..]
}

const DIGITS: &[u8; 10] = b"0123456789";
/// What the fields of most responses need.
const TYPICAL_FIELD_BYTES: usize = 512;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
