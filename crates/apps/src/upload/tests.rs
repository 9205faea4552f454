//! A body that is played here, and a driver that asks for it: on one loop, step by step.

use std::sync::atomic::Ordering;

use super::*;
use crate::testing::{Line, Played, Said};

fn begin() -> (Arc<Line>, Arc<Upload>, UploadReader) {
    let (line, body) = Played::new();
    let upload = Upload::begin(Box::new(body), Arc::default());
    let reader = upload.reader();
    (line, upload, reader)
}

async fn next(reader: &UploadReader) -> Piece {
    std::future::poll_fn(|cx| reader.poll_next(cx, true)).await
}

async fn taken(reader: &UploadReader) -> (usize, bool) {
    match next(reader).await {
        Piece::Bytes { bytes, is_last } => (bytes.len(), is_last),
        Piece::Failed(fault) => panic!("{fault:?}"),
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
            line.say(Said::Bytes(16 << 10));
        }
        others().await;
        let ahead = line.read.load(Ordering::SeqCst);
        assert!(
            (AHEAD_BYTES..AHEAD_BYTES + (16 << 10)).contains(&ahead),
            "{ahead}"
        );
        assert_eq!(
            line.charged.load(Ordering::SeqCst),
            0,
            "nobody waits for it"
        );
        line.say(Said::End);
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
        line.say(Said::Bytes(3));
        assert_eq!(taken(&reader).await, (3, false));
        others().await;
        assert_eq!(
            line.charged.load(Ordering::SeqCst),
            2,
            "the last read that was waited for"
        );
        line.say(Said::Bytes(4));
        others().await;
        assert_eq!(line.charged.load(Ordering::SeqCst), 2);
        assert_eq!(taken(&reader).await, (4, false));
    })
    .unwrap();
}

#[test]
fn the_connection_is_whole_before_anybody_hears_of_the_end() {
    loops::block_on(async {
        let (line, _upload, reader) = begin();
        line.say(Said::Bytes(5));
        line.say(Said::End);
        assert_eq!(taken(&reader).await, (5, true));
        assert!(line.is_back());
    })
    .unwrap();
}

#[test]
fn a_body_that_fails_is_told_of_unasked_and_is_no_end() {
    loops::block_on(async {
        for kind in [FaultKind::ClientDisconnected, FaultKind::BodyTooLarge] {
            let (line, upload, reader) = begin();
            line.say(Said::Bytes(5));
            line.say(Said::Fault(kind));
            let piece = std::future::poll_fn(|cx| reader.poll_next(cx, false)).await;
            assert!(matches!(piece, Piece::Failed(fault) if fault.kind == kind));
            assert!(matches!(next(&reader).await, Piece::Failed(_)), "for good");
            assert_eq!(
                upload.client.is_disconnected(),
                kind == FaultKind::ClientDisconnected
            );
            assert!(line.is_back());
        }
    })
    .unwrap();
}

#[test]
fn what_nobody_wants_any_more_is_given_back() {
    loops::block_on(async {
        let (line, _upload, reader) = begin();
        others().await;
        assert!(!line.is_back());
        drop(reader);
        others().await;
        assert!(line.is_back());
        let (line, upload, _reader) = begin();
        others().await;
        upload.release();
        assert!(line.is_back(), "at once");
    })
    .unwrap();
}

#[test]
fn a_small_body_that_is_there_is_taken_without_a_wait() {
    loops::block_on(async {
        for (said, whole, length) in [
            (vec![Said::Bytes(7), Said::End], true, 7),
            (vec![Said::End], true, 0),
            (vec![Said::Bytes(7)], false, 7),
            (vec![], false, 0),
            (
                vec![Said::Bytes(MAX_INPUT_BYTES), Said::Bytes(1)],
                false,
                MAX_INPUT_BYTES,
            ),
        ] {
            let (line, mut body) = Played::new();
            said.into_iter().for_each(|said| line.say(said));
            let mut first = Vec::new();
            let read =
                std::future::poll_fn(|cx| Poll::Ready(read_at_hand(&mut body, cx, &mut first)));
            assert_eq!(read.await.map_err(|fault| fault.kind), Ok(whole));
            assert_eq!(first.len(), length);
        }
    })
    .unwrap();
}
