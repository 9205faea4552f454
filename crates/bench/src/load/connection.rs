//! One connection of a load: a task on one event loop that takes the next request, sends it,
//! reads the response and repeats.
//!
//! `engine` starts the connections. A connection keeps one stream per server of the load's
//! requests and opens what the next request needs. Per request: no allocation, one send, one
//! receive for a small response, and one or two clock readings.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use penstock_runtime::{LazyDeadline, Stream, buffers, clock};

use super::recorder::Recorder;
use super::response_reader::{FeedResult, RequestContext, ResponseFailure, ResponseReader};
use super::shared_run::{LoadServer, LoadState, RequestResult, ScheduledRequest, SharedRun};
use crate::tls::describe_failure;

#[derive(Debug)]
pub(super) struct LoadConnection {
    run: Arc<SharedRun>,
    load: usize,
    /// Its number among the load's on this loop.
    slot: usize,
    /// One per server of the load.
    streams: Vec<Option<OpenStream>>,
    deadline: LazyDeadline,
    response: ResponseReader,
    /// The delay before the next attempt, after a connection failed.
    reconnect_delay: Duration,
}

#[derive(Debug)]
struct OpenStream {
    stream: Stream,
    /// Whether it has brought a response.
    has_served: bool,
}

struct RequestExchange<'a> {
    server: usize,
    unsent: &'a [u8],
    /// The socket accepts no more; a response sent before the close may still be readable.
    send_failed: bool,
    first_byte: Option<Instant>,
}

impl LoadConnection {
    pub(super) fn new(run: Arc<SharedRun>, load: usize, slot: usize) -> Self {
        let servers = run.loads[load].servers.len();
        let mut streams = Vec::new();
        streams.resize_with(servers, || None);
        Self {
            run,
            load,
            slot,
            streams,
            deadline: LazyDeadline::new(clock::now()),
            response: ResponseReader::new(),
            reconnect_delay: MIN_RECONNECT_DELAY,
        }
    }

    /// Sends requests until there are no more; then it stays open and idle until the loops end.
    pub(super) async fn run(mut self) {
        if self.is_open_loop() {
            self.open_ahead().await;
        }
        let run = Arc::clone(&self.run);
        let shared = &run.loads[self.load];
        let mut now = clock::now();
        while let Some((request, started)) = self.next_request(now).await {
            now = self.serve(shared, request, started).await;
        }
        std::future::pending::<()>().await;
    }

    fn is_open_loop(&self) -> bool {
        self.run.loads[self.load].load.rate.is_some()
    }

    /// Opens an open loop's connections before its schedule starts, so that the first arrivals do
    /// not measure connecting. A failure is not counted yet: the arrival that needs the connection
    /// reports it.
    async fn open_ahead(&mut self) {
        let shared = &self.run.loads[self.load];
        if shared.load.keep_alive && shared.servers.len() == 1 {
            let _ = self.connect(0, false).await;
        }
        self.run.ready_connections.fetch_add(1, Ordering::AcqRel);
    }

    /// The next request and its start.
    async fn next_request(&mut self, now: Instant) -> Option<(ScheduledRequest, Instant)> {
        if !self.is_open_loop() {
            return self.next_closed_loop_request(now).await;
        }
        self.run.with_load(self.load, |_, it| {
            let arrivals = it.arrivals.as_mut()?;
            arrivals.release_connection(self.slot, now, &mut it.recorder);
            Some(())
        });
        let take = |cx: &mut Context<'_>| {
            let arrival = self.run.with_load(self.load, |_, it| {
                it.arrivals.as_mut()?.take_arrival(self.slot, cx.waker())
            });
            arrival.map_or(Poll::Pending, Poll::Ready)
        };
        let arrival = poll_fn(take).await;
        let now = clock::now();
        let request = self.run.begin_arrival(self.load, self.slot, arrival, now)?;
        Some((request, now))
    }

    /// The next request in a closed loop: now, or when the window begins.
    async fn next_closed_loop_request(
        &self,
        mut now: Instant,
    ) -> Option<(ScheduledRequest, Instant)> {
        let mut is_resting = false;
        let request = poll_fn(|cx| {
            if is_resting {
                now = clock::now();
            }
            let request = self
                .run
                .poll_next_request(self.load, self.slot, now, cx.waker());
            if request.is_pending() && !std::mem::replace(&mut is_resting, true) {
                self.run.resting_connections.fetch_add(1, Ordering::AcqRel);
            }
            request
        });
        let request = request.await?;
        Some((request, now))
    }

    /// Serves one request that begins at `sent`; returns when it ended.
    async fn serve(
        &mut self,
        shared: &LoadState,
        request: ScheduledRequest,
        sent: Instant,
    ) -> Instant {
        let shape = &shared.load.requests[request.request_index];
        let server = shared.server_of[request.request_index];
        let mut start = request.due.unwrap_or(sent);
        let mut is_again = false;
        loop {
            let mut begun = sent;
            if self.streams[server].is_none() {
                match self.connect(server, request.is_counted).await {
                    Ok(opened) => begun = opened,
                    Err(failure) => {
                        let ended = RequestResult::new_unsent(request, failure, clock::now());
                        self.run.record_result(self.load, &ended);
                        return self.pause(failure, ended.now).await;
                    }
                }
                // A kept connection is opened once for many requests: no single one includes the
                // time.
                if shared.load.keep_alive && request.due.is_none() && !is_again {
                    start = begun;
                }
            }
            let follows = self.streams[server]
                .as_ref()
                .is_some_and(|it| it.has_served);
            self.response.begin(RequestContext {
                is_head: shape.is_head,
                is_reused_connection: follows,
            });
            self.deadline.set(begun + shared.load.timeout);
            let mut exchange = RequestExchange {
                server,
                unsent: &shape.bytes,
                send_failed: false,
                first_byte: None,
            };
            let outcome = poll_fn(|cx| self.poll_exchange(cx, &mut exchange)).await;
            // The server closed it while it was idle, as it may (RFC 9112 §9.3.1): send once more.
            if let Err(ResponseFailure::Closed | ResponseFailure::Reset) = outcome
                && follows
                && !is_again
                && exchange.first_byte.is_none()
            {
                self.streams[server] = None;
                if request.is_counted {
                    self.run
                        .with_recorder(self.load, |recorder| recorder.counts.retried += 1);
                }
                is_again = true;
                continue;
            }
            return self.finish_exchange(request, outcome, &exchange, start, sent);
        }
    }

    /// Keeps or closes the stream and records the result.
    fn finish_exchange(
        &mut self,
        request: ScheduledRequest,
        outcome: Result<Instant, ResponseFailure>,
        exchange: &RequestExchange<'_>,
        start: Instant,
        sent: Instant,
    ) -> Instant {
        let keeps = self.run.loads[self.load].load.keep_alive;
        let may_stay = outcome.is_ok() && self.response.keep_alive && exchange.unsent.is_empty();
        match &mut self.streams[exchange.server] {
            Some(held) if keeps && may_stay && !exchange.send_failed => held.has_served = true,
            other => *other = None,
        }
        let now = outcome.unwrap_or_else(|_| clock::now());
        if outcome == Err(ResponseFailure::Tls) && request.is_counted {
            self.run.with_recorder(self.load, |recorder| {
                recorder.record_tls_failure(|| INVALID_SESSION.to_owned());
            });
        }
        let ended = RequestResult {
            request,
            outcome: outcome.map(|_| self.response.status),
            start,
            sent,
            first_byte: exchange.first_byte.unwrap_or(now),
            now,
            bytes: self.response.bytes,
            body_bytes: self.response.body_bytes,
        };
        self.run.record_result(self.load, &ended);
        now
    }

    /// Sends and receives as far as possible; returns when the response was complete.
    fn poll_exchange(
        &mut self,
        cx: &mut Context<'_>,
        exchange: &mut RequestExchange<'_>,
    ) -> Poll<Result<Instant, ResponseFailure>> {
        let Some(held) = &self.streams[exchange.server] else {
            return Poll::Ready(Err(ResponseFailure::Closed));
        };
        if !exchange.unsent.is_empty() {
            exchange.poll_send(cx, &held.stream);
        }
        loop {
            let incoming = &mut self.response;
            let (fed, count) = match exchange.poll_receive(cx, &held.stream, incoming) {
                Poll::Ready(received) => received,
                Poll::Pending => break,
            };
            match fed {
                Ok(FeedResult::More) => {}
                Ok(FeedResult::Complete) => {
                    // A response in one piece needs one clock reading.
                    let now = match exchange.first_byte {
                        Some(first) if incoming.bytes == count => first,
                        _ => clock::now(),
                    };
                    return Poll::Ready(Ok(now));
                }
                Err(failure) => return Poll::Ready(Err(failure)),
            }
        }
        self.deadline
            .poll(cx)
            .map(|()| Err(ResponseFailure::Timeout))
    }

    /// Opens the stream to a server; returns when it was open.
    async fn connect(
        &mut self,
        server: usize,
        is_counted: bool,
    ) -> Result<Instant, ResponseFailure> {
        let shared = &self.run.loads[self.load];
        let opening = self.open_stream(&shared.servers[server], is_counted);
        let (stream, now) = clock::timeout(shared.load.timeout, opening)
            .await
            .unwrap_or(Err(ResponseFailure::Timeout))?;
        self.reconnect_delay = MIN_RECONNECT_DELAY;
        self.streams[server] = Some(OpenStream {
            stream,
            has_served: false,
        });
        Ok(now)
    }

    /// Connects, and makes a session with a server that has TLS.
    async fn open_stream(
        &self,
        server: &LoadServer,
        is_counted: bool,
    ) -> Result<(Stream, Instant), ResponseFailure> {
        let started = clock::now();
        let connected = server.address.connect().await;
        let stream = connected.map_err(|_| ResponseFailure::ConnectFailed)?;
        let connected = clock::now();
        let record = |take: &dyn Fn(&mut Recorder)| {
            if is_counted {
                self.run.with_recorder(self.load, take);
            }
        };
        record(&|recorder| recorder.record_connection(connected - started));
        let Some(tls) = &server.tls else {
            return Ok((stream, connected));
        };
        let session = match tls.connect(&stream).await {
            Ok(session) => session,
            Err(error) => {
                let why = || format!("{}: {}", tls.server_name.to_str(), describe_failure(&error));
                record(&|recorder| recorder.record_tls_failure(why));
                return Err(ResponseFailure::Tls);
            }
        };
        let now = clock::now();
        let info = session.info();
        self.run.with_tls_recorder(self.load, |recorder| {
            recorder.record_session(info.version, &info.cipher);
        });
        record(&|recorder| {
            let tls = recorder.tls.as_mut();
            tls.into_iter()
                .for_each(|tls| tls.record_handshake(now - connected, info.is_resumed));
        });
        Ok((session.over(stream), now))
    }

    /// Waits before the next attempt to connect, longer each time; a timeout was a wait by itself.
    async fn pause(&mut self, failure: ResponseFailure, now: Instant) -> Instant {
        if failure == ResponseFailure::Timeout {
            return now;
        }
        clock::sleep(self.reconnect_delay).await;
        self.reconnect_delay = (self.reconnect_delay * 2).min(MAX_RECONNECT_DELAY);
        clock::now()
    }
}

impl RequestExchange<'_> {
    /// Sends as much as the socket accepts. An error is kept: the response may explain it.
    fn poll_send(&mut self, cx: &mut Context<'_>, stream: &Stream) {
        let mut sent = stream.try_write(&[IoSlice::new(self.unsent)]);
        loop {
            match sent {
                Ok(count) => self.unsent = self.unsent.get(count..).unwrap_or_default(),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => {
                    self.unsent = &[];
                    self.send_failed = true;
                }
            }
            if self.unsent.is_empty() {
                return;
            }
            match stream.poll_write(cx, &[IoSlice::new(self.unsent)]) {
                Poll::Ready(again) => sent = again,
                Poll::Pending => return,
            }
        }
    }

    /// The cause of a failed read.
    fn describe_error(&self, kind: io::ErrorKind) -> ResponseFailure {
        match kind {
            io::ErrorKind::TimedOut => ResponseFailure::Timeout,
            // TLS: the connection ended without a close_notify, so the response was cut.
            io::ErrorKind::UnexpectedEof if !self.send_failed => ResponseFailure::Closed,
            // TLS: an alert of the server, or a record that it cannot have sent.
            io::ErrorKind::InvalidData => ResponseFailure::Tls,
            _ => ResponseFailure::Reset,
        }
    }

    /// Receives once; returns the effect on the response, and the number of bytes.
    fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        stream: &Stream,
        incoming: &mut ResponseReader,
    ) -> Poll<(Result<FeedResult, ResponseFailure>, u64)> {
        buffers::with_receive_buffer(|buffer| {
            let Poll::Ready(received) = stream.poll_read(cx, buffer) else {
                return Poll::Pending;
            };
            Poll::Ready(match received {
                Ok(0) if self.send_failed => (
                    incoming
                        .handle_end_of_stream()
                        .map_err(|_| ResponseFailure::Reset),
                    0,
                ),
                Ok(0) => (incoming.handle_end_of_stream(), 0),
                Ok(count) => {
                    if self.first_byte.is_none() {
                        self.first_byte = Some(clock::now());
                    }
                    (incoming.feed(&buffer[..count]), count as u64)
                }
                Err(e) => (Err(self.describe_error(e.kind())), 0),
            })
        })
    }
}

const INVALID_SESSION: &str = "a session ended with an alert or an invalid record";

const MIN_RECONNECT_DELAY: Duration = Duration::from_millis(1);
const MAX_RECONNECT_DELAY: Duration = Duration::from_millis(100);
