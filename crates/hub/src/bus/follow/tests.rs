//! One channel: what is a gap and what is not.

use super::*;
use crate::bus::entry::{Clock, Origin};

const ME: NodeId = NodeId(1);
const OTHER: NodeId = NodeId(2);
const KEPT: Duration = Duration::from_secs(60);

/// A channel, and what its hub was told.
struct Rig {
    follow: Follow,
    terms: Terms,
    told: Vec<String>,
    readings: u64,
}

impl Rig {
    /// It is live, and its stream has never had anything.
    fn live() -> Self {
        let now = Instant::now();
        let mut rig = Self {
            follow: Follow::new(now),
            terms: Terms {
                now,
                me: ME,
                kept: KEPT,
                whole_at: now,
                torn_to: Position::START,
                held_all: 0,
                held_max: 100,
                clock: Clock {
                    at: now,
                    ms: 10_000,
                },
            },
            told: Vec::new(),
            readings: 0,
        };
        rig.comes_back(&[]);
        assert_eq!(rig.take(), ["restore 0", "ready"]);
        rig
    }

    fn pass(&mut self, time: Duration) {
        self.terms.now += time;
    }

    /// All has come up to now.
    fn is_whole(&mut self) {
        self.terms.whole_at = self.terms.now;
    }

    /// The connection breaks, and with the next one the stream is `entries`.
    fn comes_back(&mut self, entries: &[Entry]) {
        self.comes_back_to(Trust::Same, entries);
    }

    fn comes_back_to(&mut self, trust: Trust, entries: &[Entry]) {
        self.follow.disconnected();
        self.follow.connected(trust);
        self.follow.state = State::Reading;
        while self.reads(entries) {}
    }

    fn reads(&mut self, entries: &[Entry]) -> bool {
        self.readings += 1;
        let channel = Channel::from("news");
        let read = self
            .follow
            .next_read(self.terms.now, &channel, self.readings);
        let from = read.from.unwrap_or_default();
        let entries = entries.iter().filter(|entry| entry.position >= from);
        let part = Part {
            channel,
            number: read.number,
            entries: entries.cloned().collect(),
            is_end: true,
        };
        let mut effects = Vec::new();
        let more = self.follow.read(&self.terms, part, &mut effects);
        self.note(effects);
        more
    }

    fn hears(&mut self, entry: Entry) -> bool {
        let mut effects = Vec::new();
        let reads = self.follow.heard(&self.terms, entry, &mut effects);
        self.note(effects);
        reads
    }

    fn note(&mut self, effects: Vec<Effect>) {
        self.told
            .extend(effects.into_iter().map(|effect| match effect {
                Effect::Deliver(message) => format!("deliver {}", message.id.unwrap()),
                Effect::Restore(_, history) => format!("restore {}", history.len()),
                Effect::Announce(_) => "gap".to_owned(),
                Effect::Ready(_) => "ready".to_owned(),
                other => format!("{other:?}"),
            }));
    }

    fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.told)
    }
}

fn entry(number: u64, before: u64) -> Entry {
    let position = |ms| {
        if ms == 0 {
            Position::START
        } else {
            Position::new(ms, 1)
        }
    };
    Entry {
        channel: "news".into(),
        position: position(number),
        before: position(before),
        origin: Origin {
            node: OTHER,
            number,
        },
        is_ahead: false,
        what: What::Message(Box::new(Publication {
            id: Some(number.to_string().into()),
            ..Publication::default()
        })),
    }
}

#[test]
fn entries_are_delivered_in_their_order_and_once() {
    let mut rig = Rig::live();
    assert!(!rig.hears(entry(1, 0)));
    assert!(!rig.hears(entry(2, 1)));
    assert!(!rig.hears(entry(2, 1)));
    assert_eq!(rig.take(), ["deliver 1", "deliver 2"]);
}

#[test]
fn what_is_missing_is_read() {
    let mut rig = Rig::live();
    rig.hears(entry(1, 0));
    assert!(rig.hears(entry(4, 3)), "2 and 3 did not come");
    assert!(!rig.hears(entry(5, 4)), "it waits");
    assert_eq!(rig.take(), ["deliver 1"]);
    rig.reads(&[entry(1, 0), entry(2, 1), entry(3, 2), entry(4, 3)]);
    let expected = ["deliver 2", "deliver 3", "deliver 4", "deliver 5", "ready"];
    assert_eq!(rig.take(), expected);
}

#[test]
fn what_was_missed_while_away_is_delivered() {
    let mut rig = Rig::live();
    rig.hears(entry(1, 0));
    rig.take();
    rig.comes_back(&[entry(1, 0), entry(2, 1), entry(3, 2)]);
    assert_eq!(rig.take(), ["deliver 2", "deliver 3", "ready"]);
    // Its first one may be gone, if the second says what it followed.
    rig.comes_back(&[entry(4, 3)]);
    assert_eq!(rig.take(), ["deliver 4", "ready"]);
}

#[test]
fn a_stream_that_does_not_reach_back_is_a_gap_before_anything_else() {
    let mut rig = Rig::live();
    rig.hears(entry(1, 0));
    rig.take();
    rig.comes_back(&[entry(7, 6), entry(8, 7)]);
    let expected = ["restore 0", "gap", "deliver 7", "deliver 8", "ready"];
    assert_eq!(rig.take(), expected);
}

#[test]
fn a_stream_that_went_before_its_time_is_a_gap() {
    let mut rig = Rig::live();
    rig.hears(entry(5, 0));
    rig.take();
    rig.comes_back(&[]);
    assert_eq!(rig.take(), ["restore 0", "gap", "ready"]);
    // Of another one, all is new, wherever it stands.
    rig.hears(entry(6, 0));
    rig.comes_back(&[entry(6, 0)]);
    assert_eq!(rig.take(), ["deliver 6", "ready"]);
}

#[test]
fn a_quiet_channel_whose_stream_has_gone_is_no_gap() {
    let mut rig = Rig::live();
    rig.hears(entry(1, 0));
    rig.pass(KEPT * 3);
    assert!(!rig.hears(entry(2, 0)), "all of it was heard");
    rig.take();
    rig.pass(KEPT * 3);
    rig.is_whole();
    rig.pass(KEPT / 2);
    rig.comes_back(&[]);
    assert_eq!(rig.take(), ["ready"]);
    rig.comes_back(&[entry(3, 0)]);
    assert_eq!(rig.take(), ["deliver 3", "ready"]);
}

#[test]
fn a_stream_that_may_have_come_and_gone_meanwhile_is_a_gap() {
    let mut rig = Rig::live();
    rig.hears(entry(1, 0));
    rig.take();
    rig.is_whole();
    rig.pass(KEPT * 3);
    rig.comes_back(&[]);
    assert_eq!(rig.take(), ["restore 0", "gap", "ready"]);
}

#[test]
fn a_loss_that_a_node_tells_of_is_a_gap() {
    let mut rig = Rig::live();
    let told = |number, node, what| Entry {
        origin: Origin { node, number },
        what,
        ..entry(number, number - 1)
    };
    rig.hears(entry(1, 0));
    rig.hears(told(2, OTHER, What::Gap));
    assert_eq!(rig.take(), ["deliver 1", "restore 0", "gap"]);
    // What this one lost its own subscribers have had.
    rig.hears(told(3, ME, What::Gap));
    rig.hears(told(4, OTHER, What::Cut));
    assert_eq!(rig.take(), ["Delivered(3)", "restore 0", "restore 0"]);
}

#[test]
fn nobody_goes_on_from_what_had_another_order_elsewhere() {
    let mut rig = Rig::live();
    let ahead = |number| Entry {
        is_ahead: true,
        ..entry(number, number - 1)
    };
    rig.hears(entry(1, 0));
    rig.hears(ahead(2));
    rig.hears(entry(3, 2));
    assert_eq!(
        rig.take(),
        ["deliver 1", "deliver 2", "restore 0", "deliver 3"]
    );
    let mut late = Rig::live();
    late.follow = Follow::new(late.terms.now);
    late.comes_back(&[entry(1, 0), ahead(2), entry(3, 2)]);
    assert_eq!(late.take(), ["restore 1", "ready"]);
}

#[test]
fn who_came_before_the_history_is_told_unless_nothing_was_missed() {
    for (entries, is_told) in [(vec![], false), (vec![entry(1, 0)], true)] {
        let mut rig = Rig::live();
        rig.follow = Follow::new(rig.terms.now);
        rig.follow.subscribed(rig.terms.now);
        rig.comes_back(&entries);
        assert_eq!(rig.take().contains(&"gap".to_owned()), is_told);
    }
}

#[test]
fn what_comes_while_it_is_read_is_bounded_and_read_then() {
    let mut rig = Rig::live();
    rig.hears(entry(1, 0));
    assert!(rig.hears(entry(3, 2)));
    rig.terms.held_all = rig.terms.held_max;
    rig.hears(entry(4, 3));
    rig.terms.held_all = 0;
    rig.hears(entry(5, 4));
    assert_eq!(
        rig.follow.held(),
        1,
        "behind one that is missing nothing fits"
    );
    rig.take();
    let stream = [1, 2, 3, 4, 5].map(|number| entry(number, number - 1));
    assert!(rig.reads(&stream[..3]), "there is more");
    assert!(!rig.reads(&stream));
    let expected = ["deliver 2", "deliver 3", "deliver 4", "deliver 5", "ready"];
    assert_eq!(rig.take(), expected);
}

#[test]
fn an_older_stream_is_read_from_its_start_and_its_rest_comes_later() {
    let mut rig = Rig::live();
    for number in 1..=3 {
        rig.hears(entry(number, number - 1));
    }
    rig.take();
    // Another run with all its data.
    let whole = [1, 2, 3, 4].map(|number| entry(number, number - 1));
    rig.comes_back_to(Trust::Older, &whole);
    assert_eq!(rig.take(), ["deliver 4", "ready"]);
    // And one that has forgotten the last two: nothing is missing, and who comes back finds no history.
    rig.comes_back_to(Trust::Older, &whole[..2]);
    let told = rig.take();
    assert!(!told.contains(&"gap".to_owned()), "{told:?}");
    let late = |number, position| Entry {
        position: Position::new(position, 1),
        before: Position::new(position - 1, 1),
        is_ahead: true,
        ..entry(number, 0)
    };
    rig.hears(Entry {
        before: Position::new(2, 1),
        ..late(3, 10)
    });
    rig.hears(late(4, 11));
    rig.hears(late(5, 12));
    let told = rig.take();
    let delivered: Vec<&String> = told.iter().filter(|t| t.starts_with("deliver")).collect();
    assert_eq!(delivered, ["deliver 5"], "{told:?}");
}

#[test]
fn an_older_stream_that_does_not_reach_back_is_a_gap() {
    let mut rig = Rig::live();
    rig.hears(entry(1, 0));
    rig.take();
    rig.comes_back_to(Trust::Older, &[entry(7, 6), entry(8, 7)]);
    let expected = ["restore 0", "gap", "deliver 7", "deliver 8", "ready"];
    assert_eq!(rig.take(), expected);
}

#[test]
fn the_position_of_what_came_last_may_be_anothers_in_an_older_stream() {
    let mut rig = Rig::live();
    rig.hears(entry(1, 0));
    rig.hears(entry(2, 1));
    rig.take();
    let other = Entry {
        origin: Origin {
            node: NodeId(3),
            number: 1,
        },
        ..entry(2, 1)
    };
    rig.comes_back_to(Trust::Older, &[entry(1, 0), other]);
    let told = rig.take();
    assert!(told.contains(&"deliver 2".to_owned()), "{told:?}");
}

#[test]
fn a_history_has_the_ages_that_redis_tells() {
    let mut rig = Rig::live();
    rig.follow = Follow::new(rig.terms.now);
    rig.pass(Duration::from_secs(1));
    rig.follow.connected(Trust::Same);
    rig.follow.state = State::Reading;
    let channel = Channel::from("news");
    let number = rig.follow.next_read(rig.terms.now, &channel, 1).number;
    let part = Part {
        channel,
        number,
        entries: vec![entry(4_000, 0), entry(10_000, 4_000)],
        is_end: true,
    };
    let mut effects = Vec::new();
    rig.follow.read(&rig.terms, part, &mut effects);
    let Some(Effect::Restore(_, history)) = effects.first() else {
        panic!("{effects:?}");
    };
    let ages: Vec<u64> = history.iter().map(|(_, age)| age.as_secs()).collect();
    assert_eq!(ages, [7, 1]);
}
