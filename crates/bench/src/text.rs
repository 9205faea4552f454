//! Reports as text, for a terminal.
//!
//! A run has the format of ApacheBench, a sweep has one line per point, a comparison is a ranking.
//! `output` prints the text. Control characters of external names and logs are removed.
//!
//! # Invariants
//!
//! - An early end is always shown, and, as the last line, that the generator was the bottleneck.

use crate::report::{
    Compare, Figures, MeasurementContext, Mix, Report, ReportResult, Run, Schedule, ServerCost,
    Sweep, Timings,
};
use units::{format_figure, format_ms, group_thousands, sanitize, to_f64};

pub use progress::progress_line;

pub(crate) mod hold;
pub(crate) mod notes;
mod progress;
pub(crate) mod table;
pub(crate) mod tables;
pub(crate) mod units;

/// Formats any report; ends with a line break.
#[must_use]
pub fn report_text(report: &Report) -> String {
    let taken = &report.context;
    let mut text = match &report.result {
        ReportResult::Run(result) => run_text(taken, result),
        ReportResult::Mix(result) => mix_text(taken, result),
        ReportResult::Sweep(result) => sweep_text(taken, result),
        ReportResult::Compare(result) => compare_text(taken, result),
        ReportResult::Hold(result) => hold::hold_text(taken, result),
    };
    if let Some(note) = notes::bottleneck_note(report) {
        text += &format!("\n{note}\n");
    }
    text
}

/// A run in ApacheBench's format.
#[must_use]
pub fn run_text(taken: &MeasurementContext, run: &Run) -> String {
    let mut text = heading(taken);
    text += &targets(&run.targets);
    text += &load_text(&run.figures);
    text += &run.server.as_ref().map_or_else(String::new, server);
    text
}

/// A mix: each load in ApacheBench's format.
#[must_use]
pub fn mix_text(taken: &MeasurementContext, mix: &Mix) -> String {
    let mut text = heading(taken);
    text += &targets(&mix.targets);
    for figures in &mix.loads {
        text += &format!(
            "\nLoad: {}\n{}",
            sanitize(&figures.name),
            load_text(figures)
        );
    }
    text += &mix.server.as_ref().map_or_else(String::new, server);
    text
}

/// A sweep, one line per point.
#[must_use]
pub fn sweep_text(taken: &MeasurementContext, sweep: &Sweep) -> String {
    let mut text = heading(taken);
    text += &targets(&sweep.targets);
    text += &format!("\n{}", tables::sweep_table(sweep).text());
    text
}

/// A comparison: the ranking, failures, goals, doubts and versions.
#[must_use]
pub fn compare_text(taken: &MeasurementContext, compare: &Compare) -> String {
    let mut text = format!("{}\n{}", sanitize(&compare.title), heading(taken));
    let rounds = compare
        .deployments
        .iter()
        .map(|deployment| deployment.rounds.len());
    let rounds = units::pluralize(rounds.max().unwrap_or(0) as u64, "round", "rounds");
    text += &format!(
        "Ranking:                {rounds}, ratios to {}\n\n",
        sanitize(&compare.first)
    );
    text += &tables::ranking_table(compare).text();
    for (index, (name, doubt)) in tables::ranked_doubts(compare).into_iter().enumerate() {
        text += &format!(
            "  [{}] {}: {}\n",
            index + 1,
            sanitize(name),
            sanitize(&doubt)
        );
    }
    let loads = tables::loads_table(compare);
    if !loads.rows.is_empty() {
        text += &format!("\nEach load (medians):\n{}", loads.text());
    }
    text += &failed_deployments(compare);
    if !compare.goals.is_empty() {
        text += "\nGoals:\n";
    }
    for row in tables::goals_table(compare).rows {
        let line = format!("  {:<10}  {}: {} {}", row[1], row[0], row[2], row[3]);
        text += &format!("{}\n", line.trim_end());
    }
    let versions: Vec<_> = compare
        .deployments
        .iter()
        .filter(|one| !one.versions.is_empty())
        .collect();
    if !versions.is_empty() {
        text += "\nVersions:\n";
    }
    for deployment in versions {
        let all = sanitize(&deployment.versions.join(", ")).replace('\n', " ");
        text += &format!("  {}: {all}\n", sanitize(&deployment.name));
    }
    text
}

fn failed_deployments(compare: &Compare) -> String {
    let mut text = String::new();
    for deployment in &compare.deployments {
        if let Some(why) = &deployment.failure {
            let why = sanitize(why);
            let mut lines = why.trim_end().lines();
            let first = lines.next().unwrap_or_default();
            text += &format!("\nFAILED {}: {first}\n", sanitize(&deployment.name));
            for line in lines {
                text += &format!("  | {}\n", line.trim_end());
            }
        }
    }
    text
}

fn heading(taken: &MeasurementContext) -> String {
    let machine = &taken.machine;
    let cores = units::pluralize(machine.cores as u64, "core", "cores");
    let memory = units::format_size(machine.memory);
    let mut text = String::new();
    if taken.interrupted {
        text += &format!("{}\n", notes::INTERRUPTED_NOTE);
    }
    text += &labelled_line(
        "Taken",
        &format!(
            "{}, {}",
            units::format_time(taken.started),
            sanitize(&taken.tool)
        ),
    );
    let cpu = sanitize(&machine.cpu);
    text += &labelled_line(
        "Machine",
        &format!("{cpu}, {cores}, {memory}, {}", sanitize(&machine.system)),
    );
    text
}

fn targets(targets: &[String]) -> String {
    let mut text = String::new();
    for (index, target) in targets.iter().take(MAX_TARGETS_SHOWN).enumerate() {
        text += &labelled_line(if index == 0 { "Target" } else { "" }, &sanitize(target));
    }
    if targets.len() > MAX_TARGETS_SHOWN {
        text += &labelled_line(
            "",
            &format!(
                "and {} more",
                group_thousands((targets.len() - MAX_TARGETS_SHOWN) as u64)
            ),
        );
    }
    text
}

/// A list of paths may have millions.
const MAX_TARGETS_SHOWN: usize = 5;

/// One label and its value, in ApacheBench's columns.
fn labelled_line(label: &str, value: &str) -> String {
    let label = match label {
        "" => String::new(),
        _ => format!("{label}:"),
    };
    format!("{label:<23} {value}\n")
}

fn load_text(figures: &Figures) -> String {
    let mut text = String::from("\n");
    text += &labelled_line("Concurrency Level", &figures.connections.to_string());
    if let Some(rate) = figures.rate {
        text += &labelled_line("Arrival rate", &format!("{rate:.2} [#/sec] (open loop)"));
    }
    text += &labelled_line(
        "Time taken for tests",
        &format!("{:.3} seconds", figures.seconds),
    );
    text += &labelled_line("Complete requests", &figures.requests.to_string());
    text += &error_breakdown(figures);
    text += &labelled_line("Total transferred", &format!("{} bytes", figures.bytes));
    text += &labelled_line("Body transferred", &format!("{} bytes", figures.body_bytes));
    let per_second = figures.requests_per_second;
    text += &labelled_line(
        "Requests per second",
        &format!("{per_second:.2} [#/sec] (mean)"),
    );
    text += &labelled_line(
        "Time per request",
        &format!("{} [ms] (mean)", format_ms(figures.total.mean)),
    );
    if figures.requests > 0 {
        let each = format_ms(figures.seconds * 1e6 / to_f64(figures.requests));
        let value = format!("{each} [ms] (mean, across all concurrent requests)");
        text += &labelled_line("Time per request", &value);
    }
    let kilobytes = figures.bytes_per_second / 1024.0;
    text += &labelled_line(
        "Transfer rate",
        &format!("{kilobytes:.2} [Kbytes/sec] received"),
    );
    text += &figures
        .schedule
        .map_or_else(String::new, |found| schedule(&found));
    text += &generator(figures);
    text += &timings_table(figures);
    text += &percentiles(&figures.total, figures.service.as_ref());
    text
}

/// Failed requests by cause, and responses other than 2xx by class.
fn error_breakdown(figures: &Figures) -> String {
    let errors = &figures.errors;
    let mut text = labelled_line("Failed requests", &errors.total().to_string());
    if errors.total() > 0 {
        let named = [
            ("connect", errors.connect),
            ("time-out", errors.timeout),
            ("reset", errors.reset),
            ("closed early", errors.closed),
            ("malformed", errors.malformed),
            ("length", errors.length),
        ];
        text += &breakdown(&named);
    }
    let statuses = &figures.statuses;
    let others = statuses.total() - statuses.success;
    if others > 0 {
        text += &labelled_line("Non-2xx responses", &others.to_string());
        let named = [
            ("3xx", statuses.redirection),
            ("4xx", statuses.client_error),
            ("5xx", statuses.server_error),
            ("other", statuses.other),
        ];
        text += &breakdown(&named);
    }
    if figures.unfinished > 0 {
        let oldest = format_ms(to_f64(figures.oldest_unfinished_us));
        let value = format!("{}, the oldest for {oldest} ms", figures.unfinished);
        text += &labelled_line("Unfinished at the end", &value);
    }
    if figures.retried > 0 {
        let value = format!(
            "{} (kept connections that the server closed)",
            figures.retried
        );
        text += &labelled_line("Sent again", &value);
    }
    text
}

fn breakdown(named: &[(&str, u64)]) -> String {
    let seen = named.iter().filter(|(_, count)| *count > 0);
    let words: Vec<String> = seen
        .map(|(name, count)| format!("{name}: {count}"))
        .collect();
    format!("   ({})\n", words.join(", "))
}

fn schedule(schedule: &Schedule) -> String {
    let (due, late, skipped) = (schedule.due, schedule.late, schedule.skipped);
    labelled_line(
        "Schedule",
        &format!(
            "{due} due, {late} late, {skipped} skipped (no connection was free, or 100 ms late)"
        ),
    )
}

fn generator(figures: &Figures) -> String {
    let generator = &figures.generator;
    let threads = units::pluralize(generator.threads as u64, "thread", "threads");
    let mut value = format!(
        "{threads}, busiest {:.0} % of a core",
        generator.busy * 100.0
    );
    if figures.requests > 0 {
        let each = generator.cpu_seconds * 1e6 / to_f64(figures.requests);
        value += &format!(", {} CPU us/request", format_figure(each));
    }
    if let Some(lag) = generator.lag_p99 {
        value += &format!(", lag p99 {} ms", format_ms(to_f64(lag)));
    }
    labelled_line("Load generator", &value)
}

fn server(cost: &ServerCost) -> String {
    let each = format_figure(cost.cpu_us_per_request);
    let mut text = String::from("\n");
    text += &labelled_line(
        "Server CPU",
        &format!("{each} us/request, {:.2} cores", cost.busy_cores),
    );
    let processes = units::pluralize(cost.processes as u64, "process", "processes");
    let memory = units::format_size(cost.memory_bytes);
    text += &labelled_line("Server memory", &format!("{memory} in {processes}"));
    if let Some(others) = cost.other_processes_share {
        let value = format!("{:.1} % of the server's cores", others * 100.0);
        text += &labelled_line("Other programs", &value);
    }
    text
}

/// The table of connection times. A median alone among ApacheBench's columns would hide the tail,
/// which the percentiles below it show.
fn timings_table(figures: &Figures) -> String {
    let head = ["min", "mean", "[+/-sd]", "median", "max"].map(str::to_owned);
    let row = |timings: &Timings| {
        [
            format_ms(to_f64(timings.min)),
            format_ms(timings.mean),
            format_ms(timings.stddev),
            format_ms(to_f64(timings.p50)),
            format_ms(to_f64(timings.max)),
        ]
    };
    let mut rows = vec![(String::new(), head)];
    let named = [
        ("Connect:", Some(&figures.connect)),
        ("First byte:", Some(&figures.first_byte)),
        ("Service:", figures.service.as_ref()),
        ("Total:", Some(&figures.total)),
    ];
    for (label, timings) in named {
        if let Some(timings) = timings.filter(|timings| timings.count > 0) {
            rows.push((label.to_owned(), row(timings)));
        }
    }
    let mut text = String::from("\nConnection Times (ms)\n");
    for (label, cells) in &rows {
        text += &format!("{label:<12}");
        for (index, cell) in cells.iter().enumerate() {
            let width = rows
                .iter()
                .map(|(_, cells)| cells[index].len())
                .max()
                .unwrap_or(0)
                .max(8);
            text += &format!(" {cell:>width$}");
        }
        text.push('\n');
    }
    text
}

/// The percentiles; in an open loop together with the server's own time.
fn percentiles(total: &Timings, service: Option<&Timings>) -> String {
    let mut text = String::from("\nPercentage of the requests served within a certain time (ms)\n");
    if service.is_some() {
        let titles = ("from due time", "from start");
        text += &format!("        {:>13}  {:>13}\n", titles.0, titles.1);
    }
    for (name, of) in PERCENTILES {
        let value = format_ms(to_f64(of(total)));
        text += &match service {
            Some(service) => format!(
                "{name:>7}%{value:>13}  {:>13}",
                format_ms(to_f64(of(service)))
            ),
            None => format!("{name:>7}%{value:>13}"),
        };
        text += if *name == "100" {
            " (longest request)\n"
        } else {
            "\n"
        };
    }
    text
}

/// A percentile's name, and its value.
pub(crate) type Percentile = (&'static str, fn(&Timings) -> u64);

/// The percentiles of [`Timings`]; like ApacheBench's list it ends with the maximum.
pub(crate) const PERCENTILES: &[Percentile] = &[
    ("50", |timings| timings.p50),
    ("75", |timings| timings.p75),
    ("90", |timings| timings.p90),
    ("95", |timings| timings.p95),
    ("99", |timings| timings.p99),
    ("99.9", |timings| timings.p999),
    ("99.99", |timings| timings.p9999),
    ("100", |timings| timings.max),
];

#[cfg(test)]
mod tests;
