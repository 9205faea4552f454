//! Frames of another process that come through memory which both share, instead of a socket.
//!
//! The other process makes the memory, a sealed `memfd` of [`FILE_BYTES`], and hands it over; it
//! writes records, this one reads them. `apps` has one for each thread of a worker that answers
//! several requests at once (`crates/wire/PROTOCOL.md`, "The ring of answers").
//!
//! # Invariants
//! - The file can become neither shorter nor longer, so that no access to the mapping fails.
//! - Nothing that the other process writes is trusted. What was read is a copy.
//! - Bytes are read after the number that says that they are there, and given back after that.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::{
    FileType, MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate,
    memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Bytes that wait at most, headers of records and padding included.
pub const RING_BYTES: u32 = 32 << 10;

/// Size of the file: a page of numbers, then the ring.
pub const FILE_BYTES: u32 = DATA_AT + RING_BYTES;

/// Where the ring begins.
pub const DATA_AT: u32 = 4096;

/// Where the number of bytes that the other process has written is, modulo 2^32.
pub const WRITTEN_AT: u32 = 0;

/// Where the number of bytes that this process has read is, modulo 2^32.
pub const TAKEN_AT: u32 = 64;

/// Where this process writes 1 once it reads: the other one writes nothing before.
pub const IS_READ_AT: u32 = 128;

/// Before each record: its number and its length, of 32 bits each.
const HEADER_BYTES: u32 = 8;

/// What makes a mapping safe to touch.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Memory of this size that can be mapped and keeps it: what the other process makes.
///
/// # Errors
/// Those of `memfd_create` and `ftruncate`.
pub fn sealed_memory(size: u32) -> io::Result<OwnedFd> {
    memory(size, SEALS)
}

fn memory(size: u32, seals: SealFlags) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = memfd_create("penstock-ring", flags)?;
    ftruncate(&memory, size.into())?;
    fcntl_add_seals(&memory, seals)?;
    Ok(memory)
}

/// The reading end. Records are read in order.
#[derive(Debug)]
pub struct RingReader {
    base: NonNull<libc::c_void>,
    taken: u32,
}

// SAFETY: the mapping is not bound to a thread, and every access to it is atomic.
#[expect(unsafe_code, reason = "a pointer to a mapping of its own")]
unsafe impl Send for RingReader {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "a pointer to a mapping of its own")]
unsafe impl Sync for RingReader {}

impl RingReader {
    /// Maps a ring that the other process has made.
    ///
    /// # Errors
    /// `InvalidInput` unless it is a file of [`FILE_BYTES`] whose size is sealed. Those of `mmap`.
    pub fn map(file: impl AsFd) -> io::Result<Self> {
        let file = file.as_fd();
        let stat = fstat(file)?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        // Only files in memory have seals.
        if !is_file
            || stat.st_size != i64::from(FILE_BYTES)
            || !fcntl_get_seals(file).is_ok_and(|found| found.contains(SEALS))
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses. The file keeps its size.
        #[expect(unsafe_code, reason = "mapping a file")]
        let at = unsafe {
            mmap(
                std::ptr::null_mut(),
                FILE_BYTES as usize,
                access,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        let base = NonNull::new(at).ok_or(io::ErrorKind::OutOfMemory)?;
        let ring = Self { base, taken: 0 };
        ring.number_at(IS_READ_AT).store(1, Ordering::Release);
        Ok(ring)
    }

    /// Reads the next record into `out`, which it replaces, if it has come and has this number.
    ///
    /// # Errors
    /// `InvalidData` for lengths that do not fit: nothing in the ring can be relied on then.
    pub fn take(&mut self, number: u32, out: &mut Vec<u8>) -> io::Result<bool> {
        let written = self.number_at(WRITTEN_AT).load(Ordering::Acquire);
        let there = written.wrapping_sub(self.taken);
        if there == 0 {
            return Ok(false);
        }
        if there > RING_BYTES || !there.is_multiple_of(HEADER_BYTES) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let [n0, n1, n2, n3, l0, l1, l2, l3] = self.word(self.taken);
        if number != u32::from_le_bytes([n0, n1, n2, n3]) {
            return Ok(false);
        }
        let len = u32::from_le_bytes([l0, l1, l2, l3]);
        // `there` is at least a header's.
        if len > there - HEADER_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        out.clear();
        let mut at = self.taken.wrapping_add(HEADER_BYTES);
        for _ in 0..len.div_ceil(8) {
            out.extend_from_slice(&self.word(at));
            at = at.wrapping_add(8);
        }
        out.truncate(len as usize);
        self.taken = at;
        self.number_at(TAKEN_AT).store(at, Ordering::Release);
        Ok(true)
    }

    /// The eight bytes at this place of the ring.
    fn word(&self, at: u32) -> [u8; 8] {
        let at = DATA_AT + (at % RING_BYTES) / 8 * 8;
        // SAFETY: within the mapping, which begins at a page, and aligned. The other process may
        // write it at the same time, which atomic access allows.
        #[expect(unsafe_code, reason = "memory that another process writes")]
        let word = unsafe { self.base.byte_add(at as usize).cast::<AtomicU64>().as_ref() };
        word.load(Ordering::Relaxed).to_ne_bytes()
    }

    /// One of the numbers in the first page.
    fn number_at(&self, at: u32) -> &AtomicU32 {
        // SAFETY: `at` is one of the three constants above: within the mapping, and aligned.
        #[expect(unsafe_code, reason = "memory that another process writes")]
        unsafe {
            self.base.byte_add(at as usize).cast::<AtomicU32>().as_ref()
        }
    }
}

impl Drop for RingReader {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, to which no other reference exists. On an error it would stay
        // mapped.
        #[expect(unsafe_code, reason = "ends a mapping")]
        let _ = unsafe { munmap(self.base.as_ptr(), FILE_BYTES as usize) };
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;

    fn memory(size: u32, seals: SealFlags) -> File {
        File::from(super::memory(size, seals).unwrap())
    }

    /// The writing end, by calls.
    struct Writer {
        file: File,
        written: u32,
    }

    impl Writer {
        fn new() -> Self {
            Self {
                file: memory(FILE_BYTES, SEALS),
                written: 0,
            }
        }

        fn taken(&self) -> u32 {
            self.number(TAKEN_AT)
        }

        fn number(&self, at: u32) -> u32 {
            let mut number = [0; 4];
            self.file.read_exact_at(&mut number, at.into()).unwrap();
            u32::from_ne_bytes(number)
        }

        fn publish(&self, written: u32) {
            let at = u64::from(WRITTEN_AT);
            self.file.write_all_at(&written.to_ne_bytes(), at).unwrap();
        }

        /// Writes a record, if there is room.
        fn write(&mut self, number: u32, bytes: &[u8]) -> bool {
            let len = u32::try_from(bytes.len()).unwrap();
            let mut record = [number.to_le_bytes(), len.to_le_bytes()].concat();
            record.extend_from_slice(bytes);
            record.resize(record.len().next_multiple_of(8), 0xee);
            let size = u32::try_from(record.len()).unwrap();
            if self.written.wrapping_sub(self.taken()) + size > RING_BYTES {
                return false;
            }
            for word in record.chunks(8) {
                let at = u64::from(DATA_AT + self.written % RING_BYTES);
                self.file.write_all_at(word, at).unwrap();
                self.written = self.written.wrapping_add(8);
            }
            self.publish(self.written);
            true
        }
    }

    #[test]
    fn records_come_whole_and_in_order_to_the_one_that_asks_for_their_number() {
        let mut writer = Writer::new();
        assert_eq!(writer.number(IS_READ_AT), 0);
        let mut reader = RingReader::map(&writer.file).unwrap();
        assert_eq!(writer.number(IS_READ_AT), 1);
        let mut out = Vec::new();
        assert!(!reader.take(0, &mut out).unwrap());
        assert!(writer.write(3, b"first"));
        assert!(writer.write(4, b""));
        assert!(!reader.take(2, &mut out).unwrap(), "it is not asked for");
        assert!(!reader.take(4, &mut out).unwrap(), "another is before it");
        assert!(reader.take(3, &mut out).unwrap());
        assert_eq!(out, b"first");
        assert!(reader.take(4, &mut out).unwrap());
        assert_eq!(out, b"");
        assert!(!reader.take(5, &mut out).unwrap());
        assert_eq!(writer.taken(), writer.written);
    }

    #[test]
    fn the_ring_goes_round_and_is_never_overfull() {
        for start in [0, 0_u32.wrapping_sub(3 * RING_BYTES + 64)] {
            go_round(start);
        }
    }

    /// Writes and reads 2000 records, some 5 MB, from this position on.
    fn go_round(start: u32) {
        let mut writer = Writer::new();
        let mut reader = RingReader::map(&writer.file).unwrap();
        (writer.written, reader.taken) = (start, start);
        let at = u64::from(TAKEN_AT);
        writer.file.write_all_at(&start.to_ne_bytes(), at).unwrap();
        let (mut out, mut next, mut waits) = (Vec::new(), 0, std::collections::VecDeque::new());
        for number in 0..2000_u32 {
            let bytes = vec![number.to_le_bytes()[0]; (number as usize * 37) % 5000];
            while !writer.write(number, &bytes) {
                assert!(reader.take(next, &mut out).unwrap());
                assert_eq!(Some(out.clone()), waits.pop_front());
                next += 1;
            }
            waits.push_back(bytes);
        }
        while reader.take(next, &mut out).unwrap() {
            assert_eq!(Some(out.clone()), waits.pop_front());
            next += 1;
        }
        assert_eq!((next, waits.len()), (2000, 0));
    }

    #[test]
    fn memory_that_could_fail_under_the_reader_is_refused() {
        for (case, file) in [
            ("may shrink", memory(FILE_BYTES, SealFlags::GROW)),
            ("may grow", memory(FILE_BYTES, SealFlags::SHRINK)),
            ("too short", memory(FILE_BYTES - 4096, SEALS)),
            ("too long", memory(FILE_BYTES + 4096, SEALS)),
            ("a device", File::open("/dev/zero").unwrap()),
        ] {
            assert!(RingReader::map(&file).is_err(), "{case}");
        }
    }

    #[test]
    fn lengths_that_do_not_fit_are_errors() {
        let mut out = Vec::new();
        for (case, written, len) in [
            ("more than the ring", RING_BYTES + 8, 8),
            ("fewer than none", 0_u32.wrapping_sub(8), 8),
            ("a part of a header", 4, 0),
            ("a record longer than what is there", 16, 9),
            ("a record of any length", 16, u32::MAX),
        ] {
            let writer = Writer::new();
            let mut reader = RingReader::map(&writer.file).unwrap();
            let header = [7_u32.to_le_bytes(), u32::to_le_bytes(len)].concat();
            writer.file.write_all_at(&header, DATA_AT.into()).unwrap();
            writer.publish(written);
            assert!(reader.take(7, &mut out).is_err(), "{case}");
        }
    }

    #[test]
    fn no_content_leads_out_of_the_ring() {
        let writer = Writer::new();
        let mut reader = RingReader::map(&writer.file).unwrap();
        let (mut out, mut seed) = (Vec::new(), 99_u64);
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 32).to_le_bytes()
        };
        for round in 0..20_000_u32 {
            let at = DATA_AT + u32::from_le_bytes(random()[..4].try_into().unwrap()) % RING_BYTES;
            let end = u64::from(at.min(FILE_BYTES - 8));
            writer.file.write_all_at(&random(), end).unwrap();
            let [a, b, ..] = random();
            writer.publish(reader.taken.wrapping_add(u32::from(a) * u32::from(b)));
            let number = u32::from_le_bytes(reader.word(reader.taken)[..4].try_into().unwrap());
            if reader.take(number, &mut out).is_ok_and(|taken| taken) {
                assert!(out.len() < RING_BYTES as usize, "{round}");
            }
        }
    }
}
