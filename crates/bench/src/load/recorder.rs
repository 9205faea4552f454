//! The measurements of one load on one event loop, and all loops' together as [`LoadFigures`].
//!
//! Histograms have a fixed size (1 us to 1 h, three digits) and are made before the load begins:
//! nothing grows with the number of requests, and recording does not allocate.

use std::time::Duration;

use hdrhistogram::{CreationError, Histogram};

use super::response_reader::ResponseFailure;
use super::tls_recorder::TlsRecorder;
use crate::report::{ArrivalCounts, DurationSummary, LoadFigures};

/// Counters and distributions of one load on one loop.
#[derive(Debug, Clone)]
pub(super) struct Recorder {
    /// Everything that is counted; the distributions are below.
    pub(super) counts: LoadFigures,
    pub(super) schedule: ArrivalCounts,
    connect_times: Histogram<u64>,
    first_byte: Histogram<u64>,
    total: Histogram<u64>,
    // Of an open loop only.
    service: Histogram<u64>,
    lag: Histogram<u64>,
    is_open: bool,
    /// Only with a server that has TLS.
    pub(super) tls: Option<TlsRecorder>,
}

impl Recorder {
    pub(super) fn new(is_open: bool) -> Result<Self, CreationError> {
        Ok(Self {
            counts: LoadFigures::default(),
            schedule: ArrivalCounts::default(),
            connect_times: new_histogram()?,
            first_byte: new_histogram()?,
            total: new_histogram()?,
            service: new_histogram()?,
            lag: new_histogram()?,
            is_open,
            tls: None,
        })
    }

    /// Adds the record of TLS sessions.
    pub(super) fn with_tls(self) -> Result<Self, CreationError> {
        let tls = Some(TlsRecorder::new()?);
        Ok(Self { tls, ..self })
    }

    /// Clears everything.
    pub(super) fn reset(&mut self) {
        self.counts = LoadFigures::default();
        self.schedule = ArrivalCounts::default();
        self.connect_times.reset();
        self.first_byte.reset();
        self.total.reset();
        self.service.reset();
        self.lag.reset();
        self.tls.iter_mut().for_each(TlsRecorder::reset);
    }

    /// Records a complete response.
    pub(super) fn record_response(&mut self, status: u16, first_byte: Duration, total: Duration) {
        self.counts.requests += 1;
        let statuses = &mut self.counts.statuses;
        let class = match status {
            200..=299 => &mut statuses.success,
            300..=399 => &mut statuses.redirection,
            400..=499 => &mut statuses.client_error,
            500..=599 => &mut statuses.server_error,
            _ => &mut statuses.other,
        };
        *class += 1;
        self.first_byte
            .saturating_record(to_microseconds(first_byte));
        self.total.saturating_record(to_microseconds(total));
    }

    /// Records the time from a request's actual start.
    pub(super) fn record_service_time(&mut self, took: Duration) {
        self.service.saturating_record(to_microseconds(took));
    }

    /// Records a failed request.
    pub(super) fn record_failure(&mut self, failure: ResponseFailure) {
        let errors = &mut self.counts.errors;
        let cause = match failure {
            ResponseFailure::ConnectFailed => &mut errors.connect,
            ResponseFailure::Tls => &mut errors.tls,
            ResponseFailure::Timeout => &mut errors.timeout,
            ResponseFailure::Reset => &mut errors.reset,
            ResponseFailure::Closed => &mut errors.closed,
            ResponseFailure::Malformed => &mut errors.malformed,
            ResponseFailure::ExcessBytes => &mut errors.length,
        };
        *cause += 1;
    }

    /// Records an opened connection.
    pub(super) fn record_connection(&mut self, took: Duration) {
        self.connect_times.saturating_record(to_microseconds(took));
    }

    /// Records why there is no TLS session, or not any more.
    pub(super) fn record_tls_failure(&mut self, why: impl FnOnce() -> String) {
        if let Some(tls) = &mut self.tls {
            tls.record_failure(why);
        }
    }

    /// Records that an arrival was assigned this long after its moment.
    pub(super) fn record_lag(&mut self, late: Duration) {
        if late > LATE_AFTER {
            self.schedule.late += 1;
        }
        self.lag.saturating_record(to_microseconds(late));
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
        let known = &mut self.counts;
        known.unfinished += 1;
        known.oldest_unfinished_us = known.oldest_unfinished_us.max(age);
        if counts {
            self.first_byte.saturating_record(age);
            self.total.saturating_record(age);
        }
    }

    /// Adds another loop's measurements.
    pub(super) fn merge(&mut self, other: &Self) {
        let (sum, more) = (&mut self.counts, &other.counts);
        sum.requests += more.requests;
        sum.bytes += more.bytes;
        sum.body_bytes += more.body_bytes;
        sum.retried += more.retried;
        sum.unfinished += more.unfinished;
        sum.oldest_unfinished_us = sum.oldest_unfinished_us.max(more.oldest_unfinished_us);
        sum.statuses.success += more.statuses.success;
        sum.statuses.redirection += more.statuses.redirection;
        sum.statuses.client_error += more.statuses.client_error;
        sum.statuses.server_error += more.statuses.server_error;
        sum.statuses.other += more.statuses.other;
        sum.errors.connect += more.errors.connect;
        sum.errors.tls += more.errors.tls;
        sum.errors.timeout += more.errors.timeout;
        sum.errors.reset += more.errors.reset;
        sum.errors.closed += more.errors.closed;
        sum.errors.malformed += more.errors.malformed;
        sum.errors.length += more.errors.length;
        self.schedule.due += other.schedule.due;
        self.schedule.late += other.schedule.late;
        self.schedule.skipped += other.schedule.skipped;
        add_histogram(&mut self.connect_times, &other.connect_times);
        add_histogram(&mut self.first_byte, &other.first_byte);
        add_histogram(&mut self.total, &other.total);
        add_histogram(&mut self.service, &other.service);
        add_histogram(&mut self.lag, &other.lag);
        if let (Some(tls), Some(other)) = (&mut self.tls, &other.tls) {
            tls.merge(other);
        }
    }

    /// The 99th percentile of the lateness of arrivals although a connection was free.
    pub(super) fn lag_p99(&self) -> Option<u64> {
        self.is_open.then(|| self.lag.value_at_quantile(0.99))
    }

    /// The figures of a window of that many seconds; the caller adds the load's description.
    pub(super) fn figures(&self, seconds: f64) -> LoadFigures {
        #[allow(clippy::cast_precision_loss, reason = "53 bits are enough for a rate")]
        let per_second = |count: u64| match seconds > 0.0 {
            true => count as f64 / seconds,
            false => 0.0,
        };
        LoadFigures {
            seconds,
            requests_per_second: per_second(self.counts.requests),
            bytes_per_second: per_second(self.counts.bytes),
            schedule: self.is_open.then_some(self.schedule),
            connect: summarize_histogram(&self.connect_times),
            first_byte: summarize_histogram(&self.first_byte),
            total: summarize_histogram(&self.total),
            service: self.is_open.then(|| summarize_histogram(&self.service)),
            tls: self.tls.as_ref().map(TlsRecorder::figures),
            ..self.counts.clone()
        }
    }
}

/// Creates an empty histogram of the common size.
pub(crate) fn new_histogram() -> Result<Histogram<u64>, CreationError> {
    Histogram::new_with_bounds(1, MAX_MICROSECONDS, 3)
}

pub(super) fn add_histogram(sum: &mut Histogram<u64>, other: &Histogram<u64>) {
    // The bounds are equal: every value fits.
    let added = sum.add(other);
    debug_assert!(added.is_ok());
}

/// Rounded; avoids the 128-bit division of `as_micros`.
pub(super) fn to_microseconds(duration: Duration) -> u64 {
    duration.as_secs() * 1_000_000 + u64::from((duration.subsec_nanos() + 500) / 1_000)
}

/// The statistics of a histogram for the report.
pub(crate) fn summarize_histogram(histogram: &Histogram<u64>) -> DurationSummary {
    if histogram.is_empty() {
        return DurationSummary::default();
    }
    let at = |quantile| histogram.value_at_quantile(quantile);
    DurationSummary {
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
        assert_eq!(all.figures(2.0).total, DurationSummary::default());
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
