//! The drivers of workers: each owns one socket of a worker process and the requests on it.
//!
//! A driver takes jobs from its mailbox (`dispatch`), sends their frames, and gives each response to
//! the request that waits for it. [`SlotDriver`] drives one thread, which answers in order;
//! [`ChannelDriver`] drives a reactor, which has all of its requests in progress at once.
//!
//! # Invariants
//! - When a driver ends, every request that it had is answered or back in the queue.
//! - A request goes back to the queue only if its worker cannot have begun it.

mod channel;
mod hijack;
mod slot;

use std::time::Duration;

pub(crate) use self::channel::ChannelDriver;
pub(crate) use self::slot::SlotDriver;

/// How long after a worker's end its last bytes may take to arrive.
const LAST_READ_TIMEOUT: Duration = Duration::from_millis(50);

/// Why a driver ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DriverEnd {
    /// It was asked to, and nothing was in progress.
    Retired,
    /// The worker closed the socket.
    WorkerDied,
    /// The worker broke the protocol.
    ProtocolBroken(String),
    /// A request took longer than `response_timeout`.
    TimedOut,
}
