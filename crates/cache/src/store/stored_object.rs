//! A found object: its metadata and access to its body.
//!
//! `handler` sends a body in memory at once and opens others. Opening stays on the event loop if
//! the name is in the kernel's cache and the file is unchanged since this process wrote it.
//! Otherwise the pool opens it, and verifies the whole body once if an earlier process wrote the
//! file or it was changed.

use std::fs::File;
use std::io;
use std::sync::Arc;

use penstock_exchange::FileBody;
use penstock_runtime::DiskFile;
use penstock_runtime::disk::{CHUNK_BYTES, ReadError};
use rustix::fs::OFlags;

use super::cache_dir::ObjectFileStamp;
use super::disk::{Disk, DiskError, DiskIndexEntry, DiskOperationKind};
use super::index_updates::ReadErrorReporter;
use super::{MemoryBody, ObjectMeta, PartialObject, verification};

#[derive(Debug, Clone)]
pub(crate) struct Hit {
    pub(crate) meta: Arc<ObjectMeta>,
    pub(crate) body: HitBody,
}

/// The location of a found object's body.
#[derive(Debug, Clone)]
pub(crate) enum HitBody {
    Memory(MemoryBody),
    Disk(DiskObject),
    /// Still being received: `meta.length` is not known yet.
    Partial(Arc<PartialObject>),
}

#[derive(Debug, Clone)]
pub(crate) struct DiskObject {
    pub(super) disk: Arc<Disk>,
    pub(super) item: Arc<DiskIndexEntry>,
}

/// The object was removed or is damaged: a miss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the stored object was removed")]
pub(crate) struct ObjectGone;

impl DiskObject {
    /// Opens the body, on the event loop if that needs no disk.
    ///
    /// # Errors
    /// [`ObjectGone`] if the object was evicted or is damaged, or its disk does not answer: a miss.
    /// The store has been updated.
    pub(crate) async fn open(&self) -> Result<FileBody, ObjectGone> {
        let file = match self.open_on_loop() {
            Some(file) => file,
            None => (self.open_in_pool().await).map_err(|error| self.handle_failure(&error))?,
        };
        // A read failure before the head is sent is a miss; later it could only cut the response.
        let ready = self.read_first_chunk(&file).await;
        ready.map_err(|error| self.handle_failure(&error))?;
        self.disk.promote_if_hot(&self.item);
        Ok(FileBody {
            file,
            start: self.item.body.preamble.body_offset(),
            len: self.item.body.preamble.length,
        })
    }

    /// The file, if it is open or its name is in the kernel's cache, and it is unchanged since this
    /// process wrote or verified it.
    fn open_on_loop(&self) -> Option<Arc<DiskFile>> {
        let object = &self.item.body;
        let is_trusted = |file: &DiskFile| {
            let stamp = file.file().and_then(ObjectFileStamp::from_file);
            stamp.is_ok_and(|stamp| object.is_trusted(&stamp))
        };
        if let Some(file) = object.open_file().filter(|file| is_trusted(file)) {
            return Some(file);
        }
        let file = object.dir.open_object_if_cached(object.name)?;
        let file = self.watch_file(file);
        if !is_trusted(&file) {
            return None;
        }
        self.disk.keep_open(object, &file);
        Some(file)
    }

    fn watch_file(&self, file: File) -> Arc<DiskFile> {
        let watch = ReadErrorReporter {
            disk: Arc::downgrade(&self.disk),
            object: Arc::downgrade(&self.item.body),
        };
        Arc::new(DiskFile::new(file, self.disk.pool.clone()).with_error_sink(Arc::new(watch)))
    }

    /// Reads the missing parts of the file's first chunk into the page cache for the sender. Starts
    /// at the front of the file, since residency is remembered by whole chunks.
    async fn read_first_chunk(&self, file: &Arc<DiskFile>) -> Result<(), DiskError> {
        let end = self.item.body.preamble.file_bytes().min(CHUNK_BYTES);
        let mut at = 0;
        while at < end {
            let resident = file.resident_bytes(at, end - at);
            at += resident;
            if resident > 0 {
                continue;
            }
            let piece = match self.disk.wait_in_service(file.read(at, end - at)).await? {
                Ok(piece) if piece.is_empty() => {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
                Ok(piece) => piece,
                Err(ReadError::Pool(error)) => return Err(error.into()),
                Err(ReadError::Disk(error)) => return Err(clone_error(&error).into()),
            };
            at += piece.len() as u64;
            if file.resident_bytes(0, 1) == 0 {
                // This file system cannot report residency: the sender reads all of it anyway.
                break;
            }
        }
        Ok(())
    }

    async fn open_in_pool(&self) -> Result<Arc<DiskFile>, DiskError> {
        let object = Arc::clone(&self.item.body);
        let open = move || {
            let file = object.dir.open_object(object.name, OFlags::RDONLY)?;
            let stamp = ObjectFileStamp::from_file(&file)?;
            Ok((file, object.is_trusted(&stamp)))
        };
        let (file, is_trusted) = self.disk.run(DiskOperationKind::Open, open).await?;
        let file = self.watch_file(file);
        if is_trusted {
            self.disk.keep_open(&self.item.body, &file);
            return Ok(file);
        }
        verification::verify_once(self, file).await
    }

    /// Removes an object that cannot be served.
    pub(super) fn handle_failure(&self, error: &DiskError) -> ObjectGone {
        if let DiskError::Io(error) = error {
            self.disk.remove_if_unreadable(&self.item, error);
            if error.kind() == io::ErrorKind::NotFound && !self.item.body.is_discarded() {
                self.disk.remove_item(&self.item);
            }
        }
        ObjectGone
    }
}

/// A copy of a shared error.
fn clone_error(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(number) => io::Error::from_raw_os_error(number),
        None => error.kind().into(),
    }
}
