//! Builds the request that a cache sends to its back end.
//!
//! `fetch` requests a whole response that can serve all requests with the same key: a GET for the
//! key's target, without the client's own conditions and ranges, and with the validators of the
//! stored response.
//!
//! # Invariants
//!
//! - The request has no body and no hop-by-hop field.
//! - It has no field that only a front end may set, and no forwarding field of a client whose peer
//!   is not trusted.

use std::sync::Arc;

use penstock_exchange::field_policy::{
    FieldClass, TrustedHeaders, classify_field, is_conditional_field, is_forwarding_field,
};
use penstock_exchange::request::{RequestEnvironment, RequestPath};
use penstock_exchange::{ClientState, Fault, FaultKind, Request, RequestBody};
use penstock_http::caching::RevalidationFields;
use penstock_http::{ByteRange, HeadWriter, RequestHead};
use penstock_runtime::clock;

use crate::route_rules::{KeySource, RouteRules, push_host};

/// A client's request without its body, from which requests to the back end are built.
#[derive(Debug, Clone)]
pub(crate) struct ClientRequest {
    pub(crate) head: Arc<RequestHead>,
    /// With a client state of its own: the client may disconnect while others wait.
    pub(crate) origin: RequestEnvironment,
    trusted_headers: TrustedHeaders,
}

impl ClientRequest {
    /// Whether it is of a user, so that a response to it may be for that user alone.
    pub(crate) fn is_authenticated(&self) -> bool {
        self.head.field("authorization").is_some() || self.origin.client_state.is_authenticated()
    }

    pub(crate) fn from_request(request: &Request) -> Self {
        Self {
            head: Arc::clone(&request.head),
            origin: request.environment(ClientState::on_behalf_of(&request.client_state)),
            trusted_headers: request.trusted_headers.clone(),
        }
    }

    /// The same request with the current time as its arrival, for a request that is sent later.
    pub(crate) fn with_current_time(&self) -> Self {
        let mut request = self.clone();
        request.origin.arrived_at = clock::now();
        request
    }

    pub(crate) fn key_source(&self) -> KeySource<'_> {
        let origin = &self.origin;
        KeySource {
            head: &self.head,
            scheme: (origin.forwarded.as_ref().and_then(|info| info.scheme))
                .unwrap_or(origin.listener.scheme),
            is_from_trusted_proxy: origin.trusted_proxies.covers(origin.peer),
            forwarded: origin.forwarded.as_deref(),
            mount: &origin.mount,
        }
    }
}

/// Builds the request that represents `client` and all requests with the same key. With `part`, it
/// requests that range.
///
/// # Errors
/// Fails if the head is invalid: an internal error, since the added fields are not the client's.
pub(crate) fn build_request(
    rules: &RouteRules,
    client: &ClientRequest,
    validators: RevalidationFields<'_>,
    part: Option<ByteRange>,
) -> Result<Request, Fault> {
    let broken = |cause: String| Fault::new(FaultKind::Internal, format!("cache: {cause}"));
    let head = build_head(rules, client, validators, part).map_err(broken)?;
    let path = RequestPath::from_head(&head).map_err(|error| broken(error.to_string()))?;
    let origin = RequestEnvironment {
        client_state: ClientState::on_behalf_of(&client.origin.client_state),
        ..client.origin.clone()
    };
    let mut request = Request::new(Arc::new(head), path, RequestBody::Empty, origin);
    request.trusted_headers = client.trusted_headers.clone();
    Ok(request)
}

fn build_head(
    rules: &RouteRules,
    client: &ClientRequest,
    validators: RevalidationFields<'_>,
    part: Option<ByteRange>,
) -> Result<RequestHead, String> {
    let old = &client.head;
    let key_source = client.key_source();
    let mut target = Vec::new();
    rules.push_target(old.target_path_query(), &mut target);
    let target = String::from_utf8(target).map_err(|_| "a target that is no text".to_owned())?;
    let mut writer = HeadWriter::new(old, "GET", &target);
    let mut host = Vec::new();
    push_host(&key_source, &mut host);
    // HTTP/1.0 requests may have no host.
    if old.field("host").is_some() || !host.is_empty() {
        writer.push_field("Host", &host);
    }
    let named = |name: &str| is_hop_by_hop(old, name);
    for (name, value) in old.fields() {
        let passes = match classify_field(name) {
            _ if client.trusted_headers.covers(name) => true,
            FieldClass::EndToEnd if is_forwarding_field(name) => {
                key_source.is_from_trusted_proxy && !named(name)
            }
            FieldClass::EndToEnd | FieldClass::Via => !named(name),
            FieldClass::Forwarding => key_source.is_from_trusted_proxy && !named(name),
            FieldClass::HopByHop | FieldClass::Internal | FieldClass::Underscored => false,
        };
        // The cache evaluates the client's conditions and ranges itself.
        if passes && !is_conditional_field(name) {
            writer.push_field(name, value);
        }
    }
    if let Some(tag) = validators.if_none_match {
        writer.push_field("If-None-Match", tag);
    }
    if let Some(date) = validators.if_modified_since {
        writer.push_field("If-Modified-Since", date);
    }
    if let Some(ByteRange { start, len }) = part {
        let last = start.saturating_add(len.saturating_sub(1));
        writer.push_field("Range", format!("bytes={start}-{last}").as_bytes());
    }
    writer.finish().map_err(|error| error.to_string())
}

/// Whether `Connection` names the field (RFC 9110 §7.6.1).
fn is_hop_by_hop(head: &RequestHead, name: &str) -> bool {
    let lines = head.field_values("connection");
    let mut options = lines.flat_map(|line| line.split(|&byte| byte == b','));
    options.any(|option| option.trim_ascii().eq_ignore_ascii_case(name.as_bytes()))
}

#[cfg(test)]
mod tests;
