//! The kernel interface: sockets, descriptors sent over sockets, files opened beneath a root, the
//! page cache, processes.
//!
//! Every other crate reaches the operating system through here or through the standard library;
//! this is the only crate where `unsafe` compiles. Functions are thin: one system call or one short
//! sequence each, `io::Result` out, no policy, no logging, no clock. Errors are those of the calls;
//! a function's documentation names the ones that a caller distinguishes. Callers: `runtime`
//! (streams, listeners), `files` (opening and reading), `apps` (workers and their sockets).

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests may wait for a disk")
)]

pub mod account;
pub mod cgroup;
pub mod confine;
pub mod daemon;
pub mod descriptors;
pub mod fd_packets;
pub mod file;
pub mod fuzzing;
pub mod isolation;
pub mod kernel;
pub mod local_time;
pub mod locked_dir;
pub mod net;
pub mod page_cache;
pub mod page_memory;
pub mod peer_process;
pub mod poll;
pub mod port_owner;
pub mod process;
mod resource_limits;
pub mod sd_notify;
pub mod shared_ring;
pub mod signals;
pub mod timer;
pub mod trusted_program;
