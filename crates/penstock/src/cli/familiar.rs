//! The words of Puma, Gunicorn, Unicorn and Uvicorn that `penstock serve` takes as they are:
//! `--host`, `-p`, `-b`, `-w`, `-t`, `-e`, `-C`, `--reload`, `--chdir`, `-D`.
//!
//! `ServeArguments` flattens them. Each sets what one of Penstock's own options or keys sets.
//!
//! # Invariants
//! - Two words that set the same thing are refused together, by clap.
//! - A word with two meanings is told apart by its value (`-e NAME=VALUE`, `-t MIN:MAX`), or
//!   refused with both.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use penstock_config::{Invocation, ListenAddr};

/// The heading of these options in `--help`.
const HEADING: &str = "Familiar words (of Puma, Gunicorn and Uvicorn)";

/// The line that stands for these options in `-h`.
pub(super) const SUMMARY: &str = "Familiar words: --host, -p, -b, -w, -t MIN:MAX, -e, -C, --reload, --chdir and -D do what \
     users of Puma, Gunicorn and Uvicorn expect (see --help)";

/// The options.
#[derive(Debug, Args)]
#[command(next_help_heading = HEADING)]
pub(super) struct FamiliarArguments {
    /// Listen on this address of the machine, on the port of --port, of the file or 8080;
    /// `localhost` is 127.0.0.1
    #[arg(long, short_alias = 'o', value_name = "IP", value_parser = parse_host)]
    #[arg(hide_short_help = true, conflicts_with_all = ["listen", "bind"])]
    host: Option<IpAddr>,
    /// Listen on this port, on the address of --host, of the file or 127.0.0.1; 0 takes a free one
    #[arg(short, long, value_name = "PORT", hide_short_help = true)]
    #[arg(conflicts_with_all = ["listen", "bind"])]
    port: Option<u16>,
    /// As --listen; also tcp://HOST:PORT and unix://PATH
    #[arg(short, long, value_name = "ADDR", value_parser = parse_bind)]
    #[arg(hide_short_help = true, conflicts_with = "listen")]
    bind: Vec<ListenAddr>,
    /// As --listen unix:PATH
    #[arg(long, value_name = "PATH", value_parser = parse_socket_path)]
    #[arg(hide_short_help = true, conflicts_with_all = ["listen", "bind", "host", "port"])]
    uds: Option<ListenAddr>,
    /// As --processes; 0 is one process
    #[arg(short, long, value_name = "N", value_parser = parse_workers)]
    #[arg(hide_short_help = true, conflicts_with = "processes")]
    workers: Option<usize>,
    /// As --threads MIN:MAX
    #[arg(short = 't', value_name = "MIN:MAX", value_parser = parse_thread_range)]
    #[arg(
        id = "thread_range",
        hide_short_help = true,
        conflicts_with = "threads"
    )]
    thread_range: Option<ThreadCount>,
    /// NAME sets RACK_ENV, RAILS_ENV and APP_ENV of the applications; NAME=VALUE sets that variable
    #[arg(
        short,
        long,
        short_alias = 'E',
        alias = "env",
        value_name = "NAME or NAME=VALUE"
    )]
    #[arg(value_parser = parse_environment, hide_short_help = true)]
    environment: Vec<EnvironmentWord>,
    /// As --dev: saved code takes effect, and errors show their cause; not for public servers
    #[arg(long, hide_short_help = true)]
    reload: bool,
    /// As --config
    #[arg(
        short = 'C',
        value_name = "FILE",
        id = "config_file",
        hide_short_help = true
    )]
    #[arg(conflicts_with = "config")]
    config: Option<PathBuf>,
    /// Start in this folder: TARGET and all relative paths are below it
    #[arg(long, value_name = "FOLDER", hide_short_help = true)]
    chdir: Option<PathBuf>,
    /// As --daemonize
    #[arg(short = 'D', long, hide_short_help = true)]
    pub(super) daemon: bool,
}

/// A number of threads, or bounds on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ThreadCount {
    /// Threads that always take requests.
    pub(super) min: usize,
    /// Threads never exceeded.
    pub(super) max: usize,
}

/// A value of `-e`.
#[derive(Debug, Clone, PartialEq, Eq)]
enum EnvironmentWord {
    /// The name of an environment, such as `production`.
    Name(String),
    /// A variable and its value.
    Variable(String, String),
}

/// The variables that name the environment to Rack, Rails and Sinatra.
const ENVIRONMENT_VARIABLES: [&str; 3] = ["RACK_ENV", "RAILS_ENV", "APP_ENV"];

impl FamiliarArguments {
    /// Whether code is watched and errors show their cause.
    pub(super) fn is_development(&self) -> bool {
        self.reload
    }

    /// Puts what these options say into an invocation.
    ///
    /// # Errors
    /// `--chdir` names no folder.
    pub(super) fn apply(&self, invocation: &mut Invocation) -> std::io::Result<()> {
        invocation
            .listen
            .extend(self.bind.iter().chain(&self.uds).cloned());
        invocation.host = self.host;
        invocation.port = self.port;
        invocation.processes = invocation.processes.or(self.workers);
        if let Some(count) = self.thread_range {
            (invocation.min_threads, invocation.threads) = (Some(count.min), Some(count.max));
        }
        if invocation.config.is_none() {
            invocation.config.clone_from(&self.config);
        }
        invocation.environment = self.variables();
        if let Some(folder) = &self.chdir {
            invocation.cwd = folder_below(&invocation.cwd, folder)?;
        }
        Ok(())
    }

    /// The variables of `-e`; the last of a name counts.
    fn variables(&self) -> Vec<(String, String)> {
        let mut variables = Vec::new();
        for word in &self.environment {
            match word {
                EnvironmentWord::Variable(name, value) => {
                    variables.push((name.clone(), value.clone()));
                }
                EnvironmentWord::Name(value) => {
                    let names = ENVIRONMENT_VARIABLES.map(str::to_owned);
                    variables.extend(names.map(|name| (name, value.clone())));
                }
            }
        }
        variables
    }
}

/// The folder of `--chdir`, absolute.
fn folder_below(cwd: &Path, folder: &Path) -> std::io::Result<PathBuf> {
    let path = cwd.join(folder);
    let problem = |error: std::io::Error| {
        std::io::Error::new(
            error.kind(),
            format!("--chdir {}: {error}", folder.display()),
        )
    };
    let found = std::fs::metadata(&path).map_err(problem)?;
    match found.is_dir() {
        true => path.canonicalize().map_err(problem),
        false => Err(problem(std::io::ErrorKind::NotADirectory.into())),
    }
}

/// Parses the value of `--threads`: a number, or Puma's `MIN:MAX`.
pub(super) fn parse_threads(text: &str) -> Result<ThreadCount, String> {
    match text.contains(':') {
        true => parse_thread_range(text),
        false => parse_count(text)
            .map(|count| ThreadCount {
                min: count,
                max: count,
            })
            .ok_or_else(|| "expected a number from 1 to 1024, or MIN:MAX".to_owned()),
    }
}

/// Parses the value of `-t`, which is Gunicorn's `--timeout` without a colon. Puma's minimum of 0
/// is 1 here.
fn parse_thread_range(text: &str) -> Result<ThreadCount, String> {
    let Some((min, max)) = text.split_once(':') else {
        return Err(format!(
            "Puma's -t is MIN:MAX threads: --threads {text}; Gunicorn's -t is response_timeout: \
             penstock config explain response_timeout"
        ));
    };
    let counts = min.parse::<usize>().ok().zip(parse_count(max));
    let counts = counts.map(|(min, max)| ThreadCount {
        min: min.max(1),
        max,
    });
    let expected = "expected MIN:MAX, such as 2:5, of at most 1024 threads";
    counts
        .filter(|count| count.min <= count.max)
        .ok_or_else(|| expected.to_owned())
}

/// A number of threads in the range of the key in a file.
fn parse_count(text: &str) -> Option<usize> {
    text.parse().ok().filter(|count| (1..=1024).contains(count))
}

/// Parses the value of `--workers`. Puma's 0 is one process without others.
fn parse_workers(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(count) if count <= 1024 => Ok(count.max(1)),
        _ if text == "auto" => {
            Err("leave it out: without it there is a process for each core".to_owned())
        }
        _ => Err("expected a number from 1 to 1024".to_owned()),
    }
}

/// Parses the value of `--host`.
fn parse_host(text: &str) -> Result<IpAddr, String> {
    let expected =
        "expected an address of this machine such as 0.0.0.0, 127.0.0.1, :: or localhost";
    penstock_config::parse_ip(text).ok_or_else(|| expected.to_owned())
}

/// Parses an address as Gunicorn and Puma write it.
fn parse_bind(text: &str) -> Result<ListenAddr, String> {
    if text.starts_with("ssl://") {
        let problem = "HTTPS is --listen-https ADDR with --domain HOST, which gets a certificate";
        return Err(problem.to_owned());
    }
    if text.starts_with("fd://") {
        return Err("sockets of systemd are taken over without an option".to_owned());
    }
    let plain = match text.split_once("://") {
        Some(("tcp" | "http", address)) => address.trim_end_matches('/').to_owned(),
        // Puma writes unix:///run/x.sock for /run/x.sock, and unix://x.sock for x.sock.
        Some(("unix", path)) => format!("unix:{}", path.split('?').next().unwrap_or(path)),
        _ => text.to_owned(),
    };
    if penstock_config::parse_ip(&plain).is_some() {
        return Err(format!("the port is missing, as in {plain}:8000"));
    }
    plain.parse().map_err(|error| format!("{error}"))
}

/// Parses the value of `--uds`.
fn parse_socket_path(text: &str) -> Result<ListenAddr, String> {
    format!("unix:{text}")
        .parse()
        .map_err(|_| "expected the path of a socket".to_owned())
}

/// Parses a value of `--environment`: the `=` decides.
fn parse_environment(text: &str) -> Result<EnvironmentWord, String> {
    let expected = "expected the name of an environment such as production, or NAME=VALUE";
    if text.is_empty() || text.contains('\0') || text.starts_with('=') {
        return Err(expected.to_owned());
    }
    Ok(match text.split_once('=') {
        Some((name, value)) => EnvironmentWord::Variable(name.to_owned(), value.to_owned()),
        None => EnvironmentWord::Name(text.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::*;
    use crate::cli::Arguments;

    /// What a command line says, or the first line of the error.
    fn invocation(words: &str) -> Result<Invocation, String> {
        let words = ["penstock"].into_iter().chain(words.split_whitespace());
        let parsed = Arguments::try_parse_from(words);
        let parsed = parsed.map_err(|error| {
            let text = error.to_string();
            text.lines().next().unwrap_or_default().to_owned()
        })?;
        let served = match parsed.verb {
            Some(crate::cli::Verb::Serve(served)) => served,
            _ => parsed.serve,
        };
        served.invocation().map_err(|error| error.to_string())
    }

    #[test]
    fn says_what_users_of_puma_gunicorn_and_uvicorn_mean() {
        let puma = invocation("-t 0:5 -w 2 -e staging -b tcp://0.0.0.0:9292").unwrap();
        assert_eq!((puma.min_threads, puma.threads), (Some(1), Some(5)));
        assert_eq!(puma.processes, Some(2));
        assert_eq!(puma.listen, ["0.0.0.0:9292".parse().unwrap()]);
        let names = ["RACK_ENV", "RAILS_ENV", "APP_ENV"];
        let staging = names.map(|name| (name.to_owned(), "staging".to_owned()));
        assert_eq!(puma.environment, staging);

        let gunicorn = "serve app:app --workers=3 -b unix:/run/x.sock -b :8000 -e A=b=c --env D=";
        let gunicorn = invocation(gunicorn).unwrap();
        assert_eq!(gunicorn.target.as_deref(), Some("app:app"));
        assert_eq!(gunicorn.processes, Some(3));
        let addresses = ["unix:/run/x.sock", ":8000"].map(|text| text.parse().unwrap());
        assert_eq!(gunicorn.listen, addresses);
        let variables = [("A", "b=c"), ("D", "")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(gunicorn.environment, variables);

        let uvicorn = invocation("main:app --host 0.0.0.0 --port 80 --reload").unwrap();
        assert_eq!(uvicorn.host, "0.0.0.0".parse().ok());
        assert_eq!((uvicorn.port, uvicorn.development), (Some(80), true));
        assert_eq!(uvicorn.target.as_deref(), Some("main:app"));
        let file = invocation("-C some.toml").unwrap();
        assert_eq!(file.config, Some("some.toml".into()));
        let threads = invocation("--threads 2:4").unwrap();
        assert_eq!((threads.min_threads, threads.threads), (Some(2), Some(4)));
        let folder = std::env::temp_dir();
        let moved = invocation(&format!("--chdir {}", folder.display())).unwrap();
        assert_eq!(moved.cwd, folder.canonicalize().unwrap());
    }

    #[test]
    fn contradictions_and_other_meanings_are_refused_with_what_to_do() {
        let rows = [
            ("--port 80 --listen :81", "cannot be used with"),
            ("--host ::1 --bind :81", "cannot be used with"),
            ("-w 2 --processes 3", "cannot be used with"),
            ("-t 1:2 --threads 3", "cannot be used with"),
            ("-C a.toml -c b.toml", "cannot be used with"),
            ("-t 30", "Gunicorn's -t is response_timeout"),
            ("-t 5:2", "expected MIN:MAX"),
            ("--threads 0", "expected a number from 1 to 1024"),
            ("-w auto", "a process for each core"),
            ("-w 2000", "expected a number from 1 to 1024"),
            ("--host example.com", "expected an address of this machine"),
            ("-b 127.0.0.1", "the port is missing, as in 127.0.0.1:8000"),
            ("-b ssl://0.0.0.0:9292", "--listen-https ADDR"),
            ("-b fd://3", "sockets of systemd are taken over"),
            ("-e =x", "expected the name of an environment"),
            (
                "--chdir /nonexistent/folder",
                "--chdir /nonexistent/folder: ",
            ),
        ];
        for (words, expected) in rows {
            let error = invocation(words).unwrap_err();
            assert!(error.contains(expected), "{words}: {error}");
        }
    }

    #[test]
    fn the_short_help_has_one_line_for_all_of_them() {
        let mut command = Arguments::command();
        let serve = command.find_subcommand_mut("serve").unwrap();
        let short = serve.render_help().to_string();
        assert!(short.contains("Familiar words: --host"), "{short}");
        assert!(!short.contains("--workers"), "{short}");
        let long = serve.render_long_help().to_string();
        for word in [
            "--host",
            "--port",
            "--bind",
            "--workers",
            "--environment",
            "--reload",
        ] {
            assert!(long.contains(word), "{word}: {long}");
        }
    }

    #[test]
    fn no_word_that_is_taken_is_explained_as_foreign() {
        let mut command = Arguments::command();
        let serve = command.find_subcommand_mut("serve").unwrap();
        for argument in serve.get_arguments() {
            let short = argument.get_short().map(|short| format!("-{short}"));
            let long = argument.get_long().map(|long| format!("--{long}"));
            for flag in short.into_iter().chain(long) {
                assert_eq!(penstock_config::translate_flag(&flag), None, "{flag}");
            }
        }
    }
}
