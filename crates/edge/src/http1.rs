//! One HTTP/1 connection: read a head, start its exchange, send the response, again.
//!
//! An idle connection is small and owns no buffer. Heads are read into the event loop's shared
//! buffer and, usually, parsed, answered and dropped in one poll. State of longer work (bodies,
//! slow sends, lingering) is boxed when it begins.
//!
//! # Invariants
//! - Pipelined bytes are kept for the next request.
//! - The time of a head runs from its first byte; the first head's from the accept.
//! - A connection that waits for a request may be told to close, to make room for others.
//! - If framing is ambiguous, the connection closes.
//! - A client that leaves is noticed while its request waits. One that only closes its sending side
//!   gets its response (RFC 9112 §9.6).

mod body_reader;
mod client_watch;
mod handler_wait;
mod receive_buffer;
mod refusal;
mod response;
mod send;

use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use penstock_exchange::{ClientState, ListenerInfo, RequestTiming};
use penstock_http::{HeadScanner, ParseProgress, RequestHead, Status};
use penstock_runtime::{LazyDeadline, Stream, buffers, clock, drain, loops};

use self::body_reader::ReaderSlot;
use self::receive_buffer::ReceiveBuffer;
use self::refusal::RefusedHead;
use self::send::UnsentResponse;
use crate::accept::ConnectionSource;
use crate::exchange::{ConnectionContext, Exchange, HandlerState, RunningHandler};
use crate::handover::{ConnectionGuard, UpgradeTarget};
use crate::idle_connections::IdleEntry;

/// Pipelined requests answered in a row before other connections get their turn.
const PIPELINE_BATCH: u32 = 16;

/// How long a closing connection discards what the client still sends, so that the last response is
/// not lost to a reset (RFC 9112 §9.6).
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);

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
    /// Received and not yet used; without memory while the connection is idle.
    received: ReceiveBuffer,
    /// Whether `received` has bytes that the scanner has not seen.
    has_unscanned: bool,
    /// Whether the deadline includes the drain's: a response ended during the drain, and the next
    /// one tells the client.
    is_drain_deadline_set: bool,
    /// The client closed its sending side: no request follows those received.
    is_half_closed: bool,
    /// The time of the first request's head counts from the accept.
    awaits_first_request: bool,
    /// When the first byte of an unfinished head came.
    head_started_at: Option<Instant>,
    /// Its entry in the list of idle connections.
    idle_entry: IdleEntry,
}

/// The end of a wait for a head.
enum HeadOutcome {
    Head(RequestHead),
    Refused(Box<RefusedHead>),
    /// A head began and did not arrive in time.
    TimedOut,
    /// The client closed, was idle for too long, or the server drains.
    Closed,
}

/// The result of a wait for a head and of what could be done at once. Small: the idle task always
/// has room for it.
enum ReadOutcome {
    Done(ConnectionAction),
    Pending(Box<PendingExchange>),
    /// There is no request, and the client gets an error.
    Refused(Box<HeadOutcome>),
}

/// The part of an exchange that is about bytes on the wire.
#[derive(Default)]
struct WireState {
    /// Where the body's reader comes back to; `None` without a body, or once the reader was taken.
    reader_slot: Option<ReaderSlot>,
    /// The body was not read to its end when the response began: nothing behind it can be read.
    is_body_unread: bool,
    /// Interim responses that the socket has not taken yet: they go before the final head.
    unsent_interim: Vec<u8>,
    /// Bytes of the next head that are out already ([`handler_wait::STATUS_LINE_START`]).
    status_bytes_sent: u8,
}

/// The end of a response, as the connection needs it.
struct ResponseSummary {
    status: Status,
    timing: RequestTiming,
    keeps_alive: bool,
    /// The request was not read to its end, or not understood.
    must_close: bool,
}

/// An exchange that could not be finished at once.
struct PendingExchange {
    exchange: Exchange,
    wire: WireState,
    stage: PendingStage,
}

enum PendingStage {
    Handling(HandlerWait),
    Sending(Box<PendingSend>),
}

/// A handler at work, and how its client is watched meanwhile.
struct HandlerWait {
    handler: RunningHandler,
    /// The reader of the body is out, and watches the socket until it is back.
    is_reader_lent: bool,
    is_watching_client: bool,
}

struct PendingSend {
    unsent: UnsentResponse,
    summary: ResponseSummary,
    /// The next owner of the connection, if it serves no further request.
    handover_target: Option<UpgradeTarget>,
}

/// The connection's next step after an exchange.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ConnectionAction {
    KeepAlive,
    /// End the task; the socket closes, unless it was handed over.
    Close,
    /// Close, but discard what the client may still be sending.
    Linger,
    /// Close so that the client sees that its response was cut.
    Abort,
}

impl Connection {
    pub(crate) fn new(
        edge: ConnectionGuard,
        stream: Arc<Stream>,
        source: ConnectionSource,
        listener: Arc<ListenerInfo>,
        early: Vec<u8>,
    ) -> Self {
        let drain_guard = edge.drain.guard();
        // A session that this server began is with a front end, not with a client.
        let is_with_client = penstock_tls::connection_identity(&stream).is_some();
        let tls = penstock_tls::session_info(&stream).filter(|_| is_with_client);
        let tls = tls.cloned();
        let now = clock::now();
        let deadline = LazyDeadline::new(now + edge.settings().limits.header_timeout);
        let idle_entry = IdleEntry::new(&edge.idle_connections, now);
        Self {
            edge,
            stream,
            source,
            listener,
            client_state: Arc::new(ClientState::new(tls)),
            drain_guard,
            is_drain_registered: false,
            deadline,
            scanner: HeadScanner::new(),
            has_unscanned: !early.is_empty(),
            is_drain_deadline_set: false,
            is_half_closed: false,
            received: ReceiveBuffer::from(early),
            awaits_first_request: true,
            head_started_at: None,
            idle_entry,
        }
    }

    /// Gives the first request as much time as any other, on a connection that was made ahead of
    /// its requests.
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
                // Requests that came in one piece must not keep the loop from other connections.
                in_a_row = if self.has_unscanned { in_a_row + 1 } else { 0 };
                if in_a_row == PIPELINE_BATCH {
                    in_a_row = 0;
                    Box::pin(loops::yield_now()).await;
                }
                let action = match std::future::poll_fn(|cx| self.poll_request(cx)).await {
                    ReadOutcome::Done(action) => action,
                    ReadOutcome::Pending(mut pending) => {
                        // Polled here: the usual wait for a handler allocates nothing more.
                        match std::future::poll_fn(|cx| self.poll_handlers(cx, &mut pending)).await
                        {
                            Some(action) => action,
                            None => Box::pin(self.finish_sending(pending)).await,
                        }
                    }
                    ReadOutcome::Refused(refused) => Box::pin(self.send_refusal(*refused)).await,
                };
                match action {
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

    fn connection_context(&self) -> ConnectionContext<'_> {
        ConnectionContext {
            edge: &self.edge,
            source: &self.source,
            listener: &self.listener,
            client_state: &self.client_state,
            identity: penstock_tls::connection_identity(&self.stream),
        }
    }

    /// Waits for the next request, and does as much of its exchange as can be done at once.
    fn poll_request(&mut self, cx: &mut Context<'_>) -> Poll<ReadOutcome> {
        Poll::Ready(match ready!(self.poll_head(cx)) {
            HeadOutcome::Head(head) => match self.start_exchange(head) {
                Ok(action) => ReadOutcome::Done(action),
                Err(pending) => {
                    self.edge.idle_connections.remove(&mut self.idle_entry);
                    ReadOutcome::Pending(pending)
                }
            },
            HeadOutcome::Closed => ReadOutcome::Done(ConnectionAction::Close),
            refused => {
                self.edge.idle_connections.remove(&mut self.idle_entry);
                ReadOutcome::Refused(Box::new(refused))
            }
        })
    }

    /// Reads until a whole head is there, with what `received` has of it.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<HeadOutcome> {
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
            Err(error) => Some(HeadOutcome::refused(error, bytes)),
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
            Err(error) => Some(HeadOutcome::refused(error, self.received.unread())),
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

    /// One request and its response, as far as it goes at once.
    ///
    /// # Errors
    /// The rest, for [`Connection::poll_handlers`] and [`Connection::finish_sending`].
    fn start_exchange(
        &mut self,
        head: RequestHead,
    ) -> Result<ConnectionAction, Box<PendingExchange>> {
        let mut settings = self.edge.acquire_settings();
        let request = self
            .connection_context()
            .receive_request(settings.load(), head);
        let inline = self.respond_inline(&request);
        if let Some(Ok(action)) = inline {
            self.edge.release_settings(settings);
            return Ok(action);
        }
        let arrived = request.request_meta().arrived;
        let (mut exchange, route) = request.into_exchange(self.connection_context());
        self.edge.release_settings(settings);
        let mut wire = WireState::default();
        if let Some(Err(sending)) = inline {
            return Err(PendingExchange::boxed(
                exchange,
                wire,
                PendingStage::Sending(sending),
            ));
        }
        let body = self.lend_body_reader(&exchange, &mut wire);
        let stage = match exchange.dispatch(self.connection_context(), route, body) {
            HandlerState::Finished(result) => {
                match self.respond(&mut exchange, &mut wire, result, arrived) {
                    Ok(action) => return Ok(action),
                    Err(sending) => PendingStage::Sending(sending),
                }
            }
            HandlerState::Running(handler) => {
                PendingStage::Handling(self.start_wait(handler, &wire))
            }
        };
        Err(PendingExchange::boxed(exchange, wire, stage))
    }

    /// Polls the handlers of an exchange until they are done; `None` when a part of the response is
    /// still to be sent.
    fn poll_handlers(
        &mut self,
        cx: &mut Context<'_>,
        pending: &mut PendingExchange,
    ) -> Poll<Option<ConnectionAction>> {
        let PendingExchange {
            exchange,
            wire,
            stage,
        } = pending;
        while let PendingStage::Handling(wait) = stage {
            let version = exchange.head.version();
            let mut reply = wait.handler.future.as_mut().poll(cx);
            if reply.is_pending()
                && self
                    .poll_client_disconnected(cx, wait, wire, version)
                    .is_ready()
            {
                // It may have waited only for its turn, and now its client has left.
                reply = wait.handler.future.as_mut().poll(cx);
            }
            let reply = ready!(reply);
            match exchange.resume_after_reply(self.connection_context(), &mut wait.handler, reply) {
                HandlerState::Running(next) => *wait = self.start_wait(next, wire),
                HandlerState::Finished(result) => {
                    let created_at = result.as_ref().ok().and_then(|it| it.created_at);
                    let now = created_at.unwrap_or_else(clock::now);
                    match self.respond(exchange, wire, result, now) {
                        Ok(action) => return Poll::Ready(Some(action)),
                        Err(sending) => *stage = PendingStage::Sending(sending),
                    }
                }
            }
        }
        Poll::Ready(None)
    }

    /// Whether the response to this request is the connection's last: the server drains, or the
    /// client closed its sending side, and no other request has come with this one.
    fn must_close(&self) -> bool {
        (self.drain_guard.drain().is_draining() || self.is_half_closed) && !self.has_unscanned
    }
}

impl PendingExchange {
    fn boxed(exchange: Exchange, wire: WireState, stage: PendingStage) -> Box<Self> {
        Box::new(Self {
            exchange,
            wire,
            stage,
        })
    }
}

/// Closes the sending side, then discards what still comes, for a short while.
pub(crate) async fn linger(stream: Arc<Stream>) {
    stream.shutdown_write();
    let mut timer = LazyDeadline::new(clock::now() + LINGER_TIMEOUT);
    std::future::poll_fn(|cx| {
        loop {
            let read = buffers::with_receive_buffer(|buffer| stream.poll_read(cx, buffer));
            match read {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(()),
                // A fast sender must not keep the loop here: the timer is polled each time.
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

    /// A server may have a million idle connections: what an exchange needs is boxed while it
    /// lasts.
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
