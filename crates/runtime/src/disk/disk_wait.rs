//! Detects that sending on a loop waited for a disk because bytes taken for resident were not.
//!
//! Used by `disk` around each send. Reading the kernel's I/O accounting of the thread costs as much
//! as sending some kilobytes, so it is read only when the clock gives cause, and now and then.

use std::cell::Cell;
use std::path::Path;
use std::sync::LazyLock;

use penstock_sys::page_cache;

/// What a wait costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitCost {
    /// Some counting: a long send counts as a wait.
    Cheap,
    /// Much has to be read again, so a wait must be proven. A fast disk shows in the accounting,
    /// not on the clock.
    Expensive,
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
pub(super) fn has_waited(took_us: u64, doubt: WaitCost) -> bool {
    let Some(before) = BLOCKS_READ.get() else {
        reset_block_count();
        return took_us >= LONG_SEND_US && doubt == WaitCost::Cheap;
    };
    let sendings = SENDS_SINCE_CHECK.get() + u32::from(doubt == WaitCost::Expensive);
    SENDS_SINCE_CHECK.set(sendings);
    if took_us < USUAL_SEND_US && sendings < CHECK_EVERY {
        return false;
    }
    SENDS_SINCE_CHECK.set(0);
    let blocks = page_cache::blocks_read();
    BLOCKS_READ.set(Some(blocks));
    blocks != before
        || (took_us >= LONG_SEND_US && (doubt == WaitCost::Cheap || !*HAS_IO_ACCOUNTING))
}

/// Ignores what this thread has read so far: probes cause reads for which nothing waits.
pub(super) fn reset_block_count() {
    BLOCKS_READ.set(Some(page_cache::blocks_read()));
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
        // As if a block had been read since.
        let read = || BLOCKS_READ.set(Some(page_cache::blocks_read() + 1));
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
