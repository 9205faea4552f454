//! Large files: kept open, checked before each use, and never waited for.

use std::io::Write;

use super::*;

fn size(response: &Response) -> Option<u64> {
    response.body.length()
}

#[test]
fn a_large_file_stays_open_between_requests() {
    let site = Site::with_reliable_stamps(|_| {});
    site.dir.write_file("film.mp4", vec![0; 100_000]);
    site.ask("GET /film.mp4");
    let file = |response: Response| match response.body {
        Body::File(file) => Arc::as_ptr(&file.file),
        other => panic!("{other:?}"),
    };
    let first = file(site.response("GET /film.mp4", &[]));
    assert_eq!(site.ask("GET /film.mp4").0, ResponseTime::Immediate);
    assert_eq!(file(site.response("GET /film.mp4", &[])), first);
}

#[test]
fn an_open_file_that_changes_is_described_anew_at_once() {
    let mut site = Site::with_reliable_stamps(|_| {});
    if !site.tree().looks_up_on_loops() {
        return eprintln!("skipped: the temporary folder is on no local file system");
    }
    let mut written = site.dir.write_file("log.txt", vec![b'x'; 100_000]);
    let before = site.response("GET /log.txt", &[]);
    assert_eq!(size(&before), Some(100_000));
    written.write_all(b"more").unwrap();
    let after = site.response("GET /log.txt", &[]);
    assert_eq!(size(&after), Some(100_004));
    assert_ne!(before.fields.get("etag"), after.fields.get("etag"));
    written.set_len(80_000).unwrap();
    assert_eq!(size(&site.response("GET /log.txt", &[])), Some(80_000));
}

#[test]
fn a_replaced_file_shows_after_a_second() {
    let mut site = Site::with_reliable_stamps(|_| {});
    site.dir.write_file("a.bin", vec![0; 100_000]);
    assert_eq!(size(&site.response("GET /a.bin", &[])), Some(100_000));
    site.dir.write_file("new", vec![0; 200_000]);
    let root = site.dir.root();
    std::fs::rename(root.join("new"), root.join("a.bin")).unwrap();
    site.after(1001);
    assert_eq!(size(&site.response("GET /a.bin", &[])), Some(200_000));
    std::fs::remove_file(root.join("a.bin")).unwrap();
    site.after(1001);
    assert_eq!(site.ask("GET /a.bin").1, 404);
}

#[test]
fn cached_entries_do_not_wait_for_a_stuck_pool() {
    let pool = Pool::new("disk", 1, 100);
    let mut site = Site::with_pool(false, pool.clone());
    site.dir.write_file("known", "one");
    assert_eq!(
        site.ask("GET /known"),
        expect(ResponseTime::Pending, 200, "one")
    );
    site.after(1001);
    let (release, held) = std::sync::mpsc::sync_channel::<()>(0);
    let (started, begun) = std::sync::mpsc::sync_channel::<()>(0);
    pool.spawn(move || {
        started.send(()).ok();
        held.recv().ok();
    })
    .unwrap();
    begun.recv().unwrap();
    site.dir.write_file("known", "two");
    // The check continues in the pool, and the response uses the cached entry.
    block_on(async {
        let line = "GET /known";
        let HandlerProgress::Pending(work) = site.files.handle(request(line, &[], site.now)) else {
            panic!("at once")
        };
        let Ok(Reply::Response(response)) = work.await else {
            panic!("no answer")
        };
        assert_eq!(text(&response.body), "one");
        // When the pool continues, so does the check, and its result is cached.
        release.send(()).unwrap();
        let path = b"/known".as_slice();
        loop {
            let known = site.files.state.file_cache.look_up(path, site.now);
            if let FileCacheLookup::Fresh(CacheEntry::File(found)) = known
                && let ContentSource::Memory(content) = &found.original.source
                && content == "two"
            {
                break;
            }
            loops::yield_now().await;
        }
    });
}

#[test]
fn descriptors_have_a_bound() {
    let site = Site::with_reliable_stamps(|_| {});
    for number in 0..600 {
        let name = format!("{number}.bin");
        site.dir.write_file(&name, vec![0; 65_537]);
        let response = site.response(&format!("GET /{name}"), &[]);
        assert_eq!(size(&response), Some(65_537));
    }
    let prefix = site.dir.root();
    let count = || {
        let open = std::fs::read_dir("/proc/self/fd").unwrap();
        let of_site = open.flatten().filter(|entry| {
            std::fs::read_link(entry.path()).is_ok_and(|target| target.starts_with(&prefix))
        });
        of_site.count()
    };
    // Released files are closed in the pool.
    let deadline = Instant::now() + Duration::from_secs(30);
    while !(400..=crate::file_cache::MAX_ROOT_DESCRIPTORS + 1).contains(&count()) {
        assert!(Instant::now() < deadline, "{}", count());
        std::thread::yield_now();
    }
}

#[test]
fn several_parts_of_a_large_file_are_a_stream_of_known_length() {
    let site = Site::with_reliable_stamps(|_| {});
    site.dir.write_file("a.bin", vec![0; 100_000]);
    let range = [("Range", "bytes=0-1,50000-60000")];
    let response = site.response("GET /a.bin", &range);
    assert_eq!(response.status, Status::PARTIAL_CONTENT);
    assert!(matches!(response.body, Body::Stream(_)));
    assert!(size(&response).is_some_and(|size| (10_003..11_000).contains(&size)));
}

#[test]
fn one_that_could_not_be_checked_is_not_sent_under_an_old_description() {
    // No job is queued here: it runs at once or is refused.
    let pool = Pool::new("disk", 1, 0);
    let mut site = Site::with_setup(pool.clone(), false, |_| {});
    site.tree().override_settings(true, Duration::ZERO);
    if !site.tree().looks_up_on_loops() {
        return eprintln!("skipped: the temporary folder is on no local file system");
    }
    let written = site.dir.write_file("a.bin", vec![0; 100_000]);
    assert_eq!(site.ask("GET /a.bin").1, 200);
    // A response may arrive slightly before its thread is free again.
    let deadline = clock::now() + Duration::from_secs(60);
    while pool.snapshot().active > 0 {
        assert!(clock::now() < deadline, "never idle");
        std::thread::yield_now();
    }
    let (release, held) = std::sync::mpsc::sync_channel::<()>(0);
    let (started, begun) = std::sync::mpsc::sync_channel::<()>(0);
    pool.spawn(move || {
        started.send(()).ok();
        held.recv().ok();
    })
    .unwrap();
    begun.recv().unwrap();
    let check = || {
        let FileCacheLookup::Fresh(known) =
            site.files.state.file_cache.look_up(b"/a.bin", site.now)
        else {
            panic!("not known")
        };
        let request = request("GET /a.bin", &[], site.now);
        block_on(Arc::clone(&site.files.state).revalidate(request, known))
    };
    let answered = |checked: &Result<Reply, Fault>| match checked {
        Ok(Reply::Response(response)) => assert_eq!(size(response), Some(100_000)),
        other => panic!("{other:?}"),
    };
    answered(&check());
    written.set_len(80_000).unwrap();
    // The last check counts for a millisecond. Then the file would be reopened, which fails.
    let refused = loop {
        match check() {
            Err(fault) => break fault,
            checked => answered(&checked),
        }
        assert!(clock::now() < deadline, "never looked at again");
    };
    assert_eq!(refused.kind, FaultKind::Overloaded);
    release.send(()).unwrap();
}

#[test]
fn a_small_file_that_is_not_in_memory_is_read_among_the_reads() {
    let site = Site::new(false);
    let file = site.dir.write_file("a", "content");
    file.sync_all().unwrap();
    penstock_sys::page_cache::drop_cached_pages(&file).unwrap();
    assert_eq!(
        site.ask("GET /a"),
        expect(ResponseTime::Pending, 200, "content")
    );
    assert_eq!(
        site.ask("GET /a"),
        expect(ResponseTime::Immediate, 200, "content")
    );
}
