//! Reads that are shared, no longer wanted or too slow, and their memory.

use super::*;

/// Keeps the only thread of `pool` busy until a message is sent.
pub(super) fn occupied_pool(pool: &Pool) -> std::sync::mpsc::SyncSender<()> {
    let (release, held) = sync_channel::<()>(1);
    let (begin, begun) = sync_channel(1);
    pool.spawn(move || {
        begin.send(()).unwrap();
        held.recv_timeout(TIMEOUT).ok();
    })
    .unwrap();
    begun.recv_timeout(TIMEOUT).expect("the thread is kept");
    release
}

pub(super) fn await_idle(pool: &Pool) {
    let deadline = Instant::now() + TIMEOUT;
    while pool.snapshot().active + pool.snapshot().queued > 0 {
        assert!(Instant::now() < deadline, "never idle");
        std::thread::yield_now();
    }
}

/// Polls `work` once; it must be pending.
pub(super) async fn poll_once<F: Future + ?Sized>(work: std::pin::Pin<&mut F>) {
    let mut work = work;
    poll_fn(|cx| {
        assert!(work.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
}

/// Whether this many bytes of the pool's read memory are free.
fn is_free(pool: &Pool, bytes: u64) -> bool {
    pool.in_flight_reads().claim_memory(bytes, 1).bytes() == bytes
}

const ALL: u64 = 64 * 1024 * 1024;

#[test]
fn a_changed_file_does_not_share_an_older_read() {
    let pool = pool(1);
    let Some(old) = file_with_cachestat(CHUNK_BYTES, &pool) else {
        return;
    };
    evict(&old);
    let release = occupied_pool(&pool);
    block_on(async {
        let mut before = pin!(old.read(0, 4096));
        poll_once(before.as_mut()).await;
        old.file().unwrap().set_len(CHUNK_BYTES - 4096).unwrap();
        let new = DiskFile::new(reopened(old.file().unwrap()), pool.clone());
        assert!(
            pool.in_flight_reads()
                .find_read(old.read_key(), 0)
                .is_some()
        );
        assert!(
            pool.in_flight_reads()
                .find_read(new.read_key(), 0)
                .is_none()
        );
        release.send(()).unwrap();
        assert_eq!(before.await.unwrap().len(), 4096);
    });
    pool.close();
}

#[test]
fn an_end_seen_by_a_shared_read_is_checked_again() {
    let pool = pool(1);
    let file = Arc::new(DiskFile::new(written_file(200_000), pool.clone()));
    let (_flight, landing) = pool
        .in_flight_reads()
        .begin_read(file.read_key(), 0, CHUNK_BYTES);
    block_on(async {
        let mut read = pin!(file.read(100_000, 10));
        poll_once(read.as_mut()).await;
        let claim = pool.in_flight_reads().claim_memory(CHUNK_BYTES, 1);
        landing.complete(Ok(ReadData::new(0, vec![0; 50_000], claim)));
        let piece = read.await.unwrap();
        assert_eq!((piece.len(), piece[0]), (10, byte(100_000)));
    });
    pool.close();
}

#[test]
fn abandoned_reads_are_not_run() {
    let pool = pool(1);
    let Some(file) = file_with_cachestat(2 * CHUNK_BYTES, &pool) else {
        return;
    };
    evict(&file);
    let release = occupied_pool(&pool);
    block_on(async {
        let mut left = Box::pin(file.read(0, CHUNK_BYTES));
        let mut wanted = pin!(file.read(CHUNK_BYTES, CHUNK_BYTES));
        poll_once(left.as_mut()).await;
        poll_once(wanted.as_mut()).await;
        drop(left);
        release.send(()).unwrap();
        assert_eq!(wanted.await.unwrap().len() as u64, CHUNK_BYTES);
    });
    await_idle(&pool);
    assert!(
        !pool
            .in_flight_reads()
            .is_being_read(file.read_key(), 0, CHUNK_BYTES)
    );
    assert_eq!(file.resident_bytes(0, 1), 0);
    assert_eq!(file.resident_bytes(CHUNK_BYTES, CHUNK_BYTES), CHUNK_BYTES);
    pool.close();
}

#[test]
fn a_hanging_disk_is_a_timeout() {
    #[derive(Debug, Default)]
    struct Told(AtomicBool);
    impl ReadErrorSink for Told {
        fn read_failed(&self, error: &io::Error) {
            let is_late = error.kind() == io::ErrorKind::TimedOut;
            self.0.store(is_late, Ordering::Relaxed);
        }
    }
    let pool = pool(1);
    let release = occupied_pool(&pool);
    let told = Arc::new(Told::default());
    let file = DiskFile::new(written_file(10), pool.clone()).with_error_sink(told.clone());
    let file = Arc::new(file);
    let late = block_on(file.read_with_timeout(0, 10, Duration::from_millis(1))).unwrap_err();
    assert!(late.is_overload(), "{late}");
    assert_eq!(
        late.to_string(),
        "cannot read the file: read timed out: pool `disk`, 1ms"
    );
    assert!(told.0.load(Ordering::Relaxed));
    release.send(()).unwrap();
    pool.close();
}

#[test]
fn reads_on_the_loop_count_as_memory_too() {
    let pool = pool(1);
    let Some(file) = file_with_cachestat(CHUNK_BYTES, &pool) else {
        return;
    };
    await_idle(&pool);
    let readings = pool.snapshot().run_time.count;
    let piece = block_on(file.read(0, CHUNK_BYTES)).unwrap();
    assert_eq!(piece.len() as u64, MAX_READ_ON_LOOP);
    assert!(!is_free(&pool, ALL) && is_free(&pool, ALL - MAX_READ_ON_LOOP));
    drop(piece);
    drop(claim_all_memory(&pool));
    // A shorter read takes less.
    let piece = block_on(file.read(CHUNK_BYTES - 10, CHUNK_BYTES)).unwrap();
    assert!(is_free(&pool, ALL - 10));
    drop(piece);
    let all_of_it = claim_all_memory(&pool);
    let piece = block_on(file.read(0, CHUNK_BYTES)).unwrap();
    assert_eq!(piece.len() as u64, SMALL_READ_BYTES);
    assert_eq!(
        pool.snapshot().run_time.count,
        readings,
        "none needed a thread"
    );
    drop(all_of_it);
    pool.close();
}

#[test]
fn a_small_rest_does_not_hold_the_whole_read() {
    let pool = pool(1);
    let Some(file) = file_with_cachestat(CHUNK_BYTES, &pool) else {
        return;
    };
    drop(claim_all_memory(&pool));
    evict(&file);
    let whole = block_on(file.read(0, CHUNK_BYTES)).unwrap();
    let rest = file.compact_if_memory_scarce(whole.slice(10..20));
    drop(whole);
    assert!(!is_free(&pool, ALL - 10), "memory is not scarce");
    let scarce = pool.in_flight_reads().claim_memory(ALL / 2, 1);
    assert!(file.is_memory_scarce());
    let rest = file.compact_if_memory_scarce(rest);
    drop(scarce);
    assert_eq!((rest.len(), rest[0]), (10, byte(10)));
    // The thread that read it may hold it for a moment.
    await_idle(&pool);
    assert!(is_free(&pool, ALL - 10));
    pool.close();
}
