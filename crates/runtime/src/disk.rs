//! Files that are sent: what of them is in memory goes out from the loop, the rest is read in a pool.
//!
//! `files` and `cache` open a [`DiskFile`] once and share it between requests; `edge` asks
//! [`DiskFile::resident`] right before each piece it sends and [`DiskFile::read`] for what is not
//! there. What must stay true: the loop never waits for a disk, and one reading of a chunk serves all
//! who wait for it.
//!
//! What is in memory is asked per piece, not per file, and again after each wait: pages go while a
//! slow client drains its socket. How it can be asked depends on the file system (`residency`); readings
//! under way, and the memory that they take, are the pool's (`reads`).

mod arena;
mod reads;
mod residency;
mod seen;
mod waits;

use std::fmt::Debug;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use penstock_sys::file;
use penstock_sys::page_cache::{self, FileIdentity, FileSystemKind, ResidencyMapping};
use penstock_sys::page_memory::Extent;

pub use self::arena::Arena;
pub(crate) use self::reads::{FileKey, Reads};
use self::reads::{Landing, Outcome};
use self::residency::{Asked, FRESH_US, Facts, Found, Means, Moment, Proven, Whole};
use self::seen::Seen;
use self::waits::Doubt;
use crate::blocking::{Pool, PoolError};
use crate::clock;

/// Bytes that a pool reads at a time, and the grid on which readings are shared.
pub const CHUNK_BYTES: u64 = 512 * 1024;

/// Bytes that are read at a time for one who cannot take more soon, or when memory is scarce.
pub const SMALL_BYTES: u64 = 64 * 1024;

/// How long a disk may take for one piece: one that does not answer for this long is as good as gone.
pub const READ_MAX: Duration = Duration::from_secs(60);

/// An open regular file, with the pool that reads what of it is not in memory; or a body that is there ([`Arena`]).
#[derive(Debug)]
pub struct DiskFile {
    /// There until it is dropped.
    source: Option<Source>,
    pool: Pool,
    /// How its residency can be asked, as far as known ([`Facts::to_bits`]).
    facts: AtomicU8,
    /// Which file it is, as it was when that was first asked; `None` where the kernel does not tell.
    identity: OnceLock<Option<FileIdentity>>,
    /// Where its residency is asked so, or why it cannot be.
    mapping: OnceLock<Result<ResidencyMapping, io::ErrorKind>>,
    /// The kernel was told not to read ahead.
    is_random: AtomicBool,
    proven: Proven,
    asked: Asked,
    whole: Whole,
    /// What was read or sent of it, where nothing else tells; `None` where it is not known which file it is.
    seen: OnceLock<Option<Arc<Seen>>>,
    /// When a try found that something is not in memory, where it can only be tried.
    missed: Moment,
    /// When it was last seen to be the same.
    seen_same: Moment,
    faults: Option<Arc<dyn FaultSink>>,
}

/// What is sent.
#[derive(Debug)]
enum Source {
    /// A file of its own.
    File(File),
    /// A body in memory.
    Extent(Extent),
}

/// Who wants to know that a file cannot be read, whoever reads it. Called on loops and in pools: does not block.
pub trait FaultSink: Debug + Send + Sync {
    /// Reading failed, or took longer than its reader waits (`TimedOut`), or the file ends before what was
    /// promised of it (`UnexpectedEof`).
    fn failed(&self, error: &io::Error);
}

/// Why a piece of a file was not read.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadError {
    /// The pool did not take the work.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The disk's answer, shared by all who waited for it; `TimedOut` when there was none in [`READ_MAX`].
    #[error("cannot read the file: {0}")]
    Disk(Arc<io::Error>),
}

impl ReadError {
    /// Whether there is too much to do, rather than something broken: it may work later.
    #[must_use]
    pub fn is_overload(&self) -> bool {
        match self {
            Self::Pool(_) => true,
            Self::Disk(error) => error.kind() == io::ErrorKind::TimedOut,
        }
    }
}

impl DiskFile {
    /// Takes an open regular file. Makes no system call that could wait for a disk.
    #[must_use]
    pub fn new(file: File, pool: Pool) -> Self {
        Self::of(Source::File(file), pool, Facts::UNKNOWN)
    }

    fn of(source: Source, pool: Pool, facts: Facts) -> Self {
        Self {
            source: Some(source),
            pool,
            facts: AtomicU8::new(facts.to_bits()),
            identity: OnceLock::new(),
            mapping: OnceLock::new(),
            is_random: AtomicBool::new(false),
            proven: Proven::default(),
            asked: Asked::default(),
            whole: Whole::default(),
            seen: OnceLock::new(),
            missed: Moment::default(),
            seen_same: Moment::default(),
            faults: None,
        }
    }

    /// Tells `faults` what goes wrong with it.
    #[must_use]
    pub fn with_faults(mut self, faults: Arc<dyn FaultSink>) -> Self {
        self.faults = Some(faults);
        self
    }

    /// Tells its owner that it could not be read. What fails in [`DiskFile::read`] is told already.
    pub fn failed(&self, error: &io::Error) {
        if let Some(faults) = &self.faults {
            faults.failed(error);
        }
    }

    /// The file.
    ///
    /// # Errors
    /// `Unsupported` of a body in memory.
    pub fn file(&self) -> io::Result<&File> {
        match &self.source {
            Some(Source::File(file)) => Ok(file),
            Some(Source::Extent(_)) | None => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn extent(&self) -> Option<&Extent> {
        match &self.source {
            Some(Source::Extent(extent)) => Some(extent),
            Some(Source::File(_)) | None => None,
        }
    }

    /// The pool that reads it.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Whether `is_same` holds of the file's state, which the kernel is asked for on the loop: that it does is
    /// remembered for a millisecond, so that a file that many want is not asked about each time. A body in memory
    /// stays as it is.
    pub fn is_still(&self, is_same: impl FnOnce(&Metadata) -> bool) -> bool {
        let Ok(file) = self.file() else {
            return true;
        };
        let now_us = self.pool.reads().now_us();
        if self.seen_same.is_within(SAME_US, now_us) {
            return true;
        }
        let is_same = file.metadata().is_ok_and(|now| is_same(&now));
        if is_same {
            self.seen_same.note(now_us);
        }
        is_same
    }

    /// How many of the `len` bytes at `at` can be sent right now without waiting for the disk: a
    /// prefix, up to the end of the chunk (of [`CHUNK_BYTES`]) that `at` is in; 0 when the first is not
    /// in memory or the file system cannot tell. Ask again after each wait; who asks for the same chunk
    /// within some milliseconds gets the same answer, and within seconds, as long as the pool has nothing to read, one
    /// that a page or two have confirmed.
    #[must_use]
    pub fn resident(&self, at: u64, len: u64) -> u64 {
        let len = len.min(left_in_chunk(at));
        match self.known().means {
            Means::Memory => len,
            Means::Counted | Means::Mapped
                if self.is_known(at, len) || self.finds_whole(at, len) =>
            {
                len
            }
            Means::Counted | Means::Mapped => {
                let now_us = self.pool.reads().now_us();
                let ready = self.present(at, len);
                if at.is_multiple_of(CHUNK_BYTES) && ready == len {
                    self.asked.note(at / CHUNK_BYTES, len, now_us);
                }
                ready
            }
            Means::Seen if self.is_seen(at, len) => len,
            Means::Seen | Means::Tried | Means::Unknown | Means::Never => 0,
        }
    }

    /// As [`DiskFile::resident`], for all of the `len` bytes, a few chunks.
    #[must_use]
    pub fn resident_run(&self, at: u64, len: u64) -> u64 {
        let is_asked = || matches!(self.known().means, Means::Counted | Means::Mapped);
        if left_in_chunk(at) < len && is_asked() && self.is_known(at, len) {
            return len;
        }
        let mut found = 0;
        while found < len {
            let wanted = (len - found).min(left_in_chunk(at + found));
            let piece = self.resident(at + found, wanted);
            found += piece;
            if piece < wanted {
                break;
            }
        }
        found
    }

    /// Whether the `len` bytes at `at` were all there a moment ago. What is not quite as fresh is confirmed by a page, and
    /// what follows it by another: if all of it was there, and nothing had to be read since, it still is, unless somebody has dropped the file on
    /// purpose.
    fn is_known(&self, at: u64, len: u64) -> bool {
        let reads = self.pool.reads();
        let now_us = reads.now_us();
        let chunks = at / CHUNK_BYTES..(at + len).div_ceil(CHUNK_BYTES);
        let is_fresh = |chunk: u64| {
            let end = (at + len).min((chunk + 1) * CHUNK_BYTES);
            (self.asked).covers(chunk, end - chunk * CHUNK_BYTES, now_us)
        };
        if !reads.has_waited_within(FRESH_US, now_us) && chunks.clone().all(is_fresh) {
            return true;
        }
        let quiet_us = reads.quiet_us(now_us);
        let is_whole = |chunk: &u64| self.whole.has(*chunk, now_us, quiet_us);
        let is_there = chunks.clone().all(|chunk| is_whole(&chunk)) && self.has_page(at);
        if is_there {
            // With its last page also what is behind it.
            let behind = chunks.end..chunks.end.max(chunks.start + CONFIRMED_CHUNKS);
            let behind = behind.take_while(is_whole).last();
            let last = behind.filter(|last| self.has_page(self.chunk_end(*last) - 1));
            for chunk in chunks.start..last.map_or(chunks.end, |last| last + 1) {
                let bytes = self.chunk_end(chunk) - chunk * CHUNK_BYTES;
                self.asked.note(chunk, bytes, now_us);
            }
        }
        is_there
    }

    /// Finds out whether all of the chunk with the `len` bytes at `at` is there: mostly it is, and then whoever asks for
    /// another part of it soon need not count.
    fn finds_whole(&self, at: u64, len: u64) -> bool {
        let reads = self.pool.reads();
        let now_us = reads.now_us();
        let quiet_us = reads.quiet_us(now_us);
        let chunk = at / CHUNK_BYTES;
        let (start, end) = (chunk * CHUNK_BYTES, self.chunk_end(chunk));
        // Not what is behind the end, as far as that is known.
        if end <= at || end < at + len {
            return false;
        }
        let len = end - start;
        // Where it never was that is asked by one call.
        let may_be = self.proven.has(chunk)
            || self.known().means == Means::Mapped
            || (self.file()).is_ok_and(|file| {
                let is_counted = residency::is_counted(file, start, len);
                is_counted.unwrap_or(false)
            });
        let is_whole = may_be && self.present(start, len) == len;
        if is_whole {
            self.asked.note(chunk, len, now_us);
            self.whole.note(chunk, now_us, quiet_us);
        }
        is_whole
    }

    /// Whether the `len` bytes at `at`, in one chunk, were just read or sent, and no loop had to wait since.
    fn is_seen(&self, at: u64, len: u64) -> bool {
        let reads = self.pool.reads();
        let now_us = reads.now_us();
        let span_us = reads.waited_us(now_us);
        self.seen()
            .is_some_and(|seen| seen.has(at, len, now_us, span_us))
    }

    /// Notes what was read or sent, where nothing else tells what is in memory.
    fn note_seen(&self, at: u64, len: usize) {
        if self.known().means == Means::Seen
            && let Some(seen) = self.seen()
        {
            seen.note(at, len as u64, self.pool.reads().now_us());
        }
    }

    fn seen(&self) -> Option<&Arc<Seen>> {
        let find = || Some(self.pool.reads().seen(self.identity()?));
        self.seen.get_or_init(find).as_ref()
    }

    /// Sends up to `len` bytes at `at` that are [`DiskFile::resident`] to a socket; 0 is the end. Where that has waited
    /// for a disk they were not: what this pool has seen so far counts no more, and pages are counted again.
    ///
    /// # Errors
    /// `WouldBlock`, the connection's error, or the disk's.
    pub(crate) fn send_to(&self, socket: BorrowedFd<'_>, at: u64, len: usize) -> io::Result<usize> {
        if let Some(extent) = self.extent() {
            return arena::send(socket, extent, at, len);
        }
        let file = self.file()?;
        let (sent, has_waited) = self.watched(|| page_cache::send_file(socket, file, at, len));
        if !has_waited && let Ok(sent) = sent {
            self.note_seen(at, sent);
        }
        sent
    }

    /// What `work` gives, and whether it has waited for a disk.
    fn watched<T>(&self, work: impl FnOnce() -> T) -> (T, bool) {
        let reads = self.pool.reads();
        let means = self.known().means;
        let doubt = match means {
            Means::Mapped | Means::Seen => Doubt::Dear,
            _ => Doubt::Cheap,
        };
        let began_us = reads.now_us();
        let done = work();
        let now_us = reads.now_us();
        let has_waited = waits::has_waited(now_us.saturating_sub(began_us), doubt);
        if has_waited {
            reads.note_waited(now_us);
            if means == Means::Mapped {
                self.stop_asking();
            }
        }
        (done, has_waited)
    }

    /// What a mapping tells is wrong (in layers another has written to it since, or it is not ours any more), or it
    /// tells nothing. That is so of this file only: others of its owner may well be mapped.
    fn stop_asking(&self) {
        self.take_up(Facts {
            means: Means::Seen,
            ..self.known()
        });
    }

    /// Appends all of the `len` bytes at `at` to `into` if they are in memory, else nothing: cheaper than
    /// to send them from the page cache where they are few.
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
            self.note_seen(at, len);
        } else {
            into.truncate(before);
        }
        is_whole
    }

    /// Reads some bytes at `at`: up to the end of its chunk, at most `len`; none at the file's end. What
    /// is in memory comes at once, else the pool reads. Others who want the same bytes meanwhile wait for
    /// the same reading, also by another [`DiskFile`] of the same file and pool, and get them if this
    /// one no longer wants them; a reading that nobody wants when its turn comes is not made.
    ///
    /// # Errors
    /// The pool is full, or the disk failed or gave no answer within [`READ_MAX`].
    pub async fn read(self: &Arc<Self>, at: u64, len: u64) -> Result<Bytes, ReadError> {
        self.read_within(at, len, READ_MAX).await
    }

    async fn read_within(
        self: &Arc<Self>,
        at: u64,
        len: u64,
        limit: Duration,
    ) -> Result<Bytes, ReadError> {
        let len = len.min(left_in_chunk(at));
        if len == 0 {
            return Ok(Bytes::new());
        }
        if let Some(extent) = self.extent() {
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            return Ok(Bytes::copy_from_slice(extent.part(at, len)));
        }
        if let Some(bytes) = self.read_now(at, len) {
            return Ok(bytes);
        }
        // One that was lost, that became shorter than it was meant to be, or that met an end which the
        // file may not have any more, is followed by one of ours.
        let (reads, deadline) = (self.pool.reads(), clock::now() + limit);
        for may_join in [true, false, false] {
            let joined = reads.find(self.key(), at).filter(|_| may_join);
            let is_joined = joined.is_some();
            let flight = match joined {
                Some(flight) => {
                    self.pool.count_waiter(flight.id, true);
                    self.read_ahead(at, flight.found_by);
                    flight
                }
                None => self.begin(at, len, 0)?,
            };
            let mut waiter = Waiter {
                pool: &self.pool,
                flight,
            };
            let outcome = match clock::until(deadline, waiter.flight.outcome()).await {
                None => return Err(self.late(limit)),
                Some(None) => continue,
                Some(Some(outcome)) => outcome.map_err(ReadError::Disk)?,
            };
            match outcome.part(at, len) {
                Some(bytes) if bytes.is_empty() && is_joined => {}
                Some(bytes) if outcome.len() > SMALL_BYTES => return Ok(self.compact(bytes)),
                Some(bytes) => return Ok(bytes),
                None => {}
            }
        }
        Err(self.pool.lost().into())
    }

    fn late(&self, limit: Duration) -> ReadError {
        let pool = self.pool.name();
        let cause = format!("no answer from the disk of pool `{pool}` in {limit:?}");
        let error = io::Error::new(io::ErrorKind::TimedOut, cause);
        self.failed(&error);
        ReadError::Disk(Arc::new(error))
    }

    /// A small `piece` of a larger one that was read, by itself if memory is scarce: the larger one can go
    /// then.
    #[must_use]
    pub fn compact(&self, piece: Bytes) -> Bytes {
        if piece.len() as u64 > SMALL_BYTES || !self.is_memory_scarce() {
            return piece;
        }
        let claim = self.pool.reads().claim(piece.len() as u64, 1);
        reads::hold(piece.to_vec(), claim)
    }

    /// Whether what was read here and at other files of the pool takes so much memory that whoever waits
    /// for a slow client should let its piece go, and read it again in time.
    #[must_use]
    pub fn is_memory_scarce(&self) -> bool {
        self.pool.reads().is_memory_scarce()
    }

    /// Begins to read at `at` in the pool, for one who waits; or for so many as are `expected`.
    fn begin(
        self: &Arc<Self>,
        at: u64,
        len: u64,
        expected: usize,
    ) -> Result<reads::Flight, ReadError> {
        let page = page_cache::page_bytes();
        let start = at - at % page;
        let end = (at + len)
            .next_multiple_of(page)
            .min(at + left_in_chunk(at));
        let (flight, landing) = self.pool.reads().begin(self.key(), start, end);
        let this = Arc::clone(self);
        self.proven.forget(at / CHUNK_BYTES);
        self.pool.start_read(flight.id, expected.max(1), move || {
            if expected > 0 || landing.is_wanted() {
                this.read_for(landing, start, end, expected);
            }
        })?;
        Ok(flight)
    }

    /// Makes a reading for all who wait for it, or are expected to. If they are several the kernel is told by reading it
    /// once more: all of them get what was read once, and pages that were used once are the first that it drops. Blocks.
    fn read_for(&self, landing: Landing, start: u64, end: u64, expected: usize) {
        let wanted = landing.waiters().max(expected);
        let outcome = self.read_in_pool(start, end - start, wanted);
        if let Err(error) = &outcome {
            self.failed(error);
        }
        let is_read = outcome.is_ok();
        let is_shared = landing.waiters().max(expected) > 1;
        landing.land(outcome);
        if is_read
            && is_shared
            && self.known().means != Means::Memory
            && let Ok(file) = self.file()
            // Those that went at once are not read again for that.
            && residency::is_counted(file, start, end - start).unwrap_or(false)
        {
            // Where it does not succeed they are as used as before.
            let _ = page_cache::mark_pages_used(file, start, end - start);
        }
    }

    /// Begins to read what is missing behind the chunk at `at`, which so many `waiters` besides the first wait for by now.
    /// They will want that too, and so may all others who are sent the file. Else each chunk of a file that was dropped would wait by itself
    /// for a disk that is busy, one after the other. It is looked again whenever they are twice as many.
    fn read_ahead(self: &Arc<Self>, at: u64, waiters: usize) {
        if waiters < CROWD || !waiters.is_power_of_two() {
            return;
        }
        self.pool.note_crowd();
        let Some(identity) = self.identity() else {
            return;
        };
        // Who has the file is sent it, but for a few.
        let crowd = Arc::strong_count(self).max(waiters);
        let chunks = ((crowd / CROWD) as u64).min(AHEAD_CHUNKS);
        let first = at / CHUNK_BYTES + 1;
        for chunk in first..first + chunks {
            let start = chunk * CHUNK_BYTES;
            let Some(len @ 1..) = identity.bytes.checked_sub(start) else {
                return;
            };
            let len = len.min(CHUNK_BYTES);
            if self.is_missing(start, len) && self.begin(start, len, crowd).is_err() {
                return;
            }
        }
    }

    /// Whether something of the `len` bytes at `at`, in one chunk, is not in memory, as far as that can be told, and is
    /// not being read.
    fn is_missing(&self, at: u64, len: u64) -> bool {
        let is_there = match self.known().means {
            Means::Counted => (self.file())
                .and_then(|file| residency::is_counted(file, at, len))
                .unwrap_or(true),
            Means::Mapped => self.present(at, len) == len,
            Means::Seen => self.is_seen(at, len),
            Means::Memory | Means::Tried | Means::Unknown | Means::Never => true,
        };
        !is_there && !self.pool.reads().is_busy(self.key(), at, len)
    }

    /// Reads for a flight that so many wait for, and finds out by the way what the file system can tell. Blocks.
    fn read_in_pool(
        &self,
        start: u64,
        len: u64,
        waiters: usize,
    ) -> Result<Outcome, Arc<io::Error>> {
        // Before the first reading already: it would leave marks in the page cache at which whoever
        // comes by reads ahead, told not to or not.
        self.stop_read_ahead();
        let file = self.file()?;
        let kind = match self.known().means {
            Means::Unknown => {
                Some(page_cache::file_system_kind(file).unwrap_or(FileSystemKind::Other))
            }
            _ => None,
        };
        let claim = self.pool.reads().claim(len, waiters);
        let wanted = usize::try_from(claim.bytes()).unwrap_or(usize::MAX);
        let bytes = page_cache::read_whole_at(file, start, wanted)?;
        if let Some(kind) = kind {
            let read = (start, bytes.len());
            match residency::find_out(file, kind, read, || self.mapping()) {
                Found::OfAll(facts) => self.learn(facts),
                Found::OfOne(facts) => self.take_up(facts),
            }
        }
        self.note_seen(start, bytes.len());
        Ok(Outcome::new(start, bytes, claim))
    }

    /// What is in memory at `at`, at most [`NOW_BYTES`]; `None` when the first byte is not, or cannot be
    /// told.
    fn read_now(&self, at: u64, len: u64) -> Option<Bytes> {
        let is_scarce = self.is_memory_scarce();
        let most = if is_scarce { SMALL_BYTES } else { NOW_BYTES };
        let len = self.readable_now(at, len.min(most));
        if len == 0 {
            return None;
        }
        let claim = self.pool.reads().claim(len, 1);
        let mut bytes = vec![0; usize::try_from(claim.bytes()).ok()?];
        let count = self.read_cached(at, &mut bytes);
        bytes.truncate(count);
        self.note_seen(at, count);
        (count > 0).then(|| reads::hold(bytes, claim))
    }

    /// Fills `into` from `at` with what is in memory: the number of bytes.
    fn read_resident(&self, at: u64, into: &mut [u8]) -> usize {
        let len = into.len() as u64;
        match self.readable_now(at, len) == len {
            true => self.read_cached(at, into),
            false => 0,
        }
    }

    /// How many bytes a try to read them can be made for on the loop.
    fn readable_now(&self, at: u64, len: u64) -> u64 {
        let Ok(file) = self.file() else { return 0 };
        match self.known().means {
            Means::Memory => len,
            // The count keeps the try from beginning to read what is not there.
            Means::Counted => residency::counted_prefix(file, at, len).unwrap_or(0),
            Means::Mapped => self.present(at, len),
            Means::Seen if self.is_seen(at, len) => len,
            Means::Seen | Means::Tried => {
                // A try begins to read what is missing, so that one miss stands for those that follow.
                let now_us = self.pool.reads().now_us();
                if self.missed.is_within(MISSED_US, now_us) {
                    return 0;
                }
                match residency::is_ready(file, at) {
                    Ok(true) => len.min(SMALL_BYTES),
                    Ok(false) | Err(_) => {
                        waits::forget();
                        self.missed.note(now_us);
                        0
                    }
                }
            }
            Means::Unknown | Means::Never => 0,
        }
    }

    fn read_cached(&self, at: u64, into: &mut [u8]) -> usize {
        let Ok(file) = self.file() else { return 0 };
        if into.is_empty() {
            return 0;
        }
        match self.known().means {
            Means::Memory => file::read_at(file, into, at).unwrap_or(0),
            // Where a descriptor's pages cannot be asked for, those of a layer below it cannot be tried either.
            Means::Mapped => {
                self.watched(|| file::read_at(file, into, at).unwrap_or(0))
                    .0
            }
            Means::Seen if self.is_seen(at, into.len() as u64) => {
                self.watched(|| file::read_at(file, into, at).unwrap_or(0))
                    .0
            }
            _ => file::read_at_if_cached(file, into, at).unwrap_or(0),
        }
    }

    /// How many of the `len` bytes at `at`, in one chunk, are in memory now, as a prefix; asked anew.
    fn present(&self, at: u64, len: u64) -> u64 {
        if self.known().means != Means::Mapped {
            return self.counted(at, len);
        }
        let found = self.mapping();
        let found = found.map(|mapping| residency::mapped_prefix(mapping, at, len));
        if let Ok(Ok(found)) = found {
            return found;
        }
        self.stop_asking();
        0
    }

    /// Whether the page with the byte at `at` is in memory.
    fn has_page(&self, at: u64) -> bool {
        if self.known().means == Means::Mapped {
            return self.present(at, 1) > 0;
        }
        let counted = self.file().map(|file| residency::is_counted(file, at, 1));
        counted.is_ok_and(|counted| counted.unwrap_or(false))
    }

    fn counted(&self, at: u64, len: u64) -> u64 {
        let chunk = at / CHUNK_BYTES;
        if self.pool.reads().is_busy(self.key(), at, len) {
            return 0;
        }
        let Ok(file) = self.file() else { return 0 };
        let Ok(counted) = residency::counted_prefix(file, at, len) else {
            self.unlearn();
            return 0;
        };
        if counted < len {
            self.proven.forget(chunk);
        }
        // Once each page was seen to be there, one at the end stands for all.
        let ready = match self.proven.has(chunk) && counted > 0 {
            true => match residency::is_ready(file, at + counted - 1) {
                Ok(true) => Ok(counted),
                Ok(false) => residency::ready_prefix(file, at, counted),
                Err(error) => Err(error),
            },
            false => residency::ready_prefix(file, at, counted),
        };
        let Ok(ready) = ready else {
            self.unlearn();
            return 0;
        };
        if ready < counted {
            self.proven.forget(chunk);
        } else if at % CHUNK_BYTES < page_cache::page_bytes() && at + ready == self.chunk_end(chunk)
        {
            self.proven.add(chunk);
        }
        ready
    }

    /// Where the chunk ends, or the file in it.
    fn chunk_end(&self, chunk: u64) -> u64 {
        let end = (chunk + 1) * CHUNK_BYTES;
        self.identity()
            .map_or(end, |identity| identity.bytes.min(end))
    }

    /// What is known about asking, looked up once.
    fn known(&self) -> Facts {
        let facts = Facts::from_bits(self.facts.load(Ordering::Relaxed));
        if facts.means != Means::Unknown {
            return facts;
        }
        let identity = self.identity();
        let Some(facts) = identity.and_then(|identity| self.pool.reads().facts(&identity)) else {
            return Facts::UNKNOWN;
        };
        self.take_up(facts);
        facts
    }

    fn learn(&self, facts: Facts) {
        if let Some(identity) = self.identity() {
            self.pool.reads().learn(&identity, facts);
        }
        self.take_up(facts);
    }

    fn take_up(&self, facts: Facts) {
        if !matches!(facts.means, Means::Unknown | Means::Memory | Means::Never) {
            self.stop_read_ahead();
        }
        self.facts.store(facts.to_bits(), Ordering::Relaxed);
    }

    /// The file system does not keep what it promised: another may have taken its number.
    fn unlearn(&self) {
        if let Some(identity) = self.identity() {
            self.pool.reads().unlearn(&identity);
        }
        self.facts
            .store(Facts::UNKNOWN.to_bits(), Ordering::Relaxed);
    }

    fn stop_read_ahead(&self) {
        if !self.is_random.swap(true, Ordering::Relaxed) {
            // Where it is not understood nothing is read ahead.
            let _ = self.file().and_then(page_cache::advise_random_access);
        }
    }

    fn identity(&self) -> Option<FileIdentity> {
        *self
            .identity
            .get_or_init(|| self.file().and_then(page_cache::file_identity).ok())
    }

    /// Where its residency is asked so, as long as it was when that was first asked.
    ///
    /// # Errors
    /// `PermissionDenied` where the kernel tells this of no file of its owner, `Unsupported` where it is of none;
    /// others are of this one.
    fn mapping(&self) -> Result<&ResidencyMapping, io::ErrorKind> {
        let map = || {
            let bytes = self.identity().ok_or(io::ErrorKind::Other)?.bytes;
            let file = self.file().map_err(|error| error.kind())?;
            ResidencyMapping::new(file, bytes).map_err(|error| {
                // One that has grown since may have pages where none were to be.
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

    /// Under which its readings are found.
    fn key(&self) -> FileKey {
        match (self.known().has_inodes, self.identity()) {
            (true, Some(identity)) => FileKey::Inode(identity),
            _ => FileKey::Handle(std::ptr::from_ref(self).addr()),
        }
    }
}

impl Drop for DiskFile {
    fn drop(&mut self) {
        let is_quick = match &self.source {
            // An object that was replaced or evicted meanwhile: its blocks are freed with its last
            // descriptor, which is no work for a loop. And not all file systems close without asking somebody.
            Some(Source::File(file)) => {
                let facts = self.known();
                let is_local = facts.means == Means::Memory || facts.has_inodes;
                is_local && page_cache::is_unlinked(file).is_ok_and(|is_gone| !is_gone)
            }
            Some(Source::Extent(extent)) => extent.bytes().len() <= arena::HERE_MAX,
            None => true,
        };
        // It keeps the file open, too.
        let mapping = self.mapping.take();
        if let Some(source) = self.source.take()
            && !is_quick
        {
            self.pool.run_detached(move || drop((source, mapping)));
        }
    }
}

/// One who waits for a reading, as long as it is there: counted in the pool's queue.
struct Waiter<'a> {
    pool: &'a Pool,
    flight: reads::Flight,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if self.flight.is_pending() {
            self.pool.count_waiter(self.flight.id, false);
        }
    }
}

fn left_in_chunk(at: u64) -> u64 {
    CHUNK_BYTES - at % CHUNK_BYTES
}

/// For how many chunks two pages speak at most: a client that takes all at full speed needs some milliseconds for them,
/// and a file has room for twice as many answers.
const CONFIRMED_CHUNKS: u64 = 16;

/// Something is read ahead for no fewer than this, and a chunk for so many each. Two clients that happen to want the same
/// file are not to have more of the disk than two that do not.
const CROWD: usize = 4;

/// Chunks that are read ahead at most (8 MB): what a disk of 100 MB/s brings in a tenth of a second.
const AHEAD_CHUNKS: u64 = 16;

/// Read at once on the loop at most: what a socket may take, and a fortieth of a millisecond.
const NOW_BYTES: u64 = 128 * 1024;

/// How long a file that can only be tried is read in the pool after a miss without another try: some chunks of a
/// disk that has nothing else to do.
const MISSED_US: u64 = 5000;

/// How long a file that was the same counts as the same.
const SAME_US: u64 = 1000;

#[cfg(test)]
mod tests;
