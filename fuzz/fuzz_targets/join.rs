//! Any bytes as lines of those who join: no panic, what is taken is written the same again, nothing passes for a proof,
//! and any text makes a label that passes. A proof is one for its key, its meeting and its side alone, and not when a
//! byte of it is another.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_wire::join::{
    Answer, LINE_MAX, Meeting, Nonce, Purpose, Secret, ToFront, ToJoiner, challenge, greeting,
    label, parse_challenge, parse_greeting, parse_request, prove_front, prove_joiner, request,
    verify_front, verify_joiner,
};

const MEETING: Meeting = Meeting {
    joiner: Nonce([1; 16]),
    front: Nonce([2; 16]),
};

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let secret = Secret::new("a secret that the fuzzer does not know");
    check_proofs(&secret, data);
    for line in text.split('\n') {
        if let Ok(nonce) = parse_greeting(line) {
            assert_eq!(greeting(&nonce), format!("{line}\n"));
        }
        if let Ok(nonce) = parse_challenge(line) {
            assert_eq!(challenge(&nonce), format!("{line}\n"));
        }
        assert!(verify_joiner(&secret, &MEETING, line).is_err());
        assert!(verify_front(&secret, &MEETING, line).is_err());
        assert!(parse_request(&secret, &MEETING, line).is_err());
        if let Ok(answer) = Answer::parse(line) {
            assert!(answer.encode().len() <= LINE_MAX);
        }
        if let Ok(said) = ToFront::parse(line) {
            assert_eq!(ToFront::parse(said.encode().trim_end()), Ok(said));
        }
        if let Ok(said) = ToJoiner::parse(line) {
            assert_eq!(ToJoiner::parse(said.encode().trim_end()), Ok(said));
        }
        let purpose = Purpose::Control {
            capacity: 1,
            upstream: label(line),
            label: label(line),
        };
        let asked = request(&secret, &MEETING, &purpose);
        assert!(asked.len() <= LINE_MAX);
        assert_eq!(
            parse_request(&secret, &MEETING, asked.trim_end()),
            Ok(purpose)
        );
    }
});

fn check_proofs(secret: &Secret, data: &[u8]) {
    let mut nonce = [0; 16];
    for (byte, drawn) in nonce.iter_mut().zip(data) {
        *byte = *drawn;
    }
    let meeting = Meeting {
        joiner: Nonce(nonce),
        front: MEETING.front,
    };
    let (ours, theirs) = (
        prove_joiner(secret, &meeting),
        prove_front(secret, &meeting),
    );
    let (ours, theirs) = (ours.trim_end(), theirs.trim_end());
    assert_eq!(verify_joiner(secret, &meeting, ours), Ok(()));
    assert_eq!(verify_front(secret, &meeting, theirs), Ok(()));
    assert!(verify_joiner(secret, &meeting, theirs).is_err());
    assert!(verify_front(secret, &meeting, ours).is_err());
    assert!(verify_joiner(&Secret::new("another"), &meeting, ours).is_err());
    if nonce != MEETING.joiner.0 {
        assert!(verify_joiner(secret, &MEETING, ours).is_err());
    }
    let mut changed = ours.as_bytes().to_vec();
    if let [at, byte, ..] = *data {
        let at = usize::from(at) % changed.len();
        changed[at] = byte;
        if let Ok(line) = std::str::from_utf8(&changed)
            && line != ours
        {
            assert!(verify_joiner(secret, &meeting, line).is_err(), "{line}");
        }
    }
}
