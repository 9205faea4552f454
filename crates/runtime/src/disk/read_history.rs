//! What was recently read from a file or sent without a wait, where the kernel does not report
//! residency.
//!
//! Kept by `disk` for all descriptors of a file together: for files of other owners on local disks
//! and in layered file systems. A page that was evicted since costs a loop one wait, after which
//! the earlier history is discarded.
//!
//! # Invariants
//! - A part counts as resident only if it was seen to the last page within a short time.

use std::sync::atomic::{AtomicU64, Ordering};

use super::CHUNK_BYTES;
use super::residency::PROBE_STEP_BYTES;

/// When each part of a file was last seen. A popular file is always resident by this.
#[derive(Debug)]
pub(super) struct ReadHistory {
    /// For the first 2 GB; the rest is read each time.
    chunks: Box<[ChunkHistory]>,
    file_bytes: u64,
}

/// Atomic words, so that loops need no lock. Of two concurrent records one is lost, and recorded
/// later.
#[derive(Debug, Default)]
struct ChunkHistory {
    /// When each step was last seen, four to a word ([`packed_time`]).
    steps: [AtomicU64; 2],
    /// The latest contiguous range ([`ReadRun`]): pieces that are sent begin and end anywhere.
    run: AtomicU64,
}

/// Contiguous pieces.
#[derive(Debug, Clone, Copy)]
struct ReadRun {
    /// Whole pages from the chunk's beginning.
    first_page: u64,
    /// Bytes from the chunk's beginning.
    end: u64,
    /// When it began.
    started: u64,
}

/// How long the history counts. A disk fast enough to evict the pages by then does not make a loop
/// wait long.
const HISTORY_TIME_US: u64 = 1_000_000;

/// A run takes no longer: an older one is not continued.
const MAX_RUN_TIME_US: u64 = HISTORY_TIME_US / 2;

const MAX_CHUNKS: u64 = 4096;
const STEPS_PER_CHUNK: u64 = CHUNK_BYTES / PROBE_STEP_BYTES;
const PAGE_BYTES: u64 = 4096;

impl ReadHistory {
    /// An empty history of a file of this length.
    pub(super) fn new(file_bytes: u64) -> Self {
        let chunks = file_bytes.div_ceil(CHUNK_BYTES).min(MAX_CHUNKS);
        Self {
            chunks: (0..chunks).map(|_| ChunkHistory::default()).collect(),
            file_bytes,
        }
    }

    /// Records at `now_us`, on the caller's clock, that the `len` bytes at `at` were read or sent.
    pub(super) fn record_range(&self, at: u64, len: u64, now_us: u64) {
        let end = at.saturating_add(len).min(self.file_bytes);
        let now = packed_time(now_us);
        let mut at = at;
        while at < end {
            let number = at / CHUNK_BYTES;
            let start = number * CHUNK_BYTES;
            let to = end.min(start + CHUNK_BYTES);
            match self.chunk(number) {
                Some(chunk) => chunk.record(at - start, to - start, self.file_bytes - start, now),
                None => return,
            }
            at = to;
        }
    }

    /// Whether the `len` bytes at `at`, within a chunk, were seen within the last `span_us`, of
    /// which at most a second counts.
    pub(super) fn has_recent_range(&self, at: u64, len: u64, now_us: u64, span_us: u64) -> bool {
        let number = at / CHUNK_BYTES;
        let (from, to) = (
            at - number * CHUNK_BYTES,
            at - number * CHUNK_BYTES + len.min(CHUNK_BYTES),
        );
        let is_within = to <= CHUNK_BYTES && at.saturating_add(len) <= self.file_bytes;
        let (now, span) = (packed_time(now_us), span_us.min(HISTORY_TIME_US) / UNIT_US);
        let chunk = self.chunk(number).filter(|_| is_within);
        chunk.is_some_and(|chunk| chunk.has(from, to, |since| is_within_span(since, now, span)))
    }

    fn chunk(&self, number: u64) -> Option<&ChunkHistory> {
        self.chunks.get(usize::try_from(number).ok()?)
    }
}

impl ChunkHistory {
    /// Records the bytes from `from` to `to`; the file ends `file_end` bytes from the chunk's
    /// beginning.
    fn record(&self, from: u64, to: u64, file_end: u64, now: u64) {
        let known = ReadRun::unpacked(self.run.load(Ordering::Relaxed));
        let goes_on = known.filter(|run| {
            run.end == from && is_within_span(run.started, now, MAX_RUN_TIME_US / UNIT_US)
        });
        let run = ReadRun {
            first_page: goes_on.map_or_else(|| from.div_ceil(PAGE_BYTES), |run| run.first_page),
            end: to,
            started: goes_on.map_or(now, |run| run.started),
        };
        self.run.store(run.packed(), Ordering::Relaxed);
        for step in from / PROBE_STEP_BYTES..to.div_ceil(PROBE_STEP_BYTES) {
            let (start, end) = (step * PROBE_STEP_BYTES, (step + 1) * PROBE_STEP_BYTES);
            if run.first_page * PAGE_BYTES <= start && end.min(file_end) <= to {
                self.set_step_time(step, run.started);
            }
        }
    }

    fn has(&self, from: u64, to: u64, is_recent: impl Fn(u64) -> bool) -> bool {
        let run = ReadRun::unpacked(self.run.load(Ordering::Relaxed));
        let is_in_run = run.is_some_and(|run| {
            run.first_page * PAGE_BYTES <= from && to <= run.end && is_recent(run.started)
        });
        is_in_run
            || (from / PROBE_STEP_BYTES..to.div_ceil(PROBE_STEP_BYTES)).all(|step| {
                let since = self.step_time(step);
                since != 0 && is_recent(since)
            })
    }

    fn word(&self, step: u64) -> (&AtomicU64, u64) {
        let word = &self.steps[usize::from(step >= STEPS_PER_CHUNK / 2)];
        (word, step % (STEPS_PER_CHUNK / 2) * TIME_BITS)
    }

    fn step_time(&self, step: u64) -> u64 {
        let (word, shift) = self.word(step);
        word.load(Ordering::Relaxed) >> shift & TIME_MASK
    }

    fn set_step_time(&self, step: u64, time: u64) {
        let (word, shift) = self.word(step);
        let known = word.load(Ordering::Relaxed);
        let next = known & !(TIME_MASK << shift) | time << shift;
        let _ = word.compare_exchange(known, next, Ordering::Relaxed, Ordering::Relaxed);
    }
}

impl ReadRun {
    /// First page (8 bits from bit 40), end (20 bits from bit 16) and time (16 bits); 0 is none.
    fn packed(self) -> u64 {
        self.first_page << 40 | self.end << 16 | self.started
    }

    fn unpacked(packed: u64) -> Option<Self> {
        (packed != 0).then_some(Self {
            first_page: packed >> 40,
            end: packed >> 16 & 0xff_ffff,
            started: packed & TIME_MASK,
        })
    }
}

/// Unit of a packed time. Packed times wrap after half an hour: a step not seen for exactly that
/// long seems resident for a second, which costs a read at that moment a wait.
const UNIT_US: u64 = 32 * 1024;
const TIME_BITS: u64 = 16;
const TIME_MASK: u64 = (1 << TIME_BITS) - 1;

/// A time as stored in words, never 0.
fn packed_time(now_us: u64) -> u64 {
    ((now_us / UNIT_US) & TIME_MASK).max(1)
}

/// Whether `since` is less than `span` before `now`; another loop may have read its clock a moment
/// later.
fn is_within_span(since: u64, now: u64, span: u64) -> bool {
    let age = now.wrapping_sub(since) & TIME_MASK;
    span > 0 && (age < span || age > TIME_MASK - 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: u64 = 2 * CHUNK_BYTES + 100_000;
    const SECOND: u64 = 1_000_000;

    #[test]
    fn reads_are_remembered_for_a_second() {
        let seen = ReadHistory::new(FILE);
        let has = |at, len, now_us| seen.has_recent_range(at, len, now_us, u64::MAX);
        assert!(!has(0, 1, 0) && !has(FILE - 1, 1, 5 * SECOND));
        seen.record_range(0, CHUNK_BYTES + 100_000, SECOND);
        assert!(has(0, CHUNK_BYTES, SECOND) && has(CHUNK_BYTES + 10, 99_990, SECOND));
        assert!(!has(CHUNK_BYTES, 100_001, SECOND));
        assert!(has(1000, 1000, SECOND + 900_000) && !has(1000, 1000, 2 * SECOND + UNIT_US));
        // Not after a wait within the span; loops read the clock at different moments.
        assert!(!seen.has_recent_range(0, 1, SECOND + 100_000, 60_000));
        assert!(
            seen.has_recent_range(0, 1, SECOND + 60_000, 100_000)
                && !seen.has_recent_range(0, 1, SECOND, 0)
        );
        assert!(has(0, 1, SECOND - UNIT_US) && !has(0, 1, SECOND - 5 * UNIT_US));
        // Not beyond the end of the file, nor across chunks.
        seen.record_range(0, u64::MAX, 2 * SECOND);
        assert!(has(FILE - 10, 10, 2 * SECOND) && !has(FILE - 10, 11, 2 * SECOND));
        assert!(!has(CHUNK_BYTES - 1, 2, 2 * SECOND) && !has(u64::MAX, u64::MAX, 2 * SECOND));
        ReadHistory::new(0).record_range(0, 10, SECOND);
    }

    #[test]
    fn consecutive_reads_cover_a_step_and_partial_ones_do_not() {
        let seen = ReadHistory::new(FILE);
        let has = |at, len, now_us| seen.has_recent_range(at, len, now_us, u64::MAX);
        let mut at = 0;
        while at < FILE {
            assert!(!has(FILE - 100_000, 100_000, SECOND));
            let len = 29_999.min(FILE - at);
            seen.record_range(at, len, SECOND);
            at += len;
        }
        for (at, len) in [
            (0, CHUNK_BYTES),
            (CHUNK_BYTES, CHUNK_BYTES),
            (FILE - 100_000, 100_000),
        ] {
            assert!(has(at, len, SECOND), "{at}");
        }
        // The end of each step alone, or all but the end, does not cover the rest.
        for step in 0..STEPS_PER_CHUNK {
            let end = (step + 1) * PROBE_STEP_BYTES;
            seen.record_range(end - PAGE_BYTES, PAGE_BYTES, 9 * SECOND);
            seen.record_range(
                end - PROBE_STEP_BYTES,
                PROBE_STEP_BYTES - 2 * PAGE_BYTES,
                9 * SECOND,
            );
            assert!(
                !has(end - PROBE_STEP_BYTES, PROBE_STEP_BYTES, 9 * SECOND),
                "{step}"
            );
        }
        // Slower than a run may be: its beginning does not get the time of its end.
        for part in 0..4 {
            seen.record_range(part * 16_384, 16_384, 20 * SECOND + part * 200_000);
        }
        assert!(!has(0, PROBE_STEP_BYTES, 20 * SECOND + 600_000));
        assert!(has(50_000, 10_000, 20 * SECOND + 600_000));
    }

    #[test]
    fn only_the_first_part_of_a_large_file_is_remembered() {
        let seen = ReadHistory::new(u64::MAX);
        let first_behind = MAX_CHUNKS * CHUNK_BYTES;
        seen.record_range(first_behind - CHUNK_BYTES, 2 * CHUNK_BYTES, SECOND);
        let has = |at| seen.has_recent_range(at, 1, SECOND, u64::MAX);
        assert!(has(first_behind - 1) && !has(first_behind));
    }
}
