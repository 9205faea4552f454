//! Detects that sending on a loop waited for a disk because bytes taken for resident were not.
//!
//! Used by `disk` around each send. Reading the kernel's I/O accounting of the thread costs as much
//! as sending some kilobytes, so it is read only when the clock gives cause, and now and then.

use std::cell::Cell;
use std::path::Path;
use std::sync::LazyLock;

use penstock_sys::page_cache;

/// The evidence that a send waited for a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitEvidence {
    /// A long send is enough: a wrong answer costs some counting.
    LongSend,
    /// Blocks read by this thread: a wrong answer would cause many reads. A fast disk shows in the
    /// accounting, not on the clock.
    BlocksRead,
}

/// Sending resident bytes usually takes less.
const USUAL_SEND_US: u64 = 1000;

/// A loop that was blocked this long waited for a disk or for a processor.
pub(super) const LONG_SEND_US: u64 = 20_000;

/// The accounting is read after this many fast sends.
const CHECK_EVERY: u32 = 16;

/// Whether the kernel accounts what a thread reads.
static HAS_IO_ACCOUNTING: LazyLock<bool> = LazyLock::new(|| Path::new("/proc/self/io").exists());

thread_local! {
    /// Blocks that this thread had read at the last check; those before its first send do not
    /// count.
    static BLOCKS_READ: Cell<Option<u64>> = const { Cell::new(None) };
    /// Sends since then.
    static SENDS_SINCE_CHECK: Cell<u32> = const { Cell::new(0) };
}

/// Whether a send that took `took_us`, or an unchecked one before it, waited for a disk.
pub(super) fn has_waited_for_disk(took_us: u64, evidence: WaitEvidence) -> bool {
    let Some(before) = BLOCKS_READ.get() else {
        reset_blocks_read();
        return took_us >= LONG_SEND_US && evidence == WaitEvidence::LongSend;
    };
    let sendings = SENDS_SINCE_CHECK.get() + u32::from(evidence == WaitEvidence::BlocksRead);
    SENDS_SINCE_CHECK.set(sendings);
    if took_us < USUAL_SEND_US && sendings < CHECK_EVERY {
        return false;
    }
    SENDS_SINCE_CHECK.set(0);
    let blocks = page_cache::blocks_read();
    BLOCKS_READ.set(Some(blocks));
    blocks != before
        || (took_us >= LONG_SEND_US && (evidence == WaitEvidence::LongSend || !*HAS_IO_ACCOUNTING))
}

/// Ignores what this thread has read so far: probes cause reads for which nothing waits.
pub(super) fn reset_blocks_read() {
    BLOCKS_READ.set(Some(page_cache::blocks_read()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_send_counts_as_a_wait_if_that_is_enough() {
        assert!(
            !has_waited_for_disk(LONG_SEND_US, WaitEvidence::BlocksRead),
            "the first one"
        );
        for _ in 0..100 {
            assert!(
                !has_waited_for_disk(0, WaitEvidence::LongSend)
                    && !has_waited_for_disk(USUAL_SEND_US, WaitEvidence::LongSend)
            );
            assert!(
                !has_waited_for_disk(0, WaitEvidence::BlocksRead)
                    && !has_waited_for_disk(USUAL_SEND_US, WaitEvidence::BlocksRead)
            );
        }
        assert!(has_waited_for_disk(LONG_SEND_US, WaitEvidence::LongSend));
        assert_eq!(
            has_waited_for_disk(LONG_SEND_US, WaitEvidence::BlocksRead),
            !*HAS_IO_ACCOUNTING
        );
    }

    #[test]
    fn blocks_read_count_as_a_wait_after_some_sends() {
        reset_blocks_read();
        // As if a block had been read since.
        let read = || BLOCKS_READ.set(Some(page_cache::blocks_read() + 1));
        read();
        assert!(
            has_waited_for_disk(USUAL_SEND_US, WaitEvidence::LongSend)
                && !has_waited_for_disk(USUAL_SEND_US, WaitEvidence::LongSend)
        );
        read();
        let sendings = (1..100).find(|_| has_waited_for_disk(0, WaitEvidence::BlocksRead));
        assert_eq!(sendings, Some(CHECK_EVERY));
        read();
        reset_blocks_read();
        assert!(!has_waited_for_disk(
            USUAL_SEND_US,
            WaitEvidence::BlocksRead
        ));
    }
}
