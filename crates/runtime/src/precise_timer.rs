//! A timer that fires to within tens of microseconds.
//!
//! The loop's own timers have a resolution of milliseconds, which is enough for deadlines but not
//! for a schedule: `bench` sends the requests of its open-loop model by this. It costs one
//! descriptor, and one system call for each setting.

use std::io;
use std::os::fd::AsFd;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use penstock_sys::poll::Interest;
use penstock_sys::timer;

use crate::registered_fd::RegisteredFd;

/// A timer of the loop that created it, set for one time at a time.
#[derive(Debug)]
pub struct PreciseTimer {
    timer: RegisteredFd,
}

impl PreciseTimer {
    /// Creates a timer that is not set.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            timer: RegisteredFd::new(timer::create()?, Interest::Read)?,
        })
    }

    /// Sets it to fire `after` from now, replacing the previous setting.
    pub fn set(&self, after: Duration) -> io::Result<()> {
        timer::set(self.timer.as_fd(), after)
    }

    /// Ready once for each setting.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The next setting resets the readiness, so nothing needs to be read.
        ready!(self.timer.poll_readable(cx))?;
        self.timer.clear_readable();
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loops;
    use std::future::poll_fn;
    use std::time::Instant;

    #[test]
    fn fires_once_per_setting_and_not_early() {
        loops::block_on(async {
            let alarm = PreciseTimer::new().unwrap();
            for after in [0, 300, 2_000] {
                let (start, after) = (Instant::now(), Duration::from_micros(after));
                alarm.set(after).unwrap();
                poll_fn(|cx| alarm.poll(cx)).await.unwrap();
                assert!(start.elapsed() >= after);
            }
            let again = poll_fn(|cx| Poll::Ready(alarm.poll(cx))).await;
            assert!(again.is_pending());
        })
        .unwrap();
    }
}
