//! `penstock serve`: resolve, start, print where it listens, serve until told to stop.

use std::process::ExitCode;

use penstock_runtime::logger;

use super::{ServeArguments, USAGE, check, complain, say};
use crate::server::{self, Options};

pub(super) fn run(arguments: &ServeArguments) -> ExitCode {
    let invocation = match arguments.invocation() {
        Ok(invocation) => invocation,
        Err(error) => {
            complain(&format!("the current folder: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let config = match check::resolve(&invocation) {
        Ok(config) => config,
        Err(text) => {
            complain(&text);
            return ExitCode::from(USAGE);
        }
    };
    let level = if arguments.verbose {
        log::LevelFilter::Debug
    } else {
        log::LevelFilter::Info
    };
    let log = match logger::install(level) {
        Ok(log) => log,
        Err(error) => {
            complain(&format!("the log: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let options = Options {
        development: arguments.dev,
        ready_fd: arguments.ready_fd,
        log: log.clone(),
        announce: |line| say(&line),
    };
    let result = server::run(invocation, config, options);
    log.flush();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::FAILURE
        }
    }
}
