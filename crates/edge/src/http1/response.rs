//! From a response to bytes that are out: its framing, its sending, its record, and whether the
//! connection stays open behind it.
//!
//! # Invariants
//! - After any doubt about the request's end the connection closes.
//! - A response whose body fails before a byte of it is out is replaced by an error.

use std::sync::Arc;
use std::time::Instant;

use penstock_exchange::{
    Body, Fault, HandlerName, HeldFraming, InlineBody, InlineResponse, RequestTiming, Response,
};
use penstock_http::{
    ConnectionPersistence, Method, RequestHead, ResponseFraming, ResponseHeadParts, Status,
    Version, encode_head,
};
use penstock_runtime::clock;

use super::client_watch::ClientWatch;
use super::handler_wait::take_interim_responses;
use super::send::{
    self, BufferedResponse, OutgoingResponse, SendProgress, SentBytes, UnsentResponse,
};
use super::{
    Connection, ConnectionAction, PendingExchange, PendingSend, PendingStage, ResponseSummary,
    WireState,
};
use crate::exchange::{
    Exchange, FinalResponse, ReceivedRequest, RequestMeta, ResponseResult, SendError,
};
use crate::handover::UpgradeTarget;

impl Connection {
    /// Sends the response that the first handler has in memory, if the request is simple enough.
    pub(super) fn respond_inline(
        &mut self,
        request: &ReceivedRequest<'_>,
    ) -> Option<Result<ConnectionAction, Box<PendingSend>>> {
        let (handler, view) = request.inline_handler(self.connection_context())?;
        let close = self.must_close();
        let mut encoded = None;
        let started = send::try_send_buffered(&self.stream, |out| {
            handler.try_inline(&view, &mut |response| {
                let InlineResponse { status, body, .. } = response;
                let plan = ResponsePlan::new(view.head, status, Some(body.length()), close);
                let head = ResponseHeadParts {
                    status,
                    fields: response.fields,
                    framing: plan.framing,
                    persistence: plan.persistence,
                    date: Some(&clock::http_date(view.arrived_at)),
                };
                encode_head(out, &head);
                let head_len = out.len();
                let file = match body {
                    _ if is_bodiless(view.head, status) => None,
                    InlineBody::Bytes(bytes) => {
                        out.extend_from_slice(bytes);
                        None
                    }
                    InlineBody::File(file) => Some(file),
                };
                let buffered = BufferedResponse {
                    head_len,
                    file,
                    framing: plan.framing,
                };
                encoded = Some(((status, response.handler, plan), Some(buffered)));
            });
            encoded.as_mut()?.1.take()
        })?;
        let ((status, handler, plan), _) = encoded?;
        let timing = RequestTiming {
            handler: Some(HandlerName::Component(handler)),
            ..RequestTiming::default()
        };
        let summary = ResponseSummary {
            status,
            timing,
            keeps_alive: plan.keeps_alive,
            must_close: false,
        };
        Some(self.finish_or_defer(request.request_meta(), summary, started, None))
    }

    /// Sends the response of an exchange, as far as the socket takes it at once.
    pub(super) fn respond(
        &mut self,
        exchange: &mut Exchange,
        wire: &mut WireState,
        result: ResponseResult,
        now: Instant,
    ) -> Result<ConnectionAction, Box<PendingSend>> {
        // Bytes behind CONNECT were meant for a tunnel and are no request.
        let is_tunnel = exchange.head.method() == Method::Connect;
        let must_close = !self.reclaim_body_reader(wire) || is_tunnel;
        let refusal = |head: &RequestHead, status| switch_refusal(head, status, must_close);
        match exchange.finalize_response(self.connection_context(), result, refusal) {
            Ok(FinalResponse {
                response,
                is_request_invalid,
            }) => {
                let interim = take_interim_responses(&self.client_state, exchange.head.version());
                wire.unsent_interim.extend(interim);
                let must_close = must_close || is_request_invalid;
                self.send_response(exchange, wire, response, must_close, now)
            }
            Err(fault) => Ok(self.record_disconnect(exchange, &fault)),
        }
    }

    fn record_disconnect(&mut self, exchange: &Exchange, fault: &Fault) -> ConnectionAction {
        self.edge.metrics().client_disconnects.increment();
        self.record_exchange(
            exchange.request_meta(),
            fault.kind.status(),
            &fault.timing,
            0,
        );
        ConnectionAction::Close
    }

    /// Sends a response as far as the socket takes it at once.
    fn send_response(
        &mut self,
        exchange: &Exchange,
        wire: &WireState,
        response: Box<Response>,
        must_close: bool,
        now: Instant,
    ) -> Result<ConnectionAction, Box<PendingSend>> {
        let Response {
            status,
            fields,
            body,
            timing,
            max_rate,
            ..
        } = *response;
        let close = must_close || self.must_close();
        let (plan, body, handover_target) = plan_response(&exchange.head, status, body, close);
        let date = clock::http_date(now);
        let outgoing = OutgoingResponse {
            status_bytes_sent: usize::from(wire.status_bytes_sent),
            unsent_interim: &wire.unsent_interim,
            head: ResponseHeadParts {
                status,
                fields: &fields,
                framing: plan.framing,
                persistence: plan.persistence,
                date: Some(&date),
            },
            body,
            max_rate,
        };
        let summary = ResponseSummary {
            status,
            timing,
            keeps_alive: plan.keeps_alive,
            must_close,
        };
        let started = send::try_send(&self.stream, outgoing);
        self.finish_or_defer(exchange.request_meta(), summary, started, handover_target)
    }

    pub(super) async fn finish_sending(
        &mut self,
        pending: Box<PendingExchange>,
    ) -> ConnectionAction {
        let PendingExchange {
            mut exchange,
            mut wire,
            stage,
        } = *pending;
        let PendingStage::Sending(mut sending) = stage else {
            // Handlers are done by now.
            return ConnectionAction::Abort;
        };
        loop {
            let PendingSend {
                unsent,
                summary,
                handover_target,
            } = *sending;
            let (sent, done) = self.send_remaining(&exchange, &wire, unsent).await;
            match done {
                // No byte is out yet: the client gets the error. Its body is in memory, so this
                // happens once.
                Err(SendError::Body(fault)) if sent.total == 0 => {
                    let now = clock::now();
                    match self.respond(&mut exchange, &mut wire, Err(fault), now) {
                        Ok(action) => return action,
                        Err(error) => sending = error,
                    }
                }
                Ok(()) => {
                    return self.finish_sent(
                        exchange.request_meta(),
                        &summary,
                        sent,
                        handover_target,
                    );
                }
                Err(cut) => {
                    return self.finish_response(exchange.request_meta(), &summary, sent, Err(cut));
                }
            }
        }
    }

    /// Sends the rest of a response, and keeps what the client sends meanwhile.
    async fn send_remaining(
        &mut self,
        exchange: &Exchange,
        wire: &WireState,
        unsent: UnsentResponse,
    ) -> (SentBytes, Result<(), SendError>) {
        let pipelined = (!wire.is_body_unread).then_some(&mut self.received);
        let reader_slot = wire.reader_slot.clone();
        let watch = ClientWatch::new(reader_slot, pipelined, &mut self.is_half_closed);
        let (stream, limits) = (Arc::clone(&self.stream), exchange.transfer_limits());
        let sent = Box::pin(send::send_remaining(stream, unsent, limits, watch)).await;
        self.has_unscanned = !self.received.is_empty();
        sent
    }

    /// Concludes a response that is out, and hands the connection over if it has another owner now.
    fn finish_sent(
        &mut self,
        request: RequestMeta<'_>,
        summary: &ResponseSummary,
        sent: SentBytes,
        handover_target: Option<UpgradeTarget>,
    ) -> ConnectionAction {
        let Some(target) = handover_target else {
            return self.finish_response(request, summary, sent, Ok(()));
        };
        // The head is all there is of this response: it stands for the body in the log.
        let sent = SentBytes {
            head_len: 0,
            ..sent
        };
        self.finish_response(request, summary, sent, Ok(()));
        // This task ends now. Only the count stays, and goes with the socket.
        let (stream, early) = (Arc::clone(&self.stream), self.received.take_unread());
        if self.is_half_closed {
            stream.resume_end_reporting();
        }
        target.hand_over(&self.edge, stream, early);
        ConnectionAction::Close
    }

    /// Concludes a response that is out or cut; otherwise returns the rest.
    fn finish_or_defer(
        &mut self,
        request: RequestMeta<'_>,
        summary: ResponseSummary,
        started: Result<SendProgress, SendError>,
        handover_target: Option<UpgradeTarget>,
    ) -> Result<ConnectionAction, Box<PendingSend>> {
        match started {
            Ok(SendProgress::Done(sent)) => {
                Ok(self.finish_sent(request, &summary, sent, handover_target))
            }
            Ok(SendProgress::Partial(unsent)) => Err(Box::new(PendingSend {
                unsent,
                summary,
                handover_target,
            })),
            Err(cut) => Ok(self.finish_response(request, &summary, SentBytes::default(), Err(cut))),
        }
    }

    /// Records a response that is out, or cut, and decides on the connection.
    fn finish_response(
        &mut self,
        request: RequestMeta<'_>,
        summary: &ResponseSummary,
        sent: SentBytes,
        done: Result<(), SendError>,
    ) -> ConnectionAction {
        self.edge.metrics().bytes_out.add(sent.total);
        self.edge.metrics().count_response(summary.status.code());
        self.record_exchange(request, summary.status, &summary.timing, sent.body_bytes());
        if let Err(cut) = done {
            request.record_send_error(&self.edge, &cut);
            return ConnectionAction::Abort;
        }
        if summary.keeps_alive {
            return match summary.must_close {
                true => ConnectionAction::Linger,
                false => ConnectionAction::KeepAlive,
            };
        }
        // A close that the client did not ask for may cross its next request: with bytes unread the
        // kernel would reply with a reset, and the response could be lost to it.
        let may_send_more =
            summary.must_close || request.head.keep_alive() || !self.received.is_empty();
        match may_send_more && !self.is_half_closed {
            true => ConnectionAction::Linger,
            false => ConnectionAction::Close,
        }
    }

    /// Records an exchange that has ended, and starts the idle time.
    fn record_exchange(
        &mut self,
        request: RequestMeta<'_>,
        status: Status,
        timing: &RequestTiming,
        bytes: u64,
    ) {
        let now = clock::now();
        let idle = now + request.settings.limits.idle_timeout;
        self.idle_entry
            .record_activity(&self.edge.idle_connections, now);
        let drained = self.drain_guard.drain().idle_deadline_after_busy(now);
        // The response may have offered keep-alive before the drain began.
        self.is_drain_deadline_set = drained.is_some();
        self.deadline
            .set(drained.map_or(idle, |until| until.min(idle)));
        request.record_exchange(self.connection_context(), status, timing, bytes, now);
    }
}

/// The framing of a response, the body that is sent here, and the next owner of the connection. The
/// body of a response to HEAD is dropped, held or not.
fn plan_response(
    head: &RequestHead,
    status: Status,
    body: Body,
    close: bool,
) -> (ResponsePlan, Body, Option<UpgradeTarget>) {
    let is_bodiless = is_bodiless(head, status);
    let is_held = matches!(body, Body::Hold(_)) && !is_bodiless;
    let plan = ResponsePlan::new(head, status, body.length(), close || is_held);
    match body {
        Body::Takeover(takeover) => {
            let target = UpgradeTarget::Takeover(takeover);
            let plan = ResponsePlan::for_protocol_switch();
            (plan, Body::Empty, Some(target))
        }
        _ if is_bodiless => (plan, Body::Empty, None),
        Body::Hold(hold) => {
            let framing = match plan.framing {
                ResponseFraming::Chunked => HeldFraming::Chunked,
                _ => HeldFraming::UntilClose,
            };
            (plan, Body::Empty, Some(UpgradeTarget::Hold(hold, framing)))
        }
        body => (plan, body, None),
    }
}

/// The framing of a response, and whether the connection stays open behind it (RFC 9112 §6, §9).
struct ResponsePlan {
    framing: ResponseFraming,
    persistence: ConnectionPersistence,
    keeps_alive: bool,
}

impl ResponsePlan {
    fn new(head: &RequestHead, status: Status, length: Option<u64>, close: bool) -> Self {
        let old = head.version() == Version::Http10;
        let framing = match length {
            _ if status.forbids_body() => ResponseFraming::None,
            Some(length) => ResponseFraming::Length(length),
            // RFC 9110 §9.3.2: fields that only the content would tell may be left out for HEAD.
            None if head.method() == Method::Head => ResponseFraming::None,
            None if old => ResponseFraming::UntilClose,
            None => ResponseFraming::Chunked,
        };
        let delimited = !matches!(framing, ResponseFraming::UntilClose);
        let keeps_alive = head.keep_alive() && delimited && !close;
        let persistence = match (keeps_alive, old) {
            (false, _) => ConnectionPersistence::Close,
            (true, true) => ConnectionPersistence::KeepAliveHttp10,
            (true, false) => ConnectionPersistence::KeepAlive,
        };
        Self {
            framing,
            persistence,
            keeps_alive,
        }
    }

    /// For a head behind which the connection is no longer HTTP: it has no field about the
    /// connection of its own (RFC 9110 §15.2.2).
    const fn for_protocol_switch() -> Self {
        Self {
            framing: ResponseFraming::None,
            persistence: ConnectionPersistence::KeepAlive,
            keeps_alive: true,
        }
    }
}

/// Whether the response to `head` goes without its body.
fn is_bodiless(head: &RequestHead, status: Status) -> bool {
    head.method() == Method::Head || status.forbids_body()
}

/// The reason why the connection cannot switch protocols behind a response with this status, if
/// there is one. Behind a request that was not read to its end nothing says where the other
/// protocol begins.
fn switch_refusal(head: &RequestHead, status: Status, is_cut_short: bool) -> Option<&'static str> {
    if status != Status::SWITCHING_PROTOCOLS {
        Some("protocols switched without status 101")
    } else if !head.is_upgrade() {
        Some("protocols switched for a request that did not ask for it")
    } else {
        is_cut_short.then_some("protocols switched before the request's body was read")
    }
}
