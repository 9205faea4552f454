//! The page cache: residency of an open file, sending it from memory, and the kind of its file
//! system.
//!
//! Called by `runtime`'s files that are sent. Only [`file_system_kind`] (which may contact a
//! network file system's server) and [`send_file`] (where pages are missing: the caller checks
//! first) may wait for a disk. File systems support different calls; an unsupported one returns an
//! error.

mod mapping;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;

use nix::sys::resource::{UsageWho, getrusage};
use rustix::buffer::spare_capacity;
use rustix::fs::{Advice, AtFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use crate::kernel;

pub use self::mapping::ResidencyMapping;

/// Returns how many pages of the `len` bytes at `at` the page cache holds (`cachestat(2)`, since
/// Linux 6.5). Pages that are still being read count as well; a `len` of 0 means up to the end of
/// the file.
///
/// # Errors
/// `Unsupported` or `ENOSYS` where the kernel or file system does not count, `PermissionDenied`
/// where a sandbox forbids the call.
#[cfg(not(any(target_arch = "mips", target_arch = "mips64")))]
pub fn cached_pages(file: &File, at: u64, len: u64) -> io::Result<u64> {
    use std::os::fd::AsRawFd;

    /// Its number, the same on all other architectures.
    const CACHESTAT: libc::c_long = 451;
    // struct cachestat_range: off, len; struct cachestat: cache, dirty, writeback, evicted,
    // recently_evicted.
    let range = [at, len];
    let mut counts = [0_u64; 5];
    // SAFETY: both arrays have the layout and the size that the call reads and writes, and outlive
    // it; the descriptor is open as long as `file` is borrowed.
    #[expect(unsafe_code, reason = "rustix has no cachestat")]
    let result = unsafe {
        libc::syscall(
            CACHESTAT,
            file.as_raw_fd(),
            range.as_ptr(),
            counts.as_mut_ptr(),
            0_u32,
        )
    };
    match result {
        0 => Ok(counts[0]),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The call has another number on these architectures: always unsupported.
///
/// # Errors
/// Always.
#[cfg(any(target_arch = "mips", target_arch = "mips64"))]
pub fn cached_pages(_file: &File, _at: u64, _len: u64) -> io::Result<u64> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Size of a page in bytes.
#[must_use]
pub fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// Tells the kernel not to read ahead on this descriptor: otherwise a read next to resident pages
/// would start to read more, and wait for a busy disk.
pub fn advise_random_access(file: &File) -> io::Result<()> {
    Ok(rustix::fs::fadvise(file, 0, None, Advice::Random)?)
}

/// Returns how many blocks disks have read for this thread's calls (not where it waited for reads
/// of others); 0 where the kernel does not count them. Takes half a microsecond.
#[must_use]
pub fn blocks_read() -> u64 {
    let usage = getrusage(UsageWho::RUSAGE_THREAD);
    usage.map_or(0, |usage| u64::try_from(usage.block_reads()).unwrap_or(0))
}

/// Drops the clean pages of the file from the page cache.
pub fn drop_cached_pages(file: &File) -> io::Result<()> {
    Ok(rustix::fs::fadvise(file, 0, None, Advice::DontNeed)?)
}

/// Marks pages that were just read as used again. The kernel evicts pages used only once first: a
/// page becomes active at its second use (with Linux' two lists; with its generations it moves up a
/// tier). `WILLNEED` and `readahead` do not count as a use. Blocks where pages are not in memory
/// any more: they are read again.
///
/// It takes 15 us for each 128 pages (reading a byte of each takes 150 us): they are sent to
/// `/dev/null` by reference.
///
/// # Errors
/// The disk's; where `/dev/null` cannot be opened.
pub fn mark_pages_used(file: &File, at: u64, len: u64) -> io::Result<()> {
    static NULL: OnceLock<Result<OwnedFd, Errno>> = OnceLock::new();
    let open = || rustix::fs::open("/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
    let null = NULL.get_or_init(open).as_ref().map_err(|error| *error)?;
    let (mut at, end) = (at, at.saturating_add(len));
    while at < end {
        let left = usize::try_from(end - at).unwrap_or(usize::MAX);
        if rustix::fs::sendfile(null, file, Some(&mut at), left)? == 0 {
            break;
        }
    }
    Ok(())
}

/// Sends up to `len` bytes at `at` from the page cache to a socket (`sendfile`); 0 is the end of
/// the file.
///
/// # Errors
/// `WouldBlock` when the socket is full; the connection's error; the disk's.
pub fn send_file(socket: BorrowedFd<'_>, file: &File, at: u64, len: usize) -> io::Result<usize> {
    if !*kernel::HAS_SENDFILE {
        return copy_to(socket, file, at, len);
    }
    let mut end = at;
    match rustix::fs::sendfile(socket, file, Some(&mut end), len) {
        // File systems that cannot map files (FUSE with direct I/O).
        Err(Errno::INVAL) => copy_to(socket, file, at, len),
        sent => Ok(sent?),
    }
}

/// [`send_file`] through a buffer, limited to what a socket usually accepts at once.
fn copy_to(socket: BorrowedFd<'_>, file: &File, at: u64, len: usize) -> io::Result<usize> {
    let mut buffer = vec![0; len.min(MAX_COPY_BYTES)];
    let count = rustix::io::pread(file, &mut buffer, at)?;
    Ok(match &buffer[..count] {
        [] => 0,
        bytes => rustix::io::write(socket, bytes)?,
    })
}

const MAX_COPY_BYTES: usize = 64 << 10;

/// Reads `len` bytes at `at`; fewer only at the end of the file. Blocks.
pub fn read_whole_at(file: &File, at: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        let at = at + bytes.len() as u64;
        match rustix::io::pread(file, spare_capacity(&mut bytes), at) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    bytes.truncate(len);
    Ok(bytes)
}

/// Identity of a file in one state, on one mount of a file system: after a write it is another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    /// The file system it is on.
    pub mount: MountId,
    /// Its inode number there.
    pub inode: u64,
    /// When it was last changed: seconds since the epoch, and nanoseconds.
    pub changed_at: (i64, u32),
    /// Its length.
    pub bytes: u64,
    /// Its owner and permissions.
    pub ownership: FileOwnership,
}

/// Owner and permissions of a file. The kernel reports residency only to processes that may write
/// the file or own it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileOwnership {
    /// The owner's uid.
    pub user: u32,
    /// The group's gid.
    pub group: u32,
    /// Type and permissions, as in `st_mode`.
    pub mode: u16,
}

/// A mounted file system. A device number alone may be reused for another file system; a unique
/// mount id is not, if the kernel (6.8) has such ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MountId {
    /// The device's number.
    pub device: (u32, u32),
    /// The mount's id; 0 where the kernel does not report it.
    pub mount: u64,
}

/// `STATX_MNT_ID_UNIQUE`, which is ignored where it is not known.
const MOUNT_UNIQUE: u32 = 0x4000;

/// Returns the file's present identity, from memory (`statx` without asking a server): an event
/// loop may call it.
pub fn file_identity(file: impl AsFd) -> io::Result<FileIdentity> {
    let wanted = StatxFlags::INO
        | StatxFlags::CTIME
        | StatxFlags::SIZE
        | StatxFlags::UID
        | StatxFlags::GID
        | StatxFlags::MODE
        | StatxFlags::MNT_ID
        | StatxFlags::from_bits_retain(MOUNT_UNIQUE);
    let found = stat_cached(file, wanted)?;
    Ok(FileIdentity {
        mount: MountId {
            device: found.device,
            mount: found.mount,
        },
        inode: found.inode,
        changed_at: found.changed_at,
        bytes: found.bytes,
        ownership: found.access,
    })
}

/// Returns the length of a regular file, `None` for anything else. From memory, as
/// [`file_identity`].
pub fn regular_file_size(file: impl AsFd) -> io::Result<Option<u64>> {
    let found = stat_cached(file, StatxFlags::TYPE | StatxFlags::SIZE)?;
    let kind = FileType::from_raw_mode(found.access.mode.into());
    Ok((kind == FileType::RegularFile).then_some(found.bytes))
}

/// Metadata of a file, from `statx` or `fstat`.
struct FileState {
    device: (u32, u32),
    mount: u64,
    inode: u64,
    changed_at: (i64, u32),
    bytes: u64,
    links: u64,
    access: FileOwnership,
}

fn stat_cached(file: impl AsFd, wanted: StatxFlags) -> io::Result<FileState> {
    if !*kernel::HAS_STATX {
        return stat_by_fstat(file);
    }
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(file, c"", flags, wanted)?;
    let has_mount = found.stx_mask & (StatxFlags::MNT_ID.bits() | MOUNT_UNIQUE) != 0;
    Ok(FileState {
        device: (found.stx_dev_major, found.stx_dev_minor),
        mount: if has_mount { found.stx_mnt_id } else { 0 },
        inode: found.stx_ino,
        changed_at: (found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec),
        bytes: found.stx_size,
        links: found.stx_nlink.into(),
        access: FileOwnership {
            user: found.stx_uid,
            group: found.stx_gid,
            mode: found.stx_mode,
        },
    })
}

/// Like [`stat_cached`] where a sandbox has no `statx`: a network file system may ask its server,
/// and the mount is unknown.
fn stat_by_fstat(file: impl AsFd) -> io::Result<FileState> {
    let found = rustix::fs::fstat(file)?;
    let device = found.st_dev;
    Ok(FileState {
        device: (rustix::fs::major(device), rustix::fs::minor(device)),
        mount: 0,
        inode: found.st_ino,
        changed_at: (
            found.st_ctime,
            u32::try_from(found.st_ctime_nsec).unwrap_or(0),
        ),
        bytes: u64::try_from(found.st_size).unwrap_or(0),
        #[allow(clippy::useless_conversion, reason = "32 bits on other architectures")]
        links: found.st_nlink.into(),
        access: FileOwnership {
            user: found.st_uid,
            group: found.st_gid,
            // Type and permissions have 16 bits.
            mode: u16::try_from(found.st_mode & 0xffff).unwrap_or(0),
        },
    })
}

/// Returns whether the file is unlinked: it is deleted with its last descriptor, and closing that
/// frees its blocks, which takes a while. From memory, as [`file_identity`].
pub fn is_unlinked(file: impl AsFd) -> io::Result<bool> {
    Ok(stat_cached(file, StatxFlags::NLINK)?.links == 0)
}

/// The kind of a file system, as far as it matters to an event loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileSystemKind {
    /// In memory, without a disk.
    Memory,
    /// On a local disk, with the kernel's page cache: access to open, resident files does not wait.
    Disk,
    /// Layers over other file systems, mostly local ones (a container's overlay), which hold the
    /// pages.
    Layered,
    /// Any other: each call may contact a server or a process.
    Other,
}

/// Returns the kind of the file's file system; `Other` where a sandbox forbids the call. May block
/// on network file systems.
pub fn file_system_kind(file: impl AsFd) -> io::Result<FileSystemKind> {
    let magic = match rustix::fs::fstatfs(file) {
        Err(error) if kernel::is_call_unavailable(error) => return Ok(FileSystemKind::Other),
        known => known?.f_type,
    };
    Ok(kind_of_magic(u64::try_from(magic).unwrap_or(0)))
}

/// Returns the kind of a directory's file system, and its size in bytes; 0 where it has none, as a
/// tmpfs without a limit. May block on network file systems.
pub fn dir_file_system(folder: &Path) -> io::Result<(FileSystemKind, u64)> {
    let found = rustix::fs::statfs(folder)?;
    let number = |value| u64::try_from(value).unwrap_or(0);
    // A file system without fragments may report 0.
    let unit = match number(found.f_frsize) {
        0 => number(found.f_bsize),
        size => size,
    };
    Ok((
        kind_of_magic(number(found.f_type)),
        found.f_blocks.saturating_mul(unit),
    ))
}

fn kind_of_magic(magic: u64) -> FileSystemKind {
    match magic & 0xffff_ffff {
        TMPFS | RAMFS => FileSystemKind::Memory,
        EXT | XFS | BTRFS | F2FS => FileSystemKind::Disk,
        OVERLAY => FileSystemKind::Layered,
        _ => FileSystemKind::Other,
    }
}

// From statfs(2). Only file systems that are known to fit their kind are listed.
const TMPFS: u64 = 0x0102_1994;
const RAMFS: u64 = 0x8584_58f6;
const EXT: u64 = 0xef53;
const XFS: u64 = 0x5846_5342;
const BTRFS: u64 = 0x9123_683e;
const F2FS: u64 = 0xf2f5_2010;
const OVERLAY: u64 = 0x794c_7630;

#[cfg(test)]
mod tests;
