//! The spool's promises: order, bounds, back-pressure, ends that are failures.

use std::future::poll_fn;
use std::time::Duration;

use penstock_runtime::{clock, loops};

use super::*;
use crate::FaultKind;

fn store(memory: usize, file: u64) -> Arc<BodyStore> {
    Arc::new(BodyStore {
        body_memory: 0,
        response_memory: memory,
        response_spool: file,
        temp_dir: std::env::temp_dir(),
        pool: Pool::new("test", 1, 64),
    })
}

fn on_a_loop(test: impl Future<Output = ()>) {
    let done = loops::block_on(clock::within(Duration::from_secs(20), test));
    done.unwrap().expect("done within 20 s");
}

async fn next(reader: &mut SpoolReader) -> Option<Result<Bytes, Fault>> {
    poll_fn(|cx| reader.poll_chunk(cx)).await
}

async fn read_all(reader: &mut SpoolReader) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(piece) = next(reader).await {
        all.extend_from_slice(&piece.expect("a whole body"));
    }
    all
}

#[test]
fn pieces_come_out_in_order_through_memory_and_file() {
    on_a_loop(async {
        let (mut writer, mut reader) = spool(store(100, 1 << 20), false, None);
        let mut expected = Vec::new();
        for round in 0..200_u8 {
            let piece = vec![round; 1 + usize::from(round)];
            expected.extend_from_slice(&piece);
            writer.push(&piece);
            writer.settle().await.unwrap();
        }
        writer.finish(Ok(None));
        assert_eq!(read_all(&mut reader).await, expected);
    });
}

#[test]
fn a_reader_that_keeps_up_never_touches_the_file() {
    on_a_loop(async {
        let (mut writer, mut reader) = spool(store(100, 1 << 20), false, None);
        for round in 0..100_u8 {
            writer.push(&[round; 60]);
            assert!(!writer.is_over());
            assert_eq!(next(&mut reader).await.unwrap().unwrap(), vec![round; 60]);
        }
        assert!(writer.shared.lock().file.is_none());
    });
}

#[test]
fn an_unbuffered_response_makes_the_worker_wait() {
    on_a_loop(async {
        let (mut writer, mut reader) = spool(store(10, 0), false, None);
        writer.push(&[1; 10]);
        writer.push(&[2; 10]);
        assert!(writer.is_over());
        let mut settle = Box::pin(writer.settle());
        let waits = poll_fn(|cx| Poll::Ready(settle.as_mut().poll(cx).is_pending())).await;
        assert!(waits, "the second piece has no place yet");
        assert_eq!(next(&mut reader).await.unwrap().unwrap(), vec![1; 10]);
        settle.as_mut().await.unwrap();
        assert_eq!(next(&mut reader).await.unwrap().unwrap(), vec![2; 10]);
    });
}

#[test]
fn a_file_at_its_bound_makes_the_worker_wait_until_it_is_read() {
    on_a_loop(async {
        let (mut writer, mut reader) = spool(store(10, 100), false, None);
        let produce = async {
            for round in 0..50_u8 {
                writer.push(&[round; 40]);
                writer.settle().await.unwrap();
                assert!(writer.shared.lock().write_at <= 100);
            }
            writer.finish(Ok(None));
        };
        let (body, ()) = tokio::join!(read_all(&mut reader), produce);
        let expected: Vec<u8> = (0..50_u8).flat_map(|round| [round; 40]).collect();
        assert_eq!(body, expected);
    });
}

#[test]
fn a_writer_that_vanishes_is_not_the_end_of_the_body() {
    on_a_loop(async {
        let (mut writer, mut reader) = spool(store(100, 0), false, None);
        writer.push(b"half");
        drop(writer);
        assert_eq!(next(&mut reader).await.unwrap().unwrap(), "half");
        let fault = next(&mut reader).await.unwrap().unwrap_err();
        assert_eq!(fault.kind, FaultKind::WorkerDied);
    });
}

#[test]
fn a_reader_that_left_frees_the_worker() {
    on_a_loop(async {
        let (mut writer, reader) = spool(store(10, 0), false, None);
        writer.push(&[1; 10]);
        writer.push(&[2; 10]);
        let mut writer = Box::pin(async move {
            writer.settle().await.unwrap();
            writer
        });
        assert!(poll_fn(|cx| Poll::Ready(writer.as_mut().poll(cx).is_pending())).await);
        drop(reader);
        let writer = writer.await;
        assert!(poll_fn(|cx| Poll::Ready(writer.poll_gone(cx))).await);
    });
}
