//! A page that lists what is in a folder.
//!
//! `handler` reads a folder in the pool where there is no index page and the route asks for lists. What
//! must stay true: names are text from strangers, in the page and in its links; nothing is shown that would
//! not be served; the work and the page have a bound, and the same folder is not read twice at once.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use penstock_exchange::{Fault, FaultKind};
use penstock_http::imf_fixdate;
use penstock_runtime::blocking::Pool;
use rustix::fs::{AtFlags, Dir, FileType, statat};
use tokio::sync::watch;

use crate::handler::pool_fault;
use crate::hidden::is_dot_name;
use crate::resolve::push_encoded;
use crate::tree::Tree;

/// Names that are looked at: a page of some megabytes already. Those that are not shown count, too.
const ENTRIES_MAX: usize = 10_000;

/// How often a page is waited for that somebody else makes and then cannot.
const TRIES: u32 = 8;

/// The pages being made of one root's folders, by path. All loops share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Listings {
    under_way: Arc<Mutex<UnderWay>>,
}

type UnderWay = HashMap<Arc<[u8]>, watch::Receiver<Made>>;

/// What became of a page: for each who waits for it.
type Made = Option<Result<Bytes, (FaultKind, Cow<'static, str>)>>;

impl Listings {
    /// The page for the folder at `path`: that which somebody else waits for already, if there is one.
    /// `folder` is read in the pool.
    pub(crate) async fn page(
        &self,
        tree: &Arc<Tree>,
        path: &Arc<[u8]>,
        folder: File,
        pool: &Pool,
    ) -> Result<Bytes, Fault> {
        let mut folder = Some(folder);
        for _ in 0..TRIES {
            let mut waiting = match self.begin(path) {
                Begun::Elsewhere(waiting) => waiting,
                Begun::Here(work, waiting) => {
                    let Some(folder) = folder.take() else {
                        break;
                    };
                    let tree = Arc::clone(tree);
                    let started = pool.spawn(move || work.run(&tree, &folder));
                    started.map_err(|error| pool_fault(&error))?;
                    waiting
                }
            };
            let made = waiting.wait_for(Option::is_some).await;
            // One that was given up, as the pool had no room for it, says nothing to those who waited for it.
            if let Some(made) = made.ok().and_then(|made| made.clone()) {
                return made.map_err(|(kind, cause)| Fault::new(kind, cause));
            }
        }
        let cause = "the list of a folder was given up";
        Err(Fault::new(FaultKind::Overloaded, cause))
    }

    fn begin(&self, path: &Arc<[u8]>) -> Begun {
        let mut under_way = lock(&self.under_way);
        if let Some(waiting) = under_way.get(path) {
            return Begun::Elsewhere(waiting.clone());
        }
        let (made, waiting) = watch::channel(None);
        under_way.insert(Arc::clone(path), waiting.clone());
        let work = Work {
            under_way: Arc::clone(&self.under_way),
            path: Arc::clone(path),
            result: None,
            made,
        };
        Begun::Here(work, waiting)
    }
}

enum Begun {
    /// By another request.
    Elsewhere(watch::Receiver<Made>),
    Here(Work, watch::Receiver<Made>),
}

/// A page that is being made. However it ends, the next one can begin and nobody waits on.
struct Work {
    under_way: Arc<Mutex<UnderWay>>,
    path: Arc<[u8]>,
    result: Made,
    made: watch::Sender<Made>,
}

impl Work {
    fn run(mut self, tree: &Tree, folder: &File) {
        let page = page(tree, &self.path, folder).map_err(|error| {
            let fault = tree.fault(&error, &self.path);
            (fault.kind, fault.cause)
        });
        self.result = Some(page);
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // Before anybody is woken: who asks from now on gets what is found from now on.
        lock(&self.under_way).remove(&self.path);
        if let Some(page) = self.result.take() {
            self.made.send_replace(Some(page));
        }
    }
}

fn lock(under_way: &Mutex<UnderWay>) -> MutexGuard<'_, UnderWay> {
    under_way.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is shown of a name.
#[derive(Debug)]
struct Entry {
    name: Vec<u8>,
    is_folder: bool,
    size: u64,
    /// Seconds since the epoch.
    modified: u64,
}

/// The page for a folder of `tree` that is at `path`. Blocks.
fn page(tree: &Tree, path: &[u8], folder: &File) -> io::Result<Bytes> {
    let (mut entries, is_cut) = read(tree, path, folder)?;
    entries.sort_unstable_by(|a, b| (!a.is_folder, &a.name).cmp(&(!b.is_folder, &b.name)));
    Ok(Bytes::from(render(path, &entries, is_cut)))
}

/// What is in a folder, and whether there is more.
fn read(tree: &Tree, path: &[u8], folder: &File) -> io::Result<(Vec<Entry>, bool)> {
    let mut entries = Vec::new();
    let mut count = 0;
    for name in Dir::read_from(folder)? {
        let name = name?;
        let name = name.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        if count == ENTRIES_MAX {
            return Ok((entries, true));
        }
        count += 1;
        if is_dot_name(name) {
            continue;
        }
        // What is gone meanwhile, or no file or folder, is left out.
        entries.extend(entry(tree, path, folder, name));
    }
    Ok((entries, false))
}

fn entry(tree: &Tree, path: &[u8], folder: &File, name: &[u8]) -> Option<Entry> {
    let found = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    let (is_folder, size, modified) = match FileType::from_raw_mode(found.st_mode) {
        FileType::Directory => (true, 0, found.st_mtime),
        FileType::RegularFile => (false, u64::try_from(found.st_size).ok()?, found.st_mtime),
        // Where it leads is for the kernel to say, by the rules for the root.
        FileType::Symlink => {
            let target = tree.open_entry(path, name)?;
            let is_shown = target.is_file() || target.is_dir();
            is_shown.then(|| (target.is_dir(), target.size(), target.mtime()))?
        }
        _ => return None,
    };
    if tree.hides_entry(path, name, is_folder) {
        return None;
    }
    Some(Entry {
        name: name.to_vec(),
        is_folder,
        size,
        modified: u64::try_from(modified).unwrap_or_default(),
    })
}

fn render(path: &[u8], entries: &[Entry], is_cut: bool) -> Vec<u8> {
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
            "<p>The folder has more than {ENTRIES_MAX} names; the others are not shown.</p>\n"
        );
        page.extend_from_slice(note.as_bytes());
    }
    page.extend_from_slice(b"</body></html>\n");
    page
}

fn push_row(page: &mut Vec<u8>, entry: &Entry) {
    let slash = if entry.is_folder { "/" } else { "" };
    // With a dot before it, no name is taken for a scheme.
    page.extend_from_slice(b"<tr><td><a href=\"./");
    push_encoded(page, &entry.name);
    page.extend_from_slice(slash.as_bytes());
    page.extend_from_slice(b"\">");
    push_text(page, &entry.name);
    page.extend_from_slice(slash.as_bytes());
    page.extend_from_slice(b"</a></td><td>");
    if !entry.is_folder {
        page.extend_from_slice(entry.size.to_string().as_bytes());
    }
    page.extend_from_slice(b"</td><td>");
    page.extend_from_slice(&imf_fixdate(entry.modified));
    page.extend_from_slice(b"</td></tr>\n");
}

/// Adds a name as text: what is markup escaped, what is no text replaced.
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
