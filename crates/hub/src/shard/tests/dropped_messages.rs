//! Streams that lose messages, and their notice of it.

use super::*;
use crate::{History, PublishedEvent, StreamKeepAlive};

const GAP: Bytes = Bytes::from_static(b"event: gap\ndata: {}\n\n");

/// Publishes until the subscriber's socket is full; returns how often.
async fn fill(alone: &mut ShardHarness, channel: &str) -> usize {
    let text = "x".repeat(999);
    for sent in 1..10_000 {
        alone.publish(channel, &format!("{text}\n"));
        alone.turns().await;
        let tally = &alone.shard.shared.metrics;
        if tally.dropped_messages.load(Ordering::Relaxed) > 0 {
            return sent;
        }
    }
    panic!("a socket takes everything");
}

#[test]
fn a_notice_waits_for_its_stream_and_no_heart_beat_takes_its_place() {
    on_a_loop(async {
        // Not even one message may wait.
        let mut alone = ShardHarness::with(Settings {
            max_backlog_total: 100,
            ..Settings::default()
        });
        alone.add_stream_as(HeldStream {
            gap_notice: Some(Bytes::from_static(b"(gap)\n")),
            keep_alive: Some(StreamKeepAlive {
                bytes: Bytes::from_static(b"beat\n"),
                interval: Duration::from_secs(1),
                is_unconditional: true,
            }),
            ..stream("a")
        });
        alone.turns().await;
        let sent = fill(&mut alone, "a").await;
        alone.publish("a", "lost too\n");
        for _ in 0..5 {
            alone.shard.tick_clock.start -= Duration::from_secs(2);
            alone.turns().await;
        }
        let tally = alone.shard.shared.clone();
        let beats = tally.metrics.sent_heartbeats.load(Ordering::Relaxed);
        let mut text = alone.received(0);
        // The notice comes as soon as there is room, whether anything else comes or not.
        alone.turns().await;
        text += &alone.received(0);
        alone.publish("a", "after\n");
        alone.turns().await;
        text += &alone.received(0);
        let lines: Vec<&str> = text.lines().filter(|&line| line != "beat").collect();
        assert_eq!(lines.len(), sent - 1 + 2);
        assert_eq!(lines[sent - 1..], ["(gap)", "after"]);
        let got = text.lines().filter(|&line| line == "beat").count();
        assert_eq!(got as u64, beats, "those that were written count");
        assert_eq!(tally.metrics.dropped_messages.load(Ordering::Relaxed), 2);
        assert_eq!(tally.metrics.backlog_bytes.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn a_heartbeat_without_room_ends_no_stream() {
    on_a_loop(async {
        let mut alone = ShardHarness::with(Settings {
            max_backlog_total: 1,
            slow_policy: crate::SlowPolicy::Disconnect,
            ..Settings::default()
        });
        alone.add_stream("a");
        alone.turns().await;
        let stream = alone.shard.streams.next_occupied_from(0).unwrap();
        let beat = Bytes::from_static(b":::\n");
        for _ in 0..100_000 {
            if !alone
                .shard
                .write(stream, backlog::BacklogPiece::message(beat.clone(), 0))
            {
                break;
            }
        }
        assert_eq!(alone.shard.streams.len(), 1);
        alone.publish("a", "too much");
        alone.turns().await;
        assert_eq!(alone.shard.streams.len(), 0, "a message does");
    });
}

#[test]
fn streams_that_take_nothing_leave_room_for_one_that_is_slow_for_a_moment() {
    on_a_loop(async {
        let mut alone = ShardHarness::with(Settings {
            max_backlog_total: 1 << 20,
            ..Settings::default()
        });
        for _ in 0..40 {
            alone.add_stream("stuck");
        }
        alone.add_stream("a");
        alone.turns().await;
        let text = "x".repeat(10_000);
        for _ in 0..100 {
            alone.publish("stuck", &text);
            alone.turns().await;
        }
        let tally = alone.shard.shared.clone();
        let dropped = || tally.metrics.dropped_messages.load(Ordering::Relaxed);
        let waiting = || tally.metrics.backlog_bytes.load(Ordering::Relaxed);
        let lost = dropped();
        assert!(lost > 0, "40 of them have reached the bound");
        let before = waiting();
        let mut sent = String::new();
        for number in 0.. {
            let text = format!("{number:>999}\n");
            alone.publish("a", &text);
            sent.push_str(&text);
            alone.turns().await;
            assert_eq!(dropped(), lost, "it loses nothing");
            if waiting() > before + 8_000 {
                break;
            }
        }
        assert!(waiting() < 1 << 20);
        let mut got = alone.received(40);
        alone.turns().await;
        got += &alone.received(40);
        assert_eq!(got, sent);
    });
}

#[test]
fn gap_notices_are_shared_and_reused_when_unused() {
    on_a_loop(async {
        let mut alone = ShardHarness::new();
        let with = |notice: String| HeldStream {
            gap_notice: Some(notice.into()),
            ..stream("a")
        };
        for round in 0..3 {
            for number in 0..2 * MAX_SHARED_GAP_NOTICES {
                let notice = format!("(gap {round} {number})");
                alone.add_stream_as(with(notice.clone()));
                alone.add_stream_as(with(notice));
            }
            alone.add_stream_as(with("x".repeat(1_000)));
            alone.turns().await;
            assert_eq!(alone.shard.gap_notices.len(), MAX_SHARED_GAP_NOTICES);
            let (mut own, mut notices) = (0, Vec::new());
            let mut from = 0;
            while let Some(slot) = alone.shard.streams.next_occupied_from(from) {
                from = slot + 1;
                let held = alone.shard.streams.get(slot).unwrap();
                own += usize::from(held.extras.is_some());
                notices.extend(alone.shard.gap_notice_of(held).cloned());
            }
            // Streams land in the order of their coming.
            assert_eq!(own, 2 * MAX_SHARED_GAP_NOTICES + 1, "round {round}");
            for (number, pair) in notices.chunks(2).enumerate() {
                let notice = format!("(gap {round} {number})");
                let expected = match pair.len() {
                    2 => notice.into_bytes(),
                    _ => vec![b'x'; 1_000],
                };
                assert!(pair.iter().all(|each| **each == *expected), "{number}");
            }
            assert!(alone.shard.list_bytes > 1_000, "its own notice counts");
            alone.clients.clear();
            alone.turns().await;
            assert_eq!((alone.shard.streams.len(), alone.shard.list_bytes), (0, 0));
        }
    });
}

#[test]
fn an_event_stream_learns_after_which_message_the_gap_is() {
    on_a_loop(async {
        let mut alone = ShardHarness::with(Settings {
            history: History {
                max_messages: 1,
                ..History::default()
            },
            ..Settings::default()
        });
        for number in 1..=2 {
            let publication = Publication {
                channel: "a".into(),
                id: Some(format!("m{number}").into()),
                event: Some(PublishedEvent {
                    data: "news".into(),
                    ..PublishedEvent::default()
                }),
                ..Publication::default()
            };
            alone.shard.shared.deliver(publication).unwrap();
        }
        let news = "event: message\nid: m2\ndata: news\n\n";
        let form = StreamForm::Events;
        let gap = Some(GAP);
        let after = |id: &str| Some(Arc::from(id));
        let mut prev = stream("a");
        prev.subscriptions[0].prev_id = after("m0");
        for (case, asked, expected) in [
            (
                "unknown",
                HeldStream {
                    message_format: form,
                    gap_notice: gap.clone(),
                    resume_after: after("m0"),
                    ..stream("a")
                },
                "event: gap\ndata: m0\n\n",
            ),
            (
                "by its channel",
                HeldStream {
                    message_format: form,
                    gap_notice: gap.clone(),
                    ..prev
                },
                "event: gap\ndata: m0\n\n",
            ),
            (
                "no notice wanted",
                HeldStream {
                    message_format: form,
                    resume_after: after("m0"),
                    ..stream("a")
                },
                "",
            ),
            (
                "of bytes",
                HeldStream {
                    gap_notice: gap,
                    resume_after: after("m0"),
                    ..stream("a")
                },
                "event: gap\ndata: {}\n\n",
            ),
        ] {
            alone.add_stream_as(asked);
            alone.turns().await;
            let got = alone.received(alone.clients.len() - 1);
            let (notice, rest) = got.split_at(expected.len());
            assert_eq!(notice, expected, "{case}");
            assert!(
                rest.ends_with("news\n") || rest == news || rest.contains("data: news"),
                "{case}: {rest}"
            );
        }
        assert!(alone.shard.gap_notices.len() <= 1);
    });
}
