//! Determines which bytes of a file are in memory without waiting for its disk.
//!
//! Called by `disk` on the loop, except [`detect_residency`], which a pool runs once for the files
//! of an owner on a file system. Two calls are combined. `cachestat` counts pages cheaply, but also
//! pages that are still being read, for which `sendfile` would wait. Reading one byte with
//! `RWF_NOWAIT` notices those, but starts to read a missing page on the loop. So bytes are probed
//! only where all pages are counted. Before Linux 6.5, and in the layers of a container, `mincore`
//! on a [`ResidencyMapping`] replaces them. Both work only for a process that owns the file or may
//! write it. For other files, bytes that were read or sent without a wait count as resident for a
//! second (`read_history`).
//!
//! Positive answers are reused for some milliseconds ([`RecentResidencyAnswers`]), and for seconds
//! after checking a page or two while nothing has to be read ([`ResidentChunks`]). A loop that
//! trusts a wrong answer waits for the disk once, notices it (`disk_wait`), and counts again.
//!
//! Measured on Linux 6.18: counting 512 kB takes 0.5 us (large folios) to 4 us (single pages), with
//! `mincore` 3 us, probing one byte 0.8 us, sending 512 kB 120 to 300 us.

use std::fs::File;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use penstock_sys::file;
use penstock_sys::page_cache::{self, FileSystemKind, ResidencyMapping};

/// How the residency of an owner's files on a file system is determined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResidencyMethod {
    /// Not known yet: the first read in the pool detects it.
    Unknown,
    /// Always resident: there is no disk.
    InMemory,
    /// By counting pages, then probing bytes.
    Cachestat,
    /// By a mapping.
    Mincore,
    /// Not by the kernel, but the files are on a local disk: recently read or sent bytes are
    /// resident.
    RecentlyRead,
    /// Only by probing reads; sending from the page cache might wait.
    Probe,
    /// Not at all: everything is read in the pool.
    Unavailable,
}

/// Facts about the files of an owner on a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ResidencyFacts {
    pub(super) method: ResidencyMethod,
    /// Inode numbers are unique there, so reads through several descriptors can be matched to one
    /// file.
    pub(super) has_inodes: bool,
}

impl ResidencyFacts {
    pub(super) const UNDETECTED: Self = Self {
        method: ResidencyMethod::Unknown,
        has_inodes: false,
    };

    pub(super) fn to_bits(self) -> u8 {
        self.method as u8 | u8::from(self.has_inodes) << 7
    }

    pub(super) fn from_bits(bits: u8) -> Self {
        let methods = [
            ResidencyMethod::Unknown,
            ResidencyMethod::InMemory,
            ResidencyMethod::Cachestat,
            ResidencyMethod::Mincore,
            ResidencyMethod::RecentlyRead,
            ResidencyMethod::Probe,
            ResidencyMethod::Unavailable,
        ];
        let method = methods.get(usize::from(bits & 0x7f));
        Self {
            method: *method.unwrap_or(&ResidencyMethod::Unknown),
            has_inodes: bits & 0x80 != 0,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DetectedResidency {
    /// Valid for all files of the owner there.
    AllFiles(ResidencyFacts),
    /// Valid for this file, perhaps only at this moment.
    ThisFile(ResidencyFacts),
}

/// Detects how a file's residency can be determined, when `len` bytes at `at` have just been read;
/// `map` maps the file. May block: call it in a pool.
pub(super) fn detect_residency<'m>(
    file: &File,
    kind: FileSystemKind,
    (at, len): (u64, usize),
    map: impl Fn() -> Result<&'m ResidencyMapping, io::ErrorKind>,
) -> DetectedResidency {
    use io::ErrorKind::{PermissionDenied, Unsupported};
    let has_inodes = kind == FileSystemKind::Disk;
    let found = |method| DetectedResidency::AllFiles(ResidencyFacts { method, has_inodes });
    let is_counted =
        || is_byte_ready(file, at).is_ok() && are_pages_cached(file, at, 1).unwrap_or(false);
    match kind {
        FileSystemKind::Memory => found(ResidencyMethod::InMemory),
        // Nothing was read, so nothing can be checked.
        _ if len == 0 => found(ResidencyMethod::Unknown),
        FileSystemKind::Disk if is_counted() => found(ResidencyMethod::Cachestat),
        FileSystemKind::Disk | FileSystemKind::Layered => match map() {
            Ok(map) if map.cached_prefix(at, 1).is_ok_and(|len| len > 0) => {
                found(ResidencyMethod::Mincore)
            }
            Err(PermissionDenied | Unsupported) => found(ResidencyMethod::RecentlyRead),
            // Pages that were just read do not show where they never do (ZFS, DAX), or were evicted
            // at once.
            Ok(_) | Err(_) => DetectedResidency::ThisFile(ResidencyFacts {
                method: ResidencyMethod::RecentlyRead,
                has_inodes,
            }),
        },
        // On other file systems sending from memory may contact a server, but a probing read does
        // not.
        FileSystemKind::Other if is_byte_ready(file, at).is_ok() => found(ResidencyMethod::Probe),
        FileSystemKind::Other => found(ResidencyMethod::Unavailable),
    }
}

/// How many of the `len` bytes at `at` are resident by the mapping, as a prefix; in steps of
/// [`PROBE_STEP_BYTES`] where some are missing.
///
/// # Errors
/// When the kernel does not tell.
pub(super) fn mapped_prefix_bytes(map: &ResidencyMapping, at: u64, len: u64) -> io::Result<u64> {
    let found = map.cached_prefix(at, len)?;
    Ok(if found < len {
        found - found % PROBE_STEP_BYTES
    } else {
        found
    })
}

/// How many of the `len` bytes at `at` are in counted pages, as a prefix; in steps of
/// [`PROBE_STEP_BYTES`] where some are missing.
pub(super) fn cached_prefix_bytes(file: &File, at: u64, len: u64) -> io::Result<u64> {
    if len == 0 || are_pages_cached(file, at, len)? {
        return Ok(len);
    }
    // All of the first `all_to` steps are counted, not all of `missing_to`.
    let (mut all_to, mut missing_to) = (0, len.div_ceil(PROBE_STEP_BYTES));
    while missing_to - all_to > 1 {
        let middle = all_to.midpoint(missing_to);
        match are_pages_cached(file, at, middle * PROBE_STEP_BYTES)? {
            true => all_to = middle,
            false => missing_to = middle,
        }
    }
    Ok(all_to * PROBE_STEP_BYTES)
}

/// Whether the pages of the `len` bytes at `at` are all counted.
pub(super) fn are_pages_cached(file: &File, at: u64, len: u64) -> io::Result<bool> {
    let page = page_cache::page_bytes();
    let pages = (at + len).div_ceil(page) - at / page;
    Ok(page_cache::cached_pages(file, at, len)? >= pages)
}

/// How many of the `len` bytes at `at`, all counted, are not still being read: probes a byte in
/// each step.
///
/// # Errors
/// When the file system does not support probing.
pub(super) fn ready_prefix_bytes(file: &File, at: u64, len: u64) -> io::Result<u64> {
    let mut ready = 0;
    while ready < len {
        let step = PROBE_STEP_BYTES.min(len - ready);
        if !is_byte_ready(file, at + ready + step - 1)? {
            break;
        }
        ready += step;
    }
    Ok(ready)
}

/// Whether the byte at `at` can be read without waiting; false at the end of the file.
///
/// # Errors
/// When the file system does not support probing.
pub(super) fn is_byte_ready(file: &File, at: u64) -> io::Result<bool> {
    match file::read_at_if_cached(file, &mut [0], at) {
        Ok(count) => Ok(count > 0),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

/// The range that one probed byte stands for, and the least worth sending separately.
pub(super) const PROBE_STEP_BYTES: u64 = 64 * 1024;

/// The chunks of which each step was once verified. A resident page stays complete until it is
/// evicted, so a chunk that is fully counted again needs fewer probes.
#[derive(Debug, Default)]
pub(super) struct VerifiedChunks {
    /// A bit for each of the first chunks (32 MB).
    first: AtomicU64,
    /// For later chunks.
    more: OnceLock<Box<[AtomicU64; LATER_WORDS]>>,
}

/// With the first word, 2 GB of a file; later chunks are probed in full each time.
const LATER_WORDS: usize = 63;

impl VerifiedChunks {
    pub(super) fn has(&self, chunk: u64) -> bool {
        self.word(chunk)
            .is_some_and(|word| word.load(Ordering::Relaxed) & chunk_bit(chunk) != 0)
    }

    pub(super) fn add(&self, chunk: u64) {
        if chunk >= 64 {
            self.more
                .get_or_init(|| Box::new([const { AtomicU64::new(0) }; LATER_WORDS]));
        }
        if let Some(word) = self.word(chunk) {
            word.fetch_or(chunk_bit(chunk), Ordering::Relaxed);
        }
    }

    pub(super) fn forget(&self, chunk: u64) {
        if let Some(word) = self.word(chunk) {
            word.fetch_and(!chunk_bit(chunk), Ordering::Relaxed);
        }
    }

    /// The word of a chunk; `None` for chunks that are not remembered.
    fn word(&self, chunk: u64) -> Option<&AtomicU64> {
        match usize::try_from(chunk / 64).ok()?.checked_sub(1) {
            None => Some(&self.first),
            Some(later) => self.more.get()?.get(later),
        }
    }
}

/// Recent answers about fully resident chunks.
#[derive(Debug, Default)]
pub(super) struct RecentResidencyAnswers {
    /// From the highest bit: 36 bits of microseconds, 20 of the chunk's number, 8 of its length in
    /// units of 4 kB. One word, so that loops need no lock; 0 is none. The index is the chunk's
    /// number modulo the length.
    packed: [AtomicU64; RECENT_ANSWERS],
}

/// Answers kept for a file: enough for all chunks of 16 MB.
const RECENT_ANSWERS: usize = 32;

/// How long an answer is reused, unless a loop has waited since. Resident pages were just sent or
/// are about to be, so they are evicted last: that takes the kernel seconds, unless the cache is
/// dropped on purpose. A popular file is checked 50 times a second, one with a single client before
/// each piece.
pub(super) const ANSWER_LIFETIME_US: u64 = 20_000;

const UNIT_BYTES: u64 = 4096;
const TIME_MASK: u64 = (1 << 36) - 1;
const CHUNK_MASK: u64 = (1 << 20) - 1;

impl RecentResidencyAnswers {
    /// Records at `now_us`, on the caller's clock, that the first `len` bytes of a chunk are
    /// resident.
    pub(super) fn record_chunk(&self, chunk: u64, len: u64, now_us: u64) {
        let units = len.div_ceil(UNIT_BYTES);
        if chunk <= CHUNK_MASK && units <= 0xff {
            let packed = (now_us & TIME_MASK) << 28 | chunk << 8 | units;
            self.slot(chunk).store(packed, Ordering::Relaxed);
        }
    }

    fn slot(&self, chunk: u64) -> &AtomicU64 {
        #[expect(clippy::cast_possible_truncation, reason = "the rest is below 32")]
        let place = (chunk % RECENT_ANSWERS as u64) as usize;
        &self.packed[place]
    }

    /// Whether the first `len` bytes of the chunk were just seen to be resident.
    pub(super) fn covers(&self, chunk: u64, len: u64, now_us: u64) -> bool {
        let packed = self.slot(chunk).load(Ordering::Relaxed);
        let (at, known, units) = (packed >> 28, packed >> 8 & CHUNK_MASK, packed & 0xff);
        let age = (now_us & TIME_MASK).wrapping_sub(at) & TIME_MASK;
        known == chunk && len.div_ceil(UNIT_BYTES) <= units && age < ANSWER_LIFETIME_US
    }
}

/// The chunks of a file that were fully resident recently. While nothing has to be read they need
/// not be counted again, which for single pages takes a tenth of the time of sending them.
///
/// There is a word for each region of sixteen chunks (8 MB), so that loops need no lock. From the
/// highest bit: 32 bits of milliseconds, 16 of a tag for the regions that share the word, and a bit
/// for each chunk. All of them were seen since that time; after it expires the word starts anew.
#[derive(Debug, Default)]
pub(super) struct ResidentChunks {
    /// For the first regions (64 MB).
    first: [AtomicU64; FIRST_REGIONS],
    /// Shared by later regions (1 GB).
    more: OnceLock<Box<[AtomicU64; LATER_REGIONS]>>,
}

const FIRST_REGIONS: usize = 8;
const LATER_REGIONS: usize = 128;
const REGION_CHUNKS: u64 = 16;

/// How old an answer may be: see [`ANSWER_LIFETIME_US`].
const RESIDENT_TIME_MS: u64 = 5000;

const RESIDENT_TIME_MASK: u64 = (1 << 32) - 1;
const TAG_MASK: u64 = (1 << 16) - 1;

impl ResidentChunks {
    /// Records at `now_us`, on the caller's clock, that all of a chunk is resident. Records from
    /// before the last `quiet_us` microseconds, in which nothing was read, are discarded.
    pub(super) fn record_chunk(&self, chunk: u64, now_us: u64, quiet_us: u64) {
        let region = chunk / REGION_CHUNKS;
        let (word, tag) = match self.word(region) {
            Some(found) => found,
            None => {
                let more = self
                    .more
                    .get_or_init(|| Box::new([const { AtomicU64::new(0) }; _]));
                later_region_word(more, region)
            }
        };
        let (now, bit) = (packed_milliseconds(now_us), 1 << (chunk % REGION_CHUNKS));
        let known = word.load(Ordering::Relaxed);
        let next = match is_current_word(known, tag, now, quiet_us) {
            true => known | bit,
            false => now << 32 | tag << 16 | bit,
        };
        // Of two concurrent records one is lost, and counted again.
        let _ = word.compare_exchange(known, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub(super) fn has(&self, chunk: u64, now_us: u64, quiet_us: u64) -> bool {
        let Some((word, tag)) = self.word(chunk / REGION_CHUNKS) else {
            return false;
        };
        let known = word.load(Ordering::Relaxed);
        let is_noted = known & 1 << (chunk % REGION_CHUNKS) != 0;
        is_noted && is_current_word(known, tag, packed_milliseconds(now_us), quiet_us)
    }

    /// The word of a region, and its tag there, which is never 0.
    fn word(&self, region: u64) -> Option<(&AtomicU64, u64)> {
        let place = usize::try_from(region).unwrap_or(usize::MAX);
        match self.first.get(place) {
            Some(word) => Some((word, 1)),
            None => self.more.get().map(|more| later_region_word(more, region)),
        }
    }
}

fn later_region_word(more: &[AtomicU64; LATER_REGIONS], region: u64) -> (&AtomicU64, u64) {
    let words = LATER_REGIONS as u64;
    let place = usize::try_from(region % words).unwrap_or_default();
    // Regions 64 TB apart are confused.
    (&more[place], region / words % TAG_MASK + 1)
}

fn packed_milliseconds(now_us: u64) -> u64 {
    (now_us / 1000) & RESIDENT_TIME_MASK
}

/// Whether a word belongs to the region with that tag and is recent enough.
fn is_current_word(word: u64, tag: u64, now: u64, quiet_us: u64) -> bool {
    let age = now.wrapping_sub(word >> 32) & RESIDENT_TIME_MASK;
    word >> 16 & TAG_MASK == tag && age < RESIDENT_TIME_MS.min(quiet_us / 1000)
}

/// The time of the last finding, shared by all loops without a lock.
#[derive(Debug, Default)]
pub(super) struct AtomicTimestamp {
    /// Microseconds on the caller's clock; 0 is never.
    at_us: AtomicU64,
}

impl AtomicTimestamp {
    pub(super) fn record(&self, now_us: u64) {
        self.at_us.store(now_us.max(1), Ordering::Relaxed);
    }

    /// How long ago it was; `None` for never.
    pub(super) fn elapsed_us(&self, now_us: u64) -> Option<u64> {
        match self.at_us.load(Ordering::Relaxed) {
            0 => None,
            at_us => Some(now_us.saturating_sub(at_us)),
        }
    }

    pub(super) fn is_within(&self, span_us: u64, now_us: u64) -> bool {
        self.elapsed_us(now_us)
            .is_some_and(|since_us| since_us < span_us)
    }
}

fn chunk_bit(chunk: u64) -> u64 {
    1 << (chunk % 64)
}

#[cfg(test)]
mod tests {
    use super::super::CHUNK_BYTES;
    use super::*;

    #[test]
    fn a_result_of_one_file_is_not_taken_for_all() {
        use std::io::Write;

        let mut disk = file::unnamed_temp_file(&std::env::temp_dir()).unwrap();
        disk.write_all(&[1; 5000]).unwrap();
        disk.sync_all().unwrap();
        let find = |kind, refused| detect_residency(&disk, kind, (0, 1), || Err(refused));
        let facts = |method, has_inodes| ResidencyFacts { method, has_inodes };
        let layered = facts(ResidencyMethod::RecentlyRead, false);
        for (refused, expected) in [
            (
                io::ErrorKind::PermissionDenied,
                DetectedResidency::AllFiles(layered),
            ),
            (
                io::ErrorKind::Unsupported,
                DetectedResidency::AllFiles(layered),
            ),
            (
                io::ErrorKind::QuotaExceeded,
                DetectedResidency::ThisFile(layered),
            ),
            (
                io::ErrorKind::OutOfMemory,
                DetectedResidency::ThisFile(layered),
            ),
        ] {
            assert_eq!(
                find(FileSystemKind::Layered, refused),
                expected,
                "{refused}"
            );
        }
        let memory = find(FileSystemKind::Memory, io::ErrorKind::Other);
        assert_eq!(
            memory,
            DetectedResidency::AllFiles(facts(ResidencyMethod::InMemory, false))
        );
        // Bytes beyond the mapped part are not resident, like a page evicted at once.
        let mapping = ResidencyMapping::new(&disk, 4096).unwrap();
        let map = |at| detect_residency(&disk, FileSystemKind::Layered, (at, 1), || Ok(&mapping));
        assert_eq!(
            map(0),
            DetectedResidency::AllFiles(facts(ResidencyMethod::Mincore, false))
        );
        assert_eq!(map(4096), DetectedResidency::ThisFile(layered));
    }

    #[test]
    fn facts_fit_in_a_byte() {
        for method in [
            ResidencyMethod::Unknown,
            ResidencyMethod::InMemory,
            ResidencyMethod::Cachestat,
            ResidencyMethod::Probe,
            ResidencyMethod::Unavailable,
            ResidencyMethod::Mincore,
            ResidencyMethod::RecentlyRead,
        ] {
            for has_inodes in [false, true] {
                let facts = ResidencyFacts { method, has_inodes };
                assert_eq!(ResidencyFacts::from_bits(facts.to_bits()), facts);
            }
        }
    }

    #[test]
    fn verified_chunks_are_remembered_up_to_a_limit() {
        let proven = VerifiedChunks::default();
        for chunk in [0, 1, 63, 64, 65, 4095] {
            assert!(!proven.has(chunk), "{chunk}");
            proven.add(chunk);
            assert!(proven.has(chunk), "{chunk}");
        }
        proven.forget(64);
        assert!(proven.has(63) && !proven.has(64) && proven.has(65));
        for chunk in [4096, u64::MAX / CHUNK_BYTES] {
            proven.add(chunk);
            proven.forget(chunk);
            assert!(!proven.has(chunk), "{chunk}");
        }
    }

    #[test]
    fn a_recorded_moment_expires() {
        let moment = AtomicTimestamp::default();
        let is_recent = |now_us| moment.is_within(5000, now_us);
        assert!(!is_recent(0) && !is_recent(10));
        for at_us in [0, 70_000] {
            moment.record(at_us);
            assert!(is_recent(at_us) && is_recent(at_us + 4999));
            assert!(!is_recent(at_us + 5001));
        }
    }

    #[test]
    fn recent_answers_cover_their_range_and_expire() {
        let asked = RecentResidencyAnswers::default();
        assert!(!asked.covers(0, 1, 50), "nothing was asked");
        asked.record_chunk(3, 65_537, 1000);
        for (chunk, len, now_us, expected) in [
            (3, 65_537, 1000, true),
            (3, 69_632, 1099, true),
            (3, 69_633, 1000, false),
            (3, 1, 1000 + ANSWER_LIFETIME_US - 1, true),
            (3, 1, 1000 + ANSWER_LIFETIME_US, false),
            (35, 1, 1000, false),
            (2, 1, 1000, false),
            (3, 1, 999, false),
        ] {
            assert_eq!(
                asked.covers(chunk, len, now_us),
                expected,
                "{chunk} {len} {now_us}"
            );
        }
        // Values too large for the word are not recorded.
        asked.record_chunk(CHUNK_MASK + 1, 1, 2000);
        assert!(!asked.covers(0, 1, 2000) && !asked.covers(CHUNK_MASK + 1, 1, 2000));
        asked.record_chunk(0, CHUNK_BYTES, TIME_MASK);
        assert!(asked.covers(0, CHUNK_BYTES, TIME_MASK + 1));
    }

    #[test]
    fn resident_chunks_are_remembered_and_expire() {
        const QUIET: u64 = u64::MAX;
        let whole = ResidentChunks::default();
        // In the first regions, behind them, in the same word as that one, and further than any
        // file reaches.
        let chunks = [0, 15, 16, 127, 128, 128 + 16 * 128, 1 << 40];
        for chunk in chunks {
            assert!(!whole.has(chunk, 5_000_000, QUIET), "{chunk}");
            whole.record_chunk(chunk, 5_000_000, QUIET);
            assert!(whole.has(chunk, 5_000_000, QUIET), "{chunk}");
            assert!(!whole.has(chunk + 1, 5_000_000, QUIET), "{chunk}");
        }
        assert!(!whole.has(128, 5_000_000, QUIET), "another has its word");
        let last_us = 5_000_000 + RESIDENT_TIME_MS * 1000 - 1;
        // The time is that of the first record in a word: later ones expire with it.
        whole.record_chunk(1, last_us, QUIET);
        assert!(
            whole.has(0, last_us, QUIET)
                && whole.has(1, last_us, QUIET)
                && whole.has(15, last_us, QUIET)
        );
        assert!(!whole.has(0, last_us + 1, QUIET) && !whole.has(1, last_us + 1, QUIET));
        whole.record_chunk(1, last_us + 1, QUIET);
        assert!(whole.has(1, last_us + 1, QUIET) && !whole.has(0, last_us + 1, QUIET));
        assert!(!whole.has(1, 4_999_000, QUIET), "before it");
        // Records from before the last read are discarded, also together with later ones.
        let now_us = last_us + 100_000;
        assert!(whole.has(1, now_us, 101_000) && !whole.has(1, now_us, 99_000));
        assert!(!whole.has(1, now_us, 0), "something is being read");
        whole.record_chunk(2, now_us, 50_000);
        assert!(whole.has(2, now_us, 50_000) && !whole.has(1, now_us, QUIET));
    }
}
