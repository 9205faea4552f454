//! Saved reports: JSON files, and their schema.
//!
//! `output` writes reports and reads them for `bench render`; `compare` reads two.
//!
//! # Invariants
//!
//! - A file is written whole or not at all: to a temporary name, then renamed.
//! - A file that is not a valid report is refused with its name, as it may have been edited.

#![allow(
    clippy::disallowed_methods,
    reason = "reports are read and written before and after a load, never on a loop"
)]

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde::Deserialize;

use crate::report::{FORMAT_VERSION, Report};

/// Writes a report as JSON, whole or not at all.
///
/// # Errors
/// The file could not be written; it is unchanged then. The text names it.
pub(crate) fn write(path: &Path, report: &Report) -> Result<(), String> {
    let written = serde_json::to_vec_pretty(report).map_err(io::Error::from);
    let written = written.and_then(|json| write_atomically(path, &json));
    written.map_err(|cause| format!("{}: {cause}", path.display()))
}

fn write_atomically(path: &Path, json: &[u8]) -> io::Result<()> {
    // A pipe or a terminal cannot be replaced by a file.
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        let mut file = File::options().write(true).open(path)?;
        file.write_all(json)?;
        return file.write_all(b"\n");
    }
    let mut file = tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(path.parent().unwrap_or(path))?;
    file.write_all(json)?;
    file.write_all(b"\n")?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

/// Reads a saved report.
///
/// # Errors
/// There is no such file, or it holds no report of [`FORMAT_VERSION`]. The text names it.
pub(crate) fn read(path: &Path) -> Result<Report, String> {
    let name = path.display();
    let json = fs::read(path).map_err(|cause| format!("{name}: {cause}"))?;
    let refuse = |cause| format!("{name}: not a report of penstock bench: {cause}");
    // The version first: other formats are unknown.
    let FormatVersion { format } = serde_json::from_slice(&json).map_err(refuse)?;
    if format != u64::from(FORMAT_VERSION) {
        return Err(format!(
            "{name}: a report of format {format}; this program reads format {FORMAT_VERSION}"
        ));
    }
    serde_json::from_slice(&json).map_err(refuse)
}

#[derive(Deserialize)]
struct FormatVersion {
    format: u64,
}

/// The JSON schema of reports; ends with a line break.
pub(crate) fn json_schema() -> String {
    let schema = schemars::schema_for!(Report);
    // A schema consists of strings and lists, which never fail to serialise.
    let json = serde_json::to_string_pretty(&schema).unwrap_or_default();
    json + "\n"
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::report::test_reports;
    use crate::text;

    fn folder() -> PathBuf {
        let folder = std::env::temp_dir().join(format!(
            "penstock-saved-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn what_was_written_is_read() {
        let folder = folder();
        let path = folder.join("report.json");
        for (kind, report) in test_reports::all_reports() {
            write(&path, &report).unwrap();
            // Compared as text: the last binary digit of a number may differ.
            assert!(
                text::report_text(&read(&path).unwrap()) == text::report_text(&report),
                "{kind}"
            );
            let json = fs::read_to_string(&path).unwrap();
            assert!(
                json.contains(&format!("\n  \"kind\": \"{kind}\"")),
                "{kind}"
            );
        }
        assert_eq!(
            fs::read_dir(&folder).unwrap().count(),
            1,
            "nothing else is left"
        );
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn refuses_what_is_no_report_and_names_the_file() {
        let folder = folder();
        let path = folder.join("bad.json");
        for (content, expected) in [
            ("", "bad.json: not a report of penstock bench: EOF"),
            ("[1,", "bad.json: not a report of penstock bench: "),
            ("{}", "missing field `format`"),
            (
                "{\"format\": 3}",
                "bad.json: a report of format 3; this program reads format 2",
            ),
            ("{\"format\": 2}", "missing field"),
            (
                "{\"format\": 2, \"context\": 7}",
                "not a report of penstock bench: ",
            ),
        ] {
            fs::write(&path, content).unwrap();
            let error = read(&path).unwrap_err();
            assert!(error.contains(expected), "{content}: {error}");
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let path = Path::new("/nowhere/at/all/report.json");
        let (_, report) = test_reports::all_reports().remove(0);
        for error in [write(path, &report).unwrap_err(), read(path).unwrap_err()] {
            assert!(
                error.starts_with("/nowhere/at/all/report.json: "),
                "{error}"
            );
        }
    }

    #[test]
    fn reports_saved_in_the_past_are_read() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        for (kind, report) in test_reports::all_reports() {
            let old = read(&folder.join(format!("report-{kind}.json"))).unwrap();
            assert!(
                text::report_text(&old) == text::report_text(&report),
                "{kind}"
            );
        }
    }

    #[test]
    fn fields_that_came_later_may_be_missing() {
        let folder = folder();
        let path = folder.join("old.json");
        write(&path, &test_reports::run_report()).unwrap();
        let mut json: serde_json::Value =
            serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        for later in ["unfinished", "oldest_unfinished_us", "retried"] {
            let figures = json["figures"].as_object_mut().unwrap();
            assert!(figures.remove(later).is_some(), "{later}");
        }
        fs::write(&path, json.to_string()).unwrap();
        let old = read(&path).unwrap();
        assert!(!text::report_text(&old).contains("Sent again"));
        let (_, hold) = test_reports::all_reports().remove(test_reports::all_reports().len() - 1);
        write(&path, &hold).unwrap();
        let mut json: serde_json::Value =
            serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let cost = json["cost"].as_object_mut().unwrap();
        assert!(cost.remove("kernel_bytes_per_stream_median").is_some());
        fs::write(&path, json.to_string()).unwrap();
        assert!(!text::report_text(&read(&path).unwrap()).contains("median"));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_committed_schema_is_the_present_one() {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/bench-report.schema.json");
        let committed = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == json_schema(),
            "stale: penstock bench schema > docs/bench-report.schema.json"
        );
    }
}
