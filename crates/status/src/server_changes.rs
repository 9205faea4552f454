//! Parses the JSON of `POST /upstreams/NAME/servers`.
//!
//! # Invariants
//! - A body is accepted as a whole or refused with the expected form. A key that an action does not
//!   have is refused.

use std::fmt::Display;
use std::num::{NonZeroU16, NonZeroU32};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

use crate::ChangeError;

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

const BODY_EXPECTED: &str = "an object such as {\"action\": \"drain\", \"server\": \
     \"127.0.0.1:3000\"}; the actions are add (may have weight, max_active, backup), remove, drain, \
     disable, enable, weight (with weight), max_active (with max_active)";

/// Parses a body.
///
/// # Errors
/// The mistake, and the expected form.
pub(crate) fn parse_server_change(text: &[u8]) -> Result<ServerChangeRequest, ChangeError> {
    parse_object(text, BODY_EXPECTED)
}

/// Parses a JSON object; an error ends with the `expected` form.
pub(crate) fn parse_object<T: DeserializeOwned>(
    text: &[u8],
    expected: &str,
) -> Result<T, ChangeError> {
    let refuse =
        |cause: &dyn Display| ChangeError::bad_request(format!("{cause}: expected {expected}"));
    // serde would accept an array of the values.
    if !text.trim_ascii_start().starts_with(b"{") {
        return Err(refuse(&"not an object"));
    }
    serde_json::from_slice(text).map_err(|error| refuse(&error))
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
