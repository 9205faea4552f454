//! A partial object: a body being received, with any number of readers at their own pace.
//!
//! `object_writer` writes it. A pushed piece is in memory until it is in the temporary file. A
//! reader takes pieces from memory, and reads the file where memory has been released. An object
//! that will not be kept (too large, purged, disk failed) is discarded: its current readers
//! continue, it accepts no new ones, and its pieces stay until the slowest reader has them, which
//! holds the writer back.
//!
//! # Invariants
//!
//! - Every reader gets every byte once and in order, then the end or a cut. A cut is never reported
//!   as an end.
//! - Memory is bounded.
//! - No lock is held across an await.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use penstock_exchange::{BodyStream, Fault, FaultKind};
use penstock_runtime::clock;
use penstock_sys::file::read_at_if_cached;
use slab::Slab;
use tokio::sync::Notify;

use super::disk::{Disk, DiskError, DiskOperationKind};
use super::object_file::{TempFile, read_full};
use super::{MemoryBody, ObjectMeta};

/// Bytes read from the file or the memory tier at a time.
const READ_BYTES: usize = 128 * 1024;

/// Small pieces are joined up to this size.
const JOIN_BYTES: usize = 4 * 1024;

/// The readers' view of a partial object.
#[derive(Debug)]
pub(crate) struct PartialObject {
    /// Its length is not known yet.
    pub(crate) meta: Arc<ObjectMeta>,
    pub(crate) declared_length: Option<u64>,
    pub(super) state: Mutex<PartialState>,
    /// Notified when the object is discarded and has no reader left.
    pub(super) unneeded: Notify,
    /// The store's gauge of such memory; this object's bytes are subtracted on drop.
    memory_gauge: Arc<AtomicU64>,
    disk: Option<Arc<Disk>>,
}

/// The received part of a body.
#[derive(Debug, Default)]
pub(super) struct PartialState {
    /// Pieces, each with the position of its first byte, without gaps up to `pushed_bytes`.
    pieces: VecDeque<(u64, Bytes)>,
    pub(super) pieces_bytes: u64,
    /// Bytes pushed.
    pub(super) pushed_bytes: u64,
    /// The temporary file; `written_bytes` of the body are in it.
    pub(super) file: Option<Arc<TempFile>>,
    pub(super) written_bytes: u64,
    pub(super) end: Option<BodyEnd>,
    /// The object will not be kept.
    pub(super) is_discarded: bool,
    /// The object is found in an index already, not here.
    pub(super) is_indexed: bool,
    /// The whole body, once the memory tier has it.
    memory_body: Option<MemoryBody>,
    readers: Slab<ReaderPosition>,
    /// Set while the writer waits for readers.
    pub(super) writer_waker: Option<Waker>,
}

#[derive(Debug, Clone)]
pub(super) enum BodyEnd {
    Complete,
    Cut(FaultKind, Cow<'static, str>),
}

#[derive(Debug)]
struct ReaderPosition {
    position: u64,
    waker: Option<Waker>,
}

pub(crate) struct PartialReader {
    partial: Arc<PartialObject>,
    index: usize,
    position: u64,
    /// Position where the reader ends; `None`: at the end of the body.
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

    #[cfg(test)]
    pub(crate) fn reader(self: &Arc<Self>) -> Option<PartialReader> {
        self.reader_from(0, None)
    }

    /// Creates a reader of `len` bytes from `start` on, or to the end if `len` is `None`. Returns
    /// `None` if the object was discarded: too large, purged, or its disk failed.
    pub(crate) fn reader_from(
        self: &Arc<Self>,
        start: u64,
        len: Option<u64>,
    ) -> Option<PartialReader> {
        let mut state = self.state.lock();
        if state.is_discarded {
            return None;
        }
        let index = state.readers.insert(ReaderPosition {
            position: start,
            waker: None,
        });
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

    /// Keeps the object from being stored. Current readers continue.
    pub(crate) fn discard(&self) {
        let mut state = self.state.lock();
        state.is_discarded = true;
        self.trim_and_wake_writer(state);
    }

    fn trim_and_wake_writer(&self, mut state: MutexGuard<'_, PartialState>) {
        self.trim(&mut state);
        let writer = state.writer_waker.take();
        drop(state);
        if let Some(writer) = writer {
            writer.wake();
        }
    }

    /// Whether the object may still be kept.
    pub(super) fn can_be_stored(&self) -> bool {
        !self.state.lock().is_discarded
    }

    /// Whether look-ups find the object here: it may be kept, and is in no index yet.
    pub(super) fn is_findable(&self) -> bool {
        let state = self.state.lock();
        !state.is_discarded && !state.is_indexed && !matches!(state.end, Some(BodyEnd::Cut(..)))
    }

    /// Adds a piece and wakes waiting readers. Returns the bytes pushed so far.
    pub(super) fn push(&self, bytes: &[u8]) -> u64 {
        let mut state = self.state.lock();
        let at = state.pushed_bytes;
        match state.pieces.back_mut() {
            Some((_, last)) if last.len() + bytes.len() <= JOIN_BYTES => {
                *last = [last, bytes].concat().into();
            }
            _ => state.pieces.push_back((at, Bytes::copy_from_slice(bytes))),
        }
        state.pushed_bytes += bytes.len() as u64;
        let total = state.pushed_bytes;
        state.pieces_bytes += bytes.len() as u64;
        self.memory_gauge.fetch_add(bytes.len() as u64, Relaxed);
        if state.is_discarded {
            self.trim(&mut state);
        }
        wake_readers(state);
        total
    }

    /// Sets the end of the body, unless it has one.
    pub(super) fn set_end(&self, end: BodyEnd) {
        let mut state = self.state.lock();
        state.end.get_or_insert(end);
        wake_readers(state);
    }

    /// Records that `written` bytes of the body are in `file`, and releases their memory.
    pub(super) fn set_written(&self, file: &Arc<TempFile>, written: u64) {
        let mut state = self.state.lock();
        state.file = Some(Arc::clone(file));
        state.written_bytes = written;
        self.trim(&mut state);
        wake_readers(state);
    }

    /// Replaces all pieces by the whole body, whose memory the tier accounts for.
    pub(super) fn set_memory_body(&self, body: MemoryBody) {
        let mut state = self.state.lock();
        self.memory_gauge.fetch_sub(state.pieces_bytes, Relaxed);
        state.pieces_bytes = 0;
        state.pieces.clear();
        state.memory_body = Some(body);
    }

    /// Returns the pieces from position `from` on.
    pub(super) fn pieces_from(&self, from: u64) -> Vec<Bytes> {
        let state = self.state.lock();
        if let Some(held) = &state.memory_body {
            let rest = held.part(from, usize::MAX);
            return Vec::from_iter((!rest.is_empty()).then_some(rest));
        }
        let is_before = |(at, piece): &(u64, Bytes)| at + piece.len() as u64 <= from;
        let pieces = (state.pieces.iter()).skip(state.pieces.partition_point(is_before));
        let rest = pieces.map(|(at, piece)| {
            let skip = usize::try_from(from.saturating_sub(*at)).unwrap_or(usize::MAX);
            piece.slice(skip.min(piece.len())..)
        });
        rest.collect()
    }

    /// Drops the pieces that are not needed any more.
    fn trim(&self, state: &mut PartialState) {
        let needed = if state.is_discarded {
            let slowest = state.readers.iter().map(|(_, place)| place.position).min();
            // Later readers of these bytes use the file.
            slowest.map_or(state.pushed_bytes, |at| at.max(state.written_bytes))
        } else {
            state.written_bytes
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
    /// Whether the object is discarded and has no reader.
    pub(super) fn is_unneeded(&self) -> bool {
        self.is_discarded && self.readers.is_empty()
    }

    fn piece_at(&self, position: u64) -> Option<Bytes> {
        if let Some(held) = &self.memory_body {
            return Some(held.part(position, READ_BYTES));
        }
        let index = self.pieces.partition_point(|(at, _)| *at <= position);
        let (at, piece) = self.pieces.get(index.checked_sub(1)?)?;
        let skip = usize::try_from(position - at).ok()?;
        (skip < piece.len()).then(|| piece.slice(skip..))
    }
}

impl Drop for PartialObject {
    fn drop(&mut self) {
        let bytes = self.state.lock().pieces_bytes;
        self.memory_gauge.fetch_sub(bytes, Relaxed);
    }
}

impl BodyStream for PartialReader {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
        loop {
            if let Some(reading) = &mut self.pending_read {
                let read = ready!(reading.as_mut().poll(cx));
                self.pending_read = None;
                let read = read.map(|bytes| self.advance(bytes)).map_err(|error| {
                    let cause = format!("a response could not be read back: {error}");
                    Fault::new(FaultKind::Internal, cause)
                });
                return Poll::Ready(Some(read));
            }
            if self.end.is_some_and(|end| self.position >= end) {
                return Poll::Ready(None);
            }
            let mut state = self.partial.state.lock();
            if self.position >= state.pushed_bytes {
                match &state.end {
                    Some(BodyEnd::Complete) => return Poll::Ready(None),
                    Some(BodyEnd::Cut(kind, cause)) => {
                        return Poll::Ready(Some(Err(Fault::new(*kind, cause.clone()))));
                    }
                    None => {
                        if let Some(place) = state.readers.get_mut(self.index) {
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
                // Unreachable unless a reader was overtaken. A cut is never reported as an end.
                let cause = "a part of the response was dropped";
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

impl PartialReader {
    /// Reads from the page cache at once, or starts a read in the pool and returns `None`.
    fn read_file(&mut self, from: Arc<TempFile>, written: u64) -> Option<Bytes> {
        let end = self.end.map_or(written, |end| end.min(written));
        let want = usize::try_from(end.saturating_sub(self.position)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; want.min(READ_BYTES)];
        let at = from.body_offset() + self.position;
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
            // Without the health check: a reader continues while the file can be read, even if the
            // disk is out of service.
            let read = disk.run_unchecked(DiskOperationKind::Read, read);
            let result = clock::timeout(disk.stall_timeout, read).await;
            let result = result.unwrap_or(Err(DiskError::OutOfService));
            if let Err(DiskError::Io(error)) = &result {
                disk.handle_error(DiskOperationKind::Read, error);
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
        let mut state = self.partial.state.lock();
        if let Some(place) = state.readers.get_mut(self.index) {
            place.position = self.position;
        }
        if state.is_discarded {
            self.partial.trim_and_wake_writer(state);
        }
        bytes
    }
}

impl Drop for PartialReader {
    fn drop(&mut self) {
        let mut state = self.partial.state.lock();
        state.readers.try_remove(self.index);
        self.partial.trim_and_wake_writer(state);
    }
}

impl std::fmt::Debug for PartialReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PartialReader")
            .field("at", &self.position)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

/// Wakes every waiting reader, outside the lock.
fn wake_readers(mut state: MutexGuard<'_, PartialState>) {
    let places = state.readers.iter_mut();
    let wakers: Vec<_> = places.filter_map(|(_, place)| place.waker.take()).collect();
    drop(state);
    wakers.into_iter().for_each(Waker::wake);
}
