//! Draws a bar chart: one value per deployment, with a whisker from the lowest to the highest
//! round.

use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::{
    Cartesian2d, Color, IntoDrawingArea, PathElement, Rectangle, SVGBackend, Text, WHITE,
};
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::scale::Scale;
use super::{AXIS_COLOR, Chart, ChartPoint, DrawError, GRID_COLOR, TEXT_COLOR, WIDTH};
use crate::report::RoundSpread;
use crate::text::table::{ColumnKind, Table};
use crate::text::units;

#[derive(Debug)]
pub(super) struct BarChart {
    pub(super) name: String,
    pub(super) title: String,
    /// The quantity, with its unit.
    pub(super) label: &'static str,
    /// The unit after a value.
    pub(super) unit: &'static str,
    /// From the top.
    pub(super) bars: Vec<Bar>,
}

#[derive(Debug)]
pub(super) struct Bar {
    pub(super) name: String,
    pub(super) value: RoundSpread,
    /// The index of the colour: a deployment has the same one in all charts.
    pub(super) color: usize,
}

/// The height of a bar with its gap; title and axis take the rest.
const BAR_HEIGHT: u32 = 28;
const FRAME_HEIGHT: u32 = 104;

type BarPlane = Cartesian2d<Scale, RangedCoordf64>;

/// Draws the chart; `None` without bars.
pub(super) fn draw_bars(bars: &BarChart) -> Option<Chart> {
    if bars.bars.is_empty() {
        return None;
    }
    // The value is written after its bar: the axis is extended by that.
    let ends = bars
        .bars
        .iter()
        .map(|bar| bar.value.median.max(bar.value.max) * 1.14);
    let x = Scale::zero_based(ends);
    let size = (
        WIDTH,
        FRAME_HEIGHT + BAR_HEIGHT * u32::try_from(bars.bars.len()).ok()?.max(2),
    );
    let mut svg = String::new();
    let (area, spots) = paint_chart(&mut svg, bars, &x, size).ok()?;
    Some(Chart {
        name: bars.name.clone(),
        title: bars.title.clone(),
        svg: super::with_aria_label(&svg, &bars.title),
        size,
        plot_area: area,
        points: spots,
        table: value_table(bars),
    })
}

fn paint_chart(
    svg: &mut String,
    bars: &BarChart,
    x: &Scale,
    size: (u32, u32),
) -> Result<([i32; 4], Vec<ChartPoint>), DrawError> {
    let root = SVGBackend::with_string(svg, size).into_drawing_area();
    root.fill(&WHITE)?;
    root.draw(&Text::new(
        bars.title.clone(),
        (14, 12),
        super::title_style(),
    ))?;
    let names = bars
        .bars
        .iter()
        .map(|bar| super::text_width(&short_name(&bar.name)));
    let count = bars.bars.len() as f64;
    let mut chart = ChartBuilder::on(&root)
        .margin_top(44)
        .margin_right(20)
        .margin_left(10)
        .margin_bottom(8)
        .x_label_area_size(44)
        .y_label_area_size(names.max().unwrap_or(0) + 16)
        // The first bar is at the top.
        .build_cartesian_2d(x.clone(), count..0.0)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .y_labels(0)
        .bold_line_style(GRID_COLOR)
        .light_line_style(WHITE.mix(0.0))
        .axis_style(AXIS_COLOR)
        .label_style(super::text_style(12, AXIS_COLOR))
        .axis_desc_style(super::text_style(13, TEXT_COLOR))
        .x_desc(bars.label)
        .x_label_formatter(&|place| x.label(*place))
        .draw()?;
    let (columns, rows) = chart.plotting_area().get_pixel_range();
    let mut spots = Vec::new();
    for (index, bar) in bars.bars.iter().enumerate() {
        let (left, top) = paint_bar(&mut chart, bar, index as f64, x)?;
        let right = aligned_text(HPos::Right);
        root.draw(&Text::new(
            short_name(&bar.name),
            (columns.start - 8, top),
            right,
        ))?;
        let end = chart
            .backend_coord(&(x.position(bar.value.median.max(bar.value.max)), 0.0))
            .0;
        let value = units::format_figure(bar.value.median);
        root.draw(&Text::new(value, (end + 8, top), aligned_text(HPos::Left)))?;
        spots.push(ChartPoint {
            x: left,
            y: top,
            series: units::sanitize(&bar.name),
            position: range_text(&bar.value),
            value: format!("{} {}", units::format_figure(bar.value.median), bars.unit),
        });
    }
    root.present()?;
    Ok(([columns.start, rows.start, columns.end, rows.end], spots))
}

/// Draws a bar with its whisker; returns the position of its end.
fn paint_bar(
    chart: &mut ChartContext<'_, SVGBackend<'_>, BarPlane>,
    bar: &Bar,
    row: f64,
    x: &Scale,
) -> Result<(i32, i32), DrawError> {
    let end = x.position(bar.value.median);
    let fill = super::series_color(bar.color).filled();
    chart.draw_series([Rectangle::new(
        [(x.low, row + 0.18), (end, row + 0.82)],
        fill,
    )])?;
    let (least, greatest) = (x.position(bar.value.min), x.position(bar.value.max));
    if greatest > least {
        let ink = TEXT_COLOR.stroke_width(1);
        let upright = |at: f64| PathElement::new(vec![(at, row + 0.36), (at, row + 0.64)], ink);
        let across = PathElement::new(vec![(least, row + 0.5), (greatest, row + 0.5)], ink);
        chart.draw_series([across, upright(least), upright(greatest)])?;
    }
    Ok(chart.backend_coord(&(end, row + 0.5)))
}

fn aligned_text(side: HPos) -> plotters::style::TextStyle<'static> {
    super::text_style(12, TEXT_COLOR).pos(Pos::new(side, VPos::Center))
}

fn short_name(name: &str) -> String {
    super::truncate_name(&units::sanitize(name), 36)
}

fn range_text(value: &RoundSpread) -> String {
    match value.max > value.min {
        true => format!(
            "{} to {}",
            units::format_figure(value.min),
            units::format_figure(value.max)
        ),
        false => String::new(),
    }
}

fn value_table(bars: &BarChart) -> Table {
    let mut table = Table::new(&[
        ("", ColumnKind::Text),
        (bars.label, ColumnKind::Number),
        ("min", ColumnKind::Number),
        ("max", ColumnKind::Number),
    ]);
    for bar in &bars.bars {
        let mut row = vec![units::sanitize(&bar.name)];
        row.extend([bar.value.median, bar.value.min, bar.value.max].map(units::format_figure));
        table.rows.push(row);
    }
    table
}
