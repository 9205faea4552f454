//! The interface between processes that are servers of their own and the upstream that uses them.
//!
//! The `executor` starts the processes of `command` and `fastcgi` applications and tells a
//! [`ServerSet`] their addresses; `penstock`'s wiring makes one of the application's upstream.
//!
//! # Invariants
//! - An address is added once its process is ready, and removed before the process is asked to end
//!   or as soon as its end is seen.
//! - It is not used again while requests to it are in progress.

use std::fmt;

use penstock_config::{ServerAddr, UpstreamServer};

use crate::dispatch::QueueUsage;

/// The servers of one upstream, as the supervisor of their processes sees it.
///
/// Called from the control loop: no call may block.
pub trait ServerSet: Send + Sync + fmt::Debug {
    /// A process is ready: it may get requests. `generation` is the code it runs; newer is better.
    fn add(&self, server: UpstreamServer, generation: u64);

    /// A process is about to end or has ended: it gets no new requests, those in progress finish.
    /// An unknown address is no error.
    fn remove(&self, address: &ServerAddr);

    /// Requests in progress at an address, also after [`ServerSet::remove`].
    fn in_progress(&self, address: &ServerAddr) -> usize;

    /// Number of requests in a row at an address that timed out, up to now.
    fn consecutive_timeouts(&self, address: &ServerAddr) -> usize;

    /// Requests in the queue and in progress, and how many could be. The number of processes
    /// follows it.
    fn queue_usage(&self) -> QueueUsage;
}

/// The set of an application that no upstream uses.
#[derive(Debug)]
pub(crate) struct NoServers;

impl ServerSet for NoServers {
    fn add(&self, _: UpstreamServer, _: u64) {}

    fn remove(&self, _: &ServerAddr) {}

    fn in_progress(&self, _: &ServerAddr) -> usize {
        0
    }

    fn consecutive_timeouts(&self, _: &ServerAddr) -> usize {
        0
    }

    fn queue_usage(&self) -> QueueUsage {
        QueueUsage::default()
    }
}
