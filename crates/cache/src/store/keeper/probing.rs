//! How a disk that is out comes back in, and how its folder is left meanwhile.
//!
//! A part of `keeper`, which calls [`Keeper::probe`] while the disk is out. A folder that still works is used on as
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
use super::super::disk::{Disk, Health, Kind, Opened};
use super::super::folder::{self, Folder, OpenError};
use super::journal::Journal;
use super::{Keeper, LOOK_EVERY, Recovery};

/// A disk that is out is tried after the first, each time later by half, at most after the last.
pub(super) const PROBE_FIRST: Duration = Duration::from_secs(1);
const PROBE_LAST: Duration = Duration::from_secs(30);

/// One that goes out again within this time after it came in is tried later each time, too.
const STEADY: Duration = Duration::from_secs(60);

impl Keeper {
    /// Tries a disk that is out.
    pub(super) async fn probe(&mut self, store: &Arc<Store>) -> bool {
        self.close_left(store);
        let now = clock::now();
        if now < self.probe_at || self.is_probing.swap(true, Relaxed) {
            return false;
        }
        let (path, below) = (self.disk.path.clone(), self.below);
        let (disk, is_probing) = (Arc::clone(&self.disk), Arc::clone(&self.is_probing));
        let store_of_probe = Arc::downgrade(store);
        let probe = move || {
            let store = store_of_probe;
            let outcome = try_folder(&disk, &path, below);
            if !matches!(outcome, Ok((None, _))) {
                // Whoever mends it must be able to unmount it; and afterwards nothing in it is certain to be
                // as we left it.
                disk.leave();
                if let Some(store) = store.upgrade() {
                    store.lose_disk();
                }
            }
            is_probing.store(false, Relaxed);
            Ok(outcome)
        };
        let tried = self.disk.run_anyway(Kind::Write, probe);
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
                self.below = below;
                self.come_in(opened);
            }
            Err(why) => {
                self.disk.still_out(why);
                self.probe_at = clock::now() + self.probe_after;
                self.probe_later();
            }
        }
        self.disk.is_working()
    }

    /// Closes what is still open of a folder that was left, or was given back since.
    fn close_left(&mut self, store: &Store) {
        if self.disk.opened().is_some() {
            return;
        }
        let open = store.take_open();
        let (work, recovery) = (self.disk.take_left(), self.recovery.take());
        let dying = std::mem::take(&mut self.dying);
        if !open.is_empty() || !dying.is_empty() || work.is_some() || recovery.is_some() {
            let left = (open, dying, work, recovery);
            self.disk.pool.run_detached(move || drop(left));
        }
    }

    fn probe_later(&mut self) {
        self.probe_after = (self.probe_after * 3 / 2).min(PROBE_LAST);
    }

    fn come_in(&mut self, opened: Option<Opened>) {
        let now = clock::now();
        // One whose probes succeed and whose objects cannot be read is not to go in and out all the time.
        if self.in_at.is_some_and(|in_at| now < in_at + STEADY) {
            self.probe_later();
        } else {
            self.probe_after = PROBE_FIRST;
        }
        self.in_at = Some(now);
        self.probe_at = now + self.probe_after;
        self.look_at = now + LOOK_EVERY;
        if let Some(opened) = &opened {
            // Purges that were not noted yet are noted in this one.
            if !self.journal.is_dirty {
                self.journal = Journal::default();
            }
            self.recovery = Some(Recovery {
                folder: Arc::clone(&opened.folder),
                part: 0,
                names: Vec::new(),
                before: self.disk.number(),
                is_read: false,
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
            let probed = opened.folder.probe([disk.number(), disk.number()]);
            return probed.map(|()| (None, below)).map_err(|e| e.to_string());
        }
        drop(opened);
        disk.leave();
    }
    let (folder, lease) =
        Folder::open(path, below).map_err(|error: OpenError| error.to_string())?;
    let probed = folder.probe([disk.number(), disk.number()]);
    probed.map_err(|e| e.to_string())?;
    let opened = Opened {
        folder: Arc::new(folder),
        _lease: Arc::new(lease),
    };
    let below = folder::below(path).map_err(|e| e.to_string())?;
    Ok((Some(opened), below))
}
