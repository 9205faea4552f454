//! One connection of a load: a task on one loop that takes a turn, sends its request, reads the
//! response and begins anew.
//!
//! `engine` starts them. A connection keeps one stream for each address among the load's shapes and
//! opens what the next shape needs. What must stay true on the way of every request: no allocation,
//! one send, one receive when the response is small, one or two looks at the clock.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use penstock_runtime::{LazyDeadline, Stream, buffers, clock};

use super::incoming::{Asked, Failure, Fed, Incoming};
use super::run::{Ended, Next, Run, SharedLoad, Turn};
use super::{Address, Pace};

/// One connection of a load.
#[derive(Debug)]
pub(super) struct Connection {
    run: Arc<Run>,
    load: usize,
    /// Its number among the load's on this loop.
    slot: usize,
    /// One for each address of the load.
    streams: Vec<Option<Held>>,
    deadline: LazyDeadline,
    incoming: Incoming,
    /// Before the next try, after a connection could not be made.
    pause: Duration,
}

#[derive(Debug)]
struct Held {
    stream: Stream,
    /// Whether it brought a response already.
    has_served: bool,
}

/// One request on its way.
struct Exchange<'a> {
    address: usize,
    unsent: &'a [u8],
    /// The socket takes no more: what the server said before it closed may still be there.
    is_cut: bool,
    first_byte: Option<Instant>,
}

impl Connection {
    pub(super) fn new(run: Arc<Run>, load: usize, slot: usize) -> Self {
        let addresses = run.loads[load].addresses.len();
        let mut streams = Vec::new();
        streams.resize_with(addresses, || None);
        Self {
            run,
            load,
            slot,
            streams,
            deadline: LazyDeadline::new(clock::now()),
            incoming: Incoming::new(),
            pause: PAUSE_MIN,
        }
    }

    /// Serves turns until there are no more; then it stays open, and idle, until the loops end.
    pub(super) async fn drive(mut self) {
        if self.is_open() {
            self.open_ahead().await;
        }
        let run = Arc::clone(&self.run);
        let shared = &run.loads[self.load];
        let mut now = clock::now();
        while let Some((turn, started)) = self.next_turn(now).await {
            now = self.serve(shared, turn, started).await;
        }
        std::future::pending::<()>().await;
    }

    fn is_open(&self) -> bool {
        matches!(self.run.loads[self.load].load.pace, Pace::Open(_))
    }

    /// An open loop's connections are there before its schedule starts, so that the first arrivals do
    /// not measure it. A failure is none yet: the arrival that needs the connection will tell.
    async fn open_ahead(&mut self) {
        let shared = &self.run.loads[self.load];
        if shared.load.keeps && shared.addresses.len() == 1 {
            let _ = self.connect(0, false).await;
        }
        self.run.ready.fetch_add(1, Ordering::AcqRel);
    }

    /// The next turn and when it begins.
    async fn next_turn(&mut self, now: Instant) -> Option<(Turn, Instant)> {
        if !self.is_open() {
            return self.next_closed(now).await;
        }
        self.run.rest(self.load, self.slot, now);
        let arrival = poll_fn(|cx| {
            let arrival = self.run.take(self.load, self.slot, cx.waker());
            arrival.map_or(Poll::Pending, Poll::Ready)
        });
        let arrival = arrival.await;
        let now = clock::now();
        Some((
            self.run.begin_arrival(self.load, self.slot, arrival, now)?,
            now,
        ))
    }

    /// The next turn in a closed loop: now, or when the window begins.
    async fn next_closed(&self, now: Instant) -> Option<(Turn, Instant)> {
        let mut now = now;
        loop {
            match self.run.begin(self.load, self.slot, now) {
                Next::Begin(turn) => return Some((turn, now)),
                Next::End => return None,
                Next::Rest => {
                    self.run.resting.fetch_add(1, Ordering::AcqRel);
                    poll_fn(|cx| self.run.poll_window(cx)).await;
                    now = clock::now();
                }
            }
        }
    }

    /// Serves one turn that begins at `sent`; gives when it ended.
    async fn serve(&mut self, shared: &SharedLoad, turn: Turn, sent: Instant) -> Instant {
        let shape = &shared.load.shapes[turn.shape];
        let address = shared.address_of[turn.shape];
        let mut start = turn.due.unwrap_or(sent);
        let mut is_again = false;
        loop {
            let mut begun = sent;
            if self.streams[address].is_none() {
                match self.connect(address, turn.is_counted).await {
                    Ok(opened) => begun = opened,
                    Err(failure) => {
                        let ended = Ended::unsent(turn, failure, clock::now());
                        self.run.finish(self.load, &ended);
                        return self.pause(failure, ended.now).await;
                    }
                }
                // A kept connection is opened once for many requests: none of them bears it.
                if shared.load.keeps && turn.due.is_none() && !is_again {
                    start = begun;
                }
            }
            let follows = self.streams[address]
                .as_ref()
                .is_some_and(|it| it.has_served);
            self.incoming.begin(Asked {
                is_head: shape.is_head,
                follows,
            });
            self.deadline.set(begun + shared.load.timeout);
            let mut exchange = Exchange {
                address,
                unsent: &shape.bytes,
                is_cut: false,
                first_byte: None,
            };
            let outcome = poll_fn(|cx| self.poll_exchange(cx, &mut exchange)).await;
            // Closed by the server while it was idle, as it may (RFC 9112 §9.3.1): once more.
            if let Err(Failure::Closed | Failure::Reset) = outcome
                && follows
                && !is_again
                && exchange.first_byte.is_none()
            {
                self.streams[address] = None;
                if turn.is_counted {
                    self.run.note(self.load, |recorder| recorder.retried += 1);
                }
                is_again = true;
                continue;
            }
            return self.conclude(turn, outcome, &exchange, start, sent);
        }
    }

    /// Keeps or closes the stream and gives the result away.
    fn conclude(
        &mut self,
        turn: Turn,
        outcome: Result<Instant, Failure>,
        exchange: &Exchange<'_>,
        start: Instant,
        sent: Instant,
    ) -> Instant {
        let keeps = self.run.loads[self.load].load.keeps;
        let may_stay = outcome.is_ok() && self.incoming.keep_alive && exchange.unsent.is_empty();
        match &mut self.streams[exchange.address] {
            Some(held) if keeps && may_stay && !exchange.is_cut => held.has_served = true,
            other => *other = None,
        }
        let now = outcome.unwrap_or_else(|_| clock::now());
        let ended = Ended {
            turn,
            outcome: outcome.map(|_| self.incoming.status),
            start,
            sent,
            first_byte: exchange.first_byte.unwrap_or(now),
            now,
            bytes: self.incoming.bytes,
            body_bytes: self.incoming.body_bytes,
        };
        self.run.finish(self.load, &ended);
        now
    }

    /// Sends and receives as far as it goes; the time at which the response was complete.
    fn poll_exchange(
        &mut self,
        cx: &mut Context<'_>,
        exchange: &mut Exchange<'_>,
    ) -> Poll<Result<Instant, Failure>> {
        let Some(held) = &self.streams[exchange.address] else {
            return Poll::Ready(Err(Failure::Closed));
        };
        if !exchange.unsent.is_empty() {
            exchange.poll_send(cx, &held.stream);
        }
        loop {
            let incoming = &mut self.incoming;
            let (fed, count) = match exchange.poll_receive(cx, &held.stream, incoming) {
                Poll::Ready(received) => received,
                Poll::Pending => break,
            };
            match fed {
                Ok(Fed::More) => {}
                Ok(Fed::Complete) => {
                    // A response in one piece needs one look at the clock.
                    let now = match exchange.first_byte {
                        Some(first) if incoming.bytes == count => first,
                        _ => clock::now(),
                    };
                    return Poll::Ready(Ok(now));
                }
                Err(failure) => return Poll::Ready(Err(failure)),
            }
        }
        self.deadline.poll(cx).map(|()| Err(Failure::Timeout))
    }

    /// Opens the stream to an address; the time at which it was open.
    async fn connect(&mut self, address: usize, is_counted: bool) -> Result<Instant, Failure> {
        let shared = &self.run.loads[self.load];
        let started = clock::now();
        let opening = open(&shared.addresses[address]);
        let stream = match clock::timeout_at(started + shared.load.timeout, opening).await {
            None => return Err(Failure::Timeout),
            Some(Err(_)) => return Err(Failure::Connect),
            Some(Ok(stream)) => stream,
        };
        let now = clock::now();
        self.pause = PAUSE_MIN;
        self.streams[address] = Some(Held {
            stream,
            has_served: false,
        });
        if is_counted {
            self.run
                .note(self.load, |recorder| recorder.connect(now - started));
        }
        Ok(now)
    }

    /// Waits before the next try to connect, longer each time; a time-out was a wait by itself.
    async fn pause(&mut self, failure: Failure, now: Instant) -> Instant {
        if failure == Failure::Timeout {
            return now;
        }
        clock::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        clock::now()
    }
}

impl Exchange<'_> {
    /// Sends what the socket takes. An error is kept: the response may say why.
    fn poll_send(&mut self, cx: &mut Context<'_>, stream: &Stream) {
        let mut sent = stream.try_write(&[IoSlice::new(self.unsent)]);
        loop {
            match sent {
                Ok(count) => self.unsent = self.unsent.get(count..).unwrap_or_default(),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => {
                    self.unsent = &[];
                    self.is_cut = true;
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

    /// Receives once: what it meant for the response, and how many bytes it was.
    fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        stream: &Stream,
        incoming: &mut Incoming,
    ) -> Poll<(Result<Fed, Failure>, u64)> {
        buffers::with_receive_buffer(|buffer| {
            let Poll::Ready(received) = stream.poll_read(cx, buffer) else {
                return Poll::Pending;
            };
            Poll::Ready(match received {
                Ok(0) if self.is_cut => (incoming.end().map_err(|_| Failure::Reset), 0),
                Ok(0) => (incoming.end(), 0),
                Ok(count) => {
                    if self.first_byte.is_none() {
                        self.first_byte = Some(clock::now());
                    }
                    (incoming.feed(&buffer[..count]), count as u64)
                }
                Err(e) if e.kind() == io::ErrorKind::TimedOut => (Err(Failure::Timeout), 0),
                Err(_) => (Err(Failure::Reset), 0),
            })
        })
    }
}

async fn open(address: &Address) -> io::Result<Stream> {
    match address {
        Address::Tcp(address) => Stream::connect_tcp(*address).await,
        Address::Unix(path) => Stream::connect_unix(path).await,
    }
}

const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(100);
