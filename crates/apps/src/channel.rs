//! The driver of one reactor: one task that owns the channel socket of a worker, which has all of its
//! requests on it at once.
//!
//! Takes jobs from its mailbox, opens a stream for each, reads what the worker says of all of them and
//! gives it to whoever waits: `streams` knows the streams, `send` and `receive` are the two directions,
//! `pump` brings a body past a slow client, `input` a request's body to its worker, `pipe` and
//! `session` are WebSockets, `close` is the end.
//! What must stay true: a client that takes nothing stops its own stream and no other; a stream is in
//! progress until the worker has ended it, or its WebSocket is closed; a request is given back to the
//! queue only when its worker cannot have begun it; a worker that breaks the protocol or stalls as a
//! whole is given up, one that is slow with a request is not; what is kept for a stream has a bound.

pub(crate) mod bounds;
mod close;
pub(crate) mod handshake;
mod input;
mod notices;
mod pipe;
mod pump;
mod receive;
mod send;
mod session;
mod socket;
mod streams;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use penstock_config as config;
use penstock_exchange::{Fault, FaultKind};
use penstock_http::websocket::code;
use penstock_queue::{DispatchedJob, SlotId};
use penstock_runtime::{LazyDeadline, Stream, clock};
use penstock_wire::{ChannelDecoder, channel};

use self::notices::Notices;
use self::send::Outbox;
use self::streams::{Entry, Input, State, Streams};
use crate::app::{AppShared, SlotPlace};
use crate::dispatch::{Job, Mailbox};
use crate::slot::End;
use crate::slot::hijack::Hijacks;

pub(crate) use self::handshake::Handshake;

/// What a reactor's requests are told in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// The environment that its language's threads get, too.
    Environ,
    /// ASGI's connection scope.
    Scope,
}

impl Form {
    /// That of an application; `None` when its workers have a socket for each thread.
    pub(crate) fn of(config: &config::App) -> Option<Self> {
        match config.kind {
            config::AppKind::Asgi => Some(Self::Scope),
            config::AppKind::Wsgi | config::AppKind::Rack if config.has_reactor() => {
                Some(Self::Environ)
            }
            _ => None,
        }
    }
}

/// How long after its worker's end what it wrote may take to be read here.
const LAST_BYTES: Duration = Duration::from_millis(50);

/// How long a worker may leave what it is sent unread, after one of its requests has timed out, or take
/// to end what nobody wants any more when it is to go.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long windows are gathered that are too small to be worth a frame at once.
const WINDOW_TICK: Duration = Duration::from_millis(50);

/// Drives one reactor; see [`ChannelDriver::run`].
#[derive(Debug)]
pub(crate) struct ChannelDriver {
    app: Arc<AppShared>,
    slot: SlotId,
    /// What its responses hold while their clients take them.
    place: Arc<SlotPlace>,
    pid: u32,
    mailbox: Arc<Mailbox>,
    stream: Arc<Stream>,
    /// Where bodies that are files go; registered with the loop by `run`.
    files: Option<OwnedFd>,
    decoder: ChannelDecoder,
    /// Received and not decoded yet: part of a frame.
    partial: Vec<u8>,
    streams: Streams,
    outbox: Outbox,
    /// Connections that the application has taken over.
    hijacks: Hijacks,
    notices: Arc<Notices>,
    /// Streams that have ended since the queue was last told.
    ended: usize,
    /// Streams to which less window is owed than is worth a frame.
    owing: Vec<u32>,
    owing_at: Option<Instant>,
    /// Streams whose messages wait until the worker has read more.
    stalled: Vec<u32>,
    deadline: LazyDeadline,
    patience: Duration,
    retire: bool,
    /// Streams have had their time.
    is_cut: bool,
    /// Too many of its streams are stuck, and the executor knows.
    asked_for_successor: bool,
    /// When to give up what a worker that goes does not end.
    leave_at: Option<Instant>,
    /// When to give up a worker whose process has ended.
    lost_at: Option<Instant>,
    /// When to look whether the worker still reads: a request has timed out.
    suspect_at: Option<Instant>,
    /// When its requests' stacks may be asked for again: they are those of all, and cost all of them time.
    stacks_again_at: Option<Instant>,
    write_broken: bool,
    /// The worker closed the socket with bytes of ours unread in it.
    left_unread: bool,
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
        let notices = Arc::new(Notices::default());
        Self {
            place: SlotPlace::new(&app, slot),
            app,
            slot,
            pid,
            mailbox,
            stream: Arc::new(stream),
            files: Some(files),
            decoder: ChannelDecoder::new(),
            partial: Vec::new(),
            streams: Streams::new(Arc::clone(&notices)),
            outbox: Outbox::default(),
            hijacks: Hijacks::default(),
            notices,
            ended: 0,
            owing: Vec::new(),
            owing_at: None,
            stalled: Vec::new(),
            deadline: LazyDeadline::new(clock::now()),
            patience: PATIENCE,
            retire: false,
            is_cut: false,
            asked_for_successor: false,
            leave_at: None,
            lost_at: None,
            suspect_at: None,
            stacks_again_at: None,
            write_broken: false,
            left_unread: false,
        }
    }

    /// Serves until the worker is retired or lost; leaves nobody waiting.
    pub(crate) async fn run(mut self) -> End {
        let end = match self.files.take().map(Stream::new) {
            Some(Ok(files)) => {
                self.outbox.use_files(files);
                std::future::poll_fn(|cx| self.poll_end(cx)).await
            }
            Some(Err(error)) => End::Broken(format!("its files socket: {error}")),
            None => End::Died,
        };
        self.close(&end);
        end
    }

    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        loop {
            while let Some(delivery) = self.mailbox.poll_take(cx) {
                if delivery.retire {
                    self.retire = true;
                    self.hasten();
                }
                if delivery.lost && self.lost_at.is_none() {
                    self.lost_at = Some(clock::now() + LAST_BYTES);
                }
                self.open(delivery.jobs);
                if delivery.cut {
                    self.cut();
                }
                // What it still has may be wanted by nobody since long.
                self.hasten();
            }
            while let Some(index) = self.notices.poll_take(cx) {
                self.look_at(index);
            }
            self.take_turn();
            if let Err(end) = self.poll_send(cx) {
                return Poll::Ready(end);
            }
            match self.poll_receive(cx) {
                // More jobs may have come, and more bytes.
                Poll::Ready(Ok(())) => continue,
                Poll::Ready(Err(end)) => return Poll::Ready(end),
                Poll::Pending => {}
            }
            let has_hijacks = self.retire && self.hijacks.poll_count(cx) > 0;
            if !has_hijacks {
                self.hasten();
            }
            if self.streams.is_empty() {
                match (self.retire, self.lost_at) {
                    (true, None) if has_hijacks && !self.is_cut => {}
                    (true, _) => return Poll::Ready(End::Retired),
                    (false, Some(_)) => return Poll::Ready(End::Died),
                    (false, None) => {}
                }
            }
            match self.poll_clocks(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(end)) => return Poll::Ready(end),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Gives each job its stream.
    fn open(&mut self, jobs: impl IntoIterator<Item = DispatchedJob<Job>>) {
        let now = clock::now();
        for mut start in jobs {
            if start.job.is_abandoned() {
                let cause = "left before a worker had its request";
                start
                    .job
                    .answer(Err(Fault::new(FaultKind::ClientDisconnected, cause)));
                self.app.metrics.queue_abandoned.increment();
                self.ended += 1;
                continue;
            }
            let id = self.streams.open(start, now);
            self.outbox.open(id);
            // From now on whoever stops waiting is noticed.
            self.look_at(streams::index_of(id));
        }
        self.show_in_progress();
    }

    /// Tells the queue of the streams that have ended, and opens the next.
    fn take_turn(&mut self) {
        while self.ended > 0 {
            let mut jobs = std::collections::VecDeque::new();
            let ended = std::mem::take(&mut self.ended);
            self.app
                .dispatch
                .turn(clock::now(), self.slot, ended, 1, &mut jobs);
            self.open(jobs);
        }
    }

    fn show_in_progress(&self) {
        self.mailbox.show_in_progress(self.streams.len());
    }

    /// A stream's other side has something to say: a client has left, a spool has room, a WebSocket has
    /// messages.
    fn look_at(&mut self, index: u32) {
        let Some(waker) = self.streams.waker(index) else {
            return;
        };
        let mut cx = Context::from_waker(&waker);
        let Some(entry) = self.streams.at(index) else {
            return;
        };
        let id = entry.id;
        if entry.input != Input::Over && self.feed(id, &mut cx).is_break() {
            return;
        }
        let Some(entry) = self.streams.at(index) else {
            return;
        };
        match &mut entry.state {
            State::Asked(start) => {
                let reply = start.job.reply.as_mut();
                if reply.is_some_and(|reply| reply.poll_closed(&mut cx).is_ready()) {
                    self.abandon(id);
                }
            }
            State::Spool(writer) => {
                if writer.poll_reader_gone(&mut cx) {
                    self.abandon(id);
                }
            }
            State::Pump(_) => self.tend_pump(id),
            State::Socket(_) => self.tend_socket(id),
            State::Hijacked(_) => self.tend_hijacked(id),
            State::Leaving(_) | State::Discard => {}
        }
    }

    /// Nobody wants what is still to come on a stream.
    fn abandon(&mut self, id: u32) {
        self.give_up(id, || {
            Fault::new(FaultKind::ClientDisconnected, "left before the end")
        });
    }

    /// Ends a stream as seen from here: whoever waits for it learns why, and the worker that nobody
    /// does. The worker then ends it, too.
    fn give_up(&mut self, id: u32, why: impl FnOnce() -> Fault) {
        if self.forget(id) {
            // It was not sent: there is nothing that the worker could end.
            if let Some(State::Asked(mut start)) = self.end_stream(id) {
                let fault = why();
                if fault.kind == FaultKind::ClientDisconnected {
                    self.app.metrics.queue_abandoned.increment();
                }
                start.job.answer(Err(fault));
            }
            return;
        }
        let Some(entry) = self.streams.entry(id) else {
            return;
        };
        if entry.is_given_up() {
            return;
        }
        match std::mem::replace(&mut entry.state, State::Discard) {
            State::Asked(mut start) => {
                start.job.answer(Err(why()));
                if !entry.is_sent {
                    // Its frame, or its descriptor, was begun: the worker gets the whole of it first.
                    entry.state = State::Leaving(start);
                }
            }
            State::Spool(writer) => writer.finish(Err(why())),
            State::Pump(pump) => pump.end(Err(why())),
            State::Socket(socket) => {
                let why = "the application restarts";
                socket.pipe.close_by_worker(code::SERVICE_RESTART, why);
                return self.close_socket(id, code::SERVICE_RESTART, why);
            }
            // What its client gets is the connection's business.
            State::Hijacked(_) | State::Leaving(_) | State::Discard => {}
        }
        self.streams.end_input(id);
        // From now on it is the worker's time to end it.
        self.streams.clock_on(id, clock::now());
        self.outbox.push(&channel::encode_stream_cancel(id));
        self.hasten();
    }

    /// Tells the worker that a WebSocket is over; it answers with a CLOSE of its own.
    fn close_socket(&mut self, id: u32, code: u16, reason: &str) {
        let mut frame = Vec::new();
        channel::encode_close(&mut frame, id, code, reason);
        self.outbox.push(&frame);
        if let Some(entry) = self.streams.entry(id) {
            entry.state = State::Discard;
        }
        self.streams.clock_on(id, clock::now());
        self.hasten();
    }

    /// A stream is over for both sides.
    fn end_stream(&mut self, id: u32) -> Option<State> {
        let state = self.streams.close(id)?;
        self.ended += 1;
        self.show_in_progress();
        self.hasten();
        Some(state)
    }

    /// Whether somebody waits for anything of its worker's.
    fn is_wanted(&self) -> bool {
        self.streams.is_wanted() || !self.hijacks.is_empty() && !self.is_cut
    }

    /// When only what nobody wants keeps a worker from going, it has so long.
    fn hasten(&mut self) {
        if self.retire && self.leave_at.is_none() && !self.is_wanted() {
            self.leave_at = Some(clock::now() + self.patience);
        }
    }

    /// The time of the streams of a retired worker is over: what has begun to answer, or still
    /// waits for its request's body, is cut.
    fn cut(&mut self) {
        self.is_cut = true;
        self.hijacks.cut();
        for id in self.streams.ids() {
            let entry = self.streams.entry(id);
            let is_stream = |entry: &mut Entry| {
                !matches!(entry.state, State::Asked(_)) || entry.input != Input::Over
            };
            if entry.is_some_and(is_stream) {
                let cause = "cut: stream_timeout after its worker was replaced";
                self.give_up(id, || Fault::new(FaultKind::WorkerDied, cause));
            }
        }
        self.hasten();
    }

    /// Waits for the next thing that has its time; ready without an end when something was done.
    fn poll_clocks(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        let timeout = self.app.response_timeout;
        let oldest = self.streams.oldest().map(|(_, since)| since + timeout);
        let times = [
            oldest,
            self.lost_at,
            self.suspect_at,
            self.owing_at,
            self.leave_at.filter(|_| self.retire),
        ];
        let Some(at) = times.into_iter().flatten().min() else {
            return Poll::Pending;
        };
        self.deadline.set(at);
        std::task::ready!(self.deadline.poll(cx));
        let now = clock::now();
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if is_due(self.lost_at) {
            return Poll::Ready(Err(End::Died));
        }
        if is_due(self.leave_at) && self.retire && !self.is_wanted() {
            return Poll::Ready(Err(End::Retired));
        }
        if is_due(self.leave_at) {
            self.leave_at = None;
        }
        if is_due(self.suspect_at) {
            self.suspect_at = None;
            // A worker that reads what it is sent is slow with some requests, no more.
            if self.stream.unsent_bytes() > 0 || !self.outbox.is_empty() {
                let (app, pid, time) = (&self.app.name, self.pid, self.patience);
                log::error!(
                    "{app}[{pid}]: has read nothing for {time:?} after a request had timed out"
                );
                return Poll::Ready(Err(End::TimedOut));
            }
        }
        if is_due(self.owing_at) {
            self.owing_at = None;
            for id in std::mem::take(&mut self.owing) {
                self.return_window(id, true);
            }
        }
        while let Some((id, since)) = self.streams.oldest()
            && since + timeout <= now
        {
            self.time_out(id, now);
        }
        Poll::Ready(Ok(()))
    }

    /// A stream that nobody wants has been with the worker for as long as an answer may take. When half
    /// of the worker's places are lost to such streams it is to be replaced.
    fn look_at_stuck(&mut self, id: u32) {
        self.streams.mark_stuck(id);
        let stuck = self.streams.stuck();
        if self.retire || self.asked_for_successor || stuck * 2 < self.capacity() {
            return;
        }
        self.asked_for_successor = true;
        let (app, pid, time) = (&self.app.name, self.pid, self.app.response_timeout);
        log::error!(
            "{app}[{pid}]: {stuck} requests go on {time:?} after they were given up: it is replaced"
        );
        self.mailbox.ledger.mark_stuck();
        self.app.dispatch.attention.notify_one();
    }

    /// How many requests the worker may have at once.
    fn capacity(&self) -> usize {
        self.app.dispatch.capacity_of(self.slot).max(1)
    }

    /// A request has had its time. Its worker goes on, unless it turns out that it does not read.
    fn time_out(&mut self, id: u32, now: Instant) {
        self.streams.clock_off(id);
        let limit = self.app.response_timeout;
        let Some(entry) = self.streams.entry(id) else {
            return;
        };
        if entry.is_given_up() {
            return self.look_at_stuck(id);
        }
        if let State::Socket(socket) = &entry.state {
            // Its client has gone, and the application does not take what it had said before.
            let (code, reason) = socket.pipe.client_close();
            return self.close_socket(id, code, &reason);
        }
        let timing = entry.timing(&self.app.name, self.pid, now);
        let cause = match entry.state {
            State::Hijacked(_) => format!(
                "the call went on for response_timeout ({limit:?}) behind its connection's end"
            ),
            State::Asked(_) => format!("no answer within response_timeout ({limit:?})"),
            _ => format!("the response did not go on within response_timeout ({limit:?})"),
        };
        self.app.metrics.timed_out_requests.increment();
        self.give_up(id, || {
            Fault::new(FaultKind::AppTimeout, cause).with_timing(timing)
        });
        if self.suspect_at.is_none() {
            self.suspect_at = Some(now + self.patience);
        }
        if self.stacks_again_at.is_none_or(|at| at <= now) {
            self.stacks_again_at = Some(now + STACKS_EVERY);
            self.mailbox.ledger.want_stacks();
            self.app.dispatch.attention.notify_one();
        }
    }
}

/// The least time between two lists of stacks.
const STACKS_EVERY: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests;
