//! The measurements of one load on one event loop, and all loops' together as [`Figures`].
//!
//! Histograms have a fixed size (1 us to 1 h, three digits) and are made before the load begins:
//! nothing grows with the number of requests, and recording does not allocate.

use std::time::Duration;

use hdrhistogram::{CreationError, Histogram};

use super::response_reader::ResponseFailure;
use crate::report::{Errors, Figures, Schedule, Statuses, Timings};

/// Counters and distributions of one load on one loop.
#[derive(Debug, Clone)]
pub(super) struct Recorder {
    pub(super) requests: u64,
    pub(super) bytes: u64,
    pub(super) body_bytes: u64,
    statuses: Statuses,
    errors: Errors,
    pub(super) schedule: Schedule,
    /// Sent again, on a new connection.
    pub(super) retried: u64,
    unfinished: u64,
    oldest_unfinished: u64,
    connect: Histogram<u64>,
    first_byte: Histogram<u64>,
    total: Histogram<u64>,
    /// Of an open loop only.
    open: Option<OpenLoopTimings>,
}

#[derive(Debug, Clone)]
struct OpenLoopTimings {
    service: Histogram<u64>,
    lag: Histogram<u64>,
}

impl Recorder {
    pub(super) fn new(is_open: bool) -> Result<Self, CreationError> {
        let open = if is_open {
            Some(OpenLoopTimings {
                service: new_histogram()?,
                lag: new_histogram()?,
            })
        } else {
            None
        };
        Ok(Self {
            requests: 0,
            bytes: 0,
            body_bytes: 0,
            statuses: Statuses::default(),
            errors: Errors::default(),
            schedule: Schedule::default(),
            retried: 0,
            unfinished: 0,
            oldest_unfinished: 0,
            connect: new_histogram()?,
            first_byte: new_histogram()?,
            total: new_histogram()?,
            open,
        })
    }

    /// Clears everything.
    pub(super) fn reset(&mut self) {
        self.requests = 0;
        self.bytes = 0;
        self.body_bytes = 0;
        self.statuses = Statuses::default();
        self.errors = Errors::default();
        self.schedule = Schedule::default();
        self.retried = 0;
        self.unfinished = 0;
        self.oldest_unfinished = 0;
        self.connect.reset();
        self.first_byte.reset();
        self.total.reset();
        if let Some(open) = &mut self.open {
            open.service.reset();
            open.lag.reset();
        }
    }

    /// Records a complete response.
    pub(super) fn record_response(&mut self, status: u16, first_byte: Duration, total: Duration) {
        self.requests += 1;
        let class = match status {
            200..=299 => &mut self.statuses.success,
            300..=399 => &mut self.statuses.redirection,
            400..=499 => &mut self.statuses.client_error,
            500..=599 => &mut self.statuses.server_error,
            _ => &mut self.statuses.other,
        };
        *class += 1;
        self.first_byte
            .saturating_record(to_microseconds(first_byte));
        self.total.saturating_record(to_microseconds(total));
    }

    /// Records the time from a request's actual start.
    pub(super) fn record_service_time(&mut self, took: Duration) {
        if let Some(open) = &mut self.open {
            open.service.saturating_record(to_microseconds(took));
        }
    }

    /// Records a failed request.
    pub(super) fn record_failure(&mut self, failure: ResponseFailure) {
        let cause = match failure {
            ResponseFailure::ConnectFailed => &mut self.errors.connect,
            ResponseFailure::Timeout => &mut self.errors.timeout,
            ResponseFailure::Reset => &mut self.errors.reset,
            ResponseFailure::Closed => &mut self.errors.closed,
            ResponseFailure::Malformed => &mut self.errors.malformed,
            ResponseFailure::ExcessBytes => &mut self.errors.length,
        };
        *cause += 1;
    }

    /// Records an opened connection.
    pub(super) fn connect(&mut self, took: Duration) {
        self.connect.saturating_record(to_microseconds(took));
    }

    /// Records that an arrival was assigned this long after its moment.
    pub(super) fn record_lag(&mut self, late: Duration) {
        if late > LATE_AFTER {
            self.schedule.late += 1;
        }
        if let Some(open) = &mut self.open {
            open.lag.saturating_record(to_microseconds(late));
        }
    }

    /// Records `count` arrivals that were not sent; they would have waited at least this long.
    pub(super) fn record_skipped(&mut self, waited: Duration, count: u64) {
        let waited = to_microseconds(waited);
        self.first_byte.saturating_record_n(waited, count);
        self.total.saturating_record_n(waited, count);
    }

    /// Records a request in progress at the window's end, and its age; with `counts` the age
    /// belongs to the distribution.
    pub(super) fn record_unfinished(&mut self, age: Duration, counts: bool) {
        let age = to_microseconds(age);
        self.unfinished += 1;
        self.oldest_unfinished = self.oldest_unfinished.max(age);
        if counts {
            self.first_byte.saturating_record(age);
            self.total.saturating_record(age);
        }
    }

    /// Adds another loop's measurements.
    pub(super) fn merge(&mut self, other: &Self) {
        self.requests += other.requests;
        self.bytes += other.bytes;
        self.body_bytes += other.body_bytes;
        self.retried += other.retried;
        self.unfinished += other.unfinished;
        self.oldest_unfinished = self.oldest_unfinished.max(other.oldest_unfinished);
        self.statuses.success += other.statuses.success;
        self.statuses.redirection += other.statuses.redirection;
        self.statuses.client_error += other.statuses.client_error;
        self.statuses.server_error += other.statuses.server_error;
        self.statuses.other += other.statuses.other;
        self.errors.connect += other.errors.connect;
        self.errors.timeout += other.errors.timeout;
        self.errors.reset += other.errors.reset;
        self.errors.closed += other.errors.closed;
        self.errors.malformed += other.errors.malformed;
        self.errors.length += other.errors.length;
        self.schedule.due += other.schedule.due;
        self.schedule.late += other.schedule.late;
        self.schedule.skipped += other.schedule.skipped;
        add_histogram(&mut self.connect, &other.connect);
        add_histogram(&mut self.first_byte, &other.first_byte);
        add_histogram(&mut self.total, &other.total);
        if let (Some(ours), Some(theirs)) = (&mut self.open, &other.open) {
            add_histogram(&mut ours.service, &theirs.service);
            add_histogram(&mut ours.lag, &theirs.lag);
        }
    }

    /// The 99th percentile of the lateness of arrivals although a connection was free.
    pub(super) fn lag_p99(&self) -> Option<u64> {
        let open = self.open.as_ref()?;
        Some(open.lag.value_at_quantile(0.99))
    }

    /// The figures of a window of that many seconds; the caller adds the load's description.
    pub(super) fn figures(&self, seconds: f64) -> Figures {
        #[allow(clippy::cast_precision_loss, reason = "53 bits are enough for a rate")]
        let per_second = |count: u64| {
            if seconds > 0.0 {
                count as f64 / seconds
            } else {
                0.0
            }
        };
        Figures {
            seconds,
            requests: self.requests,
            requests_per_second: per_second(self.requests),
            bytes: self.bytes,
            body_bytes: self.body_bytes,
            bytes_per_second: per_second(self.bytes),
            statuses: self.statuses,
            errors: self.errors,
            unfinished: self.unfinished,
            oldest_unfinished_us: self.oldest_unfinished,
            retried: self.retried,
            schedule: self.open.as_ref().map(|_| self.schedule),
            connect: summarize(&self.connect),
            first_byte: summarize(&self.first_byte),
            total: summarize(&self.total),
            service: self.open.as_ref().map(|open| summarize(&open.service)),
            ..Figures::default()
        }
    }
}

/// Creates an empty histogram of the common size.
pub(crate) fn new_histogram() -> Result<Histogram<u64>, CreationError> {
    Histogram::new_with_bounds(1, MAX_MICROSECONDS, 3)
}

fn add_histogram(sum: &mut Histogram<u64>, other: &Histogram<u64>) {
    // The bounds are equal: every value fits.
    let added = sum.add(other);
    debug_assert!(added.is_ok());
}

/// Rounded; avoids the 128-bit division of `as_micros`.
fn to_microseconds(duration: Duration) -> u64 {
    duration.as_secs() * 1_000_000 + u64::from((duration.subsec_nanos() + 500) / 1_000)
}

/// The statistics of a histogram for the report.
pub(crate) fn summarize(histogram: &Histogram<u64>) -> Timings {
    if histogram.is_empty() {
        return Timings::default();
    }
    let at = |quantile| histogram.value_at_quantile(quantile);
    Timings {
        count: histogram.len(),
        min: histogram.min(),
        mean: histogram.mean(),
        stddev: histogram.stdev(),
        p50: at(0.5),
        p75: at(0.75),
        p90: at(0.9),
        p95: at(0.95),
        p99: at(0.99),
        p999: at(0.999),
        p9999: at(0.9999),
        max: histogram.max(),
    }
}

const MAX_MICROSECONDS: u64 = 3_600_000_000;

/// An arrival assigned later than this counts as late.
const LATE_AFTER: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_percentiles_are_those_of_all_loops() {
        let mut all = Recorder::new(true).unwrap();
        for part in 0..2_u64 {
            let mut recorder = Recorder::new(true).unwrap();
            for number in 0..500 {
                let took = Duration::from_micros(2 * number + part + 1);
                recorder.record_response(200, took, took);
            }
            recorder.record_response(503, Duration::from_secs(1), Duration::from_secs(1));
            recorder.record_failure(ResponseFailure::Reset);
            all.merge(&recorder);
        }
        let figures = all.figures(2.0);
        assert_eq!((figures.requests, figures.total.count), (1002, 1002));
        assert_eq!(figures.requests_per_second, 501.0);
        assert_eq!((figures.total.min, figures.total.p50), (1, 501));
        assert_eq!(figures.statuses.server_error, 2);
        assert_eq!(figures.errors.reset, 2);
        all.reset();
        assert_eq!(all.figures(2.0).total, Timings::default());
    }

    #[test]
    fn an_hour_is_the_longest() {
        let mut recorder = Recorder::new(false).unwrap();
        let day = Duration::from_secs(86_400);
        recorder.record_response(200, day, day);
        let max = recorder.figures(1.0).total.max;
        assert!(max.abs_diff(MAX_MICROSECONDS) < MAX_MICROSECONDS / 500);
    }
}
