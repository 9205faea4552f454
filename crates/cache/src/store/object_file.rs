//! An object's file: writing, opening, verifying, freshening. Functions block unless stated
//! otherwise.
//!
//! A file that this process wrote is trusted while its stamp (inode, length, times) is
//! unchanged. Any other file, such as one found at a start, is read whole and checked against its
//! checksum before its first use.
//!
//! # Invariants
//!
//! - No byte of a file is served unless the file is trusted or verified.

use std::fs::File;
use std::hash::Hasher;
use std::io::{self, IoSlice, Write};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use penstock_runtime::DiskFile;
use penstock_sys::file::read_at;
use rustix::fs::OFlags;
use twox_hash::XxHash3_64;

use super::ObjectMeta;
use super::cache_dir::{CacheDir, ObjectFileStamp, ObjectName, allocated_bytes};
use super::disk::{DiscardedFile, Disk};
use super::format::{self, FormatError, PREAMBLE_BYTES, Preamble};

/// Bytes read by one step of a verification: some tens of milliseconds on a slow disk.
pub(crate) const VERIFY_STEP_BYTES: u64 = 4 << 20;

/// Bytes read to decode a file's head; more if its slots are larger.
const HEAD_BYTES: usize = 4096;

#[derive(Debug)]
pub(crate) struct ObjectFile {
    pub(crate) dir: Arc<CacheDir>,
    pub(crate) name: ObjectName,
    pub(crate) preamble: Preamble,
    /// The number of the newest slot. Only the maintenance task writes slots and raises it.
    sequence: AtomicU64,
    /// The stamp of the trusted file; `None` until it is verified.
    trusted_stamp: Mutex<Option<ObjectFileStamp>>,
    /// The open file, while it is in use.
    open_handle: Mutex<Weak<DiskFile>>,
    is_discarded: AtomicBool,
}

impl ObjectFile {
    /// Creates the entry of a file just written or found.
    pub(crate) fn new(
        folder: Arc<CacheDir>,
        name: ObjectName,
        preamble: Preamble,
        sequence: u64,
        trusted: Option<ObjectFileStamp>,
    ) -> Self {
        Self {
            dir: folder,
            name,
            preamble,
            sequence: AtomicU64::new(sequence),
            trusted_stamp: Mutex::new(trusted),
            open_handle: Mutex::default(),
            is_discarded: AtomicBool::new(false),
        }
    }

    pub(crate) fn disk_bytes(&self) -> u64 {
        allocated_bytes(self.preamble.file_bytes())
    }

    /// Whether a file with this stamp is trusted. Never blocks.
    pub(crate) fn is_trusted(&self, stamp: &ObjectFileStamp) -> bool {
        self.trusted_stamp.lock().as_ref() == Some(stamp)
    }

    /// Trusts this stamp after a verification or an own write.
    pub(crate) fn set_trusted_stamp(&self, stamp: ObjectFileStamp) {
        *self.trusted_stamp.lock() = Some(stamp);
    }

    /// The open file, if it is in use. Never blocks.
    pub(crate) fn open_file(&self) -> Option<Arc<DiskFile>> {
        self.open_handle.lock().upgrade()
    }

    /// Shares the open file with later openings. Never blocks.
    pub(crate) fn set_open_handle(&self, file: &Arc<DiskFile>) {
        *self.open_handle.lock() = Arc::downgrade(file);
    }

    pub(crate) fn set_discarded(&self) {
        self.is_discarded.store(true, Relaxed);
    }

    pub(crate) fn is_discarded(&self) -> bool {
        self.is_discarded.load(Relaxed)
    }

    /// Writes `meta` into the older slot. If it is too large, clears both slots, so that no restart
    /// finds older metadata.
    pub(crate) fn write_meta(&self, meta: &ObjectMeta) -> io::Result<()> {
        let file = self.dir.open_object(self.name, OFlags::RDWR)?;
        let was_trusted = self.is_trusted(&ObjectFileStamp::from_file(&file)?);
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
            self.set_trusted_stamp(ObjectFileStamp::from_file(&file)?);
        }
        Ok(())
    }

    pub(crate) fn read_body(&self) -> io::Result<Bytes> {
        let file = self.dir.open_object(self.name, OFlags::RDONLY)?;
        let length = usize::try_from(self.preamble.length).unwrap_or(usize::MAX);
        let mut body = vec![0; length];
        file.read_exact_at(&mut body, self.preamble.body_offset())?;
        if XxHash3_64::oneshot(&body) != self.preamble.checksum {
            return Err(damaged());
        }
        Ok(body.into())
    }
}

/// Reads the head of a file found at a start. The file is not verified yet.
///
/// # Errors
/// `InvalidData` if the file is not a complete object of this version.
pub(crate) fn read_head(
    folder: &Arc<CacheDir>,
    name: ObjectName,
) -> io::Result<(ObjectFile, ObjectMeta)> {
    let file = folder.open_object(name, OFlags::RDONLY)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(damaged());
    }
    let mut head = vec![0; HEAD_BYTES];
    let read = read_full(&file, &mut head, 0)?;
    head.truncate(read);
    let preamble = Preamble::decode(&head).map_err(to_io_error)?;
    if preamble.file_bytes() != metadata.len() || preamble.hash != name.hash {
        return Err(damaged());
    }
    let slots = 2 * preamble.slot_bytes as usize;
    if head.len() < PREAMBLE_BYTES + slots {
        head.resize(PREAMBLE_BYTES + slots, 0);
        file.read_exact_at(&mut head, 0)?;
    }
    let slots = &head[PREAMBLE_BYTES..PREAMBLE_BYTES + slots];
    let (sequence, meta) = format::decode_slots(slots, preamble.slot_bytes).map_err(to_io_error)?;
    let is_its_own =
        meta.length == preamble.length && super::ObjectKey::new(&meta.key).hash == name.hash;
    if !is_its_own {
        return Err(damaged());
    }
    let file = ObjectFile::new(Arc::clone(folder), name, preamble, sequence, None);
    Ok((file, meta))
}

/// A running verification: computes the body's checksum a part at a time.
pub(crate) struct Verification {
    file: Arc<DiskFile>,
    preamble: Preamble,
    initial_stamp: ObjectFileStamp,
    position: u64,
    hasher: Box<XxHash3_64>,
}

/// The result of one step of a verification.
pub(crate) enum VerificationStep {
    /// There is more to read.
    More(Verification),
    /// The body is intact: a file with this stamp may be trusted.
    Verified(ObjectFileStamp),
    /// The body is intact, but the file was written to meanwhile, for example new metadata.
    Changed,
}

impl Verification {
    pub(crate) fn new(file: Arc<DiskFile>, preamble: Preamble) -> io::Result<Self> {
        Ok(Self {
            initial_stamp: ObjectFileStamp::from_file(file.file()?)?,
            file,
            preamble,
            position: 0,
            hasher: Box::default(),
        })
    }

    /// Reads the next part.
    ///
    /// # Errors
    /// `InvalidData` if the body is not what was written.
    pub(crate) fn step(mut self) -> io::Result<VerificationStep> {
        let file = self.file.file()?;
        let end = (self.position + VERIFY_STEP_BYTES).min(self.preamble.length);
        let mut buffer = vec![0; 256 * 1024];
        if self.initial_stamp.size != self.preamble.file_bytes() {
            return Err(damaged());
        }
        while self.position < end {
            let want = usize::try_from(end - self.position).unwrap_or(usize::MAX);
            let want = want.min(buffer.len());
            let at = self.preamble.body_offset() + self.position;
            let read = read_full(file, &mut buffer[..want], at)?;
            if read == 0 {
                return Err(damaged());
            }
            self.hasher.write(&buffer[..read]);
            self.position += read as u64;
        }
        if self.position < self.preamble.length {
            return Ok(VerificationStep::More(self));
        }
        if self.hasher.finish() != self.preamble.checksum {
            return Err(damaged());
        }
        Ok(
            match ObjectFileStamp::from_file(file)? == self.initial_stamp {
                true => VerificationStep::Verified(self.initial_stamp),
                false => VerificationStep::Changed,
            },
        )
    }
}

/// A temporary file for a partial object. The maintenance task closes it and removes an uncommitted
/// one.
#[derive(Debug)]
pub(crate) struct TempFile {
    disk: Arc<Disk>,
    pub(crate) dir: Arc<CacheDir>,
    number: u64,
    /// `None` only during the drop.
    file: Option<File>,
    slot_bytes: u32,
    /// Bytes reserved for it in the directory.
    pub(crate) reserved_bytes: AtomicU64,
    is_committed: AtomicBool,
}

impl TempFile {
    /// Creates a file for which `reserved` bytes are reserved. They are released if that fails.
    pub(crate) fn create(
        disk: &Arc<Disk>,
        folder: Arc<CacheDir>,
        slot_bytes: u32,
        reserved: u64,
    ) -> io::Result<Self> {
        let number = disk.new_file_number();
        let file = folder
            .create_temporary(number)
            .inspect_err(|_| folder.release_bytes(reserved))?;
        Ok(Self {
            disk: Arc::clone(disk),
            dir: folder,
            number,
            file: Some(file),
            slot_bytes,
            reserved_bytes: AtomicU64::new(reserved),
            is_committed: AtomicBool::new(false),
        })
    }

    pub(crate) fn file(&self) -> io::Result<&File> {
        self.file
            .as_ref()
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub(crate) fn body_offset(&self) -> u64 {
        format::body_offset(self.slot_bytes)
    }

    /// Writes pieces at body position `at` and adds them to the checksum.
    pub(crate) fn write(
        &self,
        pieces: &[Bytes],
        at: u64,
        hasher: &mut XxHash3_64,
    ) -> io::Result<()> {
        use std::io::{Seek, SeekFrom};
        let mut file = self.file()?;
        file.seek(SeekFrom::Start(self.body_offset() + at))?;
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

    /// Writes the head and renames the file to its final name.
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
        let number = self.number;
        let name = ObjectName { hash, number };
        self.dir.commit(name)?;
        // After the rename, which changes the file's times.
        let stamp = ObjectFileStamp::from_file(file)?;
        self.is_committed.store(true, Relaxed);
        let folder = Arc::clone(&self.dir);
        let object = ObjectFile::new(folder, name, preamble, 1, Some(stamp));
        // The bytes are the object's from now on.
        let reserved = self.reserved_bytes.swap(0, Relaxed);
        self.dir.count_existing_bytes(object.disk_bytes());
        self.dir.release_bytes(reserved);
        Ok(object)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            let is_committed = self.is_committed.load(Relaxed);
            self.disk
                .queue_discarded_temporary(DiscardedFile::Temporary {
                    dir: Arc::clone(&self.dir),
                    file,
                    number: (!is_committed).then_some(self.number),
                    bytes: self.reserved_bytes.load(Relaxed),
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

fn damaged() -> io::Error {
    to_io_error(FormatError::Damaged)
}

fn to_io_error(error: FormatError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
