//! Defines the command line and runs the chosen verb.
//!
//! # Invariants
//!
//! - Verbs and flags are stable, since scripts depend on them: add, never rename.
//! - A verb prints its result to standard output and its errors to standard error.

mod admin;
mod celery;
mod certificates;
mod check;
mod completions;
mod config;
mod familiar;
mod foreign_file;
mod framework_words;
mod hash_password;
mod import;
mod init;
mod jobs_text;
mod man;
mod publish;
mod run;
mod running_servers;
mod serve;
mod start_report;
mod status_text;
mod target;
mod top;
mod traffic;
mod trust;

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::error::ContextKind;
use clap::{Args, Parser, Subcommand};
use penstock_config::{
    AdminOverride, AppKind, FlagTranslation, HostPattern, Invocation, ListenAddr, WorkOptions,
};

/// Serves web applications, from a directory to production traffic.
#[derive(Debug, Parser)]
#[command(version, long_version = LONG_VERSION, args_conflicts_with_subcommands = true)]
#[command(after_help = familiar::SUMMARY, after_long_help = "")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    serve: Box<ServeArguments>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Serve a directory, a module:callable, a config.ru or a configuration file (the default verb)
    #[command(after_help = familiar::SUMMARY, after_long_help = "")]
    Serve(Box<ServeArguments>),
    /// Join a front-end server and serve requests for it
    Work(WorkArguments),
    /// Check a configuration and everything else that a start needs; exits with 0 or 2
    Check(CheckArguments),
    /// Show the status of a running server
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        to: ServerLocation,
    },
    /// Watch a running server: requests, queues, workers, upstreams, routes and clients; `q` quits
    Top {
        /// Print one frame, for pipes and files
        #[arg(long)]
        once: bool,
        #[command(flatten)]
        to: ServerLocation,
    },
    /// Show the certificates of a running server, those that need attention first
    Certificates {
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        to: ServerLocation,
    },
    /// Make browsers and programs of this machine trust the local certificate authority
    ///
    /// Its certificate is local-authority/root.pem in /var/lib/penstock for a server that root
    /// starts, and in ~/.local/share/penstock for others.
    Trust {
        /// Remove the authority from where it is trusted
        #[arg(long)]
        remove: bool,
    },
    /// Reload the configuration; the old one stays active unless all of the new one works
    Reload {
        #[command(flatten)]
        to: ServerLocation,
    },
    /// Finish the requests in progress and stop
    Stop {
        #[command(flatten)]
        to: ServerLocation,
    },
    /// Replace the server by a new process of its program, without refusing a request
    Upgrade {
        /// The new program [default: the running one, by the path it was started by]
        #[arg(long, value_name = "PATH")]
        binary: Option<PathBuf>,
        #[command(flatten)]
        to: ServerLocation,
    },
    /// Reopen the log files, for example after a rename
    Reopen {
        #[command(flatten)]
        to: ServerLocation,
    },
    /// Reload an application's code, without refusing a request
    Restart {
        /// The application's or job's name [default: the only application]
        app: Option<String>,
        #[command(flatten)]
        to: ServerLocation,
    },
    /// Let new requests to an application or upstream wait; those in progress finish
    Pause {
        /// The application's or upstream's name
        name: String,
        /// How long a request may wait; after that time requests get 503 until `resume`
        #[arg(long = "for", value_name = "TIME", default_value = "30s", value_parser = parse_time)]
        max_wait: Duration,
        #[command(flatten)]
        to: ServerLocation,
    },
    /// Send requests to a paused application or upstream again
    Resume {
        /// The application's or upstream's name
        name: String,
        #[command(flatten)]
        to: ServerLocation,
    },
    /// Answer 503 to all clients but those of some networks, or end that
    Maintenance {
        #[command(flatten)]
        what: traffic::MaintenanceArguments,
        #[command(flatten)]
        to: ServerLocation,
    },
    /// Publish a message to the subscribers of a channel
    Publish {
        #[command(flatten)]
        what: PublishArguments,
        #[command(flatten)]
        to: ServerLocation,
    },
    /// List the channels that have subscribers, with their number
    Channels {
        /// The channel's name, or the beginning of names and `*` [default: all]
        channel: Option<String>,
        /// The channels' namespace: an application's or upstream's name, or `hub` [default: all]
        #[arg(long, value_name = "NAME")]
        namespace: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        to: ServerLocation,
    },
    /// Remove responses from a running server's caches
    Purge {
        #[command(flatten)]
        what: PurgeArguments,
        /// Purge only the cache of this name
        #[arg(long, value_name = "NAME")]
        cache: Option<String>,
        #[command(flatten)]
        to: ServerLocation,
    },
    /// Run a command in the place of an application: its folder, variables and interpreter
    Run(RunArguments),
    /// Measure a server, or compare several
    Bench {
        #[command(subcommand)]
        verb: penstock_bench::Command,
    },
    /// Translate a configuration of another server to a penstock.toml, with a report
    Import(import::ImportArguments),
    /// Write a penstock.toml of what is found in a folder, to change it from there
    Init(init::InitArguments),
    /// Show documentation of the configuration file
    Config {
        #[command(subcommand)]
        topic: ConfigTopic,
    },
    /// Print the line of a user for the file that `basic_auth.users` names
    ///
    /// Asks for the password, or reads it from standard input. The hash is one of bcrypt.
    HashPassword {
        /// The user's name [default: print the hash alone]
        user: Option<String>,
    },
    /// Print completions of this command line for a shell
    Completions {
        /// The shell that is to read them
        shell: clap_complete::Shell,
    },
    /// Print a manual page, for `man -l -`
    Man {
        /// The page: penstock, penstock-VERB or penstock.toml
        #[arg(default_value = "penstock")]
        page: String,
        /// Write every page below this folder, to man1 and man5
        #[arg(long, value_name = "FOLDER", conflicts_with = "page")]
        all: Option<PathBuf>,
    },
}

/// What `--version` prints behind the name; `-V` prints the version alone.
const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit: ",
    env!("PENSTOCK_COMMIT"),
    "\ntarget: ",
    env!("PENSTOCK_TARGET"),
    "\nfeatures: tls, zstd, br, gzip, ",
    env!("PENSTOCK_ALLOCATOR"),
    " allocator",
);

#[derive(Debug, Args)]
struct ServeArguments {
    /// A directory, module:callable, config.ru or FILE.toml [default: penstock.toml here, else this
    /// directory]
    target: Option<String>,
    /// Listen on this address: 127.0.0.1:8080, :80 or unix:/run/x.sock; port 0 takes a free one
    #[arg(short, long, value_name = "ADDR")]
    listen: Vec<ListenAddr>,
    /// Listen with TLS on this address; needs --domain, or sites with `tls`
    #[arg(long, value_name = "ADDR")]
    listen_https: Vec<ListenAddr>,
    /// Serve HTTPS for this host, with a certificate that is got by itself; on ports 80 and 443
    /// unless --listen says others. `localhost` gets one of the local authority (penstock trust), on
    /// ports 8080 and 8443
    #[arg(long, value_name = "HOST", value_delimiter = ',', value_parser = parse_host)]
    domain: Vec<HostPattern>,
    /// The certificate authority: letsencrypt, letsencrypt-staging, zerossl or the URL of a
    /// directory [default: letsencrypt, or that of the configuration file]
    #[arg(long, value_name = "NAME")]
    acme_directory: Option<String>,
    /// Where the certificate authority writes about the account
    #[arg(long, value_name = "EMAIL")]
    acme_email: Option<String>,
    /// Serve the directory's files as they are, and run no code
    #[arg(long, conflicts_with_all = ["config", "kind"])]
    files: bool,
    /// Show causes and tracebacks on error pages; not for public servers
    #[arg(long)]
    dev: bool,
    #[command(flatten)]
    process: ProcessArguments,
    #[command(flatten)]
    familiar: FamiliarArguments,
}

/// The arguments of `check`.
#[derive(Debug, Args)]
struct CheckArguments {
    /// The configuration file or directory [default: penstock.toml here, else this directory]
    target: Option<String>,
    /// Configuration file
    #[arg(short, long, value_name = "FILE", conflicts_with = "target")]
    config: Option<PathBuf>,
    /// Without a configuration file: leave the folder's .env alone
    #[arg(long)]
    no_env_file: bool,
    /// Check only the configuration: bind no address, look up no name, load no application
    #[arg(long)]
    config_only: bool,
}

/// The arguments of `run`.
#[derive(Debug, Args)]
struct RunArguments {
    /// The application's or job's name [default: the only application]
    #[arg(long, value_name = "NAME")]
    app: Option<String>,
    /// Configuration file [default: penstock.toml here, else this directory]
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// The arguments of `work`.
#[derive(Debug, Args)]
struct WorkArguments {
    /// An application's name in the configuration file, or a target as for `serve`: a directory,
    /// module:callable or config.ru [default: penstock.toml here, else this directory]
    app: Option<String>,
    /// The front end's `server.join` address: HOST:PORT or unix:PATH
    #[arg(long, value_name = "ADDR")]
    join: String,
    /// The upstream to join [default: the application's name]
    #[arg(long, value_name = "NAME")]
    upstream: Option<String>,
    /// File with the key shared with the front end [default: `server.join` of the configuration
    /// file]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Join without TLS, for a front end with `tls = false` in `server.join`
    #[arg(long)]
    plain: bool,
    #[command(flatten)]
    process: ProcessArguments,
}

/// Arguments of the verbs that run applications.
#[derive(Debug, Args)]
struct ProcessArguments {
    /// Configuration file
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address of the status page and the admin interface, or `off`
    #[arg(long, value_name = "ADDR")]
    admin: Option<AdminOverride>,
    /// Number of worker processes of each application
    #[arg(long, value_name = "N")]
    processes: Option<usize>,
    /// Apply GRIP instructions of applications: they hold connections, and publish at the GRIP_URL
    /// of their workers
    #[arg(long)]
    grip: bool,
    /// The application's kind, instead of guessing from its code: wsgi, asgi or rack
    #[arg(long, value_name = "KIND", value_parser = parse_kind)]
    kind: Option<AppKind>,
    /// Without a configuration file: leave the folder's .env alone
    #[arg(long)]
    no_env_file: bool,
    /// Without a configuration file: start none of the Procfile's other programs
    #[arg(long)]
    no_jobs: bool,
    /// Number of threads in each worker process, or MIN:MAX
    #[arg(long, value_name = "N", value_parser = familiar::parse_threads)]
    threads: Option<ThreadCount>,
    /// Go to the background when everything is ready; exits with 1 if it does not get ready
    #[arg(long)]
    daemonize: bool,
    /// Server log file
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// File for the process id, from when everything is ready until the stop
    #[arg(long = "pid", alias = "pidfile", value_name = "FILE")]
    pid_file: Option<PathBuf>,
    /// Write a line to this file descriptor when everything is ready
    #[arg(long, value_name = "FD")]
    ready_fd: Option<i32>,
    /// Log more
    #[arg(short, long)]
    verbose: bool,
}

#[derive(Debug, Args)]
struct ServerLocation {
    /// The server's admin address or control socket (unix:PATH) [default: from penstock.toml here]
    #[arg(long, value_name = "ADDR")]
    admin: Option<ListenAddr>,
    /// Configuration file that names the admin address
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// The arguments of `publish`.
#[derive(Debug, Args)]
struct PublishArguments {
    /// The channel's name
    channel: String,
    /// The message [default: each line of standard input is one]
    message: Option<String>,
    /// The event type for browsers
    #[arg(long, value_name = "TYPE")]
    event: Option<String>,
    /// The message's id; a client that reconnects sends the last one it received
    #[arg(long, requires = "message")]
    id: Option<String>,
    /// The channel's namespace: an application's or upstream's name, or `hub` [default: the only
    /// one there is]
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
}

/// The responses to purge: exactly one of these.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct PurgeArguments {
    /// All variants of this URL: https://host/path?query, or /path?query for every host
    url: Option<String>,
    /// Every URL with this prefix
    #[arg(long, value_name = "URL")]
    prefix: Option<String>,
    /// Every response with this tag (surrogate key)
    #[arg(long)]
    tag: Option<String>,
    /// Everything
    #[arg(long)]
    all: bool,
}

#[derive(Debug, Subcommand)]
enum ConfigTopic {
    /// Print a commented example of a configuration file
    Example,
    /// Print the JSON Schema of the configuration file
    Schema,
    /// Explain one key, such as limits.header_timeout
    Explain {
        /// The key, with or without its table
        key: String,
    },
    /// As `penstock init`
    #[command(hide = true)]
    Init(init::InitArguments),
}

use self::familiar::{FamiliarArguments, ThreadCount};

pub(crate) use check::resolve_and_validate;
pub(crate) use running_servers::{RunningServer, find_running_servers};

/// The exit code for wrong usage or configuration.
const USAGE_EXIT_CODE: u8 = 2;

/// Parses the command line.
///
/// # Errors
/// The exit code, after usage, help or version have been printed.
pub(crate) fn parse() -> Result<Arguments, ExitCode> {
    Arguments::try_parse().map_err(|error| {
        match explain_flag(&error) {
            Some(text) => print_error(&text),
            // The reader may have closed the stream.
            None => drop(error.print()),
        }
        ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(USAGE_EXIT_CODE))
    })
}

/// Explains a flag of another server by the one to use here.
fn explain_flag(error: &clap::Error) -> Option<String> {
    let unknown = error.get(ContextKind::InvalidArg)?.to_string();
    let name = unknown.split('=').next()?;
    let Some(translation) = penstock_config::translate_flag(name) else {
        return config::explain_foreign_flag(name).map(|told| format!("unknown argument: {told}"));
    };
    let told = match translation {
        FlagTranslation::Flag(flag) => {
            format!("`{name}` of other servers is `{flag}` here: see penstock serve --help")
        }
        FlagTranslation::Key(table, key) => format!(
            "`{name}` of other servers is `{key}` in [{table}] of penstock.toml here: see penstock \
             config explain {table}.{key}"
        ),
        FlagTranslation::Verb(verb) => {
            format!("in place of `{name}` of other servers there is `penstock {verb}` here")
        }
        FlagTranslation::NotNeeded(why) => format!("leave `{name}` out: {why}"),
    };
    Some(format!("unknown argument: {told}"))
}

/// Why a verb did not succeed.
#[derive(Debug)]
enum CliError {
    /// Wrong usage or configuration.
    Usage(String),
    Failed(String),
    /// The verb has reported it, or another process serves.
    Reported(ExitCode),
}

impl From<String> for CliError {
    fn from(text: String) -> Self {
        Self::Failed(text)
    }
}

/// Runs the verb.
pub(crate) fn run(arguments: Arguments) -> ExitCode {
    match run_verb(arguments) {
        Ok(text) => {
            if !text.is_empty() {
                print_line(&text);
            }
            ExitCode::SUCCESS
        }
        Err(CliError::Usage(text)) => {
            print_error(&text);
            ExitCode::from(USAGE_EXIT_CODE)
        }
        Err(CliError::Failed(text)) => {
            print_error(&text);
            ExitCode::FAILURE
        }
        Err(CliError::Reported(exit)) => exit,
    }
}

/// Runs the verb; returns the result to print.
fn run_verb(arguments: Arguments) -> Result<String, CliError> {
    let done = match arguments.verb.unwrap_or(Verb::Serve(arguments.serve)) {
        Verb::Serve(arguments) => {
            let daemonizes = arguments.process.daemonize || arguments.familiar.daemon;
            return serve::run(arguments.invocation(), &arguments.process, daemonizes);
        }
        // As `serve`, for a front end on another machine.
        Verb::Work(arguments) => {
            let process = &arguments.process;
            return serve::run(arguments.invocation(), process, process.daemonize);
        }
        Verb::Check(arguments) => return check::run(&arguments),
        Verb::Bench { verb } => return Err(CliError::Reported(verb.run())),
        Verb::Run(arguments) => return run::run(&arguments),
        Verb::Import(arguments) => return import::run(&arguments),
        Verb::Init(arguments) => return init::run(&arguments),
        Verb::Config { topic } => return config::run(&topic),
        Verb::Man { page, all } => return man::run(&page, all.as_deref()),
        Verb::Completions { shell } => completions::run(shell),
        Verb::HashPassword { user } => hash_password::run(user.as_deref()),
        Verb::Status { json, to } => admin::status(&to, json),
        Verb::Top { once, to } => top::run(&to, once),
        Verb::Certificates { json, to } => certificates::run(&to, json),
        Verb::Trust { remove } => trust::run(remove),
        Verb::Reload { to } => admin::reload(&to),
        Verb::Stop { to } => admin::stop(&to),
        Verb::Upgrade { binary, to } => admin::upgrade(&to, binary.as_deref()),
        Verb::Reopen { to } => admin::reopen(&to),
        Verb::Restart { app, to } => admin::restart(&to, app.as_deref()),
        Verb::Pause { name, max_wait, to } => traffic::pause(&to, &name, max_wait),
        Verb::Resume { name, to } => traffic::resume(&to, &name),
        Verb::Maintenance { what, to } => traffic::maintenance(&to, &what),
        Verb::Publish { what, to } => publish::run(&to, &what),
        Verb::Channels {
            channel,
            namespace,
            json,
            to,
        } => admin::channels(&to, channel.as_deref(), namespace.as_deref(), json),
        Verb::Purge { what, cache, to } => admin::purge(&to, &what, cache.as_deref()),
    };
    Ok(done?)
}

impl ServeArguments {
    fn invocation(&self) -> std::io::Result<Invocation> {
        let mut invocation = Invocation {
            target: self.target.clone(),
            listen: self.listen.clone(),
            listen_https: self.listen_https.clone(),
            domains: self.domain.clone(),
            acme_directory: self.acme_directory.clone(),
            acme_email: self.acme_email.clone(),
            files_only: self.files,
            development: self.dev || self.familiar.is_development(),
            ..self.process.invocation()?
        };
        self.familiar.apply(&mut invocation)?;
        Ok(invocation)
    }
}

impl WorkArguments {
    fn invocation(&self) -> std::io::Result<Invocation> {
        Ok(Invocation {
            target: self.app.clone(),
            work: Some(WorkOptions {
                front_end: self.join.clone(),
                upstream: self.upstream.clone(),
                key_file: self.key_file.clone(),
                plain: self.plain,
            }),
            ..self.process.invocation()?
        })
    }
}

impl ProcessArguments {
    fn invocation(&self) -> std::io::Result<Invocation> {
        Ok(Invocation {
            config: self.config.clone(),
            admin: self.admin.clone(),
            processes: self.processes,
            grip: self.grip,
            threads: self.threads.map(|count| count.max),
            min_threads: self.threads.map(|count| count.min),
            kind: self.kind,
            log: self.log.clone(),
            pid_file: self.pid_file.clone(),
            ignores_env_file: self.no_env_file,
            without_jobs: self.no_jobs,
            cwd: std::env::current_dir()?,
            ..Invocation::default()
        })
    }
}

/// Parses a value of `--domain`.
fn parse_host(text: &str) -> Result<HostPattern, String> {
    let expected = "expected a host such as example.com or *.example.com, without scheme and port";
    HostPattern::parse(text).ok_or_else(|| expected.to_owned())
}

/// Parses a time such as `30s` or `10m`.
fn parse_time(text: &str) -> Result<Duration, String> {
    let expected = "expected a time such as 500ms, 30s or 10m";
    penstock_config::parse_duration(text).ok_or_else(|| expected.to_owned())
}

/// Parses the value of `--kind`.
fn parse_kind(text: &str) -> Result<AppKind, String> {
    let all = [AppKind::Wsgi, AppKind::Asgi, AppKind::Rack];
    let named = all.into_iter().find(|kind| kind.as_str() == text);
    named.ok_or_else(|| "expected wsgi, asgi or rack".to_owned())
}

/// Prints an error to standard error.
fn print_error(text: &impl std::fmt::Display) {
    // Standard error may be closed; the exit code reports the failure as well.
    let _ = writeln!(std::io::stderr(), "penstock: {text}");
}

/// Prints a result to standard output.
fn print_line(text: &impl std::fmt::Display) {
    // The reader may have closed the pipe (`penstock status | head -1`).
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Formats a count with its noun, which takes an `s` unless the count is one.
pub(crate) fn pluralize(number: u64, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{plural}")
}
