//! Several hubs and a real Redis: one process, one runtime, what each server's subscriber hears
//! written down.

mod server;

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::Instant;

use penstock_hub::{History, ListenerEvent, PublishedEvent, Settings, StreamAction, Subscription};
use penstock_runtime::loops::TaskHandle;
use penstock_runtime::{EventLoops, clock, loops, start_tokio};

use self::server::RedisServer;
use super::*;

/// Within so long everything happens that is to happen.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs a test on a loop of its own; Redis is reached through tokio's thread.
fn run(test: impl Future<Output = ()>) {
    let tokio = start_tokio().unwrap();
    let _entered = tokio.enter();
    loops::block_on(test).unwrap();
}

/// One server with a subscriber of one channel.
struct TestNode {
    hub: Hub,
    bus: Arc<RedisBus>,
    received: Arc<Mutex<Vec<String>>>,
    listening: TaskHandle<()>,
    _loops: EventLoops,
}

const CHANNEL: &str = "news";

impl TestNode {
    async fn start(url: &str) -> Self {
        let node = Self::start_cold(url);
        node.until("connected", |node| node.bus.snapshot().connected)
            .await;
        node.subscribe().await
    }

    /// Without a subscriber.
    fn start_cold(url: &str) -> Self {
        Self::start_with(url, 1000)
    }

    /// With so many messages in its histories.
    fn start_with(url: &str, count: usize) -> Self {
        Self::start_trusting(url, None, count)
    }

    fn start_trusting(url: &str, authorities: Option<Vec<u8>>, count: usize) -> Self {
        let loops = EventLoops::start(1).unwrap();
        let settings = Settings {
            history: History {
                max_messages: count,
                ..History::default()
            },
            ..Settings::default()
        };
        let hub = Hub::start(settings, loops.handles()).unwrap();
        let numbers = || vec![("requests".to_owned(), 7)];
        let bus = RedisBus::start(&hub, url, authorities, Box::new(numbers)).unwrap();
        Self {
            hub,
            bus,
            received: Arc::default(),
            listening: loops::spawn_with_handle(async {}),
            _loops: loops,
        }
    }

    /// Subscribes the way handlers do.
    async fn subscribe(mut self) -> Self {
        if let Some(prepared) = self.hub.prepare_channels(&[CHANNEL.into()]) {
            prepared.await;
        }
        let mut listener = self.hub.create_message_listener(None).unwrap();
        let subscription = Subscription {
            channel: CHANNEL.into(),
            ..Subscription::default()
        };
        listener.subscribe(subscription).unwrap();
        let received = self.received.clone();
        self.listening = loops::spawn_with_handle(async move {
            loop {
                let ListenerEvent::Message(message) = listener.next_event().await else {
                    panic!("the listener fell behind");
                };
                let publication = &message.publication;
                let text = match (&publication.stream, &publication.event) {
                    (Some(StreamAction::Gap), None) => "gap".to_owned(),
                    (None, Some(event)) => event.data.clone().into(),
                    _ => panic!("neither a message nor a gap: {publication:?}"),
                };
                received.lock().unwrap().push(text);
            }
        });
        self
    }

    fn publish(&self, text: &str) {
        let publication = Publication {
            channel: CHANNEL.into(),
            event: Some(PublishedEvent {
                data: text.into(),
                ..PublishedEvent::default()
            }),
            ..Publication::default()
        };
        self.hub.publish(publication).unwrap();
    }

    fn received(&self) -> Vec<String> {
        self.received.lock().unwrap().clone()
    }

    async fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        until(what, || is_so(self)).await;
    }

    async fn until_heard(&self, text: &str) {
        let what = format!("{text} is heard");
        self.until(&what, |node| {
            node.received().iter().any(|received| received == text)
        })
        .await;
    }

    async fn stop(mut self) {
        self.bus.stop().await;
        self.listening.abort();
    }
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    let mut looks = clock::PollInterval::new(Duration::from_millis(2));
    while !is_so() {
        assert!(
            Instant::now() < deadline,
            "not within {TEST_TIMEOUT:?}: {what}"
        );
        looks.tick().await;
    }
}

fn sorted(mut received: Vec<String>) -> Vec<String> {
    received.sort();
    received
}

#[test]
fn all_nodes_hear_all_messages_once_and_in_one_order() {
    run(async {
        let redis = RedisServer::start().await;
        let mut nodes = Vec::new();
        for _ in 0..3 {
            nodes.push(TestNode::start(&redis.url()).await);
        }
        for round in 0..10 {
            // Fewer than a listener may fall behind.
            for message in 0..10 {
                for (number, node) in nodes.iter().enumerate() {
                    node.publish(&format!("{number}.{round}.{message}"));
                }
                loops::yield_now().await;
            }
            for node in &nodes {
                let count = (round + 1) * 30;
                node.until("all are heard", |node| node.received().len() >= count)
                    .await;
            }
        }
        let first = nodes[0].received();
        let distinct: HashSet<&String> = first.iter().collect();
        assert_eq!(distinct.len(), 300);
        for node in &nodes {
            assert_eq!(node.received(), first);
            assert!(!node.bus.snapshot().standalone);
        }
        for node in nodes {
            node.stop().await;
        }
    });
}

#[test]
fn a_node_that_comes_later_has_the_history_of_all() {
    run(async {
        let redis = RedisServer::start().await;
        let first = TestNode::start(&redis.url()).await;
        for number in 0..10 {
            first.publish(&number.to_string());
        }
        first.until_heard("9").await;
        let second = TestNode::start(&redis.url()).await;
        let after = |node: &TestNode, id: &str| -> Option<Vec<String>> {
            let after = node.hub.history_after(CHANNEL, id)?;
            let text = |message: Publication| message.event.unwrap().data.into();
            Some(after.into_iter().map(text).collect())
        };
        let last = first.hub.last_message_id(CHANNEL).unwrap();
        let (stem, number) = last.rsplit_once('-').unwrap();
        let fourth = format!("{stem}-{}", number.parse::<u64>().unwrap() - 5);
        let expected = ["5", "6", "7", "8", "9"].map(str::to_owned);
        assert_eq!(after(&second, &fourth).unwrap(), expected);
        assert_eq!(after(&first, &fourth).unwrap(), expected);
        assert!(second.received().is_empty(), "history is not news");
        first.stop().await;
        second.stop().await;
    });
}

#[test]
fn a_redis_that_pauses_delays_no_one_and_nothing_comes_twice() {
    run(async {
        let redis = RedisServer::start().await;
        let (a, b) = (
            TestNode::start(&redis.url()).await,
            TestNode::start(&redis.url()).await,
        );
        a.publish("1");
        b.until_heard("1").await;
        let before = b.hub.last_message_id(CHANNEL).unwrap();
        redis.pause();
        for text in ["2", "3", "4"] {
            a.publish(text);
        }
        a.until_heard("4").await;
        assert!(a.bus.snapshot().standalone);
        assert_eq!(b.received(), ["1"]);
        redis.resume();
        b.until_heard("4").await;
        a.until("shared again", |node| !node.bus.snapshot().standalone)
            .await;
        a.publish("5");
        for node in [&a, &b] {
            node.until_heard("5").await;
            assert_eq!(node.received(), ["1", "2", "3", "4", "5"]);
            // The order may have been another elsewhere: a resuming client gets a gap.
            assert!(node.hub.history_after(CHANNEL, &before).is_none());
        }
        a.stop().await;
        b.stop().await;
    });
}

#[test]
fn a_redis_that_restarts_empty_under_load_loses_nothing() {
    run(async {
        let mut redis = RedisServer::start().await;
        let (a, b) = (
            TestNode::start(&redis.url()).await,
            TestNode::start(&redis.url()).await,
        );
        let mut sent = 0;
        let mut publish = |count: usize| {
            for _ in 0..count {
                a.publish(&format!("a{sent:04}"));
                b.publish(&format!("b{sent:04}"));
                sent += 1;
            }
        };
        for round in 0..3 {
            publish(10);
            // What Redis has by now and what it has not depends on chance, which is the point.
            loops::yield_now().await;
            redis.kill();
            publish(10);
            a.until("alone", |node| node.bus.snapshot().standalone)
                .await;
            publish(10);
            redis.run().await;
            for node in [&a, &b] {
                node.until("connected again", |node| {
                    let cluster = node.bus.snapshot();
                    cluster.connected && !cluster.standalone
                })
                .await;
            }
            publish(10);
            a.publish(&format!("end {round}"));
            // All of a round, 81, are fewer than a listener may fall behind; those of two rounds
            // are not.
            for node in [&a, &b] {
                let all = 81 * (round + 1);
                node.until("all are heard", |node| node.received().len() >= all)
                    .await;
            }
        }
        for node in [&a, &b] {
            let received = node.received();
            for of in ["a", "b"] {
                let of_one: Vec<String> = received
                    .iter()
                    .filter(|h| h.starts_with(of))
                    .cloned()
                    .collect();
                let expected: Vec<String> = (0..120).map(|n| format!("{of}{n:04}")).collect();
                assert_eq!(of_one, expected, "each once, in the order of their node");
            }
            assert!(!received.contains(&"gap".to_owned()));
        }
        a.stop().await;
        b.stop().await;
    });
}

#[test]
fn a_full_redis_stops_no_node() {
    run(async {
        let redis = RedisServer::start().await;
        let (a, b) = (
            TestNode::start(&redis.url()).await,
            TestNode::start(&redis.url()).await,
        );
        redis.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
        a.publish("1");
        a.until_heard("1").await;
        redis.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
        b.until_heard("1").await;
        assert_eq!(sorted(a.received()), ["1"]);
        a.stop().await;
        b.stop().await;
    });
}

#[test]
fn a_flushed_redis_is_noticed() {
    run(async {
        let redis = RedisServer::start().await;
        let (a, b) = (
            TestNode::start(&redis.url()).await,
            TestNode::start(&redis.url()).await,
        );
        a.publish("1");
        b.until_heard("1").await;
        redis.command(&["FLUSHALL"]).await;
        a.publish("2");
        b.until_heard("2").await;
        a.until_heard("2").await;
        for node in [&a, &b] {
            assert_eq!(node.received(), ["1", "2"]);
        }
        a.stop().await;
        b.stop().await;
    });
}

#[test]
fn nobody_goes_on_from_older_data() {
    run(async {
        let mut redis = RedisServer::start().await;
        let a = TestNode::start(&redis.url()).await;
        a.publish("1");
        a.until_heard("1").await;
        let first = a.hub.last_message_id(CHANNEL).unwrap();
        redis.command(&["SAVE"]).await;
        a.publish("2");
        a.until_heard("2").await;
        a.stop().await;
        redis.kill();
        redis.run().await;
        // It has the first message, under the mark that it had, and no server has the second any
        // more.
        let b = TestNode::start(&redis.url()).await;
        assert!(b.hub.history_after(CHANNEL, &first).is_none());
        b.publish("3");
        b.until_heard("3").await;
        assert_eq!(b.received(), ["3"]);
        b.stop().await;
    });
}

#[test]
fn what_came_before_a_subscriber_is_not_news_to_it_when_redis_forgets() {
    run(async {
        let redis = RedisServer::start().await;
        let (a, b) = (
            TestNode::start(&redis.url()).await,
            TestNode::start(&redis.url()).await,
        );
        a.publish("old");
        b.until_heard("old").await;
        b.publish("last");
        a.until_heard("last").await;
        // Only the last one is in its history.
        let c = TestNode::start_with(&redis.url(), 1);
        c.until("connected", |node| node.bus.snapshot().connected)
            .await;
        let c = c.subscribe().await;
        redis.command(&["FLUSHALL"]).await;
        for (node, text) in [(&a, "2"), (&b, "3")] {
            node.publish(text);
            c.until_heard(text).await;
        }
        assert_eq!(sorted(c.received()), ["2", "3"]);
        for node in [a, b, c] {
            node.stop().await;
        }
    });
}

#[test]
fn what_was_taken_at_the_end_arrives_and_the_rest_is_refused() {
    run(async {
        let redis = RedisServer::start().await;
        let (mut a, b) = (
            TestNode::start(&redis.url()).await,
            TestNode::start(&redis.url()).await,
        );
        let publication = |number: u32| Publication {
            channel: CHANNEL.into(),
            event: Some(PublishedEvent {
                data: number.to_string().into(),
                ..PublishedEvent::default()
            }),
            ..Publication::default()
        };
        let hub = a.hub.clone();
        let publishing = std::thread::spawn(move || {
            let mut taken = 0;
            loop {
                match hub.publish(publication(taken)) {
                    Ok(()) => taken += 1,
                    Err(HubError::DeliveryBacklogFull(_)) => std::thread::yield_now(),
                    Err(refused) => break (taken, refused),
                }
                // No faster than the listener of the other takes them.
                std::thread::park_timeout(Duration::from_micros(500));
            }
        });
        b.until_heard("20").await;
        a.bus.stop().await;
        let (taken, refused) = publishing.join().unwrap();
        assert_eq!(refused, HubError::Draining);
        b.until_heard(&(taken - 1).to_string()).await;
        assert_eq!(b.received().len(), usize::try_from(taken).unwrap());
        a.listening.abort();
        b.stop().await;
    });
}

#[test]
fn without_redis_a_node_serves_its_own_and_announces_gaps_later() {
    run(async {
        let mut redis = RedisServer::start().await;
        redis.kill();
        let a = TestNode::start_cold(&redis.url()).subscribe().await;
        a.publish("1");
        a.until_heard("1").await;
        redis.run().await;
        let b = TestNode::start(&redis.url()).await;
        b.publish("2");
        // It depends on which server is back first; a's subscriber does not miss it without a gap.
        let is_told = |text: &String| text == "2" || text == "gap";
        a.until("2 is heard or a gap", |node| {
            node.received().iter().any(is_told)
        })
        .await;
        b.publish("3");
        a.until_heard("3").await;
        let distinct: HashSet<String> = a.received().into_iter().collect();
        assert_eq!(distinct.len(), a.received().len(), "{:?}", a.received());
        a.stop().await;
        b.stop().await;
    });
}

#[test]
fn the_numbers_of_all_nodes_are_added_up() {
    run(async {
        let redis = RedisServer::start().await;
        let (a, b) = (
            TestNode::start(&redis.url()).await,
            TestNode::start(&redis.url()).await,
        );
        for node in [&a, &b] {
            node.until("both are counted", |node| {
                let cluster = node.bus.snapshot();
                cluster.servers == 2 && cluster.totals.get("requests") == Some(&14)
            })
            .await;
        }
        b.stop().await;
        a.until("one has left", |node| node.bus.snapshot().servers == 1)
            .await;
        assert_eq!(a.bus.snapshot().totals["requests"], 7);
        a.stop().await;
    });
}

#[test]
fn what_is_published_right_before_the_end_arrives() {
    run(async {
        let redis = RedisServer::start().await;
        let (a, b) = (
            TestNode::start(&redis.url()).await,
            TestNode::start(&redis.url()).await,
        );
        for number in 0..90 {
            a.publish(&number.to_string());
        }
        a.stop().await;
        b.until_heard("89").await;
        b.stop().await;
    });
}

#[test]
fn a_password_is_used_and_never_shown() {
    run(async {
        let redis = RedisServer::with_password(Some("s3cret")).await;
        let a = TestNode::start(&redis.url()).await;
        a.publish("1");
        a.until_heard("1").await;
        assert!(!a.bus.snapshot().standalone);
        for shown in [format!("{:?}", a.bus), a.bus.address().to_owned()] {
            assert!(!shown.contains("s3cret"), "{shown}");
        }
        a.stop().await;
        let wrong = redis.url().replace("s3cret", "wr0ng");
        let b = TestNode::start_cold(&wrong).subscribe().await;
        b.publish("2");
        b.until_heard("2").await;
        assert!(!b.bus.snapshot().connected);
        b.stop().await;
    });
}

#[test]
fn servers_meet_over_tls() {
    run(async {
        let redis = RedisServer::with_tls().await;
        let (url, authority) = redis.tls_url();
        let start = || TestNode::start_trusting(&url, Some(authority.clone()), 1000);
        let (a, b) = (start(), start());
        for node in [&a, &b] {
            let what = "connected over TLS";
            node.until(what, |node| node.bus.snapshot().connected).await;
        }
        let b = b.subscribe().await;
        a.publish("over TLS");
        b.until_heard("over TLS").await;
        a.stop().await;
        b.stop().await;
        // The system does not trust that authority.
        let stranger = TestNode::start_cold(&url);
        stranger
            .until("refused", |node| node.bus.snapshot().standalone)
            .await;
        assert!(!stranger.bus.snapshot().connected);
        stranger.stop().await;
    });
}

#[test]
fn an_address_that_is_none_is_refused_without_showing_it() {
    run(async {
        let loops = EventLoops::start(1).unwrap();
        let hub = Hub::start(Settings::default(), loops.handles()).unwrap();
        for url in [
            "",
            "http://:s3cret@h/",
            "redis://:s3cret@h:port",
            "nonsense",
        ] {
            let refused = RedisBus::start(&hub, url, None, Box::new(Vec::new)).unwrap_err();
            let text = refused.to_string();
            assert!(
                text.starts_with("server.redis: ") && !text.contains("s3cret"),
                "{text}"
            );
        }
    });
}
