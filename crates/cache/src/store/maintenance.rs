//! Background work of a store on a disk: opens its directory, rebuilds its index, removes files,
//! writes metadata, reads small hot objects into memory, and probes the disk.
//!
//! One task for each store, on the event loop (or the control loop) that started it. Everything
//! that may block runs in the store's pool. The task holds the store only while it works, so it
//! ends with the store.
//!
//! # Invariants
//!
//! - Operations run one after another and use at most one thread of the pool.
//! - Rebuilding the index uses at most half of that thread's time.

mod disk_probe;
pub(super) mod purge_journal;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use penstock_runtime::clock;

use disk_probe::MIN_PROBE_DELAY;

use super::Store;
use super::cache_dir::{CacheDir, ObjectName};
use super::disk::{DiscardedFile, Disk, DiskError, DiskHealth, DiskIndexEntry, DiskOperationKind};
use super::object_file::{ObjectFile, read_head};
use super::purge_rules::NumberedPurges;
use super::tier::IndexedObject;

/// Time between rounds without a wake-up.
const TICK_INTERVAL: Duration = Duration::from_millis(500);

/// Time between checks of the directory's location.
const DIR_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Time between raises of a full disk's limit.
const SIZE_RAISE_INTERVAL: Duration = Duration::from_secs(30);

/// Files per operation.
const BATCH_SIZE: usize = 64;

/// Runs until the store ends.
pub(crate) async fn run_maintenance(store: Weak<Store>, disk: Arc<Disk>) {
    let mut maintenance = Maintenance {
        disk,
        recovery: None,
        underlying_device: None,
        is_probing: Arc::new(AtomicBool::new(false)),
        probe_at: clock::now(),
        probe_delay: MIN_PROBE_DELAY,
        in_service_since: None,
        check_dir_at: clock::now() + DIR_CHECK_INTERVAL,
        raise_size_at: clock::now() + SIZE_RAISE_INTERVAL,
        removed_still_open: Vec::new(),
        journal: NumberedPurges::default(),
        is_journal_dirty: false,
    };
    loop {
        let Some(store) = store.upgrade() else {
            return;
        };
        let has_more = match maintenance.disk.health() {
            DiskHealth::Stopped => return,
            DiskHealth::OutOfService => maintenance.probe_disk().await,
            DiskHealth::Working | DiskHealth::Recovering => maintenance.run_round(&store).await,
        };
        drop(store);
        if !has_more {
            let disk = Arc::clone(&maintenance.disk);
            // A round runs in either case.
            let _ = clock::timeout(TICK_INTERVAL, disk.maintenance_wakeup.notified()).await;
        }
    }
}

struct Maintenance {
    disk: Arc<Disk>,
    recovery: Option<Recovery>,
    /// The file system of the directory's path while its own is not mounted.
    underlying_device: Option<u64>,
    /// Set while a probe is in the pool: no second one is started.
    is_probing: Arc<AtomicBool>,
    probe_at: Instant,
    probe_delay: Duration,
    /// When the disk last entered service.
    in_service_since: Option<Instant>,
    check_dir_at: Instant,
    raise_size_at: Instant,
    removed_still_open: Vec<DiscardedFile>,
    /// Purges that are not applied to all files.
    journal: NumberedPurges,
    is_journal_dirty: bool,
}

/// Progress of rebuilding the index.
struct Recovery {
    dir: Arc<CacheDir>,
    /// The next of the 256 subdirectories.
    part: u16,
    names: Vec<ObjectName>,
    /// Files with this number or a higher one were written by this process and are in the index.
    first_own_number: u64,
    is_journal_read: bool,
    is_swept: bool,
}

impl Maintenance {
    /// Runs one round. Returns whether more work is ready.
    async fn run_round(&mut self, store: &Arc<Store>) -> bool {
        self.disk.check_stall();
        let now = clock::now();
        if now >= self.raise_size_at {
            self.raise_size_at = now + SIZE_RAISE_INTERVAL;
            self.disk.raise_max_size();
        }
        if now >= self.check_dir_at {
            self.check_dir_at = now + DIR_CHECK_INTERVAL;
            self.check_dir().await;
        }
        // Before files are removed: if the process is killed in between, purged objects must not
        // return.
        self.write_journal().await;
        let has_buried = self.remove_discarded().await;
        self.write_metas().await;
        self.read_promotions(store).await;
        self.disk.evict_to_fit(0);
        let has_found = self.recover_some(store).await;
        self.disk.is_working() && (has_buried || has_found)
    }

    /// Detects that the directory was deleted, replaced, unmounted or mounted over.
    async fn check_dir(&mut self) {
        let Some(opened) = self.disk.open_dir() else {
            return;
        };
        let path = self.disk.path.clone();
        let look = move || opened.dir.is_at(&path);
        if let Ok(false) = self.disk.run(DiskOperationKind::Write, look).await {
            self.disk
                .set_out_of_service("its directory was deleted, replaced or unmounted".to_owned());
        }
    }

    /// Removes discarded files. Returns whether there are more.
    async fn remove_discarded(&mut self) -> bool {
        let mut batch: Vec<_> = {
            let mut work = self.disk.maintenance_queue();
            let at = work.discarded.len().saturating_sub(BATCH_SIZE);
            work.discarded
                .drain(at..)
                .map(|file| (file, None))
                .collect()
        };
        // Removed files that are no longer being read can be closed now.
        let mut kept = Vec::new();
        for dying in self.removed_still_open.drain(..) {
            match dying.open_file() {
                Some(file) if Arc::strong_count(&file) > 1 => kept.push(dying),
                file => {
                    // Its bytes are about to be freed.
                    self.disk.add_discarded_bytes(&dying);
                    batch.push((dying, file));
                }
            }
        }
        self.removed_still_open = kept;
        if batch.is_empty() {
            return false;
        }
        let count = batch.len();
        let closing = self.disk.take_open_files_of_discarded();
        let batch = Arc::new(Mutex::new(batch));
        let (for_work, left) = (Arc::clone(&self.disk), Arc::clone(&batch));
        let remove = move || {
            drop(closing);
            let mut still_open = Vec::new();
            let mut removed = Ok(());
            // Taken one by one: files left by an error or a stall are retried when the disk works.
            while removed.is_ok()
                && let Some((dying, file)) = left.lock().pop()
            {
                removed = dying.remove();
                drop(file);
                if removed.is_err() {
                    left.lock().push((dying, None));
                } else if dying.open_file().is_some() {
                    // When its bytes will be free is unknown: other objects are evicted instead.
                    for_work.subtract_discarded_bytes(&dying);
                    still_open.push(dying);
                } else {
                    for_work.finish_discard(dying);
                }
            }
            for_work.space_freed.notify_waiters();
            removed.map(|()| still_open)
        };
        if let Ok(still_open) = self.disk.run(DiskOperationKind::Write, remove).await {
            self.removed_still_open.extend(still_open);
        }
        let left = std::mem::take(&mut *batch.lock());
        let left = left.into_iter().map(|(dying, _)| dying);
        self.disk.maintenance_queue().discarded.extend(left);
        count >= BATCH_SIZE
    }

    async fn write_metas(&mut self) {
        let batch: Vec<_> = {
            let mut work = self.disk.maintenance_queue();
            let count = work.rewrites.len().min(BATCH_SIZE);
            work.rewrites.drain(..count).collect()
        };
        if batch.is_empty() {
            return;
        }
        let write = move || {
            for item in batch {
                // The file may have been evicted meanwhile.
                match item.body.write_meta(&item.meta) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            Ok(())
        };
        // An error took the disk out of service. The metadata in memory is valid, and older
        // metadata on the disk is stale by itself.
        let _ = self.disk.run(DiskOperationKind::Write, write).await;
    }

    async fn read_promotions(&mut self, store: &Arc<Store>) {
        let batch: Vec<_> = self.disk.maintenance_queue().promotions.drain(..).collect();
        for item in batch {
            let object = Arc::clone(&item.body);
            let read = move || match object.read_body() {
                Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
                body => body.map(Some),
            };
            match self.disk.run(DiskOperationKind::Read, read).await {
                Ok(Some(body)) => store.insert_promoted(&self.disk, &item, body),
                Err(DiskError::Io(error)) => self.disk.remove_if_unreadable(&item, &error),
                _ => {}
            }
        }
    }

    /// Rebuilds a part of the index. Returns whether there is more.
    async fn recover_some(&mut self, store: &Arc<Store>) -> bool {
        let Some(recovery) = &mut self.recovery else {
            return false;
        };
        let begun = clock::now();
        let folder = Arc::clone(&recovery.dir);
        let before = recovery.first_own_number;
        if !recovery.is_journal_read {
            let is_read = self.read_journal(store, &folder).await;
            if let Some(recovery) = &mut self.recovery {
                recovery.is_journal_read = is_read;
            }
            return is_read;
        }
        if !recovery.is_swept {
            let sweep = move || folder.remove_stale_temporaries(before);
            let swept = self.disk.run(DiskOperationKind::Write, sweep).await;
            recovery.is_swept = !is_retryable(&swept);
            return recovery.is_swept;
        }
        if recovery.names.is_empty() {
            let Ok(part) = u8::try_from(recovery.part) else {
                self.recovery = None;
                // Clears the recorded purges and changes the state under one lock.
                store.finish_recovery(&self.disk);
                return false;
            };
            let list = move || folder.object_names(part);
            let listed = self.disk.run(DiskOperationKind::Read, list).await;
            if is_retryable(&listed) {
                return false;
            }
            // An unreadable subdirectory counts as empty.
            recovery.part += 1;
            if let Ok(mut names) = listed {
                let highest = names.iter().map(|name| name.number).max();
                // In case the clock was set back.
                names.retain(|name| name.number < before || !self.disk.has_object(*name));
                self.disk.skip_file_numbers(highest.unwrap_or(0));
                recovery.names = names;
            }
            return true;
        }
        let at = recovery.names.len().saturating_sub(BATCH_SIZE);
        let batch = recovery.names.split_off(at);
        let (disk, store, names) = (Arc::clone(&self.disk), Arc::clone(store), batch.clone());
        let read = move || {
            // An unreadable file stays where it is and does not affect the others.
            let read = names
                .into_iter()
                .map(|name| recover_file(&disk, &store, &folder, name));
            read.fold(Ok(()), io::Result::and)
        };
        let entered = self.disk.run(DiskOperationKind::Read, read).await;
        if is_retryable(&entered) {
            recovery.names.extend(batch);
            return false;
        }
        // Leaves half of the time to other operations.
        clock::sleep(begun.elapsed().min(TICK_INTERVAL)).await;
        true
    }
}

/// Whether an operation was not run, so that its result says nothing: the pool is full, or the disk
/// is out of service.
fn is_retryable<R>(result: &Result<R, DiskError>) -> bool {
    matches!(result, Err(DiskError::OutOfService | DiskError::Pool(_)))
}

/// Inserts a file that was found into the index, or removes it. Blocks.
fn recover_file(
    disk: &Disk,
    store: &Store,
    folder: &Arc<CacheDir>,
    name: ObjectName,
) -> io::Result<()> {
    if disk.has_object(name) {
        // Inserted by an operation after its waiter had given up.
        return Ok(());
    }
    if disk
        .maintenance_queue()
        .discarded_numbers
        .contains(&name.number)
    {
        return folder.remove_object(name);
    }
    match read_head(folder, name) {
        Ok((file, meta)) => {
            folder.count_existing_bytes(file.disk_bytes());
            let item = new_disk_entry(Arc::new(file), Arc::new(meta), disk.max_size);
            store.insert_recovered(disk, item);
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            disk.counters.errors.fetch_add(1, Relaxed);
            folder.remove_object(name)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Creates the index entry of a file, for a disk of `size_max` bytes.
///
/// Its weight is its disk usage, or more if its metadata uses much memory: metadata may use at most
/// a sixteenth of the limit, and on large disks 256 MiB and a 256th.
pub(crate) fn new_disk_entry(
    file: Arc<ObjectFile>,
    meta: Arc<super::ObjectMeta>,
    size_max: u64,
) -> Arc<DiskIndexEntry> {
    let memory_max = (size_max / 16).min((256 << 20) + size_max / 256).max(1);
    let by_memory = meta.memory_bytes().saturating_mul(size_max / memory_max);
    let weight = file.disk_bytes().max(by_memory);
    IndexedObject::new(file.name.hash, meta, file, weight)
}

impl DiscardedFile {
    /// Removes the file's name. Blocks.
    fn remove(&self) -> io::Result<()> {
        match self {
            Self::Object(object) if object.dir.is_closed() => Ok(()),
            Self::Object(object) => object.dir.remove_object(object.name),
            Self::Temporary { dir, number, .. } => match number {
                Some(number) if !dir.is_closed() => dir.remove_temporary(*number),
                _ => Ok(()),
            },
        }
    }

    /// The open file, while it is in use.
    fn open_file(&self) -> Option<Arc<penstock_runtime::DiskFile>> {
        match self {
            Self::Object(object) => object.open_file(),
            Self::Temporary { .. } => None,
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Object(object) => object.disk_bytes(),
            Self::Temporary { bytes, .. } => *bytes,
        }
    }
}

impl Disk {
    /// Closes a removed file and releases its bytes. Blocks.
    fn finish_discard(&self, dying: DiscardedFile) {
        self.subtract_discarded_bytes(&dying);
        match dying {
            DiscardedFile::Object(object) => object.dir.release_bytes(object.disk_bytes()),
            DiscardedFile::Temporary {
                dir, file, bytes, ..
            } => {
                drop(file);
                dir.release_bytes(bytes);
            }
        }
    }

    /// Whether an object in the index has this file.
    pub(super) fn has_object(&self, name: ObjectName) -> bool {
        self.tier
            .find_by_body(name.hash, |file| file.name == name)
            .is_some()
    }

    /// Counts a file's bytes as about to be freed.
    fn add_discarded_bytes(&self, dying: &DiscardedFile) {
        self.maintenance_queue().discarded_bytes += dying.bytes();
    }

    /// Stops counting a file's bytes as about to be freed: it is removed, or its readers keep it
    /// open.
    fn subtract_discarded_bytes(&self, dying: &DiscardedFile) {
        let mut work = self.maintenance_queue();
        work.discarded_bytes = work.discarded_bytes.saturating_sub(dying.bytes());
    }
}

#[cfg(test)]
mod tests;
