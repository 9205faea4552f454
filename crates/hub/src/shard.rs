//! A shard: the owner of all streams held on one event loop.
//!
//! One task. Commands come through its inbox, events of sockets through its pollset, time by one
//! timer that is not set while nothing is held. It works in turns: a quantum of each kind of work,
//! then other tasks of the loop run, so that ordinary requests continue while a million
//! subscribers are written to.
//!
//! # Invariants
//! - Its streams and lists belong to it alone, without a lock.
//! - It holds the lock of a channel only to subscribe, to unsubscribe and to read the history,
//!   never while it writes.
//! - No write waits.
//! - A reference to a stream names its generation too, or is removed when the stream ends.

mod arrivals;
mod backlog;
mod closing;
mod delivery;
mod heartbeats;
mod live_stream;
mod shard_inbox;
mod slab;
mod transfer;
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

pub(crate) use arrivals::ResumePoint;
pub(crate) use shard_inbox::{
    ArrivedStream, ArrivingConnection, LongPollAnswers, ShardCommand, ShardDelivery, ShardInbox,
    TransferBatch, TransferEvent,
};

use crate::Settings;
use crate::hub::HubShared;
use closing::DrainProgress;
use delivery::ShardChannel;
use heartbeats::Heartbeats;
use live_stream::LiveStream;
use slab::Slab;
use transfer::ShardTransfer;
use writing::GapNotice;

/// What one loop holds.
#[derive(Debug)]
pub(crate) struct Shard {
    number: u16,
    shared: Arc<HubShared>,
    /// As they were at the beginning of this turn.
    settings: Arc<Settings>,
    pollset: Pollset,
    tick_clock: TickClock,
    now_tick: u32,
    commands: VecDeque<ShardCommand>,
    arrivals: VecDeque<Box<ArrivedStream>>,
    streams: Slab<LiveStream>,
    /// How many streams there were.
    generation: u32,
    channels: Slab<ShardChannel>,
    /// The queue of channels with something to deliver.
    ready_channels: VecDeque<u32>,
    poll_answers: VecDeque<LongPollAnswers>,
    heartbeats: Heartbeats,
    /// Notices that something is missing, as many streams have them.
    gap_notices: Vec<GapNotice>,
    /// Streams that wait for room, by when they are looked at.
    stall_checks: BinaryHeap<Reverse<(u32, u64)>>,
    /// Streams that end by themselves, by when.
    lifetimes: BinaryHeap<Reverse<(u32, u64)>>,
    drain: Option<DrainProgress>,
    transfer: Option<ShardTransfer>,
    /// Bytes that were given to sockets: large writes take more of a turn.
    sent_bytes: usize,
    /// What lists and rare parts take of memory.
    list_bytes: usize,
    /// What of all that is in `shard_bytes` is this shard's.
    reported_bytes: usize,
    turn_counts: TurnCounts,
}

/// What was written and is not in the hub's numbers yet: they are added to at the end of a turn,
/// and before the end of a stream can be observed.
#[derive(Debug, Default)]
struct TurnCounts {
    delivered: u64,
    dropped: u64,
    heartbeats: u64,
}

/// How long a tick is: the smallest time that a shard tells apart.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TickClock {
    start: Instant,
    tick_length: Duration,
}

/// All times are in ticks of a quarter of a second; tests let them pass faster.
const TICKS_PER_SECOND: u32 = 4;

/// Commands of a turn: each is a few list operations.
const COMMANDS_PER_TURN: usize = 1024;

/// Arrivals of a turn: each is a handful of system calls.
const ARRIVALS_PER_TURN: usize = 64;

/// Writes of one kind in a turn: some three hundred microseconds.
const WRITES_PER_TURN: usize = 128;

/// Bytes that count like one more write.
const BYTES_PER_WRITE: usize = 16 << 10;

/// Bytes that a client may send behind its request before it is taken for something else.
const MAX_INPUT_BYTES: usize = 64 << 10;

/// Notices that streams share; handlers have one or two. A stream's own beyond.
const MAX_SHARED_GAP_NOTICES: usize = 16;

const NO_GAP_NOTICE: u8 = u8::MAX;

impl TickClock {
    pub(crate) fn real_time() -> Self {
        Self::new(Duration::from_millis(1000 / u64::from(TICKS_PER_SECOND)))
    }

    pub(crate) fn new(tick: Duration) -> Self {
        Self {
            start: clock::now(),
            tick_length: tick,
        }
    }

    fn tick_at(self, now: Instant) -> u32 {
        let since = now.saturating_duration_since(self.start);
        u32::try_from(since.as_micros() / self.tick_length.as_micros().max(1)).unwrap_or(u32::MAX)
    }

    fn instant_of(self, tick: u32) -> Instant {
        self.start + self.tick_length * tick
    }
}

/// A loop with a panicked shard would hold its streams for ever in silence: the process ends, and
/// is started anew.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            log::error!("hub: a loop's streams are lost by a panic: the process ends");
            std::process::abort();
        }
    }
}

impl Shard {
    /// Runs on the current loop until that ends, with `set` as its set of descriptors.
    pub(crate) async fn run(shared: Arc<HubShared>, number: u16, set: OwnedFd, pace: TickClock) {
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
        let _guard = AbortOnPanic;
        let mut timer = LazyDeadline::new(clock::now());
        let mut events = Vec::new();
        loop {
            poll_fn(|cx| shard.turn(cx, &mut events, &mut timer)).await;
            // Whatever else is ready on the loop.
            loops::yield_now().await;
        }
    }

    fn new(shared: Arc<HubShared>, number: u16, pollset: Pollset, pace: TickClock) -> Self {
        Self {
            number,
            settings: shared.settings.load_full(),
            shared,
            pollset,
            tick_clock: pace,
            now_tick: 0,
            commands: VecDeque::new(),
            arrivals: VecDeque::new(),
            streams: Slab::new(),
            generation: 0,
            channels: Slab::new(),
            ready_channels: VecDeque::new(),
            poll_answers: VecDeque::new(),
            heartbeats: Heartbeats::new(RandomState::new().hash_one(number)),
            gap_notices: Vec::new(),
            stall_checks: BinaryHeap::new(),
            lifetimes: BinaryHeap::new(),
            drain: None,
            transfer: None,
            sent_bytes: 0,
            list_bytes: 0,
            reported_bytes: 0,
            turn_counts: TurnCounts::default(),
        }
    }

    /// One turn. Ready: there is more to do at once; pending: something wakes the task.
    fn turn(
        &mut self,
        cx: &mut Context<'_>,
        events: &mut Vec<Event>,
        timer: &mut LazyDeadline,
    ) -> Poll<()> {
        self.shared.shard_inboxes[usize::from(self.number)].take_commands(cx, &mut self.commands);
        // What the last turn left comes first.
        let looked = if events.is_empty() {
            self.pollset.poll_events(cx, events)
        } else {
            Poll::Ready(Ok(()))
        };
        if let Poll::Ready(Err(e)) = &looked {
            log::error!("hub: loop {} cannot watch its streams: {e}", self.number);
        }
        self.now_tick = self.tick_clock.tick_at(clock::now());
        self.settings = self.shared.settings.load_full();
        self.handle_events(events, WRITES_PER_TURN);
        self.handle_commands();
        self.accept_arrivals(ARRIVALS_PER_TURN);
        self.deliver(WRITES_PER_TURN);
        self.answer_long_polls(WRITES_PER_TURN);
        self.send_heartbeats(WRITES_PER_TURN);
        self.close_expired(WRITES_PER_TURN);
        self.drain_streams(WRITES_PER_TURN);
        self.detach_streams();
        self.flush_counts();
        let has_more = looked.is_ready()
            || !self.commands.is_empty()
            || !self.arrivals.is_empty()
            || !self.ready_channels.is_empty()
            || !self.poll_answers.is_empty()
            || self.has_streams_to_detach();
        if has_more {
            return Poll::Ready(());
        }
        let Some(due) = self.next_due() else {
            return Poll::Pending;
        };
        if due <= self.now_tick {
            return Poll::Ready(());
        }
        timer.set(self.tick_clock.instant_of(due));
        timer.poll(cx)
    }

    /// When time alone brings something to do.
    fn next_due(&self) -> Option<u32> {
        let watched = self.stall_checks.peek().map(|Reverse((due, _))| *due);
        let lifetime = self.lifetimes.peek().map(|Reverse((due, _))| *due);
        let dues = [
            self.heartbeats.next_due_tick(),
            watched,
            lifetime,
            self.next_drain_tick(),
            self.next_transfer_tick(),
        ];
        dues.into_iter().flatten().min()
    }

    fn handle_commands(&mut self) {
        for _ in 0..COMMANDS_PER_TURN {
            match self.commands.pop_front() {
                None => break,
                Some(ShardCommand::AddStream(arrival)) => self.arrivals.push_back(arrival),
                Some(ShardCommand::Deliver(delivery)) => self.enqueue(delivery),
                Some(ShardCommand::AnswerLongPolls(answers)) => {
                    self.poll_answers.push_back(answers);
                }
                Some(ShardCommand::Drain(over)) => self.begin_drain(over),
                Some(ShardCommand::StartTransfer(events)) => self.start_transfer(events),
                Some(ShardCommand::StopTransfer) => self.stop_transfer(),
                Some(ShardCommand::ReleaseMoved(streams)) => self.release_moved(streams),
                Some(ShardCommand::AddDetached(streams, is_refused)) => {
                    self.add_detached(streams, is_refused);
                }
            }
        }
        // One burst must not keep its memory for ever. The inbox has the other list of the two,
        // which comes here at the next turn.
        if self.commands.is_empty() {
            self.commands.shrink_to(COMMANDS_PER_TURN);
        }
    }

    /// Answers long polls, at most `budget`.
    fn answer_long_polls(&mut self, budget: usize) {
        for _ in 0..budget {
            let Some(answers) = self.poll_answers.front_mut() else {
                return;
            };
            match answers.waiters.pop() {
                Some(poll) => {
                    let answered = poll.try_answer(&answers.channel, &answers.message);
                    self.turn_counts.delivered += u64::from(answered);
                }
                None => {
                    self.poll_answers.pop_front();
                }
            }
        }
    }

    /// Adds what was done since the last time to the hub's numbers.
    fn flush_counts(&mut self) {
        let done = std::mem::take(&mut self.turn_counts);
        let tally = &self.shared.metrics;
        for (number, added) in [
            (&tally.delivered_messages, done.delivered),
            (&tally.dropped_messages, done.dropped),
            (&tally.sent_heartbeats, done.heartbeats),
        ] {
            if added > 0 {
                number.fetch_add(added, Ordering::Relaxed);
            }
        }
        let bytes = self.streams.memory_bytes()
            + self.channels.memory_bytes()
            + self.heartbeats.memory_bytes()
            + self.list_bytes;
        if bytes != self.reported_bytes {
            crate::counters::adjust_counter(&tally.shard_bytes, self.reported_bytes, bytes);
            self.reported_bytes = bytes;
        }
    }

    /// So many ticks, at least one unless it is nothing.
    fn to_ticks(&self, time: Duration) -> u32 {
        let ticks = time.as_millis() * u128::from(TICKS_PER_SECOND);
        u32::try_from(ticks.div_ceil(1000)).unwrap_or(u32::MAX)
    }

    fn next_generation(&mut self) -> u32 {
        self.generation = self.generation.wrapping_add(1);
        self.generation
    }
}

#[cfg(test)]
mod tests;
