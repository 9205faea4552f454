//! One HTTP/1 connection: wait for a head, find its handlers, send the answer, again.
//!
//! The idle state is small and owns no buffer: heads are read into the loop's shared buffer and, in
//! the common case, parsed, answered and forgotten in one poll. Whatever needs more (bodies, slow
//! sends, lingering) is boxed when it begins. What must stay true: bytes behind a request are kept
//! for the next one; one that waits for a request may be told to close, to make room for others; after any doubt about framing the connection closes; a client that leaves is
//! noticed while its request waits; one that only closes its sending side gets its answer (RFC 9112 §9.6).

mod handler_wait;
mod request;
mod response;

use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use penstock_exchange::{
    ClientState, Fault, FaultKind, ForwardedInfo, ListenerInfo, Reply, RequestTiming,
};
use penstock_http::{
    HeadScanner, ParseProgress, Persistence, RequestHead, RequestHeadError, ResponseFraming,
    ResponseHeadParts, Status,
};
use penstock_runtime::{LazyDeadline, Stream, buffers, clock, drain, loops};

use self::request::{EffectiveRequest, RedirectOutcome};
use crate::accept::ConnectionSource;
use crate::client_watch::{ClientWatch, PipelinedBytes};
use crate::dispatch::{self, HandlerOutcome, RouteMatch, RunningHandler, run_handlers};
use crate::filters::Filters;
use crate::handover::{ConnectionGuard, UpgradeTarget};
use crate::idle_connections::IdleEntry;
use crate::internal_redirect::RedirectChain;
use crate::receive_buffer::ReceiveBuffer;
use crate::request_body::ReaderSlot;
use crate::send::{self, OutgoingResponse, SendProgress, UnsentResponse};
use crate::{Settings, faults};

/// Pipelined requests answered in a row before other connections get their turn.
const PIPELINE_BATCH: u32 = 16;

/// How much of a refused request's first line is logged.
pub(crate) const MAX_LOGGED_LINE_BYTES: usize = 200;

/// How long a closing connection reads over what the client still sends, so that our last answer is
/// not lost to a reset (RFC 9112 §9.6).
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);

/// One connection.
pub(crate) struct Connection {
    edge: ConnectionGuard,
    stream: Arc<Stream>,
    source: ConnectionSource,
    listener: Arc<ListenerInfo>,
    client_state: Arc<ClientState>,
    drain_guard: drain::DrainGuard,
    is_drain_registered: bool,
    deadline: LazyDeadline,
    scanner: HeadScanner,
    /// Received and not yet used; empty and without memory while the connection is idle.
    received: ReceiveBuffer,
    /// Whether `pending` has bytes that the scanner has not seen.
    has_unscanned: bool,
    /// Whether the deadline minds the drain: a response has ended in it, and the client shall hear of it
    /// by the next one.
    is_drain_deadline_set: bool,
    /// The client closed its sending side: what is here is all that it asks.
    is_half_closed: bool,
    /// No request has come yet: its head counts from the accept.
    awaits_first_request: bool,
    /// When the first byte of an unfinished head came.
    head_started_at: Option<Instant>,
    /// Where it is found when it waits for a request and there is no room for others.
    idle_entry: IdleEntry,
}

/// A head that is none, with as much of its first line as the log shows.
struct RefusedHead {
    error: RequestHeadError,
    line: Box<[u8]>,
}

/// What the wait for a head came to.
enum HeadOutcome {
    Head(RequestHead),
    Refused(Box<RefusedHead>),
    /// A head began and did not arrive in time.
    TimedOut,
    /// The client closed, was idle for too long, or the server drains.
    Closed,
}

/// What was done at once when a wait for a head had ended. Small: the waiting task has room for it always.
enum ReadOutcome {
    Done(ConnectionAction),
    /// The rest of an exchange.
    Pending(Box<PendingExchange>),
    /// There is no request, and the client is to be told.
    Refused(Box<HeadOutcome>),
}

/// One request in the hands of its connection.
struct Exchange {
    settings: Arc<Settings>,
    head: Arc<RequestHead>,
    /// What trusted proxies say of it.
    forwarded: Option<Arc<ForwardedInfo>>,
    arrived: Instant,
    /// Where the reading side comes back to, when the request has a body; until it was taken back.
    reader_slot: Option<ReaderSlot>,
    /// The body was not read to its end when the answer was begun: nothing behind it can be read.
    is_body_unread: bool,
    /// What the route changes of its responses.
    filters: Option<Arc<Filters>>,
    /// What handlers were asked last, where that is not what the client did.
    effective_request: Option<Box<EffectiveRequest>>,
    /// What internal redirects brought, if there were any.
    redirects: Option<Box<RedirectChain>>,
    /// Interim responses that the socket has not taken yet: they go before the final head.
    unsent_interim: Vec<u8>,
    /// So many bytes of the next head are out ([`handler_wait::STATUS_LINE_START`]).
    status_bytes_sent: u8,
}

/// What an exchange is judged and recorded by.
#[derive(Clone, Copy)]
struct RequestMeta<'a> {
    settings: &'a Settings,
    head: &'a RequestHead,
    forwarded: Option<&'a ForwardedInfo>,
    arrived: Instant,
}

/// What is known of a response once its head is encoded.
struct ResponseSummary {
    status: Status,
    timing: RequestTiming,
    /// Whether the connection may serve another request.
    keeps_alive: bool,
    /// The request was not read to its end, or not understood.
    must_close: bool,
}

/// An exchange that could not be finished at once.
struct PendingExchange {
    exchange: Exchange,
    state: ExchangeState,
}

/// What is left of it.
enum ExchangeState {
    Handling(HandlerWait),
    Sending(Box<PendingSend>),
}

/// A handler at work, and what of its client is watched meanwhile.
struct HandlerWait {
    handler: RunningHandler,
    /// The reading side is lent to whoever reads the body, who watches the socket until it is back.
    is_reader_lent: bool,
    is_watching_client: bool,
}

struct PendingSend {
    unsent: UnsentResponse,
    summary: ResponseSummary,
    /// Who gets the connection then, instead of a next request.
    upgrade_target: Option<UpgradeTarget>,
}

/// What becomes of the connection after an exchange.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ConnectionAction {
    KeepAlive,
    /// End the task; the socket closes, unless somebody took it over.
    Close,
    /// Close, but read over what the client may still be sending.
    Linger,
    /// Close so that the client sees that its response was cut.
    Abort,
}

impl Connection {
    pub(crate) fn new(
        edge: ConnectionGuard,
        stream: Arc<Stream>,
        sender: ConnectionSource,
        listener: Arc<ListenerInfo>,
        early: Vec<u8>,
    ) -> Self {
        let guard = edge.drain.guard();
        let now = clock::now();
        let deadline = LazyDeadline::new(now + edge.settings().limits.header_timeout);
        let place = IdleEntry::new(&edge.idle_connections, now);
        Self {
            edge,
            stream,
            source: sender,
            listener,
            client_state: Arc::default(),
            drain_guard: guard,
            is_drain_registered: false,
            deadline,
            scanner: HeadScanner::new(),
            has_unscanned: !early.is_empty(),
            is_drain_deadline_set: false,
            is_half_closed: false,
            received: ReceiveBuffer::from(early),
            awaits_first_request: true,
            head_started_at: None,
            idle_entry: place,
        }
    }

    /// Lets the first request come as late as any other: the connection was made for requests to
    /// come.
    pub(crate) fn with_idle_deadline(mut self) -> Self {
        self.awaits_first_request = false;
        let idle = self.edge.settings().limits.idle_timeout;
        self.deadline.set(clock::now() + idle);
        self
    }

    /// Serves the connection until it ends.
    ///
    /// Not an `async fn`: that would keep the connection twice, as argument and as local.
    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn would be twice as large"
    )]
    pub(crate) fn run(mut self) -> impl Future<Output = ()> + Send {
        async move {
            let mut in_a_row = 0;
            loop {
                // Requests that came in one piece must not keep the loop from everybody else.
                in_a_row = if self.has_unscanned { in_a_row + 1 } else { 0 };
                if in_a_row == PIPELINE_BATCH {
                    in_a_row = 0;
                    Box::pin(loops::yield_now()).await;
                }
                let fate = match std::future::poll_fn(|cx| self.poll_request(cx)).await {
                    ReadOutcome::Done(fate) => fate,
                    ReadOutcome::Pending(mut left) => {
                        // Polled here: the usual wait for a handler allocates nothing more.
                        match std::future::poll_fn(|cx| self.poll_handlers(cx, &mut left)).await {
                            Some(fate) => fate,
                            None => Box::pin(self.finish_sending(left)).await,
                        }
                    }
                    ReadOutcome::Refused(refused) => Box::pin(self.send_refusal(*refused)).await,
                };
                match fate {
                    ConnectionAction::KeepAlive => {}
                    ConnectionAction::Close => return,
                    ConnectionAction::Linger => {
                        return Box::pin(linger(Arc::clone(&self.stream))).await;
                    }
                    ConnectionAction::Abort => return self.stream.abort(),
                }
            }
        }
    }

    /// Waits for the next request, and does of it what can be done at once.
    fn poll_request(&mut self, cx: &mut Context<'_>) -> Poll<ReadOutcome> {
        Poll::Ready(match ready!(self.poll_head(cx)) {
            HeadOutcome::Head(head) => match self.start_exchange(head) {
                Ok(fate) => ReadOutcome::Done(fate),
                Err(left) => {
                    self.edge.idle_connections.remove(&mut self.idle_entry);
                    ReadOutcome::Pending(left)
                }
            },
            HeadOutcome::Closed => ReadOutcome::Done(ConnectionAction::Close),
            refused => {
                self.edge.idle_connections.remove(&mut self.idle_entry);
                ReadOutcome::Refused(Box::new(refused))
            }
        })
    }

    /// Waits for the next request's head.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<HeadOutcome> {
        if !std::mem::replace(&mut self.is_drain_registered, true) {
            self.drain_guard
                .wake_at_drain(loops::current_index(), cx.waker().clone());
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
            && let Some(until) = self.drain_guard.drain().idle_until()
        {
            // The next request may be on its way: a close now could cross it.
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

    /// Looks for a whole head in what has just come; what it does not use goes to `pending`.
    fn scan_received(&mut self, received: &[u8]) -> Option<HeadOutcome> {
        if !self.received.is_empty() {
            self.received.push(received);
            return self.scan_pending();
        }
        match self.scanner.scan(received, &self.edge.head_limits()) {
            Ok(ParseProgress::Complete((head, used))) => {
                self.received.push(&received[used..]);
                Some(self.complete_head(head))
            }
            Ok(ParseProgress::Partial) => {
                self.received.push(received);
                self.note_partial_head();
                None
            }
            Err(error) => Some(refused_head(error, received)),
        }
    }

    /// Looks for a whole head in `pending`.
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

    /// Whether the answer to this request is the connection's last: the server drains, or the client
    /// closed its sending side, and no other request has come with this one.
    fn must_close(&self) -> bool {
        (self.drain_guard.drain().is_draining() || self.is_half_closed) && !self.has_unscanned
    }

    fn complete_head(&mut self, head: RequestHead) -> HeadOutcome {
        self.scanner.reset();
        self.head_started_at = None;
        self.awaits_first_request = false;
        self.has_unscanned = !self.received.is_empty();
        HeadOutcome::Head(head)
    }

    /// The clock for a head runs from its first byte; that for the first one, from the accept.
    fn note_partial_head(&mut self) {
        if self.head_started_at.is_none() {
            let now = clock::now();
            self.head_started_at = Some(now);
            self.idle_entry.restart(&self.edge.idle_connections, now);
            if !self.awaits_first_request {
                self.deadline
                    .set(now + self.edge.settings().limits.header_timeout);
            }
        }
    }

    /// One request and its response, as far as it goes at once.
    ///
    /// # Errors
    /// What is left to do, to be awaited in [`Connection::finish`].
    fn start_exchange(
        &mut self,
        head: RequestHead,
    ) -> Result<ConnectionAction, Box<PendingExchange>> {
        let arrived = clock::now();
        let mut lent = self.edge.acquire_settings();
        let settings = lent.load();
        self.edge.metrics().active_requests.add(1);
        let forwarded = self.read_forwarded(settings, &head);
        let found = dispatch::match_route(settings, &head, forwarded.as_deref());
        let mut at_hand = None;
        if let RouteMatch::Route(path, route) = &found
            && route.filters.is_none()
            && !path.is_ambiguous()
        {
            let told = RequestMeta {
                settings,
                head: &head,
                forwarded: forwarded.as_deref(),
                arrived,
            };
            at_hand = self.respond_inline(told, path, &route.handlers);
        }
        if let Some(Ok(fate)) = at_hand {
            self.edge.release_settings(lent);
            return Ok(fate);
        }
        let found = found.into_owned();
        let mut exchange = Exchange::new(Arc::clone(settings), head, forwarded, arrived);
        self.edge.release_settings(lent);
        if let Some(Err(sending)) = at_hand {
            return Err(exchange.into_pending(ExchangeState::Sending(sending)));
        }
        let said = match found {
            RouteMatch::Edge(answered) => {
                // Nobody reads the body, but what of it is here goes with the request.
                drop(self.lend_body_reader(&mut exchange, None));
                HandlerOutcome::Finished(answered)
            }
            RouteMatch::Route(path, route) => {
                let body = self.lend_body_reader(&mut exchange, route.max_body);
                exchange.filters = route.filters;
                self.run_route(&mut exchange, path, route.handlers, body)
            }
        };
        match self.follow_redirects(&mut exchange, said) {
            RedirectOutcome::Finished(answered) => {
                match self.respond(&mut exchange, answered, arrived) {
                    Ok(fate) => Ok(fate),
                    Err(sending) => Err(exchange.into_pending(ExchangeState::Sending(sending))),
                }
            }
            RedirectOutcome::Running(work) => {
                let working = self.start_wait(work, &exchange);
                Err(exchange.into_pending(ExchangeState::Handling(working)))
            }
        }
    }

    /// Polls the handlers of an exchange until it is answered; `None` when a part of the answer is still
    /// to be sent.
    fn poll_handlers(
        &mut self,
        cx: &mut Context<'_>,
        unfinished: &mut PendingExchange,
    ) -> Poll<Option<ConnectionAction>> {
        let PendingExchange {
            exchange,
            state: rest,
        } = unfinished;
        while let ExchangeState::Handling(working) = rest {
            let reply = ready!(self.poll_handler_and_client(cx, working, exchange));
            // What a handler holds, it holds until its reply and no longer.
            working.handler.future = Box::pin(std::future::pending());
            let said = match reply {
                Ok(Reply::Pass(request)) => {
                    let handlers = std::mem::take(&mut working.handler.handlers);
                    run_handlers(handlers, working.handler.next_handler, *request)
                }
                Ok(Reply::Response(response)) => HandlerOutcome::from_response(response, || {
                    dispatch::running_handler(
                        &working.handler.handlers,
                        working.handler.next_handler,
                    )
                }),
                Ok(Reply::Redirect(redirect)) => HandlerOutcome::Redirect(redirect),
                Err(fault) => HandlerOutcome::Finished(Err(fault)),
            };
            match self.follow_redirects(exchange, said) {
                RedirectOutcome::Running(next) => *working = self.start_wait(next, exchange),
                RedirectOutcome::Finished(answered) => {
                    let made_at = answered.as_ref().ok().and_then(|it| it.created_at);
                    let now = made_at.unwrap_or_else(clock::now);
                    match self.respond(exchange, answered, now) {
                        Ok(fate) => return Poll::Ready(Some(fate)),
                        Err(sending) => *rest = ExchangeState::Sending(sending),
                    }
                }
            }
        }
        Poll::Ready(None)
    }

    /// Answers a head that was refused, or did not arrive in time.
    async fn send_refusal(&mut self, refused: HeadOutcome) -> ConnectionAction {
        let settings = self.edge.settings();
        let mask = &settings.log_mask;
        let (response, first_line) = match refused {
            HeadOutcome::Refused(refused) => {
                self.edge.metrics().malformed_requests.increment();
                let RefusedHead { error, line } = *refused;
                let (status, reason) = (error.status(), error.to_string());
                let client = self.source.client_address();
                let shown = mask.apply_url(&line);
                faults::log_refused_head(client, status, &reason, &shown, &self.edge.log_throttle);
                (faults::respond_malformed(status, &reason), line)
            }
            HeadOutcome::TimedOut => {
                self.edge.metrics().slow_clients.increment();
                let line: Box<[u8]> = first_line(self.received.unread()).into();
                let fault = Fault::new(FaultKind::ClientTooSlow, "limits.header_timeout");
                let client = self.source.client_address();
                let status = fault.kind.status();
                let shown = mask.apply_url(&line);
                faults::log_refused_head(
                    client,
                    status,
                    &fault.cause,
                    &shown,
                    &self.edge.log_throttle,
                );
                (faults::respond(fault, None, &self.edge.log_throttle), line)
            }
            HeadOutcome::Head(_) | HeadOutcome::Closed => return ConnectionAction::Close,
        };
        let date = clock::http_date(clock::now());
        let line = ResponseHeadParts {
            status: response.status,
            fields: &response.fields,
            framing: ResponseFraming::Length(response.body.length().unwrap_or(0)),
            persistence: Persistence::Close,
            date: Some(&date),
        };
        self.edge.metrics().count_response(response.status.code());
        if let Some(log) = &settings.access_log {
            log.write_refused(&self.source, response.status.code(), &first_line);
        }
        let outgoing = OutgoingResponse {
            status_bytes_sent: 0,
            unsent_interim: &[],
            head: line,
            body: response.body,
            max_rate: None,
        };
        if let Ok(SendProgress::Partial(rest)) = send::try_send(&self.stream, outgoing) {
            // Whether it arrives or not, the connection ends.
            let watch = ClientWatch::new(None, PipelinedBytes::Discard, &mut self.is_half_closed);
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

/// The beginning of what should have been a request line. Blank lines before it tell nothing.
fn first_line(received: &[u8]) -> &[u8] {
    let is_break = |byte: &u8| matches!(byte, b'\r' | b'\n');
    let start = received.iter().take_while(|byte| is_break(byte)).count();
    let received = &received[start..];
    let part = &received[..received.len().min(MAX_LOGGED_LINE_BYTES)];
    let end = part.iter().position(is_break);
    &part[..end.unwrap_or(part.len())]
}

impl Exchange {
    fn new(
        settings: Arc<Settings>,
        head: RequestHead,
        forwarded: Option<Arc<ForwardedInfo>>,
        arrived: Instant,
    ) -> Self {
        Self {
            settings,
            head: Arc::new(head),
            forwarded,
            arrived,
            reader_slot: None,
            is_body_unread: false,
            filters: None,
            effective_request: None,
            redirects: None,
            unsent_interim: Vec::new(),
            status_bytes_sent: 0,
        }
    }

    fn meta(&self) -> RequestMeta<'_> {
        RequestMeta {
            settings: &self.settings,
            head: &self.head,
            forwarded: self.forwarded.as_deref(),
            arrived: self.arrived,
        }
    }

    fn into_pending(self, rest: ExchangeState) -> Box<PendingExchange> {
        Box::new(PendingExchange {
            exchange: self,
            state: rest,
        })
    }
}

/// Ends our side, then reads over what still comes, for a short while.
async fn linger(stream: Arc<Stream>) {
    stream.shutdown_write();
    let mut timer = LazyDeadline::new(clock::now() + LINGER_TIMEOUT);
    std::future::poll_fn(|cx| {
        loop {
            let read = buffers::with_receive_buffer(|buffer| stream.poll_read(cx, buffer));
            match read {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(()),
                // A fast sender must not keep the loop here: the timer is asked each time.
                Poll::Ready(Ok(_)) if timer.poll(cx).is_ready() => return Poll::Ready(()),
                Poll::Ready(Ok(_)) => {}
                Poll::Pending => return timer.poll(cx),
            }
        }
    })
    .await;
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.edge.idle_connections.remove(&mut self.idle_entry);
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("peer", &self.source.client_address())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The task that waits for a request holds the connection and little else: whatever an exchange
    /// needs is boxed while it lasts. A million connections exist once each.
    #[test]
    fn a_waiting_connection_is_small() {
        fn size<F, A>(_: fn(A) -> F) -> usize {
            size_of::<F>()
        }
        assert!(
            size_of::<Connection>() <= 312,
            "{}",
            size_of::<Connection>()
        );
        let task = size(Connection::run);
        assert!(task <= 360, "{task}");
    }
}
