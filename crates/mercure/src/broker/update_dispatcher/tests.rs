//! Updates and subscribers in random order: everybody gets everything once, in order, and nothing
//! else.

use std::collections::HashMap;
use std::time::Duration;

use super::*;
use crate::selector::{SelectorSet, TopicSelector};
use crate::update::UpdateDraft;

const ROOMY: Bounds = Bounds {
    max_messages: 10_000,
    max_age: Duration::from_secs(60),
    max_size: 1 << 24,
    max_size_total: 1 << 24,
};

const SELECTORS: &[&str] = &["*", "/a", "/b", "/a/1", "/{x}", "/a/{x}", "/c"];
const TOPICS: &[&str] = &["/a", "/b", "/a/1", "/a/2", "/c", "d"];

/// A subscriber of the simulation.
struct SimulatedSubscriber {
    audience_key: AudienceKey,
    audience: u64,
    /// The number of the first update that it may get, and of the first that it must get.
    may_from: usize,
    must_from: usize,
    received: Vec<usize>,
}

#[derive(Default)]
struct BrokerSimulation {
    dispatcher: UpdateDispatcher,
    published: Vec<Arc<Update>>,
    subscribers: Vec<SimulatedSubscriber>,
}

impl BrokerSimulation {
    fn publish(&mut self, topics: Vec<Box<str>>, is_private: bool) {
        let update = update(&self.published.len().to_string(), topics, is_private);
        self.published.push(Arc::clone(&update));
        self.dispatcher
            .publish(update, Instant::now(), &ROOMY)
            .unwrap();
    }

    fn join(&mut self, audience_key: AudienceKey, after: Option<usize>) {
        let settled = usize::try_from(self.dispatcher.dispatched_up_to()).unwrap();
        let name = after.map(|number| number.to_string());
        let channel = |number: u64| number.to_string().into();
        let joined = self
            .dispatcher
            .join(
                (audience_key.clone(), None),
                name.as_deref().map(ResumeAfter::Update),
                usize::MAX,
                channel,
            )
            .unwrap();
        assert!(joined.is_complete);
        let got: Vec<usize> = numbers(&joined.replay);
        self.subscribers.push(SimulatedSubscriber {
            audience_key,
            audience: joined.audience,
            // Without a request for history one begins somewhere among those in progress.
            may_from: after.map_or(settled, |number| number + 1),
            must_from: after.map_or(self.published.len(), |number| number + 1),
            received: got,
        });
    }

    /// Dispatches, as the hub would: to the members at that moment.
    fn hand_out(&mut self, portion: usize, refuse_after: usize) -> DispatchProgress {
        let mut handed: HashMap<u64, Vec<usize>> = HashMap::new();
        let mut left = refuse_after;
        let progress = self.dispatcher.dispatch(portion, |audience, update| {
            let is_taken = left > 0;
            left = left.saturating_sub(1);
            if is_taken {
                let number = update.id.parse().unwrap();
                handed.entry(audience.number).or_default().push(number);
            }
            is_taken
        });
        for subscriber in &mut self.subscribers {
            let new = handed.get(&subscriber.audience);
            subscriber.received.extend(new.into_iter().flatten());
        }
        progress
    }

    fn check(&self, seed: u64) {
        for known in &self.subscribers {
            let takes = |number: &usize| known.audience_key.receives(&self.published[*number]);
            assert!(
                known.received.is_sorted(),
                "seed {seed}: {:?}",
                known.received
            );
            let mut once = known.received.clone();
            once.dedup();
            assert_eq!(once, known.received, "seed {seed}: something came twice");
            assert!(
                known.received.iter().all(takes),
                "seed {seed}: something is not for it"
            );
            let first = known.received.first().copied().unwrap_or(usize::MAX);
            assert!(first >= known.may_from, "seed {seed}: something is too old");
            let must: Vec<usize> = (known.must_from..self.published.len())
                .filter(takes)
                .collect();
            let got: Vec<usize> = known
                .received
                .iter()
                .copied()
                .filter(|n| *n >= known.must_from)
                .collect();
            assert_eq!(got, must, "seed {seed}");
        }
    }
}

fn update(id: &str, topics: Vec<Box<str>>, is_private: bool) -> Arc<Update> {
    let draft = UpdateDraft {
        topics,
        id: Some(id.to_owned()),
        is_private,
        ..UpdateDraft::default()
    };
    Arc::new(Update::new(draft, 10_000).unwrap())
}

/// The ids of events.
fn numbers(events: &[u8]) -> Vec<usize> {
    let text = std::str::from_utf8(events).unwrap();
    let ids = text.lines().filter_map(|line| line.strip_prefix("id: "));
    ids.map(|id| id.parse().unwrap()).collect()
}

fn set(texts: &[&str]) -> SelectorSet {
    SelectorSet::new(
        texts
            .iter()
            .map(|text| TopicSelector::new(text).unwrap())
            .collect(),
    )
}

fn public(topics: &[&str]) -> AudienceKey {
    AudienceKey {
        topics: set(topics),
        grants: SelectorSet::default(),
    }
}

/// A small generator, so that a failure's seed repeats it (xorshift).
struct Rng(u64);

impl Rng {
    fn below(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % sides as u64).unwrap()
    }

    fn random_subset<'a>(&mut self, from: &[&'a str], max: usize) -> Vec<&'a str> {
        let count = 1 + self.below(max);
        (0..count).map(|_| from[self.below(from.len())]).collect()
    }
}

#[test]
fn everybody_gets_each_update_once_and_in_order() {
    for seed in 1..=200 {
        let mut dice = Rng(seed);
        let mut simulation = BrokerSimulation::default();
        for _ in 0..200 {
            match dice.below(10) {
                0..=2 => {
                    let topics = dice
                        .random_subset(TOPICS, 2)
                        .into_iter()
                        .map(Into::into)
                        .collect();
                    simulation.publish(topics, dice.below(3) == 0);
                }
                3..=4 => {
                    let audience_key = AudienceKey {
                        topics: set(&dice.random_subset(SELECTORS, 3)),
                        grants: match dice.below(2) {
                            0 => SelectorSet::default(),
                            _ => set(&dice.random_subset(SELECTORS, 2)),
                        },
                    };
                    let known = usize::try_from(simulation.dispatcher.dispatched_up_to()).unwrap();
                    let after = (known > 0 && dice.below(2) == 0).then(|| dice.below(known));
                    simulation.join(audience_key, after);
                }
                5 if !simulation.subscribers.is_empty() => {
                    let at = dice.below(simulation.subscribers.len());
                    let gone = simulation.subscribers.swap_remove(at);
                    simulation.dispatcher.audiences.leave(gone.audience);
                }
                _ => {
                    let (portion, refuse_after) = (dice.below(5), dice.below(4));
                    simulation.hand_out(portion, refuse_after);
                }
            }
        }
        let mut turns = 0;
        while simulation.hand_out(7, 5) != DispatchProgress::Done {
            turns += 1;
            assert!(turns < 100_000, "seed {seed}: it does not come to an end");
        }
        simulation.check(seed);
    }
}

#[test]
fn what_is_not_known_any_more_is_everything_there_is() {
    let mut simulation = BrokerSimulation::default();
    for _ in 0..3 {
        simulation.publish(vec!["/a".into()], false);
    }
    simulation.publish(vec!["/a".into()], true);
    simulation.hand_out(100, 100);
    let mut join = |after: Option<&str>| {
        let dispatcher = &mut simulation.dispatcher;
        let joined = dispatcher
            .join(
                (public(&["/a"]), None),
                after.map(ResumeAfter::Update),
                1000,
                |_| "".into(),
            )
            .unwrap();
        (
            joined.previous_id.as_deref().map(str::to_owned),
            numbers(&joined.replay),
        )
    };
    let before = |id: &str| Some(id.to_owned());
    assert_eq!(join(None), (None, vec![]));
    assert_eq!(join(Some("0")), (before("0"), vec![1, 2]));
    assert_eq!(join(Some("2")), (before("2"), vec![]));
    assert_eq!(
        join(Some(EARLIEST_ID)),
        (before(EARLIEST_ID), vec![0, 1, 2])
    );
    assert_eq!(
        join(Some("never heard of")),
        (before(EARLIEST_ID), vec![0, 1, 2])
    );
    // That there is one of this id is private.
    assert_eq!(join(Some("3")), (before(EARLIEST_ID), vec![]));
}

#[test]
fn a_replay_comes_in_parts_of_one_event_at_least() {
    let mut simulation = BrokerSimulation::default();
    for _ in 0..5 {
        simulation.publish(vec!["/a".into()], false);
    }
    simulation.hand_out(100, 100);
    let bytes = simulation.published[0].encoded_event.len();
    for (bytes_max, after, expected, is_whole) in [
        (0, EARLIEST_ID, vec![0], false),
        (2 * bytes, EARLIEST_ID, vec![0, 1], false),
        (2 * bytes, "1", vec![2, 3], false),
        (2 * bytes, "3", vec![4], true),
        (0, "3", vec![4], true),
        (0, "4", vec![], true),
        (5 * bytes, EARLIEST_ID, vec![0, 1, 2, 3, 4], true),
    ] {
        let dispatcher = &mut simulation.dispatcher;
        let joined = dispatcher
            .join(
                (public(&["/a"]), None),
                Some(ResumeAfter::Update(after)),
                bytes_max,
                |_| "".into(),
            )
            .unwrap();
        assert_eq!(numbers(&joined.replay), expected, "{bytes_max} {after}");
        assert_eq!(joined.is_complete, is_whole, "{bytes_max} {after}");
    }
}

#[test]
fn updates_that_wait_are_bounded() {
    let now = Instant::now();
    let mut dispatcher = UpdateDispatcher::default();
    let small = update("1", vec!["/a".into()], false);
    for _ in 0..MAX_WAITING_UPDATES {
        dispatcher.publish(Arc::clone(&small), now, &ROOMY).unwrap();
    }
    assert_eq!(
        dispatcher.publish(Arc::clone(&small), now, &ROOMY),
        Err(BrokerFullError::TooManyUpdates)
    );
    assert_eq!(
        dispatcher.dispatch(MAX_WAITING_UPDATES - 1, |_, _| true),
        DispatchProgress::More
    );
    assert_eq!(dispatcher.dispatch(2, |_, _| true), DispatchProgress::Done);
    let draft = UpdateDraft {
        topics: vec!["/a".into()],
        data: "a".repeat(MAX_WAITING_BYTES),
        ..UpdateDraft::default()
    };
    let large = Arc::new(Update::new(draft, usize::MAX).unwrap());
    dispatcher.publish(Arc::clone(&large), now, &ROOMY).unwrap();
    assert_eq!(
        dispatcher.publish(small, now, &ROOMY),
        Err(BrokerFullError::TooManyUpdates)
    );
}
