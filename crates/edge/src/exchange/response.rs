//! From what the handlers came to, to the response that the client gets, and to the exchange's
//! record.
//!
//! # Invariants
//! - A response that cannot be sent as it is becomes an error that can.
//! - Fields that instruct the front end are removed before a client sees them.

use std::time::Instant;

use penstock_exchange::field_policy::remove_internal_fields;
use penstock_exchange::{Body, Fault, FaultKind, FrontEndInstructions, RequestTiming, Response};
use penstock_http::{RequestHead, Status};
use penstock_runtime::clock;
use penstock_runtime::log_throttle::suppressed_suffix;

use super::dispatch::ResponseResult;
use super::internal_redirect::RedirectChain;
use super::{ConnectionContext, Exchange, RequestMeta};
use crate::access_log::AccessRecord;
use crate::{Edge, faults};

pub(crate) struct FinalResponse {
    pub(crate) response: Box<Response>,
    /// The request was not understood: nothing behind it can be read.
    pub(crate) is_request_invalid: bool,
}

#[derive(Debug)]
pub(crate) enum SendError {
    /// The client closed or the connection broke.
    ClientDisconnected,
    /// The client took the response too slowly.
    ClientTooSlow,
    /// The body could not be completed.
    Body(Fault),
}

impl Exchange {
    /// The response for the client. `switch_refusal` gives the reason why the connection cannot
    /// switch protocols behind a head with this status.
    ///
    /// # Errors
    /// The fault of a client that left.
    pub(crate) fn finalize_response(
        &mut self,
        connection: ConnectionContext<'_>,
        result: ResponseResult,
        switch_refusal: impl FnOnce(&RequestHead, Status) -> Option<&'static str>,
    ) -> Result<FinalResponse, Fault> {
        let result = match self.redirects.take() {
            Some(chain) => self.finish_redirects(connection, *chain, result),
            None => result,
        };
        let head = &*self.head;
        let refusal = |status| switch_refusal(head, status);
        let result = result.and_then(|response| check_sendable(response, refusal));
        let mut is_request_invalid = false;
        let mut response = match result {
            Ok(response) => response,
            Err(fault) if fault.kind == FaultKind::ClientDisconnected => return Err(fault),
            Err(fault) => {
                is_request_invalid = fault.kind == FaultKind::BadRequest;
                if fault.kind == FaultKind::ClientTooSlow {
                    connection.edge.metrics().slow_clients.increment();
                }
                let client = connection.client_address(self.forwarded.as_deref());
                let request = (&*self.head, &*self.settings);
                let throttle = &connection.edge.log_throttle;
                faults::log_refused_request(client, &fault, request, throttle);
                Box::new(faults::respond_to_fault(fault, Some(request), throttle))
            }
        };
        if let Some(filters) = &self.filters {
            let values = self.response_placeholders(connection);
            let target = self.head.target_path_query();
            filters.apply_to_response(&mut response.fields, &values, target);
        }
        remove_instructions(&mut response);
        Ok(FinalResponse {
            response,
            is_request_invalid,
        })
    }

    /// The client's response, from the one of a redirect's last target.
    fn finish_redirects(
        &self,
        connection: ConnectionContext<'_>,
        mut chain: RedirectChain,
        result: ResponseResult,
    ) -> ResponseResult {
        let filters = chain.filters.take();
        let result = result.map(|mut response| {
            if let Some((filters, target)) = filters {
                let values = self.response_placeholders(connection);
                filters.apply_to_response(&mut response.fields, &values, &target);
            }
            response
        });
        chain.apply_to_result(result)
    }
}

impl RequestMeta<'_> {
    /// Counts an exchange that has ended, and writes it to the access log. `bytes` are those of the
    /// body that were sent.
    pub(crate) fn record_exchange(
        self,
        connection: ConnectionContext<'_>,
        status: Status,
        timing: &RequestTiming,
        bytes: u64,
        now: Instant,
    ) {
        let total_time = now.saturating_duration_since(self.arrived);
        let metrics = connection.edge.metrics();
        metrics.active_requests.add(-1);
        metrics.total_time.record_local(total_time);
        if let Some(log) = &self.settings.access_log {
            log.write(&AccessRecord {
                head: self.head,
                client: connection.client_address(self.forwarded),
                peer: connection.source.peer_address(),
                status: status.code(),
                body_bytes: bytes,
                timing,
                total_time,
            });
        }
    }

    pub(crate) fn record_send_error(self, edge: &Edge, error: &SendError) {
        let (method, target) = (self.head.method_str(), self.head.target());
        match error {
            SendError::ClientDisconnected => edge.metrics().client_disconnects.increment(),
            SendError::ClientTooSlow => {
                edge.metrics().slow_clients.increment();
                log::debug!("{method} {target}: the client took the response too slowly");
            }
            // The maker of the body has logged the cut, with its cause.
            SendError::Body(fault) if fault.kind == FaultKind::ClientTooSlow => {
                edge.metrics().slow_clients.increment();
                log::debug!("{method} {target}: response cut: {}", fault.cause);
            }
            SendError::Body(fault) => {
                if let Some(count) = edge.log_throttle.admit_line(&fault.cause, clock::now()) {
                    let more = suppressed_suffix(count);
                    log::error!("{method} {target}: response cut: {}{more}", fault.cause);
                }
            }
        }
    }
}

/// Removes the fields that are for the front end's own cache and hub.
fn remove_instructions(response: &mut Response) {
    // No handler acts on such fields of a switch, wherever its head was copied from.
    let is_switch = matches!(response.body, Body::Takeover(_));
    if is_switch || response.instructions == FrontEndInstructions::ForThisServer {
        remove_internal_fields(&mut response.fields);
    }
}

/// Passes a response that can be sent: a final one, or a switch of protocols unless its connection
/// has a reason against it.
fn check_sendable(
    response: Box<Response>,
    switch_refusal: impl FnOnce(Status) -> Option<&'static str>,
) -> ResponseResult {
    let status = response.status;
    let cause = match response.body {
        Body::Takeover(_) => switch_refusal(status),
        _ => (status.is_informational()).then_some("an interim status on a final response"),
    };
    match cause {
        None => Ok(response),
        Some(cause) => {
            Err(Fault::new(FaultKind::BackendProtocolError, cause).with_timing(response.timing))
        }
    }
}
