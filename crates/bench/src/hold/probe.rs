//! Requests beside the streams: whether the server still responds to others while it holds them.
//!
//! The coordinator starts it before the first stream and takes an interval with each sample. An
//! open loop: each request has an intended moment, and its time counts from then, even if all
//! connections were busy.
//!
//! # Invariants
//!
//! - A server that stalls makes no requests disappear.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use hdrhistogram::{CreationError, Histogram};
use penstock_client::{Client, ClientError};
use penstock_runtime::loops::block_on;

use super::numbered_message;
use super::publisher::{MAX_BODY_BYTES, micros_after, wait_until};
use crate::load::{Address, new_histogram, summarize};
use crate::report::ProbeResult;

/// The request, and its rate.
#[derive(Debug, Clone)]
pub struct ProbeSpec {
    /// As given, for the report.
    pub target: String,
    /// Where to connect.
    pub address: Address,
    /// The request.
    pub request: Bytes,
    /// Requests per second.
    pub rate: f64,
    /// For connecting, and for a response.
    pub timeout: Duration,
}

#[derive(Debug)]
pub(super) struct HoldProbe {
    shared: Arc<ProbeState>,
    threads: Vec<JoinHandle<()>>,
}

/// The results since the last reading.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct ProbeInterval {
    pub(super) mean: Option<f64>,
    pub(super) p99: Option<u64>,
    pub(super) errors: u64,
}

#[derive(Debug)]
struct ProbeState {
    spec: ProbeSpec,
    is_stopped: AtomicBool,
    /// When the first request is due, in microseconds; and the next one that no thread has taken.
    first_due: u64,
    next_turn: AtomicU64,
    /// Held for one update at a time.
    counters: Mutex<ProbeCounters>,
}

#[derive(Debug)]
struct ProbeCounters {
    probed: ProbeResult,
    total: Histogram<u64>,
    /// Since all streams are open.
    while_held: Histogram<u64>,
    is_held: bool,
    interval: Histogram<u64>,
    interval_errors: u64,
}

impl HoldProbe {
    pub(super) fn start(asking: &ProbeSpec) -> Result<Self, CreationError> {
        let shared = Arc::new(ProbeState {
            spec: asking.clone(),
            is_stopped: AtomicBool::new(false),
            first_due: numbered_message::monotonic_micros() + START_DELAY_US,
            next_turn: AtomicU64::new(0),
            counters: Mutex::new(ProbeCounters {
                probed: ProbeResult {
                    target: asking.target.clone(),
                    rate: asking.rate,
                    ..ProbeResult::default()
                },
                total: new_histogram()?,
                while_held: new_histogram()?,
                is_held: false,
                interval: new_histogram()?,
                interval_errors: 0,
            }),
        });
        let thread = |_| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || {
                if let Err(error) = block_on(shared.run()) {
                    let why = Some(error.to_string());
                    shared.with_counters(|done| done.probed.first_error = why);
                }
            })
        };
        Ok(Self {
            threads: (0..PROBE_CONNECTIONS).map(thread).collect(),
            shared,
        })
    }

    /// All streams are held from now on.
    pub(super) fn begin_holding(&self) {
        self.shared.with_counters(|done| done.is_held = true);
    }

    /// Takes the results since the last reading.
    pub(super) fn take_interval(&self) -> ProbeInterval {
        self.shared.with_counters(|done| {
            let some = !done.interval.is_empty();
            let found = ProbeInterval {
                mean: some.then(|| done.interval.mean()),
                p99: some.then(|| done.interval.value_at_quantile(0.99)),
                errors: std::mem::take(&mut done.interval_errors),
            };
            done.interval.reset();
            found
        })
    }

    /// Stops the probe; returns the results of all requests.
    pub(super) fn stop(mut self) -> ProbeResult {
        self.end();
        self.shared.with_counters(|done| ProbeResult {
            total: summarize(&done.total),
            while_held: summarize(&done.while_held),
            ..done.probed.clone()
        })
    }

    fn end(&mut self) {
        self.shared.is_stopped.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // It ends within a timeout; a panic was printed.
            let _ = thread.join();
        }
    }
}

impl Drop for HoldProbe {
    fn drop(&mut self) {
        self.end();
    }
}

impl ProbeState {
    /// One connection: takes the next moment, waits for it, sends a request.
    async fn run(&self) {
        let timeout = self.spec.timeout;
        let mut client = Client::new(self.spec.address.clone());
        // The first request reports a failure.
        let _ = client.connect(timeout).await;
        let too_late = u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX);
        loop {
            let turn = self.next_turn.fetch_add(1, Ordering::Relaxed);
            let due = self.first_due + micros_after(turn, self.spec.rate);
            if !wait_until(due, &self.is_stopped) {
                return;
            }
            let late = numbered_message::monotonic_micros().saturating_sub(due);
            if late > too_late {
                self.with_counters(|done| done.record_skipped(late));
                continue;
            }
            let outcome = client.exchange(&self.spec.request, timeout, MAX_BODY_BYTES);
            let outcome = outcome.await.map(|response| response.status);
            let took = numbered_message::monotonic_micros()
                .saturating_sub(due)
                .max(1);
            self.with_counters(|done| done.record_response(outcome, took));
        }
    }

    fn with_counters<T>(&self, take: impl FnOnce(&mut ProbeCounters) -> T) -> T {
        // An update is never left half done.
        take(&mut self.counters.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ProbeCounters {
    fn record_response(&mut self, outcome: Result<u16, ClientError>, took: u64) {
        self.record(took);
        let why = match outcome {
            Ok(status) => {
                self.probed.requests += 1;
                (status >= 400).then(|| format!("response status {status}"))
            }
            Err(failure) => Some(failure.to_string()),
        };
        if let Some(why) = why {
            self.probed.errors += 1;
            self.interval_errors += 1;
            self.probed.first_error.get_or_insert(why);
        }
    }

    fn record_skipped(&mut self, late: u64) {
        self.record(late);
        self.probed.skipped += 1;
        self.interval_errors += 1;
    }

    fn record(&mut self, took: u64) {
        self.total.saturating_record(took);
        self.interval.saturating_record(took);
        if self.is_held {
            self.while_held.saturating_record(took);
        }
    }
}

/// Maximum concurrent requests; at 100 requests per second enough for responses of 320 ms.
const PROBE_CONNECTIONS: usize = 32;

/// Microseconds before the first request, in which the connections are opened.
const START_DELAY_US: u64 = 50_000;
