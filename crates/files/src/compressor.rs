//! Compresses requested files in the pool, once for each version and coding.
//!
//! `handler` calls [`Compressor::get_or_start`] if a client prefers a coding that does not exist
//! yet. All event loops share the results.
//!
//! # Invariants
//!
//! - Each version and coding is compressed by one job at a time. The jobs of a root, and of all
//!   roots on a pool, are few, so that reads are not delayed.
//! - Results are bounded in memory, and kept only if they are smaller than the original.
//! - A file that changes meanwhile is not compressed.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use penstock_config::ContentCoding;
use penstock_runtime::blocking::{ComputePermit, Pool};
use penstock_sys::file;
use tokio::sync::watch;

use crate::file_entry::{ContentSource, FileEntry, FileStamp};

/// Smaller files are not compressed: with their head they fit into one packet either way.
pub(crate) const MIN_COMPRESSIBLE_BYTES: u64 = 1024;

/// Larger files are not compressed: that would take longer than requests wait ([`MAX_WAIT`]), and
/// such files are better compressed by a build.
///
/// [`MAX_WAIT`]: crate::handler
pub(crate) const MAX_COMPRESSIBLE_BYTES: u64 = 1 << 20;

/// Memory for the compressed files of one root.
const MAX_CACHED_BYTES: usize = 16 << 20;

/// Known versions and codings, including those not worth compressing.
const MAX_ENTRIES: usize = 8 << 10;

/// Concurrent jobs of one root. The pool limits those of all roots.
const MAX_CONCURRENT: usize = 2;

// Results are kept until the file changes, but a restart compresses again while requests wait. The
// levels get most of the gain in about 20 ms for the largest file. The highest levels gain a few
// per cent for fifty times the work; builds can use those (`precompressed`).
const ZSTD_LEVEL: i32 = 9;
const BROTLI_QUALITY: i32 = 5;
const GZIP_LEVEL: u32 = 6;

/// Finished and running compressions of one root. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Compressor {
    shared: Arc<Mutex<CompressorState>>,
}

pub(crate) enum CompressionStatus {
    /// Finished; `None` if the result is not smaller.
    Done(Option<Bytes>),
    Running(CompressionWaiter),
    Busy,
}

/// Waits until a job is done.
pub(crate) struct CompressionWaiter(watch::Receiver<()>);

impl CompressionWaiter {
    pub(crate) async fn wait(mut self) {
        // No value is sent: dropping the sender is the signal.
        let _ = self.0.changed().await;
    }
}

type CompressionKey = (FileStamp, ContentCoding);

#[derive(Default)]
struct CompressorState {
    entries: HashMap<CompressionKey, CompressionEntry>,
    /// Finished entries, oldest first.
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
        f.debug_struct("CompressorState")
            .field("made", &self.finished.len())
            .field("bytes", &self.bytes)
            .field("running", &self.running)
            .finish_non_exhaustive()
    }
}

impl Compressor {
    /// Returns the state of a file's `coding`, and starts a job if there is none.
    pub(crate) fn get_or_start(
        &self,
        found: &FileEntry,
        coding: ContentCoding,
        pool: &Pool,
    ) -> CompressionStatus {
        let key = (found.original.stamp, coding);
        let (work, waiting) = {
            let mut state = self.lock();
            match state.entries.get(&key) {
                Some(CompressionEntry::Finished(content)) => {
                    return CompressionStatus::Done(content.clone());
                }
                Some(CompressionEntry::Running(done)) => {
                    return CompressionStatus::Running(CompressionWaiter(done.clone()));
                }
                None if state.running >= MAX_CONCURRENT => return CompressionStatus::Busy,
                None => {}
            }
            let Some(share) = pool.try_acquire_compute_permit() else {
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
        // If the pool refuses the job, dropping it removes its entry.
        match pool.spawn(move || work.run(&source)) {
            Ok(()) => CompressionStatus::Running(CompressionWaiter(waiting)),
            Err(_) => CompressionStatus::Busy,
        }
    }

    fn lock(&self) -> MutexGuard<'_, CompressorState> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A compression job. Its drop updates the state and wakes all waiters.
struct CompressionJob {
    shared: Arc<Mutex<CompressorState>>,
    key: CompressionKey,
    /// `None` if there is no result: the next request tries again.
    result: Option<Option<Bytes>>,
    done: watch::Sender<()>,
    /// The pool's permit to compute.
    share: Option<ComputePermit>,
}

impl CompressionJob {
    fn run(mut self, source: &ContentSource) {
        let (stamp, coding) = self.key;
        let content = match source {
            ContentSource::Memory(content) => content.clone(),
            ContentSource::Disk(file) => {
                match file.file().and_then(|file| read_unchanged(file, &stamp)) {
                    Ok(Some(content)) => content,
                    Ok(None) => return,
                    Err(error) => {
                        // Not retried for this version, so that the log has one line.
                        self.result = Some(None);
                        return log::warn!("files: compression failed: {error}");
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
                log::warn!(
                    "files: compression failed: {error} (coding={})",
                    coding.as_str()
                );
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
        // Released first, so that a woken waiter can acquire it.
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

/// Reads the whole file if it still has this stamp. Blocks.
fn read_unchanged(file: &std::fs::File, stamp: &FileStamp) -> io::Result<Option<Bytes>> {
    let metadata = file.metadata()?;
    let content = read_up_to(file, metadata.len().min(MAX_COMPRESSIBLE_BYTES))?;
    let is_same = stamp.matches(&metadata) && stamp.matches(&file.metadata()?);
    let is_whole = content.len() as u64 == metadata.len();
    Ok((is_same && is_whole).then(|| content.into()))
}

/// Reads up to `len` bytes. Blocks.
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

pub(crate) fn encode(coding: ContentCoding, content: &[u8]) -> io::Result<Vec<u8>> {
    match coding {
        ContentCoding::Zstd => zstd::bulk::compress(content, ZSTD_LEVEL),
        ContentCoding::Brotli => {
            let params = brotli::enc::BrotliEncoderParams {
                quality: BROTLI_QUALITY,
                size_hint: content.len(),
                ..Default::default()
            };
            let mut encoded = Vec::with_capacity(content.len() / 3);
            brotli::BrotliCompress(&mut &content[..], &mut encoded, &params)?;
            Ok(encoded)
        }
        ContentCoding::Gzip => {
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
