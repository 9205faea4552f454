//! A found object: what is known of it, and how to get at its body.
//!
//! `handler` sends what is in memory at once and opens the rest. Opening stays on the loop while the name is
//! in the kernel's cache and the file is as this process left it; all else goes to the pool: the name, and
//! the whole body once for a file that a former process wrote or somebody changed.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use penstock_exchange::FileBody;
use penstock_runtime::DiskFile;

use super::disk::{DiskError, DiskItem, Kind};
use super::file::Verification;
use super::folder::{Access, Identity};
use super::{Growing, Meta, Store};

/// An object that was found.
#[derive(Debug, Clone)]
pub(crate) struct Hit {
    /// What is known of it.
    pub(crate) meta: Arc<Meta>,
    /// Its body.
    pub(crate) body: HitBody,
}

/// Where a found object's body is.
#[derive(Debug, Clone)]
pub(crate) enum HitBody {
    /// All of it in memory.
    Memory(Bytes),
    /// In a file.
    Disk(DiskObject),
    /// Still on its way here: `meta.length` is not known yet.
    Growing(Arc<Growing>),
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
pub(crate) struct Gone;

impl DiskObject {
    /// Its body, in an open file. From the loop where that needs no disk.
    ///
    /// # Errors
    /// [`Gone`]: it was evicted or damaged, or its disk does not answer. A miss; the store knows.
    pub(crate) async fn open(&self) -> Result<FileBody, Gone> {
        let file = match self.open_on_loop() {
            Some(file) => file,
            None => self
                .open_in_pool()
                .await
                .map_err(|error| self.failed(&error))?,
        };
        self.store.used(&self.item);
        Ok(FileBody {
            file,
            start: self.item.body.preamble.body_at(),
            len: self.item.body.preamble.length,
        })
    }

    /// The file, if it is open or its name is known to the kernel, and it is as we left it.
    fn open_on_loop(&self) -> Option<Arc<DiskFile>> {
        let object = &self.item.body;
        let is_trusted = |file: &DiskFile| {
            Identity::of(file.file()).is_ok_and(|identity| object.is_trusted(&identity))
        };
        if let Some(file) = object.in_use().filter(|file| is_trusted(file)) {
            return Some(file);
        }
        let file = object.folder.open_cached(object.name)?;
        let file = Arc::new(DiskFile::new(file, self.store.disk()?.pool.clone()));
        if !is_trusted(&file) {
            return None;
        }
        self.store.keep_open(object, &file);
        Some(file)
    }

    async fn open_in_pool(&self) -> Result<Arc<DiskFile>, DiskError> {
        let disk = self.store.disk().ok_or(DiskError::Out)?;
        // One verification serves all who wait for the object.
        let turn = self.store.turn(self.item.hash).acquire().await;
        let object = Arc::clone(&self.item.body);
        let open = move || {
            let file = object.folder.open_object(object.name, Access::Read)?;
            let identity = Identity::of(&file)?;
            Ok((file, object.is_trusted(&identity)))
        };
        let (file, is_trusted) = disk.run(Kind::Open, open).await?;
        let object = &self.item.body;
        let file = Arc::new(DiskFile::new(file, disk.pool.clone()));
        if is_trusted {
            self.store.keep_open(object, &file);
            return Ok(file);
        }
        let (for_work, preamble) = (Arc::clone(&file), object.preamble);
        let begin = move || Verification::new(for_work, preamble)?.step();
        let mut step = disk.run(Kind::Read, begin).await?;
        let identity = loop {
            match step {
                Ok(identity) => break identity,
                Err(rest) => step = disk.run(Kind::Read, move || rest.step()).await?,
            }
        };
        object.trust(identity);
        self.store.keep_open(object, &file);
        drop(turn);
        Ok(file)
    }

    /// Takes out what cannot be served.
    fn failed(&self, error: &DiskError) -> Gone {
        let DiskError::Io(error) = error else {
            return Gone;
        };
        let is_lost = match error.kind() {
            io::ErrorKind::NotFound => !self.item.body.is_dying(),
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
                self.store.damaged();
                true
            }
            _ => false,
        };
        if is_lost {
            self.store.forget_item(&self.item);
        }
        Gone
    }
}
