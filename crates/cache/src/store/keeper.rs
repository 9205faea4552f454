//! What a store on a disk does beside requests: opens its folder, reads its index back in, removes files,
//! writes metas, brings small hot objects to memory, and finds out whether the disk works.
//!
//! One task for each store, on the loop (or control runtime) that started it; everything that may block goes
//! to the store's pool. It holds the store only while it works, so it ends with the store. What must stay
//! true: one operation after the other, so that the keeper never takes more than one thread of the
//! pool; reading the index back takes at most half of that thread's time.

pub(super) mod journal;

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use penstock_runtime::clock;

use journal::Journal;

use super::Store;
use super::disk::{Disk, DiskError, DiskItem, Dying, Health, Kind, Opened};
use super::file::{Found, ObjectFile, read_head};
use super::folder::{self, Folder, Name, OpenError};
use super::tier::Item;

/// How often the keeper looks around when nothing wakes it.
const TICK: Duration = Duration::from_millis(500);

/// How often it asks whether the folder is still where it was.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The bound of a disk that was full is raised a little this often.
const GROW_EVERY: Duration = Duration::from_secs(30);

/// A disk that is out is tried after the first, each time later by half, at most after the last.
const PROBE_FIRST: Duration = Duration::from_secs(1);
const PROBE_LAST: Duration = Duration::from_secs(30);

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
            let _ = clock::until(clock::now() + TICK, disk.bell.notified()).await;
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
                file => batch.push((dying, file)),
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
                Err(DiskError::Io(e)) if e.kind() == io::ErrorKind::InvalidData => {
                    store.damaged();
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
        if !recovery.is_swept {
            recovery.is_swept = true;
            self.read_purges(store, &folder).await;
            let sweep = move || folder.sweep(before);
            let _ = self.disk.run(Kind::Write, sweep).await;
            return true;
        }
        if recovery.names.is_empty() {
            let Ok(part) = u8::try_from(recovery.part) else {
                self.recovery = None;
                // Remembered purges go with the state, under one lock.
                store.recovered();
                return false;
            };
            let list = move || folder.names(part);
            if let Ok(mut names) = self.disk.run(Kind::Read, list).await {
                let highest = names.iter().map(|name| name.number).max();
                // Should the clock have been set back.
                names.retain(|name| name.number < before || !self.disk.is_known(*name));
                self.disk.skip_numbers(highest.unwrap_or(0));
                recovery.part += 1;
                recovery.names = names;
            } else if self.disk.is_working() {
                // A part that cannot be read is left out, as if it were empty.
                recovery.part += 1;
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
        if let Err(DiskError::Out | DiskError::Pool(_)) = self.disk.run(Kind::Read, read).await {
            recovery.names.extend(batch);
        }
        // Half of the time is for others.
        clock::sleep(begun.elapsed().min(TICK)).await;
        true
    }

    /// Tries a disk that is out.
    async fn probe(&mut self, store: &Arc<Store>) -> bool {
        let now = clock::now();
        if now < self.probe_at || self.is_probing.swap(true, Relaxed) {
            return false;
        }
        let (path, below) = (self.disk.path.clone(), self.below);
        let (disk, is_probing) = (Arc::clone(&self.disk), Arc::clone(&self.is_probing));
        let probe = move || {
            let outcome = try_folder(&disk, &path, below);
            is_probing.store(false, Relaxed);
            Ok(outcome)
        };
        let tried = self.disk.run_anyway(Kind::Write, probe);
        let outcome = match clock::until(now + self.disk.stall_timeout, tried).await {
            Some(Ok(outcome)) => outcome,
            Some(Err(error)) => {
                // The pool did not take it.
                self.is_probing.store(false, Relaxed);
                Err(error.to_string())
            }
            None => Err("it does not answer".to_owned()),
        };
        match outcome {
            Ok((opened, below)) => {
                self.below = below;
                self.probe_after = PROBE_FIRST;
                self.come_in(store, opened);
            }
            Err(why) => {
                self.disk.still_out(why);
                self.probe_at = clock::now() + self.probe_after;
                self.probe_after = (self.probe_after * 3 / 2).min(PROBE_LAST);
            }
        }
        self.disk.is_working()
    }

    fn come_in(&mut self, store: &Arc<Store>, opened: Option<Opened>) {
        // One that goes out again soon is tried after a second.
        self.probe_at = clock::now() + PROBE_FIRST;
        self.look_at = clock::now() + LOOK_EVERY;
        if let Some(opened) = &opened {
            self.dying.clear();
            self.journal = Journal::default();
            store.lose_disk();
            self.recovery = Some(Recovery {
                folder: Arc::clone(&opened.folder),
                part: 0,
                names: Vec::new(),
                before: self.disk.number(),
                is_swept: false,
            });
        }
        let health = if self.recovery.is_some() {
            Health::Recovering
        } else {
            Health::Working
        };
        self.disk.set_in(opened, health);
    }
}

/// A folder, if it was opened anew, and what is below it.
type Tried = (Option<Opened>, Option<u64>);

/// Tries the folder that is open, or opens it anew. Blocks.
fn try_folder(disk: &Disk, path: &Path, below: Option<u64>) -> Result<Tried, String> {
    if let Some(opened) = disk.opened() {
        let is_there = opened.folder.is_at(path).map_err(|e| e.to_string())?;
        if is_there {
            let probed = opened.folder.probe(disk.number());
            return probed.map(|()| (None, below)).map_err(|e| e.to_string());
        }
        drop(opened);
        disk.leave();
    }
    let (folder, lease) =
        Folder::open(path, below).map_err(|error: OpenError| error.to_string())?;
    folder.probe(disk.number()).map_err(|e| e.to_string())?;
    let opened = Opened {
        folder: Arc::new(folder),
        _lease: Arc::new(lease),
    };
    let below = folder::below(path).map_err(|e| e.to_string())?;
    Ok((Some(opened), below))
}

/// Enters one file that was found, or removes it. Blocks.
fn read_back(disk: &Disk, store: &Store, folder: &Arc<Folder>, name: Name) -> io::Result<()> {
    if disk.is_known(name) {
        // Read by an operation that was not waited for.
        return Ok(());
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

    /// A file is not on its way out any more.
    fn forget_dying(&self, dying: &Dying) {
        let mut work = self.work();
        work.dying_bytes = work.dying_bytes.saturating_sub(dying.bytes());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
