//! The binary `penstock`: parses the command line, runs one verb, and exits with its code.
//!
//! `cli` has one file per verb; `serve` continues in `server` (start, reload, upgrade, shutdown)
//! and `wiring` (the handlers of routes). Exit codes: 0 done or stopped, 1 failed at run time, 2
//! wrong usage or configuration.

mod accounts;
mod admin_backend;
mod admin_token;
mod admission;
mod app_kind_handler;
mod app_resource_limits;
mod caches;
mod cli;
mod code;
mod components;
mod compression;
mod control;
mod dev;
mod django_files;
mod hardening;
mod hub_service;
mod inherited_listeners;
mod jobs;
mod key_sets;
mod listeners;
mod logs;
mod pid_file;
mod preflight;
mod publishing;
mod refused_syscalls;
mod route_hints;
mod sendfile_grant;
mod served_dirs;
mod server;
mod service_manager;
mod shared_rates;
mod temp_limit;
mod tls_service;
mod trace_export;
mod upgrade_protocol;
mod upstream_tls;
mod watchdog;
mod web_request;
mod wiring;
mod work;

use std::process::ExitCode;

/// The allocator of musl has one lock for all threads.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::parse().map_or_else(|exit| exit, cli::run)
}
