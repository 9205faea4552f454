//! Parses the JSON of `POST /cache/purge`.
//!
//! # Invariants
//! - A request names exactly one of `url`, `prefix`, `tag` and `all`; an empty text is refused.

use penstock_cache::PurgeTarget;
use serde::Deserialize;

use crate::ChangeError;
use crate::server_changes::parse_object;

/// A purge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PurgeRequest {
    /// The objects.
    pub target: PurgeTarget,
    /// The name of the cache; `None` for all caches.
    pub cache: Option<String>,
}

const BODY_EXPECTED: &str = "an object with one of url, prefix, tag (texts) and all (true), such as \
     {\"url\": \"https://example.com/news\"}; cache (the name of one) may be with it";

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
pub(crate) fn parse_purge(text: &[u8]) -> Result<PurgeRequest, ChangeError> {
    let raw: PurgeBody = parse_object(text, BODY_EXPECTED)?;
    let cache = raw.cache.map(|name| check_not_empty("cache", name));
    let target = match (raw.url, raw.prefix, raw.tag, raw.all) {
        (Some(url), None, None, None) => PurgeTarget::Url(check_url("url", url)?),
        (None, Some(prefix), None, None) => PurgeTarget::Prefix(check_url("prefix", prefix)?),
        (None, None, Some(tag), None) => PurgeTarget::Tag(check_not_empty("tag", tag)?),
        (None, None, None, Some(true)) => PurgeTarget::All,
        (None, None, None, Some(false)) => return Err(refuse("all is false")),
        (url, prefix, tag, all) => {
            let texts = [url, prefix, tag];
            let target_count = texts.iter().flatten().count() + usize::from(all.is_some());
            return Err(refuse(&format!(
                "{target_count} of url, prefix, tag and all"
            )));
        }
    };
    let cache = cache.transpose()?;
    Ok(PurgeRequest { target, cache })
}

fn refuse(cause: &str) -> ChangeError {
    ChangeError::bad_request(format!("{cause}: expected {BODY_EXPECTED}"))
}

/// Refuses an empty text: an empty prefix would match everything.
fn check_not_empty(key: &str, text: String) -> Result<String, ChangeError> {
    match text.trim().is_empty() {
        true => Err(refuse(&format!("{key} is empty"))),
        false => Ok(text),
    }
}

/// Refuses a text that cannot begin a URL.
fn check_url(key: &str, text: String) -> Result<String, ChangeError> {
    let text = check_not_empty(key, text)?;
    let is_url = ["/", "http://", "https://"]
        .iter()
        .any(|begin| text.starts_with(begin));
    match is_url {
        true => Ok(text),
        false => Err(ChangeError::bad_request(format!(
            "{text:?} is no {key}: expected one that begins with http://, https:// or /"
        ))),
    }
}

#[cfg(test)]
mod tests;
