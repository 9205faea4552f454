//! A found object: what is known of it, and how to get at its body.
//!
//! `handler` sends what is in memory at once and opens the rest. Opening stays on the loop while the name is
//! in the kernel's cache and the file is as this process left it; all else goes to the pool: the name, and
//! the whole body once for a file that a former process wrote or somebody changed.

use std::fs::File;
use std::io;
use std::sync::Arc;

use penstock_exchange::FileBody;
use penstock_runtime::DiskFile;
use penstock_runtime::disk::{CHUNK_BYTES, ReadError};

use super::cache_dir::{Access, ObjectFileId};
use super::disk::{Disk, DiskError, DiskItem, OperationKind};
use super::index_updates::{ReadFailureWatch, is_damage, is_unrecoverable};
use super::{MemoryBody, ObjectMeta, PartialObject, Store, verification};

/// An object that was found.
#[derive(Debug, Clone)]
pub(crate) struct Hit {
    /// What is known of it.
    pub(crate) meta: Arc<ObjectMeta>,
    /// Its body.
    pub(crate) body: HitBody,
}

/// Where a found object's body is.
#[derive(Debug, Clone)]
pub(crate) enum HitBody {
    /// All of it in memory.
    Memory(MemoryBody),
    /// In a file.
    Disk(DiskObject),
    /// Still on its way here: `meta.length` is not known yet.
    Partial(Arc<PartialObject>),
}

/// An object's file.
#[derive(Debug, Clone)]
pub(crate) struct DiskObject {
    pub(super) store: Arc<Store>,
    pub(super) item: Arc<DiskItem>,
}

/// The object is not there any more, or not as it was written: a miss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the stored object is gone")]
pub(crate) struct ObjectGone;

impl DiskObject {
    /// Its body, in an open file. From the loop where that needs no disk.
    ///
    /// # Errors
    /// [`ObjectGone`]: it was evicted or damaged, or its disk does not answer. A miss; the store knows.
    pub(crate) async fn open(&self) -> Result<FileBody, ObjectGone> {
        let file = match self.open_on_loop() {
            Some(file) => file,
            None => self
                .open_in_pool()
                .await
                .map_err(|error| self.handle_failure(&error))?,
        };
        // What is not there before the head is out is a miss; afterwards it could only be a cut.
        let ready = self.read_first_chunk(&file).await;
        ready.map_err(|error| self.handle_failure(&error))?;
        self.store.record_use(&self.item);
        Ok(FileBody {
            file,
            start: self.item.body.preamble.body_offset(),
            len: self.item.body.preamble.length,
        })
    }

    /// The file, if it is open or its name is known to the kernel, and it is as we left it.
    fn open_on_loop(&self) -> Option<Arc<DiskFile>> {
        let object = &self.item.body;
        let is_trusted = |file: &DiskFile| {
            let identity = file.file().and_then(ObjectFileId::of);
            identity.is_ok_and(|identity| object.is_trusted(&identity))
        };
        if let Some(file) = object.open_file().filter(|file| is_trusted(file)) {
            return Some(file);
        }
        let file = object.dir.open_cached(object.name)?;
        let file = self.watch_file(file, self.store.disk()?);
        if !is_trusted(&file) {
            return None;
        }
        self.store.keep_open(object, &file);
        Some(file)
    }

    fn watch_file(&self, file: File, disk: &Disk) -> Arc<DiskFile> {
        let watch = ReadFailureWatch::new(&self.store, &self.item.body);
        Arc::new(DiskFile::new(file, disk.pool.clone()).with_error_sink(watch))
    }

    /// Reads what is not in memory of the file's first chunk, so that it is there for the sender. From the file's
    /// front, as whole chunks are remembered best.
    async fn read_first_chunk(&self, file: &Arc<DiskFile>) -> Result<(), DiskError> {
        let end = self.item.body.preamble.file_bytes().min(CHUNK_BYTES);
        let mut at = 0;
        while at < end {
            let resident = file.resident_bytes(at, end - at);
            at += resident;
            if resident > 0 {
                continue;
            }
            let disk = self.store.disk().ok_or(DiskError::OutOfService)?;
            let piece = match disk.unless_out(file.read(at, end - at)).await? {
                Ok(piece) if piece.is_empty() => {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
                Ok(piece) => piece,
                Err(ReadError::Pool(error)) => return Err(error.into()),
                Err(ReadError::Disk(error)) => return Err(clone_error(&error).into()),
            };
            at += piece.len() as u64;
            if file.resident_bytes(0, 1) == 0 {
                // Its file system cannot tell what is in memory: the sender reads all of it anyway.
                break;
            }
        }
        Ok(())
    }

    async fn open_in_pool(&self) -> Result<Arc<DiskFile>, DiskError> {
        let disk = self.store.disk().ok_or(DiskError::OutOfService)?;
        let object = Arc::clone(&self.item.body);
        let open = move || {
            let file = object.dir.open_object(object.name, Access::Read)?;
            let identity = ObjectFileId::of(&file)?;
            Ok((file, object.is_trusted(&identity)))
        };
        let (file, is_trusted) = disk.run(OperationKind::Open, open).await?;
        let file = self.watch_file(file, disk);
        if is_trusted {
            self.store.keep_open(&self.item.body, &file);
            return Ok(file);
        }
        verification::verify_once(self, file).await
    }

    /// Takes out what cannot be served.
    pub(super) fn handle_failure(&self, error: &DiskError) -> ObjectGone {
        let DiskError::Io(error) = error else {
            return ObjectGone;
        };
        let is_gone = error.kind() == io::ErrorKind::NotFound && !self.item.body.is_discarded();
        if is_damage(error) {
            self.store.record_damaged();
        }
        if is_gone || is_unrecoverable(error) {
            self.store.remove_item(&self.item);
        }
        ObjectGone
    }
}

/// An error that others have, too.
fn clone_error(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(number) => io::Error::from_raw_os_error(number),
        None => error.kind().into(),
    }
}
