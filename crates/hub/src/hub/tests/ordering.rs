//! Streams of several channels get what was published in the order in which it was: a client that
//! comes back names one message, which stands for all before it.

use super::*;

const CHANNELS: [&str; 3] = ["a", "b", "c"];

/// The numbers that a client gets until its stream ends.
fn numbers(client: &mut Client) -> Vec<usize> {
    let text = client.rest();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

#[test]
fn a_large_channel_is_not_overtaken_by_a_small_one() {
    let rig = HubHarness::with_loops(with_history(10), 1);
    let _crowd: Vec<Client> = (0..400).map(|_| rig.hold(stream(&["all"]))).collect();
    let mut plain = rig.hold(stream(&["room", "all"]));
    let filtered = HeldStream {
        subscriptions: ["room", "all"]
            .map(|channel| Subscription {
                filters: vec![crate::MessageFilter::SkipSelf],
                ..subscription(channel)
            })
            .into(),
        ..stream(&[])
    };
    let mut filtered = rig.hold(filtered);
    let mut of_three = rig.hold(stream(&["other", "room", "all"]));
    for round in 0..20 {
        let texts = [("all", 0), ("room", 1), ("all", 2), ("room", 3)];
        for (channel, number) in texts {
            let text = format!("{round}.{number}.");
            rig.hub.publish(message(channel, &text)).unwrap();
        }
        for client in [&mut plain, &mut filtered, &mut of_three] {
            let mut got = String::new();
            while got.matches('.').count() < 8 {
                got.push_str(&client.chunk());
            }
            assert_eq!(got, format!("{round}.0.{round}.1.{round}.2.{round}.3."));
        }
    }
}

#[test]
fn a_close_follows_earlier_messages() {
    let rig = HubHarness::with_loops(settings(), 1);
    let _crowd: Vec<Client> = (0..400).map(|_| rig.hold(stream(&["all"]))).collect();
    let mut client = rig.hold(stream(&["room", "all"]));
    let end = Publication {
        stream: Some(StreamAction::Close),
        ..message("room", "")
    };
    rig.hub.publish(message("all", "before")).unwrap();
    rig.hub.publish(end).unwrap();
    rig.hub.publish(message("all", "after")).unwrap();
    assert_eq!(client.rest(), "before");
    let nothing_waits = |hub: &Hub| hub.shared.metrics.pending_bytes.load(Ordering::Relaxed) == 0;
    rig.until("all are delivered", nothing_waits);
}

#[test]
fn everything_of_all_channels_comes_once_and_in_order() {
    let rig = HubHarness::new(Settings {
        max_backlog: 64 << 20,
        send_timeout: Duration::from_secs(100_000),
        ..settings()
    });
    let subsets: Vec<Vec<&str>> = (1..8_usize)
        .map(|bits| {
            let all = CHANNELS.iter().enumerate();
            let chosen = all.filter(|(index, _)| bits >> index & 1 == 1);
            chosen.map(|(_, channel)| *channel).collect()
        })
        .collect();
    let mut clients: Vec<(Client, &[&str])> = Vec::new();
    for number in 0..70 {
        let channels = &subsets[number % subsets.len()][..];
        let before = rig.hub.snapshot().counters.opened;
        let client = rig.hand_over(stream(channels), HeldFraming::Chunked, b"", number % 2);
        rig.until("it is held", |hub| hub.snapshot().counters.opened > before);
        clients.push((client, channels));
    }
    let channel_of = |number: usize| CHANNELS[number * number / 7 % CHANNELS.len()];
    for number in 0..3_000 {
        let text = format!("{number}\n");
        rig.hub.publish(message(channel_of(number), &text)).unwrap();
    }
    let nothing_waits = |hub: &Hub| hub.shared.metrics.pending_bytes.load(Ordering::Relaxed) == 0;
    rig.until("all are delivered", nothing_waits);
    let hub = rig.hub.clone();
    rig.handles()[0]
        .spawn(async move { hub.drain(DrainPlan::with_duration(Duration::ZERO)).await });
    for (client, channels) in &mut clients {
        let expected = (0..3_000).filter(|&number| channels.contains(&channel_of(number)));
        assert!(numbers(client).into_iter().eq(expected), "{channels:?}");
    }
    assert_eq!(rig.hub.snapshot().counters.dropped, 0);
}
