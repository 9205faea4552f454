//! An agent: a process that opens a share of the streams and holds them.
//!
//! `bench hold-agent` runs [`serve_coordinator`] on its standard streams; `coordinator` is at their
//! other ends, through `child_link`. One thread, one epoll set, one buffer: a stream is a
//! descriptor and a row in a table (`agent/stream.rs`), without its own task, timer or buffer; with
//! TLS it has a session besides (`agent/tls_sessions.rs`). The table is checked for silent streams in slices. The agent does nothing else, so it may block in
//! the kernel and needs no event loop of `runtime`.
//!
//! # Invariants
//!
//! - It ends when its input does, whatever else happens.
//! - The socket of a stream is read once more before the stream counts as silent, so that a late
//!   agent causes no false losses.
//! - A closed connection counts once, under one cause.

mod socket;
mod stream;
mod tally;
mod tls_sessions;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustix::time::{ClockId, clock_gettime};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use self::socket::SourcePorts;
use self::stream::{HeldStream, ReceiptTime};
use self::tally::{LossCause, StreamCounters};
use self::tls_sessions::{SessionCut, SessionError, TlsSessions};
use super::agent_protocol::{
    AgentMessage, AgentOrder, AgentRequest, AgentTick, PROTOCOL_VERSION, StreamTarget,
};
use super::numbered_message;
use crate::child_link::{MAX_LINE_BYTES, write_json_line};
use crate::deploy::resource_usage;
use crate::load;
use crate::text::units::to_count;

/// How long an agent may leave received bytes unread while nothing is timed.
const BATCH_DELAY: Duration = Duration::from_millis(20);

/// Runs an agent on the standard streams: the hidden verb `bench hold-agent`.
#[must_use]
pub fn run_agent() -> ExitCode {
    // Ctrl-C reaches the whole group of a terminal; the coordinator decides when an agent ends.
    let ignored = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        if signal_hook::flag::register(signal, std::sync::Arc::clone(&ignored)).is_err() {
            return ExitCode::FAILURE;
        }
    }
    load::raise_descriptor_limit();
    // Without the buffer of the standard input, which epoll does not see.
    let input = io::stdin().as_fd().try_clone_to_owned().map(File::from);
    match input.and_then(|input| serve_coordinator(input, io::stdout())) {
        Ok(()) => ExitCode::SUCCESS,
        // The coordinator may be gone: the end of the streams reports it too.
        Err(_) => ExitCode::FAILURE,
    }
}

/// Reads an order from `input`, executes it, and ends when it is done or the input ends.
///
/// # Errors
/// One of the streams failed, so the coordinator has ended.
pub(super) fn serve_coordinator(input: impl Read + AsFd, mut output: impl Write) -> io::Result<()> {
    let mut input = BufReader::new(input);
    let Some(order) = read_line(&mut input)? else {
        return Ok(());
    };
    let agent = serde_json::from_slice(&order)
        .map_err(|error| format!("invalid order: {error}"))
        .and_then(AgentProcess::new);
    let mut agent = match agent {
        Ok(agent) => agent,
        Err(why) => return write_json_line(&mut output, &AgentMessage::Failed(why)),
    };
    write_json_line(
        &mut output,
        &AgentMessage::Ready {
            protocol: PROTOCOL_VERSION,
        },
    )?;
    agent.run(&mut input, &mut output)
}

/// The next line; `None` if the input ends before its end, or it is too long.
fn read_line(input: &mut BufReader<impl Read>) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let mut bounded = input.take(MAX_LINE_BYTES as u64);
    bounded.read_until(b'\n', &mut line)?;
    Ok(line.ends_with(b"\n").then_some(line))
}

struct AgentProcess {
    order: AgentOrder,
    streams: Vec<HeldStream>,
    tls: TlsSessions,
    sources: SourcePorts,
    counters: StreamCounters,
    /// Streams by their row in the table, edge-triggered for all events at once: one system call
    /// when a stream is begun, none afterwards. A closed socket leaves the set by itself.
    epoll: OwnedFd,
    events: Vec<Event>,
    /// The read buffer of all streams.
    buffer: Vec<u8>,
    started: Instant,
    /// When the opening began, and the number of streams begun.
    opening_since: Option<Instant>,
    begun: usize,
    is_opening_over: bool,
    /// Connections that are not open streams yet.
    connecting_count: usize,
    is_publishing: bool,
    /// Where the next check for silent streams begins, and when.
    next_checked: usize,
    next_check: Instant,
    /// The next stream to close and open again, and when.
    next_renewed: usize,
    next_renewal: Option<Instant>,
}

impl AgentProcess {
    fn new(order: AgentOrder) -> Result<Self, String> {
        if order.protocol != PROTOCOL_VERSION {
            let found = order.protocol;
            return Err(format!(
                "the order has protocol version {found}, and this agent has {PROTOCOL_VERSION}"
            ));
        }
        let is_number = |value: f64| value.is_finite() && value >= 0.0;
        if order.targets.is_empty() || !is_number(order.rate) || !is_number(order.churn) {
            return Err("an order without a stream target or a rate".to_owned());
        }
        let wrong = |error: &dyn std::fmt::Display| error.to_string();
        let mut streams = Vec::new();
        let count = order.streams as usize;
        let reserved = streams.try_reserve_exact(count);
        reserved.map_err(|error| wrong(&error))?;
        streams.resize_with(count, HeldStream::default);
        let now = Instant::now();
        Ok(Self {
            sources: SourcePorts::new(
                order.sources.clone(),
                order.targets.iter().map(|goal| goal.address),
            ),
            counters: StreamCounters::new(order.run).map_err(|error| wrong(&error))?,
            epoll: epoll::create(CreateFlags::CLOEXEC).map_err(|error| wrong(&error))?,
            events: Vec::with_capacity(MAX_EVENTS),
            streams,
            tls: TlsSessions::new(&order)?,
            buffer: vec![0; RECEIVE_BUFFER_BYTES],
            started: now,
            opening_since: None,
            begun: 0,
            is_opening_over: false,
            connecting_count: 0,
            is_publishing: false,
            next_checked: 0,
            next_check: now,
            next_renewed: 0,
            next_renewal: None,
            order,
        })
    }

    fn run(
        &mut self,
        input: &mut BufReader<impl Read + AsFd>,
        output: &mut impl Write,
    ) -> io::Result<()> {
        let token = EventData::new_u64(INPUT_TOKEN);
        epoll::add(&self.epoll, input.get_ref(), token, EventFlags::IN)?;
        // Buffered lines are not reported by the epoll set.
        let mut has_input = !input.buffer().is_empty();
        let tick = Duration::from_millis(self.order.tick_ms.max(1));
        let mut next_tick = Instant::now() + tick;
        loop {
            while has_input {
                let Some(line) = read_line(input)? else {
                    return Ok(());
                };
                if let Some(last) = self.handle_request(&line)? {
                    self.handle_events(Duration::ZERO)?;
                    self.count_missed(last);
                    return write_json_line(output, &AgentMessage::Done(Box::new(self.tick())));
                }
                has_input = !input.buffer().is_empty();
            }
            let now = Instant::now();
            self.open_due_streams(now);
            self.renew_due_streams(now);
            self.check_due_streams(now);
            if now >= next_tick {
                write_json_line(output, &AgentMessage::Tick(Box::new(self.tick())))?;
                next_tick = now + tick;
            }
            let next = [Some(next_tick), Some(self.next_check), self.next_opening()];
            let next = next.into_iter().chain([self.next_renewal]).flatten().min();
            let wait = next.map_or(tick, |next| next.saturating_duration_since(now));
            let wait = self.batch_receipts(input.get_ref(), wait)?;
            has_input = self.handle_events(wait)?;
        }
    }

    /// Lets received bytes accumulate while no latency is measured, so that not every stream wakes
    /// the agent; returns the rest of the wait.
    fn batch_receipts(&self, input: &impl AsFd, wait: Duration) -> io::Result<Duration> {
        if self.connecting_count > 0 || self.is_publishing {
            return Ok(wait);
        }
        let rest = Timespec::try_from(wait.min(BATCH_DELAY)).map_err(io::Error::other)?;
        let mut input = [PollFd::new(input, PollFlags::IN)];
        match poll(&mut input, Some(&rest)) {
            Ok(_) | Err(Errno::INTR) => Ok(Duration::ZERO),
            Err(error) => Err(error.into()),
        }
    }

    /// Handles a request; returns the number of the last message when it is to end.
    fn handle_request(&mut self, line: &[u8]) -> io::Result<Option<u32>> {
        let ask: AgentRequest = serde_json::from_slice(line).map_err(io::Error::other)?;
        match ask {
            AgentRequest::Begin => {
                self.opening_since = self.opening_since.or_else(|| Some(Instant::now()));
            }
            AgentRequest::EndOpening => self.is_opening_over = true,
            AgentRequest::Publishing => {
                self.is_publishing = true;
                let open = self.streams.iter_mut().filter(|stream| stream.is_open());
                open.for_each(HeldStream::expect_all_messages);
            }
            AgentRequest::Finish { last } => return Ok(Some(last)),
        }
        Ok(None)
    }

    /// Begins the connections that are due, up to the limit of connections in progress.
    fn open_due_streams(&mut self, now: Instant) {
        let Some(opening) = self.opening_since.filter(|_| self.is_opening()) else {
            return;
        };
        let passed = now.saturating_duration_since(opening).as_secs_f64();
        // The first is due at once.
        let due = to_count(passed * self.order.rate).saturating_add(1);
        let room = (self.order.max_connecting as usize).saturating_sub(self.connecting_count);
        let due = usize::try_from(due).unwrap_or(usize::MAX);
        let due = due.min(self.streams.len()).saturating_sub(self.begun);
        for _ in 0..due.min(room).min(MAX_OPEN_BATCH) {
            self.begin_stream(self.begun);
            self.begun += 1;
        }
    }

    fn is_opening(&self) -> bool {
        !self.is_opening_over && self.begun < self.streams.len()
    }

    fn next_opening(&self) -> Option<Instant> {
        let opening = self.opening_since.filter(|_| self.is_opening())?;
        // Otherwise an event makes the room.
        let has_room = self.connecting_count < self.order.max_connecting as usize;
        let seconds = self.begun as f64 / self.order.rate;
        let after = Duration::try_from_secs_f64(seconds).ok()?;
        has_room.then_some(opening + after)
    }

    /// Once all streams were opened, closes and reopens as many as are due, one after the other.
    fn renew_due_streams(&mut self, now: Instant) {
        if self.order.churn <= 0.0 || self.begun < self.streams.len() {
            return;
        }
        let Ok(pause) = Duration::try_from_secs_f64(1.0 / self.order.churn) else {
            return;
        };
        let mut next = self.next_renewal.unwrap_or(now);
        let mut left = MAX_OPEN_BATCH;
        while next <= now && left > 0 {
            (next, left) = (next + pause, left - 1);
            if self.connecting_count < self.order.max_connecting as usize {
                self.renew();
            }
        }
        // Renewals that are late are not caught up.
        self.next_renewal = Some(next.max(now));
    }

    fn renew(&mut self) {
        for _ in 0..self.streams.len() {
            let slot = self.next_renewed % self.streams.len();
            self.next_renewed = slot + 1;
            if self.streams[slot].is_open() {
                self.counters.counts.open -= 1;
                self.counters.counts.renewed += 1;
                self.tls.close(slot, self.streams[slot].socket.as_ref());
                self.streams[slot] = HeldStream::default();
                self.begin_stream(slot);
                return;
            }
        }
    }

    fn begin_stream(&mut self, slot: usize) {
        let address = self.target(slot).address;
        self.counters.counts.begun += 1;
        let begun = self.sources.begin_connection(address).and_then(|socket| {
            let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
            let watched = epoll::add(&self.epoll, &socket, EventData::new_u64(slot as u64), flags);
            watched.map_err(|error| socket::describe_loss(error, address, None))?;
            Ok(socket)
        });
        match begun {
            Ok(socket) => {
                self.streams[slot] = HeldStream::new_connecting(socket, self.now_tenths());
                self.connecting_count += 1;
            }
            Err((loss, why)) => self.counters.record_loss(loss, || why),
        }
    }

    fn target(&self, slot: usize) -> &StreamTarget {
        &self.order.targets[slot % self.order.targets.len()]
    }

    /// Waits for events and handles them; returns whether the input is readable.
    fn handle_events(&mut self, wait: Duration) -> io::Result<bool> {
        let mut has_input = false;
        let mut wait = wait;
        // More than one batch may be available, but the schedule must not wait for ever.
        for _ in 0..MAX_EVENT_BATCHES {
            self.events.clear();
            let timeout = Timespec::try_from(wait).map_err(io::Error::other)?;
            let events = spare_capacity(&mut self.events);
            match epoll::wait(&self.epoll, events, Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for index in 0..self.events.len() {
                let event = self.events[index];
                match usize::try_from(event.data.u64()) {
                    Ok(slot) if slot < self.streams.len() => self.handle_event(slot, event.flags),
                    _ => has_input = true,
                }
            }
            if self.events.len() < MAX_EVENTS {
                break;
            }
            wait = Duration::ZERO;
        }
        Ok(has_input)
    }

    fn handle_event(&mut self, slot: usize, flags: EventFlags) {
        let stream = &mut self.streams[slot];
        let Some(socket) = &stream.socket else {
            return;
        };
        if stream.is_connecting() {
            let goal = &self.order.targets[slot % self.order.targets.len()];
            let has_tls = self.tls.is_needed(slot);
            let connected = socket::connect_result(socket).map_err(SessionError::Socket);
            let asked = connected.and_then(|()| match has_tls {
                true => self.tls.begin(slot, socket),
                false => socket::send_request(socket, goal.request.as_bytes())
                    .map_err(SessionError::Socket),
            });
            match asked {
                Ok(()) if has_tls => stream.mark_handshake_begun(),
                Ok(()) => stream.mark_request_sent(),
                // Still connecting.
                Err(SessionError::Socket(Errno::AGAIN | Errno::NOTCONN)) => return,
                Err(error) => return self.lose_session(slot, error),
            }
        }
        let is_over = flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        if flags.contains(EventFlags::IN) || is_over {
            self.read_stream(slot, is_over);
        }
    }

    /// Reads the available bytes: all of them if the connection has ended, so that the end is seen.
    fn read_stream(&mut self, slot: usize, is_over: bool) {
        loop {
            let stream = &mut self.streams[slot];
            let Some(socket) = &stream.socket else {
                return;
            };
            let received = match recv(socket, &mut self.buffer[..], RecvFlags::DONTWAIT) {
                Ok((count, _)) => count,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => continue,
                Err(Errno::CONNRESET | Errno::PIPE) => {
                    return self.lose_stream(slot, LossCause::Reset, None);
                }
                Err(error) => {
                    let address = self.target(slot).address;
                    let (loss, why) = socket::describe_loss(error, address, None);
                    return self.lose_stream(slot, loss, Some(why));
                }
            };
            if received == 0 {
                return self.lose_ended_stream(slot);
            }
            let request = &self.order.targets[slot % self.order.targets.len()].request;
            let records = &mut self.buffer[..received];
            let opened = match self.tls.receive(slot, socket, records, request) {
                Ok(opened) => opened,
                Err(error) => return self.lose_session(slot, error),
            };
            if let Some(done) = opened.as_ref().and_then(|opened| opened.handshake) {
                self.counters.record_handshake(done);
                stream.mark_request_sent();
            }
            let at = ReceiptTime {
                tenths: tenths_of_ms_since(self.started),
                us: numbered_message::monotonic_micros(),
            };
            let was_open = stream.is_open();
            let is_closed = opened.as_ref().is_some_and(|opened| opened.is_closed);
            let fed = match opened.map(|opened| opened.plaintext) {
                Some([]) => Ok(()),
                Some(plaintext) => stream.receive(plaintext, at, &mut self.counters),
                None => stream.receive(&self.buffer[..received], at, &mut self.counters),
            };
            // Even if the stream was lost right after its head.
            let has_opened = !was_open && stream.is_open();
            self.connecting_count -= usize::from(has_opened);
            if let Err(loss) = fed {
                return self.lose_stream(slot, loss, None);
            }
            if is_closed {
                return self.lose_ended_stream(slot);
            }
            if has_opened && self.must_not_read(slot) {
                return self.stop_reading(slot);
            }
            if received < self.buffer.len() && !is_over {
                return;
            }
        }
    }

    fn must_not_read(&self, slot: usize) -> bool {
        let unread = self.order.unread_one_in;
        unread.is_some_and(|one_in| slot.is_multiple_of(one_in.max(1) as usize))
    }

    /// Stops reading the stream; only its end is reported from now on.
    fn stop_reading(&mut self, slot: usize) {
        self.counters.counts.unread += 1;
        let stream = &mut self.streams[slot];
        stream.stop_reading();
        let flags = EventFlags::RDHUP | EventFlags::ET;
        let token = EventData::new_u64(slot as u64);
        if let Some(socket) = &stream.socket
            && let Err(error) = epoll::modify(&self.epoll, socket, token, flags)
        {
            let why = io::Error::from(error).to_string();
            self.lose_stream(slot, LossCause::NoDescriptor, Some(why));
        }
    }

    /// Counts a stream as lost whose server has ended the connection.
    fn lose_ended_stream(&mut self, slot: usize) {
        let (loss, why) = match self.tls.cut_reason(slot) {
            None => (self.streams[slot].end_cause(), None),
            Some(SessionCut::Truncated) => (LossCause::Closed, Some(TRUNCATED.to_owned())),
            Some(SessionCut::Handshake(why)) => (LossCause::Tls, Some(why)),
        };
        self.lose_stream(slot, loss, why);
    }

    /// Counts a stream as lost whose session or socket failed.
    fn lose_session(&mut self, slot: usize, error: SessionError) {
        let target = self.target(slot);
        let (loss, why) = match error {
            SessionError::Socket(error) => socket::describe_loss(error, target.address, None),
            SessionError::Tls(why) => (LossCause::Tls, format!("{}: {why}", target.address)),
        };
        self.lose_stream(slot, loss, Some(why));
    }

    /// Counts a stream as lost.
    fn lose_stream(&mut self, slot: usize, loss: LossCause, why: Option<String>) {
        let stream = &mut self.streams[slot];
        // Counted as open once its head was complete, however soon it was lost.
        let was_connecting = !stream.is_open();
        let is_unread = stream.has_stopped_reading();
        *stream = HeldStream::default();
        self.tls.remove(slot);
        match was_connecting {
            true => self.connecting_count -= 1,
            false => self.counters.counts.open -= 1,
        }
        match is_unread {
            // The server may close a client that does not read.
            true => self.counters.counts.unread_closed += 1,
            false => self
                .counters
                .record_loss(loss, || why.unwrap_or_else(|| loss.to_string())),
        }
    }

    /// Checks the next slice of the table.
    fn check_due_streams(&mut self, now: Instant) {
        if now < self.next_check {
            return;
        }
        self.next_check = now + SILENCE_CHECK_INTERVAL;
        let slice = self.streams.len().div_ceil(SILENCE_CHECK_SLICES);
        for _ in 0..slice {
            let slot = self.next_checked % self.streams.len();
            self.next_checked = slot + 1;
            self.check_silence(slot);
        }
    }

    fn check_silence(&mut self, slot: usize) {
        let now = self.now_tenths();
        if self.overdue_cause(slot, now).is_none() {
            return;
        }
        // It may have unread bytes.
        if !self.streams[slot].is_connecting() {
            self.read_stream(slot, true);
        }
        if let Some(loss) = self.overdue_cause(slot, now) {
            self.lose_stream(slot, loss, None);
        }
    }

    /// The cause if a stream has waited for too long.
    fn overdue_cause(&self, slot: usize, now: u32) -> Option<LossCause> {
        let stream = &self.streams[slot];
        stream.socket.as_ref()?;
        let waited_ms = u64::from(now.saturating_sub(stream.last_activity)) / 10;
        if !stream.is_open() {
            return (waited_ms > self.order.timeout_ms).then_some(LossCause::Timeout);
        }
        let silence_ms = self
            .order
            .silence_ms
            .filter(|_| !stream.has_stopped_reading())?;
        (waited_ms > silence_ms).then_some(LossCause::Silent)
    }

    /// Counts the streams that did not get the last messages.
    fn count_missed(&mut self, last: u32) {
        if self.is_publishing {
            let missing = self
                .streams
                .iter()
                .map(|stream| stream.missing_messages(last));
            self.counters.counts.missed += missing.sum::<u64>();
        }
    }

    fn tick(&mut self) -> AgentTick {
        let unbegun = match self.is_opening_over {
            true => 0,
            false => self.streams.len() - self.begun,
        };
        let spent = clock_gettime(ClockId::ProcessCPUTime);
        AgentTick {
            pending: (unbegun + self.connecting_count) as u64,
            expects_messages: self.is_publishing,
            memory: resource_usage::process_memory_bytes(std::process::id()).unwrap_or(0),
            cpu_seconds: spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9,
            ..self.counters.drain_into_tick()
        }
    }

    fn now_tenths(&self) -> u32 {
        tenths_of_ms_since(self.started)
    }
}

/// Tenths of a millisecond since a moment; the range is five days.
fn tenths_of_ms_since(since: Instant) -> u32 {
    u32::try_from(since.elapsed().as_micros() / 100).unwrap_or(u32::MAX)
}

const TRUNCATED: &str = "the connection was closed without a close_notify";

/// The read size: more than an event, and a burst of them for one stream.
const RECEIVE_BUFFER_BYTES: usize = 64 << 10;

/// Maximum connections begun at once, so that open ones are served in between.
const MAX_OPEN_BATCH: usize = 256;

/// Maximum events of one wait.
const MAX_EVENTS: usize = 1024;

/// The agent's input in the epoll set; not a row of the table.
const INPUT_TOKEN: u64 = u64::MAX;

/// Maximum full batches of events in a row.
const MAX_EVENT_BATCHES: usize = 64;

/// The whole table is checked once a second.
const SILENCE_CHECK_INTERVAL: Duration = Duration::from_millis(200);
const SILENCE_CHECK_SLICES: usize = 5;

#[cfg(test)]
mod tests;
