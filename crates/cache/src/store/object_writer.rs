//! Writes an object while clients read it: into memory, then a temporary file, then under its final
//! name.
//!
//! A pushed piece is available to readers at once. [`ObjectWriter::wait_for_capacity`] moves pieces
//! to the file in large writes, one at a time, while more pieces arrive. A small object has no
//! temporary file before its end. A disk error keeps the object out of the cache but costs its
//! readers nothing: it continues from memory, as fast as its slowest reader.
//!
//! # Invariants
//!
//! - An object is found as stored only when it is complete.
//! - A purge while the object is partial keeps it out of the store.
//! - The memory of all partial objects is bounded.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use penstock_exchange::{Fault, FaultKind, FileBody};
use penstock_runtime::disk::Arena;
use twox_hash::XxHash3_64;

use super::cache_dir::{CacheDir, allocated_bytes};
use super::disk::{Disk, DiskError, DiskOperationKind};
use super::object_file::TempFile;
use super::partial_object::{BodyEnd, PartialObject};
use super::{MemoryBody, ObjectKey, ObjectMeta, Store};

/// Bytes of one write: large enough that a disk spends its time on bytes, not on seeks.
const WRITE_BYTES: u64 = 512 * 1024;

/// Bytes waiting to be written, including a running write.
const MAX_PENDING_BYTES: u64 = 2 * WRITE_BYTES;

/// Bytes waiting to be written while memory is short and a write is running.
const MAX_PENDING_WHEN_SHORT: u64 = 64 * 1024;

/// Larger bodies are copied to the memory tier in the pool.
const MAX_COPY_ON_LOOP: u64 = 1 << 20;

/// Bytes between the writer and the slowest reader of a discarded object.
const READER_WINDOW: u64 = 512 * 1024;

/// The writer of an object. If it is dropped before [`ObjectWriter::finish`], readers are cut and
/// nothing is stored.
pub(crate) struct ObjectWriter {
    store: Arc<Store>,
    pub(crate) key: ObjectKey,
    partial: Arc<PartialObject>,
    slot_bytes: u32,
    file: Option<Arc<TempFile>>,
    /// Bytes of the body in the file.
    written_bytes: u64,
    /// `None` during a write.
    hasher: Option<Box<XxHash3_64>>,
    pending_write: Option<PendingWrite>,
    /// A file is being renamed to its final name.
    is_committing: bool,
}

type PendingWrite = Pin<Box<dyn Future<Output = Result<WriteResult, DiskError>> + Send>>;

struct WriteResult {
    file: Arc<TempFile>,
    hasher: Box<XxHash3_64>,
    bytes: u64,
}

impl ObjectWriter {
    pub(super) fn new(
        store: Arc<Store>,
        key: ObjectKey,
        partial: Arc<PartialObject>,
        slot_bytes: u32,
    ) -> Self {
        Self {
            store,
            key,
            partial,
            slot_bytes,
            file: None,
            written_bytes: 0,
            hasher: Some(Box::default()),
            pending_write: None,
            is_committing: false,
        }
    }

    /// Adds a piece, which readers see at once. Follow it with [`ObjectWriter::wait_for_capacity`].
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if bytes.is_empty() || self.is_unneeded() {
            return;
        }
        let total = self.partial.push(bytes);
        let max = self.store.config().max_object_size;
        if total
            > self
                .partial
                .declared_length
                .map_or(max, |declared| declared.min(max))
        {
            self.discard();
        }
    }

    /// Waits until the disk, or the slowest reader of a discarded object, has caught up. Cancel
    /// safe.
    pub(crate) async fn wait_for_capacity(&mut self) {
        std::future::poll_fn(|cx| self.poll_capacity(cx)).await;
    }

    /// Whether the object is discarded and has no reader: the writer may stop.
    pub(crate) fn is_unneeded(&self) -> bool {
        self.partial.state.lock().is_unneeded()
    }

    /// Waits until [`ObjectWriter::is_unneeded`]. Cancel safe.
    pub(crate) async fn wait_until_unneeded(&mut self) {
        loop {
            let notified = self.partial.unneeded.notified();
            let mut notified = std::pin::pin!(notified);
            notified.as_mut().enable();
            if self.is_unneeded() {
                return;
            }
            notified.await;
        }
    }

    /// Completes the body and stores the object. A failure to store it does not affect readers.
    /// Returns whether the object is stored. A body that differs from its declared length is cut
    /// instead.
    pub(crate) async fn finish(mut self) -> bool {
        let total = self.partial.state.lock().pushed_bytes;
        if (self.partial.declared_length).is_some_and(|declared| declared != total) {
            let kind = FaultKind::BackendDisconnected;
            self.fail(kind, "the body does not match its Content-Length".into());
            return false;
        }
        self.partial.set_end(BodyEnd::Complete);
        if !self.partial.can_be_stored() {
            return false;
        }
        let meta = Arc::new(ObjectMeta {
            length: total,
            ..(*self.partial.meta).clone()
        });
        let is_in_memory_only = self.file.is_none() && self.pending_write.is_none();
        let mut kept = false;
        if is_in_memory_only && self.store.fits_memory(&meta) {
            let body = self.memory_body(total).await;
            let (key, partial) = (&self.key, &self.partial);
            kept = (self.store).insert_in_memory(key, partial, &meta, body.clone());
            if kept {
                // Current readers continue from there.
                self.partial.set_memory_body(body);
            }
        }
        if let Some(disk) = self.store.disk.clone()
            && self.partial.can_be_stored()
        {
            match self.write_rest(&disk, &meta).await {
                Ok(()) => return true,
                Err(error) => {
                    log::debug!("cache {}: object not stored: {error}", disk.name);
                    // A write that ends later must not insert an object that may have been purged
                    // by then.
                    self.partial.discard();
                }
            }
        }
        kept
    }

    /// The whole body in the form of the memory tier.
    async fn memory_body(&mut self, total: u64) -> MemoryBody {
        let pieces = self.partial.pieces_from(0);
        if total > MAX_COPY_ON_LOOP {
            let (store, pieces) = (Arc::clone(&self.store), pieces.clone());
            let copy = move || to_memory_body(&pieces, store.arena_for(total));
            if let Ok(body) = self.store.pool.run(copy).await {
                return body;
            }
        }
        to_memory_body(&pieces, self.store.arena_for(total))
    }

    /// Ends an incomplete body: readers are cut with `fault`, and nothing is stored.
    pub(crate) fn abort(self, fault: &Fault) {
        self.fail(fault.kind, fault.cause.clone());
    }

    fn fail(&self, kind: FaultKind, cause: std::borrow::Cow<'static, str>) {
        self.partial.set_end(BodyEnd::Cut(kind, cause));
        self.discard();
    }

    /// Keeps the object from being stored and found.
    fn discard(&self) {
        self.partial.discard();
        self.store.remove_partial(&self.key, &self.partial);
    }

    fn poll_capacity(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let is_writing = self.poll_write(cx).is_pending();
            let mut state = self.partial.state.lock();
            let (pending, in_memory) =
                (state.pushed_bytes - self.written_bytes, state.pieces_bytes);
            if state.is_discarded {
                if in_memory <= READER_WINDOW || state.is_unneeded() {
                    return Poll::Ready(());
                }
                state.writer_waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            drop(state);
            let is_short = self.store.is_memory_short();
            if is_writing {
                // While memory is short, little more than one write may be pending.
                let max = if is_short {
                    MAX_PENDING_WHEN_SHORT
                } else {
                    MAX_PENDING_BYTES
                };
                return if pending > max {
                    Poll::Pending
                } else {
                    Poll::Ready(())
                };
            }
            let Some(disk) = self.store.disk.clone() else {
                if is_short {
                    // Partial objects exceed their memory: this one continues without being kept.
                    self.discard();
                    continue;
                }
                return Poll::Ready(());
            };
            let is_due = match self.file {
                Some(_) => pending >= WRITE_BYTES || is_short && pending > 0,
                None => in_memory > self.store.spool_threshold() || is_short && in_memory > 0,
            };
            if !is_due {
                return Poll::Ready(());
            }
            self.begin_write(disk);
        }
    }

    /// Pending during a write.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(writing) = &mut self.pending_write else {
            return Poll::Ready(());
        };
        let written = ready!(writing.as_mut().poll(cx));
        self.pending_write = None;
        match written {
            Ok(written) => {
                self.written_bytes += written.bytes;
                self.hasher = Some(written.hasher);
                self.partial.set_written(&written.file, self.written_bytes);
                self.file = Some(written.file);
            }
            Err(_) => self.discard(),
        }
        Poll::Ready(())
    }

    /// Starts writing the pieces that are not in the file yet.
    fn begin_write(&mut self, disk: Arc<Disk>) {
        let Some(hasher) = self.hasher.take() else {
            return;
        };
        let pieces = self.partial.pieces_from(self.written_bytes);
        let (file, at, slot_bytes) = (self.file.clone(), self.written_bytes, self.slot_bytes);
        self.pending_write = Some(Box::pin(write(disk, file, slot_bytes, pieces, at, hasher)));
    }

    /// Writes the rest, renames the file to its final name and inserts the object.
    async fn write_rest(
        &mut self,
        disk: &Arc<Disk>,
        meta: &Arc<ObjectMeta>,
    ) -> Result<(), DiskError> {
        std::future::poll_fn(|cx| self.poll_write(cx)).await;
        // An empty body has a file, too.
        let is_begun = self.file.is_some();
        if self.partial.can_be_stored() && (self.written_bytes < meta.length || !is_begun) {
            self.begin_write(Arc::clone(disk));
            std::future::poll_fn(|cx| self.poll_write(cx)).await;
        }
        let (Some(file), Some(hasher), true) = (
            self.file.take(),
            self.hasher.take(),
            self.partial.can_be_stored(),
        ) else {
            return Err(DiskError::OutOfService);
        };
        let (store, key, disk_of_work) =
            (Arc::clone(&self.store), self.key.clone(), Arc::clone(disk));
        let (partial, meta) = (Arc::clone(&self.partial), Arc::clone(meta));
        // Inserted by the same operation that renames the file: a writer that is dropped meanwhile
        // leaves no orphaned file.
        let commit = move || {
            let object = file.commit(key.hash, &meta, &hasher)?;
            store.insert_in_disk_index(&disk_of_work, &key, &partial, &meta, object);
            Ok(())
        };
        self.is_committing = true;
        let committed = disk.run(DiskOperationKind::Write, commit).await;
        self.is_committing = committed.is_err();
        committed
    }
}

impl Drop for ObjectWriter {
    fn drop(&mut self) {
        // Does nothing after the end.
        let cause = "the response ended before its end".into();
        (self.partial).set_end(BodyEnd::Cut(FaultKind::BackendDisconnected, cause));
        let is_whole = matches!(self.partial.state.lock().end, Some(BodyEnd::Complete));
        // A purge would not find an object that is still being renamed.
        if !is_whole || self.is_committing {
            self.partial.discard();
        }
        self.store.remove_partial(&self.key, &self.partial);
        self.store.decrement_partial_count();
    }
}

impl std::fmt::Debug for ObjectWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectWriter")
            .field("written", &self.written_bytes)
            .finish_non_exhaustive()
    }
}

/// Appends `pieces` at body position `at`, creating the file if needed.
async fn write(
    disk: Arc<Disk>,
    file: Option<Arc<TempFile>>,
    slot_bytes: u32,
    pieces: Vec<Bytes>,
    at: u64,
    mut hasher: Box<XxHash3_64>,
) -> Result<WriteResult, DiskError> {
    let bytes: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
    let folder = match &file {
        Some(file) => Arc::clone(&file.dir),
        None => disk.open_dir().ok_or(DiskError::OutOfService)?.dir,
    };
    let head = super::format::body_offset(slot_bytes);
    let size = allocated_bytes(head + at + bytes);
    let has = file
        .as_ref()
        .map_or(0, |file| file.reserved_bytes.load(Relaxed));
    let more = size.saturating_sub(has);
    disk.reserve_space(&folder, more).await?;
    let reservation = SpaceReservation(Arc::clone(&folder), more);
    let disk_of_work = Arc::clone(&disk);
    let work = move || {
        let more = reservation.into_bytes();
        let file = match file {
            Some(file) => {
                file.reserved_bytes.fetch_add(more, Relaxed);
                file
            }
            None => Arc::new(TempFile::create(&disk_of_work, folder, slot_bytes, more)?),
        };
        file.write(&pieces, at, &mut hasher)?;
        Ok(WriteResult {
            file,
            hasher,
            bytes,
        })
    };
    disk.run(DiskOperationKind::Write, work).await
}

/// Bytes reserved in a directory until a file accounts for them.
struct SpaceReservation(Arc<CacheDir>, u64);

impl SpaceReservation {
    fn into_bytes(mut self) -> u64 {
        std::mem::take(&mut self.1)
    }
}

impl Drop for SpaceReservation {
    fn drop(&mut self) {
        self.0.release_bytes(self.1);
    }
}

fn to_memory_body(pieces: &[Bytes], arena: Option<&Arena>) -> MemoryBody {
    match arena.and_then(|arena| arena.store(pieces).ok()) {
        Some(file) => MemoryBody::Arena(FileBody {
            file,
            start: 0,
            len: pieces.iter().map(|piece| piece.len() as u64).sum(),
        }),
        None => MemoryBody::Bytes(concat_pieces(pieces)),
    }
}

fn concat_pieces(pieces: &[Bytes]) -> Bytes {
    if let [only] = pieces {
        return only.clone();
    }
    let mut all = BytesMut::with_capacity(pieces.iter().map(Bytes::len).sum());
    for piece in pieces {
        all.extend_from_slice(piece);
    }
    all.freeze()
}
