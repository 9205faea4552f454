//! A service that decides about each request: `forward_auth` of a route, as Traefik and Caddy have
//! it.
//!
//! The service gets the header of the request without its body. Its upstream has connections, bounds
//! and timeouts as any other.
//!
//! # Invariants
//! - Without an answer of 2xx no request goes on, whatever went wrong.
//! - The fields that describe the request to the service are the front end's, and those that describe
//!   the user to the application are the service's: a client's own ones of these names are dropped.

use std::sync::Arc;

use penstock_config::ForwardAuth;
use penstock_exchange::field_policy::{
    FieldClass, classify_field, is_conditional_field, is_content_field,
};
use penstock_exchange::{Fault, FaultKind, Handler, Reply, Request, Response};
use penstock_http::{HeadWriter, RequestHead};

use crate::admission::{Admission, AdmissionRule, Decision, Refusal};

/// Asks the service of a route.
#[derive(Debug)]
pub struct ForwardAuthRule {
    service: Arc<dyn Handler>,
    target: Box<str>,
    copied: Arc<[String]>,
    /// For messages.
    name: Arc<str>,
}

/// Fields that describe the request to the service: nginx' users know `X-Original-*`, Traefik's the
/// others.
const REQUEST_FIELDS: [&str; 4] = [
    "X-Forwarded-Method",
    "X-Forwarded-Uri",
    "X-Original-Method",
    "X-Original-URL",
];

impl ForwardAuthRule {
    /// The rule; `service` is that of its upstream.
    #[must_use]
    pub fn new(rule: &ForwardAuth, service: Arc<dyn Handler>) -> Self {
        Self {
            service,
            target: rule.url.target.as_str().into(),
            copied: rule.copy_headers.clone().into(),
            name: rule.url.upstream_name().into(),
        }
    }

    /// The request to the service.
    fn auth_request(&self, request: &Request) -> Result<Request, Fault> {
        let head = &request.head;
        let is_kept = |name: &str| {
            let is_named = |known: &&str| known.eq_ignore_ascii_case(name);
            let is_host = name.eq_ignore_ascii_case("host");
            // The service would answer conditions by a status of its own.
            !REQUEST_FIELDS.iter().any(is_named)
                && !is_content_field(name)
                && !is_conditional_field(name)
                && (is_host || classify_field(name) != FieldClass::HopByHop)
        };
        let mut writer = HeadWriter::with_kept_fields(head, "GET", &self.target, is_kept);
        let target = format!("{}{}", request.client_prefix(), request.client_target());
        let method = head.method_str();
        let url = format!("{}://{}{target}", request.scheme(), request.host());
        for (name, value) in REQUEST_FIELDS.iter().zip([method, &target, method, &url]) {
            writer.push_field(name, value.as_bytes());
        }
        let head = finish(writer)?;
        let names = REQUEST_FIELDS.map(str::to_owned);
        let subrequest = request.subrequest(Arc::new(head), names);
        subrequest.map_err(|error| Fault::new(FaultKind::Internal, error.to_string()))
    }
}

impl AdmissionRule for ForwardAuthRule {
    fn name(&self) -> &'static str {
        "forward_auth"
    }

    fn decide(&self, request: &Request) -> Decision {
        let subrequest = match self.auth_request(request) {
            Ok(subrequest) => subrequest,
            Err(fault) => return Decision::refuse(fault),
        };
        let progress = self.service.handle(subrequest);
        let (copied, name) = (Arc::clone(&self.copied), Arc::clone(&self.name));
        Decision::Pending(Box::pin(async move {
            match progress.wait_for_reply().await {
                Ok(Reply::Response(response)) if response.status.is_success() => {
                    Ok(admission(&response, &copied))
                }
                Ok(Reply::Response(response)) => Err(Refusal::Response(response)),
                Ok(Reply::Pass(_) | Reply::Redirect(_)) => {
                    Err(unavailable(&name, "no response").into())
                }
                Err(fault) if fault.kind == FaultKind::ClientDisconnected => Err(fault.into()),
                Err(fault) => Err(unavailable(&name, &fault.cause).into()),
            }
        }))
    }

    fn own_fields(&self) -> &[String] {
        &self.copied
    }
}

/// What the service says of the user.
fn admission(response: &Response, copied: &[String]) -> Admission {
    let is_copied = |name: &str| copied.iter().any(|own| own.eq_ignore_ascii_case(name));
    let fields = response.fields.iter();
    let fields = fields.filter(|(name, _)| is_copied(name));
    Admission {
        // The fields that it copies are part of a cache's key: they keep users apart.
        is_authenticated: copied.is_empty(),
        fields: fields
            .map(|(name, value)| (name.to_owned(), value.to_vec()))
            .collect(),
        ..Admission::default()
    }
}

fn finish(writer: HeadWriter) -> Result<RequestHead, Fault> {
    writer.finish().map_err(|error| {
        let cause = format!("forward_auth makes the request invalid: {error}");
        Fault::new(FaultKind::Internal, cause)
    })
}

fn unavailable(name: &str, cause: &str) -> Fault {
    Fault::new(
        FaultKind::Unavailable,
        format!("forward_auth {name}: {cause}"),
    )
}
