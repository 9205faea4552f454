//! Formats the jobs that run at times for a terminal (`penstock status` and `penstock top`).
//!
//! Pure: a status may be of another version of the server, and a missing value is printed as `-`.

use penstock_status::format_date;
use serde_json::Value;

use super::status_text::format_value;

/// The line of a job: `job nightly: at 03:30, last run 2026-11-28T03:30:00Z exit status 0 in 1.5 s,
/// next run 2026-11-29T03:30:00Z, 4 succeeded, 1 failed`.
pub(super) fn format_job(job: &Value) -> String {
    let [name, schedule] = ["name", "schedule"].map(|key| format_value(&job[key]));
    let mut line = format!("job {name}: {schedule}, {}", describe_last_run(job));
    if let Some(since) = job["running_since"].as_u64() {
        let pid = format_value(&job["pid"]);
        line.push_str(&format!(
            ", running since {} (pid {pid})",
            format_date(since)
        ));
    }
    line.push_str(&format!(", next run {}", show_next_run(job)));
    for (key, what) in [
        ("succeeded", "succeeded"),
        ("failed", "failed"),
        ("skipped", "left out"),
    ] {
        if let Some(count) = job["runs"][key].as_u64().filter(|count| *count > 0) {
            line.push_str(&format!(", {count} {what}"));
        }
    }
    line
}

/// The cells of a job in a table: name, schedule, last run, result, next run.
pub(super) fn job_cells(job: &Value) -> [String; 5] {
    let last = &job["last"];
    let started = last["started_at"].as_u64();
    let result = match (job["running_since"].as_u64(), started) {
        (Some(_), _) => "running".to_owned(),
        (None, None) => "-".to_owned(),
        (None, Some(_)) => format_value(&last["outcome"]),
    };
    [
        format_value(&job["name"]),
        format_value(&job["schedule"]),
        started.map_or_else(|| "never".to_owned(), format_date),
        result,
        show_next_run(job),
    ]
}

fn describe_last_run(job: &Value) -> String {
    let last = &job["last"];
    let Some(started) = last["started_at"].as_u64() else {
        return "never run".to_owned();
    };
    let (date, outcome) = (format_date(started), format_value(&last["outcome"]));
    let seconds = last["seconds"].as_f64().unwrap_or_default();
    format!("last run {date} {outcome} in {seconds:.1} s")
}

fn show_next_run(job: &Value) -> String {
    job["next_at"]
        .as_u64()
        .map_or_else(|| "-".to_owned(), format_date)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_job_says_how_it_ran_and_when_it_runs_next() {
        let mut job = json!({
            "name": "nightly", "schedule": "at 03:30", "next_at": 1_795_923_000, "pid": null,
            "running_since": null, "runs": { "succeeded": 4, "failed": 1, "skipped": 0 },
            "last": {
                "started_at": 1_795_836_600, "seconds": 1.46, "outcome": "exit status 1",
                "succeeded": false,
            },
        });
        assert_eq!(
            format_job(&job),
            "job nightly: at 03:30, last run 2026-11-28T03:30:00Z exit status 1 in 1.5 s, next run \
             2026-11-29T03:30:00Z, 4 succeeded, 1 failed"
        );
        let cells = [
            "nightly",
            "at 03:30",
            "2026-11-28T03:30:00Z",
            "exit status 1",
            "2026-11-29T03:30:00Z",
        ];
        assert_eq!(job_cells(&job), cells);
        (job["running_since"], job["pid"]) = (json!(1_795_836_660), json!(77));
        (job["last"], job["next_at"]) = (Value::Null, Value::Null);
        job["runs"] = json!({});
        assert_eq!(
            format_job(&job),
            "job nightly: at 03:30, never run, running since 2026-11-28T03:31:00Z (pid 77), next run -"
        );
        assert_eq!(job_cells(&job)[2..], ["never", "running", "-"]);
    }
}
