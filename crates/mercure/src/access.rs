//! Authorisation: where tokens are looked for, what their claims allow, and which origins may send
//! them.
//!
//! `subscribe`, `publish` and `subscriptions` check here first.
//!
//! # Invariants
//! - A token that is present and invalid is refused, even where none is needed.
//! - A cookie, which browsers send along for any page, publishes only for pages of the hub's own
//!   host and of listed origins.
//! - No token gets into a log.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use penstock_config::{KeySetSource, MercureKey, MercureKeys, RouteMercure};
use penstock_http::{FieldBlock, RequestHead};
use penstock_hub::{AllowedOrigins, is_same_host};
use penstock_tokens::{SharedKeySet, TokenError, TokenKeys, Verifier};
use serde_json::Value;
use thiserror::Error;

use crate::selector::{SelectorError, SelectorSet, TopicSelector};

/// Where the claims are; the second name is the one for issuers that want a URL (OpenID Connect).
const CLAIM_NAMES: [&str; 2] = ["mercure", "https://mercure.rocks/"];

const COOKIE_NAME: &str = "mercureAuthorization";

/// The keys of a route and what goes without.
#[derive(Debug)]
pub(super) struct MercureAccess {
    publisher_keys: Option<TokenKeys>,
    subscriber_keys: Option<TokenKeys>,
    issuer: Option<Box<str>>,
    audience: Option<Box<str>>,
    allows_anonymous: bool,
    allowed_origins: AllowedOrigins,
}

#[derive(Debug, Default)]
pub(super) struct MercureClaims {
    /// To which topics its bearer may publish; none is not at all.
    pub publish: Option<SelectorSet>,
    /// Of which topics its bearer may see private updates.
    pub subscribe: SelectorSet,
    /// What others learn of its bearer's subscriptions.
    pub payload: Option<Value>,
    /// When it is over, since the epoch.
    pub expires_at: Option<Duration>,
}

/// Why a request is refused. The texts are for the log.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum AccessDenied {
    /// 401.
    #[error("it has no token")]
    NoToken,
    /// 401.
    #[error("the route has no key to check tokens with")]
    NoKey,
    /// 401.
    #[error("{0}")]
    InvalidToken(#[from] TokenError),
    /// 401.
    #[error("the token's claim mercure.{0} is no list of strings")]
    InvalidClaim(&'static str),
    /// 401.
    #[error("in the token's claim mercure.{0}, {1}")]
    InvalidSelector(&'static str, SelectorError),
    /// 403.
    #[error("the token does not allow it")]
    NotAllowed,
    /// 403.
    #[error("a cookie's token counts only for pages of this host and of mercure.origins")]
    ForeignOrigin,
}

impl MercureAccess {
    /// What `settings` say; `set_of` gives the keys of a set, which may still be empty.
    pub(super) fn new(
        settings: &RouteMercure,
        set_of: impl Fn(&KeySetSource) -> Arc<SharedKeySet>,
    ) -> Result<Self, String> {
        let keys = |name: &str, keys: &Option<MercureKeys>| match keys {
            None => Ok(None),
            Some(MercureKeys::Set(source)) => Ok(Some(TokenKeys::Set(set_of(source)))),
            Some(MercureKeys::Single(MercureKey { key, algorithm })) => {
                Verifier::new(key.expose(), algorithm)
                    .map(|verifier| Some(TokenKeys::Single(Arc::new(verifier))))
                    .map_err(|error| format!("mercure.{name}: {error}"))
            }
        };
        let publishers = keys("publisher_key", &settings.publisher_key)?;
        let subscribers = keys("subscriber_key", &settings.subscriber_key)?;
        Ok(Self {
            subscriber_keys: subscribers.or_else(|| publishers.clone()),
            publisher_keys: publishers,
            issuer: settings.issuer.as_deref().map(Box::from),
            audience: settings.audience.as_deref().map(Box::from),
            allows_anonymous: settings.anonymous,
            allowed_origins: AllowedOrigins::new(&settings.origins),
        })
    }

    /// What a subscriber may see; `in_query` is the query's token.
    pub(super) fn authorize_subscriber(
        &self,
        head: &RequestHead,
        in_query: Option<&str>,
    ) -> Result<MercureClaims, AccessDenied> {
        match self.find_token(head, in_query)? {
            None if self.allows_anonymous => Ok(MercureClaims::default()),
            None => Err(AccessDenied::NoToken),
            Some(token) => self.read_claims(self.subscriber_keys.as_ref(), &token),
        }
    }

    /// To which topics a publisher may publish; `in_query` is the query's token.
    pub(super) fn authorize_publisher(
        &self,
        head: &RequestHead,
        in_query: Option<&str>,
    ) -> Result<SelectorSet, AccessDenied> {
        let token = self
            .find_token(head, in_query)?
            .ok_or(AccessDenied::NoToken)?;
        let claims = self.read_claims(self.publisher_keys.as_ref(), &token)?;
        claims.publish.ok_or(AccessDenied::NotAllowed)
    }

    /// The token of a request: the header's, else the query's, else the cookie's.
    fn find_token<'a>(
        &self,
        head: &'a RequestHead,
        in_query: Option<&'a str>,
    ) -> Result<Option<Cow<'a, str>>, AccessDenied> {
        if let Some(token) = head.field_values("authorization").find_map(bearer_token) {
            return Ok(Some(token));
        }
        if let Some(token) = in_query {
            return Ok(Some(token.into()));
        }
        let Some(token) = head.field_values("cookie").find_map(cookie_token) else {
            return Ok(None);
        };
        if !head.method().is_safe() && !is_cookie_allowed(&self.allowed_origins, head) {
            return Err(AccessDenied::ForeignOrigin);
        }
        Ok(Some(token))
    }

    fn read_claims(
        &self,
        keys: Option<&TokenKeys>,
        token: &str,
    ) -> Result<MercureClaims, AccessDenied> {
        let token = keys.ok_or(AccessDenied::NoKey)?.verify(token)?;
        if let Some(issuer) = &self.issuer
            && token.get("iss").and_then(Value::as_str) != Some(issuer)
        {
            return Err(TokenError::WrongIssuer(issuer.to_string()).into());
        }
        if let Some(audience) = &self.audience
            && !token.get("aud").is_some_and(|claim| names(claim, audience))
        {
            return Err(TokenError::WrongAudience(audience.to_string()).into());
        }
        parse_claims(token)
    }

    /// Adds what lets a page of another origin read the answer (Fetch, "HTTP extensions").
    pub(super) fn add_cors_headers(&self, head: &RequestHead, fields: &mut FieldBlock) {
        self.allowed_origins
            .add_cors_headers(head, "GET, HEAD, POST", fields);
    }
}

impl MercureClaims {
    /// How long a stream may last that such a token opened at `now`, since the epoch.
    pub(super) fn remaining_lifetime(&self, now: Duration) -> Option<Duration> {
        self.expires_at.map(|expires| expires.saturating_sub(now))
    }
}

/// Whether the page that sent a request may use a cookie's token to change something. The page
/// learns by `Origin`, in older browsers by `Referer`.
fn is_cookie_allowed(origins: &AllowedOrigins, head: &RequestHead) -> bool {
    let origin = head.field("origin");
    let Some(origin) = origin.or_else(|| head.field("referer").and_then(origin_of)) else {
        return false;
    };
    origins.is_listed(origin) || is_same_host(origin, head.host())
}

/// The origin of a URL: all before its path.
fn origin_of(url: &[u8]) -> Option<&[u8]> {
    let authority = url.windows(3).position(|three| three == b"://")? + 3;
    let end = url[authority..]
        .iter()
        .position(|byte| matches!(byte, b'/' | b'?' | b'#'));
    Some(&url[..end.map_or(url.len(), |end| authority + end)])
}

/// RFC 6750 §2.1. Another scheme is not for this hub.
fn bearer_token(value: &[u8]) -> Option<Cow<'_, str>> {
    let space = value.iter().position(|byte| *byte == b' ');
    let (scheme, token) = value.split_at(space.unwrap_or(value.len()));
    scheme
        .eq_ignore_ascii_case(b"Bearer")
        .then(|| String::from_utf8_lossy(token.trim_ascii()))
}

fn cookie_token(value: &[u8]) -> Option<Cow<'_, str>> {
    value
        .split(|byte| *byte == b';')
        .find_map(|pair| {
            let pair = pair.trim_ascii();
            pair.strip_prefix(COOKIE_NAME.as_bytes())?
                .strip_prefix(b"=")
        })
        .map(String::from_utf8_lossy)
}

/// Whether an audience (RFC 7519 §4.1.3), a text or several, has this name.
fn names(audience: &Value, name: &str) -> bool {
    let is_it = |text: &Value| text.as_str() == Some(name);
    is_it(audience) || audience.as_array().is_some_and(|all| all.iter().any(is_it))
}

fn parse_claims(mut token: Value) -> Result<MercureClaims, AccessDenied> {
    let expires = token.get("exp").and_then(Value::as_f64);
    let mercure = CLAIM_NAMES
        .iter()
        .find_map(|name| match token.get_mut(*name) {
            None | Some(Value::Null) => None,
            Some(claims) => Some(claims.take()),
        });
    let mut mercure = mercure.unwrap_or_default();
    Ok(MercureClaims {
        publish: read_selectors(&mercure, "publish")?,
        subscribe: read_selectors(&mercure, "subscribe")?.unwrap_or_default(),
        payload: mercure.get_mut("payload").map(Value::take),
        expires_at: expires.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
    })
}

fn read_selectors(
    mercure: &Value,
    name: &'static str,
) -> Result<Option<SelectorSet>, AccessDenied> {
    let list = match mercure.get(name) {
        None | Some(Value::Null) => return Ok(None),
        Some(list) => list.as_array().ok_or(AccessDenied::InvalidClaim(name))?,
    };
    let selectors: Result<Vec<TopicSelector>, AccessDenied> = list
        .iter()
        .map(|text| {
            let text = text.as_str().ok_or(AccessDenied::InvalidClaim(name))?;
            TopicSelector::new(text).map_err(|error| AccessDenied::InvalidSelector(name, error))
        })
        .collect();
    Ok(Some(SelectorSet::new(selectors?)))
}

#[cfg(test)]
mod tests;
