//! Determines which pages of a file are in memory through an inaccessible mapping of it
//! (`mincore`).
//!
//! Called by `runtime`'s files that are sent, where the kernel cannot count a descriptor's pages
//! (before Linux 6.5) or the file system hides them behind another (overlay).
//!
//! # Invariants
//! - The mapping is never touched, which its protection ensures, so a file that becomes shorter is
//!   harmless.

use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::Resource;

use super::page_bytes;
use crate::resource_limits::read_limit;

/// A mapping of a file that is only queried. It keeps the file open.
#[derive(Debug)]
pub struct ResidencyMapping {
    base: NonNull<libc::c_void>,
    /// Length of the file when it was mapped.
    file_bytes: u64,
    mapped_bytes: usize,
}

// SAFETY: the mapping is not bound to a thread, and nothing in it is read or written.
#[expect(unsafe_code, reason = "a pointer to a mapping of its own")]
unsafe impl Send for ResidencyMapping {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "a pointer to a mapping of its own")]
unsafe impl Sync for ResidencyMapping {}

/// Beyond the end of a file there may be pages up to the next multiple of this, in one piece with
/// its last ones.
const LARGE_PAGE: u64 = 2 << 20;

const PAGES_PER_CALL: usize = 128;

/// Mappings of this process: a kernel allows 65,530 of all kinds.
static MAPPING_COUNT: AtomicUsize = AtomicUsize::new(0);
const MAX_MAPPINGS: usize = 16_384;

impl ResidencyMapping {
    /// Maps the first `file_bytes` of a file. Reads nothing.
    ///
    /// # Errors
    /// `PermissionDenied` where the kernel does not tell: since Linux 5.2 it reports a file of
    /// another user that may not be written as fully resident. `Unsupported` where addresses are
    /// scarce: they have 32 bits, or the process's memory is limited (`RLIMIT_AS`). `QuotaExceeded`
    /// when there are very many. Those of `mmap` and `mincore`.
    pub fn new(file: &File, file_bytes: u64) -> io::Result<Self> {
        let is_bounded = || read_limit(Resource::As).is_ok_and(|limit| limit.current.is_some());
        if usize::BITS < 64 || is_bounded() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        if MAPPING_COUNT.load(Ordering::Relaxed) >= MAX_MAPPINGS {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        // One page far beyond the end, which cannot be resident.
        let behind = file_bytes.checked_next_multiple_of(LARGE_PAGE.max(page_bytes()));
        let behind = behind.ok_or(io::ErrorKind::OutOfMemory)?;
        let mapped_bytes = usize::try_from(behind + page_bytes());
        let mapped_bytes = mapped_bytes.map_err(|_| io::ErrorKind::OutOfMemory)?;
        let (access, flags) = (ProtFlags::empty(), MapFlags::SHARED);
        // SAFETY: a new mapping, at an address that the kernel chooses, which cannot be touched.
        #[expect(unsafe_code, reason = "mapping a file")]
        let at = unsafe { mmap(std::ptr::null_mut(), mapped_bytes, access, flags, file, 0)? };
        let at = NonNull::new(at).ok_or(io::ErrorKind::OutOfMemory)?;
        MAPPING_COUNT.fetch_add(1, Ordering::Relaxed);
        let mapping = Self {
            base: at,
            file_bytes,
            mapped_bytes,
        };
        match mapping.cached_pages(behind, 1)? {
            0 => Ok(mapping),
            _ => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }

    /// Returns how many of the `len` bytes at `at` are in memory, as a prefix, without pages that
    /// are still being read. None beyond the mapped length. Takes about 3 us for 128 pages.
    pub fn cached_prefix(&self, at: u64, len: u64) -> io::Result<u64> {
        let end = at.saturating_add(len).min(self.file_bytes);
        if end <= at {
            return Ok(0);
        }
        let page = page_bytes();
        let first = at / page;
        let pages = end.div_ceil(page) - first;
        let found = (first + self.cached_pages(first * page, pages)?) * page;
        Ok(found.min(end).saturating_sub(at))
    }

    /// How many of the pages from `at` on are in memory, up to the first that is not.
    fn cached_pages(&self, at: u64, pages: u64) -> io::Result<u64> {
        let mut found = 0;
        while found < pages {
            let asked = (pages - found).min(PAGES_PER_CALL as u64);
            let (start, len) = (at + found * page_bytes(), asked * page_bytes());
            let is_within = start + len <= self.mapped_bytes as u64;
            let (Ok(start), Ok(len), true) =
                (usize::try_from(start), usize::try_from(len), is_within)
            else {
                return Err(io::ErrorKind::InvalidInput.into());
            };
            let mut there = [0_u8; PAGES_PER_CALL];
            // SAFETY: the range lies within the mapping; a byte is written for each of its pages,
            // for which there is room.
            #[expect(unsafe_code, reason = "rustix has no mincore")]
            let result = unsafe {
                libc::mincore(self.base.as_ptr().byte_add(start), len, there.as_mut_ptr())
            };
            if result != 0 {
                return Err(io::Error::last_os_error());
            }
            let missing = there.iter().position(|byte| byte & 1 == 0);
            let more = missing.map_or(asked, |missing| asked.min(missing as u64));
            found += more;
            if more < asked {
                break;
            }
        }
        Ok(found)
    }
}

impl Drop for ResidencyMapping {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, to which no other reference exists. On an error it would stay
        // mapped.
        #[expect(unsafe_code, reason = "ends a mapping")]
        let _ = unsafe { munmap(self.base.as_ptr(), self.mapped_bytes) };
        MAPPING_COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}
