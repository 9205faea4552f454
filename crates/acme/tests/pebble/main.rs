//! The service against a real authority: Pebble, with `pebble-challtestsrv` as its DNS server.
//!
//! `scripts/setup test` installs both; without them these tests are skipped with a message. Each
//! test has servers, folders and names of its own, on ports that the system chooses.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "helpers of tests may panic, print and wait for a disk"
)]

mod authorities;
mod challenges;
mod demand;
mod failures;
mod renewal;
mod sharing;
mod support;
