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
    Body, ClientState, Fault, FaultKind, HandlerFuture, Handling, ListenerInfo, Reply, Request,
    RequestBody, Response,
};
use penstock_http::{
    BodyFraming, HeadScanner, Method, ParseError, Persist, Progress, RequestHead,
    ResponseFraming, ResponseLine, Version,
};
use penstock_runtime::{LazyDeadline, Stream, buffers, clock, drain, loops};
use penstock_sys::net::PeerAddress;

use crate::access_log::Record;
use crate::incoming::{Home, Incoming, Reader};
use crate::router::Found;
use crate::send::{self, Cut, Started};
use crate::{Edge, Settings, faults};

/// Bytes of pipelined requests kept while one is in progress; beyond it the socket holds them.
const PIPELINE_BYTES: usize = 64 * 1024;

/// Pipelined requests answered in a row before other connections get their turn.
const PIPELINE_TURN: u32 = 16;

/// How long a closing connection reads over what the client still sends, so that our last answer is
/// not lost to a reset (RFC 9112 §9.6).
const LINGER: Duration = Duration::from_secs(2);

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
    pending: Vec<u8>,
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
        edge.metrics.open.add(1);
        let guard = edge.drain.guard();
        let deadline = LazyDeadline::new(clock::now() + edge.settings().limits.idle_timeout);
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
            pending: Vec::new(),
            unscanned: false,
            head_began: None,
        }
    }

    /// Serves the connection until it ends.
    pub(crate) async fn run(mut self) {
        let mut in_a_row = 0;
        loop {
            // Requests that came in one piece must not keep the loop from everybody else.
            in_a_row = if self.unscanned { in_a_row + 1 } else { 0 };
            if in_a_row == PIPELINE_TURN {
                in_a_row = 0;
                loops::yield_now().await;
            }
            let next = std::future::poll_fn(|cx| self.poll_head(cx)).await;
            let fate = match next {
                Next::Head(head) => self.exchange(head).await,
                Next::Refused(error) => {
                    self.edge.metrics.malformed.increment();
                    let status = error.status();
                    log::debug!("{}: {status} {error}", self.listener.name);
                    let response = faults::respond_malformed(status, &error.to_string());
                    Box::pin(self.refuse(response)).await
                }
                Next::HeadTimeout => {
                    self.edge.metrics.too_slow.increment();
                    let fault = Fault::new(FaultKind::ClientTooSlow, "limits.header_timeout");
                    Box::pin(self.refuse(faults::respond(fault, None, false))).await
                }
                Next::Over => return,
            };
            match fate {
                Fate::Keep => {}
                Fate::Close => return,
                Fate::Linger => {
                    Box::pin(linger(Arc::clone(&self.stream))).await;
                    return;
                }
                Fate::Abort => {
                    self.stream.abort();
                    return;
                }
            }
        }
    }

    /// Waits for the next request's head.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Next> {
        if !std::mem::replace(&mut self.registered, true) {
            self.guard.wake_at_drain(loops::current_index(), cx.waker().clone());
        }
        if std::mem::take(&mut self.unscanned) {
            let pending = std::mem::take(&mut self.pending);
            if let Some(next) = self.scan(&pending) {
                return Poll::Ready(next);
            }
        }
        loop {
            let stream = Arc::clone(&self.stream);
            let polled = buffers::with_receive(|buffer| match stream.poll_read(cx, buffer) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Ok(0) | Err(_)) => Poll::Ready(Some(Next::Over)),
                Poll::Ready(Ok(count)) => Poll::Ready(self.scan_received(&buffer[..count])),
            });
            match polled {
                Poll::Ready(Some(next)) => return Poll::Ready(next),
                Poll::Ready(None) => {}
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

    fn scan_received(&mut self, received: &[u8]) -> Option<Next> {
        if self.pending.is_empty() {
            return self.scan(received);
        }
        let mut pending = std::mem::take(&mut self.pending);
        pending.extend_from_slice(received);
        self.scan(&pending)
    }

    /// Looks for a whole head in `bytes`; what it does not use goes to `pending`.
    fn scan(&mut self, bytes: &[u8]) -> Option<Next> {
        let settings = self.edge.settings.load();
        match self.scanner.scan(bytes, &settings.head_limits()) {
            Ok(Progress::Complete((head, used))) => {
                self.scanner.reset();
                self.head_began = None;
                self.pending.extend_from_slice(&bytes[used..]);
                self.unscanned = used < bytes.len();
                Some(Next::Head(head))
            }
            Ok(Progress::Partial) => {
                self.pending.extend_from_slice(bytes);
                if self.head_began.is_none() {
                    let now = clock::now();
                    self.head_began = Some(now);
                    self.deadline.set(now + settings.limits.header_timeout);
                }
                None
            }
            Err(error) => Some(Next::Refused(error)),
        }
    }

    /// One request and its response.
    async fn exchange(&mut self, head: RequestHead) -> Fate {
        let settings = self.edge.settings();
        let arrived = clock::now();
        let head = Arc::new(head);
        let (body, home) = self.lend_reader(&head, &settings);
        let arrival = Arrival {
            peer: self.peer,
            listener: Arc::clone(&self.listener),
            client: Arc::clone(&self.client),
            at: arrived,
        };
        self.edge.metrics.active.add(1);
        let answered = match Request::new(Arc::clone(&head), body, arrival) {
            Err(error) => Err(Fault::new(FaultKind::BadRequest, error.to_string())),
            Ok(request) => match preflight(&settings, &head, &request) {
                Err(early) => early,
                Ok(handlers) => self.ask(handlers, request, home.as_ref()).await,
            },
        };
        let body_read = self.reclaim_reader(home);
        let fate = match answered {
            Err(fault) if fault.kind == FaultKind::ClientGone => {
                self.edge.metrics.client_gone.increment();
                self.record(&settings, &head, fault.kind.status().code(), 0, &fault.timing, arrived);
                Fate::Close
            }
            answered => {
                let malformed = matches!(&answered, Err(f) if f.kind == FaultKind::BadRequest);
                let response = answered.unwrap_or_else(|fault| {
                    if fault.kind == FaultKind::ClientTooSlow {
                        self.edge.metrics.too_slow.increment();
                    }
                    faults::respond(fault, Some(&head), settings.development)
                });
                let close = malformed || !body_read;
                self.answer(&settings, &head, response, arrived, close).await
            }
        };
        self.edge.metrics.active.add(-1);
        fate
    }

    /// Asks the handlers of a route in order, until one answers.
    async fn ask(
        &mut self,
        handlers: &[Arc<dyn penstock_exchange::Handler>],
        mut request: Request,
        home: Option<&Home>,
    ) -> Result<Response, Fault> {
        for handler in handlers {
            let reply = match handler.handle(request) {
                Handling::Now(reply) => reply,
                Handling::Later(work) => self.watched(work, home).await,
            };
            match reply? {
                Reply::Response(response) => return Ok(response),
                Reply::Pass(passed) => request = *passed,
            }
        }
        Err(Fault::new(FaultKind::NotFound, "no handler of the route has it"))
    }

    /// Awaits a handler, and meanwhile notices when the client leaves or sends more requests.
    async fn watched(
        &mut self,
        mut work: HandlerFuture<'_>,
        home: Option<&Home>,
    ) -> Result<Reply, Fault> {
        // While a body is being read the reader watches the socket.
        let mut lent = home;
        let mut watching = true;
        std::future::poll_fn(|cx| {
            if let Poll::Ready(reply) = work.as_mut().poll(cx) {
                return Poll::Ready(reply);
            }
            if let Some(place) = lent {
                let Some(mut reader) = place.take() else { return Poll::Pending };
                watching = reader.is_done();
                if watching {
                    self.take_leftover(&mut reader);
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
        self.pending.append(&mut reader.pending);
        self.unscanned = !self.pending.is_empty();
    }

    /// Reads pipelined bytes; `false` when the client closed its side.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let stream = Arc::clone(&self.stream);
        buffers::with_receive(|buffer| {
            stream.poll_read(cx, buffer).map(|read| match read {
                Ok(0) | Err(_) => false,
                Ok(count) => {
                    self.pending.extend_from_slice(&buffer[..count]);
                    self.unscanned = true;
                    true
                }
            })
        })
    }

    /// Makes the request's body, which borrows the reading side of the connection.
    fn lend_reader(
        &mut self,
        head: &RequestHead,
        settings: &Settings,
    ) -> (RequestBody, Option<Home>) {
        if matches!(head.framing(), BodyFraming::None | BodyFraming::Length(0)) {
            return (RequestBody::Empty, None);
        }
        let pending = std::mem::take(&mut self.pending);
        self.unscanned = false;
        let stream = Arc::clone(&self.stream);
        let reader = Reader::new(stream, head, pending, &settings.limits);
        let (incoming, home) = Incoming::new(reader);
        (RequestBody::Incoming(Box::new(incoming)), Some(home))
    }

    /// Takes the reading side back; `false` when the body was not read to its end.
    fn reclaim_reader(&mut self, home: Option<Home>) -> bool {
        let Some(home) = home else { return true };
        let Some(mut reader) = home.take() else { return false };
        reader.discard_buffered();
        self.edge.metrics.bytes_in.add(reader.received);
        let done = reader.is_done();
        if done {
            self.take_leftover(&mut reader);
        }
        done
    }

    /// Sends the response and records the exchange.
    async fn answer(
        &mut self,
        settings: &Settings,
        head: &RequestHead,
        response: Response,
        arrived: Instant,
        close: bool,
    ) -> Fate {
        let is_head = head.method() == Method::Head;
        let plan = Plan::new(head, &response, close || self.guard.drain().is_draining());
        let Response { status, fields, body, timing } = response;
        let body = if is_head || status.forbids_body() { Body::Empty } else { body };
        let date = clock::http_date();
        let line = ResponseLine {
            status,
            fields: &fields,
            framing: plan.framing,
            persist: plan.persist,
            date: Some(&date),
        };
        let (sent, done) = match send::send_now(&self.stream, &line, body) {
            Ok(Started::Done(sent)) => (sent, Ok(())),
            Ok(Started::Rest(rest)) => {
                let limits = settings.limits.clone();
                Box::pin(send::send_rest(Arc::clone(&self.stream), rest, limits)).await
            }
            Err(cut) => (0, Err(cut)),
        };
        self.edge.metrics.bytes_out.add(sent);
        self.record(settings, head, status.code(), sent, &timing, arrived);
        self.edge.metrics.count_response(status.code());
        match done {
            Ok(()) if close => Fate::Linger,
            Ok(()) if !plan.keeps => {
                if self.pending.is_empty() { Fate::Close } else { Fate::Linger }
            }
            Ok(()) => Fate::Keep,
            Err(cut) => self.cut(&cut, head),
        }
    }

    fn cut(&self, cut: &Cut, head: &RequestHead) -> Fate {
        let (method, target) = (head.method_str(), head.target());
        match cut {
            Cut::Gone => self.edge.metrics.client_gone.increment(),
            Cut::TooSlow => {
                self.edge.metrics.too_slow.increment();
                log::debug!("{method} {target}: the client took the response too slowly");
            }
            Cut::Body(fault) => {
                log::error!("{method} {target}: response cut: {}", fault.cause);
            }
        }
        Fate::Abort
    }

    /// Moves the idle deadline, counts and logs.
    fn record(
        &mut self,
        settings: &Settings,
        head: &RequestHead,
        status: u16,
        bytes: u64,
        timing: &penstock_exchange::Timing,
        arrived: Instant,
    ) {
        let now = clock::now();
        self.deadline.set(now + settings.limits.idle_timeout);
        let total = now.saturating_duration_since(arrived);
        self.edge.metrics.total_time.record(total);
        if let Some(log) = &settings.access_log {
            log.write(&Record { head, peer: self.peer, status, bytes, timing, total });
        }
    }

    /// Answers without a request and closes.
    async fn refuse(&mut self, response: Response) -> Fate {
        let settings = self.edge.settings();
        let date = clock::http_date();
        let line = ResponseLine {
            status: response.status,
            fields: &response.fields,
            framing: ResponseFraming::Length(response.body.length().unwrap_or(0)),
            persist: Persist::Close,
            date: Some(&date),
        };
        self.edge.metrics.count_response(response.status.code());
        if let Ok(Started::Rest(rest)) = send::send_now(&self.stream, &line, response.body) {
            // Whether it arrives or not, the connection ends.
            let _ = send::send_rest(Arc::clone(&self.stream), rest, settings.limits.clone()).await;
        }
        Fate::Linger
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.edge.open.fetch_sub(1, Ordering::Relaxed);
        self.edge.metrics.open.add(-1);
    }
}

/// What is answered before any handler: methods that no handler takes, hosts and paths unknown.
fn preflight<'s>(
    settings: &'s Settings,
    head: &RequestHead,
    request: &Request,
) -> Result<&'s [Arc<dyn penstock_exchange::Handler>], Result<Response, Fault>> {
    match head.method() {
        Method::Connect => {
            return Err(Err(Fault::new(FaultKind::NotImplemented, "CONNECT: not a proxy")));
        }
        Method::Trace => {
            return Err(Err(Fault::new(FaultKind::MethodNotAllowed, "TRACE is refused")));
        }
        Method::Options if head.target_path_query() == "*" => {
            return Err(Ok(faults::respond_options()));
        }
        _ => {}
    }
    match settings.routing.find(head.host(), request.path()) {
        Found::Handlers(handlers) => Ok(handlers),
        Found::NoRoute => Err(Err(Fault::new(FaultKind::NotFound, "no route matches"))),
        Found::NoSite => {
            let cause = format!("no site for host `{}`", head.host());
            Err(Err(Fault::new(FaultKind::UnknownHost, cause)))
        }
    }
}

/// How a response is framed and whether the connection stays.
struct Plan {
    framing: ResponseFraming,
    persist: Persist,
    keeps: bool,
}

impl Plan {
    fn new(head: &RequestHead, response: &Response, close: bool) -> Self {
        let old = head.version() == Version::Http10;
        let bodiless = response.status.forbids_body();
        let framing = match response.body.length() {
            _ if bodiless => ResponseFraming::None,
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
        Self { framing, persist, keeps }
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
        f.debug_struct("Connection").field("peer", &self.peer).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a connection costs while it is idle besides its socket's registration and its timer.
    #[test]
    fn an_idle_connection_is_small() {
        fn size<F, A>(_: fn(A) -> F) -> usize {
            size_of::<F>()
        }
        println!("task {}", size(Connection::run));
        println!("conn {}", size_of::<Connection>());
        println!("scanner {} request {} response {} fault {} settings", size_of::<HeadScanner>(), size_of::<Request>(), size_of::<Response>(), size_of::<Fault>());
        println!("parse error {} next {}", size_of::<ParseError>(), size_of::<Next>());
    }
}
