//! Draws a line chart: values by connections or over time, one line or B-spline per series, with
//! its raw points.

use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::{
    Cartesian2d, Circle, Color, DrawingArea, IntoDrawingArea, PathElement, RGBColor, SVGBackend,
    ShapeStyle, Text, WHITE,
};

use super::scale::Scale;
use super::{AXIS_COLOR, Chart, ChartPoint, DrawError, GRID_COLOR, TEXT_COLOR, WIDTH};
use crate::spline::{self, CurvePoint};
use crate::text::table::{ColumnKind, Table};
use crate::text::units;

/// The curves to draw.
#[derive(Debug)]
pub(super) struct LineChart {
    pub(super) name: String,
    pub(super) title: String,
    /// The quantity of the vertical axis, with its unit.
    pub(super) label: &'static str,
    /// The unit after a value.
    pub(super) unit: &'static str,
    pub(super) vertical: VerticalAxis,
    pub(super) horizontal: HorizontalAxis,
    pub(super) series: Vec<Series>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum HorizontalAxis {
    /// Connections.
    #[default]
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

type LinePlane = Cartesian2d<Scale, Scale>;
type Backend<'a> = SVGBackend<'a>;

/// Draws the chart; `None` without values.
pub(super) fn draw_lines(lines: &LineChart) -> Option<Chart> {
    let places = || {
        lines
            .series
            .iter()
            .flat_map(|series| series.line.iter().chain(&series.points))
    };
    places().next()?;
    let xs: Vec<f64> = places().map(|place| place.0).collect();
    let ys: Vec<f64> = places().map(|place| place.1).collect();
    let x = match lines.horizontal {
        HorizontalAxis::Connections => Scale::by_steps(&xs),
        HorizontalAxis::Seconds => Scale::zero_based(xs),
    };
    let y = match lines.vertical {
        VerticalAxis::Linear => Scale::zero_based(ys),
        VerticalAxis::Integers => Scale::counts(ys),
        VerticalAxis::AutoLog => Scale::by_range(ys),
    };
    // Space for many curves, and for a legend with more entries than the chart has lines.
    let count = u32::try_from(lines.series.len()).unwrap_or(0).min(200);
    let height = if count > 8 { HEIGHT + 140 } else { HEIGHT };
    let size = (WIDTH, height.max(70 + 18 * count));
    let mut svg = String::new();
    let (area, spots) = paint_chart(&mut svg, lines, &x, &y, size).ok()?;
    Some(Chart {
        name: lines.name.clone(),
        title: lines.title.clone(),
        svg: super::with_aria_label(&svg, &lines.title),
        size,
        plot_area: area,
        points: spots,
        table: value_table(lines),
    })
}

fn paint_chart(
    svg: &mut String,
    lines: &LineChart,
    x: &Scale,
    y: &Scale,
    size: (u32, u32),
) -> Result<([i32; 4], Vec<ChartPoint>), DrawError> {
    let root = SVGBackend::with_string(svg, size).into_drawing_area();
    root.fill(&WHITE)?;
    root.draw(&Text::new(
        lines.title.clone(),
        (14, 12),
        super::title_style(),
    ))?;
    let longest = lines
        .series
        .iter()
        .map(|series| super::text_width(&short_name(&series.name)));
    let legend_width = match lines.series.len() {
        0 | 1 => 16,
        _ => longest.max().unwrap_or(0) + 60,
    };
    let (plot, legend) = root.split_horizontally(size.0 - legend_width);
    let mut chart = ChartBuilder::on(&plot)
        .margin_top(44)
        .margin_right(14)
        .margin_left(8)
        .margin_bottom(8)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d(x.clone(), y.clone())?;
    chart
        .configure_mesh()
        .bold_line_style(GRID_COLOR)
        .light_line_style(WHITE.mix(0.0))
        .axis_style(AXIS_COLOR)
        .label_style(super::text_style(12, AXIS_COLOR))
        .axis_desc_style(super::text_style(13, TEXT_COLOR))
        .x_desc(lines.horizontal.label())
        .y_desc(lines.label)
        .x_label_formatter(&|place| x.label(*place))
        .y_label_formatter(&|place| y.label(*place))
        .draw()?;
    let mut spots = Vec::new();
    for (index, series) in lines.series.iter().enumerate() {
        draw_curve(&mut chart, series, index, (x, y))?;
        draw_points(&mut chart, lines, index, (x, y), &mut spots)?;
    }
    if lines.series.len() > 1 {
        for (index, series) in lines.series.iter().enumerate() {
            draw_legend_entry(&legend, series, index)?;
        }
    }
    let (columns, rows) = chart.plotting_area().get_pixel_range();
    root.present()?;
    Ok(([columns.start, rows.start, columns.end, rows.end], spots))
}

fn draw_curve(
    chart: &mut ChartContext<'_, Backend<'_>, LinePlane>,
    series: &Series,
    index: usize,
    (x, y): (&Scale, &Scale),
) -> Result<(), DrawError> {
    let placed = series
        .line
        .iter()
        .map(|place| (x.position(place.0), y.position(place.1)));
    let placed: Vec<CurvePoint> = placed.collect();
    let is_smooth = match series.style {
        LineStyle::Straight | LineStyle::Raw => false,
        LineStyle::Smooth => placed.len() >= MIN_SMOOTH_POINTS,
        LineStyle::SmoothWithoutPoints => true,
    };
    let line = if is_smooth {
        spline::spline_curve(&placed, 12)
    } else {
        placed
    };
    if line.len() < 2 {
        return Ok(());
    }
    let stroke = line_stroke(series, index);
    match dash_pattern(index) {
        None => chart.draw_series([PathElement::new(line, stroke)])?,
        Some((size, gap)) => {
            chart.draw_series([DashedPathElement::new(line, size, gap, stroke)])?
        }
    };
    Ok(())
}

fn draw_points(
    chart: &mut ChartContext<'_, Backend<'_>, LinePlane>,
    lines: &LineChart,
    index: usize,
    (x, y): (&Scale, &Scale),
    spots: &mut Vec<ChartPoint>,
) -> Result<(), DrawError> {
    let series = &lines.series[index];
    let is_marked = series.style != LineStyle::SmoothWithoutPoints;
    for &(connections, value) in &series.points {
        let place = (x.position(connections), y.position(value));
        if is_marked {
            let (radius, opacity) = point_style(lines);
            let style = series_line_color(series, index).mix(opacity).filled();
            chart.draw_series([Circle::new(place, radius, style)])?;
        }
        let (left, top) = chart.backend_coord(&place);
        spots.push(ChartPoint {
            x: left,
            y: top,
            series: units::sanitize(&series.name),
            position: lines.horizontal.describe_value(connections),
            value: format!("{} {}", units::format_figure(value), lines.unit)
                .trim_end()
                .to_owned(),
        });
    }
    Ok(())
}

/// Radius and opacity of points: many points are small and pale and only show the noise.
fn point_style(lines: &LineChart) -> (u32, f64) {
    let points: usize = lines.series.iter().map(|series| series.points.len()).sum();
    if points > 150 { (2, 0.35) } else { (3, 1.0) }
}

fn series_line_color(series: &Series, index: usize) -> RGBColor {
    match series.style {
        LineStyle::Raw => RGBColor(0x8a, 0x96, 0xa5),
        _ => super::series_color(index),
    }
}

fn line_stroke(series: &Series, index: usize) -> ShapeStyle {
    let width = if series.style == LineStyle::Raw { 1 } else { 2 };
    series_line_color(series, index).stroke_width(width)
}

/// The dash and gap for the second and third use of a colour.
fn dash_pattern(index: usize) -> Option<(i32, i32)> {
    match index / super::COLORS.len() {
        0 => None,
        1 => Some((8, 5)),
        _ => Some((2, 4)),
    }
}

fn draw_legend_entry(
    legend: &DrawingArea<Backend<'_>, Shift>,
    series: &Series,
    index: usize,
) -> Result<(), DrawError> {
    let y = 52 + 18 * i32::try_from(index).unwrap_or(0);
    let line = vec![(4, y), (32, y)];
    let stroke = line_stroke(series, index);
    match dash_pattern(index) {
        None => legend.draw(&PathElement::new(line, stroke))?,
        Some((size, gap)) => {
            legend.draw(&DashedPathElement::new(line, size, gap, stroke))?;
        }
    }
    if series.style != LineStyle::SmoothWithoutPoints {
        legend.draw(&Circle::new(
            (18, y),
            3,
            series_line_color(series, index).filled(),
        ))?;
    }
    legend.draw(&Text::new(
        short_name(&series.name),
        (40, y - 5),
        super::text_style(12, TEXT_COLOR),
    ))
}

fn short_name(name: &str) -> String {
    super::truncate_name(&units::sanitize(name), 26)
}

/// One row per position, one column per curve.
fn value_table(lines: &LineChart) -> Table {
    let mut columns = vec![(lines.horizontal.label(), ColumnKind::Number)];
    let shown = || {
        lines
            .series
            .iter()
            .filter(|series| series.style != LineStyle::SmoothWithoutPoints)
    };
    columns.extend(shown().map(|series| (&*series.name, ColumnKind::Number)));
    let mut table = Table::new(&columns);
    let mut connections: Vec<f64> = shown()
        .flat_map(|series| series.line.iter().map(|place| place.0))
        .collect();
    connections.sort_by(f64::total_cmp);
    connections.dedup();
    for at in connections {
        let mut row = vec![lines.horizontal.format_value(at)];
        row.extend(shown().map(|series| {
            let found = series
                .line
                .iter()
                .find(|place| place.0.total_cmp(&at).is_eq());
            found.map_or_else(|| "-".to_owned(), |place| units::format_figure(place.1))
        }));
        table.rows.push(row);
    }
    table
}
