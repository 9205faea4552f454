//! Compressing files that are asked for: once for each version and coding, in the pool.
//!
//! `handler` asks [`Compressor::get`] when a client would have a coding that is not there. All loops share
//! what is made. What must stay true: one piece of work for a version and a coding at a time, and few of
//! them at once, of one root and of all that share the pool, so that compressing never keeps it from reading;
//! what is made is bounded; nothing that is not smaller is kept; nothing is made of a file that does not
//! hold still.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use penstock_config::Coding;
use penstock_runtime::blocking::{ComputePermit, Pool};
use penstock_sys::file;
use tokio::sync::watch;

use crate::known::{Found, Identity, Source};

/// Files below this size are sent as they are: with their head they fit into one packet either way.
pub(crate) const SIZE_MIN: u64 = 1024;

/// Files above this size are sent as they are: compressing one would take a thread for longer than
/// anybody waits ([`WAIT_MAX`]), and what is that large is better compressed when it is built.
///
/// [`WAIT_MAX`]: crate::handler
pub(crate) const SIZE_MAX: u64 = 1 << 20;

/// Memory for what one root's files were compressed to.
const BYTES_MAX: usize = 16 << 20;

/// Versions and codings of which something is known: also that it did not pay.
const ENTRIES_MAX: usize = 8 << 10;

/// Pieces of work at once, of one root. The pool says how many of all roots.
const AT_ONCE_MAX: usize = 2;

// A result is used for as long as the file does not change, but a restart makes it anew, and somebody may
// be waiting: so the levels are those that get most of what there is to gain in about 20 ms for the
// largest file. The highest would gain a few per cent for fifty times the work; whoever wants those
// compresses when building (`precompressed`).
const ZSTD_LEVEL: i32 = 9;
const BROTLI_QUALITY: i32 = 5;
const GZIP_LEVEL: u32 = 6;

/// What was and is being compressed of one root. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Compressor {
    shared: Arc<Mutex<State>>,
}

/// How far a coding is.
pub(crate) enum Progress {
    /// Made; none where it is not smaller.
    Done(Option<Bytes>),
    /// Being made.
    Running(Waiting),
    /// Not now.
    Busy,
}

/// Waits until a piece of work is done.
pub(crate) struct Waiting(watch::Receiver<()>);

impl Waiting {
    pub(crate) async fn done(mut self) {
        // Nothing is ever sent: the end of the sender is the sign.
        let _ = self.0.changed().await;
    }
}

type Key = (Identity, Coding);

#[derive(Default)]
struct State {
    entries: HashMap<Key, Entry>,
    /// What is made, oldest first.
    made: VecDeque<Key>,
    bytes: usize,
    running: usize,
}

enum Entry {
    Running(watch::Receiver<()>),
    Made(Option<Bytes>),
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("made", &self.made.len())
            .field("bytes", &self.bytes)
            .field("running", &self.running)
            .finish_non_exhaustive()
    }
}

impl Compressor {
    /// How far `coding` of a file is; begins with it if nobody did.
    pub(crate) fn get(&self, found: &Found, coding: Coding, pool: &Pool) -> Progress {
        let key = (found.original.identity, coding);
        let (work, waiting) = {
            let mut state = self.lock();
            match state.entries.get(&key) {
                Some(Entry::Made(content)) => return Progress::Done(content.clone()),
                Some(Entry::Running(done)) => return Progress::Running(Waiting(done.clone())),
                None if state.running >= AT_ONCE_MAX => return Progress::Busy,
                None => {}
            }
            let Some(share) = pool.try_compute_permit() else {
                return Progress::Busy;
            };
            state.running += 1;
            let (done, waiting) = watch::channel(());
            state.entries.insert(key, Entry::Running(waiting.clone()));
            let shared = Arc::clone(&self.shared);
            let work = Work {
                shared,
                key,
                result: None,
                done,
                share: Some(share),
            };
            (work, waiting)
        };
        let source = found.original.source.clone();
        // What the pool does not take is dropped, and forgotten with that.
        match pool.spawn(move || work.run(&source)) {
            Ok(()) => Progress::Running(Waiting(waiting)),
            Err(_) => Progress::Busy,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A piece of work. However it ends, it leaves the state in order and wakes who waits.
struct Work {
    shared: Arc<Mutex<State>>,
    key: Key,
    /// None when it came to nothing: it is tried again then.
    result: Option<Option<Bytes>>,
    done: watch::Sender<()>,
    /// The pool's leave to compute.
    share: Option<ComputePermit>,
}

impl Work {
    fn run(mut self, source: &Source) {
        let (identity, coding) = self.key;
        let content = match source {
            Source::Memory(content) => content.clone(),
            Source::Disk(file) => {
                match file.file().and_then(|file| read_unchanged(file, &identity)) {
                    Ok(Some(content)) => content,
                    Ok(None) => return,
                    Err(error) => {
                        // Not again for this version: once is enough for the log.
                        self.result = Some(None);
                        return log::warn!("files: not compressed: {error}");
                    }
                }
            }
        };
        match encode(coding, &content) {
            Ok(encoded) if encoded.len() < content.len() => {
                self.result = Some(Some(Bytes::from(encoded.into_boxed_slice())));
            }
            Ok(_) => self.result = Some(None),
            Err(error) => {
                log::warn!("files: not compressed as {}: {error}", coding.as_str());
                self.result = Some(None);
            }
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let mut state = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        state.running -= 1;
        match self.result.take() {
            Some(content) => state.keep(self.key, content),
            None => drop(state.entries.remove(&self.key)),
        }
        drop(state);
        // First, so that whoever is woken can have it.
        drop(self.share.take());
        self.done.send_replace(());
    }
}

impl State {
    fn keep(&mut self, key: Key, content: Option<Bytes>) {
        let len = |content: &Option<Bytes>| content.as_ref().map_or(0, Bytes::len);
        self.bytes += len(&content);
        self.entries.insert(key, Entry::Made(content));
        self.made.push_back(key);
        while self.bytes > BYTES_MAX || self.made.len() > ENTRIES_MAX {
            let Some(oldest) = self.made.pop_front() else {
                break;
            };
            if let Some(Entry::Made(content)) = self.entries.remove(&oldest) {
                self.bytes -= len(&content);
            }
        }
    }
}

/// The whole file, if it is in the state that is known. Blocks.
fn read_unchanged(file: &std::fs::File, identity: &Identity) -> io::Result<Option<Bytes>> {
    let metadata = file.metadata()?;
    let content = read_whole(file, metadata.len().min(SIZE_MAX))?;
    let is_same = identity.is_of(&metadata) && identity.is_of(&file.metadata()?);
    let is_whole = content.len() as u64 == metadata.len();
    Ok((is_same && is_whole).then(|| content.into()))
}

/// The first `len` bytes, or what there is of them. Blocks.
pub(crate) fn read_whole(file: &std::fs::File, len: u64) -> io::Result<Vec<u8>> {
    let mut content = vec![0; usize::try_from(len).map_err(io::Error::other)?];
    let mut filled = 0;
    while filled < content.len() {
        match file::read_at(file, &mut content[filled..], filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    content.truncate(filled);
    Ok(content)
}

/// `content` in a coding.
pub(crate) fn encode(coding: Coding, content: &[u8]) -> io::Result<Vec<u8>> {
    match coding {
        Coding::Zstd => zstd::bulk::compress(content, ZSTD_LEVEL),
        Coding::Brotli => {
            let params = brotli::enc::BrotliEncoderParams {
                quality: BROTLI_QUALITY,
                size_hint: content.len(),
                ..Default::default()
            };
            let mut encoded = Vec::with_capacity(content.len() / 3);
            brotli::BrotliCompress(&mut &content[..], &mut encoded, &params)?;
            Ok(encoded)
        }
        Coding::Gzip => {
            let level = flate2::Compression::new(GZIP_LEVEL);
            let encoded = Vec::with_capacity(content.len() / 3);
            let mut encoder = flate2::write::GzEncoder::new(encoded, level);
            encoder.write_all(content)?;
            encoder.finish()
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
