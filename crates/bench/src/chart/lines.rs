//! Draws a line chart: values by connections or over time, one line or B-spline per series, with
//! its raw points.

use plotters::element::DashedPathElement;
use plotters::prelude::{Circle, Color, PathElement, RGBColor, ShapeStyle, Text};

use super::scale::Scale;
use super::{Axes, Canvas, ChartPoint, ChartSpec, DrawError, Painted, TEXT_COLOR};
use crate::spline::{self, CurvePoint};
use crate::text::table::Table;
use crate::text::units;

/// The curves to draw.
#[derive(Debug)]
pub(super) struct LineChart {
    pub(super) vertical: VerticalAxis,
    pub(super) horizontal: HorizontalAxis,
    pub(super) series: Vec<Series>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HorizontalAxis {
    /// Connections.
    Connections,
    /// Seconds since the start.
    Seconds,
}

impl HorizontalAxis {
    fn label(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Seconds => "seconds",
        }
    }

    /// Describes a position in words.
    fn describe_value(self, at: f64) -> String {
        match self {
            Self::Connections if at.total_cmp(&1.0).is_eq() => "1 connection".to_owned(),
            Self::Connections => format!("{} connections", units::format_tick(at)),
            Self::Seconds => format!("{} s", units::format_figure(at)),
        }
    }

    /// Formats a position for a table.
    fn format_value(self, at: f64) -> String {
        match self {
            Self::Connections => units::format_tick(at),
            Self::Seconds => units::format_figure(at),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum VerticalAxis {
    /// From zero.
    Linear,
    /// From zero, with whole numbers.
    Integers,
    /// From zero, or logarithmic if the values have a wide range.
    AutoLog,
}

#[derive(Debug)]
pub(super) struct Series {
    pub(super) name: String,
    /// Position and value, by position.
    pub(super) line: Vec<CurvePoint>,
    /// The marked points; the same as `line` for a single measurement.
    pub(super) points: Vec<CurvePoint>,
    pub(super) style: LineStyle,
}

impl Series {
    /// Straight lines through the points of a single measurement.
    pub(super) fn straight(name: &str, points: impl IntoIterator<Item = CurvePoint>) -> Self {
        let mut points: Vec<CurvePoint> = points.into_iter().collect();
        points.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        Self {
            name: name.to_owned(),
            line: points.clone(),
            points,
            style: LineStyle::Straight,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineStyle {
    /// Straight lines with points.
    Straight,
    /// A B-spline with points; straight lines with fewer than [`MIN_SMOOTH_POINTS`].
    Smooth,
    /// Thin, pale straight lines with points.
    Raw,
    /// A B-spline without points; another series shows them.
    SmoothWithoutPoints,
}

const HEIGHT: u32 = 420;

/// With few points a curve that passes beside them would mislead.
const MIN_SMOOTH_POINTS: usize = 8;

/// The height of the chart; `None` without values.
pub(super) fn chart_height(lines: &LineChart) -> Option<u32> {
    lines.places().next()?;
    // Space for many curves, and for a legend with more entries than the chart has lines.
    let count = u32::try_from(lines.series.len()).unwrap_or(0).min(200);
    let height = if count > 8 { HEIGHT + 140 } else { HEIGHT };
    Some(height.max(70 + 18 * count))
}

impl LineChart {
    fn places(&self) -> impl Iterator<Item = &CurvePoint> {
        let series = self.series.iter();
        series.flat_map(|series| series.line.iter().chain(&series.points))
    }

    fn scales(&self) -> (Scale, Scale) {
        let (xs, ys): (Vec<f64>, Vec<f64>) = self.places().copied().unzip();
        let x = match self.horizontal {
            HorizontalAxis::Connections => Scale::for_connections(&xs),
            HorizontalAxis::Seconds => Scale::zero_based(xs),
        };
        let y = match self.vertical {
            VerticalAxis::Linear => Scale::zero_based(ys),
            VerticalAxis::Integers => Scale::for_counts(ys),
            VerticalAxis::AutoLog => Scale::for_latencies(ys),
        };
        (x, y)
    }
}

pub(super) fn paint(
    area: &Canvas<'_>,
    spec: &ChartSpec,
    lines: &LineChart,
) -> Result<Painted, DrawError> {
    let names = lines
        .series
        .iter()
        .map(|series| super::text_width(&short_name(&series.name)));
    let legend_width = match lines.series.len() {
        0 | 1 => 16,
        _ => names.max().unwrap_or(0) + 60,
    };
    let (plot, legend) = area.split_horizontally(super::WIDTH - legend_width);
    let (x, y) = lines.scales();
    let x_label = lines.horizontal.label();
    let mut axes = super::draw_axes(&plot, (&x, x_label), (&y, spec.label), 72)?;
    let mut points = Vec::new();
    for (index, series) in lines.series.iter().enumerate() {
        draw_curve(&mut axes, series, index, (&x, &y))?;
        draw_points(&mut axes, lines, index, (&x, &y))?;
        points.extend(series.points.iter().map(|&(at, value)| {
            let (left, top) = axes.backend_coord(&(x.position(at), y.position(value)));
            let value = format!("{} {}", units::format_figure(value), spec.unit);
            ChartPoint {
                x: left,
                y: top,
                series: units::sanitize(&series.name),
                position: lines.horizontal.describe_value(at),
                value: value.trim_end().to_owned(),
            }
        }));
        if lines.series.len() > 1 {
            draw_legend_entry(&legend, series, index)?;
        }
    }
    Ok((super::plot_area(&axes), points))
}

fn draw_curve(
    axes: &mut Axes<'_, '_>,
    series: &Series,
    index: usize,
    (x, y): (&Scale, &Scale),
) -> Result<(), DrawError> {
    let places = series.line.iter();
    let placed = places.map(|place| (x.position(place.0), y.position(place.1)));
    let placed: Vec<CurvePoint> = placed.collect();
    let is_smooth = match series.style {
        LineStyle::Straight | LineStyle::Raw => false,
        LineStyle::Smooth => placed.len() >= MIN_SMOOTH_POINTS,
        LineStyle::SmoothWithoutPoints => true,
    };
    let line = match is_smooth {
        true => spline::spline_curve(&placed, 12),
        false => placed,
    };
    if line.len() < 2 {
        return Ok(());
    }
    let stroke = line_stroke(series, index);
    match dash_pattern(index) {
        None => axes.draw_series([PathElement::new(line, stroke)])?,
        Some((size, gap)) => axes.draw_series([DashedPathElement::new(line, size, gap, stroke)])?,
    };
    Ok(())
}

fn draw_points(
    axes: &mut Axes<'_, '_>,
    lines: &LineChart,
    index: usize,
    (x, y): (&Scale, &Scale),
) -> Result<(), DrawError> {
    let series = &lines.series[index];
    if series.style != LineStyle::SmoothWithoutPoints {
        let (radius, opacity) = point_style(lines);
        let style = line_color(series, index).mix(opacity).filled();
        let places = series.points.iter();
        let places = places.map(|place| (x.position(place.0), y.position(place.1)));
        axes.draw_series(places.map(|place| Circle::new(place, radius, style)))?;
    }
    Ok(())
}

/// Radius and opacity of points: many points are small and pale and only show the noise.
fn point_style(lines: &LineChart) -> (u32, f64) {
    let points: usize = lines.series.iter().map(|series| series.points.len()).sum();
    if points > 150 { (2, 0.35) } else { (3, 1.0) }
}

fn line_color(series: &Series, index: usize) -> RGBColor {
    match series.style {
        LineStyle::Raw => RGBColor(0x8a, 0x96, 0xa5),
        _ => super::series_color(index),
    }
}

fn line_stroke(series: &Series, index: usize) -> ShapeStyle {
    let width = if series.style == LineStyle::Raw { 1 } else { 2 };
    line_color(series, index).stroke_width(width)
}

/// The dash and gap for the second and third use of a colour.
fn dash_pattern(index: usize) -> Option<(i32, i32)> {
    match index / super::COLORS.len() {
        0 => None,
        1 => Some((8, 5)),
        _ => Some((2, 4)),
    }
}

fn draw_legend_entry(legend: &Canvas<'_>, series: &Series, index: usize) -> Result<(), DrawError> {
    let y = 52 + 18 * i32::try_from(index).unwrap_or(0);
    let line = vec![(4, y), (32, y)];
    let stroke = line_stroke(series, index);
    match dash_pattern(index) {
        None => legend.draw(&PathElement::new(line, stroke))?,
        Some((size, gap)) => legend.draw(&DashedPathElement::new(line, size, gap, stroke))?,
    }
    if series.style != LineStyle::SmoothWithoutPoints {
        legend.draw(&Circle::new((18, y), 3, line_color(series, index).filled()))?;
    }
    let name = short_name(&series.name);
    legend.draw(&Text::new(
        name,
        (40, y - 5),
        super::text_style(12, TEXT_COLOR),
    ))
}

fn short_name(name: &str) -> String {
    super::truncate_name(&units::sanitize(name), 26)
}

/// One row per position, one column per curve.
pub(super) fn value_table(lines: &LineChart) -> Table {
    let is_shown = |series: &&Series| series.style != LineStyle::SmoothWithoutPoints;
    let shown = || lines.series.iter().filter(is_shown);
    let places = shown().flat_map(|series| &series.line);
    let mut positions: Vec<f64> = places.map(|place| place.0).collect();
    positions.sort_by(f64::total_cmp);
    positions.dedup();
    let horizontal = lines.horizontal;
    let mut table =
        Table::of(positions).number_column(horizontal.label(), |at| horizontal.format_value(*at));
    for series in shown() {
        table = table.number_column(&series.name, |at| {
            let mut places = series.line.iter();
            let found = places.find(|place| place.0.total_cmp(at).is_eq());
            found.map_or_else(|| "-".to_owned(), |place| units::format_figure(place.1))
        });
    }
    table.build_all_columns()
}
