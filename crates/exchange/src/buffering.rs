//! Buffered bodies: requests read whole before a worker or back end gets them, responses produced
//! faster than their client takes them.
//!
//! `apps` and `proxy` use this, so that neither a worker nor a back end waits for a client:
//! `collect` reads a request to its end, `spool` stands between a producer and a client. Small
//! bodies stay in memory, large ones go to a [`SpoolFile`]; [`BufferingSettings`] has the limits,
//! and [`TempSpace`] the one on all files together.

mod collect;
mod contention;
mod spool;
mod spool_file;
mod temp_space;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use penstock_runtime::blocking::Pool;

pub use collect::{CollectedBody, collect_body};
pub use contention::{CapacityDemand, ResponseProducer, SlowResponseGuard, SlowResponses};
pub use spool::{CapacityReleaser, SpoolReader, SpoolSpec, SpoolWriter, create_spool};
pub use spool_file::SpoolFile;
pub use temp_space::{TempFilePurpose, TempSpace, TempSpaceGrant, TempSpaceSnapshot};

/// Limits of buffered bodies, with the temporary directory and pool that they use.
#[derive(Debug, Clone)]
pub struct BufferingSettings {
    /// Bytes of a request body kept in memory; a longer one goes to a file
    /// (`limits.body_memory`).
    pub max_body_memory: usize,
    /// Bytes of a response kept in memory for a slow client (`limits.response_memory`).
    pub max_response_memory: usize,
    /// Bytes of a response kept in a file before its producer waits (`limits.response_spool`).
    pub max_response_spool: u64,
    /// Minimum bytes a second of a client whose response holds a place that requests wait for
    /// (`limits.min_busy_rate`); 0 is any.
    pub min_busy_rate: u64,
    /// How long a client may be slower (`limits.body_rate_grace`).
    pub rate_grace: Duration,
    /// The directory of the unnamed files.
    pub temp_dir: PathBuf,
    /// Their total space (`limits.temp_bytes`).
    pub temp_space: Arc<TempSpace>,
    /// Does their reading and writing.
    pub pool: Pool,
}
