//! Time: the monotonic clock, the wall clock, and the `Date` header text made once a second.
//!
//! The only place that reads a clock for the rooms; pure crates get `now` as an argument.

use std::cell::Cell;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The monotonic time.
#[must_use]
pub fn now() -> Instant {
    Instant::now()
}

/// Time since the epoch on the wall clock.
#[must_use]
pub fn wall() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// Waits on the current loop.
pub async fn sleep(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// Waits for `work` at most until `deadline`; `None` when it took longer.
pub async fn until<F: Future>(deadline: Instant, work: F) -> Option<F::Output> {
    tokio::time::timeout_at(deadline.into(), work).await.ok()
}

thread_local! {
    static DATE: Cell<(u64, [u8; 29])> = const { Cell::new((u64::MAX, [0; 29])) };
}

/// The current `Date` header value (RFC 9110 §5.6.7), formatted at most once a second per loop.
#[must_use]
pub fn http_date() -> [u8; 29] {
    let seconds = wall().as_secs();
    let (at, text) = DATE.get();
    if at == seconds {
        return text;
    }
    let text = penstock_http::imf_fixdate(seconds);
    DATE.set((seconds, text));
    text
}
