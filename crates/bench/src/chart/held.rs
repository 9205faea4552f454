//! Which charts held streams have: what they cost against their number while they are opened, and how it
//! went over time. Pure; `lines` draws.

use super::Chart;
use super::lines::{self, Across, Axis, Lines, Look, Series};
use crate::report::{Hold, HoldSample};
use crate::spline::Place;
use crate::text::units::{mebibytes, number};

/// The charts in the order in which they are shown.
pub(super) fn charts(hold: &Hold) -> Vec<Chart> {
    // With the first one of those at which all were open.
    let opened = hold.samples.iter().take_while(|sample| sample.is_opening);
    let opened = opened.count().saturating_add(1).min(hold.samples.len());
    let opening = thinned(&hold.samples[..opened]);
    let all = thinned(&hold.samples);
    let against = |name: &str, title: &str, units, axis, curves: &[Curve]| {
        // With one place on the axis there is no curve.
        let mut opens = opening.iter().map(|sample| sample.open);
        let first = opens.next()?;
        let is_more = opens.any(|open| open != first);
        let at = |sample: &HoldSample| number(sample.open);
        let name = format!("{name}-by-connections");
        let lines = of(
            &opening,
            (&name, title),
            units,
            axis,
            (Across::Connections, at),
            curves,
        );
        is_more.then_some(lines).flatten()
    };
    let over = |name: &str, title: &str, units, axis, curves: &[Curve]| {
        let at = |sample: &HoldSample| sample.at;
        of(
            &all,
            (name, title),
            units,
            axis,
            (Across::Seconds, at),
            curves,
        )
    };
    let all = [
        against(
            "memory",
            "Memory against connections",
            ("MiB", "MiB"),
            Axis::Plain,
            &MEMORY,
        ),
        against(
            "probe",
            "Response time of the probe against connections",
            ("ms", "ms"),
            Axis::ByRange,
            &PROBE,
        ),
        against(
            "load",
            "Load average against connections",
            ("load", ""),
            Axis::Plain,
            &LOAD,
        ),
        over(
            "connections",
            "Connections",
            ("connections", "connections"),
            Axis::Plain,
            &STREAMS,
        ),
        over(
            "heard",
            "Arrivals at streams",
            ("arrivals/s", "arrivals/s"),
            Axis::Plain,
            &HEARD,
        ),
        over("memory", "Memory", ("MiB", "MiB"), Axis::Plain, &MEMORY),
        over(
            "latency",
            "From publishing to receipt",
            ("ms", "ms"),
            Axis::ByRange,
            &LATENCY,
        ),
        over(
            "probe",
            "Response time of the probe",
            ("ms", "ms"),
            Axis::ByRange,
            &PROBE,
        ),
        over("load", "Load average", ("load", ""), Axis::Plain, &LOAD),
    ];
    all.into_iter().flatten().collect()
}

/// A name, and the value of a sample; `None` where it has none.
type Curve = (&'static str, fn(&HoldSample) -> Option<f64>);

const MEMORY: [Curve; 3] = [
    ("server", |sample| sample.server_bytes.map(mebibytes)),
    ("kernel, both ends", |sample| {
        sample.kernel_bytes.map(mebibytes)
    }),
    ("agents of the bench", |sample| {
        Some(mebibytes(sample.tool_bytes))
    }),
];

const PROBE: [Curve; 2] = [
    ("mean", |sample| sample.probe_mean.map(|us| us / 1000.0)),
    ("p99", |sample| {
        sample.probe_p99.map(|us| number(us) / 1000.0)
    }),
];

const LATENCY: [Curve; 2] = [
    ("p50", |sample| {
        sample.latency_p50.map(|us| number(us) / 1000.0)
    }),
    ("p99", |sample| {
        sample.latency_p99.map(|us| number(us) / 1000.0)
    }),
];

const LOAD: [Curve; 1] = [("over one minute", |sample| Some(sample.load))];

const HEARD: [Curve; 1] = [("arrivals", |sample| Some(sample.heard_per_second))];

const STREAMS: [Curve; 2] = [
    ("open", |sample| Some(number(sample.open))),
    ("lost", |sample| {
        (sample.lost > 0).then(|| number(sample.lost))
    }),
];

/// A curve for each of what is known; no chart when nothing is.
fn of(
    samples: &[HoldSample],
    (name, title): (&str, &str),
    (label, unit): (&'static str, &'static str),
    axis: Axis,
    (across, at): (Across, fn(&HoldSample) -> f64),
    curves: &[Curve],
) -> Option<Chart> {
    let series = |(name, value): &Curve| {
        let place = |sample: &HoldSample| Some((at(sample), value(sample)?));
        let mut line: Vec<Place> = samples.iter().filter_map(place).collect();
        line.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let look = Look::Straight;
        (!line.is_empty()).then(|| Series {
            name: (*name).to_owned(),
            points: line.clone(),
            line,
            look,
        })
    };
    lines::draw(&Lines {
        name: name.to_owned(),
        title: title.to_owned(),
        label,
        unit,
        axis,
        across,
        series: curves.iter().filter_map(series).collect(),
    })
}

/// As many samples as can be told apart on a drawing, evenly taken; the last one is among them.
fn thinned(samples: &[HoldSample]) -> Vec<HoldSample> {
    let step = samples.len().div_ceil(DRAWN_MAX).max(1);
    samples.iter().rev().step_by(step).rev().copied().collect()
}

/// Points of a curve.
const DRAWN_MAX: usize = 240;
