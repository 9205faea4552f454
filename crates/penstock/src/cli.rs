//! The command line: its shape, and which verb runs.
//!
//! Words and flags are decided (they are what scripts depend on): add, do not rename. Every verb
//! prints what a person needs and nothing else; errors go to standard error.

mod admin;
mod check;
mod config;
mod publish;
mod serve;
mod status_text;
mod target;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ContextKind;
use clap::{Args, Parser, Subcommand};
use penstock_config::{
    AdminOverride, AppKind, FlagTranslation, Invocation, ListenAddr, WorkOptions,
};

/// A web application from its folder to production traffic.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    serve: ServeArguments,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Serve a folder, a module:callable, a config.ru or a configuration file (the default verb)
    Serve(ServeArguments),
    /// Run an application's workers for a front end on another machine: dial in, and serve what it sends
    Work(WorkArguments),
    /// Check a configuration, and everything that a start would need; exit code 0 or 2
    Check(CheckArguments),
    /// Show what a running server does
    Status {
        /// As JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        to: ServerLocation,
    },
    /// Read the configuration again; the old one stays unless all of the new one works
    Reload {
        #[command(flatten)]
        to: ServerLocation,
    },
    /// Finish the requests in progress and stop
    Stop {
        #[command(flatten)]
        to: ServerLocation,
    },
    /// Start the server's program anew and let it take over, without refusing a request
    Upgrade {
        /// The program that takes over [default: the one that runs, by the path that it was started by]
        #[arg(long, value_name = "PATH")]
        binary: Option<PathBuf>,
        #[command(flatten)]
        to: ServerLocation,
    },
    /// Open the files of the logs anew, as after they were renamed
    Reopen {
        #[command(flatten)]
        to: ServerLocation,
    },
    /// Load an application's code anew, without refusing a request
    Restart {
        /// The application's name
        app: String,
        #[command(flatten)]
        to: ServerLocation,
    },
    /// Send a message to the held streams of a channel
    Publish {
        #[command(flatten)]
        what: PublishArguments,
        #[command(flatten)]
        to: ServerLocation,
    },
    /// Take responses out of a running server's caches
    Purge {
        #[command(flatten)]
        what: PurgeArguments,
        /// Of this cache only, by its name
        #[arg(long, value_name = "NAME")]
        cache: Option<String>,
        #[command(flatten)]
        to: ServerLocation,
    },
    /// Measure a server, or several against one another
    Bench {
        #[command(subcommand)]
        verb: penstock_bench::Command,
    },
    /// About the configuration file
    Config {
        #[command(subcommand)]
        topic: ConfigTopic,
    },
}

#[derive(Debug, Args)]
struct ServeArguments {
    /// A folder, module:callable, config.ru or FILE.toml [default: penstock.toml here, else this folder]
    target: Option<String>,
    /// Where to listen: 127.0.0.1:8080, :80, unix:/run/x.sock; port 0 takes a free one
    #[arg(short, long, value_name = "ADDR")]
    listen: Vec<ListenAddr>,
    /// Serve the files of the folder as they are, and run nothing of it
    #[arg(long, conflicts_with_all = ["config", "kind"])]
    files: bool,
    /// Show causes and tracebacks on error pages; never where strangers can reach it
    #[arg(long)]
    dev: bool,
    #[command(flatten)]
    process: ProcessArguments,
}

/// What is to be checked, and how far.
#[derive(Debug, Args)]
struct CheckArguments {
    /// The configuration file or folder [default: penstock.toml here, else this folder]
    target: Option<String>,
    /// The configuration file
    #[arg(short, long, value_name = "FILE", conflicts_with = "target")]
    config: Option<PathBuf>,
    /// Check the configuration alone: no address is bound, no name looked up, no application loaded
    #[arg(long)]
    config_only: bool,
}

/// What `work` has beside `serve`.
#[derive(Debug, Args)]
struct WorkArguments {
    /// An application's name in the configuration file, or what `serve` takes: a folder, module:callable, config.ru
    /// [default: penstock.toml here, else this folder]
    app: Option<String>,
    /// Where the front end listens for it (its `server.join`): HOST:PORT or unix:PATH
    #[arg(long, value_name = "ADDR")]
    join: String,
    /// The upstream there [default: the application's name]
    #[arg(long, value_name = "NAME")]
    upstream: Option<String>,
    /// The file with the key that both know [default: `server.join` of the load_config file]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    #[command(flatten)]
    process: ProcessArguments,
}

/// What every process that runs applications is told.
#[derive(Debug, Args)]
struct ProcessArguments {
    /// The configuration file
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where the status page and the admin interface listen, or `off`
    #[arg(long, value_name = "ADDR")]
    admin: Option<AdminOverride>,
    /// Worker processes of each application
    #[arg(long, value_name = "N")]
    processes: Option<usize>,
    /// Obey what applications say by GRIP: they hold connections, and publish by the GRIP_URL of their workers
    #[arg(long)]
    grip: bool,
    /// What the application is, where its own code is not to say: wsgi, asgi or rack
    #[arg(long, value_name = "KIND", value_parser = parse_kind)]
    kind: Option<AppKind>,
    /// Threads in each worker process
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Go to the background once everything is ready; exit code 1 when it does not become so
    #[arg(long)]
    daemonize: bool,
    /// The file of the server's own log
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Write a line to this descriptor when everything is ready
    #[arg(long, value_name = "FD")]
    ready_fd: Option<i32>,
    /// Log more
    #[arg(short, long)]
    verbose: bool,
}

#[derive(Debug, Args)]
struct ServerLocation {
    /// The server's admin address or control socket (unix:PATH) [default: that of penstock.toml here]
    #[arg(long, value_name = "ADDR")]
    admin: Option<ListenAddr>,
    /// The configuration file that names the admin address
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// What is to be published.
#[derive(Debug, Args)]
struct PublishArguments {
    /// The channel's name
    channel: String,
    /// The message [default: each line of standard input is one]
    message: Option<String>,
    /// The type of the event that browsers get
    #[arg(long, value_name = "TYPE")]
    event: Option<String>,
    /// The message's id, by which clients that come back say what they know
    #[arg(long, requires = "message")]
    id: Option<String>,
    /// Whose channel it is: an application's or upstream's name, or `hub` [default: the only one there is]
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
}

/// What is to be purged: one of these.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct PurgeArguments {
    /// All variants of this URL: https://host/path?query, or /path?query of every host
    url: Option<String>,
    /// Every URL that begins so
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
}

pub(crate) use check::resolve_and_validate;

/// The exit code for wrong usage or configuration.
const USAGE_EXIT_CODE: u8 = 2;

/// Reads the command line.
///
/// # Errors
/// The exit code, once usage, help or version have been printed.
pub(crate) fn parse() -> Result<Arguments, ExitCode> {
    Arguments::try_parse().map_err(|error| {
        match explain_flag(&error) {
            Some(text) => print_error(&text),
            // Whoever reads may have gone.
            None => drop(error.print()),
        }
        ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(USAGE_EXIT_CODE))
    })
}

/// What a flag of another server is here.
fn explain_flag(error: &clap::Error) -> Option<String> {
    let unknown = error.get(ContextKind::InvalidArg)?.to_string();
    let name = unknown.split('=').next()?;
    let told = match penstock_config::translate_flag(name)? {
        FlagTranslation::Flag(flag) => {
            format!("`{name}` of other servers is `{flag}` here: see penstock serve --help")
        }
        FlagTranslation::Key(table, key) => format!(
            "`{name}` of other servers is `{key}` in [{table}] of penstock.toml here: see penstock \
             config explain {table}.{key}"
        ),
        FlagTranslation::Verb(verb) => {
            format!("for what `{name}` of other servers does there is `penstock {verb}` here")
        }
        FlagTranslation::NotNeeded(why) => format!("leave `{name}` out: {why}"),
    };
    Some(format!("unknown argument: {told}"))
}

/// Runs the verb.
pub(crate) fn run(arguments: Arguments) -> ExitCode {
    match arguments.verb.unwrap_or(Verb::Serve(arguments.serve)) {
        Verb::Serve(arguments) => serve::run(&arguments),
        Verb::Work(arguments) => serve::work(&arguments),
        Verb::Check(arguments) => check::run(&arguments),
        Verb::Status { json, to } => admin::status(&to, json),
        Verb::Reload { to } => admin::reload(&to),
        Verb::Stop { to } => admin::stop(&to),
        Verb::Upgrade { binary, to } => admin::upgrade(&to, binary.as_deref()),
        Verb::Reopen { to } => admin::reopen(&to),
        Verb::Restart { app, to } => admin::restart(&to, &app),
        Verb::Publish { what, to } => publish::run(&to, &what),
        Verb::Purge { what, cache, to } => admin::purge(&to, &what, cache.as_deref()),
        Verb::Bench { verb } => verb.run(),
        Verb::Config { topic } => config::run(&topic),
    }
}

impl ServeArguments {
    fn invocation(&self) -> std::io::Result<Invocation> {
        Ok(Invocation {
            target: self.target.clone(),
            listen: self.listen.clone(),
            files_only: self.files,
            development: self.dev,
            ..self.process.invocation()?
        })
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
            threads: self.threads,
            kind: self.kind,
            log: self.log.clone(),
            cwd: std::env::current_dir()?,
            ..Invocation::default()
        })
    }
}

/// The value of `--kind`.
fn parse_kind(text: &str) -> Result<AppKind, String> {
    let all = [AppKind::Wsgi, AppKind::Asgi, AppKind::Rack];
    let named = all.into_iter().find(|kind| kind.as_str() == text);
    named.ok_or_else(|| "expected wsgi, asgi or rack".to_owned())
}

/// Says to standard error why a verb failed.
fn print_error(text: &impl std::fmt::Display) {
    // Nobody may be listening: the exit code says it too.
    let _ = writeln!(std::io::stderr(), "penstock: {text}");
}

/// Says the result of a verb.
fn print_line(text: &impl std::fmt::Display) {
    // Whoever reads may have seen enough (`penstock status | head -1`).
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// So many of something that takes an `s` when they are not one.
pub(crate) fn pluralize(number: u64, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{plural}")
}
