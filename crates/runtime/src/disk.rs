//! Files that are sent: resident bytes are sent from the event loop, the rest is read in a pool.
//!
//! `files` and `cache` open a [`DiskFile`] once and share it between requests. `edge` calls
//! [`DiskFile::resident_bytes`] right before each piece it sends, and [`DiskFile::read`] for bytes
//! that are not resident.
//!
//! Residency is checked per piece and again after each wait, because pages may be evicted while a
//! slow client drains its socket. How it is checked depends on the file system (`residency`). Reads
//! in flight and their memory belong to the pool (`reads`).
//!
//! # Invariants
//! - The event loop never waits for a disk.
//! - One read of a chunk serves all its waiters.

mod arena;
mod disk_wait;
mod read_history;
mod reads;
mod residency;

use std::fmt::Debug;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use penstock_sys::file;
use penstock_sys::page_cache::{self, FileIdentity, FileSystemKind, ResidencyMapping};
use penstock_sys::page_memory::Extent;

pub use self::arena::Arena;
use self::disk_wait::WaitEvidence;
use self::read_history::ReadHistory;
pub(crate) use self::reads::{FileKey, InFlightReads};
use self::reads::{ReadCompletion, ReadData};
use self::residency::{
    ANSWER_LIFETIME_US, AtomicTimestamp, DetectedResidency, RecentResidencyAnswers, ResidencyFacts,
    ResidencyMethod, ResidentChunks, VerifiedChunks,
};
use crate::blocking::{Pool, PoolError};
use crate::{buffers, clock};

/// Bytes that a pool reads at a time, and the grid on which reads are shared.
pub const CHUNK_BYTES: u64 = 512 * 1024;

/// Bytes that are read at a time for a client that cannot take more soon, or when memory is scarce.
pub const SMALL_READ_BYTES: u64 = 64 * 1024;

/// How long a disk may take for one piece before it counts as failed.
pub const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// An open regular file with the pool that reads its non-resident parts, or a body in memory
/// ([`Arena`]).
#[derive(Debug)]
pub struct DiskFile {
    /// `Some` until it is dropped.
    source: Option<DiskSource>,
    pool: Pool,
    /// How its residency is checked, as far as known ([`ResidencyFacts::to_bits`]).
    facts_bits: AtomicU8,
    /// The file's identity and state at its first use; `None` where the kernel does not provide it.
    identity: OnceLock<Option<FileIdentity>>,
    /// Its mapping, where residency is checked with `mincore`, or why it has none.
    mapping: OnceLock<Result<ResidencyMapping, io::ErrorKind>>,
    /// The kernel was told not to read ahead.
    is_random: AtomicBool,
    verified_chunks: VerifiedChunks,
    recent_answers: RecentResidencyAnswers,
    resident_chunks: ResidentChunks,
    /// What was recently read or sent, where the kernel does not report residency; `None` without
    /// an identity.
    read_history: OnceLock<Option<Arc<ReadHistory>>>,
    /// When a probe last found something not resident, where only probing works.
    last_miss: AtomicTimestamp,
    /// When it was last seen to be unchanged.
    last_unchanged: AtomicTimestamp,
    read_error_sink: Option<Arc<dyn ReadErrorSink>>,
}

/// Where the bytes come from.
#[derive(Debug)]
enum DiskSource {
    File(File),
    /// A body in memory.
    Extent(Extent),
}

/// Receives read errors of a file, whichever request reads it. Called on event loops and in pools:
/// must not block.
pub trait ReadErrorSink: Debug + Send + Sync {
    /// A read failed, timed out (`TimedOut`), or the file ended before its promised length
    /// (`UnexpectedEof`).
    fn read_failed(&self, error: &io::Error);
}

/// Why a piece of a file was not read.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadError {
    /// The pool did not take the work.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The disk's error, shared by all waiters; `TimedOut` when it did not answer within
    /// [`READ_TIMEOUT`].
    #[error("cannot read the file: {0}")]
    Disk(Arc<io::Error>),
}

impl ReadError {
    /// Returns whether this is overload rather than a failure: a later attempt may succeed.
    pub fn is_overload(&self) -> bool {
        match self {
            Self::Pool(_) => true,
            Self::Disk(error) => error.kind() == io::ErrorKind::TimedOut,
        }
    }
}

impl DiskFile {
    /// Wraps an open regular file. Makes no system call that could wait for a disk.
    pub fn new(file: File, pool: Pool) -> Self {
        Self::with_source(DiskSource::File(file), pool, ResidencyFacts::UNDETECTED)
    }

    fn with_source(source: DiskSource, pool: Pool, facts: ResidencyFacts) -> Self {
        Self {
            source: Some(source),
            pool,
            facts_bits: AtomicU8::new(facts.to_bits()),
            identity: OnceLock::new(),
            mapping: OnceLock::new(),
            is_random: AtomicBool::new(false),
            verified_chunks: VerifiedChunks::default(),
            recent_answers: RecentResidencyAnswers::default(),
            resident_chunks: ResidentChunks::default(),
            read_history: OnceLock::new(),
            last_miss: AtomicTimestamp::default(),
            last_unchanged: AtomicTimestamp::default(),
            read_error_sink: None,
        }
    }

    /// Reports read errors to `faults`.
    #[must_use]
    pub fn with_error_sink(mut self, faults: Arc<dyn ReadErrorSink>) -> Self {
        self.read_error_sink = Some(faults);
        self
    }

    /// Reports that the file could not be read. [`DiskFile::read`] reports its own errors.
    pub fn report_error(&self, error: &io::Error) {
        if let Some(faults) = &self.read_error_sink {
            faults.read_failed(error);
        }
    }

    /// Returns the file.
    ///
    /// # Errors
    /// `Unsupported` for a body in memory.
    pub fn file(&self) -> io::Result<&File> {
        match &self.source {
            Some(DiskSource::File(file)) => Ok(file),
            Some(DiskSource::Extent(_)) | None => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn extent(&self) -> Option<&Extent> {
        match &self.source {
            Some(DiskSource::Extent(extent)) => Some(extent),
            Some(DiskSource::File(_)) | None => None,
        }
    }

    /// The pool that reads it.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns whether `is_same` accepts the file's metadata. A positive result is cached for a
    /// millisecond, so that a popular file does not cost a system call each time. A body in memory
    /// never changes.
    pub fn is_unchanged(&self, is_same: impl FnOnce(&Metadata) -> bool) -> bool {
        let Ok(file) = self.file() else {
            return true;
        };
        let now_us = self.pool.in_flight_reads().now_us();
        if self.last_unchanged.is_within(UNCHANGED_TIME_US, now_us) {
            return true;
        }
        let is_same = file.metadata().is_ok_and(|now| is_same(&now));
        if is_same {
            self.last_unchanged.record(now_us);
        }
        is_same
    }

    /// Returns how many of the `len` bytes at `at` can be sent now without waiting for the disk.
    /// This is a prefix, up to the end of the chunk (of [`CHUNK_BYTES`]) that contains `at`; 0 if
    /// the first byte is not resident or the file system cannot tell. Check again after each wait.
    ///
    /// The answer for a chunk is reused for some milliseconds. While the pool has nothing to read
    /// it is reused for seconds, confirmed by checking a page or two.
    #[must_use]
    pub fn resident_bytes(&self, at: u64, len: u64) -> u64 {
        let len = len.min(remaining_in_chunk(at));
        match self.residency_facts().method {
            ResidencyMethod::InMemory => len,
            ResidencyMethod::Cachestat | ResidencyMethod::Mincore
                if self.was_recently_resident(at, len) || self.check_whole_chunk(at, len) =>
            {
                len
            }
            ResidencyMethod::Cachestat | ResidencyMethod::Mincore => {
                let now_us = self.pool.in_flight_reads().now_us();
                let ready = self.query_resident(at, len);
                if at.is_multiple_of(CHUNK_BYTES) && ready == len {
                    self.recent_answers
                        .record_chunk(at / CHUNK_BYTES, len, now_us);
                }
                ready
            }
            ResidencyMethod::RecentlyRead if self.was_recently_read(at, len) => len,
            ResidencyMethod::RecentlyRead
            | ResidencyMethod::Probe
            | ResidencyMethod::Unknown
            | ResidencyMethod::Unavailable => 0,
        }
    }

    /// Like [`DiskFile::resident_bytes`], for `len` bytes across a few chunks.
    #[must_use]
    pub fn resident_bytes_across_chunks(&self, at: u64, len: u64) -> u64 {
        let is_asked = || {
            matches!(
                self.residency_facts().method,
                ResidencyMethod::Cachestat | ResidencyMethod::Mincore
            )
        };
        if remaining_in_chunk(at) < len && is_asked() && self.was_recently_resident(at, len) {
            return len;
        }
        let mut found = 0;
        while found < len {
            let wanted = (len - found).min(remaining_in_chunk(at + found));
            let piece = self.resident_bytes(at + found, wanted);
            found += piece;
            if piece < wanted {
                break;
            }
        }
        found
    }

    /// Whether the `len` bytes at `at` were all resident a moment ago. An older answer is confirmed
    /// by checking a page, and the chunks that follow by another page: if all was resident and
    /// nothing had to be read since, it still is, unless the file was dropped from the page cache
    /// on purpose.
    fn was_recently_resident(&self, at: u64, len: u64) -> bool {
        let reads = self.pool.in_flight_reads();
        let now_us = reads.now_us();
        let chunks = at / CHUNK_BYTES..(at + len).div_ceil(CHUNK_BYTES);
        let is_fresh = |chunk: u64| {
            let end = (at + len).min((chunk + 1) * CHUNK_BYTES);
            (self.recent_answers).covers(chunk, end - chunk * CHUNK_BYTES, now_us)
        };
        if !reads.has_waited_within(ANSWER_LIFETIME_US, now_us) && chunks.clone().all(is_fresh) {
            return true;
        }
        let quiet_us = reads.idle_us(now_us);
        let is_whole = |chunk: &u64| self.resident_chunks.has(*chunk, now_us, quiet_us);
        let is_there = chunks.clone().all(|chunk| is_whole(&chunk)) && self.is_page_resident(at);
        if is_there {
            // With the last page of the following chunks, those chunks too.
            let behind = chunks.end..chunks.end.max(chunks.start + CONFIRMED_CHUNKS);
            let behind = behind.take_while(is_whole).last();
            let last = behind.filter(|last| self.is_page_resident(self.chunk_end(*last) - 1));
            for chunk in chunks.start..last.map_or(chunks.end, |last| last + 1) {
                let bytes = self.chunk_end(chunk) - chunk * CHUNK_BYTES;
                self.recent_answers.record_chunk(chunk, bytes, now_us);
            }
        }
        is_there
    }

    /// Checks whether all of the chunk that contains the `len` bytes at `at` is resident. Mostly it
    /// is, and then other parts of it need not be counted for a while.
    fn check_whole_chunk(&self, at: u64, len: u64) -> bool {
        let reads = self.pool.in_flight_reads();
        let now_us = reads.now_us();
        let quiet_us = reads.idle_us(now_us);
        let chunk = at / CHUNK_BYTES;
        let (start, end) = (chunk * CHUNK_BYTES, self.chunk_end(chunk));
        // Nothing beyond the known end of the file.
        if end <= at || end < at + len {
            return false;
        }
        let len = end - start;
        // For a chunk that was never verified, one call decides first.
        let may_be = self.verified_chunks.has(chunk)
            || self.residency_facts().method == ResidencyMethod::Mincore
            || (self.file()).is_ok_and(|file| {
                let is_counted = residency::are_pages_cached(file, start, len);
                is_counted.unwrap_or(false)
            });
        let is_whole = may_be && self.query_resident(start, len) == len;
        if is_whole {
            self.recent_answers.record_chunk(chunk, len, now_us);
            self.resident_chunks.record_chunk(chunk, now_us, quiet_us);
        }
        is_whole
    }

    /// Whether the `len` bytes at `at`, in one chunk, were recently read or sent, and no loop had
    /// to wait since.
    fn was_recently_read(&self, at: u64, len: u64) -> bool {
        let reads = self.pool.in_flight_reads();
        let now_us = reads.now_us();
        let span_us = reads.since_wait_us(now_us);
        self.read_history()
            .is_some_and(|seen| seen.has_recent_range(at, len, now_us, span_us))
    }

    /// Records bytes that were read or sent, where the kernel does not report residency.
    fn record_read(&self, at: u64, len: usize) {
        if self.residency_facts().method == ResidencyMethod::RecentlyRead
            && let Some(seen) = self.read_history()
        {
            seen.record_range(at, len as u64, self.pool.in_flight_reads().now_us());
        }
    }

    fn read_history(&self) -> Option<&Arc<ReadHistory>> {
        let find = || Some(self.pool.in_flight_reads().read_history(self.identity()?));
        self.read_history.get_or_init(find).as_ref()
    }

    /// Sends up to `len` resident bytes ([`DiskFile::resident_bytes`]) at `at` to a socket; 0 is
    /// the end of the file. If the call waited for a disk they were not resident: earlier answers
    /// of this pool are discarded and pages are counted again.
    ///
    /// # Errors
    /// `WouldBlock`, the connection's error, or the disk's.
    pub(crate) fn send_to(&self, socket: BorrowedFd<'_>, at: u64, len: usize) -> io::Result<usize> {
        if let Some(extent) = self.extent() {
            return arena::send_extent(socket, extent, at, len);
        }
        let file = self.file()?;
        let (sent, has_waited) = self.detect_wait(|| page_cache::send_file(socket, file, at, len));
        if !has_waited && let Ok(sent) = sent {
            self.record_read(at, sent);
        }
        sent
    }

    /// Calls `use_it` with up to `len` bytes at `at` that are known to be resident, at most as many
    /// as the piece buffer of the loop has room for; with none at the end of the file.
    ///
    /// # Errors
    /// That of `use_it`, or the disk's.
    pub(crate) fn with_piece<T>(
        &self,
        at: u64,
        len: usize,
        use_it: impl FnOnce(&[u8]) -> io::Result<T>,
    ) -> io::Result<T> {
        if let Some(extent) = self.extent() {
            return use_it(extent.part(at, len));
        }
        let file = self.file()?;
        buffers::with_piece_buffer(|buffer| {
            let piece = &mut buffer[..len.min(buffers::PIECE_BUFFER_BYTES)];
            let (read, has_waited) = self.detect_wait(|| file.read_at(piece, at));
            let count = read?;
            if !has_waited {
                self.record_read(at, count);
            }
            use_it(&piece[..count])
        })
    }

    /// Runs `work` and returns its result, and whether it waited for a disk.
    fn detect_wait<T>(&self, work: impl FnOnce() -> T) -> (T, bool) {
        let reads = self.pool.in_flight_reads();
        let means = self.residency_facts().method;
        let evidence = match means {
            ResidencyMethod::Mincore | ResidencyMethod::RecentlyRead => WaitEvidence::BlocksRead,
            _ => WaitEvidence::LongSend,
        };
        let began_us = reads.now_us();
        let done = work();
        let now_us = reads.now_us();
        let has_waited = disk_wait::has_waited_for_disk(now_us.saturating_sub(began_us), evidence);
        if has_waited {
            reads.record_wait(now_us);
            if means == ResidencyMethod::Mincore {
                self.stop_querying();
            }
        }
        (done, has_waited)
    }

    /// Stops using the mapping: its answers are wrong (in layered file systems another process has
    /// written the file since, or it is no longer ours), or it gives none. This concerns this file
    /// only; others of its owner may be mapped.
    fn stop_querying(&self) {
        self.set_facts(ResidencyFacts {
            method: ResidencyMethod::RecentlyRead,
            ..self.residency_facts()
        });
    }

    /// Appends all of the `len` bytes at `at` to `into` if they are resident, else nothing. For few
    /// bytes this is cheaper than sending from the page cache.
    pub fn append_resident(&self, at: u64, len: usize, into: &mut Vec<u8>) -> bool {
        if let Some(extent) = self.extent() {
            let part = extent.part(at, len);
            let is_whole = part.len() == len;
            into.extend_from_slice(if is_whole { part } else { &[] });
            return is_whole;
        }
        let before = into.len();
        into.resize(before + len, 0);
        let is_whole = self.read_resident(at, &mut into[before..]) == len;
        if is_whole {
            self.record_read(at, len);
        } else {
            into.truncate(before);
        }
        is_whole
    }

    /// Reads up to `len` bytes at `at`, up to the end of the chunk; none at the end of the file.
    /// Resident bytes are returned at once, others are read by the pool. Concurrent reads of the
    /// same bytes share one read, also through another [`DiskFile`] of the same file and pool, and
    /// receive them if this caller leaves. A read without waiters when its turn comes is skipped.
    ///
    /// # Errors
    /// The pool is full, or the disk failed or did not answer within [`READ_TIMEOUT`].
    pub async fn read(self: &Arc<Self>, at: u64, len: u64) -> Result<Bytes, ReadError> {
        self.read_with_timeout(at, len, READ_TIMEOUT).await
    }

    async fn read_with_timeout(
        self: &Arc<Self>,
        at: u64,
        len: u64,
        limit: Duration,
    ) -> Result<Bytes, ReadError> {
        let len = len.min(remaining_in_chunk(at));
        if len == 0 {
            return Ok(Bytes::new());
        }
        if let Some(extent) = self.extent() {
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            return Ok(Bytes::copy_from_slice(extent.part(at, len)));
        }
        if let Some(bytes) = self.read_resident_now(at, len) {
            return Ok(bytes);
        }
        // A joined read may be lost, shorter than planned, or may have met an end that the file no
        // longer has: then a read of our own follows.
        let (reads, deadline) = (self.pool.in_flight_reads(), clock::now() + limit);
        for may_join in [true, false, false] {
            let joined = reads.find_read(self.read_key(), at).filter(|_| may_join);
            let is_joined = joined.is_some();
            let flight = match joined {
                Some(flight) => {
                    self.pool.update_waiters(flight.id, true);
                    self.read_ahead(at, flight.joined_count);
                    flight
                }
                None => self.begin_read(at, len, 0)?,
            };
            let mut waiter = ReadWaiter {
                pool: &self.pool,
                read: flight,
            };
            let outcome = match clock::timeout_at(deadline, waiter.read.wait()).await {
                None => return Err(self.timeout_error(limit)),
                Some(None) => continue,
                Some(Some(outcome)) => outcome.map_err(ReadError::Disk)?,
            };
            match outcome.part(at, len) {
                Some(bytes) if bytes.is_empty() && is_joined => {}
                Some(bytes) if outcome.len() > SMALL_READ_BYTES => {
                    return Ok(self.compact_if_memory_scarce(bytes));
                }
                Some(bytes) => return Ok(bytes),
                None => {}
            }
        }
        Err(self.pool.lost_error().into())
    }

    fn timeout_error(&self, limit: Duration) -> ReadError {
        let pool = self.pool.name();
        let cause = format!("read timed out: pool `{pool}`, {limit:?}");
        let error = io::Error::new(io::ErrorKind::TimedOut, cause);
        self.report_error(&error);
        ReadError::Disk(Arc::new(error))
    }

    /// Copies a small `piece` of a larger read if memory is scarce, so that the larger one can be
    /// freed.
    #[must_use]
    pub fn compact_if_memory_scarce(&self, piece: Bytes) -> Bytes {
        if piece.len() as u64 > SMALL_READ_BYTES || !self.is_memory_scarce() {
            return piece;
        }
        let claim = self
            .pool
            .in_flight_reads()
            .claim_memory(piece.len() as u64, 1);
        reads::into_accounted_bytes(piece.to_vec(), claim)
    }

    /// Whether the pool's reads take so much memory that a task that waits for a slow client should
    /// drop its piece and read it again in time.
    pub fn is_memory_scarce(&self) -> bool {
        self.pool.in_flight_reads().is_memory_scarce()
    }

    /// Starts a read at `at` in the pool, for one waiter or for the number `expected`.
    fn begin_read(
        self: &Arc<Self>,
        at: u64,
        len: u64,
        expected: usize,
    ) -> Result<reads::ReadHandle, ReadError> {
        let page = page_cache::page_bytes();
        let start = at - at % page;
        let end = (at + len)
            .next_multiple_of(page)
            .min(at + remaining_in_chunk(at));
        let (flight, landing) = self
            .pool
            .in_flight_reads()
            .begin_read(self.read_key(), start, end);
        let this = Arc::clone(self);
        self.verified_chunks.forget(at / CHUNK_BYTES);
        self.pool.spawn_read(flight.id, expected.max(1), move || {
            if expected > 0 || landing.is_wanted() {
                this.run_read(landing, start, end, expected);
            }
        })?;
        Ok(flight)
    }

    /// Runs a read for all present or `expected` waiters. If there are several, the pages are read
    /// once more to mark them as used: all waiters share one read, and the kernel evicts pages used
    /// once first. Blocks.
    fn run_read(&self, landing: ReadCompletion, start: u64, end: u64, expected: usize) {
        let wanted = landing.waiter_count().max(expected);
        let outcome = self.read_in_pool(start, end - start, wanted);
        if let Err(error) = &outcome {
            self.report_error(error);
        }
        let is_read = outcome.is_ok();
        let is_shared = landing.waiter_count().max(expected) > 1;
        landing.complete(outcome);
        if is_read
            && is_shared
            && self.residency_facts().method != ResidencyMethod::InMemory
            && let Ok(file) = self.file()
            // Pages that were evicted at once are not read again for that.
            && residency::are_pages_cached(file, start, end - start).unwrap_or(false)
        {
            // On failure the pages stay marked as before.
            let _ = page_cache::mark_pages_used(file, start, end - start);
        }
    }

    /// Reads ahead behind the chunk at `at`, which this number of `waiters` besides the first have
    /// joined: they will want the following chunks too, as may all other clients of the file.
    /// Otherwise each chunk of an evicted file would wait separately for a busy disk. Repeated
    /// whenever the number of waiters has doubled.
    fn read_ahead(self: &Arc<Self>, at: u64, waiters: usize) {
        if waiters < CROWD_WAITERS || !waiters.is_power_of_two() {
            return;
        }
        self.pool.record_crowded_read();
        let Some(identity) = self.identity() else {
            return;
        };
        // Nearly every holder of the file is sending it.
        let crowd = Arc::strong_count(self).max(waiters);
        let chunks = ((crowd / CROWD_WAITERS) as u64).min(MAX_READ_AHEAD_CHUNKS);
        let first = at / CHUNK_BYTES + 1;
        for chunk in first..first + chunks {
            let start = chunk * CHUNK_BYTES;
            let Some(len @ 1..) = identity.bytes.checked_sub(start) else {
                return;
            };
            let len = len.min(CHUNK_BYTES);
            if self.is_missing(start, len) && self.begin_read(start, len, crowd).is_err() {
                return;
            }
        }
    }

    /// Whether some of the `len` bytes at `at`, in one chunk, are known not to be resident and are
    /// not being read.
    fn is_missing(&self, at: u64, len: u64) -> bool {
        let is_there = match self.residency_facts().method {
            ResidencyMethod::Cachestat => (self.file())
                .and_then(|file| residency::are_pages_cached(file, at, len))
                .unwrap_or(true),
            ResidencyMethod::Mincore => self.query_resident(at, len) == len,
            ResidencyMethod::RecentlyRead => self.was_recently_read(at, len),
            ResidencyMethod::InMemory
            | ResidencyMethod::Probe
            | ResidencyMethod::Unknown
            | ResidencyMethod::Unavailable => true,
        };
        !is_there
            && !self
                .pool
                .in_flight_reads()
                .is_being_read(self.read_key(), at, len)
    }

    /// Reads for a read in flight with this number of waiters, and detects the residency method if
    /// it is unknown. Blocks.
    fn read_in_pool(
        &self,
        start: u64,
        len: u64,
        waiters: usize,
    ) -> Result<ReadData, Arc<io::Error>> {
        // Before the first read: it would leave marks in the page cache at which later readers read
        // ahead despite the advice.
        self.stop_read_ahead();
        let file = self.file()?;
        let kind = match self.residency_facts().method {
            ResidencyMethod::Unknown => {
                Some(page_cache::file_system_kind(file).unwrap_or(FileSystemKind::Other))
            }
            _ => None,
        };
        let claim = self.pool.in_flight_reads().claim_memory(len, waiters);
        let wanted = usize::try_from(claim.bytes()).unwrap_or(usize::MAX);
        let bytes = page_cache::read_whole_at(file, start, wanted)?;
        if let Some(kind) = kind {
            let read = (start, bytes.len());
            match residency::detect_residency(file, kind, read, || self.mapping()) {
                DetectedResidency::AllFiles(facts) => self.remember_facts(facts),
                DetectedResidency::ThisFile(facts) => self.set_facts(facts),
            }
        }
        self.record_read(start, bytes.len());
        Ok(ReadData::new(start, bytes, claim))
    }

    /// The resident bytes at `at`, at most [`MAX_READ_ON_LOOP`]; `None` when the first byte is not
    /// resident or this cannot be determined.
    fn read_resident_now(&self, at: u64, len: u64) -> Option<Bytes> {
        let is_scarce = self.is_memory_scarce();
        let most = if is_scarce {
            SMALL_READ_BYTES
        } else {
            MAX_READ_ON_LOOP
        };
        let len = self.readable_now(at, len.min(most));
        if len == 0 {
            return None;
        }
        let claim = self.pool.in_flight_reads().claim_memory(len, 1);
        let mut bytes = vec![0; usize::try_from(claim.bytes()).ok()?];
        let count = self.read_cached(at, &mut bytes);
        bytes.truncate(count);
        self.record_read(at, count);
        (count > 0).then(|| reads::into_accounted_bytes(bytes, claim))
    }

    /// Fills `into` with the bytes at `at` if they are resident; returns the number of bytes.
    fn read_resident(&self, at: u64, into: &mut [u8]) -> usize {
        let len = into.len() as u64;
        match self.readable_now(at, len) == len {
            true => self.read_cached(at, into),
            false => 0,
        }
    }

    /// How many bytes the loop may attempt to read.
    fn readable_now(&self, at: u64, len: u64) -> u64 {
        let Ok(file) = self.file() else { return 0 };
        match self.residency_facts().method {
            ResidencyMethod::InMemory => len,
            // Counting first keeps the attempt from starting to read missing pages.
            ResidencyMethod::Cachestat => {
                residency::cached_prefix_bytes(file, at, len).unwrap_or(0)
            }
            ResidencyMethod::Mincore => self.query_resident(at, len),
            ResidencyMethod::RecentlyRead if self.was_recently_read(at, len) => len,
            ResidencyMethod::RecentlyRead | ResidencyMethod::Probe => {
                // A probe starts to read a missing page, so one miss answers for those that follow.
                let now_us = self.pool.in_flight_reads().now_us();
                if self.last_miss.is_within(MISS_TIME_US, now_us) {
                    return 0;
                }
                match residency::is_byte_ready(file, at) {
                    Ok(true) => len.min(SMALL_READ_BYTES),
                    Ok(false) | Err(_) => {
                        disk_wait::reset_blocks_read();
                        self.last_miss.record(now_us);
                        0
                    }
                }
            }
            ResidencyMethod::Unknown | ResidencyMethod::Unavailable => 0,
        }
    }

    fn read_cached(&self, at: u64, into: &mut [u8]) -> usize {
        let Ok(file) = self.file() else { return 0 };
        if into.is_empty() {
            return 0;
        }
        match self.residency_facts().method {
            ResidencyMethod::InMemory => file::read_at(file, into, at).unwrap_or(0),
            // Where the pages of a descriptor cannot be counted, those of a lower layer cannot be
            // probed either.
            ResidencyMethod::Mincore => {
                self.detect_wait(|| file::read_at(file, into, at).unwrap_or(0))
                    .0
            }
            ResidencyMethod::RecentlyRead if self.was_recently_read(at, into.len() as u64) => {
                self.detect_wait(|| file::read_at(file, into, at).unwrap_or(0))
                    .0
            }
            _ => file::read_at_if_cached(file, into, at).unwrap_or(0),
        }
    }

    /// How many of the `len` bytes at `at`, in one chunk, are resident now, as a prefix; never
    /// cached.
    fn query_resident(&self, at: u64, len: u64) -> u64 {
        if self.residency_facts().method != ResidencyMethod::Mincore {
            return self.count_resident(at, len);
        }
        let found = self.mapping();
        let found = found.map(|mapping| residency::mapped_prefix_bytes(mapping, at, len));
        if let Ok(Ok(found)) = found {
            return found;
        }
        self.stop_querying();
        0
    }

    /// Whether the page with the byte at `at` is resident.
    fn is_page_resident(&self, at: u64) -> bool {
        if self.residency_facts().method == ResidencyMethod::Mincore {
            return self.query_resident(at, 1) > 0;
        }
        let counted = self
            .file()
            .map(|file| residency::are_pages_cached(file, at, 1));
        counted.is_ok_and(|counted| counted.unwrap_or(false))
    }

    fn count_resident(&self, at: u64, len: u64) -> u64 {
        let chunk = at / CHUNK_BYTES;
        if self
            .pool
            .in_flight_reads()
            .is_being_read(self.read_key(), at, len)
        {
            return 0;
        }
        let Ok(file) = self.file() else { return 0 };
        let Ok(counted) = residency::cached_prefix_bytes(file, at, len) else {
            self.forget_facts();
            return 0;
        };
        if counted < len {
            self.verified_chunks.forget(chunk);
        }
        // Once each page was verified, one at the end stands for all.
        let ready = match self.verified_chunks.has(chunk) && counted > 0 {
            true => match residency::is_byte_ready(file, at + counted - 1) {
                Ok(true) => Ok(counted),
                Ok(false) => residency::ready_prefix_bytes(file, at, counted),
                Err(error) => Err(error),
            },
            false => residency::ready_prefix_bytes(file, at, counted),
        };
        let Ok(ready) = ready else {
            self.forget_facts();
            return 0;
        };
        if ready < counted {
            self.verified_chunks.forget(chunk);
        } else if at % CHUNK_BYTES < page_cache::page_bytes() && at + ready == self.chunk_end(chunk)
        {
            self.verified_chunks.add(chunk);
        }
        ready
    }

    /// The end of the chunk, or of the file if that is in it.
    fn chunk_end(&self, chunk: u64) -> u64 {
        let end = (chunk + 1) * CHUNK_BYTES;
        self.identity()
            .map_or(end, |identity| identity.bytes.min(end))
    }

    /// Returns how residency is checked, looked up once.
    fn residency_facts(&self) -> ResidencyFacts {
        let facts = ResidencyFacts::from_bits(self.facts_bits.load(Ordering::Relaxed));
        if facts.method != ResidencyMethod::Unknown {
            return facts;
        }
        let identity = self.identity();
        let Some(facts) =
            identity.and_then(|identity| self.pool.in_flight_reads().facts(&identity))
        else {
            return ResidencyFacts::UNDETECTED;
        };
        self.set_facts(facts);
        facts
    }

    fn remember_facts(&self, facts: ResidencyFacts) {
        if let Some(identity) = self.identity() {
            self.pool.in_flight_reads().remember_facts(&identity, facts);
        }
        self.set_facts(facts);
    }

    fn set_facts(&self, facts: ResidencyFacts) {
        if !matches!(
            facts.method,
            ResidencyMethod::Unknown | ResidencyMethod::InMemory | ResidencyMethod::Unavailable
        ) {
            self.stop_read_ahead();
        }
        self.facts_bits.store(facts.to_bits(), Ordering::Relaxed);
    }

    /// The file system does not behave as detected: another one may have taken its number.
    fn forget_facts(&self) {
        if let Some(identity) = self.identity() {
            self.pool.in_flight_reads().forget_facts(&identity);
        }
        self.facts_bits
            .store(ResidencyFacts::UNDETECTED.to_bits(), Ordering::Relaxed);
    }

    fn stop_read_ahead(&self) {
        if !self.is_random.swap(true, Ordering::Relaxed) {
            // A file system that does not support the advice does not read ahead.
            let _ = self.file().and_then(page_cache::advise_random_access);
        }
    }

    fn identity(&self) -> Option<FileIdentity> {
        *self
            .identity
            .get_or_init(|| self.file().and_then(page_cache::file_identity).ok())
    }

    /// The mapping of the file, as long as it was at its first use.
    ///
    /// # Errors
    /// `PermissionDenied` where the kernel reports residency for no file of its owner,
    /// `Unsupported` where it does for no file; other errors concern this file.
    fn mapping(&self) -> Result<&ResidencyMapping, io::ErrorKind> {
        let map = || {
            let bytes = self.identity().ok_or(io::ErrorKind::Other)?.bytes;
            let file = self.file().map_err(|error| error.kind())?;
            ResidencyMapping::new(file, bytes).map_err(|error| {
                // A file that has grown since may have pages beyond the mapping.
                let is_same =
                    page_cache::regular_file_size(file).is_ok_and(|now| now == Some(bytes));
                match error.kind() {
                    io::ErrorKind::PermissionDenied if !is_same => io::ErrorKind::Other,
                    kind => kind,
                }
            })
        };
        self.mapping.get_or_init(map).as_ref().map_err(|kind| *kind)
    }

    fn read_key(&self) -> FileKey {
        match (self.residency_facts().has_inodes, self.identity()) {
            (true, Some(identity)) => FileKey::Inode(identity),
            _ => FileKey::Handle(std::ptr::from_ref(self).addr()),
        }
    }
}

impl Drop for DiskFile {
    fn drop(&mut self) {
        let is_quick = match &self.source {
            // An object that was replaced or evicted meanwhile: its blocks are freed with its last
            // descriptor, which may block. Some file systems also contact a server on close.
            Some(DiskSource::File(file)) => {
                let facts = self.residency_facts();
                let is_local = facts.method == ResidencyMethod::InMemory || facts.has_inodes;
                is_local && page_cache::is_unlinked(file).is_ok_and(|is_gone| !is_gone)
            }
            Some(DiskSource::Extent(extent)) => {
                extent.bytes().len() <= arena::MAX_INLINE_EXTENT_BYTES
            }
            None => true,
        };
        // The mapping keeps the file open, too.
        let mapping = self.mapping.take();
        if let Some(source) = self.source.take()
            && !is_quick
        {
            self.pool.run_detached(move || drop((source, mapping)));
        }
    }
}

/// A waiter of a read, counted in the pool's queue until it is dropped.
struct ReadWaiter<'a> {
    pool: &'a Pool,
    read: reads::ReadHandle,
}

impl Drop for ReadWaiter<'_> {
    fn drop(&mut self) {
        if self.read.is_pending() {
            self.pool.update_waiters(self.read.id, false);
        }
    }
}

fn remaining_in_chunk(at: u64) -> u64 {
    CHUNK_BYTES - at % CHUNK_BYTES
}

/// Maximum number of chunks confirmed by two pages: a client at full speed needs some milliseconds
/// for them, and a file stores twice as many answers.
const CONFIRMED_CHUNKS: u64 = 16;

/// Minimum number of waiters for read-ahead, and waiters for each chunk of it. Two clients that
/// happen to want the same file do not get more of the disk than two that do not.
const CROWD_WAITERS: usize = 4;

/// Maximum number of chunks that are read ahead (8 MB): a tenth of a second of a disk of 100 MB/s.
const MAX_READ_AHEAD_CHUNKS: u64 = 16;

/// Maximum number of bytes read at once on the loop: what a socket may take, a fortieth of a
/// millisecond.
const MAX_READ_ON_LOOP: u64 = 128 * 1024;

/// How long after a miss a file that can only be probed is read in the pool without another probe:
/// some chunks of an idle disk.
const MISS_TIME_US: u64 = 5000;

/// How long an unchanged file counts as unchanged.
const UNCHANGED_TIME_US: u64 = 1000;

#[cfg(test)]
mod tests;
