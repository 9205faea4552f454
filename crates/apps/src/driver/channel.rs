//! The driver of one reactor: a task that owns the channel of a worker, which has all of its
//! requests at once.
//!
//! It takes jobs from its mailbox and opens a stream for each (`stream_table`). `send` and
//! `receive` are the two directions, `body_pump` takes a body past a slow client, `request_body`
//! brings a request's body to the worker, `websocket_pipe` and `websocket_session` are WebSockets,
//! `closing` is its end.
//!
//! # Invariants
//! - A client that reads nothing stops its own stream and no other.
//! - A stream is in progress until the worker has ended it, or its WebSocket is closed.
//! - A worker that breaks the protocol or stops reading is given up; one that is slow with a
//!   request is not.
//! - All that is kept for a stream has a bound.

mod body_pump;
mod closing;
mod receive;
mod request_body;
mod send;
mod stream_table;
mod wake_list;
mod websocket;
mod websocket_pipe;
mod websocket_session;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use penstock_exchange::{Fault, FaultKind};
use penstock_http::websocket::close_code;
use penstock_queue::{DispatchedJob, SlotId};
use penstock_runtime::{LazyDeadline, Stream, clock};
use penstock_wire::{ChannelDecoder, channel};

use self::send::ChannelOutbox;
use self::stream_table::{RequestBodyState, StreamEntry, StreamState, StreamTable};
use self::wake_list::WakeList;
use super::{DriverCore, DriverEnd};
use crate::dispatch::{Job, Mailbox};
use crate::shared::AppShared;

/// How long a worker may leave its channel unread after one of its requests has timed out, or take
/// to end dropped streams when it is retired.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// How long window is gathered that is too small for a frame of its own.
const WINDOW_UPDATE_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct ChannelDriver {
    core: DriverCore,
    stream: Arc<Stream>,
    /// The socket for bodies that are files; `run` registers it with the loop.
    files_socket: Option<OwnedFd>,
    decoder: ChannelDecoder,
    streams: StreamTable,
    outbox: ChannelOutbox,
    wake_list: Arc<WakeList>,
    /// Streams that have ended and that the queue has not heard of.
    ended_streams: usize,
    /// Streams to which less window is owed than is worth a frame.
    window_owed: Vec<u32>,
    window_update_at: Option<Instant>,
    /// WebSockets whose messages wait until the worker has read more.
    stalled_sockets: Vec<u32>,
    deadline: LazyDeadline,
    read_timeout: Duration,
    /// Too many of its streams are stuck, and the executor knows.
    has_requested_replacement: bool,
    /// When to give up a retired worker that does not end its dropped streams.
    force_end_at: Option<Instant>,
    /// When to check that the worker still reads, after a request has timed out.
    check_reading_at: Option<Instant>,
    /// When to ask for stacks again: they are those of all requests, and delay all of them.
    next_stacks_at: Option<Instant>,
}

impl ChannelDriver {
    pub(crate) fn new(
        app: Arc<AppShared>,
        slot: SlotId,
        mailbox: Arc<Mailbox>,
        pid: u32,
        stream: Stream,
        files: OwnedFd,
    ) -> Self {
        let wake_list = Arc::new(WakeList::default());
        Self {
            core: DriverCore::new(app, slot, mailbox, pid),
            stream: Arc::new(stream),
            files_socket: Some(files),
            decoder: ChannelDecoder::new(),
            streams: StreamTable::new(Arc::clone(&wake_list)),
            outbox: ChannelOutbox::default(),
            wake_list,
            ended_streams: 0,
            window_owed: Vec::new(),
            window_update_at: None,
            stalled_sockets: Vec::new(),
            deadline: LazyDeadline::new(clock::now()),
            read_timeout: READ_TIMEOUT,
            has_requested_replacement: false,
            force_end_at: None,
            check_reading_at: None,
            next_stacks_at: None,
        }
    }

    /// Serves until the worker is retired or lost.
    pub(crate) async fn run(mut self) -> DriverEnd {
        let end = match self.files_socket.take().map(Stream::new) {
            Some(Ok(files)) => {
                self.outbox.set_files_socket(files);
                std::future::poll_fn(|cx| self.poll_end(cx)).await
            }
            Some(Err(error)) => DriverEnd::ProtocolBroken(format!("its files socket: {error}")),
            None => DriverEnd::WorkerDied,
        };
        self.requeue_or_fail_all(&end);
        end
    }

    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<DriverEnd> {
        loop {
            while let Some(delivery) = self.core.mailbox.poll_delivery(cx) {
                self.core.note_state(&delivery);
                if delivery.is_retired {
                    self.limit_retirement();
                }
                self.open_streams(delivery.jobs);
                if delivery.are_streams_cut {
                    self.cut_streams();
                }
                // All that it still has may have been dropped long ago.
                self.limit_retirement();
            }
            while let Some(index) = self.wake_list.poll_next(cx) {
                self.poll_stream(index);
            }
            self.finish_streams();
            if let Err(end) = self.poll_send(cx) {
                return Poll::Ready(end);
            }
            match self.poll_receive(cx) {
                // More jobs may have come, and more bytes.
                Poll::Ready(Ok(())) => continue,
                Poll::Ready(Err(end)) => return Poll::Ready(end),
                Poll::Pending => {}
            }
            let has_hijacks =
                self.core.is_retiring && self.core.hijacked_connections.poll_count(cx) > 0;
            if !has_hijacks {
                self.limit_retirement();
            }
            if self.streams.is_empty() {
                match (self.core.is_retiring, self.core.worker_lost_at) {
                    (true, None) if has_hijacks && !self.core.are_streams_cut => {}
                    (true, _) => return Poll::Ready(DriverEnd::Retired),
                    (false, Some(_)) => return Poll::Ready(DriverEnd::WorkerDied),
                    (false, None) => {}
                }
            }
            match self.poll_deadlines(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(end)) => return Poll::Ready(end),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn open_streams(&mut self, jobs: impl IntoIterator<Item = DispatchedJob<Job>>) {
        let now = clock::now();
        for mut start in jobs {
            if start.job.is_abandoned() {
                let cause = "left before a worker had its request";
                start
                    .job
                    .answer(Err(Fault::new(FaultKind::ClientDisconnected, cause)));
                self.core.app.metrics.queue_abandoned.increment();
                self.ended_streams += 1;
                continue;
            }
            let id = self
                .streams
                .open_stream(start, now, self.core.app.response_timeout);
            self.outbox.push_request(id);
            // From now on the driver notices when the client leaves.
            self.poll_stream(stream_table::index_of(id));
        }
        self.show_in_progress();
    }

    /// Tells the queue of the streams that have ended, and opens the next.
    fn finish_streams(&mut self) {
        while self.ended_streams > 0 {
            let mut jobs = std::collections::VecDeque::new();
            let ended = std::mem::take(&mut self.ended_streams);
            self.core.app.dispatch.finish_and_take(
                clock::now(),
                self.core.slot,
                ended,
                1,
                &mut jobs,
            );
            self.open_streams(jobs);
        }
    }

    fn show_in_progress(&self) {
        self.core.mailbox.set_in_progress(self.streams.len());
    }

    /// Handles a stream's other side: a client has left, a spool has room, a WebSocket has
    /// messages.
    fn poll_stream(&mut self, index: u32) {
        let Some(waker) = self.streams.waker(index) else {
            return;
        };
        let mut cx = Context::from_waker(&waker);
        let Some(entry) = self.streams.entry_at(index) else {
            return;
        };
        let id = entry.id;
        if entry.input != RequestBodyState::Complete && self.poll_upload(id, &mut cx).is_break() {
            return;
        }
        let Some(entry) = self.streams.entry_at(index) else {
            return;
        };
        match &mut entry.state {
            StreamState::AwaitingResponse(start) => {
                let reply = start.job.reply_sender.as_mut();
                if reply.is_some_and(|reply| reply.poll_closed(&mut cx).is_ready()) {
                    self.abandon_stream(id);
                }
            }
            StreamState::Spooling(writer) => {
                if writer.poll_reader_gone(&mut cx) {
                    self.abandon_stream(id);
                }
            }
            StreamState::Pumping(_) => self.handle_pump_progress(id),
            StreamState::WebSocket(_) => self.pump_websocket(id),
            StreamState::Hijacked(_) => self.handle_hijack_progress(id),
            StreamState::AbandonedUnsent(_) | StreamState::Discarding => {}
        }
    }

    fn abandon_stream(&mut self, id: u32) {
        self.fail_stream(id, || {
            Fault::new(FaultKind::ClientDisconnected, "left before the end")
        });
    }

    /// Ends a stream on this side: the client gets the fault and the worker a STREAM_CANCEL. The
    /// worker then ends it, too.
    fn fail_stream(&mut self, id: u32, why: impl FnOnce() -> Fault) {
        if self.take_back_unsent(id) {
            // It was not sent, so the worker has nothing to end.
            if let Some(StreamState::AwaitingResponse(mut start)) = self.end_stream(id) {
                let fault = why();
                if fault.kind == FaultKind::ClientDisconnected {
                    self.core.app.metrics.queue_abandoned.increment();
                }
                start.job.answer(Err(fault));
            }
            return;
        }
        let Some(entry) = self.streams.entry(id) else {
            return;
        };
        if entry.is_abandoned() {
            return;
        }
        match std::mem::replace(&mut entry.state, StreamState::Discarding) {
            StreamState::AwaitingResponse(mut start) => {
                start.job.answer(Err(why()));
                if !entry.is_sent {
                    // Its frame, or its descriptor, was begun: the worker gets the whole of it
                    // first.
                    entry.state = StreamState::AbandonedUnsent(start);
                }
            }
            StreamState::Spooling(writer) => writer.finish(Err(why())),
            StreamState::Pumping(pump) => pump.end_body(Err(why())),
            StreamState::WebSocket(socket) => {
                let why = "the application restarts";
                socket
                    .pipe
                    .close_by_worker(close_code::SERVICE_RESTART, why);
                return self.close_socket(id, close_code::SERVICE_RESTART, why);
            }
            // The connection replies to its client.
            StreamState::Hijacked(_)
            | StreamState::AbandonedUnsent(_)
            | StreamState::Discarding => {}
        }
        self.streams.end_request_body(id);
        // The worker's time to end it begins.
        self.streams.start_clock(id, clock::now());
        self.outbox.push(&channel::encode_stream_cancel(id));
        self.limit_retirement();
    }

    /// Tells the worker that a WebSocket is over; it replies with a CLOSE of its own.
    fn close_socket(&mut self, id: u32, code: u16, reason: &str) {
        let mut frame = Vec::new();
        channel::encode_close(&mut frame, id, code, reason);
        self.outbox.push(&frame);
        if let Some(entry) = self.streams.entry(id) {
            entry.state = StreamState::Discarding;
        }
        self.streams.start_clock(id, clock::now());
        self.limit_retirement();
    }

    /// Closes a stream that both sides have ended.
    fn end_stream(&mut self, id: u32) -> Option<StreamState> {
        let state = self.streams.close(id)?;
        self.ended_streams += 1;
        self.show_in_progress();
        self.limit_retirement();
        Some(state)
    }

    /// Whether a client waits for this worker.
    fn has_waiting_clients(&self) -> bool {
        self.streams.has_waiting_clients()
            || !self.core.hijacked_connections.is_empty() && !self.core.are_streams_cut
    }

    /// Bounds how long dropped streams alone may keep a retired worker.
    fn limit_retirement(&mut self) {
        if self.core.is_retiring && self.force_end_at.is_none() && !self.has_waiting_clients() {
            self.force_end_at = Some(clock::now() + self.read_timeout);
        }
    }

    /// Cuts the streams of a retired worker whose time is over: those that have begun to answer, or
    /// whose request's body still arrives.
    fn cut_streams(&mut self) {
        self.core.hijacked_connections.cut_all();
        for id in self.streams.ids() {
            let entry = self.streams.entry(id);
            let is_stream = |entry: &mut StreamEntry| {
                !matches!(entry.state, StreamState::AwaitingResponse(_))
                    || entry.input != RequestBodyState::Complete
            };
            if entry.is_some_and(is_stream) {
                let cause = "cut: stream_timeout after its worker was replaced";
                self.fail_stream(id, || Fault::new(FaultKind::WorkerDied, cause));
            }
        }
        self.limit_retirement();
    }

    /// Waits for the next deadline; ready without an end when one was handled.
    fn poll_deadlines(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), DriverEnd>> {
        let times = [
            self.streams.first_expiry().map(|(_, at)| at),
            self.core.worker_lost_at,
            self.check_reading_at,
            self.window_update_at,
            self.force_end_at.filter(|_| self.core.is_retiring),
        ];
        let Some(at) = times.into_iter().flatten().min() else {
            return Poll::Pending;
        };
        self.deadline.set(at);
        std::task::ready!(self.deadline.poll(cx));
        let now = clock::now();
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if is_due(self.core.worker_lost_at) {
            return Poll::Ready(Err(DriverEnd::WorkerDied));
        }
        if is_due(self.force_end_at) && self.core.is_retiring && !self.has_waiting_clients() {
            return Poll::Ready(Err(DriverEnd::Retired));
        }
        if is_due(self.force_end_at) {
            self.force_end_at = None;
        }
        if is_due(self.check_reading_at) {
            self.check_reading_at = None;
            // A worker that reads is slow with some requests only.
            if self.stream.unsent_bytes() > 0 || !self.outbox.is_empty() {
                let (app, pid, time) = (&self.core.app.name, self.core.pid, self.read_timeout);
                log::error!(
                    "{app}[{pid}]: has read nothing for {time:?} after a request had timed out"
                );
                return Poll::Ready(Err(DriverEnd::TimedOut));
            }
        }
        if is_due(self.window_update_at) {
            self.window_update_at = None;
            for id in std::mem::take(&mut self.window_owed) {
                self.return_window(id, true);
            }
        }
        while let Some((id, at)) = self.streams.first_expiry()
            && at <= now
        {
            self.time_out_stream(id, now);
        }
        Poll::Ready(Ok(()))
    }

    /// Counts a dropped stream that its worker does not end within `response_timeout`. When half of
    /// the worker's capacity is lost to such streams it is replaced.
    fn record_stuck(&mut self, id: u32) {
        self.streams.mark_stuck(id);
        let stuck = self.streams.stuck_count();
        if self.core.is_retiring || self.has_requested_replacement || stuck * 2 < self.capacity() {
            return;
        }
        self.has_requested_replacement = true;
        let (app, pid, time) = (
            &self.core.app.name,
            self.core.pid,
            self.core.app.response_timeout,
        );
        log::error!(
            "{app}[{pid}]: {stuck} requests go on {time:?} after they were given up: it is replaced"
        );
        self.core.mailbox.stats.mark_stuck();
        self.core.app.dispatch.limit_reached.notify_one();
    }

    /// How many requests the worker may have at once.
    fn capacity(&self) -> usize {
        self.core
            .app
            .dispatch
            .slot_request_capacity(self.core.slot)
            .max(1)
    }

    /// Fails a request whose time is over. Its worker continues, unless it turns out not to read.
    fn time_out_stream(&mut self, id: u32, now: Instant) {
        self.streams.stop_clock(id);
        let Some(entry) = self.streams.entry(id) else {
            return;
        };
        let limit = entry.timeout();
        if entry.is_abandoned() {
            return self.record_stuck(id);
        }
        if let StreamState::WebSocket(socket) = &entry.state {
            // Its client has left, and the application does not read its last messages.
            let (code, reason) = socket.pipe.client_close_reason();
            return self.close_socket(id, code, &reason);
        }
        let timing = (self.core).request_timing(entry.unanswered_job(), entry.app_time(now));
        let cause = match entry.state {
            StreamState::Hijacked(_) => format!(
                "the call went on for response_timeout ({limit:?}) behind its connection's end"
            ),
            StreamState::AwaitingResponse(_) => {
                format!("no answer within response_timeout ({limit:?})")
            }
            _ => format!("the response did not go on within response_timeout ({limit:?})"),
        };
        self.core.app.metrics.timed_out_requests.increment();
        self.fail_stream(id, || {
            Fault::new(FaultKind::AppTimeout, cause).with_timing(timing)
        });
        if self.check_reading_at.is_none() {
            self.check_reading_at = Some(now + self.read_timeout);
        }
        if self.next_stacks_at.is_none_or(|at| at <= now) {
            self.next_stacks_at = Some(now + STACKS_INTERVAL);
            self.core.mailbox.stats.request_stacks();
            self.core.app.dispatch.limit_reached.notify_one();
        }
    }
}

/// The least time between two dumps of stacks.
const STACKS_INTERVAL: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests;
