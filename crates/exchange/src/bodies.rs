//! Bodies that wait: whole requests before a worker or back end hears of them, responses that are
//! produced faster than their client takes them.
//!
//! `apps` and `proxy` both use this, so that neither a worker nor a back end ever waits for a client:
//! [`collect`] reads a request to its end, [`spool`] stands between a producer and a client. Small
//! bodies stay in memory, large ones go to a [`NamelessFile`]; [`BodyStore`] has the bounds, and
//! [`TempSpace`] the one on all files together.

mod collect;
mod contention;
mod nameless;
mod space;
mod spool;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use penstock_runtime::blocking::Pool;

pub use collect::{Collected, collect};
pub use contention::{Demand, HeldPlace, HeldPlaces, Producer};
pub use nameless::NamelessFile;
pub use space::{TempGrant, TempSpace, TempUsage, TempUse};
pub use spool::{SpoolPlace, SpoolReader, SpoolSpec, SpoolWriter, spool};

/// Where bodies wait, and how much of them.
#[derive(Debug, Clone)]
pub struct BodyStore {
    /// Bytes of a request body kept in memory; a longer one goes to a file (`limits.body_memory`).
    pub body_memory: usize,
    /// Bytes of a response kept in memory for a slow client (`limits.response_memory`).
    pub response_memory: usize,
    /// Bytes of a response kept in a file before its producer waits (`limits.response_spool`).
    pub response_spool: u64,
    /// Bytes a second that a client takes at least of a response that holds a place for which
    /// requests wait (`limits.min_busy_rate`); 0 is any.
    pub min_busy_rate: u64,
    /// How long a client may be slower (`limits.body_rate_grace`).
    pub rate_grace: Duration,
    /// The folder of the nameless files.
    pub temp_dir: PathBuf,
    /// What they may take together (`limits.temp_bytes`).
    pub space: Arc<TempSpace>,
    /// Does their reading and writing.
    pub pool: Pool,
}
