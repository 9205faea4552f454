//! A report as one self-contained HTML file, and its charts as single drawings. Pure.
//!
//! The page loads nothing (its own policy forbids it): styles, script and drawings are inside. The
//! script only adds the values under the pointer or the arrow keys; without it they are in a table
//! below each chart. All external text (names, logs, addresses) passes through `escape_html`.

use crate::chart::{self, Chart};
use crate::report::{Compare, Deployment, MeasurementContext, Report, ReportResult, ServerCost};
use crate::text::table::{ColumnKind, Table};
use crate::text::{self, notes, tables, units};

/// The whole page.
#[must_use]
pub fn report_html(report: &Report) -> String {
    let title = escape_html(&report_title(report));
    let mut body = format!("<h1>{title}</h1>\n{}", warnings(report));
    body += &context_list(&report.context);
    let charts: String = chart::charts(report).iter().map(chart_figure).collect();
    let section = |heading: &str, content: &str| match content.is_empty() {
        true => String::new(),
        false => format!("<section>\n<h2>{heading}</h2>\n{content}</section>\n"),
    };
    body += &match &report.result {
        ReportResult::Run(run) => target_list(&run.targets) + &charts + &report_text(report),
        ReportResult::Mix(mix) => target_list(&mix.targets) + &charts + &report_text(report),
        ReportResult::Sweep(sweep) => {
            let points = html_table(&tables::sweep_table(sweep));
            target_list(&sweep.targets) + &charts + &section("Figures", &points)
        }
        ReportResult::Compare(compare) => {
            section("Ranking", &ranking_table(compare))
                + &section("Goals", &goals_table(compare))
                + &section("Failed", &failed_section(compare))
                + &section("Charts", &charts)
                + &section(
                    "Each load (medians)",
                    &html_table_if_any(&tables::loads_table(compare)),
                )
                + &section("Versions", &versions_table(compare))
                + &section("Figures of each round", &rounds_section(compare))
        }
        ReportResult::Hold(hold) => target_list(&hold.targets) + &charts + &report_text(report),
    };
    html_page(&title, &body)
}

/// The charts of a report: file names without directory (`throughput.svg`), and drawings that
/// include the report's warnings.
#[must_use]
pub fn chart_svgs(report: &Report) -> Vec<(String, String)> {
    let mut marks = notes::drawing_notes(report);
    if marks.len() > MAX_NOTES_SHOWN {
        let more = units::group_thousands((marks.len() - MAX_NOTES_SHOWN) as u64);
        marks.truncate(MAX_NOTES_SHOWN);
        marks.push(format!("and {more} more"));
    }
    let charts = chart::charts(report);
    charts
        .iter()
        .map(|chart| {
            let name = format!("{}.svg", chart.name);
            (name, chart::standalone_svg(chart, &marks))
        })
        .collect()
}

/// A comparison may have a note for each deployment.
const MAX_NOTES_SHOWN: usize = 6;

/// Text that is safe between tags and within a quoted attribute.
pub(crate) fn escape_html(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for char in units::sanitize(text).chars() {
        match char {
            '&' => safe += "&amp;",
            '<' => safe += "&lt;",
            '>' => safe += "&gt;",
            '"' => safe += "&quot;",
            '\'' => safe += "&#39;",
            _ => safe.push(char),
        }
    }
    safe
}

fn html_page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{CONTENT_SECURITY_POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<link rel=\"icon\" href=\"data:,\">\n<style>\n{STYLE}</style>\n</head>\n\
         <body>\n<main>\n{body}</main>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n"
    )
}

const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; \
     script-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'";
const STYLE: &str = include_str!("../assets/report.css");
const SCRIPT: &str = include_str!("../assets/report.js");

fn report_title(report: &Report) -> String {
    let first = |targets: &[String]| targets.first().cloned().unwrap_or_default();
    match &report.result {
        ReportResult::Run(run) => format!("Run: {}", first(&run.targets)),
        ReportResult::Mix(mix) => format!("Mix: {}", first(&mix.targets)),
        ReportResult::Sweep(sweep) => format!("Sweep: {}", first(&sweep.targets)),
        ReportResult::Compare(compare) => compare.title.clone(),
        ReportResult::Hold(hold) => format!("Hold: {}", first(&hold.targets)),
    }
}

/// The warnings about the figures.
fn warnings(report: &Report) -> String {
    let interrupted = report
        .context
        .interrupted
        .then(|| notes::INTERRUPTED_NOTE.to_owned());
    let all = interrupted
        .into_iter()
        .chain(notes::bottleneck_note(report));
    let all = all.chain(notes::hold_notes(report));
    all.map(|note| {
        format!(
            "<p class=\"warning\" role=\"alert\">{}</p>\n",
            escape_html(&note)
        )
    })
    .collect()
}

fn context_list(taken: &MeasurementContext) -> String {
    let machine = &taken.machine;
    let cores = units::pluralize(machine.cores as u64, "core", "cores");
    let rows = [
        (
            "Taken",
            format!("{}, {}", units::format_time(taken.started), taken.tool),
        ),
        (
            "Machine",
            format!(
                "{}, {cores}, {}, {}",
                machine.cpu,
                units::format_size(machine.memory),
                machine.system
            ),
        ),
        ("Command", format!("penstock {}", taken.command.join(" "))),
    ];
    let row = |(name, value): &(&str, String)| {
        format!("<dt>{name}</dt><dd>{}</dd>\n", escape_html(value))
    };
    format!("<dl>\n{}</dl>\n", rows.iter().map(row).collect::<String>())
}

fn target_list(targets: &[String]) -> String {
    let shown = targets
        .iter()
        .take(5)
        .map(|target| format!("<code>{}</code>", escape_html(target)));
    let more = match targets.len() {
        0..=5 => String::new(),
        all => format!(" and {} more", units::group_thousands((all - 5) as u64)),
    };
    format!("<p>{}{more}</p>\n", shown.collect::<Vec<_>>().join(", "))
}

/// A chart, the script's data, and the values as a table.
fn chart_figure(chart: &Chart) -> String {
    let spot = |spot: &chart::ChartPoint| {
        serde_json::json!([spot.x, spot.y, spot.series, spot.position, spot.value])
    };
    let spots: Vec<_> = chart.points.iter().map(spot).collect();
    let data = serde_json::json!({ "area": chart.plot_area, "spots": spots });
    // A script element ends at the first `</script`, wherever it is.
    let data = data.to_string().replace('<', "\\u003c");
    format!(
        "<figure id=\"{}\" tabindex=\"0\" aria-label=\"{}: arrow keys show the values\">\n\
         <div class=\"chart\">\n{}</div>\n<script type=\"application/json\">{data}</script>\n\
         <details><summary>Values</summary>\n{}</details>\n</figure>\n",
        escape_html(&chart.name),
        escape_html(&chart.title),
        chart.svg,
        html_table(&chart.table),
    )
}

fn html_table(table: &Table) -> String {
    let class = |kind: ColumnKind| {
        if kind == ColumnKind::Number {
            " class=\"n\""
        } else {
            ""
        }
    };
    let mut text = String::from("<div class=\"wide\"><table>\n<thead><tr>");
    for column in &table.columns {
        text += &format!(
            "<th scope=\"col\"{}>{}</th>",
            class(column.kind),
            escape_html(&column.title)
        );
    }
    text += "</tr></thead>\n<tbody>\n";
    for row in &table.rows {
        text += "<tr>";
        for (cell, column) in row.iter().zip(&table.columns) {
            text += &format!("<td{}>{}</td>", class(column.kind), escape_html(cell));
        }
        text += "</tr>\n";
    }
    text + "</tbody>\n</table></div>\n"
}

fn html_table_if_any(found: &Table) -> String {
    if found.rows.is_empty() {
        String::new()
    } else {
        html_table(found)
    }
}

/// A run is shown in the format of ApacheBench.
fn report_text(report: &Report) -> String {
    format!("<pre>{}</pre>\n", escape_html(&text::report_text(report)))
}

fn ranking_table(compare: &Compare) -> String {
    let mut text = html_table(&tables::ranking_table(compare));
    text += &format!("<p>Ratios are to {}.</p>\n", escape_html(&compare.first));
    let doubts = tables::ranked_doubts(compare);
    if !doubts.is_empty() {
        text += "<ol class=\"doubts\">\n";
        for (name, doubt) in doubts {
            text += &format!("<li>{}: {}</li>\n", escape_html(name), escape_html(&doubt));
        }
        text += "</ol>\n";
    }
    text
}

fn goals_table(compare: &Compare) -> String {
    let text = html_table_if_any(&tables::goals_table(compare));
    let marked = text.replace("<td>PASS</td>", "<td class=\"pass\">PASS</td>");
    marked.replace("<td>FAIL</td>", "<td class=\"short\">FAIL</td>")
}

fn failed_section(compare: &Compare) -> String {
    let failed = |deployment: &Deployment| {
        let why = deployment.failure.as_ref()?;
        let name = escape_html(&deployment.name);
        Some(format!(
            "<h3>{name}</h3>\n<pre class=\"warning\">{}</pre>\n",
            escape_html(why)
        ))
    };
    compare.deployments.iter().filter_map(failed).collect()
}

fn versions_table(compare: &Compare) -> String {
    let mut found = Table::new(&[
        ("deployment", ColumnKind::Text),
        ("versions", ColumnKind::Text),
    ]);
    for deployment in compare
        .deployments
        .iter()
        .filter(|one| !one.versions.is_empty())
    {
        found.rows.push(vec![
            deployment.name.clone(),
            deployment.versions.join(", "),
        ]);
    }
    html_table_if_any(&found)
}

fn rounds_section(compare: &Compare) -> String {
    let mut text = String::new();
    for deployment in tables::ranked_deployments(compare) {
        let name = escape_html(&deployment.name);
        text += &format!("<details><summary>{name}</summary>\n");
        for (round, points) in deployment.rounds.iter().enumerate() {
            text += &format!(
                "<h3>Round {}</h3>\n{}",
                round + 1,
                html_table(&tables::points_table(points))
            );
            let others = points.iter().filter_map(|point| point.server.as_ref());
            text += &other_processes_note(others);
        }
        text += "</details>\n";
    }
    text
}

/// The share of other programs on the server's cores, if it was measured.
fn other_processes_note<'a>(costs: impl Iterator<Item = &'a ServerCost>) -> String {
    let most = costs
        .filter_map(|cost| cost.other_processes_share)
        .reduce(f64::max);
    most.map_or_else(String::new, |most| {
        format!(
            "<p>Other programs used up to {:.1} % of the server's cores.</p>\n",
            most * 100.0
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing;

    #[test]
    fn a_page_asks_for_nothing_from_outside() {
        for (kind, report) in testing::reports() {
            let page = report_html(&report);
            for asks in ["src=", "href=\"http", "@import", "url(", "fetch("] {
                assert!(!page.contains(asks), "{kind}: {asks}");
            }
            assert!(page.contains("<svg "), "{kind}");
            assert!(
                page.contains("Some CPU, 2 cores, 8.0 GiB, Linux 6.18"),
                "{kind}"
            );
            assert!(page.contains("penstock bench run &lt;x&gt;"), "{kind}");
        }
    }

    #[test]
    fn words_of_strangers_stay_words() {
        let page = report_html(&testing::compare());
        assert!(page.contains("<title>Hello &amp; &lt;friends&gt;</title>"));
        assert!(page.contains("nginx, &quot;&lt;b&gt;tuned&lt;/b&gt;&quot;"));
        assert!(!page.contains("<b>") && !page.contains("boom: </script>"));
        let scripts = page.matches("<script").count();
        assert_eq!(scripts, page.matches("</script>").count());
    }

    #[test]
    fn doubtful_reports_say_so_first() {
        let page = report_html(&testing::run());
        let note = "NOTE: the load generator itself was the bottleneck: its thread was busy 99 %";
        assert!(page.find(note).unwrap() < page.find("<dl>").unwrap());
        assert!(report_html(&testing::sweep()).contains("role=\"alert\">INTERRUPTED"));
        assert!(!report_html(&testing::mix()).contains("role=\"alert\""));
    }

    #[test]
    fn a_comparison_has_all_its_parts() {
        let page = report_html(&testing::compare());
        for part in [
            "<h2>Ranking</h2>",
            "<td class=\"pass\">PASS</td>",
            "<td class=\"short\">FAIL</td>",
            "not ready within 5 s",
            "puma: 100 connections: other programs used the measured cores",
            "<h2>Versions</h2>",
            "<h3>Round 2</h3>",
            "Other programs used up to 1.2 % of the server&#39;s cores.",
        ] {
            assert!(
                page.contains(part) || page.contains(&part.replace("&#39;", "'")),
                "{part}"
            );
        }
    }

    #[test]
    fn single_drawings_say_why_they_are_doubtful() {
        for (what, report, expected) in [
            (
                "limited",
                testing::run(),
                "its thread was busy 99 % of the time</text>",
            ),
            (
                "ended early",
                testing::sweep(),
                ">INTERRUPTED: the run was ended early;",
            ),
            (
                "a doubt",
                testing::compare(),
                ">DOUBT: puma: 100 connections: other programs",
            ),
        ] {
            for ((name, svg), chart) in chart_svgs(&report).into_iter().zip(chart::charts(&report))
            {
                assert!(svg.contains(expected), "{what} {name}");
                let (width, height) = (chart.size.0, chart.size.1 + 26);
                let frame = format!("height=\"{height}\" viewBox=\"0 0 {width} {height}\"");
                assert!(svg.contains(&frame), "{what} {name}");
                assert_eq!(svg.matches("<svg ").count(), 1, "{what} {name}");
                assert!(svg.ends_with("</text>\n</svg>\n"), "{what} {name}");
            }
        }
        let drawn = chart_svgs(&testing::mix()).remove(0).1;
        assert_eq!(drawn, chart::charts(&testing::mix())[0].svg);
    }

    #[test]
    fn words_on_single_drawings_stay_words() {
        let mut report = testing::compare();
        if let ReportResult::Compare(compare) = &mut report.result
            && let Some(summary) = &mut compare.deployments[1].summary
        {
            summary
                .doubts
                .push("</text><script>\n\u{1b}[31m".to_owned());
        }
        for (name, svg) in chart_svgs(&report) {
            assert!(
                svg.contains("&lt;/text&gt;&lt;script&gt; ?[31m</text>"),
                "{name}"
            );
            assert!(!svg.contains("<script"), "{name}");
        }
    }

    #[test]
    fn charts_have_names_for_files() {
        let names = |report: &Report| -> Vec<String> {
            chart_svgs(report)
                .into_iter()
                .map(|(name, _)| name)
                .collect()
        };
        assert_eq!(names(&testing::run()), ["latency.svg"]);
        assert_eq!(names(&testing::mix()), ["latency-1.svg", "latency-2.svg"]);
        assert_eq!(
            names(&testing::sweep()),
            [
                "throughput.svg",
                "latency.svg",
                "errors.svg",
                "cpu.svg",
                "cores.svg",
                "memory.svg"
            ]
        );
        assert_eq!(
            names(&testing::compare()),
            [
                "ranking.svg",
                "throughput.svg",
                "cpu.svg",
                "p99.svg",
                "latency.svg",
                "memory.svg"
            ]
        );
    }
}
