//! Reading a request's head, and refusing one that is malformed or late.
//!
//! # Invariants
//! - The time of a head runs from its first byte; the first head's from the accept.
//! - A head that is refused, or late, ends the connection.

use std::sync::Arc;
use std::task::{Context, Poll};

use penstock_exchange::{Fault, FaultKind};
use penstock_http::{
    ConnectionPersistence, ParseProgress, RequestHead, RequestHeadError, ResponseFraming,
    ResponseHeadParts,
};
use penstock_runtime::{buffers, clock, loops};

use super::client_watch::ClientWatch;
use super::send::{self, OutgoingResponse, SendProgress};
use super::{Connection, ConnectionAction};
use crate::faults::{self, MAX_LOGGED_LINE_BYTES};

/// A head that was refused, with as much of its first line as the log shows.
pub(super) struct RefusedHead {
    error: RequestHeadError,
    line: Box<[u8]>,
}

/// The end of a wait for a head.
pub(super) enum HeadOutcome {
    Head(RequestHead),
    Refused(Box<RefusedHead>),
    /// A head began and did not arrive in time.
    TimedOut,
    /// The client closed, was idle for too long, or the server drains.
    Closed,
}

impl Connection {
    pub(super) fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<HeadOutcome> {
        if !std::mem::replace(&mut self.is_drain_registered, true) {
            self.drain_guard
                .wake_at_drain(loops::current_loop_index(), cx.waker().clone());
        }
        if std::mem::take(&mut self.has_unscanned)
            && let Some(next) = self.scan_pending()
        {
            return Poll::Ready(next);
        }
        if self.is_half_closed {
            return Poll::Ready(HeadOutcome::Closed);
        }
        loop {
            let read = buffers::with_receive_buffer(|buffer| self.stream.poll_read(cx, buffer));
            match read {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(HeadOutcome::Closed),
                Poll::Ready(Ok(count)) => {
                    let found =
                        buffers::with_receive_buffer(|buffer| self.scan_received(&buffer[..count]));
                    if let Some(next) = found {
                        return Poll::Ready(next);
                    }
                }
                Poll::Pending => break,
            }
        }
        if self.received.is_empty()
            && !self.is_drain_deadline_set
            && let Some(until) = self.drain_guard.drain().idle_deadline()
        {
            // The next request may be on its way, and a close now could cross it.
            if until <= clock::now() {
                return Poll::Ready(HeadOutcome::Closed);
            }
            self.deadline.set(until.min(self.deadline.at()));
        }
        if self
            .edge
            .idle_connections
            .mark_idle(&mut self.idle_entry, cx.waker())
        {
            self.edge.metrics().evicted_connections.increment();
            return Poll::Ready(HeadOutcome::Closed);
        }
        self.deadline.poll(cx).map(|()| match self.head_started_at {
            Some(_) => HeadOutcome::TimedOut,
            None => HeadOutcome::Closed,
        })
    }

    /// Looks for a whole head in newly received bytes; bytes behind it go to `received`.
    fn scan_received(&mut self, bytes: &[u8]) -> Option<HeadOutcome> {
        if !self.received.is_empty() {
            self.received.push(bytes);
            return self.scan_pending();
        }
        match self.scanner.scan(bytes, &self.edge.head_limits()) {
            Ok(ParseProgress::Complete((head, used))) => {
                self.received.push(&bytes[used..]);
                Some(self.complete_head(head))
            }
            Ok(ParseProgress::Partial) => {
                self.received.push(bytes);
                self.note_partial_head();
                None
            }
            Err(error) => Some(refused_head(error, bytes)),
        }
    }

    /// Looks for a whole head in `received`.
    fn scan_pending(&mut self) -> Option<HeadOutcome> {
        match self
            .scanner
            .scan(self.received.unread(), &self.edge.head_limits())
        {
            Ok(ParseProgress::Complete((head, used))) => {
                self.received.consume(used);
                Some(self.complete_head(head))
            }
            Ok(ParseProgress::Partial) => {
                self.note_partial_head();
                None
            }
            Err(error) => Some(refused_head(error, self.received.unread())),
        }
    }

    fn complete_head(&mut self, head: RequestHead) -> HeadOutcome {
        self.scanner.reset();
        self.head_started_at = None;
        self.awaits_first_request = false;
        self.has_unscanned = !self.received.is_empty();
        HeadOutcome::Head(head)
    }

    /// Starts the time of a head at its first byte; that of the first head began at the accept.
    fn note_partial_head(&mut self) {
        if self.head_started_at.is_none() {
            let now = clock::now();
            self.head_started_at = Some(now);
            self.idle_entry
                .record_activity(&self.edge.idle_connections, now);
            if !self.awaits_first_request {
                self.deadline
                    .set(now + self.edge.settings().limits.header_timeout);
            }
        }
    }

    /// Sends the error for a head that was refused, or did not arrive in time.
    pub(super) async fn send_refusal(&mut self, refused: HeadOutcome) -> ConnectionAction {
        let settings = self.edge.settings();
        let throttle = &self.edge.log_throttle;
        let log_refusal = |status, reason: &str, line: &[u8]| {
            let shown = settings.log_mask.apply_url(line);
            let client = self.source.client_address();
            faults::log_refused_head(client, status, reason, &shown, throttle);
        };
        let (response, first_line) = match refused {
            HeadOutcome::Refused(refused) => {
                self.edge.metrics().malformed_requests.increment();
                let RefusedHead { error, line } = *refused;
                let (status, reason) = (error.status(), error.to_string());
                log_refusal(status, &reason, &line);
                (faults::respond_malformed(status, &reason), line)
            }
            HeadOutcome::TimedOut => {
                self.edge.metrics().slow_clients.increment();
                let line: Box<[u8]> = first_line(self.received.unread()).into();
                let fault = Fault::new(FaultKind::ClientTooSlow, "limits.header_timeout");
                log_refusal(fault.kind.status(), &fault.cause, &line);
                (faults::respond_to_fault(fault, None, throttle), line)
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
        if let Some(log) = &settings.access_log {
            log.write_refused(&self.source, response.status.code(), &first_line);
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
            let (stream, limits) = (Arc::clone(&self.stream), &settings.limits);
            let _ = send::send_remaining(stream, rest, limits, watch).await;
        }
        ConnectionAction::Linger
    }
}

fn refused_head(error: RequestHeadError, received: &[u8]) -> HeadOutcome {
    let line = first_line(received).into();
    HeadOutcome::Refused(Box::new(RefusedHead { error, line }))
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
