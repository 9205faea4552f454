//! Publishers, arrivals and departures all at once: everybody gets every message of its channels
//! from its own beginning on, once and in order.

use super::*;
use std::sync::atomic::AtomicU64;

/// Messages of each channel.
const MESSAGES: u64 = 2_000;

const CHANNELS: [&str; 3] = ["a", "b", "c"];

/// A client, and where its channels stood around its beginning.
struct TestSubscriber {
    client: Client,
    channels: Vec<(&'static str, u64, u64)>,
}

#[test]
fn everybody_gets_everything_once_and_in_order() {
    let seed = std::env::var("PENSTOCK_SEED").ok();
    let seeds = seed.map_or(1..=4, |seed| {
        let seed: u64 = seed.parse().expect("PENSTOCK_SEED is a number");
        seed..=seed
    });
    for seed in seeds {
        run(seed);
    }
}

fn run(seed: u64) {
    let history = History {
        max_messages: 1_000_000,
        max_size: 1 << 30,
        max_size_total: 1 << 30,
        ..History::default()
    };
    // Clients read at the end only, and a socket takes few small writes.
    let rig = HubHarness::new(Settings {
        history,
        max_backlog: 64 << 20,
        send_timeout: Duration::from_secs(100_000),
        ..Settings::default()
    });
    let progress: Arc<[AtomicU64; 3]> = Arc::default();
    let publishers: Vec<_> = (0..CHANNELS.len())
        .map(|which| {
            let (hub, progress) = (rig.hub.clone(), progress.clone());
            std::thread::spawn(move || {
                for number in 0..MESSAGES {
                    let channel = CHANNELS[which];
                    hub.publish(message(channel, &format!("{channel}{number}\n")))
                        .unwrap();
                    progress[which].fetch_add(1, Ordering::SeqCst);
                    if number % 16 == 0 {
                        std::thread::yield_now();
                    }
                }
            })
        })
        .collect();
    let mut dice = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut roll = move |sides: usize| {
        // xorshift64*: enough disorder for a test, and the same on every machine.
        dice ^= dice >> 12;
        dice ^= dice << 25;
        dice ^= dice >> 27;
        let rolled = dice.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33;
        usize::try_from(rolled).unwrap() % sides
    };
    let mut members: Vec<TestSubscriber> = Vec::new();
    let mut begun = 0;
    while publishers.iter().any(|each| !each.is_finished()) || begun < 50 {
        if roll(3) > 0 && members.len() < 60 {
            members.push(begin(&rig, &progress, &mut roll));
            begun += 1;
        } else if !members.is_empty() {
            let leaves = roll(members.len());
            members.swap_remove(leaves);
        }
    }
    for publisher in publishers {
        publisher.join().unwrap();
    }
    // Those that stay hear of the end of each of their channels; the first ends them.
    rig.until("all have come", |hub| {
        hub.snapshot().counters.opened == begun
    });
    let hub = rig.hub.clone();
    rig.until("all is delivered", |hub| {
        hub.shared.metrics.pending_bytes.load(Ordering::Relaxed) == 0
    });
    rig.handles()[0]
        .spawn(async move { hub.drain(DrainPlan::with_duration(Duration::ZERO)).await });
    for member in &mut members {
        check(member, seed);
    }
    rig.until("none is left", |hub| hub.snapshot().streams == 0);
    let counts = rig.hub.snapshot();
    assert_eq!(
        (counts.counters.dropped, counts.counters.closed_as_slow),
        (0, 0)
    );
    rig.until("places are given back", |_| {
        rig.front.0.load(Ordering::SeqCst) == 0
    });
}

fn begin(
    rig: &HubHarness,
    progress: &[AtomicU64; 3],
    roll: &mut impl FnMut(usize) -> usize,
) -> TestSubscriber {
    let which: Vec<usize> = (0..CHANNELS.len()).filter(|_| roll(2) == 0).collect();
    let which = if which.is_empty() { vec![0] } else { which };
    let stand = |which: usize| progress[which].load(Ordering::SeqCst);
    let before: Vec<u64> = which.iter().map(|&which| stand(which)).collect();
    let names: Vec<&str> = which.iter().map(|&which| CHANNELS[which]).collect();
    let body = rig.hub.stream_body(stream(&names)).unwrap();
    let after = which.iter().map(|&which| stand(which));
    let channels = names.iter().copied().zip(before).zip(after);
    let channels = channels.map(|((name, before), after)| (name, before, after));
    let channels = channels.collect();
    let client = rig.hand_over_body(body, HeldFraming::Chunked, b"", roll(2));
    TestSubscriber { client, channels }
}

fn check(member: &mut TestSubscriber, seed: u64) {
    let text = member.client.rest();
    for &(channel, before, after) in &member.channels {
        let lines = text.lines().filter_map(|line| line.strip_prefix(channel));
        let numbers: Vec<u64> = lines.map(|number| number.parse().unwrap()).collect();
        let first = numbers.first().copied().unwrap_or(MESSAGES);
        assert!(
            numbers.iter().copied().eq(first..MESSAGES),
            "seed {seed}: {channel}: from {first}: {numbers:?}"
        );
        // The one that was under way may have come on either side.
        assert!(
            before <= first && first <= after + 1,
            "seed {seed}: {first} of {before}..{after}"
        );
    }
    let lines = text.lines().count() as u64;
    let expected = member.channels.iter().map(|(channel, ..)| {
        text.lines()
            .filter(|line| line.starts_with(channel))
            .count() as u64
    });
    assert_eq!(
        lines,
        expected.sum::<u64>(),
        "seed {seed}: nothing of other channels"
    );
}
