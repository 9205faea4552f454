//! Responses without a back end: `redirect` and `respond` of a route.
//!
//! # Invariants
//! - No application runs and no body is read.
//! - A redirect never leads to the URL that was asked for: browsers would come back for ever.
//! - No placeholder ends a field, or begins another.

use std::sync::Arc;

use bytes::Bytes;
use penstock_config::{PathPattern, PathRegex, Redirect, Respond, Template};
use penstock_exchange::{
    Body, Fault, FaultKind, Handler, HandlerName, HandlerProgress, Reply, Request, Response,
};
use penstock_http::{Status, encode_target};

use crate::template::{TemplateValues, render};

/// Redirects every request of a route.
#[derive(Debug)]
pub struct RedirectHandler {
    to: Template,
    status: Status,
    path_regex: Option<PathRegex>,
}

/// Answers every request of a route with a fixed status, fields and body.
#[derive(Debug)]
pub struct RespondHandler {
    status: Status,
    fields: Box<[(String, Template)]>,
    body: FixedBody,
    content_type: Option<Arc<str>>,
    path_regex: Option<PathRegex>,
}

#[derive(Debug)]
enum FixedBody {
    None,
    Bytes(Bytes),
    Template(Template),
}

impl RedirectHandler {
    /// The handler for a rule of a route with this path.
    #[must_use]
    pub fn new(rule: &Redirect, path: &PathPattern) -> Self {
        Self {
            to: rule.to.clone(),
            status: checked_status(rule.status),
            path_regex: regex_of(path),
        }
    }

    fn respond(&self, request: &Request) -> Result<Response, Fault> {
        let values = values_of(request, self.path_regex.as_ref());
        let mut buffer = Vec::new();
        let location = self.encode(render(&self.to, &values, &mut buffer));
        // `?{query}` of a request without a query is nothing.
        let location = match self.to.as_str().ends_with("{query}") {
            true => location.trim_end_matches(['?', '&']).to_owned(),
            false => location,
        };
        if leads_back(&location, request) {
            let cause = format!("`redirect` leads to the URL that was asked for: {location}");
            return Err(Fault::new(FaultKind::Internal, cause));
        }
        let mut response = Response::new(self.status, Body::Empty);
        let pushed = response.fields.push("Location", location.as_bytes());
        pushed.map_err(|error| {
            let cause = format!("`redirect` makes no valid Location: {error}");
            Fault::new(FaultKind::Internal, cause)
        })?;
        Ok(response)
    }
}

impl RedirectHandler {
    /// A path stays one on this host: browsers read `//host` and `/\\host` as another. Only a number
    /// sign of the rule itself begins a fragment.
    fn encode(&self, location: &[u8]) -> String {
        let is_slash = |byte: &u8| matches!(byte, b'/' | b'\\');
        let location = match self.to.as_str().starts_with('/') {
            true => {
                let slashes = location.iter().take_while(|byte| is_slash(byte)).count();
                &location[slashes.saturating_sub(1)..]
            }
            false => location,
        };
        let fragment = match self.to.as_str().contains('#') {
            true => location.iter().position(|byte| *byte == b'#'),
            false => None,
        };
        match fragment {
            None => encode_target(location),
            Some(at) => {
                let (target, fragment) = (&location[..at], &location[at + 1..]);
                format!("{}#{}", encode_target(target), encode_target(fragment))
            }
        }
    }
}

impl Handler for RedirectHandler {
    fn handle(&self, request: Request) -> HandlerProgress {
        let response = self.respond(&request);
        HandlerProgress::Ready(response.map(|response| named(response, "redirect")))
    }
}

impl RespondHandler {
    /// The handler for a rule of a route with this path; `file` is the content of its file, with the
    /// type.
    #[must_use]
    pub fn new(rule: &Respond, path: &PathPattern, file: Option<(Bytes, String)>) -> Self {
        let (body, guessed) = match (file, &rule.body) {
            (Some((content, kind)), _) => (FixedBody::Bytes(content), Some(kind)),
            (None, Some(text)) => {
                let kind = "text/plain; charset=utf-8".to_owned();
                (FixedBody::Template(text.clone()), Some(kind))
            }
            (None, None) => (FixedBody::None, None),
        };
        Self {
            status: checked_status(rule.status),
            fields: rule.headers.clone().into_iter().collect(),
            body,
            content_type: rule.content_type.clone().or(guessed).map(Into::into),
            path_regex: regex_of(path),
        }
    }

    fn respond(&self, request: &Request) -> Response {
        let values = values_of(request, self.path_regex.as_ref());
        let body = match &self.body {
            FixedBody::None => Body::Empty,
            FixedBody::Bytes(content) => Body::Bytes(content.clone()),
            FixedBody::Template(text) => {
                let mut buffer = Vec::new();
                let rendered = render(text, &values, &mut buffer);
                Body::Bytes(Bytes::copy_from_slice(rendered))
            }
        };
        let mut response = Response::new(self.status, body);
        if let Some(kind) = &self.content_type {
            // The configuration has checked it, and the fields below.
            let _ = response.fields.push("Content-Type", kind.as_bytes());
        }
        let mut buffer = Vec::new();
        for (name, value) in &self.fields {
            let _ = response
                .fields
                .set(name, render(value, &values, &mut buffer));
        }
        response
    }
}

impl Handler for RespondHandler {
    fn handle(&self, request: Request) -> HandlerProgress {
        HandlerProgress::Ready(Ok(named(self.respond(&request), "respond")))
    }
}

/// Whether a location is that of the request itself.
fn leads_back(location: &str, request: &Request) -> bool {
    let target = request.head.target_path_query();
    if location == target {
        return true;
    }
    let rest = location.strip_prefix(request.scheme());
    let rest = rest.and_then(|rest| rest.strip_prefix("://"));
    let rest = rest.and_then(|rest| rest.strip_suffix(target));
    rest.is_some_and(|host| host.eq_ignore_ascii_case(request.host()))
}

fn values_of<'r>(request: &'r Request, path_regex: Option<&'r PathRegex>) -> TemplateValues<'r> {
    TemplateValues {
        head: &request.head,
        client: request.client_address(),
        host: request.host(),
        scheme: request.scheme(),
        path_regex,
    }
}

fn regex_of(path: &PathPattern) -> Option<PathRegex> {
    match path {
        PathPattern::Regex(regex) => Some(regex.clone()),
        _ => None,
    }
}

/// A status that the configuration has checked.
fn checked_status(code: u16) -> Status {
    Status::new(code).unwrap_or(Status::INTERNAL_SERVER_ERROR)
}

fn named(mut response: Response, handler: &'static str) -> Reply {
    response.timing.handler = Some(HandlerName::Component(handler));
    Reply::from(response)
}
