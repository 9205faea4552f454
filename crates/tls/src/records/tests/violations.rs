//! What a client may not send: each has its error and its alert, and ends the session.

use super::answers::assert_dead;
use super::{Handshake, client_records, data, feed, seal};
use crate::records::content_type::{ALERT, APPLICATION_DATA, HANDSHAKE};
use crate::records::fuzzing::{SUITE_COUNT, SessionPair, run_operations};
use crate::records::{MAX_PLAINTEXT_BYTES, OpenError, RecordSession, Violation};

/// Opens `records`, which break a rule, and returns what the client is told.
fn violate(pair: &mut SessionPair, mut records: Vec<u8>, expected: Violation) {
    let mut out = Vec::new();
    let opened = pair.server.open(&mut records, &mut out);
    assert_eq!(opened, Err(OpenError::Violation(expected)));
    assert_dead(&mut pair.server);
    let told = pair.client.open(&mut out, &mut Vec::new());
    assert_eq!(told, Err(OpenError::PeerAlert(expected.alert())));
}

#[test]
fn content_that_no_client_sends_is_refused() {
    const TLS13: usize = 0;
    const TLS12: usize = 3;
    let rows: [(usize, u8, &[u8], Violation); 18] = [
        (TLS13, 20, &[1], Violation::UnexpectedRecord(20)),
        (TLS13, 24, &[1, 2, 3], Violation::UnexpectedRecord(24)),
        (TLS13, 0, &[1, 2, 0], Violation::UnexpectedRecord(2)),
        (TLS13, 0, &[0, 0, 0], Violation::NoContentType),
        (TLS13, 0, &[], Violation::NoContentType),
        (TLS13, ALERT, &[], Violation::EmptyRecord),
        (TLS13, ALERT, &[2], Violation::BadAlertLength),
        (TLS13, ALERT, &[2, 40, 0], Violation::BadAlertLength),
        (TLS13, HANDSHAKE, &[], Violation::EmptyRecord),
        // A session ticket, which only servers send.
        (
            TLS13,
            HANDSHAKE,
            &[4, 0, 0, 1, 0],
            Violation::UnexpectedHandshake(4),
        ),
        (TLS13, HANDSHAKE, &[1], Violation::UnexpectedHandshake(1)),
        (
            TLS13,
            HANDSHAKE,
            &[24, 0, 0, 2, 0, 0],
            Violation::BadKeyUpdateLength,
        ),
        (
            TLS13,
            HANDSHAKE,
            &[24, 0, 0, 0],
            Violation::BadKeyUpdateLength,
        ),
        (
            TLS13,
            HANDSHAKE,
            &[24, 0, 0, 1, 2],
            Violation::BadKeyUpdateRequest,
        ),
        (
            TLS13,
            HANDSHAKE,
            &[24, 0, 0, 1, 1, 24],
            Violation::MixedHandshake,
        ),
        (
            TLS12,
            HANDSHAKE,
            &[24, 0, 0, 1, 1],
            Violation::UnexpectedHandshake(24),
        ),
        (TLS12, HANDSHAKE, &[1, 1, 0, 0], Violation::RecordOverflow),
        (TLS12, 20, &[1], Violation::UnexpectedRecord(20)),
    ];
    for (suite, content, message, expected) in rows {
        let mut pair = SessionPair::new(suite, 1).unwrap();
        let record = pair.seal_as_client(content, message).unwrap();
        violate(&mut pair, record, expected);
    }
}

#[test]
fn other_records_inside_a_handshake_message_are_refused() {
    for content in [APPLICATION_DATA, ALERT] {
        let mut pair = SessionPair::new(0, 1).unwrap();
        let mut records = pair.seal_as_client(HANDSHAKE, &[24, 0]).unwrap();
        records.extend(pair.seal_as_client(content, &[1, 0]).unwrap());
        violate(&mut pair, records, Violation::MixedHandshake);
    }
}

#[test]
fn headers_that_cannot_be_are_refused_before_their_bodies_come() {
    let rows = [
        (0, [20, 3, 3, 0, 1], Violation::UnexpectedRecord(20)),
        (0, [ALERT, 3, 3, 0, 2], Violation::UnexpectedRecord(ALERT)),
        (
            0,
            [HANDSHAKE, 3, 3, 0, 2],
            Violation::UnexpectedRecord(HANDSHAKE),
        ),
        (3, [20, 3, 3, 0, 1], Violation::UnexpectedRecord(20)),
        (3, *b"GET /", Violation::UnexpectedRecord(b'G')),
        (
            0,
            [APPLICATION_DATA, 3, 3, 0x41, 1],
            Violation::RecordOverflow,
        ),
        (3, [ALERT, 3, 3, 0xff, 0xff], Violation::RecordOverflow),
    ];
    for (suite, header, expected) in rows {
        let mut pair = SessionPair::new(suite, 1).unwrap();
        violate(&mut pair, header.to_vec(), expected);
    }
}

#[test]
fn records_too_short_for_a_tag_are_refused() {
    for suite in 0..SUITE_COUNT {
        for length in [0, 1, 15] {
            let mut pair = SessionPair::new(suite, 1).unwrap();
            let mut record = vec![APPLICATION_DATA, 3, 3, 0, length];
            record.extend(vec![0; usize::from(length)]);
            violate(&mut pair, record, Violation::BadRecordMac);
        }
    }
}

#[test]
fn content_above_the_limit_is_refused() {
    for suite in 0..SUITE_COUNT {
        let mut pair = SessionPair::new(suite, 1).unwrap();
        let most = vec![1; MAX_PLAINTEXT_BYTES];
        let mut record = seal_any_length(&mut pair.client, &most);
        let opened = pair.server.open(&mut record, &mut Vec::new());
        assert_eq!(opened, Ok(data(MAX_PLAINTEXT_BYTES)));
        let more = vec![1; MAX_PLAINTEXT_BYTES + 1];
        let record = seal_any_length(&mut pair.client, &more);
        violate(&mut pair, record, Violation::RecordOverflow);
    }
    // Padding counts too.
    let mut pair = SessionPair::new(0, 1).unwrap();
    let mut padded = vec![0; MAX_PLAINTEXT_BYTES + 1];
    padded[..2].copy_from_slice(&[1, APPLICATION_DATA]);
    let record = seal_padded(&mut pair.client, &padded);
    violate(&mut pair, record, Violation::RecordOverflow);
}

/// A record of application data that may be too long.
fn seal_any_length(session: &mut RecordSession, message: &[u8]) -> Vec<u8> {
    seal_record(session, APPLICATION_DATA, message)
}

/// A record with padding: the content type is in the message.
fn seal_padded(session: &mut RecordSession, message: &[u8]) -> Vec<u8> {
    seal_record(session, 0, message)
}

fn seal_record(session: &mut RecordSession, content: u8, message: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    // The longest that is allowed, and then its length corrected.
    let length = message.len().min(MAX_PLAINTEXT_BYTES);
    let record = session
        .send_keys
        .begin_record(session.suite, content, length, &mut out);
    let body =
        u16::from_be_bytes([out[3], out[4]]) + u16::try_from(message.len() - length).unwrap();
    out[3..5].copy_from_slice(&body.to_be_bytes());
    out.extend_from_slice(message);
    session.send_keys.finish_record(record, &mut out).unwrap();
    out
}

#[test]
fn padding_is_no_data() {
    let mut pair = SessionPair::new(0, 1).unwrap();
    let mut record = seal_padded(&mut pair.client, &[9, 9, 9, APPLICATION_DATA, 0, 0, 0, 0]);
    let opened = pair.server.open(&mut record, &mut Vec::new());
    assert_eq!(opened, Ok(data(3)));
}

#[test]
fn records_without_data_are_bounded() {
    let rows: [(usize, u8, &[u8], usize, Violation); 5] = [
        (0, APPLICATION_DATA, &[], 32, Violation::TooManyEmptyRecords),
        (3, APPLICATION_DATA, &[], 32, Violation::TooManyEmptyRecords),
        (
            0,
            HANDSHAKE,
            &[24, 0, 0, 1, 1],
            32,
            Violation::TooManyKeyUpdates,
        ),
        (0, ALERT, &[1, 90], 4, Violation::TooManyWarnings),
        (3, ALERT, &[1, 42], 4, Violation::TooManyWarnings),
    ];
    for (suite, content, message, allowed, expected) in rows {
        let mut pair = SessionPair::new(suite, 1).unwrap();
        let send_all = |pair: &mut SessionPair| {
            for _ in 0..allowed {
                let mut record = pair.seal_as_client(content, message).unwrap();
                let mut answer = Vec::new();
                let opened = pair.server.open(&mut record, &mut answer);
                assert_eq!(opened, Ok(data(0)));
                let answered = pair.client.open(&mut answer, &mut Vec::new());
                assert_eq!(answered, Ok(data(0)));
            }
        };
        send_all(&mut pair);
        // Data of the server renews what is allowed, data of the client does not.
        let mut record = seal(&mut pair.server, b"event");
        pair.client.open(&mut record, &mut Vec::new()).unwrap();
        let mut record = seal(&mut pair.client, b"data");
        pair.server.open(&mut record, &mut Vec::new()).unwrap();
        send_all(&mut pair);
        let mut records = seal(&mut pair.client, b"data");
        records.extend(pair.seal_as_client(content, message).unwrap());
        violate(&mut pair, records, expected);
    }
}

/// Each byte of a record, changed in each bit, and the client of `rustls` is told.
#[test]
fn a_changed_byte_ends_the_session() {
    for suite in 0..SUITE_COUNT {
        let (mut client, held) = Handshake::new(suite).hold();
        let record = client_records(&mut client, b"a request");
        let held = held.to_bytes();
        let mut last_answer = Vec::new();
        for at in 0..record.len() {
            for bit in 0..8 {
                let mut changed = record.clone();
                changed[at] ^= 1 << bit;
                // A longer record would not be whole.
                changed.extend([0; 256]);
                let mut held = RecordSession::from_bytes(&held).unwrap();
                let mut answer = Vec::new();
                match held.open(&mut changed, &mut answer) {
                    Err(OpenError::Violation(violation)) => {
                        let is_header = at < 5;
                        let is_type = matches!(violation, Violation::UnexpectedRecord(_));
                        let is_length = violation == Violation::RecordOverflow;
                        let is_tag = violation == Violation::BadRecordMac;
                        assert!(is_tag || is_header && (is_type || is_length), "{violation}");
                        last_answer = answer;
                    }
                    opened => {
                        // The length says that more comes.
                        assert!((3..5).contains(&at), "{suite} {at} {bit}: {opened:?}");
                        assert!(held.memory_bytes() > changed.len());
                    }
                }
            }
        }
        let told = feed(&mut client, &last_answer).unwrap_err();
        let alert = rustls::Error::AlertReceived(rustls::AlertDescription::BadRecordMac);
        assert_eq!(told, alert);
    }
}

#[test]
fn a_record_that_comes_twice_ends_the_session() {
    for suite in 0..SUITE_COUNT {
        let mut pair = SessionPair::new(suite, 1).unwrap();
        let record = seal(&mut pair.client, b"once");
        let opened = pair.server.open(&mut record.clone(), &mut Vec::new());
        assert_eq!(opened, Ok(data(4)));
        violate(&mut pair, record, Violation::BadRecordMac);
    }
}

#[test]
fn an_alert_is_all_that_follows_a_violation() {
    let mut pair = SessionPair::new(0, 1).unwrap();
    let mut records = vec![ALERT, 3, 3, 0, 2, 1, 0];
    let mut out = Vec::new();
    assert!(pair.server.open(&mut records, &mut out).is_err());
    assert_eq!(out.len(), 5 + 2 + 1 + 16);
}

/// A sample of what the fuzzer tries.
#[test]
fn random_operations_keep_what_holds() {
    let seeds = std::env::var("PENSTOCK_SEEDS").ok();
    let seeds = seeds.and_then(|seeds| seeds.parse().ok()).unwrap_or(1000);
    for seed in 0..seeds {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut input = Vec::new();
        input.extend([random.u8(..), random.u8(..)]);
        for _ in 0..random.usize(..12) {
            let kind = *random.choice([20, 21, 22, 23, 24].iter()).unwrap();
            let messages: [&[u8]; 6] = [
                &[24, 0, 0, 1, 0],
                &[24, 0, 0, 1, 1],
                &[2, 40],
                &[1, 0],
                &[],
                &[1, 0, 0, 9],
            ];
            let message = random.choice(messages).unwrap();
            let length = u8::try_from(1 + message.len()).unwrap();
            input.extend([random.u8(..7), length, random.u8(..40), kind]);
            input.extend(message);
        }
        let done = std::panic::catch_unwind(|| run_operations(&input));
        assert!(done.is_ok(), "seed {seed}: {input:?}");
    }
}
