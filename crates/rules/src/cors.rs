//! Pages of other sites that may use a route: `cors` (Fetch, "CORS protocol").
//!
//! [`CorsHandler`] answers preflights before any password is asked for, since browsers send none with
//! them. `edge` adds the fields to all responses of the route, errors included: a page that could not
//! read an error would not know of it.
//!
//! # Invariants
//! - Of a back end's own fields of the protocol none is left: two answers would be none.
//! - A response that depends on the origin says so (`Vary`).

use penstock_config::{Cors, ValuePattern};
use penstock_exchange::{Body, Handler, HandlerName, HandlerProgress, Reply, Request, Response};
use penstock_http::{FieldBlock, Method, RequestHead, Status};

/// A compiled rule.
#[derive(Debug)]
pub struct CorsRule {
    origins: Box<[ValuePattern]>,
    allows_any: bool,
    methods: Box<str>,
    headers: Box<str>,
    expose: Box<str>,
    allows_credentials: bool,
    max_age: u64,
}

/// Answers the preflights of a route; the rule adds the fields.
#[derive(Debug)]
pub struct CorsHandler;

const ALLOW_ORIGIN: &str = "Access-Control-Allow-Origin";
const PREFIX: &str = "access-control-";

impl CorsRule {
    /// Compiles a rule.
    #[must_use]
    pub fn new(rule: &Cors) -> Self {
        let any = |origin: &ValuePattern| origin.to_string() == "*";
        Self {
            allows_any: rule.origins.iter().any(any),
            origins: rule.origins.clone().into(),
            methods: rule.methods.join(", ").into(),
            headers: rule.headers.join(", ").into(),
            expose: rule.expose.join(", ").into(),
            allows_credentials: rule.credentials,
            max_age: rule.max_age.as_secs(),
        }
    }

    /// Adds what lets the page of a request read the response.
    pub fn add_to_response(&self, head: &RequestHead, fields: &mut FieldBlock) {
        fields.remove_where(|name| {
            let start = name.get(..PREFIX.len());
            start.is_some_and(|start| start.eq_ignore_ascii_case(PREFIX))
        });
        self.add_origin(head, fields);
        if !self.expose.is_empty() && fields.contains(ALLOW_ORIGIN) {
            // Names of the configuration are tokens.
            let _ = fields.push("Access-Control-Expose-Headers", self.expose.as_bytes());
        }
        if is_preflight(head) {
            self.add_preflight(head, fields);
        }
    }

    /// Adds what a preflight asks for.
    fn add_preflight(&self, head: &RequestHead, fields: &mut FieldBlock) {
        if !fields.contains(ALLOW_ORIGIN) {
            return;
        }
        let _ = fields.push("Access-Control-Allow-Methods", self.methods.as_bytes());
        let asked = head.field("access-control-request-headers");
        let headers = match self.headers.is_empty() {
            true => asked,
            false => Some(self.headers.as_bytes()),
        };
        if let Some(headers) = headers {
            let _ = fields.push("Access-Control-Allow-Headers", headers);
        }
        fields.push_u64("Access-Control-Max-Age", self.max_age);
    }

    fn add_origin(&self, head: &RequestHead, fields: &mut FieldBlock) {
        if self.allows_any {
            fields.push_static(ALLOW_ORIGIN, "*");
            return;
        }
        fields.push_static("Vary", "Origin");
        let Some(origin) = head.field("origin") else {
            return;
        };
        if self.origins.iter().any(|allowed| allowed.matches(origin)) {
            let _ = fields.push(ALLOW_ORIGIN, origin);
            if self.allows_credentials {
                fields.push_static("Access-Control-Allow-Credentials", "true");
            }
        }
    }
}

impl Handler for CorsHandler {
    fn handle(&self, request: Request) -> HandlerProgress {
        HandlerProgress::Ready(Ok(match is_preflight(&request.head) {
            true => {
                let mut response = Response::new(Status::NO_CONTENT, Body::Empty);
                response.timing.handler = Some(HandlerName::Component("cors"));
                Reply::from(response)
            }
            false => Reply::Pass(Box::new(request)),
        }))
    }
}

/// Whether a browser asks what a page may send.
fn is_preflight(head: &RequestHead) -> bool {
    head.method() == Method::Options
        && head.field("origin").is_some()
        && head.field("access-control-request-method").is_some()
}
