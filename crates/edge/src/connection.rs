//! One HTTP/1 connection: wait for a head, find its handlers, send the answer, again.
//!
//! The idle state is small and owns no buffer: heads are read into the loop's shared buffer and, in
//! the common case, parsed, answered and forgotten in one poll. Whatever needs more (bodies, slow
//! sends, lingering) is boxed when it begins. What must stay true: bytes behind a request are kept
//! for the next one; after any doubt about framing the connection closes; a client that leaves is
//! noticed while its request waits.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use penstock_exchange::request::Arrival;
use penstock_exchange::{
    Asked, AtHand, Body, ClientState, Fault, FaultKind, HandlerFuture, Handling, ListenerInfo,
    Name, Reply, Request, RequestBody, RequestPath, Response, Timing,
};
use penstock_http::{
    BodyFraming, HeadScanner, Method, ParseError, Persist, Progress, RequestHead, ResponseFraming,
    ResponseLine, Status, Version, encode_head,
};
use penstock_runtime::{LazyDeadline, Stream, buffers, clock, drain, loops};
use penstock_sys::net::PeerAddress;

use crate::access_log::Record;
use crate::incoming::{Home, Incoming, Reader};
use crate::received::Received;
use crate::router::{Found, Handlers};
use crate::send::{self, Cut, Rest, Sent, Started};
use crate::{Edge, Settings, faults};

/// Bytes of pipelined requests kept while one is in progress; beyond it the socket holds them.
const PIPELINE_BYTES: usize = 64 * 1024;

/// Pipelined requests answered in a row before other connections get their turn.
const PIPELINE_TURN: u32 = 16;

/// How long a closing connection reads over what the client still sends, so that our last answer is
/// not lost to a reset (RFC 9112 §9.6).
const LINGER: Duration = Duration::from_secs(1);

/// One connection.
pub(crate) struct Connection {
    edge: Arc<Edge>,
    stream: Arc<Stream>,
    peer: PeerAddress,
    listener: Arc<ListenerInfo>,
    client: Arc<ClientState>,
    guard: drain::Guard,
    registered: bool,
    deadline: LazyDeadline,
    scanner: HeadScanner,
    /// Received and not yet used; empty and without memory while the connection is idle.
    pending: Received,
    /// Whether `pending` has bytes that the scanner has not seen.
    unscanned: bool,
    /// When the first byte of an unfinished head came.
    head_began: Option<Instant>,
}

/// What the wait for a head came to.
enum Next {
    Head(RequestHead),
    Refused(ParseError),
    /// A head began and did not arrive in time.
    HeadTimeout,
    /// The client closed, was idle for too long, or the server drains.
    Over,
}

/// One request in the hands of its connection.
struct Exchange {
    settings: Arc<Settings>,
    head: Arc<RequestHead>,
    arrived: Instant,
    /// Where the reading side comes back to, when the request has a body.
    home: Option<Home>,
}

/// What an exchange is judged and recorded by.
#[derive(Clone, Copy)]
struct Told<'a> {
    settings: &'a Settings,
    head: &'a RequestHead,
    arrived: Instant,
}

/// What is known of a response once its head is encoded.
struct Ending {
    status: Status,
    timing: Timing,
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
    Work(Work),
    Sending(Box<Sending>),
}

/// A handler at work; `next` is the one to ask should it pass.
struct Work {
    work: HandlerFuture,
    handlers: Handlers,
    next: usize,
}

struct Sending {
    rest: Rest,
    end: Ending,
}

/// What the handlers of a route said so far.
enum Said {
    Answered(Answered),
    Works(Work),
}

type Answered = Result<Response, Fault>;

/// What becomes of the connection after an exchange.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Keep,
    Close,
    /// Close, but read over what the client may still be sending.
    Linger,
    /// Close so that the client sees that its response was cut.
    Abort,
}

impl Connection {
    pub(crate) fn new(
        edge: Arc<Edge>,
        stream: Stream,
        peer: PeerAddress,
        listener: Arc<ListenerInfo>,
    ) -> Self {
        edge.open.fetch_add(1, Ordering::Relaxed);
        edge.metrics().open.add(1);
        let guard = edge.drain.guard();
        let settings = edge.settings();
        let deadline = LazyDeadline::new(clock::now() + settings.limits.idle_timeout);
        Self {
            edge,
            stream: Arc::new(stream),
            peer,
            listener,
            client: Arc::default(),
            guard,
            registered: false,
            deadline,
            scanner: HeadScanner::new(),
            pending: Received::default(),
            unscanned: false,
            head_began: None,
        }
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
                let next = std::future::poll_fn(|cx| self.poll_head(cx)).await;
                let fate = match next {
                    Next::Head(head) => match self.exchange(head) {
                        Ok(fate) => fate,
                        Err(unfinished) => Box::pin(self.finish(unfinished)).await,
                    },
                    Next::Over => return,
                    refused => Box::pin(self.refuse(refused)).await,
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
        loop {
            let read = buffers::with_receive(|buffer| self.stream.poll_read(cx, buffer));
            match read {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Next::Over),
                Poll::Ready(Ok(count)) => {
                    let found =
                        buffers::with_receive(|buffer| self.scan_received(&buffer[..count]));
                    if let Some(next) = found {
                        return Poll::Ready(next);
                    }
                }
                Poll::Pending => break,
            }
        }
        if self.pending.is_empty() && self.guard.drain().is_draining() {
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
            Ok(Progress::Complete((head, used))) => {
                self.pending.push(&received[used..]);
                Some(self.head_complete(head))
            }
            Ok(Progress::Partial) => {
                self.pending.push(received);
                self.head_incomplete();
                None
            }
            Err(error) => Some(Next::Refused(error)),
        }
    }

    /// Looks for a whole head in `pending`.
    fn scan_pending(&mut self) -> Option<Next> {
        match self
            .scanner
            .scan(self.pending.unused(), &self.edge.head_limits())
        {
            Ok(Progress::Complete((head, used))) => {
                self.pending.consume(used);
                Some(self.head_complete(head))
            }
            Ok(Progress::Partial) => {
                self.head_incomplete();
                None
            }
            Err(error) => Some(Next::Refused(error)),
        }
    }

    fn head_complete(&mut self, head: RequestHead) -> Next {
        self.scanner.reset();
        self.head_began = None;
        self.unscanned = !self.pending.is_empty();
        Next::Head(head)
    }

    /// The clock for a head runs from its first byte.
    fn head_incomplete(&mut self) {
        if self.head_began.is_none() {
            let now = clock::now();
            self.head_began = Some(now);
            self.deadline
                .set(now + self.edge.settings().limits.header_timeout);
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
        self.edge.metrics().active.add(1);
        let found = find(settings, &head);
        let mut at_hand = None;
        if let Asks::Handlers(path, handlers) = &found {
            let told = Told {
                settings,
                head: &head,
                arrived,
            };
            at_hand = self.answer_at_hand(told, path, handlers);
        }
        if let Some(Ok(fate)) = at_hand {
            self.edge.give_back(lent);
            return Ok(fate);
        }
        let found = found.owned();
        let mut exchange = Exchange::new(Arc::clone(settings), head, arrived);
        self.edge.give_back(lent);
        if let Some(Err(rest)) = at_hand {
            return Err(exchange.unfinished(rest));
        }
        let body = self.lend_reader(&mut exchange);
        let said = match found {
            Asks::Edge(answered) => Said::Answered(answered),
            Asks::Handlers(path, handlers) => {
                let arrival = Arrival {
                    peer: self.peer,
                    listener: Arc::clone(&self.listener),
                    client: Arc::clone(&self.client),
                    at: arrived,
                };
                let request = Request::new(Arc::clone(&exchange.head), path, body, arrival);
                ask(handlers, 0, request)
            }
        };
        match said {
            Said::Answered(answered) => self.answer(exchange, answered, arrived),
            Said::Works(work) => Err(exchange.unfinished(Left::Work(work))),
        }
    }

    /// Answers with what the first handler has at hand, if the request is as plain as that needs.
    fn answer_at_hand(
        &mut self,
        told: Told<'_>,
        path: &RequestPath,
        handlers: &Handlers,
    ) -> Option<Result<Fate, Left>> {
        let (head, arrived) = (told.head, told.arrived);
        if has_body(head) {
            return None;
        }
        let path = path.bytes(head);
        let asked = Asked {
            head,
            path,
            arrived,
        };
        let close = self.guard.drain().is_draining();
        let mut lent = None;
        let started = send::send_copied(&self.stream, |out| {
            handlers.first()?.at_hand(&asked, &mut |answer| {
                let AtHand { status, body, .. } = answer;
                let plan = Plan::new(head, status, Some(body.len() as u64), close);
                let line = ResponseLine {
                    status,
                    fields: answer.fields,
                    framing: plan.framing,
                    persist: plan.persist,
                    date: Some(&clock::http_date(arrived)),
                };
                encode_head(out, &line);
                let head_len = out.len();
                if !is_bodiless(head, status) {
                    out.extend_from_slice(body);
                }
                lent = Some((status, answer.handler, plan, head_len));
            });
            let (_, _, plan, head_len) = lent.as_ref()?;
            Some((*head_len, plan.framing))
        })?;
        let (status, handler, plan, _) = lent?;
        let timing = Timing {
            handler: Some(Name::Room(handler)),
            ..Timing::default()
        };
        let end = Ending {
            status,
            timing,
            keeps: plan.keeps,
            must_close: false,
        };
        Some(self.started(told, end, started))
    }

    /// Awaits what is left of an exchange.
    async fn finish(&mut self, unfinished: Box<Unfinished>) -> Fate {
        let Unfinished { exchange, mut rest } = *unfinished;
        loop {
            match rest {
                Left::Work(Work {
                    work,
                    handlers,
                    next,
                }) => {
                    let reply = self.watched(work, exchange.home.as_ref()).await;
                    let said = match reply {
                        Ok(Reply::Pass(request)) => ask(handlers, next, *request),
                        Ok(Reply::Response(response)) => Said::Answered(Ok(response)),
                        Err(fault) => Said::Answered(Err(fault)),
                    };
                    match said {
                        Said::Works(work) => rest = Left::Work(work),
                        Said::Answered(answered) => {
                            match self.answer(exchange, answered, clock::now()) {
                                Ok(fate) => return fate,
                                Err(unfinished) => return self.finish_sending(unfinished).await,
                            }
                        }
                    }
                }
                Left::Sending(_) => {
                    return self
                        .finish_sending(Box::new(Unfinished { exchange, rest }))
                        .await;
                }
            }
        }
    }

    async fn finish_sending(&mut self, unfinished: Box<Unfinished>) -> Fate {
        let Unfinished {
            exchange,
            rest: Left::Sending(sending),
        } = *unfinished
        else {
            // Only called with what `answer` left.
            return Fate::Abort;
        };
        let Sending { rest, end } = *sending;
        let limits = &exchange.settings.limits;
        let stream = Arc::clone(&self.stream);
        let (sent, done) = Box::pin(send::send_rest(stream, rest, limits)).await;
        match done {
            // Nothing of it is out yet: the client can still be told.
            Err(Cut::Body(fault)) if sent.total == 0 => {
                let told = self.answer(exchange, Err(fault), clock::now());
                told.unwrap_or(Fate::Abort)
            }
            done => self.conclude(exchange.told(), &end, sent, done),
        }
    }

    /// Awaits a handler, and meanwhile notices when the client leaves or sends more requests.
    async fn watched(
        &mut self,
        mut work: HandlerFuture,
        home: Option<&Home>,
    ) -> Result<Reply, Fault> {
        // While a body is being read the reader watches the socket.
        let mut lent = home;
        let mut watching = self.pending.len() < PIPELINE_BYTES;
        std::future::poll_fn(|cx| {
            if let Poll::Ready(reply) = work.as_mut().poll(cx) {
                return Poll::Ready(reply);
            }
            if let Some(place) = lent {
                let Some(mut reader) = place.take() else {
                    return Poll::Pending;
                };
                watching = reader.is_done();
                if watching {
                    self.take_leftover(&mut reader);
                    watching = self.pending.len() < PIPELINE_BYTES;
                }
                place.put(reader);
                lent = None;
            }
            while watching {
                match self.poll_more(cx) {
                    Poll::Pending => break,
                    Poll::Ready(true) => watching = self.pending.len() < PIPELINE_BYTES,
                    Poll::Ready(false) => {
                        watching = false;
                        self.client.mark_gone();
                        // Asked again at once: it may have waited only for its turn.
                        return work.as_mut().poll(cx);
                    }
                }
            }
            Poll::Pending
        })
        .await
    }

    /// What a finished reader received behind its body belongs to the next request.
    fn take_leftover(&mut self, reader: &mut Reader) {
        self.pending.push(&std::mem::take(&mut reader.pending));
        self.unscanned = !self.pending.is_empty();
    }

    /// Reads pipelined bytes; `false` when the client closed its side.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        buffers::with_receive(|buffer| {
            self.stream.poll_read(cx, buffer).map(|read| match read {
                Ok(0) | Err(_) => false,
                Ok(count) => {
                    self.pending.push(&buffer[..count]);
                    self.unscanned = true;
                    true
                }
            })
        })
    }

    /// Makes the request's body, which borrows the reading side of the connection.
    fn lend_reader(&mut self, exchange: &mut Exchange) -> RequestBody {
        let head = &exchange.head;
        if !has_body(head) {
            return RequestBody::Empty;
        }
        let pending = self.pending.take();
        self.unscanned = false;
        let stream = Arc::clone(&self.stream);
        let reader = Reader::new(stream, head, pending, &exchange.settings.limits);
        let (incoming, home) = Incoming::new(reader);
        exchange.home = Some(home);
        RequestBody::Incoming(Box::new(incoming))
    }

    /// Takes the reading side back; `false` when the body was not read to its end.
    fn reclaim_reader(&mut self, home: Option<&Home>) -> bool {
        let Some(home) = home else { return true };
        let Some(mut reader) = home.take() else {
            return false;
        };
        reader.discard_buffered();
        self.edge.metrics().bytes_in.add(reader.received);
        let done = reader.is_done();
        if done {
            self.take_leftover(&mut reader);
        }
        done
    }

    /// Sends what a request came to, as far as the socket takes it at once.
    fn answer(
        &mut self,
        exchange: Exchange,
        answered: Result<Response, Fault>,
        now: Instant,
    ) -> Result<Fate, Box<Unfinished>> {
        // What a client sends behind CONNECT was meant for a tunnel and is no request.
        let is_tunnel = exchange.head.method() == Method::Connect;
        let mut must_close = !self.reclaim_reader(exchange.home.as_ref()) || is_tunnel;
        let response = match answered {
            Ok(response) => response,
            Err(fault) if fault.kind == FaultKind::ClientGone => {
                self.edge.metrics().client_gone.increment();
                let status = fault.kind.status();
                let end = Ending {
                    status,
                    timing: fault.timing,
                    keeps: false,
                    must_close: false,
                };
                self.record(exchange.told(), &end, 0);
                return Ok(Fate::Close);
            }
            Err(fault) => {
                must_close |= fault.kind == FaultKind::BadRequest;
                if fault.kind == FaultKind::ClientTooSlow {
                    self.edge.metrics().too_slow.increment();
                }
                faults::respond(fault, Some(&exchange.head), exchange.settings.development)
            }
        };
        let head = &exchange.head;
        let close = must_close || self.guard.drain().is_draining();
        let plan = Plan::new(head, response.status, response.body.length(), close);
        let Response {
            status,
            fields,
            body,
            timing,
        } = response;
        let body = match is_bodiless(head, status) {
            true => Body::Empty,
            false => body,
        };
        let date = clock::http_date(now);
        let line = ResponseLine {
            status,
            fields: &fields,
            framing: plan.framing,
            persist: plan.persist,
            date: Some(&date),
        };
        let end = Ending {
            status,
            timing,
            keeps: plan.keeps,
            must_close,
        };
        let started = send::send_now(&self.stream, &line, body);
        let done = self.started(exchange.told(), end, started);
        done.map_err(|rest| exchange.unfinished(rest))
    }

    /// Concludes a response that is out or cut; otherwise gives what is left to send.
    fn started(
        &mut self,
        told: Told<'_>,
        end: Ending,
        started: Result<Started, Cut>,
    ) -> Result<Fate, Left> {
        match started {
            Ok(Started::Done(sent)) => Ok(self.conclude(told, &end, sent, Ok(()))),
            Ok(Started::Rest(rest)) => Err(Left::Sending(Box::new(Sending { rest, end }))),
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
            Cut::Gone => self.edge.metrics().client_gone.increment(),
            Cut::TooSlow => {
                self.edge.metrics().too_slow.increment();
                log::debug!("{method} {target}: the client took the response too slowly");
            }
            Cut::Body(fault) => {
                log::error!("{method} {target}: response cut: {}", fault.cause);
            }
        }
        Fate::Abort
    }

    /// Moves the idle deadline, counts and logs.
    fn record(&mut self, told: Told<'_>, end: &Ending, bytes: u64) {
        let now = clock::now();
        self.deadline.set(now + told.settings.limits.idle_timeout);
        let total = now.saturating_duration_since(told.arrived);
        self.edge.metrics().active.add(-1);
        self.edge.metrics().total_time.record_local(total);
        if let Some(log) = &told.settings.access_log {
            let (head, peer, timing) = (told.head, self.peer, &end.timing);
            let status = end.status.code();
            log.write(&Record {
                head,
                peer,
                status,
                bytes,
                timing,
                total,
            });
        }
    }

    /// Answers a head that was refused, or did not arrive in time.
    async fn refuse(&mut self, refused: Next) -> Fate {
        let response = match refused {
            Next::Refused(error) => {
                self.edge.metrics().malformed.increment();
                let status = error.status();
                log::debug!("{}: {status} {error}", self.listener.name);
                faults::respond_malformed(status, &error.to_string())
            }
            Next::HeadTimeout => {
                self.edge.metrics().too_slow.increment();
                let fault = Fault::new(FaultKind::ClientTooSlow, "limits.header_timeout");
                faults::respond(fault, None, false)
            }
            Next::Head(_) | Next::Over => return Fate::Close,
        };
        let settings = self.edge.settings();
        let date = clock::http_date(clock::now());
        let line = ResponseLine {
            status: response.status,
            fields: &response.fields,
            framing: ResponseFraming::Length(response.body.length().unwrap_or(0)),
            persist: Persist::Close,
            date: Some(&date),
        };
        self.edge.metrics().count_response(response.status.code());
        if let Some(log) = &settings.access_log {
            log.write_refused(self.peer, response.status.code());
        }
        if let Ok(Started::Rest(rest)) = send::send_now(&self.stream, &line, response.body) {
            // Whether it arrives or not, the connection ends.
            let _ = send::send_rest(Arc::clone(&self.stream), rest, &settings.limits).await;
        }
        Fate::Linger
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.edge.open.fetch_sub(1, Ordering::Relaxed);
        self.edge.metrics().open.add(-1);
    }
}

impl Exchange {
    fn new(settings: Arc<Settings>, head: RequestHead, arrived: Instant) -> Self {
        Self {
            settings,
            head: Arc::new(head),
            arrived,
            home: None,
        }
    }

    fn told(&self) -> Told<'_> {
        Told {
            settings: &self.settings,
            head: &self.head,
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

/// Whom a request is for.
enum Asks<H> {
    /// The handlers of a route, for this path.
    Handlers(RequestPath, H),
    /// Edge itself, which answers this.
    Edge(Answered),
}

impl Asks<&Handlers> {
    fn owned(self) -> Asks<Handlers> {
        match self {
            Self::Handlers(path, handlers) => Asks::Handlers(path, Arc::clone(handlers)),
            Self::Edge(answered) => Asks::Edge(answered),
        }
    }
}

/// Finds whom a request is for.
fn find<'s>(settings: &'s Settings, head: &RequestHead) -> Asks<&'s Handlers> {
    let path = match RequestPath::of(head) {
        Ok(path) => path,
        Err(error) => {
            return Asks::Edge(Err(Fault::new(FaultKind::BadRequest, error.to_string())));
        }
    };
    if let Some(answered) = answer_itself(head) {
        return Asks::Edge(answered);
    }
    match route(settings, head.host(), path.bytes(head)) {
        Ok(handlers) => Asks::Handlers(path, handlers),
        Err(fault) => Asks::Edge(Err(fault)),
    }
}

/// Asks the handlers in order from `next` on, until one answers or works on it.
fn ask(handlers: Handlers, next: usize, mut request: Request) -> Said {
    for at in next..handlers.len() {
        match handlers[at].handle(request) {
            Handling::Later(work) => {
                return Said::Works(Work {
                    work,
                    handlers,
                    next: at + 1,
                });
            }
            Handling::Now(Ok(Reply::Pass(passed))) => request = *passed,
            Handling::Now(Ok(Reply::Response(response))) => return Said::Answered(Ok(response)),
            Handling::Now(Err(fault)) => return Said::Answered(Err(fault)),
        }
    }
    let fault = Fault::new(FaultKind::NotFound, "no handler of the route has it");
    Said::Answered(Err(fault))
}

/// What edge answers itself: methods that are about the connection or the server as a whole.
fn answer_itself(head: &RequestHead) -> Option<Answered> {
    let refuse = |kind, cause: &'static str| Some(Err(Fault::new(kind, cause)));
    match head.method() {
        Method::Connect => refuse(FaultKind::NotImplemented, "CONNECT: not a proxy"),
        Method::Trace => refuse(FaultKind::MethodNotAllowed, "TRACE is refused"),
        Method::Options if head.target_path_query() == "*" => Some(Ok(faults::respond_options())),
        _ => None,
    }
}

/// The handlers for a request.
fn route<'s>(settings: &'s Settings, host: &str, path: &[u8]) -> Result<&'s Handlers, Fault> {
    match settings.routing.find(host, path) {
        Found::Handlers(handlers) => Ok(handlers),
        Found::NoRoute => Err(Fault::new(FaultKind::NotFound, "no route matches")),
        Found::NoSite => {
            let cause = format!("no site for host `{host}`");
            Err(Fault::new(FaultKind::UnknownHost, cause))
        }
    }
}

/// Whether a request announces a body with something in it.
fn has_body(head: &RequestHead) -> bool {
    !matches!(head.framing(), BodyFraming::None | BodyFraming::Length(0))
}

/// Whether the response to `head` goes without its body.
fn is_bodiless(head: &RequestHead, status: Status) -> bool {
    head.method() == Method::Head || status.forbids_body()
}

/// How a response is framed and whether the connection stays.
struct Plan {
    framing: ResponseFraming,
    persist: Persist,
    keeps: bool,
}

impl Plan {
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
        let keeps = head.keep_alive() && delimited && !close;
        let persist = match (keeps, old) {
            (false, _) => Persist::Close,
            (true, true) => Persist::KeepAliveHttp10,
            (true, false) => Persist::KeepAlive,
        };
        Self {
            framing,
            persist,
            keeps,
        }
    }
}

/// Ends our side, then reads over what still comes, for a short while.
async fn linger(stream: Arc<Stream>) {
    stream.shutdown_write();
    let mut timer = LazyDeadline::new(clock::now() + LINGER);
    std::future::poll_fn(|cx| {
        loop {
            let read = buffers::with_receive(|buffer| stream.poll_read(cx, buffer));
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

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("peer", &self.peer)
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
            size_of::<Connection>() <= 288,
            "{}",
            size_of::<Connection>()
        );
        let task = size(Connection::run);
        assert!(task <= 432, "{task}");
    }
}
