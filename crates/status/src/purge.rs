//! Parses the JSON of `POST /cache/purge`.
//!
//! # Invariants
//! - A request names exactly one of `url`, `prefix`, `tag` and `all`; an empty text is refused.

use std::fmt;

use penstock_cache::PurgeTarget;
use serde::Deserialize;

/// A purge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PurgeRequest {
    /// The objects.
    pub target: PurgeTarget,
    /// The name of the cache; `None` for all caches.
    pub cache: Option<String>,
}

/// Why nothing was purged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PurgeError {
    /// 404.
    #[error("there is no cache named {0}")]
    UnknownCache(String),
    /// The purge cannot be done now: 503.
    #[error("{0}")]
    Rejected(String),
}

/// Why a body was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PurgeParseError {
    #[error("{0}: expected {ExpectedBody}")]
    Malformed(serde_json::Error),
    #[error("not an object: expected {ExpectedBody}")]
    NotAnObject,
    #[error("{0} of url, prefix, tag and all: expected {ExpectedBody}")]
    NotExactlyOne(usize),
    #[error("all is false: expected {ExpectedBody}")]
    AllIsFalse,
    #[error("{0} is empty: expected {ExpectedBody}")]
    Empty(&'static str),
    #[error("{text:?} is no {key}: expected one that begins with http://, https:// or /")]
    InvalidUrl { key: &'static str, text: String },
}

/// The form of a valid body.
struct ExpectedBody;

impl fmt::Display for ExpectedBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "an object with one of url, prefix, tag (texts) and all (true), such as \
             {\"url\": \"https://example.com/news\"}; cache (the name of one) may be with it",
        )
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PurgeBody {
    url: Option<String>,
    prefix: Option<String>,
    tag: Option<String>,
    all: Option<bool>,
    cache: Option<String>,
}

/// Parses a body.
///
/// # Errors
/// The mistake, and the expected form.
pub(crate) fn parse_purge(text: &[u8]) -> Result<PurgeRequest, PurgeParseError> {
    // serde would accept an array of the values.
    if !text.trim_ascii_start().starts_with(b"{") {
        return Err(PurgeParseError::NotAnObject);
    }
    let raw: PurgeBody = serde_json::from_slice(text).map_err(PurgeParseError::Malformed)?;
    let cache = match raw.cache {
        Some(name) => Some(check_not_empty("cache", name)?),
        None => None,
    };
    let what = match (raw.url, raw.prefix, raw.tag, raw.all) {
        (Some(url), None, None, None) => PurgeTarget::Url(check_url("url", url)?),
        (None, Some(prefix), None, None) => PurgeTarget::Prefix(check_url("prefix", prefix)?),
        (None, None, Some(tag), None) => PurgeTarget::Tag(check_not_empty("tag", tag)?),
        (None, None, None, Some(true)) => PurgeTarget::All,
        (None, None, None, Some(false)) => return Err(PurgeParseError::AllIsFalse),
        (url, prefix, tag, all) => {
            let texts = [url, prefix, tag];
            let said = texts.iter().flatten().count() + usize::from(all.is_some());
            return Err(PurgeParseError::NotExactlyOne(said));
        }
    };
    Ok(PurgeRequest {
        target: what,
        cache,
    })
}

/// Refuses an empty text: an empty prefix would match everything.
fn check_not_empty(key: &'static str, text: String) -> Result<String, PurgeParseError> {
    match text.trim().is_empty() {
        true => Err(PurgeParseError::Empty(key)),
        false => Ok(text),
    }
}

/// Refuses a text that cannot begin a URL.
fn check_url(key: &'static str, text: String) -> Result<String, PurgeParseError> {
    let text = check_not_empty(key, text)?;
    let is_url = ["/", "http://", "https://"]
        .iter()
        .any(|begin| text.starts_with(begin));
    match is_url {
        true => Ok(text),
        false => Err(PurgeParseError::InvalidUrl { key, text }),
    }
}

#[cfg(test)]
mod tests;
