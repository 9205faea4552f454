//! Arbitrary bytes as lines of joining servers: no panic, accepted lines survive a round trip,
//! nothing passes for a proof, and any text makes a valid label. A proof is valid only for its key,
//! nonces, connection and side, and not with a changed byte.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_wire::join::{
    FrontEndMessage, ChannelBinding, JoinHandshake, JoinPurpose, JoinReply, JoinSecret, JoinSide,
    JoinerMessage, MAX_LINE_BYTES, Nonce, encode_challenge, encode_greeting, encode_join_request,
    parse_challenge, parse_greeting, parse_join_request, sanitise_label,
};

const HANDSHAKE: JoinHandshake = JoinHandshake {
    joiner: Nonce([1; 16]),
    front_end: Nonce([2; 16]),
    binding: ChannelBinding::Tls([3; 32]),
};

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let secret = JoinSecret::new("a secret that the fuzzer does not know");
    check_proofs(&secret, data);
    for line in text.split('\n') {
        if let Ok(nonce) = parse_greeting(line) {
            assert_eq!(encode_greeting(&nonce), format!("{line}\n"));
        }
        if let Ok(nonce) = parse_challenge(line) {
            assert_eq!(encode_challenge(&nonce), format!("{line}\n"));
        }
        assert!(secret.verify(JoinSide::Joiner, &HANDSHAKE, line).is_err());
        assert!(secret.verify(JoinSide::FrontEnd, &HANDSHAKE, line).is_err());
        assert!(parse_join_request(&secret, &HANDSHAKE, line).is_err());
        if let Ok(answer) = JoinReply::parse(line) {
            assert!(answer.encode().len() <= MAX_LINE_BYTES);
        }
        if let Ok(said) = JoinerMessage::parse(line) {
            assert_eq!(JoinerMessage::parse(said.encode().trim_end()), Ok(said));
        }
        if let Ok(said) = FrontEndMessage::parse(line) {
            assert_eq!(FrontEndMessage::parse(said.encode().trim_end()), Ok(said));
        }
        let purpose = JoinPurpose::Control {
            capacity: 1,
            upstream: sanitise_label(line),
            label: sanitise_label(line),
        };
        let asked = encode_join_request(&secret, &HANDSHAKE, &purpose);
        assert!(asked.len() <= MAX_LINE_BYTES);
        assert_eq!(
            parse_join_request(&secret, &HANDSHAKE, asked.trim_end()),
            Ok(purpose)
        );
    }
});

fn check_proofs(secret: &JoinSecret, data: &[u8]) {
    let mut nonce = [0; 16];
    for (byte, drawn) in nonce.iter_mut().zip(data) {
        *byte = *drawn;
    }
    let handshake = JoinHandshake {
        joiner: Nonce(nonce),
        ..HANDSHAKE
    };
    let (ours, theirs) = (
        secret.encode_proof(JoinSide::Joiner, &handshake),
        secret.encode_proof(JoinSide::FrontEnd, &handshake),
    );
    let (ours, theirs) = (ours.trim_end(), theirs.trim_end());
    assert_eq!(secret.verify(JoinSide::Joiner, &handshake, ours), Ok(()));
    assert_eq!(
        secret.verify(JoinSide::FrontEnd, &handshake, theirs),
        Ok(())
    );
    assert!(secret.verify(JoinSide::Joiner, &handshake, theirs).is_err());
    assert!(secret.verify(JoinSide::FrontEnd, &handshake, ours).is_err());
    assert!(
        JoinSecret::new("another")
            .verify(JoinSide::Joiner, &handshake, ours)
            .is_err()
    );
    if nonce != HANDSHAKE.joiner.0 {
        assert!(secret.verify(JoinSide::Joiner, &HANDSHAKE, ours).is_err());
    }
    let plain = JoinHandshake {
        binding: ChannelBinding::Plain,
        ..handshake
    };
    assert!(secret.verify(JoinSide::Joiner, &plain, ours).is_err());
    let mut changed = ours.as_bytes().to_vec();
    if let [at, byte, ..] = *data {
        let at = usize::from(at) % changed.len();
        changed[at] = byte;
        if let Ok(line) = std::str::from_utf8(&changed)
            && line != ours
        {
            assert!(
                secret.verify(JoinSide::Joiner, &handshake, line).is_err(),
                "{line}"
            );
        }
    }
}
