//! Memory pages that are sent to sockets by reference, without a copy for each client.
//!
//! Called by `runtime`'s arena. A [`PageRegion`] is one mapping in which each [`Extent`] has whole
//! pages of its own; a [`SplicePipe`] moves them to a socket (`vmsplice`, then `splice`).
//!
//! # Invariants
//! - The bytes of an extent are written once, before they are shared.
//! - The pages of an extent are returned to the kernel before its range is reused. The kernel keeps
//!   pages that a socket still sends; the range has new ones by then.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::pipe::{
    IoSliceRaw, PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice, vmsplice,
};
use rustix::process::Resource;

use crate::page_cache::page_bytes;
use crate::resource_limits::read_limit;

/// A range of the address space. It uses memory only where there are extents.
#[derive(Debug)]
pub struct PageRegion {
    base: NonNull<u8>,
    bytes: usize,
    /// Held for a look-up.
    free_extents: Mutex<FreeExtents>,
}

// SAFETY: the mapping is not bound to a thread. It is read through extents, which do not overlap,
// and written only by the thread that makes one.
#[expect(unsafe_code, reason = "a pointer to a mapping of its own")]
unsafe impl Send for PageRegion {}
// SAFETY: as above; allocation is behind the lock.
#[expect(unsafe_code, reason = "a pointer to a mapping of its own")]
unsafe impl Sync for PageRegion {}

/// Some bytes in a region. Dropping it frees the memory, which takes about a tenth of a millisecond
/// for each megabyte.
#[derive(Debug)]
pub struct Extent {
    region: Arc<PageRegion>,
    start: usize,
    len: usize,
}

impl PageRegion {
    /// Creates an empty region of `bytes`, in whole pages. It is not inherited by a forked process,
    /// and no part of a core dump.
    ///
    /// # Errors
    /// `Unsupported` where the process's memory is limited (`RLIMIT_AS`, `RLIMIT_DATA`): all of the
    /// region would count. When the system does not overcommit memory.
    pub fn new(bytes: u64) -> io::Result<Arc<Self>> {
        let is_bounded = |resource| read_limit(resource).is_ok_and(|limit| limit.current.is_some());
        if is_bounded(Resource::As) || is_bounded(Resource::Data) {
            let error = "the process's memory is bounded (RLIMIT_AS, RLIMIT_DATA)";
            return Err(io::Error::new(io::ErrorKind::Unsupported, error));
        }
        let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let bytes = round_up_to_pages(bytes).ok_or(io::ErrorKind::OutOfMemory)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        #[expect(unsafe_code, reason = "mapping memory")]
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, flags)? };
        let region = Self {
            base: NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?,
            bytes,
            free_extents: Mutex::new(FreeExtents::new(bytes)),
        };
        // A freed part of a huge page stays allocated until the rest is freed, too.
        for advice in [
            Advice::LinuxNoHugepage,
            Advice::LinuxDontFork,
            Advice::LinuxDontDump,
        ] {
            // SAFETY: the whole of the new mapping; its content is not changed.
            #[expect(unsafe_code, reason = "advice takes a pointer")]
            match unsafe { madvise(at, bytes, advice) } {
                // A kernel without huge pages.
                Err(Errno::INVAL) => {}
                advised => advised?,
            }
        }
        Ok(Arc::new(region))
    }

    /// Copies `pieces`, one behind the other, into an extent; `None` when the region has no room
    /// for it.
    pub fn store(self: &Arc<Self>, pieces: &[&[u8]]) -> io::Result<Option<Extent>> {
        let mut lens = pieces.iter().map(|piece| piece.len());
        let len = lens.try_fold(0, usize::checked_add);
        let len = len.ok_or(io::ErrorKind::OutOfMemory)?;
        let Some(start) =
            round_up_to_pages(len).and_then(|bytes| self.free_extents().allocate(bytes))
        else {
            return Ok(None);
        };
        // Releases its range if there is no memory.
        let extent = Extent {
            region: Arc::clone(self),
            start,
            len,
        };
        match self.advise(start, extent.allocated_bytes(), Advice::LinuxPopulateWrite) {
            // Linux before 5.14: each page is allocated as it is written.
            Err(Errno::INVAL) => {}
            populated => populated?,
        }
        let mut at = start;
        for piece in pieces {
            // SAFETY: within the extent, whose length is the sum of theirs, which is within the
            // mapping and has no other owner: no reference to its bytes was made yet.
            #[expect(unsafe_code, reason = "writing to mapped memory")]
            unsafe {
                std::ptr::copy_nonoverlapping(
                    piece.as_ptr(),
                    self.base.add(at).as_ptr(),
                    piece.len(),
                );
            }
            at += piece.len();
        }
        Ok(Some(extent))
    }

    /// Bytes in use by extents.
    pub fn used_bytes(&self) -> u64 {
        let free: usize = self.free_extents().by_start.values().sum();
        (self.bytes - free) as u64
    }

    fn free_extents(&self) -> MutexGuard<'_, FreeExtents> {
        self.free_extents
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn advise(&self, start: usize, bytes: usize, advice: Advice) -> Result<(), Errno> {
        // In steps: during a call no other thread of this process allocates or frees memory.
        for step in (0..bytes).step_by(STEP_BYTES) {
            // SAFETY: a part of the mapping. Only `DontNeed` changes its content, for extents that
            // have no owner any more.
            #[expect(unsafe_code, reason = "advice takes a pointer")]
            unsafe {
                let at = self.base.add(start + step).as_ptr().cast();
                madvise(at, STEP_BYTES.min(bytes - step), advice)?;
            }
        }
        Ok(())
    }
}

/// Bytes that are allocated or freed in one call: about a tenth of a millisecond.
const STEP_BYTES: usize = 1 << 20;

impl Drop for PageRegion {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, into which no reference is left: each extent holds the region.
        #[expect(unsafe_code, reason = "unmapping memory")]
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "it is our own");
    }
}

impl Extent {
    /// Its content.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: within the mapping, which lives as long as the extent; written before the extent
        // was returned and not since.
        #[expect(unsafe_code, reason = "reading mapped memory")]
        unsafe {
            std::slice::from_raw_parts(self.region.base.add(self.start).as_ptr(), self.len)
        }
    }

    /// Up to `len` bytes from `at` on; none beyond the end.
    #[must_use]
    pub fn part(&self, at: u64, len: usize) -> &[u8] {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let bytes = self.bytes().get(at..).unwrap_or_default();
        &bytes[..len.min(bytes.len())]
    }

    fn allocated_bytes(&self) -> usize {
        round_up_to_pages(self.len).unwrap_or(self.len)
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        let bytes = self.allocated_bytes();
        // Where the kernel keeps the pages (`mlockall`) a socket may still be sending them: then
        // the range is not reused.
        if (self.region.advise(self.start, bytes, Advice::LinuxDontNeed)).is_ok() {
            self.region.free_extents().release(self.start, bytes);
        }
    }
}

/// Rounds up to whole pages, at least one.
fn round_up_to_pages(bytes: usize) -> Option<usize> {
    let page = usize::try_from(page_bytes()).ok()?;
    bytes.max(1).checked_next_multiple_of(page)
}

/// The free ranges of a region.
#[derive(Debug)]
struct FreeExtents {
    /// Length by start; no two are adjacent.
    by_start: BTreeMap<usize, usize>,
    /// The same, by length.
    by_bytes: BTreeSet<(usize, usize)>,
}

impl FreeExtents {
    fn new(bytes: usize) -> Self {
        Self {
            by_start: BTreeMap::from([(0, bytes)]),
            by_bytes: BTreeSet::from([(bytes, 0)]),
        }
    }

    /// Allocates `bytes` from the smallest free extent that is large enough.
    fn allocate(&mut self, bytes: usize) -> Option<usize> {
        let &(hole, start) = self.by_bytes.range((bytes, 0)..).next()?;
        self.remove(start, hole);
        if hole > bytes {
            self.add(start + bytes, hole - bytes);
        }
        Some(start)
    }

    fn release(&mut self, mut start: usize, mut bytes: usize) {
        if let Some((&before, &len)) = self.by_start.range(..start).next_back()
            && before + len == start
        {
            self.remove(before, len);
            (start, bytes) = (before, bytes + len);
        }
        if let Some(&len) = self.by_start.get(&(start + bytes)) {
            self.remove(start + bytes, len);
            bytes += len;
        }
        self.add(start, bytes);
    }

    fn add(&mut self, start: usize, bytes: usize) {
        self.by_start.insert(start, bytes);
        self.by_bytes.insert((bytes, start));
    }

    fn remove(&mut self, start: usize, bytes: usize) {
        self.by_start.remove(&start);
        self.by_bytes.remove(&(bytes, start));
    }
}

/// Moves pages to sockets. Empty between two calls.
#[derive(Debug)]
pub struct SplicePipe {
    reader: OwnedFd,
    writer: OwnedFd,
}

/// Requested pipe capacity, within what any user may request.
const MAX_PIPE_BYTES: usize = 256 * 1024;

impl SplicePipe {
    /// Creates an empty pipe; uses two descriptors.
    pub fn new() -> io::Result<Self> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // A smaller pipe needs more calls.
        let _ = fcntl_setpipe_size(&writer, MAX_PIPE_BYTES);
        Ok(Self { reader, writer })
    }

    /// Sends up to `len` bytes of an extent from `at` on; 0 is its end. A shorter result has no
    /// special meaning: try again. The pipe is returned unless bytes are left in it that the socket
    /// did not accept.
    ///
    /// # Errors
    /// `WouldBlock` when the socket is full; the connection's error; `Unsupported` where the system
    /// has no such calls or no memory for them: the bytes can be copied.
    pub fn send(
        self,
        socket: BorrowedFd<'_>,
        extent: &Extent,
        at: u64,
        len: usize,
    ) -> (io::Result<usize>, Option<Self>) {
        let len = extent.part(at, len).len();
        let mut done = 0;
        while done < len {
            let held = match self.fill_from(extent, at + done as u64, len - done) {
                Ok(held) => held,
                Err(_) if done > 0 => break,
                Err(error) => return (Err(copy_instead_error(error)), Some(self)),
            };
            let more = match done + held < len {
                true => SpliceFlags::MORE,
                false => SpliceFlags::empty(),
            };
            let flags = SpliceFlags::NONBLOCK | more;
            match splice(&self.reader, None, socket, None, held, flags) {
                Ok(sent) if sent == held => done += sent,
                Ok(sent) => return (Ok(done + sent), None),
                Err(_) if done > 0 => return (Ok(done), None),
                Err(error) => return (Err(copy_instead_error(error)), None),
            }
        }
        (Ok(done), Some(self))
    }

    /// Puts references to pages of the extent into the empty pipe; returns how many bytes, at least
    /// one.
    fn fill_from(&self, extent: &Extent, at: u64, len: usize) -> Result<usize, Errno> {
        let slices = [IoSliceRaw::from_slice(
            extent.part(at, len.min(MAX_PIPE_BYTES)),
        )];
        // SAFETY: the pages of an extent are never written again, and the kernel keeps them as
        // long as it refers to them.
        #[expect(unsafe_code, reason = "the kernel keeps references to the pages")]
        match unsafe { vmsplice(&self.writer, &slices, SpliceFlags::NONBLOCK) }? {
            0 => Err(Errno::INVAL),
            held => Ok(held),
        }
    }
}

/// Errors that are not the connection's are a reason to send a copy.
fn copy_instead_error(error: Errno) -> io::Error {
    match error {
        Errno::INVAL | Errno::NOSYS | Errno::PERM | Errno::ACCESS | Errno::NOMEM | Errno::FAULT => {
            io::ErrorKind::Unsupported.into()
        }
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn page() -> usize {
        usize::try_from(page_bytes()).unwrap()
    }

    /// Bytes of the region that take memory.
    fn resident(region: &PageRegion) -> usize {
        let pages = region.bytes / page();
        let mut found = vec![0_u8; pages];
        // SAFETY: the mapping is the region's, and there is a byte for each of its pages.
        #[expect(unsafe_code, reason = "rustix has no mincore")]
        let asked = unsafe {
            libc::mincore(
                region.base.as_ptr().cast(),
                region.bytes,
                found.as_mut_ptr(),
            )
        };
        assert_eq!(asked, 0);
        found.iter().filter(|&page| page & 1 != 0).count() * region.bytes / pages
    }

    #[test]
    fn free_extents_are_split_and_merged() {
        let mut holes = FreeExtents::new(100);
        let taken: Vec<_> = [30, 20, 10, 40].map(|bytes| holes.allocate(bytes)).into();
        assert_eq!(taken, [Some(0), Some(30), Some(50), Some(60)]);
        assert_eq!(holes.allocate(1), None);
        holes.release(0, 30);
        holes.release(50, 10);
        assert_eq!(holes.allocate(5), Some(50), "the smallest that has it");
        assert_eq!(holes.allocate(31), None);
        holes.release(50, 5);
        holes.release(60, 40);
        assert_eq!(holes.by_start, BTreeMap::from([(0, 30), (50, 50)]));
        holes.release(30, 20);
        assert_eq!(holes.by_start, BTreeMap::from([(0, 100)]));
        assert_eq!(holes.by_bytes, BTreeSet::from([(100, 0)]));
    }

    #[test]
    fn extents_keep_their_bytes_and_free_their_memory() {
        let region = PageRegion::new(10 * page() as u64).unwrap();
        let store = |byte: u8, len: usize| {
            let (half, rest) = (vec![byte; len / 2], vec![byte; len - len / 2]);
            region.store(&[&half, &rest]).unwrap()
        };
        assert_eq!((resident(&region), region.used_bytes()), (0, 0));
        let first = store(1, 3 * page() + 1).unwrap();
        let second = store(2, 5 * page()).unwrap();
        assert_eq!(resident(&region), 9 * page());
        assert_eq!(region.used_bytes(), 9 * page() as u64);
        assert!(store(3, page() + 1).is_none(), "no room");
        drop(first);
        assert_eq!(resident(&region), 5 * page());
        let third = store(3, 4 * page()).unwrap();
        assert_eq!(second.bytes(), vec![2; 5 * page()]);
        assert_eq!(third.bytes(), vec![3; 4 * page()]);
        assert_eq!(store(4, 0).unwrap().bytes(), b"");
        drop((second, third));
        assert_eq!((resident(&region), region.used_bytes()), (0, 0));
        assert!(PageRegion::new(u64::MAX).is_err());
    }

    #[test]
    fn bytes_in_a_socket_survive_reuse_of_their_extent() {
        let region = PageRegion::new(16 * page() as u64).unwrap();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let len = 13 * page();
        let extent = region.store(&[&vec![2; len]]).unwrap().unwrap();
        let (sent, pipe) = SplicePipe::new()
            .unwrap()
            .send(ours.as_fd(), &extent, 0, len);
        assert_eq!((sent.unwrap(), pipe.is_some()), (len, true));
        let start = extent.start;
        drop(extent);
        let other = region.store(&[&vec![4; len]]).unwrap().unwrap();
        assert_eq!(other.start, start);
        let mut got = vec![0; len];
        theirs.read_exact(&mut got).unwrap();
        assert_eq!(got, vec![2; len]);
    }

    #[test]
    fn parts_are_sent_until_the_socket_is_full() {
        let bytes: Vec<u8> = (0..3_000_000).map(|at| (at % 251) as u8).collect();
        let region = PageRegion::new(bytes.len() as u64).unwrap();
        let extent = region.store(&[&bytes]).unwrap().unwrap();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let (mut at, mut pipe, mut waits) = (1234, None, 0);
        while at < bytes.len() {
            let ready = pipe.take().map_or_else(SplicePipe::new, Ok).unwrap();
            let (sent, rest) = ready.send(ours.as_fd(), &extent, at as u64, 1_000_000);
            pipe = rest;
            let mut got = vec![0; 1_000_000];
            match sent {
                Ok(sent) => {
                    theirs.read_exact(&mut got[..sent]).unwrap();
                    assert_eq!(got[..sent], bytes[at..at + sent]);
                    waits += usize::from(sent < 1_000_000.min(bytes.len() - at));
                    at += sent;
                }
                Err(error) => panic!("{error} at {at}"),
            }
        }
        assert!(waits > 0, "the socket took all");
        let (end, _) = SplicePipe::new()
            .unwrap()
            .send(ours.as_fd(), &extent, at as u64, 10);
        assert_eq!(end.unwrap(), 0);
        drop(theirs);
        let (broken, _) = SplicePipe::new()
            .unwrap()
            .send(ours.as_fd(), &extent, 0, 10);
        assert_eq!(broken.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn unsupported_sockets_differ_from_full_ones() {
        let region = PageRegion::new(1).unwrap();
        let extent = region.store(&[b"bytes"]).unwrap().unwrap();
        // A file opened for appending accepts nothing from a pipe (splice(2)).
        let path = std::env::temp_dir().join(format!("penstock-pages-{}", std::process::id()));
        let mut options = std::fs::File::options();
        let file = options.append(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let (refused, pipe) = SplicePipe::new().unwrap().send(file.as_fd(), &extent, 0, 5);
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::Unsupported);
        assert!(pipe.is_none(), "it holds what was not taken");
        let (ours, _theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let full = loop {
            let (sent, _) = SplicePipe::new().unwrap().send(ours.as_fd(), &extent, 0, 5);
            if let Err(error) = sent {
                break error;
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
    }
}
