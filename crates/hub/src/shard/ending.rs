//! How streams end: by their clients, by being too slow, by a message, by their lifetime, by the drain.
//!
//! An end that the house decides is a proper one: the last chunk goes behind what waits, and the socket is
//! closed when that is written, or when the client takes none of it for too long. What must stay true:
//! whoever ends leaves all places that name it, and everybody who counts hears of it once.

use std::cmp::Reverse;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use penstock_runtime::pollset::Event;
use penstock_runtime::{buffers, probe_peer};
use penstock_sys::net;

use super::beats::{BeatAt, Moved};
use super::streams::{Flags, Link, slot_of};
use super::{INPUT_BYTES_MAX, Shard, WRITE_BYTES};
use crate::counts::{self, Seat};

/// Why a stream is no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gone {
    /// Its client left, or sent what it must not.
    Client,
    /// Its connection broke.
    Broken,
    /// It took too little, for too long.
    Slow,
    /// It was ended, and all of it is written.
    Ended,
}

/// Streams that end because the server stops.
#[derive(Debug)]
pub(super) struct Ending {
    began: u32,
    /// Ticks.
    over: u32,
    /// How many there were.
    streams: u64,
    ended: u64,
    /// The next slot to look at.
    cursor: u32,
}

impl Ending {
    /// How many are to be ended by now.
    fn target(&self, now: u32) -> u64 {
        let elapsed = now.saturating_sub(self.began);
        if elapsed >= self.over {
            return self.streams;
        }
        self.streams * u64::from(elapsed) / u64::from(self.over)
    }
}

impl Shard {
    /// Sees to what happened to sockets, until about `budget` writes' bytes went out; the rest stays in
    /// `events`.
    pub(super) fn react(&mut self, events: &mut Vec<Event>, budget: usize) {
        let sent_before = self.sent_bytes;
        let mut seen = 0;
        while (self.sent_bytes - sent_before) / WRITE_BYTES < budget
            && let Some(event) = events.get(seen)
        {
            seen += 1;
            self.react_to(event);
        }
        events.drain(..seen);
    }

    fn react_to(&mut self, event: &Event) {
        let slot = slot_of(event.token);
        match self.streams.get(slot) {
            Some(held) if held.token(slot) == event.token => {}
            // An event of a stream that has ended since.
            _ => return,
        }
        if event.is_broken() {
            self.close(slot, Gone::Client);
            return;
        }
        if event.is_readable() {
            self.drop_input(slot);
        }
        if event.is_ended() {
            self.probe(slot);
        }
        if event.is_writable() {
            self.flush(slot);
        }
    }

    /// Sends something to a client that closed its sending side, to learn whether it has left: that
    /// looks the same, and is answered by a reset. Between two chunks a zero may go, with which the
    /// size of the next one begins (RFC 9112 §7.1); what waits tells as much. One that leaves
    /// later, or whose body has no chunks, is found out by the kernel's own probes.
    fn probe(&mut self, stream: u32) {
        let Some(held) = self.streams.get_mut(stream) else {
            return;
        };
        if held.is.has(Flags::PROBED) {
            return;
        }
        held.is.set(Flags::PROBED);
        probe_peer(held.socket.as_fd());
        if held.backlog.is_some() || !held.shape.is_chunked() {
            return;
        }
        match net::send(held.socket.as_fd(), b"0") {
            Err(e) if e.kind() != io::ErrorKind::WouldBlock => self.close(stream, Gone::Client),
            _ => {}
        }
    }

    /// Reads and drops what a client sends behind its request; nobody asked for it.
    fn drop_input(&mut self, stream: u32) {
        let Some(held) = self.streams.get_mut(stream) else {
            return;
        };
        let is_gone = buffers::with_receive_buffer(|buffer| {
            loop {
                match net::receive(held.socket.as_fd(), buffer) {
                    // It may only have closed its sending side.
                    Ok(0) => return false,
                    Ok(count) => {
                        let count = u32::try_from(count).unwrap_or(u32::MAX);
                        held.input_bytes = held.input_bytes.saturating_add(count);
                        if held.input_bytes as usize > INPUT_BYTES_MAX {
                            return true;
                        }
                    }
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return e.kind() != io::ErrorKind::WouldBlock,
                }
            }
        });
        if is_gone {
            self.close(stream, Gone::Client);
        }
    }

    /// Ends a stream properly: nothing more comes, and what waits is still written.
    pub(super) fn end(&mut self, stream: u32) {
        match self.streams.get_mut(stream) {
            Some(held) if !held.is.has(Flags::ENDING) => held.is.set(Flags::ENDING),
            _ => return,
        }
        self.leave_all(stream);
        self.last_piece(stream);
        match self.streams.get(stream) {
            Some(held) if held.backlog.is_none() => self.finish(stream),
            Some(_) => self.watch(stream),
            None => {}
        }
    }

    /// Closes a stream of which everything is written.
    pub(super) fn finish(&mut self, stream: u32) {
        // Who sees the end may ask for the numbers.
        self.count();
        let Some(held) = self.streams.get(stream) else {
            return;
        };
        // Unread bytes would make the close a reset, which could cost the client the end.
        let _ = buffers::with_receive_buffer(|buffer| net::receive(held.socket.as_fd(), buffer));
        // A client that is gone already has no use for it.
        let _ = net::shutdown(held.socket.as_fd(), net::Shutdown::Write);
        self.close(stream, Gone::Ended);
    }

    /// Lets go of a stream at once, whatever waits for it.
    pub(super) fn close(&mut self, stream: u32, why: Gone) {
        self.leave_all(stream);
        let Some(mut held) = self.streams.remove(stream) else {
            return;
        };
        // An error means that it never was in the set.
        let _ = self.pollset.remove(held.socket.as_fd());
        if let Some(backlog) = held.backlog.take() {
            counts::change(&self.shared.tally.backlog_bytes, backlog.bytes(), 0);
        }
        if let Some(extra) = &held.extra {
            self.list_bytes -= extra.bytes();
        }
        self.leave_gap(held.gap);
        self.count();
        let tally = &self.shared.tally;
        tally.closed.fetch_add(1, Ordering::Relaxed);
        if why == Gone::Slow {
            tally.closed_slow.fetch_add(1, Ordering::Relaxed);
        }
        // Closes the socket, gives the place back and tells who wants to know.
        drop(held);
        Seat::give_back(&self.shared);
    }

    /// Takes a stream out of its channels and its ring.
    fn leave_all(&mut self, stream: u32) {
        let Some(held) = self.streams.get_mut(stream) else {
            return;
        };
        let beat = std::mem::replace(&mut held.beat, BeatAt::NONE);
        let first = std::mem::replace(&mut held.first, Link::NONE);
        let others = match &mut held.extra {
            Some(extra) => {
                self.list_bytes -= extra.others.capacity() * size_of::<Link>();
                std::mem::take(&mut extra.others)
            }
            None => Vec::new(),
        };
        if !beat.is_none()
            && let Some(moved) = self.beats.remove(beat)
        {
            self.moved(moved);
        }
        for link in [first].into_iter().chain(others) {
            if link.channel != u32::MAX {
                self.leave(link);
            }
        }
        self.shared.notes.tell();
    }

    fn leave(&mut self, link: Link) {
        let Some(local) = self.locals.get_mut(link.channel) else {
            return;
        };
        let list = &mut local.subscribers;
        let position = link.position as usize;
        list.swap_remove(position);
        let moved = list.get(position).copied();
        if list.capacity() > 4 * list.len() + 8 {
            let before = list.capacity();
            list.shrink_to(2 * list.len());
            self.list_bytes -= (before - list.capacity()) * size_of::<u32>();
        }
        if let Some(held) = moved.and_then(|moved| self.streams.get_mut(moved))
            && let Some((other, _)) = held.link_mut(link.channel)
        {
            other.position = link.position;
        }
        let channel = local.channel.clone();
        let (is_last, is_idle) = {
            let mut state = channel.lock();
            let was_there = state.has_subscribers();
            let number = self.number;
            let homes = &mut state.homes;
            let mut is_last = false;
            if let Some(found) = homes.iter().position(|home| home.shard == number) {
                homes[found].subscribers -= 1;
                is_last = homes[found].subscribers == 0;
                if is_last {
                    homes.swap_remove(found);
                }
            }
            self.shared.note_presence(&channel, was_there, &mut state);
            (is_last, state.is_idle())
        };
        if is_last {
            self.leave_channel(link.channel);
        }
        if is_idle {
            self.shared.registry.release(&channel);
        }
    }

    /// A stream has another place in its ring.
    pub(super) fn moved(&mut self, moved: Moved) {
        if let Some(held) = self.streams.get_mut(moved.stream) {
            held.beat = moved.at;
        }
    }

    /// Looks at a stream again when it may have taken nothing for too long.
    pub(super) fn watch(&mut self, stream: u32) {
        let due = self
            .now
            .saturating_add(self.ticks(self.settings.stall_timeout));
        let Some(held) = self.streams.get_mut(stream) else {
            return;
        };
        if !held.is.has(Flags::WATCHED) {
            held.is.set(Flags::WATCHED);
            let token = held.token(stream);
            self.watched.push(Reverse((due, token)));
        }
    }

    /// Ends a stream when it has lived for so long.
    pub(super) fn end_after(&mut self, stream: u32, lifetime: Duration) {
        let due = self.now.saturating_add(self.ticks(lifetime));
        let Some(held) = self.streams.get(stream) else {
            return;
        };
        self.lifetimes.push(Reverse((due, held.token(stream))));
        // Streams that left before their time leave theirs here: no more than there are streams.
        if self.lifetimes.len() > 2 * self.streams.len() + 64 {
            let lifetimes = std::mem::take(&mut self.lifetimes).into_vec();
            let alive = lifetimes.into_iter();
            let alive = alive.filter(|Reverse((_, token))| self.is_current(*token));
            self.lifetimes = alive.collect();
        }
    }

    /// Ends, at most `budget`, what has lived long enough, and what has taken nothing for too long.
    pub(super) fn expire(&mut self, budget: usize) {
        for _ in 0..budget {
            match self.watched.peek() {
                Some(Reverse((due, _))) if *due <= self.now => {}
                _ => break,
            }
            if let Some(Reverse((_, token))) = self.watched.pop() {
                self.look_at(token);
            }
        }
        for _ in 0..budget {
            match self.lifetimes.peek() {
                Some(Reverse((due, _))) if *due <= self.now => {}
                _ => return,
            }
            if let Some(Reverse((_, token))) = self.lifetimes.pop()
                && self.is_current(token)
            {
                self.end(slot_of(token));
            }
        }
    }

    fn look_at(&mut self, token: u64) {
        let stream = slot_of(token);
        let stall = self.ticks(self.settings.stall_timeout);
        let Some(held) = self.streams.get_mut(stream) else {
            return;
        };
        if held.token(stream) != token {
            return;
        }
        held.is.clear(Flags::WATCHED);
        let Some(backlog) = &held.backlog else {
            return;
        };
        let due = backlog.progress.saturating_add(stall);
        if due <= self.now {
            self.close(stream, Gone::Slow);
        } else {
            held.is.set(Flags::WATCHED);
            self.watched.push(Reverse((due, token)));
        }
    }

    fn is_current(&self, token: u64) -> bool {
        let stream = slot_of(token);
        let held = self.streams.get(stream);
        held.is_some_and(|held| held.token(stream) == token)
    }

    /// Begins to end all streams.
    pub(super) fn begin_drain(&mut self, over: Duration) {
        self.ending = Some(Ending {
            began: self.now,
            over: self.ticks(over),
            streams: self.streams.len() as u64,
            ended: 0,
            cursor: 0,
        });
    }

    /// Ends as many streams, at most `budget`, as are to be ended by now.
    pub(super) fn drain(&mut self, budget: usize) {
        let Some(mut ending) = self.ending.take() else {
            return;
        };
        let target = ending.target(self.now);
        for _ in 0..budget {
            if ending.ended >= target && target < ending.streams {
                break;
            }
            let Some(stream) = self.streams.next_from(ending.cursor) else {
                return;
            };
            ending.cursor = stream + 1;
            ending.ended += 1;
            self.end(stream);
        }
        self.ending = Some(ending);
    }

    /// When a stream is to be ended next.
    pub(super) fn drain_due(&self) -> Option<u32> {
        let ending = self.ending.as_ref()?;
        let is_behind =
            ending.ended < ending.target(self.now) || ending.target(self.now) >= ending.streams;
        Some(if is_behind { self.now } else { self.now + 1 })
    }
}
