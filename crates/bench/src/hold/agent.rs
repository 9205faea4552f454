//! An agent: one process that opens a share of the streams and holds them.
//!
//! `bench hold-agent` runs [`serve`] on its standard streams; the coordinator (`coordinator`, through
//! `link`) is at their other ends. One thread, one epoll set, one buffer: a stream is a descriptor and a
//! row in a table (`agent/stream.rs`), without a task, a timer or a buffer of its own. The table is looked
//! through in slices for what is silent too long. It has nothing else to do, so it may wait in the kernel
//! and needs no loop of `runtime`.
//!
//! What must stay true: it ends when its input does, whatever else happens; before a stream counts as
//! silent its socket is asked once more, so that an agent that is late accuses nobody; a connection that
//! was closed counts under one cause and once.

mod set;
mod socket;
mod stream;
mod tally;

use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustix::time::{ClockId, clock_gettime};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use self::set::{EVENTS, Found, Set};
use self::socket::Sources;
use self::stream::{Moment, Stream};
use self::tally::{Loss, Tally};
use super::lines::{Lines, say};
use super::message;
use super::order::{Ask, Order, PROTOCOL, Tick, Word};
use crate::deploy::account;
use crate::load;

/// How long an agent may leave alone what streams receive while nothing is timed.
const REST: Duration = Duration::from_millis(20);

/// Runs an agent on the standard streams: the hidden verb `bench hold-agent`.
#[must_use]
pub fn agent() -> ExitCode {
    // Ctrl-C reaches the whole group of a terminal; when an agent ends is the coordinator's to say.
    let ignored = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        if signal_hook::flag::register(signal, std::sync::Arc::clone(&ignored)).is_err() {
            return ExitCode::FAILURE;
        }
    }
    load::allow_all_descriptors();
    match serve(&io::stdin(), io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        // Nobody may be there to hear it: the end of the streams says it too.
        Err(_) => ExitCode::FAILURE,
    }
}

/// Takes an order from `input`, does it, and ends when it is done or the input ends.
///
/// # Errors
/// When one of the streams fails, which is the end of the coordinator.
pub(super) fn serve(input: &impl AsFd, output: impl Write) -> io::Result<()> {
    let mut output = BufWriter::new(output);
    let mut lines = Lines::default();
    let Some(order) = lines.first(input)? else {
        return Ok(());
    };
    let agent = serde_json::from_slice(&order)
        .map_err(|error| format!("the order is none of ours: {error}"))
        .and_then(Agent::new);
    let mut agent = match agent {
        Ok(agent) => agent,
        Err(why) => return say(&mut output, &Word::Failed(why)),
    };
    say(&mut output, &Word::Ready { protocol: PROTOCOL })?;
    agent.run(input, &mut lines, &mut output)
}

/// An agent at work.
struct Agent {
    order: Order,
    streams: Vec<Stream>,
    sources: Sources,
    tally: Tally,
    set: Set,
    /// Where all streams are read into.
    buffer: Vec<u8>,
    started: Instant,
    /// When the opening began, and how many of the streams were begun.
    opening: Option<Instant>,
    begun: usize,
    is_opening_over: bool,
    /// Connections that are no open streams yet.
    connecting: usize,
    is_publishing: bool,
    /// Where the next look for silent streams begins, and when it is.
    looked: usize,
    next_look: Instant,
    /// The next stream that is closed to be opened again, and when.
    renewed: usize,
    next_renewal: Option<Instant>,
}

impl Agent {
    fn new(order: Order) -> Result<Self, String> {
        if order.protocol != PROTOCOL {
            let found = order.protocol;
            return Err(format!(
                "an order of version {found}, and this reads {PROTOCOL}"
            ));
        }
        let is_number = |value: f64| value.is_finite() && value >= 0.0;
        if order.goals.is_empty() || !is_number(order.rate) || !is_number(order.churn) {
            return Err("an order without a goal or a rate".to_owned());
        }
        let wrong = |error: &dyn std::fmt::Display| error.to_string();
        let mut streams = Vec::new();
        let count = order.streams as usize;
        streams
            .try_reserve_exact(count)
            .map_err(|error| wrong(&error))?;
        streams.resize_with(count, Stream::default);
        let now = Instant::now();
        Ok(Self {
            sources: Sources::new(
                order.sources.clone(),
                order.goals.iter().map(|goal| goal.address),
            ),
            tally: Tally::new(order.run).map_err(|error| wrong(&error))?,
            set: Set::new().map_err(|error| wrong(&error))?,
            streams,
            buffer: vec![0; BUFFER_BYTES],
            started: now,
            opening: None,
            begun: 0,
            is_opening_over: false,
            connecting: 0,
            is_publishing: false,
            looked: 0,
            next_look: now,
            renewed: 0,
            next_renewal: None,
            order,
        })
    }

    fn run(
        &mut self,
        input: &impl AsFd,
        lines: &mut Lines,
        output: &mut impl Write,
    ) -> io::Result<()> {
        self.set.watch_input(input)?;
        let tick = Duration::from_millis(self.order.tick_ms.max(1));
        let mut next_tick = Instant::now() + tick;
        loop {
            while let Some(line) = lines.next() {
                if let Some(last) = self.obey(&line)? {
                    self.take_events(Duration::ZERO)?;
                    self.miss_last(last);
                    return say(output, &Word::Done(Box::new(self.tick())));
                }
            }
            let now = Instant::now();
            self.open_due(now);
            self.renew_due(now);
            self.look_due(now);
            if now >= next_tick {
                say(output, &Word::Tick(Box::new(self.tick())))?;
                next_tick = now + tick;
            }
            let next = [Some(next_tick), Some(self.next_look), self.next_opening()];
            let next = next.into_iter().chain([self.next_renewal]).flatten().min();
            let wait = next.map_or(tick, |next| next.saturating_duration_since(now));
            let wait = self.rest(input, wait)?;
            if self.take_events(wait)? && !lines.read(input)? {
                return Ok(());
            }
        }
    }

    /// Lets what streams receive come together while nobody asks how long it took, so that it is not woken
    /// for each alone; gives what is left to wait.
    fn rest(&self, input: &impl AsFd, wait: Duration) -> io::Result<Duration> {
        if self.connecting > 0 || self.is_publishing {
            return Ok(wait);
        }
        let rest = Timespec::try_from(wait.min(REST)).map_err(io::Error::other)?;
        let mut input = [PollFd::new(input, PollFlags::IN)];
        match poll(&mut input, Some(&rest)) {
            Ok(_) | Err(Errno::INTR) => Ok(Duration::ZERO),
            Err(error) => Err(error.into()),
        }
    }

    /// Does what is asked; gives the number of the last message when it is to end.
    fn obey(&mut self, line: &[u8]) -> io::Result<Option<u32>> {
        let ask: Ask = serde_json::from_slice(line).map_err(io::Error::other)?;
        match ask {
            Ask::Begin => self.opening = self.opening.or_else(|| Some(Instant::now())),
            Ask::EndOpening => self.is_opening_over = true,
            Ask::Publishing => {
                self.is_publishing = true;
                let open = self.streams.iter_mut().filter(|stream| stream.is_open());
                open.for_each(Stream::expect_first);
            }
            Ask::Finish { last } => return Ok(Some(last)),
        }
        Ok(None)
    }

    /// Begins the connections that are due, as far as not too many are under way.
    fn open_due(&mut self, now: Instant) {
        let Some(opening) = self.opening.filter(|_| self.is_opening()) else {
            return;
        };
        let passed = now.saturating_duration_since(opening).as_secs_f64();
        // The first is due at once.
        let due = whole(passed * self.order.rate).saturating_add(1);
        let room = (self.order.connecting_max as usize).saturating_sub(self.connecting);
        let due = due.min(self.streams.len()).saturating_sub(self.begun);
        for _ in 0..due.min(room).min(BATCH) {
            self.begin(self.begun);
            self.begun += 1;
        }
    }

    fn is_opening(&self) -> bool {
        !self.is_opening_over && self.begun < self.streams.len()
    }

    fn next_opening(&self) -> Option<Instant> {
        let opening = self.opening.filter(|_| self.is_opening())?;
        // Otherwise an event makes the room.
        let has_room = self.connecting < self.order.connecting_max as usize;
        let seconds = self.begun as f64 / self.order.rate;
        let after = Duration::try_from_secs_f64(seconds).ok()?;
        has_room.then_some(opening + after)
    }

    /// Closes and opens again as many streams as are due, one after the other, once all were opened.
    fn renew_due(&mut self, now: Instant) {
        if self.order.churn <= 0.0 || self.begun < self.streams.len() {
            return;
        }
        let Ok(pause) = Duration::try_from_secs_f64(1.0 / self.order.churn) else {
            return;
        };
        let mut next = self.next_renewal.unwrap_or(now);
        let mut left = BATCH;
        while next <= now && left > 0 {
            (next, left) = (next + pause, left - 1);
            if self.connecting < self.order.connecting_max as usize {
                self.renew();
            }
        }
        // What could not be done in time is not made up for.
        self.next_renewal = Some(next.max(now));
    }

    fn renew(&mut self) {
        for _ in 0..self.streams.len() {
            let slot = self.renewed % self.streams.len();
            self.renewed = slot + 1;
            if self.streams[slot].is_open() {
                self.tally.counts.open -= 1;
                self.tally.counts.renewed += 1;
                self.streams[slot] = Stream::default();
                self.begin(slot);
                return;
            }
        }
    }

    fn begin(&mut self, slot: usize) {
        let goals = self.order.goals.len();
        let goal = slot % goals;
        self.tally.counts.begun += 1;
        match self.sources.begin(self.order.goals[goal].address) {
            Ok(socket) => {
                if let Err(error) = self.set.watch(&socket, slot) {
                    let (loss, why) = socket::lost(error, self.order.goals[goal].address, None);
                    self.tally.lose(loss, || why);
                    return;
                }
                self.streams[slot] = Stream::begun(socket, self.tenths());
                self.connecting += 1;
            }
            Err((loss, why)) => self.tally.lose(loss, || why),
        }
    }

    /// Waits for events and takes them; tells whether the input has something.
    fn take_events(&mut self, wait: Duration) -> io::Result<bool> {
        let mut has_input = false;
        let mut wait = wait;
        // More than one batch may be there, but the schedule must not wait for ever.
        for _ in 0..BATCHES_MAX {
            let count = self.set.wait(wait)?;
            for index in 0..count {
                match self.set.event(index) {
                    Found::Input => has_input = true,
                    Found::Stream(slot, flags) => self.take_event(slot, flags),
                }
            }
            if count < EVENTS {
                break;
            }
            wait = Duration::ZERO;
        }
        Ok(has_input)
    }

    fn take_event(&mut self, slot: usize, flags: EventFlags) {
        let Some(stream) = self.streams.get_mut(slot) else {
            return;
        };
        let Some(socket) = &stream.socket else {
            return;
        };
        if stream.is_connecting() {
            let goal = &self.order.goals[slot % self.order.goals.len()];
            let asked = socket::outcome(socket)
                .and_then(|()| socket::request(socket, goal.request.as_bytes()));
            match asked {
                Ok(()) => stream.asked(),
                // Not there yet.
                Err(Errno::AGAIN | Errno::NOTCONN) => return,
                Err(error) => {
                    let (loss, why) = socket::lost(error, goal.address, None);
                    return self.lose(slot, loss, Some(why));
                }
            }
        }
        let is_over = flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        if flags.contains(EventFlags::IN) || is_over {
            self.read(slot, is_over);
        }
    }

    /// Reads what is there: until nothing is left where the connection is over, so that its end is seen.
    fn read(&mut self, slot: usize, is_over: bool) {
        loop {
            let stream = &mut self.streams[slot];
            let Some(socket) = &stream.socket else {
                return;
            };
            let received = match recv(socket, &mut self.buffer[..], RecvFlags::DONTWAIT) {
                Ok((count, _)) => count,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => continue,
                Err(Errno::CONNRESET | Errno::PIPE) => return self.lose(slot, Loss::Reset, None),
                Err(error) => {
                    let goal = &self.order.goals[slot % self.order.goals.len()];
                    let (loss, why) = socket::lost(error, goal.address, None);
                    return self.lose(slot, loss, Some(why));
                }
            };
            if received == 0 {
                let loss = stream.end();
                return self.lose(slot, loss, None);
            }
            let at = Moment {
                tenths: tenths(self.started),
                us: message::now(),
            };
            let was_open = stream.is_open();
            let fed = stream.feed(&self.buffer[..received], at, &mut self.tally);
            // Also of one that was lost by what came right behind its head.
            let has_opened = !was_open && stream.is_open();
            self.connecting -= usize::from(has_opened);
            if let Err(loss) = fed {
                return self.lose(slot, loss, None);
            }
            if has_opened && self.is_deaf(slot) {
                return self.deafen(slot);
            }
            if received < self.buffer.len() && !is_over {
                return;
            }
        }
    }

    fn is_deaf(&self, slot: usize) -> bool {
        let deaf = self.order.deaf;
        deaf.is_some_and(|one_in| slot.is_multiple_of(one_in.max(1) as usize))
    }

    /// From now on it reads nothing; only its end is heard of.
    fn deafen(&mut self, slot: usize) {
        self.tally.counts.deaf += 1;
        let stream = &mut self.streams[slot];
        stream.deafen();
        if let Some(socket) = &stream.socket
            && let Err(error) = self.set.watch_end(socket, slot)
        {
            let why = io::Error::from(error).to_string();
            self.lose(slot, Loss::NoDescriptor, Some(why));
        }
    }

    /// A stream is not held any more, or never was.
    fn lose(&mut self, slot: usize, loss: Loss, why: Option<String>) {
        let stream = &mut self.streams[slot];
        // Counted as open when the head was whole, however soon after that it was lost.
        let was_connecting = !stream.is_open();
        let is_deaf = stream.is_deaf();
        *stream = Stream::default();
        match was_connecting {
            true => self.connecting -= 1,
            false => self.tally.counts.open -= 1,
        }
        match is_deaf {
            // Who does not read is cut in good order.
            true => self.tally.counts.deaf_cut += 1,
            false => self
                .tally
                .lose(loss, || why.unwrap_or_else(|| loss.words())),
        }
    }

    /// Looks through the next slice of the table.
    fn look_due(&mut self, now: Instant) {
        if now < self.next_look {
            return;
        }
        self.next_look = now + LOOK_EVERY;
        let slice = self.streams.len().div_ceil(LOOK_SLICES);
        for _ in 0..slice {
            let slot = self.looked % self.streams.len();
            self.looked = slot + 1;
            self.look(slot);
        }
    }

    fn look(&mut self, slot: usize) {
        let now = self.tenths();
        if self.overdue(slot, now).is_none() {
            return;
        }
        // It may only be that nobody has read it yet.
        if !self.streams[slot].is_connecting() {
            self.read(slot, true);
        }
        if let Some(loss) = self.overdue(slot, now) {
            self.lose(slot, loss, None);
        }
    }

    /// What a stream has waited for too long, if it has.
    fn overdue(&self, slot: usize, now: u32) -> Option<Loss> {
        let stream = &self.streams[slot];
        stream.socket.as_ref()?;
        let waited_ms = u64::from(now.saturating_sub(stream.since)) / 10;
        if !stream.is_open() {
            return (waited_ms > self.order.timeout_ms).then_some(Loss::Timeout);
        }
        let silence_ms = self.order.silence_ms.filter(|_| !stream.is_deaf())?;
        (waited_ms > silence_ms).then_some(Loss::Silent)
    }

    /// Counts who has not got the last messages.
    fn miss_last(&mut self, last: u32) {
        if self.is_publishing {
            let missing = self.streams.iter().map(|stream| stream.missing(last));
            self.tally.counts.missed += missing.sum::<u64>();
        }
    }

    fn tick(&mut self) -> Tick {
        let unbegun = match self.is_opening_over {
            true => 0,
            false => self.streams.len() - self.begun,
        };
        let spent = clock_gettime(ClockId::ProcessCPUTime);
        Tick {
            pending: (unbegun + self.connecting) as u64,
            expects: self.is_publishing,
            memory: account::memory_of(std::process::id()).unwrap_or(0),
            cpu_seconds: spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9,
            ..self.tally.take()
        }
    }

    fn tenths(&self) -> u32 {
        tenths(self.started)
    }
}

/// Tenths of a millisecond since a moment; five days of them.
fn tenths(since: Instant) -> u32 {
    u32::try_from(since.elapsed().as_micros() / 100).unwrap_or(u32::MAX)
}

/// The whole part of a count that is not negative.
fn whole(value: f64) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the cast goes to the nearest count that there is"
    )]
    let count = value as usize;
    count
}

/// What one read takes: more than an event, and a burst of them for one stream.
const BUFFER_BYTES: usize = 64 << 10;

/// Connections begun at once at the most, so that those that are there are served in between.
const BATCH: usize = 256;

/// Full batches of events that are taken in a row.
const BATCHES_MAX: usize = 64;

/// The table is looked through once a second.
const LOOK_EVERY: Duration = Duration::from_millis(200);
const LOOK_SLICES: usize = 5;

#[cfg(test)]
mod tests;
