//! A store's disk: its health, its queued maintenance, and the way of every operation into the
//! pool.
//!
//! [`Disk::run`] runs everything that may block. It counts and times the operation, stops waiting
//! after `stall_timeout` (the operation itself cannot be ended), and takes the disk out of service
//! if an error is the disk's. `maintenance` probes the disk until it works again and does the
//! queued work: removing files, writing metadata, reading small hot objects into memory.
//!
//! # Invariants
//!
//! - No request waits for a disk that is out of service.
//! - A failure is logged once per cause.
//! - Every queue is bounded.
//! - A file's bytes count until its last descriptor is closed.

mod health;
mod queue;

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use penstock_runtime::blocking::{Pool, PoolError};
use penstock_runtime::{DiskFile, clock};
use tokio::sync::Notify;

use super::cache_dir::CacheDir;
use super::memory_body::MAX_BUFFERED_BODY_BYTES;
use super::object_file::ObjectFile;
use super::tier::{IndexedObject, Tier};
use super::verification::Verifications;

pub(crate) use health::DiskHealth;
use health::OutageReason;
use queue::MaintenanceQueue;
pub(crate) use queue::{DiscardedFile, MAX_DISCARDED_FILES};

pub(crate) type DiskIndexEntry = IndexedObject<Arc<ObjectFile>>;

#[derive(Debug)]
pub(crate) struct Disk {
    /// The store's name, for the log.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// The configured limit in bytes.
    pub(crate) max_size: u64,
    /// Operations are waited for no longer than this.
    pub(crate) stall_timeout: Duration,
    pub(crate) pool: Pool,
    pub(crate) tier: Tier<Arc<ObjectFile>>,
    pub(crate) maintenance_wakeup: Notify,
    pub(crate) space_freed: Notify,
    /// Open files, oldest first.
    pub(super) open_files: Mutex<VecDeque<(Arc<ObjectFile>, Arc<DiskFile>)>>,
    pub(super) verifications: Verifications,
    /// Bodies up to this size are read into memory when they are hot.
    pub(super) max_promoted_size: u64,
    pub(crate) counters: DiskCounters,
    health: AtomicU8,
    /// Notified when the disk goes out of service, or the store stops.
    went_out: Notify,
    /// The current limit in bytes: less than `max_size` while the file system is full.
    current_max_size: AtomicU64,
    /// Each of these locks is held briefly.
    open_dir: Mutex<Option<OpenDir>>,
    outage_reason: Mutex<OutageReason>,
    maintenance_queue: Mutex<MaintenanceQueue>,
    /// When each running operation began.
    running_operations: Mutex<HashMap<u64, Instant>>,
    next_operation: AtomicU64,
    next_file_number: AtomicU64,
}

#[derive(Debug, Clone)]
pub(crate) struct OpenDir {
    pub(crate) dir: Arc<CacheDir>,
    /// Locked while open, which permits writing.
    pub(crate) _lock: Arc<File>,
}

#[derive(Debug, Default)]
pub(crate) struct DiskCounters {
    pub(crate) evicted: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) read_micros: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) write_micros: AtomicU64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiskOperationKind {
    /// Opening and reading, with priority.
    Open,
    Read,
    /// Writing, renaming, removing.
    Write,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum DiskError {
    /// The disk is or went out of service, or took too long.
    #[error("the disk is out of service")]
    OutOfService,
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Disk {
    /// Creates a disk that is not opened yet.
    pub(crate) fn new(config: &penstock_config::Cache, path: PathBuf, pool: Pool) -> Self {
        let nanos = u64::try_from(clock::wall_time().as_nanos()).unwrap_or(1);
        Self {
            name: config.name.clone(),
            path,
            max_size: config.max_size,
            stall_timeout: config.stall_timeout,
            pool,
            tier: Tier::new(),
            maintenance_wakeup: Notify::new(),
            space_freed: Notify::new(),
            open_files: Mutex::default(),
            verifications: Verifications::new(),
            max_promoted_size: (config.max_memory / 16).min(MAX_BUFFERED_BODY_BYTES),
            counters: DiskCounters::default(),
            health: AtomicU8::new(DiskHealth::OutOfService as u8),
            went_out: Notify::new(),
            current_max_size: AtomicU64::new(config.max_size),
            open_dir: Mutex::default(),
            outage_reason: Mutex::new(OutageReason {
                text: "its directory is being opened".to_owned(),
                last_logged: None,
            }),
            maintenance_queue: Mutex::default(),
            running_operations: Mutex::default(),
            next_operation: AtomicU64::new(0),
            // Above the numbers of earlier processes, which began earlier and created fewer than
            // one file a nanosecond. Recovery raises it above all numbers found, in case the clock
            // was set back.
            next_file_number: AtomicU64::new(nanos),
        }
    }

    /// The directory, while it may be written to.
    pub(crate) fn open_dir(&self) -> Option<OpenDir> {
        self.open_dir.lock().clone()
    }

    /// A file number that was never used.
    pub(crate) fn new_file_number(&self) -> u64 {
        self.next_file_number.fetch_add(1, Relaxed)
    }

    /// Keeps numbers up to `number` from being used.
    pub(crate) fn skip_file_numbers(&self, number: u64) {
        (self.next_file_number).fetch_max(number.saturating_add(1), Relaxed);
    }

    pub(crate) fn current_max_size(&self) -> u64 {
        self.current_max_size.load(Relaxed)
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        self.open_dir().map_or(0, |opened| opened.dir.used_bytes())
    }

    /// Runs an operation in the pool and waits for it, at most `stall_timeout` and only while the
    /// disk is in service. A disk error takes effect before the function returns.
    ///
    /// # Errors
    /// See [`DiskError`].
    pub(crate) async fn run<R, F>(
        self: &Arc<Self>,
        kind: DiskOperationKind,
        work: F,
    ) -> Result<R, DiskError>
    where
        R: Send + 'static,
        F: FnOnce() -> io::Result<R> + Send + 'static,
    {
        let begun = clock::now();
        let this = Arc::clone(self);
        let work = move || {
            // The directory stays locked while the operation may write to it.
            let _opened = this.open_dir();
            work()
        };
        let result = self.wait_in_service(self.run_unchecked(kind, work)).await?;
        let micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        let (count, time) = match kind {
            DiskOperationKind::Write => (&self.counters.writes, &self.counters.write_micros),
            DiskOperationKind::Open | DiskOperationKind::Read => {
                (&self.counters.reads, &self.counters.read_micros)
            }
        };
        count.fetch_add(1, Relaxed);
        time.fetch_add(micros, Relaxed);
        if let Err(DiskError::Io(error)) = &result {
            self.handle_error(kind, error);
        }
        result
    }

    /// Waits for `work`, at most `stall_timeout` and only while the disk is in service.
    ///
    /// # Errors
    /// [`DiskError::OutOfService`].
    pub(crate) async fn wait_in_service<R>(
        &self,
        work: impl Future<Output = R>,
    ) -> Result<R, DiskError> {
        // Registered before the check, so that no outage is missed.
        let out = self.went_out.notified();
        if !self.is_working() {
            return Err(DiskError::OutOfService);
        }
        tokio::select! {
            result = work => Ok(result),
            () = out => Err(DiskError::OutOfService),
            () = clock::sleep(self.stall_timeout) => {
                self.check_stall();
                Err(DiskError::OutOfService)
            }
        }
    }

    /// Like [`Disk::run`], but without the health check, the time limit and the handling of errors.
    pub(crate) async fn run_unchecked<R, F>(
        self: &Arc<Self>,
        kind: DiskOperationKind,
        work: F,
    ) -> Result<R, DiskError>
    where
        R: Send + 'static,
        F: FnOnce() -> io::Result<R> + Send + 'static,
    {
        let this = Arc::clone(self);
        let tracked = move || {
            let _operation = RunningOperation::begin(this);
            work()
        };
        Ok(match kind {
            DiskOperationKind::Open => self.pool.run_priority(tracked).await,
            DiskOperationKind::Read | DiskOperationKind::Write => self.pool.run(tracked).await,
        }??)
    }

    /// Evicts objects until their weight is within the limit and, counting files already discarded,
    /// `bytes` more fit on the disk.
    pub(crate) fn evict_to_fit(&self, bytes: u64) {
        let bound = self.current_max_size();
        let needed = (self.used_bytes().saturating_add(bytes)).saturating_sub(bound);
        let needed = needed.saturating_sub(self.maintenance_queue().discarded_bytes);
        let (mut freed, mut counted) = (0, 0);
        let evicted = self.tier.evict(bound, |out| {
            freed += out[counted..]
                .iter()
                .map(|item| item.body.disk_bytes())
                .sum::<u64>();
            counted = out.len();
            freed >= needed
        });
        (self.counters.evicted).fetch_add(evicted.len() as u64, Relaxed);
        self.queue_discarded(evicted);
    }

    /// Reserves `bytes` in `folder`. Evicts objects and waits until their space is free.
    ///
    /// # Errors
    /// Fails if space is not free in time: responses being sent hold it, or the disk is slow.
    pub(crate) async fn reserve_space(
        &self,
        folder: &CacheDir,
        bytes: u64,
    ) -> Result<(), DiskError> {
        let deadline = clock::now() + self.stall_timeout.min(Duration::from_secs(5));
        loop {
            let freed = self.space_freed.notified();
            if !self.is_working() || folder.is_closed() {
                return Err(DiskError::OutOfService);
            }
            if folder.reserve_bytes(bytes, self.current_max_size()) {
                return Ok(());
            }
            self.evict_to_fit(bytes);
            if clock::timeout_at(deadline, freed).await.is_none() {
                return Err(DiskError::OutOfService);
            }
        }
    }
}

impl DiskOperationKind {
    fn error_text(self) -> &'static str {
        match self {
            Self::Open => "cannot open an object",
            Self::Read => "cannot read an object",
            Self::Write => "cannot write",
        }
    }
}

struct RunningOperation {
    disk: Arc<Disk>,
    id: u64,
}

impl RunningOperation {
    fn begin(disk: Arc<Disk>) -> Self {
        let id = disk.next_operation.fetch_add(1, Relaxed);
        disk.running_operations.lock().insert(id, clock::now());
        Self { disk, id }
    }
}

impl Drop for RunningOperation {
    fn drop(&mut self) {
        self.disk.running_operations.lock().remove(&self.id);
    }
}
