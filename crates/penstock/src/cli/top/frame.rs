//! The lines of `penstock top`, made of one status and the one before.
//!
//! Pure: statuses and a size in, lines out. A status may be of another version of the server: what
//! is missing is shown as `-`.
//!
//! # Invariants
//! - No line is longer than the screen, and there are no more lines than it has rows.

use serde_json::Value;

use crate::cli::jobs_text;

/// The size of a screen in characters.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) columns: usize,
    pub(super) rows: usize,
}

/// The lines of one screen.
#[derive(Debug)]
pub(super) struct Frame {
    lines: Vec<Line>,
    size: Size,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    text: String,
    style: Style,
}

/// How a line is shown on a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    Plain,
    Heading,
    Warning,
}

impl Line {
    /// With the sequences of a terminal.
    pub(super) fn to_ansi(&self) -> String {
        let text = &self.text;
        match self.style {
            Style::Plain => text.clone(),
            Style::Heading => format!("\x1b[7m{text}\x1b[0m"),
            Style::Warning => format!("\x1b[1;31m{text}\x1b[0m"),
        }
    }
}

/// A status with the one before and the seconds between.
#[derive(Clone, Copy)]
struct Change<'a> {
    now: &'a Value,
    before: Option<(&'a Value, f64)>,
}

impl Frame {
    /// The frame of a status. `before` is an earlier one of the same process with the seconds since.
    pub(super) fn new(now: &Value, before: Option<(&Value, f64)>, size: Size) -> Self {
        let change = Change { now, before };
        let mut frame = Self {
            lines: Vec::new(),
            size,
        };
        frame.push_server(change);
        frame.push_notices(now);
        frame.push_apps(change);
        frame.push_upstreams(change);
        frame.push_jobs(now);
        frame.push_top(&now["top"], "routes", "TOP ROUTES");
        frame.push_top(&now["top"], "clients", "TOP CLIENTS");
        frame.push_rules(change);
        frame.lines.truncate(size.rows);
        frame
    }

    pub(super) fn lines(&self) -> &[Line] {
        &self.lines
    }

    pub(super) fn into_text(self) -> String {
        let lines: Vec<_> = self.lines.into_iter().map(|line| line.text).collect();
        lines.join("\n")
    }

    /// Shows why there is no new status, in place of the last line if the screen is full.
    pub(super) fn set_problem(&mut self, problem: &str) {
        self.lines.truncate(self.size.rows.saturating_sub(1));
        self.push(Style::Warning, &format!("no new status: {problem}"));
    }

    fn push(&mut self, style: Style, text: &str) {
        let clean: String = text
            .chars()
            .map(|char| if char.is_control() { ' ' } else { char })
            .take(self.size.columns)
            .collect();
        self.lines.push(Line { text: clean, style });
    }

    fn push_server(&mut self, change: Change<'_>) {
        let now = change.now;
        let text = |key: &str| show(&now[key]);
        self.push(
            Style::Heading,
            &format!(
                "penstock {} {}, pid {}, up {}, {} of {} connections",
                text("version"),
                text("state"),
                text("pid"),
                show_time(now["uptime_seconds"].as_f64()),
                show(&now["connections"]["used"]),
                show(&now["connections"]["max"]),
            ),
        );
        let status = |class: usize| {
            let rate = change.rate(|it| it["traffic"]["responses"][class].as_f64());
            format!("{}xx {}", class + 1, show_rate(rate))
        };
        let statuses: Vec<_> = (1..5).map(status).collect();
        let workers = now["worker_bytes"].as_f64().unwrap_or_default();
        let memory = now["resident_bytes"]
            .as_f64()
            .map(|server| server + workers);
        self.push(
            Style::Plain,
            &format!(
                "{} requests/s   {} in progress   {}   memory {}",
                show_rate(change.rate(|it| it["traffic"]["requests_total"].as_f64())),
                show(&now["traffic"]["active"]),
                statuses.join("  "),
                show_bytes(memory),
            ),
        );
    }

    /// Problems, and changes that an administrator should not forget.
    fn push_notices(&mut self, now: &Value) {
        for problem in items(&now["problems"]) {
            let [severity, text] = ["severity", "text"].map(|key| show(&problem[key]));
            self.push(Style::Warning, &format!("{severity}: {text}"));
        }
        for rule in items(&now["maintenance"]["rules"]) {
            let site = rule["site"].as_str().unwrap_or("all sites");
            self.push(Style::Warning, &format!("maintenance of {site}"));
        }
        for pause in items(&now["pauses"]) {
            let [kind, name, waiting] = ["kind", "name", "waiting"].map(|key| show(&pause[key]));
            let text = format!("{kind} {name} is paused, {waiting} requests wait");
            self.push(Style::Warning, &text);
        }
    }

    fn push_apps(&mut self, change: Change<'_>) {
        let widths = [20, 10, 8, 8, 9, 8, 10];
        let heading = [
            "APPLICATION",
            "STATE",
            "REQ/S",
            "QUEUED",
            "BUSY",
            "WORKERS",
            "MEMORY",
        ];
        let rows = items(&change.now["apps"]).map(|app| {
            let queue = &app["queue"];
            let memory: f64 = items(&app["workers"])
                .filter_map(|worker| {
                    let own = worker["proportional_bytes"].as_f64();
                    own.or_else(|| worker["resident_bytes"].as_f64())
                })
                .sum();
            [
                show(&app["name"]),
                show(&app["state"]),
                show_rate(change.rate_of("apps", app, |it| it["counters"]["requests"].as_f64())),
                show(&queue["length"]),
                format!("{}/{}", show(&queue["active"]), show(&queue["slots"])),
                show(&app["processes"]["ready"]),
                show_bytes(Some(memory)),
            ]
        });
        self.push_table(&heading, &widths, rows.collect());
    }

    fn push_upstreams(&mut self, change: Change<'_>) {
        let widths = [20, 10, 8, 8, 9, 8, 10];
        let heading = [
            "UPSTREAM", "SERVERS", "REQ/S", "QUEUED", "BUSY", "RETRIES", "FAILURES",
        ];
        let rows = items(&change.now["upstreams"]).map(|upstream| {
            let servers = || items(&upstream["servers"]);
            let up = || servers().filter(|server| server["state"] == "up").count();
            let sum = |key: &str| -> f64 { servers().filter_map(|it| it[key].as_f64()).sum() };
            [
                show(&upstream["name"]),
                format!("{}/{} up", up(), servers().count()),
                show_rate(change.rate_of("upstreams", upstream, |it| {
                    it["counters"]["requests"].as_f64()
                })),
                show(&upstream["queue"]["length"]),
                show_count(sum("active")),
                show(&upstream["counters"]["retries"]),
                show_count(sum("failures")),
            ]
        });
        self.push_table(&heading, &widths, rows.collect());
    }

    fn push_jobs(&mut self, now: &Value) {
        let heading = ["JOB", "RUNS", "LAST RUN", "RESULT", "NEXT RUN"];
        let rows = items(&now["jobs"]).map(jobs_text::job_cells).collect();
        self.push_table(&heading, &[20, 16, 21, 16, 20], rows);
    }

    /// The most frequent routes or clients, with their part of all requests.
    fn push_top(&mut self, top: &Value, key: &str, heading: &str) {
        const SHOWN: usize = 5;
        let total = top["requests"].as_f64().filter(|total| *total > 0.0);
        let Some(total) = total else {
            return;
        };
        let rows = items(&top[key]).take(SHOWN);
        let rows = rows.map(|entry| {
            let count = entry["requests"].as_f64().unwrap_or_default();
            let share = (100.0 * count / total).min(100.0);
            [show(&entry["name"]), format!("{share:.1} %")]
        });
        self.push_table(&[heading, "SHARE"], &[60, 8], rows.collect());
    }

    fn push_rules(&mut self, change: Change<'_>) {
        let rows = items(&change.now["rules"]).filter_map(|rule| {
            let counted = items(&rule["counts"]).filter(|it| it["requests"] != 0);
            let counts: Vec<_> = counted
                .map(|it| format!("{} {}", show(&it["requests"]), show(&it["outcome"])))
                .collect();
            let row = [show(&rule["route"]), show(&rule["rule"]), counts.join(", ")];
            (!counts.is_empty()).then_some(row)
        });
        self.push_table(
            &["ROUTE", "RULE", "REQUESTS"],
            &[36, 18, 60],
            rows.collect(),
        );
    }

    /// A table with an empty line before it; nothing without rows.
    fn push_table<const N: usize>(
        &mut self,
        heading: &[&str; N],
        widths: &[usize; N],
        rows: Vec<[String; N]>,
    ) {
        if rows.is_empty() {
            return;
        }
        self.push(Style::Plain, "");
        self.push(Style::Heading, &columns(heading, widths));
        for row in rows {
            let cells = row.each_ref().map(String::as_str);
            self.push(Style::Plain, &columns(&cells, widths));
        }
    }
}

impl Change<'_> {
    /// How much a counter grows in a second; `None` without two numbers.
    fn rate(self, counter: impl Fn(&Value) -> Option<f64>) -> Option<f64> {
        let (before, seconds) = self.before?;
        let grown = counter(self.now)? - counter(before)?;
        (seconds > 0.0).then(|| grown.max(0.0) / seconds)
    }

    /// The same of a part of the server, found again by its name.
    fn rate_of(
        self,
        list: &str,
        part: &Value,
        counter: impl Fn(&Value) -> Option<f64>,
    ) -> Option<f64> {
        let (before, seconds) = self.before?;
        let old = items(&before[list]).find(|old| old["name"] == part["name"])?;
        let grown = counter(part)? - counter(old)?;
        (seconds > 0.0).then(|| grown.max(0.0) / seconds)
    }
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// Cells in columns: the first is text, the last takes what is left.
fn columns<const N: usize>(cells: &[&str; N], widths: &[usize; N]) -> String {
    let padded = cells.iter().zip(widths).map(|(cell, width)| {
        let cell: String = match cell.chars().count() > *width {
            true => cell
                .chars()
                .take(width.saturating_sub(1))
                .chain(['…'])
                .collect(),
            false => (*cell).to_owned(),
        };
        format!("{cell:<width$}")
    });
    let line = padded.collect::<Vec<_>>().join(" ");
    line.trim_end().to_owned()
}

fn show(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn show_count(number: f64) -> String {
    format!("{number:.0}")
}

fn show_rate(rate: Option<f64>) -> String {
    match rate {
        None => "-".to_owned(),
        Some(rate) if rate < 10.0 => format!("{rate:.1}"),
        Some(rate) => format!("{rate:.0}"),
    }
}

fn show_bytes(bytes: Option<f64>) -> String {
    let Some(bytes) = bytes else {
        return "-".to_owned();
    };
    let units = [
        (1_073_741_824.0, "GiB"),
        (1_048_576.0, "MiB"),
        (1024.0, "KiB"),
    ];
    let unit = units.into_iter().find(|(size, _)| bytes >= *size);
    match unit {
        Some((size, name)) => format!("{:.1} {name}", bytes / size),
        None => format!("{bytes:.0} B"),
    }
}

fn show_time(seconds: Option<f64>) -> String {
    let Some(seconds) = seconds else {
        return "-".to_owned();
    };
    let units = [(86_400.0, "d"), (3600.0, "h"), (60.0, "min")];
    let unit = units.into_iter().find(|(size, _)| seconds >= *size);
    match unit {
        Some((size, name)) => format!("{:.1} {name}", seconds / size),
        None => format!("{seconds:.0} s"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(requests: u64) -> Value {
        json!({
            "version": "0.1.0", "state": "running", "pid": 7, "uptime_seconds": 125.0,
            "resident_bytes": 3_145_728, "worker_bytes": 524_288,
            "problems": [{ "severity": "error", "text": "The application b does not run." }],
            "jobs": [{
                "name": "nightly", "schedule": "at 03:30", "next_at": 1_795_923_000,
                "running_since": null,
                "last": { "started_at": 1_795_836_600, "outcome": "exit status 1" },
            }],
            "connections": { "used": 5, "max": 100 },
            "traffic": { "requests_total": requests, "active": 2, "responses": [0, requests, 0, 1, 0] },
            "maintenance": { "rules": [{ "site": null }], "refused": 0 },
            "pauses": [{ "kind": "app", "name": "shop\u{1b}[31m", "waiting": 3 }],
            "apps": [{
                "name": "shop", "state": "ready", "counters": { "requests": requests },
                "queue": { "length": 4, "active": 1, "slots": 2 }, "processes": { "ready": 2 },
                "workers": [{ "resident_bytes": 1_048_576, "proportional_bytes": 524_288 }, {}],
            }],
            "upstreams": [{
                "name": "an-upstream-with-a-long-name", "up": true,
                "counters": { "requests": 1, "retries": 2 }, "queue": { "length": 0 },
                "servers": [
                    { "active": 1, "failures": 3, "state": "up" },
                    { "active": 2, "failures": 4, "state": "down" },
                ],
            }],
            "top": {
                "requests": 200,
                "routes": [{ "name": "* /a", "requests": 150 }, { "name": "* /b", "requests": 50 }],
                "clients": [{ "name": "192.0.2.1", "requests": 100 }],
            },
            "rules": [
                { "route": "* /a", "rule": "access", "counts": [{ "outcome": "refused", "requests": 9 }] },
                { "route": "* /b", "rule": "cors", "counts": [{ "outcome": "answered", "requests": 0 }] },
            ],
        })
    }

    const LARGE: Size = Size {
        columns: 100,
        rows: 100,
    };

    #[test]
    fn a_frame_has_rates_tables_and_what_is_held_back() {
        let (before, now) = (status(100), status(124));
        let text = Frame::new(&now, Some((&before, 2.0)), LARGE).into_text();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "penstock 0.1.0 running, pid 7, up 2.1 min, 5 of 100 connections",
                "12 requests/s   2 in progress   2xx 12  3xx 0.0  4xx 0.0  5xx 0.0   memory 3.5 MiB",
                "error: The application b does not run.",
                "maintenance of all sites",
                "app shop [31m is paused, 3 requests wait",
                "",
                "APPLICATION          STATE      REQ/S    QUEUED   BUSY      WORKERS  MEMORY",
                "shop                 ready      12       4        1/2       2        512.0 KiB",
                "",
                "UPSTREAM             SERVERS    REQ/S    QUEUED   BUSY      RETRIES  FAILURES",
                "an-upstream-with-a-… 1/2 up     0.0      0        3         2        7",
                "",
                "JOB                  RUNS             LAST RUN              RESULT           NEXT RUN",
                "nightly              at 03:30         2026-11-28T03:30:00Z  exit status 1    2026-11-29T03:30:00Z",
                "",
                "TOP ROUTES                                                   SHARE",
                "* /a                                                         75.0 %",
                "* /b                                                         25.0 %",
                "",
                "TOP CLIENTS                                                  SHARE",
                "192.0.2.1                                                    50.0 %",
                "",
                "ROUTE                                RULE               REQUESTS",
                "* /a                                 access             9 refused",
            ]
        );
    }

    #[test]
    fn a_frame_fits_its_screen_whatever_the_status_lacks() {
        let small = Size {
            columns: 20,
            rows: 3,
        };
        let mut frame = Frame::new(&status(1), None, small);
        frame.set_problem("no server at 127.0.0.1:8090: connection refused");
        let lines = frame.lines();
        assert_eq!(lines.len(), 3);
        assert!(
            lines.iter().all(|line| line.text.chars().count() <= 20),
            "{lines:?}"
        );
        assert_eq!(lines[2].to_ansi(), "\x1b[1;31mno new status: no se\x1b[0m");
        let text = Frame::new(&json!({}), None, LARGE).into_text();
        assert!(
            text.starts_with("penstock - -, pid -, up -, - of - connections\n-"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 2);
    }
}
