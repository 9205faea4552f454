//! Storing, finding, evicting, purging and freshening on a working disk.

use super::*;
use penstock_runtime::loops;

#[test]
fn what_is_stored_is_found_in_memory_or_on_disk_and_after_a_restart() {
    loops::block_on(async {
        let temp = TempFolder::new("whole");
        let sizes = [0, 1, 4096, 60_000, 70_000, 1_500_000, 4 << 20];
        let store = start_store(&test_config(Some(temp.path()))).await;
        for size in sizes {
            let text = format!("http://host/{size}");
            assert!(store_object(&store, &text, &unique_body(&text, size)).await);
            let hit = find_hit(&store, &text).unwrap();
            assert_eq!(hit.meta.length, size as u64);
            let is_in_memory = matches!(hit.body, HitBody::Memory(_));
            assert_eq!(is_in_memory, size <= 16_384, "{size}");
            assert_eq!(
                read_stored_body(&store, &text).await.unwrap(),
                unique_body(&text, size)
            );
        }
        assert!(
            read_stored_body(&store, "http://host/other")
                .await
                .is_none()
        );
        store.count_lookup(true);
        store.count_lookup(false);
        let usage = store.snapshot();
        assert_eq!(
            (usage.objects, usage.counters.stores, usage.counters.errors),
            (7, 7, 0)
        );
        assert!(
            usage.counters.hits == 1 && usage.counters.misses == 1 && usage.write_time.count >= 7,
            "{usage:?}"
        );
        drop(store);
        let store = start_store(&test_config(Some(temp.path()))).await;
        assert_eq!(store.snapshot().objects, 7);
        for size in sizes {
            let text = format!("http://host/{size}");
            assert_eq!(
                read_stored_body(&store, &text).await.unwrap(),
                unique_body(&text, size)
            );
        }
        // A small object in repeated use is read into memory.
        for _ in 0..5 {
            read_stored_body(&store, "http://host/4096").await.unwrap();
        }
        wait_until(&store, |usage| usage.memory_objects > 0).await;
        let hit = find_hit(&store, "http://host/4096").unwrap();
        assert!(matches!(hit.body, HitBody::Memory(_)));
        assert_eq!(store.snapshot().counters.errors, 0);
    })
    .unwrap();
}

#[test]
fn memory_alone_holds_what_fits() {
    loops::block_on(async {
        let mut config = test_config(None);
        config.max_size = 1 << 20;
        config.max_object_size = 512 << 10;
        let store = start_store(&config).await;
        for number in 0..50 {
            let text = format!("http://host/{number}");
            assert!(store_object(&store, &text, &unique_body(&text, 100_000)).await);
            assert!(store.snapshot().bytes <= 1 << 20);
        }
        assert!(store.snapshot().objects >= 8 && store.snapshot().counters.evictions >= 40);
        assert!(!store_object(&store, "http://host/large", &unique_body("x", 600 << 10)).await);
        let mut found = 0;
        for number in 0..50 {
            let text = format!("http://host/{number}");
            if let Some(body) = read_stored_body(&store, &text).await {
                assert_eq!(body, unique_body(&text, 100_000));
                found += 1;
            }
        }
        assert_eq!(found, store.snapshot().objects);
    })
    .unwrap();
}

#[test]
fn a_memory_store_sends_large_bodies_by_reference() {
    loops::block_on(async {
        let store = start_store(&test_config(None)).await;
        for size in [1, 16_384, 16_385, 100_000, 3 << 20] {
            let text = format!("http://host/{size}");
            let body = unique_body(&text, size);
            let (mut writer, partial) = store
                .begin_object(&key(&text), meta_of(&text), Some(size as u64))
                .unwrap();
            // The writer does not wait for a reader that has not begun.
            let early = partial.reader().unwrap();
            for piece in body.chunks(30_000) {
                writer.push(piece);
                writer.wait_for_capacity().await;
            }
            assert!(writer.finish().await);
            let hit = find_hit(&store, &text).unwrap();
            let is_in_pages = matches!(hit.body, HitBody::Memory(MemoryBody::Arena(_)));
            assert_eq!(is_in_pages, size > 16_384, "{size}");
            assert_eq!(read_stored_body(&store, &text).await.unwrap(), body);
            // Responses being sent continue after the removal.
            assert_eq!(store.remove_key(&key(&text)), 1);
            assert_eq!(read_to_end(early).await.unwrap(), body);
            let HitBody::Memory(held) = hit.body else {
                panic!("{size}: not in memory");
            };
            assert_eq!(held.part(0, usize::MAX), body);
        }
    })
    .unwrap();
}

#[test]
fn bytes_on_the_disk_stay_within_the_bound_with_temporary_files_and_headers() {
    loops::block_on(async {
        let temp = TempFolder::new("bound");
        let store = start_store(&test_config(Some(temp.path()))).await;
        let mut most = 0;
        for number in 0..120 {
            let text = format!("http://host/{number}");
            let size = 1000 + number * 37_123 % 900_000;
            store_object(&store, &text, &unique_body(&text, size)).await;
            let (_, bytes) = file_count_and_usage(temp.path());
            assert!(bytes <= 16 << 20, "{bytes} after {number}");
            most = most.max(bytes);
        }
        assert!(most > 12 << 20, "the room is used: {most}");
        let usage = store.snapshot();
        assert!(
            usage.counters.evictions > 20
                && usage.counters.errors == 0
                && usage.bytes <= usage.max_bytes
        );
        // Counted bytes equal the disk usage once evicted files are removed.
        let deadline = clock::now() + Duration::from_secs(10);
        while store.snapshot().bytes != file_count_and_usage(temp.path()).1 {
            assert!(
                clock::now() < deadline,
                "{} {:?}",
                store.snapshot().bytes,
                file_count_and_usage(temp.path())
            );
            sleep_briefly().await;
        }
        // A smaller limit at the next start is applied.
        drop(store);
        let mut smaller = test_config(Some(temp.path()));
        smaller.max_size = 4 << 20;
        smaller.max_object_size = 1 << 20;
        let store = start_store(&smaller).await;
        wait_until(&store, |usage| usage.bytes <= 4 << 20).await;
        let deadline = clock::now() + Duration::from_secs(10);
        while file_count_and_usage(temp.path()).1 > 4 << 20 {
            assert!(clock::now() < deadline);
            sleep_briefly().await;
        }
        assert!(store.snapshot().objects > 0);
    })
    .unwrap();
}

#[test]
fn purging_removes_objects_on_disk_in_memory_and_partial() {
    loops::block_on(async {
        let temp = TempFolder::new("purge");
        let store = start_store(&test_config(Some(temp.path()))).await;
        let urls = ["http://a/x", "http://a/x?y=1", "http://b/x", "http://a/z"];
        for (number, url) in urls.iter().enumerate() {
            let mut meta = meta_of(&format!("{url}\0de"));
            meta.tags = vec!["all".to_owned(), format!("t{number}")];
            assert!(
                store_with_meta(&store, meta, &unique_body(url, 100_000 * (number % 2) + 10)).await
            );
        }
        let there = |store: &Arc<Store>| {
            let is_there = |url: &&&str| find_hit(store, &format!("{url}\0de")).is_some();
            urls.iter().filter(is_there).count()
        };
        let stores = [Arc::clone(&store)];
        let purged = |what: crate::PurgeTarget| crate::purge(&stores, &what);
        let (mut writer, partial) = store
            .begin_object(&key("http://a/x?new"), meta_of("http://a/x?new"), None)
            .unwrap();
        writer.push(b"some");
        assert_eq!(purged(crate::PurgeTarget::Url("http://a/".into())), 0);
        assert_eq!(there(&store), 4);
        assert_eq!(purged(crate::PurgeTarget::Url("http://a/x".into())), 1);
        assert_eq!(purged(crate::PurgeTarget::Tag("t3".into())), 1);
        assert_eq!(there(&store), 2);
        assert_eq!(purged(crate::PurgeTarget::Prefix("/x?".into())), 2);
        assert!(partial.reader().is_none(), "it takes no new readers");
        assert!(find_hit(&store, "http://a/x?new").is_none());
        writer.push(b" more");
        assert!(
            !writer.finish().await,
            "what was purged on its way is not kept"
        );
        assert!(find_hit(&store, "http://a/x?new").is_none());
        assert_eq!(purged(crate::PurgeTarget::Url("/x".into())), 1);
        assert_eq!(there(&store), 0);
        assert_eq!(store.snapshot().objects, 0);
        wait_until(&store, |_| file_count_and_usage(temp.path()).0 == 0).await;
        assert_eq!(store.snapshot().counters.purged_objects, 5);
    })
    .unwrap();
}

#[test]
fn a_purge_counts_for_objects_not_recovered_yet() {
    loops::block_on(async {
        let temp = TempFolder::new("purge-early");
        let store = start_store(&test_config(Some(temp.path()))).await;
        for number in 0..300 {
            let mut meta = meta_of(&format!("http://h/{number}"));
            meta.tags = vec![format!("t{}", number % 3)];
            store_with_meta(&store, meta, b"body").await;
        }
        drop(store);
        let store = Store::start(&test_config(Some(temp.path())), Pool::new("test", 2, 1000));
        crate::purge(&[Arc::clone(&store)], &crate::PurgeTarget::Tag("t1".into()));
        store.remove_key(&key("http://h/3"));
        wait_until(&store, |usage| usage.state == StoreState::Working).await;
        for number in 0..300 {
            let is_there = find_hit(&store, &format!("http://h/{number}")).is_some();
            assert_eq!(is_there, number % 3 != 1 && number != 3, "{number}");
        }
        wait_until(&store, |_| file_count_and_usage(temp.path()).0 == 199).await;
    })
    .unwrap();
}

#[test]
fn a_fresher_meta_stays_with_its_body_also_after_a_restart() {
    loops::block_on(async {
        let temp = TempFolder::new("freshen");
        let store = start_store(&test_config(Some(temp.path()))).await;
        for (text, size) in [("http://h/small", 100), ("http://h/large", 200_000)] {
            store_object(&store, text, &unique_body(text, size)).await;
            for round in 1..4 {
                let hit = find_hit(&store, text).unwrap();
                let mut meta = meta_of(text);
                meta.lifetime.initial_age = Duration::from_secs(round);
                let stored = store.freshen(&hit, meta);
                assert_eq!(stored.length, size as u64);
                assert_eq!(find_hit(&store, text).unwrap().meta, stored);
                assert_eq!(
                    read_stored_body(&store, text).await.unwrap(),
                    unique_body(text, size)
                );
            }
        }
        let huge = "http://h/huge";
        store_object(&store, huge, b"body").await;
        let mut meta = meta_of(huge);
        meta.tags = vec!["x".repeat(5000)];
        store.freshen(&find_hit(&store, huge).unwrap(), meta);
        assert_eq!(find_hit(&store, huge).unwrap().meta.tags[0].len(), 5000);
        let disk = Arc::clone(store.disk.as_ref().unwrap());
        wait_until(&store, |_| disk.maintenance_queue().rewrites.is_empty()).await;
        // The write may still be running.
        wait_until(&store, |_| disk.oldest_operation_age().is_none()).await;
        drop(store);
        let store = start_store(&test_config(Some(temp.path()))).await;
        for (text, size) in [("http://h/small", 100), ("http://h/large", 200_000)] {
            let age = find_hit(&store, text).unwrap().meta.lifetime.initial_age;
            assert_eq!(age, Duration::from_secs(3), "{text}");
            assert_eq!(
                read_stored_body(&store, text).await.unwrap(),
                unique_body(text, size)
            );
        }
        // Metadata that did not fit does not let older metadata return.
        assert!(find_hit(&store, huge).is_none());
    })
    .unwrap();
}

#[test]
fn variants_and_uses() {
    loops::block_on(async {
        let store = start_store(&test_config(None)).await;
        for variant in ["br", "gzip"] {
            let mut meta = meta_of("http://h/");
            meta.vary_names = vec!["accept-encoding".to_owned()];
            meta.variant = variant.as_bytes().to_vec();
            store_with_meta(&store, meta, variant.as_bytes()).await;
        }
        for variant in ["br", "gzip"] {
            let hit = store.find(&key("http://h/"), &mut |meta| {
                meta.variant == variant.as_bytes()
            });
            assert!(
                matches!(hit.unwrap().body, HitBody::Memory(MemoryBody::Bytes(body)) if body == variant)
            );
        }
        let counts: Vec<_> = (0..3).map(|_| store.count_request(&key("http://h/new"))).collect();
        assert_eq!(counts, [1, 2, 3]);
        assert_eq!(store.remove_key(&key("http://h/")), 2);
        store.stop();
        assert!(!store.is_working() && store.begin_object(&key("x"), meta_of("x"), None).is_none());
    })
    .unwrap();
}
