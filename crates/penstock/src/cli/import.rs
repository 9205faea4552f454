//! `penstock import FILE`: a configuration of another server as a `penstock.toml`.
//!
//! The text goes to standard output or to a file, the report to standard error.

use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use penstock_import::{IncludeReader, ServerKind, Translation};

use super::CliError;

/// The arguments of `import`.
#[derive(Debug, Args)]
pub(super) struct ImportArguments {
    /// The file: nginx.conf, Caddyfile, haproxy.cfg, gunicorn.conf.py, puma.rb, unicorn.rb,
    /// uwsgi.ini, Procfile or Passengerfile.json
    file: PathBuf,
    /// The server that the file is for [default: told by its name and text]
    #[arg(long, value_name = "KIND", value_parser = parse_kind)]
    from: Option<ServerKind>,
    /// Write here in place of standard output
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,
    /// Replace a file that is there
    #[arg(long, requires = "output")]
    force: bool,
    /// The form of the report on standard error
    #[arg(long, value_name = "FORM", value_enum, default_value_t = ReportForm::Text)]
    report: ReportForm,
}

/// A form of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ReportForm {
    /// A line for each directive, and a summary
    Text,
    /// One JSON object
    Json,
    /// The summary alone
    Summary,
}

pub(super) fn run(arguments: &ImportArguments) -> Result<String, CliError> {
    let text = read_text(&arguments.file).map_err(|error| {
        CliError::Usage(format!(
            "{}: cannot be read: {error}",
            arguments.file.display()
        ))
    })?;
    let dir = arguments
        .output
        .as_deref()
        .and_then(|output| application_dir(&arguments.file, output));
    let made = penstock_import::import_from_dir(
        &arguments.file,
        &text,
        arguments.from,
        &DiskReader,
        dir.as_deref(),
    );
    let made = made.map_err(|error| CliError::Usage(error.to_string()))?;
    let printed = match &arguments.output {
        Some(path) => {
            write_file(path, &made.toml, arguments.force)?;
            String::new()
        }
        None => made.toml.trim_end().to_owned(),
    };
    print_report(&made, arguments.report);
    Ok(printed)
}

/// The folder of the file that is imported, if the configuration is written to another one.
fn application_dir(file: &Path, output: &Path) -> Option<PathBuf> {
    let folder = |path: &Path| {
        let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
        parent.unwrap_or_else(|| Path::new(".")).canonicalize().ok()
    };
    let dir = folder(file)?;
    (folder(output)? != dir).then_some(dir)
}

fn print_report(made: &Translation, form: ReportForm) {
    let text = match form {
        ReportForm::Text => made.report.to_text(),
        ReportForm::Json => made.report.to_json(),
        ReportForm::Summary => made.report.summary(),
    };
    // Standard error may be closed.
    let _ = writeln!(io::stderr(), "{text}");
}

/// Writes a new file; with `may_replace` also over an old one.
pub(super) fn write_file(path: &Path, text: &str, may_replace: bool) -> Result<(), CliError> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true);
    match may_replace {
        true => options.create(true).truncate(true),
        false => options.create_new(true),
    };
    let written = options
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| {
        let name = path.display();
        match error.kind() {
            io::ErrorKind::AlreadyExists => {
                CliError::Usage(format!("{name}: is there already: --force replaces it"))
            }
            _ => CliError::Failed(format!("{name}: cannot be written: {error}")),
        }
    })
}

/// Most bytes that are read of a file: one more than an import takes.
const MAX_BYTES: u64 = 5 << 20;

/// The text of a regular file.
pub(super) fn read_text(path: &Path) -> io::Result<String> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut bytes = Vec::new();
    let file = std::fs::OpenOptions::new().read(true).open(path)?;
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads included files from disk.
struct DiskReader;

impl IncludeReader for DiskReader {
    fn read(&self, path: &Path) -> io::Result<String> {
        read_text(path)
    }

    fn names(&self, directory: &Path) -> io::Result<Vec<String>> {
        let directory = if directory.as_os_str().is_empty() {
            Path::new(".")
        } else {
            directory
        };
        let names = std::fs::read_dir(directory)?.map(|entry| {
            let name = entry?.file_name();
            Ok(name.to_string_lossy().into_owned())
        });
        names.collect()
    }
}

/// Parses the value of `--from`.
fn parse_kind(text: &str) -> Result<ServerKind, String> {
    ServerKind::from_name(text).ok_or_else(|| {
        let names = ServerKind::ALL.map(ServerKind::as_str);
        format!("expected one of {}", names.join(", "))
    })
}
