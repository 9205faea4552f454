//! A chart of curves: values against connections or over time, one line or B-spline a series, with its raw
//! points.

use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::{
    Cartesian2d, Circle, Color, DrawingArea, IntoDrawingArea, PathElement, RGBColor, SVGBackend,
    ShapeStyle, Text, WHITE,
};

use super::scale::Scale;
use super::{Chart, DrawError, FAINT, GRID, INK, Spot, WIDTH};
use crate::spline::{self, Place};
use crate::text::table::{Kind, Table};
use crate::text::units;

/// What is drawn.
#[derive(Debug)]
pub(super) struct Lines {
    pub(super) name: String,
    pub(super) title: String,
    /// The quantity of the vertical axis, with its unit.
    pub(super) label: &'static str,
    /// The unit behind a value.
    pub(super) unit: &'static str,
    pub(super) axis: Axis,
    pub(super) across: Across,
    pub(super) series: Vec<Series>,
}

/// The horizontal axis.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Across {
    /// Connections.
    #[default]
    Connections,
    /// Seconds since the start.
    Seconds,
}

impl Across {
    fn label(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Seconds => "seconds",
        }
    }

    /// Where a value stands, in words.
    fn place(self, at: f64) -> String {
        match self {
            Self::Connections if at.total_cmp(&1.0).is_eq() => "1 connection".to_owned(),
            Self::Connections => format!("{} connections", units::tick(at)),
            Self::Seconds => format!("{} s", units::figure(at)),
        }
    }

    /// As it stands in a table.
    fn cell(self, at: f64) -> String {
        match self {
            Self::Connections => units::tick(at),
            Self::Seconds => units::figure(at),
        }
    }
}

/// The vertical axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Axis {
    /// From zero.
    Plain,
    /// From zero, by whole numbers.
    Counts,
    /// From zero, or logarithmic when the values reach far.
    ByRange,
}

/// One curve.
#[derive(Debug)]
pub(super) struct Series {
    pub(super) name: String,
    /// Place and value, by place.
    pub(super) line: Vec<Place>,
    /// What is marked; the same as `line` when that was measured but once.
    pub(super) points: Vec<Place>,
    pub(super) look: Look,
}

/// How a curve is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// From point to point, with the points.
    Straight,
    /// As a B-spline, or straight while [`SMOOTH_FROM`] is not reached, with the points.
    Smooth,
    /// From point to point, thin and pale, with the points.
    Raw,
    /// As a B-spline alone; what it is made of is another series.
    SmoothAlone,
}

const HEIGHT: u32 = 420;

/// Of fewer points each stands for much: a curve that passes by them at a distance would mislead.
const SMOOTH_FROM: usize = 8;

type Plane = Cartesian2d<Scale, Scale>;
type Backend<'a> = SVGBackend<'a>;

/// Draws it; `None` when there is nothing to draw.
pub(super) fn draw(lines: &Lines) -> Option<Chart> {
    let places = || {
        lines
            .series
            .iter()
            .flat_map(|series| series.line.iter().chain(&series.points))
    };
    places().next()?;
    let xs: Vec<f64> = places().map(|place| place.0).collect();
    let ys: Vec<f64> = places().map(|place| place.1).collect();
    let x = match lines.across {
        Across::Connections => Scale::by_steps(&xs),
        Across::Seconds => Scale::zero_based(xs),
    };
    let y = match lines.axis {
        Axis::Plain => Scale::zero_based(ys),
        Axis::Counts => Scale::counts(ys),
        Axis::ByRange => Scale::by_range(ys),
    };
    // Room for many curves, and for a legend with more entries than lines fit.
    let count = u32::try_from(lines.series.len()).unwrap_or(0).min(200);
    let height = if count > 8 { HEIGHT + 140 } else { HEIGHT };
    let size = (WIDTH, height.max(70 + 18 * count));
    let mut svg = String::new();
    let (area, spots) = paint(&mut svg, lines, &x, &y, size).ok()?;
    Some(Chart {
        name: lines.name.clone(),
        title: lines.title.clone(),
        svg: super::named(&svg, &lines.title),
        size,
        area,
        spots,
        table: table(lines),
    })
}

fn paint(
    svg: &mut String,
    lines: &Lines,
    x: &Scale,
    y: &Scale,
    size: (u32, u32),
) -> Result<([i32; 4], Vec<Spot>), DrawError> {
    let root = SVGBackend::with_string(svg, size).into_drawing_area();
    root.fill(&WHITE)?;
    root.draw(&Text::new(
        lines.title.clone(),
        (14, 12),
        super::title_words(),
    ))?;
    let longest = lines
        .series
        .iter()
        .map(|series| super::words_width(&short(&series.name)));
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
        .bold_line_style(GRID)
        .light_line_style(WHITE.mix(0.0))
        .axis_style(FAINT)
        .label_style(super::words(12, FAINT))
        .axis_desc_style(super::words(13, INK))
        .x_desc(lines.across.label())
        .y_desc(lines.label)
        .x_label_formatter(&|place| x.label(*place))
        .y_label_formatter(&|place| y.label(*place))
        .draw()?;
    let mut spots = Vec::new();
    for (index, series) in lines.series.iter().enumerate() {
        curve(&mut chart, series, index, (x, y))?;
        points(&mut chart, lines, index, (x, y), &mut spots)?;
    }
    if lines.series.len() > 1 {
        for (index, series) in lines.series.iter().enumerate() {
            legend_entry(&legend, series, index)?;
        }
    }
    let (columns, rows) = chart.plotting_area().get_pixel_range();
    root.present()?;
    Ok(([columns.start, rows.start, columns.end, rows.end], spots))
}

fn curve(
    chart: &mut ChartContext<'_, Backend<'_>, Plane>,
    series: &Series,
    index: usize,
    (x, y): (&Scale, &Scale),
) -> Result<(), DrawError> {
    let placed = series
        .line
        .iter()
        .map(|place| (x.place(place.0), y.place(place.1)));
    let placed: Vec<Place> = placed.collect();
    let is_smooth = match series.look {
        Look::Straight | Look::Raw => false,
        Look::Smooth => placed.len() >= SMOOTH_FROM,
        Look::SmoothAlone => true,
    };
    let line = if is_smooth {
        spline::curve(&placed, 12)
    } else {
        placed
    };
    if line.len() < 2 {
        return Ok(());
    }
    let stroke = stroke(series, index);
    match dash(index) {
        None => chart.draw_series([PathElement::new(line, stroke)])?,
        Some((size, gap)) => {
            chart.draw_series([DashedPathElement::new(line, size, gap, stroke)])?
        }
    };
    Ok(())
}

fn points(
    chart: &mut ChartContext<'_, Backend<'_>, Plane>,
    lines: &Lines,
    index: usize,
    (x, y): (&Scale, &Scale),
    spots: &mut Vec<Spot>,
) -> Result<(), DrawError> {
    let series = &lines.series[index];
    let is_marked = series.look != Look::SmoothAlone;
    for &(connections, value) in &series.points {
        let place = (x.place(connections), y.place(value));
        if is_marked {
            let (radius, opacity) = mark(lines);
            let style = series_color(series, index).mix(opacity).filled();
            chart.draw_series([Circle::new(place, radius, style)])?;
        }
        let (left, top) = chart.backend_coord(&place);
        spots.push(Spot {
            x: left,
            y: top,
            series: units::plain(&series.name),
            place: lines.across.place(connections),
            value: format!("{} {}", units::figure(value), lines.unit)
                .trim_end()
                .to_owned(),
        });
    }
    Ok(())
}

/// Radius and opacity of points: many are drawn small and pale, there only to show the noise.
fn mark(lines: &Lines) -> (u32, f64) {
    let points: usize = lines.series.iter().map(|series| series.points.len()).sum();
    if points > 150 { (2, 0.35) } else { (3, 1.0) }
}

fn series_color(series: &Series, index: usize) -> RGBColor {
    match series.look {
        Look::Raw => RGBColor(0x8a, 0x96, 0xa5),
        _ => super::color(index),
    }
}

fn stroke(series: &Series, index: usize) -> ShapeStyle {
    let width = if series.look == Look::Raw { 1 } else { 2 };
    series_color(series, index).stroke_width(width)
}

/// The dash and its gap for the second and third use of a colour.
fn dash(index: usize) -> Option<(i32, i32)> {
    match index / super::COLORS.len() {
        0 => None,
        1 => Some((8, 5)),
        _ => Some((2, 4)),
    }
}

fn legend_entry(
    legend: &DrawingArea<Backend<'_>, Shift>,
    series: &Series,
    index: usize,
) -> Result<(), DrawError> {
    let y = 52 + 18 * i32::try_from(index).unwrap_or(0);
    let line = vec![(4, y), (32, y)];
    let stroke = stroke(series, index);
    match dash(index) {
        None => legend.draw(&PathElement::new(line, stroke))?,
        Some((size, gap)) => {
            legend.draw(&DashedPathElement::new(line, size, gap, stroke))?;
        }
    }
    if series.look != Look::SmoothAlone {
        legend.draw(&Circle::new(
            (18, y),
            3,
            series_color(series, index).filled(),
        ))?;
    }
    legend.draw(&Text::new(
        short(&series.name),
        (40, y - 5),
        super::words(12, INK),
    ))
}

fn short(name: &str) -> String {
    super::shortened(&units::plain(name), 26)
}

/// A row for each place, a column for each line.
fn table(lines: &Lines) -> Table {
    let mut columns = vec![(lines.across.label(), Kind::Number)];
    let shown = || {
        lines
            .series
            .iter()
            .filter(|series| series.look != Look::SmoothAlone)
    };
    columns.extend(shown().map(|series| (&*series.name, Kind::Number)));
    let mut table = Table::new(&columns);
    let mut connections: Vec<f64> = shown()
        .flat_map(|series| series.line.iter().map(|place| place.0))
        .collect();
    connections.sort_by(f64::total_cmp);
    connections.dedup();
    for at in connections {
        let mut row = vec![lines.across.cell(at)];
        row.extend(shown().map(|series| {
            let found = series
                .line
                .iter()
                .find(|place| place.0.total_cmp(&at).is_eq());
            found.map_or_else(|| "-".to_owned(), |place| units::figure(place.1))
        }));
        table.rows.push(row);
    }
    table
}
