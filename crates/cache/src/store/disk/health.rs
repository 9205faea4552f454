//! A disk's health, as changed by errors, stalls and probes.
//!
//! An error of the disk takes it out of service; an error of a file, or of this process (too few
//! descriptors), does not. A full file system first lowers the limit to what fits.
//!
//! # Invariants
//!
//! - Each cause is logged once, and again only after a minute.
//! - A stopped disk stays stopped.

use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use penstock_runtime::clock;
use rustix::io::Errno;

use super::{Disk, DiskOperationKind, OpenDir};

/// Time after which the same failure is logged again.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Whether a disk is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiskHealth {
    Working,
    /// In service, with an incomplete index.
    Recovering,
    OutOfService,
    Stopped,
}

/// Why a disk is out of service, and what was logged last.
#[derive(Debug)]
pub(super) struct OutageReason {
    pub(super) text: String,
    pub(super) last_logged: Option<(String, Instant)>,
}

impl Disk {
    pub(crate) fn health(&self) -> DiskHealth {
        match self.health.load(Relaxed) {
            0 => DiskHealth::Working,
            1 => DiskHealth::Recovering,
            2 => DiskHealth::OutOfService,
            _ => DiskHealth::Stopped,
        }
    }

    pub(crate) fn is_working(&self) -> bool {
        matches!(self.health(), DiskHealth::Working | DiskHealth::Recovering)
    }

    pub(crate) fn outage_reason(&self) -> String {
        self.outage_reason.lock().text.clone()
    }

    /// How long the oldest operation has been running.
    pub(crate) fn oldest_operation_age(&self) -> Option<Duration> {
        let oldest = self.running_operations.lock().values().min().copied();
        oldest.map(|begun| clock::now().saturating_duration_since(begun))
    }

    /// Takes the disk out of service if its oldest operation has stalled.
    pub(crate) fn check_stall(&self) {
        // The pool also knows the bodies that are read while they are sent.
        let oldest = self.oldest_operation_age().max(self.pool.oldest_job_time());
        if let Some(oldest) = oldest
            && oldest >= self.stall_timeout
        {
            // Without the duration: it is one cause, however long it lasts.
            self.set_out_of_service("an operation has stalled".to_owned());
        }
    }

    pub(crate) fn handle_error(&self, kind: DiskOperationKind, error: &io::Error) {
        let errno = error.raw_os_error().map(Errno::from_raw_os_error);
        let blames_disk = match errno {
            // On reading, the object's file was removed, which its reader notices. On writing, the
            // directory was removed.
            Some(Errno::NOENT) if kind == DiskOperationKind::Write => true,
            Some(
                Errno::IO
                | Errno::ROFS
                | Errno::ACCESS
                | Errno::PERM
                | Errno::NODEV
                | Errno::NXIO
                | Errno::STALE
                | Errno::TIMEDOUT
                | Errno::NOTCONN
                | Errno::NOTDIR
                | Errno::LOOP
                | Errno::NOTSUP
                | Errno::UCLEAN,
            ) => true,
            Some(Errno::NOSPC | Errno::DQUOT) => {
                return self.handle_full();
            }
            // A damaged or lost object, which its reader counts.
            None | Some(Errno::NOENT) => return,
            // Too few descriptors or too little memory: not the disk's fault.
            _ => false,
        };
        self.counters.errors.fetch_add(1, Relaxed);
        if blames_disk {
            self.set_out_of_service(format!("{}: {error}", kind.error_text()));
        }
    }

    /// Handles a full file system: lowers the limit to slightly less than what fits, or takes the
    /// disk out of service if that is almost nothing.
    fn handle_full(&self) {
        self.counters.errors.fetch_add(1, Relaxed);
        let used = self.used_bytes();
        let bound = (used - used / 16).min(self.current_max_size());
        if bound < (self.max_size / 64).min(16 << 20) {
            return self.set_out_of_service("no space left on its file system".to_owned());
        }
        if self.current_max_size.swap(bound, Relaxed) > bound {
            let megabytes = bound >> 20;
            self.log_throttled(&format!(
                "its file system is full: size limited to {megabytes} MB"
            ));
        }
        self.maintenance_wakeup.notify_one();
    }

    /// Raises a lowered limit by one step.
    pub(crate) fn raise_max_size(&self) {
        let bound = self.current_max_size();
        if bound < self.max_size {
            let more = bound.saturating_add((bound / 16).max(1 << 20));
            (self.current_max_size).store(more.min(self.max_size), Relaxed);
        }
    }

    pub(crate) fn set_out_of_service(&self, why: String) {
        let was = self.health();
        if was == DiskHealth::Stopped {
            return;
        }
        self.health.store(DiskHealth::OutOfService as u8, Relaxed);
        self.went_out.notify_waiters();
        self.space_freed.notify_waiters();
        if was != DiskHealth::OutOfService {
            self.log_throttled(&format!("out of service: {why}"));
        }
        self.outage_reason.lock().text = why;
        self.maintenance_wakeup.notify_one();
    }

    /// Records why the disk is still out of service.
    pub(crate) fn update_outage_reason(&self, why: String) {
        let is_new = self.outage_reason.lock().text != why;
        if is_new {
            self.log_throttled(&format!("out of service: {why}"));
            self.outage_reason.lock().text = why;
        }
    }

    /// Puts the disk back in service. `opened` is a newly opened directory, not indexed yet.
    pub(crate) fn set_in_service(&self, opened: Option<OpenDir>, health: DiskHealth) {
        if self.health() == DiskHealth::Stopped {
            return;
        }
        if let Some(opened) = opened {
            let before = self.open_dir.lock().replace(opened);
            if let Some(before) = before {
                before.dir.close();
            }
            self.current_max_size.store(self.max_size, Relaxed);
        }
        let was_logged = self.outage_reason.lock().last_logged.is_some();
        if self.health.swap(health as u8, Relaxed) == DiskHealth::OutOfService as u8 && was_logged {
            log::warn!(
                "cache {}: back in service (path={})",
                self.name,
                self.path.display()
            );
        }
        self.maintenance_wakeup.notify_one();
    }

    /// Marks the index as complete.
    pub(crate) fn set_recovered(&self) {
        let (from, to) = (DiskHealth::Recovering as u8, DiskHealth::Working as u8);
        let _ = self.health.compare_exchange(from, to, Relaxed, Relaxed);
    }

    /// Releases the directory's lock, so that it can be opened again, here or elsewhere.
    pub(crate) fn release_dir(&self) -> Option<OpenDir> {
        let mut opened = self.open_dir.lock();
        // Closed before the lock is released: an operation that still gets the lock may write, and
        // one that does not sees the directory closed.
        if let Some(opened) = &*opened {
            opened.dir.close();
        }
        opened.take()
    }

    pub(crate) fn stop(&self) {
        self.health.store(DiskHealth::Stopped as u8, Relaxed);
        self.outage_reason.lock().text = "it was stopped".to_owned();
        self.release_dir();
        self.went_out.notify_waiters();
        self.space_freed.notify_waiters();
        self.maintenance_wakeup.notify_one();
    }

    /// Logs a failure unless the same one was logged lately.
    pub(crate) fn log_throttled(&self, what: &str) {
        let now = clock::now();
        let mut reason = self.outage_reason.lock();
        let logged = reason.last_logged.as_ref();
        if logged.is_some_and(|(text, at)| text == what && now < *at + LOG_INTERVAL) {
            return;
        }
        reason.last_logged = Some((what.to_owned(), now));
        drop(reason);
        log::error!("cache {}: {what} (path={})", self.name, self.path.display());
    }
}
