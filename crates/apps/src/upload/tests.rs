//! A body that is played here, and a driver that asks for it: on one loop, step by step.

use std::sync::atomic::Ordering;

use super::*;
use crate::testing::{BodyScript, ScriptedBody, ScriptedConnection};

fn begin() -> (Arc<ScriptedConnection>, Arc<Upload>, UploadReader) {
    let (line, body) = ScriptedBody::new();
    let upload = Upload::spawn(Box::new(body), Arc::default());
    let reader = upload.reader();
    (line, upload, reader)
}

async fn next(reader: &UploadReader) -> UploadPiece {
    std::future::poll_fn(|cx| reader.poll_next(cx, true)).await
}

async fn taken(reader: &UploadReader) -> (usize, bool) {
    match next(reader).await {
        UploadPiece::Bytes { bytes, is_last } => (bytes.len(), is_last),
        UploadPiece::Failed(fault) => panic!("{fault:?}"),
    }
}

/// Lets the other tasks of the loop have some turns.
async fn others() {
    for _ in 0..10 {
        loops::yield_now().await;
    }
}

#[test]
fn a_client_is_read_no_further_than_a_piece_ahead() {
    loops::block_on(async {
        let (line, _upload, reader) = begin();
        for _ in 0..100 {
            line.push(BodyScript::Bytes(16 << 10));
        }
        others().await;
        let ahead = line.read.load(Ordering::SeqCst);
        assert!(
            (READ_AHEAD_BYTES..READ_AHEAD_BYTES + (16 << 10)).contains(&ahead),
            "{ahead}"
        );
        assert_eq!(
            line.charged.load(Ordering::SeqCst),
            0,
            "nobody waits for it"
        );
        line.push(BodyScript::End);
        let (mut all, mut pieces) = (0, 0);
        loop {
            let (count, is_last) = taken(&reader).await;
            assert!(count <= MAX_INPUT_BYTES);
            (all, pieces) = (all + count, pieces + 1);
            if is_last {
                break;
            }
            others().await;
        }
        assert_eq!(all, 100 * (16 << 10));
        assert!(pieces >= all / MAX_INPUT_BYTES);
    })
    .unwrap();
}

#[test]
fn a_client_s_time_is_charged_while_the_worker_waits_and_no_longer() {
    loops::block_on(async {
        let (line, _upload, reader) = begin();
        others().await;
        assert_eq!(line.charged.load(Ordering::SeqCst), 0);
        let waits = std::future::poll_fn(|cx| Poll::Ready(reader.poll_next(cx, true).is_pending()));
        assert!(waits.await);
        others().await;
        assert_eq!(line.charged.load(Ordering::SeqCst), 1);
        line.push(BodyScript::Bytes(3));
        assert_eq!(taken(&reader).await, (3, false));
        others().await;
        assert_eq!(
            line.charged.load(Ordering::SeqCst),
            2,
            "the last read that was waited for"
        );
        line.push(BodyScript::Bytes(4));
        others().await;
        assert_eq!(line.charged.load(Ordering::SeqCst), 2);
        assert_eq!(taken(&reader).await, (4, false));
    })
    .unwrap();
}

#[test]
fn the_connection_is_returned_before_the_end_is_reported() {
    loops::block_on(async {
        let (line, _upload, reader) = begin();
        line.push(BodyScript::Bytes(5));
        line.push(BodyScript::End);
        assert_eq!(taken(&reader).await, (5, true));
        assert!(line.is_body_dropped());
    })
    .unwrap();
}

#[test]
fn a_failed_body_is_reported_unasked_and_is_no_end() {
    loops::block_on(async {
        for kind in [FaultKind::ClientDisconnected, FaultKind::BodyTooLarge] {
            let (line, upload, reader) = begin();
            line.push(BodyScript::Bytes(5));
            line.push(BodyScript::Fault(kind));
            let piece = std::future::poll_fn(|cx| reader.poll_next(cx, false)).await;
            assert!(matches!(piece, UploadPiece::Failed(fault) if fault.kind == kind));
            assert!(
                matches!(next(&reader).await, UploadPiece::Failed(_)),
                "for good"
            );
            assert_eq!(
                upload.client.is_disconnected(),
                kind == FaultKind::ClientDisconnected
            );
            assert!(line.is_body_dropped());
        }
    })
    .unwrap();
}

#[test]
fn an_unwanted_body_is_released() {
    loops::block_on(async {
        let (line, _upload, reader) = begin();
        others().await;
        assert!(!line.is_body_dropped());
        drop(reader);
        others().await;
        assert!(line.is_body_dropped());
        let (line, upload, _reader) = begin();
        others().await;
        upload.release_connection();
        assert!(line.is_body_dropped(), "at once");
    })
    .unwrap();
}

#[test]
fn a_small_body_that_is_there_is_taken_without_a_wait() {
    loops::block_on(async {
        for (script, whole, length) in [
            (vec![BodyScript::Bytes(7), BodyScript::End], true, 7),
            (vec![BodyScript::End], true, 0),
            (vec![BodyScript::Bytes(7)], false, 7),
            (vec![], false, 0),
            (
                vec![BodyScript::Bytes(MAX_INPUT_BYTES), BodyScript::Bytes(1)],
                false,
                MAX_INPUT_BYTES,
            ),
        ] {
            let (line, mut body) = ScriptedBody::new();
            script.into_iter().for_each(|step| line.push(step));
            let mut first = Vec::new();
            let read =
                std::future::poll_fn(|cx| Poll::Ready(read_available(&mut body, cx, &mut first)));
            assert_eq!(read.await.map_err(|fault| fault.kind), Ok(whole));
            assert_eq!(first.len(), length);
        }
    })
    .unwrap();
}
