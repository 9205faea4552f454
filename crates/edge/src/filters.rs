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

mod header_rules;
mod path_rewrite;
mod response_paths;

use std::borrow::Cow;
use std::sync::Arc;

use penstock_config::{self as config, PathPattern, PathRegex, Rewrite, Template, TemplatePart};
use penstock_exchange::field_policy::{FieldClass, TrustedHeaders, classify_field};
use penstock_exchange::{
    Fault, ForwardedInfo, ListenerInfo, Mount, RequestPath, TlsInfo, TrustedProxies,
};
use penstock_http::{FieldBlock, RequestHead, Status};
use penstock_rules::{ConditionSet, CorsRule, RequestFacts, TemplateValues};
use penstock_sys::net::PeerAddress;

use self::header_rules::CompiledHeaderRules;
use self::path_rewrite::{PathRewrite, RewrittenTarget};
use self::response_paths::ResponsePathRewriter;

/// The changes that one route makes, compiled.
#[derive(Debug)]
pub struct Filters {
    path_rewrite: PathRewrite,
    /// Set for a route whose servers do not know the stripped prefix.
    response_path_rewriter: Option<ResponsePathRewriter>,
    request_rules: Vec<CompiledHeaderRules>,
    response_rules: Vec<CompiledHeaderRules>,
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
    /// The listener of the connection.
    pub(crate) listener: &'a ListenerInfo,
    /// The TLS session of the connection.
    pub(crate) tls: Option<&'a TlsInfo>,
}

impl<'a> HeaderPlaceholders<'a> {
    /// What conditions are about.
    fn request_facts(&self) -> RequestFacts<'a> {
        RequestFacts {
            head: self.head,
            client: self.client,
            scheme: self.scheme,
            listener: self.listener,
            tls: self.tls,
        }
    }
}

/// A request's head, as a route's rules make it.
#[derive(Debug)]
pub(crate) struct FilteredRequest {
    pub(crate) head: RequestHead,
    pub(crate) trusted_headers: TrustedHeaders,
    /// The prefix stripped from the path, if the path is unchanged otherwise.
    pub(crate) mount: Mount,
}

impl Filters {
    /// Compiles a route's rules, which the configuration has checked; `None` when they change
    /// nothing. With `own_cookies`, the names of Penstock's own cookies, which are for all paths,
    /// the stripped prefix is put back into the paths of responses. `named` has the conditions that
    /// rules name.
    ///
    /// # Errors
    /// Names a condition or a network that cannot be compiled.
    pub fn compile(
        route: &config::Route,
        own_cookies: Option<Arc<[String]>>,
        named: &ConditionSet,
    ) -> Result<Option<Arc<Self>>, String> {
        let config::Route {
            rewrite,
            request_headers: request,
            response_headers: response,
            cors,
            ..
        } = route;
        let mut rules = request.iter().chain(response);
        let changes_headers = !rules.all(config::HeaderRules::is_empty) || cors.is_some();
        if *rewrite == Rewrite::default() && !changes_headers {
            return Ok(None);
        }
        let request_rules = CompiledHeaderRules::compile_all(request, named)?;
        let said = request_rules.iter().flat_map(|rules| rules.made_names());
        let trusted_headers = TrustedHeaders::new(said.map(str::to_owned));
        let strip = rewrite.strip_prefix.as_deref().unwrap_or("");
        let add = rewrite.add_prefix.as_deref().unwrap_or("");
        let paths = own_cookies.and_then(|own| ResponsePathRewriter::new(strip, add, own));
        Ok(Some(Arc::new(Self {
            path_rewrite: PathRewrite::compile(rewrite),
            response_path_rewriter: paths,
            request_rules,
            response_rules: CompiledHeaderRules::compile_all(response, named)?,
            trusted_headers,
            cors: cors.as_ref().map(CorsRule::new),
            path_regex: match &route.path {
                PathPattern::Regex(regex) => Some(regex.clone()),
                _ => None,
            },
        })))
    }

    pub(crate) fn changes_forwarding_fields(&self, trust: &TrustedProxies) -> bool {
        let client_field = trust.client_field();
        self.request_field_names().any(|name| {
            ForwardedInfo::is_forwarded_name(name.as_bytes())
                || client_field.is_some_and(|field| name.eq_ignore_ascii_case(field))
        })
    }

    /// The prefix `told` by proxies, as the rules change it; for responses made before they are
    /// applied.
    pub(crate) fn outer_mount<'m>(&self, told: &'m Mount) -> Cow<'m, Mount> {
        const PREFIX: &str = "x-forwarded-prefix";
        let mut names = self.request_field_names();
        if !names.any(|name| name.eq_ignore_ascii_case(PREFIX)) {
            return Cow::Borrowed(told);
        }
        let mount = match &self.request_rules[..] {
            [rules] if rules.is_unconditional() => {
                match rules.set_value(PREFIX).map(Template::parts) {
                    Some([TemplatePart::Text(text)]) => Mount::parse(text),
                    // Removed, added to, or made of the request: unknown here.
                    _ => None,
                }
            }
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
        let template_values = self.template_values(values);
        let target = head.target_path_query();
        let RewrittenTarget { target, mount } = self.path_rewrite.apply(target, &template_values);
        if self.request_rules.is_empty() && matches!(target, Cow::Borrowed(_)) {
            return Ok(None);
        }
        let facts = values.request_facts();
        let path = RequestPath::from_head(values.head).ok();
        let path = path
            .as_ref()
            .map(|path| path.bytes(values.head))
            .unwrap_or_default();
        let mut active = self
            .request_rules
            .iter()
            .filter(|rules| rules.apply_to(&facts, path));
        let is_trusted =
            |name: &str| !self.trusted_headers.covers(name) || may_client_set(name, trust);
        // The first pass also drops what a client may not set, whether or not a rule applies.
        let first = active.next();
        let mut made =
            header_rules::write_head(head, &target, first, is_trusted, &template_values)?;
        for rules in active {
            let target = made.target_path_query().to_owned();
            made =
                header_rules::write_head(&made, &target, Some(rules), |_| true, &template_values)?;
        }
        Ok(Some(FilteredRequest {
            head: made,
            trusted_headers: self.trusted_headers.clone(),
            mount,
        }))
    }

    /// Changes the fields of a response to a request for `target`.
    pub(crate) fn apply_to_response(
        &self,
        fields: &mut FieldBlock,
        values: &HeaderPlaceholders<'_>,
        (status, target): (Status, &str),
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
        if self.response_rules.is_empty() {
            return;
        }
        let facts = values.request_facts();
        let path = RequestPath::from_head(values.head).ok();
        let path = path
            .as_ref()
            .map(|path| path.bytes(values.head))
            .unwrap_or_default();
        let template_values = self.template_values(values);
        for rules in &self.response_rules {
            if rules.has_status(status) && rules.apply_to(&facts, path) {
                rules.change_fields(fields, &template_values);
            }
        }
    }

    fn request_field_names(&self) -> impl Iterator<Item = &str> {
        self.request_rules
            .iter()
            .flat_map(|rules| rules.field_names())
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

#[cfg(test)]
mod tests;
