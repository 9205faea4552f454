//! Arbitrary text for the log mask: masking is idempotent, and the value of a listed name is
//! removed in any context.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_http::LogMask;

/// Unlikely to occur by chance.
const CANARY: &[u8] = b"Zq9cAnArY7xK";

fuzz_target!(|data: &[u8]| {
    let mask = LogMask::default();
    check_stable(&mask, data);
    // The fuzzer finds the word from the target's comparison.
    if has_canary(data) {
        return;
    }
    let cut = data.len().checked_div(2).unwrap_or_default();
    let (before, after) = data.split_at(cut);
    for name in [
        &b"&token="[..],
        b" password = ",
        b"?X-Amz-Signature=",
        b"\napi_key=\"x\\\"",
    ] {
        let text = [before, name, CANARY, after].concat();
        check_stable(&mask, &text);
        assert!(!has_canary(&mask.apply(&text)), "{}", show(&text));
        let text = [before, &name[..name.len().min(7)], CANARY, after].concat();
        check_stable(&mask, &text);
    }
    let text = [before, b"&token=", CANARY, after].concat();
    assert!(!has_canary(&mask.apply_url(&text)), "{}", show(&text));
    let text = [before, b"%26token%3D", CANARY, after].concat();
    assert!(!has_canary(&mask.apply_url(&text)), "{}", show(&text));
    assert!(!has_canary(&mask.apply(&text)), "{}", show(&text));
});

fn check_stable(mask: &LogMask, text: &[u8]) {
    let once = mask.apply(text);
    assert_eq!(mask.apply(&once), once, "{}", show(text));
    assert!(once.len() <= text.len() + 4 * text.len(), "{}", show(text));
    let once = mask.apply_url(text);
    assert_eq!(mask.apply_url(&once), once, "{}", show(text));
}

fn has_canary(text: &[u8]) -> bool {
    text.windows(CANARY.len()).any(|window| window == CANARY)
}

fn show(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}
