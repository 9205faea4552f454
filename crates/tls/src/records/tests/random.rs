//! Random traffic with `rustls` as the client: each side reads what the other wrote.
//!
//! `PENSTOCK_SEED=n` replays one seed, `PENSTOCK_SEEDS=n` runs n seeds. A seed has 250 records and
//! more.

use std::io::IoSlice;

use super::{Handshake, TLS13_COUNT, client_records, drain, feed};
use crate::records::fuzzing::SUITE_COUNT;
use crate::records::handshake::KEY_UPDATE_NOT_REQUESTED;
use crate::records::{MAX_SESSION_BYTES, RecordSession};

const STEPS: usize = 500;

struct Traffic {
    random: fastrand::Rng,
    client: rustls::ClientConnection,
    held: RecordSession,
    /// What the server has sealed and the client has not read.
    on_the_way: Vec<u8>,
    /// The plaintext of that.
    expected: Vec<u8>,
    is_tls13: bool,
    /// Records in both directions.
    records: usize,
}

/// Returns how many records there were.
fn run(seed: u64) -> usize {
    let suite = usize::try_from(seed).unwrap() % SUITE_COUNT;
    let (client, held) = Handshake::new(suite).hold();
    let mut traffic = Traffic {
        random: fastrand::Rng::with_seed(seed),
        client,
        held,
        on_the_way: Vec::new(),
        expected: Vec::new(),
        is_tls13: suite < TLS13_COUNT,
        records: 0,
    };
    for _ in 0..STEPS {
        traffic.step();
        assert!(traffic.held.memory_bytes() <= MAX_SESSION_BYTES);
    }
    traffic.deliver();
    traffic.finish()
}

fn count_records(mut bytes: &[u8]) -> usize {
    let mut count = 0;
    while let Some([_, _, _, high, low]) = bytes.first_chunk() {
        bytes = &bytes[5 + usize::from(u16::from_be_bytes([*high, *low]))..];
        count += 1;
    }
    assert!(bytes.is_empty());
    count
}

impl Traffic {
    fn step(&mut self) {
        match self.random.u8(..12) {
            0..4 => self.send_event(),
            4..7 => self.send_request(),
            7 | 8 => self.deliver(),
            9 if self.is_tls13 => self.client.refresh_traffic_keys().unwrap(),
            10 if self.is_tls13 => {
                let out = &mut self.on_the_way;
                self.held
                    .update_send_key(KEY_UPDATE_NOT_REQUESTED, out)
                    .unwrap();
                // More than 32 updates without data are too many for `rustls`.
                self.send_event();
            }
            _ => self.held = RecordSession::from_bytes(&self.held.to_bytes()).unwrap(),
        }
    }

    fn content(&mut self) -> Vec<u8> {
        let length = match self.random.u8(..50) {
            0 => self.random.usize(..70_000),
            1..6 => self.random.usize(..5_000),
            _ => self.random.usize(1..300),
        };
        let first = self.random.u8(..);
        let bytes = (first..=u8::MAX).cycle();
        bytes.take(length).collect()
    }

    fn send_event(&mut self) {
        let content = self.content();
        let (first, second) = content.split_at(self.random.usize(..=content.len()));
        let slices = [IoSlice::new(first), IoSlice::new(second)];
        self.held.seal(&slices, &mut self.on_the_way).unwrap();
        self.expected.extend_from_slice(&content);
    }

    /// The client's records come in pieces.
    fn send_request(&mut self) {
        let content = self.content();
        let mut records = client_records(&mut self.client, &content);
        self.records += count_records(&records);
        let mut bytes = &mut records[..];
        let mut opened = 0;
        while !bytes.is_empty() {
            let most = bytes.len().min(20_000);
            let piece = bytes.split_off_mut(..self.random.usize(1..=most)).unwrap();
            let done = self.held.open(piece, &mut self.on_the_way).unwrap();
            assert!(!done.is_ended);
            opened += done.data_bytes;
        }
        assert_eq!(opened, content.len());
    }

    fn deliver(&mut self) {
        self.records += count_records(&self.on_the_way);
        for piece in self.on_the_way.chunks(self.random.usize(1..20_000)) {
            let read = feed(&mut self.client, piece).unwrap();
            assert!(self.expected.starts_with(&read));
            self.expected.drain(..read.len());
        }
        self.on_the_way.clear();
        assert!(self.expected.is_empty());
    }

    fn finish(mut self) -> usize {
        if self.random.bool() {
            self.held.close_notify(&mut self.on_the_way);
            self.deliver();
            assert!(self.client.process_new_packets().unwrap().peer_has_closed());
        } else {
            self.client.send_close_notify();
            let mut end = drain(&mut self.client);
            let done = self.held.open(&mut end, &mut self.on_the_way).unwrap();
            assert!(done.is_ended);
        }
        self.records
    }
}

#[test]
fn both_sides_read_what_the_other_wrote() {
    let number = |name| std::env::var(name).ok()?.parse().ok();
    let seeds = match number("PENSTOCK_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("PENSTOCK_SEEDS").unwrap_or(48),
    };
    for seed in seeds {
        let result = std::panic::catch_unwind(|| run(seed));
        let records = result.unwrap_or_default();
        assert!(
            records > 250,
            "replay with PENSTOCK_SEED={seed}: {records} records"
        );
    }
}
