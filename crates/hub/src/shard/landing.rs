//! Streams that come to their shard.
//!
//! Edge's connection still has the socket when it hands it over, and lets go of it before the loop's next
//! turn; then the socket leaves its registration with the loop and becomes a descriptor among many. What must stay
//! true: subscribing and reading the history happen under the channel's lock, so that what came before is
//! in the one and what comes after finds the subscriber; the stream gets what it begins with before any
//! message.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use penstock_runtime::clock;
use penstock_runtime::pollset::Interest;
use penstock_sys::net;

use super::backlog::{Backlog, Kind, Piece};
use super::beats::BeatAt;
use super::delivery::Local;
use super::ending::Gone;
use super::inbox::Arrival;
use super::streams::{Extra, Flags, Held, Link, OwnBeat};
use super::writing::send_waiting;
use super::{GAP_NONE, INPUT_BYTES_MAX, Shard, TICKS_A_SECOND, WRITE_BYTES};
use crate::channel::{Concern, Home, Message, Shape, State};
use crate::counts;
use crate::hub::{Expected, Wanted};
use crate::{KeepAlive, StreamForm};

/// Turns in which the connection's task still has the socket before the shard waits for a tick instead.
const TRIES_AT_ONCE: u32 = 64;

/// Ticks after which it is given up.
const TRIES_MAX: u32 = TRIES_AT_ONCE + 20;

/// The message that a client had last, which comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Base {
    order: u64,
    /// Which of its channels has it.
    home: Option<usize>,
    /// Its number says nothing of other channels.
    is_restored: bool,
}

/// What a stream finds of its channels.
#[derive(Debug, Default)]
struct Found {
    links: Vec<Link>,
    /// What it missed, of all channels.
    messages: Vec<(u32, Arc<Message>)>,
    /// Some of what it missed is kept no more.
    has_gap: bool,
    /// An end was published while it was on its way.
    is_over: bool,
}

impl Shard {
    /// Takes in the streams whose sockets are free, at most `budget`.
    pub(super) fn land(&mut self, budget: usize) {
        let sent_before = self.sent_bytes;
        for used in 1..=budget.min(self.landing.len()) {
            // What they begin with counts by its bytes.
            if used + (self.sent_bytes - sent_before) / WRITE_BYTES > budget {
                return;
            }
            let Some(mut arrival) = self.landing.pop_front() else {
                return;
            };
            match Arc::try_unwrap(arrival.client) {
                Ok(client) => {
                    let Arrival {
                        early_bytes,
                        shape,
                        place,
                        wanted,
                        ..
                    } = *arrival;
                    let held = Held {
                        socket: client.into_socket(),
                        generation: self.next_generation(),
                        _place: place,
                        first: Link::NONE,
                        beat: BeatAt::NONE,
                        sent: self.now,
                        input_bytes: u32::try_from(early_bytes).unwrap_or(u32::MAX),
                        shape,
                        gap: GAP_NONE,
                        is: Flags::default(),
                        backlog: None,
                        extra: None,
                        permit: None,
                    };
                    self.see_to_silence(&held, &wanted);
                    self.hold(held, *wanted);
                }
                Err(shared) => {
                    arrival.client = shared;
                    arrival.tries += 1;
                    if arrival.tries > TRIES_MAX {
                        log::error!("hub: a stream's socket was not let go of by its connection");
                        arrival.client.abort();
                    } else if arrival.tries > TRIES_AT_ONCE {
                        self.late.push_back(arrival);
                    } else {
                        self.landing.push_back(arrival);
                    }
                }
            }
        }
    }

    /// A client that vanished without a word is noticed: by what is sent to it, or if nothing is, by probes.
    fn see_to_silence(&self, held: &Held, wanted: &Wanted) {
        let after = self.settings.stall_timeout;
        let socket = held.socket.as_fd();
        // Unix sockets know of neither, and need none: their peers are processes of this machine.
        let _ = net::set_user_timeout(socket, after);
        let beat = wanted.keep_alive.as_ref();
        if beat.is_none_or(|beat| beat.bytes.is_empty()) {
            let _ = net::enable_keepalive_after(socket, after);
        }
    }

    /// Tries those again, once a tick, whose sockets were elsewhere for long.
    pub(super) fn retry_late(&mut self) {
        if self.late_at < self.now {
            self.late_at = self.now;
            self.landing.extend(self.late.drain(..));
        }
    }

    fn hold(&mut self, mut held: Held, wanted: Wanted) {
        let Wanted {
            expected,
            form,
            keep_alive,
            initial,
            meta,
            ended,
            after,
            gap,
            lifetime,
            seat,
        } = wanted;
        let mut extra = Extra {
            others: Vec::new(),
            filters: Vec::new(),
            meta: meta.into(),
            ended,
            gap: None,
            beat: None,
        };
        let shape = held.shape;
        debug_assert_eq!(shape.form(), form);
        let gap = gap.filter(|gap| !gap.is_empty());
        if let Some(gap) = &gap {
            match self.known_gap(gap) {
                Some(known) => held.gap = known,
                None => extra.gap = Some(shape.frame(gap.clone())),
            }
        }
        if expected.iter().any(|each| !each.filters.is_empty()) {
            let filters = expected.iter().map(|each| each.filters.clone());
            extra.filters = filters.collect();
        }
        held.permit = seat.keep();
        let stream = self.streams.insert(held);
        let found = self.subscribe_all(stream, &expected, after.as_deref());
        let known = after.or_else(|| expected.iter().find_map(|each| each.prev_id.clone()));
        drop(expected);
        let mut links = found.links.iter().copied();
        let first = links.next().unwrap_or(Link::NONE);
        extra.others = links.collect();
        if let Some(keep_alive) = &keep_alive {
            let (at, own) = self.join_ring(stream, keep_alive, shape);
            extra.beat = own;
            if let Some(held) = self.streams.get_mut(stream) {
                held.beat = at;
            }
        }
        if let Some(held) = self.streams.get_mut(stream) {
            held.first = first;
            if extra.is_needed() {
                self.list_bytes += extra.bytes();
                held.extra = Some(Box::new(extra));
            }
        }
        self.shared.tally.opened.fetch_add(1, Ordering::Relaxed);
        self.begin(stream, initial, known.as_deref(), found);
        if let Some(lifetime) = lifetime {
            self.end_after(stream, lifetime);
        }
    }

    /// Subscribes to all channels, each under its lock.
    fn subscribe_all(&mut self, stream: u32, expected: &[Expected], after: Option<&str>) -> Found {
        let mut found = Found::default();
        // A client that comes back names one message of one of its channels: everything of all of them
        // that came after it is news.
        let base = after.map(|id| self.base_of(expected, id));
        found.has_gap = base == Some(None);
        let came_back = base.map(Option::unwrap_or_default);
        for (index, each) in expected.iter().enumerate() {
            let came_back = came_back.map(|base| base.in_channel(index));
            let link = self.subscribe(stream, each, came_back, &mut found);
            found.links.push(link);
        }
        found.messages.sort_by_key(|(_, message)| message.order);
        let held = self.streams.get(stream);
        if held.is_some_and(|held| held.shape.form() == StreamForm::Bytes) {
            let mut all = found.messages.iter();
            found.is_over |= all.any(|(_, message)| message.concern() == Concern::Gap);
        }
        self.shared.notes.tell();
        found
    }

    /// The message that a client names which comes back.
    fn base_of(&self, expected: &[Expected], id: &str) -> Option<Base> {
        let here = self.shared.order_of(id).map(|order| Base {
            order,
            home: None,
            is_restored: false,
        });
        // One that got its number here may have another by now, in a history that was restored.
        let found = expected.iter().enumerate().find_map(|(index, each)| {
            let state = each.channel.lock();
            if here.is_some() && state.restored_to == 0 {
                return None;
            }
            let order = state.order_of(id)?;
            Some(Base {
                order,
                home: Some(index),
                is_restored: order <= state.restored_to,
            })
        });
        found.or(here)
    }

    fn subscribe(
        &mut self,
        stream: u32,
        expected: &Expected,
        came_back: Option<Base>,
        found: &mut Found,
    ) -> Link {
        let channel = &expected.channel;
        let mut state = channel.lock();
        let was_there = state.has_subscribers();
        let number = self.number;
        let home = state.homes.iter_mut().find(|home| home.shard == number);
        let slot = match home {
            Some(home) => {
                home.subscribers += 1;
                home.slot
            }
            None => {
                let slot = self.locals.insert(Local::new(channel.clone()));
                if state.homes.is_empty() {
                    state.homes.reserve_exact(1);
                }
                state.homes.push(Home {
                    shard: number,
                    slot,
                    subscribers: 1,
                });
                slot
            }
        };
        self.shared.note_presence(channel, was_there, &mut state);
        let from = find(&state, (expected, slot), came_back, found);
        if from < expected.start && !state.history.is_empty() {
            self.shared.trim(&mut state, clock::now());
        }
        found.has_gap |= state.history.has_gap(from);
        for message in state.history.after(from) {
            found.add(slot, message, expected.start.max(state.restored_to));
        }
        let next = state.last + 1;
        drop(state);
        let position = self.join_list(slot, stream);
        Link {
            channel: slot,
            position,
            next,
        }
    }

    /// The stream's place in a channel's list.
    fn join_list(&mut self, slot: u32, stream: u32) -> u32 {
        let Some(local) = self.locals.get_mut(slot) else {
            return 0;
        };
        let before = local.subscribers.capacity();
        if before == 0 {
            local.subscribers.reserve_exact(1);
        }
        local.subscribers.push(stream);
        self.list_bytes += (local.subscribers.capacity() - before) * size_of::<u32>();
        u32::try_from(local.subscribers.len() - 1).unwrap_or(0)
    }

    fn join_ring(
        &mut self,
        stream: u32,
        keep_alive: &KeepAlive,
        shape: Shape,
    ) -> (BeatAt, Option<OwnBeat>) {
        if keep_alive.bytes.is_empty() {
            return (BeatAt::NONE, None);
        }
        let every = keep_alive.every.max(Duration::from_secs(1));
        let ticks = u128::from(TICKS_A_SECOND) * every.as_millis() / 1000;
        let ticks = u32::try_from(ticks).unwrap_or(u32::MAX / 4);
        let (at, is_own) = self.beats.insert(stream, keep_alive, ticks, self.now);
        let own = (!is_own).then(|| OwnBeat {
            framed: shape.frame(keep_alive.bytes.clone()),
            regardless: keep_alive.regardless,
        });
        (at, own)
    }

    /// Sends what a stream begins with, and lets the loop watch its socket.
    fn begin(&mut self, stream: u32, initial: Bytes, known: Option<&str>, found: Found) {
        let mut backlog = self.first_pieces(stream, initial, known, &found);
        let (now, room) = (self.now, self.room());
        let gap = self.streams.get(stream).and_then(|held| self.gap_of(held));
        let gap = gap.cloned();
        let Some(held) = self.streams.get_mut(stream) else {
            return;
        };
        if held.input_bytes as usize > INPUT_BYTES_MAX {
            self.close(stream, Gone::Client);
            return;
        }
        let whole = backlog.bytes();
        let sent = send_waiting(held.socket.as_fd(), &mut backlog, now);
        self.sent_bytes += whole - backlog.bytes();
        // Where too much waits for all together already, what was missed is missing for good.
        if backlog.bytes() > room.all {
            self.done.dropped += u64::from(backlog.shed(gap.as_ref()));
        }
        let waits = !backlog.is_empty();
        let interest = if waits {
            Interest::Both
        } else {
            Interest::Read
        };
        let added = self
            .pollset
            .add(held.socket.as_fd(), held.token(stream), interest);
        if waits {
            counts::change(&self.shared.tally.backlog_bytes, 0, backlog.bytes());
            held.backlog = Some(Box::new(backlog));
        }
        if let Err(e) = &added {
            log::error!("hub: a stream is not held: the kernel does not watch its socket: {e}");
        }
        let (Ok(completed), Ok(())) = (sent, added) else {
            self.close(stream, Gone::Broken);
            return;
        };
        self.done.delivered += completed;
        if waits {
            self.watch(stream);
        }
        if found.is_over || self.shared.is_draining() {
            self.end(stream);
        }
    }

    /// What a stream begins with: its own, a notice if something behind the message that its client named
    /// (`known`) is missing, and what it missed.
    fn first_pieces(
        &mut self,
        stream: u32,
        initial: Bytes,
        known: Option<&str>,
        found: &Found,
    ) -> Backlog {
        let mut backlog = Backlog::new(self.now);
        let Some(held) = self.streams.get(stream) else {
            return backlog;
        };
        let shape = held.shape;
        let gap = found.has_gap.then(|| self.gap_behind(held, known));
        let mut push = |bytes: Bytes, messages| {
            if !bytes.is_empty() {
                let kind = Kind::First;
                let piece = Piece {
                    bytes,
                    messages,
                    kind,
                };
                backlog.push(piece, 0);
            }
        };
        push(shape.frame(initial), 0);
        push(gap.flatten().unwrap_or_default(), 0);
        for (channel, message) in &found.messages {
            let held = self.streams.get_mut(stream);
            let link = held.and_then(|held| held.link_mut(*channel));
            let has_filters = link.is_some_and(|(_, filters)| !filters.is_empty());
            let is_each = has_filters && message.concern() != Concern::Gap;
            if is_each || message.concern() == Concern::Each {
                push(
                    self.made_for(stream, *channel, message).unwrap_or_default(),
                    1,
                );
            } else {
                push(message.framed(shape).clone(), 1);
            }
        }
        backlog
    }
}

impl Found {
    /// A message is for the stream, or ends it if it came behind the one of this order.
    fn add(&mut self, channel: u32, message: &Arc<Message>, start: u64) {
        match message.concern() {
            Concern::Same | Concern::Each | Concern::Gap => {
                self.messages.push((channel, message.clone()));
            }
            Concern::End if message.order > start => self.is_over = true,
            Concern::End | Concern::None => {}
        }
    }
}

impl Base {
    /// What it says of the channel at `index`.
    fn in_channel(self, index: usize) -> Self {
        Self {
            is_restored: self.is_restored && self.home != Some(index),
            home: self.home.filter(|&home| home == index),
            ..self
        }
    }

    /// Whether its number says which messages of this channel came before it.
    fn is_known_in(self, state: &State) -> bool {
        self.home.is_some() || !self.is_restored && self.order > state.restored_to
    }
}

/// Finds what was published since the stream was answered and is in the history no more. From where on
/// the history is for it.
fn find(
    state: &State,
    (expected, slot): (&Expected, u32),
    came_back: Option<Base>,
    found: &mut Found,
) -> u64 {
    let from = match (came_back, &expected.prev_id) {
        (Some(base), _) if base.is_known_in(state) => Some(base.order),
        // Nobody knows which of the channel's messages came before it.
        (Some(_), _) => {
            found.has_gap = true;
            Some(0)
        }
        (None, Some(id)) => match (state.order_of(id), &state.last_id) {
            (Some(order), _) => Some(order),
            (None, None) => None,
            // The channel has gone on from a message that nobody knows any more.
            (None, Some(_)) => {
                found.has_gap = true;
                Some(0)
            }
        },
        (None, None) => None,
    };
    let is_new = from.is_none();
    if let Some(before) = &state.before {
        found.has_gap |= is_new && before.has_gap(expected.start);
        for message in before.after(expected.start) {
            // Who comes back finds it in the history, if it is there as well.
            if is_new || state.history.find(&message.id).is_none() {
                found.add(slot, message, expected.start);
            }
        }
    }
    from.unwrap_or_else(|| expected.start.max(state.restored_to))
}
