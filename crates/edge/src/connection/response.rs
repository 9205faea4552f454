//! From what the handlers came to, to bytes that are out and an exchange that is recorded.
//!
//! A part of `connection`. What must stay true: a response that cannot be sent as it is becomes an
//! error that can; after any doubt about the request's end the connection closes; each exchange is
//! recorded once.

use std::sync::Arc;
use std::time::Instant;

use penstock_exchange::field_policy::remove_internal;
use penstock_exchange::{
    Body, Fault, FaultKind, HandlerName, HeldFraming, InlineBody, InlineResponse, RequestPath,
    RequestTiming, RequestView, Response, grip,
};
use penstock_http::{Method, RequestHead, ResponseFraming, ResponseHeadParts, Status, encode_head};
use penstock_runtime::clock;
use penstock_runtime::log_throttle::suppressed_suffix;

use super::handler_wait::take_interim;
use super::{
    Connection, ConnectionAction, Exchange, ExchangeState, PendingExchange, PendingSend,
    RequestMeta, ResponseSummary,
};
use crate::access_log::AccessRecord;
use crate::client_watch::{ClientWatch, PipelinedBytes};
use crate::dispatch::ResponseResult;
use crate::faults;
use crate::handover::UpgradeTarget;
use crate::internal_redirect::RedirectChain;
use crate::response_plan::{ResponsePlan, has_request_body, is_bodiless};
use crate::router::Handlers;
use crate::send::{
    self, BufferedResponse, OutgoingResponse, SendError, SendProgress, SentBytes, UnsentResponse,
};

impl Connection {
    /// Answers with what the first handler has at hand, if the request is as plain as that needs.
    pub(super) fn respond_inline(
        &mut self,
        told: RequestMeta<'_>,
        path: &RequestPath,
        handlers: &Handlers,
    ) -> Option<Result<ConnectionAction, Box<PendingSend>>> {
        let (head, arrived) = (told.head, told.arrived);
        if has_request_body(head) {
            return None;
        }
        let path = path.bytes(head);
        let asked = RequestView {
            head,
            path,
            scheme: (told.forwarded.and_then(|it| it.scheme)).unwrap_or(self.listener.scheme),
            arrived,
        };
        let close = self.must_close();
        let mut lent = None;
        let started = send::try_send_buffered(&self.stream, |out| {
            handlers.first()?.try_inline(&asked, &mut |answer| {
                let InlineResponse { status, body, .. } = answer;
                let plan = ResponsePlan::new(head, status, Some(body.length()), close);
                let line = ResponseHeadParts {
                    status,
                    fields: answer.fields,
                    framing: plan.framing,
                    persistence: plan.persist,
                    date: Some(&clock::http_date(arrived)),
                };
                encode_head(out, &line);
                let head_len = out.len();
                let file = match body {
                    _ if is_bodiless(head, status) => None,
                    InlineBody::Bytes(bytes) => {
                        out.extend_from_slice(bytes);
                        None
                    }
                    InlineBody::File(file) => Some(file),
                };
                let (handler, framing) = (answer.handler, plan.framing);
                let filled = BufferedResponse {
                    head_len,
                    file,
                    framing,
                };
                lent = Some(((status, handler, plan), Some(filled)));
            });
            lent.as_mut()?.1.take()
        })?;
        let ((status, handler, plan), _) = lent?;
        let timing = RequestTiming {
            handler: Some(HandlerName::Component(handler)),
            ..RequestTiming::default()
        };
        let end = ResponseSummary {
            status,
            timing,
            keeps_alive: plan.keeps_alive,
            must_close: false,
        };
        Some(self.finish_or_defer(told, end, started, None))
    }

    /// Sends what a request came to, as far as the socket takes it at once.
    pub(super) fn respond(
        &mut self,
        exchange: &mut Exchange,
        answered: ResponseResult,
        now: Instant,
    ) -> Result<ConnectionAction, Box<PendingSend>> {
        // What a client sends behind CONNECT was meant for a tunnel and is no request.
        let is_tunnel = exchange.head.method() == Method::Connect;
        let mut must_close = !self.reclaim_body_reader(exchange) || is_tunnel;
        let answered = match exchange.redirects.take() {
            Some(redirected) => self.finish_redirects(exchange, *redirected, answered),
            None => answered,
        };
        let answered =
            answered.and_then(|response| check_sendable(response, &exchange.head, must_close));
        let mut response = match answered {
            Ok(response) => response,
            Err(fault) if fault.kind == FaultKind::ClientDisconnected => {
                return Ok(self.record_disconnect(exchange, fault));
            }
            Err(fault) => {
                must_close |= fault.kind == FaultKind::BadRequest;
                if fault.kind == FaultKind::ClientTooSlow {
                    self.edge.metrics().slow_clients.increment();
                }
                let client = exchange
                    .forwarded
                    .as_ref()
                    .and_then(|forwarded| forwarded.client);
                let client = client.unwrap_or_else(|| self.source.client_address());
                let asked = (&*exchange.head, &*exchange.settings);
                faults::log_refused_request(client, &fault, asked, &self.edge.log_throttle);
                Box::new(faults::respond(fault, Some(asked), &self.edge.log_throttle))
            }
        };
        if let Some(filters) = &exchange.filters {
            let values = self.response_placeholders(exchange);
            let target = exchange.head.target_path_query();
            filters.apply_to_response(&mut response.fields, &values, target);
        }
        exchange.unsent_interim.append(&mut take_interim(
            &self.client_state,
            exchange.head.version(),
        ));
        self.send_response(exchange, response, must_close, now)
    }

    /// The client's answer, from that of a redirect's last target.
    fn finish_redirects(
        &self,
        exchange: &Exchange,
        mut redirected: RedirectChain,
        answered: ResponseResult,
    ) -> ResponseResult {
        let filters = redirected.filters.take();
        let answered = answered.map(|mut response| {
            if let Some((filters, target)) = filters {
                let values = self.response_placeholders(exchange);
                filters.apply_to_response(&mut response.fields, &values, &target);
            }
            response
        });
        redirected.finish(answered)
    }

    /// Records an exchange whose client did not wait for the answer.
    fn record_disconnect(&mut self, exchange: &Exchange, fault: Fault) -> ConnectionAction {
        self.edge.metrics().client_disconnects.increment();
        let end = ResponseSummary {
            status: fault.kind.status(),
            timing: *fault.timing,
            keeps_alive: false,
            must_close: false,
        };
        self.record_exchange(exchange.meta(), &end, 0);
        ConnectionAction::Close
    }

    /// Sends a response as far as the socket takes it at once.
    fn send_response(
        &mut self,
        exchange: &Exchange,
        response: Box<Response>,
        must_close: bool,
        now: Instant,
    ) -> Result<ConnectionAction, Box<PendingSend>> {
        let head = &exchange.head;
        let Response {
            status,
            mut fields,
            body,
            timing,
            max_rate: rate_max,
            created_at: _,
            has_accel_expires: speaks_to_cache,
            has_grip: speaks_to_hub,
            passes_grip: is_for_front,
            disables_buffering: _,
        } = *response;
        if speaks_to_cache {
            fields.remove("x-accel-expires");
        }
        if speaks_to_hub && !is_for_front {
            grip::remove_grip_fields(&mut fields);
        }
        // Nobody in front acts on such fields of a 101, whoever copied them into its head.
        if status == Status::SWITCHING_PROTOCOLS {
            remove_internal(&mut fields);
        }
        let close = must_close || self.must_close();
        let (plan, body, heir) = plan_response(head, status, body, close);
        let date = clock::http_date(now);
        let line = ResponseHeadParts {
            status,
            fields: &fields,
            framing: plan.framing,
            persistence: plan.persist,
            date: Some(&date),
        };
        let end = ResponseSummary {
            status,
            timing,
            keeps_alive: plan.keeps_alive,
            must_close,
        };
        let outgoing = OutgoingResponse {
            status_bytes_sent: usize::from(exchange.status_bytes_sent),
            unsent_interim: &exchange.unsent_interim,
            head: line,
            body,
            max_rate: rate_max,
        };
        let started = send::try_send(&self.stream, outgoing);
        self.finish_or_defer(exchange.meta(), end, started, heir)
    }

    /// Awaits the rest of an answer.
    pub(super) async fn finish_sending(
        &mut self,
        unfinished: Box<PendingExchange>,
    ) -> ConnectionAction {
        let PendingExchange {
            mut exchange,
            state: rest,
        } = *unfinished;
        let ExchangeState::Sending(mut sending) = rest else {
            // Only asked when nothing else is left.
            return ConnectionAction::Abort;
        };
        loop {
            let PendingSend {
                unsent: rest,
                summary: end,
                upgrade_target: heir,
            } = *sending;
            let (sent, done) = self.send_remaining(&exchange, rest).await;
            match done {
                // Nothing of it is out yet: the client can still be told. What it is told has a body in
                // memory, so this happens once.
                Err(SendError::Body(fault)) if sent.total == 0 => {
                    match self.respond(&mut exchange, Err(fault), clock::now()) {
                        Ok(fate) => return fate,
                        Err(telling) => sending = telling,
                    }
                }
                Ok(()) => return self.finish_sent(exchange.meta(), &end, sent, heir),
                Err(cut) => return self.finish_response(exchange.meta(), &end, sent, Err(cut)),
            }
        }
    }

    /// Sends what is left of a response, and keeps what the client sends meanwhile.
    async fn send_remaining(
        &mut self,
        exchange: &Exchange,
        rest: UnsentResponse,
    ) -> (SentBytes, Result<(), SendError>) {
        let behind = match exchange.is_body_unread {
            true => PipelinedBytes::Discard,
            false => PipelinedBytes::Keep(&mut self.received),
        };
        let watch = ClientWatch::new(
            exchange.reader_slot.clone(),
            behind,
            &mut self.is_half_closed,
        );
        let (stream, limits) = (Arc::clone(&self.stream), &exchange.settings.limits);
        let sent = Box::pin(send::send_remaining(stream, rest, limits, watch)).await;
        self.has_unscanned = !self.received.is_empty();
        sent
    }

    /// Concludes a response that is out; what there is of the connection goes to its heir, if it has one.
    fn finish_sent(
        &mut self,
        told: RequestMeta<'_>,
        end: &ResponseSummary,
        sent: SentBytes,
        heir: Option<UpgradeTarget>,
    ) -> ConnectionAction {
        let Some(heir) = heir else {
            return self.finish_response(told, end, sent, Ok(()));
        };
        // The head is all there is of this answer: it stands for the body in the log.
        let sent = SentBytes { head: 0, ..sent };
        self.finish_response(told, end, sent, Ok(()));
        // What is here ends; nothing stays of it but the count, which goes with the socket.
        let (stream, early) = (Arc::clone(&self.stream), self.received.take_unread());
        if self.is_half_closed {
            stream.resume_end_reporting();
        }
        heir.hand_over(&self.edge, stream, early);
        ConnectionAction::Close
    }

    /// Concludes a response that is out or cut; otherwise gives what is left to send.
    fn finish_or_defer(
        &mut self,
        told: RequestMeta<'_>,
        end: ResponseSummary,
        started: Result<SendProgress, SendError>,
        heir: Option<UpgradeTarget>,
    ) -> Result<ConnectionAction, Box<PendingSend>> {
        match started {
            Ok(SendProgress::Done(sent)) => Ok(self.finish_sent(told, &end, sent, heir)),
            Ok(SendProgress::Partial(rest)) => Err(Box::new(PendingSend {
                unsent: rest,
                summary: end,
                upgrade_target: heir,
            })),
            Err(cut) => Ok(self.finish_response(told, &end, SentBytes::default(), Err(cut))),
        }
    }

    /// Records a response that is out, or cut, and says what becomes of the connection.
    fn finish_response(
        &mut self,
        told: RequestMeta<'_>,
        end: &ResponseSummary,
        sent: SentBytes,
        done: Result<(), SendError>,
    ) -> ConnectionAction {
        self.edge.metrics().bytes_out.add(sent.total);
        self.edge.metrics().count_response(end.status.code());
        self.record_exchange(told, end, sent.body());
        match done {
            // Nothing more can come.
            Ok(()) if self.is_half_closed && !end.keeps_alive => ConnectionAction::Close,
            Ok(()) if end.must_close => ConnectionAction::Linger,
            // A close that the client did not ask for may cross its next request: with bytes unread
            // the kernel would answer by a reset, and the response could be lost to it.
            Ok(()) if !end.keeps_alive && (told.head.keep_alive() || !self.received.is_empty()) => {
                ConnectionAction::Linger
            }
            Ok(()) if !end.keeps_alive => ConnectionAction::Close,
            Ok(()) => ConnectionAction::KeepAlive,
            Err(cut) => self.abort_send(&cut, told.head),
        }
    }

    fn abort_send(&self, cut: &SendError, head: &RequestHead) -> ConnectionAction {
        let (method, target) = (head.method_str(), head.target());
        match cut {
            SendError::ClientDisconnected => self.edge.metrics().client_disconnects.increment(),
            SendError::ClientTooSlow => {
                self.edge.metrics().slow_clients.increment();
                log::debug!("{method} {target}: the client took the response too slowly");
            }
            // The body's own side has logged the cut, with its cause.
            SendError::Body(fault) if fault.kind == FaultKind::ClientTooSlow => {
                self.edge.metrics().slow_clients.increment();
                log::debug!("{method} {target}: response cut: {}", fault.cause);
            }
            SendError::Body(fault) => {
                if let Some(count) = self
                    .edge
                    .log_throttle
                    .admit_line(&fault.cause, clock::now())
                {
                    let more = suppressed_suffix(count);
                    log::error!("{method} {target}: response cut: {}{more}", fault.cause);
                }
            }
        }
        ConnectionAction::Abort
    }

    /// Moves the idle deadline, counts and logs.
    fn record_exchange(&mut self, told: RequestMeta<'_>, end: &ResponseSummary, bytes: u64) {
        let now = clock::now();
        let idle = now + told.settings.limits.idle_timeout;
        self.idle_entry.restart(&self.edge.idle_connections, now);
        let drained = self.drain_guard.drain().idle_until_after_busy(now);
        // It may have said that the connection is kept before the drain began.
        self.is_drain_deadline_set = drained.is_some();
        self.deadline
            .set(drained.map_or(idle, |until| until.min(idle)));
        let total = now.saturating_duration_since(told.arrived);
        self.edge.metrics().active_requests.add(-1);
        self.edge.metrics().total_time.record_local(total);
        if let Some(log) = &told.settings.access_log {
            let (head, peer, timing) = (told.head, self.source.peer(), &end.timing);
            let client = told.forwarded.and_then(|it| it.client);
            let client = client.unwrap_or_else(|| self.source.client_address());
            let status = end.status.code();
            log.write(&AccessRecord {
                head,
                client,
                peer,
                status,
                bytes,
                timing,
                total_time: total,
            });
        }
    }
}

/// How a response is framed, what of its body is sent here, and who gets the connection then. What nobody
/// may get is dropped: the body of an answer to HEAD, held or not.
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
            let heir = UpgradeTarget::Takeover(takeover);
            (ResponsePlan::for_protocol_switch(), Body::Empty, Some(heir))
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

/// A response that can be sent: one that is final, or the switch of protocols that was asked for. With
/// its request not read to the end (`is_cut_short`) nobody could say where the other protocol begins.
fn check_sendable(
    response: Box<Response>,
    head: &RequestHead,
    is_cut_short: bool,
) -> ResponseResult {
    let is_switch = matches!(response.body, Body::Takeover(_));
    let cause = match (is_switch, response.status) {
        (false, status) if status.is_informational() => "an interim status on a final response",
        (false, _) => return Ok(response),
        (true, Status::SWITCHING_PROTOCOLS) if !head.is_upgrade() => {
            "protocols switched for a request that did not ask for it"
        }
        (true, Status::SWITCHING_PROTOCOLS) if is_cut_short => {
            "protocols switched before the request's body was read"
        }
        (true, Status::SWITCHING_PROTOCOLS) => return Ok(response),
        (true, _) => "protocols switched without status 101",
    };
    Err(Fault::new(FaultKind::BackendProtocolError, cause).with_timing(response.timing))
}
