//! How streams end: by their clients, by being too slow, by a message, by their lifetime, by the
//! drain.
//!
//! When the server ends a stream, the last chunk follows the backlog, and the socket is closed
//! when that is written, or when the client accepts none of it for too long.
//!
//! # Invariants
//! - A stream that ends is removed from every list that names it, and is counted once.

use std::cmp::Reverse;
use std::collections::binary_heap::{BinaryHeap, PeekMut};
use std::io::{self, IoSlice};
use std::sync::atomic::Ordering;
use std::time::Duration;

use penstock_runtime::buffers;
use penstock_runtime::pollset::Event;

use super::heartbeats::{HeartbeatRingMember, HeartbeatRingPosition};
use super::live_stream::{ChannelLink, slot_of_token};
use super::{BYTES_PER_WRITE, MAX_INPUT_BYTES, Shard};
use crate::counters::{self, StreamPermit};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CloseReason {
    /// Its client left, or sent what it must not.
    ClientDisconnected,
    ConnectionError,
    /// It took too little, for too long.
    Slow,
    /// It was ended, and all of it is written.
    Finished,
}

/// Streams that end because the server stops.
#[derive(Debug)]
pub(super) struct DrainProgress {
    started_at: u32,
    duration_ticks: u32,
    stream_count: u64,
    ended: u64,
    next_slot: u32,
}

impl DrainProgress {
    /// How many are to be ended by now.
    fn target_by(&self, now: u32) -> u64 {
        let elapsed = now.saturating_sub(self.started_at);
        if elapsed >= self.duration_ticks {
            return self.stream_count;
        }
        self.stream_count * u64::from(elapsed) / u64::from(self.duration_ticks)
    }
}

impl Shard {
    /// Sees to what happened to sockets, until about `budget` writes' bytes went out; the rest
    /// stays in `events`.
    pub(super) fn handle_events(&mut self, events: &mut Vec<Event>, budget: usize) {
        let sent_before = self.sent_bytes;
        let mut seen = 0;
        while (self.sent_bytes - sent_before) / BYTES_PER_WRITE < budget
            && let Some(event) = events.get(seen)
        {
            seen += 1;
            self.handle_event(event);
        }
        events.drain(..seen);
    }

    fn handle_event(&mut self, event: &Event) {
        let slot = slot_of_token(event.token);
        if !self.is_current_token(event.token) {
            // An event of a stream that has ended since.
            return;
        }
        if event.is_broken() {
            self.close_stream(slot, CloseReason::ClientDisconnected);
            return;
        }
        if event.is_readable() {
            self.discard_input(slot);
        }
        if event.is_ended() {
            self.probe_half_closed(slot);
        }
        if event.is_writable() {
            self.flush_backlog(slot);
        }
    }

    /// Sends something to a client that closed its sending side, to learn whether it has left: that
    /// looks the same, and is answered by a reset. Between two chunks a zero may go, with which the
    /// size of the next one begins (RFC 9112 §7.1); what waits tells as much. One that leaves
    /// later, or that has a body without chunks, is found out by the kernel's own probes.
    fn probe_half_closed(&mut self, stream: u32) {
        let Some(held) = self.streams.get_mut(stream) else {
            return;
        };
        if std::mem::replace(&mut held.is_probed, true) {
            return;
        }
        held.socket.probe_peer();
        if held.backlog.is_some() || !held.format.is_chunked {
            return;
        }
        match held.connection().try_write(&[IoSlice::new(b"0")]) {
            Err(e) if e.kind() != io::ErrorKind::WouldBlock => {
                self.close_stream(stream, CloseReason::ClientDisconnected);
            }
            _ => self.watch_unsent(stream),
        }
    }

    /// Reads and drops bytes that a client sends behind its request.
    fn discard_input(&mut self, stream: u32) {
        let Some(held) = self.streams.get_mut(stream) else {
            return;
        };
        let is_gone = buffers::with_receive_buffer(|buffer| {
            loop {
                match held.connection().discard_input(buffer) {
                    // It may only have closed its sending side.
                    Ok(0) => return false,
                    Ok(count) => {
                        let count = u32::try_from(count).unwrap_or(u32::MAX);
                        held.input_bytes = held.input_bytes.saturating_add(count);
                        if held.input_bytes as usize > MAX_INPUT_BYTES {
                            return true;
                        }
                    }
                    Err(e) => return e.kind() != io::ErrorKind::WouldBlock,
                }
            }
        });
        if is_gone {
            self.close_stream(stream, CloseReason::ClientDisconnected);
        } else {
            self.watch_unsent(stream);
        }
    }

    /// Ends a stream gracefully: what waits is still written.
    pub(super) fn end_stream_gracefully(&mut self, stream: u32) {
        match self.streams.get_mut(stream) {
            Some(held) if !held.is_ending => held.is_ending = true,
            _ => return,
        }
        self.leave_channels(stream);
        self.write_body_end(stream);
        match self.streams.get(stream) {
            Some(held) if held.backlog.is_none() => self.finish_stream(stream),
            Some(_) => self.schedule_stall_check(stream),
            None => {}
        }
    }

    /// Closes a stream of which everything is written.
    pub(super) fn finish_stream(&mut self, stream: u32) {
        // A client that sees the end may read the counters.
        self.flush_counts();
        let Some(held) = self.streams.get_mut(stream) else {
            return;
        };
        // Unread bytes would make the close a reset, which could cost the client the end.
        let mut connection = held.connection();
        let _ = buffers::with_receive_buffer(|buffer| connection.discard_input(buffer));
        connection.shutdown_write();
        self.close_stream(stream, CloseReason::Finished);
    }

    /// Removes a stream at once, whatever waits for it.
    pub(super) fn close_stream(&mut self, stream: u32, why: CloseReason) {
        self.leave_channels(stream);
        let Some(mut held) = self.streams.remove(stream) else {
            return;
        };
        held.socket.remove_from_pollset(&self.pollset);
        self.list_bytes -= held.session_bytes();
        if let Some(backlog) = held.backlog.take() {
            counters::adjust_counter(
                &self.shared.metrics.backlog_bytes,
                backlog.memory_bytes(),
                0,
            );
        }
        if let Some(extra) = &held.extras {
            self.list_bytes -= extra.memory_bytes();
        }
        self.release_gap_notice(held.gap_notice);
        self.count_closed();
        let tally = &self.shared.metrics;
        if why == CloseReason::Slow {
            tally.closed_slow_streams.fetch_add(1, Ordering::Relaxed);
        }
        // Closes the socket, releases the permit and calls `on_end`.
        drop(held);
        StreamPermit::release(&self.shared);
    }

    /// Counts the end of a stream, after all that was done with it.
    pub(super) fn count_closed(&mut self) {
        self.flush_counts();
        let closed = &self.shared.metrics.closed_streams;
        closed.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes a stream out of its channels and its ring.
    pub(super) fn leave_channels(&mut self, stream: u32) {
        let Some(held) = self.streams.get_mut(stream) else {
            return;
        };
        let beat = std::mem::replace(&mut held.heartbeat_position, HeartbeatRingPosition::NONE);
        let first = std::mem::replace(&mut held.first_link, ChannelLink::NONE);
        let others = match &mut held.extras {
            Some(extra) => {
                self.list_bytes -= extra.other_links.capacity() * size_of::<ChannelLink>();
                std::mem::take(&mut extra.other_links)
            }
            None => Vec::new(),
        };
        if !beat.is_none()
            && let Some(moved) = self.heartbeats.remove(beat)
        {
            self.update_heartbeat_position(moved);
        }
        for link in [first].into_iter().chain(others) {
            if link.channel_slot != u32::MAX {
                self.leave_channel_list(link);
            }
        }
        self.shared.bus_notifier.notify();
    }

    fn leave_channel_list(&mut self, link: ChannelLink) {
        let Some(local) = self.channels.get_mut(link.channel_slot) else {
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
            && let Some((other, _)) = held.channel_link_mut(link.channel_slot)
        {
            other.position = link.position;
        }
        let channel = local.channel.clone();
        let number = self.number;
        let mut is_last = false;
        self.shared.remove_subscriber(&channel, |state| {
            let shards = &mut state.subscribed_shards;
            if let Some(found) = shards.iter().position(|entry| entry.shard == number) {
                shards[found].subscriber_count -= 1;
                is_last = shards[found].subscriber_count == 0;
                if is_last {
                    shards.swap_remove(found);
                }
            }
        });
        if is_last {
            self.abandon_channel(link.channel_slot);
        }
    }

    pub(super) fn update_heartbeat_position(&mut self, moved: HeartbeatRingMember) {
        if let Some(held) = self.streams.get_mut(moved.stream) {
            held.heartbeat_position = moved.position;
        }
    }

    /// Looks at a stream again when it may have taken nothing for too long.
    pub(super) fn schedule_stall_check(&mut self, stream: u32) {
        let due = self
            .now_tick
            .saturating_add(self.to_ticks(self.settings.send_timeout));
        let Some(held) = self.streams.get_mut(stream) else {
            return;
        };
        if !std::mem::replace(&mut held.is_stall_checked, true) {
            let token = held.poll_token(stream);
            self.stall_checks.push(Reverse((due, token)));
        }
    }

    /// Ends a stream when it has lived for so long.
    pub(super) fn schedule_end(&mut self, stream: u32, lifetime: Duration) {
        let due = self.now_tick.saturating_add(self.to_ticks(lifetime));
        let Some(held) = self.streams.get(stream) else {
            return;
        };
        let token = held.poll_token(stream);
        self.lifetimes.push(Reverse((due, token)));
        self.note_transfer_lifetime(token, due);
        // Streams that left before their time leave theirs here: no more than there are streams.
        if self.lifetimes.len() > 2 * self.streams.len() + 64 {
            let lifetimes = std::mem::take(&mut self.lifetimes).into_vec();
            let alive = lifetimes.into_iter();
            let alive = alive.filter(|Reverse((_, token))| self.is_current_token(*token));
            self.lifetimes = alive.collect();
        }
    }

    /// Ends, at most `budget`, what has lived long enough, and what has taken nothing for too long.
    pub(super) fn close_expired(&mut self, budget: usize) {
        for _ in 0..budget {
            let Some(token) = pop_due(&mut self.stall_checks, self.now_tick) else {
                break;
            };
            self.check_stalled(token);
        }
        for _ in 0..budget {
            let Some(token) = pop_due(&mut self.lifetimes, self.now_tick) else {
                return;
            };
            if self.is_current_token(token) {
                self.end_stream_gracefully(slot_of_token(token));
            }
        }
    }

    fn check_stalled(&mut self, token: u64) {
        let stream = slot_of_token(token);
        let stall = self.to_ticks(self.settings.send_timeout);
        let Some(held) = self.streams.get_mut(stream) else {
            return;
        };
        if held.poll_token(stream) != token {
            return;
        }
        held.is_stall_checked = false;
        let Some(backlog) = &held.backlog else {
            return;
        };
        let due = backlog.last_progress_tick.saturating_add(stall);
        if due <= self.now_tick {
            self.close_stream(stream, CloseReason::Slow);
        } else {
            held.is_stall_checked = true;
            self.stall_checks.push(Reverse((due, token)));
        }
    }

    fn is_current_token(&self, token: u64) -> bool {
        let stream = slot_of_token(token);
        let held = self.streams.get(stream);
        held.is_some_and(|held| held.poll_token(stream) == token)
    }

    pub(super) fn begin_drain(&mut self, over: Duration) {
        self.drain = Some(DrainProgress {
            started_at: self.now_tick,
            duration_ticks: self.to_ticks(over),
            stream_count: self.streams.len() as u64,
            ended: 0,
            next_slot: 0,
        });
    }

    /// Ends as many streams, at most `budget`, as are to be ended by now.
    pub(super) fn drain_streams(&mut self, budget: usize) {
        let Some(mut ending) = self.drain.take() else {
            return;
        };
        let target = ending.target_by(self.now_tick);
        for _ in 0..budget {
            if ending.ended >= target && target < ending.stream_count {
                break;
            }
            let Some(stream) = self.streams.next_occupied_from(ending.next_slot) else {
                return;
            };
            ending.next_slot = stream + 1;
            ending.ended += 1;
            if !self.moves_to_other_process(stream) {
                self.end_stream_gracefully(stream);
            }
        }
        self.drain = Some(ending);
    }

    /// The tick when the drain ends the next stream.
    pub(super) fn next_drain_tick(&self) -> Option<u32> {
        let ending = self.drain.as_ref()?;
        let is_behind = ending.ended < ending.target_by(self.now_tick)
            || ending.target_by(self.now_tick) >= ending.stream_count;
        Some(if is_behind {
            self.now_tick
        } else {
            self.now_tick + 1
        })
    }
}

/// Takes the first token off a queue, if it is due.
fn pop_due(queue: &mut BinaryHeap<Reverse<(u32, u64)>>, now: u32) -> Option<u64> {
    let next = queue.peek_mut()?;
    let Reverse((due, token)) = *next;
    (due <= now).then(|| PeekMut::pop(next)).map(|_| token)
}
