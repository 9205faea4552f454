//! Arbitrary bytes as a set of keys, as tokens, as claims and as queries of signed links: no panic,
//! no token is believed that no key has signed, and no claim breaks a field.

#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use penstock_rules::fuzzing;
use penstock_tokens::{KeySet, Verifier};

const NOW: Duration = Duration::from_secs(1_780_000_000);

/// A set with one key (RFC 8037, appendix A).
const SET: &[u8] = br#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"1",
    "x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

fuzz_target!(|data: &[u8]| {
    fuzzing::read_claims(data);
    fuzzing::split_query(data);
    let _ = KeySet::parse(data);
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let _ = Verifier::from_key_text(text, None);
    let secret = Verifier::from_secret(b"a secret that the fuzzer does not know");
    assert!(secret.verify_at(text, NOW).is_err());
    let set = KeySet::parse(SET).expect("the set is valid");
    assert!(set.verify_at(text, NOW).is_err());
});
