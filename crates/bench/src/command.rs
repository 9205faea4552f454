//! The command line of `penstock bench`: the arguments of its verbs, and the function of each.
//!
//! `penstock`'s command line embeds [`Command`] and calls [`Command::run`]. Exit codes: 0 measured
//! and clean; 1 a request failed or got 4xx or 5xx, a goal was missed, or a saved figure became
//! worse; 2 not measured; 130 ended by Ctrl-C, with the report so far.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::connection_steps::ConnectionSteps;
use crate::hold::{self, HoldArguments};
use crate::load::RequestOrder;
use crate::scenario::CoreAssignment;
use crate::tls::TlsArguments;
use crate::{compare, deploy, load, report_file, run, scenario, sweep};

/// A request failed or got an error response.
pub(crate) const EXIT_FAILED: u8 = 1;
/// Nothing could be measured.
pub(crate) const EXIT_NOT_MEASURED: u8 = 2;
/// Ended by a signal.
pub(crate) const EXIT_INTERRUPTED: u8 = 130;

/// The exit code of a verb, or why nothing could be measured.
pub(crate) type VerbResult = Result<ExitCode, Box<dyn Error>>;

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Put a load on a server and report latency, throughput and errors
    Run(Box<RunArguments>),
    /// Run a load at one concurrency after the other, with charts
    Sweep(Box<SweepArguments>),
    /// Measure several deployments in turn and rank them, or compare two saved reports
    Compare(Box<CompareArguments>),
    /// Put several loads on a server at once, each with its own figures
    Mix(Box<MixArguments>),
    /// Open and hold many streams, and measure which messages arrive, and when
    Hold(Box<HoldArguments>),
    /// Print or draw a saved report
    Render(RenderArguments),
    /// Print the JSON Schema of the reports
    Schema,
    /// Hold the processes of a deployment; `compare` starts it
    #[command(hide = true)]
    Keeper,
    /// Hold a share of the streams; `hold` starts it
    #[command(hide = true)]
    HoldAgent,
}

/// The requests.
#[derive(Debug, Args)]
pub struct RequestArguments {
    /// `http://HOST:PORT/PATH`, `https://...` or `unix:/PATH/OF.sock`; several are mixed by
    /// --weights
    #[arg(required = true, value_name = "URL")]
    pub urls: Vec<String>,
    /// Relative frequency of each URL
    #[arg(long, value_delimiter = ',', value_name = "N,N")]
    pub weights: Vec<u32>,
    /// Connect to this Unix socket instead of the URL's host
    #[arg(long, value_name = "SOCKET")]
    pub unix: Option<PathBuf>,
    /// Request the paths in this file, one per line, at the URL's host
    #[arg(long, value_name = "FILE")]
    pub paths: Option<PathBuf>,
    /// Order of the URLs or paths
    #[arg(long, value_enum, default_value_t = RequestOrder::Random)]
    pub order: RequestOrder,
    /// Request method
    #[arg(short = 'X', long, default_value = "GET")]
    pub method: String,
    /// Header field; may be repeated
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    pub headers: Vec<String>,
    /// Send this file as the body
    #[arg(long, value_name = "FILE")]
    pub body: Option<PathBuf>,
    /// Open a new connection for each request
    #[arg(long)]
    pub no_keepalive: bool,
    /// Time-out for connecting (with the TLS handshake) and for a response
    #[arg(long, default_value = "10s", value_parser = parse_duration, value_name = "TIME")]
    pub timeout: Duration,
    #[command(flatten)]
    pub tls: TlsArguments,
}

/// The generator, and the server's processes.
#[derive(Debug, Args)]
pub struct GeneratorArguments {
    /// Threads that send requests
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
    /// Pin the threads to this core
    #[arg(long, value_name = "N")]
    pub core: Option<usize>,
    /// Measure CPU time and memory of this process and its children
    #[arg(long, value_name = "PID", conflicts_with = "admin")]
    pub pid: Option<u32>,
    /// Measure the process of the Penstock with this admin address
    #[arg(long, value_name = "ADDR")]
    pub admin: Option<String>,
    /// Show no progress
    #[arg(short, long)]
    pub quiet: bool,
}

/// Files for the report.
#[derive(Debug, Default, Args)]
pub struct OutputArguments {
    /// Save the report as JSON; `-` prints it instead of the text
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Save it as one HTML page with charts
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Save its points as CSV
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Save its charts as SVG files in this folder
    #[arg(long, value_name = "FOLDER")]
    pub svg: Option<PathBuf>,
}

/// The arguments of `run`.
#[derive(Debug, Args)]
pub struct RunArguments {
    #[command(flatten)]
    pub(crate) request: RequestArguments,
    /// Concurrent connections
    #[arg(short, long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) connections: u32,
    /// End after this many requests
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "duration", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) requests: Option<u64>,
    /// End after this time [default: 10s]
    #[arg(short, long, value_parser = parse_duration, value_name = "TIME")]
    pub(crate) duration: Option<Duration>,
    /// Requests per second, independent of the server; latency counts from their intended start
    #[arg(long, value_name = "N", value_parser = parse_rate)]
    pub(crate) rate: Option<f64>,
    /// Run the same load before the measurement for this time
    #[arg(long, default_value = "0s", value_parser = parse_duration, value_name = "TIME")]
    pub(crate) warm_up: Duration,
    #[command(flatten)]
    pub(crate) generator: GeneratorArguments,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

/// The arguments of `sweep`.
#[derive(Debug, Args)]
pub struct SweepArguments {
    #[command(flatten)]
    pub(crate) request: RequestArguments,
    /// Connections of the first point
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) from: u32,
    /// Maximum connections
    #[arg(long, default_value_t = 500, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) to: u32,
    /// Connections added from point to point [default: 10]
    #[arg(long, value_name = "N", conflicts_with = "factor", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) step: Option<u32>,
    /// Multiply the connections from point to point
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) factor: Option<u32>,
    /// Requests at each point [default: 1000]
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "duration", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) requests: Option<u64>,
    /// Duration of each point
    #[arg(short, long, value_parser = parse_duration, value_name = "TIME")]
    pub(crate) duration: Option<Duration>,
    /// Run the same load before each point for this time
    #[arg(long, default_value = "500ms", value_parser = parse_duration, value_name = "TIME")]
    pub(crate) warm_up: Duration,
    /// Pause after each point
    #[arg(long, default_value = "200ms", value_parser = parse_duration, value_name = "TIME")]
    pub(crate) cool_down: Duration,
    /// Requests per second at each point, independent of the server
    #[arg(long, value_name = "N", value_parser = parse_rate)]
    pub(crate) rate: Option<f64>,
    /// Write FILE.html, FILE.csv and FILE.json
    #[arg(short, long, default_value = "sweep", value_name = "FILE")]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) generator: GeneratorArguments,
}

/// The arguments of `mix`.
#[derive(Debug, Args)]
pub struct MixArguments {
    #[command(flatten)]
    pub(crate) request: RequestArguments,
    /// Load such as `name=hot c=50 path=/hot`, also with paths=FILE, order= or rate=; may be
    /// repeated
    #[arg(long = "load", required = true, value_name = "KEY=VALUE ...")]
    pub(crate) loads: Vec<String>,
    /// Duration of the measurement
    #[arg(short, long, default_value = "10s", value_parser = parse_duration, value_name = "TIME")]
    pub(crate) duration: Duration,
    /// Run the same loads before the measurement for this time
    #[arg(long, default_value = "0s", value_parser = parse_duration, value_name = "TIME")]
    pub(crate) warm_up: Duration,
    #[command(flatten)]
    pub(crate) generator: GeneratorArguments,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

/// The arguments of `compare`.
#[derive(Debug, Args)]
pub struct CompareArguments {
    /// A scenario (FILE.toml), or two saved reports (A.json B.json)
    #[arg(required = true, num_args = 1..=2, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Measure only deployments whose name contains this; may be repeated
    #[arg(long, value_name = "TEXT")]
    pub(crate) only: Vec<String>,
    /// Rounds, instead of the scenario's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: Option<u32>,
    /// Connections, instead of the scenario's: 16,128 or FROM:TO:STEP or FROM:TO:xFACTOR
    #[arg(long, value_name = "LIST")]
    pub(crate) connections: Option<ConnectionSteps>,
    /// Requests at each point, instead of the scenario's
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "duration", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) requests: Option<u64>,
    /// Duration of each point, instead of the scenario's
    #[arg(short, long, value_parser = parse_duration, value_name = "TIME")]
    pub(crate) duration: Option<Duration>,
    /// Warm-up before each point, instead of the scenario's
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    pub(crate) warm_up: Option<Duration>,
    /// Pin the servers to the first core and the load to the second
    #[arg(long, value_name = "N,N", value_parser = parse_cores)]
    pub(crate) cores: Option<CoreAssignment>,
    /// Do not run the scenario's set-up
    #[arg(long)]
    pub(crate) no_setup: bool,
    /// Show no progress
    #[arg(short, long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

/// The arguments of `render`.
#[derive(Debug, Args)]
pub struct RenderArguments {
    /// A saved report
    #[arg(value_name = "FILE.json")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

impl Command {
    /// Runs the verb.
    #[must_use]
    pub fn run(self) -> ExitCode {
        // At once, so that all deployments of a comparison inherit the same limit.
        load::raise_descriptor_limit();
        let done = match self {
            Self::Run(arguments) => run::run(&arguments),
            Self::Sweep(arguments) => sweep::run(&arguments),
            Self::Compare(arguments) => compare::run(&arguments),
            Self::Mix(arguments) => run::mix(&arguments),
            Self::Hold(arguments) => hold::run(&arguments),
            Self::Render(arguments) => crate::output::render(&arguments),
            Self::Schema => {
                crate::output::print(&report_file::json_schema());
                Ok(ExitCode::SUCCESS)
            }
            Self::Keeper => return deploy::run_keeper(),
            Self::HoldAgent => return hold::run_agent(),
        };
        done.unwrap_or_else(|why| {
            crate::output::print_error(&why.to_string());
            ExitCode::from(EXIT_NOT_MEASURED)
        })
    }
}

pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    scenario::parse_duration(text)
        .ok_or_else(|| "no duration such as 500ms, 10s, 2m, or more than a year".to_owned())
}

pub(crate) fn parse_rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    match rate > 0.0 && rate <= 10_000_000.0 {
        true => Ok(rate),
        false => Err("a rate is more than 0 and at most 10000000 a second".to_owned()),
    }
}

fn parse_cores(text: &str) -> Result<CoreAssignment, String> {
    let wrong = || "two core numbers such as 0,1".to_owned();
    let (server, load) = text.split_once(',').ok_or_else(wrong)?;
    let read = |text: &str| text.trim().parse().map_err(|_| wrong());
    Ok(CoreAssignment {
        server: read(server)?,
        load: read(load)?,
    })
}
