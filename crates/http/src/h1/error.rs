//! Errors in request heads, with their statuses.
//!
//! The parser returns the error; `edge` responds with its status, closes the connection and logs
//! its text. Each rule has its own variant, so that log lines distinguish attacks from broken
//! clients.

use thiserror::Error;

use crate::status::Status;

/// Why bytes are no acceptable request head. The connection closes after the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RequestHeadError {
    #[error("tls client hello on a plain port")]
    TlsHello,
    #[error("ssh banner")]
    SshBanner,
    /// A PROXY protocol preamble, version 1, on a listener without it.
    #[error("proxy protocol preamble not expected here")]
    ProxyPreamble,
    #[error("http/2 preface on an http/1 connection")]
    Http2Preface,
    /// More than the one blank line that may precede a request. A PROXY preamble of version 2
    /// begins like this.
    #[error("blank lines before the request line")]
    BlankLines,
    /// A line that does not end in CR LF, or a CR elsewhere in the request line.
    #[error("bare cr or lf in the head")]
    BareLineBreak,
    /// No method, or bytes outside a token.
    #[error("malformed method")]
    BadMethod,
    #[error("method too long")]
    MethodTooLong,
    /// Not exactly three parts.
    #[error("malformed request line")]
    BadRequestLine,
    /// A target in no permitted form, or with invalid bytes.
    #[error("malformed request target")]
    BadTarget,
    #[error("request target too long")]
    TargetTooLong,
    /// A version not of the form `HTTP/d.d`.
    #[error("malformed http version")]
    BadVersion,
    /// A well-formed version with a major number other than 1.
    #[error("http version not supported")]
    VersionNotSupported,
    #[error("request head too large")]
    HeadTooLarge,
    #[error("too many header fields")]
    TooManyFields,
    /// A field name above 256 bytes.
    #[error("header field name too long")]
    FieldNameTooLong,
    /// A field line that begins with a blank (RFC 9112 §5.2).
    #[error("folded header field")]
    FoldedField,
    /// A field name that is empty or not a token.
    #[error("malformed header field name")]
    BadFieldName,
    #[error("malformed header field value")]
    BadFieldValue,
    #[error("host missing")]
    HostMissing,
    #[error("host given more than once")]
    HostRepeated,
    #[error("malformed host")]
    BadHost,
    /// `Content-Length` that is not one plain number.
    #[error("malformed content-length")]
    BadContentLength,
    /// More than one `Content-Length`, equal or not.
    #[error("content-length given more than once")]
    ContentLengthRepeated,
    #[error("content-length together with transfer-encoding")]
    LengthAndCoding,
    /// `Transfer-Encoding` that is a list, repeated or malformed.
    #[error("malformed transfer-encoding")]
    BadTransferEncoding,
    #[error("unknown transfer coding")]
    UnknownCoding,
    #[error("transfer-encoding in http/1.0")]
    CodingInHttp10,
    #[error("malformed connection option")]
    BadConnection,
    /// An expectation other than `100-continue`.
    #[error("unsupported expectation")]
    ExpectationFailed,
}

impl RequestHeadError {
    /// The status of the response before closing.
    pub fn status(&self) -> Status {
        match self {
            Self::TargetTooLong => Status::URI_TOO_LONG,
            Self::ExpectationFailed => Status::EXPECTATION_FAILED,
            Self::HeadTooLarge | Self::TooManyFields | Self::FieldNameTooLong => {
                Status::REQUEST_HEADER_FIELDS_TOO_LARGE
            }
            Self::MethodTooLong | Self::UnknownCoding => Status::NOT_IMPLEMENTED,
            Self::Http2Preface | Self::VersionNotSupported => Status::HTTP_VERSION_NOT_SUPPORTED,
            _ => Status::BAD_REQUEST,
        }
    }
}
