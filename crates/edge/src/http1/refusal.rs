//! Refuses a request's head that is malformed or late.
//!
//! # Invariants
//! - A head that is refused, or late, ends the connection.

use std::sync::Arc;

use penstock_exchange::{Fault, FaultKind};
use penstock_http::{ConnectionPersistence, RequestHeadError, ResponseFraming, ResponseHeadParts};
use penstock_runtime::clock;

use super::client_watch::ClientWatch;
use super::send::{self, OutgoingResponse, SendProgress};
use super::{Connection, ConnectionAction, HeadOutcome};
use crate::faults::{self, MAX_LOGGED_LINE_BYTES};
use crate::router::RouteBodyLimits;
use crate::transfer_rate::TransferLimits;

/// A head that was refused, with as much of its first line as the log shows.
pub(super) struct RefusedHead {
    error: RequestHeadError,
    line: Box<[u8]>,
}

impl Connection {
    /// Sends the error for a head that was refused, or did not arrive in time.
    pub(super) async fn send_refusal(&mut self, refused: HeadOutcome) -> ConnectionAction {
        let settings = self.edge.settings();
        let throttle = &self.edge.log_throttle;
        let log_refusal = |status, reason: &str, line: &[u8]| {
            let shown = settings.log_mask.apply_url(line);
            let client = self.source.client_address();
            faults::log_refused_head(client, status, reason, &shown, throttle);
        };
        let (response, first_line, reason) = match refused {
            HeadOutcome::Refused(refused) => {
                self.edge.metrics().malformed_requests.increment();
                let RefusedHead { error, line } = *refused;
                let (status, reason) = (error.status(), error.to_string());
                log_refusal(status, &reason, &line);
                (faults::respond_malformed(status, &reason), line, reason)
            }
            HeadOutcome::TimedOut => {
                self.edge.metrics().slow_clients.increment();
                let line: Box<[u8]> = first_line(self.received.unread()).into();
                let fault = Fault::new(FaultKind::ClientTooSlow, "limits.header_timeout");
                log_refusal(fault.kind.status(), &fault.cause, &line);
                let reason = fault.cause.to_string();
                (
                    faults::respond_to_fault(fault, None, throttle),
                    line,
                    reason,
                )
            }
            HeadOutcome::Head(_) | HeadOutcome::Closed => return ConnectionAction::Close,
        };
        let date = clock::http_date(clock::now());
        let head = ResponseHeadParts {
            status: response.status,
            fields: &response.fields,
            framing: ResponseFraming::Length(response.body.length().unwrap_or(0)),
            persistence: ConnectionPersistence::Close,
            date: Some(&date),
        };
        self.edge.metrics().count_response(response.status.code());
        let status = response.status.code();
        for log in settings.access_logs.iter().filter(|log| log.is_default) {
            log.write_refused(&self.source, status, &reason, &first_line);
        }
        let outgoing = OutgoingResponse {
            status_bytes_sent: 0,
            unsent_interim: &[],
            head,
            body: response.body,
            max_rate: None,
        };
        if let Ok(SendProgress::Partial(rest)) = send::try_send(&self.stream, outgoing) {
            // Whether it arrives or not, the connection ends.
            let watch = ClientWatch::new(None, None, &mut self.is_half_closed);
            let limits = TransferLimits::new(&settings.limits, RouteBodyLimits::default());
            let stream = Arc::clone(&self.stream);
            let _ = send::send_remaining(stream, rest, limits, watch).await;
        }
        ConnectionAction::Linger
    }
}

impl HeadOutcome {
    /// A head that the parser refused; `received` begins with it.
    pub(super) fn refused(error: RequestHeadError, received: &[u8]) -> Self {
        let line = first_line(received).into();
        Self::Refused(Box::new(RefusedHead { error, line }))
    }
}

/// The beginning of the first line that is not blank, for the log.
fn first_line(received: &[u8]) -> &[u8] {
    let is_break = |byte: &u8| matches!(byte, b'\r' | b'\n');
    let start = received.iter().take_while(|byte| is_break(byte)).count();
    let received = &received[start..];
    let part = &received[..received.len().min(MAX_LOGGED_LINE_BYTES)];
    let end = part.iter().position(is_break);
    &part[..end.unwrap_or(part.len())]
}
