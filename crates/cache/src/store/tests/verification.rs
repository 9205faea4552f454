//! Verification of files before they are served: during freshening, and without waiters.

use penstock_runtime::loops;
use std::task::Poll;

use super::object_file::{Verification, VerificationStep};
use super::*;

/// A store that recovered an object of 9 MB: three steps of a verification.
async fn restarted_store(temp: &TempFolder, pool: Pool) -> (Arc<Store>, DiskObject) {
    let mut config = test_config(Some(temp.path()));
    config.max_memory = 0;
    config.max_size = 64 << 20;
    config.max_object_size = 10 << 20;
    let store = start_store(&config).await;
    assert!(store_object(&store, "http://h/", &unique_body("large", 9_000_000)).await);
    drop(store);
    let store = Store::start(&config, pool);
    wait_until(&store, |usage| usage.state == StoreState::Working).await;
    let HitBody::Disk(object) = find_hit(&store, "http://h/").unwrap().body else {
        panic!("it is on the disk");
    };
    (store, object)
}

#[test]
fn an_object_that_is_freshened_while_it_is_verified_is_not_damaged() {
    loops::block_on(async {
        let temp = TempFolder::new("freshened");
        let (store, object) = restarted_store(&temp, Pool::new("test", 2, 100)).await;
        let body = &object.item.body;
        let file = body.dir.open_object(body.name, rustix::fs::OFlags::RDONLY);
        let file = Arc::new(DiskFile::new(file.unwrap(), store.pool.clone()));
        let begun = Verification::new(Arc::clone(&file), body.preamble).unwrap();
        let VerificationStep::More(rest) = begun.step().unwrap() else {
            panic!("there is more");
        };
        let mut meta = ObjectMeta::clone(&object.item.meta);
        meta.lifetime.fresh_for = Duration::from_secs(99);
        // With coarse time stamps the change may leave the stamp unchanged for a moment.
        let before = cache_dir::ObjectFileStamp::from_file(file.file().unwrap()).unwrap();
        let deadline = clock::now() + Duration::from_secs(10);
        while cache_dir::ObjectFileStamp::from_file(file.file().unwrap()).unwrap() == before {
            assert!(clock::now() < deadline);
            body.write_meta(&meta).unwrap();
        }
        let VerificationStep::More(rest) = rest.step().unwrap() else {
            panic!("there is more");
        };
        assert!(matches!(rest.step().unwrap(), VerificationStep::Changed));
        let hit = find_hit(&store, "http://h/").unwrap();
        store.freshen(&hit, meta);
        assert!(object.open().await.is_ok());
        assert_eq!(store.snapshot().counters.errors, 0);
    })
    .unwrap();
}

#[test]
fn a_verification_survives_its_waiters_and_serves_the_next() {
    loops::block_on(async {
        let temp = TempFolder::new("goes-on");
        let pool = Pool::new("test", 1, 100);
        let (store, object) = restarted_store(&temp, pool.clone()).await;
        let mut opens = [object.clone(), object.clone()].map(|object| {
            let open = async move { object.open().await.is_ok() };
            Box::pin(open) as std::pin::Pin<Box<dyn Future<Output = bool> + Send>>
        });
        let deadline = clock::now() + Duration::from_secs(10);
        // Until both wait for one verification; a quick one may end before it is observed.
        while store.disk.as_ref().unwrap().verifications.pending_count() == 0
            && object.item.body.open_file().is_none()
        {
            assert!(clock::now() < deadline);
            for open in &mut opens {
                std::future::poll_fn(|cx| {
                    let _ = open.as_mut().poll(cx);
                    Poll::Ready(())
                })
                .await;
            }
            assert!(store.disk.as_ref().unwrap().verifications.pending_count() <= 1);
            sleep_briefly().await;
        }
        drop(opens);
        while object.item.body.open_file().is_none() {
            assert!(clock::now() < deadline, "nobody verifies it any more");
            sleep_briefly().await;
        }
        wait_until(&store, |_| {
            store.disk.as_ref().unwrap().verifications.pending_count() == 0
        })
        .await;
        assert!(
            read_stored_body(&store, "http://h/").await.unwrap() == unique_body("large", 9_000_000)
        );
        assert_eq!(store.snapshot().counters.errors, 0);
    })
    .unwrap();
}
