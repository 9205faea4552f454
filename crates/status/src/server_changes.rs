//! Parses the JSON of `POST /upstreams/NAME/servers`.
//!
//! # Invariants
//! - A body is accepted as a whole or refused with the expected form. A key that an action does not
//!   have is refused.

use std::fmt;
use std::num::{NonZeroU16, NonZeroU32};

use penstock_exchange::{Fault, RequestBody};
use serde::{Deserialize, Deserializer};

/// A requested change.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case", deny_unknown_fields)]
pub enum ServerChangeRequest {
    /// Adds a server.
    Add(NewServer),
    /// Removes a server after its last request in progress.
    Remove {
        /// Its address.
        server: String,
    },
    /// Stops new requests to a server.
    Drain {
        /// Its address.
        server: String,
    },
    /// Like `Drain`, and ignores its health until it is enabled.
    Disable {
        /// Its address.
        server: String,
    },
    /// Sends requests again, after `Drain` or `Disable`.
    Enable {
        /// Its address.
        server: String,
    },
    /// Sets the weight of a server.
    Weight {
        /// Its address.
        server: String,
        /// The weight.
        weight: NonZeroU16,
    },
    /// Sets the limit on requests in progress.
    MaxActive {
        /// Its address.
        server: String,
        /// The limit; `None` (an explicit `null`) for the upstream's.
        #[serde(deserialize_with = "deserialize_nullable")]
        max_active: Option<NonZeroU32>,
    },
}

/// A server to add, with the defaults of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewServer {
    /// Its address.
    pub server: String,
    /// Its weight.
    #[serde(default = "default_weight")]
    pub weight: NonZeroU16,
    /// Its limit on requests in progress; `None` for the upstream's.
    #[serde(default)]
    pub max_active: Option<NonZeroU32>,
    /// Whether it only gets requests when no other server is available.
    #[serde(default)]
    pub backup: bool,
}

/// Why a change was not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServerChangeRequestError {
    /// The text is not the address of a server: 400.
    #[error("{server:?} is no server: expected {expected}")]
    InvalidAddress {
        /// The text.
        server: String,
        /// The expected form.
        expected: &'static str,
    },
    /// There is no such upstream: 404.
    #[error("there is no upstream named {0}")]
    UnknownUpstream(String),
    /// There is no such server: 404.
    #[error("upstream {upstream} has no server {server}")]
    UnknownServer {
        /// The upstream.
        upstream: String,
        /// The requested server.
        server: String,
    },
    /// The change is not possible: 409.
    #[error("{0}")]
    Rejected(String),
}

/// Why a body was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServerChangeParseError {
    #[error("more than {0} bytes")]
    TooLarge(usize),
    #[error("{0}: expected {ExpectedBody}")]
    Malformed(serde_json::Error),
    #[error("not an object: expected {ExpectedBody}")]
    NotAnObject,
}

/// The form of a valid body.
struct ExpectedBody;

impl fmt::Display for ExpectedBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "an object such as {\"action\": \"drain\", \"server\": \"127.0.0.1:3000\"}; the actions are \
             add (may have weight, max_active, backup), remove, drain, disable, enable, \
             weight (with weight), max_active (with max_active)",
        )
    }
}

/// The maximum size of a body: far more than any change needs.
pub(crate) const MAX_BODY_BYTES: usize = 64 * 1024;

/// Reads the whole body.
///
/// # Errors
/// The outer error: the client disconnected or is too slow. The inner error: the body is too large.
pub(crate) async fn read_body(
    body: RequestBody,
) -> Result<Result<Vec<u8>, ServerChangeParseError>, Fault> {
    read_body_within(body, MAX_BODY_BYTES).await
}

/// Reads a body of at most `bytes_max` bytes.
pub(crate) async fn read_body_within(
    body: RequestBody,
    bytes_max: usize,
) -> Result<Result<Vec<u8>, ServerChangeParseError>, Fault> {
    let text = body.read_within(bytes_max).await?;
    Ok(text.ok_or(ServerChangeParseError::TooLarge(bytes_max)))
}

/// Parses a body.
///
/// # Errors
/// The mistake, and the expected form.
pub(crate) fn parse_server_change(
    text: &[u8],
) -> Result<ServerChangeRequest, ServerChangeParseError> {
    // serde would accept an array of the values.
    if !text.trim_ascii_start().starts_with(b"{") {
        return Err(ServerChangeParseError::NotAnObject);
    }
    serde_json::from_slice(text).map_err(ServerChangeParseError::Malformed)
}

fn default_weight() -> NonZeroU16 {
    NonZeroU16::MIN
}

/// Requires a value that may be `null`; a plain `Option` may be left out.
fn deserialize_nullable<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<NonZeroU32>, D::Error> {
    Option::deserialize(from)
}

#[cfg(test)]
mod tests;
