//! One channel: which entries are a gap, and which are not.

use super::*;
use crate::entry::{EntryOrigin, RedisClock};

const THIS_NODE: NodeId = NodeId(1);
const OTHER_NODE: NodeId = NodeId(2);
const STREAM_TTL: Duration = Duration::from_secs(60);

/// A channel, and what its hub was told.
struct FollowHarness {
    follow: FollowedChannel,
    terms: FollowContext,
    announced: Vec<String>,
    readings: u64,
}

impl FollowHarness {
    /// It is live, and its stream has never had anything.
    fn live() -> Self {
        let now = Instant::now();
        let mut rig = Self {
            follow: FollowedChannel::new(now),
            terms: FollowContext {
                now,
                node_id: THIS_NODE,
                stream_ttl: STREAM_TTL,
                complete_at: now,
                incomplete_up_to: StreamPosition::START,
                total_held: 0,
                max_held: 100,
                clock: RedisClock {
                    read_at: now,
                    ms: 10_000,
                },
            },
            announced: Vec::new(),
            readings: 0,
        };
        rig.reconnect_same(&[]);
        assert_eq!(rig.take_effects(), ["restore 0", "ready"]);
        rig
    }

    fn advance(&mut self, time: Duration) {
        self.terms.now += time;
    }

    /// All has come up to now.
    fn is_whole(&mut self) {
        self.terms.complete_at = self.terms.now;
    }

    /// The connection breaks, and with the next one the stream is `entries`.
    fn reconnect_same(&mut self, entries: &[RedisStreamEntry]) {
        self.reconnect(DatasetContinuity::Same, entries);
    }

    fn reconnect(&mut self, trust: DatasetContinuity, entries: &[RedisStreamEntry]) {
        self.follow.on_disconnected();
        self.follow.on_connected(trust);
        self.follow.state = FollowState::Reading;
        while self.answer_read(entries) {}
    }

    fn answer_read(&mut self, entries: &[RedisStreamEntry]) -> bool {
        self.readings += 1;
        let channel = ChannelName::from("news");
        let read = self
            .follow
            .begin_read(self.terms.now, &channel, self.readings);
        let from = read.from.unwrap_or_default();
        let entries = entries.iter().filter(|entry| entry.position >= from);
        let part = StreamPage {
            channel,
            read_id: read.read_id,
            entries: entries.cloned().collect(),
            is_last: true,
        };
        let mut effects = Vec::new();
        let more = self.follow.apply_page(&self.terms, part, &mut effects);
        self.apply_effects(effects);
        more
    }

    fn publish(&mut self, entry: RedisStreamEntry) -> bool {
        let mut effects = Vec::new();
        let reads = self.follow.on_entry(&self.terms, entry, &mut effects);
        self.apply_effects(effects);
        reads
    }

    fn apply_effects(&mut self, effects: Vec<BusEffect>) {
        self.announced
            .extend(effects.into_iter().map(|effect| match effect {
                BusEffect::Deliver(message) => format!("deliver {}", message.id.unwrap()),
                BusEffect::RestoreHistory(_, history) => {
                    format!("restore {}", history.messages.len())
                }
                BusEffect::AnnounceGap(_) => "gap".to_owned(),
                BusEffect::ChannelLive(_) => "ready".to_owned(),
                other => format!("{other:?}"),
            }));
    }

    fn take_effects(&mut self) -> Vec<String> {
        std::mem::take(&mut self.announced)
    }
}

fn entry(number: u64, before: u64) -> RedisStreamEntry {
    let position = |ms| {
        if ms == 0 {
            StreamPosition::START
        } else {
            StreamPosition::new(ms, 1)
        }
    };
    RedisStreamEntry {
        channel: "news".into(),
        position: position(number),
        previous: position(before),
        origin: EntryOrigin {
            node: OTHER_NODE,
            number,
        },
        was_delivered_early: false,
        content: EntryContent::Message(Box::new(Publication {
            id: Some(number.to_string().into()),
            ..Publication::default()
        })),
    }
}

#[test]
fn entries_are_delivered_in_their_order_and_once() {
    let mut rig = FollowHarness::live();
    assert!(!rig.publish(entry(1, 0)));
    assert!(!rig.publish(entry(2, 1)));
    assert!(!rig.publish(entry(2, 1)));
    assert_eq!(rig.take_effects(), ["deliver 1", "deliver 2"]);
}

#[test]
fn what_is_missing_is_read() {
    let mut rig = FollowHarness::live();
    rig.publish(entry(1, 0));
    assert!(rig.publish(entry(4, 3)), "2 and 3 did not come");
    assert!(!rig.publish(entry(5, 4)), "it waits");
    assert_eq!(rig.take_effects(), ["deliver 1"]);
    rig.answer_read(&[entry(1, 0), entry(2, 1), entry(3, 2), entry(4, 3)]);
    let expected = ["deliver 2", "deliver 3", "deliver 4", "deliver 5", "ready"];
    assert_eq!(rig.take_effects(), expected);
}

#[test]
fn what_was_missed_while_away_is_delivered() {
    let mut rig = FollowHarness::live();
    rig.publish(entry(1, 0));
    rig.take_effects();
    rig.reconnect_same(&[entry(1, 0), entry(2, 1), entry(3, 2)]);
    assert_eq!(rig.take_effects(), ["deliver 2", "deliver 3", "ready"]);
    // Its first one may be gone, if the second says what it followed.
    rig.reconnect_same(&[entry(4, 3)]);
    assert_eq!(rig.take_effects(), ["deliver 4", "ready"]);
}

#[test]
fn a_stream_that_does_not_reach_back_is_a_gap_before_anything_else() {
    let mut rig = FollowHarness::live();
    rig.publish(entry(1, 0));
    rig.take_effects();
    rig.reconnect_same(&[entry(7, 6), entry(8, 7)]);
    let expected = ["restore 0", "gap", "deliver 7", "deliver 8", "ready"];
    assert_eq!(rig.take_effects(), expected);
}

#[test]
fn a_stream_that_went_before_its_time_is_a_gap() {
    let mut rig = FollowHarness::live();
    rig.publish(entry(5, 0));
    rig.take_effects();
    rig.reconnect_same(&[]);
    assert_eq!(rig.take_effects(), ["restore 0", "gap", "ready"]);
    // Of another one, all is new, wherever it stands.
    rig.publish(entry(6, 0));
    rig.reconnect_same(&[entry(6, 0)]);
    assert_eq!(rig.take_effects(), ["deliver 6", "ready"]);
}

#[test]
fn a_quiet_channel_whose_stream_has_gone_is_no_gap() {
    let mut rig = FollowHarness::live();
    rig.publish(entry(1, 0));
    rig.advance(STREAM_TTL * 3);
    assert!(!rig.publish(entry(2, 0)), "all of it was heard");
    rig.take_effects();
    rig.advance(STREAM_TTL * 3);
    rig.is_whole();
    rig.advance(STREAM_TTL / 2);
    rig.reconnect_same(&[]);
    assert_eq!(rig.take_effects(), ["ready"]);
    rig.reconnect_same(&[entry(3, 0)]);
    assert_eq!(rig.take_effects(), ["deliver 3", "ready"]);
}

#[test]
fn a_stream_that_may_have_come_and_gone_meanwhile_is_a_gap() {
    let mut rig = FollowHarness::live();
    rig.publish(entry(1, 0));
    rig.take_effects();
    rig.is_whole();
    rig.advance(STREAM_TTL * 3);
    rig.reconnect_same(&[]);
    assert_eq!(rig.take_effects(), ["restore 0", "gap", "ready"]);
}

#[test]
fn a_loss_announced_by_a_node_is_a_gap() {
    let mut rig = FollowHarness::live();
    let told = |number, node, what| RedisStreamEntry {
        origin: EntryOrigin { node, number },
        content: what,
        ..entry(number, number - 1)
    };
    rig.publish(entry(1, 0));
    rig.publish(told(2, OTHER_NODE, EntryContent::Gap));
    assert_eq!(rig.take_effects(), ["deliver 1", "restore 0", "gap"]);
    // What this one lost its own subscribers have had.
    rig.publish(told(3, THIS_NODE, EntryContent::Gap));
    rig.publish(told(4, OTHER_NODE, EntryContent::HistoryInvalidated));
    assert_eq!(
        rig.take_effects(),
        ["OwnMessageDelivered(3)", "restore 0", "restore 0"]
    );
}

#[test]
fn reordered_messages_cut_the_history() {
    let mut rig = FollowHarness::live();
    let ahead = |number| RedisStreamEntry {
        was_delivered_early: true,
        ..entry(number, number - 1)
    };
    rig.publish(entry(1, 0));
    rig.publish(ahead(2));
    rig.publish(entry(3, 2));
    assert_eq!(
        rig.take_effects(),
        ["deliver 1", "deliver 2", "restore 0", "deliver 3"]
    );
    let mut late = FollowHarness::live();
    late.follow = FollowedChannel::new(late.terms.now);
    late.reconnect_same(&[entry(1, 0), ahead(2), entry(3, 2)]);
    assert_eq!(late.take_effects(), ["restore 1", "ready"]);
}

#[test]
fn early_subscribers_get_a_gap_unless_nothing_was_missed() {
    for (entries, is_told) in [(vec![], false), (vec![entry(1, 0)], true)] {
        let mut rig = FollowHarness::live();
        rig.follow = FollowedChannel::new(rig.terms.now);
        rig.follow.on_subscribed(rig.terms.now);
        rig.reconnect_same(&entries);
        assert_eq!(rig.take_effects().contains(&"gap".to_owned()), is_told);
    }
}

#[test]
fn what_comes_while_it_is_read_is_bounded_and_read_then() {
    let mut rig = FollowHarness::live();
    rig.publish(entry(1, 0));
    assert!(rig.publish(entry(3, 2)));
    rig.terms.total_held = rig.terms.max_held;
    rig.publish(entry(4, 3));
    rig.terms.total_held = 0;
    rig.publish(entry(5, 4));
    assert_eq!(
        rig.follow.held_entry_count(),
        1,
        "behind one that is missing nothing fits"
    );
    rig.take_effects();
    let stream = [1, 2, 3, 4, 5].map(|number| entry(number, number - 1));
    assert!(rig.answer_read(&stream[..3]), "there is more");
    assert!(!rig.answer_read(&stream));
    let expected = ["deliver 2", "deliver 3", "deliver 4", "deliver 5", "ready"];
    assert_eq!(rig.take_effects(), expected);
}

#[test]
fn an_older_stream_is_read_from_its_start_and_its_rest_comes_later() {
    let mut rig = FollowHarness::live();
    for number in 1..=3 {
        rig.publish(entry(number, number - 1));
    }
    rig.take_effects();
    // Another run with all its data.
    let whole = [1, 2, 3, 4].map(|number| entry(number, number - 1));
    rig.reconnect(DatasetContinuity::Older, &whole);
    assert_eq!(rig.take_effects(), ["deliver 4", "ready"]);
    // And one that has forgotten the last two: nothing is missing, and a resuming client finds no
    // history.
    rig.reconnect(DatasetContinuity::Older, &whole[..2]);
    let told = rig.take_effects();
    assert!(!told.contains(&"gap".to_owned()), "{told:?}");
    let late = |number, position| RedisStreamEntry {
        position: StreamPosition::new(position, 1),
        previous: StreamPosition::new(position - 1, 1),
        was_delivered_early: true,
        ..entry(number, 0)
    };
    rig.publish(RedisStreamEntry {
        previous: StreamPosition::new(2, 1),
        ..late(3, 10)
    });
    rig.publish(late(4, 11));
    rig.publish(late(5, 12));
    let told = rig.take_effects();
    let delivered: Vec<&String> = told.iter().filter(|t| t.starts_with("deliver")).collect();
    assert_eq!(delivered, ["deliver 5"], "{told:?}");
}

#[test]
fn an_older_stream_that_does_not_reach_back_is_a_gap() {
    let mut rig = FollowHarness::live();
    rig.publish(entry(1, 0));
    rig.take_effects();
    rig.reconnect(DatasetContinuity::Older, &[entry(7, 6), entry(8, 7)]);
    let expected = ["restore 0", "gap", "deliver 7", "deliver 8", "ready"];
    assert_eq!(rig.take_effects(), expected);
}

#[test]
fn an_older_stream_may_reuse_the_last_position() {
    let mut rig = FollowHarness::live();
    rig.publish(entry(1, 0));
    rig.publish(entry(2, 1));
    rig.take_effects();
    let other = RedisStreamEntry {
        origin: EntryOrigin {
            node: NodeId(3),
            number: 1,
        },
        ..entry(2, 1)
    };
    rig.reconnect(DatasetContinuity::Older, &[entry(1, 0), other]);
    let told = rig.take_effects();
    assert!(told.contains(&"deliver 2".to_owned()), "{told:?}");
}

#[test]
fn a_history_has_the_ages_of_redis() {
    let mut rig = FollowHarness::live();
    rig.follow = FollowedChannel::new(rig.terms.now);
    rig.advance(Duration::from_secs(1));
    rig.follow.on_connected(DatasetContinuity::Same);
    rig.follow.state = FollowState::Reading;
    let channel = ChannelName::from("news");
    let number = rig.follow.begin_read(rig.terms.now, &channel, 1).read_id;
    let part = StreamPage {
        channel,
        read_id: number,
        entries: vec![entry(4_000, 0), entry(10_000, 4_000)],
        is_last: true,
    };
    let mut effects = Vec::new();
    rig.follow.apply_page(&rig.terms, part, &mut effects);
    let Some(BusEffect::RestoreHistory(_, history)) = effects.first() else {
        panic!("{effects:?}");
    };
    let ages: Vec<u64> = history
        .messages
        .iter()
        .map(|(_, age)| age.as_secs())
        .collect();
    assert_eq!(ages, [7, 1]);
}
