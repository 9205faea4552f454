//! One object's file: how it is written, opened, trusted and freshened. Blocking, but where said.
//!
//! What this process wrote is trusted for as long as the file's identity (inode, length, times) is as it was left;
//! anything else, a file found at a start above all, is read whole and compared with its checksum before its
//! first use. What must stay true: no byte is served of a file that is neither.

use std::fs::File;
use std::hash::Hasher;
use std::io::{self, IoSlice, Write};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use penstock_runtime::DiskFile;
use penstock_sys::file::read_at;
use twox_hash::XxHash3_64;

use super::ObjectMeta;
use super::cache_dir::{Access, CacheDir, ObjectFileId, ObjectName, disk_usage};
use super::disk::{DiscardedFile, Disk};
use super::format::{self, FormatError, PREAMBLE_BYTES, Preamble};

/// Bytes that one operation of a verification reads: some tens of milliseconds of a slow disk.
pub(crate) const VERIFY_BYTES: u64 = 4 << 20;

/// Bytes read to find a file's head; more when its slots are larger.
const HEAD_BYTES: usize = 4096;

/// An object's file.
#[derive(Debug)]
pub(crate) struct ObjectFile {
    /// The folder that it is in.
    pub(crate) dir: Arc<CacheDir>,
    /// Its name.
    pub(crate) name: ObjectName,
    /// What is written at its front.
    pub(crate) preamble: Preamble,
    /// The number of its newest slot; raised by whoever writes one (the keeper alone).
    sequence: AtomicU64,
    /// Its identity as it was left; none: not verified yet.
    trusted_identity: Mutex<Option<ObjectFileId>>,
    /// The open file, while anybody has it.
    open_file: Mutex<Weak<DiskFile>>,
    is_discarded: AtomicBool,
}

impl ObjectFile {
    /// A file that was just written, or found.
    pub(crate) fn new(
        folder: Arc<CacheDir>,
        name: ObjectName,
        preamble: Preamble,
        sequence: u64,
        trusted: Option<ObjectFileId>,
    ) -> Self {
        Self {
            dir: folder,
            name,
            preamble,
            sequence: AtomicU64::new(sequence),
            trusted_identity: Mutex::new(trusted),
            open_file: Mutex::default(),
            is_discarded: AtomicBool::new(false),
        }
    }

    /// Bytes that it takes on its disk.
    pub(crate) fn disk_bytes(&self) -> u64 {
        disk_usage(self.preamble.file_bytes())
    }

    /// Whether a file with this identity is as it was left. Never blocks.
    pub(crate) fn is_trusted(&self, identity: &ObjectFileId) -> bool {
        lock(&self.trusted_identity).as_ref() == Some(identity)
    }

    /// It was verified, or written to by us.
    pub(crate) fn trust(&self, identity: ObjectFileId) {
        *lock(&self.trusted_identity) = Some(identity);
    }

    /// The open file, if anybody has it. Never blocks.
    pub(crate) fn open_file(&self) -> Option<Arc<DiskFile>> {
        lock(&self.open_file).upgrade()
    }

    /// Who opens it from here on may use this one. Never blocks.
    pub(crate) fn set_open_file(&self, file: &Arc<DiskFile>) {
        *lock(&self.open_file) = Arc::downgrade(file);
    }

    /// It is to be removed.
    pub(crate) fn set_discarded(&self) {
        self.is_discarded.store(true, Relaxed);
    }

    /// Whether it is to be removed.
    pub(crate) fn is_discarded(&self) -> bool {
        self.is_discarded.load(Relaxed)
    }

    /// Writes `meta` into the slot that is not the newest; a meta that is too large empties both, so that no
    /// restart finds an older one.
    pub(crate) fn write_meta(&self, meta: &ObjectMeta) -> io::Result<()> {
        let file = self.dir.open_object(self.name, Access::Write)?;
        let was_trusted = self.is_trusted(&ObjectFileId::of(&file)?);
        let sequence = self.sequence.load(Relaxed) + 1;
        let size = self.preamble.slot_bytes;
        match format::encode_slot(sequence, &format::encode_meta(meta), size) {
            Some(slot) => {
                // Slot A has the odd numbers, as it is written first.
                let at =
                    PREAMBLE_BYTES as u64 + u64::from(size) * u64::from(sequence.is_multiple_of(2));
                file.write_all_at(&slot, at)?;
                self.sequence.store(sequence, Relaxed);
            }
            None => file.write_all_at(&vec![0; 2 * size as usize], PREAMBLE_BYTES as u64)?,
        }
        if was_trusted {
            self.trust(ObjectFileId::of(&file)?);
        }
        Ok(())
    }

    /// All of the body, verified.
    pub(crate) fn read_body(&self) -> io::Result<Bytes> {
        let file = self.dir.open_object(self.name, Access::Read)?;
        let length = usize::try_from(self.preamble.length).unwrap_or(usize::MAX);
        let mut body = vec![0; length];
        file.read_exact_at(&mut body, self.preamble.body_offset())?;
        if XxHash3_64::oneshot(&body) != self.preamble.checksum {
            return Err(damaged_error(FormatError::Damaged));
        }
        Ok(body.into())
    }
}

/// What was found of a file at a start.
#[derive(Debug)]
pub(crate) struct RecoveredObject {
    /// The file; to be verified.
    pub(crate) file: ObjectFile,
    /// What is known of its object.
    pub(crate) meta: ObjectMeta,
}

/// Reads a file's head.
///
/// # Errors
/// `InvalidData` when the file is not a whole object of this version.
pub(crate) fn read_head(folder: &Arc<CacheDir>, name: ObjectName) -> io::Result<RecoveredObject> {
    let file = folder.open_object(name, Access::Read)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(damaged_error(FormatError::Damaged));
    }
    let mut head = vec![0; HEAD_BYTES];
    let read = read_full(&file, &mut head, 0)?;
    head.truncate(read);
    let preamble = Preamble::decode(&head).map_err(damaged_error)?;
    if preamble.file_bytes() != metadata.len() || preamble.hash != name.hash {
        return Err(damaged_error(FormatError::Damaged));
    }
    let slots = 2 * preamble.slot_bytes as usize;
    if head.len() < PREAMBLE_BYTES + slots {
        head.resize(PREAMBLE_BYTES + slots, 0);
        file.read_exact_at(&mut head, 0)?;
    }
    let slots = &head[PREAMBLE_BYTES..PREAMBLE_BYTES + slots];
    let (sequence, meta) =
        format::decode_slots(slots, preamble.slot_bytes).map_err(damaged_error)?;
    let is_its_own =
        meta.length == preamble.length && super::ObjectKey::new(&meta.key).hash == name.hash;
    if !is_its_own {
        return Err(damaged_error(FormatError::Damaged));
    }
    let file = ObjectFile::new(Arc::clone(folder), name, preamble, sequence, None);
    Ok(RecoveredObject { file, meta })
}

/// A verification on its way: the body's checksum, a part at a time.
pub(crate) struct Verification {
    file: Arc<DiskFile>,
    preamble: Preamble,
    initial_identity: ObjectFileId,
    position: u64,
    hasher: Box<XxHash3_64>,
}

/// What a part of a verification gives.
pub(crate) enum VerificationStep {
    /// There is more to read.
    More(Verification),
    /// The body is what was written; a file with this identity may be trusted.
    Verified(ObjectFileId),
    /// The body is what was written, but something was written meanwhile, a new meta for one.
    Changed,
}

impl Verification {
    /// Begins one.
    pub(crate) fn new(file: Arc<DiskFile>, preamble: Preamble) -> io::Result<Self> {
        let before = ObjectFileId::of(file.file()?)?;
        Ok(Self {
            file,
            preamble,
            initial_identity: before,
            position: 0,
            hasher: Box::default(),
        })
    }

    /// Reads the next part.
    ///
    /// # Errors
    /// `InvalidData` when the body is not what was written.
    pub(crate) fn step(mut self) -> io::Result<VerificationStep> {
        let file = self.file.file()?;
        let end = (self.position + VERIFY_BYTES).min(self.preamble.length);
        let mut buffer = vec![0; 256 * 1024];
        if self.initial_identity.size != self.preamble.file_bytes() {
            return Err(damaged_error(FormatError::Damaged));
        }
        while self.position < end {
            let want = usize::try_from(end - self.position).unwrap_or(usize::MAX);
            let want = want.min(buffer.len());
            let read = read_full(
                file,
                &mut buffer[..want],
                self.preamble.body_offset() + self.position,
            )?;
            if read == 0 {
                return Err(damaged_error(FormatError::Damaged));
            }
            self.hasher.write(&buffer[..read]);
            self.position += read as u64;
        }
        if self.position < self.preamble.length {
            return Ok(VerificationStep::More(self));
        }
        if self.hasher.finish() != self.preamble.checksum {
            return Err(damaged_error(FormatError::Damaged));
        }
        if ObjectFileId::of(file)? == self.initial_identity {
            Ok(VerificationStep::Verified(self.initial_identity))
        } else {
            Ok(VerificationStep::Changed)
        }
    }
}

/// A file on its way in. Whatever becomes of it, what is left over is removed and closed by the keeper.
#[derive(Debug)]
pub(crate) struct TempFile {
    disk: Arc<Disk>,
    dir: Arc<CacheDir>,
    number: u64,
    /// `None` only while it is dropped.
    file: Option<File>,
    slot_bytes: u32,
    /// Bytes reserved for it in the folder.
    reserved: AtomicU64,
    is_committed: AtomicBool,
}

impl TempFile {
    /// Makes one for which `reserved` bytes are reserved; they are released if it cannot be made.
    pub(crate) fn create(
        disk: &Arc<Disk>,
        folder: Arc<CacheDir>,
        slot_bytes: u32,
        reserved: u64,
    ) -> io::Result<Self> {
        let number = disk.new_file_number();
        match folder.create(number) {
            Ok(file) => Ok(Self {
                disk: Arc::clone(disk),
                dir: folder,
                number,
                file: Some(file),
                slot_bytes,
                reserved: AtomicU64::new(reserved),
                is_committed: AtomicBool::new(false),
            }),
            Err(error) => {
                folder.release(reserved);
                Err(error)
            }
        }
    }

    /// The folder that it is in. Never blocks.
    pub(crate) fn dir(&self) -> &Arc<CacheDir> {
        &self.dir
    }

    /// Counts bytes that were reserved for it in its folder. Never blocks.
    pub(crate) fn add_reserved(&self, bytes: u64) {
        self.reserved.fetch_add(bytes, Relaxed);
    }

    /// Bytes reserved for it. Never blocks.
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved.load(Relaxed)
    }

    /// The open file.
    pub(crate) fn file(&self) -> io::Result<&File> {
        self.file
            .as_ref()
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Where the body begins.
    pub(crate) fn body_at(&self) -> u64 {
        format::body_offset(self.slot_bytes)
    }

    /// Writes pieces of the body, `at` bytes into it, and adds them to the checksum.
    pub(crate) fn write(
        &self,
        pieces: &[Bytes],
        at: u64,
        hasher: &mut XxHash3_64,
    ) -> io::Result<()> {
        use std::io::{Seek, SeekFrom};
        let mut file = self.file()?;
        file.seek(SeekFrom::Start(self.body_at() + at))?;
        let mut slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        let mut slices = &mut slices[..];
        while !slices.is_empty() {
            let written = match file.write_vectored(&slices[..slices.len().min(256)]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                written => written?,
            };
            IoSlice::advance_slices(&mut slices, written);
        }
        for piece in pieces {
            hasher.write(piece);
        }
        Ok(())
    }

    /// Writes the head and gives the file its name.
    pub(crate) fn commit(
        &self,
        hash: u128,
        meta: &ObjectMeta,
        hasher: &XxHash3_64,
    ) -> io::Result<ObjectFile> {
        let preamble = Preamble {
            slot_bytes: self.slot_bytes,
            length: meta.length,
            checksum: hasher.finish(),
            hash,
        };
        let meta = format::encode_meta(meta);
        let slot = format::encode_slot(1, &meta, self.slot_bytes);
        let slot = slot.ok_or_else(|| io::Error::other("the object's head has grown"))?;
        let mut head = preamble.encode().to_vec();
        head.extend_from_slice(&slot);
        head.resize(PREAMBLE_BYTES + 2 * self.slot_bytes as usize, 0);
        let file = self.file()?;
        file.write_all_at(&head, 0)?;
        let name = ObjectName {
            hash,
            number: self.number,
        };
        self.dir.commit(name)?;
        // After the rename, which changes the file's times.
        let identity = ObjectFileId::of(file)?;
        self.is_committed.store(true, Relaxed);
        let folder = Arc::clone(&self.dir);
        let object = ObjectFile::new(folder, name, preamble, 1, Some(identity));
        // From here on its bytes are the object's.
        let reserved = self.reserved.swap(0, Relaxed);
        self.dir.count_existing(object.disk_bytes());
        self.dir.release(reserved);
        Ok(object)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            let is_committed = self.is_committed.load(Relaxed);
            self.disk.discard_temporary(DiscardedFile::Temporary {
                dir: Arc::clone(&self.dir),
                file,
                number: (!is_committed).then_some(self.number),
                bytes: self.reserved.load(Relaxed),
            });
        }
    }
}

/// Reads until the buffer is full or the file ends.
pub(crate) fn read_full(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match read_at(file, &mut buffer[read..], at + read as u64) {
            Ok(0) => break,
            Ok(count) => read += count,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(read)
}

fn damaged_error(error: FormatError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
