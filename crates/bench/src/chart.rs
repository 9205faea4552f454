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

use plotters::prelude::{DrawingAreaErrorKind, RGBColor};
use plotters::style::{FontStyle, IntoFont, TextStyle};

use crate::report::Report;
use crate::text::table::Table;

/// A drawing, and the positions of its values.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// A name for files and the page: `throughput`.
    pub name: String,
    /// The title.
    pub title: String,
    /// The drawing.
    pub svg: String,
    /// Width and height of the drawing in pixels.
    pub size: (u32, u32),
    /// Left, top, right and bottom of the plotting area in pixels.
    pub plot_area: [i32; 4],
    /// The values at their positions.
    pub points: Vec<ChartPoint>,
    /// The values as a table, for readers without the drawing.
    pub(crate) table: Table,
}

/// A value on a drawing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChartPoint {
    /// Pixels from the left.
    pub x: i32,
    /// Pixels from the top.
    pub y: i32,
    /// The series of the value.
    pub series: String,
    /// Where it was measured: `100 connections`.
    pub position: String,
    /// The value with its unit.
    pub value: String,
}

/// All charts of a report.
#[must_use]
pub fn charts(report: &Report) -> Vec<Chart> {
    report_charts::charts(report)
}

/// Drawing into memory fails only by a bug.
type DrawError = DrawingAreaErrorKind<std::io::Error>;

const WIDTH: u32 = 900;
const TEXT_COLOR: RGBColor = RGBColor(0x22, 0x2b, 0x36);
const AXIS_COLOR: RGBColor = RGBColor(0x5b, 0x66, 0x73);
const GRID_COLOR: RGBColor = RGBColor(0xe3, 0xe7, 0xec);

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
    // The backend writes the size divided by 1.24.
    let font = ("sans-serif", f64::from(size) * 1.24).into_font();
    font.color(&color)
}

fn title_style() -> TextStyle<'static> {
    let font = ("sans-serif", 16.0 * 1.24).into_font();
    font.style(FontStyle::Bold).color(&TEXT_COLOR)
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

/// Adds a role and a label for screen readers.
fn with_aria_label(svg: &str, title: &str) -> String {
    let title = crate::html::escape_html(title);
    svg.replacen(
        "<svg ",
        &format!("<svg role=\"img\" aria-label=\"{title}\" "),
        1,
    )
}

/// The drawing alone, with lines of text at its lower edge: the warnings that the page shows above
/// its charts.
pub(crate) fn standalone_svg(chart: &Chart, marks: &[String]) -> String {
    let parts = chart.svg.split_once('>').zip(chart.svg.rfind("</svg>"));
    let Some(((opening, _), end)) = parts.filter(|_| !marks.is_empty()) else {
        return chart.svg.clone();
    };
    let (width, height) = chart.size;
    let count = u32::try_from(marks.len()).unwrap_or(0);
    let room = 8 + NOTE_LINE_HEIGHT * count;
    let title = crate::html::escape_html(&chart.title);
    let mut svg = format!(
        "<svg role=\"img\" aria-label=\"{title}\" width=\"{width}\" height=\"{0}\" \
         viewBox=\"0 0 {width} {0}\" xmlns=\"http://www.w3.org/2000/svg\">",
        height + room
    );
    svg += chart.svg.get(opening.len() + 1..end).unwrap_or_default();
    svg += &format!(
        "<rect x=\"0\" y=\"{height}\" width=\"{width}\" height=\"{room}\" fill=\"#FFFFFF\"/>\n"
    );
    let mut y = height;
    for mark in marks {
        y += NOTE_LINE_HEIGHT;
        let line =
            crate::html::escape_html(&truncate_name(&mark.replace('\n', " "), MAX_NOTE_CHARS));
        svg += &format!(
            "<text x=\"14\" y=\"{y}\" font-family=\"sans-serif\" font-size=\"12\" \
             fill=\"#A32A00\">{line}</text>\n"
        );
    }
    svg + "</svg>\n"
}

/// The height of a line of text of 12 pixels, and the number of characters that fit in the width.
const NOTE_LINE_HEIGHT: u32 = 18;
const MAX_NOTE_CHARS: usize = 130;

#[cfg(test)]
mod tests;
