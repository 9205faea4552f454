//! Requests beside the streams: whether the server still responds to others while it holds them.
//!
//! The coordinator starts it before the first stream and takes an interval with each sample. The
//! time of a request counts from its intended moment.
//!
//! # Invariants
//!
//! - A server that stalls makes no requests disappear.

use bytes::Bytes;
use hdrhistogram::{CreationError, Histogram};
use penstock_client::ClientError;

use super::numbered_message::monotonic_micros;
use super::open_loop::{OpenLoop, OpenLoopSettings, OpenLoopWorkload};
use crate::load::{new_histogram, summarize_histogram};
use crate::report::{HoldSample, ProbeResult};

/// The requests.
#[derive(Debug, Clone)]
pub struct ProbeSpec {
    /// As given, for the report.
    pub target: String,
    /// Where to send it, and when.
    pub open_loop: OpenLoopSettings,
    /// The request.
    pub request: Bytes,
}

#[derive(Debug)]
pub(super) struct HoldProbe(OpenLoop<ProbeCounters>);

#[derive(Debug)]
struct ProbeCounters {
    request: Bytes,
    /// Microseconds after which a request is not sent.
    too_late: u64,
    probed: ProbeResult,
    total: Histogram<u64>,
    /// Since all streams are open.
    while_held: Histogram<u64>,
    is_held: bool,
    interval: Histogram<u64>,
    interval_errors: u64,
}

impl HoldProbe {
    pub(super) fn start(spec: &ProbeSpec) -> Result<Self, CreationError> {
        let counters = ProbeCounters {
            request: spec.request.clone(),
            too_late: u64::try_from(spec.open_loop.timeout.as_micros()).unwrap_or(u64::MAX),
            probed: ProbeResult {
                target: spec.target.clone(),
                rate: spec.open_loop.rate,
                ..ProbeResult::default()
            },
            total: new_histogram()?,
            while_held: new_histogram()?,
            is_held: false,
            interval: new_histogram()?,
            interval_errors: 0,
        };
        let settings = spec.open_loop.clone();
        Ok(Self(OpenLoop::start(settings, PROBE_CONNECTIONS, counters)))
    }

    /// Marks that all streams are held from now on.
    pub(super) fn mark_streams_held(&self) {
        self.0.with_workload(|done| done.is_held = true);
    }

    /// Writes the results since the last sample into this one.
    pub(super) fn fill_sample(&self, sample: &mut HoldSample) {
        self.0.with_workload(|done| {
            if !done.interval.is_empty() {
                sample.probe_mean = Some(done.interval.mean());
                sample.probe_p99 = Some(done.interval.value_at_quantile(0.99));
            }
            sample.probe_errors = std::mem::take(&mut done.interval_errors);
            done.interval.reset();
        });
    }

    /// Stops the probe; returns the results of all requests.
    pub(super) fn stop(mut self) -> ProbeResult {
        self.0.stop();
        self.0.with_workload(|done| ProbeResult {
            total: summarize_histogram(&done.total),
            while_held: summarize_histogram(&done.while_held),
            ..done.probed.clone()
        })
    }
}

impl OpenLoopWorkload for ProbeCounters {
    fn next_request(&mut self, _due: u64, late: u64) -> Option<Bytes> {
        if late > self.too_late {
            self.record(late);
            self.probed.skipped += 1;
            self.interval_errors += 1;
            return None;
        }
        Some(self.request.clone())
    }

    fn record_response(&mut self, outcome: Result<u16, ClientError>, due: u64, _begun: u64) {
        self.record(monotonic_micros().saturating_sub(due).max(1));
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

    fn record_failure(&mut self, why: String) {
        self.probed.first_error = Some(why);
    }
}

impl ProbeCounters {
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
