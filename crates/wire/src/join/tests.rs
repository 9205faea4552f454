//! Lines that are accepted, lines that are not, and what a proof is bound to.

use super::*;

const HANDSHAKE: JoinHandshake = JoinHandshake {
    joiner: Nonce([0xa1; 16]),
    front_end: Nonce([0x0f; 16]),
    binding: ChannelBinding::Tls([0x5c; 32]),
};

fn secret() -> JoinSecret {
    JoinSecret::new("0123456789abcdef0123456789abcdef")
}

fn line(text: &str) -> &str {
    let line = text.strip_suffix('\n').expect("it is a line");
    assert!(
        !line.contains('\n') && text.len() <= MAX_LINE_BYTES,
        "{text:?}"
    );
    line
}

fn control() -> JoinPurpose {
    JoinPurpose::Control {
        capacity: 8,
        upstream: "guestbook".into(),
        label: "web-2:4711".into(),
    }
}

#[test]
fn a_handshake_round_trips_line_by_line() {
    let secret = secret();
    let greeting = encode_greeting(&HANDSHAKE.joiner);
    assert_eq!(parse_greeting(line(&greeting)), Ok(HANDSHAKE.joiner));
    let challenge = encode_challenge(&HANDSHAKE.front_end);
    assert_eq!(parse_challenge(line(&challenge)), Ok(HANDSHAKE.front_end));
    let proof = secret.encode_proof(JoinSide::Joiner, &HANDSHAKE);
    assert_eq!(
        secret.verify(JoinSide::Joiner, &HANDSHAKE, line(&proof)),
        Ok(())
    );
    let proof = secret.encode_proof(JoinSide::FrontEnd, &HANDSHAKE);
    assert_eq!(
        secret.verify(JoinSide::FrontEnd, &HANDSHAKE, line(&proof)),
        Ok(())
    );
    for purpose in [
        control(),
        JoinPurpose::CarryRequests { member: 7 },
        JoinPurpose::CarryRequests { member: u64::MAX },
    ] {
        let request = encode_join_request(&secret, &HANDSHAKE, &purpose);
        assert_eq!(
            parse_join_request(&secret, &HANDSHAKE, line(&request)),
            Ok(purpose)
        );
    }
    for answer in [
        JoinReply::Accepted(u64::MAX),
        JoinReply::Refused("it is full".into()),
    ] {
        assert_eq!(JoinReply::parse(line(&answer.encode())), Ok(answer));
    }
    let long = JoinReply::Refused(format!("why\n{}", "é".repeat(400)));
    assert!(JoinReply::parse(line(&long.encode())).is_ok());
    for message in [
        JoinerMessage::Heartbeat,
        JoinerMessage::Capacity(3),
        JoinerMessage::Leave,
    ] {
        assert_eq!(JoinerMessage::parse(line(&message.encode())), Ok(message));
    }
    for message in [
        FrontEndMessage::Heartbeat,
        FrontEndMessage::Dial(1),
        FrontEndMessage::Superseded,
        FrontEndMessage::Drained,
    ] {
        assert_eq!(FrontEndMessage::parse(line(&message.encode())), Ok(message));
    }
}

#[test]
fn a_proof_is_bound_to_key_side_handshake_and_text() {
    let (secret, other) = (
        secret(),
        JoinSecret::new("another key, of which nobody here knows"),
    );
    let elsewhere = Nonce([1; 16]);
    let later = JoinHandshake {
        front_end: elsewhere,
        ..HANDSHAKE
    };
    let before = JoinHandshake {
        joiner: elsewhere,
        ..HANDSHAKE
    };
    let (joiner, front) = (
        secret.encode_proof(JoinSide::Joiner, &HANDSHAKE),
        secret.encode_proof(JoinSide::FrontEnd, &HANDSHAKE),
    );
    for (secret, handshake) in [(&other, HANDSHAKE), (&secret, later), (&secret, before)] {
        let proof = secret.verify(JoinSide::Joiner, &handshake, line(&joiner));
        assert_eq!(proof, Err(JoinError::WrongKey));
        let proof = secret.verify(JoinSide::FrontEnd, &handshake, line(&front));
        assert_eq!(proof, Err(JoinError::WrongKey));
    }
    // Neither side proves itself with the other's proof.
    let reflected = secret.verify(JoinSide::FrontEnd, &HANDSHAKE, line(&joiner));
    assert_eq!(reflected, Err(JoinError::WrongKey));
    let reflected = secret.verify(JoinSide::Joiner, &HANDSHAKE, line(&front));
    assert_eq!(reflected, Err(JoinError::WrongKey));
    let request = encode_join_request(&secret, &HANDSHAKE, &control());
    let refused = |request: &str, handshake| parse_join_request(&secret, handshake, request);
    assert_eq!(
        parse_join_request(&other, &HANDSHAKE, line(&request)),
        Err(JoinError::WrongKey)
    );
    assert_eq!(refused(line(&request), &later), Err(JoinError::WrongKey));
    let more = request.replace("control 8 ", "control 80 ");
    assert_eq!(refused(line(&more), &HANDSHAKE), Err(JoinError::WrongKey));
    // Nor with a proof of another line.
    for proof in [line(&joiner), line(&front)] {
        let (proof, _binding) = proof.split_once(' ').unwrap();
        let reflected = format!("{proof} {}", control());
        assert_eq!(refused(&reflected, &HANDSHAKE), Err(JoinError::WrongKey));
    }
}

/// A machine in between has one session with each side, and passes the lines on or changes them.
#[test]
fn a_proof_for_another_connection_is_an_interception() {
    let secret = secret();
    let (here, elsewhere) = (HANDSHAKE.binding, ChannelBinding::Tls([0x5d; 32]));
    let seen_as = |binding| JoinHandshake {
        binding,
        ..HANDSHAKE
    };
    for side in [JoinSide::Joiner, JoinSide::FrontEnd] {
        for (made, verified) in [
            (here, elsewhere),
            (here, ChannelBinding::Plain),
            (ChannelBinding::Plain, here),
        ] {
            let proof = secret.encode_proof(side, &seen_as(made));
            let passed_on = secret.verify(side, &seen_as(verified), line(&proof));
            assert_eq!(passed_on, Err(JoinError::Intercepted), "{made:?}");
            // It cannot state the other connection in place of this one.
            let changed = line(&proof).replace(&made.to_string(), &verified.to_string());
            assert_ne!(changed, line(&proof));
            for handshake in [seen_as(made), seen_as(verified)] {
                let proof = secret.verify(side, &handshake, &changed);
                assert_eq!(proof, Err(JoinError::WrongKey), "{made:?}");
            }
        }
        // Without the key it is no interception, but a stranger.
        let other = JoinSecret::new("another key, of which nobody here knows");
        let proof = other.encode_proof(side, &seen_as(elsewhere));
        let refused = secret.verify(side, &HANDSHAKE, line(&proof));
        assert_eq!(refused, Err(JoinError::WrongKey));
    }
    let request = encode_join_request(&secret, &seen_as(elsewhere), &control());
    assert_eq!(
        parse_join_request(&secret, &HANDSHAKE, line(&request)),
        Err(JoinError::WrongKey)
    );
    let proof = secret.encode_proof(JoinSide::Joiner, &HANDSHAKE);
    for broken in [
        line(&proof).split_once(' ').unwrap().0.to_owned(),
        format!("{} x", line(&proof)),
        format!("{}0", line(&proof)),
        line(&proof).replace(' ', "  "),
    ] {
        let refused = secret.verify(JoinSide::Joiner, &HANDSHAKE, &broken);
        assert_eq!(refused, Err(JoinError::Malformed), "{broken:?}");
    }
}

#[test]
fn what_is_no_line_is_refused() {
    let (other, malformed) = (JoinError::OtherProtocol, JoinError::Malformed);
    for (text, expected) in [
        ("", other),
        ("penstock-join", other),
        ("penstock-join 3", other),
        ("penstock-join x 0f", other),
        ("penstock-join +3 0f", other),
        ("GET / HTTP/1.1", other),
        (
            "penstock-join 2 0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f",
            JoinError::OtherVersion(2),
        ),
        ("penstock-join 4 anything", JoinError::OtherVersion(4)),
        ("penstock-join 3 ", malformed),
        ("penstock-join 3 tls", malformed),
        ("penstock-join 3 0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0", malformed),
        (
            "penstock-join 3 0F0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f",
            malformed,
        ),
        (
            "penstock-join 3 0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f ",
            malformed,
        ),
    ] {
        assert_eq!(parse_greeting(text), Err(expected), "{text:?}");
    }
    for (text, expected) in [
        (line(&encode_requirement(true)), JoinError::TlsRequired),
        (line(&encode_requirement(false)), malformed),
        ("penstock-join 4 tls", JoinError::OtherVersion(4)),
        ("penstock-join 3", other),
    ] {
        assert_eq!(parse_challenge(text), Err(expected), "{text:?}");
    }
    for text in ["", "0f", "0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f 1"] {
        assert_eq!(parse_challenge(text), Err(JoinError::Malformed), "{text:?}");
    }
    for text in [
        "",
        "control",
        "control 8 a",
        "control 0 a b",
        "control +8 a b",
        "control 8 a b c",
        "control 8  b",
        "control 1000001 a b",
        "carry",
        "carry x",
        "carry 1 2",
        "else 1",
    ] {
        assert_eq!(JoinPurpose::parse(text), None, "{text:?}");
    }
    let long = format!("control 8 {} b", "a".repeat(101));
    assert_eq!(JoinPurpose::parse(&long), None);
    for text in [
        "",
        "beats",
        "capacity",
        "capacity 0",
        "capacity -1",
        "dial 1",
    ] {
        assert!(JoinerMessage::parse(text).is_err(), "{text:?}");
    }
    for text in ["", "beat ", "dial", "dial 0", "leave", "moved 1"] {
        assert!(FrontEndMessage::parse(text).is_err(), "{text:?}");
    }
    for text in ["", "ok", "ok x", "yes 1"] {
        assert!(JoinReply::parse(text).is_err(), "{text:?}");
    }
}

#[test]
fn any_text_becomes_a_label() {
    for (text, expected) in [
        ("web-2.example:4711", "web-2.example:4711"),
        ("a b\n", "a-b-"),
        ("", "-"),
    ] {
        assert_eq!(sanitise_label(text), expected);
    }
    assert_eq!(
        parse_name(&sanitise_label(&"ä".repeat(300))),
        Some("-".repeat(100))
    );
}
