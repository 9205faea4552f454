//! One HTTP/1 connection: wait for a head, find its handlers, send the answer, again.
//!
//! The idle state is small and owns no buffer: heads are read into the loop's shared buffer and, in
//! the common case, parsed, answered and forgotten in one poll. Whatever needs more (bodies, slow
//! sends, lingering) is boxed when it begins. What must stay true: bytes behind a request are kept
//! for the next one; one that waits for a request may be told to close, to make room for others; after any doubt about framing the connection closes; a client that leaves is
//! noticed while its request waits; one that only closes its sending side gets its answer (RFC 9112 §9.6).

mod answering;
mod asking;
mod watching;

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

use self::asking::{Changed, Followed};
use crate::accept::Sender;
use crate::asks::{self, Asks, Said, Work, ask};
use crate::filters::Filters;
use crate::incoming::Home;
use crate::received::Received;
use crate::redirect::Redirected;
use crate::send::{self, Outgoing, Rest, Started};
use crate::tunnel::{Counted, Heir};
use crate::waiting::WaitingPlace;
use crate::watch::{Behind, Watch};
use crate::{Settings, faults};

/// Pipelined requests answered in a row before other connections get their turn.
const PIPELINE_TURN: u32 = 16;

/// How much of a refused request's first line is logged.
pub(crate) const LOGGED_LINE_BYTES: usize = 200;

/// How long a closing connection reads over what the client still sends, so that our last answer is
/// not lost to a reset (RFC 9112 §9.6).
const LINGER: Duration = Duration::from_secs(1);

/// One connection.
pub(crate) struct Connection {
    edge: Counted,
    stream: Arc<Stream>,
    sender: Sender,
    listener: Arc<ListenerInfo>,
    client: Arc<ClientState>,
    guard: drain::DrainGuard,
    registered: bool,
    deadline: LazyDeadline,
    scanner: HeadScanner,
    /// Received and not yet used; empty and without memory while the connection is idle.
    pending: Received,
    /// Whether `pending` has bytes that the scanner has not seen.
    unscanned: bool,
    /// Whether the deadline minds the drain: a response has ended in it, and the client shall hear of it
    /// by the next one.
    is_granted: bool,
    /// The client closed its sending side: what is here is all that it asks.
    has_ended: bool,
    /// No request has come yet: its head counts from the accept.
    is_new: bool,
    /// When the first byte of an unfinished head came.
    head_began: Option<Instant>,
    /// Where it is found when it waits for a request and there is no room for others.
    place: WaitingPlace,
}

/// A head that is none, with as much of its first line as the log shows.
struct RefusedHead {
    error: RequestHeadError,
    line: Box<[u8]>,
}

/// What the wait for a head came to.
enum Next {
    Head(RequestHead),
    Refused(Box<RefusedHead>),
    /// A head began and did not arrive in time.
    HeadTimeout,
    /// The client closed, was idle for too long, or the server drains.
    Over,
}

/// What was done at once when a wait for a head had ended. Small: the waiting task has room for it always.
enum Begun {
    Done(Fate),
    /// The rest of an exchange.
    Left(Box<Unfinished>),
    /// There is no request, and the client is to be told.
    Refused(Box<Next>),
}

/// One request in the hands of its connection.
struct Exchange {
    settings: Arc<Settings>,
    head: Arc<RequestHead>,
    /// What trusted proxies say of it.
    forwarded: Option<Arc<ForwardedInfo>>,
    arrived: Instant,
    /// Where the reading side comes back to, when the request has a body; until it was taken back.
    home: Option<Home>,
    /// The body was not read to its end when the answer was begun: nothing behind it can be read.
    is_cut_short: bool,
    /// What the route changes of its responses.
    filters: Option<Arc<Filters>>,
    /// What handlers were asked last, where that is not what the client did.
    changed: Option<Box<Changed>>,
    /// What internal redirects brought, if there were any.
    redirected: Option<Box<Redirected>>,
    /// Interim responses that the socket has not taken yet: they go before the final head.
    ahead: Vec<u8>,
    /// So many bytes of the next head are out ([`watching::STATUS_START`]).
    begun: u8,
}

/// What an exchange is judged and recorded by.
#[derive(Clone, Copy)]
struct Told<'a> {
    settings: &'a Settings,
    head: &'a RequestHead,
    forwarded: Option<&'a ForwardedInfo>,
    arrived: Instant,
}

/// What is known of a response once its head is encoded.
struct Ending {
    status: Status,
    timing: RequestTiming,
    /// Whether the connection may serve another request.
    keeps: bool,
    /// The request was not read to its end, or not understood.
    must_close: bool,
}

/// An exchange that could not be finished at once.
struct Unfinished {
    exchange: Exchange,
    rest: Left,
}

/// What is left of it.
enum Left {
    Work(Working),
    Sending(Box<Sending>),
}

/// A handler at work, and what of its client is watched meanwhile.
struct Working {
    work: Work,
    /// The reading side is lent to whoever reads the body, who watches the socket until it is back.
    is_lent: bool,
    is_watching: bool,
}

struct Sending {
    rest: Rest,
    end: Ending,
    /// Who gets the connection then, instead of a next request.
    heir: Option<Heir>,
}

/// What becomes of the connection after an exchange.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Keep,
    /// End the task; the socket closes, unless somebody took it over.
    Close,
    /// Close, but read over what the client may still be sending.
    Linger,
    /// Close so that the client sees that its response was cut.
    Abort,
}

impl Connection {
    pub(crate) fn new(
        edge: Counted,
        stream: Arc<Stream>,
        sender: Sender,
        listener: Arc<ListenerInfo>,
        early: Vec<u8>,
    ) -> Self {
        let guard = edge.drain.guard();
        let now = clock::now();
        let deadline = LazyDeadline::new(now + edge.settings().limits.header_timeout);
        let place = WaitingPlace::new(&edge.waiting, now);
        Self {
            edge,
            stream,
            sender,
            listener,
            client: Arc::default(),
            guard,
            registered: false,
            deadline,
            scanner: HeadScanner::new(),
            unscanned: !early.is_empty(),
            is_granted: false,
            has_ended: false,
            pending: Received::from(early),
            is_new: true,
            head_began: None,
            place,
        }
    }

    /// Lets the first request come as late as any other: the connection was made for requests to
    /// come.
    pub(crate) fn made_ahead(mut self) -> Self {
        self.is_new = false;
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
                in_a_row = if self.unscanned { in_a_row + 1 } else { 0 };
                if in_a_row == PIPELINE_TURN {
                    in_a_row = 0;
                    Box::pin(loops::yield_now()).await;
                }
                let fate = match std::future::poll_fn(|cx| self.poll_next(cx)).await {
                    Begun::Done(fate) => fate,
                    Begun::Left(mut left) => {
                        // Polled here: the usual wait for a handler allocates nothing more.
                        match std::future::poll_fn(|cx| self.poll_work(cx, &mut left)).await {
                            Some(fate) => fate,
                            None => Box::pin(self.finish_sending(left)).await,
                        }
                    }
                    Begun::Refused(refused) => Box::pin(self.refuse(*refused)).await,
                };
                match fate {
                    Fate::Keep => {}
                    Fate::Close => return,
                    Fate::Linger => return Box::pin(linger(Arc::clone(&self.stream))).await,
                    Fate::Abort => return self.stream.abort(),
                }
            }
        }
    }

    /// Waits for the next request, and does of it what can be done at once.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Begun> {
        Poll::Ready(match ready!(self.poll_head(cx)) {
            Next::Head(head) => match self.exchange(head) {
                Ok(fate) => Begun::Done(fate),
                Err(left) => {
                    self.edge.waiting.leave(&mut self.place);
                    Begun::Left(left)
                }
            },
            Next::Over => Begun::Done(Fate::Close),
            refused => {
                self.edge.waiting.leave(&mut self.place);
                Begun::Refused(Box::new(refused))
            }
        })
    }

    /// Waits for the next request's head.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Next> {
        if !std::mem::replace(&mut self.registered, true) {
            self.guard
                .wake_at_drain(loops::current_index(), cx.waker().clone());
        }
        if std::mem::take(&mut self.unscanned)
            && let Some(next) = self.scan_pending()
        {
            return Poll::Ready(next);
        }
        if self.has_ended {
            return Poll::Ready(Next::Over);
        }
        loop {
            let read = buffers::with_receive_buffer(|buffer| self.stream.poll_read(cx, buffer));
            match read {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Next::Over),
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
        if self.pending.is_empty()
            && !self.is_granted
            && let Some(until) = self.guard.drain().idle_until()
        {
            // The next request may be on its way: a close now could cross it.
            if until <= clock::now() {
                return Poll::Ready(Next::Over);
            }
            self.deadline.set(until.min(self.deadline.at()));
        }
        if self.edge.waiting.wait(&mut self.place, cx.waker()) {
            self.edge.metrics().evicted_connections.increment();
            return Poll::Ready(Next::Over);
        }
        self.deadline.poll(cx).map(|()| match self.head_began {
            Some(_) => Next::HeadTimeout,
            None => Next::Over,
        })
    }

    /// Looks for a whole head in what has just come; what it does not use goes to `pending`.
    fn scan_received(&mut self, received: &[u8]) -> Option<Next> {
        if !self.pending.is_empty() {
            self.pending.push(received);
            return self.scan_pending();
        }
        match self.scanner.scan(received, &self.edge.head_limits()) {
            Ok(ParseProgress::Complete((head, used))) => {
                self.pending.push(&received[used..]);
                Some(self.head_complete(head))
            }
            Ok(ParseProgress::Partial) => {
                self.pending.push(received);
                self.head_incomplete();
                None
            }
            Err(error) => Some(refused_head(error, received)),
        }
    }

    /// Looks for a whole head in `pending`.
    fn scan_pending(&mut self) -> Option<Next> {
        match self
            .scanner
            .scan(self.pending.unused(), &self.edge.head_limits())
        {
            Ok(ParseProgress::Complete((head, used))) => {
                self.pending.consume(used);
                Some(self.head_complete(head))
            }
            Ok(ParseProgress::Partial) => {
                self.head_incomplete();
                None
            }
            Err(error) => Some(refused_head(error, self.pending.unused())),
        }
    }

    /// Whether the answer to this request is the connection's last: the server drains, or the client
    /// closed its sending side, and no other request has come with this one.
    fn is_last(&self) -> bool {
        (self.guard.drain().is_draining() || self.has_ended) && !self.unscanned
    }

    fn head_complete(&mut self, head: RequestHead) -> Next {
        self.scanner.reset();
        self.head_began = None;
        self.is_new = false;
        self.unscanned = !self.pending.is_empty();
        Next::Head(head)
    }

    /// The clock for a head runs from its first byte; that for the first one, from the accept.
    fn head_incomplete(&mut self) {
        if self.head_began.is_none() {
            let now = clock::now();
            self.head_began = Some(now);
            self.place.touch(&self.edge.waiting, now);
            if !self.is_new {
                self.deadline
                    .set(now + self.edge.settings().limits.header_timeout);
            }
        }
    }

    /// One request and its response, as far as it goes at once.
    ///
    /// # Errors
    /// What is left to do, to be awaited in [`Connection::finish`].
    fn exchange(&mut self, head: RequestHead) -> Result<Fate, Box<Unfinished>> {
        let arrived = clock::now();
        let mut lent = self.edge.take_settings();
        let settings = lent.now();
        self.edge.metrics().active_requests.add(1);
        let forwarded = self.read_forwarded(settings, &head);
        let found = asks::find(settings, &head, forwarded.as_deref());
        let mut at_hand = None;
        if let Asks::Route(path, route) = &found
            && route.filters.is_none()
            && !path.is_ambiguous()
        {
            let told = Told {
                settings,
                head: &head,
                forwarded: forwarded.as_deref(),
                arrived,
            };
            at_hand = self.answer_at_hand(told, path, &route.handlers);
        }
        if let Some(Ok(fate)) = at_hand {
            self.edge.give_back(lent);
            return Ok(fate);
        }
        let found = found.kept();
        let mut exchange = Exchange::new(Arc::clone(settings), head, forwarded, arrived);
        self.edge.give_back(lent);
        if let Some(Err(sending)) = at_hand {
            return Err(exchange.unfinished(Left::Sending(sending)));
        }
        let said = match found {
            Asks::Edge(answered) => {
                // Nobody reads the body, but what of it is here goes with the request.
                drop(self.lend_reader(&mut exchange, None));
                Said::Answered(answered)
            }
            Asks::Route(path, route) => {
                let body = self.lend_reader(&mut exchange, route.max_body);
                exchange.filters = route.filters;
                self.ask_first(&mut exchange, path, route.handlers, body)
            }
        };
        match self.followed(&mut exchange, said) {
            Followed::Answered(answered) => match self.answer(&mut exchange, answered, arrived) {
                Ok(fate) => Ok(fate),
                Err(sending) => Err(exchange.unfinished(Left::Sending(sending))),
            },
            Followed::Works(work) => {
                let working = self.watch(work, &exchange);
                Err(exchange.unfinished(Left::Work(working)))
            }
        }
    }

    /// Polls the handlers of an exchange until it is answered; `None` when a part of the answer is still
    /// to be sent.
    fn poll_work(
        &mut self,
        cx: &mut Context<'_>,
        unfinished: &mut Unfinished,
    ) -> Poll<Option<Fate>> {
        let Unfinished { exchange, rest } = unfinished;
        while let Left::Work(working) = rest {
            let reply = ready!(self.poll_watched(cx, working, exchange));
            // What a handler holds, it holds until its reply and no longer.
            working.work.work = Box::pin(std::future::pending());
            let said = match reply {
                Ok(Reply::Pass(request)) => {
                    let handlers = std::mem::take(&mut working.work.handlers);
                    ask(handlers, working.work.next, *request)
                }
                Ok(Reply::Response(response)) => Said::response(response, || {
                    asks::speaker(&working.work.handlers, working.work.next)
                }),
                Ok(Reply::Redirect(redirect)) => Said::Redirects(redirect),
                Err(fault) => Said::Answered(Err(fault)),
            };
            match self.followed(exchange, said) {
                Followed::Works(next) => *working = self.watch(next, exchange),
                Followed::Answered(answered) => {
                    let made_at = answered.as_ref().ok().and_then(|it| it.created_at);
                    let now = made_at.unwrap_or_else(clock::now);
                    match self.answer(exchange, answered, now) {
                        Ok(fate) => return Poll::Ready(Some(fate)),
                        Err(sending) => *rest = Left::Sending(sending),
                    }
                }
            }
        }
        Poll::Ready(None)
    }

    /// Answers a head that was refused, or did not arrive in time.
    async fn refuse(&mut self, refused: Next) -> Fate {
        let settings = self.edge.settings();
        let mask = &settings.mask;
        let (response, first_line) = match refused {
            Next::Refused(refused) => {
                self.edge.metrics().malformed_requests.increment();
                let RefusedHead { error, line } = *refused;
                let (status, reason) = (error.status(), error.to_string());
                let client = self.sender.address();
                let shown = mask.apply_url(&line);
                faults::log_refused(client, status, &reason, &shown, &self.edge.repeats);
                (faults::respond_malformed(status, &reason), line)
            }
            Next::HeadTimeout => {
                self.edge.metrics().slow_clients.increment();
                let line: Box<[u8]> = first_line(self.pending.unused()).into();
                let fault = Fault::new(FaultKind::ClientTooSlow, "limits.header_timeout");
                let client = self.sender.address();
                let status = fault.kind.status();
                let shown = mask.apply_url(&line);
                faults::log_refused(client, status, &fault.cause, &shown, &self.edge.repeats);
                (faults::respond(fault, None, &self.edge.repeats), line)
            }
            Next::Head(_) | Next::Over => return Fate::Close,
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
            log.write_refused(&self.sender, response.status.code(), &first_line);
        }
        let outgoing = Outgoing {
            begun: 0,
            ahead: &[],
            line,
            body: response.body,
            rate_max: None,
        };
        if let Ok(Started::Rest(rest)) = send::send_now(&self.stream, outgoing) {
            // Whether it arrives or not, the connection ends.
            let watch = Watch::new(None, Behind::Discarded, &mut self.has_ended);
            let (stream, limits) = (Arc::clone(&self.stream), &settings.limits);
            let _ = send::send_rest(stream, rest, limits, watch).await;
        }
        Fate::Linger
    }
}

fn refused_head(error: RequestHeadError, received: &[u8]) -> Next {
    let line = first_line(received).into();
    Next::Refused(Box::new(RefusedHead { error, line }))
}

/// The beginning of what should have been a request line. Blank lines before it tell nothing.
fn first_line(received: &[u8]) -> &[u8] {
    let is_break = |byte: &u8| matches!(byte, b'\r' | b'\n');
    let start = received.iter().take_while(|byte| is_break(byte)).count();
    let received = &received[start..];
    let part = &received[..received.len().min(LOGGED_LINE_BYTES)];
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
            home: None,
            is_cut_short: false,
            filters: None,
            changed: None,
            redirected: None,
            ahead: Vec::new(),
            begun: 0,
        }
    }

    fn told(&self) -> Told<'_> {
        Told {
            settings: &self.settings,
            head: &self.head,
            forwarded: self.forwarded.as_deref(),
            arrived: self.arrived,
        }
    }

    fn unfinished(self, rest: Left) -> Box<Unfinished> {
        Box::new(Unfinished {
            exchange: self,
            rest,
        })
    }
}

/// Ends our side, then reads over what still comes, for a short while.
async fn linger(stream: Arc<Stream>) {
    stream.shutdown_write();
    let mut timer = LazyDeadline::new(clock::now() + LINGER);
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
        self.edge.waiting.leave(&mut self.place);
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("peer", &self.sender.address())
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
