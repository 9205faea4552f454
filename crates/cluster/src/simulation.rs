//! Several servers and a Redis in one thread, with faults drawn from a seed: `PENSTOCK_SEED`
//! replays one, `PENSTOCK_SEEDS` sets their number.
//!
//! The deliveries of each server are recorded and checked at the end, without faults: each message
//! at most once, those of one publisher in order, and none missing without a gap announced after
//! it.

mod checks;
mod moves;
mod redis;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_hub::Publication;

use self::moves::MovingSubscriber;
use self::redis::{
    FakeCommand, FakeRedis, FakeRedisConnection, FakeReply, PubSubCommand, PubSubReply,
};
use crate::bus_state_machine::{BusStateMachine, DeliveryMode};
use crate::catch_ups::CatchUps;
use crate::entry::{ChannelName, NodeId};
use crate::followed_channels::BusEffect;
use crate::outbox::Outbox;

const CHANNELS: [&str; 3] = ["a", "b", "c"];

/// What can go wrong in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Faults {
    None,
    /// Connections break, Redis pauses, restarts, is away for long.
    Connections,
    /// It also loses its data.
    Data,
    /// It also begins anew with what it had on its disk.
    Snapshots,
}

/// What a Redis has that begins anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RestartedDataset {
    Whole,
    Older,
    Lost,
}

#[derive(Debug)]
struct ClusterSimulation {
    rng: Rng,
    now: Instant,
    step: u64,
    redis: FakeRedis,
    connections: Vec<FakeRedisConnection>,
    nodes: Vec<SimulatedNode>,
    published: Vec<PublishedMessage>,
    moves: Vec<MovingSubscriber>,
}

#[derive(Debug)]
struct PublishedMessage {
    id: Arc<str>,
    channel: ChannelName,
    node: usize,
    step: u64,
}

#[derive(Debug)]
struct SimulatedNode {
    machine: BusStateMachine,
    id: NodeId,
    link: Option<usize>,
    is_publishing: bool,
    is_reading: bool,
    is_listening: bool,
    /// Clients that subscribe when the channel is live, at the latest then.
    expected: HashMap<ChannelName, Instant>,
    channels: BTreeMap<ChannelName, ObservedChannel>,
    /// Channels whose publications arrive.
    live: HashSet<ChannelName>,
    catch_ups: CatchUps,
}

/// What a channel's subscribers at a server got.
#[derive(Debug, Default)]
struct ObservedChannel {
    since: Option<u64>,
    log: Vec<(u64, Received)>,
    history: Vec<Arc<str>>,
    /// The id of the last message here; one that is nowhere else for an announced gap.
    last_id: Option<Arc<str>>,
    /// Nothing was published before the history.
    is_whole: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Received {
    Message(Arc<str>),
    Gap,
}

impl ClusterSimulation {
    fn new(seed: u64, faults: Faults) -> Self {
        let mut rng = Rng::new(seed);
        let now = Instant::now();
        let small = faults != Faults::None && rng.below(3) == 0;
        let outbox = || Outbox::with_max_messages(if small { 6 } else { 1000 });
        let length_max = if rng.below(3) == 0 { 5 } else { 1000 };
        let nodes = (0..2 + rng.below(2))
            .map(|index| {
                let id = NodeId(u64::try_from(index).unwrap() + 1);
                SimulatedNode {
                    machine: BusStateMachine::with_outbox(id, now, outbox()),
                    id,
                    link: None,
                    is_publishing: false,
                    is_reading: false,
                    is_listening: false,
                    expected: HashMap::new(),
                    channels: BTreeMap::new(),
                    live: HashSet::new(),
                    catch_ups: CatchUps::default(),
                }
            })
            .collect();
        Self {
            rng,
            now,
            step: 0,
            redis: FakeRedis::new(length_max, Duration::from_secs(60)),
            connections: Vec::new(),
            nodes,
            published: Vec::new(),
            moves: Vec::new(),
        }
    }

    fn random_step(&mut self, faults: Faults) {
        self.step += 1;
        let node = self.rng.below(self.nodes.len());
        let channel = ChannelName::from(CHANNELS[self.rng.below(CHANNELS.len())]);
        match self.rng.below(100) {
            0..15 => self.publish(node, channel),
            15..45 => self.serve(),
            45..75 => self.deliver_to_node(),
            75..82 => self.pump(node),
            82..84 => self.subscribe(node, channel),
            // What a Redis without its data is sent again may come to a moved subscriber twice.
            84..86 if faults == Faults::Data => {}
            84..86 => {
                let to = self.rng.below(self.nodes.len());
                self.move_subscriber(node, to, channel);
            }
            86 => self.unsubscribe(node, &channel),
            // Without faults Redis is never slow enough to be left alone.
            87..92 if faults == Faults::None => self.advance(Duration::from_millis(1)),
            87..92 => self.advance(Duration::from_millis(30)),
            92..97 => self.connect(node),
            _ if faults == Faults::None => {}
            97 => self.disconnect(node),
            98 if self.rng.below(3) > 0 => self.redis.is_paused = !self.redis.is_paused,
            98 if faults == Faults::Snapshots => self.redis.save(),
            98 => self.advance(Duration::from_millis(300)),
            _ => match self.rng.below(6) {
                0 if faults == Faults::Data => self.restart(RestartedDataset::Lost),
                0 if faults == Faults::Snapshots => self.restart(RestartedDataset::Older),
                0 | 1 => self.restart(RestartedDataset::Whole),
                2 => self.redis.is_up = true,
                3 => self.advance(Duration::from_secs(2)),
                4 => self.advance(Duration::from_secs(20)),
                _ => self.advance(Duration::from_secs(70)),
            },
        }
        self.settle(node);
    }

    fn publish(&mut self, node: usize, channel: ChannelName) {
        let id: Arc<str> = format!("{node}.{}", self.published.len()).into();
        self.published.push(PublishedMessage {
            id: id.clone(),
            channel: channel.clone(),
            node,
            step: self.step,
        });
        let publication = Publication {
            channel,
            id: Some(id),
            ..Publication::default()
        };
        self.nodes[node].machine.publish(self.now, publication);
    }

    /// Redis does something that it was asked.
    fn serve(&mut self) {
        if !self.connections.is_empty() {
            let index = self.rng.below(self.connections.len());
            let hears = self.rng.below(2) == 0;
            self.redis
                .run_next_command(self.now, &mut self.connections, index, hears);
        }
    }

    /// Something arrives at a server.
    fn deliver_to_node(&mut self) {
        if self.connections.is_empty() {
            return;
        }
        let index = self.rng.below(self.connections.len());
        let answers = self.rng.below(2) == 0;
        self.deliver_to_channel(index, answers);
    }

    fn deliver_to_channel(&mut self, index: usize, answers: bool) {
        let connection = &mut self.connections[index];
        let number = connection.node;
        let node = &mut self.nodes[number];
        if node.link != Some(index) {
            return;
        }
        if answers {
            match connection.answers.pop_front() {
                Some(FakeReply::Accepted(batch)) => {
                    node.is_publishing = false;
                    node.machine.on_batch_accepted(self.now, &batch);
                }
                Some(FakeReply::Pages(parts)) => {
                    node.is_reading = false;
                    for part in parts {
                        node.machine.apply_page(self.now, part);
                    }
                }
                Some(FakeReply::DatasetChanged) => self.disconnect(number),
                None => {}
            }
        } else {
            match connection.pubsub_replies.pop_front() {
                Some(PubSubReply::Subscribed(channels)) => {
                    node.is_listening = false;
                    node.machine.followed_channels.confirm_subscribed(&channels);
                }
                Some(PubSubReply::Unsubscribed) => node.is_listening = false,
                Some(PubSubReply::Pong(at)) => {
                    node.is_listening = false;
                    node.machine.mark_complete_until(at);
                    node.catch_ups.note_pong(at);
                }
                Some(PubSubReply::Entry(entry)) => node.machine.on_entry(self.now, *entry),
                None => {}
            }
        }
        self.settle(number);
    }

    /// A server asks what it has to ask.
    fn pump(&mut self, number: usize) {
        let instant = self.instant();
        let node = &mut self.nodes[number];
        let Some(link) = node.link else {
            return;
        };
        let connection = &mut self.connections[link];
        if !node.is_publishing
            && let Some(batch) = node.machine.next_batch(self.now)
        {
            node.is_publishing = true;
            let mark = self.redis.dataset_mark.clone();
            connection
                .commands
                .push_back(FakeCommand::Publish(batch, mark));
        }
        if !node.is_reading {
            let reads = node.machine.next_reads(self.now);
            if !reads.is_empty() {
                node.is_reading = true;
                connection.commands.push_back(FakeCommand::Read(reads));
            }
        }
        if !node.is_listening {
            let leaving = node.machine.followed_channels.next_unsubscriptions();
            let coming = node.machine.followed_channels.next_subscriptions();
            for listen in [
                (!leaving.is_empty()).then_some(PubSubCommand::Unsubscribe(leaving)),
                (!coming.is_empty()).then_some(PubSubCommand::Subscribe(coming)),
            ] {
                connection.pubsub_commands.extend(listen);
            }
            if connection.pubsub_commands.is_empty() {
                node.catch_ups.note_ping(instant);
                connection
                    .pubsub_commands
                    .push_back(PubSubCommand::Ping(instant));
            }
            node.is_listening = true;
        }
    }

    fn connect(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        if node.link.is_some() || !self.redis.is_up || self.redis.is_paused {
            return;
        }
        node.link = Some(self.connections.len());
        self.connections
            .push(FakeRedisConnection::new(number, node.id));
        (node.is_publishing, node.is_reading, node.is_listening) = (false, false, false);
        let data = self.redis.connect_node(self.now, &mut self.connections);
        node.machine
            .on_connected(self.now, &data, self.redis.retention);
    }

    fn disconnect(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        if let Some(link) = node.link.take() {
            let connection = &mut self.connections[link];
            connection.is_abandoned = true;
            // Commands on their way may arrive, or a part of them.
            let left = self.rng.below(connection.commands.len() + 1);
            connection.commands.truncate(left);
            node.machine.on_disconnected(self.now);
            node.live.clear();
            node.catch_ups.clear();
        }
    }

    fn restart(&mut self, end: RestartedDataset) {
        self.redis.is_up = self.rng.below(2) == 0;
        self.redis.is_paused = false;
        for number in 0..self.nodes.len() {
            self.disconnect(number);
        }
        for connection in &mut self.connections {
            connection.commands.clear();
        }
        self.redis.restart(end == RestartedDataset::Older);
        if end == RestartedDataset::Lost {
            self.redis.lose_data();
        }
    }

    fn advance(&mut self, time: Duration) {
        // No reply takes longer: it is there by then, or the connection is given up.
        if time >= Duration::from_secs(2) {
            if self.redis.is_up && !self.redis.is_paused {
                (0..40).for_each(|_| self.round());
            } else {
                (0..self.nodes.len()).for_each(|number| self.disconnect(number));
            }
        }
        self.now += time;
        for number in 0..self.nodes.len() {
            let node = &mut self.nodes[number];
            let channels = &node.channels;
            let expected = &node.expected;
            let in_use = |channel: &str| {
                expected.contains_key(channel)
                    || channels
                        .get(channel)
                        .is_some_and(|seen| seen.since.is_some())
            };
            node.machine.tick(self.now, in_use);
            self.settle(number);
        }
    }

    /// A subscriber is about to come, unless one is there.
    fn subscribe(&mut self, number: usize, channel: ChannelName) {
        let node = &mut self.nodes[number];
        if node
            .channels
            .entry(channel.clone())
            .or_default()
            .since
            .is_some()
        {
            return;
        }
        let is_live = node.machine.prepare_channel(self.now, &channel);
        let wait = Duration::from_millis(u64::from(!is_live && node.link.is_some()) * 500);
        node.expected.entry(channel).or_insert(self.now + wait);
        self.settle(number);
    }

    fn unsubscribe(&mut self, number: usize, channel: &ChannelName) {
        let node = &mut self.nodes[number];
        if let Some(seen) = node.channels.get_mut(channel)
            && seen.since.take().is_some()
        {
            seen.log.clear();
            node.machine
                .followed_channels
                .on_unsubscribed(self.now, channel);
        }
    }

    /// Applies the effects to the hub of a server, and adds the subscribers that waited for them.
    fn settle(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        let mut live = HashSet::new();
        for effect in node.machine.take_effects() {
            match effect {
                BusEffect::Deliver(publication) => {
                    let id = publication.id.unwrap();
                    let seen = node.channels.entry(publication.channel).or_default();
                    seen.history.push(id.clone());
                    seen.last_id = Some(id.clone());
                    if seen.since.is_some() {
                        seen.log.push((self.step, Received::Message(id)));
                    }
                }
                BusEffect::RestoreHistory(channel, history) => {
                    let ids = history
                        .messages
                        .into_iter()
                        .map(|(publication, _)| publication.id.unwrap());
                    let seen = node.channels.entry(channel).or_default();
                    seen.history = ids.collect();
                    seen.is_whole = history.is_whole;
                    if let Some(last) = seen.history.last() {
                        seen.last_id = Some(last.clone());
                    }
                }
                BusEffect::AnnounceGap(channel) => {
                    let seen = node.channels.entry(channel).or_default();
                    seen.log.push((self.step, Received::Gap));
                    seen.last_id = Some("gap".into());
                }
                BusEffect::ChannelLive(channel) => {
                    node.live.insert(channel.clone());
                    live.insert(channel);
                }
                BusEffect::ChannelNotLive(channel) => drop(node.live.remove(&channel)),
                other => panic!("{other:?} is not for the hub"),
            }
        }
        let now = self.now;
        let coming = node
            .expected
            .extract_if(|channel, until| live.contains(channel) || now >= *until);
        for (channel, _) in coming.collect::<Vec<_>>() {
            let seen = node.channels.entry(channel.clone()).or_default();
            seen.since = Some(self.step);
            seen.log.clear();
            node.machine.on_subscribed(now, &channel);
        }
        self.take_moved(number);
    }

    /// Everything is well again, until nothing moves any more.
    fn heal(&mut self) {
        self.redis.is_up = true;
        self.redis.is_paused = false;
        for _ in 0..400 {
            (0..self.nodes.len()).for_each(|number| self.connect(number));
            self.round();
        }
        for node in &self.nodes {
            assert_eq!(node.machine.mode, DeliveryMode::Clustered);
            assert!(node.machine.outbox.is_empty());
            assert!(node.machine.followed_channels.is_caught_up());
        }
        assert!(self.moves.is_empty(), "{:?}", self.moves);
    }

    /// All servers do their pending work.
    fn round(&mut self) {
        self.step += 1;
        (0..self.nodes.len()).for_each(|number| self.pump(number));
        for index in 0..self.connections.len() {
            for way in [false, true] {
                self.redis
                    .run_next_command(self.now, &mut self.connections, index, way);
                (0..8).for_each(|_| self.deliver_to_channel(index, way));
            }
        }
        self.now += Duration::from_millis(1);
    }
}

fn run(seed: u64, faults: Faults) {
    let mut world = ClusterSimulation::new(seed, faults);
    if faults == Faults::None {
        // From the start on, as without connections each server has an order of its own.
        for number in 0..world.nodes.len() {
            world.connect(number);
        }
    }
    for _ in 0..1500 {
        world.random_step(faults);
    }
    world.heal();
    world.check_invariants(faults);
}

fn run_all(faults: Faults) {
    let number = |name| {
        std::env::var(name)
            .ok()
            .map(|text| text.parse::<u64>().unwrap())
    };
    if let Some(seed) = number("PENSTOCK_SEED") {
        return run(seed, faults);
    }
    for seed in 0..number("PENSTOCK_SEEDS").unwrap_or(150) {
        let failed = std::panic::catch_unwind(|| run(seed, faults)).is_err();
        assert!(!failed, "{faults:?}: PENSTOCK_SEED={seed} shows it");
    }
}

#[test]
fn without_faults_all_nodes_have_one_order() {
    run_all(Faults::None);
}

#[test]
fn connections_that_break_lose_nothing_silently() {
    run_all(Faults::Connections);
}

#[test]
fn a_redis_that_forgets_loses_nothing_silently() {
    run_all(Faults::Data);
}

#[test]
fn a_redis_that_comes_back_with_older_data_loses_nothing_silently() {
    run_all(Faults::Snapshots);
}

/// xorshift64*: enough disorder for a test, and the same on every machine.
#[derive(Debug)]
struct Rng(u64);

impl Rng {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let drawn = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33;
        usize::try_from(drawn).unwrap() % bound
    }
}
