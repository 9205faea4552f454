//! Arbitrary bytes as lines of joining servers: no panic, accepted lines survive a round trip,
//! nothing passes for a proof, and any text makes a valid label. A proof is valid only for its key,
//! nonces and side, and not with a changed byte.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_wire::join::{
    FrontEndMessage, HandshakeNonces, JoinPurpose, JoinReply, JoinSecret, JoinSide, JoinerMessage,
    MAX_LINE_BYTES, Nonce, encode_challenge, encode_greeting, encode_join_request, parse_challenge,
    parse_greeting, parse_join_request, sanitise_label,
};

const NONCES: HandshakeNonces = HandshakeNonces {
    joiner: Nonce([1; 16]),
    front_end: Nonce([2; 16]),
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
        assert!(secret.verify(JoinSide::Joiner, &NONCES, line).is_err());
        assert!(secret.verify(JoinSide::FrontEnd, &NONCES, line).is_err());
        assert!(parse_join_request(&secret, &NONCES, line).is_err());
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
        let asked = encode_join_request(&secret, &NONCES, &purpose);
        assert!(asked.len() <= MAX_LINE_BYTES);
        assert_eq!(
            parse_join_request(&secret, &NONCES, asked.trim_end()),
            Ok(purpose)
        );
    }
});

fn check_proofs(secret: &JoinSecret, data: &[u8]) {
    let mut nonce = [0; 16];
    for (byte, drawn) in nonce.iter_mut().zip(data) {
        *byte = *drawn;
    }
    let nonces = HandshakeNonces {
        joiner: Nonce(nonce),
        front_end: NONCES.front_end,
    };
    let (ours, theirs) = (
        secret.encode_proof(JoinSide::Joiner, &nonces),
        secret.encode_proof(JoinSide::FrontEnd, &nonces),
    );
    let (ours, theirs) = (ours.trim_end(), theirs.trim_end());
    assert_eq!(secret.verify(JoinSide::Joiner, &nonces, ours), Ok(()));
    assert_eq!(secret.verify(JoinSide::FrontEnd, &nonces, theirs), Ok(()));
    assert!(secret.verify(JoinSide::Joiner, &nonces, theirs).is_err());
    assert!(secret.verify(JoinSide::FrontEnd, &nonces, ours).is_err());
    assert!(
        JoinSecret::new("another")
            .verify(JoinSide::Joiner, &nonces, ours)
            .is_err()
    );
    if nonce != NONCES.joiner.0 {
        assert!(secret.verify(JoinSide::Joiner, &NONCES, ours).is_err());
    }
    let mut changed = ours.as_bytes().to_vec();
    if let [at, byte, ..] = *data {
        let at = usize::from(at) % changed.len();
        changed[at] = byte;
        if let Ok(line) = std::str::from_utf8(&changed)
            && line != ours
        {
            assert!(
                secret.verify(JoinSide::Joiner, &nonces, line).is_err(),
                "{line}"
            );
        }
    }
}
