//! What a write makes worthless (RFC 9111 §4.4).
//!
//! `cache` asks when a handler answered a request that went past it, and drops what is stored under
//! the targets, all variants and both methods.
//!
//! What must stay true: no response can drop anything of another origin, or any site could empty
//! the cache of its neighbours.

use std::str;

use crate::{FieldBlock, Method, RequestHead, Status, authority::Authority};

/// Whether a response of that status means that stored responses are no longer true: it is no
/// error, and the method is not known to be safe.
#[must_use]
pub const fn invalidates_stored(method: Method, status: Status) -> bool {
    let is_done = status.code() >= 200 && status.code() < 400;
    // CONNECT has no resource: its target is an authority.
    is_done && !method.is_safe() && !matches!(method, Method::Connect)
}

/// The targets that [`invalidates_stored`] is about, in origin form: that of the request, and what
/// `Location` and `Content-Location` name of the same origin. `scheme` is that of the request,
/// `http` or `https`. `other_host` is a second authority of this origin, as a proxy has told it.
/// Dot segments and percent-encoding are as written: the caller normalises these
/// as it does the targets of requests.
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

/// What references are relative to (RFC 3986 §5.1).
struct BaseUri<'a> {
    scheme: &'a str,
    host: &'a str,
    other_host: Option<&'a str>,
    path_query: &'a str,
}

impl BaseUri<'_> {
    /// Path and query of a reference; `None` when it leads to another origin (RFC 9110 §4.3.1).
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

/// What is before the first colon, when it is a scheme (RFC 3986 §3.1), and what is behind.
fn split_scheme(reference: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = reference.split_once(':')?;
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
    is_scheme.then_some((scheme, rest))
}
