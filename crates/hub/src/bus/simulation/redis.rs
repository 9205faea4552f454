//! A Redis as the simulation has it: streams, subscriptions, and connections that bring things late or never.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::entry::{Channel, Clock, Data, Entry, NodeId, Origin, Position, What};
use super::super::follow::{Part, Read};
use super::super::outbox::{Outgoing, everywhere};

/// Entries of a page.
const PAGE: usize = 3;

#[derive(Debug)]
pub(super) struct Redis {
    pub(super) mark: Arc<str>,
    pub(super) is_up: bool,
    pub(super) is_paused: bool,
    pub(super) length_max: usize,
    pub(super) kept: Duration,
    streams: HashMap<Channel, Stream>,
    sent: HashMap<NodeId, u64>,
    clock: u64,
    marks: u64,
    /// Which process it is, and which it was when its data was last looked at.
    run: u64,
    known_run: u64,
    snapshot: Option<Snapshot>,
}

/// What is on its disk.
#[derive(Debug, Clone)]
struct Snapshot {
    mark: Arc<str>,
    streams: HashMap<Channel, Stream>,
    sent: HashMap<NodeId, u64>,
    known_run: u64,
}

#[derive(Debug, Default, Clone)]
struct Stream {
    entries: VecDeque<Entry>,
    top: Position,
    until: Option<Instant>,
}

/// What a node asks over its connection for commands.
#[derive(Debug)]
pub(super) enum Command {
    Publish(Vec<Outgoing>, Arc<str>),
    Read(Vec<Read>),
}

/// What comes back over it.
#[derive(Debug)]
pub(super) enum Answer {
    Taken(Vec<Outgoing>),
    Parts(Vec<Part>),
    OtherData,
}

/// What a node asks over the connection that it hears with.
#[derive(Debug)]
pub(super) enum Listen {
    Subscribe(Vec<Channel>),
    Unsubscribe(Vec<Channel>),
    Ping(Instant),
}

/// What comes over it.
#[derive(Debug)]
pub(super) enum Heard {
    Subscribed(Vec<Channel>),
    Unsubscribed,
    Pong(Instant),
    Entry(Box<Entry>),
}

/// One node's connections; dropped by the node, their commands may still be carried out.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) node: usize,
    pub(super) id: NodeId,
    pub(super) is_ghost: bool,
    pub(super) commands: VecDeque<Command>,
    pub(super) answers: VecDeque<Answer>,
    pub(super) listens: VecDeque<Listen>,
    pub(super) heard: VecDeque<Heard>,
    topics: HashSet<Channel>,
}

impl Connection {
    pub(super) fn new(node: usize, id: NodeId) -> Self {
        Self {
            node,
            id,
            is_ghost: false,
            commands: VecDeque::new(),
            answers: VecDeque::new(),
            listens: VecDeque::new(),
            heard: VecDeque::new(),
            topics: HashSet::new(),
        }
    }
}

impl Redis {
    pub(super) fn new(length_max: usize, kept: Duration) -> Self {
        Self {
            mark: "mark 0".into(),
            is_up: true,
            is_paused: false,
            length_max,
            kept,
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
            mark: self.mark.clone(),
            streams: self.streams.clone(),
            sent: self.sent.clone(),
            known_run: self.known_run,
        });
    }

    /// Another process begins, with all data or with what is on the disk.
    pub(super) fn restart(&mut self, begins_with_snapshot: bool) {
        self.run += 1;
        if let Some(snapshot) = self.snapshot.clone().filter(|_| begins_with_snapshot) {
            self.mark = snapshot.mark;
            self.streams = snapshot.streams;
            self.sent = snapshot.sent;
            self.known_run = snapshot.known_run;
        }
    }

    /// A node connects: what it is told, and what the first one of a run leaves for all.
    pub(super) fn meet(&mut self, now: Instant, all: &mut [Connection]) -> Data {
        if self.known_run != self.run {
            self.known_run = self.run;
            self.clock += 1;
            let word = Outgoing {
                number: 1,
                channel: everywhere(),
                is_ahead: false,
                what: What::CutEverywhere,
            };
            self.publish(now, NodeId(1000 + self.run), &word, all);
        }
        Data {
            mark: self.mark.clone(),
            run: Some(self.run.to_string().into()),
            clock: Clock {
                at: now,
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
        self.mark = format!("mark {}", self.marks).into();
    }

    /// Does the next of what connection `index` asks on one of its two ways.
    pub(super) fn serve(
        &mut self,
        now: Instant,
        all: &mut [Connection],
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
            let Some(listen) = connection.listens.pop_front() else {
                return;
            };
            let heard = match listen {
                Listen::Subscribe(channels) => {
                    connection.topics.extend(channels.iter().cloned());
                    Heard::Subscribed(channels)
                }
                Listen::Unsubscribe(channels) => {
                    connection.topics.retain(|topic| !channels.contains(topic));
                    Heard::Unsubscribed
                }
                Listen::Ping(at) => Heard::Pong(at),
            };
            connection.heard.push_back(heard);
            return;
        }
        let Some(command) = connection.commands.pop_front() else {
            return;
        };
        let id = connection.id;
        let answer = match command {
            Command::Publish(_, mark) if mark != self.mark => Answer::OtherData,
            Command::Publish(batch, _) => {
                for outgoing in &batch {
                    self.publish(now, id, outgoing, all);
                }
                Answer::Taken(batch)
            }
            Command::Read(reads) => {
                Answer::Parts(reads.into_iter().map(|read| self.read(read)).collect())
            }
        };
        all[index].answers.push_back(answer);
    }

    fn publish(&mut self, now: Instant, node: NodeId, out: &Outgoing, all: &mut [Connection]) {
        let last = self.sent.entry(node).or_default();
        if out.number <= *last {
            return;
        }
        *last = out.number;
        let stream = self.streams.entry(out.channel.clone()).or_default();
        let before = stream.top;
        stream.top = Position::new(self.clock, before_sequence(before, self.clock));
        stream.until = Some(now + self.kept);
        let entry = Entry {
            channel: out.channel.clone(),
            position: stream.top,
            before,
            origin: Origin {
                node,
                number: out.number,
            },
            is_ahead: out.is_ahead,
            what: out.what.clone(),
        };
        stream.entries.push_back(entry.clone());
        if stream.entries.len() > self.length_max {
            stream.entries.pop_front();
        }
        for connection in all {
            if !connection.is_ghost && connection.topics.contains(&out.channel) {
                connection
                    .heard
                    .push_back(Heard::Entry(Box::new(entry.clone())));
            }
        }
    }

    fn read(&self, read: Read) -> Part {
        let entries = self
            .streams
            .get(&read.channel)
            .map(|stream| &stream.entries);
        let entries = entries.into_iter().flatten();
        let entries: Vec<Entry> = match read.from {
            None => entries.cloned().collect(),
            Some(from) => entries
                .filter(|entry| entry.position >= from)
                .take(PAGE)
                .cloned()
                .collect(),
        };
        Part {
            channel: read.channel,
            number: read.number,
            is_end: read.from.is_none() || entries.len() < PAGE,
            entries,
        }
    }

    /// The ids that a channel's stream has, in its order.
    pub(super) fn ids(&self, channel: &Channel) -> Vec<Arc<str>> {
        let entries = self.streams.get(channel).map(|stream| &stream.entries);
        let entries = entries.into_iter().flatten();
        entries
            .filter_map(|entry| match &entry.what {
                What::Message(message) => message.id.clone(),
                _ => None,
            })
            .collect()
    }
}

fn before_sequence(before: Position, clock: u64) -> u64 {
    // Several of one batch have one time.
    (0..)
        .find(|&n| Position::new(clock, n) > before)
        .unwrap_or(0)
}
