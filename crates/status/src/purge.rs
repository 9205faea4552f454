//! What somebody wants taken out of the caches: the JSON of `POST /cache/purge`.
//!
//! `api` hands the body here and the wish that comes out to the [`crate::AdminOperations`], which knows caches;
//! this file knows none. What must stay true: exactly one of `url`, `prefix`, `tag` and `all` is said, and
//! all of them only in so many words; a wish that would match more than it says is refused.

use std::fmt;

use serde::Deserialize;

/// What is to be purged, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PurgeRequest {
    /// Which objects.
    pub selector: PurgeSelector,
    /// The name of the cache; `None` is all of them.
    pub cache: Option<String>,
}

/// Which objects are to be purged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PurgeSelector {
    /// All variants of this URL: with scheme and host, or from the path on for every host.
    Url(String),
    /// Every URL that begins so.
    Prefix(String),
    /// Every response that bore this tag.
    Tag(String),
    /// Everything.
    All,
}

/// Why nothing was purged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PurgeError {
    /// 404.
    #[error("there is no cache named {0}")]
    UnknownCache(String),
    /// It cannot be done now, for this reason: 503.
    #[error("{0}")]
    Rejected(String),
}

/// Why a body is no purge.
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

/// What a right body looks like.
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

/// The purge that the text means.
///
/// # Errors
/// What is wrong with it, and what was expected.
pub(crate) fn parse_purge(text: &[u8]) -> Result<PurgeRequest, PurgeParseError> {
    // A list of values in the right order would be taken for an object.
    if !text.trim_ascii_start().starts_with(b"{") {
        return Err(PurgeParseError::NotAnObject);
    }
    let raw: PurgeBody = serde_json::from_slice(text).map_err(PurgeParseError::Malformed)?;
    let cache = match raw.cache {
        Some(name) => Some(check_not_empty("cache", name)?),
        None => None,
    };
    let what = match (raw.url, raw.prefix, raw.tag, raw.all) {
        (Some(url), None, None, None) => PurgeSelector::Url(check_url("url", url)?),
        (None, Some(prefix), None, None) => PurgeSelector::Prefix(check_url("prefix", prefix)?),
        (None, None, Some(tag), None) => PurgeSelector::Tag(check_not_empty("tag", tag)?),
        (None, None, None, Some(true)) => PurgeSelector::All,
        (None, None, None, Some(false)) => return Err(PurgeParseError::AllIsFalse),
        (url, prefix, tag, all) => {
            let texts = [url, prefix, tag];
            let said = texts.iter().flatten().count() + usize::from(all.is_some());
            return Err(PurgeParseError::NotExactlyOne(said));
        }
    };
    Ok(PurgeRequest {
        selector: what,
        cache,
    })
}

/// A text that is not empty: an empty prefix would be everything.
fn check_not_empty(key: &'static str, text: String) -> Result<String, PurgeParseError> {
    match text.trim().is_empty() {
        true => Err(PurgeParseError::Empty(key)),
        false => Ok(text),
    }
}

/// A URL, or the beginning of one.
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
