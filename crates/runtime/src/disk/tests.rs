//! Files on the file system of the temporary folder: what is in memory of them, and who reads the rest.
//!
//! What needs pages that can be dropped is left out, with a word, where the file system has none.

#![expect(clippy::print_stderr, reason = "says what cannot be tested here")]

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

const SOON: Duration = Duration::from_secs(20);

fn block_on<F: Future>(future: F) -> F::Output {
    crate::loops::block_on(async { clock::within(SOON, future).await.expect("in time") }).unwrap()
}

/// The byte at `at` of each test's file.
fn byte(at: u64) -> u8 {
    (at % 251) as u8
}

fn written(len: u64) -> File {
    let mut file = file::unnamed_temp_file(&std::env::temp_dir()).unwrap();
    let content: Vec<u8> = (0..len).map(byte).collect();
    file.write_all(&content).unwrap();
    file.sync_all().unwrap();
    file
}

/// As another open of it would be.
fn opened_again(file: &File) -> File {
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
    File::open(path).unwrap()
}

fn pool(threads: usize) -> Pool {
    Pool::new("disk", threads, 100)
}

/// A file whose file system is known, or `None` where it cannot tell what is in memory.
fn counted(len: u64, pool: &Pool) -> Option<Arc<DiskFile>> {
    let file = Arc::new(DiskFile::new(written(len), pool.clone()));
    block_on(file.read(0, 1)).unwrap();
    if file.known().means != Means::Counted {
        eprintln!("left out: pages cannot be counted below the temporary folder");
        return None;
    }
    Some(file)
}

/// Drops the file's pages, and waits until they are seen to be gone: an answer stands for a moment.
fn evict(file: &DiskFile) {
    page_cache::drop_cached_pages(file.file().unwrap()).unwrap();
    let deadline = Instant::now() + SOON;
    while (0..4).any(|chunk| file.resident(chunk * CHUNK_BYTES, 1) > 0) {
        assert!(Instant::now() < deadline, "not dropped");
        std::thread::yield_now();
    }
    // A page that was tried at the moment when it went has been read again.
    let on_disk = file.file().unwrap();
    while page_cache::cached_pages(on_disk, 0, 4 * CHUNK_BYTES).unwrap() > 0 {
        assert!(Instant::now() < deadline, "not dropped");
        page_cache::drop_cached_pages(on_disk).unwrap();
    }
}

#[test]
fn a_file_is_read_whole_whatever_it_lies_on() {
    let len = CHUNK_BYTES + 100_000;
    let memory = {
        let fd = file::memfd_with_content("test", b"").unwrap();
        let mut file = File::from(fd);
        let content: Vec<u8> = (0..len).map(byte).collect();
        file.write_all(&content).unwrap();
        file
    };
    for (name, file) in [("disk", written(len)), ("memory", memory)] {
        let pool = pool(2);
        let file = Arc::new(DiskFile::new(file, pool.clone()));
        // Nothing is known before the first reading.
        assert_eq!(file.resident(0, len), 0, "{name}");
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
            assert_eq!(file.known().means, Means::Memory);
            assert_eq!(file.resident(10, len), CHUNK_BYTES - 10);
        }
        pool.close();
    }
}

#[test]
fn where_nothing_can_be_told_all_is_read_in_the_pool() {
    let pool = pool(1);
    let file = Arc::new(DiskFile::new(
        File::open("/proc/self/status").unwrap(),
        pool.clone(),
    ));
    for count in 1..4 {
        let piece = block_on(file.read(0, 100)).unwrap();
        assert!(piece.starts_with(b"Name:"));
        assert_eq!(file.known().means, Means::Never);
        assert_eq!(file.resident(0, 100), 0);
        assert!(pool.usage().waited.count == count);
    }
    // Another on the same file system is known at once.
    let other = DiskFile::new(File::open("/proc/self/stat").unwrap(), pool.clone());
    assert_eq!(other.known().means, Means::Never);
    pool.close();
}

#[test]
fn where_pages_cannot_be_counted_what_is_in_memory_is_read_on_the_loop() {
    let pool = pool(1);
    let Some(file) = counted(CHUNK_BYTES, &pool) else {
        return;
    };
    evict(&file);
    // As a kernel before 6.5 would have it.
    let facts = Facts {
        means: Means::Tried,
        has_inodes: true,
    };
    file.learn(facts);
    let readings = || pool.usage().waited.count;
    let before = readings();
    assert_eq!(
        block_on(file.read(0, CHUNK_BYTES)).unwrap().len() as u64,
        CHUNK_BYTES
    );
    assert_eq!(readings(), before + 1);
    assert_eq!(
        file.resident(0, CHUNK_BYTES),
        0,
        "not to be sent without a look"
    );
    // For a moment after a miss nothing is tried.
    let deadline = Instant::now() + SOON;
    let piece = loop {
        let before = readings();
        let piece = block_on(file.read(100, CHUNK_BYTES)).unwrap();
        if readings() == before {
            break piece;
        }
        assert!(Instant::now() < deadline, "never read on the loop");
    };
    assert_eq!((piece.len() as u64, piece[0]), (SMALL_BYTES, byte(100)));
    let other = DiskFile::new(opened_again(file.file().unwrap()), pool.clone());
    assert_eq!(other.known(), facts);
    // Another file system may have taken its place: it is found out again.
    file.unlearn();
    assert_eq!(file.known(), Facts::UNKNOWN);
    pool.close();
}

#[test]
fn what_is_in_memory_is_told_as_a_prefix_up_to_the_chunk_s_end() {
    for means in [Means::Counted, Means::Mapped] {
        told_as_a_prefix(means);
    }
}

fn told_as_a_prefix(means: Means) {
    let len = 2 * CHUNK_BYTES + 100_000;
    let pool = pool(1);
    let Some(file) = counted(len, &pool) else {
        return;
    };
    file.learn(Facts {
        means,
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
            assert_eq!(file.resident(at, wanted), expected, "{at} {wanted}");
        }
    }
    evict(&file);
    assert_eq!(file.resident(CHUNK_BYTES, len), 0);
    for (at, read, expected) in [
        // Less than a step is not worth a call.
        (0, 4096, 0),
        (0, 70_000, 65_536),
        (CHUNK_BYTES, CHUNK_BYTES, CHUNK_BYTES),
    ] {
        assert!(!block_on(file.read(at, read)).unwrap().is_empty());
        assert_eq!(file.resident(at, CHUNK_BYTES), expected, "{at} {read}");
    }
    // Pages that were proven and went are not believed in.
    assert_eq!(file.resident(0, len), 65_536);
    evict(&file);
    assert_eq!(file.resident(CHUNK_BYTES, len), 0);
    assert_eq!(file.known().means, means, "{means:?} does not work");
    pool.close();
}

#[test]
fn where_pages_cannot_be_counted_a_mapping_tells_and_they_are_sent_and_read_on_the_loop() {
    let pool = pool(1);
    let Some(file) = counted(3 * CHUNK_BYTES, &pool) else {
        return;
    };
    file.learn(Facts {
        means: Means::Mapped,
        has_inodes: false,
    });
    let readings = pool.usage().waited.count;
    assert_eq!(
        file.resident_run(0, 3 * CHUNK_BYTES),
        3 * CHUNK_BYTES,
        "several chunks at a time"
    );
    let piece = block_on(file.read(100, CHUNK_BYTES)).unwrap();
    assert_eq!((piece.len() as u64, piece[0]), (NOW_BYTES, byte(100)));
    let mut into = Vec::new();
    assert!(file.append_resident(1000, 5000, &mut into));
    assert_eq!((into.len(), into[0]), (5000, byte(1000)));
    assert_eq!(pool.usage().waited.count, readings, "all of it on the loop");
    evict(&file);
    assert!(!file.append_resident(0, 5000, &mut into));
    assert_eq!(block_on(file.read(0, 10)).unwrap().len(), 10);
    assert_eq!(pool.usage().waited.count, readings + 1);
    pool.close();
}

/// A file of which the kernel tells nothing, as if it were somebody else's.
fn untold(len: u64, pool: &Pool) -> Arc<DiskFile> {
    let file = Arc::new(DiskFile::new(written(len), pool.clone()));
    file.learn(Facts {
        means: Means::Seen,
        has_inodes: true,
    });
    file
}

#[test]
fn what_the_kernel_does_not_tell_of_is_there_for_a_while_after_it_was_read_or_sent() {
    let pool = pool(1);
    let len = CHUNK_BYTES + 100_000;
    let file = untold(len, &pool);
    let whole = || file.resident_run(0, len);
    let read = |from: u64, to: u64| {
        let mut at = from;
        while at < to {
            at += block_on(file.read(at, to - at)).unwrap().len() as u64;
        }
    };
    assert_eq!(whole(), 0);
    // A part says nothing of the rest, of whatever steps.
    for at in (0..CHUNK_BYTES).step_by(64 * 1024) {
        assert_eq!(block_on(file.read(at + 65_535, 1)).unwrap().len(), 1);
    }
    read(0, CHUNK_BYTES - 4096);
    assert_eq!(whole(), 0);
    assert!(file.resident(1000, 200_000) > 0, "nor the rest of a part");
    read(0, CHUNK_BYTES);
    assert_eq!(file.resident(100, len), CHUNK_BYTES - 100);
    assert_eq!(whole(), CHUNK_BYTES);
    read(CHUNK_BYTES, len);
    assert_eq!(whole(), len);
    assert_eq!(file.resident(len - 10, 20), 0, "not what is behind its end");
    // What is sent all the time needs nobody who reads it.
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let (mut read_at, mut at) = (Instant::now(), 0);
    let deadline = read_at + 3 * SOON;
    while read_at.elapsed() < Duration::from_millis(1200) {
        assert!(Instant::now() < deadline, "read again and again");
        let there = usize::try_from(file.resident(at, 30_000.min(len - at))).unwrap();
        if there == 0 {
            read(0, len);
            (read_at, at) = (Instant::now(), 0);
            continue;
        }
        let sent = file.send_to(ours.as_fd(), at, there).unwrap();
        theirs.read_exact(&mut vec![0; sent]).unwrap();
        at = (at + sent as u64) % len;
    }
    let deadline = Instant::now() + SOON;
    while whole() > 0 {
        assert!(Instant::now() < deadline, "believed in for ever");
        std::thread::yield_now();
    }
    pool.close();
}

#[test]
fn what_was_read_is_not_believed_to_be_there_once_a_loop_had_to_wait() {
    let pool = pool(1);
    let file = untold(SMALL_BYTES, &pool);
    block_on(file.read(0, SMALL_BYTES)).unwrap();
    assert_eq!(file.resident(0, SMALL_BYTES), SMALL_BYTES);
    pool.reads().note_waited(pool.reads().now_us());
    assert_eq!(file.resident(0, SMALL_BYTES), 0);
    pool.close();
}

#[test]
fn a_mapping_that_was_wrong_is_asked_no_more() {
    if !std::path::Path::new("/proc/self/io").exists() {
        return eprintln!("left out: the kernel does not count what is read");
    }
    let pool = pool(1);
    let Some(file) = counted(CHUNK_BYTES, &pool) else {
        return;
    };
    let mapped = Facts {
        means: Means::Mapped,
        has_inodes: true,
    };
    file.learn(mapped);
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let mut send = |at| {
        let sent = file.send_to(ours.as_fd(), at, 4096).unwrap();
        theirs.read_exact(&mut vec![0; sent]).unwrap();
    };
    assert_eq!(file.resident(0, CHUNK_BYTES), CHUNK_BYTES);
    send(0);
    assert_eq!(file.known(), mapped);
    // As if somebody had told that it is there.
    evict(&file);
    for page in 1..20 {
        send(page * 4096);
    }
    assert_eq!(file.known().means, Means::Seen);
    assert_eq!(file.resident(0, CHUNK_BYTES), 0);
    // Others are as they were.
    let other = DiskFile::new(opened_again(file.file().unwrap()), pool.clone());
    assert_eq!(other.known(), mapped);
    pool.close();
}

#[test]
fn a_small_piece_is_taken_from_memory_whole_or_not_at_all() {
    let pool = pool(1);
    let Some(file) = counted(100_000, &pool) else {
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
fn one_reading_serves_all_who_wait_and_is_not_stopped_by_one_who_leaves() {
    let len = CHUNK_BYTES + 4096;
    let pool = pool(1);
    let Some(file) = counted(len, &pool) else {
        return;
    };
    let again = Arc::new(DiskFile::new(
        opened_again(file.file().unwrap()),
        pool.clone(),
    ));
    assert_eq!(again.known().means, Means::Counted);
    evict(&file);
    let (release, held) = sync_channel::<()>(1);
    pool.start(move || {
        held.recv_timeout(SOON).ok();
    })
    .unwrap();
    let before = pool.usage().waited.count;
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
    // The one that held the thread, and one for each chunk.
    assert!(
        pool.usage().waited.count - before <= 3,
        "{:?}",
        pool.usage()
    );
    assert_eq!(file.resident(0, len), CHUNK_BYTES);
    pool.close();
}

#[test]
fn a_file_that_becomes_shorter_ends_where_it_does() {
    let pool = pool(1);
    let file = Arc::new(DiskFile::new(written(200_000), pool.clone()));
    assert_eq!(block_on(file.read(0, 200_000)).unwrap().len(), 200_000);
    file.file().unwrap().set_len(100_000).unwrap();
    assert!(file.resident(0, 200_000) <= 100_000);
    assert_eq!(block_on(file.read(100_000, 100_000)).unwrap().len(), 0);
    assert_eq!(block_on(file.read(150_000, 10)).unwrap().len(), 0);
    assert_eq!(block_on(file.read(99_990, 100)).unwrap().len(), 10);
    pool.close();
}

#[test]
fn a_full_pool_and_a_folder_are_errors() {
    let full = Pool::new("disk", 1, 0);
    let (release, held) = sync_channel::<()>(1);
    full.start(move || {
        held.recv_timeout(SOON).ok();
    })
    .unwrap();
    let file = Arc::new(DiskFile::new(written(10), full.clone()));
    let refused = block_on(file.read(0, 10));
    assert!(
        matches!(refused, Err(ReadError::Pool(PoolError::Full { .. }))),
        "{refused:?}"
    );
    // Its entry is gone: nobody waits for what was never begun.
    assert!(!full.reads().is_busy(file.key(), 0, 1));
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

/// All the room that a pool's readings have, once the last of them is let go.
fn all_of_memory(pool: &Pool) -> reads::Claim {
    let deadline = Instant::now() + SOON;
    loop {
        let claim = pool.reads().claim(64 * 1024 * 1024, 1);
        if claim.bytes() == 64 * 1024 * 1024 {
            return claim;
        }
        assert!(Instant::now() < deadline, "something is never let go");
        std::thread::yield_now();
    }
}

#[test]
fn when_memory_is_scarce_readings_are_small_and_nothing_is_missing() {
    let len = CHUNK_BYTES;
    let pool = pool(1);
    let file = Arc::new(DiskFile::new(
        File::open("/proc/self/status").unwrap(),
        pool.clone(),
    ));
    let all_of_it = all_of_memory(&pool);
    assert!(file.is_memory_scarce());
    assert!(block_on(file.read(0, 100)).unwrap().starts_with(b"Name:"));
    drop(all_of_it);
    assert!(!file.is_memory_scarce());
    let Some(file) = counted(len, &pool) else {
        return;
    };
    evict(&file);
    let _all_of_it = all_of_memory(&pool);
    let (release, held) = sync_channel::<()>(1);
    pool.start(move || {
        held.recv_timeout(SOON).ok();
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
        // As much as both would have got, each for itself.
        assert_eq!(first.await.unwrap().len() as u64, 2 * SMALL_BYTES);
        let second = second.await.unwrap();
        assert_eq!(second[0], byte(200_000));
        assert!(second.len() as u64 <= SMALL_BYTES);
    });
    pool.close();
}

#[test]
fn a_chunk_that_the_file_s_end_cuts_is_remembered_too() {
    let pool = pool(1);
    let Some(file) = counted(CHUNK_BYTES + 100_000, &pool) else {
        return;
    };
    // Whatever part of it is asked for.
    for (at, len) in [
        (CHUNK_BYTES + 8192, 100_000 - 8192),
        (300, CHUNK_BYTES - 300),
    ] {
        assert_eq!(file.resident(at, len), len, "{at} {len}");
        assert!(file.proven.has(at / CHUNK_BYTES), "{at} {len}");
    }
    assert_eq!(file.resident(CHUNK_BYTES + 99_999, 1), 1);
    assert_eq!(file.resident(2 * CHUNK_BYTES, 1), 0, "behind the end");
    pool.close();
}

#[test]
fn what_was_whole_is_not_counted_again_until_it_is_dropped_or_something_is_read() {
    let pool = pool(2);
    let len = 3 * CHUNK_BYTES;
    let Some(file) = counted(len, &pool) else {
        return;
    };
    // The reading that found out what the file system can tell is no longer of the same millisecond.
    let (deadline, reads) = (Instant::now() + SOON, pool.reads());
    let await_that = |what: &str, is_so: &dyn Fn() -> bool| {
        while !is_so() {
            assert!(Instant::now() < deadline, "never {what}");
            std::thread::yield_now();
        }
    };
    let is_forgotten = || !file.asked.covers(1, CHUNK_BYTES, reads.now_us());
    // Whether it was counted shows by what is proven thereby.
    let is_counted = || {
        await_that("asked again", &is_forgotten);
        file.proven.forget(1);
        assert_eq!(file.resident(CHUNK_BYTES, len), CHUNK_BYTES);
        file.proven.has(1)
    };
    await_that("quiet", &|| reads.quiet_us(reads.now_us()) > 5000);
    await_that("known", &|| !is_counted());
    // A reading that is under way, of whatever file, and one that has been.
    let (_flight, landing) = reads.begin(FileKey::Handle(1), 0, 1);
    assert!(is_counted(), "something is being read");
    drop(landing);
    assert!(is_counted(), "something was read since");
    await_that("known", &|| !is_counted());
    // A sending that takes as long as a disk does.
    file.watched(|| {
        let began_us = reads.now_us();
        await_that("over", &|| reads.now_us() - began_us >= waits::WAITED_US);
    });
    assert!(is_counted(), "something was waited for");
    await_that("known", &|| !is_counted());
    // As above: a socket that blocks keeps it for so long.
    let (ours, theirs) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        let began_us = reads.now_us();
        scope.spawn(move || {
            await_that("over", &|| {
                reads.now_us() - began_us >= 2 * waits::WAITED_US
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
fn two_pages_speak_for_the_chunks_between_them_that_were_whole() {
    let pool = pool(1);
    let Some(file) = counted(4 * CHUNK_BYTES, &pool) else {
        return;
    };
    let (deadline, reads) = (Instant::now() + SOON, pool.reads());
    let answers = || {
        let now_us = reads.now_us();
        [0, 1, 2, 3].map(|chunk| file.asked.covers(chunk, CHUNK_BYTES, now_us))
    };
    // The reading that found out what the file system can tell is no longer of the same millisecond.
    while reads.quiet_us(reads.now_us()) < 5000 {
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
        // The second is not known to be whole before it was asked for.
        let known = [0, 2, 3].map(|chunk| file.resident(chunk * CHUNK_BYTES, 1));
        assert_eq!(known, [1, 1, 1]);
        await_old();
        assert_eq!(file.resident(0, 1), 1);
        let before_a_gap = answers();
        await_old();
        assert_eq!(file.resident(2 * CHUNK_BYTES, 1), 1);
        let behind = answers();
        // Unless it took so long that what was whole was counted anew, chunk by chunk, or is old again.
        if before_a_gap == [true, false, false, false] && behind == [false, false, true, true] {
            break;
        }
        assert!(Instant::now() < deadline, "never told");
    }
    // Whoever had to wait ends what was found out before.
    reads.note_waited(reads.now_us());
    assert!(!file.is_known(2 * CHUNK_BYTES, 1));
    pool.close();
}

#[test]
fn a_file_is_closed_in_the_pool_unless_that_is_known_to_be_quick() {
    let pool = pool(1);
    let jobs = || pool.usage().waited.count + pool.usage().queued as u64;
    let await_closed = |count| {
        let deadline = Instant::now() + SOON;
        while pool.usage().worked.count < count {
            assert!(Instant::now() < deadline, "not closed in time");
            std::thread::yield_now();
        }
    };
    // Nothing is known of its file system.
    drop(DiskFile::new(written(10), pool.clone()));
    await_closed(1);
    let Some(file) = counted(10, &pool) else {
        return;
    };
    await_closed(2);
    let program = File::open(std::env::current_exe().unwrap()).unwrap();
    let named = DiskFile::new(program, pool.clone());
    if named.known().means == Means::Counted {
        drop(named);
        assert_eq!(jobs(), 2);
    }
    // Gone with its last descriptor.
    drop(file);
    await_closed(3);
    pool.close();
}

#[test]
fn that_a_file_is_the_same_is_remembered_for_a_millisecond_and_no_longer() {
    let file = file::memfd_with_content("same", b"content").unwrap();
    let file = DiskFile::new(File::from(file), Pool::new("disk", 1, 1));
    assert!(!file.is_still(|_| false));
    let began = clock::now();
    let mut is_asked = false;
    assert!(file.is_still(|_| {
        is_asked = true;
        true
    }));
    assert!(is_asked, "that it is not is not remembered");
    let seen = clock::now();
    // The clock of the file counts whole microseconds.
    let (span, tick) = (Duration::from_micros(SAME_US), Duration::from_micros(1));
    loop {
        let (before, mut is_asked) = (clock::now(), false);
        assert!(file.is_still(|_| {
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
