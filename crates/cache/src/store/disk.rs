//! A store's disk: whether it works, what is to be done on it, and every operation's way into the pool.
//!
//! All that may block is run by [`Disk::run`], which counts and times it, gives up waiting after
//! `stall_timeout` (the operation itself cannot be ended), and draws the conclusion from an error: the disk
//! is out. `keeper` probes it back in and works off what is queued here: files to be removed, metas to
//! be written, small hot objects to be read into memory.
//!
//! What must stay true: nobody waits for a disk that is out; a failure is logged once per cause; every
//! queue here is bounded; bytes of a file count until its last descriptor is closed.

mod health;
mod queue;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use penstock_runtime::blocking::{Pool, PoolError};
use penstock_runtime::clock;
use tokio::sync::Notify;

use super::cache_dir::{CacheDir, DirLock};
use super::object_file::ObjectFile;
use super::tier::{IndexedObject, Tier};

pub(crate) use health::DiskHealth;
use health::OutageReason;
use queue::MaintenanceQueue;
pub(crate) use queue::{DiscardedFile, MAX_DISCARDED_FILES};

/// A stored object on the disk.
pub(crate) type DiskItem = IndexedObject<Arc<ObjectFile>>;

/// The disk of a store.
#[derive(Debug)]
pub(crate) struct Disk {
    /// The store's name, for the log.
    pub(crate) name: String,
    /// Its folder's path.
    pub(crate) path: PathBuf,
    /// The bound of its bytes, by the configuration.
    pub(crate) max_size: u64,
    /// Operations that take longer are not waited for.
    pub(crate) stall_timeout: Duration,
    /// What runs its operations.
    pub(crate) pool: Pool,
    /// Its objects.
    pub(crate) tier: Tier<Arc<ObjectFile>>,
    /// Wakes the keeper.
    pub(crate) wake_maintenance: Notify,
    /// Bytes were freed.
    pub(crate) space_freed: Notify,
    /// What was done.
    pub(crate) counters: DiskCounters,
    health: AtomicU8,
    /// It went out, or the store ended.
    went_out: Notify,
    /// The bound of its bytes now: less than `size_max` while the file system is full.
    current_max_size: AtomicU64,
    /// Each of these is held for a moment only.
    open_dir: Mutex<Option<OpenDir>>,
    outage_reason: Mutex<OutageReason>,
    maintenance_queue: Mutex<MaintenanceQueue>,
    /// When each operation that is running began.
    running_operations: Mutex<HashMap<u64, Instant>>,
    next_operation: AtomicU64,
    next_file_number: AtomicU64,
}

/// A folder that may be written to.
#[derive(Debug, Clone)]
pub(crate) struct OpenDir {
    /// The folder.
    pub(crate) dir: Arc<CacheDir>,
    /// The right to write into it.
    pub(crate) _lock: Arc<DirLock>,
}

/// Counters of a disk.
#[derive(Debug, Default)]
pub(crate) struct DiskCounters {
    pub(crate) evicted: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) read_micros: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) write_micros: AtomicU64,
}

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OperationKind {
    /// Opening and reading; ahead of others.
    Open,
    /// Reading.
    Read,
    /// Writing, renaming, removing.
    Write,
}

/// Why an operation gave nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DiskError {
    /// The disk is out, or went out meanwhile, or took too long.
    #[error("the disk is not waited for")]
    OutOfService,
    /// The pool did not take it.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The disk's answer.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Disk {
    /// A disk that is not open yet.
    pub(crate) fn new(config: &penstock_config::Cache, path: PathBuf, pool: Pool) -> Self {
        let nanos = u64::try_from(clock::wall().as_nanos()).unwrap_or(1);
        Self {
            name: config.name.clone(),
            path,
            max_size: config.max_size,
            stall_timeout: config.stall_timeout,
            pool,
            tier: Tier::new(),
            wake_maintenance: Notify::new(),
            space_freed: Notify::new(),
            counters: DiskCounters::default(),
            health: AtomicU8::new(DiskHealth::OutOfService as u8),
            went_out: Notify::new(),
            current_max_size: AtomicU64::new(config.max_size),
            open_dir: Mutex::default(),
            outage_reason: Mutex::new(OutageReason::new("its folder is being opened")),
            maintenance_queue: Mutex::default(),
            running_operations: Mutex::default(),
            next_operation: AtomicU64::new(0),
            // Files of a former process have lower numbers, as it began earlier and made fewer than one
            // in a nanosecond; recovery raises it above all that it finds, should the clock have been set back.
            next_file_number: AtomicU64::new(nanos),
        }
    }

    /// The folder, while it may be written to.
    pub(crate) fn open_dir(&self) -> Option<OpenDir> {
        lock(&self.open_dir).clone()
    }

    /// A number that no file has or had.
    pub(crate) fn new_file_number(&self) -> u64 {
        self.next_file_number.fetch_add(1, Relaxed)
    }

    /// No number up to `number` is given any more.
    pub(crate) fn skip_numbers(&self, number: u64) {
        let next = number.saturating_add(1);
        self.next_file_number.fetch_max(next, Relaxed);
    }

    /// The bound of its bytes now.
    pub(crate) fn current_max_size(&self) -> u64 {
        self.current_max_size.load(Relaxed)
    }

    /// Bytes on the disk, as they are counted.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.open_dir().map_or(0, |opened| opened.dir.used_bytes())
    }

    /// Runs one operation in the pool and waits for it, but not longer than `stall_timeout` and not once
    /// the disk is out. An error of the disk's has its consequences before it is given.
    ///
    /// # Errors
    /// See [`DiskError`].
    pub(crate) async fn run<R, F>(
        self: &Arc<Self>,
        kind: OperationKind,
        work: F,
    ) -> Result<R, DiskError>
    where
        R: Send + 'static,
        F: FnOnce() -> io::Result<R> + Send + 'static,
    {
        let begun = clock::now();
        let this = Arc::clone(self);
        let work = move || {
            // The folder's lock is held for as long as something may be written to it.
            let opened = this.open_dir();
            let result = work();
            drop(opened);
            result
        };
        let result = self.unless_out(self.run_unchecked(kind, work)).await?;
        let micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        let (count, time) = match kind {
            OperationKind::Write => (&self.counters.writes, &self.counters.write_micros),
            OperationKind::Open | OperationKind::Read => {
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

    /// Waits for `work`, but not longer than `stall_timeout` and not once the disk is out.
    ///
    /// # Errors
    /// [`DiskError::OutOfService`].
    pub(crate) async fn unless_out<R>(
        &self,
        work: impl Future<Output = R>,
    ) -> Result<R, DiskError> {
        // Before the question, so that no going out is missed.
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

    /// As [`Disk::run`], without looking at the disk's health, waiting as long as it takes, without
    /// consequences.
    pub(crate) async fn run_unchecked<R, F>(
        self: &Arc<Self>,
        kind: OperationKind,
        work: F,
    ) -> Result<R, DiskError>
    where
        R: Send + 'static,
        F: FnOnce() -> io::Result<R> + Send + 'static,
    {
        let this = Arc::clone(self);
        let tracked = move || {
            let operation = RunningOperation::begin(this);
            let result = work();
            drop(operation);
            result
        };
        let result = if kind == OperationKind::Open {
            self.pool.run_priority(tracked).await
        } else {
            self.pool.run(tracked).await
        };
        Ok(result??)
    }

    /// Evicts until the objects' weight is within the bound and, with what is dying already, `bytes` more fit
    /// on the disk.
    pub(crate) fn evict_for(&self, bytes: u64) {
        let bound = self.current_max_size();
        let needed = (self.used_bytes().saturating_add(bytes)).saturating_sub(bound);
        let needed = needed.saturating_sub(self.maintenance_queue().discarded_bytes);
        let mut freed = 0;
        let mut counted = 0;
        let evicted = self.tier.evict(bound, |out| {
            freed += out[counted..]
                .iter()
                .map(|item| item.body.disk_bytes())
                .sum::<u64>();
            counted = out.len();
            freed >= needed
        });
        self.counters
            .evicted
            .fetch_add(evicted.len() as u64, Relaxed);
        self.discard(evicted);
    }

    /// Reserves `bytes` in `folder`; evicts and waits for what that frees.
    ///
    /// # Errors
    /// When there is no room in time: what is being served holds it, or the disk is slow.
    pub(crate) async fn reserve(&self, folder: &CacheDir, bytes: u64) -> Result<(), DiskError> {
        let deadline = clock::now() + self.stall_timeout.min(Duration::from_secs(5));
        loop {
            let freed = self.space_freed.notified();
            if !self.is_working() || folder.is_closed() {
                return Err(DiskError::OutOfService);
            }
            if folder.reserve(bytes, self.current_max_size()) {
                return Ok(());
            }
            self.evict_for(bytes);
            if clock::timeout_at(deadline, freed).await.is_none() {
                return Err(DiskError::OutOfService);
            }
        }
    }
}

impl OperationKind {
    fn error_text(self) -> &'static str {
        match self {
            Self::Open => "cannot open an object",
            Self::Read => "cannot read an object",
            Self::Write => "cannot write",
        }
    }
}

/// One operation while it is running.
struct RunningOperation {
    disk: Arc<Disk>,
    id: u64,
}

impl RunningOperation {
    fn begin(disk: Arc<Disk>) -> Self {
        let id = disk.next_operation.fetch_add(1, Relaxed);
        lock(&disk.running_operations).insert(id, clock::now());
        Self { disk, id }
    }
}

impl Drop for RunningOperation {
    fn drop(&mut self) {
        lock(&self.disk.running_operations).remove(&self.id);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
