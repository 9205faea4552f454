//! One shard, turn by turn: what a turn may do, and who has it.

mod losing;
mod noticing;
mod sharing;

use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::task::Waker;

use bytes::Bytes;
use penstock_exchange::{HeldConnectionCounter, HeldConnectionGuard, HeldFraming};
use penstock_runtime::{Stream, loops};
use penstock_sys::net;

use super::*;
use crate::channel::Shape;
use crate::hub::Holding;
use crate::{Content, HeldStream, Publication, StreamForm, StreamPart, Subscription};

/// A shard without a task: turns are taken by hand.
struct Alone {
    shard: Shard,
    timer: LazyDeadline,
    events: Vec<Event>,
    clients: Vec<UnixStream>,
}

#[derive(Debug)]
struct Nobody;

impl HeldConnectionCounter for Nobody {
    fn release_held(&self) {}
}

/// A stream of bytes from one channel.
fn stream(channel: &str) -> HeldStream {
    HeldStream {
        subscriptions: vec![Subscription {
            channel: channel.into(),
            ..Subscription::default()
        }],
        form: StreamForm::Bytes,
        ..HeldStream::default()
    }
}

fn on_a_loop(test: impl Future<Output = ()>) {
    loops::block_on(test).unwrap();
}

impl Alone {
    fn new() -> Self {
        Self::with(Settings::default())
    }

    fn with(settings: Settings) -> Self {
        let shared = Arc::new(Shared::new(settings, 1));
        let shard = Shard::new(shared, 0, Pollset::new().unwrap(), Pace::real());
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

    /// Lets a stream arrive whose socket somebody else still has.
    fn arrive(&mut self, channel: &str) -> Arc<Stream> {
        self.arrive_as(stream(channel))
    }

    fn arrive_as(&mut self, stream: HeldStream) -> Arc<Stream> {
        let (ours, theirs) = net::worker_socket_pair().unwrap();
        let theirs = UnixStream::from(theirs);
        theirs.set_nonblocking(true).unwrap();
        self.clients.push(theirs);
        self.arrive_on(ours, stream)
    }

    fn arrive_on(&mut self, ours: OwnedFd, stream: HeldStream) -> Arc<Stream> {
        let client = Arc::new(Stream::new(ours).unwrap());
        let shared = self.shard.shared.clone();
        let shape = Shape::new(stream.form, HeldFraming::UntilClose);
        let wanted = Holding::new(&shared, stream).unwrap().into_wanted();
        let place = HeldConnectionGuard::new(Arc::new(Nobody));
        let arrival = Arrival::new(client.clone(), 0, shape, place, wanted);
        let _ = shared.shards[0].push(Command::Arrive(Box::new(arrival)));
        client
    }

    fn publish(&self, channel: &str, text: &str) {
        let content = Content {
            bytes: Bytes::copy_from_slice(text.as_bytes()),
            filters: Vec::new(),
        };
        let publication = Publication {
            channel: channel.into(),
            stream: Some(StreamPart::Send(content)),
            ..Publication::default()
        };
        self.shard.shared.deliver(publication).unwrap();
    }

    /// What a client has got since the last look.
    fn got(&mut self, client: usize) -> String {
        let mut got = Vec::new();
        match self.clients[client].read_to_end(&mut got) {
            Err(e) if e.kind() != ErrorKind::WouldBlock => panic!("{e}"),
            Ok(_) | Err(_) => String::from_utf8(got).unwrap(),
        }
    }

    /// How many of these clients have got something since the last look.
    fn reached(&mut self, clients: std::ops::Range<usize>) -> usize {
        clients
            .filter(|&client| !self.got(client).is_empty())
            .count()
    }
}

#[test]
fn a_channel_with_many_subscribers_does_not_hold_up_one_with_few() {
    on_a_loop(async {
        let mut alone = Alone::new();
        for _ in 0..400 {
            drop(alone.arrive("large"));
        }
        drop(alone.arrive("small"));
        alone.turns().await;
        for _ in 0..3 {
            alone.publish("large", "x");
            alone.publish("small", "y");
            assert!(alone.turn(), "a turn does not do all of it");
            assert_eq!(alone.got(400), "y");
            let reached = alone.reached(0..400);
            assert!((1..=WRITES).contains(&reached), "{reached}");
            let turns = alone.turns().await;
            assert!(turns >= 2, "{turns}");
            assert_eq!(alone.reached(0..400), 400 - reached);
        }
    });
}

#[test]
fn messages_that_wait_go_out_together_and_arrivals_get_only_what_came_after_them() {
    on_a_loop(async {
        let mut alone = Alone::new();
        for _ in 0..200 {
            drop(alone.arrive("a"));
        }
        alone.turns().await;
        alone.publish("a", "1");
        alone.turn();
        for text in ["2", "3", "4"] {
            alone.publish("a", text);
        }
        drop(alone.arrive("a"));
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
                assert_eq!(alone.got(client), "12345", "{client}");
            }
        }
        assert_eq!(alone.got(200), "5");
        assert_eq!(alone.shard.streams.len(), 201 - 29);
        alone.shard.check_places();
    });
}

#[test]
fn a_socket_that_is_still_elsewhere_is_waited_for_and_then_given_up() {
    on_a_loop(async {
        let mut alone = Alone::new();
        let kept = alone.arrive("a");
        assert!(alone.turn(), "it is tried again at once");
        alone.turns().await;
        assert_eq!(alone.shard.streams.len(), 0);
        assert_eq!(alone.shard.late.len(), 1, "and then with the next tick");
        drop(kept);
        alone.shard.late_at = 0;
        alone.shard.pace.start -= Duration::from_secs(1);
        alone.turns().await;
        assert_eq!((alone.shard.streams.len(), alone.shard.late.len()), (1, 0));
        let kept = alone.arrive("a");
        for _ in 0..40 {
            alone.shard.pace.start -= Duration::from_secs(1);
            alone.turns().await;
        }
        assert_eq!(alone.shard.late.len(), 0, "it is given up");
        assert_eq!(alone.shard.shared.tally.seats(), 1);
        drop(kept);
    });
}

#[test]
fn bursts_leave_no_more_room_behind_than_a_turn_needs() {
    on_a_loop(async {
        let mut alone = Alone::new();
        drop(alone.arrive("a"));
        alone.turns().await;
        // The shard's list and the inbox's take turns: each has had its burst, and has come back.
        for _ in 0..4 {
            for _ in 0..4 * COMMANDS {
                alone.publish("a", "x");
            }
            assert!(alone.turns().await >= 4);
            assert_eq!(alone.shard.commands.len(), 0);
            let room = alone.shard.commands.capacity();
            assert!(room <= COMMANDS, "{room}");
        }
    });
}

#[test]
fn a_shard_that_holds_nothing_waits_for_no_time() {
    on_a_loop(async {
        let mut alone = Alone::new();
        alone.turns().await;
        assert_eq!(alone.shard.next_due(), None);
        drop(alone.arrive("a"));
        alone.turns().await;
        assert_eq!(alone.shard.next_due(), None, "it has no heart-beat");
        alone.clients.clear();
        alone.turns().await;
        assert_eq!(
            (alone.shard.streams.len(), alone.shard.locals.len()),
            (0, 0)
        );
        assert_eq!((alone.shard.list_bytes, alone.shard.next_due()), (0, None));
    });
}

impl Shard {
    /// Every list names its streams where they say that they are.
    fn check_places(&self) {
        let mut from = 0;
        while let Some(slot) = self.locals.next_from(from) {
            from = slot + 1;
            let local = self.locals.get(slot).unwrap();
            for (position, &stream) in local.subscribers.iter().enumerate() {
                let held = self.streams.get(stream).expect("it is held");
                let mut links = held.links();
                let link = links.find(|link| link.channel == slot).expect("it knows");
                assert_eq!(link.position as usize, position);
            }
        }
    }
}
