//! Readings that several share, that nobody wants any more or that take too long, and their memory.

use super::*;

/// Keeps the only thread of `pool` busy until something is sent.
pub(super) fn held(pool: &Pool) -> std::sync::mpsc::SyncSender<()> {
    let (release, held) = sync_channel::<()>(1);
    let (begin, begun) = sync_channel(1);
    pool.start(move || {
        begin.send(()).unwrap();
        held.recv_timeout(SOON).ok();
    })
    .unwrap();
    begun.recv_timeout(SOON).expect("the thread is kept");
    release
}

pub(super) fn await_idle(pool: &Pool) {
    let deadline = Instant::now() + SOON;
    while pool.usage().active + pool.usage().queued > 0 {
        assert!(Instant::now() < deadline, "never idle");
        std::thread::yield_now();
    }
}

/// Begins `work`, which has to wait.
pub(super) async fn begin<F: Future + ?Sized>(work: std::pin::Pin<&mut F>) {
    let mut work = work;
    poll_fn(|cx| {
        assert!(work.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
}

/// Whether so many bytes of the pool's readings are free.
fn is_free(pool: &Pool, bytes: u64) -> bool {
    pool.reads().claim(bytes, 1).bytes() == bytes
}

const ALL: u64 = 64 * 1024 * 1024;

#[test]
fn a_file_that_was_written_since_is_not_read_with_what_it_was() {
    let pool = pool(1);
    let Some(old) = counted(CHUNK_BYTES, &pool) else {
        return;
    };
    evict(&old);
    let release = held(&pool);
    block_on(async {
        let mut before = pin!(old.read(0, 4096));
        begin(before.as_mut()).await;
        old.file().unwrap().set_len(CHUNK_BYTES - 4096).unwrap();
        let new = DiskFile::new(opened_again(old.file().unwrap()), pool.clone());
        assert!(pool.reads().find(old.key(), 0).is_some());
        assert!(pool.reads().find(new.key(), 0).is_none());
        release.send(()).unwrap();
        assert_eq!(before.await.unwrap().len(), 4096);
    });
    pool.close();
}

#[test]
fn an_end_that_another_reading_met_is_looked_at_again() {
    let pool = pool(1);
    let file = Arc::new(DiskFile::new(written(200_000), pool.clone()));
    let (_flight, landing) = pool.reads().begin(file.key(), 0, CHUNK_BYTES);
    block_on(async {
        let mut read = pin!(file.read(100_000, 10));
        begin(read.as_mut()).await;
        let claim = pool.reads().claim(CHUNK_BYTES, 1);
        landing.land(Ok(Outcome::new(0, vec![0; 50_000], claim)));
        let piece = read.await.unwrap();
        assert_eq!((piece.len(), piece[0]), (10, byte(100_000)));
    });
    pool.close();
}

#[test]
fn what_nobody_waits_for_any_more_is_not_read() {
    let pool = pool(1);
    let Some(file) = counted(2 * CHUNK_BYTES, &pool) else {
        return;
    };
    evict(&file);
    let release = held(&pool);
    block_on(async {
        let mut left = Box::pin(file.read(0, CHUNK_BYTES));
        let mut wanted = pin!(file.read(CHUNK_BYTES, CHUNK_BYTES));
        begin(left.as_mut()).await;
        begin(wanted.as_mut()).await;
        drop(left);
        release.send(()).unwrap();
        assert_eq!(wanted.await.unwrap().len() as u64, CHUNK_BYTES);
    });
    await_idle(&pool);
    assert!(!pool.reads().is_busy(file.key(), 0, CHUNK_BYTES));
    assert_eq!(file.resident(0, 1), 0);
    assert_eq!(file.resident(CHUNK_BYTES, CHUNK_BYTES), CHUNK_BYTES);
    pool.close();
}

#[test]
fn a_disk_that_gives_no_answer_is_an_error_in_time() {
    #[derive(Debug, Default)]
    struct Told(AtomicBool);
    impl FaultSink for Told {
        fn failed(&self, error: &io::Error) {
            let is_late = error.kind() == io::ErrorKind::TimedOut;
            self.0.store(is_late, Ordering::Relaxed);
        }
    }
    let pool = pool(1);
    let release = held(&pool);
    let told = Arc::new(Told::default());
    let file = DiskFile::new(written(10), pool.clone()).with_faults(told.clone());
    let file = Arc::new(file);
    let late = block_on(file.read_within(0, 10, Duration::from_millis(1))).unwrap_err();
    assert!(late.is_overload(), "{late}");
    assert_eq!(
        late.to_string(),
        "cannot read the file: no answer from the disk of pool `disk` in 1ms"
    );
    assert!(told.0.load(Ordering::Relaxed));
    release.send(()).unwrap();
    pool.close();
}

#[test]
fn what_is_read_on_the_loop_counts_like_what_a_pool_reads() {
    let pool = pool(1);
    let Some(file) = counted(CHUNK_BYTES, &pool) else {
        return;
    };
    await_idle(&pool);
    let readings = pool.usage().worked.count;
    let piece = block_on(file.read(0, CHUNK_BYTES)).unwrap();
    assert_eq!(piece.len() as u64, NOW_BYTES);
    assert!(!is_free(&pool, ALL) && is_free(&pool, ALL - NOW_BYTES));
    drop(piece);
    drop(all_of_memory(&pool));
    // Less than was asked for takes less.
    let piece = block_on(file.read(CHUNK_BYTES - 10, CHUNK_BYTES)).unwrap();
    assert!(is_free(&pool, ALL - 10));
    drop(piece);
    let all_of_it = all_of_memory(&pool);
    let piece = block_on(file.read(0, CHUNK_BYTES)).unwrap();
    assert_eq!(piece.len() as u64, SMALL_BYTES);
    assert_eq!(pool.usage().worked.count, readings, "none needed a thread");
    drop(all_of_it);
    pool.close();
}

#[test]
fn a_small_rest_does_not_keep_all_that_was_read_with_it() {
    let pool = pool(1);
    let Some(file) = counted(CHUNK_BYTES, &pool) else {
        return;
    };
    drop(all_of_memory(&pool));
    evict(&file);
    let whole = block_on(file.read(0, CHUNK_BYTES)).unwrap();
    let rest = file.compact(whole.slice(10..20));
    drop(whole);
    assert!(!is_free(&pool, ALL - 10), "memory is not scarce");
    let scarce = pool.reads().claim(ALL / 2, 1);
    assert!(file.is_memory_scarce());
    let rest = file.compact(rest);
    drop(scarce);
    assert_eq!((rest.len(), rest[0]), (10, byte(10)));
    // The thread that read it may hold it for a moment.
    await_idle(&pool);
    assert!(is_free(&pool, ALL - 10));
    pool.close();
}
