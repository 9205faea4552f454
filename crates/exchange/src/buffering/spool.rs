//! The buffer between a worker or back end that produces a response and a client that takes it at
//! its own pace.
//!
//! The driver pushes, edge pulls. Pieces wait in memory up to `limits.response_memory`, beyond
//! that in an unnamed file up to `limits.response_spool` and the free part of
//! `limits.temp_bytes`, and only then does the worker wait. While other requests wait for that
//! worker, the file may grow beyond `max_response_spool`, and a client that is too slow then loses
//! its response (`contention`). A response that must not be buffered (`X-Accel-Buffering: no`,
//! `text/event-stream`) never uses the file.
//!
//! # Invariants
//! - Bytes come out in the order they went in, and a failed end is seen as one.
//! - The file is never longer than its grant: blocks that the client has taken are reused.
//! - A file without room, by a bound or by the disk, makes the worker wait and fails nothing. It
//!   tries again when its own client has taken something.

use std::collections::VecDeque;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use penstock_http::FieldBlock;
use penstock_runtime::blocking::{Pool, PoolError};
use penstock_runtime::{LazyDeadline, clock};

use super::collect::{is_disk_full_error, map_storage_error};
use super::contention::{
    BusyClientRate, DEMAND_CHECK_INTERVAL, ResponseProducer, SlowResponseAction, SlowResponseGuard,
};
use super::temp_space::MIN_CLIENT_RESPONSE_BYTES;
use super::{BufferingSettings, SpoolFile, TempFilePurpose, TempSpaceGrant};
use crate::{AddressPrefix, BodyStream, Fault, FaultKind};

/// Bytes read from the file at a time.
const READ_BYTES: usize = 128 * 1024;

/// The file is granted, written and reused in blocks of this size, each of which is read whole.
const BLOCK_BYTES: u64 = READ_BYTES as u64;

/// Every client may have a block.
const _: () = assert!(BLOCK_BYTES <= MIN_CLIENT_RESPONSE_BYTES);

/// A file that was read to its end is kept for the next overflow if it is this small.
const MAX_REUSED_FILE_BYTES: u64 = 1 << 20;

/// Small pieces are joined up to this size: each costs an allocation here and a chunk on the wire.
const COALESCE_BYTES: usize = 4 * 1024;

/// The worker's side.
#[derive(Debug)]
pub struct SpoolWriter {
    shared: Arc<SpoolShared>,
    settings: Arc<BufferingSettings>,
    /// Pushed and neither in memory nor in the file yet.
    overflow: Vec<u8>,
    /// Set once it has waited for its client. Boxed: most never do.
    demand_check: Option<Box<DemandCheck>>,
}

/// Releases the producer's capacity that a response holds.
#[derive(Debug)]
pub struct CapacityReleaser(Arc<SpoolShared>);

impl CapacityReleaser {
    /// The producer is done with the response.
    pub fn release(&self) {
        self.0.is_released.store(true, Ordering::Relaxed);
    }
}

/// Checks whether other requests need the capacity that a writer holds.
#[derive(Debug)]
struct DemandCheck {
    slow_response: SlowResponseGuard,
    deadline: LazyDeadline,
    /// The start of the wait for the client.
    since: Option<Instant>,
    /// The wait since the last check.
    waited: Duration,
}

/// The client's side.
pub struct SpoolReader {
    shared: Arc<SpoolShared>,
    pool: Pool,
    length: Option<u64>,
    pending_read: Option<SpoolReadFuture>,
}

type SpoolReadFuture =
    Pin<Box<dyn Future<Output = Result<std::io::Result<Vec<u8>>, PoolError>> + Send>>;

#[derive(Debug, Default)]
struct SpoolShared {
    /// The client that its file counts for; here, so that the writer is small.
    client: Option<AddressPrefix>,
    /// The producer that waits with the writer, if its capacity is bounded.
    producer: Option<Arc<dyn ResponseProducer>>,
    /// The producer is done: the rest holds no capacity.
    is_released: AtomicBool,
    /// Never to a file.
    is_unbuffered: bool,
    /// The state of both sides; held for a move of pieces only.
    state: Mutex<SpoolState>,
}

#[derive(Debug, Default)]
struct SpoolState {
    memory: VecDeque<Vec<u8>>,
    memory_bytes: usize,
    file: Option<Arc<SpoolFile>>,
    /// The grant of the file, if there is one or one is about to be made.
    grant: Option<Arc<TempSpaceGrant>>,
    /// Positions in the bytes that overflowed since the file was last empty: read, and written.
    read_position: u64,
    write_position: u64,
    /// Positions of the blocks in the file, from the one with `read_position` on.
    blocks: VecDeque<u64>,
    /// Blocks of the file that may be reused.
    free_blocks: Vec<u64>,
    block_count: u64,
    /// Blocks are reserved for a write at `write_position`, or it is under way: positions must not
    /// restart meanwhile.
    is_writing: bool,
    has_no_space: bool,
    /// The disk was full; it is not tried again until the client has taken something.
    is_disk_full: bool,
    /// Others wait for the producer: `limits.response_spool` does not apply.
    is_growing: bool,
    taken: u64,
    end: Option<Result<(), Fault>>,
    /// Fields behind the body, set before its end.
    trailers: Option<FieldBlock>,
    is_reader_gone: bool,
    reader_waker: Option<Waker>,
    /// The writer waits for room.
    writer_waker: Option<Waker>,
    /// The writer wants to know when the reader leaves.
    disconnect_waker: Option<Waker>,
}

/// The options of a spool.
#[derive(Debug, Default)]
pub struct SpoolSpec {
    /// The client, for limits per client.
    pub client: Option<AddressPrefix>,
    /// The producer that waits while the response holds its capacity.
    pub producer: Option<Arc<dyn ResponseProducer>>,
    /// It never uses a file.
    pub is_unbuffered: bool,
    /// The declared length.
    pub length: Option<u64>,
}

/// Returns the two ends of a spool.
#[must_use]
pub fn create_spool(
    settings: Arc<BufferingSettings>,
    spec: SpoolSpec,
) -> (SpoolWriter, SpoolReader) {
    let SpoolSpec {
        client,
        producer,
        is_unbuffered,
        length,
    } = spec;
    let shared = Arc::new(SpoolShared {
        client,
        producer,
        is_unbuffered,
        ..SpoolShared::default()
    });
    let reader = SpoolReader {
        shared: Arc::clone(&shared),
        pool: settings.pool.clone(),
        length,
        pending_read: None,
    };
    (
        SpoolWriter {
            shared,
            settings,
            overflow: Vec::new(),
            demand_check: None,
        },
        reader,
    )
}

impl SpoolShared {
    fn lock(&self) -> MutexGuard<'_, SpoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SpoolState {
    fn unread_file_bytes(&self) -> u64 {
        self.write_position - self.read_position
    }

    /// The number of blocks of unread bytes, once they are written up to `end`: the first and the
    /// last may be used in part.
    fn block_span(&self, end: u64) -> u64 {
        end.div_ceil(BLOCK_BYTES) - self.read_position / BLOCK_BYTES
    }

    /// Reserves blocks for bytes up to `end`, of the file's or new ones; `false` when there is no
    /// room for so many.
    fn reserve(&mut self, end: u64, grant: impl FnOnce() -> Arc<TempSpaceGrant>) -> bool {
        let wanted = self.block_span(end);
        let missing = wanted.saturating_sub(self.blocks.len() as u64);
        let fresh = missing.saturating_sub(self.free_blocks.len() as u64);
        if fresh > 0 {
            let grant = self.grant.get_or_insert_with(grant);
            if !grant.try_grow(fresh * BLOCK_BYTES) {
                return false;
            }
            let before = self.block_count;
            self.block_count += fresh;
            self.free_blocks.extend((before..self.block_count).rev());
        }
        for _ in 0..missing {
            self.blocks.extend(self.free_blocks.pop());
        }
        true
    }

    /// Returns the position in the file of the byte at `at`, and how many follow it there.
    fn file_offset(&self, at: u64) -> Option<(u64, u64)> {
        let index = at / BLOCK_BYTES - self.read_position / BLOCK_BYTES;
        let block = self.blocks.get(usize::try_from(index).ok()?)?;
        let within = at % BLOCK_BYTES;
        Some((block * BLOCK_BYTES + within, BLOCK_BYTES - within))
    }

    /// Returns the positions and lengths in the file of `len` bytes at `write_position`.
    fn file_ranges(&self, len: usize) -> Vec<(u64, usize)> {
        let (mut at, end) = (self.write_position, self.write_position + len as u64);
        let mut parts = Vec::new();
        while at < end
            && let Some((place, room)) = self.file_offset(at)
        {
            let part = room.min(end - at);
            parts.push((place, usize::try_from(part).unwrap_or_default()));
            at += part;
        }
        parts
    }

    fn advance(&mut self, bytes: u64) {
        let before = self.read_position / BLOCK_BYTES;
        self.read_position += bytes;
        for _ in before..self.read_position / BLOCK_BYTES {
            self.free_blocks.extend(self.blocks.pop_front());
        }
        if self.unread_file_bytes() == 0 && !self.is_writing {
            self.reset_file();
        }
    }

    /// The file was read to its end: the next overflow starts it again, or another one.
    fn reset_file(&mut self) {
        self.read_position = 0;
        self.write_position = 0;
        self.free_blocks.extend(self.blocks.drain(..));
        if self.block_count * BLOCK_BYTES > MAX_REUSED_FILE_BYTES {
            self.drop_file();
        }
    }

    fn cut(&mut self, fault: Fault) {
        self.memory.clear();
        self.memory_bytes = 0;
        self.read_position = self.write_position;
        self.drop_file();
        self.end = Some(Err(fault));
    }

    fn drop_file(&mut self) {
        self.file = None;
        self.grant = None;
        self.blocks.clear();
        self.free_blocks.clear();
        self.block_count = 0;
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl SpoolWriter {
    /// Adds a piece. Call [`SpoolWriter::flush`] before receiving more from the worker.
    pub fn push(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut state = self.shared.lock();
        if state.is_reader_gone {
            return;
        }
        let memory = self.settings.max_response_memory.max(bytes.len());
        let has_room = state.memory_bytes + bytes.len() <= memory;
        if has_room && self.overflow.is_empty() && state.unread_file_bytes() == 0 {
            state.memory_bytes += bytes.len();
            match state.memory.back_mut() {
                Some(last) if last.len() + bytes.len() <= COALESCE_BYTES => {
                    last.extend_from_slice(bytes);
                }
                _ => state.memory.push_back(bytes.to_vec()),
            }
            let reader = state.reader_waker.take();
            drop(state);
            wake(reader);
        } else {
            drop(state);
            self.overflow.extend_from_slice(bytes);
        }
    }

    /// Whether the client is gone and takes no more; else the task is polled when that happens.
    pub fn poll_reader_gone(&self, cx: &mut Context<'_>) -> bool {
        let mut state = self.shared.lock();
        let is_known = state
            .disconnect_waker
            .as_ref()
            .is_some_and(|w| w.will_wake(cx.waker()));
        if !state.is_reader_gone && !is_known {
            state.disconnect_waker = Some(cx.waker().clone());
        }
        state.is_reader_gone
    }

    /// Releases the capacity: the producer is done, and the rest waits for the client without it.
    pub fn release_capacity(&mut self) {
        self.capacity_releaser().release();
        self.demand_check = None;
    }

    /// Takes out the slow response. Keep it, if it was cut, until its producer has stopped: its
    /// capacity counts as about to be free.
    pub fn take_slow_response(&mut self) -> Option<SlowResponseGuard> {
        self.demand_check.take().map(|check| check.slow_response)
    }

    /// A handle that releases the capacity from elsewhere.
    #[must_use]
    pub fn capacity_releaser(&self) -> CapacityReleaser {
        CapacityReleaser(Arc::clone(&self.shared))
    }

    /// Whether [`SpoolWriter::flush`] has something to do.
    pub fn has_overflow(&self) -> bool {
        !self.overflow.is_empty()
    }

    /// Writes the overflow to the file, or waits until the client took enough.
    ///
    /// # Errors
    /// When the file cannot be used, or others need the capacity of a client that is too slow: the
    /// response must be cut.
    pub async fn flush(&mut self) -> Result<(), Fault> {
        while !self.overflow.is_empty() {
            let room = std::future::poll_fn(|cx| self.poll_settle(cx)).await;
            match room? {
                SpoolSpace::ReaderGone => self.overflow.clear(),
                SpoolSpace::Memory => {
                    let piece = std::mem::take(&mut self.overflow);
                    self.push(&piece);
                }
                SpoolSpace::File => self.write_file().await?,
            }
        }
        Ok(())
    }

    /// Ready with room, or with the end of a response whose capacity others need.
    fn poll_settle(&mut self, cx: &mut Context<'_>) -> Poll<Result<SpoolSpace, Fault>> {
        loop {
            if let Poll::Ready(room) = self.poll_space(cx) {
                if let Some(demand_check) = &mut self.demand_check {
                    demand_check.pause();
                }
                return Poll::Ready(Ok(room));
            }
            ready!(self.poll_demand_check(cx))?;
        }
    }

    /// Checks the demand at intervals while the client is waited for; ready when there may be room.
    fn poll_demand_check(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        let shared = &*self.shared;
        let Some(producer) = &shared.producer else {
            return Poll::Pending;
        };
        if shared.is_released.load(Ordering::Relaxed) {
            self.demand_check = None;
            return Poll::Pending;
        }
        let demand_check = self.demand_check.get_or_insert_with(|| {
            let taken = shared.lock().taken;
            Box::new(DemandCheck::begin(producer, shared.client, taken))
        });
        demand_check.since.get_or_insert_with(clock::now);
        ready!(demand_check.deadline.poll(cx));
        let bound = BusyClientRate {
            min_bytes_per_second: self.settings.min_busy_rate,
            window: self.settings.rate_grace,
        };
        let taken = shared.lock().taken;
        match demand_check.evaluate(taken, bound) {
            SlowResponseAction::Wait => {}
            SlowResponseAction::Grow => shared.lock().is_growing = true,
            SlowResponseAction::Cut(cause) => {
                let mut state = shared.lock();
                state.cut(Fault::new(FaultKind::ClientTooSlow, cause.clone()));
                let reader = state.reader_waker.take();
                drop(state);
                wake(reader);
                return Poll::Ready(Err(Fault::new(FaultKind::ClientTooSlow, cause)));
            }
        }
        Poll::Ready(Ok(()))
    }

    fn max_file_bytes(&self, is_growing: bool) -> u64 {
        match (self.shared.is_unbuffered, is_growing) {
            (true, _) => 0,
            (false, true) => u64::MAX,
            (false, false) => self.settings.max_response_spool,
        }
    }

    fn poll_space(&self, cx: &mut Context<'_>) -> Poll<SpoolSpace> {
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        if state.is_reader_gone {
            return Poll::Ready(SpoolSpace::ReaderGone);
        }
        if state.unread_file_bytes() == 0 && state.memory.is_empty() {
            state.reset_file();
            state.is_disk_full = false;
            return Poll::Ready(SpoolSpace::Memory);
        }
        let bytes = self.overflow.len() as u64;
        let max = self.max_file_bytes(state.is_growing);
        let length = state.block_span(state.write_position + bytes) * BLOCK_BYTES;
        let is_within = state.unread_file_bytes() + bytes <= max && length <= max.max(BLOCK_BYTES);
        if is_within && !state.is_disk_full {
            let grant = || {
                self.settings
                    .temp_space
                    .create_grant(self.shared.client, TempFilePurpose::Response)
            };
            if state.reserve(state.write_position + bytes, grant) {
                state.has_no_space = false;
                // From here on the blocks belong to the write, however far the client reads
                // meanwhile.
                state.is_writing = true;
                return Poll::Ready(SpoolSpace::File);
            }
            if !std::mem::replace(&mut state.has_no_space, true) {
                let space = &self.settings.temp_space;
                space.record_wait(|| space.refusal_cause());
            }
        }
        state.writer_waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Writes to the file. When the disk is full, the bytes are kept for another try.
    async fn write_file(&mut self) -> Result<(), Fault> {
        let bytes = std::mem::take(&mut self.overflow);
        let (file, grant, parts) = {
            let state = self.shared.lock();
            let parts = state.file_ranges(bytes.len());
            (state.file.clone(), state.grant.clone(), parts)
        };
        let (settings, closer) = (Arc::clone(&self.settings), self.settings.pool.clone());
        let grant = grant.unwrap_or_else(|| {
            self.settings
                .temp_space
                .create_grant(self.shared.client, TempFilePurpose::Response)
        });
        let write = move || {
            let file = match file {
                Some(file) => Ok(file),
                None => SpoolFile::create(&settings.temp_dir, closer, grant).map(Arc::new),
            };
            let written = file.and_then(|file| {
                let mut rest = &bytes[..];
                for (at, len) in parts {
                    let (part, behind) = rest.split_at(len);
                    file.write_all_at(part, at)?;
                    rest = behind;
                }
                Ok(file)
            });
            Ok((written, bytes))
        };
        let (written, bytes) = map_storage_error(self.settings.pool.run(write).await)?;
        let mut state = self.shared.lock();
        state.is_writing = false;
        match written {
            Ok(file) => {
                state.file = Some(file);
                state.write_position += bytes.len() as u64;
                let reader = state.reader_waker.take();
                drop(state);
                wake(reader);
                Ok(())
            }
            Err(error) if is_disk_full_error(&error) => {
                state.is_disk_full = true;
                drop(state);
                self.overflow = bytes;
                let folder = self.settings.temp_dir.display();
                let cause = || format!("limits.temp_dir: {folder} has no room ({error})");
                self.settings.temp_space.record_wait(cause);
                Ok(())
            }
            Err(error) => map_storage_error(Ok(Err(error))),
        }
    }

    /// Ends the response: whole, with the fields behind its body if any, or cut.
    pub fn finish(self, end: Result<Option<FieldBlock>, Fault>) {
        let end = end.map(|trailers| self.shared.lock().trailers = trailers);
        self.set_end(end);
    }

    fn set_end(&self, end: Result<(), Fault>) {
        let mut state = self.shared.lock();
        if state.end.is_none() {
            state.end = Some(end);
        }
        let reader = state.reader_waker.take();
        drop(state);
        wake(reader);
    }
}

impl Drop for SpoolWriter {
    fn drop(&mut self) {
        // A producer that stops without an end must not look like the end of the body.
        self.set_end(Err(Fault::new(
            FaultKind::WorkerDied,
            "the response ended before its end",
        )));
    }
}

impl DemandCheck {
    fn begin(
        producer: &Arc<dyn ResponseProducer>,
        client: Option<AddressPrefix>,
        taken: u64,
    ) -> Self {
        let now = clock::now();
        Self {
            slow_response: SlowResponseGuard::register(producer, now, client, taken),
            deadline: LazyDeadline::new(now + DEMAND_CHECK_INTERVAL),
            since: Some(now),
            waited: Duration::ZERO,
        }
    }

    fn pause(&mut self) {
        if let Some(since) = self.since.take() {
            self.waited += clock::now().saturating_duration_since(since);
        }
    }

    /// Evaluates the client, which is waited for and has taken `taken` bytes in all.
    fn evaluate(&mut self, taken: u64, bound: BusyClientRate) -> SlowResponseAction {
        let now = clock::now();
        if let Some(since) = self.since.replace(now) {
            self.waited += now.saturating_duration_since(since);
        }
        self.deadline.set(now + DEMAND_CHECK_INTERVAL);
        let waited = std::mem::take(&mut self.waited);
        self.slow_response
            .evaluate_wait(now, (waited, taken), bound)
    }
}

enum SpoolSpace {
    ReaderGone,
    Memory,
    File,
}

impl BodyStream for SpoolReader {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
        loop {
            if let Some(work) = &mut self.pending_read {
                let Poll::Ready(read) = work.as_mut().poll(cx) else {
                    return Poll::Pending;
                };
                self.pending_read = None;
                match map_storage_error(read) {
                    Ok(bytes) => return Poll::Ready(Some(Ok(self.finish_file_read(bytes)))),
                    Err(fault) => return Poll::Ready(Some(Err(fault))),
                }
            }
            let mut state = self.shared.lock();
            if let Some(bytes) = state.memory.pop_front() {
                state.memory_bytes -= bytes.len();
                state.taken += bytes.len() as u64;
                let writer = state.writer_waker.take();
                drop(state);
                wake(writer);
                return Poll::Ready(Some(Ok(bytes.into())));
            }
            if state.unread_file_bytes() > 0
                && let Some(file) = state.file.clone()
            {
                let Some((at, there)) = state.file_offset(state.read_position) else {
                    // Unreachable: bytes in the file have blocks.
                    let cause = "a response's temporary file lost a block";
                    return Poll::Ready(Some(Err(Fault::new(FaultKind::Internal, cause))));
                };
                let left = state.unread_file_bytes().min(there);
                drop(state);
                if let Some(bytes) = self.read_file(file, at, left) {
                    return Poll::Ready(Some(Ok(self.finish_file_read(bytes))));
                }
                continue;
            }
            if let Some(end) = state.end.take() {
                state.end = Some(Ok(()));
                return Poll::Ready(end.err().map(Err));
            }
            state.reader_waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
    }

    fn length(&self) -> Option<u64> {
        self.length
    }

    fn take_trailers(&mut self) -> Option<FieldBlock> {
        self.shared.lock().trailers.take()
    }
}

impl std::fmt::Debug for SpoolReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SpoolReader")
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

impl SpoolReader {
    /// Reads from the page cache at once, else leaves a job for the pool.
    fn read_file(&mut self, from: Arc<SpoolFile>, at: u64, left: u64) -> Option<Vec<u8>> {
        let want = usize::try_from(left).unwrap_or(READ_BYTES).min(READ_BYTES);
        let mut bytes = vec![0; want];
        if let Ok(read @ 1..) = from.read_at_if_cached(&mut bytes, at) {
            bytes.truncate(read);
            return Some(bytes);
        }
        let pool = self.pool.clone();
        self.pending_read = Some(Box::pin(async move {
            pool.run(move || from.read_exact_at(&mut bytes, at).map(|()| bytes))
                .await
        }));
        None
    }

    fn finish_file_read(&mut self, bytes: Vec<u8>) -> Bytes {
        let mut state = self.shared.lock();
        if state.unread_file_bytes() > 0 {
            state.advance(bytes.len() as u64);
        }
        state.taken += bytes.len() as u64;
        state.is_disk_full = false;
        let writer = state.writer_waker.take();
        drop(state);
        wake(writer);
        bytes.into()
    }
}

impl Drop for SpoolReader {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_reader_gone = true;
        state.memory.clear();
        state.read_position = state.write_position;
        state.drop_file();
        let (writer, watcher) = (state.writer_waker.take(), state.disconnect_waker.take());
        drop(state);
        wake(writer);
        wake(watcher);
    }
}

#[cfg(test)]
mod tests;
