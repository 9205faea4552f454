//! A turn is bounded by what it writes, not only by how often.

use super::*;
use crate::{History, PublishedEvent};

/// What a socket takes at once, and what counts as five writes.
const LARGE: usize = 64 << 10;

/// Streams that wait for 64 KiB each are at most so many in a turn; a channel's turn may go beyond
/// it.
const LARGE_A_TURN: usize = WRITES_PER_TURN / 4;

#[test]
fn large_messages_take_more_of_a_turn() {
    on_a_loop(async {
        let mut alone = ShardHarness::new();
        for _ in 0..120 {
            alone.add_stream("a");
        }
        alone.turns().await;
        alone.publish("a", &"x".repeat(LARGE));
        assert!(alone.turn(), "a turn does not do all of it");
        let reached = alone.reached(0..120);
        assert!((1..=LARGE_A_TURN).contains(&reached), "{reached}");
        alone.turns().await;
        assert_eq!(alone.reached(0..120), 120 - reached);
    });
}

#[test]
fn so_do_streams_that_begin_with_much() {
    on_a_loop(async {
        let history = History {
            max_messages: 10,
            ..History::default()
        };
        let mut alone = ShardHarness::with(Settings {
            history,
            ..Settings::default()
        });
        for id in ["m1", "m2"] {
            let publication = Publication {
                channel: "a".into(),
                id: Some(id.into()),
                event: Some(PublishedEvent {
                    data: "x".repeat(LARGE).into(),
                    ..PublishedEvent::default()
                }),
                ..Publication::default()
            };
            alone.shard.shared.deliver(publication).unwrap();
        }
        for _ in 0..ARRIVALS_PER_TURN {
            alone.add_stream_as(HeldStream {
                resume_after: Some("m1".into()),
                ..stream("a")
            });
        }
        assert!(alone.turn(), "a turn does not do all of it");
        let landed = alone.shard.streams.len();
        assert!((1..=ARRIVALS_PER_TURN / 4).contains(&landed), "{landed}");
        alone.turns().await;
        assert_eq!(alone.shard.streams.len(), ARRIVALS_PER_TURN);
        assert_eq!(alone.reached(0..ARRIVALS_PER_TURN), ARRIVALS_PER_TURN);
    });
}

#[test]
fn a_large_backlog_counts_against_the_turn_too() {
    on_a_loop(async {
        let mut alone = ShardHarness::new();
        for _ in 0..100 {
            alone.add_stream("a");
        }
        alone.turns().await;
        for _ in 0..8 {
            alone.publish("a", &"x".repeat(LARGE));
        }
        alone.turns().await;
        let tally = alone.shard.shared.clone();
        let waiting = || tally.metrics.backlog_bytes.load(Ordering::Relaxed);
        let before = waiting();
        assert!(before > 100 * LARGE, "{before}");
        assert_eq!(alone.reached(0..100), 100);
        // All have room now.
        let mut taken = 0;
        for _ in 0..100 {
            loops::yield_now().await;
            alone.turn();
            taken = before - waiting();
            if taken > 0 {
                break;
            }
        }
        assert!(taken > 0, "it goes out");
        let most = WRITES_PER_TURN * BYTES_PER_WRITE + (256 << 10);
        assert!(taken <= most, "{taken} in a turn");
        for _ in 0..100 {
            alone.turns().await;
            alone.reached(0..100);
        }
        assert_eq!(waiting(), 0);
    });
}
