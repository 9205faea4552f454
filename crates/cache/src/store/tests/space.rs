//! Occupied space and memory: slow clients, blocked pools, failing disks, and purges during these.

use penstock_runtime::loops;
use std::sync::mpsc;
use std::task::Poll;

use super::*;

/// Keeps the thread of a pool busy until it is dropped.
struct BlockedPool(
    #[expect(dead_code, reason = "dropping it releases the pool")] mpsc::SyncSender<()>,
);

impl BlockedPool {
    /// Blocks a pool of one thread.
    async fn new(pool: &Pool) -> Self {
        let (release, end) = mpsc::sync_channel::<()>(1);
        let end = Arc::new(Mutex::new(end));
        let deadline = clock::now() + Duration::from_secs(10);
        let is_at_work = Arc::new(AtomicBool::new(false));
        loop {
            let (end, begun) = (Arc::clone(&end), Arc::clone(&is_at_work));
            let started = pool.spawn(move || {
                begun.store(true, Relaxed);
                let _ = end.lock().recv();
            });
            // The maintenance task may occupy the queue.
            if started.is_ok() {
                break;
            }
            assert!(clock::now() < deadline);
            sleep_briefly().await;
        }
        while !is_at_work.load(Relaxed) {
            assert!(clock::now() < deadline);
            sleep_briefly().await;
        }
        Self(release)
    }
}

/// The output of a future that is ready at once.
async fn within_a_moment<F: Future>(work: F) -> Option<F::Output> {
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|cx| {
        Poll::Ready(match work.as_mut().poll(cx) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        })
    })
    .await
}

#[test]
fn a_slow_reader_of_a_removed_file_does_not_block_storing() {
    loops::block_on(async {
        let temp = TempFolder::new("slow-client");
        let mut config = test_config(Some(temp.path()));
        config.max_memory = 0;
        config.stall_timeout = Duration::from_secs(30);
        let store = start_store(&config).await;
        assert!(store_object(&store, "http://h/old", &unique_body("old", 4_000_000)).await);
        let HitBody::Disk(object) = find_hit(&store, "http://h/old").unwrap().body else {
            panic!("it is on the disk");
        };
        let body = object.open().await.unwrap();
        store.remove_key(&key("http://h/old"));
        for number in 0..12 {
            let text = format!("http://h/{number}");
            assert!(
                store_object(&store, &text, &unique_body(&text, 1_900_000)).await,
                "{text}"
            );
        }
        assert!(store.snapshot().bytes >= 4_000_000);
        drop((object, body));
        let disk = Arc::clone(store.disk.as_ref().unwrap());
        wait_until(&store, |usage| {
            disk.maintenance_queue().discarded_bytes == 0
                && usage.bytes == file_count_and_usage(temp.path()).1
        })
        .await;
    })
    .unwrap();
}

#[test]
fn an_older_body_in_memory_does_not_hide_the_newer_one() {
    loops::block_on(async {
        let temp = TempFolder::new("hidden");
        let mut config = test_config(Some(temp.path()));
        config.max_memory = 4 << 20;
        let store = start_store(&config).await;
        assert!(store_object(&store, "http://h/a", b"old").await);
        // Memory is short because of other partial objects.
        store.partial_memory.fetch_add(9 << 20, Relaxed);
        assert!(store_object(&store, "http://h/a", b"new").await);
        store.partial_memory.fetch_sub(9 << 20, Relaxed);
        assert_eq!(
            read_stored_body(&store, "http://h/a").await.unwrap(),
            b"new"
        );
    })
    .unwrap();
}

#[test]
fn slow_readers_do_not_keep_a_memory_cache_from_storing() {
    loops::block_on(async {
        let mut config = test_config(None);
        config.max_size = 64 << 20;
        config.max_object_size = 20 << 20;
        let store = start_store(&config).await;
        let mut readers = Vec::new();
        for number in 0..2 {
            let text = format!("http://h/{number}");
            let body = unique_body(&text, 9 << 20);
            let meta = meta_of(&text);
            let (mut writer, partial) = store.begin_object(&key(&text), meta, None).unwrap();
            readers.push((text, partial.reader().unwrap()));
            for piece in body.chunks(60_000) {
                writer.push(piece);
                writer.wait_for_capacity().await;
            }
            assert!(writer.finish().await);
            partial.discard();
        }
        assert_eq!(store.partial_memory.load(Relaxed), 0);
        assert!(store_object(&store, "http://h/small", b"small").await);
        for (text, reader) in readers {
            assert!(read_to_end(reader).await.unwrap() == unique_body(&text, 9 << 20));
        }
        assert_eq!(store.partial_memory.load(Relaxed), 0);
    })
    .unwrap();
}

#[test]
fn a_large_body_is_joined_in_the_pool() {
    loops::block_on(async {
        let pool = Pool::new("test", 1, 10);
        let blocked = BlockedPool::new(&pool).await;
        let store = Store::start(&test_config(None), pool.clone());
        for (size, is_small) in [(1 << 20, true), (2 << 20, false)] {
            let body = unique_body("x", size);
            let (mut writer, _partial) = store
                .begin_object(&key("http://h/"), meta_of("http://h/"), None)
                .unwrap();
            for piece in body.chunks(60_000) {
                writer.push(piece);
            }
            let mut finish = Box::pin(writer.finish());
            assert_eq!(within_a_moment(&mut finish).await.is_some(), is_small);
            if !is_small {
                drop(blocked);
                assert!(finish.await);
                assert!(read_stored_body(&store, "http://h/").await.unwrap() == body);
                break;
            }
        }
    })
    .unwrap();
}

#[test]
fn scarce_memory_slows_pushes_during_a_write() {
    loops::block_on(async {
        let temp = TempFolder::new("short");
        let pool = Pool::new("test", 1, 1000);
        let store = Store::start(&test_config(Some(temp.path())), pool.clone());
        wait_until(&store, |usage| usage.state == StoreState::Working).await;
        let meta = meta_of("http://h/");
        let (mut writer, _partial) = store.begin_object(&key("http://h/"), meta, None).unwrap();
        let blocked = BlockedPool::new(&pool).await;
        writer.push(&unique_body("x", 70_000));
        assert!(within_a_moment(writer.wait_for_capacity()).await.is_some());
        store.partial_memory.fetch_add(9 << 20, Relaxed);
        assert!(within_a_moment(writer.wait_for_capacity()).await.is_none());
        drop(blocked);
        writer.wait_for_capacity().await;
        store.partial_memory.fetch_sub(9 << 20, Relaxed);
        assert!(writer.finish().await);
    })
    .unwrap();
}

#[test]
fn a_late_commit_does_not_undo_a_purge() {
    loops::block_on(async {
        for is_left in [false, true] {
            let temp = TempFolder::new(&format!("commit-{is_left}"));
            let pool = Pool::new("test", 1, 1000);
            let mut config = test_config(Some(temp.path()));
            config.stall_timeout = Duration::from_millis(300);
            let store = Store::start(&config, pool.clone());
            wait_until(&store, |usage| usage.state == StoreState::Working).await;
            let meta = meta_of("http://h/");
            let (mut writer, partial) = store.begin_object(&key("http://h/"), meta, None).unwrap();
            writer.push(&unique_body("x", 100_000));
            let deadline = clock::now() + Duration::from_secs(10);
            while partial.state.lock().written_bytes < 100_000 {
                assert!(clock::now() < deadline);
                writer.wait_for_capacity().await;
                sleep_briefly().await;
            }
            let blocked = BlockedPool::new(&pool).await;
            let mut finish = Box::pin(writer.finish());
            if is_left {
                assert!(within_a_moment(&mut finish).await.is_none());
            } else {
                assert!(!(&mut finish).await);
            }
            drop(finish);
            assert_eq!(store.purge(&PurgeRule::All), 0);
            drop(blocked);
            // Runs after the commit.
            pool.run(|| ()).await.unwrap();
            assert!(!partial.can_be_stored());
            wait_until(&store, |usage| usage.state == StoreState::Working).await;
            assert!(find_hit(&store, "http://h/").is_none());
            wait_until(&store, |usage| usage.objects == 0 && usage.bytes == 0).await;
        }
    })
    .unwrap();
}

#[test]
fn readers_of_a_partial_body_go_on_when_the_disk_fails() {
    loops::block_on(async {
        let temp = TempFolder::new("out-reader");
        let store = start_store(&test_config(Some(temp.path()))).await;
        let body = unique_body("x", 3_000_000);
        let (mut writer, partial) = store
            .begin_object(&key("http://h/"), meta_of("http://h/"), None)
            .unwrap();
        let reader = partial.reader().unwrap();
        for piece in body.chunks(50_000) {
            writer.push(piece);
            writer.wait_for_capacity().await;
        }
        let deadline = clock::now() + Duration::from_secs(10);
        while partial.state.lock().written_bytes < 2_000_000 {
            assert!(clock::now() < deadline);
            writer.wait_for_capacity().await;
            sleep_briefly().await;
        }
        // Drops the file from the page cache, where the file system permits it.
        let file = partial.state.lock().file.clone().unwrap();
        file.file().unwrap().sync_all().unwrap();
        let all = rustix::fs::Advice::DontNeed;
        rustix::fs::fadvise(file.file().unwrap(), 0, None, all).unwrap();
        drop(file);
        store
            .disk
            .as_ref()
            .unwrap()
            .set_out_of_service("a test".to_owned());
        let reading = loops::spawn_with_handle(read_to_end(reader));
        writer.wait_for_capacity().await;
        assert!(!writer.finish().await);
        assert!(reading.await.unwrap().unwrap() == body);
    })
    .unwrap();
}

#[test]
fn invalidations_share_one_scan_and_take_effect_at_once() {
    loops::block_on(async {
        let temp = TempFolder::new("soon");
        for path in [None, Some(temp.path())] {
            let pool = Pool::new("test", 1, 20);
            let store = Store::start(&test_config(path), pool.clone());
            wait_until(&store, |usage| usage.state == StoreState::Working).await;
            for number in 0..40 {
                let text = format!("http://h/{number}");
                assert!(store_object(&store, &text, b"x").await);
            }
            wait_until(&store, |usage| usage.objects == 40).await;
            let purges = store.purge_count();
            let blocked = BlockedPool::new(&pool).await;
            // With a full queue, too: background purges wait for room.
            while pool.spawn(|| ()).is_ok() {}
            for number in 0..20 {
                let url = match number % 2 {
                    0 => format!("http://h/{number}"),
                    _ => format!("/{number}"),
                };
                store.purge_in_background(PurgeRule::Url(url));
                assert!(store.is_purged_since(purges, &meta_of(&format!("http://h/{number}"))));
                sleep_briefly().await;
            }
            assert_eq!(store.snapshot().objects, 40, "not on a loop");
            for number in 0..40 {
                let is_found = find_hit(&store, &format!("http://h/{number}")).is_some();
                assert_eq!(is_found, number >= 20, "{number}");
            }
            drop(blocked);
            wait_until(&store, |usage| usage.counters.purged_objects == 20).await;
            for number in 0..40 {
                assert_eq!(
                    find_hit(&store, &format!("http://h/{number}")).is_some(),
                    number >= 20
                );
            }
        }
    })
    .unwrap();
}
