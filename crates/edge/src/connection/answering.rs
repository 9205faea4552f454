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

use super::watching::interim;
use super::{Connection, Ending, Exchange, Fate, Left, Sending, Told, Unfinished};
use crate::access_log::Record;
use crate::asks::Answered;
use crate::faults;
use crate::plan::{Plan, has_body, is_bodiless};
use crate::redirect::Redirected;
use crate::router::Handlers;
use crate::send::{self, Cut, Filled, Outgoing, Rest, Sent, Started};
use crate::tunnel::Heir;
use crate::watch::{Behind, Watch};

impl Connection {
    /// Answers with what the first handler has at hand, if the request is as plain as that needs.
    pub(super) fn answer_at_hand(
        &mut self,
        told: Told<'_>,
        path: &RequestPath,
        handlers: &Handlers,
    ) -> Option<Result<Fate, Box<Sending>>> {
        let (head, arrived) = (told.head, told.arrived);
        if has_body(head) {
            return None;
        }
        let path = path.bytes(head);
        let asked = RequestView {
            head,
            path,
            scheme: (told.forwarded.and_then(|it| it.scheme)).unwrap_or(self.listener.scheme),
            arrived,
        };
        let close = self.is_last();
        let mut lent = None;
        let started = send::send_copied(&self.stream, |out| {
            handlers.first()?.try_inline(&asked, &mut |answer| {
                let InlineResponse { status, body, .. } = answer;
                let plan = Plan::new(head, status, Some(body.length()), close);
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
                let filled = Filled {
                    head: head_len,
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
        let end = Ending {
            status,
            timing,
            keeps: plan.keeps,
            must_close: false,
        };
        Some(self.started(told, end, started, None))
    }

    /// Sends what a request came to, as far as the socket takes it at once.
    pub(super) fn answer(
        &mut self,
        exchange: &mut Exchange,
        answered: Answered,
        now: Instant,
    ) -> Result<Fate, Box<Sending>> {
        // What a client sends behind CONNECT was meant for a tunnel and is no request.
        let is_tunnel = exchange.head.method() == Method::Connect;
        let mut must_close = !self.reclaim_reader(exchange) || is_tunnel;
        let answered = match exchange.redirected.take() {
            Some(redirected) => self.conclude_redirects(exchange, *redirected, answered),
            None => answered,
        };
        let answered = answered.and_then(|response| checked(response, &exchange.head, must_close));
        let mut response = match answered {
            Ok(response) => response,
            Err(fault) if fault.kind == FaultKind::ClientDisconnected => {
                return Ok(self.client_gone(exchange, fault));
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
                let client = client.unwrap_or_else(|| self.sender.address());
                let asked = (&*exchange.head, &*exchange.settings);
                faults::log_refusal(client, &fault, asked, &self.edge.repeats);
                Box::new(faults::respond(fault, Some(asked), &self.edge.repeats))
            }
        };
        if let Some(filters) = &exchange.filters {
            let values = self.values_of_response(exchange);
            let target = exchange.head.target_path_query();
            filters.response(&mut response.fields, &values, target);
        }
        exchange
            .ahead
            .append(&mut interim(&self.client, exchange.head.version()));
        self.send(exchange, response, must_close, now)
    }

    /// The client's answer, from that of a redirect's last target.
    fn conclude_redirects(
        &self,
        exchange: &Exchange,
        mut redirected: Redirected,
        answered: Answered,
    ) -> Answered {
        let filters = redirected.filters.take();
        let answered = answered.map(|mut response| {
            if let Some((filters, target)) = filters {
                let values = self.values_of_response(exchange);
                filters.response(&mut response.fields, &values, &target);
            }
            response
        });
        redirected.conclude(answered)
    }

    /// Records an exchange whose client did not wait for the answer.
    fn client_gone(&mut self, exchange: &Exchange, fault: Fault) -> Fate {
        self.edge.metrics().client_disconnects.increment();
        let end = Ending {
            status: fault.kind.status(),
            timing: *fault.timing,
            keeps: false,
            must_close: false,
        };
        self.record(exchange.told(), &end, 0);
        Fate::Close
    }

    /// Sends a response as far as the socket takes it at once.
    fn send(
        &mut self,
        exchange: &Exchange,
        response: Box<Response>,
        must_close: bool,
        now: Instant,
    ) -> Result<Fate, Box<Sending>> {
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
        let close = must_close || self.is_last();
        let (plan, body, heir) = planned(head, status, body, close);
        let date = clock::http_date(now);
        let line = ResponseHeadParts {
            status,
            fields: &fields,
            framing: plan.framing,
            persistence: plan.persist,
            date: Some(&date),
        };
        let end = Ending {
            status,
            timing,
            keeps: plan.keeps,
            must_close,
        };
        let outgoing = Outgoing {
            begun: usize::from(exchange.begun),
            ahead: &exchange.ahead,
            line,
            body,
            rate_max,
        };
        let started = send::send_now(&self.stream, outgoing);
        self.started(exchange.told(), end, started, heir)
    }

    /// Awaits the rest of an answer.
    pub(super) async fn finish_sending(&mut self, unfinished: Box<Unfinished>) -> Fate {
        let Unfinished { mut exchange, rest } = *unfinished;
        let Left::Sending(mut sending) = rest else {
            // Only asked when nothing else is left.
            return Fate::Abort;
        };
        loop {
            let Sending { rest, end, heir } = *sending;
            let (sent, done) = self.send_rest(&exchange, rest).await;
            match done {
                // Nothing of it is out yet: the client can still be told. What it is told has a body in
                // memory, so this happens once.
                Err(Cut::Body(fault)) if sent.total == 0 => {
                    match self.answer(&mut exchange, Err(fault), clock::now()) {
                        Ok(fate) => return fate,
                        Err(telling) => sending = telling,
                    }
                }
                Ok(()) => return self.is_out(exchange.told(), &end, sent, heir),
                Err(cut) => return self.conclude(exchange.told(), &end, sent, Err(cut)),
            }
        }
    }

    /// Sends what is left of a response, and keeps what the client sends meanwhile.
    async fn send_rest(&mut self, exchange: &Exchange, rest: Rest) -> (Sent, Result<(), Cut>) {
        let behind = match exchange.is_cut_short {
            true => Behind::Discarded,
            false => Behind::Kept(&mut self.pending),
        };
        let watch = Watch::new(exchange.home.clone(), behind, &mut self.has_ended);
        let (stream, limits) = (Arc::clone(&self.stream), &exchange.settings.limits);
        let sent = Box::pin(send::send_rest(stream, rest, limits, watch)).await;
        self.unscanned = !self.pending.is_empty();
        sent
    }

    /// Concludes a response that is out; what there is of the connection goes to its heir, if it has one.
    fn is_out(&mut self, told: Told<'_>, end: &Ending, sent: Sent, heir: Option<Heir>) -> Fate {
        let Some(heir) = heir else {
            return self.conclude(told, end, sent, Ok(()));
        };
        // The head is all there is of this answer: it stands for the body in the log.
        let sent = Sent { head: 0, ..sent };
        self.conclude(told, end, sent, Ok(()));
        // What is here ends; nothing stays of it but the count, which goes with the socket.
        let (stream, early) = (Arc::clone(&self.stream), self.pending.take());
        if self.has_ended {
            stream.resume_end_reporting();
        }
        heir.inherit(&self.edge, stream, early);
        Fate::Close
    }

    /// Concludes a response that is out or cut; otherwise gives what is left to send.
    fn started(
        &mut self,
        told: Told<'_>,
        end: Ending,
        started: Result<Started, Cut>,
        heir: Option<Heir>,
    ) -> Result<Fate, Box<Sending>> {
        match started {
            Ok(Started::Done(sent)) => Ok(self.is_out(told, &end, sent, heir)),
            Ok(Started::Rest(rest)) => Err(Box::new(Sending { rest, end, heir })),
            Err(cut) => Ok(self.conclude(told, &end, Sent::default(), Err(cut))),
        }
    }

    /// Records a response that is out, or cut, and says what becomes of the connection.
    fn conclude(
        &mut self,
        told: Told<'_>,
        end: &Ending,
        sent: Sent,
        done: Result<(), Cut>,
    ) -> Fate {
        self.edge.metrics().bytes_out.add(sent.total);
        self.edge.metrics().count_response(end.status.code());
        self.record(told, end, sent.body());
        match done {
            // Nothing more can come.
            Ok(()) if self.has_ended && !end.keeps => Fate::Close,
            Ok(()) if end.must_close => Fate::Linger,
            // A close that the client did not ask for may cross its next request: with bytes unread
            // the kernel would answer by a reset, and the response could be lost to it.
            Ok(()) if !end.keeps && (told.head.keep_alive() || !self.pending.is_empty()) => {
                Fate::Linger
            }
            Ok(()) if !end.keeps => Fate::Close,
            Ok(()) => Fate::Keep,
            Err(cut) => self.cut(&cut, told.head),
        }
    }

    fn cut(&self, cut: &Cut, head: &RequestHead) -> Fate {
        let (method, target) = (head.method_str(), head.target());
        match cut {
            Cut::Gone => self.edge.metrics().client_disconnects.increment(),
            Cut::TooSlow => {
                self.edge.metrics().slow_clients.increment();
                log::debug!("{method} {target}: the client took the response too slowly");
            }
            // The body's own side has logged the cut, with its cause.
            Cut::Body(fault) if fault.kind == FaultKind::ClientTooSlow => {
                self.edge.metrics().slow_clients.increment();
                log::debug!("{method} {target}: response cut: {}", fault.cause);
            }
            Cut::Body(fault) => {
                if let Some(count) = self.edge.repeats.admit_line(&fault.cause, clock::now()) {
                    let more = suppressed_suffix(count);
                    log::error!("{method} {target}: response cut: {}{more}", fault.cause);
                }
            }
        }
        Fate::Abort
    }

    /// Moves the idle deadline, counts and logs.
    fn record(&mut self, told: Told<'_>, end: &Ending, bytes: u64) {
        let now = clock::now();
        let idle = now + told.settings.limits.idle_timeout;
        self.place.touch(&self.edge.waiting, now);
        let drained = self.guard.drain().idle_until_after_busy(now);
        // It may have said that the connection is kept before the drain began.
        self.is_granted = drained.is_some();
        self.deadline
            .set(drained.map_or(idle, |until| until.min(idle)));
        let total = now.saturating_duration_since(told.arrived);
        self.edge.metrics().active_requests.add(-1);
        self.edge.metrics().total_time.record_local(total);
        if let Some(log) = &told.settings.access_log {
            let (head, peer, timing) = (told.head, self.sender.peer(), &end.timing);
            let client = told.forwarded.and_then(|it| it.client);
            let client = client.unwrap_or_else(|| self.sender.address());
            let status = end.status.code();
            log.write(&Record {
                head,
                client,
                peer,
                status,
                bytes,
                timing,
                total,
            });
        }
    }
}

/// How a response is framed, what of its body is sent here, and who gets the connection then. What nobody
/// may get is dropped: the body of an answer to HEAD, held or not.
fn planned(
    head: &RequestHead,
    status: Status,
    body: Body,
    close: bool,
) -> (Plan, Body, Option<Heir>) {
    let is_bodiless = is_bodiless(head, status);
    let is_held = matches!(body, Body::Hold(_)) && !is_bodiless;
    let plan = Plan::new(head, status, body.length(), close || is_held);
    match body {
        Body::Takeover(takeover) => {
            let heir = Heir::Takeover(takeover);
            (Plan::switch(), Body::Empty, Some(heir))
        }
        _ if is_bodiless => (plan, Body::Empty, None),
        Body::Hold(hold) => {
            let framing = match plan.framing {
                ResponseFraming::Chunked => HeldFraming::Chunked,
                _ => HeldFraming::UntilClose,
            };
            (plan, Body::Empty, Some(Heir::Hold(hold, framing)))
        }
        body => (plan, body, None),
    }
}

/// A response that can be sent: one that is final, or the switch of protocols that was asked for. With
/// its request not read to the end (`is_cut_short`) nobody could say where the other protocol begins.
fn checked(response: Box<Response>, head: &RequestHead, is_cut_short: bool) -> Answered {
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
