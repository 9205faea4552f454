//! Bodies in memory that are sent like files: by reference, without a copy for each client.
//!
//! `cache` keeps its larger bodies here when it has no disk. An [`Arena`] is one memory region in
//! which each body has its own extent ([`penstock_sys::page_memory`]); sockets get its pages
//! through a pipe that each loop has.
//!
//! # Invariants
//! - An extent's memory is freed with its last reference, never before.

use std::cell::Cell;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use bytes::Bytes;
use penstock_sys::page_memory::{Extent, PageRegion, SplicePipe};
use penstock_sys::{net, page_cache};

use super::residency::{ResidencyFacts, ResidencyMethod};
use super::{DiskFile, DiskSource};
use crate::blocking::Pool;

/// Memory for bodies that are sent like files.
#[derive(Debug)]
pub struct Arena {
    region: Arc<PageRegion>,
    pool: Pool,
}

/// Extents up to this size are written and freed on the loop: about a tenth of a millisecond.
pub(super) const MAX_INLINE_EXTENT_BYTES: usize = 1 << 20;

impl Arena {
    /// Creates an arena of twice `bytes`: bodies that are still being sent are no longer counted by
    /// their owner, and free extents may be too short. `pool` frees the memory of large bodies.
    ///
    /// # Errors
    /// Where the address space is limited or memory may not be overcommitted.
    pub fn new(bytes: u64, pool: Pool) -> io::Result<Self> {
        Ok(Self {
            region: PageRegion::new(bytes.saturating_mul(2))?,
            pool,
        })
    }

    /// Copies `pieces`, one behind the other, into an extent of their own, which is freed with the
    /// last reference. Takes some microseconds for each 64 kB: call it in a pool for more than a
    /// megabyte.
    ///
    /// # Errors
    /// When there is no memory, or no free extent in the arena.
    pub fn store(&self, pieces: &[Bytes]) -> io::Result<Arc<DiskFile>> {
        let pieces: Vec<&[u8]> = pieces.iter().map(|piece| &piece[..]).collect();
        let extent = self.region.store(&pieces)?;
        let extent = extent.ok_or(io::ErrorKind::StorageFull)?;
        let facts = ResidencyFacts {
            method: ResidencyMethod::InMemory,
            has_inodes: false,
        };
        let file = DiskFile::with_source(DiskSource::Extent(extent), self.pool.clone(), facts);
        Ok(Arc::new(file))
    }

    /// The memory that a body of `len` bytes takes: whole pages.
    #[must_use]
    pub fn allocated_bytes(len: u64) -> u64 {
        len.next_multiple_of(page_cache::page_bytes())
    }
}

thread_local! {
    /// Moves pages to sockets; created at first use.
    static SPLICE_PIPE: Cell<Option<SplicePipe>> = const { Cell::new(None) };
}

/// Sends up to `len` bytes of an extent at `at`; 0 is its end. Copies where pages cannot be sent.
pub(super) fn send_extent(
    socket: BorrowedFd<'_>,
    extent: &Extent,
    at: u64,
    len: usize,
) -> io::Result<usize> {
    let sent = match SPLICE_PIPE.take().map_or_else(SplicePipe::new, Ok) {
        Ok(pipe) => {
            let (sent, pipe) = pipe.send(socket, extent, at, len);
            SPLICE_PIPE.set(pipe);
            sent
        }
        Err(_) => Err(io::ErrorKind::Unsupported.into()),
    };
    match sent {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            net::send(socket, extent.part(at, len))
        }
        sent => sent,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::time::{Duration, Instant};

    use super::*;

    fn pool() -> Pool {
        Pool::new("arena", 1, 100)
    }

    fn block_on<F: Future>(future: F) -> F::Output {
        crate::loops::block_on(future).unwrap()
    }

    fn content(file: &DiskFile, len: usize) -> Vec<u8> {
        let mut out = Vec::new();
        assert!(file.append_resident(0, len, &mut out));
        out
    }

    #[test]
    fn dropped_bodies_free_their_memory() {
        let pool = pool();
        let arena = Arena::new(100_000, pool.clone()).unwrap();
        let taken = || arena.region.used_bytes();
        let pieces = |byte: u8, count| vec![Bytes::from(vec![byte; 10_000]); count];
        let first = arena.store(&pieces(1, 3)).unwrap();
        let second = arena.store(&pieces(2, 7)).unwrap();
        assert_eq!(
            taken(),
            Arena::allocated_bytes(30_000) + Arena::allocated_bytes(70_000)
        );
        let again = Arc::clone(&first);
        drop(first);
        assert_eq!(content(&again, 30_000), [1; 30_000]);
        drop(again);
        assert_eq!(taken(), Arena::allocated_bytes(70_000));
        assert_eq!(second.resident_bytes(0, 70_000), 70_000);
        let third = arena.store(&pieces(3, 1)).unwrap();
        assert_eq!(content(&second, 70_000), [2; 70_000]);
        assert_eq!(content(&third, 10_000), [3; 10_000]);
        let full = arena.store(&pieces(4, 20)).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        drop((second, third));
        assert_eq!(taken(), 0);
        pool.close();
    }

    #[test]
    fn stored_bodies_are_sent_and_read_unchanged() {
        let pool = pool();
        let arena = Arena::new(1_000_000, pool.clone()).unwrap();
        let bytes: Vec<u8> = (0..300_000).map(|at| (at % 251) as u8).collect();
        let file = arena.store(&[Bytes::from(bytes.clone())]).unwrap();
        assert!(file.file().is_err() && file.is_unchanged(|_| false));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        for (at, len) in [(0, 300_000), (4097, 70_000), (299_990, 100)] {
            let expected = &bytes[at..bytes.len().min(at + len)];
            let mut done = 0;
            while done < expected.len() {
                let at = (at + done) as u64;
                let sent = file.send_to(sender.as_fd(), at, len - done).unwrap();
                let mut got = vec![0; sent];
                receiver.read_exact(&mut got).unwrap();
                assert_eq!(got, expected[done..done + sent]);
                done += sent;
            }
        }
        assert_eq!(file.send_to(sender.as_fd(), 300_000, 5).unwrap(), 0);
        let read = block_on(file.read(250_000, 100_000));
        assert_eq!(read.unwrap(), bytes[250_000..]);
        assert!(block_on(file.read(300_001, 5)).unwrap().is_empty());
        pool.close();
    }

    #[test]
    fn large_bodies_are_freed_in_the_pool() {
        let pool = pool();
        let arena = Arena::new(4 << 20, pool.clone()).unwrap();
        let piece = Bytes::from(vec![5; 1 << 20]);
        let large = arena.store(&[piece.clone(), piece]).unwrap();
        assert_eq!(arena.region.used_bytes(), 2 << 20);
        drop(large);
        let deadline = Instant::now() + Duration::from_secs(20);
        while arena.region.used_bytes() > 0 {
            assert!(Instant::now() < deadline, "not given back");
            std::thread::yield_now();
        }
        assert_eq!(pool.snapshot().queue_time.count, 1, "not by the pool");
        pool.close();
    }
}
