//! A shard: the owner of all streams held on one loop.
//!
//! One task. Everything that others want of it comes through its inbox; everything that sockets tell comes
//! through its pollset; time comes by one timer, which is not set while nothing is held. It works in turns:
//! of each kind of work a quantum, then whatever else is ready on the loop has its turn, so that ordinary
//! requests go on while a million subscribers are written to.
//!
//! The rules of the shard: its streams and lists belong to it alone, without a lock; it holds a channel's
//! lock only to subscribe, to leave and to read the history, never while it writes; no write waits; what
//! names a stream names its generation too, or is taken back when the stream goes.

mod backlog;
mod beats;
mod delivery;
mod ending;
mod inbox;
mod landing;
mod slab;
mod streams;
mod writing;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::future::poll_fn;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use penstock_runtime::pollset::Event;
use penstock_runtime::{LazyDeadline, Pollset, clock, loops};

pub(crate) use inbox::{Answers, Arrival, Command, Delivery, Inbox};

use crate::Settings;
use crate::hub::Shared;
use beats::Beats;
use delivery::Local;
use ending::Ending;
use slab::Slab;
use streams::Held;
use writing::Gap;

/// What one loop holds.
#[derive(Debug)]
pub(crate) struct Shard {
    number: u16,
    shared: Arc<Shared>,
    /// As they were at the beginning of this turn.
    settings: Arc<Settings>,
    pollset: Pollset,
    pace: Pace,
    /// The tick of this turn.
    now: u32,
    commands: VecDeque<Command>,
    /// Streams whose sockets may still be with their connections.
    landing: VecDeque<Box<Arrival>>,
    /// Those that were not let go of for long: tried again with the next tick.
    late: VecDeque<Box<Arrival>>,
    /// When that was last.
    late_at: u32,
    streams: Slab<Held>,
    /// How many streams there were.
    generation: u32,
    /// The channels that they subscribe to.
    locals: Slab<Local>,
    /// Channels with something to deliver, in their line.
    ready: VecDeque<u32>,
    answers: VecDeque<Answers>,
    beats: Beats,
    /// Notices that something is missing, as many streams have them.
    gaps: Vec<Gap>,
    /// Streams that wait for room, by when they are looked at.
    watched: BinaryHeap<Reverse<(u32, u64)>>,
    /// Streams that end by themselves, by when.
    lifetimes: BinaryHeap<Reverse<(u32, u64)>>,
    ending: Option<Ending>,
    /// Bytes that were given to sockets: large writes take more of a turn.
    sent_bytes: usize,
    /// What lists and rare parts take of memory.
    list_bytes: usize,
    /// What of all that is in `shard_bytes` is this shard's.
    told_bytes: usize,
    done: Done,
}

/// What was written and is not in the hub's numbers yet: they are added to at the end of a turn, and
/// before anybody sees a stream's end.
#[derive(Debug, Default)]
struct Done {
    delivered: u64,
    dropped: u64,
    beats: u64,
}

/// How long a tick is: the smallest time that a shard tells apart.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    start: Instant,
    tick: Duration,
}

/// All times are in ticks of a quarter of a second; tests let them pass faster.
const TICKS_A_SECOND: u32 = 4;

/// Commands of a turn: each is a few list operations.
const COMMANDS: usize = 1024;

/// Arrivals of a turn: each is a handful of system calls.
const LANDINGS: usize = 64;

/// Writes of one kind in a turn: some three hundred microseconds.
const WRITES: usize = 128;

/// Bytes that count like one more write.
const WRITE_BYTES: usize = 16 << 10;

/// Bytes that a client may send behind its request before it is taken for something else.
const INPUT_BYTES_MAX: usize = 64 << 10;

/// Notices that streams share; handlers have one or two. A stream's own beyond.
const GAPS_MAX: usize = 16;

/// None of them.
const GAP_NONE: u8 = u8::MAX;

impl Pace {
    /// Of real time.
    pub(crate) fn real() -> Self {
        Self::new(Duration::from_millis(1000 / u64::from(TICKS_A_SECOND)))
    }

    /// Of a time in which a tick is so long.
    pub(crate) fn new(tick: Duration) -> Self {
        Self {
            start: clock::now(),
            tick,
        }
    }

    fn tick_at(self, now: Instant) -> u32 {
        let since = now.saturating_duration_since(self.start);
        u32::try_from(since.as_micros() / self.tick.as_micros().max(1)).unwrap_or(u32::MAX)
    }

    fn instant_of(self, tick: u32) -> Instant {
        self.start + self.tick * tick
    }
}

/// A loop whose shard has panicked would hold its streams for ever and say nothing: the process ends, and
/// is started anew.
struct Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            log::error!("hub: a loop's streams are lost by a panic: the process ends");
            std::process::abort();
        }
    }
}

impl Shard {
    /// Runs on the current loop until that ends, with `set` as its set of descriptors.
    pub(crate) async fn run(shared: Arc<Shared>, number: u16, set: OwnedFd, pace: Pace) {
        let mut registered = Pollset::from_descriptor(set);
        let pollset = loop {
            match registered {
                Ok(pollset) => break pollset,
                Err(e) => log::error!("hub: loop {number} cannot watch its streams yet: {e}"),
            }
            clock::sleep(Duration::from_secs(1)).await;
            registered = Pollset::new();
        };
        let mut shard = Self::new(shared, number, pollset, pace);
        let _guard = Guard;
        let mut timer = LazyDeadline::new(clock::now());
        let mut events = Vec::new();
        loop {
            poll_fn(|cx| shard.turn(cx, &mut events, &mut timer)).await;
            // Whatever else is ready on the loop.
            loops::yield_now().await;
        }
    }

    fn new(shared: Arc<Shared>, number: u16, pollset: Pollset, pace: Pace) -> Self {
        Self {
            number,
            settings: shared.settings.load_full(),
            shared,
            pollset,
            pace,
            now: 0,
            commands: VecDeque::new(),
            landing: VecDeque::new(),
            late: VecDeque::new(),
            late_at: 0,
            streams: Slab::new(),
            generation: 0,
            locals: Slab::new(),
            ready: VecDeque::new(),
            answers: VecDeque::new(),
            beats: Beats::new(RandomState::new().hash_one(number)),
            gaps: Vec::new(),
            watched: BinaryHeap::new(),
            lifetimes: BinaryHeap::new(),
            ending: None,
            sent_bytes: 0,
            list_bytes: 0,
            told_bytes: 0,
            done: Done::default(),
        }
    }

    /// One turn. Ready: there is more to do at once; pending: something wakes the task.
    fn turn(
        &mut self,
        cx: &mut Context<'_>,
        events: &mut Vec<Event>,
        timer: &mut LazyDeadline,
    ) -> Poll<()> {
        self.shared.shards[usize::from(self.number)].take(cx, &mut self.commands);
        // What the last turn left comes first.
        let looked = if events.is_empty() {
            self.pollset.poll_events(cx, events)
        } else {
            Poll::Ready(Ok(()))
        };
        if let Poll::Ready(Err(e)) = &looked {
            log::error!("hub: loop {} cannot watch its streams: {e}", self.number);
        }
        self.now = self.pace.tick_at(clock::now());
        self.settings = self.shared.settings.load_full();
        self.react(events, WRITES);
        self.obey();
        self.retry_late();
        self.land(LANDINGS);
        self.deliver(WRITES);
        self.answer(WRITES);
        self.beat(WRITES);
        self.expire(WRITES);
        self.drain(WRITES);
        self.count();
        let has_more = looked.is_ready()
            || !self.commands.is_empty()
            || !self.landing.is_empty()
            || !self.ready.is_empty()
            || !self.answers.is_empty();
        if has_more {
            return Poll::Ready(());
        }
        let Some(due) = self.next_due() else {
            return Poll::Pending;
        };
        if due <= self.now {
            return Poll::Ready(());
        }
        timer.set(self.pace.instant_of(due));
        timer.poll(cx)
    }

    /// When time alone brings something to do.
    fn next_due(&self) -> Option<u32> {
        let watched = self.watched.peek().map(|Reverse((due, _))| *due);
        let lifetime = self.lifetimes.peek().map(|Reverse((due, _))| *due);
        let late = (!self.late.is_empty()).then_some(self.late_at + 1);
        let dues = [
            self.beats.next_due(),
            watched,
            lifetime,
            late,
            self.drain_due(),
        ];
        dues.into_iter().flatten().min()
    }

    fn obey(&mut self) {
        for _ in 0..COMMANDS {
            match self.commands.pop_front() {
                None => break,
                Some(Command::Arrive(arrival)) => self.landing.push_back(arrival),
                Some(Command::Deliver(delivery)) => self.enqueue(delivery),
                Some(Command::Answer(answers)) => self.answers.push_back(answers),
                Some(Command::Drain(over)) => self.begin_drain(over),
            }
        }
        // One burst must not keep its memory for ever. The inbox has the other list of the two, which comes here
        // at the next turn.
        if self.commands.is_empty() {
            self.commands.shrink_to(COMMANDS);
        }
    }

    /// Answers long polls, at most `budget`.
    fn answer(&mut self, budget: usize) {
        for _ in 0..budget {
            let Some(answers) = self.answers.front_mut() else {
                return;
            };
            match answers.waiting.pop() {
                Some(poll) => {
                    let answered = poll.answer(&answers.channel, &answers.message);
                    self.done.delivered += u64::from(answered);
                }
                None => {
                    self.answers.pop_front();
                }
            }
        }
    }

    /// Adds what was done since the last time to the hub's numbers.
    fn count(&mut self) {
        let done = std::mem::take(&mut self.done);
        let tally = &self.shared.tally;
        for (number, added) in [
            (&tally.delivered, done.delivered),
            (&tally.dropped, done.dropped),
            (&tally.beats, done.beats),
        ] {
            if added > 0 {
                number.fetch_add(added, Ordering::Relaxed);
            }
        }
        let bytes =
            self.streams.bytes() + self.locals.bytes() + self.beats.bytes() + self.list_bytes;
        if bytes != self.told_bytes {
            crate::counts::change(&tally.shard_bytes, self.told_bytes, bytes);
            self.told_bytes = bytes;
        }
    }

    /// So many ticks, at least one unless it is nothing.
    fn ticks(&self, time: Duration) -> u32 {
        let ticks = time.as_millis() * u128::from(TICKS_A_SECOND);
        u32::try_from(ticks.div_ceil(1000)).unwrap_or(u32::MAX)
    }

    fn next_generation(&mut self) -> u32 {
        self.generation = self.generation.wrapping_add(1);
        self.generation
    }
}

#[cfg(test)]
mod tests;
