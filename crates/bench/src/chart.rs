//! Draws the charts of a report as SVG, for `html` and single files.
//!
//! `chart/report_charts.rs` and, for held streams, `chart/hold.rs` choose the charts.
//! `chart/lines.rs` and `chart/bars.rs` draw them with a library, without knowledge of reports;
//! `chart/scale.rs` chooses the axes. Pure: text comes out. A drawing is a white card with dark
//! text, so that it fits any page; the library escapes all text.

mod bars;
mod hold;
mod lines;
mod report_charts;
mod scale;

use minijinja::HtmlEscape;
use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::Shift;
use plotters::prelude::{
    Cartesian2d, DrawingArea, DrawingAreaErrorKind, IntoDrawingArea, RGBColor, SVGBackend, Text,
    WHITE,
};
use plotters::style::{FontStyle, IntoFont, TextStyle};

use self::scale::Scale;
use crate::report::Report;
use crate::text::table::Table;
use crate::text::units::sanitize;

/// A drawing, and the positions of its values.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Chart {
    /// A name for files and the page: `throughput`.
    pub(crate) name: String,
    /// The title.
    pub(crate) title: String,
    /// The drawing.
    pub(crate) svg: String,
    /// Width and height of the drawing in pixels, without its notes.
    pub(crate) size: (u32, u32),
    /// Left, top, right and bottom of the plotting area in pixels.
    pub(crate) plot_area: [i32; 4],
    /// The values at their positions.
    pub(crate) points: Vec<ChartPoint>,
    /// The values as a table, for readers without the drawing.
    pub(crate) table: Table,
}

/// A value on a drawing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChartPoint {
    /// Pixels from the left.
    pub(crate) x: i32,
    /// Pixels from the top.
    pub(crate) y: i32,
    /// The series of the value.
    pub(crate) series: String,
    /// Where it was measured: `100 connections`.
    pub(crate) position: String,
    /// The value with its unit.
    pub(crate) value: String,
}

/// A chart to draw.
#[derive(Debug)]
struct ChartSpec {
    name: String,
    title: String,
    label: &'static str,
    unit: &'static str,
    content: ChartContent,
}

#[derive(Debug)]
enum ChartContent {
    /// From the top.
    Bars(Vec<bars::Bar>),
    Lines(lines::LineChart),
}

impl ChartSpec {
    fn new(name: &str, title: &str, (label, unit): Units, content: ChartContent) -> Self {
        Self {
            name: name.to_owned(),
            title: title.to_owned(),
            label,
            unit,
            content,
        }
    }
}

/// The quantity of a chart with its unit, and the unit after a value.
type Units = (&'static str, &'static str);

/// All charts of a report that have values, each with lines of text at its lower edge.
pub(crate) fn charts(report: &Report, notes: &[String]) -> Vec<Chart> {
    let specs = report_charts::chart_specs(report).into_iter();
    specs.filter_map(|spec| draw_chart(spec, notes)).collect()
}

fn draw_chart(spec: ChartSpec, notes: &[String]) -> Option<Chart> {
    let (height, table) = match &spec.content {
        ChartContent::Bars(bars) => (bars::chart_height(bars)?, bars::value_table(&spec, bars)),
        ChartContent::Lines(lines) => (lines::chart_height(lines)?, lines::value_table(lines)),
    };
    let mut svg = String::new();
    let (plot_area, points) = paint_chart(&mut svg, &spec, height, notes).ok()?;
    let title = escape_html(&spec.title);
    // For screen readers.
    let opening = format!("<svg role=\"img\" aria-label=\"{title}\" ");
    Some(Chart {
        svg: svg.replacen("<svg ", &opening, 1),
        name: spec.name,
        title: spec.title,
        size: (WIDTH, height),
        plot_area,
        points,
        table,
    })
}

fn paint_chart(
    svg: &mut String,
    spec: &ChartSpec,
    height: u32,
    notes: &[String],
) -> Result<Painted, DrawError> {
    let lines = u32::try_from(notes.len()).unwrap_or(0);
    let room = if lines == 0 {
        0
    } else {
        8 + NOTE_LINE_HEIGHT * lines
    };
    let root = SVGBackend::with_string(svg, (WIDTH, height + room)).into_drawing_area();
    root.fill(&WHITE)?;
    let (area, _) = root.split_vertically(height);
    let font = ("sans-serif", font_size(16)).into_font();
    let title = font.style(FontStyle::Bold).color(&TEXT_COLOR);
    area.draw(&Text::new(sanitize(&spec.title), (14, 12), title))?;
    let painted = match &spec.content {
        ChartContent::Bars(bars) => bars::paint(&area, spec, bars)?,
        ChartContent::Lines(lines) => lines::paint(&area, spec, lines)?,
    };
    let mut y = i32::try_from(height).unwrap_or(0);
    for note in notes {
        let note = truncate_name(&sanitize(note).replace('\n', " "), MAX_NOTE_CHARS);
        root.draw(&Text::new(note, (14, y + 8), text_style(12, NOTE_COLOR)))?;
        y += NOTE_LINE_HEIGHT as i32;
    }
    root.present()?;
    Ok(painted)
}

/// The plotting area in pixels, and the values.
type Painted = ([i32; 4], Vec<ChartPoint>);

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Axes<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Scale, Scale>>;

/// Draws the grid and both axes with their labels.
fn draw_axes<'a, 'b>(
    area: &'a Canvas<'b>,
    (x, x_label): (&Scale, &str),
    (y, y_label): (&Scale, &str),
    left: u32,
) -> Result<Axes<'a, 'b>, DrawError> {
    let mut axes = ChartBuilder::on(area)
        .margin_top(44)
        .margin_right(14)
        .margin_left(8)
        .margin_bottom(8)
        .x_label_area_size(44)
        .y_label_area_size(left)
        .build_cartesian_2d(x.clone(), y.clone())?;
    axes.configure_mesh()
        .bold_line_style(GRID_COLOR)
        .axis_style(AXIS_COLOR)
        .label_style(text_style(12, AXIS_COLOR))
        .axis_desc_style(text_style(13, TEXT_COLOR))
        .x_desc(x_label)
        .y_desc(y_label)
        .x_label_formatter(&|place| x.label(*place))
        .y_label_formatter(&|place| y.label(*place))
        .draw()?;
    Ok(axes)
}

/// Left, top, right and bottom in pixels.
fn plot_area(axes: &Axes<'_, '_>) -> [i32; 4] {
    let (columns, rows) = axes.plotting_area().get_pixel_range();
    [columns.start, rows.start, columns.end, rows.end]
}

/// Text that is safe in SVG.
fn escape_html(text: &str) -> String {
    HtmlEscape(&sanitize(text)).to_string()
}

/// Drawing into memory fails only by a bug.
type DrawError = DrawingAreaErrorKind<std::io::Error>;

const WIDTH: u32 = 900;
const TEXT_COLOR: RGBColor = RGBColor(0x22, 0x2b, 0x36);
const AXIS_COLOR: RGBColor = RGBColor(0x5b, 0x66, 0x73);
const GRID_COLOR: RGBColor = RGBColor(0xe3, 0xe7, 0xec);
const NOTE_COLOR: RGBColor = RGBColor(0xa3, 0x2a, 0x00);

/// Colours that differ in hue and in lightness, so that most readers who confuse hues can still
/// distinguish them. They repeat with another dash.
const COLORS: [RGBColor; 10] = [
    RGBColor(0x00, 0x5f, 0xb0),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x8f, 0x68),
    RGBColor(0xb8, 0x3b, 0x8c),
    RGBColor(0xd9, 0x9a, 0x00),
    RGBColor(0x3f, 0xa9, 0xe0),
    RGBColor(0x5d, 0x3f, 0xa8),
    RGBColor(0x7a, 0x52, 0x30),
    RGBColor(0x86, 0xb0, 0x2c),
    RGBColor(0x55, 0x5b, 0x63),
];

fn series_color(index: usize) -> RGBColor {
    COLORS[index % COLORS.len()]
}

/// Text of a size in pixels.
fn text_style(size: u32, color: RGBColor) -> TextStyle<'static> {
    let font = ("sans-serif", font_size(size)).into_font();
    font.color(&color)
}

/// The backend writes the size divided by 1.24.
fn font_size(pixels: u32) -> f64 {
    f64::from(pixels) * 1.24
}

/// The approximate width of text of 12 pixels: no font metrics are available. Wide enough for most
/// fonts.
fn text_width(text: &str) -> u32 {
    u32::try_from(text.chars().count()).map_or(u32::MAX, |count| count.saturating_mul(7))
}

/// Shortens a name; the table has it whole.
fn truncate_name(name: &str, chars: usize) -> String {
    if name.chars().count() <= chars {
        return name.to_owned();
    }
    let kept: String = name.chars().take(chars.saturating_sub(1)).collect();
    kept + "\u{2026}"
}

/// The height of a line of text of 12 pixels, and the number of characters that fit in the width.
const NOTE_LINE_HEIGHT: u32 = 18;
const MAX_NOTE_CHARS: usize = 130;

#[cfg(test)]
mod tests;
