//! Files on the file system of the temporary directory: residency and reads.
//!
//! Tests that need evictable pages are skipped, with a message, where the file system has none.

#![expect(clippy::print_stderr, reason = "shows which tests were skipped")]

mod popular;
mod sharing;

use std::future::poll_fn;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::sync::mpsc::sync_channel;
use std::task::Poll;
use std::time::{Duration, Instant};

use super::*;

const TIMEOUT: Duration = Duration::from_secs(20);

fn block_on<F: Future>(future: F) -> F::Output {
    crate::loops::block_on(async { clock::timeout(TIMEOUT, future).await.expect("in time") })
        .unwrap()
}

/// The byte at `at` of each test's file.
fn byte(at: u64) -> u8 {
    (at % 251) as u8
}

fn written_file(len: u64) -> File {
    let mut file = file::unnamed_temp_file(&std::env::temp_dir()).unwrap();
    let content: Vec<u8> = (0..len).map(byte).collect();
    file.write_all(&content).unwrap();
    file.sync_all().unwrap();
    file
}

/// As another open of the file would return it.
fn reopened(file: &File) -> File {
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
    File::open(path).unwrap()
}

fn pool(threads: usize) -> Pool {
    Pool::new("disk", threads, 100)
}

/// A file whose residency method is detected, or `None` where the file system does not report
/// residency.
fn file_with_cachestat(len: u64, pool: &Pool) -> Option<Arc<DiskFile>> {
    let file = Arc::new(DiskFile::new(written_file(len), pool.clone()));
    block_on(file.read(0, 1)).unwrap();
    if file.residency_facts().method != ResidencyMethod::Cachestat {
        eprintln!("skipped: pages cannot be counted below the temporary directory");
        return None;
    }
    Some(file)
}

/// Evicts the file's pages and waits until that is seen: answers are reused for a moment.
fn evict(file: &DiskFile) {
    page_cache::drop_cached_pages(file.file().unwrap()).unwrap();
    let deadline = Instant::now() + TIMEOUT;
    while (0..4).any(|chunk| file.resident_bytes(chunk * CHUNK_BYTES, 1) > 0) {
        assert!(Instant::now() < deadline, "not dropped");
        std::thread::yield_now();
    }
    // A page that was probed when it was evicted has been read again.
    let on_disk = file.file().unwrap();
    while page_cache::cached_pages(on_disk, 0, 4 * CHUNK_BYTES).unwrap() > 0 {
        assert!(Instant::now() < deadline, "not dropped");
        page_cache::drop_cached_pages(on_disk).unwrap();
    }
}

#[test]
fn whole_files_are_read_on_disk_and_in_memory() {
    let len = CHUNK_BYTES + 100_000;
    let memory = {
        let fd = file::memfd_with_content("test", b"").unwrap();
        let mut file = File::from(fd);
        let content: Vec<u8> = (0..len).map(byte).collect();
        file.write_all(&content).unwrap();
        file
    };
    for (name, file) in [("disk", written_file(len)), ("memory", memory)] {
        let pool = pool(2);
        let file = Arc::new(DiskFile::new(file, pool.clone()));
        // Nothing is known before the first read.
        assert_eq!(file.resident_bytes(0, len), 0, "{name}");
        for _ in 0..2 {
            let mut at = 0;
            loop {
                let piece = block_on(file.read(at, len)).unwrap();
                if piece.is_empty() {
                    break;
                }
                assert!(
                    piece.iter().zip(at..).all(|(&got, at)| got == byte(at)),
                    "{name} {at}"
                );
                at += piece.len() as u64;
            }
            assert_eq!(at, len, "{name}");
        }
        if name == "memory" {
            assert_eq!(file.residency_facts().method, ResidencyMethod::InMemory);
            assert_eq!(file.resident_bytes(10, len), CHUNK_BYTES - 10);
        }
        pool.close();
    }
}

#[test]
fn without_residency_checks_all_reads_use_the_pool() {
    let pool = pool(1);
    let file = Arc::new(DiskFile::new(
        File::open("/proc/self/status").unwrap(),
        pool.clone(),
    ));
    for count in 1..4 {
        let piece = block_on(file.read(0, 100)).unwrap();
        assert!(piece.starts_with(b"Name:"));
        assert_eq!(file.residency_facts().method, ResidencyMethod::Unavailable);
        assert_eq!(file.resident_bytes(0, 100), 0);
        assert!(pool.snapshot().queue_time.count == count);
    }
    // Another file on the same file system is known at once.
    let other = DiskFile::new(File::open("/proc/self/stat").unwrap(), pool.clone());
    assert_eq!(other.residency_facts().method, ResidencyMethod::Unavailable);
    pool.close();
}

#[test]
fn without_cachestat_resident_bytes_are_read_on_the_loop() {
    let pool = pool(1);
    let Some(file) = file_with_cachestat(CHUNK_BYTES, &pool) else {
        return;
    };
    evict(&file);
    // As with a kernel before 6.5.
    let facts = ResidencyFacts {
        method: ResidencyMethod::Probe,
        has_inodes: true,
    };
    file.remember_facts(facts);
    let readings = || pool.snapshot().queue_time.count;
    let before = readings();
    assert_eq!(
        block_on(file.read(0, CHUNK_BYTES)).unwrap().len() as u64,
        CHUNK_BYTES
    );
    assert_eq!(readings(), before + 1);
    assert_eq!(
        file.resident_bytes(0, CHUNK_BYTES),
        0,
        "not to be sent without a look"
    );
    // For a moment after a miss nothing is probed.
    let deadline = Instant::now() + TIMEOUT;
    let piece = loop {
        let before = readings();
        let piece = block_on(file.read(100, CHUNK_BYTES)).unwrap();
        if readings() == before {
            break piece;
        }
        assert!(Instant::now() < deadline, "never read on the loop");
    };
    assert_eq!(
        (piece.len() as u64, piece[0]),
        (SMALL_READ_BYTES, byte(100))
    );
    let other = DiskFile::new(reopened(file.file().unwrap()), pool.clone());
    assert_eq!(other.residency_facts(), facts);
    // Another file system may have taken its place: the method is detected again.
    file.forget_facts();
    assert_eq!(file.residency_facts(), ResidencyFacts::UNDETECTED);
    pool.close();
}

#[test]
fn resident_bytes_is_a_prefix_within_the_chunk() {
    for means in [ResidencyMethod::Cachestat, ResidencyMethod::Mincore] {
        check_resident_prefix(means);
    }
}

fn check_resident_prefix(means: ResidencyMethod) {
    let len = 2 * CHUNK_BYTES + 100_000;
    let pool = pool(1);
    let Some(file) = file_with_cachestat(len, &pool) else {
        return;
    };
    file.remember_facts(ResidencyFacts {
        method: means,
        has_inodes: true,
    });
    for _ in 0..2 {
        for (at, wanted, expected) in [
            (0, len, CHUNK_BYTES),
            (1, 10, 10),
            (100, len, CHUNK_BYTES - 100),
            (CHUNK_BYTES, len, CHUNK_BYTES),
            (2 * CHUNK_BYTES, 100_000, 100_000),
            (len - 1, 1, 1),
            (0, 0, 0),
        ] {
            assert_eq!(file.resident_bytes(at, wanted), expected, "{at} {wanted}");
        }
    }
    evict(&file);
    assert_eq!(file.resident_bytes(CHUNK_BYTES, len), 0);
    for (at, read, expected) in [
        // Less than a step is not worth a call.
        (0, 4096, 0),
        (0, 70_000, 65_536),
        (CHUNK_BYTES, CHUNK_BYTES, CHUNK_BYTES),
    ] {
        assert!(!block_on(file.read(at, read)).unwrap().is_empty());
        assert_eq!(
            file.resident_bytes(at, CHUNK_BYTES),
            expected,
            "{at} {read}"
        );
    }
    // Verified pages that were evicted are not trusted.
    assert_eq!(file.resident_bytes(0, len), 65_536);
    evict(&file);
    assert_eq!(file.resident_bytes(CHUNK_BYTES, len), 0);
    assert_eq!(
        file.residency_facts().method,
        means,
        "{means:?} does not work"
    );
    pool.close();
}

#[test]
fn without_cachestat_mincore_finds_resident_bytes() {
    let pool = pool(1);
    let Some(file) = file_with_cachestat(3 * CHUNK_BYTES, &pool) else {
        return;
    };
    file.remember_facts(ResidencyFacts {
        method: ResidencyMethod::Mincore,
        has_inodes: false,
    });
    let readings = pool.snapshot().queue_time.count;
    assert_eq!(
        file.resident_bytes_across_chunks(0, 3 * CHUNK_BYTES),
        3 * CHUNK_BYTES,
        "several chunks at a time"
    );
    let piece = block_on(file.read(100, CHUNK_BYTES)).unwrap();
    assert_eq!(
        (piece.len() as u64, piece[0]),
        (MAX_READ_ON_LOOP, byte(100))
    );
    let mut into = Vec::new();
    assert!(file.append_resident(1000, 5000, &mut into));
    assert_eq!((into.len(), into[0]), (5000, byte(1000)));
    assert_eq!(
        pool.snapshot().queue_time.count,
        readings,
        "all of it on the loop"
    );
    evict(&file);
    assert!(!file.append_resident(0, 5000, &mut into));
    assert_eq!(block_on(file.read(0, 10)).unwrap().len(), 10);
    assert_eq!(pool.snapshot().queue_time.count, readings + 1);
    pool.close();
}

/// A file without residency reports, as if it belonged to another user.
fn file_without_residency(len: u64, pool: &Pool) -> Arc<DiskFile> {
    let file = Arc::new(DiskFile::new(written_file(len), pool.clone()));
    file.remember_facts(ResidencyFacts {
        method: ResidencyMethod::RecentlyRead,
        has_inodes: true,
    });
    file
}

#[test]
fn without_residency_checks_recent_reads_count_as_resident() {
    let pool = pool(1);
    let len = CHUNK_BYTES + 100_000;
    let file = file_without_residency(len, &pool);
    let whole = || file.resident_bytes_across_chunks(0, len);
    let read = |from: u64, to: u64| {
        let mut at = from;
        while at < to {
            at += block_on(file.read(at, to - at)).unwrap().len() as u64;
        }
    };
    assert_eq!(whole(), 0);
    // A part of each step says nothing about the rest.
    for at in (0..CHUNK_BYTES).step_by(64 * 1024) {
        assert_eq!(block_on(file.read(at + 65_535, 1)).unwrap().len(), 1);
    }
    read(0, CHUNK_BYTES - 4096);
    assert_eq!(whole(), 0);
    assert!(
        file.resident_bytes(1000, 200_000) > 0,
        "nor the rest of a part"
    );
    read(0, CHUNK_BYTES);
    assert_eq!(file.resident_bytes(100, len), CHUNK_BYTES - 100);
    assert_eq!(whole(), CHUNK_BYTES);
    read(CHUNK_BYTES, len);
    assert_eq!(whole(), len);
    assert_eq!(
        file.resident_bytes(len - 10, 20),
        0,
        "not what is behind its end"
    );
    // Content that is sent all the time need not be read.
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let (mut read_at, mut at) = (Instant::now(), 0);
    let deadline = read_at + 3 * TIMEOUT;
    while read_at.elapsed() < Duration::from_millis(1200) {
        assert!(Instant::now() < deadline, "read again and again");
        let there = usize::try_from(file.resident_bytes(at, 30_000.min(len - at))).unwrap();
        if there == 0 {
            read(0, len);
            (read_at, at) = (Instant::now(), 0);
            continue;
        }
        let sent = file.send_to(ours.as_fd(), at, there).unwrap();
        theirs.read_exact(&mut vec![0; sent]).unwrap();
        at = (at + sent as u64) % len;
    }
    let deadline = Instant::now() + TIMEOUT;
    while whole() > 0 {
        assert!(Instant::now() < deadline, "believed in for ever");
        std::thread::yield_now();
    }
    pool.close();
}

#[test]
fn a_loop_that_waited_distrusts_the_read_history() {
    let pool = pool(1);
    let file = file_without_residency(SMALL_READ_BYTES, &pool);
    block_on(file.read(0, SMALL_READ_BYTES)).unwrap();
    assert_eq!(file.resident_bytes(0, SMALL_READ_BYTES), SMALL_READ_BYTES);
    pool.in_flight_reads()
        .record_wait(pool.in_flight_reads().now_us());
    assert_eq!(file.resident_bytes(0, SMALL_READ_BYTES), 0);
    pool.close();
}

#[test]
fn a_wrong_mincore_answer_disables_the_method() {
    if !std::path::Path::new("/proc/self/io").exists() {
        return eprintln!("left out: the kernel does not count what is read");
    }
    let pool = pool(1);
    let Some(file) = file_with_cachestat(CHUNK_BYTES, &pool) else {
        return;
    };
    let mapped = ResidencyFacts {
        method: ResidencyMethod::Mincore,
        has_inodes: true,
    };
    file.remember_facts(mapped);
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let mut send = |at| {
        let sent = file.send_to(ours.as_fd(), at, 4096).unwrap();
        theirs.read_exact(&mut vec![0; sent]).unwrap();
    };
    assert_eq!(file.resident_bytes(0, CHUNK_BYTES), CHUNK_BYTES);
    send(0);
    assert_eq!(file.residency_facts(), mapped);
    // As if it had been reported resident.
    evict(&file);
    for page in 1..20 {
        send(page * 4096);
    }
    assert_eq!(file.residency_facts().method, ResidencyMethod::RecentlyRead);
    assert_eq!(file.resident_bytes(0, CHUNK_BYTES), 0);
    // Other files are unaffected.
    let other = DiskFile::new(reopened(file.file().unwrap()), pool.clone());
    assert_eq!(other.residency_facts(), mapped);
    pool.close();
}

#[test]
fn small_resident_reads_are_complete_or_nothing() {
    let pool = pool(1);
    let Some(file) = file_with_cachestat(100_000, &pool) else {
        return;
    };
    let mut into = b"head".to_vec();
    assert!(file.append_resident(1000, 5000, &mut into));
    assert_eq!(
        (into.len(), &into[..5]),
        (5004, &[b'h', b'e', b'a', b'd', byte(1000)][..])
    );
    assert!(
        !file.append_resident(99_000, 5000, &mut into),
        "beyond the end"
    );
    evict(&file);
    assert!(!file.append_resident(0, 5000, &mut into));
    assert_eq!(into.len(), 5004);
    pool.close();
}

#[test]
fn a_shared_read_survives_a_cancelled_waiter() {
    let len = CHUNK_BYTES + 4096;
    let pool = pool(1);
    let Some(file) = file_with_cachestat(len, &pool) else {
        return;
    };
    let again = Arc::new(DiskFile::new(reopened(file.file().unwrap()), pool.clone()));
    assert_eq!(again.residency_facts().method, ResidencyMethod::Cachestat);
    evict(&file);
    let (release, held) = sync_channel::<()>(1);
    pool.spawn(move || {
        held.recv_timeout(TIMEOUT).ok();
    })
    .unwrap();
    let before = pool.snapshot().queue_time.count;
    block_on(async {
        let mut left = Box::pin(file.read(0, len));
        let mut first = pin!(file.read(4096, len));
        let mut second = pin!(again.read(CHUNK_BYTES - 10, len));
        let mut apart = pin!(again.read(CHUNK_BYTES, len));
        poll_fn(|cx| {
            assert!(left.as_mut().poll(cx).is_pending());
            assert!(first.as_mut().poll(cx).is_pending());
            assert!(second.as_mut().poll(cx).is_pending());
            assert!(apart.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        drop(left);
        release.send(()).unwrap();
        assert_eq!(first.await.unwrap().len() as u64, CHUNK_BYTES - 4096);
        let second = second.await.unwrap();
        assert_eq!((second.len(), second[0]), (10, byte(CHUNK_BYTES - 10)));
        assert_eq!(apart.await.unwrap().len(), 4096);
    });
    // The job that held the thread, and one for each chunk.
    assert!(
        pool.snapshot().queue_time.count - before <= 3,
        "{:?}",
        pool.snapshot()
    );
    assert_eq!(file.resident_bytes(0, len), CHUNK_BYTES);
    pool.close();
}

#[test]
fn a_truncated_file_ends_early() {
    let pool = pool(1);
    let file = Arc::new(DiskFile::new(written_file(200_000), pool.clone()));
    assert_eq!(block_on(file.read(0, 200_000)).unwrap().len(), 200_000);
    file.file().unwrap().set_len(100_000).unwrap();
    assert!(file.resident_bytes(0, 200_000) <= 100_000);
    assert_eq!(block_on(file.read(100_000, 100_000)).unwrap().len(), 0);
    assert_eq!(block_on(file.read(150_000, 10)).unwrap().len(), 0);
    assert_eq!(block_on(file.read(99_990, 100)).unwrap().len(), 10);
    pool.close();
}

#[test]
fn a_full_pool_and_a_directory_are_errors() {
    let full = Pool::new("disk", 1, 0);
    let (release, held) = sync_channel::<()>(1);
    full.spawn(move || {
        held.recv_timeout(TIMEOUT).ok();
    })
    .unwrap();
    let file = Arc::new(DiskFile::new(written_file(10), full.clone()));
    let refused = block_on(file.read(0, 10));
    assert!(
        matches!(refused, Err(ReadError::Pool(PoolError::Full { .. }))),
        "{refused:?}"
    );
    // Its entry is removed: no request waits for a read that never began.
    assert!(!full.in_flight_reads().is_being_read(file.read_key(), 0, 1));
    release.send(()).unwrap();
    full.close();
    let pool = pool(1);
    let folder = Arc::new(DiskFile::new(File::open("/").unwrap(), pool.clone()));
    assert!(matches!(
        block_on(folder.read(0, 10)),
        Err(ReadError::Disk(_))
    ));
    pool.close();
}

/// Claims all memory of the pool's reads, once the last of them is dropped.
fn claim_all_memory(pool: &Pool) -> reads::MemoryClaim {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let claim = pool.in_flight_reads().claim_memory(64 * 1024 * 1024, 1);
        if claim.bytes() == 64 * 1024 * 1024 {
            return claim;
        }
        assert!(Instant::now() < deadline, "something is never let go");
        std::thread::yield_now();
    }
}

#[test]
fn reads_are_small_and_complete_when_memory_is_scarce() {
    let len = CHUNK_BYTES;
    let pool = pool(1);
    let file = Arc::new(DiskFile::new(
        File::open("/proc/self/status").unwrap(),
        pool.clone(),
    ));
    let all_of_it = claim_all_memory(&pool);
    assert!(file.is_memory_scarce());
    assert!(block_on(file.read(0, 100)).unwrap().starts_with(b"Name:"));
    drop(all_of_it);
    assert!(!file.is_memory_scarce());
    let Some(file) = file_with_cachestat(len, &pool) else {
        return;
    };
    evict(&file);
    let _all_of_it = claim_all_memory(&pool);
    let (release, held) = sync_channel::<()>(1);
    pool.spawn(move || {
        held.recv_timeout(TIMEOUT).ok();
    })
    .unwrap();
    block_on(async {
        let mut first = pin!(file.read(0, len));
        // It joins the first, which will not reach that far.
        let mut second = pin!(file.read(200_000, len));
        poll_fn(|cx| {
            assert!(first.as_mut().poll(cx).is_pending());
            assert!(second.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        release.send(()).unwrap();
        // As much as both would have got separately.
        assert_eq!(first.await.unwrap().len() as u64, 2 * SMALL_READ_BYTES);
        let second = second.await.unwrap();
        assert_eq!(second[0], byte(200_000));
        assert!(second.len() as u64 <= SMALL_READ_BYTES);
    });
    pool.close();
}

#[test]
fn a_last_partial_chunk_is_remembered() {
    let pool = pool(1);
    let Some(file) = file_with_cachestat(CHUNK_BYTES + 100_000, &pool) else {
        return;
    };
    // Whatever part of it is requested.
    for (at, len) in [
        (CHUNK_BYTES + 8192, 100_000 - 8192),
        (300, CHUNK_BYTES - 300),
    ] {
        assert_eq!(file.resident_bytes(at, len), len, "{at} {len}");
        assert!(file.verified_chunks.has(at / CHUNK_BYTES), "{at} {len}");
    }
    assert_eq!(file.resident_bytes(CHUNK_BYTES + 99_999, 1), 1);
    assert_eq!(file.resident_bytes(2 * CHUNK_BYTES, 1), 0, "behind the end");
    pool.close();
}

#[test]
fn resident_chunks_are_not_counted_again_until_evicted() {
    let pool = pool(2);
    let len = 3 * CHUNK_BYTES;
    let Some(file) = file_with_cachestat(len, &pool) else {
        return;
    };
    // The read that detected the method is no longer in the same millisecond.
    let (deadline, reads) = (Instant::now() + TIMEOUT, pool.in_flight_reads());
    let await_that = |what: &str, is_so: &dyn Fn() -> bool| {
        while !is_so() {
            assert!(Instant::now() < deadline, "never {what}");
            std::thread::yield_now();
        }
    };
    let is_forgotten = || !file.recent_answers.covers(1, CHUNK_BYTES, reads.now_us());
    // Counting shows in the verified chunks.
    let is_counted = || {
        await_that("asked again", &is_forgotten);
        file.verified_chunks.forget(1);
        assert_eq!(file.resident_bytes(CHUNK_BYTES, len), CHUNK_BYTES);
        file.verified_chunks.has(1)
    };
    await_that("quiet", &|| reads.idle_us(reads.now_us()) > 5000);
    await_that("known", &|| !is_counted());
    // A read in flight, of any file, and a completed one.
    let (_flight, landing) = reads.begin_read(FileKey::Handle(1), 0, 1);
    assert!(is_counted(), "something is being read");
    drop(landing);
    assert!(is_counted(), "something was read since");
    await_that("known", &|| !is_counted());
    // A send that takes as long as a disk does.
    file.detect_wait(|| {
        let began_us = reads.now_us();
        await_that("over", &|| {
            reads.now_us() - began_us >= disk_wait::LONG_SEND_US
        });
    });
    assert!(is_counted(), "something was waited for");
    await_that("known", &|| !is_counted());
    // As above: a blocking socket takes that long.
    let (ours, theirs) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        let began_us = reads.now_us();
        scope.spawn(move || {
            await_that("over", &|| {
                reads.now_us() - began_us >= 2 * disk_wait::LONG_SEND_US
            });
            io::copy(&mut &theirs, &mut io::sink()).unwrap();
        });
        let len = usize::try_from(len).unwrap();
        file.send_to(ours.as_fd(), 0, len).unwrap();
        drop(ours);
    });
    assert!(is_counted(), "that it took so long is not noticed");
    evict(&file);
    pool.close();
}

#[test]
fn two_resident_pages_confirm_the_chunks_between() {
    let pool = pool(1);
    let Some(file) = file_with_cachestat(4 * CHUNK_BYTES, &pool) else {
        return;
    };
    let (deadline, reads) = (Instant::now() + TIMEOUT, pool.in_flight_reads());
    let answers = || {
        let now_us = reads.now_us();
        [0, 1, 2, 3].map(|chunk| file.recent_answers.covers(chunk, CHUNK_BYTES, now_us))
    };
    // The read that detected the method is no longer in the same millisecond.
    while reads.idle_us(reads.now_us()) < 5000 {
        assert!(Instant::now() < deadline, "never quiet");
        std::thread::yield_now();
    }
    let await_old = || {
        while answers() != [false; 4] {
            assert!(Instant::now() < deadline, "never old");
            std::thread::yield_now();
        }
    };
    loop {
        // The second chunk is not known to be fully resident before it is queried.
        let known = [0, 2, 3].map(|chunk| file.resident_bytes(chunk * CHUNK_BYTES, 1));
        assert_eq!(known, [1, 1, 1]);
        await_old();
        assert_eq!(file.resident_bytes(0, 1), 1);
        let before_a_gap = answers();
        await_old();
        assert_eq!(file.resident_bytes(2 * CHUNK_BYTES, 1), 1);
        let behind = answers();
        // Unless the machine was so slow that chunks were counted anew one by one, or expired
        // again.
        if before_a_gap == [true, false, false, false] && behind == [false, false, true, true] {
            break;
        }
        assert!(Instant::now() < deadline, "never reported");
    }
    // A wait discards earlier answers.
    reads.record_wait(reads.now_us());
    assert!(!file.was_recently_resident(2 * CHUNK_BYTES, 1));
    pool.close();
}

#[test]
fn files_are_closed_in_the_pool_unless_that_is_quick() {
    let pool = pool(1);
    let jobs = || pool.snapshot().queue_time.count + pool.snapshot().queued as u64;
    let await_closed = |count| {
        let deadline = Instant::now() + TIMEOUT;
        while pool.snapshot().run_time.count < count {
            assert!(Instant::now() < deadline, "not closed in time");
            std::thread::yield_now();
        }
    };
    // Nothing is known about its file system.
    drop(DiskFile::new(written_file(10), pool.clone()));
    await_closed(1);
    let Some(file) = file_with_cachestat(10, &pool) else {
        return;
    };
    await_closed(2);
    let program = File::open(std::env::current_exe().unwrap()).unwrap();
    let named = DiskFile::new(program, pool.clone());
    if named.residency_facts().method == ResidencyMethod::Cachestat {
        drop(named);
        assert_eq!(jobs(), 2);
    }
    // Unlinked: freed with its last descriptor.
    drop(file);
    await_closed(3);
    pool.close();
}

#[test]
fn an_unchanged_file_is_trusted_for_a_millisecond() {
    let file = file::memfd_with_content("same", b"content").unwrap();
    let file = DiskFile::new(File::from(file), Pool::new("disk", 1, 1));
    assert!(!file.is_unchanged(|_| false));
    let began = clock::now();
    let mut is_asked = false;
    assert!(file.is_unchanged(|_| {
        is_asked = true;
        true
    }));
    assert!(is_asked, "that it is not is not remembered");
    let seen = clock::now();
    // The clock of the file counts whole microseconds.
    let (span, tick) = (
        Duration::from_micros(UNCHANGED_TIME_US),
        Duration::from_micros(1),
    );
    loop {
        let (before, mut is_asked) = (clock::now(), false);
        assert!(file.is_unchanged(|_| {
            is_asked = true;
            true
        }));
        if is_asked {
            assert!(clock::now() - began + tick >= span, "asked too soon");
            return;
        }
        assert!(before - seen < span + tick, "not asked in time");
    }
}
