//! A page that lists what is in a folder.
//!
//! `handler` reads a folder in the pool where there is no index page and the route asks for lists. What
//! must stay true: names are text from strangers, in the page and in its links; nothing is shown that would
//! not be served; the work and the page have a bound.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use bytes::Bytes;
use penstock_http::imf_fixdate;
use penstock_sys::file;
use rustix::fs::{AtFlags, Dir, FileType, statat};

use crate::resolve::push_encoded;
use crate::tree::Tree;

/// Names that are shown at most: a page of some megabytes already.
const ENTRIES_MAX: usize = 10_000;

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
///
/// # Errors
/// The folder cannot be read.
pub(crate) fn page(tree: &Tree, path: &[u8], folder: &File) -> io::Result<Bytes> {
    let (mut entries, is_cut) = read(tree, path, folder)?;
    entries.sort_unstable_by(|a, b| (!a.is_folder, &a.name).cmp(&(!b.is_folder, &b.name)));
    Ok(Bytes::from(render(path, &entries, is_cut)))
}

/// What is in a folder, and whether there is more.
fn read(tree: &Tree, path: &[u8], folder: &File) -> io::Result<(Vec<Entry>, bool)> {
    let mut entries = Vec::new();
    for name in Dir::read_from(folder)? {
        let name = name?;
        let name = name.file_name().to_bytes();
        if name.starts_with(b".") {
            continue;
        }
        if entries.len() == ENTRIES_MAX {
            return Ok((entries, true));
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
            let (root, symlinks) = tree.root();
            let below = [path.strip_prefix(b"/").unwrap_or(path), name].concat();
            let target = file::open_beneath_with(root, &below, symlinks).ok()?;
            let target = target.metadata().ok()?;
            let is_shown = target.is_file() || target.is_dir();
            is_shown.then(|| (target.is_dir(), target.size(), target.mtime()))?
        }
        _ => return None,
    };
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
        let note = format!("<p>Only {ENTRIES_MAX} names are shown; there are more.</p>\n");
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
