//! A cache's directory: its layout and the file operations in it. Functions block and run in a pool
//! unless stated otherwise.
//!
//! ```text
//! lock                                 locked while a store uses it; marks it as a cache's
//! objects/ab/<key's hash>-<number>     one object; `ab` is the first byte of the hash
//! tmp/<number>                         a partial object
//! purges                               purges not yet applied to all files
//! ```
//!
//! Numbers increase with time and across restarts, so that no name is used twice. All operations
//! use descriptors of the opened directory: if it is renamed, deleted or unmounted, nothing is
//! written to what its path then names. Objects are not synced: killing the process damages
//! nothing, and the checksum detects what a power failure damages.
//!
//! # Invariants
//!
//! - A file with a foreign name is never touched.
//! - An object appears under its name complete, by a rename.
//! - Bytes count from before they are written until they are freed.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, TryLockError};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

/// Disk usage is counted in blocks of this size.
const BLOCK_BYTES: u64 = 4096;

#[derive(Debug)]
pub(crate) struct CacheDir {
    root: OwnedFd,
    objects: OwnedFd,
    tmp: OwnedFd,
    /// File system and inode.
    identity: (u64, u64),
    /// Bytes of the known files, and of reserved ones.
    used_bytes: AtomicU64,
    /// The file system opens a file with a cached name without asking another machine or process.
    is_local: bool,
    /// Set when writing has ended: another store has the directory, or may have it soon.
    is_closed: AtomicBool,
}

/// Identity of a file's content: any write changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ObjectFileStamp {
    inode: u64,
    pub(crate) size: u64,
    modified: (i64, u32),
    changed: (i64, u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ObjectName {
    pub(crate) hash: u128,
    pub(crate) number: u64,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenDirError {
    /// Another process, or another store of this one, uses it.
    #[error("another process uses this directory")]
    InUse,
    #[error("its file system is not mounted")]
    NotMounted,
    /// It is not empty and has no `lock`.
    #[error("it is not empty and not a cache's directory (it holds `{0}`, but no `lock`)")]
    NotCacheDir(String),
    #[error("cannot open it: {0}")]
    Io(#[from] io::Error),
}

pub(crate) fn allocated_bytes(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK_BYTES).max(BLOCK_BYTES)
}

impl CacheDir {
    /// Opens `path`, creates missing parts and takes the lock, which permits writing while the
    /// returned file is open. `below` is the file system of `path`
    /// while its own is not mounted ([`underlying_device`]): nothing is created there.
    ///
    /// # Errors
    /// See [`OpenDirError`].
    pub(crate) fn open(path: &Path, below: Option<u64>) -> Result<(Self, File), OpenDirError> {
        if let Some(below) = below
            && devices_along(path)?.first() == Some(&below)
        {
            return Err(OpenDirError::NotMounted);
        }
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700).create(path)?;
        let root = open_dir(rustix::fs::CWD, path)?;
        let stat = rustix::fs::fstat(&root).map_err(io::Error::from)?;
        check_ownership(&root)?;
        // Read-only, so that the file system can be remounted read-only meanwhile.
        let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock = rustix::fs::openat(&root, "lock", flags, owner_mode());
        let lock = File::from(lock.map_err(io::Error::from)?);
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(OpenDirError::InUse),
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        let folder = Self {
            objects: make_dir(root.as_fd(), "objects")?,
            tmp: make_dir(root.as_fd(), "tmp")?,
            // A sandbox may forbid the call.
            is_local: rustix::fs::fstatfs(&root).is_ok_and(|known| is_local(known.f_type)),
            root,
            identity: (stat.st_dev, stat.st_ino),
            used_bytes: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
        };
        Ok((folder, lock))
    }

    /// Whether `path` still names this directory, with its lock and both subdirectories.
    ///
    /// # Errors
    /// Fails if that cannot be determined.
    pub(crate) fn is_at(&self, path: &Path) -> io::Result<bool> {
        let metadata = match std::fs::metadata(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
            metadata => metadata?,
        };
        let identity = (metadata.dev(), metadata.ino());
        let has = |name| rustix::fs::statat(&self.root, name, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        Ok(identity == self.identity && has("lock") && has("objects") && has("tmp"))
    }

    /// Ends writing. Open files remain readable. Never blocks.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Relaxed);
    }

    /// Whether writing has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Relaxed)
    }

    /// Bytes counted as used. Never blocks.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Relaxed)
    }

    /// Reserves `bytes` if the total stays within `max`. Never blocks.
    pub(crate) fn reserve_bytes(&self, bytes: u64, max: u64) -> bool {
        let more = |used: u64| used.checked_add(bytes).filter(|&used| used <= max);
        self.used_bytes.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    /// Counts the `bytes` of an existing file. Never blocks.
    pub(crate) fn count_existing_bytes(&self, bytes: u64) {
        self.used_bytes.fetch_add(bytes, Relaxed);
    }

    /// Subtracts `bytes`. Never blocks.
    pub(crate) fn release_bytes(&self, bytes: u64) {
        let less = |used: u64| Some(used.saturating_sub(bytes));
        let _ = self.used_bytes.fetch_update(Relaxed, Relaxed, less);
    }

    pub(crate) fn create_temporary(&self, number: u64) -> io::Result<File> {
        self.check_open()?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let name = temporary_name(number);
        Ok(rustix::fs::openat(&self.tmp, name.as_str(), flags, owner_mode())?.into())
    }

    /// Renames a complete temporary file to an object's name.
    pub(crate) fn commit(&self, name: ObjectName) -> io::Result<()> {
        self.check_open()?;
        let (from, to) = (temporary_name(name.number), name.path());
        let rename = || rustix::fs::renameat(&self.tmp, from.as_str(), &self.objects, to.as_str());
        match rename() {
            Err(Errno::NOENT) => {
                make_dir(self.objects.as_fd(), &to[..2])?;
                Ok(rename()?)
            }
            renamed => Ok(renamed?),
        }
    }

    /// Removes a temporary file, if it exists.
    pub(crate) fn remove_temporary(&self, number: u64) -> io::Result<()> {
        self.check_open()?;
        let name = temporary_name(number);
        ignore_missing(rustix::fs::unlinkat(
            &self.tmp,
            name.as_str(),
            AtFlags::empty(),
        ))
    }

    /// Removes an object's file, if it exists.
    pub(crate) fn remove_object(&self, name: ObjectName) -> io::Result<()> {
        self.check_open()?;
        let path = name.path();
        ignore_missing(rustix::fs::unlinkat(
            &self.objects,
            path.as_str(),
            AtFlags::empty(),
        ))
    }

    /// Opens an object's file: `RDONLY`, or `RDWR` to write new metadata.
    pub(crate) fn open_object(&self, name: ObjectName, access: OFlags) -> io::Result<File> {
        let flags = access | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let path = name.path();
        Ok(rustix::fs::openat(&self.objects, path.as_str(), flags, Mode::empty())?.into())
    }

    /// Opens an object's file for reading if that needs no disk. Never blocks: for an event loop.
    pub(crate) fn open_object_if_cached(&self, name: ObjectName) -> Option<File> {
        if !self.is_local {
            return None;
        }
        penstock_sys::file::open_name_cached(&self.objects, &name.path())
    }

    /// Reads the file of that name in the directory's root; `None` if there is none.
    pub(crate) fn read_root_file(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        use std::io::Read;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = match rustix::fs::openat(&self.root, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            file => File::from(file?),
        };
        let mut bytes = Vec::new();
        file.take(MAX_ROOT_FILE_BYTES).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    /// Writes a file in the directory's root atomically, or removes it if `content` is empty.
    pub(crate) fn write_root_file(&self, name: &str, bytes: &[u8], number: u64) -> io::Result<()> {
        self.check_open()?;
        if bytes.is_empty() {
            return ignore_missing(rustix::fs::unlinkat(&self.root, name, AtFlags::empty()));
        }
        self.create_temporary(number)?.write_all_at(bytes, 0)?;
        let temporary = temporary_name(number);
        Ok(rustix::fs::renameat(
            &self.tmp,
            temporary.as_str(),
            &self.root,
            name,
        )?)
    }

    /// Names of the objects in subdirectory `index` of 256. Foreign names are skipped.
    pub(crate) fn object_names(&self, index: u8) -> io::Result<Vec<ObjectName>> {
        let part = match open_dir(self.objects.as_fd(), format!("{index:02x}")) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            part => part?,
        };
        let mut names = Vec::new();
        for entry in Dir::read_from(&part)? {
            let name = ObjectName::parse(entry?.file_name().to_bytes());
            names.extend(name.filter(|name| name.hash >> 120 == u128::from(index)));
        }
        Ok(names)
    }

    /// Removes the temporary files of earlier processes: those with numbers below `before`.
    pub(crate) fn remove_stale_temporaries(&self, before: u64) -> io::Result<()> {
        self.check_open()?;
        for entry in Dir::read_from(&self.tmp)? {
            let entry = entry?;
            let number = parse_hex(entry.file_name().to_bytes(), 16);
            if let Some(number) = number.and_then(|number| u64::try_from(number).ok())
                && number < before
            {
                self.remove_temporary(number)?;
            }
        }
        Ok(())
    }

    /// Checks that the disk works: creates, writes, renames, reads and removes a small temporary
    /// file. Both numbers must be new.
    pub(crate) fn probe(&self, [number, renamed]: [u64; 2]) -> io::Result<()> {
        let written = [0x5a; 4096];
        let result = (|| {
            let file = self.create_temporary(number)?;
            file.write_all_at(&written, 0)?;
            let (from, to) = (temporary_name(number), temporary_name(renamed));
            rustix::fs::renameat(&self.tmp, from.as_str(), &self.tmp, to.as_str())?;
            let mut read = [0; 4096];
            file.read_exact_at(&mut read, 0)?;
            if read != written {
                return Err(io::Error::other("what was read is not what was written"));
            }
            Ok(())
        })();
        let removed = self.remove_temporary(renamed);
        let swept = self.remove_temporary(number);
        result.and(removed).and(swept)
    }

    fn check_open(&self) -> io::Result<()> {
        match self.is_closed() {
            true => Err(io::Error::other("the directory is closed")),
            false => Ok(()),
        }
    }
}

const MAX_ROOT_FILE_BYTES: u64 = 64 << 20;

impl ObjectName {
    fn path(self) -> String {
        let first = self.hash >> 120;
        format!("{first:02x}/{:032x}-{:016x}", self.hash, self.number)
    }

    fn parse(name: &[u8]) -> Option<Self> {
        let (hash, number) = name.split_at_checked(33)?;
        let hash = hash.strip_suffix(b"-")?;
        Some(Self {
            hash: parse_hex(hash, 32)?,
            number: u64::try_from(parse_hex(number, 16)?).ok()?,
        })
    }
}

impl ObjectFileStamp {
    /// The stamp of an open file, as known without asking a disk or another machine. Never blocks:
    /// for an event loop.
    pub(crate) fn from_file(file: &File) -> io::Result<Self> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let stat = match rustix::fs::statx(file, "", flags, StatxFlags::BASIC_STATS) {
            // A sandbox may be older than the call.
            Err(Errno::NOSYS | Errno::PERM) => return Self::from_file_without_statx(file),
            stat => stat?,
        };
        Ok(Self {
            inode: stat.stx_ino,
            size: stat.stx_size,
            modified: (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec),
            changed: (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec),
        })
    }

    fn from_file_without_statx(file: &File) -> io::Result<Self> {
        let stat = rustix::fs::fstat(file)?;
        let nanoseconds = |value| u32::try_from(value).unwrap_or(0);
        Ok(Self {
            inode: stat.st_ino,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            modified: (stat.st_mtime, nanoseconds(stat.st_mtime_nsec)),
            changed: (stat.st_ctime, nanoseconds(stat.st_ctime_nsec)),
        })
    }
}

fn temporary_name(number: u64) -> String {
    format!("{number:016x}")
}

fn owner_mode() -> Mode {
    Mode::RUSR | Mode::WUSR
}

fn ignore_missing(result: rustix::io::Result<()>) -> io::Result<()> {
    match result {
        Err(Errno::NOENT) => Ok(()),
        result => Ok(result?),
    }
}

fn open_dir(at: impl AsFd, path: impl AsRef<OsStr>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(at, path.as_ref(), flags, Mode::empty())?)
}

fn make_dir(root: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    match rustix::fs::mkdirat(root, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => open_dir(root, name),
        Err(error) => Err(error.into()),
    }
}

/// Checks that a directory without a lock is empty, apart from `lost+found` of a new file system.
/// Another program's directory must not be used.
fn check_ownership(root: &OwnedFd) -> Result<(), OpenDirError> {
    let mut foreign = None;
    for entry in Dir::read_from(root).map_err(io::Error::from)? {
        let entry = entry.map_err(io::Error::from)?;
        match entry.file_name().to_bytes() {
            b"lock" => return Ok(()),
            b"." | b".." | b"lost+found" => {}
            name => foreign = Some(String::from_utf8_lossy(name).into_owned()),
        }
    }
    foreign.map_or(Ok(()), |name| Err(OpenDirError::NotCacheDir(name)))
}

/// Whether a file system of this kind opens a file with a cached name by itself. Others may wait,
/// above all for another machine or process.
fn is_local(kind: impl TryInto<u64>) -> bool {
    const LOCAL: [u64; 9] = [
        0xef53,      // ext2, ext3, ext4
        0x5846_5342, // XFS
        0x9123_683e, // Btrfs
        0x2fc1_2fc1, // ZFS
        0xf2f5_2010, // F2FS
        0xca45_1a4e, // bcachefs
        0x0102_1994, // tmpfs
        0x8584_58f6, // ramfs
        0x794c_7630, // overlayfs
    ];
    kind.try_into().is_ok_and(|kind| LOCAL.contains(&kind))
}

/// The file system of `path` if its own is not mounted. `None` if nothing is mounted on the way.
/// Blocks.
///
/// # Errors
/// Fails if that cannot be determined.
pub(crate) fn underlying_device(path: &Path) -> io::Result<Option<u64>> {
    let devices = devices_along(path)?;
    let own = devices.first().copied();
    Ok(devices.into_iter().find(|&device| Some(device) != own))
}

/// The file systems of `path`, or of its existing part, and of all its ancestors, nearest first.
fn devices_along(path: &Path) -> io::Result<Vec<u64>> {
    let mut devices = Vec::new();
    for path in path.ancestors() {
        match std::fs::metadata(path) {
            Ok(metadata) => devices.push(metadata.dev()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    Ok(devices)
}

/// Parses exactly that many lower-case hexadecimal digits.
fn parse_hex(text: &[u8], digits: usize) -> Option<u128> {
    let is_hex = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if text.len() != digits || !text.iter().all(is_hex) {
        return None;
    }
    u128::from_str_radix(OsStr::from_bytes(text).to_str()?, 16).ok()
}

#[cfg(test)]
mod tests;
