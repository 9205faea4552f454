//! Reading the index back while the pool is full.

use penstock_runtime::loops;
use std::sync::mpsc;

use penstock_runtime::blocking::Pool;

use super::super::disk::Opened;
use super::super::purging::Rule;
use super::super::tests::{TempFolder, a_moment, body_of, config, find, key, put, started};
use super::*;

fn keeper_of(disk: &Arc<Disk>, folder: &Arc<Folder>) -> Keeper {
    Keeper {
        disk: Arc::clone(disk),
        recovery: Some(Recovery {
            folder: Arc::clone(folder),
            part: 0,
            names: Vec::new(),
            before: disk.number(),
            is_read: false,
            is_swept: false,
        }),
        below: None,
        is_probing: Arc::default(),
        probe_at: clock::now(),
        probe_after: PROBE_FIRST,
        in_at: None,
        look_at: clock::now() + LOOK_EVERY,
        grow_at: clock::now() + GROW_EVERY,
        dying: Vec::new(),
        journal: Journal::default(),
    }
}

#[test]
fn a_full_pool_at_a_start_costs_no_object() {
    loops::block_on(async {
        let temp = TempFolder::new("full-pool");
        let config = config(Some(temp.path()));
        let before = started(&config).await;
        for number in 0..20 {
            let text = format!("http://h/{number}");
            assert!(put(&before, &text, &body_of(&text, 1000)).await);
        }
        before.stop();
        drop(before);
        // One thread that is busy and a queue that is full.
        let pool = Pool::new("test", 1, 1);
        let (release, end) = mpsc::sync_channel::<()>(1);
        pool.spawn(move || {
            let _ = end.recv();
        })
        .unwrap();
        let deadline = clock::now() + Duration::from_secs(10);
        while pool.oldest_running().is_none() {
            assert!(clock::now() < deadline);
            a_moment().await;
        }
        let store = Store::new(&config, pool.clone());
        let disk = Arc::clone(store.disk().unwrap());
        let (folder, lease) = loop {
            // The former one may still be writing.
            match Folder::open(temp.path(), None) {
                Ok(opened) => break opened,
                Err(error) => assert!(clock::now() < deadline, "{error}"),
            }
            a_moment().await;
        };
        let folder = Arc::new(folder);
        let opened = Opened {
            folder: Arc::clone(&folder),
            _lease: Arc::new(lease),
        };
        disk.set_in(Some(opened), Health::Recovering);
        let mut keeper = keeper_of(&disk, &folder);
        pool.spawn(|| ()).unwrap();
        for _ in 0..1000 {
            assert!(
                !keeper.recover(&store).await,
                "there is nothing to be done at once"
            );
        }
        drop(release);
        while keeper.recovery.is_some() {
            assert!(clock::now() < deadline + Duration::from_secs(20));
            keeper.recover(&store).await;
        }
        assert_eq!(store.usage().objects, 20);
    })
    .unwrap();
}

#[test]
fn a_note_that_failed_is_written_again_and_keys_are_noted() {
    loops::block_on(async {
        let temp = TempFolder::new("note-again");
        let config = config(Some(temp.path()));
        let store = Store::new(&config, Pool::new("test", 1, 10));
        let disk = Arc::clone(store.disk().unwrap());
        let (folder, lease) = Folder::open(temp.path(), None).unwrap();
        let folder = Arc::new(folder);
        let opened = Opened {
            folder: Arc::clone(&folder),
            _lease: Arc::new(lease),
        };
        disk.set_in(Some(opened), Health::Working);
        let mut keeper = keeper_of(&disk, &folder);
        keeper.recovery = None;
        assert!(put(&store, "http://h/", &body_of("x", 1000)).await);
        store.forget(&key("http://h/"));
        assert!(find(&store, "http://h/").is_none());
        disk.set_out("a test".to_owned());
        keeper.note_purges().await;
        assert!(!temp.path().join("purges").exists());
        disk.set_in(None, Health::Working);
        keeper.note_purges().await;
        let note = folder.note("purges").unwrap().unwrap();
        let number = u64::from_le_bytes(note[8..16].try_into().unwrap());
        let rule = Rule::Key(key("http://h/").text);
        assert_eq!(note, journal::encode(&[(number, rule)]));
        // Once the files are gone there is nothing to note.
        while keeper.bury(&store).await || !disk.work().dying.is_empty() {}
        keeper.note_purges().await;
        assert!(!temp.path().join("purges").exists());
    })
    .unwrap();
}
