//! The listener `server.probes`: health, readiness and metrics for orchestrators and Prometheus.
//!
//! # Invariants
//! - Only `/healthz`, `/readyz` and `/metrics` are answered, for any host name.

use std::sync::Arc;

use penstock_exchange::{Handler, HandlerProgress, Request};
use penstock_http::Status;

use crate::api::{Admin, text_response, with_handler_name};
use crate::authority::Authority;
use crate::operations::AdminOperations;

/// Health, readiness and metrics as a handler.
#[derive(Debug)]
pub struct Probes {
    admin: Admin,
}

impl Probes {
    /// The probes of the server behind `source`.
    pub fn new(source: Arc<dyn AdminOperations>) -> Self {
        Self {
            admin: Admin::new(source, Authority::ReadOnly),
        }
    }
}

impl Handler for Probes {
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
