//! Probes a disk that is out of service, and releases its directory meanwhile.
//!
//! `maintenance` calls [`Maintenance::probe_disk`] while the disk is out of service. A directory
//! that still works is kept with its index. One that returns an error is released: an administrator
//! must be able to unmount it for repair, and its content may have changed since. It is then opened
//! again and its index rebuilt.
//!
//! # Invariants
//!
//! - Of a released directory only files that are being sent to clients stay open.
//! - One probe runs at a time.
//! - Everything that may block, including closing files, runs in the pool.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use penstock_runtime::clock;

use super::super::cache_dir::{self, CacheDir};
use super::super::disk::{Disk, DiskHealth, DiskOperationKind, OpenDir};
use super::super::purge_rules::NumberedPurges;
use super::{DIR_CHECK_INTERVAL, Maintenance, Recovery};

/// Delays before a disk that is out of service is probed: from the first, growing by half each
/// time, up to the last.
pub(super) const MIN_PROBE_DELAY: Duration = Duration::from_secs(1);
const MAX_PROBE_DELAY: Duration = Duration::from_secs(30);

/// A disk that fails again within this time after it entered service is probed with growing delays,
/// too.
const STABLE_TIME: Duration = Duration::from_secs(60);

impl Maintenance {
    /// Probes a disk that is out of service.
    pub(super) async fn probe_disk(&mut self) -> bool {
        self.close_released_dir();
        let now = clock::now();
        if now < self.probe_at || self.is_probing.swap(true, Relaxed) {
            return false;
        }
        let (path, below) = (self.disk.path.clone(), self.underlying_device);
        let (disk, is_probing) = (Arc::clone(&self.disk), Arc::clone(&self.is_probing));
        let probe = move || {
            let outcome = probe_dir(&disk, &path, below);
            if !matches!(outcome, Ok((None, _))) {
                // An administrator must be able to unmount it, and its content may have changed
                // afterwards.
                disk.release_dir();
                disk.drop_index();
            }
            is_probing.store(false, Relaxed);
            Ok(outcome)
        };
        let tried = self.disk.run_unchecked(DiskOperationKind::Write, probe);
        let outcome = match clock::timeout_at(now + self.disk.stall_timeout, tried).await {
            Some(Ok(outcome)) => outcome,
            Some(Err(error)) => {
                // The pool refused it.
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
                self.disk.update_outage_reason(why);
                self.probe_at = clock::now() + self.probe_delay;
                self.increase_probe_delay();
            }
        }
        self.disk.is_working()
    }

    /// Closes the remaining files of a released directory.
    fn close_released_dir(&mut self) {
        if self.disk.open_dir().is_some() {
            return;
        }
        let open = self.disk.take_open_files();
        let (work, recovery) = (self.disk.take_released_dir_work(), self.recovery.take());
        let removed = std::mem::take(&mut self.removed_still_open);
        if !open.is_empty() || !removed.is_empty() || work.is_some() || recovery.is_some() {
            let left = (open, removed, work, recovery);
            self.disk.pool.run_detached(move || drop(left));
        }
    }

    fn increase_probe_delay(&mut self) {
        self.probe_delay = (self.probe_delay * 3 / 2).min(MAX_PROBE_DELAY);
    }

    fn enter_service(&mut self, opened: Option<OpenDir>) {
        let now = clock::now();
        // A disk with successful probes but unreadable objects must not enter and leave service
        // continually.
        match self.in_service_since {
            Some(since) if now < since + STABLE_TIME => self.increase_probe_delay(),
            _ => self.probe_delay = MIN_PROBE_DELAY,
        }
        self.in_service_since = Some(now);
        self.probe_at = now + self.probe_delay;
        self.check_dir_at = now + DIR_CHECK_INTERVAL;
        if let Some(opened) = &opened {
            // Purges that were not written yet go to the journal of this directory.
            if !self.is_journal_dirty {
                self.journal = NumberedPurges::default();
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
        let health = match self.recovery {
            Some(_) => DiskHealth::Recovering,
            None => DiskHealth::Working,
        };
        self.disk.set_in_service(opened, health);
    }
}

/// The directory, if it was opened anew, and the underlying file system.
type ProbeResult = (Option<OpenDir>, Option<u64>);

/// Probes the open directory, or opens it anew. Blocks.
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
    let (folder, lock) = CacheDir::open(path, below).map_err(|error| error.to_string())?;
    let probed = folder.probe([disk.new_file_number(), disk.new_file_number()]);
    probed.map_err(|e| e.to_string())?;
    let opened = OpenDir {
        dir: Arc::new(folder),
        _lock: Arc::new(lock),
    };
    let below = cache_dir::underlying_device(path).map_err(|e| e.to_string())?;
    Ok((Some(opened), below))
}
