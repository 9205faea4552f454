//! A route's compiled cache rules: which requests may use the cache, and under which key.
//!
//! `handler` calls [`RouteRules::classify_request`], then [`RouteRules::write_key`]. `fetch` sends
//! only what the key contains ([`RouteRules::push_target`], [`push_host`]). Pure functions of the
//! request.
//!
//! # Invariants
//!
//! - Two requests share a key only if the back end gets the same request for both, apart from
//!   fields named by its `Vary`.
//! - Whatever else could change the response is in the key, is not sent, or makes the request
//!   bypass the cache.

use penstock_config::{QueryKey, RouteCache};
use penstock_exchange::field_policy::{
    FieldClass, classify_field, is_client_address_field, is_forwarding_field,
};
use penstock_exchange::{ForwardedInfo, Mount};
use penstock_http::caching::{
    BypassReason, CacheEligibility, CachePolicy, ForwardReason, RequestDirectives,
    cache_eligibility,
};
use penstock_http::{FieldBlock, RequestHead};

#[derive(Debug)]
pub(crate) struct RouteRules {
    /// Lifetimes of responses that do not set their own.
    pub(crate) policy: CachePolicy,
    /// With the names of its key's headers in lower case.
    pub(crate) config: RouteCache,
    scope: String,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct KeySource<'a> {
    pub(crate) head: &'a RequestHead,
    /// The scheme that the client used.
    pub(crate) scheme: &'a str,
    /// Whether the peer is a trusted proxy.
    pub(crate) is_from_trusted_proxy: bool,
    /// The accepted statements of proxies and of the route's rules about the request. `None` for
    /// nearly all requests.
    pub(crate) forwarded: Option<&'a ForwardedInfo>,
    /// The prefix stripped from the path.
    pub(crate) mount: &'a Mount,
}

/// How the cache treats a request.
#[derive(Debug)]
pub(crate) enum CacheDecision {
    /// The request goes to the back end, and nothing is stored.
    Bypass(ForwardReason, &'static str),
    /// The request may be answered from the store.
    Lookup(LookupOptions),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct LookupOptions {
    /// Whether the response may be stored.
    pub(crate) may_store: bool,
    pub(crate) directives: RequestDirectives,
}

/// Fields with which frameworks let a client override a request's method or host, and which pass
/// every front end. Their effect is in no key (cache poisoning by method override, host header
/// injection).
const OVERRIDE_FIELDS: [&str; 6] = [
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
    "x-host",
    "x-original-host",
    "x-http-host-override",
];

impl RouteRules {
    /// Compiles rules; `scope` separates this route's keys from other routes'.
    pub(crate) fn new(config: &RouteCache, scope: &str) -> Self {
        let mut config = config.clone();
        (config.key.headers.iter_mut()).for_each(|name| name.make_ascii_lowercase());
        Self {
            policy: CachePolicy {
                default_ttl: config.default_ttl,
                has_known_cookies: config.has_known_cookies,
                heuristic_freshness: config.heuristic_freshness,
                ttl_by_status: config.ttl_by_status.clone(),
                max_ttl: config.max_ttl,
                stale_while_revalidate: config.stale_while_revalidate,
                stale_if_error: config.stale_if_error,
            },
            config,
            scope: scope.replace('\0', " "),
        }
    }

    /// Decides how the cache treats a request with this head.
    pub(crate) fn classify_request(&self, head: &RequestHead) -> CacheDecision {
        let may_store = match cache_eligibility(head) {
            CacheEligibility::Bypass(reason) => {
                let fwd = match reason {
                    BypassReason::Method => ForwardReason::Method,
                    _ => ForwardReason::Bypass,
                };
                return CacheDecision::Bypass(fwd, reason.as_str());
            }
            CacheEligibility::Cache { may_store, .. } => may_store,
        };
        if !head.target_path_query().starts_with('/') {
            return CacheDecision::Bypass(ForwardReason::Bypass, "target");
        }
        for (name, _) in head.fields() {
            if is_override_field(name) {
                return CacheDecision::Bypass(ForwardReason::Bypass, "override");
            }
            let mut headers = self.config.bypass.headers.iter();
            if headers.any(|header| header.eq_ignore_ascii_case(name)) {
                return CacheDecision::Bypass(ForwardReason::Bypass, "header");
            }
        }
        let bypass = &self.config.bypass.cookies;
        if !bypass.is_empty() && head.cookies().any(|(found, _)| matches_any(bypass, found)) {
            return CacheDecision::Bypass(ForwardReason::Bypass, "cookie");
        }
        CacheDecision::Lookup(LookupOptions {
            may_store,
            directives: RequestDirectives::from_request(head),
        })
    }

    /// Whether the route's bypass rules let an otherwise plain request use the cache.
    pub(crate) fn allows_plain_request(&self, head: &RequestHead) -> bool {
        let is_free =
            self.config.bypass.headers.is_empty() && self.config.bypass.cookies.is_empty();
        is_free || matches!(self.classify_request(head), CacheDecision::Lookup(_))
    }

    /// Writes the key text of a request's own target.
    pub(crate) fn write_key(&self, key_source: &KeySource<'_>, out: &mut Vec<u8>) {
        self.write_key_for(key_source, key_source.head.target_path_query(), out);
    }

    /// Writes the key text of `target` (in origin form) as requested by `key_source`:
    /// `scheme://host/path?query`, then for each further part a NUL byte and the part.
    pub(crate) fn write_key_for(
        &self,
        key_source: &KeySource<'_>,
        target: &str,
        out: &mut Vec<u8>,
    ) {
        self.write_url_for(key_source, target, out);
        let mut part = |kind: &[u8], name: &[u8], value: Option<&[u8]>| {
            out.push(0);
            out.extend_from_slice(kind);
            out.extend_from_slice(name);
            if let Some(value) = value {
                out.push(b'=');
                out.extend_from_slice(value);
            }
        };
        if !self.scope.is_empty() {
            part(b"route ", self.scope.as_bytes(), None);
        }
        let head = key_source.head;
        for name in &self.config.key.headers {
            part(
                b"header ",
                name.as_bytes(),
                joined_values(head, name).as_deref(),
            );
        }
        for name in &self.config.key.cookies {
            for (found, value) in head.cookies() {
                if matches_pattern(name, found) {
                    part(b"cookie ", found, Some(value));
                }
            }
        }
        // Applications build links and redirects from it.
        if !key_source.mount.is_root() {
            part(b"mount ", key_source.mount.path().as_bytes(), None);
        }
        if let Some(host) = key_source.forwarded_host() {
            let host = host.to_ascii_lowercase();
            part(b"host ", host.as_bytes(), None);
        }
        if let Some(port) = key_source.forwarded_port() {
            part(b"port ", port.to_string().as_bytes(), None);
        }
        if !key_source.is_from_trusted_proxy {
            return;
        }
        for (name, value) in head.fields() {
            if is_forwarded_proxy_field(name) {
                part(b"", name.to_ascii_lowercase().as_bytes(), Some(value));
            }
        }
    }

    /// Writes the part of the key that purges match: `scheme://host/path?query`.
    pub(crate) fn write_url_for(
        &self,
        key_source: &KeySource<'_>,
        target: &str,
        out: &mut Vec<u8>,
    ) {
        out.extend_from_slice(key_source.scheme.as_bytes());
        out.extend_from_slice(b"://");
        if self.config.key.host {
            push_host(key_source, out);
        }
        self.push_target(target, out);
    }

    /// Whether keys of one target may differ in more than the URL.
    pub(crate) fn has_extra_key_parts(&self, key_source: &KeySource<'_>) -> bool {
        !self.config.key.headers.is_empty()
            || !self.config.key.cookies.is_empty()
            || key_source.forwarded_host().is_some()
            || key_source.forwarded_port().is_some()
            || key_source.is_from_trusted_proxy
                && key_source
                    .head
                    .fields()
                    .any(|(name, _)| is_forwarded_proxy_field(name))
    }

    /// Writes the part of `target` that is in the key; the back end gets the same.
    pub(crate) fn push_target(&self, target: &str, out: &mut Vec<u8>) {
        if matches!(self.config.key.query, QueryKey::All) {
            out.extend_from_slice(target.as_bytes());
            return;
        }
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        out.extend_from_slice(path.as_bytes());
        let mut separator = b'?';
        for parameter in query.split('&') {
            if self.keeps_parameter(parameter) {
                out.push(separator);
                out.extend_from_slice(parameter.as_bytes());
                separator = b'&';
            }
        }
    }

    pub(crate) fn tags_of(&self, fields: &FieldBlock) -> Vec<String> {
        let is_tags =
            |name: &str| (self.config.tags.iter()).any(|tags| tags.eq_ignore_ascii_case(name));
        let mut found = Vec::new();
        for (_, value) in fields.iter().filter(|(name, _)| is_tags(name)) {
            // `Surrogate-Key` separates tags by blanks, `Cache-Tag` by commas.
            let tags = value.split(|byte| matches!(byte, b' ' | b'\t' | b','));
            let tags = tags.filter(|tag| !tag.is_empty());
            found.extend(tags.map(|tag| String::from_utf8_lossy(tag).into_owned()));
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Removes the tag fields, which clients do not get.
    pub(crate) fn remove_tag_fields(&self, fields: &mut FieldBlock) {
        for name in &self.config.tags {
            fields.remove(name);
        }
    }

    fn keeps_parameter(&self, parameter: &str) -> bool {
        let name = parameter.split('=').next().unwrap_or_default().as_bytes();
        match &self.config.key.query {
            QueryKey::All => true,
            QueryKey::None => false,
            QueryKey::Only(names) => matches_any(names, name),
            QueryKey::AllExcept(names) => !name.is_empty() && !matches_any(names, name),
        }
    }
}

impl<'a> KeySource<'a> {
    /// The host set by a proxy or a rule, if it differs from the URL's.
    pub(crate) fn forwarded_host(&self) -> Option<&'a str> {
        let host = self.forwarded?.host.as_deref()?;
        (!host.eq_ignore_ascii_case(self.head.host())).then_some(host)
    }

    fn forwarded_port(&self) -> Option<u16> {
        self.forwarded?.port
    }
}

/// Whether a trusted proxy's field reaches the back end unchanged and may change the response for
/// others. Fields about the client's address do not count. The accepted content of the other
/// forwarding fields is in the key already.
fn is_forwarded_proxy_field(name: &str) -> bool {
    is_forwarding_field(name)
        && classify_field(name) == FieldClass::EndToEnd
        && !is_client_address_field(name)
}

/// Writes the host as it is in the key and as the back end gets it: in lower case, without the
/// default port of its scheme.
pub(crate) fn push_host(key_source: &KeySource<'_>, out: &mut Vec<u8>) {
    let host = key_source.head.host();
    let port = match key_source.scheme {
        "https" => ":443",
        _ => ":80",
    };
    let host = host.strip_suffix(port).unwrap_or(host);
    let start = out.len();
    out.extend_from_slice(host.as_bytes());
    out[start..].make_ascii_lowercase();
}

/// Whether a field may override the method or host without being in the key.
pub(crate) fn is_override_field(name: &str) -> bool {
    name.starts_with(['x', 'X'])
        && OVERRIDE_FIELDS
            .iter()
            .any(|over| over.eq_ignore_ascii_case(name))
}

/// All values of a field joined by commas; `None` if it is absent.
fn joined_values(head: &RequestHead, name: &str) -> Option<Vec<u8>> {
    let mut values = head.field_values(name);
    let mut all = values.next()?.to_vec();
    for value in values {
        all.push(b',');
        all.extend_from_slice(value);
    }
    Some(all)
}

fn matches_any(patterns: &[String], name: &[u8]) -> bool {
    (patterns.iter()).any(|pattern| matches_pattern(pattern, name))
}

/// Whether `name` equals the pattern, or begins with it if the pattern ends with a star.
fn matches_pattern(pattern: &str, name: &[u8]) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start.as_bytes()),
        None => name == pattern.as_bytes(),
    }
}

#[cfg(test)]
mod tests;
