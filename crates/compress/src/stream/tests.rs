//! Streams against the decoders of their codings, over sources that a test feeds.

use std::future::poll_fn;
use std::sync::mpsc;
use std::time::Instant;

use penstock_config::ContentCoding;
use penstock_runtime::blocking::Pool;
use penstock_runtime::loops;

use super::*;
use crate::encoder::{EncoderSettings, EncoderSize};
use crate::encoders::EncoderUse;
use crate::testing::{BodyControl, decode, decode_so_far, json};

const PATIENCE: Duration = Duration::from_secs(20);

const CODINGS: [ContentCoding; 3] = [
    ContentCoding::Zstd,
    ContentCoding::Brotli,
    ContentCoding::Gzip,
];

fn stream_with(
    compressor: &Compressor,
    coding: ContentCoding,
    source: Source,
    policy: FlushPolicy,
) -> CompressedStream {
    let settings = EncoderSettings {
        coding,
        level: 3,
        size: match policy {
            FlushPolicy::EachPiece => EncoderSize::Small,
            FlushPolicy::OnPause => EncoderSize::Full,
        },
    };
    let lease = compressor.acquire(settings, None, EncoderUse::KnownLength);
    let lease = lease.unwrap();
    CompressedStream::new(compressor, lease, source, policy)
}

fn stream(coding: ContentCoding, source: Source, policy: FlushPolicy) -> CompressedStream {
    stream_with(&Compressor::default(), coding, source, policy)
}

async fn next(stream: &mut CompressedStream) -> Option<Result<Bytes, Fault>> {
    let piece = clock::timeout(PATIENCE, poll_fn(|cx| stream.poll_chunk(cx))).await;
    piece.expect("the stream stands still")
}

async fn read_all(stream: &mut CompressedStream) -> Result<Vec<u8>, Fault> {
    let mut all = Vec::new();
    while let Some(piece) = next(stream).await {
        let piece = piece?;
        assert!(!piece.is_empty());
        all.extend_from_slice(&piece);
    }
    Ok(all)
}

fn run<F: Future>(test: F) -> F::Output {
    loops::block_on(test).unwrap()
}

#[test]
fn bodies_of_any_size_and_shape_decode_to_what_went_in() {
    for coding in CODINGS {
        for (len, piece_len) in [
            (0, 1),
            (1, 1),
            (5000, 7),
            (100_000, 16_384),
            (3 << 20, 64 << 10),
            (3 << 20, 3 << 20),
        ] {
            let body = json(len);
            let control = BodyControl::default();
            for piece in body.chunks(piece_len) {
                control.push_bytes(piece.to_vec());
            }
            control.push(None);
            let source = Source::Stream(control.body(Some(len as u64)));
            let encoded = run(async {
                let mut stream = stream(coding, source, FlushPolicy::OnPause);
                assert_eq!(stream.length(), None);
                let encoded = read_all(&mut stream).await.unwrap();
                assert!(next(&mut stream).await.is_none());
                assert!(stream.take_trailers().is_some());
                encoded
            });
            assert!(decode(coding, &encoded) == body, "{coding:?} {len}");
        }
        let body = json(500_000);
        let source = Source::Memory(body.clone().into());
        let mut stream = stream(coding, source, FlushPolicy::OnPause);
        let encoded = run(read_all(&mut stream)).unwrap();
        assert!(decode(coding, &encoded) == body, "{coding:?} in memory");
    }
}

#[test]
fn events_are_flushed_at_once() {
    for coding in CODINGS {
        let control = BodyControl::default();
        let source = Source::Stream(control.body(None));
        let mut stream = stream(coding, source, FlushPolicy::EachPiece);
        let (mut encoded, mut body) = (Vec::new(), Vec::new());
        run(async {
            for number in 0..50 {
                let event = format!("data: event {number}\n\n");
                body.extend_from_slice(event.as_bytes());
                control.push_bytes(event);
                // Without a wait for a timer.
                let piece = poll_fn(|cx| Poll::Ready(stream.poll_chunk(cx))).await;
                let Poll::Ready(Some(Ok(piece))) = piece else {
                    panic!("{coding:?}: an event stayed in the encoder");
                };
                encoded.extend_from_slice(&piece);
                assert!(decode_so_far(coding, &encoded) == body, "{coding:?}");
                let more = poll_fn(|cx| Poll::Ready(stream.poll_chunk(cx))).await;
                assert!(more.is_pending(), "{coding:?}");
            }
            control.push(None);
            encoded.extend(read_all(&mut stream).await.unwrap());
        });
        assert!(decode(coding, &encoded) == body, "{coding:?}");
    }
}

#[test]
fn a_source_that_pauses_is_flushed_soon() {
    for coding in CODINGS {
        let control = BodyControl::default();
        let source = Source::Stream(control.body(None));
        let mut stream = stream(coding, source, FlushPolicy::OnPause);
        run(async {
            control.push_bytes("first ");
            let first = poll_fn(|cx| Poll::Ready(stream.poll_chunk(cx))).await;
            assert!(first.is_pending(), "{coding:?}: flushed at once");
            control.push_bytes("second");
            let started = Instant::now();
            let piece = next(&mut stream).await.unwrap().unwrap();
            assert!(
                decode_so_far(coding, &piece) == b"first second",
                "{coding:?}"
            );
            assert!(started.elapsed() < PATIENCE / 2, "{coding:?}");
            // Nothing is kept back: no timer runs, and none fires.
            let more = clock::timeout(5 * FLUSH_DELAY, poll_fn(|cx| stream.poll_chunk(cx)));
            assert!(more.await.is_none(), "{coding:?}");
        });
    }
}

#[test]
fn a_source_is_read_no_faster_than_the_client_takes() {
    for coding in CODINGS {
        let control = BodyControl::default();
        let mut seed = 7_u64;
        let mut noise = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 56) as u8
        };
        for _ in 0..100 {
            control.push_bytes((0..32 << 10).map(|_| noise()).collect::<Vec<u8>>());
        }
        let source = Source::Stream(control.body(None));
        let mut stream = stream(coding, source, FlushPolicy::OnPause);
        let piece = run(next(&mut stream)).unwrap().unwrap();
        // 256 KiB; `br` fills its ring buffer of 512 KiB before it gives out noise.
        let most = if coding == ContentCoding::Brotli {
            24
        } else {
            8
        };
        assert!(control.taken() <= most, "{coding:?}: {}", control.taken());
        assert!(piece.len() <= 6 * MAX_PIECE_BYTES, "{coding:?}");
    }
}

#[test]
fn a_source_that_fails_or_lies_fails_the_body() {
    for (length, end, expected) in [
        (Some(5), None, "shorter"),
        (Some(3), None, "longer"),
        (None, Some(Err("the server left")), "the server left"),
        (Some(100), Some(Err("the server left")), "the server left"),
    ] {
        let control = BodyControl::default();
        control.push_bytes("abcd");
        control.push(end);
        let source = Source::Stream(control.body(length));
        let mut stream = stream(ContentCoding::Gzip, source, FlushPolicy::OnPause);
        let fault = run(read_all(&mut stream)).unwrap_err();
        assert!(fault.cause.contains(expected), "{}", fault.cause);
    }
}

#[test]
fn a_full_pool_holds_up_no_body() {
    let pool = Pool::new("compression", 1, 0);
    let (release, held) = mpsc::channel::<()>();
    pool.spawn(move || held.recv().unwrap_or_default()).unwrap();
    let compressor = Compressor::with_pool(pool);
    let body = json(1 << 20);
    let source = Source::Memory(body.clone().into());
    let mut stream = stream_with(
        &compressor,
        ContentCoding::Gzip,
        source,
        FlushPolicy::OnPause,
    );
    let encoded = run(read_all(&mut stream)).unwrap();
    assert!(decode(ContentCoding::Gzip, &encoded) == body);
    drop(release);
}

#[test]
fn a_body_that_is_dropped_gives_its_memory_back() {
    let pool = Pool::new("compression", 1, 16);
    let (release, held) = mpsc::channel::<()>();
    pool.spawn(move || held.recv().unwrap_or_default()).unwrap();
    let compressor = Compressor::with_pool(pool);
    let source = Source::Memory(json(1 << 20).into());
    let coding = ContentCoding::Zstd;
    let mut stream = stream_with(&compressor, coding, source, FlushPolicy::OnPause);
    run(async {
        let waits = poll_fn(|cx| Poll::Ready(stream.poll_chunk(cx))).await;
        assert!(waits.is_pending(), "the pool is occupied");
    });
    drop(stream);
    assert!(
        compressor.snapshot().memory_bytes > 0,
        "its job has the encoder"
    );
    drop(release);
    run(async {
        let is_back = async {
            while compressor.snapshot().memory_bytes > 0 {
                loops::yield_now().await;
            }
        };
        let is_back = clock::timeout(PATIENCE, is_back).await;
        is_back.expect("the job ends");
    });
}

#[test]
fn bytes_are_counted_before_and_behind() {
    let compressor = Compressor::default();
    let source = Source::Memory(json(300_000).into());
    let coding = ContentCoding::Gzip;
    let mut stream = stream_with(&compressor, coding, source, FlushPolicy::OnPause);
    let encoded = run(read_all(&mut stream)).unwrap();
    let now = compressor.snapshot();
    assert_eq!(now.input_bytes, 300_000);
    assert_eq!(now.output_bytes, encoded.len() as u64);
}
