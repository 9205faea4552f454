//! What of a file was just read, or sent without a wait: all that is known where the kernel does not tell what is in
//! memory.
//!
//! Kept by `disk`, for all descriptors of a file together, of files of others on local disks and in layers. What must
//! stay true: what counts as there was seen to the last page within a short time. A part that was not, or a page that
//! has gone since, costs a loop a wait, after which all that was seen before counts no more.

use std::sync::atomic::{AtomicU64, Ordering};

use super::CHUNK_BYTES;
use super::residency::STEP_BYTES;

/// When each part of a file was last seen. A file that many want is always there so.
#[derive(Debug)]
pub(super) struct ReadHistory {
    /// Of the first 2 GB; what is behind them is read each time.
    chunks: Box<[ChunkHistory]>,
    file_bytes: u64,
}

/// Words, so that loops need no lock. Of two that note at a time one is forgotten, and comes by again.
#[derive(Debug, Default)]
struct ChunkHistory {
    /// When each step was last seen, four to a word ([`time`]).
    steps: [AtomicU64; 2],
    /// What was seen last, in one go ([`ReadRun`]): pieces that are sent begin and end anywhere.
    run: AtomicU64,
}

/// Pieces that follow one another.
#[derive(Debug, Clone, Copy)]
struct ReadRun {
    /// Whole pages from the chunk's beginning.
    first_page: u64,
    /// Bytes from the chunk's beginning.
    end: u64,
    /// When it began.
    started: u64,
}

/// For how long what was seen counts as there. A disk so fast that other readings have driven it out by then is not
/// waited for long.
const HISTORY_TIME_US: u64 = 1_000_000;

/// A run takes no longer: what began before is another.
const MAX_RUN_TIME_US: u64 = HISTORY_TIME_US / 2;

const MAX_CHUNKS: u64 = 4096;
const STEPS_PER_CHUNK: u64 = CHUNK_BYTES / STEP_BYTES;
const PAGE_BYTES: u64 = 4096;

impl ReadHistory {
    /// Of a file that is so long: nothing was seen of it.
    pub(super) fn new(file_bytes: u64) -> Self {
        let chunks = file_bytes.div_ceil(CHUNK_BYTES).min(MAX_CHUNKS);
        Self {
            chunks: (0..chunks).map(|_| ChunkHistory::default()).collect(),
            file_bytes,
        }
    }

    /// Notes, `now_us` on a clock of the caller's, that the `len` bytes at `at` were read or sent.
    pub(super) fn record(&self, at: u64, len: u64, now_us: u64) {
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

    /// Whether the `len` bytes at `at`, within a chunk, were seen within the last `span_us`, of a second at most.
    pub(super) fn has(&self, at: u64, len: u64, now_us: u64, span_us: u64) -> bool {
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
    /// Notes the bytes from `from` to `to`; the file ends `file_end` bytes from the chunk's beginning.
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
        for step in from / STEP_BYTES..to.div_ceil(STEP_BYTES) {
            let (start, end) = (step * STEP_BYTES, (step + 1) * STEP_BYTES);
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
            || (from / STEP_BYTES..to.div_ceil(STEP_BYTES)).all(|step| {
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
    /// Eight bits of the first page, twenty of the end, and the time; 0 is none.
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

/// A time is a number of these. It comes round in half an hour: then a step that was not seen for so long seems to be
/// there for a second, which costs whoever asks for it just then a wait.
const UNIT_US: u64 = 32 * 1024;
const TIME_BITS: u64 = 16;
const TIME_MASK: u64 = (1 << TIME_BITS) - 1;

/// A time as words have it, never 0.
fn packed_time(now_us: u64) -> u64 {
    ((now_us / UNIT_US) & TIME_MASK).max(1)
}

/// Whether `since` is less than `span` before `now`; another loop's clock may have been read a moment later.
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
        let has = |at, len, now_us| seen.has(at, len, now_us, u64::MAX);
        assert!(!has(0, 1, 0) && !has(FILE - 1, 1, 5 * SECOND));
        seen.record(0, CHUNK_BYTES + 100_000, SECOND);
        assert!(has(0, CHUNK_BYTES, SECOND) && has(CHUNK_BYTES + 10, 99_990, SECOND));
        assert!(!has(CHUNK_BYTES, 100_001, SECOND));
        assert!(has(1000, 1000, SECOND + 900_000) && !has(1000, 1000, 2 * SECOND + UNIT_US));
        // Not within so short a time as somebody had to wait; loops do not read the clock at once.
        assert!(!seen.has(0, 1, SECOND + 100_000, 60_000));
        assert!(seen.has(0, 1, SECOND + 60_000, 100_000) && !seen.has(0, 1, SECOND, 0));
        assert!(has(0, 1, SECOND - UNIT_US) && !has(0, 1, SECOND - 5 * UNIT_US));
        // Not behind the end, nor over a chunk's.
        seen.record(0, u64::MAX, 2 * SECOND);
        assert!(has(FILE - 10, 10, 2 * SECOND) && !has(FILE - 10, 11, 2 * SECOND));
        assert!(!has(CHUNK_BYTES - 1, 2, 2 * SECOND) && !has(u64::MAX, u64::MAX, 2 * SECOND));
        ReadHistory::new(0).record(0, 10, SECOND);
    }

    #[test]
    fn consecutive_reads_cover_a_step_and_partial_ones_do_not() {
        let seen = ReadHistory::new(FILE);
        let has = |at, len, now_us| seen.has(at, len, now_us, u64::MAX);
        let mut at = 0;
        while at < FILE {
            assert!(!has(FILE - 100_000, 100_000, SECOND));
            let len = 29_999.min(FILE - at);
            seen.record(at, len, SECOND);
            at += len;
        }
        for (at, len) in [
            (0, CHUNK_BYTES),
            (CHUNK_BYTES, CHUNK_BYTES),
            (FILE - 100_000, 100_000),
        ] {
            assert!(has(at, len, SECOND), "{at}");
        }
        // The end of each step alone, or all but it, says nothing of the rest.
        for step in 0..STEPS_PER_CHUNK {
            let end = (step + 1) * STEP_BYTES;
            seen.record(end - PAGE_BYTES, PAGE_BYTES, 9 * SECOND);
            seen.record(end - STEP_BYTES, STEP_BYTES - 2 * PAGE_BYTES, 9 * SECOND);
            assert!(!has(end - STEP_BYTES, STEP_BYTES, 9 * SECOND), "{step}");
        }
        // Slower than a run may be: its beginning is not taken for as late as its end.
        for part in 0..4 {
            seen.record(part * 16_384, 16_384, 20 * SECOND + part * 200_000);
        }
        assert!(!has(0, STEP_BYTES, 20 * SECOND + 600_000));
        assert!(has(50_000, 10_000, 20 * SECOND + 600_000));
    }

    #[test]
    fn only_the_first_part_of_a_large_file_is_remembered() {
        let seen = ReadHistory::new(u64::MAX);
        let first_behind = MAX_CHUNKS * CHUNK_BYTES;
        seen.record(first_behind - CHUNK_BYTES, 2 * CHUNK_BYTES, SECOND);
        let has = |at| seen.has(at, 1, SECOND, u64::MAX);
        assert!(has(first_behind - 1) && !has(first_behind));
    }
}
