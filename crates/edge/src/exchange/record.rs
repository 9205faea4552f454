//! The record of an exchange that has ended: metrics, access log, and the log line of a response
//! that was cut.

use std::sync::Arc;
use std::time::Instant;

use penstock_exchange::{Fault, FaultKind, HandlerName, RequestTiming};
use penstock_http::Status;
use penstock_runtime::log_throttle::suppressed_suffix;
use penstock_runtime::{clock, loops};

use super::{ConnectionContext, RequestMeta};
use crate::Edge;
use crate::access_log::AccessRecord;

#[derive(Debug)]
pub(crate) enum SendError {
    /// The client closed or the connection broke.
    ClientDisconnected,
    /// The client took the response too slowly.
    ClientTooSlow,
    /// The body could not be completed.
    Body(Fault),
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
        connection.client_state.release_permits();
        let total_time = now.saturating_duration_since(self.arrived);
        let metrics = connection.edge.metrics();
        metrics.active_requests.add(-1);
        metrics.total_time.record_local(total_time);
        if let Some(counts) = self.route.and_then(|route| route.counts.as_ref()) {
            counts.count_response(loops::current_loop_index(), status.code(), total_time);
        }
        let is_logged = !matches!(timing.handler, Some(HandlerName::Development));
        if self.settings.access_logs.is_empty() && self.settings.tracing.is_none() || !is_logged {
            return;
        }
        let made;
        let correlation = match self.correlation {
            Some(correlation) => correlation,
            None => {
                made = connection.correlate(self.settings, self.head);
                &made
            }
        };
        let user = connection.client_state.user();
        let named = self.forwarded.and_then(|it| it.host.as_deref());
        let record = AccessRecord {
            head: self.head,
            client: connection.client_address(self.forwarded),
            peer: connection.source.peer_address(),
            host: named.unwrap_or_else(|| self.head.host()),
            scheme: connection.scheme(self.forwarded),
            status: status.code(),
            body_bytes: bytes,
            listener: connection.listener,
            tls: connection.client_state.tls().map(Arc::as_ref),
            request_id: correlation.request_id.as_ref(),
            trace: correlation.trace.as_ref(),
            route: self.route,
            user: user.as_deref(),
            timing,
            total_time,
        };
        self.write_access_logs(&record);
        connection.record_span(self.settings, &record, (self.arrived, now));
    }

    /// Writes a line to the logs of the request's site.
    fn write_access_logs(self, record: &AccessRecord<'_>) {
        let logs = &self.settings.access_logs;
        match self.route.and_then(|route| route.access_logs.as_ref()) {
            Some(own) => {
                for log in own.iter().filter_map(|at| logs.get(*at)) {
                    log.write(record);
                }
            }
            None => {
                for log in logs.iter().filter(|log| log.is_default) {
                    log.write(record);
                }
            }
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
