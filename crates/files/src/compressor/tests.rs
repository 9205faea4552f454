//! Compression: results, number of jobs, limits.

use penstock_runtime::loops;
use std::io::Read;

use super::*;
use crate::file_entry::tests::{compressible_entry, file_entry};

const CODINGS: [ContentCoding; 3] = [
    ContentCoding::Zstd,
    ContentCoding::Brotli,
    ContentCoding::Gzip,
];

fn block_on<F: Future>(future: F) -> F::Output {
    loops::block_on(future).unwrap()
}

pub(crate) fn decode(coding: ContentCoding, encoded: &[u8]) -> Vec<u8> {
    let mut content = Vec::new();
    match coding {
        ContentCoding::Zstd => content = zstd::stream::decode_all(encoded).unwrap(),
        ContentCoding::Brotli => brotli::BrotliDecompress(&mut &encoded[..], &mut content).unwrap(),
        ContentCoding::Gzip => {
            let mut decoder = flate2::read::GzDecoder::new(encoded);
            decoder.read_to_end(&mut content).unwrap();
        }
    }
    content
}

#[test]
fn every_coding_gives_the_content_back() {
    let text = "some text that shrinks ".repeat(1000);
    for coding in CODINGS {
        for content in ["", "x", &text] {
            let encoded = encode(coding, content.as_bytes()).unwrap();
            assert_eq!(decode(coding, &encoded), content.as_bytes(), "{coding:?}");
            // Deterministic: two servers of the same version produce the same bytes.
            assert_eq!(encode(coding, content.as_bytes()).unwrap(), encoded);
        }
        assert!(encode(coding, text.as_bytes()).unwrap().len() < 200);
    }
}

/// Blocks ordinary work of a pool until the result is dropped.
fn hold(pool: &Pool, threads: usize) -> Vec<std::sync::mpsc::SyncSender<()>> {
    let hold = |_| {
        let (release, held) = std::sync::mpsc::sync_channel::<()>(0);
        pool.spawn(move || {
            held.recv().ok();
        })
        .unwrap();
        release
    };
    (0..threads).map(hold).collect()
}

/// The result of the compression.
fn compressed(
    compressor: &Compressor,
    found: &FileEntry,
    coding: ContentCoding,
    pool: &Pool,
) -> Option<Bytes> {
    for _ in 0..2 {
        match compressor.get_or_start(found, coding, pool) {
            CompressionStatus::Done(content) => return content,
            CompressionStatus::Running(waiting) => block_on(waiting.wait()),
            CompressionStatus::Busy => panic!("nothing else is done"),
        }
    }
    panic!("not done when it said so")
}

#[test]
fn a_result_is_shared() {
    let (compressor, pool) = (Compressor::default(), Pool::new("disk", 2, 10));
    let text = Bytes::from("text ".repeat(1000));
    let found = compressible_entry(text.clone());
    for coding in CODINGS {
        let first = compressed(&compressor, &found, coding, &pool).unwrap();
        assert_eq!(decode(coding, &first), text);
        let CompressionStatus::Done(Some(second)) = compressor.get_or_start(&found, coding, &pool)
        else {
            panic!("not kept")
        };
        assert_eq!(first.as_ptr(), second.as_ptr(), "the same memory");
    }
    pool.close();
}

#[test]
fn an_incompressible_file_is_not_tried_again() {
    let (compressor, pool) = (Compressor::default(), Pool::new("disk", 2, 10));
    let mut noise = 1u32;
    let content: Bytes = (0..2000)
        .map(|_| {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            noise.to_be_bytes()[0]
        })
        .collect();
    let found = compressible_entry(content);
    assert_eq!(
        compressed(&compressor, &found, ContentCoding::Gzip, &pool),
        None
    );
    assert!(matches!(
        compressor.get_or_start(&found, ContentCoding::Gzip, &pool),
        CompressionStatus::Done(None)
    ));
    pool.close();
}

#[test]
fn jobs_are_shared_and_their_number_is_bounded() {
    let (compressor, pool) = (Compressor::default(), Pool::new("disk", 16, 10));
    let release = hold(&pool, 16);
    let found = compressible_entry(Bytes::from("text ".repeat(1000)));
    let get = |coding| compressor.get_or_start(&found, coding, &pool);
    let (CompressionStatus::Running(first), CompressionStatus::Running(second)) =
        (get(ContentCoding::Gzip), get(ContentCoding::Gzip))
    else {
        panic!("not begun")
    };
    assert_eq!(compressor.lock().running, 1);
    assert!(matches!(
        get(ContentCoding::Zstd),
        CompressionStatus::Running(_)
    ));
    assert!(matches!(
        get(ContentCoding::Brotli),
        CompressionStatus::Busy
    ));
    // Other roots may use the rest of the pool's permits.
    let others: Vec<_> = (0..3).map(|_| Compressor::default()).collect();
    let states = others
        .iter()
        .map(|other| other.get_or_start(&found, ContentCoding::Gzip, &pool));
    let states: Vec<_> = states
        .map(|progress| matches!(progress, CompressionStatus::Running(_)))
        .collect();
    assert_eq!(states, [true, true, false], "four of sixteen threads");
    drop(release);
    block_on(async {
        first.wait().await;
        second.wait().await;
    });
    assert!(matches!(
        get(ContentCoding::Gzip),
        CompressionStatus::Done(Some(_))
    ));
    pool.close();
}

#[test]
fn a_lost_job_is_removed_and_wakes_its_waiters() {
    let compressor = Compressor::default();
    let found = compressible_entry(Bytes::from("text ".repeat(1000)));
    let full = Pool::new("disk", 1, 1);
    let (release, held) = std::sync::mpsc::sync_channel::<()>(0);
    let (started, begun) = std::sync::mpsc::sync_channel::<()>(0);
    full.spawn(move || {
        started.send(()).ok();
        held.recv().ok();
    })
    .unwrap();
    begun.recv().unwrap();
    full.spawn(|| {}).unwrap();
    assert!(matches!(
        compressor.get_or_start(&found, ContentCoding::Gzip, &full),
        CompressionStatus::Busy
    ));
    let state = compressor.lock();
    assert!(state.entries.is_empty() && state.running == 0);
    drop(state);
    release.send(()).unwrap();
    full.close();
}

#[test]
fn results_are_bounded() {
    let mut state = CompressorState::default();
    let content = Bytes::from(vec![0; 3 << 20]);
    let key = |place: usize| {
        (
            file_entry("a").original.stamp.with_candidate(place),
            ContentCoding::Gzip,
        )
    };
    for place in 0..20 {
        state.store(key(place), Some(content.clone()));
        assert!(state.bytes <= MAX_CACHED_BYTES);
        assert_eq!(state.entries.len(), state.finished.len());
        assert!(state.entries.contains_key(&key(place)));
    }
    for place in 20..MAX_ENTRIES + 40 {
        state.store(key(place), None);
    }
    assert_eq!((state.entries.len(), state.bytes), (MAX_ENTRIES, 0));
}
