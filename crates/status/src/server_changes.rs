//! What somebody wants changed about an upstream's servers: the JSON of `POST /upstreams/NAME/servers`.
//!
//! `api` hands the body here and the wish that comes out to the [`crate::AdminOperations`], which knows
//! addresses and upstreams; this file knows neither. What must stay true: a body is taken whole as it
//! is meant or refused with what was expected, and a key that an action does not take is refused, since
//! whoever wrote it thinks that it does something.

use std::fmt;
use std::num::{NonZeroU16, NonZeroU32};

use penstock_exchange::{Fault, RequestBody};
use serde::{Deserialize, Deserializer};

/// One change, as asked for.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case", deny_unknown_fields)]
pub enum ServerChangeRequest {
    /// One more server.
    Add(NewServer),
    /// No new requests, and it is gone with the last it has.
    Remove {
        /// Its address.
        server: String,
    },
    /// No new requests; what it has goes on, and it stays.
    Drain {
        /// Its address.
        server: String,
    },
    /// As drained, and nothing that it does counts until it is enabled.
    Disable {
        /// Its address.
        server: String,
    },
    /// Requests again, after drain or disable.
    Enable {
        /// Its address.
        server: String,
    },
    /// Another share.
    Weight {
        /// Its address.
        server: String,
        /// The share.
        weight: NonZeroU16,
    },
    /// Another bound on its requests in progress.
    MaxActive {
        /// Its address.
        server: String,
        /// The bound; `None` (`null`, which must be written) for the upstream's.
        #[serde(deserialize_with = "deserialize_nullable")]
        max_active: Option<NonZeroU32>,
    },
}

/// A server to be added. What is not said is as in the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewServer {
    /// Its address.
    pub server: String,
    /// Its share.
    #[serde(default = "default_weight")]
    pub weight: NonZeroU16,
    /// Its own bound on requests in progress; `None` for the upstream's.
    #[serde(default)]
    pub max_active: Option<NonZeroU32>,
    /// Whether it gets requests only when no other server can.
    #[serde(default)]
    pub backup: bool,
}

/// Why a change was not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServerChangeRequestError {
    /// The text does not name a server: 400.
    #[error("{server:?} is no server: expected {expected}")]
    InvalidAddress {
        /// The text.
        server: String,
        /// What would have been one.
        expected: &'static str,
    },
    /// 404.
    #[error("there is no upstream named {0}")]
    UnknownUpstream(String),
    /// 404.
    #[error("upstream {upstream} has no server {server}")]
    UnknownServer {
        /// The upstream.
        upstream: String,
        /// The server that was asked for.
        server: String,
    },
    /// It cannot be, for this reason: 409.
    #[error("{0}")]
    Rejected(String),
}

/// Why a body is no change.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServerChangeParseError {
    #[error("more than {0} bytes")]
    TooLarge(usize),
    #[error("{0}: expected {ExpectedBody}")]
    Malformed(serde_json::Error),
    #[error("not an object: expected {ExpectedBody}")]
    NotAnObject,
}

/// What a right body looks like.
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

/// The longest body: far more than any change needs.
pub(crate) const MAX_BODY_BYTES: usize = 64 * 1024;

/// Reads the whole body.
///
/// # Errors
/// The outer one is the client's (gone, too slow); the inner one says that it is too large.
pub(crate) async fn read_body(
    body: RequestBody,
) -> Result<Result<Vec<u8>, ServerChangeParseError>, Fault> {
    read_body_within(body, MAX_BODY_BYTES).await
}

/// The same of a body that may have `bytes_max`.
pub(crate) async fn read_body_within(
    body: RequestBody,
    bytes_max: usize,
) -> Result<Result<Vec<u8>, ServerChangeParseError>, Fault> {
    let text = body.read_within(bytes_max).await?;
    Ok(text.ok_or(ServerChangeParseError::TooLarge(bytes_max)))
}

/// The change that the text means.
///
/// # Errors
/// What is wrong with it, and what was expected.
pub(crate) fn parse_server_change(
    text: &[u8],
) -> Result<ServerChangeRequest, ServerChangeParseError> {
    // A list of values in the right order would be taken for an object.
    if !text.trim_ascii_start().starts_with(b"{") {
        return Err(ServerChangeParseError::NotAnObject);
    }
    serde_json::from_slice(text).map_err(ServerChangeParseError::Malformed)
}

fn default_weight() -> NonZeroU16 {
    NonZeroU16::MIN
}

/// A value that may be `null` but not left out, as an `Option` by itself may be.
fn deserialize_nullable<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<NonZeroU32>, D::Error> {
    Option::deserialize(from)
}

#[cfg(test)]
mod tests;
