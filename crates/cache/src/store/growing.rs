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

use super::disk::{Disk, DiskError, Kind};
use super::file::{TempFile, read_full};
use super::{Held, Meta};

/// Bytes read from the file at a time.
const READ_BYTES: u64 = 128 * 1024;

/// Bytes taken from the memory tier at a time.
const HELD_BYTES: usize = 128 * 1024;

/// Small pieces are joined up to this size.
const JOIN_BYTES: usize = 4 * 1024;

/// An object on its way in, as its readers know it.
#[derive(Debug)]
pub(crate) struct Growing {
    meta: Arc<Meta>,
    declared: Option<u64>,
    state: Mutex<State>,
    /// Nobody reads it and it will not be kept.
    pub(super) pointless: Notify,
    /// The store's gauge of such memory; ours goes with us.
    memory: Arc<AtomicU64>,
    disk: Option<Arc<Disk>>,
}

/// What is there of it.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Pieces, each with the position of its first byte; without a gap up to `total`.
    pieces: VecDeque<(u64, Bytes)>,
    pieces_bytes: u64,
    /// Bytes that were pushed.
    pub(super) total: u64,
    /// The file and how much of the body is in it.
    pub(super) file: Option<Arc<TempFile>>,
    pub(super) written: u64,
    pub(super) end: Option<End>,
    /// It will not be kept.
    pub(super) is_doomed: bool,
    /// Held whole by the memory tier: it is found there.
    pub(super) is_elsewhere: bool,
    /// The whole body, when the memory tier has it.
    held: Option<Held>,
    readers: Vec<Option<Place>>,
    /// The writer waits for readers to go on.
    pub(super) writer: Option<Waker>,
}

/// How it ended.
#[derive(Debug, Clone)]
pub(super) enum End {
    /// Whole.
    Whole,
    /// Cut.
    Cut(FaultKind, Cow<'static, str>),
}

/// Where a reader is.
#[derive(Debug)]
struct Place {
    at: u64,
    waker: Option<Waker>,
}

/// One reader of it.
pub(crate) struct GrowingReader {
    growing: Arc<Growing>,
    index: usize,
    at: u64,
    /// Where it ends; none: with the body.
    end: Option<u64>,
    length: Option<u64>,
    reading: Option<ReadWork>,
}

type ReadWork = Pin<Box<dyn Future<Output = Result<Bytes, DiskError>> + Send>>;

impl Growing {
    pub(super) fn new(
        meta: Arc<Meta>,
        declared: Option<u64>,
        memory: Arc<AtomicU64>,
        disk: Option<Arc<Disk>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            meta,
            declared,
            state: Mutex::default(),
            pointless: Notify::new(),
            memory,
            disk,
        })
    }

    /// What is known of it; its length is not.
    pub(crate) fn meta(&self) -> &Arc<Meta> {
        &self.meta
    }

    /// The declared length of its body.
    pub(crate) fn declared(&self) -> Option<u64> {
        self.declared
    }

    /// A reader of all of it.
    #[cfg(test)]
    pub(crate) fn reader(self: &Arc<Self>) -> Option<GrowingReader> {
        self.reader_of(0, None)
    }

    /// A reader of `len` bytes from `start` on (to the end without `len`). None when it takes no more: it
    /// turned out too large, or its disk failed.
    pub(crate) fn reader_of(
        self: &Arc<Self>,
        start: u64,
        len: Option<u64>,
    ) -> Option<GrowingReader> {
        let mut state = self.lock();
        if state.is_doomed {
            return None;
        }
        let place = Place {
            at: start,
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
        Some(GrowingReader {
            growing: Arc::clone(self),
            index,
            at: start,
            end: len.map(|len| start.saturating_add(len)),
            length: len.or_else(|| Some(self.declared?.saturating_sub(start))),
            reading: None,
        })
    }

    /// It will not be kept; those who read it go on.
    pub(crate) fn doom(&self) {
        let mut state = self.lock();
        state.is_doomed = true;
        self.trim(&mut state);
        let writer = state.writer.take();
        drop(state);
        wake(writer);
    }

    /// Whether it may be kept.
    pub(super) fn is_kept(&self) -> bool {
        !self.lock().is_doomed
    }

    /// Whether it is to be found here: it may be kept, and is not found elsewhere already.
    pub(super) fn is_offered(&self) -> bool {
        let state = self.lock();
        !state.is_doomed && !state.is_elsewhere && !matches!(state.end, Some(End::Cut(..)))
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
        self.memory.fetch_add(bytes.len() as u64, Relaxed);
        if state.is_doomed {
            self.trim(&mut state);
        }
        wake_readers(state);
    }

    /// It ended.
    pub(super) fn set_end(&self, end: End) {
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
        state.written = written;
        self.trim(&mut state);
        wake_readers(state);
    }

    /// The whole body, which is accounted for elsewhere: it takes the place of all pieces.
    pub(super) fn hold(&self, body: Held) {
        let mut state = self.lock();
        self.memory.fetch_sub(state.pieces_bytes, Relaxed);
        state.pieces_bytes = 0;
        state.pieces.clear();
        state.held = Some(body);
    }

    /// Pieces from position `from` on.
    pub(super) fn pieces_from(&self, from: u64) -> Vec<Bytes> {
        let state = self.lock();
        if let Some(held) = &state.held {
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

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops the pieces that nobody needs any more.
    fn trim(&self, state: &mut State) {
        let needed = if state.is_doomed {
            let readers = state.readers.iter().flatten();
            let slowest = readers.map(|place| place.at).min();
            // What is in the file can be read there.
            slowest.map_or(state.total, |at| at.max(state.written))
        } else if state.file.is_some() {
            state.written
        } else {
            0
        };
        while let Some((at, piece)) = state.pieces.front()
            && at + piece.len() as u64 <= needed
        {
            let bytes = piece.len() as u64;
            state.pieces_bytes -= bytes;
            self.memory.fetch_sub(bytes, Relaxed);
            state.pieces.pop_front();
        }
        if state.is_pointless() {
            self.pointless.notify_waiters();
        }
    }
}

impl State {
    /// Whether nobody reads it and it will not be kept.
    pub(super) fn is_pointless(&self) -> bool {
        self.is_doomed && self.readers.iter().all(Option::is_none)
    }

    /// Bytes in memory.
    pub(super) fn in_memory(&self) -> u64 {
        self.pieces_bytes
    }
}

impl Drop for Growing {
    fn drop(&mut self) {
        let bytes = self.lock().pieces_bytes;
        self.memory.fetch_sub(bytes, Relaxed);
    }
}

impl BodyStream for GrowingReader {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
        loop {
            if let Some(reading) = &mut self.reading {
                let Poll::Ready(read) = reading.as_mut().poll(cx) else {
                    return Poll::Pending;
                };
                self.reading = None;
                return match read {
                    Ok(bytes) => Poll::Ready(Some(Ok(self.took(bytes)))),
                    Err(error) => {
                        let cause = format!("a response could not be read back: {error}");
                        Poll::Ready(Some(Err(Fault::new(FaultKind::House, cause))))
                    }
                };
            }
            if self.end.is_some_and(|end| self.at >= end) {
                return Poll::Ready(None);
            }
            let mut state = self.growing.lock();
            if self.at >= state.total {
                match &state.end {
                    Some(End::Whole) => return Poll::Ready(None),
                    Some(End::Cut(kind, cause)) => {
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
            if let Some(bytes) = state.piece_at(self.at) {
                drop(state);
                return Poll::Ready(Some(Ok(self.took(bytes))));
            }
            let (file, written) = (state.file.clone(), state.written);
            drop(state);
            let Some(file) = file else {
                // Unreachable unless a reader was overtaken: never an end that is not one.
                let cause = "a part of the response is not there any more";
                return Poll::Ready(Some(Err(Fault::new(FaultKind::House, cause))));
            };
            if let Some(bytes) = self.read_file(file, written) {
                return Poll::Ready(Some(Ok(self.took(bytes))));
            }
        }
    }

    fn length(&self) -> Option<u64> {
        self.length
    }
}

impl State {
    fn piece_at(&self, position: u64) -> Option<Bytes> {
        if let Some(held) = &self.held {
            return Some(held.part(position, HELD_BYTES));
        }
        let index = self.pieces.partition_point(|(at, _)| *at <= position);
        let (at, piece) = self.pieces.get(index.checked_sub(1)?)?;
        let skip = usize::try_from(position - at).ok()?;
        (skip < piece.len()).then(|| piece.slice(skip..))
    }
}

impl GrowingReader {
    /// Reads what is in the page cache at once, else leaves work for the pool.
    fn read_file(&mut self, from: Arc<TempFile>, written: u64) -> Option<Bytes> {
        let want = (written.saturating_sub(self.at)).min(READ_BYTES);
        let want = self.end.map_or(want, |end| want.min(end - self.at));
        let mut bytes = vec![0; usize::try_from(want).unwrap_or(0)];
        let at = from.body_at() + self.at;
        if let Ok(file) = from.file()
            && let Ok(read @ 1..) = read_at_if_cached(file, &mut bytes, at)
        {
            bytes.truncate(read);
            return Some(bytes.into());
        }
        let disk = self.growing.disk.clone();
        self.reading = Some(Box::pin(async move {
            let Some(disk) = disk else {
                return Err(DiskError::Out);
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
            let result = clock::timeout_at(deadline, disk.run_anyway(Kind::Read, read)).await;
            let result = result.unwrap_or(Err(DiskError::Out));
            if let Err(DiskError::Io(error)) = &result {
                disk.failed(Kind::Read, error);
            }
            result
        }));
        None
    }

    fn took(&mut self, mut bytes: Bytes) -> Bytes {
        if let Some(end) = self.end {
            let left = usize::try_from(end - self.at).unwrap_or(usize::MAX);
            bytes.truncate(left);
        }
        self.at += bytes.len() as u64;
        let mut state = self.growing.lock();
        if let Some(Some(place)) = state.readers.get_mut(self.index) {
            place.at = self.at;
        }
        if state.is_doomed {
            self.growing.trim(&mut state);
            let writer = state.writer.take();
            drop(state);
            wake(writer);
        }
        bytes
    }
}

impl Drop for GrowingReader {
    fn drop(&mut self) {
        let mut state = self.growing.lock();
        if let Some(place) = state.readers.get_mut(self.index) {
            *place = None;
        }
        self.growing.trim(&mut state);
        let writer = state.writer.take();
        drop(state);
        wake(writer);
    }
}

impl std::fmt::Debug for GrowingReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrowingReader")
            .field("at", &self.at)
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
fn wake_readers(mut state: MutexGuard<'_, State>) {
    let places = state.readers.iter_mut().flatten();
    let wakers: Vec<_> = places.filter_map(|place| place.waker.take()).collect();
    drop(state);
    for waker in wakers {
        waker.wake();
    }
}
