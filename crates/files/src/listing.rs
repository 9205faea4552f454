//! Builds a page that lists a directory. `handler` uses it in the pool if there is no index page
//! and the route enables listings.
//!
//! # Invariants
//!
//! - Names are untrusted text, in the page and in its links.
//! - Only files that would be served are listed.
//! - Work and page size are bounded, and a directory is not read twice at once.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use penstock_exchange::{Fault, FaultKind};
use penstock_http::{encode_path_segment, imf_fixdate};
use penstock_runtime::blocking::Pool;
use rustix::fs::{AtFlags, Dir, FileType, statat};
use tokio::sync::watch;

use crate::file_tree::FileTree;
use crate::handler::fault_from_pool_error;
use crate::hide_patterns::is_dot_name;

/// Names read, including those not shown: already a page of some megabytes.
const MAX_ENTRIES: usize = 10_000;

/// How often a request waits for another request's page that then fails.
const MAX_ATTEMPTS: u32 = 8;

/// Running page builds of one root, by path. All event loops share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct ListingJobs {
    running: Arc<Mutex<RunningListings>>,
}

type RunningListings = HashMap<Arc<[u8]>, watch::Receiver<ListingResult>>;

/// The result of a build, for each waiter.
type ListingResult = Option<Result<Bytes, (FaultKind, Cow<'static, str>)>>;

impl ListingJobs {
    /// Returns the page for the directory at `path`, from a running build if there is one. `folder`
    /// is read in the pool.
    pub(crate) async fn get_or_build(
        &self,
        tree: &Arc<FileTree>,
        path: &Arc<[u8]>,
        folder: File,
        pool: &Pool,
    ) -> Result<Bytes, Fault> {
        let mut folder = Some(folder);
        for _ in 0..MAX_ATTEMPTS {
            let mut waiting = match self.join_or_start(path) {
                ListingStart::Joined(waiting) => waiting,
                ListingStart::Started(work, waiting) => {
                    let Some(folder) = folder.take() else {
                        break;
                    };
                    let tree = Arc::clone(tree);
                    let started = pool.spawn(move || work.run(&tree, &folder));
                    started.map_err(|error| fault_from_pool_error(&error))?;
                    waiting
                }
            };
            let made = waiting.wait_for(Option::is_some).await;
            // A build that the pool refused has no result for its waiters.
            if let Some(made) = made.ok().and_then(|made| made.clone()) {
                return made.map_err(|(kind, cause)| Fault::new(kind, cause));
            }
        }
        let cause = "the directory listing was aborted";
        Err(Fault::new(FaultKind::Overloaded, cause))
    }

    fn join_or_start(&self, path: &Arc<[u8]>) -> ListingStart {
        let mut under_way = lock(&self.running);
        if let Some(waiting) = under_way.get(path) {
            return ListingStart::Joined(waiting.clone());
        }
        let (made, waiting) = watch::channel(None);
        under_way.insert(Arc::clone(path), waiting.clone());
        let work = ListingJob {
            running: Arc::clone(&self.running),
            path: Arc::clone(path),
            result: None,
            result_sender: made,
        };
        ListingStart::Started(work, waiting)
    }
}

enum ListingStart {
    Joined(watch::Receiver<ListingResult>),
    Started(ListingJob, watch::Receiver<ListingResult>),
}

/// A page build. Its drop lets the next one start and wakes all waiters.
struct ListingJob {
    running: Arc<Mutex<RunningListings>>,
    path: Arc<[u8]>,
    result: ListingResult,
    result_sender: watch::Sender<ListingResult>,
}

impl ListingJob {
    fn run(mut self, tree: &FileTree, folder: &File) {
        let page = build_page(tree, &self.path, folder).map_err(|error| {
            let fault = tree.fault_from_io_error(&error, &self.path);
            (fault.kind, fault.cause)
        });
        self.result = Some(page);
    }
}

impl Drop for ListingJob {
    fn drop(&mut self) {
        // Removed before waiters wake: later requests start a new build.
        lock(&self.running).remove(&self.path);
        if let Some(page) = self.result.take() {
            self.result_sender.send_replace(Some(page));
        }
    }
}

fn lock(under_way: &Mutex<RunningListings>) -> MutexGuard<'_, RunningListings> {
    under_way.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
struct ListingEntry {
    name: Vec<u8>,
    is_dir: bool,
    size: u64,
    /// Seconds since the epoch.
    modified: u64,
}

/// Builds the page for a directory of `tree` at `path`. Blocks.
fn build_page(tree: &FileTree, path: &[u8], folder: &File) -> io::Result<Bytes> {
    let (mut entries, is_cut) = read_entries(tree, path, folder)?;
    entries.sort_unstable_by(|a, b| (!a.is_dir, &a.name).cmp(&(!b.is_dir, &b.name)));
    Ok(Bytes::from(render_page(path, &entries, is_cut)))
}

/// The entries of a directory, and whether there are more.
fn read_entries(
    tree: &FileTree,
    path: &[u8],
    folder: &File,
) -> io::Result<(Vec<ListingEntry>, bool)> {
    let mut entries = Vec::new();
    let mut count = 0;
    for name in Dir::read_from(folder)? {
        let name = name?;
        let name = name.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        if count == MAX_ENTRIES {
            return Ok((entries, true));
        }
        count += 1;
        if is_dot_name(name) {
            continue;
        }
        // Removed entries and special files are omitted.
        entries.extend(read_entry(tree, path, folder, name));
    }
    Ok((entries, false))
}

fn read_entry(tree: &FileTree, path: &[u8], folder: &File, name: &[u8]) -> Option<ListingEntry> {
    let found = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    let (is_folder, size, modified) = match FileType::from_raw_mode(found.st_mode) {
        FileType::Directory => (true, 0, found.st_mtime),
        FileType::RegularFile => (false, u64::try_from(found.st_size).ok()?, found.st_mtime),
        // The kernel resolves it by the rules for the root.
        FileType::Symlink => {
            let target = tree.link_target_metadata(path, name)?;
            let is_shown = target.is_file() || target.is_dir();
            is_shown.then(|| (target.is_dir(), target.size(), target.mtime()))?
        }
        _ => return None,
    };
    if tree.hides_entry(path, name, is_folder) {
        return None;
    }
    Some(ListingEntry {
        name: name.to_vec(),
        is_dir: is_folder,
        size,
        modified: u64::try_from(modified).unwrap_or_default(),
    })
}

fn render_page(path: &[u8], entries: &[ListingEntry], is_cut: bool) -> Vec<u8> {
    let mut page = Vec::with_capacity(512 + entries.len() * 192);
    page.extend_from_slice(b"<!doctype html>\n<html><head><meta charset=\"utf-8\"><title>");
    push_text(&mut page, path);
    page.extend_from_slice(b"</title></head><body>\n<h1>");
    push_text(&mut page, path);
    page.extend_from_slice(b"</h1>\n<table>\n");
    if path != b"/" {
        page.extend_from_slice(b"<tr><td><a href=\"../\">../</a></td><td></td><td></td></tr>\n");
    }
    for entry in entries {
        push_row(&mut page, entry);
    }
    page.extend_from_slice(b"</table>\n");
    if is_cut {
        let note = format!(
            "<p>The directory has more than {MAX_ENTRIES} names; the others are not shown.</p>\n"
        );
        page.extend_from_slice(note.as_bytes());
    }
    page.extend_from_slice(b"</body></html>\n");
    page
}

fn push_row(page: &mut Vec<u8>, entry: &ListingEntry) {
    let slash = if entry.is_dir { "/" } else { "" };
    // The leading `./` keeps a name from being read as a scheme.
    page.extend_from_slice(b"<tr><td><a href=\"./");
    page.extend_from_slice(encode_path_segment(&entry.name).as_bytes());
    page.extend_from_slice(slash.as_bytes());
    page.extend_from_slice(b"\">");
    push_text(page, &entry.name);
    page.extend_from_slice(slash.as_bytes());
    page.extend_from_slice(b"</a></td><td>");
    if !entry.is_dir {
        page.extend_from_slice(entry.size.to_string().as_bytes());
    }
    page.extend_from_slice(b"</td><td>");
    page.extend_from_slice(&imf_fixdate(entry.modified));
    page.extend_from_slice(b"</td></tr>\n");
}

/// Appends a name as text: markup is escaped, control characters are replaced.
fn push_text(page: &mut Vec<u8>, name: &[u8]) {
    let mut buffer = [0; 4];
    for letter in String::from_utf8_lossy(name).chars() {
        let text = match letter {
            '&' => "&amp;",
            '<' => "&lt;",
            '>' => "&gt;",
            '"' => "&quot;",
            '\'' => "&#39;",
            letter if letter.is_control() => "\u{fffd}",
            letter => letter.encode_utf8(&mut buffer),
        };
        page.extend_from_slice(text.as_bytes());
    }
}

#[cfg(test)]
mod tests;
