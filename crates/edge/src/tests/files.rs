//! Bodies from files: in memory and not, whole and cut, fast and slow.

#![expect(clippy::print_stderr, reason = "says what cannot be tested here")]

use std::fs::File;

use penstock_exchange::{Body, BodyRate, FileBody, InlineBody, InlineResponse, RequestView};
use penstock_runtime::DiskFile;
use penstock_runtime::blocking::Pool;
use penstock_runtime::disk::CHUNK_BYTES;
use penstock_sys::{file, page_cache};

use super::*;

fn byte(at: u64) -> u8 {
    (at % 251) as u8
}

/// A file of so many bytes, on the disk if there is one.
fn file_of(len: u64) -> File {
    let mut file = file::unnamed_temp_file(&std::env::temp_dir()).unwrap();
    let content: Vec<u8> = (0..len).map(byte).collect();
    file.write_all(&content).unwrap();
    file.sync_all().unwrap();
    file
}

/// `/START-LEN` is that part of the file.
fn parts(file: &Arc<DiskFile>, rate_max: Option<u64>) -> TestEdge {
    let file = Arc::clone(file);
    let handler = handler_fn(move |request| {
        let path = String::from_utf8(request.path().to_vec()).unwrap();
        let (start, len) = path[1..].split_once('-').unwrap();
        let body = Body::File(FileBody {
            file: Arc::clone(&file),
            start: start.parse().unwrap(),
            len: len.parse().unwrap(),
        });
        let mut response = Response::new(Status::OK, body);
        response.max_rate = rate_max.map(BodyRate::of_response).map(Box::new);
        ready(response)
    });
    TestEdge::new(vec![route("/", handler)])
}

impl Client {
    /// Reads a head and its body, which must be the file's.
    fn expect_part(&mut self, start: u64, len: u64) {
        let head = self.head();
        assert!(
            head.contains(&format!("Content-Length: {len}\r\n")),
            "{head}"
        );
        let mut body = vec![0; usize::try_from(len).unwrap()];
        self.0.read_exact(&mut body).unwrap();
        let wrong = (start..).zip(&body).find(|&(at, &got)| got != byte(at));
        assert_eq!(wrong, None, "{start}-{len}");
    }
}

#[test]
fn a_part_of_a_file_arrives_whole_from_memory_and_from_the_disk() {
    let len = 2 * CHUNK_BYTES + 300_000;
    let pool = Pool::new("disk", 2, 100);
    let file = Arc::new(DiskFile::new(file_of(len), pool.clone()));
    for rate_max in [None, Some(1_000_000_000)] {
        let house = parts(&file, rate_max);
        let mut client = house.connect();
        for (start, part) in [
            (0, 1),
            (0, len),
            (len - 1, 1),
            (5, 16 * 1024),
            (70_000, 16 * 1024 + 1),
            (CHUNK_BYTES - 1, 2),
            (CHUNK_BYTES - 10, CHUNK_BYTES + 20),
            (100, 0),
        ] {
            for is_cold in [true, false] {
                if is_cold {
                    page_cache::drop_cached_pages(file.file().unwrap()).unwrap();
                }
                client.get(&format!("/{start}-{part}"));
                client.expect_part(start, part);
            }
        }
        // Two at once, and then there is nothing more.
        client.send(["GET /1-100000 HTTP/1.1\r\nHost: h\r\n\r\n"; 2].concat());
        client.expect_part(1, 100_000);
        client.expect_part(1, 100_000);
        client.send("GET /7-5 HTTP/1.0\r\n\r\n");
        client.expect_part(7, 5);
        client.expect_end();
    }
    pool.close();
}

#[test]
fn resident_files_are_sent_without_a_thread() {
    let len = 3 * CHUNK_BYTES;
    let pool = Pool::new("disk", 1, 0);
    let file = Arc::new(DiskFile::new(file_of(len), pool.clone()));
    let house = parts(&file, None);
    let mut client = house.connect();
    client.get("/0-10").expect_part(0, 10);
    wait_until("the thread is free", || pool.snapshot().active == 0);
    if file.resident_bytes(0, len) == 0 {
        eprintln!("left out: pages cannot be counted below the temporary folder");
        return;
    }
    let (release, held) = std::sync::mpsc::sync_channel::<()>(1);
    let busy = pool.spawn(move || {
        held.recv_timeout(TEST_TIMEOUT).ok();
    });
    busy.unwrap();
    client.get(&format!("/0-{len}")).expect_part(0, len);
    // An answer stands for some milliseconds, and pages that a socket still has are not dropped.
    wait_until("nothing of it is in memory", || {
        page_cache::drop_cached_pages(file.file().unwrap()).unwrap();
        file.resident_bytes(0, len) == 0
    });
    // Nothing is out yet, so the client can be told.
    let head = client.get(&format!("/0-{len}")).head();
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    release.send(()).unwrap();
    pool.close();
}

#[test]
fn a_disconnect_ends_a_disk_wait_and_a_half_close_does_not() {
    let pool = Pool::new("disk", 1, 100);
    let file = Arc::new(DiskFile::new(file_of(100_000), pool.clone()));
    let house = parts(&file, None);
    let hold = || {
        let (release, held) = std::sync::mpsc::sync_channel::<()>(1);
        let busy = pool.spawn(move || {
            held.recv_timeout(3 * TEST_TIMEOUT).ok();
        });
        busy.unwrap();
        release
    };
    let release = hold();
    let mut client = house.connect();
    client.get("/0-100000");
    wait_until("it waits for the disk", || pool.snapshot().queued == 1);
    drop(client);
    // The thread is held for longer than any wait of this test.
    house.wait_for_connections(0);
    release.send(()).unwrap();
    wait_until("the thread is free", || pool.snapshot().active == 0);
    // However long it takes: the head begins ahead of the body, to learn whether the client is
    // there.
    let release = hold();
    let mut client = house.connect();
    client.get("/0-100000");
    client.0.shutdown(std::net::Shutdown::Write).unwrap();
    let mut first = [0; 2];
    client.0.peek(&mut first).unwrap();
    wait_until("more of the head", || {
        client.0.peek(&mut first).unwrap() == 2
    });
    assert_eq!(&first, b"HT");
    release.send(()).unwrap();
    client.expect_part(0, 100_000);
    pool.close();
}

#[test]
fn a_truncated_file_aborts_the_response() {
    let pool = Pool::new("disk", 1, 100);
    let file = Arc::new(DiskFile::new(file_of(CHUNK_BYTES), pool.clone()));
    let house = parts(&file, None);
    for (target, is_cold) in [
        ("/0-1000000", true),
        ("/0-1000000", false),
        ("/500000-100000", false),
    ] {
        if is_cold {
            page_cache::drop_cached_pages(file.file().unwrap()).unwrap();
        }
        let mut client = house.connect();
        client.get(target).head();
        let mut body = Vec::new();
        let end = client.0.read_to_end(&mut body);
        assert!(end.is_err(), "{target}: a clean end after {}", body.len());
    }
    // No byte of the body is out: the client gets an error.
    let mut client = house.connect();
    let head = client.get("/600000-1000").head();
    assert!(head.starts_with("HTTP/1.1 500 "), "{head}");
    house.wait_for_connections(1);
    pool.close();
}

#[test]
fn a_slow_client_does_not_hold_what_was_read_while_memory_is_scarce() {
    let len = 32 * CHUNK_BYTES;
    let pool = Pool::new("disk", 2, 1000);
    let file = Arc::new(DiskFile::new(file_of(len), pool.clone()));
    let house = parts(&file, None);
    // A hole of forty megabytes, read and not let go.
    let hole = file::unnamed_temp_file(&std::env::temp_dir()).unwrap();
    hole.set_len(80 * CHUNK_BYTES).unwrap();
    let hole = Arc::new(DiskFile::new(hole, pool.clone()));
    let (give, held) = std::sync::mpsc::sync_channel(1);
    let reader = Arc::clone(&hole);
    house.spawn(async move {
        let mut held = Vec::new();
        for chunk in 0..80 {
            let piece = reader.read(chunk * CHUNK_BYTES, CHUNK_BYTES).await;
            held.push(piece.unwrap());
        }
        give.send(held).unwrap();
    });
    let held = held.recv_timeout(TEST_TIMEOUT).unwrap();
    page_cache::drop_cached_pages(hole.file().unwrap()).unwrap();
    if hole.resident_bytes(0, 1) > 0 {
        eprintln!("left out: no pages to be dropped below the temporary folder");
        return;
    }
    assert!(hole.is_memory_scarce());
    page_cache::drop_cached_pages(file.file().unwrap()).unwrap();
    let before = pool.snapshot().run_time.count;
    let mut client = house.connect();
    let head = client.get(&format!("/0-{len}")).head();
    assert!(head.contains("Content-Length: 16777216\r\n"), "{head}");
    let mut piece = vec![0; 512 * 1024];
    let mut at = 0;
    while at < len {
        let count = client.0.read(&mut piece).unwrap();
        let wrong = (at..)
            .zip(&piece[..count])
            .find(|&(at, &got)| got != byte(at));
        assert_eq!((wrong, count > 0), (None, true), "{at}");
        at += count as u64;
        page_cache::drop_cached_pages(file.file().unwrap()).unwrap();
    }
    // What was let go was read again, and less of it at a time.
    wait_until("all is read", || pool.snapshot().active == 0);
    let readings = pool.snapshot().run_time.count - before;
    assert!(readings > 2 * len / CHUNK_BYTES, "{readings}");
    drop(held);
    assert!(!hole.is_memory_scarce());
    pool.close();
}

/// Has the whole file in memory.
#[derive(Debug)]
struct InlineFile(FileBody);

impl Handler for InlineFile {
    fn handle(&self, request: Request) -> HandlerProgress {
        let at = String::from_utf8_lossy(request.path()).into_owned();
        ready(Response::with_text(Status::NOT_FOUND, "text/plain", at))
    }

    fn try_inline(&self, _: &RequestView<'_>, take: &mut dyn FnMut(InlineResponse<'_>)) {
        take(InlineResponse {
            status: Status::OK,
            fields: &fields(&[("Content-Type", "text/plain")]),
            body: InlineBody::File(self.0.clone()),
            handler: "lends",
        });
    }
}

#[test]
fn an_inline_file_arrives_whole_from_memory_and_from_disk() {
    for len in [1, 16 * 1024, 100_000, CHUNK_BYTES + 10] {
        let pool = Pool::new("disk", 2, 100);
        let body = FileBody {
            file: Arc::new(DiskFile::new(file_of(len), pool.clone())),
            start: 0,
            len,
        };
        let house = TestEdge::new(vec![route("/", Arc::new(InlineFile(body.clone())))]);
        let mut client = house.connect();
        for is_cold in [true, false] {
            if is_cold {
                page_cache::drop_cached_pages(body.file.file().unwrap()).unwrap();
            }
            // Two at once, and one that wants the head alone.
            client.send(
                [
                    "GET /a HTTP/1.1\r\nHost: h\r\n\r\n",
                    "HEAD /a HTTP/1.1\r\nHost: h\r\n\r\n",
                    "GET /a HTTP/1.1\r\nHost: h\r\n\r\n",
                ]
                .concat(),
            );
            client.expect_part(0, len);
            let head = client.head();
            assert!(
                head.contains(&format!("Content-Length: {len}\r\n")),
                "{head}"
            );
            client.expect_part(0, len);
        }
        client.send("GET /a HTTP/1.0\r\n\r\n");
        client.expect_part(0, len);
        client.expect_end();
        pool.close();
    }
}

#[test]
fn an_unreadable_inline_file_gets_an_error() {
    let pool = Pool::new("disk", 1, 0);
    let file = Arc::new(DiskFile::new(file_of(100_000), pool.clone()));
    let (release, held) = std::sync::mpsc::sync_channel::<()>(1);
    let busy = pool.spawn(move || {
        held.recv_timeout(TEST_TIMEOUT).ok();
    });
    busy.unwrap();
    let len = 100_000;
    let body = FileBody {
        file,
        start: 0,
        len,
    };
    let house = TestEdge::new(vec![route("/", Arc::new(InlineFile(body)))]);
    let mut client = house.connect();
    let head = client.get("/a").head();
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    release.send(()).unwrap();
    pool.close();
}
