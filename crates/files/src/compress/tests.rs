//! What is compressed, how often, and within which bounds.

use penstock_runtime::loops;
use std::io::Read;

use super::*;
use crate::known::tests::{found, makeable};

const CODINGS: [Coding; 3] = [Coding::Zstd, Coding::Brotli, Coding::Gzip];

fn block_on<F: Future>(future: F) -> F::Output {
    loops::block_on(future).unwrap()
}

pub(crate) fn decode(coding: Coding, encoded: &[u8]) -> Vec<u8> {
    let mut content = Vec::new();
    match coding {
        Coding::Zstd => content = zstd::stream::decode_all(encoded).unwrap(),
        Coding::Brotli => brotli::BrotliDecompress(&mut &encoded[..], &mut content).unwrap(),
        Coding::Gzip => {
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
            // The same each time: two servers of the same version agree about the bytes.
            assert_eq!(encode(coding, content.as_bytes()).unwrap(), encoded);
        }
        assert!(encode(coding, text.as_bytes()).unwrap().len() < 200);
    }
}

/// Keeps plain work of a pool from being done until what this gives is dropped.
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

/// What the work comes to.
fn made(compressor: &Compressor, found: &Found, coding: Coding, pool: &Pool) -> Option<Bytes> {
    for _ in 0..2 {
        match compressor.get(found, coding, pool) {
            Progress::Done(content) => return content,
            Progress::Running(waiting) => block_on(waiting.done()),
            Progress::Busy => panic!("nothing else is done"),
        }
    }
    panic!("not done when it said so")
}

#[test]
fn what_is_made_once_is_there_for_everybody() {
    let (compressor, pool) = (Compressor::default(), Pool::new("disk", 2, 10));
    let text = Bytes::from("text ".repeat(1000));
    let found = makeable(text.clone());
    for coding in CODINGS {
        let first = made(&compressor, &found, coding, &pool).unwrap();
        assert_eq!(decode(coding, &first), text);
        let Progress::Done(Some(second)) = compressor.get(&found, coding, &pool) else {
            panic!("not kept")
        };
        assert_eq!(first.as_ptr(), second.as_ptr(), "the same memory");
    }
    pool.close();
}

#[test]
fn what_does_not_shrink_is_not_tried_again() {
    let (compressor, pool) = (Compressor::default(), Pool::new("disk", 2, 10));
    let mut noise = 1u32;
    let content: Bytes = (0..2000)
        .map(|_| {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            noise.to_be_bytes()[0]
        })
        .collect();
    let found = makeable(content);
    assert_eq!(made(&compressor, &found, Coding::Gzip, &pool), None);
    assert!(matches!(
        compressor.get(&found, Coding::Gzip, &pool),
        Progress::Done(None)
    ));
    pool.close();
}

#[test]
fn one_piece_of_work_for_all_who_ask_and_few_at_once() {
    let (compressor, pool) = (Compressor::default(), Pool::new("disk", 16, 10));
    let release = hold(&pool, 16);
    let found = makeable(Bytes::from("text ".repeat(1000)));
    let get = |coding| compressor.get(&found, coding, &pool);
    let (Progress::Running(first), Progress::Running(second)) =
        (get(Coding::Gzip), get(Coding::Gzip))
    else {
        panic!("not begun")
    };
    assert_eq!(compressor.lock().running, 1);
    assert!(matches!(get(Coding::Zstd), Progress::Running(_)));
    assert!(matches!(get(Coding::Brotli), Progress::Busy));
    // Other folders may still use the pool, as far as that goes.
    let others: Vec<_> = (0..3).map(|_| Compressor::default()).collect();
    let states = others
        .iter()
        .map(|other| other.get(&found, Coding::Gzip, &pool));
    let states: Vec<_> = states
        .map(|progress| matches!(progress, Progress::Running(_)))
        .collect();
    assert_eq!(states, [true, true, false], "four of sixteen threads");
    drop(release);
    block_on(async {
        first.done().await;
        second.done().await;
    });
    assert!(matches!(get(Coding::Gzip), Progress::Done(Some(_))));
    pool.close();
}

#[test]
fn work_that_is_lost_is_forgotten_and_nobody_waits_for_it() {
    let compressor = Compressor::default();
    let found = makeable(Bytes::from("text ".repeat(1000)));
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
        compressor.get(&found, Coding::Gzip, &full),
        Progress::Busy
    ));
    let state = compressor.lock();
    assert!(state.entries.is_empty() && state.running == 0);
    drop(state);
    release.send(()).unwrap();
    full.close();
}

#[test]
fn what_is_kept_has_a_bound() {
    let mut state = State::default();
    let content = Bytes::from(vec![0; 3 << 20]);
    let key = |place: usize| (found("a").original.identity.at(place), Coding::Gzip);
    for place in 0..20 {
        state.keep(key(place), Some(content.clone()));
        assert!(state.bytes <= BYTES_MAX);
        assert_eq!(state.entries.len(), state.made.len());
        assert!(state.entries.contains_key(&key(place)));
    }
    for place in 20..ENTRIES_MAX + 40 {
        state.keep(key(place), None);
    }
    assert_eq!((state.entries.len(), state.bytes), (ENTRIES_MAX, 0));
}
