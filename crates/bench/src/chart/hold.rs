//! Chooses the charts of held streams: their cost by number while they are opened, and over time.
//! Pure; `lines` draws.

use super::Chart;
use super::lines::{self, HorizontalAxis, LineChart, LineStyle, Series, VerticalAxis};
use crate::report::{HoldResult, HoldSample};
use crate::spline::CurvePoint;
use crate::text::units::{to_f64, to_mebibytes};

/// The charts in display order.
pub(super) fn charts(hold: &HoldResult) -> Vec<Chart> {
    // Including the first sample with all streams open.
    let opened = hold.samples.iter().take_while(|sample| sample.is_opening);
    let opened = opened.count().saturating_add(1).min(hold.samples.len());
    let opening = downsample(&hold.samples[..opened]);
    let all = downsample(&hold.samples);
    let against = |name: &str, title: &str, units, axis, curves: &[Curve]| {
        // One position on the axis makes no curve.
        let mut opens = opening.iter().map(|sample| sample.open);
        let first = opens.next()?;
        let is_more = opens.any(|open| open != first);
        let at = |sample: &HoldSample| to_f64(sample.open);
        let name = format!("{name}-by-connections");
        let lines = hold_chart(
            &opening,
            (&name, title),
            units,
            axis,
            (HorizontalAxis::Connections, at),
            curves,
        );
        is_more.then_some(lines).flatten()
    };
    let over = |name: &str, title: &str, units, axis, curves: &[Curve]| {
        let at = |sample: &HoldSample| sample.at;
        hold_chart(
            &all,
            (name, title),
            units,
            axis,
            (HorizontalAxis::Seconds, at),
            curves,
        )
    };
    let all = [
        against(
            "memory",
            "Memory against connections",
            ("MiB", "MiB"),
            VerticalAxis::Linear,
            &MEMORY,
        ),
        against(
            "probe",
            "Response time of the probe against connections",
            ("ms", "ms"),
            VerticalAxis::AutoLog,
            &PROBE,
        ),
        against(
            "load",
            "Load average against connections",
            ("load", ""),
            VerticalAxis::Linear,
            &LOAD,
        ),
        over(
            "connections",
            "Connections",
            ("connections", "connections"),
            VerticalAxis::Linear,
            &STREAMS,
        ),
        over(
            "heard",
            "Arrivals at streams",
            ("arrivals/s", "arrivals/s"),
            VerticalAxis::Linear,
            &RECEIPTS,
        ),
        over(
            "memory",
            "Memory",
            ("MiB", "MiB"),
            VerticalAxis::Linear,
            &MEMORY,
        ),
        over(
            "latency",
            "From publishing to receipt",
            ("ms", "ms"),
            VerticalAxis::AutoLog,
            &LATENCY,
        ),
        over(
            "probe",
            "Response time of the probe",
            ("ms", "ms"),
            VerticalAxis::AutoLog,
            &PROBE,
        ),
        over(
            "load",
            "Load average",
            ("load", ""),
            VerticalAxis::Linear,
            &LOAD,
        ),
    ];
    all.into_iter().flatten().collect()
}

/// A name, and the value of a sample; `None` if it has none.
type Curve = (&'static str, fn(&HoldSample) -> Option<f64>);

const MEMORY: [Curve; 3] = [
    ("server", |sample| sample.server_bytes.map(to_mebibytes)),
    ("kernel, both ends", |sample| {
        sample.kernel_bytes.map(to_mebibytes)
    }),
    ("agents of the bench", |sample| {
        Some(to_mebibytes(sample.tool_bytes))
    }),
];

const PROBE: [Curve; 2] = [
    ("mean", |sample| sample.probe_mean.map(|us| us / 1000.0)),
    ("p99", |sample| {
        sample.probe_p99.map(|us| to_f64(us) / 1000.0)
    }),
];

const LATENCY: [Curve; 2] = [
    ("p50", |sample| {
        sample.latency_p50.map(|us| to_f64(us) / 1000.0)
    }),
    ("p99", |sample| {
        sample.latency_p99.map(|us| to_f64(us) / 1000.0)
    }),
];

const LOAD: [Curve; 1] = [("over one minute", |sample| Some(sample.load_average))];

const RECEIPTS: [Curve; 1] = [("arrivals", |sample| Some(sample.receipts_per_second))];

const STREAMS: [Curve; 2] = [
    ("open", |sample| Some(to_f64(sample.open))),
    ("lost", |sample| {
        (sample.lost > 0).then(|| to_f64(sample.lost))
    }),
];

/// Draws a curve for each known quantity; no chart without any.
fn hold_chart(
    samples: &[HoldSample],
    (name, title): (&str, &str),
    (label, unit): (&'static str, &'static str),
    axis: VerticalAxis,
    (across, at): (HorizontalAxis, fn(&HoldSample) -> f64),
    curves: &[Curve],
) -> Option<Chart> {
    let series = |(name, value): &Curve| {
        let place = |sample: &HoldSample| Some((at(sample), value(sample)?));
        let mut line: Vec<CurvePoint> = samples.iter().filter_map(place).collect();
        line.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let look = LineStyle::Straight;
        (!line.is_empty()).then(|| Series {
            name: (*name).to_owned(),
            points: line.clone(),
            line,
            style: look,
        })
    };
    lines::draw_lines(&LineChart {
        name: name.to_owned(),
        title: title.to_owned(),
        label,
        unit,
        vertical: axis,
        horizontal: across,
        series: curves.iter().filter_map(series).collect(),
    })
}

/// Reduces the samples to as many as a drawing can show, evenly spaced and including the last one.
fn downsample(samples: &[HoldSample]) -> Vec<HoldSample> {
    let step = samples.len().div_ceil(MAX_DRAWN_POINTS).max(1);
    samples.iter().rev().step_by(step).rev().copied().collect()
}

/// Maximum points per curve.
const MAX_DRAWN_POINTS: usize = 240;
