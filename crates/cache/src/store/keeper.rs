//! What a store on a disk does beside requests: opens its folder, reads its index back in, removes files,
//! writes metas, brings small hot objects to memory, and finds out whether the disk works.
//!
//! One task for each store, on the loop (or the control loop) that started it; everything that may block goes
//! to the store's pool. It holds the store only while it works, so it ends with the store. What must stay
//! true: one operation after the other, so that the keeper never takes more than one thread of the
//! pool; reading the index back takes at most half of that thread's time.

pub(super) mod journal;
mod probing;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use penstock_runtime::clock;

use journal::Journal;
use probing::PROBE_FIRST;

use super::Store;
use super::disk::{Disk, DiskError, DiskItem, Dying, Health, Kind};
use super::entering::{is_damage, is_lost};
use super::file::{Found, ObjectFile, read_head};
use super::folder::{Folder, Name};
use super::tier::Item;

/// How often the keeper looks around when nothing wakes it.
const TICK: Duration = Duration::from_millis(500);

/// How often it asks whether the folder is still where it was.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The bound of a disk that was full is raised a little this often.
const GROW_EVERY: Duration = Duration::from_secs(30);

/// Files that one operation looks at or removes.
const BATCH: usize = 64;

/// Runs until the store ends.
pub(crate) async fn keep(store: Weak<Store>, disk: Arc<Disk>) {
    let mut keeper = Keeper {
        disk,
        recovery: None,
        below: None,
        is_probing: Arc::new(AtomicBool::new(false)),
        probe_at: clock::now(),
        probe_after: PROBE_FIRST,
        in_at: None,
        look_at: clock::now() + LOOK_EVERY,
        grow_at: clock::now() + GROW_EVERY,
        dying: Vec::new(),
        journal: Journal::default(),
    };
    loop {
        let Some(store) = store.upgrade() else {
            return;
        };
        let has_more = match keeper.disk.health() {
            Health::Stopped => return,
            Health::Out => keeper.probe(&store).await,
            Health::Working | Health::Recovering => keeper.work(&store).await,
        };
        drop(store);
        if !has_more {
            let disk = Arc::clone(&keeper.disk);
            // Woken or not: it looks.
            let _ = clock::timeout(TICK, disk.bell.notified()).await;
        }
    }
}

struct Keeper {
    disk: Arc<Disk>,
    recovery: Option<Recovery>,
    /// The file system that the folder's path leads to when its own is not mounted.
    below: Option<u64>,
    /// A probe is in the pool: no second one is sent after it.
    is_probing: Arc<AtomicBool>,
    probe_at: Instant,
    probe_after: Duration,
    /// When it came in last.
    in_at: Option<Instant>,
    look_at: Instant,
    grow_at: Instant,
    /// Removed, and still open.
    dying: Vec<Dying>,
    journal: Journal,
}

/// Where reading the index back is.
struct Recovery {
    folder: Arc<Folder>,
    /// The next of the 256 parts.
    part: u16,
    names: Vec<Name>,
    /// Files from this number on are of this process: known already.
    before: u64,
    /// The folder's note of purges is known.
    is_read: bool,
    is_swept: bool,
}

impl Keeper {
    /// One round of work; whether there is more at once.
    async fn work(&mut self, store: &Arc<Store>) -> bool {
        self.disk.check_stall();
        let now = clock::now();
        if now >= self.grow_at {
            self.grow_at = now + GROW_EVERY;
            self.disk.grow_bound();
        }
        if now >= self.look_at {
            self.look_at = now + LOOK_EVERY;
            self.look().await;
        }
        // Before any file goes: a kill in between must not bring back what was purged.
        self.note_purges().await;
        let has_buried = self.bury(store).await;
        self.rewrite().await;
        self.promote(store).await;
        self.disk.make_room(0);
        let has_found = self.recover(store).await;
        self.disk.is_working() && (has_buried || has_found)
    }

    /// Notices a folder that was deleted, replaced, unmounted or mounted over.
    async fn look(&mut self) {
        let Some(opened) = self.disk.opened() else {
            return;
        };
        let path = self.disk.path.clone();
        let look = move || opened.folder.is_at(&path);
        if let Ok(false) = self.disk.run(Kind::Write, look).await {
            self.disk
                .set_out("its folder was deleted, replaced or unmounted".to_owned());
        }
    }

    /// Removes files that are not wanted any more; whether there are more.
    async fn bury(&mut self, store: &Store) -> bool {
        let batch: Vec<_> = {
            let mut work = self.disk.work();
            let at = work.dying.len().saturating_sub(BATCH);
            work.dying.split_off(at)
        };
        let mut batch: Vec<_> = batch.into_iter().map(|dying| (dying, None)).collect();
        // What was removed before and is not read any more can be closed now.
        let mut kept = Vec::new();
        for dying in self.dying.drain(..) {
            match dying.in_use() {
                Some(file) if Arc::strong_count(&file) > 1 => kept.push(dying),
                file => {
                    // From here on its bytes are about to be free.
                    self.disk.count_dying(&dying);
                    batch.push((dying, file));
                }
            }
        }
        self.dying = kept;
        if batch.is_empty() {
            return false;
        }
        let count = batch.len();
        let closing = store.open_of_dying();
        let batch = Arc::new(Mutex::new(batch));
        let (for_work, left) = (Arc::clone(&self.disk), Arc::clone(&batch));
        let remove = move || {
            drop(closing);
            let mut still_open = Vec::new();
            let mut removed = Ok(());
            // Taken one by one: what an error or a stall leaves is tried again when the disk works.
            while removed.is_ok()
                && let Some((dying, file)) = lock(&left).pop()
            {
                removed = dying.remove();
                drop(file);
                if removed.is_err() {
                    lock(&left).push((dying, None));
                } else if dying.in_use().is_some() {
                    // Nobody knows when its bytes are free: others go for what is needed.
                    for_work.forget_dying(&dying);
                    still_open.push(dying);
                } else {
                    for_work.freed(dying);
                }
            }
            for_work.room.notify_waiters();
            removed.map(|()| still_open)
        };
        if let Ok(still_open) = self.disk.run(Kind::Write, remove).await {
            self.dying.extend(still_open);
        }
        let left = std::mem::take(&mut *lock(&batch));
        let mut work = self.disk.work();
        work.dying.extend(left.into_iter().map(|(dying, _)| dying));
        count >= BATCH
    }

    /// Writes metas that changed.
    async fn rewrite(&mut self) {
        let batch: Vec<_> = {
            let mut work = self.disk.work();
            let count = work.rewrites.len().min(BATCH);
            work.rewrites.drain(..count).collect()
        };
        if batch.is_empty() {
            return;
        }
        let write = move || {
            for item in batch {
                // One that was evicted meanwhile is not there any more.
                match item.body.write_meta(&item.meta) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            Ok(())
        };
        // An error took the disk out; the metas in memory are the valid ones, and older ones are
        // stale on their own account.
        let _ = self.disk.run(Kind::Write, write).await;
    }

    /// Reads small hot objects into memory.
    async fn promote(&mut self, store: &Arc<Store>) {
        let batch: Vec<_> = self.disk.work().promotions.drain(..).collect();
        for item in batch {
            let object = Arc::clone(&item.body);
            let read = move || match object.read_body() {
                Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
                body => body.map(Some),
            };
            match self.disk.run(Kind::Read, read).await {
                Ok(Some(body)) => store.promoted(&item, body),
                Err(DiskError::Io(e)) if is_lost(&e) => {
                    if is_damage(&e) {
                        store.damaged();
                    }
                    store.forget_item(&item);
                }
                _ => {}
            }
        }
    }

    /// Reads some of the index back in; whether there is more.
    async fn recover(&mut self, store: &Arc<Store>) -> bool {
        let Some(recovery) = &mut self.recovery else {
            return false;
        };
        let begun = clock::now();
        let folder = Arc::clone(&recovery.folder);
        let before = recovery.before;
        if !recovery.is_read {
            let is_read = self.read_purges(store, &folder).await;
            if let Some(recovery) = &mut self.recovery {
                recovery.is_read = is_read;
            }
            return is_read;
        }
        if !recovery.is_swept {
            let sweep = move || folder.sweep(before);
            let swept = self.disk.run(Kind::Write, sweep).await;
            recovery.is_swept = !is_for_later(&swept);
            return recovery.is_swept;
        }
        if recovery.names.is_empty() {
            let Ok(part) = u8::try_from(recovery.part) else {
                self.recovery = None;
                // Remembered purges go with the state, under one lock.
                store.recovered();
                return false;
            };
            let list = move || folder.names(part);
            let listed = self.disk.run(Kind::Read, list).await;
            if is_for_later(&listed) {
                return false;
            }
            // A part that cannot be read is left out, as if it were empty.
            recovery.part += 1;
            if let Ok(mut names) = listed {
                let highest = names.iter().map(|name| name.number).max();
                // Should the clock have been set back.
                names.retain(|name| name.number < before || !self.disk.is_known(*name));
                self.disk.skip_numbers(highest.unwrap_or(0));
                recovery.names = names;
            }
            return true;
        }
        let at = recovery.names.len().saturating_sub(BATCH);
        let batch = recovery.names.split_off(at);
        let (disk, store, names) = (Arc::clone(&self.disk), Arc::clone(store), batch.clone());
        let read = move || {
            // A file that cannot be read is left where it is, and costs no other its place.
            let mut result = Ok(());
            for name in names {
                let read = read_back(&disk, &store, &folder, name);
                result = result.and(read);
            }
            result
        };
        let entered = self.disk.run(Kind::Read, read).await;
        if is_for_later(&entered) {
            recovery.names.extend(batch);
            return false;
        }
        // Half of the time is for others.
        clock::sleep(begun.elapsed().min(TICK)).await;
        true
    }
}

/// Whether an operation was not done and says nothing of what it was for: the pool is full, or the disk is not
/// waited for.
fn is_for_later<R>(result: &Result<R, DiskError>) -> bool {
    matches!(result, Err(DiskError::Out | DiskError::Pool(_)))
}

/// Enters one file that was found, or removes it. Blocks.
fn read_back(disk: &Disk, store: &Store, folder: &Arc<Folder>, name: Name) -> io::Result<()> {
    if disk.is_known(name) {
        // Read by an operation that was not waited for.
        return Ok(());
    }
    if disk.work().doomed.contains(&name.number) {
        return folder.remove(name);
    }
    match read_head(folder, name) {
        Ok(Found { file, meta }) => {
            folder.found(file.disk_bytes());
            let item = new_item(Arc::new(file), Arc::new(meta), disk.size_max);
            store.found(item);
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            disk.counts.errors.fetch_add(1, Relaxed);
            folder.remove(name)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// The index's entry of a file, for a disk of `size_max` bytes.
///
/// It weighs what it takes on the disk, or more when what is known of it takes much memory: at most a sixteenth of
/// the bound is in memory for it, and for large disks 256 MiB and a 256th.
pub(crate) fn new_item(
    file: Arc<ObjectFile>,
    meta: Arc<super::Meta>,
    size_max: u64,
) -> Arc<DiskItem> {
    let memory_max = (size_max / 16).min((256 << 20) + size_max / 256).max(1);
    let by_memory = meta.memory().saturating_mul(size_max / memory_max);
    let weight = file.disk_bytes().max(by_memory);
    Item::new(file.name.hash, meta, file, weight)
}

impl Dying {
    /// Removes the file's name. Blocks.
    fn remove(&self) -> io::Result<()> {
        match self {
            Self::Object(object) if object.folder.is_closed() => Ok(()),
            Self::Object(object) => object.folder.remove(object.name),
            Self::Temporary { folder, number, .. } => match number {
                Some(number) if !folder.is_closed() => folder.remove_temporary(*number),
                _ => Ok(()),
            },
        }
    }

    /// The open file, while somebody reads it.
    fn in_use(&self) -> Option<Arc<penstock_runtime::DiskFile>> {
        match self {
            Self::Object(object) => object.in_use(),
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
    /// A file is gone, and closed with this. Blocks.
    fn freed(&self, dying: Dying) {
        self.forget_dying(&dying);
        match dying {
            Dying::Object(object) => object.folder.release(object.disk_bytes()),
            Dying::Temporary {
                folder,
                file,
                bytes,
                ..
            } => {
                drop(file);
                folder.release(bytes);
            }
        }
    }

    /// Whether an object of the index has this file.
    pub(super) fn is_known(&self, name: Name) -> bool {
        self.tier.has(name.hash, |file| file.name == name)
    }

    /// A file is on its way out: its bytes need not be freed by others.
    fn count_dying(&self, dying: &Dying) {
        self.work().dying_bytes += dying.bytes();
    }

    /// A file is not on its way out any more, or it takes as long as its readers do.
    fn forget_dying(&self, dying: &Dying) {
        let mut work = self.work();
        work.dying_bytes = work.dying_bytes.saturating_sub(dying.bytes());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
