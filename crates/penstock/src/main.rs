//! The binary `penstock`: reads the command line, runs one verb, ends with its exit code.
//!
//! `cli` has a file a verb; `serve` goes on to `server` (start, reload, upgrade, shutdown) and `wiring` (which
//! handlers answer which route). Exit codes: 0 done or stopped, 1 failed at run time, 2 usage or
//! configuration.

mod admin_token;
mod boundary;
mod bounds;
mod caches;
mod cli;
mod code;
mod control;
mod dev;
mod folders;
mod grants;
mod held;
mod identity;
mod inherited;
mod kinds;
mod listeners;
mod logs;
mod manager;
mod preflight;
mod publishing;
mod refused_calls;
mod server;
mod source;
mod succession;
mod tcp;
mod temporary;
mod upstreams;
mod watchdog;
mod wiring;
mod work;

use std::process::ExitCode;

use penstock_sys::alloc::Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> ExitCode {
    cli::parse().map_or_else(|exit| exit, cli::run)
}
