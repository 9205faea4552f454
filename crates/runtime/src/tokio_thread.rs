//! A tokio runtime on a thread of its own, for libraries that require one.
//!
//! DNS (`hickory`), Redis and signals use tokio's sockets and timers. Their futures are awaited on
//! our loops; their resources are registered with the runtime that a thread has entered, which
//! wakes them from there. `penstock` starts one for its control loop.
//!
//! # Invariants
//! - Only requests that need Redis pass through here, since each wait involves two threads.

use std::io;

use tokio::runtime::{Builder, Runtime};

/// Starts the runtime; its thread ends when it is dropped.
pub fn start_tokio() -> io::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(1).thread_name("tokio");
    builder.enable_all().build()
}
