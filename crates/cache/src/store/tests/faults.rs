//! Disks that fill up, fail and return while objects are partial.

#![expect(clippy::print_stderr, reason = "reports skipped tests")]

use penstock_runtime::loops;
use std::process::Command;

use super::*;

/// A small file system of its own, where mounting is permitted.
struct TestMount(TempFolder);

impl TestMount {
    fn new(name: &str, size: &str) -> Option<Self> {
        let mounted = Self(TempFolder::new(name));
        mounted.mount(size).then_some(mounted)
    }

    fn mount(&self, size: &str) -> bool {
        let options = format!("size={size}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "none"]);
        let done = mount
            .arg(self.0.path())
            .stderr(std::process::Stdio::null())
            .status();
        let is_done = done.is_ok_and(|status| status.success());
        if !is_done {
            eprintln!("left out: a file system cannot be mounted here");
        }
        is_done
    }

    fn unmount(&self) {
        let mut unmount = Command::new("umount");
        unmount
            .arg("-l")
            .arg(self.0.path())
            .stderr(std::process::Stdio::null());
        unmount.status().ok();
    }
}

impl Drop for TestMount {
    fn drop(&mut self) {
        self.unmount();
    }
}

impl TestMount {
    fn run(&self, command: &str, arguments: &[&str]) -> bool {
        let mut command = Command::new(command);
        command.args(arguments).arg(self.0.path());
        let status = command.stderr(std::process::Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    }
}

fn is_out_of_service(usage: &StoreSnapshot) -> bool {
    matches!(usage.state, StoreState::OutOfService { .. })
}

#[test]
fn a_deleted_dir_is_created_again_without_errors() {
    loops::block_on(async {
        let temp = TempFolder::new("deleted");
        let path = temp.path().join("cache");
        let store = start_store(&test_config(Some(&path))).await;
        store_object(&store, "http://h/large", &unique_body("large", 2_000_000)).await;
        let HitBody::Disk(object) = find_hit(&store, "http://h/large").unwrap().body else {
            panic!("it is on the disk");
        };
        let open = object.open().await.unwrap();
        let body = unique_body("growing", 3_000_000);
        let meta = meta_of("http://h/growing");
        let (mut writer, partial) = store
            .begin_object(&key("http://h/growing"), meta, None)
            .unwrap();
        let (reader, mut slow) = (partial.reader().unwrap(), partial.reader().unwrap());
        let reader = loops::spawn_with_handle(read_to_end(reader));
        let mut slow_got = Vec::new();
        for (number, piece) in body.chunks(100_000).enumerate() {
            if number == 8 {
                std::fs::remove_dir_all(&path).unwrap();
                store
                    .disk
                    .as_ref()
                    .unwrap()
                    .set_out_of_service("noticed early, for this test".to_owned());
            }
            writer.push(piece);
            writer.wait_for_capacity().await;
            slow_got.extend_from_slice(&next_chunk(&mut slow).await.unwrap().unwrap());
        }
        assert!(!writer.finish().await, "it is not kept");
        while let Some(piece) = next_chunk(&mut slow).await {
            slow_got.extend_from_slice(&piece.unwrap());
        }
        assert!(slow_got == body && reader.await.unwrap().unwrap() == body);
        // A response being sent from an open file continues.
        let mut bytes = vec![0; 2_000_000];
        object_file::read_full(open.file.file().unwrap(), &mut bytes, open.start).unwrap();
        assert!(bytes == unique_body("large", 2_000_000));
        wait_until(&store, |usage| usage.state == StoreState::Working).await;
        assert!(read_stored_body(&store, "http://h/large").await.is_none());
        assert!(store_object(&store, "http://h/large", &body).await);
        assert!(read_stored_body(&store, "http://h/large").await.unwrap() == body);
        // Once more, detected without a request.
        std::fs::remove_dir_all(&path).unwrap();
        wait_until(&store, |_| path.join("objects").exists()).await;
        wait_until(&store, |usage| usage.state == StoreState::Working).await;
    })
    .unwrap();
}

#[test]
fn a_full_file_system_shrinks_the_bound_and_costs_no_reader_a_byte() {
    loops::block_on(async {
        let Some(mounted) = TestMount::new("full", "6m") else {
            return;
        };
        let store = start_store(&test_config(Some(mounted.0.path()))).await;
        for number in 0..30 {
            let text = format!("http://h/{number}");
            let body = unique_body(&text, 900_000);
            let (mut writer, partial) = store
                .begin_object(&key(&text), meta_of(&text), None)
                .unwrap();
            let reader = loops::spawn_with_handle(read_to_end(partial.reader().unwrap()));
            for piece in body.chunks(100_000) {
                writer.push(piece);
                writer.wait_for_capacity().await;
            }
            writer.finish().await;
            assert!(reader.await.unwrap().unwrap() == body);
            if let Some(stored) = read_stored_body(&store, &text).await {
                assert!(stored == body);
            }
            wait_until(&store, |usage| usage.state == StoreState::Working).await;
        }
        let usage = store.snapshot();
        assert!(
            usage.counters.errors > 0 && usage.max_bytes < 6 << 20,
            "{usage:?}"
        );
        assert!(usage.objects >= 2, "it goes on with what fits: {usage:?}");
    })
    .unwrap();
}

#[test]
fn an_unmounted_disk_is_out_of_service_until_it_is_back() {
    loops::block_on(async {
        let Some(mounted) = TestMount::new("unmounted", "32m") else {
            return;
        };
        let path = mounted.0.path().join("cache");
        let store = start_store(&test_config(Some(&path))).await;
        store_object(&store, "http://h/", &unique_body("x", 500_000)).await;
        mounted.unmount();
        wait_until(&store, is_out_of_service).await;
        wait_until(&store, |usage| {
        matches!(&usage.state, StoreState::OutOfService { reason } if reason.contains("not mounted"))
    })
    .await;
        assert!(!path.exists(), "the disk below is left alone");
        assert!(mounted.mount("32m"));
        // A new disk in its place works as well.
        wait_until(&store, |usage| usage.state == StoreState::Working).await;
        assert!(find_hit(&store, "http://h/").is_none());
        assert!(store_object(&store, "http://h/", &unique_body("x", 500_000)).await);
    })
    .unwrap();
}

#[test]
fn a_disk_that_stalls_is_out_and_waited_for_by_nobody() {
    loops::block_on(async {
        let temp = TempFolder::new("stalled");
        let mut of_files = test_config(Some(temp.path()));
        of_files.stall_timeout = Duration::from_millis(100);
        let store = start_store(&of_files).await;
        store_object(&store, "http://h/", &unique_body("x", 500_000)).await;
        let disk = Arc::clone(store.disk.as_ref().unwrap());
        let (release, held) = std::sync::mpsc::channel::<()>();
        let stuck = disk.run(disk::DiskOperationKind::Read, move || {
            held.recv().ok();
            Ok(())
        });
        assert!(matches!(stuck.await, Err(disk::DiskError::OutOfService)));
        wait_until(&store, is_out_of_service).await;
        assert!(store.begin_object(&key("x"), meta_of("x"), None).is_none());
        assert!(find_hit(&store, "http://h/").is_none());
        assert!(
            disk.run(disk::DiskOperationKind::Read, || Ok(()))
                .await
                .is_err()
        );
        release.send(()).unwrap();
        wait_until(&store, |usage| usage.state == StoreState::Working).await;
        assert!(
            read_stored_body(&store, "http://h/").await.is_some(),
            "the index is kept"
        );
    })
    .unwrap();
}

/// The open file of an object on the disk.
async fn open_dir_of(store: &Arc<Store>, text: &str) -> Arc<DiskFile> {
    let HitBody::Disk(object) = find_hit(store, text).unwrap().body else {
        panic!("it is on the disk");
    };
    object.open().await.unwrap().file
}

#[test]
fn an_object_that_cannot_be_read_takes_the_disk_out_and_does_not_come_back() {
    loops::block_on(async {
        let temp = TempFolder::new("unreadable");
        let store = start_store(&test_config(Some(temp.path()))).await;
        store_object(&store, "http://h/bad", &unique_body("bad", 500_000)).await;
        store_object(&store, "http://h/good", &unique_body("good", 500_000)).await;
        let file = open_dir_of(&store, "http://h/bad").await;
        file.report_error(&std::io::Error::from_raw_os_error(5));
        let usage = store.snapshot();
        assert!(
            is_out_of_service(&usage) && usage.counters.errors == 1,
            "{usage:?}"
        );
        assert!(find_hit(&store, "http://h/good").is_none(), "nobody waits");
        wait_until(&store, |usage| usage.state == StoreState::Working).await;
        assert!(find_hit(&store, "http://h/bad").is_none());
        assert!(
            read_stored_body(&store, "http://h/good").await.unwrap()
                == unique_body("good", 500_000)
        );
    })
    .unwrap();
}

#[test]
fn a_file_that_is_shorter_than_it_was_costs_its_object_and_not_the_disk() {
    loops::block_on(async {
        let temp = TempFolder::new("shorter");
        let store = start_store(&test_config(Some(temp.path()))).await;
        store_object(&store, "http://h/short", &unique_body("short", 500_000)).await;
        let file = open_dir_of(&store, "http://h/short").await;
        file.report_error(&std::io::ErrorKind::UnexpectedEof.into());
        let usage = store.snapshot();
        assert!(
            !is_out_of_service(&usage) && usage.counters.errors == 1,
            "{usage:?}"
        );
        assert!(find_hit(&store, "http://h/short").is_none());
    })
    .unwrap();
}

#[test]
fn a_disk_that_is_out_holds_no_file_open_and_may_be_read_only_before() {
    loops::block_on(async {
        let Some(mounted) = TestMount::new("unused", "32m") else {
            return;
        };
        let path = mounted.0.path().join("cache");
        let store = start_store(&test_config(Some(&path))).await;
        for name in ["http://h/1", "http://h/2"] {
            store_object(&store, name, &unique_body(name, 500_000)).await;
            drop(open_dir_of(&store, name).await);
        }
        let disk = Arc::clone(store.disk.as_ref().unwrap());
        wait_until(&store, |_| disk.maintenance_queue().discarded.is_empty()).await;
        assert!(!mounted.run("umount", &[]), "the folder is open");
        // No file is open for writing once all have their names.
        wait_until(&store, |_| mounted.run("mount", &["-o", "remount,ro"])).await;
        assert!(!store_object(&store, "http://h/3", &unique_body("3", 2_000_000)).await);
        wait_until(&store, is_out_of_service).await;
        wait_until(&store, |_| mounted.run("umount", &[])).await;
        assert!(mounted.mount("32m"));
        wait_until(&store, |usage| usage.state == StoreState::Working).await;
        assert!(store_object(&store, "http://h/1", &unique_body("x", 500_000)).await);
    })
    .unwrap();
}
