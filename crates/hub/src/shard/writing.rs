//! What is written to a stream, and what waits where the socket takes no more.
//!
//! What must stay true: one write is one `send`, without waiting; a stream whose socket is full gets a
//! backlog within its own bound and that of all, and loses whole messages or its connection by
//! `hub.slow`; whoever lost something is told with its notice, if it has one, before anything that comes
//! later.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;

use bytes::Bytes;
use penstock_http::{LAST_CHUNK, sse};
use penstock_runtime::pollset::Interest;
use penstock_sys::net;

use super::backlog::{Backlog, Kind, Piece, Room, SLICES_MAX};
use super::ending::Gone;
use super::streams::{Flags, Held};
use super::{GAP_NONE, GAPS_MAX, Shard};
use crate::channel::Shape;
use crate::counts;
use crate::{SlowPolicy, StreamForm};

/// A notice that many streams have: something is missing.
#[derive(Debug)]
pub(super) struct Gap {
    bytes: Bytes,
    chunked: Bytes,
    /// How many streams have it; without any it gives way to another.
    streams: usize,
}

/// The event that says so to a client that named the last message it knew.
const GAP_EVENT: &str = "gap";

/// A stream may have so small a part of what is left for all.
const SHARE_OF_REST: usize = 16;

/// A notice longer than this is a stream's own.
const GAP_BYTES_MAX: usize = 256;

impl Shard {
    /// Sends a piece to a stream, or lets it wait. Whether all of it is out.
    pub(super) fn write(&mut self, stream: u32, piece: Piece) -> bool {
        let Some(held) = self.streams.get_mut(stream) else {
            return false;
        };
        if held.backlog.is_some() {
            self.queue(stream, piece);
            return false;
        }
        let sent = send(held, &piece.bytes);
        self.sent_bytes += *sent.as_ref().unwrap_or(&0);
        match sent {
            Ok(written) if written == piece.bytes.len() => {
                held.sent = self.now;
                self.done.delivered += u64::from(piece.messages);
                return true;
            }
            Ok(written) => {
                held.sent = self.now;
                self.keep(stream, piece, written);
            }
            Err(_) => self.close(stream, Gone::Broken),
        }
        false
    }

    /// The first piece that waits; `written` bytes of it are out.
    fn keep(&mut self, stream: u32, mut piece: Piece, written: usize) {
        let mut backlog = Box::new(Backlog::new(self.now));
        // What has begun is finished, and what ends a body is a few bytes.
        let must = written > 0 || piece.kind != Kind::Live;
        if !must && piece.bytes.len() > self.room().all {
            if piece.messages == 0 {
                return;
            }
            if self.settings.slow == SlowPolicy::Disconnect {
                self.close(stream, Gone::Slow);
                return;
            }
            self.done.dropped += u64::from(piece.messages);
            // The notice takes its place and waits: a few bytes, mostly shared.
            let held = self.streams.get(stream);
            let Some(gap) = held.and_then(|held| self.gap_of(held)) else {
                return;
            };
            piece = Piece::gap(gap.clone());
        }
        let Some(held) = self.streams.get_mut(stream) else {
            return;
        };
        backlog.push(piece, written);
        counts::change(&self.shared.tally.backlog_bytes, 0, backlog.bytes());
        held.backlog = Some(backlog);
        self.wait_for_room(stream, true);
        self.watch(stream);
    }

    /// One more piece behind what waits.
    fn queue(&mut self, stream: u32, piece: Piece) {
        let room = self.room();
        let gap = self.streams.get(stream).and_then(|held| self.gap_of(held));
        let gap = gap.cloned();
        let Some(held) = self.streams.get_mut(stream) else {
            return;
        };
        let Some(backlog) = &mut held.backlog else {
            return;
        };
        let before = backlog.bytes();
        if piece.kind != Kind::Live {
            backlog.push(piece, 0);
        } else if self.settings.slow == SlowPolicy::DropOldest {
            let dropped = backlog.push_dropping(piece, room, gap.as_ref());
            self.done.dropped += u64::from(dropped);
        } else if backlog.has_room(&piece, room) {
            backlog.push(piece, 0);
        } else {
            self.close(stream, Gone::Slow);
            return;
        }
        let after = backlog.bytes();
        counts::change(&self.shared.tally.backlog_bytes, before, after);
    }

    /// Sends what waits, as far as the socket takes it.
    pub(super) fn flush(&mut self, stream: u32) {
        let Some(held) = self.streams.get_mut(stream) else {
            return;
        };
        let Some(backlog) = &mut held.backlog else {
            return;
        };
        let before = backlog.bytes();
        let sent = send_waiting(held.socket.as_fd(), backlog, self.now);
        let after = backlog.bytes();
        self.sent_bytes += before - after;
        counts::change(&self.shared.tally.backlog_bytes, before, after);
        let Ok(completed) = sent else {
            self.close(stream, Gone::Broken);
            return;
        };
        if after < before {
            held.sent = self.now;
        }
        self.done.delivered += completed;
        if after == 0 {
            held.backlog = None;
            if held.is.has(Flags::ENDING) {
                self.finish(stream);
            } else {
                self.wait_for_room(stream, false);
            }
        }
    }

    /// Whether the loop is to say when the socket takes something again.
    fn wait_for_room(&mut self, stream: u32, waits: bool) {
        let Some(held) = self.streams.get(stream) else {
            return;
        };
        let interest = if waits {
            Interest::Both
        } else {
            Interest::Read
        };
        let token = held.token(stream);
        if let Err(e) = self.pollset.modify(held.socket.as_fd(), token, interest) {
            log::error!("hub: the kernel does not watch a stream's socket: {e}");
            self.close(stream, Gone::Broken);
        }
    }

    /// The end of the body, behind what waits.
    pub(super) fn last_piece(&mut self, stream: u32) {
        let is_chunked = self
            .streams
            .get(stream)
            .is_some_and(|held| held.shape.is_chunked());
        if is_chunked {
            let piece = Piece {
                bytes: Bytes::from_static(LAST_CHUNK),
                messages: 0,
                kind: Kind::End,
            };
            self.write(stream, piece);
        }
    }

    /// Visits streams whose heart-beat may be due, about `budget` of them.
    pub(super) fn beat(&mut self, budget: usize) {
        for _ in 0..budget {
            let Some(visit) = self.beats.next_visit(self.now) else {
                return;
            };
            let Some(held) = self.streams.get(visit.stream) else {
                continue;
            };
            let own = held.extra.as_ref().and_then(|extra| extra.beat.as_ref());
            let regardless = match own {
                Some(own) => own.regardless,
                None => self.beats.is_regardless(visit.at),
            };
            // Who has not taken what waits for it needs no beat behind that.
            if held.backlog.is_some() {
                continue;
            }
            if !regardless {
                let idle = self.now.saturating_sub(held.sent);
                if let Err(moved) = self.beats.is_due(visit, idle) {
                    moved
                        .into_iter()
                        .flatten()
                        .for_each(|moved| self.moved(moved));
                    continue;
                }
            }
            let bytes = match own {
                Some(own) => Some(&own.framed),
                None => self.beats.bytes_of(visit.at, held.shape),
            };
            if let Some(bytes) = bytes.cloned() {
                let is_out = self.write(visit.stream, Piece::live(bytes, 0));
                self.done.beats += u64::from(is_out);
            }
        }
    }

    /// What may wait for a stream now.
    pub(super) fn room(&self) -> Room {
        let all = self.settings.backlogs_bytes;
        let waiting = self.shared.tally.backlog_bytes.load(Ordering::Relaxed);
        let all = all.saturating_sub(waiting);
        // The less is left, the less may wait for each: streams that take nothing leave some for the others.
        let own = self.settings.backlog_bytes.min(all / SHARE_OF_REST);
        Room { own, all }
    }

    /// The number of a notice for one more stream that has it; none if streams have too many others, or it
    /// is long.
    pub(super) fn known_gap(&mut self, bytes: &Bytes) -> Option<u8> {
        let known = self.gaps.iter().position(|gap| gap.bytes == *bytes);
        let found = known.or_else(|| self.new_gap(bytes))?;
        let number = u8::try_from(found).ok()?;
        self.gaps[found].streams += 1;
        Some(number)
    }

    /// The place of a notice that was not known yet.
    fn new_gap(&mut self, bytes: &Bytes) -> Option<usize> {
        if bytes.len() > GAP_BYTES_MAX {
            return None;
        }
        let unused = self.gaps.iter().position(|gap| gap.streams == 0);
        if unused.is_none() && self.gaps.len() >= GAPS_MAX {
            return None;
        }
        let gap = Gap {
            // A copy, so that it keeps nothing larger alive.
            bytes: Bytes::copy_from_slice(bytes),
            chunked: Shape::CHUNKED.frame(bytes.clone()),
            streams: 0,
        };
        match unused {
            Some(unused) => {
                self.gaps[unused] = gap;
                Some(unused)
            }
            None => {
                self.gaps.push(gap);
                Some(self.gaps.len() - 1)
            }
        }
    }

    /// A stream that has this notice is gone.
    pub(super) fn leave_gap(&mut self, number: u8) {
        if let Some(gap) = self.gaps.get_mut(usize::from(number)) {
            gap.streams -= 1;
        }
    }

    /// The notice for a stream that begins behind a message which nobody knows any more: of events, with
    /// that message's id, which is in no stream's memory.
    pub(super) fn gap_behind(&self, held: &Held, id: Option<&str>) -> Option<Bytes> {
        let gap = self.gap_of(held)?;
        let Some(id) = id.filter(|_| held.shape.form() == StreamForm::Events) else {
            return Some(gap.clone());
        };
        let mut event = Vec::new();
        sse::encode_event(&mut event, Some(GAP_EVENT), None, id);
        Some(held.shape.frame(event.into()))
    }

    /// The notice of a stream, framed.
    pub(super) fn gap_of<'a>(&'a self, held: &'a Held) -> Option<&'a Bytes> {
        if held.gap == GAP_NONE {
            return held.extra.as_ref()?.gap.as_ref();
        }
        let gap = self.gaps.get(usize::from(held.gap))?;
        Some(if held.shape.is_chunked() {
            &gap.chunked
        } else {
            &gap.bytes
        })
    }
}

/// Sends what waits, as far as the socket takes it; how many messages that completes.
pub(super) fn send_waiting(
    socket: BorrowedFd<'_>,
    backlog: &mut Backlog,
    now: u32,
) -> io::Result<u64> {
    let mut completed = 0;
    while !backlog.is_empty() {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let count = backlog.slices(&mut slices);
        let wanted: usize = slices[..count].iter().map(|slice| slice.len()).sum();
        match net::send_vectored(socket, &slices[..count]) {
            Ok(written) => {
                completed += u64::from(backlog.advance(written, now));
                // Less than all of it: the socket is full, and room raises an event.
                if written < wanted {
                    break;
                }
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(completed)
}

/// As much of `bytes` as the socket takes now.
fn send(held: &Held, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match net::send(held.socket.as_fd(), bytes) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(0),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}
