//! The changes that a route makes to requests before its handlers get them, and to responses before
//! the client does: paths and header fields.
//!
//! Compiled once by `penstock`'s wiring, applied to each request of a route that has any; other
//! routes pay nothing. Where a prefix was stripped for a server that may not know it,
//! `response_paths` puts it back into the server's responses.
//!
//! # Invariants
//! - No rule changes framing or the connection: the configuration refuses such rules.
//! - A changed request is parsed again by the same strict parser.
//! - The log has what the client sent.
//! - A field that a rule makes trusted never has a value from a client that may not set it.

mod response_paths;

use std::borrow::Cow;
use std::sync::Arc;

use penstock_config::{
    self as config, HeaderRules, PathPattern, PathRegex, Rewrite, Template, TemplatePart,
};
use penstock_exchange::field_policy::{
    FieldClass, TrustedHeaders, classify_field, is_same_cgi_variable,
};
use penstock_exchange::{Fault, FaultKind, ForwardedInfo, Mount, TrustedProxies};
use penstock_http::{FieldBlock, HeadWriter, RequestHead, encode_path, normalise_path};
use penstock_rules::{CorsRule, TemplateValues, render};
use penstock_sys::net::PeerAddress;

use self::response_paths::ResponsePathRewriter;

/// The changes that one route makes, compiled.
#[derive(Debug)]
pub struct Filters {
    path_rewrite: PathRewrite,
    /// Set for a route whose servers do not know the stripped prefix.
    response_path_rewriter: Option<ResponsePathRewriter>,
    request_rules: CompiledHeaderRules,
    response_rules: CompiledHeaderRules,
    trusted_headers: TrustedHeaders,
    cors: Option<CorsRule>,
    /// That of the route's path, for `{re.1}`.
    path_regex: Option<PathRegex>,
}

/// The values of placeholders, always of the request as the client sent it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeaderPlaceholders<'a> {
    pub(crate) head: &'a RequestHead,
    pub(crate) client: PeerAddress,
    pub(crate) host: &'a str,
    pub(crate) scheme: &'static str,
    /// The prefix that proxies in front have stripped from the path.
    pub(crate) outer_mount: Option<&'a Mount>,
    /// The forwarded authority that the handlers got, which the route's rules may change.
    pub(crate) forwarded_host: Option<&'a str>,
}

/// A request's head, as a route's rules make it.
#[derive(Debug)]
pub(crate) struct FilteredRequest {
    pub(crate) head: RequestHead,
    pub(crate) trusted_headers: TrustedHeaders,
    /// The prefix stripped from the path, if the path is unchanged otherwise.
    pub(crate) mount: Mount,
}

#[derive(Debug)]
struct PathRewrite {
    strip: Option<String>,
    /// Percent-encoded where it must be.
    add: String,
    /// The stripped prefix, as handlers get it.
    mount: Mount,
}

#[derive(Debug)]
struct CompiledHeaderRules {
    remove: Vec<String>,
    set: Vec<(String, Template)>,
    add: Vec<(String, Template)>,
}

impl Filters {
    /// Compiles a route's rules, which the configuration has checked; `None` when they change
    /// nothing. With `own_cookies`, the names of Penstock's own cookies, which are for all paths,
    /// the stripped prefix is put back into the paths of responses.
    #[must_use]
    pub fn compile(route: &config::Route, own_cookies: Option<Arc<[String]>>) -> Option<Arc<Self>> {
        let config::Route {
            rewrite,
            request_headers: request,
            response_headers: response,
            cors,
            ..
        } = route;
        let changes_headers = !request.is_empty() || !response.is_empty() || cors.is_some();
        if *rewrite == Rewrite::default() && !changes_headers {
            return None;
        }
        let add = rewrite.add_prefix.as_deref().unwrap_or("");
        let said = request.set.keys().chain(request.add.keys());
        let strip = rewrite.strip_prefix.as_deref();
        let mount = Mount::new(strip.filter(|_| add.is_empty()).unwrap_or(""));
        let paths = own_cookies
            .and_then(|cookies| ResponsePathRewriter::new(strip.unwrap_or(""), add, cookies));
        Some(Arc::new(Self {
            path_rewrite: PathRewrite {
                strip: rewrite.strip_prefix.clone(),
                add: encode_path(add.as_bytes()),
                mount,
            },
            response_path_rewriter: paths,
            request_rules: CompiledHeaderRules::compile(request),
            response_rules: CompiledHeaderRules::compile(response),
            trusted_headers: TrustedHeaders::new(said.cloned()),
            cors: cors.as_ref().map(CorsRule::new),
            path_regex: match &route.path {
                PathPattern::Regex(regex) => Some(regex.clone()),
                _ => None,
            },
        }))
    }

    pub(crate) fn changes_forwarding_fields(&self, trust: &TrustedProxies) -> bool {
        let client_field = trust.client_field();
        self.request_rules.field_names().any(|name| {
            ForwardedInfo::is_forwarded_name(name.as_bytes())
                || client_field.is_some_and(|field| name.eq_ignore_ascii_case(field))
        })
    }

    /// The prefix `told` by proxies, as the rules change it; for responses made before they are
    /// applied.
    pub(crate) fn outer_mount<'m>(&self, told: &'m Mount) -> Cow<'m, Mount> {
        const PREFIX: &str = "x-forwarded-prefix";
        if !self
            .request_rules
            .field_names()
            .any(|name| name.eq_ignore_ascii_case(PREFIX))
        {
            return Cow::Borrowed(told);
        }
        let mut set = self.request_rules.set.iter();
        let set = set.find(|(name, _)| name.eq_ignore_ascii_case(PREFIX));
        let mount = match set.map(|(_, value)| value.parts()) {
            Some([TemplatePart::Text(text)]) => Mount::parse(text),
            // Removed, added to, or made of the request: unknown here.
            _ => None,
        };
        Cow::Owned(mount.unwrap_or_default())
    }

    /// The head that the handlers get; `None` when it is `head` itself. `trust` is set if the
    /// sender's forwarding headers are trusted.
    ///
    /// # Errors
    /// When the changed head breaks a rule: the configuration's fault, not the client's.
    pub(crate) fn apply_to_request(
        &self,
        head: &RequestHead,
        values: &HeaderPlaceholders<'_>,
        trust: Option<&TrustedProxies>,
    ) -> Result<Option<FilteredRequest>, Fault> {
        let rules = &self.request_rules;
        let target = self.path_rewrite.apply(head.target_path_query());
        let is_rewritten = matches!(target, Cow::Owned(_));
        if rules.is_empty() && !is_rewritten {
            return Ok(None);
        }
        let mut writer = HeadWriter::with_kept_fields(head, head.method_str(), &target, |name| {
            let is_untrusted = self.trusted_headers.covers(name) && !may_client_set(name, trust);
            !rules.removes_field(name) && !is_untrusted
        });
        let (mut text, values) = (Vec::new(), self.template_values(values));
        for (name, value) in rules.set.iter().chain(&rules.add) {
            writer.push_field(name, render(value, &values, &mut text));
        }
        let head = writer.finish().map_err(|error| {
            let cause = format!("the route's filters made the request invalid: {error}");
            Fault::new(FaultKind::Internal, cause)
        })?;
        Ok(Some(FilteredRequest {
            head,
            trusted_headers: self.trusted_headers.clone(),
            mount: match is_rewritten {
                true => self.path_rewrite.mount.clone(),
                false => Mount::default(),
            },
        }))
    }

    /// Changes the fields of a response to a request for `target`.
    pub(crate) fn apply_to_response(
        &self,
        fields: &mut FieldBlock,
        values: &HeaderPlaceholders<'_>,
        target: &str,
    ) {
        // A path that was not changed in the request is not in the response.
        if let Some(paths) = &self.response_path_rewriter
            && matches!(self.path_rewrite.apply(target), Cow::Owned(_))
        {
            paths.rewrite_paths(fields, values);
        }
        if let Some(cors) = &self.cors {
            cors.add_to_response(values.head, fields);
        }
        let rules = &self.response_rules;
        for name in &rules.remove {
            fields.remove(name);
        }
        let (mut text, values) = (Vec::new(), self.template_values(values));
        for (name, value) in &rules.set {
            // Names and texts were checked when they were compiled, placeholders by the parser.
            let _ = fields.set(name, render(value, &values, &mut text));
        }
        for (name, value) in &rules.add {
            let _ = fields.push(name, render(value, &values, &mut text));
        }
    }

    fn template_values<'v>(&'v self, values: &HeaderPlaceholders<'v>) -> TemplateValues<'v> {
        TemplateValues {
            head: values.head,
            client: values.client,
            host: values.host,
            scheme: values.scheme,
            path_regex: self.path_regex.as_ref(),
        }
    }
}

/// Whether a client may set a field that a rule adds to: its value would be trusted too.
fn may_client_set(name: &str, trust: Option<&TrustedProxies>) -> bool {
    let is_accepted = |trust: &TrustedProxies| {
        trust.accepts_forwarded_host() || !ForwardedInfo::needs_listed_proxy(name)
    };
    match classify_field(name) {
        FieldClass::EndToEnd => true,
        FieldClass::Forwarding => trust.is_some_and(is_accepted),
        FieldClass::Via => trust.is_some(),
        FieldClass::HopByHop | FieldClass::Internal | FieldClass::Underscored => false,
    }
}

impl CompiledHeaderRules {
    fn compile(rules: &HeaderRules) -> Self {
        // Named one by one, so that a new rule does not compile before it is applied.
        let HeaderRules { remove, set, add } = rules;
        Self {
            remove: remove.clone(),
            set: set.clone().into_iter().collect(),
            add: add.clone().into_iter().collect(),
        }
    }

    fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.set.is_empty() && self.add.is_empty()
    }

    fn field_names(&self) -> impl Iterator<Item = &str> {
        let said = self.set.iter().chain(&self.add).map(|(name, _)| name);
        self.remove.iter().chain(said).map(String::as_str)
    }

    fn removes_field(&self, name: &str) -> bool {
        let set = self.set.iter().map(|(name, _)| name);
        let mut dropped = self.remove.iter().chain(set);
        // A framework could read a name with an underscore as the one that a rule is about.
        let has_underscore = name.contains('_');
        dropped.any(|other| {
            other.eq_ignore_ascii_case(name) || has_underscore && is_same_cgi_variable(other, name)
        })
    }
}

impl PathRewrite {
    /// The target that the handlers see; borrowed when it stays as it is.
    fn apply<'t>(&self, target: &'t str) -> Cow<'t, str> {
        let stripped = self.strip(target);
        if self.add.is_empty() {
            return stripped.unwrap_or(Cow::Borrowed(target));
        }
        let rest = stripped.as_deref().unwrap_or(target);
        Cow::Owned(format!("{}{rest}", self.add))
    }

    /// The target without the prefix; `None` when it does not have it.
    fn strip<'t>(&self, target: &'t str) -> Option<Cow<'t, str>> {
        let prefix = self.strip.as_deref()?;
        let normal = normalise_path(target).ok()?;
        let path = strip_path_prefix(&normal.path, prefix.as_bytes())?;
        let query = normal.query.map(|query| format!("?{query}"));
        let query = query.as_deref().unwrap_or("");
        // The client's own spelling stays (`a%2Fb` may mean something to a back end), unless the
        // prefix itself is spelled oddly.
        let as_sent = strip_path_prefix(normal.raw_path.as_bytes(), prefix.as_bytes())
            .and_then(|path| std::str::from_utf8(path).ok())
            .filter(|sent| {
                normalise_path(sent).is_ok_and(|found| found.path == path && !found.is_ambiguous)
            });
        let path = as_sent.map_or_else(|| encode_path(path).into(), Cow::Borrowed);
        Some(Cow::Owned(format!("{path}{query}")))
    }
}

/// The path behind a prefix that ends at a segment's end; a slash when that was all.
fn strip_path_prefix<'p>(path: &'p [u8], prefix: &[u8]) -> Option<&'p [u8]> {
    match path.strip_prefix(prefix)? {
        [] => Some(b"/"),
        rest => rest.starts_with(b"/").then_some(rest),
    }
}

#[cfg(test)]
mod tests;
