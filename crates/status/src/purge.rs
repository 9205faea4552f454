//! What somebody wants taken out of the caches: the JSON of `POST /cache/purge`.
//!
//! `api` hands the body here and the wish that comes out to the [`crate::Source`], which knows caches;
//! this file knows none. What must stay true: exactly one of `url`, `prefix`, `tag` and `all` is said, and
//! all of them only in so many words; a wish that would match more than it says is refused.

use std::fmt;

use serde::Deserialize;

/// What is to be purged, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PurgeRequest {
    /// Which objects.
    pub what: PurgeWhat,
    /// The name of the cache; `None` is all of them.
    pub cache: Option<String>,
}

/// Which objects are to be purged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PurgeWhat {
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
    Refused(String),
}

/// Why a body is no purge.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadPurge {
    #[error("{0}: expected {Expected}")]
    Malformed(serde_json::Error),
    #[error("not an object: expected {Expected}")]
    NotAnObject,
    #[error("{0} of url, prefix, tag and all: expected {Expected}")]
    NotOne(usize),
    #[error("all is false: expected {Expected}")]
    NotAll,
    #[error("{0} is empty: expected {Expected}")]
    Empty(&'static str),
    #[error("{text:?} is no {key}: expected one that begins with http://, https:// or /")]
    NotAUrl { key: &'static str, text: String },
}

/// What a right body looks like.
struct Expected;

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "an object with one of url, prefix, tag (texts) and all (true), such as \
             {\"url\": \"https://example.com/news\"}; cache (the name of one) may be with it",
        )
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
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
pub(crate) fn parse(text: &[u8]) -> Result<PurgeRequest, BadPurge> {
    // A list of values in the right order would be taken for an object.
    if !text.trim_ascii_start().starts_with(b"{") {
        return Err(BadPurge::NotAnObject);
    }
    let raw: Raw = serde_json::from_slice(text).map_err(BadPurge::Malformed)?;
    let cache = match raw.cache {
        Some(name) => Some(filled("cache", name)?),
        None => None,
    };
    let what = match (raw.url, raw.prefix, raw.tag, raw.all) {
        (Some(url), None, None, None) => PurgeWhat::Url(address("url", url)?),
        (None, Some(prefix), None, None) => PurgeWhat::Prefix(address("prefix", prefix)?),
        (None, None, Some(tag), None) => PurgeWhat::Tag(filled("tag", tag)?),
        (None, None, None, Some(true)) => PurgeWhat::All,
        (None, None, None, Some(false)) => return Err(BadPurge::NotAll),
        (url, prefix, tag, all) => {
            let texts = [url, prefix, tag];
            let said = texts.iter().flatten().count() + usize::from(all.is_some());
            return Err(BadPurge::NotOne(said));
        }
    };
    Ok(PurgeRequest { what, cache })
}

/// A text that is not empty: an empty prefix would be everything.
fn filled(key: &'static str, text: String) -> Result<String, BadPurge> {
    match text.trim().is_empty() {
        true => Err(BadPurge::Empty(key)),
        false => Ok(text),
    }
}

/// A URL, or the beginning of one.
fn address(key: &'static str, text: String) -> Result<String, BadPurge> {
    let text = filled(key, text)?;
    let is_url = ["/", "http://", "https://"]
        .iter()
        .any(|begin| text.starts_with(begin));
    match is_url {
        true => Ok(text),
        false => Err(BadPurge::NotAUrl { key, text }),
    }
}

#[cfg(test)]
mod tests;
