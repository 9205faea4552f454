//! Watches directories for changes of code.
//!
//! Used by `dev`. A thread of the `notify` crate receives the kernel's events and passes relevant
//! ones through a bounded queue; directories are walked in a pool.
//!
//! # Invariants
//!
//! - Ignored directories use no watch, and the number of watches is bounded.
//! - A change that does not fit into the queue counts as a change of everything.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use notify::event::{CreateKind, EventKind, ModifyKind};
use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;

use crate::code;

const MAX_PENDING_CHANGES: usize = 1024;

/// Maximum number of watched directories; the kernel's limit per user is often 8,192 or more.
const MAX_WATCHED_DIRS: usize = 4096;

#[derive(Debug)]
pub(crate) struct FileChange {
    pub(crate) path: PathBuf,
    /// Whether it is a directory that may be new.
    pub(crate) is_new_dir: bool,
}

/// The kernel watches.
#[derive(Debug)]
pub(crate) struct DirWatcher {
    watcher: RecommendedWatcher,
    watched_dirs: BTreeSet<PathBuf>,
    max_watched_dirs: usize,
    /// Whether the log says that some directories are not watched.
    has_warned: bool,
}

#[derive(Debug)]
pub(crate) struct ChangeQueue {
    queue: mpsc::Receiver<FileChange>,
    has_lost_changes: Arc<AtomicBool>,
}

/// Creates a watcher without watches, and its queue.
pub(crate) fn start_watching() -> notify::Result<(DirWatcher, ChangeQueue)> {
    let (send, queue) = mpsc::channel(MAX_PENDING_CHANGES);
    let lost = Arc::new(AtomicBool::new(false));
    let mark = Arc::clone(&lost);
    let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        let Ok(event) = event else {
            return mark.store(true, Ordering::Relaxed);
        };
        if event.need_rescan() {
            mark.store(true, Ordering::Relaxed);
        }
        let is_change = !matches!(event.kind, EventKind::Access(_));
        for path in event.paths.into_iter().filter(|_| is_change) {
            let is_new_folder = may_be_new(event.kind) && path.is_dir();
            let change = FileChange {
                path,
                is_new_dir: is_new_folder,
            };
            if send.try_send(change).is_err() {
                mark.store(true, Ordering::Relaxed);
            }
        }
    })?;
    let watch = DirWatcher {
        watcher,
        watched_dirs: BTreeSet::new(),
        max_watched_dirs: MAX_WATCHED_DIRS,
        has_warned: false,
    };
    Ok((
        watch,
        ChangeQueue {
            queue,
            has_lost_changes: lost,
        },
    ))
}

fn may_be_new(kind: EventKind) -> bool {
    match kind {
        EventKind::Create(kind) => kind != CreateKind::File,
        EventKind::Modify(ModifyKind::Name(_)) => true,
        _ => false,
    }
}

impl ChangeQueue {
    /// Returns the next change; `None` when there will be no more. *Cancel safe*.
    pub(crate) async fn next(&mut self) -> Option<FileChange> {
        self.queue.recv().await
    }

    /// Returns whether changes were lost since the last call.
    pub(crate) fn take_lost_flag(&self) -> bool {
        self.has_lost_changes.swap(false, Ordering::Relaxed)
    }
}

impl DirWatcher {
    /// Watches a directory and all code below it; renews existing watches. *Blocking*.
    pub(crate) fn watch_recursively(&mut self, root: &Path) {
        let mut left = vec![root.to_owned()];
        while let Some(folder) = left.pop() {
            if !self.watch_dir(&folder) {
                return;
            }
            left.extend(code::code_dirs_in(&folder));
        }
    }

    /// Watches one directory, without those below it. *Blocking*.
    pub(crate) fn watch_dir(&mut self, folder: &Path) -> bool {
        if self.watched_dirs.len() >= self.max_watched_dirs && !self.watched_dirs.contains(folder) {
            self.watched_dirs.retain(|folder| folder.is_dir());
        }
        let is_full =
            self.watched_dirs.len() >= self.max_watched_dirs && !self.watched_dirs.contains(folder);
        let added = match is_full {
            true => Err(format!(
                "{} directories are watched already",
                self.max_watched_dirs
            )),
            false => self
                .watcher
                .watch(folder, RecursiveMode::NonRecursive)
                .map_err(|error| error.to_string()),
        };
        match added {
            Ok(()) => {
                self.watched_dirs.insert(folder.to_owned());
                true
            }
            // It was removed meanwhile.
            Err(_) if !is_full && !folder.exists() => true,
            Err(cause) => {
                if !std::mem::replace(&mut self.has_warned, true) {
                    let folder = folder.display();
                    log::warn!("watch: cannot watch {folder} and other directories: {cause}");
                }
                false
            }
        }
    }
}

#[cfg(test)]
mod tests;
