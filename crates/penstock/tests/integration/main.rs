//! Integration tests: the real binary, driven from outside, one promise per file.
//!
//! `support` starts servers and sends raw bytes to them; every other module tests one promise.
//! Nothing here sleeps to wait and no port is fixed: a test waits for a condition with a deadline,
//! and a server prints where it listens. A server that does not stop cleanly fails its test.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::cast_possible_truncation,
    reason = "tests: a failure is a panic, nothing here runs on a loop, the log of a failed server is printed"
)]

mod access_limits;
mod accounts;
mod admission;
mod app_bounds;
mod app_kinds;
mod architecture;
mod asgi;
mod behind_proxy;
mod bench;
mod bench_https;
mod blocking_pools;
mod bodies;
mod boot;
mod bounds_of_routes;
mod cache;
mod clock_jump;
mod command_line;
mod compression;
mod config_files;
mod connections;
mod contract;
mod control;
mod cpu_quotas;
mod daemon;
mod dev;
mod drain;
mod environment;
mod error_pages;
mod faults;
mod files;
mod first_steps;
mod found_apps;
mod guarded_paths;
mod half_closed;
mod hanging_starts;
mod hooks;
mod hostile_apps;
mod hostile_framing;
mod hostile_heads;
mod https;
mod idle_memory;
mod import;
mod isolation;
mod jobs;
mod joined_servers;
mod listeners;
mod logs;
mod migration_tables;
mod missing_syscalls;
mod native_worker;
mod observability;
mod overload;
mod pauses;
mod private_files;
mod probes;
mod process_inheritance;
mod processes;
mod programs;
mod proofs;
mod proxy;
mod rack;
mod regressions;
mod release_command;
mod reload;
mod response_rules;
mod responses;
mod rewrites;
mod rollout;
mod security_rules;
mod sendfile;
mod shared_rates;
mod slow_clients;
mod slow_readers;
mod start_lines;
mod streams;
mod support;
mod temporary_files;
mod top;
mod traffic_rules;
mod unsolicited_instructions;
mod upgrade;
mod uploads;
mod words;
mod worker_death;
mod wsgi;
