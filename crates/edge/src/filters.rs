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

mod path_rewrite;
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
use penstock_http::{FieldBlock, HeadWriter, RequestHead};
use penstock_rules::{CorsRule, TemplateValues, render};
use penstock_sys::net::PeerAddress;

use self::path_rewrite::{PathRewrite, RewrittenTarget};
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
        let said = request.set.keys().chain(request.add.keys());
        let strip = rewrite.strip_prefix.as_deref().unwrap_or("");
        let add = rewrite.add_prefix.as_deref().unwrap_or("");
        let paths = own_cookies.and_then(|own| ResponsePathRewriter::new(strip, add, own));
        Some(Arc::new(Self {
            path_rewrite: PathRewrite::compile(rewrite),
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
        let values = self.template_values(values);
        let target = head.target_path_query();
        let RewrittenTarget { target, mount } = self.path_rewrite.apply(target, &values);
        let is_rewritten = matches!(target, Cow::Owned(_));
        if rules.is_empty() && !is_rewritten {
            return Ok(None);
        }
        let mut writer = HeadWriter::with_kept_fields(head, head.method_str(), &target, |name| {
            let is_untrusted = self.trusted_headers.covers(name) && !may_client_set(name, trust);
            !rules.removes_field(name) && !is_untrusted
        });
        let mut text = Vec::new();
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
            mount,
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
            && self.path_rewrite.changes_prefix(target)
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

#[cfg(test)]
mod tests;
