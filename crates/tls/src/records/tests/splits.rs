//! Records in every split, and sessions that another process continues in the middle of one.

use super::{Handshake, TLS13_COUNT, client_records, data, drain, feed, seal};
use crate::records::fuzzing::{SUITE_COUNT, SessionPair};
use crate::records::{MAX_SESSION_BYTES, OpenedBytes, RecordSession, RestoreError, content_type};

/// Records of a client with all that it may send, and the bytes of data in them.
fn all_records(suite: usize) -> (rustls::ClientConnection, RecordSession, Vec<u8>) {
    let (mut client, held) = Handshake::new(suite).hold();
    let mut records = client_records(&mut client, b"first");
    if suite < TLS13_COUNT {
        client.refresh_traffic_keys().unwrap();
        records.extend(client_records(&mut client, b"second"));
    } else {
        records.extend(client_records(&mut client, b"second"));
    }
    client.send_close_notify();
    records.extend(drain(&mut client));
    (client, held, records)
}

const ALL: OpenedBytes = OpenedBytes {
    data_bytes: 11,
    is_ended: true,
};

fn open_pieces(session: &[u8], pieces: &[&[u8]], is_moved: bool) -> (OpenedBytes, Vec<u8>) {
    let mut held = RecordSession::from_bytes(session).unwrap();
    let mut all = OpenedBytes::default();
    let mut answers = Vec::new();
    for piece in pieces {
        let opened = held.open(&mut piece.to_vec(), &mut answers).unwrap();
        all.data_bytes += opened.data_bytes;
        all.is_ended = opened.is_ended;
        if is_moved {
            held = RecordSession::from_bytes(&held.to_bytes()).unwrap();
        }
    }
    assert_eq!(held.memory_bytes(), size_of::<RecordSession>());
    (all, answers)
}

#[test]
fn every_split_says_the_same() {
    for suite in 0..SUITE_COUNT {
        let (mut client, held, records) = all_records(suite);
        let session = held.to_bytes();
        let (opened, answers) = open_pieces(&session, &[&records], false);
        assert_eq!(opened, ALL);
        for is_moved in [false, true] {
            for at in 0..=records.len() {
                let (first, rest) = records.split_at(at);
                let same = open_pieces(&session, &[first, rest], is_moved);
                assert_eq!(same, (opened, answers.clone()), "{suite} {at}");
            }
            let bytes: Vec<_> = records.chunks(1).collect();
            let same = open_pieces(&session, &bytes, is_moved);
            assert_eq!(same, (opened, answers.clone()), "{suite}");
        }
        feed(&mut client, &answers).unwrap();
    }
}

#[test]
fn every_split_in_three_of_a_key_update_says_the_same() {
    let (mut client, held) = Handshake::new(0).hold();
    client.refresh_traffic_keys().unwrap();
    let records = client_records(&mut client, b"x");
    let session = held.to_bytes();
    let whole = open_pieces(&session, &[&records], false);
    for first in 0..records.len() {
        for second in first..records.len() {
            let pieces = [
                &records[..first],
                &records[first..second],
                &records[second..],
            ];
            assert_eq!(
                open_pieces(&session, &pieces, false),
                whole,
                "{first} {second}"
            );
        }
    }
}

#[test]
fn a_partial_record_takes_no_more_than_twice_its_bytes() {
    let mut pair = SessionPair::new(0, 1).unwrap();
    let mut record = seal(&mut pair.client, &[1; 16 << 10]);
    let length = record.len();
    let server = &mut pair.server;
    for (at, byte) in record[..length - 1].iter_mut().enumerate() {
        let opened = server.open(std::slice::from_mut(byte), &mut Vec::new());
        assert_eq!(opened, Ok(data(0)));
        let kept = server.memory_bytes() - size_of::<RecordSession>();
        assert!(
            kept <= length && kept <= (2 * (at + 1)).max(8),
            "{at}: {kept}"
        );
    }
    let opened = server.open(&mut record[length - 1..], &mut Vec::new());
    assert_eq!(opened, Ok(data(16 << 10)));
    assert!(server.memory_bytes() <= MAX_SESSION_BYTES);
}

#[test]
fn another_process_continues_a_session() {
    for suite in 0..SUITE_COUNT {
        let (mut client, mut held) = Handshake::new(suite).hold();
        for round in 0..5_usize {
            let event = vec![b'e'; 100 * round + 1];
            let mut out = seal(&mut held, &event);
            if suite < TLS13_COUNT && round % 2 == 1 {
                client.refresh_traffic_keys().unwrap();
            }
            let mut records = client_records(&mut client, b"request");
            let (first, rest) = records.split_at_mut(20);
            held.open(first, &mut out).unwrap();
            held = RecordSession::from_bytes(&held.to_bytes()).unwrap();
            held.open(rest, &mut out).unwrap();
            assert!(feed(&mut client, &out).unwrap() == event, "{suite} {round}");
        }
    }
}

#[test]
fn an_ended_session_stays_ended_in_another_process() {
    let mut pair = SessionPair::new(0, 1).unwrap();
    pair.server.close_notify(&mut Vec::new());
    let moved = RecordSession::from_bytes(&pair.server.to_bytes()).unwrap();
    assert!(!moved.can_send() && moved.can_receive());
    let mut record = pair.seal_as_client(content_type::ALERT, &[1]).unwrap();
    assert!(pair.server.open(&mut record, &mut Vec::new()).is_err());
    let mut moved = RecordSession::from_bytes(&pair.server.to_bytes()).unwrap();
    super::answers::assert_dead(&mut moved);
}

#[test]
fn bytes_that_are_no_session_are_refused() {
    let mut pair = SessionPair::new(0, 1).unwrap();
    pair.server
        .open(&mut [23, 3, 3, 0, 40, 1], &mut Vec::new())
        .unwrap();
    let bytes = pair.server.to_bytes();
    let refusal = |bytes: &[u8]| RecordSession::from_bytes(bytes).map(|_| ()).unwrap_err();
    for length in 0..bytes.len() {
        assert_eq!(refusal(&bytes[..length]), RestoreError::Length);
    }
    let changed = |at: usize, value: u8| {
        let mut bytes = bytes.to_vec();
        bytes[at] = value;
        refusal(&bytes)
    };
    let end = bytes.len();
    assert_eq!(refusal(&[&bytes[..], b"x"].concat()), RestoreError::Length);
    assert_eq!(changed(0, 2), RestoreError::Version(2));
    assert_eq!(changed(1, 0), RestoreError::Field("cipher suite"));
    assert_eq!(changed(1, 7), RestoreError::Field("cipher suite"));
    for state in [5, 12, 16] {
        assert_eq!(changed(2, state), RestoreError::Field("state"));
    }
    // The partial record: its length, its type, and its own length.
    assert_eq!(changed(end - 7, 7), RestoreError::Length);
    assert_eq!(changed(end - 6, 20), RestoreError::Field("partial record"));
    assert_eq!(changed(end - 2, 1), RestoreError::Field("partial record"));
    assert_eq!(
        changed(end - 15, 5),
        RestoreError::Field("handshake message")
    );
    let overlong = [&bytes[..end - 8], &[0xff; 2], &[23; 0xffff][..]].concat();
    assert_eq!(refusal(&overlong), RestoreError::Field("partial record"));
}
