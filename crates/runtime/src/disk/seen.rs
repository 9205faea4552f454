//! What of a file was just read, or sent without a wait: all that is known of a file of which the kernel does not tell
//! what is in memory.
//!
//! Kept by `disk` for files of others on local disks, and in layers over such. What must stay true: a chunk counts as
//! there only for a short time after all of it was seen.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::CHUNK_BYTES;
use super::residency::STEP_BYTES;

/// When all of each chunk was last read, or sent without a wait, where the kernel does not tell what is there. A file that
/// many want is always there so; one that nobody wanted for a second is read in the pool.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// A word for each of the first chunks (2 GB; those behind them are read each time), so that loops need no lock:
    /// from the highest bit, 28 of the milliseconds since which all of it was seen, 28 of those since which some of
    /// it was seen again, and a bit for each step that was. 0 is never.
    words: OnceLock<Box<[AtomicU64]>>,
}

/// For how long what was seen counts as there. A disk so fast that other readings have driven it out by then is not
/// waited for long.
pub(super) const SEEN_US: u64 = 1_000_000;

const SEEN_CHUNKS: u64 = 4096;
const SEEN_TIME_MASK: u64 = (1 << 28) - 1;
const STEPS_MASK: u64 = (1 << (CHUNK_BYTES / STEP_BYTES)) - 1;

impl Seen {
    /// Notes, `now_us` on a clock of the caller's, that the `len` bytes at `at` of a file of `file_bytes` were read or sent. Whoever comes to
    /// the end of a step is taken to have come through all of it.
    pub(super) fn note(&self, (at, len): (u64, u64), file_bytes: u64, now_us: u64) {
        let end = at + len;
        let chunks = file_bytes.div_ceil(CHUNK_BYTES).min(SEEN_CHUNKS);
        for chunk in at / CHUNK_BYTES..end.div_ceil(CHUNK_BYTES).min(chunks) {
            let start = chunk * CHUNK_BYTES;
            let passed = |step: &u64| {
                let last = (start + (step + 1) * STEP_BYTES).min(file_bytes) - 1;
                (at..end).contains(&last) || start + step * STEP_BYTES >= file_bytes
            };
            let steps = (0..CHUNK_BYTES / STEP_BYTES).filter(passed);
            let steps = steps.fold(0, |steps, step| steps | 1 << step);
            let words =
                (self.words).get_or_init(|| (0..chunks).map(|_| AtomicU64::new(0)).collect());
            let word = usize::try_from(chunk)
                .ok()
                .and_then(|chunk| words.get(chunk));
            if let Some(word) = word {
                let known = word.load(Ordering::Relaxed);
                // Of two that note at a time one is forgotten, and comes by again.
                let next = seen_next(known, steps, seen_time(now_us));
                let _ = word.compare_exchange(known, next, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }

    /// Whether all of a chunk was seen within the last `span_us`, of [`SEEN_US`] at most.
    pub(super) fn has(&self, chunk: u64, now_us: u64, span_us: u64) -> bool {
        let place = usize::try_from(chunk).unwrap_or(usize::MAX);
        let word = self.words.get().and_then(|words| words.get(place));
        let since = word.map_or(0, |word| word.load(Ordering::Relaxed) >> 36);
        since != 0 && seen_age(since, seen_time(now_us)) < span_us.min(SEEN_US) / 1000
    }
}

/// A word after `steps` were seen, at `now` as it has times.
fn seen_next(known: u64, steps: u64, now: u64) -> u64 {
    let (whole, began, before) = (known >> 36, known >> 8 & SEEN_TIME_MASK, known & STEPS_MASK);
    // What was seen too long ago for the rest is seen anew.
    let is_on = before != 0 && seen_age(began, now) < SEEN_US / 2000;
    let (began, steps) = if is_on {
        (began, before | steps)
    } else {
        (now, steps)
    };
    match steps {
        STEPS_MASK => began << 36,
        _ => whole << 36 | began << 8 | steps,
    }
}

/// A time as a word has it, never 0.
fn seen_time(now_us: u64) -> u64 {
    ((now_us / 1000) & SEEN_TIME_MASK).max(1)
}

fn seen_age(since: u64, now: u64) -> u64 {
    now.wrapping_sub(since) & SEEN_TIME_MASK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_was_seen_once_each_of_its_steps_was() {
        const FILE: u64 = 2 * CHUNK_BYTES + 100_000;
        let seen = Seen::default();
        let (note, has) = (
            |at, len, now_us| seen.note((at, len), FILE, now_us),
            |chunk, now_us| seen.has(chunk, now_us, u64::MAX),
        );
        assert!(!has(0, 0) && !has(2, 5_000_000));
        // All of one, some of the next; sent in pieces of any size.
        note(0, CHUNK_BYTES + 100_000, 1_000_000);
        assert!(has(0, 1_000_000) && !has(1, 1_000_000));
        let mut at = CHUNK_BYTES + 100_000;
        while at < FILE {
            assert!(!has(2, 1_100_000));
            let len = 99_999.min(FILE - at);
            note(at, len, 1_100_000);
            at += len;
        }
        // What was seen in parts was seen when the first part was.
        assert!(has(1, 1_999_000) && !has(1, 2_000_000));
        assert!(has(2, 2_099_000) && !has(2, 2_100_000));
        // Not within so short a time as somebody had to wait.
        assert!(!seen.has(2, 1_200_000, 100_000) && seen.has(2, 1_200_000, 101_000));
        // Parts that are too far apart do not make a whole.
        for (step, now_us) in (0..8).zip((5_000_000..).step_by(100_000)) {
            note(step * STEP_BYTES, STEP_BYTES, now_us);
        }
        assert!(!has(0, 5_700_000));
        // Nor do parts of steps.
        for step in 0..8 {
            note(step * STEP_BYTES, STEP_BYTES - 1, 8_000_000);
        }
        assert!(!has(0, 8_000_000));
        // Behind the end, and where nothing is remembered.
        note(FILE, 10, 9_000_000);
        assert!(!has(3, 9_000_000) && !has(SEEN_CHUNKS, 9_000_000));
        let large = Seen::default();
        large.note(
            (SEEN_CHUNKS * CHUNK_BYTES, CHUNK_BYTES),
            u64::MAX / 2,
            9_000_000,
        );
        assert!(!large.has(SEEN_CHUNKS, 9_000_000, u64::MAX));
    }
}
