//! Partial objects: readers at their own pace, cuts, and discarded objects.

use penstock_exchange::{Fault, FaultKind};
use penstock_runtime::loops;

use super::*;

#[test]
fn readers_at_different_paces_get_every_byte() {
    loops::block_on(async {
        for path in [Some(TempFolder::new("paces")), None] {
            let store = start_store(&test_config(path.as_ref().map(TempFolder::path))).await;
            let body = unique_body("x", 3_000_000);
            let meta = meta_of("http://h/");
            let (mut writer, partial) = store.begin_object(&key("http://h/"), meta, None).unwrap();
            let early = partial.reader().unwrap();
            let mut slow = partial.reader().unwrap();
            let part = partial.reader_from(2_000_000, Some(500_000)).unwrap();
            let fast = loops::spawn_with_handle(read_to_end(early));
            let part = loops::spawn_with_handle(read_to_end(part));
            let mut slow_got = Vec::new();
            let mut late = None;
            for (number, piece) in body.chunks(30_000).enumerate() {
                writer.push(piece);
                writer.wait_for_capacity().await;
                if number % 20 == 0 {
                    slow_got.extend_from_slice(&next_chunk(&mut slow).await.unwrap().unwrap());
                }
                if number == 60 {
                    let hit = find_hit(&store, "http://h/").unwrap();
                    let HitBody::Partial(found) = hit.body else {
                        panic!("it is on its way");
                    };
                    late = found.reader();
                }
            }
            assert!(writer.finish().await);
            assert_eq!(fast.await.unwrap().unwrap(), body);
            assert_eq!(part.await.unwrap().unwrap(), body[2_000_000..2_500_000]);
            assert_eq!(read_to_end(late.unwrap()).await.unwrap(), body);
            while let Some(piece) = next_chunk(&mut slow).await {
                slow_got.extend_from_slice(&piece.unwrap());
            }
            assert!(slow_got == body);
            assert_eq!(read_stored_body(&store, "http://h/").await.unwrap(), body);
            drop((slow, partial));
            assert_eq!(store.partial_memory.load(Relaxed), 0);
            assert_eq!(store.partial_count.load(Relaxed), 0);
        }
    })
    .unwrap();
}

#[test]
fn a_body_that_is_cut_is_cut_for_its_readers_and_not_kept() {
    loops::block_on(async {
        let temp = TempFolder::new("cut");
        let store = start_store(&test_config(Some(temp.path()))).await;
        for (how, size) in ["drop", "abort", "short", "drop"]
            .into_iter()
            .zip([10, 10, 10, 900_000])
        {
            let meta = meta_of("http://h/");
            let declared = Some(size as u64 + 1);
            let (mut writer, partial) = store
                .begin_object(&key("http://h/"), meta, declared)
                .unwrap();
            let reader = partial.reader().unwrap();
            writer.push(&unique_body(how, size));
            writer.wait_for_capacity().await;
            match how {
                "drop" => drop(writer),
                "abort" => writer.abort(&Fault::new(FaultKind::BackendTimeout, "slow")),
                _ => assert!(!writer.finish().await),
            }
            let fault = read_to_end(reader).await.unwrap_err();
            let is_timeout = fault.kind == FaultKind::BackendTimeout;
            assert_eq!(is_timeout, how == "abort", "{how}");
            assert!(find_hit(&store, "http://h/").is_none() && partial.reader().is_none());
        }
        wait_until(&store, |_| file_count_and_usage(temp.path()).0 == 0).await;
        wait_until(&store, |usage| usage.bytes == 0).await;
        assert_eq!(store.partial_count.load(Relaxed), 0);
    })
    .unwrap();
}

#[test]
fn an_object_that_is_too_large_goes_on_for_its_readers_at_the_pace_of_the_slowest() {
    loops::block_on(async {
        for path in [Some(TempFolder::new("doomed")), None] {
            let mut config = test_config(path.as_ref().map(TempFolder::path));
            config.max_object_size = 700_000;
            let store = start_store(&config).await;
            let body = unique_body("x", 5_000_000);
            let meta = meta_of("http://h/");
            let (mut writer, partial) = store.begin_object(&key("http://h/"), meta, None).unwrap();
            let (first, mut second) = (partial.reader().unwrap(), partial.reader().unwrap());
            let pushed = Arc::new(AtomicU64::new(0));
            let (count, all) = (Arc::clone(&pushed), body.clone());
            let task = loops::spawn_with_handle(async move {
                for piece in all.chunks(30_000) {
                    writer.push(piece);
                    writer.wait_for_capacity().await;
                    count.fetch_add(piece.len() as u64, Relaxed);
                }
                writer.finish().await
            });
            let first = loops::spawn_with_handle(read_to_end(first));
            let mut got = Vec::new();
            loop {
                // The writer never gets far ahead of the slowest reader.
                for _ in 0..5 {
                    sleep_briefly().await;
                }
                let ahead = pushed.load(Relaxed) - got.len() as u64;
                assert!(ahead < 1_400_000, "{ahead} ahead");
                assert!(store.partial_memory.load(Relaxed) < 1_400_000);
                match next_chunk(&mut second).await {
                    Some(piece) => got.extend_from_slice(&piece.unwrap()),
                    None => break,
                }
            }
            assert!(got == body && first.await.unwrap().unwrap() == body);
            assert!(!task.await.unwrap() && find_hit(&store, "http://h/").is_none());
        }
    })
    .unwrap();
}

#[test]
fn a_discarded_object_without_readers_is_unneeded() {
    loops::block_on(async {
        let mut config = test_config(None);
        config.max_object_size = 1000;
        let store = start_store(&config).await;
        let meta = meta_of("http://h/");
        let (mut writer, partial) = store.begin_object(&key("http://h/"), meta, None).unwrap();
        let reader = partial.reader().unwrap();
        writer.push(&[0; 2000]);
        assert!(!writer.is_unneeded());
        drop(reader);
        writer.wait_until_unneeded().await;
        writer.push(&[0; 10_000_000]);
        writer.wait_for_capacity().await;
        assert_eq!(store.partial_memory.load(Relaxed), 0);
        assert!(!writer.finish().await);
        let meta = meta_of("http://h/");
        assert!(
            store
                .begin_object(&key("http://h/"), meta, Some(1001))
                .is_none()
        );
    })
    .unwrap();
}
