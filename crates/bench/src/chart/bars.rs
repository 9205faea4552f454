//! Draws a bar chart: one value per deployment, with a whisker from the lowest to the highest
//! round.

use plotters::prelude::{Color, PathElement, Rectangle, Text};
use plotters::style::TextStyle;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::scale::Scale;
use super::{Axes, Canvas, ChartPoint, ChartSpec, DrawError, Painted, TEXT_COLOR};
use crate::report::RoundSpread;
use crate::text::table::Table;
use crate::text::units::{format_figure, sanitize};

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

/// The height of the chart; `None` without bars.
pub(super) fn chart_height(bars: &[Bar]) -> Option<u32> {
    let count = u32::try_from(bars.len()).ok()?;
    (count > 0).then(|| FRAME_HEIGHT + BAR_HEIGHT * count.max(2))
}

pub(super) fn paint(
    area: &Canvas<'_>,
    spec: &ChartSpec,
    bars: &[Bar],
) -> Result<Painted, DrawError> {
    // The value is written after its bar: the axis is extended by that.
    let x = Scale::zero_based(bars.iter().map(|bar| bar.end() * 1.14));
    let y = Scale::for_bar_rows(bars.len());
    let names = bars
        .iter()
        .map(|bar| super::text_width(&short_name(&bar.name)));
    let left = names.max().unwrap_or(0) + 16;
    let mut axes = super::draw_axes(area, (&x, spec.label), (&y, ""), left)?;
    let plot_area = super::plot_area(&axes);
    let mut points = Vec::new();
    for (index, bar) in bars.iter().enumerate() {
        let (end, top) = paint_bar(&mut axes, bar, index as f64, &x)?;
        let name = short_name(&bar.name);
        area.draw(&Text::new(
            name,
            (plot_area[0] - 8, top),
            aligned_text(HPos::Right),
        ))?;
        let (whisker_end, _) = axes.backend_coord(&(x.position(bar.end()), 0.0));
        let value = format_figure(bar.value.median);
        let place = (whisker_end + 8, top);
        area.draw(&Text::new(value.clone(), place, aligned_text(HPos::Left)))?;
        points.push(ChartPoint {
            x: end,
            y: top,
            series: sanitize(&bar.name),
            position: range_text(&bar.value),
            value: format!("{value} {}", spec.unit),
        });
    }
    Ok((plot_area, points))
}

/// Draws a bar with its whisker; returns the position of its end.
fn paint_bar(
    axes: &mut Axes<'_, '_>,
    bar: &Bar,
    row: f64,
    x: &Scale,
) -> Result<(i32, i32), DrawError> {
    let end = x.position(bar.value.median);
    let corners = [(x.low, row + 0.18), (end, row + 0.82)];
    let fill = super::series_color(bar.color).filled();
    axes.draw_series([Rectangle::new(corners, fill)])?;
    let (least, greatest) = (x.position(bar.value.min), x.position(bar.value.max));
    if greatest > least {
        let ink = TEXT_COLOR.stroke_width(1);
        let upright = |at: f64| PathElement::new(vec![(at, row + 0.36), (at, row + 0.64)], ink);
        let across = PathElement::new(vec![(least, row + 0.5), (greatest, row + 0.5)], ink);
        axes.draw_series([across, upright(least), upright(greatest)])?;
    }
    Ok(axes.backend_coord(&(end, row + 0.5)))
}

impl Bar {
    /// The end of the bar or of its whisker.
    fn end(&self) -> f64 {
        self.value.median.max(self.value.max)
    }
}

fn aligned_text(side: HPos) -> TextStyle<'static> {
    super::text_style(12, TEXT_COLOR).pos(Pos::new(side, VPos::Center))
}

fn short_name(name: &str) -> String {
    super::truncate_name(&sanitize(name), 36)
}

fn range_text(value: &RoundSpread) -> String {
    match value.max > value.min {
        true => format!(
            "{} to {}",
            format_figure(value.min),
            format_figure(value.max)
        ),
        false => String::new(),
    }
}

pub(super) fn value_table(spec: &ChartSpec, bars: &[Bar]) -> Table {
    Table::of(bars)
        .text_column("", |bar| bar.name.clone())
        .number_column(spec.label, |bar| format_figure(bar.value.median))
        .number_column("min", |bar| format_figure(bar.value.min))
        .number_column("max", |bar| format_figure(bar.value.max))
        .build_all_columns()
}
