//! Why a session cannot be extracted, held, continued, sealed for or opened.

use rustls::AlertDescription;

use super::key_schedule::CipherError;

/// Why the session of `rustls` cannot be continued without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ExtractError {
    /// The cipher suite is none of AES-GCM and ChaCha20-Poly1305.
    #[error("there are no records of this cipher suite")]
    UnsupportedSuite,
    /// The handshake was not captured.
    #[error("the traffic secrets of the TLS 1.3 session were not captured in its handshake")]
    NoTrafficSecrets,
    /// The captured secrets are not those of the session.
    #[error("the captured traffic secrets do not lead to the keys of the TLS 1.3 session")]
    WrongTrafficSecrets,
    /// `rustls` gives no secrets.
    #[error("the TLS session gives no secrets (enable_secret_extraction)")]
    NoSecrets,
    /// The library refused a key.
    #[error(transparent)]
    Cipher(#[from] CipherError),
}

/// Why a connection cannot be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HoldError {
    /// The session is one with a server.
    #[error("the TLS session is none of a client")]
    NotOfClient,
    /// The client or the connection has ended it.
    #[error("the TLS session has ended")]
    Ended,
}

/// Why bytes are no session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// Another version of Penstock wrote them.
    #[error("a held TLS session has format {0}, this version reads another")]
    Version(u8),
    /// They are too short or too long.
    #[error("a held TLS session has the wrong length")]
    Length,
    /// A field has no such value.
    #[error("a held TLS session has a wrong {0}")]
    Field(&'static str),
}

/// Why nothing is sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The session has ended.
    #[error("the TLS session has ended")]
    Closed,
    /// The key has sealed as many records as it may, and TLS 1.2 has no other.
    #[error("the key of the TLS 1.2 session has sealed as many records as it may")]
    KeyExhausted,
    /// The library failed.
    #[error(transparent)]
    Cipher(#[from] CipherError),
}

/// Why a session is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// It was dead before.
    #[error("the TLS session has ended")]
    Closed,
    /// The client ended it with this alert.
    #[error("the TLS client sent the alert {0:?}")]
    PeerAlert(AlertDescription),
    /// The client broke a rule, and was sent the alert of [`Violation::alert`].
    #[error("the TLS client sent {0}")]
    Violation(#[from] Violation),
    /// The library failed.
    #[error(transparent)]
    Cipher(#[from] CipherError),
}

impl OpenError {
    /// Of an answer that cannot be sealed.
    pub(super) fn from_seal(error: SealError) -> Self {
        match error {
            SealError::Cipher(error) => Self::Cipher(error),
            SealError::Closed | SealError::KeyExhausted => Self::Closed,
        }
    }
}

/// What a client may not send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A record of a type that does not belong here, in the clear or inside.
    #[error("a record of unexpected type {0}")]
    UnexpectedRecord(u8),
    /// A record, or its content, above the limit.
    #[error("a record that is too long")]
    RecordOverflow,
    /// A record that does not open with its key.
    #[error("a record that its key does not open")]
    BadRecordMac,
    /// A record of TLS 1.3 with padding only.
    #[error("a record without a content type")]
    NoContentType,
    /// An empty record that is no application data.
    #[error("an empty record that is no application data")]
    EmptyRecord,
    /// Empty application data, again and again.
    #[error("too many empty records")]
    TooManyEmptyRecords,
    /// An alert that is not two bytes.
    #[error("an alert of the wrong length")]
    BadAlertLength,
    /// An alert that is neither a warning nor fatal.
    #[error("an alert of unknown level {0}")]
    BadAlertLevel(u8),
    /// Warnings, again and again.
    #[error("too many warnings")]
    TooManyWarnings,
    /// Another record inside a handshake message, or bytes behind a key update.
    #[error("a handshake message that is mixed with others")]
    MixedHandshake,
    /// A handshake message that no client sends now.
    #[error("an unexpected handshake message of type {0}")]
    UnexpectedHandshake(u8),
    /// A key update that is not one byte.
    #[error("a key update of the wrong length")]
    BadKeyUpdateLength,
    /// A key update with an unknown request.
    #[error("a key update with an unknown request")]
    BadKeyUpdateRequest,
    /// Key updates, again and again.
    #[error("too many key updates")]
    TooManyKeyUpdates,
    /// Requests for renegotiation, again.
    #[error("too many requests to renegotiate")]
    TooManyRenegotiations,
    /// More records than one key can have.
    #[error("more records than a key may have")]
    SequenceExhausted,
}

impl Violation {
    /// The alert that the client is sent (RFC 8446 §6.2).
    #[must_use]
    pub fn alert(self) -> AlertDescription {
        match self {
            Self::RecordOverflow => AlertDescription::RecordOverflow,
            Self::BadRecordMac | Self::SequenceExhausted => AlertDescription::BadRecordMac,
            Self::BadAlertLength | Self::BadKeyUpdateLength => AlertDescription::DecodeError,
            Self::BadAlertLevel(_) | Self::BadKeyUpdateRequest => {
                AlertDescription::IllegalParameter
            }
            Self::TooManyRenegotiations => AlertDescription::HandshakeFailure,
            Self::UnexpectedRecord(_)
            | Self::NoContentType
            | Self::EmptyRecord
            | Self::TooManyEmptyRecords
            | Self::TooManyWarnings
            | Self::MixedHandshake
            | Self::UnexpectedHandshake(_)
            | Self::TooManyKeyUpdates => AlertDescription::UnexpectedMessage,
        }
    }
}
