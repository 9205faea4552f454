//! Bodies in memory that are sent as files are: by reference, without a copy for each client.
//!
//! `cache` keeps its larger bodies here when it has no disk. An [`Arena`] is one anonymous file in memory, in
//! which each body has an [`Extent`] of its own, so that a body takes no descriptor. What must stay true: no
//! offset is ever used twice, since a socket may still send an extent's pages when the extent is gone; an
//! extent's memory is given back with the last who holds it, never before.
//!
//! Offsets are not scarce: at a gigabyte a second they last for a century. Pages are single ones, as a part
//! of a large one that is given back would be zeroed under a socket that sends it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use penstock_sys::{file, pages};

use super::residency::{Facts, Means};
use super::{DiskFile, Source};
use crate::blocking::Pool;

/// Memory for bodies that are sent as files are.
#[derive(Debug)]
pub struct Arena {
    file: Arc<File>,
    /// Where the next extent begins.
    next: AtomicU64,
    pool: Pool,
}

/// A body's place in an arena.
#[derive(Debug)]
pub(super) struct Extent {
    file: Arc<File>,
    at: u64,
    bytes: u64,
}

/// Extents up to this size are written and given back on the loop: about a tenth of a millisecond.
const HERE_MAX: u64 = 1 << 20;

impl Arena {
    /// An empty one; takes one descriptor. `pool` gives the memory of large bodies back.
    ///
    /// # Errors
    /// Where the system has no such files, or this process may not write large ones (`RLIMIT_FSIZE`).
    pub fn new(pool: Pool) -> io::Result<Self> {
        Ok(Self {
            file: Arc::new(file::sparse_in_memory("penstock-cache")?),
            next: AtomicU64::new(0),
            pool,
        })
    }

    /// Copies `pieces`, one behind the other, into an extent of their own: the extent, which goes with the last
    /// reference, and where in the file it begins. Takes some microseconds for each 64 kB: from a pool where
    /// there are more than a megabyte.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn store(&self, pieces: &[Bytes]) -> io::Result<(Arc<DiskFile>, u64)> {
        let len: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        let bytes = Self::bytes_of(len);
        let extent = Extent {
            file: Arc::clone(&self.file),
            at: self.next.fetch_add(bytes, Ordering::Relaxed),
            bytes,
        };
        pages::take_single_pages(&self.file, extent.at, bytes)?;
        let mut at = extent.at;
        for piece in pieces {
            // What stops it half way is given back with the extent.
            self.file.write_all_at(piece, at)?;
            at += piece.len() as u64;
        }
        let at = extent.at;
        let facts = Facts {
            means: Means::Memory,
            has_inodes: false,
        };
        let file = DiskFile::of(Source::Extent(extent), self.pool.clone(), facts);
        Ok((Arc::new(file), at))
    }

    /// The memory that a body of `len` bytes takes: whole pages.
    #[must_use]
    pub fn bytes_of(len: u64) -> u64 {
        len.next_multiple_of(pages::page_bytes())
    }
}

impl Extent {
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Whether its memory is given back in no time to speak of.
    pub(super) fn is_small(&self) -> bool {
        self.bytes <= HERE_MAX
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        if self.bytes > 0
            && let Err(error) = pages::give_back(&self.file, self.at, self.bytes)
        {
            log::warn!("memory of a cache cannot be given back: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;
    use std::time::{Duration, Instant};

    use super::*;

    fn pool() -> Pool {
        Pool::new("arena", 1, 100)
    }

    fn taken(arena: &Arena) -> u64 {
        arena.file.metadata().unwrap().blocks() * 512
    }

    fn content(file: &DiskFile, at: u64, len: usize) -> Vec<u8> {
        let mut out = Vec::new();
        assert!(file.append_resident(at, len, &mut out));
        out
    }

    #[test]
    fn bodies_lie_beside_one_another_and_take_no_memory_once_nobody_holds_them() {
        let pool = pool();
        let arena = Arena::new(pool.clone()).unwrap();
        let pieces = |byte: u8, count| vec![Bytes::from(vec![byte; 10_000]); count];
        let (first, first_at) = arena.store(&pieces(1, 3)).unwrap();
        let (second, second_at) = arena.store(&pieces(2, 7)).unwrap();
        assert_eq!(
            taken(&arena),
            Arena::bytes_of(30_000) + Arena::bytes_of(70_000)
        );
        let again = Arc::clone(&first);
        drop(first);
        assert_eq!(content(&again, first_at, 30_000), [1; 30_000]);
        drop(again);
        assert_eq!(taken(&arena), Arena::bytes_of(70_000));
        assert_eq!(second.resident(second_at, 70_000), 70_000);
        // Never where something was before.
        let (third, third_at) = arena.store(&pieces(3, 1)).unwrap();
        assert!(third_at >= second_at + 70_000);
        assert_eq!(content(&second, second_at, 70_000), [2; 70_000]);
        assert_eq!(content(&third, third_at, 10_000), [3; 10_000]);
        drop((second, third));
        assert_eq!(taken(&arena), 0);
        pool.close();
    }

    #[test]
    fn what_a_socket_still_sends_stays_as_it_was_when_the_body_goes() {
        let pool = pool();
        let arena = Arena::new(pool.clone()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        // As many as the socket holds, beside others that stay; large pages would lie across their borders.
        let len = 13 * 4096;
        let (before, _) = arena.store(&[Bytes::from(vec![1; len])]).unwrap();
        let (file, at) = arena.store(&[Bytes::from(vec![2; len])]).unwrap();
        let (after, _) = arena.store(&[Bytes::from(vec![3; len])]).unwrap();
        let sent = pages::send_file(sender.as_fd(), file.file(), at, len).unwrap();
        assert_eq!(sent, len);
        drop(file);
        let (another, _) = arena.store(&[Bytes::from(vec![4; len])]).unwrap();
        let mut got = vec![0; len];
        receiver.read_exact(&mut got).unwrap();
        assert_eq!(got, vec![2; len]);
        drop((before, after, another));
        pool.close();
    }

    #[test]
    fn large_ones_are_given_back_by_the_pool() {
        let pool = pool();
        let arena = Arena::new(pool.clone()).unwrap();
        let piece = Bytes::from(vec![5; 1 << 20]);
        let (large, _) = arena.store(&[piece.clone(), piece]).unwrap();
        assert_eq!(taken(&arena), 2 << 20);
        drop(large);
        let deadline = Instant::now() + Duration::from_secs(20);
        while taken(&arena) > 0 {
            assert!(Instant::now() < deadline, "not given back");
            std::thread::yield_now();
        }
        pool.close();
    }
}
