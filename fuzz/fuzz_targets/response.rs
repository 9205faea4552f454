//! Arbitrary bytes as a response head, whole and in pieces: no panic, the same result for every
//! split, and accepted heads have the guarantees that a client relies on.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_http::{ParseProgress, ResponseBodyFraming, ResponseHeadLimits, ResponseHeadScanner};

const LIMITS: ResponseHeadLimits = ResponseHeadLimits {
    max_head_bytes: 2048,
    max_fields: 40,
};

fuzz_target!(|data: &[u8]| {
    let Some((&[choice, split], data)) = data.split_first_chunk::<2>() else {
        return;
    };
    let answers_head = choice & 1 == 1;
    let whole = ResponseHeadScanner::new().scan(data, answers_head, &LIMITS);
    let first = usize::from(split).min(data.len());
    let mut scanner = ResponseHeadScanner::new();
    let pieces = match scanner.scan(&data[..first], answers_head, &LIMITS) {
        Ok(ParseProgress::Partial) => scanner.scan(data, answers_head, &LIMITS),
        early => early,
    };
    match (&whole, &pieces) {
        (Ok(ParseProgress::Complete(whole)), Ok(ParseProgress::Complete(pieces))) => {
            assert_eq!(whole, pieces);
        }
        (Ok(ParseProgress::Partial), Ok(ParseProgress::Partial)) | (Err(_), Err(_)) => {}
        _ => panic!("{whole:?} in one piece, {pieces:?} in two"),
    }
    let Ok(ParseProgress::Complete(head)) = whole else {
        return;
    };
    assert!(head.len <= data.len() && head.len <= LIMITS.max_head_bytes);
    assert!(data[..head.len].ends_with(b"\r\n\r\n"));
    assert!((100..=999).contains(&head.status));
    let never_has_body = answers_head || head.status < 200 || matches!(head.status, 204 | 304);
    assert!(!never_has_body || head.framing == ResponseBodyFraming::None);
    assert!(!head.keep_alive || head.framing != ResponseBodyFraming::UntilClose);
});
