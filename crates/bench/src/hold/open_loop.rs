//! Requests at the moments of a rate, over connections of their own: an open loop, for `publisher`
//! and `probe`.
//!
//! # Invariants
//!
//! - Each request has an intended moment, also if all connections are busy then.
//! - A thread ends within a timeout after it is stopped.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use penstock_client::{Client, ClientError};
use penstock_runtime::loops::block_on;

use super::numbered_message::monotonic_micros;
use crate::load::{Address, TlsTarget};
use crate::text::units::{to_count, to_f64};

/// Makes the requests and counts their outcomes. Moments are those of [`monotonic_micros`].
pub(super) trait OpenLoopWorkload: Send + 'static {
    /// The request for the moment `due`, `late` microseconds ago; `None` to skip it.
    fn next_request(&mut self, due: u64, late: u64) -> Option<Bytes>;

    /// The status of a response, to a request that was sent at `begun`.
    fn record_response(&mut self, outcome: Result<u16, ClientError>, due: u64, begun: u64);

    /// No request can be sent.
    fn record_failure(&mut self, why: String);
}

#[derive(Debug)]
pub(super) struct OpenLoop<S> {
    state: Arc<OpenLoopState<S>>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct OpenLoopState<S> {
    settings: OpenLoopSettings,
    is_stopped: AtomicBool,
    /// When the first request is due, and the number of the next request that no thread has taken.
    first_due: u64,
    next_number: AtomicU64,
    /// Held for one update at a time.
    workload: Mutex<S>,
}

/// The server, the rate and the timeout.
#[derive(Debug, Clone)]
pub struct OpenLoopSettings {
    /// Where to connect.
    pub address: Address,
    /// Who must be there, if connections have TLS.
    pub tls: Option<TlsTarget>,
    /// Requests per second.
    pub rate: f64,
    /// For connecting, and for a response.
    pub timeout: Duration,
}

impl<S: OpenLoopWorkload> OpenLoop<S> {
    pub(super) fn start(settings: OpenLoopSettings, connections: usize, workload: S) -> Self {
        let state = Arc::new(OpenLoopState {
            settings,
            is_stopped: AtomicBool::new(false),
            first_due: monotonic_micros() + START_DELAY_US,
            next_number: AtomicU64::new(0),
            workload: Mutex::new(workload),
        });
        let thread = |_| {
            let state = Arc::clone(&state);
            std::thread::spawn(move || {
                if let Err(error) = block_on(state.run()) {
                    state.with_workload(|workload| workload.record_failure(error.to_string()));
                }
            })
        };
        Self {
            threads: (0..connections).map(thread).collect(),
            state,
        }
    }
}

impl<S> OpenLoop<S> {
    pub(super) fn with_workload<T>(&self, take: impl FnOnce(&mut S) -> T) -> T {
        self.state.with_workload(take)
    }

    /// Waits for the requests in progress; no other is sent.
    pub(super) fn stop(&mut self) {
        self.state.is_stopped.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // A panic was printed.
            let _ = thread.join();
        }
    }
}

impl<S> Drop for OpenLoop<S> {
    fn drop(&mut self) {
        self.stop();
    }
}

impl<S> OpenLoopState<S> {
    fn with_workload<T>(&self, take: impl FnOnce(&mut S) -> T) -> T {
        // An update is never left half done.
        take(&mut self.workload.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until a moment; false if stopped before.
    fn wait_until(&self, due: u64) -> bool {
        loop {
            if self.is_stopped.load(Ordering::Relaxed) {
                return false;
            }
            let left = due.saturating_sub(monotonic_micros());
            if left == 0 {
                return true;
            }
            std::thread::park_timeout(Duration::from_micros(left.min(STOP_CHECK_US)));
        }
    }
}

impl<S: OpenLoopWorkload> OpenLoopState<S> {
    /// One connection: takes the next moment, waits for it, sends a request.
    async fn run(&self) {
        let OpenLoopSettings {
            address,
            tls,
            rate,
            timeout,
        } = &self.settings;
        let mut client = Client::new(address.clone()).with_tls(tls.clone());
        // The first request reports a failure.
        let _ = client.connect(*timeout).await;
        loop {
            let number = self.next_number.fetch_add(1, Ordering::Relaxed);
            let due = self.first_due + micros_after(number, *rate);
            if !self.wait_until(due) {
                return;
            }
            let begun = monotonic_micros();
            let late = begun.saturating_sub(due);
            let Some(request) = self.with_workload(|workload| workload.next_request(due, late))
            else {
                continue;
            };
            let outcome = client.exchange(&request, *timeout, MAX_BODY_BYTES).await;
            let outcome = outcome.map(|response| response.status);
            self.with_workload(|workload| workload.record_response(outcome, due, begun));
        }
    }
}

/// Microseconds from the first to the `number`-th moment of a rate.
fn micros_after(number: u64, rate: f64) -> u64 {
    to_count(to_f64(number) * 1e6 / rate)
}

/// More than any server responds with to a message or a probe.
const MAX_BODY_BYTES: usize = 64 << 20;

/// Microseconds before the first request, in which the connections are opened.
const START_DELAY_US: u64 = 50_000;

/// Microseconds within which the end of a wait is noticed.
const STOP_CHECK_US: u64 = 50_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_of_a_rate_are_even() {
        assert_eq!(
            [0, 1, 2, 100].map(|number| micros_after(number, 4.0)),
            [0, 250_000, 500_000, 25_000_000]
        );
    }
}
