//! Chooses the charts of held streams: their cost by number while they are opened, and over time.
//! Pure; `lines` draws.

use super::lines::{HorizontalAxis, LineChart, Series, VerticalAxis};
use super::{ChartContent, ChartSpec, Units};
use crate::report::{HoldResult, HoldSample};
use crate::text::units::{to_f64, to_mebibytes};

/// The charts in display order; one without values is not drawn.
pub(super) fn chart_specs(hold: &HoldResult) -> Vec<ChartSpec> {
    // Including the first sample with all streams open.
    let opened = hold.samples.iter().take_while(|sample| sample.is_opening);
    let opened = opened.count().saturating_add(1).min(hold.samples.len());
    let mut opening = downsample(&hold.samples[..opened]);
    // One position on the axis makes no curve.
    if opening.windows(2).all(|pair| pair[0].open == pair[1].open) {
        opening.clear();
    }
    let all = downsample(&hold.samples);
    let by_connections = |name, title, quantity| {
        let at = |sample: &HoldSample| to_f64(sample.open);
        hold_chart(
            &opening,
            name,
            title,
            quantity,
            (HorizontalAxis::Connections, at),
        )
    };
    let over_time = |name, title, quantity| {
        let at = |sample: &HoldSample| sample.at;
        hold_chart(&all, name, title, quantity, (HorizontalAxis::Seconds, at))
    };
    vec![
        by_connections(
            "memory-by-connections",
            "Memory against connections",
            &MEMORY,
        ),
        by_connections(
            "probe-by-connections",
            "Response time of the probe against connections",
            &PROBE,
        ),
        by_connections(
            "load-by-connections",
            "Load average against connections",
            &LOAD,
        ),
        over_time("connections", "Connections", &STREAMS),
        over_time("heard", "Arrivals at streams", &RECEIPTS),
        over_time("memory", "Memory", &MEMORY),
        over_time("latency", "From publishing to receipt", &LATENCY),
        over_time("probe", "Response time of the probe", &PROBE),
        over_time("load", "Load average", &LOAD),
    ]
}

/// What a chart shows.
struct Quantity {
    units: Units,
    axis: VerticalAxis,
    /// Names, and the value of a sample; `None` if it has none.
    curves: &'static [Curve],
}

type Curve = (&'static str, fn(&HoldSample) -> Option<f64>);

const MEMORY: Quantity = Quantity {
    units: ("MiB", "MiB"),
    axis: VerticalAxis::Linear,
    curves: &[
        ("server", |sample| sample.server_bytes.map(to_mebibytes)),
        ("kernel, both ends", |sample| {
            sample.kernel_bytes.map(to_mebibytes)
        }),
        ("agents of the bench", |sample| {
            Some(to_mebibytes(sample.tool_bytes))
        }),
    ],
};

const PROBE: Quantity = Quantity {
    units: ("ms", "ms"),
    axis: VerticalAxis::AutoLog,
    curves: &[
        ("mean", |sample| sample.probe_mean.map(|us| us / 1000.0)),
        ("p99", |sample| sample.probe_p99.map(to_ms)),
    ],
};

const LATENCY: Quantity = Quantity {
    units: ("ms", "ms"),
    axis: VerticalAxis::AutoLog,
    curves: &[
        ("p50", |sample| sample.latency_p50.map(to_ms)),
        ("p99", |sample| sample.latency_p99.map(to_ms)),
    ],
};

const LOAD: Quantity = Quantity {
    units: ("load", ""),
    axis: VerticalAxis::Linear,
    curves: &[("over one minute", |sample| Some(sample.load_average))],
};

const RECEIPTS: Quantity = Quantity {
    units: ("arrivals/s", "arrivals/s"),
    axis: VerticalAxis::Linear,
    curves: &[("arrivals", |sample| Some(sample.receipts_per_second))],
};

const STREAMS: Quantity = Quantity {
    units: ("connections", "connections"),
    axis: VerticalAxis::Linear,
    curves: &[
        ("open", |sample| Some(to_f64(sample.open))),
        ("lost", |sample| {
            (sample.lost > 0).then(|| to_f64(sample.lost))
        }),
    ],
};

fn to_ms(us: u64) -> f64 {
    to_f64(us) / 1000.0
}

/// A curve for each known part of a quantity.
fn hold_chart(
    samples: &[HoldSample],
    name: &str,
    title: &str,
    quantity: &Quantity,
    (horizontal, at): (HorizontalAxis, fn(&HoldSample) -> f64),
) -> ChartSpec {
    let series = |(name, value): &Curve| {
        let place = |sample: &HoldSample| Some((at(sample), value(sample)?));
        let series = Series::straight(name, samples.iter().filter_map(place));
        (!series.line.is_empty()).then_some(series)
    };
    let lines = LineChart {
        vertical: quantity.axis,
        horizontal,
        series: quantity.curves.iter().filter_map(series).collect(),
    };
    ChartSpec::new(name, title, quantity.units, ChartContent::Lines(lines))
}

/// Reduces the samples to as many as a drawing can show, evenly spaced and including the last one.
fn downsample(samples: &[HoldSample]) -> Vec<HoldSample> {
    let step = samples.len().div_ceil(MAX_DRAWN_POINTS).max(1);
    samples.iter().rev().step_by(step).rev().copied().collect()
}

/// Maximum points per curve.
const MAX_DRAWN_POINTS: usize = 240;
