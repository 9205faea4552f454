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

use crate::file_entry::{ContentSource, FileEntry, FileStamp};

/// Files below this size are sent as they are: with their head they fit into one packet either way.
pub(crate) const MIN_SIZE: u64 = 1024;

/// Files above this size are sent as they are: compressing one would take a thread for longer than
/// anybody waits ([`MAX_WAIT`]), and what is that large is better compressed when it is built.
///
/// [`MAX_WAIT`]: crate::handler
pub(crate) const MAX_SIZE: u64 = 1 << 20;

/// Memory for what one root's files were compressed to.
const MAX_CACHED_BYTES: usize = 16 << 20;

/// Versions and codings of which something is known: also that it did not pay.
const MAX_ENTRIES: usize = 8 << 10;

/// Pieces of work at once, of one root. The pool says how many of all roots.
const MAX_CONCURRENT: usize = 2;

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
    shared: Arc<Mutex<CompressorState>>,
}

/// How far a coding is.
pub(crate) enum CompressionStatus {
    /// Made; none where it is not smaller.
    Done(Option<Bytes>),
    /// Being made.
    Running(CompressionWait),
    /// Not now.
    Busy,
}

/// Waits until a piece of work is done.
pub(crate) struct CompressionWait(watch::Receiver<()>);

impl CompressionWait {
    pub(crate) async fn finished(mut self) {
        // Nothing is ever sent: the end of the sender is the sign.
        let _ = self.0.changed().await;
    }
}

type CompressionKey = (FileStamp, Coding);

#[derive(Default)]
struct CompressorState {
    entries: HashMap<CompressionKey, CompressionEntry>,
    /// What is made, oldest first.
    finished: VecDeque<CompressionKey>,
    bytes: usize,
    running: usize,
}

enum CompressionEntry {
    Running(watch::Receiver<()>),
    Finished(Option<Bytes>),
}

impl fmt::Debug for CompressorState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("made", &self.finished.len())
            .field("bytes", &self.bytes)
            .field("running", &self.running)
            .finish_non_exhaustive()
    }
}

impl Compressor {
    /// How far `coding` of a file is; begins with it if nobody did.
    pub(crate) fn get_or_start(
        &self,
        found: &FileEntry,
        coding: Coding,
        pool: &Pool,
    ) -> CompressionStatus {
        let key = (found.original.identity, coding);
        let (work, waiting) = {
            let mut state = self.lock();
            match state.entries.get(&key) {
                Some(CompressionEntry::Finished(content)) => {
                    return CompressionStatus::Done(content.clone());
                }
                Some(CompressionEntry::Running(done)) => {
                    return CompressionStatus::Running(CompressionWait(done.clone()));
                }
                None if state.running >= MAX_CONCURRENT => return CompressionStatus::Busy,
                None => {}
            }
            let Some(share) = pool.try_compute_permit() else {
                return CompressionStatus::Busy;
            };
            state.running += 1;
            let (done, waiting) = watch::channel(());
            state
                .entries
                .insert(key, CompressionEntry::Running(waiting.clone()));
            let shared = Arc::clone(&self.shared);
            let work = CompressionJob {
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
            Ok(()) => CompressionStatus::Running(CompressionWait(waiting)),
            Err(_) => CompressionStatus::Busy,
        }
    }

    fn lock(&self) -> MutexGuard<'_, CompressorState> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A piece of work. However it ends, it leaves the state in order and wakes who waits.
struct CompressionJob {
    shared: Arc<Mutex<CompressorState>>,
    key: CompressionKey,
    /// None when it came to nothing: it is tried again then.
    result: Option<Option<Bytes>>,
    done: watch::Sender<()>,
    /// The pool's leave to compute.
    share: Option<ComputePermit>,
}

impl CompressionJob {
    fn run(mut self, source: &ContentSource) {
        let (identity, coding) = self.key;
        let content = match source {
            ContentSource::Memory(content) => content.clone(),
            ContentSource::Disk(file) => {
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

impl Drop for CompressionJob {
    fn drop(&mut self) {
        let mut state = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        state.running -= 1;
        match self.result.take() {
            Some(content) => state.store(self.key, content),
            None => drop(state.entries.remove(&self.key)),
        }
        drop(state);
        // First, so that whoever is woken can have it.
        drop(self.share.take());
        self.done.send_replace(());
    }
}

impl CompressorState {
    fn store(&mut self, key: CompressionKey, content: Option<Bytes>) {
        let len = |content: &Option<Bytes>| content.as_ref().map_or(0, Bytes::len);
        self.bytes += len(&content);
        self.entries
            .insert(key, CompressionEntry::Finished(content));
        self.finished.push_back(key);
        while self.bytes > MAX_CACHED_BYTES || self.finished.len() > MAX_ENTRIES {
            let Some(oldest) = self.finished.pop_front() else {
                break;
            };
            if let Some(CompressionEntry::Finished(content)) = self.entries.remove(&oldest) {
                self.bytes -= len(&content);
            }
        }
    }
}

/// The whole file, if it is in the state that is known. Blocks.
fn read_unchanged(file: &std::fs::File, identity: &FileStamp) -> io::Result<Option<Bytes>> {
    let metadata = file.metadata()?;
    let content = read_up_to(file, metadata.len().min(MAX_SIZE))?;
    let is_same = identity.matches(&metadata) && identity.matches(&file.metadata()?);
    let is_whole = content.len() as u64 == metadata.len();
    Ok((is_same && is_whole).then(|| content.into()))
}

/// The first `len` bytes, or what there is of them. Blocks.
pub(crate) fn read_up_to(file: &std::fs::File, len: u64) -> io::Result<Vec<u8>> {
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
