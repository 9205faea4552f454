//! Files: opened beneath a root that cannot be escaped, read without waiting for a disk, unnamed
//! temporary files.
//!
//! Used by `files` (static files), `cache` (its directories), `apps` (large request bodies, the
//! workers' scripts) and `runtime` (files that are sent). Opening and [`read_at`] may block on a
//! disk: callers run them in a `runtime` pool; [`open_beneath_cached`] and [`read_at_if_cached`]
//! never block. Residency and sending are in `page_cache`.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{MemfdFlags, Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, ReadWriteFlags};

use crate::kernel;

mod walk;

/// Opens a directory as a root for [`open_beneath`].
///
/// # Errors
/// When it does not exist or is not a directory. May block.
pub fn open_root(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(
        path,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

/// How symbolic links below the root are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SymlinkPolicy {
    /// Follows those that stay beneath the root.
    #[default]
    Beneath,
    /// Refuses each: `FilesystemLoop` (`ELOOP`).
    Never,
    /// Follows each, wherever it leads; the path itself must still stay below the root.
    Anywhere,
}

/// Whether reads of an opened file update its access time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AccessTimePolicy {
    /// As the file system is mounted.
    #[default]
    Updated,
    /// They do not (`O_NOATIME`); only the file's owner may open it so, others get `EPERM`.
    Unchanged,
}

/// Opens `relative` for reading so that no `..`, absolute path or symbolic link can lead out of
/// `root` (`openat2` with `RESOLVE_BENEATH`); magic links are refused. The open itself never waits
/// for a FIFO's writer. Where that call is missing or forbidden the path is opened directory by
/// directory, with the same results.
///
/// # Errors
/// `NotFound`, `CrossesDevices` (`EXDEV`: the path leads out of the root), `FilesystemLoop`,
/// `PermissionDenied`, ... May block.
pub fn open_beneath(root: &OwnedFd, relative: &[u8]) -> io::Result<File> {
    open_beneath_with(
        root,
        relative,
        SymlinkPolicy::Beneath,
        AccessTimePolicy::Updated,
    )
}

/// Like [`open_beneath`], with choices for symbolic links and the access time.
///
/// # Errors
/// As [`open_beneath`]. May block.
pub fn open_beneath_with(
    root: &OwnedFd,
    relative: &[u8],
    symlinks: SymlinkPolicy,
    access_time: AccessTimePolicy,
) -> io::Result<File> {
    if !*kernel::HAS_OPENAT2 {
        return open_by_walking(root, relative, symlinks, access_time);
    }
    // openat2(2): EAGAIN where a directory was renamed meanwhile, anywhere on the machine, and the
    // kernel cannot verify a `..`. Continuous renames must not stop opening.
    for _ in 0..8 {
        match open_resolved(root, relative, symlinks, access_time, ResolveFlags::empty()) {
            Err(Errno::AGAIN) => {}
            opened => return Ok(opened?),
        }
    }
    open_by_walking(root, relative, symlinks, access_time)
}

/// Like [`open_beneath`], if everything that resolving the path needs is in memory
/// (`RESOLVE_CACHED`): an event loop may call it. `None` if the disk, or another process or host,
/// would be needed.
///
/// A name that is known not to exist is an error here as well. Some file systems still block at the
/// open itself (network, FUSE): use this only for roots that
/// [`crate::page_cache::file_system_kind`] reports as local. Mounts below such a root are `None`
/// too (`RESOLVE_NO_XDEV`), and so is everything without `openat2`.
pub fn open_beneath_cached(root: &OwnedFd, relative: &[u8]) -> io::Result<Option<File>> {
    open_beneath_cached_with(
        root,
        relative,
        SymlinkPolicy::Beneath,
        AccessTimePolicy::Updated,
    )
}

/// Like [`open_beneath_cached`], with choices for symbolic links and the access time.
pub fn open_beneath_cached_with(
    root: &OwnedFd,
    relative: &[u8],
    symlinks: SymlinkPolicy,
    access_time: AccessTimePolicy,
) -> io::Result<Option<File>> {
    if !*kernel::HAS_OPENAT2 {
        return Ok(None);
    }
    let cached = ResolveFlags::CACHED | ResolveFlags::NO_XDEV;
    match open_resolved(root, relative, symlinks, access_time, cached) {
        Ok(file) => Ok(Some(file)),
        // EINVAL: a kernel before 5.12 does not know the flag. EXDEV: a mount, or a way out of the
        // root, which the blocking open distinguishes.
        Err(Errno::AGAIN | Errno::INVAL | Errno::XDEV) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Opens one name in `folder` for reading if no disk is needed for it (`RESOLVE_CACHED`), following
/// no link; `None` also where the kernel cannot tell. An event loop may call it.
pub fn open_name_cached(folder: impl AsFd, name: &str) -> Option<File> {
    if !*kernel::HAS_OPENAT2 {
        return None;
    }
    let resolve = ResolveFlags::CACHED | ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = rustix::fs::openat2(folder, name, flags, Mode::empty(), resolve);
    opened.ok().map(File::from)
}

fn open_resolved(
    root: &OwnedFd,
    relative: &[u8],
    symlinks: SymlinkPolicy,
    access_time: AccessTimePolicy,
    more: ResolveFlags,
) -> Result<File, Errno> {
    let relative = if relative.is_empty() {
        b".".as_slice()
    } else {
        relative
    };
    let links = match symlinks {
        SymlinkPolicy::Beneath => ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS,
        SymlinkPolicy::Never => ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
        // As the kernel would refuse it with the other flags.
        SymlinkPolicy::Anywhere if escapes_root(relative) => return Err(Errno::XDEV),
        SymlinkPolicy::Anywhere => ResolveFlags::NO_MAGICLINKS,
    };
    let fd = rustix::fs::openat2(
        root,
        Path::new(OsStr::from_bytes(relative)),
        read_flags(access_time),
        Mode::empty(),
        links | more,
    )?;
    Ok(File::from(fd))
}

/// Like [`open_beneath_with`] where there is no `openat2`.
fn open_by_walking(
    root: &OwnedFd,
    relative: &[u8],
    symlinks: SymlinkPolicy,
    access_time: AccessTimePolicy,
) -> io::Result<File> {
    if symlinks == SymlinkPolicy::Anywhere && escapes_root(relative) {
        return Err(Errno::XDEV.into());
    }
    Ok(walk::open(
        root.as_fd(),
        relative,
        symlinks,
        read_flags(access_time),
    )?)
}

fn read_flags(access_time: AccessTimePolicy) -> OFlags {
    let noting = match access_time {
        AccessTimePolicy::Updated => OFlags::empty(),
        AccessTimePolicy::Unchanged => OFlags::NOATIME,
    };
    OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY | noting
}

/// Whether a path could lead out of its root without a symbolic link: it is absolute or contains
/// `..`.
fn escapes_root(relative: &[u8]) -> bool {
    let mut parts = relative.split(|&byte| byte == b'/');
    relative.starts_with(b"/") || parts.any(|part| part == b"..")
}

/// The path of an open file or directory, without symbolic links (`/proc/self/fd`). That of an
/// unlinked one ends in ` (deleted)`. Does not wait for a disk.
pub fn fd_path(file: impl AsFd) -> io::Result<std::path::PathBuf> {
    use std::os::fd::AsRawFd;
    use std::os::unix::ffi::OsStringExt;

    let link = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let path = rustix::fs::readlink(link, Vec::new())?;
    Ok(std::ffi::OsString::from_vec(path.into_bytes()).into())
}

/// Reads at `offset` only bytes that are in memory (`preadv2` with `RWF_NOWAIT`): an event loop may
/// call it.
///
/// # Errors
/// `WouldBlock` when the first byte would need the disk; `Unsupported` where the file system cannot
/// tell.
pub fn read_at_if_cached(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut buffers = [IoSliceMut::new(buffer)];
    Ok(rustix::io::preadv2(
        file,
        &mut buffers,
        offset,
        ReadWriteFlags::NOWAIT,
    )?)
}

/// Reads at `offset`, waiting for the disk if necessary. Blocks.
pub fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    file.read_at(buffer, offset)
}

/// Creates a file without a name in `dir`: deleted with its last descriptor, however the process
/// ends. Blocks.
///
/// # Errors
/// Those of the file system; falls back to create-and-unlink where `O_TMPFILE` is not known.
pub fn unnamed_temp_file(dir: &Path) -> io::Result<File> {
    let mode = Mode::RUSR | Mode::WUSR;
    match rustix::fs::open(dir, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode) {
        Ok(fd) => Ok(File::from(fd)),
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
            let path = dir.join(format!(".penstock-{}-{:p}", std::process::id(), &mode));
            let file = File::options()
                .read(true)
                .write(true)
                .create_new(true)
                .open(&path)?;
            std::fs::remove_file(&path)?;
            Ok(file)
        }
        Err(e) => Err(e.into()),
    }
}

/// Creates an anonymous file in memory that holds `content`, positioned at its start; without
/// `memfd_create`, an unnamed temporary file.
///
/// # Errors
/// Those of `memfd_create`, or of the temporary directory's file system.
pub fn memfd_with_content(name: &str, content: &[u8]) -> io::Result<OwnedFd> {
    let file = match *kernel::HAS_MEMFD {
        true => File::from(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?),
        false => unnamed_temp_file(&std::env::temp_dir())?,
    };
    file.write_all_at(content, 0)?;
    Ok(file.into())
}

/// The resident memory of process `pid` in bytes, from `/proc`. Blocks for some microseconds.
pub fn process_rss_bytes(pid: u32) -> io::Result<u64> {
    #[expect(
        clippy::disallowed_methods,
        reason = "procfs is memory: no disk is waited for"
    )]
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    // Not `statm`, which counts pages: the size of a page is not to be had under valgrind.
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes
        .map(|count| count * 1024)
        .ok_or_else(|| io::Error::other("no VmRSS in status"))
}

/// The proportional set size of process `pid` in bytes: its own memory, and its share of shared
/// memory. The kernel walks the whole address space: some milliseconds for a large process. For a
/// process of another user, whose memory this one may not inspect, it is the resident set size.
pub fn process_pss_bytes(pid: u32) -> io::Result<u64> {
    match read_pss_bytes(pid) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => process_rss_bytes(pid),
        read => read,
    }
}

fn read_pss_bytes(pid: u32) -> io::Result<u64> {
    #[expect(
        clippy::disallowed_methods,
        reason = "called on threads of a pool, not on an event loop"
    )]
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kibibytes = line
        .and_then(|line| line.trim().strip_suffix("kB"))
        .and_then(|number| number.trim().parse::<u64>().ok());
    kibibytes
        .map(|k| k * 1024)
        .ok_or_else(|| io::Error::other("unreadable smaps_rollup"))
}

/// Reads a pipe; 0 is its end.
///
/// # Errors
/// `WouldBlock` when a non-blocking pipe is empty.
pub fn read_pipe(pipe: impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::io::read(pipe, buffer)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};

    fn tree(name: &str) -> std::path::PathBuf {
        let dir = std::env::temp_dir().join(format!("penstock-{name}-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("root/sub")).unwrap();
        std::fs::write(dir.join("secret"), "s").unwrap();
        std::fs::write(dir.join("root/sub/a.txt"), "a").unwrap();
        std::os::unix::fs::symlink("../secret", dir.join("root/out")).ok();
        std::os::unix::fs::symlink("sub/a.txt", dir.join("root/in")).ok();
        dir
    }

    #[test]
    fn a_path_cannot_leave_its_root() {
        let dir = tree("beneath");
        let root = open_root(&dir.join("root")).unwrap();
        for inside in ["sub/a.txt", "in", "sub/../sub/a.txt"] {
            assert!(open_beneath(&root, inside.as_bytes()).is_ok(), "{inside}");
        }
        for outside in ["../secret", "out", "/etc/passwd", "sub/../../secret"] {
            assert!(
                open_beneath(&root, outside.as_bytes()).is_err(),
                "{outside}"
            );
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn cached_open_succeeds_from_memory_or_fails() {
        let dir = tree("cached");
        let root = open_root(&dir.join("root")).unwrap();
        // Just created, so its names are in memory.
        let found = open_beneath_cached(&root, b"sub/a.txt").unwrap();
        assert!(found.is_some());
        // A name that was never looked up may exist on the disk, unless the whole directory is
        // known.
        match open_beneath_cached(&root, b"sub/nothing") {
            Ok(found) => assert!(found.is_none()),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::NotFound),
        }
        open_beneath(&root, b"sub/nothing").unwrap_err();
        let known = open_beneath_cached(&root, b"sub/nothing").unwrap_err();
        assert_eq!(known.kind(), io::ErrorKind::NotFound);
        for outside in ["../secret", "out", "/etc/passwd"] {
            let found = open_beneath_cached(&root, outside.as_bytes());
            assert!(!matches!(found, Ok(Some(_))), "{outside}");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn symlinks_are_refused_if_not_allowed() {
        let dir = tree("links");
        let root = open_root(&dir.join("root")).unwrap();
        assert!(
            open_beneath_with(
                &root,
                b"sub/a.txt",
                SymlinkPolicy::Never,
                AccessTimePolicy::Unchanged
            )
            .is_ok()
        );
        let refused = open_beneath_with(
            &root,
            b"in",
            SymlinkPolicy::Never,
            AccessTimePolicy::Unchanged,
        )
        .unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ELOOP));
        let refused = open_beneath_cached_with(
            &root,
            b"in",
            SymlinkPolicy::Never,
            AccessTimePolicy::Unchanged,
        )
        .unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ELOOP));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn symlinks_may_lead_anywhere_if_allowed_but_paths_may_not() {
        let dir = tree("anywhere");
        let root = open_root(&dir.join("root")).unwrap();
        let open = |path: &[u8]| {
            open_beneath_with(
                &root,
                path,
                SymlinkPolicy::Anywhere,
                AccessTimePolicy::Updated,
            )
            .is_ok()
        };
        assert!(open(b"sub/a.txt") && open(b"in") && open(b"out"));
        for outside in [
            &b"../secret"[..],
            b"sub/../../secret",
            b"/etc/passwd",
            b"..",
        ] {
            assert!(!open(outside), "{}", String::from_utf8_lossy(outside));
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn an_unnamed_temp_file_is_written_and_read() {
        let mut file = unnamed_temp_file(&std::env::temp_dir()).unwrap();
        file.write_all(b"body").unwrap();
        file.rewind().unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "body");
        let mut buffer = [0; 16];
        match read_at_if_cached(&file, &mut buffer, 1) {
            Ok(n) => assert_eq!(&buffer[..n], b"ody"),
            // Some file systems (9p, older tmpfs) cannot answer without waiting.
            Err(e) => assert!(matches!(
                e.kind(),
                io::ErrorKind::Unsupported | io::ErrorKind::WouldBlock
            )),
        }
    }

    #[test]
    fn process_rss_is_read() {
        let pid = std::process::id();
        assert!(process_rss_bytes(pid).unwrap() > 100_000);
        assert!(process_pss_bytes(pid).unwrap() > 100_000);
    }
}
