//! The simulated Redis: streams, subscriptions, and connections that deliver late or never.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::entry::{
    ChannelName, EntryContent, EntryOrigin, NodeId, RedisClock, RedisDataset, RedisStreamEntry,
    StreamPosition,
};
use crate::followed_channel::{StreamPage, StreamReadRequest};
use crate::outbox::{OutgoingEntry, broadcast_channel};

/// Entries of a page.
const PAGE: usize = 3;

#[derive(Debug)]
pub(super) struct FakeRedis {
    pub(super) dataset_mark: Arc<str>,
    pub(super) is_up: bool,
    pub(super) is_paused: bool,
    pub(super) max_length: usize,
    pub(super) retention: Duration,
    streams: HashMap<ChannelName, Stream>,
    sent: HashMap<NodeId, u64>,
    clock: u64,
    marks: u64,
    /// Which process it is, and which it was when its data was last looked at.
    run: u64,
    known_run: u64,
    snapshot: Option<Snapshot>,
}

/// Its data on disk.
#[derive(Debug, Clone)]
struct Snapshot {
    mark: Arc<str>,
    streams: HashMap<ChannelName, Stream>,
    sent: HashMap<NodeId, u64>,
    known_run: u64,
}

#[derive(Debug, Default, Clone)]
struct Stream {
    entries: VecDeque<RedisStreamEntry>,
    top: StreamPosition,
    until: Option<Instant>,
}

/// What a server asks over its connection for commands.
#[derive(Debug)]
pub(super) enum FakeCommand {
    Publish(Vec<OutgoingEntry>, Arc<str>),
    Read(Vec<StreamReadRequest>),
}

/// What comes back over it.
#[derive(Debug)]
pub(super) enum FakeReply {
    Accepted(Vec<OutgoingEntry>),
    Pages(Vec<StreamPage>),
    DatasetChanged,
}

/// What a server asks over the connection that it hears with.
#[derive(Debug)]
pub(super) enum PubSubCommand {
    Subscribe(Vec<ChannelName>),
    Unsubscribe(Vec<ChannelName>),
    Ping(Instant),
}

/// What comes over it.
#[derive(Debug)]
pub(super) enum PubSubReply {
    Subscribed(Vec<ChannelName>),
    Unsubscribed,
    Pong(Instant),
    Entry(Box<RedisStreamEntry>),
}

/// One server's connections; dropped by the server, their commands may still be carried out.
#[derive(Debug)]
pub(super) struct FakeRedisConnection {
    pub(super) node: usize,
    pub(super) id: NodeId,
    pub(super) is_abandoned: bool,
    pub(super) commands: VecDeque<FakeCommand>,
    pub(super) answers: VecDeque<FakeReply>,
    pub(super) pubsub_commands: VecDeque<PubSubCommand>,
    pub(super) pubsub_replies: VecDeque<PubSubReply>,
    topics: HashSet<ChannelName>,
}

impl FakeRedisConnection {
    pub(super) fn new(node: usize, id: NodeId) -> Self {
        Self {
            node,
            id,
            is_abandoned: false,
            commands: VecDeque::new(),
            answers: VecDeque::new(),
            pubsub_commands: VecDeque::new(),
            pubsub_replies: VecDeque::new(),
            topics: HashSet::new(),
        }
    }
}

impl FakeRedis {
    pub(super) fn new(length_max: usize, kept: Duration) -> Self {
        Self {
            dataset_mark: "mark 0".into(),
            is_up: true,
            is_paused: false,
            max_length: length_max,
            retention: kept,
            streams: HashMap::new(),
            sent: HashMap::new(),
            clock: 1000,
            marks: 0,
            run: 1,
            known_run: 0,
            snapshot: None,
        }
    }

    /// Writes its data to its disk.
    pub(super) fn save(&mut self) {
        self.snapshot = Some(Snapshot {
            mark: self.dataset_mark.clone(),
            streams: self.streams.clone(),
            sent: self.sent.clone(),
            known_run: self.known_run,
        });
    }

    /// Another process begins, with all data or with the data on disk.
    pub(super) fn restart(&mut self, begins_with_snapshot: bool) {
        self.run += 1;
        if let Some(snapshot) = self.snapshot.clone().filter(|_| begins_with_snapshot) {
            self.dataset_mark = snapshot.mark;
            self.streams = snapshot.streams;
            self.sent = snapshot.sent;
            self.known_run = snapshot.known_run;
        }
    }

    /// A server connects, and the first one of a run leaves its mark for all.
    pub(super) fn connect_node(
        &mut self,
        now: Instant,
        all: &mut [FakeRedisConnection],
    ) -> RedisDataset {
        if self.known_run != self.run {
            self.known_run = self.run;
            self.clock += 1;
            let entry = OutgoingEntry {
                number: 1,
                channel: broadcast_channel(),
                was_delivered_early: false,
                content: EntryContent::AllHistoriesInvalidated,
            };
            self.publish(now, NodeId(1000 + self.run), &entry, all);
        }
        RedisDataset {
            id: self.dataset_mark.clone(),
            run_id: Some(self.run.to_string().into()),
            clock: RedisClock {
                read_at: now,
                ms: self.clock,
            },
        }
    }

    /// All its data is gone.
    pub(super) fn lose_data(&mut self) {
        self.streams.clear();
        self.sent.clear();
        self.known_run = 0;
        self.snapshot = None;
        self.marks += 1;
        self.dataset_mark = format!("mark {}", self.marks).into();
    }

    /// Runs the next command of connection `index` on one of its two links.
    pub(super) fn run_next_command(
        &mut self,
        now: Instant,
        all: &mut [FakeRedisConnection],
        index: usize,
        hears: bool,
    ) {
        if !self.is_up || self.is_paused {
            return;
        }
        self.clock += 1;
        for stream in self.streams.values_mut() {
            if stream.until.is_some_and(|until| now >= until) {
                *stream = Stream::default();
            }
        }
        let connection = &mut all[index];
        if hears {
            let Some(listen) = connection.pubsub_commands.pop_front() else {
                return;
            };
            let reply = match listen {
                PubSubCommand::Subscribe(channels) => {
                    connection.topics.extend(channels.iter().cloned());
                    PubSubReply::Subscribed(channels)
                }
                PubSubCommand::Unsubscribe(channels) => {
                    connection.topics.retain(|topic| !channels.contains(topic));
                    PubSubReply::Unsubscribed
                }
                PubSubCommand::Ping(at) => PubSubReply::Pong(at),
            };
            connection.pubsub_replies.push_back(reply);
            return;
        }
        let Some(command) = connection.commands.pop_front() else {
            return;
        };
        let id = connection.id;
        let answer = match command {
            FakeCommand::Publish(_, mark) if mark != self.dataset_mark => FakeReply::DatasetChanged,
            FakeCommand::Publish(batch, _) => {
                for outgoing in &batch {
                    self.publish(now, id, outgoing, all);
                }
                FakeReply::Accepted(batch)
            }
            FakeCommand::Read(reads) => {
                FakeReply::Pages(reads.into_iter().map(|read| self.read(read)).collect())
            }
        };
        all[index].answers.push_back(answer);
    }

    fn publish(
        &mut self,
        now: Instant,
        node: NodeId,
        out: &OutgoingEntry,
        all: &mut [FakeRedisConnection],
    ) {
        let last = self.sent.entry(node).or_default();
        if out.number <= *last {
            return;
        }
        *last = out.number;
        let stream = self.streams.entry(out.channel.clone()).or_default();
        let before = stream.top;
        stream.top = StreamPosition::new(self.clock, before_sequence(before, self.clock));
        stream.until = Some(now + self.retention);
        let entry = RedisStreamEntry {
            channel: out.channel.clone(),
            position: stream.top,
            previous: before,
            origin: EntryOrigin {
                node,
                number: out.number,
            },
            was_delivered_early: out.was_delivered_early,
            content: out.content.clone(),
        };
        stream.entries.push_back(entry.clone());
        if stream.entries.len() > self.max_length {
            stream.entries.pop_front();
        }
        for connection in all {
            if !connection.is_abandoned && connection.topics.contains(&out.channel) {
                connection
                    .pubsub_replies
                    .push_back(PubSubReply::Entry(Box::new(entry.clone())));
            }
        }
    }

    fn read(&self, read: StreamReadRequest) -> StreamPage {
        let entries = self
            .streams
            .get(&read.channel)
            .map(|stream| &stream.entries);
        let entries = entries.into_iter().flatten();
        let entries: Vec<RedisStreamEntry> = match read.from {
            None => entries.cloned().collect(),
            Some(from) => entries
                .filter(|entry| entry.position >= from)
                .take(PAGE)
                .cloned()
                .collect(),
        };
        StreamPage {
            channel: read.channel,
            read_id: read.read_id,
            is_last: read.from.is_none() || entries.len() < PAGE,
            entries,
        }
    }

    /// The ids that a channel's stream has, in its order.
    pub(super) fn ids(&self, channel: &ChannelName) -> Vec<Arc<str>> {
        let entries = self.streams.get(channel).map(|stream| &stream.entries);
        let entries = entries.into_iter().flatten();
        entries
            .filter_map(|entry| match &entry.content {
                EntryContent::Message(message) => message.id.clone(),
                _ => None,
            })
            .collect()
    }
}

fn before_sequence(before: StreamPosition, clock: u64) -> u64 {
    // Several of one batch have one time.
    (0..)
        .find(|&n| StreamPosition::new(clock, n) > before)
        .unwrap_or(0)
}
