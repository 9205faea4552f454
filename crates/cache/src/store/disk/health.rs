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

use super::{Disk, Kind, Opened, lock};

/// The same failure is logged again after this time.
const LOG_AGAIN: Duration = Duration::from_secs(60);

/// Whether a disk is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Health {
    /// It works.
    Working,
    /// It works; not all that is on it is known yet.
    Recovering,
    /// It does not work.
    Out,
    /// The store was stopped.
    Stopped,
}

/// Why a disk is out, and what was logged last.
#[derive(Debug, Default)]
pub(super) struct Reason {
    text: String,
    logged: Option<(String, Instant)>,
}

impl Reason {
    pub(super) fn new(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            logged: None,
        }
    }
}

impl Disk {
    /// Whether it works.
    pub(crate) fn health(&self) -> Health {
        match self.health.load(Relaxed) {
            0 => Health::Working,
            1 => Health::Recovering,
            2 => Health::Out,
            _ => Health::Stopped,
        }
    }

    /// Whether it may be used.
    pub(crate) fn is_working(&self) -> bool {
        matches!(self.health(), Health::Working | Health::Recovering)
    }

    /// Why it is out.
    pub(crate) fn reason(&self) -> String {
        lock(&self.reason).text.clone()
    }

    /// How long the oldest operation has been running.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        let oldest = lock(&self.running).values().min().copied();
        oldest.map(|begun| clock::now().saturating_duration_since(begun))
    }

    /// Takes the disk out when its oldest operation takes too long.
    pub(crate) fn check_stall(&self) {
        // The pool's own view has the bodies that are read while they are sent.
        let oldest = self.oldest().max(self.pool.oldest_running());
        if let Some(oldest) = oldest
            && oldest >= self.stall_timeout
        {
            // Not with the time in it: it is one cause, however long it lasts.
            self.set_out("an operation does not come to an end".to_owned());
        }
    }

    /// Draws the conclusion from an error.
    pub(crate) fn failed(&self, kind: Kind, error: &io::Error) {
        let errno = error.raw_os_error().map(Errno::from_raw_os_error);
        let is_the_disk = match errno {
            // Not there: an object's file went, which its reader notices. Nothing can be made: the folder went.
            Some(Errno::NOENT) if kind == Kind::Write => true,
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
                self.is_full();
                return;
            }
            // A damaged or lost object, which its reader counts.
            None | Some(Errno::NOENT) => return,
            // Too few descriptors or too little memory: not the disk's fault.
            _ => false,
        };
        self.counts.errors.fetch_add(1, Relaxed);
        if is_the_disk {
            self.set_out(format!("{}: {error}", kind.doing()));
        }
    }

    /// The file system is full: the bound becomes what fits, less a little; with nearly nothing it is out.
    fn is_full(&self) {
        self.counts.errors.fetch_add(1, Relaxed);
        let used = self.used();
        let bound = (used - used / 16).min(self.bound());
        if bound < (self.size_max / 64).min(16 << 20) {
            self.set_out("no space left on its file system".to_owned());
            return;
        }
        if self.bound.swap(bound, Relaxed) > bound {
            let text = format!(
                "its file system is full: it holds {} MB from here on",
                bound >> 20
            );
            self.log_once(&text);
        }
        self.bell.notify_one();
    }

    /// Gives the bound back, a little at a time.
    pub(crate) fn grow_bound(&self) {
        let bound = self.bound();
        if bound < self.size_max {
            let more = bound.saturating_add((bound / 16).max(1 << 20));
            self.bound.store(more.min(self.size_max), Relaxed);
        }
    }

    /// Takes the disk out.
    pub(crate) fn set_out(&self, why: String) {
        let was = self.health();
        if was == Health::Stopped {
            return;
        }
        self.health.store(Health::Out as u8, Relaxed);
        self.out.notify_waiters();
        self.room.notify_waiters();
        if was != Health::Out {
            self.log_once(&format!("out of service: {why}"));
        }
        lock(&self.reason).text = why;
        self.bell.notify_one();
    }

    /// Notes why it is still out.
    pub(crate) fn still_out(&self, why: String) {
        let is_new = lock(&self.reason).text != why;
        if is_new {
            self.log_once(&format!("out of service: {why}"));
            lock(&self.reason).text = why;
        }
    }

    /// Brings the disk in; `opened` is a folder that was opened anew, whose objects are not known.
    pub(crate) fn set_in(&self, opened: Option<Opened>, health: Health) {
        if self.health() == Health::Stopped {
            return;
        }
        if let Some(opened) = opened {
            let before = lock(&self.opened).replace(opened);
            if let Some(before) = before {
                before.folder.close();
            }
            self.bound.store(self.size_max, Relaxed);
        }
        let was_logged = lock(&self.reason).logged.is_some();
        if self.health.swap(health as u8, Relaxed) == Health::Out as u8 && was_logged {
            log::warn!(
                "cache `{}` ({}): works again",
                self.name,
                self.path.display()
            );
        }
        self.bell.notify_one();
    }

    /// Its objects are known.
    pub(crate) fn set_recovered(&self) {
        let (from, to) = (Health::Recovering as u8, Health::Working as u8);
        let _ = self.health.compare_exchange(from, to, Relaxed, Relaxed);
    }

    /// Gives up the folder's lock, so that it can be opened anew, here or elsewhere.
    pub(crate) fn leave(&self) -> Option<Opened> {
        let mut opened = lock(&self.opened);
        // Closed before the lease goes: who still finds a lease may write, who finds none sees it closed.
        if let Some(opened) = &*opened {
            opened.folder.close();
        }
        opened.take()
    }

    /// The store ends.
    pub(crate) fn stop(&self) {
        self.health.store(Health::Stopped as u8, Relaxed);
        lock(&self.reason).text = "it was stopped".to_owned();
        self.leave();
        self.out.notify_waiters();
        self.room.notify_waiters();
        self.bell.notify_one();
    }

    /// Logs a failure, but not the same one again and again.
    pub(crate) fn log_once(&self, what: &str) {
        let now = clock::now();
        let is_known = {
            let mut reason = lock(&self.reason);
            let logged = reason.logged.as_ref();
            let is_known = logged.is_some_and(|(text, at)| text == what && now < *at + LOG_AGAIN);
            if !is_known {
                reason.logged = Some((what.to_owned(), now));
            }
            is_known
        };
        if !is_known {
            log::error!("cache `{}` ({}): {what}", self.name, self.path.display());
        }
    }
}
