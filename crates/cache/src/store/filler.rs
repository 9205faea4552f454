//! The one that writes an object while others read it: into memory, then into a temporary file, then under its name.
//!
//! Pieces are pushed as they come and are there for readers at once. [`Filler::settle`] brings them to the
//! file in big writes, of which one is under way while more comes in. A small object never sees a temporary
//! file before its end. What goes wrong with the disk costs the object its place in the cache and nobody
//! a byte: it goes on from memory, as fast as its slowest reader.
//!
//! What must stay true: an object is found under its key as stored only when all of it is; a purge while it is
//! on its way in keeps it out; the memory of all that is on its way in is bounded.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use penstock_exchange::{Fault, FaultKind, FileBody};
use penstock_runtime::disk::Arena;
use twox_hash::XxHash3_64;

use super::disk::{Disk, DiskError, Kind};
use super::file::TempFile;
use super::folder::{Folder, on_disk};
use super::growing::{End, Growing};
use super::{Held, Key, Meta, Store};

/// Bytes of one write: large enough that a disk spends its time with bytes, not with seeks.
const WRITE_BYTES: u64 = 512 * 1024;

/// Bytes that may wait for a write, one under way included.
const PENDING_MAX: u64 = 2 * WRITE_BYTES;

/// Where memory is short: bytes beyond which nothing more comes in while a write is under way.
const SHORT_MAX: u64 = 64 * 1024;

/// Larger bodies are brought to the memory tier in the pool.
const HOLD_HERE_MAX: u64 = 1 << 20;

/// Bytes of an object that is not kept, between its writer and its slowest reader.
const WINDOW: u64 = 512 * 1024;

/// The one that writes an object. Dropped before [`Filler::finish`] it cuts its readers, and nothing is
/// kept.
pub(crate) struct Filler {
    store: Arc<Store>,
    key: Key,
    growing: Arc<Growing>,
    /// The size of the file's slots.
    slot_bytes: u32,
    file: Option<Arc<TempFile>>,
    /// Bytes of the body in the file.
    written: u64,
    /// `None` while a write is under way.
    hasher: Option<Box<XxHash3_64>>,
    writing: Option<WriteWork>,
    /// A file is getting its name.
    is_committing: bool,
}

type WriteWork = Pin<Box<dyn Future<Output = Result<Written, DiskError>> + Send>>;

/// What a write gives back.
struct Written {
    file: Arc<TempFile>,
    hasher: Box<XxHash3_64>,
    bytes: u64,
}

impl Filler {
    pub(super) fn new(store: Arc<Store>, key: Key, growing: Arc<Growing>, slot_bytes: u32) -> Self {
        Self {
            store,
            key,
            growing,
            slot_bytes,
            file: None,
            written: 0,
            hasher: Some(Box::default()),
            writing: None,
            is_committing: false,
        }
    }

    /// What it is stored under.
    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    /// Adds a piece; readers have it at once. Follow it with [`Filler::settle`].
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if bytes.is_empty() || self.is_pointless() {
            return;
        }
        self.growing.push(bytes);
        let total = self.growing.lock().total;
        let declared = self.growing.declared();
        let is_too_long = declared.is_some_and(|declared| total > declared);
        if total > self.store.config().object_max || is_too_long {
            self.doom();
        }
    }

    /// Waits until there is room for more: the disk keeps up, or the slowest reader does. Cancel safe.
    pub(crate) async fn settle(&mut self) {
        std::future::poll_fn(|cx| self.poll_settle(cx)).await;
    }

    /// Whether nobody reads it and it will not be kept either: the writer may stop.
    pub(crate) fn is_pointless(&self) -> bool {
        self.growing.lock().is_pointless()
    }

    /// Waits until [`Filler::is_pointless`]. Cancel safe.
    pub(crate) async fn pointless(&mut self) {
        loop {
            let notified = self.growing.pointless.notified();
            let mut notified = std::pin::pin!(notified);
            notified.as_mut().enable();
            if self.is_pointless() {
                return;
            }
            notified.await;
        }
    }

    /// The body is complete: the object is kept from here on (or not, when something failed: readers do
    /// not notice). Gives whether it is. A body that is not as long as declared is cut instead.
    pub(crate) async fn finish(mut self) -> bool {
        let total = self.growing.lock().total;
        if self
            .growing
            .declared()
            .is_some_and(|declared| declared != total)
        {
            let kind = FaultKind::BackendDied;
            self.cut(kind, "the body is not as long as it was said to be".into());
            return false;
        }
        self.growing.set_end(End::Whole);
        if !self.growing.is_kept() {
            return false;
        }
        let meta = Arc::new(Meta {
            length: total,
            ..(**self.growing.meta()).clone()
        });
        let is_in_memory_only = self.file.is_none() && self.writing.is_none();
        let mut kept = false;
        if is_in_memory_only && self.store.fits_memory(&meta) {
            let body = self.held(total).await;
            kept = self
                .store
                .insert_in_memory(&self.key, &self.growing, &meta, body.clone());
            if kept {
                // Who still reads it has it from there.
                self.growing.hold(body);
            }
        }
        match self.store.disk().cloned() {
            Some(disk) if self.growing.is_kept() => {
                let stored = self.write_rest(&disk, &meta).await;
                if let Err(error) = &stored {
                    log::debug!("cache `{}`: an object is not stored: {error}", disk.name);
                }
                if stored.is_err() {
                    // A write that ends later must not enter what may be purged by then.
                    self.growing.doom();
                }
                stored.is_ok() || kept
            }
            _ => kept,
        }
    }

    /// The whole body, as the memory tier has it.
    async fn held(&mut self, total: u64) -> Held {
        let pieces = self.growing.pieces_from(0);
        if total > HOLD_HERE_MAX {
            let (store, pieces) = (Arc::clone(&self.store), pieces.clone());
            let there = self
                .store
                .pool
                .run(move || held(&pieces, store.arena_for(total)));
            if let Ok(held) = there.await {
                return held;
            }
        }
        held(&pieces, self.store.arena_for(total))
    }

    /// The body cannot be completed: its readers are cut with `fault`, nothing is kept.
    pub(crate) fn abort(self, fault: &Fault) {
        self.cut(fault.kind, fault.cause.clone());
    }

    fn cut(&self, kind: FaultKind, cause: std::borrow::Cow<'static, str>) {
        self.growing.set_end(End::Cut(kind, cause));
        self.doom();
    }

    /// It will not be kept, and is not found any more.
    fn doom(&self) {
        self.growing.doom();
        self.store.forget_growing(&self.key, &self.growing);
    }

    fn poll_settle(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let is_writing = self.poll_writing(cx).is_pending();
            let (pending, in_memory) = {
                let mut state = self.growing.lock();
                if state.is_doomed {
                    if state.in_memory() <= WINDOW || state.is_pointless() {
                        return Poll::Ready(());
                    }
                    state.writer = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                (state.total - self.written, state.in_memory())
            };
            if is_writing {
                // Short of memory one write's bytes are enough, and a few more.
                let is_much = pending > SHORT_MAX && self.store.is_memory_short();
                return if pending > PENDING_MAX || is_much {
                    Poll::Pending
                } else {
                    Poll::Ready(())
                };
            }
            let is_much = self.store.is_memory_short();
            let Some(disk) = self.store.disk().cloned() else {
                if is_much {
                    // More is on its way in than there is memory for: this one goes on without being kept.
                    self.doom();
                    continue;
                }
                return Poll::Ready(());
            };
            let begins = in_memory > self.store.small_max() || (is_much && in_memory > 0);
            let is_due = if self.file.is_some() {
                pending >= WRITE_BYTES || (is_much && pending > 0)
            } else {
                begins
            };
            if !is_due {
                return Poll::Ready(());
            }
            self.begin_write(disk);
        }
    }

    /// Pending while a write is under way.
    fn poll_writing(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(writing) = &mut self.writing else {
            return Poll::Ready(());
        };
        let Poll::Ready(written) = writing.as_mut().poll(cx) else {
            return Poll::Pending;
        };
        self.writing = None;
        match written {
            Ok(written) => {
                self.written += written.bytes;
                self.hasher = Some(written.hasher);
                self.growing.set_written(&written.file, self.written);
                self.file = Some(written.file);
            }
            Err(_) => self.doom(),
        }
        Poll::Ready(())
    }

    /// Starts writing what is not in the file yet.
    fn begin_write(&mut self, disk: Arc<Disk>) {
        let Some(hasher) = self.hasher.take() else {
            return;
        };
        let pieces = self.growing.pieces_from(self.written);
        let (file, at, slot_bytes) = (self.file.clone(), self.written, self.slot_bytes);
        self.writing = Some(Box::pin(write(disk, file, slot_bytes, pieces, at, hasher)));
    }

    /// Writes what is left, gives the file its name and enters the object.
    async fn write_rest(&mut self, disk: &Arc<Disk>, meta: &Arc<Meta>) -> Result<(), DiskError> {
        std::future::poll_fn(|cx| self.poll_writing(cx)).await;
        // An empty body has a file, too.
        let is_begun = self.file.is_some();
        if self.growing.is_kept() && (self.written < meta.length || !is_begun) {
            self.begin_write(Arc::clone(disk));
            std::future::poll_fn(|cx| self.poll_writing(cx)).await;
        }
        let (Some(file), Some(hasher), true) =
            (self.file.take(), self.hasher.take(), self.growing.is_kept())
        else {
            return Err(DiskError::Out);
        };
        let (store, key) = (Arc::clone(&self.store), self.key.clone());
        let (growing, meta) = (Arc::clone(&self.growing), Arc::clone(meta));
        // Entered where it gets its name, so that no file is left behind by a writer that leaves meanwhile.
        let commit = move || {
            let object = file.commit(key.hash, &meta, &hasher)?;
            store.insert_on_disk(&key, &growing, &meta, object);
            Ok(())
        };
        self.is_committing = true;
        let committed = disk.run(Kind::Write, commit).await;
        self.is_committing = committed.is_err();
        committed
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        // After the end this changes nothing.
        let cause = "the response ended before its end".into();
        self.growing
            .set_end(End::Cut(FaultKind::BackendDied, cause));
        let is_whole = matches!(self.growing.lock().end, Some(End::Whole));
        // One that is still getting its name would be found by no purge from here on.
        if !is_whole || self.is_committing {
            self.growing.doom();
        }
        self.store.forget_growing(&self.key, &self.growing);
        self.store.grew();
    }
}

impl std::fmt::Debug for Filler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Filler")
            .field("written", &self.written)
            .finish_non_exhaustive()
    }
}

/// Writes `pieces` behind the `at` bytes of the body that are in the file, which is made if need be.
async fn write(
    disk: Arc<Disk>,
    file: Option<Arc<TempFile>>,
    slot_bytes: u32,
    pieces: Vec<Bytes>,
    at: u64,
    mut hasher: Box<XxHash3_64>,
) -> Result<Written, DiskError> {
    let bytes: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
    let folder = match &file {
        Some(file) => Arc::clone(file.folder()),
        None => disk.opened().ok_or(DiskError::Out)?.folder,
    };
    let head = super::format::body_at(slot_bytes);
    let size = on_disk(head + at + bytes);
    let reserved = Reserved::take(&disk, &folder, file.as_deref(), size).await?;
    let (for_work, folder) = (Arc::clone(&disk), folder);
    let work = move || {
        let file = match file {
            Some(file) => {
                file.add_reserved(reserved.keep());
                file
            }
            None => {
                let bytes = reserved.keep();
                Arc::new(TempFile::create(&for_work, folder, slot_bytes, bytes)?)
            }
        };
        file.write(&pieces, at, &mut hasher)?;
        Ok(Written {
            file,
            hasher,
            bytes,
        })
    };
    disk.run(Kind::Write, work).await
}

/// Bytes reserved in a folder until somebody answers for them.
struct Reserved {
    folder: Arc<Folder>,
    bytes: u64,
}

impl Reserved {
    /// Reserves what a file needs to be `size` bytes large.
    async fn take(
        disk: &Arc<Disk>,
        folder: &Arc<Folder>,
        file: Option<&TempFile>,
        size: u64,
    ) -> Result<Self, DiskError> {
        let bytes = size.saturating_sub(file.map_or(0, TempFile::reserved));
        disk.reserve(folder, bytes).await?;
        Ok(Self {
            folder: Arc::clone(folder),
            bytes,
        })
    }

    fn keep(mut self) -> u64 {
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.folder.release(self.bytes);
    }
}

fn held(pieces: &[Bytes], arena: Option<&Arena>) -> Held {
    let in_pages = arena.and_then(|arena| arena.store(pieces).ok());
    match in_pages {
        Some(file) => {
            let len = pieces.iter().map(|piece| piece.len() as u64).sum();
            Held::Pages(FileBody {
                file,
                start: 0,
                len,
            })
        }
        None => Held::Bytes(join(pieces)),
    }
}

fn join(pieces: &[Bytes]) -> Bytes {
    if let [only] = pieces {
        return only.clone();
    }
    let mut all = BytesMut::with_capacity(pieces.iter().map(Bytes::len).sum());
    for piece in pieces {
        all.extend_from_slice(piece);
    }
    all.freeze()
}

/// Gauges memory in use by what is on its way in.
pub(super) fn is_over(gauge: &std::sync::atomic::AtomicU64, max: u64) -> bool {
    gauge.load(Relaxed) > max
}
