//! Every stream hears something within its interval, however they come, leave and are written to.

use super::*;
use std::collections::HashMap;
use std::time::Duration;

fn keep_alive(text: &'static str, regardless: bool) -> StreamKeepAlive {
    StreamKeepAlive {
        bytes: Bytes::from_static(text.as_bytes()),
        interval: Duration::from_secs(15),
        is_unconditional: regardless,
    }
}

/// The streams as a shard keeps them: where they are, and when they were last sent something.
#[derive(Default)]
struct RingHarness {
    at: HashMap<u32, HeartbeatRingPosition>,
    sent: HashMap<u32, u32>,
    beats: u32,
}

impl RingHarness {
    fn add(&mut self, beats: &mut Heartbeats, stream: u32, ticks: u32, now: u32) {
        let (at, is_own) = beats.insert(stream, &keep_alive(":", false), ticks, now);
        assert!(is_own);
        self.at.insert(stream, at);
        self.sent.insert(stream, now);
    }

    fn remove(&mut self, beats: &mut Heartbeats, stream: u32) {
        self.sent.remove(&stream);
        let at = self.at.remove(&stream).unwrap();
        self.moved(beats.remove(at));
    }

    fn moved(&mut self, moved: Option<HeartbeatRingMember>) {
        if let Some(HeartbeatRingMember {
            stream,
            position: at,
        }) = moved
        {
            self.at.insert(stream, at);
        }
    }

    /// One visit, if one is due.
    fn visit(&mut self, beats: &mut Heartbeats, now: u32) -> bool {
        let Some(visit) = beats.next_due_stream(now) else {
            return false;
        };
        assert_eq!(
            self.at[&visit.stream], visit.position,
            "it is where it is said to be"
        );
        match beats.check_due_or_reschedule(visit, now - self.sent[&visit.stream]) {
            Ok(()) => {
                self.beats += 1;
                self.sent.insert(visit.stream, now);
            }
            Err(moved) => moved.into_iter().for_each(|each| self.moved(each)),
        }
        true
    }

    fn check(&self, beats: &Heartbeats) {
        let len: usize = beats.rings.iter().flatten().map(|ring| ring.len).sum();
        assert_eq!(len, self.at.len());
        for (stream, at) in &self.at {
            let ring = beats.rings[usize::from(at.ring)].as_ref().unwrap();
            assert_eq!(ring.slots[usize::from(at.slot)][at.index as usize], *stream);
        }
    }
}

#[test]
fn nobody_is_silent_for_longer_than_the_interval() {
    let mut sent = 0;
    for seed in 1..=20_u64 {
        let mut beats = Heartbeats::new(seed);
        let mut dice = Heartbeats::new(seed + 1000);
        let mut streams = RingHarness::default();
        let ticks = [4, 7, 60, 500][usize::try_from(seed % 4).unwrap()];
        let mut next = 0;
        for now in 1..2_000 {
            for _ in 0..dice.next_random() % 3 {
                streams.add(&mut beats, next, ticks, now);
                next += 1;
            }
            let known: Vec<u32> = streams.at.keys().copied().collect();
            for stream in known {
                match dice.next_random() % 200 {
                    0 => streams.remove(&mut beats, stream),
                    1..5 => {
                        streams.sent.insert(stream, now);
                    }
                    _ => {}
                }
            }
            // In pieces, with streams that leave in between.
            while streams.visit(&mut beats, now) {
                if dice.next_random().is_multiple_of(20)
                    && let Some(&stream) = streams.at.keys().next()
                {
                    streams.remove(&mut beats, stream);
                }
            }
            // A slot's time comes within one step of the ring.
            let step = ticks.div_ceil(MAX_SLOTS);
            for (stream, sent) in &streams.sent {
                let silent = now - sent;
                assert!(
                    silent <= ticks + step,
                    "seed {seed}: {stream} for {silent} of {ticks}"
                );
            }
            assert!(
                beats.next_due_tick().is_none_or(|due| due > now),
                "seed {seed}"
            );
        }
        streams.check(&beats);
        sent += streams.beats;
        for stream in streams.at.keys().copied().collect::<Vec<_>>() {
            streams.remove(&mut beats, stream);
        }
        assert_eq!((beats.memory_bytes(), beats.next_due_tick()), (0, None));
    }
    assert!(sent > 1_000, "{sent}");
}

#[test]
fn beats_are_spread_also_after_all_were_written_to_at_once() {
    let mut beats = Heartbeats::new(1);
    let mut streams = RingHarness::default();
    for stream in 0..6_000 {
        streams.add(&mut beats, stream, 60, 0);
    }
    let mut most = 0;
    let mut all = 0;
    for now in 1..=240 {
        if now == 100 {
            streams.sent.values_mut().for_each(|sent| *sent = now);
        }
        let before = streams.beats;
        while streams.visit(&mut beats, now) {}
        let now_sent = streams.beats - before;
        most = most.max(now_sent);
        all += now_sent;
    }
    // 100 in each tick would be even; behind the message to all they come within a quarter.
    assert!(most < 700, "{most} at once");
    assert!((15_000..30_000).contains(&all), "{all} of about 20,000");
    streams.check(&beats);
}

#[test]
fn who_is_written_to_often_gets_no_beats() {
    let mut beats = Heartbeats::new(1);
    let mut streams = RingHarness::default();
    streams.add(&mut beats, 1, 60, 0);
    for now in 1..1_000 {
        if now % 20 == 0 {
            streams.sent.insert(1, now);
        }
        while streams.visit(&mut beats, now) {}
    }
    assert_eq!(streams.beats, 0);
    for now in 1_000..1_061 {
        while streams.visit(&mut beats, now) {}
    }
    assert!(streams.beats > 0);
}

#[test]
fn a_long_pause_is_followed_by_one_beat_each() {
    let mut beats = Heartbeats::new(1);
    let mut streams = RingHarness::default();
    for stream in 0..100 {
        streams.add(&mut beats, stream, 60, 0);
    }
    while streams.visit(&mut beats, 1_000_000) {}
    assert_eq!(streams.beats, 100);
}

#[test]
fn rings_are_bounded_and_the_rest_beats_no_later() {
    let mut beats = Heartbeats::new(1);
    let mut last = Vec::new();
    for interval in 0..200_u32 {
        let every = keep_alive(":", false);
        let (at, is_own) = beats.insert(interval, &every, 100 + interval, 0);
        assert_eq!(is_own, (interval as usize) < MAX_RINGS, "{interval}");
        let ring = beats.rings[usize::from(at.ring)].as_ref().unwrap();
        assert!(ring.interval_ticks <= 100 + interval);
        last.push(at);
    }
    let (at, is_own) = beats.insert(999, &keep_alive("other", true), 1, 0);
    assert!(!is_own && !beats.is_unconditional(at));
    assert_eq!(
        beats
            .heartbeat_bytes(at, StreamFormat::CHUNKED_EVENTS)
            .unwrap(),
        &b"1\r\n:\r\n"[..]
    );
}
