//! Parts of content in memory and in a file are the same bytes.

use std::io::Write;
use std::sync::Arc;

use penstock_http::{Multipart, Span};
use penstock_runtime::DiskFile;
use penstock_runtime::blocking::Pool;

use super::{Whole, body, random};
use crate::{Body, FaultKind, FileBody};

const SPANS: [Span; 2] = [Span { start: 1, len: 3 }, Span { start: 8, len: 2 }];

fn framed() -> Multipart {
    Multipart::new(7, Some(b"text/plain"), &SPANS, 10)
}

/// The bytes that a body is made of, or why it was cut.
fn read(body: Body) -> Result<Vec<u8>, FaultKind> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut bytes = Vec::new();
        match body {
            Body::Bytes(all) => bytes.extend_from_slice(&all),
            Body::Stream(mut stream) => {
                while let Some(chunk) = std::future::poll_fn(|cx| stream.poll_chunk(cx)).await {
                    bytes.extend_from_slice(&chunk.map_err(|fault| fault.kind)?);
                }
            }
            other => panic!("{other:?}"),
        }
        Ok(bytes)
    })
}

/// A file with that content behind three bytes that are not its own.
fn file(content: &[u8]) -> FileBody {
    let mut file = penstock_sys::file::nameless(&std::env::temp_dir()).unwrap();
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
    let memory = body(Whole::Memory("0123456789".into()), framed());
    let length = memory.length();
    let memory = read(memory).unwrap();
    assert_eq!(length, Some(memory.len() as u64));
    let text = String::from_utf8(memory.clone()).unwrap();
    assert!(text.contains("bytes 1-3/10\r\n\r\n123\r\n"), "{text}");
    assert!(text.contains("bytes 8-9/10\r\n\r\n89\r\n"), "{text}");
    let on_disk = body(Whole::File(file(b"0123456789")), framed());
    assert_eq!(on_disk.length(), length);
    assert_eq!(read(on_disk), Ok(memory));
}

#[test]
fn a_file_that_became_shorter_is_cut() {
    let short = body(Whole::File(file(b"0123456")), framed());
    assert_eq!(read(short), Err(FaultKind::House));
}

#[test]
fn no_two_numbers_are_the_same() {
    assert_ne!(random(), random());
}
