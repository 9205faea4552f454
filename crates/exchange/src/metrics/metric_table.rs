//! Tables of metrics: each component declares how `/metrics` names the numbers of its snapshot.
//!
//! `status` renders them in the text format of Prometheus.
//!
//! # Invariants
//! - Names and help texts are part of the public interface: dashboards depend on them.
//! - Counters end in `_total`; times are in seconds, sizes in bytes.

use std::borrow::Cow;
use std::time::Duration;

use super::{Histogram, HistogramValues};

/// One metric of the snapshot `T`.
#[derive(Debug)]
pub struct Metric<T> {
    /// The name without the prefix `penstock_`.
    pub name: &'static str,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// The help text.
    pub help: &'static str,
    /// Reads the value from a snapshot.
    pub read: fn(&T) -> MetricValue<'_>,
}

/// The value of a metric in one snapshot.
#[derive(Debug)]
pub enum MetricValue<'a> {
    /// One sample; none for `None`.
    Number(Option<f64>),
    /// A sample of 1 with a label, for a text such as a state.
    Label(&'static str, &'a str),
    /// One sample for each value of a label.
    ByLabel(&'static str, Vec<(Cow<'a, str>, f64)>),
    /// The buckets of a histogram with their sum and count.
    Histogram(Box<HistogramValues>),
}

/// Declares a table of [`Metric`]s, one `KIND NAME = VALUE, "HELP";` each. `VALUE` is an expression
/// of a number, a time, a switch, a histogram or a [`MetricValue`].
#[macro_export]
macro_rules! metric_table {
    ($(#[$meta:meta])* $vis:vis static $table:ident: |$item:ident: $of:ty| {
        $($kind:ident $name:ident = $value:expr, $help:literal;)*
    }) => {
        $(#[$meta])*
        $vis static $table: &[$crate::metrics::Metric<$of>] = &[$($crate::metrics::Metric {
            name: stringify!($name),
            kind: stringify!($kind),
            help: $help,
            read: |$item: &$of| $crate::metrics::MetricValue::from($value),
        }),*];
    };
}

impl MetricValue<'_> {
    /// One sample for each value of the label `name`.
    #[must_use]
    pub fn by_label<'a, K: Into<Cow<'a, str>>>(
        name: &'static str,
        counts: impl IntoIterator<Item = (K, u64)>,
    ) -> MetricValue<'a> {
        let counts = counts.into_iter();
        MetricValue::ByLabel(
            name,
            counts.map(|(key, n)| (key.into(), to_f64(n))).collect(),
        )
    }
}

impl From<f64> for MetricValue<'_> {
    fn from(value: f64) -> Self {
        Self::Number(Some(value))
    }
}

impl From<Option<f64>> for MetricValue<'_> {
    fn from(value: Option<f64>) -> Self {
        Self::Number(value)
    }
}

/// Converts numbers, times and switches to samples, which are floats in this format.
macro_rules! samples {
    ($($from:ty: $value:ident => $sample:expr;)*) => {
        $(impl From<$from> for MetricValue<'_> {
            fn from($value: $from) -> Self {
                Self::from($sample)
            }
        })*
    };
}

samples! {
    u64: value => to_f64(value);
    Option<u64>: value => value.map(to_f64);
    u32: value => f64::from(value);
    usize: value => value as u64;
    bool: value => u32::from(value);
    Duration: value => value.as_secs_f64();
}

impl From<i64> for MetricValue<'_> {
    #[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
    fn from(value: i64) -> Self {
        Self::from(value as f64)
    }
}

impl From<&HistogramValues> for MetricValue<'_> {
    fn from(values: &HistogramValues) -> Self {
        Self::Histogram(Box::new(values.clone()))
    }
}

impl From<&Histogram> for MetricValue<'_> {
    fn from(histogram: &Histogram) -> Self {
        Self::Histogram(Box::new(histogram.values()))
    }
}

/// Returns a number as a sample, which is a float in this format.
#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
pub(super) fn to_f64(value: u64) -> f64 {
    value as f64
}
