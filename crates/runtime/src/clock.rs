//! The monotonic clock, the wall clock, and the `Date` header text, formatted once a second.
//!
//! Components read clocks only here; pure crates get `now` as an argument.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::deadline::LazyDeadline;
use crate::loops;

/// Returns the monotonic time.
#[must_use]
pub fn now() -> Instant {
    Instant::now()
}

/// Returns the wall-clock time since the epoch.
#[must_use]
pub fn wall_time() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// Returns the wall-clock time of `at`, an instant in the last seconds. The clock is read at most
/// once a second per loop, so a clock change takes effect within a second.
#[must_use]
pub fn wall_time_at(at: Instant) -> Duration {
    let (read_at, then) = match WALL.get() {
        Some((read_at, then)) if at < read_at + Duration::from_secs(1) => (read_at, then),
        _ => {
            let read = (now(), wall_time());
            WALL.set(Some(read));
            read
        }
    };
    match at.checked_duration_since(read_at) {
        Some(since) => then + since,
        None => then.saturating_sub(read_at.saturating_duration_since(at)),
    }
}

/// Sleeps on the current event loop.
pub async fn sleep(duration: Duration) {
    let now = now();
    sleep_until(now.checked_add(duration).unwrap_or(now + FAR_FUTURE)).await;
}

/// Sleeps on the current event loop until `at`. If that has passed, it yields once: a task that
/// sleeps again and again must not occupy the loop.
pub async fn sleep_until(at: Instant) {
    if at <= now() {
        return loops::yield_now().await;
    }
    let mut deadline = LazyDeadline::new(at);
    poll_fn(|cx| deadline.poll(cx)).await;
}

/// Awaits `work` until `deadline`; `None` when it took longer.
pub async fn timeout_at<F: Future>(deadline: Instant, work: F) -> Option<F::Output> {
    let mut work = pin!(work);
    let mut deadline = LazyDeadline::new(deadline);
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => deadline.poll(cx).map(|()| None),
    })
    .await
}

/// Awaits `work` for at most `duration`; `None` when it took longer.
pub async fn timeout<F: Future>(duration: Duration, work: F) -> Option<F::Output> {
    timeout_at(now() + duration, work).await
}

/// Times at which a condition is polled: at once, and then every period.
#[derive(Debug)]
pub struct PollInterval {
    period: Duration,
    next_tick: Instant,
}

impl PollInterval {
    /// Creates an interval whose first tick is now.
    pub fn new(every: Duration) -> Self {
        Self {
            period: every,
            next_tick: now(),
        }
    }

    /// Waits for the next tick; missed ticks are skipped.
    pub async fn tick(&mut self) {
        sleep_until(self.next_tick).await;
        self.next_tick = now() + self.period;
    }
}

/// Longer than any wait: thirty years.
const FAR_FUTURE: Duration = Duration::from_secs(30 * 365 * 86_400);

/// A formatted date and its expiry.
#[derive(Clone, Copy)]
struct CachedDate {
    valid_until: Option<Instant>,
    text: [u8; 29],
}

thread_local! {
    /// The same instant by both clocks.
    static WALL: Cell<Option<(Instant, Duration)>> = const { Cell::new(None) };
    static DATE: Cell<CachedDate> = const { Cell::new(CachedDate { valid_until: None, text: [0; 29] }) };
}

/// Returns the `Date` header value (RFC 9110 §5.6.7) for `now`, a recent instant. The wall clock is
/// read and the text formatted at most once a second per loop.
#[must_use]
pub fn http_date(now: Instant) -> [u8; 29] {
    let known = DATE.get();
    if known.valid_until.is_some_and(|until| now < until) {
        return known.text;
    }
    let wall = wall_time();
    let text = penstock_http::imf_fixdate(wall.as_secs());
    // Valid until the wall clock's next second; a clock change takes effect then.
    let left =
        Duration::from_secs(1).saturating_sub(Duration::from_nanos(u64::from(wall.subsec_nanos())));
    DATE.set(CachedDate {
        valid_until: Some(now + left),
        text,
    });
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_clocks_agree() {
        let at = now();
        let first = wall_time_at(at);
        assert!(first.abs_diff(wall_time()) < Duration::from_secs(5));
        for apart in [1, 999, 1001, 100_000].map(Duration::from_millis) {
            assert_eq!(wall_time_at(at - apart), first - apart, "{apart:?} before");
        }
        let later = Duration::from_millis(500);
        assert_eq!(wall_time_at(at + later), first + later);
    }
}
