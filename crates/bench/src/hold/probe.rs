//! Requests beside the streams: whether the same server still answers others while it holds them.
//!
//! The coordinator starts it before the first stream and takes an interval out of it with each sample. An
//! open loop: each request has an intended moment, and its time counts from then, also when all
//! connections were still busy. What must stay true: a server that stalls makes no requests disappear.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use hdrhistogram::{CreationError, Histogram};

use super::client::{Client, Failure};
use super::message;
use super::publisher::{after, wait_until};
use crate::load::{Address, histogram, timings};
use crate::report::Probed;

/// What is asked for, and how often.
#[derive(Debug, Clone)]
pub struct Asking {
    /// As given, for the report.
    pub target: String,
    /// Where to connect.
    pub address: Address,
    /// The request.
    pub request: Bytes,
    /// Requests a second.
    pub rate: f64,
    /// For a connection, and for a response.
    pub timeout: Duration,
}

/// A probe at work.
#[derive(Debug)]
pub(super) struct Probe {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// What came of the requests since the last look.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Interval {
    pub(super) mean: Option<f64>,
    pub(super) p99: Option<u64>,
    pub(super) errors: u64,
}

#[derive(Debug)]
struct Shared {
    asking: Asking,
    is_over: AtomicBool,
    /// When the first is due, in microseconds; and which is the next that nobody has taken.
    base: u64,
    next: AtomicU64,
    /// Held for one count at a time.
    done: Mutex<Done>,
}

#[derive(Debug)]
struct Done {
    probed: Probed,
    total: Histogram<u64>,
    /// Since all streams are open.
    held: Histogram<u64>,
    is_held: bool,
    interval: Histogram<u64>,
    interval_errors: u64,
}

impl Probe {
    /// Starts to ask.
    pub(super) fn start(asking: &Asking) -> Result<Self, CreationError> {
        let shared = Arc::new(Shared {
            asking: asking.clone(),
            is_over: AtomicBool::new(false),
            base: message::now() + AHEAD,
            next: AtomicU64::new(0),
            done: Mutex::new(Done {
                probed: Probed {
                    target: asking.target.clone(),
                    rate: asking.rate,
                    ..Probed::default()
                },
                total: histogram()?,
                held: histogram()?,
                is_held: false,
                interval: histogram()?,
                interval_errors: 0,
            }),
        });
        let thread = |_| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || shared.run())
        };
        Ok(Self {
            threads: (0..CONNECTIONS).map(thread).collect(),
            shared,
        })
    }

    /// From now on all streams are held.
    pub(super) fn hold(&self) {
        self.shared.count(|done| done.is_held = true);
    }

    /// What came of the requests since the last look.
    pub(super) fn interval(&self) -> Interval {
        self.shared.count(|done| {
            let some = !done.interval.is_empty();
            let found = Interval {
                mean: some.then(|| done.interval.mean()),
                p99: some.then(|| done.interval.value_at_quantile(0.99)),
                errors: std::mem::take(&mut done.interval_errors),
            };
            done.interval.reset();
            found
        })
    }

    /// Asks no more; gives what came of all requests.
    pub(super) fn stop(mut self) -> Probed {
        self.end();
        self.shared.count(|done| Probed {
            total: timings(&done.total),
            held: timings(&done.held),
            ..done.probed.clone()
        })
    }

    fn end(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // It ends within a time-out; if it panicked, that was said.
            let _ = thread.join();
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    /// One connection: takes the next moment, waits for it, asks.
    fn run(&self) {
        let timeout = self.asking.timeout;
        let mut client = Client::new(self.asking.address.clone(), timeout);
        client.open();
        let too_late = u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX);
        loop {
            let turn = self.next.fetch_add(1, Ordering::Relaxed);
            let due = self.base + after(turn, self.asking.rate);
            if !wait_until(due, &self.is_over) {
                return;
            }
            let late = message::now().saturating_sub(due);
            if late > too_late {
                self.count(|done| done.skip(late));
                continue;
            }
            let outcome = client.exchange(&self.asking.request);
            let took = message::now().saturating_sub(due).max(1);
            self.count(|done| done.take(outcome, took));
        }
    }

    fn count<T>(&self, take: impl FnOnce(&mut Done) -> T) -> T {
        // A count is never left half-way.
        take(&mut self.done.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Done {
    fn take(&mut self, outcome: Result<u16, Failure>, took: u64) {
        self.record(took);
        let why = match outcome {
            Ok(status) => {
                self.probed.requests += 1;
                (status >= 400).then(|| format!("answered with {status}"))
            }
            Err(failure) => Some(failure.to_string()),
        };
        if let Some(why) = why {
            self.probed.errors += 1;
            self.interval_errors += 1;
            self.probed.said.get_or_insert(why);
        }
    }

    fn skip(&mut self, late: u64) {
        self.record(late);
        self.probed.skipped += 1;
        self.interval_errors += 1;
    }

    fn record(&mut self, took: u64) {
        self.total.saturating_record(took);
        self.interval.saturating_record(took);
        if self.is_held {
            self.held.saturating_record(took);
        }
    }
}

/// So many may be under way at once; with 100 requests a second that is enough for answers of 320 ms.
const CONNECTIONS: usize = 32;

/// Microseconds before the first request, in which the connections are opened.
const AHEAD: u64 = 50_000;
