//! The bytes that wait for a stream with a full socket.
//!
//! Pure. Made when a write is not accepted whole, dropped when all is written: a stream that keeps
//! up has none.
//!
//! # Invariants
//! - Bytes leave in the order in which they were added.
//! - A piece that is partly written is never dropped, so framing stays correct.
//! - A backlog is bounded, or the stream is ended.
//! - Records of TLS that wait for the socket are in the session (`SealedRecords`) and are counted
//!   here.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::Bytes;

#[derive(Debug, Default)]
pub(super) struct Backlog {
    pieces: VecDeque<BacklogPiece>,
    /// How much of the first piece is out.
    offset: usize,
    /// The size of all pieces.
    memory_bytes: usize,
    /// Of that, what may be dropped or counts against the stream's own bound.
    message_bytes: usize,
    /// Records that were sealed and that the socket has not taken, before all pieces.
    sealed_bytes: usize,
    /// The tick when it last got shorter, or began.
    pub(super) last_progress_tick: u32,
}

/// Some bytes that go out together or not at all.
#[derive(Debug, Clone)]
pub(crate) struct BacklogPiece {
    pub(super) bytes: Bytes,
    pub(super) messages: u32,
    pub(super) kind: PieceKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PieceKind {
    /// Messages as they come.
    Message,
    /// What the stream began with: its bytes are shared with the history, and it stays.
    Initial,
    /// A notice that something is missing.
    GapNotice,
    /// The end of the body.
    BodyEnd,
}

/// What a new piece may take, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct BacklogRoom {
    /// For this stream.
    pub(super) stream_bytes: usize,
    /// For all streams together, as far as it is free.
    pub(super) total_bytes: usize,
}

/// What a piece costs beside its bytes, which it mostly shares.
const PIECE_OVERHEAD: usize = size_of::<BacklogPiece>() + 16;

/// Pieces that go out with one call.
pub(super) const MAX_IO_SLICES: usize = 16;

impl BacklogPiece {
    pub(super) fn message(bytes: Bytes, messages: u32) -> Self {
        Self {
            bytes,
            messages,
            kind: PieceKind::Message,
        }
    }

    pub(super) fn gap_notice(bytes: Bytes) -> Self {
        Self {
            bytes,
            messages: 0,
            kind: PieceKind::GapNotice,
        }
    }

    fn cost(&self) -> usize {
        self.bytes.len() + PIECE_OVERHEAD
    }
}

impl Backlog {
    pub(super) fn new(now: u32) -> Self {
        Self {
            last_progress_tick: now,
            ..Self::default()
        }
    }

    /// Adds a piece whatever waits already: what a stream begins and ends with, and the rest of a
    /// write that was taken in part (`offset` bytes of it are out).
    pub(super) fn push(&mut self, piece: BacklogPiece, offset: usize) {
        debug_assert!(offset == 0 || self.pieces.is_empty());
        self.memory_bytes += piece.cost();
        if piece.kind == PieceKind::Message {
            self.message_bytes += piece.cost();
        }
        self.offset = self.offset.max(offset);
        self.pieces.push_back(piece);
    }

    /// Whether a piece of so many bytes has room behind what waits.
    pub(super) fn has_room(&self, piece: &BacklogPiece, room: BacklogRoom) -> bool {
        piece.cost() <= room.total_bytes && self.message_bytes + piece.cost() <= room.stream_bytes
    }

    /// Adds a piece, dropping the oldest messages of which nothing is out to make room for it;
    /// where they were, `gap` stands. How many messages were dropped, which may be the new ones.
    pub(super) fn push_dropping_oldest(
        &mut self,
        piece: BacklogPiece,
        room: BacklogRoom,
        gap: Option<&Bytes>,
    ) -> u32 {
        let before = self.memory_bytes;
        let mut dropped = 0;
        let mut position = None;
        while !self.has_room(&piece, self.room_left(room, before)) {
            let Some(oldest) = self.oldest_message() else {
                break;
            };
            if let Some(lost) = self.pieces.remove(oldest) {
                self.memory_bytes -= lost.cost();
                self.message_bytes -= lost.cost();
                dropped += lost.messages;
                // A heartbeat is no loss.
                if lost.messages > 0 {
                    position = position.or(Some(oldest));
                }
            }
        }
        // The only message that waits may be larger than the bound of its stream, never that of
        // all.
        let left = self.room_left(room, before);
        let has_room = self.has_room(&piece, left)
            || self.oldest_message().is_none() && piece.cost() <= left.total_bytes;
        if has_room {
            self.push(piece, 0);
        } else {
            dropped += piece.messages;
            if piece.messages > 0 {
                position = position.or(Some(self.pieces.len()));
            }
        }
        if let (Some(position), Some(gap)) = (position, gap) {
            self.insert_gap_notice(position, gap);
        }
        dropped
    }

    /// Drops all messages of which nothing is out; where they were, `gap` stands. How many they
    /// were.
    pub(super) fn drop_messages(&mut self, gap: Option<&Bytes>) -> u32 {
        let started = usize::from(self.offset > 0);
        let rest = self.pieces.split_off(started.min(self.pieces.len()));
        let (mut dropped, mut position) = (0, None);
        for piece in rest {
            if piece.messages == 0 {
                self.pieces.push_back(piece);
                continue;
            }
            self.memory_bytes -= piece.cost();
            if piece.kind == PieceKind::Message {
                self.message_bytes -= piece.cost();
            }
            dropped += piece.messages;
            position = position.or(Some(self.pieces.len()));
        }
        if let (Some(position), Some(gap)) = (position, gap) {
            self.insert_gap_notice(position, gap);
        }
        dropped
    }

    /// Puts a notice where messages are missing, unless there is one.
    fn insert_gap_notice(&mut self, position: usize, gap: &Bytes) {
        let is_gap = |at: usize| {
            self.pieces
                .get(at)
                .is_some_and(|p| p.kind == PieceKind::GapNotice)
        };
        if is_gap(position) || position.checked_sub(1).is_some_and(is_gap) {
            return;
        }
        let notice = BacklogPiece::gap_notice(gap.clone());
        self.memory_bytes += notice.cost();
        self.pieces.insert(position, notice);
    }

    /// The room that is left of `room`, which was measured when `before` bytes waited here.
    fn room_left(&self, room: BacklogRoom, before: usize) -> BacklogRoom {
        BacklogRoom {
            stream_bytes: room.stream_bytes,
            total_bytes: (room.total_bytes + before).saturating_sub(self.memory_bytes),
        }
    }

    /// The oldest messages that may be dropped.
    fn oldest_message(&self) -> Option<usize> {
        let started = usize::from(self.offset > 0);
        let mut pieces = self.pieces.iter().enumerate().skip(started);
        pieces
            .find(|(_, piece)| piece.kind == PieceKind::Message)
            .map(|(index, _)| index)
    }

    /// Fills `into` with what goes out next; returns how many slices are filled.
    pub(super) fn fill_io_slices<'a>(&'a self, into: &mut [IoSlice<'a>; MAX_IO_SLICES]) -> usize {
        let mut count = 0;
        for (slice, piece) in into.iter_mut().zip(&self.pieces) {
            let from = if count == 0 { self.offset } else { 0 };
            *slice = IoSlice::new(&piece.bytes[from..]);
            count += 1;
        }
        count
    }

    /// So many bytes are out; how many messages that completes.
    pub(super) fn mark_written(&mut self, written: usize, now: u32) -> u32 {
        self.offset += written;
        if written > 0 {
            self.last_progress_tick = now;
        }
        let mut completed = 0;
        while let Some(first) = self.pieces.front() {
            if self.offset < first.bytes.len() {
                break;
            }
            self.offset -= first.bytes.len();
            self.memory_bytes -= first.cost();
            if first.kind == PieceKind::Message {
                self.message_bytes -= first.cost();
            }
            completed += first.messages;
            self.pieces.pop_front();
        }
        completed
    }

    /// What waits, without what is out of the first piece, which stays whatever happens.
    pub(super) fn unsent_pieces(&self) -> impl Iterator<Item = BacklogPiece> {
        self.pieces.iter().enumerate().map(|(index, piece)| {
            let mut piece = piece.clone();
            if index == 0 && self.offset > 0 {
                piece.bytes = piece.bytes.slice(self.offset..);
                // Its rest goes out whatever happens: nothing may stand in a begun chunk.
                piece.kind = PieceKind::Initial;
                piece.messages = 0;
            }
            piece
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Whether nothing waits, sealed or not.
    pub(super) fn is_done(&self) -> bool {
        self.pieces.is_empty() && self.sealed_bytes == 0
    }

    /// So many bytes of the pieces that are out are sealed and wait for the socket.
    pub(super) fn set_sealed_bytes(&mut self, sealed_bytes: usize, now: u32) {
        if sealed_bytes < self.sealed_bytes {
            self.last_progress_tick = now;
        }
        self.sealed_bytes = sealed_bytes;
    }

    /// The size of everything that waits.
    pub(super) fn memory_bytes(&self) -> usize {
        self.memory_bytes + self.sealed_bytes
    }
}

#[cfg(test)]
mod tests;
