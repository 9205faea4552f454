//! The page cache on the file system of the temporary directory.

#![expect(clippy::print_stderr, reason = "shows which tests were skipped")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::*;
use crate::file;

const BYTES: u64 = 300_000;

fn written_file() -> File {
    let mut file = file::unnamed_temp_file(&std::env::temp_dir()).unwrap();
    let content: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
    file.write_all(&content).unwrap();
    file.sync_all().unwrap();
    file
}

/// The same, if the temporary directory is on a disk.
fn file_on_disk() -> Option<File> {
    let file = written_file();
    if file_system_kind(&file).unwrap() != FileSystemKind::Disk {
        eprintln!("skipped: no local disk below the temporary directory");
        return None;
    }
    Some(file)
}

#[test]
fn cached_pages_are_counted_or_unsupported() {
    let Some(file) = file_on_disk() else {
        return;
    };
    let all = match cached_pages(&file, 0, BYTES) {
        Err(error) => return eprintln!("skipped: {error}"),
        Ok(count) => count,
    };
    assert_eq!(all, BYTES.div_ceil(page_bytes()));
    assert_eq!(cached_pages(&file, page_bytes() + 1, 1).unwrap(), 1);
    advise_random_access(&file).unwrap();
    drop_cached_pages(&file).unwrap();
    assert_eq!(cached_pages(&file, 0, BYTES).unwrap(), 0);
    let before = blocks_read();
    assert_eq!(read_whole_at(&file, page_bytes(), 1).unwrap().len(), 1);
    let read = blocks_read();
    assert_eq!(read_whole_at(&file, page_bytes(), 1).unwrap().len(), 1);
    assert_eq!(blocks_read(), read, "what is in memory is not read again");
    match Path::new("/proc/self/io").exists() {
        true => assert!(read > before, "read without a disk"),
        false => eprintln!("left out: the kernel does not count what is read"),
    }
    assert_eq!(cached_pages(&file, 0, BYTES).unwrap(), 1);
}

#[test]
fn a_mapping_shows_residency_and_survives_truncation() {
    let Some(file) = file_on_disk() else {
        return;
    };
    let page = page_bytes();
    let mapping = ResidencyMapping::new(&file, BYTES).unwrap();
    let cached = |at, len| mapping.cached_prefix(at, len).unwrap();
    for (at, len, expected) in [
        (0, BYTES, BYTES),
        (1, 1, 1),
        (page - 1, 2, 2),
        (100, u64::MAX, BYTES - 100),
        (BYTES - 1, 10, 1),
        (BYTES, 10, 0),
        (u64::MAX, 10, 0),
        (0, 0, 0),
    ] {
        assert_eq!(cached(at, len), expected, "{at} {len}");
    }
    advise_random_access(&file).unwrap();
    drop_cached_pages(&file).unwrap();
    assert_eq!(cached(0, BYTES), 0);
    assert_eq!(read_whole_at(&file, page, 1).unwrap().len(), 1);
    assert_eq!((cached(0, BYTES), cached(page, BYTES)), (0, page));
    assert_eq!(cached(2 * page - 1, BYTES), 1);
    // Shorter, longer, and empty: the query covers the mapped length.
    file.set_len(0).unwrap();
    assert_eq!(cached(page, 1), 0);
    file.set_len(2 * BYTES).unwrap();
    assert!(cached(0, 2 * BYTES) <= BYTES);
    drop(file);
    assert!(mapping.cached_prefix(0, BYTES).is_ok());
}

#[test]
fn no_mapping_where_mincore_is_unreliable() {
    let file = written_file();
    assert!(ResidencyMapping::new(&file, u64::MAX).is_err());
    let pipe = File::from(OwnedFd::from(io::pipe().unwrap().0));
    assert!(ResidencyMapping::new(&pipe, 4096).is_err());
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can switch users");
    }
    let as_another = std::thread::spawn(move || {
        // SAFETY: changes this thread's file system user, and nothing else; the second call returns
        // the first's effect.
        #[expect(unsafe_code, reason = "rustix has no setfsuid")]
        let is_another = unsafe {
            libc::setfsuid(65534);
            libc::setfsuid(65534) == 65534
        };
        is_another.then(|| ResidencyMapping::new(&file, BYTES).map(drop))
    });
    match as_another.join().unwrap() {
        None => eprintln!("skipped: this namespace has no other user"),
        Some(refused) => {
            assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        }
    }
}

#[test]
fn nothing_is_mapped_where_addresses_are_bounded() {
    const NAME: &str = "page_cache::tests::nothing_is_mapped_where_addresses_are_bounded";
    const BOUNDED: &str = "PENSTOCK_TEST_BOUNDED";
    if std::env::var_os(BOUNDED).is_some() {
        let refused = ResidencyMapping::new(&written_file(), BYTES).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::Unsupported);
        return;
    }
    // The limit affects the whole process, in which other tests run.
    let output = std::process::Command::new("sh")
        .args(["-c", "ulimit -v 8388608 && exec \"$0\" --exact \"$1\""])
        .arg(std::env::current_exe().unwrap())
        .arg(NAME)
        .env(BOUNDED, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("1 passed"), "{said}");
}

#[test]
fn send_file_sends_a_range_and_stops_at_the_end() {
    let file = written_file();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let sent = send_file(ours.as_fd(), &file, 1000, 3000).unwrap();
    let mut got = vec![0; sent];
    theirs.read_exact(&mut got).unwrap();
    assert_eq!((got[0], sent), ((1000 % 251) as u8, 3000));
    assert_eq!(got, read_whole_at(&file, 1000, 3000).unwrap());
    assert_eq!(send_file(ours.as_fd(), &file, BYTES, 10).unwrap(), 0);
    assert_eq!(read_whole_at(&file, BYTES - 5, 10).unwrap().len(), 5);
    assert_eq!(read_whole_at(&file, BYTES + 5, 10).unwrap().len(), 0);
}

#[test]
fn send_file_falls_back_to_copying() {
    let file = written_file();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let sent = copy_to(ours.as_fd(), &file, 1000, 3000).unwrap();
    let mut got = vec![0; sent];
    theirs.read_exact(&mut got).unwrap();
    assert_eq!(got, read_whole_at(&file, 1000, 3000).unwrap());
    // A file that is shorter, and its end.
    assert_eq!(copy_to(ours.as_fd(), &file, BYTES - 5, 10).unwrap(), 5);
    assert_eq!(copy_to(ours.as_fd(), &file, BYTES, 10).unwrap(), 0);
    assert_eq!(copy_to(ours.as_fd(), &file, BYTES + 5, 10).unwrap(), 0);
    theirs.read_exact(&mut [0; 5]).unwrap();
    // A socket accepts bytes until it is full, then nothing.
    ours.set_nonblocking(true).unwrap();
    let mut taken = 0;
    let refused = loop {
        match copy_to(ours.as_fd(), &file, taken % BYTES, 5000) {
            Ok(sent) => taken += sent as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
    drop(ours);
    let mut got = Vec::new();
    theirs.read_to_end(&mut got).unwrap();
    assert_eq!(got.len() as u64, taken);
    let content = (0_u64..).map(|at| (at % BYTES % 251) as u8);
    assert!(content.take(got.len()).eq(got));
}

#[test]
fn file_identity_is_equal_for_every_descriptor() {
    let file = written_file();
    let again = file.try_clone().unwrap();
    assert_eq!(
        file_identity(&file).unwrap(),
        file_identity(&again).unwrap()
    );
    let other = written_file();
    let (one, two) = (
        file_identity(&file).unwrap(),
        file_identity(&other).unwrap(),
    );
    assert_eq!(one.mount, two.mount);
    assert_ne!(one.inode, two.inode);
    file.set_len(BYTES + 1).unwrap();
    let written = file_identity(&file).unwrap();
    assert_eq!((written.inode, written.bytes), (one.inode, BYTES + 1));
    assert_ne!(written, one);
    assert_eq!(regular_file_size(&file).unwrap(), Some(BYTES + 1));
    assert_eq!(regular_file_size(File::open("/").unwrap()).unwrap(), None);
    assert!(is_unlinked(&file).unwrap());
    assert!(!is_unlinked(std::env::current_dir().and_then(File::open).unwrap()).unwrap());
}

#[test]
fn memory_file_systems_are_recognised() {
    let memory = File::from(file::memfd_with_content("test", b"x").unwrap());
    assert_eq!(file_system_kind(&memory).unwrap(), FileSystemKind::Memory);
    let process = File::open("/proc/self/stat").unwrap();
    assert_eq!(file_system_kind(&process).unwrap(), FileSystemKind::Other);
}

/// Number of pages of a mapped file on the kernel's active list; `None` where it does not tell.
fn active_pages(address: usize, pages: usize) -> Option<usize> {
    /// In `/proc/kpageflags`.
    const ACTIVE: u64 = 1 << 6;
    let frames = File::open("/proc/self/pagemap").ok()?;
    let flags = File::open("/proc/kpageflags").ok()?;
    let word = |file: &File, index: u64| {
        let mut word = [0; 8];
        file::read_at(file, &mut word, index * 8).ok()?;
        Some(u64::from_ne_bytes(word))
    };
    let first = address as u64 / page_bytes();
    let mut active = 0;
    for page in first..first + pages as u64 {
        // Only root sees physical page numbers.
        let frame = Some(word(&frames, page)? & ((1 << 55) - 1)).filter(|&frame| frame != 0)?;
        active += usize::from(word(&flags, frame)? & ACTIVE != 0);
    }
    Some(active)
}

#[test]
fn marked_pages_become_active() {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

    let Some(file) = file_on_disk() else {
        return;
    };
    let generations = std::fs::read_to_string("/sys/kernel/mm/lru_gen/enabled");
    if generations.is_ok_and(|enabled| enabled.trim() != "0x0000") {
        return eprintln!("left out: the kernel has generations of pages");
    }
    let pages = usize::try_from(BYTES.div_ceil(page_bytes())).unwrap();
    let len = pages * usize::try_from(page_bytes()).unwrap();
    // Active pages are found through a mapping, after they were used.
    let active = || {
        let (access, flags) = (ProtFlags::READ, MapFlags::SHARED);
        // SAFETY: a new mapping of a file that does not change, all of whose pages are checked
        // before it is unmapped.
        #[expect(unsafe_code, reason = "mapping a file")]
        unsafe {
            let at = mmap(std::ptr::null_mut(), len, access, flags, &file, 0).unwrap();
            for page in 0..pages {
                // Puts it into the page table, which by itself does not use it.
                let byte = at.cast::<u8>().add(page * len / pages);
                std::ptr::read_volatile(byte);
            }
            let active = active_pages(at as usize, pages);
            munmap(at, len).unwrap();
            active
        }
    };
    advise_random_access(&file).unwrap();
    drop_cached_pages(&file).unwrap();
    read_whole_at(&file, 0, len).unwrap();
    let Some(before) = active() else {
        return eprintln!("skipped: only root sees page flags");
    };
    drop_cached_pages(&file).unwrap();
    read_whole_at(&file, 0, len).unwrap();
    mark_pages_used(&file, 0, BYTES).unwrap();
    let after = active().unwrap();
    // The kernel moves pages in batches, a few of which may still be on another core.
    assert!(before <= pages / 8, "{before} of {pages}");
    assert!(after >= pages - pages / 8, "{after} of {pages}");
    // Nothing is beyond the end, and missing pages are read.
    mark_pages_used(&file, BYTES, 10).unwrap();
    drop_cached_pages(&file).unwrap();
    mark_pages_used(&file, 0, 1).unwrap();
    assert_eq!(cached_pages(&file, 0, BYTES).unwrap(), 1);
}

#[test]
fn dir_space_is_read() {
    let (_, bytes) = dir_file_system(&std::env::temp_dir()).unwrap();
    assert!(bytes > 1 << 20);
    let (system, _) = dir_file_system(Path::new("/proc")).unwrap();
    assert_eq!(system, FileSystemKind::Other);
    assert!(dir_file_system(Path::new("/nowhere/at/all")).is_err());
}
