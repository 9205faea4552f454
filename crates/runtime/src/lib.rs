//! Event loops, streams, deadlines, the loop's shared buffer, pools for blocking work, and drain.
//!
//! The interface between components and the machine: components never use epoll or threads
//! directly. One event loop is one thread ([`loops`]); a task stays on the loop where it starts.
//! Errors are the kernel's, such as lack of descriptors, unless the documentation names others.
//!
//! # Invariants
//! - Nothing here blocks an event loop; blocking work goes through [`blocking`].
//! - Every queue has a bound.
//! - No buffer is held for a connection that waits.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests may wait for a disk")
)]

pub mod precise_timer;

pub mod blocking;
pub mod buffers;
pub mod clock;
pub mod deadline;
pub mod disk;
pub mod drain;
pub mod listener;
mod log_sinks;
pub mod log_throttle;
pub mod logger;
pub mod loops;
pub mod multiline_output;
pub mod pollset;
pub mod process;
pub mod registered_fd;
pub mod relay;
pub mod stream;
pub mod tokio_thread;

pub use deadline::LazyDeadline;
pub use disk::DiskFile;
pub use drain::Drain;
pub use listener::Listener;
pub use log_throttle::{LogThrottle, OncePerSecondThrottle};
pub use loops::{EventLoops, LoopHandle, PerLoop};
pub use pollset::Pollset;
pub use precise_timer::PreciseTimer;
pub use registered_fd::RegisteredFd;
pub use relay::relay;
pub use stream::{
    ByteStream, DetachedStream, LayerSocket, Stream, StreamLayer, probe_peer, write_all,
};
pub use tokio_thread::start_tokio;
