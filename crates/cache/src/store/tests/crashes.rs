//! Files truncated, corrupted, lost or added between two runs; kills at any moment.

use penstock_runtime::loops;
use std::os::unix::fs::FileExt;

use super::*;

fn object_files(path: &Path) -> Vec<PathBuf> {
    let parts = std::fs::read_dir(path.join("objects")).unwrap();
    let parts = parts.map(|part| part.unwrap().path());
    let mut files: Vec<_> = parts
        .flat_map(|part| std::fs::read_dir(part).unwrap())
        .map(|file| file.unwrap().path())
        .collect();
    files.sort();
    files
}

#[test]
fn nothing_is_served_of_files_that_are_not_as_they_were_written() {
    loops::block_on(async {
        let temp = TempFolder::new("garbled");
        let mut of_files = test_config(Some(temp.path()));
        of_files.max_memory = 0;
        let name = |number: usize| format!("http://h/{number}");
        let size = |number: usize| 1 + number * 7919 % 150_000;
        for seed in 0..8_usize {
            let store = start_store(&of_files).await;
            for number in 0..40 {
                store_object(
                    &store,
                    &name(number),
                    &unique_body(&name(number), size(number)),
                )
                .await;
            }
            wait_until(&store, |_| file_count_and_usage(temp.path()).0 == 40).await;
            // Every second time while the store that wrote them is running.
            let live = (seed % 2 == 1).then_some(store);
            for (index, path) in object_files(temp.path()).into_iter().enumerate() {
                let length = std::fs::metadata(&path).unwrap().len();
                let at = (seed as u64 * 1_000_003 + index as u64 * 7_777) % length;
                let file = std::fs::File::options().write(true).open(&path).unwrap();
                match (index + seed) % 7 {
                    0 => file.set_len(at).unwrap(),
                    1 => file.write_all_at(b"\x5a\xa5garbled", at).unwrap(),
                    2 => file
                        .write_all_at(&vec![0; usize::try_from(length - at).unwrap()], at)
                        .unwrap(),
                    3 => std::fs::remove_file(&path).unwrap(),
                    4 => file.set_len(length + 100).unwrap(),
                    _ => {}
                }
                // Later than the write, also on file systems with coarse time stamps.
                let later = std::time::SystemTime::now() + Duration::from_secs(2);
                file.set_modified(later).unwrap();
            }
            std::fs::write(temp.path().join("tmp/0000000000000007"), "torn").unwrap();
            std::fs::write(temp.path().join("objects/readme"), "not ours").unwrap();
            let store = match live {
                Some(store) => store,
                None => start_store(&of_files).await,
            };
            let mut found = 0;
            for number in 0..40 {
                for _ in 0..2 {
                    if let Some(body) = read_stored_body(&store, &name(number)).await {
                        assert!(
                            body == unique_body(&name(number), size(number)),
                            "seed {seed}: {number}"
                        );
                        found += 1;
                    }
                }
            }
            assert!((10..=70).contains(&found), "seed {seed}: {found}");
            assert!(temp.path().join("objects/readme").exists());
            drop(store);
            std::fs::remove_file(temp.path().join("objects/readme")).unwrap();
            std::fs::remove_dir_all(temp.path()).unwrap();
        }
    })
    .unwrap();
}

#[test]
fn a_file_that_changes_while_it_is_known_is_a_miss() {
    loops::block_on(async {
        let temp = TempFolder::new("changed");
        let mut of_files = test_config(Some(temp.path()));
        of_files.max_memory = 0;
        let store = start_store(&of_files).await;
        store_object(&store, "http://h/", &unique_body("x", 100_000)).await;
        assert!(read_stored_body(&store, "http://h/").await.is_some());
        let path = object_files(temp.path()).remove(0);
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        // Only its times change: it is verified and served.
        file.set_modified(std::time::SystemTime::UNIX_EPOCH)
            .unwrap();
        let reads = store.snapshot().read_time.count;
        assert!(read_stored_body(&store, "http://h/").await.is_some());
        assert!(store.snapshot().read_time.count > reads);
        let reads = store.snapshot().read_time.count;
        assert!(read_stored_body(&store, "http://h/").await.is_some());
        assert_eq!(
            store.snapshot().read_time.count,
            reads,
            "from the loop again"
        );
        file.write_all_at(b"garbled", 50_000).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH)
            .unwrap();
        assert!(read_stored_body(&store, "http://h/").await.is_none());
        assert!(find_hit(&store, "http://h/").is_none());
        wait_until(&store, |_| file_count_and_usage(temp.path()).0 == 0).await;
        assert_eq!(store.snapshot().counters.errors, 1);
        assert!(store.is_working());
    })
    .unwrap();
}

#[test]
fn two_stores_never_share_a_dir() {
    loops::block_on(async {
    let temp = TempFolder::new("shared");
    let first = start_store(&test_config(Some(temp.path()))).await;
    store_object(&first, "http://h/", b"body").await;
    let second = Store::start(&test_config(Some(temp.path())), Pool::new("second", 1, 100));
    let is_refused = |usage: &StoreSnapshot| matches!(&usage.state, StoreState::OutOfService { reason } if reason.contains("another process"));
    wait_until(&second, is_refused).await;
    assert!(second.begin_object(&key("x"), meta_of("x"), None).is_none());
    let shelf = StoreSet::new(vec![Arc::clone(&second)]);
    assert!(shelf.store_for(&key("http://h/")).is_none());
    first.stop();
    assert!(find_hit(&first, "http://h/").is_none());
    wait_until(&second, |usage| usage.state == StoreState::Working).await;
    assert_eq!(read_stored_body(&second, "http://h/").await.unwrap(), b"body");
    assert!(shelf.store_for(&key("http://h/")).is_some() && shelf.stores().len() == 1);
}).unwrap();
}

#[test]
fn what_was_purged_does_not_come_back_with_its_files() {
    loops::block_on(async {
        let temp = TempFolder::new("purged");
        let store = start_store(&test_config(Some(temp.path()))).await;
        for number in 0..20 {
            let mut meta = meta_of(&format!("http://h/{number}"));
            meta.tags = vec![format!("t{}", number % 2)];
            store_with_meta(&store, meta, b"body").await;
        }
        let copies: Vec<_> = object_files(temp.path())
            .into_iter()
            .map(|path| (std::fs::read(&path).unwrap(), path))
            .collect();
        let journal = temp.path().join("purges");
        // The state after a kill between the journal write and the last removal.
        let opened = store.disk.as_ref().unwrap().open_dir().unwrap();
        crate::purge(&[Arc::clone(&store)], &crate::PurgeTarget::Tag("t1".into()));
        wait_until(&store, |_| {
            object_files(temp.path()).len() == 10 && !journal.exists()
        })
        .await;
        let number = store.disk.as_ref().unwrap().new_file_number();
        let purges = [(number, PurgeRule::Tag("t1".into()))];
        let bytes = maintenance::purge_journal::encode(&purges);
        opened
            .dir
            .write_root_file("purges", &bytes, number)
            .unwrap();
        drop(opened);
        drop(store);
        for (bytes, path) in copies {
            std::fs::write(path, bytes).unwrap();
        }
        let store = start_store(&test_config(Some(temp.path()))).await;
        for number in 0..20 {
            let is_there = find_hit(&store, &format!("http://h/{number}")).is_some();
            assert_eq!(is_there, number % 2 == 0, "{number}");
        }
        // Objects stored later are not purged.
        let mut meta = meta_of("http://h/1");
        meta.tags = vec!["t1".to_owned()];
        store_with_meta(&store, meta, b"new").await;
        wait_until(&store, |_| {
            object_files(temp.path()).len() == 11 && !journal.exists()
        })
        .await;
        drop(store);
        let store = start_store(&test_config(Some(temp.path()))).await;
        assert_eq!(
            read_stored_body(&store, "http://h/1").await.unwrap(),
            b"new"
        );
    })
    .unwrap();
}

#[test]
fn of_two_files_of_one_object_the_newer_counts() {
    loops::block_on(async {
        let temp = TempFolder::new("twice");
        let store = start_store(&test_config(Some(temp.path()))).await;
        store_object(&store, "http://h/", b"old").await;
        let old = object_files(temp.path()).remove(0);
        let kept = std::fs::read(&old).unwrap();
        store_object(&store, "http://h/", b"newer").await;
        wait_until(&store, |_| !old.exists()).await;
        drop(store);
        // The state after a kill before the older file was removed.
        std::fs::write(&old, kept).unwrap();
        let store = start_store(&test_config(Some(temp.path()))).await;
        assert_eq!(
            read_stored_body(&store, "http://h/").await.unwrap(),
            b"newer"
        );
        wait_until(&store, |_| !old.exists()).await;
        assert_eq!(store.snapshot().objects, 1);
    })
    .unwrap();
}
