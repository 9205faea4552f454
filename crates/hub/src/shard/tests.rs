//! One shard, turn by turn: the work of a turn, and the streams that get it.

mod dead_clients;
mod dropped_messages;
mod turn_budget;

use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::task::Waker;

use bytes::Bytes;
use penstock_exchange::{HeldConnection, HeldConnectionCounter, HeldConnectionGuard, HeldFraming};
use penstock_runtime::loops;
use penstock_sys::net;

use super::*;
use crate::channel::StreamFormat;
use crate::hub::ArrivingStream;
use crate::{Content, HeldStream, Publication, StreamAction, StreamForm, Subscription};

/// A shard without a task: turns are taken by hand.
struct ShardHarness {
    shard: Shard,
    timer: LazyDeadline,
    events: Vec<Event>,
    clients: Vec<UnixStream>,
}

#[derive(Debug)]
struct NoopConnectionCounter;

impl HeldConnectionCounter for NoopConnectionCounter {
    fn release_held_connection(&self) {}
}

/// A stream of bytes from one channel.
fn stream(channel: &str) -> HeldStream {
    HeldStream {
        subscriptions: vec![Subscription {
            channel: channel.into(),
            ..Subscription::default()
        }],
        message_format: StreamForm::Bytes,
        ..HeldStream::default()
    }
}

fn on_a_loop(test: impl Future<Output = ()>) {
    loops::block_on(test).unwrap();
}

impl ShardHarness {
    fn new() -> Self {
        Self::with(Settings::default())
    }

    fn with(settings: Settings) -> Self {
        let shared = Arc::new(HubShared::new(settings, 1));
        let shard = Shard::new(shared, 0, Pollset::new().unwrap(), TickClock::real_time());
        Self {
            shard,
            timer: LazyDeadline::new(clock::now()),
            events: Vec::new(),
            clients: Vec::new(),
        }
    }

    /// Whether there is more to do at once.
    fn turn(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        let turned = self.shard.turn(&mut cx, &mut self.events, &mut self.timer);
        turned.is_ready()
    }

    /// Turns until nothing is left to do at once; how many that were.
    async fn turns(&mut self) -> usize {
        for turns in 1..10_000 {
            // The loop looks at its descriptors in between.
            loops::yield_now().await;
            if !self.turn() {
                return turns;
            }
        }
        panic!("there is no end to it");
    }

    /// Lets a stream arrive.
    fn add_stream(&mut self, channel: &str) {
        self.add_stream_as(stream(channel));
    }

    fn add_stream_as(&mut self, stream: HeldStream) {
        let (ours, theirs) = net::worker_socket_pair().unwrap();
        let theirs = UnixStream::from(theirs);
        theirs.set_nonblocking(true).unwrap();
        self.clients.push(theirs);
        self.add_stream_on(ours, stream);
    }

    fn add_stream_on(&mut self, ours: OwnedFd, stream: HeldStream) {
        let shared = self.shard.shared.clone();
        let format = StreamFormat::new(stream.message_format, HeldFraming::UntilClose);
        let wanted = ArrivingStream::new(&shared, stream).unwrap().request;
        let arrival = ArrivedStream {
            client: HeldConnection::from(ours),
            pipelined_bytes: 0,
            is_probed: false,
            is_pinned: false,
            format,
            connection: ArrivingConnection::Counted(HeldConnectionGuard::new(Arc::new(
                NoopConnectionCounter,
            ))),
            unsent: Vec::new(),
            request: wanted,
        };
        let _ = shared.shard_inboxes[0].push(ShardCommand::AddStream(Box::new(arrival)));
    }

    fn publish(&self, channel: &str, text: &str) {
        let content = Content {
            bytes: Bytes::copy_from_slice(text.as_bytes()),
            filters: Vec::new(),
        };
        let publication = Publication {
            channel: channel.into(),
            stream: Some(StreamAction::Send(content)),
            ..Publication::default()
        };
        self.shard.shared.deliver(publication).unwrap();
    }

    /// What a client has got since the last look.
    fn received(&mut self, client: usize) -> String {
        let mut got = Vec::new();
        match self.clients[client].read_to_end(&mut got) {
            Err(e) if e.kind() != ErrorKind::WouldBlock => panic!("{e}"),
            Ok(_) | Err(_) => String::from_utf8(got).unwrap(),
        }
    }

    /// How many of these clients have got something since the last look.
    fn reached(&mut self, clients: std::ops::Range<usize>) -> usize {
        clients
            .filter(|&client| !self.received(client).is_empty())
            .count()
    }
}

#[test]
fn a_channel_with_many_subscribers_does_not_hold_up_one_with_few() {
    on_a_loop(async {
        let mut alone = ShardHarness::new();
        for _ in 0..400 {
            alone.add_stream("large");
        }
        alone.add_stream("small");
        alone.turns().await;
        for _ in 0..3 {
            alone.publish("large", "x");
            alone.publish("small", "y");
            assert!(alone.turn(), "a turn does not do all of it");
            assert_eq!(alone.received(400), "y");
            let reached = alone.reached(0..400);
            assert!((1..=WRITES_PER_TURN).contains(&reached), "{reached}");
            let turns = alone.turns().await;
            assert!(turns >= 2, "{turns}");
            assert_eq!(alone.reached(0..400), 400 - reached);
        }
    });
}

#[test]
fn messages_that_wait_go_out_together_and_arrivals_get_only_what_came_after_them() {
    on_a_loop(async {
        let mut alone = ShardHarness::new();
        for _ in 0..200 {
            alone.add_stream("a");
        }
        alone.turns().await;
        alone.publish("a", "1");
        alone.turn();
        for text in ["2", "3", "4"] {
            alone.publish("a", text);
        }
        alone.add_stream("a");
        alone.publish("a", "5");
        // In the middle of it some leave: those that had theirs, and those that had not.
        for client in (0..200).step_by(7) {
            alone.clients[client]
                .shutdown(std::net::Shutdown::Both)
                .unwrap();
        }
        alone.turns().await;
        for client in 0..200 {
            if client % 7 != 0 {
                assert_eq!(alone.received(client), "12345", "{client}");
            }
        }
        assert_eq!(alone.received(200), "5");
        assert_eq!(alone.shard.streams.len(), 201 - 29);
        alone.shard.check_places();
    });
}

#[test]
fn bursts_leave_no_more_room_behind_than_a_turn_needs() {
    on_a_loop(async {
        let mut alone = ShardHarness::new();
        alone.add_stream("a");
        alone.turns().await;
        // The shard's list and the inbox's take turns: each has had its burst, and has come back.
        for _ in 0..4 {
            for _ in 0..4 * COMMANDS_PER_TURN {
                alone.publish("a", "x");
            }
            assert!(alone.turns().await >= 4);
            assert_eq!(alone.shard.commands.len(), 0);
            let room = alone.shard.commands.capacity();
            assert!(room <= COMMANDS_PER_TURN, "{room}");
        }
    });
}

#[test]
fn a_shard_that_holds_nothing_waits_for_no_time() {
    on_a_loop(async {
        let mut alone = ShardHarness::new();
        alone.turns().await;
        assert_eq!(alone.shard.next_due(), None);
        alone.add_stream("a");
        alone.turns().await;
        assert_eq!(alone.shard.next_due(), None, "it has no heart-beat");
        alone.clients.clear();
        alone.turns().await;
        assert_eq!(
            (alone.shard.streams.len(), alone.shard.channels.len()),
            (0, 0)
        );
        assert_eq!((alone.shard.list_bytes, alone.shard.next_due()), (0, None));
    });
}

impl Shard {
    /// Every list names its streams where they say that they are.
    fn check_places(&self) {
        let mut from = 0;
        while let Some(slot) = self.channels.next_occupied_from(from) {
            from = slot + 1;
            let local = self.channels.get(slot).unwrap();
            for (position, &stream) in local.subscribers.iter().enumerate() {
                let held = self.streams.get(stream).expect("it is held");
                let mut links = held.links();
                let link = links
                    .find(|link| link.channel_slot == slot)
                    .expect("it knows");
                assert_eq!(link.position as usize, position);
            }
        }
    }
}
