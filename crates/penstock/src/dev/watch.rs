//! Watches folders for changes of code: which roots have changed since one last asked.
//!
//! Used by `dev`. The kernel's events come on a thread of the `notify` crate, which passes on what
//! could matter through a bounded queue; folders are walked in a pool. What must stay true: ignored
//! folders cost no watch, the number of watches is bounded, and a change that could not be queued is
//! taken for a change of everything.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use notify::event::{CreateKind, EventKind, ModifyKind};
use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;

use crate::code;

/// Changes that may wait to be looked at.
const CHANGES_MAX: usize = 1024;

/// Folders that are watched in all; the kernel's own bound for a user is often 8,192 or more.
const FOLDERS_MAX: usize = 4096;

/// One thing that has changed.
#[derive(Debug)]
pub(crate) struct Change {
    /// What.
    pub(crate) path: PathBuf,
    /// Whether it is a folder that was not there before.
    pub(crate) is_new_folder: bool,
}

/// The watches.
#[derive(Debug)]
pub(crate) struct Watch {
    watcher: RecommendedWatcher,
    folders: BTreeSet<PathBuf>,
    folders_max: usize,
    /// Whether it was said that not everything is watched.
    has_warned: bool,
}

/// What the watches see.
#[derive(Debug)]
pub(crate) struct Changes {
    queue: mpsc::Receiver<Change>,
    lost: Arc<AtomicBool>,
}

/// Nothing is watched yet.
///
/// # Errors
/// When the kernel gives no watcher.
pub(crate) fn start() -> notify::Result<(Watch, Changes)> {
    let (send, queue) = mpsc::channel(CHANGES_MAX);
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
            let is_new_folder = is_new(event.kind) && path.is_dir();
            let change = Change {
                path,
                is_new_folder,
            };
            if send.try_send(change).is_err() {
                mark.store(true, Ordering::Relaxed);
            }
        }
    })?;
    let watch = Watch {
        watcher,
        folders: BTreeSet::new(),
        folders_max: FOLDERS_MAX,
        has_warned: false,
    };
    Ok((watch, Changes { queue, lost }))
}

/// Whether what the event is about may not have been there before.
fn is_new(kind: EventKind) -> bool {
    match kind {
        EventKind::Create(kind) => kind != CreateKind::File,
        EventKind::Modify(ModifyKind::Name(_)) => true,
        _ => false,
    }
}

impl Changes {
    /// The next change; none when there will be no more. *Cancel safe*.
    pub(crate) async fn next(&mut self) -> Option<Change> {
        self.queue.recv().await
    }

    /// Whether changes were lost since this was last asked.
    pub(crate) fn take_lost(&self) -> bool {
        self.lost.swap(false, Ordering::Relaxed)
    }
}

impl Watch {
    /// Watches a folder and all code below it, anew where it was watched before. *Blocking*.
    pub(crate) fn follow(&mut self, root: &Path) {
        let mut left = vec![root.to_owned()];
        while let Some(folder) = left.pop() {
            if !self.add(&folder) {
                return;
            }
            left.extend(code::folders_in(&folder));
        }
    }

    /// Watches what is in one folder, and nothing below it. *Blocking*.
    pub(crate) fn add(&mut self, folder: &Path) -> bool {
        if self.folders.len() >= self.folders_max && !self.folders.contains(folder) {
            self.folders.retain(|folder| folder.is_dir());
        }
        let is_full = self.folders.len() >= self.folders_max && !self.folders.contains(folder);
        let added = match is_full {
            true => Err(format!("{} folders are watched already", self.folders_max)),
            false => self
                .watcher
                .watch(folder, RecursiveMode::NonRecursive)
                .map_err(|error| error.to_string()),
        };
        match added {
            Ok(()) => {
                self.folders.insert(folder.to_owned());
                true
            }
            // It went away meanwhile.
            Err(_) if !is_full && !folder.exists() => true,
            Err(cause) => {
                if !std::mem::replace(&mut self.has_warned, true) {
                    let folder = folder.display();
                    log::warn!("changes of files in {folder} and elsewhere are not seen: {cause}");
                }
                false
            }
        }
    }
}

#[cfg(test)]
mod tests;
