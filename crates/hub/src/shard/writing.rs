//! Writes messages and heartbeats to a stream, and its backlog where the socket accepts no more. When it accepts more,
//! `closing` continues the backlog (`Shard::handle_events`).
//!
//! # Invariants
//! - A write is one `send`, without waiting.
//! - A stream with a full socket gets a backlog within its own bound and the bound of all, and
//!   loses whole messages or its connection by `hub.slow_policy`.
//! - A stream that lost messages gets its gap notice, if it has one, before anything later.

use std::io::{self, IoSlice};
use std::sync::atomic::Ordering;

use bytes::Bytes;
use penstock_exchange::HeldConnectionMut;
use penstock_http::LAST_CHUNK;
use penstock_runtime::pollset::Interest;

use super::backlog::{Backlog, BacklogPiece, BacklogRoom, MAX_IO_SLICES, PieceKind};
use super::closing::CloseReason;
use super::live_stream::LiveStream;
use super::{MAX_SHARED_GAP_NOTICES, NO_GAP_NOTICE, Shard};
use crate::channel::StreamFormat;
use crate::counters;
use crate::hub_route::gap_event_after;
use crate::{SlowPolicy, StreamForm, return_schedule};

/// A gap notice that streams share.
#[derive(Debug)]
pub(super) struct GapNotice {
    bytes: Bytes,
    chunked: Bytes,
    /// How many streams have it; an unused one may be replaced.
    stream_count: usize,
}

/// The part that a stream may have of the room that is left for all.
const STREAM_SHARE_DIVISOR: usize = 16;

/// A notice longer than this is a stream's own.
const MAX_SHARED_GAP_BYTES: usize = 256;

impl Shard {
    /// Sends a piece to a stream, or lets it wait. Whether all of it is out.
    pub(super) fn write(&mut self, stream: u32, piece: BacklogPiece) -> bool {
        let Some(held) = self.streams.get_mut(stream) else {
            return false;
        };
        if held.backlog.is_some() {
            self.append_backlog(stream, piece);
            return false;
        }
        let sent = send_some(held, &piece.bytes);
        self.sent_bytes += *sent.as_ref().unwrap_or(&0);
        match sent {
            Ok(written) if written == piece.bytes.len() => {
                held.last_sent_tick = self.now_tick;
                self.turn_counts.delivered += u64::from(piece.messages);
                if held.connection().unsent_bytes() > 0 {
                    self.watch_unsent(stream);
                }
                return true;
            }
            Ok(written) => {
                held.last_sent_tick = self.now_tick;
                self.start_backlog(stream, piece, written);
            }
            Err(_) => self.close_stream(stream, CloseReason::ConnectionError),
        }
        false
    }

    /// Waits for room for what a session has sealed and the socket has not taken.
    pub(super) fn watch_unsent(&mut self, stream: u32) {
        let Some(held) = self.streams.get_mut(stream) else {
            return;
        };
        if held.backlog.is_none() && held.connection().unsent_bytes() > 0 {
            self.install_backlog(stream, Backlog::new(self.now_tick));
        }
    }

    /// Lets a backlog wait until the socket has room.
    fn install_backlog(&mut self, stream: u32, mut backlog: Backlog) {
        let Some(held) = self.streams.get_mut(stream) else {
            return;
        };
        backlog.set_sealed_bytes(held.connection().unsent_bytes(), self.now_tick);
        let bytes = backlog.memory_bytes();
        counters::adjust_counter(&self.shared.metrics.backlog_bytes, 0, bytes);
        held.backlog = Some(Box::new(backlog));
        self.set_write_interest(stream, true);
        self.schedule_stall_check(stream);
    }

    /// The first piece that waits; `written` bytes of it are out.
    fn start_backlog(&mut self, stream: u32, mut piece: BacklogPiece, written: usize) {
        let mut backlog = Backlog::new(self.now_tick);
        // A begun piece is finished, and the end of a body is a few bytes.
        let must = written > 0 || piece.kind != PieceKind::Message;
        if !must && piece.bytes.len() > self.backlog_room().total_bytes {
            if piece.messages == 0 {
                return;
            }
            if self.settings.slow_policy == SlowPolicy::Disconnect {
                self.close_stream(stream, CloseReason::Slow);
                return;
            }
            self.turn_counts.dropped += u64::from(piece.messages);
            // The notice takes its place and waits: a few bytes, mostly shared.
            let held = self.streams.get(stream);
            let Some(gap) = held.and_then(|held| self.gap_notice_of(held)) else {
                return;
            };
            piece = BacklogPiece::gap_notice(gap.clone());
        }
        backlog.push(piece, written);
        self.install_backlog(stream, backlog);
    }

    /// One more piece behind what waits.
    fn append_backlog(&mut self, stream: u32, piece: BacklogPiece) {
        let room = self.backlog_room();
        let held = self.streams.get(stream);
        let gap = held.and_then(|held| self.gap_notice_of(held)).cloned();
        let Some(held) = self.streams.get_mut(stream) else {
            return;
        };
        let Some(backlog) = &mut held.backlog else {
            return;
        };
        let before = backlog.memory_bytes();
        if piece.kind != PieceKind::Message {
            backlog.push(piece, 0);
        } else if self.settings.slow_policy == SlowPolicy::DropOldest {
            let dropped = backlog.push_dropping_oldest(piece, room, gap.as_ref());
            self.turn_counts.dropped += u64::from(dropped);
        } else if backlog.has_room(&piece, room) {
            backlog.push(piece, 0);
        } else {
            self.close_stream(stream, CloseReason::Slow);
            return;
        }
        let after = backlog.memory_bytes();
        counters::adjust_counter(&self.shared.metrics.backlog_bytes, before, after);
    }

    /// Sends what waits, as far as the socket takes it.
    pub(super) fn flush_backlog(&mut self, stream: u32) {
        let Some(held) = self.streams.get_mut(stream) else {
            return;
        };
        let Some(backlog) = &mut held.backlog else {
            return;
        };
        let before = backlog.memory_bytes();
        let mut connection = HeldConnectionMut::new(&held.socket, &mut held.records);
        let sent = send_backlog(&mut connection, backlog, self.now_tick);
        let after = backlog.memory_bytes();
        self.sent_bytes += before.saturating_sub(after);
        counters::adjust_counter(&self.shared.metrics.backlog_bytes, before, after);
        let Ok(completed) = sent else {
            self.close_stream(stream, CloseReason::ConnectionError);
            return;
        };
        if after < before {
            held.last_sent_tick = self.now_tick;
        }
        self.turn_counts.delivered += completed;
        if backlog.is_done() {
            held.backlog = None;
            if held.is_ending {
                self.finish_stream(stream);
            } else {
                self.set_write_interest(stream, false);
            }
        }
    }

    /// Whether the loop is to say when the socket takes something again.
    fn set_write_interest(&mut self, stream: u32, waits: bool) {
        let Some(held) = self.streams.get(stream) else {
            return;
        };
        let interest = if waits {
            Interest::Both
        } else {
            Interest::Read
        };
        let token = held.poll_token(stream);
        if let Err(e) = held
            .socket
            .modify_in_pollset(&self.pollset, token, interest)
        {
            log::error!("hub: the kernel does not watch a stream's socket: {e}");
            self.close_stream(stream, CloseReason::ConnectionError);
        }
    }

    /// The end of the body, behind what waits. A client whose stream of events ends in a drain is
    /// asked when to return.
    pub(super) fn write_body_end(&mut self, stream: u32) {
        let Some(format) = self.streams.get(stream).map(|held| held.format) else {
            return;
        };
        let last: &'static [u8] = if format.is_chunked { LAST_CHUNK } else { b"" };
        let is_events = format.message_format == StreamForm::Events;
        let delay = is_events.then(|| self.shared.next_drain_return_delay());
        let bytes = match delay.flatten() {
            Some(delay) => {
                let retry = format.apply_framing(return_schedule::retry_event(delay));
                [&retry[..], last].concat().into()
            }
            None => Bytes::from_static(last),
        };
        if !bytes.is_empty() {
            let piece = BacklogPiece {
                bytes,
                messages: 0,
                kind: PieceKind::BodyEnd,
            };
            self.write(stream, piece);
        }
    }

    /// Visits streams that may be due for a heartbeat, about `budget` of them.
    pub(super) fn send_heartbeats(&mut self, budget: usize) {
        for _ in 0..budget {
            let Some(visit) = self.heartbeats.next_due_stream(self.now_tick) else {
                return;
            };
            let Some(held) = self.streams.get(visit.stream) else {
                continue;
            };
            let own = held
                .extras
                .as_ref()
                .and_then(|extra| extra.own_heartbeat.as_ref());
            let regardless = match own {
                Some(own) => own.is_unconditional,
                None => self.heartbeats.is_unconditional(visit.position),
            };
            // A stream with a backlog needs no heartbeat behind it.
            if held.backlog.is_some() {
                continue;
            }
            if !regardless {
                let idle = self.now_tick.saturating_sub(held.last_sent_tick);
                if let Err(moved) = self.heartbeats.check_due_or_reschedule(visit, idle) {
                    moved
                        .into_iter()
                        .flatten()
                        .for_each(|moved| self.update_heartbeat_position(moved));
                    continue;
                }
            }
            let bytes = match own {
                Some(own) => Some(&own.framed_bytes),
                None => self.heartbeats.heartbeat_bytes(visit.position, held.format),
            };
            if let Some(bytes) = bytes.cloned() {
                let is_out = self.write(visit.stream, BacklogPiece::message(bytes, 0));
                self.turn_counts.heartbeats += u64::from(is_out);
            }
        }
    }

    /// What may wait for a stream now.
    pub(super) fn backlog_room(&self) -> BacklogRoom {
        let all = self.settings.max_backlog_total;
        let waiting = self.shared.metrics.backlog_bytes.load(Ordering::Relaxed);
        let all = all.saturating_sub(waiting);
        // The less is left, the less may wait for each: streams that take nothing leave some for
        // the others.
        let own = self.settings.max_backlog.min(all / STREAM_SHARE_DIVISOR);
        BacklogRoom {
            stream_bytes: own,
            total_bytes: all,
        }
    }

    /// Takes a reference to a shared notice and returns its number; `None` if there are too many
    /// others, or it is long.
    pub(super) fn acquire_gap_notice(&mut self, bytes: &Bytes) -> Option<u8> {
        let known = self.gap_notices.iter().position(|gap| gap.bytes == *bytes);
        let found = known.or_else(|| self.add_gap_notice(bytes))?;
        let number = u8::try_from(found).ok()?;
        self.gap_notices[found].stream_count += 1;
        Some(number)
    }

    /// Adds a new notice; returns its index.
    fn add_gap_notice(&mut self, bytes: &Bytes) -> Option<usize> {
        if bytes.len() > MAX_SHARED_GAP_BYTES {
            return None;
        }
        let unused = self
            .gap_notices
            .iter()
            .position(|gap| gap.stream_count == 0);
        if unused.is_none() && self.gap_notices.len() >= MAX_SHARED_GAP_NOTICES {
            return None;
        }
        let gap = GapNotice {
            // A copy, so that it keeps nothing larger alive.
            bytes: Bytes::copy_from_slice(bytes),
            chunked: StreamFormat::CHUNKED_EVENTS.apply_framing(bytes.clone()),
            stream_count: 0,
        };
        match unused {
            Some(unused) => {
                self.gap_notices[unused] = gap;
                Some(unused)
            }
            None => {
                self.gap_notices.push(gap);
                Some(self.gap_notices.len() - 1)
            }
        }
    }

    /// Releases a reference that [`Self::acquire_gap_notice`] took.
    pub(super) fn release_gap_notice(&mut self, number: u8) {
        if let Some(gap) = self.gap_notices.get_mut(usize::from(number)) {
            gap.stream_count -= 1;
        }
    }

    /// The notice for a stream that begins behind a message that is no longer known: of events,
    /// with that message's id, which is in no stream's memory.
    pub(super) fn resume_gap_notice(&self, held: &LiveStream, id: Option<&str>) -> Option<Bytes> {
        let gap = self.gap_notice_of(held)?;
        let Some(id) = id.filter(|_| held.format.message_format == StreamForm::Events) else {
            return Some(gap.clone());
        };
        Some(held.format.apply_framing(gap_event_after(id).into()))
    }

    /// The notice of a stream, framed.
    pub(super) fn gap_notice_of<'a>(&'a self, held: &'a LiveStream) -> Option<&'a Bytes> {
        if held.gap_notice == NO_GAP_NOTICE {
            return held.extras.as_ref()?.gap_notice.as_ref();
        }
        let gap = self.gap_notices.get(usize::from(held.gap_notice))?;
        Some(if held.format.is_chunked {
            &gap.chunked
        } else {
            &gap.bytes
        })
    }
}

/// Sends what waits, as far as the socket takes it; how many messages that completes.
pub(super) fn send_backlog(
    connection: &mut HeldConnectionMut<'_>,
    backlog: &mut Backlog,
    now: u32,
) -> io::Result<u64> {
    let sent = send_pieces(connection, backlog, now);
    backlog.set_sealed_bytes(connection.unsent_bytes(), now);
    sent
}

fn send_pieces(
    connection: &mut HeldConnectionMut<'_>,
    backlog: &mut Backlog,
    now: u32,
) -> io::Result<u64> {
    let mut completed = 0;
    if !connection.flush()? {
        return Ok(completed);
    }
    while !backlog.is_empty() {
        let mut slices = [IoSlice::new(&[]); MAX_IO_SLICES];
        let count = backlog.fill_io_slices(&mut slices);
        let wanted: usize = slices[..count].iter().map(|slice| slice.len()).sum();
        match connection.try_write(&slices[..count]) {
            Ok(written) => {
                completed += u64::from(backlog.mark_written(written, now));
                // Less than all of it: the socket is full, and room raises an event.
                if written < wanted {
                    break;
                }
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
            Err(e) => return Err(e),
        }
    }
    Ok(completed)
}

/// As much of `bytes` as the socket takes now.
fn send_some(held: &mut LiveStream, bytes: &[u8]) -> io::Result<usize> {
    match held.connection().try_write(&[IoSlice::new(bytes)]) {
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(0),
        done => done,
    }
}
