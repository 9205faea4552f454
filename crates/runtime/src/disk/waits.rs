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
pub(super) enum Doubt {
    /// Some counting: whoever was kept for long is taken to have waited.
    Cheap,
    /// Much has to be read again: it takes a proof. A fast disk leaves no trace on the clock, but on the account.
    Dear,
}

/// What is in memory is sent in less, mostly.
const SENDING_US: u64 = 1000;

/// A loop that was kept for so long was kept by a disk, or from the processor.
pub(super) const WAITED_US: u64 = 20_000;

/// The account is asked after so many sendings that took no time.
const ASKED_EACH: u32 = 16;

/// Whether the kernel counts what is read for a thread.
static IS_COUNTED: LazyLock<bool> = LazyLock::new(|| Path::new("/proc/self/io").exists());

thread_local! {
    /// Blocks that this thread had read when it was last asked: those before its first sending were for something else.
    static BLOCKS: Cell<Option<u64>> = const { Cell::new(None) };
    /// Sendings since.
    static SENDINGS: Cell<u32> = const { Cell::new(0) };
}

/// Whether a sending that took `took_us` has waited for a disk; or those before it that were not asked about.
pub(super) fn has_waited(took_us: u64, doubt: Doubt) -> bool {
    let Some(before) = BLOCKS.get() else {
        forget();
        return took_us >= WAITED_US && doubt == Doubt::Cheap;
    };
    let sendings = SENDINGS.get() + u32::from(doubt == Doubt::Dear);
    SENDINGS.set(sendings);
    if took_us < SENDING_US && sendings < ASKED_EACH {
        return false;
    }
    SENDINGS.set(0);
    let blocks = page_cache::blocks_read();
    BLOCKS.set(Some(blocks));
    blocks != before || (took_us >= WAITED_US && (doubt == Doubt::Cheap || !*IS_COUNTED))
}

/// What this thread has read so far was a try's doing, for which nobody waited.
pub(super) fn forget() {
    BLOCKS.set(Some(page_cache::blocks_read()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn to_be_kept_for_long_is_a_wait_where_that_costs_little() {
        assert!(!has_waited(WAITED_US, Doubt::Dear), "the first one");
        for _ in 0..100 {
            assert!(!has_waited(0, Doubt::Cheap) && !has_waited(SENDING_US, Doubt::Cheap));
            assert!(!has_waited(0, Doubt::Dear) && !has_waited(SENDING_US, Doubt::Dear));
        }
        assert!(has_waited(WAITED_US, Doubt::Cheap));
        assert_eq!(has_waited(WAITED_US, Doubt::Dear), !*IS_COUNTED);
    }

    #[test]
    fn what_was_read_is_a_wait_however_short_at_the_latest_some_sendings_later() {
        forget();
        // As if so much had been read since.
        let read = || BLOCKS.set(Some(page_cache::blocks_read() + 1));
        read();
        assert!(has_waited(SENDING_US, Doubt::Cheap) && !has_waited(SENDING_US, Doubt::Cheap));
        read();
        let sendings = (1..100).find(|_| has_waited(0, Doubt::Dear));
        assert_eq!(sendings, Some(ASKED_EACH));
        read();
        forget();
        assert!(!has_waited(SENDING_US, Doubt::Dear));
    }
}
