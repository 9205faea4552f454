//! The listener `server.probes`: health, readiness and metrics for orchestrators and Prometheus.
//!
//! # Invariants
//! - Only `/healthz`, `/readyz` and `/metrics` are answered, for any host name.

use std::sync::Arc;

use penstock_exchange::{Handler, HandlerProgress, Request};
use penstock_http::Status;

use crate::api::{AdminHandler, text_response, with_handler_name};
use crate::authorization::ChangeAuthorization;
use crate::operations::AdminOperations;

/// The handler of health, readiness and metrics.
#[derive(Debug)]
pub struct ProbeHandler {
    admin: AdminHandler,
}

impl ProbeHandler {
    /// The probes of the server behind `source`.
    pub fn new(source: Arc<dyn AdminOperations>) -> Self {
        Self {
            admin: AdminHandler::new(source, ChangeAuthorization::ReadOnly),
        }
    }
}

impl Handler for ProbeHandler {
    fn handle(&self, request: Request) -> HandlerProgress {
        match request.path() {
            b"/healthz" | b"/readyz" | b"/metrics" => self.admin.handle(request),
            _ => HandlerProgress::Ready(with_handler_name(Ok(text_response(
                Status::NOT_FOUND,
                "here are /healthz, /readyz and /metrics only\n",
            )))),
        }
    }
}
