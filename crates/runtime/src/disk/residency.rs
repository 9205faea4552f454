//! How to find out what of a file is in memory without waiting for its disk.
//!
//! Called by `disk` on the loop, except [`detect_method`], which a pool runs once for the files of an owner on a file system.
//! Two calls tell together: `cachestat` counts pages cheaply but takes those for present whose reading is
//! still under way, and `sendfile` would wait for them; reading one byte with `RWF_NOWAIT` notices
//! that, but begins to read what is missing, on the loop. So bytes are tried only where all pages are
//! counted. Before Linux 6.5, and in the layers of a container, `mincore` of a [`Mapping`] takes their place. Both
//! tell those only who own a file or may write it: of others' what was read or sent without a wait counts as there, for
//! a second (`seen`).
//! What was found to be there is not asked about again for some milliseconds ([`RecentAnswers`]), and for
//! seconds by a page or two only, as long as nothing has to be read ([`ResidentChunks`]): a loop that trusts too much waits for
//! the disk once, notices that (`waits`), and counts again.
//!
//! Measured on Linux 6.18: counting 512 kB takes 0.5 us (large folios) to 4 us (single pages), by `mincore` 3 us,
//! trying one byte 0.8 us, sending 512 kB 120 to 300 us.

use std::fs::File;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use penstock_sys::file;
use penstock_sys::page_cache::{self, FileSystemKind, ResidencyMapping};

/// How the files of an owner on a file system can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResidencyMethod {
    /// Not known yet: the first reading in the pool finds out.
    Unknown,
    /// Need not be asked: it has no disk.
    InMemory,
    /// By counting pages, then trying bytes.
    Cachestat,
    /// By a place in the address space.
    Mincore,
    /// Not at all, but they are on a local disk: what was just read or sent of them is there.
    RecentlyRead,
    /// By trying to read only; sending from the page cache might wait.
    Probe,
    /// Not at all: everything is read in the pool.
    Unavailable,
}

/// What is known of the files of an owner on a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ResidencyFacts {
    pub(super) method: ResidencyMethod,
    /// A file's number is its own there, so that readings by several descriptors are known to be of one
    /// file.
    pub(super) has_inodes: bool,
}

impl ResidencyFacts {
    pub(super) const UNKNOWN: Self = Self {
        method: ResidencyMethod::Unknown,
        has_inodes: false,
    };

    pub(super) fn to_bits(self) -> u8 {
        let means = match self.method {
            ResidencyMethod::Unknown => 0,
            ResidencyMethod::InMemory => 1,
            ResidencyMethod::Cachestat => 2,
            ResidencyMethod::Probe => 3,
            ResidencyMethod::Unavailable => 4,
            ResidencyMethod::Mincore => 5,
            ResidencyMethod::RecentlyRead => 6,
        };
        means | u8::from(self.has_inodes) << 7
    }

    pub(super) fn from_bits(bits: u8) -> Self {
        let means = match bits & 0x7f {
            1 => ResidencyMethod::InMemory,
            2 => ResidencyMethod::Cachestat,
            3 => ResidencyMethod::Probe,
            4 => ResidencyMethod::Unavailable,
            5 => ResidencyMethod::Mincore,
            6 => ResidencyMethod::RecentlyRead,
            _ => ResidencyMethod::Unknown,
        };
        Self {
            method: means,
            has_inodes: bits & 0x80 != 0,
        }
    }
}

/// What was found out about a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DetectedFacts {
    /// It holds for all files of its owner there.
    AllFiles(ResidencyFacts),
    /// It may be of this one, or of this moment, only.
    ThisFile(ResidencyFacts),
}

/// Finds out how a file's residency can be asked, when `len` bytes at `at` have just been read; `map` maps it. May
/// block: for a pool.
pub(super) fn detect_method<'m>(
    file: &File,
    kind: FileSystemKind,
    (at, len): (u64, usize),
    map: impl Fn() -> Result<&'m ResidencyMapping, io::ErrorKind>,
) -> DetectedFacts {
    use io::ErrorKind::{PermissionDenied, Unsupported};
    let has_inodes = kind == FileSystemKind::Disk;
    let found = |means| {
        DetectedFacts::AllFiles(ResidencyFacts {
            method: means,
            has_inodes,
        })
    };
    let is_counted =
        || is_byte_ready(file, at).is_ok() && are_pages_cached(file, at, 1).unwrap_or(false);
    match kind {
        FileSystemKind::Memory => found(ResidencyMethod::InMemory),
        // An empty piece tells nothing.
        _ if len == 0 => found(ResidencyMethod::Unknown),
        FileSystemKind::Disk if is_counted() => found(ResidencyMethod::Cachestat),
        FileSystemKind::Disk | FileSystemKind::Layered => match map() {
            Ok(map) if map.cached_prefix(at, 1).is_ok_and(|len| len > 0) => {
                found(ResidencyMethod::Mincore)
            }
            Err(PermissionDenied | Unsupported) => found(ResidencyMethod::RecentlyRead),
            // Pages that were read this moment are not seen where they never will be (ZFS, DAX), or went at once.
            Ok(_) | Err(_) => DetectedFacts::ThisFile(ResidencyFacts {
                method: ResidencyMethod::RecentlyRead,
                has_inodes,
            }),
        },
        // Of the others, to send from memory may ask a server, but a try to read keeps its promise.
        FileSystemKind::Other if is_byte_ready(file, at).is_ok() => found(ResidencyMethod::Probe),
        FileSystemKind::Other => found(ResidencyMethod::Unavailable),
    }
}

/// How many of the `len` bytes at `at` a mapping has, as a prefix. In steps of [`STEP_BYTES`] where some are missing.
///
/// # Errors
/// When the kernel does not tell.
pub(super) fn mapped_prefix_bytes(map: &ResidencyMapping, at: u64, len: u64) -> io::Result<u64> {
    let found = map.cached_prefix(at, len)?;
    Ok(if found < len {
        found - found % STEP_BYTES
    } else {
        found
    })
}

/// How many of the `len` bytes at `at` are in counted pages, as a prefix. In steps of [`STEP_BYTES`]
/// where some are missing.
///
/// # Errors
/// When pages cannot be counted.
pub(super) fn cached_prefix_bytes(file: &File, at: u64, len: u64) -> io::Result<u64> {
    if len == 0 || are_pages_cached(file, at, len)? {
        return Ok(len);
    }
    // `all_to` steps are there, not all of `missing_to` are.
    let (mut all_to, mut missing_to) = (0, len.div_ceil(STEP_BYTES));
    while missing_to - all_to > 1 {
        let middle = all_to.midpoint(missing_to);
        match are_pages_cached(file, at, middle * STEP_BYTES)? {
            true => all_to = middle,
            false => missing_to = middle,
        }
    }
    Ok(all_to * STEP_BYTES)
}

/// Whether the pages of the `len` bytes at `at` are all counted.
///
/// # Errors
/// When pages cannot be counted.
pub(super) fn are_pages_cached(file: &File, at: u64, len: u64) -> io::Result<bool> {
    let page = page_cache::page_bytes();
    let pages = (at + len).div_ceil(page) - at / page;
    Ok(page_cache::cached_pages(file, at, len)? >= pages)
}

/// How many of the `len` bytes at `at`, all counted, are not being read any more: a byte is tried in
/// each step.
///
/// # Errors
/// When the file system does not take the question.
pub(super) fn ready_prefix_bytes(file: &File, at: u64, len: u64) -> io::Result<u64> {
    let mut ready = 0;
    while ready < len {
        let step = STEP_BYTES.min(len - ready);
        if !is_byte_ready(file, at + ready + step - 1)? {
            break;
        }
        ready += step;
    }
    Ok(ready)
}

/// Whether the byte at `at` can be read without waiting. The file's end cannot.
///
/// # Errors
/// When the file system does not take the question.
pub(super) fn is_byte_ready(file: &File, at: u64) -> io::Result<bool> {
    match file::read_at_if_cached(file, &mut [0], at) {
        Ok(count) => Ok(count > 0),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

/// What one tried byte stands for, and the least that is worth to be sent by itself.
pub(super) const STEP_BYTES: u64 = 64 * 1024;

/// The chunks of a file of which each step was once seen to be there. A page that is there stays whole
/// until it is dropped, so that a chunk that is all counted again needs fewer tries.
#[derive(Debug, Default)]
pub(super) struct VerifiedChunks {
    /// A bit for each of the first chunks (32 MB).
    first: AtomicU64,
    /// For those behind them.
    more: OnceLock<Box<[AtomicU64; LATER_WORDS]>>,
}

/// With the first word, 2 GB of a file; what is behind that is tried in full each time.
const LATER_WORDS: usize = 63;

impl VerifiedChunks {
    pub(super) fn has(&self, chunk: u64) -> bool {
        let word = match chunk {
            0..64 => Some(&self.first),
            _ => self
                .more
                .get()
                .and_then(|more| more.get(later_word_index(chunk))),
        };
        word.is_some_and(|word| word.load(Ordering::Relaxed) & chunk_bit(chunk) != 0)
    }

    pub(super) fn add(&self, chunk: u64) {
        let word = match chunk {
            0..64 => Some(&self.first),
            _ => self
                .more
                .get_or_init(|| Box::new([const { AtomicU64::new(0) }; LATER_WORDS]))
                .get(later_word_index(chunk)),
        };
        if let Some(word) = word {
            word.fetch_or(chunk_bit(chunk), Ordering::Relaxed);
        }
    }

    pub(super) fn forget(&self, chunk: u64) {
        let word = match chunk {
            0..64 => Some(&self.first),
            _ => self
                .more
                .get()
                .and_then(|more| more.get(later_word_index(chunk))),
        };
        if let Some(word) = word {
            word.fetch_and(!chunk_bit(chunk), Ordering::Relaxed);
        }
    }
}

/// The last answers about chunks that were all there, while they are fresh.
#[derive(Debug, Default)]
pub(super) struct RecentAnswers {
    /// Each from the highest bit: 36 bits of microseconds, 20 of the chunk's number, 8 of how much of it,
    /// in units of 4 kB. One word, so that loops need no lock; 0 is none. A chunk's place is its number's rest.
    packed: [AtomicU64; RECENT_ANSWERS],
}

/// Answers that a file remembers: enough for all chunks of one of 16 MB.
const RECENT_ANSWERS: usize = 32;

/// How long an answer stands for all who ask, unless somebody had to wait since. Pages that were found are about to be sent,
/// or were a moment ago, which makes them the last to go: for that the kernel takes seconds, unless somebody drops them on purpose. A file that
/// many want is asked about 50 times a second, one that one client wants before each piece.
pub(super) const ANSWER_TIME_US: u64 = 20_000;

const UNIT_BYTES: u64 = 4096;
const TIME_MASK: u64 = (1 << 36) - 1;
const CHUNK_MASK: u64 = (1 << 20) - 1;

impl RecentAnswers {
    /// Notes, `now_us` on a clock of the caller's, that the first `len` bytes of a chunk are there.
    pub(super) fn record(&self, chunk: u64, len: u64, now_us: u64) {
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

    /// Whether the first `len` bytes of the chunk were just seen to be there.
    pub(super) fn covers(&self, chunk: u64, len: u64, now_us: u64) -> bool {
        let packed = self.slot(chunk).load(Ordering::Relaxed);
        let (at, known, units) = (packed >> 28, packed >> 8 & CHUNK_MASK, packed & 0xff);
        let age = (now_us & TIME_MASK).wrapping_sub(at) & TIME_MASK;
        known == chunk && len.div_ceil(UNIT_BYTES) <= units && age < ANSWER_TIME_US
    }
}

/// The chunks of a file that were all there a moment ago: as long as nothing has to be read they need not be counted
/// again, which for single pages takes a tenth of the time that it takes to send them.
///
/// A word for each region of sixteen chunks (8 MB), so that loops need no lock: from the highest bit, 32 of
/// milliseconds, 16 of which region it is of those that share the word, and a bit for each chunk. All of them
/// have been seen since that time; a later one begins the word anew.
#[derive(Debug, Default)]
pub(super) struct ResidentChunks {
    /// Of the first regions (64 MB).
    first: [AtomicU64; FIRST_REGIONS],
    /// Those behind them share these (1 GB).
    more: OnceLock<Box<[AtomicU64; LATER_REGIONS]>>,
}

const FIRST_REGIONS: usize = 8;
const LATER_REGIONS: usize = 128;
const REGION_CHUNKS: u64 = 16;

/// How long ago they may have been seen: see [`ANSWER_TIME_US`].
const RESIDENT_TIME_MS: u64 = 5000;

const RESIDENT_TIME_MASK: u64 = (1 << 32) - 1;
const TAG_MASK: u64 = (1 << 16) - 1;

impl ResidentChunks {
    /// Notes, `now_us` on a clock of the caller's, that all of a chunk is there. What was noted before the last
    /// `quiet_us` microseconds, in which nothing was read, counts no more.
    pub(super) fn record(&self, chunk: u64, now_us: u64, quiet_us: u64) {
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
        // Of two that note at a time one is forgotten, and counted again.
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
    // Those that are 64 TB apart are taken for one another.
    (&more[place], region / words % TAG_MASK + 1)
}

/// A time as a word has it.
fn packed_milliseconds(now_us: u64) -> u64 {
    (now_us / 1000) & RESIDENT_TIME_MASK
}

/// Whether a word is of the region with that tag, and of a time that still counts.
fn is_current_word(word: u64, tag: u64, now: u64, quiet_us: u64) -> bool {
    let age = now.wrapping_sub(word >> 32) & RESIDENT_TIME_MASK;
    word >> 16 & TAG_MASK == tag && age < RESIDENT_TIME_MS.min(quiet_us / 1000)
}

/// When something was last found out, shared by all loops without a lock.
#[derive(Debug, Default)]
pub(super) struct AtomicMoment {
    /// Microseconds on a clock of the caller's; 0 is never.
    at_us: AtomicU64,
}

impl AtomicMoment {
    pub(super) fn record(&self, now_us: u64) {
        self.at_us.store(now_us.max(1), Ordering::Relaxed);
    }

    /// How long ago that was; `None` for never.
    pub(super) fn elapsed_us(&self, now_us: u64) -> Option<u64> {
        match self.at_us.load(Ordering::Relaxed) {
            0 => None,
            at_us => Some(now_us.saturating_sub(at_us)),
        }
    }

    /// Whether that was less than `span_us` before.
    pub(super) fn is_within(&self, span_us: u64, now_us: u64) -> bool {
        self.elapsed_us(now_us)
            .is_some_and(|since_us| since_us < span_us)
    }
}

fn chunk_bit(chunk: u64) -> u64 {
    1 << (chunk % 64)
}

/// The place in `more`; one beyond its end for what is not remembered.
fn later_word_index(chunk: u64) -> usize {
    usize::try_from(chunk / 64 - 1).unwrap_or(usize::MAX)
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
        let find = |kind, refused| detect_method(&disk, kind, (0, 1), || Err(refused));
        let facts = |means, has_inodes| ResidencyFacts {
            method: means,
            has_inodes,
        };
        let layered = facts(ResidencyMethod::RecentlyRead, false);
        for (refused, expected) in [
            (
                io::ErrorKind::PermissionDenied,
                DetectedFacts::AllFiles(layered),
            ),
            (io::ErrorKind::Unsupported, DetectedFacts::AllFiles(layered)),
            (
                io::ErrorKind::QuotaExceeded,
                DetectedFacts::ThisFile(layered),
            ),
            (io::ErrorKind::OutOfMemory, DetectedFacts::ThisFile(layered)),
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
            DetectedFacts::AllFiles(facts(ResidencyMethod::InMemory, false))
        );
        // What is behind the mapped part is not there, as a page that went at once.
        let mapping = ResidencyMapping::new(&disk, 4096).unwrap();
        let map = |at| detect_method(&disk, FileSystemKind::Layered, (at, 1), || Ok(&mapping));
        assert_eq!(
            map(0),
            DetectedFacts::AllFiles(facts(ResidencyMethod::Mincore, false))
        );
        assert_eq!(map(4096), DetectedFacts::ThisFile(layered));
    }

    #[test]
    fn facts_fit_in_a_byte() {
        for means in [
            ResidencyMethod::Unknown,
            ResidencyMethod::InMemory,
            ResidencyMethod::Cachestat,
            ResidencyMethod::Probe,
            ResidencyMethod::Unavailable,
            ResidencyMethod::Mincore,
            ResidencyMethod::RecentlyRead,
        ] {
            for has_inodes in [false, true] {
                let facts = ResidencyFacts {
                    method: means,
                    has_inodes,
                };
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
        let moment = AtomicMoment::default();
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
        let asked = RecentAnswers::default();
        assert!(!asked.covers(0, 1, 50), "nothing was asked");
        asked.record(3, 65_537, 1000);
        for (chunk, len, now_us, expected) in [
            (3, 65_537, 1000, true),
            (3, 69_632, 1099, true),
            (3, 69_633, 1000, false),
            (3, 1, 1000 + ANSWER_TIME_US - 1, true),
            (3, 1, 1000 + ANSWER_TIME_US, false),
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
        // What has no room in the word is not noted.
        asked.record(CHUNK_MASK + 1, 1, 2000);
        assert!(!asked.covers(0, 1, 2000) && !asked.covers(CHUNK_MASK + 1, 1, 2000));
        asked.record(0, CHUNK_BYTES, TIME_MASK);
        assert!(asked.covers(0, CHUNK_BYTES, TIME_MASK + 1));
    }

    #[test]
    fn resident_chunks_are_remembered_and_expire() {
        const QUIET: u64 = u64::MAX;
        let whole = ResidentChunks::default();
        // In the first regions, behind them, in the same word as that one, and further than anything is.
        let chunks = [0, 15, 16, 127, 128, 128 + 16 * 128, 1 << 40];
        for chunk in chunks {
            assert!(!whole.has(chunk, 5_000_000, QUIET), "{chunk}");
            whole.record(chunk, 5_000_000, QUIET);
            assert!(whole.has(chunk, 5_000_000, QUIET), "{chunk}");
            assert!(!whole.has(chunk + 1, 5_000_000, QUIET), "{chunk}");
        }
        assert!(!whole.has(128, 5_000_000, QUIET), "another has its word");
        let last_us = 5_000_000 + RESIDENT_TIME_MS * 1000 - 1;
        // The time is that of the first in a word: what came later ends with it.
        whole.record(1, last_us, QUIET);
        assert!(
            whole.has(0, last_us, QUIET)
                && whole.has(1, last_us, QUIET)
                && whole.has(15, last_us, QUIET)
        );
        assert!(!whole.has(0, last_us + 1, QUIET) && !whole.has(1, last_us + 1, QUIET));
        whole.record(1, last_us + 1, QUIET);
        assert!(whole.has(1, last_us + 1, QUIET) && !whole.has(0, last_us + 1, QUIET));
        assert!(!whole.has(1, 4_999_000, QUIET), "before it");
        // What was seen before the last reading is worth nothing, also not with what was seen after it.
        let now_us = last_us + 100_000;
        assert!(whole.has(1, now_us, 101_000) && !whole.has(1, now_us, 99_000));
        assert!(!whole.has(1, now_us, 0), "something is being read");
        whole.record(2, now_us, 50_000);
        assert!(whole.has(2, now_us, 50_000) && !whole.has(1, now_us, QUIET));
    }
}
