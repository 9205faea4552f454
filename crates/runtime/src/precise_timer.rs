//! An alarm that rings to within tens of microseconds.
//!
//! The loop's own timers tell milliseconds apart, which is enough for deadlines but not for a
//! schedule: `bench` sends its open loops' requests by this. One descriptor and one system call for
//! each ring.

use std::io;
use std::os::fd::AsFd;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use penstock_sys::poll::Interest;
use penstock_sys::timer;

use crate::registered_fd::RegisteredFd;

/// A timer of the loop that made it, set for one moment at a time.
#[derive(Debug)]
pub struct PreciseTimer {
    timer: RegisteredFd,
}

impl PreciseTimer {
    /// An alarm that is not set.
    ///
    /// # Errors
    /// When descriptors ran out.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            timer: RegisteredFd::new(timer::create()?, Interest::Read)?,
        })
    }

    /// Sets it to ring `after` from now, instead of what was set before.
    ///
    /// # Errors
    /// What the kernel says, which it has no reason to.
    pub fn set(&self, after: Duration) -> io::Result<()> {
        timer::set(self.timer.as_fd(), after)
    }

    /// Ready once for each moment that was set.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The next setting takes back what made it readable, so nothing needs to be read.
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
