//! The reads of files that a pool makes: their waiters, their memory, and facts about file systems.
//!
//! Each pool has one [`InFlightReads`], shared by the loops and by all descriptors of a file. Locks
//! are held for a look-up, never during a read.
//!
//! # Invariants
//! - An entry is removed when its read ends, however it ends.
//! - A read continues when a waiter leaves, so that the others get it. A read whose waiters have
//!   all left before it began is skipped.
//! - Bytes that were read count until their last holder drops them.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use bytes::Bytes;
use penstock_sys::page_cache::{FileIdentity, FileOwnership, MountId};
use tokio::sync::watch;

use super::read_history::ReadHistory;
use super::residency::{AtomicTimestamp, ResidencyFacts};
use super::{CHUNK_BYTES, SMALL_READ_BYTES};
use crate::blocking::ReadId;
use crate::clock;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum FileKey {
    /// The file itself, through any descriptor.
    Inode(FileIdentity),
    /// One descriptor, by the address of its [`super::DiskFile`], which a read in flight keeps
    /// alive.
    Handle(usize),
}

#[derive(Debug)]
pub(crate) struct InFlightReads {
    /// Start of the clock of [`InFlightReads::now_us`].
    made_at: Instant,
    shared: Arc<SharedReads>,
    /// Facts about the files of each owner on each file system. Held for a look-up.
    residency_facts: Mutex<HashMap<(MountId, FileOwnership), ResidencyFacts>>,
    /// Read histories of open files. Held for a look-up.
    read_history: Mutex<HashMap<FileIdentity, Weak<ReadHistory>>>,
}

impl Default for InFlightReads {
    fn default() -> Self {
        Self {
            made_at: clock::now(),
            shared: Arc::default(),
            residency_facts: Mutex::default(),
            read_history: Mutex::default(),
        }
    }
}

#[derive(Debug, Default)]
struct SharedReads {
    /// Reads in flight, by file and chunk. Held for a look-up.
    in_flight: Mutex<ReadsInFlight>,
    /// When the last of them began or ended, or a loop waited for a disk.
    last_change: AtomicTimestamp,
    /// When a loop last waited for a disk.
    last_wait: AtomicTimestamp,
    /// Their number: most look-ups end here.
    count: AtomicUsize,
    /// Number of reads so far; distinguishes them.
    next_number: AtomicU64,
    memory: Arc<ReadMemory>,
}

type ReadsInFlight = HashMap<(FileKey, u64), Vec<InFlightRead>>;

/// One read in flight, of a part of a chunk.
#[derive(Debug)]
struct InFlightRead {
    number: u64,
    start: u64,
    end: u64,
    /// How many have found it, whether they still wait or not.
    joined_count: usize,
    result: watch::Receiver<Option<ReadResult>>,
}

type ReadResult = Result<Arc<ReadData>, Arc<io::Error>>;

fn micros_since(made_at: Instant) -> u64 {
    let since = clock::now().saturating_duration_since(made_at);
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

impl InFlightReads {
    /// Finds the read in flight that covers the byte at `at`.
    pub(super) fn find_read(&self, file: FileKey, at: u64) -> Option<ReadHandle> {
        if self.shared.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut flights = self.shared.lock();
        let entries = flights.get_mut(&(file, at / CHUNK_BYTES))?;
        let entry = (entries.iter_mut()).find(|entry| (entry.start..entry.end).contains(&at))?;
        entry.joined_count += 1;
        Some(ReadHandle {
            joined_count: entry.joined_count,
            id: ReadId {
                file,
                number: entry.number,
            },
            result: entry.result.clone(),
        })
    }

    /// Whether some of the `len` bytes at `at`, within one chunk, are being read.
    pub(super) fn is_being_read(&self, file: FileKey, at: u64, len: u64) -> bool {
        if self.shared.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let flights = self.shared.lock();
        let entries = flights.get(&(file, at / CHUNK_BYTES));
        entries.is_some_and(|entries| {
            (entries.iter()).any(|entry| entry.start < at + len && at < entry.end)
        })
    }

    /// Registers a read from `start` to `end`, within one chunk.
    pub(super) fn begin_read(
        &self,
        file: FileKey,
        start: u64,
        end: u64,
    ) -> (ReadHandle, ReadCompletion) {
        let (give, result) = watch::channel(None);
        self.shared.last_change.record(self.now_us());
        let number = self.shared.next_number.fetch_add(1, Ordering::Relaxed);
        let place = (file, start / CHUNK_BYTES);
        let entry = InFlightRead {
            number,
            start,
            end,
            joined_count: 0,
            result: result.clone(),
        };
        self.shared.lock().entry(place).or_default().push(entry);
        self.shared.count.fetch_add(1, Ordering::Relaxed);
        let landing = ReadCompletion {
            shared: Arc::clone(&self.shared),
            made_at: self.made_at,
            chunk_key: place,
            number,
            sender: give,
        };
        let id = ReadId { file, number };
        let flight = ReadHandle {
            id,
            joined_count: 0,
            result,
        };
        (flight, landing)
    }

    /// Microseconds since this was created.
    pub(super) fn now_us(&self) -> u64 {
        micros_since(self.made_at)
    }

    /// How long no read was in flight, in microseconds; 0 while one is. Whatever was resident at
    /// its beginning still is, as far as this pool knows.
    pub(super) fn idle_us(&self, now_us: u64) -> u64 {
        match self.shared.count.load(Ordering::Acquire) {
            0 => self
                .shared
                .last_change
                .elapsed_us(now_us)
                .unwrap_or(u64::MAX),
            _ => 0,
        }
    }

    /// Records that a loop waited for a disk without a read of this pool.
    pub(super) fn record_wait(&self, now_us: u64) {
        self.shared.last_change.record(now_us);
        self.shared.last_wait.record(now_us);
    }

    /// Microseconds since the last such wait; `u64::MAX` for never.
    pub(super) fn since_wait_us(&self, now_us: u64) -> u64 {
        self.shared.last_wait.elapsed_us(now_us).unwrap_or(u64::MAX)
    }

    /// Whether the last such wait was less than `span_us` ago: earlier answers may be wrong.
    pub(super) fn has_waited_within(&self, span_us: u64, now_us: u64) -> bool {
        self.shared.last_wait.is_within(span_us, now_us)
    }

    /// Claims memory for `len` bytes with this number of waiters; less of it when memory is scarce.
    pub(super) fn claim_memory(&self, len: u64, waiters: usize) -> MemoryClaim {
        ReadMemory::claim_bytes(&self.shared.memory, len, waiters)
    }

    pub(super) fn is_memory_scarce(&self) -> bool {
        self.shared.memory.bytes.load(Ordering::Relaxed) > MAX_READ_MEMORY / 2
    }

    pub(super) fn facts(&self, file: &FileIdentity) -> Option<ResidencyFacts> {
        self.lock_facts()
            .get(&(file.mount, file.ownership))
            .copied()
    }

    pub(super) fn remember_facts(&self, file: &FileIdentity, found: ResidencyFacts) {
        let mut facts = self.lock_facts();
        if facts.len() >= MAX_OWNERS
            && let Some(any) = facts.keys().next().copied()
        {
            // If it is in use it is soon detected again.
            facts.remove(&any);
        }
        facts.insert((file.mount, file.ownership), found);
    }

    pub(super) fn forget_facts(&self, file: &FileIdentity) {
        self.lock_facts().remove(&(file.mount, file.ownership));
    }

    /// The history of a file, shared by all its descriptors.
    pub(super) fn read_history(&self, file: FileIdentity) -> Arc<ReadHistory> {
        let mut all = self
            .read_history
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(seen) = all.get(&file).and_then(Weak::upgrade) {
            return seen;
        }
        if all.len() >= READ_HISTORY_FILES && all.len() == all.capacity() {
            all.retain(|_, seen| seen.strong_count() > 0);
        }
        let seen = Arc::new(ReadHistory::new(file.bytes));
        all.insert(file, Arc::downgrade(&seen));
        seen
    }

    fn lock_facts(&self) -> MutexGuard<'_, HashMap<(MountId, FileOwnership), ResidencyFacts>> {
        self.residency_facts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl SharedReads {
    fn lock(&self) -> MutexGuard<'_, ReadsInFlight> {
        self.in_flight
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Owners (and permissions) on file systems that are remembered: more than most machines have.
const MAX_OWNERS: usize = 4096;

/// Number of histories before those of closed files are removed.
const READ_HISTORY_FILES: usize = 1024;

/// A read, for one waiter.
#[derive(Debug)]
pub(super) struct ReadHandle {
    /// Its id in the pool's queue.
    pub(super) id: ReadId<FileKey>,
    /// How many have joined it so far, including this one; 0 for the waiter that began it.
    pub(super) joined_count: usize,
    result: watch::Receiver<Option<ReadResult>>,
}

impl ReadHandle {
    /// Waits for the result; `None` when the read was lost.
    pub(super) async fn wait(&mut self) -> Option<ReadResult> {
        let landed = self.result.wait_for(Option::is_some).await.ok()?;
        landed.clone()
    }

    /// Whether the read has neither completed nor been lost.
    pub(super) fn is_pending(&self) -> bool {
        self.result.has_changed().is_ok() && self.result.borrow().is_none()
    }
}

/// A read, for the job that runs it. Dropping it removes the entry.
#[derive(Debug)]
pub(super) struct ReadCompletion {
    shared: Arc<SharedReads>,
    made_at: Instant,
    chunk_key: (FileKey, u64),
    number: u64,
    sender: watch::Sender<Option<ReadResult>>,
}

impl ReadCompletion {
    /// Ends the read and sends its result to the waiters.
    pub(super) fn complete(self, outcome: Result<ReadData, Arc<io::Error>>) {
        // The entry first: later requests find the pages resident.
        self.remove();
        self.sender.send_replace(Some(outcome.map(Arc::new)));
    }

    /// Returns whether the read still has waiters. If not, it is removed and no longer found.
    pub(super) fn is_wanted(&self) -> bool {
        let mut flights = self.shared.lock();
        let is_wanted = self.waiter_count() > 0;
        if !is_wanted {
            self.remove_from(&mut flights);
        }
        is_wanted
    }

    pub(super) fn waiter_count(&self) -> usize {
        // One receiver is the entry's own; others are cloned from it only under the lock of all
        // reads.
        self.sender.receiver_count().saturating_sub(1)
    }

    fn remove(&self) {
        self.remove_from(&mut self.shared.lock());
    }

    fn remove_from(&self, flights: &mut ReadsInFlight) {
        if let Some(entries) = flights.get_mut(&self.chunk_key)
            && let Some(index) = entries.iter().position(|e| e.number == self.number)
        {
            entries.swap_remove(index);
            self.shared.last_change.record(micros_since(self.made_at));
            self.shared.count.fetch_sub(1, Ordering::Release);
            if entries.is_empty() {
                flights.remove(&self.chunk_key);
            }
        }
    }
}

impl Drop for ReadCompletion {
    fn drop(&mut self) {
        self.remove();
    }
}

#[derive(Debug)]
pub(super) struct ReadData {
    start: u64,
    bytes: Bytes,
    /// It is shorter than planned because the file ends there.
    is_end: bool,
}

impl ReadData {
    pub(super) fn new(start: u64, bytes: Vec<u8>, claim: MemoryClaim) -> Self {
        Self {
            start,
            is_end: (bytes.len() as u64) < claim.bytes,
            bytes: into_accounted_bytes(bytes, claim),
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// At most `len` of its bytes from `at` on, none at the end of the file; `None` when it does
    /// not reach `at`.
    pub(super) fn part(&self, at: u64, len: u64) -> Option<Bytes> {
        let from = usize::try_from(at.checked_sub(self.start)?).ok()?;
        if from >= self.bytes.len() {
            return self.is_end.then(Bytes::new);
        }
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let to = from.saturating_add(len).min(self.bytes.len());
        Some(self.bytes.slice(from..to))
    }
}

/// Turns `bytes`, which need no more than `claim`, into a buffer that holds the claim.
pub(super) fn into_accounted_bytes(mut bytes: Vec<u8>, mut claim: MemoryClaim) -> Bytes {
    bytes.shrink_to_fit();
    claim.shrink(bytes.len() as u64);
    Bytes::from_owner(AccountedBuffer {
        bytes,
        _claim: claim,
    })
}

/// A buffer with its memory claim.
#[derive(Debug)]
struct AccountedBuffer {
    bytes: Vec<u8>,
    _claim: MemoryClaim,
}

impl AsRef<[u8]> for AccountedBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Total of bytes that were read and are still held.
#[derive(Debug, Default)]
struct ReadMemory {
    bytes: AtomicU64,
}

/// Memory for a pool's reads of whole chunks: two chunks for each of 32 threads, one being read and
/// one being sent, and as much again for slow clients. Past half of it, tasks that wait to send
/// drop their pieces ([`super::DiskFile::is_memory_scarce`]). Past all of it, reads are of
/// [`SMALL_READ_BYTES`] for each waiter, so that a client costs about two buffers of a usual
/// server.
const MAX_READ_MEMORY: u64 = 64 * 1024 * 1024;

impl ReadMemory {
    fn claim_bytes(this: &Arc<Self>, len: u64, waiters: usize) -> MemoryClaim {
        let is_room = this.bytes.load(Ordering::Relaxed) + len <= MAX_READ_MEMORY;
        let bytes = match is_room {
            true => len,
            false => len.min(SMALL_READ_BYTES.saturating_mul(waiters.max(1) as u64)),
        };
        this.bytes.fetch_add(bytes, Ordering::Relaxed);
        MemoryClaim {
            memory: Arc::clone(this),
            bytes,
        }
    }
}

/// A claim of some bytes, released on drop.
#[derive(Debug)]
pub(super) struct MemoryClaim {
    memory: Arc<ReadMemory>,
    bytes: u64,
}

impl MemoryClaim {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Releases what exceeds `bytes`.
    fn shrink(&mut self, bytes: u64) {
        let spare = self.bytes.saturating_sub(bytes);
        self.memory.bytes.fetch_sub(spare, Ordering::Relaxed);
        self.bytes -= spare;
    }
}

impl Drop for MemoryClaim {
    fn drop(&mut self) {
        self.memory.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
