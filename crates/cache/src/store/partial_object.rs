//! An object on its way in, as its readers have it: any number, each at its own pace.
//!
//! `filler` writes it. What it pushes is in memory as pieces until it is in the temporary file; a reader takes
//! a piece from memory, or reads the file where memory has gone on. An object that will not be kept
//! (too large, purged meanwhile, its disk failed) goes on for the readers it has: it takes no new ones,
//! and its pieces stay until the slowest has them, which holds the writer back.
//!
//! What must stay true: every reader gets every byte once and in order, then the end or a cut, never an
//! end that is not one; what is in memory is bounded; no lock is held across a wait.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use penstock_exchange::{BodyStream, Fault, FaultKind};
use penstock_runtime::clock;
use penstock_sys::file::read_at_if_cached;
use tokio::sync::Notify;

use super::disk::{Disk, DiskError, OperationKind};
use super::object_file::{TempFile, read_full};
use super::{MemoryBody, ObjectMeta};

/// Bytes read from the file at a time.
const READ_BYTES: u64 = 128 * 1024;

/// Bytes taken from the memory tier at a time.
const MEMORY_READ_BYTES: usize = 128 * 1024;

/// Small pieces are joined up to this size.
const JOIN_BYTES: usize = 4 * 1024;

/// An object on its way in, as its readers know it.
#[derive(Debug)]
pub(crate) struct PartialObject {
    meta: Arc<ObjectMeta>,
    declared_length: Option<u64>,
    state: Mutex<PartialState>,
    /// Nobody reads it and it will not be kept.
    pub(super) unneeded: Notify,
    /// The store's gauge of such memory; ours goes with us.
    memory_gauge: Arc<AtomicU64>,
    disk: Option<Arc<Disk>>,
}

/// What is there of it.
#[derive(Debug, Default)]
pub(super) struct PartialState {
    /// Pieces, each with the position of its first byte; without a gap up to `total`.
    pieces: VecDeque<(u64, Bytes)>,
    pieces_bytes: u64,
    /// Bytes that were pushed.
    pub(super) total: u64,
    /// The file and how much of the body is in it.
    pub(super) file: Option<Arc<TempFile>>,
    pub(super) written_bytes: u64,
    pub(super) end: Option<BodyEnd>,
    /// It will not be kept.
    pub(super) is_discarded: bool,
    /// Held whole by the memory tier: it is found there.
    pub(super) is_in_memory_tier: bool,
    /// The whole body, when the memory tier has it.
    memory_body: Option<MemoryBody>,
    readers: Vec<Option<ReaderPosition>>,
    /// The writer waits for readers to go on.
    pub(super) writer_waker: Option<Waker>,
}

/// How it ended.
#[derive(Debug, Clone)]
pub(super) enum BodyEnd {
    /// Whole.
    Complete,
    /// Cut.
    Cut(FaultKind, Cow<'static, str>),
}

/// Where a reader is.
#[derive(Debug)]
struct ReaderPosition {
    position: u64,
    waker: Option<Waker>,
}

/// One reader of it.
pub(crate) struct PartialReader {
    partial: Arc<PartialObject>,
    index: usize,
    position: u64,
    /// Where it ends; none: with the body.
    end: Option<u64>,
    length: Option<u64>,
    pending_read: Option<PendingRead>,
}

type PendingRead = Pin<Box<dyn Future<Output = Result<Bytes, DiskError>> + Send>>;

impl PartialObject {
    pub(super) fn new(
        meta: Arc<ObjectMeta>,
        declared: Option<u64>,
        memory: Arc<AtomicU64>,
        disk: Option<Arc<Disk>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            meta,
            declared_length: declared,
            state: Mutex::default(),
            unneeded: Notify::new(),
            memory_gauge: memory,
            disk,
        })
    }

    /// What is known of it; its length is not.
    pub(crate) fn meta(&self) -> &Arc<ObjectMeta> {
        &self.meta
    }

    /// The declared length of its body.
    pub(crate) fn declared_length(&self) -> Option<u64> {
        self.declared_length
    }

    /// A reader of all of it.
    #[cfg(test)]
    pub(crate) fn reader(self: &Arc<Self>) -> Option<PartialReader> {
        self.reader_from(0, None)
    }

    /// A reader of `len` bytes from `start` on (to the end without `len`). None when it takes no more: it
    /// turned out too large, or its disk failed.
    pub(crate) fn reader_from(
        self: &Arc<Self>,
        start: u64,
        len: Option<u64>,
    ) -> Option<PartialReader> {
        let mut state = self.lock();
        if state.is_discarded {
            return None;
        }
        let place = ReaderPosition {
            position: start,
            waker: None,
        };
        let free = state.readers.iter().position(Option::is_none);
        let index = match free {
            Some(index) => {
                state.readers[index] = Some(place);
                index
            }
            None => {
                state.readers.push(Some(place));
                state.readers.len() - 1
            }
        };
        drop(state);
        Some(PartialReader {
            partial: Arc::clone(self),
            index,
            position: start,
            end: len.map(|len| start.saturating_add(len)),
            length: len.or_else(|| Some(self.declared_length?.saturating_sub(start))),
            pending_read: None,
        })
    }

    /// It will not be kept; those who read it go on.
    pub(crate) fn discard(&self) {
        let mut state = self.lock();
        state.is_discarded = true;
        self.trim(&mut state);
        let writer = state.writer_waker.take();
        drop(state);
        wake(writer);
    }

    /// Whether it may be kept.
    pub(super) fn may_be_kept(&self) -> bool {
        !self.lock().is_discarded
    }

    /// Whether it is to be found here: it may be kept, and is not found elsewhere already.
    pub(super) fn is_findable(&self) -> bool {
        let state = self.lock();
        !state.is_discarded
            && !state.is_in_memory_tier
            && !matches!(state.end, Some(BodyEnd::Cut(..)))
    }

    /// Adds a piece and wakes who waits for it.
    pub(super) fn push(&self, bytes: &[u8]) {
        let mut state = self.lock();
        let at = state.total;
        let joined = match state.pieces.back() {
            Some((from, last)) if last.len() + bytes.len() <= JOIN_BYTES => {
                Some((*from, [last, bytes].concat()))
            }
            _ => None,
        };
        match joined {
            Some((from, joined)) => {
                state.pieces.pop_back();
                state.pieces.push_back((from, joined.into()));
            }
            None => state.pieces.push_back((at, Bytes::copy_from_slice(bytes))),
        }
        state.total += bytes.len() as u64;
        state.pieces_bytes += bytes.len() as u64;
        self.memory_gauge.fetch_add(bytes.len() as u64, Relaxed);
        if state.is_discarded {
            self.trim(&mut state);
        }
        wake_readers(state);
    }

    /// It ended.
    pub(super) fn set_end(&self, end: BodyEnd) {
        let mut state = self.lock();
        if state.end.is_none() {
            state.end = Some(end);
        }
        wake_readers(state);
    }

    /// So much of the body is in `file`: memory may go on.
    pub(super) fn set_written(&self, file: &Arc<TempFile>, written: u64) {
        let mut state = self.lock();
        state.file = Some(Arc::clone(file));
        state.written_bytes = written;
        self.trim(&mut state);
        wake_readers(state);
    }

    /// The whole body, which is accounted for elsewhere: it takes the place of all pieces.
    pub(super) fn set_memory_body(&self, body: MemoryBody) {
        let mut state = self.lock();
        self.memory_gauge.fetch_sub(state.pieces_bytes, Relaxed);
        state.pieces_bytes = 0;
        state.pieces.clear();
        state.memory_body = Some(body);
    }

    /// Pieces from position `from` on.
    pub(super) fn pieces_from(&self, from: u64) -> Vec<Bytes> {
        let state = self.lock();
        if let Some(held) = &state.memory_body {
            let rest = held.part(from, usize::MAX);
            return if rest.is_empty() { vec![] } else { vec![rest] };
        }
        let first = state
            .pieces
            .partition_point(|(at, piece)| at + piece.len() as u64 <= from);
        let pieces = state.pieces.iter().skip(first);
        pieces
            .map(|(at, piece)| {
                let skip = usize::try_from(from.saturating_sub(*at)).unwrap_or(usize::MAX);
                piece.slice(skip.min(piece.len())..)
            })
            .collect()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, PartialState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops the pieces that nobody needs any more.
    fn trim(&self, state: &mut PartialState) {
        let needed = if state.is_discarded {
            let readers = state.readers.iter().flatten();
            let slowest = readers.map(|place| place.position).min();
            // What is in the file can be read there.
            slowest.map_or(state.total, |at| at.max(state.written_bytes))
        } else if state.file.is_some() {
            state.written_bytes
        } else {
            0
        };
        while let Some((at, piece)) = state.pieces.front()
            && at + piece.len() as u64 <= needed
        {
            let bytes = piece.len() as u64;
            state.pieces_bytes -= bytes;
            self.memory_gauge.fetch_sub(bytes, Relaxed);
            state.pieces.pop_front();
        }
        if state.is_unneeded() {
            self.unneeded.notify_waiters();
        }
    }
}

impl PartialState {
    /// Whether nobody reads it and it will not be kept.
    pub(super) fn is_unneeded(&self) -> bool {
        self.is_discarded && self.readers.iter().all(Option::is_none)
    }

    /// Bytes in memory.
    pub(super) fn in_memory(&self) -> u64 {
        self.pieces_bytes
    }
}

impl Drop for PartialObject {
    fn drop(&mut self) {
        let bytes = self.lock().pieces_bytes;
        self.memory_gauge.fetch_sub(bytes, Relaxed);
    }
}

impl BodyStream for PartialReader {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
        loop {
            if let Some(reading) = &mut self.pending_read {
                let Poll::Ready(read) = reading.as_mut().poll(cx) else {
                    return Poll::Pending;
                };
                self.pending_read = None;
                return match read {
                    Ok(bytes) => Poll::Ready(Some(Ok(self.advance(bytes)))),
                    Err(error) => {
                        let cause = format!("a response could not be read back: {error}");
                        Poll::Ready(Some(Err(Fault::new(FaultKind::Internal, cause))))
                    }
                };
            }
            if self.end.is_some_and(|end| self.position >= end) {
                return Poll::Ready(None);
            }
            let mut state = self.partial.lock();
            if self.position >= state.total {
                match &state.end {
                    Some(BodyEnd::Complete) => return Poll::Ready(None),
                    Some(BodyEnd::Cut(kind, cause)) => {
                        return Poll::Ready(Some(Err(Fault::new(*kind, cause.clone()))));
                    }
                    None => {
                        if let Some(Some(place)) = state.readers.get_mut(self.index) {
                            place.waker = Some(cx.waker().clone());
                        }
                        return Poll::Pending;
                    }
                }
            }
            if let Some(bytes) = state.piece_at(self.position) {
                drop(state);
                return Poll::Ready(Some(Ok(self.advance(bytes))));
            }
            let (file, written) = (state.file.clone(), state.written_bytes);
            drop(state);
            let Some(file) = file else {
                // Unreachable unless a reader was overtaken: never an end that is not one.
                let cause = "a part of the response is not there any more";
                return Poll::Ready(Some(Err(Fault::new(FaultKind::Internal, cause))));
            };
            if let Some(bytes) = self.read_file(file, written) {
                return Poll::Ready(Some(Ok(self.advance(bytes))));
            }
        }
    }

    fn length(&self) -> Option<u64> {
        self.length
    }
}

impl PartialState {
    fn piece_at(&self, position: u64) -> Option<Bytes> {
        if let Some(held) = &self.memory_body {
            return Some(held.part(position, MEMORY_READ_BYTES));
        }
        let index = self.pieces.partition_point(|(at, _)| *at <= position);
        let (at, piece) = self.pieces.get(index.checked_sub(1)?)?;
        let skip = usize::try_from(position - at).ok()?;
        (skip < piece.len()).then(|| piece.slice(skip..))
    }
}

impl PartialReader {
    /// Reads what is in the page cache at once, else leaves work for the pool.
    fn read_file(&mut self, from: Arc<TempFile>, written: u64) -> Option<Bytes> {
        let want = (written.saturating_sub(self.position)).min(READ_BYTES);
        let want = self.end.map_or(want, |end| want.min(end - self.position));
        let mut bytes = vec![0; usize::try_from(want).unwrap_or(0)];
        let at = from.body_at() + self.position;
        if let Ok(file) = from.file()
            && let Ok(read @ 1..) = read_at_if_cached(file, &mut bytes, at)
        {
            bytes.truncate(read);
            return Some(bytes.into());
        }
        let disk = self.partial.disk.clone();
        self.pending_read = Some(Box::pin(async move {
            let Some(disk) = disk else {
                return Err(DiskError::OutOfService);
            };
            let read = move || {
                let read = read_full(from.file()?, &mut bytes, at)?;
                bytes.truncate(read);
                if bytes.is_empty() {
                    return Err(std::io::ErrorKind::UnexpectedEof.into());
                }
                Ok(bytes.into())
            };
            // Whoever has begun to read goes on as long as the file can be read, also while the disk is out.
            let deadline = clock::now() + disk.stall_timeout;
            let result =
                clock::timeout_at(deadline, disk.run_unchecked(OperationKind::Read, read)).await;
            let result = result.unwrap_or(Err(DiskError::OutOfService));
            if let Err(DiskError::Io(error)) = &result {
                disk.handle_error(OperationKind::Read, error);
            }
            result
        }));
        None
    }

    fn advance(&mut self, mut bytes: Bytes) -> Bytes {
        if let Some(end) = self.end {
            let left = usize::try_from(end - self.position).unwrap_or(usize::MAX);
            bytes.truncate(left);
        }
        self.position += bytes.len() as u64;
        let mut state = self.partial.lock();
        if let Some(Some(place)) = state.readers.get_mut(self.index) {
            place.position = self.position;
        }
        if state.is_discarded {
            self.partial.trim(&mut state);
            let writer = state.writer_waker.take();
            drop(state);
            wake(writer);
        }
        bytes
    }
}

impl Drop for PartialReader {
    fn drop(&mut self) {
        let mut state = self.partial.lock();
        if let Some(place) = state.readers.get_mut(self.index) {
            *place = None;
        }
        self.partial.trim(&mut state);
        let writer = state.writer_waker.take();
        drop(state);
        wake(writer);
    }
}

impl std::fmt::Debug for PartialReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrowingReader")
            .field("at", &self.position)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Wakes every reader that waits, outside of the lock.
fn wake_readers(mut state: MutexGuard<'_, PartialState>) {
    let places = state.readers.iter_mut().flatten();
    let wakers: Vec<_> = places.filter_map(|place| place.waker.take()).collect();
    drop(state);
    for waker in wakers {
        waker.wake();
    }
}
