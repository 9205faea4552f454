//! Parts of content in memory and in a file are the same bytes.

use std::io::Write;
use std::sync::Arc;

use penstock_http::{ByteRange, MultipartRanges};
use penstock_runtime::blocking::Pool;
use penstock_runtime::disk::SMALL_READ_BYTES;
use penstock_runtime::{DiskFile, loops};

use super::{MultipartSource, multipart_body, random_boundary};
use crate::{Body, FaultKind, FileBody};

const SPANS: [ByteRange; 2] = [
    ByteRange { start: 1, len: 3 },
    ByteRange { start: 8, len: 2 },
];

fn framed() -> MultipartRanges {
    MultipartRanges::new(7, Some(b"text/plain"), &SPANS, 10)
}

/// Returns the bytes of a body, or the kind of fault that cut it.
fn read(body: Body) -> Result<Vec<u8>, FaultKind> {
    loops::block_on(async {
        let mut bytes = Vec::new();
        match body {
            Body::Bytes(all) => bytes.extend_from_slice(&all),
            Body::Stream(mut stream) => {
                while let Some(chunk) = std::future::poll_fn(|cx| stream.poll_chunk(cx)).await {
                    let chunk = chunk.map_err(|fault| fault.kind)?;
                    assert!(chunk.len() as u64 <= SMALL_READ_BYTES);
                    bytes.extend_from_slice(&chunk);
                }
            }
            other => panic!("{other:?}"),
        }
        Ok(bytes)
    })
    .unwrap()
}

fn read_bytes(body: Body) -> Vec<u8> {
    match body {
        Body::Bytes(all) => all.to_vec(),
        other => panic!("{other:?}"),
    }
}

/// Returns a file with that content behind three other bytes.
fn file(content: &[u8]) -> FileBody {
    let mut file = penstock_sys::file::unnamed_temp_file(&std::env::temp_dir()).unwrap();
    file.write_all(b"xxx").unwrap();
    file.write_all(content).unwrap();
    FileBody {
        file: Arc::new(DiskFile::new(file, Pool::new("test", 1, 10))),
        start: 3,
        len: 10,
    }
}

#[test]
fn a_file_gives_the_same_parts_as_memory() {
    let memory = multipart_body(MultipartSource::Memory("0123456789".into()), framed());
    let length = memory.length();
    let memory = read(memory).unwrap();
    assert_eq!(length, Some(memory.len() as u64));
    let text = String::from_utf8(memory.clone()).unwrap();
    assert!(text.contains("bytes 1-3/10\r\n\r\n123\r\n"), "{text}");
    assert!(text.contains("bytes 8-9/10\r\n\r\n89\r\n"), "{text}");
    let on_disk = multipart_body(MultipartSource::File(file(b"0123456789")), framed());
    assert_eq!(on_disk.length(), length);
    assert_eq!(read(on_disk), Ok(memory));
}

#[test]
fn a_truncated_file_ends_in_a_fault() {
    let short = multipart_body(MultipartSource::File(file(b"0123456")), framed());
    assert_eq!(read(short), Err(FaultKind::Internal));
}

#[test]
fn a_long_part_comes_in_small_pieces() {
    let content = "0123456789".repeat(30_000);
    let spans = [
        ByteRange {
            start: 5,
            len: 200_000,
        },
        ByteRange { start: 9, len: 1 },
    ];
    let framed = || MultipartRanges::new(7, None, &spans, 300_000);
    let mut whole = file(content.as_bytes());
    whole.len = 300_000;
    let on_disk = read(multipart_body(MultipartSource::File(whole), framed())).unwrap();
    let memory = read_bytes(multipart_body(
        MultipartSource::Memory(content.into()),
        framed(),
    ));
    assert!(on_disk == memory);
}

#[test]
fn a_full_pool_is_reported_before_the_first_byte() {
    let pool = Pool::new("test", 1, 0);
    let (release, held) = std::sync::mpsc::sync_channel::<()>(1);
    let busy = pool.spawn(move || {
        held.recv_timeout(std::time::Duration::from_secs(20)).ok();
    });
    busy.unwrap();
    let mut whole = file(b"0123456789");
    let unread = penstock_sys::file::unnamed_temp_file(&std::env::temp_dir()).unwrap();
    whole.file = Arc::new(DiskFile::new(unread, pool.clone()));
    let Body::Stream(mut stream) = multipart_body(MultipartSource::File(whole), framed()) else {
        panic!("it is read while it is sent");
    };
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    let first = stream.poll_chunk(&mut cx);
    let std::task::Poll::Ready(Some(Err(fault))) = first else {
        panic!("{first:?}");
    };
    assert_eq!(fault.kind, FaultKind::Overloaded);
    release.send(()).unwrap();
    pool.close();
}

#[test]
fn boundaries_differ() {
    assert_ne!(random_boundary(), random_boundary());
}
