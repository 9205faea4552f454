//! Files with many concurrent readers: their turn in the pool, read-ahead, and marking pages as
//! used.

use std::sync::mpsc::Receiver;

use super::sharing::{await_idle, occupied_pool, poll_once};
use super::*;

type Reading<'a> = std::pin::Pin<Box<dyn Future<Output = Result<Bytes, ReadError>> + 'a>>;

/// Begins this many reads of a chunk; none of them can complete yet.
async fn begin_many(file: &Arc<DiskFile>, chunk: u64, count: usize) -> Vec<Reading<'_>> {
    let mut readings: Vec<Reading<'_>> = Vec::new();
    for _ in 0..count {
        let mut reading: Reading<'_> = Box::pin(file.read(chunk * CHUNK_BYTES, CHUNK_BYTES));
        poll_once(reading.as_mut()).await;
        readings.push(reading);
    }
    readings
}

/// The chunks of a file that are in memory.
fn resident_chunk_count(file: &DiskFile, chunks: u64) -> Vec<u64> {
    let is_there = |chunk: &u64| {
        let counted =
            page_cache::cached_pages(file.file().unwrap(), chunk * CHUNK_BYTES, CHUNK_BYTES);
        counted.unwrap() * page_cache::page_bytes() == CHUNK_BYTES
    };
    (0..chunks).filter(is_there).collect()
}

/// Evicts all of a file, however long; `evict` checks the first chunks only.
fn drop_all(file: &DiskFile, chunks: u64) {
    evict(file);
    let deadline = Instant::now() + TIMEOUT;
    let on_disk = file.file().unwrap();
    while page_cache::cached_pages(on_disk, 0, chunks * CHUNK_BYTES).unwrap() > 0 {
        assert!(Instant::now() < deadline, "not dropped");
        page_cache::drop_cached_pages(on_disk).unwrap();
    }
}

/// Starts jobs that report whether a read of the file's first chunk is in flight when they run.
fn start_observers(pool: &Pool, file: &Arc<DiskFile>, count: usize) -> Receiver<bool> {
    let (observed, found) = sync_channel(count);
    for _ in 0..count {
        let (observed, file) = (observed.clone(), Arc::clone(file));
        let observe = move || {
            let is_busy =
                file.pool()
                    .in_flight_reads()
                    .is_being_read(file.read_key(), 0, CHUNK_BYTES);
            observed.send(is_busy).unwrap();
        };
        pool.spawn(observe).unwrap();
    }
    found
}

#[test]
fn popular_chunks_are_read_before_earlier_ones() {
    for (waiters, goes_first) in [(1, false), (2, true), (50, true)] {
        let pool = pool(1);
        let Some(file) = file_with_cachestat(CHUNK_BYTES, &pool) else {
            return;
        };
        evict(&file);
        await_idle(&pool);
        let release = occupied_pool(&pool);
        let found = start_observers(&pool, &file, 6);
        block_on(async {
            let readings = begin_many(&file, 0, waiters).await;
            assert_eq!(pool.snapshot().queued, 7, "one reading for all");
            release.send(()).unwrap();
            for reading in readings {
                assert_eq!(reading.await.unwrap().len() as u64, CHUNK_BYTES);
            }
        });
        await_idle(&pool);
        let found: Vec<bool> = found.try_iter().collect();
        assert_eq!(found, [!goes_first; 6], "{waiters}");
        pool.close();
    }
}

#[test]
fn cancelled_waiters_are_not_counted() {
    let pool = pool(1);
    let Some(file) = file_with_cachestat(CHUNK_BYTES, &pool) else {
        return;
    };
    evict(&file);
    let release = occupied_pool(&pool);
    let found = start_observers(&pool, &file, 1);
    block_on(async {
        let mut readings = begin_many(&file, 0, 9).await;
        readings.drain(..8);
        release.send(()).unwrap();
        readings.remove(0).await.unwrap();
    });
    assert_eq!(found.recv_timeout(TIMEOUT), Ok(true));
    pool.close();
}

#[test]
fn read_ahead_grows_with_the_number_of_waiters() {
    for (waiters, expected) in [(3, 1), (5, 2), (12, 3), (100, 1 + MAX_READ_AHEAD_CHUNKS)] {
        let pool = pool(1);
        let chunks = MAX_READ_AHEAD_CHUNKS + 3;
        let Some(file) = file_with_cachestat(chunks * CHUNK_BYTES, &pool) else {
            return;
        };
        drop_all(&file, chunks);
        let release = occupied_pool(&pool);
        block_on(async {
            let mut readings = begin_many(&file, 1, waiters).await;
            release.send(()).unwrap();
            for reading in &mut readings {
                assert_eq!(reading.await.unwrap()[0], byte(CHUNK_BYTES));
            }
        });
        await_idle(&pool);
        let there: Vec<u64> = (1..=expected).collect();
        assert_eq!(resident_chunk_count(&file, chunks), there, "{waiters}");
        pool.close();
    }
}
