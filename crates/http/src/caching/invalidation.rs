//! Targets to invalidate after a write (RFC 9111 §4.4).
//!
//! `cache` calls this for responses to bypassed requests, and removes the objects stored under
//! these targets: all variants and both methods.
//!
//! # Invariants
//!
//! - A response never invalidates a target of another origin. Otherwise any site could empty its
//!   neighbours' cache.

use std::str;

use crate::{FieldBlock, Method, RequestHead, Status, authority::Authority};

/// Whether a response of that status invalidates stored responses: it is no error, and the method
/// is not known to be safe.
#[must_use]
pub const fn invalidates_stored(method: Method, status: Status) -> bool {
    let is_done = status.code() >= 200 && status.code() < 400;
    // CONNECT has no resource: its target is an authority.
    is_done && !method.is_safe() && !matches!(method, Method::Connect)
}

/// The targets that [`invalidates_stored`] concerns, in origin form: the request's own, and those
/// of `Location` and `Content-Location` on the same origin. `scheme` is the request's, `http` or
/// `https`. `other_host` is a second authority of this origin, as forwarded by a proxy. Dot
/// segments and percent-encoding are unchanged: the caller normalises them like the targets of
/// requests.
#[must_use]
pub fn invalidated_targets(
    request: &RequestHead,
    scheme: &str,
    other_host: Option<&str>,
    fields: &FieldBlock,
) -> Vec<String> {
    let base = BaseUri {
        scheme,
        host: request.host(),
        other_host,
        path_query: request.target_path_query(),
    };
    let mut targets = Vec::new();
    if base.path_query.starts_with('/') {
        targets.push(base.path_query.to_owned());
    }
    for name in ["location", "content-location"] {
        let value = fields
            .get(name)
            .filter(|v| v.iter().all(u8::is_ascii_graphic));
        let reference = value.and_then(|value| str::from_utf8(value).ok());
        if let Some(target) = reference.and_then(|reference| base.resolve(reference))
            && !targets.contains(&target)
        {
            targets.push(target);
        }
    }
    targets
}

/// The base of relative references (RFC 3986 §5.1).
struct BaseUri<'a> {
    scheme: &'a str,
    host: &'a str,
    other_host: Option<&'a str>,
    path_query: &'a str,
}

impl BaseUri<'_> {
    /// Path and query of a reference. `None` if it leads to another origin (RFC 9110 §4.3.1).
    fn resolve(&self, reference: &str) -> Option<String> {
        let reference = reference.split('#').next().unwrap_or_default();
        let reference = match split_scheme(reference) {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case(self.scheme) => {
                rest.starts_with("//").then_some(rest)?
            }
            Some(_) => return None,
            None => reference,
        };
        if let Some(rest) = reference.strip_prefix("//") {
            let end = rest.find(['/', '?']).unwrap_or(rest.len());
            let (authority, rest) = rest.split_at(end);
            let slash = if rest.starts_with('/') { "" } else { "/" };
            return self
                .is_same_origin(authority)
                .then(|| format!("{slash}{rest}"));
        }
        let path = self.path_query.split('?').next().unwrap_or_default();
        if !path.starts_with('/') {
            return None;
        }
        Some(match reference.as_bytes() {
            [] => self.path_query.to_owned(),
            [b'/', ..] => reference.to_owned(),
            [b'?', ..] => format!("{path}{reference}"),
            _ => format!("{}{reference}", &path[..=path.rfind('/')?]),
        })
    }

    fn is_same_origin(&self, authority: &str) -> bool {
        let default_port = match self.scheme {
            "https" => Some(443),
            _ => Some(80),
        };
        let Some(authority) = Authority::parse(authority.as_bytes()) else {
            return false;
        };
        let own = [Some(self.host), self.other_host].into_iter().flatten();
        let mut own = own.filter_map(|host| Authority::parse(host.as_bytes()));
        own.any(|own| own.is_same(&authority, default_port))
    }
}

/// Splits at the first colon, if a scheme precedes it (RFC 3986 §3.1).
fn split_scheme(reference: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = reference.split_once(':')?;
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
    is_scheme.then_some((scheme, rest))
}
