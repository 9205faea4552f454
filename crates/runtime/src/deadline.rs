//! A deadline that moves often and is checked rarely.
//!
//! A keep-alive connection's deadline moves with every request; arming a timer each time costs more
//! than the read it guards. The timer here stays armed at its old time and, when it fires early,
//! moves on to the real deadline. Only a deadline that comes *nearer* than the armed time rearms, and
//! only a task that the timer does not know yet registers with it: asking again is one load.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::task::unconstrained;
use tokio::time::Sleep;

/// A deadline with at most one armed timer. One allocation, made when the first wait begins.
#[derive(Debug)]
pub struct LazyDeadline {
    at: Instant,
    armed_at: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
    /// Whom the timer wakes. It keeps that task's memory, so no other can have the same address.
    wakes: usize,
}

impl LazyDeadline {
    /// A deadline at `at`; nothing is armed until it is polled.
    #[must_use]
    pub fn new(at: Instant) -> Self {
        Self {
            at,
            armed_at: None,
            timer: None,
            wakes: 0,
        }
    }

    /// Moves the deadline.
    pub fn set(&mut self, at: Instant) {
        self.at = at;
    }

    /// The current deadline.
    #[must_use]
    pub fn at(&self) -> Instant {
        self.at
    }

    /// Ready when the deadline has passed.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let wakes = cx.waker().data() as usize;
        loop {
            let timer = match &mut self.timer {
                Some(timer) => {
                    if self.wakes == wakes
                        && self.armed_at.is_some_and(|armed| armed <= self.at)
                        && !timer.is_elapsed()
                    {
                        return Poll::Pending;
                    }
                    if self.armed_at.is_none_or(|armed| self.at < armed) {
                        timer.as_mut().reset(self.at.into());
                        self.armed_at = Some(self.at);
                    }
                    timer
                }
                empty => {
                    self.armed_at = Some(self.at);
                    empty.insert(Box::pin(tokio::time::sleep_until(self.at.into())))
                }
            };
            // Without a budget: a task that used up its own would not be registered.
            if pin!(unconstrained(timer.as_mut())).poll(cx).is_pending() {
                self.wakes = wakes;
                return Poll::Pending;
            }
            if self.at <= Instant::now() {
                return Poll::Ready(());
            }
            self.armed_at = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::time::Duration;

    fn wait(deadline: &mut LazyDeadline) {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
            .block_on(poll_fn(|cx| deadline.poll(cx)));
    }

    #[test]
    fn a_deadline_that_moved_away_is_met_at_its_new_time() {
        let start = Instant::now();
        let mut deadline = LazyDeadline::new(start + Duration::from_millis(5));
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
            .block_on(async {
                let first = poll_fn(|cx| Poll::Ready(deadline.poll(cx))).await;
                assert!(first.is_pending());
                deadline.set(start + Duration::from_millis(40));
                poll_fn(|cx| deadline.poll(cx)).await;
                assert!(start.elapsed() >= Duration::from_millis(40));
            });
    }

    #[test]
    fn another_task_that_waits_is_woken() {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
            .block_on(async {
                let mut deadline = LazyDeadline::new(Instant::now() + Duration::from_millis(30));
                let first = poll_fn(|cx| Poll::Ready(deadline.poll(cx))).await;
                assert!(first.is_pending());
                let other = tokio::spawn(async move { poll_fn(|cx| deadline.poll(cx)).await });
                let met = tokio::time::timeout(Duration::from_secs(10), other).await;
                met.expect("the timer wakes who asked last").unwrap();
            });
    }

    #[test]
    fn a_task_that_used_up_its_turn_is_woken_all_the_same() {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
            .block_on(async {
                let mut deadline = LazyDeadline::new(Instant::now() + Duration::from_millis(5));
                let (_keep, mut never) = tokio::sync::mpsc::channel::<()>(1);
                let waiting = tokio::spawn(async move {
                    poll_fn(|cx| {
                        // Until the runtime pretends that nothing is ready.
                        let (give, mut take) = tokio::sync::mpsc::unbounded_channel();
                        while tokio::task::coop::has_budget_remaining() {
                            give.send(()).unwrap();
                            let _ = take.poll_recv(cx);
                        }
                        let _ = never.poll_recv(cx);
                        deadline.poll(cx)
                    })
                    .await;
                });
                let met = tokio::time::timeout(Duration::from_secs(10), waiting).await;
                met.expect("the deadline is met").unwrap();
            });
    }

    #[test]
    fn a_deadline_that_came_nearer_is_met_early() {
        let start = Instant::now();
        let mut deadline = LazyDeadline::new(start + Duration::from_secs(600));
        deadline.set(start + Duration::from_millis(1));
        wait(&mut deadline);
        assert!(start.elapsed() < Duration::from_secs(300));
    }
}
