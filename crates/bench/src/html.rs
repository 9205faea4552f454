//! A report as one HTML file that needs nothing else, and its charts alone.
//!
//! `output` writes both. The page asks for nothing from anywhere (its own policy forbids it):
//! styles, script and drawings are inside. The script only adds the values under the pointer or the
//! arrow keys; without it they stand in a table below each chart. Everything that comes from
//! outside (names, logs, addresses) passes `escaped`. Pure.

use crate::chart::{self, Chart};
use crate::report::{Compare, Deployment, Outcome, Report, ServerCost, Taken};
use crate::text::table::{Kind, Table};
use crate::text::{self, notes, tables, units};

/// The whole page.
#[must_use]
pub fn html(report: &Report) -> String {
    let title = escaped(&title(report));
    let mut body = format!("<h1>{title}</h1>\n{}", warnings(report));
    body += &taken(&report.taken);
    let charts: String = chart::charts(report).iter().map(figure).collect();
    let section = |heading: &str, content: &str| match content.is_empty() {
        true => String::new(),
        false => format!("<section>\n<h2>{heading}</h2>\n{content}</section>\n"),
    };
    body += &match &report.result {
        Outcome::Run(run) => targets(&run.targets) + &charts + &plain_text(report),
        Outcome::Mix(mix) => targets(&mix.targets) + &charts + &plain_text(report),
        Outcome::Sweep(sweep) => {
            let points = table(&tables::sweep(sweep));
            targets(&sweep.targets) + &charts + &section("Figures", &points)
        }
        Outcome::Compare(compare) => {
            section("Ranking", &ranking(compare))
                + &section("Goals", &goals(compare))
                + &section("Failed", &failed(compare))
                + &section("Charts", &charts)
                + &section("Each load (medians)", &optional(&tables::loads(compare)))
                + &section("Versions", &versions(compare))
                + &section("Figures of each round", &rounds(compare))
        }
        Outcome::Hold(hold) => targets(&hold.targets) + &charts + &plain_text(report),
    };
    page(&title, &body)
}

/// The charts of a report: a file name without folder (`throughput.svg`), and the drawing, which says
/// itself why it may not be believed.
#[must_use]
pub fn svgs(report: &Report) -> Vec<(String, String)> {
    let mut marks = notes::marks(report);
    if marks.len() > MARKS_SHOWN {
        let more = units::grouped((marks.len() - MARKS_SHOWN) as u64);
        marks.truncate(MARKS_SHOWN);
        marks.push(format!("and {more} more"));
    }
    let charts = chart::charts(report);
    charts
        .iter()
        .map(|chart| {
            let name = format!("{}.svg", chart.name);
            (name, chart::standalone(chart, &marks))
        })
        .collect()
}

/// A comparison may have a doubt for each deployment.
const MARKS_SHOWN: usize = 6;

/// Text that is safe between tags and within a quoted attribute.
pub(crate) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for char in units::plain(text).chars() {
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

fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<link rel=\"icon\" href=\"data:,\">\n<style>\n{STYLE}</style>\n</head>\n\
         <body>\n<main>\n{body}</main>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n"
    )
}

const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; \
     script-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'";
const STYLE: &str = include_str!("../assets/report.css");
const SCRIPT: &str = include_str!("../assets/report.js");

fn title(report: &Report) -> String {
    let first = |targets: &[String]| targets.first().cloned().unwrap_or_default();
    match &report.result {
        Outcome::Run(run) => format!("Run: {}", first(&run.targets)),
        Outcome::Mix(mix) => format!("Mix: {}", first(&mix.targets)),
        Outcome::Sweep(sweep) => format!("Sweep: {}", first(&sweep.targets)),
        Outcome::Compare(compare) => compare.title.clone(),
        Outcome::Hold(hold) => format!("Hold: {}", first(&hold.targets)),
    }
}

/// What must be known before any figure is believed.
fn warnings(report: &Report) -> String {
    let interrupted = report
        .taken
        .interrupted
        .then(|| notes::INTERRUPTED.to_owned());
    let all = interrupted.into_iter().chain(notes::bottleneck(report));
    let all = all.chain(notes::held(report));
    all.map(|note| {
        format!(
            "<p class=\"warning\" role=\"alert\">{}</p>\n",
            escaped(&note)
        )
    })
    .collect()
}

fn taken(taken: &Taken) -> String {
    let machine = &taken.machine;
    let cores = units::plural(machine.cores as u64, "core", "cores");
    let rows = [
        (
            "Taken",
            format!("{}, {}", units::moment(taken.started), taken.tool),
        ),
        (
            "Machine",
            format!(
                "{}, {cores}, {}, {}",
                machine.cpu,
                units::size(machine.memory),
                machine.system
            ),
        ),
        ("Command", format!("penstock {}", taken.command.join(" "))),
    ];
    let row =
        |(name, value): &(&str, String)| format!("<dt>{name}</dt><dd>{}</dd>\n", escaped(value));
    format!("<dl>\n{}</dl>\n", rows.iter().map(row).collect::<String>())
}

fn targets(targets: &[String]) -> String {
    let shown = targets
        .iter()
        .take(5)
        .map(|target| format!("<code>{}</code>", escaped(target)));
    let more = match targets.len() {
        0..=5 => String::new(),
        all => format!(" and {} more", units::grouped((all - 5) as u64)),
    };
    format!("<p>{}{more}</p>\n", shown.collect::<Vec<_>>().join(", "))
}

/// A chart, what the script needs, and the values as a table.
fn figure(chart: &Chart) -> String {
    let spot = |spot: &chart::Spot| {
        serde_json::json!([spot.x, spot.y, spot.series, spot.place, spot.value])
    };
    let spots: Vec<_> = chart.spots.iter().map(spot).collect();
    let data = serde_json::json!({ "area": chart.area, "spots": spots });
    // A script element ends at the first `</script`, wherever that stands.
    let data = data.to_string().replace('<', "\\u003c");
    format!(
        "<figure id=\"{}\" tabindex=\"0\" aria-label=\"{}: arrow keys show the values\">\n\
         <div class=\"chart\">\n{}</div>\n<script type=\"application/json\">{data}</script>\n\
         <details><summary>Values</summary>\n{}</details>\n</figure>\n",
        escaped(&chart.name),
        escaped(&chart.title),
        chart.svg,
        table(&chart.table),
    )
}

fn table(table: &Table) -> String {
    let class = |kind: Kind| {
        if kind == Kind::Number {
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
            escaped(&column.title)
        );
    }
    text += "</tr></thead>\n<tbody>\n";
    for row in &table.rows {
        text += "<tr>";
        for (cell, column) in row.iter().zip(&table.columns) {
            text += &format!("<td{}>{}</td>", class(column.kind), escaped(cell));
        }
        text += "</tr>\n";
    }
    text + "</tbody>\n</table></div>\n"
}

fn optional(found: &Table) -> String {
    if found.rows.is_empty() {
        String::new()
    } else {
        table(found)
    }
}

/// A run is what ApacheBench's users know: shown as they know it.
fn plain_text(report: &Report) -> String {
    format!("<pre>{}</pre>\n", escaped(&text::report(report)))
}

fn ranking(compare: &Compare) -> String {
    let mut text = table(&tables::ranking(compare));
    text += &format!("<p>Ratios are to {}.</p>\n", escaped(&compare.first));
    let doubts = tables::doubts(compare);
    if !doubts.is_empty() {
        text += "<ol class=\"doubts\">\n";
        for (name, doubt) in doubts {
            text += &format!("<li>{}: {}</li>\n", escaped(name), escaped(&doubt));
        }
        text += "</ol>\n";
    }
    text
}

fn goals(compare: &Compare) -> String {
    let text = optional(&tables::goals(compare));
    let marked = text.replace("<td>PASS</td>", "<td class=\"pass\">PASS</td>");
    marked.replace("<td>FALL SHORT</td>", "<td class=\"short\">FALL SHORT</td>")
}

fn failed(compare: &Compare) -> String {
    let failed = |deployment: &Deployment| {
        let why = deployment.failed.as_ref()?;
        let name = escaped(&deployment.name);
        Some(format!(
            "<h3>{name}</h3>\n<pre class=\"warning\">{}</pre>\n",
            escaped(why)
        ))
    };
    compare.deployments.iter().filter_map(failed).collect()
}

fn versions(compare: &Compare) -> String {
    let mut found = Table::new(&[("deployment", Kind::Words), ("versions", Kind::Words)]);
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
    optional(&found)
}

fn rounds(compare: &Compare) -> String {
    let mut text = String::new();
    for deployment in tables::ranked(compare) {
        let name = escaped(&deployment.name);
        text += &format!("<details><summary>{name}</summary>\n");
        for (round, points) in deployment.rounds.iter().enumerate() {
            text += &format!(
                "<h3>Round {}</h3>\n{}",
                round + 1,
                table(&tables::points(points))
            );
            let others = points.iter().filter_map(|point| point.server.as_ref());
            text += &strangers(others);
        }
        text += "</details>\n";
    }
    text
}

/// How much other programs used of the server's cores, when that was watched.
fn strangers<'a>(costs: impl Iterator<Item = &'a ServerCost>) -> String {
    let most = costs.filter_map(|cost| cost.others).reduce(f64::max);
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
            let page = html(&report);
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
        let page = html(&testing::compare());
        assert!(page.contains("<title>Hello &amp; &lt;friends&gt;</title>"));
        assert!(page.contains("nginx, &quot;&lt;b&gt;tuned&lt;/b&gt;&quot;"));
        assert!(!page.contains("<b>") && !page.contains("boom: </script>"));
        let scripts = page.matches("<script").count();
        assert_eq!(scripts, page.matches("</script>").count());
    }

    #[test]
    fn doubtful_reports_say_so_first() {
        let page = html(&testing::run());
        let note = "NOTE: the load generator itself was the bottleneck: its thread was busy 99 %";
        assert!(page.find(note).unwrap() < page.find("<dl>").unwrap());
        assert!(html(&testing::sweep()).contains("role=\"alert\">INTERRUPTED"));
        assert!(!html(&testing::mix()).contains("role=\"alert\""));
    }

    #[test]
    fn a_comparison_has_all_its_parts() {
        let page = html(&testing::compare());
        for part in [
            "<h2>Ranking</h2>",
            "<td class=\"pass\">PASS</td>",
            "<td class=\"short\">FALL SHORT</td>",
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
                ">INTERRUPTED: it was ended early;",
            ),
            (
                "a doubt",
                testing::compare(),
                ">DOUBT: puma: 100 connections: other programs",
            ),
        ] {
            for ((name, svg), chart) in svgs(&report).into_iter().zip(chart::charts(&report)) {
                assert!(svg.contains(expected), "{what} {name}");
                let (width, height) = (chart.size.0, chart.size.1 + 26);
                let frame = format!("height=\"{height}\" viewBox=\"0 0 {width} {height}\"");
                assert!(svg.contains(&frame), "{what} {name}");
                assert_eq!(svg.matches("<svg ").count(), 1, "{what} {name}");
                assert!(svg.ends_with("</text>\n</svg>\n"), "{what} {name}");
            }
        }
        let drawn = svgs(&testing::mix()).remove(0).1;
        assert_eq!(drawn, chart::charts(&testing::mix())[0].svg);
    }

    #[test]
    fn words_on_single_drawings_stay_words() {
        let mut report = testing::compare();
        if let Outcome::Compare(compare) = &mut report.result
            && let Some(summary) = &mut compare.deployments[1].summary
        {
            summary
                .doubts
                .push("</text><script>\n\u{1b}[31m".to_owned());
        }
        for (name, svg) in svgs(&report) {
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
            svgs(report).into_iter().map(|(name, _)| name).collect()
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
