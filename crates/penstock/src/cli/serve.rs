//! `penstock serve`: resolve, start, print where it listens, serve until told to stop.

use std::process::ExitCode;

use penstock_runtime::logger::{self, LineWriter, Target};

use super::{ServeArguments, USAGE, check, complain};
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
    let writers = logger::install(level)
        .and_then(|log| Ok((log, LineWriter::start("terminal", Target::Stdout)?)));
    let (log, announce) = match writers {
        Ok(writers) => writers,
        Err(error) => {
            complain(&format!("the log: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let options = Options {
        development: arguments.dev,
        ready_fd: arguments.ready_fd,
        log: log.clone(),
        announce: announce.clone(),
    };
    let result = server::run(invocation, config, options);
    announce.flush();
    log.flush();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::FAILURE
        }
    }
}
