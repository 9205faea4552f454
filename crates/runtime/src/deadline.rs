//! A deadline that moves often and is checked rarely.
//!
//! A keep-alive connection's deadline moves with every request; arming a timer each time costs more
//! than the read it guards. This timer stays armed at its old time and, when it fires early, is
//! armed again for the real deadline. Only an *earlier* deadline rearms it. A poll by another task
//! replaces the waker; a poll by the same task only compares.

use std::task::{Context, Poll};
use std::time::Instant;

use crate::loops::Timer;

/// A deadline with at most one armed timer, created by the first poll.
#[derive(Debug)]
pub struct LazyDeadline {
    deadline: Instant,
    timer: Option<Timer>,
}

impl LazyDeadline {
    /// Creates a deadline at `at`; no timer is armed until it is polled.
    pub fn new(at: Instant) -> Self {
        Self {
            deadline: at,
            timer: None,
        }
    }

    /// Moves the deadline.
    pub fn set(&mut self, at: Instant) {
        self.deadline = at;
    }

    /// The current deadline.
    pub fn at(&self) -> Instant {
        self.deadline
    }

    /// Ready when the deadline has passed.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(timer) = &self.timer
            && timer.fires_at() <= self.deadline
            && timer.set_waker(cx.waker())
        {
            return Poll::Pending;
        }
        self.timer = None;
        if self.deadline <= Instant::now() {
            return Poll::Ready(());
        }
        self.timer = Some(Timer::new(self.deadline, cx.waker()));
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{clock, loops};
    use std::future::poll_fn;
    use std::time::Duration;

    fn wait(deadline: &mut LazyDeadline) {
        loops::block_on(poll_fn(|cx| deadline.poll(cx))).unwrap();
    }

    #[test]
    fn a_later_deadline_fires_at_its_new_time() {
        let start = Instant::now();
        let mut deadline = LazyDeadline::new(start + Duration::from_millis(5));
        loops::block_on(async {
            let first = poll_fn(|cx| Poll::Ready(deadline.poll(cx))).await;
            assert!(first.is_pending());
            deadline.set(start + Duration::from_millis(40));
            poll_fn(|cx| deadline.poll(cx)).await;
            assert!(start.elapsed() >= Duration::from_millis(40));
        })
        .unwrap();
    }

    #[test]
    fn the_task_that_polled_last_is_woken() {
        loops::block_on(async {
            let mut deadline = LazyDeadline::new(Instant::now() + Duration::from_millis(30));
            let first = poll_fn(|cx| Poll::Ready(deadline.poll(cx))).await;
            assert!(first.is_pending());
            let other =
                loops::spawn_with_handle(async move { poll_fn(|cx| deadline.poll(cx)).await });
            let met = clock::timeout_at(Instant::now() + Duration::from_secs(10), other).await;
            met.expect("the timer wakes the last task that polled")
                .unwrap();
        })
        .unwrap();
    }

    #[test]
    fn an_earlier_deadline_fires_at_its_new_time() {
        let start = Instant::now();
        let mut deadline = LazyDeadline::new(start + Duration::from_secs(600));
        deadline.set(start + Duration::from_millis(1));
        wait(&mut deadline);
        assert!(start.elapsed() < Duration::from_secs(300));
    }
}
