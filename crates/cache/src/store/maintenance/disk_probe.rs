//! How a disk that is out comes back in, and how its folder is left meanwhile.
//!
//! A part of `keeper`, which calls [`Maintenance::probe`] while the disk is out. A folder that still works is used on as
//! it is, with its index; one that answers with an error is left: whoever mends the disk must be able to
//! unmount it, and nothing in it is certain to be as it was left. It is opened anew and read back in.
//! What must stay true: of a folder that was left nothing stays open but what a client is being sent; one
//! probe at a time; everything that may block, closing included, is done in the pool.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use penstock_runtime::clock;

use super::super::Store;
use super::super::cache_dir::{self, CacheDir, OpenDirError};
use super::super::disk::{Disk, DiskHealth, OpenDir, OperationKind};
use super::purge_journal::PurgeJournal;
use super::{DIR_CHECK_INTERVAL, Maintenance, Recovery};

/// A disk that is out is tried after the first, each time later by half, at most after the last.
pub(super) const MIN_PROBE_DELAY: Duration = Duration::from_secs(1);
const MAX_PROBE_DELAY: Duration = Duration::from_secs(30);

/// One that goes out again within this time after it came in is tried later each time, too.
const STABLE_TIME: Duration = Duration::from_secs(60);

impl Maintenance {
    /// Tries a disk that is out.
    pub(super) async fn probe(&mut self, store: &Arc<Store>) -> bool {
        self.close_released_dir(store);
        let now = clock::now();
        if now < self.probe_at || self.is_probing.swap(true, Relaxed) {
            return false;
        }
        let (path, below) = (self.disk.path.clone(), self.underlying_device);
        let (disk, is_probing) = (Arc::clone(&self.disk), Arc::clone(&self.is_probing));
        let store_of_probe = Arc::downgrade(store);
        let probe = move || {
            let store = store_of_probe;
            let outcome = probe_dir(&disk, &path, below);
            if !matches!(outcome, Ok((None, _))) {
                // Whoever mends it must be able to unmount it; and afterwards nothing in it is certain to be
                // as we left it.
                disk.release_dir();
                if let Some(store) = store.upgrade() {
                    store.drop_disk_index();
                }
            }
            is_probing.store(false, Relaxed);
            Ok(outcome)
        };
        let tried = self.disk.run_unchecked(OperationKind::Write, probe);
        let outcome = match clock::timeout_at(now + self.disk.stall_timeout, tried).await {
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
                self.underlying_device = below;
                self.enter_service(opened);
            }
            Err(why) => {
                self.disk.record_still_out(why);
                self.probe_at = clock::now() + self.probe_delay;
                self.increase_probe_delay();
            }
        }
        self.disk.is_working()
    }

    /// Closes what is still open of a folder that was left, or was given back since.
    fn close_released_dir(&mut self, store: &Store) {
        if self.disk.open_dir().is_some() {
            return;
        }
        let open = store.take_open_files();
        let (work, recovery) = (self.disk.take_for_released_dir(), self.recovery.take());
        let dying = std::mem::take(&mut self.removed_still_open);
        if !open.is_empty() || !dying.is_empty() || work.is_some() || recovery.is_some() {
            let left = (open, dying, work, recovery);
            self.disk.pool.run_detached(move || drop(left));
        }
    }

    fn increase_probe_delay(&mut self) {
        self.probe_delay = (self.probe_delay * 3 / 2).min(MAX_PROBE_DELAY);
    }

    fn enter_service(&mut self, opened: Option<OpenDir>) {
        let now = clock::now();
        // One whose probes succeed and whose objects cannot be read is not to go in and out all the time.
        if self
            .in_service_since
            .is_some_and(|in_at| now < in_at + STABLE_TIME)
        {
            self.increase_probe_delay();
        } else {
            self.probe_delay = MIN_PROBE_DELAY;
        }
        self.in_service_since = Some(now);
        self.probe_at = now + self.probe_delay;
        self.check_dir_at = now + DIR_CHECK_INTERVAL;
        if let Some(opened) = &opened {
            // Purges that were not noted yet are noted in this one.
            if !self.journal.is_dirty {
                self.journal = PurgeJournal::default();
            }
            self.recovery = Some(Recovery {
                dir: Arc::clone(&opened.dir),
                part: 0,
                names: Vec::new(),
                first_own_number: self.disk.new_file_number(),
                is_journal_read: false,
                is_swept: false,
            });
        }
        let health = if self.recovery.is_some() {
            DiskHealth::Recovering
        } else {
            DiskHealth::Working
        };
        self.disk.set_in_service(opened, health);
    }
}

/// A folder, if it was opened anew, and what is below it.
type ProbeResult = (Option<OpenDir>, Option<u64>);

/// Tries the folder that is open, or opens it anew. Blocks.
fn probe_dir(disk: &Disk, path: &Path, below: Option<u64>) -> Result<ProbeResult, String> {
    if let Some(opened) = disk.open_dir() {
        let is_there = opened.dir.is_at(path).map_err(|e| e.to_string())?;
        if is_there {
            let probed = opened
                .dir
                .probe([disk.new_file_number(), disk.new_file_number()]);
            return probed.map(|()| (None, below)).map_err(|e| e.to_string());
        }
        drop(opened);
        disk.release_dir();
    }
    let (folder, lease) =
        CacheDir::open(path, below).map_err(|error: OpenDirError| error.to_string())?;
    let probed = folder.probe([disk.new_file_number(), disk.new_file_number()]);
    probed.map_err(|e| e.to_string())?;
    let opened = OpenDir {
        dir: Arc::new(folder),
        _lock: Arc::new(lease),
    };
    let below = cache_dir::underlying_device(path).map_err(|e| e.to_string())?;
    Ok((Some(opened), below))
}
