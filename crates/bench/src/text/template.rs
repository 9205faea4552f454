//! Fills the templates of the text and of the page (`assets/`) with a report's values.
//!
//! The values of the page are escaped by the template engine.

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, UndefinedBehavior, Value};

use super::units;

/// Renders `report.txt` or `report.html`, without the control characters of external texts.
pub(crate) fn render(name: &str, values: Value) -> String {
    let text = try_render(name, values);
    // Only by a mistake in a template, which the tests of every kind of report would show.
    units::sanitize(&text.unwrap_or_else(|error| format!("not shown: {error:#}\n")))
}

fn try_render(name: &str, values: Value) -> Result<String, Error> {
    let mut templates = Environment::new();
    templates.set_undefined_behavior(UndefinedBehavior::Strict);
    let mut syntax = SyntaxConfig::builder();
    syntax
        .trim_blocks(true)
        .lstrip_blocks(true)
        .keep_trailing_newline(true);
    templates.set_syntax(syntax.build()?);
    templates.add_filter("count", units::group_thousands);
    templates.add_filter("figure", units::format_figure);
    templates.add_filter("fixed", |value: f64, digits: usize| {
        format!("{value:.digits$}")
    });
    templates.add_filter("ms", units::format_ms);
    templates.add_filter("plural", units::pluralize);
    templates.add_filter("right", |text: &str, width: usize| {
        format!("{text:>width$}")
    });
    templates.add_filter("size", units::format_size);
    templates.add_filter("tick", units::format_tick);
    templates.add_filter("time", units::format_timestamp);
    templates.add_template("report.txt", include_str!("../../assets/report.txt"))?;
    templates.add_template("report.html", include_str!("../../assets/report.html"))?;
    templates.get_template(name)?.render(values)
}
