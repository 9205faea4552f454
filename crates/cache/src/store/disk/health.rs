//! Whether a disk works: what errors, stalls and probes make of it.
//!
//! An error that is the disk's takes it out; one that is a file's, or ours (too few descriptors), does not. A
//! full file system lowers the bound to what fits, and only then takes the disk out. What must stay true: each
//! cause is logged once, and again only after a while; what was stopped stays so.

use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use penstock_runtime::clock;
use rustix::io::Errno;

use super::{Disk, OpenDir, OperationKind, lock};

/// The same failure is logged again after this time.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Whether a disk is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiskHealth {
    /// It works.
    Working,
    /// It works; not all that is on it is known yet.
    Recovering,
    /// It does not work.
    OutOfService,
    /// The store was stopped.
    Stopped,
}

/// Why a disk is out, and what was logged last.
#[derive(Debug, Default)]
pub(super) struct OutageReason {
    text: String,
    last_logged: Option<(String, Instant)>,
}

impl OutageReason {
    pub(super) fn new(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            last_logged: None,
        }
    }
}

impl Disk {
    /// Whether it works.
    pub(crate) fn health(&self) -> DiskHealth {
        match self.health.load(Relaxed) {
            0 => DiskHealth::Working,
            1 => DiskHealth::Recovering,
            2 => DiskHealth::OutOfService,
            _ => DiskHealth::Stopped,
        }
    }

    /// Whether it may be used.
    pub(crate) fn is_working(&self) -> bool {
        matches!(self.health(), DiskHealth::Working | DiskHealth::Recovering)
    }

    /// Why it is out.
    pub(crate) fn outage_reason(&self) -> String {
        lock(&self.outage_reason).text.clone()
    }

    /// How long the oldest operation has been running.
    pub(crate) fn oldest_operation(&self) -> Option<Duration> {
        let oldest = lock(&self.running_operations).values().min().copied();
        oldest.map(|begun| clock::now().saturating_duration_since(begun))
    }

    /// Takes the disk out when its oldest operation takes too long.
    pub(crate) fn check_stall(&self) {
        // The pool's own view has the bodies that are read while they are sent.
        let oldest = self.oldest_operation().max(self.pool.oldest_running());
        if let Some(oldest) = oldest
            && oldest >= self.stall_timeout
        {
            // Not with the time in it: it is one cause, however long it lasts.
            self.set_out_of_service("an operation does not come to an end".to_owned());
        }
    }

    /// Draws the conclusion from an error.
    pub(crate) fn handle_error(&self, kind: OperationKind, error: &io::Error) {
        let errno = error.raw_os_error().map(Errno::from_raw_os_error);
        let is_the_disk = match errno {
            // Not there: an object's file went, which its reader notices. Nothing can be made: the folder went.
            Some(Errno::NOENT) if kind == OperationKind::Write => true,
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
                self.handle_full();
                return;
            }
            // A damaged or lost object, which its reader counts.
            None | Some(Errno::NOENT) => return,
            // Too few descriptors or too little memory: not the disk's fault.
            _ => false,
        };
        self.counters.errors.fetch_add(1, Relaxed);
        if is_the_disk {
            self.set_out_of_service(format!("{}: {error}", kind.error_text()));
        }
    }

    /// The file system is full: the bound becomes what fits, less a little; with nearly nothing it is out.
    fn handle_full(&self) {
        self.counters.errors.fetch_add(1, Relaxed);
        let used = self.used_bytes();
        let bound = (used - used / 16).min(self.current_max_size());
        if bound < (self.max_size / 64).min(16 << 20) {
            self.set_out_of_service("no space left on its file system".to_owned());
            return;
        }
        if self.current_max_size.swap(bound, Relaxed) > bound {
            let text = format!(
                "its file system is full: it holds {} MB from here on",
                bound >> 20
            );
            self.log_once(&text);
        }
        self.wake_maintenance.notify_one();
    }

    /// Gives the bound back, a little at a time.
    pub(crate) fn raise_max_size(&self) {
        let bound = self.current_max_size();
        if bound < self.max_size {
            let more = bound.saturating_add((bound / 16).max(1 << 20));
            self.current_max_size
                .store(more.min(self.max_size), Relaxed);
        }
    }

    /// Takes the disk out.
    pub(crate) fn set_out_of_service(&self, why: String) {
        let was = self.health();
        if was == DiskHealth::Stopped {
            return;
        }
        self.health.store(DiskHealth::OutOfService as u8, Relaxed);
        self.went_out.notify_waiters();
        self.space_freed.notify_waiters();
        if was != DiskHealth::OutOfService {
            self.log_once(&format!("out of service: {why}"));
        }
        lock(&self.outage_reason).text = why;
        self.wake_maintenance.notify_one();
    }

    /// Notes why it is still out.
    pub(crate) fn record_still_out(&self, why: String) {
        let is_new = lock(&self.outage_reason).text != why;
        if is_new {
            self.log_once(&format!("out of service: {why}"));
            lock(&self.outage_reason).text = why;
        }
    }

    /// Brings the disk in; `opened` is a folder that was opened anew, whose objects are not known.
    pub(crate) fn set_in_service(&self, opened: Option<OpenDir>, health: DiskHealth) {
        if self.health() == DiskHealth::Stopped {
            return;
        }
        if let Some(opened) = opened {
            let before = lock(&self.open_dir).replace(opened);
            if let Some(before) = before {
                before.dir.close();
            }
            self.current_max_size.store(self.max_size, Relaxed);
        }
        let was_logged = lock(&self.outage_reason).last_logged.is_some();
        if self.health.swap(health as u8, Relaxed) == DiskHealth::OutOfService as u8 && was_logged {
            log::warn!(
                "cache `{}` ({}): works again",
                self.name,
                self.path.display()
            );
        }
        self.wake_maintenance.notify_one();
    }

    /// Its objects are known.
    pub(crate) fn set_recovered(&self) {
        let (from, to) = (DiskHealth::Recovering as u8, DiskHealth::Working as u8);
        let _ = self.health.compare_exchange(from, to, Relaxed, Relaxed);
    }

    /// Gives up the folder's lock, so that it can be opened anew, here or elsewhere.
    pub(crate) fn release_dir(&self) -> Option<OpenDir> {
        let mut opened = lock(&self.open_dir);
        // Closed before the lease goes: who still finds a lease may write, who finds none sees it closed.
        if let Some(opened) = &*opened {
            opened.dir.close();
        }
        opened.take()
    }

    /// The store ends.
    pub(crate) fn stop(&self) {
        self.health.store(DiskHealth::Stopped as u8, Relaxed);
        lock(&self.outage_reason).text = "it was stopped".to_owned();
        self.release_dir();
        self.went_out.notify_waiters();
        self.space_freed.notify_waiters();
        self.wake_maintenance.notify_one();
    }

    /// Logs a failure, but not the same one again and again.
    pub(crate) fn log_once(&self, what: &str) {
        let now = clock::now();
        let is_known = {
            let mut reason = lock(&self.outage_reason);
            let logged = reason.last_logged.as_ref();
            let is_known =
                logged.is_some_and(|(text, at)| text == what && now < *at + LOG_INTERVAL);
            if !is_known {
                reason.last_logged = Some((what.to_owned(), now));
            }
            is_known
        };
        if !is_known {
            log::error!("cache `{}` ({}): {what}", self.name, self.path.display());
        }
    }
}
