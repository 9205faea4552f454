//! Recovery with a full pool, and the purge journal.

use penstock_runtime::loops;
use std::sync::mpsc;

use penstock_runtime::blocking::Pool;

use super::super::disk::OpenDir;
use super::super::purge_rules::PurgeRule;
use super::super::tests::{
    TempFolder, find_hit, key, sleep_briefly, start_store, store_object, test_config, unique_body,
};
use super::*;

fn maintenance_of(disk: &Arc<Disk>, folder: &Arc<CacheDir>) -> Maintenance {
    Maintenance {
        disk: Arc::clone(disk),
        recovery: Some(Recovery {
            dir: Arc::clone(folder),
            part: 0,
            names: Vec::new(),
            first_own_number: disk.new_file_number(),
            is_journal_read: false,
            is_swept: false,
        }),
        underlying_device: None,
        is_probing: Arc::default(),
        probe_at: clock::now(),
        probe_delay: MIN_PROBE_DELAY,
        in_service_since: None,
        check_dir_at: clock::now() + DIR_CHECK_INTERVAL,
        raise_size_at: clock::now() + SIZE_RAISE_INTERVAL,
        removed_still_open: Vec::new(),
        journal: NumberedPurges::default(),
        is_journal_dirty: false,
    }
}

#[test]
fn a_full_pool_at_a_start_costs_no_object() {
    loops::block_on(async {
        let temp = TempFolder::new("full-pool");
        let config = test_config(Some(temp.path()));
        let before = start_store(&config).await;
        for number in 0..20 {
            let text = format!("http://h/{number}");
            assert!(store_object(&before, &text, &unique_body(&text, 1000)).await);
        }
        before.stop();
        drop(before);
        // One busy thread and a full queue.
        let pool = Pool::new("test", 1, 1);
        let (release, end) = mpsc::sync_channel::<()>(1);
        pool.spawn(move || {
            let _ = end.recv();
        })
        .unwrap();
        let deadline = clock::now() + Duration::from_secs(10);
        while pool.oldest_job_time().is_none() {
            assert!(clock::now() < deadline);
            sleep_briefly().await;
        }
        let store = Store::new(&config, pool.clone());
        let disk = Arc::clone(store.disk.as_ref().unwrap());
        let (folder, lease) = loop {
            // The first store may still be writing.
            match CacheDir::open(temp.path(), None) {
                Ok(opened) => break opened,
                Err(error) => assert!(clock::now() < deadline, "{error}"),
            }
            sleep_briefly().await;
        };
        let folder = Arc::new(folder);
        let opened = OpenDir {
            dir: Arc::clone(&folder),
            _lock: Arc::new(lease),
        };
        disk.set_in_service(Some(opened), DiskHealth::Recovering);
        let mut maintenance = maintenance_of(&disk, &folder);
        pool.spawn(|| ()).unwrap();
        for _ in 0..1000 {
            assert!(
                !maintenance.recover_some(&store).await,
                "there is nothing to be done at once"
            );
        }
        drop(release);
        while maintenance.recovery.is_some() {
            assert!(clock::now() < deadline + Duration::from_secs(20));
            maintenance.recover_some(&store).await;
        }
        assert_eq!(store.snapshot().objects, 20);
    })
    .unwrap();
}

#[test]
fn a_journal_that_failed_is_written_again_with_its_keys() {
    loops::block_on(async {
        let temp = TempFolder::new("journal-again");
        let config = test_config(Some(temp.path()));
        let store = Store::new(&config, Pool::new("test", 1, 10));
        let disk = Arc::clone(store.disk.as_ref().unwrap());
        let (folder, lease) = CacheDir::open(temp.path(), None).unwrap();
        let folder = Arc::new(folder);
        let opened = OpenDir {
            dir: Arc::clone(&folder),
            _lock: Arc::new(lease),
        };
        disk.set_in_service(Some(opened), DiskHealth::Working);
        let mut maintenance = maintenance_of(&disk, &folder);
        maintenance.recovery = None;
        assert!(store_object(&store, "http://h/", &unique_body("x", 1000)).await);
        store.remove_key(&key("http://h/"));
        assert!(find_hit(&store, "http://h/").is_none());
        disk.set_out_of_service("a test".to_owned());
        maintenance.write_journal().await;
        assert!(!temp.path().join("purges").exists());
        disk.set_in_service(None, DiskHealth::Working);
        maintenance.write_journal().await;
        let journal = folder.read_root_file("purges").unwrap().unwrap();
        let number = u64::from_le_bytes(journal[8..16].try_into().unwrap());
        let rule = PurgeRule::Key(key("http://h/").text);
        assert_eq!(journal, purge_journal::encode(&[(number, rule)]));
        // The journal is removed once the files are.
        while maintenance.remove_discarded().await || !disk.maintenance_queue().discarded.is_empty()
        {
        }
        maintenance.write_journal().await;
        assert!(!temp.path().join("purges").exists());
    })
    .unwrap();
}
