//! Timers as descriptors (`timerfd`): finer than the event loop's own timers, which have
//! milliseconds.
//!
//! Used by `runtime`: its `PreciseTimer` adds readiness, and each of its loops has one for all its
//! timers.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

/// Creates a timer that is not set.
pub fn create() -> io::Result<OwnedFd> {
    let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
    Ok(rustix::time::timerfd_create(
        TimerfdClockId::Monotonic,
        flags,
    )?)
}

/// Makes the timer readable once, `after` from now; replaces the previous setting.
pub fn set(timer: BorrowedFd<'_>, after: Duration) -> io::Result<()> {
    // Zero would disarm it.
    let after = after.max(Duration::from_nanos(1));
    let never = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let value = Timespec {
        tv_sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(after.subsec_nanos()),
    };
    let setting = Itimerspec {
        it_interval: never,
        it_value: value,
    };
    rustix::time::timerfd_settime(timer, TimerfdTimerFlags::empty(), &setting)?;
    Ok(())
}
