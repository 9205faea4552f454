//! A report as one self-contained HTML file (template: `assets/report.html`), and its charts as
//! files of their own. Pure.
//!
//! The page loads nothing (its own policy forbids it): styles, script and drawings are inside. The
//! script only adds the values under the pointer or the arrow keys; without it they are in a table
//! below each chart. The template escapes all external text (names, logs, addresses).

use minijinja::value::Serde;
use minijinja::{Value, context};
use serde_json::json;

use crate::chart::{self, Chart, ChartPoint};
use crate::report::{CompareResult, Point, Report, ReportResult};
use crate::text::{self, notes, tables, template, units};

/// The whole page.
pub(crate) fn report_html(report: &Report) -> String {
    let targets = report.result.targets();
    let first = targets.first().map_or("", |target| target);
    let (verb, details) = match &report.result {
        ReportResult::Run(_) => ("Run", text_values(report)),
        ReportResult::Mix(_) => ("Mix", text_values(report)),
        ReportResult::Hold(_) => ("Hold", text_values(report)),
        ReportResult::Sweep(sweep) => {
            let points_table = tables::points_table(&sweep.points);
            ("Sweep", context! { points_table => Serde(points_table) })
        }
        ReportResult::Compare(compare) => ("", compare_values(compare)),
    };
    let page_title = match &report.result {
        ReportResult::Compare(compare) => compare.title.clone(),
        _ => format!("{verb}: {first}"),
    };
    let charts: Vec<Value> = chart::charts(report, &[])
        .iter()
        .map(chart_values)
        .collect();
    let values = context! {
        page_title,
        page_notes => notes::report_notes(report),
        all_targets => Serde(targets),
        charts,
        style => include_str!("../assets/report.css"),
        script => include_str!("../assets/report.js"),
        ..context! { ..details, ..Serde(report) }
    };
    template::render("report.html", values)
}

fn text_values(report: &Report) -> Value {
    context! { text => text::report_text(report) }
}

fn compare_values(compare: &CompareResult) -> Value {
    let most_others = |points: &[Point]| {
        let costs = points.iter().filter_map(|point| point.server.as_ref());
        let shares = costs.filter_map(|cost| cost.other_processes_share);
        shares.reduce(f64::max)
    };
    let round = |points: &Vec<Point>| (tables::points_table(points), most_others(points));
    let rounds_of_each: Vec<_> = tables::ranked_deployments(compare)
        .map(|one| (&one.name, one.rounds.iter().map(round).collect::<Vec<_>>()))
        .collect();
    context! {
        ranking_table => Serde(tables::ranking_table(compare)),
        doubts => Serde(tables::ranked_doubts(compare)),
        loads_table => Serde(tables::loads_table(compare)),
        rounds_of_each => Serde(rounds_of_each),
    }
}

/// A chart, the script's data, and the values as a table.
fn chart_values(chart: &Chart) -> Value {
    let spot = |at: &ChartPoint| json!([at.x, at.y, at.series, at.position, at.value]);
    let spots: Vec<_> = chart.points.iter().map(spot).collect();
    let data = json!({ "area": chart.plot_area, "spots": spots });
    // A script element ends at the first `</script`, wherever it is.
    let data = data.to_string().replace('<', "\\u003c");
    context! {
        name => &chart.name,
        title => &chart.title,
        svg => &chart.svg,
        table => Serde(&chart.table),
        data,
    }
}

/// The charts of a report: file names without directory (`throughput.svg`), and drawings that
/// include the report's warnings.
pub(crate) fn chart_svgs(report: &Report) -> Vec<(String, String)> {
    let mut marks = notes::chart_notes(report);
    if marks.len() > MAX_NOTES_SHOWN {
        let more = units::group_thousands((marks.len() - MAX_NOTES_SHOWN) as u64);
        marks.truncate(MAX_NOTES_SHOWN);
        marks.push(format!("and {more} more"));
    }
    let charts = chart::charts(report, &marks).into_iter();
    charts
        .map(|chart| (format!("{}.svg", chart.name), chart.svg))
        .collect()
}

/// A comparison may have a note for each deployment.
const MAX_NOTES_SHOWN: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::test_reports;

    #[test]
    fn a_page_asks_for_nothing_from_outside() {
        for (kind, report) in test_reports::all_reports() {
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
        let page = report_html(&test_reports::compare_report());
        assert!(page.contains("<title>Hello &amp; &lt;friends&gt;</title>"));
        assert!(page.contains("nginx, &quot;&lt;b&gt;tuned&lt;&#x2f;b&gt;&quot;"));
        assert!(!page.contains("<b>") && !page.contains("boom: </script>"));
        let scripts = page.matches("<script").count();
        assert_eq!(scripts, page.matches("</script>").count());
    }

    #[test]
    fn doubtful_reports_say_so_first() {
        let page = report_html(&test_reports::run_report());
        let note = "NOTE: the load generator itself was the bottleneck: its thread was busy 99 %";
        assert!(page.find(note).unwrap() < page.find("<dl>").unwrap());
        assert!(report_html(&test_reports::sweep_report()).contains("role=\"alert\">INTERRUPTED"));
        assert!(!report_html(&test_reports::mix_report()).contains("role=\"alert\""));
    }

    #[test]
    fn a_comparison_has_all_its_parts() {
        let page = report_html(&test_reports::compare_report());
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
    fn single_charts_say_why_they_are_doubtful() {
        for (what, report, expected) in [
            (
                "limited",
                test_reports::run_report(),
                "its thread was busy 99 % of the time\n</text>",
            ),
            (
                "ended early",
                test_reports::sweep_report(),
                "\nINTERRUPTED: the run was ended early;",
            ),
            (
                "a doubt",
                test_reports::compare_report(),
                "\nDOUBT: puma: 100 connections: other programs",
            ),
        ] {
            for ((name, svg), chart) in chart_svgs(&report)
                .into_iter()
                .zip(chart::charts(&report, &[]))
            {
                assert!(svg.contains(expected), "{what} {name}");
                let (width, height) = (chart.size.0, chart.size.1 + 26);
                let frame = format!("height=\"{height}\" viewBox=\"0 0 {width} {height}\"");
                assert!(svg.contains(&frame), "{what} {name}");
                assert_eq!(svg.matches("<svg ").count(), 1, "{what} {name}");
                assert!(svg.ends_with("</text>\n</svg>\n"), "{what} {name}");
            }
        }
        let drawn = chart_svgs(&test_reports::mix_report()).remove(0).1;
        assert_eq!(
            drawn,
            chart::charts(&test_reports::mix_report(), &[])[0].svg
        );
    }

    #[test]
    fn words_on_single_charts_stay_words() {
        let mut report = test_reports::compare_report();
        if let ReportResult::Compare(compare) = &mut report.result
            && let Some(summary) = &mut compare.deployments[1].summary
        {
            summary
                .doubts
                .push("</text><script>\n\u{1b}[31m".to_owned());
        }
        for (name, svg) in chart_svgs(&report) {
            assert!(
                svg.contains("&lt;/text&gt;&lt;script&gt; ?[31m\n</text>"),
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
        assert_eq!(names(&test_reports::run_report()), ["latency.svg"]);
        assert_eq!(
            names(&test_reports::mix_report()),
            ["latency-1.svg", "latency-2.svg"]
        );
        assert_eq!(
            names(&test_reports::sweep_report()),
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
            names(&test_reports::compare_report()),
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
