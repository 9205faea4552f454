//! Writes a report to the terminal and to files of each kind.

#![allow(
    clippy::disallowed_methods,
    reason = "files are written after the measurement"
)]

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use crate::command::{OutputArguments, RenderArguments, VerbResult};
use crate::report::Report;
use crate::{csv, html, report_file, text};

/// Prints a report and saves it to the requested files.
///
/// # Errors
/// A file cannot be written; the text names it.
pub(crate) fn write_report(report: &Report, to: &OutputArguments) -> Result<(), Box<dyn Error>> {
    let prints_json = to.json.as_deref() == Some(Path::new("-"));
    if prints_json {
        print(&serde_json::to_string_pretty(report)?);
    } else {
        print(&text::report_text(report));
        if let Some(path) = &to.json {
            report_file::write(path, report)?;
        }
    }
    let named = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    if let Some(path) = &to.html {
        std::fs::write(path, html::report_html(report)).map_err(|error| named(path, error))?;
    }
    if let Some(path) = &to.csv {
        std::fs::write(path, csv::report_csv(report)).map_err(|error| named(path, error))?;
    }
    if let Some(folder) = &to.svg {
        std::fs::create_dir_all(folder).map_err(|error| named(folder, error))?;
        for (name, svg) in html::chart_svgs(report) {
            let path = folder.join(name);
            std::fs::write(&path, svg).map_err(|error| named(&path, error))?;
        }
    }
    for (path, what) in [
        (&to.json, "json"),
        (&to.html, "html"),
        (&to.csv, "csv"),
        (&to.svg, "svg"),
    ] {
        if let Some(path) = path.as_deref().filter(|path| *path != Path::new("-")) {
            // Standard error may be closed.
            let _ = writeln!(std::io::stderr(), "{what}: {}", path.display());
        }
    }
    Ok(())
}

/// `bench render`: shows a saved report.
pub(crate) fn render(arguments: &RenderArguments) -> VerbResult {
    let report = report_file::read(&arguments.file)?;
    write_report(&report, &arguments.output)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints to standard output.
pub(crate) fn print(text: &str) {
    let end = if text.ends_with('\n') { "" } else { "\n" };
    // The reader may have closed the pipe.
    let _ = write!(std::io::stdout(), "{text}{end}");
}

/// Prints to standard error why nothing was measured; the text may include an external log.
pub(crate) fn print_error(why: &str) {
    let _ = writeln!(
        std::io::stderr(),
        "penstock: {}",
        text::units::sanitize(why)
    );
}
