//! Cached entries, their freshness and limits.

use super::*;
use crate::file_entry::ContentSource;
use crate::file_entry::tests::file_entry;

fn memory(bytes: usize, entries: usize) -> FileCache {
    FileCache::new(FileCacheLimits {
        loops: 1,
        max_bytes: bytes,
        max_entries: entries,
        max_descriptors: 10,
    })
}

fn keep(memory: &FileCache, path: &str, now: Instant) {
    memory.insert(path.as_bytes().into(), CacheEntry::Absent, now);
}

fn state(memory: &FileCache, path: &str, now: Instant) -> &'static str {
    match memory.look_up(path.as_bytes(), now) {
        FileCacheLookup::Fresh(_) => "fresh",
        FileCacheLookup::Stale(_) => "stale",
        FileCacheLookup::Expired(_) => "old",
        FileCacheLookup::Miss => "unknown",
    }
}

#[test]
fn one_request_checks_again_after_a_second() {
    let memory = memory(10_000, 10);
    let start = Instant::now();
    let after = |millis| start + Duration::from_millis(millis);
    keep(&memory, "/a", start);
    for (millis, expected) in [
        (0, "fresh"),
        (999, "fresh"),
        (1000, "stale"),
        (1001, "fresh"),
        (1099, "fresh"),
        (1100, "stale"),
        (1101, "fresh"),
    ] {
        assert_eq!(state(&memory, "/a", after(millis)), expected, "{millis} ms");
    }
    assert_eq!(state(&memory, "/a", after(10_000)), "stale");
    assert_eq!(state(&memory, "/a", after(10_001)), "fresh");
    assert_eq!(state(&memory, "/a", after(10_101)), "old");
    assert_eq!(state(&memory, "/a", after(10_102)), "old", "for everybody");
    keep(&memory, "/a", after(1150));
    assert_eq!(state(&memory, "/a", after(2149)), "fresh");
    assert_eq!(state(&memory, "/b", start), "unknown");
}

#[test]
fn removes_an_entry() {
    let memory = memory(10_000, 10);
    let now = Instant::now();
    for path in ["/a", "/b", "/c"] {
        keep(&memory, path, now);
    }
    memory.remove(b"/a");
    memory.remove(b"/never-there");
    assert_eq!(state(&memory, "/a", now), "unknown");
    assert_eq!(state(&memory, "/b", now), "fresh");
    assert_eq!(state(&memory, "/c", now), "fresh");
}

#[test]
fn stays_within_its_bounds_whatever_is_kept() {
    let now = Instant::now();
    for (what, bytes, entries) in [
        ("few entries", 1 << 20, 3),
        ("few bytes", 1000, 100),
        ("one entry", 1 << 20, 1),
        ("no entry", 1 << 20, 0),
        ("no bytes", 0, 100),
    ] {
        let memory = memory(bytes, entries);
        for round in 0..500 {
            keep(&memory, &format!("/{}", round % 37), now);
            if round % 3 == 0 {
                state(&memory, &format!("/{}", round % 11), now);
            }
            if round % 7 == 0 {
                memory.remove(format!("/{}", round % 5).as_bytes());
            }
            memory.shards.with(|shard| {
                assert!(
                    shard.bytes <= bytes && shard.slots.len() <= entries,
                    "{what}"
                );
                assert_eq!(shard.index_by_path.len(), shard.slots.len(), "{what}");
                let costs = shard.slots.iter().map(|s| s.cost).sum::<usize>();
                assert_eq!(shard.bytes, costs, "{what}");
                for (at, slot) in shard.slots.iter().enumerate() {
                    assert_eq!(shard.index_by_path.get(&slot.path), Some(&at), "{what}");
                }
            });
        }
    }
}

#[test]
fn a_scan_does_not_push_out_what_is_used() {
    let memory = memory(1 << 20, 10);
    let now = Instant::now();
    keep(&memory, "/used", now);
    for n in 0..1000 {
        assert_eq!(state(&memory, "/used", now), "fresh", "after {n}");
        keep(&memory, &format!("/scan/{n}"), now);
    }
}

#[test]
fn loops_keep_apart_and_share_the_bounds() {
    let memory = FileCache::new(FileCacheLimits {
        loops: 2,
        max_bytes: 10_000,
        max_entries: 10,
        max_descriptors: 10,
    });
    let now = Instant::now();
    keep(&memory, "/a", now);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            assert_eq!(state(&memory, "/a", now), "unknown");
            for n in 0..20 {
                keep(&memory, &format!("/{n}"), now);
            }
            memory.shards.with(|shard| shard.slots.len())
        });
        assert_eq!(other.join().unwrap(), 5);
    });
    assert_eq!(state(&memory, "/a", now), "fresh");
}

/// A large, open file.
fn large(number: usize) -> CacheEntry {
    CacheEntry::File(open_file(number))
}

fn open_file(number: usize) -> Arc<FileEntry> {
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let pool = penstock_runtime::blocking::Pool::new("disk", 1, 1);
    let source = ContentSource::Disk(Arc::new(penstock_runtime::DiskFile::new(file, pool)));
    let mut found = file_entry("a");
    found.original.source = source;
    found.original.stamp = found.original.stamp.with_candidate(number);
    Arc::new(found)
}

fn check_open(memory: &FileCache, most: usize) {
    memory.shards.with(|shard| {
        let open = shard
            .slots
            .iter()
            .map(|slot| slot.open_descriptors)
            .sum::<usize>();
        assert_eq!(shard.open_descriptors, open);
        assert!(open <= most, "{open} are open");
        assert!(
            shard.open_paths.len() <= 2 * most + 2,
            "{}",
            shard.open_paths.len()
        );
    });
}

#[test]
fn open_files_have_a_bound_and_those_in_use_stay() {
    let memory = memory(10 << 20, 1000);
    let now = Instant::now();
    for number in 0..200 {
        let path = format!("/{}", number % 50);
        let file = open_file(number);
        memory.insert(
            path.as_bytes().into(),
            CacheEntry::File(Arc::clone(&file)),
            now,
        );
        memory.insert(b"/used".as_slice().into(), large(0), now);
        assert_eq!(state(&memory, "/used", now), "fresh");
        memory.replace_if_same(path.as_bytes(), &file, open_file(number));
        keep(&memory, "/nothing", now);
        assert_eq!(state(&memory, "/used", now), "fresh", "after {number}");
        check_open(&memory, 10);
    }
    let none = FileCache::new(FileCacheLimits {
        loops: 1,
        max_bytes: 10 << 20,
        max_entries: 10,
        max_descriptors: 0,
    });
    none.insert(b"/a".as_slice().into(), large(0), now);
    assert_eq!(state(&none, "/a", now), "unknown");
}

#[test]
fn an_idle_open_file_is_closed() {
    let memory = memory(10 << 20, 1000);
    let start = Instant::now();
    for path in ["/a", "/b"] {
        memory.insert(path.as_bytes().into(), large(0), start);
    }
    let late = start + MAX_IDLE + Duration::from_secs(1);
    memory.insert(b"/b".as_slice().into(), large(0), late);
    keep(&memory, "/c", late);
    keep(&memory, "/d", late);
    assert_eq!(state(&memory, "/a", late), "unknown");
    assert_eq!(state(&memory, "/b", late), "fresh");
    check_open(&memory, 1);
}

#[test]
fn a_replaced_entry_is_no_fresher_than_before() {
    let memory = memory(1 << 20, 10);
    let start = Instant::now();
    let (first, second, third) = (open_file(1), open_file(2), open_file(3));
    memory.insert(
        b"/a".as_slice().into(),
        CacheEntry::File(Arc::clone(&first)),
        start,
    );
    memory.replace_if_same(b"/a", &first, Arc::clone(&second));
    // An entry that was extended or removed meanwhile is left alone.
    memory.replace_if_same(b"/a", &first, third);
    memory.replace_if_same(b"/never-there", &first, Arc::clone(&second));
    let after = |millis| start + Duration::from_millis(millis);
    let FileCacheLookup::Fresh(CacheEntry::File(found)) = memory.look_up(b"/a", after(999)) else {
        panic!("not fresh")
    };
    assert!(Arc::ptr_eq(&found, &second));
    assert_eq!(state(&memory, "/a", after(1000)), "stale");
    assert_eq!(state(&memory, "/never-there", start), "unknown");
}

#[test]
fn only_one_request_checks_at_a_time() {
    let memory = memory(1 << 20, 10);
    let start = Instant::now();
    let after = |millis| start + Duration::from_millis(millis);
    keep(&memory, "/a", start);
    assert_eq!(state(&memory, "/a", after(1000)), "stale");
    memory.suspend_checks(b"/a");
    memory.suspend_checks(b"/never-there");
    for millis in [1001, 5000, 9999] {
        assert_eq!(state(&memory, "/a", after(millis)), "fresh", "{millis} ms");
    }
    assert_eq!(state(&memory, "/a", after(10_001)), "old");
    memory.resume_checks(b"/a", after(2000));
    assert_eq!(state(&memory, "/a", after(2099)), "fresh");
    assert_eq!(state(&memory, "/a", after(2100)), "stale");
}

#[test]
fn however_many_loops_there_are_each_has_some_room() {
    for loops in [0, 1, 8, 64, 1000] {
        let bounds = FileCacheLimits::for_root(loops);
        let memory = FileCache::new(bounds);
        assert!(memory.limits.max_bytes >= MIN_LOOP_BYTES, "{loops}");
        assert!(memory.limits.max_entries >= MIN_LOOP_ENTRIES, "{loops}");
        assert!(
            memory.limits.max_descriptors >= MIN_LOOP_DESCRIPTORS,
            "{loops}"
        );
    }
    let eight = FileCacheLimits::for_root(8);
    assert_eq!(
        (eight.max_bytes, eight.max_entries, eight.max_descriptors),
        (MAX_ROOT_BYTES, MAX_ROOT_ENTRIES, MAX_ROOT_DESCRIPTORS)
    );
}

#[test]
fn what_does_not_fit_when_refined_stays_as_it_was() {
    let memory = memory(5000, 10);
    let now = Instant::now();
    let before = open_file(1);
    memory.insert(
        b"/a".as_slice().into(),
        CacheEntry::File(Arc::clone(&before)),
        now,
    );
    let large = crate::file_entry::tests::compressible_entry(vec![0; 10_000].into());
    memory.replace_if_same(b"/a", &before, Arc::new(large));
    let FileCacheLookup::Fresh(CacheEntry::File(found)) = memory.look_up(b"/a", now) else {
        panic!("forgotten")
    };
    assert!(Arc::ptr_eq(&found, &before));
}
