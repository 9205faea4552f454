//! What a session answers, and how it ends.

use rustls::AlertDescription;

use super::{Handshake, TLS13_COUNT, client_records, data, drain, feed, seal};
use crate::records::fuzzing::{SUITE_COUNT, SessionPair};
use crate::records::handshake::KEY_UPDATE_NOT_REQUESTED;
use crate::records::{
    MAX_SESSION_BYTES, OpenError, OpenedBytes, RecordSession, SealError, content_type,
};

const ENDED: OpenedBytes = OpenedBytes {
    data_bytes: 0,
    is_ended: true,
};

const KEY_UPDATE_REQUESTED: [u8; 5] = [24, 0, 0, 1, 1];

#[test]
fn a_key_update_is_answered_under_the_old_key() {
    for suite in 0..TLS13_COUNT {
        let (mut client, mut held) = Handshake::new(suite).hold();
        let mut out = seal(&mut held, b"before");
        client.refresh_traffic_keys().unwrap();
        let mut update = drain(&mut client);
        assert_eq!(held.open(&mut update, &mut out), Ok(data(0)));
        out.extend(seal(&mut held, b"behind"));
        assert_eq!(feed(&mut client, &out).unwrap(), b"beforebehind");
        assert_eq!(
            (held.send_keys.sequence, held.receive_keys.sequence),
            (1, 0)
        );
    }
}

#[test]
fn a_key_update_that_asks_for_none_gets_none() {
    let mut pair = SessionPair::new(0, 1).unwrap();
    let content = content_type::HANDSHAKE;
    let mut update = pair
        .seal_as_client(content, &KEY_UPDATE_NOT_REQUESTED)
        .unwrap();
    let mut out = Vec::new();
    assert_eq!(pair.server.open(&mut update, &mut out), Ok(data(0)));
    assert!(out.is_empty());
    let mut record = seal(&mut pair.client, b"with the next key");
    assert_eq!(pair.server.open(&mut record, &mut out), Ok(data(17)));
    assert_eq!(pair.server.send_keys.sequence, 0);
}

#[test]
fn own_key_updates_are_understood() {
    for suite in 0..TLS13_COUNT {
        let (mut client, mut held) = Handshake::new(suite).hold();
        let mut out = Vec::new();
        for _ in 0..3 {
            held.update_send_key(KEY_UPDATE_NOT_REQUESTED, &mut out)
                .unwrap();
            out.extend(seal(&mut held, b"event"));
        }
        assert_eq!(feed(&mut client, &out).unwrap(), b"eventeventevent");
    }
}

#[test]
fn a_key_update_in_pieces_is_one() {
    let mut pair = SessionPair::new(1, 1).unwrap();
    let mut out = Vec::new();
    for piece in KEY_UPDATE_REQUESTED.chunks(2) {
        let mut record = pair.seal_as_client(content_type::HANDSHAKE, piece).unwrap();
        assert_eq!(pair.server.open(&mut record, &mut out), Ok(data(0)));
    }
    assert_eq!(pair.server.receive_keys.sequence, 0);
    assert!(out.is_empty(), "the answer comes with the next data");
    out.extend(seal(&mut pair.server, b"event"));
    assert_eq!(pair.client.open(&mut out, &mut Vec::new()), Ok(data(5)));
    assert_eq!(pair.client.receive_keys.sequence, 1);
}

#[test]
fn many_key_updates_are_answered_once() {
    let mut pair = SessionPair::new(0, 1).unwrap();
    let (mut out, content) = (Vec::new(), content_type::HANDSHAKE);
    for _ in 0..20 {
        let mut update = pair.seal_as_client(content, &KEY_UPDATE_REQUESTED).unwrap();
        assert_eq!(pair.server.open(&mut update, &mut out), Ok(data(0)));
        // The debt moves with the session.
        pair.server = RecordSession::from_bytes(&pair.server.to_bytes()).unwrap();
    }
    assert!(out.is_empty());
    for _ in 0..2 {
        let mut out = seal(&mut pair.server, b"event");
        assert_eq!(pair.client.open(&mut out, &mut Vec::new()), Ok(data(5)));
    }
    assert_eq!(pair.client.receive_keys.sequence, 2);
}

/// The keys change with the connection's activity, its records do not.
#[test]
fn released_keys_are_made_again() {
    for suite in 0..SUITE_COUNT {
        let (mut client, mut session) = Handshake::new(suite).hold();
        assert!(!session.has_expanded_keys());
        for round in 0..4 {
            let event = seal(&mut session, b"event");
            assert_eq!(feed(&mut client, &event).unwrap(), b"event");
            let mut request = client_records(&mut client, b"request");
            let opened = session.open(&mut request, &mut Vec::new());
            assert_eq!(opened, Ok(data(7)));
            assert!(session.has_expanded_keys());
            if round % 2 == 0 {
                session.release_keys();
                assert!(!session.has_expanded_keys());
            }
        }
    }
}

#[test]
fn the_end_of_the_server_is_the_last_that_it_sends() {
    for suite in 0..SUITE_COUNT {
        let (mut client, mut held) = Handshake::new(suite).hold();
        let mut out = seal(&mut held, b"last");
        held.close_notify(&mut out);
        let length = out.len();
        held.close_notify(&mut out);
        assert_eq!(out.len(), length);
        assert_eq!(held.seal(&[], &mut out), Err(SealError::Closed));
        assert_eq!(feed(&mut client, &out).unwrap(), b"last");
        let state = client.process_new_packets().unwrap();
        assert!(state.peer_has_closed());
        // The client may still send, and end: a key update is not answered any more.
        if suite < TLS13_COUNT {
            client.refresh_traffic_keys().unwrap();
        }
        let mut records = client_records(&mut client, b"late");
        client.send_close_notify();
        records.extend(drain(&mut client));
        let mut answer = Vec::new();
        let opened = held.open(&mut records, &mut answer);
        let late = OpenedBytes {
            data_bytes: 4,
            is_ended: true,
        };
        assert_eq!(opened, Ok(late), "{suite}");
        assert!(answer.is_empty());
    }
}

#[test]
fn the_end_of_the_client_ends_its_side() {
    for suite in 0..SUITE_COUNT {
        let (mut client, mut held) = Handshake::new(suite).hold();
        client.send_close_notify();
        let mut end = drain(&mut client);
        end.extend(b"dropped");
        let mut out = Vec::new();
        assert_eq!(held.open(&mut end, &mut out), Ok(ENDED));
        assert_eq!(held.open(&mut [1, 2], &mut out), Ok(ENDED));
        assert_eq!(held.memory_bytes(), size_of::<RecordSession>());
        assert!(!held.can_receive());
        assert_eq!(held.receive_keys.key, [0; 32]);
        assert!(held.can_send() && out.is_empty());
        out.extend(seal(&mut held, b"event"));
        held.close_notify(&mut out);
        assert_eq!(feed(&mut client, &out).unwrap(), b"event");
        assert!(client.process_new_packets().unwrap().peer_has_closed());
    }
}

#[test]
fn an_alert_of_the_client_ends_the_session_without_an_answer() {
    let fatal = |description: AlertDescription| [2, description.into()];
    let warning = |description: AlertDescription| [1, description.into()];
    let unknown_ca = AlertDescription::UnknownCA;
    let rows = [
        (0, fatal(unknown_ca), Err(OpenError::PeerAlert(unknown_ca))),
        (3, fatal(unknown_ca), Err(OpenError::PeerAlert(unknown_ca))),
        // TLS 1.3 has no levels.
        (
            0,
            warning(unknown_ca),
            Err(OpenError::PeerAlert(unknown_ca)),
        ),
        (3, warning(unknown_ca), Ok(data(0))),
        (0, warning(AlertDescription::UserCanceled), Ok(data(0))),
        (0, fatal(AlertDescription::UserCanceled), Ok(data(0))),
        (0, fatal(AlertDescription::CloseNotify), Ok(ENDED)),
    ];
    for (suite, alert, expected) in rows {
        let mut pair = SessionPair::new(suite, 1).unwrap();
        let mut record = pair.seal_as_client(content_type::ALERT, &alert).unwrap();
        let mut out = Vec::new();
        assert_eq!(
            pair.server.open(&mut record, &mut out),
            expected,
            "{suite} {alert:?}"
        );
        assert!(out.is_empty());
        if expected.is_err() {
            assert_dead(&mut pair.server);
        }
    }
}

pub(super) fn assert_dead(session: &mut RecordSession) {
    let mut out = Vec::new();
    assert_eq!(session.seal(&[], &mut out), Err(SealError::Closed));
    session.close_notify(&mut out);
    assert_eq!(session.open(&mut [0], &mut out), Err(OpenError::Closed));
    assert!(out.is_empty() && session.memory_bytes() <= MAX_SESSION_BYTES);
    for keys in [&session.send_keys, &session.receive_keys] {
        assert_eq!(
            (keys.secret.0, keys.key, keys.iv),
            ([0; 48], [0; 32], [0; 12])
        );
    }
}

#[test]
fn a_renegotiation_is_refused_and_not_tried_twice() {
    let mut hello = vec![1, 0, 1, 0x2c];
    hello.extend([7; 300]);
    let mut pair = SessionPair::new(3, 1).unwrap();
    let mut out = Vec::new();
    for piece in hello.chunks(90) {
        let mut record = pair.seal_as_client(content_type::HANDSHAKE, piece).unwrap();
        assert_eq!(pair.server.open(&mut record, &mut out), Ok(data(0)));
    }
    assert_eq!(pair.client.open(&mut out, &mut Vec::new()), Ok(data(0)));
    out.clear();
    let mut record = seal(&mut pair.client, b"goes on");
    assert_eq!(pair.server.open(&mut record, &mut out), Ok(data(7)));
    let mut record = pair
        .seal_as_client(content_type::HANDSHAKE, &hello)
        .unwrap();
    assert!(pair.server.open(&mut record, &mut out).is_err());
    let alert = OpenError::PeerAlert(AlertDescription::HandshakeFailure);
    assert_eq!(pair.client.open(&mut out, &mut Vec::new()), Err(alert));
}

#[test]
fn rustls_understands_the_refusal_of_a_renegotiation() {
    let (mut client, mut held) = Handshake::new(TLS13_COUNT).hold();
    let mut out = Vec::new();
    held.refuse_renegotiation(&mut out).unwrap();
    out.extend(seal(&mut held, b"event"));
    assert_eq!(feed(&mut client, &out).unwrap(), b"event");
}
