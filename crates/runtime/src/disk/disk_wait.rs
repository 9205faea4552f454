//! Whether a sending on a loop had to wait for a disk, which it was not to: what was taken to be in memory was not.
//!
//! Used by `disk` around each. The kernel's account of the thread costs as much as a sending of some kilobytes, so that
//! it is asked where the clock gives cause, and now and then.

use std::cell::Cell;
use std::path::Path;
use std::sync::LazyLock;

use penstock_sys::page_cache;

/// What it means to have waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitCost {
    /// Some counting: whoever was kept for long is taken to have waited.
    Cheap,
    /// Much has to be read again: it takes a proof. A fast disk leaves no trace on the clock, but on the account.
    Expensive,
}

/// What is in memory is sent in less, mostly.
const USUAL_SEND_US: u64 = 1000;

/// A loop that was kept for so long was kept by a disk, or from the processor.
pub(super) const LONG_SEND_US: u64 = 20_000;

/// The account is asked after so many sendings that took no time.
const CHECK_EVERY: u32 = 16;

/// Whether the kernel counts what is read for a thread.
static HAS_IO_ACCOUNTING: LazyLock<bool> = LazyLock::new(|| Path::new("/proc/self/io").exists());

thread_local! {
    /// Blocks that this thread had read when it was last asked: those before its first sending were for something else.
    static BLOCKS: Cell<Option<u64>> = const { Cell::new(None) };
    /// Sendings since.
    static SENDINGS: Cell<u32> = const { Cell::new(0) };
}

/// Whether a sending that took `took_us` has waited for a disk; or those before it that were not asked about.
pub(super) fn has_waited(took_us: u64, doubt: WaitCost) -> bool {
    let Some(before) = BLOCKS.get() else {
        reset_block_count();
        return took_us >= LONG_SEND_US && doubt == WaitCost::Cheap;
    };
    let sendings = SENDINGS.get() + u32::from(doubt == WaitCost::Expensive);
    SENDINGS.set(sendings);
    if took_us < USUAL_SEND_US && sendings < CHECK_EVERY {
        return false;
    }
    SENDINGS.set(0);
    let blocks = page_cache::blocks_read();
    BLOCKS.set(Some(blocks));
    blocks != before
        || (took_us >= LONG_SEND_US && (doubt == WaitCost::Cheap || !*HAS_IO_ACCOUNTING))
}

/// What this thread has read so far was a try's doing, for which nobody waited.
pub(super) fn reset_block_count() {
    BLOCKS.set(Some(page_cache::blocks_read()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_send_counts_as_a_wait_if_that_is_cheap() {
        assert!(
            !has_waited(LONG_SEND_US, WaitCost::Expensive),
            "the first one"
        );
        for _ in 0..100 {
            assert!(!has_waited(0, WaitCost::Cheap) && !has_waited(USUAL_SEND_US, WaitCost::Cheap));
            assert!(
                !has_waited(0, WaitCost::Expensive)
                    && !has_waited(USUAL_SEND_US, WaitCost::Expensive)
            );
        }
        assert!(has_waited(LONG_SEND_US, WaitCost::Cheap));
        assert_eq!(
            has_waited(LONG_SEND_US, WaitCost::Expensive),
            !*HAS_IO_ACCOUNTING
        );
    }

    #[test]
    fn blocks_read_count_as_a_wait_after_some_sends() {
        reset_block_count();
        // As if so much had been read since.
        let read = || BLOCKS.set(Some(page_cache::blocks_read() + 1));
        read();
        assert!(
            has_waited(USUAL_SEND_US, WaitCost::Cheap)
                && !has_waited(USUAL_SEND_US, WaitCost::Cheap)
        );
        read();
        let sendings = (1..100).find(|_| has_waited(0, WaitCost::Expensive));
        assert_eq!(sendings, Some(CHECK_EVERY));
        read();
        reset_block_count();
        assert!(!has_waited(USUAL_SEND_US, WaitCost::Expensive));
    }
}
